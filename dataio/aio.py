"""`async with loader.aiter() as batches`: a pass over the data that never keeps the event loop waiting."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Self, TypeAlias

if TYPE_CHECKING:
    from .engine.batch import FinishedBatch
    from .loader import DataLoader, LoaderIterator

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
