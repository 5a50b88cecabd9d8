"""Parquet files as one scan: row groups as chunks, left out by their statistics; local files are scanned by Polars itself."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.types as kinds

from dataio.engine.errors import DataioError, OpError
from dataio.engine.expr import Cond
from dataio.engine.relational import narrowed, streamed
from dataio.engine.source import FIRST_PASS, ColumnarSource, Pass
from dataio.formats.tables.parquet_file import ParquetSource
from dataio.io.parallel import for_each
from dataio.io.secrets import masked
from dataio.io.uri import local_path
from dataio.parquet_native import may_hold
from dataio.parquet_run import held_alike

from .file_set import Files, FilesOptions, FilesScan, OpenedFile
from .files import Found
from .late import Conditions, LateChunk, LateScan, Rows

_OPENINGS = 2
"""Of one file at a time, each of which reads the footer."""
SUFFIXES = (".parquet", ".pq", ".parq")


class ParquetFiles(FilesScan):
    """Several Parquet files. Rows have numbers, by the footers."""

    what = "scan_parquet"
    kept = 8  # row groups in memory: those of a window of shuffled blocks

    def __init__(self, files: Files, options: FilesOptions) -> None:
        super().__init__(files, options)
        self.local = all(local_path(uri) is not None for uri in files.uris)
        self.ahead = 2 if self.local else 4
        self._footers_checked = False

    def opened(self, found: Found) -> OpenedFile:
        return _File(found.uri)

    def indexed(self) -> bool:
        return self.skipped is None

    def row_groups(self, groups: Sequence[int]) -> ColumnarSource:
        return ChosenGroups(self, groups)

    def lazy_frame(self, *, predicate: Cond | None = None, pass_: Pass = FIRST_PASS) -> pl.LazyFrame:
        """Polars' own scan where it reads the files just as this one does."""
        if not self._polars_reads():
            return super().lazy_frame(predicate=predicate, pass_=pass_)
        self._check_footers()
        return narrowed(pl.scan_parquet(self.files.uris, glob=False, hive_partitioning=False), None, predicate, 0, None)

    def _polars_reads(self) -> bool:
        if not self.local or self.skipped is not None or self.options.on_schema == "union" or self._constants.num_columns:
            return False
        return all(held_alike(one.type) for one in self.file_schema())


    def _check_footers(self) -> None:
        """Of all files, once: Polars does not tell which of them differs, or is damaged."""
        schema = self.file_schema()

        def check(found: Found) -> None:
            with closing(self.opened(found)) as file:
                self._drift(schema, file.schema, found.uri)

        if not self._footers_checked:
            for_each(check, self.files.found)
            self._footers_checked = True

    def named(self, error: BaseException) -> Exception | None:
        """Polars met damage: it is looked for, a row group after the other; what only Polars takes for damage, a file after the other."""
        if not self._polars_reads():
            return None
        try:
            for chunk in self.chunks(Conditions(), FIRST_PASS):
                chunk.read(self.file_schema().names, None)
        except (DataioError, OSError) as found:
            return found
        for uri in self.files.uris:
            try:
                for _ in streamed(pl.scan_parquet(uri, glob=False, hive_partitioning=False)):
                    pass
            except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as found:
                return OpError(f"{masked(uri)}: not a Parquet file that can be read: {found}")
        return None


class ChosenGroups(LateScan):
    """Some row groups of a data set, counted over all of its files.

    Raises:
        IndexError: one that is not there.
    """

    kept = 8

    def __init__(self, below: ParquetFiles, groups: Sequence[int]) -> None:
        self._below, self._numbers, self.ahead, self.skipped = below, list(groups), below.ahead, below.skipped
        known = below.all_chunks()
        if wrong := [number for number in groups if number >= len(known)]:
            raise IndexError(f"{below.what}({below.files.title()}) has {len(known)} row groups, no number {wrong[0]}")

    def describe(self) -> str:
        return f"{self._below.describe()}, row groups {self._numbers}"

    def schema(self) -> pa.Schema:
        return self._below.schema()

    def cost(self, name: str) -> int:
        return self._below.cost(name)

    def indexed(self) -> bool:
        return self._below.indexed()

    def chunks(self, test: Conditions, pass_: Pass) -> Iterator[LateChunk]:
        known = self._below.all_chunks()
        yield from (known[number] for number in self._numbers)


class _Open:
    """A Parquet file for the threads that read its row groups, each with an opening of its own."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self._idle: list[ParquetSource] = []
        self._lock = threading.Lock()
        self._free = threading.Semaphore(_OPENINGS)

    def take(self) -> ParquetSource:
        """One that nobody else uses."""
        self._free.acquire()
        with self._lock:
            if self._idle:
                return self._idle.pop()
        try:
            return ParquetSource(self.uri)
        except BaseException:
            self._free.release()
            raise

    def give(self, source: ParquetSource) -> None:
        """The next one may have it."""
        with self._lock:
            self._idle.append(source)
        self._free.release()

    def __del__(self) -> None:
        for source in self._idle:
            source.close()


class _File(OpenedFile):
    def __init__(self, uri: str) -> None:
        self._uri, self._open = uri, _Open(uri)
        source = self._open.take()
        self._schema, self._metadata = source.schema, source.metadata
        self._open.give(source)

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    def chunks(self, test: Conditions) -> Iterator[LateChunk]:
        terms = test.clauses()
        for number in range(self._metadata.num_row_groups):
            group = self._metadata.row_group(number)
            if not terms or self._may_hold(group, terms):
                yield _RowGroup(self._open, number, group.num_rows)

    def _may_hold(self, group: Any, terms: list[tuple[str, str, Any]]) -> bool:
        leaves = {self._metadata.schema.column(number).path: number for number in range(len(self._metadata.schema))}

        def chunk(name: str) -> tuple[Any, pa.DataType] | None:
            number = leaves.get(name)
            at = self._schema.get_field_index(name)
            if number is None or at < 0 or kinds.is_nested(self._schema.field(at).type):
                return None
            return group.column(number), self._schema.field(at).type

        usable = []
        for name, op, value in terms:
            found = chunk(name)
            # A float's largest value in the statistics is none of its NaN, which Polars orders above all numbers.
            if found is not None and not (kinds.is_floating(found[1]) and op in (">", ">=")):
                usable.append((name, op, value))
        return not usable or bool(may_hold([usable], chunk, group.num_rows))


class _RowGroup(LateChunk):
    def __init__(self, file: _Open, number: int, rows: int) -> None:
        self._file, self._number, self._rows = file, number, rows

    @property
    def height(self) -> int:
        return self._rows

    @property
    def place(self) -> tuple[str, str]:
        return self._file.uri, f"row group {self._number}"

    def read(self, names: Sequence[str], rows: Rows | None) -> pa.Table:
        source = self._file.take()
        try:
            table = source.read([self._number], names)
            table.validate(full=True)  # text that is none would be undefined behaviour in Polars
        except pa.ArrowInvalid as error:
            raise OpError(f"{masked(self._file.uri)}: row group {self._number} is damaged: {error}") from error
        finally:
            self._file.give(source)
        return table if rows is None else table.take(pa.array(rows))
