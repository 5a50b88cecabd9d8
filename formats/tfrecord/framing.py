"""Records of a TFRecord stream: lengths, checksums, and the way on behind damage.

A record is its length (uint64), the masked CRC-32C of those 8 bytes (uint32), the payload, and the masked CRC-32C of that (uint32), all
little-endian. Source: TensorFlow's documentation of the format ("TFRecord and tf.train.Example"). Checksums are those of
`google-crc32c`, which takes the processor's instruction.
"""

from __future__ import annotations

import logging
import struct
from collections import deque
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import TypeAlias

import google_crc32c

from ...engine.errors import OpError
from .resync import SCANNED, header_offsets

logger = logging.getLogger("dataio.tfrecord")

HEADER, FOOTER = 12, 4
FRAME = HEADER + FOOTER
"""Bytes of a record besides its payload."""
BUFFER = 1 << 18
"""Bytes read at a time: few calls, and still in the processor's cache when the payload is copied out."""
MAX_RECORD = 1 << 30
"""Bytes of the longest payload by default; protobuf refuses messages of 2 GiB."""
_TOLD = 100
"""Gaps that are told of one by one."""
_TRIED = 64 << 20
"""Bytes of payloads that may be checked in vain, on top of 8 for each byte that was read."""

unpack_header = struct.Struct("<QI").unpack_from
pack_header = struct.Struct("<QI").pack
unpack_crc = struct.Struct("<I").unpack_from
pack_crc = struct.Struct("<I").pack

Fill: TypeAlias = Callable[[memoryview], int | None]
"""Fills a buffer as far as it can, as `readinto` of files; 0 at the end."""


class TFRecordError(OpError):
    """A TFRecord file that is damaged.

    Attributes:
        record: its number, from 0; None where no record is meant.
        offset: byte at which the record begins in the (decompressed) file.
    """

    def __init__(self, *args: object, record: int | None = None, offset: int | None = None) -> None:
        super().__init__(*args, offset=offset)
        self.record = record


class TFRecordCutError(TFRecordError, RuntimeError):
    """A file that ends inside the header of a record."""


def masked(crc: int) -> int:
    """The form in which the format stores a CRC-32C."""
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


@lru_cache(4096)
def length_crc(length: int) -> int:
    """Masked checksum of a length; files hold few lengths, or records so long that this does not count."""
    return masked(google_crc32c.value(length.to_bytes(8, "little")))


def framed(payload: bytes) -> tuple[bytes, bytes, bytes]:
    """The pieces of one record."""
    return pack_header(len(payload), length_crc(len(payload))), payload, pack_crc(masked(google_crc32c.value(payload)))


