"""`read_parquet`, `write_parquet`, `parquet_metadata`. Library: pyarrow.parquet."""

from __future__ import annotations

import os
import struct
from typing import Any

import pyarrow as pa
import pyarrow.types as kinds

from ...engine.errors import OpError
from ...io.arguments import check_count
from ...io.writer import writer
from ..inputs import name_of
from .parquet_file import (
    ParquetSource,
    checked_groups,
    checked_names,
    chunk_range,
    parquet_errors,
    starts_of,
)
from .streams import arrow_stream, gathered
from .values import columns_of

ROW_GROUP = 1 << 20
"""Rows of a row group, if they are not too many bytes."""


def read_parquet(
    path: Any, *, columns: Any = None, row_groups: Any = None, offset: int = 0, limit: int | None = None
) -> dict[str, list[Any]]:
    """A Parquet file as lists of Python values.

    Only the column chunks of the columns and row groups that are needed are read; those of a file in a store as few,
    parallel ranges.

    Args:
        path: a local path or URI, bytes-like, a `dataio.Reader` or an object whose `read()` returns bytes.
        columns: names, in the order they shall come back, duplicates once; "a.b" is field `b` of the struct `a`. None: all.
        row_groups: numbers from 0, in the order they are read, duplicates once. None: all.
        offset, limit: rows to skip and rows to keep of those; None: all.

    Returns:
        `{column: list}`. Integers, floats, bool, str, bytes and None; lists; dicts for structs and maps; days for dates and
        integers in the column's unit for times, timestamps and durations; decimals as str ("1.50"); the values of
        dictionary columns. All lists are of the same length.

    Raises:
        KeyError: an unknown column.
        ValueError: not Parquet, cut short or damaged; a row group that is not there; negative `offset` or `limit`.
        TypeError: `columns` or `row_groups` of another kind.
        FileNotFoundError, OSError: missing or unreadable. (The reference raises OSError for a missing file.)
    """
    names, groups = checked_names(columns), checked_groups(row_groups)
    check_count("offset", offset)
    if limit is not None:
        check_count("limit", limit)
    with ParquetSource(path) as source:
        many = source.metadata.num_row_groups
        if groups is None:
            groups = list(range(many))
        if wrong := [group for group in groups if group >= many]:
            raise OpError(f"{name_of(path)} has {many} row groups, no number {wrong[0]}")
        chosen = list(source.schema.names) if names is None else names
        starts = starts_of(source.metadata, groups)
        stop = starts[-1] if limit is None else min(starts[-1], offset + limit)
        touched = [at for at in range(len(groups)) if starts[at] < stop and starts[at + 1] > offset]
        read = [groups[at] for at in touched]
        runs = source.batches_of_groups(read) if read else iter([[]])
        first = starts[touched[0]] if touched else offset
        parts = [source.read(run, chosen) for run in runs]
        table = parts[0] if len(parts) == 1 else pa.concat_tables(parts)
        table = table.slice(offset - first, max(0, stop - offset))
        with parquet_errors(path):
            return columns_of(table)


def write_parquet(
    path: str | os.PathLike[str],
    table: Any,
    *,
    compression: str = "zstd",
    atomic: bool = True,
    row_group_size: int = ROW_GROUP,
) -> None:
    """Write a table as a Parquet file, row group by row group, without holding more than one of them.

    Args:
        path: a local path or URI of a store that can be written; parent folders have to exist.
        table: anything with `__arrow_c_stream__`: Arrow tables and readers, Polars and pandas frames, queries.
        compression: none, snappy, zstd, gzip, lz4 (raw) or brotli; in any case.
        atomic: False writes the local file in place.
        row_group_size: rows of one row group; batches are joined and split to that. Fewer where they take more than
            `streams.GATHERED` bytes. (The reference writes one row group per batch.)

    Raises:
        TypeError: `table` gives no Arrow stream.
        ValueError: another compression; a type that Parquet lacks (OpError).
        OSError: as `writer` says. Nothing is left then, and an old file stays as it was.
    """
    import pyarrow.parquet as pq

    codec = {"none": "NONE", "snappy": "SNAPPY", "zstd": "ZSTD", "gzip": "GZIP", "lz4": "LZ4", "brotli": "BROTLI"}.get(
        compression.lower() if isinstance(compression, str) else ""
    )
    if codec is None:
        raise ValueError(f"compression is none, snappy, zstd, gzip, lz4 or brotli, got {compression!r}")
    check_count("row_group_size", row_group_size, least=1)
    stream = arrow_stream(table, "write_parquet")
    with writer(os.fspath(path), atomic=atomic) as to:
        made: Any = None
        try:
            made = pq.ParquetWriter(to.open(), stream.schema, compression=codec)
            for part in gathered(stream, row_group_size):
                made.write_table(part, row_group_size=row_group_size)
            made.close()
        except BaseException as error:
            if made is not None:
                made.is_open = False  # else it would write a footer once it is collected
            if isinstance(error, pa.ArrowException):
                raise OpError(f"{name_of(path)}: {error}") from error
            raise


