"""The process executor: forked workers that write into shared batch buffers.

One dispatcher thread per worker sends morsels as Arrow IPC and waits for results; two morsels are under way per worker, so
that it never waits for the loader. A worker that dies is replaced, and what it held is tried again one record at a time:
the record that kills its worker becomes a row error, the others are delivered. A fork server that dies is started again.
Passthrough slots stay here: any Python value may stand in them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import Any

from ..buffers import BufferPool
from ..errors import RecordError, WorkerDiedError
from ..failure import Failure, uri_of
from ..forks import in_child
from ..morsel import Morsel
from ..physical import Program
from ..rules import SEED_FIELD
from ..settings import cpu_workers
from ..work import MorselResult, run_morsel
from .base import Placement, Task
from .channel import Inbox, send
from .forkserver import ForkServer, ServerGoneError
from .worker import BlockAddress, RunRequest, UnsendableResultError

_AHEAD = 2
"""Morsels sent to a worker before its first result is waited for."""
_MAPPINGS = 64
"""Buffers a worker keeps mapped."""
_INNOCENT_DEATHS = 2
"""Deaths of workers, each without fault of the task, after which a task is suspected all the same: so it ends some day."""
_SERVER_STARTS = 3
"""Fork servers started for one worker before that is given up."""
_JOIN_SECONDS = 0.5
"""How long a dispatcher is waited for at least."""


class ProcessExecutor:
    """The workers of one loader.

    Args:
        placement: niceness and cores of the workers.
        reason: why there are processes, for `describe`.
        unsendable: takes a task whose records, or whose result, cannot be pickled; None makes that an error.

    Raises:
        Exception: whatever pickling the program raises.
    """

    splits = 2  # a message costs a fraction of a millisecond, more when the trainer keeps the GIL
    morsel_rows = 64
    pools_batches = True

    def __init__(
        self,
        program: Program,
        placement: Placement = Placement(),  # noqa: B008  (frozen)
        *,
        reason: str = "",
        unsendable: Callable[[Task], None] | None = None,
    ) -> None:
        import cloudpickle

        self.workers = cpu_workers(placement.cpus)
        self.buffers = BufferPool(shared=True)
        self.unsendable = unsendable
        self._placement = placement
        self._reason = reason
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._failure: BaseException | None = None
        self._serving = self.workers
        kept = tuple(c for c in program.chains if c.whole_column and not c.reads)
        self.kept = replace(program, chains=kept)
        sent = replace(program, chains=tuple(c for c in program.chains if c not in kept))
        self.unsent = frozenset(c.slot for c in kept) - {*sent.fields, SEED_FIELD}
        self._program = cloudpickle.dumps(sent.for_processes(), protocol=5)  # goes through a socket pair, never to a file
        self._server: ForkServer | None = None
        self._generation = 0
        self._links: list[_Link] = []
        in_child(self, ProcessExecutor._disown)

    def start(self) -> ProcessExecutor:
        """Start the workers, which takes a second or two; `close` from another thread ends the wait.

        Raises:
            WorkerDiedError: they cannot be started, or cannot load the plan.
        """
        try:
            for number in range(self.workers):
                self._links.append(_Link(self, number))
        except BaseException:
            self.close(time.monotonic())
            for link in self._links:
                link.channel.close()
            raise
        for link in self._links:
            link.thread.start()
        return self

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers alive."""
        return [link.pid for link in self._links]

    @property
    def server_pid(self) -> int | None:
        """Process id of the fork server."""
        return None if self._server is None else self._server.pid

    def describe(self) -> dict[str, Any]:
        return {"kind": "process", "reason": self._reason, "gil_share": None}

    def submit(self, task: Task) -> None:
        self._tasks.put(task)
        if self._failure is not None:
            self._refuse(self._failure)

    def lost_link(self, error: BaseException) -> None:
        """A dispatcher ended. After the last one nobody would answer: what is queued, and will be, fails."""
        with self._lock:
            self._serving -= 1
            if self._serving:
                return
            self._failure = error
        self._refuse(error)

    def _refuse(self, error: BaseException) -> None:
        with contextlib.suppress(Empty):
            while True:
                task = self._tasks.get_nowait()
                if task is not None:
                    task.done(task.job, error)

    def fork(self) -> tuple[int, socket.socket, int]:
        """A new worker: its pid, our end of its channel, and how many fork servers there have been.

        A server that is gone is started again, unless that is in vain several times in a row: the plan may be what kills it.
        """
        with self._lock:
            for _ in range(_SERVER_STARTS):
                if self._server is not None:
                    with contextlib.suppress(ServerGoneError):
                        return (*self._server.fork(self._placement), self._generation)
                    self._server.close()
                if self._closing.is_set():
                    raise ServerGoneError("the workers are being closed")
                self._server = ForkServer(self._program)
                self._generation += 1
                if self._closing.is_set():  # `close` may have looked before there was a server to abort
                    self._server.abort()
            return (*self._server.fork(self._placement), self._generation)  # type: ignore[union-attr]

    def close(self, deadline: float) -> None:
        if self._closing.is_set():
            return
        self._closing.set()
        for _ in self._links:
            self._tasks.put(None)
        for link in self._links:
            link.stop()
        if self._server is not None:
            self._server.abort()
        for link in self._links:
            if link.thread is not threading.current_thread() and link.thread.ident is not None:
                # Long enough to see the end of a channel; only pickling a record that does not return takes longer.
                link.thread.join(max(_JOIN_SECONDS, deadline - time.monotonic()))
        with self._lock:
            if self._server is not None:
                self._server.close()
        self.buffers.close()

    def _disown(self) -> None:
        """In a forked child: the workers are the parent's, and must see their channels end when the parent does."""
        self._lock = threading.Lock()
        self._closing.set()
        for link in self._links:
            link.channel.close()
        self.buffers.close()


