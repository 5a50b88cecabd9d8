"""Previews of pipelines: the value of each slot of the first records after every op, run by the engine's own row loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..engine import plan as nodes
from ..engine.actors.source import Columns
from ..engine.calls import BatchTransform
from ..engine.cutting import open_cutter
from ..engine.errors import DataioError, PlanError, SourceError
from ..engine.failure import Failure
from ..engine.morsel import column_values
from ..engine.physical import ChainProgram, Program, Step, compile_chain
from ..engine.rules import optimize
from ..engine.source import FIRST_PASS
from ..engine.units import Unit
from ..engine.work import MISSING, run_morsel
from ..io.arguments import check_count
from ..io.ranges import open_ranges
from ..io.resolve import read_source
from ..stages import BatchStage, CollateStage
from .cells import NULL, OFF, Cell, Hint, failed, look_at
from .preview import Column, Preview, Table, check_size, label_of
from .text import plural, short

if TYPE_CHECKING:
    from ..pipelines import Pipeline

WORKERS = 4
"""Records that are worked on at a time."""


def preview(pipeline: Pipeline, records: Any, n: int, size: int, seed: int) -> Preview:
    """See `Pipeline.preview`."""
    from ..query import Query, scan

    check_size(n, size)
    check_count("seed", seed)
    if unset := sorted(pipeline.unresolved_params()):
        raise PlanError(f"parameters are not set: use configure({', '.join(f'{name}=...' for name in unset)})")
    chains = pipeline.chains()
    program = Program(tuple(map(compile_chain, chains)), read_source, opener=open_ranges)
    query = records if isinstance(records, Query) else scan(records)
    plan = query.plan
    units, notes, failures = _units(pipeline, query, n)
    for setup in program.setups:
        setup()
    looked = [_Looked(unit, program, chains, size, seed) for unit in units]
    with ThreadPoolExecutor(WORKERS, "dataio-preview") as pool:
        list(pool.map(_Looked.run, looked))
    for one in looked:
        failures += one.failures
    tables = [_table(chain, number, looked) for number, chain in enumerate(chains)]
    if any(isinstance(function, BatchTransform) for function in pipeline.map_batches):
        tables = _with_batch(pipeline, tables, Query(nodes.Limit(plan, n)), looked, size, seed)
    last = list(nodes.walk(plan))[-1]
    of = last.source.describe() if isinstance(last, nodes.Scan) else type(last).__name__
    return Preview(f"{plural(len(looked), 'record')} of {of}", tuple(tables), tuple(notes), tuple(failures))


def _units(pipeline: Pipeline, records: Any, n: int) -> tuple[list[Unit], list[str], list[dict[str, Any]]]:
    """The first `n` records, each as a unit of its own; what the source raised behind them is told."""
    collates = isinstance(pipeline.shape, CollateStage)
    shape = pipeline.shape if collates else BatchStage(n)
    plan = optimize(replace(pipeline, shape=shape, map_batches=()).bind(records).plan()).plan
    top = next(node for node in nodes.walk(plan) if isinstance(node, nodes.Shape))
    cutter = open_cutter(top, FIRST_PASS)
    units: list[Unit] = []
    notes: list[str] = []
    failures: list[dict[str, Any]] = []
    try:
        for unit in cutter:
            units += [replace(unit.chosen([row]), after=None) for row in range(min(len(unit), n - len(units)))]
            if len(units) >= n:
                break
    except (SourceError, TypeError) as error:
        cause = error.__cause__ or error
        notes.append(f"the source failed behind {plural(len(units), 'record')}")
        failures.append(
            {"record": len(units), "key": None, "slot": None, "stage": "source", "op": None, "type": type(cause).__name__, "message": str(cause)}
        )
    finally:
        cutter.close()
    if not units and not failures:
        notes.append("there are no records")
    return units, notes, failures


def _watched(step: Step, note: Callable[[Any], None]) -> Step:
    """The step without its faster forms, which tells what it gave."""
    function = step.view or step.function

    def run(value: Any, **arguments: Any) -> Any:
        result = function(value, **arguments)
        note(result)
        return result

    return replace(step, function=run, view=None, out=None, batched=None, batched_out=None, sources_out=None, original_hw=None)


@dataclass
class _Looked:
    """One record on its way through the slots."""

    unit: Unit
    program: Program
    chains: tuple[nodes.Chain, ...]
    size: int
    seed: int
    key: str = ""
    cells: dict[str, list[Cell]] = field(default_factory=dict)
    failures: list[dict[str, Any]] = field(default_factory=list)

    @property
    def record(self) -> int:
        return int(self.unit.indices[0])

    def run(self) -> None:
        """Fill `cells` by slot: the source's value, then what each op gave, up to the one that failed."""
        try:
            columns = Columns(self.unit, self.program, self.chains)
        except DataioError as error:  # no slot can be had: a column is missing, or all slots are off
            self._fail(Failure(0, None, "read", "read", None, type(error).__name__, str(error)))
            return
        self.key = columns.keys()[0]
        if columns.failures:
            self._fail(columns.failures[0])
        for chain in self.program.chains:
            if chain.slot in columns.inactive:
                self.cells[chain.slot] = [OFF]
            elif not columns.failures:
                self._chain(chain, columns)

    def _chain(self, chain: ChainProgram, columns: Columns) -> None:
        seen = self.cells[chain.slot] = [_given(columns, chain.slot, self.size)]
        hint = hint_of(chain.steps[0].op)

        def note(value: Any) -> None:
            seen.append(look_at(value, self.size, hint))

        watched = replace(chain, steps=tuple(_watched(step, note) for step in chain.steps))
        program = replace(self.program, chains=(watched,))
        result = run_morsel(program, columns.morsel(0, 1, frozenset()), {}, self.seed, 0)
        for failure in result.failures:
            self._fail(failure)

    def _fail(self, failure: Failure) -> None:
        self.failures.append(
            {
                "record": self.record,
                "key": self.key or None,
                "slot": failure.slot,
                "stage": failure.stage,
                "op": failure.op,
                "type": failure.error,
                "message": failure.message,
            }
        )
        cell = failed(f"{failure.error}: {failure.message}", self.size, picture=False)
        for slot in [failure.slot] if failure.slot is not None else [chain.slot for chain in self.chains]:
            seen = self.cells.setdefault(slot, [])
            if failure.stage == "read" and len(seen) == 1:
                seen[0] = replace(cell, text=f"{seen[0].text}: {cell.text}")
            else:
                seen.append(cell)


