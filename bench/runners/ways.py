"""Runs one client on one case by every way that it has; prints one line of JSON. Shared by the runners of bench/rounds.py.

The fastest way counts. The files are in the page cache, and what comes is checked by the ways themselves.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Way = Callable[[], int]
"""Does the case once; gives the number of items that came (bytes, for cases in GB/s)."""


class Case:
    """What a way is asked for.

    Attributes:
        facts: further figures that a way may tell, for the result.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self.name, self.data, self.workers, self.scratch = args.case, args.data, args.workers, args.scratch
        self.facts: dict[str, Any] = {}

    def path(self, name: str) -> str:
        return str(self.data / name)


Ours = Mapping[str, Callable[[Case, Any], list[Way]]]
Others = Mapping[tuple[str, str], Callable[[Case], list[Way]]]


def ways_of(client: str, case: Case, ours: Ours, others: Others) -> list[Way]:
    """By dataio and dataio-rs, which have the same names, or another library."""
    if client != "dataio":
        return others[client, case.name](case)
    import dataio

    return ours[case.name](case, dataio)


def main(summary: str, ours: Ours, others: Others) -> None:
    """The command line of a runner."""
    parser = argparse.ArgumentParser(description=summary)
    parser.add_argument("--client", required=True)
    parser.add_argument("--case", required=True, choices=ours)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--min-seconds", type=float, default=1.5)
    args = parser.parse_args()
    case = Case(args)
    best, items = 0.0, 0
    for way in ways_of(args.client, case, ours, others):
        items = way()  # the first time imports, connects and fills caches
        seconds: list[float] = []
        while len(seconds) < 3 or sum(seconds) < args.min_seconds:
            began = time.perf_counter()
            got = way()
            seconds.append(time.perf_counter() - began)
            if got != items:
                raise SystemExit(f"{got} items came, {items} the first time")
        best = max(best, items / statistics.median(seconds))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"rate": best, "items": items, "peak_rss": peak, **case.facts}))

