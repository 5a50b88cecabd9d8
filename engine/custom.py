"""Python functions as ops: what stands for one in a plan's signature."""

from __future__ import annotations

import dis
import hashlib
import inspect
import random
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .forks import new_lock_in_child
from .rng import record_stream


@dataclass(frozen=True, slots=True)
class CustomOp:
    """A Python function with a name and version, which stand for it in a plan's signature.

    `code` stands for a function that was given no name of its own: where it is defined and what its code is.
    """

    name: str
    version: str
    fn: Callable[..., Any] | None = field(default=None, compare=False)
    code: str | None = field(default=None, repr=False)
    _draws: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_draws", takes_rng(self.fn))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.fn is None:
            raise TypeError(f"custom op {self.name!r} has no function")
        return self.fn(*args, **kwargs)

    def call(self, value: Any, rng: Any) -> Any:
        """The function on one value, with the record's stream if it asks for it."""
        return self(value, rng=rng) if self._draws else self(value)

    def describe(self) -> dict[str, str]:
        found = {"name": self.name, "version": self.version}
        return found if self.code is None else {**found, "code": self.code}

    canonical = describe

    def __str__(self) -> str:
        return f"{self.name}@{self.version}"


def takes_rng(function: Callable[..., Any] | None) -> bool:
    """Whether a function, or the function of a custom op, has a parameter `rng`."""
    if function is None:
        return False
    if isinstance(function, CustomOp):
        return function._draws
    try:
        return "rng" in inspect.signature(function).parameters
    except (TypeError, ValueError):  # a built-in without a signature
        return False


def custom_op(fn: Callable[..., Any] | None = None, *, name: str | None = None, version: str = "1") -> Any:
    """Name a Python function for `map` and `custom`: `custom_op(fn)`, `@custom_op` or `@custom_op(name=..., version=...)`.

    Raises:
        TypeError: no callable, or a name or version that is no str.
        ValueError: an empty name or version.
    """
    for what, value in (("name", name), ("version", version)):
        if value is not None and not isinstance(value, str):
            raise TypeError(f"custom_op({what}=) must be a str, got {value!r}")
        if value == "":
            raise ValueError(f"custom_op({what}=) must not be empty")
    if fn is None:
        return lambda function: custom_op(function, name=name, version=version)
    if not callable(fn):
        raise TypeError(f"custom_op() takes a callable, got {fn!r}")
    return CustomOp(name or str(getattr(fn, "__name__", type(fn).__name__)), version, fn)


def as_custom(function: Any, *, name: str | None = None, version: str | None = None) -> CustomOp:
    """A custom op as it is, or a plain function as one; without a name the function's code tells it apart."""
    if isinstance(function, CustomOp):
        if name is not None or version is not None:
            raise ValueError(f"{function} has its name and version already")
        return function
    if name is not None or version is not None:
        made: CustomOp = custom_op(function, name=name, version=version or "1")
        return made
    made = custom_op(function)
    digest = hashlib.sha256(repr(sorted(canonical_function(function).items())).encode()).hexdigest()
    return CustomOp(made.name, made.version, function, digest[:16])


def canonical_function(function: Callable[..., Any]) -> dict[str, Any]:
    """A callable's identity: a custom op's name and version, else where it is defined and what its code is."""
    if hasattr(function, "describe"):
        described: dict[str, Any] = function.describe()
        return described
    code = getattr(function, "__code__", None)
    digest = hashlib.sha256(repr(_code(code)).encode()).hexdigest() if code else None
    closure = [repr(c.cell_contents) for c in (getattr(function, "__closure__", None) or ()) if _plain(c)]
    return {
        "module": getattr(function, "__module__", type(function).__module__),
        "name": getattr(function, "__qualname__", type(function).__qualname__),
        "code": digest,
        "defaults": [repr(d) for d in getattr(function, "__defaults__", None) or ()],
        "closure": closure,
    }


