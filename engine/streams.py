"""Streams: the records of one pass in chunks, from any point on.

    scan -> filter -> map -> ...         each a `Stream` over the one below

A stream knows its `position` (records of the pass before the next one) and its `state()`: a small JSON value from which
an equal stream can be opened that continues after what was read. Where the source is indexed the state is a number and
continuing is free; where an operator holds records back, the state is that of the stream below before it read them, and
how many results of theirs were delivered.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from .custom import CustomOp, record_caller, takes_rng
from .errors import CheckpointError, DataioError, InternalError, SourceError
from .explain import function_name
from .expr import Cond, field_getter
from .morsel import column_values
from .plan import Filter, Limit, MapRecords, Plan, Relation, Scan, Select
from .source import FIRST_PASS, ColumnarSource, IndexedSource, Pass, RowSource, Source

if TYPE_CHECKING:
    import pyarrow as pa

WHOLE = slice(None)
_UNKNOWN = object()


@dataclass(slots=True)
class BadRecord:
    """A record that a Python map or filter failed on; it keeps its place in its batch."""

    record: Any
    op: str
    error: Exception


@dataclass(slots=True)
class Chunk:
    """Consecutive records of a stream, or a part of them.

    Attributes:
        count: records of the stream that the chunk stands for; fewer than were asked for only at the end.
        rows, batch: the part that was asked for, as Python records or as a record batch.
        originals: what the source gave for each of `rows`, when the stream was opened with `originals`.
        error: what the source raised after these records.
    """

    count: int
    rows: list[Any] | None = None
    batch: pa.RecordBatch | None = None
    originals: list[Any] | None = None
    error: SourceError | None = None

    def as_rows(self) -> list[Any]:
        """The records as Python objects."""
        if self.rows is None:
            self.rows = [] if self.batch is None else list(rows_of(self.batch))
            self.batch = None
        return self.rows

    def __len__(self) -> int:
        if self.rows is not None:
            return len(self.rows)
        return 0 if self.batch is None else int(self.batch.num_rows)


class Stream(ABC):
    """The records of one pass from some point on."""

    position: int = 0

    @property
    def together(self) -> int:
        """How many records may be read at a time by who needs them one by one: more than 1 only where the source has them
        at hand, so that nobody waits for the last of them."""
        below: Stream | None = getattr(self, "_below", None)
        return 1 if below is None else below.together

    @abstractmethod
    def read(self, count: int, part: slice = WHOLE) -> Chunk:
        """The next `count` records (fewer only at the end), of which the chunk holds `part`."""

    @abstractmethod
    def state(self) -> Any:
        """A JSON value from which the same pass continues after what was read."""

    def at(self, positions: Sequence[int]) -> list[Any] | None:
        """The records at these positions of the pass; None when they cannot be fetched by position."""
        return None

    def held(self) -> int:
        """Records that have been read and not given yet."""
        return 0

    def close(self) -> None:  # noqa: B027 - most streams hold nothing
        """Give back what the stream holds."""

    def records(self, ahead: int = 1) -> Iterator[Any]:
        """The records one by one, read `ahead` at a time.

        Raises:
            SourceError: the source raised.
        """
        while True:
            chunk = self.read(ahead)
            yield from chunk.as_rows()
            if chunk.error is not None:
                raise chunk.error
            if chunk.count < ahead:
                return


def source_error(error: Exception, after: int) -> SourceError:
    """An exception of the source's behind `after` records, told apart from the end of data; the original is the cause."""
    if isinstance(error, SourceError):
        if error.after is None:
            error.after = after
        return error
    text = f"the record source raised {type(error).__name__} after {after:,} record(s): {error}"
    found = SourceError(text, after=after)
    found.__cause__ = error
    return found


