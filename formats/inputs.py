"""What every format helper takes as a source: a path or URI, bytes, or something that can be read."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from ..engine.errors import OpError, RecordError, did_you_mean
from ..engine.source import RangeReader
from ..io.ranges import MemoryRanges
from ..io.ranges import open_ranges as _open_ranges
from ..io.resolve import read_source
from ..io.secrets import masked
from ..io.store import BytesLike
from ..io.uri import local_path

_BYTES = (bytes, bytearray, memoryview)
SUGGEST_BELOW = 200
"""Keys up to which a misspelt one is compared with all."""


class MissingKeyError(OpError, KeyError):
    """A file holds nothing of that name; the message tells some that it has."""

    def __str__(self) -> str:  # KeyError would print the repr of the message
        return str(self.args[0]) if self.args else ""


def missing_key(source: Any, kind: str, key: str, known: Iterable[str]) -> MissingKeyError:
    """The error for a `kind` (such as "data set") that `source` does not have."""
    names = list(known)
    guess = did_you_mean(key, names) if len(names) <= SUGGEST_BELOW else ""
    shown = ", ".join(map(repr, names[:8])) + (f", ... ({len(names)} in all)" if len(names) > 8 else "")
    return MissingKeyError(f"{name_of(source)} holds no {kind} {key!r}{guess}; it has: {shown or 'none'}")


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


@contextmanager
def naming(source: Any) -> Iterator[None]:
    """Errors of a format (OpError and its kinds) raised inside begin with the name of the source."""
    try:
        yield
    except OpError as error:
        error.args = (f"{name_of(source)}: {error}",)
        raise


def _read(source: Any) -> BytesLike:
    if not hasattr(source, "read"):
        raise RecordError(
            f"a source is a path or URI (str or PathLike), bytes, or an object with read(); got {type(source).__name__}"
        )
    data = source.read()
    if not isinstance(data, _BYTES):
        raise RecordError(f"read() of {type(source).__name__} must return bytes, it returned {type(data).__name__}")
    return data
