"""The `pt` decoder: one tensor of a torch checkpoint (the zip format of torch 1.6 and later), without running its pickle.

A checkpoint is a zip file of stored (uncompressed) members: `data.pkl` describes the saved object, `data/<key>` holds the
bytes of each storage. The pickle is read by a small interpreter that knows what `torch.save` writes and builds inert
values: a tensor becomes the description of its place, everything else that would be constructed becomes `OPAQUE`. No
callable that the file names is looked up. (`pickle.Unpickler` with a strict `find_class` is not enough: a deep tuple as a
dictionary key overflows the stack of the C code.)
"""

from __future__ import annotations

import math
import pickletools
import reprlib
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ...engine.arguments import StringKey
from ...engine.errors import LimitError, OpError
from ...engine.registry import register_kernel, register_op
from ...engine.source import RangeReader
from .tensors import HeaderCache, TensorPlace, check_shape, element_type, find

MAX_PICKLE = 64 << 20
"""Bytes of data.pkl: about 150 a tensor, so 400,000 of them."""
SMALL_PICKLE = 1 << 14
"""Bytes of data.pkl up to which what it says is kept by its content: files of one data set share a few."""
MAX_DIRECTORY = 64 << 20
"""Bytes of the zip directory."""
MAX_REPEATED = 1 << 30
"""Bytes of a tensor that repeats elements (`expand`), and so may be larger than its file."""
STORAGES = {
    "BoolStorage": "bool", "ByteStorage": "uint8", "CharStorage": "int8", "ShortStorage": "int16",
    "IntStorage": "int32", "LongStorage": "int64", "HalfStorage": "float16", "FloatStorage": "float32",
    "DoubleStorage": "float64", "ComplexFloatStorage": "complex64", "ComplexDoubleStorage": "complex128",
    "BFloat16Storage": "bfloat16",
}  # fmt: skip
DTYPES = frozenset(
    {
        *STORAGES.values(), "uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz",
        "float8_e5m2fnuz", "float8_e8m0fnu",
    }
)  # fmt: skip


class _Opaque:
    """A value that the decoder has no use for."""

    def __repr__(self) -> str:
        return "OPAQUE"


OPAQUE = _Opaque()


