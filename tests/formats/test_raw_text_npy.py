"""The decoders `bytes`, `array`, `passthrough`, `text`, `json` and `npy`."""

from __future__ import annotations

import io
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dataio.engine.errors import MissingFieldError, OpError
from dataio.engine.schema import TensorType
from dataio.formats.array import READABLE
from dataio.formats.npy_header import MAX_HEADER

from .helpers import decoder, ops_registered_by, run

BOM = b"\xef\xbb\xbf"


def npy(array, version=None):
    out = io.BytesIO()
    np.lib.format.write_array(out, np.asanyarray(array), version=version, allow_pickle=True)
    return out.getvalue()


CASES = [  # decoder, arguments, data, result
    pytest.param("bytes", {}, b"abc", b"abc", id="bytes"),
    pytest.param("bytes", {}, b"", b"", id="bytes-empty"),
    pytest.param("text", {}, "grün".encode(), "grün".encode(), id="text"),
    pytest.param("text", {}, BOM + b"x", b"x", id="text-bom"),
    pytest.param("text", {"strip_bom": False}, BOM + b"x", BOM + b"x", id="text-keeps-bom"),
    pytest.param("text", {"encoding": "utf-8-lossy"}, b"a\xffb", "a\ufffdb".encode(), id="text-lossy"),
    pytest.param("text", {"as_object": True}, "grün".encode(), "grün", id="text-object"),
    pytest.param("text", {}, b"", b"", id="text-empty"),
    pytest.param("json", {}, b' {"a": 1}\n', b' {"a": 1}\n', id="json"),
    pytest.param("json", {"field": "t"}, '{"t": "grün"}'.encode(), "grün".encode(), id="json-field"),
    pytest.param("json", {"as_object": True}, b"[1, 2.5]", [1, 2.5], id="json-object"),
    pytest.param("json", {"as_object": True, "field": "t"}, b'{"t": [1]}', [1], id="json-object-field"),
    pytest.param("json", {}, BOM + b"1", b"1", id="json-bom"),
    pytest.param("npy", {}, npy(np.array([1, 2], np.int16)), np.array([1, 2], np.int16), id="npy"),
    pytest.param("array", {"dtype": "int16"}, [1, 2], np.array([1, 2], np.int16), id="array"),
    pytest.param("passthrough", {}, ["any", 3], ["any", 3], id="passthrough"),
    pytest.param("passthrough", {"field": "k"}, {"k": 3}, 3, id="passthrough-field"),
]


@pytest.mark.parametrize(("op", "arguments", "data", "expected"), CASES)
def test_result_and_inferred_type(op, arguments, data, expected):
    call = decoder(op, **arguments)
    found = run(call, data)
    inferred = call.spec.output_type(TensorType(), call.arguments)
    if isinstance(expected, bytes):
        assert found.tobytes() == expected
        assert (inferred.dtype, inferred.shape) == ("uint8", (None,))
        assert found.dtype == np.uint8
    elif isinstance(expected, np.ndarray):
        np.testing.assert_array_equal(found, expected)
        assert found.dtype == expected.dtype
    else:
        assert found == expected
        assert inferred.dtype == "object"


def test_every_decoder_of_these_modules_has_a_case():
    assert {case.values[0] for case in CASES} == ops_registered_by("raw", "text") | {"npy"}


@pytest.mark.parametrize("op", ["bytes", "text", "npy"])
@pytest.mark.parametrize("kind", [bytearray, memoryview, "array"])
def test_any_bytes_like_and_the_result_owns_its_memory(op, kind):
    data = npy(np.arange(3)) if op == "npy" else b"some text"
    writable = bytearray(data)
    given_data = np.frombuffer(writable, np.uint8) if kind == "array" else kind(writable)
    found, expected = run(decoder(op), given_data), run(decoder(op), data)
    if isinstance(given_data, bytearray):
        given_data[:] = bytes(len(given_data))
    else:
        writable[:] = bytes(len(writable))
    np.testing.assert_array_equal(found, expected)
    assert found.flags.writeable


BAD = [
    pytest.param("text", {}, b"a\xff", "UTF-8 at byte 1", id="text"),
    pytest.param("json", {}, b"", "not valid JSON", id="json-empty"),
    pytest.param("json", {}, b"{} {}", "not valid JSON", id="json-two"),
    pytest.param("json", {}, b"NaN", "NaN is not JSON", id="json-nan"),
    pytest.param("json", {}, b"[" * 100000, "nested too deep", id="json-deep"),
    pytest.param("json", {"field": "t"}, b'{"u": 1}', "no such member.*'u'", id="json-missing"),
    pytest.param("json", {"field": "t"}, b"[1]", "list", id="json-no-object"),
    pytest.param("json", {"field": "t"}, b'{"t": 1}', "wants a string, found int", id="json-number"),
    pytest.param("json", {"field": "t"}, b'{"t": "\\ud800"}', "surrogate", id="json-surrogate"),
    pytest.param("npy", {}, b"", "no data", id="npy-empty"),
    pytest.param("npy", {}, b"PK\x03\x04 an npz", "not an .npy file", id="npz"),
    pytest.param("npy", {}, npy(np.arange(9))[:-1], "truncated", id="npy-truncated"),
    pytest.param("npy", {}, npy(np.arange(9))[:40], "truncated inside its header", id="npy-header"),
    pytest.param("npy", {}, npy(np.arange(9))[:9], "truncated", id="npy-9-bytes"),
    pytest.param("npy", {}, npy(np.array([{}, 1], object)), "never unpickled", id="npy-object"),
    pytest.param("npy", {}, npy(np.zeros(2, [("a", "i4")])), "not supported", id="npy-structured"),
    pytest.param("npy", {}, npy(np.zeros(2, "c8")), "not supported", id="npy-complex"),
    pytest.param("npy", {}, npy(np.array(["ab"])), "not supported", id="npy-string"),
    pytest.param("npy", {}, npy(np.array(["2020"], "M8[D]")), "not supported", id="npy-date"),
    pytest.param("npy", {}, b"\x93NUMPY\x09\x00" + bytes(20), "format 9.0", id="npy-version"),
    pytest.param("npy", {}, b"\x93NUMPY\x02\x00" + struct.pack("<I", MAX_HEADER + 1), "exceeds", id="npy-huge-header"),
]


