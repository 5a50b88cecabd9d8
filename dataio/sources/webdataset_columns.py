"""Tar shards as columns: a row for each sample, found by the tars' headers; contents are read only for columns and rows that are asked for."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dataio.engine.errors import SchemaError, did_you_mean
from dataio.engine.source import Pass
from dataio.io.errors import ResponseTooLargeError
from dataio.io.ranges import open_ranges
from dataio.io.reader import reader
from dataio.io.secrets import masked
from dataio.io.store import open_store
from dataio.io.uri import local_path

from .file_set import Files, FilesOptions, FilesScan, OpenedFile
from .files import Found
from .late import Conditions, LateChunk, Rows, in_order
from .samples import Gate, Rules, Samples, Told
from .shards import Shard, codec_of, is_packed, missing
from .tar_index import Entries, ShardIndex, ShardVersion, samples_of

KEY, SHARD = "__key__", "__shard__"
CHUNK_BYTES, CHUNK_SAMPLES = 64 << 20, 4096
"""Content of the samples of a chunk, and their number, at most; one sample may be larger."""
SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")
_FIXED = {KEY: pa.string(), SHARD: pa.string()}


class WebDatasetFiles(FilesScan):
    """Several tar shards.

    Args:
        suffixes: the columns; None finds them in the first shard (or in all, with `on_schema="union"`).
        index: the entries of all shards, where an index is kept; None reads the headers of each shard when it is its turn.
        limit: largest entry in bytes.
    """

    what = "scan_webdataset"

    def __init__(
        self, files: Files, options: FilesOptions, *, suffixes: Sequence[str] | None, rules: Rules, limit: int, index: str | None, index_all: bool
    ) -> None:
        super().__init__(files, options)
        self.rules, self.limit, self.suffixes = rules, limit, None if suffixes is None else list(suffixes)
        self.told = Told()
        self._sizes: dict[str, int] = {}
        self._made: dict[str, tuple[ShardVersion, Entries]] = {}
        self._last: dict[str, tuple[ShardVersion, Entries]] = {}
        if index is not None or index_all:
            made = ShardIndex.of(files.uris, skip_damage=self.skipped is not None, path=index)
            self._made = {shard.uri: (shard, entries) for shard, entries in zip(made.shards, made.entries, strict=True)}
        self.ahead = 1 if all(local_path(uri) is not None for uri in files.uris) else 4

    def opened(self, found: Found) -> OpenedFile:
        uri = found.uri
        if uri not in self._made and _compressed(uri):
            return _PackedFile(self, uri)
        shard, entries = self._made.get(uri) or self._indexed(uri)
        return _IndexedFile(self, shard, entries)

    def _indexed(self, uri: str) -> tuple[ShardVersion, Entries]:
        kept = self._last.get(uri)
        if kept is not None and kept[0].same(ShardVersion.now(uri)):
            return kept
        made = ShardIndex.of([uri], skip_damage=self.skipped is not None)
        found = made.shards[0], made.entries[0]
        if not self._last or uri in self._last:  # the first one is opened for its columns, and then for its rows
            self._last = {uri: found}
        return found

    def file_schema(self) -> pa.Schema:
        if self.suffixes is not None and self._known is None:
            self._known = pa.schema([*_FIXED.items(), *((name, pa.large_binary()) for name in self.suffixes)]), self.files.uris[0]
        return super().file_schema()

    def _drift(self, schema: pa.Schema, own: pa.Schema, uri: str) -> tuple[frozenset[str], frozenset[str]]:
        if self.suffixes is not None:  # what else a shard holds is nobody's business, and what it lacks is null
            return frozenset(schema.names) - frozenset(own.names), frozenset()
        return super()._drift(schema, own, uri)

    def indexed(self) -> bool:
        return self.skipped is None and len(self._made) == len(set(self.files.uris))

    def cost(self, name: str) -> int:
        """Keys cost nothing, contents by their size."""
        return 0 if name in _FIXED or name in self._constants.column_names else 1 + self._sizes.get(name, 0).bit_length()

    def note_sizes(self, sizes: dict[str, int]) -> None:
        """Mean bytes of the entries by suffix."""
        self._sizes = {**sizes, **self._sizes}

    def chunks(self, test: Conditions, pass_: Pass) -> Iterator[LateChunk]:
        """The headers of the next shards are read ahead where they come over a network."""
        if self._made or self.ahead == 1 or any(map(_compressed, self.files.uris)):
            yield from super().chunks(test, pass_)
            return
        schema = self.file_schema()
        for chunks in in_order((partial(self._chunks_of, at, schema, test) for at in range(len(self.files.found))), 2):
            yield from chunks

    def _chunks_of(self, number: int, schema: pa.Schema, test: Conditions) -> list[LateChunk]:
        return list(self._of_file(number, schema, test))


def _compressed(uri: str) -> bool:
    """Whether a shard is compressed. Raises: MissingShardError, OSError."""
    path = local_path(uri)
    try:
        if path is not None:
            return is_packed(os.fsdecode(path))
        store, key = open_store(uri)
        return codec_of(bytes(store.get(key, 0, 8))) is not None
    except FileNotFoundError as error:
        raise missing(uri, error) from error


def _text(name: str) -> str:
    """A name of a tar as valid text; bytes that are no UTF-8 are written out, so that different names stay different."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return name


