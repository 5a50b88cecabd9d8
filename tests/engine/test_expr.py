"""Conditions: canonical JSON, the per-record reader and the Polars reader mean the same."""

from __future__ import annotations

import json
import operator
import pickle
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dataio
from dataio import cond
from dataio.engine.errors import PlanError, SchemaError
from dataio.engine.expr import (
    All,
    AnyOf,
    Col,
    Compare,
    Cond,
    ConstCond,
    IsIn,
    IsNull,
    Measure,
    Not,
    Truthy,
    field_getter,
)

FIELDS: dict[str, tuple[pl.DataType, st.SearchStrategy[Any]]] = {
    "i": (pl.Int64(), st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3)),
    "u": (pl.UInt8(), st.integers(0, 255)),
    "f": (pl.Float64(), st.floats() | st.sampled_from([0.0, 1.0, 2.5])),
    "s": (pl.String(), st.text(max_size=2) | st.sampled_from(["", "a", "b"])),
    "b": (pl.Boolean(), st.booleans()),
}
LITERALS = (
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.sampled_from([0.0, 1.0, 2.5, float("inf")])
    | st.text(max_size=2)
)
COLUMNS = st.sampled_from(list(FIELDS)).map(Col)
CONDS: st.SearchStrategy[Cond] = st.recursive(
    st.builds(Compare, COLUMNS, st.sampled_from(["eq", "ne", "lt", "le", "gt", "ge"]), LITERALS)
    | st.builds(Truthy, COLUMNS)
    | st.builds(IsNull, COLUMNS)
    | st.builds(IsIn, COLUMNS, st.lists(LITERALS, max_size=3).map(tuple))
    | st.builds(ConstCond, st.booleans()),
    lambda inner: (
        st.builds(Not, inner)
        | st.builds(All, st.lists(inner, max_size=3).map(tuple))
        | st.builds(AnyOf, st.lists(inner, max_size=3).map(tuple))
    ),
    max_leaves=6,
)
RECORDS = st.lists(
    st.fixed_dictionaries({name: st.none() | values for name, (_, values) in FIELDS.items()}), min_size=1, max_size=6
)


def of_canonical(tree: dict[str, Any], record: dict[str, Any]) -> bool:
    """A third reading of a condition, from its canonical form and the rules of the documentation alone."""
    args = tree["_args"]
    found = record.get(args["field"]["_slot_ref"]) if "field" in args else None

    def compared(op: str, a: Any, b: Any) -> bool:
        if op == "ne":
            return not compared("eq", a, b)
        if op == "eq":
            return bool(isinstance(a, bool) == isinstance(b, bool) and a == b)
        numbers = all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in (a, b))
        strings = all(isinstance(v, str) for v in (a, b))
        return bool((numbers or strings) and getattr(operator, op)(a, b))

    match tree["_op"]:
        case "field_truthy":
            return bool(found)
        case "field_cmp":
            return compared(args["cmp"], found, args["value"])
        case "field_is_null":
            return found is None
        case "field_in":
            return any(compared("eq", found, v) for v in args["values"])
        case "not":
            return not of_canonical(args["inner"], record)
        case "all":
            return all(of_canonical(c, record) for c in args["children"])
        case "any":
            return any(of_canonical(c, record) for c in args["children"])
        case "const":
            return bool(args["value"])
    raise AssertionError(tree)


@settings(max_examples=100, deadline=None)
@given(CONDS, RECORDS)
def test_three_readers_agree(condition: Cond, records: list[dict[str, Any]]) -> None:
    tree = json.loads(json.dumps(condition.canonical()))
    expected = [of_canonical(tree, record) for record in records]
    assert [condition.of_record(record.get) for record in records] == expected
    schema = {name: dtype for name, (dtype, _) in FIELDS.items()}
    frame = pl.DataFrame(records, schema=schema)
    mask = frame.select(pl.repeat(True, pl.len()) & condition.to_polars(frame.schema)).to_series()
    assert mask.to_list() == expected


