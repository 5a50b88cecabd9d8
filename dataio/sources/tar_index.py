"""Where the entries of many tar shards lie: read once from their headers, kept in a file if wanted, and samples by number.

The file is one Arrow IPC file with a row per entry (`shard` int32, `name` large_binary, `offset` and `size` int64 in bytes, `sparse`
bool; in the order of the shards) and the shards' names and versions as JSON in the schema's metadata. It holds entries, not samples: the
same index serves every rule by which entries become samples. What it says is checked against the shards before it is believed.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from array import array
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from dataio.engine.source import IndexedSource, Pass
from dataio.io import verbs
from dataio.io.parallel import for_each
from dataio.io.store import open_store
from dataio.io.tar_stream import TarError, TarHeader, TarWalk

from .samples import Gate, Rules, Told
from .shards import headers_of, missing
from .tar_reader import TarReader

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger("dataio.sources")

_FORMAT = "dataio.tar_index"
_VERSION = 1
_MAGIC = b"ARROW1"


@dataclass(frozen=True, slots=True)
class ShardVersion:
    """One shard as it was when its headers were read.

    Attributes:
        uri: as it was given.
        size: bytes; None when the store does not tell.
        etag, modified: as the store tells them; `modified` in seconds since 1970.
        damage: what is wrong with it, None when it was read to its end.
        cut: name of the entry whose content is cut off.
    """

    uri: str
    size: int | None
    etag: str | None
    modified: float | None
    damage: str | None = None
    cut: str | None = None

    @classmethod
    def now(cls, uri: str) -> ShardVersion:
        """Raises: MissingShardError, OSError."""
        store, key = open_store(uri)
        try:
            info = store.head(key)
        except FileNotFoundError as error:
            raise missing(uri, error) from error
        return cls(uri, info.size, info.etag, info.modified)

    def same(self, other: ShardVersion) -> bool:
        """Whether both are known to be the same content."""
        if (self.etag or self.modified) is None or self.size is None:
            return False
        return replace(self, damage=None, cut=None) == replace(other, damage=None, cut=None)


class Entries:
    """The files of one shard in its order: names (with surrogates), and where their contents lie."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.offsets, self.sizes = array("q"), array("q")
        self.sparse = array("b")

    def add(self, entry: TarHeader) -> None:
        self.names.append(entry.name)
        self.offsets.append(entry.offset)
        self.sizes.append(entry.size)
        self.sparse.append(entry.kind == "sparse")


class ShardIndex:
    """The entries of all shards.

    Attributes:
        shards: as they were when they were read, in the order that was asked for.
        reused: how many of them were not read, as the file had them.
    """

    def __init__(self, shards: list[ShardVersion], entries: list[Entries], reused: int = 0) -> None:
        self.shards, self.entries, self.reused = shards, entries, reused

    @classmethod
    def of(cls, uris: Sequence[str], *, skip_damage: bool, path: str | None = None) -> ShardIndex:
        """The index of these shards; with `path` the one that lies there, renewed and replaced where it is not up to date.

        Raises:
            MissingShardError: a shard is not there.
            TarError: one is damaged, and damage is not skipped.
            ValueError: one is compressed; `path` is another kind of file.
            OSError: a shard, or the file, cannot be read or written.
        """
        kept = {} if path is None else _load(path)
        versions: dict[str, ShardVersion] = {}
        entries: dict[str, Entries] = {}
        fresh: set[str] = set()
        lock = threading.Lock()

        def one(uri: str) -> None:
            version, found = ShardVersion.now(uri), Entries()
            if uri in kept and kept[uri][0].same(version):
                version, found = kept[uri]
            else:
                version = _walked(version, found)
                with lock:
                    fresh.add(uri)
            if version.damage is not None and not skip_damage:
                raise TarError(version.damage)
            with lock:
                versions[uri], entries[uri] = version, found

        wanted = list(dict.fromkeys(uris))
        for_each(one, wanted)
        made = cls([versions[uri] for uri in uris], [entries[uri] for uri in uris], len(wanted) - len(fresh))
        if path is not None and (fresh or list(kept) != wanted):
            once = cls([versions[uri] for uri in wanted], [entries[uri] for uri in wanted])
            verbs.write(path, once.to_bytes())
        return made

    def to_bytes(self) -> pa.Buffer:
        """The content of an index file."""
        import pyarrow as pa

        metadata = {_FORMAT: json.dumps({"version": _VERSION, "shards": [asdict(shard) for shard in self.shards]})}
        schema = pa.schema(
            {"shard": pa.int32(), "name": pa.large_binary(), "offset": pa.int64(), "size": pa.int64(), "sparse": pa.bool_()},
            metadata=metadata,
        )
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, schema) as writer:
            for number, part in enumerate(self.entries):
                columns = [
                    pa.array(np.full(len(part.names), number, np.int32)),
                    pa.array([name.encode("utf-8", "surrogateescape") for name in part.names], pa.large_binary()),
                    pa.array(np.frombuffer(part.offsets, np.int64)),
                    pa.array(np.frombuffer(part.sizes, np.int64)),
                    pa.array(np.frombuffer(part.sparse, np.bool_)),
                ]
                writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
        return sink.getvalue()


