"""The physical plan of the slots: one fused program per chain.

`compile_chain` turns op calls into steps (the functions themselves, their literal arguments, which columns feed the
others) and proves what it can about layouts, dtypes and shapes. `engine.work` runs them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from .calls import OpCall, bodies, draws, is_body, references
from .errors import PlanError
from .expr import Col, ParamRef
from .plan import Chain
from .registry import Infer, Parameter, Reads
from .schema import OBJECT, Layout, Takes, TensorType
from .source import RangeReader

Reader: TypeAlias = Callable[[Any], Any]
"""Turns a slot's value (bytes, path, URI, reader) into bytes-like data; raises on failure."""
Opener: TypeAlias = Callable[[Any], RangeReader]
"""Turns a slot's value into something that is read in parts; raises on failure."""


@dataclass(slots=True)
class Step:
    """One op of a chain, ready to call."""

    op: str
    stage: str
    function: Callable[..., Any]
    arguments: dict[str, Any]
    out: Callable[..., Any] | None = None
    batched: Callable[..., Any] | None = None
    batched_out: Callable[..., Any] | None = None
    sources_out: Callable[..., list[int]] | None = None
    original_hw: Callable[..., Any] | None = None
    setup: Callable[[], None] | None = None
    dynamic: tuple[tuple[str, str, Parameter], ...] = ()
    random: bool = False
    wants_layout: bool = False
    layout: Layout | None = None
    takes: Takes | None = None
    nested: bool = False
    view: Callable[..., Any] | None = None
    infer: Infer | None = None

    @property
    def varies(self) -> bool:
        """True when some argument differs from row to row."""
        return bool(self.dynamic) or self.random or (self.wants_layout and self.layout is None)


@dataclass(frozen=True, slots=True)
class Body:
    """Compiled ops that run inside another op; the op gets a callable in their place."""

    steps: tuple[Step, ...]


def walk_steps(value: Any) -> Iterator[Step]:
    """Every step of a tuple of steps, those of bodies included."""
    if isinstance(value, Step):
        yield value
        if value.nested:
            yield from walk_steps(tuple(value.arguments.values()))
    elif isinstance(value, Body):
        yield from walk_steps(value.steps)
    elif isinstance(value, tuple):
        for inner in value:
            yield from walk_steps(inner)


@dataclass(slots=True)
class ChainProgram:
    """A compiled chain.

    Attributes:
        type: what is known of a finished row from literal arguments alone.
        calls: the op calls, to infer the type again once a batch's dynamic arguments are known.
    """

    slot: str
    steps: tuple[Step, ...]
    type: TensorType
    reads: Reads
    calls: tuple[OpCall, ...]
    fields: tuple[str, ...]
    optional: bool
    random: bool

    @property
    def is_object(self) -> bool:
        return self.type.dtype == OBJECT

    @property
    def whole_column(self) -> bool:
        """True when one call of the decoder's batched kernel does the whole chain."""
        return len(self.steps) == 1 and self.steps[0].batched is not None and not self.steps[0].varies

    @property
    def guesses(self) -> bool:
        """True when a buffer for rows like those of the batch before would be filled."""
        return not self.whole_column or self.steps[0].batched_out is not None

    def type_for(self, values: dict[str, Any]) -> TensorType:
        """The row type once the dynamic arguments have these values; unknown when an op refuses them."""
        found = TensorType()
        try:
            for call in self.calls:
                arguments = {k: values.get(v.field) if isinstance(v, Col) else v for k, v in call.args}
                found = call.spec.output_type(found, arguments)
        except (PlanError, TypeError):
            return TensorType()
        return found


def compile_chain(chain: Chain) -> ChainProgram:
    """Compile one chain.

    Raises:
        PlanError: an unset parameter, or an op that refuses what the op before it gives.
    """
    if chain.skip is not None and chain.skip.needs_tensor():
        raise PlanError(
            f"slot {chain.slot!r}: {chain.skip} needs a decoded tensor; skip_when and active_when decide before anything "
            "is read. Use when(...).then(...) on the transforms instead"
        )
    steps, known = compile_calls(chain.calls, TensorType(), chain.slot, "decode")
    fields = dict.fromkeys(r.field for call in chain.calls for r in references(call) if isinstance(r, Col))
    return ChainProgram(
        slot=chain.slot,
        steps=steps,
        type=known,
        reads=chain.decoder.spec.reads,
        calls=chain.calls,
        fields=tuple(fields),
        optional=chain.optional,
        random=any(map(draws, chain.calls)),
    )


