"""Argument checking, driven by the annotations of an op's signature.

`Pixels`, `Size`, `Probability` and friends are what op authors write; a plain `bool`, `str`, `float`,
`Literal[...]` or `tuple[float, ...]` works as well. Any other annotation is accepted unchecked.
"""

from __future__ import annotations

import math
import numbers
import types
import typing
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias, Union

from .expr import Col, ConstValue, ParamRef


@dataclass(frozen=True, slots=True)
class Range:
    """Bounds of a number; an open end excludes the bound itself."""

    low: float | None = None
    high: float | None = None
    low_open: bool = False

    def complaint(self, value: float) -> str | None:
        if self.low is not None and (value <= self.low if self.low_open else value < self.low):
            return f"must be {'>' if self.low_open else '>='} {self.low:g}"
        if self.high is not None and value > self.high:
            return f"must be <= {self.high:.10g}"
        return None


@dataclass(frozen=True, slots=True)
class Dynamic:
    """Marks a parameter that also takes `col(...)`, a bare column name, `param(...)` or `const(...)`."""


@dataclass(frozen=True, slots=True)
class DynamicText(Dynamic):
    """Marks a text parameter that also takes `col(...)`; a bare string is the text itself."""


DYNAMIC = Dynamic()

LARGEST = 2**31 - 1
"""The most pixels of an edge that the image libraries count."""
Size: TypeAlias = Annotated[int, Range(1, LARGEST)]
"""A literal count of pixels or items, at least 1."""
Pixels: TypeAlias = Annotated[int, Range(1, LARGEST), DYNAMIC]
"""A count of pixels, at least 1, that may be read from the record."""
Offset: TypeAlias = Annotated[int, Range(0, LARGEST), DYNAMIC]
"""A distance in pixels, at least 0, that may be read from the record."""
Count: TypeAlias = Annotated[int, Range(0)]
"""A literal count, at least 0."""
StringKey: TypeAlias = Annotated[str, DynamicText()]
"""A name that may be read from the record by `col(...)`."""
Probability: TypeAlias = Annotated[float, Range(0.0, 1.0)]
Positive: TypeAlias = Annotated[float, Range(0.0, low_open=True)]


def is_dynamic_annotation(annotation: Any) -> bool:
    return any(isinstance(m, Dynamic) for m in getattr(annotation, "__metadata__", ()))


def is_dynamic_text(annotation: Any) -> bool:
    return any(isinstance(m, DynamicText) for m in getattr(annotation, "__metadata__", ()))


def check_value(annotation: Any, name: str, value: Any) -> Any:
    """Return `value` normalised to what `annotation` asks for.

    Raises:
        TypeError: the value is of another kind (a bool for a number, a fraction or a negative for a count).
        ValueError: it is of the right kind but out of range, or not one of the choices.
    """
    origin = typing.get_origin(annotation)
    if origin is Annotated:
        base, *marks = typing.get_args(annotation)
        return _check_base(base, name, value, [m for m in marks if isinstance(m, Range)])
    return _check_base(annotation, name, value, [])


def check_dynamic(annotation: Any, name: str, value: Any) -> Any:
    """`check_value`, but lets references through: `col`, `param`, and a bare string as a column name."""
    if isinstance(value, ConstValue):
        value = value.value
    if is_dynamic_text(annotation):
        return value if isinstance(value, Col) else check_value(annotation, name, value)
    if isinstance(value, (Col, ParamRef)):
        return value
    if isinstance(value, str):
        return Col(value)
    return check_value(annotation, name, value)


def _check_base(base: Any, name: str, value: Any, ranges: list[Range]) -> Any:
    origin = typing.get_origin(base)
    if origin in (Union, types.UnionType):
        members = typing.get_args(base)
        if value is None and type(None) in members:
            return None
        others = [m for m in members if m is not type(None)]
        for member in others[:-1]:
            try:
                return check_value(member, name, value)
            except (TypeError, ValueError):
                continue
        return check_value(others[-1], name, value)
    if isinstance(value, (Col, ParamRef)) and base in (int, float, bool, str):
        raise TypeError(f"{name} takes a literal, not {value!r}")
    if base is int:
        return _check_int(name, value, ranges)
    if base is float:
        return _check_float(name, value, ranges)
    if base is bool:
        if not isinstance(value, bool):
            raise TypeError(f"{name} must be a bool, got {value!r}")
        return value
    if base is str:
        if not isinstance(value, str):
            raise TypeError(f"{name} must be a str, got {value!r}")
        return value
    if origin is Literal:
        choices = typing.get_args(base)
        if isinstance(value, bool) or not isinstance(value, tuple({type(c) for c in choices})):
            raise TypeError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")
        if value not in choices:
            raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")
        return value
    if origin is tuple:
        return _check_tuple(base, name, value)
    return value


def _check_int(name: str, value: Any, ranges: list[Range]) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    number = int(value)
    for r in ranges:
        if (why := r.complaint(number)) is not None:
            # A negative count is of the wrong kind; zero is merely too small.
            raise (TypeError if number < 0 and r.low is not None and r.low >= 0 else ValueError)(
                f"{name} {why}, got {number}"
            )
    return number


def _check_float(name: str, value: Any, ranges: list[Range]) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number, got {value!r}")
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{name} must be finite, got {number}")
    for r in ranges:
        if (why := r.complaint(number)) is not None:
            raise ValueError(f"{name} {why}, got {number:g}")
    return number


def _check_tuple(base: Any, name: str, value: Any) -> tuple[Any, ...]:
    if isinstance(value, (str, bytes)) or not hasattr(value, "__iter__"):
        raise TypeError(f"{name} must be a sequence, got {value!r}")
    items = tuple(value.tolist() if hasattr(value, "tolist") else value)
    members = typing.get_args(base)
    if len(members) == 2 and members[1] is Ellipsis:
        if not items:
            raise ValueError(f"{name} must not be empty")
        members = (members[0],) * len(items)
    if len(items) != len(members):
        raise ValueError(f"{name} must have {len(members)} entries, got {len(items)}")
    return tuple(check_value(m, f"{name}[{i}]", v) for i, (m, v) in enumerate(zip(members, items)))
