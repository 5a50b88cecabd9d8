"""What the runtime costs: resuming, taking a state, shuffling, and everything switched on.

    python bench/runtime.py              everything; some minutes; writes docs/benchmark.md
    python bench/runtime.py --no-write   prints the table only

Each figure comes from a process of its own. Where two things are compared they take turns in one process.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- runtime:begin -->", "<!-- runtime:end -->"
RECORDS = 1_000_000
INDICES = 100_000_000


def peak_bytes() -> int:
    """Most memory this process ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def million(shape: Any) -> Any:
    """A loader over a million records that are made when they are asked for, shuffled."""
    import dataio

    source = dataio.from_callable(lambda i: {"x": bytes(1 + i % 50)}, length=RECORDS, slots=["x"], extras=lambda i: {"k": i % 7, "n": 1 + i % 50})
    pipe = dataio.pipeline(dataio.slot("x").decode_bytes(), shape)
    return pipe.bind(source.shuffle(seed=1)).run("numpy", seed=1)


def resume() -> dict[str, float]:
    """Seconds from `load_state_dict` at 90 % of an epoch to the first batch, and from the start to the first batch."""
    import dataio

    with million(dataio.batch(64)) as loader:
        began = time.perf_counter()
        next(iter(loader))
        fresh = time.perf_counter() - began
        state = loader.state_dict()
    at = RECORDS * 9 // 10 // 64 * 64
    order = state["source"]["source"][1]
    state |= {"samples_consumed": at, "batches": at // 64}
    state["source"] = {"source": [at, order], "consumed": at}
    times = []
    for _ in range(5):
        with million(dataio.batch(64)) as loader:
            began = time.perf_counter()
            loader.load_state_dict(state)
            next(iter(loader))
            times.append(time.perf_counter() - began)
    return {"resumed": statistics.median(times), "fresh": fresh}


def snapshot() -> dict[str, float]:
    """Seconds of one `state_dict()` between two batches, by shape stage."""
    import dataio

    found = {}
    shapes = {
        "batch": dataio.batch(64),
        "bucket_by": dataio.bucket_by("k", 64),
        "pack": dataio.pack(512, slot="x", tokens="n", size=8),
    }
    for name, shape in shapes.items():
        with million(shape) as loader:
            times = []
            for _, _batch in zip(range(50), loader):
                began = time.perf_counter()
                state = loader.state_dict()
                times.append(time.perf_counter() - began)
            found[name] = statistics.median(times)
            found[f"{name} bytes"] = len(json.dumps(state))
    return found


def shuffle() -> dict[str, float]:
    """Seconds per index of a permutation of a hundred million, read in order, and the memory it takes."""
    from dataio.engine.permutation import Permutation

    before = peak_bytes()
    began = time.perf_counter()
    total = 0
    for block in Permutation(INDICES, 1, 0).blocks():
        total += int(block.sum())
    seconds = time.perf_counter() - began
    if total != INDICES * (INDICES - 1) // 2:
        raise SystemExit("the permutation does not hold every index once")
    return {"seconds per index": seconds / INDICES, "bytes": peak_bytes() - before}


def everything() -> dict[str, float]:
    """Rate of `small` with errors, budget, quarantine, ledger, hook and trace on, over that with the defaults."""
    import tempfile

    sys.path.insert(0, str(ROOT / "bench" / "runners"))
    import data
    import harness
    import pipelines

    import dataio

    folder = ROOT / "build" / "bench-data"
    data.make(folder)
    records = [{"image": str(folder / "small" / f"{i:05d}.jpg")} for i in range(harness.SIZES["small"])]
    pipe = pipelines.pipeline_of(dataio, "small")
    with tempfile.TemporaryDirectory() as scratch:
        on = {
            "log_errors": lambda error: None,
            "max_failures": 0.01,
            "quarantine": f"{scratch}/bad.jsonl",
            "max_bytes": 1 << 30,
            "on_failure": 1,
        }
        loaders = {"off": pipe.bind(records).run("numpy"), "on": pipe.bind(records).run("numpy", **on)}
        loaders["on"].set_metrics_hook(lambda facts: None)
        rates: dict[str, list[float]] = {"off": [], "on": []}
        for round_ in range(12):
            for name in ("off", "on") if round_ % 2 else ("on", "off"):
                began, count = time.perf_counter(), 0
                for batch in loaders[name]:
                    count += len(batch)
                    if name == "on":
                        loaders[name].state_dict()
                if round_ > 1:
                    rates[name].append(count / (time.perf_counter() - began))
        for loader in loaders.values():
            loader.close()
    return {name: statistics.median(values) for name, values in rates.items()}


MEASURES: dict[str, Callable[[], dict[str, float]]] = {
    "resume": resume,
    "snapshot": snapshot,
    "shuffle": shuffle,
    "everything": everything,
}


def measured(name: str) -> dict[str, float]:
    """One measure, in a process of its own."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("DATAIO_")}
    done = subprocess.run(
        [sys.executable, __file__, "--one", name], capture_output=True, text=True, env=environment, check=False
    )
    if done.returncode:
        raise SystemExit(f"{name}: {done.stderr.strip()[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def report(found: dict[str, dict[str, float]]) -> str:
    """The table."""
    import loader

    resumed, shot, order, all_on = (found[name] for name in MEASURES)
    slowest = max(v for k, v in shot.items() if not k.endswith("bytes"))
    largest = max(v for k, v in shot.items() if k.endswith("bytes"))
    overhead = 1 - all_on["on"] / all_on["off"]

    def row(what: str, value: str, target: str, met: bool) -> list[str]:
        return [what, value, target, "met" if met else "**missed**"]

    lines = [
        row(
            "resume at 90 % of 1,000,000 shuffled records, to the first batch",
            f"{resumed['resumed'] * 1e3:.1f} ms (from the start {resumed['fresh'] * 1e3:.1f} ms)",
            "200 ms",
            resumed["resumed"] < 0.2,
        ),
        row(
            "`state_dict()`: the slowest of batch, bucket_by and pack",
            f"{slowest * 1e6:.0f} us, at most {largest:,.0f} bytes of JSON",
            "1 ms",
            slowest < 1e-3,
        ),
        row(
            "order of 100,000,000 shuffled indices: time per index",
            f"{order['seconds per index'] * 1e9:.0f} ns",
            "1 us",
            order["seconds per index"] < 1e-6,
        ),
        row("order of 100,000,000 shuffled indices: memory", f"{order['bytes'] / 2**20:.1f} MiB", "50 MiB", order["bytes"] < 50 << 20),
        row(
            "`small` with error log, budget, quarantine, ledger limit, metrics hook and a state per batch",
            f"{overhead:.1%} slower than with the defaults",
            "3 %",
            overhead < 0.03,
        ),
    ]  # fmt: skip
    table = loader.table(["what", "measured", "target", "mark"], lines)
    return f"{loader.machine()}. Measured {time.strftime('%Y-%m-%d')} at commit {loader.commit()}.\n\n{table}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--one", choices=MEASURES, help=argparse.SUPPRESS)
    parser.add_argument("--no-write", action="store_true", help="leave docs/benchmark.md alone")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(MEASURES[options.one]()))
        return
    text = report({name: measured(name) for name in MEASURES})
    print(text)
    if not options.no_write:
        import loader

        loader.write_page(text, BEGIN, END)


if __name__ == "__main__":
    main()
