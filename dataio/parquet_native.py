"""Conditions on Parquet columns as Polars expressions, and against the statistics of row groups.

What is built here gives what `parquet_expr.holds` gives, and is never null. Where Polars differs, that is made up for: NaN is larger than all numbers
and equal to itself there, and integers are compared with floats in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.types as kinds

from .parquet_expr import (
    ORDER,
    Both,
    Column,
    Compare,
    Either,
    In,
    Node,
    Not,
    Null,
    Term,
    Text,
    compared,
    kind_of,
)

_INTEGERS = {
    pa.int8(): pl.Int8, pa.int16(): pl.Int16, pa.int32(): pl.Int32, pa.int64(): pl.Int64,
    pa.uint8(): pl.UInt8, pa.uint16(): pl.UInt16, pa.uint32(): pl.UInt32, pa.uint64(): pl.UInt64,
}  # fmt: skip
_FLOATS: dict[Any, tuple[Any, Any]] = {pa.float32(): (pl.Float32, np.float32), pa.float64(): (pl.Float64, np.float64)}


class NoNativeFormError(Exception):
    """A part of a condition has to be tested row by row."""


def native(node: Node, column: Callable[[str], tuple[pl.Expr, pa.DataType]]) -> pl.Expr:
    """A condition as a Polars expression.

    Args:
        column: gives a column by name: the expression that reads it, and its Arrow type.

    Raises:
        NoNativeFormError: of a column whose Python values Polars does not compare (decimals, times of some units, half floats, ...).
    """
    match node:
        case Both(left, right):
            return native(left, column) & native(right, column)
        case Either(left, right):
            return native(left, column) | native(right, column)
        case Not(inner):
            return ~native(inner, column)
    read, kind = column(node.column)
    match node:
        case Null(_, negated):
            return read.is_not_null() if negated else read.is_null()
        case Compare(_, op, None):
            if op not in ("==", "!="):
                return pl.lit(value=False)
            return read.is_null() if op == "==" else read.is_not_null()
        case Text(_, op, value):
            return _text(read, kind, op, value)
    leaf, found = _comparable(read, kind)
    match node:
        case Compare(_, op, value):
            return _compare(leaf, found, op, value).fill_null(op == "!=")
        case In(_, values, negated):
            inside = _in(leaf, found, values).fill_null(None in values)
            return ~inside if negated else inside
        case Column():
            return _truth(leaf, found).fill_null(value=False)
    raise AssertionError(node)


def _comparable(read: pl.Expr, kind: pa.DataType) -> tuple[pl.Expr, pa.DataType]:
    """The column in a form that is compared, and the type of that."""
    if kinds.is_dictionary(kind) and _is_text(kind.value_type):
        return read.cast(pl.String), pa.string()
    if kinds.is_date32(kind):
        return read.to_physical(), pa.int32()
    if kinds.is_timestamp(kind) and kind.unit != "s":
        return read.to_physical(), pa.int64()
    if kind in _INTEGERS or kind in _FLOATS or kinds.is_boolean(kind) or _is_text(kind) or _is_bytes(kind):
        return read, kind
    raise NoNativeFormError


def _is_text(kind: pa.DataType) -> bool:
    return bool(kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_string_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(kinds.is_binary(kind) or kinds.is_large_binary(kind) or kinds.is_binary_view(kind))


def _compare(read: pl.Expr, kind: pa.DataType, op: str, value: Any) -> pl.Expr:
    """The comparison, null where the column is."""
    numeric = kind in _INTEGERS or kind in _FLOATS
    if numeric and kind_of(value) == "number":
        return _integer(read, kind, op, value) if kind in _INTEGERS else _float(read, kind, op, value)
    if kinds.is_boolean(kind) and isinstance(value, bool) and op in ("==", "!="):
        return _ordered(read, op, pl.lit(value))
    if _is_text(kind) and isinstance(value, str):
        return _ordered(read, op, pl.lit(value))
    if _is_bytes(kind) and isinstance(value, (str, bytes)):
        return _ordered(read, op, pl.lit(value.encode() if isinstance(value, str) else value))
    return pl.lit(op == "!=")


def _ordered(read: pl.Expr, op: str, value: pl.Expr) -> pl.Expr:
    found: pl.Expr = ORDER[op](read, value)  # type: ignore[assignment]
    return found


def _integer(read: pl.Expr, kind: pa.DataType, op: str, value: Any) -> pl.Expr:
    if isinstance(value, float):
        if not math.isfinite(value):
            return _beyond(read, op, value)
        floor = math.floor(value)
        if floor != value:
            if op in ("==", "!="):
                return pl.lit(op == "!=")
            op = ">" if op in (">", ">=") else "<="
        value = floor
    signed = kinds.is_signed_integer(kind)
    low, high = (-(1 << (kind.bit_width - 1)), (1 << (kind.bit_width - 1)) - 1) if signed else (0, (1 << kind.bit_width) - 1)
    if not low <= value <= high:
        return _beyond(read, op, value)
    return _ordered(read, op, pl.lit(value, dtype=_INTEGERS[kind]))


def _beyond(read: pl.Expr, op: str, value: Any) -> pl.Expr:
    """The comparison with a number that lies outside the column's type: the same for all values, not for null."""
    if op == "!=":
        return pl.lit(value=True)
    return read.is_not_null() if ORDER[op](0, value) else pl.lit(value=False)


