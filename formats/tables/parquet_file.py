"""An open Parquet file at any URI: its footer, and row groups of chosen columns as Arrow tables.

pyarrow parses and decodes. Files of stores are read as few, parallel ranges: the end of the file first, then the column
chunks that are needed, neighbours together.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from ...engine.errors import OpError
from ...engine.source import RangeReader
from ...io.file_objects import RangeFile
from ...io.parallel import for_each
from ...io.ranges import MemoryRanges
from ..inputs import local_file, missing_key, name_of, naming, open_ranges
from .footer import CHECKED, check_footer

TAIL = 1 << 16
"""Bytes of the first read of a file in a store: nearly every footer is shorter."""
GAP = 1 << 18
"""Bytes between two column chunks that are read along rather than asked for separately."""
PART = 8 << 20
"""Largest range of one request; larger ones are read as several at a time."""
AHEAD = 128 << 20
"""Compressed bytes of row groups that are fetched from a store together."""


@contextmanager
def parquet_errors(source: Any) -> Iterator[None]:
    """pyarrow's complaints about a file become an OpError (a ValueError) with its name; errors of stores pass."""
    try:
        yield
    except (pa.ArrowException, OverflowError, UnicodeDecodeError) as error:
        raise OpError(f"{name_of(source)}: not a Parquet file that can be read: {_first_line(error)}") from error
    except OSError as error:
        if type(error) is OSError and error.errno is None:  # how pyarrow reports damage in pages and in the footer
            raise OpError(f"{name_of(source)}: not a Parquet file that can be read: {_first_line(error)}") from error
        raise


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]


