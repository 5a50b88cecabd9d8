"""`TarReader`: one entry of a tar shard, as a reader."""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING, Any

from dataio.io.errors import ResponseTooLargeError
from dataio.io.ranges import MemoryRanges, Window
from dataio.io.reader import BytesLike, Reader, reader
from dataio.io.resolve import read_source
from dataio.io.tar_stream import FileTape, TarError, TarHeader
from dataio.io.uri import local_path

from .shards import Shard

if TYPE_CHECKING:
    from dataio.engine.source import RangeReader


_MOST_FILES = 64
"""Shards whose descriptors are kept by readers, at most; of further ones each reader opens the file itself."""
_files: weakref.WeakSet[ShardFile] = weakref.WeakSet()


class ShardFile:
    """A local shard as it was opened, for the readers of its entries; closed when the last of them is gone."""

    __slots__ = ("__weakref__", "_descriptor")

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def of(cls, tape: FileTape) -> ShardFile | None:
        """The file of a tape; None when enough files are open."""
        if len(_files) >= _MOST_FILES:
            return None
        made = cls(tape.duplicate())
        _files.add(made)
        return made

    def read(self, offset: int, size: int) -> bytes | None:
        """A part of the file; None when it cannot be had in one go."""
        try:
            data = os.pread(self._descriptor, size, offset)
        except OSError:
            return None
        return data if len(data) == size else None

    def __del__(self) -> None:
        os.close(self._descriptor)


class TarReader(Reader):
    """One entry of a shard: its bytes where they came with the record, else where they lie.

    Attributes:
        shard, name: path or URI of the shard, name of the entry.
        offset, size: where the content lies in the tar, in bytes.
    """

    __slots__ = ("_data", "_file", "_limit", "_packed", "name", "offset", "shard", "size")

    def __init__(
        self, shard: str, entry: TarHeader, data: bytes | None, *, packed: bool, limit: int, file: ShardFile | None = None
    ) -> None:
        self.shard, self.name = shard, entry.name
        self.offset, self.size = entry.offset, entry.size
        self._data, self._packed, self._limit, self._file = data, packed, limit, file

    @property
    def uri(self) -> str:
        """For messages."""
        return f"{self.shard}#tar:{self.name}"

    @property
    def nbytes(self) -> int:
        """Bytes that it holds in memory."""
        return 0 if self._data is None else self.size

    @property
    def remote(self) -> bool:
        """Whether reading asks a store."""
        return self._data is None and self.size <= self._limit and local_path(self.shard) is None

    def read_all(self) -> BytesLike:
        """All bytes of the entry.

        Raises:
            ResponseTooLargeError: it is larger than `max_output_bytes`.
            OSError: the shard cannot be read any more.
        """
        if self._data is not None:
            return self._data
        self._check()
        if not self.size:
            return b""
        if self._packed:
            return self._unpacked()
        if self._file is not None and (data := self._file.read(self.offset, self.size)) is not None:
            return data
        found: BytesLike = read_source(self.place())
        return found

    def _check(self) -> None:
        if self.size > self._limit:
            raise ResponseTooLargeError(
                f"{self.uri} has {self.size:,} bytes and max_output_bytes is {self._limit:,}"
            )

    def open_ranges(self, *, remembered: bool = False) -> RangeReader:
        """The content in parts."""
        if self._data is not None or self._packed or not self.size:
            return MemoryRanges(self.read_all())
        self._check()
        return Window(reader(self.shard).open_ranges(remembered=remembered), self.offset, self.size)

    def capabilities(self) -> dict[str, Any]:
        """Parts are read by themselves, except in compressed shards."""
        native = self._data is not None or not self._packed
        found = {"ranges": "native" if native else "fallback", "size": "known", "metadata": False}
        return {**found, "concurrent_ranges": native, "streaming": False}

    def _source(self) -> str:
        return "tar"

    def _unpacked(self) -> bytes:
        """The content out of a compressed tar, which is decoded up to there."""
        shard = Shard(self.shard, self.offset)
        try:
            data = shard.tape().read(self.size)
        finally:
            shard.close()
        if len(data) < self.size:
            raise TarError(f"the shard {self.shard} ended in the middle of {self.name!r}")
        return data

    def place(self) -> dict[str, Any]:
        """Where the bytes lie, as a slot's value that can be written down; of a compressed tar the bytes themselves."""
        if self._packed:
            return {"bytes": self.read_all()}
        return {"uri": self.shard, "offset": self.offset, "size": self.size}

    def __repr__(self) -> str:
        return f"Reader(source=tar, uri={self.uri})"

    def __reduce__(self) -> tuple[Any, ...]:
        state = (self.shard, self.name, self.offset, self.size, self._data, self._packed, self._limit)
        return _unpickled, state


def _unpickled(shard: str, name: str, offset: int, size: int, data: bytes | None, packed: bool, limit: int) -> TarReader:
    return TarReader(shard, TarHeader(name, size, offset, offset, "file"), data, packed=packed, limit=limit)