class RecordStream:
    """The records of one stream, in order; an iterator of (number, offset, payload), with every checksum checked before.

    Memory grows with what has arrived, never with what a header claims.

    Args:
        fill: gives the bytes.
        name: of the stream, for messages.
        head: bytes that were taken from the stream already, at most `BUFFER`.
        skip: whether damage is skipped: reading goes on at the next offset at which both checksums hold, and the loss is logged
            (`dataio.tfrecord`). A record whose payload alone is damaged is left out by its length if a record follows there.
        max_record_bytes: of a payload; more is damage.

    Attributes:
        skipped: bytes that were left out so far.
        gaps: places where something was left out.
    """

    def __init__(self, fill: Fill, name: str, *, head: bytes = b"", skip: bool = False, max_record_bytes: int = MAX_RECORD) -> None:
        self._fill, self._name, self._skip, self._most = fill, name, skip, max_record_bytes
        self._buffer = bytearray(BUFFER)
        self._view = memoryview(self._buffer)
        self._view[: len(head)] = head
        self._position, self._end = 0, len(head)  # what is unread in the buffer
        self._base = 0  # offset of the buffer in the stream
        self._over = False
        self._tried = 0
        self._found: deque[int] = deque()  # offsets of what looks like a header, of what was searched
        self._scanned = 0
        self.skipped = self.gaps = 0

    def __iter__(self) -> Iterator[tuple[int, int, bytes]]:
        number = 0
        value, mask = google_crc32c.value, 0xFFFFFFFF  # the loop is the cost of a small record
        while True:
            position, end = self._position, self._end
            buffer, view = self._buffer, self._view
            while end - position >= HEADER:
                length, crc = unpack_header(buffer, position)
                payload_end = position + HEADER + length
                if payload_end + FOOTER > end or length_crc(length) != crc or length > self._most:
                    break
                payload = bytes(view[position + HEADER : payload_end])
                crc = value(payload)
                if (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & mask != unpack_crc(buffer, payload_end)[0]:
                    break
                self._position = payload_end + FOOTER
                yield number, self._base + position, payload
                number += 1
                position = payload_end + FOOTER
            self._position = position
            gaps = self.gaps
            # Here the buffer is used up, or the next record is longer than it, damaged or cut off.
            if not self._have(HEADER):
                if self._end == self._position:
                    break
                self._damaged(TFRecordCutError, number, "the file ends inside its header")
            elif (damage := self._wrong()) is not None:
                self._damaged(TFRecordError, number, damage)
            elif not self._have(FRAME + self._length()):
                self._damaged(TFRecordError, number, f"it claims {self._length():,} bytes and the file ends before")
            elif not self._intact():
                self._damaged(TFRecordError, number, "its content does not match its checksum")
            number += self.gaps - gaps  # of how many records a place with damage is nobody knows
        if self.gaps > _TOLD:
            logger.warning("%s: %d places are damaged, %d bytes were left out", self._name, self.gaps, self.skipped)

    def _have(self, count: int) -> bool:
        """Whether `count` bytes are there from the position on, read if need be."""
        while (left := self._end - self._position) < count and not self._over:
            if self._position:
                self._view[:left] = self._view[self._position : self._end]
                self._base += self._position
                self._position, self._end = 0, left
            if self._end == len(self._buffer):  # full of what has arrived: it may double
                larger = bytearray(2 * len(self._buffer))
                larger[: self._end] = self._view[: self._end]
                self._buffer, self._view = larger, memoryview(larger)
            got = self._fill(self._view[self._end :])
            self._over = not got
            self._end += got or 0
        return left >= count

    def _length(self) -> int:
        length: int = unpack_header(self._buffer, self._position)[0]
        return length

    def _wrong(self) -> str | None:
        """What is wrong with the header here."""
        length, crc = unpack_header(self._buffer, self._position)
        if length_crc(length) != crc:
            return "its length does not match its checksum"
        if length > self._most:
            return f"it claims {length:,} bytes, more than the {self._most:,} of max_record_bytes"
        return None

    def _intact(self) -> bool:
        """Whether the payload here, all of which is there, matches its checksum."""
        start = self._position + HEADER
        end = start + self._length()
        crc: int = unpack_crc(self._buffer, end)[0]
        return masked(google_crc32c.value(bytes(self._view[start:end]))) == crc

    def _damaged(self, kind: type[TFRecordError], number: int, damage: str) -> None:
        """Raise, or move to the next record that is whole, or to the end."""
        offset = self._base + self._position
        message = f"{self._name}: record {number} (byte {offset:,}) is damaged: {damage}"
        if not self._skip:
            raise kind(message, record=number, offset=offset)
        self._search()
        lost = self._base + self._position - offset
        self.skipped += lost
        self.gaps += 1
        if self.gaps <= _TOLD:
            logger.warning("%s; %d bytes were left out", message, lost)

    def _search(self) -> None:
        if self._have(HEADER) and self._wrong() is None and self._have(FRAME + self._length()):
            length = FRAME + self._length()
            self._tried += length
            if self._follows(length):
                return
            if self._exhausted():
                self._position += length
                return
        self._position += 1
        while (offset := self._candidate()) is not None:
            self._position = offset - self._base
            if self._wrong() is None and self._have(FRAME + self._length()):
                if self._intact():
                    return
                self._tried += self._length()
                if self._exhausted():
                    self._position += FRAME + self._length()
                    continue
            self._position += 1
        self._position = self._end

    def _candidate(self) -> int | None:
        """The next offset from the position on at which a header could be; None where there is none up to the end."""
        while self._have(HEADER):
            at = self._base + self._position
            while self._found and self._found[0] < at:
                self._found.popleft()
            if self._found:
                return self._found[0]
            # Every byte is looked at once, however many places are damaged.
            start = max(at, self._scanned)
            self._position = start - self._base
            if not self._have(HEADER):
                return None
            piece = self._view[self._position : min(self._position + SCANNED, self._end)]
            self._found.extend(start + found for found in header_offsets(piece))
            self._scanned = start + len(piece) - HEADER + 1
        return None

    def _exhausted(self) -> bool:
        """Whether more was checked in vain than is in proportion to what was read: headers can be forged so that payloads overlap.

        The lengths are believed from then on.
        """
        return self._tried > _TRIED + 8 * (self._base + self._position)

    def _follows(self, length: int) -> bool:
        """Move on by `length` if a record begins there, or the stream ends; else stay and give False."""
        if not self._have(length + HEADER):
            if self._end - self._position != length:
                return False
            self._position = self._end
            return True
        self._position += length
        if self._wrong() is None:
            return True
        self._position -= length
        return False
