"""`tfrecord_index`: where the records of a TFRecord file lie, so that any can be read by itself."""

from __future__ import annotations

import io
import os
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import google_crc32c
import numpy as np

from ...engine.errors import OpError
from ...io import verbs
from ...io.store import BytesLike
from ..inputs import local_file, name_of, open_ranges, read_bytes
from .files import codec_of
from .framing import (
    FOOTER,
    FRAME,
    HEADER,
    MAX_RECORD,
    TFRecordCutError,
    TFRecordError,
    length_crc,
    masked,
    unpack_crc,
    unpack_header,
)

_LOCAL_WINDOWS = (1 << 12, 1 << 20)
_REMOTE_WINDOWS = (1 << 14, 1 << 22)
"""Least and most bytes of one read: the window widens while it brings several headers, and narrows while it brings one."""


@dataclass(frozen=True, eq=False)
class TFRecordIndex:
    """Where the records of one file lie.

    Attributes:
        offsets: int64[n], bytes from the beginning of the file to that of each record.
        lengths: int64[n], bytes of each payload.
    """

    offsets: np.ndarray
    lengths: np.ndarray

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return int(self.offsets[-1] + self.lengths[-1] + FRAME) if len(self) else 0

    def place(self, number: int) -> tuple[int, int]:
        """Offset and length of a record with its frame, in bytes."""
        return int(self.offsets[number]), int(self.lengths[number]) + FRAME

    def payload(self, frame: BytesLike, number: int, name: str) -> bytes:
        """The payload of a record, from the bytes at its place.

        Raises:
            TFRecordError: what lies there is not the record that the index tells of, or is damaged.
        """
        length = len(frame) - FRAME
        payload = bytes(memoryview(frame)[HEADER:-FOOTER])
        if unpack_header(frame) != (length, length_crc(length)) or masked(google_crc32c.value(payload)) != unpack_crc(frame, HEADER + length)[0]:
            offset = int(self.offsets[number])
            raise TFRecordError(
                f"{name}: record {number} (byte {offset:,}) is damaged, or not where its index says: checksums do not match", record=number, offset=offset
            )
        return payload

    def save(self, path: str | os.PathLike[str], *, atomic: bool = True) -> None:
        """Write the index as text, a line `offset length` for each record with its frame: what DALI's `tfrecord2idx` and the
        `tfrecord` package write and read.

        Raises:
            OSError, ValueError: as `dataio.write` says.
        """
        out = io.BytesIO()
        np.savetxt(out, np.stack([self.offsets, self.lengths + FRAME], axis=1), fmt="%d")
        verbs.write(os.fspath(path), out.getvalue(), atomic=atomic)

    @classmethod
    def load(cls, path: Any) -> TFRecordIndex:
        """Read what `save` wrote.

        Args:
            path: any source of bytes.

        Raises:
            ValueError: no such index: not two numbers a line, or records that do not lie one behind the other from byte 0 on.
            FileNotFoundError, OSError: it cannot be read.
        """
        words = bytes(read_bytes(path)).split()
        try:
            numbers = np.array(words, dtype="S20").astype(np.int64) if words else np.zeros(0, np.int64)
        except (ValueError, OverflowError) as error:
            raise OpError(f"{name_of(path)} is no index of a TFRecord file: {error}") from error
        if len(numbers) % 2:
            raise OpError(f"{name_of(path)} is no index of a TFRecord file: it holds {len(numbers)} numbers, which are no pairs")
        offsets, frames = numbers[::2].copy(), numbers[1::2].copy()
        ends = offsets + frames
        if (frames < FRAME).any() or (len(offsets) and (offsets[0] != 0 or (offsets[1:] != ends[:-1]).any() or (ends < 0).any())):
            raise OpError(f"{name_of(path)} is no index of a TFRecord file: its records do not lie one behind the other")
        return cls(offsets, frames - FRAME)


def tfrecord_index(source: Any, *, max_record_bytes: int = MAX_RECORD) -> TFRecordIndex:
    """Find the records of a file by its headers; payloads are passed over, and not checked.

    Args:
        source: local path or URI, bytes-like, a `dataio.Reader`, or an object with `read()`; not compressed. Of remote files ranges
            that hold the headers are fetched.
        max_record_bytes: of one payload; more is damage.

    Raises:
        FileNotFoundError: there is no such file.
        TFRecordError: (a ValueError) a header is damaged, or the file ends inside a record; named by number and byte.
        OpError: the file is compressed, so that no record can be read by itself.
        OSError: it cannot be read.
    """
    name = name_of(source)
    least, most = _REMOTE_WINDOWS if isinstance(source, (str, os.PathLike)) and local_file(source) is None else _LOCAL_WINDOWS
    offsets: list[int] = []
    lengths: list[int] = []
    with closing(open_ranges(source)) as ranges:
        size, width, offset = ranges.size, least, 0
        while offset < size:
            start = offset
            window = ranges.read(start, min(width, size - start))
            if not start and (codec := codec_of(bytes(window[:HEADER]))):
                raise OpError(f"{name} is compressed by {codec}, so that no record can be read by itself: use iter_tfrecord, or store it plain")
            found = len(offsets)
            while offset - start + HEADER <= len(window):
                length, crc = unpack_header(window, offset - start)
                _check(name, len(offsets), offset, length, crc, size, max_record_bytes)
                offsets.append(offset)
                lengths.append(length)
                offset += FRAME + length
            if size - offset < HEADER and offset != size:
                raise TFRecordCutError(f"{name}: record {len(offsets)} (byte {offset:,}) is damaged: the file ends inside its header", record=len(offsets), offset=offset)
            width = min(most, 2 * width) if len(offsets) - found > 1 else max(least, width // 2)
    return TFRecordIndex(np.array(offsets, np.int64), np.array(lengths, np.int64))


def _check(name: str, number: int, offset: int, length: int, crc: int, size: int, most: int) -> None:
    if length_crc(length) != crc:
        damage = "its length does not match its checksum"
    elif length > most:
        damage = f"it claims {length:,} bytes, more than the {most:,} of max_record_bytes"
    elif offset + FRAME + length > size:
        damage = f"it claims {length:,} bytes and the file ends before"
    else:
        return
    raise TFRecordError(f"{name}: record {number} (byte {offset:,}) is damaged: {damage}", record=number, offset=offset)