class _IndexedFile(OpenedFile):
    """A plain shard whose headers have been read."""

    def __init__(self, scan: WebDatasetFiles, shard: ShardVersion, entries: Entries) -> None:
        self._scan, self._shard, self._entries = scan, shard, entries
        if shard.damage is not None:
            assert scan.skipped is not None
            scan.skipped.add(shard.uri, "", None, shard.damage)
        gate = Gate(shard.uri, scan.rules, scan.told)
        samples = samples_of(entries, gate, shard)
        gate.report()
        self._keys: list[str] = []
        self._members: dict[str, NDArray[np.int64]] = {}
        sizes = np.frombuffer(entries.sizes, np.int64) if len(entries.names) else np.zeros(0, np.int64)
        self._bytes = np.zeros(len(samples), np.int64)
        for number, members in enumerate(samples):
            for member in members:
                key, suffix = scan.rules.split(entries.names[member])  # type: ignore[misc]  # the same rules made it a member
                suffix = _text(suffix)
                if suffix not in self._members:
                    self._members[suffix] = np.full(len(samples), -1, np.int64)
                self._members[suffix][number] = member
                if len(self._keys) == number:
                    self._keys.append(_text(key))
            self._bytes[number] = sizes[members].sum()
        scan.note_sizes({name: int(sizes[at[at >= 0]].mean()) for name, at in self._members.items()})

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([*_FIXED.items(), *((name, pa.large_binary()) for name in self._members)])

    def chunks(self, test: Conditions) -> Iterator[LateChunk]:
        ends = np.cumsum(self._bytes)
        start = 0
        while start < len(self._keys):
            before = ends[start - 1] if start else 0
            stop = int(np.searchsorted(ends, before + CHUNK_BYTES, side="right"))
            stop = min(max(stop, start + 1), start + CHUNK_SAMPLES)
            yield _Samples(self, start, stop)
            start = stop

    def keys(self, start: int, stop: int) -> list[str]:
        return self._keys[start:stop]

    def contents(self, name: str, numbers: NDArray[np.int64]) -> list[Any]:
        """The entries of a suffix of these samples, None where there is none."""
        entries, uri, limit = self._entries, self._shard.uri, self._scan.limit
        members = self._members[name][numbers].tolist()
        places = [(entries.offsets[member], entries.sizes[member]) for member in members if member >= 0]
        too_large = next((member for member in members if member >= 0 and entries.sizes[member] > limit), None)
        if too_large is not None:
            raise ResponseTooLargeError(f"{masked(uri)}#tar:{entries.names[too_large]} has {entries.sizes[too_large]:,} bytes and max_output_bytes is {limit:,}")
        try:
            if local_path(uri) is None:
                found = iter(reader(uri).read_ranges(places))
            else:
                with closing(open_ranges(uri)) as ranges:
                    found = iter([bytes(ranges.read(offset, size)) for offset, size in places])
        except FileNotFoundError as error:
            raise missing(uri, error) from error
        return [next(found) if member >= 0 else None for member in members]

    @property
    def uri(self) -> str:
        return self._shard.uri


