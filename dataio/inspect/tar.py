"""Tar shards of samples (webdataset).

Codes: `truncated` and `damaged`, `duplicate_member` (a sample has a suffix twice), `interleaved_key` (the members of a sample do not
follow one another), `sparse_member` (errors); `missing_member` (a sample lacks what most have), `no_key` (a name without a dot, or
that begins with one or "_": no part of any sample), `not_a_file` (a link, device or pipe, which is skipped), `not_utf8`,
`members_differ` (a shard has other suffixes than most), `uneven_shards` (warnings); those of a member's own content.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..io.overlays import DecodedReader
from ..io.reader import reader
from ..io.tar_stream import RangeTape, StreamTape, TarError, TarHeader, TarWalk
from . import report
from .kinds import Target
from .members import check_member
from .report import Findings, first_few

UNPACKED = 1 << 40
"""Bytes of a compressed shard once unpacked, at most."""
LARGEST_MEMBER = 1 << 28
"""Bytes of a member whose content is checked."""
WINDOW = 1 << 22
"""Bytes asked for at a time where contents are read."""
SETS = 1000
"""Different sets of suffixes that are told apart."""
EXAMPLES = 20
MOST_KEYS = 1 << 22
"""Keys of one shard that are remembered, to find those that come back."""


@contextmanager
def walk(target: Target, *, contents: bool) -> Iterator[TarWalk]:
    """The entries of a shard, compressed or not."""
    if target.kind.codec:
        chunks = DecodedReader(reader(target.uri), target.kind.codec, UNPACKED).chunks()
        stream = StreamTape(chunks)
        try:
            yield TarWalk(stream, target.name)
        finally:
            stream.close()
        return
    ranges = target.open()

    def read(offset: int, count: int) -> Any:
        return ranges.read(offset, max(0, min(count, ranges.size - offset)))

    try:
        yield TarWalk(RangeTape(read, ranges.size, WINDOW) if contents else RangeTape(read, ranges.size), target.name)
    finally:
        ranges.close()


def split(name: str) -> tuple[str, str] | None:
    """Key (folders and the name up to its first dot) and suffix; None for what belongs to no sample."""
    folder, slash, base = name.rpartition("/")
    key, dot, suffix = base.partition(".")
    if not dot or not key or base[0] in "._":
        return None
    return folder + slash + key, suffix


class _Samples:
    """Goes along with the entries of a shard."""

    def __init__(self, found: Findings) -> None:
        self.found = found
        self.count = 0
        self.sets: OrderedDict[tuple[str, ...], tuple[int, list[str]]] = OrderedDict()
        self.members: Counter[str] = Counter()
        self.sizes: Counter[str] = Counter()
        self._seen: set[str] = set()
        self._key: str | None = None
        self._suffixes: list[str] = []

    def add(self, entry: TarHeader) -> None:
        name, found = entry.name, self.found
        if any("\udc80" <= c <= "\udcff" for c in name):
            found.warning("not_utf8", "the name is not UTF-8", name)
        if entry.kind == "other":
            if not name.endswith("/"):
                found.warning("not_a_file", "a link, device or pipe, which is skipped", name)
            return
        if entry.kind == "sparse":
            found.error("sparse_member", "a sparse file, whose content is not stored as it is", name)
        parts = split(name)
        if parts is None:
            found.warning("no_key", "belongs to no sample: a key, a dot and a suffix make a member's name", name)
            return
        key, suffix = parts
        if key != self._key:
            self.end()
            self._key = key
            if key in self._seen:
                found.error("interleaved_key", f"members of {key!r} come back after other samples", name)
            elif len(self._seen) < MOST_KEYS:
                self._seen.add(key)
        if suffix in self._suffixes:
            found.error("duplicate_member", f"the sample {key!r} has {suffix!r} twice", name)
        else:
            self._suffixes.append(suffix)
        self.members[suffix if len(self.members) < SETS or suffix in self.members else "..."] += 1
        self.sizes[suffix if len(self.sizes) < SETS or suffix in self.sizes else "..."] += entry.size

    def end(self) -> None:
        """The sample at hand has ended."""
        if self._key is None:
            return
        self.count += 1
        suffixes = tuple(sorted(self._suffixes))
        number, keys = self.sets.get(suffixes, (0, []))
        if len(keys) < EXAMPLES:
            keys.append(self._key)
        if suffixes in self.sets or len(self.sets) < SETS:
            self.sets[suffixes] = (number + 1, keys)
        self._key, self._suffixes = None, []

    def usual(self) -> set[str]:
        """The suffixes that more than half of the samples have."""
        having: Counter[str] = Counter()
        for suffixes, (number, _) in self.sets.items():
            having.update(dict.fromkeys(suffixes, number))
        return {suffix for suffix, number in having.items() if 2 * number > self.count}

    def missing(self) -> None:
        """Note the samples that lack what most have."""
        usual = self.usual()
        for suffixes, (number, keys) in self.sets.items():
            lacks = sorted(usual - set(suffixes))
            if not lacks:
                continue
            for key in keys:
                self.found.warning("missing_member", f"lacks {first_few(lacks)}, which most samples have", key)
            if number > len(keys):
                self.found.warning("missing_member", f"{number - len(keys):,} more samples lack {first_few(lacks)}")


def check(target: Target, found: Findings, quick: bool) -> tuple[int, Any]:
    """Every entry, and unless `quick` its content."""
    samples = _Samples(found)
    with walk(target, contents=not quick) as entries:
        try:
            while (entry := entries.next()) is not None:
                samples.add(entry)
                if quick or entry.kind != "file":
                    continue
                if entry.size > LARGEST_MEMBER:
                    found.info("large_member", f"{entry.size:,} bytes, the content is not checked", entry.name)
                    continue
                data = entries.read(entry)
                if split(entry.name) is not None:
                    check_member(data, entry.name, found)
        except TarError as error:
            found.error("truncated" if "is cut off" in str(error) else "damaged", str(error))
    samples.end()
    samples.missing()
    return samples.count, (samples.count, frozenset(samples.usual()))


class Together(report.Together):
    """Samples and suffixes of several shards."""

    def __init__(self) -> None:
        self._counts: list[tuple[str, int]] = []
        self._sets: dict[frozenset[str], tuple[int, list[str]]] = {}

    def add(self, target: Target, facts: tuple[int, frozenset[str]]) -> None:
        count, usual = facts
        self._counts.append((target.name, count))
        number, names = self._sets.get(usual, (0, []))
        if len(names) < EXAMPLES:
            names.append(target.name)
        if usual in self._sets or len(self._sets) < SETS:
            self._sets[usual] = number + 1, names

    def finish(self, found: Findings) -> None:
        if len(self._counts) < 2:
            return
        uneven(found, self._counts, "shards", "samples")
        most = max(self._sets, key=lambda usual: self._sets[usual][0])
        for usual, (_, names) in self._sets.items():
            if usual == most:
                continue
            for name in names:
                message = f"its samples have {first_few(sorted(usual))}; those of most shards {first_few(sorted(most))}"
                found.add("warning", "members_differ", message, uri=name)


def uneven(found: Findings, counts: list[tuple[str, int]], what: str, of: str) -> None:
    """Note files with under half or over twice as much as the median; the last one may be the rest."""
    numbers = sorted(count for _, count in counts)
    median = numbers[len(numbers) // 2]
    odd = [(name, count) for name, count in counts[:-1] if 2 * count < median or count > 2 * median]
    odd += [(name, count) for name, count in counts[-1:] if count > 2 * median or not count]
    for name, count in odd[:EXAMPLES]:
        found.add("warning", f"uneven_{what}", f"{count:,} {of}, where the median of {len(counts):,} {what} is {median:,}", uri=name)
    if len(odd) > EXAMPLES:
        found.warning(f"uneven_{what}", f"{len(odd) - EXAMPLES:,} more {what} are far from the median of {median:,} {of}")


# ------------------------------------------------------------------------- what is inside


def head(target: Target, count: int) -> Iterator[dict[str, Any]]:
    """The first samples: key, and bytes by suffix."""
    key: str | None = None
    sample: dict[str, Any] = {}
    with walk(target, contents=False) as entries:
        while (entry := entries.next()) is not None:
            parts = split(entry.name) if entry.kind != "other" else None
            if parts is None:
                continue
            if parts[0] != key:
                if key is not None:
                    yield sample
                    count -= 1
                if not count:
                    return
                key = parts[0]
                sample = {"__key__": key}
            sample[parts[1]] = f"{entry.size:,} bytes"
    if key is not None and count:
        yield sample


def schema(target: Target) -> dict[str, Any]:
    """Suffixes and in how many samples they are."""
    samples = _walked(target)
    return {suffix: f"{number:,} of {samples.count:,} samples" for suffix, number in samples.members.most_common()}


def stats(target: Target) -> tuple[dict[str, Any], Any]:
    """Samples; members and bytes by suffix."""
    samples = _walked(target)
    members = {suffix: {"members": number, "bytes": samples.sizes[suffix]} for suffix, number in samples.members.most_common()}
    return {"samples": samples.count, "members": members}, None


def _walked(target: Target) -> _Samples:
    samples = _Samples(Findings(target.name, 0))
    with walk(target, contents=False) as entries:
        while (entry := entries.next()) is not None:
            samples.add(entry)
    samples.end()
    return samples
