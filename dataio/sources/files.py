"""Records that are files: `files` lists paths and objects, `manifest` reads a list that was written down."""

from __future__ import annotations

import glob as _glob
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO, TextIOWrapper
from typing import Any, TypeAlias

from dataio.io.globbing import fixed_part, has_wildcards, matcher
from dataio.io.resolve import read_source
from dataio.io.store import ObjectInfo, open_store
from dataio.io.uri import local_path

from .records import RecordSource
from .rows import SequenceRows

Pattern: TypeAlias = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class Found:
    """A file that a pattern means.

    Attributes:
        uri: its path or URI.
        info: what a listing told of it; None where it was not listed in a store.
    """

    uri: str
    info: ObjectInfo | None


def files(glob: Pattern | Sequence[Pattern], *, recursive: bool = True) -> RecordSource:
    """The paths or URIs of files and objects, as str, in sorted order; listed now.

    Args:
        glob: a pattern, a file, or a folder (everything below it), local or in a store that can be listed; or a list of
            those, which keeps its order and drops a path that comes again. Hidden files and folders are skipped, `~` is not
            expanded. In a store a key that ends with "/", and one that no object has, is a folder.
        recursive: whether `**` crosses folders, and whether a folder means its subfolders too.

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: a URI of an unknown scheme.
        OSError: a store refuses, or cannot be reached.
        NotImplementedError: a pattern or folder in a store without listings.
    """
    if not isinstance(recursive, bool):
        raise TypeError(f"recursive must be a bool, got {recursive!r}")
    several = list(glob) if isinstance(glob, Iterable) and not isinstance(glob, (str, bytes)) else [glob]
    patterns = [_name("files", pattern) for pattern in several]
    found = dict.fromkeys(path for pattern in patterns for path in sorted(one.uri for one in find(pattern, recursive)))
    return RecordSource(SequenceRows(list(found), "files"))


def manifest(path: Pattern) -> RecordSource:
    """The records that a file lists, local or at any URI.

    Each line of a UTF-8 text file, stripped and not blank, is a record: a JSON object when it starts with "{",
    otherwise a path as it stands. A line that `run(quarantine=)` wrote is the record that failed; a last line of that
    kind that was cut off, because its writer was killed, is left out. The rows of a `.csv` file (with a header) and of a
    `.parquet` file are records by column name; bound to a pipeline they stay columns. One that is not local is read whole.

    Raises:
        OSError: the file cannot be read.
        ValueError: text that is not UTF-8, a URI of an unknown scheme, or a quarantined record that could not be written.
        json.JSONDecodeError: a line starts with "{" and is no JSON.
    """
    name = _name("manifest", path)
    title = f"manifest({name!r})"
    local = local_path(name)
    place = BytesIO(read_source(name)) if local is None else os.fsdecode(local)
    suffix = os.path.splitext(name)[1].lower()
    if suffix == ".csv":
        from pyarrow import csv

        from .columnar import TableSource

        return RecordSource(TableSource(csv.read_csv(place), title))
    if suffix == ".parquet":
        from pyarrow import dataset, parquet

        from .columnar import DatasetSource, TableSource

        if isinstance(place, BytesIO):
            return RecordSource(TableSource(parquet.read_table(place), title))
        return RecordSource(DatasetSource(dataset.dataset(place, format="parquet"), title))
    from dataio.quarantine import cut_off

    with TextIOWrapper(place, encoding="utf-8") if isinstance(place, BytesIO) else open(place, encoding="utf-8") as lines:
        texts = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if texts and cut_off(texts[-1][1]):
        texts.pop()
    found = [_manifest_record(text.strip(), number, name) for number, text in texts]
    return RecordSource(SequenceRows(found, title))


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


def _name(what: str, path: Any) -> str:
    name = os.fspath(path) if isinstance(path, (str, os.PathLike)) else path
    if not isinstance(name, str):
        raise TypeError(f"{what} takes paths and URIs as str or PathLike, got {path!r}")
    if "://" in name:
        open_store(name, bucket_alone=True)  # an unknown scheme is told now
    return name


def find(pattern: str, recursive: bool) -> Iterator[Found]:
    """The files that a pattern, file or folder means, in no order; arguments and errors as `files`."""
    local = local_path(pattern)
    if local is None:
        yield from _in_store(pattern, recursive)
        return
    pattern = os.fsdecode(local)
    if os.path.isfile(pattern):  # also a file whose name looks like a pattern
        yield Found(pattern, None)
    elif os.path.isdir(pattern):
        yield from (Found(path, None) for path in _below(pattern, recursive))
    else:
        yield from (Found(path, None) for path in _glob.iglob(pattern, recursive=recursive) if os.path.isfile(path))


def _in_store(pattern: str, recursive: bool) -> Iterator[Found]:
    """The objects that a URI means: itself, those a pattern matches, or those in a folder."""
    store, key = open_store(pattern, bucket_alone=True)
    if key and not key.endswith("/") and store.exists(key):  # also an object whose key looks like a pattern
        yield Found(pattern, None)
        return
    root = pattern.removesuffix(key)
    inside = key if not key or key.endswith("/") else f"{key}/"
    prefix = inside if inside == key or not has_wildcards(key) else fixed_part(key)
    found = [info for info in store.list(prefix) if not info.is_prefix and not info.key.endswith("/")]
    if prefix == inside or any(info.key.startswith(inside) for info in found):  # a folder, whatever its name looks like
        prefix = inside
        matches = matcher(_glob.escape(inside) + ("**" if recursive else "*"))
    else:
        matches = matcher(key if recursive else key.replace("**", "*"))
    start = prefix.rfind("/") + 1  # names that are spelled out may be hidden ones
    for info in found:
        if matches(info.key) and info.key[start] != "." and "/." not in info.key[start:]:
            yield Found(root + info.key, info)


def _below(folder: str, recursive: bool) -> Iterator[str]:
    for root, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if recursive and not name.startswith(".")]
        for name in names:
            if not name.startswith(".") and os.path.isfile(path := os.path.join(root, name)):
                yield path
