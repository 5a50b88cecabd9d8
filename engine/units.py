"""From a stream of records to units: the records of one batch each, as Python rows or as one record batch.

A cutter reads a stream and decides which records stand together. Over several ranks every rank cuts the same *global*
batches, `share.of` times as large, and takes every `share.of`-th record of each from `share.id` on: all ranks agree on
the number of steps without a message, and what has been delivered is a prefix of one order, whatever the number of ranks.
Each unit carries `after`: the state from which a cutter continues behind it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from .custom import record_caller
from .errors import MissingFieldError, PlanError, SourceError
from .explain import function_name
from .morsel import column_values
from .source import Pass
from .streams import BadRecord, Chunk, Stream, apply_map, as_given, rows_of, source_error

if TYPE_CHECKING:
    import pyarrow as pa

    from .packing import Bin

Steps = Literal["pad", "drop", "short"]


@dataclass(frozen=True, slots=True)
class Share:
    """A rank's share of each global batch: records `id`, `id + of`, ... of it.

    Attributes:
        steps: when the last global batch is not full: "pad" repeats the rank's last record up to a full batch, "drop"
            leaves it out on all ranks, "short" gives every rank what there is, perhaps an empty batch; None gives a
            rank its records and no batch where it has none, so that ranks may differ by one.
    """

    id: int = 0
    of: int = 1
    steps: Steps | None = None

    @property
    def part(self) -> slice:
        return slice(self.id, None, self.of)


ALONE = Share()
Refetch: TypeAlias = Callable[[Sequence[int]], dict[int, Chunk]]
"""Fetches records of the pass again, by position."""


def steps_of(records: int, size: int, drop_last: bool, share: Share) -> int:
    """Batches of `size` that a rank makes of an epoch of `records`, as `BatchCutter` cuts them."""
    if share.steps is None:
        records = max(0, -(-(records - share.id) // share.of))
        return records // size if drop_last else -(-records // size)
    whole = size * share.of
    return records // whole if share.steps == "drop" else -(-records // whole)


@dataclass(slots=True)
class Unit:
    """The records of one batch: rows, or a record batch.

    Attributes:
        indices: position of each record in the pass, which its random draws and its default key follow from.
        originals: what the source gave for each record, when asked for and changed by a map.
        bins: for packed sequences, the rows to make of the records; items are positions in this unit.
        tokens: for packed sequences, the tokens of each record as they were counted before it was decoded.
        after: the state behind this unit.
        consumed: records of the pass in this and all units before, on all ranks.
    """

    rows: list[Any] | None = None
    batch: pa.RecordBatch | None = None
    indices: Sequence[int] = range(0)
    originals: list[Any] | None = None
    bins: list[Bin] | None = None
    tokens: list[int] | None = None
    after: Any = None
    consumed: int = 0

    def __len__(self) -> int:
        if self.rows is not None:
            return len(self.rows)
        return 0 if self.batch is None else int(self.batch.num_rows)

    def original(self, row: int) -> Any:
        """What the source gave for one of the records: kept on the way, or the record itself where nothing changes it."""
        if self.originals is not None:
            record = self.originals[row]
        elif self.rows is not None:
            record = self.rows[row]
        else:
            record = next(rows_of(self.batch.slice(row, 1)))  # type: ignore[union-attr]
        while isinstance(record, BadRecord):  # a map of the source itself failed on it
            record = record.record
        return record

    def padded(self, size: int) -> Unit:
        """The unit with its last record repeated until it holds `size`."""
        missing = size - len(self)
        if missing <= 0:
            return self
        chosen = [*range(len(self)), *[len(self) - 1] * missing]
        return self.chosen(chosen)

    def chosen(self, rows: Sequence[int]) -> Unit:
        """These rows of the unit, in this order."""
        batch = self.batch
        if batch is not None:
            import pyarrow as pa

            batch = batch.take(pa.array(rows, pa.int64()))
        return replace(
            self,
            rows=None if self.rows is None else [self.rows[i] for i in rows],
            batch=batch,
            indices=[self.indices[i] for i in rows],
            originals=None if self.originals is None else [self.originals[i] for i in rows],
        )


class Cutter(ABC):
    """Cuts one pass into units; iterate it once.

    Raises, from `__next__`:
        SourceError: the source raised; everything before it has been given.
    """

    def __init__(self, stream: Stream, share: Share, state: Any) -> None:
        self.stream = stream
        self.share = share
        self.resumed = state
        self.consumed = 0 if state is None else int(state["consumed"])
        self._units: Iterator[Unit] | None = None

    def __iter__(self) -> Iterator[Unit]:
        return self

    def __next__(self) -> Unit:
        if self._units is None:
            self._units = self.cut()
        return next(self._units)

    @abstractmethod
    def cut(self) -> Iterator[Unit]:
        """The units, in order."""

    def held(self) -> int:
        """Records that have been read and wait for their batch."""
        return self.stream.held()

    def close(self) -> None:
        if self._units is not None:
            self._units.close()  # type: ignore[attr-defined]
        self._units = iter(())
        self.stream.close()


class BatchCutter(Cutter):
    """Consecutive records."""

    def __init__(
        self, stream: Stream, share: Share, state: Any, *, size: int, drop_last: bool, refetch: Refetch | None = None
    ) -> None:
        super().__init__(stream, share, state)
        self.size = size
        self.drop_last = drop_last
        self.refetch = refetch
        self.ended = state is not None and bool(state.get("ended"))
        self.seek = 0 if state is None else int(state.get("seek", 0))
        """Records to pass over: a resume that knows a number and no state of the stream."""

    def cut(self) -> Iterator[Unit]:
        stream, share, part = self.stream, self.share, self.share.part
        whole = self.size * share.of
        if self.ended or (self.seek and stream.read(self.seek, slice(0, 0)).count < self.seek):
            return
        last: Unit | None = None  # this rank's records of the global batch before
        while True:
            start = stream.position
            chunk = stream.read(whole, part)
            self.consumed += chunk.count
            unit = Unit(chunk.rows, chunk.batch, range(start, start + chunk.count)[part], chunk.originals)
            if unit.rows is None and unit.batch is None:
                unit.rows = []
            unit.after = {"source": stream.state(), "consumed": self.consumed}
            unit.consumed = self.consumed
            if chunk.count == whole:
                yield unit
                last = unit
                continue
            unit.after["ended" if chunk.error is None else "short"] = True
            if chunk.count:
                yield from self.tail(unit, chunk, last)
            if chunk.error is not None:
                raise chunk.error
            return

    def tail(self, unit: Unit, chunk: Chunk, last: Unit | None) -> Iterator[Unit]:
        """What becomes of a global batch that is not full."""
        steps = self.share.steps
        full = len(unit) == self.size
        if steps == "drop" or (steps is None and self.drop_last and not full and chunk.error is None):
            return
        if steps == "pad":
            unit = self.filled(unit, last)
        if len(unit) or steps == "short":
            yield unit

    def filled(self, unit: Unit, last: Unit | None) -> Unit:
        """A full batch: the rank's own last record is repeated."""
        if len(unit):
            return unit.padded(self.size)
        if last is None and self.consumed > self.share.of:  # resumed just before the tail: it is further back
            last = self.last_before(self.consumed)
        if last is None or not len(last):
            raise PlanError(
                f"shard {self.share.id} of {self.share.of} has no record to repeat: there are only "
                f"{self.consumed} records; use fewer shards, or steps=\"short\""
            )
        one = last.chosen([len(last) - 1])
        one.after, one.consumed = unit.after, unit.consumed
        return one.padded(self.size)

    def last_before(self, stop: int) -> Unit | None:
        """The last record of this shard before position `stop`, fetched again."""
        share = self.share
        position = (stop - 1 - share.id) // share.of * share.of + share.id
        if position < 0 or self.refetch is None:
            return None
        chunk = self.refetch([position])[position]
        return Unit(chunk.rows, chunk.batch, [position], chunk.originals)