class _Link:
    """One worker and the thread that talks to it."""

    def __init__(self, executor: ProcessExecutor, number: int) -> None:
        self.executor = executor
        self.pid, self.channel, self.generation = executor.fork()
        self.inbox = Inbox(self.channel)
        self.mapped: OrderedDict[int, None] = OrderedDict()
        self.outstanding: deque[Task] = deque()
        self.unread = False
        self.thread = threading.Thread(target=self._serve, name=f"dataio-dispatcher-{number}", daemon=True)

    def stop(self) -> None:
        """Close the channel under the thread: a worker in a long op is not waited for."""
        with contextlib.suppress(OSError):
            self.channel.shutdown(socket.SHUT_RDWR)
        if self.outstanding:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def _serve(self) -> None:
        tasks, outstanding, closing = self.executor._tasks, self.outstanding, self.executor._closing
        try:
            while not closing.is_set():
                while len(outstanding) < _AHEAD:
                    try:
                        task = tasks.get(block=not outstanding)
                    except Empty:
                        break
                    if task is None or closing.is_set():
                        return
                    if not task.stopped():
                        self._send(task)
                    del task
                if outstanding:
                    self._receive()
        except BaseException as error:
            if not closing.is_set():
                for task in outstanding:
                    task.done(task.job, error)
                self.executor.lost_link(error)
        finally:
            outstanding.clear()
            self.channel.close()

    def _send(self, task: Task) -> None:
        morsel = task.morsel
        try:
            parts: tuple[Any, ...] = without(morsel, self.executor.unsent).to_ipc() + morsel.fetched_parts()
        except Exception as error:
            if self.executor.unsendable is not None:
                self.executor.unsendable(task)
                return
            text = (
                f"{morsel.title()} cannot be sent to a worker process "
                f"({error}); run with workers=\"thread\""
            )
            refusal = RecordError(text)
            refusal.__cause__ = error
            task.done(task.job, refusal)
            return
        if not morsel.fetched:  # which is counted
            task.reading = task.job.memory.ledger.reading(morsel.length)
        self.outstanding.append(task)
        addresses: dict[str, BlockAddress] = {}
        mapped: list[tuple[int, int]] = []
        descriptors: list[int] = []
        for slot, block in task.blocks().items():
            rows = block.array[morsel.offset : morsel.offset + morsel.length]
            identity = block.mapping.identity
            if identity not in self.mapped:
                mapped.append((identity, block.mapping.size))
                descriptors.append(block.mapping.descriptor)
            self.mapped[identity] = None
            self.mapped.move_to_end(identity)
            offset = block.array.strides[0] * morsel.offset
            addresses[slot] = BlockAddress(identity, offset, rows.shape, rows.dtype)
        dropped = []
        while len(self.mapped) > max(_MAPPINGS, len(addresses)):
            dropped.append(self.mapped.popitem(last=False)[0])
        request = RunRequest(
            task.seed, task.epoch, addresses, task.job.inactive, task.job.guessed, tuple(mapped), tuple(dropped)
        )
        try:
            send(self.channel, request, parts, tuple(descriptors))
        except OSError:  # the worker is gone: receiving says so, in order
            self.unread = len(self.outstanding) == 1

    def _receive(self) -> None:
        try:
            result, _ = self.inbox.receive()
        except (EOFError, OSError) as error:
            if not self.executor._closing.is_set():
                # A reset says that what was sent last lay there unread.
                self._replace(self.unread or (isinstance(error, ConnectionResetError) and len(self.outstanding) == 1))
            return
        task = self.outstanding.popleft()
        task.reading = None
        if isinstance(result, UnsendableResultError) and self.executor.unsendable is not None:
            self.executor.unsendable(task)
            return
        if self.executor.kept.chains and isinstance(result, MorselResult):
            self._add_kept(task, result)
        task.done(task.job, result)

    def _add_kept(self, task: Task, result: MorselResult) -> None:
        """Run the chains that were not sent."""
        morsel = task.morsel
        failed = morsel.skip.union(f.row - morsel.offset for f in result.failures)
        kept = run_morsel(
            self.executor.kept, replace(morsel, skip=failed), {}, task.seed, task.epoch, task.job.inactive
        )
        result.chains.update(kept.chains)
        result.failures.extend(kept.failures)
        result.counters.update(kept.counters)

    def _replace(self, unread: bool) -> None:
        """The worker died. What it had begun is tried again record by record, so that only the record that kills is lost;
        what it never saw (`unread`), or lost because the fork server was killed, is tried again as it is.
        """
        for task in self.outstanding:
            task.reading = None
        while len(self.outstanding) > 1:
            self.executor.submit(self.outstanding.pop())
        self.channel.close()
        self.mapped.clear()
        self.unread = False
        pid, generation = self.pid, self.generation
        self.pid, self.channel, self.generation = self.executor.fork()
        self.inbox = Inbox(self.channel)
        victim = self.outstanding.popleft()
        if (unread or self.generation != generation) and victim.deaths < _INNOCENT_DEATHS:
            self.executor.submit(replace(victim, deaths=victim.deaths + 1))
        elif victim.morsel.length > 1:
            for task in victim.records():
                self.executor.submit(task)
        else:
            victim.done(victim.job, lost(victim, pid))


def without(morsel: Morsel, names: frozenset[str]) -> Morsel:
    """The morsel less some columns."""
    if not names:
        return morsel
    batch = morsel.batch
    if batch is not None:
        batch = batch.select([n for n in batch.schema.names if n not in names])
    return replace(morsel, objects={n: v for n, v in morsel.objects.items() if n not in names}, batch=batch)


def lost(task: Task, pid: int) -> MorselResult:
    """Row errors for every record of a morsel whose worker died."""
    morsel = task.morsel
    result = MorselResult(morsel.offset, morsel.length)
    slot = task.program.chains[0].slot
    sources = morsel.values(slot)
    error = WorkerDiedError(
        f"worker process {pid} died while it held {morsel.title()}; "
        "one of them, or an op, killed it (out of memory, a crash in native code, or a signal)"
    )
    for i in range(morsel.length):
        if i not in morsel.skip:
            result.failures.append(
                Failure(morsel.offset + i, slot, "worker", "worker", uri_of(sources[i]), type(error).__name__, str(error))
            )
    return result
