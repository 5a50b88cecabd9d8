"""What a plan scans: rows one by one, or Arrow record batches that take projection and predicates."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from .expr import Cond

if TYPE_CHECKING:
    import pyarrow as pa


class Source(ABC):
    """Something that can be iterated once per epoch. Compared by identity."""

    @abstractmethod
    def describe(self) -> str:
        """One line for `explain()`, without memory addresses."""

    @abstractmethod
    def length(self) -> int | None:
        """Number of records, None when unknown before iterating."""


class RowSource(Source):
    """Yields Python records."""

    @abstractmethod
    def rows(self) -> Iterator[Any]:
        """A fresh iterator over the records of one epoch."""


class ColumnarSource(Source):
    """Yields Arrow record batches; rows never become Python objects unless a Python map asks for them."""

    @abstractmethod
    def schema(self) -> pa.Schema:
        """All columns before projection."""

    @abstractmethod
    def record_batches(
        self, *, columns: tuple[str, ...] | None, predicate: Cond | None, limit: int | None, offset: int = 0
    ) -> Iterator[pa.RecordBatch]:
        """A fresh iterator over one epoch: rows that satisfy `predicate`, then `offset` skipped and `limit` kept,
        with only `columns` (None: all) and in that order. Row order is the source's."""


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
