"""Sources of bytes that are read in parts: in memory, local files, windows of either, objects in any store.

`open_ranges` is to a decoder that needs a small part of a large file what `resolve.read_source` is to one that needs all
of it. Nothing is mapped into memory: a file that shrinks while it is mapped kills the process, one that shrinks while it
is read gives a `ReadError`.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from typing import Any, NoReturn, TypeAlias

from ..engine.errors import RecordError
from ..engine.forks import new_lock_in_child
from ..engine.source import RangeReader
from .errors import ReadError, StoreError
from .resolve import OPEN_ANY, SOURCE_KEYS, byte_range, fill, read_source, read_stream
from .secrets import masked
from .settings import ARCHIVE_INDEXES
from .store import BytesLike, ObjectInfo, Store, open_store
from .uri import HTTP_SCHEMES, local_path

OPEN_FILES = 32
"""Local files kept open, so that many records in one file open it once; a tenth of the smallest usual system limit."""
SMALL_FILE = 1 << 15
"""Bytes up to which a local file is read whole and not kept open: that takes less time than to read two parts of it."""
WHOLE_BELOW = 1 << 20
"""Bytes of a remote object below which it is fetched whole: one request costs more than these bytes."""


def open_ranges(value: Any) -> RangeReader:
    """Open one source for reading in parts.

    Args:
        value: what `read_source` takes: bytes-like or a NumPy array (viewed, not copied); a str or PathLike (local path or
            URI); a reader (in parts where it can be, else whole); a mapping with `bytes`, or with one of `reader`, `path`,
            `url`, `uri`, and `range=(start, length)` or `offset` with `size` for a window.

    Raises:
        RecordError: the value is of a kind that holds no bytes.
        OSError: missing, a directory, unreadable; a window that is not inside (ReadError).
        ValueError: options that do not go together.
    """
    if isinstance(value, str) or hasattr(value, "__fspath__"):
        return _open_uri(os.fspath(value))
    if isinstance(value, dict):
        return _open_mapping(value)
    if hasattr(value, "open_ranges"):
        opened: RangeReader = value.open_ranges()
        return opened
    return MemoryRanges(read_source(value))


def _open_uri(uri: str | bytes) -> RangeReader:
    path = local_path(uri)
    return open_remote(str(uri)) if path is None else open_file(path)


def _open_mapping(value: dict[str, Any]) -> RangeReader:
    source = next((key for key in SOURCE_KEYS if value.get(key) is not None), None)
    if value.get("bytes") is not None or source is None:
        return MemoryRanges(read_source(value))  # which says what is missing
    offset, size = byte_range(value)
    if offset is None or size is None:
        return open_ranges(value[source])
    if source == "reader":
        raise ValueError("range options do not go with a reader: make the reader with them")
    return Window(open_ranges(value[source]), offset, size)


def _check_inside(what: object, size: int, offset: int, length: int) -> None:
    if offset < 0 or length < 0 or offset + length > size:
        raise ReadError(f"{length} bytes at {offset} lie outside the {size} bytes of {what!r}")


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


FileIdentity: TypeAlias = tuple[int, int, int, int, int]


def file_identity(info: os.stat_result) -> FileIdentity:
    """Device and inode name the file whatever its path; the change time also tells a rewrite that keeps the other times."""
    return info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns


class _OpenFile:
    """A descriptor that closes when nobody refers to it any more: neither the files kept open nor a reader."""

    __slots__ = ("descriptor", "identity", "kind", "size")

    def __init__(self, path: str | bytes) -> None:
        self.descriptor = -1
        self.descriptor = os.open(path, OPEN_ANY)
        info = os.fstat(self.descriptor)
        self.kind = stat.S_IFMT(info.st_mode)
        self.size = info.st_size
        self.identity = file_identity(info)

    def __reduce__(self) -> NoReturn:
        raise TypeError("an open file stays in its process: send its path, and open that")

    def __del__(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)


class _OpenFiles:
    """The files used last, by path, kept open."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str | bytes, _OpenFile] = OrderedDict()
        self._lock = threading.Lock()
        new_lock_in_child(self, "_lock", threading.Lock)

    def find(self, path: str | bytes) -> _OpenFile | None:
        """The file, if it is kept and the path still leads to it."""
        file = self._kept.get(path)
        if file is None or file_identity(os.stat(path)) != file.identity:
            return None
        with self._lock:
            if path in self._kept:
                self._kept.move_to_end(path)
        return file

    def add(self, path: str | bytes, file: _OpenFile) -> None:
        """Keep a file, in place of another at this path, and of the one not used for longest."""
        oldest = None  # closes after the lock is free
        with self._lock:
            replaced, self._kept[path] = self._kept.pop(path, None), file
            if len(self._kept) > OPEN_FILES:
                oldest = self._kept.popitem(last=False)
        del replaced, oldest

    def clear(self) -> None:
        with self._lock:
            kept, self._kept = self._kept, OrderedDict()
        kept.clear()


_files = _OpenFiles()


def close_files() -> None:
    """Close the local files that are kept open and that no reader uses."""
    _files.clear()


def open_file(path: str | bytes) -> RangeReader:
    """Open a local file for reading in parts; errors as `open_ranges`."""
    file = _files.find(path)
    if file is None:
        file = _OpenFile(path)
        if file.kind == stat.S_IFDIR:
            raise IsADirectoryError(errno.EISDIR, "is a directory", path)
        if file.kind != stat.S_IFREG:
            return MemoryRanges(read_stream(file.descriptor, 0, None))  # a pipe tells no size
        if file.size <= SMALL_FILE:
            data = os.pread(file.descriptor, file.size, 0)
            if len(data) == file.size:
                return MemoryRanges(data, file.identity)
        _files.add(path, file)
    return FileRanges(path, file)


