"""The canonical form of a plan and its hash: what a checkpoint compares."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

from .expr import Cond
from .plan import (
    Batch,
    BatchOps,
    Chain,
    Collate,
    Filter,
    GroupBy,
    Limit,
    MapBatches,
    MapRecords,
    Plan,
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


def canonical_function(function: Callable[..., Any]) -> dict[str, Any]:
    """A callable's identity: a custom op's name and version, else where it is defined and what its code is."""
    if hasattr(function, "describe"):
        described: dict[str, Any] = function.describe()
        return described
    code = getattr(function, "__code__", None)
    digest = hashlib.sha256(repr(_code(code)).encode()).hexdigest() if code else None
    closure = [repr(c.cell_contents) for c in (getattr(function, "__closure__", None) or ()) if _plain(c)]
    return {
        "module": getattr(function, "__module__", type(function).__module__),
        "name": getattr(function, "__qualname__", type(function).__qualname__),
        "code": digest,
        "defaults": [repr(d) for d in getattr(function, "__defaults__", None) or ()],
        "closure": closure,
    }


def _code(code: Any) -> list[Any]:
    return [code.co_code.hex(), [_constant(c) for c in code.co_consts], list(code.co_names)]


def _constant(value: Any) -> Any:
    """A constant in a form that prints the same in every process."""
    if hasattr(value, "co_code"):  # an inner function, which would print with an address and a file name
        return _code(value)
    if isinstance(value, frozenset):  # `x in {"a", "b"}`: its order follows the hash seed
        return ["set", *sorted(map(repr, value))]
    if isinstance(value, tuple):
        return tuple(map(_constant, value))
    return value


def _plain(cell: Any) -> bool:
    try:
        return isinstance(cell.cell_contents, (bool, int, float, str, bytes, tuple, type(None)))
    except ValueError:  # an empty cell
        return False


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
            case MapRecords(function=function):
                out.append({"map_records": canonical_function(function)})
            case Slots(chains=chains):
                out.append({"slots": [canonical_chain(c) for c in chains]})
            case Batch(size=size, drop_last=drop_last, prefetch=prefetch):
                out.append({"batch": size, "drop_last": drop_last, "prefetch": prefetch})
            case Collate(prefetch=prefetch):
                out.append({"collate": True, "prefetch": prefetch})
            case GroupBy(key=key, prefetch=prefetch):
                out.append({"group_by": key if isinstance(key, (str, int)) else canonical_function(key), "prefetch": prefetch})
            case BatchOps(calls=calls):
                out.append({"batch_ops": [c.canonical() for c in calls]})
            case MapBatches(function=function):
                out.append({"map_batches": canonical_function(function)})
    return out


def signature(plan: Plan) -> str:
    """SHA-256, in hex, over the canonical form of a logical plan (before optimisation)."""
    text = json.dumps(canonical_plan(plan), sort_keys=True, separators=(",", ":"), default=repr)
    return hashlib.sha256(text.encode()).hexdigest()
