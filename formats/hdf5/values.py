"""Elements of HDF5 as NumPy's: which dtype comes out, what is refused before it is read, and attributes as Python values."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...engine.errors import LimitError, OpError

ATTRIBUTE = 1 << 26
"""Bytes of the largest attribute."""
ATTRIBUTE_TEXTS = 1 << 12
"""Most strings, or arrays of their own length, in one attribute: each may stand for as much as the file holds."""


def dtype_of(found: Any, what: str) -> np.dtype:
    """The dtype of a data set or attribute as it is stored.

    Raises:
        OpError: NumPy has none for it, or it holds references.
    """
    try:
        dtype: np.dtype = found.dtype
    except (TypeError, ValueError, NotImplementedError, RuntimeError, KeyError) as error:
        raise OpError(f"{what} has elements that NumPy has no dtype for: {error}") from error
    if _has_references(dtype):
        raise OpError(f"{what} holds references to other objects, which are not read")
    return dtype


def _has_references(dtype: np.dtype) -> bool:
    import h5py

    if dtype.names is not None:
        return any(_has_references(dtype.fields[name][0]) for name in dtype.names)  # type: ignore[index]
    if dtype.subdtype is not None:
        return _has_references(dtype.subdtype[0])
    inner = h5py.check_vlen_dtype(dtype)
    if inner is not None and inner not in (str, bytes):
        return _has_references(np.dtype(inner))
    return h5py.check_ref_dtype(dtype) is not None


def is_text(dtype: np.dtype) -> bool:
    """Whether the elements are strings of their own length each."""
    import h5py

    info = h5py.check_string_dtype(dtype)
    return info is not None and info.length is None


def native(dtype: np.dtype) -> np.dtype:
    """The dtype in which elements come out: the machine's byte order, without h5py's notes."""
    if dtype.hasobject:
        return dtype if dtype.names is not None else np.dtype(object)
    return np.dtype(dtype.newbyteorder("="), metadata={}) if dtype.names is not None else np.dtype(dtype.newbyteorder("=").str)


def dtype_name(dtype: np.dtype) -> str:
    """What `metadata` calls it: NumPy's name; "str" for strings of any length, "vlen[int32]" for rows of their own length."""
    import h5py

    if is_text(dtype):
        return "str"
    inner = h5py.check_vlen_dtype(dtype)
    return f"vlen[{np.dtype(inner)}]" if inner is not None else str(native(dtype))


def as_values(block: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """What h5py read, as it is given out: strings decoded, bools of 0 and 1."""
    if is_text(dtype):
        flat = np.asarray(block, object).reshape(-1)
        texts = np.empty(flat.shape, object)
        texts[:] = [text.decode("utf-8", "surrogateescape") if isinstance(text, bytes) else text for text in flat]
        return texts.reshape(np.shape(block))
    if dtype == np.bool_:
        return np.asarray(np.asarray(block).view(np.uint8) != 0)
    return np.asarray(block)


def weight(block: np.ndarray) -> int:
    """Bytes that the objects of a block hold."""
    return sum(len(item) if isinstance(item, (str, bytes)) else getattr(item, "nbytes", 64) for item in block.reshape(-1))


def attributes(found: Any, what: str) -> dict[str, Any]:
    """The attributes of a data set: int, float, complex, bool, str, bytes, tuple (compound), None (empty), or an array of them.

    References come as the name of what they refer to.

    Raises:
        LimitError: a larger attribute than `ATTRIBUTE`.
        OpError: one of a kind that NumPy has no dtype for.
    """
    values: dict[str, Any] = {}
    for name in found.attrs:
        try:
            facts = found.attrs.get_id(name)
            dtype, shape = facts.dtype, facts.shape or ()
            size = math.prod(shape)
            if size * max(1, dtype.itemsize) > ATTRIBUTE or (dtype.hasobject and size > ATTRIBUTE_TEXTS):
                raise LimitError(f"{what}: the attribute {name!r} has {size:,} elements, which is too much for an attribute")
            values[name] = _plain(found.attrs[name], found)
        except (TypeError, ValueError, NotImplementedError, RuntimeError, KeyError) as error:
            if isinstance(error, OpError):
                raise
            raise OpError(f"{what}: the attribute {name!r} cannot be read: {error}") from error
    return values


def _plain(value: Any, found: Any) -> Any:
    import h5py

    if isinstance(value, h5py.Empty):
        return None
    if isinstance(value, h5py.h5r.Reference):
        raw = h5py.h5r.get_name(value, found.id) if value else None
        return None if raw is None else raw.decode("utf-8", "surrogateescape")
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray) and value.dtype.hasobject and value.dtype.names is None:
        plain = np.empty(value.shape, object)
        for place in np.ndindex(value.shape):
            plain[place] = _plain(value[place], found)
        return plain
    return value
