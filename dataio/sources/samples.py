"""The rules by which entries of tar shards become samples, and the samples of one shard as it is read forwards."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from dataio.io.archives import sparse
from dataio.io.tar_stream import BLOCK, FileTape, TarError, TarHeader, TarWalk

from .shards import Shard
from .tar_reader import ShardFile, TarReader

logger = logging.getLogger("dataio.sources")

CARRIED_BYTES = 64 << 20
"""Content of a sample up to which its bytes come with the record; what is beyond is read when it is asked for."""
_RESERVED = ("__key__", "__shard__")

KeyRule = Literal["basename", "path"]
SuffixRule = Literal["first_dot", "last_dot"]
Interleaved = Literal["sample", "error", "merge"]
Duplicate = Literal["error", "first", "last"]
Damage = Literal["raise", "skip"]


class DuplicateEntryError(TarError, RuntimeError):
    """A shard holds two entries of one name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What `webdataset` was asked for; see there."""

    key: KeyRule = "basename"
    suffix: SuffixRule = "first_dot"
    lowercase: bool = False
    on_interleaved: Interleaved = "sample"
    on_duplicate: Duplicate = "error"
    on_damage: Damage = "raise"

    def __post_init__(self) -> None:
        choices = {"key": KeyRule, "suffix": SuffixRule, "on_interleaved": Interleaved, "on_duplicate": Duplicate, "on_damage": Damage}
        for name, of in choices.items():
            value = getattr(self, name)
            if value not in get_args(of):
                raise ValueError(f"{name} must be one of {', '.join(map(repr, get_args(of)))}, got {value!r}")
        if not isinstance(self.lowercase, bool):
            raise TypeError(f"lowercase must be a bool, got {self.lowercase!r}")

    def split(self, name: str) -> tuple[str, str] | None:
        """Key and suffix of an entry; None when it belongs to no sample."""
        folder, slash, base = name.rpartition("/")
        if self.suffix == "first_dot":
            stem, dot, suffix = base.partition(".")
        else:
            stem, dot, suffix = base.rpartition(".")
        if not stem or not dot or base[0] in "._":
            return None
        if self.key == "path":
            stem = f"{folder}{slash}{stem}"
        return stem, suffix.lower() if self.lowercase else suffix


@dataclass(slots=True)
class Told:
    """What a source has warned of: once for each shard and kind, however often it is read."""

    seen: set[tuple[str, str]] = field(default_factory=set)

    def warn(self, uri: str, kind: str, text: str) -> None:
        if (uri, kind) not in self.seen:
            self.seen.add((uri, kind))
            logger.warning("%s", text)


class Gate:
    """Lets the entries of one shard into samples, in their order, and keeps count of what is out of order."""

    def __init__(self, uri: str, rules: Rules, told: Told) -> None:
        self.uri, self.rules, self._told = uri, rules, told
        self._names: set[str] = set()
        self._keys: set[str] = set()
        self._first: dict[str, str] = {}
        self._counts: Counter[str] = Counter()

    def admit(self, name: str, kind: str) -> tuple[str, str] | None:
        """Key and suffix of the next entry; None when it is passed over.

        Raises:
            DuplicateEntryError: the shard had this name before.
            TarError: a file with holes.
        """
        again = name in self._names
        if again and self.rules.on_duplicate == "error":
            raise DuplicateEntryError(f"the shard {self.uri} has the entry {name!r} twice")
        self._names.add(name)
        found = self.rules.split(name)
        if found is None:
            return None
        if again:
            self._count("duplicate", name)
            if self.rules.on_duplicate == "first":
                return None
        if kind == "sparse":
            raise sparse(name, f"the shard {self.uri}")
        return found

    def begin(self, key: str) -> None:
        """A run of this key begins.

        Raises:
            ValueError: the key was there before, and `on_interleaved` is "error".
        """
        if key in self._keys:
            if self.rules.on_interleaved == "error":
                raise ValueError(f"the shard {self.uri} has the sample {key!r} in two places: other samples' entries stand between its own")
            self._count("interleaved", key)
        self._keys.add(key)

    def put(self, sample: dict[str, Any], key: str, suffix: str, value: Any) -> None:
        """Make the entry part of a sample.

        Raises:
            ValueError: the sample has the suffix, and `on_duplicate` is "error", or the suffix is a name of the record's own.
        """
        if suffix in _RESERVED:
            raise ValueError(f"the sample {key!r} of the shard {self.uri} has an entry with the suffix {suffix!r}, which records use themselves")
        if suffix in sample:
            if self.rules.on_duplicate == "error":
                raise ValueError(f"the sample {key!r} of the shard {self.uri} has {suffix!r} twice")
            self._count("suffix", f"{key}.{suffix}")
            if self.rules.on_duplicate == "first":
                return
        sample[suffix] = value

    def _count(self, kind: str, name: str) -> None:
        self._counts[kind] += 1
        self._first.setdefault(kind, name)

    def report(self) -> None:
        """Warn of what was met so far; at the end of a shard, or where reading ends."""
        rules = self.rules
        ends = {"first": "the first one counts", "last": "the last one counts"}
        became = "merged into one sample" if rules.on_interleaved == "merge" else "each run a sample of its own"
        texts = {
            "interleaved": f"keys that return behind other keys ({became}; on_interleaved chooses)",
            "duplicate": f"entries whose name was there before (on_duplicate={rules.on_duplicate!r})",
            "suffix": f"suffixes that a sample has twice ({ends.get(rules.on_duplicate)})",
        }
        for kind, count in self._counts.items():
            self._told.warn(self.uri, kind, f"the shard {self.uri}: {count:,} {texts[kind]}, the first is {self._first[kind]!r}")


class Samples:
    """The samples of one shard, read forwards.

    Attributes:
        start: byte of the tar at which the next sample begins.
    """

    def __init__(self, shard: Shard, limit: int, gate: Gate) -> None:
        self._shard, self._limit, self._gate = shard, limit, gate
        self._tape = shard.tape()
        self._walk = TarWalk(self._tape, f"the shard {shard.uri}")
        self._file = ShardFile.of(self._tape) if isinstance(self._tape, FileTape) else None
        self._ahead: tuple[TarHeader, str, str] | None = None
        self.start = self._end = shard.start
        self._begun = False

    def next(self, keep: bool) -> dict[str, Any] | None:
        """The next sample, without contents where it is not kept; None at the end of the shard."""
        if not self._begun:
            self._begun, self._ahead = True, self._entry()
        if self._ahead is None:
            self._gate.report()
            return None
        gate = self._gate
        header, key, suffix = self._ahead
        gate.begin(key)
        sample: dict[str, Any] = {"__key__": key, "__shard__": self._shard.uri}
        carried = 0
        while True:
            reader = self._reader(header, keep, carried)
            carried += reader.nbytes
            gate.put(sample, key, suffix, reader)
            self._ahead = self._entry()
            if self._ahead is None or self._ahead[1] != key:
                break
            header, _, suffix = self._ahead
        self.start = self._end if self._ahead is None else self._ahead[0].start
        return sample

    def _reader(self, header: TarHeader, keep: bool, carried: int) -> TarReader:
        shard, limit = self._shard, self._limit
        data = None
        if keep and shard.local is None and header.size <= limit:
            most = limit if shard.packed else min(limit, CARRIED_BYTES)
            if carried + header.size <= most:
                data = self._walk.read(header)
        return TarReader(shard.uri, header, data, packed=shard.packed, limit=limit, file=self._file)

    def _entry(self) -> tuple[TarHeader, str, str] | None:
        """The next entry that belongs to a sample, its key and its suffix."""
        while (header := self._walk.next()) is not None:
            if header.kind != "other" and (found := self._gate.admit(header.name, header.kind)) is not None:
                return header, *found
        self._end = self._tape.position - BLOCK  # where the end marker begins
        if self._shard.packed:  # its checksum stands behind that
            self._tape.skip(1 << 62)
        return None

    def close(self) -> None:
        self._gate.report()
        self._tape.close()
        self._shard.close()
