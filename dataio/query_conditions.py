"""What `Query.filter` takes, as what a plan holds: conditions of the engine, Polars expressions, callables.

A condition on columns (`dataio.parquet.col`, or `(column, op, value)`) becomes engine conditions as far as these mean the same; the rest
(text searches, bytes, dates, decimals, fields of structs) stays what it is, in a `ColumnCondition`.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from .engine import expr as engine
from .engine.errors import SchemaError, unknown_columns
from .engine.expr import Cond
from .engine.frame_calls import FrameCall, FrameExpr, expressions_in
from .parquet_expr import (
    Both,
    Column,
    Compare,
    Either,
    In,
    Node,
    Not,
    Null,
    ParquetExpr,
    Text,
    columns_in,
    condition,
    holds,
    kind_of,
    shown,
)

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa

Condition: TypeAlias = "Cond | FrameExpr | Callable[[Any], Any]"

_OPS = {"==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}


def as_condition(given: Any, op: Any, value: Any, schema: pa.Schema | None, reader: str) -> Condition:
    """A condition in any of its forms, checked against `schema` (None: not known).

    Raises:
        TypeError: none of the forms, or a value that cannot be compared.
        ValueError: an unknown `op`.
        SchemaError: a column that is not there, or one compared with a value of another kind.
    """
    if isinstance(given, str):
        if op is None:
            raise TypeError(f"{reader}() takes a condition, a callable on a row, or (column, op, value); got the str {given!r} alone")
        given = condition(given, op, value)
    elif op is not None or value is not None:
        raise TypeError(f"{reader}() takes a condition alone, or (column, op, value)")
    if isinstance(given, engine.Col):
        given = engine.Truthy(given)
    if isinstance(given, ParquetExpr):
        if schema is not None:
            check_node(given.node, schema, reader)
        return as_cond(given.node, schema)
    if isinstance(given, Cond):
        if schema is not None:
            check_cond(given, schema, reader)
        return given
    if is_polars(given):
        return FrameExpr.of(given)
    if isinstance(given, bool) or not callable(given) or isinstance(given, type):
        raise TypeError(
            f"{reader}() takes a condition (dataio.cond, dataio.parquet.col or a Polars expression), a callable on a row, or "
            f"(column, op, value); got {given!r}"
        )
    return given  # type: ignore[no-any-return]


def is_polars(value: Any) -> bool:
    """Whether this is a Polars expression; Polars is not imported for it."""
    import sys

    pl = sys.modules.get("polars")
    return pl is not None and isinstance(value, pl.Expr)


# ------------------------------------------------------------------------------------------------ as engine conditions


def as_cond(node: Node, schema: pa.Schema | None) -> Cond:
    """A condition on columns as one of the engine's."""
    match node:
        case Both(left, right):
            return engine.All((as_cond(left, schema), as_cond(right, schema)))
        case Either(left, right):
            return engine.AnyOf((as_cond(left, schema), as_cond(right, schema)))
        case Not(inner):
            return engine.Not(as_cond(inner, schema))
    path, kind = _found(node.column, schema)
    if kind is None or len(path) > 1 or not _plain(kind):
        return ColumnCondition(node, path, kind)
    of = engine.Col(node.column)
    match node:
        case Column():
            return engine.Truthy(of)
        case Null(_, negated):
            return engine.Not(engine.IsNull(of)) if negated else engine.IsNull(of)
        case Compare(_, op, value) if not isinstance(value, bytes):
            return engine.Compare(of, _OPS[op], value)
        case In(_, values, negated) if not any(isinstance(value, bytes) for value in values):
            return engine.Not(engine.IsIn(of, values)) if negated else engine.IsIn(of, values)
    return ColumnCondition(node, path, kind)


