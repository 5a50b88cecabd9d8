"""Conditions: `cond.col("height").gt(512) & ~cond.col("broken")`. They are values and enter a plan's signature."""

from __future__ import annotations

from collections.abc import Iterable

from .engine.expr import SYMBOLS, All, AnyOf, Col, Cond, ConstCond, Measure, Not, Truthy


def col(name: str) -> Cond:
    """The record's field `name`; alone it tests truthiness."""
    return Truthy(Col(name))


def shape(axis: int, op: str | None = None, value: int | None = None) -> Cond:
    """One dimension of the current tensor (negative axes count from the end); alone it means "non-zero".

    Raises:
        ValueError: an unknown `op`, or only one of `op` and `value`.
        TypeError: `axis` or `value` is no integer.
    """
    if isinstance(axis, bool) or not isinstance(axis, int):
        raise TypeError(f"axis must be an integer, got {axis!r}")
    measure = Measure(axis)
    if op is None and value is None:
        return measure
    if op is None or value is None:
        raise ValueError("shape(axis, op, value) takes both op and value, or neither")
    name = SYMBOLS.get(op, op)
    if name not in SYMBOLS.values():
        raise ValueError(f"unknown comparison {op!r}; known: {', '.join(SYMBOLS.values())}")
    return measure._compared(name, value)


def ndim() -> Cond:
    """The rank of the current tensor."""
    return Measure(None)


def all(children: Iterable[Cond]) -> Cond:
    """True when every child is; true without children."""
    return All(_conditions(children))


def any(children: Iterable[Cond]) -> Cond:
    """True when one child is; false without children."""
    return AnyOf(_conditions(children))


def not_(inner: Cond) -> Cond:
    """The opposite of `inner`."""
    return Not(_conditions([inner])[0])


def const(value: bool) -> Cond:
    """Always `value`."""
    if not isinstance(value, bool):
        raise TypeError(f"const takes a bool, got {value!r}")
    return ConstCond(value)


def _conditions(children: Iterable[Cond]) -> tuple[Cond, ...]:
    found = tuple(children)
    for child in found:
        if not isinstance(child, Cond):
            raise TypeError(f"conditions are made of conditions, got {child!r}")
    return found


__all__ = ["all", "any", "col", "const", "ndim", "not_", "shape"]
