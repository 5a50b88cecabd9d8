"""The rows of a query by number, so that what it leaves of a source is shuffled, sharded and resumed like the source itself.

    Scan -> Filter, Limit, Sample, ...     which rows: worked out once, over the columns that the conditions read, and kept in a few bits each
         -> Select, with_columns           what of a row: worked out for the rows that are taken
         -> group_by, join, ...            neither: run once, and kept (`Settled`)
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, cast

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from .combine import is_addressable
from .errors import InternalError
from .explain import plan_text
from .expr import Cond
from .frame_calls import FrameCall, FrameExpr, Sample
from .permutation import Positions
from .plan import Filter, Limit, Plan, Relation, Scan, Select, record_count, walk
from .relational import (
    batch_query,
    called,
    cheapest,
    check_columns,
    frame_batches,
    frame_of,
    lazy_plan,
    lazy_query,
    narrowed,
    needed,
    plan_schema,
    plan_title,
    streamed,
)
from .rewrite import rewrite
from .row_numbers import RowNumbers
from .rules import PUSHDOWN
from .settled import Settled
from .shuffle import is_large
from .signature import canonical_plan
from .source import FIRST_PASS, ColumnarSource, Pass, Source

_ROWS, _LARGE_ROWS = 8192, 256  # per batch of rows that are taken by number
_NUMBER = "\0number"

Kept: TypeAlias = "range | RowNumbers | NDArray[np.uint32] | NDArray[np.int64]"
"""Numbers of rows: all in a range, ascending ones, or in another order."""


class QueryRows(ColumnarSource):
    """The rows of a plan without slots. Equal where the plans are.

    Where they come from a source whose rows have numbers, or from Polars' groups, joins and the like, they have numbers, too. Other sources
    (text files, one-pass streams) are read in their order only.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._kept: Kept | None = None
        self._schema: pa.Schema | None = None
        self._lock = threading.RLock()
        self._split: tuple[Plan, bool] | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, QueryRows) and self.plan == other.plan

    def __hash__(self) -> int:
        return hash(self.plan)

    def __reduce__(self) -> tuple[type[QueryRows], tuple[Plan]]:
        return type(self), (self.plan,)

    # ------------------------------------------------------------------------------------------------------------ what it is

    def describe(self) -> str:
        """The plan as it runs."""
        return plan_title(rewrite(self.plan, PUSHDOWN).plan)

    def schema(self) -> pa.Schema:
        if self._schema is None:
            self._schema = plan_schema(self.plan)
        return self._schema

    def length(self) -> int | None:
        """Of an indexed query the exact number of rows; conditions are tested for it, once."""
        return len(self.kept) if self.indexed else record_count(self.plan)

    def order_identity(self) -> Any:
        """The query as it is written, and what its source is."""
        first, *joined = [source_identity(source) for source in _sources(self.plan)]
        signed = json.dumps(canonical_plan(self.plan), sort_keys=True, default=repr)
        return {
            "query": [line.strip() for line in plan_text(self.plan).splitlines() if not line.strip().startswith("Scan ")],
            "signature": hashlib.sha256(signed.encode()).hexdigest()[:16],
            "source": first,
            **({"joined": joined} if joined else {}),
        }

    def check(self) -> None:
        for source in _sources(self.plan):
            if isinstance(source, ColumnarSource):
                source.check()

    @property
    def indexed(self) -> bool:
        """Whether rows have numbers."""
        return self._parts[1]

    @property
    def _parts(self) -> tuple[Plan, bool]:
        """The plan over a source with numbers, and whether there is one: what no single row decides is a `Settled` source."""
        with self._lock:
            if self._split is None:
                self._split = _parts(self.plan)
            return self._split

    @property
    def _base(self) -> ColumnarSource:
        *_, scan = walk(self._parts[0])
        assert isinstance(scan, Scan)
        assert isinstance(scan.source, ColumnarSource)
        return scan.source

    @property
    def _moves(self) -> bool:
        """Whether rows come in another order than in the source."""
        return any(isinstance(node, Relation) and isinstance(node.step, FrameCall) and node.step.method == "sort" for node in walk(self._parts[0]))

    def group_starts(self) -> NDArray[np.int64] | None:
        below = self._base.group_starts() if self.indexed else None
        if below is None or self._moves:
            return None
        return kept_groups(self.kept, below)

    # --------------------------------------------------------------------------------------------------------------- reading

    def lazy_frame(self, *, predicate: Cond | None = None, pass_: Pass = FIRST_PASS) -> pl.LazyFrame:
        return narrowed(lazy_plan(self._parts[0], pass_), None, predicate, 0, None)

    def record_batches(
        self,
        *,
        columns: tuple[str, ...] | None,
        predicate: Cond | None,
        limit: int | None,
        offset: int = 0,
        pass_: Pass = FIRST_PASS,
    ) -> Iterator[pa.RecordBatch]:
        check_columns(self.schema().names, columns, predicate)
        self.check()
        if predicate is not None:
            read = needed(columns, predicate)
            return batch_query(self._rows(None if read is None else tuple(read), 0, None, pass_), columns, predicate, offset, limit)
        return self._rows(columns, offset, limit, pass_)

    def _rows(self, columns: tuple[str, ...] | None, offset: int, limit: int | None, pass_: Pass) -> Iterator[pa.RecordBatch]:
        plan, indexed = self._parts
        if indexed and (offset or self._moves):
            return by_number(self, columns, offset, limit)
        found = rewrite(plan, PUSHDOWN).plan
        if isinstance(found, Scan) and isinstance(found.source, ColumnarSource):
            names = found.columns if columns is None else columns
            skipped = found.offset + offset
            left = limit if found.limit is None else max(0, found.limit - offset) if limit is None else min(limit, max(0, found.limit - offset))
            return found.source.record_batches(columns=names, predicate=found.predicate, limit=left, offset=skipped, pass_=pass_)
        return lazy_query(lazy_plan(plan, pass_), columns, None, offset, limit)

    def take(self, rows: Sequence[int], columns: tuple[str, ...] | None) -> pa.RecordBatch | None:
        if not self.indexed:
            return None
        names = tuple(self.schema().names if columns is None else columns)
        if not len(rows):  # the first asks only whether it can be done
            return pa.RecordBatch.from_pylist([], schema=pa.schema([self.schema().field(name) for name in names]))
        numbers = numbers_at(self.kept, rows)
        steps, read = _steps(self._parts[0], names)
        if not steps:
            return self._base.take(numbers, names)
        known = self._base.schema().names
        batch = self._base.take(numbers, tuple(name for name in known if name in read) or tuple(known[:1]))
        assert batch is not None
        frame = frame_of(batch).lazy()
        for method, expressions in steps:
            frame = getattr(frame, method)(expressions)
        schema = pa.schema([self.schema().field(name) for name in names])
        found = pa.Table.from_batches(list(frame_batches(frame.select(names).collect()))).cast(schema)
        return found.combine_chunks().to_batches()[0]

    # ----------------------------------------------------------------------------------------------------------- which rows

    @property
    def kept(self) -> Kept:
        """Numbers of the rows in the source, worked out when they are first needed."""
        with self._lock:
            if self._kept is None:
                self.check()
                self._kept = self._worked_out()
            return self._kept

    def _worked_out(self) -> Kept:
        base, length = self._base, self._base.length()
        assert length is not None
        found = rewrite(_rows_only(self._parts[0]), PUSHDOWN).plan
        if isinstance(found, Scan):
            stop = None if found.limit is None else found.offset + found.limit
            if found.predicate is None:
                return range(min(found.offset, length), length if stop is None else min(stop, length))
            return RowNumbers(sliced(_survivors(base, found.predicate), found.offset, stop))
        frame, number = _numbered(self._parts[0])
        parts = (part.to_series().to_numpy().astype(np.int64) for part in streamed(frame.select(number)))
        if self._moves:
            moved = np.concatenate([np.empty(0, np.int64), *parts])
            return moved.astype(np.uint32) if length <= 1 << 32 else moved
        return RowNumbers(parts)


