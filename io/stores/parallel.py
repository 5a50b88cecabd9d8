"""A large object into one buffer: the connection that was begun reads from the front, others by range from the back."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from .download import Download

PIECE = 1 << 23
"""Bytes of one range of a large object."""
HELPERS = 3
"""Connections beside the first one."""
FAST = 200e6
"""Bytes a second from which one connection is enough: others would only take its processor time."""
READ = 1 << 20
"""Bytes read at once, so that the end of another connection is noticed."""


class _Pieces:
    """The pieces of [start, stop) that nobody has taken; a failed one comes back."""

    def __init__(self, start: int, stop: int) -> None:
        self._lock = threading.Lock()
        self._free = [(at, min(at + PIECE, stop)) for at in range(start, stop, PIECE)]
        self.returned: list[tuple[int, int]] = []
        self.stopped = False

    def first(self) -> tuple[int, int] | None:
        with self._lock:
            return self._free.pop(0) if self._free else None

    def last(self) -> tuple[int, int] | None:
        with self._lock:
            return self._free.pop() if self._free and not self.stopped else None


def fill(download: Download, view: memoryview, fetch: Callable[[int, memoryview], None] | None) -> None:
    """Fill all of `view` with the next bytes of `download`, which has as many.

    A helper that fails, for whatever reason, leaves its piece to the first connection: it costs time, never the read.

    Args:
        fetch: reads other parts of the same version, in other threads; None when there is no way to.

    Raises: as `Download.readinto`.
    """
    if fetch is None or len(view) < 4 * PIECE:
        _read(download, view)
        return
    began = time.monotonic()
    _read(download, view[:PIECE])
    view = view[PIECE:]
    if PIECE / (time.monotonic() - began) > FAST:
        _read(download, view)
        return
    start = download.at
    pieces = _Pieces(start, start + len(view))

    def help() -> None:
        while (piece := pieces.last()) is not None:
            begin, end = piece
            try:
                fetch(begin, view[begin - start : end - start])
            except Exception:
                pieces.returned.append(piece)
                return

    helpers = [threading.Thread(target=help, name=f"dataio-range-{at}", daemon=True) for at in range(HELPERS)]
    for helper in helpers:
        helper.start()
    try:
        while (piece := pieces.first()) is not None:
            _read(download, view[piece[0] - start : piece[1] - start])
    finally:
        pieces.stopped = True
        for helper in helpers:
            helper.join()
    reached = download.at
    for begin, end in sorted(pieces.returned):
        download.jump(begin)
        _read(download, view[begin - start : end - start])
        reached = end
    if reached != start + len(view) or download.at != reached:
        download.jump(start + len(view))


def _read(download: Download, view: memoryview) -> None:
    done = 0
    while done < len(view):
        done += download.readinto(view[done : done + READ])
