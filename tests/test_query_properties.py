"""Laws of queries: a condition means the same in every form and every scan, and a query gives what the same steps give in plain Polars."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dataio
from dataio import Query, cond
from dataio.engine.expr import Cond
from dataio.engine.plan import Filter
from dataio.parquet_expr import ParquetExpr, holds
from dataio.parquet_expr import condition as parquet_condition
from dataio.query_conditions import as_cond

c = dataio.parquet.col
settings.register_profile("queries", deadline=None, max_examples=40)
RULES = settings.get_profile("queries")

# -------------------------------------------------------------------------------------------------- frames and conditions

INTS = [None, -(2**63), -3, 0, 1, 2, 7, 2**53 + 1, 2**63 - 1]
FLOATS = [None, -math.inf, -1.5, -0.0, 0.0, 0.5, 1.0, 7.0, float(2**53), math.inf, math.nan]
TEXTS = [None, "", "a", "ab", "b", "é", "7"]
BOOLS = [None, True, False]
POOLS: dict[str, list[Any]] = {"i": INTS, "s": [None, -5, 0, 3, 127], "f": FLOATS, "g": [None, 0.1, 0.5, math.nan, -math.inf], "t": TEXTS, "b": BOOLS}
TYPES = {"i": pa.int64(), "s": pa.int8(), "f": pa.float64(), "g": pa.float32(), "t": pa.string(), "b": pa.bool_()}
LITERALS: list[Any] = [*{repr(v): v for pool in POOLS.values() for v in pool}.values(), 0.1, 2**70, -(2**70), 1e300, 3.5, "zz"]


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    rows = draw(st.integers(0, 12))
    columns = {name: pa.array(draw(st.lists(st.sampled_from(pool), min_size=rows, max_size=rows)), TYPES[name]) for name, pool in POOLS.items()}
    return pa.table({"id": pa.array(range(rows), pa.int64()), **columns})


def leaves() -> st.SearchStrategy[Cond]:
    names, values = st.sampled_from(list(POOLS)), st.sampled_from(LITERALS)
    compare = st.builds(lambda n, op, v: getattr(cond.col(n), op)(v), names, st.sampled_from(["eq", "ne", "lt", "le", "gt", "ge"]), values)
    several = st.builds(lambda n, v: cond.col(n).is_in(v), names, st.lists(values, max_size=3))
    null = st.builds(lambda n, negated: cond.col(n).is_not_null() if negated else cond.col(n).is_null(), names, st.booleans())
    return compare | several | null | st.builds(cond.col, names) | st.builds(cond.const, st.booleans())


def conditions() -> st.SearchStrategy[Cond]:
    return st.recursive(
        leaves(),
        lambda inner: st.builds(lambda a, b: a & b, inner, inner) | st.builds(lambda a, b: a | b, inner, inner) | st.builds(lambda a: ~a, inner),
        max_leaves=5,
    )


TERMS = {"=": True, "!=": True, "<": True, "<=": True, ">": True, ">=": True, "in": False, "not_in": False, "is_null": None, "is_not_null": None,
         "contains": "t", "starts_with": "t", "ends_with": "t"}  # fmt: skip


@st.composite
def terms(draw: st.DrawFn) -> tuple[str, str, Any]:
    """(column, op, value)."""
    op = draw(st.sampled_from(list(TERMS)))
    form = TERMS[op]
    name = draw(st.sampled_from(list(POOLS)))
    value = st.sampled_from(LITERALS)
    text = st.sampled_from(["", "a", "b", "é"])
    return name, op, draw(st.none() if form is None else text if form == "t" else value if form else st.lists(value, max_size=3))


def expressions() -> st.SearchStrategy[ParquetExpr]:
    leaf = terms().map(lambda t: parquet_condition(*t)) | st.sampled_from(list(POOLS)).map(c)
    return st.recursive(
        leaf,
        lambda inner: st.builds(lambda a, b: a & b, inner, inner) | st.builds(lambda a, b: a | b, inner, inner) | st.builds(lambda a: ~a, inner),
        max_leaves=4,
    )


@pytest.fixture(scope="module", autouse=True)
def _folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    FOLDER.append(tmp_path_factory.mktemp("queries"))


FOLDER: list[Path] = []
NUMBERS = itertools.count()


def written(table: pa.Table) -> Path:
    path = FOLDER[-1] / f"{next(NUMBERS) % 8}.parquet"
    pq.write_table(table, path, row_group_size=5)
    return path


def scans(table: pa.Table) -> dict[str, Query]:
    """The same rows in every kind of scan, so that a condition is pushed into it, stands on its own, or is Polars'."""
    path = written(table)
    frame = pl.DataFrame(pl.from_arrow(table))
    bare = {
        "table": dataio.scan(table),
        "frame": dataio.scan(frame),
        "lazy-frame": dataio.scan(frame.lazy()),
        "stream": dataio.scan(Chunks(table)),
        "parquet": Query(dataio.scan_parquet(path).plan),
        "parquet-bytes": Query(dataio.scan_parquet(path.read_bytes()).plan),
        "records": dataio.scan(table.to_pylist()),
    }
    found = dict(bare)
    for name in ("table", "frame", "parquet-bytes", "records"):
        found[f"{name}-limited"] = bare[name].limit(1 << 40)
    if table.num_rows:  # records without any have no columns
        found["records-in-polars"] = bare["records"].sort("id")
    found["table-in-polars"] = bare["table"].sort("id")
    return found


