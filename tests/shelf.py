"""A store of the tests' own: objects in memory, behind requests that can be slow, counted, held up or refused."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping

from dataio.io.errors import ObjectNotFoundError
from dataio.io.store import Body, BytesLike, ObjectInfo, Store

CHUNK = 1 << 16


class Shelf(Store):
    """Registered as `shelf://`; keys are all that stands behind the scheme.

    Attributes:
        objects: content by key.
        seconds: what a request takes.
        refuses: key -> makes the error that every request for it raises.
        gate: requests wait until it is open.
        requests, nbytes: how many there were, and bytes given.
        running, most: requests under way, and the most there were.
    """

    scheme = "shelf"
    name = ""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.seconds: Callable[[str], float] = lambda key: 0.0
        self.refuses: dict[str, Callable[[], Exception]] = {}
        self.gate = threading.Event()
        self.gate.set()
        self.begun = threading.Event()
        self.requests = self.nbytes = self.running = self.most = 0
        self.threads: set[str] = set()
        self._lock = threading.Lock()

    def _wait(self, key: str) -> bytes:
        with self._lock:
            self.requests += 1
            self.running += 1
            self.most = max(self.most, self.running)
            self.threads.add(threading.current_thread().name)
        self.begun.set()
        try:
            time.sleep(self.seconds(key))
            self.gate.wait()
            if key in self.refuses:
                raise self.refuses[key]()
            if key not in self.objects:
                raise ObjectNotFoundError("no such object", uri=self.uri(key), status=404)
            return self.objects[key]
        finally:
            with self._lock:
                self.running -= 1

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
        data = self._wait(key)[offset : None if size is None else offset + size]
        with self._lock:
            self.nbytes += len(data)
        return data

    def open(
        self,
        key: str,
        offset: int = 0,
        size: int | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        limit: int | None = None,
    ) -> Body:
        data = self._wait(key)

        def chunks() -> Iterator[bytes]:
            for at in range(offset, len(data) if size is None else offset + size, CHUNK):
                self.nbytes += len(chunk := data[at : at + CHUNK])
                yield chunk

        return Body(self._info(key, data), chunks())

    def head(self, key: str, *, headers: Mapping[str, str] | None = None) -> ObjectInfo:
        return self._info(key, self._wait(key))

    def list(self, prefix: str, *, delimited: bool = False) -> Iterator[ObjectInfo]:
        for key in sorted(self.objects):
            if key.startswith(prefix):
                yield self._info(key, self.objects[key])

    def _info(self, key: str, data: bytes) -> ObjectInfo:
        return ObjectInfo(key, len(data), etag=f"{hash(data):x}")
