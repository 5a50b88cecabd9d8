"""Bulk runs on Spark, or on an engine that speaks Spark Connect: a pipeline on every row of a DataFrame, by `DataFrame.mapInArrow`.

Spark knows neither tensors nor unsigned numbers. Tensors are stored as .npy files in a binary column: each value says its dtype and shape, a training
pipeline reads the column with `decode_npy()`, and everybody else with `numpy.load`. Unsigned numbers get the next wider type.

Libraries: pyspark (or pyspark-client) where the DataFrame is made; workers import dataio and pyarrow only. There is no cluster code here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from .arrow_columns import missing_column
from .arrow_function import ArrowFunction
from .engine.errors import BatchError, LimitError, did_you_mean
from .engine.plan import Scan, walk
from .engine.rules import optimize
from .npy_columns import flat_column, is_tensor, npy_column
from .pipelines import Pipeline

PART_BYTES = 64 << 20
"""Bytes of a record batch that is handed to Spark, whose JVM holds a few of them at a time; a row that is larger comes alone."""
WIDER: dict[pa.DataType, pa.DataType] = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
}
"""What Spark has instead of the types that it lacks."""


def map_in_arrow(
    frame: Any,
    pipeline: Pipeline,
    *,
    columns: Sequence[str] | None = None,
    errors: str | None = "error",
    batch_rows: int | None = None,
    types: Mapping[str, pa.DataType] | None = None,
    arrays: Sequence[str] = (),
    **options: Any,
) -> Any:
    """Run the slots of a pipeline on every row of a Spark DataFrame: `Pipeline.as_arrow_function` by Spark's `mapInArrow`, with Spark's types.

    The result has the columns that are kept, the slots, and the errors. Each partition keeps its rows, their order and their number; a row that
    fails has nulls in all slots and the reason in the column of errors. Only columns that are kept or that the pipeline reads are asked of Spark. Like all of
    Spark's transformations this one is lazy: nothing runs before an action (`write`, `collect`).

    Slots have these types: tensors, of one shape or several, are binary, an .npy file each, which `decode_npy()` reads; 0-d ones are numbers;
    `passthrough()` keeps Spark's type. Spark has no unsigned numbers and no float16, so these numbers (and elements of `arrays`) have the next wider
    type: uint8 is short, uint16 int, uint32 bigint, uint64 decimal(20, 0), float16 float.

    Random ops draw from `seed` and the row's number in its partition, or from the row's own column `seed`: give the rows one where results must not
    depend on how Spark cuts partitions.

    Args:
        frame: a DataFrame of PySpark or Spark Connect.
        pipeline: slots, record maps and `batch(n)`, as `Pipeline.as_arrow_function` takes it.
        columns: columns to keep, as they are. None: all but those that a slot takes the place of.
        errors: name of the column with the reason of a failed row, null elsewhere. None: no column; the first failed row fails the job.
        batch_rows, types: as for `Pipeline.as_arrow_function`.
        arrays: slots whose tensors become arrays of their elements, in C order and without their shape: embeddings and tokens for SQL.
        options: of `Pipeline.as_arrow_function`: concurrency, seed, max_bytes, cache, workers, worker_niceness, worker_cpus.

    Returns:
        A DataFrame.

    Raises:
        TypeError: no DataFrame, no pipeline, or arguments of other types.
        PlanError, SchemaError: (ValueErrors) a pipeline that cannot run row by row, a missing column, a slot whose type is not known ahead.
        ValueError: arguments out of range; `arrays` names something that is no slot with tensors.
    """
    if not hasattr(frame, "mapInArrow"):
        raise TypeError(f"map_in_arrow() takes a DataFrame of pyspark 3.3 or newer, got {type(frame).__name__}")
    if not isinstance(pipeline, Pipeline):
        raise TypeError(f"map_in_arrow() takes a pipeline, got {type(pipeline).__name__}; it is not bound: the records are the DataFrame's rows")
    if isinstance(arrays, str):
        raise TypeError(f"arrays must be a list of slots, got {arrays!r}")
    from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
    from pyspark.sql.types import StructField, StructType

    function = pipeline.as_arrow_function(columns=columns, errors=errors, batch_rows=batch_rows, types=types, **options)
    given = to_arrow_schema(frame.schema)
    made = function.schema(given)
    slots = [stage.output for stage in pipeline.slots]
    _check_arrays(arrays, slots, made)
    changed = {}
    fields = []
    for field in made:
        name = field.name
        if name not in given.names or field.type != given.field(name).type:  # a slot's own values, or the errors
            changed[name] = spark_type(field.type, name in arrays)
            fields.append(StructField(name, from_arrow_type(changed[name])))
        else:
            known = frame.schema[name]
            fields.append(StructField(name, known.dataType, known.nullable or name in slots, known.metadata))
    names = _columns_read(function, given, made)
    read = frame.select(*("`{}`".format(name.replace("`", "``")) for name in names))
    odd = any("." in name or "`" in name for name in names)  # mapInArrow takes a dot for a field of a struct
    if odd:
        read = read.toDF(*map(str, range(len(names))))
    return read.mapInArrow(SparkFunction(function, changed, tuple(names) if odd else None), StructType(fields))


def spark_type(kind: pa.DataType, array: bool = False) -> pa.DataType:
    """What Spark has for a column of an Arrow function; `array`: a flat array rather than an .npy file where it is a tensor."""
    if not is_tensor(kind):
        return WIDER.get(kind, kind)
    if not array:
        return pa.binary()
    elements = kind.value_type if isinstance(kind, pa.FixedShapeTensorType) else kind[0].type.value_type
    return pa.list_(WIDER.get(elements, elements))


@dataclass(frozen=True)
class SparkFunction:
    """An Arrow function whose `changed` columns have Spark's types. Spark pickles it and calls it once for each partition.

    Attributes:
        names: of the columns that come in, where Spark was given others.
    """

    function: ArrowFunction
    changed: Mapping[str, pa.DataType]
    names: tuple[str, ...] | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if self.names is not None:
            batches = (pa.RecordBatch.from_arrays(batch.columns, list(self.names)) for batch in batches)
        made = self.function(batches)
        try:
            for batch in made:
                yield from self._parts(batch)
        finally:
            made.close()

    def _parts(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The rows with Spark's types, in batches that its JVM can hold."""
        if batch.num_rows == 1 or batch.nbytes <= PART_BYTES:
            try:
                yield self._changed(batch)
                return
            except LimitError as error:
                if batch.num_rows == 1:
                    yield self._changed(self._failed(batch, str(error)))
                    return
        half = batch.num_rows // 2
        yield from self._parts(batch.slice(0, half))
        yield from self._parts(batch.slice(half))

    def _changed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = [self._column(name, column) if name in self.changed else column for name, column in zip(batch.schema.names, batch.columns)]
        return pa.RecordBatch.from_arrays(columns, batch.schema.names)

    def _column(self, name: str, column: pa.Array) -> pa.Array:
        kind = self.changed[name]
        if not is_tensor(column.type):
            return column.cast(kind)
        try:
            return npy_column(column) if kind == pa.binary() else flat_column(column, kind)
        except LimitError as error:
            raise LimitError(f"slot {name!r}: {error}") from error

    def _failed(self, row: pa.RecordBatch, why: str) -> pa.RecordBatch:
        """A row that failed, of one whose tensors no column of Spark's can hold."""
        errors, slots = self.function.errors, {stage.output for stage in self.function.pipeline.slots}
        if errors is None:
            raise BatchError(why, batch=0, errors=[])
        columns = [
            pa.array([why], pa.string()) if field.name == errors else missing_column(field.type, 1) if field.name in slots else column
            for field, column in zip(row.schema, row.columns)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=row.schema)


def _columns_read(function: ArrowFunction, given: pa.Schema, made: pa.Schema) -> list[str]:
    """Columns that are kept or that the plan reads; Spark cannot see into a Python function, and would read all."""
    plan = optimize(function.pipeline.bind(given.empty_table()).plan()).plan
    scan = next(node for node in walk(plan) if isinstance(node, Scan))
    read = {*(scan.columns or given.names), *made.names}
    return [name for name in given.names if name in read]


def _check_arrays(arrays: Sequence[str], slots: list[str], made: pa.Schema) -> None:
    for name in arrays:
        if name not in slots:
            raise ValueError(f"arrays names {name!r}, which is no slot{did_you_mean(name, slots)}; the pipeline has: {', '.join(slots)}")
        if not is_tensor(made.field(name).type):
            raise ValueError(f"arrays names {name!r}, whose rows are no tensors with axes but {made.field(name).type}")
