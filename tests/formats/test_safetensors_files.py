"""`read_safetensors`, `open_safetensors`, `write_safetensors`: against the safetensors library, on disk and in a bucket."""

from __future__ import annotations

import gc
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import numpy as in_numpy
from safetensors import torch as in_torch

import dataio
from dataio.formats.weights import safetensors_memory, safetensors_shards, safetensors_write
from dataio.io.errors import ReadError

TORCH_TYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8,
    torch.uint16, torch.uint32, torch.uint64, torch.bool, torch.complex64, torch.float8_e4m3fn, torch.float8_e5m2,
    torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu,
]  # fmt: skip
SHAPES = [(), (0,), (5,), (2, 3), (3, 0, 2), (2, 1, 4)]


def tensor_of(dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    count = int(np.prod(shape))
    width = torch.empty((), dtype=dtype).element_size()
    raw = torch.arange(count * width, dtype=torch.uint8) % (2 if dtype == torch.bool else 100)
    return raw.view(dtype).reshape(shape)


def equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Bit for bit."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return not a.numel() or torch.equal(*(x.contiguous().reshape(-1).view(torch.uint8) for x in (a, b)))


def all_equal(found: dict[str, Any], expected: dict[str, Any]) -> bool:
    return list(found) == list(expected) and all(equal(found[k], expected[k]) for k in expected)


def every_type() -> dict[str, torch.Tensor]:
    return {f"{dtype}{shape}": tensor_of(dtype, shape) for dtype in TORCH_TYPES for shape in SHAPES}


MODEL = {"embed": torch.randn(16, 8), "norm": torch.ones(8, dtype=torch.bfloat16), "head": torch.randn(8, 4), "step": torch.tensor(7)}


@pytest.fixture(params=["local", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path) if request.param == "local" else str(request.getfixturevalue("s3_bucket"))


# ---------------------------------------------------------------- there and back


def test_every_type_and_shape_is_read_as_the_library_wrote_it(tmp_path: Path) -> None:
    tensors = every_type()
    in_torch.save_file(tensors, tmp_path / "x.safetensors")
    found = dataio.read_safetensors(tmp_path / "x.safetensors", framework="torch")
    assert found.keys() == tensors.keys()
    assert all(equal(found[name], tensors[name]) for name in tensors)


def test_every_type_and_shape_is_written_as_the_library_reads_it(tmp_path: Path) -> None:
    tensors = every_type()
    assert dataio.write_safetensors(tmp_path / "new" / "x.safetensors", tensors, metadata={"step": 3}) is None
    found = in_torch.load_file(tmp_path / "new" / "x.safetensors")
    assert all(equal(found[name], tensors[name]) for name in tensors)
    with dataio.open_safetensors(tmp_path / "new" / "x.safetensors") as session:
        assert session.keys() == list(tensors)
        assert session.metadata == {"step": "3"}


@pytest.mark.parametrize("dtype", TORCH_TYPES, ids=str)
def test_numpy_has_the_types_that_it_lacks_from_ml_dtypes(tmp_path: Path, dtype: torch.dtype) -> None:
    in_torch.save_file({"x": tensor_of(dtype, (2, 3))}, tmp_path / "x.safetensors")
    found = dataio.read_safetensors(tmp_path / "x.safetensors")["x"]
    name = str(dtype).removeprefix("torch.")
    assert found.dtype == np.dtype(getattr(ml_dtypes, name, None) or name)
    dataio.write_safetensors(tmp_path / "y.safetensors", {"x": found})
    assert equal(in_torch.load_file(tmp_path / "y.safetensors")["x"], tensor_of(dtype, (2, 3)))


arrays = st.builds(
    lambda shape, dtype, turn: (np.arange(int(np.prod(shape))) % 2).astype(dtype).reshape(shape).transpose(turn(len(shape))),
    st.lists(st.integers(0, 4), max_size=4).map(tuple),
    st.sampled_from(["f8", ">f4", "f2", "i8", ">i2", "u1", "?", "c8"]),
    st.sampled_from([lambda n: None, lambda n: tuple(range(n))]),
)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.text(min_size=1, max_size=8).filter(lambda s: s != "__metadata__" and s.isprintable()), arrays, min_size=1, max_size=5), st.integers(1, 200))
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, tensors: dict[str, np.ndarray], limit: int) -> None:
    folder = tmp_path_factory.mktemp("round")
    dataio.write_safetensors(folder / "one.safetensors", tensors)
    dataio.write_safetensors(folder / "many", tensors, max_shard_size=limit)
    single = dataio.read_safetensors(folder / "one.safetensors")
    sharded = dataio.read_safetensors(folder / "many")
    library = in_numpy.load_file(folder / "one.safetensors")
    assert list(single) == list(tensors)
    assert sharded.keys() == tensors.keys() == library.keys()
    for name, array in tensors.items():
        for found in (single[name], sharded[name], library[name]):
            assert found.dtype == array.dtype.newbyteorder("<")
            assert np.array_equal(found, array)
            assert found.shape == array.shape


