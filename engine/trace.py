"""Looking at a running graph: spans for Chrome's trace viewer and Perfetto, and snapshots on stderr.

The file is JSON in Chrome's "Trace Event Format" (object form, complete events "X", counters "C", names "M"; times in
microseconds). https://ui.perfetto.dev and chrome://tracing open it.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from .work import MorselResult

if TYPE_CHECKING:
    from .run import Graph
    from .stats import RunStats

Place: TypeAlias = tuple[int, int]
"""Process id and native thread id."""
Event: TypeAlias = tuple[str, str, int, int, Place, dict[str, Any] | None]
"""Kind ("X" or "C"), name, beginning and duration in nanoseconds, where, and what belongs to it."""

SNAPSHOT_SECONDS = 0.5
_WRITE_EVERY = 20
"""A trace is written at the end of a pass when so many times what writing takes have gone by."""


class Recorder:
    """Keeps the last `limit` events and writes them to `path`; a context manager that ends the recording.

    Any thread may add events. The file is written, whole, when the recording begins and ends and when a pass ends; when
    passes are so short that writing would take a good part of the time, not after each of them.
    """

    def __init__(self, path: str | os.PathLike[str], stats: RunStats, limit: int) -> None:
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise ValueError(f"a trace keeps at least 1 event, got {limit!r}")
        self.path = Path(path)
        self._stats = stats
        self._began = time.perf_counter_ns()
        self._events: deque[Event] = deque(maxlen=limit)
        self._added = 0
        self._lock = threading.Lock()
        self._names: dict[Place, str] = {}
        self._write_seconds = 0.0
        self._written = time.monotonic()
        self._write()

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop recording and write the file; idempotent."""
        if self._stats.trace is self:
            self._stats.trace = None
            self._save()

    # ---------------------------------------------------------------- recording

    def span(self, actor: str, name: str, began: int, ended: int, **details: Any) -> None:
        """What the calling thread, which is that of `actor`, did between two readings of `time.perf_counter_ns`."""
        place = (os.getpid(), threading.get_native_id())
        self._names[place] = actor
        self._add("X", name, began, ended - began, place, details)

    def morsel(self, batch: int, result: MorselResult) -> None:
        """What a worker did, as it came back from it.

        Rows go through their ops one after the other, so the spans of the ops are sums: each is as long as the op took for
        all rows together, and they stand in a row within the morsel's span.
        """
        if result.worker == (0, 0):
            return
        self._names.setdefault(result.worker, f"worker {sum(n.startswith('worker') for n in self._names.values())}")
        details = {
            "batch": batch,
            "first record": result.offset,
            "records": result.length,
            "failed": len(result.failures),
            "bytes read": result.bytes_read,
            "on a core, ms": result.cpu / 1e6,
        }
        self._add("X", f"morsel of batch {batch}", result.began, result.took, result.worker, details)
        at, end = result.began, result.began + result.took
        for (stage, op), (total, count, worst, _) in result.counters.items():
            # Columns that a worker process was not sent are counted here too, but took no time of that worker.
            total = min(total, end - at)
            self._add("X", op, at, total, result.worker, {"stage": stage, "calls": count, "slowest, ms": worst / 1e6})
            at += total

    def depth(self, name: str, **values: int) -> None:
        """How full something is now."""
        self._add("C", name, time.perf_counter_ns(), 0, (os.getpid(), 0), values)

    def _add(self, kind: str, name: str, began: int, took: int, place: Place, details: dict[str, Any]) -> None:
        if began >= self._began:
            with self._lock:
                self._added += 1
                self._events.append((kind, name, began - self._began, took, place, details))

    # ---------------------------------------------------------------- writing

    def pass_ended(self) -> None:
        """Write what is recorded so far, unless that was done a moment ago."""
        if time.monotonic() - self._written >= _WRITE_EVERY * self._write_seconds:
            self._save()

    def _save(self) -> None:
        """Write; where that fails warn, since a pass or the loader is ending."""
        began = time.monotonic()
        try:
            self._write()
            self._written = time.monotonic()
            self._write_seconds = self._written - began
        except OSError as error:
            warnings.warn(f"the trace could not be written to {self.path}: {error}", RuntimeWarning, stacklevel=2)

    def _write(self) -> None:
        with self._lock:
            events, lost = list(self._events), self._added - len(self._events)
        beside = self.path.with_name(f"{self.path.name}.{os.getpid()}.part")
        document = {
            "traceEvents": [*_names(self._names.copy()), *map(_as_json, events)],
            "displayTimeUnit": "ms",
            "otherData": {"events lost": lost},
        }
        try:
            beside.write_text(json.dumps(document))
            beside.replace(self.path)
        finally:
            beside.unlink(missing_ok=True)


def _names(places: dict[Place, str]) -> Iterator[dict[str, Any]]:
    for pid in dict.fromkeys(pid for pid, _ in places):
        title = "loader" if pid == os.getpid() else "worker process"
        yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": f"dataio {title} {pid}"}}
    for (pid, tid), name in places.items():
        yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}


def _as_json(event: Event) -> dict[str, Any]:
    kind, name, began, took, (pid, tid), details = event
    out: dict[str, Any] = {"ph": kind, "name": name, "cat": "dataio", "ts": began / 1e3, "pid": pid, "tid": tid, "args": details}
    if kind == "X":
        out["dur"] = took / 1e3
    return out


class Snapshots:
    """Prints where a graph stands to stderr, every half second and when it ends (DATAIO_PIPELINE_TRACE=1)."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._began = time.perf_counter()
        self._thread = threading.Thread(target=self._print, name="dataio-snapshots", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait for the last snapshot, once the graph is stopping."""
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _print(self) -> None:
        while not self._graph.wait_stopped(SNAPSHOT_SECONDS):
            print(self.line(), file=sys.stderr, flush=True)
        print(f"{self.line()} | stopped", file=sys.stderr, flush=True)

    def line(self) -> str:
        """One line: time, records by how far they came, and messages waiting in each mailbox."""
        graph, stats = self._graph, self._graph.stats
        queues = ", ".join(f"{name} {now}" for name, (now, _) in graph.depths().items())
        if stats.fetch.spent[1]:
            depths = stats.fetch.depths()
            queues += f" | fetched {stats.fetch.nbytes / 1e6:,.1f} MB, {depths['in_flight']} requests, {depths['waiting']} waiting"
        return (
            f"dataio: epoch {graph.epoch}, {time.perf_counter() - self._began:.1f} s | submitted {stats.submitted}, "
            f"completed {stats.completed}, delivered {stats.delivered}, failed {stats.failed} | "
            f"in flight {stats.inflight} records, {graph.batches_in_flight} batches | waiting in {queues}"
        )
