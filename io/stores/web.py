"""HTTP/1.1 requests for the stores that speak it: connections from urllib3's pools, redirects, and bodies under a pace.

One thing differs from urllib3's own requests: paths and queries go out as they were written (urllib3 would encode them
anew). Bodies are read from the standard library's response, straight into the caller's memory.
"""

from __future__ import annotations

import http.client
import io
import re
import socket
import ssl
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any

import urllib3
import urllib3.connection
import urllib3.connectionpool
import urllib3.exceptions
import urllib3.util

from ..config import Transport
from ..errors import DeadlineError, StoreError, TransferError, UriError
from ..retry import PassingError
from ..secrets import masked

MAX_REDIRECTS = 10
LOWEST_SPEED = 1024
"""Bytes a second below which a body is given up, once the time limit of an ordinary request is over: a server that sends
a byte now and then would otherwise hold its reader for ever."""
CONNECTIONS = 128
"""Idle connections kept per host when the transport does not say."""
_HOSTS = 16
"""Hosts whose connections are kept."""
DRAIN = 1 << 16
"""Bytes of an unwanted body up to which it is read so that its connection can be used again."""
_REDIRECTS = (301, 302, 303, 307, 308)
_SECRET_HEADER = re.compile(r"auth|cookie|token|key|secret|password|signature", re.IGNORECASE)
_URL = re.compile(r"(https?)://([^/?#]*)([^#]*)", re.IGNORECASE | re.DOTALL)
_NOT_ON_THE_WIRE = re.compile(r"[^\x21-\x7e]+")


def wire_form(target: str) -> str:
    """A path with its query as it can be sent: what is no printable ASCII is percent-encoded, all else stays as written."""

    def quoted(found: re.Match[str]) -> str:
        return urllib.parse.quote_from_bytes(found.group().encode("utf-8", "surrogateescape"), safe="")

    return _NOT_ON_THE_WIRE.sub(quoted, target)


class Pace:
    """How long a server may take for one answer; only the time spent waiting for it counts.

    Attributes:
        silence: seconds without a byte.
        steady: whether the whole must also come at `LOWEST_SPEED` once `silence` seconds of waiting are over.
    """

    def __init__(self, silence: float) -> None:
        self.silence = silence
        self.steady = True
        self._waited = 0.0
        self._received = 0

    def next_wait(self) -> float:
        """Seconds that the next bytes may take.

        Raises:
            TimeoutError: none are left.
        """
        if not self.steady:
            return self.silence
        left = self.silence + self._received / LOWEST_SPEED - self._waited
        if left <= 0:
            raise TimeoutError(f"{self._received} bytes in {self._waited:.1f} s")
        return min(self.silence, left)

    def count(self, received: int, seconds: float) -> None:
        self._received += received
        self._waited += seconds


class _Exchange(threading.local):
    """What the request that this thread is making hands to the connection and gets from it."""

    target = ""
    pace: Pace
    source: http.client.HTTPResponse


_exchange = _Exchange()


class _PacedSocket(io.RawIOBase):
    def __init__(self, sock: socket.socket, pace: Pace) -> None:
        self._raw = sock.makefile("rb", buffering=0)
        self._sock = sock
        self._pace = pace

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int | None:
        self._sock.settimeout(self._pace.next_wait())
        began = time.monotonic()
        received = 0
        try:
            received = self._raw.readinto(into) or 0
        finally:
            self._pace.count(received, time.monotonic() - began)
        return received

    def close(self) -> None:
        self._raw.close()
        super().close()