def test_any_place(place: str) -> None:
    dataio.write_safetensors(f"{place}/x.safetensors", MODEL)
    assert all_equal(dataio.read_safetensors(f"{place}/x.safetensors", framework="torch"), MODEL)
    assert equal(dataio.read_safetensors(f"{place}/x.safetensors", key="head", framework="torch"), MODEL["head"])
    with dataio.open_safetensors(f"{place}/x.safetensors") as session:
        assert session.read_slice("embed", 2, 5, framework="torch").equal(MODEL["embed"][2:5])
        assert all_equal(session.read_batch(["step", "embed"]), {k: MODEL[k] for k in ("step", "embed")})


def test_a_checkpoint_in_any_place(place: str) -> None:
    index = dataio.write_safetensors(f"{place}/step/", MODEL, max_shard_size="300 B", metadata={"format": "pt"})
    assert index["metadata"] == {"total_size": 664, "format": "pt"}
    assert index["weight_map"]["head"] == "model-00002-of-00002.safetensors"
    assert json.loads(dataio.read(f"{place}/step/model.safetensors.index.json")) == index
    found = dataio.read_safetensors(f"{place}/step/", framework="torch")
    assert all_equal(found, MODEL)
    assert all_equal(dataio.read_safetensors(f"{place}/step/", keys=["step"], framework="torch"), {"step": MODEL["step"]})


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview, dataio.reader], ids=["bytes", "bytearray", "memoryview", "reader"])
def test_sources_that_are_no_paths(tmp_path: Path, wrap: Callable[[Any], Any]) -> None:
    in_torch.save_file(MODEL, tmp_path / "x.safetensors")
    source = str(tmp_path / "x.safetensors") if wrap is dataio.reader else (tmp_path / "x.safetensors").read_bytes()
    found = dataio.read_safetensors(wrap(source), framework="torch")
    assert all(equal(found[name], MODEL[name]) for name in MODEL)
    with (tmp_path / "x.safetensors").open("rb") as file:
        assert dataio.read_safetensors(file, key="step") == 7


# ---------------------------------------------------------------- memory


def large(folder: Path) -> Path:
    """A file that is more than a few pages."""
    in_torch.save_file({"a": torch.arange(20_000.0), "b": torch.ones(30_000)}, folder / "large.safetensors")
    return folder / "large.safetensors"


def test_numpy_arrays_are_read_only_views_of_the_file(tmp_path: Path) -> None:
    with dataio.open_safetensors(large(tmp_path)) as session:
        first, again = session.read(key="a"), session.read(key="a")
    assert np.shares_memory(first, again)
    assert not first.flags.writeable
    assert not first.flags.owndata


