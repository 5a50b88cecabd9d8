"""The physical plan of the slots: one fused program per chain, and the loop that runs it over a morsel.

`compile_chain` turns op calls into steps (the functions themselves, their literal arguments, which columns feed the
others) and proves what it can about layouts, dtypes and shapes. `run_chain` reads, decodes and transforms the rows of a
morsel and writes the results into the batch buffer when the row type is known, else returns them row by row. Both
executors run this same code.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from .errors import MissingFieldError, OpError, PlanError
from .expr import Col, ParamRef
from .morsel import Morsel
from .plan import Chain
from .registry import OpCall, Parameter
from .rng import record_stream
from .rules import SEED_FIELD
from .schema import OBJECT, Layout, Takes, TensorType, guess_layout, type_of

Reader: TypeAlias = Callable[[Any], Any]
"""Turns a slot's value (bytes, path, URI, reader) into bytes-like data; raises on failure."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One record that could not be delivered.

    Attributes:
        row: position in the batch as submitted.
        slot, stage, op: where; `op` is the op's name, "read" or "map".
        uri: the path or URI of the source when there is one.
        error: the exception's type name; `message` its text.
    """

    row: int
    slot: str | None
    stage: str
    op: str
    uri: str | None
    error: str
    message: str


def failure_of(row: int, slot: str | None, stage: str, op: str, source: Any, error: BaseException) -> Failure:
    return Failure(row, slot, stage, op, uri_of(source), type(error).__name__, str(error) or type(error).__name__)


def uri_of(source: Any) -> str | None:
    """The path or URI behind a slot's value, when it shows one."""
    if isinstance(source, str):
        return source
    if isinstance(source, dict):
        source = source.get("uri") or source.get("url") or source.get("path")
        return str(source) if source is not None else None
    if hasattr(source, "__fspath__"):
        return str(source.__fspath__())
    uri = getattr(source, "uri", None)
    return uri if isinstance(uri, str) else None


@dataclass(slots=True)
class Step:
    """One op of a chain, ready to call."""

    op: str
    stage: str
    function: Callable[..., Any]
    arguments: dict[str, Any]
    out: Callable[..., Any] | None = None
    batched: Callable[..., Any] | None = None
    original_hw: Callable[..., Any] | None = None
    setup: Callable[[], None] | None = None
    dynamic: tuple[tuple[str, str, Parameter], ...] = ()
    random: bool = False
    wants_layout: bool = False
    layout: Layout | None = None
    takes: Takes | None = None

    @property
    def varies(self) -> bool:
        """True when some argument differs from row to row."""
        return bool(self.dynamic) or self.random or (self.wants_layout and self.layout is None)


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
    reads: bool
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
    steps: list[Step] = []
    known = TensorType()
    for position, call in enumerate(chain.calls):
        spec = call.spec
        if unset := call.params():
            raise PlanError(f"parameter {unset[0]!r} of {call.name} in slot {chain.slot!r} is not set: use configure({unset[0]}=...)")
        arguments = call.arguments
        try:
            result = spec.output_type(known, arguments)
        except PlanError as error:
            raise PlanError(f"slot {chain.slot!r}: {error}") from error
        parameters = {p.name: p for p in spec.parameters}
        dynamic = tuple((k, v.field, parameters[k]) for k, v in arguments.items() if isinstance(v, Col))
        proven = known.dtype is not None and known.shape is not None
        injected = {"layout": known.layout} if "layout" in spec.injected and known.layout is not None else {}
        unchecked = spec.takes != Takes() and not (proven and (known.layout is not None or not spec.takes.layouts))
        steps.append(
            Step(
                op=call.name,
                stage="decode" if position == 0 else "transform",
                function=spec.function,
                arguments={k: v for k, v in arguments.items() if not isinstance(v, (Col, ParamRef))} | injected,
                out=spec.kernels.get("out"),
                batched=spec.kernels.get("batched"),
                original_hw=spec.kernels.get("original_hw"),
                setup=spec.kernels.get("setup"),
                dynamic=dynamic,
                random=spec.random,
                wants_layout="layout" in spec.injected,
                layout=known.layout,
                takes=spec.takes if position and unchecked else None,
            )
        )
        known = result
    fields = tuple(dict.fromkeys(f for s in steps for _, f, _ in s.dynamic))
    return ChainProgram(
        slot=chain.slot,
        steps=tuple(steps),
        type=known,
        reads=chain.decoder.spec.reads,
        calls=chain.calls,
        fields=fields,
        optional=chain.optional,
        random=any(s.random for s in steps),
    )


