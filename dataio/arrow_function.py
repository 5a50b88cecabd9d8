"""`Pipeline.as_arrow_function`: a pipeline's slots as a function from record batches to record batches, for queries and for bulk runs on
an engine that speaks Arrow (Spark's `mapInArrow` has this contract).

The batches that come in are the source of an ordinary loader. A source thread of its own takes them; it notes the columns that are kept, and the
caller's side puts them beside what the loader delivers for the same rows. Rows are neither lost nor moved: a failed one is a row of nulls.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from .arrow_columns import dense_column, is_ragged, missing_column, ragged_column, type_of_rows
from .engine.batch import FinishedBatch, SlotColumn, describe_error
from .engine.calls import type_after
from .engine.errors import BatchError, PlanError, SchemaError, did_you_mean, unknown_columns
from .engine.expr import Cond
from .engine.physical import compile_chain
from .engine.registry import OpSpec, adopt, carried
from .engine.schema import OBJECT, TensorType, dtype_name, type_of
from .engine.source import FIRST_PASS, ColumnarSource, Pass
from .engine.work import owned
from .stages import BatchStage

if TYPE_CHECKING:
    from .engine.plan import Chain
    from .pipelines import Pipeline

logger = logging.getLogger("dataio.rows")
BATCH_ROWS = 64
"""Rows worked on together where the pipeline has no `batch` stage: few, since a row may be an image."""
OPTIONS = ("concurrency", "seed", "max_bytes", "cache", "workers", "worker_niceness", "worker_cpus")
"""Options of `run` that an Arrow function takes."""


def arrow_function(
    pipeline: Pipeline,
    *,
    columns: Sequence[str] | None = None,
    errors: str | None = "error",
    batch_rows: int | None = None,
    types: Mapping[str, pa.DataType] | None = None,
    options: Mapping[str, Any] | None = None,
    nulls: bool = False,
) -> ArrowFunction:
    """Check the arguments and make the function; see `Pipeline.as_arrow_function`.

    `nulls`: a null in a slot's column makes a row of nulls that is no failure.
    """
    shape = pipeline.shape
    if shape is not None and not isinstance(shape, BatchStage):
        raise PlanError(
            "an Arrow function keeps rows and their order, so its pipeline ends with batch(n) or without a shape stage, "
            f"not with {type(shape).__name__.removesuffix('Stage')}"
        )
    if pipeline.map_batches:
        raise PlanError(
            "an Arrow function works row by row, and a stage behind batch() may mix the rows it sees together: leave it out here, and run it in training"
        )
    for stage in pipeline.slots:
        if stage.optional or stage.skip_cond is not None:
            raise PlanError(f"slot {stage.output!r} is optional: rows of an Arrow function all have the same slots; filter them before, or require the slot")
    if unset := sorted(pipeline.unresolved_params()):
        raise PlanError(f"parameter {unset[0]!r} is not set: use configure({unset[0]}=...)")
    if isinstance(columns, str):
        raise TypeError(f"columns must be a list of names, got {columns!r}")
    if errors is not None and (not isinstance(errors, str) or not errors):
        raise TypeError(f"errors must be a column name or None, got {errors!r}")
    if batch_rows is None:
        batch_rows = shape.batch_size if shape is not None else BATCH_ROWS
    if isinstance(batch_rows, bool) or not isinstance(batch_rows, int):
        raise TypeError(f"batch_rows must be an integer, got {batch_rows!r}")
    if batch_rows < 1:
        raise ValueError(f"batch_rows must be at least 1, got {batch_rows}")
    names = [stage.output for stage in pipeline.slots]
    for name, kind in (types or {}).items():
        if name not in names:
            raise ValueError(f"types={{{name!r}: ...}} names no slot{did_you_mean(name, names)}; the pipeline has: {', '.join(names)}")
        if not isinstance(kind, pa.DataType):
            raise TypeError(f"types={{{name!r}: ...}} must be a pyarrow.DataType, got {kind!r}")
    for name in options or {}:
        if name not in OPTIONS:
            raise TypeError(f"an Arrow function has no option {name!r}{did_you_mean(name, OPTIONS)}; known: {', '.join(OPTIONS)}")
    return ArrowFunction(
        replace(pipeline, shape=BatchStage(batch_rows, prefetch=shape.prefetch if shape is not None else None)),
        None if columns is None else tuple(columns), errors, dict(types or {}), dict(options or {}), nulls,
    )  # fmt: skip


@dataclass(frozen=True)
class ArrowFunction:
    """Called with an iterator of record batches, gives an iterator of record batches; it can be pickled. Made by `Pipeline.as_arrow_function`."""

    pipeline: Pipeline
    columns: tuple[str, ...] | None = None
    errors: str | None = "error"
    types: Mapping[str, pa.DataType] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    nulls: bool = False

    def schema(self, input_schema: pa.Schema) -> pa.Schema:
        """The schema of the batches that come of batches of `input_schema`: kept columns, slots, the errors; nothing is run.

        Raises:
            SchemaError: (a ValueError) a column that is missing or would be there twice, or a slot whose type is not known ahead.
            PlanError: (a ValueError) ops that do not fit together.
        """
        return self._layout(input_schema).schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Generator[pa.RecordBatch, None, None]:
        """The rows of `batches`, in their order, in batches of at most `batch_rows`. Closing the generator ends the run.

        Raises:
            SchemaError: as `schema`, or a batch of another schema than the first.
            BatchError: (a RuntimeError) with `errors=None`, a row failed.
            SourceError: (a RuntimeError) `batches` raised; the cause is what it raised.
        """
        incoming = iter(batches)
        first = next(incoming, None)
        if first is None:
            return
        layout = self._layout(first.schema)
        feed = Feed(first, incoming, layout)
        options = {"seed": 0, "emit_empty_batches": True, "on_failure": 0 if self.errors is not None or self.nulls else "strict", **self.options}
        with self.pipeline.bind(feed).run("numpy", **options) as loader:
            iterator = iter(loader)
            while (message := iterator.take()) is not None:  # the engine's batch: `Batch` knows nothing of the rows that failed
                if iterator.deliver(message[0]):
                    yield from self._put_together(message[0], feed, layout)

    def _layout(self, given: pa.Schema) -> Layout:
        names = given.names
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise SchemaError(f"the record batches have the column {twice!r} twice")
        slots = [stage.output for stage in self.pipeline.slots]
        if not self.pipeline.map_records and (absent := set(slots).difference(names)):
            raise unknown_columns(absent, names, reader=f"slot({sorted(absent)[0]!r})")
        kept = [name for name in names if name not in slots] if self.columns is None else list(self.columns)
        if unknown := set(kept).difference(names):
            raise unknown_columns(unknown, names, reader=f"columns={kept}")
        every = [*kept, *slots, *([self.errors] if self.errors is not None else [])]
        if twice := [name for name in every if every.count(name) > 1]:
            raise SchemaError(
                f"the result would have the column {twice[0]!r} twice: "
                + (f"errors={twice[0]!r} needs another name" if twice[0] == self.errors else "it is a slot, so columns= cannot keep it")
            )
        types = {chain.slot: self._type(chain, given) for chain in self.pipeline.chains()}
        fields = [*(given.field(name) for name in kept), *(pa.field(name, types[name]) for name in slots)]
        if self.errors is not None:
            fields.append(pa.field(self.errors, pa.string()))
        passed = frozenset(chain.slot for chain in self.pipeline.chains() if self._passes(chain) and chain.slot not in self.types)
        return Layout(pa.schema(fields), given, tuple(kept), types, passed)

    def _type(self, chain: Chain, given: pa.Schema) -> pa.DataType:
        known = compile_chain(chain).type
        if chain.slot in self.types:
            return self.types[chain.slot]
        if self._passes(chain):
            return given.field(chain.slot).type
        if chain.decoder.name == "array" and not self.pipeline.map_records:
            known = type_after(numbers_type(given.field(chain.slot).type, chain.decoder.arguments["dtype"]), chain.transforms)
        if (found := type_of_rows(known)) is not None:
            return found
        what = "gives Python values" if known.dtype == OBJECT else "has no dtype that is known before it runs"
        raise SchemaError(
            f"slot {chain.slot!r} {what}: end its chain with cast(dtype=...) and, for rows of one shape, reshape(shape=...), "
            f"or name its Arrow type: types={{{chain.slot!r}: pyarrow.float32()}}"
        )

    def _passes(self, chain: Chain) -> bool:
        """Whether the slot is the column as it is."""
        decoder = chain.decoder
        return not self.pipeline.map_records and not chain.transforms and decoder.name == "passthrough" and decoder.arguments["field"] is None

    def _put_together(self, finished: FinishedBatch, feed: Feed, layout: Layout) -> Iterator[pa.RecordBatch]:
        count, rows = finished.submitted, np.asarray(finished.indices, np.int64)
        failed = {int(error["index"]): describe_error(error) for error in finished.errors}
        first = int(finished.positions[0]) if count else 0
        for name, kind in layout.types.items():
            if name not in layout.passed:
                failed.update((int(rows[i]), f"record {first + int(rows[i])}, slot {name!r}: {why}") for i, why in misfits(finished.slots.get(name), kind))
        good = np.fromiter((row not in failed for row in rows.tolist()), np.bool_, len(rows))
        columns = {
            name: slot_column(finished.slots.get(name), kind, rows, good, count)
            for name, kind in layout.types.items() if name not in layout.passed
        }  # fmt: skip
        at = 0
        for part in feed.taken(count):
            stop = at + part.num_rows
            here = {row - at: why for row, why in failed.items() if at <= row < stop}
            found = [part.column(name) for name in layout.kept]
            for name in layout.types:
                if name in layout.passed:
                    found.append(without(part.column(name), here))
                else:
                    found.append(columns[name].slice(at, part.num_rows))
            if self.nulls:
                null = [~np.asarray(part.column(name).is_valid()) for name in layout.sources]
                here = {row: why for row, why in here.items() if not any(column[row] for column in null)}
            if self.errors is not None:
                found.append(pa.array([here.get(row) for row in range(part.num_rows)], pa.string()))
            elif here:
                row, why = next(iter(sorted(here.items())))
                raise BatchError(why, batch=finished.number, errors=[e for e in finished.errors if e["index"] == row + at])
            yield pa.RecordBatch.from_arrays(found, schema=layout.schema)
            at = stop

    # ---------------------------------------------------------------- to another process

    def __reduce__(self) -> tuple[Any, ...]:
        """With the ops that are not dataio's own: a worker that has not registered them gets them."""
        calls = tuple(call for chain in self.pipeline.chains() for call in chain.calls)
        return _restored, (carried(calls), self.pipeline, self.columns, self.errors, dict(self.types), dict(self.options), self.nulls)


