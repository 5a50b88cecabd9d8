"""`read_pt`: all tensors of torch checkpoints, without running what their pickles say."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from ...engine.errors import LimitError, OpError
from ...engine.source import RangeReader
from ...io.ranges import FileRanges, MemoryRanges
from ..frameworks import as_framework, check_framework
from ..inputs import missing_key, name_of, naming, open_ranges
from .parallel import read_all
from .pickles import SavedTensor, Unusable
from .tensors import TensorPlace
from .torch_zip import (
    MAX_REPEATED,
    Checkpoint,
    describe,
    in_order,
    in_place,
    locate,
    native,
    read_checkpoint,
    span,
)

REQUESTS = 16
"""Small requests to a store at once."""
_ONE = (str, os.PathLike, bytes, bytearray, memoryview)
_Group: TypeAlias = "tuple[str, np.dtype]"


def read_pt(src: Any, *, framework: str = "numpy", key: str | Sequence[str] | None = None) -> dict[str, Any]:
    """The tensors of one or several torch checkpoints (`.pt`, `.pth`, `.bin`), as a `torch.save` of a dict writes them.

    The zip format of torch 1.6 and later and the one before it are read, in parts, from any place. Nothing that a file names is
    run or looked up: its pickle is read by an interpreter that knows tensors, dicts, lists and scalars only.

    Args:
        src: a path or URI, bytes, a `dataio.Reader`, an object with `read()`; or a list of those, whose tensors are merged.
        framework: "numpy" or "torch".
        key: the dict inside to take, such as "state_dict", or a sequence of keys that leads to it; None for the outermost.

    Returns:
        By name, in the order of the files, the tensors at the top level of the dict, parameters included. Other values and nested
        dicts are left out. Each is in C order whatever its strides and writable; tensors that share a storage in the file
        share memory as they do after `torch.load`, unless they were not contiguous. bfloat16 and 8-bit floats come as
        those of `ml_dtypes` with NumPy. Memory is at most twice the file, and what `expand` repeats: up to 1 GiB.

    Raises:
        TypeError: a source of another type.
        ValueError: another framework; no torch checkpoint, or one whose root is no dict; a damaged one; a tensor that has no array
            form (sparse, quantized); a name that two files hold; more than the limits allow.
        KeyError: `key` leads nowhere.
        OSError: missing (FileNotFoundError), unreadable, or shorter than it says.

    The reference leaves out parameters, and refuses the older format, non-contiguous tensors, 8-bit floats, bytes, and bfloat16
    with NumPy.
    """
    check_framework(framework)
    path = () if key is None else (key,) if isinstance(key, str) else tuple(key)
    sources = [src] if isinstance(src, _ONE) or not isinstance(src, (list, tuple)) else src
    found: dict[str, Any] = {}
    for source in sources:
        tensors = _read_one(source, path)
        if twice := next((name for name in tensors if name in found), None):
            raise OpError(f"{name_of(source)}: tensor {twice!r} is in an earlier file too")
        found |= {name: as_framework(array, framework) for name, array in tensors.items()}
    return found


def _read_one(source: Any, path: tuple[str, ...]) -> dict[str, np.ndarray]:
    reader = open_ranges(source)
    try:
        with naming(source):
            checkpoint = read_checkpoint(reader)
        entries = _inside(source, checkpoint, path)
        with naming(source):
            return _read_tensors(reader, checkpoint, _tensors(entries))
    finally:
        reader.close()


def _inside(source: Any, entries: dict[Any, Any], path: tuple[str, ...]) -> dict[Any, Any]:
    for step in path:
        if step not in entries:
            raise missing_key(source, "entry", step, [name for name in entries if isinstance(name, str)])
        entries = entries[step]
        if not isinstance(entries, dict):
            raise OpError(f"{name_of(source)}: key={step!r} leads to {describe(entries)}, not to a dict")
    return entries


def _tensors(entries: dict[Any, Any]) -> dict[str, SavedTensor]:
    """The tensors among the entries; one that cannot be read is an error, for it would be missed."""
    for name, value in entries.items():
        if isinstance(value, Unusable) and value.tensor:
            raise OpError(f"tensor {name!r:.100} has no array form: it is {value.why}")
    return {name: value for name, value in entries.items() if isinstance(name, str) and isinstance(value, SavedTensor)}


@dataclass(slots=True)
class _Found:
    """A tensor of the checkpoint: its storage and type, its place, and its strides in elements."""

    group: _Group
    place: TensorPlace
    strides: tuple[int, ...]


def _read_tensors(reader: RangeReader, checkpoint: Checkpoint, saved: dict[str, SavedTensor]) -> dict[str, np.ndarray]:
    found = _locate(reader, checkpoint, saved)
    copied = sum(f.place.nbytes for f in found.values() if not in_order(f.place.shape, f.strides))
    if copied > max(reader.size, MAX_REPEATED):
        raise LimitError(f"its tensors repeat elements to {copied} bytes; {MAX_REPEATED} are allowed")
    bounds: dict[_Group, tuple[int, int]] = {}
    for one in found.values():
        if one.place.nbytes:
            begin, end = one.place.offset, one.place.offset + span(one.place.shape, one.strides) * one.place.dtype.itemsize
            known = bounds.get(one.group, (begin, end))
            bounds[one.group] = min(known[0], begin), max(known[1], end)
    # Storages of one file lie apart; a file where they do not could ask for all of itself once for each of its tensors.
    if sum(end - begin for begin, end in bounds.values()) > 2 * reader.size:
        raise OpError("its storages overlap")
    blocks = {group: np.empty(end - begin, np.uint8) for group, (begin, end) in bounds.items()}
    read_all(reader, [(bounds[group][0], block) for group, block in blocks.items()])
    flat = {group: _elements(block, group[1]) for group, block in blocks.items()}
    return {name: _cut(one, flat, bounds) for name, one in found.items()}


def _locate(reader: RangeReader, checkpoint: Checkpoint, saved: dict[str, SavedTensor]) -> dict[str, _Found]:
    """The tensors' places. Each takes a small read, a request to a store, and these run at once."""

    def one(name: str) -> _Found:
        tensor = saved[name]
        place, strides = locate(reader, checkpoint, f"tensor {name!r:.100}", tensor)
        return _Found((tensor.storage.key, place.dtype), place, strides)

    if len(saved) < 2 or isinstance(reader, (FileRanges, MemoryRanges)):
        return {name: one(name) for name in saved}
    with ThreadPoolExecutor(REQUESTS, thread_name_prefix="dataio-tensors") as threads:
        return dict(zip(saved, threads.map(one, saved)))


def _elements(block: np.ndarray, dtype: np.dtype) -> np.ndarray:
    if dtype.kind == "b":
        np.not_equal(block, 0, out=block.view(bool))  # a byte of 2 is no bool to NumPy, whatever the file says
    return native(block.view(dtype))


def _cut(one: _Found, flat: dict[_Group, np.ndarray], bounds: dict[_Group, tuple[int, int]]) -> np.ndarray:
    """The tensor's elements out of those of its storage."""
    place = one.place
    if not place.nbytes:
        return np.empty(place.shape, place.dtype.newbyteorder("="))
    start = (place.offset - bounds[one.group][0]) // place.dtype.itemsize
    elements = flat[one.group][start : start + span(place.shape, one.strides)]
    if in_order(place.shape, one.strides):
        return elements[: math.prod(place.shape)].reshape(place.shape)
    return in_place(elements, place.shape, one.strides)
