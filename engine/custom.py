"""Python functions as ops: what stands for one in a plan's signature."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


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
        object.__setattr__(self, "_draws", _takes_rng(self.fn))

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


def _takes_rng(function: Callable[..., Any] | None) -> bool:
    if function is None:
        return False
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
    try:
        return isinstance(cell.cell_contents, (bool, int, float, str, bytes, tuple, type(None)))
    except ValueError:  # an empty cell
        return False