def _walked(version: ShardVersion, into: Entries) -> ShardVersion:
    """Add the entries of a shard; `version` with what is wrong behind them."""
    uri, cut = version.uri, None
    try:
        with headers_of(uri) as (tape, packed):
            if packed:
                raise ValueError(
                    f"the shard {uri} is compressed, so that no entry can be read by itself: read it without an index, or store it plain"
                )
            walk = TarWalk(tape, f"the shard {uri}")
            try:
                while (entry := walk.next()) is not None:
                    if version.size is not None and entry.offset + entry.size > version.size:
                        cut = entry.name  # the next step says what is missing
                    elif entry.kind != "other":
                        into.add(entry)
            except TarError as error:
                return replace(version, damage=str(error), cut=cut)
    except FileNotFoundError as error:
        raise missing(uri, error) from error
    return version


def _load(path: str) -> dict[str, tuple[ShardVersion, Entries]]:
    """What an index file holds, by shard; nothing when there is none, or it is damaged.

    Raises:
        ValueError: there is another kind of file, which is left alone.
    """
    import pyarrow as pa

    try:
        data = verbs.read(path)
    except FileNotFoundError:
        return {}
    if bytes(data[: len(_MAGIC)]) != _MAGIC:
        raise ValueError(f"{path} is no index of tar shards, and is not replaced by one: give the path of one, or of no file")
    try:
        table = pa.ipc.open_file(pa.py_buffer(data)).read_all()
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        logger.warning("the index %s is damaged, and made anew: %s", path, error)
        return {}
    said = (table.schema.metadata or {}).get(_FORMAT.encode())
    if said is None:
        raise ValueError(f"{path} is an Arrow file but no index of tar shards, and is not replaced by one")
    try:
        return _checked(json.loads(said), table)
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        logger.warning("the index %s is not usable, and made anew: %s", path, error)
        return {}


def _checked(said: dict[str, Any], table: pa.Table) -> dict[str, tuple[ShardVersion, Entries]]:
    """The shards of an index. Raises: TypeError, KeyError, ValueError: it contradicts itself."""
    if said["version"] != _VERSION:
        raise ValueError(f"its version is {said['version']!r}, and this library writes {_VERSION}")
    shards = [ShardVersion(**shard) for shard in said["shards"]]
    number, offset, size = (table[name].to_numpy() for name in ("shard", "offset", "size"))
    if any(column.null_count for column in table.columns) or [number.dtype, offset.dtype, size.dtype] != [np.int32, np.int64, np.int64]:
        raise ValueError("it has columns of other types, or with holes")
    if len(number) and (number[0] < 0 or number[-1] >= len(shards) or (np.diff(number) < 0).any()):
        raise ValueError("its rows are not in the order of its shards")
    limits = np.array([-1 if shard.size is None else shard.size for shard in shards], np.int64)
    if (offset < 0).any() or (size < 0).any() or (size > limits[number] - offset).any():
        raise ValueError("an entry lies outside of its shard")
    names = table["name"].combine_chunks()
    sparse = table["sparse"].to_numpy(zero_copy_only=False)
    found = {}
    ends = np.searchsorted(number, np.arange(len(shards) + 1))
    for shard, start, end in zip(shards, ends[:-1].tolist(), ends[1:].tolist()):
        part = Entries()
        part.names = [name.decode("utf-8", "surrogateescape") for name in names[start:end].to_pylist()]
        part.offsets.frombytes(offset[start:end].tobytes())
        part.sizes.frombytes(size[start:end].tobytes())
        part.sparse.frombytes(sparse[start:end].tobytes())
        found[shard.uri] = (shard, part)
    return found


