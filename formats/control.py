"""Ops made of other ops (`sometimes`, `choice`, `some_of`, `select`), and `custom`: a Python function as an op.

The ops inside are arguments. The engine compiles them with the rest of the plan and hands each one in as a function of
the value, so that what stands here is only how they are chosen. They go on drawing from the record's stream.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeAlias

import numpy as np

from ..engine.arguments import Probability, Range
from ..engine.calls import OpCall, Transform, type_after
from ..engine.custom import CustomOp, as_custom
from ..engine.errors import OpError
from ..engine.expr import Cond, ConstCond, folded
from ..engine.registry import register_check, register_kernel, register_op, register_simplification
from ..engine.schema import TensorType

Body: TypeAlias = Any
"""A transform or a sequence of them; for the op's function: a function of the value."""
Bodies: TypeAlias = Any
"""A sequence of bodies."""
Branches: TypeAlias = Any
"""A sequence of (condition, body) pairs."""


def _checked_body(op: str, given: Any) -> tuple[Transform, ...]:
    """One transform, or several, as a tuple.

    Raises:
        TypeError: something that is no transform.
        ValueError: nothing in it.
    """
    calls = (given,) if isinstance(given, OpCall) else given
    if isinstance(calls, (str, bytes)) or not isinstance(calls, Sequence):
        raise TypeError(f"{op} takes transforms or sequences of them, got {given!r}; wrap a Python function: custom(fn)")
    for call in calls:
        if not isinstance(call, Transform):
            raise TypeError(f"{op} takes transforms, got {call!r}; wrap a Python function: transforms.custom(fn)")
    if not calls:
        raise ValueError(f"{op} takes at least one transform in each body, got none")
    return tuple(calls)


def _checked_arms(op: str, given: Any) -> tuple[tuple[Transform, ...], ...]:
    if isinstance(given, (OpCall, str, bytes)) or not isinstance(given, Sequence):
        raise TypeError(f"{op} takes a list of arms, got {given!r}")
    if not given:
        raise ValueError(f"{op} takes at least one arm, got none")
    return tuple(_checked_body(op, arm) for arm in given)


def _infer_sometimes(given: TensorType, *, body: Body, prob: float) -> TensorType:
    after = type_after(given, body)
    return given if prob == 0 else after if prob == 1 else given.join(after)


@register_op("sometimes", infer=_infer_sometimes, random=True, positional_only=("body",))
def sometimes(value: Any, *, body: Body, prob: Probability = 0.5, rng: np.random.Generator) -> Any:
    """Run all of `body` with probability `prob`, or nothing of it; one draw.

    Args:
        value: what the first transform of `body` takes.
        body: a transform, or a sequence of them.
        prob: in [0, 1].

    Returns:
        What `body` gives, or `value` itself. Where the two differ in shape or dtype the batch is ragged.
    """
    return body(value) if rng.random() < prob else value


@register_check("sometimes")
def _check_sometimes(*, body: Any, prob: float) -> dict[str, Any]:
    return {"body": _checked_body("sometimes", body), "prob": prob}


def _infer_choice(given: TensorType, *, arms: Bodies, weights: tuple[float, ...] | None) -> TensorType:
    drawn = [arm for i, arm in enumerate(arms) if weights is None or weights[i] > 0]
    after = [type_after(given, arm) for arm in drawn]
    if len({t.shape for t in after if t.static}) > 1:
        raise ValueError(f"the arms give different shapes: {', '.join(map(str, after))}; rows of a batch share one")
    found = after[0]
    for other in after[1:]:
        found = found.join(other)
    return found


@register_op("choice", infer=_infer_choice, random=True, positional_only=("arms",))
def choice(
    value: Any, *, arms: Bodies, weights: tuple[float, ...] | None = None, rng: np.random.Generator
) -> Any:
    """Run exactly one of the arms; one draw.

    Args:
        value: what every arm takes.
        arms: transforms, or sequences of them.
        weights: relative probabilities, finite, at least 0 and not all 0; None: all alike. An arm of weight 0 is never
            run.

    Returns:
        What that arm gives.
    """
    if weights is None:
        return arms[int(rng.random() * len(arms))](value)
    left = rng.random() * math.fsum(weights)
    for arm, weight in zip(arms, weights):
        left -= weight
        if left < 0:
            return arm(value)
    return next(arm for arm, weight in zip(reversed(arms), reversed(weights)) if weight > 0)(value)


@register_check("choice")
def _check_choice(*, arms: Any, weights: Any) -> dict[str, Any]:
    checked = _checked_arms("choice", arms)
    if weights is not None:
        if len(weights) != len(checked):
            raise ValueError(f"choice has {len(checked)} arms but {len(weights)} weights")
        if min(weights) < 0 or sum(weights) == 0:
            raise ValueError(f"choice(weights=) must be at least 0 and not all 0, got {weights}")
    return {"arms": checked, "weights": weights}


def _any_order(given: TensorType, *, arms: Bodies, **_: Any) -> TensorType:
    """What may stand between the arms of `some_of`: each may run, or not, on what the ones before it left."""
    found = given
    for arm in arms:
        found = found.join(type_after(found, arm))
    return found