@pytest.mark.parametrize(("op", "arguments", "data", "match"), BAD)
def test_bad_data_is_an_op_error(op, arguments, data, match):
    with pytest.raises(OpError, match=match):
        run(decoder(op, **arguments), data)


def test_passthrough_field_missing():
    with pytest.raises(MissingFieldError, match="field='k'"):
        run(decoder("passthrough", field="k"), {})


@pytest.mark.parametrize("op", ["text", "json"])
def test_unknown_encodings_fail_at_construction(op):
    with pytest.raises(ValueError, match="encoding"):
        decoder(op, encoding="UTF-8")


ARRAYS = hnp.arrays(
    st.sampled_from(sorted(READABLE)), hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
)


@settings(max_examples=50, deadline=None)
@given(ARRAYS, st.sampled_from([(1, 0), (2, 0), (3, 0)]), st.booleans(), st.booleans())
def test_npy_round_trip(array, version, fortran, swapped):
    stored = np.asarray(array, order="F" if fortran else "C")
    if swapped:
        stored = stored.astype(stored.dtype.newbyteorder(">"))
    found = run(decoder("npy"), npy(stored, version) + b"bytes after the payload")
    np.testing.assert_array_equal(found, array)
    assert found.dtype == array.dtype
    assert found.dtype.isnative
    assert found.flags.c_contiguous
    assert found.flags.writeable


def test_npy_header_that_announces_too_much_allocates_nothing():
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }\n"
    with pytest.raises(OpError, match="truncated"):
        run(decoder("npy"), b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header)


@pytest.mark.parametrize("shape", [(3, 4), (5, 7, 100)], ids=["joined", "row-by-row"])
def test_batched_npy_equals_the_rows(shape):
    rows = [np.random.default_rng(i).random(shape) for i in range(5)]
    kernel = decoder("npy").spec.kernels["batched"]
    np.testing.assert_array_equal(kernel([npy(r) for r in rows]), np.stack(rows))


@pytest.mark.parametrize(
    "values",
    [
        [],
        [npy(np.zeros(3)), npy(np.zeros(4))],
        [npy(np.zeros(3)), npy(np.zeros(3))[:-1]],
        [b"bad", b"bad"],
        [npy(np.zeros(3, "f4")), npy(np.zeros(3, "i4"))],
        [npy(np.zeros(9000)), npy(np.zeros(9000, "i8"))],
        [npy(np.zeros(3, ">f4"))] * 2,
        [npy(np.asfortranarray(np.zeros((3, 2))))] * 2,
        [npy(np.zeros(()))] * 2,
    ],
)
def test_batched_npy_leaves_other_columns_to_the_rows(values):
    assert decoder("npy").spec.kernels["batched"](values) is None


def test_batched_bytes():
    kernel = decoder("bytes").spec.kernels["batched"]
    np.testing.assert_array_equal(kernel([b"ab", memoryview(b"cd")]), [[97, 98], [99, 100]])
    assert [row.tolist() for row in kernel([b"ab", b"c"])] == [[97, 98], [99]]


# ---------------------------------------------------------------- array


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [
        (3, None, np.int64(3)),
        (True, None, np.True_),
        (0.5, "float32", np.float32(0.5)),
        ([[1, 2], [3, 4]], "float32", np.float32([[1, 2], [3, 4]])),
        (np.int16([1, 2]), None, np.int16([1, 2])),
    ],
)
def test_array_takes_numbers_as_they_are(value: Any, dtype: Any, expected: Any) -> None:
    from dataio.formats.raw import decode_array

    found = decode_array(value, dtype=dtype)
    assert found.dtype == np.asarray(expected).dtype
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("value", ["3", b"3", None, [[1], [2, 3]], {"a": 1}, object(), 1 << 70])
def test_array_refuses_what_is_no_array_of_numbers(value: Any) -> None:
    from dataio.formats.raw import decode_array

    with pytest.raises(OpError, match="array wants numbers"):
        decode_array(value)


@pytest.mark.parametrize("workers", ["thread", "process"])
@pytest.mark.parametrize(
    ("values", "dense"),
    [([0, 1, 2, 3], True), ([0.5, 1.0, 1.5, 2.0], True), ([np.ones((2, 3))] * 4, True), ([np.ones(i) for i in (1, 2, 1, 2)], False)],
)
def test_an_array_slot_is_a_tensor(values: list[Any], dense: bool, workers: str) -> None:
    import dataio

    pipe = dataio.pipeline(dataio.slot("y").decode_array(dtype="float32"), dataio.batch(4))
    (batch,) = pipe.bind([{"y": v} for v in values]).run("numpy", workers=workers)
    assert isinstance(batch["y"], np.ndarray) == dense
    assert all(np.array_equal(a, b) and a.dtype == np.float32 for a, b in zip(batch["y"], values, strict=True))


def test_a_value_that_is_no_number_is_that_record_s_error() -> None:
    import dataio

    pipe = dataio.pipeline(dataio.slot("y").decode_array(), dataio.batch(3))
    (batch,) = pipe.bind([{"y": 1}, {"y": "two"}, {"y": 3}]).run("numpy")
    assert batch["y"].tolist() == [1, 3]
    assert [e["index"] for e in batch.errors] == [1]
