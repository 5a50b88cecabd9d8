"""The Shape actor: gathers morsels into batches, drops failed rows, keeps the order, applies the failure policy."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ..actor import Actor, Mailbox, Mark
from ..batch import Allocate, FinishedBatch, Job, SlotColumn
from ..calls import BatchTransform
from ..errors import BatchError
from ..explain import function_name
from ..packs import packed
from ..plan import Pack
from ..rng import batch_stream
from ..work import MorselResult

if TYPE_CHECKING:
    from ..run import Graph


class ShapeActor(Actor):
    """Receives `(batch number, (job, morsel result))`, and END or an error in its place."""

    def __init__(self, graph: Graph, mailbox: Mailbox) -> None:
        super().__init__("shape", graph, mailbox)
        self.graph = graph
        self.jobs: dict[int, Job] = {}
        self.finished_batches: dict[int, Any] = {}
        self.next = graph.resume.batches
        self.end: tuple[int, Any] | None = None
        self.emitted = self.next

    def receive(self, message: tuple[int, Any]) -> None:
        number, what = message
        if isinstance(what, tuple):
            job, result = what
            self.jobs[number] = job
            self.collect(job, result)
        elif what is None:  # delivered before the checkpoint that this pass continues from
            self.emit_in_order(number, None)
        else:  # END or an error: in its place after the last batch
            self.end = (number, what)
            self.emit_end()

    def collect(self, job: Job, result: MorselResult) -> None:
        stats = self.graph.stats
        stats.add(result)
        if stats.trace is not None:
            stats.trace.morsel(job.number, result)
        self.graph.experience.morsel(result)
        self.graph.ledger.note_read(result.bytes_read, result.length)
        for failure in result.failures:
            job.failures.setdefault(failure.row, failure)
        for slot, chain in result.chains.items():
            if chain.values is not None:
                job.results.setdefault(slot, []).append((result.offset, result.length, chain.values))
            if chain.sizes is not None:
                sizes = job.sizes.setdefault(slot, [None] * job.length)
                sizes[result.offset : result.offset + result.length] = chain.sizes
        job.waiting -= result.length
        if job.waiting == 0:
            self.finish(job)

    def finish(self, job: Job) -> None:
        del self.jobs[job.number]
        stats = self.graph.stats
        stats.finished(job.length, len(job.failures))
        began = time.perf_counter_ns()
        batch = self.graph.judge(assemble(job, self.graph))
        ended = time.perf_counter_ns()
        stats.add_collate(ended - began)
        if stats.trace is not None:
            stats.trace.span("shape", f"batch {job.number}", began, ended, batch=job.number, records=job.length, failed=len(job.failures))
            stats.trace.depth("records in flight", records=stats.inflight)
        self.emit_in_order(job.number, batch)

    def emit_in_order(self, number: int, batch: FinishedBatch | BatchError | None) -> None:
        """Give the batch on, after those before it unless any order will do; None was delivered long ago."""
        if self.graph.order == "completion":
            self.emit(batch)
        else:
            self.finished_batches[number] = batch
            while self.next in self.finished_batches:
                self.emit(self.finished_batches.pop(self.next))
                self.next += 1
        self.emit_end()

    def emit(self, batch: FinishedBatch | BatchError | None) -> None:
        self.emitted += 1
        if batch is not None:
            self.graph.next_mailbox.put(batch)

    def emit_end(self) -> None:
        if self.end is not None and self.emitted == self.end[0]:
            self.graph.next_mailbox.put(self.end[1])
            self.end = None


def assemble(job: Job, graph: Graph) -> FinishedBatch:
    """The survivors of a job whose morsels are all back."""
    failed = job.failures
    indices = range(job.length) if not failed else [i for i in range(job.length) if i not in failed]
    slots: dict[str, SlotColumn] = {}

    memory, buffers = job.memory, graph.executor.buffers

    def allocate(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        return memory.allocate(buffers, shape, np.dtype(dtype)).array

    for chain in job.program.chains:
        slot = chain.slot
        if slot in job.inactive:
            continue
        sizes = job.sizes.get(slot)
        if sizes is not None and failed:
            sizes = [sizes[i] for i in indices]
        block = job.blocks.get(slot)
        if block is not None and slot in job.guessed and slot in job.results:  # some row had another type than guessed
            job.results[slot].extend(rows_in_place(job, slot, block.array))
            block = None
        if block is not None:
            graph.experience.row_type(slot, block.array)
            array = block.array
            if failed:
                close_gaps(array, indices)
                array = array[: len(indices)]
            slots[slot] = SlotColumn(dense=array, sizes=sizes)
            continue
        column = gather(job, slot, indices, chain.is_object, allocate)
        graph.experience.row_type(slot, column.dense)
        column.sizes = sizes
        slots[slot] = column
    job.blocks = {}
    if job.unit.bins is not None and isinstance(graph.shape, Pack):
        slots, indices = packed(job, graph.shape, slots, list(indices), allocate)
    memory.finished()
    return FinishedBatch(job, slots, indices, allocate, memory)


def close_gaps(array: np.ndarray, indices: Any) -> None:
    """Move the surviving rows to the front, in place."""
    for to, row in enumerate(indices):
        if to != row:
            array[to] = array[row]


def rows_in_place(job: Job, slot: str, array: np.ndarray) -> list[tuple[int, int, Any]]:
    """The rows of a guessed block that were written there, as pieces; rows that came back by value are taken out."""
    by_value = {
        offset + i for offset, _, values in job.results[slot] for i, value in enumerate(values) if value is not None
    }
    return [(i, 1, [array[i].copy()]) for i in range(job.length) if i not in by_value and i not in job.failures]


def gather(job: Job, slot: str, indices: Any, objects: bool, allocate: Allocate) -> SlotColumn:
    """One column from what the morsels returned row by row, or as whole arrays."""
    pieces = sorted(job.results.get(slot, ()), key=lambda piece: piece[0])
    arrays = [values for _, _, values in pieces if isinstance(values, np.ndarray)]
    if arrays and len(arrays) == len(pieces) and len({(a.shape[1:], a.dtype) for a in arrays}) == 1:
        whole = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
        if job.failures:
            whole = whole[np.asarray(indices, dtype=np.intp)]
        job.memory.ledger.note_rows(slot, whole.nbytes, len(whole))
        return SlotColumn(dense=job.memory.hold([whole])[0])
    if len(pieces) == 1 and not job.failures and isinstance(pieces[0][2], list):
        rows = pieces[0][2]
    else:
        by_row: list[Any] = [None] * job.length
        for offset, _, values in pieces:
            for i, value in enumerate(values, offset):
                if value is not None:
                    by_row[i] = value
        rows = [by_row[i] for i in indices] if job.failures else by_row
    if objects or any(not isinstance(row, np.ndarray) for row in rows):
        return SlotColumn(rows=rows if rows is not None else [], objects=True)
    job.memory.ledger.note_rows(slot, sum(row.nbytes for row in rows), len(rows))
    if rows and all(row.shape == rows[0].shape and row.dtype == rows[0].dtype for row in rows):
        first = rows[0]
        return SlotColumn(dense=np.stack(rows, out=allocate((len(rows), *first.shape), first.dtype)))
    return SlotColumn(rows=job.memory.hold(rows))


class BatchOpsActor(Actor):
    """Applies the batch transforms, then the Python batch maps, in order, to each finished batch."""

    def __init__(self, graph: Graph, mailbox: Mailbox) -> None:
        super().__init__("batch-ops", graph, mailbox)
        self.graph = graph

    def receive(self, message: Any) -> None:
        if isinstance(message, (Mark, BaseException)):
            self.graph.ready.put(message)
            return
        op = "a batch map"
        try:
            for position, call in enumerate(self.graph.batch_ops):
                op = f"{call}"
                message = self.timed(call.name, message, self.transformed, message, call, position)
            if not self.graph.batch_maps:
                self.graph.ready.put(message)
                return
            op = "a batch map"
            result = self.graph.wrap(message)
            for function in self.graph.batch_maps:
                result = self.timed(function_name(function), message, function, result)
        except Exception as error:
            error.add_note(f"in {op}, batch {message.number}")
            self.graph.ready.put(error)
            return
        self.graph.delivery.put((message, result))

    def transformed(self, batch: FinishedBatch, call: BatchTransform, position: int) -> FinishedBatch:
        """One transform on one batch; a batch without survivors has nothing to transform."""
        if not batch.length:
            return batch
        graph, arguments = self.graph, call.arguments
        if "rng" in call.spec.injected:
            arguments["rng"] = batch_stream(graph.seed, graph.epoch, graph.step(batch.number), position, arguments.get("seed"))
        result: FinishedBatch = call.spec.function(batch, **arguments)
        return result

    def timed(self, op: str, batch: FinishedBatch, function: Callable[..., Any], *arguments: Any) -> Any:
        """`function(*arguments)`, counted as work of `op` on `batch`."""
        stats = self.graph.stats
        began = time.perf_counter_ns()
        result = function(*arguments)
        ended = time.perf_counter_ns()
        stats.add_batch_op(op, ended - began, batch.length)
        if stats.trace is not None:
            stats.trace.span("batch ops", op, began, ended, batch=batch.number, records=batch.length)
        return result
