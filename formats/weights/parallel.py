"""Many places of a file read at once, each into memory of its own."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from ...engine.source import RangeReader

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
        return
    pending: deque[Future[None]] = deque()
    threads = ThreadPoolExecutor(min(reads, len(jobs)), thread_name_prefix="dataio-tensors")
    try:
        for offset, out in jobs:
            if len(pending) == 4 * reads:
                pending.popleft().result()
            pending.append(threads.submit(reader.read_into, offset, out))
        while pending:
            pending.popleft().result()
    finally:
        threads.shutdown(wait=True, cancel_futures=True)


def _parts(targets: Iterable[tuple[int, np.ndarray]], part: int) -> Iterator[tuple[int, memoryview]]:
    for offset, out in targets:
        view = memoryview(out)
        for at in range(0, len(view), part):
            yield offset + at, view[at : at + part]
