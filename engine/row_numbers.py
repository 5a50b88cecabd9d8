"""Which rows of a source are left: their numbers in a few bits each, looked up by position."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from .permutation import Positions, checked_positions
from .shuffle import Recent, grouped

Numbers: TypeAlias = NDArray[np.int64]

_SPAN = 1 << 16
"""Row numbers that are kept together: those inside fit into two bytes each."""
_BITMAP_BYTES = _SPAN // 8
_DECODED = 64
"""Bitmaps whose numbers are kept after they were looked up: 8 MiB at most."""


class RowNumbers:
    """Ascending numbers of rows. Of each 65,536 rows those that are left are kept as 16-bit integers, as a bitmap where that is smaller, or as
    nothing where all are: at most one bit for each row of the source.

    Args:
        parts: the numbers in ascending order, int64[n] each, no number twice.
    """

    def __init__(self, parts: Iterable[Numbers]) -> None:
        self._spans: list[int] = []
        self._kept: list[NDArray[np.uint16] | NDArray[np.uint8] | None] = []
        counts: list[int] = []
        for span, inside in _by_span(parts):
            self._spans.append(span)
            counts.append(len(inside))
            self._kept.append(_packed(inside))
        self._starts = np.cumsum([0, *counts], dtype=np.int64)
        self._decoded: Recent[NDArray[np.uint16]] = Recent(_DECODED)

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def nbytes(self) -> int:
        """Bytes that the numbers take."""
        return sum(0 if kept is None else kept.nbytes for kept in self._kept)

    def at(self, positions: Positions) -> Numbers:
        """The numbers at these positions, int64[n].

        Raises:
            IndexError: a position is negative or not below the length.
        """
        checked = checked_positions(positions, len(self))
        if isinstance(checked, range):
            if not checked:
                return np.empty(0, np.int64)
            first, last = (int(np.searchsorted(self._starts, at, side="right")) - 1 for at in (checked.start, checked.stop - 1))
            found = np.concatenate([self._numbers(owner) for owner in range(first, last + 1)])
            start = checked.start - int(self._starts[first])
            return found[start : start + len(checked)]
        out = np.empty(len(checked), np.int64)
        for owner, places in grouped(np.searchsorted(self._starts, checked, side="right") - 1):
            out[places] = self._numbers(owner)[checked[places] - self._starts[owner]]
        return out

    def before(self, numbers: Numbers) -> Numbers:
        """How many of the kept numbers are smaller than each of `numbers`, int64[n]."""
        out = np.empty(len(numbers), np.int64)
        spans = np.asarray(self._spans, np.int64)
        for place, number in enumerate(np.asarray(numbers, np.int64).tolist()):
            owner = int(np.searchsorted(spans, number // _SPAN))
            out[place] = self._starts[owner]
            if owner < len(spans) and spans[owner] == number // _SPAN:
                out[place] += int(np.searchsorted(self._inside(owner), number % _SPAN))
        return out

    def _numbers(self, owner: int) -> Numbers:
        return self._inside(owner).astype(np.int64) + self._spans[owner] * _SPAN

    def _inside(self, owner: int) -> NDArray[np.uint16]:
        kept = self._kept[owner]
        if kept is not None and kept.dtype == np.uint16:
            return kept  # type: ignore[return-value]
        return self._decoded.get(owner, lambda: _unpacked(kept))


def _packed(inside: NDArray[np.int64]) -> NDArray[np.uint16] | NDArray[np.uint8] | None:
    if len(inside) == _SPAN:
        return None
    if len(inside) * 2 <= _BITMAP_BYTES:
        return inside.astype(np.uint16)
    bits = np.zeros(_SPAN, np.bool_)
    bits[inside] = True
    return np.packbits(bits)


def _unpacked(kept: NDArray[np.uint16] | NDArray[np.uint8] | None) -> NDArray[np.uint16]:
    found = np.arange(_SPAN) if kept is None else np.flatnonzero(np.unpackbits(kept))  # type: ignore[arg-type]
    return found.astype(np.uint16)


def _by_span(parts: Iterable[Numbers]) -> Iterable[tuple[int, Numbers]]:
    """(span, numbers inside it) for each span that holds any."""
    held: list[Numbers] = []
    current = -1
    for part in parts:
        if not len(part):
            continue
        for span, places in grouped(part // _SPAN):
            if span != current and held:
                yield current, np.concatenate(held) - current * _SPAN
                held = []
            current = span
            held.append(part[places])
    if held:
        yield current, np.concatenate(held) - current * _SPAN
