"""`RecordSource`: records to iterate, map, filter and shuffle."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, runtime_checkable

if TYPE_CHECKING:
    from dataio.engine.source import ColumnarSource

Step: TypeAlias = tuple[Literal["map", "filter"], Callable[[Any], Any]]


@runtime_checkable
class Indexed(Protocol):
    """Records that can be fetched one by one, in any order."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


@runtime_checkable
class Tabular(Protocol):
    """Records that are rows of a columnar source."""

    def columnar(self) -> ColumnarSource: ...


class OnePass:
    """Serves its records once; a later iteration is empty."""

    def __init__(self, start: Callable[[], Iterator[Any]]) -> None:
        self._start: Callable[[], Iterator[Any]] | None = start

    def __iter__(self) -> Iterator[Any]:
        start, self._start = self._start, None
        return iter(()) if start is None else start()


class RecordSource:
    """Records, one by one; iterable again and again unless it was made from a one-pass stream.

    Immutable: `map_records`, `filter_records` and `shuffle` return new sources. A source is *sequential* when its
    records only come in their own order; such a source, and any made from it, cannot be shuffled.
    """

    __slots__ = ("_base", "_sequential", "_shuffle", "_steps")

    def __init__(
        self,
        base: Iterable[Any],
        *,
        sequential: bool = False,
        steps: tuple[Step, ...] = (),
        shuffle: tuple[int | None] | None = None,
    ) -> None:
        self._base = base
        self._sequential = sequential or length_of(base) is None
        self._steps = steps
        self._shuffle = shuffle

    @classmethod
    def files(cls, glob: Any, *, recursive: bool = True) -> RecordSource:
        """Same as `dataio.files`."""
        from .files import files

        return files(glob, recursive=recursive)

    @classmethod
    def from_records(cls, records: Iterable[Any], *, sequential: bool = False) -> RecordSource:
        """The records of a re-iterable, such as a list.

        Args:
            records: iterated anew each epoch and not copied; a mapping gives its keys.
            sequential: True refuses `shuffle`, for records whose order matters.

        Raises:
            TypeError: `records` is a path, a table, a one-pass iterator, or not iterable.
        """
        if not isinstance(sequential, bool):
            raise TypeError(f"sequential must be a bool, got {sequential!r}")
        return cls(reiterable(records, "records"), sequential=sequential)

    @classmethod
    def from_manifest(cls, path: str | os.PathLike[str]) -> RecordSource:
        """Same as `dataio.manifest`."""
        from .files import manifest

        return manifest(path)

    def __len__(self) -> int:
        length = None if any(kind == "filter" for kind, _ in self._steps) else length_of(self._base)
        if length is None:
            raise TypeError(
                "this RecordSource has no length before it is iterated; count with sum(1 for _ in source)"
            )
        return length

    def __iter__(self) -> Iterator[Any]:
        return self.iter_records()

    def iter_records(self) -> Iterator[Any]:
        """A fresh iterator over the records."""
        found: Iterator[Any] = iter(self._base) if self._shuffle is None else self._shuffled(*self._shuffle)
        for kind, fn in self._steps:
            found = _mapped(fn, found) if kind == "map" else _filtered(fn, found)
        return found

    def _shuffled(self, seed: int | None) -> Iterator[Any]:
        base = (
            self._base
            if isinstance(self._base, Indexed) and not isinstance(self._base, Mapping)
            else list(self._base)
        )
        order = list(range(len(base)))
        random.Random(seed).shuffle(order)
        return map(base.__getitem__, order)

    def map_records(self, fn: Callable[[Any], Any]) -> RecordSource:
        """`fn(record)` instead of each record, called anew in every iteration."""
        return self._with_step("map", _checked_callable("map_records", fn))

    def filter_records(self, predicate: Callable[[Any], Any]) -> RecordSource:
        """The records for which `predicate(record)` is true.

        A sized source is filtered now: the survivors are kept, in the order of the unshuffled source. A source
        of unknown length is filtered while it is iterated.
        """
        step = self._with_step("filter", _checked_callable("filter_records", predicate))
        if length_of(self) is None:
            return step
        kept = list(RecordSource(self._base, sequential=self._sequential, steps=step._steps))
        return RecordSource(kept, sequential=self._sequential)

    def shuffle(self, *, seed: int | None = None) -> RecordSource:
        """The records in another order: that of `random.Random(seed).shuffle`, or a new one in every iteration.

        Raises:
            TypeError: the source is sequential.
            ValueError: `seed` is neither None nor an integer in [0, 2**64).
        """
        if self._sequential:
            raise TypeError(
                "shuffle needs records that can come in any order, and this source is sequential; "
                "shuffle before it is made, or collect it first: dataio.records(list(source)).shuffle()"
            )
        if seed is not None and (
            isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**64
        ):
            raise ValueError(f"seed must be None or an integer in [0, 2**64), got {seed!r}")
        return RecordSource(self._base, steps=self._steps, shuffle=(seed,))

    def describe(self) -> dict[str, Any]:
        """What the source is made of: number of records and of record maps, shuffle, sequential."""
        return {
            "records": length_of(self),
            "record_maps": sum(kind == "map" for kind, _ in self._steps),
            "shuffle": None if self._shuffle is None else {"seed": self._shuffle[0]},
            "sequential": self._sequential,
        }

    def columnar(self) -> ColumnarSource | None:
        """The columns these records are the rows of; None when they are not, or no longer, whole columns."""
        if self._steps or self._shuffle is not None or not isinstance(self._base, Tabular):
            return None
        return self._base.columnar()

    def _with_step(self, kind: Literal["map", "filter"], fn: Callable[[Any], Any]) -> RecordSource:
        steps: tuple[Step, ...] = (*self._steps, (kind, fn))
        return RecordSource(self._base, sequential=self._sequential, steps=steps, shuffle=self._shuffle)

    def __repr__(self) -> str:
        return f"RecordSource({', '.join(f'{key}={value!r}' for key, value in self.describe().items())})"


def records(records: Iterable[Any]) -> RecordSource:
    """The records of a re-iterable, such as a list; see `RecordSource.from_records`."""
    return RecordSource.from_records(records)


def reiterable(found: Any, what: str) -> Iterable[Any]:
    """`found` when it can be iterated again and again.

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
        return Rows(found)
    raise TypeError(f"{what} takes an iterable of records, got {type(found).__name__} {_short(found)}")


class Rows:
    """A sized object that is indexed by row number but has no iterator, such as a map-style data set."""

    def __init__(self, of: Any) -> None:
        self._of = of

    def __len__(self) -> int:
        return len(self._of)

    def __getitem__(self, index: int) -> Any:
        return self._of[index]

    def __iter__(self) -> Iterator[Any]:
        return (self._of[index] for index in range(len(self._of)))


# Generators, since a StopIteration inside one is an error, where `map` and `filter` would take it for the end.


def _mapped(function: Callable[[Any], Any], records: Iterator[Any]) -> Iterator[Any]:
    for record in records:
        yield function(record)


def _filtered(predicate: Callable[[Any], Any], records: Iterator[Any]) -> Iterator[Any]:
    for record in records:
        if predicate(record):
            yield record


def length_of(found: Any) -> int | None:
    """`len(found)`, or None when it has none."""
    try:
        return len(found)
    except TypeError:
        return None


def _checked_callable(what: str, fn: Any) -> Callable[[Any], Any]:
    if not callable(fn):
        raise TypeError(f"{what} takes a function of one record, got {fn!r}")
    checked: Callable[[Any], Any] = fn
    return checked


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
