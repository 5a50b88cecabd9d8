"""Threads that wait for requests: one pool for the whole process, alive while some loader uses it.

A thread is started when a request finds none idle, so there are as many as were needed at once. They spend their time in
system calls and in clients that have released the GIL.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

from ..settings import io_workers
from .shared import Shared, end_threads

REQUESTS_PER_WORKER = 8
"""Threads for each of DATAIO_IO_WORKERS: one waits for one request, and a request to a distant store takes tens of milliseconds."""
Request = Callable[[], None]
"""What a thread does; it must not raise."""


class _Pool:
    """The threads. Made by the first loader that sends a request, ended after the last."""

    def __init__(self) -> None:
        self.requests: SimpleQueue[Request | None] = SimpleQueue()
        self.threads: list[threading.Thread] = []
        self._idle = 0
        self._lock = threading.Lock()

    def submit(self, request: Request, most: int) -> None:
        with self._lock:
            if self._idle > 0:
                self._idle -= 1  # one of them takes it
            elif len(self.threads) < most:
                thread = threading.Thread(target=self._work, name=f"dataio-request-{len(self.threads)}", daemon=True)
                self.threads.append(thread)
                thread.start()
            else:
                self._idle -= 1  # it waits in the queue: the first thread that is free is not idle
        self.requests.put(request)

    def _work(self) -> None:
        while (request := self.requests.get()) is not None:
            request()
            del request  # a thread that waits must not keep what it fetched
            with self._lock:
                self._idle += 1

    def stop(self, deadline: float) -> None:
        end_threads(self.threads, self.requests, deadline)  # a request that hangs ends by its own timeout


_shared = Shared(_Pool, _Pool.stop)


class RequestThreads:
    """A loader's share of the process-wide pool; it takes no part before the first request.

    Attributes:
        most: threads that this loader may have the pool grow to.
    """

    def __init__(self) -> None:
        self.most = REQUESTS_PER_WORKER * io_workers()
        self._pool: _Pool | None = None
        self._closed = False

    def submit(self, request: Request) -> None:
        """Have a thread call `request()`, in the order of submission; never blocks. Nothing is done once closed."""
        pool = self._pool
        if pool is None:
            with _shared.lock:
                if self._closed:
                    return
                if self._pool is None:
                    self._pool = _shared.take()
                pool = self._pool
        pool.submit(request, self.most)

    def close(self, deadline: float) -> None:
        """Give the share back; idempotent. Waits, at most until `deadline` (of `time.monotonic`), for the last loader's
        requests."""
        with _shared.lock:
            self._closed = True
            pool, self._pool = self._pool, None
        if pool is not None:
            _shared.give(pool, deadline)
