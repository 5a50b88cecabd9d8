"""Memory that is filled in place and becomes a `bytes` object without a copy."""

from __future__ import annotations

import ctypes
import mmap

_new = ctypes.pythonapi.PyBytes_FromStringAndSize
_new.restype = ctypes.py_object
_new.argtypes = [ctypes.c_char_p, ctypes.c_ssize_t]
_HEADER = bytes.__basicsize__ - 1
"""Bytes of a bytes object before its content, in CPython."""
_LARGE = 1 << 22
"""Bytes from which the system is asked for its large pages, as NumPy does: filling new memory is then three times as fast."""
_HUGE_PAGES: int | None = getattr(mmap, "MADV_HUGEPAGE", None)
"""Only Linux has them."""
if _HUGE_PAGES is not None:
    _madvise = ctypes.CDLL(None).madvise
    _madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def new_bytes(size: int) -> tuple[bytes, memoryview]:
    """A bytes object of `size` bytes that are not set yet, and the view to set them through.

    Nothing else may see the object before it is filled. Large memory is taken from the system page by page, as it is
    written to, and is not zeroed first.

    Raises:
        MemoryError: more than the system gives.
    """
    made: bytes = _new(None, size)
    if not size:  # CPython has one such object; those of one byte are shared only where their content is given
        return made, memoryview(bytearray())
    address = id(made) + _HEADER
    if size >= _LARGE and _HUGE_PAGES is not None:
        begin = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
        _madvise(begin, (address + size - begin) // mmap.PAGESIZE * mmap.PAGESIZE, _HUGE_PAGES)  # it may refuse
    place = (ctypes.c_char * size).from_address(address)
    place.owner = made  # type: ignore[attr-defined]  # as long as a view of it lives, wherever
    return made, memoryview(place).cast("B")
