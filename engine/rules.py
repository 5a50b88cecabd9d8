"""The rewrite rules, a small function each. The docstring is the before and the after.

Rules on ops (crop before resize, normalise fusion, reduced-scale JPEG decode) are declared beside the ops they know,
through `registry.register_fusion`; here they are only applied.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

from .calls import Decoder, OpCall, Transform, is_body
from .expr import All, Cond
from .plan import Filter, Limit, Plan, Relation, Scan, Select, Shape, Slots, needs_records
from .registry import fusions, simplifications
from .rewrite import Rewritten, Rule, rewrite, rule

KEY_FIELDS = ("key", "id", "name", "path", "uri")
"""Fields a record's key is taken from, in this order."""
SEED_FIELD = "seed"


@rule(Filter)
def filter_below_select(node: Filter) -> Plan | None:
    """Filter(Select(x)) -> Select(Filter(x)), so that the scan can take the condition."""
    below = node.input
    if not isinstance(below, Select) or not isinstance(node.condition, Cond):
        return None
    return replace(below, input=replace(node, input=below.input))


@rule(Filter)
def predicate_pushdown(node: Filter) -> Plan | None:
    """Filter(Scan) -> Scan(predicate): a columnar source drops rows before they are read further."""
    below = node.input
    if not isinstance(below, Scan) or not below.columnar or below.sliced or not isinstance(node.condition, Cond):
        return None
    both = node.condition if below.predicate is None else All((below.predicate, node.condition))
    return replace(below, predicate=both)


@rule(Limit)
def limit_below_select(node: Limit) -> Plan | None:
    """Limit(Select(x)) -> Select(Limit(x)), so that the scan can take the limit."""
    below = node.input
    return replace(below, input=replace(node, input=below.input)) if isinstance(below, Select) else None


@rule(Limit)
def limit_pushdown(node: Limit) -> Plan | None:
    """Limit(Scan) -> Scan(limit): a columnar source stops reading early."""
    below = node.input
    if not isinstance(below, Scan) or not below.columnar:
        return None
    left = None if below.limit is None else max(0, below.limit - node.offset)
    count = left if node.count is None else node.count if left is None else min(node.count, left)
    return replace(below, limit=count, offset=below.offset + node.offset)


@rule(Select)
def select_pushdown(node: Select) -> Plan | None:
    """Select(Scan) -> Scan(columns): only these columns are read."""
    below = node.input
    if not isinstance(below, Scan) or not below.columnar or below.columns is not None:
        return None
    return replace(below, columns=node.columns)


@rule(Relation)
def relation_as_source(node: Relation) -> Plan | None:
    """Relation(x) -> Scan(Relation(x)): what Polars does is a columnar source to the stages above, which push into it."""
    from .query_rows import QueryRows

    below = node.input
    if isinstance(below, Scan) and isinstance(below.source, QueryRows) and below == Scan(below.source):
        node = replace(node, input=below.source.plan)  # one query for several steps
    return Scan(QueryRows(node))


@rule(Shape)
def projection_pushdown(node: Shape) -> Plan | None:
    """Batch(Slots(Scan)) -> Batch(Slots(Scan(columns))): read what slots, keys, arguments and groups need."""
    slots = node.input
    if not isinstance(slots, Slots) or not isinstance(slots.input, Scan) or needs_records(node):
        return None
    scan = slots.input
    if not scan.columnar:
        return None
    needed = {*slots.columns(), *KEY_FIELDS, SEED_FIELD, *node.fields()}
    available = scan.columns if scan.columns is not None else tuple(scan.source.schema().names)  # type: ignore[attr-defined]
    kept = tuple(name for name in available if name in needed)
    if kept == available or not {c.slot for c in slots.chains if not c.optional} <= set(available):
        return None  # a slot without its column fails when it runs, with all the columns there are in the message
    if not kept:  # without a column there are no rows to count
        return None
    return replace(node, input=replace(slots, input=replace(scan, columns=kept)))  # type: ignore[type-var]


CallsRewrite: TypeAlias = Callable[[tuple[OpCall, ...]], "tuple[OpCall, ...] | None"]


def fusion_rule(name: str, fuse: Callable[[OpCall, OpCall], tuple[OpCall, ...] | None]) -> Rule:
    """A registered rewrite of two neighbouring op calls, as a rule over every chain of a plan and the bodies in it."""

    def fuse_neighbours(calls: tuple[OpCall, ...]) -> tuple[OpCall, ...] | None:
        for i in range(len(calls) - 1):
            new = fuse(calls[i], calls[i + 1])
            if new is not None and new != calls[i : i + 2]:
                return (*calls[:i], *new, *calls[i + 2 :])
        return None

    return _calls_rule(name, fuse.__doc__, fuse_neighbours)


def simplification_rule(name: str, simplify: Callable[[OpCall], tuple[OpCall, ...] | None]) -> Rule:
    """A registered rewrite of one op call, as a rule over every chain of a plan and the bodies in it."""

    def simplify_calls(calls: tuple[OpCall, ...]) -> tuple[OpCall, ...] | None:
        for i, call in enumerate(calls):
            if (new := simplify(call)) is not None:
                return (*calls[:i], *new, *calls[i + 1 :])
        return None

    return _calls_rule(name, simplify.__doc__, simplify_calls)


def _calls_rule(name: str, summary: str | None, change: CallsRewrite) -> Rule:
    def rewrite_chains(node: Slots) -> Plan | None:
        for position, chain in enumerate(node.chains):
            if (calls := _changed(chain.calls, change)) is None:
                continue
            decoder, transforms = calls[0], calls[1:]
            if isinstance(decoder, Decoder) and all(isinstance(t, Transform) for t in transforms):
                new = replace(chain, decoder=decoder, transforms=transforms)  # type: ignore[arg-type]
                return replace(node, chains=(*node.chains[:position], new, *node.chains[position + 1 :]))
        return None

    rewrite_chains.__doc__ = summary
    return Rule(name, Slots, rewrite_chains)


def _changed(calls: tuple[OpCall, ...], change: CallsRewrite) -> tuple[OpCall, ...] | None:
    """`change` at the calls themselves, else in the first body inside one of them that it changes."""
    if (new := change(calls)) is not None:
        return new
    for i, call in enumerate(calls):
        for k, (name, value) in enumerate(call.args):
            if (inner := _changed_inside(value, change)) is not None:
                args = (*call.args[:k], (name, inner), *call.args[k + 1 :])
                return (*calls[:i], replace(call, args=args), *calls[i + 1 :])
    return None


def _changed_inside(value: Any, change: CallsRewrite) -> Any:
    if is_body(value):
        return _changed(value, change) or None  # a body may not become empty
    if isinstance(value, tuple):
        for i, item in enumerate(value):
            if (new := _changed_inside(item, change)) is not None:
                return (*value[:i], new, *value[i + 1 :])
    return None


PUSHDOWN = (
    filter_below_select,
    predicate_pushdown,
    limit_below_select,
    limit_pushdown,
    select_pushdown,
)
"""The rules of plans that become Polars queries; Polars pushes further by itself."""

RELATIONAL = (*PUSHDOWN, relation_as_source, projection_pushdown)


def optimize(plan: Plan) -> Rewritten:
    """Every rule, to a fixed point."""
    simplify = (simplification_rule(name, f) for name, f in simplifications().items())
    fuse = (fusion_rule(name, f) for name, f in fusions().items())
    return rewrite(plan, (*RELATIONAL, *simplify, *fuse))
