"""Queries as sources."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from dataio.engine.plan import Plan, Relation, Scan, record_count, walk
from dataio.engine.source import ColumnarSource, Pass, RowSource, Source

if TYPE_CHECKING:
    from dataio.engine.streams import Stream


def is_query(obj: Any) -> bool:
    """Whether `obj` is a `dataio.Query`, without importing it: one cannot exist before."""
    module = sys.modules.get("dataio.query")
    return module is not None and isinstance(obj, module.Query)


def query_source(plan: Plan) -> Source:
    """The rows of a query's plan: the source itself where nothing was asked of it."""
    *above, scan = walk(plan)
    assert isinstance(scan, Scan)
    if not above and scan == Scan(scan.source):
        return scan.source
    if scan.columnar or any(isinstance(node, Relation) for node in above):
        from dataio.engine.query_rows import QueryRows

        return QueryRows(plan)
    return PlanRows(plan)


def query_rows(plan: Plan) -> Source:
    """`query_source`, whose rows have numbers of their own where they are columns."""
    source = query_source(plan)
    if isinstance(source, ColumnarSource):
        from dataio.engine.query_rows import QueryRows

        return source if isinstance(source, QueryRows) else QueryRows(Scan(source))
    return source


class PlanRows(RowSource):
    """The records that a plan leaves of Python records, one by one."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def describe(self) -> str:
        from dataio.engine.explain import plan_text

        return f"query ({'; '.join(line.strip() for line in plan_text(self.plan).splitlines())})"

    def length(self) -> int | None:
        return record_count(self.plan)

    def stream(self, pass_: Pass, state: Any = None) -> Stream:
        from dataio.engine.streams import open_stream

        return open_stream(self.plan, pass_, state)
