"""Arrow streams on their way into files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

GATHERED = 128 << 20
"""Bytes of batches that are joined to one row group at most."""


def arrow_stream(table: Any, caller: str) -> pa.RecordBatchReader:
    """A table, frame, reader or query as a stream of record batches.

    Raises:
        TypeError: it has no `__arrow_c_stream__`, or gives a single column.
    """
    if isinstance(table, type) or not hasattr(table, "__arrow_c_stream__"):
        raise TypeError(
            f"{caller} takes a table with __arrow_c_stream__ (pyarrow, Polars, pandas, ...), got {type(table).__name__}"
        )
    try:
        return pa.RecordBatchReader.from_stream(table)
    except pa.ArrowInvalid as error:  # a Series or an array
        raise TypeError(f"{caller} takes a table; {type(table).__name__} gives no stream of record batches: {error}") from error


def gathered(stream: pa.RecordBatchReader, rows: int) -> Iterator[pa.Table]:
    """The batches of a stream joined, as chunks, to tables of `rows` rows, or of at most about `GATHERED` bytes."""
    parts: list[pa.RecordBatch] = []
    count = size = 0
    for batch in stream:
        while batch.num_rows:
            part = batch.slice(0, min(rows - count, _fitting(batch)))
            batch = batch.slice(part.num_rows)
            parts.append(part)
            count, size = count + part.num_rows, size + part.nbytes
            if count >= rows or size >= GATHERED:
                yield pa.Table.from_batches(parts, stream.schema)
                parts, count, size = [], 0, 0
    if parts:
        yield pa.Table.from_batches(parts, stream.schema)


def _fitting(batch: pa.RecordBatch) -> int:
    """Rows of a batch that take about `GATHERED` bytes."""
    return max(1, int(batch.num_rows) * GATHERED // max(int(batch.nbytes), GATHERED))
