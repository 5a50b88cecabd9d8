"""A shuffle that is computed, not stored: a seeded bijection of range(length) from its key alone.

An index is a pair of digits (left, right) in the mixed radix `2**k` times `b`, with `2**k * b` just above the length. An
unbalanced Feistel network adds to each digit in turn a keyed hash of the other, which is undone by subtracting it, so
every round is a bijection of the pairs; an index that lands at or above the length is sent through again until it falls
below (cycle walking), which keeps the whole a bijection of range(length). Less than 1 index in sqrt(length) needs that.

Sources: J. Black, P. Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002 (the generalised Feistel network and
cycle walking); M. Luby, C. Rackoff, SIAM J. Comput. 17(2), 1988 (why rounds of hashes make a random permutation);
G. Steele, D. Lea, C. Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014 (multipliers of the hash);
M. O'Neill, "Developing a seed_seq Alternative", 2015 (NumPy's `SeedSequence`, which spreads the key).

It is for shuffling and keeps no secret.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Positions = range | Sequence[int] | NDArray[np.integer[Any]]

_BLOCK = 1 << 13  # some arrays of 64 KiB: they stay in a core's cache while the rounds pass over them
_ROUNDS = 8
_SMALL_ROUNDS = 24  # a handful of pairs takes more rounds to mix
_SMALL = 1 << 12
_MASK = (1 << 64) - 1
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_HALF = np.uint64(32)


class Permutation:
    """The numbers 0 to `length - 1` in an order that `key` settles, each found on its own in constant memory.

    The order is the same on every platform and with every version of NumPy. Calls that go forwards by less than
    some thousands of positions are answered from a block worked out ahead. Threads may share an instance: they can
    cost each other a block, never a result.

    Args:
        length: how many numbers, 0 to `2**62`.
        key: integers such as (seed, epoch), each taken modulo `2**64`. Keys that differ, also in how many integers they
            have, give unrelated orders.

    Raises:
        ValueError: `length` is out of bounds.
    """

    __slots__ = ("_ahead", "_bits", "_high", "_key", "_last", "_length", "_rounds")

    def __init__(self, length: int, *key: int) -> None:
        length = operator.index(length)
        if not 0 <= length <= 1 << 62:
            raise ValueError(f"a permutation has 0 to 2**62 numbers, got length {length}")
        self._length = length
        self._key = tuple(operator.index(part) & _MASK for part in key)
        self._bits = max(1, (length.bit_length() - 1) // 2)  # even radix: odd permutations are reached too
        self._high = -(-length >> self._bits)
        rounds = _SMALL_ROUNDS if length < _SMALL else _ROUNDS
        # Two words per integer and their number in front: (1, 2) and (1 + 2 * 2**32,) would else be the same words.
        words = [len(self._key), *(word for part in self._key for word in (part & 0xFFFFFFFF, part >> 32))]
        self._rounds = np.random.SeedSequence(words).generate_state(rounds, np.uint64)
        self._last = 0
        self._ahead: tuple[int, NDArray[np.int64]] = (0, np.empty(0, np.int64))

    def __len__(self) -> int:
        return self._length

    def __repr__(self) -> str:
        return f"Permutation({', '.join(map(str, (self._length, *self._key)))})"

    def __reduce__(self) -> tuple[type[Permutation], tuple[int, ...]]:
        return Permutation, (self._length, *self._key)

    def __iter__(self) -> Iterator[int]:
        for block in self.blocks(size=_BLOCK):
            yield from block.tolist()

    def __getitem__(self, position: int) -> int:
        position = operator.index(position)
        return int(self.at(range(position, position + 1))[0])

    def at(self, positions: Positions) -> NDArray[np.int64]:
        """The numbers at `positions`.

        Args:
            positions: integers of 0 to `length - 1` in any order, repeated or not; a `range` of step 1 is the fast case.

        Returns:
            int64[n], a fresh array.

        Raises:
            IndexError: a position is negative, or `length` or more.
            TypeError: the positions are not integers.
        """
        positions = checked_positions(positions, self._length)
        if isinstance(positions, range):
            found = self._from_block(positions)
            if found is not None:
                return found
            start, count = positions.start, len(positions)
            out = np.empty(count, np.int64)
            for done in range(0, count, _BLOCK):
                stop = min(done + _BLOCK, count)
                out[done:stop] = self._scatter(np.arange(start + done, start + stop, dtype=np.uint64))
            return out
        out = np.empty(len(positions), np.int64)
        for done in range(0, len(positions), _BLOCK):
            out[done : done + _BLOCK] = self._scatter(positions[done : done + _BLOCK].astype(np.uint64))
        return out

    def blocks(self, start: int = 0, size: int = 1 << 16) -> Iterator[NDArray[np.int64]]:
        """The numbers from position `start` to the end, as int64 arrays of `size` (the last may be shorter)."""
        if start < 0 or size < 1:
            raise ValueError(
                f"blocks start at 0 or later and hold at least 1 number, got start={start}, size={size}"
            )
        for begin in range(start, self._length, size):
            yield self.at(range(begin, min(begin + size, self._length)))

    def _from_block(self, positions: range) -> NDArray[np.int64] | None:
        """The answer to a short forward read; None where working out a whole block for it would be waste."""
        start, stop = positions.start, positions.stop
        forwards = 0 <= start - self._last < _BLOCK
        self._last = start
        if stop - start >= _BLOCK:
            return None
        first, ahead = self._ahead  # one read: another thread may replace the pair
        if not first <= start <= stop <= first + len(ahead):
            if not forwards:
                return None
            first = start
            ahead = self._scatter(np.arange(start, min(start + _BLOCK, self._length), dtype=np.uint64))
            self._ahead = (first, ahead)
        return ahead[start - first : stop - first].copy()

    def _scatter(self, positions: NDArray[np.uint64]) -> NDArray[np.int64]:
        """The numbers at up to a block of positions; overwrites `positions`."""
        self._pass(positions)
        if self._high << self._bits != self._length:
            length = np.uint64(self._length)
            outside = np.flatnonzero(positions >= length)
            while outside.size:
                walked = positions[outside]
                self._pass(walked)
                positions[outside] = walked
                outside = outside[walked >= length]
        return positions.view(np.int64)  # below 2**63

    def _pass(self, pairs: NDArray[np.uint64]) -> None:
        """Send each pair (high digit, low digit), written as `high << bits | low`, through the network, in place."""
        bits, base = np.uint64(self._bits), np.uint64(self._high)
        mask, top = np.uint64((1 << self._bits) - 1), np.uint64(64 - self._bits)
        low = pairs & mask
        high = np.right_shift(pairs, bits, out=pairs)
        hashed, spare = np.empty_like(pairs), np.empty_like(pairs)
        for number, key in enumerate(self._rounds):
            odd = number & 1
            np.bitwise_xor(low if odd else high, key, out=hashed)
            np.multiply(hashed, _FIRST, out=hashed)
            np.right_shift(hashed, _HALF, out=spare)
            np.bitwise_xor(hashed, spare, out=hashed)
            np.multiply(hashed, _SECOND, out=hashed)
            if odd:  # high = (high + hash scaled to base) % base
                np.right_shift(hashed, _HALF, out=hashed)
                np.multiply(hashed, base, out=hashed)
                np.right_shift(hashed, _HALF, out=hashed)
                np.add(high, hashed, out=high)
                np.subtract(high, base, out=spare)  # wraps to something huge where high < base
                np.minimum(high, spare, out=high)
            else:  # low = (low + hash) % 2**bits
                np.right_shift(hashed, top, out=hashed)
                np.add(low, hashed, out=low)
                np.bitwise_and(low, mask, out=low)
        np.left_shift(high, bits, out=high)
        np.bitwise_or(high, low, out=high)


def checked_positions(positions: Positions, length: int | None = None) -> range | NDArray[np.int64]:
    """`positions` as a range of step 1 or as int64[n].

    Raises:
        IndexError: one is negative or, where a length is given, not below it.
        TypeError: they are not integers.
    """
    if isinstance(positions, range) and positions.step == 1:
        lowest, highest = (positions.start, positions.stop - 1) if positions else (0, -1)
        found: range | NDArray[np.int64] = positions if positions else range(0)
    else:
        array = np.asarray(positions)
        if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            raise TypeError(f"positions are a list of integers, got {array.dtype} of shape {array.shape}")
        lowest, highest = (int(array.min()), int(array.max())) if array.size else (0, -1)
        found = array.astype(np.int64, copy=False)
    if lowest < 0 or (length is not None and highest >= length):
        bounds = (
            "0 or more"
            if length is None
            else f"0 to {length - 1}"
            if length
            else "none: the permutation is empty"
        )
        raise IndexError(f"position {lowest if lowest < 0 else highest} is out of bounds ({bounds})")
    return found
