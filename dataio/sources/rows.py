"""Python objects as the engine's row sources: lists, map-style data sets, iterables, functions, arrays."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

import numpy as np

from dataio.engine.source import IndexedSource, IterableSource, Pass, RowSource


def rows_of(found: Any, what: str, title: str | None = None) -> RowSource:
    """The records of something that can be iterated again and again; by position where it is indexed.

    Raises:
        TypeError: it is a path, a table, a one-pass iterator, or not iterable.
    """
    checked = reiterable(found, what)
    return SequenceRows(checked, title) if is_indexed(checked) else IterableRows(checked, title)


def is_indexed(found: Any) -> bool:
    """Whether `found[0]` to `found[len(found) - 1]` are its records, in order."""
    if isinstance(found, Sequence) or hasattr(found, "iloc"):
        return True
    # Sets have no order; mappings and the like are indexed by key; PyTorch's iterable data sets inherit a `__getitem__`.
    if isinstance(found, (Mapping, Set)) or hasattr(found, "keys"):
        return False
    if any(base.__name__ == "IterableDataset" for base in type(found).__mro__):
        return False
    return hasattr(found, "__getitem__") and length_of(found) is not None


class SequenceRows(IndexedSource):
    """Records by number: a list, or a map-style data set."""

    def __init__(self, records: Any, title: str | None = None) -> None:
        self._records, self._title = records, title or type(records).__name__

    def describe(self) -> str:
        return f"{self._title}: {self.length()} records"

    def length(self) -> int:
        return len(self._records)

    def at(self, positions: Sequence[int], pass_: Pass) -> list[Any]:
        records = self._records
        if type(records) in (list, tuple, range) and isinstance(positions, range) and positions.step > 0:
            return list(records[positions.start : positions.stop : positions.step])
        if hasattr(records, "iloc"):  # pandas: an index by label would win
            records = records.iloc
        return [records[i] for i in positions]


class IterableRows(IterableSource):
    """A set, mapping (its keys) or any other re-iterable."""

    def __init__(self, records: Iterable[Any], title: str | None = None) -> None:
        self._records, self._title = records, title or type(records).__name__

    def describe(self) -> str:
        length = self.length()
        return f"{self._title}: {'?' if length is None else length} records"

    def length(self) -> int | None:
        return length_of(self._records)

    def iterate(self, pass_: Pass) -> Iterator[Any]:
        return iter(self._records)


class OnePassRows(IterableSource):
    """Serves its records once; a later pass is empty."""

    def __init__(self, start: Callable[[], Iterator[Any]], title: str) -> None:
        self._start: Callable[[], Iterator[Any]] | None = start
        self._title = title

    def describe(self) -> str:
        return f"{self._title}: ? records, one pass"

    def length(self) -> None:
        return None

    def iterate(self, pass_: Pass) -> Iterator[Any]:
        start, self._start = self._start, None
        return iter(()) if start is None else start()


class ArrayRows(IndexedSource):
    """A NumPy array: one record per index of the first axis, a view whose raw bytes are the slot's."""

    def __init__(self, array: np.ndarray) -> None:
        if array.ndim == 0:
            raise TypeError(
                "bind takes an array with at least one axis, one record per index of the first; got a scalar"
            )
        self._array = array

    def describe(self) -> str:
        return f"numpy array: {self._array.dtype}{list(self._array.shape)}"

    def length(self) -> int:
        return len(self._array)

    def at(self, positions: Sequence[int], pass_: Pass) -> list[Any]:
        if self._array.dtype.kind in "OUS":  # paths and other Python values
            return [self._array[index] for index in positions]
        return [self._array[index, ...] for index in positions]


class FactoryRows(IterableSource):
    """A function without arguments that returns the records of one epoch."""

    def __init__(self, factory: Callable[[], Any]) -> None:
        self._factory = factory

    def describe(self) -> str:
        return f"factory {getattr(self._factory, '__qualname__', type(self._factory).__name__)}"

    def length(self) -> None:
        return None

    def iterate(self, pass_: Pass) -> Iterator[Any]:
        made = self._factory()
        if isinstance(made, (str, bytes)) or not isinstance(made, Iterable):
            raise TypeError(
                f"{self.describe()} must return an iterable of records, got {type(made).__name__}"
            )
        return iter(made)


class FrameRows(IterableSource):
    """A frame with Python objects in it, which Arrow cannot hold: rows as dicts by column name."""

    def __init__(self, frame: Any, rows: Callable[[], Iterator[dict[str, Any]]]) -> None:
        self._frame, self._rows = frame, rows

    def describe(self) -> str:
        return f"{type(self._frame).__name__} with Python objects: {len(self._frame)} rows"

    def length(self) -> int:
        return len(self._frame)

    def iterate(self, pass_: Pass) -> Iterator[Any]:
        return self._rows()


def reiterable(found: Any, what: str) -> Iterable[Any]:
    """`found` when it can be iterated again and again, or indexed from 0 to its length.

    Raises:
        TypeError: it is a path, a table, a one-pass iterator, or not iterable.
    """
    if isinstance(found, (str, bytes, bytearray, memoryview, os.PathLike)):
        raise TypeError(
            f"{what} takes an iterable of records, got {type(found).__name__} {_short(found)}: one path is no record "
            "source; pass a list of paths, or use dataio.files(...)"
        )
    if isinstance(found, Iterator):
        raise TypeError(
            f"{what} takes something that can be iterated once per epoch, got the one-pass {type(found).__name__}; "
            "pass a list, or a zero-argument factory to bind: bind(lambda: make_records())"
        )
    if hasattr(found, "columns") and (
        hasattr(found, "__arrow_c_stream__") or hasattr(found, "__arrow_c_array__")
    ):
        raise TypeError(
            f"{what} takes an iterable of records, got the table {type(found).__name__}; give it to bind as it is"
        )
    if isinstance(found, Iterable):
        return found
    if hasattr(found, "__getitem__") and hasattr(found, "__len__"):
        indexed: Iterable[Any] = found
        return indexed
    raise TypeError(f"{what} takes an iterable of records, got {type(found).__name__} {_short(found)}")


def length_of(found: Any) -> int | None:
    """`len(found)`, or None when it has none."""
    try:
        return len(found)
    except TypeError:
        return None


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
