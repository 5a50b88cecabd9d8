"""NumPy files, and ops on arrays of any rank: dtype conversion and axis bookkeeping."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..engine.errors import OpError
from ..engine.registry import register_check, register_kernel, register_op
from ..engine.schema import Layout, Shape, Takes, TensorType
from .libraries import opencv
from .npy_header import NpyHeader, check_payload, read_npy_header
from .raw import BytesLike, DType, as_view

CASTABLE: tuple[str, ...] = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64",
)  # fmt: skip
READABLE = {*CASTABLE, "float16"}
JOIN_BELOW = 16384
"""Bytes of an .npy file below which a column is joined first: a second copy costs less than a Python step per row."""
WORDS: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.int32, 8: np.float64}
"""Dtypes under which OpenCV moves items of that many bytes, whatever they stand for."""
CAST_BLOCK = 16384
"""Elements that `cast` clips at a time."""
_usual: dict[bytes, NpyHeader] = {}
"""Headers that fill 128 bytes exactly, as NumPy writes all short ones, by those bytes."""


def _npy_header(view: memoryview) -> NpyHeader:
    """dtype, shape, Fortran order and the offset of the payload."""
    known = _usual.get(head := bytes(view[:128]))
    if known is not None:
        return known
    header = _read_npy_header(view)
    if header[3] == 128 and len(_usual) < 1024:
        _usual[head] = header
    return header


def _read_npy_header(view: memoryview) -> NpyHeader:
    header = read_npy_header(view)
    dtype = header[0]
    if dtype.names is not None or dtype.name not in READABLE:
        raise OpError(f".npy dtype {dtype} is not supported; it takes: {', '.join(sorted(READABLE))}")
    return header


@register_op("npy", kind="decoder")
def decode_npy(data: BytesLike) -> np.ndarray:
    """Read an .npy file, format 1.0 to 3.0; pickled objects are refused, never run.

    Returns:
        array[...] of the file's dtype in native byte order, C order, owning its memory.

    Raises:
        OpError: not an .npy file, truncated, or a dtype other than bool, integers and floats up to 64 bits.

    Source: the layout is that of `numpy.lib.format`.
    """
    view = as_view(data)
    header = _npy_header(view)
    check_payload(header, len(view))
    dtype, shape, fortran, offset = header
    count = math.prod(shape)
    if count == 0:
        return np.empty(shape, dtype.newbyteorder("="))
    flat = np.frombuffer(view, dtype, count, offset)
    if dtype.isnative and not fortran:
        return flat.reshape(shape).copy()
    return np.array(flat.reshape(shape, order="F" if fortran else "C"), dtype.newbyteorder("="), order="C")


@register_kernel("npy", "view", kind="decoder")
def view_npy(data: BytesLike) -> np.ndarray:
    """`decode_npy` without a copy where the file's memory can be used as it is: a read-only view of it."""
    view = as_view(data)
    dtype, shape, fortran, offset = _npy_header(view)
    count = math.prod(shape)
    if fortran or not dtype.isnative or count == 0 or count * dtype.itemsize > len(view) - offset:
        return decode_npy(data)
    return np.ndarray(shape, dtype, view.toreadonly(), offset)


def _alike(values: list[BytesLike]) -> tuple[np.dtype, tuple[int, ...], int] | None:
    """dtype, shape and payload offset, when every file has one and the same plain header and size; None otherwise."""
    if not values:
        return None
    try:
        first = as_view(values[0])
        dtype, shape, fortran, offset = _npy_header(first)
    except OpError:
        return None  # the per-row form names the row
    count = math.prod(shape)
    if fortran or not dtype.isnative or count == 0 or not shape:
        return None
    size = len(first)
    if set(map(len, values)) != {size} or size < offset + count * dtype.itemsize:
        return None
    return dtype, shape, offset