@dataclass(frozen=True, slots=True)
class _Global:
    """A name that the pickle mentions; it is compared with known ones and never looked up."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(frozen=True, slots=True)
class _Storage:
    """Elements of `dtype` (None: bytes whose tensor knows) in member `data/<key>`."""

    key: str
    dtype: str | None


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """A tensor as the pickle describes it; nothing of it is checked yet."""

    storage: _Storage
    dtype: str
    offset: Any
    shape: Any
    strides: Any


@dataclass(frozen=True, slots=True)
class _Unusable:
    """A tensor that has no plain array form; `why` says what it is."""

    why: str


def _rebuild(arguments: tuple[Any, ...], dtype: str | None, metadata: Any) -> Any:
    storage, offset, shape, strides = arguments[:4]
    if not isinstance(storage, _Storage):
        return OPAQUE
    if isinstance(metadata, dict) and any(metadata.values()):
        return _Unusable("a lazily conjugated or negated view; save t.resolve_conj().resolve_neg()")
    name = dtype or storage.dtype
    return OPAQUE if name is None else SavedTensor(storage, name, offset, shape, strides)


def _rebuild_v2(arguments: tuple[Any, ...]) -> Any:
    return _rebuild(arguments, None, arguments[6] if len(arguments) > 6 else None)


def _rebuild_v3(arguments: tuple[Any, ...]) -> Any:
    dtype = arguments[6]
    if not isinstance(dtype, _Global) or dtype.module != "torch" or dtype.name not in DTYPES:
        return _Unusable(f"a tensor of {dtype}")
    return _rebuild(arguments, dtype.name, arguments[7] if len(arguments) > 7 else None)


def _rebuild_parameter(arguments: tuple[Any, ...]) -> Any:
    return arguments[0]


def _rebuild_from_type(arguments: tuple[Any, ...]) -> Any:
    """A tensor with attributes of its own: `(function, type, arguments, state)`."""
    function, kind, inner = arguments[:3]
    if kind not in (_Global("torch", "Tensor"), _Global("torch.nn.parameter", "Parameter")):
        return _Unusable(f"a tensor of class {kind}")
    return _reduce(function, inner)


def _mapping(arguments: tuple[Any, ...]) -> Any:
    return {} if not arguments else OPAQUE


_CONSTRUCTORS: dict[_Global, Callable[[tuple[Any, ...]], Any]] = {
    _Global("torch._utils", "_rebuild_tensor_v2"): _rebuild_v2,
    _Global("torch._utils", "_rebuild_tensor_v3"): _rebuild_v3,
    _Global("torch._utils", "_rebuild_parameter"): _rebuild_parameter,
    _Global("torch._utils", "_rebuild_parameter_with_state"): _rebuild_parameter,
    _Global("torch._tensor", "_rebuild_from_type_v2"): _rebuild_from_type,
    _Global("collections", "OrderedDict"): _mapping,
}
"""What torch.save names for tensors and mappings, and what stands here for it."""


def _reduce(function: Any, arguments: Any) -> Any:
    """The value that the pickle would make by `function(*arguments)`."""
    if not isinstance(function, _Global) or not isinstance(arguments, tuple):
        return OPAQUE
    constructor = _CONSTRUCTORS.get(function)
    if constructor is not None:
        try:
            return constructor(arguments)
        except (IndexError, ValueError):  # fewer arguments than torch writes
            return OPAQUE
    return _Unusable(f"what {function} makes") if function.module.startswith("torch") else OPAQUE


def _persistent(value: Any) -> Any:
    """A storage: `("storage", class, key, device, count)`."""
    if not isinstance(value, tuple) or len(value) != 5 or value[0] != "storage" or not isinstance(value[2], str):
        return OPAQUE
    kind = value[1]
    if kind == _Global("torch.storage", "UntypedStorage"):
        return _Storage(value[2], None)
    if not isinstance(kind, _Global) or kind.module != "torch" or kind.name not in STORAGES:
        return OPAQUE
    return _Storage(value[2], STORAGES[kind.name])


_LITERALS = frozenset(
    {
        "BININT", "BININT1", "BININT2", "INT", "LONG", "LONG1", "LONG4", "BINFLOAT", "FLOAT", "BINUNICODE",
        "SHORT_BINUNICODE", "BINUNICODE8", "UNICODE", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8",
        "STRING", "BINSTRING", "SHORT_BINSTRING",
    }
)  # fmt: skip
_FIXED: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "EMPTY_SET": lambda: OPAQUE,
}
_SMALL_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_SCALARS = (str, int, float, bool, type(None))


class PickleReader:
    """A stack machine for the pickles that `torch.save` writes (protocols 2 to 5); values are inert.

    Source: the opcodes as `pickletools` documents them.
    """

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._outer: list[list[Any]] = []
        self._memo: dict[int, Any] = {}

    def load(self, data: bytes) -> Any:
        """The object, of dicts, lists, tuples, scalars, `SavedTensor` and `OPAQUE`.

        Raises:
            OpError: damaged, or an opcode that no checkpoint holds.
        """
        try:
            for opcode, argument, _ in pickletools.genops(data):
                if opcode.name == "STOP":
                    return self._stack.pop()
                self._step(opcode.name, argument)
        except (IndexError, KeyError, TypeError, ValueError, AttributeError, struct.error, DeprecationWarning) as error:
            raise OpError(f"data.pkl of the checkpoint is damaged: {error}") from error
        raise OpError("data.pkl of the checkpoint does not end")

    def _step(self, name: str, argument: Any) -> None:
        stack = self._stack
        if name in ("BINGET", "LONG_BINGET", "GET"):
            stack.append(self._memo[argument])
        elif name in ("BINPUT", "LONG_BINPUT", "PUT"):
            self._memo[argument] = stack[-1]
        elif name == "MEMOIZE":
            self._memo[len(self._memo)] = stack[-1]
        elif name in _LITERALS:
            stack.append(argument)
        elif name in _FIXED:
            stack.append(_FIXED[name]())
        elif name in _SMALL_TUPLES:
            count = _SMALL_TUPLES[name]
            if len(stack) < count:
                raise IndexError("a tuple of what is not there")
            stack[-count:] = [tuple(stack[-count:])]
        elif name == "MARK":
            self._outer.append(stack)
            self._stack = []
        elif name == "TUPLE":
            items = self._to_mark()
            self._stack.append(tuple(items))
        else:
            self._build(name, argument)

    def _build(self, name: str, argument: Any) -> None:
        """The opcodes that join what is on the stack."""
        if name in ("SETITEM", "APPEND"):
            items = [self._stack.pop() for _ in range(2 if name == "SETITEM" else 1)][::-1]
            self._extend(items)
        elif name in ("SETITEMS", "APPENDS", "ADDITEMS"):
            self._extend(self._to_mark())
        elif name == "FROZENSET":
            self._to_mark()
            self._stack.append(OPAQUE)
        elif name == "GLOBAL":
            module, _, attribute = argument.partition(" ")
            self._stack.append(_Global(module, attribute))
        elif name == "STACK_GLOBAL":
            attribute, module = self._stack.pop(), self._stack.pop()
            self._stack.append(_Global(str(module), str(attribute)) if isinstance(module, str) else OPAQUE)
        elif name in ("REDUCE", "NEWOBJ"):
            arguments, function = self._stack.pop(), self._stack.pop()
            self._stack.append(_reduce(function, arguments))
        elif name == "NEWOBJ_EX":
            del self._stack[-3:]
            self._stack.append(OPAQUE)
        elif name == "BUILD":
            self._stack.pop()  # the state of a module's mapping, `_metadata`
        elif name == "BINPERSID":
            self._stack.append(_persistent(self._stack.pop()))
        elif name not in ("PROTO", "FRAME"):
            raise ValueError(f"no checkpoint holds the opcode {name}")

    def _to_mark(self) -> list[Any]:
        items, self._stack = self._stack, self._outer.pop()
        return items

    def _extend(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if isinstance(target, list):
            target.extend(items)
        elif isinstance(target, dict):
            for key, value in zip(items[::2], items[1::2], strict=True):
                if isinstance(key, _SCALARS):  # others cannot be asked for, and hashing them may not end
                    target[key] = value


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


class Checkpoint(dict[str, Any]):
    """The entries at the top level of a checkpoint.

    Attributes:
        members: the storages by their keys.
        big_endian: the payloads are.
    """

    def __init__(self, entries: dict[str, Any], members: dict[str, Member], big_endian: bool) -> None:
        super().__init__(entries)
        self.members = members
        self.big_endian = big_endian


_checkpoints: HeaderCache[Checkpoint] = HeaderCache()

Strided: TypeAlias = tuple[TensorPlace, tuple[int, ...]]


@register_op("pt", kind="decoder", reads="ranges", method=None)
def decode_pt(reader: RangeReader, *, tensor_key: StringKey) -> np.ndarray:
    """One tensor of a torch checkpoint: a dict with tensors at its top level, as `torch.save` writes it since 1.6.

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
    place, strides = _locate(reader, tensor_key)
    if _in_order(place.shape, strides):
        return _native(place.read(reader))
    return _read_strided(reader, place, strides)


