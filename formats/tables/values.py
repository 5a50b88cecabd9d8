"""Arrow columns as Python values, in the forms that the table helpers promise.

Leaves go through Polars, whose lists are made several times faster than pyarrow's; nested values are put together from
the lists of their children.
"""

from __future__ import annotations

import decimal
import itertools
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from ...engine.errors import OpError


def column_values(column: pa.ChunkedArray | pa.Array) -> list[Any]:
    """The values of a column, in order; null is None.

    Integers, floats (16 bits too), bool, str and bytes are themselves; a date is its days since 1970 (date64:
    milliseconds), a time, timestamp or duration the integer that is stored, in the unit of the column; a decimal is a str
    with all digits of its scale ("1.50"); a dictionary column gives its values, a list a list, a struct or map a dict.

    Raises:
        TypeError: a type that has no such form (run-end encoded, union, interval).
    """
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    if len(chunks) == 1:
        return _values(chunks[0])
    return list(itertools.chain.from_iterable(map(_values, chunks)))


def columns_of(table: pa.Table) -> dict[str, list[Any]]:
    """All columns of a table as lists; of columns with the same name the last one."""
    return {name: column_values(table.column(i)) for i, name in enumerate(table.column_names)}


def rows_of(columns: dict[str, list[Any]], count: int) -> list[dict[str, Any]]:
    """Columns of `count` values as rows."""
    if not columns:
        return [{} for _ in range(count)]
    names = list(columns)
    return [dict(zip(names, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _values(array: pa.Array) -> list[Any]:
    kind = array.type
    if isinstance(array, pa.ExtensionArray):
        return _values(array.storage)
    if kinds.is_dictionary(kind):
        return _values(array.dictionary_decode())
    if kinds.is_null(kind):
        return [None] * len(array)
    if kinds.is_decimal(kind):
        try:
            return [None if value is None else f"{value:f}" for value in array.to_pylist()]
        except decimal.DecimalException as error:  # a scale that Python's decimals cannot have
            raise OpError(f"values of type {kind} have no form as text") from error
    if kinds.is_date32(kind) or kinds.is_time32(kind):
        return _leaf(array.view(pa.int32()))
    if kinds.is_temporal(kind) and not kinds.is_interval(kind):
        return _leaf(array.view(pa.int64()))
    if kinds.is_struct(kind):
        return _structs(array)
    if kinds.is_map(kind):
        return _maps(array)
    if kinds.is_nested(kind):
        return _lists(array)
    return _leaf(array)


def _leaf(array: pa.Array) -> list[Any]:
    import polars as pl

    kind = array.type
    if kinds.is_float16(kind):
        array = array.cast(pa.float32())
    elif kinds.is_fixed_size_binary(kind):
        array = array.cast(pa.binary())
    elif not (kinds.is_primitive(kind) or kinds.is_binary(kind) or kinds.is_large_binary(kind) or _is_text(kind)):
        raise TypeError(f"values of type {kind} have no form as Python values here")
    if _is_text(kind):
        array.validate(full=True)  # Polars takes damaged UTF-8 at its word
    values: list[Any] = pl.Series(pl.from_arrow(array)).to_list()
    return values


def _is_text(kind: pa.DataType) -> bool:
    return bool(
        kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_string_view(kind) or kinds.is_binary_view(kind)
    )


def _structs(array: pa.StructArray) -> list[Any]:
    names = [field.name for field in array.type]
    children = [_values(child) for child in array.flatten()]  # flatten, unlike field, minds the offset
    rows = [dict(zip(names, row, strict=True)) for row in zip(*children, strict=True)] if names else [{} for _ in range(len(array))]
    return _blanked(array, rows)


def _lists(array: pa.Array) -> list[Any]:
    if not (kinds.is_list(array.type) or kinds.is_large_list(array.type) or kinds.is_fixed_size_list(array.type)):
        raise TypeError(f"values of type {array.type} have no form as Python values here")
    items, at = _values(array.flatten()), 0  # without the items of null lists
    found: list[Any] = []
    for length in pc.list_value_length(array).to_pylist():
        if length is None:
            found.append(None)
        else:
            found.append(items[at : at + length])
            at += length
    return found


def _maps(array: pa.MapArray) -> list[Any]:
    offsets = array.offsets.to_pylist()
    start, stop = offsets[0], offsets[-1]
    keys, items = _values(array.keys.slice(start, stop - start)), _values(array.items.slice(start, stop - start))
    rows = [
        dict(zip(keys[a - start : b - start], items[a - start : b - start], strict=True))
        for a, b in itertools.pairwise(offsets)
    ]
    return _blanked(array, rows)


def _blanked(array: pa.Array, rows: list[Any]) -> list[Any]:
    """`rows` with None where the array is null."""
    if not array.null_count:
        return rows
    return [row if there else None for row, there in zip(rows, array.is_valid().to_pylist(), strict=True)]