@settings(max_examples=50, deadline=None)
@given(CONDS)
def test_conditions_are_values(condition: Cond) -> None:
    copy = pickle.loads(pickle.dumps(condition))
    assert copy == condition
    assert hash(copy) == hash(condition)
    assert copy.canonical() == condition.canonical()
    assert condition.columns() <= set(FIELDS)
    assert str(copy) == str(condition)


CASES: list[tuple[Any, Cond, bool]] = [  # the field's value, condition on "x", result
    ("a", cond.col("x").eq("a"), True),
    (1, cond.col("x").eq(1.0), True),
    (1, cond.col("x").eq(True), False),
    (True, cond.col("x").eq(True), True),
    (None, cond.col("x").ne("a"), True),
    (None, cond.col("x").lt(1), False),
    (None, ~cond.col("x").lt(1), True),
    ("2", cond.col("x").gt(1), False),
    (True, cond.col("x").ge(0), False),
    (2**70, cond.col("x").gt(2**65), True),
    (None, cond.col("x").is_in([1, "a", None, 2.5]), True),
    (True, cond.col("x").is_in([1, "a"]), False),
    (2.5, cond.col("x").is_in([1, 2.5]), True),
    (np.int32(4), cond.col("x").ge(4), True),
    (np.float32(0.5), cond.col("x").lt(1), True),
    ("", cond.col("x"), False),
    (0.0, cond.col("x"), False),
    ("a", cond.col("x"), True),
    (None, cond.col("x").is_null(), True),
    (0, cond.col("x").is_not_null(), True),
    (1, cond.all([]), True),
    (1, cond.any([]), False),
    (1, cond.not_(cond.const(False)), True),
    (5, cond.col("x").gt(3) & ~cond.col("x").gt(6) | cond.const(False), True),
    (5, dataio.col("x").lt(6), True),
]


@pytest.mark.parametrize(("value", "condition", "expected"), CASES, ids=lambda v: str(v))
def test_of_record(value: Any, condition: Cond, expected: bool) -> None:
    assert condition.of_record({"x": value}.get) is expected


def test_a_missing_field_is_null_in_mappings_and_objects() -> None:
    class Record:
        x = 3

    assert cond.col("y").is_null().of_record(field_getter({"x": 1}))
    assert cond.col("y").is_null().of_record(field_getter(Record()))
    assert cond.col("x").eq(3).of_record(field_getter(Record()))