class _PacedResponse(http.client.HTTPResponse):
    def __init__(self, sock: socket.socket, *args: Any, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        self.fp.close()
        self.fp = io.BufferedReader(_PacedSocket(sock, _exchange.pace), 1 << 16)
        _exchange.source = self


class _Connection(urllib3.connection.HTTPConnection):
    """Sends the target of the exchange instead of urllib3's encoding of it."""

    response_class = _PacedResponse

    def putrequest(self, method: str, url: str, skip_host: bool = False, skip_accept_encoding: bool = False) -> None:
        super().putrequest(method, _exchange.target, skip_host, skip_accept_encoding)


class _TlsConnection(urllib3.connection.HTTPSConnection):
    """The same over TLS."""

    response_class = _PacedResponse

    def putrequest(self, method: str, url: str, skip_host: bool = False, skip_accept_encoding: bool = False) -> None:
        super().putrequest(method, _exchange.target, skip_host, skip_accept_encoding)


class _Pool(urllib3.connectionpool.HTTPConnectionPool):
    ConnectionCls = _Connection


class _TlsPool(urllib3.connectionpool.HTTPSConnectionPool):
    ConnectionCls = _TlsConnection


class Answer:
    """The answer to one request; its body is read once, then `finish` is called.

    Attributes:
        status, reason: of the last hop.
        headers: by lower-case name.
        hop: headers of the redirects that were followed, later ones over earlier; empty when there was none.
        url: that answered.
        remaining: bytes of the body that are to come, None when the server does not say.
    """

    def __init__(self, response: urllib3.BaseHTTPResponse, source: http.client.HTTPResponse, pace: Pace, url: str, uri: str) -> None:
        self.status = response.status
        self.reason = response.reason or ""
        self.headers: Mapping[str, str] = {name.lower(): value for name, value in response.headers.items()}
        self.hop: Mapping[str, str] = {}
        self.url = url
        self.uri = uri
        self.http_version = f"HTTP/{source.version // 10}.{source.version % 10}"
        self.pace = pace
        self.remaining: int | None = None if source.chunked else response.length_remaining
        self._response = response
        self._source = source
        self._whole = self.remaining == 0

    def readinto(self, view: memoryview) -> int:
        """Fill some of `view`; 0 at the end of the body.

        Raises:
            PassingError: the body broke off.
        """
        if self._whole:
            return 0
        try:
            count = self._source.readinto(view if self.remaining is None else view[: self.remaining])
        except (OSError, http.client.HTTPException) as error:
            raise passing(error, self.uri) from error
        self._count(count)
        return count

    def read1(self, size: int) -> bytes:
        """What has come, up to `size` bytes; waits for the first. Empty at the end of the body.

        Raises:
            PassingError: the body broke off.
        """
        if self._whole:
            return b""
        try:
            data = self._source.read1(size if self.remaining is None else min(size, self.remaining))
        except (OSError, http.client.HTTPException) as error:
            raise passing(error, self.uri) from error
        self._count(len(data))
        return data

    def _count(self, count: int) -> None:
        if self.remaining is None:
            self._whole = count == 0
            return
        self.remaining -= count
        self._whole = self.remaining == 0
        if count == 0 and self.remaining:
            raise PassingError(TransferError(f"the body broke off, {self.remaining} bytes before its end", uri=self.uri, status=self.status))

    def finish(self) -> None:
        """Give the connection back, or close it when its body was not read to the end. More than once is fine."""
        if not self._whole and self.remaining is not None and self.remaining <= DRAIN and self.status >= 300:
            try:
                while self.read1(DRAIN):
                    pass
            except PassingError:
                pass
        if self._whole:
            self._source.close()
        else:
            self._response.close()
        self._response.release_conn()

    def json_bytes(self, limit: int) -> bytes:
        """The whole body, at most `limit` bytes."""
        parts, size = [], 0
        while data := self.read1(DRAIN):
            parts.append(data)
            size += len(data)
            if size > limit:
                raise TransferError(f"the answer is larger than {limit} bytes", uri=self.uri)
        return b"".join(parts)


def passing(error: Exception, uri: str) -> PassingError:
    """A lost connection or a silent server, which another attempt may not meet."""
    late = isinstance(error, (TimeoutError, urllib3.exceptions.TimeoutError))
    if late and not isinstance(error, urllib3.exceptions.NewConnectionError):  # which urllib3 counts as late, refused or not
        found: StoreError = DeadlineError(f"the server did not answer in time ({masked(str(error))})", uri=uri)
    else:
        found = TransferError(f"the connection failed: {masked(str(error)) or type(error).__name__}", uri=uri)
    found.__cause__ = error
    return PassingError(found)


class WebClient:
    """Makes requests under one transport; from any thread."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self._pools: dict[tuple[str, str], tuple[urllib3.HTTPConnectionPool, bool]] = {}
        self._managers: dict[tuple[str, str | None], urllib3.PoolManager] = {}

    def send(self, method: str, url: str, headers: Mapping[str, str], uri: str, *, leave_host: bool = True) -> Answer:
        """One request, redirects followed.

        Headers that may carry a credential stay behind when a redirect leaves the host.

        Args:
            url: of the request, sent as written.
            uri: for messages.
            leave_host: False gives the redirect itself when it leads to another host.

        Raises:
            PassingError: the connection failed, or the server did not answer in time.
            TransferError: too many redirects, one that leads nowhere, TLS that cannot be trusted.
            UriError: no URL that can be asked for.
        """
        sent = dict(headers)
        hop: Mapping[str, str] = {}
        for _ in range(MAX_REDIRECTS + 1):
            answer = self._once(method, url, sent, uri)
            location = answer.headers.get("location")
            if answer.status not in _REDIRECTS or location is None:
                answer.hop = hop
                return answer
            then = urllib.parse.urljoin(url, location)
            if not _URL.fullmatch(then.partition("#")[0]):
                answer.finish()
                raise TransferError(f"redirected to {masked(then)!r}, which is no http address", uri=uri, status=answer.status)
            if not _same_host(url, then):
                if not leave_host:
                    answer.hop = hop
                    return answer
                if url.lower().startswith("https:") and then.lower().startswith("http:") and any(map(_SECRET_HEADER.search, sent)):
                    answer.finish()
                    raise TransferError("redirected from https to http, which would show its credentials or what they open", uri=uri, status=answer.status)
                sent = {name: value for name, value in sent.items() if not _SECRET_HEADER.search(name)}
            hop = {**hop, **answer.headers}
            answer.finish()
            url = then
        raise TransferError(f"more than {MAX_REDIRECTS} redirects", uri=uri)

    def _once(self, method: str, url: str, headers: Mapping[str, str], uri: str) -> Answer:
        found = _URL.match(url)
        if found is None:
            raise UriError(f"{masked(url)!r} is no http address")
        scheme, host, target = found[1].lower(), found[2], wire_form(found[3])
        if not target.startswith("/"):
            target = f"/{target}"
        pool, proxied = self._pool(scheme, host.rpartition("@")[2], url)
        if proxied:
            target = f"http://{host.rpartition('@')[2]}{target}"
        pace = Pace(self.transport.timeout)
        _exchange.target, _exchange.pace = target, pace
        timeout = urllib3.Timeout(connect=self.transport.connect_timeout, read=self.transport.timeout)
        try:
            response = pool.urlopen(
                method, f"http://{host.rpartition('@')[2]}/" if proxied else "/", headers=headers, retries=False, redirect=False, assert_same_host=False, timeout=timeout,
                preload_content=False, decode_content=False,
            )  # fmt: skip
        except urllib3.exceptions.SSLError as error:
            raise TransferError(f"no secure connection: {masked(str(error))}", uri=uri) from error
        except (urllib3.exceptions.HTTPError, OSError, http.client.HTTPException) as error:
            raise passing(error, uri) from error
        return Answer(response, _exchange.source, pace, url, uri)

    def _pool(self, scheme: str, host: str, url: str) -> tuple[urllib3.HTTPConnectionPool, bool]:
        """The connections to a host, and whether a proxy wants whole URLs as targets."""
        found = self._pools.get((scheme, host))
        if found is None:
            try:
                at = urllib3.util.parse_url(f"{scheme}://{host}")
                manager = self._manager(scheme, at.host or "")
                found = manager.connection_from_host(at.host, at.port, scheme), manager.proxy is not None and scheme == "http"
            except (urllib3.exceptions.LocationValueError, ValueError) as error:
                raise UriError(f"{masked(url)!r} has no host that can be asked: {masked(str(error))}") from error
            if len(self._pools) >= _HOSTS:  # of redirects
                self._pools.clear()
            self._pools[scheme, host] = found
        return found

    def _manager(self, scheme: str, host: str) -> urllib3.PoolManager:
        proxy = self.transport.proxy
        if proxy is None and not urllib.request.proxy_bypass(host):
            proxies = urllib.request.getproxies()
            proxy = proxies.get(scheme) or proxies.get("all")
        manager = self._managers.get((scheme, proxy))
        if manager is None:
            options: dict[str, Any] = {"num_pools": _HOSTS, "maxsize": self.transport.pool_max_idle or CONNECTIONS}
            if scheme == "https" or (proxy or "").startswith("https"):
                options["ssl_context"] = self._tls()
            if proxy is not None:
                address = urllib3.util.parse_url(proxy)
                options["proxy_headers"] = urllib3.util.make_headers(proxy_basic_auth=address.auth) if address.auth else {}
                made: urllib3.PoolManager = urllib3.ProxyManager(address._replace(auth=None).url, **options)
            else:
                made = urllib3.PoolManager(**options)
            made.pool_classes_by_scheme = {"http": _Pool, "https": _TlsPool}
            manager = self._managers.setdefault((scheme, proxy), made)
        return manager

    def _tls(self) -> ssl.SSLContext:
        context = ssl.create_default_context()
        if self.transport.ca_certificates is not None:
            context.load_verify_locations(self.transport.ca_certificates)
        return context

    def close(self) -> None:
        """Close idle connections."""
        self._pools.clear()
        for manager in list(self._managers.values()):
            manager.clear()


def _same_host(one: str, other: str) -> bool:
    before, after = urllib.parse.urlsplit(one), urllib.parse.urlsplit(other)
    ports = {"http": 80, "https": 443}
    if before.hostname != after.hostname:
        return False
    at = before.port or ports[before.scheme], after.port or ports[after.scheme]
    return (before.scheme == after.scheme and at[0] == at[1]) or (before.scheme == "http" and at == (80, 443))


def user_agent() -> str:
    """`dataio/VERSION`."""
    return f"dataio/{sys.modules[__name__.partition('.')[0]].__version__}"
