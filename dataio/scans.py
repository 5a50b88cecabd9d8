"""`scan_*`: queries over files of every kind, local or in any store. Nothing but listings and, where columns are to be known, headers is read
before a query is collected or bound; projection, conditions and row limits then decide what is.

Paths are those of `dataio.files`: files, folders, patterns (`*`, `?`, `[...]`, `**`), also shards in braces (`{000..099}`, `{a,b}`), or a list
of these; a folder in a store ends with "/". They are listed when the scan is made; one that nothing matches is a FileNotFoundError.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .engine.errors import missing_dependency
from .engine.plan import Scan
from .io.arguments import check_count
from .query import Query

if TYPE_CHECKING:
    import pyarrow as pa

    from .sources.file_set import Files, FilesOptions, OnCorrupt, OnSchema
    from .sources.samples import Duplicate, Interleaved, KeyRule, SuffixRule


def scan_parquet(
    source: Any,
    *,
    n_rows: int | None = None,
    glob: bool = True,
    hive_partitioning: bool | None = None,
    hive_schema: Mapping[str, Any] | None = None,
    try_parse_hive_dates: bool = True,
    include_file_paths: str | None = None,
    on_schema: OnSchema = "strict",
    on_corrupt: OnCorrupt = "raise",
) -> Query:
    """A query over Parquet files.

    One file, without any option, is a `ParquetQuery`, which is not even looked for before it is collected. Several are one table in the
    order of their paths. Row groups that the statistics in the footers rule out are not read, nor are columns that nothing asks for;
    columns that only come out are read after the conditions, of row groups in which a row is left. Memory is bounded by the row groups that are
    read at a time, not by the files.

    Args:
        source: paths, as this module says; for one file also bytes-like, a `dataio.Reader` or an object whose `read()` returns bytes.
        n_rows: only this many of the first rows.
        glob: whether a path may be a pattern.
        hive_partitioning: whether names of folders such as `year=2024` are columns (int64, date32 or text by their values; null for
            `__HIVE_DEFAULT_PARTITION__`), in place of columns of the same name in the files. A condition on them opens only the files in
            question. None: below folders that were given as such.
        hive_schema: Arrow or Polars types of partitions by name, where others are wanted.
        try_parse_hive_dates: whether values such as 2024-01-31 are dates.
        include_file_paths: name of a column for the path or URI of each row's file; a condition on it opens only the files in question.
        on_schema: "strict": every file has the columns of the first, of the same types, in any order; "union": the columns of all files (all
            footers are read first), null where one lacks them, of the wider type where they differ.
        on_corrupt: "raise"; "skip" leaves out row groups that are damaged and files without a footer, and logs each. `query.skipped` holds them
            with their rows. A missing file is always an error.

    Raises:
        FileNotFoundError: nothing matches; the message names the pattern.
        TypeError, ValueError: arguments of other types or values.
        SchemaError: (a ValueError) partitions that do not go together. While the query runs or its columns are asked for, files with other
            columns; the message names both files and the columns.
        While it runs: ValueError for damage, OSError for a file that cannot be read, which it names.
    """
    from .parquet_query import ParquetQuery
    from .sources.file_set import is_one_file

    by_path = isinstance(source, (str, os.PathLike))
    given = hive_partitioning or hive_schema or include_file_paths is not None or on_schema != "strict" or on_corrupt != "raise"
    several = isinstance(source, Iterable) and not isinstance(source, (str, os.PathLike, bytes, bytearray, memoryview)) and not hasattr(source, "read")
    if not given and not several and not hasattr(source, "read_all") and (not by_path or is_one_file(source) or (not glob and not os.path.isdir(source))):
        return _first(ParquetQuery(source), n_rows)
    if not several and not by_path:
        if not given:
            return _first(ParquetQuery(source), n_rows)
        raise TypeError(f"scan_parquet takes these options with paths only, got {type(source).__name__}")
    from .sources.parquet_columns import SUFFIXES, ParquetFiles

    files, options = _files(source, "scan_parquet", SUFFIXES, glob, hive_partitioning, hive_schema, try_parse_hive_dates, include_file_paths, on_schema, on_corrupt)
    return _first(Query(Scan(ParquetFiles(files, options))), n_rows)


def scan_feather(
    source: Any,
    *,
    n_rows: int | None = None,
    glob: bool = True,
    hive_partitioning: bool | None = None,
    hive_schema: Mapping[str, Any] | None = None,
    try_parse_hive_dates: bool = True,
    include_file_paths: str | None = None,
    on_schema: OnSchema = "strict",
    on_corrupt: OnCorrupt = "raise",
) -> Query:
    """A query over Feather (version 2, Arrow IPC) files: record batch by record batch, each checked before it is used.

    Arguments and errors are those of `scan_parquet`; `on_corrupt="skip"` leaves out record batches. Files have no statistics, so a
    condition is tested on every record batch, by its own columns first.
    """
    from .sources.feather_columns import SUFFIXES, FeatherFiles

    files, options = _files(source, "scan_feather", SUFFIXES, glob, hive_partitioning, hive_schema, try_parse_hive_dates, include_file_paths, on_schema, on_corrupt)
    return _first(Query(Scan(FeatherFiles(files, options))), n_rows)


def scan_csv(
    source: Any,
    *,
    has_header: bool = True,
    separator: str = ",",
    comment_prefix: str | None = None,
    quote_char: str | None = '"',
    skip_rows: int = 0,
    skip_rows_after_header: int = 0,
    schema: Mapping[str, Any] | None = None,
    schema_overrides: Mapping[str, Any] | None = None,
    null_values: str | Sequence[str] | dict[str, str] | None = None,
    ignore_errors: bool = False,
    infer_schema: bool = True,
    infer_schema_length: int | None = 100,
    n_rows: int | None = None,
    encoding: str = "utf8",
    try_parse_dates: bool = False,
    eol_char: str = "\n",
    truncate_ragged_lines: bool = False,
    decimal_comma: bool = False,
    glob: bool = True,
    hive_partitioning: bool | None = None,
    hive_schema: Mapping[str, Any] | None = None,
    include_file_paths: str | None = None,
    on_schema: OnSchema = "strict",
) -> Query:
    """A query over CSV files, plain or compressed (gzip, bzip2, xz, zstd), parsed by Polars: plain local ones by its own scan, others as
    streams, in blocks of whole lines.

    Options of parsing are those of `polars.scan_csv`; the others, and errors, those of `scan_parquet`. Types are found in the first
    `infer_schema_length` lines of each file, so that files may differ in what they seem to hold: `schema_overrides` settles that, or
    `on_schema="union"` takes the wider type. A line of a type that does not fit, or with more fields than the header, is an error that names
    the file and the place of its block. A single line has at most 256 MiB; comments do not hold an odd number of quotes.
    """
    from .sources.text_columns import CsvFiles

    parsing = {
        "has_header": has_header, "separator": separator, "comment_prefix": comment_prefix, "quote_char": quote_char, "skip_rows": skip_rows,
        "skip_rows_after_header": skip_rows_after_header, "schema": schema, "schema_overrides": schema_overrides, "null_values": null_values,
        "ignore_errors": ignore_errors, "infer_schema": infer_schema, "infer_schema_length": infer_schema_length, "encoding": encoding,
        "try_parse_dates": try_parse_dates, "eol_char": eol_char, "truncate_ragged_lines": truncate_ragged_lines,
        "decimal_comma": decimal_comma,
    }  # fmt: skip
    suffixes = _packed(".csv", ".tsv", ".txt")
    files, options = _files(source, "scan_csv", suffixes, glob, hive_partitioning, hive_schema, True, include_file_paths, on_schema, "raise")
    return _first(Query(Scan(CsvFiles(files, options, parsing))), n_rows)


def scan_ndjson(
    source: Any,
    *,
    schema: Mapping[str, Any] | None = None,
    schema_overrides: Mapping[str, Any] | None = None,
    infer_schema_length: int | None = 100,
    n_rows: int | None = None,
    ignore_errors: bool = False,
    glob: bool = True,
    hive_partitioning: bool | None = None,
    hive_schema: Mapping[str, Any] | None = None,
    include_file_paths: str | None = None,
    on_schema: OnSchema = "strict",
) -> Query:
    """A query over files with a JSON object a line, plain or compressed (gzip, bzip2, xz, zstd).

    Options of parsing are those of `polars.scan_ndjson`; all else is as for `scan_csv`. A key that the first lines lack is no column; one
    that a line lacks is null.
    """
    from .sources.text_columns import NdjsonFiles

    parsing = {
        "schema": schema, "schema_overrides": schema_overrides, "infer_schema_length": infer_schema_length, "ignore_errors": ignore_errors,
    }  # fmt: skip
    suffixes = _packed(".ndjson", ".jsonl", ".json")
    files, options = _files(source, "scan_ndjson", suffixes, glob, hive_partitioning, hive_schema, True, include_file_paths, on_schema, "raise")
    return _first(Query(Scan(NdjsonFiles(files, options, parsing))), n_rows)


def scan_tfrecord(
    path: Any,
    *,
    schema: pa.Schema | None = None,
    examples: int = 100,
    compression: str | None = "auto",
    on_corrupt: str = "raise",
    max_record_bytes: int = 1 << 30,
) -> Query:
    """A query over TFRecord files, a column for each feature: read forwards, only the features that are used become columns.

    Bytes are binary, numbers int64 or float32. A feature with one value in each of the first `examples` is a column of that type, any other
    one a column of lists; an example that lacks it has a null. Features that only come out are parsed of the examples that the conditions leave.

    Args:
        path: paths, as this module says.
        schema: of the columns; None finds it in the first `examples` examples, when it is first needed.
        compression, max_record_bytes: as for `iter_tfrecord`.
        on_corrupt: "raise", or "skip": damage is left out as `iter_tfrecord` does it; `query.skipped` holds the files with their damaged places
            and bytes. How many records these held cannot be known.

    Raises:
        TypeError, ValueError: options of other values.
        FileNotFoundError: nothing matches. While it is read: what `iter_tfrecord` raises; SchemaError (a ValueError) where an example does
            not fit the columns, which names the record.
    """
    from .sources.file_set import find_files
    from .sources.tfrecord_columns import SUFFIXES, TFRecordColumns

    check_count("examples", examples, least=1)
    options = {"compression": compression, "on_corrupt": on_corrupt, "max_record_bytes": max_record_bytes}
    files = find_files(path, "scan_tfrecord", suffixes=SUFFIXES)
    return Query(Scan(TFRecordColumns(files.uris, schema, examples, options)))


def scan_webdataset(
    paths: Any,
    *,
    suffixes: Iterable[str] | None = None,
    max_output_bytes: int = 2**30,
    index: bool | str | os.PathLike[str] = False,
    key: KeyRule = "basename",
    suffix: SuffixRule = "first_dot",
    lowercase: bool = False,
    on_interleaved: Interleaved = "sample",
    on_duplicate: Duplicate = "error",
    on_schema: OnSchema = "strict",
    on_corrupt: OnCorrupt = "raise",
) -> Query:
    """A query over tar shards, a row for each sample: `__key__`, `__shard__` (text), and the content of each suffix (binary).

    A sample that lacks a suffix has a null. Samples are found by the headers of the tar; contents are read, in place, only of columns that
    are asked for and of rows that the conditions leave, small ones first. Over a network headers and small entries that lie close
    together come by one request, so that little is saved there without an `index`. A compressed shard is decompressed whole.

    Args:
        paths: paths of shards, as this module says.
        suffixes: those that become columns; None takes the suffixes of the first shard, or with `on_schema="union"` of all, by their headers.
        index: True reads all headers now and gives rows numbers, so that they can be shuffled one by one; a path or URI names a file that
            keeps them, as for `webdataset`.
        max_output_bytes, key, suffix, lowercase, on_interleaved, on_duplicate: as for `webdataset`.
        on_schema: "strict": every shard has the suffixes of the first, unless `suffixes` says which count; "union": those of all.
        on_corrupt: "raise"; "skip" gives the samples before the damage and leaves out the rest of the shard, which `query.skipped` holds.

    Raises:
        FileNotFoundError: nothing matches. While it runs: MissingShardError (one too), TarError (a ValueError) for damage, SchemaError for a
            shard with other suffixes, ResponseTooLargeError (a RuntimeError) for an entry over `max_output_bytes`, and as `webdataset` says.
        TypeError, ValueError: options of other types or values.
    """
    from .sources.file_set import FilesOptions, find_files
    from .sources.samples import Rules
    from .sources.webdataset_columns import SUFFIXES, WebDatasetFiles

    check_count("max_output_bytes", max_output_bytes, least=1)
    options = FilesOptions(on_schema, on_corrupt)
    damage: Any = on_corrupt
    rules = Rules(key=key, suffix=suffix, lowercase=lowercase, on_interleaved=on_interleaved, on_duplicate=on_duplicate, on_damage=damage)
    if not isinstance(index, (bool, str, os.PathLike)):
        raise TypeError(f"index is True, False, or the path or URI of a file, got {index!r}")
    kept = None if isinstance(index, bool) else os.fspath(index)
    names = None if suffixes is None else _names("suffixes", suffixes)
    files = find_files(paths, "scan_webdataset", suffixes=SUFFIXES)
    source = WebDatasetFiles(files, options, suffixes=names, rules=rules, limit=max_output_bytes, index=kept, index_all=index is True)
    return Query(Scan(source))


def scan_files(paths: Any) -> Query:
    """A query over files as such, a row for each.

    Columns: `path` (text: the path or URI), `size` (int64, bytes), `mtime` (timestamp in microseconds, UTC), and for images `width`, `height`
    (int32, pixels as stored, before any orientation) and `format` (text, such as "jpeg"); null for files that are no images, or whose header
    is damaged. Files in folders are all below them that are not hidden and do not begin with "_".

    Sizes and times come from the listing; the beginning of a file is read, several at a time, only when `width`, `height` or `format` is asked
    for and the conditions on the other columns leave it. Pixels are never read.

    Args:
        paths: paths, as this module says.

    Raises:
        FileNotFoundError: nothing matches; while the query runs, a file that has gone since it was listed, which the message names.
        TypeError, ValueError, OSError: as `dataio.files` says.
    """
    from .sources.file_columns import FileColumns
    from .sources.file_set import find_files

    return Query(Scan(FileColumns(find_files(paths, "scan_files"))))


def scan_safetensors(paths: Any, *, on_corrupt: OnCorrupt = "raise") -> Query:
    """A query over safetensors files, a row for each tensor.

    Columns: `file` and `name` (text), `dtype` (text, as torch calls it, such as "bfloat16"), `shape` (list of int64), `bytes` and `offset`
    (int64: of the payload, in the file), and `data` (binary, the payload), which is read only where it is asked for. Of all else the
    headers are read.

    Args:
        paths: paths, as this module says; of a folder, the files that end with `.safetensors`.
        on_corrupt: "raise"; "skip" leaves out files that are damaged, which `query.skipped` holds.

    Raises:
        FileNotFoundError: nothing matches. While it runs: ValueError for a damaged file, OSError for one that cannot be read; both name it.
    """
    from .sources.file_set import FilesOptions, find_files
    from .sources.safetensors_columns import SUFFIXES, SafetensorsColumns

    options = FilesOptions(on_corrupt=on_corrupt)
    return Query(Scan(SafetensorsColumns(find_files(paths, "scan_safetensors", suffixes=SUFFIXES), options)))


def scan_hf(dataset: Any, *, split: str | None = None, name: str | None = None, **options: Any) -> Query:
    """A query over a Hugging Face data set: its Arrow table, with encoded features (images, audio) as they are stored.

    Args:
        dataset: a `datasets.Dataset`; or the name of one, which is loaded now, or the folder of one that `save_to_disk` wrote.
        split: of a named one, such as "train"; only one that has a single split needs none.
        name: of the configuration of a named one.
        options: of `datasets.load_dataset`.

    Raises:
        MissingDependencyError: (an ImportError) the package `datasets` is not installed.
        ValueError: several splits, and none chosen.
        TypeError: no name and no data set, or options with a data set that is loaded already.
        What `datasets.load_dataset` raises.
    """
    try:
        import datasets
    except ImportError as error:
        raise missing_dependency("datasets", "hf", "scan_hf") from error
    from .sources import as_source

    if isinstance(dataset, (str, os.PathLike)):
        place = os.fspath(dataset)
        saved = os.path.isfile(os.path.join(place, "dataset_info.json")) or os.path.isfile(os.path.join(place, "dataset_dict.json"))
        dataset = datasets.load_from_disk(place, **options) if saved else datasets.load_dataset(place, name, split=split, **options)
    elif split is not None and isinstance(dataset, datasets.DatasetDict):
        pass
    elif split is not None or name is not None or options:
        raise TypeError(f"scan_hf takes split, name and options with a name only, got a {type(dataset).__name__}")
    if isinstance(dataset, datasets.DatasetDict):
        if split is None and len(dataset) != 1:
            raise ValueError(f"the data set has several splits, give split= one of: {', '.join(map(repr, dataset))}")
        chosen = next(iter(dataset)) if split is None else split
        if chosen not in dataset:
            raise ValueError(f"the data set has no split {chosen!r}; it has: {', '.join(map(repr, dataset))}")
        dataset = dataset[chosen]
    if not isinstance(dataset, datasets.Dataset):
        raise TypeError(f"scan_hf takes a datasets.Dataset or the name of one, got {type(dataset).__name__}")
    return Query(Scan(as_source(dataset)))


# ------------------------------------------------------------------------------------------------------------------ plumbing


def _files(
    source: Any,
    what: str,
    suffixes: Sequence[str],
    glob: bool,
    hive_partitioning: bool | None,
    hive_schema: Mapping[str, Any] | None,
    parse_dates: bool,
    paths: str | None,
    on_schema: OnSchema,
    on_corrupt: OnCorrupt,
) -> tuple[Files, FilesOptions]:
    """The files of a scan, and what is asked of them."""
    from .sources.file_set import FilesOptions, check_hive_schema, find_files, hive_columns

    FilesOptions(on_schema, on_corrupt, paths)  # refused before anything is listed
    files = find_files(source, what, suffixes=suffixes, glob=glob)
    hive = None
    kinds = None if hive_schema is None else {key: _arrow_type(kind) for key, kind in hive_schema.items()}
    if hive_partitioning or (hive_partitioning is None and (files.below_folder or kinds)):
        hive = hive_columns(files, kinds, parse_dates)
    check_hive_schema(kinds, hive)
    return files, FilesOptions(on_schema, on_corrupt, paths, hive)


def _arrow_type(kind: Any) -> pa.DataType:
    """An Arrow or Polars type as Arrow's."""
    import pyarrow as pa

    if isinstance(kind, pa.DataType):
        return kind
    import polars as pl

    from .engine.relational import frame_schema

    return frame_schema(pl.Schema({"": kind})).field(0).type


def _first(query: Query, rows: int | None) -> Query:
    if rows is None:
        return query
    check_count("n_rows", rows)
    return query.limit(rows)


def _packed(*suffixes: str) -> tuple[str, ...]:
    """The suffixes, also of compressed files."""
    return tuple(suffix + codec for suffix in suffixes for codec in ("", ".gz", ".bz2", ".xz", ".zst"))


def _names(what: str, names: Iterable[str]) -> list[str]:
    found = [names] if isinstance(names, str) else list(names)
    if isinstance(names, str) or not all(isinstance(name, str) for name in found):
        raise TypeError(f"{what} is a list of names as str, got {names!r}")
    return list(dict.fromkeys(found))
