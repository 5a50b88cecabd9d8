"""Memory that is filled in place and becomes a `bytes` object without a copy."""

from __future__ import annotations

import ctypes

_new = ctypes.pythonapi.PyBytes_FromStringAndSize
_new.restype = ctypes.py_object
_new.argtypes = [ctypes.c_char_p, ctypes.c_ssize_t]
_HEADER = bytes.__basicsize__ - 1
"""Bytes of a bytes object before its content, in CPython."""


def new_bytes(size: int) -> tuple[bytes, memoryview]:
    """A bytes object of `size` bytes that are not set yet, and the view to set them through.

    Nothing else may see the object before it is filled. Large memory is taken from the system page by page, as it is
    written to, and is not zeroed first: of a gigabyte that saves a second.

    Raises:
        MemoryError: more than the system gives.
    """
    made: bytes = _new(None, size)
    if size < 2:  # CPython shares these
        return made, memoryview(bytearray(size))
    place = (ctypes.c_char * size).from_address(id(made) + _HEADER)
    place.owner = made  # type: ignore[attr-defined]  # as long as a view of it lives, wherever
    return made, memoryview(place).cast("B")
