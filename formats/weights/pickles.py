"""The pickles of torch checkpoints, read without running them.

They are read by a small interpreter that knows what `torch.save` writes and builds inert values: a tensor becomes the
description of its place, an object of a class that the caller lists an `Inert`, everything else that would be constructed
becomes `OPAQUE`. No callable that a file names is looked up. (`pickle.Unpickler` with a strict `find_class` is not enough: a
deep tuple as a dictionary key overflows the stack of the C code.)
"""

from __future__ import annotations

import pickletools
import struct
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Protocol

from ...engine.errors import OpError

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
    """A value that nobody here has a use for."""

    def __repr__(self) -> str:
        return "OPAQUE"


OPAQUE = _Opaque()


@dataclass(frozen=True, slots=True)
class Global:
    """A name that the pickle mentions; it is compared with known ones and never looked up."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(frozen=True, slots=True)
class Storage:
    """A storage of the checkpoint.

    Attributes:
        key: its name in the file.
        dtype: of its elements, None for bytes whose tensors know.
        count: elements (bytes where `dtype` is None), as the pickle says; unchecked.
        start: element of it at which this view of it begins; files of torch before 0.4 have such.
    """

    key: str
    dtype: str | None
    count: Any
    start: Any = 0


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """A tensor as the pickle describes it; nothing of it is checked yet."""

    storage: Storage
    dtype: str
    offset: Any
    shape: Any
    strides: Any


@dataclass(frozen=True, slots=True)
class Unusable:
    """What has no plain array form; `why` says what it is, `tensor` whether it is a tensor."""

    why: str
    tensor: bool = True


@dataclass(eq=False, slots=True)
class Inert:
    """An object of a class that the caller listed, by what it would be made from. Compared by identity.

    Attributes:
        kind: its class.
        arguments: of its constructor.
        state: what it was given afterwards, None without.
    """

    kind: Global
    arguments: tuple[Any, ...]
    state: Any = None


def _rebuild(arguments: tuple[Any, ...], dtype: str | None, metadata: Any) -> Any:
    storage, offset, shape, strides = arguments[:4]
    if not isinstance(storage, Storage):
        return OPAQUE
    if isinstance(metadata, dict) and any(metadata.values()):
        return Unusable("a lazily conjugated or negated view; save t.resolve_conj().resolve_neg()")
    name = dtype or storage.dtype
    return OPAQUE if name is None else SavedTensor(storage, name, offset, shape, strides)


def _rebuild_v2(arguments: tuple[Any, ...]) -> Any:
    return _rebuild(arguments, None, arguments[6] if len(arguments) > 6 else None)


def _rebuild_v3(arguments: tuple[Any, ...]) -> Any:
    dtype = arguments[6]
    if not isinstance(dtype, Global) or dtype.module != "torch" or dtype.name not in DTYPES:
        return Unusable(f"a tensor of {dtype}")
    return _rebuild(arguments, dtype.name, arguments[7] if len(arguments) > 7 else None)


def _rebuild_parameter(arguments: tuple[Any, ...]) -> Any:
    return arguments[0]


def _rebuild_from_type(arguments: tuple[Any, ...]) -> Any:
    """A tensor with attributes of its own: `(function, type, arguments, state)`."""
    function, kind, inner = arguments[:3]
    if kind not in (Global("torch", "Tensor"), Global("torch.nn.parameter", "Parameter")):
        return Unusable(f"a tensor of class {kind}")
    return _reduce(function, inner)


def _size(arguments: tuple[Any, ...]) -> Any:
    return tuple(arguments[0]) if isinstance(arguments[0], (tuple, list)) else OPAQUE


def _mapping(arguments: tuple[Any, ...]) -> Any:
    return {} if not arguments else OPAQUE


_CONSTRUCTORS: dict[Global, Callable[[tuple[Any, ...]], Any]] = {
    Global("torch._utils", "_rebuild_tensor_v2"): _rebuild_v2,
    Global("torch._utils", "_rebuild_tensor_v3"): _rebuild_v3,
    Global("torch._utils", "_rebuild_parameter"): _rebuild_parameter,
    Global("torch._utils", "_rebuild_parameter_with_state"): _rebuild_parameter,
    Global("torch._tensor", "_rebuild_from_type_v2"): _rebuild_from_type,
    Global("torch", "Size"): _size,
    Global("collections", "OrderedDict"): _mapping,
}
"""What torch.save names for tensors, shapes and mappings, and what stands here for it."""


def _reduce(function: Any, arguments: Any) -> Any:
    """The value that the pickle would make by `function(*arguments)`."""
    if not isinstance(function, Global) or not isinstance(arguments, tuple):
        return OPAQUE
    constructor = _CONSTRUCTORS.get(function)
    if constructor is not None:
        try:
            return constructor(arguments)
        except (IndexError, ValueError):  # fewer arguments than torch writes
            return OPAQUE
    if not function.module.startswith("torch"):
        return OPAQUE
    return Unusable(f"what {function} makes", tensor=function.name.startswith("_rebuild"))


def _persistent(value: Any) -> Any:
    """A storage: `("storage", class, key, device, count)`, in files before torch 1.6 with `(view's key, start, count)` or None."""
    if not isinstance(value, tuple) or len(value) not in (5, 6) or value[0] != "storage" or not isinstance(value[2], str):
        return OPAQUE
    kind, key, count = value[1], value[2], value[4]
    if not isinstance(kind, Global) or kind.module not in ("torch", "torch.storage"):
        return OPAQUE
    view = value[5] if len(value) == 6 else None
    start = view[1] if isinstance(view, tuple) and len(view) == 3 else 0
    if kind.name == "UntypedStorage":
        return Storage(key, None, count, start)
    return Storage(key, STORAGES[kind.name], count, start) if kind.name in STORAGES else OPAQUE


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


class Readable(Protocol):
    """A binary file that is read forwards."""

    def read(self, size: int, /) -> bytes: ...

    def readline(self) -> bytes: ...


class PickleReader:
    """A stack machine for the pickles that `torch.save` writes (protocols 2 to 5); values are inert. For one pickle.

    Args:
        classes: whose objects become `Inert` rather than `OPAQUE`.
        what: the name of the pickle in messages.

    Attributes:
        storages: those that the pickle mentions, by key.

    Source: the opcodes as `pickletools` documents them.
    """

    def __init__(self, classes: Collection[Global] = (), *, what: str = "data.pkl of the checkpoint") -> None:
        self.storages: dict[str, Storage] = {}
        self._classes = classes
        self._what = what
        self._stack: list[Any] = []
        self._outer: list[list[Any]] = []
        self._memo: dict[int, Any] = {}

    def load(self, data: bytes | Readable) -> Any:
        """The object, of dicts, lists, tuples, scalars, `SavedTensor`, `Inert` and `OPAQUE`.

        Raises:
            OpError: damaged, or an opcode that no checkpoint holds.
        """
        source: Any = data  # genops needs no more of a file than `Readable`, its stub asks for all
        try:
            for opcode, argument, _ in pickletools.genops(source):
                if opcode.name == "STOP":
                    return self._stack.pop()
                self._step(opcode.name, argument)
        except (IndexError, KeyError, TypeError, ValueError, AttributeError, struct.error, DeprecationWarning) as error:
            raise OpError(f"{self._what} is damaged: {error}") from error
        raise OpError(f"{self._what} does not end")

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
            self._stack.append(Global(module, attribute))
        elif name == "STACK_GLOBAL":
            attribute, module = self._stack.pop(), self._stack.pop()
            self._stack.append(Global(str(module), str(attribute)) if isinstance(module, str) else OPAQUE)
        elif name in ("REDUCE", "NEWOBJ"):
            arguments, function = self._stack.pop(), self._stack.pop()
            listed = isinstance(function, Global) and function in self._classes and isinstance(arguments, tuple)
            self._stack.append(Inert(function, arguments) if listed else _reduce(function, arguments))
        elif name == "NEWOBJ_EX":
            del self._stack[-3:]
            self._stack.append(OPAQUE)
        elif name == "BUILD":
            state = self._stack.pop()  # of a mapping it is `_metadata`, which says nothing of tensors
            if isinstance(self._stack[-1], Inert):
                self._stack[-1].state = state
        elif name == "BINPERSID":
            found = _persistent(self._stack.pop())
            if isinstance(found, Storage):
                self.storages.setdefault(found.key, found)
            self._stack.append(found)
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
                if isinstance(key, (*_SCALARS, Inert)):  # others cannot be asked for, and hashing them may not end
                    target[key] = value
