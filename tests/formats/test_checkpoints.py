"""`read_pt` against `torch.load`, on both formats of files, damaged and hostile ones; `zipnn`."""

from __future__ import annotations

import io
import os
import pickle
import random
import struct
import zipfile
from collections import OrderedDict

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import dataio
from dataio.engine.errors import LimitError, OpError
from dataio.formats.weights.torch_legacy import RangeStream
from dataio.io.ranges import MemoryRanges

FORMATS = pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
DTYPES = (
    "bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16", "float32", "float64",
    "complex64", "bfloat16", "float8_e4m3fn", "float8_e5m2",
)  # fmt: skip
BASE = torch.arange(24.0)
TENSORS = {
    "whole": BASE.reshape(4, 6),
    "view": BASE[3:7],
    "transposed": BASE.reshape(4, 6).T,
    "steps": BASE[1::2],
    "expanded": torch.ones(1).expand(5),
    "scalar": torch.tensor(2.5),
    "empty": torch.zeros(0, 3),
    "parameter": torch.nn.Parameter(torch.ones(2, 2)),
}


def saved(value, zipped=True):
    out = io.BytesIO()
    torch.save(value, out, _use_new_zipfile_serialization=zipped)
    return out.getvalue()


def assert_same(found, tensors):
    assert list(found) == list(tensors)
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor), name


@FORMATS
def test_tensors_are_those_of_torch_load(zipped):
    data = saved(TENSORS, zipped)
    found = dataio.read_pt(data, framework="torch")
    assert_same(found, torch.load(io.BytesIO(data)))
    assert all(tensor.is_contiguous() for tensor in found.values())


@FORMATS
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_type_of_elements(zipped, dtype):
    raw = np.random.default_rng(0).integers(0, 2 if dtype == "bool" else 256, 48, np.uint8)
    tensor = torch.from_numpy(raw).view(getattr(torch, dtype))
    data = saved({"t": tensor}, zipped)
    assert dataio.read_pt(data, framework="torch")["t"].view(torch.uint8).numpy().tobytes() == raw.tobytes()
    array = dataio.read_pt(data)["t"]
    assert array.tobytes() == raw.tobytes()
    assert array.dtype == np.dtype(getattr(ml_dtypes, dtype, None) or dtype)
    assert array.flags.writeable


@FORMATS
def test_tensors_of_one_storage_share_memory(zipped):
    found = dataio.read_pt(saved({"tied": BASE, "also": BASE, "part": BASE[2:5]}, zipped), framework="torch")
    found["tied"][2] = -1
    assert found["also"][2] == found["part"][0] == -1


@FORMATS
def test_what_is_no_tensor_is_left_out_and_nested_dicts_are_asked_for(zipped):
    data = saved({"step": 3, "name": "x", "size": torch.Size([2]), "model": OrderedDict(w=BASE), "best": {"ema": {"w": BASE + 1}}}, zipped)
    assert dataio.read_pt(data) == {}
    assert dataio.read_pt(data, key="model")["w"].tolist() == BASE.tolist()
    assert dataio.read_pt(data, key=["best", "ema"])["w"].tolist() == (BASE + 1).tolist()
    with pytest.raises(KeyError, match="holds no entry 'modle' \\(did you mean 'model'\\?\\)"):
        dataio.read_pt(data, key="modle")
    with pytest.raises(ValueError, match="key='step' leads to an int, not to a dict"):
        dataio.read_pt(data, key="step")


def test_a_module_state_dict_and_an_optimizer():
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    found = dataio.read_pt(saved(model.state_dict()), framework="torch")
    assert_same(found, dict(model.state_dict()))


def test_several_files_are_merged(tmp_path):
    torch.save({"a": BASE}, tmp_path / "1.pt")
    torch.save({"b": BASE + 1}, tmp_path / "2.pt")
    assert list(dataio.read_pt([tmp_path / "1.pt", str(tmp_path / "2.pt")])) == ["a", "b"]
    with pytest.raises(ValueError, match=r"1\.pt: tensor 'a' is in an earlier file too"):
        dataio.read_pt([tmp_path / "1.pt", tmp_path / "1.pt"])


@FORMATS
def test_from_a_store_by_parts(s3_bucket, zipped):
    tensors = TENSORS | {"large": torch.arange(400_000)}
    dataio.write(f"{s3_bucket}/m.pt", saved(tensors, zipped))
    assert_same(dataio.read_pt(f"{s3_bucket}/m.pt", framework="torch"), tensors)


