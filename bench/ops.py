"""Compare each op alone: our kernels with other libraries' in one process, and whole pipelines with dataio-rs.

    python bench/ops.py                                  everything; about 40 minutes
    python bench/ops.py --only resize,pad --no-write     some ops, printed only
    python bench/ops.py --part kernels                   without dataio-rs
    python bench/ops.py --quick                          does everything run? Its figures mean nothing

Writes the table between the markers of docs/benchmark.md, and the raw figures to build/bench-results/ops.json. How it is
measured is described in docs/benchmark.md.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import environments
import loader
import op_cases
from op_cases import Case

ROOT = Path(__file__).resolve().parent.parent
RUNNER = ROOT / "bench" / "runners" / "ops_runner.py"
RESULTS = ROOT / "build" / "bench-results" / "ops.json"
BEGIN, END = "<!-- ops:begin -->", "<!-- ops:end -->"
PEER = "rs047"
HALF, EQUAL = 0.5, 1.0
"""The speed that every op, and every op of most pipelines, is to reach, as a share of the other's."""
CHEAP = 0.15
"""Ops that take less than this share of a pipeline's time: their net time drowns in the pipeline's own."""

Call: TypeAlias = Callable[[], Any]
Row: TypeAlias = dict[str, Any]
"""One case on one input: "kernels" {name: seconds}, "pipelines" {"ours", "peer", ...: rates}, "notes"."""


def kernel_calls(case: Case, value: Any, layout: Any) -> tuple[Any, dict[str, Call]]:
    """What the op gets (the value after `case.before`), and our ways to run it on that."""
    import numpy as np

    import dataio
    from dataio.engine.physical import compile_calls
    from dataio.engine.schema import type_of
    from dataio.engine.work import BoundBody, Row, bind_steps
    from dataio.io.ranges import open_ranges

    if case.decoder is not None:
        data, call = case.encode(value), case.decoder(dataio.decoders)  # type: ignore[misc]
        opened = open_ranges if call.spec.reads == "ranges" else bytes
        return value, {"dataio": lambda: call.spec.function(opened(data), **call.arguments)}
    edge = max(value.shape)
    given = type_of(value, layout)
    row = Row({}, 1)
    row.rng = np.random.default_rng(0)
    if before := case.transforms(dataio.transforms, edge, baseline=True):
        steps, given = compile_calls(tuple(before), given, "x")
        value = BoundBody(bind_steps(steps, row), row)(value)
    steps, result = compile_calls(tuple(case.transforms(dataio.transforms, edge)[len(before) :]), given, "x")
    (step,) = bind_steps(steps, row)
    filled = {"rng": row.rng, "layout": given.layout}
    spec = case_spec(case)
    arguments = {**step.arguments, **{name: filled[name] for name in spec.injected}}
    calls: dict[str, Call] = {"dataio": lambda: step.function(value, **arguments)}
    if result.static:
        out = np.empty(result.shape, result.dtype)  # type: ignore[arg-type]
        if step.out is not None:
            calls["dataio, out"] = lambda: step.out(value, out, **arguments)  # type: ignore[misc]
        else:  # as a worker does it
            calls["dataio, out"] = lambda: np.copyto(out, step.function(value, **arguments))
    return value, calls


def case_spec(case: Case) -> Any:
    """The registered op, or None where it is not registered."""
    from dataio.engine import registry
    from dataio.engine.calls import OpKind

    kind: OpKind = "decoder" if case.decoder else "transform"
    return next((spec for spec in registry.specs(kind) if spec.name == case.op), None)


def interleaved(calls: dict[str, Call], options: argparse.Namespace) -> dict[str, float]:
    """The median seconds of one call each; all take turns, loop by loop."""
    loops, found = {}, {name: [] for name in calls}  # type: dict[str, int], dict[str, list[float]]
    for name, call in calls.items():
        call()
        started = time.perf_counter()
        call()
        loops[name] = max(1, int(options.loop_seconds / max(time.perf_counter() - started, 1e-7)))
    for _ in range(options.rounds * 3):
        for name, call in calls.items():
            started = time.perf_counter()
            for _ in range(loops[name]):
                call()
            found[name].append((time.perf_counter() - started) / loops[name])
    return {name: statistics.median(seconds) for name, seconds in found.items()}


def measure_kernels(case: Case, input_name: str, options: argparse.Namespace) -> Row:
    """Our kernel and the references, on one thread each."""
    import cv2
    import torch
    from op_references import REFERENCES

    cv2.setNumThreads(1)
    torch.set_num_threads(1)
    given = op_cases.INPUTS[input_name]
    value, calls = kernel_calls(case, op_cases.arrays(input_name, 1)[0], given.layout)
    for name, prepare in REFERENCES.get(case.name, {}).items():
        calls[name] = prepare(value, given.edge)
    return {"kernels": interleaved(calls, options)}


