"""A web server whose every path does what a test scripts: answers in turn, bodies that break off, trickles, redirects."""

from __future__ import annotations

import http.server
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from .process import HOST


@dataclass(frozen=True)
class Reply:
    """One answer of a script.

    Attributes:
        status, headers, body: what is sent; Content-Length is that of the body unless the headers say otherwise.
        ranges: whether a Range header is answered by a part (under If-Range and If-Match, as RFC 9110 has it).
        drop_after: bytes of the body after which the connection is reset.
        pause: seconds before each piece of the body.
        piece: bytes of the body that are sent at once.
        chunked: Transfer-Encoding: chunked instead of a length.
        hang_up: the connection is closed without an answer.
        trickle_head: seconds between the bytes of the status line and headers.
    """

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    ranges: bool = True
    drop_after: int | None = None
    pause: float = 0.0
    piece: int = 1 << 20
    chunked: bool = False
    hang_up: bool = False
    trickle_head: float = 0.0


@dataclass(frozen=True)
class Seen:
    """One request as it came."""

    method: str
    target: str
    headers: Mapping[str, str]


Script = Callable[[Seen, int], Reply]
"""Gives the answer to a request, which is the n-th (from 0) of its path."""


class MisbehavingServer:
    """Serves the scripts of `paths`, and those of `otherwise` (404).

    Attributes:
        url: of its root, without a slash at the end.
        seen: the requests, in the order they came.
    """

    def __init__(self, port: int) -> None:
        self.host = f"{HOST}:{port}"
        self.url = f"http://{self.host}"
        self.seen: list[Seen] = []
        self.paths: dict[str, Script] = {}
        self.otherwise: Script = lambda seen, count: Reply(404, b"no such path")
        self.closing = threading.Event()
        self._counts: dict[str, int] = {}
        self._lock = threading.Lock()

    def script(self, path: str, *replies: Reply | Script) -> str:
        """Answer requests of `path` by these in turn, the last one for ever; the URL of the path."""

        def answer(seen: Seen, count: int) -> Reply:
            reply = replies[min(count, len(replies) - 1)]
            return reply if isinstance(reply, Reply) else reply(seen, count)

        self.paths[path] = answer
        return f"{self.url}{path}"

    def forget(self) -> None:
        """Begin all scripts anew, and the record of requests."""
        with self._lock:
            self.seen.clear()
            self._counts.clear()

    def requests(self, path: str) -> list[Seen]:
        """The requests of one path, query included."""
        return [seen for seen in self.seen if seen.target == path]

    def answer(self, seen: Seen) -> Reply:
        with self._lock:
            self.seen.append(seen)
            script = self.paths.get(seen.target) or self.paths.get(seen.target.partition("?")[0]) or self.otherwise
            count = self._counts.get(seen.target, 0)
            self._counts[seen.target] = count + 1
        return script(seen, count)


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        target = self.requestline.split(" ")[1]  # `path` has lost slashes at its beginning
        seen = Seen(self.command, target, {name.lower(): value for name, value in self.headers.items()})
        reply = self.server.site.answer(seen)
        if reply.hang_up:
            self.close_connection = True
            return
        try:
            self._send(seen, reply)
        except OSError:  # the client went
            self.close_connection = True

    do_HEAD = do_GET

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _send(self, seen: Seen, reply: Reply) -> None:
        status, body, headers = _ranged(seen, reply)
        if reply.chunked:
            headers.setdefault("Transfer-Encoding", "chunked")
        else:
            headers.setdefault("Content-Length", str(len(body)))
        lines = [f"HTTP/1.1 {status} {self.responses.get(status, ('',))[0]}", *(f"{name}: {value}" for name, value in headers.items())]
        self._head("\r\n".join([*lines, "", ""]).encode("latin-1"), reply.trickle_head)
        if seen.method == "HEAD":
            return
        stop = len(body) if reply.drop_after is None else min(reply.drop_after, len(body))
        for at in range(0, stop, reply.piece):
            if reply.pause and self.server.site.closing.wait(reply.pause):
                break
            piece = body[at : min(at + reply.piece, stop)]
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece) if reply.chunked else piece)
            self.wfile.flush()
        if reply.drop_after is not None or self.server.site.closing.is_set():
            self._drop()
        elif reply.chunked:
            self.wfile.write(b"0\r\n\r\n")
        elif headers["Content-Length"] != str(len(body)):
            self.close_connection = True

    def _head(self, head: bytes, pause: float) -> None:
        if not pause:
            self.wfile.write(head)
            return
        for at in range(len(head)):
            if self.server.site.closing.wait(pause):
                return
            self.wfile.write(head[at : at + 1])

    def _drop(self) -> None:
        self.close_connection = True
        time.sleep(0.01)  # so that what was written leaves before the connection does
        self.connection.shutdown(socket.SHUT_RDWR)


def _ranged(seen: Seen, reply: Reply) -> tuple[int, bytes, dict[str, str]]:
    """Status, body and headers, the Range header of the request applied."""
    headers = dict(reply.headers)
    etag = headers.get("ETag")
    wanted = seen.headers.get("if-match")
    if reply.status == 200 and wanted is not None and etag is not None and wanted not in (etag, "*"):
        return 412, b"", headers
    asked = re.fullmatch(r"bytes=(\d+)-(\d*)", seen.headers.get("range", ""))
    guard = seen.headers.get("if-range")
    if guard is not None and guard not in (etag, headers.get("Last-Modified")):
        asked = None
    if reply.status != 200 or not reply.ranges or asked is None or seen.method == "HEAD":
        return reply.status, reply.body, headers
    size, first = len(reply.body), int(asked[1])
    if first >= size:
        return 416, b"", {**headers, "Content-Range": f"bytes */{size}"}
    last = min(int(asked[2]) if asked[2] else size - 1, size - 1)
    headers.pop("Content-Length", None)
    return 206, reply.body[first : last + 1], {**headers, "Content-Range": f"bytes {first}-{last}/{size}"}


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128
    site: MisbehavingServer

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.connections: set[socket.socket] = set()

    def get_request(self) -> tuple[socket.socket, Any]:
        found = super().get_request()
        self.connections.add(found[0])
        return found

    def shutdown_request(self, request: Any) -> None:
        self.connections.discard(request)
        super().shutdown_request(request)

    def drop_all(self) -> None:
        """End what clients keep open."""
        for connection in list(self.connections):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def handle_error(self, request: object, client_address: object) -> None:
        pass


@contextmanager
def misbehaving(tls: ssl.SSLContext | None = None) -> Iterator[MisbehavingServer]:
    """A server on a port of loopback, over TLS when there is a context for it."""
    server = _Server((HOST, 0), _Handler)
    server.site = MisbehavingServer(server.server_address[1])
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        server.site.url = server.site.url.replace("http:", "https:")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, name="misbehaving-server", daemon=True)
    thread.start()
    try:
        yield server.site
    finally:
        server.site.closing.set()
        server.shutdown()
        server.drop_all()
        server.server_close()
        thread.join(10)


def parts_of(requests: Sequence[Seen]) -> list[str | None]:
    """The Range headers of requests."""
    return [seen.headers.get("range") for seen in requests]