class Fetched:
    """A `RangeReader` over another that keeps ranges fetched ahead, until the next call of `fetch`."""

    identity: Hashable | None = None

    def __init__(self, below: RangeReader) -> None:
        self._below, self.size = below, below.size
        self._starts: list[int] = []
        self._parts: list[Any] = []

    def fetch(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Fetch (start, stop) ranges, in parallel, and forget those of before."""
        wanted = merged(ranges)
        found: dict[int, Any] = {}

        def one(part: tuple[int, int]) -> None:
            found[part[0]] = self._below.read(part[0], part[1] - part[0])

        pieces = [(at, min(at + PART, stop)) for start, stop in wanted for at in range(start, stop, PART)]
        if len(pieces) == 1:
            one(pieces[0])
        else:
            for_each(one, pieces)
        self._starts = sorted(found)
        self._parts = [found[start] for start in self._starts]

    def read(self, offset: int, length: int) -> Any:
        """Exactly these bytes."""
        out = bytearray(length)
        self.read_into(offset, memoryview(out))
        return out

    def read_into(self, offset: int, out: memoryview) -> None:
        """Fill `out` from what was fetched; only what was not is read now."""
        done = 0
        while done < len(out):
            at = bisect.bisect_right(self._starts, offset + done) - 1
            inside = offset + done - self._starts[at] if at >= 0 else 0
            if at < 0 or inside >= len(self._parts[at]):
                stop = self._starts[at + 1] - offset if at + 1 < len(self._starts) else len(out)
                self._below.read_into(offset + done, out[done : min(stop, len(out))])
                done = min(stop, len(out))
                continue
            part = memoryview(self._parts[at])[inside : inside + len(out) - done]
            out[done : done + len(part)] = part
            done += len(part)

    def close(self) -> None:
        """Let go of everything."""
        self._starts, self._parts = [], []
        self._below.close()


def merged(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """(start, stop) ranges in order, those at most `GAP` bytes apart as one."""
    found: list[tuple[int, int]] = []
    for start, stop in sorted(ranges):
        if found and start - found[-1][1] <= GAP:
            found[-1] = (found[-1][0], max(found[-1][1], stop))
        elif stop > start:
            found.append((start, stop))
    return found


class ParquetSource:
    """An open Parquet file; a context manager. For one thread.

    Args:
        source: a path or URI, bytes-like, a `dataio.Reader` or an object with `read()`.

    Attributes:
        schema: the Arrow schema, as it was written, but for views of text and bytes, which are read as large text and bytes.
        metadata: pyarrow's FileMetaData.

    Raises:
        ValueError: not Parquet, cut short, damaged, encrypted (OpError).
        FileNotFoundError, OSError: missing or unreadable.
    """

    def __init__(self, source: Any) -> None:
        import pyarrow.parquet as pq

        self.source = source
        self._fetched: Fetched | None = None
        self._file: Any = None
        with parquet_errors(source):
            path = local_file(source)
            ranges = None if path is not None else open_ranges(source)
            if ranges is None:
                opened: Any = pa.OSFile(path)
                self.size = opened.size()
            elif isinstance(ranges, MemoryRanges):
                opened = pa.BufferReader(pa.py_buffer(ranges.read(0, ranges.size)))
                self.size = ranges.size
            else:
                self._fetched = Fetched(ranges)
                opened, self.size = RangeFile(self._fetched, 0), ranges.size
            try:
                if self._fetched is not None:
                    self._fetched.fetch([(max(0, self.size - TAIL), self.size)])
                self._opened = opened
                self._file = pq.ParquetFile(opened, pre_buffer=False, memory_map=False)
                if len(footer := self._footer()) <= CHECKED:
                    with naming(source):
                        check_footer(footer)
                self.metadata: Any = self._file.metadata
                self.schema: pa.Schema = schema_without_views(self._file.schema_arrow)
            except BaseException:
                opened.close()
                raise

    def __enter__(self) -> ParquetSource:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._file.close(force=True)
        self._opened.close()

    def _footer(self) -> bytes:
        """The serialised FileMetaData, as it is in the file."""
        self._opened.seek(self.size - 8)
        length = int.from_bytes(self._opened.read(4), "little")
        self._opened.seek(max(0, self.size - 8 - length))
        return bytes(self._opened.read(length))

    # ---------------------------------------------------------------- names

    def path_of(self, name: str) -> list[str] | None:
        """The way to a column: its name, or for `a.b` the names of nested structs; None where there is none.

        Raises:
            ValueError: several columns have the name.
        """
        parts: list[str] = []
        fields = list(self.schema)
        rest = name
        while True:
            exact = [f for f in fields if f.name == rest]
            if len(exact) > 1:
                raise OpError(f"{name_of(self.source)}: {len(exact)} columns are called {rest!r}")
            if exact:
                return [*parts, rest]
            structs = [f for f in fields if rest.startswith(f.name + ".") and kinds.is_struct(f.type)]
            if not structs:
                return None
            below = max(structs, key=lambda f: len(f.name))
            parts.append(below.name)
            fields, rest = list(below.type), rest[len(below.name) + 1 :]

    def known(self) -> list[str]:
        """Every name that a column may be asked by."""
        return list(_dotted(self.schema))

    def paths(self, names: Iterable[str]) -> dict[str, list[str]]:
        """The ways to columns; a missing one raises KeyError."""
        found = {}
        for name in names:
            if (path := self.path_of(name)) is None:
                raise missing_key(self.source, "column", name, self.known())
            found[name] = path
        return found

    # -------------------------------------------------------------- reading

    def batches_of_groups(self, groups: Sequence[int]) -> Iterator[list[int]]:
        """Row groups in runs that are worth fetching together, and still fit memory."""
        run: list[int] = []
        size = 0
        for group in groups:
            more = int(self.metadata.row_group(group).total_byte_size)
            if run and size + more > AHEAD:
                yield run
                run, size = [], 0
            run.append(group)
            size += more
        if run:
            yield run

    def read(self, groups: Sequence[int], names: Sequence[str]) -> pa.Table:
        """Row groups, in the order given, with these columns (dotted names reach into structs); chunks stay chunks.

        Raises:
            KeyError: an unknown column.
            ValueError: damaged (OpError).
        """
        paths = self.paths(names)
        rows = sum(self.metadata.row_group(group).num_rows for group in groups)
        if not names:
            return empty_rows(rows)
        with parquet_errors(self.source):
            leaves = self._leaves(paths.values())
            chunks = self._chunk_ranges(groups, leaves)
            if self._fetched is not None:
                self._fetched.fetch(chunks)
            table = self._file.reader.read_row_groups(list(groups), column_indices=leaves, use_threads=self._fetched is None)
            if table.num_rows != rows:
                raise OpError(f"{name_of(self.source)}: row groups of {rows} rows hold {table.num_rows}")
            columns = [_reach(table, path) for path in paths.values()]
            # a cast to its own type would cut the values below a null of a fixed-size list
            columns = [c if (plain := without_views(c.type)) == c.type else c.cast(plain) for c in columns]
        fields = [pa.field(name, column.type) for name, column in zip(names, columns, strict=True)]
        return pa.Table.from_arrays(columns, schema=pa.schema(fields))

    def _leaves(self, paths: Iterable[list[str]]) -> list[int]:
        wanted = [tuple(path) for path in paths]
        schema, found = self.metadata.schema, []
        for number in range(len(schema)):
            leaf = schema.column(number).path
            if any(leaf == ".".join(path) or leaf.startswith(".".join(path) + ".") for path in wanted):
                found.append(number)
        return found

    def _chunk_ranges(self, groups: Iterable[int], leaves: Sequence[int]) -> list[tuple[int, int]]:
        found = []
        for group in groups:
            row_group = self.metadata.row_group(group)
            for leaf in leaves:
                start, length = chunk_range(row_group.column(leaf))
                if start < 0 or length < 0 or start + length > self.size:
                    raise OpError(
                        f"{name_of(self.source)}: column {row_group.column(leaf).path_in_schema!r} of row group {group} lies at bytes "
                        f"{start} to {start + length} of a file of {self.size}"
                    )
                found.append((start, start + length))
        return found


def chunk_range(chunk: Any) -> tuple[int, int]:
    """(start, length) of a column chunk in the file."""
    start = chunk.data_page_offset
    if chunk.dictionary_page_offset is not None and 0 < chunk.dictionary_page_offset < start:
        start = chunk.dictionary_page_offset
    return start, chunk.total_compressed_size


def without_views(kind: pa.DataType) -> pa.DataType:
    """The type with plain text and bytes for string and binary views, which pyarrow neither filters nor takes from."""
    if kinds.is_string_view(kind):
        return pa.large_string()
    if kinds.is_binary_view(kind):
        return pa.large_binary()
    if kinds.is_struct(kind):
        return pa.struct([field.with_type(without_views(field.type)) for field in kind])
    if kinds.is_list(kind):
        return pa.list_(kind.value_field.with_type(without_views(kind.value_type)))
    if kinds.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(without_views(kind.value_type)))
    return kind


def schema_without_views(schema: pa.Schema) -> pa.Schema:
    """`without_views` of every field."""
    return pa.schema([field.with_type(without_views(field.type)) for field in schema], schema.metadata)


def _reach(table: pa.Table, path: list[str]) -> pa.ChunkedArray:
    column = table.column(path[0])
    for name in path[1:]:
        index = column.type.get_field_index(name)
        column = pc.struct_field(column, [index])
    return column


def cut(table: pa.Table, start: int, length: int | None = None) -> pa.Table:
    """`table.slice`, which forgets to cut tables without columns."""
    if table.num_columns:
        return table.slice(start, length)
    left = max(0, table.num_rows - start)
    return empty_rows(left if length is None else min(left, length))


def empty_rows(rows: int) -> pa.Table:
    """A table without columns; pyarrow keeps its number of rows only this way."""
    return pa.table({"": pa.nulls(rows)}).select([])


def _dotted(fields: Iterable[pa.Field], above: str = "") -> Iterator[str]:
    for field in fields:
        yield above + field.name
        if kinds.is_struct(field.type):
            yield from _dotted(field.type, f"{above}{field.name}.")


def checked_names(columns: Any) -> list[str] | None:
    """Column names as given, duplicates once.

    Raises:
        TypeError: a str, or an item that is none.
    """
    if columns is None:
        return None
    if isinstance(columns, (str, bytes)) or not isinstance(columns, Iterable):
        raise TypeError(f"columns are a sequence of names, got {columns!r}")
    names = list(columns)
    if wrong := next((name for name in names if not isinstance(name, str)), None):
        raise TypeError(f"columns are names (str), got {wrong!r}")
    if not all(isinstance(name, str) for name in names):
        raise TypeError("columns are names (str)")
    return list(dict.fromkeys(names))


def checked_groups(groups: Any) -> list[int] | None:
    """Row group numbers as given, duplicates once.

    Raises:
        TypeError: no sequence of int.
        ValueError: negative.
    """
    if groups is None:
        return None
    if isinstance(groups, (str, bytes)) or not isinstance(groups, Iterable):
        raise TypeError(f"row groups are a sequence of numbers, got {groups!r}")
    found = list(groups)
    for group in found:
        if isinstance(group, bool) or not isinstance(group, int):
            raise TypeError(f"row groups are numbers (int), got {group!r}")
        if group < 0:
            raise ValueError(f"row groups count from 0, got {group}")
    return list(dict.fromkeys(found))


def starts_of(metadata: Any, groups: Sequence[int]) -> list[int]:
    """The first row of each of these row groups, counted over them in this order, and the number of all rows."""
    return [0, *itertools.accumulate(metadata.row_group(group).num_rows for group in groups)]
