"""How ranks whose records may not be the same agree on the number of steps, so that none starts one alone.

Each rank cuts a window of batches ahead and tells the others how many it has. While all windows are full they go on; at
the first that is not, `steps` says what every rank does with the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Protocol

from .errors import PlanError, SourceError
from .plan import Batch, Shape
from .units import Cutter, Steps, Unit

WINDOW = 8
"""Batches that are cut ahead, at least."""


class Agreement(Protocol):
    """Exchanges one number between the ranks."""

    rank: int

    def exchange(self, window: int, batches: int, stopped: Callable[[], bool]) -> list[int] | None:
        """Tell the other ranks how many batches this one has in window `window`; what each of them has, by rank.

        None when `stopped()` became true while waiting.
        """


class AgreedSteps:
    """The units of a cutter, as many as every rank has, or made up to as many as some rank has."""

    def __init__(
        self,
        units: Cutter,
        agreement: Agreement,
        steps: Steps | None,
        shape: Shape,
        stopped: Callable[[], bool],
    ) -> None:
        self._units = units
        self._agreement = agreement
        self._steps = steps
        self._stopped = stopped
        self._size = shape.size if isinstance(shape, Batch) else None
        self._agreed = self._agree(max(WINDOW, shape.prefetch))

    def __iter__(self) -> Iterator[Unit]:
        return self

    def __next__(self) -> Unit:
        return next(self._agreed)

    def _agree(self, window: int) -> Iterator[Unit]:
        number, last = 0, None
        while True:
            units: list[Unit] = []
            failure: SourceError | None = None
            try:
                units.extend(islice(self._units, window))
            except SourceError as error:
                failure = error
            complete = units if self._steps != "drop" else [u for u in units if u.full]
            counts = self._agreement.exchange(number, len(complete), self._stopped)
            if counts is None:
                return
            if failure is not None:
                yield from units
                raise failure
            if min(counts) == window:
                yield from units
                last = units[-1]
                number += 1
                continue
            yield from self._rest(complete, counts, last)
            return

    def _rest(self, units: list[Unit], counts: list[int], last: Unit | None) -> Iterator[Unit]:
        if self._steps == "drop":
            yield from units[: min(counts)]
            return
        if self._steps is None:
            yield from units
            return
        last = units[-1] if units else last
        for unit in units:
            yield unit if self._steps == "short" or self._size is None else unit.padded(self._size)
        for _ in range(len(units), max(counts)):
            yield self._extra(last)

    def _extra(self, last: Unit | None) -> Unit:
        """A step of a rank that has no records left."""
        if self._steps == "short":
            return Unit([], after=None if last is None else last.after, consumed=0 if last is None else last.consumed)
        if last is None or not len(last):
            raise PlanError(
                f"rank {self._agreement.rank} has no record to repeat for the steps that other ranks take; "
                'use steps="short" or steps="drop"'
            )
        if self._size is None:  # a bucket's or packed rows: the whole batch again
            return replace(last, full=False)
        return replace(last.chosen([len(last) - 1]).padded(self._size), full=False)

    def held(self) -> int:
        """Records that wait for their batch, batches that wait for the other ranks left out."""
        return self._units.held()

    def close(self) -> None:
        self._agreed = iter(())
        self._units.close()


