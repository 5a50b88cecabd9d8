"""From a plan's relational front to units: the records of one batch each, as Python rows or as one record batch.

Whatever can stay columnar does: rows become Python objects only where a Python map, a callable filter or `collate` asks
for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

from .errors import InternalError, MissingFieldError, SourceError
from .explain import function_name
from .expr import Cond, field_getter
from .morsel import column_values
from .plan import Batch, Collate, Filter, GroupBy, Limit, MapRecords, Plan, Scan, Select, Shape, Slots
from .source import ColumnarSource, RowSource

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(slots=True)
class BadRecord:
    """A record that a Python map or filter failed on; it keeps its place in its batch."""

    record: Any
    op: str
    error: Exception


@dataclass(slots=True)
class Unit:
    """The records of one batch: rows, or a record batch."""

    rows: list[Any] = field(default_factory=list)
    batch: pa.RecordBatch | None = None

    def __len__(self) -> int:
        return len(self.rows) if self.batch is None else int(self.batch.num_rows)


def units(shape: Shape) -> Iterator[Unit]:
    """Cut the records below `shape` into batches.

    Raises:
        SourceError: the source raised midway; everything before it has been yielded.
    """
    slots = shape.input  # type: ignore[attr-defined]
    if not isinstance(slots, Slots):
        raise InternalError(f"a shape stage stands on slots, not on {type(slots).__name__}")
    below = slots.input
    if isinstance(below, Scan) and below.columnar and not isinstance(shape, Collate):
        if isinstance(shape, Batch):
            yield from _cut_columns(below, shape.size, shape.drop_last)
            return
        if isinstance(shape, GroupBy) and isinstance(shape.key, str):
            yield from _group_columns(below, shape.key)
            return
    if isinstance(shape, Collate):
        maps = _row_maps(below)
        while isinstance(below, MapRecords):  # they are for the inner records
            below = below.input
        yield from _collate(rows_below(below), maps)
        return
    rows = rows_below(below)
    if isinstance(shape, Batch):
        yield from _cut_rows(rows, shape.size, shape.drop_last)
    elif isinstance(shape, GroupBy):
        yield from _group_rows(rows, shape.key)


def _guarded(source: Iterator[Any]) -> Iterator[Any]:
    """The source's items; what it raises comes out as SourceError with the original as cause."""
    while True:
        try:
            item = next(source)
        except StopIteration:
            return
        except Exception as error:
            raise SourceError(f"the record source raised {type(error).__name__}: {error}") from error
        yield item


def _scan_rows(scan: Scan) -> Iterator[Any]:
    source = scan.source
    if isinstance(source, RowSource):
        rows = source.rows()
        return islice(rows, scan.offset, None if scan.limit is None else scan.offset + scan.limit) if scan.sliced else rows
    return (row for batch in _scan_batches(scan) for row in rows_of(batch))


def _scan_batches(scan: Scan) -> Iterator[pa.RecordBatch]:
    source = scan.source
    if not isinstance(source, ColumnarSource):
        raise InternalError(f"{source.describe()} has no columns")
    batches = source.record_batches(
        columns=scan.columns, predicate=scan.predicate, limit=scan.limit, offset=scan.offset
    )
    return _guarded(iter(batches))


