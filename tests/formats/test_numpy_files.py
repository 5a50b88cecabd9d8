"""`read_numpy`, `write_numpy`, `write_npz`: NumPy's files, there and back, and files that lie."""

from __future__ import annotations

import io
import os
import struct
import zipfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import dataio
from dataio.engine.errors import LimitError

from ..conftest import npy

DTYPES = st.one_of(
    hnp.scalar_dtypes().filter(lambda dtype: dtype.itemsize > 0),
    st.sampled_from([np.dtype("S3"), np.dtype("U2"), np.dtype([("a", ">i4"), ("ü", "f8", (2,))])]),
)
ARRAYS = hnp.arrays(DTYPES, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
RAW = np.arange(24, dtype="i4")
ORDERS = [
    pytest.param(RAW.reshape(4, 6), id="c"),
    pytest.param(np.asfortranarray(RAW.reshape(4, 6)), id="fortran"),
    pytest.param(RAW[::-2], id="strided"),
    pytest.param(np.broadcast_to(RAW, (3, 24)), id="broadcast"),
    pytest.param(RAW.astype(">i4").reshape(2, 3, 4), id="big-endian"),
    pytest.param(np.float32(2.5), id="0-d"),
    pytest.param([[1, 2], [3, 4]], id="list"),
    pytest.param(torch.arange(6.0, requires_grad=True).reshape(2, 3), id="torch"),
]


def same(found: np.ndarray, array: np.ndarray) -> None:
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    assert found.tobytes() == array.tobytes()


def header(text: str, version: int = 1) -> bytes:
    size = struct.pack("<H" if version == 1 else "<I", len(text))
    return b"\x93NUMPY" + bytes((version, 0)) + size + text.encode()


@settings(deadline=None, max_examples=60)
@given(array=ARRAYS)
def test_arrays_come_back_as_they_were_written(array, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "round.npy"
    dataio.write_numpy(path, array)
    same(dataio.read_numpy(path), array)
    same(np.load(path), array)


@settings(deadline=None, max_examples=30)
@given(arrays=st.dictionaries(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5), ARRAYS, min_size=1, max_size=3))
@pytest.mark.parametrize("compressed", [False, True])
def test_named_arrays_come_back_as_they_were_written(arrays, compressed, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "round.npz"
    dataio.write_npz(path, arrays, compressed=compressed)
    with dataio.read_numpy(path) as found:
        assert list(found) == list(arrays)
        for name, array in arrays.items():
            same(found[name], array)


@pytest.mark.parametrize("array", ORDERS)
def test_any_order_is_written_in_c_order(array, tmp_path):
    path = str(tmp_path / "x.npy")
    dataio.write_numpy(path, array)
    expected = array.detach().numpy() if hasattr(array, "detach") else np.asarray(array)
    found = dataio.read_numpy(path)
    same(found, expected)
    assert found.flags.c_contiguous
    assert found.flags.writeable


def test_numpy_reads_the_npz(tmp_path):
    dataio.write_npz(tmp_path / "x.npz", {"a/b": RAW, "..": RAW[:2], "c": RAW[:3]}, c=RAW[:4])
    with np.load(tmp_path / "x.npz") as found:
        assert {name: len(found[name]) for name in found} == {"a/b": 24, "..": 2, "c": 4}
    assert zipfile.ZipFile(tmp_path / "x.npz").testzip() is None


def test_equal_arrays_give_equal_bytes(tmp_path):
    for name in "ab":
        dataio.write_npz(tmp_path / name, x=RAW, compressed=True)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_an_npz_is_numpys_class(tmp_path):
    dataio.write_npz(tmp_path / "x.npz", x=RAW)
    found = dataio.read_numpy(tmp_path / "x.npz")
    assert isinstance(found, np.lib.npyio.NpzFile)
    found.close()
    with pytest.raises(ValueError, match="closed"):
        found["x"]


def test_a_missing_member_is_a_key_error_with_a_suggestion(tmp_path):
    dataio.write_npz(tmp_path / "x.npz", weights=RAW)
    with dataio.read_numpy(tmp_path / "x.npz") as found, pytest.raises(KeyError, match="did you mean 'weights'"):
        found["weight"]


@pytest.mark.parametrize("source", ["path", "uri", "bytes", "memoryview", "reader", "file"])
def test_sources(source, tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, RAW)
    data = path.read_bytes()
    given = {
        "path": path,
        "uri": f"file://{path}",
        "bytes": data,
        "memoryview": memoryview(data),
        "reader": dataio.reader(str(path)),
        "file": io.BytesIO(data),
    }[source]
    found = dataio.read_numpy(given)
    same(found, RAW)
    found[0] = 7  # memory of its own
    assert data == path.read_bytes()


def test_a_list_gives_a_list_in_order(tmp_path):
    for i in range(3):
        np.save(tmp_path / f"{i}.npy", np.full(2, i))
    found = dataio.read_numpy([tmp_path / f"{i}.npy" for i in (2, 0, 1)])
    assert [array.tolist() for array in found] == [[2, 2], [0, 0], [1, 1]]


def test_objects_of_a_store(s3_bucket):
    dataio.write_numpy(f"{s3_bucket}/x.npy", RAW.reshape(4, 6).T)
    same(dataio.read_numpy(f"{s3_bucket}/x.npy"), np.ascontiguousarray(RAW.reshape(4, 6).T))
    dataio.write_npz(f"{s3_bucket}/x.npz", {"a": RAW, "b": RAW > 3}, compressed=True)
    with dataio.read_numpy(f"{s3_bucket}/x.npz") as found:
        same(found["b"], RAW > 3)
    first, second = dataio.read_numpy([f"{s3_bucket}/x.npy", f"{s3_bucket}/x.npy"])
    same(first, second)


def test_torch_tensors(tmp_path):
    np.save(tmp_path / "x.npy", np.asfortranarray(RAW.reshape(4, 6)))
    found = dataio.read_numpy(tmp_path / "x.npy", framework="torch")
    assert found.dtype == torch.int32
    assert torch.equal(found, torch.arange(24, dtype=torch.int32).reshape(4, 6))
    dataio.write_npz(tmp_path / "x.npz", x=RAW)
    with dataio.read_numpy(tmp_path / "x.npz", framework="torch") as arrays:
        assert torch.is_tensor(arrays["x"])


@pytest.mark.parametrize("dtype", [">f4", "U3", "M8[s]", "longdouble", [("a", "f4")]])
def test_torch_lacks_the_dtype(dtype):
    with pytest.raises(ValueError, match="torch has no dtype"):
        dataio.read_numpy(npy(np.zeros(2, dtype)), framework="torch")


@pytest.mark.parametrize(
    "array",
    [
        torch.zeros(2, dtype=torch.bfloat16),
        torch.zeros(2, dtype=torch.float8_e5m2),
        np.zeros(2, ml_dtypes.bfloat16),
        np.zeros(2, ml_dtypes.float8_e4m3fn),
        np.zeros(2, [("bfloat16", "<u2")]),
    ],
    ids=["torch-bfloat16", "torch-float8", "bfloat16", "float8", "bits"],
)
def test_types_without_a_name_in_the_format_are_refused(array, tmp_path):
    with pytest.raises(TypeError, match="write_safetensors"):
        dataio.write_numpy(tmp_path / "x.npy", array)
    assert os.listdir(tmp_path) == []


BAD_WRITES = [
    pytest.param(lambda path: dataio.write_numpy(path, np.array([{}])), ValueError, "objects", id="objects"),
    pytest.param(lambda path: dataio.write_npz(path), ValueError, "no arrays", id="none"),
    pytest.param(lambda path: dataio.write_npz(path, {"a\0b": RAW}), ValueError, "NUL", id="nul"),
    pytest.param(lambda path: dataio.write_npz(path, {1: RAW}), TypeError, "is a str", id="name"),
    pytest.param(lambda path: dataio.write_npz(path, [RAW]), TypeError, "mapping", id="list"),
    pytest.param(lambda path: dataio.write_npz(path, a=RAW, b=np.array([{}])), ValueError, "'b'", id="second-member"),
    pytest.param(lambda path: dataio.write_npz(path, {"a": RAW, "\ud800": RAW}), ValueError, "surrogate", id="surrogate"),
]


@pytest.mark.parametrize(("write", "error", "text"), BAD_WRITES)
def test_what_cannot_be_written_leaves_the_old_file(write, error, text, tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"old")
    with pytest.raises(error, match=text):
        write(path)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["x"]


BAD_FILES = [
    pytest.param(b"", "no data", id="empty"),
    pytest.param(b"\x89PNG\r\n\x1a\n", "not an .npy file", id="other"),
    pytest.param(npy(RAW)[:60], "truncated inside its header", id="in-the-header"),
    pytest.param(npy(RAW)[:-1], "truncated", id="in-the-data"),
    pytest.param(header("{'descr': '<f8', 'fortran_order': False, 'shape': (1099511627776,), }\n"), "truncated", id="claims-8-TiB"),
    pytest.param(header("{'descr': '<f8', 'fortran_order': False, 'shape': (9223372036854775807, 4), }\n"), "shape", id="overflow"),
    pytest.param(header("{'descr': '|S0', 'fortran_order': False, 'shape': (1099511627776,), }\n"), "dtype", id="no-bytes-each"),
    pytest.param(header("{'descr': '<f8', 'fortran_order': False, 'shape': (-1,), }\n"), "shape", id="negative"),
    pytest.param(header("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }\n") + b"cos\nsystem\n", "objects", id="pickle"),
    pytest.param(header("__import__('os').system('x')\n"), "not a valid", id="code"),
    pytest.param(header("(" * 5000), "not a valid", id="nested"),
    pytest.param(b"PK\x03\x04" + bytes(100), "no zip", id="npz"),
]


@pytest.mark.parametrize(("data", "text"), BAD_FILES)
@pytest.mark.parametrize("place", ["file", "memory"])
def test_bad_files_are_refused_and_named(data, text, place, tmp_path):
    path = tmp_path / "bad.npy"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=text) as caught:
        dataio.read_numpy(path if place == "file" else data)
    assert ("bad.npy" if place == "file" else "<bytes>") in str(caught.value)


def test_a_member_that_is_damaged_spoils_no_other(tmp_path):
    path = tmp_path / "x.npz"
    dataio.write_npz(path, a=RAW, b=RAW)
    data = bytearray(path.read_bytes())
    data[data.index(RAW.tobytes())] ^= 1
    path.write_bytes(data)
    with dataio.read_numpy(path) as found:
        same(found["b"], RAW)
        with pytest.raises(ValueError, match=r"x\.npz.*a\.npy.*checksum"):
            found["a"]


def test_a_member_that_claims_too_much_allocates_nothing(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", header("{'descr': '<f8', 'fortran_order': False, 'shape': (1099511627776,), }\n"))
        archive.writestr("o.npy", npy(np.zeros(1))[:10])
    with dataio.read_numpy(tmp_path / "x.npz") as found:
        for name in found:
            with pytest.raises(ValueError, match="truncated"):
                found[name]


def test_max_bytes_holds_for_files_and_for_members_that_unpack(tmp_path):
    dataio.write_numpy(tmp_path / "x.npy", np.zeros(1000))
    dataio.write_npz(tmp_path / "x.npz", x=np.zeros(100_000), compressed=True)
    assert dataio.read_numpy(tmp_path / "x.npy", max_bytes=8000).shape == (1000,)
    with pytest.raises(LimitError, match=r"x\.npy.*8,000 bytes, max_bytes is 7,999"):
        dataio.read_numpy(tmp_path / "x.npy", max_bytes=7999)
    with dataio.read_numpy(tmp_path / "x.npz", max_bytes=1000) as found, pytest.raises(LimitError, match="max_bytes"):
        found["x"]


def test_a_missing_file_and_other_arguments(tmp_path):
    with pytest.raises(FileNotFoundError):
        dataio.read_numpy(tmp_path / "no.npy")
    with pytest.raises(ValueError, match="framework"):
        dataio.read_numpy(npy(RAW), framework="jax")
    with pytest.raises(TypeError):
        dataio.read_numpy(5)


def test_bools_are_0_or_1(tmp_path: Path):
    data = bytearray(npy(np.array([False, True])))
    data[-1] = 2
    assert dataio.read_numpy(bytes(data)).view(np.uint8).tolist() == [0, 1]
