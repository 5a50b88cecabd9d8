"""Batch buffers: page-aligned memory that tensors view without a copy, and that comes back to a pool when they die.

A `Buffer` is an anonymous mapping (heap) or a mapping of a memory file that worker processes map too (shared). What is
handed out is a ctypes array over the mapping: NumPy and DLPack views keep it alive, and its finalizer returns the
mapping to the pool exactly when the last view has died. A batch that its owner keeps therefore never changes.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import mmap
import os
import tempfile
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .forks import in_child

_PAGE = mmap.PAGESIZE
_ids = itertools.count()


def size_class(nbytes: int) -> int:
    """`nbytes` rounded up to one of eight steps per power of two, so that similar batches share buffers."""
    nbytes = max(nbytes, _PAGE)
    step = max(_PAGE, 1 << (nbytes.bit_length() - 4))
    return -(-nbytes // step) * step


class Mapping:
    """Memory of one size class. `descriptor` is the file that other processes can map, or -1."""

    __slots__ = ("descriptor", "identity", "memory", "size")

    def __init__(self, size: int, shared: bool) -> None:
        self.size = size
        self.identity = next(_ids)
        self.descriptor = -1
        if not shared:
            self.memory = _private_memory(size)
            return
        self.descriptor = memory_file(size)
        self.memory = mmap.mmap(self.descriptor, size)

    def free(self) -> None:
        if self.descriptor >= 0 and hasattr(mmap, "MADV_REMOVE"):  # worker processes have it mapped for some time yet
            with contextlib.suppress(OSError):
                self.memory.madvise(mmap.MADV_REMOVE)
        with contextlib.suppress(BufferError):  # a view that outlived the pool unmaps it later
            self.memory.close()
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def _private_memory(size: int) -> mmap.mmap:
    """`size` bytes that a forked child gets a copy of: what it keeps does not change when the parent uses them again."""
    if hasattr(mmap, "MAP_PRIVATE"):
        return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return mmap.mmap(-1, size)


def memory_file(size: int) -> int:
    """A file descriptor of `size` bytes without a name, so that nothing can be left behind."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("dataio", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor


@dataclass(slots=True)
class Block:
    """One slot's rows of one batch: `array` is [rows, ...]; `mapping` says where it lives."""

    array: np.ndarray
    mapping: Mapping


class BufferPool:
    """Hands out batch buffers and takes them back; keeps at most `keep_bytes` of free ones.

    Counters (`hits`, `misses`, `resident`, `peak`) are in buffers and bytes.
    """

    def __init__(self, *, shared: bool = False, keep_bytes: int = 512 << 20) -> None:
        self.shared = shared
        self.keep_bytes = keep_bytes
        self._free: dict[int, list[Mapping]] = defaultdict(list)
        self._free_bytes = 0
        self._lock = threading.RLock()  # a finalizer may run inside acquire, on the same thread
        self._closed = False
        in_child(self, BufferPool._renew_lock)
        self.hits = self.misses = self.resident = self.peak = 0

    def acquire(
        self, shape: tuple[int, ...], dtype: np.dtype, freed: Callable[[int], None] | None = None
    ) -> Block:
        """A writable array of this shape; its contents are whatever the last user left.

        `freed` is called with the buffer's size in bytes when its last view has died, in a finalizer: it must take no lock
        that is not reentrant.
        """
        count = int(np.prod(shape, dtype=np.int64))
        size = size_class(count * dtype.itemsize)
        with self._lock:
            mapping = self._take(size)
            if mapping is not None:
                self.hits += 1
                self._free_bytes -= mapping.size
            else:
                self.misses += 1
                self.resident += size
                self.peak = max(self.peak, self.resident)
        if mapping is None:
            mapping = Mapping(size, self.shared)
        owner = (ctypes.c_char * size).from_buffer(mapping.memory)
        weakref.finalize(owner, self._release, mapping, freed).atexit = False
        array = np.frombuffer(memoryview(owner), dtype=dtype, count=count).reshape(shape)
        return Block(array, mapping)

    def _take(self, size: int) -> Mapping | None:
        """A free buffer of this size, or one that is larger by up to a quarter: batches of a group or bucket differ in
        size, and memory that was touched before costs far less than new pages."""
        if free := self._free[size]:
            return free.pop()
        near = min((n for n, free in self._free.items() if free and size < n <= size + size // 4), default=None)
        return None if near is None else self._free[near].pop()

    def _release(self, mapping: Mapping, freed: Callable[[int], None] | None) -> None:
        with self._lock:
            kept = not self._closed and self._free_bytes + mapping.size <= self.keep_bytes
            if kept:
                self._free[mapping.size].append(mapping)
                self._free_bytes += mapping.size
            else:
                self.resident -= mapping.size
        if not kept:
            mapping.free()
        if freed is not None:
            freed(mapping.size)

    def trim(self, keep: int) -> None:
        """Free buffers that are not in use, the largest first, until they hold at most `keep` bytes."""
        if self._free_bytes <= keep:
            return
        dropped: list[Mapping] = []
        with self._lock:
            for size in sorted(self._free, reverse=True):
                free = self._free[size]
                while free and self._free_bytes > keep:
                    dropped.append(free.pop())
                    self._free_bytes -= size
                    self.resident -= size
        for mapping in dropped:
            mapping.free()

    def _renew_lock(self) -> None:
        self._lock = threading.RLock()

    def close(self) -> None:
        """Free what is not in use; buffers still viewed are freed when their last view dies."""
        with self._lock:
            self._closed = True
            idle = [m for free in self._free.values() for m in free]
            self._free.clear()
            self._free_bytes = 0
            self.resident -= sum(m.size for m in idle)
        for mapping in idle:
            mapping.free()

    def stats(self) -> dict[str, int]:
        return {"hits": self.hits, "misses": self.misses, "resident_bytes": self.resident, "peak_bytes": self.peak}
