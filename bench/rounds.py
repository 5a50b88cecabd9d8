"""A comparison of clients over cases: declared by a script, run in rounds, shown as a table in docs/benchmark.md.

Each measurement is a fresh process of the script's runner (bench/runners/ways.py), in the client's own environment.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import environments
import loader

RUST = ("dataio-rs 0.4.7", "dataio-rs 0.4.15")


@dataclass(frozen=True, slots=True)
class Row:
    """One case at one number of workers.

    Attributes:
        case: of the runner.
        scale: items per unit of the table.
        peers: who else can do it.
        targets: the ratio that we want to reach, by peer; "dataio-rs" stands for the faster one.
        threads: whether the clients may use as many threads of their libraries as they like.
    """

    case: str
    workers: int
    unit: str
    scale: float
    peers: tuple[str, ...]
    targets: dict[str, float]
    threads: bool = False


@dataclass(frozen=True, slots=True)
class Comparison:
    """What a script compares.

    Attributes:
        name: of the script; its figures stand between the markers of that name.
        summary: what `--help` says.
        clients: title: environment, client of the runner.
        make: writes the data, given the folder and a scale.
        facts: further figures of a measurement that the table shows: name in the result, heading.
    """

    name: str
    summary: str
    clients: Mapping[str, tuple[str, str]]
    rows: Mapping[str, Row]
    make: Callable[[Path, float], Any]
    facts: Mapping[str, str] = field(default_factory=dict)

    @property
    def runner(self) -> Path:
        return loader.ROOT / "bench" / "runners" / f"{self.name}_runner.py"

    @property
    def data(self) -> Path:
        return loader.ROOT / "build" / f"bench-{self.name}"

    @property
    def results(self) -> Path:
        return loader.ROOT / "build" / "bench-results" / f"{self.name}.json"


Figures = dict[str, dict[str, Any]]
"""By client: {"rates": [...], "rss": [...]}, or {"error": ...}."""


def run_once(compared: Comparison, title: str, row: Row, scratch: Path, options: argparse.Namespace) -> dict[str, Any]:
    """One measurement in a fresh process; {"error": ...} where it failed."""
    environment, client = compared.clients[title]
    python = environments.python_of(environment, loader.ROOT)
    command = [str(python), str(compared.runner), "--client", client, "--case", row.case, "--workers", str(row.workers)]
    command += ["--data", str(options.data), "--scratch", str(scratch), "--min-seconds", str(options.min_seconds)]
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("DATAIO_", "PYTHON"))}
    clean |= {"OMP_NUM_THREADS": "1", "DATAIO_CPU_WORKERS": str(row.workers)}
    if row.threads:
        del clean["OMP_NUM_THREADS"]
    try:
        done = subprocess.run(command, env=clean, capture_output=True, text=True, timeout=options.timeout)
    except subprocess.TimeoutExpired:
        return {"error": f"took more than {options.timeout:g} s"}
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1][:300]}
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def measure(compared: Comparison, row: Row, titles: list[str], options: argparse.Namespace) -> Figures:
    """All clients on one case, taking turns; one that failed once is not asked again."""
    figures: Figures = {}
    able = [title for title in titles if title == "dataio" or title in row.peers]
    with tempfile.TemporaryDirectory(dir=compared.data.parent) as scratch:
        for round_ in range(options.rounds):
            for title in able if round_ % 2 == 0 else able[::-1]:
                figure = figures.setdefault(title, {"rates": [], "rss": []})
                if "error" in figure:
                    continue
                result = run_once(compared, title, row, Path(scratch), options)
                if "error" in result:
                    figures[title] = result
                    loader.say(f"  {title}: {result['error']}")
                    continue
                figure["rates"].append(result["rate"] / row.scale)
                figure["rss"].append(result["peak_rss"])
                figure["facts"] = {name: result[name] for name in compared.facts if name in result}
                loader.say(f"  {title}: {figure['rates'][-1]:,.2f} {row.unit}")
    return figures


def middle(figures: Figures, title: str) -> float | None:
    """The median rate of a client; of the faster dataio-rs for "dataio-rs"."""
    if title == "dataio-rs":
        return max((rate for name in RUST if (rate := middle(figures, name)) is not None), default=None)
    rates = figures.get(title, {}).get("rates")
    return statistics.median(rates) if rates else None


def shown(rate: float | None) -> str:
    return "–" if rate is None else f"{rate:,.2f}" if rate < 1000 else f"{rate:,.0f}"


def report(compared: Comparison, results: dict[str, Figures], options: argparse.Namespace) -> str:
    """The generated part of the page."""
    lines, errors = [], []
    for name, figures in results.items():
        row, ours = compared.rows[name], middle(figures, "dataio")
        others = [f"{title} {shown(rate)}" for title in row.peers if (rate := middle(figures, title)) is not None]
        marks = []
        for peer, target in row.targets.items():
            theirs = middle(figures, peer)
            verdict = "" if not ours or not theirs else "met" if ours / theirs >= target else "**missed**"
            marks.append(f"{target:.2f} of {peer}: {loader.ratio(ours, theirs)} {verdict}".strip())
        ratio = loader.ratio(ours, middle(figures, "dataio-rs"))
        spreads = [(max(r) - min(r)) / statistics.median(r) for f in figures.values() if (r := f.get("rates"))]
        told = figures.get("dataio", {}).get("facts", {})
        facts = [str(told[fact]) if fact in told else "–" for fact in compared.facts]
        lines.append(
            [name, row.unit, shown(ours), "; ".join(others), ratio, "; ".join(marks) or "–", *facts, f"{max(spreads, default=0):.0%}"]
        )
        errors += [f"* {t}, {name}: {f['error']}" for t, f in figures.items() if "error" in f]
    header = ["case/workers", "unit", "dataio", "others", "/ dataio-rs", "targets", *compared.facts.values(), "spread"]
    text = [
        f"{loader.machine()}. Measured {options.when}; median of {options.rounds} rounds.",
        "",
        loader.table(header, lines),
    ]
    if errors:
        text += ["", "Failed:", "", *errors]
    return "\n".join(text)


def main(compared: Comparison) -> None:
    """The command line of a script."""
    parser = argparse.ArgumentParser(description=compared.summary)
    parser.add_argument("--cases", default=",".join(compared.rows), help="comma-separated; a first word names several")
    parser.add_argument("--clients", default=",".join(compared.clients), help="comma-separated")
    parser.add_argument("--rounds", type=int, default=3, help="how often the clients take turns (default: 3)")
    parser.add_argument("--timeout", type=float, default=300, help="seconds for one process")
    parser.add_argument("--min-seconds", type=float, default=1.5, help="a measurement lasts at least this long")
    parser.add_argument("--quick", action="store_true", help="one round on small files; not written")
    parser.add_argument("--no-write", action="store_true", help="leave docs/benchmark.md alone")
    options = parser.parse_args()
    options.when = f"{time.strftime('%Y-%m-%d')} at commit {loader.commit()}"
    options.data = compared.data
    scale = 1.0
    if options.quick:
        options.rounds, options.min_seconds, options.no_write, scale = 1, 0.1, True, 1 / 64
        options.data = compared.data.with_name(f"{compared.data.name}-quick")
    cases = options.cases.split(",")
    names = [name for name in compared.rows if name in cases or name.split("/")[0] in cases]
    titles = loader.picked(options.clients, compared.clients, "client")
    compared.make(options.data, scale)
    if (load := os.getloadavg()[0]) > 0.5:
        loader.say(f"note: the load average is {load:.1f}: other work on this machine will disturb the figures")
    keep = not options.no_write and len(titles) == len(compared.clients)
    results: dict[str, Figures] = json.loads(compared.results.read_text()) if keep and compared.results.exists() else {}
    for name in names:
        loader.say(name)
        results[name] = measure(compared, compared.rows[name], titles, options)
        if keep:
            compared.results.parent.mkdir(parents=True, exist_ok=True)
            compared.results.write_text(json.dumps(results, indent=1))
    results = {name: results[name] for name in compared.rows if name in results}
    text = report(compared, results, options)
    print(text)
    if keep:
        loader.write_page(text, f"<!-- {compared.name}:begin -->", f"<!-- {compared.name}:end -->")
