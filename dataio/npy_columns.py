"""Columns of tensors as columns of .npy files: for engines whose tables know bytes and no tensors.

Each value says its own dtype and shape; `decode_npy()` and `numpy.load` read it. Libraries: pyarrow, `numpy.lib.format`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa

from .arrow_columns import is_ragged
from .engine.errors import LimitError
from .formats.npy_header import npy_head

MAX_BYTES = (1 << 31) - 1
"""Of all values of one binary column, whose offsets are int32."""


def is_tensor(kind: pa.DataType) -> bool:
    """Whether a column of this type holds tensors with axes, as `dataio.arrow_columns` makes them."""
    return isinstance(kind, pa.FixedShapeTensorType) or is_ragged(kind)


def npy_column(column: pa.Array) -> pa.Array:
    """Tensors as .npy files in C order: binary, null where the tensor is null.

    Raises:
        LimitError: the files of one column take more than 2 GiB - 1 byte together.
    """
    valid = np.asarray(column.is_valid())
    data, sizes = _ragged_files(column, valid) if is_ragged(column.type) else _dense_files(column, valid)
    offsets = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    bits: Any = None if valid.all() else pa.array(valid).buffers()[1]
    return pa.Array.from_buffers(pa.binary(), len(sizes), [bits, pa.py_buffer(offsets), pa.py_buffer(data)])


def flat_column(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """The elements of each tensor in C order, as a column of lists of type `kind`; null where the tensor is null.

    Raises:
        LimitError: as `npy_column` does.
    """
    lists = column.flatten()[0] if is_ragged(column.type) else column.storage  # flatten: with the nulls of the structs
    _check(column.nbytes)
    return lists.cast(kind)


def _dense_files(column: pa.Array, valid: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """uint8[total] and int64[n]: the files one behind the other, and the size of each row's, 0 for null."""
    dtype, shape = np.dtype(column.type.value_type.to_pandas_dtype()), tuple(column.type.shape)
    payload = column.storage.flatten().to_numpy(zero_copy_only=False).view(np.uint8)  # without those of null rows
    head = np.frombuffer(npy_head(dtype, shape), np.uint8)
    size, count = len(head) + dtype.itemsize * math.prod(shape), len(column) - column.null_count
    _check(count * size)
    files = np.empty((count, size), np.uint8)
    files[:, : len(head)] = head
    files[:, len(head) :] = payload.reshape(count, size - len(head))
    return files.reshape(-1), np.where(valid, size, 0)


def _ragged_files(column: pa.Array, valid: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """As `_dense_files`."""
    data, shapes = column.field("data"), column.field("shape")
    dtype = np.dtype(data.type.value_type.to_pandas_dtype())
    payload = data.values.to_numpy(zero_copy_only=False).astype(dtype, copy=False).view(np.uint8)
    starts = np.asarray(data.offsets).astype(np.int64) * dtype.itemsize
    heads = [npy_head(dtype, tuple(shape)) if there else b"" for shape, there in zip(shapes.to_pylist(), valid.tolist())]
    sizes = np.where(valid, np.diff(starts), 0) + np.fromiter(map(len, heads), np.int64, len(heads))
    _check(int(sizes.sum()))
    joined, at = np.empty(int(sizes.sum()), np.uint8), 0
    for row, head in enumerate(heads):
        if head:
            end = at + len(head)
            joined[at:end] = np.frombuffer(head, np.uint8)
            at = end + int(starts[row + 1] - starts[row])
            joined[end:at] = payload[starts[row] : starts[row + 1]]
    return joined, sizes


def _check(size: int) -> None:
    if size > MAX_BYTES:
        raise LimitError(f"tensors of {size:,} bytes do not fit one binary column, which holds {MAX_BYTES:,}")
