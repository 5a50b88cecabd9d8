"""`loader.report()`: which stage holds the others up, what would be gained, and the one setting to change."""

from __future__ import annotations

from dataclasses import dataclass

from .engine.calls import OpCall
from .engine.explain import function_name
from .engine.plan import Batch, Chain, MapRecords, Plan, Shape, Slots, walk
from .engine.run import RunOptions
from .engine.settings import io_workers, usable_cores
from .engine.stats import Ops, RunStats
from .formats.image.fusions import reduced_scale_jpeg

_IDLE = 0.5
"""When even the busiest stage is busy for less than this share, the stages wait for each other's batches."""
_TAKEN = 0.5
"""From this share of moments on, workers that are threads hold each other up over the interpreter lock."""
_WAITING = 0.25
"""Workers that together use less than this share of one core wait for something other than cores and the lock."""
_MOST_PER_WORKER = 8
"""At most so many workers for each that there is are proposed against waits."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage's share of the time that the passes took.

    Attributes:
        name: "source" (records, record maps, conditions), "fetch" (requests for remote values, where there are any), "read" and "workers" (both done by the workers), "collate", "batch
            ops" (transforms and Python maps), "consumer" (the training loop).
        busy: share of the time at work, 0 to 1; of all workers together where there are several.
        blocked: share of the time spent waiting for another stage.
    """

    name: str
    busy: float
    blocked: float


@dataclass(frozen=True, slots=True)
class OpShare:
    """One op's part in the work of its stage: `share` (0 to 1), `calls` and nanoseconds per call."""

    stage: str
    op: str
    share: float
    calls: int
    each_ns: int


@dataclass(frozen=True, slots=True, repr=False)
class Report:
    """What `loader.report()` found; printing it gives the text.

    Attributes:
        bottleneck: name of the stage that the others wait for; None before any batch was delivered.
        op: the op, map or function that most of the bottleneck's time goes to, where it is known.
        setting: the one thing to change; None when nothing in the loader would help.
        reason: why.
        records, failed, bytes_read, seconds: delivered and failed records, bytes, time of all passes so far.
        rate: delivered records per second.
        consumer_rate: what it would be if batches were there at once, as from a cache.
        loader_rate: what it would be if the consumer took no time.
        stages, ops: every stage in the order of the data; every op, the most expensive first.
        workers: threads or processes that worked.
    """

    bottleneck: str | None
    op: str | None
    setting: str | None
    reason: str
    records: int
    failed: int
    bytes_read: int
    seconds: float
    rate: float
    consumer_rate: float
    loader_rate: float
    stages: tuple[Stage, ...]
    ops: tuple[OpShare, ...]
    workers: int

    def __getitem__(self, stage: str) -> Stage:
        for found in self.stages:
            if found.name == stage:
                return found
        raise KeyError(stage)

    def __str__(self) -> str:
        if self.bottleneck is None:
            return "nothing was delivered yet"
        slow = self[self.bottleneck]
        where = f"{self.bottleneck} ({self.op})" if self.op else self.bottleneck
        lines = [
            f"{self.records:,} records in {self.seconds:.2f} s ({self.rate:,.0f}/s), {self.failed} failed, "
            f"{self.bytes_read / 1e6:,.1f} MB read",
            f"bottleneck: {where}, {slow.busy:.0%} busy, {slow.blocked:.0%} blocked",
            f"change: {self.setting or 'nothing in the loader'}: {self.reason}",
            f"headroom: with batches at once the loop would take {self.consumer_rate:,.0f}/s "
            f"({_times(self.consumer_rate, self.rate)}); the loader alone would deliver {self.loader_rate:,.0f}/s "
            f"({_times(self.loader_rate, self.rate)})",
            f"  {'stage':<10} {'busy':>6} {'blocked':>8}",
        ]
        lines += [f"  {s.name:<10} {s.busy:>6.0%} {s.blocked:>8.0%}" for s in self.stages]
        lines += [f"  {'op':<28} {'of its stage':>12} {'per call':>12}"] if self.ops else []
        lines += [f"  {o.op:<28} {o.share:>12.0%} {o.each_ns / 1e3:>9,.1f} us x {o.calls:,}" for o in self.ops]
        return "\n".join(lines)

    __repr__ = __str__


def _times(rate: float, now: float) -> str:
    return f"{rate / now:.1f} x" if now else "-"


