"""The ledger of a loader's memory: what it counts comes back to zero, and `max_bytes` bounds it."""

from __future__ import annotations

import gc
import io
import logging
import os
import signal
import subprocess
import sys
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import dataio
from dataio.engine.buffers import BufferPool
from dataio.engine.errors import BatchError
from dataio.engine.ledger import ACCOUNTS, BatchMemory, Charge, Ledger, parse_bytes

pytestmark = pytest.mark.usefixtures("two_workers")

BOTH = pytest.mark.parametrize("workers", ["thread", "process"])
SIDE = 64
ROW = SIDE * SIDE * 3
BATCH = 4 * ROW


def picture(height: int = SIDE, width: int = SIDE) -> bytes:
    """A grey JPEG: some hundred bytes for any size."""
    out = io.BytesIO()
    Image.new("RGB", (width, height), (90, 90, 90)).save(out, "JPEG")
    return out.getvalue()


def equal(count: int = 40) -> list[dict[str, Any]]:
    return [{"image": picture()} for _ in range(count)]


def ragged(count: int = 40) -> list[dict[str, Any]]:
    return [{"image": picture(SIDE + i % 3, SIDE)} for i in range(count)]


def failing(count: int = 40) -> list[dict[str, Any]]:
    return [{"image": b"no picture" if i % 3 == 0 else picture()} for i in range(count)]


def pipeline(*, prefetch: int = 4) -> Any:
    return dataio.pipeline(dataio.slot("image").decode_image(), dataio.batch(4, prefetch=prefetch))


def current(ledger: Ledger) -> dict[str, int]:
    stats = ledger.stats()
    return {name: stats[name]["current"] for name in (*ACCOUNTS, "total")}


def settled(ledger: Ledger, seconds: float = 10.0) -> dict[str, int]:
    """The accounts once they are empty, or as they are after a while: workers let go of dropped work when they get to it."""
    deadline = time.monotonic() + seconds
    while any(current(ledger).values()) and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.01)
    return current(ledger)


EMPTY = dict.fromkeys((*ACCOUNTS, "total"), 0)


# ------------------------------------------------------------------------------------------- nothing stays


@BOTH
@pytest.mark.parametrize("records", [equal, ragged, failing])
@pytest.mark.parametrize("max_bytes", [None, 2 * BATCH], ids=["unlimited", "limited"])
def test_all_accounts_are_empty_after_a_pass(workers: str, records: Any, max_bytes: int | None) -> None:
    with pipeline().bind(records()).run("numpy", workers=workers, max_bytes=max_bytes) as loader:
        for batch in loader:
            assert batch["image"] is not None
        del batch
        assert settled(loader._ledger) == EMPTY
        assert loader.stats()["memory"]["batches"]["max"] >= BATCH / 2


@BOTH
@pytest.mark.parametrize("records", [equal, ragged, failing])
@pytest.mark.parametrize("taken", [0, 3])
def test_all_accounts_are_empty_after_a_pass_that_is_left(workers: str, records: Any, taken: int) -> None:
    with pipeline().bind(records()).run("numpy", workers=workers) as loader:
        batches = iter(loader)
        for _ in range(taken):
            next(batches)
        del batches
        assert settled(loader._ledger) == EMPTY


@BOTH
def test_all_accounts_are_empty_after_a_strict_failure(workers: str) -> None:
    with pipeline().bind(failing()).run("numpy", workers=workers, on_failure="strict") as loader:
        with pytest.raises(BatchError):
            list(loader)
        assert settled(loader._ledger) == EMPTY


@BOTH
def test_closing_with_work_in_flight_leaves_nothing(workers: str) -> None:
    loader = pipeline().bind(equal(400)).run("numpy", workers=workers)
    next(iter(loader))
    loader.close()
    assert settled(loader._ledger) == EMPTY


def test_a_killed_worker_leaves_nothing() -> None:
    with pipeline().bind(equal(200)).run("numpy", workers="process", on_failure=0) as loader:
        for number, _ in enumerate(loader):
            if number == 5:
                os.kill(loader._resources.executor.pids[0], signal.SIGKILL)  # type: ignore[union-attr]
        del _
        assert settled(loader._ledger) == EMPTY


def test_batch_transforms_are_counted_too() -> None:
    pipe = dataio.pipeline(
        dataio.slot("image").decode_image(), dataio.batch(4), dataio.map(dataio.batch_transforms.batch_shuffle())
    )
    with pipe.bind(equal()).run("numpy") as loader:
        kept = list(loader)
        assert current(loader._ledger)["delivered"] >= len(kept) * BATCH
        del kept
        assert settled(loader._ledger) == EMPTY


# ------------------------------------------------------------------------------------- what is delivered


