"""Parquet, and Arrow IPC files (Feather version 2).

Codes: `truncated`, `damaged` (the footer), `damaged_column` (pages that cannot be decoded, or whose checksum is wrong),
`wrong_row_count` (errors); `schema_drift` (other columns or types than the first file), `uneven_row_groups`, `large_row_group`
(warnings); `empty_row_group`, `no_rows` (info).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..engine.errors import OpError
from ..io.reader import reader
from . import report
from .kinds import Target
from .report import Findings, first_few
from .tar import uneven

BATCH = 1 << 16
"""Rows decoded at a time."""
LARGE_GROUP = 4 << 30
"""Bytes of one decoded row group above which readers need much memory."""
EXAMPLES = 20


@contextmanager
def opened(target: Target) -> Iterator[Any]:
    """The `ParquetFile`; checksums of pages are verified where there are any."""
    from pyarrow import parquet

    with reader(target.uri).open() as file, parquet.ParquetFile(file, page_checksum_verification=True) as found:
        yield found


@contextmanager
def opened_arrow(target: Target) -> Iterator[Any]:
    """The `RecordBatchFileReader`."""
    from pyarrow import ipc

    with reader(target.uri).open() as file, ipc.open_file(file) as found:
        yield found


def batch_of(file: Any, number: int) -> Any:
    """One record batch of an Arrow file, whose buffers were checked: values of others may lie outside of them.

    Raises:
        pyarrow.ArrowInvalid: they do.
    """
    batch = file.get_batch(number)
    batch.validate(full=True)
    return batch


def check(target: Target, found: Findings, quick: bool) -> tuple[int, Any]:
    """Footer, and unless `quick` every page of every column."""
    if target.kind.name == "arrow":
        return _check_arrow(target, found, quick)
    if not _has_footer(target):
        found.error("truncated", "the file does not end with a footer: it was cut off, or its writer was not closed")
        return 0, None
    with opened(target) as file:
        metadata = file.metadata
        groups = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
        if sum(groups) != metadata.num_rows:
            found.error("wrong_row_count", f"the footer says {metadata.num_rows:,} rows, its row groups have {sum(groups):,}")
        if not metadata.num_rows:
            found.info("no_rows", "the file has no rows")
        _check_groups(groups, metadata, found)
        if not quick:
            for number, rows in enumerate(groups):
                _decode(file, number, rows, found)
        return metadata.num_rows, (metadata.num_rows, file.schema_arrow.remove_metadata())


def _has_footer(target: Target) -> bool:
    ranges = target.open()
    try:
        return target.size >= 12 and bytes(ranges.read(ranges.size - 4, 4)) in (b"PAR1", b"PARE")
    finally:
        ranges.close()


def _check_groups(groups: list[int], metadata: Any, found: Findings) -> None:
    if len(groups) > 1 and (empty := groups.count(0)):
        found.info("empty_row_group", f"{empty:,} of {len(groups):,} row groups have no rows")
    if len(groups) > 2:
        usual = sorted(groups)[len(groups) // 2]
        odd = [number for number, rows in enumerate(groups[:-1]) if 2 * rows < usual or rows > 2 * usual]
        if odd:
            least, most = min(groups[:-1]), max(groups[:-1])
            found.warning("uneven_row_groups", f"row groups have {least:,} to {most:,} rows, the median is {usual:,}", odd[0])
    for number in range(len(groups)):
        size = metadata.row_group(number).total_byte_size
        if size > LARGE_GROUP:
            found.warning("large_row_group", f"takes {size:,} bytes once decoded", number)


def _decode(file: Any, group: int, rows: int, found: Findings) -> None:
    """Decode a row group; where that fails, column by column, to name the one."""
    try:
        decoded = sum(batch.num_rows for batch in file.iter_batches(BATCH, row_groups=[group], use_threads=False))
    except Exception as error:  # pyarrow raises ArrowInvalid, OSError and others for damaged pages
        named = False
        for column in file.schema_arrow.names:
            try:
                for _ in file.iter_batches(BATCH, row_groups=[group], columns=[column], use_threads=False):
                    pass
            except Exception as own:  # as above
                named = True
                found.error("damaged_column", f"row group {group}: {own}", column)
        if not named:
            found.error("damaged_column", f"{error}", group)
        return
    if decoded != rows:
        found.error("wrong_row_count", f"the footer says {rows:,} rows, {decoded:,} were decoded", group)


def _check_arrow(target: Target, found: Findings, quick: bool) -> tuple[int, Any]:
    with opened_arrow(target) as file:
        rows = 0
        for number in range(file.num_record_batches):
            if quick:
                break
            try:
                rows += batch_of(file, number).num_rows
            except Exception as error:  # pyarrow raises ArrowInvalid, OSError and others for damaged batches
                found.error("damaged_column", str(error), number)
        return rows, (rows, file.schema.remove_metadata())


class Together(report.Together):
    """Schemas and row counts of several files."""

    def __init__(self) -> None:
        self._first: tuple[str, Any] | None = None
        self._counts: list[tuple[str, int]] = []
        self._drift: list[tuple[str, str]] = []
        self._more = 0

    def add(self, target: Target, facts: tuple[int, Any]) -> None:
        rows, schema = facts
        self._counts.append((target.name, rows))
        if self._first is None:
            self._first = target.name, schema
        elif not schema.equals(self._first[1]):
            if len(self._drift) < EXAMPLES:
                self._drift.append((target.name, _difference(self._first[1], schema)))
            else:
                self._more += 1

    def finish(self, found: Findings) -> None:
        for name, text in self._drift:
            found.add("warning", "schema_drift", f"{text}, compared with {self._first[0] if self._first else ''}", uri=name)
        if self._more:
            found.warning("schema_drift", f"{self._more:,} more files have another schema")
        if len(self._counts) > 1:
            uneven(found, self._counts, "files", "rows")


def _difference(first: Any, other: Any) -> str:
    """What a schema has otherwise."""
    before = {field.name: str(field.type) for field in first}
    after = {field.name: str(field.type) for field in other}
    parts = []
    if lacks := [name for name in before if name not in after]:
        parts.append(f"lacks {first_few(lacks)}")
    if more := [name for name in after if name not in before]:
        parts.append(f"has {first_few(more)} besides")
    parts += [f"{name!r} is {after[name]}, not {before[name]}" for name in before if name in after and before[name] != after[name]][:5]
    return "; ".join(parts) or "has its columns in another order, or other null rules"


# ------------------------------------------------------------------------- what is inside


def schema(target: Target) -> dict[str, Any]:
    """Type by column."""
    with opened_arrow(target) if target.kind.name == "arrow" else opened(target) as file:
        found = file.schema if target.kind.name == "arrow" else file.schema_arrow
        return {field.name: str(field.type) + ("" if field.nullable else " not null") for field in found}


def head(target: Target, count: int) -> Iterator[dict[str, Any]]:
    """The first rows."""
    left = count
    if target.kind.name == "arrow":
        with opened_arrow(target) as file:
            for number in range(file.num_record_batches):
                if left <= 0:
                    return
                rows = batch_of(file, number).slice(0, left).to_pylist()
                left -= len(rows)
                yield from rows
        return
    with opened(target) as file:
        for batch in file.iter_batches(max(1, count), use_threads=False):
            rows = batch.slice(0, left).to_pylist()
            left -= len(rows)
            yield from rows
            if left <= 0:
                return


def stats(target: Target) -> tuple[dict[str, Any], Any]:
    """Rows; by column its type, nulls and, where values have an order, the least, the greatest and the mean (by Polars)."""
    import polars as pl

    with opened_arrow(target) if target.kind.name == "arrow" else reader(target.uri).open() as file:
        frame = _lazy(file) if target.kind.name == "arrow" else pl.scan_parquet(file)
        types = frame.collect_schema()
        wanted = [pl.len().alias("rows")]
        for number, (name, dtype) in enumerate(types.items()):
            column = pl.col(name)
            wanted.append(column.null_count().alias(f"nulls.{number}"))
            if dtype.is_numeric() or dtype.is_temporal() or dtype in (pl.String, pl.Boolean):
                wanted += [column.min().alias(f"min.{number}"), column.max().alias(f"max.{number}")]
            if dtype.is_numeric() or dtype == pl.Boolean:
                wanted.append(column.mean().alias(f"mean.{number}"))
        told = _collected(frame.select(wanted)).row(0, named=True)
    columns: dict[str, Any] = {}
    for number, (name, dtype) in enumerate(types.items()):
        facts = {what: told[f"{what}.{number}"] for what in ("nulls", "min", "max", "mean") if f"{what}.{number}" in told}
        columns[name] = {"type": str(dtype), **facts}
    return {"rows": told["rows"], "columns": columns}, None


def _lazy(file: Any) -> Any:
    """An Arrow file for Polars, whose own reader does not check buffers: batch by batch, each validated."""
    import polars as pl
    from polars.io.plugins import register_io_source

    def batches(with_columns: list[str] | None, predicate: Any, n_rows: int | None, batch_size: int | None) -> Iterator[Any]:
        for number in range(file.num_record_batches):
            frame = pl.DataFrame(batch_of(file, number))
            yield frame if with_columns is None else frame.select(with_columns)

    return register_io_source(batches, schema=pl.DataFrame(file.schema.empty_table()).schema)


def _collected(query: Any) -> Any:
    """Run a query; a panic of Polars, which is no Exception, is an error of the file.

    Raises:
        OpError: Polars panicked.
    """
    from polars.exceptions import PanicException

    try:
        return query.collect(engine="streaming")
    except PanicException as error:
        raise OpError(f"the columns cannot be read: {str(error)[:200]}") from error
