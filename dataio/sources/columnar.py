"""Frames, tables and data sets as columnar sources: projection, conditions and limits reach whatever can use them.

This module needs pyarrow and is imported when something columnar is bound.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dataio.engine.errors import SourceError
from dataio.engine.expr import Cond
from dataio.engine.relational import (
    BATCH_ROWS,
    batch_query,
    check_columns,
    frame_batches,
    frame_of,
    frame_schema,
    lazy_query,
    narrowed,
    needed,
    pruning,
    taken,
)
from dataio.engine.shuffle import Recent, grouped, is_large
from dataio.engine.source import FIRST_PASS, ColumnarSource, Pass
from dataio.formats.tables.parquet_file import schema_without_views

if TYPE_CHECKING:
    import polars as pl
    import pyarrow.dataset as pds


class ArrowSource(ColumnarSource):
    """A source that yields Arrow batches of chosen columns; conditions and limits work on the stream."""

    @abstractmethod
    def read(
        self, columns: list[str] | None, predicate: Cond | None, rows: int | None, offset: int
    ) -> Iterator[pa.RecordBatch]:
        """One epoch of at least `columns`, without the first `offset` rows.

        Rows that fail `predicate` may be left out, and everything after the first `rows` rows, offset included.
        """

    def record_batches(
        self,
        *,
        columns: tuple[str, ...] | None,
        predicate: Cond | None,
        limit: int | None,
        offset: int = 0,
        pass_: Pass = FIRST_PASS,
    ) -> Iterator[pa.RecordBatch]:
        check_columns(self.schema().names, columns, predicate)
        rows = offset + limit if limit is not None and predicate is None else None
        skipped = 0 if predicate is not None else offset
        batches = self.read(needed(columns, predicate), predicate, rows, skipped)
        return batch_query(batches, columns, predicate, offset - skipped, limit)


class TableSource(ArrowSource):
    """A pyarrow Table; its batches are views."""

    def __init__(self, table: pa.Table, title: str = "arrow table") -> None:
        plain = schema_without_views(table.schema)
        self._table, self._title = table if plain == table.schema else table.cast(plain), title

    def describe(self) -> str:
        return f"{self._title}: {_shape(self._table.num_rows, self.schema())}"

    def length(self) -> int:
        return int(self._table.num_rows)

    def schema(self) -> pa.Schema:
        return self._table.schema

    def read(
        self, columns: list[str] | None, predicate: Cond | None, rows: int | None, offset: int
    ) -> Iterator[pa.RecordBatch]:
        table = self._table if columns is None else self._table.select(columns)
        length = None if rows is None else max(0, rows - offset)
        yield from table.slice(offset, length).to_batches(max_chunksize=BATCH_ROWS)

    def lazy_frame(self, *, predicate: Cond | None = None, pass_: Pass = FIRST_PASS) -> pl.LazyFrame:
        return narrowed(frame_of(self._table).lazy(), None, predicate, 0, None)

    def take(self, rows: Sequence[int], columns: tuple[str, ...] | None) -> pa.RecordBatch:
        return taken(self._table if columns is None else self._table.select(columns), rows)


class StreamSource(ArrowSource):
    """An Arrow stream that can be read once."""

    def __init__(self, reader: pa.RecordBatchReader, title: str) -> None:
        self._reader: pa.RecordBatchReader | None = reader
        self._schema, self._title = reader.schema, title

    def describe(self) -> str:
        return f"{self._title}: {_shape(None, self._schema)}, one epoch"

    def length(self) -> None:
        return None

    def schema(self) -> pa.Schema:
        return self._schema

    def read(
        self, columns: list[str] | None, predicate: Cond | None, rows: int | None, offset: int
    ) -> Iterator[pa.RecordBatch]:
        reader, self._reader = self._reader, None
        if reader is None:
            raise SourceError(
                f"this {self._title} was read in an earlier epoch and cannot start again; "
                "bind a table (reader.read_all()), a data set, or a factory: bind(lambda: open_reader())"
            )
        yield from batch_query(reader, offset=offset)


class ExporterSource(ArrowSource):
    """An object with `__arrow_c_stream__`, asked for a new stream in each epoch."""

    def __init__(self, exporter: Any, first: pa.RecordBatchReader) -> None:
        self._exporter, self._schema = exporter, first.schema
        self._first: pa.RecordBatchReader | None = first

    def describe(self) -> str:
        return f"{type(self._exporter).__name__}: {_shape(None, self._schema)}"

    def length(self) -> None:
        return None

    def schema(self) -> pa.Schema:
        return self._schema

    def read(
        self, columns: list[str] | None, predicate: Cond | None, rows: int | None, offset: int
    ) -> Iterator[pa.RecordBatch]:
        reader, self._first = self._first, None
        if reader is None:
            try:
                reader = pa.RecordBatchReader.from_stream(self._exporter)
            except Exception as error:
                raise SourceError(
                    f"{type(self._exporter).__name__} gave no second Arrow stream: it can be read in one epoch only; "
                    "bind a table or a factory instead"
                ) from error
        yield from batch_query(reader, offset=offset)


class DatasetSource(ArrowSource):
    """A pyarrow data set, scanned in row order with the files and row groups skipped that a condition rules out."""

    # Rows per batch: few where a row may be an image, so that the batches read ahead do not fill the memory.
    _SMALL_ROWS, _LARGE_ROWS, _READAHEAD = 32_768, 512, 4

    def __init__(self, dataset: pds.Dataset, title: str = "arrow dataset") -> None:
        self._dataset, self._title = _plain(dataset), title
        self._groups: RowGroups | None = None
        self._length: int | None = None

    def describe(self) -> str:
        return f"{self._title}: {_shape(None, self.schema())}"

    def length(self) -> int | None:
        """Known from the files' footers for Parquet; other formats would have to be read."""
        if self._length is None and self._is_parquet():
            self._length = int(self._dataset.count_rows())
        return self._length

    def groups(self) -> RowGroups | None:
        """Where the rows of a Parquet data set lie; None when they are not rows of files one to one."""
        if self._groups is None and self._is_parquet():
            try:
                self._groups = RowGroups(self._dataset)
            except ValueError:  # a data set that was filtered
                return None
        return self._groups

    def _is_parquet(self) -> bool:
        return getattr(getattr(self._dataset, "format", None), "default_extname", "") == "parquet"

    def schema(self) -> pa.Schema:
        return self._dataset.schema

    def read(
        self, columns: list[str] | None, predicate: Cond | None, rows: int | None, offset: int
    ) -> Iterator[pa.RecordBatch]:
        read = self.schema() if columns is None else [self.schema().field(name) for name in columns]
        dataset, groups = self._dataset, self.groups() if offset else None
        if groups is not None:
            dataset, offset = groups.after(offset)
        scanner = dataset.scanner(
            columns=columns,
            filter=pruning(predicate, self.schema()),
            batch_size=self._LARGE_ROWS if any(is_large(field.type) for field in read) else self._SMALL_ROWS,
            batch_readahead=self._READAHEAD,
            fragment_readahead=1,
        )
        yield from batch_query(scanner.to_batches(), offset=offset)

    def take(self, rows: Sequence[int], columns: tuple[str, ...] | None) -> pa.RecordBatch | None:
        """Rows of a Parquet data set; the row groups that they lie in are read whole, and the last few of them kept."""
        groups = self.groups()
        return None if groups is None else groups.take(rows, columns)

    def group_starts(self) -> NDArray[np.int64] | None:
        groups = self.groups()
        return None if groups is None else groups.starts