def _restored(ops: tuple[str | OpSpec, ...], *state: Any) -> ArrowFunction:
    adopt(ops)
    return ArrowFunction(*state)


def numbers_type(column: pa.DataType, dtype: str | None) -> TensorType:
    """What `decode_array` makes of a column of numbers, as far as the column's type tells it."""
    test = pa.types
    if isinstance(column, pa.FixedShapeTensorType):
        return TensorType(tuple(column.shape), dtype or dtype_name(np.dtype(column.value_type.to_pandas_dtype())))
    if test.is_boolean(column):
        return TensorType((), dtype or "bool")
    if test.is_floating(column):
        return TensorType((), dtype or "float64")
    if test.is_integer(column) and column != pa.uint64():  # large ones become uint64
        return TensorType((), dtype or "int64")
    if (test.is_list(column) or test.is_large_list(column)) and test.is_floating(column.value_type):
        return TensorType((None,), dtype or "float64")
    return TensorType(None, dtype)


@dataclass(frozen=True, slots=True)
class Layout:
    """What comes in and what goes out.

    Attributes:
        schema: of the result.
        given: of the input.
        kept: input columns of the result.
        types: of the slots, in their order.
        passed: slots that are input columns as they are.
    """

    schema: pa.Schema
    given: pa.Schema
    kept: tuple[str, ...]
    types: dict[str, pa.DataType]
    passed: frozenset[str]

    @property
    def sources(self) -> tuple[str, ...]:
        """Input columns that slots read."""
        return tuple(name for name in self.types if name in self.given.names)


