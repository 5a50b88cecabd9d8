"""The canonical form of a plan and its hash: what a checkpoint compares."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from .custom import canonical_function
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


def canonical_chain(chain: Chain) -> dict[str, Any]:
    return {
        "slot": chain.slot,
        "ops": [c.canonical() for c in chain.calls],
        "optional": chain.optional,
        "skip": chain.skip.canonical() if chain.skip else None,
    }


def canonical_plan(plan: Plan) -> list[dict[str, Any]]:
    """One plain dict per node, the scan's source left out: the same plan may run on other data."""
    out: list[dict[str, Any]] = []
    for node in walk(plan):
        match node:
            case Scan():
                continue
            case Filter(condition=test):
                out.append({"filter": test.canonical() if isinstance(test, Cond) else canonical_function(test)})
            case Select(columns=columns):
                out.append({"select": list(columns)})
            case Limit(count=count, offset=offset):
                out.append({"limit": count, "offset": offset})
            case Relation(step=step):
                out.append({"relation": step.canonical()})
            case MapRecords(function=function):
                out.append({"map_records": canonical_function(function)})
            case Slots(chains=chains):
                out.append({"slots": [canonical_chain(c) for c in chains]})
            case Batch(size=size, drop_last=drop_last, prefetch=prefetch):
                out.append({"batch": size, "drop_last": drop_last, "prefetch": prefetch})
            case Collate(prefetch=prefetch):
                out.append({"collate": True, "prefetch": prefetch})
            case GroupBy(key=key, prefetch=prefetch):
                out.append({"group_by": _key(key), "prefetch": prefetch})
            case BucketBy():
                out.append(
                    {
                        "bucket_by": _key(node.key),
                        "sizes": node.sizes,
                        "boundaries": node.boundaries,
                        "drop_last": node.drop_last,
                        "max_open": node.max_open,
                        "prefetch": node.prefetch,
                    }
                )
            case Pack():
                out.append(
                    {
                        "pack": node.length,
                        "size": node.size,
                        "slot": node.slot,
                        "tokens": _key(node.tokens),
                        "strategy": node.strategy,
                        "open_rows": node.open_rows,
                        "overflow": node.overflow,
                        "pad_value": node.pad_value,
                        "drop_last": node.drop_last,
                        "prefetch": node.prefetch,
                    }
                )
            case BatchOps(calls=calls):
                out.append({"batch_ops": [c.canonical() for c in calls]})
            case MapBatches(function=function):
                out.append({"map_batches": canonical_function(function)})
    return out


def _key(key: Any) -> Any:
    if isinstance(key, Cond):
        return key.canonical()
    return key if isinstance(key, (str, int)) else canonical_function(key)


def signature(plan: Plan) -> str:
    """SHA-256, in hex, over the canonical form of a logical plan (before optimisation)."""
    return _digest(canonical_plan(plan))


def checkpoint_signatures(plan: Plan) -> tuple[str, str]:
    """(exact, elastic): the hash of everything that decides what is delivered, and of all of that but batch sizes.

    How many batches are in flight decides nothing. Batch sizes may change together with the number of ranks.
    """
    exact = [{k: v for k, v in node.items() if k != "prefetch"} for node in canonical_plan(plan)]
    elastic = [
        {k: "any" if k in ("batch", "sizes") or (k == "size" and "pack" in node) else v for k, v in node.items()}
        for node in exact
    ]
    return _digest(exact), _digest(elastic)


def _digest(canonical: Any) -> str:
    text = json.dumps(canonical, sort_keys=True, separators=(",", ":"), default=repr)
    return hashlib.sha256(text.encode()).hexdigest()
