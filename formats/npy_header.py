"""The header of an .npy file: element type, shape, order, and where the elements begin.

Source: `numpy.lib.format`, whose parser of the header's text is used; what it claims is checked before it is believed.
"""

from __future__ import annotations

import io
import math
import struct
import sys
from functools import lru_cache
from typing import TypeAlias

import numpy as np

from ..engine.errors import OpError

MAGIC = b"\x93NUMPY"
MAX_HEADER = 65536
"""Bytes of an .npy header; a legal one for 32 axes takes under 1,000."""
NpyHeader: TypeAlias = tuple[np.dtype, tuple[int, ...], bool, int]
"""dtype, shape, Fortran order, and the offset of the payload in bytes."""


def header_end(head: memoryview) -> int:
    """Where the header ends and the payload begins, from the first 12 bytes.

    Raises:
        OpError: no .npy file, an unknown version, or a header longer than `MAX_HEADER`.
    """
    if head[:6] != MAGIC:
        raise OpError(f"not an .npy file: starts with {bytes(head[:6])!r}" if len(head) else "not an .npy file: no data")
    if len(head) < 12:
        raise OpError(f".npy is truncated: {len(head)} bytes", offset=len(head))
    major = head[6]
    if major not in (1, 2, 3):
        raise OpError(f".npy format {major}.{head[7]} is unknown; 1.0, 2.0 and 3.0 are read")
    (size,) = struct.unpack_from("<H" if major == 1 else "<I", head, 8)
    if size > MAX_HEADER:
        raise OpError(f".npy header of {size} bytes exceeds {MAX_HEADER}")
    return (10 if major == 1 else 12) + int(size)


def read_npy_header(view: memoryview) -> NpyHeader:
    """The header at the front of `view`.

    Raises:
        OpError: no .npy file, cut off, not a header, Python objects, elements without bytes, or a shape beyond NumPy's limits.
    """
    end = header_end(view)
    if end > len(view):
        raise OpError(f".npy is truncated inside its header: {len(view)} bytes", offset=len(view))
    major = view[6]
    dtype, shape, fortran = _parse(major, bytes(view[10 if major == 1 else 12 : end]))
    return dtype, shape, fortran, end


def payload_bytes(header: NpyHeader) -> int:
    """Bytes of the elements."""
    return math.prod(header[1]) * header[0].itemsize


def check_payload(header: NpyHeader, present: int) -> None:
    """Refuse a header that claims more than the `present` bytes of the file, itself included.

    Raises:
        OpError: the file is truncated.
    """
    dtype, shape, _, offset = header
    need = payload_bytes(header)
    if need > present - offset:
        raise OpError(f".npy is truncated: {dtype}{list(shape)} wants {need} bytes, got {present - offset}", offset=present)


@lru_cache(maxsize=256)
def _parse(major: int, text: bytes) -> tuple[np.dtype, tuple[int, ...], bool]:
    """dtype, shape and Fortran order; cached, since the files of one data set share a few headers."""
    read = np.lib.format.read_array_header_1_0 if major == 1 else np.lib.format.read_array_header_2_0
    try:
        if major == 3:  # in UTF-8; as escapes in its string literals for the reader of 2.0, which is in Latin-1
            text = text.decode("utf-8").encode("latin-1", "backslashreplace")
        prefix = struct.pack("<H" if major == 1 else "<I", len(text))
        shape, fortran, dtype = read(io.BytesIO(prefix + text), max_header_size=MAX_HEADER)
    except Exception as error:  # of many kinds: SyntaxError, TokenError, RecursionError, MemoryError, IndexError
        raise OpError(f"not a valid .npy header: {error}") from error
    if dtype.hasobject:
        raise OpError(f".npy holds Python objects ({dtype}), which are never unpickled")
    if dtype.itemsize == 0 or dtype.subdtype is not None:  # NumPy writes neither; arrays of the first have memory all the same
        raise OpError(f"not a valid .npy header: dtype {dtype}")
    # NumPy's own limits, which it also holds arrays without elements to.
    if len(shape) > 64 or min(shape, default=0) < 0 or math.prod(filter(None, shape)) * dtype.itemsize > sys.maxsize:
        raise OpError(f"not a valid .npy header: shape {shape}")
    return dtype, shape, fortran


@lru_cache(maxsize=4096)
def npy_head(dtype: np.dtype, shape: tuple[int, ...]) -> bytes:
    """The front of an .npy file of an array in C order: magic and header of format 1.0, up to where the elements begin."""
    out = io.BytesIO()
    facts = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(out, facts)
    return out.getvalue()
