"""What the `.metadata` of a `torch.distributed.checkpoint` folder says, read without running its pickle.

Source: torch/distributed/checkpoint/metadata.py and filesystem.py (`_StorageInfo`).
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...engine.errors import LimitError, OpError
from .pickles import DTYPES, Global, Inert, PickleReader
from .tensors import check_shape, element_type

MAX_METADATA = 256 << 20
"""Bytes of `.metadata`: about 300 a chunk, so 800,000 of them."""
MAX_CHUNKS = 1 << 14
"""Chunks of one tensor: whether two overlap is asked of each pair."""
_MODULE = "torch.distributed.checkpoint.metadata"
_CLASSES = frozenset(
    {
        *(Global(_MODULE, name) for name in ("Metadata", "MetadataIndex", "ChunkStorageMetadata", "TensorProperties")),
        *(Global(_MODULE, name) for name in ("TensorStorageMetadata", "BytesStorageMetadata")),
        Global("torch.distributed._shard.sharded_tensor.metadata", "TensorProperties"),  # before torch 2.3
        Global("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    }
)


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a tensor, saved by `torch.save` in a part of a file.

    Attributes:
        offsets, sizes: of the part in the tensor, in elements by axis.
        file: name of the file in the folder.
        start, length: of the part of the file, in bytes.
    """

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor of the checkpoint; its chunks cover it exactly."""

    name: str
    dtype: np.dtype
    shape: tuple[int, ...]
    chunks: tuple[Chunk, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(slots=True)
class Metadata:
    """The entries of a checkpoint by their fully qualified names.

    Attributes:
        tensors: as the pickle describes them; `entry` checks one.
        objects: names of what is no tensor, and was pickled.
    """

    tensors: dict[str, Inert] = field(default_factory=dict)
    objects: list[str] = field(default_factory=list)
    _places: dict[tuple[str, tuple[int, ...]], Inert] = field(default_factory=dict)

    def entry(self, name: str) -> Entry:
        """The tensor of that name, checked.

        Raises:
            OpError: what is said of it is damaged, or its chunks leave a gap or overlap.
            LimitError: more than `MAX_CHUNKS` chunks.
        """
        what = f"tensor {name!r:.100}"
        saved = self.tensors[name]
        shape = check_shape(what, _attribute(saved, "size", what))
        chunks = _attribute(saved, "chunks", what)
        if not isinstance(chunks, list):
            raise OpError(f"{what} has no list of chunks")
        if len(chunks) > MAX_CHUNKS:
            raise LimitError(f"{what} has {len(chunks)} chunks; {MAX_CHUNKS} are allowed")
        found = tuple(self._chunk(name, what, len(shape), chunk) for chunk in chunks)
        _check_cover(what, shape, found)
        return Entry(name, _dtype(what, saved), shape, found)

    def _chunk(self, name: str, what: str, axes: int, chunk: Any) -> Chunk:
        offsets, sizes = (check_shape(what, _attribute(chunk, key, what)) for key in ("offsets", "sizes"))
        if len(offsets) != axes or len(sizes) != axes:
            raise OpError(f"{what} has {axes} axes, a chunk of it {len(sizes)}")
        place = self._places.get((name, offsets))
        if place is None:
            raise OpError(f"the chunk at {offsets} of {what} is in no file")
        file, start, length = (_attribute(place, key, what) for key in ("relative_path", "offset", "length"))
        if not isinstance(file, str) or not _is_inside(file):
            raise OpError(f"{what} is said to be in the file {file!r:.100}, which is not one of the folder")
        if any(type(n) is not int or n < 0 for n in (start, length)):
            raise OpError(f"{what} is said to be at {start!r:.20}, {length!r:.20} of its file")
        if isinstance(place.state, dict) and place.state.get("transform_descriptors"):
            raise OpError(f"{what} was saved through extensions (compressed or encrypted), which are not read")
        return Chunk(offsets, sizes, file, start, length)


def read_metadata(pickled: bytes) -> Metadata:
    """The entries of a checkpoint.

    Raises:
        OpError: damaged, or not such a pickle.
    """
    root = PickleReader(_CLASSES, what=".metadata").load(pickled)
    if not isinstance(root, Inert) or root.kind.name != "Metadata":
        raise OpError(".metadata does not describe a torch.distributed.checkpoint")
    entries, places = (_attribute(root, key, ".metadata") for key in ("state_dict_metadata", "storage_data"))
    if not isinstance(entries, dict) or not isinstance(places, dict):
        raise OpError(".metadata has no entries")
    found = Metadata()
    for name, entry in entries.items():
        if not isinstance(name, str) or not isinstance(entry, Inert):
            raise OpError(f".metadata has an entry {name!r:.100} of an unknown kind")
        if entry.kind.name == "TensorStorageMetadata":
            found.tensors[name] = entry
        else:
            found.objects.append(name)
    found._places = dict(_places(places))
    return found


def _places(places: dict[Any, Any]) -> Iterable[tuple[tuple[str, tuple[int, ...]], Inert]]:
    for index, place in places.items():
        if not isinstance(index, Inert) or not isinstance(place, Inert):
            raise OpError(".metadata says in an unknown way where the entries are")
        name, offset = _attribute(index, "fqn", ".metadata"), (index.state or {}).get("offset")
        if isinstance(name, str) and isinstance(offset, tuple) and all(type(n) is int for n in offset):
            yield (name, offset), place


def _attribute(value: Any, name: str, what: str) -> Any:
    if not isinstance(value, Inert) or not isinstance(value.state, Mapping) or name not in value.state:
        raise OpError(f"{what} is damaged: it has no {name}")
    return value.state[name]


def _dtype(what: str, saved: Inert) -> np.dtype:
    properties = _attribute(saved, "properties", what)
    state = properties.state if isinstance(properties, Inert) else None
    dtype = state[0] if isinstance(state, tuple) and state else None
    if not isinstance(dtype, Global) or dtype.module != "torch" or dtype.name not in DTYPES:
        raise OpError(f"{what} has elements of type {reprlib.repr(dtype)}, which no array holds")
    return element_type(dtype.name)


def _is_inside(file: str) -> bool:
    """A relative path that stays in its folder, whatever kind of store that is in."""
    return bool(file) and "\0" not in file and "\\" not in file and all(part not in ("", ".", "..") for part in file.split("/"))


def _check_cover(what: str, shape: tuple[int, ...], chunks: tuple[Chunk, ...]) -> None:
    """Every element is in one chunk: all lie inside, none overlap, and together they have as many elements."""
    for chunk in chunks:
        if any(o + n > total for o, n, total in zip(chunk.offsets, chunk.sizes, shape)):
            raise OpError(f"{what} of shape {shape} has a chunk of {chunk.sizes} at {chunk.offsets}, which is not inside")
    filled = [chunk for chunk in chunks if math.prod(chunk.sizes)]
    held = sum(math.prod(chunk.sizes) for chunk in filled)
    if held != math.prod(shape):
        state = "leave a gap" if held < math.prod(shape) else "overlap"
        raise OpError(f"the chunks of {what} {state}: they have {held} elements of {math.prod(shape)}")
    if len(filled) < 2:
        return
    begin = np.array([chunk.offsets for chunk in filled], np.int64)
    end = begin + np.array([chunk.sizes for chunk in filled], np.int64)
    for i in range(len(filled) - 1):
        if ((begin[i] < end[i + 1 :]) & (begin[i + 1 :] < end[i])).all(axis=1).any():
            raise OpError(f"the chunks of {what} overlap, and leave a gap elsewhere")