@BOTH
@pytest.mark.parametrize("records", [equal, ragged])
@pytest.mark.parametrize("keep", [lambda batch: batch, lambda batch: batch["image"]], ids=["batches", "tensors"])
def test_what_the_consumer_keeps_counts_as_delivered_until_it_drops_it(workers: str, records: Any, keep: Any) -> None:
    with pipeline().bind(records()).run(workers=workers) as loader:
        kept = [keep(batch) for batch in loader]
        gc.collect()
        held = current(loader._ledger)
        assert 10 * BATCH <= held["delivered"] <= 12 * BATCH
        assert held["delivered"] == held["total"]
        del kept[:5]
        gc.collect()
        assert current(loader._ledger)["delivered"] < 0.6 * held["delivered"]
        kept.clear()
        assert settled(loader._ledger) == EMPTY


def test_each_loader_has_its_own_ledger() -> None:
    with pipeline().bind(equal()).run("numpy") as one, pipeline().bind(equal()).run("numpy") as other:
        kept = list(one)
        assert len(list(other)) == len(kept)
        assert settled(other._ledger) == EMPTY
        assert current(one._ledger)["delivered"] >= len(kept) * BATCH


def test_records_held_back_by_the_source_are_counted() -> None:
    tokens = [{"x": np.full(100 + i % 7, i, np.int64)} for i in range(60)]
    pipe = dataio.pipeline(dataio.slot("x").passthrough(), dataio.bucket_by(lambda r: len(r["x"]), sizes=6))
    with pipe.bind(tokens).run("numpy") as loader:
        for _ in loader:
            pass
        assert loader.stats()["memory"]["source"]["max"] > 10 * 800
        assert settled(loader._ledger) == EMPTY


def test_bytes_that_were_read_are_counted_until_they_are_decoded(tmp_path: Any) -> None:
    path = tmp_path / "picture.jpg"
    path.write_bytes(picture())
    with pipeline().bind([{"image": str(path)}] * 40).run("numpy") as loader:
        for _ in loader:
            pass
        del _
        assert loader.stats()["memory"]["fetched"]["max"] >= path.stat().st_size
        assert settled(loader._ledger) == EMPTY


# ------------------------------------------------------------------------------------------- max_bytes


@BOTH
@pytest.mark.parametrize("records", [equal, ragged])
def test_a_limit_is_kept(workers: str, records: Any) -> None:
    limit = 4 * BATCH
    with pipeline(prefetch=16).bind(records(120)).run("numpy", workers=workers, max_bytes=limit) as loader:
        for _ in loader:
            time.sleep(0.001)  # slower than the loader: it would be 16 batches ahead
        memory = loader.stats()["memory"]
        assert memory["limit"] == limit
        assert memory["total"]["max"] <= 1.1 * limit  # encoded bytes at hand come on top


def test_a_limit_changes_nothing_that_is_delivered() -> None:
    def keys(**options: Any) -> list[list[str]]:
        with pipeline().bind(failing()).run("numpy", **options) as loader:
            return [batch.keys for batch in loader]

    assert keys(max_bytes=1) == keys(max_bytes="2MiB") == keys()


