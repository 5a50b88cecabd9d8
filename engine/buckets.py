"""The cutter of `bucket_by`: one open batch per bucket.

What it holds back is part of the state as positions in the pass; a resumed cutter fetches those records again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .custom import record_caller
from .errors import MissingFieldError, PlanError
from .explain import key_text
from .expr import Cond, field_getter
from .plan import BucketBy
from .source import Pass
from .streams import BadRecord, Chunk, Stream
from .units import Refetch, RunCutter, Share, Unit


class Held:
    """A record that waits for its batch; `tokens` as they were counted."""

    __slots__ = ("index", "original", "row", "tokens")

    def __init__(self, index: int, row: Any, original: Any) -> None:
        self.index, self.row, self.original = index, row, original
        self.tokens = 0


def held_record(index: int, chunk: Chunk, row: int) -> Held:
    return Held(index, chunk.as_rows()[row], None if chunk.originals is None else chunk.originals[row])


def unit_of(held: Sequence[Held]) -> Unit:
    originals = [h.original for h in held]
    return Unit(
        [h.row for h in held],
        None,
        [h.index for h in held],
        originals if any(o is not None for o in originals) else None,
    )


class BucketCutter(RunCutter):
    """One open batch per bucket; a batch is given when it is full, the others at the end in the order they began."""

    def __init__(self, stream: Stream, share: Share, state: Any, node: BucketBy, pass_: Pass, refetch: Refetch) -> None:
        super().__init__(stream, share, state, ahead=1)
        self.node = node
        self._sizes = None if isinstance(node.sizes, int) else dict(node.sizes)
        self._key = key_function(node.key, pass_, "bucket_by")
        self._open: dict[Any, list[Held]] = {}
        waiting = [] if state is None else [list(map(int, indices)) for indices in state.get("open", ())]
        records = refetch([i for indices in waiting for i in indices])
        for indices in waiting:
            members = [held_record(i, records[i], 0) for i in indices]
            self._open[self.bucket(members[0])] = members
        self._last: Any = None if state is None else state.get("last")

    def held(self) -> int:
        return super().held() + sum(map(len, self._open.values()))

    def bucket(self, record: Held) -> Any:
        """The bucket of a record; a record that failed already goes where the one before it went."""
        if isinstance(record.row, BadRecord):
            return self._last
        key = self._key(record.row, record.index)
        if self.node.boundaries is not None:
            try:
                return bisect_right(self.node.boundaries, key)
            except TypeError:
                raise PlanError(
                    f"bucket_by({key_text(self.node.key)}, boundaries=...) needs numbers, record {record.index} has {key!r}"
                ) from None
        return key

    def size(self, bucket: Any) -> int:
        """Records of this bucket's batches, on one rank."""
        if self._sizes is None:
            return self.node.sizes  # type: ignore[return-value]
        try:
            return int(self._sizes[bucket])
        except KeyError:
            known = ", ".join(map(repr, self._sizes))
            raise PlanError(f"bucket_by: no size is given for bucket {bucket!r}; there are sizes for {known}") from None

    def cut(self) -> Iterator[Unit]:
        while True:
            chunk = self.next_chunk()
            for row in range(chunk.count):
                held = held_record(self.index(row), chunk, row)
                bucket = self._hashable(self.bucket(held))
                members = self._open.setdefault(bucket, [])
                if bucket is not None or not isinstance(held.row, BadRecord):
                    self._last = bucket if isinstance(bucket, (int, str, float)) else None
                if not members and len(self._open) > self.node.max_open:
                    raise PlanError(
                        f"bucket_by({key_text(self.node.key)}) met more than max_open={self.node.max_open} buckets at a "
                        "time: give boundaries= to make fewer of them, or a larger max_open="
                    )
                members.append(held)
                if len(members) == self.size(bucket) * self.share.of:
                    del self._open[bucket]
                    yield self._given(members, self.share.part)
            if self.ended():
                yield from self._flush()
                if chunk.error is not None:
                    raise chunk.error
                return

    @staticmethod
    def _hashable(bucket: Any) -> Any:
        try:
            hash(bucket)
        except TypeError:
            return repr(bucket)
        return bucket

    def _given(self, members: list[Held], part: slice) -> Unit:
        self.consumed += len(members)
        unit = unit_of(members[part])
        unit.after = {
            **self.cursor(self.chunk.count),
            "open": [[h.index for h in waiting] for waiting in self._open.values()],
            "last": self._last,
        }
        unit.consumed = self.consumed
        return unit

    def _flush(self) -> Iterator[Unit]:
        steps = self.share.steps
        while self._open:
            bucket = next(iter(self._open))
            members = self._open.pop(bucket)
            size = self.size(bucket)
            unit = self._given(members, self.share.part)
            unit.full = len(unit) == size
            if steps == "drop" or (steps is None and self.node.drop_last):
                continue
            if steps == "pad":
                unit = self._padded(unit, members, size)
            if len(unit) or steps == "short":
                yield unit

    @staticmethod
    def _padded(unit: Unit, members: list[Held], size: int) -> Unit:
        """A full batch; a rank without a record of the bucket repeats another's."""
        if not len(unit):
            one = unit_of(members[-1:])
            one.after, one.consumed, one.full = unit.after, unit.consumed, False
            unit = one
        return unit.padded(size)


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
