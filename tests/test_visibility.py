"""Looking at a running loader: counters, the report, traces, the progress bar, snapshots.

Stages are made slow by sleeping: that is the same on any machine. Times are only compared with each other.
"""

from __future__ import annotations

import io
import json
import os
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tqdm.auto

import dataio
from dataio.engine import trace
from dataio.engine.errors import BatchError
from dataio.engine.run import RunOptions
from dataio.engine.stats import RunStats
from dataio.report import Report, Setup, make_report

from .conftest import encoded, npy

pytestmark = [pytest.mark.alone, pytest.mark.usefixtures("two_workers", "no_leftovers")]

X = dataio.slot("x").decode_npy()
BAD = {"x": b"no array"}
SLOW = 0.002
"""Seconds per record of a slow stage; all other stages take some microseconds."""
EXECUTORS = pytest.mark.parametrize("workers", ["thread", "process"])


def rows(count: int) -> list[dict[str, Any]]:
    return [{"x": npy(np.full(4, i, np.float32))} for i in range(count)]


def load(records: Any, *stages: Any, **options: Any) -> dataio.DataLoader:
    options.setdefault("workers", "thread")
    return dataio.pipeline(*stages).bind(records).run("numpy", **options)


def sleeps(value: Any) -> Any:
    time.sleep(SLOW)
    return value


def sleeps_per_batch(batch: Any) -> Any:
    time.sleep(4 * SLOW)
    return batch


def computes(value: np.ndarray) -> np.ndarray:
    """Holds the interpreter lock."""
    total = 0
    for i in range(20_000):
        total += i
    return value + total % 2


class SlowRecords:
    """Yields each record late."""

    def __init__(self, count: int) -> None:
        self.records = rows(count)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for record in self.records:
            yield sleeps(record)


def reported(loader: dataio.DataLoader, busy: float = 0.0) -> Report:
    """The report after a pass in which the training loop takes `busy` seconds per batch."""
    with loader:
        for _ in loader:
            if busy:  # even sleep(0) would wait for the interpreter lock
                time.sleep(busy)
        return loader.report()


# -------------------------------------------------------------------- counters

STATS = {"inflight", "queue_depths", "stages", "failure_policy", "min_survivors", "pinned", "retain_samples", "process"}
DIAGNOSTICS = {
    "samples_submitted", "samples_completed", "samples_failed", "inflight", "inflight_max", "inflight_batches",
    "inflight_batches_max", "inflight_records", "inflight_records_max", "failure_policy", "min_survivors", "pinned",
    "retain_samples", "queue_depths", "stages", "stream_config",
}  # fmt: skip
STREAM_CONFIG = {
    "prefetch_records", "prefetch_batches", "order", "cpu_workers_effective", "io_workers_shared", "batch_credit_limit",
    "record_credit_limit",
}  # fmt: skip


def test_stats_and_diagnostics_have_the_keys_that_tools_look_for() -> None:
    with load(rows(4), X, dataio.batch(2), on_failure="strict", concurrency=3) as loader:
        list(loader)
        stats, diagnostics = loader.stats(), loader.diagnostics()
    assert stats.keys() >= STATS
    assert stats["process"].keys() == {"host_pool", "pinned_pool", "op_stats"}
    assert diagnostics.keys() == DIAGNOSTICS
    assert diagnostics["stream_config"].keys() == STREAM_CONFIG
    assert (diagnostics["failure_policy"], diagnostics["min_survivors"]) == ("strict", None)
    assert (diagnostics["stream_config"]["record_credit_limit"], diagnostics["stream_config"]["order"]) == (3, "submit")
    json.dumps([stats, diagnostics])


def test_stages_count_values_ops_and_batches(tmp_path: Path) -> None:
    for i in range(6):
        (tmp_path / f"{i}.jpg").write_bytes(encoded(seed=i))
    chain = dataio.slot("image").decode_image().hflip().resize(h=4, w=4)
    with load([{"image": tmp_path / f"{i}.jpg"} for i in range(6)], chain, dataio.batch(4)) as loader:
        list(loader)
        stages = loader.diagnostics()["stages"]
    assert {name: stage["count"] for name, stage in stages.items()} == {"read": 6, "decode": 6, "transform": 12, "collate": 2}
    for stage in stages.values():
        assert 0 < stage["min_ns"] <= stage["avg_ns"] <= stage["max_ns"] <= stage["total_ns"]


