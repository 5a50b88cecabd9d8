"""Packed token sequences: the cutter of `pack`, and how its batches are put together.

Which sequences share a row is settled before any is decoded, from the number of tokens that each record states. What the
cutter holds back is part of the state as positions in the pass; a resumed cutter fetches those records again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from .batch import Allocate, Job, SlotColumn
from .buckets import key_function
from .errors import OpError
from .failure import failure_of
from .packing import Bin, Packer, fill, fill_segments
from .plan import Pack
from .schema import type_of
from .source import Pass
from .streams import BadRecord, Chunk, Stream
from .units import Refetch, RunCutter, Share, Unit


class Held:
    """A record that waits for its row, with its tokens as they were counted."""

    __slots__ = ("index", "original", "row", "tokens")

    def __init__(self, index: int, row: Any, original: Any) -> None:
        self.index, self.row, self.original = index, row, original
        self.tokens = 0


def _held(index: int, chunk: Chunk, row: int) -> Held:
    return Held(index, chunk.as_rows()[row], None if chunk.originals is None else chunk.originals[row])


class PackCutter(RunCutter):
    """Token sequences packed into rows of a fixed length; a batch is given when enough rows are closed."""

    def __init__(self, stream: Stream, share: Share, state: Any, node: Pack, pass_: Pass, refetch: Refetch) -> None:
        super().__init__(stream, share, state)
        self.node = node
        self._tokens = key_function(node.tokens, pass_, "pack")
        options: dict[str, Any] = {
            "strategy": node.strategy,
            "open_bins": node.open_rows,
            "overflow": node.overflow,
        }
        self._packer = Packer(node.length, **options)
        self._closed: list[Bin] = []
        self._records: dict[int, Held] = {}
        self._bad: list[Held] = []
        if state is not None and "rows" in state:
            self._packer = Packer.restore(state["rows"], node.length, **options)
            self._closed = [Bin.restore(b, node.length) for b in state["closed"]]
            self._records = {i: _held(i, chunk, 0) for i, chunk in refetch(sorted(self._waiting())).items()}
            for record in self._records.values():
                record.tokens = self._count(record)

    def held(self) -> int:
        return super().held() + len(self._records) + len(self._bad)

    def cut(self) -> Iterator[Unit]:
        whole = self.node.size * self.share.of
        while True:
            chunk = self.next_chunk()
            for row in range(self.first(), chunk.count):
                self._add(_held(self.index(row), chunk, row))
                while len(self._closed) >= whole:
                    yield self._given(whole, row + 1)
                if len(self._bad) > max(whole, self.node.open_rows, len(self._records)):
                    yield self._unit([], [], row + 1)  # most fail: say so, and hold no more of them
            if self.ended():
                self._closed += self._packer.finish()
                while len(self._closed) >= whole:
                    yield self._given(whole, chunk.count)
                yield from self._tail()
                if chunk.error is not None:
                    raise chunk.error
                return

    def _waiting(self) -> set[int]:
        """Records with tokens in rows that were not given yet."""
        return {p.item for b in (*self._closed, *self._packer.bins) for p in b.pieces}

    def _add(self, record: Held) -> None:
        try:
            record.tokens = self._count(record)
            self._closed += self._packer.add(record.index, record.tokens)
        except OpError as error:  # reported with the next batch
            if not isinstance(record.row, BadRecord):
                record.row = BadRecord(record.row, "pack", error)
            self._bad.append(record)
            return
        self._records[record.index] = record

    def _count(self, record: Held) -> int:
        """Tokens of a record.

        Raises:
            OpError: it has none, or says nothing about it.
        """
        if isinstance(record.row, BadRecord):
            raise OpError("failed in a map")
        try:
            found = self._tokens(record.row, record.index)
            count = int(found) if isinstance(found, (int, np.integer)) else len(found)
        except Exception as error:
            raise OpError(f"the number of tokens is not known: {type(error).__name__}: {error}") from error
        if count < 1:
            raise OpError("an empty sequence cannot be packed")
        return count

    def _given(self, whole: int, used: int) -> Unit:
        """The next `whole` rows, of which this rank's part is packed."""
        bins, self._closed = self._closed[:whole], self._closed[whole:]
        return self._unit(bins, bins[self.share.part], used)

    def _unit(self, bins: list[Bin], own: list[Bin], used: int) -> Unit:
        """The records of `own` rows, and this rank's part of those that failed; `bins` are done with on all ranks."""
        indices = dict.fromkeys(p.item for b in own for p in b.pieces)
        held = [*(self._records[i] for i in indices), *self._bad[self.share.part]]
        places = {index: place for place, index in enumerate(indices)}
        done = {p.item for b in bins for p in b.pieces} - self._waiting()
        self.consumed += len(done) + len(self._bad)
        self._bad = []
        for index in done:
            del self._records[index]
        originals = [h.original for h in held]
        return Unit(
            [h.row for h in held],
            None,
            [h.index for h in held],
            originals if any(o is not None for o in originals) else None,
            [b.with_items(places) for b in own],
            [h.tokens for h in held],
            {**self.cursor(used), "rows": self._packer.state(), "closed": [b.state() for b in self._closed]},
            self.consumed,
        )

    def _tail(self) -> Iterator[Unit]:
        """What is left when the data ends."""
        steps, size = self.share.steps, self.node.size
        bins, self._closed = self._closed, []
        own = bins[self.share.part]
        if not bins and not self._bad:
            return
        if steps == "drop" or (steps is None and self.node.drop_last and len(own) < size):
            return
        if steps == "pad" and bins:  # a rank without a row repeats another's
            own = [*own, *[(own or bins)[-1]] * (size - len(own))]
        unit = self._unit(bins, own, self.chunk.count)
        if len(unit) or steps is not None:
            yield unit