class Runner:
    """The process that runs pipelines for one peer."""

    def __init__(self, environment: str) -> None:
        variables = {k: v for k, v in os.environ.items() if not k.startswith(("DATAIO_", "PYTHON"))}
        self.process = subprocess.Popen(
            [str(environments.python_of(environment, ROOT)), str(RUNNER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=variables | {"OMP_NUM_THREADS": "1", "DATAIO_CPU_WORKERS": "1"},
            text=True,
        )

    def ask(self, **request: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"error": "the process ended"}
        return answer

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=60)


def measure_pipelines(
    case: Case, input_name: str, runners: dict[str, Runner], options: argparse.Namespace
) -> Row:
    """Records a second with the op and without, ours and the peer's in turn."""
    rates: dict[str, list[float]] = {}
    made: dict[str, tuple[str, list[int]]] = {}
    baselines = [False] if case.decoder else [False, True]
    for round_ in range(options.rounds):
        for name in list(runners) if round_ % 2 == 0 else list(runners)[::-1]:
            for baseline in baselines:
                answer = runners[name].ask(
                    case=case.name, input=input_name, baseline=baseline, seconds=options.min_seconds
                )
                if "error" in answer:
                    return {"pipelines": {}, "notes": [f"{name}: {answer['error']}"]}
                if not baseline:
                    made[name] = (answer["dtype"], answer["shape"])
                rate = answer["records"] / answer["seconds"]
                rates.setdefault(f"{name}, without" if baseline else name, []).append(rate)
    for runner in runners.values():
        runner.ask(close=True)
    fixed = all(None not in m[1] for m in made.values()) and case.op not in ("nms", "soft_nms", "random_bbox_crop")
    notes = [f"rows differ: {made}"] if fixed and len({str(m) for m in made.values()}) > 1 else []
    return {"pipelines": rates, "notes": notes}


def fastest(kernels: dict[str, float], ours: bool) -> tuple[str, float] | None:
    """The fastest of our ways to run an op, or of the references."""
    found = [(seconds, name) for name, seconds in kernels.items() if name.startswith("dataio") == ours]
    return min(found)[::-1] if found else None


def kernel_ratio(row: Row) -> float | None:
    """How many times as fast as the fastest reference our kernel is, as a pipeline runs it."""
    kernels = row.get("kernels", {})
    ours = kernels.get("dataio, out", kernels.get("dataio"))
    other = fastest(kernels, ours=False)
    return other[1] / ours if ours and other else None


def pipeline_ratio(row: Row) -> float | None:
    """Our records a second by the peer's."""
    rates = {name: statistics.median(found) for name, found in row.get("pipelines", {}).items()}
    return rates["ours"] / rates["peer"] if "ours" in rates and "peer" in rates else None


def net_ratio(row: Row) -> float | None:
    """The peer's time for the op alone by ours; None where it drowns in the pipeline's own time."""
    seconds = {name: 1 / statistics.median(found) for name, found in row.get("pipelines", {}).items()}
    if "ours, without" not in seconds or "peer, without" not in seconds:
        return None
    ours, peer = (seconds[name] - seconds[f"{name}, without"] for name in ("ours", "peer"))
    if ours < CHEAP * seconds["ours"] or peer < CHEAP * seconds["peer"]:
        return None
    return peer / ours


def mark(case: Case, row: Row) -> str:
    """Whether the figures meet their targets; a dash where there is nothing to compare with."""
    kernel, pipeline = kernel_ratio(row), pipeline_ratio(row)
    if kernel is None and pipeline is None:
        return "–"
    missed = (kernel or HALF) < HALF or (pipeline or EQUAL) < (EQUAL if case.hot else HALF)
    return "**missed**" if missed else "met"


def report(rows: dict[str, Row]) -> str:
    """One line per case and input."""
    header = ["op", "input", "ours, us", "fastest other", "us", "kernel ratio"]
    header += ["pipeline, /s", "dataio-rs, /s", "ratio", "net ratio", "spread", "mark"]
    lines = []
    for case in op_cases.CASES:
        for input_name in case.inputs:
            row = rows.get(f"{case.name}/{input_name}")
            if row is None:
                continue
            kernels, rates = row.get("kernels", {}), row.get("pipelines", {})
            ours, other = kernels.get("dataio, out", kernels.get("dataio")), fastest(kernels, ours=False)
            spreads = [(max(r) - min(r)) / statistics.median(r) for r in rates.values()]
            lines.append(
                [
                    f"{case.name}{' *' if case.hot else ''}",
                    input_name,
                    micros(ours),
                    other[0] if other else "–",
                    micros(other[1] if other else None),
                    plain(kernel_ratio(row)),
                    *(f"{statistics.median(rates[n]):,.0f}" if n in rates else "–" for n in ("ours", "peer")),
                    plain(pipeline_ratio(row)),
                    plain(net_ratio(row)),
                    f"{max(spreads):.0%}" if spreads else "–",
                    mark(case, row),
                ]
            )
    made = sorted({row["when"] for row in rows.values()})
    notes = [f"* {key}: {note}" for key, row in rows.items() for note in row.get("notes", [])]
    text = [f"{loader.machine()}. Measured {', '.join(made)}.", "", loader.table(header, lines)]
    return "\n".join([*text, "", "Notes:", "", *notes] if notes else text)


def micros(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds * 1e6:,.1f}"


def plain(ratio: float | None) -> str:
    return "–" if ratio is None else f"{ratio:.2f}"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="comma-separated ops (default: all)")
    parser.add_argument("--inputs", default="", help="comma-separated inputs (default: all)")
    parser.add_argument("--part", choices=("kernels", "pipelines", "both"), default="both")
    parser.add_argument("--hot", action="store_true", help="only the ops that most pipelines use")
    parser.add_argument("--rounds", type=int, default=5, help="how often ours and the peer's take turns")
    parser.add_argument("--min-seconds", type=float, default=0.3, help="a pipeline runs at least this long")
    parser.add_argument("--loop-seconds", type=float, default=0.01, help="a kernel is repeated this long")
    parser.add_argument("--json", type=Path, default=RESULTS, help="where the raw figures go")
    parser.add_argument("--markdown", action="store_true", help="print the table of the figures that are there")
    parser.add_argument("--no-write", action="store_true", help="leave docs/benchmark.md alone")
    parser.add_argument("--quick", action="store_true", help="one short round; not written to docs/benchmark.md")
    options = parser.parse_args()
    options.when = f"{time.strftime('%Y-%m-%d')} at commit {loader.commit()}"
    if options.quick:
        options.rounds, options.min_seconds, options.loop_seconds, options.no_write = 1, 0.01, 0.0005, True
    return options


