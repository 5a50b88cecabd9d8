"""Many requests at once, on threads: in order, bounded, with one way to fail."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, ThreadPoolExecutor, wait
from contextvars import ContextVar
from typing import Any, TypeVar

from .secrets import masked

T = TypeVar("T")
WORKERS = 16
"""Requests at once unless said otherwise."""
Progress = bool | Callable[[int, int], Any]
"""Of a verb over many objects: True draws a bar on stderr; a function gets the objects done and, as far as known, of how many."""

_stop: ContextVar[threading.Event | None] = ContextVar("dataio-stop", default=None)


def stopped_by(stop: threading.Event, work: Callable[..., T], *arguments: Any) -> T:
    """Call `work`; setting `stop` in another thread ends it at its next `check_stop`."""
    before = _stop.set(stop)
    try:
        return work(*arguments)
    finally:
        _stop.reset(before)


def check_stop() -> None:
    """Called between the steps of long work.

    Raises:
        CancelledError: nobody waits for its end any more: Ctrl-C, or a task that was cancelled.
    """
    stop = _stop.get()
    if stop is not None and stop.is_set():
        raise CancelledError


def for_each(
    work: Callable[[T], Any],
    items: Iterable[T],
    *,
    workers: int | None = None,
    progress: Progress | None = None,
    total: int | None = None,
    label: str = "",
) -> int:
    """Call `work` with every item, `workers` at a time; how many there were.

    After the first error nothing new is begun; what was begun ends, and the error is raised with a note for each further one.
    The items are taken as they are needed, so a listing may be walked while its first objects are worked on. After Ctrl-C
    what was begun ends at its next `check_stop`. No thread is left when this returns.

    Raises:
        ValueError: `workers` below 1.
    """
    if workers is not None and (isinstance(workers, bool) or not isinstance(workers, int) or workers < 1):
        raise ValueError(f"workers must be a whole number of at least 1, got {workers!r}")
    many = workers or WORKERS
    report = _Report(progress, total, label)
    errors: list[BaseException] = []
    stop = _stop.get() or threading.Event()
    pool = ThreadPoolExecutor(many, thread_name_prefix="dataio-transfer")
    running: set[Future[Any]] = set()
    try:
        for item in items:
            check_stop()
            running.add(pool.submit(stopped_by, stop, work, item))
            if len(running) < 2 * many:
                continue
            done, running = wait(running, return_when=FIRST_COMPLETED)
            if report.ended(done, errors):
                break
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            if report.ended(done, errors):
                for future in running:
                    future.cancel()
    except BaseException as error:
        if isinstance(error, CancelledError) or not isinstance(error, Exception):
            stop.set()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        report.close()
    if errors:
        first, *others = errors
        for other in others:
            first.add_note(masked(f"also: {other}"))
        raise first
    return report.count


class _Report:
    """Counts what has ended, and tells."""

    def __init__(self, progress: Progress | None, total: int | None, label: str) -> None:
        self.count = 0
        self.total = total
        self._tell = progress if callable(progress) else None
        self._bar: Any = None
        if progress is True:
            from tqdm import tqdm

            self._bar = tqdm(total=total, desc=label, unit=" objects", dynamic_ncols=True)

    def ended(self, done: Iterable[Future[Any]], errors: list[BaseException]) -> bool:
        """Whether anything has failed so far."""
        for future in done:
            if future.cancelled():
                continue
            error = future.exception()
            if error is not None:
                errors.append(error)
                continue
            self.count += 1
            if self._bar is not None:
                self._bar.update()
            if self._tell is not None:
                self._tell(self.count, self.total or self.count)
        return bool(errors)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
