"""Frames, tables and data sets as columnar sources: projection, conditions and limits reach whatever can use them.

This module needs pyarrow and is imported when something columnar is bound.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dataio.engine.errors import SourceError
from dataio.engine.expr import Cond
from dataio.engine.relational import (
    BATCH_ROWS,
    batch_query,
    check_columns,
    frame_batches,
    frame_schema,
    lazy_query,
    needed,
    pruning,
)
from dataio.engine.source import ColumnarSource, Pass

if TYPE_CHECKING:
    import polars as pl
    import pyarrow.dataset as pds


class ArrowSource(ColumnarSource):
    """A source that yields Arrow batches of chosen columns; conditions and limits work on the stream."""

    @abstractmethod
    def read(
        self, columns: list[str] | None, predicate: Cond | None, rows: int | None
    ) -> Iterator[pa.RecordBatch]:
        """One epoch of at least `columns`.

        Rows that fail `predicate` may be left out, and everything after the first `rows` rows.
        """

    def record_batches(
        self,
        *,
        columns: tuple[str, ...] | None,
        predicate: Cond | None,
        limit: int | None,
        offset: int = 0,
        pass_: Pass = Pass(),  # noqa: B008
    ) -> Iterator[pa.RecordBatch]:
        check_columns(self.schema().names, columns, predicate)
        rows = offset + limit if limit is not None and predicate is None else None
        batches = self.read(needed(columns, predicate), predicate, rows)
        return batch_query(batches, columns, predicate, offset, limit)


class TableSource(ArrowSource):
    """A pyarrow Table; its batches are views."""

    def __init__(self, table: pa.Table, title: str = "arrow table") -> None:
        self._table, self._title = table, title

    def describe(self) -> str:
        return f"{self._title}: {_shape(self._table.num_rows, self.schema())}"

    def length(self) -> int:
        return int(self._table.num_rows)

    def schema(self) -> pa.Schema:
        return self._table.schema

    def read(
        self, columns: list[str] | None, predicate: Cond | None, rows: int | None
    ) -> Iterator[pa.RecordBatch]:
        table = self._table if columns is None else self._table.select(columns)
        yield from table.slice(0, rows).to_batches(max_chunksize=BATCH_ROWS)


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
        self, columns: list[str] | None, predicate: Cond | None, rows: int | None
    ) -> Iterator[pa.RecordBatch]:
        reader, self._reader = self._reader, None
        if reader is None:
            raise SourceError(
                f"this {self._title} was read in an earlier epoch and cannot start again; "
                "bind a table (reader.read_all()), a data set, or a factory: bind(lambda: open_reader())"
            )
        yield from reader


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
        self, columns: list[str] | None, predicate: Cond | None, rows: int | None
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
        yield from reader


class DatasetSource(ArrowSource):
    """A pyarrow data set, scanned in row order with the files and row groups skipped that a condition rules out."""

    # Rows per batch: few where a row may be an image, so that the batches read ahead do not fill the memory.
    _SMALL_ROWS, _LARGE_ROWS, _READAHEAD = 32_768, 512, 4

    def __init__(self, dataset: pds.Dataset, title: str = "arrow dataset") -> None:
        self._dataset, self._title = dataset, title
        self._rows: int | None = None

    def describe(self) -> str:
        return f"{self._title}: {_shape(None, self.schema())}"

    def length(self) -> int | None:
        """Known from the files' footers for Parquet; other formats would have to be read."""
        if (
            self._rows is None
            and getattr(getattr(self._dataset, "format", None), "default_extname", "") == "parquet"
        ):
            self._rows = int(self._dataset.count_rows())
        return self._rows

    def schema(self) -> pa.Schema:
        return self._dataset.schema

    def read(
        self, columns: list[str] | None, predicate: Cond | None, rows: int | None
    ) -> Iterator[pa.RecordBatch]:
        read = self.schema() if columns is None else [self.schema().field(name) for name in columns]
        scanner = self._dataset.scanner(
            columns=columns,
            filter=pruning(predicate, self.schema()),
            batch_size=self._LARGE_ROWS if any(_is_large(field.type) for field in read) else self._SMALL_ROWS,
            batch_readahead=self._READAHEAD,
            fragment_readahead=1,
        )
        yield from scanner.to_batches()


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
        self, columns: list[str] | None, predicate: Cond | None, rows: int | None
    ) -> Iterator[pa.RecordBatch]:
        dataset = self._dataset
        if columns is not None:
            dataset = dataset.with_format("arrow", columns=columns)
        if rows is not None:
            dataset = dataset.select(range(min(rows, len(dataset))))
        for table in dataset.iter(batch_size=self._BATCH_ROWS):
            yield from table.replace_schema_metadata(None).to_batches()


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
        self, columns: list[str] | None, predicate: Cond | None, rows: int | None
    ) -> Iterator[pa.RecordBatch]:
        names = self._schema.names if columns is None else columns
        schema = pa.schema([self._schema.field(name) for name in names])
        frame = self._frame[names]
        stop = self.length() if rows is None else min(rows, self.length())
        for start in range(0, stop, BATCH_ROWS):
            part = frame.iloc[start : min(start + BATCH_ROWS, stop)]
            yield pa.RecordBatch.from_pandas(part, schema=schema, preserve_index=False, nthreads=1)


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
        pass_: Pass = Pass(),  # noqa: B008
    ) -> Iterator[pa.RecordBatch]:
        check_columns(self._frame.columns, columns, predicate)
        if predicate is not None:
            return lazy_query(self._frame.lazy(), columns, predicate, offset, limit)
        chosen = self._frame if columns is None else self._frame.select(columns)
        return frame_batches(chosen.slice(offset, limit))


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
        pass_: Pass = Pass(),  # noqa: B008
    ) -> Iterator[pa.RecordBatch]:
        check_columns(self._frame.collect_schema().names(), columns, predicate)
        return lazy_query(self._frame, columns, predicate, offset, limit)


def _is_large(kind: pa.DataType) -> bool:
    """Whether values of this type may be whole files or arrays."""
    test = pa.types
    return bool(
        test.is_nested(kind)
        or test.is_binary(kind)
        or test.is_large_binary(kind)
        or isinstance(kind, pa.BaseExtensionType)
    )


def _shape(rows: int | None, schema: pa.Schema) -> str:
    return f"{'?' if rows is None else rows} rows, columns {', '.join(schema.names)}"
