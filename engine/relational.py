"""Projection, conditions and row limits: over a Polars query, or over a stream of Arrow record batches.

A Polars query gets all of them and optimises. A stream of Arrow batches keeps its own types (extension types,
fixed-size lists, plain strings), so Polars only computes the mask, from the columns that the condition reads.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from polars.io.plugins import register_io_source

from .errors import PlanError, SchemaError, unknown_columns
from .explain import function_name, node_text
from .expr import All, AnyOf, Compare, Cond, ConstCond, IsIn, IsNull
from .frame_calls import FrameCall, free_name
from .plan import Filter, Limit, Plan, Relation, Scan, Select
from .rewrite import rewrite
from .row_columns import RowColumns
from .rules import PUSHDOWN
from .source import FIRST_PASS, ColumnarSource, Pass, RowSource, Source

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

BATCH_ROWS = 8192
_MOST_ROWS = 2**32 - 1  # that Polars counts to
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
    for chunk in streamed(narrowed(frame, columns, predicate, offset, limit)):
        yield from frame_batches(chunk)


def streamed(query: pl.LazyFrame) -> Iterator[pl.DataFrame]:
    """Run a Polars query and give its rows in order, a bounded number of chunks ahead."""
    if hasattr(query, "collect_batches"):
        yield from query.collect_batches(maintain_order=True, engine="streaming")
    else:
        yield query.collect()


def narrowed(
    frame: pl.LazyFrame, columns: Sequence[str] | None, predicate: Cond | None, offset: int, limit: int | None
) -> pl.LazyFrame:
    """`frame` with the condition, then the row window, then the projection."""
    schema = frame.collect_schema()
    check_columns(schema.names(), columns, predicate)
    if predicate is not None:
        frame = frame.filter(predicate.to_polars(schema))
    return cut(frame, offset, limit) if columns is None else cut(frame, offset, limit).select(columns)


def cut(frame: pl.LazyFrame, offset: int, limit: int | None) -> pl.LazyFrame:
    """`offset` rows skipped, `limit` kept."""
    if limit is not None and limit >= _MOST_ROWS:
        limit = None
    return frame.slice(min(offset, 2**63 - 1), limit) if offset or limit is not None else frame


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


# ---------------------------------------------------------------------------------------------- plans as Polars queries


def lazy_plan(plan: Plan, pass_: Pass = FIRST_PASS) -> pl.LazyFrame:
    """A plan without slots as a Polars query.

    Raises:
        PlanError: a node that Polars has no part in. While it runs: what the source and Python callables raise.
    """
    return _lowered(rewrite(plan, PUSHDOWN).plan, pass_)


def _lowered(plan: Plan, pass_: Pass) -> pl.LazyFrame:
    match plan:
        case Scan(source=source):
            return narrowed(_columnar(source).lazy_frame(predicate=plan.predicate, pass_=pass_), plan.columns, None, plan.offset, plan.limit)
        case Filter(input=below, condition=Cond() as condition):
            return narrowed(_lowered(below, pass_), None, condition, 0, None)
        case Filter(input=below, condition=condition):
            return called(_lowered(below, pass_), cast("Callable[[Any], Any]", condition))
        case Select(input=below, columns=columns):
            return narrowed(_lowered(below, pass_), columns, None, 0, None)
        case Limit(input=below, count=count, offset=offset):
            return cut(_lowered(below, pass_), offset, count)
        case Relation(input=below, step=step):
            return step.apply(_lowered(below, pass_), lambda other: lazy_plan(other, pass_))
    raise PlanError(f"{type(plan).__name__} cannot stand in a query")


def lazy_count(plan: Plan) -> int:
    """How many rows a plan gives. Steps that only add columns or change the order are left out, and no column is asked for."""
    while isinstance(plan, Select) or (isinstance(plan, Relation) and isinstance(plan.step, FrameCall) and plan.step.keeps_rows):
        plan = plan.input
    query = lazy_plan(plan)
    number = free_name("row", query.collect_schema().names())
    # Of rows that are numbered Polars asks a scan for no column at all; without, for one of its choice.
    return int(query.with_row_index(number).select(pl.len()).collect(engine="streaming").item())


def plan_schema(plan: Plan) -> pa.Schema:
    """The Arrow schema of what `arrow_batches` gives; no row is read, but of Python records.

    Raises:
        SchemaError: a step that does not fit the columns.
    """
    found = rewrite(plan, PUSHDOWN).plan
    if isinstance(found, Scan):
        return _scan_schema(found)
    try:
        return frame_schema(_lowered(found, FIRST_PASS).collect_schema())
    except pl.exceptions.PolarsError as error:
        raise SchemaError(f"{node_text(plan)[0]}: {str(error).splitlines()[0]}") from None


def _columnar(source: Source) -> ColumnarSource:
    return source if isinstance(source, ColumnarSource) else RowColumns.of(cast(RowSource, source))


def _scan_schema(scan: Scan) -> pa.Schema:
    schema = _columnar(scan.source).schema()
    check_columns(schema.names, scan.columns, scan.predicate)
    return schema if scan.columns is None else pa.schema([schema.field(name) for name in scan.columns])


def arrow_batches(plan: Plan, pass_: Pass = FIRST_PASS) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """The rows of a plan without slots as Arrow: of a bare scan in the types of the source, else in those that Polars gives."""
    found = rewrite(plan, PUSHDOWN).plan
    if isinstance(found, Scan):
        return _scan_schema(found), _columnar(found.source).record_batches(
            columns=found.columns, predicate=found.predicate, limit=found.limit, offset=found.offset, pass_=pass_
        )
    query = _lowered(found, pass_)
    return frame_schema(query.collect_schema()), lazy_query(query)


def called(frame: pl.LazyFrame, condition: Callable[[Any], Any], number: str | None = None) -> pl.LazyFrame:
    """The rows, as dicts, for which a Python callable is true; what it raises gets a note that names the row.

    A scan of its own, so that it sees the rows one after another, and nothing passes it: it may read any column, and is to see no other rows.

    Args:
        number: the column of row numbers, which the callable does not see; without one rows are counted.
    """

    def kept() -> Iterator[pl.DataFrame]:
        at = 0
        for chunk in streamed(frame):
            for part in chunk.iter_slices(1024):
                numbers = range(at, at + part.height) if number is None else part[number].to_list()
                mask = []
                for row_number, row in zip(numbers, (part if number is None else part.drop(number)).iter_rows(named=True), strict=True):
                    try:
                        mask.append(bool(condition(row)))
                    except Exception as error:
                        error.add_note(f"filter({function_name(condition)}) on row {row_number}")
                        raise
                at += part.height
                yield part.filter(pl.Series(mask, dtype=pl.Boolean))

    return frames_scan(kept, frame.collect_schema(), f"filter({function_name(condition)})")


def frames_scan(frames: Callable[[], Iterator[pl.DataFrame]], schema: pl.Schema, name: str) -> pl.LazyFrame:
    """A Polars scan of frames that have all columns; `frames()` starts anew, and is pulled no further than a row limit asks."""

    def read(columns: list[str] | None, condition: pl.Expr | None, rows: int | None, batch: int | None) -> Iterator[pl.DataFrame]:
        if rows == 0:
            return
        for frame in frames():
            if rows is not None:  # rows are counted before the condition
                frame = frame.head(rows)
                rows -= frame.height
            yield _asked(frame, columns, condition)
            if rows == 0:
                return

    return register_io_source(read, schema=schema, is_pure=True, explain_name=name)


def _asked(frame: pl.DataFrame, columns: list[str] | None, condition: pl.Expr | None) -> pl.DataFrame:
    """What Polars wants of a chunk of a scan."""
    if condition is not None:
        frame = frame.filter(condition)
    if columns is None:
        return frame
    return frame.select(columns) if columns else pl.DataFrame(height=frame.height)  # a select of nothing has no rows


def scanned(source: ColumnarSource, predicate: Cond | None, pass_: Pass) -> pl.LazyFrame:
    """The record batches of a source as a Polars scan."""
    known = source.schema()
    check_columns(known.names, None, predicate)
    schema = frame_of(known.empty_table()).schema

    def read(columns: list[str] | None, condition: pl.Expr | None, rows: int | None, batch: int | None) -> Iterator[pl.DataFrame]:
        names = None if columns is None else tuple(dict.fromkeys((*columns, *(() if condition is None else condition.meta.root_names()))))
        if names == ():  # only the number of rows is asked; one column tells it
            names = (cheapest(known),)
        for part in source.record_batches(columns=names, predicate=predicate, limit=rows, pass_=pass_):
            yield _asked(frame_of(part), columns, condition)

    return register_io_source(read, schema=schema, is_pure=True, explain_name=type(source).__name__)


def cheapest(schema: pa.Schema) -> str:
    """The column of the narrowest rows."""

    def width(field: pa.Field) -> int:
        try:
            return int(field.type.bit_width)
        except ValueError:  # of no fixed width
            return 1 << 30

    return str(min(schema, key=width).name)


def frame_of(data: pa.RecordBatch | pa.Table) -> pl.DataFrame:
    """Arrow rows as a Polars frame."""
    return pl.DataFrame(pl.from_arrow(data))


def plan_title(plan: Plan) -> str:
    """A plan that Polars runs, in one line."""
    from .explain import plan_text

    return f"Polars query ({'; '.join(line.strip() for line in plan_text(plan).splitlines())})"


def taken(table: pa.Table, rows: Sequence[int] | NDArray[np.int64]) -> pa.RecordBatch:
    """Rows of a table by number, in one batch; neighbouring rows are not copied where they lie in one chunk."""
    if isinstance(rows, range) and rows.step == 1:
        found = table.slice(rows.start, len(rows))
    else:
        found = table.take(pa.array(rows, pa.int64()))
    batches = found.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)
