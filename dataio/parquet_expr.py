"""Conditions on the columns of Parquet files: `dataio.parquet.col("height") > 2`.

One tree with three readers: `holds` tests Python values row by row and defines what a condition means; `parquet_native` builds a
Polars expression that gives the same for the types that it covers; `clauses` is the disjunctive form that `explain` shows and
that row groups are ruled out by.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NoReturn

MAX_CLAUSES = 64
"""Most OR-clauses that combinations of conditions are multiplied out to."""

ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
INVERSE = {"==": "!=", "!=": "==", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}

_DECIMAL = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?")

Term = tuple[str, str, Any]
"""(column, op, value) as `explain` shows it."""


# ---------------------------------------------------------------------- nodes


@dataclass(frozen=True, slots=True)
class Column:
    """A bare column: whether its value is true, as Python takes it; null is not."""

    column: str


@dataclass(frozen=True, slots=True)
class Compare:
    """A column against a literal; `op` is a key of `ORDER`."""

    column: str
    op: str
    value: Any


@dataclass(frozen=True, slots=True)
class Text:
    """`contains`, `starts_with` or `ends_with`."""

    column: str
    op: str
    value: Any


@dataclass(frozen=True, slots=True)
class Null:
    """Whether a column is null, or with `negated` is not."""

    column: str
    negated: bool


@dataclass(frozen=True, slots=True)
class In:
    """Whether a column equals one of `values`, or with `negated` none."""

    column: str
    values: tuple[Any, ...]
    negated: bool


@dataclass(frozen=True, slots=True)
class Both:
    """And."""

    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class Either:
    """Or."""

    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class Not:
    """The plain opposite of what cannot be inverted: true where that is false, for null too."""

    inner: Node


Node = Column | Compare | Text | Null | In | Both | Either | Not


def inverted(node: Node) -> Node | None:
    """The node with the opposite comparisons, by De Morgan; None where a part has none."""
    match node:
        case Compare(column, op, value):
            return Compare(column, INVERSE[op], value)
        case Null(column, negated):
            return Null(column, not negated)
        case In(column, values, negated):
            return In(column, values, not negated)
        case Both(left, right) | Either(left, right):
            a, b = inverted(left), inverted(right)
            if a is None or b is None:
                return None
            return Either(a, b) if isinstance(node, Both) else Both(a, b)
    return None


def columns_in(node: Node) -> Iterator[str]:
    """The columns that a condition reads, in order, with repetitions."""
    match node:
        case Both(left, right) | Either(left, right):
            yield from columns_in(left)
            yield from columns_in(right)
        case Not(inner):
            yield from columns_in(inner)
        case _:
            yield node.column


# ------------------------------------------------------------------ row by row


def holds(node: Node, row: Callable[[str], Any]) -> bool:
    """Whether a row, given as column -> Python value (as `read_parquet` gives them), satisfies a condition."""
    match node:
        case Compare(column, op, value):
            return compared(row(column), op, value)
        case Text(column, op, value):
            return _text(row(column), op, value)
        case Null(column, negated):
            return (row(column) is None) != negated
        case In(column, values, negated):
            found = row(column)
            return any(compared(found, "==", value) for value in values) != negated
        case Both(left, right):
            return holds(left, row) and holds(right, row)
        case Either(left, right):
            return holds(left, row) or holds(right, row)
        case Not(inner):
            return not holds(inner, row)
    found = row(node.column)
    return isinstance(found, Decimal) or bool(found)  # a decimal is text, which is not empty


def compared(found: Any, op: str, value: Any) -> bool:
    """A value of a column against a literal; exact for integers against floats.

    Null is only unequal to values, and equal to None; values of unlike kinds (number, bool, text, bytes) are unequal. Bool has
    no order, NaN equals nothing.
    """
    if value is None:
        return (found is None) == (op == "==") if op in ("==", "!=") else False
    if found is None:
        return op == "!="
    if isinstance(found, bytes) and isinstance(value, str):
        value = value.encode()
    if isinstance(found, Decimal):
        if not isinstance(value, str) or not _DECIMAL.fullmatch(value):
            return op == "!="
        return ORDER[op](found, Decimal(value))
    kind = kind_of(found)
    if kind is None or kind != kind_of(value) or (kind == "bool" and op not in ("==", "!=")):
        return op == "!="
    return ORDER[op](found, value)


def kind_of(value: Any) -> str | None:
    """What a value may be compared with: number, bool, text, bytes; None for lists and dicts."""
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, (int, float)):
        return "number"
    return "text" if isinstance(value, str) else "bytes" if isinstance(value, bytes) else None


def _text(found: Any, op: str, value: Any) -> bool:
    if isinstance(found, bytes) and op == "contains":
        value = value.encode() if isinstance(value, str) else value
        return isinstance(value, bytes) and value in found
    if not isinstance(found, str) or not isinstance(value, str):
        return False
    return value in found if op == "contains" else found.startswith(value) if op == "starts_with" else found.endswith(value)


# -------------------------------------------------------------------- clauses


def clauses(node: Node) -> list[list[Term]] | None:
    """A condition as OR of ANDs; None where it has no such form, or only one of more than `MAX_CLAUSES` clauses."""
    match node:
        case Compare(column, op, value) | Text(column, op, value):
            return [[(column, op, value)]]
        case Null(column, negated):
            return [[(column, "is_not_null" if negated else "is_null", None)]]
        case In(column, values, False):
            return [[(column, "==", value)] for value in values]
        case In(column, values, True):
            return [[(column, "!=", value) for value in values]]
        case Both(left, right) | Either(left, right):
            a, b = clauses(left), clauses(right)
            if a is None or b is None:
                return None
            if (len(a) + len(b) if isinstance(node, Either) else len(a) * len(b)) > MAX_CLAUSES:
                return None
            return a + b if isinstance(node, Either) else [x + [t for t in y if t not in x] for x in a for y in b]
    return None


def prunable(found: list[list[Term]] | None) -> list[list[Term]] | None:
    """The part of the clauses that statistics can decide: those without text searches; None when that is nothing."""
    if found is None:
        return None
    kept: list[list[Term]] = []
    for clause in found:
        terms = [term for term in clause if term[1] not in ("contains", "starts_with", "ends_with")]
        if not terms:
            return None
        kept.append(terms)
    return [terms for at, terms in enumerate(kept) if not any(_implied(terms, at, kept))]


def _implied(terms: list[Term], at: int, kept: list[list[Term]]) -> Iterator[bool]:
    """Whether other clauses hold wherever this one does."""
    for other_at, other in enumerate(kept):
        if other_at != at and all(term in terms for term in other):
            yield len(other) < len(terms) or other_at < at


# ------------------------------------------------------------------- public


class ParquetExpr:
    """A condition on columns; made by `dataio.parquet.col`, combined by `&`, `|` and `~`. Immutable, not hashable.

    A bare column is true where its value is true, as in Python. `==`, `<`, `<=`, `>` and `>=` are false for null, `!=` and
    `not_in` are true; None as a literal stands for null. Numbers compare with numbers, exactly; a literal of another kind than
    the column matches nothing. Dates, times and durations compare as the integers they are stored as, decimals with numbers
    written as text ("1.50"). NaN equals nothing. `~` inverts comparisons, so that null stays out; where a part has no
    inverse (`contains`, `starts_with`, `ends_with`, a bare column), the result is the plain opposite, with null.
    """

    __slots__ = ("node",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, node: Node) -> None:
        self.node = node

    @staticmethod
    def col(name: str) -> ParquetExpr:
        """A column; "a.b" is field `b` of the struct `a`.

        Raises:
            TypeError: the name is no str, or empty.
        """
        if not isinstance(name, str) or not name:
            raise TypeError(f"a column name is a str that is not empty, got {name!r}")
        return ParquetExpr(Column(name))

    def _compare(self, op: str, other: Any) -> ParquetExpr:
        return ParquetExpr(Compare(self._column(op), op, literal(other)))

    def __eq__(self, other: object) -> ParquetExpr:  # type: ignore[override]
        return self._compare("==", other)

    def __ne__(self, other: object) -> ParquetExpr:  # type: ignore[override]
        return self._compare("!=", other)

    def __lt__(self, other: Any) -> ParquetExpr:
        return self._compare("<", other)

    def __le__(self, other: Any) -> ParquetExpr:
        return self._compare("<=", other)

    def __gt__(self, other: Any) -> ParquetExpr:
        return self._compare(">", other)

    def __ge__(self, other: Any) -> ParquetExpr:
        return self._compare(">=", other)

    def eq(self, other: Any) -> ParquetExpr:
        """`==`."""
        return self._compare("==", other)

    def ne(self, other: Any) -> ParquetExpr:
        """`!=`; true for null."""
        return self._compare("!=", other)

    def lt(self, other: Any) -> ParquetExpr:
        """`<`."""
        return self._compare("<", other)

    def le(self, other: Any) -> ParquetExpr:
        """`<=`."""
        return self._compare("<=", other)

    def gt(self, other: Any) -> ParquetExpr:
        """`>`."""
        return self._compare(">", other)

    def ge(self, other: Any) -> ParquetExpr:
        """`>=`."""
        return self._compare(">=", other)

    def is_null(self) -> ParquetExpr:
        """Where there is no value."""
        return ParquetExpr(Null(self._column("is_null"), negated=False))

    def is_not_null(self) -> ParquetExpr:
        """Where there is a value."""
        return ParquetExpr(Null(self._column("is_not_null"), negated=True))

    def is_in(self, values: Iterable[Any]) -> ParquetExpr:
        """Where the value is one of these; None among them stands for null.

        Raises:
            TypeError: a str or bytes, or an item that is no literal.
        """
        return ParquetExpr(In(self._column("is_in"), _literals(values), negated=False))

    def is_not_in(self, values: Iterable[Any]) -> ParquetExpr:
        """Where the value is none of these; true for null, unless None is among them."""
        return ParquetExpr(In(self._column("is_not_in"), _literals(values), negated=True))

    isin = is_in
    not_in = is_not_in

    def contains(self, value: str | bytes) -> ParquetExpr:
        """Where text, or bytes, have this part."""
        return ParquetExpr(Text(self._column("contains"), "contains", literal(value)))

    def starts_with(self, prefix: str) -> ParquetExpr:
        """Where text starts like this."""
        return ParquetExpr(Text(self._column("starts_with"), "starts_with", literal(prefix)))

    def ends_with(self, suffix: str) -> ParquetExpr:
        """Where text ends like this."""
        return ParquetExpr(Text(self._column("ends_with"), "ends_with", literal(suffix)))

    startswith = starts_with
    endswith = ends_with

    def is_between(self, lower: Any, upper: Any, *, closed: str = "both") -> ParquetExpr:
        """Where the value lies between two others.

        Args:
            lower, upper: the bounds.
            closed: which of them are included: "both", "left", "right" or "none".

        Raises:
            ValueError: another `closed`.
        """
        if closed not in ("both", "left", "right", "none"):
            raise ValueError(f'closed is "both", "left", "right" or "none", got {closed!r}')
        low = self._compare(">=" if closed in ("both", "left") else ">", lower)
        return low & self._compare("<=" if closed in ("both", "right") else "<", upper)

    between = is_between

    def __and__(self, other: ParquetExpr) -> ParquetExpr:
        return ParquetExpr(Both(self.node, _expression(other, "&").node))

    def __or__(self, other: ParquetExpr) -> ParquetExpr:
        return ParquetExpr(Either(self.node, _expression(other, "|").node))

    __rand__ = __and__  # only ever refuse: no other type gives expressions
    __ror__ = __or__

    def __invert__(self) -> ParquetExpr:
        return ParquetExpr(inverted(self.node) or Not(self.node))

    def __bool__(self) -> NoReturn:
        raise TypeError("a condition has no truth value; combine conditions with & and | (in parentheses), and negate with ~")

    def __repr__(self) -> str:
        return f"ParquetExpr({shown(self.node)})"

    def columns(self) -> list[str]:
        """The columns that are read, in order."""
        return list(dict.fromkeys(columns_in(self.node)))

    def _column(self, op: str) -> str:
        if not isinstance(self.node, Column):
            raise TypeError(f"{op} is asked of a column, not of the condition {shown(self.node)}")
        return self.node.column


def shown(node: Node) -> str:
    """A condition as text."""
    match node:
        case Compare(column, op, value):
            return f"{column} {op} {value!r}"
        case Text(column, op, value):
            return f"{column} {op} {value!r}"
        case Null(column, negated):
            return f"{column} is {'not ' if negated else ''}null"
        case In(column, values, negated):
            return f"{column} {'not ' if negated else ''}in [{', '.join(map(repr, values))}]"
        case Both(left, right):
            return f"({shown(left)} & {shown(right)})"
        case Either(left, right):
            return f"({shown(left)} | {shown(right)})"
        case Not(inner):
            return f"~({shown(inner)})"
    return node.column


def literal(value: Any) -> Any:
    """A value that columns can be compared with: None, bool, int, float, str or bytes; NumPy scalars become these.

    Raises:
        TypeError: anything else.
    """
    if isinstance(value, ParquetExpr):
        raise TypeError("a column is compared with a value, not with another column or condition")
    if type(value).__module__ == "numpy" and hasattr(value, "item") and not getattr(value, "ndim", 0):
        value = value.item()
    if isinstance(value, (bytearray, memoryview)):
        value = bytes(value)
    if value is not None and not isinstance(value, (bool, int, float, str, bytes)):
        raise TypeError(f"a column is compared with None, bool, int, float, str or bytes, got {type(value).__name__}")
    return value


def _literals(values: Any) -> tuple[Any, ...]:
    if isinstance(values, (str, bytes, bytearray, ParquetExpr)):
        raise TypeError(f"is_in takes several values, got {type(values).__name__}")
    return tuple(literal(value) for value in values)


def _expression(other: Any, op: str) -> ParquetExpr:
    if not isinstance(other, ParquetExpr):
        raise TypeError(f"{op} combines conditions, got {type(other).__name__}; write comparisons in parentheses")
    return other


_NAMES = {  # of `where`, without spaces, hyphens and underscores
    "=": "==", "==": "==", "eq": "==", "!=": "!=", "<>": "!=", "ne": "!=", "<": "<", "lt": "<", "<=": "<=", "le": "<=",
    ">": ">", "gt": ">", ">=": ">=", "ge": ">=",
}  # fmt: skip
_METHODS: dict[str, Callable[[ParquetExpr, Any], ParquetExpr]] = {
    "isnull": lambda col, value: col.is_null(),
    "isnotnull": lambda col, value: col.is_not_null(),
    "contains": ParquetExpr.contains,
    "startswith": ParquetExpr.starts_with,
    "endswith": ParquetExpr.ends_with,
    "in": ParquetExpr.is_in,
    "isin": ParquetExpr.is_in,
    "notin": ParquetExpr.is_not_in,
    "isnotin": ParquetExpr.is_not_in,
}


def condition(column: str, op: Any, value: Any) -> ParquetExpr:
    """`column op value`, with the names of `ParquetQuery.where`.

    Raises:
        TypeError: `op` is no str, or the value does not fit it.
        ValueError: an unknown `op`, or a `between` without two bounds.
    """
    if not isinstance(op, str):
        raise TypeError(f"where(column, op, value) takes the op as str, got {op!r}")
    name = op.lower().translate(str.maketrans("", "", " -_"))
    col = ParquetExpr.col(column)
    if name in _NAMES:
        return col._compare(_NAMES[name], value)
    if name in _METHODS:
        return _METHODS[name](col, value)
    if name in ("between", "isbetween"):
        if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
            raise TypeError(f"between takes a pair (lower, upper), got {value!r}")
        bounds = list(value)
        if len(bounds) != 2:
            raise ValueError(f"between takes a pair (lower, upper), got {len(bounds)} values")
        return col.is_between(*bounds)
    raise ValueError(f"unknown op {op!r}; it is one of {', '.join([*_NAMES, *_METHODS, 'between'])}")


class ParquetNamespace:
    """`dataio.parquet`: columns for conditions, and the Parquet helpers under short names."""

    __slots__ = ()

    def col(self, name: str) -> ParquetExpr:
        """A column; see `ParquetExpr`."""
        return ParquetExpr.col(name)

    def read(
        self, path: Any, *, columns: Any = None, row_groups: Any = None, offset: int = 0, limit: int | None = None
    ) -> dict[str, list[Any]]:
        """`dataio.read_parquet`."""
        from .formats.tables.parquet import read_parquet

        return read_parquet(path, columns=columns, row_groups=row_groups, offset=offset, limit=limit)

    def scan(self, path: Any) -> Any:
        """`dataio.scan_parquet`."""
        from .scans import scan_parquet

        return scan_parquet(path)

    def metadata(self, path: Any) -> dict[str, Any]:
        """`dataio.parquet_metadata`."""
        from .formats.tables.parquet import parquet_metadata

        return parquet_metadata(path)

    def schema(self, path: Any) -> list[dict[str, Any]]:
        """The `columns` of `dataio.parquet_metadata`: `name`, `type_label`, `nullable` of each."""
        columns: list[dict[str, Any]] = self.metadata(path)["columns"]
        return columns

    def __repr__(self) -> str:
        return "dataio.parquet"


parquet = ParquetNamespace()
