"""Build the actor graph of one epoch, supervise it, hand out its batches, and leave nothing behind.

    Source -> (Fetch) -> Workers -> Shape -> (BatchOps) -> consumer
       ^____________________ batch credits ___________________|
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from .actor import Actor, Credits, Mailbox, Mark
from .actors.device import DeviceActor
from .actors.fetch import FetchActor, Fetching
from .actors.shape import BatchOpsActor, ShapeActor
from .actors.source import SourceActor
from .agreement import AgreedSteps, Agreement
from .batch import FinishedBatch, Job, describe_error
from .cutting import open_cutter
from .errors import BatchError, InternalError
from .executors.base import Executor
from .ledger import BatchMemory, Ledger, buffer_bytes
from .physical import Program
from .plan import Batch, BatchOps, MapBatches, Plan, Shape, Slots, walk
from .settings import drain_timeout, pipeline_trace
from .source import Pass
from .stats import RunStats
from .trace import Recorder, Snapshots
from .units import ALONE, Cutter, Share
from .work import MorselResult


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How a plan is run.

    Attributes:
        concurrency: records of a batch worked on at a time, None for no bound of its own.
        min_survivors: fewest survivors a batch may have; None is "strict": the first row error raises.
        order: "submit" keeps the source's order, "completion" delivers what is ready first.
        seed: of all random ops.
        context: called per record for `batch.context`.
        ahead: batches wrapped before the consumer asks for them, on a thread of their own; 0 wraps when it asks.
        share: this rank's part of each global batch.
        agreement: for each pass, how ranks agree on the number of steps where they cannot all work it out.
        originals: keep what the source gave for each record, for who writes down those that fail.
    """

    concurrency: int | None = None
    min_survivors: int | None = 1
    order: Literal["submit", "completion"] = "submit"
    seed: int = 0
    context: Callable[[Any], Any] | None = None
    ahead: int = 0
    share: Share = ALONE
    agreement: Callable[[], Agreement] | None = None
    originals: bool = False


@dataclass(frozen=True, slots=True)
class Resume:
    """Where in an epoch to begin.

    Attributes:
        batches: delivered before, on this rank; the next one has this number.
        units: the cutter's state behind them, None for the beginning.
        ahead: numbers of batches after the next one that were delivered before it (`order="completion"`).
    """

    batches: int = 0
    units: Any = None
    ahead: frozenset[int] = frozenset()


BEGINNING = Resume()


@dataclass(slots=True)
class Experience:
    """What the batches so far showed; kept from epoch to epoch. It steers how work is cut, never what comes out.

    Attributes:
        row_types: shape and dtype of each slot's rows in the batch finished last, when they were all alike.
        record_ns: a worker's time per record, a running mean; 0 before the first morsel.
        value_bytes: bytes per value that was fetched, a running mean; 0 before the first.
    """

    row_types: dict[str, tuple[tuple[int, ...], np.dtype]] = field(default_factory=dict)
    record_ns: float = 0.0
    value_bytes: float = 0.0

    def row_type(self, slot: str, dense: np.ndarray | None) -> None:
        """Note the rows of a finished slot: `dense` [B, ...], or None when they differ."""
        if dense is None:
            self.row_types.pop(slot, None)
        else:
            self.row_types[slot] = (dense.shape[1:], dense.dtype)

    def morsel(self, result: MorselResult) -> None:
        """Note how long a morsel took."""
        if result.length:
            each = sum(spent[0] for spent in result.counters.values()) / result.length
            self.record_ns += (each - self.record_ns) * (0.2 if self.record_ns else 1.0)

    def fetched(self, nbytes: int, values: int) -> None:
        """Note what the values of a morsel took."""
        each = max(1.0, nbytes / values)  # 0 says that nothing is known
        self.value_bytes += (each - self.value_bytes) * (0.2 if self.value_bytes else 1.0)


