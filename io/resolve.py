"""From a slot's value to its bytes: in memory, a local file, a reader, or a URI of any store."""

from __future__ import annotations

import errno
import os
import select
import stat
from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from ..engine.errors import RecordError
from .errors import DeadlineError, ReadError
from .uri import local_path, scheme_of

SOURCE_KEYS = ("reader", "path", "url", "uri")


def read_source(value: Any) -> Any:
    """The bytes of one source.

    Args:
        value: bytes-like or a NumPy array (its C-order bytes); a str or PathLike (local path or URI); an object with
            `read_all()`; a mapping with `bytes`, or with one of `reader`, `path`, `url`, `uri`, and `range=(start,
            length)` or `offset` with `size`.

    Returns:
        Something bytes-like: the object itself when it already is, a fresh uint8 array for files.

    Raises:
        RecordError: the value is of a kind that holds no bytes.
        OSError: missing, a directory, unreadable.
        ValueError: options that do not go together.
    """
    if isinstance(value, str):
        return read_uri(value) if "://" in value else read_file(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return value
    if isinstance(value, np.ndarray):
        return np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    if hasattr(value, "__fspath__"):
        return read_uri(os.fspath(value))
    if hasattr(value, "read_all"):
        return value.read_buffer() if hasattr(value, "read_buffer") else value.read_all()
    if isinstance(value, dict):
        return _read_mapping(value)
    raise unreadable(value)


def place_of(value: Any) -> tuple[str, bool]:
    """Where `read_source` would find the bytes, with nothing read, and whether it would read a range only.

    Returns:
        "inline_bytes" for what is in memory, "reader", "file" for a local path, or a URI's scheme.

    Raises:
        RecordError, ValueError: as `read_source` does.
    """
    if isinstance(value, (bytes, bytearray, memoryview, np.ndarray)):
        return "inline_bytes", False
    if isinstance(value, str) or hasattr(value, "__fspath__"):
        uri = os.fspath(value)
        return "file" if local_path(uri) is not None else str(scheme_of(str(uri))), False
    if hasattr(value, "read_all"):
        return "reader", False
    if not isinstance(value, dict):
        raise unreadable(value)
    if value.get("bytes") is not None:
        return "inline_bytes", False
    offset, _ = byte_range(value)
    return place_of(_source_in(value, ranged=offset is not None))[0], offset is not None


def unreadable(value: Any) -> RecordError:
    """The error for a value of a kind that holds no bytes."""
    return RecordError(
        f"cannot read bytes from a {type(value).__name__}; give bytes, a path or URI, a reader or an array, or carry the "
        "value as it is with .passthrough()"
    )


def read_uri(
    uri: str | bytes,
    offset: int = 0,
    size: int | None = None,
    *,
    headers: Mapping[str, str] | None = None,
    limit: int | None = None,
) -> Any:
    """The content of a local path or of a URI of any scheme that a store serves, or `size` bytes of it from `offset`.

    Args:
        headers: of the request, for http and https.
        limit: bytes that may come from a store.
    """
    path = local_path(uri)
    if path is not None:
        return read_file(path, offset, size)
    from .store import open_store

    store, key = open_store(uri)
    data = store.get(key, offset, size, headers=headers, limit=limit)
    if size is not None and len(data) < size:
        raise ReadError(f"range of {size} bytes at {offset} lies outside {store.uri(key)}: {len(data)} bytes are there")
    return data


def read_file(path: str | bytes, offset: int = 0, size: int | None = None) -> np.ndarray:
    """A whole local file (or `size` bytes from `offset`) as a fresh, writable uint8 array.

    Raises:
        FileNotFoundError, PermissionError, IsADirectoryError: as the system says.
        ReadError: the file ended early.
    """
    descriptor = os.open(path, OPEN_ANY)
    try:
        if size is None and offset == 0 and (data := _read_small(descriptor, path)) is not None:
            return data
        return _read_checked(descriptor, path, offset, size)
    finally:
        os.close(descriptor)


def _read_small(descriptor: int, path: str | bytes) -> np.ndarray | None:
    """A whole file of at most SEEK_LIMIT bytes; None for anything else, with nothing of it consumed.

    Seeking to the end tells the size in a quarter of the time of `fstat`, whose result is a large object.
    """
    try:
        size = os.lseek(descriptor, 0, os.SEEK_END)
        if not 0 < size <= SEEK_LIMIT:
            os.lseek(descriptor, 0, os.SEEK_SET)
            return None
        data: Any = np.empty(size, np.uint8)
        done = os.preadv(descriptor, (data,), 0)
    except OSError:  # pipes have no end to seek, directories may have one but cannot be read
        return None
    if done < size:
        fill(descriptor, path, data, done, 0)
    return cast(np.ndarray, data)


def _read_checked(descriptor: int, path: str | bytes, offset: int, size: int | None) -> np.ndarray:
    """What `read_file` gives, for an open file of any kind."""
    info = os.fstat(descriptor)
    if info.st_mode & _KIND != stat.S_IFREG:
        if stat.S_ISDIR(info.st_mode):
            raise IsADirectoryError(errno.EISDIR, "is a directory", path)
        return read_stream(descriptor, offset, size)
    wanted = info.st_size - offset if size is None else size
    if wanted < 0 or offset + wanted > info.st_size:
        raise ReadError(f"range of {size} bytes at {offset} lies outside the {info.st_size} bytes of {path!r}")
    data = np.empty(wanted, np.uint8)
    fill(descriptor, path, data, 0, offset)
    return data


def fill(descriptor: int, path: str | bytes, data: Any, done: int, offset: int) -> None:
    """Read on from byte `offset + done` of the file until `data` is full: the system may give less than was asked for.

    Raises:
        ReadError: the file ended early.
    """
    while done < len(data):
        more = os.preadv(descriptor, (data[done:],), offset + done)
        if more == 0:
            raise ReadError(f"{path!r} ended at byte {offset + done} while it was read")
        done += more


SEEK_LIMIT = 1 << 20
"""Bytes up to which the end of a file is taken for its size: what is no file may claim any end, up to 2**63 - 1."""
OPEN_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
OPEN_ANY = OPEN_FLAGS | getattr(os, "O_NONBLOCK", 0)
"""For what may be a pipe: opening one that nobody writes to would block for ever."""
PIPE_WAIT = 30.0
"""Seconds without a byte after which a pipe is given up."""
_KIND = stat.S_IFMT(0o177777)


def read_stream(descriptor: int, offset: int, size: int | None) -> np.ndarray:
    """What a pipe or device gives, which tells no size; opened by OPEN_ANY, so that a pipe without a writer ends too.

    Raises:
        DeadlineError: nobody wrote to a pipe for PIPE_WAIT seconds.
    """
    chunks, total = [], 0
    end = None if size is None else offset + size
    while end is None or total < end:
        if hasattr(select, "poll"):
            waiting = select.poll()
            waiting.register(descriptor, select.POLLIN)
            if not waiting.poll(PIPE_WAIT * 1000):
                raise DeadlineError(f"nobody wrote to this pipe for {PIPE_WAIT:g} seconds")
        chunk = os.read(descriptor, 1 << 20)
        if not chunk:
            break
        chunks.append(chunk)
        total += len(chunk)
    return np.frombuffer(b"".join(chunks), np.uint8)[offset:end].copy()


def _read_mapping(value: dict[str, Any]) -> Any:
    if value.get("bytes") is not None:  # how image and audio columns of data sets hold their files
        return value["bytes"]
    offset, size = byte_range(value)
    source = _source_in(value, ranged=offset is not None)
    if offset is None and not isinstance(source, str):
        return read_source(source)
    return read_uri(
        os.fspath(source), offset or 0, size, headers=value.get("headers"), limit=value.get("max_response_bytes")
    )


def _source_in(value: dict[str, Any], *, ranged: bool) -> Any:
    """What a mapping says to read, the first of `SOURCE_KEYS` that it has."""
    key = next((key for key in SOURCE_KEYS if value.get(key) is not None), None)
    if key is None:
        raise RecordError(
            f"a mapping source needs one of bytes, {', '.join(SOURCE_KEYS)}; it has: {', '.join(map(str, value))}"
        )
    if ranged and key == "reader":
        raise ValueError("range options do not go with a reader: make the reader with them")
    return value[key]


def byte_range(value: dict[str, Any]) -> tuple[int | None, int | None]:
    if value.get("range") is not None:
        start, length = value["range"]
        return int(start), int(length)
    offset, size = value.get("offset"), value.get("size")
    if (offset is None) != (size is None):
        raise ValueError("a byte range needs both offset and size")
    return (None, None) if offset is None else (int(offset), int(size))  # type: ignore[arg-type]
