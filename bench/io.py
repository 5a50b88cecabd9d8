"""Compare clients of object stores and web servers: one run, the same nginx on loopback, the same objects, taking turns.

    python bench/io.py                               everything; some minutes; writes docs/benchmark.md
    python bench/io.py --cases objects --no-write    some cases, printed only
    python bench/io.py --quick                       does everything run? its figures mean nothing

What each case does and how it is measured is described in docs/benchmark.md.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import environments
import io_server
import loader

RUNNER = loader.ROOT / "bench" / "runners" / "io_runner.py"
DATA = loader.ROOT / "build" / "bench-io"
RESULTS = loader.ROOT / "build" / "bench-results" / "io.json"
BEGIN, END = "<!-- io:begin -->", "<!-- io:end -->"
CLIENTS = {  # title: environment, client of the runner
    "dataio": ("own", "dataio"),
    "obstore": ("own", "obstore"),
    "dataio-rs 0.4.7": ("rs047", "dataio"),
    "dataio-rs 0.4.15": ("rs0415", "dataio"),
    "boto3": ("own", "boto3"),
    "s3fs": ("own", "s3fs"),
    "aiohttp": ("own", "aiohttp"),
}
CASES = {  # name: (case of the runner, protocol, unit, clients that have no such thing)
    "objects, S3": ("objects", "s3", "objects/s", ("aiohttp",)),
    "objects, HTTP": ("objects", "http", "objects/s", ("boto3", "s3fs")),
    "large, S3": ("large", "s3", "GB/s", ("aiohttp",)),
    "large, HTTP": ("large", "http", "GB/s", ("boto3", "s3fs")),
    "ranges, S3": ("ranges", "s3", "ranges/s", ("aiohttp",)),
    "ranges, HTTP": ("ranges", "http", "ranges/s", ("boto3", "s3fs")),
    "listing, S3": ("listing", "s3", "keys/s", ("aiohttp",)),
}
TARGETS = {"objects": "0.95 of obstore, 0.5 of dataio-rs", "large": "1.0 of the best"}

Figures = dict[str, dict[str, Any]]
"""By client: {"rates": [...], "rss": [...]}, or {"error": ...}."""


def run_once(title: str, case: str, url: str, options: argparse.Namespace) -> dict[str, Any]:
    """One measurement in a fresh process; {"error": ...} where it failed."""
    environment, client = CLIENTS[title]
    kind, protocol, _, _ = CASES[case]
    python = environments.python_of(environment, loader.ROOT)
    command = [str(python), str(RUNNER), "--client", client, "--case", kind, "--protocol", protocol, "--url", url]
    command += ["--objects", str(options.objects), "--object-bytes", str(io_server.SMALL_BYTES)]
    command += ["--large", str(options.large), "--ranges", str(options.ranges), "--keys", str(options.keys)]
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("DATAIO_", "PYTHON", "AWS_"))}
    clean["AWS_EC2_METADATA_DISABLED"] = "true"
    try:
        done = subprocess.run(command, env=clean, capture_output=True, text=True, timeout=options.timeout)
    except subprocess.TimeoutExpired:
        return {"error": f"took more than {options.timeout:g} s"}
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1][:300]}
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def measure(case: str, titles: list[str], url: str, options: argparse.Namespace) -> Figures:
    """All clients on one case, taking turns; one that failed once is not asked again."""
    figures: Figures = {}
    able = [title for title in titles if CLIENTS[title][1] not in CASES[case][3]]
    for round_ in range(options.rounds):
        for title in able if round_ % 2 == 0 else able[::-1]:
            figure = figures.setdefault(title, {"rates": [], "rss": []})
            if "error" in figure:
                continue
            result = run_once(title, case, url, options)
            if "error" in result:
                figures[title] = result
                loader.say(f"  {title}: {result['error']}")
                continue
            amount = result["bytes"] / 1e9 if CASES[case][0] == "large" else result["items"]
            figure["rates"].append(amount / result["seconds"])
            figure["rss"].append(result["peak_rss"])
            loader.say(f"  {title}: {figure['rates'][-1]:,.2f} {CASES[case][2]}")
    return figures


def middle(figures: Figures, title: str) -> float | None:
    rates = figures.get(title, {}).get("rates")
    return statistics.median(rates) if rates else None


def report(results: dict[str, Figures], options: argparse.Namespace) -> str:
    """The generated part of the page."""
    header = ["case", "unit", *CLIENTS, "/ obstore", "/ dataio-rs", "/ best peer", "spread"]
    lines, memory, errors = [], [], []
    for case, figures in results.items():
        rates = {title: middle(figures, title) for title in CLIENTS}
        ours = rates["dataio"]
        rust = max((r for t, r in rates.items() if t.startswith("dataio-rs") and r), default=None)
        peers = max((r for t, r in rates.items() if t != "dataio" and r), default=None)
        spreads = [(max(r) - min(r)) / statistics.median(r) for f in figures.values() if (r := f.get("rates"))]
        shown = [
            "–" if t not in figures else "failed" if r is None else f"{r:,.2f}" if r < 100 else f"{r:,.0f}"
            for t, r in rates.items()
        ]
        ratios = [loader.ratio(ours, other) for other in (rates["obstore"], rust, peers)]
        lines.append([case, CASES[case][2], *shown, *ratios, f"{max(spreads):.0%}" if spreads else "–"])
        if CASES[case][0] == "large":
            peaks = [statistics.median(f["rss"]) if (f := figures.get(t, {})).get("rss") else None for t in CLIENTS]
            memory.append([case, *("–" if peak is None else f"{peak / 2**20:,.0f}" for peak in peaks)])
        errors += [f"* {t}, {case}: {f['error']}" for t, f in figures.items() if "error" in f]
    text = [
        f"{loader.machine()}. Measured {options.when}; median of {options.rounds} rounds.",
        "",
        loader.table(header, lines),
    ]
    if memory:
        text += ["", "Peak memory of reading the 1 GiB object whole, MiB:", "", loader.table(["case", *CLIENTS], memory)]
    if errors:
        text += ["", "Failed:", "", *errors]
    return "\n".join(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", default=";".join(CASES), help="separated by semicolons; a first word names several")
    parser.add_argument("--clients", default=",".join(CLIENTS), help="comma-separated")
    parser.add_argument("--rounds", type=int, default=3, help="how often the clients take turns (default: 3)")
    parser.add_argument("--timeout", type=float, default=300, help="seconds for one process")
    parser.add_argument("--quick", action="store_true", help="one round of fewer requests; not written")
    parser.add_argument("--no-write", action="store_true", help="leave docs/benchmark.md alone")
    options = parser.parse_args()
    options.objects, options.ranges = io_server.SMALL, 4_096
    options.large, options.keys, data = io_server.LARGE_BYTES, io_server.KEYS, DATA
    options.when = f"{time.strftime('%Y-%m-%d')} at commit {loader.commit()}"
    if options.quick:
        options.rounds, options.objects, options.ranges, options.no_write = 1, 256, 256, True
        options.large, options.keys, data = 1 << 24, 10_000, DATA.with_name("bench-io-quick")
    asked = options.cases.split(";")
    cases = [case for case in CASES if case in asked or CASES[case][0] in asked]
    if not cases:
        raise SystemExit(f"no such case: {options.cases}; there are {'; '.join(CASES)}")
    titles = loader.picked(options.clients, CLIENTS, "client")
    io_server.make(data, options.large, options.keys)
    results: dict[str, Figures] = {}
    with tempfile.TemporaryDirectory() as folder, io_server.serving(data, Path(folder)) as url:
        for case in cases:
            loader.say(case)
            results[case] = measure(case, titles, url, options)
    text = report(results, options)
    print(text)
    if not options.no_write and len(cases) == len(CASES) and len(titles) == len(CLIENTS):
        RESULTS.parent.mkdir(parents=True, exist_ok=True)
        RESULTS.write_text(json.dumps(results, indent=1))
        loader.write_page(text, BEGIN, END)


if __name__ == "__main__":
    sys.exit(main())