def test_writing_to_a_torch_tensor_leaves_the_file_alone(tmp_path: Path) -> None:
    path = large(tmp_path)
    before = path.read_bytes()
    found = dataio.read_safetensors(path, framework="torch")
    found["a"].zero_()
    assert path.read_bytes() == before
    assert dataio.read_safetensors(path, key="a")[5] == 5


@pytest.mark.parametrize("mmap", [None, True, False])
def test_mapped_or_read_is_the_same(tmp_path: Path, mmap: bool | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safetensors_memory, "PIECE", 10_000)
    found = dataio.read_safetensors(large(tmp_path), mmap=mmap)
    assert np.array_equal(found["a"], np.arange(20_000.0))
    assert np.array_equal(found["b"], np.ones(30_000))
    assert not found["a"].flags.writeable


def test_files_on_network_file_systems_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = large(tmp_path)
    monkeypatch.setattr(safetensors_memory, "_kind_of", lambda device: "nfs4")
    with dataio.open_safetensors(path) as session:
        assert not np.shares_memory(session.read(key="a"), session.read(key="a"))


def test_this_folder_is_on_no_network(tmp_path: Path) -> None:
    assert safetensors_memory._kind_of(os.stat(tmp_path).st_dev) != "" or not Path("/proc/self/mountinfo").exists()


def test_headers_that_misalign_the_data(tmp_path: Path) -> None:
    content = b"".join((b'{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}', np.float32([1, 2]).tobytes()))
    data = (len(content) - 8).to_bytes(8, "little") + content
    (tmp_path / "x.safetensors").write_bytes(data)
    for source in (data, tmp_path / "x.safetensors"):
        found = dataio.read_safetensors(source)["x"]
        assert found.flags.aligned
        assert found.tolist() == [1, 2]


def test_bytes_that_are_no_bools(tmp_path: Path) -> None:
    in_torch.save_file({"x": torch.tensor([True, False])}, tmp_path / "x.safetensors")
    data = bytearray((tmp_path / "x.safetensors").read_bytes())
    data[-1] = 7
    assert dataio.read_safetensors(data)["x"].view(np.uint8).tolist() == [1, 1]


def test_views_outlive_the_session(tmp_path: Path) -> None:
    session = dataio.open_safetensors(large(tmp_path))
    found = session.read(key="a")
    session.close()
    session.close()
    gc.collect()
    assert found[19_999] == 19_999
    assert session.read(key="b")[0] == 1


def test_read_into(tmp_path: Path) -> None:
    in_torch.save_file(MODEL, tmp_path / "x.safetensors")
    session = dataio.open_safetensors(tmp_path / "x.safetensors")
    for name in MODEL:
        out = torch.zeros_like(MODEL[name])
        session.read_into(name, out)
        assert equal(out, MODEL[name])
    array = np.zeros((8, 4), np.float32)
    session.read_into("head", array)
    assert np.array_equal(array, MODEL["head"].numpy())
    brain = np.zeros(8, ml_dtypes.bfloat16)
    session.read_into("norm", brain)
    assert brain.tolist() == [1] * 8
    for wrong in (np.zeros((4, 8), np.float32), np.zeros((8, 4)), np.zeros((4, 8), np.float32).T, torch.zeros(8, 4).half()):
        with pytest.raises(ValueError, match=r"head|writable"):
            session.read_into("head", wrong)
    with pytest.raises(TypeError):
        session.read_into("head", [0])


