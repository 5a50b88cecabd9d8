"""What is inside data sets: the first records, what they are made of, and figures over all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

from ..engine.errors import OpError
from .checking import MODULES, UNREADABLE, module_of, of_format
from .kinds import Target, target_of
from .listing import UriLike, listed

MOST_FILES = 100_000
"""Files whose figures are kept one by one."""


def first_records(target: Target, count: int) -> list[Any]:
    """The first records of a file: samples, rows, Examples, tensors, data sets, members or the header of an image.

    Raises:
        OpError: damaged before `count` records were read.
    """
    with naming_file(target):
        return list(islice(module_of(target.kind.name).head(target, count), count)) if count else []


def schema(uri: UriLike) -> dict[str, Any]:
    """What the records of a file are made of, by name: columns, features, tensors, data sets, suffixes or members.

    Of a folder, a pattern or shards, the first file that is of a kind that is known.

    Raises:
        FileNotFoundError: nothing is there.
        ValueError: damaged, or of no kind that is known.
    """
    target = next(_known([uri]), None)
    if target is None:
        raise OpError(f"{uri}: no file of a kind that is known")
    with naming_file(target):
        return {"uri": target.name, "kind": target.kind.name, "schema": module_of(target.kind.name).schema(target)}


def stats(uris: UriLike | Sequence[UriLike]) -> dict[str, Any]:
    """Figures: rows and columns of tables, samples and members of shards, parameters of weights, sizes and formats of images.

    Tables are read (the columns by Polars), TFRecord files too; of all others only headers and directories.

    Raises:
        FileNotFoundError: nothing is there.
        ValueError: a file is damaged; `check` tells of all.
    """
    files: list[dict[str, Any]] = []
    images: Any = None
    size = count = 0
    for target in _known(uris):
        count += 1
        size += target.size
        module = module_of(target.kind.name)
        with naming_file(target):
            figures, facts = module.stats(target)
        if figures is not None:
            if len(files) >= MOST_FILES:
                raise OpError(f"more than {MOST_FILES:,} files; ask for fewer")
            files.append({"uri": target.name, "kind": target.kind.name, "size": target.size, **figures})
        else:
            images = images or module.Together()
            images.add(target, facts)
    if not count:
        raise OpError(f"{uris}: no file of a kind that is known")
    told: dict[str, Any] = {"files": count, "bytes": size}
    if images is not None:
        told["images"] = images.stats()
    if files:
        told["contents"] = files
    return told


def _known(uris: UriLike | Sequence[UriLike]) -> Iterator[Target]:
    for name in listed(uris)[0]:
        target = target_of(name)
        if target.kind.name in MODULES:
            yield target


@contextmanager
def naming_file(target: Target) -> Iterator[None]:
    """Errors about the content name the file, whichever library raised them."""
    try:
        yield
    except UNREADABLE:
        raise
    except Exception as error:
        if not of_format(error):
            raise
        text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
        raise OpError(f"{target.name}: {text or type(error).__name__}") from error
