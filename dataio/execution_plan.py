"""`BoundPipeline.execution_plan`: what would be run for one record, told from the compiled program."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .engine import plan as nodes
from .engine.actors.source import Columns, slot_value
from .engine.custom import record_caller
from .engine.physical import ChainProgram, Program, compile_chain
from .engine.rules import optimize
from .engine.schema import TensorType
from .engine.units import Unit
from .io.resolve import place_of, read_source
from .sources import as_source

if TYPE_CHECKING:
    from .pipelines import BoundPipeline

_STAGES = ("read", "decode", "transform")


def execution_plan(bound: BoundPipeline, record: Any, index: int) -> dict[str, Any]:
    """See `BoundPipeline.execution_plan`."""
    if isinstance(index, bool) or not isinstance(index, int):
        raise TypeError(f"index must be an integer, got {index!r}")
    if index < 0:
        raise ValueError(f"index must be at least 0, got {index}")
    pipeline = bound.pipeline
    for function in pipeline.map_records:
        record = record_caller(function, bound.settings.get("seed") or 0, 0)(record, index)
    written = nodes.Slots(nodes.Scan(as_source([record])), pipeline.chains())
    chains = next(n.chains for n in nodes.walk(optimize(written).plan) if isinstance(n, nodes.Slots))
    program = Program(tuple(map(compile_chain, chains)), read_source)
    columns = Columns(Unit([record], None, range(index, index + 1)), program, chains)
    active = [chain for chain in program.chains if chain.slot not in columns.inactive]
    described = [
        _describe_chain(chain, slot_value(chain.slot, record, columns.single), columns.row_type(chain)) for chain in active
    ]
    whole = pipeline.describe()
    return {
        "chains": described,
        "output_count": len(active),
        "work_stages": [s for s in _STAGES if any(s in _stages(chain) for chain in active)],
        "slot_write_layout": described[0]["slot_write_layout"] if len(described) == 1 else None,
        "stream_shape": whole["shape"],
        "map_record_ops": whole["map_records"],
        "map_batch_ops": whole["map_batches"],
    }


def _stages(chain: ChainProgram) -> set[str]:
    return {step.stage for step in chain.steps} | ({"read"} if chain.reads else set())


def _describe_chain(chain: ChainProgram, value: Any, row: TensorType) -> dict[str, Any]:
    place, ranged = place_of(value) if chain.reads else (None, False)
    decoder, *transforms = (step.op for step in chain.steps)
    return {
        "name": chain.slot,
        "ops": [*(["read"] if chain.reads else []), decoder, *transforms],
        "read_work": place,
        "read_strategy": _strategy(chain, ranged),
        "decode_work": decoder,
        "transform_ops": len(transforms),
        "slot_write_layout": _layout(row),
    }


def _strategy(chain: ChainProgram, ranged: bool) -> str:
    if not chain.reads:
        return "passthrough"
    if chain.reads == "ranges":
        return "container"
    return "range" if ranged else "full_bytes"


def _layout(row: TensorType) -> dict[str, Any] | None:
    if not row.static:
        return None
    shape = [size for size in row.shape or () if size is not None]
    dtype = np.dtype(row.dtype)
    return {"shape": shape, "dtype": row.dtype, "bytes_per_sample": dtype.itemsize * int(np.prod(shape, dtype=np.int64))}
