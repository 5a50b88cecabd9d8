"""NumPy's .npy and .npz, and zip archives.

Codes: `truncated`, `damaged` (errors; a member's checksum included), `trailing_bytes` (warning).
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

from ..engine.errors import OpError
from ..formats.npy_header import MAX_HEADER, NpyHeader, check_payload, payload_bytes, read_npy_header
from ..io.archives import ZipEntry, place_zip_entry, unpacked_entry, zip_index
from ..io.file_objects import BUFFER, RangeFile
from ..io.reader import reader
from .checking import code_of
from .kinds import Target
from .report import Findings

STEP = 1 << 20


def check(target: Target, found: Findings, quick: bool) -> tuple[int, Any]:
    """Headers; of archives the members' content too, unless `quick`."""
    if target.kind.name == "npy":
        _check_npy(npy_header(target), target.size, found, None)
        return 1, None
    count = 0
    for entry, pieces in entries(target):
        count += 1
        try:
            first = next(pieces, b"")
            start = bytes(first[: MAX_HEADER + 12])
            if entry.name.endswith(".npy"):
                _check_npy(read_npy_header(memoryview(start)), entry.size, found, entry.name)
            if not quick:
                for _ in pieces:  # the checksum is told at the end
                    pass
        except OpError as error:
            found.error(code_of(str(error)), str(error), entry.name)
    return count, None


def _check_npy(header: NpyHeader, size: int, found: Findings, record: str | None) -> None:
    check_payload(header, size)
    extra = size - header[3] - payload_bytes(header)
    if extra:
        found.warning("trailing_bytes", f"{extra:,} bytes follow the array", record)


def npy_header(target: Target) -> NpyHeader:
    """The header of an .npy file."""
    ranges = target.open()
    try:
        return read_npy_header(memoryview(ranges.read(0, min(ranges.size, MAX_HEADER + 12))))
    finally:
        ranges.close()


def entries(target: Target) -> Iterator[tuple[ZipEntry, Iterator[Any]]]:
    """The files of a zip archive, each with its content in pieces, which are read as they are asked for."""
    ranges = target.open()

    def packed(entry: ZipEntry) -> Iterator[Any]:
        offset = place_zip_entry(entry, ranges.read, target.name)
        for at in range(offset, offset + entry.packed, STEP):
            yield ranges.read(at, min(STEP, offset + entry.packed - at))

    try:
        for entry in zip_index(None, lambda: io.BufferedReader(RangeFile(target.open(), BUFFER)), target.name):
            yield entry, unpacked_entry(entry, packed(entry), target.name)
    finally:
        ranges.close()


# ------------------------------------------------------------------------- what is inside


def schema(target: Target) -> dict[str, Any]:
    """dtype and shape by member; "" is the array of an .npy."""
    if target.kind.name == "npy":
        return {"": _shown(npy_header(target))}
    return {entry.name: _member(entry, pieces) for entry, pieces in entries(target)}


def _member(entry: ZipEntry, pieces: Iterator[Any]) -> str:
    if not entry.name.endswith(".npy"):
        return f"{entry.size:,} bytes"
    return _shown(read_npy_header(memoryview(bytes(next(pieces, b"")[: MAX_HEADER + 12]))))


def _shown(header: NpyHeader) -> str:
    return f"{header[0]}{list(header[1])}"


def head(target: Target, count: int) -> Iterator[Any]:
    """The first rows of an .npy; members of an archive."""
    if target.kind.name != "npy":
        for number, (name, what) in enumerate(schema(target).items()):
            if number >= count:
                return
            yield {"member": name, "content": what}
        return
    import numpy as np

    dtype, shape, fortran, offset = header = npy_header(target)
    check_payload(header, target.size)
    if not shape or fortran or not shape[0]:
        yield {"dtype": str(dtype), "shape": list(shape)}
        return
    row = payload_bytes(header) // shape[0]
    rows = min(count, shape[0])
    if row * rows > STEP:
        yield {"dtype": str(dtype), "shape": list(shape)}
        return
    data = reader(target.uri).read_range(offset, row * rows)
    yield from np.frombuffer(data, dtype).reshape(rows, *shape[1:]).tolist()


def stats(target: Target) -> tuple[dict[str, Any], Any]:
    """Arrays, elements and bytes."""
    if target.kind.name == "npy":
        header = npy_header(target)
        return {"arrays": 1, "dtype": str(header[0]), "shape": list(header[1]), "bytes": payload_bytes(header)}, None
    found = list(entries(target))
    return {"members": len(found), "bytes": sum(entry.size for entry, _ in found), "packed": sum(entry.packed for entry, _ in found)}, None