def _resumed(state: Any, identity: Callable[[], Any] | None = None) -> int:
    """The position that `state` holds, which must have been made over the same order of the source."""
    if isinstance(state, list) and len(state) == 2:
        state, before = state
        ordered = None if identity is None else identity()
        if ordered is not None and before != ordered:
            raise CheckpointError(
                f"the checkpoint was made over {told(before, ordered)} and the source is now {told(ordered, before)}: the order is another one, "
                "so what was delivered cannot be told from what was not; resume with the same records, seeds and weights"
            )
    if state is None:
        return 0
    if isinstance(state, bool) or not isinstance(state, int) or state < 0:
        raise CheckpointError(f"the checkpoint's source cursor {state!r} is none of this source's: it counts records")
    return state


def told(identity: Any, other: Any) -> str:
    """An identity for a message: what it shares with `other` left out."""
    if isinstance(identity, dict) and isinstance(other, dict):
        found = {key: value for key, value in identity.items() if value != other.get(key)}
        if len(found) > 1:  # the words say more than their hash
            found.pop("signature", None)
        return "; ".join(f"{key}: {told(value, other.get(key))}" for key, value in found.items())
    if isinstance(identity, list):
        others = other if isinstance(other, list) else [other]
        pairs = [(part, others[at] if at < len(others) else None) for at, part in enumerate(identity) if part not in others]
        return ", ".join(told(part, beside) for part, beside in pairs) or "nothing more"
    return str(identity)


def _cursor(position: int, source: Source) -> Any:
    """The state of a stream at `position`: with what the order depends on, if on anything."""
    ordered = source.order_identity()
    return position if ordered is None else [position, ordered]


# -------------------------------------------------------------------------------------------------- scans


class IteratorStream(Stream):
    """Records that come in their own order only."""

    def __init__(self, start: Callable[[], Iterator[Any]], skip: int = 0) -> None:
        self.position = _resumed(skip)
        self._start: Callable[[], Iterator[Any]] | None = start
        self._iterator: Iterator[Any] = iter(())

    def read(self, count: int, part: slice = WHOLE) -> Chunk:
        rows: list[Any] = []
        error: SourceError | None = None
        try:
            if self._start is not None:
                start, self._start = self._start, None
                skip, self.position = self.position, 0
                self._iterator = iter(start())
                self.position = sum(1 for _ in islice(self._iterator, skip))
            rows.extend(islice(self._iterator, count))  # what came before an exception stays in the list
        except Exception as raised:
            error = source_error(raised, self.position + len(rows))
        self.position += len(rows)
        return Chunk(len(rows), rows if part == WHOLE else rows[part], error=error)

    def state(self) -> int:
        return self.position

    def close(self) -> None:
        close = getattr(self._iterator, "close", None)
        self._iterator, self._start = iter(()), lambda: iter(())
        if close is not None:
            close()


class IndexedStream(Stream):
    """Records fetched by position: only those of the part are."""

    together = 64

    def __init__(self, source: IndexedSource, pass_: Pass, state: Any) -> None:
        self._source = source
        self._pass = pass_
        length = source.length()
        self._length = 1 << 62 if length is None else length
        self.position = _resumed(state, source.order_identity)

    def read(self, count: int, part: slice = WHOLE) -> Chunk:
        start = min(self.position, self._length)
        stop = min(start + count, self._length)
        wanted = range(start, stop)[part]
        error: SourceError | None = None
        rows: list[Any] = []
        if len(wanted):
            try:
                rows = self._source.at(wanted, self._pass)
            except Exception as raised:
                rows, stop, error = self._one_by_one(wanted, start, source_error(raised, start))
        self.position = stop
        return Chunk(stop - start, rows, error=error)

    def _one_by_one(self, wanted: range, start: int, error: SourceError) -> tuple[list[Any], int, SourceError | None]:
        """The records before the one that the source raises for."""
        rows: list[Any] = []
        for position in wanted:
            try:
                rows += self._source.at(range(position, position + 1), self._pass)
            except Exception as raised:
                return rows, position, source_error(raised, position)
        raise error

    def state(self) -> Any:
        return _cursor(self.position, self._source)

    def at(self, positions: Sequence[int]) -> list[Any]:
        return self._source.at(positions, self._pass)