_MORSEL_NS = 2_000_000
"""Time that a morsel should take at least: passing it around costs some tenths of a millisecond."""
_LARGEST_GROUP = 1 << 20
"""Records of one group that the Shape actor's mailbox is made for."""


class Graph:
    """The running actors of one epoch."""

    def __init__(
        self,
        plan: Plan,
        program: Program,
        executor: Executor,
        options: RunOptions,
        *,
        epoch: int,
        stats: RunStats,
        wrap: Callable[[FinishedBatch], Any],
        experience: Experience,
        ledger: Ledger,
        resume: Resume = BEGINNING,
        fetching: Fetching | None = None,
    ) -> None:
        nodes = list(walk(plan))
        self.shape = next(n for n in nodes if isinstance(n, Shape))
        self.chains = next(n for n in nodes if isinstance(n, Slots)).chains
        self.batch_ops = [c for n in reversed(nodes) if isinstance(n, BatchOps) for c in n.calls]
        self.batch_maps = [n.function for n in reversed(nodes) if isinstance(n, MapBatches)]
        self.program = program
        self.executor = executor
        self.order = options.order
        self.seed = options.seed
        self.min_survivors = options.min_survivors
        self.context = options.context
        self.share = options.share
        self.originals = options.originals
        self.epoch = epoch
        self.resume = resume
        self.stats = stats
        self.wrap = wrap
        self.experience = experience
        self.ledger = ledger
        cutter = open_cutter(
            self.shape, Pass(epoch, options.seed), options.share, resume.units, originals=options.originals
        )
        self.units: Cutter | AgreedSteps = cutter
        if options.agreement is not None:
            self.units = AgreedSteps(cutter, options.agreement(), options.share.steps, self.shape, lambda: self.stopped())
        self._concurrency = options.concurrency
        self._process = os.getpid()
        self._stopping = threading.Event()
        self.stopped = self._stopping.is_set
        self.wait_stopped = self._stopping.wait
        self._handed_out = 0
        self._asking = False
        self._closed = False
        stats.inline = program.inline

        prefetch = self.shape.prefetch
        self.batch_credits = Credits(prefetch)
        self.record_credits = None if options.concurrency is None else Credits(max(1, options.concurrency))
        self.delivery = Mailbox("delivery", prefetch + 2)
        # Per batch at most one result per record; groups tell no size ahead.
        rows = self.shape.size if isinstance(self.shape, Batch) else _LARGEST_GROUP
        self.shape_mailbox = Mailbox("shape", (prefetch + 1) * (rows + 1))
        self.actors: list[Actor] = [SourceActor(self), ShapeActor(self, self.shape_mailbox)]
        self.fetch: FetchActor | None = None
        if fetching is not None and any(chain.reads is True for chain in program.chains):
            # Three messages for each morsel.
            self.fetch = FetchActor(self, fetching, Mailbox("fetch", 3 * self.shape_mailbox.capacity))
        self.ready, self.ahead_credits = self.delivery, None  # where batches go that need only be handed out
        if options.ahead and not self.batch_maps:  # Python batch maps are given wrapped batches anyway
            self.ready, self.ahead_credits = Mailbox("device", prefetch + 2), Credits(options.ahead)
            self.actors.append(DeviceActor(self, self.ready, self.ahead_credits))
        if self.batch_ops or self.batch_maps:
            self.next_mailbox = Mailbox("batch-ops", prefetch + 2)
            self.actors.append(BatchOpsActor(self, self.next_mailbox))
        else:
            self.next_mailbox = self.ready
        for actor in self.actors:
            actor.start()
        if self.fetch is not None:
            self.actors.append(self.fetch)  # starts with the first value that is remote
        self._snapshots = Snapshots(self) if pipeline_trace() else None

    # ---------------------------------------------------------------- called by actors and workers

    def morsel_rows(self, length: int) -> int:
        """Records per morsel: a whole column for cheap chains, else enough morsels to keep the workers even."""
        if all(c.whole_column for c in self.program.chains):
            rows = length
        else:
            executor, ready = self.executor, length * (self.shape.prefetch if self.executor.pools_batches else 1)
            rows = max(1, min(executor.morsel_rows, length, -(-ready // (executor.splits * executor.workers))))
            if (each := self.experience.record_ns) > 0:
                rows = max(rows, min(length, int(_MORSEL_NS / each)))
        return rows if self._concurrency is None else 1 if self._concurrency < rows else rows

    def take_record_credit(self) -> bool:
        """Wait until `concurrency` lets another morsel be worked on; False when the graph is stopping."""
        if self.record_credits is None:
            return True
        began = time.perf_counter_ns()
        taken = self.record_credits.take()
        self.stats.concurrency_wait_ns += time.perf_counter_ns() - began
        return taken

    def admit(
        self,
        memory: BatchMemory,
        buffers: list[tuple[tuple[int, ...], np.dtype]],
        unsized: list[str],
        length: int,
        remote: int = 0,
    ) -> bool:
        """Wait until a batch of `length` records fits the memory limit: its `buffers`, and what its `unsized` slots and its
        `remote` values are expected to take; False when the graph is stopping.
        """
        ledger, sized = self.ledger, sum(buffer_bytes(*buffer) for buffer in buffers)

        def needed() -> int | None:  # asked again when a batch before has shown how large its rows are
            expected = ledger.expected(unsized, length)
            fetched = 0 if not remote or self.fetch is None else self.fetch.expected(remote)
            return None if expected is None or fetched is None else expected + sized + fetched

        began = time.perf_counter_ns()
        # The batch at hand has taken its credit.
        admitted = ledger.admit(
            needed, lambda: self.batches_in_flight > 1, lambda: self._asking, self.stopped, self.executor.buffers
        )
        self.stats.memory_wait_ns += time.perf_counter_ns() - began
        memory.expect((ledger.expected(unsized, length) or 0) + sized)  # what is fetched is counted by who fetches it
        return admitted

    def part_done(self, job: Job, result: MorselResult | BaseException) -> None:
        """Some records of a morsel are back, others not yet."""
        if isinstance(result, BaseException):
            self.fail(result)
        elif not self.stopped():
            self.shape_mailbox.put((job.number, (job, result)))

    def morsel_done(self, job: Job, result: MorselResult | BaseException) -> None:
        if self.record_credits is not None:
            self.record_credits.give()
        self.part_done(job, result)

    def judge(self, batch: FinishedBatch) -> FinishedBatch | BatchError:
        """The batch, or the error that the failure policy makes of it."""
        failures = len(batch.errors) if batch.length < batch.submitted else 0
        if self.min_survivors is None:
            if not failures:
                return batch
            first = batch.errors[0]
            text = f"batch {batch.number} sample {first['index']} failed ({first['stage']}): {describe_error(first)}"
            return BatchError(text, batch=batch.number, errors=batch.errors)
        if batch.length >= self.min_survivors or not batch.submitted:  # a step without records fails nobody
            return batch
        text = (
            f"batch {batch.number} produced {batch.length} survivor(s); min_survivors={self.min_survivors} required "
            f"({failures} error(s))"
        )
        if failures:
            text += f"; first error: {describe_error(batch.errors[0])}"
        return BatchError(text, batch=batch.number, errors=batch.errors)

    def step(self, number: int) -> int:
        """A batch's number among those of all ranks, which its batch transforms draw by."""
        return number * self.share.of + self.share.id

    def delivered_already(self, number: int) -> None:
        """The batch before `number` was delivered before a checkpoint."""
        self.shape_mailbox.put((number - 1, None))

    def fail(self, error: BaseException) -> None:
        """A bug, in an actor or a worker: stop and raise at the consumer."""
        if not self._stopping.is_set():
            self._stopping.set()
            self.delivery.put(error)

    # ---------------------------------------------------------------- called by the consumer

    def next(self) -> tuple[FinishedBatch, Any] | None:
        """The next finished batch and what the batch maps made of it; None at the end.

        Raises:
            BatchError, SourceError, or whatever a Python map or a bug raised; the graph is closed then.
        """
        started = time.perf_counter_ns()
        self._asking = True
        self.ledger.wake()
        message = self.delivery.get()
        self._asking = False
        got = time.perf_counter_ns()
        self.stats.consumer_wait_ns += got - started
        if message is Mark.END:
            self.close()
            return None
        if isinstance(message, BaseException):
            self.close()
            if isinstance(message, (StopIteration, StopAsyncIteration)):  # would look like the end of the data
                raise RuntimeError(f"a function of the pipeline raised {type(message).__name__}") from message
            raise message
        self.stats.inflight_batches_max = max(self.stats.inflight_batches_max, self.batches_in_flight)
        self.batch_credits.give()
        if self.ahead_credits is not None:
            self.ahead_credits.give()
        finished, result = message if isinstance(message, tuple) else (message, None)
        if not isinstance(finished, FinishedBatch):
            raise InternalError(f"the delivery queue held {message!r}")
        if finished.memory is not None:
            finished.memory.deliver()
        self.stats.took(finished.length, finished.submitted)
        if result is None and not self.batch_maps:
            result = self.wrap(finished)
        if self.stats.trace is not None:
            self._record(self.stats.trace, finished, started, got)
        self._handed_out = time.perf_counter_ns()
        return finished, result

    def _record(self, trace: Recorder, finished: FinishedBatch, asked: int, got: int) -> None:
        """The consumer's time since it was given the batch before, and the queues it found."""
        if self._handed_out:
            trace.span("consumer", "training loop", self._handed_out, asked)
        trace.span("consumer", f"waits for batch {finished.number}", asked, got, batch=finished.number)
        trace.depth("batches in flight", batches=self.batches_in_flight)
        trace.depth("messages waiting", **{name: now for name, (now, _) in self.depths().items()})

    @property
    def batches_in_flight(self) -> int:
        """Batches whose credit is out: being cut, worked on, or finished and not taken."""
        return 0 if self.stopped() else max(0, self.batch_credits.total - self.batch_credits.free)

    def depths(self) -> dict[str, tuple[int, int]]:
        """Messages in each mailbox: now, and at most so far."""
        return {box.name: (len(box), box.high) for box in (self.shape_mailbox, self.next_mailbox, self.ready, self.delivery)}

    def close(self, deadline: float | None = None) -> None:
        """Stop every actor and wait for its thread, at most until `deadline` (of `time.monotonic`; None allows the drain
        timeout): a source that never returns is left to end by itself. In a forked child there is nothing to stop.
        """
        if os.getpid() != self._process:
            return
        self._stopping.set()
        self.batch_credits.cancel()
        self.ledger.wake()
        for credits in (self.record_credits, self.ahead_credits):
            if credits is not None:
                credits.cancel()
        for actor in self.actors:
            actor.mailbox.put(Mark.STOP)
        if deadline is None:
            deadline = time.monotonic() + drain_timeout()
        for actor in self.actors:
            if actor.thread is not threading.current_thread() and actor.thread.ident is not None:
                actor.thread.join(max(0.0, deadline - time.monotonic()))
        first = not self._closed
        self._closed = True
        if first:
            self.stats.ended(self.depths())
        # What was finished but never taken must not keep its buffers.
        for actor in self.actors:
            if isinstance(actor, ShapeActor) and not actor.thread.is_alive():
                actor.jobs.clear()
                actor.finished_batches.clear()
                self.shape_mailbox.clear()
        self.delivery.clear()
        self.delivery.put(Mark.END)  # for a consumer that waits on another thread
        if self._snapshots is not None:
            self._snapshots.join()
        if first and self.stats.trace is not None:
            self.stats.trace.pass_ended()

    @property
    def alive(self) -> bool:
        return any(actor.thread.is_alive() for actor in self.actors)
