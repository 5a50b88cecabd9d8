"""Compare data loaders: one run, same data, same work, interleaved; each peer in its own environment and process.

    python bench/loader.py                                    everything; most of an hour
    python bench/loader.py --workloads small,int --workers 1  some rows; the other rows of the table stay
    python bench/loader.py --quick                            does everything run? Its figures mean nothing

Writes the table between the markers of docs/benchmark.md, and the raw figures to build/bench-results/loader.json.
What each workload does and how it is measured is described in docs/benchmark.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import data
import environments

ROOT = Path(__file__).resolve().parent.parent
RUNNERS = ROOT / "bench" / "runners"
DATA = ROOT / "build" / "bench-data"
RESULTS = ROOT / "build" / "bench-results" / "loader.json"
PAGE = ROOT / "docs" / "benchmark.md"
BEGIN, END = "<!-- loader:begin -->", "<!-- loader:end -->"

WORKLOADS = ("imagenet", "bucket", "small", "small+busy", "files", "int", "npy")
IMAGES = ("imagenet", "bucket", "small", "small+busy")
START_UP = ("imagenet", "small")
"""The workloads whose start-up and memory are printed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """One way to load data: an environment, a runner, a variant, and the workloads it can do."""

    name: str
    title: str
    environment: str
    runner: str
    variant: str = ""
    workloads: tuple[str, ...] = WORKLOADS


PEERS = (
    Peer(name="dataio", title="dataio", environment="own", runner="dataio_runner.py", variant="thread"),
    Peer(
        name="dataio-process",
        title="dataio, processes",
        environment="own",
        runner="dataio_runner.py",
        variant="process",
        workloads=("small", "small+busy"),
    ),
    Peer(
        name="dataio-dct",
        title="dataio, dct_scale",
        environment="own",
        runner="dataio_runner.py",
        variant="dct",
        workloads=("imagenet",),
    ),
    Peer(name="rs047", title="dataio-rs 0.4.7", environment="rs047", runner="dataio_rs.py"),
    Peer(name="rs0415", title="dataio-rs 0.4.15", environment="rs0415", runner="dataio_rs.py"),
    Peer(name="torch", title="torch DataLoader", environment="spdl", runner="torch_loader.py"),
    Peer(name="spdl", title="SPDL 0.8", environment="spdl", runner="spdl_loader.py"),
    Peer(name="floor", title="floor", environment="own", runner="floor.py", workloads=(*IMAGES, "files")),
)
OURS = ("dataio", "dataio-process")
"""The variants that do the very same work as the peers; the faster one enters the ratios."""
RUST = ("rs047", "rs0415")

TARGETS = {
    "imagenet": 1.05,
    "bucket": 1.15,
    "small": 1.15,
    "small+busy": 1.1,
    "files": 1.2,
    "int": 1.0,
    "npy": 1.2,
}
"""The ratio to the faster dataio-rs that we want to reach."""

Row = dict[str, Any]
"""One workload at one number of workers: "when", "rounds", "peers": {name: {"rates", "first", "import", "rss"}}."""


def run_once(
    peer: Peer, workload: str, workers: int, python: Path, options: argparse.Namespace
) -> dict[str, Any]:
    """One measurement in a fresh process; {"error": ...} where it failed."""
    command = [str(python), str(RUNNERS / peer.runner), "--workload", workload, "--workers", str(workers)]
    command += [
        "--data",
        str(DATA),
        "--repeats",
        str(options.repeats),
        "--min-seconds",
        str(options.min_seconds),
    ]
    command += ["--limit", str(options.limit), "--variant", peer.variant]
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("DATAIO_", "PYTHON"))}
    environment |= {"OMP_NUM_THREADS": "1", "DATAIO_CPU_WORKERS": str(workers)}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=options.timeout
        )
    except subprocess.TimeoutExpired:
        return {"error": f"took more than {options.timeout:g} s"}
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        return {"error": (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1][:300]}
    result: dict[str, Any] = json.loads(lines[-1])
    return result


def measure_row(workload: str, workers: int, peers: list[Peer], options: argparse.Namespace) -> Row:
    """All peers on one workload, taking turns; a peer that failed once is not asked again."""
    figures: dict[str, dict[str, Any]] = {}
    able = [peer for peer in peers if workload in peer.workloads]
    for round_ in range(options.rounds):
        # Every second round goes the other way: no peer always follows the same neighbour.
        for peer in able if round_ % 2 == 0 else able[::-1]:
            figure = figures.setdefault(peer.name, {"rates": [], "first": [], "import": [], "rss": []})
            if "error" in figure:
                continue
            result = run_once(
                peer, workload, workers, environments.python_of(peer.environment, ROOT), options
            )
            if "error" in result:
                figures[peer.name] = result
                say(f"  {peer.title}: {result['error']}")
                continue
            rate = result["samples"] * len(result["seconds"]) / sum(result["seconds"])
            figure["rates"].append(rate)
            figure["first"].append(result["first_batch_s"])
            figure["import"].append(result["import_s"])
            figure["rss"].append(result["peak_rss"])
            say(f"  {peer.title}: {rate:,.0f}/s")
    return {"when": options.when, "rounds": options.rounds, "peers": figures}