class ColumnStream(Stream):
    """Rows of a columnar source; chunks are record batches."""

    together = 1024

    def __init__(self, scan: Scan, pass_: Pass, state: Any) -> None:
        self._scan = scan
        self._pass = pass_
        self._ordered: Any = _UNKNOWN
        self.position = _resumed(state, self._identity)
        self._batches: Iterator[pa.RecordBatch] | None = None
        self._held: list[pa.RecordBatch] = []
        self._rows = 0

    def _open(self) -> Iterator[pa.RecordBatch]:
        scan, source = self._scan, self._scan.source
        if not isinstance(source, ColumnarSource):
            raise InternalError(f"{source.describe()} has no columns")
        source.check()
        limit = None if scan.limit is None else max(0, scan.limit - self.position)
        predicate, offset = scan.predicate, scan.offset + self.position
        if predicate is not None and self.position:  # which row of the source that is, without reading the rows before
            from .combine import is_addressable
            from .query_rows import QueryRows

            if is_addressable(source):
                source, predicate = QueryRows(Scan(source, predicate=predicate)), None
        return iter(source.record_batches(columns=scan.columns, predicate=predicate, limit=limit, offset=offset, pass_=self._pass))

    def _identity(self) -> Any:
        """What the position counts: of a condition's rows those of this very source."""
        if self._ordered is _UNKNOWN:
            self._ordered = self._scan.source.order_identity()
            if self._ordered is None and self._scan.predicate is not None:
                from .query_rows import source_identity

                self._ordered = source_identity(self._scan.source)
        return self._ordered

    def read(self, count: int, part: slice = WHOLE) -> Chunk:
        error: SourceError | None = None
        try:
            if self._batches is None:
                self._batches = self._open()
            while self._rows < count and (batch := next(self._batches, None)) is not None:
                self._held.append(batch)
                self._rows += batch.num_rows
        except DataioError as raised:
            if not isinstance(raised, SourceError):  # a plan that names columns which are not there
                raise
            error = source_error(raised, self.position + self._rows)
        except Exception as raised:
            error = source_error(raised, self.position + self._rows)
        taken = min(count, self._rows)
        batch = self._cut(taken)
        self.position += taken
        if error is not None and taken == count:  # it comes again when what is held has been read
            self._batches, error = _raising(error), None
        return Chunk(taken, batch=_part(batch, part), error=error)

    def _cut(self, count: int) -> pa.RecordBatch | None:
        import pyarrow as pa

        pieces: list[pa.RecordBatch] = []
        left = count
        while left:
            first = self._held[0]
            if first.num_rows <= left:
                pieces.append(self._held.pop(0))
                left -= first.num_rows
            else:
                pieces.append(first.slice(0, left))
                self._held[0] = first.slice(left)
                left = 0
        self._rows -= count
        if not pieces:
            return None
        return pieces[0] if len(pieces) == 1 else pa.concat_batches(pieces)

    def state(self) -> Any:
        ordered = self._identity()
        return self.position if ordered is None else [self.position, ordered]

    def held(self) -> int:
        return self._rows

    def close(self) -> None:
        close = getattr(self._batches, "close", None)
        self._batches, self._held, self._rows = iter(()), [], 0
        if close is not None:
            close()


def _raising(error: Exception) -> Iterator[Any]:
    raise error
    yield


def _part(batch: pa.RecordBatch | None, part: slice) -> pa.RecordBatch | None:
    if batch is None or part == WHOLE:
        return batch
    start, stop, step = part.indices(batch.num_rows)
    if step == 1:
        return batch.slice(start, max(0, stop - start))
    import pyarrow as pa

    return batch.take(pa.array(range(start, stop, step), pa.int64()))


