"""One pool for the whole process: made by its first user, ended after its last, forgotten in a forked child."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from ..forks import in_child

P = TypeVar("P")


class Shared(Generic[P]):
    """The pool of all users.

    Attributes:
        lock: held while users come and go; may be taken again by the thread that has it, as garbage collection may end a user
            anywhere.
        pool: None while there is no user.
        users: how many there are.
    """

    def __init__(self, make: Callable[[], P], end: Callable[[P, float], None]) -> None:
        """`end(pool, deadline)` waits at most until `deadline` (of `time.monotonic`)."""
        self._make, self._end = make, end
        self.lock = threading.RLock()
        self.pool: P | None = None
        self.users = 0
        in_child(self, Shared._forget)

    def _forget(self) -> None:
        """The pool's threads stayed in the parent, and one of them may have held the lock."""
        self.lock = threading.RLock()
        self.pool = None
        self.users = 0

    def take(self) -> P:
        """Become a user."""
        with self.lock:
            if self.pool is None:
                self.pool = self._make()
            self.users += 1
            return self.pool

    def give(self, pool: P, deadline: float) -> None:
        """Stop being one; the last one ends the pool. What was taken before a fork belongs to the parent."""
        with self.lock:
            if pool is not self.pool:
                return
            self.users -= 1
            if self.users:
                return
            self.pool = None
        self._end(pool, deadline)


def end_threads(threads: Sequence[threading.Thread], tasks: SimpleQueue[Any], deadline: float) -> None:
    """Tell threads that take tasks to end, by a None for each, and wait for them. One that is in a call that does not return
    is left behind: it is a daemon."""
    for _ in threads:
        tasks.put(None)
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join(max(0.0, deadline - time.monotonic()))
