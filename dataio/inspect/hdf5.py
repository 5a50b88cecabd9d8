"""HDF5 files, by h5py (extra `hdf5`).

Codes: `truncated`, `damaged`, `unknown_filter` (a data set is compressed by what is not installed), `unreadable_dataset` (errors);
`broken_link` (a link to nothing, in circles, or out of the file, as data sets that are stored in other files or made of
them; none of these is followed), `different_lengths` (top-level data sets disagree
about the number of records) (warnings).
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..engine.errors import LimitError, OpError, missing_dependency
from ..formats.hdf5.links import MAX_DEPTH, MAX_HOPS, check_inside, find
from ..formats.inputs import local_file
from ..io.reader import reader
from .kinds import Target
from .report import Findings

STEP = 1 << 24
"""Bytes of a data set without chunks that are read at a time."""
LARGEST_CHUNK = 1 << 30


@contextmanager
def opened(target: Target) -> Iterator[Any]:
    """The `h5py.File`, read only."""
    try:
        import h5py
    except ImportError as error:
        raise missing_dependency("h5py", "hdf5", "looking into HDF5 files") from error
    with contextlib.suppress(ImportError):
        import hdf5plugin  # noqa: F401 - registers the filters that it brings

    path = local_file(target.uri)
    with contextlib.ExitStack() as held:
        source = path if path is not None else held.enter_context(reader(target.uri).open())
        yield held.enter_context(h5py.File(source, "r"))


def datasets(file: Any, found: Findings | None = None) -> Iterator[tuple[str, Any]]:
    """Every data set by its path, once; nothing is followed into other files."""
    import h5py
    from h5py import h5d, h5g, h5l, h5o

    root = file.id
    seen: set[tuple[int, int]] = set()
    stack: list[tuple[str, Any]] = [("", h5g.open(root, b"/"))]
    while stack:
        path, group = stack.pop()
        if path.count("/") > MAX_DEPTH:
            raise LimitError(f"groups are nested more than {MAX_DEPTH} deep")
        inner: list[tuple[str, Any]] = []
        for raw in sorted(group):
            name = raw.decode("utf-8", "surrogateescape")
            full = f"{path}/{name}" if path else name
            try:
                item = h5o.open(group, raw) if group.links.get_info(raw).type == h5l.TYPE_HARD else find(h5g.open(root, b"/"), full, file.filename)
                if item is None:
                    raise OpError("a link to what is not there")
                info = h5o.get_info(item)
                if (info.fileno, info.addr) in seen:
                    continue
                seen.add((info.fileno, info.addr))
                if isinstance(item, h5d.DatasetID):
                    check_inside(h5g.open(root, b"/"), item, "it", MAX_HOPS)
                    yield full, h5py.Dataset(item)
                elif isinstance(item, h5g.GroupID):
                    inner.append((full, item))
            except OpError as error:
                if found is not None:
                    found.warning("broken_link", str(error), full)
            except (KeyError, OSError, RuntimeError, ValueError) as error:
                if found is None:
                    raise
                found.error("unreadable_dataset", str(error), full)
        stack += reversed(inner)


def check(target: Target, found: Findings, quick: bool) -> tuple[int, Any]:
    """Every data set's filters, and unless `quick` its values."""
    count = 0
    lengths: Counter[int] = Counter()
    with opened(target) as file:
        for name, item in datasets(file, found):
            count += 1
            if item.ndim and "/" not in name:
                lengths[item.shape[0]] += 1
            missing = _unknown_filters(item)
            if missing:
                found.error("unknown_filter", f"is compressed by {', '.join(missing)}, which is not installed", name)
            elif not quick:
                _read(item, name, found)
    if len(lengths) > 1:
        shown = ", ".join(f"{number} of {length:,}" for length, number in lengths.most_common(5))
        found.warning("different_lengths", f"data sets have different numbers of records: {shown}")
    return count, None


def _unknown_filters(item: Any) -> list[str]:
    import h5py

    plan = item.id.get_create_plist()
    missing = []
    for number in range(plan.get_nfilters()):
        code, _, _, name = plan.get_filter(number)
        if not h5py.h5z.filter_avail(code):
            missing.append(f"filter {code} ({bytes(name).decode('utf-8', 'replace') or 'unnamed'})")
    return missing


def _read(item: Any, name: str, found: Findings) -> None:
    """Read a data set a part at a time."""
    if item.shape is None:
        return
    if item.chunks is not None and math.prod(item.chunks) * item.dtype.itemsize > LARGEST_CHUNK:
        found.error("unreadable_dataset", f"chunks of {list(item.chunks)} take more than {LARGEST_CHUNK:,} bytes each", name)
        return
    try:
        if not item.ndim:
            item[()]
            return
        if item.chunks is not None:
            # Only chunks that are stored: a data set may claim any shape without one.
            for number in range(item.id.get_num_chunks()):
                start = item.id.get_chunk_info(number).chunk_offset
                item[tuple(slice(at, min(at + size, end)) for at, size, end in zip(start, item.chunks, item.shape, strict=True))]
            return
        if not item.id.get_storage_size():
            return
        row = max(1, math.prod(item.shape[1:]) * item.dtype.itemsize)
        rows = max(1, STEP // row)
        for at in range(0, item.shape[0], rows):
            item[at : at + rows]
    except (OSError, RuntimeError, ValueError, KeyError, TypeError) as error:
        found.error("unreadable_dataset", str(error), name)


# ------------------------------------------------------------------------- what is inside


def _facts(item: Any) -> dict[str, Any]:
    facts: dict[str, Any] = {"dtype": str(item.dtype), "shape": None if item.shape is None else list(item.shape)}
    if item.chunks is not None:
        facts["chunks"] = list(item.chunks)
    if item.compression is not None:
        facts["compression"] = item.compression
    return facts


def schema(target: Target) -> dict[str, Any]:
    """dtype, shape, chunks and compression by data set."""
    with opened(target) as file:
        return {name: _facts(item) for name, item in datasets(file)}


def head(target: Target, count: int) -> Iterator[Any]:
    """The first data sets."""
    for number, (name, facts) in enumerate(schema(target).items()):
        if number >= count:
            return
        yield {"dataset": name, **facts}


def stats(target: Target) -> tuple[dict[str, Any], Any]:
    """Data sets, and their elements and stored bytes."""
    with opened(target) as file:
        sets = {name: {**_facts(item), "stored_bytes": item.id.get_storage_size()} for name, item in datasets(file)}
    return {"datasets": len(sets), "stored_bytes": sum(facts["stored_bytes"] for facts in sets.values()), "sets": sets}, None