def rate_of(row: Row, name: str) -> float | None:
    """The median rate of a peer, None where it did not run or failed."""
    rates = row["peers"].get(name, {}).get("rates")
    return statistics.median(rates) if rates else None


def best_of(row: Row, names: Iterable[str]) -> float | None:
    """The best median among some peers."""
    return max((rate for name in names if (rate := rate_of(row, name)) is not None), default=None)


def ratio(a: float | None, b: float | None) -> str:
    return f"{a / b:.2f}" if a and b else "–"


def table(header: list[str], lines: list[list[str]]) -> str:
    """A Markdown table, padded so that it also reads well in a terminal; figures to the right."""
    widths = [max(len(line[i]) for line in [header, *lines]) for i in range(len(header))]
    rows = [
        "| "
        + " | ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths)))
        + " |"
        for line in [header, *lines]
    ]
    rule = "| " + " | ".join("-" * w if i == 0 else "-" * (w - 1) + ":" for i, w in enumerate(widths)) + " |"
    return "\n".join([rows[0], rule, *rows[1:]])


def rates_table(rows: dict[str, Row]) -> str:
    """Samples a second of every peer, our ratios, and whether the target is met."""
    header = [
        "workload",
        "workers",
        *(peer.title for peer in PEERS),
        "/ dataio-rs",
        "/ floor",
        "target",
        "mark",
        "spread",
    ]
    lines = []
    for key, row in rows.items():
        workload, workers = key.split("/")
        ours, rust = best_of(row, OURS), best_of(row, RUST)
        mark = "" if not ours or not rust else "met" if ours / rust >= TARGETS[workload] else "**missed**"
        cells = [cell(row, peer, workload) for peer in PEERS]
        spreads = [
            (max(r) - min(r)) / statistics.median(r) for p in row["peers"].values() if (r := p.get("rates"))
        ]
        spread = f"{max(spreads):.0%}" if spreads else "–"
        target = f"{TARGETS[workload]:.2f}"
        lines.append(
            [
                workload,
                workers,
                *cells,
                ratio(ours, rust),
                ratio(ours, rate_of(row, "floor")),
                target,
                mark,
                spread,
            ]
        )
    return table(header, lines)


def cell(row: Row, peer: Peer, workload: str) -> str:
    rate = rate_of(row, peer.name)
    if rate is not None:
        return f"{rate:,.0f}"
    return "failed" if "error" in row["peers"].get(peer.name, {}) else "–"


def start_table(rows: dict[str, Row]) -> str:
    """Import, first batch and memory, for the smallest number of workers of each workload in START_UP."""
    header = ["peer", "workload", "workers", "import, s", "first batch, s", "together, s", "peak memory, MiB"]
    lines = []
    for workload in START_UP:
        key = min((key for key in rows if key.split("/")[0] == workload), default=None)
        if key is None:
            continue
        for peer in PEERS:
            figure = rows[key]["peers"].get(peer.name, {})
            if not figure.get("rates"):
                continue
            load, first = statistics.median(figure["import"]), statistics.median(figure["first"])
            seconds = [f"{load:.2f}", f"{first:.2f}", f"{load + first:.2f}"]
            memory = f"{statistics.median(figure['rss']) / 2**20:,.0f}"
            lines.append([peer.title, workload, key.split("/")[1], *seconds, memory])
    return table(header, lines) if lines else ""


def report(rows: dict[str, Row]) -> str:
    """The generated part of the page."""
    rows = {f"{w}/{n}": rows[f"{w}/{n}"] for w in WORKLOADS for n in range(1, 257) if f"{w}/{n}" in rows}
    made = sorted({row["when"] for row in rows.values()})
    rounds = sorted({row["rounds"] for row in rows.values()})
    errors = [
        f"* {peer.title}, {key.replace('/', ', workers: ')}: {row['peers'][peer.name]['error']}"
        for key, row in rows.items()
        for peer in PEERS
        if "error" in row["peers"].get(peer.name, {})
    ]
    lines = [
        f"{machine()}. Measured {', '.join(made)}; median of {', '.join(map(str, rounds))} rounds.",
        "",
        "Samples a second, higher is better:",
        "",
        rates_table(rows),
    ]
    if start := start_table(rows):
        lines += ["", "Start-up and memory:", "", start]
    if errors:
        lines += ["", "Failed:", "", *errors]
    return "\n".join(lines)


