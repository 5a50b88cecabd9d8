"""`read_feather`."""

from __future__ import annotations

import io

import pyarrow as pa

import dataio
from dataio.engine.errors import OpError

from .parquet import TABLE


def _feather(table: pa.Table, compression: str | None = None) -> bytes:
    out = io.BytesIO()
    with pa.ipc.new_file(out, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as made:
        made.write_table(table)
    return out.getvalue()


def seeds() -> list[bytes]:
    """Small files of several types, compressed and not."""
    whole = TABLE.append_column("c", TABLE["s"].dictionary_encode())
    return [_feather(whole), _feather(TABLE, "lz4"), _feather(TABLE.select(["i", "l"]), "zstd"), _feather(TABLE.slice(0, 0))]


def run(data: bytes) -> None:
    """Read the rows."""
    try:
        dataio.read_feather(data)
    except (OpError, TypeError):
        return