def rows_of(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """The rows as dicts; binary values are views of the batch's memory."""
    names = batch.schema.names
    columns = [column_values(c) for c in batch.columns]
    return (dict(zip(names, row)) for row in zip(*columns))


def rows_below(plan: Plan) -> Iterator[Any]:
    """The records that reach the slots (a Collate's inner maps are applied later)."""
    match plan:
        case Scan():
            return _scan_rows(plan)
        case Filter(input=below, condition=condition):
            return _filtered(rows_below(below), condition)
        case MapRecords(input=below, function=function):
            return _mapped(rows_below(below), function)
        case Limit(input=below, count=count, offset=offset):
            return islice(rows_below(below), offset, None if count is None else offset + count)
        case Select(input=below, columns=columns):
            return ({name: row[name] for name in columns} for row in rows_below(below))
    raise InternalError(f"{type(plan).__name__} cannot stand below the slots")


def apply_map(function: Callable[[Any], Any], record: Any) -> Any:
    """`function(record)`, or the record marked bad."""
    if isinstance(record, BadRecord):
        return record
    try:
        return function(record)
    except Exception as error:
        return BadRecord(record, function_name(function), error)


def _mapped(rows: Iterator[Any], function: Callable[[Any], Any]) -> Iterator[Any]:
    return (apply_map(function, row) for row in rows)


def _filtered(rows: Iterator[Any], condition: Cond | Callable[[Any], bool]) -> Iterator[Any]:
    for row in rows:
        if isinstance(row, BadRecord):
            yield row
            continue
        try:
            keep = condition.of_record(field_getter(row)) if isinstance(condition, Cond) else condition(row)
        except Exception as error:
            yield BadRecord(row, "filter", error)
            continue
        if keep:
            yield row


def _cut_rows(rows: Iterator[Any], size: int, drop_last: bool) -> Iterator[Unit]:
    while True:
        chunk: list[Any] = []
        failure: SourceError | None = None
        try:
            chunk.extend(islice(rows, size))  # what came before an exception stays in the list
        except SourceError as error:
            failure = error
        except Exception as error:
            failure = SourceError(f"the record source raised {type(error).__name__}: {error}")
            failure.__cause__ = error
        if chunk and (len(chunk) == size or failure is not None or not drop_last):
            yield Unit(chunk)
        if failure is not None:
            raise failure
        if len(chunk) < size:
            return


def _group_rows(rows: Iterator[Any], key: str | int | Callable[[Any], Any]) -> Iterator[Unit]:
    group: list[Any] = []
    current: Any = None
    try:
        for row in _guarded(rows):
            found = current if isinstance(row, BadRecord) else group_key(row, key)
            if group and found != current:
                yield Unit(group)
                group = []
            current = found
            group.append(row)
    except SourceError:
        if group:
            yield Unit(group)
        raise
    if group:
        yield Unit(group)


def group_key(record: Any, key: str | int | Callable[[Any], Any]) -> Any:
    """The group a record belongs to."""
    if callable(key):
        return key(record)
    try:
        return record[key]
    except (KeyError, IndexError, TypeError) as error:
        raise MissingFieldError(f"group_by({key!r}): the record has no such field: {record!r:.200}") from error


def _row_maps(plan: Plan) -> list[Callable[[Any], Any]]:
    maps: list[Callable[[Any], Any]] = []
    node: Plan | None = plan
    while isinstance(node, MapRecords):
        maps.append(node.function)
        node = node.input
    return maps[::-1]


def _collate(rows: Iterator[Any], maps: list[Callable[[Any], Any]]) -> Iterator[Unit]:
    for item in _guarded(rows):
        if isinstance(item, (Mapping, str, bytes)) or not hasattr(item, "__iter__"):
            raise TypeError(f"collate() takes iterables of records from its source, got {type(item).__name__}")
        inner = list(_guarded(iter(item)))
        for function in maps:
            inner = [apply_map(function, record) for record in inner]
        if inner:
            yield Unit(inner)


def _cut_columns(scan: Scan, size: int, drop_last: bool) -> Iterator[Unit]:
    import pyarrow as pa

    held: list[pa.RecordBatch] = []
    rows = 0
    try:
        for batch in _scan_batches(scan):
            position = 0
            while rows + batch.num_rows - position >= size:
                piece = batch.slice(position, size - rows)
                position += size - rows
                yield Unit(batch=pa.concat_batches([*held, piece]) if held else piece)
                held, rows = [], 0
            if position < batch.num_rows:
                held.append(batch.slice(position))
                rows += batch.num_rows - position
    except SourceError:
        if held:
            yield Unit(batch=pa.concat_batches(held))
        raise
    if held and not drop_last:
        yield Unit(batch=pa.concat_batches(held))


def _group_columns(scan: Scan, key: str) -> Iterator[Unit]:
    import pyarrow as pa

    held: list[pa.RecordBatch] = []
    current: Any = None
    try:
        for batch in _scan_batches(scan):
            if key not in batch.schema.names:
                raise MissingFieldError(f"group_by({key!r}): no such column; it has: {', '.join(batch.schema.names)}")
            keys = column_values(batch.column(key))
            position = 0
            for i in range(len(keys)):
                if (held or i > position) and keys[i] != current:
                    yield Unit(batch=pa.concat_batches([*held, batch.slice(position, i - position)]))
                    held, position = [], i
                current = keys[i]
            if position < batch.num_rows:
                held.append(batch.slice(position))
    except SourceError:
        if held:
            yield Unit(batch=pa.concat_batches(held))
        raise
    if held:
        yield Unit(batch=pa.concat_batches(held))
