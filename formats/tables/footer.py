"""Checks of a Parquet footer before pyarrow's metadata objects are asked for all of it.

pyarrow ends the process (an exception where C++ allows none) when a column chunk with an unknown codec, encoding or type is
asked for it, so those are looked up in the footer itself first. Format: parquet.thrift in Thrift's compact protocol.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...engine.errors import OpError

CHECKED = 1 << 20
"""Bytes up to which a footer is checked: what takes half a second."""
CODECS, ENCODINGS, TYPES = 8, 10, 8
"""How many of each parquet.thrift names."""
WIDTHS = {0: 1, 1: 4, 2: 8, 3: 12, 4: 4, 5: 8}
"""Bytes of a value of each type of fixed width."""
FIXED = 7
"""The type whose width the schema tells."""
MAX_DEPTH = 32

BOOL, I32, I64, BINARY, LIST, STRUCT = 1, 5, 6, 8, 9, 12
"""Kinds of values on the wire, as the compact protocol numbers them."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """What a field holds; readers leave out a field whose value is of another kind, so it counts as damage here.

    Attributes:
        number: on the wire.
        items: what a list holds.
        fields: of a struct, by number; those that are not named may hold anything.
    """

    number: int
    items: _Kind | None = None
    fields: Mapping[int, _Kind] | None = None


def _list(items: _Kind) -> _Kind:
    return _Kind(LIST, items=items)


def _struct(**fields: _Kind) -> _Kind:
    return _Kind(STRUCT, fields={int(name[1:]): kind for name, kind in fields.items()})


_bool, _i32, _i64, _binary = map(_Kind, (BOOL, I32, I64, BINARY))
_STATISTICS = _struct(_1=_binary, _2=_binary, _3=_i64, _4=_i64, _5=_binary, _6=_binary, _7=_bool, _8=_bool)
_SIZES = _struct(_1=_i64, _2=_list(_i64), _3=_list(_i64))
_COLUMN = _struct(
    _1=_i32, _2=_list(_i32), _3=_list(_binary), _4=_i32, _5=_i64, _6=_i64, _7=_i64, _9=_i64, _10=_i64, _11=_i64, _12=_STATISTICS, _14=_i64,
    _15=_i32, _16=_SIZES,
)  # fmt: skip
_CHUNK = _struct(_1=_binary, _2=_i64, _3=_COLUMN, _4=_i64, _5=_i32, _6=_i64, _7=_i32)
_GROUP = _struct(_1=_list(_CHUNK), _2=_i64, _3=_i64, _5=_i64, _6=_i64)
_ELEMENT = _struct(_1=_i32, _2=_i32, _3=_i32, _4=_binary, _5=_i32, _6=_i32, _7=_i32, _8=_i32, _9=_i32)
_FOOTER = _struct(_1=_i32, _2=_list(_ELEMENT), _3=_i64, _4=_list(_GROUP), _6=_binary)
_ANYTHING: Mapping[int, _Kind] = {}


class _Compact:
    """Thrift's compact protocol, as dicts of field number -> value."""

    def __init__(self, data: Any) -> None:
        self._data, self._at = bytes(data), 0

    def struct(self, expected: _Kind | None = None, depth: int = 0) -> dict[int, Any]:
        """The struct at this place."""
        fields = (expected and expected.fields) or _ANYTHING
        if depth > MAX_DEPTH:
            raise OpError("a Parquet footer is nested too deep")
        found: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._zigzag()
            kind = head & 15
            wanted = fields.get(number)
            if wanted is not None and wanted.number != (BOOL if kind == 2 else kind):
                raise OpError(f"a Parquet footer has a value of kind {kind} where the format has {wanted.number}")
            found[number] = kind == 1 if kind in (1, 2) else self._value(kind, wanted, depth)
        return found

    def _value(self, kind: int, wanted: _Kind | None, depth: int) -> Any:
        if kind in (1, 2, 3):  # bool in a list, byte
            return self._byte()
        if kind in (4, 5, 6):
            return self._zigzag()
        if kind == 7:
            return self._take(8)
        if kind == 8:
            return self._take(self._varint())
        if kind in (9, 10):
            head = self._byte()
            count = self._varint() if head >> 4 == 15 else head >> 4
            if count > len(self._data) - self._at:  # each item takes a byte at least
                raise OpError(f"a Parquet footer claims a list of {count} items")
            items = None if wanted is None else wanted.items
            if items is not None and count and head & 15 != items.number:
                raise OpError(f"a Parquet footer has a list of kind {head & 15} where the format has {items.number}")
            return [self._value(head & 15, items, depth + 1) for _ in range(count)]
        if kind == 12:
            return self.struct(wanted, depth + 1)
        raise OpError(f"a Parquet footer has a value of unknown kind {kind}")

    def _byte(self) -> int:
        return self._take(1)[0]

    def _take(self, count: int) -> bytes:
        if count > len(self._data) - self._at:
            raise OpError("a Parquet footer ends within a value")
        self._at += count
        return self._data[self._at - count : self._at]

    def _varint(self) -> int:
        found = shift = 0
        while (byte := self._byte()) & 128:
            found |= (byte & 127) << shift
            shift += 7
            if shift > 63:
                raise OpError("a Parquet footer has a number of more than 64 bits")
        return found | byte << shift

    def _zigzag(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)


