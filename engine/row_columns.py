"""Python records as columns: what a query does with a source of dicts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any
from weakref import WeakKeyDictionary

import pyarrow as pa

from .errors import SchemaError
from .expr import Cond
from .source import FIRST_PASS, ColumnarSource, Pass, RowSource

_KNOWN: WeakKeyDictionary[RowSource, pa.Schema] = WeakKeyDictionary()


class RowColumns(ColumnarSource):
    """Mappings of a row source, a column for each key of the first `EXAMPLES` records, which also settle the types."""

    EXAMPLES, BATCH_ROWS = 1024, 1024

    def __init__(self, rows: RowSource) -> None:
        self._rows = rows
        self._schema: pa.Schema | None = None

    @staticmethod
    def of(rows: RowSource) -> RowColumns:
        """The columns of a source; the types are found once for each."""
        found = _KNOWN.get(rows)
        made = RowColumns(rows)
        if found is None:
            _KNOWN[rows] = made.schema()
        made._schema = _KNOWN[rows]
        return made

    def describe(self) -> str:
        return self._rows.describe()

    def length(self) -> int | None:
        return self._rows.length()

    def schema(self) -> pa.Schema:
        """The columns; a record that lacks one has a null.

        Raises:
            SchemaError: a record is no mapping of text to values, or a field has values of several types.
        """
        if self._schema is None:
            records = [self._checked(record, at) for at, record in enumerate(islice(self._rows.rows(FIRST_PASS), self.EXAMPLES))]
            names = dict.fromkeys(name for record in records for name in record)
            fields = []
            for name in names:
                try:
                    fields.append(pa.field(name, pa.array([record.get(name) for record in records]).type))
                except (pa.ArrowException, TypeError, OverflowError) as error:
                    raise SchemaError(f"{self.describe()}: field {name!r} has no Arrow type for all its values: {error}") from error
            self._schema = pa.schema(fields)
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
        from .relational import batch_query, check_columns, needed

        check_columns(self.schema().names, columns, predicate)
        read = needed(columns, predicate)
        schema = self.schema() if read is None else pa.schema([self.schema().field(name) for name in read])
        return batch_query(self._batches(schema, pass_), columns, predicate, offset, limit)

    def _batches(self, schema: pa.Schema, pass_: Pass) -> Iterator[pa.RecordBatch]:
        records, start = self._rows.rows(pass_), 0
        while part := list(islice(records, self.BATCH_ROWS)):
            rows = [self._checked(record, start + at) for at, record in enumerate(part)]
            arrays = [self._column(field, rows, start) for field in schema]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)
            start += len(part)

    def _column(self, field: pa.Field, rows: list[Mapping[str, Any]], start: int) -> pa.Array:
        values = [row.get(field.name) for row in rows]
        try:
            return pa.array(values, field.type)
        except (pa.ArrowException, TypeError, OverflowError):
            for at, value in enumerate(values):  # which one it is
                try:
                    pa.array([value], field.type)
                except (pa.ArrowException, TypeError, OverflowError) as error:
                    raise SchemaError(
                        f"{self.describe()}: field {field.name!r} of record {start + at} is no {field.type}, the type of the first "
                        f"{self.EXAMPLES} records: {error}"
                    ) from error
            raise

    def _checked(self, record: Any, number: int) -> Mapping[str, Any]:
        if not isinstance(record, Mapping):
            raise SchemaError(f"{self.describe()}: record {number} is a {type(record).__name__}; columns are made of dicts")
        if any(not isinstance(name, str) for name in record):
            raise SchemaError(f"{self.describe()}: record {number} has a key that is no str; columns are made of dicts with names")
        return record
