"""Which part of the data a rank trains on: `shard=` and `steps=` of `run`, and what the launcher says about ranks."""

from __future__ import annotations

import operator
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any, cast

from .engine.agreement import Agreement
from .engine.errors import PlanError, StepsError
from .engine.settings import agreement_timeout
from .engine.units import ALONE, Share, Steps

_LAUNCHERS = (
    ("RANK", "WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
)
"""Environment variables of torchrun and its like, SLURM, and Open MPI: this process's rank, and how many there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSpec:
    """One rank's share of the records: record r of an epoch belongs to shard `r % of`.

    Attributes:
        id: this rank, in [0, of).
        of: number of ranks.
        sticky: False draws a new order of all records in each epoch, from the run's seed (0 without one), the same on
            all ranks.
        pad: True gives all ranks equally many full batches: a short shard repeats its own last record.

    Raises:
        TypeError: a bool for a number, or no bool for `sticky` and `pad`.
        ValueError: `of` below 1, or `id` outside [0, of).
    """

    id: int
    of: int
    sticky: bool = True
    pad: bool = True

    def __post_init__(self) -> None:
        for name in ("id", "of"):
            value = getattr(self, name)
            if isinstance(value, bool) or not hasattr(value, "__index__"):
                raise TypeError(f"shard {name!r} must be an integer, got {value!r}")
            object.__setattr__(self, name, operator.index(value))
        for name in ("sticky", "pad"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"shard {name!r} must be a bool, got {getattr(self, name)!r}")
        if self.of < 1:
            raise ValueError(f"shard 'of' must be at least 1, got {self.of}")
        if not 0 <= self.id < self.of:
            raise ValueError(f"shard 'id' must be in [0, {self.of}), got {self.id}")


def as_shard(value: Any) -> ShardSpec | None:
    """What `run(shard=...)` was given.

    Raises:
        TypeError: neither None, a mapping, a `ShardSpec` nor "auto"; or a value of the wrong type.
        ValueError: another string, keys missing or unknown, a value out of range.
    """
    if value is None or isinstance(value, ShardSpec):
        return value
    if isinstance(value, str):
        if value != "auto":
            raise ValueError(f'shard must be a mapping, a ShardSpec or "auto", got {value!r}')
        rank, world = detected_ranks()
        return ShardSpec(id=rank, of=world)
    if not isinstance(value, Mapping):
        raise TypeError(f'shard must be a mapping, a ShardSpec or "auto", got {type(value).__name__}')
    known = ("id", "of", "sticky", "pad")
    if unknown := [key for key in value if key not in known]:
        raise ValueError(f"shard has the unknown keys {unknown}; known: {', '.join(known)}")
    if missing := [key for key in ("id", "of") if key not in value]:
        raise ValueError(f"shard lacks {', '.join(missing)}")
    return ShardSpec(**value)


def detected_ranks() -> tuple[int, int]:
    """(rank, number of ranks): from `torch.distributed` when a process group exists, else from the launcher's
    environment, else (0, 1).

    Raises:
        ValueError: the environment holds a rank without a size, or no numbers.
    """
    if (group := _process_group()) is not None:
        return int(group.get_rank()), int(group.get_world_size())
    for rank, world in _LAUNCHERS:
        found = os.environ.get(rank), os.environ.get(world)
        if found == (None, None):
            continue
        try:
            return int(cast(str, found[0])), int(cast(str, found[1]))
        except (TypeError, ValueError):
            raise ValueError(f'shard="auto": {rank}={found[0]!r} and {world}={found[1]!r} do not name a rank') from None
    return 0, 1


def _process_group() -> Any:
    """`torch.distributed` when it is initialised; torch is not imported for it: no group exists before it is."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    distributed = getattr(torch, "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed


def as_share(shard: ShardSpec | None, steps: Any) -> Share:
    """The engine's view of `shard=` and `steps=`.

    Raises:
        ValueError: `steps` is none of "pad", "drop" and "short".
    """
    if steps not in (None, "pad", "drop", "short"):
        raise ValueError(f"steps must be one of 'pad', 'drop', 'short' or None, got {steps!r}")
    if shard is None:
        return Share(steps=steps)
    if steps is None and shard.of > 1 and shard.pad:
        steps = "pad"
    return Share(shard.id, shard.of, cast("Steps | None", steps)) if shard.of > 1 or steps else ALONE


def agreement_for(share: Share, known_length: bool) -> Callable[[], Agreement] | None:
    """How this rank agrees with the others on the number of steps: needed where they cannot all work it out, because each
    rank's records are its own or their number is not known before reading, and possible where a process group exists.
    """
    group = _process_group()
    if share.steps is None or (share.of > 1 and known_length) or group is None or group.get_world_size() < 2:
        return None
    loader = next(_loaders)
    passes = count()
    return lambda: StoreAgreement(f"dataio/{loader}/{next(passes)}")


_loaders = count()
"""Loaders that agree on steps, in the order they were made: the same on all ranks of one training script."""


class StoreAgreement:
    """Ranks tell each other how many batches they have through the key-value store of the process group.

    No collective is called: these run on the trainer's thread, and calling one from another thread would pair it with
    the wrong one on another rank. The connection is the loader's own: the trainer may wait on its for as long as it likes.
    """

    def __init__(self, prefix: str) -> None:
        import torch.distributed as dist
        from torch.distributed.distributed_c10d import _get_default_store

        self.rank = dist.get_rank()
        self.ranks = dist.get_world_size()
        store = _get_default_store()
        self._store = dist.PrefixStore(prefix, store.clone() if hasattr(store, "clone") else store)

    def exchange(self, window: int, batches: int, stopped: Callable[[], bool]) -> list[int] | None:
        """See `Agreement.exchange`.

        Raises:
            StepsError: another rank did not answer in time.
        """
        import time

        keys = [f"{window}/{rank}" for rank in range(self.ranks)]
        self._store.set(keys[self.rank], str(batches))
        deadline, pause = time.monotonic() + agreement_timeout(), 0.0005
        while not self._store.check(keys):
            if stopped():
                return None
            if time.monotonic() > deadline:
                missing = [rank for rank, key in enumerate(keys) if not self._store.check([key])]
                raise StepsError(
                    f"rank {self.rank} waited {agreement_timeout():.0f} s for rank(s) {missing} to say how many batches "
                    "they have: every rank must make its loaders in the same order and iterate them equally often"
                )
            time.sleep(pause)
            pause = min(pause * 2, 0.05)
        counts = [int(self._store.get(key)) for key in keys]
        if window:  # everyone has read the window before, else it had not written this one
            self._store.delete_key(f"{window - 1}/{self.rank}")
        return counts


def check_shardable(share: Share, shape: Any) -> None:
    """Refuse shape stages that cannot be dealt out, when `run` is called and not when the first batch is cut."""
    from .engine.plan import Collate, GroupBy

    if share.of > 1 and isinstance(shape, (GroupBy, Collate)):
        raise PlanError("shard= needs batch(), bucket_by() or pack(): groups of group_by and collate have no common size")
