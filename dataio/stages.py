"""The stages a pipeline is made of: `slot`, `slots`, `chain`, `map`, and the shape stages from `batch` to `pack`."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .engine.calls import BatchTransform, Decoder, OpCall, Transform
from .engine.expr import Col, Cond, Not
from .engine.plan import Chain
from .engine.registry import lookup
from .slot_methods import SlotMethods


@dataclass(frozen=True, slots=True)
class SlotStage(SlotMethods):
    """One slot's chain: a decoder, then transforms. Every method returns a new stage.

    Beside the methods here, every registered op is one: `.decode_image()`, `.resize_short(256)`, ...

    Attributes:
        output: the slot's name, also the record field it reads; "" for an unbound `chain()`.
        skip_cond: the record's slot is switched off where this is true.
    """

    output: str
    decoder: Decoder | None = None
    transforms: tuple[Transform, ...] = ()
    optional: bool = False
    skip_cond: Cond | None = None

    def apply(self, *things: Any) -> SlotStage:
        """Append transforms, or a decoder if there is none yet, or splice in exactly one unbound chain.

        Raises:
            ValueError: a second decoder.
            TypeError: anything else; a Python function goes into `dataio.map`.
        """
        if any(isinstance(thing, SlotStage) for thing in things):
            if len(things) != 1 or things[0].output:
                raise TypeError("apply() takes one unbound chain() on its own, or transforms and a decoder")
            return _joined(self, things[0])
        stage = self
        for thing in things:
            if isinstance(thing, Decoder):
                if stage.decoder is not None:
                    raise ValueError(f"slot {self.output!r} already has the decoder {stage.decoder}")
                stage = replace(stage, decoder=thing)
            elif isinstance(thing, Transform):
                stage = replace(stage, transforms=(*stage.transforms, thing))
            else:
                hint = "; use dataio.map(...) for Python functions" if callable(thing) else ""
                raise TypeError(f"a slot takes transforms and a decoder, got {thing!r}{hint}")
        return stage

    def decode(self, decoder: Decoder) -> SlotStage:
        """Set the decoder, from `dataio.decoders`."""
        if not isinstance(decoder, Decoder):
            raise TypeError(f"decode() takes a decoder from dataio.decoders, got {decoder!r}")
        if self.transforms:
            raise ValueError(f"declare the decoder of slot {self.output!r} before its transforms")
        return self.apply(decoder)

    def skip_when(self, cond: Cond) -> SlotStage:
        """Switch the slot off for records where `cond` is true; the slot must be optional. The last call wins."""
        if not isinstance(cond, Cond):
            raise TypeError(f"skip_when() takes a condition from dataio.cond, got {cond!r}")
        if not self.output:
            raise ValueError("a condition belongs to a slot, not to an unbound chain()")
        return replace(self, skip_cond=cond)

    def active_when(self, cond: Cond) -> SlotStage:
        """Switch the slot off for records where `cond` is false."""
        if not isinstance(cond, Cond):
            raise TypeError(f"active_when() takes a condition from dataio.cond, got {cond!r}")
        return self.skip_when(Not(cond))

    def when(self, cond: Cond) -> When:
        """Begin an n-way branch: `.when(c).then(op).elif_(d).then(op).otherwise(op)`; the first true condition wins.

        Conditions on record fields are worked out before anything is decoded, those on the tensor (`cond.shape`,
        `cond.ndim`) where the branch stands. Without `otherwise`, a record that meets no condition stays as it is.
        """
        return When(self, cond, ())

    def describe(self) -> dict[str, Any]:
        """Plain values: output, decoder, transforms, optional, skip_when."""
        return {
            "output": self.output,
            "decoder": self.decoder.canonical() if self.decoder else None,
            "transforms": [t.canonical() for t in self.transforms],
            "optional": self.optional,
            "skip_when": self.skip_cond.canonical() if self.skip_cond else None,
        }

    def to_chain(self) -> Chain:
        """The plan's form of this slot."""
        if self.decoder is None:
            raise ValueError(f"slot {self.output!r} has no decoder: begin with .decode_image(), .passthrough(), ...")
        return Chain(self.output, self.decoder, self.transforms, self.optional, self.skip_cond)

    def __add__(self, other: Any) -> SlotStage:
        if not isinstance(other, SlotStage):
            return NotImplemented
        if self.output or other.output:
            raise ValueError("only unbound chain()s can be added")
        return _joined(self, other)