def chosen(options: argparse.Namespace) -> list[tuple[Case, str]]:
    """Cases and inputs to measure."""
    ops = loader.picked(options.only, dict.fromkeys(c.op for c in op_cases.CASES), "op") if options.only else None
    names = loader.picked(options.inputs, op_cases.INPUTS, "input") if options.inputs else None
    found = [(case, name) for case in op_cases.CASES for name in case.inputs]
    found = [(c, n) for c, n in found if (ops is None or c.op in ops) and (names is None or n in names)]
    found = [(c, n) for c, n in found if c.hot or not options.hot]
    absent = {case.op for case, _ in found if case_spec(case) is None}
    if absent:
        loader.say(f"note: not registered, left out: {', '.join(sorted(absent))}")
    return [(case, name) for case, name in found if case.op not in absent]


def main() -> None:
    options = arguments()
    rows: dict[str, Row] = json.loads(options.json.read_text()) if options.json.exists() else {}
    if options.markdown:
        print(report(rows))
        return
    if (load := os.getloadavg()[0]) > 0.5:
        loader.say(f"note: the load average is {load:.1f}: other work on this machine will disturb the figures")
    runners: dict[str, Runner] = {}
    if options.part != "kernels":
        runners = {"ours": Runner("own"), "peer": Runner(PEER)}
    cases = chosen(options)
    for case, input_name in cases:
        row: Row = rows.setdefault(f"{case.name}/{input_name}", {})
        row["when"], row["notes"] = options.when, []
        if options.part != "pipelines":
            row |= measure_kernels(case, input_name, options)
        if runners:
            row |= measure_pipelines(case, input_name, runners, options)
        loader.say(
            f"{case.name}, {input_name}: kernel {plain(kernel_ratio(row))}, pipeline {plain(pipeline_ratio(row))}, "
            f"net {plain(net_ratio(row))} {' '.join(row['notes'])}"
        )
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(rows, indent=1))
    for runner in runners.values():
        runner.close()
    measured = {f"{case.name}/{input_name}": rows[f"{case.name}/{input_name}"] for case, input_name in cases}
    print(report(measured))
    if not options.no_write:
        loader.write_page(report(rows), BEGIN, END)


if __name__ == "__main__":
    main()