@register_kernel("pt", "out", kind="decoder")
def decode_pt_out(reader: RangeReader, out: np.ndarray, *, tensor_key: str) -> bool:
    """The tensor read straight into `out`; False, with nothing written, when its dtype or shape is another."""
    place, strides = _locate(reader, tensor_key)
    if out.shape != place.shape or out.dtype != place.dtype.newbyteorder("="):
        return False
    if place.fits(out) and _in_order(place.shape, strides):
        place.read_into(reader, out)
    else:
        out[...] = decode_pt(reader, tensor_key=tensor_key)
    return True


def _native(array: np.ndarray) -> np.ndarray:
    native = array.dtype.newbyteorder("=")
    return array if array.dtype == native else array.byteswap().view(native)


def _in_order(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """True when the elements lie in C order; strides of axes of fewer than two do not matter."""
    return not math.prod(shape) or all(n < 2 or s == math.prod(shape[i + 1 :]) for i, (n, s) in enumerate(zip(shape, strides)))


def _locate(reader: RangeReader, key: str) -> Strided:
    """The place of the tensor's storage, and its strides in elements."""
    checkpoint = _checkpoints.get(reader, read_checkpoint)
    saved = find("the checkpoint", checkpoint, key)
    if not isinstance(saved, SavedTensor):
        raise OpError(f"pt(tensor_key={key!r}) wants a tensor at the top level of the checkpoint, found {_describe(saved)}")
    what = f"checkpoint tensor {key!r:.100}"
    shape, strides = check_shape(what, saved.shape), saved.strides
    if not isinstance(strides, tuple) or len(strides) != len(shape) or any(type(n) is not int or n < 0 for n in strides):
        raise OpError(f"{what} has no valid strides: {reprlib.repr(strides)}")
    if type(saved.offset) is not int or saved.offset < 0:
        raise OpError(f"{what} has no valid offset: {reprlib.repr(saved.offset)}")
    dtype = element_type(saved.dtype).newbyteorder(">" if checkpoint.big_endian else "<")
    strides = tuple(s if n > 1 else 0 for n, s in zip(shape, strides))
    count = math.prod(shape)
    if not count:
        return TensorPlace(dtype, shape, 0), strides
    member = find("the checkpoint", checkpoint.members, saved.storage.key, "storage")
    start = _payload_start(reader, member.header)
    size = min(member.size, reader.size - start)
    need = (saved.offset + _span(shape, strides)) * dtype.itemsize
    if need > size:
        raise OpError(f"{what} needs {need} bytes of its storage, which has {max(size, 0)}")
    if count * dtype.itemsize > max(size, MAX_REPEATED):
        raise LimitError(f"{what} repeats its elements to {count * dtype.itemsize} bytes; {MAX_REPEATED} are allowed")
    return TensorPlace(dtype, shape, start + saved.offset * dtype.itemsize), strides


def _span(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Elements from the first to the last one, both included, of a tensor that has some."""
    return 1 + sum((n - 1) * s for n, s in zip(shape, strides))


def _describe(value: Any) -> str:
    """An entry that is no tensor, in words."""
    if isinstance(value, _Unusable):
        return value.why
    return str(value) if isinstance(value, _Global) else "an object" if value is OPAQUE else f"a {type(value).__name__}"


def _read_strided(reader: RangeReader, place: TensorPlace, strides: tuple[int, ...]) -> np.ndarray:
    """The elements from the first to the last, read in one piece and put in order."""
    flat = TensorPlace(place.dtype, (_span(place.shape, strides),), place.offset).read(reader)
    view = np.lib.stride_tricks.as_strided(flat, place.shape, [s * place.dtype.itemsize for s in strides], writeable=False)
    return _native(np.array(view, order="C"))


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
        OpError: no zip file, or not one that `torch.save` wrote.
        LimitError: a pickle or directory beyond its limit.
    """
    if bytes(reader.read(0, min(reader.size, 4))) != b"PK\x03\x04":
        raise OpError(
            "not a torch checkpoint in the zip format; one in the format before torch 1.6 becomes one by "
            "torch.save(torch.load(path), path)"
        )
    members = read_directory(reader)
    folder = _folder(members)
    pickled = _read_member(reader, "data.pkl", members[f"{folder}data.pkl"])
    saved = _load_known(pickled) if len(pickled) <= SMALL_PICKLE else PickleReader().load(pickled)
    if not isinstance(saved, dict):
        raise OpError(f"pt reads a checkpoint that is a dict, this one is a {type(saved).__name__}; torch.save({{'name': tensor}})")
    order = members.get(f"{folder}byteorder")
    storages = {
        name.removeprefix(f"{folder}data/"): member
        for name, member in members.items()
        if member.stored and name.startswith(f"{folder}data/")
    }
    entries = {key: value for key, value in saved.items() if isinstance(key, str)}
    return Checkpoint(entries, storages, order is not None and _read_member(reader, "byteorder", order) == b"big")


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
