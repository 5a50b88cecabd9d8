"""`DataLoader`: what a training loop iterates."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from .checkpoint import PlanIdentity, Position, make_state, read_state
from .engine.actor import Mark
from .engine.actors.fetch import Fetching
from .engine.batch import FinishedBatch
from .engine.errors import ClosedError, ForkedError
from .engine.executors.base import Executor
from .engine.executors.requests import RequestThreads
from .engine.explain import explain
from .engine.ledger import Ledger
from .engine.physical import Program, compile_chain
from .engine.plan import Batch as BatchNode
from .engine.plan import Collate, Plan, Shape, Slots, record_count, walk
from .engine.registry import process_setups
from .engine.rewrite import Rewritten
from .engine.rules import optimize
from .engine.run import Experience, Graph, RunOptions
from .engine.settings import drain_timeout
from .engine.stats import RunStats, op_stats
from .engine.trace import Recorder
from .engine.units import steps_of
from .failures import FailureHandling
from .io.cache import ThroughCache
from .io.config import carry_config
from .io.ranges import close_files, open_ranges
from .io.remote import is_remote
from .io.resolve import read_source
from .io.retry import retries_here

if TYPE_CHECKING:
    from .aio import AsyncLoaderIterator
    from .report import Report
    from .torch_glue import LoaderDataset

class DataLoader:
    """Iterates a bound pipeline, epoch after epoch. Made by `run`; a context manager.

    One iteration at a time. Leaving the `with` block, `close()`, garbage collection, Ctrl-C and an exception in the
    training loop all stop the workers and free their memory.
    """

    def __init__(
        self,
        plan: Plan,
        options: RunOptions,
        *,
        executor: Callable[[Program], Executor],
        wrap: Callable[[FinishedBatch], Any],
        emit_empty: bool,
        failures: FailureHandling,
        pins: bool = False,
        max_bytes: int | None = None,
        cache: Any = None,
    ) -> None:
        self._options = options
        self._make_executor = executor
        self._wrap = wrap
        self._emit_empty = emit_empty
        self._pinned = pins
        self._failures = failures
        self._logical = plan
        self._optimised: Rewritten | None = None
        self._program: Program | None = None
        self._stats = RunStats()
        self._experience = Experience()
        self._ledger = Ledger(max_bytes)
        self._read, self._open_ranges = (f if cache is None else ThroughCache(f, cache) for f in (read_source, open_ranges))
        self._position = Position()
        self._loaded = False
        self._hook: Callable[[dict[str, int]], Any] | None = None
        self._resources = _Resources(failures)
        self._finalizer = weakref.finalize(self, self._resources.close)
        failures.open()  # a file that cannot be written is told before anything runs

    # ---------------------------------------------------------------- iterating

    def __iter__(self) -> LoaderIterator:
        """Begin an epoch.

        Raises:
            RuntimeError: the loader is closed, or an iteration is under way.
            ValueError: the plan cannot run: unset parameters, ops that do not fit together.
        """
        self._check_open()
        running = self._resources.graph
        if running is not None and running.alive and self._resources.iterating() and not self._all_delivered():
            raise RuntimeError("this loader is being iterated already; finish or drop that iterator first")
        self._position = self._standing()
        self._resources.stop_graph()
        program, plan = self._compiled()
        if self._resources.executor is None:
            self._resources.executor = self._make_executor(program)
            self._stats.workers = self._resources.executor.workers
        if not self._loaded:  # a pass that was given up starts again
            self._position = Position(self._position.epoch)
        graph = Graph(
            plan,
            program,
            self._resources.executor,
            self._options,
            epoch=self._position.epoch,
            stats=self._stats,
            wrap=self._wrap,
            experience=self._experience,
            resume=self._position.resume(),
            ledger=self._ledger,
            fetching=Fetching(is_remote, self._read, self._resources.requests, retries_here),
        )
        self._resources.graph = graph
        iterator = LoaderIterator(self, graph)
        self._resources.iterator = weakref.ref(iterator)
        return iterator

    def aiter(self) -> AsyncLoaderIterator:
        """An epoch for asyncio: `async with loader.aiter() as batches: async for batch in batches: ...`.

        Waiting for a batch never blocks the event loop. Cancelling the task or leaving the block stops the pass.
        """
        from .aio import AsyncLoaderIterator

        return AsyncLoaderIterator(self)

    def as_iterable_dataset(self) -> LoaderDataset:
        """The batches as a `torch.utils.data.IterableDataset`, for code that wants a `torch.utils.data.DataLoader`:
        `DataLoader(loader.as_iterable_dataset(), batch_size=None)`. It passes the state through.

        Raises:
            ModuleNotFoundError: torch is not installed.
        """
        from .torch_glue import LoaderDataset

        return LoaderDataset(self)

    def _compiled(self) -> tuple[Program, Plan]:
        if self._optimised is None:
            self._optimised = optimize(self._logical)
        if self._program is None:
            slots = next(n for n in walk(self._optimised.plan) if isinstance(n, Slots))
            chains = tuple(compile_chain(c) for c in slots.chains)
            self._program = Program(chains, self._read, process_setups(), self._open_ranges, (carry_config,))
        return self._program, self._optimised.plan

    def __len__(self) -> int:
        """Number of batches of an epoch.

        Raises:
            TypeError: the length is not known before iterating.
        """
        shape = next(n for n in walk(self._logical) if isinstance(n, Shape))
        records = record_count(self._logical)
        if self._options.agreement is not None:
            records = None  # the other ranks' records count too
        if records is None or not isinstance(shape, (BatchNode, Collate)):
            raise TypeError("the length of this loader is not known before it is iterated")
        if isinstance(shape, Collate):
            return records
        return steps_of(records, shape.size, shape.drop_last, self._options.share)

    # ---------------------------------------------------------------- checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Where the loader stands, as a small JSON value: what was delivered, in this and all other ranks, and what the
        plan is. Take it between any two batches; batches that were prefetched and not delivered do not count.

        It holds no number of ranks: see `load_state_dict`. `samples_consumed` counts the records of the epoch behind
        which the next batch begins, over all ranks, failed ones included.
        """
        self._check_open()
        state = make_state(self._standing(), self._identity, self._options.seed)
        state["failures"] = self._failures.budget.state()
        return state

    def load_state_dict(self, state: Mapping[str, Any], *, align: str = "error") -> None:
        """Continue where `state` was taken: the next iteration delivers what follows, nothing twice and nothing lost.

        The state's seed and epoch replace the loader's. The number of ranks and the batch size may differ from those of
        the run that made the state if the global batch (batch size times ranks) is the same; the number of ranks alone
        may differ where the state stands at the end of a global batch of this loader.

        Args:
            align: "down" goes back to the end of the last whole global batch, and so repeats records, where the state
                stands inside one; "error" refuses.

        Raises:
            RuntimeError: the loader is closed or being iterated.
            ValueError: a state of another version or pipeline, or one that stands inside a global batch; it says what
                differs.
        """
        self._check_open()
        running = self._resources.graph
        if running is not None and running.alive and self._resources.iterating() and not self._all_delivered():
            raise RuntimeError("load_state_dict needs an idle loader: finish or drop the running iterator first")
        self._position, seed = read_state(state, self._identity, align=align)
        if "failures" in state:
            self._failures.budget.restore(state["failures"])
        self._options = replace(self._options, seed=seed)
        self._loaded = True
        self._resources.stop_graph()

    @cached_property
    def _identity(self) -> PlanIdentity:
        return PlanIdentity(self._logical, self._options.share)

    def _all_delivered(self) -> bool:
        """Whether the position is behind the last batch of its epoch, as far as the length is known. Who counts batches
        (Lightning does) never asks for the end."""
        try:
            return self._position.batches > 0 and 0 < len(self) <= self._position.batches  # a query counts its rows for it
        except TypeError:
            return False

    def _standing(self) -> Position:
        """The position; behind the last batch of an epoch it is the beginning of the next."""
        return Position(self._position.epoch + 1) if self._all_delivered() else self._position

    # ---------------------------------------------------------------- looking

    def explain(self) -> str:
        """The plan as written, the rules that fired, the plan as it runs."""
        self._compiled()
        assert self._optimised is not None
        return explain(self._logical, self._optimised)

    def stats(self) -> dict[str, Any]:
        """Counters since the loader was made: samples, bytes, time and count per op and stage, stalls, queue depths.

        `process` has what is shared by the process: its buffers, pinned ones, and `dataio.op_stats()`. All times are in
        nanoseconds.
        """
        self._check_open()
        executor = self._resources.executor
        buffers = executor.buffers.stats() if executor is not None else {}
        return {
            **self._stats.as_dict(),
            **self._policy(),
            "queue_depths": self._depths(),
            "buffers": buffers,
            "memory": self._ledger.stats(),
            "executor": executor.describe() if executor is not None else {},
            "bottleneck": self.report().bottleneck,
            "process": {"host_pool": buffers, "pinned_pool": {}, "op_stats": op_stats()},
        }

    def diagnostics(self) -> dict[str, Any]:
        """What is in flight, what each stage took, and the bounds that hold. Times are in nanoseconds.

        `inflight` counts records that are being worked on, `inflight_records` and `inflight_batches` all that the consumer
        has not taken; each with the most there was at a time.
        """
        self._check_open()
        stats, graph, options = self._stats, self._resources.graph, self._options
        shape = next(n for n in walk(self._logical) if isinstance(n, Shape))
        size = shape.size if isinstance(shape, BatchNode) else None
        return {
            "samples_submitted": stats.submitted,
            "samples_completed": stats.completed,
            "samples_failed": stats.failed,
            "inflight": stats.inflight,
            "inflight_max": stats.inflight_max,
            "inflight_batches": graph.batches_in_flight if graph is not None else 0,
            "inflight_batches_max": stats.inflight_batches_max,
            "inflight_records": stats.inflight_records,
            "inflight_records_max": stats.inflight_records_max,
            **self._policy(),
            "queue_depths": self._depths(),
            "stages": stats.stages(),
            "stream_config": {
                "prefetch_records": None if size is None else size * shape.prefetch,
                "prefetch_batches": shape.prefetch,
                "order": options.order,
                "cpu_workers_effective": stats.workers,
                "io_workers_shared": self._resources.requests.most,
                "batch_credit_limit": shape.prefetch,
                "record_credit_limit": options.concurrency,
            },
        }

    def _policy(self) -> dict[str, Any]:
        least = self._options.min_survivors
        return {
            "failure_policy": "strict" if least is None else "min_survivors",
            "min_survivors": least,
            "pinned": self._pinned,
            "retain_samples": False,  # what a record was made from is let go once it is in its batch
        }

    def _depths(self) -> dict[str, dict[str, int]]:
        graph, stats = self._resources.graph, self._stats
        ahead = graph.batches_in_flight if graph is not None else 0
        boxes = graph.depths() if graph is not None and not graph.stopped() else stats.depths
        return {
            "source_batches": {"current": ahead, "max": stats.inflight_batches_max},
            **{name: {"current": now, "max": high} for name, (now, high) in boxes.items()},
        }

    def report(self) -> Report:
        """Which stage the others wait for, each stage's busy and blocked share, what would be gained, and the one setting
        to change. Print it, or read its fields.
        """
        from .report import Setup, make_report

        executor = self._resources.executor
        workers = executor.describe() if executor is not None else {}
        plan = self._logical if self._optimised is None else self._optimised.plan
        return make_report(self._stats, Setup(plan, self._options, workers.get("kind"), workers.get("gil_share"), self._resources.requests.most))

    def trace(self, path: str | os.PathLike[str], *, events: int = 100_000) -> Recorder:
        """Record from now on what source, workers, batch ops and training loop do, for ui.perfetto.dev.

        The file (Chrome trace events, JSON) is written when a pass ends, however it ends (of very short passes not after
        each), and when the loader is closed. It holds the last `events` events. Recording ends with `close()` of what is
        returned, which is a context manager.

        Raises:
            OSError: the file cannot be written.
            ValueError: `events` is less than 1.
        """
        self._check_open()
        recorder = Recorder(path, self._stats, events)
        if self._stats.trace is not None:
            self._stats.trace.close()
        self._stats.trace = self._resources.recorder = recorder
        return recorder

    def progress(self, **options: Any) -> Iterator[Any]:
        """Iterate with a tqdm bar: records, rate, the share of time spent waiting for batches, failed records.

        `options` go to `tqdm.auto.tqdm`, which picks the form for terminal or notebook.
        """
        from .progress import progress

        return progress(self, *self._records_of_pass(), options)

    def _records_of_pass(self) -> tuple[int | None, int]:
        """Records of a pass over this rank's share, None when that is not known, and of one batch, then 0."""
        shape = next(n for n in walk(self._logical) if isinstance(n, Shape))
        if not isinstance(shape, BatchNode) or (records := record_count(self._logical)) is None:
            return None, 0
        share, whole = self._options.share, len(self) * shape.size
        if share.steps in ("pad", "drop"):
            return whole, shape.size
        return min(len(range(records)[share.part]), whole), shape.size

    def set_metrics_hook(self, hook: Callable[[dict[str, int]], Any] | None) -> None:
        """Call `hook({"batch_id", "n_samples", "n_errors"})` on the consumer's thread after each delivered batch."""
        if hook is not None and not callable(hook):
            raise TypeError(f"a metrics hook must be callable, got {hook!r}")
        self._hook = hook

    # ---------------------------------------------------------------- ending

    def __enter__(self) -> DataLoader:
        self._check_open()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the workers and free their memory; idempotent. Delivered batches stay valid."""
        self._finalizer()

    def _check_open(self) -> None:
        self._resources.check_process()
        if self._resources.closed:
            raise ClosedError("DataLoader is closed")


class _Resources:
    """What a loader must give back; held apart from it so that garbage collection can."""

    def __init__(self, failures: FailureHandling) -> None:
        self.failures = failures
        self.graph: Graph | None = None
        self.executor: Executor | None = None
        self.requests = RequestThreads()
        self.recorder: Recorder | None = None
        self.iterator: weakref.ref[LoaderIterator] | None = None
        self.closed = False
        self._lock = threading.RLock()
        self._process = os.getpid()

    def iterating(self) -> bool:
        iterator = self.iterator() if self.iterator is not None else None
        return iterator is not None and not iterator.exhausted

    def stop_graph(self, deadline: float | None = None) -> None:
        if self.iterator is not None and (iterator := self.iterator()) is not None:
            iterator.exhausted = True  # what it finds then is not the end of an epoch
        with self._lock:
            graph, self.graph = self.graph, None
        if graph is not None:
            graph.close(deadline)

    def check_process(self) -> None:
        """Raise in a process forked from the one that made the loader: its threads and workers are there, not here."""
        if os.getpid() != self._process:
            raise ForkedError(
                "this loader was made by the process that this one was forked from, and its workers are there; "
                "make a loader in this process: pipeline.bind(records).run(...)"
            )

    def close(self) -> None:
        if os.getpid() != self._process:
            return
        with self._lock:
            if self.closed:
                return
            self.closed = True
        deadline = time.monotonic() + drain_timeout()
        self.stop_graph(deadline)
        if self.executor is not None:
            self.executor.close(deadline)
        self.requests.close(deadline)
        if self.recorder is not None:
            self.recorder.close()
        self.failures.close()
        close_files()


class LoaderIterator:
    """One pass over the data. Dropping it stops the pass."""

    def __init__(self, loader: DataLoader, graph: Graph) -> None:
        self._loader = loader
        self._graph = graph
        self.exhausted = False
        self._busy_since = 0
        self._finalizer = weakref.finalize(self, graph.close)
        self._finalizer.atexit = False

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        while (message := self.take()) is not None:
            try:
                wanted = self.deliver(message[0])
            except BaseException:
                self.close()
                raise
            if wanted:
                return message[1]
        raise StopIteration

    @property
    def resumed(self) -> int:
        """Batches of the epoch that were delivered before this pass, which goes on from there."""
        return self._graph.resume.batches

    def take(self) -> tuple[FinishedBatch, Any] | None:
        """Wait for the next batch; None at the end, or once `interrupt` was called. May run on a thread of its own."""
        self._loader._resources.check_process()
        if self._busy_since:
            self._graph.stats.consumer_busy_ns += time.perf_counter_ns() - self._busy_since
            self._busy_since = 0
        if self.exhausted or self._loader._resources.closed:
            return None
        try:
            message = self._graph.next()
        except BaseException:
            self.exhausted = True
            self._finalizer()
            raise
        if self.exhausted:  # interrupted while this thread waited
            self._finalizer()
            return None
        if message is None:
            self.exhausted = True
            self._finalizer.detach()
            if not self._loader._resources.closed:  # by another thread, while this one waited
                self._loader._position = Position(self._loader._position.epoch + 1)
                self._loader._failures.budget.end_of_pass()
        return message

    def deliver(self, finished: FinishedBatch) -> bool:
        """Note, on the consumer's thread, that it gets this batch; False for one that is to be left out.

        Raises:
            FailureBudgetError, or whatever a hook raises: the pass is over, and this batch is not delivered.
        """
        try:
            self._report(finished)
        except BaseException as error:
            self.interrupt()
            if isinstance(error, (StopIteration, StopAsyncIteration)):  # would look like the end of the data
                raise RuntimeError(f"a hook raised {type(error).__name__}") from error
            raise
        self._loader._loaded = False
        self._loader._position.delivered(finished)
        if not finished.length and not self._loader._emit_empty:
            return False
        self._busy_since = time.perf_counter_ns()
        return True

    def interrupt(self) -> None:
        """End the pass from another thread, without waiting: whoever waits in `take` gets None; `close` is still due."""
        self.exhausted = True
        self._graph.delivery.put(Mark.END)

    def close(self) -> None:
        """Stop the pass before its end; idempotent."""
        self.exhausted = True
        self._finalizer()

    def _report(self, finished: FinishedBatch) -> None:
        self._loader._failures.deliver(finished, self._graph.epoch)
        hook = self._loader._hook
        if hook is not None and (finished.length or self._loader._emit_empty):
            hook({"batch_id": finished.number, "n_samples": finished.length, "n_errors": finished.failed})
