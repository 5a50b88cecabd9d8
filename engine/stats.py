"""Counters of one loader, and of the ops of the whole process.

They are added to once per morsel or batch, never per record, and always kept: reports, traces, the progress bar and exports
read the same numbers.
"""

from __future__ import annotations

import sys
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .forks import new_lock_in_child
from .settings import detailed_stats
from .work import MorselResult, Spent, add_spent

if TYPE_CHECKING:
    from .trace import Recorder

Ops = dict[tuple[str, str], Spent]
"""What each op took, by `(stage, op)`."""

STAGES = ("read", "decode", "transform", "collate")
_COLLATE = ("collate", "collate")


class FetchStats:
    """What was fetched from remote stores; any thread adds to it.

    Attributes:
        failed, retries: values that could not be fetched, and requests that had to be tried again.
        nbytes: that came.
        spent: time of all requests together, their number, the slowest and the fastest.
    """

    def __init__(self) -> None:
        self.failed = self.retries = self.nbytes = 0
        self.spent: Spent = [0, 0, 0, 0]
        self._waiting = Gauge()
        self._in_flight = Gauge()
        self._ahead = Gauge()
        self._lock = threading.Lock()
        new_lock_in_child(self, "_lock", threading.Lock)

    def queued(self, values: int) -> None:
        """Values are to be fetched."""
        with self._lock:
            self._waiting.add(values)

    def begins(self) -> None:
        """A request begins."""
        with self._lock:
            self._waiting.add(-1 if self._waiting.now else 0)
            self._in_flight.add(1)

    def ends(self, nanoseconds: int, nbytes: int, *, failed: bool, retries: int) -> None:
        """It ended."""
        with self._lock:
            self._in_flight.add(-1)
            self.failed += failed
            self.retries += retries
            self.nbytes += nbytes
            total, count, worst, least = self.spent
            self.spent = [total + nanoseconds, count + 1, max(worst, nanoseconds), min(least, nanoseconds) if count else nanoseconds]

    def ahead(self, nbytes: int) -> None:
        """Bytes that are fetched, or on their way, and not worked off."""
        with self._lock:
            self._ahead.add(nbytes - self._ahead.now)

    def left(self) -> None:
        """The pass is over: nothing waits any more, and what still comes is dropped."""
        with self._lock:
            self._waiting.now = self._ahead.now = 0

    @property
    def in_flight(self) -> int:
        """Requests under way."""
        return self._in_flight.now

    def depths(self) -> dict[str, int]:
        """Values waiting for a thread, and requests under way."""
        return {"waiting": self._waiting.now, "in_flight": self._in_flight.now}

    def as_dict(self) -> dict[str, Any]:
        """The counters as plain values."""
        with self._lock:
            return {
                "values": self.spent[1],
                "failed": self.failed,
                "retries": self.retries,
                "bytes": self.nbytes,
                "busy_ns": self.spent[0],
                "waiting": self._waiting.as_dict(),
                "in_flight": self._in_flight.as_dict(),
                "ahead_bytes": self._ahead.as_dict(),
            }


class Gauge:
    """A number now, and the most that it was."""

    __slots__ = ("most", "now")

    def __init__(self) -> None:
        self.now = self.most = 0

    def add(self, change: int) -> None:
        self.now += change
        if self.now > self.most:
            self.most = self.now

    def as_dict(self) -> dict[str, int]:
        return {"current": self.now, "max": self.most}