@register_kernel("npy", "batched", kind="decoder")
def decode_npy_column(values: list[BytesLike]) -> np.ndarray | None:
    """Stack files of one dtype and shape into array[n, ...]; None when they differ or one is damaged."""
    if (found := _alike(values)) is None:
        return None
    dtype, shape, _ = found
    out = np.empty((len(values), *shape), dtype)
    return out if decode_npy_column_out(values, out) else None


@register_kernel("npy", "batched_out", kind="decoder")
def decode_npy_column_out(values: list[BytesLike], out: np.ndarray) -> bool:
    """`decode_npy_column` into `out`, dtype[n, ...]."""
    if (found := _alike(values)) is None:
        return False
    dtype, shape, offset = found
    if out.shape != (len(values), *shape) or out.dtype != dtype:
        return False
    size, need = len(values[0]), offset + out[0].nbytes
    if size > JOIN_BELOW:
        header = bytes(as_view(values[0])[:offset])
        flat = out.reshape(len(values), -1)
        for row, data in zip(flat, values):
            if bytes(as_view(data)[:offset]) != header:
                return False
            row[:] = np.frombuffer(data, dtype, flat.shape[1], offset)
        return True
    rows = np.frombuffer(b"".join(map(as_view, values)), np.uint8).reshape(len(values), size)
    if (rows[:, :offset] != rows[0, :offset]).any():
        return False
    np.copyto(out.reshape(len(values), -1).view(np.uint8), rows[:, offset:need])
    return True


def _infer_cast(given: TensorType, *, dtype: str) -> TensorType:
    return TensorType(given.shape, dtype, given.layout)


def _saturate(value: np.ndarray, out: np.ndarray) -> None:
    """Floats to integers: truncate, clip to the range of `out` (C-contiguous), NaN to 0; block by block, in the cache."""
    info, flat, target = np.iinfo(out.dtype), value.reshape(-1), out.reshape(-1)
    limit = value.dtype.type(float(info.max) + 1.0)  # a power of two, so exact in every float dtype
    top = np.nextafter(limit, value.dtype.type(0))
    block = np.empty(min(flat.size, CAST_BLOCK), value.dtype)
    for start in range(0, flat.size, CAST_BLOCK):
        part, given = target[start : start + CAST_BLOCK], flat[start : start + CAST_BLOCK]
        if opencv().checkRange(given[None], True, float(info.min), float(limit))[0]:  # no NaN either: a fifth of the rest's time
            np.copyto(part, given, casting="unsafe")
            continue
        clipped = np.clip(given, value.dtype.type(info.min), top, out=block[: given.size])
        if np.isnan(clipped.sum()):  # one NaN makes the sum NaN
            clipped[np.isnan(clipped)] = 0
        np.copyto(part, clipped, casting="unsafe")
        if int(top) != info.max:  # fewer bits than the integer has: the float below the limit is not the largest integer
            part[given >= limit] = info.max


@register_op("cast", takes=Takes(dtypes=CASTABLE), infer=_infer_cast)
def cast(value: np.ndarray, *, dtype: DType) -> np.ndarray:
    """Convert to another dtype.

    Args:
        value: array[...] of any dtype but float16.
        dtype: floats become integers by truncation with saturation (NaN becomes 0), integers wrap, "bool" is `!= 0`.

    Returns:
        dtype[...], a new array; `value` itself when it has that dtype already.
    """
    if value.dtype.name == dtype:
        return value
    out = np.empty(value.shape, dtype)
    cast_out(value, out, dtype=dtype)
    return out


@register_kernel("cast", "out")
def cast_out(value: np.ndarray, out: np.ndarray, *, dtype: DType) -> None:
    """`cast` into `out`, dtype[...]."""
    if value.dtype.name not in CASTABLE:
        raise OpError(f"cast takes {', '.join(CASTABLE)}, got {value.dtype}")
    if value.dtype.kind == "f" and out.dtype.kind in "iu":
        _saturate(value, out)
    elif out.dtype == np.bool_:
        np.not_equal(value, 0, out=out)
    else:
        with np.errstate(over="ignore"):
            np.copyto(out, value, casting="unsafe")