def _leaves(elements: list[dict[int, Any]]) -> list[tuple[Any, int | None, int, int]]:
    """Type, width, repetition level and definition level of each leaf of a schema, which lists a tree in depth-first order."""
    found: list[tuple[Any, int | None, int, int]] = []
    open_: list[list[int]] = []  # children left, repetition level, definition level
    for number, element in enumerate(elements):
        while open_ and not open_[-1][0]:
            open_.pop()
        if element.get(3, 0) not in (0, 1, 2):
            raise OpError("a column has an unknown repetition")
        repeated, defined = open_[-1][1:] if open_ else (0, 0)
        if open_:
            open_[-1][0] -= 1
        if number:
            repeated, defined = repeated + (element.get(3) == 2), defined + (element.get(3) in (1, 2))
        if children := element.get(5):
            open_.append([children, repeated, defined])
        elif number:
            kind: Any = element.get(1)
            found.append((kind, element.get(2) if kind == FIXED else WIDTHS.get(kind), repeated, defined))
    return found


@functools.lru_cache(maxsize=32)
def check_footer(data: bytes) -> None:
    """Refuse codecs, encodings and types that Parquet does not name, and chunks of another type than their column.

    Takes about 40 microseconds a column chunk, once for each footer.

    Args:
        data: the serialised FileMetaData.

    Raises:
        OpError: there are such, or the footer is no Thrift.
    """
    try:
        footer = _Compact(data).struct(_FOOTER)
        leaves = _leaves(footer.get(2, []))
        for number, group in enumerate(footer.get(4, [])):
            chunks = group.get(1, [])
            if len(chunks) != len(leaves):
                raise OpError(f"row group {number} has {len(chunks)} column chunks for {len(leaves)} columns")
            for chunk, (leaf, width, repeated, defined) in zip(chunks, leaves, strict=True):
                column = chunk.get(3)
                if column is None or column.get(1) != leaf:
                    raise OpError(f"row group {number} has a column chunk of another type than its column")
                sizes = column.get(16, {})  # SizeStatistics
                if len(sizes.get(2, [])) not in (0, repeated + 1) or len(sizes.get(3, [])) not in (0, defined + 1) or (1 in sizes and leaf != 6):
                    raise OpError(f"row group {number} has a column chunk with size statistics of another column")
                bounds = [value for key, value in column.get(12, {}).items() if key in (1, 2, 5, 6)]  # of the Statistics
                if width is not None and any(len(bound) != width for bound in bounds):
                    raise OpError(f"row group {number} has a column chunk with statistics of another type")
                for what, values, many in (
                    ("codec", [column.get(4)], CODECS),
                    ("type", [leaf], TYPES),
                    ("encoding", column.get(2, []), ENCODINGS),
                ):
                    if wrong := [value for value in values if not 0 <= value < many]:
                        raise OpError(f"row group {number} has a column chunk of unknown {what} {wrong[0]}")
    except (AttributeError, TypeError, RecursionError) as error:  # values of other kinds than the format has
        raise OpError("the footer is not that of a Parquet file") from error
