"""Torch checkpoints in the format before 1.6 (`_use_new_zipfile_serialization=False`): pickles one after another, then storages.

Five pickles: a magic number, a version, facts on the machine, the saved object, and the keys of the storages in the order of
the file. Each storage is the number of its elements (8 bytes, little-endian) and these. The older format inside a tar file
(torch before 0.1.10) is not read.

Source: torch/serialization.py, `_legacy_save` and `_legacy_load`.
"""

from __future__ import annotations

from typing import Any

from ...engine.errors import LimitError, OpError
from ...engine.source import RangeReader
from .pickles import PickleReader
from .tensors import element_type

MAGIC = 0x1950A86A20F9469CFC6C
VERSION = 1001
LEGACY_START = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
"""The first pickle: the magic number under protocol 2, as torch always wrote it."""
WINDOW = 1 << 16
"""Bytes of one read of the pickles: those of a few hundred tensors."""


def read_legacy(reader: RangeReader, limit: int) -> tuple[Any, dict[str, tuple[int, int, int]]]:
    """The saved object, and where the storages are.

    Args:
        reader: a file that begins with `LEGACY_START`.
        limit: bytes that the pickles may take.

    Returns:
        The object as `PickleReader` gives it, and by key of each storage the byte where it begins, its bytes, and its elements.
        The element counts stand before the storages too, which is for who reads one to check.

    Raises:
        OpError: damaged or truncated.
        LimitError: pickles beyond the limit.
    """
    stream = RangeStream(reader, limit)
    try:
        found = [PickleReader(what=f"the {name} of the checkpoint").load(stream) for name in ("magic number", "version", "machine")]
        if found[:2] != [MAGIC, VERSION]:
            raise OpError(f"a torch checkpoint of the unknown version {found[1]!r:.50}")
        pickled = PickleReader(what="the pickle of the checkpoint")
        saved = pickled.load(stream)
        keys = PickleReader(what="the list of storages of the checkpoint").load(stream)
    except OpError as error:
        if stream.stopped:
            raise LimitError(f"the checkpoint's pickles take more than the {limit} bytes that are allowed") from error
        raise
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise OpError("the checkpoint's list of storages is damaged")
    at = stream.position
    places: dict[str, tuple[int, int, int]] = {}
    for key in keys:
        storage = pickled.storages.get(key)
        if storage is None or type(storage.count) is not int or not 0 <= storage.count < 1 << 60:
            raise OpError(f"storage {key!r:.50} of the checkpoint has no valid size")
        size = storage.count * (1 if storage.dtype is None else element_type(storage.dtype).itemsize)
        places[key] = at + 8, size, storage.count
        at += 8 + size
    return saved, places


class RangeStream:
    """The first `limit` bytes of a source as a file that is read forwards.

    Attributes:
        position: bytes read so far.
        stopped: whether it ended by the limit, not with the source.
    """

    def __init__(self, reader: RangeReader, limit: int) -> None:
        self._reader = reader
        self._end = min(reader.size, limit)
        self._cut = reader.size > limit
        self._window = b""
        self._start = 0
        self.position = 0
        self.stopped = False

    def read(self, size: int, /) -> bytes:
        """The next `size` bytes, fewer at the end. Takes memory for what is there, not for what is asked for."""
        self._fill(size)
        at = self.position - self._start
        found = self._window[at : at + size]
        self.position += len(found)
        return found

    def readline(self) -> bytes:
        """The bytes up to the next newline and with it, or to the end."""
        size = WINDOW
        while True:
            self._fill(size)
            at = self.position - self._start
            newline = self._window.find(b"\n", at)
            if newline >= 0:
                return self.read(newline + 1 - at)
            if len(self._window) - at < size:
                return self.read(size)
            size *= 2

    def _fill(self, size: int) -> None:
        """Have `size` bytes from the position on in the window, or all that are left."""
        if size < 0:
            raise ValueError(f"a length of {size} bytes")
        have = self._start + len(self._window)
        if self.position + size <= have:
            return
        self.stopped |= self._cut and self.position + size > self._end
        end = min(max(self.position + size, have + WINDOW), self._end)
        self._window = self._window[self.position - self._start :] + bytes(self._reader.read(have, end - have))
        self._start = self.position
