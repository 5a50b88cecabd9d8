"""The one driver of the optimizer: apply named rules to a fixed point, remember which fired."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from .errors import InternalError
from .plan import Plan, input_of

RuleFunction: TypeAlias = Callable[[Any], "Plan | None"]


@dataclass(frozen=True, slots=True)
class Rule:
    """A rewrite of one node of type `node`; None means "does not apply"."""

    name: str
    node: type[Plan]
    function: RuleFunction

    @property
    def summary(self) -> str:
        return (self.function.__doc__ or "").strip().splitlines()[0]


def rule(node: type[Plan]) -> Callable[[RuleFunction], Rule]:
    """Make a rule of a function `node -> node | None`; its docstring says before and after."""

    def declare(function: RuleFunction) -> Rule:
        return Rule(function.__name__, node, function)

    return declare


@dataclass(frozen=True, slots=True)
class Rewritten:
    """An optimised plan and the rules that made it, in the order they fired."""

    plan: Plan
    fired: tuple[str, ...]


def rewrite(plan: Plan, rules: tuple[Rule, ...]) -> Rewritten:
    """Apply `rules` from the scan upwards until nothing changes; a plan seen twice is a bug in the rules."""
    fired: list[str] = []
    seen = {plan}
    while (new := _once(plan, rules, fired)) is not None:
        if new in seen:
            raise InternalError(f"rules {', '.join(fired[-4:])} do not settle: {new} came back")
        seen.add(plan := new)
    return Rewritten(plan, tuple(fired))


def _once(plan: Plan, rules: tuple[Rule, ...], fired: list[str]) -> Plan | None:
    below = input_of(plan)
    if below is not None:
        new = _once(below, rules, fired)
        if new is not None:
            return replace(plan, input=new)  # type: ignore[type-var]
    for candidate in rules:
        if isinstance(plan, candidate.node):
            result = candidate.function(plan)
            if result is not None and result != plan:
                fired.append(candidate.name)
                return result
    return None
