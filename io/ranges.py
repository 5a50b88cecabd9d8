"""Sources of bytes that are read in parts: in memory, local files, windows of either, objects in any store.

`open_ranges` is to a decoder that needs a small part of a large file what `resolve.read_source` is to one that needs all
of it. Nothing is mapped into memory: a file that shrinks while it is mapped kills the process, one that shrinks while it
is read gives a `ReadError`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Hashable
from functools import lru_cache
from typing import Any, NoReturn, TypeAlias

from ..engine.errors import RecordError
from ..engine.source import RangeReader
from .resolve import _SOURCE_KEYS, ReadError, _byte_range, read_file, read_source
from .uri import local_path

OPEN_FILES = 32
"""Local files kept open, so that many records in one file open it once; a tenth of the smallest usual system limit."""
WHOLE_BELOW = 1 << 20
"""Bytes of a remote object below which it is fetched whole: one request costs more than these bytes."""
_TAGS = ("ETag", "etag", "generation", "mtime", "LastModified", "last_modified", "updated")
"""Names under which file systems of fsspec tell the version of an object, the surest first."""

FileIdentity: TypeAlias = tuple[int, int, int, int, int]


def open_ranges(value: Any) -> RangeReader:
    """Open one source for reading in parts.

    Args:
        value: what `read_source` takes: bytes-like or a NumPy array (viewed, not copied); a str or PathLike (local path or
            URI); an object with `read_all()` (read whole); a mapping with `bytes`, or with one of `reader`, `path`, `url`,
            `uri`, and `range=(start, length)` or `offset` with `size` for a window.

    Raises:
        RecordError: the value is of a kind that holds no bytes.
        OSError: missing, a directory, unreadable; a window that is not inside (ReadError).
        ValueError: options that do not go together.
    """
    if isinstance(value, str) or hasattr(value, "__fspath__"):
        return _open_uri(os.fspath(value))
    if isinstance(value, dict):
        return _open_mapping(value)
    return MemoryRanges(read_source(value))


def _open_uri(uri: str | bytes) -> RangeReader:
    path = local_path(uri)
    return _open_remote(str(uri)) if path is None else _open_file(path)


def _open_mapping(value: dict[str, Any]) -> RangeReader:
    source = next((key for key in _SOURCE_KEYS if value.get(key) is not None), None)
    if value.get("bytes") is not None or source is None:
        return MemoryRanges(read_source(value))  # which says what is missing
    offset, size = _byte_range(value)
    if offset is None or size is None:
        return open_ranges(value[source])
    if source == "reader":
        raise ValueError("range options do not go with a reader: make the reader with them")
    return Window(open_ranges(value[source]), offset, size)


def _check_inside(what: object, size: int, offset: int, length: int) -> None:
    if offset < 0 or length < 0 or offset + length > size:
        raise ReadError(f"{length} bytes at {offset} lie outside the {size} bytes of {what}")


class MemoryRanges:
    """Bytes in memory; what `read` gives are views of them.

    Attributes:
        size, identity: as `RangeReader` says; `identity` is None unless the bytes came from a store that tells one.
    """

    __slots__ = ("_view", "identity", "size")

    def __init__(self, data: Any, identity: Hashable | None = None) -> None:
        try:
            view = memoryview(data)
            self._view = view if view.ndim == 1 and view.format == "B" and view.contiguous else view.cast("B")
        except TypeError as error:
            raise RecordError(f"cannot read bytes from a {type(data).__name__}: {error}") from error
        self.size = len(self._view)
        self.identity = identity

    def read(self, offset: int, length: int) -> memoryview:
        """`length` bytes from `offset`, a view.

        Raises:
            ReadError: outside.
        """
        _check_inside("data in memory", self.size, offset, length)
        return self._view[offset : offset + length]

    def read_into(self, offset: int, out: memoryview) -> None:
        """Fill `out`, a writable buffer of bytes."""
        out[:] = self.read(offset, len(out))

    def close(self) -> None:
        """Nothing is held."""


class _OpenFile:
    """A descriptor that closes when nobody refers to it any more: neither the cache nor a reader."""

    __slots__ = ("descriptor",)

    def __init__(self, path: str | bytes) -> None:
        self.descriptor = -1
        self.descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0))

    def __reduce__(self) -> NoReturn:
        raise TypeError("an open file stays in its process: send its path, and open that")

    def __del__(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)


class _Replaced(Exception):
    """Another file took the path between two system calls."""


def _identity(info: os.stat_result) -> FileIdentity:
    """Device and inode name the file whatever its path; the change time also tells a rewrite that keeps the other times."""
    return info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns


@lru_cache(maxsize=OPEN_FILES)
def _opened(path: str | bytes, identity: FileIdentity) -> _OpenFile:
    file = _OpenFile(path)
    if _identity(os.fstat(file.descriptor)) != identity:
        raise _Replaced
    return file


def _open_file(path: str | bytes) -> RangeReader:
    for _ in range(100):
        info = os.stat(path)
        if not stat.S_ISREG(info.st_mode):
            return MemoryRanges(read_file(path))  # a pipe tells no size; a directory is refused there
        identity = _identity(info)
        try:
            return FileRanges(path, _opened(path, identity), identity)
        except _Replaced:
            continue
    raise ReadError(f"{path!r} is written to all the time")


def close_files() -> None:
    """Close the local files that are kept open and that no reader uses."""
    _opened.cache_clear()


class FileRanges:
    """A local file, read by `pread`: any number of readers, threads and processes share one descriptor.

    Attributes:
        size, identity: as `RangeReader` says; `identity` is (device, inode, size, modification and change time in ns).
    """

    __slots__ = ("_file", "_path", "identity", "size")

    def __init__(self, path: str | bytes, file: _OpenFile, identity: FileIdentity) -> None:
        self._path = path
        self._file: _OpenFile | None = file
        self.identity: Hashable | None = identity
        self.size = identity[2]

    def read(self, offset: int, length: int) -> bytes | bytearray:
        """`length` bytes from `offset`.

        Raises:
            ReadError: outside, or the file ends early.
        """
        _check_inside(repr(self._path), self.size, offset, length)
        data = os.pread(self._descriptor, length, offset)
        if len(data) == length:
            return data
        whole = bytearray(length)  # the system may give less than was asked for
        self.read_into(offset, memoryview(whole))
        return whole

    def read_into(self, offset: int, out: memoryview) -> None:
        """Fill `out`, a writable buffer of bytes.

        Raises:
            ReadError: outside, or the file ends early.
        """
        _check_inside(repr(self._path), self.size, offset, len(out))
        done = os.preadv(self._descriptor, [out], offset) if len(out) else 0
        while done < len(out):
            more = os.preadv(self._descriptor, [out[done:]], offset + done)
            if more == 0:
                raise ReadError(f"{self._path!r} ended at byte {offset + done} while it was read")
            done += more

    @property
    def _descriptor(self) -> int:
        if self._file is None:
            raise ReadError(f"the reader of {self._path!r} is closed")
        return self._file.descriptor

    def close(self) -> None:
        """Let go of the file, which stays open for later readers; more than once is fine."""
        self._file = None


class Window:
    """`size` bytes of another source from `offset` on.

    Raises:
        ReadError: the window is not inside.
    """

    __slots__ = ("_inner", "_offset", "identity", "size")

    def __init__(self, inner: RangeReader, offset: int, size: int) -> None:
        try:
            _check_inside("the source", inner.size, offset, size)
        except ReadError:
            inner.close()
            raise
        self._inner = inner
        self._offset = offset
        self.size = size
        self.identity: Hashable | None = None if inner.identity is None else (inner.identity, offset, size)

    def read(self, offset: int, length: int) -> bytes | bytearray | memoryview:
        """`length` bytes from `offset` of the window."""
        _check_inside("the window", self.size, offset, length)
        return self._inner.read(self._offset + offset, length)

    def read_into(self, offset: int, out: memoryview) -> None:
        """Fill `out`, a writable buffer of bytes."""
        _check_inside("the window", self.size, offset, len(out))
        self._inner.read_into(self._offset + offset, out)

    def close(self) -> None:
        """Close the source."""
        self._inner.close()


def _open_remote(uri: str) -> RangeReader:
    import fsspec

    system, path = fsspec.core.url_to_fs(uri)
    info = system.info(path)
    size = info.get("size")
    tag = next((info[name] for name in _TAGS if info.get(name)), None)
    identity = (uri, size, tag) if isinstance(tag, Hashable) and tag is not None and size is not None else None
    if size is None or size <= WHOLE_BELOW:
        return MemoryRanges(system.cat_file(path), identity)
    return StoreRanges(uri, system, path, size, identity)


class StoreRanges:
    """An object of a store that fsspec knows, read by ranged requests."""

    __slots__ = ("_path", "_system", "_uri", "identity", "size")

    def __init__(self, uri: str, system: Any, path: str, size: int, identity: Hashable | None) -> None:
        self._uri = uri
        self._system = system
        self._path = path
        self.size = size
        self.identity = identity

    def read(self, offset: int, length: int) -> bytes:
        """`length` bytes from `offset`, in one request.

        Raises:
            ReadError: outside, or the store gave another number of bytes.
        """
        _check_inside(self._uri, self.size, offset, length)
        if length == 0:
            return b""
        data: bytes = self._system.cat_file(self._path, start=offset, end=offset + length)
        if len(data) != length:
            raise ReadError(f"{self._uri} gave {len(data)} bytes where {length} at {offset} were asked for")
        return data

    def read_into(self, offset: int, out: memoryview) -> None:
        """Fill `out`, a writable buffer of bytes."""
        out[:] = self.read(offset, len(out))

    def close(self) -> None:
        """Nothing is held: the connections belong to the file system."""
