"""Reads to devices, and what is said where there is none. The staging runs here for the CPU; kvikio is stood in for by reads to
host addresses, because neither it nor a GPU is on the machines that run these tests."""

from __future__ import annotations

import ctypes
import os

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import dataio
from dataio.engine.errors import LimitError, OpError
from dataio.formats.gpu import gds, jpeg, staging
from dataio.formats.gpu.devices import DeviceError, check_device
from dataio.formats.gpu.staging import load_to_device
from dataio.formats.weights.tensors import TensorPlace, element_type
from dataio.io.errors import ReadError
from dataio.io.ranges import MemoryRanges, open_ranges

RAW = np.random.default_rng(0).integers(0, 256, 4000, np.uint8).tobytes()
no_cuda = pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without CUDA")


def place(dtype, shape, offset):
    return TensorPlace(dtype if isinstance(dtype, np.dtype) else np.dtype(dtype), shape, offset)


# ------------------------------------------------------------------- staging


@given(
    st.dictionaries(
        st.sampled_from("abcdefgh"),
        st.builds(place, st.sampled_from(["<f4", "u1", "<i2"]), st.tuples(st.integers(0, 20), st.integers(1, 9)), st.integers(0, 3000)),
    ),
    st.integers(1, 2000),
)
def test_every_layout_arrives_whole_by_pieces_of_any_size(places, piece):
    found = load_to_device(MemoryRanges(RAW), places, "cpu", piece=piece)
    assert list(found) == list(places)
    for name, where in places.items():
        assert found[name].shape == where.shape
        assert found[name].numpy().tobytes() == RAW[where.offset : where.offset + where.nbytes]


def test_types_that_numpy_lacks_and_scalars_arrive():
    found = load_to_device(MemoryRanges(RAW), {"b": place(element_type("bfloat16"), (4,), 2), "f": place("<f8", (), 16)}, "cpu")
    assert found["b"].dtype == torch.bfloat16
    assert found["b"].view(torch.int16).numpy().tobytes() == RAW[2:10]
    assert found["f"].shape == ()


def test_any_byte_but_0_is_true():
    found = load_to_device(MemoryRanges(bytes([0, 1, 2, 255])), {"b": place("bool", (4,), 0)}, "cpu")
    assert found["b"].view(torch.uint8).tolist() == [0, 1, 1, 1]


def test_a_place_outside_the_file_takes_no_memory():
    with pytest.raises(OpError, match="'huge' lies outside"):
        load_to_device(MemoryRanges(RAW), {"huge": place("u1", (1 << 50,), 0)}, "cpu")


def test_big_endian_numbers_are_refused():
    with pytest.raises(OpError, match="'b' has elements of type >f4"):
        load_to_device(MemoryRanges(RAW), {"b": place(">f4", (2,), 0)}, "cpu")


def test_a_read_that_fails_ends_all_and_leaves_no_thread():
    class Torn(MemoryRanges):
        def read_into(self, offset, out):
            if offset > 1000:
                raise ReadError("the file ends early")
            super().read_into(offset, out)

    with pytest.raises(ReadError, match="ends early"):
        load_to_device(Torn(RAW), {"a": place("u1", (4000,), 0)}, "cpu", piece=100)
    import threading

    assert not [thread for thread in threading.enumerate() if thread.name.startswith("dataio-staging")]


def test_from_a_store(s3_bucket):
    dataio.write(f"{s3_bucket}/x", RAW * 400)
    found = load_to_device(open_ranges(f"{s3_bucket}/x"), {"a": place("u1", (1_500_000,), 7)}, "cpu", piece=400_000)
    assert found["a"].numpy().tobytes() == (RAW * 400)[7:1_500_007]


# ------------------------------------------------------------------- devices


@pytest.mark.parametrize("device", ["tpu", 3.5, "mps", "meta"])
def test_other_devices_are_refused(device):
    with pytest.raises(ValueError, match="device is 'cpu' or 'cuda:0'"):
        check_device(device)


@no_cuda
def test_without_cuda_a_cuda_device_is_refused_with_the_reason():
    with pytest.raises(DeviceError, match=r"device='cuda:1': .*CUDA"):
        check_device("cuda:1")


@no_cuda
def test_nothing_is_available_without_cuda_and_nothing_raises():
    names = ["gds", "nvjpeg", "cuda_kernels", "cuda_pinning", "rdma"]
    assert [getattr(dataio, f"{name}_available")() for name in names] == [False] * len(names)
    assert dataio.pinned_pool_stats() == {"hits": 0, "misses": 0, "bytes_resident": 0, "bytes_high_watermark": 0}
    info = dataio.gds_info()
    assert info.pop("driver_error")
    assert info.pop("library_version") is None
    assert set(info) == {"library_loaded", "driver_open_ok", "available", "read_ready", "batch_ready"}
    assert not any(info.values())
    assert dataio.rdma_info()["notes"]


@no_cuda
@pytest.mark.parametrize("call", [lambda: dataio.gds_open("/missing"), lambda: dataio.gds_register_buffer(0, 0)], ids=["open", "register"])
def test_without_gds_that_comes_before_the_arguments(call):
    with pytest.raises(RuntimeError, match="gds unavailable: "):
        call()


