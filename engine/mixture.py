"""Which source gives the record at each position of a weighted mixture, as a function of the position alone.

How many records each source gave before a position comes from splitting the position along a binary tree: a node passes
its share, rounded, to its left child and the rest to the right. Exact integers keep the counts from ever going back. The
tree is Huffman's, where no inner node takes more than two thirds of its parent, so roundings die out on the way down and a
count is always within 2 of the source's share (unlike apportionment by largest remainder, which can take a record back
as the total grows: the Alabama paradox). Within a block the order is a seeded shuffle.

Sources: D. Huffman, "A Method for the Construction of Minimum-Redundancy Codes", Proc. IRE 40(9), 1952; M. Balinski,
H. Young, "Fair Representation", 1982 (apportionment and its paradoxes).
"""

from __future__ import annotations

import copy
import heapq
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .errors import PlanError
from .permutation import Permutation, Positions, checked_positions

BLOCK = 1024
"""Positions that are shuffled among each other: shares are kept at every multiple of it."""


class Mixture:
    """An endless mixture of `len(weights)` sources, each read in its own order and at the rate of its weight.

    At every multiple of `BLOCK` the records taken from a source are its share of the position to within 2. Threads may
    share an instance.

    Args:
        weights: one positive, finite number per source; only their ratios count.
        key: integers such as (seed, epoch), each taken modulo `2**64`, that settle the order within blocks.

    Attributes:
        stop: number of positions, None without end; see `within`.

    Raises:
        PlanError: no weights, or one that is not a positive, finite number.
    """

    __slots__ = ("_block", "_key", "_sources", "_splits", "stop")

    def __init__(self, weights: Sequence[float], *key: int) -> None:
        for number, weight in enumerate(weights):
            if not (math.isfinite(weight) and weight > 0):
                raise PlanError(f"weights are positive and finite, got {weight!r} for source {number}")
        if not len(weights):
            raise PlanError("a mixture takes at least one source with its weight")
        self.stop: int | None = None
        self._key = key
        self._sources = len(weights)
        self._splits = _splits(weights)
        self._block: tuple[int, NDArray[np.int64], NDArray[np.int64]] | None = None

    def at(self, positions: Positions) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The source at each position and which of that source's records it is.

        Args:
            positions: integers of 0 or more, in any order; those of one block cost little more than one of them.

        Returns:
            (source numbers, record numbers within the source), int64[n] each, fresh arrays. The record numbers of one
            source are 0, 1, 2, ... in order of position.

        Raises:
            IndexError: a position is negative, or `stop` or more.
            TypeError: the positions are not integers.
        """
        positions = checked_positions(positions, self.stop)
        sources, records = np.empty(len(positions), np.int64), np.empty(len(positions), np.int64)
        if isinstance(positions, range):
            for number in range(positions.start // BLOCK, -(-positions.stop // BLOCK)):
                first = max(number * BLOCK, positions.start)
                stop = min((number + 1) * BLOCK, positions.stop)
                here = slice(first - positions.start, stop - positions.start)
                inside = slice(first - number * BLOCK, stop - number * BLOCK)
                _, block_sources, block_records = self._block_of(number)
                sources[here], records[here] = block_sources[inside], block_records[inside]
            return sources, records
        numbers, inside_blocks = np.divmod(positions, BLOCK)
        order = np.argsort(numbers, kind="stable")
        for group in np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1) if len(order) else ():
            _, block_sources, block_records = self._block_of(int(numbers[group[0]]))
            sources[group] = block_sources[inside_blocks[group]]
            records[group] = block_records[inside_blocks[group]]
        return sources, records

    def counts(self, position: int) -> list[int]:
        """How many records of each source come before `position`; they add up to it.

        Raises:
            IndexError: the position is negative, or above `stop`.
        """
        if position < 0 or (self.stop is not None and position > self.stop):
            bounds = "0 or more" if self.stop is None else f"0 to {self.stop}"
            raise IndexError(f"position {position} is out of bounds ({bounds})")
        if position == self.stop:
            return self._shares(position)
        number, inside = divmod(position, BLOCK)
        counts = self._shares(number * BLOCK)
        if inside:
            _, sources, _ = self._block_of(number)
            taken = np.bincount(sources[:inside], minlength=self._sources).tolist()
            counts = [count + more for count, more in zip(counts, taken, strict=True)]
        return counts

    def within(self, lengths: Sequence[int | None]) -> Mixture:
        """This mixture up to where the next record would be one that its source does not have.

        How many records that are, `stop`, does not depend on the key: the last, shorter block is cut to fit.

        Args:
            lengths: how many records each source holds; None where that is unknown or without end.

        Returns:
            A mixture with its `stop`; that is None when no source of known length ends within 2**62 positions.

        Raises:
            ValueError: the lengths are not one per source, or one is negative.
        """
        if len(lengths) != self._sources:
            raise ValueError(f"lengths are one per source: expected {self._sources}, got {len(lengths)}")
        known = [(source, length) for source, length in enumerate(lengths) if length is not None]
        if min((length for _, length in known), default=0) < 0:
            raise ValueError(f"lengths are 0 or more, got {list(lengths)}")

        def is_over(position: int) -> bool:
            shares = self._shares(position)
            return any(shares[source] > length for source, length in known)

        found = copy.copy(self)
        found._block = None
        above = 1
        while not is_over(above):
            if above > 1 << 62:
                return found
            above *= 2
        below = above // 2
        while above - below > 1:
            middle = (above + below) // 2
            below, above = (below, middle) if is_over(middle) else (middle, above)
        found.stop = below
        return found

    def _shares(self, position: int) -> list[int]:
        """`counts` at a multiple of the block and at `stop`; elsewhere what they would be if it ended there."""
        taken = [0] * (2 * self._sources - 1)
        taken[-1] = position
        for node, left, right, weight, total in self._splits:
            taken[left] = (2 * taken[node] * weight + total) // (2 * total)
            taken[right] = taken[node] - taken[left]
        return taken[: self._sources]

    def _block_of(self, number: int) -> tuple[int, NDArray[np.int64], NDArray[np.int64]]:
        """(`number`, sources, records) of the positions of one block; the last one asked for is kept."""
        found = self._block  # one read: another thread may replace it
        if found is not None and found[0] == number:
            return found
        start = number * BLOCK
        size = BLOCK if self.stop is None else min(BLOCK, self.stop - start)
        before = np.array(self._shares(start), np.int64)
        taken = np.array(self._shares(start + size), np.int64) - before
        sources = np.repeat(np.arange(self._sources), taken)[
            Permutation(size, *self._key, number).at(range(size))
        ]
        records = np.empty(size, np.int64)
        # Sorted by source, records count up from each source's first; a stable sort keeps them in order of position.
        first = before - np.cumsum(taken) + taken
        records[np.argsort(sources, kind="stable")] = np.arange(size) + np.repeat(first, taken)
        self._block = found = (number, sources, records)
        return found


def _splits(weights: Sequence[float]) -> list[tuple[int, int, int, int, int]]:
    """Huffman's tree from its root down: (node, left, right, weight of left, weight of node), in exact integers.

    Nodes are numbered: sources first, the root last.
    """
    ratios = [float(weight).as_integer_ratio() for weight in weights]
    scale = max(denominator for _, denominator in ratios)  # powers of two, so the largest is a common one
    heap = [
        (numerator * (scale // denominator), node) for node, (numerator, denominator) in enumerate(ratios)
    ]
    heapq.heapify(heap)
    splits = []
    for node in range(len(weights), 2 * len(weights) - 1):
        (light, left), (heavy, right) = heapq.heappop(heap), heapq.heappop(heap)
        splits.append((node, left, right, light, light + heavy))
        heapq.heappush(heap, (light + heavy, node))
    return splits[::-1]
