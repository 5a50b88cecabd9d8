"""How ranks whose records may not be the same agree on the number of steps, so that none starts one alone.

Each rank cuts a window of batches ahead and tells the others how many it has. While some rank has more, `steps` says what
the others do: "drop" ends with the first rank that ends, "pad" and "short" go on to the last batch of any rank. So the
number of steps depends on the records alone, not on where the windows begin, and a resumed run agrees on the same.

A rank whose source fails tells the others, and all of them end after the batches before the failure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count, islice
from typing import Protocol

from .errors import PlanError, StepsError
from .plan import Batch, Shape
from .units import BatchCutter, Cutter, Steps, Unit

WINDOW = 8
"""Batches that are cut ahead, at least."""


class Agreement(Protocol):
    """Exchanges one number between the ranks."""

    rank: int

    def exchange(self, window: int, batches: int, stopped: Callable[[], bool]) -> list[int] | None:
        """Tell the other ranks how many batches this one has in window `window`: n, or -1 - n when it failed after n of
        them. What each of them has, by rank.

        None when `stopped()` became true while waiting.
        """


class AgreedSteps:
    """The units of a cutter, as many as every rank has ("drop"), or made up to as many as some rank has.

    Raises, from `__next__`:
        StepsError: another rank failed, or did not answer in time.
        PlanError: a rank without any record has none to repeat.
    """

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
        last: Unit | None = None
        for number in count():
            units: list[Unit] = []
            failure: Exception | None = None
            try:
                units.extend(islice(self._units, window))  # what came before an exception stays in the list
            except Exception as error:
                failure = error
            counts = self._exchange(number, units, failure)
            if counts is None:
                return
            failed = {rank: -1 - has for rank, has in enumerate(counts) if has < 0}
            steps = min(failed.values()) if failed else max(counts)
            if self._steps == "drop":
                steps = min([steps, *(has for has in counts if has >= 0)])
            yield from units[:steps]
            last = units[-1] if units else last
            for _ in range(len(units), steps):
                yield self._extra(last)
            if failure is not None:
                raise failure
            if failed:
                ranks = ", ".join(map(str, failed))
                raise StepsError(f"the records of rank(s) {ranks} ended with an error, which is told there; no step is left")
            if steps < window:
                return

    def _exchange(self, number: int, units: list[Unit], failure: Exception | None) -> list[int] | None:
        try:
            return self._agreement.exchange(number, len(units) if failure is None else -1 - len(units), self._stopped)
        except StepsError:
            if failure is not None:  # the other ranks may have ended for a reason of their own
                raise failure from None
            raise

    def _extra(self, last: Unit | None) -> Unit:
        """A step of a rank that has no records left; `last` is its last batch since the beginning, or the resume."""
        units = self._units
        if self._steps == "short":
            after = units.resumed if last is None else last.after
            return Unit([], after=after, consumed=units.consumed if last is None else last.consumed)
        if last is None and isinstance(units, BatchCutter):
            last = units.last_before(units.consumed)
            if last is not None:
                last.after, last.consumed = units.resumed, units.consumed
        if last is None or not len(last):
            raise PlanError(
                f"rank {self._agreement.rank} has no record to repeat for the steps that other ranks take; "
                'use steps="short" or steps="drop"'
            )
        if self._size is None:  # a bucket's or packed rows: the whole batch again
            return last
        return last.chosen([len(last) - 1]).padded(self._size)

    def held(self) -> int:
        """Records that wait for their batch, batches that wait for the other ranks left out."""
        return self._units.held()

    def close(self) -> None:
        self._agreed = iter(())
        self._units.close()
