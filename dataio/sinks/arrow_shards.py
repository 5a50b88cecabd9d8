"""Rows as an Arrow table: shards of Parquet and Feather.

Tensors of one shape are `arrow.fixed_shape_tensor` columns, 0-d ones plain columns; ragged ones, and those of bool or without elements, structs of `data` (list of elements,
C order) and `shape` (list of int32). Other values have the type that pyarrow infers. Library: pyarrow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

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
    kind = pa.from_numpy_dtype(np.dtype(stored["dtype"]))
    if stored["kind"] == "ragged":
        return _ragged(values, kind)
    shape = stored["shape"]
    size = math.prod(shape)
    if not shape:
        return pa.array([None if v is None else v[()] for v in values], kind)
    if not size or pa.types.is_boolean(kind):  # Arrow's tensors have elements, and none of single bits
        return _ragged(values, kind)
    blank = np.zeros(size, np.dtype(stored["dtype"]))
    flat = np.concatenate([blank if v is None else v.reshape(-1) for v in values]) if values else blank[:0]
    mask = pa.array([v is None for v in values], pa.bool_())
    missing = any(v is None for v in values)
    lists = pa.FixedSizeListArray.from_arrays(pa.array(flat, kind), size, mask=mask if missing else None)
    return pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(kind, shape), lists)


def _ragged(values: list[Any], kind: pa.DataType) -> pa.Array:
    lengths = [0 if v is None else v.size for v in values]
    flat = [v.reshape(-1) for v in values if v is not None]
    data = pa.LargeListArray.from_arrays(
        pa.array(np.cumsum([0, *lengths]), pa.int64()),
        pa.array(np.concatenate(flat), kind) if flat else pa.array([], kind),
    )
    shapes = pa.array([None if v is None else list(v.shape) for v in values], pa.list_(pa.int32()))
    mask = pa.array([v is None for v in values], pa.bool_())
    return pa.StructArray.from_arrays([data, shapes], ["data", "shape"], mask=mask)


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
