"""The one contract of worker pools."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from ..batch import Job
from ..buffers import Block, BufferPool
from ..ledger import Charge
from ..morsel import Morsel
from ..physical import Program
from ..work import MorselResult


@dataclass(slots=True)
class Task:
    """One morsel to work on.

    A task may be cut into its records: `part_done` takes the results of all but the last of them.

    `done` is called exactly once, from some thread of the pool, with the result or with the exception that a bug
    raised; it must not block. A task whose `stopped()` is true may be dropped without a call.

    `deaths` counts the workers that died while they held the task but had not begun it, so that it is tried again; `reading` stands
    for the bytes that a worker process reads for it.
    """

    program: Program
    job: Job
    morsel: Morsel
    seed: int
    epoch: int
    done: Callable[[Job, MorselResult | BaseException], None]
    part_done: Callable[[Job, MorselResult | BaseException], None]
    stopped: Callable[[], bool]
    deaths: int = 0
    reading: Charge | None = None

    def records(self) -> list[Task]:
        """The same work, one record a task."""
        last = self.morsel.length - 1
        return [
            replace(self, morsel=self.morsel.record(i), done=self.done if i == last else self.part_done)
            for i in range(self.morsel.length)
        ]

    def blocks(self) -> dict[str, Block]:
        """The batch buffers this morsel writes into, by slot."""
        return self.job.blocks


@dataclass(frozen=True, slots=True)
class Placement:
    """Where worker processes run beside the trainer.

    Attributes:
        niceness: added to the trainer's own; 0 leaves it.
        cpus: numbers of the cores they may use; empty for those of the trainer.
    """

    niceness: int = 0
    cpus: tuple[int, ...] = ()

    def apply(self) -> None:
        """Move the calling process there."""
        if self.niceness:
            os.nice(self.niceness)
        if self.cpus:
            os.sched_setaffinity(0, self.cpus)


class Executor(Protocol):
    """A pool of identical workers."""

    @property
    def workers(self) -> int:
        """How many."""

    @property
    def buffers(self) -> BufferPool:
        """Where the batches that they fill come from."""

    @property
    def splits(self) -> int:
        """Morsels per worker that the work is cut into: more keep the workers even, fewer cost less per record."""

    @property
    def pools_batches(self) -> bool:
        """Whether the work that is cut is all batches in flight, rather than each batch by itself."""

    @property
    def morsel_rows(self) -> int:
        """Records of the largest morsel."""

    def submit(self, task: Task) -> None:
        """Queue a task; never blocks."""

    def describe(self) -> dict[str, Any]:
        """For `stats()`: `kind` ("thread" or "process"), `reason`, `gil_share` (0 to 1; None when not measured)."""

    def close(self, deadline: float) -> None:
        """Give the workers back; idempotent. Tasks in flight end or are dropped.

        What still runs at `deadline` (of `time.monotonic`) is left behind where it cannot be killed: a thread in a call that
        does not return.
        """
