"""Rows as an Arrow table: shards of Parquet and Feather.

Tensors are columns as `dataio.arrow_columns` makes them; other values have the type that pyarrow infers. Library: pyarrow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ..arrow_columns import dense_column, ragged_column
from ..formats.tables.feather import write_feather
from ..formats.tables.parquet import write_parquet
from .manifest import SinkError
from .rows import Layout, Row


def table_of(rows: Sequence[Row], layout: Layout) -> pa.Table:
    """The table of one shard.

    Raises:
        SinkError: Arrow has no type for a field's elements, or not one for all its values.
    """
    columns = {}
    for name, stored in layout.items():
        values = [row.get(name) for row in rows]
        try:
            columns[name] = _column(values, stored)
        except (pa.ArrowException, TypeError) as error:
            raise SinkError(f"field {name!r} cannot be an Arrow column: {error}") from error
    return pa.table(columns)


def _column(values: list[Any], stored: dict[str, Any]) -> pa.Array:
    if stored["kind"] == "value":
        if "arrow" in stored:
            return pa.array(values, _type_named(stored["arrow"]))
        found = pa.array(values)
        if (name := str(found.type)) in _PLAIN:
            stored["arrow"] = name
        return found
    dtype = np.dtype(stored["dtype"])
    if stored["kind"] == "ragged":
        return ragged_column(values, dtype)
    blank = np.zeros(stored["shape"], dtype)
    missing = np.fromiter((v is None for v in values), np.bool_, len(values))
    rows = np.stack([blank if v is None else v for v in values]) if values else np.empty((0, *blank.shape), dtype)
    return dense_column(rows, missing if missing.any() else None)


_PLAIN = {str(t): t for t in (pa.string(), pa.binary(), pa.int64(), pa.float64(), pa.bool_())}
"""Types that the first shard settles for all; others are inferred shard by shard."""


def _type_named(name: str) -> pa.DataType:
    return _PLAIN[name]


def save_parquet(uri: str, rows: Sequence[Row], layout: Layout, options: dict[str, Any]) -> None:
    """Write one shard."""
    write_parquet(uri, table_of(rows, layout), **options)


def save_feather(uri: str, rows: Sequence[Row], layout: Layout, options: dict[str, Any]) -> None:
    """Write one shard."""
    write_feather(uri, table_of(rows, layout), **options)
