"""What every runner shares: the command line, the records, the clock and the one JSON line it prints.

Standard library only, so that a peer's import time is its own.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import time
from array import array
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

SIZES = {
    "imagenet": 800,
    "bucket": 800,
    "small": 2_048,
    "small+busy": 2_048,
    "files": 2_048,
    "int": 200_000,
    "npy": 100_000,
}
BATCH = {"imagenet": 64, "small": 32, "small+busy": 32, "files": 64, "int": 256, "npy": 256}
"""Records per batch; `bucket` has one batch per bucket."""
BATCH_ROWS = {
    "imagenet": ((3, 224, 224), "float32"),
    "bucket": ((3, 0, 0), "float32"),
    "small": ((224, 224, 3), "uint8"),
    "small+busy": ((224, 224, 3), "uint8"),
    "npy": ((64,), "float32"),
}
"""Shape and dtype of one row of the batch tensor; 0 stands for any size."""
BUSY_SECONDS = 0.010

Record = dict[str, Any]
Epoch = Callable[[], Iterable[int]]
"""Starts one pass; yields the number of samples of each batch, after touching what the batch holds."""


def arguments() -> argparse.Namespace:
    """The command line that the driver uses for every runner."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workload", choices=SIZES, required=True)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=1, help="steady epochs at least")
    parser.add_argument(
        "--min-seconds", type=float, default=1.5, help="go on until the steady epochs last this long"
    )
    parser.add_argument("--limit", type=float, default=1.0, help="the share of the records to use")
    parser.add_argument("--variant", default="", help="how the peer is to run, where it has a choice")
    return parser.parse_args()


def load_records(args: argparse.Namespace) -> list[Record]:
    """The workload's records, the same for every peer."""
    workload, count = args.workload, max(BATCH.get(args.workload, 64), int(SIZES[args.workload] * args.limit))
    if workload in ("imagenet", "bucket"):
        rows = json.loads((args.data / "photos.json").read_text())[:count]
        if workload == "imagenet":
            return [{"image": str(args.data / row["path"])} for row in rows]
        records = [
            {"image": str(args.data / row["path"]), **{k: row[k] for k in ("h", "w", "bucket")}}
            for row in rows
        ]
        return sorted(records, key=lambda record: record["bucket"])
    if workload in ("small", "small+busy", "files"):
        field = "data" if workload == "files" else "image"
        return [{field: str(args.data / "small" / f"{index:05d}.jpg")} for index in range(count)]
    if workload == "int":
        return [{"x": index} for index in range(count)]
    return [{"x": file} for file in npy_files(count)]


def npy_files(count: int) -> list[bytes]:
    """Files of 64 float32 numbers, made by hand: no NumPy here."""
    header = "{'descr': '<f4', 'fortran_order': False, 'shape': (64,), }"
    header += " " * (-(10 + len(header) + 1) % 64) + "\n"
    start = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode()
    numbers = random.Random(0)
    return [start + array("f", list(numbers.randbytes(64))).tobytes() for _ in range(count)]


def runs_of(records: list[Record], key: str) -> list[list[Record]]:
    """Neighbouring records with the same key, together."""
    groups: list[list[Record]] = []
    for record in records:
        if groups and groups[-1][0][key] == record[key]:
            groups[-1].append(record)
        else:
            groups.append([record])
    return groups


def batches_of(records: list[Record], workload: str) -> list[list[Record]]:
    """The records of each batch, for peers that are told what belongs together."""
    if workload == "bucket":
        return runs_of(records, "bucket")
    size = BATCH[workload]
    return [records[start : start + size] for start in range(0, len(records), size)]


def busy(seconds: float = BUSY_SECONDS) -> None:
    """Pure Python for `seconds` of this thread's own CPU time: waiting for the GIL does not count as work done."""
    end = time.thread_time() + seconds
    x = 0
    while time.thread_time() < end:
        for _ in range(500):
            x = (x * 31 + 7) % 1_000_003


def check_shape(workload: str, batch: Any) -> int:
    """The number of samples in a tensor batch; the run ends unless it is what was asked for."""
    shape, dtype = tuple(batch.shape), str(batch.dtype).removeprefix("torch.")
    row, wanted = BATCH_ROWS[workload]
    if dtype != wanted or len(shape) != len(row) + 1 or any(n not in (m, 0) for n, m in zip(row, shape[1:])):
        raise SystemExit(
            f"{workload}: a batch of {dtype} {shape}, not {wanted} (n, {', '.join(map(str, row))})"
        )
    return shape[0]


def tree_peak_bytes() -> int:
    """Peak resident memory of this process and its living descendants, each its own peak, added up."""
    parents: dict[int, int] = {}
    peaks: dict[int, int] = {}
    try:
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    lines = (entry / "status").read_text().splitlines()
                except OSError:
                    continue
                fields = dict(line.split(":", 1) for line in lines if ":" in line)
                parents[int(entry.name)] = int(fields["PPid"])
                peaks[int(entry.name)] = int(fields.get("VmHWM", "0 kB").split()[0]) * 1024
    except OSError:
        parents = {}
    if os.getpid() not in parents:
        usages = [
            resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        ]
        return sum(usages) * 1024
    tree, frontier = {os.getpid()}, {os.getpid()}
    while frontier := {pid for pid, parent in parents.items() if parent in frontier} - tree:
        tree |= frontier
    return sum(peaks[pid] for pid in tree)


def measure(
    args: argparse.Namespace,
    records: list[Record],
    open_loader: Callable[[], AbstractContextManager[Epoch]],
    import_s: float,
) -> None:
    """Run one warm-up epoch and the steady ones, check that every sample arrived, print the JSON line."""
    seconds: list[float] = []
    opened = time.perf_counter()
    first_batch_s = 0.0
    with open_loader() as epoch:
        warm_up = True
        while warm_up or len(seconds) < args.repeats or sum(seconds) < args.min_seconds:
            started = time.perf_counter()
            delivered = 0
            for count in epoch():
                first_batch_s = first_batch_s or time.perf_counter() - opened
                delivered += count
                if args.workload == "small+busy":
                    busy()
            if not warm_up:
                seconds.append(time.perf_counter() - started)
            warm_up = False
            if delivered != len(records):
                raise SystemExit(f"{args.workload}: {delivered} of {len(records)} samples were delivered")
        peak = tree_peak_bytes()
    result = {
        "workload": args.workload,
        "workers": args.workers,
        "samples": len(records),
        "seconds": seconds,
        "first_batch_s": first_batch_s,
        "import_s": import_s,
        "peak_rss": peak,
    }
    print(json.dumps(result), flush=True)
