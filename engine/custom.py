"""Python functions as ops: what stands for one in a plan's signature."""

from __future__ import annotations

import dis
import functools
import hashlib
import inspect
import random
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import CodeType
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
    called with those seeded for the record and put back afterwards, which takes some 30 (`random`) to 130 us
    (`np.random`); what another thread draws from them meanwhile is not protected. So prefer `rng`.
    """
    call: Callable[..., Any] = function
    draws = takes_rng(function)
    modules = global_generators(function)
    if not modules:
        if draws:
            return lambda record, index: call(record, rng=record_stream(seed, epoch, index))
        return lambda record, index: call(record)

    def seeded(record: Any, index: int) -> Any:
        words = record_stream(seed, epoch, index).integers(0, 1 << 32, 4, dtype=np.uint32)
        with _seeded(words, modules):
            return call(record, rng=record_stream(seed, epoch, index)) if draws else call(record)

    return seeded


_global_lock = threading.RLock()
new_lock_in_child(sys.modules[__name__], "_global_lock", threading.RLock)


@contextmanager
def _seeded(words: Any, modules: frozenset[str]) -> Iterator[None]:
    """The global generators of `modules` seeded from `words` (uint32[4]), and put back."""
    with _global_lock:
        python = random.getstate() if "random" in modules else None
        numpy = np.random.get_state() if "numpy.random" in modules else None
        try:
            if python is not None:
                random.seed(int.from_bytes(words.tobytes(), "little"))
            if numpy is not None:
                np.random.seed(words)
            yield
        finally:
            if python is not None:
                random.setstate(python)
            if numpy is not None:
                np.random.set_state(numpy)


def global_generators(function: Any, depth: int = 5) -> frozenset[str]:
    """Which of `random` and `numpy.random` something callable names: a function, method, object with `__call__`,
    `functools.partial` or custom op, itself or in what it names, closes over or holds, `depth` calls deep.
    """
    found: set[str] = set()
    _find_generators(function, depth, {}, {}, found)
    return frozenset(found)


def _find_generators(
    value: Any, depth: int, held: Mapping[str, Any], seen: dict[Any, int], found: set[str]
) -> None:
    """Add what `value` draws from to `found`. `held` is what its object holds by name; `seen` the code looked at, and how
    deep it was then."""
    if (drawn := _drawing(value)) is not None:
        found.add(drawn)
        return
    if isinstance(value, CustomOp):
        value = value.fn
    if isinstance(value, functools.partial):
        for part in (value.func, *value.args, *value.keywords.values()):
            _find_generators(part, depth, {}, seen, found)
        return
    function, held = _plain_function(value, held)
    if function is None or seen.get(function.__code__, 0) >= depth:
        return
    seen[function.__code__] = depth
    variables, attributes = _names(function.__code__)
    names = variables | attributes
    scope = {**function.__globals__, **_cells(function)}
    for name in names:
        for inner in (scope.get(name) if name in variables else None, held.get(name) if name in attributes else None):
            if inner is np:
                found |= {"numpy.random"} if "random" in names else set()
            elif inspect.ismodule(inner) and _drawing(inner) is None:
                for part in names & vars(inner).keys():  # of a module, what is named of it
                    _find_generators(vars(inner)[part], depth - 1, {}, seen, found)
            elif inner is not None:
                _find_generators(inner, depth - 1, held if inner is held.get(name) else {}, seen, found)
    if "import random" in names:
        found.add("random")
    if "import numpy.random" in names or ("import numpy" in names and "random" in names):
        found.add("numpy.random")


def _drawing(value: Any) -> str | None:
    """The generator that a value is, or is a method of."""
    owner = getattr(value, "__self__", None) if inspect.isroutine(value) else None
    if value is random or owner is random._inst:
        return "random"
    return "numpy.random" if value is np.random or owner is np.random.mtrand._rand else None


def _plain_function(value: Any, held: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
    """The Python function that a call of `value` runs, and what the object it belongs to holds by name. None for what is
    no Python function."""
    if isinstance(value, (staticmethod, classmethod)):
        value = value.__func__
    elif isinstance(value, property):
        value = value.fget
    if inspect.isfunction(value):
        return value, held
    if inspect.ismethod(value):
        function, owner = value.__func__, value.__self__
    elif inspect.isclass(value):
        function, owner = value.__init__, value
    elif not callable(value) or inspect.isroutine(value):
        return None, {}
    else:
        function, owner = type(value).__call__, value
    if not inspect.isfunction(function):
        return None, {}
    kind = owner if inspect.isclass(owner) else type(owner)
    found: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        found.update(vars(base))
    return function, found if owner is kind else {**found, **getattr(owner, "__dict__", {})}


def _names(code: CodeType) -> tuple[set[str], set[str]]:
    """The global and free variables that a function's code and the functions inside it read, and the attributes; modules
    that it imports are `import name` among these."""
    variables: set[str] = set()
    attributes: set[str] = set()
    for step in dis.get_instructions(code):
        if step.opname == "IMPORT_NAME":
            attributes.add(f"import {step.argval}")
        elif step.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF"):
            variables.add(step.argval)
        elif isinstance(step.argval, str) and ("ATTR" in step.opname or step.opname in ("LOAD_METHOD", "IMPORT_FROM")):
            attributes.add(step.argval)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            more = _names(inner)
            variables |= more[0]
            attributes |= more[1]
    return variables, attributes


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
