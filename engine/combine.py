"""Sources made of sources: mapped, filtered, expanded, repeated, or one after another.

Where every part can be read by position so can the whole, and a position is all that a checkpoint needs. Otherwise the
whole is a stream whose state holds the states of its parts.
"""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from .custom import record_caller
from .errors import SourceError
from .explain import function_name
from .plan import Scan
from .shuffle import Recent, ShuffledColumns, grouped
from .source import ColumnarSource, IndexedSource, Pass, RowSource, Source
from .streams import (
    WHOLE,
    Chunk,
    ColumnStream,
    FilterStream,
    FlatMapStream,
    MapStream,
    Stream,
    apply_map,
    below_state,
)

_ENDLESS = 1 << 32
"""Epochs between two passes of a source that is repeated without end."""
_AHEAD = 256
"""Rows of a columnar source that become Python objects at a time."""


# ------------------------------------------------------------------------------------------------ columns as rows


def as_rows(source: Source) -> RowSource:
    """The records of a source one by one: rows of columns as dicts."""
    if isinstance(source, RowSource):
        return source
    if not isinstance(source, ColumnarSource):
        raise TypeError(f"{source.describe()} has neither records nor columns")
    if isinstance(source, ShuffledColumns) or is_addressable(source):
        return IndexedColumnRows(source)
    return ColumnRows(source)


def is_addressable(source: ColumnarSource) -> bool:
    """Whether rows can be fetched by number, each about as fast as the next."""
    return source.length() is not None and source.take((), None) is not None


class IndexedColumnRows(IndexedSource):
    """The rows of a columnar source that can be read by row number."""

    def __init__(self, below: ColumnarSource) -> None:
        self.below = below

    def describe(self) -> str:
        return f"rows of {self.below.describe()}"

    def length(self) -> int | None:
        return self.below.length()

    def order_identity(self) -> Any:
        return self.below.order_identity()

    def at(self, positions: Sequence[int], pass_: Pass) -> list[Any]:
        if isinstance(self.below, ShuffledColumns):
            return self.below.rows_at(positions, pass_)
        batch = self.below.take(positions, None)
        return [] if batch is None else batch.to_pylist()


class ColumnRows(RowSource):
    """The rows of a columnar source that comes in its own order only."""

    def __init__(self, below: ColumnarSource) -> None:
        self.below = below

    def describe(self) -> str:
        return f"rows of {self.below.describe()}"

    def length(self) -> int | None:
        return self.below.length()

    def stream(self, pass_: Pass, state: Any = None) -> Stream:
        return ColumnRowStream(ColumnStream(Scan(self.below), pass_, state))


class ColumnRowStream(Stream):
    """Makes rows of some hundred at a time; its state is the position."""

    def __init__(self, below: ColumnStream) -> None:
        self._below = below
        self._ready: list[Any] = []  # last first
        self._chunk = Chunk(0)

    @property
    def position(self) -> int:  # type: ignore[override]
        return self._below.position - len(self._ready)

    def read(self, count: int, part: slice = WHOLE) -> Chunk:
        found: list[Any] = []
        error: SourceError | None = None
        while len(found) < count:
            if not self._ready:
                chunk = self._below.read(_AHEAD)
                self._ready = [] if chunk.batch is None else chunk.batch.to_pylist()[::-1]
                error = chunk.error
                if not self._ready:
                    break
            taken = self._ready[: -(count - len(found)) - 1 : -1]
            del self._ready[-len(taken) :]
            found += taken
        return Chunk(len(found), found[part], error=error if len(found) < count else None)

    def state(self) -> int:
        return self.position

    def held(self) -> int:
        return len(self._ready) + self._below.held()

    def close(self) -> None:
        self._ready = []
        self._below.close()


# ------------------------------------------------------------------------------------------- functions of a record


class MappedRows(RowSource):
    """Each record replaced by a function of it; one that the function raises for becomes a `BadRecord`."""

    def __init__(self, below: RowSource, function: Callable[[Any], Any]) -> None:
        self.below, self.function = below, function

    def describe(self) -> str:
        return f"map({function_name(self.function)}) of {self.below.describe()}"

    def length(self) -> int | None:
        return self.below.length()

    def order_identity(self) -> Any:
        return self.below.order_identity()

    def stream(self, pass_: Pass, state: Any = None) -> Stream:
        return MapStream(self.below.stream(pass_, state), self.function, pass_)


