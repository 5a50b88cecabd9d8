"""Op calls: an op with its arguments, as a value; and what can be asked of a call and of the ops inside it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from .expr import Col, Cond, ParamRef
from .schema import TensorType

if TYPE_CHECKING:
    from .registry import OpSpec

OpKind: TypeAlias = Literal["decoder", "transform", "batch_transform"]


@dataclass(frozen=True, slots=True)
class OpCall:
    """An op with its arguments: a value, equal by content, printable, picklable."""

    name: str
    version: int
    args: tuple[tuple[str, Any], ...] = ()

    @property
    def spec(self) -> OpSpec:
        from .registry import lookup  # which makes calls

        return lookup(self.name, self.kind)

    @property
    def kind(self) -> OpKind:
        raise NotImplementedError

    @property
    def arguments(self) -> dict[str, Any]:
        return dict(self.args)

    def columns(self) -> tuple[str, ...]:
        """The record fields that its arguments, and those of ops inside it, read: in order of the signature."""
        return tuple(dict.fromkeys(leaf.field for leaf in references(self) if isinstance(leaf, Col)))

    def params(self) -> tuple[str, ...]:
        """Names of the unset parameters among its arguments, and those of ops inside it."""
        return tuple(dict.fromkeys(leaf.name for leaf in references(self) if isinstance(leaf, ParamRef)))

    def configured(self, values: dict[str, Any]) -> OpCall:
        """The same call with each `param(...)` that `values` names replaced, and checked."""
        if not any(name in values for name in self.params()):
            return self
        return self.spec.call(**{k: _configured(v, values) for k, v in self.args})

    def canonical(self) -> dict[str, Any]:
        return {"op": self.name, "version": self.version, "args": {k: canonical_value(v) for k, v in self.args}}

    def __str__(self) -> str:
        """`resize(h=224, w=224)`: arguments that differ from their defaults."""
        defaults = {p.name: p.default for p in self.spec.parameters}
        shown = (f"{k}={_shown(v)}" for k, v in self.args if defaults.get(k, ...) != v)
        return f"{self.name}({', '.join(shown)})"


class Decoder(OpCall):
    """A registered op that turns a slot's source into a value."""

    __slots__ = ()

    @property
    def kind(self) -> OpKind:
        return "decoder"


class Transform(OpCall):
    """A registered op on one record's value."""

    __slots__ = ()

    @property
    def kind(self) -> OpKind:
        return "transform"


class BatchTransform(OpCall):
    """A registered op on a whole batch."""

    __slots__ = ()

    @property
    def kind(self) -> OpKind:
        return "batch_transform"


CALLS: dict[OpKind, type[OpCall]] = {
    "decoder": Decoder,
    "transform": Transform,
    "batch_transform": BatchTransform,
}


def references(value: Any) -> Iterator[Col | ParamRef]:
    """Every reference in an argument: its own, those of ops inside it, the columns of conditions."""
    if isinstance(value, (Col, ParamRef)):
        yield value
    elif isinstance(value, OpCall):
        for _, inner in value.args:
            yield from references(inner)
    elif isinstance(value, Cond):
        yield from map(Col, sorted(value.columns()))
    elif isinstance(value, tuple):
        for inner in value:
            yield from references(inner)


def is_body(value: Any) -> bool:
    """True for an argument that holds ops to run inside another op."""
    return isinstance(value, tuple) and bool(value) and all(isinstance(v, OpCall) for v in value)


def bodies(value: Any) -> Iterator[tuple[OpCall, ...]]:
    """The bodies in an argument, or in a tuple of arguments."""
    if is_body(value):
        yield value
    elif isinstance(value, tuple):
        for inner in value:
            yield from bodies(inner)


def draws(call: OpCall) -> bool:
    """True when the op, or one inside it, draws random numbers."""
    return call.spec.random or any(draws(c) for _, v in call.args for body in bodies(v) for c in body)


def calls_within(calls: Iterable[OpCall]) -> Iterator[OpCall]:
    """These calls, and those inside them."""
    for call in calls:
        yield call
        yield from (inner for _, value in call.args for body in bodies(value) for inner in calls_within(body))


def type_after(given: TensorType, calls: tuple[OpCall, ...]) -> TensorType:
    """The type after these ops, one after the other.

    Raises:
        PlanError: an op refuses what the op before it gives.
    """
    for call in calls:
        given = call.spec.output_type(given, call.arguments)
    return given


def _configured(value: Any, values: dict[str, Any]) -> Any:
    if isinstance(value, ParamRef):
        return values.get(value.name, value)
    if isinstance(value, OpCall):
        return value.configured(values)
    if isinstance(value, tuple):
        return tuple(_configured(v, values) for v in value)
    return value


def _shown(value: Any) -> str:
    if isinstance(value, tuple) and any(isinstance(v, (OpCall, Cond, tuple)) for v in value):
        return f"[{', '.join(map(_shown, value))}]"
    return str(value)


def canonical_value(value: Any) -> Any:
    """Plain JSON values for an argument."""
    if hasattr(value, "canonical"):
        return value.canonical()
    if isinstance(value, (tuple, list)):
        return [canonical_value(v) for v in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return repr(value)