@dataclass(frozen=True, slots=True)
class Setup:
    """What runs: the optimised plan, the options, the workers' kind and GIL share as the executor describes them, and how many
    requests there may be at a time."""

    plan: Plan
    options: RunOptions
    kind: str | None
    gil_share: float | None
    requests: int = 1

    @property
    def chains(self) -> tuple[Chain, ...]:
        return next(n for n in walk(self.plan) if isinstance(n, Slots)).chains

    @property
    def prefetch(self) -> int:
        return next(n for n in walk(self.plan) if isinstance(n, Shape)).prefetch

    def limits(self, stats: RunStats) -> dict[str, int]:
        """Setting: how many workers it lets work at a time."""
        return {"workers": 1 if stats.inline else stats.workers, **self._records_at_a_time()}

    def request_limits(self) -> dict[str, int]:
        """Setting: how many requests it lets be under way at a time."""
        return {"DATAIO_IO_WORKERS": self.requests, **self._records_at_a_time()}

    def _records_at_a_time(self) -> dict[str, int]:
        limits = {}
        if self.options.concurrency is not None:
            limits["concurrency"] = self.options.concurrency
        shape = next(n for n in walk(self.plan) if isinstance(n, Shape))
        if isinstance(shape, Batch):
            limits["prefetch"] = shape.size * shape.prefetch
        return limits


def make_report(stats: RunStats, setup: Setup) -> Report:
    """Work out the report from the counters so far."""
    ops = _op_shares(stats)
    time_ns = stats.consumer_wait_ns + stats.consumer_busy_ns
    if not stats.batches or not time_ns:
        return Report(None, None, None, "", 0, stats.failed, stats.bytes_read, 0.0, 0.0, 0.0, 0.0, (), ops, stats.workers)
    limits = setup.limits(stats)
    stages = _stages(stats, time_ns, min(limits.values()), min(setup.request_limits().values()))
    busy = {s.name: s.busy for s in stages}
    loads = {name: load for name, load in busy.items() if name not in ("read", "workers")}
    loads["read" if busy["read"] > busy["workers"] else "workers"] = busy["read"] + busy["workers"]
    bottleneck = max(loads, key=loads.__getitem__)
    op = _heaviest(ops, setup, bottleneck)
    rate = stats.delivered / time_ns * 1e9
    loader_busy = max(busy for name, busy in loads.items() if name != "consumer")
    consumer_rate = stats.delivered / max(stats.consumer_busy_ns, 1) * 1e9
    loader_rate = rate / max(loader_busy, 1e-9)
    setting, reason = _advice(bottleneck, op, loads[bottleneck], stats, setup, limits, loader_rate / rate if rate else 0.0)
    return Report(
        bottleneck, op, setting, reason, stats.delivered, stats.failed, stats.bytes_read, time_ns / 1e9, rate,
        consumer_rate, loader_rate, stages, ops, stats.workers,
    )  # fmt: skip


def _stages(stats: RunStats, time_ns: int, parallel: int, requests: int) -> tuple[Stage, ...]:
    read_ns = sum(spent[0] for (stage, _), spent in dict(stats.ops).items() if stage == "read")
    source_ns = stats.source_busy_ns - stats.concurrency_wait_ns - stats.memory_wait_ns - (stats.worker_busy_ns if stats.inline else 0)
    read = min(1.0, read_ns / parallel / time_ns)
    work = min(1.0 - read, max(0, stats.worker_busy_ns - read_ns) / parallel / time_ns)
    source, collate, batch_ops = (
        min(1.0, max(0, ns) / time_ns) for ns in (source_ns, _total(stats.collate), _total(stats.batch_ops))
    )
    fetch = min(1.0, stats.fetch.spent[0] / requests / time_ns)
    return (
        Stage("source", source, min(1.0 - source, (stats.source_wait_ns + stats.concurrency_wait_ns + stats.memory_wait_ns) / time_ns)),
        *([Stage("fetch", fetch, 1.0 - fetch)] if stats.fetch.spent[1] else []),
        Stage("read", read, 1.0 - read - work),
        Stage("workers", work, 1.0 - read - work),
        Stage("collate", collate, 1.0 - collate),
        Stage("batch ops", batch_ops, 1.0 - batch_ops),
        Stage("consumer", stats.consumer_busy_ns / time_ns, stats.consumer_wait_ns / time_ns),
    )


def _total(ops: Ops) -> int:
    return sum(spent[0] for spent in dict(ops).values())


