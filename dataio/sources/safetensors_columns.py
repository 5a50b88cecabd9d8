"""safetensors files as columns: a row for each tensor, by the headers; payloads are read only where they are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import pyarrow as pa

from dataio.formats.inputs import naming, open_ranges
from dataio.formats.weights.safetensors import read_tensor_infos
from dataio.io.reader import reader
from dataio.io.uri import local_path

from .file_set import Files, FilesOptions, FilesScan, OpenedFile
from .files import Found
from .late import Conditions, LateChunk, Rows

SUFFIXES = (".safetensors",)
SCHEMA = pa.schema(
    {
        "file": pa.string(), "name": pa.string(), "dtype": pa.string(), "shape": pa.list_(pa.int64()), "bytes": pa.int64(),
        "offset": pa.int64(), "data": pa.large_binary(),
    }
)  # fmt: skip


class SafetensorsColumns(FilesScan):
    """A row for each tensor, in the order of the headers."""

    what = "scan_safetensors"

    def __init__(self, files: Files, options: FilesOptions) -> None:
        super().__init__(files, options)
        self.ahead = 1 if all(local_path(uri) is not None for uri in files.uris) else 4

    def opened(self, found: Found) -> OpenedFile:
        return _File(found.uri)

    def file_schema(self) -> pa.Schema:
        return SCHEMA  # whatever the files hold

    def indexed(self) -> bool:
        return self.skipped is None

    def cost(self, name: str) -> int:
        return 1 if name == "data" else 0


class _File(OpenedFile):
    def __init__(self, uri: str) -> None:
        self._uri = uri
        with naming(uri), closing(open_ranges(uri)) as ranges:
            self._tensors = read_tensor_infos(ranges)

    @property
    def schema(self) -> pa.Schema:
        return SCHEMA

    def chunks(self, test: Conditions) -> Iterator[LateChunk]:
        if self._tensors:
            yield _Tensors(self._uri, self._tensors)


class _Tensors(LateChunk):
    def __init__(self, uri: str, tensors: list[tuple[str, str, tuple[int, ...], int, int]]) -> None:
        self._uri, self._tensors = uri, tensors

    @property
    def height(self) -> int:
        return len(self._tensors)

    @property
    def place(self) -> tuple[str, str]:
        return self._uri, ""

    def read(self, names: Sequence[str], rows: Rows | None) -> pa.Table:
        tensors = self._tensors if rows is None else [self._tensors[row] for row in rows]
        columns: dict[str, Any] = {"file": [self._uri] * len(tensors)}
        for at, name in enumerate(("name", "dtype", "shape", "bytes", "offset")):
            columns[name] = [tensor[at] for tensor in tensors]
        if "data" in names:
            columns["data"] = self._payloads([(tensor[4], tensor[3]) for tensor in tensors])
        return pa.table({name: pa.array(columns[name], SCHEMA.field(name).type) for name in names})

    def _payloads(self, places: list[tuple[int, int]]) -> list[bytes]:
        if local_path(self._uri) is None:
            return reader(self._uri).read_ranges(places)
        with closing(open_ranges(self._uri)) as ranges:
            return [bytes(ranges.read(offset, size)) for offset, size in places]