@pytest.mark.parametrize(
    ("tensor", "why"), [(3, "takes a torch.Tensor, got int"), (torch.zeros(3), "takes a tensor on CUDA, got one on cpu")]
)
def test_gds_read_into_tensor_checks_the_tensor_first(tensor, why):
    with pytest.raises(ValueError, match=why):
        dataio.gds_read_into_tensor("/missing", tensor)


# -------------------------------------------------------------------- kvikio


class Kvikio:
    """Reads of kvikio, to host memory."""

    def __init__(self):
        self.registered = []

    def memory_register(self, memory):
        self.registered.append(memory)

    def memory_deregister(self, memory):
        self.registered.remove(memory)

    class CuFile:
        def __init__(self, path, mode):
            self.descriptor = os.open(path, os.O_RDONLY)

        def pread(self, target, size, file_offset):
            data = os.pread(self.descriptor, size, file_offset)
            pointer = target.data_ptr() if isinstance(target, torch.Tensor) else target.__cuda_array_interface__["data"][0]
            ctypes.memmove(pointer, data, len(data))

            class Future:
                def get(self):
                    if file_offset == 13:
                        raise RuntimeError("cuFile says no")
                    return len(data)

            return Future()

        def close(self):
            os.close(self.descriptor)

        def __enter__(self):
            return self

        def __exit__(self, *exc):
            self.close()


@pytest.fixture
def kvikio(monkeypatch):
    found = Kvikio()
    monkeypatch.setattr(gds, "load_kvikio", lambda: (found, None))
    monkeypatch.setattr(gds, "cuda_devices", lambda: 1)
    return found


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(RAW)
    return path


def test_reads_go_where_they_are_sent(kvikio, file):
    memory = np.zeros(100, np.uint8)
    with dataio.gds_open(file) as handle, dataio.gds_register_buffer(memory.ctypes.data, 100) as buffer:
        assert (buffer.device_ptr, buffer.size, len(kvikio.registered)) == (memory.ctypes.data, 100, 1)
        assert handle.read(buffer, 10, 50, 3) == 10
        assert handle.read_into_ptr(memory.ctypes.data, 5, 3990, 20) == 5
        assert handle.read_batch(buffer, [(4, 0, 40), (8, 3996, 60), (1, 13, 99), (0, 0, 0)]) == [(4, 0), (4, 0), (0, -1), (0, 0)]
    assert not kvikio.registered
    raw = memory.tobytes()
    assert (raw[3:13], raw[20:25], raw[40:44], raw[60:64]) == (RAW[50:60], RAW[3990:3995], RAW[:4], RAW[3996:])


def test_places_outside_a_buffer_are_refused(kvikio, file):
    memory = np.zeros(16, np.uint8)
    with dataio.gds_open(file) as handle, dataio.gds_register_buffer(memory.ctypes.data, 16) as buffer:
        for read in [
            lambda: handle.read(buffer, 17),
            lambda: handle.read(buffer, 8, 0, 9),
            lambda: handle.read(buffer, 1, -1),
            lambda: handle.read_batch(buffer, [(16, 0, 0), (1, 0, 16)]),
            lambda: handle.read_into_ptr(0, 4),
        ]:
            with pytest.raises(ValueError, match=r"outside|negative"):
                read()
    assert not memory.any()


def test_closed_handles_and_buffers_are_refused(kvikio, file):
    memory = np.zeros(16, np.uint8)
    handle, buffer = dataio.gds_open(file), dataio.gds_register_buffer(memory.ctypes.data, 16)
    handle.close()
    with pytest.raises(ValueError, match="is closed"):
        handle.read(buffer, 4)
    buffer.close()
    buffer.close()
    with pytest.raises(ValueError, match="the buffer is closed"):
        handle.read(buffer, 4)


def test_what_kvikio_refuses_is_an_os_error_with_the_path(kvikio, file):
    memory = np.zeros(16, np.uint8)
    with dataio.gds_open(file) as handle, pytest.raises(OSError, match=f"{file}: cuFile says no"):
        handle.read_into_ptr(memory.ctypes.data, 4, 13)


def test_a_missing_file_is_not_found(kvikio, tmp_path):
    with pytest.raises(FileNotFoundError):
        dataio.gds_open(tmp_path / "missing")


def test_tensors_come_straight_from_the_file(file):
    targets = [(place("u1", (10,), 5), torch.zeros(10, dtype=torch.uint8)), (place("u1", (20,), 100), torch.zeros(20, dtype=torch.uint8))]
    staging.read_directly(Kvikio(), str(file), targets)
    assert [flat.numpy().tobytes() for _, flat in targets] == [RAW[5:15], RAW[100:120]]


def test_a_file_that_shrank_is_an_error(file):
    with pytest.raises(ReadError, match="ends early: 1 bytes where 4 at 3999"):
        staging.read_directly(Kvikio(), str(file), [(place("u1", (4,), 3999), torch.zeros(4, dtype=torch.uint8))])


# --------------------------------------------------------------------- nvJPEG

