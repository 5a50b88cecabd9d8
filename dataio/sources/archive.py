"""`archive`: the entries of a tar or zip file, local or in any store, as records."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from dataio.engine.source import IndexedSource, Pass
from dataio.io.archives import sparse, zip_index
from dataio.io.arguments import check_count
from dataio.io.reader import Reader, reader
from dataio.io.tar_stream import TarWalk
from dataio.io.uri import parse_uri

from .records import RecordSource
from .shards import headers_of
from .tar_reader import TarReader


def archive(path: str | os.PathLike[str], *, max_output_bytes: int = 2**30) -> Archive:
    """The entries of an archive; see `Archive`."""
    return Archive(path, max_output_bytes=max_output_bytes)


class Archive:
    """A tar file (plain, or compressed by gzip, bzip2, xz or zstd) or, where the name ends in `.zip`, a zip file.

    Nothing is read before it is needed; what is learnt about the entries is kept. Of a plain tar, or a zip file, in a store only the
    headers are fetched. Folders, links and devices are no entries. Names such as `../x` are only names.

    Args:
        path: local path or URI.
        max_output_bytes: largest entry; reading the reader of a larger one raises a RuntimeError.

    Attributes:
        path, max_output_bytes: as they were given.

    Raises:
        TypeError, ValueError: a path of another type, or `max_output_bytes` below 1.
    """

    def __init__(self, path: str | os.PathLike[str], *, max_output_bytes: int) -> None:
        if not isinstance(path, (str, os.PathLike)):
            raise TypeError(f"archive takes a path or URI as str or PathLike, got {path!r}")
        check_count("max_output_bytes", max_output_bytes, least=1)
        self.path = os.fsdecode(path)
        parse_uri(self.path)
        self.max_output_bytes = max_output_bytes

    def __repr__(self) -> str:
        return f"Archive({self.path!r}, max_output_bytes={self.max_output_bytes})"

    def keys(self) -> list[str]:
        """The names of the entries, in the order of the file.

        Raises:
            FileNotFoundError: there is no such archive.
            OSError: it cannot be read.
            ValueError: it is no archive, damaged or cut off.
        """
        return [name for name, _, _ in self._entries]

    def index(self) -> list[dict[str, Any]]:
        """`{"name", "size"}` of each entry, sizes in bytes of content; errors as `keys`."""
        return [{"name": name, "size": size} for name, size, _ in self._entries]

    def entries(self) -> RecordSource:
        """The entries as records `{"reader", "name"}`: sized, so they shuffle and shard; errors as `keys`."""
        return RecordSource(EntryRows(self))

    @cached_property
    def _entries(self) -> list[tuple[str, int, Reader]]:
        """Name, size and reader of each entry."""
        return self._zip() if self.path.lower().endswith(".zip") else self._tar()

    def _zip(self) -> list[tuple[str, int, Reader]]:
        whole, limit = reader(self.path), self.max_output_bytes
        found = zip_index(None, whole.open, self.path)
        return [(entry.name, entry.size, whole.zip_entry(entry.name, max_output_bytes=limit)) for entry in found]

    def _tar(self) -> list[tuple[str, int, Reader]]:
        found: list[tuple[str, int, Reader]] = []
        with headers_of(self.path) as (tape, packed):
            walk = TarWalk(tape, self.path)
            while (entry := walk.next()) is not None:
                if entry.kind == "sparse":
                    raise sparse(entry.name, self.path)
                if entry.kind == "file":
                    made = TarReader(self.path, entry, None, packed=packed, limit=self.max_output_bytes)
                    found.append((entry.name, entry.size, made))
        return found


class EntryRows(IndexedSource):
    """The entries of an archive by number."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._entries = archive._entries

    def describe(self) -> str:
        return f"archive({self._archive.path!r}): {len(self._entries)} entries"

    def length(self) -> int:
        return len(self._entries)

    def at(self, positions: Sequence[int], pass_: Pass) -> list[Any]:
        return [{"reader": reader, "name": name} for name, _, reader in map(self._entries.__getitem__, positions)]
