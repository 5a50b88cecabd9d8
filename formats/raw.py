"""Values as they are: the `bytes`, `array` and `passthrough` decoders, and the view that every decoder reads through."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy as np

from ..engine.errors import MissingFieldError, OpError
from ..engine.registry import register_kernel, register_op
from ..engine.schema import OBJECT, TensorType

DType: TypeAlias = Literal[
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64"
]
BytesLike: TypeAlias = "bytes | bytearray | memoryview | np.ndarray"


def as_view(data: Any) -> memoryview:
    """The bytes of `data` without a copy.

    Args:
        data: bytes, bytearray, a contiguous memoryview or uint8[n].

    Raises:
        OpError: not bytes-like, or not contiguous.
    """
    try:
        view = memoryview(data)
        return view if view.ndim == 1 and view.format == "B" else view.cast("B")
    except TypeError as error:
        raise OpError(f"a decoder wants bytes, a memoryview or uint8[n], got {type(data).__name__}") from error


def _flat_bytes(given: TensorType, **_: Any) -> TensorType:
    return TensorType((None,), "uint8")


def _objects(given: TensorType, **_: Any) -> TensorType:
    return TensorType(None, OBJECT)


@register_op("bytes", kind="decoder", infer=_flat_bytes)
def decode_bytes(data: BytesLike) -> np.ndarray:
    """The encoded bytes themselves.

    Returns:
        uint8[n], a copy that owns its memory; uint8[0] for empty data.
    """
    if isinstance(data, np.ndarray) and data.flags.owndata and data.dtype == np.uint8 and data.ndim == 1:
        return data  # a file that was read for this record: nobody else holds it
    return np.array(np.frombuffer(as_view(data), np.uint8)) if len(data) else np.empty(0, np.uint8)


@register_kernel("bytes", "batched", kind="decoder")
def decode_bytes_column(values: list[BytesLike]) -> list[np.ndarray]:
    """One uint8 array per value; equal lengths are stacked where the batch is put together."""
    return [decode_bytes(value) for value in values]


@register_op("passthrough", kind="decoder", reads=False, infer=_objects, method="passthrough")
def passthrough(value: Any, *, field: str | None = None) -> Any:
    """The slot's Python value, untouched: nothing is read.

    Args:
        value: anything.
        field: take `value[field]` instead.

    Raises:
        MissingFieldError: `value` has no such field.
    """
    if field is None:
        return value
    try:
        return value[field]
    except (KeyError, IndexError, TypeError) as error:
        raise MissingFieldError(f"passthrough(field={field!r}): a value of type {type(value).__name__} lacks it") from error


@register_kernel("passthrough", "batched", kind="decoder")
def passthrough_column(values: list[Any], *, field: str | None = None) -> list[Any]:
    """The column as it is."""
    return list(values) if field is None else [value[field] for value in values]


@register_op("array", kind="decoder", reads=False)
def decode_array(value: Any, *, dtype: DType | None = None) -> np.ndarray:
    """Numbers that are in the record already, as a tensor slot: a label, a box list, an embedding.

    Args:
        value: a Python number, nested lists of numbers, a NumPy array, or a CPU tensor.
        dtype: convert to this; None keeps NumPy's choice (int64, float64, or the array's own).

    Returns:
        dtype[...] of the value's shape; the record's own array where nothing had to be converted.

    Raises:
        OpError: text, None, ragged lists, or anything else that is no array of numbers.
    """
    try:
        array = np.asarray(value, dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise OpError(f"array wants numbers, got {type(value).__name__}: {error}") from error
    if array.dtype.kind not in "biufV":
        raise OpError(f"array wants numbers, got {type(value).__name__} ({array.dtype})")
    return array


@register_kernel("array", "batched", kind="decoder")
def decode_array_column(values: list[Any], *, dtype: DType | None = None) -> np.ndarray | None:
    """A column of numbers, or of arrays of one shape and dtype, stacked; None when rows differ."""
    kinds = set(map(type, values))
    if kinds == {np.ndarray}:
        if len({(v.shape, v.dtype) for v in values}) != 1:
            return None
    elif not (kinds == {int} or kinds == {float} or kinds == {bool}):
        return None
    stacked = np.array(values, dtype)
    return stacked if stacked.dtype.kind in "biuf" else None
