"""`read_feather`, `write_feather`: Arrow IPC files. Library: pyarrow.ipc."""

from __future__ import annotations

import os
from typing import Any

import pyarrow as pa

from ...engine.errors import OpError
from ...io.writer import writer
from ..inputs import local_file, name_of, read_bytes
from .streams import arrow_stream
from .values import columns_of, rows_of

MAGIC = b"ARROW1"
STREAM_MARK = b"\xff\xff\xff\xff"
DAMAGE = (pa.ArrowException, OverflowError, UnicodeDecodeError, KeyError)


def read_feather(path: Any) -> list[dict[str, Any]]:
    """The rows of a Feather (version 2, Arrow IPC) file.

    Args:
        path: a local path or URI, bytes-like, a `dataio.Reader` or an object whose `read()` returns bytes.

    Returns:
        One dict a row, with values in the forms of `read_parquet`. All types but unions, intervals and run-end encodings, and bodies
        compressed by lz4 or zstd are read. (The reference refuses compressed bodies and most types.)

    Raises:
        ValueError: no such file: a stream, version 1, cut short, damaged (OpError).
        FileNotFoundError, OSError: missing or unreadable. (The reference raises RuntimeError.)
        TypeError: a source of another kind, or a type that has no form.
    """
    table = read_feather_table(path)
    with_names = set(table.column_names)
    if len(with_names) != table.num_columns:
        raise OpError(f"{name_of(path)}: several columns have the same name: {', '.join(table.column_names)}")
    return rows_of(columns_of(table), table.num_rows)


def read_feather_table(path: Any) -> pa.Table:
    """A Feather file as an Arrow table, its batches as chunks; checked, so that damaged offsets lead nowhere."""
    local = local_file(path)
    try:
        opened: Any = pa.OSFile(local) if local is not None else pa.BufferReader(pa.py_buffer(read_bytes(path)))
        with opened:
            start = opened.read(6)
            if start != MAGIC:
                raise not_feather(path, start)
            opened.seek(0)
            table = pa.ipc.open_file(opened).read_all()
            table.validate(full=True)
            return table
    except DAMAGE as error:
        raise OpError(f"{name_of(path)}: not an Arrow IPC file that can be read: {error}") from error
    except OSError as error:
        if type(error) is OSError and error.errno is None:  # pyarrow's word for damaged messages
            raise OpError(f"{name_of(path)}: not an Arrow IPC file that can be read: {error}") from error
        raise


def not_feather(path: Any, start: bytes) -> OpError:
    """The error for a file that starts with other bytes."""
    return OpError(f"{name_of(path)} is no Arrow IPC file: {_seen(start)}")


def _seen(start: bytes) -> str:
    if start[:4] == STREAM_MARK:
        return "it looks like an IPC stream, which pyarrow.ipc.open_stream reads"
    if start[:4] == b"FEA1":
        return "it is Feather version 1, which pyarrow.feather reads"
    return f"it starts with {start!r}" if start else "it is empty"


def write_feather(path: str | os.PathLike[str], table: Any, *, compression: str = "none", atomic: bool = True) -> None:
    """Write a table as a Feather (Arrow IPC) file, batch by batch as they come.

    Args:
        path: a local path or URI of a store that can be written; parent folders have to exist.
        table: anything with `__arrow_c_stream__`: Arrow tables and readers, Polars and pandas frames, queries.
        compression: none, lz4 or zstd, in any case. (zstd is not in the reference.)
        atomic: False writes the local file in place.

    Raises:
        TypeError: `table` gives no Arrow stream.
        ValueError: another compression; dictionaries that change between batches (OpError).
        OSError: as `writer` says. Nothing is left then, and an old file stays as it was.
    """
    name = compression.lower() if isinstance(compression, str) else ""
    if name not in ("none", "lz4", "zstd"):
        raise ValueError(f"compression is none, lz4 or zstd, got {compression!r}")
    stream = arrow_stream(table, "write_feather")
    options = pa.ipc.IpcWriteOptions(compression=None if name == "none" else name, unify_dictionaries=False)
    with writer(os.fspath(path), atomic=atomic) as to:
        try:
            made = pa.ipc.new_file(to.open(), stream.schema, options=options)
            for batch in stream:
                made.write_batch(batch)
            made.close()
        except pa.ArrowException as error:
            raise OpError(f"{name_of(path)}: {error}") from error