def numbers_at(kept: Kept, positions: Positions) -> Sequence[int]:
    """The numbers at these positions."""
    if isinstance(kept, range):
        return kept[positions.start : positions.stop : positions.step] if isinstance(positions, range) else [kept[int(at)] for at in positions]
    found: list[int] = (kept.at(positions) if isinstance(kept, RowNumbers) else kept[np.asarray(positions)]).tolist()
    return found


def kept_groups(kept: Kept, starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """`ColumnarSource.group_starts` of the rows that are kept in ascending order, by those of the source; groups without any are left out."""
    if isinstance(kept, range):
        found = np.clip(starts, kept.start, kept.stop) - kept.start
    else:
        assert isinstance(kept, RowNumbers)
        found = kept.before(starts)
    return np.unique(np.concatenate([[0], found]))


def by_number(source: ColumnarSource, columns: tuple[str, ...] | None, start: int, limit: int | None) -> Iterator[pa.RecordBatch]:
    """The rows from number `start` on, taken some at a time."""
    length, schema = source.length(), source.schema()
    assert length is not None
    stop = length if limit is None else min(length, start + limit)
    read = schema if columns is None else [schema.field(name) for name in columns]
    step = _LARGE_ROWS if any(is_large(field.type) for field in read) else _ROWS
    for at in range(start, stop, step):
        batch = source.take(range(at, min(at + step, stop)), columns)
        assert batch is not None
        yield batch


def sliced(parts: Iterator[NDArray[np.int64]], offset: int, stop: int | None) -> Iterator[NDArray[np.int64]]:
    """The numbers from `offset` on, up to `stop`; nothing is read behind it."""
    at = 0
    if stop is not None and stop <= offset:
        return
    for part in parts:
        yield part[max(0, offset - at) : None if stop is None else max(0, stop - at)]
        at += len(part)
        if stop is not None and at >= stop:
            return


def source_identity(source: Source) -> Any:
    """What a source is, for a checkpoint: files by name and size where it has any, else its rows and columns."""
    found = source.order_identity()
    if found is not None or not isinstance(source, ColumnarSource):
        return found
    return {"rows": source.length(), "columns": ", ".join(source.schema().names)}


# -------------------------------------------------------------------------------------------------------------- taking plans apart


def _sources(plan: Plan) -> Iterator[Source]:
    """What a plan reads, what it joins last."""
    *above, scan = walk(plan)
    assert isinstance(scan, Scan)
    yield scan.source
    for node in reversed(above):
        if isinstance(node, Relation) and isinstance(node.step, FrameCall):
            for other in node.step.args:
                if isinstance(other, Plan):
                    yield from _sources(other)


def _parts(plan: Plan) -> tuple[Plan, bool]:
    nodes = list(walk(plan))[::-1]
    scan = nodes[0]
    assert isinstance(scan, Scan)
    below = isinstance(scan.source, ColumnarSource) and is_addressable(scan.source)
    known = not below and scan.source.length() is not None  # of records: columns are made of them once
    start: Plan = scan
    for place, node in enumerate(nodes[1:], 1):
        if isinstance(node, Relation) and ((known and not below) or not _keeps_rows(node, _scanned(start) if below else None)):
            start, below = Scan(Settled(nodes[place])), True
            continue
        start = replace(node, input=start)  # type: ignore[type-var]
    return start, below


def _scanned(plan: Plan) -> ColumnarSource | None:
    *_, scan = walk(plan)
    return scan.source if isinstance(scan, Scan) and isinstance(scan.source, ColumnarSource) else None


def _keeps_rows(node: Relation, source: ColumnarSource | None) -> bool:
    """Whether each row that comes out is a row of the source, or made of one."""
    step = node.step
    if isinstance(step, Sample):
        return True
    if not isinstance(step, FrameCall):
        return False
    if step.method in ("filter", "unique"):
        return True
    if step.method == "sort":  # where rows are read in groups, each would be read for a row or two
        return source is not None and source.group_starts() is None
    if step.method == "join":
        return dict(step.options).get("how") in ("semi", "anti")
    return step.method in ("select", "with_columns") and _expressions(step) is not None


def _expressions(step: FrameCall) -> list[tuple[str, pl.Expr]] | None:
    """(name, expression) for each column that a `select` or `with_columns` makes; None where one reads more than its own row."""
    found: list[tuple[str, pl.Expr]] = []
    for value in step.args:
        expr = pl.col(value) if isinstance(value, str) else value.expr if isinstance(value, FrameExpr) else None
        if expr is None or expr.meta.has_multiple_outputs():
            return None
        found.append((expr.meta.output_name(), expr))
    for name, value in step.options:
        expr = value.expr if isinstance(value, FrameExpr) else pl.lit(value)
        if expr.meta.has_multiple_outputs():
            return None
        found.append((name, expr.alias(name)))
    if not all(expr.meta.is_row_separable() or expr.meta.is_literal() for _, expr in found):
        return None
    return found if any(expr.meta.root_names() for _, expr in found) or step.method == "with_columns" else None


def _steps(plan: Plan, names: Sequence[str]) -> tuple[list[tuple[str, list[pl.Expr]]], set[str]]:
    """What makes the columns `names` of those of the source, and which of these are read."""
    wanted, steps = set(names), []
    for node in walk(plan):
        if not _computes(node):
            continue
        assert isinstance(node, Relation)
        assert isinstance(node.step, FrameCall)
        made = [(name, expr) for name, expr in _expressions(node.step) or () if name in wanted]
        steps.append((node.step.method, [expr for _, expr in made]))
        kept = wanted - {name for name, _ in made}
        if node.step.method == "select" and not made:  # a select of nothing has no rows
            continue
        wanted = kept | {name for _, expr in made for name in expr.meta.root_names()}
    return [(method, expressions) for method, expressions in reversed(steps) if expressions], wanted


def _computes(node: Plan) -> bool:
    return isinstance(node, Relation) and isinstance(node.step, FrameCall) and node.step.method in ("select", "with_columns")


def _rows_only(plan: Plan) -> Plan:
    """The plan without what only chooses or makes columns at its end."""
    while isinstance(plan, Select) or _computes(plan):
        plan = plan.input  # type: ignore[attr-defined]
    return plan


def _survivors(base: ColumnarSource, predicate: Cond) -> Iterator[NDArray[np.int64]]:
    """Numbers of the rows that satisfy a condition; only its columns are read, some batches at a time."""
    columns = tuple(sorted(predicate.columns()))
    schema = base.schema()
    start = 0
    for batch in base.record_batches(columns=columns or (cheapest(schema),), predicate=None, limit=None):
        numbers = pa.array(np.arange(start, start + batch.num_rows))
        numbered = pa.RecordBatch.from_arrays([*batch.columns, numbers], names=[*batch.schema.names, _NUMBER])
        for part in batch_query([numbered], (_NUMBER,), predicate):
            yield part.column(0).to_numpy()
        start += batch.num_rows


def _numbered(plan: Plan) -> tuple[pl.LazyFrame, str]:
    """The plan with a column that numbers the rows of its source, and the name of it."""
    *above, scan = walk(plan)
    assert isinstance(scan, Scan)
    frame = lazy_plan(Scan(scan.source)).with_row_index(_NUMBER)
    if scan != Scan(scan.source):
        frame = narrowed(frame, None, scan.predicate, scan.offset, scan.limit)
    for node in reversed(above):
        frame = _carried(node, frame)
    return frame, _NUMBER


def _carried(node: Plan, frame: pl.LazyFrame) -> pl.LazyFrame:
    match node:
        case Filter(condition=Cond() as condition):
            return narrowed(frame, None, condition, 0, None)
        case Filter(condition=condition):
            return called(frame, cast("Callable[[Any], Any]", condition), _NUMBER)
        case Limit(count=count, offset=offset):
            return frame.slice(offset, count)
        case Select(columns=columns):
            return frame.select(*columns, _NUMBER)
        case Relation(step=FrameCall(method="unique") as step) if step.args == (None,):
            names = tuple(name for name in frame.collect_schema().names() if name != _NUMBER)
            return replace(step, args=(names,)).apply(frame, lazy_plan)
        case Relation(step=FrameCall(method="select") as step):
            return replace(step, args=(*step.args, _NUMBER)).apply(frame, lazy_plan)
        case Relation(step=step):
            return step.apply(frame, lazy_plan)
    raise InternalError(f"{type(node).__name__} cannot stand in a query")
