"""Shuffled sources: every order is a function of (seed, epoch, position), so nothing is stored and any position can be
continued from.

    full      the records of an indexed source, permuted
    block     runs of neighbouring records keep together: the blocks are permuted, then the records inside each window
              of some blocks, so that a window reads few places
    window    consecutive windows, each permuted: what a source without positions can have
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from .errors import InternalError, SourceError
from .permutation import Permutation, Positions, checked_positions
from .source import FIRST_PASS, ColumnarSource, IndexedSource, Pass, RowSource
from .streams import WHOLE, Chunk, Stream

if TYPE_CHECKING:
    import pyarrow as pa

    from .expr import Cond

BLOCKS_PER_WINDOW = 4
"""Blocks whose records are shuffled among each other."""
_ROWS, _LARGE_ROWS = 8192, 256  # per batch of a shuffled table: few where a row may be an image, since rows are copied

_SMALL = 1 << 16  # numbers of an order that is kept as an array

T = TypeVar("T")


class Recent(Generic[T]):
    """The last few values that were made, by key. They are left out when it is pickled. Threads may share it."""

    def __init__(self, size: int = 8) -> None:
        self._size = size
        self._found: dict[Hashable, T] = {}
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The value of `key`, made by `make` if it is not here."""
        with self._lock:
            if key in self._found:
                self._found[key] = found = self._found.pop(key)  # now the last to be dropped
                return found
        made = make()
        with self._lock:
            self._found[key] = made
            if len(self._found) > self._size:
                del self._found[next(iter(self._found))]
        return made

    def __reduce__(self) -> tuple[type[Recent[T]], tuple[int]]:
        return type(self), (self._size,)


class Numbers(Protocol):
    """An order of the numbers 0 to n - 1."""

    def at(self, positions: Positions, /) -> NDArray[np.int64]:
        """The numbers at these positions, int64[n]."""


@dataclass(frozen=True, slots=True)
class Order:
    """How a source is shuffled.

    Attributes:
        seed: of the order; None takes the pass's.
        block: records that stay together, None shuffles without regard to where records lie.
        window: records that are shuffled among each other, None for all (with `block`: `BLOCKS_PER_WINDOW` blocks).
    """

    seed: int | None = None
    block: int | None = None
    window: int | None = None

    def key(self, pass_: Pass) -> tuple[int, int]:
        """What the order of a pass follows from."""
        return (pass_.seed if self.seed is None else self.seed, pass_.epoch)

    def numbers(self, length: int, pass_: Pass) -> Numbers:
        """The order of `length` records in one pass."""
        key = self.key(pass_)
        if self.block is None and self.window is None:
            return Permutation(length, *key)
        blocks = None if self.block is None else _Blocks(length, self.block, key)
        return _Windows(length, self.window_size or length, key, blocks)

    @property
    def window_size(self) -> int | None:
        """Positions that are shuffled among each other, None for all."""
        return self.window if self.window is not None or self.block is None else BLOCKS_PER_WINDOW * self.block

    def describe(self) -> dict[str, int | None]:
        """The settings that are in use."""
        found = {"seed": self.seed, "block": self.block, "buffer": self.window}
        return {name: value for name, value in found.items() if name == "seed" or value is not None}

    def __str__(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self.describe().items())


