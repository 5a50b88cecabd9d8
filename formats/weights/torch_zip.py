"""The `pt` decoder: one tensor of a torch checkpoint, without running its pickle.

A checkpoint is a zip file of stored (uncompressed) members: `data.pkl` describes the saved object, `data/<key>` holds the
bytes of each storage. The pickle is read as `pickles` says. What torch wrote before 1.6 is read by `torch_legacy`.
"""

from __future__ import annotations

import math
import reprlib
import struct
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ...engine.arguments import StringKey
from ...engine.errors import LimitError, OpError
from ...engine.registry import register_kernel, register_op
from ...engine.source import RangeReader
from .pickles import OPAQUE, Global, PickleReader, SavedTensor, Unusable
from .tensors import HeaderCache, TensorPlace, check_shape, element_type, find
from .torch_legacy import LEGACY_START, read_legacy

MAX_PICKLE = 64 << 20
"""Bytes of data.pkl: about 150 a tensor, so 400,000 of them."""
SMALL_PICKLE = 1 << 14
"""Bytes of data.pkl up to which what it says is kept by its content: files of one data set share a few."""
MAX_DIRECTORY = 64 << 20
"""Bytes of the zip directory."""
MAX_REPEATED = 1 << 30
"""Bytes of a tensor that repeats elements (`expand`), and so may be larger than its file."""


@lru_cache(maxsize=256)
def _load_known(pickled: bytes) -> Any:
    return PickleReader().load(pickled)


class Member(NamedTuple):
    """A member of the zip file: where its local header begins, its size in bytes, and whether it is stored as it is."""

    header: int
    size: int
    stored: bool


_END = struct.Struct("<4s6xHIIH")
_END64_LOCATOR = struct.Struct("<4s4xQ4x")
_END64 = struct.Struct("<4s28xQQQ")
_ENTRY = struct.Struct("<4s4xHH8xIIHHH8xI")
_FULL16, _FULL32 = 0xFFFF, 0xFFFFFFFF
"""What stands in a field whose value needs 64 bits and is elsewhere."""
_ENCRYPTED = 1


def read_directory(reader: RangeReader) -> dict[str, Member]:
    """The members of a zip file without comment, as torch and Python write them.

    Raises:
        OpError: damaged or truncated.
        LimitError: a directory larger than `MAX_DIRECTORY`.

    Source: PKWARE's APPNOTE 6.3.10, sections 4.3.12 to 4.3.16 and 4.5.3. The standard library's `zipfile` takes four times
    as long, which is most of the time for a checkpoint of one small tensor.
    """
    try:
        count, size, offset = _directory_place(reader)
        if size > MAX_DIRECTORY:
            raise LimitError(f"the checkpoint's zip directory of {size} bytes exceeds {MAX_DIRECTORY}")
        if offset + size > reader.size:
            raise ValueError(f"it is said to end at byte {offset + size} of {reader.size}")
        return dict(_entries(bytes(reader.read(offset, size)), count))
    except (ValueError, struct.error) as error:
        if isinstance(error, OpError):
            raise
        raise OpError(f"the checkpoint's zip directory is damaged or truncated: {error}") from error


def _directory_place(reader: RangeReader) -> tuple[int, int, int]:
    """Entries, bytes and offset of the directory, from the records at the end of the file."""
    tail = bytes(reader.read(max(reader.size - _END.size - _END64_LOCATOR.size, 0), min(reader.size, _END.size + _END64_LOCATOR.size)))
    signature, count, size, offset, _ = _END.unpack(tail[-_END.size :])
    if signature != b"PK\x05\x06":
        raise ValueError("the file does not end with an end record")
    if count != _FULL16 and size != _FULL32 and offset != _FULL32:
        return count, size, offset
    signature, place = _END64_LOCATOR.unpack(tail[: _END64_LOCATOR.size])
    if signature != b"PK\x06\x07" or place + _END64.size > reader.size:
        raise ValueError("no 64-bit end record")
    signature, count, size, offset = _END64.unpack(reader.read(place, _END64.size))
    if signature != b"PK\x06\x06":
        raise ValueError("no 64-bit end record")
    return count, size, offset


