"""Scratch memory of the calling thread: reused buffers spare the page faults of fresh ones."""

from __future__ import annotations

import math
import threading

import numpy as np

KEEP_BYTES = 64 << 20
"""A larger buffer is not kept: one huge image must not pin its size in every worker."""

_local = threading.local()


def scratch(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """An uninitialised uint8 array that lives until the next request for `name` by the same thread.

    It must not leave the kernel that asked for it.
    """
    size = math.prod(shape)
    buffer: np.ndarray | None = getattr(_local, name, None)
    if buffer is None or buffer.size < size:
        buffer = np.empty(size, np.uint8)
        if size <= KEEP_BYTES:
            setattr(_local, name, buffer)
    return buffer[:size].reshape(shape)
