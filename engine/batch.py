"""A batch on its way: `Job` while the workers fill it, `FinishedBatch` once it is whole."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import PurePath
from typing import Any, TypeAlias

import numpy as np

from .buffers import Block
from .failure import Failure
from .ledger import BatchMemory
from .physical import Program
from .units import Unit


class Keys:
    """The records' keys, made when asked for: known strings, else stems of paths, else positions in the epoch."""

    __slots__ = ("_indices", "_known", "_paths")

    def __init__(
        self,
        indices: Sequence[int],
        known: Sequence[str | None] | None = None,
        paths: tuple[Sequence[Any], ...] = (),
    ) -> None:
        self._indices = indices
        self._known = known
        self._paths = paths

    def __getitem__(self, row: int) -> str:
        if self._known is not None and (known := self._known[row]) is not None:
            return known
        for column in self._paths:
            if isinstance(column[row], (str, os.PathLike)):
                return stem(column[row])
        return str(self._indices[row])


def stem(path: Any) -> str:
    """`/a/b.tar.gz` gives `b.tar`, `http://h/ok` gives `ok`."""
    return PurePath(str(path)).stem


@dataclass(slots=True)
class Job:
    """One batch being worked on.

    Attributes:
        number: within the epoch, on this rank.
        unit: the records as they were cut; `unit.indices` are their positions in the epoch.
        blocks: preallocated rows, for slots whose row type is known, or `guessed` to be that of the batch before.
        memory: where its bytes are counted.
        failures: first failure of each failed row.
        waiting: rows whose morsel has not come back.
        originals: whether the finished batch is to hold the records that failed.
    """

    number: int
    unit: Unit
    length: int
    keys: Keys
    program: Program
    memory: BatchMemory
    blocks: dict[str, Block] = field(default_factory=dict)
    guessed: frozenset[str] = frozenset()
    inactive: frozenset[str] = frozenset()
    failures: dict[int, Failure] = field(default_factory=dict)
    results: dict[str, list[tuple[int, int, Any]]] = field(default_factory=dict)
    sizes: dict[str, list[tuple[int, int] | None]] = field(default_factory=dict)
    context: list[Any] | None = None
    waiting: int = 0
    originals: bool = False


@dataclass(slots=True)
class SlotColumn:
    """One slot of a finished batch: `dense` [B, ...], or one value per row (`rows`); `objects` for Python values."""

    dense: np.ndarray | None = None
    rows: list[Any] | None = None
    objects: bool = False
    sizes: list[tuple[int, int] | None] | None = None

    @property
    def ragged(self) -> bool:
        return self.dense is None and not self.objects

    def permuted(self, order: Sequence[int], allocate: Allocate) -> SlotColumn:
        """The rows in this order; a dense column moves into newly allocated memory."""
        dense = self.dense
        if dense is not None:
            dense = np.take(dense, order, axis=0, out=allocate(dense.shape, dense.dtype), mode="clip")
        rows = None if self.rows is None else [self.rows[i] for i in order]
        sizes = None if self.sizes is None else [self.sizes[i] for i in order]
        return replace(self, dense=dense, rows=rows, sizes=sizes)


Allocate: TypeAlias = Callable[[tuple[int, ...], Any], np.ndarray]
"""`allocate(shape, dtype)`: uninitialised memory for a result, from the pool of batch buffers."""


class FinishedBatch:
    """The survivors of one batch, slot by slot, and what became of the others.

    `positions` are those of all its records in the epoch, `after` the state of the source behind them, `consumed` the
    records of the epoch up to there, on all ranks.

    `originals` are, where the run keeps them, the records of the rows that failed, as the source gave them.

    Batches are values: a batch transform makes a new one by `with_slots` or `permuted`, in memory from `allocate`.
    """

    def __init__(
        self,
        job: Job,
        slots: dict[str, SlotColumn],
        indices: Sequence[int],
        allocate: Allocate = np.empty,
        memory: BatchMemory | None = None,
    ) -> None:
        self.number = job.number
        self.length = len(indices)
        self.submitted = job.length
        self.slots = slots
        self.indices = indices
        self.positions = job.unit.indices
        self.after = job.unit.after
        self.consumed = job.unit.consumed
        self._keys = job.keys
        self._failures = job.failures
        self._context = job.context
        self.originals = {row: job.unit.original(row) for row in job.failures} if job.originals else {}
        self.allocate = allocate
        self.memory = memory

    def with_slots(self, slots: dict[str, SlotColumn]) -> FinishedBatch:
        """The same records with these slots replaced."""
        changed = copy.copy(self)
        changed.slots = {**self.slots, **slots}
        return changed

    def permuted(self, order: Sequence[int]) -> FinishedBatch:
        """The survivors in another order: every slot, their keys, indices and context; errors stay as they are."""
        changed = copy.copy(self)
        for lazy in ("keys", "context"):  # they follow the indices
            changed.__dict__.pop(lazy, None)
        rows = [int(i) for i in order]
        changed.indices = [self.indices[i] for i in rows]
        changed.slots = {name: column.permuted(rows, self.allocate) for name, column in self.slots.items()}
        return changed

    @cached_property
    def keys(self) -> list[str]:
        return [self._keys[i] for i in self.indices]

    @cached_property
    def context(self) -> list[Any] | None:
        return None if self._context is None else [self._context[i] for i in self.indices]

    @property
    def failed(self) -> int:
        """Rows that failed."""
        return len(self._failures)

    @cached_property
    def errors(self) -> list[dict[str, Any]]:
        """One dict per failed row, in row order."""
        return [
            {
                "index": row,
                "key": self._keys[row],
                "stage": f.stage,
                "op": f.op,
                "message": f.message,
                "slot": f.slot,
                "record": int(self.positions[row]),
                "uri": f.uri,
                "offset": f.offset,
                "type": f.error,
            }
            for row, f in sorted(self._failures.items())
        ]


def describe_error(error: dict[str, Any]) -> str:
    """`record 12 (key 'cat'), slot 'image', op 'image' (decode), /data/cat.jpg: OpError: truncated`."""
    parts = [f"record {error['record']} (key {error['key']!r})"]
    if error["slot"] is not None:
        parts.append(f"slot {error['slot']!r}")
    parts.append(f"op {error['op']!r} ({error['stage']})")
    if error["uri"]:
        parts.append(error["uri"])
    return f"{', '.join(parts)}: {error['type']}: {error['message']}"
