"""Sources whose columns cost differently: the condition's columns are read first, the others only for the rows that are left.

A `LateScan` gives chunks of rows; a chunk reads any of its columns, of all its rows or of some. One driver runs a scan for everybody: as
record batches (training, `collect` of a plan) and as a scan of Polars, which hands down projection, condition and row limit. A condition is
taken apart where all of its parts have to hold: parts on cheap columns come first, and each is tested on the rows that the ones before left.
"""

from __future__ import annotations

import contextvars
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray
from polars.io.plugins import register_io_source

from dataio.engine.errors import OpError
from dataio.engine.expr import All, Cond
from dataio.engine.relational import BATCH_ROWS, batch_query, check_columns
from dataio.engine.shuffle import Recent, grouped
from dataio.engine.source import FIRST_PASS, ColumnarSource, Pass
from dataio.io.secrets import masked

from .conditions import Clause, clause_of_cond, clause_of_expr, conjuncts

logger = logging.getLogger("dataio.sources")

Rows = NDArray[np.int64]
T = TypeVar("T")
_NUMBER = "\0row"


# ------------------------------------------------------------------------------------------------------------ what is read


class LateChunk(ABC):
    """Rows that are read together. May be read by any thread, and more than once."""

    @property
    @abstractmethod
    def height(self) -> int:
        """Number of rows."""

    @property
    @abstractmethod
    def place(self) -> tuple[str, str]:
        """For messages: path or URI of the file, and which part of it ("" for all of it)."""

    @abstractmethod
    def read(self, names: Sequence[str], rows: Rows | None) -> pa.Table:
        """These columns (one at least), in this order and of the scan's types, of these rows (ascending numbers; None: all).

        Raises:
            OpError: damaged.
            OSError: missing or unreadable.
        """


class CutChunk(LateChunk):
    """Some rows of another chunk."""

    def __init__(self, below: LateChunk, rows: Rows) -> None:
        self._below, self._rows = below, rows

    @property
    def height(self) -> int:
        return len(self._rows)

    @property
    def place(self) -> tuple[str, str]:
        return self._below.place

    def read(self, names: Sequence[str], rows: Rows | None) -> pa.Table:
        return self._below.read(names, self._rows if rows is None else self._rows[rows])


@dataclass(frozen=True, slots=True)
class SkippedPart:
    """A part of a scan that was left out, as it is corrupt.

    Attributes:
        uri: the file.
        part: of it, such as "row group 3"; "" for all of it, or for all that comes behind the damage.
        rows: how many are missing; None where the damage hides it.
        error: what is wrong.
    """

    uri: str
    part: str
    rows: int | None
    error: str