def _entries(directory: bytes, count: int) -> Iterator[tuple[str, Member]]:
    at = 0
    for _ in range(count):
        signature, flags, method, packed, size, name, extra, comment, header = _ENTRY.unpack_from(directory, at)
        if signature != b"PK\x01\x02":
            raise ValueError(f"no entry at byte {at}")
        start = at + _ENTRY.size
        at = start + name + extra + comment
        if _FULL32 in (size, packed, header):
            size, packed, header = _wide_fields(directory[start + name : start + name + extra], size, packed, header)
        stored = method == 0 and not flags & _ENCRYPTED
        if stored and packed != size:
            raise ValueError(f"a stored member of {size} bytes takes {packed}")
        yield directory[start : start + name].decode("utf-8", "replace"), Member(header, size, stored)


def _wide_fields(extra: bytes, *fields: int) -> tuple[int, ...]:
    """The fields with those that need 64 bits taken from the extra field 1."""
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        if kind == 1:
            wide = iter(struct.unpack_from(f"<{length // 8}Q", extra, at + 4))
            return tuple(next(wide, value) if value == _FULL32 else value for value in fields)
        at += 4 + length
    return fields


class Extent(NamedTuple):
    """A storage in a file before torch 1.6: where its bytes begin, how many there are, and how many elements stand before them."""

    start: int
    size: int
    elements: int


class Checkpoint(dict[str, Any]):
    """The entries at the top level of a checkpoint.

    Attributes:
        storages: by their keys.
        big_endian: the payloads are.
    """

    def __init__(self, storages: Mapping[str, Member | Extent], big_endian: bool) -> None:
        super().__init__()
        self.storages = storages
        self.big_endian = big_endian


_checkpoints: HeaderCache[Checkpoint] = HeaderCache()

Strided: TypeAlias = tuple[TensorPlace, tuple[int, ...]]


@register_op("pt", kind="decoder", reads="ranges", method=None)
def decode_pt(reader: RangeReader, *, tensor_key: StringKey) -> np.ndarray:
    """One tensor of a torch checkpoint: a dict with tensors at its top level, as `torch.save` writes it.

    Args:
        reader: the open file.
        tensor_key: the tensor's key in that dict; nested dicts are not searched. `col(...)` for one that differs per record.

    Returns:
        array[...] of the tensor's dtype and shape, C order whatever its strides, owning its memory. bfloat16 and 8-bit
        floats hold their bits under torch's name, see `formats.weights.tensors`.

    Raises:
        OpError: not such a file, damaged, no such tensor, or one that is no plain strided tensor.
        LimitError: a pickle or directory beyond its limit.
        OSError: the file ends early.
    """
    return read_tensor(reader, *_locate(reader, tensor_key))


@register_kernel("pt", "out", kind="decoder")
def decode_pt_out(reader: RangeReader, out: np.ndarray, *, tensor_key: str) -> bool:
    """The tensor read straight into `out`; False, with nothing written, when its dtype or shape is another."""
    place, strides = _locate(reader, tensor_key)
    if out.shape != place.shape or out.dtype != place.dtype.newbyteorder("="):
        return False
    if place.fits(out) and in_order(place.shape, strides):
        place.read_into(reader, out)
    else:
        out[...] = decode_pt(reader, tensor_key=tensor_key)
    return True


def native(array: np.ndarray) -> np.ndarray:
    """The array with the byte order of this machine."""
    dtype = array.dtype.newbyteorder("=")
    return array if array.dtype == dtype else array.byteswap().view(dtype)


