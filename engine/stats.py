"""Counters of one loader: per op time and count, bytes, queue depths, stalls; and the report made of them."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from .work import MorselResult


@dataclass(slots=True)
class RunStats:
    """What happened since the loader was made.

    Each field has one writer: the Source actor (`source_*`, `submitted`), the Shape actor (ops, `bytes_read`,
    `completed`, `failed`), the BatchOps actor (`batch_ops`), the consumer's thread (`delivered`, `consumer_*`).
    """

    workers: int = 1
    started: float = field(default_factory=time.perf_counter)
    submitted: int = 0
    completed: int = 0
    failed: int = 0
    delivered: int = 0
    batches: int = 0
    bytes_read: int = 0
    source_busy_ns: int = 0
    source_wait_ns: int = 0
    consumer_wait_ns: int = 0
    consumer_busy_ns: int = 0
    ops: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    batch_ops: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    depths: dict[str, tuple[int, int]] = field(default_factory=dict)

    def add(self, result: MorselResult) -> None:
        self.bytes_read += result.bytes_read
        for key, counted in result.counters.items():
            _count(self.ops, key, *counted)

    def add_batch_op(self, op: str, nanoseconds: int, records: int) -> None:
        """One batch transform on one batch."""
        _count(self.batch_ops, ("batch", op), nanoseconds, records, nanoseconds // max(records, 1))

    @property
    def worker_busy_ns(self) -> int:
        return sum(total for total, _, _ in self.ops.values())

    def bottleneck(self) -> str:
        """"source", "workers" or "consumer": whoever the others waited for."""
        waiting = self.consumer_wait_ns
        if waiting < self.consumer_busy_ns:
            return "consumer"
        return "source" if self.source_wait_ns < self.source_busy_ns else "workers"

    def as_dict(self) -> dict[str, Any]:
        return {
            "samples_submitted": self.submitted,
            "samples_completed": self.completed,
            "samples_failed": self.failed,
            "samples_delivered": self.delivered,
            "batches_delivered": self.batches,
            "bytes_read": self.bytes_read,
            "ops": {
                op: {"stage": stage, "count": n, "total_ns": total, "avg_ns": total // max(n, 1), "max_ns": worst}
                for (stage, op), (total, n, worst) in (self.ops | self.batch_ops).items()
            },
            "stalls_ns": {
                "source_busy": self.source_busy_ns,
                "source_waits_for_credit": self.source_wait_ns,
                "workers_busy": self.worker_busy_ns,
                "consumer_waits_for_batch": self.consumer_wait_ns,
                "consumer_busy": self.consumer_busy_ns,
            },
            "queue_depths": {name: {"current": now, "max": high} for name, (now, high) in self.depths.items()},
            "workers": self.workers,
            "bottleneck": self.bottleneck(),
        }

    def report(self) -> str:
        """A few lines for people: the rate, who is slow, and where the workers' time went."""
        elapsed = max(time.perf_counter() - self.started, 1e-9)
        busy = max(self.worker_busy_ns, 1)
        advice = {
            "consumer": "the loop that takes the batches: the loader keeps up with it",
            "workers": f"the {self.workers} workers: more of them (DATAIO_CPU_WORKERS) or cheaper ops would help",
            "source": "the record source or a record map: records come slower than they are worked on",
        }[self.bottleneck()]
        lines = [
            f"{self.delivered:,} records in {elapsed:.2f} s ({self.delivered / elapsed:,.0f}/s), "
            f"{self.failed} failed, {self.bytes_read / 1e6:,.1f} MB read",
            f"bottleneck: {self.bottleneck()} ({advice})",
        ]
        for (stage, op), (total, count, _) in sorted((self.ops | self.batch_ops).items(), key=lambda e: -e[1][0]):
            lines.append(f"  {stage:<10} {op:<28} {100 * total / busy:5.1f} %  {total / max(count, 1) / 1e3:10,.1f} us x {count:,}")
        return "\n".join(lines)


def _count(ops: dict[tuple[str, str], list[int]], key: tuple[str, str], total: int, count: int, worst: int) -> None:
    entry = ops.setdefault(key, [0, 0, 0])
    entry[0] += total
    entry[1] += count
    entry[2] = max(entry[2], worst)
