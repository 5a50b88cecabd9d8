"""`Query`: a lazy relational front over a columnar source; train on it with `pipe.bind(query)`, or collect it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from .engine.errors import unknown_columns
from .engine.explain import explain, plan_text
from .engine.expr import Cond
from .engine.plan import Filter, Limit, MapRecords, Plan, Relation, Scan, Select, walk
from .engine.rules import optimize
from .engine.streams import rows_below

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa


def scan(source: Any) -> Query:
    """A query over anything `bind` takes: a frame, a table, a data set, a list of records."""
    from .sources import as_source

    return Query(Scan(as_source(source)))


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
    one a column of lists; an example that lacks it has a null. Conditions, limits and training are those of `scan`.

    Args:
        path: a path or URI, or several; patterns as `webdataset` takes them.
        schema: of the columns; None finds it in the first `examples` examples, when it is first needed.
        compression, on_corrupt, max_record_bytes: as for `iter_tfrecord`.

    Raises:
        TypeError, ValueError: options of other values. While it is read: what `iter_tfrecord` raises; SchemaError (a ValueError) where an
            example does not fit the columns, which names the record.
    """
    from .io.arguments import check_count
    from .sources.patterns import expanded
    from .sources.tfrecord_columns import TFRecordColumns

    check_count("examples", examples, least=1)
    options = {"compression": compression, "on_corrupt": on_corrupt, "max_record_bytes": max_record_bytes}
    return Query(Scan(TFRecordColumns(expanded(path, "scan_tfrecord"), schema, examples, options)))


class Query:
    """A lazy table: a plan without slots, compared by content. Every method returns a new query; nothing is read before an end is called
    (`collect`, `to_polars`, `count`, iteration, ...) or a pipeline bound to it.

    What Polars can do is done by Polars: `to_lazy` gives the whole plan as one of its queries, and every end runs that.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

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

    def filter(self, condition: Cond | Callable[[Any], bool]) -> Query:
        """Keep the rows where the condition (`dataio.cond`, or a callable on the row) is true."""
        if not isinstance(condition, Cond) and not callable(condition):
            raise TypeError(f"filter() takes a condition from dataio.cond or a callable, got {condition!r}")
        if isinstance(condition, Cond):
            self._check(condition.columns(), f"filter({condition})")
        return Query(Filter(self.plan, condition))

    def select(self, *columns: str) -> Query:
        """Keep these columns, in this order."""
        self._check(columns, f"select({', '.join(columns)})")
        return Query(Select(self.plan, tuple(columns)))

    def limit(self, count: int, offset: int = 0) -> Query:
        """Skip `offset` rows, keep `count`."""
        if count < 0 or offset < 0:
            raise ValueError(f"limit() takes numbers of at least 0, got {count}, {offset}")
        return Query(Limit(self.plan, count, offset))

    # ----------------------------------------------------------------- ends

    def to_lazy(self) -> pl.LazyFrame:
        """The plan as a Polars query, which may go on in Polars; projection, conditions and limits reach the source."""
        from .engine.relational import lazy_plan

        return lazy_plan(self.plan)

    def collect(self) -> list[dict[str, Any]]:
        """The rows."""
        return list(self)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        if self._of_records():
            yield from rows_below(optimize(self.plan).plan)
            return
        from .engine.relational import streamed

        for frame in streamed(self.to_lazy()):
            yield from frame.iter_rows(named=True)

    def collect_columns(self) -> dict[str, list[Any]]:
        """The columns, as lists of Python values."""
        return self.to_polars().to_dict(as_series=False)

    def to_polars(self) -> pl.DataFrame:
        """The rows as a Polars frame."""
        return self.to_lazy().collect(engine="streaming")

    def iter_batches(self, rows: int = 8192) -> Iterator[dict[str, list[Any]]]:
        """The columns of `rows` rows at a time (the last ones: what is left), as `collect_columns` gives them."""
        from .engine.relational import streamed
        from .io.arguments import check_count

        check_count("rows", rows, least=1)
        return (part.to_dict(as_series=False) for frame in streamed(self.to_lazy()) for part in frame.iter_slices(rows))

    def collect_arrow(self) -> pa.Table:
        """The rows as a pyarrow Table."""
        with self.collect_arrow_reader() as reader:
            return reader.read_all()

    def collect_arrow_reader(self) -> pa.RecordBatchReader:
        """The rows as a stream of record batches; a bounded number of them is in memory at a time."""
        import pyarrow as pa

        from .engine.relational import arrow_batches

        schema, batches = arrow_batches(self.plan)
        return pa.RecordBatchReader.from_batches(schema, batches)

    def explain(self) -> str:
        """The plan as written, the rules that fired, the plan as it runs."""
        return explain(self.plan, optimize(self.plan))

    # ------------------------------------------------------------- plumbing

    def _of_records(self) -> bool:
        """Whether the rows are a source's Python records, which stay what they are."""
        nodes = list(walk(self.plan))
        scan = nodes[-1]
        return isinstance(scan, Scan) and not scan.columnar and not any(isinstance(node, Relation) for node in nodes)

    def columns(self) -> list[str] | None:
        """Column names, None when rows are Python objects."""
        for node in walk(self.plan):
            match node:
                case Select():
                    return list(node.columns)
                case MapRecords():
                    return None
                case Relation():
                    from .engine.relational import lazy_plan

                    return lazy_plan(node).collect_schema().names()
                case Scan():
                    if not node.columnar:
                        return None
                    schema: pa.Schema = node.source.schema()  # type: ignore[attr-defined]
                    return list(schema.names)
        return None

    def _check(self, names: Any, reader: str) -> None:
        known = self.columns()
        if known is not None and (missing := set(names) - set(known)):
            raise unknown_columns(missing, known, reader)
