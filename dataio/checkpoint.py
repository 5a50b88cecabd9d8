"""How far a loader has got, as a small JSON value, and back: what `state_dict` and `load_state_dict` are made of.

A position counts what was *delivered*, over all ranks, in one order of the records that does not depend on the number of
ranks. So a run may go on with another number of ranks wherever its global batches end where the old ones did.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .engine.batch import FinishedBatch
from .engine.errors import CheckpointError
from .engine.explain import plan_text
from .engine.plan import Batch, BucketBy, Pack, Plan, Shape, walk
from .engine.run import Resume
from .engine.signature import checkpoint_signatures
from .engine.units import Share

VERSION = 2
_KEYS = ("version", "epoch", "samples_consumed", "rng_seed", "pipeline_signature")


@dataclass(slots=True)
class Position:
    """The batches of an epoch that were delivered: all before number `batches`, and those `ahead` of it.

    Attributes:
        units: the source's state behind batch `batches - 1`, None at the beginning.
        consumed: records of the epoch up to there, on all ranks.
        ahead: number of a batch delivered out of order, with the state behind it and the records up to it.
    """

    epoch: int = 0
    batches: int = 0
    units: Any = None
    consumed: int = 0
    ahead: dict[int, tuple[Any, int]] = field(default_factory=dict)

    def delivered(self, batch: FinishedBatch) -> None:
        """Note one more batch."""
        if batch.number != self.batches:
            self.ahead[batch.number] = (batch.after, batch.consumed)
            return
        self.batches, self.units, self.consumed = batch.number + 1, batch.after, batch.consumed
        while self.batches in self.ahead:
            self.units, self.consumed = self.ahead.pop(self.batches)
            self.batches += 1

    def resume(self) -> Resume:
        return Resume(self.batches, self.units, frozenset(self.ahead))


def global_batch(shape: Shape, share: Share) -> Any:
    """Records (of `pack`: rows) of one batch of all ranks together; None where the source decides."""
    match shape:
        case Batch(size=size) | Pack(size=size):
            return size * share.of
        case BucketBy(sizes=int(size)):
            return size * share.of
        case BucketBy(sizes=sizes):
            return [[repr(bucket), size * share.of] for bucket, size in sizes]  # type: ignore[union-attr]
    return None


class PlanIdentity:
    """What a state says of the plan it was made with, worked out once."""

    def __init__(self, plan: Plan, share: Share) -> None:
        self.exact, self.elastic = checkpoint_signatures(plan)
        self.shape = next(n for n in walk(plan) if isinstance(n, Shape))
        self.global_batch = global_batch(self.shape, share)
        self.lines = plan_lines(plan)


def make_state(position: Position, identity: PlanIdentity, seed: int) -> dict[str, Any]:
    """A position as plain values, with what it takes to refuse a loader that it does not fit."""
    state = {
        "version": VERSION,
        "epoch": position.epoch,
        "samples_consumed": position.consumed,
        "batches": position.batches,
        "rng_seed": seed,
        "pipeline_signature": identity.exact,
        "elastic_signature": identity.elastic,
        "global_batch": identity.global_batch,
        "plan": list(identity.lines),
        "source": position.units,
    }
    if position.ahead:
        state["ahead"] = [[number, *behind] for number, behind in sorted(position.ahead.items())]
    return state


def plan_lines(plan: Plan) -> list[str]:
    """The plan for people, without the source, which may be another one."""
    return [line.strip() for line in plan_text(plan).splitlines() if not line.strip().startswith("Scan ")]


def read_state(state: Any, identity: PlanIdentity, *, align: str = "error") -> tuple[Position, int]:
    """The position that a state stands for, and the run's seed.

    Raises:
        TypeError: `state` is no mapping.
        CheckpointError: it lacks a key, has another version, or was made by another plan; or with global batches that end
            where those of this loader do not.
    """
    if not isinstance(state, Mapping):
        raise TypeError(f"load_state_dict takes what state_dict gave, got {type(state).__name__}")
    if align not in ("error", "down"):
        raise ValueError(f"align must be 'error' or 'down', got {align!r}")
    for key in _KEYS:
        if key not in state:
            raise CheckpointError(f"the state lacks {key!r}: it is none that state_dict gave")
    if state["version"] != VERSION:
        raise CheckpointError(f"the state has version {state['version']!r}, this dataio reads version {VERSION}")
    for key in ("epoch", "samples_consumed", "rng_seed"):
        if isinstance(state[key], bool) or not isinstance(state[key], int) or state[key] < 0:
            raise CheckpointError(f"the state's {key!r} is {state[key]!r}, not a number of at least 0")
    exact, ours = identity.exact, identity.global_batch
    if state["pipeline_signature"] != exact and state.get("elastic_signature") != identity.elastic:
        raise CheckpointError(_difference(state, identity.lines))
    position = Position(
        state["epoch"], int(state.get("batches", 0)), state.get("source"), state["samples_consumed"],
        {int(number): (units, int(consumed)) for number, units, consumed in state.get("ahead", ())},
    )  # fmt: skip
    known = position.units
    if known is not None and known.get("consumed") != position.consumed:  # edited by hand: go by the number
        if not isinstance(identity.shape, Batch):
            raise CheckpointError("the state's 'samples_consumed' and 'source' do not belong together")
        position.units = known = None
        position.ahead.clear()
    if isinstance(identity.shape, Batch):
        if ours != state.get("global_batch") and state["pipeline_signature"] != exact:
            raise CheckpointError(
                f"the state was made with batches of {state.get('global_batch')} records over all ranks, this loader's are "
                f"{ours} with another batch size: keep the batch size, or the product of batch size and ranks"
            )
        _align(position, ours, known or {}, align, same=ours == state.get("global_batch"))
    elif ours != state.get("global_batch"):
        raise CheckpointError(
            f"the state holds records of open batches of {state.get('global_batch')} over all ranks, this loader's are "
            f"{ours}: keep the product of size and ranks"
        )
    return position, state["rng_seed"]


def _align(position: Position, size: int, known: Mapping[str, Any], align: str, *, same: bool) -> None:
    """Make the position one at which this loader's global batches end; `same`: they are as large as the state's."""
    consumed = position.consumed
    if known.get("ended"):
        position.batches = max(position.batches, -(-consumed // size))
        return
    if known.get("short"):  # the source failed there, and the batch was delivered as far as it went
        return
    extra = consumed % size
    if extra and align == "error":
        raise CheckpointError(
            f"the state stands behind {consumed} records, and this loader's batches of all ranks together have {size}: "
            f"{extra} records of one of them were delivered and {size - extra} were not. Resume with a batch size and a "
            f"number of ranks whose product divides {consumed}, or repeat the {extra} records with "
            'load_state_dict(state, align="down")'
        )
    batches = consumed // size
    if position.ahead and not (same and batches == position.batches):
        if align == "error":
            raise CheckpointError(
                f"the state stands between batches that were delivered out of order (order=\"completion\"): {len(position.ahead)} "
                "of them come after the first that was not. Resume with the same batch size and number of ranks, or repeat "
                'them with load_state_dict(state, align="down")'
            )
        position.ahead.clear()
    if extra or position.units is None:
        position.consumed = consumed - extra
        position.units = {"source": None, "consumed": position.consumed, "seek": position.consumed}
    position.batches = batches
    if not position.consumed:
        position.units = None


def _difference(state: Mapping[str, Any], ours: list[str]) -> str:
    """What the state's plan has that this one has not, and the other way round."""
    theirs = state.get("plan")
    if not isinstance(theirs, list) or theirs == ours:
        return "the state was made by another pipeline: a function or an argument that its text does not show is another one"
    lines = [line for line in difflib.ndiff([str(t) for t in theirs], ours) if line[0] in "-+"]
    return "the state was made by another pipeline (- in the state, + in this loader):\n" + "\n".join(lines)