class Counters:
    """Nanoseconds, calls and worst case per op, of one worker's task; merged by the stats."""

    __slots__ = ("ops",)

    def __init__(self) -> None:
        self.ops: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0, 0])

    def add(self, stage: str, op: str, nanoseconds: int, count: int = 1) -> None:
        entry = self.ops[(stage, op)]
        entry[0] += nanoseconds
        entry[1] += count
        each = nanoseconds // max(count, 1)
        if each > entry[2]:
            entry[2] = each


@dataclass(slots=True)
class ChainResult:
    """What a chain made of a morsel: rows written in place (`values` None), one array, or a list with None for failures."""

    values: np.ndarray | list[Any] | None = None
    sizes: list[tuple[int, int] | None] | None = None


@dataclass(slots=True)
class MorselResult:
    """What a worker sends back."""

    offset: int
    length: int
    chains: dict[str, ChainResult] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    counters: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    bytes_read: int = 0


@dataclass(slots=True)
class Program:
    """All chains of a plan, with the reader of sources: what a worker needs to know. Sent to processes once."""

    chains: tuple[ChainProgram, ...]
    reader: Reader
    process_setups: tuple[Callable[[], None], ...] = ()

    @property
    def setups(self) -> tuple[Callable[[], None], ...]:
        """Functions that each worker thread calls once before its first morsel."""
        return tuple({s.setup: None for c in self.chains for s in c.steps if s.setup is not None})

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


def run_morsel(
    program: Program,
    morsel: Morsel,
    blocks: dict[str, np.ndarray],
    seed: int,
    epoch: int,
    inactive: frozenset[str] = frozenset(),
    stopped: Callable[[], bool] | None = None,
) -> MorselResult:
    """Run every chain over the rows of `morsel`; `blocks` holds the rows of the batch buffers to fill, by slot."""
    result = MorselResult(morsel.offset, morsel.length)
    counters = Counters()
    failed = set(morsel.skip)
    for chain in program.chains:
        if chain.slot in inactive:
            continue
        if stopped is not None and stopped():
            break
        result.chains[chain.slot] = _run_chain(
            chain, program.reader, morsel, blocks.get(chain.slot), seed, epoch, failed, result, counters
        )
    result.counters = dict(counters.ops)
    return result


def _run_chain(
    chain: ChainProgram,
    reader: Reader,
    morsel: Morsel,
    block: np.ndarray | None,
    seed: int,
    epoch: int,
    failed: set[int],
    result: MorselResult,
    counters: Counters,
) -> ChainResult:
    sources = morsel.values(chain.slot)
    data: Sequence[Any]
    if chain.reads:
        data = _read(chain, reader, sources, morsel, failed, result, counters)
    else:
        data = [owned(value) for value in sources] if morsel.arrow(chain.slot) else sources
    if chain.whole_column and not failed:
        step = chain.steps[0]
        started = time.perf_counter_ns()
        try:
            whole = step.batched(data, **step.arguments)  # type: ignore[misc]
        except Exception:  # the row by row form below says which record is bad
            whole = None
        if whole is not None and len(whole) == morsel.length:
            counters.add(step.stage, step.op, time.perf_counter_ns() - started, morsel.length)
            return ChainResult(whole)
    return _run_rows(chain, sources, data, morsel, block, seed, epoch, failed, result, counters)


def owned(value: Any) -> Any:
    """A value taken from an Arrow column as Python's own: views of its memory become bytes.

    What a batch keeps then neither holds a whole column nor differs from the value of a Python record.
    """
    if isinstance(value, memoryview):
        return bytes(value)
    if isinstance(value, dict):
        return {name: owned(inner) for name, inner in value.items()}
    return value


def _read(
    chain: ChainProgram,
    reader: Reader,
    sources: Sequence[Any],
    morsel: Morsel,
    failed: set[int],
    result: MorselResult,
    counters: Counters,
) -> list[Any]:
    """The bytes of every row; None where reading failed."""
    started = time.perf_counter_ns()
    if not failed and set(map(type, sources)) <= {bytes}:
        result.bytes_read += sum(map(len, sources))
        return sources if isinstance(sources, list) else list(sources)
    out: list[Any] = []
    total = 0
    for i, source in enumerate(sources):
        if i in failed:
            out.append(None)
            continue
        try:
            data = reader(source)
        except Exception as error:
            failed.add(i)
            result.failures.append(failure_of(morsel.offset + i, chain.slot, "read", "read", source, error))
            out.append(None)
            continue
        total += len(data)
        out.append(data)
    result.bytes_read += total
    counters.add("read", "read", time.perf_counter_ns() - started, len(out))
    return out