class _Blocks:
    """Whole blocks in permuted order; what is left over at the end of the numbers comes at a place of its own."""

    def __init__(self, length: int, size: int, key: tuple[int, ...]) -> None:
        self._size = size
        self._left = length % size
        blocks = length // size
        self._blocks = _worked_out(Permutation(blocks, *key))
        self._left_from = Permutation(blocks + 1, *key, 0, 0)[0] * size
        self._end = blocks * size  # number of the first record that is left over

    def at(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        left_to = self._left_from + self._left
        after = positions >= left_to
        places, inside = np.divmod(np.where(after, positions - self._left, positions), self._size)
        between = (positions >= self._left_from) & ~after
        places[between] = 0
        found = (_numbers(self._blocks, places) * self._size + inside) if self._end else np.empty_like(positions)
        found[between] = self._end + positions[between] - self._left_from
        return found


class _Groups:
    """Groups of rows in permuted order, and the rows of each `BLOCKS_PER_WINDOW` groups that come to stand together permuted: a window reads
    few groups, each once."""

    def __init__(self, starts: NDArray[np.int64], key: tuple[int, ...]) -> None:
        self._key = key
        self._length = int(starts[-1])
        groups = Permutation(len(starts) - 1, *key).at(range(len(starts) - 1))
        self._firsts = starts[groups]
        self._places = np.cumsum([0, *np.diff(starts)[groups]], dtype=np.int64)
        self._windows = np.unique([*self._places[::BLOCKS_PER_WINDOW], self._length])
        self._recent: Recent[Permutation | NDArray[np.int64]] = Recent()

    def at(self, positions: Positions) -> NDArray[np.int64]:
        checked = checked_positions(positions, self._length)
        given = np.arange(checked.start, checked.stop) if isinstance(checked, range) else checked
        places = np.empty(len(given), np.int64)
        for window, rows in grouped(np.searchsorted(self._windows, given, side="right") - 1):
            first = self._windows[window]
            places[rows] = first + _numbers(self._order(window), given[rows] - first)
        owners = np.searchsorted(self._places, places, side="right") - 1
        found: NDArray[np.int64] = self._firsts[owners] + places - self._places[owners]
        return found

    def _order(self, window: int) -> Permutation | NDArray[np.int64]:
        size = int(self._windows[window + 1] - self._windows[window])
        return self._recent.get(window, lambda: _worked_out(Permutation(size, *self._key, window)))


class _Windows:
    """Consecutive windows of the numbers, or of an order of them, each permuted."""

    def __init__(self, length: int, size: int, key: tuple[int, ...], below: _Blocks | None) -> None:
        self._length, self._size, self._key, self._below = length, size, key, below
        self._recent: Recent[Permutation | NDArray[np.int64]] = Recent()

    def at(self, positions: Positions) -> NDArray[np.int64]:
        checked = checked_positions(positions, self._length)
        found = np.empty(len(checked), np.int64)
        if isinstance(checked, range):
            for window in range(checked.start // self._size, -(-checked.stop // self._size)):
                start = window * self._size
                first, stop = max(checked.start, start), min(checked.stop, start + self._size)
                order = self._order(window)
                inside = range(first - start, stop - start)
                found[first - checked.start : stop - checked.start] = start + _numbers(order, inside)
        else:
            windows, places = np.divmod(checked, self._size)
            for window, rows in grouped(windows):
                found[rows] = window * self._size + _numbers(self._order(window), places[rows])
        return found if self._below is None else self._below.at(found)

    def _order(self, window: int) -> Permutation | NDArray[np.int64]:
        """The order inside a window."""
        size = min(self._size, self._length - window * self._size)
        return self._recent.get(window, lambda: _worked_out(Permutation(size, *self._key, window)))


def _worked_out(order: Permutation) -> Permutation | NDArray[np.int64]:
    """A small order as an array: looking up single numbers of it again and again costs less."""
    return order.at(range(len(order))) if len(order) <= _SMALL else order


def _numbers(order: Permutation | NDArray[np.int64], positions: Positions) -> NDArray[np.int64]:
    if isinstance(order, Permutation):
        return order.at(positions)
    if isinstance(positions, range):
        return order[positions.start : positions.stop]
    found: NDArray[np.int64] = order[np.asarray(positions)]
    return found


def grouped(labels: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.intp]]]:
    """(label, its places in ascending order) for each label there is."""
    order = np.argsort(labels, kind="stable")
    if len(order):
        ends = np.flatnonzero(np.diff(labels[order])) + 1
        for group in np.split(order, ends):
            yield int(labels[group[0]]), group


class ShuffledRows(IndexedSource):
    """An indexed source in another order in each pass, in constant memory."""

    def __init__(self, below: IndexedSource, order: Order) -> None:
        self.below, self.order = below, order
        self._recent: Recent[Numbers] = Recent()

    def describe(self) -> str:
        return f"shuffle({self.order}) of {self.below.describe()}"

    def length(self) -> int:
        return sized(self.below)

    def order_identity(self) -> Any:
        inner = self.below.order_identity()
        own = f"{self.length()} records, shuffle({self.order})"
        return own if inner is None else [own, inner]

    def at(self, positions: Sequence[int], pass_: Pass) -> list[Any]:
        length = self.length()
        numbers = self._recent.get((length, pass_), lambda: self.order.numbers(length, pass_))
        return self.below.at(numbers.at(positions).tolist(), pass_)


def sized(source: IndexedSource) -> int:
    """The length of a source that is known to end."""
    length = source.length()
    if length is None:
        raise InternalError(f"{source.describe()} has no end")
    return length


class WindowedRows(RowSource):
    """A source that comes in its own order, window by window in another order in each pass."""

    def __init__(self, below: RowSource, order: Order) -> None:
        if order.window is None:
            raise InternalError("records without positions are shuffled in windows")
        self.below, self.order, self.window = below, order, order.window

    def describe(self) -> str:
        return f"shuffle({self.order}) of {self.below.describe()}"

    def length(self) -> int | None:
        return self.below.length()

    def stream(self, pass_: Pass, state: Any = None) -> Stream:
        return WindowStream(self, pass_, state)


