"""Packing token sequences of many lengths into rows of one length: which row, and where in it.

Online bin packing with a bounded number of open bins (D. Johnson, "Fast algorithms for bin packing", J. Computer and
System Sciences 8(3), 1974: first fit and best fit; J. Csirik, D. Johnson, "Bounded space on-line bin packing: best is
better than first", Algorithmica 31(2), 2001: which bin to close). Segment ids and positions follow the convention of T5X
and seqio: segments of a row count from 1, padding is 0, and positions start again at 0 with every segment.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from .errors import LimitError, OpError, PlanError, did_you_mean

Strategy = Literal["first_fit", "best_fit"]
Overflow = Literal["error", "truncate", "split"]
Array = NDArray[Any]


class OversizeError(LimitError):
    """A sequence is longer than a row, under `overflow="error"`.

    Attributes:
        tokens: length of the sequence.
        length: length of a row.
    """

    def __init__(self, tokens: int, length: int) -> None:
        super().__init__(
            f"a sequence of {tokens} tokens does not fit a row of {length}: give a larger length=, or "
            f'overflow="truncate" (keeps the first {length}) or overflow="split" (cuts it into several pieces)'
        )
        self.tokens = tokens
        self.length = length

    def __reduce__(self) -> tuple[type[OversizeError], tuple[int, int]]:
        return OversizeError, (self.tokens, self.length)


class Piece(NamedTuple):
    """`length` tokens of the sequence `item`, from its token `offset` on."""

    item: Any
    offset: int
    length: int


class Bin:
    """One row of at most `length` tokens.

    Attributes:
        pieces: what lies in it, in the order of placement, without gaps.
        used: tokens of all pieces.
    """

    __slots__ = ("length", "pieces", "used")

    def __init__(self, length: int, pieces: Iterable[Piece] = ()) -> None:
        self.length = length
        self.pieces = list(pieces)
        self.used = sum(piece.length for piece in self.pieces)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Bin):
            return NotImplemented
        return self.length == other.length and self.pieces == other.pieces

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Bin({self.length}, {[tuple(piece) for piece in self.pieces]})"

    def put(self, piece: Piece) -> None:
        """Add a piece behind the others; the caller knows that it fits."""
        self.pieces.append(piece)
        self.used += piece.length

    def with_items(self, names: Mapping[Any, Any]) -> Bin:
        """The same bin with each item replaced by what `names` has for it."""
        return Bin(self.length, [piece._replace(item=names[piece.item]) for piece in self.pieces])

    def state(self) -> list[list[Any]]:
        """`[item, offset, length]` of each piece: JSON, as far as the items are."""
        return [list(piece) for piece in self.pieces]

    @classmethod
    def restore(cls, state: Sequence[Sequence[Any]], length: int) -> Bin:
        """The bin of a `state()`.

        Raises:
            PlanError: it is no such state, or holds more than `length` tokens.
        """
        try:
            found = cls(length, [Piece(item, int(offset), int(size)) for item, offset, size in state])
        except (TypeError, ValueError) as error:
            raise PlanError(
                f"a packed row's state is a list of [item, offset, length], got {state!r:.200}"
            ) from error
        if found.used > length or any(piece.offset < 0 or piece.length < 1 for piece in found.pieces):
            raise PlanError(
                f"the state has a row of {found.used} tokens, which does not fit rows of {length}"
            )
        return found


class Packer:
    """Puts sequences into bins as they come. Used by one thread.

    A sequence goes into the open bin that `strategy` picks; where it fits none, a bin is opened, for which the fullest
    one (of equals the oldest) closes when `open_bins` are open. A bin that is exactly full closes at once, so a sequence
    as long as a row closes no other bin.

    Args:
        length: tokens of a row, at least 1.
        strategy: "first_fit": the oldest open bin with room enough; "best_fit": the one that would keep the least room,
            of equals the oldest.
        open_bins: how many bins may be open, at least 1: more of them leave less padding and hold more records.
        overflow: what becomes of a sequence longer than `length`: "error" raises, "truncate" keeps its first `length`
            tokens, "split" cuts it into pieces of `length`, of which the last may be shorter.

    Attributes:
        empty: how many sequences had no tokens; they are in no bin.

    Raises:
        PlanError: an argument is out of bounds or unknown.
    """

    __slots__ = ("_bins", "_rooms", "empty", "length", "open_bins", "overflow", "strategy")

    def __init__(
        self,
        length: int,
        *,
        strategy: Strategy = "first_fit",
        open_bins: int = 64,
        overflow: Overflow = "error",
    ) -> None:
        for name, count in (("length", length), ("open_bins", open_bins)):
            if operator.index(count) < 1:
                raise PlanError(f"{name} is at least 1, got {count}")
        for name, value, known in (("strategy", strategy, Strategy), ("overflow", overflow, Overflow)):
            if value not in get_args(known):
                choices = ", ".join(map(repr, get_args(known)))
                raise PlanError(
                    f"{name} is one of {choices}, got {value!r}{did_you_mean(str(value), get_args(known))}"
                )
        self.length = operator.index(length)
        self.open_bins = operator.index(open_bins)
        self.strategy: Strategy = strategy
        self.overflow: Overflow = overflow
        self.empty = 0
        self._bins: list[Bin] = []
        self._rooms = np.empty(
            self.open_bins, np.int64
        )  # what is free in each open bin, in the order of `_bins`

    @property
    def bins(self) -> list[Bin]:
        """The open bins, oldest first."""
        return list(self._bins)

    def add(self, item: Any, tokens: int) -> list[Bin]:
        """Place a sequence.

        Args:
            item: what names it; JSON if `state` is to be.
            tokens: its length. A sequence of 0 tokens is only counted, in `empty`.

        Returns:
            The bins that this closed, in the order of closing.

        Raises:
            OversizeError: it is longer than a row, and `overflow` is "error". Nothing has changed.
            OpError: `tokens` is negative. Nothing has changed.
        """
        tokens = operator.index(tokens)
        if tokens < 0:
            raise OpError(f"a sequence has 0 tokens or more, got {tokens}")
        if tokens == 0:
            self.empty += 1
            return []
        if tokens <= self.length:
            return self._place(Piece(item, 0, tokens))
        if self.overflow == "error":
            raise OversizeError(tokens, self.length)
        if self.overflow == "truncate":
            return self._place(Piece(item, 0, self.length))
        closed = []
        for offset in range(0, tokens, self.length):
            closed += self._place(Piece(item, offset, min(self.length, tokens - offset)))
        return closed

    def finish(self) -> list[Bin]:
        """Close all open bins; they come oldest first. The packer can go on with the next epoch."""
        closed, self._bins = self._bins, []
        return closed

    def state(self) -> dict[str, Any]:
        """The open bins and the count of empty sequences, as JSON (as far as the items are)."""
        return {"bins": [one.state() for one in self._bins], "empty": self.empty}

    @classmethod
    def restore(
        cls,
        state: Mapping[str, Any],
        length: int,
        *,
        strategy: Strategy = "first_fit",
        open_bins: int = 64,
        overflow: Overflow = "error",
    ) -> Packer:
        """A packer that goes on where the one that gave `state` was; tuples that went through JSON come back as lists.

        Raises:
            PlanError: an argument is out of bounds, or the state does not fit the arguments.
        """
        packer = cls(length, strategy=strategy, open_bins=open_bins, overflow=overflow)
        try:
            bins, packer.empty = list(state["bins"]), int(state["empty"])
        except (KeyError, TypeError, ValueError) as error:
            raise PlanError(f"a packer's state holds 'bins' and 'empty', got {state!r:.200}") from error
        if len(bins) > open_bins:
            raise PlanError(f"the state has {len(bins)} open rows, more than open_bins={open_bins}")
        packer._bins = [Bin.restore(one, length) for one in bins]
        packer._rooms[: len(bins)] = [length - one.used for one in packer._bins]
        return packer

    def _place(self, piece: Piece) -> list[Bin]:
        if piece.length == self.length:
            return [Bin(self.length, [piece])]
        closed = []
        place = self._fitting(piece.length)
        if place is None:
            if len(self._bins) == self.open_bins:
                closed.append(self._close(int(self._rooms.argmin())))
            place = len(self._bins)
            self._bins.append(Bin(self.length))
            self._rooms[place] = self.length
        self._bins[place].put(piece)
        self._rooms[place] -= piece.length
        if not self._rooms[place]:
            closed.append(self._close(place))
        return closed

    def _fitting(self, tokens: int) -> int | None:
        """Place of the open bin that takes `tokens` more."""
        if not self._bins:
            return None
        rooms = self._rooms[: len(self._bins)]
        if self.strategy == "first_fit":
            place = int((rooms >= tokens).argmax())
        else:
            place = int(
                (rooms - tokens).view(np.uint64).argmin()
            )  # what does not fit wraps to something huge
        return place if rooms[place] >= tokens else None

    def _close(self, place: int) -> Bin:
        closed = self._bins.pop(place)
        left = len(self._bins)
        self._rooms[place:left] = self._rooms[place + 1 : left + 1]
        return closed


def fill(
    bins: Sequence[Bin], sequences: Mapping[Any, Array] | Sequence[Array], out: Array, *, pad: Any = 0
) -> None:
    """Write the tokens of `bins`, or any other value per token (labels, weights), into one array.

    Args:
        bins: one per row.
        sequences: the whole sequence of each item, `[tokens, ...]`, found by `sequences[item]`.
        out: `[len(bins), length, ...]`, overwritten.
        pad: what stands behind the last piece of a row.

    Raises:
        OpError: a sequence has fewer tokens than the packer was told, or rows of another shape.
        TypeError: its elements cannot become those of `out` without losing their kind (float to integer).
        ValueError: `out` is not of this shape.
    """
    _check_rows(bins, out)
    for row, one in zip(out, bins, strict=True):
        at = 0
        for item, offset, length in one.pieces:
            sequence = np.asarray(sequences[item])
            if (
                sequence.ndim != row.ndim
                or sequence.shape[1:] != row.shape[1:]
                or len(sequence) < offset + length
            ):
                wanted = ", ".join(map(str, (f"{offset + length} or more", *row.shape[1:])))
                raise OpError(f"sequence {item!r} has shape {sequence.shape}, it was packed as [{wanted}]")
            np.copyto(row[at : at + length], sequence[offset : offset + length], casting="same_kind")
            at += length
        row[at:] = pad


def fill_segments(bins: Sequence[Bin], segment_ids: NDArray[np.int32], positions: NDArray[np.int32]) -> None:
    """Write which piece each token of `bins` belongs to, and its place in that piece.

    Args:
        bins: one per row.
        segment_ids: int32[len(bins), length], overwritten: 1, 2, ... per piece of a row, 0 for padding.
        positions: int32[len(bins), length], overwritten: 0, 1, ... in each piece, 0 for padding. The pieces of a split
            sequence start at 0 as well: a row's tokens cannot attend to those of another row.

    Raises:
        ValueError: an array is not of this shape.
    """
    _check_rows(bins, segment_ids)
    _check_rows(bins, positions)
    steps = np.arange(max((one.length for one in bins), default=0), dtype=np.int32)
    for ids, places, one in zip(segment_ids, positions, bins, strict=True):
        at = 0
        for number, piece in enumerate(one.pieces, 1):
            ids[at : at + piece.length] = number
            places[at : at + piece.length] = steps[: piece.length]
            at += piece.length
        ids[at:] = 0
        places[at:] = 0


def _check_rows(bins: Sequence[Bin], out: Array) -> None:
    if out.shape[:1] != (len(bins),) or any(out.shape[1:2] != (one.length,) for one in bins):
        lengths = sorted({one.length for one in bins})
        raise ValueError(f"{len(bins)} rows of length {lengths} do not fit an array of shape {out.shape}")