class IndexedMappedRows(MappedRows, IndexedSource):
    """The same of an indexed source."""

    below: IndexedSource

    def __init__(self, below: IndexedSource, function: Callable[[Any], Any]) -> None:
        super().__init__(below, function)
        self._recent: Recent[Callable[[Any, int], Any]] = Recent()

    def at(self, positions: Sequence[int], pass_: Pass) -> list[Any]:
        name = function_name(self.function)
        call = self._recent.get(pass_, lambda: record_caller(self.function, pass_.seed, pass_.epoch))
        rows = self.below.at(positions, pass_)
        return [apply_map(call, row, name, position) for row, position in zip(rows, positions, strict=True)]


def mapped(source: RowSource, function: Callable[[Any], Any]) -> RowSource:
    """`function` of each record."""
    return (IndexedMappedRows if isinstance(source, IndexedSource) else MappedRows)(source, function)  # type: ignore[arg-type]


class FilteredRows(RowSource):
    """The records for which a function is true."""

    def __init__(self, below: RowSource, function: Callable[[Any], Any]) -> None:
        self.below, self.function = below, function

    def describe(self) -> str:
        return f"filter({function_name(self.function)}) of {self.below.describe()}"

    def length(self) -> None:
        return None

    def stream(self, pass_: Pass, state: Any = None) -> Stream:
        return FilterStream(self.below.stream(pass_, below_state(state)), self.function, pass_, state)


class FlatMappedRows(FilteredRows):
    """Each record replaced by the records that a function gives for it."""

    def describe(self) -> str:
        return f"flat_map({function_name(self.function)}) of {self.below.describe()}"

    def stream(self, pass_: Pass, state: Any = None) -> Stream:
        return FlatMapStream(self.below.stream(pass_, below_state(state)), self.function, pass_, state)


class CollectedRows(IndexedSource):
    """A source of known length that comes in its own order only, such as a set, listed once per pass."""

    def __init__(self, below: RowSource) -> None:
        self.below = below
        self._recent: Recent[list[Any]] = Recent(1)

    def describe(self) -> str:
        return self.below.describe()

    def length(self) -> int:
        return self.below.length() or 0

    def at(self, positions: Sequence[int], pass_: Pass) -> list[Any]:
        rows = self._recent.get(pass_, lambda: list(self.below.rows(pass_)))
        return [rows[position] for position in positions]


# ------------------------------------------------------------------------------------------- one after another


class ChainedRows(RowSource):
    """Base of sources that read one stream to its end, then the next."""

    endless = False
    """Whether streams follow each other for ever, so that an empty one is an error."""

    def stream(self, pass_: Pass, state: Any = None) -> Stream:
        return ChainStream(partial(self.open, pass_), state, endless=self.endless)

    @abstractmethod
    def open(self, pass_: Pass, number: int, state: Any) -> Stream | None:
        """The stream with this number, None behind the last."""


class ChainStream(Stream):
    """Its state names the stream being read and holds that stream's."""

    def __init__(self, follow: Callable[[int, Any], Stream | None], state: Any, *, endless: bool) -> None:
        self._follow, self._endless = follow, endless
        if state is None:
            state = {"part": 0, "at": None, "position": 0}
        self._number, self.position = int(state["part"]), int(state["position"])
        self._current = follow(self._number, state["at"])

    def read(self, count: int, part: slice = WHOLE) -> Chunk:
        found: list[Any] = []
        error: SourceError | None = None
        while self._current is not None and len(found) < count and error is None:
            wanted = count - len(found)
            chunk = self._current.read(wanted)
            found += chunk.as_rows()
            error = chunk.error
            if chunk.count < wanted and error is None:
                error = self._next()
        self.position += len(found)
        return Chunk(len(found), found[part], error=error)

    def _next(self) -> SourceError | None:
        if self._current is not None:
            if self._endless and not self._current.position:
                text = f"repeat() got no records in repetition {self._number}: give it a source that is not empty"
                return SourceError(f"{text} and can be read more than once", after=self.position)
            self._current.close()
        self._number += 1
        self._current = self._follow(self._number, None)
        return None

    def state(self) -> Any:
        at = None if self._current is None else self._current.state()
        return {"part": self._number, "at": at, "position": self.position}

    def held(self) -> int:
        return 0 if self._current is None else self._current.held()

    def close(self) -> None:
        if self._current is not None:
            self._current.close()
        self._current = None


def scattered(count: int, groups: Iterator[tuple[Sequence[int] | slice, list[Any]]]) -> list[Any]:
    """A list of `count` records put together from groups of them with their places."""
    found: list[Any] = [None] * count
    for places, rows in groups:
        if isinstance(places, slice):
            found[places] = rows
        else:
            for place, row in zip(places, rows, strict=True):
                found[place] = row
    return found


def listed(texts: Sequence[str]) -> str:
    """The first few of several texts and how many more there are."""
    more = len(texts) - 4
    return ", ".join([*texts[:4], f"{more} more"] if more > 0 else texts)