_PERMUTED: dict[tuple[Layout, tuple[int, ...]], Layout] = {
    ("HWC", (0, 1, 2)): "HWC",
    ("HWC", (1, 0, 2)): "HWC",
    ("HWC", (2, 0, 1)): "CHW",
    ("HWC", (2, 1, 0)): "CHW",
    ("CHW", (0, 1, 2)): "CHW",
    ("CHW", (0, 2, 1)): "CHW",
    ("CHW", (1, 2, 0)): "HWC",
    ("CHW", (2, 1, 0)): "HWC",
}
"""Layout after `permute`; any other order is no image."""


def _infer_permute(given: TensorType, *, axes: tuple[int, ...]) -> TensorType:
    if given.shape is None:
        return TensorType((None,) * len(axes), given.dtype)
    if len(given.shape) != len(axes):
        raise ValueError(f"axes {axes} do not fit {given}")
    layout = None if given.layout is None else _PERMUTED.get((given.layout, axes))
    return TensorType(tuple(given.shape[a] for a in axes), given.dtype, layout)


@register_check("permute")
def _check_permute(*, axes: tuple[int, ...]) -> dict[str, Any]:
    if sorted(axes) != list(range(len(axes))):
        raise ValueError(f"permute(axes=) must name every axis once, from 0 to {len(axes) - 1}, got {axes}")
    return {"axes": axes}


@register_op("permute", infer=_infer_permute)
def permute(value: np.ndarray, *, axes: tuple[int, ...]) -> np.ndarray:
    """Reorder the axes: axis i of the result is axis `axes[i]` of `value`.

    Returns:
        array[...], a view.

    Raises:
        OpError: `value` has another number of axes.
    """
    if value.ndim != len(axes):
        raise OpError(f"permute(axes={axes}) wants {len(axes)} axes, got shape {value.shape}")
    return value.transpose(axes)


@register_kernel("permute", "out")
def permute_out(value: np.ndarray, out: np.ndarray, *, axes: tuple[int, ...]) -> None:
    """`permute` into `out`; planes become pixels and back through OpenCV, in a third of NumPy's time."""
    word = WORDS.get(value.dtype.itemsize)
    if axes in ((2, 0, 1), (1, 2, 0)) and value.ndim == 3 and value.size and word is not None:
        pixels, given, target = axes == (2, 0, 1), value.view(word), out.view(word)
        if 1 < value.shape[2 if pixels else 0] <= 4:
            if pixels:
                opencv().split(np.ascontiguousarray(given), list(target))
            else:
                opencv().merge(list(given), dst=target)
            return
    np.copyto(out, permute(value, axes=axes))


