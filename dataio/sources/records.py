"""`RecordSource`: records to iterate, map, filter, shuffle, repeat and join."""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from dataio.engine.source import ColumnarSource, IndexedSource, Pass, RowSource, Source
from dataio.io.arguments import check_count

from .rows import SequenceRows, rows_of

if TYPE_CHECKING:
    from dataio.engine.shuffle import Order
    from dataio.engine.streams import Stream

logger = logging.getLogger("dataio.sources")

_AHEAD = 64
"""Records that plain iteration fetches at a time where no function of the user's is called for them."""


class RecordSource:
    """Records, one by one; iterable again and again unless it was made from a one-pass stream.

    Immutable: every method returns a new source. A source is *sequential* when its records only come in their own order
    or their number is unknown; such a source, and any made from it, is shuffled within a `buffer` only.

    A loader reads a source once per epoch: its epoch and seed settle every order and random draw, so the same epoch
    always gives the same records. Plain iteration is epoch 0, with a new seed in each iteration.
    """

    __slots__ = ("_ordered", "_source")

    def __init__(self, source: Source, *, sequential: bool = False) -> None:
        self._source = source
        self._ordered = sequential

    @classmethod
    def files(cls, glob: Any, *, recursive: bool = True) -> RecordSource:
        """Same as `dataio.files`."""
        from .files import files

        return files(glob, recursive=recursive)

    @classmethod
    def from_records(cls, records: Iterable[Any], *, sequential: bool = False) -> RecordSource:
        """The records of a re-iterable, such as a list, of a map-style data set, or the rows of a query.

        Args:
            records: read anew each epoch and not copied; a mapping gives its keys. The rows of a query stay columns.
            sequential: True refuses `shuffle` without `buffer`, for records whose order matters.

        Raises:
            TypeError: `records` is a path, a table, a one-pass iterator, or not iterable.
        """
        if not isinstance(sequential, bool):
            raise TypeError(f"sequential must be a bool, got {sequential!r}")
        from .query import is_query, query_rows

        if is_query(records):
            return cls(query_rows(records.plan), sequential=sequential)  # type: ignore[attr-defined]
        return cls(rows_of(records, "records"), sequential=sequential)

    @classmethod
    def from_manifest(cls, path: str | os.PathLike[str]) -> RecordSource:
        """Same as `dataio.manifest`."""
        from .files import manifest

        return manifest(path)

    @property
    def source(self) -> Source:
        """The engine's view of the records."""
        return self._source

    @property
    def _sequential(self) -> bool:
        return self._ordered or self._source.length() is None

    def __len__(self) -> int:
        length = self._source.length()
        if length is None:
            raise TypeError(
                "this RecordSource has no length before it is iterated; count with sum(1 for _ in source)"
            )
        return length

    def __iter__(self) -> Iterator[Any]:
        return self.iter_records()

    def iter_records(self) -> Iterator[Any]:
        """A fresh iterator over the records; what a record or the source raises comes through as it is."""
        return _plain(self._source, Pass(0, secrets.randbits(63)))

    def map_records(self, fn: Callable[[Any], Any]) -> RecordSource:
        """`fn(record)` instead of each record, called anew in every iteration.

        In a loader, an exception of `fn` is that record's error, as in `dataio.map`, and `fn` may draw from a
        parameter `rng`, `random` or `np.random`: they are seeded for the record.
        """
        from dataio.engine.combine import mapped

        return self._with(mapped(self._rows(), _checked_callable("map_records", fn)))

    def filter_records(self, predicate: Callable[[Any], Any]) -> RecordSource:
        """The records for which `predicate(record)` is true.

        A sized source is filtered now: the survivors are kept, in the order of the unshuffled source. A source
        of unknown length is filtered while it is read.
        """
        from dataio.engine.combine import FilteredRows

        _checked_callable("filter_records", predicate)
        if self._source.length() is None:
            return self._with(FilteredRows(self._rows(), predicate))
        kept = [record for record in _plain(_unshuffled(self._source), Pass()) if predicate(record)]
        return self._with(SequenceRows(kept, "filtered"))

    def flat_map_records(self, fn: Callable[[Any], Iterable[Any]]) -> RecordSource:
        """The records of `fn(record)`, an iterable of any length, instead of each record; what `fn` draws and raises is
        treated as in `map_records`. The new source is sequential.
        """
        from dataio.engine.combine import FlatMappedRows

        return self._with(FlatMappedRows(self._rows(), _checked_callable("flat_map_records", fn)))

    def shuffle(
        self, seed: int | None = None, *, buffer: int | None = None, block: int | None = None
    ) -> RecordSource:
        """The records in an order that is computed, not stored: it takes no memory, and reading can go on at any position.

        Each epoch of a loader has another order, the same whenever the epoch is read again. Plain iteration of a seeded
        source is epoch 0, the same each time. The orders are not those of `random.Random(seed).shuffle`.

        Args:
            seed: of the orders, in [0, 2**64); None takes the run's seed in a loader, a new one in each plain iteration.
            buffer: shuffle each run of so many consecutive records among themselves only, so that no record moves by
                `buffer` places or more. Needed for a sequential source, of which one such run is held in memory.
            block: shuffle runs of so many records as a whole, and then the records of each 4 neighbouring blocks (or of
                each `buffer` records) among themselves, so that records that are stored together (shards, row groups)
                are read together. Of `webdataset`, which wants a `buffer` too, the blocks are the shards.

        Tables, frames, queries and manifests of columns stay columns. A query of row groups (Parquet) that is shuffled without `block` and
        `buffer` gives its row groups in the order of the seed, and the rows of each 4 of them that come together shuffled among each
        other; which rows its conditions leave is worked out once, over their columns only. A Parquet manifest that is shuffled so is read
        into memory once, as far as its columns are used.

        Raises:
            TypeError: the source is sequential and there is no `buffer`, or there is a `block`.
            ValueError: `seed` is neither None nor an integer in [0, 2**64), `buffer` or `block` is below 1.
        """
        from dataio.engine.shuffle import Order

        check_seed(seed)
        for name, value in (("buffer", buffer), ("block", block)):
            if value is not None:
                check_count(name, value, least=1)
        source = self._source
        if block is not None and buffer is not None and hasattr(source, "with_shards_shuffled"):  # the shards are the blocks
            source = source.with_shards_shuffled(Order(seed, block, buffer))
            block = None
        if self._sequential and (buffer is None or block is not None):
            raise TypeError(
                "shuffle needs records that can come in any order, and this source is sequential; shuffle within a "
                "window, shuffle(buffer=1000), or before it is made, or collect it first: "
                "dataio.records(list(source)).shuffle()"
            )
        return self._with(shuffled(source, Order(seed, block, buffer)))

    def repeat(self, n: int | None = None) -> RecordSource:
        """The records `n` times, None without end; each time a shuffled source has another order.

        Raises:
            TypeError, ValueError: `n` is no integer of 1 or more.
        """
        from dataio.engine.combine import repeated

        if n is not None:
            check_count("repeat", n, least=1)
        return self._with(repeated(self._rows(), n))

    def concat(self, *others: Any) -> RecordSource:
        """These records, then those of each of `others`: anything that `bind` takes."""
        from .combine import concat

        return concat([self, *others])

    def describe(self) -> dict[str, Any]:
        """What the source is made of: number of records and of record maps, shuffle, sequential, and of `webdataset` the number
        of shards."""
        from dataio.engine.combine import MappedRows

        chain = list(_chain(self._source))
        orders = [node.order.describe() for node in chain if hasattr(node, "order")]
        found = {
            "records": self._source.length(),
            "record_maps": sum(isinstance(node, MappedRows) for node in chain),
            "shuffle": orders[0] if orders else None,
            "sequential": self._sequential,
        }
        shards = getattr(chain[-1], "shards", None)
        return found if shards is None else {**found, "shards": len(shards)}

    def _rows(self) -> RowSource:
        from dataio.engine.combine import as_rows

        return as_rows(self._source)

    def _with(self, source: Source) -> RecordSource:
        return RecordSource(source, sequential=self._ordered)

    def __repr__(self) -> str:
        return f"RecordSource({', '.join(f'{key}={value!r}' for key, value in self.describe().items())})"


