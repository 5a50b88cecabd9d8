"""Whether obstore can be used: its threads do not survive a fork, and cannot be started anew in the child."""

from __future__ import annotations

from ...engine.forks import in_child


class ObstoreThreads:
    """Of this process.

    Attributes:
        started: set by whoever makes the first request.
        lost: they were started in a process of which this one is a fork.
    """

    def __init__(self) -> None:
        self.started = self.lost = False
        in_child(self, ObstoreThreads._forked)

    def _forked(self) -> None:
        self.lost = self.started


obstore_threads = ObstoreThreads()
