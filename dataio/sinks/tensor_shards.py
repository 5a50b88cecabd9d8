"""Rows as safetensors files and as TFRecord files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..formats.tfrecord.files import write_tfrecord
from ..formats.weights.safetensors_write import write_safetensors
from .manifest import SinkError
from .rows import Layout, Row
from .tar_shards import npy_file


def save_safetensors(uri: str, rows: Sequence[Row], layout: Layout, options: dict[str, Any]) -> None:
    """Write one shard: tensors by slot, the rest as JSON in the metadata."""
    tensors: dict[str, np.ndarray] = {}
    values: dict[str, list[Any]] = {}
    for name, stored in layout.items():
        if stored["kind"] == "value":
            values[name] = [row.get(name) for row in rows]
        elif stored["kind"] == "ragged":
            tensors.update({f"{name}/{i:08d}": row[name] for i, row in enumerate(rows) if row.get(name) is not None})
        else:
            missing = next((row["key"] for row in rows if row.get(name) is None), None)
            if missing is not None:
                raise SinkError(f"{uri}: record {missing!r} has no {name!r}; sink with ragged=[{name!r}] to store those that have")
            tensors[name] = np.stack([row[name] for row in rows]) if rows else np.empty((0, *stored["shape"]), stored["dtype"])
    for name, column in values.items():
        for row, value in zip(rows, column):
            if isinstance(value, (bytes, bytearray, memoryview)):
                raise SinkError(f"{uri}: field {name!r} of record {row['key']!r} is bytes, which safetensors cannot hold: decode it in the pipeline")
    try:
        text = json.dumps({"rows": len(rows), "values": values})
    except (TypeError, ValueError) as error:
        raise SinkError(f"{uri}: values that JSON cannot hold: {error}") from error
    write_safetensors(uri, tensors or {"_empty": np.empty(0, np.uint8)}, metadata={"dataio": text})


def save_tfrecord(uri: str, rows: Sequence[Row], layout: Layout, options: dict[str, Any]) -> None:
    """Write one shard, record by record."""
    write_tfrecord(uri, _examples(rows), **options)


def _examples(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    for row in rows:
        key = row["key"]
        yield {
            name: npy_file(value, f"slot {name!r} of record {key!r}") if isinstance(value, np.ndarray) else value
            for name, value in row.items()
            if value is not None
        }
