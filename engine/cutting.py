"""Which cutter makes the batches of a plan, opened at the beginning of a pass or where a checkpoint left off."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from .buckets import BucketCutter
from .errors import InternalError, PlanError
from .packs import PackCutter
from .plan import Batch, BucketBy, Collate, GroupBy, MapRecords, Pack, Plan, Shape, Slots
from .source import Pass
from .streams import ColumnStream, open_stream, records_at
from .units import ALONE, BatchCutter, CollateCutter, Cutter, GroupCutter, Share

_COLUMN_ROWS = 4096
"""Rows of a columnar source that are looked at together."""


def open_cutter(
    shape: Shape, pass_: Pass, share: Share = ALONE, state: Any = None, *, originals: bool = False
) -> Cutter:
    """Cut the records below `shape` into batches, from the beginning of the pass or after `state`.

    Raises:
        CheckpointError: `state` is none of this plan's.
        PlanError: several ranks share a stage whose batches cannot be dealt out.
    """
    slots = shape.input
    if not isinstance(slots, Slots):
        raise InternalError(f"a shape stage stands on slots, not on {type(slots).__name__}")
    if share.of > 1 and isinstance(shape, (GroupBy, Collate)):
        raise PlanError("shard= needs batch(), bucket_by() or pack(): groups of group_by and collate have no common size")
    below: Plan = slots.input
    maps: Sequence[Callable[[Any], Any]] = ()
    if isinstance(shape, Collate):  # its maps are for the inner records
        below, maps = _without_maps(below)
    stream = open_stream(below, pass_, None if state is None else state["source"], originals=originals)
    refetch = partial(records_at, below, pass_, originals=originals)
    match shape:
        case Batch(size=size, drop_last=drop_last):
            return BatchCutter(stream, share, state, size=size, drop_last=drop_last, refetch=refetch)
        case GroupBy(key=key):
            ahead = _COLUMN_ROWS if isinstance(stream, ColumnStream) and isinstance(key, str) else None
            return GroupCutter(stream, share, state, key=key, pass_=pass_, ahead=ahead)
        case Collate():
            return CollateCutter(stream, share, state, maps=maps, pass_=pass_, originals=originals)
        case BucketBy():
            return BucketCutter(stream, share, state, shape, pass_, refetch)
        case Pack():
            return PackCutter(stream, share, state, shape, pass_, refetch)
    raise InternalError(f"{type(shape).__name__} has no cutter")


def _without_maps(plan: Plan) -> tuple[Plan, Sequence[Callable[[Any], Any]]]:
    maps: list[Callable[[Any], Any]] = []
    while isinstance(plan, MapRecords):
        maps.append(plan.function)
        plan = plan.input
    return plan, maps[::-1]
