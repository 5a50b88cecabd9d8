"""Conditions taken apart: what all has to hold, and which of it is a column against a literal."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, TypeAlias

import polars as pl

from dataio.engine.expr import SYMBOLS, Compare, Cond, IsNull, Not

Clause: TypeAlias = tuple[str, str, Any]
"""(column, op, value): op is `==`, `<`, `<=`, `>`, `>=`, "is_null" or "is_not_null"."""

_SYMBOL_OF = {name: symbol for symbol, name in SYMBOLS.items()}
_OPS: dict[str, Callable[[pl.Expr, pl.Expr], pl.Expr]] = {
    "==": operator.eq, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


def conjuncts(expr: pl.Expr) -> list[pl.Expr]:
    """The expressions that all have to be true for `expr` to be. Those are found by putting them together again, as Polars does
    not tell what an expression's outermost operation is."""
    inner = expr.meta.pop()
    for parts in (inner, inner[::-1]):
        if (len(parts) == 2 and (parts[0] & parts[1]).meta.eq(expr)) or (parts and pl.all_horizontal(parts).meta.eq(expr)):
            return [found for part in parts for found in conjuncts(part)]
    return [expr]


def clause_of_expr(expr: pl.Expr) -> Clause | None:
    """A comparison of a column with a literal that statistics can decide; None for anything else.

    Only where Polars orders values as statistics do: floats are left out, whose NaN is larger than all numbers to Polars.
    """
    inner = expr.meta.pop()
    if len(inner) == 1 and (name := _column(inner[0])) is not None:
        if inner[0].is_null().meta.eq(expr):
            return name, "is_null", None
        return (name, "is_not_null", None) if inner[0].is_not_null().meta.eq(expr) else None
    if len(inner) != 2:
        return None
    for column, literal in (inner, inner[::-1]):
        name = _column(column)
        if name is None or not literal.meta.is_literal():
            continue
        value = pl.select(literal).item()
        if type(value) not in (int, str):
            return None
        return next(((name, symbol, value) for symbol, op in _OPS.items() if op(column, literal).meta.eq(expr)), None)
    return None


def _column(expr: pl.Expr) -> str | None:
    """The name of a bare column."""
    names = expr.meta.root_names()
    return names[0] if len(names) == 1 and pl.col(names[0]).meta.eq(expr) else None


def clause_of_cond(condition: Cond) -> Clause | None:
    """As `clause_of_expr`, of a `dataio.cond` condition."""
    match condition:
        case Compare(of=of, op=op, value=value) if op != "ne" and type(value) in (int, float, str):
            return of.field, _SYMBOL_OF[op], value
        case IsNull(of=of):
            return of.field, "is_null", None
        case Not(inner=IsNull(of=of)):
            return of.field, "is_not_null", None
    return None
