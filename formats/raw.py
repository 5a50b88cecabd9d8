"""Bytes as they are: the `bytes` and `passthrough` decoders, and the view that every decoder reads through."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from ..engine.errors import MissingFieldError, OpError
from ..engine.registry import register_kernel, register_op
from ..engine.schema import OBJECT, TensorType

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