# ---------------------------------------------------------------- questions that have no answer


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"key": "heat"}, KeyError, "did you mean 'head'"),
        ({"keys": ["head", "tail"]}, KeyError, "no tensor 'tail'"),
        ({"keys": "head"}, TypeError, "several names"),
        ({"keys": [1]}, TypeError, "names of tensors"),
        ({"key": "head", "keys": ["head"]}, ValueError, "not both"),
        ({"framework": "jax"}, ValueError, "framework"),
        ({"device": "cuda:0"}, ValueError, "framework='torch'"),
        ({"device": "toaster", "framework": "torch"}, ValueError, "toaster"),
    ],
)
def test_wrong_arguments(tmp_path: Path, options: dict[str, Any], error: type[Exception], message: str) -> None:
    in_torch.save_file(MODEL, tmp_path / "x.safetensors")
    with pytest.raises(error, match=message):
        dataio.read_safetensors(tmp_path / "x.safetensors", **options)


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without CUDA")
def test_a_gpu_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    in_torch.save_file(MODEL, tmp_path / "x.safetensors")
    with pytest.raises(RuntimeError, match="cuda"):
        dataio.read_safetensors(tmp_path / "x.safetensors", framework="torch", device="cuda:0")


@pytest.mark.parametrize(("start", "end"), [(-1, 2), (3, 2), (0, 17), (17, 17)])
def test_rows_that_are_not_there(tmp_path: Path, start: int, end: int) -> None:
    in_torch.save_file(MODEL, tmp_path / "x.safetensors")
    session = dataio.open_safetensors(tmp_path / "x.safetensors")
    with pytest.raises(ValueError, match="not in the 16"):
        session.read_slice("embed", start, end)
    with pytest.raises(ValueError, match="scalar"):
        session.read_slice("step", 0, 1)
    assert session.read_slice("embed", 16, 16).shape == (0, 8)


def lying(header: str, payload: int = 8) -> bytes:
    text = header.encode()
    return len(text).to_bytes(8, "little") + text + bytes(payload)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"short",
        (1 << 62).to_bytes(8, "little") + b"{}",
        lying("[]"),
        lying("{"),
        lying('{"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}}'),
        lying('{"a":{"dtype":"U8","shape":[6],"data_offsets":[0,6]},"b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}}'),
        lying('{"a":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}}'),
        lying('{"a":{"dtype":"U8","shape":[9],"data_offsets":[0,9]}}'),
        lying('{"a":{"dtype":"U8","shape":[7],"data_offsets":[0,8]}}'),
        lying('{"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}}', 9),
        lying('{"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,8]}}'),
    ],
)
def test_lying_headers_are_refused(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "bad.safetensors").write_bytes(data)
    with pytest.raises(ValueError, match=r"bad\.safetensors: "):
        dataio.read_safetensors(tmp_path / "bad.safetensors")


def test_a_missing_file(place: str) -> None:
    with pytest.raises(FileNotFoundError):
        dataio.read_safetensors(f"{place}/no.safetensors")
    with pytest.raises(FileNotFoundError):
        dataio.read_safetensors(f"{place}/no/")


@pytest.mark.parametrize("tensors", [{}, {"__metadata__": np.ones(1)}, {"x": np.ones(1, object)}, {"x": np.ones(1, "c16")}, {"x": torch.ones(1, 1).to_sparse()}, {"\udcff": np.ones(1)}])
def test_what_the_format_cannot_hold(tmp_path: Path, tensors: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"tensor|UTF-8"):
        dataio.write_safetensors(tmp_path / "x.safetensors", tensors)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("tensors", [[np.ones(1)], {"x": [1]}, {1: np.ones(1)}, {"x": None}])
def test_what_is_no_tensor(tmp_path: Path, tensors: Any) -> None:
    with pytest.raises(TypeError):
        dataio.write_safetensors(tmp_path / "x.safetensors", tensors)


# ---------------------------------------------------------------- files that change


def test_a_file_that_is_cut_short_after_it_was_opened(tmp_path: Path) -> None:
    session = dataio.open_safetensors(large(tmp_path))
    os.truncate(tmp_path / "large.safetensors", 5_000)
    with pytest.raises(ReadError, match=r"written to|cut short"):
        session.read(key="b", framework="torch")