def records(records: Iterable[Any]) -> RecordSource:
    """The records of a re-iterable, such as a list, or the rows of a query; see `RecordSource.from_records`."""
    return RecordSource.from_records(records)


def _plain(source: Source, pass_: Pass) -> Iterator[Any]:
    """The records of a pass; errors as they were raised."""
    from dataio.engine.combine import MappedRows
    from dataio.engine.plan import Scan
    from dataio.engine.streams import open_stream

    if isinstance(source, MappedRows):  # what lies below is read ahead, no function is called ahead
        return _mapped(source.function, _plain(source.below, pass_), pass_)

    def ahead() -> int:
        below = list(_chain(source))[-1]
        calls = any(hasattr(node, "function") for node in _chain(source))
        return 1 if calls or not isinstance(below, (SequenceRows, ColumnarSource)) else _AHEAD

    return _records(open_stream(Scan(source), pass_), ahead())


def _mapped(function: Callable[[Any], Any], records: Iterator[Any], pass_: Pass) -> Iterator[Any]:
    from dataio.engine.custom import record_caller
    from dataio.engine.streams import source_error

    call = record_caller(function, pass_.seed, pass_.epoch)
    for index, record in enumerate(records):
        try:
            found = call(record, index)
        except StopIteration as error:  # would be taken for the end of the records
            raise source_error(error, index) from error
        yield found


