"""The bytes of one version of an object, over as many HTTP requests as that takes.

A body that breaks off is resumed from where it broke, guarded by the version (a strong ETag, else Last-Modified): the
object that was begun is the one that is finished, or the read fails with a ChangedError.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from typing import TypeVar

from ..config import Transport
from ..errors import ChangedError, HttpTooLargeError, RangeError, TransferError
from ..retry import PassingError, with_retries
from ..secrets import masked
from ..store import ObjectInfo
from .web import Answer

T = TypeVar("T")
PROGRESS = 1 << 20
"""Bytes between two breaks of a body after which the count of attempts begins anew."""
_CONTENT_RANGE = re.compile(r"bytes\s+(?:(\d+)-(\d+)|\*)/(\d+|\*)\s*", re.IGNORECASE)
_PLAIN = ("", "identity", "aws-chunked")
"""Content codings that leave the bytes as they are ("aws-chunked" stays behind in the metadata of some S3 objects)."""

Send = Callable[[Mapping[str, str]], Answer]
"""GETs the object with these headers; gives answers of status 2xx and 416, raises for all others."""


def bare_etag(text: str | None) -> str | None:
    """An ETag without its quotes; a weak one keeps its `W/"..."`."""
    return None if text is None else text.strip().removeprefix('"').removesuffix('"') if not text.startswith("W/") else text


def http_time(text: str | None) -> float | None:
    """Seconds since 1970 of an HTTP date, None for what is none."""
    try:
        return None if text is None else parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError):
        return None


def content_range(answer: Answer) -> tuple[int | None, int | None, int | None]:
    """First and last byte and size of the whole, as far as Content-Range tells."""
    found = _CONTENT_RANGE.fullmatch(answer.headers.get("content-range", ""))
    if found is None:
        return None, None, None
    first, last, total = (int(part) if part and part.isdigit() else None for part in found.groups())
    return first, last, total


def coding_of(answer: Answer) -> str:
    """The content coding of a body, "" when it is the object as it is."""
    coding = answer.headers.get("content-encoding", "").strip().lower()
    return "" if coding in _PLAIN else coding


class Download:
    """A cursor over the bytes of an object.

    Attributes:
        info: of the object, from the first answer.
        at: offset of the next byte.
        end: offset behind the last byte that is wanted and there, None while the server does not tell.
        handed_out: set once bytes have left for where they cannot be taken back; without a version a body that broke off
            can then not begin anew.
    """

    info: ObjectInfo

    def __init__(
        self,
        send: Send,
        describe: Callable[[Answer, int | None], ObjectInfo],
        uri: str,
        transport: Transport,
        *,
        offset: int = 0,
        size: int | None = None,
        if_match: str | None = None,
        match_on_server: bool = True,
        limit: int | None = None,
        handed_out: bool = False,
    ) -> None:
        self._send, self._describe, self._transport = send, describe, transport
        self.uri, self.limit = uri, limit
        self._start, self._size = offset, size
        self._if_match, self._match_on_server = if_match, match_on_server
        self.at = offset
        self.end: int | None = None
        self.handed_out = handed_out
        self._answer: Answer | None = None
        self._validator: str | None = None
        self._decoder: _Decoder | None = None
        self._breaks, self._broke_at = 0, offset

    # ------------------------------------------------------------- requests

    def begin(self) -> Download:
        """Make the first request, once.

        Raises:
            PassingError: it may pass by another attempt.
            RangeError, ChangedError, TransferError, HttpTooLargeError, and what `send` raises.
        """
        headers: dict[str, str] = {}
        ranged = self._start > 0 or self._size is not None
        if ranged:
            last = "" if self._size is None else str(self._start + max(self._size, 1) - 1)
            headers["Range"] = f"bytes={self._start}-{last}"
        if self._if_match is not None and self._match_on_server and not self._if_match.startswith("W/"):
            headers["If-Match"] = f'"{self._if_match}"'
        answer = self._send(headers)
        try:
            self._take_first(answer, ranged)
        except BaseException:
            answer.finish()
            raise
        return self

    def _take_first(self, answer: Answer, ranged: bool) -> None:
        first, last, total = content_range(answer)
        if answer.status == 416:
            if total is None or total != self._start:
                raise RangeError(f"a range that begins at {self._start} lies behind the end ({'unknown' if total is None else total} bytes)", uri=self.uri, status=416)
            self.end = self._start
        elif answer.status == 206:
            if not ranged:
                raise TransferError("the server sent a part though all was asked for", uri=self.uri, status=206)
            if first != self._start or last is None or coding_of(answer):
                raise TransferError(f"the server sent another range than the one from {self._start}: {answer.headers.get('content-range')!r} {coding_of(answer)}".rstrip(), uri=self.uri, status=206)
            self.end = last + 1 if total is None or self._size is not None else total
            if self._size is not None:
                wanted = self._start + self._size
                self.end = min(wanted, self.end if total is None else total)
        else:
            whole = None if coding_of(answer) else answer.remaining
            if ranged and (self._start or whole is None or (self._size is not None and whole > self._size)):
                raise TransferError("the server ignores ranges: it sent all, or an unknown part", uri=self.uri, status=answer.status)
            self.end = total = whole
        self.info = self._describe(answer, total)
        if self._if_match is not None and self.info.etag != self._if_match:
            raise ChangedError(f"the object was replaced: its ETag is {self.info.etag!r} instead of {self._if_match!r}", uri=self.uri, status=answer.status)
        if coding_of(answer):
            self._decoder = _Decoder(coding_of(answer), self.uri)
        else:
            self._validator = self._version(self.info)
        self._check_limit(0 if self.end is None else self.end - self._start)
        self._answer = answer

    @staticmethod
    def _version(info: ObjectInfo) -> str | None:
        """What holds a later request to the same version: a strong ETag in quotes, else a date; None when there is neither."""
        if info.etag is not None and not info.etag.startswith("W/"):
            return f'"{info.etag}"'
        return info.headers.get("last-modified")

    def _again(self) -> None:
        """Ask for the rest of the same version."""
        headers = {"Range": f"bytes={self.at}-{'' if self._size is None or self.end is None else self.end - 1}"}
        if self._validator is not None and self._match_on_server:
            headers["If-Range"] = self._validator
        answer = self._send(headers)
        try:
            info = self._describe(answer, content_range(answer)[2])
            if answer.status == 416 or self._version(info) != self._validator:
                raise ChangedError("the object was replaced while it was read", uri=self.uri, status=answer.status)
            if answer.status == 206:
                first, _, total = content_range(answer)
                if first != self.at or coding_of(answer) or (total is not None and self.info.size not in (None, total)):
                    raise TransferError("the server sent another range than the rest that was asked for", uri=self.uri, status=206)
            elif coding_of(answer):
                raise TransferError("the body broke off and the server now sends it compressed", uri=self.uri, status=answer.status)
            else:  # the same version from its beginning: the server ignores ranges
                left = self.at
                while left:
                    data = answer.read1(min(left, PROGRESS))
                    if not data:
                        raise ChangedError("the object was replaced by a smaller one while it was read", uri=self.uri)
                    left -= len(data)
        except BaseException:
            answer.finish()
            raise
        self._answer = answer

    def _mend(self, broken: PassingError) -> None:
        """Go on after a body broke off at `at`."""
        self.close()
        self._breaks = 1 if self.at - self._broke_at >= PROGRESS else self._breaks + 1
        self._broke_at = self.at
        if self._validator is None:
            if self.handed_out:
                raise broken.error from broken.error.__cause__
            raise broken  # whoever began starts anew
        if self._breaks >= self._transport.attempts:
            raise broken.error from broken.error.__cause__
        failures = [broken]

        def attempt() -> None:
            if failures:  # so that the first request waits as well
                raise failures.pop()
            self._again()

        with_retries(attempt, self._transport)

    # ---------------------------------------------------------------- bytes

    @property
    def encoded(self) -> bool:
        """Whether the bytes are decoded on the way: their number is not known, and only `read1` gives them."""
        return self._decoder is not None

    def _next(self, take: Callable[[Answer, int | None], T], size: Callable[[T], int], nothing: T) -> T:
        while True:
            left = None if self.end is None else self.end - self.at
            if left is not None and left <= 0:
                self.close()
                return nothing
            try:
                if self._answer is None:
                    raise PassingError(TransferError("the read was stopped", uri=self.uri))
                found = take(self._answer, left)
                count = size(found)
                if count == 0 and left is not None:
                    raise PassingError(TransferError(f"the server sent {left} bytes less than it announced", uri=self.uri))
            except PassingError as broken:
                self._mend(broken)
                continue
            if count == 0:
                self.close()
            self.at += count
            self._check_limit(self.at - self._start)
            return found

    def readinto(self, view: memoryview) -> int:
        """Fill some of `view`; 0 at the end.

        Raises:
            PassingError: the body broke off before anything was handed out, and has no version to resume it by.
            TransferError, DeadlineError: it broke off too often.
            ChangedError: the object was replaced.
            HttpTooLargeError: over the limit.
        """
        return self._next(lambda answer, left: answer.readinto(view if left is None else view[:left]), int, 0)

    def read1(self, size: int) -> bytes:
        """What has come, up to `size` bytes, decoded; b"" at the end. Raises as `readinto` does."""
        if self._decoder is None:
            return self._next(lambda answer, left: answer.read1(size if left is None else min(size, left)), len, b"")
        while not (data := self._decoder.output(size)):
            if self._decoder.wants_input:
                taken = self._next(lambda answer, left: answer.read1(size), len, b"")
                self._decoder.feed(taken)
            if self._decoder.done:
                return b""
        self._check_limit(self._decoder.produced)
        return data

    def jump(self, to: int) -> None:
        """Continue from `to`, by a new request unless nothing is left."""
        self.close()
        self.at = to
        if self.end is not None and self.at < self.end:
            with_retries(self._again, self._transport)

    def be_patient(self) -> None:
        """Wait for bytes as long as no single wait is too long: for streams that have no end of their own."""
        if self._answer is not None and self.end is None:
            self._answer.pace.steady = False

    def _check_limit(self, size: int) -> None:
        if self.limit is not None and size > self.limit:
            self.close()
            raise HttpTooLargeError(f"{masked(self.uri)}: {size} bytes or more are over the limit of {self.limit}")

    def close(self) -> None:
        """Give the connection back, or close it; more than once is fine."""
        answer, self._answer = self._answer, None
        if answer is not None:
            answer.finish()


class _Decoder:
    """gzip and deflate, a bounded piece of output at a time."""

    def __init__(self, coding: str, uri: str) -> None:
        if coding not in ("gzip", "x-gzip", "deflate"):
            raise TransferError(f"the server sends the content coded as {coding!r}, though it was asked for it as it is", uri=uri)
        self._stream = zlib.decompressobj(wbits=47)
        self._uri = uri
        self._rest = b""
        self._ended = False
        self.produced = 0

    @property
    def wants_input(self) -> bool:
        return not self._rest and not self._ended

    @property
    def done(self) -> bool:
        return self._ended and not self._rest

    def feed(self, data: bytes) -> None:
        """More of the coded body; b"" ends it."""
        if not data:
            self._ended = True
            if not self._stream.eof:
                raise TransferError("the compressed body ends too early", uri=self._uri)
            return
        if self._stream.eof:
            self._stream = zlib.decompressobj(wbits=47)  # another member
        self._rest = data

    def output(self, size: int) -> bytes:
        """Up to `size` decoded bytes of what was fed."""
        if self._stream.eof and self._rest:
            self._stream = zlib.decompressobj(wbits=47)
        try:
            data = self._stream.decompress(self._rest, size)
        except zlib.error as error:
            raise TransferError(f"the compressed body is corrupt: {error}", uri=self._uri) from error
        self._rest = self._stream.unconsumed_tail or self._stream.unused_data
        self.produced += len(data)
        return data