class Feed(ColumnarSource):
    """The batches that come in, once, as the source of a loader; the columns that are kept are noted on the way."""

    def __init__(self, first: pa.RecordBatch, rest: Iterator[pa.RecordBatch], layout: Layout) -> None:
        self._first: pa.RecordBatch | None = first
        self._rest = rest
        self._given = layout.given
        self._noted = list(dict.fromkeys([*layout.kept, *(name for name in layout.types if name in layout.passed), *layout.sources]))
        self._waiting: deque[pa.RecordBatch] = deque()  # appended by the source's thread, taken by the caller's

    def describe(self) -> str:
        return f"record batches: columns {', '.join(self._given.names)}"

    def length(self) -> None:
        return None

    def schema(self) -> pa.Schema:
        return self._given

    def record_batches(
        self,
        *,
        columns: tuple[str, ...] | None,
        predicate: Cond | None,
        limit: int | None,
        offset: int = 0,
        pass_: Pass = FIRST_PASS,
    ) -> Iterator[pa.RecordBatch]:
        batch, self._first = self._first, None
        number = 0
        while batch is not None:
            if batch.schema != self._given:
                raise SchemaError(f"record batch {number} has other columns than the first: {_difference(batch.schema, self._given)}")
            if batch.num_rows:
                self._waiting.append(batch.select(self._noted))
                yield batch if columns is None else batch.select(list(columns))
            batch, number = next(self._rest, None), number + 1

    def taken(self, count: int) -> Iterator[pa.RecordBatch]:
        """What was noted of the next `count` rows, batch by batch."""
        while count:
            batch = self._waiting[0]
            if batch.num_rows <= count:
                self._waiting.popleft()
            else:
                self._waiting[0], batch = batch.slice(count), batch.slice(0, count)
            count -= batch.num_rows
            yield batch


