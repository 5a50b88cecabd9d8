"""TFRecord files, plain or compressed.

Codes: `truncated`, `wrong_length_crc` (nothing behind it can be found), `wrong_crc`, `undecodable` (no `tf.train.Example`, where the
first record is one) (errors); `uneven_files` (warning).

Each record is its length (uint64), the masked CRC-32C of those 8 bytes, the payload, and the masked CRC-32C of that, all little-endian.
Source: TensorFlow's documentation of the format ("TFRecord and tf.train.Example").
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ..engine.errors import OpError
from ..formats.tfrecord.example import parse_example
from ..formats.tfrecord.framing import FRAME, length_crc, unpack_header
from ..formats.tfrecord.framing import masked as stored_crc
from ..io.overlays import DecodedReader
from ..io.reader import reader
from . import report
from .kinds import Target
from .report import Findings
from .tar import UNPACKED, uneven

STEP = 1 << 22
"""Bytes of a payload that are read at a time."""
KEPT = 1 << 26
"""Bytes of a payload up to which it is decoded."""
MOST_ERRORS = 100
"""Wrong checksums that are told of one by one."""


def example(payload: bytes) -> dict[str, Any] | None:
    """Values by feature; None where the payload is no Example with features."""
    try:
        return parse_example(payload) or None
    except OpError:
        return None


@contextmanager
def opened(target: Target) -> Iterator[io.BufferedIOBase]:
    """The content, decompressed; read forwards."""
    source = reader(target.uri)
    unpacked = DecodedReader(source, target.kind.codec, UNPACKED) if target.kind.codec else source
    with unpacked.open(STEP) as file:
        yield file


@dataclass(slots=True)
class Raw:
    """One record as it stands; `payload` is None where it is longer than was asked for."""

    number: int
    offset: int
    length: int
    payload: bytes | None
    intact: bool


def walk(file: Any, found: Findings, keep: int) -> Iterator[Raw]:
    """The records of a file; ends at the end, or with an error noted where none can be found any more."""
    import google_crc32c

    number = offset = 0
    while True:
        header = file.read(12)
        if not header:
            return
        if len(header) < 12:
            found.error("truncated", f"the file ends inside the header of record {number}, at byte {offset:,}", number)
            return
        length, crc = unpack_header(header)
        if length_crc(length) != crc:
            found.error("wrong_length_crc", f"the length of record {number}, at byte {offset:,}, does not match its checksum", number)
            return
        running, left = 0, length
        pieces: list[bytes] = []
        while left:
            piece = file.read(min(left, STEP))
            if not piece:
                break
            running = google_crc32c.extend(running, piece)
            left -= len(piece)
            if length <= keep:
                pieces.append(piece)
        footer = file.read(4) if not left else b""
        if len(footer) < 4:
            found.error("truncated", f"record {number}, at byte {offset:,}, claims {length:,} bytes and the file ends before", number)
            return
        yield Raw(number, offset, length, b"".join(pieces) if length <= keep else None, stored_crc(running) == int.from_bytes(footer, "little"))
        number += 1
        offset += FRAME + length


def check(target: Target, found: Findings, quick: bool) -> tuple[int, Any]:
    """Every checksum, and unless `quick` every Example."""
    if quick and not target.kind.codec:
        return _skimmed(target, found)
    count = wrong = 0
    examples: bool | None = None
    with opened(target) as file:
        for record in walk(file, found, 0 if quick else KEPT):
            count += 1
            if not record.intact:
                wrong += 1
                if wrong <= MOST_ERRORS:
                    found.error("wrong_crc", f"the content of record {record.number}, at byte {record.offset:,}, does not match its checksum", record.number)
                continue
            if quick or record.payload is None or examples is False:
                continue
            decoded = example(record.payload)
            if examples is None:
                examples = decoded is not None
            elif decoded is None:
                found.error("undecodable", f"record {record.number}, at byte {record.offset:,}, is no tf.train.Example; the first one is", record.number)
    if wrong > MOST_ERRORS:
        found.error("wrong_crc", f"{wrong - MOST_ERRORS:,} more records do not match their checksums")
    return count, count


def _skimmed(target: Target, found: Findings) -> tuple[int, Any]:
    """The lengths and their checksums alone; payloads are not read."""
    number = offset = 0
    with opened(target) as file:
        while offset < target.size:
            file.seek(offset)
            header = file.read(12)
            if len(header) < 12:
                found.error("truncated", f"the file ends inside the header of record {number}, at byte {offset:,}", number)
                break
            length, crc = unpack_header(header)
            if length_crc(length) != crc:
                found.error("wrong_length_crc", f"the length of record {number}, at byte {offset:,}, does not match its checksum", number)
                break
            if offset + FRAME + length > target.size:
                found.error("truncated", f"record {number}, at byte {offset:,}, claims {length:,} bytes and the file ends before", number)
                break
            offset += FRAME + length
            number += 1
    return number, number


class Together(report.Together):
    """Records of several files."""

    def __init__(self) -> None:
        self._counts: list[tuple[str, int]] = []

    def add(self, target: Target, facts: int) -> None:
        self._counts.append((target.name, facts))

    def finish(self, found: Findings) -> None:
        if len(self._counts) > 1:
            uneven(found, self._counts, "files", "records")


# ------------------------------------------------------------------------- what is inside


def _examples(target: Target) -> Iterator[tuple[Raw, dict[str, Any] | None]]:
    """Records and their features; those that are no Example, or too large to be decoded, have none.

    Raises:
        OpError: at the first record that is damaged.
    """
    found = Findings(target.name, 1)
    with opened(target) as file:
        for record in walk(file, found, KEPT):
            if not record.intact:
                raise OpError(f"the content of record {record.number}, at byte {record.offset:,}, does not match its checksum")
            yield record, None if record.payload is None else example(record.payload)
    if found.kept:
        raise OpError(found.kept[0].message)


def head(target: Target, count: int) -> Iterator[Any]:
    """The first records: features of an Example, else the number of bytes."""
    for record, features in _examples(target):
        if record.number >= count:
            return
        yield {"bytes": record.length} if features is None else features
        if record.number + 1 >= count:
            return


def schema(target: Target) -> dict[str, Any]:
    """Type and length of each feature, from the first 100 Examples."""
    kinds: dict[str, Counter[str]] = {}
    for record, features in _examples(target):
        for name, values in (features or {}).items():
            kind = type(values[0]).__name__ if values else "empty"
            kinds.setdefault(name, Counter())[f"{kind}[{len(values)}]"] += 1
        if record.number >= 99:
            break
    return {name: " or ".join(shapes) if len(shapes) <= 3 else f"{next(iter(shapes)).partition('[')[0]}[varies]" for name, shapes in kinds.items()}


def stats(target: Target) -> tuple[dict[str, Any], Any]:
    """Records, their bytes, and in how many each feature is."""
    count = size = 0
    features: Counter[str] = Counter()
    for record, found in _examples(target):
        count += 1
        size += record.length
        features.update(list(found or ()))
    return {"records": count, "bytes": size, "features": dict(features.most_common())}, None
