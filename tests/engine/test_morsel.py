"""Morsels between processes: everything comes out as it went in, binary columns without a copy."""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataio.engine.morsel import Morsel, column_values
from dataio.engine.work import MISSING

from .helpers import plain


def round_trip(morsel: Morsel) -> Morsel:
    message, rest = morsel.to_ipc()
    return Morsel.from_ipc(bytearray(message), bytearray(rest))


COLUMNS: dict[str, list[Any]] = {
    "bytes": [b"", b"ab", b"\x00\xff"],
    "holes": [b"a", None, b"b"],
    "text": ["", "é", "\x00"],
    "text-holes": [None, None, "a"],
    "surrogate": ["\ud800", "a", "b"],
    "ints": [0, -1, 2**63 - 1],
    "large": [2**70, 1, 2],
    "floats": [0.5, float("inf"), -0.0],
    "bools": [True, False, True],
    "mixed": [1, "a", None],
    "nothing": [None, None, None],
    "missing": [MISSING, 1, MISSING],
    "dicts": [{"path": "a"}, {"bytes": b"x"}, {}],
    "tuples": [(1,), (), (2, 3)],
    "numpy": [np.int32(1), np.float64(2), np.str_("a")],
    "views": [bytearray(b"a"), bytearray(), bytearray(b"c")],
}


@pytest.mark.parametrize("name", COLUMNS)
def test_columns_of_records(name: str) -> None:
    found = round_trip(Morsel(range(10, 13), 4, 3, objects={name: COLUMNS[name]})).values(name)
    assert plain(list(found)) == plain(COLUMNS[name])
    assert [type(v) for v in plain(list(found))] == [type(v) for v in plain(COLUMNS[name])]


def test_all_columns_and_the_place_of_the_rows() -> None:
    morsel = Morsel(range(10, 13), 4, 3, objects=dict(COLUMNS), skip=frozenset({1}))
    found = round_trip(morsel)
    assert (found.indices, found.offset, found.length, found.skip) == (range(10, 13), 4, 3, frozenset({1}))
    for name, values in COLUMNS.items():
        assert plain(list(found.values(name))) == plain(values)
    assert found.values("missing")[0] is MISSING


def test_objects_of_main_and_lambdas_pickle() -> None:
    found = round_trip(Morsel(range(2), 0, 2, objects={"f": [lambda x: x + 1, None]}))
    assert found.values("f")[0](1) == 2


def test_nan_stays_nan() -> None:
    value = round_trip(Morsel(range(1), 0, 1, objects={"f": [float("nan")]})).values("f")[0]
    assert value != value


def test_no_columns_at_all() -> None:
    found = round_trip(Morsel(range(5), 0, 5))
    assert found.length == 5
    with pytest.raises(KeyError):
        found.values("x")


TABLE = pa.table(
    {
        "image": pa.array([b"aa", None, b"", b"dddd", b"e"], pa.binary()),
        "large": pa.array([b"aa", None, b"", b"dddd", b"e"], pa.large_binary()),
        "fixed": pa.array([b"aa", b"bb", None, b"cc", b"dd"], pa.binary(2)),
        "text": pa.array(["a", None, "é", "", "b"]),
        "code": pa.array(["a", "b", None, "a", "a"]).dictionary_encode(),
        "n": pa.array([1, None, 3, 4, 5], pa.int16()),
        "file": pa.array([{"bytes": b"x", "path": "p"}, None, {"bytes": None, "path": "q"}] * 2)[:5],
        "list": pa.array([[1, 2], None, [], [3], [4]]),
        "flag": pa.array([True, None, False, True, True]),
    }
)


@pytest.mark.parametrize("offset", [0, 1, 3])
def test_arrow_columns(offset: int) -> None:
    batch = TABLE.to_batches()[0].slice(offset, 2)
    morsel = Morsel(range(2), 0, 2, batch=batch, objects={"extra": ["u", "v"]})
    other = round_trip(morsel)
    for name in TABLE.column_names:
        expected = batch.column(name).to_pylist()
        assert plain(list(morsel.values(name))) == expected
        assert plain(list(other.values(name))) == expected
    assert list(other.values("extra")) == ["u", "v"]


def test_only_the_slice_is_sent() -> None:
    batch = pa.record_batch({"x": pa.array([bytes(10_000)] * 100)})
    message, _ = Morsel(range(1), 0, 1, batch=batch.slice(50, 1)).to_ipc()
    assert len(message) < 20_000


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()], ids=str)
def test_binary_columns_are_views(kind: pa.DataType) -> None:
    array = pa.array([b"abc", b"", b"defg"], kind).slice(1)
    buffer = np.frombuffer(array.buffers()[2], np.uint8)
    view = column_values(array)[1]
    assert isinstance(view, memoryview)
    assert bytes(view) == b"defg"
    assert np.shares_memory(np.frombuffer(view, np.uint8), buffer)


def test_struct_of_bytes_is_a_view() -> None:
    array = pa.array([{"bytes": b"abc", "path": None}])
    value = column_values(array)[0]
    assert value["path"] is None
    buffer = np.frombuffer(array.field(0).buffers()[2], np.uint8)
    assert np.shares_memory(np.frombuffer(value["bytes"], np.uint8), buffer)


def test_views_of_a_received_message_are_not_copied() -> None:
    batch = pa.record_batch({"x": pa.array([b"abcdef" * 100])})
    message, rest = Morsel(range(1), 0, 1, batch=batch).to_ipc()
    received = bytearray(message)
    view = Morsel.from_ipc(received, rest).values("x")[0]
    assert np.shares_memory(np.frombuffer(view, np.uint8), np.frombuffer(received, np.uint8))


def test_missing_keeps_its_identity() -> None:
    assert pickle.loads(pickle.dumps(MISSING)) is MISSING
    assert repr(MISSING) == "MISSING"


VALUES = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text() | st.binary()


@settings(max_examples=80, deadline=None)
@given(st.lists(st.lists(VALUES, min_size=3, max_size=3), max_size=4))
def test_any_values(columns: list[list[Any]]) -> None:
    morsel = Morsel(range(3), 0, 3, objects={str(i): c for i, c in enumerate(columns)})
    found = round_trip(morsel)
    for i, column in enumerate(columns):
        assert plain(list(found.values(str(i)))) == column


def test_a_file_object_that_cannot_travel_says_so() -> None:
    with pytest.raises((TypeError, pickle.PicklingError), match="pickle"):
        Morsel(range(1), 0, 1, objects={"x": [io.TextIOWrapper(io.BytesIO())]}).to_ipc()
