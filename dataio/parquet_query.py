"""`ParquetQuery`: a Parquet file at any URI, filtered and cut as far as possible before it is read."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, overload

from .engine.errors import unknown_columns
from .engine.expr import Col, Cond
from .io.arguments import check_count
from .parquet_expr import ParquetExpr, clauses, condition, prunable
from .query import ArrowStream, Query
from .query_conditions import is_polars

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa

    from .engine.plan import Plan
    from .engine.source import Source
    from .parquet_run import Run

Row = dict[str, Any]


@dataclass(frozen=True, eq=False)
class ParquetQuery(Query):
    """Rows of a Parquet file under conditions. Immutable: each method returns a new query. `pipe.bind(query)` trains on it.

    What `Query` has beyond these methods (computed columns, sort, join, ...) goes on with a plain `Query` over the rows, and so does `filter`
    with another kind of condition; that opens the file.

    Conditions come first, then `offset` and `limit`; `select` cuts what comes out. Row groups that the statistics in the footer
    rule out are not read, nor are columns that nothing asks for; columns that only come out are read after the
    conditions, and only of row groups in which a row is left.

    Attributes:
        path: what is read.
    """

    path: Any
    _columns: tuple[str, ...] | None = None
    _conditions: tuple[ParquetExpr, ...] = ()
    _callables: tuple[Callable[[Row], Any], ...] = ()
    _offset: int = 0
    _limit: int | None = None
    _groups: tuple[int, ...] | None = None

    # ------------------------------------------------------------- building

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    @property
    def plan(self) -> Plan:
        """A scan of the rows."""
        from .engine.plan import Scan

        return Scan(self.as_source())

    def _base(self) -> Query:
        return Query(self.plan)  # one source, whose file is looked at once

    def select(self, columns: Iterable[str]) -> ParquetQuery:
        """Only these columns, in this order, duplicates once; "a.b" is field `b` of the struct `a`.

        Raises:
            TypeError: a str, or an item that is none. An unknown column is a KeyError at collection.
        """
        from .formats.tables.parquet_file import checked_names

        names = checked_names(columns)
        return replace(self, _columns=None if names is None else tuple(names))

    @overload  # type: ignore[override]
    def where(self, expr: ParquetExpr) -> ParquetQuery: ...
    @overload
    def where(self, expr: str, op: str, value: Any = None) -> ParquetQuery: ...
    @overload
    def where(self, expr: Cond | Col | pl.Expr) -> Query: ...
    def where(self, expr: Any, op: str | None = None, value: Any = None) -> Query:
        """Keep the rows for which a condition is true, along with those of before.

        Args:
            expr: a condition (`dataio.parquet.col("h") > 2`), or the name of a column. One of `dataio.cond` or a Polars expression gives a
                plain `Query`, as `Query.filter` does.
            op: with a name: `= == eq`, `!= <> ne`, `< lt`, `<= le`, `> gt`, `>= ge`, `is_null`, `is_not_null`, `contains`, `starts_with`,
                `ends_with`, `in is_in isin`, `not_in is_not_in notin`, `between is_between` (both ends included); case, spaces and
                hyphens do not matter.
            value: what to compare with.

        Raises:
            TypeError: no condition; `op` missing or no str; a value that cannot be compared.
            ValueError: an unknown `op`. An unknown column is a ValueError at collection.
        """
        if isinstance(expr, str):
            return replace(self, _conditions=(*self._conditions, condition(expr, op, value)))
        if isinstance(expr, (Cond, Col)) or is_polars(expr):
            return self._base().where(expr, op, value)
        if not isinstance(expr, ParquetExpr):
            raise TypeError(f"where() takes a condition, or (column, op, value), got {expr!r}")
        if op is not None or value is not None:
            raise TypeError("where() takes a condition alone, or (column, op, value)")
        return replace(self, _conditions=(*self._conditions, expr))

    @overload  # type: ignore[override]
    def filter(self, predicate: ParquetExpr | Callable[[Row], Any]) -> ParquetQuery: ...
    @overload
    def filter(self, predicate: str, op: str, value: Any = None) -> ParquetQuery: ...
    @overload
    def filter(self, predicate: Cond | Col | pl.Expr) -> Query: ...
    def filter(self, predicate: Any, op: str | None = None, value: Any = None) -> Query:
        """Keep the rows for which a condition is true, or a callable returns something true.

        A callable gets a dict of the selected columns only, after all conditions; what it raises comes out with a note that
        names the row. Anything else: as for `where`.

        Raises:
            TypeError: neither. ValueError: as `where` does.
        """
        if isinstance(predicate, (ParquetExpr, Cond, Col)) or is_polars(predicate) or (isinstance(predicate, str) and op is not None):
            return self.where(predicate, op, value)  # type: ignore[arg-type]
        if op is not None or value is not None:
            raise TypeError("filter() takes a condition alone, or (column, op, value)")
        if not callable(predicate):
            raise TypeError(f"filter() takes a condition or a callable on a row, got {predicate!r}")
        return replace(self, _callables=(*self._callables, predicate))

    def offset(self, offset: int) -> ParquetQuery:
        """Skip this many of the rows that the conditions leave.

        Raises:
            ValueError: negative.
        """
        check_count("offset", offset)
        return replace(self, _offset=offset)

    def limit(self, limit: int | None) -> ParquetQuery:  # type: ignore[override]
        """Keep at most this many rows after the offset; None: all.

        Raises:
            ValueError: negative.
        """
        if limit is not None:
            check_count("limit", limit)
        return replace(self, _limit=limit)

    def head(self, n: int = 5) -> ParquetQuery:
        """`limit(n)`."""
        return self.limit(n)

    def take(self, n: int) -> ParquetQuery:
        """`limit(n)`."""
        return self.limit(n)

    def slice(self, offset: int, limit: int | None = None) -> ParquetQuery:
        """`offset(offset).limit(limit)`."""
        return self.offset(offset).limit(limit)

    def row_groups(self, indices: Iterable[int]) -> ParquetQuery:
        """Only these row groups, in ascending order.

        Raises:
            TypeError, ValueError: no numbers, or negative. One that is not there is an IndexError at collection.
        """
        from .formats.tables.parquet_file import checked_groups

        groups = checked_groups(indices)
        return replace(self, _groups=None if groups is None else tuple(groups))

    # ----------------------------------------------------------------- ends

    def collect(self) -> list[Row]:
        """The rows, as dicts of Python values in the forms of `read_parquet`."""
        from .formats.tables.values import rows_of

        with self._run() as run:
            table = run.table()
            return rows_of(run.values(table), table.num_rows)

    def collect_columns(self) -> dict[str, list[Any]]:
        """The columns, as lists of Python values in the forms of `read_parquet`."""
        with self._run() as run:
            return run.values(run.table())

    def __iter__(self) -> Iterator[Row]:
        """The rows one by one, as `collect` gives them; one row group is in memory at a time."""
        from .formats.tables.values import rows_of

        with self._run() as run:
            for table in run.tables():
                yield from rows_of(run.values(table), table.num_rows)

    def iter_batches(self) -> Iterator[dict[str, list[Any]]]:  # type: ignore[override]
        """The rows of each row group as `collect_columns` gives them; row groups without any are left out."""
        with self._run() as run:
            for table in run.tables():
                if table.num_rows:
                    yield run.values(table)

    def count(self) -> int:
        """How many rows come out; without conditions from the footer alone."""
        with self._run() as run:
            return run.count()

    def collect_arrow(self) -> pa.Table:
        """The rows as a pyarrow Table; its chunks are those of the row groups.

        Raises:
            TypeError: the query has a callable, or a condition without a native form (see `explain`).
        """
        self._check_native("collect_arrow")
        with self._run() as run:
            return run.table()

    def collect_arrow_reader(self) -> pa.RecordBatchReader:
        """The rows as a stream of record batches; one row group is in memory at a time.

        Raises:
            TypeError: as `collect_arrow` does.
        """
        self._check_native("collect_arrow_reader")
        return self._reader()

    def collect_arrow_stream(self) -> ArrowStream:
        """The rows as an object with `__arrow_c_stream__`, which can be read once.

        Raises:
            TypeError: as `collect_arrow` does.
        """
        self._check_native("collect_arrow_stream")
        return ArrowStream(self._reader())

    def collect_ipc(self) -> bytes:
        """The rows as an Arrow IPC stream.

        Raises:
            TypeError: as `collect_arrow` does.
        """
        import pyarrow as pa

        self._check_native("collect_ipc")
        sink = pa.BufferOutputStream()
        with self._reader() as reader, pa.ipc.new_stream(sink, reader.schema) as out:
            for batch in reader:
                out.write_batch(batch)
        found: bytes = sink.getvalue().to_pybytes()
        return found

    def to_polars(self) -> pl.DataFrame:
        """The rows as a Polars frame; any condition and callable will do."""
        import polars as pl

        with self._run() as run:
            return run.frame() if run.polars is not None else pl.DataFrame(pl.from_arrow(run.table()))

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The rows as an Arrow stream, a new one at each call; for writers, `pa.table(query)`, `pl.DataFrame(query)`."""
        return self._reader().__arrow_c_stream__(requested_schema)

    def metadata(self) -> dict[str, Any]:
        """`dataio.parquet_metadata` of the whole file."""
        from .formats.tables.parquet import parquet_metadata

        return parquet_metadata(self.path)

    def schema(self) -> list[dict[str, Any]]:
        """The `columns` of `metadata`."""
        columns: list[dict[str, Any]] = self.metadata()["columns"]
        return columns

    def explain(self) -> dict[str, Any]:
        """What will be read, by the footer.

        Returns:
            `path`; `columns` that come out; `read_columns`, those and the `filter_columns`; `offset`, `limit`, `row_groups` as asked;
            `num_rows` and `num_row_groups` of the file; `native_filter_clauses`, the conditions as OR of ANDs of (column, op, value),
            None without conditions and where they have no such form; `pushdown_clauses`, what of these the statistics can
            decide; `native_filter`, whether all conditions have that form; `candidate_row_groups` that may hold rows.
        """
        with self._run() as run:
            native = self._clauses()
            names = list(run.columns)
            return {
                "path": self.path,
                "columns": names,
                "read_columns": list(dict.fromkeys([*names, *run.filter_columns])),
                "filter_columns": list(run.filter_columns),
                "offset": self._offset,
                "limit": self._limit,
                "row_groups": None if self._groups is None else list(self._groups),
                "num_rows": run.source.metadata.num_rows,
                "num_row_groups": run.source.metadata.num_row_groups,
                "pushdown_clauses": prunable(native),
                "native_filter_clauses": native,
                "native_filter": native is not None or not self._conditions,
                "candidate_row_groups": list(run.groups),
            }

    def __repr__(self) -> str:
        from .formats.inputs import name_of

        parts = [f"scan_parquet({name_of(self.path)!r})"]
        parts += [f"where({c!r})" for c in self._conditions]
        parts += [f"filter({getattr(f, '__qualname__', type(f).__name__)})" for f in self._callables]
        if self._groups is not None:
            parts.append(f"row_groups({list(self._groups)})")
        if self._columns is not None:
            parts.append(f"select({list(self._columns)})")
        if self._offset or self._limit is not None:
            parts.append(f"slice({self._offset}, {self._limit})")
        return ".".join(parts)

    # ------------------------------------------------------------- plumbing

    def expression(self) -> ParquetExpr | None:
        """All conditions as one; None without any."""
        if not self._conditions:
            return None
        whole = self._conditions[0]
        for more in self._conditions[1:]:
            whole = whole & more
        return whole

    def _clauses(self) -> list[list[tuple[str, str, Any]]] | None:
        whole = self.expression()
        return None if whole is None else clauses(whole.node)

    def _run(self) -> Run:
        from .parquet_run import Run

        return Run(self)

    def _reader(self) -> pa.RecordBatchReader:
        import pyarrow as pa

        run = self._run()
        try:
            schema = run.schema()
        except BaseException:
            run.close()
            raise

        def batches() -> Iterator[pa.RecordBatch]:
            with run:
                yield from itertools.chain.from_iterable(table.to_batches() for table in run.tables())

        return pa.RecordBatchReader.from_batches(schema, batches())

    def _check_native(self, end: str) -> None:
        if self._callables:
            raise TypeError(f"{end}() does not run Python callables; collect(), iter_batches() and to_polars() do")
        if self._conditions and self._clauses() is None:
            raise TypeError(
                f"{end}() takes conditions with a native form only (no bare columns, no ~ of text searches, at most 64 OR-clauses), "
                f"not {self.expression()!r}; collect(), iter_batches() and to_polars() take any"
            )

    def as_source(self) -> Source:
        """What `bind` reads: streamed row groups; a whole local file also by row number, so that it can be shuffled and resumed."""
        from .sources.parquet import query_source

        return query_source(self)

    def is_whole_file(self) -> bool:
        """Whether no condition, projection or cut was asked for."""
        return (self._columns, self._conditions, self._callables, self._offset, self._limit, self._groups) == (None, (), (), 0, None, None)


def check_known(columns: Iterable[str], known: list[str], reader: str) -> None:
    """Refuse conditions on columns that the file lacks."""
    if missing := set(columns) - set(known):
        raise unknown_columns(missing, known, reader)
