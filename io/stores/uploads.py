"""Objects that are written in parts: at most a few parts in memory, and nothing left behind when the writing fails."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from ..config import Transport
from ..retry import with_retries
from ..store import BytesLike, Upload
from .sdk import Parts

Send = Callable[[Callable[[], Any]], Any]
"""Makes one request, with its errors translated."""


class PartsUpload(Upload):
    """Parts sent by the client of the provider's package, several at a time. What fits into one part is one request.

    Holds at most `concurrency` parts under way and the one that is being filled.
    """

    def __init__(
        self,
        begin: Callable[[], Parts],
        put: Callable[[BytesLike], str | None],
        send: Send,
        transport: Transport,
        *,
        part: int,
        concurrency: int,
    ) -> None:
        """Args:
        begin: opens the upload.
        put: writes a whole object, with retries.
        part: bytes of one part.
        """
        self._begin, self._put, self._send, self._transport = begin, put, send, transport
        self._part, self._concurrency = part, concurrency
        self._buffer = bytearray()
        self._parts: Parts | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._pending: list[Future[None]] = []
        self._number = 0
        self._over = False

    def write(self, data: BytesLike) -> None:
        if self._over:
            raise ValueError("the upload is over")
        view = memoryview(data).cast("B")
        try:
            while len(view):
                room = self._part - len(self._buffer)
                if not room:  # there is more, so the buffer is not the last part
                    self._ship(False)
                    continue
                if not self._buffer and len(view) > self._part and isinstance(data, bytes):
                    self._ship(False, view[: self._part])  # which keeps the bytes alive: no copy is needed
                    view = view[self._part :]
                    continue
                self._buffer += view[:room]
                view = view[room:]
        except BaseException:
            self.abort()
            raise

    def complete(self) -> str | None:
        if self._over:
            raise ValueError("the upload is over")
        try:
            if self._parts is None:
                self._over = True
                return self._put(bytes(self._buffer))
            parts = self._parts
            self._ship(True)
            self._settle(0)
            etag: str | None = with_retries(lambda: self._send(parts.finish), self._transport)
            self._over = True
            self._stop()
            return etag
        except BaseException:
            self.abort()
            raise
        finally:
            self._buffer = bytearray()

    def abort(self) -> None:
        self._over = True
        self._buffer = bytearray()
        self._stop()
        parts, self._parts = self._parts, None
        if parts is not None:
            try:
                with_retries(lambda: self._send(parts.abort), self._transport)
            except FileNotFoundError:  # it is gone already
                pass

    def _ship(self, last: bool, data: BytesLike | None = None) -> None:
        if self._parts is None:
            self._parts = with_retries(lambda: self._send(self._begin), self._transport)
        if data is None:
            data, self._buffer = self._buffer, bytearray()
        number, parts = self._number, self._parts
        self._number += 1

        def send() -> None:
            with_retries(lambda: self._send(lambda: parts.send(number, data, last)), self._transport)

        if not parts.concurrent:
            send()
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._concurrency, "dataio-upload")
        self._settle(self._concurrency - 1)
        self._pending.append(self._pool.submit(send))

    def _settle(self, left: int) -> None:
        """Wait until at most `left` parts are under way.

        Raises: what a part failed with.
        """
        while len(self._pending) > left:
            self._pending.pop(0).result()

    def _stop(self) -> None:
        pool, self._pool = self._pool, None
        self._pending.clear()
        if pool is not None:
            pool.shutdown(wait=True, cancel_futures=True)


class ObstoreUpload(Upload):
    """Parts sent by obstore, where the package of the provider is not installed: it reads them from an iterator, on a thread
    of its own, and drops the upload when the iterator fails."""

    def __init__(self, put: Callable[[Iterator[bytes]], str | None]) -> None:
        """Args:
        put: writes what an iterator gives; an error of the iterator ends it.
        """
        self._chunks: queue.Queue[bytes | None] = queue.Queue(2)
        self._failed: BaseException | None = None
        self._etag: str | None = None
        self._dropped = self._over = False

        def run() -> None:
            try:
                self._etag = put(self._taken())
            except BaseException as error:
                self._failed = error

        self._thread = threading.Thread(target=run, name="dataio-upload", daemon=True)
        self._thread.start()

    def _taken(self) -> Iterator[bytes]:
        while (chunk := self._chunks.get()) is not None:
            yield chunk
        if self._dropped:
            raise InterruptedError("the upload was aborted")

    def _give(self, chunk: bytes | None) -> None:
        while self._thread.is_alive():
            try:
                self._chunks.put(chunk, timeout=0.1)
                return
            except queue.Full:
                continue

    def write(self, data: BytesLike) -> None:
        if self._over:
            raise ValueError("the upload is over")
        if len(data):
            self._give(bytes(data))
        self._raise()

    def complete(self) -> str | None:
        if self._over:
            raise ValueError("the upload is over")
        self._over = True
        self._give(None)
        self._thread.join()
        self._raise()
        return self._etag

    def abort(self) -> None:
        self._over = self._dropped = True
        self._give(None)
        self._thread.join()

    def _raise(self) -> None:
        if self._failed is not None:
            self._over = True
            raise self._failed
