"""`read_dcp` and `consolidate_dcp`: the tensors of `torch.distributed.checkpoint` folders, without a process group."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeAlias

import numpy as np

from ...engine.errors import LimitError, OpError
from ...engine.source import RangeReader
from ...io.parallel import for_each
from ...io.ranges import MemoryRanges, Window
from ..frameworks import as_framework, check_framework, import_torch, to_torch
from ..inputs import name_of, naming, open_ranges
from .dcp_metadata import MAX_METADATA, Chunk, Entry, Metadata, read_metadata
from .parallel import read_all
from .pickles import SavedTensor
from .safetensors import DTYPES
from .safetensors_shards import join
from .safetensors_write import Payload, write_payloads
from .tensors import element_type, torch_name
from .torch_zip import describe, in_order, locate, read_root, read_tensor

READS = 8
"""Tensors that are put together at once."""
AHEAD = 256 << 20
"""Bytes of tensors that are put together before their turn."""
SMALL = 1 << 20
"""Bytes of a chunk that is read whole, payload and what describes it, in one request."""
KEPT_OPEN = 64
"""Files kept open: a checkpoint of many ranks has more than a process may open."""
_CODES = {name: code for code, name in DTYPES.items()}
_FLOAT32, _BFLOAT16 = np.dtype("<f4"), element_type("bfloat16")

Keys: TypeAlias = "str | Collection[str] | Callable[[str], Any] | None"


def read_dcp(dcp_dir: str | os.PathLike[str], *, keys: Keys = None, bf16: bool = False, framework: str = "torch") -> dict[str, Any]:
    """The tensors of a `torch.distributed.checkpoint` folder, put together from the shards of all ranks.

    Nothing of the folder is unpickled: its `.metadata` and chunks are read by an interpreter that runs nothing. Neither torch
    nor a process group is needed for NumPy arrays.

    Args:
        dcp_dir: folder, or URI prefix, with the `.metadata`; sharded along any axes.
        keys: which: a prefix of the fully qualified names, several, or a predicate that gets a name; None for all.
        bf16: round float32 tensors to bfloat16 (to nearest, ties to even); others stay as they are.
        framework: "torch" or "numpy".

    Returns:
        By fully qualified name, sorted, arrays in C order of the shape before sharding. What is no tensor is left out.

    Raises:
        ValueError: nothing is selected; a damaged checkpoint, one whose chunks leave a gap or overlap, or that was saved through
            extensions (compression); another framework.
        TypeError: keys of another type.
        OSError: no checkpoint is there (FileNotFoundError), or a file of it is missing or too short.
    """
    check_framework(framework)
    folder = _Folder(os.fspath(dcp_dir))
    entries, _ = folder.select(keys)
    found: dict[str, Any] = {}
    for entry, array in folder.tensors(entries, bf16=bf16):
        found[entry.name] = as_framework(array, framework)
    return found


def consolidate_dcp(
    dcp_dir: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    *,
    keys: Keys = None,
    bf16: bool = False,
    atomic: bool = True,
) -> dict[str, Any]:
    """Make one safetensors file of a `torch.distributed.checkpoint` folder, or a dict of torch tensors.

    Tensors are put together and written one after the other, in the order of their names. Memory is that of the largest tensor
    (twice, where it is sharded along another axis than the first, or cast) and at most `AHEAD` bytes of the next ones.

    Args:
        dcp_dir, keys, bf16: as `read_dcp`.
        out: path or URI of the file; None for a dict.
        atomic: False writes a local file in place.

    Returns:
        With `out` the numbers `{"tensors", "bytes", "skipped_byte_io"}`: tensors and bytes of their payloads written, and selected
        entries left out because they are no tensors. Else as `read_dcp`.

    Raises: as `read_dcp`; ValueError too for elements that safetensors does not have (complex128).

    The reference takes shards along the first axis only, and writes a broken file where bf16=True meets an empty tensor.
    """
    if out is None:
        return read_dcp(dcp_dir, keys=keys, bf16=bf16)
    folder = _Folder(os.fspath(dcp_dir))
    entries, skipped = folder.select(keys)
    stream = folder.tensors([entry for entry in entries if entry.nbytes], bf16=bf16)

    def data() -> memoryview:
        return _bytes_of(next(stream)[1]).data

    payloads = [_payload(folder.name, entry, _saved_type(entry, bf16), data) for entry in entries]
    try:
        write_payloads(os.fspath(out), payloads, {}, atomic=atomic)
    finally:
        stream.close()
    return {"tensors": len(payloads), "bytes": sum(payload.nbytes for payload in payloads), "skipped_byte_io": skipped}


def _payload(folder: str, entry: Entry, dtype: np.dtype, data: Callable[[], memoryview]) -> Payload:
    code = _CODES.get(torch_name(dtype) or dtype.name)
    if code is None or entry.name == "__metadata__":
        why = f"elements of type {dtype}" if code is None else "a name that the format keeps for itself"
        raise OpError(f"{folder}: tensor {entry.name!r:.100} has {why}: safetensors does not take it; choose others by keys")
    return Payload(entry.name, code, entry.shape, entry.nbytes // entry.dtype.itemsize * dtype.itemsize, data)


def _saved_type(entry: Entry, bf16: bool) -> np.dtype:
    return _BFLOAT16 if bf16 and entry.dtype == _FLOAT32 else entry.dtype


class _Folder:
    """A checkpoint folder that is being read."""

    def __init__(self, path: str) -> None:
        self.name = name_of(path)
        self._path = path
        self._open: OrderedDict[str, RangeReader] = OrderedDict()
        self._lock = threading.Lock()
        with naming(path):
            self._metadata = self._read_metadata()

    def _read_metadata(self) -> Metadata:
        reader = open_ranges(join(self._path, ".metadata"))
        try:
            if reader.size > MAX_METADATA:
                raise LimitError(f".metadata of {reader.size} bytes exceeds {MAX_METADATA}")
            return read_metadata(bytes(reader.read(0, reader.size)))
        finally:
            reader.close()

    def select(self, keys: Keys) -> tuple[list[Entry], int]:
        """The chosen tensors by name, checked against the sizes of the files, and how many chosen entries are no tensors."""
        chosen = _chooser(keys)
        names = sorted(name for name in self._metadata.tensors if chosen(name))
        if not names:
            raise OpError(f"{self.name}: keys={keys!r:.200} chooses none of {len(self._metadata.tensors)} tensors")
        with naming(self._path):
            entries = [self._metadata.entry(name) for name in names]
            self._check_sizes(entries)
        return entries, sum(1 for name in self._metadata.objects if chosen(name))

    def _check_sizes(self, entries: list[Entry]) -> None:
        """Memory is taken for tensors only whose bytes are there: each byte of a file counts for one chunk."""
        needed: dict[str, list[int]] = {}
        for entry in entries:
            for chunk in entry.chunks:
                size = int(np.prod(chunk.sizes, dtype=object)) * entry.dtype.itemsize
                if size > chunk.length:
                    raise OpError(f"tensor {entry.name!r:.100} has a chunk of {size} bytes, of which {chunk.length} were saved")
                end, total = needed.setdefault(chunk.file, [0, 0])
                needed[chunk.file] = [max(end, chunk.start + chunk.length), total + chunk.length]
        sizes: dict[str, int] = {}
        for_each(lambda file: sizes.__setitem__(file, self._file(file).size), needed)
        for file, (end, total) in needed.items():
            if end > sizes[file]:
                raise OpError(f"the file {file} is truncated: {sizes[file]} bytes of at least {end}")
            if total > sizes[file]:
                raise OpError(f"the file {file} of {sizes[file]} bytes is said to hold chunks of {total} bytes")

    def tensors(self, entries: list[Entry], *, bf16: bool) -> Generator[tuple[Entry, np.ndarray], None, None]:
        """The tensors in that order; the next ones are put together meanwhile."""
        waiting: deque[tuple[Entry, Future[np.ndarray]]] = deque()
        held = 0
        threads = ThreadPoolExecutor(READS, thread_name_prefix="dataio-tensors")
        try:
            for entry in entries:
                while waiting and (held + entry.nbytes > AHEAD or len(waiting) >= 4 * READS):
                    held -= waiting[0][0].nbytes
                    ready, future = waiting.popleft()
                    yield ready, future.result()
                waiting.append((entry, threads.submit(self._tensor, entry, bf16)))
                held += entry.nbytes
            while waiting:
                ready, future = waiting.popleft()
                yield ready, future.result()
        finally:
            threads.shutdown(wait=True, cancel_futures=True)

    def _tensor(self, entry: Entry, bf16: bool) -> np.ndarray:
        out = np.empty(entry.shape, entry.dtype)
        with naming(self._path):
            for chunk in entry.chunks:
                if all(chunk.sizes):
                    at: tuple[Any, ...] = (*(slice(o, o + n) for o, n in zip(chunk.offsets, chunk.sizes)), ...)  # "...": a view of 0-d too
                    part = out[at]
                    self._read_chunk(f"tensor {entry.name!r:.100}", chunk, part)
        return _to_bf16(out) if _saved_type(entry, bf16) != entry.dtype else out

    def _read_chunk(self, what: str, chunk: Chunk, part: np.ndarray) -> None:
        """Fill the part of the tensor that the chunk holds."""
        file = self._file(chunk.file)
        small = chunk.length <= SMALL
        reader = MemoryRanges(file.read(chunk.start, chunk.length)) if small else Window(file, chunk.start, chunk.length)
        saved, checkpoint = read_root(reader)
        if not isinstance(saved, SavedTensor):
            raise OpError(f"the chunk at {chunk.offsets} of {what} is {describe(saved)}, not a tensor")
        place, strides = locate(reader, checkpoint, what, saved)
        if place.shape != part.shape or place.dtype.newbyteorder("=") != part.dtype:
            raise OpError(f"the chunk at {chunk.offsets} of {what} has {place.dtype}{place.shape}, not {part.dtype}{part.shape}")
        if part.flags.c_contiguous and place.dtype == part.dtype and in_order(place.shape, strides) and part.dtype.kind != "b":
            read_all(reader, [(place.offset, _bytes_of(part))])
        else:
            part[...] = read_tensor(reader, place, strides)

    def _file(self, file: str) -> RangeReader:
        """A reader of a file of the folder; one that is no longer kept open closes when its last user is done."""
        with self._lock:
            if (known := self._open.get(file)) is not None:
                self._open.move_to_end(file)
                return known
        reader = open_ranges(join(self._path, file))
        with self._lock:
            self._open[file] = reader
            if len(self._open) > KEPT_OPEN:
                self._open.popitem(last=False)
        return reader


def _chooser(keys: Keys) -> Callable[[str], bool]:
    if keys is None:
        return lambda name: True
    if callable(keys):
        return lambda name: bool(keys(name))
    prefixes = (keys,) if isinstance(keys, str) else tuple(keys) if isinstance(keys, Collection) else None
    if prefixes is None or not all(isinstance(prefix, str) for prefix in prefixes):
        raise TypeError(f"keys is a prefix, several, or a predicate of a name; got {keys!r:.200}")
    return lambda name: name.startswith(prefixes)


def _bytes_of(array: np.ndarray) -> np.ndarray:
    """The bytes of a C-ordered array, uint8[nbytes], a view."""
    return array.reshape(-1).view(np.uint8)


def _to_bf16(array: np.ndarray) -> np.ndarray:
    torch = import_torch()
    rounded: np.ndarray = to_torch(array).to(torch.bfloat16).view(torch.uint16).numpy()
    return rounded.view(_BFLOAT16)
