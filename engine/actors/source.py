"""The Source actor: takes a credit, cuts the next batch, and hands its morsels to the workers."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from ..actor import Actor, Mark
from ..batch import Job, Keys, stem
from ..errors import BatchError, MissingFieldError, PlanError, RecordError
from ..executors.base import Task
from ..expr import Cond, field_getter
from ..failure import Failure, failure_of
from ..ledger import BatchMemory
from ..morsel import Morsel, column_values
from ..physical import ChainProgram, Program
from ..plan import Chain
from ..rules import KEY_FIELDS, SEED_FIELD
from ..schema import TensorType
from ..streams import BadRecord, rows_of
from ..units import Unit
from ..work import MISSING, MorselResult, run_morsel

if TYPE_CHECKING:
    from ..run import Graph

_KEYS = frozenset(KEY_FIELDS)
_PLAIN_SOURCES = (str, bytes, bytearray, memoryview, np.ndarray, os.PathLike)


def is_source_value(value: Any) -> bool:
    """True for what may stand for a whole record of a single-slot pipeline."""
    return isinstance(value, _PLAIN_SOURCES) or hasattr(value, "read_all")


def slot_value(slot: str, record: Any, single: bool) -> Any:
    """What a slot reads of a record; `single` when it is the pipeline's only one, so that the record itself may be it.

    Raises:
        MissingFieldError: a mapping without the field.
        RecordError: a record that is no mapping and cannot be read itself.
    """
    if isinstance(record, Mapping):
        try:
            return record[slot]
        except KeyError:
            known = ", ".join(map(repr, record)) or "nothing"
            text = f"slot {slot!r} reads field {slot!r}, which the record lacks; it has: {known}"
        raise MissingFieldError(text)
    if single and is_source_value(record):
        return record
    raise RecordError(
        f"slot {slot!r} cannot be read from a record of type {type(record).__name__}; give mappings with the "
        f"field {slot!r}, or project with dataio.map(...)"
    )


class SourceActor(Actor):
    """Iterates the source of one epoch."""

    def __init__(self, graph: Graph) -> None:
        super().__init__("source", graph)
        self.graph = graph
        self.units = graph.units

    def loop(self) -> None:
        graph, stats = self.graph, self.graph.stats
        number = graph.resume.batches
        try:
            while True:
                waited = time.perf_counter_ns()
                if not graph.batch_credits.take() or graph.stopped():
                    return
                began = time.perf_counter_ns()
                stats.source_wait_ns += began - waited
                unit = next(self.units, None)
                while unit is not None and number in graph.resume.ahead:  # delivered already, out of order
                    number += 1
                    graph.delivered_already(number)
                    unit = next(self.units, None)
                cut = time.perf_counter_ns()
                stats.source_cut_ns += cut - began
                if unit is not None:
                    self.dispatch(number, unit)
                done = time.perf_counter_ns()
                stats.source_busy_ns += done - began
                if unit is None:
                    break
                if stats.trace is not None:
                    stats.trace.span("source", f"cuts batch {number}", began, cut, batch=number, records=len(unit))
                    stats.trace.span("source", f"hands out batch {number}", cut, done, batch=number)
                number += 1
        except Exception as error:
            graph.shape_mailbox.put((number, error))  # in its place in the stream: what came before is delivered
            return
        graph.shape_mailbox.put((number, Mark.END))

    def finished(self) -> None:
        self.units.close()

    def dispatch(self, number: int, unit: Unit) -> None:
        """Make the job of one batch and queue its morsels."""
        graph = self.graph
        length = len(unit)
        columns = Columns(unit, graph.program, graph.chains, graph.context)
        # Where nothing is decoded a batch holds its records' own values.
        held = self.units.held()
        memory = BatchMemory(graph.ledger, graph.ledger.carried(unit) if held or not graph.program.inline else 0)
        graph.ledger.hold_back(held)
        job = Job(
            number=number,
            unit=unit,
            length=length,
            keys=columns.keys(),
            program=graph.program,
            memory=memory,
            inactive=columns.inactive,
            failures=columns.failures,
            context=columns.context,
            waiting=length,
            originals=graph.originals,
        )
        graph.stats.submitted += length
        if not length:  # a step that this rank takes without records
            graph.shape_mailbox.put((number, (job, MorselResult(0, 0))))
            return
        if graph.program.inline:
            self.run_inline(job, columns)
            return
        buffers: dict[str, tuple[tuple[int, ...], np.dtype]] = {}
        guessed: set[str] = set()
        unsized: list[str] = []
        for chain in graph.program.chains:
            if chain.slot in job.inactive or chain.is_object:
                continue
            kind = columns.row_type(chain)
            row: tuple[Any, Any] | None = None
            if kind.static:
                row = kind.shape, np.dtype(kind.dtype)
            elif chain.guesses and (row := graph.experience.row_types.get(chain.slot)) is not None:
                guessed.add(chain.slot)
            if row is None:
                unsized.append(chain.slot)
            else:
                buffers[chain.slot] = (length, *row[0]), row[1]
        remote = graph.fetch.remote_rows(columns) if graph.fetch is not None else {}
        if not graph.admit(memory, list(buffers.values()), unsized, length, sum(map(len, remote.values()))):
            return
        for slot, (shape, dtype) in buffers.items():
            job.blocks[slot] = memory.allocate(graph.executor.buffers, shape, dtype)
        job.guessed = frozenset(guessed)
        rows = graph.morsel_rows(length)
        failed = frozenset(job.failures)
        for offset in range(0, length, rows):
            if not graph.take_record_credit():
                return
            morsel = columns.morsel(offset, min(rows, length - offset), failed)
            task = Task(graph.program, job, morsel, graph.seed, graph.epoch, graph.morsel_done, graph.part_done, graph.stopped)
            if remote and graph.fetch is not None:
                graph.fetch.submit(task, remote)
            else:
                graph.executor.submit(task)

    def run_inline(self, job: Job, columns: Columns) -> None:
        """Nothing to read, decode or transform: not worth a trip to the workers."""
        graph = self.graph
        morsel = columns.morsel(0, job.length, frozenset(job.failures))
        result: MorselResult = run_morsel(graph.program, morsel, {}, graph.seed, graph.epoch, job.inactive)
        graph.shape_mailbox.put((job.number, (job, result)))


class Columns:
    """The columns that the chains of a plan read from one unit of records, and the rows that lack them."""

    def __init__(
        self,
        unit: Unit,
        program: Program,
        chains: tuple[Chain, ...],
        context: Callable[[Any], Any] | None = None,
    ) -> None:
        self.unit = unit
        self.length = len(unit)
        self.failures: dict[int, Failure] = {}
        self.values: dict[str, Sequence[Any]] = {}
        self.chains = program.chains
        self.single = len(self.chains) == 1
        self.context: list[Any] | None = None
        if unit.batch is None:
            rows = self.rows
            kinds = set(map(type, rows))
            if BadRecord in kinds:
                self._mark_bad(rows)
            self.mappings = kinds == {dict}
        self.inactive = self._inactive(chains)
        for chain in self.chains:
            if chain.slot not in self.inactive:
                self._extract(chain)
        names = dict.fromkeys(f for c in self.chains if c.slot not in self.inactive for f in c.fields)
        if program.random:
            names[SEED_FIELD] = None
        for name in names:
            self._extract_field(name)
        if context is not None:
            self.context = self._context(context)

    @property
    def rows(self) -> list[Any]:
        """The records as Python objects, where they are no record batch."""
        return self.unit.rows or []

    def _mark_bad(self, rows: list[Any]) -> None:
        for i, row in enumerate(rows):
            if isinstance(row, BadRecord):
                self.failures[i] = failure_of(i, None, "map", row.op, row.record, row.error)

    def _context(self, function: Callable[[Any], Any]) -> list[Any]:
        rows = self.rows if self.unit.batch is None else list(rows_of(self.unit.batch))
        return [None if i in self.failures else function(row) for i, row in enumerate(rows)]

    # ---------------------------------------------------------------- slots

    def _extract(self, chain: ChainProgram) -> None:
        """The slot's own column."""
        slot = chain.slot
        if self.unit.batch is not None:
            if slot not in self.unit.batch.schema.names:
                known = ", ".join(self.unit.batch.schema.names)
                raise MissingFieldError(f"slot {slot!r} reads a column of that name, which the source lacks; it has: {known}")
            if self.unit.batch.column(slot).null_count and chain.reads:
                valid = self.unit.batch.column(slot).is_valid().to_pylist()
                for i, ok in enumerate(valid):
                    if not ok:
                        error = RecordError(f"slot {slot!r}: the value is null")
                        self.failures.setdefault(i, failure_of(i, slot, "read", "read", None, error))
            return
        rows = self.rows
        if self.mappings:
            try:
                self.values[slot] = list(map(itemgetter(slot), rows))
                return
            except KeyError:
                pass
        elif self.single and set(map(type, rows)) <= {str, bytes}:
            self.values[slot] = rows
            return
        self.values[slot] = [None if i in self.failures else self._slot_value(slot, i, row) for i, row in enumerate(rows)]

    def _slot_value(self, slot: str, row: int, record: Any) -> Any:
        try:
            return slot_value(slot, record, self.single)
        except (MissingFieldError, RecordError) as error:
            self.failures[row] = failure_of(row, slot, "read", "read", None, error)
            return None

    def _extract_field(self, name: str) -> None:
        """A scalar column that arguments read; rows without it hold MISSING."""
        if name in self.values:
            return
        if self.unit.batch is not None:
            if name not in self.unit.batch.schema.names:
                self.values[name] = [MISSING] * self.length
            return
        rows = self.rows
        if self.mappings:
            self.values[name] = [row.get(name, MISSING) for row in rows]
        else:
            self.values[name] = [
                row.get(name, MISSING) if isinstance(row, Mapping) else getattr(row, name, MISSING) for row in rows
            ]

    def column(self, name: str) -> Sequence[Any]:
        """A column's values for the whole batch."""
        if name not in self.values:
            self.values[name] = column_values(self.unit.batch.column(name))  # type: ignore[union-attr]
        return self.values[name]

    def row_type(self, chain: ChainProgram) -> TensorType:
        """What is known of the slot's rows before any is decoded: more than the plan says when every record of the batch
        gives the chain's arguments the same values."""
        if chain.type.static:
            return chain.type
        values: dict[str, Any] = {}
        for name in chain.fields:
            column = self.column(name)
            first = column[0]
            if any(value != first for value in column) or not isinstance(first, (int, float)):
                return chain.type
            values[name] = first
        return chain.type_for(values) if values else chain.type

    # ---------------------------------------------------------------- activity

    def _inactive(self, chains: tuple[Chain, ...]) -> frozenset[str]:
        """Slots that are switched off for this batch: all of its records must agree."""
        conditional = [c for c in chains if c.optional or c.skip is not None]
        if not conditional:
            return frozenset()
        good = np.ones(self.length, np.bool_)
        good[list(self.failures)] = False
        off: dict[str, np.ndarray] = {}
        for chain in conditional:
            off[chain.slot] = self._switched_off(chain) & good
            if not chain.optional and off[chain.slot].any():
                raise PlanError(
                    f"slot {chain.slot!r} was switched off by its condition for record {self._first(off[chain.slot])} but "
                    f"is not optional: declare it slot({chain.slot!r}, optional=True)"
                )
        if len(off) == len(chains) and (empty := np.logical_and.reduce(list(off.values()))).any():
            raise PlanError(f"every slot is switched off for record {self._first(empty)}: nothing is left to deliver")
        for slot, rows in off.items():
            if rows.any() and (rows != good).any():
                raise BatchError(
                    f"optional_slot_mismatch: slot {slot!r} is active for some records of a batch and not for others; "
                    "group records by their active slots",
                    batch=-1,
                    errors=[],
                )
        return frozenset(slot for slot, rows in off.items() if rows.any())

    def _first(self, rows: np.ndarray) -> int:
        """The number, within the epoch, of the first record that is marked."""
        return int(self.unit.indices[int(rows.argmax())])

    def _switched_off(self, chain: Chain) -> np.ndarray:
        """bool[length]: the record lacks the optional slot's value, or its condition says so."""
        off = np.zeros(self.length, np.bool_)
        if chain.skip is not None:
            off |= self._where(chain.skip)
        if chain.optional:
            off |= self._absent(chain.slot)
        return off

    def _where(self, condition: Cond) -> np.ndarray:
        """bool[length]: the condition over the records' fields, nothing read."""
        batch = self.unit.batch
        if batch is None:
            return condition.over(self._field_values, self.length)
        names = sorted(condition.columns())
        if not names or not set(names) <= set(batch.schema.names):
            return condition.over(self._field_values, self.length)
        import polars as pl

        frame = pl.DataFrame(batch.select(names))
        return frame.select(condition.to_polars(frame.schema).alias("off"))["off"].to_numpy()

    def _field_values(self, name: str) -> Sequence[Any]:
        """A field of every record, None where it is missing or the record is bad."""
        batch = self.unit.batch
        if batch is not None:
            return self.column(name) if name in batch.schema.names else [None] * self.length
        if self.mappings:
            return [row.get(name) for row in self.rows]
        return [None if i in self.failures else field_getter(row)(name) for i, row in enumerate(self.rows)]

    def _absent(self, slot: str) -> np.ndarray:
        batch = self.unit.batch
        if batch is None:
            rows = self.rows
            return np.fromiter((isinstance(r, Mapping) and r.get(slot) is None for r in rows), np.bool_, self.length)
        if slot not in batch.schema.names:
            return np.ones(self.length, np.bool_)
        return ~np.asarray(batch.column(slot).is_valid())

    # ---------------------------------------------------------------- keys and morsels

    def keys(self) -> Keys:
        """First of key, id, name; the stem of path or uri; the stem of the first slot's path; the position."""
        if self.unit.batch is not None:
            return self._column_keys()
        rows = self.rows
        first = next((c.slot for c in self.chains if c.slot not in self.inactive), None)
        sources = self.values.get(first, ()) if first is not None else ()
        named = not (self.mappings and all(map(_KEYS.isdisjoint, rows)))
        pathlike = any(issubclass(kind, (str, os.PathLike)) for kind in set(map(type, sources)))
        return Keys(self.unit.indices, [self._key(row) for row in rows] if named else None, (sources,) if pathlike else ())

    @staticmethod
    def _key(record: Any) -> str | None:
        if isinstance(record, Mapping):
            for name in ("key", "id", "name"):
                if name in record:
                    return str(record[name])
            for name in ("path", "uri"):
                if isinstance(record.get(name), (str, os.PathLike)):
                    return stem(record[name])
        return None

    def _column_keys(self) -> Keys:
        names = self.unit.batch.schema.names  # type: ignore[union-attr]
        for name in ("key", "id", "name"):
            if name in names:
                return Keys(self.unit.indices, [str(v) for v in self.column(name)])
        first = next((c.slot for c in self.chains if c.slot not in self.inactive), None)
        return Keys(self.unit.indices, paths=tuple(self.column(n) for n in ("path", "uri", first) if n is not None and n in names))

    def morsel(self, offset: int, length: int, failed: frozenset[int]) -> Morsel:
        """Rows `[offset, offset + length)` of the batch."""
        whole = length == self.length
        return Morsel(
            indices=self.unit.indices[offset : offset + length],
            offset=offset,
            length=length,
            objects=dict(self.values) if whole else {n: v[offset : offset + length] for n, v in self.values.items()},
            batch=None if self.unit.batch is None else self.unit.batch.slice(offset, length),
            skip=frozenset(i - offset for i in failed if offset <= i < offset + length),
        )