@dataclass(frozen=True, slots=True)
class When:
    """A condition that waits for its transforms."""

    stage: SlotStage
    cond: Cond
    arms: tuple[tuple[Cond, tuple[Transform, ...]], ...]

    def then(self, *ops: Transform) -> Then:
        """What to do where the condition is true.

        Raises:
            TypeError: the condition is none, or something that is no transform.
            ValueError: no transform.
        """
        if not isinstance(self.cond, Cond):
            raise TypeError(f"when() and elif_() take a condition from dataio.cond, got {self.cond!r}")
        if not ops:
            raise ValueError("then() takes at least one transform")
        arms = (*self.arms, (self.cond, ops))
        stage = self.stage
        branch = _branch(arms, None)
        return Then(
            stage.output, stage.decoder, (*stage.transforms, branch), stage.optional, stage.skip_cond, stage, arms
        )


def _branch(arms: tuple[Any, ...], default: tuple[Any, ...] | None) -> Transform:
    made = lookup("select", "transform").call(arms=arms, default=default)
    assert isinstance(made, Transform)
    return made


@dataclass(frozen=True, slots=True)
class Then(SlotStage):
    """A slot whose last transform is a branch that may go on. Any other method ends the branch."""

    before: SlotStage | None = field(default=None, repr=False, compare=False)
    arms: tuple[tuple[Cond, tuple[Transform, ...]], ...] = field(default=(), repr=False, compare=False)

    def elif_(self, cond: Cond) -> When:
        """The next condition, for where those before are false."""
        return When(self._open(), cond, self.arms)

    def otherwise(self, *ops: Transform) -> SlotStage:
        """What to do where no condition is true; no transform: leave the value as it is."""
        before = self._open()
        return replace(before, transforms=(*before.transforms, _branch(self.arms, ops or None)))

    def _open(self) -> SlotStage:
        if self.before is None or len(self.transforms) != len(self.before.transforms) + 1:
            raise ValueError("elif_() and otherwise() must follow then() directly")
        return self.before


def _joined(first: SlotStage, second: SlotStage) -> SlotStage:
    if first.decoder is not None and second.decoder is not None:
        raise ValueError(f"both sides have a decoder: {first.decoder} and {second.decoder}")
    return replace(
        first, decoder=first.decoder or second.decoder, transforms=(*first.transforms, *second.transforms)
    )


def _slot_name(name: Any) -> str:
    if not isinstance(name, str):
        raise TypeError(f"a slot's name must be a str, got {name!r}")
    if not name:
        raise ValueError("a slot's name must not be empty")
    return name


def slot(name: str, *, optional: bool = False) -> SlotStage:
    """Begin the chain of one slot; it reads the record's field `name` and fills `batch[name]`."""
    if not isinstance(optional, bool):
        raise TypeError(f"optional must be a bool, got {optional!r}")
    return SlotStage(_slot_name(name), optional=optional)


def chain() -> SlotStage:
    """An unbound chain, to be spliced into slots by `apply` or `slots(...).using`."""
    return SlotStage("")


@dataclass(frozen=True, slots=True)
class SlotsBuilder:
    """Several slots with one chain; iterating yields one `SlotStage` per name."""

    names: tuple[str, ...]
    _chain: SlotStage = field(default_factory=chain)
    _optional: bool = False

    def optional(self, value: bool = True) -> SlotsBuilder:
        if not isinstance(value, bool):
            raise TypeError(f"optional() takes a bool, got {value!r}")
        return replace(self, _optional=value)

    def using(self, chain: SlotStage) -> SlotsBuilder:
        if not isinstance(chain, SlotStage):
            raise TypeError(f"using() takes a chain(), got {chain!r}")
        if chain.output:
            raise ValueError("using() takes an unbound chain(), not a slot")
        return replace(self, _chain=_joined(self._chain, chain))

    def __iter__(self) -> Iterator[SlotStage]:
        _unique(self.names)
        for name in self.names:
            yield replace(self._chain, output=_slot_name(name), optional=self._optional)

    def __len__(self) -> int:
        return len(self.names)


def _unique(names: Sequence[str]) -> None:
    twice = sorted({n for n in names if names.count(n) > 1})
    if twice:
        raise ValueError(f"slot names must be unique; given twice: {', '.join(twice)}")


def slots(names: Sequence[str]) -> SlotsBuilder:
    """Several slots at once: `slots(["image", "mask"]).using(chain().decode_image())`."""
    if isinstance(names, (str, bytes)) or not isinstance(names, (list, tuple)):
        raise TypeError(f"slots() takes a list of names, got {names!r}")
    if not names:
        raise ValueError("slots() needs at least one name")
    return SlotsBuilder(tuple(names))


@dataclass(frozen=True, slots=True)
class BatchStage:
    """Consecutive groups of `batch_size` records."""

    batch_size: int
    drop_last: bool = field(default=False, kw_only=True)
    prefetch: int | None = field(default=None, kw_only=True)


@dataclass(frozen=True, slots=True)
class CollateStage:
    """The source's own batches."""

    prefetch: int | None = field(default=None, kw_only=True)