def _code(code: Any) -> list[Any]:
    return [code.co_code.hex(), [_constant(c) for c in code.co_consts], list(code.co_names)]


def _constant(value: Any) -> Any:
    """A constant in a form that prints the same in every process."""
    if hasattr(value, "co_code"):  # an inner function, which would print with an address and a file name
        return _code(value)
    if isinstance(value, frozenset):  # `x in {"a", "b"}`: its order follows the hash seed
        return ["set", *sorted(map(repr, value))]
    if isinstance(value, tuple):
        return tuple(map(_constant, value))
    return value


def _plain(cell: Any) -> bool:
    return _filled(cell) and isinstance(cell.cell_contents, (bool, int, float, str, bytes, tuple, type(None)))


def record_caller(function: Callable[[Any], Any], seed: int, epoch: int) -> Callable[[Any, int], Any]:
    """`function` as a function of a record and its index in the pass, whose random draws follow from these alone.

    A function with a parameter `rng` gets the record's stream (`engine.rng`). One that names `random` or `np.random` is
    called with those seeded for the record and put back afterwards; what another thread draws from them meanwhile
    is not protected, so prefer `rng`.
    """
    if takes_rng(function):
        return lambda record, index: function(record, rng=record_stream(seed, epoch, index))  # type: ignore[call-arg]
    inner = function.fn if isinstance(function, CustomOp) and function.fn is not None else function
    if not (modules := global_generators(inner)):
        return lambda record, index: function(record)
    return lambda record, index: _seeded(function, record, record_stream(seed, epoch, index), modules)


_global_lock = threading.RLock()
new_lock_in_child(sys.modules[__name__], "_global_lock", threading.RLock)


def _seeded(function: Callable[[Any], Any], record: Any, stream: Any, modules: frozenset[str]) -> Any:
    """`function(record)` with the global generators seeded from `stream`, and put back."""
    words = stream.integers(0, 1 << 32, 4, dtype=np.uint32)
    with _global_lock:
        python = random.getstate() if "random" in modules else None
        numpy = np.random.get_state() if "numpy.random" in modules else None
        try:
            if python is not None:
                random.seed(int.from_bytes(words.tobytes(), "little"))
            if numpy is not None:
                np.random.seed(words)
            return function(record)
        finally:
            if python is not None:
                random.setstate(python)
            if numpy is not None:
                np.random.set_state(numpy)


def global_generators(function: Callable[..., Any], depth: int = 3) -> frozenset[str]:
    """Which of `random` and `numpy.random` a Python function names, itself or in functions that it names."""
    code = getattr(function, "__code__", None)
    if code is None or depth == 0:
        return frozenset()
    found: set[str] = set()
    scope = {**getattr(function, "__globals__", {}), **_cells(function)}
    names = _names(code)
    for name in names:
        value = scope.get(name)
        owner = getattr(value, "__self__", None)
        if value is random or owner is random._inst:
            found.add("random")
        elif (value is np and "random" in names) or value is np.random or owner is np.random.mtrand._rand:
            found.add("numpy.random")
        elif inspect.isfunction(value) and value is not function:
            found |= global_generators(value, depth - 1)
    if {"random", "numpy"} & names and "IMPORT_NAME" in {i.opname for i in dis.get_instructions(code)}:
        found |= {"random"} if "random" in names else set()
        found |= {"numpy.random"} if "numpy" in names and "random" in names else set()
    return frozenset(found)


def _names(code: Any) -> set[str]:
    """Global and attribute names of a function's code and of the functions inside it."""
    inner = (_names(c) for c in code.co_consts if hasattr(c, "co_names"))
    return {*code.co_names, *code.co_freevars}.union(*inner)


def _cells(function: Callable[..., Any]) -> dict[str, Any]:
    """What the function closes over, by name."""
    cells = getattr(function, "__closure__", None) or ()
    names = function.__code__.co_freevars
    return {n: c.cell_contents for n, c in zip(names, cells) if _filled(c)}


def _filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:  # an empty cell
        return False
    return True
