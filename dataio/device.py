"""Copies to a device that run beside the training step: what `run(device=, pin_memory=)` means for torch.

A batch is copied on the thread that finished it, ahead of the consumer: into page-locked memory, then, on a CUDA stream of
the loader's own, to the GPU. Nobody waits for the copy but the work on the GPU that reads it: when a slot is first asked
for, the consumer's current stream is told to wait for the event behind the copies.

Whose memory lives how long:

* the page-locked copy belongs to torch's pool of such memory, which reuses it once the copy out of it is done;
* the tensor on the GPU is allocated by the loader's stream and used on the consumer's. `record_stream` keeps its memory from
  being reused before the consumer's work on it is done, however early the consumer drops it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol, TypeAlias

from .engine.batch import FinishedBatch, SlotColumn
from .formats.frameworks import to_torch

Tensor: TypeAlias = Any
"""A torch tensor; the annotation does not load torch."""
Arriving: TypeAlias = Mapping[str, Callable[[], Any]]
"""By slot, what waits for its copy and returns the tensor, or a list of one per row for ragged slots."""


class Transport(Protocol):
    """How tensors get to one device."""

    def pin(self, tensor: Tensor) -> Tensor:
        """A copy in page-locked memory, from which a GPU copies without the processor."""

    def copy(self, tensor: Tensor) -> Tensor:
        """The tensor on the device; the copy is begun, not done."""

    def mark(self) -> Any:
        """An event that comes about when all copies begun so far are done."""

    def await_on_device(self, event: Any) -> None:
        """Have the device work that the calling thread submits from now on wait for the event."""

    def hold(self, tensor: Tensor) -> None:
        """Keep the tensor's memory from being reused before the work submitted until its end of life is done."""


class CudaTransport:
    """Copies on a CUDA stream of their own. See `Transport`."""

    def __init__(self, device: str) -> None:
        import torch

        self._cuda = torch.cuda
        self._device = torch.device(device)
        self._stream = torch.cuda.Stream(self._device)

    def pin(self, tensor: Tensor) -> Tensor:
        return tensor.pin_memory()

    def copy(self, tensor: Tensor) -> Tensor:
        with self._cuda.stream(self._stream):
            return tensor.to(self._device, non_blocking=tensor.is_pinned())  # other memory might be reused too early

    def mark(self) -> Any:
        return self._stream.record_event()

    def await_on_device(self, event: Any) -> None:
        self._cuda.current_stream(self._device).wait_event(event)

    def hold(self, tensor: Tensor) -> None:
        tensor.record_stream(self._cuda.current_stream(self._device))


class PlainTransport:
    """Copies that are done when `copy` returns, for devices other than CUDA's. See `Transport`."""

    def __init__(self, device: str) -> None:
        import torch

        self._device = torch.device(device)

    def pin(self, tensor: Tensor) -> Tensor:
        return tensor.pin_memory()

    def copy(self, tensor: Tensor) -> Tensor:
        return tensor.to(self._device)

    def mark(self) -> Any:
        return None

    def await_on_device(self, event: Any) -> None:
        pass

    def hold(self, tensor: Tensor) -> None:
        pass


def transport_to(device: str) -> Transport:
    """The transport for a torch device such as "cuda:1" or "cpu"."""
    return CudaTransport(device) if device.startswith("cuda") else PlainTransport(device)


def this_device(device: str) -> str:
    """`"cuda"` as the GPU that is current on the calling thread: the copies are begun on another one."""
    if device != "cuda":
        return device
    import torch

    return f"cuda:{torch.cuda.current_device()}" if torch.cuda.is_available() else device


class Sender:
    """Begins the copies of a batch to one device.

    What goes wrong, from an unusable device to a GPU without memory, is raised when the slot is asked for.
    """

    def __init__(self, transport: Callable[[], Transport], *, pin: bool, ragged: bool) -> None:
        """`transport` is called for the first batch; `pin` goes by page-locked memory; `ragged` sends ragged slots too."""
        self._make_transport = transport
        self._transport: Transport | None = None
        self.pin = pin
        self._ragged = ragged

    def send(self, batch: FinishedBatch) -> Arriving:
        """Begin the copies of every tensor slot; object slots, and a batch without survivors, stay."""
        slots = {name: column for name, column in batch.slots.items() if self._goes(column)} if batch.length else {}
        if not slots:
            return {}
        try:
            if self._transport is None:
                self._transport = self._make_transport()
            sent = {name: self._begin(self._transport, column) for name, column in slots.items()}
            event = self._transport.mark()
        except Exception as error:
            return dict.fromkeys(slots, partial(_refuse, error))
        return {name: partial(_arrive, self._transport, event, tensors) for name, tensors in sent.items()}

    def _goes(self, column: SlotColumn) -> bool:
        return not column.objects and (self._ragged or not column.ragged)

    def _begin(self, transport: Transport, column: SlotColumn) -> Any:
        if column.dense is not None:
            return self._copy(transport, column.dense)
        return [self._copy(transport, row) for row in column.rows or ()]

    def _copy(self, transport: Transport, array: Any) -> Tensor:
        tensor = to_torch(array)
        return transport.copy(transport.pin(tensor) if self.pin else tensor)


def _arrive(transport: Transport, event: Any, tensors: Any) -> Any:
    transport.await_on_device(event)
    for tensor in tensors if isinstance(tensors, list) else (tensors,):
        transport.hold(tensor)
    return tensors


def _refuse(error: Exception) -> Any:
    raise error
