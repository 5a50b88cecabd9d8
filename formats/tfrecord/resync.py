"""Offsets at which the header of a TFRecord could be, found in whole arrays of bytes.

CRC-32C is affine over GF(2): the checksum of 8 bytes is that of 8 zeros, XORed with one table entry for each byte and place.
"""

from __future__ import annotations

from functools import cache

import google_crc32c
import numpy as np

SCANNED = 1 << 16
"""Bytes looked through at a time."""
_HEADER = 12


@cache
def _tables() -> tuple[int, np.ndarray]:
    """The checksum of 8 zeros, and uint32[8, 256]: what a byte at a place adds to it."""
    zero = google_crc32c.value(bytes(8))
    tables = np.zeros((8, 256), np.uint32)
    for place in range(8):
        for byte in range(256):
            tables[place, byte] = google_crc32c.value(bytes(place) + bytes((byte,)) + bytes(7 - place)) ^ zero
    return zero, tables


def header_offsets(data: memoryview) -> list[int]:
    """Offsets, rising, at which 8 bytes are followed by their masked checksum; of up to `SCANNED` bytes at once."""
    values = np.frombuffer(data, np.uint8)
    count = len(values) - _HEADER + 1
    zero, tables = _tables()
    crc = np.full(count, zero, np.uint32)
    for place in range(8):
        crc ^= tables[place].take(values[place : place + count])
    crc = ((crc >> np.uint32(15)) | (crc << np.uint32(17))) + np.uint32(0xA282EAD8)
    stored = np.zeros(count, np.uint32)
    for place in range(4):
        stored |= values[8 + place : 8 + place + count].astype(np.uint32) << np.uint32(8 * place)
    found: list[int] = np.flatnonzero(crc == stored).tolist()
    return found
