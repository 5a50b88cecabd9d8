"""How much of the time the global interpreter lock is taken, measured from outside the threads that take it.

A thread that sleeps gives up its core once: one voluntary context switch. It needs the lock to go on, and when another
thread holds the lock at that moment it waits, which is a second one. So the switches of many short sleeps tell in what share of
moments the lock was taken. Clocks do not tell: how late a sleeper wakes also depends on how busy the cores are.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from threading import Thread

try:
    from resource import RUSAGE_THREAD, getrusage
except ImportError:  # only Linux and FreeBSD count per thread
    MEASURABLE = False
else:
    MEASURABLE = True

TICK_SECONDS = 0.015
"""Length of one sleep: waking takes 30 to 70 us of a core, so the probe stays below one percent of it."""


def gil_taken() -> bool:
    """Sleep for a tick, and say whether another thread held the lock when this one woke.

    Only where `MEASURABLE`.
    """
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        time.sleep(TICK_SECONDS)
        return False
    before = getrusage(RUSAGE_THREAD).ru_nvcsw
    time.sleep(TICK_SECONDS)
    return getrusage(RUSAGE_THREAD).ru_nvcsw - before > 1


def thread_seconds(threads: Iterable[Thread]) -> float:
    """Processor time that these running threads have used so far; those that ended count for nothing."""
    total = 0.0
    for thread in threads:
        if thread.ident is not None and thread.is_alive():
            total += time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
    return total
