"""A `ParquetQuery` as a columnar source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from dataio.engine.expr import Cond
from dataio.engine.relational import narrowed
from dataio.engine.source import FIRST_PASS, ColumnarSource, Pass
from dataio.formats.inputs import local_file

from .columnar import ArrowSource, DatasetSource

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

    def lazy_frame(self, *, predicate: Cond | None = None, pass_: Pass = FIRST_PASS) -> pl.LazyFrame:
        found = _frame(self._query, predicate)
        return super().lazy_frame(predicate=predicate, pass_=pass_) if found is None else found

    def row_groups(self, groups: Sequence[int]) -> ColumnarSource:
        return _grouped(self._query, groups)


def _grouped(query: ParquetQuery, groups: Sequence[int]) -> ColumnarSource:
    kept = groups if query._groups is None else [group for group in query._groups if group in set(groups)]
    source = ParquetQuerySource(query.row_groups(kept))
    source.schema()  # an IndexError for one that is not there
    return source


class ParquetQuerySource(ArrowSource):
    """The rows of a query, row group by row group. Only columns that the plan asks for are read."""

    def __init__(self, query: ParquetQuery) -> None:
        self._query = query
        self._schema: pa.Schema | None = None

    def describe(self) -> str:
        return f"{self._query!r}: columns {', '.join(self.schema().names)}"

    def length(self) -> int | None:
        """Known where the footer tells it: without conditions."""
        query = self._query
        return None if query._conditions or query._callables else query.count()

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