def _plain(dataset: pds.Dataset) -> pds.Dataset:
    """The data set with plain text and bytes for views (as Polars writes them), of which pyarrow takes no rows by number."""
    import pyarrow.dataset as pds

    plain = schema_without_views(dataset.schema)
    if plain == dataset.schema or not isinstance(dataset, pds.FileSystemDataset):
        return dataset
    return pds.FileSystemDataset(list(dataset.get_fragments()), plain, dataset.format, dataset.filesystem)


class RowGroups:
    """The row groups of a Parquet data set, by the numbers of their rows; only footers are read to know them.

    Attributes:
        starts: number of the first row of each group, then of all rows.
    """

    _KEPT = 8  # row groups in memory: those of a window of shuffled blocks

    def __init__(self, dataset: pds.Dataset) -> None:
        self._dataset = dataset
        self._groups = [
            group for fragment in dataset.get_fragments() for group in fragment.split_by_row_group()
        ]
        rows = [group.row_groups[0].num_rows for group in self._groups]
        self.starts = np.cumsum([0, *rows])
        self._read: Recent[pa.Table] = Recent(self._KEPT)

    def after(self, offset: int) -> tuple[pds.Dataset, int]:
        """The data set from the row group on that holds row `offset`, and the rows of that to skip."""
        import pyarrow.dataset as pds

        first = int(np.searchsorted(self.starts, offset, side="right")) - 1
        rest = pds.FileSystemDataset(
            self._groups[first:], self._dataset.schema, self._dataset.format, self._dataset.filesystem
        )
        return rest, offset - int(self.starts[first])

    def take(self, rows: Sequence[int], columns: tuple[str, ...] | None) -> pa.RecordBatch:
        """Rows by number."""
        names = self._dataset.schema.names if columns is None else list(columns)
        numbers = np.asarray(rows, np.int64)
        owners = np.searchsorted(self.starts, numbers, side="right") - 1
        parts, places = [], [np.empty(0, np.int64)]
        for owner, at in grouped(owners):
            parts.append(taken(self._group(owner, tuple(names)), numbers[at] - self.starts[owner]))
            places.append(at)
        schema = pa.schema([self._dataset.schema.field(name) for name in names])
        found = pa.Table.from_batches(parts, schema)
        return taken(found, np.argsort(np.concatenate(places), kind="stable"))

    def _group(self, number: int, columns: tuple[str, ...]) -> pa.Table:
        return self._read.get((number, columns), lambda: self._load(number, columns))

    def _load(self, number: int, columns: tuple[str, ...]) -> pa.Table:
        return self._groups[number].to_table(schema=self._dataset.schema, columns=list(columns))