class FileRanges:
    """A local file, read by `pread`: any number of readers, threads and processes share one descriptor.

    Attributes:
        size, identity: as `RangeReader` says; `identity` is (device, inode, size, modification and change time in ns).
    """

    __slots__ = ("_file", "_path", "identity", "size")

    def __init__(self, path: str | bytes, file: _OpenFile) -> None:
        self._path = path
        self._file: _OpenFile | None = file
        self.identity: Hashable | None = file.identity
        self.size = file.size

    def read(self, offset: int, length: int) -> bytes | bytearray:
        """`length` bytes from `offset`.

        Raises:
            ReadError: outside, or the file ends early.
        """
        _check_inside(self._path, self.size, offset, length)
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
        _check_inside(self._path, self.size, offset, len(out))
        fill(self._descriptor, self._path, out, 0, offset)

    def fileno(self) -> int:
        """The descriptor of the open file, which the reader keeps open."""
        return self._descriptor

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


# ------------------------------------------------------------------- stores


class _Versions:
    """Size and ETag of the remote objects that were opened last, for who asks again and holds his requests to the ETag."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, tuple[int, str]] = OrderedDict()
        self._lock = threading.Lock()
        new_lock_in_child(self, "_lock", threading.Lock)

    def find(self, uri: str) -> tuple[int, str] | None:
        return self._known.get(uri)

    def add(self, uri: str, size: int, etag: str) -> None:
        with self._lock:
            self._known.pop(uri, None)
            self._known[uri] = size, etag
            while len(self._known) > ARCHIVE_INDEXES.get():
                self._known.popitem(last=False)


_versions = _Versions()


def open_remote(
    uri: str,
    *,
    headers: Mapping[str, str] | None = None,
    cache: Any = None,
    whole_below: int = WHOLE_BELOW,
    remembered: bool = False,
) -> RangeReader:
    """Open an object of a store for reading in parts, all of one version where the store tells versions.

    Args:
        uri: of any scheme.
        headers: of the requests, for http and https.
        cache: as `open_store` takes it.
        whole_below: bytes up to which the object is fetched whole.
        remembered: whether what an earlier call learnt of size and version will do. The first read of an object that was replaced
            since raises ChangedError or RangeError then.
    """
    store, key = open_store(uri, cache=cache)
    if remembered and headers is None and (known := _versions.find(uri)) is not None:
        return StoreRanges(uri, store, key, known[0], known[1], headers)
    info = _head(store, key, headers)
    if info.is_prefix:
        raise IsADirectoryError(errno.EISDIR, "is a directory", uri)
    etag = None if info.etag is None or info.etag.startswith("W/") else info.etag  # a weak one may stand for other bytes
    if info.size is not None and info.size > whole_below:
        if etag is not None and headers is None:
            _versions.add(uri, info.size, etag)
        return StoreRanges(uri, store, key, info.size, etag, headers)
    data = store.get(key, if_match=etag, headers=headers)
    if info.size is not None and len(data) != info.size:
        raise ReadError(f"{store.uri(key)} gave {len(data)} bytes where {info.size} were announced")
    return MemoryRanges(data, None if etag is None else (uri, len(data), etag))


def _head(store: Store, key: str, headers: Mapping[str, str] | None) -> ObjectInfo:
    """What is known of an object; of a web server that does not answer HEAD (presigned URLs are for GET alone) by GET."""
    try:
        return store.head(key, headers=headers)
    except StoreError as error:
        if store.scheme not in HTTP_SCHEMES or error.status not in (400, 401, 403, 405, 501):
            raise
        with store.open(key, 0, 1, headers=headers) as body:
            return body.info


class StoreRanges:
    """An object of a store, read by ranged requests under its ETag.

    Attributes:
        size, identity: as `RangeReader` says; `identity` is (URI, size, ETag), None without an ETag.
    """

    __slots__ = ("_etag", "_headers", "_key", "_store", "identity", "size")

    def __init__(self, uri: str, store: Store, key: str, size: int, etag: str | None, headers: Mapping[str, str] | None) -> None:
        self._store, self._key, self._etag, self._headers = store, key, etag, headers
        self.size = size
        self.identity: Hashable | None = None if etag is None else (uri, size, etag)

    def read(self, offset: int, length: int) -> BytesLike:
        """`length` bytes from `offset`, in one request.

        Raises:
            ReadError: outside, or the store gave another number of bytes.
            ChangedError: the object was replaced.
        """
        self._check(offset, length)
        if length == 0:
            return b""
        data = self._store.get(self._key, offset, length, if_match=self._etag, headers=self._headers)
        self._complete(len(data), offset, length)
        return data

    def read_into(self, offset: int, out: memoryview) -> None:
        """Fill `out`, a writable buffer of bytes; errors as `read`."""
        self._check(offset, len(out))
        if self._headers is not None:
            out[:] = self.read(offset, len(out))
        elif len(out):
            self._complete(self._store.get_into(self._key, offset, out, if_match=self._etag), offset, len(out))

    def _check(self, offset: int, length: int) -> None:
        _check_inside(masked(self._store.uri(self._key)), self.size, offset, length)

    def _complete(self, got: int, offset: int, length: int) -> None:
        if got != length:
            uri = masked(self._store.uri(self._key))
            raise ReadError(f"{uri} gave {got} bytes where {length} at {offset} were asked for")

    def close(self) -> None:
        """Nothing is held: the connections belong to the store."""