def _found(name: str, schema: pa.Schema | None) -> tuple[tuple[str, ...], pa.DataType | None]:
    """Where a column, or with dots a field of one, lies, and its type."""
    import pyarrow.types as kinds

    if schema is None:
        return tuple(name.split(".")), None
    if name in schema.names:
        return (name,), schema.field(name).type
    root, *fields = name.split(".")
    if root not in schema.names:
        raise unknown_columns([name], schema.names, reader="the condition")
    kind = schema.field(root).type
    for field in fields:
        if not kinds.is_struct(kind) or kind.get_field_index(field) < 0:
            raise unknown_columns([name], schema.names, reader="the condition")
        kind = kind.field(kind.get_field_index(field)).type
    return (root, *fields), kind


def _plain(kind: pa.DataType) -> bool:
    """Whether conditions on columns and those of the engine mean the same for a column of this type."""
    import pyarrow.types as kinds

    return bool(
        kinds.is_integer(kind) or kinds.is_float32(kind) or kinds.is_float64(kind) or kinds.is_boolean(kind) or kinds.is_string(kind)
        or kinds.is_large_string(kind)
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class ColumnCondition(Cond):
    """One test of `parquet_expr` on a column.

    Attributes:
        node: the test.
        path: the column, then fields of structs.
        kind: the Arrow type, None where it is not known; then dates and times are taken in Python's own units (days, microseconds).
    """

    node: Column | Compare | Text | Null | In
    path: tuple[str, ...]
    kind: pa.DataType | None

    def columns(self) -> frozenset[str]:
        return frozenset(self.path[:1])

    def of_record(self, get: Callable[[str], Any], array: Any = None) -> bool:
        return holds(self.node, lambda name: self._raw(self._value(get)))

    def over(self, column: Callable[[str], Sequence[Any]], length: int) -> np.ndarray:
        values = column(self.path[0])
        return np.fromiter((self.of_record(lambda name, value=value: value) for value in values), np.bool_, length)  # type: ignore[misc]

    def to_polars(self, schema: Mapping[str, pl.DataType]) -> pl.Expr:
        import polars as pl
        import pyarrow as pa

        from .engine.relational import frame_schema
        from .parquet_native import NoNativeFormError, native

        root = self.path[0]
        if root not in schema:
            raise unknown_columns([root], schema, reader=f"filter({self})")
        found = frame_schema(pl.Schema({root: schema[root]}))
        kind = found.field(root).type
        for name in self.path[1:]:
            if (at := kind.get_field_index(name) if pa.types.is_struct(kind) else -1) < 0:
                raise unknown_columns([self.node.column], schema, reader=f"filter({self})")
            kind = kind.field(at).type
        read = pl.col(root)
        for name in self.path[1:]:
            read = read.struct.field(name)
        try:
            return native(self.node, lambda name: (read, kind))
        except NoNativeFormError:
            return read.map_batches(self._each, return_dtype=pl.Boolean, is_elementwise=True)

    def _each(self, values: pl.Series) -> pl.Series:
        """The test value by value, for types that Polars compares differently."""
        import polars as pl
        import pyarrow.types as kinds

        from .formats.tables.values import column_values

        column = values.to_arrow(compat_level=pl.CompatLevel.oldest())
        items = column.to_pylist() if kinds.is_decimal(column.type) else column_values(column)
        return pl.Series(values.name, [holds(self.node, lambda name, item=item: item) for item in items], pl.Boolean)  # type: ignore[misc]

    def _value(self, get: Callable[[str], Any]) -> Any:
        value = get(self.path[0])
        for name in self.path[1:]:
            value = value.get(name) if isinstance(value, Mapping) else None
        return value

    def _raw(self, value: Any) -> Any:
        """The value in the form that conditions on columns compare."""
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, (datetime.date, datetime.time, datetime.timedelta)):
            import pyarrow as pa

            known = None if self.kind is None or not pa.types.is_temporal(self.kind) else self.kind
            return pa.scalar(value, known).value
        return bytes(value) if isinstance(value, (bytearray, memoryview)) else value

    def canonical(self) -> dict[str, Any]:
        return {"_op": "column", "_args": {"path": list(self.path), "test": shown(self.node)}}

    def __str__(self) -> str:
        return shown(self.node)


# ------------------------------------------------------------------------------------------------------------- checks