def parquet_metadata(path: Any) -> dict[str, Any]:
    """What the footer of a Parquet file says; of a file in a store only its end is read.

    Returns:
        `num_rows`, `num_row_groups`, `created_by`, `key_value_metadata` (list of `key`, `value`), `columns` (`name`,
        `type_label`, `nullable`) and `row_groups`: `num_rows`, `total_byte_size` (bytes before compression),
        `compressed_size`, `file_offset`, `columns`. A column chunk has `name` (of the leaf), `path` (list), `physical_type`,
        `logical_type`, `compression`, `encodings`, `num_values`, `total_compressed_size`, `total_uncompressed_size`,
        `byte_range` (`offset`, `length`), `file_offset`, `data_page_offset`, `dictionary_page_offset`,
        `index_page_offset` and `statistics`: None, or `min`, `max` (text; None where unknown), `min_bytes`, `max_bytes` (as stored),
        `min_is_exact`, `max_is_exact`, `null_count`, `distinct_count`.

    Raises:
        as `read_parquet` does.
    """
    with ParquetSource(path) as source, parquet_errors(path):
        return metadata_of(source)


def metadata_of(source: ParquetSource) -> dict[str, Any]:
    """`parquet_metadata` of an open file."""
    metadata = source.metadata
    return {
        "num_rows": metadata.num_rows,
        "num_row_groups": metadata.num_row_groups,
        "created_by": metadata.created_by,
        "key_value_metadata": [
            {"key": _text(key), "value": _text(value)} for key, value in (metadata.metadata or {}).items()
        ],
        "columns": schema_of(source),
        "row_groups": [
            _row_group(metadata.row_group(number), metadata.schema) for number in range(metadata.num_row_groups)
        ],
    }


def schema_of(source: ParquetSource) -> list[dict[str, Any]]:
    """The `columns` of `parquet_metadata`."""
    return [{"name": f.name, "type_label": type_label(f.type), "nullable": f.nullable} for f in source.schema]


def type_label(kind: pa.DataType) -> str:
    """The short name of an Arrow type, nested ones without their fields."""
    units = {"s": "Second", "ms": "Millisecond", "us": "Microsecond", "ns": "Nanosecond"}
    if isinstance(kind, pa.BaseExtensionType):
        return type_label(kind.storage_type)
    if kinds.is_dictionary(kind):
        return f"dictionary<{type_label(kind.value_type)}>"
    if kinds.is_timestamp(kind):
        return f"Timestamp({units[kind.unit]}, {kind.tz})"
    if kinds.is_time(kind):
        return f"Time{kind.bit_width}({units[kind.unit]})"
    if kinds.is_duration(kind):
        return f"Duration({units[kind.unit]})"
    if kinds.is_date(kind):
        return f"Date{kind.bit_width}"
    if kinds.is_decimal(kind):
        return f"decimal{kind.bit_width}({kind.precision},{kind.scale})"
    if kinds.is_nested(kind):
        return "map" if kinds.is_map(kind) else "struct" if kinds.is_struct(kind) else "list"
    names = {"halffloat": "float16", "float": "float32", "double": "float64", "string": "utf8", "large_string": "large_utf8"}
    return names.get(str(kind), str(kind))


def _row_group(group: Any, schema: Any) -> dict[str, Any]:
    chunks = [group.column(number) for number in range(group.num_columns)]
    return {
        "num_rows": group.num_rows,
        "total_byte_size": group.total_byte_size,
        "compressed_size": sum(chunk.total_compressed_size for chunk in chunks),
        "file_offset": min((chunk_range(chunk)[0] for chunk in chunks), default=0),
        "columns": [_chunk(chunk, schema.column(number)) for number, chunk in enumerate(chunks)],
    }


def _chunk(chunk: Any, leaf: Any) -> dict[str, Any]:
    start, length = chunk_range(chunk)
    statistics = chunk.statistics if chunk.is_stats_set else None
    logical = str(leaf.logical_type)
    path = chunk.path_in_schema.split(".")
    return {
        "name": leaf.name,
        "path": path,
        "physical_type": chunk.physical_type,
        "logical_type": None if logical in ("None", "NONE") else logical,
        "compression": chunk.compression,
        "encodings": sorted(chunk.encodings),
        "num_values": chunk.num_values,
        "total_compressed_size": length,
        "total_uncompressed_size": chunk.total_uncompressed_size,
        "byte_range": {"offset": start, "length": length},
        "file_offset": chunk.file_offset,
        "data_page_offset": chunk.data_page_offset,
        "dictionary_page_offset": chunk.dictionary_page_offset,
        "index_page_offset": None,  # nobody writes these pages, and pyarrow does not tell
        "statistics": None if statistics is None else _statistics(statistics),
    }


def _statistics(found: Any) -> dict[str, Any]:
    known = found.has_min_max
    low, high = (found.min_raw, found.max_raw) if known else (None, None)
    return {
        "min": _shown(found, "min") if known else None,
        "max": _shown(found, "max") if known else None,
        "min_bytes": _stored(low, found.physical_type),
        "max_bytes": _stored(high, found.physical_type),
        "min_is_exact": bool(getattr(found, "is_min_value_exact", known)),
        "max_is_exact": bool(getattr(found, "is_max_value_exact", known)),
        "null_count": found.null_count if found.has_null_count else None,
        "distinct_count": found.distinct_count if found.has_distinct_count else None,
    }


def _shown(found: Any, which: str) -> str:
    try:
        value = getattr(found, which)
    except (ValueError, OverflowError, NotImplementedError, pa.ArrowException):  # a date that Python has not, bad UTF-8
        value = getattr(found, f"{which}_raw")
    if isinstance(value, bytes):
        return _text(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _stored(value: Any, physical: str) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    form = {"BOOLEAN": "?", "INT32": "<i", "INT64": "<q", "FLOAT": "<f", "DOUBLE": "<d"}.get(physical)
    return None if form is None else struct.pack(form, value)


def _text(value: bytes) -> str:
    return value.decode("utf-8", "backslashreplace")
