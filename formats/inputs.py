"""What every format helper takes as a source: a path or URI, bytes, or something that can be read."""

from __future__ import annotations

import os
from typing import Any

from ..engine.errors import RecordError
from ..engine.source import RangeReader
from ..io.ranges import MemoryRanges
from ..io.ranges import open_ranges as _open_ranges
from ..io.resolve import read_source
from ..io.secrets import masked
from ..io.store import BytesLike
from ..io.uri import local_path

_BYTES = (bytes, bytearray, memoryview)


def read_bytes(source: Any) -> BytesLike:
    """All bytes of a source.

    Args:
        source: str or PathLike (local path or URI), bytes-like (given back as it is), a `dataio.Reader`, or an object whose
            `read()` returns bytes.

    Raises:
        TypeError: of another type, or `read()` gave something else.
        OSError: missing or unreadable.
    """
    if isinstance(source, (str, os.PathLike, *_BYTES)) or hasattr(source, "read_all"):
        found: BytesLike = read_source(source)
        return found
    return _read(source)


def open_ranges(source: Any) -> RangeReader:
    """The source for reading in parts; close it. Takes what `read_bytes` takes; an object with `read()` is read whole."""
    if isinstance(source, (str, os.PathLike, *_BYTES)) or hasattr(source, "open_ranges"):
        return _open_ranges(source)
    return MemoryRanges(read_bytes(source))


def local_file(source: Any) -> str | None:
    """The path of a source that is a local path or `file://` URI; None for all others."""
    if not isinstance(source, (str, os.PathLike)):
        return None
    path = local_path(os.fspath(source))
    return None if path is None else os.fsdecode(path)


def name_of(source: Any) -> str:
    """What messages call a source: its path or URI with secrets masked, `<bytes>` for memory, else its type."""
    if isinstance(source, (str, os.PathLike)):
        return masked(os.fsdecode(source))
    if isinstance(source, _BYTES):
        return "<bytes>"
    return masked(str(getattr(source, "uri", None) or getattr(source, "name", None) or f"<{type(source).__name__}>"))


def _read(source: Any) -> BytesLike:
    if not hasattr(source, "read"):
        raise RecordError(
            f"a source is a path or URI (str or PathLike), bytes, or an object with read(); got {type(source).__name__}"
        )
    data = source.read()
    if not isinstance(data, _BYTES):
        raise RecordError(f"read() of {type(source).__name__} must return bytes, it returned {type(data).__name__}")
    return data