@EXECUTORS
def test_an_op_that_is_seldom_slow_shows_in_its_extremes(workers: str) -> None:
    def now_and_then(value: np.ndarray) -> np.ndarray:
        return sleeps(value) if value[0] == 5 else value  # type: ignore[no-any-return]

    with load(rows(16), X.custom(now_and_then), dataio.batch(16), workers=workers) as loader:
        list(loader)
        op = loader.stats()["ops"]["custom"]
    assert op["max_ns"] >= SLOW * 1e9 > op["avg_ns"] > op["min_ns"]
    assert op["count"] == 16


def test_nothing_is_in_flight_after_a_pass_or_a_break() -> None:
    with load(rows(40), X.custom(sleeps), dataio.batch(4)) as loader:
        next(iter(loader))
        left = loader.diagnostics()
        list(loader)
        ended = loader.diagnostics()
    for found in (left, ended):
        assert (found["inflight"], found["inflight_records"], found["inflight_batches"]) == (0, 0, 0)
        assert {name: depth["current"] for name, depth in found["queue_depths"].items() if depth["current"]} == {}
    assert ended["samples_submitted"] > ended["samples_completed"] >= 40  # the first pass was left


def test_batches_in_flight_reach_prefetch_and_no_more() -> None:
    with load(rows(40), X, dataio.batch(4, prefetch=3)) as loader:
        seen = []
        for _ in loader:
            time.sleep(SLOW)
            seen.append(loader.diagnostics())
    assert seen[-1]["inflight_batches_max"] == 3
    assert seen[-1]["inflight_records_max"] == 12
    assert all(s["inflight_batches"] <= 3 and s["inflight"] <= s["inflight_records"] <= 12 for s in seen)
    assert max(s["queue_depths"]["source_batches"]["current"] for s in seen) == 3


@EXECUTORS
def test_op_stats_are_those_of_the_process(monkeypatch: pytest.MonkeyPatch, workers: str) -> None:
    monkeypatch.setenv("DATAIO_DETAILED_STATS", "1")
    dataio.reset_op_stats()
    for _ in range(2):
        with load(rows(6), X.custom(sleeps), dataio.batch(4), dataio.map(sleeps_per_batch), workers=workers) as loader:
            list(loader)
    found = dataio.op_stats()
    counts = {op: entry["count"] for op, entry in found.items()}
    dataio.reset_op_stats()
    assert counts == {"npy": 12, "custom": 12, "collate.batch": 4, "sleeps_per_batch": 12}
    assert found["custom"]["max_ms"] >= found["custom"]["avg_ms"] >= SLOW * 1e3
    assert found["custom"]["total_ms"] == pytest.approx(12 * found["custom"]["avg_ms"])
    assert dataio.op_stats() == {}


def test_op_stats_are_empty_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DATAIO_DETAILED_STATS", raising=False)
    dataio.reset_op_stats()
    with load(rows(2), X, dataio.batch(2)) as loader:
        list(loader)
    assert dataio.op_stats() == {}


def test_a_switch_that_is_neither_on_nor_off_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATAIO_DETAILED_STATS", "yes")
    with pytest.raises(ValueError, match="DATAIO_DETAILED_STATS='yes': wants 0 or 1"):
        load(rows(1), X, dataio.batch(1))


# -------------------------------------------------------------------- snapshots


