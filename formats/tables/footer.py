"""Checks of a Parquet footer before pyarrow's metadata objects are asked for all of it.

pyarrow ends the process (an exception where C++ allows none) when a column chunk with an unknown codec, encoding or type is
asked for it, so those are looked up in the footer itself first. Format: parquet.thrift in Thrift's compact protocol.
"""

from __future__ import annotations

import functools
from typing import Any

from ...engine.errors import OpError

CHECKED = 1 << 20
"""Bytes up to which a footer is checked: what takes half a second."""
CODECS, ENCODINGS, TYPES = 8, 10, 8
"""How many of each parquet.thrift names."""
WIDTHS = {0: 1, 1: 4, 2: 8, 3: 12, 4: 4, 5: 8}
"""Bytes of a value of each type of fixed width."""
MAX_DEPTH = 32


class _Compact:
    """Thrift's compact protocol, as dicts of field number -> value."""

    def __init__(self, data: Any) -> None:
        self._data, self._at = bytes(data), 0

    def struct(self, depth: int = 0) -> dict[int, Any]:
        """The struct at this place."""
        if depth > MAX_DEPTH:
            raise OpError("a Parquet footer is nested too deep")
        found: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._zigzag()
            kind = head & 15
            found[number] = kind == 1 if kind in (1, 2) else self._value(kind, depth)
        return found

    def _value(self, kind: int, depth: int) -> Any:
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
            return [self.struct(depth + 1) if head & 15 == 12 else self._value(head & 15, depth + 1) for _ in range(count)]
        if kind == 12:
            return self.struct(depth + 1)
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


def _leaves(elements: list[dict[int, Any]]) -> list[tuple[Any, int, int]]:
    """Type, repetition level and definition level of each leaf of a schema, which lists a tree in depth-first order."""
    found: list[tuple[Any, int, int]] = []
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
            found.append((element.get(1), repeated, defined))
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
        footer = _Compact(data).struct()
        leaves = _leaves(footer.get(2, []))
        for number, group in enumerate(footer.get(4, [])):
            chunks = group.get(1, [])
            if len(chunks) != len(leaves):
                raise OpError(f"row group {number} has {len(chunks)} column chunks for {len(leaves)} columns")
            for chunk, (leaf, repeated, defined) in zip(chunks, leaves, strict=True):
                column = chunk.get(3)
                if column is None or column.get(1) != leaf:
                    raise OpError(f"row group {number} has a column chunk of another type than its column")
                sizes = column.get(16, {})  # SizeStatistics
                if len(sizes.get(2, [])) not in (0, repeated + 1) or len(sizes.get(3, [])) not in (0, defined + 1) or (1 in sizes and leaf != 6):
                    raise OpError(f"row group {number} has a column chunk with size statistics of another column")
                bounds = [value for key, value in column.get(12, {}).items() if key in (1, 2, 5, 6)]  # of the Statistics
                if leaf in WIDTHS and any(len(bound) != WIDTHS[leaf] for bound in bounds):
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
