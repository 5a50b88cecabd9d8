"""`webdataset`: samples out of tar shards, local or in any store, read forwards or by an index."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dataio.engine.errors import CheckpointError
from dataio.engine.permutation import Permutation
from dataio.engine.source import Pass, RowSource
from dataio.engine.streams import WHOLE, Chunk, Stream, source_error
from dataio.io.arguments import check_count
from dataio.io.tar_stream import TarError
from dataio.io.uri import local_path

from .patterns import expanded
from .records import RecordSource
from .samples import (
    Damage,
    Duplicate,
    DuplicateEntryError,
    Gate,
    Interleaved,
    KeyRule,
    Rules,
    Samples,
    SuffixRule,
    Told,
)
from .shards import Shard
from .tar_index import IndexedSamples, ShardIndex

if TYPE_CHECKING:
    from dataio.engine.shuffle import Order

_AHEAD = 2
"""Shards that are read at a time where they come over a network, the one at hand included."""


def webdataset(
    paths: Any,
    *,
    max_output_bytes: int = 2**30,
    index: bool | str | os.PathLike[str] = False,
    key: KeyRule = "basename",
    suffix: SuffixRule = "first_dot",
    lowercase: bool = False,
    on_interleaved: Interleaved = "sample",
    on_duplicate: Duplicate = "error",
    on_damage: Damage = "raise",
) -> RecordSource:
    """The samples of tar shards: runs of entries with the same key.

    A record has `__key__` (the name up to the first dot of its last part), `__shard__` (the path) and one reader per suffix (the rest
    behind that dot: `a.seg.png` gives `seg.png`). Entries whose last part starts with "." or "_" or has no dot are skipped, and so are
    folders, links and devices. Names such as `../x` are only names; bytes that are no UTF-8 become surrogates, so that different names
    stay different.

    Without an index the shards are read one after the other: over a network each as one stream, the next one ahead; of local ones only
    the headers are read here, and the contents by the workers. Shards that are compressed by gzip, bzip2, xz or zstd work. The number
    of samples is not known before they are read, so `shuffle` wants a `buffer`; with `block` (of any size) it also takes the shards in
    another order in each epoch. A pass is resumed in the middle of a shard without reading what comes before, except in compressed
    shards and with `on_duplicate="first"`.

    With an index the headers of all shards are read once, when the source is made: several shards at a time, of remote ones ranges that
    hold the headers. The source then has a length, and its samples are shuffled one by one over all shards, split among ranks, fetched by
    position and resumed like a list's; contents are read in place.

    Args:
        paths: paths or URIs of shards, each a str or PathLike. Each may hold ranges `{lo..hi}` of decimal numbers, both included,
            which are padded with zeros to the longer one when either begins with a zero, and lists `{train,val}`.
        max_output_bytes: largest entry; reading the reader of a larger one raises a RuntimeError.
        index: True makes an index in memory. A path or URI names a file that keeps it: it is read if it is there, shards that are new or
            have another size, ETag or modification time than in it are read again, and it is then replaced as a whole.
        key: "basename" ignores folders in names; with "path" they are part of the key, so `a/0.x` and `b/0.x` are two samples.
        suffix: where it begins; with "last_dot" `a.seg.png` has the key `a.seg` and the suffix `png`.
        lowercase: make suffixes lower case, so that `JPG` is `jpg`.
        on_interleaved: of a key that returns behind other keys of its shard: "sample" makes each run a sample of its own and warns,
            "error" raises ValueError, "merge" makes one sample at the place of the first run, and warns; it needs an index.
        on_duplicate: of a suffix that a sample has twice, or a name that a shard has twice: "error" raises, "first" and "last" keep
            that one and warn. Of a name that returns in a later sample "last" keeps both samples: the first has been delivered.
        on_damage: of a shard that is cut off or damaged: "raise" delivers the samples before and raises TarError (with an index it is
            raised when the source is made); "skip" delivers them, warns, and goes on with the next shard. A sample behind which the
            next header is damaged is not known to be whole, and not delivered. A missing shard is always an error.

    Warnings go to the logger `dataio.sources`, one for each shard and kind, with the number of cases and the first one.

    Raises:
        TypeError, ValueError: paths of another type, a pattern that is none, more than 1,000,000 shards, an unknown option, an `index`
            file that is none. With an index also what is raised while shards are read otherwise; a compressed shard has no index and
            raises ValueError.

    While it is read, also in a loader: MissingShardError (a RuntimeError and FileNotFoundError) for a shard that is not there, TarError
    (a ValueError) for one that is damaged or cut off, ValueError for a sample with the same suffix twice, DuplicateEntryError (a
    RuntimeError) for an entry that is twice in a shard.
    """
    check_count("max_output_bytes", max_output_bytes, least=1)
    rules = Rules(
        key=key, suffix=suffix, lowercase=lowercase, on_interleaved=on_interleaved, on_duplicate=on_duplicate, on_damage=on_damage
    )
    shards = expanded(paths)
    if index is False:
        if on_interleaved == "merge":
            raise ValueError('on_interleaved="merge" needs an index, as the parts of a sample are not together: give index=True too')
        return RecordSource(ShardRows(shards, max_output_bytes, rules), sequential=True)
    if index is not True and not isinstance(index, (str, os.PathLike)):
        raise TypeError(f"index is True, False, or the path or URI of a file, got {index!r}")
    made = ShardIndex.of(shards, skip_damage=on_damage == "skip", path=None if index is True else os.fspath(index))
    return RecordSource(IndexedSamples(made, max_output_bytes, rules))


class ShardRows(RowSource):
    """The samples of the shards, in their order; with `order` the shards of each pass are permuted."""

    def __init__(self, shards: Sequence[str], limit: int, rules: Rules, order: Order | None = None) -> None:
        self.shards, self.limit, self.rules, self.shard_order = shards, limit, rules, order
        self.told = Told()

    def describe(self) -> str:
        first = f"{self.shards[0]!r}, ..." if len(self.shards) > 1 else repr(self.shards[0])
        return f"webdataset({first}): {len(self.shards)} shards"

    def length(self) -> None:
        return None

    def order_identity(self) -> Any:
        return None if self.shard_order is None else f"{len(self.shards)} shards, shuffle({self.shard_order})"

    def with_shards_shuffled(self, order: Order) -> ShardRows:
        """The same source with the shards in another order in each pass."""
        return ShardRows(self.shards, self.limit, self.rules, order)

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
        self._current: Samples | None = None
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
            try:
                if self._current is None:
                    self._current = self._samples()
                found = self._current.next(keep)
            except TarError as error:
                if self._source.rules.on_damage == "raise" or isinstance(error, DuplicateEntryError):
                    raise
                self._source.told.warn(self._shards[self._number], "damage", f"{error}; what is behind that is left out")
                found = None
            if found is not None and self._current is not None:
                self._start = self._current.start
                return found
            if self._current is not None:
                self._current.close()
                self._current = None
            if self._open:
                self._open.popleft().close()
            self._number, self._start = self._number + 1, 0
        return None

    def _samples(self) -> Samples:
        """Those of the shard at hand, from where this stream stands."""
        uri, start, rules = self._shards[self._number], self._start, self._source.rules
        samples = Samples(self._shard(), self._source.limit, Gate(uri, rules, self._source.told))
        while samples.start < start and samples.next(False) is not None:
            pass
        return samples

    def _shard(self) -> Shard:
        """The shard at hand; the ones behind it are begun."""
        if not self._open:
            again = self._source.rules.on_duplicate == "first"  # what came before decides what comes
            self._open.append(Shard(self._shards[self._number], 0 if again else self._start))
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
