"""For asyncio, without ever keeping the event loop waiting: `async with loader.aiter()`, and every verb on bytes.

`await dataio.aio.read(uri)` is `dataio.read(uri)`: the verbs here have the names, arguments and errors of those of the package.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from itertools import islice
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeAlias, TypeVar

from .engine.executors.requests import RequestThreads
from .engine.executors.shared import Shared
from .io import transfer, verbs
from .io.parallel import stopped_by
from .io.stream import Event, Stream
from .io.stream import stream as open_stream

if TYPE_CHECKING:
    from .engine.batch import FinishedBatch
    from .loader import DataLoader, LoaderIterator

P = ParamSpec("P")
T = TypeVar("T")
Taken: TypeAlias = "tuple[tuple[FinishedBatch, Any] | None, BaseException | None]"
"""What `LoaderIterator.take` gave, or what it raised."""


class AsyncLoaderIterator:
    """One pass over the data, for asyncio. Made by `DataLoader.aiter`; an async context manager and an async iterator.

    A batch that arrives while nobody awaits it, because the awaiting was cancelled or timed out, is what the next
    `anext` gets. Leaving the block, however it is left, stops the pass.
    """

    def __init__(self, loader: DataLoader) -> None:
        self._loader = loader
        self._waiter: _Waiter | None = None
        self._taking: asyncio.Future[Taken] | None = None
        self._awaited = False

    async def __aenter__(self) -> Self:
        """Begin the pass.

        Raises:
            RuntimeError: the loader is closed, or an iteration is under way, or this object was entered before.
            ValueError: the plan cannot run: unset parameters, ops that do not fit together.
        """
        if self._waiter is not None:
            raise RuntimeError("aiter() gives one pass; call it again for the next")
        self._waiter = _Waiter(self._loader)
        weakref.finalize(self, self._waiter.stop).atexit = False
        try:
            _, error = await self._waiter.begun
            if error is not None:
                raise error
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        waiter = self._waiter
        assert waiter is not None
        waiter.stop()
        await asyncio.shield(waiter.ended)
        waiter.thread.join()  # telling that it ended was the last thing it did

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        """The next batch.

        Raises:
            StopAsyncIteration: at the end, and once the block was left or the loader closed.
            RuntimeError: outside `async with`, or while another task awaits the next batch.
            BatchError, SourceError, or whatever a Python map raised.
        """
        if self._waiter is None:
            raise RuntimeError("aiter() is used as: async with loader.aiter() as batches")
        if self._awaited:
            raise RuntimeError("another task awaits the next batch of this iteration already")
        self._awaited = True
        try:
            while not self._waiter.stopping:
                if self._taking is None:
                    self._taking = self._waiter.take()
                message, error = await asyncio.shield(self._taking)
                self._taking = None
                if error is not None:
                    raise error
                if message is None:
                    break
                assert self._waiter.iterator is not None
                if self._waiter.iterator.deliver(message[0]):
                    return message[1]
        finally:
            self._awaited = False
        raise StopAsyncIteration


class _Waiter:
    """The thread that begins the pass, waits for a batch when it is asked to, and ends the pass.

    It holds nothing of the `AsyncLoaderIterator`, so that one that is dropped can be collected and stop it.
    """

    def __init__(self, loader: DataLoader) -> None:
        self.stopping = False
        self.iterator: LoaderIterator | None = None
        self._loader = loader
        self._loop = asyncio.get_running_loop()
        self._requests: SimpleQueue[asyncio.Future[Taken] | None] = SimpleQueue()
        self.begun: asyncio.Future[Taken] = self._loop.create_future()
        self.ended: asyncio.Future[Taken] = self._loop.create_future()
        self.thread = threading.Thread(target=self._run, name="dataio-async", daemon=True)
        self.thread.start()

    def take(self) -> asyncio.Future[Taken]:
        """Ask for the next batch."""
        future: asyncio.Future[Taken] = self._loop.create_future()
        self._requests.put(future)
        return future

    def stop(self) -> None:
        """End the pass and the thread, from any thread, without waiting; idempotent."""
        self.stopping = True
        self._requests.put(None)
        if self.iterator is not None:
            self.iterator.interrupt()

    def _run(self) -> None:
        try:
            self.iterator = iter(self._loader)
        except BaseException as error:
            self._tell(self.begun, error=error)
        else:
            self._tell(self.begun)
            while not self.stopping and (request := self._requests.get()) is not None:
                try:
                    self._tell(request, self.iterator.take())
                except BaseException as error:
                    self._tell(request, error=error)
            self.iterator.close()
        self._tell(self.ended)

    def _tell(
        self,
        future: asyncio.Future[Taken],
        message: tuple[FinishedBatch, Any] | None = None,
        error: BaseException | None = None,
    ) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop is closed: nobody awaits any more
            self._loop.call_soon_threadsafe(_settle, future, (message, error))


def _settle(future: asyncio.Future[Taken], taken: Taken) -> None:
    if not future.done():
        future.set_result(taken)


# -------------------------------------------------------------------- verbs


_threads = Shared(RequestThreads, RequestThreads.close)
"""The process-wide threads for requests, in use as long as some request is under way."""


def _submit(request: Callable[[], None]) -> None:
    """Call `request()` in a thread, without waiting."""
    share = _threads.take()

    def run() -> None:
        try:
            request()
        finally:
            _threads.give(share, time.monotonic())  # nothing to wait for: the last one to give it back is the last request

    share.submit(run)


async def _in_thread(work: Callable[..., T], *arguments: Any, **options: Any) -> T:
    """What `work` gives, called in a thread. A task that is cancelled goes on at once, and tells `work` to stop."""
    stop = threading.Event()
    future: Future[T] = Future()

    def request() -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(stopped_by(stop, lambda: work(*arguments, **options)))
        except BaseException as error:
            future.set_exception(error)

    _submit(request)
    try:
        return await asyncio.wrap_future(future)
    except asyncio.CancelledError:
        stop.set()
        raise


def _twin(verb: Callable[P, T]) -> Callable[P, Coroutine[Any, Any, T]]:
    """The verb for asyncio: the same arguments, result and errors; it waits in a thread, never in the event loop.

    A task that is cancelled goes on at once. One request that was begun ends by itself, unseen; `copy` and `sync` begin
    nothing more and drop what is half written. At most DATAIO_IO_WORKERS x 8 wait at once, the others queue.
    """

    @functools.wraps(verb)
    async def twin(*args: P.args, **kwargs: P.kwargs) -> T:
        return await _in_thread(verb, *args, **kwargs)

    return twin


copy = _twin(transfer.copy)
delete = _twin(verbs.delete)
exists = _twin(verbs.exists)
fetch = read = _twin(verbs.read)
fetch_into = _twin(verbs.fetch_into)
glob = _twin(verbs.glob)
head = _twin(verbs.head)
ls = _twin(verbs.ls)
lsd = _twin(verbs.lsd)
sign = _twin(verbs.sign)
sync = _twin(transfer.sync)
write = _twin(verbs.write)


class AsyncStream:
    """The bytes of one object, read once, front to back: an async context manager and an async iterator of chunks.

    All methods go on where the last one stopped, as those of `dataio.Stream`. Without `async with` it is opened by the first
    of them, and closed at the end of the bytes.
    """

    def __init__(self, open_stream: Callable[[], Stream]) -> None:
        self._open = open_stream
        self._stream: Stream | None = None
        self._lock = threading.Lock()  # a read that was cancelled may still be under way in its thread
        self._closed = False

    async def __aenter__(self) -> Self:
        """Open it; raises what `dataio.stream` does."""
        await _in_thread(self._opened)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop reading and give the connection back; more than once is fine."""
        self._closed = True
        if self._lock.locked():
            _submit(self._close)  # the read ends by itself or by its timeout, and nobody waits for it
        else:
            await _in_thread(self._close)

    def _close(self) -> None:
        with self._lock:
            if self._stream is not None:
                self._stream.close()

    def _opened(self) -> Stream:
        with self._lock:
            if self._closed:
                raise ValueError("the stream is closed")
            if self._stream is None:
                self._stream = self._open()
            return self._stream

    @property
    def info(self) -> Stream:
        """The opened `dataio.Stream`, for its status, headers, etag and so on.

        Raises:
            RuntimeError: it is not open yet.
        """
        if self._stream is None:
            raise RuntimeError("the stream is not open yet: use `async with`")
        return self._stream

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self.iter_bytes()

    async def read_all(self) -> bytes:
        """All bytes that were not read yet."""
        stream = await _in_thread(self._opened)
        return await _in_thread(self._step, stream.read_all)

    def iter_bytes(self, chunk_size: int = 65536) -> AsyncIterator[bytes]:
        """As `Stream.iter_bytes`."""
        return self._items(lambda stream: stream.iter_bytes(chunk_size))

    def iter_lines(self) -> AsyncIterator[str]:
        """As `Stream.iter_lines`."""
        return self._items(Stream.iter_lines)

    def iter_events(self) -> AsyncIterator[Event]:
        """As `Stream.iter_events`."""
        return self._items(Stream.iter_events)

    async def _items(self, begin: Callable[[Stream], Iterator[T]]) -> AsyncIterator[T]:
        items = begin(await _in_thread(self._opened))
        while (batch := await _in_thread(self._step, lambda: list(islice(items, 1)))) and not self._closed:
            yield batch[0]

    def _step(self, read: Callable[[], T]) -> T:
        with self._lock:
            return read()


def stream(uri: str, **options: Any) -> AsyncStream:
    """`async with dataio.aio.stream(uri) as chunks: async for chunk in chunks`, or `async for chunk in dataio.aio.stream(uri)`.

    The arguments, and what reading raises, are those of `dataio.stream`.
    """
    return AsyncStream(lambda: open_stream(uri, **options))
