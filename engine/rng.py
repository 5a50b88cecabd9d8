"""Counter-based random streams: what a record draws depends on (seed, epoch, index), never on who computes it.

Philox 4x64 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3") through NumPy: the key holds the seed and
the record's index, the counter starts at (0, 0, 0, epoch). Every slot chain of a record restarts the stream, so sibling
slots draw the same numbers.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

_MASK = (1 << 64) - 1
_local = threading.local()


def thread_stream() -> np.random.Generator:
    """The calling thread's generator, which `record_stream` sets to a record's place."""
    generator: np.random.Generator | None = getattr(_local, "generator", None)
    if generator is None:
        generator = _local.generator = np.random.Generator(np.random.Philox(key=0))
        _local.state = generator.bit_generator.state
    return generator


def record_stream(seed: int, epoch: int, index: int, own_seed: int | None = None) -> np.random.Generator:
    """The stream of one record; `own_seed` (the record's `seed` field) replaces seed, epoch and index.

    The generator is reused by the calling thread: draw from it before asking for the next record's.
    """
    generator = thread_stream()
    state: dict[str, Any] = _local.state
    inner = state["state"]
    if own_seed is None:
        inner["key"][:] = (seed & _MASK, index & _MASK)
        inner["counter"][:] = (0, 0, 0, epoch & _MASK)
    else:
        inner["key"][:] = (own_seed & _MASK, _MASK)
        inner["counter"][:] = (0, 0, 0, _MASK)
    state["buffer_pos"] = 4  # nothing left over from the stream before
    state["has_uint32"] = 0
    generator.bit_generator.state = state
    return generator


def batch_stream(seed: int, epoch: int, number: int, position: int, own_seed: int | None = None) -> np.random.Generator:
    """The stream of one batch transform on one batch: `position` among the transforms, `own_seed` its `seed` argument."""
    entropy = (seed & _MASK, epoch & _MASK, number & _MASK, position, 0 if own_seed is None else 1 + (own_seed & _MASK))
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(entropy)))