def test_snapshots_tell_how_far_a_pass_came(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("DATAIO_PIPELINE_TRACE", "1")
    monkeypatch.setattr(trace, "SNAPSHOT_SECONDS", SLOW)
    with load([*rows(30), BAD], X.custom(sleeps), dataio.batch(4)) as loader:
        list(loader)
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("dataio: epoch 0, ")]
    assert len(lines) > 3
    submitted = [int(line.partition("submitted ")[2].partition(",")[0]) for line in lines]
    assert submitted == sorted(submitted)
    assert "submitted 31, completed 31, delivered 30, failed 1 | in flight 0 records, 0 batches" in lines[-1]


def test_there_are_no_snapshots_unless_asked_for(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("DATAIO_PIPELINE_TRACE", raising=False)
    with load(rows(4), X, dataio.batch(4)) as loader:
        list(loader)
    assert capfd.readouterr().err == ""


# -------------------------------------------------------------------- the report

READER = dataio.slot("reader").decode_npy()


def slow_reads() -> dataio.RecordSource:
    return dataio.from_callable(lambda i: sleeps(npy(np.full(4, i, np.float32))), length=60)


BOTTLENECKS = [  # records, stages, seconds of the loop per batch; the stage at fault, its op
    pytest.param(lambda: SlowRecords(60), (X, dataio.batch(4)), 0, "source", None, id="source"),
    pytest.param(lambda: rows(60), (dataio.map(sleeps), X, dataio.batch(4)), 0, "source", "sleeps", id="record-map"),
    pytest.param(slow_reads, (READER, dataio.batch(4)), 0, "read", None, id="read"),
    pytest.param(lambda: rows(60), (X.custom(sleeps), dataio.batch(4)), 0, "workers", "custom", id="op"),
    pytest.param(
        lambda: rows(60), (X, dataio.batch(4), dataio.map(sleeps_per_batch)), 0, "batch ops", "sleeps_per_batch", id="batch-map"
    ),
    pytest.param(lambda: rows(60), (X, dataio.batch(4)), 4 * SLOW, "consumer", None, id="consumer"),
]


@pytest.mark.parametrize(("records", "stages", "busy", "stage", "op"), BOTTLENECKS)
def test_the_report_names_the_stage_that_is_slow(
    records: Callable[[], Any], stages: Any, busy: float, stage: str, op: str | None
) -> None:
    report = reported(load(records(), *stages), busy)
    assert (report.bottleneck, report.op) == (stage, op), report
    others = [s for s in report.stages if s.name != stage]
    assert all(report[stage].busy > 2 * other.busy for other in others), report
    assert report[stage].busy > report[stage].blocked
    assert f"bottleneck: {stage}" in str(report)


@pytest.mark.parametrize(("records", "stages", "busy", "stage", "op"), BOTTLENECKS)
def test_headroom_is_on_the_side_that_is_not_at_fault(
    records: Callable[[], Any], stages: Any, busy: float, stage: str, op: str | None
) -> None:
    report = reported(load(records(), *stages), busy)
    spare, short = report.consumer_rate, report.loader_rate
    if stage == "consumer":
        spare, short = short, spare
    assert spare > 2 * report.rate
    assert report.rate <= short < 2 * report.rate


def test_shares_are_shares() -> None:
    report = reported(load(rows(40), X.custom(sleeps), dataio.batch(4)), SLOW)
    for stage in report.stages:
        assert 0 <= stage.busy <= 1
        assert 0 <= stage.blocked <= 1
        assert stage.busy + stage.blocked <= 1 + 1e-9
    assert sum(op.share for op in report.ops if op.stage != "batch") <= 1


def test_before_the_first_batch_there_is_nothing_to_report() -> None:
    with load(rows(1), X, dataio.batch(1)) as loader:
        report = loader.report()
    assert report.bottleneck is None
    assert str(report) == "nothing was delivered yet"


def test_passes_add_up_and_what_lies_between_them_does_not_count() -> None:
    with load(rows(40), X.custom(sleeps), dataio.batch(4)) as loader:
        list(loader)
        once = loader.report()
        time.sleep(once.seconds * 2)
        list(loader)
        twice = loader.report()
    assert (once.records, twice.records) == (40, 80)
    assert twice.rate > once.rate / 1.5


JPEG = dataio.slot("image").decode_image(mode="rgb")


def pictures() -> list[dict[str, Any]]:
    data = encoded(600, 800)
    return [{"image": data}] * 60


SETTINGS = [  # records, stages, options; the setting to change
    pytest.param(lambda: SlowRecords(30), (X, dataio.batch(4)), {}, "from_callable", id="source"),
    pytest.param(lambda: rows(30), (dataio.map(sleeps), X, dataio.batch(4)), {}, r"custom\(fn\) in place of map\(sleeps\)", id="map"),
    pytest.param(slow_reads, (READER, dataio.batch(4)), {}, "DATAIO_CPU_WORKERS=16", id="read"),
    pytest.param(lambda: rows(60), (X.custom(sleeps), dataio.batch(4)), {}, "DATAIO_CPU_WORKERS=16", id="waiting-op"),
    pytest.param(lambda: rows(60), (X.custom(computes), dataio.batch(4)), {}, 'workers="process"', id="lock"),
    pytest.param(pictures, (JPEG.resize(h=32, w=32), dataio.batch(4)), {}, r"decode_image\(dct_scale=True\)", id="decode"),
    pytest.param(
        lambda: rows(60), (X.custom(sleeps), dataio.batch(4)), {"concurrency": 1}, 'concurrency="auto"', id="concurrency"
    ),
    pytest.param(lambda: rows(60), (X.custom(sleeps), dataio.batch(1, prefetch=1)), {}, "prefetch=2", id="prefetch"),
    pytest.param(
        lambda: rows(60), (X, dataio.batch(4), dataio.map(sleeps_per_batch)), {}, "sleeps_per_batch as an op", id="batch-map"
    ),
]


@pytest.mark.parametrize(("records", "stages", "options", "setting"), SETTINGS)
def test_the_report_says_what_to_change(records: Callable[[], Any], stages: Any, options: dict[str, Any], setting: str) -> None:
    report = reported(load(records(), *stages, **options))
    assert report.setting is not None
    assert re.search(setting, report.setting), report


def test_when_the_loop_is_slow_nothing_in_the_loader_is_to_be_changed() -> None:
    report = reported(load(rows(40), X, dataio.batch(4)), 2 * SLOW)
    assert report.setting is None
    assert "change: nothing in the loader" in str(report)


@pytest.mark.parametrize(("gil_share", "setting"), [(0.9, 'workers="process"'), (0.1, None), (None, None)])
def test_a_loop_that_competes_for_the_interpreter_lock_is_told_so(gil_share: float | None, setting: str | None) -> None:
    bound = dataio.pipeline(X, dataio.batch(4)).bind(rows(4))
    counted = RunStats(batches=10, delivered=40, consumer_busy_ns=900, consumer_wait_ns=100, worker_busy_ns=400)
    report = make_report(counted, Setup(bound.plan(), RunOptions(), "thread", gil_share))
    assert (report.bottleneck, report.setting) == ("consumer", setting)


def test_the_change_that_is_proposed_helps() -> None:
    before = reported(load(rows(60), X.custom(sleeps), dataio.batch(4), concurrency=1))
    assert before.setting == 'concurrency="auto"'
    after = reported(load(rows(60), X.custom(sleeps), dataio.batch(4), concurrency="auto"))
    assert after.rate > 1.1 * before.rate


# -------------------------------------------------------------------- traces


def events_of(path: Path) -> list[dict[str, Any]]:
    document = json.loads(path.read_text())
    assert document["displayTimeUnit"] == "ms"
    found: list[dict[str, Any]] = document["traceEvents"]
    return found


def lanes(events: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Spans by the name of the thread that they are drawn under."""
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    found = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            found[names[event["pid"], event["tid"]]].append(event)
    return found


def assert_nested(spans: list[dict[str, Any]]) -> None:
    """Of two spans of a thread that overlap, one holds the other."""
    open_until: list[int] = []
    for span in sorted(spans, key=lambda e: (e["ts"], -e["dur"])):
        begins, ends = round(span["ts"] * 1e3), round((span["ts"] + span["dur"]) * 1e3)
        while open_until and open_until[-1] <= begins:
            open_until.pop()
        assert not open_until or ends <= open_until[-1], span
        open_until.append(ends)


@EXECUTORS
def test_a_trace_shows_every_stage(tmp_path: Path, workers: str) -> None:
    path = tmp_path / "t.json"
    pipe = (X.custom(sleeps), dataio.batch(8), dataio.map(sleeps_per_batch))
    with load([*rows(39), BAD], *pipe, workers=workers) as loader:
        loader.trace(path)
        for _ in loader:
            time.sleep(SLOW)
    events = events_of(path)
    by_lane = lanes(events)
    assert set(by_lane) == {"source", "worker 0", "worker 1", "shape", "batch ops", "consumer"}
    work = by_lane["worker 0"] + by_lane["worker 1"]
    assert {e["name"] for e in by_lane["source"]} >= {"cuts batch 0", "hands out batch 4"}
    assert {e["name"] for e in by_lane["consumer"]} >= {"waits for batch 0", "training loop"}
    assert {e["name"] for e in work} >= {"morsel of batch 0", "npy", "custom"}
    assert {e["name"] for e in by_lane["batch ops"]} == {"sleeps_per_batch"}
    assert {e["name"] for e in events if e["ph"] == "C"} == {"batches in flight", "records in flight", "messages waiting"}
    morsels = [e for e in work if e["name"].startswith("morsel")]
    assert sum(e["args"]["records"] for e in morsels) == 40
    assert sum(e["args"]["failed"] for e in morsels) == 1
    assert all(e["dur"] >= 0 and e["ts"] >= 0 for spans in by_lane.values() for e in spans)
    for spans in by_lane.values():
        assert_nested(spans)


@EXECUTORS
def test_spans_of_workers_say_which_process_they_ran_in(tmp_path: Path, workers: str) -> None:
    with load(rows(32), X.custom(sleeps), dataio.batch(8), workers=workers) as loader:
        loader.trace(tmp_path / "t.json")
        list(loader)
    events = events_of(tmp_path / "t.json")
    pids = {e["pid"] for name, spans in lanes(events).items() for e in spans if name.startswith("worker")}
    titles = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert titles[os.getpid()] == f"dataio loader {os.getpid()}"
    if workers == "thread":
        assert pids == {os.getpid()}
    else:
        assert os.getpid() not in pids
        assert all(titles[pid] == f"dataio worker process {pid}" for pid in pids)


def test_spans_of_all_processes_lie_on_one_clock(tmp_path: Path) -> None:
    """A morsel is worked on after its batch was handed out and before the batch is put together."""
    with load(rows(32), X.custom(sleeps), dataio.batch(8), workers="process") as loader:
        loader.trace(tmp_path / "t.json")
        list(loader)
    spans = [e for e in events_of(tmp_path / "t.json") if e["ph"] == "X"]
    for number in range(4):
        cut, put = (next(e for e in spans if e["name"] == name) for name in (f"cuts batch {number}", f"batch {number}"))
        morsels = [e for e in spans if e["name"] == f"morsel of batch {number}"]
        assert morsels
        assert all(cut["ts"] + cut["dur"] <= e["ts"] and e["ts"] + e["dur"] <= put["ts"] for e in morsels)


def test_a_trace_is_whole_after_an_exception(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    with load([*rows(8), BAD], X, dataio.batch(4), on_failure="strict") as loader:
        loader.trace(path)
        with pytest.raises(BatchError):
            list(loader)
        assert "waits for batch 1" in {e["name"] for e in events_of(path)}


def train(loader: dataio.DataLoader) -> None:
    """A loop that raises."""
    with loader:
        for _ in loader:
            raise ZeroDivisionError


def test_a_trace_is_whole_when_the_loop_raises(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    loader = load(rows(8), X, dataio.batch(4))
    loader.trace(path)
    with pytest.raises(ZeroDivisionError):
        train(loader)
    assert "waits for batch 0" in {e["name"] for e in events_of(path)}


def test_a_trace_goes_on_from_pass_to_pass(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    with load(rows(8), X, dataio.batch(4)) as loader:
        loader.trace(path)
        list(loader)
        once = [e for e in events_of(path) if e["name"] == "batch 0"]
        list(loader)
    twice = [e for e in events_of(path) if e["name"] == "batch 0"]
    assert (len(once), len(twice)) == (1, 2)


def test_short_passes_do_not_write_the_trace_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Path] = []
    replace = Path.replace
    monkeypatch.setattr(Path, "replace", lambda self, to: (written.append(self), replace(self, to))[1])
    with load(rows(8), X, dataio.batch(4)) as loader:
        loader.trace(tmp_path / "t.json")
        for _ in range(100):
            list(loader)
    assert 3 <= len(written) < 50
    assert len([e for e in events_of(tmp_path / "t.json") if e["name"] == "batch 0"]) == 100


def test_a_second_recording_ends_the_first(tmp_path: Path) -> None:
    with load(rows(8), X, dataio.batch(4)) as loader:
        loader.trace(tmp_path / "first.json")
        list(loader)
        loader.trace(tmp_path / "second.json")
        list(loader)
    for name in ("first.json", "second.json"):
        assert len([e for e in events_of(tmp_path / name) if e["name"] == "batch 0"]) == 1


def test_recording_ends_with_its_block(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    with load(rows(8), X, dataio.batch(4)) as loader:
        with loader.trace(path):
            list(loader)
        before = path.read_bytes()
        list(loader)
    assert path.read_bytes() == before
    assert len([e for e in events_of(path) if e["name"] == "batch 0"]) == 1


def test_a_recording_may_begin_within_a_pass(tmp_path: Path) -> None:
    with load(rows(40), X, dataio.batch(4)) as loader:
        batches = iter(loader)
        for _ in range(3):
            next(batches)
        loader.trace(tmp_path / "t.json")
        list(batches)
    events = [e for e in events_of(tmp_path / "t.json") if e["ph"] == "X"]
    assert "waits for batch 9" in {e["name"] for e in events}
    assert "waits for batch 1" not in {e["name"] for e in events}
    assert all(e["ts"] >= 0 for e in events)


def test_a_trace_keeps_the_last_events_and_says_how_many_were_lost(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    with load(rows(200), X, dataio.batch(2)) as loader:
        loader.trace(path, events=50)
        list(loader)
    document = json.loads(path.read_text())
    kept = [e for e in document["traceEvents"] if e["ph"] != "M"]
    assert len(kept) == 50
    assert document["otherData"]["events lost"] > 100
    assert "batch 99" in {e["name"] for e in kept}


def test_a_trace_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    with load(rows(1), X, dataio.batch(1)) as loader:
        with pytest.raises(OSError, match="no/such/folder"):
            loader.trace(tmp_path / "no/such/folder/t.json")
        with pytest.raises(ValueError, match="at least 1 event, got 0"):
            loader.trace(tmp_path / "t.json", events=0)
        list(loader)
    assert list(tmp_path.iterdir()) == []


def test_a_trace_that_cannot_be_written_any_more_does_not_stop_training(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    loader = load(rows(4), X, dataio.batch(2))
    loader.trace(folder / "t.json")
    (folder / "t.json").unlink()
    folder.rmdir()
    with pytest.warns(RuntimeWarning, match="could not be written"), loader:
        assert len(list(loader)) == 2


# -------------------------------------------------------------------- the progress bar


@pytest.fixture(name="bars")
def _bars(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every bar that is made, drawn into a string."""
    made: list[Any] = []

    class Kept(tqdm.auto.tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **options: Any) -> None:
            self.closes = 0
            super().__init__(*args, **{"file": io.StringIO(), "mininterval": 0, **options})
            made.append(self)

        def close(self) -> None:
            self.closes += 1
            super().close()

    monkeypatch.setattr(tqdm.auto, "tqdm", Kept)
    return made


def test_the_bar_counts_records_and_shows_stall_and_errors(bars: list[Any]) -> None:
    with load([*rows(9), BAD], X, dataio.batch(4)) as loader:
        batches = list(loader.progress())
    (bar,) = bars
    assert [len(b) for b in batches] == [4, 4, 1]
    assert (bar.total, bar.n, bar.closes) == (10, 10, 1)
    assert "records/s" in bar.fp.getvalue()
    assert bar.postfix.startswith("stall ")
    assert bar.postfix.endswith("%, 1 errors")


@pytest.mark.parametrize(("busy", "record"), [(4 * SLOW, X), (0, X.custom(sleeps))], ids=["loop", "loader"])
def test_the_stall_share_tells_who_waits(bars: list[Any], busy: float, record: Any) -> None:
    with load(rows(40), record, dataio.batch(4)) as loader:
        for _ in loader.progress():
            time.sleep(busy)
    stall = int(bars[0].postfix.removeprefix("stall ").partition("%")[0])
    assert stall < 50 if busy else stall > 50


def test_the_bar_is_closed_on_break(bars: list[Any]) -> None:
    with load(rows(40), X, dataio.batch(4)) as loader:
        for _ in loader.progress():
            break
        assert bars[0].closes == 1
        assert len(list(loader)) == 10  # the pass was ended too


def test_the_bar_is_closed_on_an_error(bars: list[Any]) -> None:
    with load([*rows(4), BAD], X, dataio.batch(4), on_failure="strict") as loader, pytest.raises(BatchError):
        list(loader.progress())
    assert (bars[0].closes, bars[0].n) == (1, 4)


def test_each_pass_has_a_bar_of_its_own(bars: list[Any]) -> None:
    with load([*rows(5), BAD], X, dataio.batch(2)) as loader:
        for _ in range(2):
            list(loader.progress())
    assert [(bar.total, bar.n) for bar in bars] == [(6, 6), (6, 6)]
    assert bars[1].postfix.endswith("1 errors")


def test_batches_left_out_are_counted(bars: list[Any]) -> None:
    with load([*rows(2), BAD, BAD], X, dataio.batch(2), on_failure=0, emit_empty_batches=False) as loader:
        assert len(list(loader.progress())) == 1
    assert (bars[0].n, bars[0].total) == (4, 4)
    assert bars[0].postfix.endswith("2 errors")


def test_records_that_are_dropped_are_not_in_the_total(bars: list[Any]) -> None:
    with load(rows(10), X, dataio.batch(4, drop_last=True)) as loader:
        list(loader.progress())
    assert (bars[0].total, bars[0].n) == (8, 8)


def test_a_pass_that_is_resumed_begins_where_it_was(bars: list[Any]) -> None:
    with load(rows(10), X, dataio.batch(4)) as loader:
        next(iter(loader))
        state = loader.state_dict()
    with load(rows(10), X, dataio.batch(4)) as loader:
        loader.load_state_dict(state)
        list(loader.progress())
    assert (bars[0].initial, bars[0].n, bars[0].total) == (4, 10, 10)


@pytest.mark.parametrize(("shard", "total"), [({"id": 1, "of": 3, "pad": False}, 3), ({"id": 1, "of": 3, "pad": True}, 4)])
def test_the_total_of_a_shard_is_its_own(bars: list[Any], shard: dict[str, Any], total: int) -> None:
    with load(rows(10), X, dataio.batch(2), shard=shard) as loader:
        list(loader.progress())
    assert (bars[0].total, bars[0].n) == (total, total)


def test_an_unknown_total_is_left_open(bars: list[Any]) -> None:
    with load(lambda: iter(rows(6)), X, dataio.batch(4)) as loader:
        list(loader.progress())
    assert (bars[0].total, bars[0].n) == (None, 6)


def test_options_of_the_bar_are_those_of_tqdm(bars: list[Any]) -> None:
    with load(rows(4), X, dataio.batch(4)) as loader:
        list(loader.progress(desc="train", total=99, leave=False))
    assert (bars[0].desc, bars[0].total, bars[0].leave) == ("train", 99, False)