def test_a_file_that_is_cut_short_after_it_was_mapped(tmp_path: Path) -> None:
    session = dataio.open_safetensors(large(tmp_path))
    session.read(key="a")
    os.truncate(tmp_path / "large.safetensors", 5_000)
    with pytest.raises(ReadError, match=r"written to|cut short"):
        session.read(key="b")


def test_a_file_that_is_written_to_while_it_is_open(tmp_path: Path) -> None:
    session = dataio.open_safetensors(large(tmp_path))
    session.read(key="a")
    with (tmp_path / "large.safetensors").open("r+b") as file:
        file.seek(-4, os.SEEK_END)
        file.write(b"????")
    with pytest.raises(ReadError, match="written to"):
        session.read(key="b")


def test_a_file_that_is_replaced_lives_on_for_who_has_it_open(tmp_path: Path) -> None:
    path = large(tmp_path)
    session = dataio.open_safetensors(path)
    dataio.write_safetensors(path, {"a": np.zeros(20_000)})
    assert session.read(key="a")[5] == 5
    assert dataio.read_safetensors(path, key="a")[5] == 0


# ---------------------------------------------------------------- processes


def test_a_session_pickles_by_its_source(tmp_path: Path) -> None:
    session = pickle.loads(pickle.dumps(dataio.open_safetensors(large(tmp_path))))
    assert session.read(key="a")[7] == 7


def test_a_session_serves_a_forked_process(tmp_path: Path) -> None:
    session = dataio.open_safetensors(large(tmp_path))
    session.read(key="a")
    if (child := os.fork()) == 0:
        os._exit(0 if session.read(key="b")[0] == 1 and session.read(key="a")[9] == 9 else 1)
    assert os.waitpid(child, 0)[1] == 0


# ---------------------------------------------------------------- checkpoints


def test_shards_are_filled_in_order(tmp_path: Path) -> None:
    tensors = {name: np.zeros(size, np.uint8) for name, size in {"a": 40, "b": 60, "c": 1, "d": 500, "e": 2}.items()}
    index = dataio.write_safetensors(tmp_path, tensors, max_shard_size=100)
    files = [f"model-{i:05d}-of-00004.safetensors" for i in range(1, 5)]
    assert index["weight_map"] == {"a": files[0], "b": files[0], "c": files[1], "d": files[2], "e": files[3]}
    assert sorted(p.name for p in tmp_path.iterdir()) == [*files, "model.safetensors.index.json"]


def test_one_shard_has_the_name_of_a_single_file(tmp_path: Path) -> None:
    index = dataio.write_safetensors(tmp_path, MODEL, max_shard_size="1 GiB")
    assert set(index["weight_map"].values()) == {"model.safetensors"}
    (tmp_path / "model.safetensors.index.json").unlink()
    assert all_equal(dataio.read_safetensors(tmp_path, framework="torch"), MODEL)


@pytest.mark.parametrize("size", [0, -1, "many", "0B", "-3MB", True, 1.5])
def test_sizes_that_are_none(tmp_path: Path, size: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="max_shard_size"):
        dataio.write_safetensors(tmp_path, MODEL, max_shard_size=size)


@pytest.mark.parametrize("pattern", ["same.safetensors", "../{idx}", "{idx}/x", "{name}", "{idx:q}"])
def test_patterns_that_are_none(tmp_path: Path, pattern: str) -> None:
    with pytest.raises(ValueError, match="filename_pattern"):
        dataio.write_safetensors(tmp_path, MODEL, max_shard_size=100, filename_pattern=pattern)
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_replaces_another_and_leaves_nothing_of_it(place: str) -> None:
    second = {name: tensor + 1 for name, tensor in MODEL.items()}
    for tensors, size in ((MODEL, 300), (second, 300), (MODEL, 10_000), (second, 10_000), (MODEL, 100)):
        index = dataio.write_safetensors(f"{place}/c", tensors, max_shard_size=size)
        assert all(equal(t, tensors[n]) for n, t in dataio.read_safetensors(f"{place}/c/", framework="torch").items())
        names = {uri.rpartition("/")[2] for uri in dataio.ls(f"{place}/c/")}
        assert names == {*index["weight_map"].values(), "model.safetensors.index.json"}