@dataclass(frozen=True, slots=True)
class GroupByStage:
    """One batch per run of consecutive equal keys."""

    key: str | int | Callable[[Any], Any]
    prefetch: int | None = field(default=None, kw_only=True)


@dataclass(frozen=True, slots=True)
class BucketByStage:
    """One open batch per bucket; see `bucket_by`."""

    key: str | Cond | Callable[[Any], Any]
    sizes: int | tuple[tuple[Any, int], ...]
    boundaries: tuple[float, ...] | None = field(default=None, kw_only=True)
    drop_last: bool = field(default=False, kw_only=True)
    max_open: int = field(default=256, kw_only=True)
    prefetch: int | None = field(default=None, kw_only=True)


@dataclass(frozen=True, slots=True)
class PackStage:
    """Token sequences in rows of one length; see `pack`."""

    length: int
    slot: str | None = field(default=None, kw_only=True)
    size: int = field(default=1, kw_only=True)
    tokens: str | Callable[[Any], Any] | None = field(default=None, kw_only=True)
    strategy: str = field(default="first_fit", kw_only=True)
    open_rows: int = field(default=64, kw_only=True)
    overflow: str = field(default="error", kw_only=True)
    pad_value: int = field(default=0, kw_only=True)
    drop_last: bool = field(default=False, kw_only=True)
    prefetch: int | None = field(default=None, kw_only=True)


ShapeStage = BatchStage | CollateStage | GroupByStage | BucketByStage | PackStage


def _count(name: str, value: Any) -> int:
    """A whole number of at least 1."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if (number := operator.index(value)) < 1:
        raise ValueError(f"{name} must be at least 1, got {number}")
    return number


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be a bool, got {value!r}")
    return value


def _prefetch(value: Any) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not hasattr(value, "__int__"):
        raise TypeError(f"prefetch must be an integer, got {value!r}")
    if int(value) < 1:
        raise ValueError(f"prefetch must be at least 1, got {value}")
    return int(value)


def batch(size: int, *, drop_last: bool = False, prefetch: int | None = None) -> BatchStage:
    """Cut the records into batches of `size`; `prefetch` (default 4) of them are in flight.

    Raises:
        TypeError: a bool for `size`, or `drop_last` that is none.
        ValueError: `size` or `prefetch` below 1.
    """
    if isinstance(size, bool):
        raise TypeError("batch(size) must be an integer, got a bool")
    if int(size) < 1:
        raise ValueError(f"batch(size) must be at least 1, got {size}")
    if not isinstance(drop_last, bool):
        raise TypeError(f"drop_last must be a bool, got {drop_last!r}")
    return BatchStage(int(size), drop_last=drop_last, prefetch=_prefetch(prefetch))


def collate(*, prefetch: int | None = None) -> CollateStage:
    """Keep the source's own batches: it yields iterables of records."""
    return CollateStage(prefetch=_prefetch(prefetch))


def group_by(key: str | int | Callable[[Any], Any], *, prefetch: int | None = None) -> GroupByStage:
    """One batch per run of consecutive equal keys: a field, an index, or a callable on the record."""
    if isinstance(key, bool) or not (isinstance(key, (str, int)) or callable(key)):
        raise TypeError(f"group_by() takes a field name, an index or a callable, got {key!r}")
    return GroupByStage(key, prefetch=_prefetch(prefetch))


def bucket_by(
    key: Any,
    sizes: int | Mapping[Any, int] | Sequence[int],
    *,
    boundaries: Sequence[float] | None = None,
    drop_last: bool = False,
    max_open: int = 256,
    prefetch: int | None = None,
) -> BucketByStage:
    """Batches of records of one kind, such as images of one size or sequences of about one length.

    One batch is open per bucket; it is delivered when it is full, and the open ones at the end of the data in the order
    they were begun. What waits in open batches is part of a checkpoint.

    Args:
        key: a field (a name or `col(name)`), a condition from `dataio.cond`, or a callable on the record; records with
            equal keys share a bucket. It must be hashable.
        sizes: records per batch: a number, or a mapping from bucket to number, or, with `boundaries`, a list of one number
            per bucket.
        boundaries: the key is a number, and its bucket the number of boundaries it is not below: `[128, 256]` makes
            buckets 0 (below 128), 1 and 2 (256 and more).
        drop_last: leave out what is not full at the end.
        max_open: buckets open at a time, which bounds what is held; one more is an error.
        prefetch: batches in flight (default 4).

    Raises:
        TypeError, ValueError: an argument of the wrong type or range.
    """
    key = key.field if isinstance(key, Col) else key
    if not isinstance(key, (str, Cond)) and not callable(key):
        raise TypeError(f"bucket_by() takes a field name, col(...), a condition or a callable, got {key!r}")
    if key == "":
        raise ValueError("bucket_by() takes a field name that is not empty")
    bounds = None
    if boundaries is not None:
        bounds = tuple(float(b) for b in boundaries)
        if not bounds or any(b != b for b in bounds) or list(bounds) != sorted(set(bounds)):
            raise ValueError(f"boundaries must be different numbers in rising order, got {list(boundaries)!r}")
    chosen: int | tuple[tuple[Any, int], ...]
    if isinstance(sizes, Mapping):
        chosen = tuple((bucket, _count(f"the size of bucket {bucket!r}", n)) for bucket, n in sizes.items())
    elif isinstance(sizes, (list, tuple)):
        if bounds is None or len(sizes) != len(bounds) + 1:
            raise ValueError("a list of sizes needs boundaries, and one size more than there are of them")
        chosen = tuple((bucket, _count(f"the size of bucket {bucket}", n)) for bucket, n in enumerate(sizes))
    else:
        chosen = _count("sizes", sizes)
    if chosen == ():
        raise ValueError("sizes must name at least one bucket")
    return BucketByStage(
        key,
        chosen,
        boundaries=bounds,
        drop_last=_flag("drop_last", drop_last),
        max_open=_count("max_open", max_open),
        prefetch=_prefetch(prefetch),
    )


