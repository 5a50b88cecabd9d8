"""Tensors of a file into the memory of a device: large reads into pinned memory, copied on while the next ones run.

One piece of the file holds many small tensors or a part of a large one, so the device sees few large copies either way. A
fixed number of pieces is under way: threads fill some buffers while the device copies from others, and a buffer is filled
again only after its copy is done. The same code runs for the CPU, with plain buffers and copies that wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...engine.errors import OpError
from ...engine.source import RangeReader
from ...io.errors import ReadError
from ..frameworks import import_torch
from ..weights.tensors import TensorPlace, torch_name
from .devices import check_device
from .gds import load_kvikio

if TYPE_CHECKING:
    import torch
    from torch import Tensor

PIECE = 16 << 20
"""Bytes of one read and one copy: at 25 GB/s of PCIe the start of a copy (10 us) is then 2 % of its time."""
READS = 4
"""Reads under way at once; with page cache or NVMe, four threads read faster than a device takes."""
BUFFERS = READS + 2
"""Two more than reads, so that copies from finished ones do not hold up the next reads."""
GAP = 64 << 10
"""Bytes between two tensors that are read along rather than left out by a second read."""


def load_to_device(
    reader: RangeReader, places: Mapping[str, TensorPlace], device: Any, *, path: str | None = None, piece: int = PIECE
) -> dict[str, torch.Tensor]:
    """Read tensors of one file into the memory of a device.

    With a CUDA device, a local file and the package kvikio the file's bytes go to the device by kvikio (GPUDirect Storage, or its
    POSIX mode, which stages through pinned memory itself); in all other cases through pinned memory here. Memory beside
    the tensors is at most `BUFFERS * piece` bytes.

    Args:
        reader: the open file.
        places: where each tensor lies; little-endian, C order. Places may overlap.
        device: "cpu", "cuda", "cuda:1" or a torch.device.
        path: the local path of what `reader` reads, where it has one.
        piece: bytes of one read.

    Returns:
        The tensors by name, in the order of `places`, each with memory of its own.

    Raises:
        ValueError: no such kind of device.
        OpError: elements that torch has no type for, or that are big-endian; a place outside the file.
        DeviceError: (a RuntimeError) a CUDA device that this machine lacks.
        torch.cuda.OutOfMemoryError: the tensors do not fit.
        OSError: the file ends early; nothing is returned then.
    """
    torch = import_torch()
    target = check_device(device)
    for name, place in places.items():
        if place.offset + place.nbytes > reader.size:
            raise OpError(f"tensor {name!r:.100} lies outside the {reader.size} bytes of its file")
    types = {name: torch_type(name, place) for name, place in places.items()}
    tensors = {name: torch.empty(place.shape, dtype=types[name], device=target) for name, place in places.items()}
    targets = [(place, flat_bytes(tensors[name])) for name, place in places.items() if place.nbytes]
    kvikio = load_kvikio()[0] if target.type == "cuda" and path is not None else None
    if kvikio is not None and path is not None:
        torch.cuda.current_stream(target).synchronize()  # the tensors may lie where earlier work still reads; kvikio waits for no stream
        read_directly(kvikio, path, targets)
    else:
        _read_staged(reader, targets, target, piece)
    for name, place in places.items():
        if place.dtype.kind == "b" and place.nbytes:  # a byte of 2 is no bool, whatever the file says
            raw = tensors[name].view(torch.uint8)
            raw.copy_(raw.ne(0))
    return tensors


def torch_type(name: str, place: TensorPlace) -> torch.dtype:
    """torch's dtype of a place's elements.

    Raises:
        OpError: it has none, or the elements are big-endian.
    """
    found: torch.dtype | None = getattr(import_torch(), torch_name(place.dtype) or place.dtype.name, None)
    if found is None or place.dtype.byteorder == ">":
        raise OpError(f"tensor {name!r:.100} has elements of type {place.dtype}, which go to no device as they are")
    return found


def flat_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a contiguous tensor, uint8[nbytes], over the same memory."""
    return tensor.reshape(-1).view(import_torch().uint8)


# -------------------------------------------------------------------- pieces


@dataclass(slots=True)
class Piece:
    """One read of the file and where its bytes go.

    Attributes:
        offset, size: of the file, in bytes.
        parts: (where in the piece, the device bytes that begin there).
    """

    offset: int
    size: int = 0
    parts: list[tuple[int, torch.Tensor]] = field(default_factory=list)