def _difference(found: pa.Schema, first: pa.Schema) -> str:
    for name in dict.fromkeys([*first.names, *found.names]):
        was, now = ([f.type for f in s if f.name == name] for s in (first, found))
        if was != now:
            return f"{name!r} is {now[0] if now else 'missing'}, and was {was[0] if was else 'not there'}"
    return f"{', '.join(found.names)}, and first {', '.join(first.names)}"


def misfits(column: SlotColumn | None, kind: pa.DataType) -> list[tuple[int, str]]:
    """Which survivors' values are not of the type that was promised, and why."""
    if column is None:
        return []
    if column.dense is not None:
        why = _misfit(column.dense[0], kind) if len(column.dense) else None
        return [] if why is None else [(i, why) for i in range(len(column.dense))]
    return [(i, why) for i, row in enumerate(column.rows or ()) if (why := _misfit(row, kind)) is not None]


def _misfit(value: Any, kind: pa.DataType) -> str | None:
    if isinstance(value, np.ndarray) and value.ndim:
        if is_ragged(kind):
            fits = pa.from_numpy_dtype(value.dtype) == kind[0].type.value_type
        else:
            fits = isinstance(kind, pa.FixedShapeTensorType) and kind.value_type == pa.from_numpy_dtype(value.dtype) and tuple(kind.shape) == value.shape
        return None if fits else f"gave {type_of(value)}, and its column is {kind}"
    if isinstance(value, np.ndarray):
        value = value[()]
    if isinstance(value, np.generic) and pa.from_numpy_dtype(value.dtype) == kind:
        return None
    try:
        pa.array([owned(value)], kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError, NotImplementedError) as error:
        return f"gave a {type(value).__name__}, and its column is {kind}: {error}"
    return None


def slot_column(column: SlotColumn | None, kind: pa.DataType, rows: np.ndarray, good: np.ndarray, count: int) -> pa.Array:
    """The survivors at `rows`, of which `good` (bool) fit, as a column of `count` rows; null elsewhere."""
    if column is None or not good.any():
        return missing_column(kind, count)
    if column.dense is not None and not is_ragged(kind):
        if good.all() and len(rows) == count:
            return dense_column(column.dense).cast(kind) if column.dense.ndim == 1 else dense_column(column.dense)
        spread = np.zeros((count, *column.dense.shape[1:]), column.dense.dtype)
        spread[rows[good]] = column.dense[good]
        missing = np.ones(count, np.bool_)
        missing[rows[good]] = False
        return dense_column(spread, missing).cast(kind) if spread.ndim == 1 else dense_column(spread, missing)
    values: list[Any] = [None] * count
    found = column.rows if column.dense is None else column.dense
    for i in np.flatnonzero(good).tolist():
        values[rows[i]] = found[i]  # type: ignore[index]
    if is_ragged(kind):
        made = ragged_column(values, kind[0].type.value_type.to_pandas_dtype())
        return made if made.type == kind else made.cast(kind)
    if isinstance(kind, pa.FixedShapeTensorType):
        blank = np.zeros(kind.shape, kind.value_type.to_pandas_dtype())
        missing = np.fromiter((value is None for value in values), np.bool_, count)
        return dense_column(np.stack([blank if value is None else value for value in values]), missing)
    return pa.array([value[()] if isinstance(value, np.ndarray) else owned(value) for value in values], kind)


def without(column: pa.Array, failed: Mapping[int, str]) -> pa.Array:
    """The column with nulls in these rows."""
    if not failed:
        return column
    numbers = pa.array([None if row in failed else row for row in range(len(column))], pa.int64())
    return column.take(numbers)


def warn_of_failures(reader: str, failed: int, seen: int, example: str, became: str = "are null") -> None:
    """One warning for rows that failed where no column says so."""
    logger.warning("%s: %s of %s rows failed and %s; the first: %s", reader, f"{failed:,}", f"{seen:,}", became, example)
