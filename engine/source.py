"""What a plan scans: rows one by one, rows by number, or Arrow record batches that take projection and predicates.

A source is read in passes. A `Pass` names one (its epoch, and the seed that random orders are drawn from), and the same
pass always gives the same records in the same order, so that a position in it is enough to continue.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from .expr import Cond

if TYPE_CHECKING:
    import numpy as np
    import polars as pl
    import pyarrow as pa
    from numpy.typing import NDArray

    from .streams import Stream


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass over a source.

    Attributes:
        epoch: number of the pass; a shuffled source has another order in each.
        seed: of the run, for sources that were given no seed of their own.
    """

    epoch: int = 0
    seed: int = 0


FIRST_PASS = Pass()


class Source(ABC):
    """Something that can be read once per epoch. Compared by identity."""

    @abstractmethod
    def describe(self) -> str:
        """One line for `explain()`, without memory addresses."""

    @abstractmethod
    def length(self) -> int | None:
        """Number of records, None when unknown before reading."""

    def order_identity(self) -> Any:
        """What the order depends on, such as the number of records that are shuffled; None when on nothing.

        A JSON value. A checkpoint fits only a source with an equal one.
        """
        return None


class RowSource(Source):
    """Yields Python records."""

    @abstractmethod
    def stream(self, pass_: Pass, state: Any = None) -> Stream:
        """The records of one pass: all of them, or those after `state`, which an earlier stream of this pass gave."""

    def rows(self, pass_: Pass = FIRST_PASS) -> Iterator[Any]:
        """The records of one pass, one by one."""
        return self.stream(pass_).records()


class IterableSource(RowSource):
    """Yields Python records that come in their own order only; continuing means to iterate again and skip."""

    @abstractmethod
    def iterate(self, pass_: Pass) -> Iterator[Any]:
        """A fresh iterator over the records of one pass."""

    def stream(self, pass_: Pass, state: Any = None) -> Stream:
        from .streams import IteratorStream

        return IteratorStream(lambda: self.iterate(pass_), int(state or 0))


class IndexedSource(RowSource):
    """Yields Python records that can be fetched by position, in any order; continuing costs nothing."""

    @abstractmethod
    def length(self) -> int | None:
        """Number of records, None when they have no end."""

    @abstractmethod
    def at(self, positions: Sequence[int], pass_: Pass) -> list[Any]:
        """The records at these positions of the pass, each in [0, length): a list of int, or a range."""

    def stream(self, pass_: Pass, state: Any = None) -> Stream:
        from .streams import IndexedStream

        return IndexedStream(self, pass_, state)


class ColumnarSource(Source):
    """Yields Arrow record batches; rows never become Python objects unless a Python map asks for them."""

    @abstractmethod
    def schema(self) -> pa.Schema:
        """All columns before projection."""

    @abstractmethod
    def record_batches(
        self,
        *,
        columns: tuple[str, ...] | None,
        predicate: Cond | None,
        limit: int | None,
        offset: int = 0,
        pass_: Pass = FIRST_PASS,
    ) -> Iterator[pa.RecordBatch]:
        """A fresh iterator over one epoch: rows that satisfy `predicate`, then `offset` skipped and `limit` kept,
        with only `columns` (None: all) and in that order. Row order is the source's."""

    def lazy_frame(self, *, predicate: Cond | None = None, pass_: Pass = FIRST_PASS) -> pl.LazyFrame:
        """The rows that satisfy `predicate` as a Polars query, whose projection, conditions and row limit reach the source.

        This one scans `record_batches`. A source whose columns cost differently, or that Polars reads itself, has its own.
        """
        from .relational import scanned

        return scanned(self, predicate, pass_)

    def row_groups(self, groups: Sequence[int]) -> ColumnarSource | None:
        """The same columns of these row groups only, ascending; None where there are none. IndexError: one that is not there."""
        return None

    def take(self, rows: Sequence[int], columns: tuple[str, ...] | None) -> pa.RecordBatch | None:
        """These rows by number, or None when the source cannot be indexed."""
        return None

    def group_starts(self) -> NDArray[np.int64] | None:
        """Where taking one row costs as much as taking all of its group: number of the first row of each group, then the number of rows.
        None where rows cost the same wherever they lie."""
        return None

    def check(self) -> None:
        """Asked before each pass.

        Raises:
            SourceError: the source is not what it was when it was first read; the message names the file.
        """


class RangeReader(Protocol):
    """An open source of bytes that is read in parts; what a decoder with `reads="ranges"` gets.

    Attributes:
        size: bytes in all.
        identity: equal for readers of the same, unchanged content (path, size, modification time), so that what was
            learnt from a header may be kept; None when nothing may be kept.
    """

    size: int
    identity: Hashable | None

    def read(self, offset: int, length: int) -> bytes | bytearray | memoryview:
        """Exactly `length` bytes from `offset`; an OSError when the content ends early."""

    def read_into(self, offset: int, out: memoryview) -> None:
        """Fill `out`, a writable buffer of bytes; an OSError when the content ends early."""

    def close(self) -> None:
        """Give back what the reader holds."""
