"""The cutter of `bucket_by`: one open batch per bucket.

What it holds back is part of the state as positions in the pass; a resumed cutter fetches those records again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Any

from .custom import record_caller
from .errors import CheckpointError, MissingFieldError, PlanError
from .explain import key_text
from .expr import Cond, field_getter
from .plan import BucketBy
from .source import Pass
from .streams import BadRecord, Stream
from .units import Refetch, RunCutter, Share, Unit


class Members:
    """The records of one open batch; `whole` of them fill it, on all ranks. `originals` is empty when none are kept."""

    __slots__ = ("indices", "originals", "rows", "whole")

    def __init__(self, whole: int = 0) -> None:
        self.whole = whole
        self.indices: list[int] = []
        self.rows: list[Any] = []
        self.originals: list[Any] = []

    def add(self, index: int, row: Any, originals: list[Any] | None, place: int) -> None:
        """Add a record; its original, if any are kept, is at `place`."""
        self.indices.append(index)
        self.rows.append(row)
        if originals is not None:
            self.originals.append(originals[place])

    def of(self, part: slice) -> Members:
        """A rank's part."""
        found = Members(self.whole)
        found.indices, found.rows, found.originals = self.indices[part], self.rows[part], self.originals[part]
        return found

    def extend(self, other: Members, times: int = 1) -> None:
        """Append the records of another, `times` over."""
        self.indices += other.indices * times
        self.rows += other.rows * times
        self.originals += other.originals * times


