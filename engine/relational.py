"""Projection, conditions and row limits: over a Polars query, or over a stream of Arrow record batches.

A Polars query gets all of them and optimises. A stream of Arrow batches keeps its own types (extension types,
fixed-size lists, plain strings), so Polars only computes the mask, from the columns that the condition reads.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from .errors import unknown_columns
from .expr import All, AnyOf, Compare, Cond, ConstCond, IsIn, IsNull

BATCH_ROWS = 8192
_PLAIN = pl.CompatLevel.oldest()  # no string or binary views, which few consumers read


def lazy_query(
    frame: pl.LazyFrame,
    columns: Sequence[str] | None = None,
    predicate: Cond | None = None,
    offset: int = 0,
    limit: int | None = None,
) -> Iterator[pa.RecordBatch]:
    """Run `frame` under a condition, a row window and a projection, and stream the result in row order.

    Polars pushes all three into its scans. Only a bounded number of chunks is in memory at a time.
    """
    query = narrowed(frame, columns, predicate, offset, limit)
    if hasattr(query, "collect_batches"):
        frames: Iterable[pl.DataFrame] = query.collect_batches(maintain_order=True, engine="streaming")
    else:
        frames = [query.collect()]
    for chunk in frames:
        yield from frame_batches(chunk)


def narrowed(
    frame: pl.LazyFrame, columns: Sequence[str] | None, predicate: Cond | None, offset: int, limit: int | None
) -> pl.LazyFrame:
    """`frame` with the condition, then the row window, then the projection."""
    schema = frame.collect_schema()
    check_columns(schema.names(), columns, predicate)
    if predicate is not None:
        frame = frame.filter(predicate.to_polars(schema))
    if offset or limit is not None:
        frame = frame.slice(offset, limit)
    return frame if columns is None else frame.select(columns)


def frame_batches(frame: pl.DataFrame) -> Iterator[pa.RecordBatch]:
    """An in-memory frame as Arrow batches, without a copy where Polars has none to make (strings are copied)."""
    for start in range(0, frame.height, BATCH_ROWS):
        part = frame.slice(start, BATCH_ROWS)
        yield from part.to_arrow(compat_level=_PLAIN).to_batches()


def frame_schema(schema: pl.Schema) -> pa.Schema:
    """The Arrow schema of the batches that `frame_batches` makes of such a frame."""
    return pl.DataFrame(schema=schema).to_arrow(compat_level=_PLAIN).schema


def batch_query(
    batches: Iterable[pa.RecordBatch],
    columns: Sequence[str] | None = None,
    predicate: Cond | None = None,
    offset: int = 0,
    limit: int | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows of `batches` that satisfy `predicate`, then `offset` skipped and `limit` kept, then `columns`.

    The batches hold at least the columns of `columns` and `predicate`. Batches that stay whole are not copied.
    No batch is pulled after the limit is reached.
    """
    if limit == 0:
        return
    for batch in batches:
        mask = None if predicate is None else _mask(batch, predicate)
        if columns is not None:
            batch = batch.select(list(columns))
        if mask is not None:
            batch = batch.filter(mask)
        if offset:
            skipped = min(offset, batch.num_rows)
            batch, offset = batch.slice(skipped), offset - skipped
        if limit is not None:
            batch = batch.slice(0, limit)
            limit -= batch.num_rows
        if batch.num_rows:
            yield batch
        if limit == 0:
            return


def _mask(batch: pa.RecordBatch, predicate: Cond) -> pa.Array | None:
    """One boolean per row, or None when every row passes."""
    read = batch.select(sorted(predicate.columns()))
    if not all(map(_vectorised, read.schema.types)):
        values = [predicate.of_record(row.get) for row in read.to_pylist()]
        return pa.array(values, pa.bool_())
    if read.num_columns == 0:
        passes = predicate.of_record(lambda name: None)
        return None if passes else pa.array(itertools.repeat(False, batch.num_rows), pa.bool_())
    frame = pl.DataFrame(pl.from_arrow(read))
    mask = frame.select(pl.repeat(True, pl.len()) & predicate.to_polars(frame.schema)).to_series()
    return None if mask.all() else mask.to_arrow(compat_level=_PLAIN)


