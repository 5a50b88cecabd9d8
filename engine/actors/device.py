"""The Device actor: has each finished batch on its way to the device before the consumer asks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..actor import Actor, Credits, Mailbox
from ..batch import FinishedBatch

if TYPE_CHECKING:
    from ..run import Graph


class DeviceActor(Actor):
    """Wraps finished batches, which begins their copies; at most `credits` of them wait for the consumer."""

    def __init__(self, graph: Graph, mailbox: Mailbox, credits: Credits) -> None:
        super().__init__("device", graph, mailbox)
        self.graph = graph
        self.credits = credits

    def receive(self, message: Any) -> None:
        if isinstance(message, FinishedBatch):
            if self.graph.stopped() or not self.credits.take():  # cancelling wakes one taker, once
                return
            message = (message, self.graph.wrap(message))
        self.graph.delivery.put(message)

    def finished(self) -> None:
        self.mailbox.clear()  # batches that nobody takes any more must not keep their buffers
