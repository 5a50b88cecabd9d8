"""Records from the local disk: `files` lists paths, `manifest` reads a list that was written down."""

from __future__ import annotations

import glob as _glob
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

from .records import RecordSource
from .rows import SequenceRows

Pattern: TypeAlias = str | os.PathLike[str]


def files(glob: Pattern | Sequence[Pattern], *, recursive: bool = True) -> RecordSource:
    """The paths of local files, as str, in sorted order; listed now.

    Args:
        glob: a pattern, a file, or a folder (everything below it); or a list of those, which keeps its order and
            drops a path that comes again. Hidden files and folders are skipped, `~` is not expanded.
        recursive: whether `**` crosses folders, and whether a folder means its subfolders too.

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: a URI.
    """
    if not isinstance(recursive, bool):
        raise TypeError(f"recursive must be a bool, got {recursive!r}")
    several = list(glob) if isinstance(glob, Iterable) and not isinstance(glob, (str, bytes)) else [glob]
    patterns = [_local_path("files", pattern) for pattern in several]
    found = dict.fromkeys(path for pattern in patterns for path in sorted(_matches(pattern, recursive)))
    return RecordSource(SequenceRows(list(found), "files"))


def manifest(path: Pattern) -> RecordSource:
    """The records that a local file lists.

    Each line of a UTF-8 text file, stripped and not blank, is a record: a JSON object when it starts with "{",
    otherwise a path as it stands. A line that `run(quarantine=)` wrote is the record that failed; a last line of that
    kind that was cut off, because its writer was killed, is left out. The rows of a `.csv` file (with a header) and of a
    `.parquet` file are records by column name; bound to a pipeline they stay columns.

    Raises:
        OSError: the file cannot be read.
        ValueError: a URI, text that is not UTF-8, or a quarantined record that could not be written.
        json.JSONDecodeError: a line starts with "{" and is no JSON.
    """
    local = _local_path("manifest", path)
    suffix = os.path.splitext(local)[1].lower()
    if suffix == ".csv":
        from pyarrow import csv

        from .columnar import TableSource

        return RecordSource(TableSource(csv.read_csv(local), f"manifest({local!r})"))
    if suffix == ".parquet":
        from pyarrow import dataset

        from .columnar import DatasetSource

        scanned = DatasetSource(dataset.dataset(local, format="parquet"), f"manifest({local!r})")
        return RecordSource(scanned)
    from dataio.quarantine import cut_off

    with open(local, encoding="utf-8") as lines:
        texts = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if texts and cut_off(texts[-1][1]):
        texts.pop()
    found = [_manifest_record(text.strip(), number, local) for number, text in texts]
    return RecordSource(SequenceRows(found, f"manifest({local!r})"))


def _manifest_record(text: str, number: int, path: str) -> Any:
    if not text.startswith("{"):
        return text
    from dataio.quarantine import record_of

    try:
        return record_of(json.loads(text))
    except json.JSONDecodeError as error:
        error.add_note(f"line {number} of the manifest {path}")
        raise
    except ValueError as error:
        raise ValueError(f"line {number} of the manifest {path}: {error}") from error


def _local_path(what: str, path: Any) -> str:
    name = os.fspath(path) if isinstance(path, (str, os.PathLike)) else path
    if not isinstance(name, str):
        raise TypeError(f"{what} takes local paths as str or PathLike, got {path!r}")
    if "://" in name:
        raise ValueError(
            f"{what} takes local paths, got the URI {name!r}; list it with dataio.glob, or use dataio.urls"
        )
    return name


def _matches(pattern: str, recursive: bool) -> Iterator[str]:
    if os.path.isfile(pattern):  # also a file whose name looks like a pattern
        yield pattern
    elif os.path.isdir(pattern):
        yield from _below(pattern, recursive)
    else:
        yield from filter(os.path.isfile, _glob.iglob(pattern, recursive=recursive))


def _below(folder: str, recursive: bool) -> Iterator[str]:
    for root, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if recursive and not name.startswith(".")]
        for name in names:
            if not name.startswith(".") and os.path.isfile(path := os.path.join(root, name)):
                yield path
