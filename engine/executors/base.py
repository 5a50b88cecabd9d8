"""The one contract of worker pools."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from ..batch import Job
from ..buffers import Block, BufferPool
from ..morsel import Morsel
from ..physical import Program
from ..work import MorselResult


@dataclass(slots=True)
class Task:
    """One morsel to work on.

    A task may be cut into its records: `part_done` takes the results of all but the last of them.

    `done` is called exactly once, from some thread of the pool, with the result or with the exception that a bug
    raised; it must not block. A task whose `stopped()` is true may be dropped without a call.
    """

    program: Program
    job: Job
    morsel: Morsel
    seed: int
    epoch: int
    done: Callable[[Job, MorselResult | BaseException], None]
    part_done: Callable[[Job, MorselResult | BaseException], None]
    stopped: Callable[[], bool]

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


class Executor(Protocol):
    """A pool of identical workers."""

    workers: int
    buffers: BufferPool
    splits: int
    """Morsels per worker that the work is cut into: more keep the workers even, fewer cost less per record."""
    pools_batches: bool
    """Whether the work that is cut is all batches in flight, rather than each batch by itself."""
    morsel_rows: int
    """Records of the largest morsel."""

    def submit(self, task: Task) -> None:
        """Queue a task; never blocks."""

    def close(self) -> None:
        """Give the workers back; idempotent. Tasks in flight end or are dropped."""