def rows_of(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """The rows as dicts; binary values are views of the batch's memory."""
    names = batch.schema.names
    columns = [column_values(c) for c in batch.columns]
    return (dict(zip(names, row)) for row in zip(*columns))


# ----------------------------------------------------------------------------------------------- operators


class MapStream(Stream):
    """Each record replaced by a function of it; one that the function raises for becomes a `BadRecord`."""

    def __init__(self, below: Stream, function: Callable[[Any], Any], pass_: Pass) -> None:
        self._below = below
        self._name = function_name(function)
        self._call = record_caller(function, pass_.seed, pass_.epoch)

    @property
    def position(self) -> int:  # type: ignore[override]
        return self._below.position

    def read(self, count: int, part: slice = WHOLE) -> Chunk:
        start = self._below.position
        chunk = self._below.read(count, part)
        indices = range(start, start + chunk.count)[part]
        chunk.rows = [self._apply(row, i) for row, i in zip(chunk.as_rows(), indices)]
        return chunk

    def _apply(self, record: Any, index: int) -> Any:
        return apply_map(self._call, record, self._name, index)

    def state(self) -> Any:
        return self._below.state()

    def at(self, positions: Sequence[int]) -> list[Any] | None:
        rows = self._below.at(positions)
        return None if rows is None else [self._apply(row, int(i)) for row, i in zip(rows, positions)]

    def held(self) -> int:
        return self._below.held()

    def close(self) -> None:
        self._below.close()


def apply_map(call: Callable[[Any, int], Any], record: Any, name: str, index: int) -> Any:
    """`call(record, index)`, or the record marked bad."""
    if isinstance(record, BadRecord):
        return record
    try:
        return call(record, index)
    except Exception as error:
        return BadRecord(record, name, error)


class SelectStream(MapStream):
    """Some fields of each record."""

    def __init__(self, below: Stream, columns: tuple[str, ...]) -> None:
        super().__init__(below, lambda row: {name: row[name] for name in columns}, Pass())

    def _apply(self, record: Any, index: int) -> Any:
        return record if isinstance(record, BadRecord) else self._call(record, index)


class Expanding(Stream):
    """An operator that gives any number of records for each one below.

    What it holds back comes from one chunk of the stream below, so its state is that stream's state before the chunk
    and how many of the chunk's results were delivered.
    """

    def __init__(self, below: Stream, state: Any) -> None:
        self._below = below
        self._before = below.state()
        self._given = 0  # results of the current chunk that were delivered
        self._ready: list[tuple[Any, Any]] = []  # (record, original) still to deliver, last first
        self._skip = 0
        self._ended = False
        self._error: SourceError | None = None
        self._failed = False  # in the middle of the current chunk, which a resume has to expand again
        self._keeps = False
        if state is not None:
            self._skip = int(state["skip"])
            self.position = int(state["position"])

    @abstractmethod
    def expand(self, record: Any, index: int) -> Iterator[Any]:
        """The records that one record below becomes; `index` is its position there."""

    def ahead(self, count: int) -> int:
        """Records to read from below when `count` results are wanted."""
        return 1

    def read(self, count: int, part: slice = WHOLE) -> Chunk:
        found: list[tuple[Any, Any]] = []
        while len(found) < count:
            if self._ready:
                taken = self._ready[: -(count - len(found)) - 1 : -1]
                del self._ready[-len(taken) :]
                self._given += len(taken)
                found += taken
            elif self._ended or self._error is not None:
                break
            else:
                self._refill(self.ahead(count - len(found)), self.position + len(found))
        self.position += len(found)
        wanted = found[part]
        return Chunk(
            len(found),
            [record for record, _ in wanted],
            originals=[original for _, original in wanted] if self._keeps else None,
            error=self._error if len(found) < count else None,
        )

    def _refill(self, ahead: int, given: int) -> None:
        """Read on below; `given` results were delivered before."""
        self._before = self._below.state()
        start = self._below.position
        chunk = self._below.read(ahead)
        self._ended = chunk.count < ahead
        kept = chunk.originals
        self._keeps = self._keeps or kept is not None
        found: list[tuple[Any, Any]] = []
        try:
            for i, row in enumerate(chunk.as_rows()):
                original = kept[i] if kept is not None else None
                for result in self.expand(row, start + i):
                    found.append((result, original))
            self._error = chunk.error
        except Exception as raised:
            after = given + max(0, len(found) - self._skip)
            self._error, self._failed = source_error(raised, after), True
        self._given = min(self._skip, len(found))
        self._skip -= self._given
        self._ready = found[: self._given - 1 if self._given else None : -1]

    def state(self) -> Any:
        if self._ready or self._failed:
            return {"at": self._before, "skip": self._given, "position": self.position}
        return {"at": self._below.state(), "skip": self._skip, "position": self.position}

    def held(self) -> int:
        return len(self._ready) + self._below.held()

    def close(self) -> None:
        self._ready = []
        self._below.close()


def below_state(state: Any) -> Any:
    """The state of the stream below an `Expanding` one."""
    return None if state is None else state["at"]


class FilterStream(Expanding):
    """The records for which a condition is true."""

    def __init__(self, below: Stream, condition: Cond | Callable[[Any], bool], pass_: Pass, state: Any) -> None:
        super().__init__(below, state)
        if isinstance(condition, Cond):
            self._test: Callable[[Any, int], Any] = lambda record, _: condition.of_record(field_getter(record))
        else:
            self._test = record_caller(condition, pass_.seed, pass_.epoch)

    def ahead(self, count: int) -> int:
        return count

    def expand(self, record: Any, index: int) -> Iterator[Any]:
        if isinstance(record, BadRecord):
            yield record
            return
        try:
            keep = self._test(record, index)
        except Exception as error:
            yield BadRecord(record, "filter", error)
            return
        if keep:
            yield record


class FlatMapStream(Expanding):
    """Each record replaced by the records that a function gives for it; one that it raises for becomes a `BadRecord`."""

    def __init__(self, below: Stream, function: Callable[[Any], Any], pass_: Pass, state: Any) -> None:
        super().__init__(below, state)
        self._name = function_name(function)
        self._call = record_caller(_listing(function), pass_.seed, pass_.epoch)

    def expand(self, record: Any, index: int) -> Iterator[Any]:
        if isinstance(record, BadRecord):
            yield record
            return
        try:
            found = self._call(record, index)
            if isinstance(found, (str, bytes, dict)) or not hasattr(found, "__iter__"):
                raise TypeError(
                    f"{self._name} must give an iterable of records for each record, got {type(found).__name__}"
                )
            yield from found
        except Exception as error:
            yield BadRecord(record, self._name, error)


def _listing(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """`function` with the records of a generator drawn inside the call, while the random streams are the record's."""
    inner: Callable[..., Any] = function.fn if isinstance(function, CustomOp) and function.fn is not None else function

    def listed(record: Any) -> Any:
        found = inner(record)
        return list(found) if isinstance(found, Iterator) else found

    def listed_with(record: Any, *, rng: Any) -> Any:
        found = inner(record, rng=rng)
        return list(found) if isinstance(found, Iterator) else found

    chosen: Callable[..., Any] = listed_with if takes_rng(inner) else listed
    return chosen


class SliceStream(Stream):
    """`offset` records skipped, then `count` kept (None: all)."""

    def __init__(self, below: Stream, count: int | None, offset: int) -> None:
        self._below = below
        self._count = count
        self._offset = offset

    @property
    def position(self) -> int:  # type: ignore[override]
        return max(0, self._below.position - self._offset)

    def read(self, count: int, part: slice = WHOLE) -> Chunk:
        if (ahead := self._offset - self._below.position) > 0:
            skipped = self._below.read(ahead, slice(0, 0))
            if skipped.count < ahead:
                return Chunk(0, [], error=skipped.error)
        if self._count is not None:
            count = min(count, max(0, self._count - self.position))
        return self._below.read(count, part) if count else Chunk(0, [])

    def state(self) -> Any:
        return self._below.state()

    def at(self, positions: Sequence[int]) -> list[Any] | None:
        return self._below.at([int(p) + self._offset for p in positions])

    def held(self) -> int:
        return self._below.held()

    def close(self) -> None:
        self._below.close()


def as_given(value: Any) -> Any:
    """A record that stays as it is when a map changes the given one in place: its dicts and lists are copied."""
    if type(value) is dict:
        return {key: as_given(inner) for key, inner in value.items()}
    return [as_given(inner) for inner in value] if type(value) is list else value


class OriginalsStream(Stream):
    """Notes what the source gave for each record, for who has to write down the ones that fail."""

    def __init__(self, below: Stream) -> None:
        self._below = below

    @property
    def position(self) -> int:  # type: ignore[override]
        return self._below.position

    def read(self, count: int, part: slice = WHOLE) -> Chunk:
        chunk = self._below.read(count, part)
        chunk.originals = [as_given(row) for row in chunk.as_rows()]
        return chunk

    def state(self) -> Any:
        return self._below.state()

    def at(self, positions: Sequence[int]) -> list[Any] | None:
        return self._below.at(positions)

    def held(self) -> int:
        return self._below.held()

    def close(self) -> None:
        self._below.close()


# --------------------------------------------------------------------------------------------------- plans


def open_stream(plan: Plan, pass_: Pass, state: Any = None, *, originals: bool = False) -> Stream:
    """The records that `plan` (scan, filters, selects, limits, maps) gives in one pass, after `state`.

    With `originals`, chunks also hold what the source gave for each record, where an operator changes it.
    """
    match plan:
        case Scan():
            return _open_scan(plan, pass_, state)
        case Filter(input=below, condition=condition):
            return FilterStream(_below(below, pass_, below_state(state), originals), condition, pass_, state)
        case MapRecords(input=below, function=function):
            return MapStream(_below(below, pass_, state, originals), function, pass_)
        case Limit(input=below, count=count, offset=offset):
            return SliceStream(_below(below, pass_, state, originals), count, offset)
        case Select(input=below, columns=columns):
            return SelectStream(_below(below, pass_, state, originals), columns)
        case Relation():
            from .query_rows import QueryRows

            return ColumnStream(Scan(QueryRows(plan)), pass_, state)
    raise InternalError(f"{type(plan).__name__} cannot stand below the slots")


def _below(plan: Plan, pass_: Pass, state: Any, originals: bool) -> Stream:
    stream = open_stream(plan, pass_, state, originals=originals)
    return OriginalsStream(stream) if originals and isinstance(plan, Scan) else stream


def _open_scan(scan: Scan, pass_: Pass, state: Any) -> Stream:
    if not isinstance(scan.source, RowSource):
        return ColumnStream(scan, pass_, state)
    stream = scan.source.stream(pass_, state)
    return SliceStream(stream, scan.limit, scan.offset) if scan.sliced else stream


def rows_below(plan: Plan, pass_: Pass = FIRST_PASS) -> Iterator[Any]:
    """The records of a plan without slots, one by one."""
    stream = open_stream(plan, pass_)
    columnar = isinstance(stream, ColumnStream)
    return stream.records(1024 if columnar else 1)


def records_at(plan: Plan, pass_: Pass, positions: Sequence[int], *, originals: bool = False) -> dict[int, Chunk]:
    """The records at these positions of a pass, each as a chunk of one: by position where the source is indexed,
    else by reading the pass again up to the last of them.

    Raises:
        CheckpointError: the pass has no such positions any more.
    """
    if not positions:
        return {}
    stream = open_stream(plan, pass_, originals=originals)
    try:
        rows = None if originals else stream.at(positions)
        if rows is not None:
            return {p: Chunk(1, [row]) for p, row in zip(positions, rows)}
        wanted, found, size = set(positions), {}, 1024
        last = max(wanted)
        while stream.position <= last:
            start = stream.position
            chunk = stream.read(min(size, last + 1 - start))
            if chunk.error is not None:
                raise chunk.error
            rows = chunk.as_rows()
            for i in range(chunk.count):
                if start + i in wanted:
                    kept = None if chunk.originals is None else [chunk.originals[i]]
                    found[start + i] = Chunk(1, [rows[i]], originals=kept)
            if chunk.count < min(size, last + 1 - start):
                break
        if len(found) < len(wanted):
            raise CheckpointError(f"the source no longer gives record {last}, which the checkpoint holds as pending")
        return found
    finally:
        stream.close()