def test_from_what_can_be_read(tmp_path):
    path = tmp_path / "m.pt"
    torch.save({"a": BASE}, path)
    data = path.read_bytes()
    sources = [path, f"file://{path}", data, bytearray(data), io.BytesIO(data), dataio.reader(str(path))]
    assert all(dataio.read_pt(source)["a"].tolist() == BASE.tolist() for source in sources)


# ----------------------------------------------------------------- bad input


class Evil:
    def __reduce__(self):
        return os.mkdir, ("evil",)


@FORMATS
def test_nothing_is_executed(tmp_path, monkeypatch, zipped):
    monkeypatch.chdir(tmp_path)
    data = saved({"evil": Evil(), "a": BASE}, zipped)
    assert list(dataio.read_pt(data)) == ["a"]
    assert not (tmp_path / "evil").exists()


@FORMATS
def test_a_tensor_without_array_form_is_not_passed_over(zipped):
    with pytest.raises(ValueError, match="tensor 'sparse' has no array form"):
        dataio.read_pt(saved({"a": BASE, "sparse": torch.eye(3).to_sparse()}, zipped))


@FORMATS
@pytest.mark.parametrize("root", [BASE, [BASE], 3], ids=["tensor", "list", "int"])
def test_the_root_must_be_a_dict(zipped, root):
    with pytest.raises(ValueError, match="a checkpoint that is a dict"):
        dataio.read_pt(saved(root, zipped))


@FORMATS
def test_files_cut_anywhere_are_errors(tmp_path, zipped):
    data = saved({"a": BASE, "b": torch.ones(3)}, zipped)
    for length in range(0, len(data) - 1, 7):
        path = tmp_path / f"{length}.pt"
        path.write_bytes(data[:length])
        with pytest.raises((OpError, OSError), match=path.name):
            dataio.read_pt(path)


def test_a_missing_file_is_not_found(tmp_path):
    with pytest.raises(FileNotFoundError):
        dataio.read_pt(tmp_path / "missing.pt")


def test_another_framework_is_refused():
    with pytest.raises(ValueError, match="framework must be one of"):
        dataio.read_pt(saved({}), framework="jax")


def test_repeated_elements_are_limited_over_all_tensors():
    one = torch.ones(1)
    data = saved({f"t{i}": one.expand(1 << 26) for i in range(5)})
    with pytest.raises(LimitError, match=r"repeat elements to 1342177280 bytes; 1073741824"):
        dataio.read_pt(data)


def test_members_that_lie_on_each_other_take_no_memory():
    """A zip directory whose entries all point to one member."""
    whole = zipfile.ZipFile(io.BytesIO(saved({f"t{i}": torch.zeros(25_000) + i for i in range(50)})))
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name in whole.namelist():
            if "/data/" not in name:
                archive.writestr(name, whole.read(name))
        archive.writestr("archive/data/0", whole.read("archive/data/0"))
    data = out.getvalue()
    count, size, offset = struct.unpack("<HII", data[-12:-2])
    directory = data[offset : offset + size]
    entry = directory[directory.rindex(b"PK\x01\x02") :]
    for i in range(1, 50):
        name = f"archive/data/{i}".encode()
        directory += entry[:28] + struct.pack("<H", len(name)) + entry[30:46] + name
    data = data[:offset] + directory + b"PK\x05\x06\0\0\0\0" + struct.pack("<HHIIH", count + 49, count + 49, len(directory), offset, 0)
    with pytest.raises(OpError, match="its storages overlap"):
        dataio.read_pt(data)


def legacy_with(numel, keys=("0",)):
    """A legacy file that claims a storage of `numel` elements."""

    class Pickler(pickle._Pickler):
        def persistent_id(self, value):
            return value[1] if isinstance(value, tuple) and value and value[0] == "id" else None

    out = io.BytesIO()
    for value in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}):
        pickle.dump(value, out, 2)

    class Tensor:
        def __reduce__(self):
            storage = ("id", ("storage", torch.FloatStorage, "0", "cpu", numel, None))
            return torch._utils._rebuild_tensor_v2, (storage, 0, (numel,), (1,), False, OrderedDict())

    Pickler(out, 2).dump({"t": Tensor()})
    pickle.dump(list(keys), out, 2)
    return out.getvalue()


def test_a_legacy_storage_must_be_where_it_is_said_to_be():
    whole = legacy_with(3) + (3).to_bytes(8, "little") + np.arange(3, dtype="<f4").tobytes()
    assert dataio.read_pt(whole)["t"].tolist() == [0, 1, 2]
    for damaged in [
        legacy_with(3) + (4).to_bytes(8, "little") + bytes(12),  # another number of elements
        legacy_with(3) + (3).to_bytes(8, "little") + bytes(11),  # cut off
        legacy_with(1 << 50) + (1 << 50).to_bytes(8, "little"),
        legacy_with(-3) + bytes(20),
        legacy_with(3, keys=["1"]) + bytes(20),
    ]:
        with pytest.raises(OpError):
            dataio.read_pt(damaged)