class ConcatRows(ChainedRows):
    """Sources one after another."""

    def __init__(self, parts: Sequence[RowSource]) -> None:
        self.parts = tuple(parts)

    def describe(self) -> str:
        return f"concat of {listed([part.describe() for part in self.parts])}"

    def length(self) -> int | None:
        lengths = [part.length() for part in self.parts]
        return None if None in lengths else sum(filter(None, lengths))

    def open(self, pass_: Pass, number: int, state: Any) -> Stream | None:
        return self.parts[number].stream(pass_, state) if number < len(self.parts) else None


class IndexedConcatRows(IndexedSource):
    """The same of indexed sources, of which only the last may be without end."""

    def __init__(self, parts: Sequence[IndexedSource]) -> None:
        self.parts = tuple(parts)

    describe = ConcatRows.describe
    length = ConcatRows.length

    def order_identity(self) -> Any:
        """The lengths before the last part: records that are added to the end change nothing."""
        return [*(part.length() for part in self.parts[:-1]), *(part.order_identity() for part in self.parts)]

    def at(self, positions: Sequence[int], pass_: Pass) -> list[Any]:
        starts = list(itertools.accumulate((part.length() or 0 for part in self.parts[:-1]), initial=0))
        if isinstance(positions, range) and positions.step == 1:
            ends = [*starts[1:], positions.stop]
            pieces = (
                (part, range(max(positions.start, start) - start, min(positions.stop, end) - start))
                for part, start, end in zip(self.parts, starts, ends, strict=True)
            )
            return [row for part, piece in pieces if piece for row in part.at(piece, pass_)]
        array = np.asarray(positions, np.int64)
        owners = np.searchsorted(starts, array, side="right") - 1
        return scattered(
            len(array),
            (
                (places.tolist(), self.parts[owner].at((array[places] - starts[owner]).tolist(), pass_))
                for owner, places in grouped(owners)
            ),
        )


def concatenated(parts: Sequence[RowSource]) -> RowSource:
    """The records of the first source, then those of the next."""
    indexed = [part for part in parts if isinstance(part, IndexedSource)]
    if len(indexed) == len(parts) and all(part.length() is not None for part in indexed[:-1]):
        return IndexedConcatRows(indexed)
    return ConcatRows(parts)


def repetition(pass_: Pass, count: int | None, number: int) -> Pass:
    """The pass over the source that is the repetition `number` of `count`: no two of any epochs are the same."""
    return Pass(pass_.epoch * (_ENDLESS if count is None else count) + number, pass_.seed)


class RepeatedRows(ChainedRows):
    """A source again and again, each time as in another epoch."""

    def __init__(self, below: RowSource, count: int | None) -> None:
        self.below, self.count, self.endless = below, count, count is None

    def describe(self) -> str:
        return f"repeat({'' if self.count is None else self.count}) of {self.below.describe()}"

    def length(self) -> int | None:
        length = self.below.length()
        return None if length is None or self.count is None else length * self.count

    def open(self, pass_: Pass, number: int, state: Any) -> Stream | None:
        if self.count is not None and number >= self.count:
            return None
        return self.below.stream(repetition(pass_, self.count, number), state)


class IndexedRepeatedRows(IndexedSource):
    """The same of an indexed source that ends."""

    def __init__(self, below: IndexedSource, count: int | None) -> None:
        self.below, self.count = below, count

    describe = RepeatedRows.describe

    def length(self) -> int | None:
        length = self.below.length() or 0
        if self.count is None:
            return None if length else 0
        return length * self.count

    def order_identity(self) -> Any:
        inner = self.below.order_identity()
        return self.below.length() if inner is None else [self.below.length(), inner]

    def at(self, positions: Sequence[int], pass_: Pass) -> list[Any]:
        length = self.below.length() or 1
        if isinstance(positions, range) and positions.step == 1 and positions:
            first, last = positions.start // length, (positions.stop - 1) // length
            return [
                row
                for number in range(first, last + 1)
                for row in self.below.at(
                    range(
                        max(positions.start - number * length, 0), min(positions.stop - number * length, length)
                    ),
                    repetition(pass_, self.count, number),
                )
            ]
        numbers, inside = np.divmod(np.asarray(positions, np.int64), length)
        return scattered(
            len(inside),
            (
                (places.tolist(), self.below.at(inside[places].tolist(), repetition(pass_, self.count, number)))
                for number, places in grouped(numbers)
            ),
        )


def repeated(source: RowSource, count: int | None) -> RowSource:
    """`source` `count` times, None without end."""
    if isinstance(source, IndexedSource) and source.length() is not None:
        return IndexedRepeatedRows(source, count)
    return RepeatedRows(source, count)