class _Samples(LateChunk):
    """Consecutive samples of an indexed shard."""

    def __init__(self, file: _IndexedFile, start: int, stop: int) -> None:
        self._file, self._start, self._stop = file, start, stop

    @property
    def height(self) -> int:
        return self._stop - self._start

    @property
    def place(self) -> tuple[str, str]:
        return self._file.uri, f"samples {self._start} to {self._stop - 1}"

    def read(self, names: Sequence[str], rows: Rows | None) -> pa.Table:
        numbers = np.arange(self._start, self._stop, dtype=np.int64)
        if rows is not None:
            numbers = numbers[rows]
        columns: dict[str, Any] = {}
        for name in names:
            if name == KEY:
                keys = self._file.keys(self._start, self._stop)
                columns[name] = pa.array(keys if rows is None else [keys[row] for row in rows], pa.string())
            elif name == SHARD:
                columns[name] = pa.repeat(pa.scalar(self._file.uri), len(numbers))
            else:
                columns[name] = pa.array(self._file.contents(name, numbers), pa.large_binary())
        return pa.table(columns)


class _PackedFile(OpenedFile):
    """A compressed shard: it is decompressed as it is read, contents and all, a bounded part at a time."""

    def __init__(self, scan: WebDatasetFiles, uri: str) -> None:
        self._scan, self._uri = scan, uri
        self._shard = Shard(uri)
        self._samples: Samples | None = None
        self._number = 0
        try:
            self._first = self._part()
        except BaseException:
            self.close()
            raise
        self._suffixes = list(dict.fromkeys(suffix for sample in self._first for suffix in sample if suffix not in _FIXED))

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([*_FIXED.items(), *((name, pa.large_binary()) for name in self._suffixes)])

    def chunks(self, test: Conditions) -> Iterator[LateChunk]:
        part, self._first = self._first, []
        while part:
            yield _Carried(self._uri, self._number - len(part), part, self._scan.limit)
            part = self._part()

    def _part(self) -> list[dict[str, Any]]:
        if self._samples is None:
            self._samples = Samples(self._shard, self._scan.limit, Gate(self._uri, self._scan.rules, self._scan.told))
        found: list[dict[str, Any]] = []
        held = 0
        while held < CHUNK_BYTES and len(found) < CHUNK_SAMPLES and (sample := self._samples.next(True)) is not None:
            sample = {_text(name): value for name, value in sample.items()}
            if self._number and self._scan.suffixes is None and (new := [name for name in sample if name not in _FIXED and name not in self._suffixes]):
                raise SchemaError(
                    f"{masked(self._uri)}: sample {sample[KEY]!r} has {new[0]!r}, which no sample before had{did_you_mean(new[0], self._suffixes)}; "
                    "a compressed shard is not read ahead: name the columns, suffixes=[...]"
                )
            found.append(sample)
            held += sum(value.nbytes for name, value in sample.items() if name not in _FIXED)
        self._number += len(found)
        return found

    def close(self) -> None:
        if self._samples is not None:
            self._samples.close()
        self._shard.close()


class _Carried(LateChunk):
    """Samples that are in memory."""

    def __init__(self, uri: str, start: int, samples: list[dict[str, Any]], limit: int) -> None:
        self._uri, self._start, self._samples, self._limit = uri, start, samples, limit

    @property
    def height(self) -> int:
        return len(self._samples)

    @property
    def place(self) -> tuple[str, str]:
        return self._uri, f"samples {self._start} to {self._start + self.height - 1}"

    def read(self, names: Sequence[str], rows: Rows | None) -> pa.Table:
        samples = self._samples if rows is None else [self._samples[row] for row in rows]
        columns: dict[str, Any] = {}
        for name in names:
            if name in _FIXED:
                columns[name] = pa.array([_text(sample[name]) for sample in samples], pa.string())
            else:
                values = (sample.get(name) for sample in samples)
                columns[name] = pa.array([None if value is None else bytes(value.read_all()) for value in values], pa.large_binary())
        return pa.table(columns)