def _run_rows(
    chain: ChainProgram,
    sources: Sequence[Any],
    data: Sequence[Any],
    morsel: Morsel,
    block: np.ndarray | None,
    seed: int,
    epoch: int,
    failed: set[int],
    result: MorselResult,
    counters: Counters,
) -> ChainResult:
    steps = chain.steps
    first, last = steps[0], len(steps) - 1
    values: list[Any] | None = [None] * morsel.length if block is None else None
    sizes: list[tuple[int, int] | None] | None = [None] * morsel.length if first.original_hw else None
    columns = {name: morsel.objects.get(name, ()) if morsel.batch is None else morsel.values(name) for name in chain.fields}
    seeds = _own_seeds(morsel) if chain.random else None
    clock = time.perf_counter_ns
    for i in range(morsel.length):
        if i in failed:
            continue
        step = first
        try:
            rng = record_stream(seed, epoch, morsel.start + i, seeds[i] if seeds else None) if chain.random else None
            value = data[i]
            for position, step in enumerate(steps):
                started = clock()
                arguments = step.arguments
                if step.varies:
                    arguments = _arguments(step, columns, i, value, rng)
                if step.takes is not None:
                    _check_takes(step, value)
                if position == last and block is not None and step.out is not None:
                    step.out(value, block[i, ...], **arguments)
                    value = None
                else:
                    value = step.function(value, **arguments)
                counters.add(step.stage, step.op, clock() - started)
                if position == 0 and step.original_hw is not None and sizes is not None:
                    sizes[i] = step.original_hw(data[i], value, **arguments)
            if values is not None:
                values[i] = value
            elif value is not None:
                row = block[i, ...]  # type: ignore[index]
                if value.shape != row.shape or value.dtype != row.dtype:
                    raise OpError(f"gave {type_of(value)}, but declared {type_of(row)}")
                row[...] = value
        except Exception as error:
            failed.add(i)
            result.failures.append(failure_of(morsel.offset + i, chain.slot, step.stage, step.op, sources[i], error))
    return ChainResult(values, sizes)


def _arguments(step: Step, columns: dict[str, Sequence[Any]], row: int, value: Any, rng: Any) -> dict[str, Any]:
    arguments = dict(step.arguments)
    for name, column, parameter in step.dynamic:
        found = columns[column][row]
        if found is MISSING:
            raise MissingFieldError(f"{step.op}({name}=) reads field {column!r}, which the record lacks")
        arguments[name] = parameter.check(step.op, found) if not isinstance(found, str) else _refuse(step, name, column, found)
    if step.random:
        arguments["rng"] = rng
    if step.wants_layout:
        arguments["layout"] = step.layout or guess_layout(value)
    return arguments


def _refuse(step: Step, name: str, column: str, found: str) -> Any:
    raise TypeError(f"{step.op}({name}=) reads field {column!r}, which holds {found!r}, not a number")


def _check_takes(step: Step, value: Any) -> None:
    if not isinstance(value, np.ndarray):
        raise OpError(f"takes {step.takes}, got a Python {type(value).__name__}")
    layout = step.layout
    if layout is None and step.takes.layouts:  # type: ignore[union-attr]
        layout = guess_layout(value)
    if (why := step.takes.complaint(type_of(value, layout))) is not None:  # type: ignore[union-attr]
        raise OpError(why)


def _own_seeds(morsel: Morsel) -> list[int | None] | None:
    """Each record's own `seed` field, where it has one."""
    try:
        found = morsel.values(SEED_FIELD)
    except KeyError:
        return None
    seeds: list[int | None] = []
    for value in found:
        if value is None or value is MISSING:
            seeds.append(None)
        elif isinstance(value, (int, np.integer)) and not isinstance(value, bool) and 0 <= value < 1 << 64:
            seeds.append(int(value))
        else:
            raise TypeError(f"record field 'seed' must be an integer in [0, 2**64), got {value!r}")
    return seeds


class _Missing:
    """The value of a field that a record lacks; keeps its identity through pickle."""

    _instance: _Missing | None = None

    def __new__(cls) -> _Missing:
        if cls._instance is None:
            cls._instance = super().__new__(cls)
        return cls._instance

    def __reduce__(self) -> tuple[Any, ...]:
        return (_Missing, ())

    def __repr__(self) -> str:
        return "MISSING"


MISSING = _Missing()