class RunCutter(Cutter):
    """Base of cutters that look at records one by one and may hold some that belong to later units."""

    def __init__(self, stream: Stream, share: Share, state: Any, *, ahead: int | None = None) -> None:
        super().__init__(stream, share, state)
        self._ahead = ahead or stream.together
        self._before: Any = None
        self._skip = 0 if state is None else int(state.get("skip", 0))
        self._start = stream.position
        self.chunk = Chunk(0, [])

    def next_chunk(self) -> Chunk:
        """Read on; records of it that were delivered before a resume are left out of the loop by `first`."""
        self._before = self.stream.state()
        self._start = self.stream.position
        self.chunk = self.stream.read(self._ahead)
        return self.chunk

    def ended(self) -> bool:
        return self.chunk.count < self._ahead

    def first(self) -> int:
        """Rows of the chunk just read to pass over."""
        skip = min(self._skip, self.chunk.count)
        self._skip -= skip
        return skip

    def index(self, row: int) -> int:
        """Position in the pass of a row of the current chunk."""
        return self._start + row

    def cursor(self, used: int) -> dict[str, Any]:
        """The state in which `used` rows of the current chunk are done with."""
        if used >= self.chunk.count:
            return {"source": self.stream.state(), "consumed": self.consumed}
        return {"source": self._before, "skip": used, "consumed": self.consumed}


