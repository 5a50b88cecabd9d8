"""Plan text, fit for golden files: deterministic, without colours or addresses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .expr import Cond
from .plan import (
    Batch,
    BatchOps,
    BucketBy,
    Chain,
    Collate,
    Filter,
    GroupBy,
    Limit,
    MapBatches,
    MapRecords,
    Pack,
    Plan,
    Relation,
    Scan,
    Select,
    Slots,
    walk,
)
from .rewrite import Rewritten


def function_name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "name", None) or getattr(function, "__qualname__", type(function).__qualname__))


def key_text(key: Any) -> str:
    """What decides which records stand together: a field, an index, a condition or a function's name."""
    return str(key) if isinstance(key, (str, int, Cond)) else function_name(key)


def chain_text(chain: Chain) -> str:
    skip = f" unless {chain.skip}" if chain.skip else ""
    optional = "?" if chain.optional else ""
    return f"{chain.slot}{optional}: {' -> '.join(str(c) for c in chain.calls)}{skip}"


def node_text(node: Plan) -> list[str]:
    """One node, one line (a Slots node one more per chain)."""
    match node:
        case Scan():
            parts = [node.source.describe()]
            if node.columns is not None:
                parts.append(f"columns=[{', '.join(node.columns)}]")
            if node.predicate is not None:
                parts.append(f"predicate=({node.predicate})")
            if node.sliced:
                parts.append(f"limit={node.limit}, offset={node.offset}")
            return [f"Scan {', '.join(parts)}"]
        case Filter(condition=condition):
            return [f"Filter {condition if isinstance(condition, Cond) else function_name(condition)}"]
        case Select(columns=columns):
            return [f"Select {', '.join(columns)}"]
        case Limit(count=count, offset=offset):
            return [f"Limit {count}, offset={offset}"]
        case Relation(step=step):
            return [f"Relation {step}"]
        case MapRecords(function=function):
            return [f"MapRecords {function_name(function)}"]
        case Slots(chains=chains):
            return ["Slots", *(f"  {chain_text(c)}" for c in chains)]
        case Batch(size=size, drop_last=drop_last, prefetch=prefetch):
            return [f"Batch size={size}, drop_last={drop_last}, prefetch={prefetch}"]
        case Collate(prefetch=prefetch):
            return [f"Collate prefetch={prefetch}"]
        case GroupBy(key=key, prefetch=prefetch):
            return [f"GroupBy {key_text(key)}, prefetch={prefetch}"]
        case BucketBy():
            sizes = node.sizes if isinstance(node.sizes, int) else dict(node.sizes)
            boundaries = "" if node.boundaries is None else f", boundaries={list(node.boundaries)}"
            return [
                f"BucketBy {key_text(node.key)}, sizes={sizes}{boundaries}, drop_last={node.drop_last}, "
                f"max_open={node.max_open}, prefetch={node.prefetch}"
            ]
        case Pack():
            return [
                f"Pack {node.slot}: length={node.length}, size={node.size}, tokens={key_text(node.tokens)}, "
                f"strategy={node.strategy}, open_rows={node.open_rows}, overflow={node.overflow}, "
                f"pad_value={node.pad_value}, drop_last={node.drop_last}, prefetch={node.prefetch}"
            ]
        case BatchOps(calls=calls):
            return [f"BatchOps {' -> '.join(map(str, calls))}"]
        case MapBatches(function=function):
            return [f"MapBatches {function_name(function)}"]
    return [type(node).__name__]


def plan_text(plan: Plan) -> str:
    """The plan from the scan to the last stage, one node a line."""
    nodes = [line for node in reversed(list(walk(plan))) for line in node_text(node)]
    return "\n".join(f"  {line}" for line in nodes)


def explain(plan: Plan, optimised: Rewritten) -> str:
    """The plan as written, as it runs, and the rules in between."""
    fired = ", ".join(dict.fromkeys(optimised.fired)) or "none"
    return (
        f"Plan as written\n{plan_text(plan)}\nRules that fired: {fired}\nPlan as it runs\n{plan_text(optimised.plan)}"
    )