def _given(columns: Columns, slot: str, size: int) -> Cell:
    """What the record holds for a slot, before anything is read."""
    found = columns.values.get(slot)
    if found is None and columns.unit.batch is not None:
        found = column_values(columns.unit.batch.column(slot))
    value = found[0] if found else None
    if value is None or value is MISSING:
        return NULL
    if isinstance(value, (bytes, bytearray, memoryview)):
        return Cell("bytes", short(value, 24), f"{len(value):,} bytes")
    shown = look_at(value, size)
    return replace(shown, pixels=None, text=shown.text or shown.type)


def _table(chain: nodes.Chain, number: int, looked: Sequence[_Looked]) -> Table:
    names = ["source", *map(str, chain.calls)]
    columns = []
    for stage, name in enumerate(names):
        cells = [cells[stage] if stage < len(cells := one.cells.get(chain.slot, [])) else None for one in looked]
        columns.append(Column(name, tuple(cells)))
    return Table(chain.slot, "stages", tuple(label_of(one.record, one.key) for one in looked), tuple(columns))


def _with_batch(pipeline: Pipeline, tables: list[Table], records: Any, looked: Sequence[_Looked], size: int, seed: int) -> list[Table]:
    """The tables with one more column: what the batch transforms made of the records, taken together as one batch by a real run.

    Raises:
        what the batch transforms raise.
    """
    calls = tuple(function for function in pipeline.map_batches if isinstance(function, BatchTransform))
    shape = pipeline.shape if isinstance(pipeline.shape, CollateStage) else BatchStage(max(1, len(looked)))
    bound = replace(pipeline, shape=shape, map_batches=calls).bind(records)
    place = {one.record: row for row, one in enumerate(looked)}
    cells: dict[str, list[Cell | None]] = {table.name: [None] * len(looked) for table in tables}
    with bound.run("numpy", on_failure=0, seed=seed, workers="thread", concurrency=1) as loader:
        iterator = iter(loader)
        if (message := iterator.take()) is not None:
            iterator.deliver(message[0])
            batch = message[0]
            for slot, column in batch.slots.items():
                values: Any = column.dense if column.dense is not None else column.rows or []
                for i, row in enumerate(batch.indices):
                    position = place.get(int(batch.positions[row]))
                    if slot in cells and position is not None:
                        value = values[i, ...] if isinstance(values, np.ndarray) else values[i]
                        cells[slot][position] = look_at(value.copy() if isinstance(value, np.ndarray) else value, size, _hint(pipeline, slot))
    name = ", ".join(f"batch: {call}" for call in calls)
    return [replace(table, columns=(*table.columns, Column(name, tuple(cells[table.name])))) for table in tables]


def _hint(pipeline: Pipeline, slot: str) -> Hint:
    return hint_of(next(chain.decoder.name for chain in pipeline.chains() if chain.slot == slot))


def hint_of(decoder: str) -> Hint:
    """What the values of a chain hold, by its decoder."""
    return "sound" if decoder == "audio" else "image" if decoder in ("image", "image_dct", "jpeg") else ""