def _resolve_reshape(given: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    total, known = math.prod(given), math.prod(n for n in shape if n != -1)
    if -1 in shape:
        if known == 0 or total % known:
            raise ValueError(f"{total} elements of shape {given} do not fill shape {shape}")
        return tuple(total // known if n == -1 else n for n in shape)
    if total != known:
        raise ValueError(f"{total} elements of shape {given} do not fill shape {shape}")
    return shape


def _infer_reshape(given: TensorType, *, shape: tuple[int, ...]) -> TensorType:
    if given.shape is None or None in given.shape:
        # What the row has must equal a shape without -1; otherwise that row is an error.
        return TensorType(tuple(None if n == -1 else n for n in shape), given.dtype)
    return TensorType(_resolve_reshape(tuple(n for n in given.shape if n is not None), shape), given.dtype)


@register_check("reshape")
def _check_reshape(*, shape: tuple[int, ...]) -> dict[str, Any]:
    if any(n < -1 for n in shape) or shape.count(-1) > 1:
        raise ValueError(f"reshape(shape=) takes counts and at most one -1, got {shape}")
    return {"shape": shape}


@register_op("reshape", infer=_infer_reshape)
def reshape(value: np.ndarray, *, shape: tuple[int, ...]) -> np.ndarray:
    """Give the elements another shape, in row-major order; one entry may be -1.

    Raises:
        OpError: the count of elements differs.
    """
    try:
        return value.reshape(_resolve_reshape(value.shape, shape))
    except ValueError as error:
        raise OpError(f"reshape: {error}") from error


def _flat_range(ndim: int, start: int, end: int) -> tuple[int, int]:
    first = start + ndim if start < 0 else start
    last = end + ndim if end < 0 else end
    if not 0 <= first <= last < ndim:
        raise ValueError(f"start_axis={start}, end_axis={end} do not fit {ndim} axes")
    return first, last


def _flat_shape(shape: Shape, start: int, end: int) -> Shape:
    shape = shape or (1,)
    first, last = _flat_range(len(shape), start, end)
    merged = shape[first : last + 1]
    size = None if None in merged else math.prod(n for n in merged if n is not None)
    return (*shape[:first], size, *shape[last + 1 :])


def _infer_flatten(given: TensorType, *, start_axis: int, end_axis: int) -> TensorType:
    shape = None if given.shape is None else _flat_shape(given.shape, start_axis, end_axis)
    return TensorType(shape, given.dtype)


@register_op("flatten", infer=_infer_flatten)
def flatten(value: np.ndarray, *, start_axis: int = 0, end_axis: int = -1) -> np.ndarray:
    """Merge the axes from `start_axis` to `end_axis`, both included; negative ones count from the end.

    A scalar becomes an array of one element.

    Raises:
        OpError: start after end, or out of range.
    """
    try:
        shape = _flat_shape(value.shape, start_axis, end_axis)
    except ValueError as error:
        raise OpError(f"flatten: {error} of shape {value.shape}") from error
    return value.reshape(tuple(n for n in shape if n is not None))


def _infer_squeeze(given: TensorType, *, axis: int | None) -> TensorType:
    shape = given.shape
    if shape is None or (axis is None and None in shape):
        return TensorType(None, given.dtype)
    if axis is None:
        return TensorType(tuple(n for n in shape if n != 1), given.dtype)
    if not -len(shape) <= axis < len(shape) or shape[axis] not in (1, None):
        raise ValueError(f"axis {axis} of {given} is not an axis of size 1")
    axis %= len(shape)
    return TensorType((*shape[:axis], *shape[axis + 1 :]), given.dtype)


@register_op("squeeze", infer=_infer_squeeze)
def squeeze(value: np.ndarray, *, axis: int | None = None) -> np.ndarray:
    """Drop one axis of size 1, or all of them.

    Raises:
        OpError: the named axis is out of range or not of size 1.
    """
    if axis is not None and (not -value.ndim <= axis < value.ndim or value.shape[axis] != 1):
        raise OpError(f"squeeze(axis={axis}) wants an axis of size 1, got shape {value.shape}")
    return np.squeeze(value, axis)


def _infer_unsqueeze(given: TensorType, *, axis: int) -> TensorType:
    if given.shape is None:
        return TensorType(None, given.dtype)
    rank = len(given.shape)
    if not -(rank + 1) <= axis <= rank:
        raise ValueError(f"axis {axis} is out of range for {given}")
    axis %= rank + 1
    return TensorType((*given.shape[:axis], 1, *given.shape[axis:]), given.dtype)


@register_op("unsqueeze", infer=_infer_unsqueeze)
def unsqueeze(value: np.ndarray, *, axis: int) -> np.ndarray:
    """Insert an axis of size 1 in front of axis `axis`, which is in [-(rank + 1), rank].

    Raises:
        OpError: out of range.
    """
    if not -(value.ndim + 1) <= axis <= value.ndim:
        raise OpError(f"unsqueeze(axis={axis}) is out of range for shape {value.shape}")
    return np.expand_dims(value, axis)
