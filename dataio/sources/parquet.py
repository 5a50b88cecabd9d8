"""A `ParquetQuery` as a columnar source."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from dataio.engine.expr import Cond
from dataio.engine.source import ColumnarSource
from dataio.formats.inputs import local_file

from .columnar import ArrowSource, DatasetSource

if TYPE_CHECKING:
    from dataio.parquet_query import ParquetQuery


def query_source(query: ParquetQuery) -> ColumnarSource:
    """The source of a query; of a whole local file one that also gives rows by number."""
    path = local_file(query.path)
    if path is not None and query.is_whole_file():
        import pyarrow.dataset as pds

        return DatasetSource(pds.dataset(path, format="parquet"), repr(query))
    return ParquetQuerySource(query)


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
