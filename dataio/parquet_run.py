"""One run of a `ParquetQuery`: which row groups and columns are read, and what is left of them.

Two ways lead to the rows. Polars scans a local file whose types it holds just as Arrow does; everything else is read row group by row group
by pyarrow (from stores as parallel ranges), and Polars only computes the mask.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.types as kinds
from numpy.typing import NDArray

from .engine.query_rows import Kept, sliced
from .engine.row_numbers import RowNumbers
from .formats.inputs import local_file, name_of
from .formats.tables.parquet_file import ParquetSource, cut, empty_rows, parquet_errors, starts_of
from .formats.tables.values import column_values, columns_of, rows_of
from .parquet_expr import clauses, holds, prunable
from .parquet_native import NoNativeFormError, may_hold, native
from .parquet_query import check_known

if TYPE_CHECKING:
    from .parquet_query import ParquetQuery

_PLAIN = pl.CompatLevel.oldest()


class Run:
    """A query over an open file; a context manager.

    Attributes:
        columns: what comes out.
        filter_columns: what the conditions read.
        groups: the row groups that may hold rows, ascending.
        polars: the query as a Polars scan, None where that does not do.
    """

    def __init__(self, query: ParquetQuery) -> None:
        self.query = query
        self.source = ParquetSource(query.path)
        try:
            self._prepare()
        except BaseException:
            self.source.close()
            raise

    def _prepare(self) -> None:
        query, source = self.query, self.source
        self.columns = tuple(source.schema.names) if query._columns is None else query._columns
        source.paths(self.columns)  # KeyError for an unknown one
        whole = query.expression()
        self._node = None if whole is None else whole.node
        self.filter_columns: tuple[str, ...] = () if whole is None else tuple(whole.columns())
        missing = [name for name in self.filter_columns if source.path_of(name) is None]
        if missing:
            check_known(missing, source.known(), f"{name_of(query.path)}: filter({whole!r})")
        self._kinds = {name: self._kind(name) for name in {*self.columns, *self.filter_columns}}
        many = source.metadata.num_row_groups
        if query._groups is not None and (wrong := [group for group in query._groups if group >= many]):
            raise IndexError(f"{name_of(query.path)} has {many} row groups, no number {wrong[0]}")
        groups = range(many) if query._groups is None else sorted(query._groups)
        pruning = None if self._node is None else prunable(clauses(self._node))
        self.groups = [group for group in groups if pruning is None or self._may_hold(group, pruning)]
        self._native = self._expression(pl.col)
        self.polars = self._scan()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self.source.close()

    # ------------------------------------------------------------- the plan

    def _kind(self, name: str) -> pa.DataType:
        path = self.source.path_of(name) or [name]
        field = self.source.schema.field(path[0])
        for part in path[1:]:
            field = field.type.field(field.type.get_field_index(part))
        return field.type

    def _may_hold(self, group: int, pruning: list[list[Any]]) -> bool:
        row_group = self.source.metadata.row_group(group)

        def chunk(name: str) -> tuple[Any, pa.DataType] | None:
            kind, path = self._kinds[name], ".".join(self.source.path_of(name) or ())
            if kinds.is_nested(kind):
                return None
            leaf = self._leaf_numbers().get(path)
            return None if leaf is None else (row_group.column(leaf), kind)

        return may_hold(pruning, chunk, row_group.num_rows)

    def _leaf_numbers(self) -> dict[str, int]:
        if not hasattr(self, "_leaves"):
            schema = self.source.metadata.schema
            self._leaves = {schema.column(number).path: number for number in range(len(schema))}
        return self._leaves

    def _expression(self, read: Callable[[str], pl.Expr]) -> pl.Expr | None:
        if self._node is None:
            return None
        try:
            return native(self._node, lambda name: (read(name), self._kinds[name]))
        except NoNativeFormError:
            return None

    def _scan(self) -> pl.LazyFrame | None:
        query = self.query
        path = local_file(query.path)
        filtered = self._node is not None
        if path is None or query._callables or query._groups is not None or (filtered and self._native is None):
            return None
        names = self.source.schema.names
        read = {*self.columns, *self.filter_columns}
        if not self.columns or len(set(names)) != len(names) or not read <= set(names):
            return None
        if not all(held_alike(self._kinds[name]) for name in read):
            return None
        frame = pl.scan_parquet(path, glob=False, hive_partitioning=False)
        if self._native is not None:
            frame = frame.filter(self._native)
        if query._offset or query._limit is not None:
            frame = frame.slice(query._offset, query._limit)
        return frame.select(self.columns)

    # ----------------------------------------------------------------- ends

    def frame(self) -> pl.DataFrame:
        """The rows by Polars' scan."""
        assert self.polars is not None
        with parquet_errors(self.query.path):
            try:
                return self.polars.collect()
            except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
                raise pa.ArrowInvalid(str(error)) from error

    def schema(self) -> pa.Schema:
        """The Arrow schema of what comes out: the file's types."""
        return self.source.read([], self.columns).schema

    def table(self) -> pa.Table:
        """All rows."""
        if self.polars is not None:
            try:
                return self.frame().to_arrow(compat_level=_PLAIN).cast(self.schema())
            except pa.ArrowException:  # text over 2 GiB in one chunk, or fields that may not be null: row group by row group
                pass
        tables = [table for table in self.tables() if table.num_rows]
        if not self.columns:  # joined, tables without columns would lose their rows
            return empty_rows(sum(table.num_rows for table in tables))
        return pa.concat_tables(tables) if tables else self.source.read([], self.columns)

    def values(self, table: pa.Table) -> dict[str, list[Any]]:
        """A table as lists of Python values."""
        with parquet_errors(self.query.path):
            return columns_of(table)

    def count(self) -> int:
        """How many rows come out."""
        query = self.query
        if self._node is None and not query._callables:
            left = max(0, starts_of(self.source.metadata, self.groups)[-1] - query._offset)
            return left if query._limit is None else min(left, query._limit)
        if self.polars is not None:
            with parquet_errors(query.path):
                try:
                    return int(self.polars.select(pl.len()).collect().item())
                except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
                    raise pa.ArrowInvalid(str(error)) from error
        if not query._callables:
            self.columns = ()  # the rows only
        return sum(table.num_rows for table in self.tables())

    def numbers(self) -> Kept:
        """Numbers in the file of the rows that come out of a query without callables; only columns of the conditions are read."""
        query, metadata = self.query, self.source.metadata
        starts = starts_of(metadata, range(metadata.num_row_groups))
        stop = None if query._limit is None else query._offset + query._limit
        if self._node is None and query._groups is None:
            rows = range(metadata.num_rows)[query._offset : stop]
            return rows or range(0)
        return RowNumbers(sliced(self._kept_numbers(starts), query._offset, stop))

    def _kept_numbers(self, starts: list[int]) -> Iterator[NDArray[np.int64]]:
        for run in self.source.batches_of_groups(self.groups):
            numbers = np.concatenate([np.arange(starts[group], starts[group + 1]) for group in run])
            yield numbers if self._node is None else numbers[self._mask(self.source.read(run, self.filter_columns))]

    def tables(self) -> Iterator[pa.Table]:
        """The rows of each candidate row group, after the conditions, offset and limit."""
        offset, limit = self.query._offset, self.query._limit
        for table in self._filtered():
            if offset:
                skipped = min(offset, table.num_rows)
                table, offset = cut(table, skipped), offset - skipped
            if limit is not None:
                table = cut(table, 0, limit)
                limit -= table.num_rows
            yield table
            if limit == 0:
                return

    def _filtered(self) -> Iterator[pa.Table]:
        """The rows of each row group that the conditions and callables leave."""
        metadata, limit = self.source.metadata, self.query._limit
        if limit == 0:
            return
        runs: Iterator[list[int]] = self.source.batches_of_groups(self.groups)
        if limit is not None:  # may end early: no more at a time than needed
            runs = ([group] for group in self.groups)
        for run in runs:
            if self._node is None:
                table = self.source.read(run, self.columns)
                masks: list[Any] = [None] * len(run)
            else:
                read = self.source.read(run, self.filter_columns)
                starts = starts_of(metadata, run)
                mask = self._mask(read)
                masks = [mask[a:b] for a, b in itertools.pairwise(starts)]
                run, masks = self._with_rows(run, masks)
                rest = [name for name in self.columns if name not in self.filter_columns]
                if not run:
                    continue
                table = self._completed(read, starts, run, rest)
            at = 0
            for group, mask in zip(run, masks, strict=True):
                rows = metadata.row_group(group).num_rows
                part = cut(table, at, rows)
                at += rows
                if mask is not None and not mask.all():
                    part = part.filter(pa.array(mask))
                yield self._called(part if self.columns else part.select([]), group, mask)

    def _with_rows(self, run: list[int], masks: list[Any]) -> tuple[list[int], list[Any]]:
        kept = [(group, mask) for group, mask in zip(run, masks, strict=True) if mask.any()]
        self._kept = [at for at, mask in enumerate(masks) if mask.any()]
        return [group for group, _ in kept], [mask for _, mask in kept]

    def _completed(self, read: pa.Table, starts: list[int], run: list[int], rest: list[str]) -> pa.Table:
        """The columns that come out, of the row groups of a run in which rows are left."""
        parts = [read.slice(starts[at], starts[at + 1] - starts[at]) for at in self._kept]
        known = pa.concat_tables(parts)
        more = self.source.read(run, rest) if rest else None
        if not self.columns:
            return known
        arrays = [known.column(n) if more is None or n not in rest else more.column(n) for n in self.columns]
        return pa.Table.from_arrays(arrays, names=list(self.columns))

    def _mask(self, read: pa.Table) -> Any:
        """bool[rows]: which rows satisfy the conditions."""
        assert self._node is not None
        node = self._node
        if self._native is not None and all(held_alike(kind) or kinds.is_dictionary(kind) for kind in read.schema.types):
            frame = pl.DataFrame(pl.from_arrow(read))
            with parquet_errors(self.query.path):
                return frame.select((pl.repeat(value=True, n=pl.len()) & self._native).alias("mask")).to_series().to_numpy()
        with parquet_errors(self.query.path):
            columns = {name: _operands(read.column(name)) for name in read.column_names}
        found = np.zeros(read.num_rows, bool)
        for at in range(read.num_rows):
            row = {name: values[at] for name, values in columns.items()}
            found[at] = holds(node, row.__getitem__)
        return found

    def _called(self, part: pa.Table, group: int, mask: Any) -> pa.Table:
        """What the callables leave of the rows of one row group."""
        if not self.query._callables:
            return part
        rows = rows_of(self.values(part), part.num_rows)
        numbers = np.arange(part.num_rows) if mask is None else np.flatnonzero(mask)
        keep = np.zeros(part.num_rows, bool)
        for at, row in enumerate(rows):
            try:
                keep[at] = all(call(row) for call in self.query._callables)
            except Exception as error:
                first = starts_of(self.source.metadata, range(group))[-1]
                error.add_note(f"filter on row {first + int(numbers[at])} of {name_of(self.query.path)} (row group {group})")
                raise
        return part.filter(pa.array(keep))


def _operands(column: pa.ChunkedArray) -> list[Any]:
    """The values of a column as conditions see them: decimals as numbers."""
    values: list[Any] = column.to_pylist() if kinds.is_decimal(column.type) else column_values(column)
    return values


def held_alike(kind: pa.DataType) -> bool:
    """Whether Polars reads this type from Parquet, and gives it back, without a change of values or unit."""
    if kinds.is_list(kind) or kinds.is_large_list(kind):
        return held_alike(kind.value_type)
    if kinds.is_struct(kind):
        return kind.num_fields > 0 and all(held_alike(kind.field(i).type) for i in range(kind.num_fields))
    return bool(
        kinds.is_integer(kind)
        or kinds.is_float32(kind)
        or kinds.is_float64(kind)
        or kinds.is_boolean(kind)
        or kinds.is_string(kind)
        or kinds.is_large_string(kind)
        or kinds.is_binary(kind)
        or kinds.is_large_binary(kind)
        or kinds.is_date32(kind)
        or (kinds.is_timestamp(kind) and kind.unit != "s")
    )