def _infer_some_of(given: TensorType, *, n: int, arms: Bodies) -> TensorType:
    if n == len(arms):
        for arm in arms:
            given = type_after(given, arm)
        return given
    return _any_order(given, arms=arms)


@register_op("some_of", infer=_infer_some_of, random=True, positional_only=("n", "arms"))
def some_of(value: Any, *, n: Annotated[int, Range(1)], arms: Bodies, rng: np.random.Generator) -> Any:
    """Run `n` distinct arms, in the order they are listed.

    Args:
        value: what every arm takes, also after the arms before it.
        n: from 1 to the number of arms.
        arms: transforms, or sequences of them.

    Returns:
        What the last of them gives.
    """
    for arm in sorted(rng.permutation(len(arms))[:n].tolist()):
        value = arms[arm](value)
    return value


@register_check("some_of")
def _check_some_of(*, n: int, arms: Any) -> dict[str, Any]:
    checked = _checked_arms("some_of", arms)
    if n > len(checked):
        raise ValueError(f"some_of({n}, arms) has only {len(checked)} arms")
    return {"n": n, "arms": checked}


register_kernel("some_of", "inner_type")(_any_order)


def _infer_select(given: TensorType, *, arms: Branches, default: Body) -> TensorType:
    after = [type_after(given, body) for _, body in arms]
    after.append(given if default is None else type_after(given, default))
    found = after[0]
    for other in after[1:]:
        found = found.join(other)
    return found


@register_op("select", infer=_infer_select, positional_only=("arms",))
def select(value: Any, *, arms: Branches, default: Body | None = None) -> Any:
    """Run the body of the first condition that is true; nothing is drawn.

    Conditions on record fields (`cond.col`) are worked out once per morsel, those on the tensor (`cond.shape`,
    `cond.ndim`) at `value`.

    Args:
        value: what every body takes.
        arms: (condition, body) pairs; a body is a transform or a sequence of them.
        default: the body for when no condition is true; None leaves the value as it is.

    Returns:
        What that body gives, or `value` itself.
    """
    for holds, body in arms:
        if holds(value):
            return body(value)
    return value if default is None else default(value)


@register_check("select")
def _check_select(*, arms: Any, default: Any) -> dict[str, Any]:
    if isinstance(arms, (str, bytes)) or not isinstance(arms, Sequence):
        raise TypeError(f"select takes a list of (condition, body) pairs, got {arms!r}")
    if not arms:
        raise ValueError("select takes at least one (condition, body) pair, got none")
    checked = []
    for pair in arms:
        if not isinstance(pair, Sequence) or len(pair) != 2:
            raise TypeError(f"select takes (condition, body) pairs, got {pair!r}")
        condition, body = pair
        if not isinstance(condition, Cond):
            raise TypeError(f"select takes conditions from dataio.cond, got {condition!r}")
        checked.append((condition, _checked_body("select", body)))
    return {"arms": tuple(checked), "default": None if default is None else _checked_body("select", default)}


@register_simplification("constant_branches")
def constant_branches(call: OpCall) -> tuple[OpCall, ...] | None:
    """select([(false, a), (c, b), (true, d), ...]) -> select([(c, b)], default=d): constant conditions are worked out."""
    if call.name != "select":
        return None
    arms: list[tuple[Cond, tuple[Transform, ...]]] = []
    default = call.arguments["default"]
    for condition, body in call.arguments["arms"]:
        condition = folded(condition)
        if isinstance(condition, ConstCond):
            if not condition.value:
                continue
            default = body
            break
        arms.append((condition, body))
    if not arms:
        return default or ()
    simpler = call.spec.call(arms=tuple(arms), default=default)
    return None if simpler == call else (simpler,)


@register_op("custom", random=True, positional_only=("function",))
def custom(
    value: Any,
    *,
    function: Callable[..., Any] | CustomOp,
    name: str | None = None,
    version: str | None = None,
    rng: np.random.Generator,
) -> np.ndarray:
    """Run a Python function on each record's value.

    Args:
        value: array[...], perhaps read-only memory of the batch before: return a new array, do not write into it.
        function: `function(value)`, or `function(value, rng)` when it has a parameter of that name: the record's own
            stream, the same at any worker count. A `dataio.custom_op`, or a plain function.
        name, version: stand for the function in the plan's signature; without them its module, name and code do.
            Raise the version when results change.

    Returns:
        Whatever array (or scalar, or tensor on the CPU) the function gives, as a NumPy array; rows of one batch that
        differ in shape or dtype make it ragged.

    Raises:
        OpError: the function gives something that is no array. What it raises itself is the record's error.
    """
    result = function.call(value, rng)  # type: ignore[union-attr]
    array = result if isinstance(result, np.ndarray) else np.asarray(result)
    if array.dtype.kind not in "biufc":
        raise OpError(f"custom op {function} must give an array of numbers, got {type(result).__name__}")
    return array


@register_check("custom")
def _check_custom(*, function: Any, name: str | None, version: str | None) -> dict[str, Any]:
    return {"function": as_custom(function, name=name, version=version)}  # which holds the other two
