"""safetensors and torch checkpoints: parity with their libraries, rows filled in place, damaged and hostile files."""

from __future__ import annotations

import io
import json
import math
import os
import pickle
import zipfile
from collections import OrderedDict

import numpy as np
import pytest
import safetensors
import safetensors.numpy
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dataio.engine.errors import LimitError, OpError
from dataio.engine.expr import Col
from dataio.formats.weights.pickles import PickleReader
from dataio.formats.weights.safetensors import MAX_HEADER, read_header
from dataio.formats.weights.tensors import HeaderCache, bits, element_type, torch_name
from dataio.formats.weights.torch_zip import read_directory
from dataio.io.ranges import MemoryRanges, open_ranges

from .helpers import decoder, ops_registered_by

DTYPES = (
    "bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16", "float32", "float64",
    "complex64", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz",
)  # fmt: skip


def test_ops_of_these_modules():
    assert ops_registered_by("weights.safetensors", "weights.torch_zip") == {"safetensors", "pt"}


def decode(op, source, key):
    return decoder(op, tensor_key=key).spec.function(open_ranges(source), tensor_key=key)


def fill(op, source, out, key):
    return decoder(op, tensor_key=key).spec.kernels["out"](open_ranges(source), out, tensor_key=key)


def sample(dtype, shape=(3, 5), seed=0):
    """Any bits of that dtype, NaN and infinities included."""
    torch_dtype = getattr(torch, dtype)
    size = torch.empty(0, dtype=torch_dtype).element_size() * math.prod(shape)
    raw = torch.from_numpy(np.random.default_rng(seed).integers(0, 2 if dtype == "bool" else 256, size, np.uint8))
    return raw.view(torch_dtype).reshape(shape)


def saved(value, **options):
    out = io.BytesIO()
    torch.save(value, out, **options)
    return out.getvalue()


def written(op, tensors):
    return safetensors.torch.save(tensors) if op == "safetensors" else saved(tensors)


def to_torch(array):
    name = torch_name(array.dtype)
    return torch.from_numpy(array) if name is None else torch.from_numpy(bits(array)).view(getattr(torch, name))