def test_pickles_of_the_legacy_format_are_limited(monkeypatch):
    monkeypatch.setattr("dataio.formats.weights.torch_zip.MAX_PICKLE", 200)
    with pytest.raises(LimitError, match="more than the 200 bytes"):
        dataio.read_pt(saved({"a": BASE}, zipped=False) + bytes(300))


@given(st.binary(max_size=300), st.lists(st.one_of(st.integers(0, 400), st.just("line"))), st.integers(0, 400))
def test_a_stream_of_ranges_reads_as_a_file_does(data, reads, limit):
    stream, file = RangeStream(MemoryRanges(data), limit), io.BytesIO(data[:limit])
    for size in reads:
        if size == "line":
            assert stream.readline() == file.readline()
        else:
            assert stream.read(size) == file.read(size)
        assert stream.position == file.tell()


# --------------------------------------------------------------------- zipnn

WHEEL = {  # made by dataio-rs 0.4.7
    "raw": ("00020700000000000000" + b"abcdefg".hex(), b"abcdefg"),
    "bf16": ("0102900100000000000028b52ffd6090009500004061636567626466680200414091e0942302", b"abcdefgh" * 50),
    "fp32, 3 bytes over": (
        "0104930100000000000028b52ffd609300ad0000586165626663676468616263044402290f1e3cf8",
        None,  # cut off
    ),
    "fp32": ("0104900100000000000028b52ffd609000950000406165626663676468044402290f1e3cf85c", b"abcdefgh" * 50),
}


@pytest.mark.parametrize("name", ["raw", "bf16", "fp32"])
def test_zipnn_of_the_reference_is_read(name):
    encoded, data = WHEEL[name]
    assert dataio.zipnn_decompress(bytes.fromhex(encoded)) == data


@given(st.binary(max_size=5000), st.sampled_from(["bf16", "fp32", "int8", "anything"]), st.integers(-5, 30))
def test_zipnn_gives_back_what_it_got(data, dtype, level):
    packed = dataio.zipnn_compress(data, dtype=dtype, level=level)
    assert len(packed) <= len(data) + 10
    assert dataio.zipnn_decompress(packed) == data


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_zipnn_of_more_than_a_piece(dtype):
    data = (bytes(range(256)) * (1 << 15))[: (8 << 20) - 5] + random.Random(0).randbytes(1000)
    packed = dataio.zipnn_compress(memoryview(data), dtype=dtype)
    assert packed[0] == 2
    assert dataio.zipnn_decompress(packed) == data
    for damaged in [packed[:-1], packed + b"x", packed[:100], packed[:10], packed[:12]]:
        with pytest.raises(OpError):
            dataio.zipnn_decompress(damaged)


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"\x01\x02",
        bytes.fromhex(WHEEL["fp32, 3 bytes over"][0]),
        bytes.fromhex(WHEEL["bf16"][0])[:-1],
        bytes.fromhex(WHEEL["bf16"][0]) + b"x",
        b"\x03" + bytes.fromhex(WHEEL["bf16"][0])[1:],
        b"\x01\x00" + bytes.fromhex(WHEEL["bf16"][0])[2:],
        b"\x01\x02" + (399).to_bytes(8, "little") + bytes.fromhex(WHEEL["bf16"][0])[10:],
        b"\x01\x02" + (401).to_bytes(8, "little") + bytes.fromhex(WHEEL["bf16"][0])[10:],
        b"\x01\x02" + (1 << 60).to_bytes(8, "little") + bytes(50),
        b"\x00\x02" + (3).to_bytes(8, "little") + b"abcd",
        b"\x02\x02" + (1 << 20).to_bytes(8, "little") + (1).to_bytes(4, "little") + bytes(40),
    ],
)
def test_damaged_zipnn_is_refused(damaged):
    with pytest.raises(ValueError, match="zipnn"):
        dataio.zipnn_decompress(damaged)


def test_zipnn_is_limited():
    with pytest.raises(LimitError, match="400 bytes; 399 are allowed"):
        dataio.zipnn_decompress(bytes.fromhex(WHEEL["bf16"][0]), max_output_bytes=399)


def test_zipnn_takes_bytes():
    for call in (dataio.zipnn_compress, dataio.zipnn_decompress):
        with pytest.raises(TypeError, match="bytes-like"):
            call("text")
