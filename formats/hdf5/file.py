"""What HDF5 reads an open file through: windows of what lies in a store, and a look at what would hang it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Any

from ...engine.errors import OpError
from ...engine.source import RangeReader
from ...io.file_objects import RangeFile
from ...io.ranges import FileRanges, MemoryRanges

WINDOW = 1 << 18
"""Bytes of one request for a small part of an object in a store; HDF5 has many, here and there."""
WINDOWS = 64
"""Windows that are kept."""


class Hdf5File(RangeFile):
    """The file object that h5py is given, of local files too: a file that is cut short, or heaps that are damaged, raise here.

    Attributes:
        lengths: bytes of a length in this file, as its superblock says.
    """

    def __init__(self, ranges: RangeReader) -> None:
        local = isinstance(ranges, (FileRanges, MemoryRanges))
        super().__init__(ranges if local else Windows(ranges), 0)
        self.lengths = 8

    def readinto(self, buffer: Any, /) -> int:
        count = super().readinto(buffer)
        view = memoryview(buffer).cast("B")
        if bytes(view[:4]) == b"GCOL":
            check_heap(view[:count], self.lengths)
        return count


def check_heap(heap: memoryview, lengths: int) -> None:
    """Refuse a global heap with free space of no bytes, over which the HDF5 library (2.0 still) steps for ever.

    Source: HDF5 File Format Specification 3.0, III.E.

    Raises:
        OpError: it is damaged so.
    """
    header = 8 + lengths
    end = min(len(heap), int.from_bytes(heap[8 : 8 + lengths], "little"))
    at = header
    while at + header <= end:
        size = int.from_bytes(heap[at + 8 : at + header], "little")
        if heap[at] or heap[at + 1]:  # an object, padded to 8 bytes
            at += header + (size + 7 & ~7)
        elif size:
            at += size
        else:
            raise OpError("damaged: a global heap has free space of 0 bytes")


class Windows:
    """Ranges of a store in windows, the last ones kept: the small parts of an HDF5 file lie here and there."""

    def __init__(self, ranges: RangeReader) -> None:
        self._ranges = ranges
        self._kept: OrderedDict[int, Any] = OrderedDict()
        self.size = ranges.size
        self.identity: Hashable | None = ranges.identity

    def read(self, offset: int, length: int) -> Any:
        return self._ranges.read(offset, length)

    def read_into(self, offset: int, out: memoryview) -> None:
        """Fill `out`, through the windows where it is small."""
        if len(out) >= WINDOW:
            self._ranges.read_into(offset, out)
            return
        done = 0
        while done < len(out):
            number, inside = divmod(offset + done, WINDOW)
            part = memoryview(self._window(number))[inside : inside + len(out) - done]
            out[done : done + len(part)] = part
            done += len(part)

    def _window(self, number: int) -> Any:
        if number not in self._kept:
            start = number * WINDOW
            self._kept[number] = self._ranges.read(start, min(WINDOW, self.size - start))
            if len(self._kept) > WINDOWS:
                self._kept.popitem(last=False)
        self._kept.move_to_end(number)
        return self._kept[number]

    def close(self) -> None:
        self._kept.clear()
        self._ranges.close()
