"""Plain web servers, `http://` and `https://`, read only."""

from __future__ import annotations

import base64
import re
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from email.utils import parsedate_to_datetime
from time import time as now

from ..buffers import new_bytes
from ..config import Transport, transport_for
from ..errors import (
    ChangedError,
    HttpDeniedError,
    HttpNotFoundError,
    HttpTooLargeError,
    StoreError,
    TransferError,
    UnsupportedError,
)
from ..headers import remember_secrets
from ..retry import PassingError, with_retries
from ..secrets import masked, remember
from ..store import Body, BytesLike, ObjectInfo, Store, check_range
from ..uri import Uri
from .download import Download, bare_etag, coding_of, content_range, http_time
from .parallel import fill
from .quick import NoAnswer, QuickGet, may_go
from .web import Answer, WebClient, user_agent

CHUNK = 1 << 18
"""Largest chunk of a body, in bytes."""
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


class HttpStore(Store):
    """One host of the web.

    Keys are what stands behind `http://host/`: the path with its query, sent as written. A fragment (`#...`) is not sent.
    """

    def __init__(self, uri: Uri, transport: Transport) -> None:
        """Args:
        uri: of the host; `user:password@` becomes an Authorization header.
        transport: of all requests.
        """
        if transport.http_version == "h2":
            raise UnsupportedError("http_version='h2' does not work on http(s):// : its client, urllib3, speaks HTTP/1.1; use 'h1' or 'auto'")
        self.scheme, self.name = uri.scheme, uri.bucket
        self._transport = transport
        self._client = WebClient(transport)
        self._headers = {"User-Agent": user_agent(), "Accept-Encoding": "identity", "Accept": "*/*"}
        user, at, self._host = uri.bucket.rpartition("@")
        if at:
            text = urllib.parse.unquote(user)
            code = base64.b64encode(text.encode()).decode()
            remember([text.partition(":")[2], code])
            self._headers["Authorization"] = f"Basic {code}"
        self._quick = None
        if self._by_obstore and not at and may_go(transport):
            self._quick = QuickGet(f"{self.scheme}://{self._host}", transport, user_agent())

    @classmethod
    def of(cls, uri: Uri) -> HttpStore:
        """The store of a URI's host, under the transport of "https"."""
        return cls(uri, transport_for("https"))

    # -------------------------------------------------- what the hub does differently

    _match_on_server = True
    _by_obstore = True

    def _url(self, key: str) -> str:
        return f"{self.scheme}://{self._host}/{key}"

    def _own_headers(self) -> dict[str, str]:
        return dict(self._headers)

    def _failed(self, status: int, reason: str, headers: Mapping[str, str], uri: str) -> StoreError:
        """The error of an answer that is none of success."""
        if status in (404, 410):
            return HttpNotFoundError(f"not found ({status})", uri=uri, status=status)
        if status in (401, 403, 407):
            return HttpDeniedError(f"access denied ({f'{status} {reason}'.rstrip()})", uri=uri, status=status)
        if status == 412:
            return ChangedError("the object was replaced", uri=uri, status=412)
        return TransferError(f"the server answered {status} {reason}".rstrip(), uri=uri, status=status)

    def _describe(self, key: str, answer: Answer, size: int | None) -> ObjectInfo:
        headers = answer.headers
        return ObjectInfo(
            key=key,
            size=size,
            etag=bare_etag(headers.get("etag")),
            modified=http_time(headers.get("last-modified")),
            content_type=headers.get("content-type"),
            headers=headers,
            status=answer.status,
            url=answer.url,
            http_version=answer.http_version,
        )

    # ------------------------------------------------------------------- requests

    def _request(self, method: str, url: str, headers: Mapping[str, str], uri: str, *, leave_host: bool = True) -> Answer:
        """One request: an answer with status 2xx, 416, or a redirect to another host when `leave_host` is False.

        Raises:
            PassingError: the connection failed, or the status says that it may pass.
        """
        answer = self._client.send(method, url, headers, uri, leave_host=leave_host)
        status = answer.status
        if 200 <= status < 300 or status == 416 or (not leave_host and 300 <= status < 400):
            return answer
        error = self._failed(status, answer.reason, answer.headers, uri)
        answer.finish()
        if _may_pass(status):
            raise PassingError(error, _retry_after(answer))
        raise error

    def _download(self, key: str, offset: int, size: int | None, headers: Mapping[str, str] | None, **options: object) -> Download:
        """A download that is not begun."""
        uri, base = self.uri(key), {**self._own_headers(), **_checked(headers)}
        check_range(offset, size, uri)

        def send(more: Mapping[str, str]) -> Answer:
            return self._request("GET", self._url(key), {**base, **more}, uri)

        def describe(answer: Answer, total: int | None) -> ObjectInfo:
            return self._describe(key, answer, total)

        return Download(send, describe, uri, self._transport, offset=offset, size=size, match_on_server=self._match_on_server, **options)  # type: ignore[arg-type]

    # -------------------------------------------------------------------- reading

    def get(
        self,
        key: str,
        offset: int = 0,
        size: int | None = None,
        *,
        if_match: str | None = None,
        headers: Mapping[str, str] | None = None,
        limit: int | None = None,
    ) -> BytesLike:
        """See `Store.get`. A server that ignores ranges is a TransferError, unless it sent what was asked for anyhow.

        A body that comes compressed though it was not asked for so is decoded (gzip, deflate), or refused.
        """
        transport, failures = self._transport, list[PassingError]()
        quick = self._quick if headers is None else None
        if quick is not None and quick.serves(key, size):
            check_range(offset, size, self.uri(key))
            try:
                return quick.get(key, offset, size, if_match, limit)
            except NoAnswer as error:
                status = error.status
                if status is not None and _may_pass(status):
                    failures.append(PassingError(self._failed(status, "", {}, self.uri(key))))
                elif status is not None and status >= 400 and status not in (412, 416):
                    raise self._failed(status, "", {}, self.uri(key)) from error.__cause__
                else:
                    transport = replace(transport, attempts=transport.attempts - 1)  # it was one

        def attempt() -> bytes:
            if failures:  # so that the next request waits
                raise failures.pop()
            download = self._download(key, offset, size, headers, if_match=if_match, limit=limit).begin()
            try:
                if quick is not None and size is None and download.end is not None:
                    quick.saw(download.end)
                return self._collect(download, key, headers)
            finally:
                download.close()

        return with_retries(attempt, transport)

    def get_into(self, key: str, offset: int, out: memoryview, *, if_match: str | None = None) -> int:
        """See `Store.get_into`; the bytes go from the socket into `out`."""
        out = out.cast("B")

        def attempt() -> int:
            download = self._download(key, offset, len(out), None, if_match=if_match).begin()
            try:
                if download.end is None:
                    data = self._collect(download, key, None)
                    out[: len(data)] = data
                    return len(data)
                size = max(0, download.end - offset)
                fill(download, out[:size], self._piece(key, download, None))
                return size
            finally:
                download.close()

        return with_retries(attempt, self._transport)

    def _collect(self, download: Download, key: str, headers: Mapping[str, str] | None) -> bytes:
        """The rest of a download, in one bytes object that is filled in place."""
        if download.end is None or download.encoded:
            parts = []
            while data := download.read1(CHUNK):
                parts.append(data)
            return b"".join(parts)
        size = max(0, download.end - download.at)
        if size == 0:
            return b""
        try:
            made, view = new_bytes(size)
        except MemoryError as error:
            raise HttpTooLargeError(f"{masked(download.uri)}: {size} bytes do not fit into memory") from error
        fill(download, view, self._piece(key, download, headers))
        return made

    def _piece(self, key: str, begun: Download, headers: Mapping[str, str] | None) -> Callable[[int, memoryview], None] | None:
        """Fetches another part of the object that a download has begun; None when that cannot be held to its version."""
        etag = begun.info.etag
        if etag is None or etag.startswith("W/") or begun.encoded or begun.info.headers.get("accept-ranges") != "bytes":
            return None

        def fetch(offset: int, view: memoryview) -> None:
            download = self._download(key, offset, len(view), headers, if_match=etag).begin()
            try:
                if download.end != offset + len(view):
                    raise ChangedError("the object became smaller while it was read", uri=download.uri)
                done = 0
                while done < len(view):
                    done += download.readinto(view[done:])
            finally:
                download.close()

        return fetch

    def open(
        self,
        key: str,
        offset: int = 0,
        size: int | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        limit: int | None = None,
    ) -> Body:
        """See `Store.open`. A body whose length is not known may take as long as it likes, with no silence over the timeout."""

        def begin() -> Download:
            return self._download(key, offset, size, headers, limit=limit).begin()

        state = [with_retries(begin, self._transport)]
        info = state[0].info

        restarts = 0

        def again(broken: PassingError) -> Download:
            nonlocal restarts
            restarts += 1
            if restarts >= self._transport.attempts:
                raise broken.error from broken.error.__cause__
            failures = [broken]

            def attempt() -> Download:
                if failures:
                    raise failures.pop()
                return begin()

            download = with_retries(attempt, self._transport)
            if download.info.size != info.size:
                download.close()
                raise ChangedError("the object was replaced while it was read", uri=download.uri)
            return download

        def chunks() -> Iterator[BytesLike]:
            try:
                while True:
                    try:
                        state[0].be_patient()
                        data = state[0].read1(CHUNK)
                    except PassingError as broken:  # before the first byte, of an object without a version
                        state[0] = again(broken)
                        continue
                    if not data:
                        return
                    state[0].handed_out = True
                    yield data
            finally:
                state[0].close()

        return Body(info, chunks(), lambda: state[0].close())

    def head(self, key: str, *, headers: Mapping[str, str] | None = None) -> ObjectInfo:
        """See `Store.head`. A server that refuses HEAD is asked for the first byte instead."""
        uri, base = self.uri(key), {**self._own_headers(), **_checked(headers)}

        def by_head() -> ObjectInfo:
            answer = self._request("HEAD", self._url(key), base, uri)
            answer.finish()
            if answer.status == 416:
                raise TransferError("the server answered 416 to a request without a range", uri=uri, status=416)
            length = answer.headers.get("content-length", "")
            return self._describe(key, answer, int(length) if length.isdecimal() and not coding_of(answer) else None)

        def by_first_byte() -> ObjectInfo:
            answer = self._request("GET", self._url(key), {**base, "Range": "bytes=0-0"}, uri)
            answer.finish()
            total = content_range(answer)[2]
            if answer.status == 200 and not coding_of(answer):
                length = answer.headers.get("content-length", "")
                total = int(length) if length.isdecimal() else None
            return self._describe(key, answer, total)

        try:
            return with_retries(by_head, self._transport)
        except StoreError as error:
            # 403: signed URLs are signed for one method, mostly GET
            if error.status not in (400, 403, 405, 501):
                raise
            return with_retries(by_first_byte, self._transport)

    def close(self) -> None:
        """Close idle connections."""
        self._client.close()


def _checked(headers: Mapping[str, str] | None) -> dict[str, str]:
    """Headers of the caller, which are text without line ends."""
    checked = {}
    for name, value in (headers or {}).items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(f"headers map str to str, got {type(name).__name__} to {type(value).__name__} at {name!r}")
        if not _NAME.fullmatch(name) or any(mark in value for mark in "\r\n\0"):
            raise ValueError(f"{name!r} is no header: a name of letters, digits and '-', and a value without line ends")
        if name.lower() == "range":
            raise ValueError("a Range header would hide which part is read: give offset and size instead")
        checked[{"user-agent": "User-Agent", "accept": "Accept", "accept-encoding": "Accept-Encoding", "authorization": "Authorization"}.get(name.lower(), name)] = value
    remember_secrets(checked)
    return checked


def _may_pass(status: int) -> bool:
    return status in (408, 425, 429) or (status >= 500 and status not in (501, 505))


def _retry_after(answer: Answer) -> float | None:
    """Seconds of Retry-After, which is a number or a date."""
    text = answer.headers.get("retry-after")
    if text is None:
        return None
    if text.strip().isdecimal():
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - now())
    except (ValueError, OverflowError):
        return None
