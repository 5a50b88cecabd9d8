"""The logical plan: a handful of frozen nodes, each holding its input. A query and a pipeline build the same ones.

    Scan  Filter  Select  Limit  Relation  MapRecords  Slots  Batch | Collate | GroupBy  BatchOps  MapBatches

Plans are values: hashable, printable, compared by content (a source by identity). Nothing here runs anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, cast

from .calls import BatchTransform, Decoder, OpCall, Transform
from .expr import Cond
from .frame_calls import FrameStep
from .source import ColumnarSource, Source


@dataclass(frozen=True, slots=True)
class Chain:
    """One slot's fused work: read the record's field `slot`, decode it, transform it."""

    slot: str
    decoder: Decoder
    transforms: tuple[Transform, ...] = ()
    optional: bool = False
    skip: Cond | None = None

    @property
    def calls(self) -> tuple[OpCall, ...]:
        return (self.decoder, *self.transforms)

    def columns(self) -> tuple[str, ...]:
        """Record fields that conditions and arguments read, in first-use order (the slot's own field left out)."""
        found = dict.fromkeys(sorted(self.skip.columns()) if self.skip else ())
        for call in self.calls:
            found.update(dict.fromkeys(call.columns()))
        return tuple(found)

    def params(self) -> tuple[tuple[str, str], ...]:
        """(parameter, op) pairs that `configure` has yet to set."""
        return tuple((p, call.name) for call in self.calls for p in call.params())

    def configured(self, values: dict[str, Any]) -> Chain:
        """The chain with `param(...)` arguments replaced."""
        decoder, *transforms = (cast(Any, call.configured(values)) for call in self.calls)
        return replace(self, decoder=decoder, transforms=tuple(transforms))


class Plan:
    """A node of the logical plan."""

    __slots__ = ()


def input_of(node: Plan) -> Plan | None:
    """The node below, None below a scan."""
    return getattr(node, "input", None)


def walk(plan: Plan) -> Iterator[Plan]:
    """The nodes from the top down to the scan."""
    node: Plan | None = plan
    while node is not None:
        yield node
        node = input_of(node)


@dataclass(frozen=True, slots=True)
class Scan(Plan):
    """Read `source`; a columnar source reads only `columns` of the rows that satisfy `predicate`, then a slice."""

    source: Source
    columns: tuple[str, ...] | None = None
    predicate: Cond | None = None
    limit: int | None = None
    offset: int = 0

    @property
    def columnar(self) -> bool:
        return isinstance(self.source, ColumnarSource)

    @property
    def sliced(self) -> bool:
        return self.limit is not None or self.offset > 0


@dataclass(frozen=True, slots=True)
class Filter(Plan):
    """Keep the rows for which `condition` (an expression, or a callable on the record) is true."""

    input: Plan
    condition: Cond | Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class Select(Plan):
    """Keep these columns, in this order."""

    input: Plan
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Limit(Plan):
    """Skip `offset` rows, then keep `count` (None: all)."""

    input: Plan
    count: int | None
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Relation(Plan):
    """A step that Polars does: sort, join, computed columns, groups and the like."""

    input: Plan
    step: FrameStep


@dataclass(frozen=True, slots=True)
class MapRecords(Plan):
    """Replace each record by `function(record)`; it may read anything."""

    input: Plan
    function: Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Slots(Plan):
    """Run one chain per slot on every record.

    `whole_records` is set when something beside the chains reads the record (`context=`).
    """

    input: Plan
    chains: tuple[Chain, ...]
    whole_records: bool = False

    def columns(self) -> tuple[str, ...]:
        """Record fields the chains read: the slots' own, then conditions' and arguments'."""
        found = dict.fromkeys(c.slot for c in self.chains)
        for chain in self.chains:
            found.update(dict.fromkeys(chain.columns()))
        return tuple(found)


class Shape(Plan):
    """The stage that turns records into batches: exactly one per plan."""

    __slots__ = ()
    input: Plan
    prefetch: int

    def fields(self) -> frozenset[str]:
        """Record fields that decide which records stand together."""
        key = getattr(self, "key", None) or getattr(self, "tokens", None)
        if isinstance(key, Cond):
            return frozenset(key.columns())
        return frozenset([key] if isinstance(key, str) else [])


@dataclass(frozen=True, slots=True)
class Batch(Shape):
    """Consecutive groups of `size` records; the last, shorter one is kept unless `drop_last`."""

    input: Plan
    size: int
    drop_last: bool = False
    prefetch: int = 4


@dataclass(frozen=True, slots=True)
class Collate(Shape):
    """The source yields iterables of records; each becomes one batch."""

    input: Plan
    prefetch: int = 4


@dataclass(frozen=True, slots=True)
class GroupBy(Shape):
    """One batch per run of consecutive equal keys (a field, an index, or a callable on the record)."""

    input: Plan
    key: str | int | Callable[[Any], Any]
    prefetch: int = 4


@dataclass(frozen=True, slots=True)
class BucketBy(Shape):
    """Records of one bucket per batch: as many open batches as there are buckets, at most `max_open`.

    Attributes:
        key: a field, a condition, or a callable on the record; records with equal keys share a bucket.
        boundaries: when given, the key is a number and the bucket how many boundaries it is not below.
        sizes: records per batch, one for all buckets or pairs of bucket and size.
    """

    input: Plan
    key: str | Cond | Callable[[Any], Any]
    sizes: int | tuple[tuple[Any, int], ...]
    boundaries: tuple[float, ...] | None = None
    drop_last: bool = False
    max_open: int = 256
    prefetch: int = 4


@dataclass(frozen=True, slots=True)
class Pack(Shape):
    """Token sequences packed into rows of `length` tokens, `size` rows per batch.

    Attributes:
        slot: the slot that is packed; other slots of one dimension and the same length are packed alike.
        tokens: where a record's number of tokens is known before it is decoded: a field (a number, or a sequence that
            is counted), or a callable on the record.
    """

    input: Plan
    length: int
    size: int
    slot: str
    tokens: str | Callable[[Any], Any]
    strategy: str = "first_fit"
    open_rows: int = 64
    overflow: str = "error"
    pad_value: int = 0
    drop_last: bool = False
    prefetch: int = 4


@dataclass(frozen=True, slots=True)
class BatchOps(Plan):
    """Run these batch transforms, in order, on each finished batch."""

    input: Plan
    calls: tuple[BatchTransform, ...]


@dataclass(frozen=True, slots=True)
class MapBatches(Plan):
    """Replace each finished batch by `function(batch)`."""

    input: Plan
    function: Callable[[Any], Any]


def needs_records(plan: Plan) -> bool:
    """True when a Python function reads whole records, so that the needed columns are unknown."""
    for node in walk(plan):
        if isinstance(node, (MapRecords, Collate)):
            return True
        if isinstance(node, Filter) and not isinstance(node.condition, Cond):
            return True
        if isinstance(node, GroupBy) and not isinstance(node.key, str):
            return True
        if isinstance(node, BucketBy) and not isinstance(node.key, (str, Cond)):
            return True
        if isinstance(node, Pack) and not isinstance(node.tokens, str):
            return True
        if isinstance(node, Slots) and node.whole_records:
            return True
    return False


def record_count(plan: Plan) -> int | None:
    """Records per epoch, when no stage makes it unknowable."""
    nodes = list(walk(plan))
    if any(isinstance(node, Filter) or (isinstance(node, Relation) and node.step.rows(0) is None) for node in nodes):
        return None  # before a source is asked, which may have to read footers
    count: int | None = None
    for node in reversed(nodes):
        match node:
            case Scan():
                count = node.source.length() if node.predicate is None else None
                if count is not None and node.sliced:
                    count = max(0, count - node.offset)
                    count = count if node.limit is None else min(count, node.limit)
            case Filter() | GroupBy() | BucketBy() | Pack():
                count = None
            case Relation() if count is not None:
                count = node.step.rows(count)
            case Limit() if count is not None:
                count = max(0, count - node.offset)
                count = count if node.count is None else min(count, node.count)
            case BatchOps() | MapBatches():
                pass
    return count


def with_source(plan: Plan, change: Callable[[Source], Source]) -> Plan:
    """The plan over another source: `change(source)` of its scan's."""
    if isinstance(plan, Scan):
        return replace(plan, source=change(plan.source))
    return replace(plan, input=with_source(plan.input, change))  # type: ignore[attr-defined, type-var]