class LoadedSource(ColumnarSource):
    """A columnar source of known length that is read into memory once, as far as its columns are asked for."""

    def __init__(self, below: DatasetSource) -> None:
        self.below = below
        self._read: Recent[TableSource] = Recent(1)

    def describe(self) -> str:
        return self.below.describe()

    def length(self) -> int | None:
        return self.below.length()

    def schema(self) -> pa.Schema:
        return self.below.schema()

    def record_batches(
        self,
        *,
        columns: tuple[str, ...] | None,
        predicate: Cond | None,
        limit: int | None,
        offset: int = 0,
        pass_: Pass = FIRST_PASS,
    ) -> Iterator[pa.RecordBatch]:
        return self.below.record_batches(columns=columns, predicate=predicate, limit=limit, offset=offset)

    def take(self, rows: Sequence[int], columns: tuple[str, ...] | None) -> pa.RecordBatch:
        if not rows:  # only whether it can be done is asked
            return pa.RecordBatch.from_pylist([], schema=pa.schema([]))
        return self._read.get(columns, lambda: self._load(columns)).take(rows, columns)

    def _load(self, columns: tuple[str, ...] | None) -> TableSource:
        names = self.schema().names if columns is None else columns
        schema = pa.schema([self.schema().field(name) for name in names])
        batches = self.below.record_batches(columns=columns, predicate=None, limit=None)
        return TableSource(pa.Table.from_batches(batches, schema).combine_chunks())




class HubDatasetSource(ArrowSource):
    """A Hugging Face data set: its own Arrow table, seen through the order that shuffle, select and filter gave it.

    Encoded features (images, audio) stay as they are stored, a struct of `bytes` and `path`.
    """

    _BATCH_ROWS = 1024

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset.with_format("arrow", columns=dataset.format["columns"])

    def describe(self) -> str:
        return f"datasets.Dataset: {_shape(self.length(), self.schema())}"

    def length(self) -> int:
        return len(self._dataset)

    def schema(self) -> pa.Schema:
        names = self._dataset.format["columns"]
        schema = self._dataset.features.arrow_schema.remove_metadata()
        return pa.schema([schema.field(name) for name in names])

    def read(
        self, columns: list[str] | None, predicate: Cond | None, rows: int | None, offset: int
    ) -> Iterator[pa.RecordBatch]:
        dataset = self._dataset
        if columns is not None:
            dataset = dataset.with_format("arrow", columns=columns)
        if rows is not None or offset:
            stop = len(dataset) if rows is None else min(rows, len(dataset))
            if offset >= stop:  # `select` wants numbers of rows that exist
                return
            dataset = dataset.select(range(offset, stop))
        for table in dataset.iter(batch_size=self._BATCH_ROWS):
            yield from table.replace_schema_metadata(None).to_batches()

    def take(self, rows: Sequence[int], columns: tuple[str, ...] | None) -> pa.RecordBatch:
        dataset = self._dataset if columns is None else self._dataset.with_format("arrow", columns=list(columns))
        table = dataset[rows if isinstance(rows, range) else list(rows)]
        return taken(table.replace_schema_metadata(None), range(len(rows)))