class WindowStream(Stream):
    """Holds one window; its state is that of the stream below before the window, and the position."""

    def __init__(self, source: WindowedRows, pass_: Pass, state: Any) -> None:
        self._below = source.below.stream(pass_, None if state is None else state["at"])
        self._size, self._key = source.window, source.order.key(pass_)
        self.position = 0 if state is None else int(state["position"])
        self._before = self._below.state()
        self._ready: list[Any] = []  # last first
        self._skip = self.position % self._size
        self._ended = False
        self._error: SourceError | None = None

    def read(self, count: int, part: slice = WHOLE) -> Chunk:
        found: list[Any] = []
        while len(found) < count:
            if not self._ready:
                if self._ended:
                    break
                self._refill((self.position + len(found)) // self._size)
            taken = self._ready[: -(count - len(found)) - 1 : -1]
            if taken:
                del self._ready[-len(taken) :]
                found += taken
        self.position += len(found)
        return Chunk(len(found), found[part], error=self._error if len(found) < count else None)

    def _refill(self, window: int) -> None:
        self._before = self._below.state()
        chunk = self._below.read(self._size)
        self._error, self._ended = chunk.error, chunk.count < self._size
        # The order of a window depends on how many records it has: one that an error cut short waits for the resume.
        rows = chunk.as_rows() if chunk.error is None else []
        order = Permutation(len(rows), *self._key, window).at(range(len(rows))).tolist()
        self._ready = [rows[number] for number in reversed(order[self._skip :])]
        self._skip = 0

    def state(self) -> Any:
        inside = self.position % self._size or self._error is not None
        return {"at": self._before if inside else self._below.state(), "position": self.position}

    def held(self) -> int:
        return len(self._ready) + self._below.held()

    def close(self) -> None:
        self._ready, self._ended = [], True
        self._below.close()


class ShuffledColumns(ColumnarSource):
    """A columnar source whose rows can be fetched by number, in another order in each pass; it stays columns."""

    def __init__(self, below: ColumnarSource, order: Order) -> None:
        self.below, self.order = below, order
        self._recent: Recent[Numbers] = Recent()

    def describe(self) -> str:
        return f"shuffle({self.order}) of {self.below.describe()}"

    def length(self) -> int:
        length = self.below.length()
        if length is None:
            raise InternalError(f"{self.below.describe()} has no known length")
        return length

    def order_identity(self) -> Any:
        inner, groups = self.below.order_identity(), self._groups()
        where = "" if groups is None else f" in {len(groups) - 1} row groups"
        own = f"{self.length()} records{where}, shuffle({self.order})"
        return own if inner is None else [own, inner]

    def check(self) -> None:
        self.below.check()

    def schema(self) -> pa.Schema:
        return self.below.schema()

    def record_batches(
        self,
        *,
        columns: tuple[str, ...] | None,
        predicate: Cond | None,
        limit: int | None,
        offset: int = 0,
        pass_: Pass = FIRST_PASS,
    ) -> Iterator[pa.RecordBatch]:
        from .relational import batch_query, check_columns, needed

        check_columns(self.schema().names, columns, predicate)
        if predicate is not None:
            rows = self._rows(tuple(needed(columns, predicate) or self.schema().names), 0, self.length(), pass_)
            return batch_query(rows, columns, predicate, offset, limit)
        stop = self.length() if limit is None else min(self.length(), offset + limit)
        return self._rows(columns, offset, stop, pass_)

    def _rows(
        self, columns: tuple[str, ...] | None, start: int, stop: int, pass_: Pass
    ) -> Iterator[pa.RecordBatch]:
        schema = self.schema()
        read = schema if columns is None else [schema.field(name) for name in columns]
        step = _LARGE_ROWS if any(is_large(field.type) for field in read) else _ROWS
        window = self.order.window_size or step
        # Batches end where a window does, so that no batch needs the places of two of them when one fills it.
        align = step // window * window if window < step else window
        while start < stop:
            end = min(start + step, (start // align + 1) * align, stop)
            batch = self._take(range(start, end), columns, pass_)
            if batch is None:
                raise InternalError(f"{self.below.describe()} cannot be read by row number")
            yield batch
            start = end

    def take(self, rows: Sequence[int], columns: tuple[str, ...] | None) -> None:
        """Not offered: which row has a number depends on the pass."""
        return None

    def _take(self, rows: Sequence[int], columns: tuple[str, ...] | None, pass_: Pass) -> pa.RecordBatch | None:
        numbers = self._recent.get((self.length(), pass_), lambda: self._numbers(pass_))
        return self.below.take(numbers.at(rows).tolist(), columns)

    def _numbers(self, pass_: Pass) -> Numbers:
        groups = self._groups()
        return self.order.numbers(self.length(), pass_) if groups is None else _Groups(groups, self.order.key(pass_))

    def _groups(self) -> NDArray[np.int64] | None:
        """Where a full shuffle has to keep rows together that are read together."""
        return self.below.group_starts() if self.order.block is None and self.order.window is None else None

    def rows_at(self, positions: Sequence[int], pass_: Pass) -> list[Any]:
        """The rows at these positions of the pass, as dicts."""
        batch = self._take(positions, None, pass_)
        return [] if batch is None else batch.to_pylist()


def is_large(kind: pa.DataType) -> bool:
    """Whether values of this type may be whole files or arrays."""
    import pyarrow as pa

    test = pa.types
    return bool(
        test.is_nested(kind)
        or test.is_binary(kind)
        or test.is_large_binary(kind)
        or isinstance(kind, pa.BaseExtensionType)
    )