def pieces(targets: list[tuple[TensorPlace, torch.Tensor]], limit: int) -> Iterator[Piece]:
    """The reads, of at most `limit` bytes each, in the order of the file; `targets` are places and the bytes they go to."""
    current: Piece | None = None
    for place, flat in sorted(targets, key=lambda target: target[0].offset):
        done, total = 0, place.nbytes
        while done < total:
            offset = place.offset + done
            at = 0 if current is None else offset - current.offset
            if current is None or not current.size <= at <= current.size + GAP or at >= limit:
                if current is not None:
                    yield current
                current, at = Piece(offset), 0
            count = min(total - done, limit - at)
            current.parts.append((at, flat[done : done + count]))
            current.size = at + count
            done += count
    if current is not None:
        yield current


# ------------------------------------------------------------------- staging


class _Copies:
    """Copies from buffers to the device, in the order they are asked for."""

    def __init__(self, target: torch.device, size: int) -> None:
        self._torch = torch = import_torch()
        self._cuda = target.type == "cuda"
        self._size = size
        self._made = 0
        self._idle: deque[tuple[Tensor, Any]] = deque()
        self._stream: Any = None
        if self._cuda:
            self._stream = torch.cuda.Stream(target)
            # The tensors may lie where earlier work of the current stream still reads.
            self._stream.wait_stream(torch.cuda.current_stream(target))

    def buffer(self) -> torch.Tensor:
        """A buffer that nothing copies from any more."""
        if self._made < BUFFERS:
            self._made += 1
            return self._torch.empty(self._size, dtype=self._torch.uint8, pin_memory=self._cuda)
        buffer, done = self._idle.popleft()
        if done is not None:
            done.synchronize()
        return buffer

    def begin(self, piece: Piece, buffer: torch.Tensor) -> None:
        """Copy a piece that was read into `buffer`; the buffer is given out again when that is done."""
        done = None
        if self._cuda:
            with self._torch.cuda.stream(self._stream):
                self._copy(piece, buffer)
                done = self._torch.cuda.Event()
                done.record(self._stream)
        else:
            self._copy(piece, buffer)
        self._idle.append((buffer, done))

    def _copy(self, piece: Piece, buffer: torch.Tensor) -> None:
        for at, part in piece.parts:
            part.copy_(buffer[at : at + part.numel()], non_blocking=self._cuda)

    def finish(self) -> None:
        """Wait for all copies: the buffers are free, and the tensors are whole for every stream."""
        if self._stream is not None:
            self._stream.synchronize()


def _read_staged(reader: RangeReader, targets: list[tuple[TensorPlace, torch.Tensor]], target: torch.device, limit: int) -> None:
    largest = min(limit, sum(place.nbytes for place, _ in targets) + GAP * max(len(targets) - 1, 0))
    copies = _Copies(target, largest)
    reading: deque[tuple[Future[None], Piece, torch.Tensor]] = deque()

    def copy_next() -> None:
        future, piece, buffer = reading.popleft()
        future.result()
        copies.begin(piece, buffer)

    threads = ThreadPoolExecutor(READS, thread_name_prefix="dataio-staging")
    try:
        for piece in pieces(targets, limit):
            if len(reading) == READS:
                copy_next()
            buffer = copies.buffer()
            reading.append((threads.submit(reader.read_into, piece.offset, memoryview(buffer.numpy())[: piece.size]), piece, buffer))
        while reading:
            copy_next()
    finally:
        threads.shutdown(wait=True, cancel_futures=True)
        copies.finish()  # before the buffers go back to torch, after an error too


# -------------------------------------------------------------------- kvikio


def read_directly(kvikio: Any, path: str, targets: list[tuple[TensorPlace, torch.Tensor]]) -> None:
    """All places by kvikio, which splits large reads over its threads.

    Raises:
        OSError: the file ends early.
    """
    with kvikio.CuFile(path, "r") as file:
        reads = [(place, file.pread(flat, size=place.nbytes, file_offset=place.offset)) for place, flat in targets]
        failed: BaseException | None = None
        for place, future in reads:
            try:
                got = future.get()
                if got != place.nbytes:
                    raise ReadError(f"{path} ends early: {got} bytes where {place.nbytes} at {place.offset} were asked for")
            except (OSError, RuntimeError) as error:  # the other reads still write to the device
                failed = failed or error
        if failed is not None:
            raise failed
