"""What Polars makes of a plan, run once and kept: in memory while it is small, else in a file without a name."""

from __future__ import annotations

import mmap
import tempfile
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from .expr import Cond
from .plan import Plan, record_count
from .source import FIRST_PASS, ColumnarSource, Pass

IN_MEMORY = 64 << 20
"""Bytes of a result beyond which it goes to a file."""


class Settled(ColumnarSource):
    """The rows of a plan whose order or number no single row decides: groups, joins, sorts of files. It runs once for the columns that are
    asked for, by Polars' streaming engine; rows are then read by number. Equal where the plans are."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._schema: pa.Schema | None = None
        self._length: int | None = None
        self._tables: list[pa.Table] = []  # the last ones
        self._lock = threading.Lock()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Settled) and self._plan == other._plan

    def __hash__(self) -> int:
        return hash(self._plan)

    def __reduce__(self) -> tuple[type[Settled], tuple[Plan]]:
        return type(self), (self._plan,)

    def describe(self) -> str:
        from .relational import plan_title

        return plan_title(self._plan)

    def length(self) -> int:
        if self._length is None:
            self._length = record_count(self._plan)
        if self._length is None:
            import polars as pl

            from .relational import lazy_plan

            self._length = int(lazy_plan(self._plan).select(pl.len()).collect(engine="streaming").item())
        return self._length

    def schema(self) -> pa.Schema:
        if self._schema is None:
            from .relational import plan_schema

            self._schema = plan_schema(self._plan)
        return self._schema

    def record_batches(
        self,
        *,
        columns: tuple[str, ...] | None,
        predicate: Cond | None,
        limit: int | None,
        offset: int = 0,
        pass_: Pass = FIRST_PASS,
    ) -> Iterator[pa.RecordBatch]:
        from .relational import BATCH_ROWS, batch_query, check_columns, needed

        check_columns(self.schema().names, columns, predicate)
        table = self._table(needed(columns, predicate))
        if predicate is None:
            table, offset = table.slice(offset), 0
        return batch_query(table.to_batches(max_chunksize=BATCH_ROWS), columns, predicate, offset, limit)

    def take(self, rows: Sequence[int], columns: tuple[str, ...] | None) -> pa.RecordBatch:
        schema = self.schema() if columns is None else pa.schema([self.schema().field(name) for name in columns])
        if not len(rows):
            return pa.RecordBatch.from_pylist([], schema=schema)
        from .relational import taken

        return taken(self._table(schema.names), rows)

    def _table(self, columns: Sequence[str] | None) -> pa.Table:
        names = list(self.schema().names if columns is None else columns)
        with self._lock:
            for table in self._tables:
                if set(names) <= set(table.column_names):
                    return table.select(names)
            self._tables = [*self._tables[-1:], self._run(names)]
            self._length = self._tables[-1].num_rows
            return self._tables[-1]

    def _run(self, names: list[str]) -> pa.Table:
        from .relational import lazy_plan, lazy_query

        schema = pa.schema([self.schema().field(name) for name in names])
        return kept(lazy_query(lazy_plan(self._plan), names), schema)


def kept(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    """The batches as one table: in memory up to `IN_MEMORY` bytes, else views of a mapped file that goes with them and leaves no name."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        if size > IN_MEMORY:
            break
    else:
        return pa.Table.from_batches(held, schema)
    with tempfile.TemporaryFile(prefix="dataio-") as file:
        with pa.ipc.new_file(file, schema) as writer:
            for batch in held:
                writer.write_batch(batch)
            held.clear()
            for batch in batches:
                writer.write_batch(batch)
        file.flush()
        mapped: Any = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)  # stays when the file is closed
    return pa.ipc.open_file(pa.py_buffer(mapped)).read_all()