def in_order(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """True when the elements lie in C order; strides of axes of fewer than two do not matter."""
    return not math.prod(shape) or all(n < 2 or s == math.prod(shape[i + 1 :]) for i, (n, s) in enumerate(zip(shape, strides)))


def _locate(reader: RangeReader, key: str) -> Strided:
    checkpoint = _checkpoints.get(reader, read_checkpoint)
    saved = find("the checkpoint", checkpoint, key)
    if not isinstance(saved, SavedTensor):
        raise OpError(f"pt(tensor_key={key!r}) wants a tensor at the top level of the checkpoint, found {describe(saved)}")
    return locate(reader, checkpoint, f"checkpoint tensor {key!r:.100}", saved)


def locate(reader: RangeReader, checkpoint: Checkpoint, what: str, saved: SavedTensor) -> Strided:
    """The place of the tensor's first element, and its strides in elements (0 for axes of one); both are inside its storage.

    Raises:
        OpError: a shape, stride or offset that is none, or that leads out of the storage.
        LimitError: the tensor repeats elements beyond `MAX_REPEATED` bytes.
    """
    shape, strides = check_shape(what, saved.shape), saved.strides
    if not isinstance(strides, tuple) or len(strides) != len(shape) or any(type(n) is not int or n < 0 for n in strides):
        raise OpError(f"{what} has no valid strides: {reprlib.repr(strides)}")
    if any(type(n) is not int or n < 0 for n in (saved.offset, saved.storage.start)):
        raise OpError(f"{what} has no valid offset: {reprlib.repr(saved.offset)}")
    dtype = element_type(saved.dtype).newbyteorder(">" if checkpoint.big_endian else "<")
    strides = tuple(s if n > 1 else 0 for n, s in zip(shape, strides))
    count = math.prod(shape)
    if not count:
        return TensorPlace(dtype, shape, 0), strides
    start, size = _extent(reader, find("the checkpoint", checkpoint.storages, saved.storage.key, "storage"))
    size = min(size, reader.size - start)
    offset = saved.offset + saved.storage.start
    need = (offset + span(shape, strides)) * dtype.itemsize
    if need > size:
        raise OpError(f"{what} needs {need} bytes of its storage, which has {max(size, 0)}")
    if count * dtype.itemsize > max(size, MAX_REPEATED):
        raise LimitError(f"{what} repeats its elements to {count * dtype.itemsize} bytes; {MAX_REPEATED} are allowed")
    return TensorPlace(dtype, shape, start + offset * dtype.itemsize), strides


def _extent(reader: RangeReader, storage: Member | Extent) -> tuple[int, int]:
    """Where the bytes of a storage begin, and how many there are."""
    if isinstance(storage, Member):
        return _payload_start(reader, storage.header), storage.size
    before = bytes(reader.read(storage.start - 8, 8)) if storage.start <= reader.size else b""
    if before != storage.elements.to_bytes(8, "little"):
        raise OpError(f"the checkpoint is truncated or damaged: no storage of {storage.elements} elements before byte {storage.start}")
    return storage.start, storage.size


def span(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Elements from the first to the last one, both included, of a tensor that has some."""
    return 1 + sum((n - 1) * s for n, s in zip(shape, strides))


def describe(value: Any) -> str:
    """A value of the pickle in words."""
    if isinstance(value, Unusable):
        return value.why
    if isinstance(value, SavedTensor):
        return "a tensor"
    if isinstance(value, Global):
        return str(value)
    name = "object" if value is OPAQUE else type(value).__name__
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def read_tensor(reader: RangeReader, place: TensorPlace, strides: tuple[int, ...]) -> np.ndarray:
    """A tensor that was located, in C order, native, in new memory: what lies between its first and last element is read in one piece."""
    if in_order(place.shape, strides):
        return native(place.read(reader))
    return in_place(TensorPlace(place.dtype, (span(place.shape, strides),), place.offset).read(reader), place.shape, strides)


def in_place(flat: np.ndarray, shape: tuple[int, ...], strides: tuple[int, ...]) -> np.ndarray:
    """The tensor of that shape and those strides (in elements) whose elements are in `flat`, in C order, native, in new memory."""
    view = np.lib.stride_tricks.as_strided(flat, shape, [s * flat.dtype.itemsize for s in strides], writeable=False)
    return native(np.array(view, order="C"))


_LOCAL_HEADER = struct.Struct("<4s22xHH")


def _payload_start(reader: RangeReader, header: int) -> int:
    """Where a stored member's bytes begin: after a header whose length only it knows."""
    inside = 0 <= header <= reader.size - _LOCAL_HEADER.size
    signature, name, extra = _LOCAL_HEADER.unpack(reader.read(header, _LOCAL_HEADER.size)) if inside else (b"", 0, 0)
    if signature != b"PK\x03\x04":
        raise OpError(f"the checkpoint's directory points to byte {header}, where no member begins")
    return header + _LOCAL_HEADER.size + int(name) + int(extra)


def read_checkpoint(reader: RangeReader) -> Checkpoint:
    """What a checkpoint holds at its top level, and where.

    Raises:
        OpError: not what `torch.save` wrote of a dict.
        LimitError: a pickle or directory beyond its limit.
    """
    saved, checkpoint = read_root(reader)
    if not isinstance(saved, dict):
        raise OpError(f"pt reads a checkpoint that is a dict, this one is {describe(saved)}; torch.save({{'name': tensor}})")
    checkpoint.update((key, value) for key, value in saved.items() if isinstance(key, str))
    return checkpoint


def read_root(reader: RangeReader) -> tuple[Any, Checkpoint]:
    """The saved object as `PickleReader` gives it, and a checkpoint without entries that knows its storages.

    Raises:
        OpError: not what `torch.save` wrote.
        LimitError: a pickle or directory beyond its limit.
    """
    first = bytes(reader.read(0, min(reader.size, len(LEGACY_START))))
    if first == LEGACY_START:
        saved, places = read_legacy(reader, MAX_PICKLE)
        return saved, Checkpoint({key: Extent(*place) for key, place in places.items()}, big_endian=False)
    if first[:4] != b"PK\x03\x04":
        raise OpError("not a torch checkpoint: neither a zip file nor what torch wrote before 1.6")
    members = read_directory(reader)
    folder = _folder(members)
    pickled = _read_member(reader, "data.pkl", members[f"{folder}data.pkl"])
    saved = _load_known(pickled) if len(pickled) <= SMALL_PICKLE else PickleReader().load(pickled)
    order = members.get(f"{folder}byteorder")
    storages = {
        name.removeprefix(f"{folder}data/"): member
        for name, member in members.items()
        if member.stored and name.startswith(f"{folder}data/")
    }
    return saved, Checkpoint(storages, order is not None and _read_member(reader, "byteorder", order) == b"big")


def _folder(members: dict[str, Member]) -> str:
    """The folder of `data.pkl`, with its slash; torch names it after the file."""
    found: Iterator[str] = (name.removesuffix("data.pkl") for name in members if name.endswith("/data.pkl"))
    folder = next((f for f in found if f.count("/") == 1), None)
    if folder is None:
        raise OpError("a zip file, but no torch checkpoint: it holds no data.pkl")
    if f"{folder}constants.pkl" in members:
        raise OpError("a TorchScript archive, which holds a program; save a dict of tensors by torch.save")
    return folder


def _read_member(reader: RangeReader, name: str, member: Member) -> bytes:
    if not member.stored:
        raise OpError(f"{name} of the checkpoint is compressed or encrypted, which torch.save never does")
    if member.size > MAX_PICKLE:
        raise LimitError(f"{name} of the checkpoint takes {member.size} bytes; {MAX_PICKLE} are allowed")
    start = _payload_start(reader, member.header)
    if start + member.size > reader.size:
        raise OpError(f"{name} of the checkpoint reaches beyond the file")
    return bytes(reader.read(start, member.size))
