"""Readers as Python's file objects: seekable, buffered, for `zipfile`, Pillow, pyarrow, pandas and all the others."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from ..engine.source import RangeReader

BytesLike: TypeAlias = bytes | bytearray | memoryview

BUFFER = 1 << 16
"""Bytes that a file object reads ahead of small reads."""
REMOTE_WINDOW = 1 << 20
"""Bytes of one request where a file object reads a store in small steps; windows begin at multiples of it, so that the end of
a file, where zip and Parquet have their directories, comes as one."""
KEPT = 1 << 20
"""Bytes behind the position of a stream that can be returned to without starting over."""


class _Seekable(io.RawIOBase):
    """A position that moves."""

    _position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        self._check_open()
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        self._check_open()
        if whence not in (io.SEEK_SET, io.SEEK_CUR, io.SEEK_END):
            raise ValueError(f"whence must be 0, 1 or 2, got {whence!r}")
        base = 0 if whence == io.SEEK_SET else self._position if whence == io.SEEK_CUR else self._end()
        if base + offset < 0:
            raise ValueError(f"negative seek position {base + offset}")
        self._position = base + offset
        return self._position

    def _end(self) -> int:
        raise NotImplementedError

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")


class RangeFile(_Seekable):
    """The file object of what is read in parts; closes what it reads.

    Args:
        ranges: the content.
        window: bytes that one small read brings; 0 reads just what is asked for.
    """

    def __init__(self, ranges: RangeReader, window: int) -> None:
        super().__init__()
        self._ranges = ranges
        self._size = window
        self._window: BytesLike = b""
        self._window_start = 0

    def readinto(self, buffer: Any, /) -> int:
        self._check_open()
        view = memoryview(buffer).cast("B")
        count = max(0, min(len(view), self._ranges.size - self._position))
        if not count:
            return 0
        if count >= self._size:
            self._ranges.read_into(self._position, view[:count])
        else:
            inside = self._position - self._window_start
            if not 0 <= inside < len(self._window):
                start = self._position // self._size * self._size
                self._window = self._ranges.read(start, min(self._size, self._ranges.size - start))
                self._window_start, inside = start, self._position - start
            part = memoryview(self._window)[inside : inside + count]
            count = len(part)
            view[:count] = part
        self._position += count
        return count

    def _end(self) -> int:
        return self._ranges.size

    def close(self) -> None:
        if not self.closed:
            self._window = b""
            self._ranges.close()
        super().close()


class ChunkFile(io.RawIOBase):
    """Chunks as they come, read forwards.

    Attributes:
        failed: what the chunks raised, None as long as they did not.
    """

    def __init__(self, chunks: Iterable[BytesLike]) -> None:
        super().__init__()
        self._chunks: Iterator[BytesLike] = iter(chunks)
        self._chunk = memoryview(b"")
        self._position = 0
        self.failed: BaseException | None = None

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any, /) -> int:
        view = memoryview(buffer).cast("B")
        while not self._chunk:
            try:
                following = next(self._chunks, None)
            except BaseException as error:
                self.failed = error
                raise
            if following is None:
                return 0
            self._chunk = memoryview(following).cast("B")
        part = self._chunk[: len(view)]
        view[: len(part)] = part
        self._chunk = self._chunk[len(part) :]
        self._position += len(part)
        return len(part)


class StreamFile(_Seekable):
    """The file object of a stream that can be started again: forwards it is read, for a way back it starts over.

    Args:
        start: begins the stream; its iterator is closed when it is left.
    """

    def __init__(self, start: Callable[[], Iterator[BytesLike]]) -> None:
        super().__init__()
        self._start = start
        self._chunks: Iterator[BytesLike] | None = None
        self._known_end: int | None = None
        self._recent: deque[memoryview] = deque()
        self._recent_start = self._reached = 0

    def readinto(self, buffer: Any, /) -> int:
        self._check_open()
        view = memoryview(buffer).cast("B")
        if not len(view) or (self._known_end is not None and self._position >= self._known_end):
            return 0
        if self._position < self._recent_start:
            self._leave()
            self._recent.clear()
            self._recent_start = self._reached = 0
        while self._reached <= self._position:
            if not self._more():
                return 0
        at = self._recent_start
        for chunk in self._recent:
            if self._position < at + len(chunk):
                part = chunk[self._position - at :][: len(view)]
                view[: len(part)] = part
                self._position += len(part)
                return len(part)
            at += len(chunk)
        raise AssertionError("the chunk at the position is kept")

    def _more(self) -> bool:
        """Read the next chunk; False at the end."""
        if self._chunks is None:
            if self._known_end is not None and self._reached >= self._known_end:
                return False
            self._chunks = self._start()
        chunk = next(self._chunks, None)
        if chunk is None:
            self._known_end = self._reached
            self._leave()
            return False
        view = memoryview(chunk).cast("B")
        self._recent.append(view)
        self._reached += len(view)
        while len(self._recent) > 1 and self._reached - self._recent_start - len(self._recent[0]) >= KEPT:
            self._recent_start += len(self._recent.popleft())
        return True

    def _end(self) -> int:
        while self._known_end is None:
            self._more()
        return self._known_end

    def _leave(self) -> None:
        chunks, self._chunks = self._chunks, None
        close = getattr(chunks, "close", None)
        if close is not None:
            close()

    def close(self) -> None:
        if not self.closed:
            self._leave()
            self._recent.clear()
        super().close()