class GroupCutter(RunCutter):
    """Runs of consecutive records with equal keys."""

    def __init__(
        self, stream: Stream, share: Share, state: Any, *, key: Any, pass_: Pass, ahead: int | None = None
    ) -> None:
        super().__init__(stream, share, state, ahead=ahead)
        self.key = key
        self._call = record_caller(key, pass_.seed, pass_.epoch) if callable(key) else None

    def cut(self) -> Iterator[Unit]:
        held: list[Chunk] = []
        start = None
        current: Any = _NONE
        while True:
            chunk = self.next_chunk()
            begin = self.first()
            for row, key in enumerate(self._keys(chunk, begin), begin):
                if key is not _NONE:
                    if current is not _NONE and key != current and start is not None:
                        if row > begin:
                            held.append(_cut_chunk(chunk, begin, row))
                        yield self.unit(held, start, row)
                        held, start, begin = [], None, row
                    current = key
                if start is None:
                    start = self.index(row)
            if begin < chunk.count:
                held.append(_cut_chunk(chunk, begin, chunk.count))
            if self.ended():
                if held and start is not None:
                    yield self.unit(held, start, chunk.count)
                if chunk.error is not None:
                    raise chunk.error
                return

    def _keys(self, chunk: Chunk, begin: int) -> Iterator[Any]:
        """The group of each record from `begin` on, worked out when it is asked for: what comes before an exception is
        given. `_NONE` for a bad record, which stays in the group that it came in, or before.
        """
        key, call, batch = self.key, self._call, chunk.batch
        if batch is not None and isinstance(key, str):
            if key not in batch.schema.names:
                raise MissingFieldError(f"group_by({key!r}): no such column; it has: {', '.join(batch.schema.names)}")
            yield from column_values(batch.column(key))[begin:]
            return
        rows = chunk.as_rows()
        for i in range(begin, chunk.count):
            row = rows[i]
            if isinstance(row, BadRecord):
                yield _NONE
            else:
                yield _field_of(row, key) if call is None else call(row, self.index(i))

    def unit(self, held: list[Chunk], start: int, used: int) -> Unit:
        unit = _joined(held)
        unit.indices = range(start, start + len(unit))
        self.consumed += len(unit)
        unit.after, unit.consumed = self.cursor(used), self.consumed
        return unit


_NONE = object()


def _field_of(record: Any, key: str | int) -> Any:
    try:
        return record[key]
    except (KeyError, IndexError, TypeError) as error:
        raise MissingFieldError(f"group_by({key!r}): the record has no such field: {record!r:.200}") from error


def _cut_chunk(chunk: Chunk, start: int, stop: int) -> Chunk:
    if start == 0 and stop == chunk.count:
        return chunk
    return Chunk(
        stop - start,
        None if chunk.rows is None else chunk.rows[start:stop],
        None if chunk.batch is None else chunk.batch.slice(start, stop - start),
        None if chunk.originals is None else chunk.originals[start:stop],
    )


def _joined(chunks: list[Chunk]) -> Unit:
    """The records of several chunks, without a copy where one is enough."""
    if all(c.batch is not None for c in chunks):
        import pyarrow as pa

        batches = [c.batch for c in chunks]
        return Unit(batch=batches[0] if len(batches) == 1 else pa.concat_batches(batches))
    rows = [row for c in chunks for row in c.as_rows()]
    kept = any(c.originals is not None for c in chunks)
    originals = [o for c in chunks for o in (c.originals if c.originals is not None else [None] * c.count)]
    return Unit(rows=rows, originals=originals if kept else None)


class CollateCutter(Cutter):
    """The source's own batches: its items are iterables of records."""

    def __init__(
        self,
        stream: Stream,
        share: Share,
        state: Any,
        *,
        maps: Sequence[Callable[[Any], Any]],
        pass_: Pass,
        originals: bool,
    ) -> None:
        super().__init__(stream, share, state)
        self.originals = originals and bool(maps)
        self.maps = [(record_caller(f, pass_.seed, pass_.epoch), function_name(f)) for f in maps]

    def cut(self) -> Iterator[Unit]:
        while True:
            chunk = self.stream.read(1)
            for item in chunk.as_rows():
                records, error = _inner_records(item, self.consumed)
                originals = list(map(as_given, records)) if self.originals else None
                for call, name in self.maps:
                    records = [apply_map(call, r, name, self.consumed + i) for i, r in enumerate(records)]
                start = self.consumed
                self.consumed += len(records)
                if records:
                    after = {"source": self.stream.state(), "consumed": self.consumed}
                    indices = range(start, self.consumed)
                    yield Unit(records, None, indices, originals, after=after, consumed=self.consumed)
                if error is not None:
                    raise error
            if chunk.error is not None:
                raise chunk.error
            if not chunk.count:
                return


def _inner_records(item: Any, before: int) -> tuple[list[Any], SourceError | None]:
    """The records of one item, and what it raised after them."""
    if isinstance(item, (Mapping, str, bytes)) or not hasattr(item, "__iter__"):
        raise TypeError(f"collate() takes iterables of records from its source, got {type(item).__name__}")
    records: list[Any] = []
    try:
        records.extend(item)
    except Exception as error:
        return records, source_error(error, before + len(records))
    return records, None
