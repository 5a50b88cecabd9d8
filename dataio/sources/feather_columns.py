"""Feather (Arrow IPC) files as one scan: their record batches are the chunks, of which only the buffers of the columns asked for are kept."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from dataio.engine.errors import OpError
from dataio.formats.inputs import local_file, name_of, open_ranges
from dataio.formats.tables.feather import DAMAGE, MAGIC, not_feather
from dataio.io.file_objects import RangeFile

from .file_set import Files, FilesOptions, FilesScan, OpenedFile
from .files import Found
from .late import Conditions, LateChunk, Rows

SUFFIXES = (".feather", ".arrow", ".ipc")
WINDOW = 1 << 16
"""Bytes of one request for the small reads of messages."""


class FeatherFiles(FilesScan):
    """Several Feather files."""

    what = "scan_feather"
    kept = 8

    def __init__(self, files: Files, options: FilesOptions) -> None:
        super().__init__(files, options)
        self.ahead = 2

    def opened(self, found: Found) -> OpenedFile:
        return _File(found.uri)


@contextmanager
def _reading(uri: str, columns: Sequence[str] | None, schema: pa.Schema | None) -> Iterator[Any]:
    """The file, opened for some of its columns; what pyarrow says of damage names it."""
    path = local_file(uri)
    try:
        opened: Any = pa.OSFile(path) if path is not None else io.BufferedReader(RangeFile(open_ranges(uri), 0), WINDOW)
        with opened:
            start = opened.read(len(MAGIC))
            if start != MAGIC:
                raise not_feather(uri, start)
            opened.seek(0)
            fields = None if columns is None or schema is None else sorted(schema.get_field_index(name) for name in columns)
            options = pa.ipc.IpcReadOptions(included_fields=fields, use_threads=False)
            yield pa.ipc.open_file(opened, options=options)
    except DAMAGE as error:
        raise OpError(f"{name_of(uri)}: not an Arrow IPC file that can be read: {error}") from error
    except OSError as error:
        if type(error) is OSError and error.errno is None:  # pyarrow's word for damaged messages
            raise OpError(f"{name_of(uri)}: not an Arrow IPC file that can be read: {error}") from error
        raise


class _File(OpenedFile):
    def __init__(self, uri: str) -> None:
        self._uri = uri
        with _reading(uri, None, None) as file:
            self._schema, self._batches = file.schema.remove_metadata(), file.num_record_batches
            str(self._schema)  # names that are no text, too, are damage

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    def chunks(self, test: Conditions) -> Iterator[LateChunk]:
        for number in range(self._batches):
            yield _Batch(self._uri, self._schema, number)


class _Batch(LateChunk):
    def __init__(self, uri: str, schema: pa.Schema, number: int) -> None:
        self._uri, self._schema, self._number = uri, schema, number
        self._height: int | None = None

    @property
    def height(self) -> int:
        if self._height is None:
            with _reading(self._uri, self._schema.names[:1], self._schema) as file:
                self._height = file.get_batch(self._number).num_rows
        return self._height

    @property
    def place(self) -> tuple[str, str]:
        return self._uri, f"record batch {self._number}"

    def read(self, names: Sequence[str], rows: Rows | None) -> pa.Table:
        with _reading(self._uri, names, self._schema) as file:
            batch = file.get_batch(self._number)
            batch.validate(full=True)  # damaged offsets lead nowhere
            self._height = batch.num_rows
            table = pa.Table.from_batches([batch]).select(list(names))
            return table if rows is None else table.take(pa.array(rows))