class PandasSource(ArrowSource):
    """A pandas DataFrame without its index; NaN is null, as in `pyarrow.Table.from_pandas`."""

    def __init__(self, frame: Any, schema: pa.Schema) -> None:
        self._frame, self._schema = frame, schema

    def describe(self) -> str:
        return f"pandas.DataFrame: {_shape(self.length(), self._schema)}"

    def length(self) -> int:
        return len(self._frame)

    def schema(self) -> pa.Schema:
        return self._schema

    def read(
        self, columns: list[str] | None, predicate: Cond | None, rows: int | None, offset: int
    ) -> Iterator[pa.RecordBatch]:
        names = self._schema.names if columns is None else columns
        schema = pa.schema([self._schema.field(name) for name in names])
        frame = self._frame[names]
        stop = self.length() if rows is None else min(rows, self.length())
        for start in range(offset, stop, BATCH_ROWS):
            part = frame.iloc[start : min(start + BATCH_ROWS, stop)]
            yield pa.RecordBatch.from_pandas(part, schema=schema, preserve_index=False, nthreads=1)

    def take(self, rows: Sequence[int], columns: tuple[str, ...] | None) -> pa.RecordBatch:
        names = self._schema.names if columns is None else list(columns)
        schema = pa.schema([self._schema.field(name) for name in names])
        part = self._frame[names].iloc[list(rows)]
        return pa.RecordBatch.from_pandas(part, schema=schema, preserve_index=False, nthreads=1)


class FrameSource(ColumnarSource):
    """A Polars DataFrame."""

    def __init__(self, frame: pl.DataFrame) -> None:
        self._frame = frame

    def describe(self) -> str:
        return f"polars.DataFrame: {_shape(self.length(), self.schema())}"

    def length(self) -> int:
        return int(self._frame.height)

    def schema(self) -> pa.Schema:
        return frame_schema(self._frame.schema)

    def record_batches(
        self,
        *,
        columns: tuple[str, ...] | None,
        predicate: Cond | None,
        limit: int | None,
        offset: int = 0,
        pass_: Pass = FIRST_PASS,
    ) -> Iterator[pa.RecordBatch]:
        check_columns(self._frame.columns, columns, predicate)
        if predicate is not None:
            return lazy_query(self._frame.lazy(), columns, predicate, offset, limit)
        chosen = self._frame if columns is None else self._frame.select(columns)
        return frame_batches(chosen.slice(offset, limit))

    def lazy_frame(self, *, predicate: Cond | None = None, pass_: Pass = FIRST_PASS) -> pl.LazyFrame:
        return narrowed(self._frame.lazy(), None, predicate, 0, None)

    def take(self, rows: Sequence[int], columns: tuple[str, ...] | None) -> pa.RecordBatch:
        chosen = self._frame if columns is None else self._frame.select(columns)
        found = list(frame_batches(chosen[list(rows)]))
        table = pa.Table.from_batches(found, found[0].schema if found else frame_schema(chosen.schema))
        return taken(table, range(len(rows)))


class LazyFrameSource(ColumnarSource):
    """A Polars LazyFrame, run anew in each epoch by the streaming engine."""

    def __init__(self, frame: pl.LazyFrame, title: str = "polars.LazyFrame") -> None:
        self._frame, self._title = frame, title

    def describe(self) -> str:
        return f"{self._title}: {_shape(None, self.schema())}"

    def length(self) -> None:
        return None

    def schema(self) -> pa.Schema:
        return frame_schema(self._frame.collect_schema())

    def record_batches(
        self,
        *,
        columns: tuple[str, ...] | None,
        predicate: Cond | None,
        limit: int | None,
        offset: int = 0,
        pass_: Pass = FIRST_PASS,
    ) -> Iterator[pa.RecordBatch]:
        check_columns(self._frame.collect_schema().names(), columns, predicate)
        return lazy_query(self._frame, columns, predicate, offset, limit)

    def lazy_frame(self, *, predicate: Cond | None = None, pass_: Pass = FIRST_PASS) -> pl.LazyFrame:
        return narrowed(self._frame, None, predicate, 0, None)


def _shape(rows: int | None, schema: pa.Schema) -> str:
    return f"{'?' if rows is None else rows} rows, columns {', '.join(schema.names)}"