def _float(read: pl.Expr, kind: pa.DataType, op: str, value: Any) -> pl.Expr:
    dtype, scalar = _FLOATS[kind]
    if value != value:
        return pl.lit(op == "!=")
    exact, near = _near(value, scalar)
    if not exact:  # no number of the column lies between `near` and the value
        if op in ("==", "!="):
            return pl.lit(op == "!=")
        op = ">" if op in (">", ">=") else "<="
    found = _ordered(read, op, pl.lit(float(near), dtype=dtype))
    return found & read.is_not_nan() if op in (">", ">=") else found


def _near(value: Any, scalar: Any) -> tuple[bool, Any]:
    """Whether a number is one of a float type, and it or the largest one below."""
    with np.errstate(over="ignore"):
        try:
            nearest = scalar(value)
        except OverflowError:
            nearest = scalar(math.inf if value > 0 else -math.inf)
        if float(nearest) == value:
            return True, nearest
        return False, nearest if float(nearest) < value else np.nextafter(nearest, scalar(-math.inf))


def _in(read: pl.Expr, kind: pa.DataType, values: tuple[Any, ...]) -> pl.Expr:
    """Membership, null or true where the column is null."""
    tests = [_compare(read, kind, "==", value) for value in values if value is not None]
    if len(tests) <= 4:
        found = pl.lit(value=False)
        for test in tests:
            found = found | test
        return pl.when(read.is_null()).then(None).otherwise(found)
    if kind in _INTEGERS:
        dtype: Any = _INTEGERS[kind]
        top = 1 << (kind.bit_width - kinds.is_signed_integer(kind))
        low = -top if kinds.is_signed_integer(kind) else 0
        usable: list[Any] = [int(v) for v in values if kind_of(v) == "number" and (isinstance(v, int) or v.is_integer()) and low <= v < top]
    elif kind in _FLOATS:
        dtype, scalar = _FLOATS[kind]
        usable = [float(v) for v in values if kind_of(v) == "number" and v == v and _near(v, scalar)[0]]
    elif kinds.is_boolean(kind):
        dtype, usable = pl.Boolean, [v for v in values if isinstance(v, bool)]
    elif _is_text(kind):
        dtype, usable = pl.String, [v for v in values if isinstance(v, str)]
    else:
        dtype, usable = pl.Binary, [v.encode() if isinstance(v, str) else v for v in values if isinstance(v, (str, bytes))]
    found = read.is_in(pl.Series(usable, dtype=dtype).implode())
    return pl.when(read.is_null()).then(None).otherwise(found)


def _truth(read: pl.Expr, kind: pa.DataType) -> pl.Expr:
    if kinds.is_boolean(kind):
        return read
    empty: Any = "" if _is_text(kind) else b"" if _is_bytes(kind) else 0
    return read != pl.lit(empty)


def _text(read: pl.Expr, kind: pa.DataType, op: str, value: Any) -> pl.Expr:
    found = pl.lit(value=False)
    if kinds.is_dictionary(kind) and _is_text(kind.value_type):
        read, kind = read.cast(pl.String), pa.string()
    if (kinds.is_dictionary(kind) and not kinds.is_primitive(kind.value_type)):
        raise NoNativeFormError
    if kinds.is_fixed_size_binary(kind):
        raise NoNativeFormError
    if _is_text(kind) and isinstance(value, str):
        if op == "contains":
            found = read.str.contains(value, literal=True)
        else:
            found = read.str.starts_with(value) if op == "starts_with" else read.str.ends_with(value)
    elif _is_bytes(kind) and op == "contains" and isinstance(value, (str, bytes)):
        found = read.bin.contains(value.encode() if isinstance(value, str) else value)
    return found.fill_null(value=False)


# ----------------------------------------------------------------- statistics


def may_hold(pruning: list[list[Term]], chunk: Callable[[str], tuple[Any, pa.DataType] | None], rows: int) -> bool:
    """Whether rows of a row group may satisfy clauses, by what the footer says of its columns.

    Args:
        pruning: as `parquet_expr.prunable` gives it.
        chunk: gives the metadata and the Arrow type of a column, None where it has no single chunk.
        rows: of the row group.
    """
    return any(all(_term_may(term, chunk(term[0]), rows) for term in clause) for clause in pruning)


def _term_may(term: Term, found: tuple[Any, pa.DataType] | None, rows: int) -> bool:
    if found is None or not found[0].is_stats_set:
        return True
    _, op, value = term
    statistics, kind = found[0].statistics, found[1]
    nulls = statistics.null_count if statistics.has_null_count else None
    if op in ("is_null", "is_not_null"):
        op, value = ("==" if op == "is_null" else "!="), None
    if value is None:
        if op not in ("==", "!="):
            return False
        return nulls is None or (nulls > 0 if op == "==" else nulls < rows)
    if op == "!=":
        return True  # seldom ruled out, and not where NaN may hide between equal bounds
    if nulls is not None and nulls == rows:
        return False
    if not statistics.has_min_max or not (
        kind in _INTEGERS or kind in _FLOATS or _is_text(kind) or (kinds.is_dictionary(kind) and _is_text(kind.value_type))
    ):
        return True
    low, high = statistics.min, statistics.max
    if kind_of(low) != kind_of(value) or low != low or high != high:
        return True
    if op == "==":
        return compared(low, "<=", value) and compared(high, ">=", value)
    return compared(low if op in ("<", "<=") else high, op, value)