def _vectorised(kind: pa.DataType) -> bool:
    """Whether Polars holds values of this type just as Arrow does."""
    test = pa.types
    if test.is_dictionary(kind):
        return bool(test.is_string(kind.value_type) or test.is_large_string(kind.value_type))
    return bool(
        test.is_boolean(kind)
        or test.is_integer(kind)
        or test.is_floating(kind)
        or test.is_string(kind)
        or test.is_large_string(kind)
        or test.is_binary(kind)
        or test.is_large_binary(kind)
        or test.is_timestamp(kind)
        or test.is_date32(kind)
        or test.is_null(kind)
    )


def check_columns(known: Iterable[str], columns: Sequence[str] | None, predicate: Cond | None) -> None:
    """Refuse columns that the input lacks."""
    known = list(known)
    if unknown := set(columns or ()).difference(known):
        raise unknown_columns(unknown, known, reader=f"select({', '.join(columns or ())})")
    if predicate is not None and (unread := predicate.columns().difference(known)):
        raise unknown_columns(unread, known, reader=f"filter({predicate})")


def needed(columns: Sequence[str] | None, predicate: Cond | None) -> list[str] | None:
    """What must be read to yield `columns` under `predicate`; None for everything."""
    if columns is None:
        return None
    extra = predicate.columns() - set(columns) if predicate is not None else ()
    return [*columns, *sorted(extra)]


def pruning(predicate: Cond | None, schema: pa.Schema) -> pc.Expression | None:
    """A weaker condition for an Arrow scanner, to skip files and row groups by: it keeps every row `predicate` keeps.

    Only tests on which Arrow and `expr.compare` agree take part; the exact condition runs on what is left.
    """
    if isinstance(predicate, All):
        known = [part for child in predicate.children if (part := pruning(child, schema)) is not None]
        return _joined(known, both=True)
    if isinstance(predicate, AnyOf) and predicate.children:
        arms = [pruning(child, schema) for child in predicate.children]
        return None if any(arm is None for arm in arms) else _joined(arms, both=False)
    if isinstance(predicate, IsIn) and predicate.values:
        return pruning(AnyOf(tuple(Compare(predicate.of, "eq", v) for v in predicate.values)), schema)
    if isinstance(predicate, ConstCond) and not predicate.value:
        return pc.scalar(False)
    if isinstance(predicate, IsNull):
        return pc.field(predicate.of.field).is_null()
    if isinstance(predicate, Compare):
        return _pruning_comparison(predicate, schema.field(predicate.of.field).type)
    return None


def _joined(parts: Sequence[Any], *, both: bool) -> pc.Expression | None:
    if not parts:
        return None
    result = parts[0]
    for part in parts[1:]:
        result = result & part if both else result | part
    return result


def _pruning_comparison(test: Compare, kind: pa.DataType) -> pc.Expression | None:
    value = test.value
    exact = (
        (pa.types.is_signed_integer(kind) and type(value) is int)
        or (
            pa.types.is_float64(kind)
            and (type(value) is float or (type(value) is int and abs(value) <= 2**53))
        )
        or ((pa.types.is_string(kind) or pa.types.is_large_string(kind)) and type(value) is str)
    )
    if not exact or test.op == "ne":  # Arrow drops nulls where `ne` keeps them
        return None
    try:
        literal = pa.scalar(value, kind)
    except (pa.ArrowInvalid, OverflowError):  # beyond the column's range: let the exact condition decide
        return None
    column = pc.field(test.of.field)
    tests = {
        "eq": column == literal,
        "lt": column < literal,
        "le": column <= literal,
        "gt": column > literal,
        "ge": column >= literal,
    }
    return tests[test.op]