def check_node(node: Node, schema: pa.Schema, reader: str) -> None:
    """Refuse columns that are not there, and tests that no value of a column's type could pass or fail."""
    for name in dict.fromkeys(columns_in(node)):
        try:
            _found(name, schema)
        except SchemaError:
            raise unknown_columns([name], schema.names, reader=f"{reader}({shown(node)})") from None
    for column, values in _literals(node):
        _, kind = _found(column, schema)
        _check_kinds(column, kind, values, reader, days=True)


def check_cond(given: Cond, schema: pa.Schema, reader: str) -> None:
    """As `check_node`, for a condition of the engine."""
    if missing := given.columns() - set(schema.names):
        raise unknown_columns(missing, schema.names, reader=f"{reader}({given})")
    for of, values in _cond_literals(given):
        _check_kinds(of, schema.field(of).type, values, reader, days=False)


def check_step(step: FrameCall, schema: pa.Schema) -> None:
    """Try what Polars is to do on no rows: it compares types only when it runs.

    Raises:
        SchemaError: types that do not fit.
    """
    import polars as pl

    from .engine.relational import frame_of

    try:
        step.apply(frame_of(schema.empty_table()).lazy(), lambda plan: pl.LazyFrame()).collect()
    except (pl.exceptions.InvalidOperationError, pl.exceptions.ComputeError, pl.exceptions.SchemaError) as error:
        text = str(error).split("\n", 1)[0]
        if isinstance(error, pl.exceptions.ComputeError) and "compare" not in text:  # what depends on the rows shows when there are some
            return
        read = dict.fromkeys(name for value in expressions_in(step) for name in value.expr.meta.root_names() if name in schema.names)
        types = ", ".join(f"{name!r} is {schema.field(name).type}" for name in read)
        raise SchemaError(f"{step}: {text}{'; ' if types else ''}{types}") from None
    except Exception:  # of a Python function inside, which may not know what to do without rows
        return


def _literals(node: Node) -> Iterator[tuple[str, Iterable[Any]]]:
    match node:
        case Both(left, right) | Either(left, right):
            yield from _literals(left)
            yield from _literals(right)
        case Not(inner):
            yield from _literals(inner)
        case Compare(column, _, value) | Text(column, _, value):
            yield column, (value,)
        case In(column, values, _):
            yield column, values


def _cond_literals(given: Cond) -> Iterator[tuple[str, Iterable[Any]]]:
    match given:
        case engine.Not(inner=inner):
            yield from _cond_literals(inner)
        case engine.All(children=children) | engine.AnyOf(children=children):
            for child in children:
                yield from _cond_literals(child)
        case engine.Compare():
            yield given.of.field, (given.value,)
        case engine.IsIn():
            yield given.of.field, given.values


def _check_kinds(column: str, kind: pa.DataType | None, values: Iterable[Any], reader: str, *, days: bool) -> None:
    wanted = _kinds(kind, days)
    for value in values:
        if value is not None and wanted is not None and kind_of(value) not in wanted:
            what = " or ".join(wanted) if wanted else "null tests only"
            raise SchemaError(
                f"{reader}() compares column {column!r}, which is {kind}, with {value!r} ({type(value).__name__}), which no value of it can "
                f"equal; it compares with: {what}"
            )


def _kinds(kind: pa.DataType | None, days: bool) -> tuple[str, ...] | None:
    """The kinds of literals that a column compares with; None for any. `days`: dates and times count as integers."""
    import pyarrow.types as kinds

    if kind is None or kinds.is_null(kind):
        return None
    if kinds.is_dictionary(kind):
        return _kinds(kind.value_type, days)
    if kinds.is_boolean(kind):
        return ("bool",)
    if kinds.is_decimal(kind):
        return ("text",) if days else ("number",)
    if kinds.is_integer(kind) or kinds.is_floating(kind):
        return ("number",)
    if kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_string_view(kind):
        return ("text",)
    if kinds.is_binary(kind) or kinds.is_large_binary(kind) or kinds.is_fixed_size_binary(kind) or kinds.is_binary_view(kind):
        return ("bytes", "text") if days else ()
    if kinds.is_temporal(kind):
        return ("number",) if days else ()
    return ()
