"""`Query`: a lazy relational front over a columnar source; train on it with `pipe.bind(query)`, or collect it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from .engine.errors import unknown_columns
from .engine.explain import explain
from .engine.expr import Cond
from .engine.plan import Filter, Limit, MapRecords, Plan, Scan, Select, walk
from .engine.rules import optimize
from .engine.streams import rows_below

if TYPE_CHECKING:
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


@dataclass(frozen=True)
class Query:
    """A plan without slots. Every method returns a new query; nothing is read before it is collected or bound."""

    plan: Plan

    def filter(self, condition: Cond | Callable[[Any], bool]) -> Query:
        """Keep the rows where the condition (`dataio.cond`, or a callable on the row) is true."""
        if not isinstance(condition, Cond) and not callable(condition):
            raise TypeError(f"filter() takes a condition from dataio.cond or a callable, got {condition!r}")
        if isinstance(condition, Cond):
            self._check(condition.columns(), f"filter({condition})")
        return replace(self, plan=Filter(self.plan, condition))

    def select(self, *columns: str) -> Query:
        """Keep these columns, in this order."""
        self._check(columns, f"select({', '.join(columns)})")
        return replace(self, plan=Select(self.plan, tuple(columns)))

    def limit(self, count: int, offset: int = 0) -> Query:
        """Skip `offset` rows, keep `count`."""
        if count < 0 or offset < 0:
            raise ValueError(f"limit() takes numbers of at least 0, got {count}, {offset}")
        return replace(self, plan=Limit(self.plan, count, offset))

    def collect(self) -> list[dict[str, Any]]:
        """The rows."""
        return list(rows_below(optimize(self.plan).plan))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return rows_below(optimize(self.plan).plan)

    def explain(self) -> str:
        """The plan as written, the rules that fired, the plan as it runs."""
        return explain(self.plan, optimize(self.plan))

    def columns(self) -> list[str] | None:
        """Column names, None when rows are Python objects."""
        for node in walk(self.plan):
            match node:
                case Select():
                    return list(node.columns)
                case MapRecords():
                    return None
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
