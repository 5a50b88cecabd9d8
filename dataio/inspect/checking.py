"""`dataio.check`: every file of a data set is looked at by the checker of its kind, several at a time."""

from __future__ import annotations

import importlib
import os
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from ..engine.errors import DataioError, MissingDependencyError
from ..formats.inputs import name_of
from ..io.arguments import check_count
from ..io.errors import StoreError
from .kinds import Target, target_of
from .listing import UriLike, listed
from .report import Findings, Report, Together

MODULES = {
    "tar": "tar", "parquet": "tables", "arrow": "tables", "tfrecord": "tfrecord", "safetensors": "weights",
    "safetensors_index": "weights", "hdf5": "hdf5", "npy": "arrays", "npz": "arrays", "zip": "arrays", "image": "images",
}  # fmt: skip
"""The module of this package that knows a kind."""
UNREADABLE = (ConnectionError, TimeoutError, PermissionError, FileNotFoundError, IsADirectoryError, StoreError, MissingDependencyError)
"""Errors that say nothing about what a file holds."""


@dataclass
class _Outcome:
    uri: str
    found: Findings
    target: Target | None = None
    facts: Any = None
    records: int = 0
    notes: list[str] = field(default_factory=list)


def module_of(kind: str) -> Any:
    """The module that checks, prints and counts files of a kind."""
    return importlib.import_module(f"{__package__}.{MODULES[kind]}")


def check(
    uri: UriLike | Sequence[UriLike],
    *,
    quick: bool = False,
    max_findings: int = 1000,
    workers: int | None = None,
    progress: Callable[[int, int], Any] | None = None,
) -> Report:
    """Look for damage and mistakes in a data set: tar shards, Parquet, Arrow, TFRecord, safetensors, HDF5, .npy, .npz, zip, images.

    Files are read a part at a time, `workers` of them at once; nothing is changed. What the checks are called (`Finding.code`) and
    what they mean is in the modules of `dataio.inspect`.

    Args:
        uri: a file, a folder, a pattern, shards with a range such as `{0000..0099}`, or a list of these; local or in any store.
        quick: read headers, footers and directories only; otherwise everything is decoded.
        max_findings: findings that are kept; all are counted.
        workers: files at a time; None for the number of CPUs, at most 8.
        progress: gets the files done, and of how many.

    Returns:
        the report; damage never raises.

    Raises:
        FileNotFoundError: nothing is there, or nothing matches.
        ValueError, TypeError: arguments that are none.
        OSError: a folder or store cannot be listed.
    """
    check_count("max_findings", max_findings)
    if workers is not None:
        check_count("workers", workers, least=1)
    names, named = listed(uri)
    found = Findings(names[0] if len(names) == 1 else _common(names), max_findings)
    kinds: Counter[str] = Counter()
    together: dict[str, Together] = {}
    files = size = records = skipped = 0

    def one(name: str) -> _Outcome:
        return _checked(name, named, quick, max_findings)

    for done, outcome in enumerate(_in_order(one, names, workers or min(8, os.cpu_count() or 1)), 1):
        found.take(outcome.found)
        target = outcome.target
        if target is None or target.kind.name in MODULES or outcome.found.kept:
            files += 1
            records += outcome.records
        else:
            skipped += 1
        if target is not None:
            size += target.size
            if target.kind.name:
                kinds[target.kind.name] += 1
            if outcome.facts is not None:
                module = MODULES[target.kind.name]
                if module not in together:
                    together[module] = getattr(module_of(target.kind.name), "Together", Together)()
                together[module].add(target, outcome.facts)
        if progress is not None:
            progress(done, len(names))
    for shared in together.values():
        shared.finish(found)
    counts = {severity: found.counts[severity] for severity in ("error", "warning", "info")}
    return Report(tuple(found.kept), counts, files, size, records, dict(sorted(kinds.items())), skipped)


def _checked(name: str, named: bool, quick: bool, most: int) -> _Outcome:
    """Check one file; whatever is wrong with it becomes a finding."""
    outcome = _Outcome(name, Findings(name_of(name), most))
    found = outcome.found
    try:
        outcome.target = target = target_of(name)
        kind = target.kind
        if not kind.name:
            if named:
                found.error("unknown_format", "neither the content nor the name tells what this is")
            return outcome
        if not target.size:
            found.error("empty", "the file is empty (0 bytes)")
            return outcome
        if kind.by_content and kind.by_name not in ("", kind.name) and (kind.name, kind.by_name) != ("npz", "zip"):
            found.warning("wrong_extension", f"the name says {kind.by_name}, the content is {kind.name}")
        outcome.records, outcome.facts = module_of(kind.name).check(target, found, quick)
    except UNREADABLE as error:
        found.error("unreadable", str(error))
    except Exception as error:
        if not of_format(error):
            raise
        text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
        found.error(code_of(text), text or type(error).__name__)
    return outcome


def of_format(error: Exception) -> bool:
    """Whether this is how a library tells of a damaged file: they raise many kinds (h5py RuntimeError and KeyError, pyarrow its own)."""
    kinds = (DataioError, ValueError, OSError, RuntimeError, KeyError, MemoryError, NotImplementedError, EOFError)
    return isinstance(error, kinds) or type(error).__module__.partition(".")[0] in ("pyarrow", "polars", "PIL", "google")


def code_of(text: str) -> str:
    """The code of a format's own error."""
    lowered = text.lower()
    return "truncated" if any(word in lowered for word in ("truncated", "cut off", "ends early", "unexpected end")) else "damaged"


def _in_order(work: Callable[[str], _Outcome], names: list[str], workers: int) -> Iterator[_Outcome]:
    """What `work` gives for each name, in order; twice as many as there are workers are begun at most."""
    if len(names) == 1:
        yield work(names[0])
        return
    pool = ThreadPoolExecutor(workers, thread_name_prefix="dataio-check")
    begun: deque[Future[_Outcome]] = deque()
    try:
        for name in names:
            begun.append(pool.submit(work, name))
            if len(begun) >= 2 * workers:
                yield begun.popleft().result()
        while begun:
            yield begun.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _common(names: list[str]) -> str:
    """The folder that all names are in, for findings about several files."""
    shared = os.path.commonprefix(names)  # noqa: RUF071 - cut at a slash below; commonpath would make one of the two in "s3://"
    return shared[: shared.rfind("/") + 1] or "."