def _op_shares(stats: RunStats) -> tuple[OpShare, ...]:
    """Of the workers' ops the share in the workers' time, of batch ops that in the batch ops' time."""
    wholes = ((dict(stats.ops), max(stats.worker_busy_ns, _total(stats.ops))), (dict(stats.batch_ops), _total(stats.batch_ops)))
    found = [
        (total, OpShare(stage, op, total / max(whole, 1), calls, total // max(calls, 1)))
        for ops, whole in wholes
        for (stage, op), (total, calls, _, _) in ops.items()
    ]
    return tuple(share for _, share in sorted(found, key=lambda pair: -pair[0]))


def _heaviest(ops: tuple[OpShare, ...], setup: Setup, bottleneck: str) -> str | None:
    if bottleneck == "source":
        names = [function_name(n.function) for n in walk(setup.plan) if isinstance(n, MapRecords)]
        return ", ".join(reversed(names)) or None
    wanted = {"workers": ("decode", "transform"), "batch ops": ("batch",)}.get(bottleneck, ())
    return next((o.op for o in ops if o.stage in wanted), None)


def _advice(
    bottleneck: str, op: str | None, busy: float, stats: RunStats, setup: Setup, limits: dict[str, int], headroom: float
) -> tuple[str | None, str]:
    """(setting, reason) for the stage that is `busy` most."""
    if bottleneck == "consumer" and setup.kind == "thread" and (setup.gil_share or 0.0) > _TAKEN:
        return 'workers="process"', f"the training loop competes with the workers for the interpreter lock: it is taken {setup.gil_share:.0%} of the time"
    if bottleneck == "consumer":
        return None, f"the loader keeps up: it could deliver {headroom:.1f} times what the training loop takes"
    if bottleneck == "fetch" and busy >= _IDLE:
        return _more_requests(setup)
    if busy < _IDLE and stats.inflight_batches_max >= setup.prefetch:
        return f"prefetch={2 * setup.prefetch}", f"no stage is busy throughout with {setup.prefetch} batches in flight"
    match bottleneck:
        case "source" if op is not None:
            return f"slot(...).custom(fn) in place of map({op})", "record maps run on one thread, ops in all workers"
        case "source" if stats.source_cut_ns < stats.source_busy_ns / 2:
            return "records as columns: an Arrow table, a data set or dataio.scan", "columns are sliced, rows are walked one by one"
        case "source":
            return (
                "dataio.from_callable(fn, length=n) or records that name files",
                "one thread iterates the source; what is called or read per record is done by all workers",
            )
        case "collate":
            return (
                "a last op of fixed size, such as resize or center_crop",
                "one thread puts rows together whose shape is not known ahead",
            )
        case "batch ops":
            return f"{op} as an op of a slot, or a cheaper one", "batch transforms and maps run on one thread, ops in all workers"
    tightest = min(limits, key=limits.__getitem__)
    if tightest != "workers" and limits[tightest] < limits["workers"]:
        value = '"auto"' if tightest == "concurrency" else str(2 * setup.prefetch)
        return f"{tightest}={value}", f"it keeps {limits['workers'] - limits[tightest]} of {stats.workers} workers idle"
    if bottleneck == "read":
        return f"DATAIO_CPU_WORKERS={_more_workers(stats)}", "reads take most of the workers' time, and more can wait at a time"
    return _cheaper_work(op, stats, setup)


def _more_requests(setup: Setup) -> tuple[str, str]:
    """What lets more requests be under way."""
    limits = setup.request_limits()
    tightest = min(limits, key=limits.__getitem__)
    why = f"requests take most of the time, and {limits[tightest]} may be under way at a time"
    match tightest:
        case "concurrency":
            return 'concurrency="auto"', why
        case "prefetch":
            return f"prefetch={2 * setup.prefetch}", why
    return f"DATAIO_IO_WORKERS={2 * io_workers()}", why


def _cheaper_work(op: str | None, stats: RunStats, setup: Setup) -> tuple[str, str]:
    """What would help workers that are busy with ops."""
    on_core = stats.worker_cpu_ns / max(stats.worker_busy_ns, 1)
    if on_core * stats.workers < _WAITING:
        return f"DATAIO_CPU_WORKERS={_more_workers(stats)}", f"{op} waits: the workers are on a core for {on_core:.0%} of their time"
    if setup.kind == "thread" and not stats.inline and (op == "custom" or (setup.gil_share or 0.0) > _TAKEN):
        return 'workers="process"', "Python code of one thread stops all others (the interpreter lock)"
    if op == "image" and any(map(_scalable, setup.chains)):
        return "decode_image(dct_scale=True)", "decoding takes most; large JPEGs can be decoded at a fraction of their size"
    cores = usable_cores()
    if stats.workers < cores:
        return f"DATAIO_CPU_WORKERS={cores}", f"{stats.workers} workers are busy throughout, and {cores} cores are usable"
    return f"a cheaper op than {op}", f"all {stats.workers} workers are busy, and most of their time goes to it"


def _more_workers(stats: RunStats) -> int:
    """So many that the waits of some are filled by the work of others."""
    return stats.workers * min(_MOST_PER_WORKER, max(2, round(stats.worker_busy_ns / max(stats.worker_cpu_ns, 1))))


def _scalable(chain: Chain) -> bool:
    """Whether `dct_scale=True` would let the decoder of this chain skip pixels."""
    decoder: OpCall = chain.decoder
    if decoder.name != "image" or decoder.arguments["dct_scale"] or not chain.transforms:
        return False
    scaled = decoder.spec.call(**{**decoder.arguments, "dct_scale": True})
    return reduced_scale_jpeg(scaled, chain.transforms[0]) is not None
