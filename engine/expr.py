"""Expressions: one tree, four readers (a Polars expression, whole columns, a per-record Python value, canonical JSON).

`Col`, `ParamRef` and `ConstValue` are values; everything below `Cond` is a condition. Comparison rules are
those of `docs/arch.md`, "Conditions": equality is type-aware (1 == 1.0, but True equals only True), ordering
is defined between two numbers or two strings and false for any other pair, a missing field is null.
"""

from __future__ import annotations

import numbers
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .errors import PlanError, unknown_columns

if TYPE_CHECKING:
    import polars as pl

COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}
SYMBOLS = {"==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}
_PRINTED = {name: symbol for symbol, name in SYMBOLS.items()}


def _checked_name(what: str, name: Any) -> str:
    if not isinstance(name, str):
        raise TypeError(f"{what} must be a str, got {name!r}")
    if not name:
        raise ValueError(f"{what} must not be empty")
    return name


def _checked_literal(value: Any) -> Any:
    if value is not None and not isinstance(value, (bool, int, float, str)):
        raise TypeError(f"a condition compares with a bool, int, float, str or None, got {value!r}")
    return value


@dataclass(frozen=True, slots=True)
class Col:
    """The record's field `field`."""

    field: str

    def __post_init__(self) -> None:
        _checked_name("a column name", self.field)

    def __repr__(self) -> str:
        return f'Param("{self.field}")'

    def __str__(self) -> str:
        return f"col:{self.field}"

    def canonical(self) -> dict[str, Any]:
        return {"_slot_ref": self.field}

    def eq(self, value: Any) -> Cond:
        return Compare(self, "eq", value)

    def ne(self, value: Any) -> Cond:
        return Compare(self, "ne", value)

    def lt(self, value: Any) -> Cond:
        return Compare(self, "lt", value)

    def le(self, value: Any) -> Cond:
        return Compare(self, "le", value)

    def gt(self, value: Any) -> Cond:
        return Compare(self, "gt", value)

    def ge(self, value: Any) -> Cond:
        return Compare(self, "ge", value)

    def is_null(self) -> Cond:
        return IsNull(self)

    def is_not_null(self) -> Cond:
        return Not(IsNull(self))


@dataclass(frozen=True, slots=True)
class ParamRef:
    """A value given once per pipeline by `configure(name=...)`."""

    name: str

    def __post_init__(self) -> None:
        _checked_name("a parameter name", self.name)

    def __str__(self) -> str:
        return f"param:{self.name}"

    def canonical(self) -> dict[str, Any]:
        return {"_param_ref": self.name}


@dataclass(frozen=True, slots=True)
class ConstValue:
    """A literal, written out; the same as the bare value."""

    value: Any

    def __post_init__(self) -> None:
        if isinstance(self.value, (Col, ParamRef, ConstValue)):
            raise TypeError(f"const takes a plain value, got {self.value!r}")


class Cond:
    """A condition: combine with `&`, `|`, `~`."""

    __slots__ = ()

    def __and__(self, other: Any) -> Cond:
        return All((self, _cond(other)))

    def __or__(self, other: Any) -> Cond:
        return AnyOf((self, _cond(other)))

    def __invert__(self) -> Cond:
        return Not(self)

    def eq(self, value: Any) -> Cond:
        return self._compared("eq", value)

    def ne(self, value: Any) -> Cond:
        return self._compared("ne", value)

    def lt(self, value: Any) -> Cond:
        return self._compared("lt", value)

    def le(self, value: Any) -> Cond:
        return self._compared("le", value)

    def gt(self, value: Any) -> Cond:
        return self._compared("gt", value)

    def ge(self, value: Any) -> Cond:
        return self._compared("ge", value)

    def is_null(self) -> Cond:
        return IsNull(self._field("is_null"))

    def is_not_null(self) -> Cond:
        return Not(IsNull(self._field("is_not_null")))

    def is_in(self, values: Iterable[Any]) -> Cond:
        return IsIn(self._field("is_in"), tuple(values))

    def _compared(self, op: str, value: Any) -> Cond:
        raise ValueError(f"{self} is already a finished condition; {op}() compares a column, shape() or ndim()")

    def _field(self, method: str) -> Col:
        raise ValueError(f"{method}() asks about a column, not about {self}")

    def columns(self) -> frozenset[str]:
        """The record fields this condition reads."""
        raise NotImplementedError

    def of_record(self, get: Callable[[str], Any], array: Any = None) -> bool:
        """The value for one record: `get(field)` gives a field (None when missing), `array` the decoded row."""
        raise NotImplementedError

    def over(self, column: Callable[[str], Sequence[Any]], length: int) -> np.ndarray:
        """bool[length], one value per row: `column(field)` gives a field's values (None where missing).

        Raises:
            TypeError: a value that is no bool, number, str or None.
        """
        raise NotImplementedError

    def needs_tensor(self) -> bool:
        """True when `shape` or `ndim` stands in it, which are known after decoding."""
        return False

    def to_polars(self, schema: Mapping[str, pl.DataType]) -> pl.Expr:
        """The same condition as a Polars expression over columns of those names and types.

        The result is true or false in every row, never null, and agrees with `of_record`.
        """
        raise NotImplementedError

    def canonical(self) -> dict[str, Any]:
        """Nested plain dicts, equal for equal conditions; part of a plan's signature."""
        raise NotImplementedError


def _cond(value: Any) -> Cond:
    if not isinstance(value, Cond):
        raise TypeError(f"conditions combine with conditions, got {value!r}")
    return value


def _node(op: str, **args: Any) -> dict[str, Any]:
    return {"_op": op, "_args": args}


def compare(op: str, left: Any, right: Any) -> bool:
    """The one rule for comparing two field values."""
    if op in ("eq", "ne"):
        same = (isinstance(left, bool) == isinstance(right, bool)) and bool(left == right)
        return same if op == "eq" else not same
    ordered = (_is_number(left) and _is_number(right)) or (isinstance(left, str) and isinstance(right, str))
    if not ordered or left != left or right != right:  # NaN, which a Decimal refuses to be ordered with
        return False
    return bool(COMPARISONS[op](left, right))


def _is_number(value: Any) -> bool:
    return not isinstance(value, bool) and hasattr(value, "__lt__") and hasattr(value, "__float__")


def _checked_values(of: Col, column: Callable[[str], Sequence[Any]]) -> tuple[Sequence[Any], set[type]]:
    """A column's values and their Python types."""
    values = column(of.field)
    kinds = set(map(type, values))
    for kind in kinds - _PLAIN_KINDS:
        if not issubclass(kind, (bool, int, float, str, np.generic, numbers.Number)):
            raise TypeError(f"a condition reads field {of.field!r}, which holds a {kind.__name__}: it takes bool, numbers, str or None")
    return values, kinds


_PLAIN_KINDS = {bool, int, float, str, type(None)}
_NUMBERS = {int, float}


def _dtype(of: Col, schema: Mapping[str, pl.DataType]) -> pl.DataType:
    if of.field not in schema:
        raise unknown_columns([of.field], schema, reader=f"the condition on {of}")
    return schema[of.field]


@dataclass(frozen=True, slots=True)
class Truthy(Cond):
    """The field is true as Python counts it."""

    of: Col

    def _compared(self, op: str, value: Any) -> Cond:
        return Compare(self.of, op, value)

    def _field(self, method: str) -> Col:
        return self.of

    def columns(self) -> frozenset[str]:
        return frozenset((self.of.field,))

    def of_record(self, get: Callable[[str], Any], array: Any = None) -> bool:
        return bool(get(self.of.field))

    def over(self, column: Callable[[str], Sequence[Any]], length: int) -> np.ndarray:
        values, _ = _checked_values(self.of, column)
        return np.fromiter(map(bool, values), np.bool_, length)

    def to_polars(self, schema: Mapping[str, pl.DataType]) -> pl.Expr:
        from .polars_terms import truthy

        return truthy(self.of.field, _dtype(self.of, schema))

    def canonical(self) -> dict[str, Any]:
        return _node("field_truthy", field=self.of.canonical())

    def __str__(self) -> str:
        return str(self.of)


@dataclass(frozen=True, slots=True)
class Compare(Cond):
    """A field against a literal."""

    of: Col
    op: str
    value: Any

    def __post_init__(self) -> None:
        _checked_literal(self.value)
        if self.op not in COMPARISONS:
            raise ValueError(f"unknown comparison {self.op!r}; known: {', '.join(COMPARISONS)}")

    def columns(self) -> frozenset[str]:
        return frozenset((self.of.field,))

    def of_record(self, get: Callable[[str], Any], array: Any = None) -> bool:
        return compare(self.op, get(self.of.field), self.value)

    def over(self, column: Callable[[str], Sequence[Any]], length: int) -> np.ndarray:
        values, kinds = _checked_values(self.of, column)
        own = type(self.value)
        if (kinds <= _NUMBERS and own in _NUMBERS) or (kinds == {str} and own is str):
            test, value = COMPARISONS[self.op], self.value  # every pair is comparable as it is
            return np.fromiter((test(v, value) for v in values), np.bool_, length)
        return np.fromiter((compare(self.op, v, self.value) for v in values), np.bool_, length)

    def to_polars(self, schema: Mapping[str, pl.DataType]) -> pl.Expr:
        from .polars_terms import comparison

        return comparison(self.of.field, self.op, self.value, _dtype(self.of, schema))

    def canonical(self) -> dict[str, Any]:
        return _node("field_cmp", field=self.of.canonical(), cmp=self.op, value=self.value)

    def __str__(self) -> str:
        return f"{self.of} {_PRINTED[self.op]} {self.value!r}"


@dataclass(frozen=True, slots=True)
class IsNull(Cond):
    of: Col

    def columns(self) -> frozenset[str]:
        return frozenset((self.of.field,))

    def of_record(self, get: Callable[[str], Any], array: Any = None) -> bool:
        return get(self.of.field) is None

    def over(self, column: Callable[[str], Sequence[Any]], length: int) -> np.ndarray:
        return np.fromiter((v is None for v in column(self.of.field)), np.bool_, length)

    def to_polars(self, schema: Mapping[str, pl.DataType]) -> pl.Expr:
        import polars as pl

        return pl.col(self.of.field).is_null()

    def canonical(self) -> dict[str, Any]:
        return _node("field_is_null", field=self.of.canonical())

    def __str__(self) -> str:
        return f"{self.of} is null"


@dataclass(frozen=True, slots=True)
class IsIn(Cond):
    of: Col
    values: tuple[Any, ...]

    def __post_init__(self) -> None:
        for value in self.values:
            _checked_literal(value)

    def columns(self) -> frozenset[str]:
        return frozenset((self.of.field,))

    def of_record(self, get: Callable[[str], Any], array: Any = None) -> bool:
        found = get(self.of.field)
        return any(compare("eq", found, value) for value in self.values)

    def over(self, column: Callable[[str], Sequence[Any]], length: int) -> np.ndarray:
        return AnyOf(tuple(Compare(self.of, "eq", value) for value in self.values)).over(column, length)

    def to_polars(self, schema: Mapping[str, pl.DataType]) -> pl.Expr:
        return AnyOf(tuple(Compare(self.of, "eq", value) for value in self.values)).to_polars(schema)

    def canonical(self) -> dict[str, Any]:
        return _node("field_in", field=self.of.canonical(), values=list(self.values))

    def __str__(self) -> str:
        return f"{self.of} in {list(self.values)!r}"


@dataclass(frozen=True, slots=True)
class Measure(Cond):
    """One dimension (`axis` given) or the rank (`axis` None) of the decoded row against an integer.

    Alone (`op` None) it tests for non-zero. An axis out of range is false.
    """

    axis: int | None
    op: str | None = None
    value: int | None = None

    def _compared(self, op: str, value: Any) -> Cond:
        if self.op is not None:
            return Cond._compared(self, op, value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{self} compares with an integer, got {value!r}")
        return Measure(self.axis, op, value)

    def columns(self) -> frozenset[str]:
        return frozenset()

    def of_record(self, get: Callable[[str], Any], array: Any = None) -> bool:
        if array is None:
            raise PlanError(f"{self} needs a decoded tensor; it cannot stand in skip_when or active_when")
        if self.axis is None:
            found = array.ndim
        elif -array.ndim <= self.axis < array.ndim:
            found = array.shape[self.axis]
        else:
            return False
        return bool(found) if self.op is None else COMPARISONS[self.op](found, self.value)

    def over(self, column: Callable[[str], Sequence[Any]], length: int) -> np.ndarray:
        raise PlanError(f"{self} needs a decoded tensor; it cannot stand in skip_when or active_when")

    def needs_tensor(self) -> bool:
        return True

    def to_polars(self, schema: Mapping[str, pl.DataType]) -> pl.Expr:
        raise PlanError(f"{self} needs a decoded tensor; it cannot filter rows of a table")

    def canonical(self) -> dict[str, Any]:
        name = "ndim" if self.axis is None else "shape_dim"
        return _node(name, axis=self.axis, cmp=self.op, value=self.value)

    def __str__(self) -> str:
        what = "ndim" if self.axis is None else f"shape[{self.axis}]"
        return what if self.op is None else f"{what} {_PRINTED[self.op]} {self.value}"


@dataclass(frozen=True, slots=True)
class Not(Cond):
    inner: Cond

    def columns(self) -> frozenset[str]:
        return self.inner.columns()

    def of_record(self, get: Callable[[str], Any], array: Any = None) -> bool:
        return not self.inner.of_record(get, array)

    def over(self, column: Callable[[str], Sequence[Any]], length: int) -> np.ndarray:
        return ~self.inner.over(column, length)

    def needs_tensor(self) -> bool:
        return self.inner.needs_tensor()

    def to_polars(self, schema: Mapping[str, pl.DataType]) -> pl.Expr:
        return ~self.inner.to_polars(schema)

    def canonical(self) -> dict[str, Any]:
        return _node("not", inner=self.inner.canonical())

    def __str__(self) -> str:
        return f"not ({self.inner})"


@dataclass(frozen=True, slots=True)
class All(Cond):
    """True when every child is; true without children."""

    children: tuple[Cond, ...]

    def columns(self) -> frozenset[str]:
        return frozenset().union(*(c.columns() for c in self.children))

    def of_record(self, get: Callable[[str], Any], array: Any = None) -> bool:
        return all(c.of_record(get, array) for c in self.children)

    def over(self, column: Callable[[str], Sequence[Any]], length: int) -> np.ndarray:
        found = np.full(length, True)
        for child in self.children:
            np.logical_and(found, child.over(column, length), out=found)
        return found

    def needs_tensor(self) -> bool:
        return any(c.needs_tensor() for c in self.children)

    def to_polars(self, schema: Mapping[str, pl.DataType]) -> pl.Expr:
        import polars as pl

        return pl.all_horizontal(*(c.to_polars(schema) for c in self.children)) if self.children else pl.lit(True)

    def canonical(self) -> dict[str, Any]:
        return _node("all", children=[c.canonical() for c in self.children])

    def __str__(self) -> str:
        return " and ".join(f"({c})" for c in self.children) or "true"


@dataclass(frozen=True, slots=True)
class AnyOf(Cond):
    """True when one child is; false without children."""

    children: tuple[Cond, ...]

    def columns(self) -> frozenset[str]:
        return frozenset().union(*(c.columns() for c in self.children))

    def of_record(self, get: Callable[[str], Any], array: Any = None) -> bool:
        return any(c.of_record(get, array) for c in self.children)

    def over(self, column: Callable[[str], Sequence[Any]], length: int) -> np.ndarray:
        found = np.full(length, False)
        for child in self.children:
            np.logical_or(found, child.over(column, length), out=found)
        return found

    def needs_tensor(self) -> bool:
        return any(c.needs_tensor() for c in self.children)

    def to_polars(self, schema: Mapping[str, pl.DataType]) -> pl.Expr:
        import polars as pl

        return pl.any_horizontal(*(c.to_polars(schema) for c in self.children)) if self.children else pl.lit(False)

    def canonical(self) -> dict[str, Any]:
        return _node("any", children=[c.canonical() for c in self.children])

    def __str__(self) -> str:
        return " or ".join(f"({c})" for c in self.children) or "false"


@dataclass(frozen=True, slots=True)
class ConstCond(Cond):
    value: bool

    def columns(self) -> frozenset[str]:
        return frozenset()

    def of_record(self, get: Callable[[str], Any], array: Any = None) -> bool:
        return self.value

    def over(self, column: Callable[[str], Sequence[Any]], length: int) -> np.ndarray:
        return np.full(length, self.value)

    def to_polars(self, schema: Mapping[str, pl.DataType]) -> pl.Expr:
        import polars as pl

        return pl.lit(self.value)

    def canonical(self) -> dict[str, Any]:
        return _node("const", value=self.value)

    def __str__(self) -> str:
        return str(self.value).lower()


def folded(condition: Cond) -> Cond:
    """The condition with its constant parts worked out; a `ConstCond` when nothing else is left."""
    match condition:
        case Not(inner=inner):
            inner = folded(inner)
            return ConstCond(not inner.value) if isinstance(inner, ConstCond) else Not(inner)
        case All(children=children) | AnyOf(children=children):
            ends = isinstance(condition, AnyOf)  # one true child ends an `any`, one false child an `all`
            kept = []
            for child in map(folded, children):
                if not isinstance(child, ConstCond):
                    kept.append(child)
                elif child.value == ends:
                    return ConstCond(ends)
            if len(kept) < 2:
                return kept[0] if kept else ConstCond(not ends)
            return type(condition)(tuple(kept))
    return condition


def field_getter(record: Any) -> Callable[[str], Any]:
    """How conditions read a record: mapping keys, else attributes; a missing field is None."""
    if isinstance(record, Mapping):
        return record.get
    return lambda name: getattr(record, name, None)
