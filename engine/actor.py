"""Actors: a name, a bounded mailbox, one `receive`. They own what they touch and talk by messages only.

Bounds are kept by credits: whoever fills a mailbox first takes a credit that the far end gives back, so a full mailbox is
never waited for; it is a bug, and says so.
"""

from __future__ import annotations

import contextlib
import threading
from enum import Enum
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from .errors import InternalError


class Mark(Enum):
    """Control messages; an Enum keeps its identity."""

    END = "end"
    """No message follows: the stream is complete."""
    STOP = "stop"
    """Leave now."""


class Mailbox:
    """A queue that holds at most `capacity` messages (marks and errors, which end the stream, not counted)."""

    __slots__ = ("_queue", "capacity", "high", "name")

    def __init__(self, name: str, capacity: int) -> None:
        self.name = name
        self.capacity = capacity
        self.high = 0
        self._queue: SimpleQueue[Any] = SimpleQueue()

    def put(self, message: Any) -> None:
        depth = self._queue.qsize()
        if depth >= self.capacity and not isinstance(message, (Mark, BaseException)):
            raise InternalError(f"mailbox {self.name} holds {depth} of {self.capacity} messages: a credit was lost")
        if depth >= self.high:
            self.high = depth + 1
        self._queue.put(message)

    def get(self) -> Any:
        return self._queue.get()

    def clear(self) -> None:
        """Drop what is in it."""
        with contextlib.suppress(Empty):
            while True:
                self._queue.get_nowait()

    def __len__(self) -> int:
        return self._queue.qsize()


class Credits:
    """A count that can be taken (waiting), given back, and cancelled."""

    __slots__ = ("_tokens", "total")

    def __init__(self, total: int) -> None:
        self.total = total
        self._tokens: SimpleQueue[bool] = SimpleQueue()
        for _ in range(total):
            self._tokens.put(True)

    def take(self) -> bool:
        """Wait for a credit; False when cancelled."""
        return self._tokens.get()

    def give(self) -> None:
        self._tokens.put(True)

    def cancel(self) -> None:
        """Wake the one taker with False; later takers of this graph are woken by their own cancel."""
        self._tokens.put(False)

    @property
    def free(self) -> int:
        return self._tokens.qsize()


class Supervisor(Protocol):
    """Who is told when an actor fails."""

    def fail(self, error: BaseException) -> None: ...


class Actor:
    """Runs `receive` for each message of its mailbox on a thread of its own, until STOP.

    An exception in `receive` is a bug of the actor: it stops the graph and is raised at the consumer, with the original
    traceback and a note that names the actor.
    """

    def __init__(self, name: str, supervisor: Supervisor, mailbox: Mailbox | None = None) -> None:
        self.name = name
        self.supervisor = supervisor
        self.mailbox = Mailbox(name, 1) if mailbox is None else mailbox
        self.thread = threading.Thread(target=self._run, name=f"dataio-{name}", daemon=True)

    def start(self) -> None:
        self.thread.start()

    def receive(self, message: Any) -> None:
        raise NotImplementedError

    def loop(self) -> None:
        while (message := self.mailbox.get()) is not Mark.STOP:
            self.receive(message)

    def finished(self) -> None:
        """Called on the actor's thread when it ends, however it ends."""

    def _run(self) -> None:
        try:
            self.loop()
        except BaseException as error:
            error.add_note(f"in actor {self.name}")
            self.supervisor.fail(error)
        finally:
            self.finished()
