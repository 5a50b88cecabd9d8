"""`zipnn_compress`, `zipnn_decompress`: lossless compression of weights by splitting numbers into their bytes, then zstd.

The bytes of one place in the number (sign and exponent of all numbers, then their mantissas) are alike where the numbers
themselves are not, so they stand together before they are compressed.

Format (of the reference, found by running it), little-endian: byte 0 the method, byte 1 the width of a number in bytes,
8 bytes the length of the data, then

- method 0: the data as they are, where compressing them would gain nothing;
- method 1: a zstd frame of all first bytes, all second bytes, ..., and what is left over behind the last whole number;
- method 2, for more than 8 MiB: 4 bytes the length of a piece of the data, then per piece 4 bytes the length of its frame and
  the frame, as in method 1. The last piece is what remains.

Source of the idea: Hershcovitch and others, "ZipNN: Lossless Compression for AI Models" (2024). zstd is pyarrow's.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np

from ...engine.errors import LimitError, OpError

PIECE = 8 << 20
"""Bytes of data compressed together."""
MAX_RATIO = 1 << 15
"""Bytes that a byte of zstd can stand for: a block of 4 bytes repeats a byte 2**17 times."""
_RAW, _WHOLE, _PIECES = range(3)
_HEADER = struct.Struct("<BBQ")
_LENGTH = struct.Struct("<I")
_WIDTHS = {
    **dict.fromkeys(("bf16", "bfloat16", "fp16", "f16", "float16", "half", "i16", "int16", "u16", "uint16"), 2),
    **dict.fromkeys(("fp32", "f32", "float32", "i32", "int32", "u32", "uint32"), 4),
}


def zipnn_compress(data: Any, *, dtype: str = "bf16", level: int = 3) -> bytes:
    """Compress numbers without loss.

    Args:
        data: bytes-like, of any length.
        dtype: of the numbers: bf16, fp16, i16 and u16 are split into 2 bytes, fp32, i32 and u32 into 4; all else is compressed as
            it is.
        level: of zstd; beyond its range the nearest it has.

    Returns:
        What `zipnn_decompress` takes, at most 10 bytes more than `data`.

    Raises:
        TypeError: `data` is not bytes-like.
    """
    view = _view(data)
    width = _WIDTHS.get(str(dtype).lower(), 1)
    codec = _codec(level)
    if len(view) <= PIECE:
        frame = _compress(codec, view, width)
        if len(frame) < len(view):
            return _HEADER.pack(_WHOLE, width, len(view)) + frame
    else:
        parts = [_HEADER.pack(_PIECES, width, len(view)), _LENGTH.pack(PIECE)]
        for at in range(0, len(view), PIECE):
            frame = _compress(codec, view[at : at + PIECE], width)
            parts += [_LENGTH.pack(len(frame)), frame]
        if sum(map(len, parts)) < _HEADER.size + len(view):
            return b"".join(parts)
    return _HEADER.pack(_RAW, width, len(view)) + bytes(view)


def zipnn_decompress(data: Any, *, max_output_bytes: int = 1 << 34) -> bytes:
    """What `zipnn_compress` was given.

    Args:
        data: bytes-like.
        max_output_bytes: that the result may take; 0 for no limit.

    Raises:
        TypeError: `data` is not bytes-like.
        ValueError: damaged, of an unknown method, or a length that is not that of what is there; beyond the limit (LimitError). The
            length is compared with what zstd could make of the data before memory is taken.
    """
    view = _view(data)
    if len(view) < _HEADER.size:
        raise OpError(f"zipnn data are truncated: {len(view)} bytes")
    method, width, length = _HEADER.unpack_from(view)
    body = view[_HEADER.size :]
    if method not in (_RAW, _WHOLE, _PIECES) or not width:
        raise OpError(f"zipnn data of the unknown method {method} and width {width}")
    if length > (len(body) if method == _RAW else MAX_RATIO * len(body)):
        raise OpError(f"zipnn data are damaged: {len(body)} bytes are said to hold {length}")
    if max_output_bytes and length > max_output_bytes:
        raise LimitError(f"zipnn data of {length} bytes; {max_output_bytes} are allowed")
    if method == _RAW:
        if length != len(body):
            raise OpError(f"zipnn data are damaged: {len(body)} bytes are said to be {length}")
        return bytes(body)
    if method == _WHOLE:
        return _decompress(body, width, length).tobytes()
    out = np.empty(length, np.uint8)
    at = 0
    for frame, size in list(_frames(body, length)):
        out[at : at + size] = _decompress(frame, width, size)
        at += size
    return out.tobytes()


def _frames(body: memoryview, length: int) -> Iterator[tuple[memoryview, int]]:
    """The frames of the pieces, and the bytes of data in each."""
    piece = _LENGTH.unpack_from(body)[0] if len(body) >= _LENGTH.size else 0
    at, left = _LENGTH.size, length
    while left and piece:
        size = _LENGTH.unpack_from(body, at)[0] if at + _LENGTH.size <= len(body) else len(body)
        at += _LENGTH.size
        if at + size > len(body) or min(piece, left) > MAX_RATIO * size:
            raise OpError("zipnn data are truncated or damaged")
        yield body[at : at + size], min(piece, left)
        at += size
        left -= min(piece, left)
    if left or at != len(body):
        raise OpError("zipnn data are damaged: their pieces are not what their length says")


def _compress(codec: Any, view: memoryview, width: int) -> bytes:
    flat = np.frombuffer(view, np.uint8)
    whole = len(flat) - len(flat) % width
    planes = flat[:whole].reshape(-1, width).T.reshape(-1)
    found: bytes = codec.compress(np.concatenate((planes, flat[whole:])), asbytes=True)
    return found


def _decompress(frame: memoryview, width: int, length: int) -> np.ndarray:
    try:
        planes = np.frombuffer(_codec(None).decompress(frame, decompressed_size=length), np.uint8)
    except (OSError, MemoryError) as error:
        raise OpError(f"zipnn data are damaged: {error}") from error
    whole = length - length % width
    out = np.empty(length, np.uint8)
    out[:whole].reshape(-1, width)[...] = planes[:whole].reshape(width, -1).T
    out[whole:] = planes[whole:]
    return out


def _codec(level: int | None) -> Any:
    import pyarrow as pa

    if level is None:
        return pa.Codec("zstd")
    low, high = pa.Codec.minimum_compression_level("zstd"), pa.Codec.maximum_compression_level("zstd")
    return pa.Codec("zstd", compression_level=min(max(level, low), high))


def _view(data: Any) -> memoryview:
    try:
        view = memoryview(data)
    except TypeError:
        raise TypeError(f"zipnn takes bytes-like data, got {type(data).__name__}") from None
    return memoryview(view.tobytes()) if not view.c_contiguous else view.cast("B")
