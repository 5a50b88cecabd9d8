"""`webdataset`: samples out of tar shards, local or in any store, read forwards."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dataio.engine.errors import CheckpointError
from dataio.engine.permutation import Permutation
from dataio.engine.source import Pass, RowSource
from dataio.engine.streams import WHOLE, Chunk, Stream, source_error
from dataio.io.archives import sparse
from dataio.io.arguments import check_count
from dataio.io.errors import ResponseTooLargeError
from dataio.io.ranges import MemoryRanges, Window
from dataio.io.reader import BytesLike, Reader, reader
from dataio.io.resolve import read_source
from dataio.io.tar_stream import BLOCK, TarError, TarHeader, TarWalk
from dataio.io.uri import local_path, parse_uri

from .records import RecordSource
from .shards import Shard

if TYPE_CHECKING:
    from dataio.engine.shuffle import Order
    from dataio.engine.source import RangeReader

CARRIED_BYTES = 64 << 20
"""Content of a sample up to which its bytes come with the record; what is beyond is read when it is asked for."""
_AHEAD = 2
"""Shards that are read at a time where they come over a network, the one at hand included."""
_NAMES = 1_000_000
_RANGE = re.compile(r"\{([^{}]*)\}")


def webdataset(paths: Any, *, max_output_bytes: int = 2**30) -> RecordSource:
    """The samples of tar shards: runs of entries whose names are alike up to the first dot.

    A record has `__key__` (the name up to the first dot of its last part), `__shard__` (the path) and one reader per suffix (the rest
    behind that dot: `a.seg.png` gives `seg.png`). Folders in entry names are ignored, entries whose name starts with "." or "_"
    or has no dot are skipped, and a key that returns later is another sample. Names such as `../x` are only names.

    Shards are read one after the other: over a network each as one stream, the next one ahead; of local ones only the headers are
    read here, and the contents by the workers. Shards that are compressed by gzip, bzip2, xz or zstd work. The number of samples is not known before they are read, so
    `shuffle` wants a `buffer`; with `block` (of any size) it also takes the shards in another order in each epoch. A pass is
    resumed in the middle of a shard without reading what comes before, except in compressed shards.

    Args:
        paths: paths or URIs of shards, each a str or PathLike; each may hold one range `{lo..hi}` of decimal numbers, both included,
            which are padded with zeros to the longer one when either begins with a zero.
        max_output_bytes: largest entry; reading the reader of a larger one raises a RuntimeError.

    Raises:
        TypeError, ValueError: paths of another type, a range that is none, more than 1,000,000 shards.

    While it is read, also in a loader: MissingShardError (a RuntimeError and FileNotFoundError) for a shard that is not there, TarError
    (a ValueError) for one that is damaged or cut off, ValueError for a sample with the same suffix twice, DuplicateEntryError (a
    RuntimeError) for an entry that is twice in a shard.
    """
    check_count("max_output_bytes", max_output_bytes, least=1)
    return RecordSource(ShardRows(expanded(paths), max_output_bytes), sequential=True)


class DuplicateEntryError(TarError, RuntimeError):
    """A shard holds two entries of one name."""


class TarReader(Reader):
    """One entry of a shard: its bytes where they came with the record, else where they lie.

    Attributes:
        shard, name: path or URI of the shard, name of the entry.
        offset, size: where the content lies in the tar, in bytes.
    """

    __slots__ = ("_data", "_limit", "_packed", "name", "offset", "shard", "size")

    def __init__(self, shard: str, entry: TarHeader, data: bytes | None, *, packed: bool, limit: int) -> None:
        self.shard, self.name = shard, entry.name
        self.offset, self.size = entry.offset, entry.size
        self._data, self._packed, self._limit = data, packed, limit

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


class ShardRows(RowSource):
    """The samples of the shards, in their order; with `order` the shards of each pass are permuted."""

    def __init__(self, shards: Sequence[str], limit: int, order: Order | None = None) -> None:
        self.shards, self.limit, self.shard_order = shards, limit, order

    def describe(self) -> str:
        first = f"{self.shards[0]!r}, ..." if len(self.shards) > 1 else repr(self.shards[0])
        return f"webdataset({first}): {len(self.shards)} shards"

    def length(self) -> None:
        return None

    def order_identity(self) -> Any:
        return None if self.shard_order is None else f"{len(self.shards)} shards, shuffle({self.shard_order})"

    def with_shards_shuffled(self, order: Order) -> ShardRows:
        """The same source with the shards in another order in each pass."""
        return ShardRows(self.shards, self.limit, order)

    def stream(self, pass_: Pass, state: Any = None) -> Stream:
        return ShardStream(self, pass_, state)

    def shards_of(self, pass_: Pass) -> Sequence[str]:
        """The shards in the order of one pass."""
        if self.shard_order is None:
            return self.shards
        numbers = Permutation(len(self.shards), *self.shard_order.key(pass_), 0, 1).at(range(len(self.shards)))
        return [self.shards[number] for number in numbers.tolist()]


class ShardStream(Stream):
    """Goes from shard to shard. Its state is the shard, the byte there at which the next sample begins, and the position."""

    def __init__(self, source: ShardRows, pass_: Pass, state: Any) -> None:
        self._open: deque[Shard] = deque()
        self._current: _Samples | None = None
        self._source = source
        self._shards = source.shards_of(pass_)
        self._number, self._start, self.position = _place(state, self._shards)

    def read(self, count: int, part: slice = WHOLE) -> Chunk:
        wanted = range(count)[part]
        rows: list[Any] = []
        found = 0
        try:
            while found < count:
                row = self._next(found in wanted)
                if row is None:
                    break
                if found in wanted:
                    rows.append(row)
                found += 1
        except Exception as raised:
            self.close()  # a later read begins at the sample that failed
            error = source_error(raised, self.position + found)
            self.position += found
            return Chunk(found, _in_order(rows, part), error=error)
        self.position += found
        return Chunk(found, _in_order(rows, part))

    def _next(self, keep: bool) -> dict[str, Any] | None:
        """The next sample; without contents where it is not kept."""
        while self._number < len(self._shards):
            if self._current is None:
                self._current = _Samples(self._shard(), self._source.limit)
            found = self._current.next(keep)
            if found is not None:
                self._start = self._current.start
                return found
            self._current.close()
            self._current = None
            self._open.popleft()
            self._number, self._start = self._number + 1, 0
        return None

    def _shard(self) -> Shard:
        """The shard at hand; the ones behind it are begun."""
        if not self._open:
            self._open.append(Shard(self._shards[self._number], self._start))
        ahead = self._number + len(self._open)
        if self._open[0].local is None and len(self._open) < _AHEAD and ahead < len(self._shards):
            uri = self._shards[ahead]
            if local_path(uri) is None:
                self._open.append(Shard(uri))
        return self._open[0]

    def state(self) -> Any:
        shard = self._shards[self._number] if self._number < len(self._shards) else None
        return {"shard": self._number, "uri": shard, "offset": self._start, "position": self.position}

    def close(self) -> None:
        if self._current is not None:
            self._current.close()
            self._current = None
        while self._open:
            self._open.popleft().close()

    def __del__(self) -> None:
        self.close()


def _in_order(rows: list[Any], part: slice) -> list[Any]:
    return rows[::-1] if (part.step or 1) < 0 else rows


def _place(state: Any, shards: Sequence[str]) -> tuple[int, int, int]:
    """(shard, byte, position) of a state."""
    if state is None:
        return 0, 0, 0
    try:
        number, start, position = (int(state[name]) for name in ("shard", "offset", "position"))
        uri = state["uri"]
    except (TypeError, KeyError, ValueError):
        raise CheckpointError(f"the checkpoint's source cursor {state!r} is none of tar shards") from None
    if number < 0 or start < 0 or position < 0 or (number < len(shards) and uri != shards[number]):
        here = shards[number] if 0 <= number < len(shards) else None
        raise CheckpointError(
            f"the checkpoint stands in shard {number}, {uri!r}, and that one is now {here!r}: resume with the same shards"
        )
    return number, start, position


class _Samples:
    """The samples of one shard.

    Attributes:
        start: byte of the tar at which the next sample begins.
    """

    def __init__(self, shard: Shard, limit: int) -> None:
        self._shard, self._limit = shard, limit
        self._tape = shard.tape()
        self._walk = TarWalk(self._tape, f"the shard {shard.uri}")
        self._names: set[str] = set()
        self._ahead: tuple[TarHeader, str, str] | None = None
        self.start = self._end = shard.start
        self._begun = False

    def next(self, keep: bool) -> dict[str, Any] | None:
        """The next sample; None at the end of the shard."""
        if not self._begun:
            self._begun, self._ahead = True, self._entry()
        if self._ahead is None:
            return None
        header, stem, suffix = self._ahead
        sample: dict[str, Any] = {"__key__": stem, "__shard__": self._shard.uri}
        carried = 0
        while True:
            if suffix in sample:
                raise ValueError(f"the sample {stem!r} of the shard {self._shard.uri} has {suffix!r} twice")
            reader = self._reader(header, keep, carried)
            carried += reader.nbytes
            sample[suffix] = reader
            self._ahead = self._entry()
            if self._ahead is None or self._ahead[1] != stem:
                break
            header, stem, suffix = self._ahead
        self.start = self._end if self._ahead is None else self._ahead[0].start
        return sample

    def _reader(self, header: TarHeader, keep: bool, carried: int) -> TarReader:
        shard, limit = self._shard, self._limit
        data = None
        if keep and shard.local is None and header.size <= limit:
            most = limit if shard.packed else min(limit, CARRIED_BYTES)
            if carried + header.size <= most:
                data = self._walk.read(header)
        return TarReader(shard.uri, header, data, packed=shard.packed, limit=limit)

    def _entry(self) -> tuple[TarHeader, str, str] | None:
        """The next entry that belongs to a sample, its stem and its suffix."""
        while (header := self._walk.next()) is not None:
            if header.kind == "other":
                continue
            name = header.name
            if name in self._names:
                raise DuplicateEntryError(f"the shard {self._shard.uri} has the entry {name!r} twice")
            self._names.add(name)
            base = name.rpartition("/")[2]
            stem, dot, suffix = base.partition(".")
            if not stem or not dot or stem[0] == "_":
                continue
            if header.kind == "sparse":
                raise sparse(name, f"the shard {self._shard.uri}")
            return header, stem, suffix
        self._end = self._tape.position - BLOCK  # where the end marker begins
        if self._shard.packed:  # its checksum stands behind that
            self._tape.skip(1 << 62)
        return None

    def close(self) -> None:
        self._tape.close()
        self._shard.close()


def expanded(paths: Any) -> list[str]:
    """The shards that are named, ranges written out.

    Raises:
        TypeError, ValueError: as `webdataset` does.
    """
    several = [paths] if isinstance(paths, (str, os.PathLike)) else paths
    if isinstance(several, (bytes, bytearray)) or not isinstance(several, Sequence):
        try:
            several = list(several)
        except TypeError:
            several = None
    if several is None or isinstance(several, (bytes, bytearray)):
        raise TypeError(f"webdataset takes paths of tar shards, got {paths!r}")
    found: list[str] = []
    for path in several:
        if not isinstance(path, (str, os.PathLike)):
            raise TypeError(f"webdataset takes paths as str or PathLike, got {path!r}")
        name = os.fsdecode(path)
        found += _range_of(name) if "{" in name or "}" in name else [name]
        if len(found) > _NAMES:
            raise ValueError(f"webdataset takes at most {_NAMES:,} shards")
    if not found:
        raise ValueError("webdataset needs at least one shard")
    for name in found:
        parse_uri(name)
    return found


def _range_of(pattern: str) -> list[str]:
    match = _RANGE.search(pattern)
    rest = "" if match is None else pattern[: match.start()] + pattern[match.end() :]
    bounds = None if match is None else re.fullmatch(r"([0-9]+)\.\.([0-9]+)", match[1])
    if match is None or bounds is None or "{" in rest or "}" in rest:
        raise ValueError(f"a pattern of shards holds one range of decimal numbers such as {{0000..0099}}, got {pattern!r}")
    low, high = bounds.groups()
    padded = any(len(bound) > 1 and bound[0] == "0" for bound in (low, high))
    width = max(len(low), len(high)) if padded else 0
    if len(high.lstrip("0")) > 18 or len(low.lstrip("0")) > 18 or int(high) < int(low):
        raise ValueError(f"the range of {pattern!r} ends before it begins, or is far too large")
    if int(high) - int(low) >= _NAMES:
        raise ValueError(f"the range of {pattern!r} names more than {_NAMES:,} shards")
    before, after = pattern[: match.start()], pattern[match.end() :]
    return [f"{before}{number:0{width}d}{after}" for number in range(int(low), int(high) + 1)]