@pytest.mark.parametrize(
    ("condition", "shape", "expected"),
    [
        (cond.shape(0, "gt", 3), (4, 5), True),
        (cond.shape(-1, "eq", 5), (4, 5), True),
        (cond.shape(-1, "==", 4), (4, 5), False),
        (cond.shape(2), (4, 5), False),
        (cond.shape(2, "lt", 9), (4, 5), False),
        (~cond.shape(2, "lt", 9), (4, 5), True),
        (cond.shape(0), (0, 5), False),
        (cond.ndim(), (4, 5), True),
        (cond.ndim(), (), False),
        (cond.ndim().eq(2), (4, 5), True),
    ],
    ids=str,
)
def test_measures(condition: Cond, shape: tuple[int, ...], expected: bool) -> None:
    assert condition.of_record({}.get, np.zeros(shape)) is expected


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: cond.col(""), ValueError, "empty"),
        (lambda: cond.col(3), TypeError, "str"),
        (lambda: cond.shape(0, "gt"), ValueError, "both op and value"),
        (lambda: cond.shape(0, None, 1), ValueError, "both op and value"),
        (lambda: cond.shape(0, "near", 1), ValueError, "eq, ne"),
        (lambda: cond.shape(0.5), TypeError, "integer"),
        (lambda: cond.shape(True), TypeError, "integer"),
        (lambda: cond.shape(0, "gt", 1.5), TypeError, "integer"),
        (lambda: cond.shape(0, "gt", True), TypeError, "integer"),
        (lambda: cond.ndim().eq("2"), TypeError, "integer"),
        (lambda: cond.col("x").eq([1]), TypeError, r"\[1\]"),
        (lambda: cond.col("x").lt(b"a"), TypeError, "b'a'"),
        (lambda: cond.col("x").is_in([1, object()]), TypeError, "object"),
        (lambda: cond.col("x").eq(1).eq(2), ValueError, "finished condition"),
        (lambda: cond.shape(0).eq(1).lt(2), ValueError, "finished condition"),
        (lambda: (cond.col("x") & cond.col("y")).gt(1), ValueError, "finished condition"),
        (lambda: cond.col("x").eq(1).is_null(), ValueError, "asks about a column"),
        (lambda: cond.ndim().is_in([1]), ValueError, "asks about a column"),
        (lambda: cond.shape(0).is_not_null(), ValueError, "asks about a column"),
        (lambda: cond.const(1), TypeError, "bool"),
        (lambda: cond.all([True]), TypeError, "True"),
        (lambda: cond.any([dataio.col("x")]), TypeError, "Param"),
        (lambda: cond.not_("x"), TypeError, "'x'"),
        (lambda: cond.col("x") & True, TypeError, "True"),
        (lambda: cond.col("x") | dataio.col("y"), TypeError, "Param"),
        (lambda: dataio.col("x").is_in([1]), AttributeError, "is_in"),  # type: ignore[attr-defined]
        (lambda: dataio.const(dataio.col("x")), TypeError, "plain value"),
        (lambda: dataio.col(""), ValueError, "empty"),
        (lambda: dataio.param(1), TypeError, "str"),
        (lambda: Compare(Col("x"), "near", 1), ValueError, "near"),
    ],
)
def test_mistakes_surface_where_they_are_written(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


def test_a_finished_condition_is_always_true_for_python() -> None:
    assert bool(cond.const(False)) is True


def test_a_measure_reads_no_table() -> None:
    with pytest.raises(PlanError, match="decoded tensor"):
        cond.ndim().to_polars({})
    with pytest.raises(ValueError, match="skip_when"):
        cond.shape(0).of_record({}.get)


def test_an_unknown_column_names_the_close_one() -> None:
    with pytest.raises(SchemaError, match=r"'lable'.*did you mean 'label'\?.*it has: label, x"):
        cond.col("lable").gt(0).to_polars({"label": pl.Int64(), "x": pl.Int64()})


@pytest.mark.parametrize(
    ("condition", "canonical"),
    [
        (cond.col("x"), {"_op": "field_truthy", "_args": {"field": {"_slot_ref": "x"}}}),
        (cond.col("x").le(2), {"_op": "field_cmp", "_args": {"field": {"_slot_ref": "x"}, "cmp": "le", "value": 2}}),
        (cond.col("x").is_in([1]), {"_op": "field_in", "_args": {"field": {"_slot_ref": "x"}, "values": [1]}}),
        (cond.shape(-1, "<", 3), {"_op": "shape_dim", "_args": {"axis": -1, "cmp": "lt", "value": 3}}),
        (cond.ndim(), {"_op": "ndim", "_args": {"axis": None, "cmp": None, "value": None}}),
        (cond.all([]), {"_op": "all", "_args": {"children": []}}),
        (~cond.const(True), {"_op": "not", "_args": {"inner": {"_op": "const", "_args": {"value": True}}}}),
    ],
    ids=str,
)
def test_canonical(condition: Cond, canonical: dict[str, Any]) -> None:
    assert condition.canonical() == canonical


def test_col_prints_as_param() -> None:
    assert repr(dataio.col("x")) == 'Param("x")'
    assert dataio.col("x") == dataio.col("x")
    assert {dataio.col("x"): 1}[Col("x")] == 1
    assert str(Measure(0, "gt", 3)) == "shape[0] > 3"