def _records(stream: Stream, ahead: int) -> Iterator[Any]:
    from dataio.engine.errors import SourceError
    from dataio.engine.streams import BadRecord, source_error

    try:
        while True:
            chunk = stream.read(ahead)
            error: Exception | None = None
            for row in chunk.as_rows() if chunk.batch is None else chunk.batch.to_pylist():
                if isinstance(row, BadRecord):
                    error = row.error
                    break
                yield row
            if error is None and chunk.error is not None:
                error = chunk.error
                cause = error.__cause__ if type(error) is SourceError else None
                error = cause if isinstance(cause, Exception) else error
            if isinstance(error, StopIteration):  # would be taken for the end of the records
                raise source_error(error, stream.position)
            if error is not None:
                raise error
            if chunk.count < ahead:
                return
    finally:
        stream.close()


def shuffled(source: Source, order: Order) -> Source:
    """`source` in another order, as columns where it has them."""
    from dataio.engine.combine import CollectedRows, as_rows, is_addressable
    from dataio.engine.shuffle import ShuffledColumns, ShuffledRows, WindowedRows

    if isinstance(source, ColumnarSource):
        from .columnar import DatasetSource, LoadedSource

        if isinstance(source, DatasetSource) and source.length() is not None:
            local = (order.block is not None or order.window is not None) and is_addressable(source)
            return ShuffledColumns(source if local else LoadedSource(source), order)
        if is_addressable(source):
            return ShuffledColumns(source, order)
    rows = as_rows(source)
    if not isinstance(rows, IndexedSource) and rows.length() is not None and order.window is None:
        rows = CollectedRows(rows)
    if isinstance(rows, IndexedSource) and rows.length() is not None:
        return ShuffledRows(rows, order)
    return WindowedRows(rows, order)


def reordered(source: Source) -> Source:
    """`source` in an order that each pass draws from the run's seed; one whose length is not known is listed first."""
    from dataio.engine.combine import as_rows
    from dataio.engine.shuffle import Order

    if source.length() is not None:
        return shuffled(source, Order())
    logger.warning("shard sticky=False lists the whole of %s in each epoch: its length is not known", source.describe())
    return ListedRows(as_rows(source))


class ListedRows(RowSource):
    """A source of unknown length, read to its end at the beginning of each pass and then shuffled."""

    def __init__(self, below: RowSource) -> None:
        self.below = below

    def describe(self) -> str:
        return f"shuffle of all of {self.below.describe()}"

    def length(self) -> None:
        return None

    def stream(self, pass_: Pass, state: Any = None) -> Stream:
        from dataio.engine.shuffle import Order, ShuffledRows

        return ShuffledRows(SequenceRows(list(self.below.rows(pass_))), Order()).stream(pass_, state)


def _unshuffled(source: Source) -> Source:
    """`source` without the shuffles that stand over, between or under its maps."""
    from dataio.engine.combine import MappedRows, as_rows, mapped

    if isinstance(source, MappedRows):
        return mapped(as_rows(_unshuffled(source.below)), source.function)
    return _unshuffled(source.below) if hasattr(source, "order") else source  # type: ignore[attr-defined]


def _chain(source: Source) -> Iterator[Any]:
    """The source and what it is made of, as long as that is one source."""
    node: Any = source
    while node is not None:
        yield node
        node = getattr(node, "below", None)


def check_seed(seed: Any) -> None:
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**64):
        raise ValueError(f"seed must be None or an integer in [0, 2**64), got {seed!r}")


def _checked_callable(what: str, fn: Any) -> Callable[[Any], Any]:
    if not callable(fn):
        raise TypeError(f"{what} takes a function of one record, got {fn!r}")
    checked: Callable[[Any], Any] = fn
    return checked