class Skipped:
    """What a scan has left out so far; each part once, however often it is read. Each is logged (`dataio.sources`, a warning)."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], SkippedPart] = {}

    def add(self, uri: str, part: str, rows: int | None, error: BaseException | str) -> None:
        """Note a part."""
        uri = masked(uri)
        made = SkippedPart(uri, part, rows, str(error))
        if self._found.setdefault((uri, part), made) is made:
            count = "an unknown number of" if rows is None else f"{rows:,}"
            logger.warning("left out %s rows of %s%s: %s", count, uri, f" ({part})" if part else "", error)

    def parts(self) -> tuple[SkippedPart, ...]:
        """In the order in which they were met."""
        return tuple(self._found.values())


# -------------------------------------------------------------------------------------------------------------- conditions


@dataclass(frozen=True, slots=True)
class _Part:
    """One of the conditions that all have to hold."""

    columns: tuple[str, ...]
    test: Cond | pl.Expr
    clause: Clause | None

    def holds(self, table: pa.Table) -> NDArray[np.bool_]:
        """bool[rows]."""
        if isinstance(self.test, Cond):
            numbered = table.select(self.columns).append_column(_NUMBER, pa.array(np.arange(table.num_rows)))
            found = np.zeros(table.num_rows, np.bool_)
            for batch in batch_query(numbered.to_batches(), (_NUMBER,), self.test):
                found[batch.column(0).to_numpy()] = True
            return found
        if not self.columns:
            return np.full(table.num_rows, bool(pl.select(self.test).item()))
        frame = pl.DataFrame(pl.from_arrow(table.select(self.columns)))
        kept: NDArray[np.bool_] = frame.select((pl.repeat(value=True, n=pl.len()) & self.test).fill_null(value=False).alias("kept")).to_series().to_numpy()
        return kept


class Conditions:
    """A condition in parts that all have to hold."""

    def __init__(self, parts: Sequence[_Part] = ()) -> None:
        self.parts = tuple(parts)

    @classmethod
    def of(cls, condition: Cond | pl.Expr | None) -> Conditions:
        """The parts of a condition; None is always true."""
        if condition is None:
            return cls()
        if isinstance(condition, Cond):
            return cls([_Part(tuple(sorted(cond.columns())), cond, clause_of_cond(cond)) for cond in _children(condition)])
        found = [(expr, tuple(dict.fromkeys(expr.meta.root_names()))) for expr in conjuncts(condition)]
        return cls([_Part(names, expr, clause_of_expr(expr)) for expr, names in found])

    def __bool__(self) -> bool:
        return bool(self.parts)

    def columns(self) -> list[str]:
        """What the parts read."""
        return list(dict.fromkeys(name for part in self.parts for name in part.columns))

    def clauses(self) -> list[Clause]:
        """(column, op, value) of the parts that have this form; each rules out what statistics rule out for it."""
        return [part.clause for part in self.parts if part.clause is not None]

    def within(self, known: pa.Table) -> NDArray[np.bool_]:
        """bool[rows] of a table that lacks columns: false where the parts that read only its columns rule a row out."""
        found = np.ones(known.num_rows, np.bool_)
        for part in self.parts:
            if set(part.columns) <= set(known.column_names):
                found &= part.holds(known)
        return found

    def steps(self, cost: Callable[[str], int]) -> list[list[_Part]]:
        """The parts, those together whose dearest column costs the same, cheap ones first."""
        by_cost: dict[int, list[_Part]] = {}
        for part in self.parts:
            by_cost.setdefault(max(map(cost, part.columns), default=0), []).append(part)
        return [by_cost[key] for key in sorted(by_cost)]


def _children(condition: Cond) -> Iterator[Cond]:
    if isinstance(condition, All):
        for child in condition.children:
            yield from _children(child)
    else:
        yield condition


# -------------------------------------------------------------------------------------------------------------- the driver


class LateScan(ColumnarSource):
    """A source of chunks whose columns are read late.

    Attributes:
        skipped: what `on_corrupt="skip"` has left out so far; None where damage is raised.
        ahead: chunks that are read at a time.
        kept: chunks of `take` that stay in memory, where reading a few rows of one costs as much as all; 0 reads just the rows.
    """

    skipped: Skipped | None = None
    ahead: int = 1
    kept: int = 0
    _chunks: list[LateChunk] | None = None
    _starts: NDArray[np.int64]
    _recent: Recent[pa.Table] | None = None

    @abstractmethod
    def chunks(self, test: Conditions, pass_: Pass) -> Iterator[LateChunk]:
        """The chunks in the order of the rows. Those in which no row satisfies `test` may be left out."""

    def cost(self, name: str) -> int:
        """What a column costs; columns of a higher cost are read for the rows that conditions on the others leave."""
        return 0

    def indexed(self) -> bool:
        """Whether the heights of all chunks are known at little cost, so that rows have numbers."""
        return False

    def named(self, error: BaseException) -> Exception | None:
        """What is wrong with a file, where Polars failed in reading it by itself and did not name it; None when nothing is found."""
        return None

    # -------------------------------------------------------------------------------------------------------- as a source

    def length(self) -> int | None:
        return int(self._index()[-1]) if self.indexed() else None

    def record_batches(
        self,
        *,
        columns: tuple[str, ...] | None,
        predicate: Cond | None,
        limit: int | None,
        offset: int = 0,
        pass_: Pass = FIRST_PASS,
    ) -> Iterator[pa.RecordBatch]:
        check_columns(self.schema().names, columns, predicate)
        names = list(self.schema().names if columns is None else columns)
        test = Conditions.of(predicate)
        window = (offset, limit)
        tables = self._tables(names, test, after=window, pass_=pass_) if test else self._tables(names, test, before=window, pass_=pass_)
        for table in tables:
            yield from _batches(table)

    def lazy_frame(self, *, predicate: Cond | None = None, pass_: Pass = FIRST_PASS) -> pl.LazyFrame:
        known = self.schema()
        check_columns(known.names, None, predicate)
        first = Conditions.of(predicate)

        def read(columns: list[str] | None, condition: pl.Expr | None, rows: int | None, batch: int | None) -> Iterator[pl.DataFrame]:
            names = known.names if columns is None else columns
            window = (0, rows)  # Polars cuts before the condition that it hands down
            more = Conditions.of(condition)
            if rows is not None and first:
                wanted = list(dict.fromkeys([*names, *more.columns()]))
                found = self._tables(wanted, first, after=window, pass_=pass_)
                found = (table.filter(pa.array(more.within(table))) if more else table for table in found)
            else:
                found = self._tables(list(names), Conditions([*first.parts, *more.parts]), before=window, pass_=pass_)
            for table in found:
                yield _frame(table, names)

        schema = pl.DataFrame(pl.from_arrow(known.empty_table())).schema
        return register_io_source(read, schema=schema, is_pure=True, explain_name=type(self).__name__, explain_detail=self.describe())

    def take(self, rows: Sequence[int], columns: tuple[str, ...] | None) -> pa.RecordBatch | None:
        if not self.indexed():
            return None
        names = list(self.schema().names if columns is None else columns)
        schema = pa.schema([self.schema().field(name) for name in names])
        if not len(rows) or not names:  # the first asks only whether it can be done
            return empty_batch(len(rows)) if not names else pa.RecordBatch.from_pylist([], schema=schema)
        starts = self._index()
        assert self._chunks is not None
        numbers = np.asarray(rows, np.int64)
        owners = np.searchsorted(starts, numbers, side="right") - 1
        parts, places = [], []
        for owner, at in grouped(owners):
            inside = numbers[at] - starts[owner]
            order = np.argsort(inside, kind="stable")
            parts.append(self._taken(int(owner), names, inside[order]))
            places.append(at[order])
        table = pa.concat_tables(parts)
        back = np.argsort(np.concatenate(places), kind="stable")
        if not np.array_equal(back, np.arange(len(back))):
            table = table.take(pa.array(back))
        return table.combine_chunks().to_batches()[0]

    def group_starts(self) -> NDArray[np.int64] | None:
        return self._index() if self.kept and self.indexed() else None

    def _taken(self, owner: int, names: list[str], rows: Rows) -> pa.Table:
        assert self._chunks is not None
        chunk = self._chunks[owner]
        if not self.kept:
            wanted, again = np.unique(rows, return_inverse=True)
            found = chunk.read(names, wanted)
            return found if len(wanted) == len(rows) else found.take(pa.array(again))
        if self._recent is None:
            self._recent = Recent(self.kept)
        return self._recent.get((owner, tuple(names)), lambda: chunk.read(names, None)).take(pa.array(rows))

    def _index(self) -> NDArray[np.int64]:
        """Number of the first row of each chunk, and of all rows."""
        self.all_chunks()
        return self._starts

    def all_chunks(self) -> list[LateChunk]:
        """All chunks, kept; of a source whose rows have numbers."""
        if self._chunks is None:
            chunks = list(self.chunks(Conditions(), FIRST_PASS))
            self._starts = np.cumsum([0, *(chunk.height for chunk in chunks)], dtype=np.int64)
            self._chunks = chunks
        return self._chunks

    def __getstate__(self) -> dict[str, Any]:
        """Without what is open or in memory, which another process reads anew."""
        return {name: value for name, value in self.__dict__.items() if name not in ("_chunks", "_starts", "_recent")}

    # ------------------------------------------------------------------------------------------------------------ running

    def _tables(
        self,
        names: list[str],
        test: Conditions,
        *,
        before: tuple[int, int | None] = (0, None),
        after: tuple[int, int | None] = (0, None),
        pass_: Pass,
    ) -> Iterator[pa.Table]:
        """The rows that satisfy `test`, out of the window `before` it, cut to the window `after` it: offset and number of rows."""
        offset, limit = before
        skip, left = after
        # Where a number of rows ends the scan, and what a chunk gives is not known before it is read, chunks are read one by one.
        single = left is not None or (limit is not None and self.skipped is not None)

        def jobs() -> Iterator[Callable[[], pa.Table | None]]:
            nonlocal offset, limit
            if limit == 0 or left == 0:
                return
            for chunk in self.chunks(test, pass_):
                part, start, count = chunk, 0, 0
                if offset or limit is not None:
                    if (height := self._height(chunk)) is None:
                        continue
                    start = min(offset, height)
                    offset -= start
                    count = height - start if limit is None else min(height - start, limit)
                    if not count:
                        continue
                    if count < height:
                        part = CutChunk(chunk, np.arange(start, start + count, dtype=np.int64))
                yield partial(job, chunk, part)
                if limit is not None:
                    limit -= count
                if limit == 0 or left == 0:
                    return

        def job(chunk: LateChunk, part: LateChunk) -> pa.Table | None:
            nonlocal limit
            try:
                return self._read(part, names, test, None if left is None else skip + left)
            except OpError as error:
                if self.skipped is None:
                    raise
                if self._height(chunk) is not None:
                    self.skipped.add(*chunk.place, chunk.height, error)
                if limit is not None:  # rows that were left out fill no window
                    limit += part.height
                return None

        for table in in_order(jobs(), 1 if single else self.ahead):
            if table is None:
                continue
            if skip:
                passed = min(skip, table.num_rows)
                table, skip = _cut(table, passed, None), skip - passed
            if left is not None:
                table = _cut(table, 0, left)
                left -= table.num_rows
            if table.num_rows:
                yield table

    def _height(self, chunk: LateChunk) -> int | None:
        """Rows of a chunk; None where it is too damaged to tell, and skipped."""
        try:
            return chunk.height
        except OpError as error:
            if self.skipped is None:
                raise
            self.skipped.add(*chunk.place, None, error)
            return None

    def _read(self, chunk: LateChunk, names: list[str], test: Conditions, most: int | None) -> pa.Table | None:
        """The columns of the rows of one chunk that satisfy `test`, the first `most` of them; None without any."""
        rows: Rows | None = None
        table: pa.Table | None = None
        for step in test.steps(self.cost):
            table = _with(table, chunk, [name for part in step for name in part.columns], rows)
            if table is None:  # no part reads a column
                table = _rows_only(chunk.height)
            mask = np.ones(table.num_rows, np.bool_)
            for part in step:
                mask &= part.holds(table)
            if not mask.any():
                return None
            if not mask.all():
                kept = np.flatnonzero(mask)
                rows = kept if rows is None else rows[kept]
                table = table.filter(pa.array(mask))
        if most is not None:
            count = chunk.height if table is None else table.num_rows
            if count > most:
                rows = np.arange(most, dtype=np.int64) if rows is None else rows[:most]
                table = None if table is None else table.slice(0, most)
        table = _with(table, chunk, names, rows)
        if table is None:
            return _rows_only(chunk.height if rows is None else len(rows))
        return table.select(names) if names else _rows_only(table.num_rows)


def _with(table: pa.Table | None, chunk: LateChunk, names: Sequence[str], rows: Rows | None) -> pa.Table | None:
    """The table with the columns that it lacks."""
    missing = [name for name in dict.fromkeys(names) if table is None or name not in table.column_names]
    if not missing:
        return table
    more = chunk.read(missing, rows)
    if table is None or not table.num_columns:
        return more
    for name in missing:
        table = table.append_column(more.schema.field(name), more.column(name))
    return table


def _frame(table: pa.Table, names: Sequence[str]) -> pl.DataFrame:
    """These columns as a Polars frame; one without columns keeps its number of rows."""
    if names:
        return pl.DataFrame(pl.from_arrow(table)).select(names)
    return pl.DataFrame({"": pl.repeat(None, table.num_rows, eager=True)}).drop("")


def _rows_only(rows: int) -> pa.Table:
    return pa.table({"": pa.nulls(rows)}).select([])  # the only table without columns that keeps its number of rows


def _cut(table: pa.Table, start: int, count: int | None) -> pa.Table:
    if table.num_columns:
        return table.slice(start, count)
    left = max(0, table.num_rows - start)
    return _rows_only(left if count is None else min(left, count))


def empty_batch(rows: int) -> pa.RecordBatch:
    """A record batch without columns that keeps its number of rows."""
    return pa.RecordBatch.from_struct_array(pa.array([{}] * rows, pa.struct([])))


def _batches(table: pa.Table) -> Iterator[pa.RecordBatch]:
    if table.num_columns:
        yield from table.to_batches(max_chunksize=BATCH_ROWS)
        return
    for start in range(0, table.num_rows, BATCH_ROWS):
        yield empty_batch(min(BATCH_ROWS, table.num_rows - start))


def in_order(jobs: Iterator[Callable[[], T]], most: int) -> Iterator[T]:
    """The results of jobs in their order; as results are taken, up to `most` of them run at a time on threads.

    The first is waited for alone, so that who needs only that pays for no other. With `most` 1 each runs when it is asked for.
    """
    if most <= 1:
        for job in jobs:
            yield job()
        return
    pool = ThreadPoolExecutor(most, "dataio-scan")
    running: deque[Future[T]] = deque()
    allowed = 1
    try:
        ended = False
        while True:
            while not ended and len(running) < allowed:
                following = next(jobs, None)
                if following is None:
                    ended = True
                    break
                running.append(pool.submit(contextvars.copy_context().run, following))
            if not running:
                return
            yield running.popleft().result()
            allowed = min(most, allowed + 1)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
