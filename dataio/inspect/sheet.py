"""`dataio preview`: the first records of files, of whatever kind, as a preview."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..engine.errors import OpError
from ..formats.inputs import read_bytes
from ..io.arguments import check_count
from ..look.cells import LARGEST, Cell, failed, look_at
from ..look.preview import Preview, check_size
from ..look.rows import of_rows, table_rows
from ..look.text import SIZE, human, plural
from .checking import MODULES, module_of
from .contents import naming_file
from .kinds import HEAD, Target, is_sound, kind_of, target_of
from .listing import UriLike, listed


def preview(uris: UriLike | Sequence[UriLike], *, count: int = 64, size: int = SIZE) -> Preview:
    """Look at records of a data set: of image and sound files evenly spread over all, of tar shards, tables and others the first ones.

    Args:
        uris: as `check` takes them: image and sound files, tar shards, Parquet, Arrow and TFRecord files, and all else that `head` knows.
        count: records, 1 to 1,000.
        size: pixels of the longer side of a picture; smaller ones are not enlarged, sounds are twice as wide.

    Returns:
        the preview; values that cannot be decoded are in its `failures`.

    Raises:
        ValueError: nothing of a kind that is known, or a damaged file, which the message names.
        OSError: unreadable.
    """
    check_size(count, size)
    check_count("count", count, least=1)
    names, _ = listed(uris)
    rows: list[Any] = []
    for row in _records(names, count, size):
        rows.append(row)
        if len(rows) == count:
            break
    if not rows:
        raise OpError(f"{uris}: no records of a kind that is known")
    title = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1:,} more"
    return of_rows(title, rows, size, notes=[plural(len(rows), "record")], files="none")


def figures(preview: Preview) -> dict[str, int]:
    """{"records", "pictures" (images and other arrays that are drawn), "sounds", "broken": values that cannot be decoded}."""
    cells = [cell for table in preview.tables for column in table.columns for cell in column.cells if cell is not None]
    sounds = sum(cell.kind == "sound" for cell in cells)
    broken = sum(cell.kind == "failed" for cell in cells)
    return {"records": preview.records, "pictures": sum(cell.pixels is not None for cell in cells) - sounds, "sounds": sounds, "broken": broken}


def _records(names: list[str], count: int, size: int) -> Iterator[Any]:
    """Rows of the files: mappings, whose large values are cells already, so that no more than one is held."""
    others: list[str] = []
    single: list[str] = []
    for name in names:
        (others if kind_of(name, b"").name in MODULES and kind_of(name, b"").name != "image" else single).append(name)
    step = max(1.0, len(single) / count)
    for number in range(min(count, len(single))):
        target = target_of(single[int(number * step)])
        if target.kind.name == "image" or (not target.kind.name and is_sound(target.name, _start(target))):
            yield {"key": target.name.rpartition("/")[2], "image" if target.kind.name == "image" else "sound": _content(target, size)}
        elif target.kind.name in MODULES:
            others.append(target.uri)
    for name in others:
        target = target_of(name)
        if target.kind.name in MODULES:
            with naming_file(target):
                yield from _inside(target, count, size)


def _start(target: Target) -> bytes:
    ranges = target.open()
    try:
        return bytes(ranges.read(0, min(HEAD, ranges.size)))
    finally:
        ranges.close()


def _content(target: Target, size: int) -> Cell:
    if target.size > LARGEST:
        return failed(f"OpError: {human(target.size)}, too large to look at", size)
    cell = look_at(memoryview(read_bytes(target.uri)), size)
    # named like an image or a sound, and none
    return cell if cell.pixels is not None else failed(f"OpError: {cell.text or cell.type}: not an image or a sound", size)


def _inside(target: Target, count: int, size: int) -> Iterator[Any]:
    """The first records of a file that holds many."""
    kind = target.kind.name
    if kind == "tar":
        yield from _of_tar(target, size)
    elif kind in ("parquet", "arrow"):
        for row in _of_table(target):
            yield {name: look_at(value, size) for name, value in row.items()}
    elif kind == "tfrecord":
        for record in module_of(kind).head(target, count):
            if not isinstance(record, dict):
                yield record
                continue
            yield {name: look_at(value[0] if isinstance(value, list) and len(value) == 1 else value, size) for name, value in record.items()}
    else:
        for record in module_of(kind).head(target, count):
            yield np.asarray(record) if isinstance(record, list) else record


def _of_tar(target: Target, size: int) -> Iterator[dict[str, Any]]:
    from .tar import split, walk

    key: str | None = None
    sample: dict[str, Any] = {}
    with walk(target, contents=True) as entries:
        while (entry := entries.next()) is not None:
            parts = split(entry.name) if entry.kind == "file" else None
            if parts is None:
                continue
            if parts[0] != key:
                if key is not None:
                    yield sample
                key = parts[0]
                sample = {"__key__": key}
            sample[parts[1]] = look_at(entries.read(entry), size) if entry.size <= LARGEST else failed(f"OpError: {human(entry.size)}, too large to look at", size)
    if key is not None:
        yield sample


def _of_table(target: Target) -> Iterator[dict[str, Any]]:
    """Rows, some at a time: one may be large."""
    from .tables import batch_of, opened, opened_arrow

    if target.kind.name == "parquet":
        with opened(target) as file:
            for batch in file.iter_batches(16, use_threads=False):
                yield from table_rows(batch)
        return
    with opened_arrow(target) as file:
        for number in range(file.num_record_batches):
            batch = batch_of(file, number)
            for first in range(0, batch.num_rows, 16):
                yield from table_rows(batch.slice(first, 16))
