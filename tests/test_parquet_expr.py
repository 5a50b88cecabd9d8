"""Conditions on Parquet columns: what they mean, that Polars and the row-wise reader agree, and what is refused."""

from __future__ import annotations

import importlib.util
import io
import json
import math
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dataio
from dataio import ParquetExpr
from dataio.parquet_expr import clauses, holds

ROOT = Path(__file__).resolve().parent
GOLDEN = json.loads((ROOT / "golden" / "parquet.json").read_text())
c = dataio.parquet.col


def golden_table() -> pa.Table:
    spec = importlib.util.spec_from_file_location("golden_parquet", ROOT.parent / "scripts" / "golden" / "parquet.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.table()


@pytest.fixture(scope="module")
def golden_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("golden") / "t.parquet"
    pq.write_table(golden_table(), path, row_group_size=3)
    return str(path)


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: case["condition"])
def test_a_condition_leaves_the_rows_of_the_reference(golden_file: str, case: dict[str, Any]) -> None:
    query = dataio.scan_parquet(golden_file).filter(eval(case["condition"], {"c": c}))
    assert query.select(["id"]).collect_columns()["id"] == case["rows"]
    assert [row["id"] for row in query.collect()] == case["rows"]  # with columns that Polars does not scan
    plan = query.explain()
    assert (plan["native_filter"], plan["filter_columns"]) == (case["native_filter"], case["filter_columns"])
    assert set(plan["candidate_row_groups"]) >= {row // 3 for row in case["rows"]}


def test_values_are_those_of_the_reference(golden_file: str) -> None:
    values = dataio.read_parquet(golden_file)
    values["f"] = ["nan" if x != x else x for x in values["f"]]
    values["by"] = [None if x is None else x.decode() for x in values["by"]]
    assert values == GOLDEN["values"]


# ------------------------------------------------------------------ properties

EDGES = [0, 1, -1, 2, 127, 128, 255, 256, 2**24 + 1, 2**53, 2**53 + 1, 2**63 - 1, -(2**63), 2**64, 10**400]
FLOATS = [0.0, -0.0, 0.5, 1.0, 0.1, 2.0**53, math.inf, -math.inf, math.nan, 1e300, 127.5, -0.5]
LITERALS = st.one_of(
    st.sampled_from(EDGES), st.sampled_from(FLOATS), st.booleans(), st.none(), st.sampled_from(["", "a", "ab", "é", "1"]),
    st.sampled_from([b"", b"a", b"\xff"]), st.integers(-3, 3), st.floats(width=32),
)  # fmt: skip
COLUMNS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "i8": (pa.int8(), st.integers(-128, 127)),
    "u8": (pa.uint8(), st.sampled_from([0, 1, 2, 127, 128, 255])),
    "i64": (pa.int64(), st.sampled_from([x for x in EDGES if -(2**63) <= x < 2**63])),
    "u64": (pa.uint64(), st.sampled_from([0, 1, 2**53 + 1, 2**64 - 1])),
    "f32": (pa.float32(), st.one_of(st.floats(width=32), st.sampled_from([0.5, 1.0, 16777216.0]))),
    "f64": (pa.float64(), st.sampled_from(FLOATS)),
    "b": (pa.bool_(), st.booleans()),
    "s": (pa.string(), st.sampled_from(["", "a", "ab", "ba", "é"])),
    "by": (pa.binary(), st.sampled_from([b"", b"a", b"\xff\x00"])),
    "dt": (pa.date32(), st.integers(-3, 3)),
    "ts": (pa.timestamp("ms"), st.integers(-3, 3)),
}  # fmt: skip
NAMES = st.sampled_from(list(COLUMNS))
OPS = st.sampled_from(["eq", "ne", "lt", "le", "gt", "ge"])
LEAVES = st.one_of(
    st.builds(lambda n, op, v: getattr(c(n), op)(v), NAMES, OPS, LITERALS),
    st.builds(lambda n, vs: c(n).is_in(vs), NAMES, st.lists(LITERALS, max_size=8)),
    st.builds(lambda n, vs: c(n).not_in(vs), NAMES, st.lists(LITERALS, max_size=8)),
    st.builds(lambda n, op, v: getattr(c(n), op)(v), NAMES, st.sampled_from(["contains", "starts_with", "ends_with"]), LITERALS),
    st.builds(lambda n, a, b, k: c(n).between(a, b, closed=k), NAMES, LITERALS, LITERALS, st.sampled_from(["both", "left", "right", "none"])),
    st.builds(lambda n: c(n).is_null(), NAMES),
    st.builds(c, NAMES),
)
CONDITIONS = st.recursive(
    LEAVES, lambda inner: st.one_of(st.builds(lambda a, b: a & b, inner, inner), st.builds(lambda a, b: a | b, inner, inner), inner.map(lambda a: ~a)), max_leaves=5
)


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    rows = draw(st.integers(1, 6))
    arrays = {}
    for name, (kind, values) in COLUMNS.items():
        drawn = draw(st.lists(st.none() | values, min_size=rows, max_size=rows))
        stored = {"dt": pa.int32(), "ts": pa.int64()}.get(name, kind)
        arrays[name] = pa.array(drawn, stored).cast(kind)
    return pa.table(arrays)