def machine() -> str:
    """The machine in words."""
    model = platform.processor() or platform.machine()
    try:
        info = Path("/proc/cpuinfo").read_text()
        model = next(
            (x.split(":", 1)[1].strip() for x in info.splitlines() if x.startswith("model name")), model
        )
        memory = int(Path("/proc/meminfo").read_text().split()[1]) / 2**20
        return f"{model}, {os.cpu_count()} cores, {memory:.0f} GiB, Linux, Python {platform.python_version()}"
    except OSError:
        return f"{model}, {os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}"


def commit() -> str:
    """The commit of the checkout; a star where the sources differ from it."""

    def git(*args: str) -> str:
        done = subprocess.run(["git", *args], cwd=ROOT, capture_output=True, text=True, check=False)
        return done.stdout.strip()

    sources = ("dataio", "engine", "io", "formats", "bench")
    return (git("rev-parse", "--short", "HEAD") or "?") + (
        "*" if git("status", "--porcelain", "--", *sources) else ""
    )


def write_page(text: str, begin: str = BEGIN, end: str = END) -> None:
    """Replace the block between the markers; everything outside stays."""
    page = PAGE.read_text()
    if begin not in page or end not in page:
        raise SystemExit(f"{PAGE.relative_to(ROOT)} has no {begin} ... {end} to replace")
    before, rest = page.split(begin, 1)
    after = rest.split(end, 1)[1]
    PAGE.write_text(f"{before}{begin}\n{text}\n{end}{after}")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def picked(text: str, known: Iterable[str], what: str) -> list[str]:
    """The names in a comma-separated option; the order is that of `known`."""
    wanted, known = text.split(","), list(known)
    if unknown := [name for name in wanted if name not in known]:
        raise SystemExit(f"no such {what}: {', '.join(unknown)}; there are {', '.join(known)}")
    return [name for name in known if name in wanted]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workloads", default=",".join(WORKLOADS), help="comma-separated (default: all)")
    parser.add_argument(
        "--workers", default="1,2", help="comma-separated sizes of the CPU pool (default: 1,2)"
    )
    parser.add_argument(
        "--peers", default=",".join(peer.name for peer in PEERS), help="comma-separated (default: all)"
    )
    parser.add_argument("--rounds", type=int, default=3, help="how often the peers take turns (default: 3)")
    parser.add_argument("--repeats", type=int, default=1, help="steady epochs per measurement, at least")
    parser.add_argument(
        "--min-seconds", type=float, default=1.5, help="a measurement lasts at least this long"
    )
    parser.add_argument("--timeout", type=float, default=300, help="seconds for one process")
    parser.add_argument(
        "--quick", action="store_true", help="one round over an eighth of the records; not written"
    )
    parser.add_argument("--no-write", action="store_true", help="leave docs/benchmark.md alone")
    options = parser.parse_args()
    options.limit = 1.0
    options.when = f"{time.strftime('%Y-%m-%d')} at commit {commit()}"
    if options.quick:
        options.rounds, options.min_seconds, options.limit, options.no_write = 1, 0.2, 0.125, True
    return options


def main() -> None:
    options = arguments()
    workloads = picked(options.workloads, WORKLOADS, "workload")
    names = picked(options.peers, (peer.name for peer in PEERS), "peer")
    peers = [peer for peer in PEERS if peer.name in names]
    workers = sorted({int(n) for n in options.workers.split(",")})
    for hint in environments.missing_libraries():
        say(f"note: {hint}")
    if (load := os.getloadavg()[0]) > 0.5:
        say(f"note: the load average is {load:.1f}: other work on this machine will disturb the figures")
    for environment in {peer.environment for peer in peers}:
        environments.python_of(environment, ROOT)
    if set(workloads) & {*IMAGES, "files"}:
        data.make(DATA)

    # Rows are measured whole, so rows of an earlier run may stand beside new ones; a row without some peer is not kept.
    keep = not options.no_write and len(peers) == len(PEERS)
    rows: dict[str, Row] = json.loads(RESULTS.read_text()) if keep and RESULTS.exists() else {}
    for workload in workloads:
        for count in workers:
            say(f"{workload}, workers: {count}")
            rows[f"{workload}/{count}"] = measure_row(workload, count, peers, options)
            if keep:
                RESULTS.parent.mkdir(parents=True, exist_ok=True)
                RESULTS.write_text(json.dumps(rows, indent=1))
    text = report(rows)
    print(text)
    if keep:
        write_page(text)


if __name__ == "__main__":
    main()