class BucketCutter(RunCutter):
    """One open batch per bucket; a batch is given when it is full, the others at the end in the order they began.

    Records without a bucket (a map failed on them, or the key did) are reported with the next batch that is given.
    """

    def __init__(self, stream: Stream, share: Share, state: Any, node: BucketBy, pass_: Pass, refetch: Refetch) -> None:
        super().__init__(stream, share, state)
        self.node = node
        sizes = node.sizes
        self._sizes = None if isinstance(sizes, int) else dict(sizes)
        self._size = sizes if isinstance(sizes, int) else max(size for _, size in sizes)  # at most
        self._key = key_function(node.key, pass_, "bucket_by")
        self._bad = Members()
        self._open: dict[Any, Members] = {}
        waiting = [] if state is None else [list(map(int, indices)) for indices in state.get("open", ())]
        records = refetch([i for indices in waiting for i in indices])
        for indices in waiting:
            self._reopen([(i, records[i].as_rows()[0], records[i].originals) for i in indices])

    def _reopen(self, records: list[tuple[int, Any, list[Any] | None]]) -> None:
        """Take up a batch that was open."""
        index, first, _ = records[0]
        try:
            members = self._begin(self._bucket(first, index))
        except Exception as error:
            raise CheckpointError(
                f"record {index}, which the checkpoint holds as waiting in a bucket, has none any more: {error}"
            ) from error
        for index, row, originals in records:
            members.add(index, row, originals, 0)

    def held(self) -> int:
        return super().held() + len(self._bad.rows) + self._waiting()

    def _waiting(self) -> int:
        """Records in open batches."""
        return sum(len(members.rows) for members in self._open.values())

    def _bucket(self, record: Any, index: int) -> Any:
        """The bucket of a record; whatever its key raises."""
        if isinstance(record, BadRecord):
            raise record.error
        key = self._key(record, index)
        return _hashable(key) if self.node.boundaries is None else _interval(key, self.node.boundaries)

    def _begin(self, bucket: Any) -> Members:
        """Open a batch.

        Raises:
            PlanError: no size is given for the bucket, or too many are open.
        """
        size = self._size
        if self._sizes is not None:
            if bucket not in self._sizes:
                known = ", ".join(map(repr, self._sizes))
                raise PlanError(f"bucket_by: no size is given for bucket {bucket!r}; there are sizes for {known}")
            size = self._sizes[bucket]
        if len(self._open) >= self.node.max_open:
            raise PlanError(
                f"bucket_by({key_text(self.node.key)}) met more than max_open={self.node.max_open} buckets at a "
                "time: give boundaries= to make fewer of them, or a larger max_open="
            )
        members = self._open[bucket] = Members(size * self.share.of)
        return members

    def cut(self) -> Iterator[Unit]:
        opened = self._open
        while True:
            chunk = self.next_chunk()
            rows, originals = chunk.as_rows(), chunk.originals
            for row in range(self.first(), chunk.count):
                record, index = rows[row], self.index(row)
                try:
                    bucket = self._bucket(record, index)
                except Exception as error:
                    if not isinstance(record, BadRecord):
                        record = BadRecord(record, "bucket_by", error)
                    self._bad.add(index, record, originals, row)
                    if len(self._bad.rows) > max(self._size * self.share.of, self._waiting()):
                        yield self._given(Members(), row + 1)  # most fail: say so, and hold no more of them
                    continue
                members = opened.get(bucket)
                if members is None:
                    members = self._begin(bucket)
                members.add(index, record, originals, row)
                if len(members.rows) == members.whole:
                    del opened[bucket]
                    yield self._given(members, row + 1)
            if self.ended():
                yield from self._flush()
                if chunk.error is not None:
                    raise chunk.error
                return

    def _given(self, members: Members, used: int) -> Unit:
        """This rank's records of a batch, and of those that failed before it."""
        share = self.share
        own, bad = members.of(share.part), self._bad.of(share.part)
        missing = members.whole // share.of - len(own.rows)
        if missing and share.steps == "pad":  # a rank without a record of the bucket repeats another's
            own.extend((own if own.rows else members).of(slice(-1, None)), missing)
        own.extend(bad)
        self.consumed += len(members.rows) + len(self._bad.rows)
        self._bad = Members()
        after = {**self.cursor(used), "open": [list(waiting.indices) for waiting in self._open.values()]}
        return Unit(
            own.rows, None, own.indices, own.originals or None, after=after, consumed=self.consumed
        )

    def _flush(self) -> Iterator[Unit]:
        """What is open when the data ends."""
        steps = self.share.steps
        while self._open or self._bad.rows:
            members = self._open.pop(next(iter(self._open))) if self._open else Members()
            full = len(members.rows[self.share.part]) * self.share.of == members.whole
            unit = self._given(members, self.chunk.count)
            if steps == "drop" or (steps is None and self.node.drop_last and not full):
                continue
            if len(unit) or steps is not None:
                yield unit


def _interval(key: Any, boundaries: tuple[float, ...]) -> int:
    """How many boundaries a number is not below.

    Raises:
        TypeError: it is no number.
    """
    try:
        found = bisect_right(boundaries, key)
    except TypeError:
        found = None
    if found is None or key != key:
        raise TypeError(f"boundaries= needs numbers, got {key!r:.200}")
    return found


def _hashable(key: Any) -> Any:
    """The key as a bucket: lists, as they come out of JSON and Arrow, as tuples.

    Raises:
        TypeError: it cannot be hashed.
        ValueError: it is not equal to itself.
    """
    if type(key) is list:
        return tuple(map(_hashable, key))
    hash(key)
    if key != key:
        raise ValueError(f"{key!r} is not equal to itself and would open a bucket of its own each time")
    return key


def key_function(key: Any, pass_: Pass, stage: str) -> Callable[[Any, int], Any]:
    """The key of a record (and its index) as a function."""
    if isinstance(key, Cond):
        condition = key
        return lambda record, _: bool(condition.of_record(field_getter(record)))
    if not isinstance(key, str):
        return record_caller(key, pass_.seed, pass_.epoch)

    def field(record: Any, _: int) -> Any:
        try:
            return record[key]
        except (KeyError, IndexError, TypeError) as error:
            raise MissingFieldError(f"{stage}({key!r}): the record has no such field: {record!r:.200}") from error

    return field
