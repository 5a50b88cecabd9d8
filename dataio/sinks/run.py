"""`sink`: run a pipeline once, write its rows as shards on threads of their own, and go on where a killed run stopped.

A shard ends after `shard_size` rows wherever its batch stands: the manifest keeps the loader's state in front of that batch and the
records of it that are stored. A shard is in the manifest once it and all before it are whole, so a run that is killed leaves at most
whole shards that the manifest does not name yet; the next run writes them again, the same.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..batches import Batch
from ..engine.errors import did_you_mean
from ..engine.ledger import parse_bytes
from ..io.errors import ObjectNotFoundError
from ..io.uri import local_path
from ..io.verbs import delete, exists, head
from ..sharding import as_shard
from ..stages import BatchStage, BucketByStage, PackStage
from .manifest import ERRORS_KEPT, Manifest, Shard, SinkError, load_manifest
from .rows import Fields, Layout, Row, check_rows, layout_of, row_bytes, rows_of

if TYPE_CHECKING:
    from ..pipelines import BoundPipeline

BATCH = 64
"""Records of a batch where the pipeline has no shape stage."""
_RUN_OPTIONS = (
    "concurrency", "on_failure", "seed", "log_errors", "max_failures", "quarantine", "max_bytes", "cache", "workers",
    "worker_niceness", "worker_cpus", "shard",
)  # fmt: skip
Save = Callable[[str, Sequence[Row], Layout, dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class SinkReport:
    """What a sink has written, earlier runs included.

    Attributes:
        path: the folder.
        shards: names of the files in it, in order.
        rows, bytes, failed: rows stored, bytes of the files, records that failed.
        errors: the first failed records, as `Batch.errors` gives them.
    """

    path: str
    shards: tuple[str, ...]
    rows: int
    bytes: int
    failed: int
    errors: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Format:
    """A file format: its name, the suffix of shards, what writes one, and whether fields have one layout in all shards."""

    name: str
    suffix: str
    save: Save
    columnar: bool


def sink(
    bound: BoundPipeline,
    path: str | os.PathLike[str],
    kind: Format,
    *,
    shard_size: int | str,
    columns: Sequence[str],
    ragged: Sequence[str],
    overwrite: bool,
    writers: int,
    progress: Callable[[SinkReport], Any] | None,
    options: Mapping[str, Any],
    format_options: dict[str, Any],
) -> SinkReport:
    """Write a training set; see `BoundPipeline.sink_parquet`."""
    folder = os.fspath(path).rstrip("/")
    if isinstance(writers, bool) or not isinstance(writers, int) or writers < 1:
        raise ValueError(f"writers must be an integer of at least 1, got {writers!r}")
    if isinstance(columns, str) or isinstance(ragged, str):
        raise TypeError("columns and ragged are lists of names")
    for name in options:
        if name not in _RUN_OPTIONS:
            raise TypeError(f"a sink has no option {name!r}{did_you_mean(name, _RUN_OPTIONS)}; known: {', '.join(_RUN_OPTIONS)}")
    limit = parse_bytes("shard_size", shard_size)
    by_rows = isinstance(shard_size, int)
    bound = _prepared(bound, columns, dict(options))
    part = as_shard(bound.settings.get("shard"))
    wanted = {
        "format": kind.name,
        "plan": bound.signature(),
        "source": _source(bound),
        "shard_size": shard_size,
        "columns": list(columns),
        "ragged": list(ragged),
        "seed": bound.settings["seed"],
        "shard": None if part is None else [part.id, part.of, part.sticky],
        "options": format_options,
    }
    name = "_dataio.json" if part is None else f"_dataio-{part.id:05d}-of-{part.of:05d}.json"
    before = "part-" if part is None else f"part-{part.id:05d}-of-{part.of:05d}-"
    state = _begin(folder, f"{folder}/{name}", f"{folder}/{before}{0:05d}.{kind.suffix}", wanted, overwrite)
    if not state.complete:
        _Sink(folder, name, before, kind, format_options, state, limit, by_rows, tuple(columns), tuple(ragged), writers, progress).run(bound)
    return report_of(folder, state)


def report_of(folder: str, state: Manifest) -> SinkReport:
    """What the manifest says, for callers."""
    return SinkReport(
        folder, tuple(s.name for s in state.shards), sum(s.rows for s in state.shards),
        sum(s.bytes for s in state.shards), state.failed, tuple(state.errors),
    )  # fmt: skip


def _prepared(bound: BoundPipeline, columns: Sequence[str], options: dict[str, Any]) -> BoundPipeline:
    """The pipeline and options that a sink runs: every record comes, once, in one order."""
    shape = bound.pipeline.shape
    if isinstance(shape, PackStage):
        raise SinkError("pack() makes rows of several records: sink the pipeline without it, and pack when training")
    if shape is None:
        shape = BatchStage(BATCH)
    elif isinstance(shape, (BatchStage, BucketByStage)):
        shape = replace(shape, drop_last=False)
    names = ["key", *(s.output for s in bound.pipeline.slots), *columns]
    if twice := [name for name in names if names.count(name) > 1]:
        raise SinkError(f"two fields of a row would be named {twice[0]!r} (the record's key is stored as 'key'): rename the slot or column")
    settings = {k: v for k, v in {**bound.settings, **options}.items() if k in _RUN_OPTIONS}
    settings.setdefault("on_failure", 0)  # a batch without survivors is no reason to stop
    if settings.get("seed") is None:
        settings["seed"] = 0
    if (part := as_shard(settings.get("shard"))) is not None:
        settings["shard"] = replace(part, pad=False)  # a padded shard repeats records
    if columns:
        settings["context"] = Fields(tuple(columns))
    return replace(bound, pipeline=replace(bound.pipeline, shape=shape), settings=settings)


def _source(bound: BoundPipeline) -> list[Any]:
    """What tells the source from another, as far as that can be told without reading it."""
    from ..engine.plan import Scan, walk

    sources = [node.source for node in walk(bound.plan()) if isinstance(node, Scan)]
    return [[s.describe(), s.length(), s.order_identity()] for s in sources]


def _begin(folder: str, uri: str, first: str, wanted: dict[str, Any], overwrite: bool) -> Manifest:
    state = None if overwrite else load_manifest(uri)
    if state is not None:
        state.check(wanted, uri)
        return state
    if not overwrite and exists(first):
        raise SinkError(f"{first} exists, without the manifest of a sink: write to another folder, or use overwrite=True")
    if overwrite:
        _remove(folder, uri)
    if (local := local_path(folder)) is not None:
        os.makedirs(local, exist_ok=True)
    state = Manifest(wanted)
    state.save(uri)
    return state


def _remove(folder: str, uri: str) -> None:
    """Delete an old sink: first its manifest, so that nobody goes on with half of it."""
    try:
        old = load_manifest(uri)
    except SinkError:  # of another version, or no manifest: its shards are not known
        old = None
    for name in [uri, *(f"{folder}/{shard.name}" for shard in old.shards)] if old is not None else []:
        with suppress(ObjectNotFoundError, FileNotFoundError):
            delete(name)


class _Sink:
    """One run of a sink: the caller's thread iterates the loader, `writers` threads write shards."""

    def __init__(
        self, folder: str, manifest: str, before: str, kind: Format, format_options: dict[str, Any], state: Manifest, limit: int,
        by_rows: bool, columns: tuple[str, ...], ragged: tuple[str, ...], writers: int, progress: Callable[[SinkReport], Any] | None,
    ) -> None:  # fmt: skip
        self._folder, self._uri, self._before, self._kind = folder, f"{folder}/{manifest}", before, kind
        self._format_options, self._state = format_options, state
        self._limit, self._by_rows = limit, by_rows
        self._columns, self._ragged = columns, ragged
        self._writers, self._progress = writers, progress
        self._rows: list[Row] = []
        self._size = 0
        self._failed = 0
        self._errors: list[dict[str, Any]] = []
        self._number = len(state.shards)
        self._pending: deque[tuple[Future[Shard], dict[str, Any], list[int], list[dict[str, Any]]]] = deque()

    def run(self, bound: BoundPipeline) -> None:
        state = self._state
        stored = set(state.taken)
        with bound.run("numpy") as loader, ThreadPoolExecutor(self._writers, "dataio-sink") as pool:
            try:
                if state.state is not None:
                    loader.load_state_dict(state.state)
                batches = iter(loader)
                while True:
                    here = loader.state_dict()
                    batch = next(batches, None)
                    if batch is None:
                        break
                    if not isinstance(batch, Batch):
                        raise SinkError(f"a sink stores batches, and the pipeline's last map gives {type(batch).__name__}")
                    if not stored:  # the failures of a batch that was begun are counted
                        self._note(batch.errors)
                    self._take(batch, here, stored, pool)
                    stored = set()
                if self._rows or not self._number:  # a training set without a record is one empty file
                    self._submit(pool, here, [], last=True)
                while self._pending:
                    self._settle(last=True)
            except BaseException:
                for future, *_ in self._pending:
                    future.cancel()
                raise
        if not state.complete:  # a run before this one was killed behind its last row
            self._complete()
            state.save(self._uri)

    def _complete(self) -> None:
        """All is stored: count the failures behind the last row."""
        state = self._state
        state.failed += self._failed
        state.errors = (state.errors + self._errors)[:ERRORS_KEPT]
        state.complete = True

    def _take(self, batch: Batch, here: dict[str, Any], stored: set[int], pool: ThreadPoolExecutor) -> None:
        taken = sorted(stored)
        for position, row in rows_of(batch, self._columns):
            if position in stored:
                continue
            self._rows.append(row)
            self._size += 1 if self._by_rows else row_bytes(row)
            taken.append(position)
            if self._size >= self._limit:
                self._submit(pool, here, list(taken))

    def _note(self, errors: list[dict[str, Any]]) -> None:
        self._failed += len(errors)
        self._errors += errors[: ERRORS_KEPT - len(self._errors)]

    def _submit(self, pool: ThreadPoolExecutor, here: dict[str, Any], taken: list[int], *, last: bool = False) -> None:
        """Hand the rows to a thread; wait while all of them have a shard, so that memory is bounded."""
        while len(self._pending) >= self._writers:
            self._settle()
        rows, self._rows, self._size = self._rows, [], 0
        if self._state.layout is None:
            self._state.layout = layout_of(rows, self._ragged)
        if self._kind.columnar:
            check_rows(rows, self._state.layout)
        name = f"{self._before}{self._number:05d}.{self._kind.suffix}"
        self._number += 1
        failed, self._failed = self._failed, 0
        errors, self._errors = self._errors, []
        self._pending.append((pool.submit(self._write, name, rows, failed), here, taken, errors))
        if self._number == 1:  # what its writer settles holds for all others
            self._settle(last=last)

    def _write(self, name: str, rows: list[Row], failed: int) -> Shard:
        uri = f"{self._folder}/{name}"
        assert self._state.layout is not None
        self._kind.save(uri, rows, self._state.layout, self._format_options)
        return Shard(name, len(rows), head(uri).content_length or 0, failed)

    def _settle(self, *, last: bool = False) -> None:
        """Wait for the oldest shard, and note it; `last`: no shard is to come, so that the last one's note says that all is done (the
        loader's state behind the last batch is the next epoch's beginning, and nobody is to go on there).
        """
        future, here, taken, errors = self._pending[0]
        shard = future.result()
        self._pending.popleft()
        state = self._state
        state.shards.append(shard)
        state.state, state.taken = here, taken
        state.failed += shard.failed
        state.errors = (state.errors + errors)[:ERRORS_KEPT]
        if last and not self._pending:
            self._complete()
        state.save(self._uri)
        if self._progress is not None:
            self._progress(report_of(self._folder, state))
