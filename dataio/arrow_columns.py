"""Tensors as Arrow columns, for sinks, Arrow functions and queries.

Tensors of one shape are `arrow.fixed_shape_tensor` columns, 0-d ones plain columns; ragged ones, and those of bool or without elements, structs of
`data` (list of elements, C order) and `shape` (list of int32). Library: pyarrow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from .engine.schema import OBJECT, TensorType


def tensor_type(dtype: Any, shape: Sequence[int]) -> pa.DataType:
    """The type of a column of tensors of this shape."""
    kind = pa.from_numpy_dtype(np.dtype(dtype))
    if not shape:
        return kind
    if not math.prod(shape) or pa.types.is_boolean(kind):  # Arrow's tensors have elements, and none of single bits
        return ragged_type(dtype)
    return pa.fixed_shape_tensor(kind, list(shape))


def ragged_type(dtype: Any) -> pa.DataType:
    """The type of a column of tensors that differ in shape."""
    return pa.struct([("data", pa.large_list(pa.from_numpy_dtype(np.dtype(dtype)))), ("shape", pa.list_(pa.int32()))])


def type_of_rows(known: TensorType) -> pa.DataType | None:
    """The type of a column of what is `known` before anything is read; None where the dtype is not known, or is that of Python values."""
    if known.dtype is None or known.dtype == OBJECT:
        return None
    if known.shape is None or None in known.shape:
        return ragged_type(known.dtype)
    return tensor_type(known.dtype, [n for n in known.shape if n is not None])


def is_ragged(kind: pa.DataType) -> bool:
    """Whether this is the type of ragged tensors, of some dtype."""
    return (
        pa.types.is_struct(kind)
        and [field.name for field in kind] == ["data", "shape"]
        and (pa.types.is_large_list(kind[0].type) or pa.types.is_list(kind[0].type))
        and pa.types.is_list(kind[1].type)
    )


def missing_column(kind: pa.DataType, count: int) -> pa.Array:
    """`count` nulls."""
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, pa.nulls(count, kind.storage_type))
    return pa.nulls(count, kind)


def dense_column(rows: np.ndarray, missing: np.ndarray | None = None) -> pa.Array:
    """`rows` [n, ...] as a column of their `tensor_type`, without a copy where they are contiguous; null where `missing` (bool[n])."""
    kind = tensor_type(rows.dtype, rows.shape[1:])
    if is_ragged(kind):
        return ragged_column([None if missing is not None and missing[i] else row for i, row in enumerate(rows)], rows.dtype)
    if rows.ndim == 1:
        return pa.array(rows, kind, mask=missing)
    mask = None if missing is None else pa.array(missing, pa.bool_())
    lists = pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(rows).reshape(-1)), math.prod(rows.shape[1:]), mask=mask)
    return pa.ExtensionArray.from_storage(kind, lists)


def ragged_column(values: Sequence[np.ndarray | None], dtype: Any) -> pa.Array:
    """Arrays of one dtype and any shapes as a column of their `ragged_type`; None is null."""
    lengths = [0 if v is None else v.size for v in values]
    flat = [v.reshape(-1) for v in values if v is not None]
    kind = pa.from_numpy_dtype(np.dtype(dtype))
    data = pa.LargeListArray.from_arrays(
        pa.array(np.cumsum([0, *lengths]), pa.int64()),
        pa.array(np.concatenate(flat), kind) if flat else pa.array([], kind),
    )
    shapes = pa.array([None if v is None else list(v.shape) for v in values], pa.list_(pa.int32()))
    mask = pa.array([v is None for v in values], pa.bool_())
    return pa.StructArray.from_arrays([data, shapes], ["data", "shape"], mask=mask)
