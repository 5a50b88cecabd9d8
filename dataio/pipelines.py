"""`pipeline(...)`: stages into an immutable `Pipeline`, and `bind`: a pipeline and a source into a plan."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from .engine import plan as nodes
from .engine.calls import BatchTransform, Transform
from .engine.custom import CustomOp, canonical_function
from .engine.explain import explain as explain_plan
from .engine.explain import function_name, key_text
from .engine.expr import Cond
from .engine.rules import optimize
from .engine.signature import canonical_plan, signature
from .look.text import SIZE
from .sinks.methods import SinkMethods
from .stages import (
    BatchStage,
    BucketByStage,
    CollateStage,
    GroupByStage,
    MapStage,
    PackStage,
    ShapeStage,
    SlotsBuilder,
    SlotStage,
    _unique,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from .aliases import Concurrency, OnFailure, Order, PinMemory, RaggedPolicy, ShardLike
    from .arrow_function import ArrowFunction
    from .loader import DataLoader
    from .look.preview import Preview

DEFAULT_PREFETCH = 4
_SHAPES = "batch(...), collate(), group_by(...), bucket_by(...) or pack(...)"


@dataclass(frozen=True)
class Pipeline:
    """A static plan: record maps, slot chains, one shape stage, batch maps. Bind it to records to run it."""

    slots: tuple[SlotStage, ...]
    shape: ShapeStage | None = None
    map_records: tuple[Any, ...] = ()
    map_batches: tuple[Any, ...] = ()
    params: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        for s in self.slots:
            if not isinstance(s, SlotStage):
                raise TypeError(f"slots must be slot(...) stages, got {s!r}")
            if not s.output:
                raise ValueError("an unbound chain() is no slot: apply it to a slot(...) first")
        if not self.slots:
            raise ValueError("a pipeline requires at least one slot")
        for s in self.slots:
            s.to_chain()
        _unique([s.output for s in self.slots])
        if self.shape is not None and not isinstance(self.shape, ShapeStage):
            raise TypeError(f"shape must be one of {_SHAPES}, got {self.shape!r}")
        if isinstance(self.shape, PackStage):
            self._check_pack(self.shape)
        if self.map_batches and self.shape is None:
            raise ValueError("batch maps need a preceding shape stage: batch, collate or group_by")
        object.__setattr__(self, "params", MappingProxyType(dict(self.params)))

    def _check_pack(self, shape: PackStage) -> None:
        """A packed batch has rows of several records, and two slots of its own."""
        names = [s.output for s in self.slots]
        if shape.slot is not None and shape.slot not in names:
            raise ValueError(f"pack(slot={shape.slot!r}): the pipeline has the slots {', '.join(names)}")
        if taken := {"segment_ids", "positions"} & set(names):
            raise ValueError(f"pack() adds the slots segment_ids and positions; rename {', '.join(sorted(taken))}")
        if next(s for s in self.slots if s.output == (shape.slot or names[0])).optional:
            raise ValueError("the slot that pack() packs cannot be optional")
        for function in self.map_batches:
            if isinstance(function, BatchTransform):
                raise ValueError(
                    f"the batch transform {function} works on one row per record, and pack() makes rows of several"
                )

    def __reduce__(self) -> tuple[Any, ...]:
        return Pipeline, (self.slots, self.shape, self.map_records, self.map_batches, dict(self.params))  # the view of a dict has no pickle

    # ---------------------------------------------------------------- parameters

    def configure(self, **values: Any) -> Pipeline:
        """Set `param(...)` arguments; later values win."""
        return replace(self, params={**self.params, **values}) if values else self

    with_params = configure

    def required_params(self) -> frozenset[str]:
        """Names of all `param(...)` arguments."""
        return frozenset(p for s in self.slots for p, _ in s.to_chain().params())

    def unresolved_params(self) -> frozenset[str]:
        """Names of those that `configure` has not set."""
        return self.required_params() - self.params.keys()

    def chains(self) -> tuple[nodes.Chain, ...]:
        """The slots as plan chains, with the parameters set so far."""
        values = dict(self.params)
        return tuple(s.to_chain().configured(values) for s in self.slots)

    def required_columns(self) -> dict[str, list[str]]:
        """What a record must hold: `sources` (slots), `scalars` (fields that arguments read), `groupers`."""
        scalars = dict.fromkeys(f for c in self.chains() for f in c.columns())
        key = getattr(self.shape, "key", None) or getattr(self.shape, "tokens", None)
        groupers = sorted(key.columns()) if isinstance(key, Cond) else [key] if isinstance(key, str) else []
        return {"sources": [s.output for s in self.slots], "scalars": list(scalars), "groupers": groupers}

    # ---------------------------------------------------------------- looking

    def describe(self) -> dict[str, Any]:
        """The pipeline as plain values."""
        return {
            "slots": [s.describe() for s in self.slots],
            "map_records": [canonical_function(f) for f in self.map_records],
            "shape": _describe_shape(self.shape),
            "map_batches": [
                f.canonical() if isinstance(f, BatchTransform) else canonical_function(f) for f in self.map_batches
            ],
        }

    def explain(self) -> str:
        """The stages as a text tree; `bind(records).explain()` also shows the optimised plan."""
        tree = [_slot_tree(s, chain) for s, chain in zip(self.slots, self.chains())]
        if self.map_records:
            tree.append(_Tree("map_records", [_Tree(function_name(f)) for f in self.map_records]))
        tree.append(_Tree(_shape_text(self.shape)))
        if self.map_batches:
            names = (str(f) if isinstance(f, BatchTransform) else function_name(f) for f in self.map_batches)
            tree.append(_Tree("map_batches", [_Tree(name) for name in names]))
        return "\n".join(["Pipeline", *_tree_lines(tree)])

    def dry_run(self, records: Any, *, max_records: int | None = 8) -> dict[str, Any]:
        """Run the first records and report what came of them, without raising for what a run would raise or skip.

        A real run in every other way: one pass with the pipeline's own loader, on threads, NumPy output, seed 0. A
        last batch that is not full is kept even under `drop_last`, and a failed record is reported instead of skipped.

        Args:
            records: what `bind` takes.
            max_records: how many of them; None: all. `collate()` ends with the batch that reaches it.

        Returns:
            `ok`: at least one record came through, and there was no error.
            `records_attempted`, `records_ok`, `batches_emitted`: numbers.
            `active_slots`: sorted names of the slots that some batch had.
            `errors`: dicts with `stage` and `message`. "configure": parameters are not set, and nothing was run;
            "records": the source is empty, of no use, or raised; "iter": an exception of the run; else the stage of a
            failed record, with its number in this run as `index`.
            `unresolved_params` (sorted), `required_columns`: as the methods say.
            And once it ran: `wall_time_ms`; `slot_shapes`: `shape`, `dtype` and `bytes_per_sample` of each slot that
            is one tensor in the first batch with records; `batch_bytes_estimate`: bytes of that batch's tensors, 0
            without one.

        Raises:
            TypeError, ValueError: `max_records` is no number of at least 0.
            Exception: what Python functions on batches raise, unless it is a ValueError, KeyError, TypeError or
                RuntimeError.
        """
        from .dry_run import dry_run

        return dry_run(self, records, max_records)

    # ---------------------------------------------------------------- Arrow

    def as_arrow_function(
        self,
        *,
        columns: Sequence[str] | None = None,
        errors: str | None = "error",
        batch_rows: int | None = None,
        types: Mapping[str, pa.DataType] | None = None,
        **options: Any,
    ) -> ArrowFunction:
        """The slots as a function from record batches to record batches, for bulk runs on an engine that speaks Arrow.

        It is called with an iterator of `pyarrow.RecordBatch` and gives a generator of them: the columns that are kept, then the slots, then the errors.
        Rows keep their order and their number; a row that fails has nulls in all slots and the reason in the column of errors. The batches are read
        on a thread of their own, some batches ahead, and the slots run as in training, so memory holds the record batches that are being worked
        on and a few batches of results. It can be pickled (with cloudpickle where functions have no importable name), and runs in forked and spawned workers;
        each call has a loader of its own, which ends with the generator.

        A pipeline may have record maps and `batch(n)`. Other shape stages, stages behind the batch and optional slots are refused: they move,
        mix or drop rows.

        Tensors of one shape are columns of `arrow.fixed_shape_tensor` (0-d: of numbers), those of bool and of shapes that differ or are not known ahead
        structs of `data` (list of the elements in C order) and `shape` (list of int32). `passthrough()` keeps the column's type. Random ops draw from
        `seed` and the row's number in this call, or from the row's own column `seed`.

        Args:
            columns: input columns to keep, as they are. None: all but those that a slot takes the place of.
            errors: name of the column with the reason of a failed row, null elsewhere. None: no column; the first failed row raises.
            batch_rows: rows worked on together, and at most those of a batch that comes out. None: those of `batch(n)`, else 64.
            types: Arrow types of slots whose dtype cannot be known ahead (`decode_npy` without `cast`, `custom`).
            options: of `run`: concurrency, seed (default 0), max_bytes, cache, workers, worker_niceness, worker_cpus.

        Returns:
            The function; its `schema(input_schema)` gives the schema of what comes out.

        Raises:
            PlanError: (a ValueError) a pipeline with other stages, or unset parameters.
            TypeError, ValueError: arguments out of range. When it is called: SchemaError, BatchError, SourceError.
        """
        from .arrow_function import arrow_function

        return arrow_function(self, columns=columns, errors=errors, batch_rows=batch_rows, types=types, options=options)

    def preview(self, records: Any, n: int = 8, *, size: int = SIZE, seed: int = 0) -> Preview:
        """Run the first records, and show the value of each slot after every op: pictures, shapes, dtypes, ranges, nulls and failures.

        The ops run as they are written, one record at a time, with the random draws that a run with this seed makes in its first epoch.
        Batch transforms run last, on all of them as one batch; Python functions on batches do not run.

        Args:
            records: what `bind` takes.
            n: records, 1 to 1,000.
            size: pixels of the longer side of a picture, 8 to 1,024.
            seed: of random ops.

        Returns:
            shown in notebooks; `save("x.html")` and `save("x.png")` write it to any URI. A record that fails is in its `failures`.

        Raises:
            TypeError, ValueError: arguments out of range, parameters that are not set, a source of no use, ops that do not fit together;
                or what batch transforms raise.
        """
        from .look.stages import preview

        return preview(self, records, n, size, seed)

    # ---------------------------------------------------------------- binding

    def bind(self, records: Any) -> BoundPipeline:
        """Join a record source: anything that `dataio.sources` takes; it is checked by `run`."""
        return BoundPipeline(self, records)

    def iter(self, records: Any, output: Any = "torch", **options: Any) -> Iterator[Any]:
        """Iterate one epoch; the loader is closed at the end, on `break` and on garbage collection."""
        return self.bind(records).options(**options).iter(output)

    def to_plan(self, below: nodes.Plan, *, whole_records: bool = False) -> nodes.Plan:
        """The logical plan over what `below` yields.

        Raises:
            ValueError: no shape stage.
        """
        if self.shape is None:
            raise ValueError("this pipeline needs an explicit batch / collate / group_by / bucket_by / pack stage to run")
        plan = below
        for function in self.map_records:
            plan = nodes.MapRecords(plan, function)
        slots = nodes.Slots(plan, self.chains(), whole_records)
        plan = self._shape_node(slots, self.shape)
        if calls := tuple(f for f in self.map_batches if isinstance(f, BatchTransform)):
            plan = nodes.BatchOps(plan, calls)
        for function in self.map_batches:
            if not isinstance(function, BatchTransform):
                plan = nodes.MapBatches(plan, function)
        return plan

    def _shape_node(self, slots: nodes.Plan, shape: ShapeStage) -> nodes.Shape:
        prefetch = shape.prefetch or DEFAULT_PREFETCH
        match shape:
            case BatchStage():
                return nodes.Batch(slots, shape.batch_size, shape.drop_last, prefetch)
            case GroupByStage():
                return nodes.GroupBy(slots, shape.key, prefetch)
            case BucketByStage():
                return nodes.BucketBy(
                    slots, shape.key, shape.sizes, shape.boundaries, shape.drop_last, shape.max_open, prefetch
                )
            case PackStage():
                slot = shape.slot or self.slots[0].output
                return nodes.Pack(
                    slots,
                    shape.length,
                    shape.size,
                    slot,
                    shape.tokens or slot,
                    shape.strategy,
                    shape.open_rows,
                    shape.overflow,
                    shape.pad_value,
                    shape.drop_last,
                    prefetch,
                )
        return nodes.Collate(slots, prefetch)


def _describe_shape(shape: ShapeStage | None) -> dict[str, Any] | None:
    match shape:
        case BatchStage():
            return {"kind": "batch", "batch_size": shape.batch_size, "drop_last": shape.drop_last, "prefetch": shape.prefetch}
        case CollateStage():
            return {"kind": "collate", "prefetch": shape.prefetch}
        case GroupByStage():
            return {"kind": "group_by", "key": shape.key, "prefetch": shape.prefetch}
        case BucketByStage():
            return {"kind": "bucket_by", **_plain_fields(shape)}
        case PackStage():
            return {"kind": "pack", **_plain_fields(shape)}
    return None


def _plain_fields(shape: BucketByStage | PackStage) -> dict[str, Any]:
    found = {f.name: getattr(shape, f.name) for f in fields(shape)}
    for name in ("key", "tokens"):
        if isinstance(found.get(name), Cond):
            found[name] = found[name].canonical()
        elif callable(found.get(name)):
            found[name] = canonical_function(found[name])
    return found


class _Tree(NamedTuple):
    """A line of `explain()` and those below it."""

    title: str
    below: Sequence[_Tree] = ()


def _tree_lines(tree: Sequence[_Tree], before: str = "") -> Iterator[str]:
    for node in tree:
        last = node is tree[-1]
        yield f"{before}{'└── ' if last else '├── '}{node.title}"
        yield from _tree_lines(node.below, before + ("    " if last else "│   "))


def _slot_tree(stage: SlotStage, chain: nodes.Chain) -> _Tree:
    lines = [_Tree(f"skip_when: {stage.skip_cond}")] if stage.skip_cond else []
    lines += [_Tree(f"source: record[{stage.output!r}]"), _Tree(f"decode: {chain.decoder}")]
    if chain.transforms:
        lines.append(_Tree("transforms:", [_Tree(_transform_text(t)) for t in chain.transforms]))
    return _Tree(f'Slot "{stage.output}"{" [optional]" if stage.optional else ""}', lines)


def _transform_text(transform: Transform) -> str:
    """The call, or what `configure` has yet to give it."""
    if not (pending := transform.params()):
        return str(transform)
    return f"<deferred {transform.name}> pending {', '.join(f'param:{name}' for name in pending)}"


def _shape_text(shape: ShapeStage | None) -> str:
    prefetch = f", prefetch={shape.prefetch}" if shape is not None and shape.prefetch else ""
    match shape:
        case BatchStage():
            return f"batch: batch_size={shape.batch_size}, drop_last={shape.drop_last}{prefetch}"
        case CollateStage():
            return f"collate{prefetch}"
        case GroupByStage():
            return f"group_by: {key_text(shape.key)}{prefetch}"
        case BucketByStage():
            sizes = shape.sizes if isinstance(shape.sizes, int) else dict(shape.sizes)
            return f"bucket_by: {key_text(shape.key)}, sizes={sizes}, drop_last={shape.drop_last}{prefetch}"
        case PackStage():
            return f"pack: length={shape.length}, size={shape.size}, strategy={shape.strategy}{prefetch}"
    return "shape: <none> (record stream)"


def pipeline(*stages: Any) -> Pipeline:
    """Put stages together: record maps, slots, one shape stage, then batch maps.

    Raises:
        ValueError: no slot, a slot without decoder, a name twice, two shape stages, a slot after the shape stage.
        TypeError: anything that is no stage.
    """
    slots: list[SlotStage] = []
    shape: ShapeStage | None = None
    maps: list[Any] = []
    batch_maps: list[Any] = []
    for stage in stages:
        match stage:
            case SlotStage() | SlotsBuilder():
                if shape is not None:
                    raise ValueError("slots must stand before the shape stage")
                slots.extend([stage] if isinstance(stage, SlotStage) else stage)
            case BatchStage() | CollateStage() | GroupByStage() | BucketByStage() | PackStage():
                if shape is not None:
                    raise ValueError(f"a pipeline has at most one terminal shape stage of {_SHAPES}")
                shape = stage
            case MapStage():
                if isinstance(stage.op, BatchTransform) and shape is None:
                    raise ValueError(f"the batch-level op {stage.op} needs a preceding shape stage")
                (maps if shape is None else batch_maps).append(stage.op)
            case _:
                raise TypeError(
                    f"a pipeline takes slot(...), slots(...), map(...) and one of {_SHAPES}, got {stage!r}"
                )
    return Pipeline(tuple(slots), shape, tuple(maps), tuple(batch_maps))


@dataclass(frozen=True)
class BoundPipeline(SinkMethods):
    """A pipeline and the records it will run on; options may be set one by one or given to `run`."""

    pipeline: Pipeline
    records: Any
    settings: Mapping[str, Any] = field(default_factory=dict)

    def run(
        self,
        output: Any = "torch",
        *,
        concurrency: Concurrency | None = "auto",
        pin_memory: PinMemory = "auto",
        ragged: RaggedPolicy = "list",
        on_failure: OnFailure = "skip",
        order: Order | None = None,
        seed: int | None = None,
        emit_empty_batches: bool = True,
        log_errors: Any = False,
        max_failures: float | None = None,
        quarantine: str | os.PathLike[str] | None = None,
        max_bytes: int | str | None = None,
        cache: Any = None,
        device: str | None = None,
        context: Any = None,
        workers: str | None = "auto",
        worker_niceness: int | None = None,
        worker_cpus: Iterable[int] | None = None,
        shard: ShardLike = None,
        steps: str | None = None,
    ) -> DataLoader:
        """Check everything and return the loader; nothing is read before it is iterated.

        Args:
            output: "torch", "numpy", "dlpack", "arrow", "jax", a registered adapter's name, or a callable per tensor.
            concurrency: records of one batch worked on at a time; "auto" leaves it to the workers.
            pin_memory: True puts batches in page-locked memory (needs CUDA); "auto" does so when `device` is a GPU.
            ragged: "list", "error" or "skip" for slots whose rows differ in shape or dtype.
            on_failure: "strict" raises on the first row error; "skip" drops failed rows and raises when a batch has no
                survivor; n asks for at least n survivors.
            order: "submit" (default) or "completion".
            seed: of all random ops and unseeded shuffles; None draws one for this loader, or is 0 for a shard, so that all
                ranks have one order.
            emit_empty_batches: whether batches without survivors (`on_failure=0`) are delivered.
            log_errors: True logs each row error on `dataio.rows`; a callable gets each error dict.
            max_failures: how many records may fail before `FailureBudgetError` is raised instead of the next batch: a
                number for the loader's life, or a fraction of the records delivered, judged from 1,000 records on and
                at the end of each pass. Checkpoints hold the counts.
            quarantine: a file to which each failed record is appended once, as a line of JSON, so that
                `dataio.manifest` of that file gives them again for the same pipeline; "{rank}" in the name is the
                number of the shard.
            max_bytes: bytes, or a str such as "4GiB", that the loader's records and batches may take together, those that the
                training loop still holds included; a batch that would not fit waits, unless no other is in flight.
            cache: a directory, or a `dataio.Cache`, that keeps the remote objects which the slots read, for the next pass, run
                and rank of this machine; False keeps none. None: what DATAIO_CACHE_DIR says, as for sources that stream.
            device: where tensors go, for torch and jax. torch tensors are copied there one batch ahead of the
                consumer, on a CUDA stream of the loader's own; a copy that fails is told when the slot is asked for.
            context: called with each record as bound; the results are `batch.context`.
            workers: "thread", "process", or "auto": what DATAIO_EXECUTOR says, else threads until they are found to wait
                for the interpreter lock, then processes.
            worker_niceness: 0 to 19, added to the trainer's niceness in worker processes; "auto" means processes then.
            worker_cpus: numbers of the cores that worker processes are kept to; "auto" means processes then.

            shard: this rank's share: `{"id", "of"}` with `sticky` and `pad`, a `ShardSpec`, or "auto" for what
                `torch.distributed` or the launcher says.
            steps: how all ranks come to equally many batches when the last ones are not full: "pad" repeats a rank's last
                record, "drop" leaves them out on all ranks, "short" gives what there is, perhaps an empty batch. None: "pad"
                for a shard with `pad`, else each rank has what it has. Without `shard`, each rank's records are its
                own, and ranks of a process group agree on the number while they read.

        Raises:
            ValueError, TypeError: an option out of range or of the wrong kind, an unusable source, no shape stage.
        """
        from .run_options import make_loader

        given = {
            "concurrency": (concurrency, "auto"),
            "pin_memory": (pin_memory, "auto"),
            "ragged": (ragged, "list"),
            "on_failure": (on_failure, "skip"),
            "order": (order, None),
            "seed": (seed, None),
            "emit_empty_batches": (emit_empty_batches, True),
            "log_errors": (log_errors, False),
            "max_failures": (max_failures, None),
            "quarantine": (quarantine, None),
            "max_bytes": (max_bytes, None),
            "cache": (cache, None),
            "device": (device, None),
            "context": (context, None),
            "workers": (workers, "auto"),
            "worker_niceness": (worker_niceness, None),
            "worker_cpus": (worker_cpus, None),
            "shard": (shard, None),
            "steps": (steps, None),
        }
        options = {k: self.settings.get(k, v) if v == default and type(v) is type(default) else v for k, (v, default) in given.items()}
        return make_loader(self, output, **options)

    def iter(self, output: Any = "torch") -> Iterator[Any]:
        """Iterate one epoch with the options set so far, and close the loader whatever happens."""
        with self.run(output) as loader:
            yield from loader

    def options(self, **options: Any) -> BoundPipeline:
        """Set run options ahead of `run`; what `run` is given wins."""
        for name in options:
            if name not in _OPTIONS:
                raise TypeError(f"unknown option {name!r}; known: {', '.join(_OPTIONS)}")
        return replace(self, settings={**self.settings, **options})

    def concurrency(self, value: Concurrency) -> BoundPipeline:
        return self.options(concurrency=value)

    def pin_memory(self, value: PinMemory) -> BoundPipeline:
        return self.options(pin_memory=value)

    def ragged(self, value: RaggedPolicy) -> BoundPipeline:
        return self.options(ragged=value)

    def on_failure(self, value: OnFailure) -> BoundPipeline:
        return self.options(on_failure=value)

    def order(self, value: Order) -> BoundPipeline:
        return self.options(order=value)

    def seed(self, value: int) -> BoundPipeline:
        return self.options(seed=value)

    def emit_empty_batches(self, value: bool = True) -> BoundPipeline:
        return self.options(emit_empty_batches=value)

    def log_errors(self, value: Any = True) -> BoundPipeline:
        return self.options(log_errors=value)

    def shard(self, value: ShardLike) -> BoundPipeline:
        return self.options(shard=value)

    def steps(self, value: str | None) -> BoundPipeline:
        return self.options(steps=value)

    def max_failures(self, value: float | None) -> BoundPipeline:
        return self.options(max_failures=value)

    def quarantine(self, value: str | os.PathLike[str] | None) -> BoundPipeline:
        return self.options(quarantine=value)

    def max_bytes(self, value: int | str | None) -> BoundPipeline:
        return self.options(max_bytes=value)

    def cache(self, value: Any) -> BoundPipeline:
        return self.options(cache=value)

    def device(self, value: str) -> BoundPipeline:
        return self.options(device=value)

    def worker_niceness(self, value: int) -> BoundPipeline:
        return self.options(worker_niceness=value)

    def worker_cpus(self, value: Iterable[int]) -> BoundPipeline:
        return self.options(worker_cpus=value)

    # ---------------------------------------------------------------- the plan

    @property
    def length(self) -> int | None:
        """Records of one pass (of `collate()`: batches), None when that is not known before reading.

        Raises:
            TypeError: the records are no source of records.
        """
        return nodes.record_count(self._below())

    def execution_plan(self, record: Any, *, index: int = 0) -> dict[str, Any]:
        """What would be run for one record, rewritten as it runs; nothing is read. Record maps are called.

        Args:
            record: as the source gives it.
            index: its number in the pass, which the random draws of record maps follow from.

        Returns:
            `chains`: a dict for each slot that is active for this record: `name`; `ops`, names from "read" on; `read_work`,
            where its bytes lie ("inline_bytes", "file", "reader", or a URI's scheme; None for a value that is passed
            on as it is); `read_strategy`, "full_bytes", "range", "container" (the decoder reads the parts it needs) or
            "passthrough"; `decode_work`, the decoder's name; `transform_ops`, their number; `slot_write_layout`,
            `shape`, `dtype` and `bytes_per_sample` of the rows that workers write into the batch, None where that is not
            known before decoding.
            `output_count`: active slots.
            `work_stages`: of "read", "decode" and "transform", those that some chain has.
            `slot_write_layout`: that of the only slot; None where there are several.
            `stream_shape`, `map_record_ops`, `map_batch_ops`: as in `Pipeline.describe()`.

        Raises:
            TypeError, ValueError, KeyError: an `index` that is none, a record or a value that cannot be read, a missing
                field, a plan that cannot run; or whatever a record map raises.
        """
        from .execution_plan import execution_plan

        return execution_plan(self, record, index)

    def plan(self, *, whole_records: bool = False) -> nodes.Plan:
        """The logical plan, as written."""
        return self.pipeline.to_plan(self._below(), whole_records=whole_records)

    def _below(self) -> nodes.Plan:
        """What gives the records."""
        from .query import Query
        from .sources import as_source

        return self.records.plan if isinstance(self.records, Query) else nodes.Scan(as_source(self.records))

    def explain(self) -> str:
        """The plan as written, the rules that fired, and the plan as it runs."""
        plan = self.plan()
        return explain_plan(plan, optimize(plan))

    def signature(self) -> str:
        """SHA-256 of the plan's canonical form; the source is no part of it."""
        return signature(self.plan())

    def describe(self) -> list[dict[str, Any]]:
        """The canonical form of the plan."""
        return canonical_plan(self.plan())


_OPTIONS = (
    "concurrency", "pin_memory", "ragged", "on_failure", "order", "seed", "emit_empty_batches", "log_errors",
    "max_failures", "quarantine", "max_bytes", "cache", "device",
    "context", "workers", "worker_niceness", "worker_cpus", "shard", "steps",
)  # fmt: skip

__all__ = ["BoundPipeline", "CustomOp", "Pipeline", "pipeline"]
