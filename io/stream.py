"""`stream(uri)`: the bytes of any URI as they come, in chunks, lines or server-sent events, with bounded memory."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from email.utils import formatdate
from typing import TypedDict

from .arguments import check_count
from .errors import ResponseTooLargeError
from .headers import checked_headers
from .secrets import masked
from .store import Body, ObjectInfo, open_store
from .uri import Uri, parse_uri

LONGEST_LINE = 1 << 26
"""Bytes of one line, and of the data of one event; a longer one is an error instead of memory without bound."""
_LINE_END = re.compile(rb"[\r\n]")
_BOM = b"\xef\xbb\xbf"


class Event(TypedDict):
    """One server-sent event; what its block does not hold is None, and `data` is "" then."""

    event: str | None
    data: str
    id: str | None
    retry: int | None


@dataclass(frozen=True, slots=True)
class HeadInfo:
    """What `head(uri)` tells.

    Attributes:
        status: HTTP status, 200 where the store has none.
        url: that answered, after redirects; secrets masked.
        http_version: "HTTP/1.1" and the like, "n/a" for what is not read by HTTP.
        content_length: bytes, None when the server does not tell.
        headers: by lower-case name.
        etag: as in the header, with its quotes.
        last_modified: as in the header, an HTTP date.
        content_type: as in the header.
    """

    status: int
    url: str
    http_version: str
    content_length: int | None
    headers: Mapping[str, str]
    etag: str | None
    last_modified: str | None
    content_type: str | None

    @classmethod
    def of(cls, uri: Uri, info: ObjectInfo) -> HeadInfo:
        """From what a store tells of an object."""
        if uri.scheme == "file":
            length = {} if info.size is None else {"content-length": str(info.size)}
            url = f"file://{os.path.abspath(uri.key)}"
            return cls(200, url, "n/a", info.size, {**length, "accept-ranges": "bytes"}, None, None, None)
        etag = None if info.etag is None else info.etag if info.etag.startswith("W/") else f'"{info.etag}"'
        modified = info.headers.get("last-modified") or (None if info.modified is None else formatdate(info.modified, usegmt=True))
        headers = dict(info.headers)
        if not headers:
            told = {"content-length": None if info.size is None else str(info.size), "content-type": info.content_type, "etag": etag, "last-modified": modified}
            headers = {name: value for name, value in told.items() if value is not None}
        return cls(info.status, masked(info.url or str(uri)), info.http_version or "n/a", info.size, headers, etag, modified, info.content_type)


class Stream:
    """The bytes of one object, read once, front to back: a context manager.

    One cursor is shared by all methods: each goes on where the last one stopped, also when an iterator is left in the
    middle. At most one chunk of the store and one line are in memory. Leaving the context gives the connection back;
    nothing is left to read then.

    Attributes: those of `HeadInfo`; `content_length` counts the bytes that this stream gives, None when unknown.
    """

    def __init__(self, info: HeadInfo, body: Body, length: int | None) -> None:
        self._info = info
        self._body = body
        self._chunks = iter(body)
        self._length = length
        self._chunk: bytes | memoryview = b""
        self._at = 0
        self._after_return = False  # the line ended by "\r": a "\n" that follows belongs to it
        self._begun = False
        self._closed = False

    @property
    def status(self) -> int:
        return self._info.status

    @property
    def url(self) -> str:
        return self._info.url

    @property
    def http_version(self) -> str:
        return self._info.http_version

    @property
    def content_length(self) -> int | None:
        return self._length

    @property
    def headers(self) -> Mapping[str, str]:
        return self._info.headers

    @property
    def etag(self) -> str | None:
        return self._info.etag

    @property
    def last_modified(self) -> str | None:
        return self._info.last_modified

    @property
    def content_type(self) -> str | None:
        return self._info.content_type

    # --------------------------------------------------------------- the cursor

    def _fill(self) -> bool:
        """Make sure that a byte lies at the cursor; False at the end."""
        while self._at >= len(self._chunk):
            if self._closed:
                return False
            following = next(self._chunks, None)
            if following is None:
                self.close()
                return False
            self._chunk = following if isinstance(following, bytes) else memoryview(following).cast("B")
            self._at = 0
        self._begun = True
        if self._after_return:
            self._after_return = False
            if self._chunk[self._at] == 0x0A:
                self._at += 1
                return self._fill()
        return True

    def _take(self, size: int) -> bytes:
        """Up to `size` bytes of the chunk at the cursor."""
        part = self._chunk[self._at : self._at + size]
        self._at += len(part)
        return bytes(part)

    def read_all(self) -> bytes:
        """All bytes that were not read yet."""
        parts = []
        while self._fill():
            parts.append(self._take(len(self._chunk)))
        return b"".join(parts)

    def iter_bytes(self, chunk_size: int = 65536) -> Iterator[bytes]:
        """The bytes not read yet in pieces of `chunk_size`, the last one shorter.

        Raises:
            TypeError, ValueError: `chunk_size` is no positive integer.
        """
        if isinstance(chunk_size, bool) or not isinstance(chunk_size, int):
            raise TypeError(f"chunk_size is an int, got {type(chunk_size).__name__}")
        if chunk_size < 1:
            raise ValueError(f"chunk_size must be positive, got {chunk_size}")
        return self._pieces(chunk_size)

    def _pieces(self, chunk_size: int) -> Iterator[bytes]:
        while self._fill():
            parts, size = list[bytes](), 0
            while size < chunk_size and self._fill():
                part = self._take(chunk_size - size)
                parts.append(part)
                size += len(part)
            yield parts[0] if len(parts) == 1 else b"".join(parts)

    def iter_lines(self) -> Iterator[str]:
        r"""The lines not read yet, each as soon as it is there, without its end: "\n", "\r\n" or "\r".

        UTF-8; what is none becomes U+FFFD. The last line needs no end.

        Raises:
            ResponseTooLargeError: a line longer than `LONGEST_LINE` bytes.
        """
        while (line := self._line()) is not None:
            yield line[0].decode("utf-8", "replace")

    def _line(self) -> tuple[bytes, bool] | None:
        """The next line and whether its end was there; None at the end of the stream."""
        parts, size = list[bytes](), 0
        while self._fill():
            found = _LINE_END.search(self._chunk, self._at)
            if found is not None:
                part = self._take(found.start() - self._at)
                self._after_return = self._chunk[self._at] == 0x0D
                self._at += 1
                return (b"".join([*parts, part]) if parts else part), True
            parts.append(self._take(len(self._chunk)))
            size += len(parts[-1])
            self._check(size, "a line")
        return (b"".join(parts), False) if size else None

    def _check(self, size: int, what: str) -> None:
        if size > LONGEST_LINE:
            self.close()
            raise ResponseTooLargeError(f"{self.url}: {what} is longer than {LONGEST_LINE} bytes")

    def iter_events(self) -> Iterator[Event]:
        """The server-sent events not read yet, each as soon as its blank line is there.

        By the rules of the WHATWG (HTML, "Server-sent events"), with two differences: an event holds what its own block
        says (an `id` is not carried over to the next), and a block without `data` is an event with `data == ""`. A block of
        comments only is none, and neither is one that the end of the stream cuts off.

        Raises:
            ResponseTooLargeError: the data of one event is larger than `LONGEST_LINE` bytes.
        """
        beginning = not self._begun
        event, data, size = _no_event(), list[str](), 0
        seen = False
        while (found := self._line()) is not None:
            raw, ended = found
            if not ended:
                return
            if beginning:
                raw = raw.removeprefix(_BOM)
                beginning = False
            if not raw:
                if seen:
                    event["data"] = "\n".join(data)
                    yield event
                event, data, size, seen = _no_event(), [], 0, False
                continue
            name, _, value = raw.decode("utf-8", "replace").partition(":")
            value = value.removeprefix(" ")
            if name == "data":
                size += len(raw)
                self._check(size, "the data of an event")
                data.append(value)
            elif name == "event":
                event["event"] = value
            elif name == "id" and "\0" not in value:
                event["id"] = value
            elif name == "retry" and value.isascii() and value.isdigit() and len(value) < 20:
                event["retry"] = int(value)
            else:  # a comment, an unknown field, one that cannot be used
                continue
            seen = True

    # ---------------------------------------------------------------- life

    def close(self) -> None:
        """Stop reading and give the connection back; more than once is fine."""
        if not self._closed:
            self._closed = True
            self._chunk, self._at = b"", 0
            self._body.close()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            self.close()

    def __repr__(self) -> str:
        return f"Stream({self.url}, status={self.status})"


def _no_event() -> Event:
    return {"event": None, "data": "", "id": None, "retry": None}


def stream(
    uri: str,
    *,
    offset: int | None = None,
    size: int | None = None,
    headers: Mapping[str, str] | None = None,
    max_response_bytes: int | None = None,
) -> Stream:
    """Open the bytes of a URI for reading as they come.

    Only what is asked for is read: the body is not loaded on opening. A body that breaks off is resumed where it broke, as
    long as the object has a version to hold to.

    Args:
        uri: of any scheme.
        offset, size: a range, only together.
        headers: of the request; http and https only.
        max_response_bytes: largest number of bytes that may come.

    Raises:
        TypeError: `uri` is no str; numbers that are none.
        ValueError: offset without size or the reverse, negative numbers.
        UnsupportedError: headers for another scheme.
        OSError: as `read`.
        ResponseTooLargeError: over `max_response_bytes`, here or while reading.
    """
    if not isinstance(uri, str):
        raise TypeError(f"uri is a str, got {type(uri).__name__}")
    if (offset is None) != (size is None):
        raise ValueError("offset and size go together: give both, or neither")
    for name, number in {"offset": offset, "size": size, "max_response_bytes": max_response_bytes}.items():
        if number is not None:
            check_count(name, number)
    parsed = parse_uri(uri)
    if headers is not None:
        checked_headers(parsed.scheme, headers)
    store, key = open_store(parsed)
    body = store.open(key, offset or 0, size, headers=headers, limit=max_response_bytes)
    length = body.info.size
    if length is not None and offset is not None and size is not None:
        length = max(0, min(size, length - offset))
    return Stream(HeadInfo.of(parsed, body.info), body, length)
