"""Trying again: what may pass is tried again after a random wait, up to a number of attempts and a deadline.

Full jitter: each wait is drawn evenly between nothing and a bound that doubles (M. Brooker, "Exponential Backoff And
Jitter", AWS Architecture Blog, 2015), so that clients that failed together do not come back together.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from .config import Transport

T = TypeVar("T")
FIRST_WAIT, LONGEST_WAIT = 0.2, 10.0


class _Count(threading.local):
    """Of one thread."""

    retries = 0


_count = _Count()


def retries_here() -> int:
    """Attempts after a first one that the calling thread made so far."""
    return _count.retries


class PassingError(Exception):
    """An attempt failed in a way that may pass.

    Attributes:
        error: what to raise when no attempt is left.
        after: seconds that the server asked to wait at least (Retry-After), None when it did not.
    """

    def __init__(self, error: Exception, after: float | None = None) -> None:
        super().__init__(str(error))
        self.error = error
        self.after = after


def with_retries(attempt: Callable[[], T], transport: Transport) -> T:
    """The result of `attempt`, called again while it raises `PassingError`.

    Raises:
        whatever the last attempt's `PassingError` holds, with its cause; any other exception of an attempt, at once.
    """
    began = time.monotonic()
    try:
        return attempt()  # tenacity costs tens of microseconds, which a small object would feel
    except PassingError as first:
        failed = first
    import tenacity

    jitter = tenacity.wait_random_exponential(multiplier=FIRST_WAIT, max=LONGEST_WAIT)

    def wait(state: tenacity.RetryCallState) -> float:
        last = state.outcome.exception() if state.outcome is not None else None
        asked = last.after if isinstance(last, PassingError) and last.after is not None else 0.0
        return max(asked, jitter(state))

    def hopeless(state: tenacity.RetryCallState) -> bool:
        return state.attempt_number >= transport.attempts or time.monotonic() - began + state.upcoming_sleep > transport.deadline

    tries = tenacity.Retrying(retry=tenacity.retry_if_exception_type(PassingError), wait=wait, stop=hopeless, reraise=True)
    firsts = [failed]

    def again() -> T:
        if firsts:  # the attempt that was made already
            raise firsts.pop()
        _count.retries += 1
        return attempt()

    try:
        return tries(again)
    except PassingError as last:
        raise last.error from last.error.__cause__
