"""The Fetch actor: reads what lies in remote stores ahead of the workers, so that they never wait for a network.

    Source --task--> Fetch --task and its bytes--> workers --done--> Fetch
                     |   ^
                 values  bytes, or the record's failure
                     v   |
               request threads

It begins with the first value that is remote; tasks without one go straight to the workers. Tasks are begun in the order in
which they come, while what is fetched and not yet worked off stays below `AHEAD_BYTES` (one task is begun in any case). How
many there are at a time is bounded by the credits that the Source takes; with a memory limit a batch is admitted only when
what will be fetched for it fits too. A request that is under way when the pass is left ends by its own timeout.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ..actor import Actor, Mailbox
from ..batch import Job
from ..executors.base import Task
from ..executors.requests import RequestThreads
from ..failure import Failure, failure_of
from ..ledger import Charge
from ..physical import ChainProgram
from ..stats import FetchStats
from ..work import MorselResult

if TYPE_CHECKING:
    from ..run import Graph
    from .source import Columns

AHEAD_BYTES = 1 << 28
"""Bytes fetched, or expected of requests under way, that workers have not worked off."""


@dataclass(frozen=True, slots=True)
class Fetching:
    """What the loader knows about remote values and the engine does not.

    Attributes:
        remote: whether a slot's value is read over a network. Called for every record.
        read: its bytes; called on a request thread, and raises as `Program.reader` does.
        threads: where it is called.
        retries: requests that the calling thread had to try again so far.
    """

    remote: Callable[[Any], bool]
    read: Callable[[Any], Any]
    threads: RequestThreads
    retries: Callable[[], int]


class Held:
    """Bytes that were fetched for a task, until a worker is done with it."""

    __slots__ = ("charge", "nbytes")

    def __init__(self, charge: Charge, expected: int) -> None:
        self.charge = charge
        self.nbytes = expected


class Fetch:
    """The remote values of one task, on their way."""

    __slots__ = ("_left", "_lock", "_nbytes", "held", "task", "todo")

    def __init__(self, task: Task, todo: list[tuple[str, int]], held: Held) -> None:
        self.task, self.todo, self.held = task, todo, held
        self._nbytes = 0
        self._left = len(todo)
        self._lock = threading.Lock()

    def arrived(self, nbytes: int) -> int | None:
        """A value is there; for the last one the bytes of all."""
        with self._lock:
            self._nbytes += nbytes
            self._left -= 1
            return None if self._left else self._nbytes


class FetchActor(Actor):
    """Receives a `Fetch` when the Source hands it out, when its bytes are there, and when a worker is done with it."""

    def __init__(self, graph: Graph, fetching: Fetching, mailbox: Mailbox) -> None:
        super().__init__("fetch", graph, mailbox)
        self.graph = graph
        self.fetching = fetching
        self.chains = tuple(chain for chain in graph.program.chains if chain.reads is True)
        self.stats: FetchStats = graph.stats.fetch
        self._waiting: deque[Fetch] = deque()
        self._ahead = 0
        self._begun = 0  # fetches that were begun and are not worked off

    # ---------------------------------------------------------------- called by the Source actor

    def remote_rows(self, columns: Columns) -> dict[str, list[int]]:
        """The rows of a batch whose bytes are to be fetched, by slot; slots without any are left out."""
        found = {chain.slot: self._remote_rows(chain, columns) for chain in self.chains if chain.slot not in columns.inactive}
        return {slot: rows for slot, rows in found.items() if rows}

    def _remote_rows(self, chain: ChainProgram, columns: Columns) -> list[int]:
        values: Sequence[Any]
        batch = columns.unit.batch
        if batch is None:
            values = columns.values[chain.slot]
            if set(map(type, values)) <= {bytes}:
                return []
        elif may_name_places(batch.column(chain.slot)):
            values = columns.column(chain.slot)
        else:
            return []
        remote, failed = self.fetching.remote, columns.failures
        return [i for i, value in enumerate(values) if remote(value) and i not in failed]

    def expected(self, values: int) -> int | None:
        """Bytes that so many values will take by those before; None when there were none."""
        each = self.graph.experience.value_bytes
        return int(each * values) if each else None

    def submit(self, task: Task, rows: dict[str, list[int]]) -> None:
        """Hand over a task; `rows` are those of its whole batch."""
        morsel = task.morsel
        first, end = morsel.offset, morsel.offset + morsel.length
        todo = [(slot, row - first) for slot, found in rows.items() for row in found if first <= row < end]
        if not todo:
            self.graph.executor.submit(task)
            return
        if self.thread.ident is None:
            self.start()
        expected = self.expected(len(todo)) or 0
        held = Held(self.graph.ledger.read(expected), expected)
        morsel.fetched = {slot: [None] * morsel.length for slot, _ in todo}
        self.stats.queued(len(todo))
        fetch = Fetch(replace(task, done=partial(self._done, held, task.done)), todo, held)
        self.mailbox.put((self._submitted, (fetch,)))

    # ---------------------------------------------------------------- on the actor's thread

    def receive(self, message: tuple[Callable[..., None], Any]) -> None:
        what, about = message
        what(*about)
        while self._waiting and self._fits(self._waiting[0]):
            self._begin(self._waiting.popleft())

    def finished(self) -> None:
        self._waiting.clear()
        self.mailbox.clear()
        self.stats.left()

    def _submitted(self, fetch: Fetch) -> None:
        self._waiting.append(fetch)

    def _fits(self, fetch: Fetch) -> bool:
        expected = self.expected(len(fetch.todo))
        # Where nothing is known yet the first fetch shows how large values are.
        return not self._begun or (expected is not None and self._ahead + expected <= AHEAD_BYTES)

    def _begin(self, fetch: Fetch) -> None:
        self._begun += 1
        fetch.held.nbytes = self.expected(len(fetch.todo)) or 0
        self._take(fetch.held.nbytes)
        for slot, row in fetch.todo:
            self.fetching.threads.submit(partial(self._request, fetch, slot, row))

    def _take(self, nbytes: int) -> None:
        self._ahead += nbytes
        self.stats.ahead(self._ahead)

    def _fetched(self, held: Held, nbytes: int, values: int) -> None:
        self.graph.experience.fetched(nbytes, values)
        self._take(nbytes - held.nbytes)
        held.nbytes = nbytes

    def _worked_off(self, held: Held) -> None:
        self._begun -= 1
        self._take(-held.nbytes)

    # ---------------------------------------------------------------- on request threads and workers

    def _request(self, fetch: Fetch, slot: str, row: int) -> None:
        """Fetch one value. What fails is the record's failure, found where a worker would have read it."""
        graph, stats = self.graph, self.stats
        if graph.stopped():
            return
        morsel, number = fetch.task.morsel, fetch.task.job.number
        source = morsel.values(slot)[row]
        stats.begins()
        before, began = self.fetching.retries(), time.perf_counter_ns()
        nbytes = 0
        try:
            found = self.fetching.read(source)
            nbytes = memoryview(found).nbytes
        except Exception as error:
            found = failure_of(morsel.offset + row, slot, "read", "read", source, error)
        except BaseException as error:
            graph.fail(error)
            return
        ended = time.perf_counter_ns()
        stats.ends(ended - began, nbytes, failed=isinstance(found, Failure), retries=self.fetching.retries() - before)
        if (trace := graph.stats.trace) is not None:
            trace.span("requests", "fetch", began, ended, batch=number, record=morsel.offset + row, bytes=nbytes)
            trace.depth("fetch", **stats.depths())
        morsel.fetched[slot][row] = found
        whole = fetch.arrived(nbytes)
        if whole is not None and not graph.stopped():
            fetch.held.charge = graph.ledger.read(whole)  # in place of what was expected
            self.mailbox.put((self._fetched, (fetch.held, whole, len(fetch.todo))))
            graph.executor.submit(fetch.task)

    def _done(
        self, held: Held, done: Callable[[Job, MorselResult | BaseException], None], job: Job, result: MorselResult | BaseException
    ) -> None:
        """A worker is done with the task."""
        held.charge.drop()
        self.mailbox.put((self._worked_off, (held,)))
        done(job, result)


def may_name_places(array: Any) -> bool:
    """Whether an Arrow column may hold URIs: text, or structs that hold no bytes."""
    import pyarrow as pa

    kind = array.type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_struct(kind):
        position = kind.get_field_index("bytes")
        return position < 0 or bool(array.field(position).null_count)
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))