@dataclass(slots=True)
class RunStats:
    """What happened since the loader was made.

    Each field has one writer: the Source actor (`source_*`, `submitted`), the Shape actor (`ops`, `worker_*`, `collate`,
    `bytes_read`, `completed`, `failed`, `inflight_max`), the BatchOps actor (`batch_ops`), the consumer's thread
    (`delivered`, `taken`, `batches`, `dropped`, `given_up`, `consumer_*`, `inflight_*_max`).

    Attributes:
        submitted, completed, failed: records handed to the workers, finished, and failed.
        delivered, taken, batches: survivors and all records of the batches that the consumer took; their number.
        dropped, given_up: records not finished, and not taken by the consumer, when the passes so far were left.
        source_busy_ns, source_cut_ns: time of the Source actor's thread at work, and that part of it in which it got records
            and cut batches; the rest is handing them to the workers, waits for record credits (`concurrency_wait_ns`) and
            for memory (`memory_wait_ns`) included.
        inline: whether the Source actor's thread does the workers' work, since there is next to none.
        worker_busy_ns, worker_cpu_ns: time of all workers over morsels, and how much of it they were on a core.
        ops, batch_ops, collate: what each op, batch transform or map, and putting a batch together took.
        depths: messages in each mailbox once a pass has ended (none), and at most while it ran.
        trace: where spans go while somebody records them.
        fetch: what was fetched from remote stores ahead of the workers.
    """

    workers: int = 1
    started: float = field(default_factory=time.perf_counter)
    submitted: int = 0
    completed: int = 0
    failed: int = 0
    delivered: int = 0
    taken: int = 0
    batches: int = 0
    dropped: int = 0
    given_up: int = 0
    inline: bool = False
    inflight_max: int = 0
    inflight_records_max: int = 0
    inflight_batches_max: int = 0
    bytes_read: int = 0
    source_busy_ns: int = 0
    source_cut_ns: int = 0
    source_wait_ns: int = 0
    concurrency_wait_ns: int = 0
    memory_wait_ns: int = 0
    worker_busy_ns: int = 0
    worker_cpu_ns: int = 0
    consumer_wait_ns: int = 0
    consumer_busy_ns: int = 0
    ops: Ops = field(default_factory=dict)
    batch_ops: Ops = field(default_factory=dict)
    collate: Ops = field(default_factory=dict)
    depths: dict[str, tuple[int, int]] = field(default_factory=dict)
    trace: Recorder | None = None
    detailed: bool = field(default_factory=detailed_stats)
    fetch: FetchStats = field(default_factory=FetchStats)

    # ---------------------------------------------------------------- written by the actors

    def add(self, result: MorselResult) -> None:
        """One morsel is back."""
        self.bytes_read += result.bytes_read
        self.worker_busy_ns += result.took
        self.worker_cpu_ns += result.cpu
        for key, spent in result.counters.items():
            add_spent(self.ops, key, spent)
        if self.detailed:
            _add_process_ops(result.counters)

    def add_collate(self, nanoseconds: int) -> None:
        """One batch was put together."""
        self._add_here(self.collate, _COLLATE, [nanoseconds, 1, nanoseconds, nanoseconds])

    def add_batch_op(self, op: str, nanoseconds: int, records: int) -> None:
        """One batch transform or Python batch map on one batch."""
        each = nanoseconds // max(records, 1)
        self._add_here(self.batch_ops, ("batch", op), [nanoseconds, records, each, each])

    def _add_here(self, ops: Ops, key: tuple[str, str], spent: Spent) -> None:
        add_spent(ops, key, spent)
        if self.detailed:
            _add_process_ops({key: spent})

    def finished(self, records: int, failed: int) -> None:
        """A batch is whole. Records in flight only fall here, so that their maximum is what was there just before."""
        if (inflight := self.inflight) > self.inflight_max:
            self.inflight_max = inflight
        self.completed += records
        self.failed += failed

    def took(self, survivors: int, records: int) -> None:
        """The consumer took a batch."""
        if (inflight := self.inflight_records) > self.inflight_records_max:
            self.inflight_records_max = inflight
        self.delivered += survivors
        self.taken += records
        self.batches += 1

    def ended(self, depths: dict[str, tuple[int, int]]) -> None:
        """A pass ended or was left; what it had in flight is gone."""
        self.depths = {name: (0, high) for name, (_, high) in depths.items()}
        self.dropped = self.submitted - self.completed
        self.given_up = self.submitted - self.taken

    # ---------------------------------------------------------------- read by people

    @property
    def inflight(self) -> int:
        """Records submitted and not yet finished."""
        return max(0, self.submitted - self.completed - self.dropped)

    @property
    def inflight_records(self) -> int:
        """Records submitted and not yet taken by the consumer."""
        return max(0, self.submitted - self.taken - self.given_up)

    def stages(self) -> dict[str, dict[str, int]]:
        """Per stage: calls, and nanoseconds in all, on average, at least and at most. What is fetched is read.

        A call is one value of one slot, for `transform` one op on it, for `collate` one batch. Values that are read, or
        decoded, many at a time count with their share of the call.
        """
        sums: Ops = {}
        for (stage, _), spent in {**self.ops, **self.collate}.items():
            add_spent(sums, (stage, ""), spent)
        if self.fetch.spent[1]:
            add_spent(sums, ("read", ""), self.fetch.spent)
        out = {}
        for stage in STAGES:
            total, count, worst, least = sums.get((stage, ""), (0, 0, 0, 0))
            out[stage] = {
                "count": count,
                "total_ns": total,
                "avg_ns": total // max(count, 1),
                "min_ns": least,
                "max_ns": worst,
            }
        return out

    def as_dict(self) -> dict[str, Any]:
        """The counters as plain values."""
        return {
            "samples_submitted": self.submitted,
            "samples_completed": self.completed,
            "samples_failed": self.failed,
            "samples_delivered": self.delivered,
            "batches_delivered": self.batches,
            "bytes_read": self.bytes_read,
            "inflight": self.inflight,
            "ops": {
                op: {"stage": stage, "count": n, "total_ns": total, "avg_ns": total // max(n, 1), "min_ns": least, "max_ns": worst}
                for (stage, op), (total, n, worst, least) in {**self.ops, **self.batch_ops}.items()
            },
            "stages": {name: {**stage, "mean_ns": stage["avg_ns"]} for name, stage in self.stages().items()},
            "stalls_ns": {
                "source_busy": self.source_busy_ns,
                "source_waits_for_batch_credit": self.source_wait_ns,
                "source_waits_for_record_credit": self.concurrency_wait_ns,
                "source_waits_for_memory": self.memory_wait_ns,
                "workers_busy": self.worker_busy_ns,
                "consumer_waits_for_batch": self.consumer_wait_ns,
                "consumer_busy": self.consumer_busy_ns,
            },
            "workers": self.workers,
            "fetch": self.fetch.as_dict(),
        }


_process_ops: Ops = {}
_process_lock = threading.Lock()
new_lock_in_child(sys.modules[__name__], "_process_lock", threading.Lock)


def _add_process_ops(ops: Ops) -> None:
    with _process_lock:
        for key, spent in ops.items():
            add_spent(_process_ops, key, spent)


def op_stats() -> dict[str, dict[str, float]]:
    """What each op took in this process and its workers, over all loaders made while DATAIO_DETAILED_STATS was 1.

    Returns:
        `{op: {"count", "total_ms", "avg_ms", "max_ms"}}`; empty when the variable was not set. Reading is the op `read`,
        putting batches together `collate.batch`.
    """
    sums: Ops = {}
    with _process_lock:
        for (stage, op), spent in _process_ops.items():
            add_spent(sums, ("", "collate.batch" if stage == "collate" else op), spent)
    return {
        op: {"count": count, "total_ms": total / 1e6, "avg_ms": total / 1e6 / max(count, 1), "max_ms": worst / 1e6}
        for (_, op), (total, count, worst, _) in sums.items()
    }


def reset_op_stats() -> None:
    """Forget what `op_stats` counted."""
    with _process_lock:
        _process_ops.clear()
