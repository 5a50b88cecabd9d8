"""`Query.with_slots`: decoded columns as a step of a Polars query.

The step is a source to Polars, which says what columns it wants and which condition the rows must meet. Conditions on other columns go below, into the
query that is decoded; the slots that a condition reads run first, the others only on the rows that are left. Slots of one column run together, in one
graph of actors, as an Arrow function.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from .arrow_function import ArrowFunction, arrow_function, warn_of_failures
from .engine.errors import PlanError, SchemaError, unknown_columns
from .engine.signature import canonical_chain
from .pipelines import Pipeline
from .stages import SlotsBuilder, SlotStage

if TYPE_CHECKING:
    import polars as pl

    from .engine.frame_calls import Lower

Batches: TypeAlias = "Generator[pa.RecordBatch, None, None]"
ON_FAILURE = ("null", "raise", "skip")
_COLUMN, _SLOT, _ERROR = "\0column ", "\0slot ", "\0error"
"""In front of names on their way through the functions, where a column and the slot that replaces it stand side by side."""


def decode_slots(
    positional: Sequence[Any],
    named: Mapping[str, Any],
    *,
    on_failure: str,
    errors: str | None,
    types: Mapping[str, pa.DataType] | None,
    batch_rows: int | None,
    workers: str,
) -> DecodeSlots:
    """The step, its arguments checked; see `Query.with_slots`."""
    found: list[tuple[str, SlotStage]] = []
    for thing in positional:
        stages = list(thing) if isinstance(thing, SlotsBuilder) else [thing]
        found += [(stage.output if isinstance(stage, SlotStage) else "", stage) for stage in stages]
    found += named.items()
    if not found:
        raise TypeError("with_slots() takes at least one slot")
    for _, stage in found:
        if not isinstance(stage, SlotStage):
            raise TypeError(f"with_slots() takes slots such as dataio.slot('image').decode_image(), got {stage!r}")
        if not stage.output:
            raise ValueError("an unbound chain() is no slot: apply it to a slot(...) first")
        if stage.optional or stage.skip_cond is not None:
            raise PlanError(f"slot {stage.output!r} is optional, which no column of a query is: a null in the column it reads gives a null")
    names = [name for name, _ in found]
    if twice := [name for name in [*names, *([errors] if errors is not None else [])] if [*names, errors].count(name) > 1]:
        raise ValueError(f"with_slots() would make the column {twice[0]!r} twice")
    if on_failure not in ON_FAILURE:
        raise ValueError(f"on_failure must be one of {', '.join(map(repr, ON_FAILURE))}, got {on_failure!r}")
    if errors is not None and on_failure != "null":
        raise ValueError(f"errors= goes with on_failure='null', not with {on_failure!r}: no row with an error is left")
    if unknown := set(types or {}) - set(names):
        raise ValueError(f"types= names {sorted(unknown)[0]!r}, which is no slot here: {', '.join(names)}")
    made = DecodeSlots(tuple(found), on_failure, errors, tuple(sorted((types or {}).items())), batch_rows, workers)
    for source in dict.fromkeys(stage.output for _, stage in found):
        made.function(source, names, ())  # it checks the rest
    return made


@dataclass(frozen=True, slots=True)
class DecodeSlots:
    """A step of a plan that adds decoded columns.

    Attributes:
        slots: names of the columns it makes, and the slots, named by the columns they read.
        errors: the column that gets the reasons of rows that failed.
    """

    slots: tuple[tuple[str, SlotStage], ...]
    on_failure: str = "null"
    errors: str | None = None
    types: tuple[tuple[str, pa.DataType], ...] = ()
    batch_rows: int | None = None
    workers: str = "auto"

    # ---------------------------------------------------------------- as a value of a plan

    def canonical(self) -> dict[str, Any]:
        chains = [[name, canonical_chain(stage.to_chain())] for name, stage in self.slots]
        return {"with_slots": chains, "on_failure": self.on_failure, "errors": self.errors, "types": [[name, str(kind)] for name, kind in self.types]}

    def rows(self, rows: int) -> int | None:
        return None if self.on_failure == "skip" else rows

    def __str__(self) -> str:
        chains = (f"{name} = {' | '.join(map(str, (stage.output, *stage.to_chain().calls)))}" for name, stage in self.slots)
        return f"with_slots({'; '.join(chains)}; on_failure={self.on_failure!r})"

    # ---------------------------------------------------------------- in a Polars query

    def apply(self, frame: pl.LazyFrame, lower: Lower) -> pl.LazyFrame:
        from polars.io.plugins import register_io_source

        from .engine.relational import frame_of, frame_schema

        given = frame_schema(frame.collect_schema())
        schema = frame_of(self.schema(given).empty_table()).schema

        def read(columns: list[str] | None, condition: pl.Expr | None, rows: int | None, batch: int | None) -> Iterator[pl.DataFrame]:
            return Decoding(self, frame, given, list(schema) if columns is None else columns, condition, rows).frames()

        return register_io_source(read, schema=schema, explain_name="with_slots", explain_detail=", ".join(name for name, _ in self.slots))

    def schema(self, given: pa.Schema) -> pa.Schema:
        """The schema of what comes out: the columns of `given`, of which slots may take the place, then new ones, then the errors.

        Raises:
            SchemaError: a slot or an argument reads a column that is not there, or a slot's type is not known ahead.
        """
        self._check(given)
        fields = {field.name: field for field in given}
        for source in dict.fromkeys(stage.output for _, stage in self.slots):
            function = self.function(source, [name for name, _ in self.slots], ())
            made = function.schema(self.aliased_schema(source, given))
            fields.update((name, made.field(name)) for name, stage in self.slots if stage.output == source)
        if self.errors is not None:
            if self.errors in given.names:
                raise SchemaError(f"there is a column {self.errors!r} already: errors= needs another name")
            fields[self.errors] = pa.field(self.errors, pa.string())
        return pa.schema(fields.values())

    def _check(self, given: pa.Schema) -> None:
        made = {name: stage.output for name, stage in self.slots}
        for name, stage in self.slots:
            arguments = stage.to_chain().columns()
            if missing := {stage.output, *arguments}.difference(given.names):
                raise unknown_columns(missing, given.names, reader=f"with_slots({name})")
            for argument in arguments:
                if made.get(argument, argument) != argument:
                    raise SchemaError(
                        f"with_slots({name}) reads column {argument!r}, which another slot beside it replaces: give that slot another name, or use two with_slots()"
                    )

    # ---------------------------------------------------------------- the functions

    def function(self, source: str, names: Sequence[str], kept: Sequence[str]) -> ArrowFunction:
        """The slots of `names` that read the column `source`, as a function on batches that hold it under each of their names."""
        stages = tuple(replace(stage, output=name) for name, stage in self.slots if stage.output == source and name in names)
        return arrow_function(
            Pipeline(stages),
            columns=kept,
            errors=None if self.on_failure == "raise" else _ERROR,
            batch_rows=self.batch_rows,
            types={name: kind for name, kind in self.types if name in {stage.output for stage in stages}},
            options={"workers": self.workers},
            nulls=True,
        )

    def arguments(self, names: Sequence[str]) -> list[str]:
        """Columns that arguments of these slots read."""
        return list(dict.fromkeys(column for name, stage in self.slots if name in names for column in stage.to_chain().columns()))

    def aliased_schema(self, source: str, given: pa.Schema) -> pa.Schema:
        """Of what `function(source, ...)` gets when all slots run, without the columns that are kept."""
        names = [name for name, stage in self.slots if stage.output == source]
        arguments = [argument for argument in self.arguments(names) if argument not in names]
        return pa.schema([*(pa.field(name, given.field(source).type) for name in names), *(given.field(argument) for argument in arguments)])


class Decoding:
    """One run of the step: what is read and decoded for `columns` of the rows that meet `condition`, the first `rows` of them."""

    def __init__(
        self, step: DecodeSlots, frame: pl.LazyFrame, given: pa.Schema, columns: list[str], condition: pl.Expr | None, rows: int | None
    ) -> None:
        self._step, self._columns, self._rows = step, columns, rows
        made = [name for name, _ in step.slots]
        computed = {*made, *([step.errors] if step.errors is not None else [])}
        parts = [] if condition is None else conjuncts(condition)
        self._tests = [part for part in parts if not computed.isdisjoint(part.meta.root_names())]
        tested = {name for part in self._tests for name in part.meta.root_names()}
        wanted = {*columns, *tested}
        if step.errors in wanted or step.on_failure == "skip":  # the other rows fail, or are left, whatever is asked for
            wanted |= {name for name, _ in step.slots}
        if step.errors in tested:
            tested |= {name for name, _ in step.slots}
        self._first = [name for name in made if name in tested]
        self._then = [name for name in made if name in wanted and name not in tested]
        self._failures: dict[str, Failures] = {}
        running = [*self._first, *self._then]
        needed = {*(wanted - computed), *(stage.output for name, stage in step.slots if name in running), *step.arguments(running)}
        read = [name for name in given.names if name in needed] or given.names[:1]
        for part in parts:
            if computed.isdisjoint(part.meta.root_names()):
                frame = frame.filter(part)
        frame = frame.select(read)
        if rows is not None and not self._tests and step.on_failure != "skip":
            frame = frame.head(rows)
        self._frame = frame

    def frames(self) -> Iterator[pl.DataFrame]:
        """The rows, in order."""
        import polars as pl

        from .engine.relational import frame_of

        batches: Batches = self._read()
        batches = self._decoded(batches, self._first)
        if self._tests:
            batches = self._passing(batches)
        batches = self._decoded(batches, self._then)
        left = self._rows
        with closing(batches):
            for batch in batches:
                if self._step.on_failure == "skip" and _ERROR in batch.schema.names:
                    batch = batch.filter(pc.is_null(batch.column(_ERROR)))
                frame = frame_of(self._finished(batch)) if self._columns else pl.DataFrame(height=batch.num_rows)
                if left is not None:
                    frame = frame.head(left)
                    left -= frame.height
                    if not left:
                        batches.close()  # nobody may ask for what comes behind the last row, and so end this
                yield frame
                if left == 0:
                    break
        self._tell()

    def _read(self) -> Batches:
        from .engine.relational import lazy_query

        for batch in lazy_query(self._frame):
            yield batch.rename_columns([_COLUMN + name for name in batch.schema.names])

    def _decoded(self, batches: Batches, names: list[str]) -> Batches:
        """`batches` with these slots beside their columns."""
        for source in dict.fromkeys(stage.output for name, stage in self._step.slots if name in names):
            batches = self._run(batches, source, names)
        return batches

    def _run(self, batches: Batches, source: str, names: list[str]) -> Batches:
        first = next(batches, None)
        if first is None:
            return
        step = self._step
        ours = [name for name, stage in step.slots if stage.output == source and name in names]
        before = list(first.schema.names)
        kept = [_ERROR + "s" if name == _ERROR else name for name in before]
        arguments = [argument for argument in step.arguments(ours) if argument not in ours]

        def feed() -> Batches:
            batch: pa.RecordBatch | None = first
            while batch is not None:
                columns = [*batch.columns, *(batch.column(_COLUMN + source) for _ in ours), *(batch.column(_COLUMN + name) for name in arguments)]
                yield pa.RecordBatch.from_arrays(columns, [*kept, *ours, *arguments])
                batch = next(batches, None)

        incoming = feed()
        with _ended(batches), _ended(incoming), closing(step.function(source, ours, kept)(incoming)) as run:
            for batch in run:
                yield self._merged(batch, source, ours)

    def _merged(self, batch: pa.RecordBatch, source: str, ours: list[str]) -> pa.RecordBatch:
        columns = {(_SLOT + name if name in ours else name): column for name, column in zip(batch.schema.names, batch.columns, strict=True)}
        if _ERROR in columns:
            self._failures.setdefault(source, Failures()).note(columns[_ERROR])
            if (earlier := columns.pop(_ERROR + "s", None)) is not None:
                columns[_ERROR] = pc.coalesce(earlier, columns[_ERROR])
        return pa.RecordBatch.from_arrays(list(columns.values()), list(columns))

    def _passing(self, batches: Batches) -> Batches:
        """The rows that meet the conditions on slots."""
        import polars as pl

        from .engine.relational import frame_of

        tested = list(dict.fromkeys(name for part in self._tests for name in part.meta.root_names()))
        with closing(batches):
            for batch in batches:
                frame = frame_of(self._finished(batch, tested))
                mask = frame.select(pl.all_horizontal(self._tests).fill_null(False).alias("passes")).to_series()
                yield batch if mask.all() else batch.filter(mask.to_arrow())

    def _finished(self, batch: pa.RecordBatch, names: list[str] | None = None) -> pa.RecordBatch:
        """The columns under their own names."""
        made = {name for name, _ in self._step.slots}
        chosen = self._columns if names is None else names
        return pa.RecordBatch.from_arrays(
            [batch.column(_ERROR if n == self._step.errors else (_SLOT if n in made else _COLUMN) + n) for n in chosen], chosen
        )

    def _tell(self) -> None:
        """Rows that failed are told, unless a column does."""
        if self._step.errors is None:
            for source, found in self._failures.items():
                if found.failed:
                    became = "are null" if self._step.on_failure == "null" else "were left out"
                    warn_of_failures(f"with_slots of column {source!r}", found.failed, found.seen, found.example, became)


@dataclass(slots=True)
class Failures:
    """Rows that slots of one column ran on, how many of them failed, and the first reason."""

    seen: int = 0
    failed: int = 0
    example: str = ""

    def note(self, reasons: pa.Array) -> None:
        """Count some more."""
        failed = len(reasons) - reasons.null_count
        if failed and not self.failed:
            self.example = reasons.drop_null()[0].as_py()
        self.seen += len(reasons)
        self.failed += failed


@contextmanager
def _ended(batches: Batches) -> Iterator[None]:
    """Close a generator at the end. One that a source thread is still in, because a read below takes long, ends with that read."""
    try:
        yield
    finally:
        with suppress(ValueError):
            batches.close()


def conjuncts(condition: pl.Expr) -> list[pl.Expr]:
    """Expressions of which all must be true for `condition` to be."""
    parts = condition.meta.pop()
    if len(parts) == 2 and (parts[1] & parts[0]).meta.eq(condition):
        return [*conjuncts(parts[1]), *conjuncts(parts[0])]
    return [condition]