def test_other_files_of_the_folder_stay(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model-notes.txt").write_text("mine")
    for _ in range(2):
        dataio.write_safetensors(tmp_path, MODEL, max_shard_size=300)
    assert (tmp_path / "config.json").exists()
    assert (tmp_path / "model-notes.txt").exists()


WRITER = """
import sys, numpy as np, dataio
value = int(sys.argv[2])
tensors = {f"t{i}": np.full(1_000_000, value, np.float32) for i in range(12)}
print("ready", flush=True)
while True:
    dataio.write_safetensors(sys.argv[1], tensors, max_shard_size="4MB")
    value += 1
    tensors = {name: array + 1 for name, array in tensors.items()}
"""


@pytest.mark.slow
def test_a_killed_writer_leaves_one_whole_checkpoint(tmp_path: Path) -> None:
    dataio.write_safetensors(tmp_path / "c", {f"t{i}": np.zeros(1_000_000, np.float32) for i in range(12)}, max_shard_size="4MB")
    for attempt in range(4):
        command = [sys.executable, "-c", WRITER, str(tmp_path / "c"), str(100 * attempt + 1)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            time.sleep(0.03 + 0.06 * attempt)
            writer.send_signal(signal.SIGKILL)
        found = dataio.read_safetensors(tmp_path / "c")
        assert len({float(array[0]) for array in found.values()}) == 1
        assert all(bool((array == array[0]).all()) for array in found.values())
        assert len(found) == 12
    index = dataio.write_safetensors(tmp_path / "c", {"x": np.ones(3)}, max_shard_size="4MB")
    left = {p.name for p in (tmp_path / "c").iterdir() if ".tmp." not in p.name}  # those are swept when they are a minute old
    assert left == {*index["weight_map"].values(), "model.safetensors.index.json"}


def test_a_writer_killed_before_it_tidied_leaves_nothing_to_the_next(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first save's names have no suffix and stand in no index then."""

    def killed(*_: object) -> None:
        raise SystemExit

    dataio.write_safetensors(f"{place}/c", MODEL, max_shard_size=300)
    with monkeypatch.context() as patched:
        patched.setattr(safetensors_write, "_remove", killed)
        with pytest.raises(SystemExit):
            dataio.write_safetensors(f"{place}/c", MODEL, max_shard_size=300)
    assert set(dataio.read_safetensors(f"{place}/c/")) == set(MODEL)
    index = dataio.write_safetensors(f"{place}/c", MODEL, max_shard_size=300)
    assert {uri.rpartition("/")[2] for uri in dataio.ls(f"{place}/c/")} == {*index["weight_map"].values(), "model.safetensors.index.json"}


@pytest.mark.parametrize("sizes", [(300, 300), (300, 100), (10_000, 300), (300, 10_000)])
def test_no_name_stands_for_two_contents(place: str, sizes: tuple[int, int]) -> None:
    """Otherwise a reader of the old index could open a shard of the new checkpoint."""
    old, new = (dataio.write_safetensors(f"{place}/c", MODEL, max_shard_size=size)["weight_map"] for size in sizes)
    assert not set(old.values()) & set(new.values())


@pytest.mark.parametrize("times", [1, 3])
def test_a_checkpoint_that_others_replace_in_place_is_not_mixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """Another library writes shards and index of equal names and content sizes while the first shard was read already."""
    index = dataio.write_safetensors(tmp_path, {"a": np.zeros(8), "b": np.zeros(8)}, max_shard_size=64)["weight_map"]
    open_file, left = safetensors_shards.open_safetensors, [times]

    def open_after_a_save(src: Any, **options: Any) -> Any:
        session = open_file(src, **options)
        if left[0] and str(src).endswith(index["a"]):
            left[0] -= 1
            for name, file in index.items():
                in_numpy.save_file({name: np.full(8, 1.0)}, tmp_path / "new")
                os.replace(tmp_path / "new", tmp_path / file)
            (tmp_path / "new").write_bytes((tmp_path / "model.safetensors.index.json").read_bytes())
            os.replace(tmp_path / "new", tmp_path / "model.safetensors.index.json")
        return session

    monkeypatch.setattr(safetensors_shards, "open_safetensors", open_after_a_save)
    if times == 1:
        assert {float(array[0]) for array in dataio.read_safetensors(tmp_path).values()} == {1.0}
    else:
        with pytest.raises(OSError, match="replaced 3 times"):
            dataio.read_safetensors(tmp_path)


def test_a_lone_file_is_replaced_under_its_name(tmp_path: Path) -> None:
    dataio.write_safetensors(tmp_path / "model.safetensors", MODEL)
    index = dataio.write_safetensors(tmp_path, {"x": np.ones(3)}, max_shard_size=100)
    assert index["weight_map"] == {"x": "model.safetensors"}
    assert list(dataio.read_safetensors(tmp_path)) == ["x"]


def test_a_writer_that_fails_leaves_the_old_checkpoint(tmp_path: Path) -> None:
    dataio.write_safetensors(tmp_path, MODEL, max_shard_size=300)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}

    class Broken(torch.Tensor):
        def detach(self) -> torch.Tensor:
            raise OSError("the GPU fell off")

    with pytest.raises(OSError, match="fell off"):
        dataio.write_safetensors(tmp_path, {**MODEL, "bad": torch.ones(3).as_subclass(Broken)}, max_shard_size=300)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


@pytest.mark.parametrize("file", ["../secret.safetensors", "/etc/passwd", "a/b.safetensors", "", ".."])
def test_an_index_leads_to_no_other_folder(tmp_path: Path, file: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": file}}))
    with pytest.raises(ValueError, match="outside the folder"):
        dataio.read_safetensors(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"weight_map": 3}', '{"weight_map": {"x": 3}}', "[" * 100_000])
def test_damaged_indexes(tmp_path: Path, text: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(ValueError, match=r"index\.json"):
        dataio.read_safetensors(tmp_path)


def test_a_shard_that_is_missing_or_lacks_a_tensor(tmp_path: Path) -> None:
    index = dataio.write_safetensors(tmp_path, MODEL, max_shard_size=300)
    shard = tmp_path / index["weight_map"]["head"]
    in_torch.save_file({"other": torch.ones(1)}, shard)
    with pytest.raises(ValueError, match="lacks the tensor"):
        dataio.read_safetensors(tmp_path)
    shard.unlink()
    with pytest.raises(FileNotFoundError):
        dataio.read_safetensors(tmp_path)
    assert dataio.read_safetensors(tmp_path, keys=["embed"]).keys() == {"embed"}


def test_several_files_are_put_together(tmp_path: Path) -> None:
    in_torch.save_file({"a": torch.ones(2)}, tmp_path / "1.safetensors")
    in_torch.save_file({"b": torch.ones(3)}, tmp_path / "2.safetensors")
    files = [tmp_path / "2.safetensors", tmp_path / "1.safetensors"]
    assert list(dataio.read_safetensors(files)) == ["b", "a"]
    assert list(dataio.read_safetensors(files, keys=["a"])) == ["a"]
    assert dataio.read_safetensors([]) == {}
    with pytest.raises(ValueError, match="both in"):
        dataio.read_safetensors([files[0], files[0]])
    with pytest.raises(ValueError, match="single file"):
        dataio.read_safetensors(files, key="a")
    with pytest.raises(KeyError, match="no tensor 'c'"):
        dataio.read_safetensors(files, keys=["c"])
