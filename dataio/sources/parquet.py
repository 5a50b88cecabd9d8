"""A `ParquetQuery` as a columnar source."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dataio.engine.expr import Cond
from dataio.engine.query_rows import Kept, by_number, kept_groups, numbers_at
from dataio.engine.relational import narrowed, taken
from dataio.engine.shuffle import Recent, grouped
from dataio.engine.source import FIRST_PASS, ColumnarSource, Pass
from dataio.formats.inputs import local_file
from dataio.formats.tables.parquet_file import ParquetSource, starts_of

from .columnar import ArrowSource, DatasetSource
from .marks import FileMarks

if TYPE_CHECKING:
    import polars as pl
    import pyarrow.dataset as pds

    from dataio.parquet_query import ParquetQuery


def query_source(query: ParquetQuery) -> ColumnarSource:
    """The source of a query; of a whole local file one that also gives rows by number."""
    path = local_file(query.path)
    if path is not None and query.is_whole_file():
        import pyarrow.dataset as pds

        return ParquetFileSource(pds.dataset(path, format="parquet"), query)
    return ParquetQuerySource(query)


def _frame(query: ParquetQuery, predicate: Cond | None) -> pl.LazyFrame | None:
    """The rows of a query as Polars scans the file, None where it does not do that alike."""
    with query._run() as run:
        return None if run.polars is None else narrowed(run.polars, None, predicate, 0, None)


class ParquetFileSource(DatasetSource):
    """All rows of a local file."""

    def __init__(self, dataset: pds.Dataset, query: ParquetQuery) -> None:
        super().__init__(dataset, repr(query))
        self._query = query
        self._marks = marks_of(query.path)

    def lazy_frame(self, *, predicate: Cond | None = None, pass_: Pass = FIRST_PASS) -> pl.LazyFrame:
        found = _frame(self._query, predicate)
        return super().lazy_frame(predicate=predicate, pass_=pass_) if found is None else found

    def row_groups(self, groups: Sequence[int]) -> ColumnarSource:
        return _grouped(self._query, groups)

    def order_identity(self) -> Any:
        return self._marks.identity()

    def check(self) -> None:
        self._marks.check()


def _grouped(query: ParquetQuery, groups: Sequence[int]) -> ColumnarSource:
    wanted = set(groups)
    kept = groups if query._groups is None else [group for group in query._groups if group in wanted]
    source = ParquetQuerySource(query.row_groups(kept))
    source.schema()  # an IndexError for one that is not there
    return source


def marks_of(path: Any) -> FileMarks:
    """Of the file that a query reads; of bytes and readers there is nothing to note."""
    return FileMarks([os.fsdecode(os.fspath(path))] if isinstance(path, (str, os.PathLike)) else [])


class ParquetQuerySource(ArrowSource):
    """The rows of a query, row group by row group. Only columns that the plan asks for are read.

    Rows have numbers, unless a callable chooses them: which ones the conditions leave is worked out when it is first asked for.
    """

    _KEPT_GROUPS = 8  # row groups in memory: those of a window of shuffled blocks

    def __init__(self, query: ParquetQuery) -> None:
        self._query = query
        self._schema: pa.Schema | None = None
        self._marks = marks_of(query.path)
        self._kept: Kept | None = None
        self._starts = np.zeros(1, np.int64)
        self._file: ParquetSource | None = None
        self._read: Recent[pa.Table] = Recent(self._KEPT_GROUPS)
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[ParquetQuerySource], tuple[ParquetQuery]]:
        return type(self), (self._query,)

    def __del__(self) -> None:
        file = getattr(self, "_file", None)
        if file is not None:
            file.close()

    def describe(self) -> str:
        return f"{self._query!r}: columns {', '.join(self.schema().names)}"

    @property
    def conditional(self) -> bool:
        """Whether conditions choose the rows, so that finding them may take the whole file."""
        return bool(self._query._conditions or self._query._callables)

    def length(self) -> int | None:
        """By the footer; with conditions their columns are read once for it. None with callables."""
        return None if self._query._callables else len(self._numbers())

    def order_identity(self) -> Any:
        query = self._query
        asked = repr(replace(query, path=b"", _columns=None)).partition(").")[2]  # without the path: a copy elsewhere will do
        return {"query": asked, "source": self._marks.identity() if isinstance(query.path, (str, os.PathLike)) else None}

    def check(self) -> None:
        self._marks.check()

    def group_starts(self) -> NDArray[np.int64] | None:
        return None if self._query._callables else kept_groups(self._numbers(), self._starts)

    def take(self, rows: Sequence[int], columns: tuple[str, ...] | None) -> pa.RecordBatch | None:
        if self._query._callables:
            return None
        names = self.schema().names if columns is None else list(columns)
        schema = pa.schema([self.schema().field(name) for name in names])
        if not len(rows):
            return pa.RecordBatch.from_pylist([], schema=schema)
        numbers = np.asarray(numbers_at(self._numbers(), rows), np.int64)
        parts, places = [], []
        for group, at in grouped(np.searchsorted(self._starts, numbers, side="right") - 1):
            table = self._read.get((group, tuple(names)), partial(self._load, group, names))
            parts.append(taken(table, numbers[at] - self._starts[group]))
            places.append(at)
        return taken(pa.Table.from_batches(parts, schema), np.argsort(np.concatenate(places), kind="stable"))

    def _load(self, group: int, names: list[str]) -> pa.Table:
        with self._lock:
            if self._file is None:
                self._file = ParquetSource(self._query.path)
            return self._file.read([group], names)

    def _numbers(self) -> Kept:
        """Numbers of the rows in the file."""
        with self._lock:
            if self._kept is None:
                self._marks.check()
                with self._query._run() as run:
                    self._starts = np.asarray(starts_of(run.source.metadata, range(run.source.metadata.num_row_groups)), np.int64)
                    self._kept = run.numbers()
            return self._kept

    def schema(self) -> pa.Schema:
        if self._schema is None:
            with self._query._run() as run:
                self._schema = run.schema()
        return self._schema

    def lazy_frame(self, *, predicate: Cond | None = None, pass_: Pass = FIRST_PASS) -> pl.LazyFrame:
        found = _frame(self._query, predicate)
        return super().lazy_frame(predicate=predicate, pass_=pass_) if found is None else found

    def row_groups(self, groups: Sequence[int]) -> ColumnarSource:
        return _grouped(self._query, groups)

    def record_batches(
        self,
        *,
        columns: tuple[str, ...] | None,
        predicate: Cond | None,
        limit: int | None,
        offset: int = 0,
        pass_: Pass = FIRST_PASS,
    ) -> Iterator[pa.RecordBatch]:
        if predicate is None and offset and not self._query._callables:  # the row groups before are not read
            return by_number(self, columns, offset, limit)
        return super().record_batches(columns=columns, predicate=predicate, limit=limit, offset=offset, pass_=pass_)

    def read(
        self, columns: list[str] | None, predicate: Cond | None, rows: int | None, offset: int
    ) -> Iterator[pa.RecordBatch]:
        query = self._query
        columns = columns or None  # without any, batches would lose their number of rows
        if columns is not None and not query._callables:  # callables get the columns that were selected
            query = query.select(columns)
        if offset or rows is not None:
            skipped, most = query._offset + offset, rows if query._limit is None else (query._limit if rows is None else min(rows, query._limit))
            query = query.slice(skipped, None if most is None else max(0, most - offset))
        with query._run() as run:
            for table in run.tables():
                yield from (table if columns is None else table.select(columns)).to_batches()