def assert_same_bits(array, tensor):
    found = to_torch(array)
    assert found.dtype == tensor.dtype
    assert found.shape == tensor.shape
    assert array.tobytes() == tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("op", ["safetensors", "pt"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_comes_back_bit_for_bit(op, dtype):
    tensors = {"other": torch.zeros(7), "wanted": sample(dtype), "scalar": sample(dtype, ())}
    data = written(op, tensors)
    reference = safetensors.torch.load(data) if op == "safetensors" else torch.load(io.BytesIO(data), weights_only=True)
    for key in ("wanted", "scalar"):
        assert_same_bits(decode(op, data, key), reference[key])


@pytest.mark.parametrize("op", ["safetensors", "pt"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_fitting_row_is_filled(op, dtype):
    tensor = sample(dtype)
    out = np.zeros((2, 3, 5), element_type(dtype))
    assert fill(op, written(op, {"t": tensor}), out[1, ...], "t") is True
    assert_same_bits(out[1].copy(), tensor)
    assert not out[0].view(np.uint8).any()


@pytest.mark.parametrize("op", ["safetensors", "pt"])
@pytest.mark.parametrize(
    "out", [np.full((5, 3), 7, "f4"), np.full((3, 5), 7, "i4"), np.full(15, 7, "f4")], ids=["shape", "dtype", "rank"]
)
def test_another_row_is_left_alone(op, out):
    assert fill(op, written(op, {"t": torch.zeros(3, 5)}), out, "t") is False
    assert (out == 7).all()


@pytest.mark.parametrize("op", ["safetensors", "pt"])
def test_rows_of_narrow_floats_do_not_pass_for_integers(op):
    out = np.zeros(4, "u2")
    assert fill(op, written(op, {"t": sample("bfloat16", (4,))}), out, "t") is False


@pytest.mark.parametrize("op", ["safetensors", "pt"])
@pytest.mark.parametrize("shape", [(0,), (0, 3), (4, 0, 2), (), (1, 1), (1,) * 20])
def test_unusual_shapes(op, shape):
    assert decode(op, written(op, {"t": torch.zeros(shape)}), "t").shape == shape


@pytest.mark.parametrize("op", ["safetensors", "pt"])
@pytest.mark.parametrize("where", ["bytes", "memory", "file", "window"])
def test_every_kind_of_source(op, where, tmp_path):
    tensor = torch.arange(6.0).reshape(2, 3)
    data = written(op, {"t": tensor})
    path = tmp_path / "weights"
    path.write_bytes(b"before" + data + b"after" if where == "window" else data)
    source = {
        "bytes": data,
        "memory": np.frombuffer(data, np.uint8),
        "file": path,
        "window": {"path": str(path), "offset": 6, "size": len(data)},
    }[where]
    found = decode(op, source, "t")
    np.testing.assert_array_equal(found, tensor.numpy())
    assert found.flags.writeable
    assert found.flags.owndata


@pytest.mark.parametrize("op", ["safetensors", "pt"])
def test_the_key_may_come_from_the_record(op):
    assert decoder(op, tensor_key=Col("name")).arguments == {"tensor_key": Col("name")}
    assert decoder(op, tensor_key="name").arguments == {"tensor_key": "name"}


@pytest.mark.parametrize("op", ["safetensors", "pt"])
@pytest.mark.parametrize("key", [3, None, b"t"])
def test_a_key_is_a_str(op, key):
    with pytest.raises(TypeError, match="tensor_key"):
        decoder(op, tensor_key=key)


@pytest.mark.parametrize("op", ["safetensors", "pt"])
def test_the_key_is_required(op):
    with pytest.raises(TypeError, match="tensor_key"):
        decoder(op)


@pytest.mark.parametrize("op", ["safetensors", "pt"])
def test_a_missing_key_names_the_closest(op):
    data = written(op, {"weight": torch.zeros(1), "bias": torch.zeros(1)})
    with pytest.raises(OpError, match=r"no tensor 'wieght' \(did you mean 'weight'\?\).*'bias'"):
        decode(op, data, "wieght")


class Counting:
    """A reader that tells what was read."""

    def __init__(self, inner, identity):
        self.inner, self.identity, self.size, self.reads = inner, identity, inner.size, []

    def read(self, offset, length):
        self.reads.append(length)
        return self.inner.read(offset, length)

    def read_into(self, offset, out):
        self.reads.append(len(out))
        self.inner.read_into(offset, out)

    def close(self):
        self.inner.close()


@pytest.mark.parametrize("op", ["safetensors", "pt"])
def test_only_the_wanted_tensor_is_read_and_the_header_once_per_file(op):
    data = written(op, {"big": torch.zeros(1 << 20), "small": torch.ones(10), "also": torch.ones(11)})
    first, second = (Counting(MemoryRanges(data), identity=object) for _ in range(2))
    function = decoder(op, tensor_key="small").spec.function
    function(first, tensor_key="small")
    assert sum(first.reads) < 1 << 18
    function(second, tensor_key="also")
    assert sum(second.reads) <= 44 + 30


def test_header_cache_is_bounded():
    cache = HeaderCache(files=3, tensors=10)
    for number in range(6):
        reader = Counting(MemoryRanges(b""), identity=number)
        assert cache.get(reader, lambda _, n=number: dict.fromkeys(map(str, range(n)))) == dict.fromkeys(map(str, range(number)))
    assert len(cache) == 2  # 4 + 5 entries


def test_header_cache_keeps_what_was_used_last():
    cache, parsed = HeaderCache(files=2), []
    for number in (1, 2, 1, 3, 1):
        cache.get(Counting(MemoryRanges(b""), identity=number), lambda _, n=number: parsed.append(n) or {})
    assert parsed == [1, 2, 3]


def test_a_rewritten_file_is_seen(tmp_path):
    path = tmp_path / "weights.safetensors"
    for value in (1.0, 2.0):
        path.write_bytes(safetensors.torch.save({"t": torch.full((3,), value)}))
        assert decode("safetensors", path, "t").tolist() == [value] * 3


# ---- safetensors


def blob(entries, payload=b"", pad=b""):
    header = (entries if isinstance(entries, bytes) else json.dumps(entries).encode()) + pad
    return len(header).to_bytes(8, "little") + header + payload


def entry(dtype="F32", shape=(1,), begin=0, end=4, **more):
    return {"dtype": dtype, "shape": list(shape) if isinstance(shape, tuple) else shape, "data_offsets": [begin, end], **more}


DAMAGED = [
    pytest.param(b"", "0 bytes", id="empty"),
    pytest.param(b"1234567", "7 bytes", id="short"),
    pytest.param(blob({"t": entry()}, bytes(4))[:-1], "truncated", id="truncated"),
    pytest.param(blob({"t": entry()})[:-1], "truncated inside its header", id="truncated-header"),
    pytest.param(blob({"t": entry()}, bytes(5)), "belong to no tensor", id="trailing"),
    pytest.param((MAX_HEADER + 1).to_bytes(8, "little") + b"{}", "exceeds", id="huge-header"),
    pytest.param(b"a text file that is no safetensors file", "exceeds", id="text"),
    pytest.param(blob(b"[1, 2]"), "starts with", id="list"),
    pytest.param(blob(b"{"), "not valid JSON", id="json"),
    pytest.param(blob(b'{"a": NaN}'), "not valid JSON", id="nan"),
    pytest.param(blob(b'{"a": "\xff"}'), "not valid JSON", id="utf-8"),
    pytest.param(blob(b'{"a":' * 100_000), "not valid JSON", id="deep"),
    pytest.param(blob(b'{"t": 1, "t": 2}'), "'t' stands there twice", id="duplicate"),
    pytest.param(blob({"t": entry(), "__metadata__": {"a": 1}}, bytes(4)), "__metadata__", id="metadata"),
    pytest.param(blob({"t": 3}), "needs dtype", id="no-entry"),
    pytest.param(blob({"t": {"dtype": "F32", "shape": [1]}}), "needs dtype", id="no-offsets"),
    pytest.param(blob({"t": entry(dtype="F31")}, bytes(4)), "unknown dtype 'F31'", id="dtype"),
    pytest.param(blob({"t": entry(dtype=["F32"])}, bytes(4)), "unknown dtype", id="dtype-list"),
    pytest.param(blob({"t": entry(shape=[-1])}, bytes(4)), "valid shape", id="negative"),
    pytest.param(blob({"t": entry(shape=[True])}, bytes(4)), "valid shape", id="bool"),
    pytest.param(blob({"t": entry(shape=[1.0])}, bytes(4)), "valid shape", id="float"),
    pytest.param(blob({"t": entry(shape="1")}, bytes(4)), "valid shape", id="text-shape"),
    pytest.param(blob({"t": entry(shape=[0, 10**30], end=0)}), "beyond NumPy", id="empty-but-huge"),
    pytest.param(blob({"t": entry(shape=[10**12], end=4 * 10**12)}, bytes(4)), "truncated", id="huge-tensor"),
    pytest.param(blob({"t": entry(shape=[2])}, bytes(4)), "does not take 4 bytes", id="size"),
    pytest.param(blob({"t": entry(begin=4, end=0)}, bytes(4)), "does not take -4 bytes", id="backwards"),
    pytest.param(blob({"t": entry(begin=-4, end=0)}, bytes(4)), "data_offsets", id="before"),
    pytest.param(blob({"t": entry(), "u": entry()}, bytes(4)), "overlap", id="overlap"),
    pytest.param(blob({"t": entry(), "u": entry(begin=8, end=12)}, bytes(12)), "gap", id="gap"),
]


@pytest.mark.parametrize(("data", "match"), DAMAGED)
def test_damaged_safetensors(data, match):
    with pytest.raises(OpError, match=match):
        decode("safetensors", data, "t")
    with pytest.raises((safetensors.SafetensorError, ValueError)):
        safetensors.deserialize(data)


@pytest.mark.parametrize(
    ("data", "match"),
    [(blob(b" {}"), "starts with"), (blob({"t": entry(shape=[1] * 65)}, bytes(4)), "beyond NumPy")],
    ids=["leading space, which the format forbids", "more axes than NumPy has"],
)
def test_damaged_safetensors_that_the_library_lets_pass(data, match):
    with pytest.raises(OpError, match=match):
        decode("safetensors", data, "t")


def test_elements_of_less_than_a_byte_are_refused_by_name_only():
    data = blob({"t": entry("F4", (8,)), "u": entry("U8", (2,), 4, 6)}, bytes(range(6)))
    assert decode("safetensors", data, "u").tolist() == [4, 5]
    with pytest.raises(OpError, match="4 or 6 bits"):
        decode("safetensors", data, "t")


def test_metadata_is_no_tensor():
    data = safetensors.numpy.save({"t": np.zeros(1)}, {"__note": "x"})
    with pytest.raises(OpError, match="no tensor '__metadata__'"):
        decode("safetensors", data, "__metadata__")


def test_bools_are_0_and_1():
    found = decode("safetensors", blob({"t": entry("BOOL", (4,))}, b"\0\1\2\xff"), "t")
    assert found.view("u1").tolist() == [0, 1, 1, 1]


def test_a_header_longer_than_the_first_read():
    tensors = {f"layer.{i}.weight": np.full(3, i, "i2") for i in range(1000)}
    data = safetensors.numpy.save(tensors)
    assert len(read_header(MemoryRanges(data))) == 1000
    assert decode("safetensors", data, "layer.777.weight").tolist() == [777] * 3


MUTATIONS = st.tuples(
    st.sampled_from(["dtype", "shape", "begin", "end", "pad", "payload", "drop"]), st.integers(0, 2), st.integers(-2, 9)
)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from([(2,), (0,), (2, 3), ()]), min_size=1, max_size=3), st.lists(MUTATIONS, max_size=2))
def test_accepts_what_the_safetensors_library_accepts(shapes, mutations):
    entries, position, pad = {}, 0, b""
    for number, shape in enumerate(shapes):
        size = 2 * math.prod(shape)
        entries[f"t{number}"] = entry("F16", shape, position, position + size)
        position += size
    for what, which, value in mutations:
        chosen = entries.get(f"t{which}")
        if what == "payload":
            position += value
        elif what == "pad":
            pad = b" " * abs(value)
        elif chosen is None:
            continue
        elif what == "dtype":
            chosen["dtype"] = ["F16", "I8", "F32", "BF16", "x"][value % 5]
        elif what == "shape":
            chosen["shape"] = [value]
        elif what == "drop":
            entries.pop(f"t{which}")
        else:
            chosen["data_offsets"][what == "end"] += value
    data = blob(entries, bytes(range(max(position, 0))), pad)
    try:
        expected = dict(safetensors.deserialize(data))
    except (safetensors.SafetensorError, ValueError):
        with pytest.raises(OpError):
            read_header(MemoryRanges(data))
        return
    assert read_header(MemoryRanges(data)).keys() == expected.keys()
    for key, value in expected.items():
        found = decode("safetensors", data, key)
        assert (list(found.shape), found.tobytes()) == (value["shape"], bytes(value["data"]))


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_damage_anywhere_in_safetensors_is_an_op_error(data):
    good = bytearray(safetensors.numpy.save({"a": np.zeros((2, 3)), "t": np.ones(4, "u1")}, {"k": "v"}))
    for _ in range(data.draw(st.integers(1, 4))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode("safetensors", bytes(good[: data.draw(st.integers(0, len(good)))]), "t")
    except OpError:
        pass


# ---- torch checkpoints

BASE = torch.arange(60).reshape(3, 4, 5)
VIEWS = {
    "transposed": BASE.permute(2, 0, 1),
    "column": BASE[:, 1, 2],
    "steps": BASE[:, ::2, 1::3],
    "tail": BASE[2, 3, 1:],
    "expanded": torch.tensor([[1], [2]]).expand(2, 7),
    "one element": BASE[2:, 3:, 4:],
    "empty": BASE[:, :0],
    "channels last": torch.arange(24.0).reshape(1, 2, 3, 4).contiguous(memory_format=torch.channels_last),
}


@pytest.mark.parametrize("key", list(VIEWS))
def test_views_are_read_in_order(key):
    data, expected = saved(VIEWS), VIEWS[key].numpy()
    found, out = decode("pt", data, key), np.full(expected.shape, -1, expected.dtype)
    np.testing.assert_array_equal(found, expected)
    assert found.flags.c_contiguous
    assert fill("pt", data, out, key) is True
    np.testing.assert_array_equal(out, expected)


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_any_strided_tensor_equals_torch(data):
    shape = data.draw(st.lists(st.integers(0, 4), max_size=4))
    strides = [data.draw(st.integers(0, 5)) for _ in shape]
    offset = data.draw(st.integers(0, 3))
    storage = torch.arange(100, dtype=torch.int16)
    tensor = torch.as_strided(storage, shape, strides, offset)
    np.testing.assert_array_equal(decode("pt", saved({"t": tensor}), "t"), tensor.numpy())


def test_tied_tensors_share_a_storage():
    weight = torch.arange(6.0)
    data = saved({"a": weight, "b": weight[2:], "c": weight})
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert sum("/data/" in name for name in archive.namelist()) == 1
    assert decode("pt", data, "b").tolist() == [2, 3, 4, 5]
    assert decode("pt", data, "c").tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_state_dicts_parameters_and_gradients(protocol):
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    data = saved(module.state_dict(), pickle_protocol=protocol)
    for key, tensor in module.state_dict().items():
        np.testing.assert_array_equal(decode("pt", data, key), tensor.numpy())
    tagged = torch.ones(2)
    tagged.note = "an attribute"
    data = saved({"p": torch.nn.Parameter(torch.ones(2)), "g": torch.ones(2, requires_grad=True), "n": tagged}, pickle_protocol=protocol)
    assert [decode("pt", data, key).tolist() for key in "pgn"] == [[1, 1]] * 3


def test_other_entries_do_not_disturb():
    others = {"epoch": 3, "lr": 0.1, "name": "x", "none": None, "flags": [True, False], "set": {1}, "frozen": frozenset([2]),
              "path": os.PathLike, "device": torch.device("cpu"), "dtype": torch.float32, "big": 1 << 80, "bytes": b"x",
              ("a", 1): 2, "ordered": OrderedDict(a=1), "complex": 1j, "size": torch.Size([1])}  # fmt: skip
    for protocol in (2, 4):
        assert decode("pt", saved({**others, "t": torch.ones(2)}, pickle_protocol=protocol), "t").tolist() == [1, 1]


NO_TENSOR = {
    "number": (3, "an int"),
    "nested": ({"t": torch.ones(1)}, "a dict"),
    "none": (None, "a NoneType"),
    "sparse": (torch.zeros(2, 2).to_sparse(), "_rebuild_sparse_tensor"),
    "meta": (torch.zeros(2, device="meta"), "_rebuild_meta_tensor_no_storage"),
    "conjugate": (torch.zeros(2, dtype=torch.complex64).conj(), "resolve_conj"),
    "dtype": (torch.float32, "torch.float32"),
    "object": (1j, "an object"),
}


@pytest.mark.parametrize("kind", list(NO_TENSOR))
def test_what_is_no_plain_tensor_is_said(kind):
    value, match = NO_TENSOR[kind]
    with pytest.raises(OpError, match=f"at the top level.*{match}"):
        decode("pt", saved({kind: value}), kind)


def test_nested_dicts_are_not_searched():
    with pytest.raises(OpError, match=r"no tensor 'model\.t'"):
        decode("pt", saved({"model": {"t": torch.ones(1)}}), "model.t")


@pytest.mark.parametrize("value", [torch.ones(2), [torch.ones(2)], torch.nn.Linear(1, 1)], ids=["tensor", "list", "module"])
def test_the_root_must_be_a_dict(value):
    with pytest.raises(OpError, match="a checkpoint that is a dict"):
        decode("pt", saved(value), "t")


def test_the_format_before_torch_1_6_is_decoded():
    tensors = {"w": torch.arange(12.0).reshape(3, 4).T, "b": torch.ones(2, dtype=torch.bfloat16)}
    old = saved(tensors, _use_new_zipfile_serialization=False)
    for key, tensor in tensors.items():
        assert_same_bits(decode("pt", old, key), tensor)


def rezipped(data, **members):
    """The archive with members (by name without the folder) replaced, or left out when None."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w") as new:
        contents = {name.removeprefix("archive/"): old.read(name) for name in old.namelist()} | members
        for name, content in contents.items():
            if content is not None:
                new.writestr(f"archive/{name}", content)
    return out.getvalue()


def with_pickle(pickled, value=None):
    return rezipped(saved(value or {"t": torch.arange(6.0)}), **{"data.pkl": pickled})


def test_big_endian_payloads_are_swapped():
    data = rezipped(saved({"t": torch.zeros(3), "n": torch.zeros(2, dtype=torch.bfloat16)}), byteorder=b"big",
                    **{"data/0": np.array([1, 2, 3], ">f4").tobytes(), "data/1": b"\x3f\x80\x40\x00"})  # fmt: skip
    assert decode("pt", data, "t").tolist() == [1, 2, 3]
    assert to_torch(decode("pt", data, "n")).tolist() == [1, 2]
    out = np.zeros(3, "f4")
    assert fill("pt", data, out, "t") is True
    assert out.tolist() == [1, 2, 3]


class Attack:
    """Runs a shell command when unpickled."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch {self.marker}",)


@pytest.mark.parametrize("protocol", range(6))
def test_no_code_of_the_file_runs(protocol, tmp_path):
    marker = tmp_path / "ran"
    with pytest.raises(OpError):
        decode("pt", with_pickle(pickle.dumps({"t": Attack(marker)}, protocol)), "t")
    assert not marker.exists()


def pickled_tensor(storage=b"", *, count=6, offset=0, size=(6,), stride=(1,), kind="FloatStorage", key="0"):
    """`{"t": tensor}` with any numbers."""

    class Place:
        def __reduce__(self):
            return torch._utils._rebuild_tensor_v2, (Stored(), offset, size, stride, False, OrderedDict())

    class Stored:
        pass

    class Pickler(pickle.Pickler):
        def persistent_id(self, value):
            return ("storage", getattr(torch, kind), key, "cpu", count) if isinstance(value, Stored) else None

    out = io.BytesIO()
    Pickler(out, 2).dump({"t": Place()})
    return out.getvalue()


LIES = [
    pytest.param({"size": (7,)}, "needs 28 bytes of its storage, which has 24", id="size"),
    pytest.param({"offset": 1}, "needs 28 bytes", id="offset"),
    pytest.param({"stride": (2,)}, "needs 44 bytes", id="stride"),
    pytest.param({"size": (10**12,)}, "needs 4000000000000 bytes", id="huge"),
    pytest.param({"size": (10**12,), "stride": (0,)}, "repeats its elements", id="bomb"),
    pytest.param({"size": (10**9,) * 9, "stride": (0,) * 9}, "beyond NumPy", id="overflow"),
    pytest.param({"size": (-1,)}, "valid shape", id="negative"),
    pytest.param({"offset": -1}, "valid offset", id="negative-offset"),
    pytest.param({"offset": 1.5}, "valid offset", id="fraction"),
    pytest.param({"stride": (-1,)}, "valid strides", id="negative-stride"),
    pytest.param({"stride": (1, 1)}, "valid strides", id="strides"),
    pytest.param({"stride": 1}, "valid strides", id="no-strides"),
    pytest.param({"size": "6"}, "valid shape", id="text"),
    pytest.param({"kind": "Tensor"}, "an object", id="no-storage"),
    pytest.param({"key": "9"}, "no storage '9'", id="missing-storage"),
    pytest.param({"key": "../data.pkl"}, "no storage", id="outside"),
]


@pytest.mark.parametrize(("arguments", "match"), LIES)
def test_numbers_that_do_not_fit_the_storage(arguments, match):
    with pytest.raises(OpError, match=match):
        decode("pt", with_pickle(pickled_tensor(**arguments)), "t")


DEEP = b")" + b"\x85" * 100_000
HOSTILE = [
    pytest.param(b"", "does not end|damaged", id="empty"),
    pytest.param(b"\x80\x02}q\x00", "damaged", id="no-stop"),
    pytest.param(b"\x80\x02.", "damaged", id="nothing"),
    pytest.param(b"\x80\x02h\x05.", "damaged", id="memo"),
    pytest.param(b"\x80\x02\x85.", "damaged", id="underflow"),
    pytest.param(b"\x80\x02u.", "damaged", id="no-mark"),
    pytest.param(b"\x80\x02}(K\x01u.", "damaged", id="odd-items"),
    pytest.param(b"\x80\x02\x82\x01.", "opcode EXT1", id="extension"),
    pytest.param(b"\x80\x04\x8d" + b"\xff" * 7 + b"\x7f", "damaged", id="huge-text"),
    pytest.param(b"\x80\x02" + b"(" * 50_000 + b".", "damaged", id="marks"),
    pytest.param(b"\x80\x02}" + DEEP + b"K\x01s.", "no tensor 't'", id="deep-key"),
    pytest.param(b"\x80\x02}X\x01\x00\x00\x00t" + DEEP + b"s.", "a tuple", id="deep-value"),
    pytest.param(b"\x80\x02]q\x00h\x00a.", "a list", id="recursive"),
    pytest.param(b"\x80\x02}q\x00X\x01\x00\x00\x00th\x00s.", "a dict", id="recursive-dict"),
    pytest.param(b"\x80\x02]" + b"2" * 10, "opcode DUP", id="dup"),
]


@pytest.mark.parametrize(("pickled", "match"), HOSTILE)
def test_hostile_pickles(pickled, match):
    with pytest.raises(OpError, match=match):
        decode("pt", with_pickle(pickled), "t")


def test_deep_shapes_are_refused():
    pickled = pickled_tensor(size=("deep",)).replace(b"X\x04\x00\x00\x00deep", DEEP)
    with pytest.raises(OpError, match="valid shape"):
        decode("pt", with_pickle(pickled), "t")


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_damaged_pickles_raise_only_op_errors(data):
    pickled = bytearray(pickled_tensor())
    for _ in range(data.draw(st.integers(1, 4))):
        pickled[data.draw(st.integers(0, len(pickled) - 1))] = data.draw(st.integers(0, 255))
    try:
        PickleReader().load(bytes(pickled))
    except OpError:
        pass


def deflated(data):
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    return out.getvalue()


GOOD = saved({"t": torch.arange(6.0)})
ARCHIVES = [
    pytest.param(b"", "not a torch checkpoint", id="empty"),
    pytest.param(b"hello", "not a torch checkpoint", id="text"),
    pytest.param(GOOD[:-30], "directory is damaged", id="truncated"),
    pytest.param(GOOD[: len(GOOD) // 2], "directory is damaged", id="half"),
    pytest.param(rezipped(GOOD, **{"data.pkl": None}), "holds no data.pkl", id="no-pickle"),
    pytest.param(rezipped(GOOD, **{"data/0": None}), "no storage '0'", id="no-storage"),
    pytest.param(rezipped(GOOD, **{"data/0": b"1234"}), "which has 4", id="short-storage"),
    pytest.param(rezipped(GOOD, **{"constants.pkl": b"."}), "TorchScript", id="torchscript"),
    pytest.param(deflated(GOOD), "compressed", id="compressed"),
]


@pytest.mark.parametrize(("data", "match"), ARCHIVES)
def test_damaged_archives(data, match):
    with pytest.raises(OpError, match=match):
        decode("pt", data, "t")


def test_directories_with_64_bit_fields(monkeypatch):
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 3)
    monkeypatch.setattr(zipfile, "ZIP_FILECOUNT_LIMIT", 1)
    data = rezipped(GOOD)
    assert b"PK\x06\x06" in data
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        expected = {info.filename: (info.header_offset, info.file_size, True) for info in archive.infolist()}
    assert read_directory(MemoryRanges(data)) == expected
    assert decode("pt", data, "t").tolist() == [0, 1, 2, 3, 4, 5]


def test_a_directory_like_zipfiles():
    with zipfile.ZipFile(io.BytesIO(GOOD)) as archive:
        expected = {info.filename: (info.header_offset, info.file_size, True) for info in archive.infolist()}
    assert read_directory(MemoryRanges(GOOD)) == expected


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_damaged_directories_raise_only_op_errors(data):
    bad = bytearray(GOOD)
    start = GOOD.index(b"PK\x01\x02")
    for _ in range(data.draw(st.integers(1, 4))):
        bad[data.draw(st.integers(start, len(bad) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode("pt", bytes(bad), "t")
    except OpError:
        pass


def test_a_huge_directory_is_not_read(monkeypatch):
    monkeypatch.setattr("dataio.formats.weights.torch_zip.MAX_DIRECTORY", 100)
    with pytest.raises(LimitError, match="directory"):
        decode("pt", GOOD, "t")


def test_a_size_beyond_the_file_is_refused():
    data = bytearray(with_pickle(pickled_tensor(size=(1 << 28,))))
    entry_of_storage = data.rindex(b"archive/data/0") - 46
    data[entry_of_storage + 20 : entry_of_storage + 28] = (1 << 31).to_bytes(4, "little") * 2
    with pytest.raises(OpError, match=r"needs 1073741824 bytes of its storage, which has \d{3}$"):
        decode("pt", bytes(data), "t")


def test_a_huge_pickle_is_not_read(monkeypatch):
    monkeypatch.setattr("dataio.formats.weights.torch_zip.MAX_PICKLE", 100)
    with pytest.raises(LimitError, match=r"data\.pkl of the checkpoint takes .* bytes"):
        decode("pt", GOOD, "t")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # pickletools, of escapes in damaged text
@settings(max_examples=100, deadline=None)
@given(st.data())
def test_damage_anywhere_in_a_checkpoint_is_an_op_error(data):
    bad = bytearray(GOOD)
    for _ in range(data.draw(st.integers(1, 4))):
        bad[data.draw(st.integers(0, len(bad) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode("pt", bytes(bad), "t")
    except OpError:
        pass