def compile_calls(
    calls: tuple[OpCall, ...], known: TensorType, slot: str, stage: str = "transform"
) -> tuple[tuple[Step, ...], TensorType]:
    """Steps for these calls on a value of type `known`, and the type they make; `stage` is that of the first."""
    steps: list[Step] = []
    for call in calls:
        spec = call.spec
        if unset := call.params():
            raise PlanError(f"parameter {unset[0]!r} of {call.name} in slot {slot!r} is not set: use configure({unset[0]}=...)")
        try:
            result = spec.output_type(known, call.arguments)
        except PlanError as error:
            raise PlanError(f"slot {slot!r}: {error}") from error
        steps.append(_compile_call(call, known, slot, stage))
        known, stage = result, "transform"
    return tuple(steps), known


def _compile_call(call: OpCall, known: TensorType, slot: str, stage: str) -> Step:
    spec = call.spec
    parameters = {p.name: p for p in spec.parameters}
    proven = known.dtype is not None and known.shape is not None
    unchecked = spec.takes != Takes() and not (proven and (known.layout is not None or not spec.takes.layouts))
    arguments = {k: v for k, v in call.args if not isinstance(v, (Col, ParamRef))}
    nested = any(True for _ in bodies(tuple(arguments.values())))
    if nested:
        inner_type = spec.kernels.get("inner_type")
        inner = known if inner_type is None else inner_type(known, **arguments)
        arguments = {k: _compile_bodies(v, inner, slot) for k, v in arguments.items()}
    if "layout" in spec.injected and known.layout is not None:
        arguments["layout"] = known.layout
    return Step(
        op=call.name,
        stage=stage,
        function=spec.function,
        arguments=arguments,
        out=spec.kernels.get("out"),
        batched=spec.kernels.get("batched"),
        batched_out=spec.kernels.get("batched_out"),
        sources_out=spec.kernels.get("sources_out"),
        original_hw=spec.kernels.get("original_hw"),
        setup=spec.kernels.get("setup"),
        dynamic=tuple((k, v.field, parameters[k]) for k, v in call.args if isinstance(v, Col)),
        random=spec.random,
        wants_layout="layout" in spec.injected,
        layout=known.layout,
        takes=spec.takes if stage != "decode" and unchecked else None,
        nested=nested,
        view=spec.kernels.get("view"),
        infer=spec.infer,
    )


def _compile_bodies(value: Any, known: TensorType, slot: str) -> Any:
    """An argument with its ops compiled; everything else stays."""
    if is_body(value):
        return Body(compile_calls(value, known, slot)[0])
    if isinstance(value, tuple):
        return tuple(_compile_bodies(v, known, slot) for v in value)
    return value


@dataclass(slots=True)
class Program:
    """All chains of a plan, with the reader of sources: what a worker needs to know. Sent to processes once."""

    chains: tuple[ChainProgram, ...]
    reader: Reader
    process_setups: tuple[Callable[[], None], ...] = ()
    opener: Opener | None = None
    carriers: tuple[Callable[[], Callable[[], None]], ...] = ()
    """Called when the program is sent to processes: each gives a setup that brings a state of this process there."""

    def for_processes(self) -> Program:
        """This program with the state of this process as it is now; its pickle may hold secrets."""
        return replace(self, process_setups=(*(carry() for carry in self.carriers), *self.process_setups), carriers=())

    @property
    def setups(self) -> tuple[Callable[[], None], ...]:
        """Functions that each worker thread calls once before its first morsel."""
        return tuple({s.setup: None for c in self.chains for s in walk_steps(c.steps) if s.setup is not None})

    @property
    def fields(self) -> tuple[str, ...]:
        """Scalar columns that arguments read."""
        return tuple(dict.fromkeys(f for c in self.chains for f in c.fields))

    @property
    def random(self) -> bool:
        return any(c.random for c in self.chains)

    @property
    def inline(self) -> bool:
        """True when no chain reads, decodes or transforms anything: not worth a trip to the workers."""
        return all(c.whole_column and not c.reads for c in self.chains)
