"""`Query`: a lazy relational front over a columnar source; train on it with `pipe.bind(query)`, or collect it."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from textwrap import indent
from typing import TYPE_CHECKING, Any

from .engine.errors import PlanError, unknown_columns
from .engine.explain import explain, plan_text
from .engine.frame_calls import FrameCall, FrameExpr, Sample, expressions_in
from .engine.plan import (
    Filter,
    Limit,
    MapRecords,
    Plan,
    Relation,
    Scan,
    Select,
    record_count,
    walk,
    with_source,
)
from .engine.rewrite import rewrite
from .engine.rules import PUSHDOWN, optimize
from .engine.source import ColumnarSource
from .engine.streams import BadRecord, rows_below
from .io.arguments import check_count
from .look.methods import LookMethods
from .query_conditions import as_condition, check_step, is_polars

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa

    from .engine.source import Source
    from .sources.late import SkippedPart


def scan(source: Any) -> Query:
    """A query over anything `bind` takes: a frame, a table, a data set, a list of records."""
    from .sources import as_source

    return Query(Scan(as_source(source)))


class Query(LookMethods):
    """A lazy table: a plan without slots, compared by content. Every method returns a new query; nothing is read before an end is called
    (`collect`, `to_polars`, `count`, iteration, ...) or a pipeline bound to it.

    What Polars can do is done by Polars: `to_lazy` gives the whole plan as one of its queries, and every end runs that.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._found: pa.Schema | None = None

    @property
    def plan(self) -> Plan:
        """The logical plan."""
        return self._plan

    def __eq__(self, other: object) -> bool:
        return self.plan == other.plan if isinstance(other, Query) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.plan)

    def __repr__(self) -> str:
        return f"Query\n{plan_text(self.plan)}"

    # ------------------------------------------------------------- building

    def filter(self, condition: Any, op: str | None = None, value: Any = None) -> Query:
        """Keep the rows for which a condition is true. In every form but the last two, null is no value: it is unequal to all values, neither
        below nor above any, and the result is true or false, never null.

        Args:
            condition: of `dataio.cond`, of `dataio.parquet.col` (text searches, fields of structs, bytes), or the name of a column with `op`
                and `value`; a Polars expression (by the rules of Polars, where null drops the row); or a callable on the row as a dict,
                which sees exactly the rows and columns that are there at this point of the query.
            op, value: as for `ParquetQuery.where`.

        Raises:
            TypeError: none of these forms, or a value that cannot be compared.
            ValueError: an unknown `op`.
            SchemaError: a column that is not there, or one compared with a value of another kind. Where only reading tells the columns, it
                is raised then. What a callable raises comes out with a note that names the row.
        """
        return self._where("filter", condition, op, value)

    def where(self, expr: Any, op: str | None = None, value: Any = None) -> Query:
        """`filter`."""
        return self._where("where", expr, op, value)

    def select(self, *columns: Any) -> Query:
        """Only these columns, in this order: names, Polars expressions (of which each column needs a name of its own), or one list of them.

        Raises:
            TypeError: neither.
            SchemaError: a column that is not there, or an expression that does not fit the columns' types.
        """
        given = _flat("select", columns)
        if all(isinstance(column, str) for column in given):
            self._check(given, f"select({', '.join(given)})")
            return Query(Select(self.plan, tuple(dict.fromkeys(given))))
        return self._stepped(FrameCall("select", _expressions("select", given)))

    def with_columns(self, *expressions: Any, **named: Any) -> Query:
        """Add columns, or replace those of the same name, by Polars expressions.

        Args:
            expressions: Polars expressions; they keep their own names (`pl.col("h").sqrt().alias("root")`).
            named: expressions, or numbers and bools, under these names. (Text would be a column to some and a value to others: say `pl.lit`.)

        Raises:
            TypeError, SchemaError: as `select` does.
        """
        plain = _flat("with_columns", expressions)
        if wrong := [e for e in plain if not is_polars(e)]:
            raise TypeError(f"with_columns() takes Polars expressions, got {wrong[0]!r}")
        for name, value in named.items():
            if not is_polars(value) and not isinstance(value, (bool, int, float)):
                raise TypeError(f"with_columns({name}=...) takes a Polars expression, a number or a bool, got {value!r}; text: pl.lit(...) or pl.col(...)")
        if not plain and not named:
            raise TypeError("with_columns() takes at least one expression")
        options = tuple((name, FrameExpr.of(value) if is_polars(value) else value) for name, value in named.items())
        return self._stepped(FrameCall("with_columns", _expressions("with_columns", plain), options))

    def with_slots(
        self,
        *slots: Any,
        on_failure: str = "null",
        errors: str | None = None,
        types: Mapping[str, pa.DataType] | None = None,
        batch_rows: int | None = None,
        workers: str = "auto",
        **named: Any,
    ) -> Query:
        """Add decoded columns, made when they are asked for, in parallel, by the engine that runs pipelines.

        `q.with_slots(dataio.slot("image").decode_image().resize(h=64, w=64))` replaces the column `image`, and
        `q.with_slots(brightness=dataio.slot("path").decode_image(mode="gray").mean()).filter(pl.col("brightness") < 40)` finds the dark photos.
        A slot that no later step or end asks for is not decoded, and only the columns that slots and later steps need are read. Conditions on other
        columns are met first; the slots that a condition reads run before the others, which then decode only the rows that are left.

        Tensors of one shape are columns of `arrow.fixed_shape_tensor` (in Polars an extension of `pl.Array`, whose flat values `.ext.storage()` gives),
        0-d ones numbers, others structs of `data` and `shape`. A null in the column that a slot reads gives a null.

        Args:
            slots: slots, which replace the column that they read, or `slots(...)`.
            named: slots whose columns get these names.
            on_failure: what becomes of a row that a slot fails on. "null": nulls in the slots of the column that it read, and one warning on
                `dataio.rows` at the end says how many and why the first; "skip": it is left out (so that all slots run, whatever is asked for);
                "raise": BatchError.
            errors: with "null", a new column with the reason of a failed row, null elsewhere.
            types: Arrow types of slots whose dtype cannot be known ahead (`decode_npy` without `cast`, an op that infers nothing).
            batch_rows: rows worked on together (64).
            workers: "thread", "process" or "auto", as for `run`.

        Raises:
            TypeError, ValueError: no slots, a name twice, options of other values.
            PlanError: an optional slot, unset parameters, ops that do not fit together.
            SchemaError: a column that is not there, or a slot whose type is not known ahead.
        """
        from .query_slots import decode_slots

        step = decode_slots(slots, named, on_failure=on_failure, errors=errors, types=types, batch_rows=batch_rows, workers=workers)
        if (known := self._known()) is not None:
            step.schema(known)
        return Query(Relation(self.plan, step))

    def sort(self, *by: Any, descending: bool | Sequence[bool] = False, nulls_last: bool | Sequence[bool] = False) -> Query:
        """Sort by columns or Polars expressions, the first one first; rows that are equal in all of them keep their order.

        Args:
            descending, nulls_last: for all, or one for each of `by`.

        Raises:
            TypeError: nothing to sort by, or of another type.
            ValueError: more or fewer of `descending`, `nulls_last` than of `by`.
            SchemaError: as `select` does.
        """
        keys = _expressions("sort", _flat("sort", by, least=1))
        options = tuple((name, _flags("sort", name, value, len(keys))) for name, value in (("descending", descending), ("nulls_last", nulls_last)))
        return self._stepped(FrameCall("sort", keys, (*options, ("maintain_order", True))))

    def sample(self, n: int | None = None, *, fraction: float | None = None, seed: int = 0) -> Query:
        """Rows drawn without replacement, in their order; the same ones each time, for the same seed and rows.

        Args:
            n: how many (all, where there are fewer).
            fraction: instead, the probability of each row, 0 to 1; rows are drawn one by one, nothing is held in memory.
            seed: another seed draws other rows.

        Raises:
            TypeError, ValueError: not exactly one of `n` and `fraction`, or values out of range.
        """
        if (n is None) == (fraction is None):
            raise TypeError("sample() takes either n or fraction")
        if n is not None:
            check_count("n", n)
        elif isinstance(fraction, bool) or not isinstance(fraction, (int, float)):
            raise TypeError(f"fraction must be a number, got {fraction!r}")
        elif not 0 <= fraction <= 1:
            raise ValueError(f"fraction must lie between 0 and 1, got {fraction}")
        check_count("seed", seed)
        return self._stepped(Sample(n, None if fraction is None else float(fraction), seed))

    def unique(self, *columns: Any, keep: str = "first") -> Query:
        """One row of those that are equal in `columns` (none: in all), in the order of the input.

        Args:
            keep: "first" or "last" of them, "any", or "none": rows that have an equal one go, too.

        Raises:
            TypeError: a column that is no str. ValueError: another `keep`. SchemaError: a column that is not there.
        """
        if keep not in ("first", "last", "any", "none"):
            raise ValueError(f'keep is "first", "last", "any" or "none", got {keep!r}')
        names = _flat("unique", columns)
        if wrong := [name for name in names if not isinstance(name, str)]:
            raise TypeError(f"unique() takes names of columns, got {wrong[0]!r}")
        self._check(names, f"unique({', '.join(names)})")
        return self._stepped(FrameCall("unique", (tuple(names) or None,), (("keep", keep), ("maintain_order", True))))

    def group_by(self, *keys: Any) -> GroupedQuery:
        """Groups of rows that are equal in these columns or Polars expressions, in the order of their first rows; `agg` makes rows of them.

        Raises:
            TypeError: no key, or of another type. SchemaError: a column that is not there.
        """
        found, base = _expressions("group_by", _flat("group_by", keys, least=1)), self._base()
        base._check_names(found, "group_by")
        return GroupedQuery(base, found)

    def join(
        self,
        other: Any,
        on: Any = None,
        how: str = "inner",
        *,
        left_on: Any = None,
        right_on: Any = None,
        suffix: str = "_right",
        nulls_equal: bool = False,
    ) -> Query:
        """Rows of this query with those of another that have the same keys, in the order of this one, then of the other.

        Args:
            other: a query, or what `scan` takes (a frame, a table, a data set).
            on: the keys in both: names or Polars expressions, one or several; or `left_on` here and `right_on` there.
            how: "inner", "left", "right", "full", "semi", "anti" or "cross" (without keys).
            suffix: of columns that both have, on those of `other`.
            nulls_equal: whether nulls match each other.

        Raises:
            TypeError: no such `other`, keys of another type, or missing. ValueError: another `how`.
            SchemaError: keys that are not there, or differ in type.
        """
        if how not in _JOINS:
            raise ValueError(f"how is one of {', '.join(_JOINS)}, got {how!r}")
        if not isinstance(suffix, str):
            raise TypeError(f"suffix must be a str, got {suffix!r}")
        right = other if isinstance(other, Query) else scan(other)
        keys = {name: _keys(name, value) for name, value in (("on", on), ("left_on", left_on), ("right_on", right_on)) if value is not None}
        if set(keys) not in ([set()] if how == "cross" else [{"on"}, {"left_on", "right_on"}]):
            raise TypeError(f"join(how={how!r}) takes " + ("no keys" if how == "cross" else "on, or left_on and right_on"))
        for name, found in keys.items():
            if name != "right_on":
                self._check_names(found, f"join({name})")
            if name != "left_on":
                right._check_names(found, f"join({name}) on the other side")
        options = {**keys, "how": how, "suffix": suffix, "nulls_equal": nulls_equal, "maintain_order": _JOINS[how]}
        return self._stepped(FrameCall("join", (right.plan,), tuple(options.items())))

    def limit(self, count: int | None, offset: int = 0) -> Query:
        """Skip `offset` rows, keep `count`; None: all.

        Raises:
            TypeError, ValueError: no integers, or negative.
        """
        if count is not None:
            check_count("limit", count)
        check_count("offset", offset)
        return Query(Limit(self.plan, count, offset))

    def head(self, n: int = 5) -> Query:
        """`limit(n)`."""
        return self.limit(n)

    def take(self, n: int) -> Query:
        """`limit(n)`."""
        return self.limit(n)

    def offset(self, offset: int) -> Query:
        """Skip this many rows.

        Raises:
            TypeError, ValueError: no integer, or negative.
        """
        return Query.limit(self, None, offset)

    def slice(self, offset: int, limit: int | None = None) -> Query:
        """Skip `offset` rows, keep `limit`; None: all."""
        return Query.limit(self, limit, offset)

    def row_groups(self, indices: Iterable[int]) -> Query:
        """Read only these row groups of what is scanned, in ascending order.

        Raises:
            TypeError, ValueError: no numbers, or negative. IndexError: one that is not there.
            PlanError: the source has no row groups.
        """
        from .formats.tables.parquet_file import checked_groups

        groups = checked_groups(indices)
        if groups is None:
            return self
        return Query(with_source(self.plan, lambda source: _grouped(source, sorted(groups))))

    @property
    def skipped(self) -> tuple[SkippedPart, ...]:
        """What scans with `on_corrupt="skip"` have left out so far, in this query and all others on the same scan: file, part, number of rows
        (None where the damage hides it) and error. Each part is logged once, too (`dataio.sources`, a warning)."""
        found = (getattr(node.source, "skipped", None) for node in walk(self.plan) if isinstance(node, Scan))
        return tuple(part for skipped in found if skipped is not None for part in skipped.parts())

    # ----------------------------------------------------------------- ends

    def to_lazy(self) -> pl.LazyFrame:
        """The plan as a Polars query, which may go on in Polars; projection, conditions and limits reach the source."""
        from .engine.relational import lazy_plan, plan_schema

        if not self._columnar():
            plan_schema(self.plan)  # of Python records only now: errors that say what is there instead
        return lazy_plan(self.plan)

    def collect(self) -> list[dict[str, Any]]:
        """The rows, as dicts of Python values (as Polars gives them: dates are `datetime.date`). A source of Python records without
        anything for Polars to do gives the records themselves.
        """
        return list(Query.__iter__(self))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The rows one by one; a bounded number of them is in memory."""
        if self._of_records():
            for record in rows_below(optimize(self.plan).plan):
                if isinstance(record, BadRecord):  # an error of its row to a pipeline, which goes on
                    record.error.add_note(f"{record.op} on the record {reprlib.repr(record.record)}")
                    raise record.error
                yield record
            return
        from .engine.relational import streamed

        with self._naming():
            for frame in streamed(self.to_lazy()):
                yield from frame.iter_rows(named=True)

    def collect_columns(self) -> dict[str, list[Any]]:
        """The columns, as lists of Python values."""
        return self.to_polars().to_dict(as_series=False)

    def to_polars(self) -> pl.DataFrame:
        """The rows as a Polars frame."""
        with self._naming():
            return self.to_lazy().collect(engine="streaming")

    def iter_batches(self, rows: int = 8192) -> Iterator[dict[str, list[Any]]]:
        """The columns of at most `rows` rows at a time, as `collect_columns` gives them.

        Raises:
            TypeError, ValueError: no integer, or less than 1.
        """
        from .engine.relational import streamed

        check_count("rows", rows, least=1)
        query = self.to_lazy()

        def parts() -> Iterator[dict[str, list[Any]]]:
            with self._naming():
                for frame in streamed(query):
                    yield from (part.to_dict(as_series=False) for part in frame.iter_slices(rows) if part.height)

        return parts()

    def count(self) -> int:
        """How many rows come out. Columns are read only where a condition needs them, nothing where the source knows its length."""
        known = record_count(rewrite(self.plan, PUSHDOWN).plan)
        if known is not None:
            return known
        if self._of_records():
            return sum(1 for _ in Query.__iter__(self))
        from .engine.relational import lazy_count

        with self._naming():
            return lazy_count(self.plan)

    def collect_arrow(self) -> pa.Table:
        """The rows as a pyarrow Table."""
        with self.collect_arrow_reader() as reader:
            return reader.read_all()

    def collect_arrow_reader(self) -> pa.RecordBatchReader:
        """The rows as a stream of record batches; a bounded number of them is in memory at a time. The columns have the types of the
        source where nothing is computed, else those that Polars gives.
        """
        import pyarrow as pa

        from .engine.relational import arrow_batches

        schema, batches = arrow_batches(self.plan)

        def named() -> Iterator[pa.RecordBatch]:
            with self._naming():
                yield from batches

        return pa.RecordBatchReader.from_batches(schema, named())

    def collect_arrow_stream(self) -> ArrowStream:
        """The rows as an object with `__arrow_c_stream__`, which can be read once."""
        return ArrowStream(self.collect_arrow_reader())

    def collect_ipc(self) -> bytes:
        """The rows as an Arrow IPC stream."""
        import pyarrow as pa

        sink = pa.BufferOutputStream()
        with self.collect_arrow_reader() as reader, pa.ipc.new_stream(sink, reader.schema) as out:
            for batch in reader:
                out.write_batch(batch)
        found: bytes = sink.getvalue().to_pybytes()
        return found

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The rows as an Arrow stream, a new one at each call; for writers, `pa.table(query)`, `pl.DataFrame(query)`."""
        return self.collect_arrow_reader().__arrow_c_stream__(requested_schema)

    def schema(self) -> Any:
        """The Arrow schema of what comes out.

        Raises:
            SchemaError: a source of Python records whose fields have no types.
        """
        if self._found is None:
            from .engine.relational import plan_schema

            self._found = plan_schema(self.plan)
        return self._found

    def metadata(self) -> dict[str, Any]:
        """What is known without reading rows: `source`, one line; `num_rows`, None where only reading tells it; `columns`, each with `name`,
        `type_label` and `nullable`.
        """
        from .formats.tables.parquet import type_label

        columns = [{"name": f.name, "type_label": type_label(f.type), "nullable": f.nullable} for f in Query.schema(self)]
        *_, scan = walk(self.plan)
        source = scan.source.describe() if isinstance(scan, Scan) else ""
        return {"source": source, "num_rows": record_count(rewrite(self.plan, PUSHDOWN).plan), "columns": columns}

    def explain(self) -> Any:
        """The plan as written, the rules that fired, the plan as it runs, and the query that Polars makes of it, with what is pushed into
        the scan.
        """
        text = explain(self.plan, rewrite(self.plan, PUSHDOWN))
        return text if self._of_records() else f"{text}\nPolars query\n{indent(self.to_lazy().explain(), '  ')}"

    # ------------------------------------------------------------- plumbing

    @contextmanager
    def _naming(self) -> Iterator[None]:
        """What Polars says of files that it reads itself comes out as the error of a source that names the file."""
        try:
            yield
        except BaseException as error:
            if not type(error).__module__.startswith(("polars", "pyo3_runtime")):
                raise
            from .sources.late import LateScan

            for node in walk(self.plan):
                if isinstance(node, Scan) and isinstance(node.source, LateScan) and (found := node.source.named(error)) is not None:
                    raise found from error
            raise

    def _of_records(self) -> bool:
        """Whether the rows are a source's Python records, which stay what they are."""
        nodes = list(walk(self.plan))
        scan = nodes[-1]
        return isinstance(scan, Scan) and not scan.columnar and not any(isinstance(node, Relation) for node in nodes)

    def as_source(self) -> Source:
        """What else takes sources: a scan's own, else one of the rows."""
        from .sources.query import query_source

        return query_source(self.plan)

    def columns(self) -> list[str] | None:
        """Names of the columns, None where only reading the rows tells them: of Python records."""
        schema = self._known()
        return None if schema is None else list(schema.names)

    def _known(self) -> pa.Schema | None:
        """The schema, where it is known without reading rows."""
        return Query.schema(self._base()) if self._columnar() else None

    def _base(self) -> Query:
        """What the next step stands on."""
        return self

    def _columnar(self) -> bool:
        nodes = list(walk(self.plan))
        return isinstance(nodes[-1], Scan) and nodes[-1].columnar and not any(isinstance(node, MapRecords) for node in nodes)

    def _check(self, names: Iterable[str], reader: str) -> None:
        known = self.columns()
        if known is not None and (missing := set(names) - set(known)):
            raise unknown_columns(missing, known, reader)

    def _check_names(self, expressions: Iterable[Any], reader: str) -> None:
        """The columns that names and expressions read."""
        for value in expressions:
            if isinstance(value, FrameExpr):
                self._check(value.expr.meta.root_names(), f"{reader}({value})")
            else:
                self._check([value], f"{reader}({value!r})")

    def _where(self, reader: str, given: Any, op: Any, value: Any) -> Query:
        base = self._base()
        condition = as_condition(given, op, value, base._known(), reader)
        if not isinstance(condition, FrameExpr):
            return Query(Filter(base.plan, condition))
        return base._stepped(FrameCall("filter", (condition,)))

    def _stepped(self, step: FrameCall | Sample) -> Query:
        """This query and one more step, whose columns and types are checked where those of this one are known."""
        base = self._base()
        made = Query(Relation(base.plan, step))
        if (known := base._known()) is None:
            return made
        if isinstance(step, FrameCall) and step.method != "join":
            base._check_names(step.args if step.method in ("select", "sort") else expressions_in(step), step.method)
            check_step(step, known)
        made.schema()
        return made