class IndexedSamples(IndexedSource):
    """The samples of indexed shards by number.

    Attributes:
        shards: their paths or URIs.
    """

    def __init__(self, index: ShardIndex, limit: int, rules: Rules) -> None:
        """Raises: what `Gate` raises for entries that the rules refuse."""
        self.shards = [shard.uri for shard in index.shards]
        self._index, self._limit, self._rules = index, limit, rules
        self._shard, self._bounds, self._members = array("i"), array("q", [0]), array("q")
        told = Told()
        digest = hashlib.blake2b(digest_size=12)
        for number, (shard, entries) in enumerate(zip(index.shards, index.entries)):
            if shard.damage is not None:
                told.warn(shard.uri, "damage", f"{shard.damage}; what is behind that is left out")
            gate = Gate(shard.uri, rules, told)
            samples = samples_of(entries, gate, shard)
            gate.report()
            for members in samples:
                self._shard.append(number)
                self._members.extend(members)
                self._bounds.append(len(self._members))
            digest.update(json.dumps([len(samples), len(entries.names)]).encode())
            digest.update(entries.offsets)
            digest.update(entries.sizes)
        digest.update(repr(rules).encode())
        self._digest = digest.hexdigest()

    def describe(self) -> str:
        first = f"{self.shards[0]!r}, ..." if len(self.shards) > 1 else repr(self.shards[0])
        return f"webdataset({first}): {self.length():,} samples of {len(self.shards)} indexed shards"

    def length(self) -> int:
        return len(self._shard)

    def order_identity(self) -> str:
        """Of what lies where in the shards, wherever they are stored."""
        return f"{len(self._shard)} samples of {len(self.shards)} shards, {self._digest}"

    def at(self, positions: Sequence[int], pass_: Pass) -> list[Any]:
        return [self._sample(position) for position in positions]

    def _sample(self, position: int) -> dict[str, Any]:
        number = self._shard[position]
        uri, entries = self.shards[number], self._index.entries[number]
        sample: dict[str, Any] = {}
        for member in self._members[self._bounds[position] : self._bounds[position + 1]]:
            name, offset = entries.names[member], entries.offsets[member]
            found = self._rules.split(name)
            if found is None:  # the same rules made it a member
                raise AssertionError(name)
            key, suffix = found
            if not sample:
                sample = {"__key__": key, "__shard__": uri}
            header = TarHeader(name, entries.sizes[member], offset, offset, "file")
            sample[suffix] = TarReader(uri, header, None, packed=False, limit=self._limit)
        return sample


def samples_of(entries: Entries, gate: Gate, shard: ShardVersion) -> list[list[int]]:
    """The numbers of the entries of each sample; of a damaged shard without the one that may go on behind the damage."""
    admitted = (
        (number, *found)
        for number, (name, sparse) in enumerate(zip(entries.names, entries.sparse))
        if (found := gate.admit(name, "sparse" if sparse else "file")) is not None
    )
    merge = gate.rules.on_interleaved == "merge"
    by_key: dict[str, dict[str, int]] = {}
    samples: list[dict[str, int]] = []
    last = ""
    for key, run in groupby(admitted, key=lambda entry: entry[1]):
        gate.begin(key)
        sample = by_key.setdefault(key, {}) if merge else {}
        if not sample:
            samples.append(sample)
        for number, _, suffix in run:
            gate.put(sample, key, suffix, number)
        last = key
    if shard.damage is not None and samples:
        found = None if shard.cut is None else gate.rules.split(shard.cut)
        open_key = last if found is None else found[0]
        if merge:
            samples = [sample for sample in samples if sample is not by_key.get(open_key)]
        elif open_key == last:
            samples.pop()
    return [list(sample.values()) for sample in samples]
