"""`LateScan`: one driver for record batches and for Polars, which reads what a condition leaves and no more."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataio import cond
from dataio.engine.errors import OpError, SchemaError
from dataio.engine.expr import AnyOf, Cond
from dataio.engine.source import Pass
from dataio.sources.conditions import clause_of_cond, clause_of_expr, conjuncts
from dataio.sources.late import Conditions, LateChunk, LateScan, Rows, Skipped, in_order

COSTS = {"id": 0, "size": 1, "word": 2, "image": 3}
Read = tuple[int, tuple[str, ...], int]


class Chunk(LateChunk):
    def __init__(self, scan: Table, number: int, table: pa.Table) -> None:
        self._scan, self._number, self._table = scan, number, table

    @property
    def height(self) -> int:
        return int(self._table.num_rows)

    @property
    def place(self) -> tuple[str, str]:
        return "memory", f"part {self._number}"

    def read(self, names: Sequence[str], rows: Rows | None) -> pa.Table:
        assert names
        self._scan.read.append((self._number, tuple(names), self.height if rows is None else len(rows)))
        if self._number in self._scan.bad:
            raise OpError(f"part {self._number} is damaged")
        table = self._table.select(list(names))
        return table if rows is None else table.take(pa.array(rows))


class Table(LateScan):
    """A table in parts; notes (part, columns, rows) of each read."""

    def __init__(self, table: pa.Table, rows: int, ahead: int = 1, bad: Sequence[int] = (), skip: bool = False) -> None:
        self.table, self.rows, self.ahead, self.bad = table, rows, ahead, bad
        self.read: list[Read] = []
        self.skipped = Skipped() if skip else None

    def describe(self) -> str:
        return "table in parts"

    def schema(self) -> pa.Schema:
        return self.table.schema

    def cost(self, name: str) -> int:
        return COSTS[name]

    def indexed(self) -> bool:
        return self.skipped is None

    def chunks(self, test: Conditions, pass_: Pass) -> Iterator[LateChunk]:
        for number, start in enumerate(range(0, self.table.num_rows, self.rows)):
            yield Chunk(self, number, self.table.slice(start, self.rows))


def table(rows: int) -> pa.Table:
    return pa.table(
        {
            "id": pa.array(range(rows), pa.int64()),
            "size": pa.array([None if i % 7 == 3 else i % 5 for i in range(rows)], pa.int32()),
            "word": pa.array([None if i % 11 == 0 else "abc"[i % 3] * (i % 4) for i in range(rows)], pa.string()),
            "image": pa.array([bytes([i % 256]) * 3 for i in range(rows)], pa.large_binary()),
        }
    )


CONDITIONS: list[tuple[Cond, pl.Expr]] = [  # the same in both forms
    (cond.col("size").gt(2), pl.col("size") > 2),
    (cond.col("size").eq(None), pl.col("size").is_null()),
    (cond.col("id").lt(17) & cond.col("word").eq("bb"), (pl.col("id") < 17) & (pl.col("word") == "bb")),
    (cond.col("word").is_in(["a", "cc"]) | cond.col("size").le(0), pl.col("word").is_in(["a", "cc"]) | (pl.col("size") <= 0)),
    (cond.col("id").gt(4) & cond.col("id").lt(9) & cond.col("size").ge(1), (pl.col("id") > 4) & (pl.col("id") < 9) & (pl.col("size") >= 1)),
    (~cond.col("size").is_null(), pl.col("size").is_not_null()),
    (cond.col("id").lt(0), pl.col("id") < 0),
    (cond.col("id").ge(0), pl.lit(value=True)),
    (AnyOf(()), pl.lit(value=False)),
]
SOME = st.sampled_from(CONDITIONS)
NAMES = st.lists(st.sampled_from(list(COSTS)), min_size=1, max_size=4, unique=True)
WINDOW = st.tuples(st.integers(0, 40), st.none() | st.integers(0, 40))


@settings(max_examples=150, deadline=None)
@given(rows=st.integers(0, 50), part=st.integers(1, 20), ahead=st.integers(1, 3), names=NAMES, both=st.none() | SOME, window=WINDOW)
def test_record_batches_are_what_polars_gives_for_the_whole_table(rows, part, ahead, names, both, window) -> None:  # type: ignore[no-untyped-def]
    whole = table(rows)
    scan = Table(whole, part, ahead)
    offset, limit = window
    batches = list(scan.record_batches(columns=tuple(names), predicate=both and both[0], limit=limit, offset=offset))
    frame = pl.DataFrame(pl.from_arrow(whole))
    expected = (frame if both is None else frame.filter(both[1])).slice(offset, limit).select(names)
    found = pa.Table.from_batches(batches, pa.schema([whole.schema.field(name) for name in names]))
    assert found.to_pylist() == expected.rows(named=True)


@settings(max_examples=150, deadline=None)
@given(
    rows=st.integers(0, 50), part=st.integers(1, 20), names=NAMES, first=st.none() | SOME, one=st.none() | SOME, two=st.none() | SOME, window=WINDOW,
    engine=st.sampled_from(["in-memory", "streaming"]),
)  # fmt: skip
def test_polars_gets_the_same_rows_from_a_scan_as_from_a_frame(rows, part, names, first, one, two, window, engine) -> None:  # type: ignore[no-untyped-def]
    whole = table(rows)

    def query(frame: pl.LazyFrame) -> pl.LazyFrame:
        frame = frame if one is None else frame.filter(one[1])
        frame = frame.slice(*window)
        return (frame if two is None else frame.filter(two[1])).select(names)

    frame = pl.DataFrame(pl.from_arrow(whole)).lazy()
    expected = query(frame if first is None else frame.filter(first[1])).collect()
    found = query(Table(whole, part).lazy_frame(predicate=first and first[0])).collect(engine=engine)
    assert found.rows() == expected.rows()
    assert found.schema == expected.schema


@settings(max_examples=60, deadline=None)
@given(part=st.integers(1, 9), names=NAMES, rows=st.lists(st.integers(0, 29), max_size=12), kept=st.sampled_from([0, 2]))
def test_take_gives_rows_by_number_in_any_order(part, names, rows, kept) -> None:  # type: ignore[no-untyped-def]
    scan = Table(table(30), part)
    scan.kept = kept
    found = scan.take(rows, tuple(names))
    assert found is not None
    assert found.to_pylist() == scan.table.select(names).take(pa.array(rows, pa.int64())).to_pylist()


def test_the_other_columns_are_read_only_for_rows_that_are_left() -> None:
    scan = Table(table(30), 10)
    frame = scan.lazy_frame().filter((pl.col("size") == 4) & (pl.col("id") >= 20)).select("image").collect()
    assert frame["image"].to_list() == [bytes([29]) * 3]
    # The cheap column first, the next one where that left rows; the dear one for the row that is left.
    assert scan.read == [(0, ("id",), 10), (1, ("id",), 10), (2, ("id",), 10), (2, ("size",), 10), (2, ("image",), 1)]


def test_a_condition_from_the_plan_reads_just_as_late() -> None:
    scan = Table(table(30), 10)
    condition = cond.col("word").eq("cc") & cond.col("id").lt(5)  # rows 2, 14, 26
    list(scan.record_batches(columns=("image",), predicate=condition, limit=None))
    assert scan.read == [(0, ("id",), 10), (0, ("word",), 5), (0, ("image",), 1), (1, ("id",), 10), (2, ("id",), 10)]


@pytest.mark.parametrize("run", ["batches", "polars"])
def test_a_row_limit_ends_the_scan(run: str) -> None:
    scan = Table(table(50), 10)
    if run == "batches":
        found = sum(batch.num_rows for batch in scan.record_batches(columns=("image",), predicate=cond.col("id").gt(12), limit=3))
    else:
        found = scan.lazy_frame().select("image").head(13).collect().height
        assert scan.read == [(0, ("image",), 10), (1, ("image",), 3)]
    assert found == (3 if run == "batches" else 13)
    assert {number for number, _, _ in scan.read} <= {0, 1}


def test_rows_that_are_skipped_are_not_read() -> None:
    scan = Table(table(50), 10)
    list(scan.record_batches(columns=("image",), predicate=None, limit=5, offset=28))
    assert scan.read == [(2, ("image",), 2), (3, ("image",), 3)]


def test_a_count_reads_the_cheapest_column() -> None:
    scan = Table(table(50), 10)
    assert scan.lazy_frame().select(pl.len()).collect().item() == 50
    assert {names for _, names, _ in scan.read} <= {("id",)}


def test_without_columns_batches_keep_their_rows() -> None:
    batches = list(Table(table(25), 10).record_batches(columns=(), predicate=cond.col("id").lt(12), limit=None))
    assert sum(batch.num_rows for batch in batches) == 12
    assert sum(batch.num_rows for batch in Table(table(25), 10).record_batches(columns=(), predicate=None, limit=None)) == 25


def test_damage_is_raised_as_it_is_in_both_forms() -> None:
    scan = Table(table(30), 10, bad=[1])
    with pytest.raises(OpError, match="part 1 is damaged"):
        list(scan.record_batches(columns=None, predicate=None, limit=None))
    with pytest.raises(OpError, match="part 1 is damaged"):
        scan.lazy_frame().collect(engine="streaming")


def test_skipped_parts_are_counted_once_and_fill_no_limit(caplog: pytest.LogCaptureFixture) -> None:
    scan = Table(table(30), 10, bad=[1], skip=True)
    for _ in range(2):
        batches = list(scan.record_batches(columns=("id",), predicate=None, limit=15))
        assert [row for batch in batches for row in batch.column(0).to_pylist()] == [*range(10), *range(20, 25)]
    assert scan.lazy_frame().select("id").collect()["id"].to_list() == [*range(10), *range(20, 30)]
    assert [(part.uri, part.part, part.rows, part.error) for part in scan.skipped.parts()] == [("memory", "part 1", 10, "part 1 is damaged")]  # type: ignore[union-attr]
    assert [r.message for r in caplog.records] == ["left out 10 rows of memory (part 1): part 1 is damaged"]
    assert (scan.length(), scan.take([0], None)) == (None, None)  # rows have no numbers then


def test_columns_that_are_not_there() -> None:
    with pytest.raises(SchemaError, match=r"'idd'.*did you mean 'id'"):
        list(Table(table(3), 2).record_batches(columns=("idd",), predicate=None, limit=None))


def test_results_come_in_order_and_start_slowly() -> None:
    started: list[int] = []
    release = threading.Event()

    def job(number: int) -> Callable[[], int]:
        def run() -> int:
            started.append(number)
            if number:
                release.wait(10)
            return number

        return run

    results = in_order(iter([job(number) for number in range(6)]), 3)
    assert next(results) == 0
    assert started == [0]  # whoever needs one pays for one
    release.set()
    assert list(results) == [1, 2, 3, 4, 5]


def test_leaving_early_ends_the_threads() -> None:
    results = in_order(iter([lambda n=n: n for n in range(100)]), 4)  # type: ignore[misc]
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    results.close()  # type: ignore[attr-defined]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("dataio-scan")]


def test_an_error_of_a_job_comes_in_its_place() -> None:
    def bad() -> int:
        raise ValueError("third")

    results = in_order(iter([lambda: 1, lambda: 2, bad, lambda: 4]), 4)
    assert [next(results), next(results)] == [1, 2]
    with pytest.raises(ValueError, match="third"):
        next(results)


CLAUSES: list[tuple[pl.Expr, Any]] = [
    (pl.col("a") > 1, ("a", ">", 1)),
    (pl.lit(1) < pl.col("a"), None),  # seldom written, and only a saving
    (pl.col("a") == "x", ("a", "==", "x")),
    (pl.col("a").is_null(), ("a", "is_null", None)),
    (pl.col("a").is_not_null(), ("a", "is_not_null", None)),
    (pl.col("a") != 1, None),
    (pl.col("a") > 1.5, None),  # NaN is larger to Polars than any statistics say
    (pl.col("a") + 1 > 1, None),
    (pl.col("a") > pl.col("b"), None),
    (pl.col("a").cast(pl.Float64) > 1, None),
    (pl.lit(value=True), None),
]


@pytest.mark.parametrize(("expr", "clause"), CLAUSES)
def test_clauses_of_expressions(expr: pl.Expr, clause: Any) -> None:
    assert clause_of_expr(pl.Expr.deserialize(expr.meta.serialize())) == clause


def test_clauses_of_conditions() -> None:
    assert clause_of_cond(cond.col("a").ge(2.5)) == ("a", ">=", 2.5)
    assert clause_of_cond(cond.col("a").is_not_null()) == ("a", "is_not_null", None)
    assert clause_of_cond(cond.col("a").ne(2)) is None
    assert clause_of_cond(cond.col("a").eq(True)) is None


def test_conjuncts_are_taken_apart_however_they_were_put_together() -> None:
    parts = [pl.col("a") > 1, pl.col("b") == "x", pl.col("c").is_null(), (pl.col("a") < 9) | (pl.col("b") == "y")]
    for whole in (parts[0] & parts[1] & parts[2] & parts[3], pl.all_horizontal(parts), (parts[0] & parts[1]) & (parts[2] & parts[3])):
        found = conjuncts(pl.Expr.deserialize(whole.meta.serialize()))
        assert len(found) == 4
        assert all(any(one.meta.eq(part) for one in found) for part in parts)


def test_parts_within_known_columns() -> None:
    known = pa.table({"year": [2020, 2021, None]})
    test = Conditions.of((pl.col("year") > 2020) & (pl.col("x") > 1))
    assert test.within(known).tolist() == [False, True, False]
    assert Conditions.of(pl.col("x") > 1).within(known).tolist() == [True] * 3
    assert np.array_equal(Conditions.of(cond.col("year").eq(2020)).within(known), [True, False, False])
