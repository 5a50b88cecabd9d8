"""`npz`: the arrays of an .npz file, local or in any store, as records."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

from dataio.engine.source import IndexedSource, Pass
from dataio.formats.inputs import missing_key
from dataio.io.archives import zip_index
from dataio.io.arguments import check_count
from dataio.io.reader import Reader, reader
from dataio.io.uri import parse_uri

from .records import RecordSource


def npz(path: str | os.PathLike[str], *, max_output_bytes: int = 2**30) -> Npz:
    """The arrays of an .npz file; see `Npz`."""
    return Npz(path, max_output_bytes=max_output_bytes)


class Npz:
    """An .npz file, whose arrays are records for the decoder `npy`.

    Nothing is read before it is needed. Of a file in a store the directory is fetched, and each array by itself. Names such as
    `../x` are only names.

    Args:
        path: local path or URI.
        max_output_bytes: largest array, header included; reading the reader of a larger one raises a RuntimeError.

    Attributes:
        path, max_output_bytes: as they were given.

    Raises:
        TypeError, ValueError: a path of another type, or `max_output_bytes` below 1.
    """

    def __init__(self, path: str | os.PathLike[str], *, max_output_bytes: int = 2**30) -> None:
        if not isinstance(path, (str, os.PathLike)):
            raise TypeError(f"npz takes a path or URI as str or PathLike, got {path!r}")
        check_count("max_output_bytes", max_output_bytes, least=1)
        self.path = os.fsdecode(path)
        parse_uri(self.path)
        self.max_output_bytes = max_output_bytes

    def __repr__(self) -> str:
        return f"Npz({self.path!r}, max_output_bytes={self.max_output_bytes})"

    def records(self, keys: Iterable[str] | None = None) -> RecordSource:
        """The arrays as records `{"reader", "key"}`, in the order of the file: sized, so they shuffle and shard.

        Args:
            keys: the arrays wanted, in any order; None for all. The key of a member is its name without `.npy`.

        Raises:
            KeyError: no such array.
            TypeError: `keys` is a str, or holds something else than str.
            FileNotFoundError: there is no such file.
            OSError: it cannot be read.
            ValueError: it is no .npz file, or damaged.
        """
        wanted = None if keys is None else _checked(keys)
        whole = reader(self.path)
        names = {entry.name.removesuffix(".npy"): entry.name for entry in zip_index(None, whole.open, self.path)}
        for key in wanted or ():
            if key not in names:
                raise missing_key(self.path, "array", key, names)
        kept = set(names if wanted is None else wanted)
        limit = self.max_output_bytes
        rows = [(key, whole.zip_entry(name, max_output_bytes=limit)) for key, name in names.items() if key in kept]
        return RecordSource(NpzRows(self, rows))


def _checked(keys: Iterable[str]) -> list[str]:
    if isinstance(keys, (str, bytes)):
        raise TypeError(f"keys is a list of names, got the {type(keys).__name__} {keys!r}")
    wanted = list(keys)
    for key in wanted:
        if not isinstance(key, str):
            raise TypeError(f"keys holds names as str, got {key!r}")
    return wanted


class NpzRows(IndexedSource):
    """The arrays of an .npz file by number."""

    def __init__(self, npz: Npz, rows: list[tuple[str, Reader]]) -> None:
        self._npz = npz
        self._rows = rows

    def describe(self) -> str:
        return f"npz({self._npz.path!r}): {len(self._rows)} arrays"

    def length(self) -> int:
        return len(self._rows)

    def at(self, positions: Sequence[int], pass_: Pass) -> list[Any]:
        return [{"reader": reader, "key": key} for key, reader in map(self._rows.__getitem__, positions)]
