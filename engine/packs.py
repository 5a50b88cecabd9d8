"""The cutter of `pack`: token sequences put together in rows of a fixed length.

What it holds back is part of the state as positions in the pass; a resumed cutter fetches those records again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from .buckets import Held, held_record, key_function, unit_of
from .errors import OpError
from .packing import Bin, Packer
from .plan import Pack
from .source import Pass
from .streams import BadRecord, Stream
from .units import Refetch, RunCutter, Share, Unit


class PackCutter(RunCutter):
    """Token sequences packed into rows of a fixed length; a batch is given when enough rows are closed."""

    def __init__(self, stream: Stream, share: Share, state: Any, node: Pack, pass_: Pass, refetch: Refetch) -> None:
        super().__init__(stream, share, state, ahead=1)
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
            self._records = {i: held_record(i, chunk, 0) for i, chunk in refetch(sorted(self._waiting())).items()}

    def cut(self) -> Iterator[Unit]:
        whole = self.node.size * self.share.of
        while True:
            chunk = self.next_chunk()
            for row in range(chunk.count):
                self._add(held_record(self.index(row), chunk, row))
                while len(self._closed) >= whole:
                    yield self._given(whole)
            if self.ended():
                self._closed += self._packer.finish()
                while len(self._closed) >= whole:
                    yield self._given(whole)
                yield from self._tail()
                if chunk.error is not None:
                    raise chunk.error
                return

    def _waiting(self) -> set[int]:
        """Records with tokens in rows that were not given yet."""
        return {p.item for b in (*self._closed, *self._packer.bins) for p in b.pieces}

    def _add(self, record: Held) -> None:
        try:
            self._closed += self._packer.add(record.index, self._count(record))
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

    def _given(self, whole: int) -> Unit:
        """The next `whole` rows, of which this rank's part is packed."""
        bins, self._closed = self._closed[:whole], self._closed[whole:]
        return self._unit(bins, bins[self.share.part])

    def unit_of(self, bins: list[Bin], own: list[Bin]) -> Unit:
        indices = dict.fromkeys(p.item for b in own for p in b.pieces)
        unit = unit_of([*(self._records[i] for i in indices), *self._bad])
        places = {index: place for place, index in enumerate(indices)}
        unit.bins = [b.with_items(places) for b in own]
        done = {p.item for b in bins for p in b.pieces} - self._waiting()
        self.consumed += len(done) + len(self._bad)
        self._bad = []
        for index in done:
            del self._records[index]
        unit.after = {
            **self.cursor(self.chunk.count),
            "rows": self._packer.state(),
            "closed": [b.state() for b in self._closed],
        }
        unit.consumed = self.consumed
        return unit

    def _tail(self) -> Iterator[Unit]:
        steps, size = self.share.steps, self.node.size
        bins, self._closed = self._closed, []
        if not bins and not self._bad:
            return
        if steps == "drop" or (steps is None and self.node.drop_last):
            return
        own = bins[self.share.part]
        if steps == "pad" and bins:
            own = [*own, *[(own or bins)[-1]] * (size - len(own))]
        unit = self._unit(bins, own)
        unit.full = len(own) == size
        if len(unit) or steps == "short":
            yield unit
