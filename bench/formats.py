"""Compare readers and writers of file formats: one run, the same files in the page cache, the clients taking turns.

    python bench/formats.py                               everything; some minutes; writes docs/benchmark.md
    python bench/formats.py --cases tar,tfrecord --no-write    some cases, printed only
    python bench/formats.py --quick                       does everything run? its figures mean nothing

What each case does and how it is measured is described in docs/benchmark.md.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import environments
import formats_data
import loader

RUNNER = loader.ROOT / "bench" / "runners" / "formats_runner.py"
DATA = loader.ROOT / "build" / "bench-formats"
RESULTS = loader.ROOT / "build" / "bench-results" / "formats.json"
BEGIN, END = "<!-- formats:begin -->", "<!-- formats:end -->"
CLIENTS = {  # title: environment, client of the runner
    "dataio": ("own", "dataio"),
    "dataio-rs 0.4.7": ("rs047", "dataio"),
    "dataio-rs 0.4.15": ("rs0415", "dataio"),
    "safetensors": ("own", "safetensors"),
    "disk": ("own", "disk"),
    "webdataset": ("own", "webdataset"),
    "tfrecord": ("own", "tfrecord"),
    "Polars": ("own", "polars"),
    "pyarrow": ("own", "pyarrow"),
    "h5py": ("own", "h5py"),
    "NumPy": ("own", "numpy"),
}
RUST = ("dataio-rs 0.4.7", "dataio-rs 0.4.15")


@dataclass(frozen=True, slots=True)
class Row:
    """One case at one number of workers.

    Attributes:
        case: of the runner.
        scale: items per unit of the table.
        peers: who else can do it.
        targets: the ratio that we want to reach, by peer; "dataio-rs" stands for the faster one.
    """

    case: str
    workers: int
    unit: str
    scale: float
    peers: tuple[str, ...]
    targets: dict[str, float]


ROWS = {
    "latents/1": Row("latents", 1, "tensors/s", 1, RUST, {"dataio-rs": 1.0}),
    "latents/2": Row("latents", 2, "tensors/s", 1, RUST, {"dataio-rs": 1.0}),
    "tar/1": Row("tar", 1, "images/s", 1, (*RUST, "webdataset"), {"dataio-rs": 1.15, "webdataset": 5.0}),
    "tar/2": Row("tar", 2, "images/s", 1, (*RUST, "webdataset"), {"dataio-rs": 1.15, "webdataset": 5.0}),
    "safetensors": Row("safetensors", 2, "GB/s", 1e9, (*RUST, "safetensors"), {"dataio-rs": 1.0}),
    "save": Row("save", 2, "GB/s", 1e9, (*RUST, "safetensors", "disk"), {"disk": 0.9}),
    "tfrecord": Row("tfrecord", 2, "records/s", 1, (*RUST, "tfrecord"), {"tfrecord": 2.0}),
    "parquet": Row("parquet", 2, "million rows/s", 1e6, (*RUST, "Polars", "pyarrow"), {"Polars": 1.0}),
    "filtered": Row("filtered", 2, "million rows/s", 1e6, (*RUST, "Polars", "pyarrow"), {"Polars": 1.0}),
    "hdf5": Row("hdf5", 2, "GB/s", 1e9, (*RUST, "h5py"), {}),
    "npy": Row("npy", 2, "GB/s", 1e9, (*RUST, "NumPy"), {}),
}

Figures = dict[str, dict[str, Any]]
"""By client: {"rates": [...], "rss": [...]}, or {"error": ...}."""


def run_once(title: str, row: Row, scratch: Path, options: argparse.Namespace) -> dict[str, Any]:
    """One measurement in a fresh process; {"error": ...} where it failed."""
    environment, client = CLIENTS[title]
    python = environments.python_of(environment, loader.ROOT)
    command = [str(python), str(RUNNER), "--client", client, "--case", row.case, "--workers", str(row.workers)]
    command += ["--data", str(options.data), "--scratch", str(scratch), "--min-seconds", str(options.min_seconds)]
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("DATAIO_", "PYTHON"))}
    clean |= {"OMP_NUM_THREADS": "1", "DATAIO_CPU_WORKERS": str(row.workers)}
    if row.case in ("parquet", "filtered", "safetensors"):
        del clean["OMP_NUM_THREADS"]
    try:
        done = subprocess.run(command, env=clean, capture_output=True, text=True, timeout=options.timeout)
    except subprocess.TimeoutExpired:
        return {"error": f"took more than {options.timeout:g} s"}
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1][:300]}
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def measure(row: Row, titles: list[str], options: argparse.Namespace) -> Figures:
    """All clients on one case, taking turns; one that failed once is not asked again."""
    figures: Figures = {}
    able = [title for title in titles if title == "dataio" or title in row.peers]
    with tempfile.TemporaryDirectory(dir=DATA.parent) as scratch:
        for round_ in range(options.rounds):
            for title in able if round_ % 2 == 0 else able[::-1]:
                figure = figures.setdefault(title, {"rates": [], "rss": []})
                if "error" in figure:
                    continue
                result = run_once(title, row, Path(scratch), options)
                if "error" in result:
                    figures[title] = result
                    loader.say(f"  {title}: {result['error']}")
                    continue
                figure["rates"].append(result["rate"] / row.scale)
                figure["rss"].append(result["peak_rss"])
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


def report(results: dict[str, Figures], options: argparse.Namespace) -> str:
    """The generated part of the page."""
    lines, errors = [], []
    for name, figures in results.items():
        row, ours = ROWS[name], middle(figures, "dataio")
        others = [f"{title} {shown(rate)}" for title in row.peers if (rate := middle(figures, title)) is not None]
        marks = []
        for peer, target in row.targets.items():
            theirs = middle(figures, peer)
            verdict = "" if not ours or not theirs else "met" if ours / theirs >= target else "**missed**"
            marks.append(f"{target:.2f} of {peer}: {loader.ratio(ours, theirs)} {verdict}".strip())
        ratio = loader.ratio(ours, middle(figures, "dataio-rs"))
        spreads = [(max(r) - min(r)) / statistics.median(r) for f in figures.values() if (r := f.get("rates"))]
        lines.append(
            [name, row.unit, shown(ours), "; ".join(others), ratio, "; ".join(marks) or "–", f"{max(spreads, default=0):.0%}"]
        )
        errors += [f"* {t}, {name}: {f['error']}" for t, f in figures.items() if "error" in f]
    header = ["case/workers", "unit", "dataio", "others", "/ dataio-rs", "targets", "spread"]
    text = [
        f"{loader.machine()}. Measured {options.when}; median of {options.rounds} rounds.",
        "",
        loader.table(header, lines),
    ]
    if errors:
        text += ["", "Failed:", "", *errors]
    return "\n".join(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", default=",".join(ROWS), help="comma-separated; a first word names several")
    parser.add_argument("--clients", default=",".join(CLIENTS), help="comma-separated")
    parser.add_argument("--rounds", type=int, default=3, help="how often the clients take turns (default: 3)")
    parser.add_argument("--timeout", type=float, default=300, help="seconds for one process")
    parser.add_argument("--min-seconds", type=float, default=1.5, help="a measurement lasts at least this long")
    parser.add_argument("--quick", action="store_true", help="one round on small files; not written")
    parser.add_argument("--no-write", action="store_true", help="leave docs/benchmark.md alone")
    options = parser.parse_args()
    options.when = f"{time.strftime('%Y-%m-%d')} at commit {loader.commit()}"
    options.data = DATA
    scale = 1.0
    if options.quick:
        options.rounds, options.min_seconds, options.no_write, scale = 1, 0.1, True, 1 / 64
        options.data = DATA.with_name(f"{DATA.name}-quick")
    cases = options.cases.split(",")
    names = [name for name in ROWS if name in cases or name.split("/")[0] in cases]
    titles = loader.picked(options.clients, CLIENTS, "client")
    formats_data.make(options.data, loader.DATA, scale)
    if (load := os.getloadavg()[0]) > 0.5:
        loader.say(f"note: the load average is {load:.1f}: other work on this machine will disturb the figures")
    keep = not options.no_write and len(titles) == len(CLIENTS)
    results: dict[str, Figures] = json.loads(RESULTS.read_text()) if keep and RESULTS.exists() else {}
    for name in names:
        loader.say(name)
        results[name] = measure(ROWS[name], titles, options)
        if keep:
            RESULTS.parent.mkdir(parents=True, exist_ok=True)
            RESULTS.write_text(json.dumps(results, indent=1))
    results = {name: results[name] for name in ROWS if name in results}
    text = report(results, options)
    print(text)
    if keep:
        loader.write_page(text, BEGIN, END)


if __name__ == "__main__":
    main()