NORMALIZE = {"mean": [0.5] * 3, "std": [0.25] * 3}
CALLS = [
    pytest.param(dataio.nvjpeg_decode_batch_device, (), {}, id="decode"),
    pytest.param(dataio.nvjpeg_decode_resize_batch_device, (4, 4), {}, id="resize"),
    pytest.param(dataio.nvjpeg_decode_resize_normalize_chw_batch_device, (4, 4), NORMALIZE, id="normalize"),
]


@no_cuda
@pytest.mark.parametrize(("call", "size", "options"), CALLS)
def test_without_nvjpeg_every_image_fails_with_the_reason(call, size, options):
    images, errors = call([b"x", b"y"], *size, **options)
    assert images == [None, None]
    assert len(errors) == 2
    assert "CUDA" in errors[0]


@no_cuda
def test_without_nvjpeg_there_is_no_stack():
    images, errors = dataio.nvjpeg_decode_resize_normalize_chw_stacked_device([b"x"], 4, 4, **NORMALIZE)
    assert images is None
    assert len(errors) == 1


@no_cuda
def test_decode_image_batch_without_nvjpeg():
    with pytest.raises(RuntimeError, match="image 0 of 2: nvJPEG needs a CUDA device"):
        dataio.decode_image_batch([b"x", b"y"])
    assert dataio.decode_image_batch([b"x", b"y"], on_error="skip") == [None, None]
    images, errors = dataio.decode_image_batch(iter([b"x", b"y"]), on_error="collect")
    assert images == [None, None]
    assert len(errors) == 2
    assert dataio.decode_image_batch([]) == []


@pytest.mark.parametrize("options", [{"on_error": "ignore"}, {"mode": "cmyk"}, {"output": "tensorflow"}], ids=lambda o: next(iter(o)))
def test_decode_image_batch_names_what_it_takes(options):
    with pytest.raises(ValueError, match=f"{next(iter(options))} must be one of"):
        dataio.decode_image_batch([], **options)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"base": "raw"}, "base must be"),
        ({"interp": "lanczos"}, "interp must be"),
        ({"mean": [0.5]}, "3 numbers"),
        ({"std": [1, 1, 0]}, "not 0"),
        ({"crops": []}, "crops has 0 entries"),
        ({"hflips": [True, False]}, "hflips has 2 entries"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_bad_options_are_refused_with_or_without_nvjpeg(options, why):
    with pytest.raises(ValueError, match=why):
        dataio.nvjpeg_decode_resize_normalize_chw_batch_device([b"x"], 4, 4, **(NORMALIZE | options))


def test_what_is_no_jpeg_or_too_large_takes_no_device_memory(tmp_path):
    image = np.zeros((20, 30, 3), np.uint8)
    dataio.write_image(str(tmp_path / "a.jpg"), image)
    dataio.write_image(str(tmp_path / "a.png"), image)
    data = (tmp_path / "a.jpg").read_bytes()
    jpeg.check_jpeg(data, 600)
    jpeg.check_jpeg(data, 0)
    with pytest.raises(LimitError, match="20x30 pixels exceeds max_pixels=599"):
        jpeg.check_jpeg(data, 599)
    with pytest.raises(OpError, match="this is png"):
        jpeg.check_jpeg((tmp_path / "a.png").read_bytes(), 0)


IMAGE = torch.from_numpy(np.random.default_rng(1).integers(0, 256, (3, 17, 23), np.uint8))


@pytest.mark.parametrize(("interp", "ours"), [("linear", "bilinear"), ("cubic", "bicubic")])
def test_images_are_resized_as_the_pipeline_does(interp, ours):
    resized = dataio.transforms.resize(h=9, w=31, interp=ours).spec.function(IMAGE.permute(1, 2, 0).contiguous().numpy(), h=9, w=31, interp=ours)
    found = jpeg.resize(IMAGE, 9, 31, interp).permute(1, 2, 0).numpy()
    assert np.abs(found.astype(int) - resized).max() <= 1


@pytest.mark.parametrize("base", ["unit", "symmetric"])
def test_images_are_normalised_by_the_formula(base):
    mean, std = [0.4, 0.5, 0.6], [0.2, 0.25, 0.3]
    x = IMAGE.double()
    scaled = x / 255 if base == "unit" else x / 127.5 - 1
    expected = (scaled - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]
    assert (jpeg.normalize(IMAGE, mean, std, base) - expected).abs().max() < 2e-6


def test_crops_are_cut_and_checked():
    assert torch.equal(jpeg.crop(IMAGE, (1, 2, 3, 4)), IMAGE[:, 1:4, 2:6])
    assert jpeg.crop(IMAGE, None) is IMAGE
    for box in [(0, 0, 18, 1), (-1, 0, 2, 2), (0, 0, 0, 1)]:
        with pytest.raises(OpError, match="not inside the image of 17x23"):
            jpeg.crop(IMAGE, box)


def test_a_fourth_channel_is_opaque():
    found = jpeg.with_alpha(IMAGE)
    assert torch.equal(found[:3], IMAGE)
    assert found[3].eq(255).all()
