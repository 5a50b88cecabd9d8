"""Many places of a file read at once, each into memory of its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from ...engine.source import RangeReader
from ...io.parallel import for_each

PART = 16 << 20
"""Bytes of one read: enough that a store's latency and a thread's start do not show."""
READS = 8
"""Reads under way at once, as for a sharded safetensors directory."""


def read_all(reader: RangeReader, targets: Iterable[tuple[int, np.ndarray]], *, part: int = PART, reads: int = READS) -> None:
    """Fill arrays from a file; large ones by several reads, all of them in parallel.

    Args:
        reader: the open file.
        targets: (byte of the file, uint8[n] that is filled from there).
        part: bytes of one read at most.
        reads: reads at once.

    Raises:
        OSError: the file ends early; the arrays hold anything then.
    """
    jobs = list(_parts(targets, part))
    if len(jobs) < 2:
        for offset, out in jobs:
            reader.read_into(offset, out)
    else:
        for_each(lambda job: reader.read_into(*job), jobs, workers=reads)


def _parts(targets: Iterable[tuple[int, np.ndarray]], part: int) -> Iterator[tuple[int, memoryview]]:
    for offset, out in targets:
        view = out.data
        for at in range(0, len(view), part):
            yield offset + at, view[at : at + part]