class GroupedQuery:
    """Groups of a query's rows; `agg` says what becomes of each."""

    def __init__(self, query: Query, keys: tuple[Any, ...]) -> None:
        self._query, self._keys = query, keys

    def agg(self, *expressions: Any, **named: Any) -> Query:
        """One row for each group: its keys, then these Polars expressions over its rows.

        Raises:
            TypeError: no Polars expressions. SchemaError: a column that is not there, or of a type that does not fit.
        """
        found = _flat("agg", expressions)
        if wrong := [e for e in (*found, *named.values()) if not is_polars(e)]:
            raise TypeError(f"agg() takes Polars expressions, got {wrong[0]!r}")
        values = (*_expressions("agg", found), *(FrameExpr.of(e.alias(name)) for name, e in named.items()))
        return self._query._stepped(FrameCall("group_by", self._keys, (("maintain_order", True),), FrameCall("agg", values)))

    def __repr__(self) -> str:
        return f"{self._query!r}\n  grouped by {', '.join(map(str, self._keys))}"


class ArrowStream:
    """Rows as an Arrow stream that can be read once, through `__arrow_c_stream__`."""

    def __init__(self, reader: pa.RecordBatchReader) -> None:
        self._reader: pa.RecordBatchReader | None = reader

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The stream.

        Raises:
            RuntimeError: it was taken before.
        """
        reader, self._reader = self._reader, None
        if reader is None:
            raise RuntimeError("this stream was read before; collect_arrow_stream() gives a new one")
        return reader.__arrow_c_stream__(requested_schema)


_JOINS = {"inner": "left_right", "left": "left_right", "right": "right_left", "full": "left_right", "semi": "left", "anti": "left", "cross": "left_right"}
"""Kinds of joins, and the order of their rows."""


def _flat(method: str, values: Sequence[Any], least: int = 0) -> list[Any]:
    """Arguments given one by one, or as one list."""
    if len(values) == 1 and isinstance(values[0], (list, tuple)):
        values = values[0]
    if len(values) < least:
        raise TypeError(f"{method}() takes at least {least} column or expression")
    return list(values)


def _expressions(method: str, values: Iterable[Any]) -> tuple[Any, ...]:
    """Names and Polars expressions as values of a plan."""
    found: list[Any] = []
    for value in values:
        if not isinstance(value, str) and not is_polars(value):
            raise TypeError(f"{method}() takes names of columns and Polars expressions, got {value!r}")
        found.append(value if isinstance(value, str) else FrameExpr.of(value))
    return tuple(found)


def _keys(name: str, value: Any) -> tuple[Any, ...]:
    return _expressions(f"join({name}=...)", value if isinstance(value, (list, tuple)) else [value])


def _flags(method: str, name: str, value: Any, count: int) -> Any:
    if isinstance(value, bool):
        return value
    if not isinstance(value, (list, tuple)) or not all(isinstance(v, bool) for v in value):
        raise TypeError(f"{method}({name}=...) takes a bool or a list of them, got {value!r}")
    if len(value) != count:
        raise ValueError(f"{method}({name}=...) takes one bool or {count}, one for each column, got {len(value)}")
    return tuple(value)


def _grouped(source: Source, groups: list[int]) -> Source:
    found = source.row_groups(groups) if isinstance(source, ColumnarSource) else None
    if found is None:
        raise PlanError(f"row_groups() is for scans of files with row groups, not for {source.describe()}")
    return found
