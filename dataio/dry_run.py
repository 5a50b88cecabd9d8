"""`Pipeline.dry_run`: the first records, run for real, and a report of what came of them."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .engine.batch import FinishedBatch, SlotColumn, describe_error
from .engine.errors import SourceError
from .engine.plan import record_count
from .engine.schema import dtype_name
from .query import Query, scan
from .stages import BatchStage, BucketByStage, CollateStage, PackStage

if TYPE_CHECKING:
    from .pipelines import BoundPipeline, Pipeline

_REPORTED = (ValueError, KeyError, TypeError, RuntimeError)


def dry_run(pipeline: Pipeline, records: Any, max_records: int | None) -> dict[str, Any]:
    """See `Pipeline.dry_run`."""
    if max_records is not None:
        if isinstance(max_records, bool) or not isinstance(max_records, int):
            raise TypeError(f"max_records must be an integer or None, got {max_records!r}")
        if max_records < 0:
            raise ValueError(f"max_records must be at least 0, got {max_records}")
    found = Findings()
    unset = sorted(pipeline.unresolved_params())
    report = {
        "unresolved_params": unset,
        "required_columns": pipeline.required_columns(),
    }
    if unset:
        found.add("configure", f"parameters are not set: use configure({', '.join(f'{name}=...' for name in unset)})")
        return found.report() | report
    try:
        query = records if isinstance(records, Query) else scan(records)
    except Exception as error:
        found.add("records", _text(error))
        return found.report() | report
    began = time.perf_counter()
    found.run(pipeline, query if max_records is None else query.limit(max_records), max_records)
    if not found.attempted and not found.errors:
        found.add("records", "there are no records to run")
        return found.report() | report
    took = {"wall_time_ms": (time.perf_counter() - began) * 1e3}
    return found.report() | report | took | found.sizes()


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


@dataclass
class Findings:
    """What a dry run has seen so far."""

    attempted: int = 0
    survived: int = 0
    batches: int = 0
    slots: set[str] = field(default_factory=set)
    errors: list[dict[str, Any]] = field(default_factory=list)
    first: FinishedBatch | None = None

    def add(self, stage: str, message: str) -> None:
        self.errors.append({"stage": stage, "message": message})

    def run(self, pipeline: Pipeline, query: Query, most: int | None) -> None:
        """One pass over `query`, until `most` records were attempted."""
        shape = pipeline.shape
        if isinstance(shape, (BatchStage, BucketByStage, PackStage)):
            shape = replace(shape, drop_last=False)  # the records end where they do because of `most`
        try:
            self._run(replace(pipeline, shape=shape).bind(query), most)
        except SourceError as error:
            self.add("records", _text(error))
        except _REPORTED as error:
            self.add("iter", _text(error))
            if not isinstance(shape, CollateStage):  # the source counts batches
                self.attempted = max(self.attempted, record_count(query.plan) or 0)

    def _run(self, bound: BoundPipeline, most: int | None) -> None:
        with bound.run("numpy", on_failure=0, seed=0, workers="thread") as loader:
            iterator = iter(loader)
            # `take` gives the engine's batch, whatever a Python map made of it
            while (most is None or self.attempted < most) and (message := iterator.take()) is not None:
                iterator.deliver(message[0])
                self.see(message[0])

    def see(self, batch: FinishedBatch) -> None:
        """Note one batch."""
        self.attempted += batch.submitted
        self.survived += batch.submitted - batch.failed
        self.batches += 1
        self.slots.update(batch.slots)
        for error in batch.errors:
            self.errors.append({"stage": error["stage"], "index": error["record"], "message": describe_error(error)})
        if self.first is None and batch.length:
            self.first = batch

    def report(self) -> dict[str, Any]:
        return {
            "ok": self.survived > 0 and not self.errors,
            "records_attempted": self.attempted,
            "records_ok": self.survived,
            "batches_emitted": self.batches,
            "active_slots": sorted(self.slots),
            "errors": self.errors,
        }

    def sizes(self) -> dict[str, Any]:
        """What the first batch with records takes."""
        columns = self.first.slots if self.first is not None else {}
        return {
            "slot_shapes": {name: _shape(column.dense) for name, column in columns.items() if column.dense is not None},
            "batch_bytes_estimate": sum(map(_nbytes, columns.values())),
        }


def _shape(dense: np.ndarray) -> dict[str, Any]:
    return {
        "shape": list(dense.shape),
        "dtype": dtype_name(dense.dtype),
        "bytes_per_sample": dense.nbytes // len(dense),
    }


def _nbytes(column: SlotColumn) -> int:
    if column.objects:
        return 0
    return column.dense.nbytes if column.dense is not None else sum(row.nbytes for row in column.rows or ())
