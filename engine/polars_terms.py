"""One column against one literal as a Polars expression that agrees with `expr.compare`, whatever the column's type.

Polars compares within a common type: it refuses a string against a number, rounds literals to the column's
precision, and orders NaN above everything. `expr.compare` follows Python. Every expression made here is true
or false, never null.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import polars as pl

# The comparison that remains right when the literal moves to the nearest value that the column can hold.
_AGAINST_NEXT_ABOVE = {"lt": "lt", "le": "lt", "gt": "ge", "ge": "ge"}
_AGAINST_NEXT_BELOW = {"lt": "le", "le": "le", "gt": "gt", "ge": "gt"}


def comparison(field: str, op: str, value: Any, dtype: pl.DataType) -> pl.Expr:
    """`field op value` for a column of type `dtype`."""
    if op == "ne":
        return ~comparison(field, "eq", value, dtype)
    column = pl.col(field)
    if value is None:
        return column.is_null() if op == "eq" else pl.lit(False)
    if dtype.is_decimal() or dtype.is_nested() or dtype == pl.Object:
        from .expr import compare

        return per_value(column, lambda found: compare(op, found, value))
    if isinstance(value, bool):
        return _plain(column, op, value) if op == "eq" and dtype == pl.Boolean else pl.lit(False)
    if isinstance(value, str):
        return _plain(as_text(column, dtype), op, value) if is_text(dtype) else pl.lit(False)
    if value != value:  # NaN; isnan refuses integers beyond every float
        return pl.lit(False)
    if dtype.is_integer():
        return _integers(column, op, value, dtype)
    if dtype.is_float():
        return _floats(column, op, value)
    return pl.lit(False)


def truthy(field: str, dtype: pl.DataType) -> pl.Expr:
    """Python's truth of a column of type `dtype`; null is false."""
    column = pl.col(field)
    if dtype == pl.Boolean:
        return column.fill_null(False)
    if dtype.is_integer() or dtype.is_float():
        return (column != 0).fill_null(False)
    if is_text(dtype):
        return (as_text(column, dtype) != "").fill_null(False)
    if dtype == pl.Binary:
        return (column != b"").fill_null(False)
    if dtype == pl.Duration:
        return (column != pl.duration()).fill_null(False)
    if dtype.is_decimal() or dtype.is_nested() or dtype == pl.Object:
        return per_value(column, bool)
    return column.is_not_null()  # dates and times; a column of nulls is false throughout


def is_text(dtype: pl.DataType) -> bool:
    return dtype in (pl.String, pl.Categorical, pl.Enum)


def as_text(column: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    return column if dtype == pl.String else column.cast(pl.String)


def per_value(column: pl.Expr, test: Callable[[Any], bool]) -> pl.Expr:
    """The slow way, for types that Polars compares differently from Python."""

    def each(values: pl.Series) -> pl.Series:
        return pl.Series(values.name, [test(value) for value in values.to_list()], pl.Boolean)

    return column.map_batches(each, return_dtype=pl.Boolean, is_elementwise=True)


def _plain(column: pl.Expr, op: str, value: Any) -> pl.Expr:
    literal = value if isinstance(value, pl.Expr) else pl.lit(value)
    if op == "eq":
        return (column == literal).fill_null(False)
    ordered = {
        "lt": column < literal,
        "le": column <= literal,
        "gt": column > literal,
        "ge": column >= literal,
    }
    return ordered[op].fill_null(False)


def _integers(column: pl.Expr, op: str, value: int | float, dtype: pl.DataType) -> pl.Expr:
    """An integer column against a number: the literal becomes an integer of the column's own type."""
    if isinstance(value, float) and not value.is_integer():
        if op == "eq":
            return pl.lit(False)
        if math.isinf(value):
            return column.is_not_null() if (op in ("lt", "le")) == (value > 0) else pl.lit(False)
        value, op = math.floor(value), _AGAINST_NEXT_BELOW[op]
    value = int(value)
    low, high = _bounds(dtype)
    if low <= value <= high:
        return _plain(column, op, pl.lit(value, dtype))
    if op == "eq":
        return pl.lit(False)
    return column.is_not_null() if (op in ("lt", "le")) == (value > high) else pl.lit(False)


def _bounds(dtype: pl.DataType) -> tuple[int, int]:
    name = str(dtype)
    bits = int(name.lstrip("UInt"))
    return (0, 2**bits - 1) if name.startswith("U") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _floats(column: pl.Expr, op: str, value: int | float) -> pl.Expr:
    """A float column against a number, in double precision; NaN is neither equal nor ordered."""
    column = column.cast(pl.Float64)
    try:
        near = float(value)
    except OverflowError:  # an integer beyond every finite float
        near = math.inf if value > 0 else -math.inf
    if near != value:  # an integer between two floats: no float equals it
        if op == "eq":
            return pl.lit(False)
        op = (_AGAINST_NEXT_ABOVE if near > value else _AGAINST_NEXT_BELOW)[op]
    result = _plain(column, op, near)
    return result & column.is_not_nan().fill_null(False) if op in ("gt", "ge") else result
