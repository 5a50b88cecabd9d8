"""Files as rows: path, size and time from the listing, and of images what their headers say, read only where it is asked for."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa

from dataio.engine.errors import OpError
from dataio.engine.source import Pass
from dataio.formats.image.header import read_header
from dataio.inspect.kinds import kind_of
from dataio.io.errors import RangeError
from dataio.io.parallel import WORKERS, for_each
from dataio.io.ranges import open_ranges
from dataio.io.store import open_store
from dataio.io.uri import local_path

from .file_set import Files
from .files import Found
from .late import Conditions, LateChunk, LateScan, Rows

CHUNK = 1024
"""Files of a chunk."""
FIRST, REMOTE_FIRST, MOST = 1 << 12, 1 << 14, 1 << 24
"""Bytes of the first read of a header, of a file and of an object; each further one reads 16 times as many, up to `MOST`."""
FILE_FIELDS = [("path", pa.string()), ("size", pa.int64()), ("mtime", pa.timestamp("us", "UTC"))]
IMAGE_FIELDS = [("width", pa.int32()), ("height", pa.int32()), ("format", pa.string())]
_COSTS = {"path": 0, "size": 1, "mtime": 1, "width": 2, "height": 2, "format": 2}


class FileColumns(LateScan):
    """A row for each file."""

    def __init__(self, files: Files) -> None:
        self.files = files

    def describe(self) -> str:
        return f"scan_files({self.files.title()}): columns {', '.join(self.schema().names)}"

    def schema(self) -> pa.Schema:
        return pa.schema([*FILE_FIELDS, *IMAGE_FIELDS])

    def cost(self, name: str) -> int:
        return _COSTS[name]

    def indexed(self) -> bool:
        return True

    def chunks(self, test: Conditions, pass_: Pass) -> Iterator[LateChunk]:
        found = self.files.found
        for start in range(0, len(found), CHUNK):
            yield _Some(found[start : start + CHUNK], start)


class _Some(LateChunk):
    def __init__(self, found: list[Found], start: int) -> None:
        self._found, self._start = found, start

    @property
    def height(self) -> int:
        return len(self._found)

    @property
    def place(self) -> tuple[str, str]:
        return self._found[0].uri, f"files {self._start} to {self._start + self.height - 1}"

    def read(self, names: Sequence[str], rows: Rows | None) -> pa.Table:
        found = self._found if rows is None else [self._found[row] for row in rows]
        columns: dict[str, list[Any]] = {"path": [one.uri for one in found]}
        if not {"size", "mtime"}.isdisjoint(names):
            told = _each(found, _told)
            columns["size"] = [one[0] for one in told]
            columns["mtime"] = [one[1] for one in told]
        if not {"width", "height", "format"}.isdisjoint(names):
            told = _each(found, image_header)
            for at, (name, _) in enumerate(IMAGE_FIELDS):
                columns[name] = [one[at] for one in told]
        kinds = dict(FILE_FIELDS) | dict(IMAGE_FIELDS)
        return pa.table({name: pa.array(columns[name], kinds[name]) for name in names})


def _each(found: list[Found], read: Any) -> list[Any]:
    """What `read` gives for each file, some at a time."""
    results: list[Any] = [None] * len(found)

    def share(numbers: list[int]) -> None:
        for number in numbers:
            results[number] = read(found[number])

    for_each(share, [part.tolist() for part in np.array_split(np.arange(len(found)), min(WORKERS, len(found)))])
    return results


def _told(found: Found) -> tuple[int | None, datetime | None]:
    """Size in bytes and time of the last change."""
    local = local_path(found.uri)
    if local is not None:
        info = os.stat(local)
        return info.st_size, datetime.fromtimestamp(info.st_mtime_ns // 1000 / 1e6, UTC)
    told = found.info
    if told is None:
        store, key = open_store(found.uri)
        told = store.head(key)
    return told.size, None if told.modified is None else datetime.fromtimestamp(told.modified, UTC)


def image_header(found: Found) -> tuple[int | None, int | None, str | None]:
    """Width, height and format of an image by its header; three times None where it is no image, or its header is damaged.

    Raises:
        OSError: missing or unreadable.
    """
    local = local_path(found.uri)
    if local is not None:
        with closing(_LocalHead(os.fsdecode(local))) as head:
            return _parsed(found.uri, head.read, FIRST)
    store, key = open_store(found.uri)

    def read(size: int) -> bytes:
        try:
            return bytes(store.get(key, 0, size))
        except RangeError:  # an empty object has no first byte
            return b""

    return _parsed(found.uri, read, REMOTE_FIRST)


class _LocalHead:
    """The beginning of a local file."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)

    def read(self, size: int) -> bytes:
        """Its first `size` bytes, or all there are."""
        try:
            return os.pread(self._descriptor, size, 0)
        except OSError:  # a pipe, which has no places
            with closing(open_ranges(self._path)) as ranges:
                return bytes(ranges.read(0, min(size, ranges.size)))

    def close(self) -> None:
        os.close(self._descriptor)


def _parsed(uri: str, read: Any, first: int) -> tuple[int | None, int | None, str | None]:
    size = first
    while True:
        data = read(size)
        if kind_of(uri, data).name != "image":
            return None, None, None
        try:
            header = read_header(data)
        except OpError:
            if len(data) < size or size >= MOST:
                return None, None, None
            size *= 16  # a long Exif block or colour profile comes first
            continue
        return header.width, header.height, header.format
