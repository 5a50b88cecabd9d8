"""The tensors of a safetensors file as arrays: views of the mapped file where that is right, else large reads into memory.

Mapping costs nothing until a tensor is used, and processes share the pages. It is wrong for network file systems (one request
a page, and a server that goes away kills the process), and slow for large files that are not in the page cache yet.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from ...engine.source import RangeReader
from ...io.errors import ReadError
from ...io.parallel import for_each
from ...io.ranges import FileRanges, MemoryRanges
from .tensors import TensorPlace

PIECE = 16 << 20
"""Bytes of one read of a local file."""
READS = 4
"""Reads under way at once: more do not make an NVMe disk or a network file system faster."""
GAP = 64 << 10
"""Bytes between two tensors that are read along rather than left out by a second request."""
COLD_FROM = 64 << 20
"""Bytes from which it is looked at whether a file is in the page cache."""
_SAMPLES = 8
_NETWORK = ("nfs", "cifs", "smb", "fuse", "lustre", "ceph", "gpfs", "beegfs", "9p", "virtiofs", "wekafs", "afs", "ocfs2", "glusterfs")
"""File systems, by how their names begin, whose files are read rather than mapped."""


class MappedFile:
    """A local file in memory: read-only, or (`writable`) private to this process, where a page is copied as it is written to.

    What is asked for after the file was cut short is refused. Views that were given out before cannot be protected: reading one
    beyond the new end of the file ends the process (SIGBUS), as for every mapped file; `mmap=False` reads instead.
    """

    def __init__(self, reader: FileRanges, path: str, *, writable: bool) -> None:
        self._path = path
        if os.fstat(reader.fileno()).st_size != reader.size:
            raise ReadError(f"{path!r} was cut short after it was opened")
        self._map = mmap.mmap(reader.fileno(), reader.size, access=mmap.ACCESS_COPY if writable else mmap.ACCESS_READ)

    def view(self, place: TensorPlace) -> np.ndarray:
        """The tensor at a place, over the mapped pages.

        Raises:
            ReadError: the file is shorter than it was.
        """
        if self._map.size() < len(self._map):
            raise ReadError(f"{self._path!r} was cut short, to {self._map.size()} bytes, after it was opened")
        return array_at(self._map, place, 0)


def array_at(memory: Any, place: TensorPlace, start: int) -> np.ndarray:
    """The tensor at a place in memory that begins with byte `start` of the file: a view, or a copy where it is not aligned."""
    if not place.nbytes:
        return np.empty(place.shape, place.dtype)
    found: np.ndarray = np.ndarray(place.shape, place.dtype, buffer=memory, offset=place.offset - start)
    if not found.flags.aligned:
        found = found.copy()
    if place.dtype.kind == "b" and found.view(np.uint8).max() > 1:  # a byte of 2 is no bool to NumPy or torch
        found = found.view(np.uint8) != 0
    return found


def read_tensors(
    reader: RangeReader, path: str | None, places: Mapping[str, TensorPlace], *, writable: bool, map_file: bool | None
) -> dict[str, np.ndarray]:
    """The tensors at these places.

    Args:
        reader: the open file.
        path: where it lies, if that is a local file.
        writable: whether the arrays may be written to, which never changes the file.
        map_file: whether local files are mapped; None decides by the file system and what is in the page cache.

    Raises:
        OSError: the file ends early or changed.
    """
    if isinstance(reader, MemoryRanges):
        whole = reader.read(0, reader.size)
        if writable and whole.readonly:
            whole = memoryview(bytearray(whole))
        found = {name: array_at(whole, place, 0) for name, place in places.items()}
    elif path is not None and isinstance(reader, FileRanges) and maps(path, places, map_file):
        mapped = MappedFile(reader, path, writable=writable)
        found = {name: mapped.view(place) for name, place in places.items()}
    else:
        found = _read(reader, places)
    if not writable:
        for array in found.values():
            array.flags.writeable = False
    return found


def _read(reader: RangeReader, places: Mapping[str, TensorPlace]) -> dict[str, np.ndarray]:
    """The tensors read into new memory, neighbours by one read."""
    found: dict[str, np.ndarray] = {}
    tasks: list[tuple[int, memoryview]] = []
    for start, end, names in runs(places):
        memory = np.empty(end - start, np.uint8)
        found |= dict.fromkeys(names, memory)
        step = PIECE if isinstance(reader, FileRanges) else max(end - start, 1)  # stores split large reads themselves
        tasks += [(at, memory.data[at - start : min(at + step, end) - start]) for at in range(start, end, step)]
    if len(tasks) == 1:
        reader.read_into(*tasks[0])
    else:
        for_each(lambda task: reader.read_into(*task), tasks, workers=READS)
    starts = {name: start for start, _, names in runs(places) for name in names}
    return {name: array_at(found[name], place, starts[name]) for name, place in places.items()}


def runs(places: Mapping[str, TensorPlace]) -> Iterator[tuple[int, int, list[str]]]:
    """What is read at once: first byte, byte behind the last, and the tensors in between."""
    names: list[str] = []
    start = end = 0
    for name, place in sorted(places.items(), key=lambda item: item[1].offset):
        if names and place.offset > end + GAP:
            yield start, end, names
            names = []
        if not names:
            start = end = place.offset
        names.append(name)
        end = max(end, place.offset + place.nbytes)
    if names:
        yield start, end, names


def maps(path: str, places: Mapping[str, TensorPlace], asked: bool | None) -> bool:
    """Whether a local file is mapped rather than read."""
    if asked is not None:
        return asked
    if on_network(path):
        return False
    total = sum(place.nbytes for place in places.values())
    return total < COLD_FROM or _in_page_cache(path)


def on_network(path: str) -> bool:
    """Whether a file lies on a network or FUSE file system; False where the system does not tell."""
    try:
        return _kind_of(os.stat(path).st_dev).startswith(_NETWORK)
    except OSError:
        return False


@lru_cache(maxsize=256)
def _kind_of(device: int) -> str:
    """The kind of the file system of a device number, as Linux lists it."""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as mounts:
        for line in mounts:
            fields = line.split()
            if fields[2] == wanted:
                return fields[fields.index("-") + 1]
    return ""


def _in_page_cache(path: str) -> bool:
    """Whether most of a file is in memory already, by a few samples; True where the system does not tell."""
    if not hasattr(os, "RWF_NOWAIT"):
        return True
    with open(path, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        there = 0
        for sample in range(_SAMPLES):
            try:
                os.preadv(file.fileno(), [bytearray(1)], size * sample // _SAMPLES, os.RWF_NOWAIT)
                there += 1
            except BlockingIOError:
                continue
            except OSError as error:
                if error.errno in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                    return True
                raise
    return there > _SAMPLES // 2