@BOTH
@pytest.mark.parametrize(
    ("limit", "why"), [(BATCH // 2, "one batch needs more"), (3 * BATCH, "the training loop keeps batches")]
)
def test_a_limit_that_cannot_be_kept_is_told_once_and_stops_nothing(
    workers: str, limit: int, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "dataio.memory")
    with pipeline().bind(equal()).run("numpy", workers=workers, max_bytes=limit) as loader:
        kept = list(loader)
    assert len(kept) == 10
    messages = [r.getMessage() for r in caplog.records if r.name == "dataio.memory"]
    assert len(messages) == 1
    assert why in messages[0]


def test_a_loop_that_drops_its_batches_is_told_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "dataio.memory")
    with pipeline().bind(equal(400)).run("numpy", max_bytes=3 * BATCH) as loader:
        for _ in loader:
            pass
    assert not [r for r in caplog.records if r.name == "dataio.memory"]


@pytest.mark.parametrize("end", ["close", "drop"])
def test_waiting_for_memory_ends_with_the_pass(end: str) -> None:
    loader = pipeline().bind(equal(400)).run("numpy", max_bytes=2 * BATCH)
    batches = iter(loader)
    kept = [next(batches), next(batches)]
    graph = loader._resources.graph
    assert graph is not None
    deadline = time.monotonic() + 10
    while not loader._ledger._waiting and time.monotonic() < deadline:
        time.sleep(0.001)
    assert loader._ledger._waiting
    if end == "close":
        loader.close()
    else:
        del batches
    assert not graph.alive
    kept.clear()
    assert settled(loader._ledger) == EMPTY


CHILD = """
import io, os, sys, time
import numpy as np
from PIL import Image
import dataio

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGESIZE")

def picture(side):
    out = io.BytesIO()
    Image.new("RGB", (side, side), (90, 90, 90)).save(out, "JPEG")
    return out.getvalue()

workers, kind, limit = sys.argv[1], sys.argv[2], int(sys.argv[3])
side = 1000
files = [picture(side + (16 * (i % 4) if kind == "ragged" else 0)) for i in range(4)]
records = [{"image": files[i % 4]} for i in range(400)]
pipe = dataio.pipeline(dataio.slot("image").decode_image(), dataio.batch(4, prefetch=32))
options = {} if limit == 0 else {"max_bytes": limit}
warm = dataio.pipeline(dataio.slot("image").decode_image(), dataio.batch(1, prefetch=1))
with warm.bind(records[:8]).run("numpy") as loader:
    for batch in loader:
        batch["image"]
del batch
before, peak = resident(), 0
with pipe.bind(records).run("numpy", workers=workers, **options) as loader:
    for number, batch in enumerate(loader):
        batch["image"]
        completed, since = -1, time.monotonic()
        while time.monotonic() - since < (1.0 if number == 2 else 0.02):  # until the loader does nothing more
            peak = max(peak, resident())
            if number == 2 and completed != (now := loader.diagnostics()["samples_completed"]):
                completed, since = now, time.monotonic()
            time.sleep(0.005)
        if number == 20:
            break
print(peak - before)
"""


def growth(workers: str, kind: str, limit: int) -> int:
    """Bytes by which the resident memory of a process grows that consumes slowly."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD, workers, kind, str(limit)],
        capture_output=True, text=True, timeout=120, check=False, env={**os.environ, "MALLOC_ARENA_MAX": "2"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.alone
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@BOTH
@pytest.mark.parametrize("kind", ["equal", "ragged"])
def test_a_slow_consumer_holds_memory_flat(workers: str, kind: str) -> None:
    limit = 64 << 20  # batches of 12 MB, 32 of them ahead were there no limit
    # Rows of ragged batches come from worker processes in messages, which are there beside them for a moment.
    assert growth(workers, kind, limit) < 2 * limit
    assert growth(workers, kind, 0) > 3 * limit


# ------------------------------------------------------------------------------------------ the ledger


ACTIONS = st.lists(
    st.tuples(st.sampled_from(["read", "allocate", "hold", "expect", "deliver", "finish", "drop"]), st.integers(1, 9000)),
    max_size=40,
)


@given(ACTIONS)
def test_accounts_are_sums_of_what_is_alive(actions: list[tuple[str, int]]) -> None:
    ledger, pool = Ledger(), BufferPool()
    memory = BatchMemory(ledger, 100)
    alive: list[tuple[Any, int]] = []
    expected, carried, account = 0, 100, "batches"
    for action, n in actions:
        match action:
            case "read":
                alive.append((ledger.read(n), n))
            case "allocate":
                block = memory.allocate(pool, (n,), np.dtype(np.uint8))
                alive.append((block, block.mapping.size))
                expected -= min(expected, block.mapping.size)
                del block
            case "hold":
                alive.append((memory.hold([np.zeros(n, np.uint8)]), n))
                expected -= min(expected, n)
            case "expect" if account == "batches":
                memory.expect(n)
                expected = n
            case "deliver" if account == "batches":
                memory.finished()
                memory.deliver()
                expected, carried, account = 0, 0, "delivered"
            case "finish":
                memory.finished()
                expected = carried = 0
            case "drop" if alive:
                alive.pop(n % len(alive))
        read = sum(n for what, n in alive if isinstance(what, Charge))
        held = sum(n for what, n in alive if not isinstance(what, Charge))
        now = current(ledger)
        assert now["fetched"] == carried + read
        assert now["batches"] + now["delivered"] == held + expected
        assert now[account] == held + expected
        assert now["total"] == sum(now[name] for name in ACCOUNTS) <= ledger.stats()["total"]["max"]
    alive.clear()
    del memory
    assert current(ledger) == EMPTY


def test_estimates_follow_what_was_seen() -> None:
    ledger = Ledger()
    assert ledger.expected(["x"], 10) is None
    ledger.note_rows("x", 1000, 10)
    assert ledger.expected(["x"], 5) == 500
    assert ledger.expected(["x", "y"], 5) is None
    assert ledger.expected([], 5) == 0


def test_a_trimmed_pool_keeps_what_it_may() -> None:
    pool = BufferPool()
    page = np.dtype(np.uint8)
    blocks = [pool.acquire((size,), page) for size in (4096, 8192, 65536)]
    blocks.clear()
    pool.trim(13_000)
    assert pool.stats()["resident_bytes"] == 4096 + 8192
    pool.trim(0)
    assert pool.stats()["resident_bytes"] == 0


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [(300, 300), ("300", 300), ("4GiB", 4 << 30), ("1.5 MB", 1_500_000), ("2kib", 2048), ("7b", 7), ("1T", 10**12)],
)
def test_bytes_are_read_as_written(text: Any, nbytes: int) -> None:
    assert parse_bytes("max_bytes", text) == nbytes


@pytest.mark.parametrize(
    ("value", "error"), [("4 pigs", ValueError), ("", ValueError), ("-1", ValueError), (0, ValueError), (1.5, TypeError), (True, TypeError)]
)
def test_a_limit_that_is_no_number_of_bytes_is_refused(value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="max_bytes"):
        pipeline().bind(equal(1)).run("numpy", max_bytes=value)