class Chunks:
    """An Arrow stream of several batches, with empty ones."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        batches = [*self._table.to_batches(max_chunksize=4), *self._table.slice(0, 0).to_batches()]
        return pa.Table.from_batches(batches, self._table.schema).__arrow_c_stream__(requested_schema)


def ids(query: Query) -> list[int]:
    return [row["id"] for row in query.select("id").collect()]


@RULES
@given(tables(), conditions())
def test_a_condition_means_the_same_in_every_scan(table: pa.Table, condition: Cond) -> None:
    expected = [row["id"] for row in table.to_pylist() if condition.of_record(row.get)]
    for name, query in scans(table).items():
        made = Query(Filter(query.plan, condition))  # `filter` refuses literals of another kind, which a plan takes
        assert ids(made) == expected, name
        assert made.count() == len(expected), name
        if table.num_rows:
            assert made.collect_arrow()["id"].to_pylist() == expected, name


@RULES
@given(tables(), expressions())
def test_a_condition_on_columns_means_the_same_in_every_scan(table: pa.Table, condition: ParquetExpr) -> None:
    expected = [row["id"] for row in table.to_pylist() if holds(condition.node, row.__getitem__)]
    for name, query in scans(table).items():
        for schema in (table.schema, None):
            assert ids(Query(Filter(query.plan, as_cond(condition.node, schema)))) == expected, (name, schema is None)
    assert [row["id"] for row in dataio.scan_parquet(written(table)).filter(condition).collect()] == expected


KINDS: dict[str, tuple[type, ...]] = {"i": (int, float), "s": (int, float), "f": (int, float), "g": (int, float), "t": (str,), "b": (bool,)}


@RULES
@given(tables(), terms())
def test_every_form_of_a_condition_gives_the_same_rows(table: pa.Table, term: tuple[str, str, Any]) -> None:
    """`(column, op, value)`, `parquet.col`, `cond` where it has the op, and a callable."""
    name, op, value = term
    values = value if isinstance(value, list) else [value]
    if any(v is not None and (type(v) not in KINDS[name]) for v in values):
        return  # refused, as the tests of bad input hold
    forms: dict[str, Callable[[Query], Query]] = {
        "where": lambda q: q.where(name, op, value),
        "column": lambda q: q.filter(parquet_condition(name, op, value)),
        "callable": lambda q: q.filter(lambda row: holds(parquet_condition(name, op, value).node, row.__getitem__)),
    }
    plain = {"=": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge", "in": "is_in"}.get(op)
    if plain is not None:
        forms["cond"] = lambda q: q.filter(getattr(cond.col(name), plain)(value))
    if plain is not None and plain != "is_in":
        forms["col"] = lambda q: q.filter(getattr(dataio.col(name), plain)(value))
    expected = [row["id"] for row in table.to_pylist() if holds(parquet_condition(name, op, value).node, row.__getitem__)]
    for form, make in forms.items():
        for scan, query in scans(table).items():
            if scan.startswith("records") and form == "callable" and not table.num_rows:
                continue
            assert ids(make(query)) == expected, (form, scan)


# --------------------------------------------------------------------------------------------------------- whole queries

Step = tuple[str, Callable[[Query], Query], Callable[[pl.LazyFrame], pl.LazyFrame]]
OTHER = pl.DataFrame({"s": pl.Series([0, 3, 3, None], dtype=pl.Int8), "w": [1, 2, 3, 4]})

STEPS: list[Step] = [
    ("filter", lambda q: q.filter(cond.col("s").gt(0)), lambda f: f.filter(pl.col("s") > 0)),
    ("filter-polars", lambda q: q.filter(pl.col("i") < 5), lambda f: f.filter(pl.col("i") < 5)),
    ("filter-callable", lambda q: q.filter(lambda r: r["t"] in ("a", "ab")), lambda f: f.filter(pl.col("t").is_in(["a", "ab"]))),
    ("sort", lambda q: q.sort("t", "b", descending=[True, False]), lambda f: f.sort("t", "b", descending=[True, False], maintain_order=True)),
    ("with-columns", lambda q: q.with_columns(i=pl.col("s") + 1), lambda f: f.with_columns(i=pl.col("s") + 1)),
    ("unique", lambda q: q.unique("t", "b"), lambda f: f.unique(["t", "b"], keep="first", maintain_order=True)),
    ("limit", lambda q: q.limit(7, 1), lambda f: f.slice(1, 7)),
    ("offset", lambda q: q.offset(2), lambda f: f.slice(2)),
    ("select", lambda q: q.select("b", "t", "s", "i", "id"), lambda f: f.select("b", "t", "s", "i", "id")),
    ("join", lambda q: q.join(OTHER, on="s", how="left").select("id", "i", "s", "t", "b"), lambda f: f.join(OTHER.lazy(), on="s", how="left", maintain_order="left_right").select("id", "i", "s", "t", "b")),
    ("group", lambda q: q.group_by("t").agg(pl.col("id", "i", "s", "b").first()).select("id", "i", "s", "t", "b"), lambda f: f.group_by("t", maintain_order=True).agg(pl.col("id", "i", "s", "b").first()).select("id", "i", "s", "t", "b")),
]  # fmt: skip


@RULES
@given(tables(), st.lists(st.sampled_from(STEPS), max_size=5))
def test_a_query_gives_what_polars_gives(table: pa.Table, steps: list[Step]) -> None:
    expected = pl.DataFrame(pl.from_arrow(table)).lazy().select("id", "i", "s", "t", "b")
    for _, _, step in steps:
        expected = step(expected)
    rows = expected.collect().to_dicts()
    for name, query in scans(table).items():
        if name.startswith("records"):
            continue  # whose types are found anew
        made = query.select("id", "i", "s", "t", "b")
        for _, step, _ in steps:
            made = step(made)
        assert made.collect() == rows, name
        assert made.to_polars().to_dicts() == rows, name
        assert made.count() == len(rows), name
        assert made.collect_arrow().to_pylist() == rows, name
        assert made.schema().names == expected.collect_schema().names(), name


@RULES
@given(tables(), st.integers(0, 15), st.integers(0, 2**40), st.floats(0, 1))
def test_a_sample_is_a_part_of_the_rows_in_their_order(table: pa.Table, n: int, seed: int, fraction: float) -> None:
    query = dataio.scan(table)
    for made in (query.sample(n, seed=seed), query.sample(fraction=fraction, seed=seed)):
        found = ids(made)
        assert found == sorted(set(found)) == ids(made)
        assert set(found) <= set(range(table.num_rows))
        assert made.count() == len(found)
    assert query.sample(n, seed=seed).count() == min(n, table.num_rows)
    assert ids(query.sample(n, seed=seed)) == ids(dataio.scan(Chunks(table)).sample(n, seed=seed))


@pytest.mark.parametrize("steps", [[s] for s in STEPS], ids=[s[0] for s in STEPS])
def test_every_step_is_one_that_changes_something(steps: list[Step]) -> None:
    table = pa.table({"id": range(24), **{n: pa.array([POOLS[n][k % len(POOLS[n])] for k in range(24)], TYPES[n]) for n in ("i", "s", "t", "b")}})
    query = dataio.scan(table).select("id", "i", "s", "t", "b")
    assert steps[0][1](query).to_polars().rows() != query.to_polars().rows() or steps[0][1](query).columns() != query.columns()