@settings(max_examples=120, deadline=None)
@given(table=tables(), condition=CONDITIONS)
def test_polars_statistics_and_rows_agree(table: pa.Table, condition: ParquetExpr, tmp_path_factory: pytest.TempPathFactory) -> None:
    data = io.BytesIO()
    pq.write_table(table, data, row_group_size=2)
    path = tmp_path_factory.getbasetemp() / "property.parquet"
    path.write_bytes(data.getvalue())
    rows = dataio.read_parquet(data.getvalue())
    expected = [holds(condition.node, lambda name, at=at: rows[name][at]) for at in range(table.num_rows)]  # type: ignore[misc]
    left = [at for at, keep in enumerate(expected) if keep]
    for source in (path, data.getvalue()):  # Polars' scan; row group by row group
        query = dataio.scan_parquet(source).filter(condition)
        found = query.collect_columns()
        assert repr({n: [v[at] for at in left] for n, v in rows.items()}) == repr(found)
        assert query.count() == len(left)


@settings(max_examples=100, deadline=None)
@given(condition=CONDITIONS, row=st.fixed_dictionaries({name: st.none() | values for name, (_, values) in COLUMNS.items()}))
def test_clauses_mean_what_the_condition_means(condition: ParquetExpr, row: dict[str, Any]) -> None:
    found = clauses(condition.node)
    if found is not None:
        by_clauses = any(all(holds(dataio.scan_parquet("x").where(*term)._conditions[0].node, row.get) for term in clause) for clause in found)
        assert by_clauses == holds(condition.node, row.get)


# -------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: c(""), TypeError),
        (lambda: c(1), TypeError),
        (lambda: bool(c("h") > 1), TypeError),
        (lambda: (c("h") > 1) and (c("h") < 3), TypeError),
        (lambda: 1 < c("h") < 3, TypeError),
        (lambda: c("h") > c("g"), TypeError),
        (lambda: (c("h") > 1) > 2, TypeError),
        (lambda: (c("h") > 1).is_null(), TypeError),
        (lambda: c("h").is_in("ab"), TypeError),
        (lambda: c("h").is_in(b"ab"), TypeError),
        (lambda: c("h").is_in(3), TypeError),
        (lambda: c("h").between(1, 2, closed="up"), ValueError),
        (lambda: (c("h") > 1) & True, TypeError),
        (lambda: False | (c("h") > 1), TypeError),
        (lambda: c("h") == date(2020, 1, 1), TypeError),
        (lambda: c("h") == [1], TypeError),
        (lambda: hash(c("h")), TypeError),
    ],
)
def test_what_makes_no_condition_is_refused(make: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        make()


def test_more_than_64_clauses_have_no_native_form() -> None:
    wide = c("h") == 0
    for value in range(1, 65):
        wide = wide | (c("h") == value)
    assert clauses(wide.node) is None
    assert len(clauses(c("h").is_in(range(1000)).node) or ()) == 1000


@pytest.mark.parametrize(
    ("op", "value", "same"),
    [
        ("=", 1, c("h") == 1), ("<>", 1, c("h") != 1), ("LE", 1, c("h") <= 1), ("Is Null", None, c("h").is_null()), ("is-not-null", None, c("h").is_not_null()),
        ("Not In", [1], c("h").not_in([1])), ("isin", [1], c("h").is_in([1])), ("Between", (1, 2), c("h").between(1, 2)), ("starts with", "a", c("h").startswith("a")),
    ],
)  # fmt: skip
def test_where_takes_ops_by_name(op: str, value: Any, same: ParquetExpr) -> None:
    assert dataio.scan_parquet("x").where("h", op, value)._conditions[0].node == same.node


@pytest.mark.parametrize(("args", "error"), [(("h",), TypeError), (("h", 3, 1), TypeError), (("h", "like", 1), ValueError), (("h", "between", (1,)), ValueError), ((3,), TypeError)])
def test_where_refuses(args: tuple[Any, ...], error: type[Exception]) -> None:
    with pytest.raises(error):
        dataio.scan_parquet("x").where(*args)