def pack(
    length: int,
    *,
    slot: str | None = None,
    size: int = 1,
    tokens: str | Callable[[Any], Any] | None = None,
    strategy: str = "first_fit",
    open_rows: int = 64,
    overflow: str = "error",
    pad_value: int = 0,
    drop_last: bool = False,
    prefetch: int | None = None,
) -> PackStage:
    """Token sequences put together in rows of `length` tokens, so that little is padding.

    The batch holds `batch[slot]` as [size, length], and int32 [size, length] `batch["segment_ids"]` (1, 2, ... per
    sequence of a row, 0 where there is padding) and `batch["positions"]` (0, 1, ... within each sequence), as T5X and seqio
    name them. Other slots with one element per token (labels, masks) are packed alike; the rest stays one row per record,
    as do `batch.keys`. What waits in open rows is part of a checkpoint.

    Args:
        slot: the slot with the tokens, [tokens] or [tokens, ...]; None: the pipeline's first.
        size: rows per batch.
        tokens: a record's number of tokens, known before it is decoded: a field that holds a number or the sequence
            itself, or a callable that gives either. None: the field that `slot` reads.
        strategy: "first_fit" puts a sequence into the oldest open row it fits in, "best_fit" into the one that it leaves
            the least room in.
        open_rows: rows open at a time, which bounds what is held.
        overflow: for a sequence longer than `length`: "error" (a row error), "truncate" or "split" (into several rows).
        pad_value: stands where a row of `slot` is not filled; other slots have 0 there.
        drop_last: leave out a last batch with fewer than `size` rows.
        prefetch: batches in flight (default 4).

    Raises:
        TypeError, ValueError: an argument of the wrong type or range.
    """
    if slot is not None:
        _slot_name(slot)
    if tokens is not None and not isinstance(tokens, str) and not callable(tokens):
        raise TypeError(f"tokens must be a field name or a callable, got {tokens!r}")
    for name, value, known in (
        ("strategy", strategy, ("first_fit", "best_fit")),
        ("overflow", overflow, ("error", "truncate", "split")),
    ):
        if value not in known:
            raise ValueError(f"{name} must be one of {', '.join(repr(k) for k in known)}, got {value!r}")
    if isinstance(pad_value, bool) or not hasattr(pad_value, "__index__"):
        raise TypeError(f"pad_value must be an integer, got {pad_value!r}")
    return PackStage(
        _count("length", length),
        slot=slot,
        size=_count("size", size),
        tokens=tokens,
        strategy=strategy,
        open_rows=_count("open_rows", open_rows),
        overflow=overflow,
        pad_value=operator.index(pad_value),
        drop_last=_flag("drop_last", drop_last),
        prefetch=_prefetch(prefetch),
    )


@dataclass(frozen=True, slots=True)
class MapStage:
    """A Python function on each record (before the shape stage) or on each batch (after it)."""

    op: Callable[..., Any] | BatchTransform


def map(op: Callable[..., Any] | BatchTransform) -> MapStage:
    """Run a Python function per record, or per batch when it stands after the shape stage."""
    if not callable(op) and not isinstance(op, BatchTransform):
        raise TypeError(f"map() takes a callable, a custom_op or a batch transform, got {op!r}")
    if isinstance(op, OpCall) and not isinstance(op, BatchTransform):
        raise TypeError(f"map() takes no {type(op).__name__.lower()}: apply {op} to a slot")
    return MapStage(op)
