"""The loop that runs compiled chains over a morsel; both executors run this same code.

`run_morsel` reads, decodes and transforms the rows and writes the results into the batch buffer when the row type is
known, or guessed from the batch before; else it returns them row by row.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from .errors import MissingFieldError, OpError
from .expr import Cond
from .failure import Failure, failure_of
from .morsel import Morsel
from .physical import Body, ChainProgram, Program, Step
from .registry import INJECTED
from .rng import record_stream, thread_stream
from .rules import SEED_FIELD
from .schema import guess_layout, type_of

if TYPE_CHECKING:  # not in worker processes
    from .ledger import Charge, Ledger

Spent: TypeAlias = list[int]
"""What an op took: nanoseconds in all, calls, nanoseconds of the slowest and of the fastest call."""


def add_spent(ops: dict[tuple[str, str], Spent], key: tuple[str, str], spent: Spent) -> None:
    """Add to the entry of `key`, which is `(stage, op)`."""
    entry = ops.get(key)
    if entry is None:
        ops[key] = list(spent)
        return
    entry[0] += spent[0]
    entry[1] += spent[1]
    entry[2] = max(entry[2], spent[2])
    entry[3] = min(entry[3], spent[3])


class Counters:
    """What each op of one worker's task took; merged by the stats."""

    __slots__ = ("ops",)

    def __init__(self) -> None:
        self.ops: dict[tuple[str, str], Spent] = {}

    def add_calls(self, stage: str, op: str, times: list[int]) -> None:
        """Nanoseconds of each call."""
        if times:
            add_spent(self.ops, (stage, op), [sum(times), len(times), max(times), min(times)])

    def add_column(self, stage: str, op: str, nanoseconds: int, count: int) -> None:
        """One call for `count` records."""
        if count:
            add_spent(self.ops, (stage, op), [nanoseconds, count, nanoseconds // count, nanoseconds // count])


@dataclass(slots=True)
class ChainResult:
    """What a chain made of a morsel: rows written in place (`values` None), one array, or a list with None for failures."""

    values: np.ndarray | list[Any] | None = None
    sizes: list[tuple[int, int] | None] | None = None


@dataclass(slots=True)
class MorselResult:
    """What a worker sends back.

    Attributes:
        began, took, cpu: when the work began (`time.perf_counter_ns`, one clock for all processes on Linux), how long it
            took and how much of that the worker's thread was on a core, in nanoseconds.
        worker: process and native thread id; (0, 0) when no worker finished it.
    """

    offset: int
    length: int
    chains: dict[str, ChainResult] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    counters: dict[tuple[str, str], Spent] = field(default_factory=dict)
    bytes_read: int = 0
    began: int = 0
    took: int = 0
    cpu: int = 0
    worker: tuple[int, int] = (0, 0)


def run_morsel(
    program: Program,
    morsel: Morsel,
    blocks: dict[str, np.ndarray],
    seed: int,
    epoch: int,
    inactive: frozenset[str] = frozenset(),
    stopped: Callable[[], bool] | None = None,
    guessed: frozenset[str] = frozenset(),
    ledger: Ledger | None = None,
) -> MorselResult:
    """Run every chain over the rows of `morsel`; `blocks` holds the rows of the batch buffers to fill, by slot.

    The blocks of `guessed` slots have the row type of the batch before: a row of another type is returned instead. What is
    read is entered in `ledger` until it is decoded.
    """
    began = time.perf_counter_ns()
    result = MorselResult(morsel.offset, morsel.length, began=began)
    if not program.inline:  # these are system calls, which cost as much as a cheap batch
        result.cpu = -time.thread_time_ns()
        result.worker = (os.getpid(), threading.get_native_id())
    counters = Counters()
    failed = set(morsel.skip)
    for chain in program.chains:
        if chain.slot in inactive:
            continue
        if stopped is not None and stopped():
            break
        work = Work(program, chain, morsel, seed, epoch, failed, result, counters, ledger)
        result.chains[chain.slot] = work.run(blocks.get(chain.slot), chain.slot in guessed)
        if work.undecoded is not None:
            work.undecoded.drop()
    result.counters = counters.ops
    if not program.inline:
        result.cpu += time.thread_time_ns()
    result.took = time.perf_counter_ns() - began
    return result


def owned(value: Any) -> Any:
    """A value taken from an Arrow column as Python's own: views of its memory become bytes.

    What a batch keeps then neither holds a whole column nor differs from the value of a Python record.
    """
    if isinstance(value, memoryview):
        return bytes(value)
    if isinstance(value, dict):
        return {name: owned(inner) for name, inner in value.items()}
    return value


class Row:
    """Where the row loop stands, and what ops whose arguments vary read there."""

    __slots__ = ("columns", "index", "length", "rng")

    def __init__(self, columns: dict[str, Sequence[Any]], length: int) -> None:
        self.columns = columns
        self.length = length
        self.index = 0
        self.rng: Any = None

    def column(self, name: str) -> list[Any]:
        """A column as conditions see it: a missing field is None."""
        return [None if value is MISSING else value for value in self.columns[name]]


@dataclass(slots=True)
class Work:
    """One chain over one morsel."""

    program: Program
    chain: ChainProgram
    morsel: Morsel
    seed: int
    epoch: int
    failed: set[int]
    result: MorselResult
    counters: Counters
    ledger: Ledger | None = None
    undecoded: Charge | None = None

    def run(self, block: np.ndarray | None, guessed: bool) -> ChainResult:
        chain, morsel = self.chain, self.morsel
        sources = morsel.values(chain.slot)
        if chain.reads == "ranges":
            return self._run_ranges(sources, block, guessed)
        data: Sequence[Any]
        if chain.reads:
            data = self._read(sources)
        else:
            data = [owned(value) for value in sources] if morsel.arrow(chain.slot) else sources
        if chain.whole_column and not self.failed:
            step = chain.steps[0]
            started = time.perf_counter_ns()
            try:
                done = self._whole_column(step, data, block)
            except Exception:  # the row by row form below says which record is bad
                done = None
            if done is not None:
                self.counters.add_column(step.stage, step.op, time.perf_counter_ns() - started, morsel.length)
                return done
        return self._run_rows(sources, data, block, guessed)

    def _whole_column(self, step: Step, data: Sequence[Any], block: np.ndarray | None) -> ChainResult | None:
        """One call for the column, straight into the batch buffer where it fits."""
        if block is not None and step.batched_out is not None and step.batched_out(data, block, **step.arguments):
            return ChainResult()
        whole = step.batched(data, **step.arguments)  # type: ignore[misc]
        return ChainResult(whole) if whole is not None and len(whole) == self.morsel.length else None

    def _run_ranges(self, sources: Sequence[Any], block: np.ndarray | None, guessed: bool) -> ChainResult:
        """A decoder that reads its source in parts."""
        done = self._sources_out(sources, block)
        if len(done) == len(sources):
            return ChainResult()
        readers = self._fetch(sources, self.program.opener, done=done)  # type: ignore[arg-type]
        try:
            return self._run_rows(sources, readers, block, guessed, done)
        finally:
            for reader in readers:
                if reader is not None:
                    reader.close()

    def _sources_out(self, sources: Sequence[Any], block: np.ndarray | None) -> frozenset[int]:
        """The rows that one call for the column has read into the batch buffer."""
        step = self.chain.steps[0]
        if block is None or step.sources_out is None or step.varies or self.failed or len(self.chain.steps) > 1:
            return frozenset()
        started = time.perf_counter_ns()
        done = step.sources_out(sources, block, **step.arguments)
        self.counters.add_column(step.stage, step.op, time.perf_counter_ns() - started, len(done))
        if done:
            self.result.bytes_read += len(done) * block[0].nbytes
        return frozenset(done)

    def _read(self, sources: Sequence[Any]) -> list[Any]:
        """The bytes of every row; None where reading failed."""
        fetched = self.morsel.fetched.get(self.chain.slot)
        if fetched is not None:
            return self._take_fetched(sources, fetched)
        if not self.failed and set(map(type, sources)) <= {bytes}:
            self.result.bytes_read += sum(map(len, sources))
            return sources if isinstance(sources, list) else list(sources)
        found = self._fetch(sources, self.program.reader)
        nbytes = sum(len(data) for data in found if data is not None)
        self.result.bytes_read += nbytes
        if self.ledger is not None and type(found[0]) is not memoryview:  # views are of columns that the records carry
            self.undecoded = self.ledger.read(nbytes)
        return found

    def _fetch(
        self, sources: Sequence[Any], fetch: Callable[[Any], Any], first: int = 0, done: Set[int] = frozenset()
    ) -> list[Any]:
        """`fetch` of the rows from `first` on; None where it failed, and of those that are `done`."""
        started = time.perf_counter_ns()
        out: list[Any] = []
        for i, source in enumerate(sources, first):
            if i in self.failed or i in done:
                out.append(None)
                continue
            try:
                out.append(fetch(source))
            except Exception as error:
                self._fail(i, "read", "read", source, error)
                out.append(None)
        self.counters.add_column("read", "read", time.perf_counter_ns() - started, len(out))
        return out

    def _take_fetched(self, sources: Sequence[Any], fetched: list[Any]) -> list[Any]:
        """The same where the Fetch actor was before, which counts the bytes in memory."""
        out: list[Any] = []
        for i, found in enumerate(fetched):
            if i in self.failed:
                found = None
            elif isinstance(found, Failure):
                self.failed.add(i)
                self.result.failures.append(found)
                found = None
            elif found is None:
                (found,) = self._fetch(sources[i : i + 1], self.program.reader, first=i)
            if found is not None:
                self.result.bytes_read += memoryview(found).nbytes
            out.append(found)
        return out

    def _fail(self, row: int, stage: str, op: str, source: Any, error: BaseException) -> None:
        self.failed.add(row)
        self.result.failures.append(failure_of(self.morsel.offset + row, self.chain.slot, stage, op, source, error))

    def _run_rows(
        self,
        sources: Sequence[Any],
        data: Sequence[Any],
        block: np.ndarray | None,
        guessed: bool,
        done: Set[int] = frozenset(),
    ) -> ChainResult:
        """The rows one by one, without those that are `done`."""
        chain, morsel = self.chain, self.morsel
        indices = morsel.indices
        row = Row(self._columns(), morsel.length)
        steps = bind_steps(chain.steps, row)
        if chain.random:
            row.rng = thread_stream()
            steps = tuple(_with_stream(s, row.rng) if s.random else s for s in steps)
        first, last = steps[0], len(steps) - 1
        values: list[Any] | None = [None] * morsel.length if block is None or guessed else None
        sizes: list[tuple[int, int] | None] | None = [None] * morsel.length if first.original_hw else None
        seeds = _own_seeds(morsel) if chain.random else None
        seen = Seen(block, guessed)
        times: list[list[int]] = [[] for _ in steps]
        clock = time.perf_counter_ns
        for i in range(morsel.length):
            if i in self.failed or i in done:
                continue
            step = first
            row.index = i
            try:
                if chain.random:
                    record_stream(self.seed, self.epoch, indices[i], seeds[i] if seeds else None)
                value, written = data[i], False
                for position, step in enumerate(steps):
                    started = clock()
                    arguments = _arguments(step, row, value) if step.varies else step.arguments
                    if step.takes is not None:
                        seen.check(position, step, value)
                    if position == last and step.out is not None and seen.fits(position, step, value, arguments):
                        written = step.out(value, block[i, ...], **arguments) is not False  # type: ignore[index]
                    if not written:
                        function = step.view if step.view is not None and position < last else step.function
                        value = function(value, **arguments)
                    times[position].append(clock() - started)
                    if position == 0 and step.original_hw is not None and sizes is not None:
                        sizes[i] = step.original_hw(data[i], block[i, ...] if written else value, **arguments)  # type: ignore[index]
                if chain.reads == "ranges":
                    self.result.bytes_read += block[i, ...].nbytes if written else value.nbytes  # type: ignore[index]
                if written:
                    continue
                if block is not None and isinstance(value, (np.generic, float, int)):
                    value = np.asarray(value)  # a number is a tensor without axes where one was declared
                if block is not None and _fits(value, block):
                    block[i, ...] = value
                elif values is not None:
                    values[i] = value if not isinstance(value, np.ndarray) or value.flags.writeable else value.copy()
                else:
                    raise OpError(f"gave {type_of(value)}, but declared {type_of(block[i, ...])}")  # type: ignore[index]
            except Exception as error:
                self._fail(i, step.stage, step.op, sources[i], error)
        for step, calls in zip(steps, times):
            self.counters.add_calls(step.stage, step.op, calls)
        if guessed and values is not None and all(value is None for value in values):
            values = None  # every row is in its place
        return ChainResult(values, sizes)

    def _columns(self) -> dict[str, Sequence[Any]]:
        morsel = self.morsel
        return {n: morsel.objects.get(n, ()) if morsel.batch is None else morsel.values(n) for n in self.chain.fields}


class Seen:
    """What the ops of a chain were given in this morsel, so that rows of one kind are judged once.

    `block` is the batch buffer, None when there is none; `guessed` when its row type is that of the batch before.
    """

    __slots__ = ("accepted", "block", "foreseen", "guessed")

    def __init__(self, block: np.ndarray | None, guessed: bool) -> None:
        self.block = block
        self.guessed = guessed
        self.accepted: set[Any] = set()
        self.foreseen: dict[Any, bool] = {}

    def check(self, position: int, step: Step, value: Any) -> None:
        """Refuse what the op does not take."""
        kind = (position, value.shape, value.dtype) if isinstance(value, np.ndarray) else None
        if kind not in self.accepted:
            _check_takes(step, value)
            self.accepted.add(kind)

    def fits(self, position: int, step: Step, value: Any, arguments: dict[str, Any]) -> bool:
        """Whether the op's `out` kernel may be given a row of the batch buffer.

        Of a guessed row a decoder finds out itself; for a transform it is inferred from the value at hand.
        """
        if self.block is None or not self.guessed or position == 0:
            return self.block is not None
        if not isinstance(value, np.ndarray):
            return False
        if step.dynamic:
            return _foreseen(step, value, arguments, self.block)
        kind = (value.shape, value.dtype)
        if kind not in self.foreseen:
            self.foreseen[kind] = _foreseen(step, value, arguments, self.block)
        return self.foreseen[kind]


def _foreseen(step: Step, value: np.ndarray, arguments: dict[str, Any], block: np.ndarray) -> bool:
    """Whether the op will give a row like those of `block`, by what it infers from this very value."""
    if step.infer is None or step.nested:
        return False
    layout = step.layout or arguments.get("layout")
    if layout is None and step.takes is not None and step.takes.layouts:
        layout = guess_layout(value)
    try:
        found = step.infer(type_of(value, layout), **{k: v for k, v in arguments.items() if k not in INJECTED})
    except ValueError:  # the op itself says what is wrong
        return False
    return found.shape == block.shape[1:] and found.dtype == block.dtype.name


def _with_stream(step: Step, stream: Any) -> Step:
    """The step with the thread's stream as an argument: it is one object, set anew for each record."""
    return replace(step, arguments={**step.arguments, "rng": stream}, random=False)


def _fits(value: Any, block: np.ndarray) -> bool:
    return isinstance(value, np.ndarray) and value.dtype == block.dtype and value.shape == block.shape[1:]


def bind_steps(steps: tuple[Step, ...], row: Row) -> tuple[Step, ...]:
    """The steps with the ops inside them, and the conditions, ready to call at the rows that `row` walks."""
    return tuple(
        replace(s, arguments={k: _bound(v, row) for k, v in s.arguments.items()}) if s.nested else s for s in steps
    )


def _bound(value: Any, row: Row) -> Any:
    if isinstance(value, Body):
        return BoundBody(bind_steps(value.steps, row), row)
    if isinstance(value, Cond):
        return BoundCondition(value, row)
    if isinstance(value, tuple):
        return tuple(_bound(v, row) for v in value)
    return value


class BoundBody:
    """Ops inside another op, as a function of the value."""

    __slots__ = ("row", "steps")

    def __init__(self, steps: tuple[Step, ...], row: Row) -> None:
        self.steps = steps
        self.row = row

    def __call__(self, value: Any) -> Any:
        for step in self.steps:
            try:
                arguments = _arguments(step, self.row, value) if step.varies else step.arguments
                if step.takes is not None:
                    _check_takes(step, value)
                value = step.function(value, **arguments)
            except OpError as error:
                raise OpError(f"{step.op}: {error}") from error
        return value


class BoundCondition:
    """A condition inside an op, as a function of the value: of record fields alone it is worked out once per morsel."""

    __slots__ = ("condition", "known", "row")

    def __init__(self, condition: Cond, row: Row) -> None:
        self.condition = condition
        self.row = row
        self.known = None if condition.needs_tensor() else condition.over(row.column, row.length).tolist()

    def __call__(self, value: Any) -> bool:
        if self.known is not None:
            return bool(self.known[self.row.index])
        return self.condition.of_record(self._field, value)

    def _field(self, name: str) -> Any:
        found = self.row.columns[name][self.row.index]
        return None if found is MISSING else found


def _arguments(step: Step, row: Row, value: Any) -> dict[str, Any]:
    arguments = dict(step.arguments)
    for name, column, parameter in step.dynamic:
        found = row.columns[column][row.index]
        if found is MISSING:
            raise MissingFieldError(f"{step.op}({name}=) reads field {column!r}, which the record lacks")
        if isinstance(found, str) and not parameter.text:
            raise TypeError(f"{step.op}({name}=) reads field {column!r}, which holds {found!r}, not a number")
        arguments[name] = parameter.check(step.op, found)
    if step.random:
        arguments["rng"] = row.rng
    if step.wants_layout:
        arguments["layout"] = step.layout or guess_layout(value)
    return arguments


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
