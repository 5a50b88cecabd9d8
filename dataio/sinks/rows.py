"""Batches into rows, and how the fields of rows are stored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from ..batches import Batch
from .manifest import SinkError

Row: TypeAlias = dict[str, Any]
"""One record: "key", then its slots (arrays, or Python values), then the columns that were kept."""
Layout: TypeAlias = dict[str, Any]
"""Per field: {"kind": "tensor", "dtype", "shape"}, {"kind": "ragged", "dtype"}, or {"kind": "value"}."""


@dataclass(frozen=True, slots=True)
class Fields:
    """Called with each record: the values of its fields `names`."""

    names: tuple[str, ...]

    def __call__(self, record: Any) -> list[Any]:
        missing = [name for name in self.names if name not in record]
        if missing:
            raise SinkError(f"columns={list(self.names)}: a record lacks {missing[0]!r}; it has: {', '.join(map(str, record))}")
        return [record[name] for name in self.names]


def rows_of(batch: Batch, columns: Sequence[str]) -> Iterator[tuple[int, Row]]:
    """(position in the batch, row) of each survivor. The arrays are copies: the batch's memory is not held."""
    slots = {}
    for name in batch.slot_names if len(batch) else ():
        values = batch[name]
        slots[name] = values.copy() if isinstance(values, np.ndarray) else [_own(value) for value in values]
    keys, kept = batch.keys, batch.context
    for i, position in enumerate(batch.indices):
        row = {"key": keys[i], **{name: values[i, ...] if isinstance(values, np.ndarray) else values[i] for name, values in slots.items()}}
        if kept is not None:
            row.update(zip(columns, kept[i]))
        yield position, row


def _own(value: Any) -> Any:
    return value.copy() if isinstance(value, np.ndarray) else value


def row_bytes(row: Row) -> int:
    """About what a row takes before compression: elements of arrays, characters of strings, 8 for any other value."""
    return sum(
        value.nbytes if isinstance(value, (np.ndarray, np.generic)) else len(value) if isinstance(value, (bytes, str)) else 8
        for value in row.values()
    )


def layout_of(rows: Sequence[Row], ragged: Sequence[str]) -> Layout:
    """How the fields are stored, from the rows of the first shard: tensors of one shape, unless they differ in it or the field is
    in `ragged`.
    """
    names = list(dict.fromkeys(name for row in rows for name in row))
    layout: Layout = {"key": {"kind": "value", "arrow": "string"}}
    for name in names:
        if name == "key":
            continue
        values = [(row["key"], row[name]) for row in rows if row.get(name) is not None]
        arrays = [value for _, value in values if isinstance(value, np.ndarray)]
        if not arrays:
            layout[name] = {"kind": "value"}
            continue
        dtype = arrays[0].dtype.str
        shapes = {array.shape for array in arrays}
        if name in ragged or len(shapes) > 1:
            layout[name] = {"kind": "ragged", "dtype": dtype}
        else:
            layout[name] = {"kind": "tensor", "dtype": dtype, "shape": list(arrays[0].shape)}
    return layout


def check_rows(rows: Sequence[Row], layout: Layout) -> None:
    """All shards of a sink have one layout.

    Raises:
        SinkError: a row does not fit it; it names field and record.
    """
    for row in rows:
        for name, value in row.items():
            want = layout.get(name)
            if want is None:
                raise SinkError(f"record {row['key']!r} has the field {name!r}, which no record of the first shard had")
            if value is None:
                continue
            if isinstance(value, np.ndarray) != (want["kind"] != "value"):
                raise _unfit(name, row, "an array" if isinstance(value, np.ndarray) else type(value).__name__, want)
            if want["kind"] == "value":
                continue
            if value.dtype.str != want["dtype"]:
                raise _unfit(name, row, f"{value.dtype}{list(value.shape)}", want)
            if want["kind"] == "tensor" and list(value.shape) != want["shape"]:
                raise _unfit(name, row, f"{value.dtype}{list(value.shape)}", want, f"resize it, or sink with ragged=[{name!r}]")


def _unfit(name: str, row: Row, got: str, want: dict[str, Any], way_out: str = "") -> SinkError:
    shape = list(want["shape"]) if "shape" in want else " of any shape"
    stored = "plain values" if want["kind"] == "value" else f"{np.dtype(want['dtype'])}{shape}"
    return SinkError(f"field {name!r} of record {row['key']!r} is {got}, and this sink stores {stored}{'; ' if way_out else ''}{way_out}")