SEGMENT_IDS, POSITIONS = "segment_ids", "positions"
"""Slots that `pack` adds."""


def packed(
    job: Job, node: Pack, slots: dict[str, SlotColumn], indices: list[int], allocate: Allocate
) -> tuple[dict[str, SlotColumn], list[int]]:
    """The slots of a packed batch and the records that survived.

    Args:
        slots: one row per record of `indices`, which are rows of the unit.

    Returns:
        The slot that is packed, and every other one whose rows have the same numbers of elements, as [rows, length, ...];
        other slots as they are, one row per record; int32[rows, length] segment ids and positions. A record that has
        another number of tokens than it stated has failed: its place in the row is padding.
    """
    stated = job.unit.tokens or []
    sequences = _rows(slots[node.slot])
    good: list[int] = []
    kind: Any = None
    for place, row in enumerate(indices):
        found = sequences[place]
        if not isinstance(found, np.ndarray) or not found.ndim:
            error = OpError(f"pack needs an array of tokens, the slot holds {type_of(found)}")
        elif len(found) != stated[row]:
            error = OpError(f"the decoded sequence has {len(found)} tokens, the record stated {stated[row]}")
        elif kind is not None and kind != (found.shape[1:], found.dtype):
            error = OpError(f"a sequence of {type_of(found)} cannot share rows with others of {kind[1]}{list(kind[0])}")
        else:
            kind = found.shape[1:], found.dtype
            good.append(place)
            continue
        job.failures[row] = failure_of(row, node.slot, "collate", "pack", None, error)
    if len(good) < len(indices):
        slots = {name: column.permuted(good, allocate) for name, column in slots.items()}
        indices = [indices[place] for place in good]
    places = {row: place for place, row in enumerate(indices)}
    bins = [
        Bin(b.length, [p._replace(item=places[p.item]) for p in b.pieces if p.item in places]) for b in job.unit.bins or []
    ]
    counts = [stated[row] for row in indices]
    out = {
        name: _packed_column(column, bins, counts, node.length, node.pad_value if name == node.slot else 0, allocate)
        for name, column in slots.items()
    }
    segments, positions = (allocate((len(bins), node.length), np.int32) for _ in range(2))
    fill_segments(bins, segments, positions)
    return {**out, SEGMENT_IDS: SlotColumn(dense=segments), POSITIONS: SlotColumn(dense=positions)}, indices


def _rows(column: SlotColumn) -> Any:
    return column.dense if column.dense is not None else column.rows


def _packed_column(
    column: SlotColumn, bins: list[Bin], counts: list[int], length: int, pad: int, allocate: Allocate
) -> SlotColumn:
    """One slot in rows of tokens, or as it is when it has not one element of one kind per token."""
    rows = _rows(column)
    if not all(isinstance(row, np.ndarray) and row.ndim and len(row) == n for row, n in zip(rows, counts)):
        return column
    if len({(row.shape[1:], row.dtype) for row in rows}) > 1:
        return column
    tail, dtype = (rows[0].shape[1:], rows[0].dtype) if len(rows) else ((), np.dtype(np.int64))
    out = allocate((len(bins), length, *tail), dtype)
    fill(bins, rows, out, pad=pad)
    return SlotColumn(dense=out)
