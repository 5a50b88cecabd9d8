"""Values in remote stores: fetched ahead of the workers, within bounds, and otherwise as if they lay on the disk."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dataio
from dataio.engine.actors import fetch as fetch_module
from dataio.engine.executors import requests as requests_module
from dataio.io.errors import AccessDeniedError, DeadlineError, TransferError
from dataio.io.store import forget_stores, register_store

from .conftest import encoded, npy
from .engine.helpers import plain
from .shelf import Shelf

pytestmark = pytest.mark.usefixtures("two_workers", "no_leftovers")

WORKERS = pytest.mark.parametrize("workers", ["thread", "process"])
N = 40
X = dataio.slot("x").decode_npy()


def value(i: int) -> np.ndarray:
    return np.full((2, 3), i, np.float32)


@pytest.fixture
def shelf() -> Iterator[Shelf]:
    made = Shelf()
    made.objects = {f"{i}.npy": npy(value(i)) for i in range(N)}
    register_store("shelf", lambda uri: made)
    yield made
    made.gate.set()
    forget_stores("shelf")


def uris(count: int = N) -> list[str]:
    return [f"shelf://{i}.npy" for i in range(count)]


def load(records: Any, *stages: Any, **options: Any) -> dataio.DataLoader:
    options = {"workers": "thread", "seed": 1, "on_failure": 0, **options}
    return dataio.pipeline(*(stages or (X, dataio.batch(4)))).bind(records).run("numpy", **options)


def taken(loader: dataio.DataLoader) -> list[Any]:
    """Keys, values and errors of each batch of one epoch."""
    with loader:
        return [(batch.keys, plain(batch["x"]), batch.errors) for batch in loader]


def threads(name: str) -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith(name)]


# ------------------------------------------------------------------------------------------------ what comes out


@WORKERS
def test_batches_are_those_of_local_files(shelf: Shelf, tmp_path: Path, workers: str) -> None:
    for key, data in shelf.objects.items():
        (tmp_path / key).write_bytes(data)
    noise = dataio.slot("x").decode_npy().gaussian_noise(std=1.0)
    local = taken(load([str(tmp_path / f"{i}.npy") for i in range(N)], noise, dataio.batch(4)))
    assert taken(load(uris(), noise, dataio.batch(4), workers=workers)) == local
    assert {name.rsplit("-", 1)[0] for name in shelf.threads} == {"dataio-request"}


FORMS: dict[str, Callable[[int], Any]] = {
    "uri": lambda i: f"shelf://{i}.npy",
    "mapping": lambda i: {"uri": f"shelf://{i}.npy"},
    "url": lambda i: {"url": f"shelf://{i}.npy"},
    "range": lambda i: {"uri": "shelf://all", "offset": i * 152, "size": 152},
    "second range": lambda i: {"uri": "shelf://all", "range": (i * 152, 152)},
}


@WORKERS
@pytest.mark.parametrize("form", FORMS)
def test_forms_of_remote_values(shelf: Shelf, form: str, workers: str) -> None:
    shelf.objects["all"] = b"".join(shelf.objects[f"{i}.npy"] for i in range(N))
    assert len(shelf.objects["all"]) == N * 152
    loader = load([{"x": FORMS[form](i)} for i in range(N)], workers=workers)
    with loader:
        values = [row for batch in loader for row in plain(batch["x"])]
        found = loader.stats()["fetch"]
    assert values == [plain(value(i)) for i in range(N)]
    assert (found["values"], found["bytes"]) == (N, N * 152)


def test_columns_of_uris(shelf: Shelf) -> None:
    for column in (pa.array(uris()), pa.array(uris()).dictionary_encode(), pa.array([{"path": None, "uri": u} for u in uris()])):
        loader = load(pa.table({"x": column}))
        with loader:
            values = [row for batch in loader for row in plain(batch["x"])]
            assert loader.stats()["fetch"]["values"] == N
        assert values == [plain(value(i)) for i in range(N)]


@WORKERS
def test_local_and_remote_values_in_one_batch(shelf: Shelf, tmp_path: Path, workers: str) -> None:
    (tmp_path / "here.npy").write_bytes(npy(value(7)))
    records = [uris()[0], npy(value(1)), str(tmp_path / "here.npy"), uris()[3]]
    loader = load([{"x": r} for r in records], workers=workers)
    with loader:
        (batch,) = loader
        assert plain(batch["x"]) == [plain(value(i)) for i in (0, 1, 7, 3)]
        assert loader.stats()["fetch"]["values"] == 2


@WORKERS
def test_two_slots_of_a_record(shelf: Shelf, workers: str) -> None:
    both = (dataio.slot("a").decode_npy(), dataio.slot("b").decode_npy())
    records = [{"a": u, "b": v} for u, v in zip(uris(), reversed(uris()))]
    with load(records, *both, dataio.batch(4), workers=workers) as loader:
        rows = [(a[0][0], b[0][0]) for batch in loader for a, b in zip(plain(batch["a"]), plain(batch["b"]))]
    assert rows == [(i, N - 1 - i) for i in range(N)]


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 99), size=st.integers(1, 9), prefetch=st.integers(1, 5), concurrency=st.sampled_from(["auto", 1, 3]))
def test_batches_do_not_depend_on_how_long_requests_take(
    shelf: Shelf, seed: int, size: int, prefetch: int, concurrency: Any
) -> None:
    times = random.Random(seed)
    shelf.seconds = lambda key: times.random() / 200
    loader = load(uris(), X, dataio.batch(size, prefetch=prefetch), concurrency=concurrency)
    assert [row for _, rows, _ in taken(loader) for row in rows] == [plain(value(i)) for i in range(N)]


def test_a_pass_is_resumed_between_fetched_batches(shelf: Shelf) -> None:
    whole = [keys for keys, _, _ in taken(load(uris()))]
    with load(uris()) as loader:
        batches = iter(loader)
        first = [next(batches).keys for _ in range(3)]
        state = json.loads(json.dumps(loader.state_dict()))
    with load(uris()) as loader:
        loader.load_state_dict(state)
        assert first + [batch.keys for batch in loader] == whole


# ------------------------------------------------------------------------------------------------------- failures

FAILURES: dict[str, Callable[[], Exception] | None] = {
    "ObjectNotFoundError": None,
    "AccessDeniedError": lambda: AccessDeniedError("refused", uri="shelf://5.npy", status=403),
    "DeadlineError": lambda: DeadlineError("too slow", uri="shelf://5.npy"),
    "TransferError": lambda: TransferError("gone", uri="shelf://5.npy"),
    "KeyError": lambda: KeyError("a bug of the store"),
}


@WORKERS
@pytest.mark.parametrize("kind", FAILURES)
def test_a_request_that_fails_is_the_error_of_its_record(shelf: Shelf, kind: str, workers: str) -> None:
    if (make := FAILURES[kind]) is None:
        del shelf.objects["5.npy"]
    else:
        shelf.refuses["5.npy"] = make
    found = taken(load(uris(), workers=workers))
    ((error,),) = (errors for _, _, errors in found if errors)
    assert {k: error[k] for k in ("index", "key", "record", "slot", "stage", "op", "uri", "type")} == {
        "index": 1, "key": "5", "record": 5, "slot": "x", "stage": "read", "op": "read", "uri": "shelf://5.npy", "type": kind,
    }  # fmt: skip
    assert [row[0][0] for _, rows, _ in found for row in rows] == [i for i in range(N) if i != 5]


def test_failures_count_and_are_written_down(shelf: Shelf, tmp_path: Path) -> None:
    for key in ("5.npy", "6.npy"):
        del shelf.objects[key]
    path = tmp_path / "bad.jsonl"
    taken(load(uris(), quarantine=str(path)))
    assert list(dataio.manifest(path)) == ["shelf://5.npy", "shelf://6.npy"]
    with load(uris(), max_failures=1) as loader, pytest.raises(RuntimeError, match="max_failures"):
        list(loader)


@WORKERS
def test_a_fetched_record_that_does_not_decode_names_its_uri(shelf: Shelf, workers: str) -> None:
    shelf.objects["5.npy"] = b"no array"
    ((error,),) = (errors for _, _, errors in taken(load(uris(), workers=workers)) if errors)
    assert (error["stage"], error["op"], error["uri"]) == ("decode", "npy", "shelf://5.npy")


class Deadly:
    """Kills the worker process that decodes a certain record, however it is cut."""

    def __call__(self, found: np.ndarray) -> np.ndarray:
        if found[0, 0] == 6:
            os.kill(os.getpid(), signal.SIGKILL)
        return found


def test_a_worker_that_dies_costs_one_fetched_record(shelf: Shelf) -> None:
    stages = dataio.slot("x").decode_npy().custom(Deadly()), dataio.batch(8)
    found = taken(load(uris(), *stages, workers="process"))
    assert [e["key"] for _, _, errors in found for e in errors] == ["6"]
    assert [row[0][0] for _, rows, _ in found for row in rows] == [i for i in range(N) if i != 6]
    assert shelf.requests == N, "what was fetched is sent again, not fetched again"


# --------------------------------------------------------------------------------------------------------- bounds


def test_nothing_begins_where_nothing_is_remote(tmp_path: Path) -> None:
    paths = [tmp_path / f"{i}.npy" for i in range(N)]
    for i, path in enumerate(paths):
        path.write_bytes(npy(value(i)))
    for records in (list(map(str, paths)), [path.as_uri() for path in paths], [npy(value(i)) for i in range(N)]):
        with load(records) as loader:
            for _ in loader:
                assert not threads("dataio-fetch")
                assert not threads("dataio-request")
            assert loader.stats()["fetch"]["values"] == 0


def test_requests_run_beside_each_other_and_ahead_of_the_workers(shelf: Shelf) -> None:
    shelf.seconds = lambda key: 0.02
    loader = load(uris(), X, dataio.batch(4, prefetch=8))
    with loader:
        for _ in loader:
            pass
        list(loader)
    assert shelf.most > 2 * 2, "more than there are workers"


@pytest.mark.parametrize("concurrency", [1, 3])
def test_concurrency_bounds_requests(shelf: Shelf, concurrency: int) -> None:
    shelf.seconds = lambda key: 0.002
    taken(load(uris(), concurrency=concurrency))
    assert shelf.most <= concurrency


def test_the_number_of_request_threads_is_bounded(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATAIO_IO_WORKERS", "1")
    shelf.seconds = lambda key: 0.005
    with load(uris(), X, dataio.batch(10, prefetch=4)) as loader:
        list(loader)
        list(loader)
    assert 1 < shelf.most <= requests_module.REQUESTS_PER_WORKER


def slow(found: np.ndarray) -> np.ndarray:
    time.sleep(0.003)
    return found


def test_bytes_ahead_are_bounded(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of four batches in flight only some tasks are fetched at a time."""
    size, bound = 100_000, 800_000
    shelf.objects = {f"{i}.npy": npy(np.zeros(size, np.uint8)) for i in range(N)}
    monkeypatch.setattr(fetch_module, "AHEAD_BYTES", bound)
    with load(uris(), dataio.slot("x").decode_npy().custom(slow), dataio.batch(8, prefetch=4)) as loader:
        assert sum(len(batch) for batch in loader) == N
        ahead = loader.stats()["fetch"]["ahead_bytes"]
    assert 2 * size < ahead["max"] <= bound * 1.01
    assert ahead["current"] == 0


def test_one_object_that_is_larger_than_the_bound_is_fetched(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_module, "AHEAD_BYTES", 100)
    assert [row[0][0] for _, rows, _ in taken(load(uris())) for row in rows] == list(range(N))


def test_the_memory_limit_counts_what_is_fetched(shelf: Shelf) -> None:
    size = 100_000
    shelf.objects = {f"{i}.npy": npy(np.zeros(size, np.uint8)) for i in range(N)}
    limit = 12 * size
    with load(uris(), X, dataio.batch(2, prefetch=8), max_bytes=limit) as loader:
        for batch in loader:
            del batch
            time.sleep(0.002)
        memory = loader.stats()["memory"]
    assert memory["total"]["max"] <= 1.1 * limit
    assert memory["fetched"]["max"] > size
    assert memory["fetched"]["current"] == 0


def test_decoders_that_read_parts_do_not_fetch_the_whole(shelf: Shelf, tmp_path: Path) -> None:
    arrays = {name: np.arange(1 << 18, dtype=np.float32) + i for i, name in enumerate("abcdefgh")}
    import safetensors.numpy

    shelf.objects["big"] = safetensors.numpy.save(arrays)
    stage = dataio.slot("x").decode_safetensors(tensor_key="c")
    with load([{"x": "shelf://big"}], stage, dataio.batch(1)) as loader:
        (batch,) = loader
        assert float(batch["x"][0][0]) == 2.0
        assert loader.stats()["fetch"]["values"] == 0
    assert shelf.nbytes < len(shelf.objects["big"]) / 2


# ------------------------------------------------------------------------------------------------------- leaving


@WORKERS
def test_leaving_the_loop_sends_no_more_requests(shelf: Shelf, workers: str) -> None:
    with load(uris(), X, dataio.batch(1, prefetch=2), workers=workers) as loader:
        for _ in loader:
            break
        sent = shelf.requests
        time.sleep(0.05)
        assert shelf.requests - sent <= 2
    assert shelf.requests < N


@pytest.mark.alone
def test_closing_does_not_wait_for_requests_that_hang(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATAIO_DRAIN_TIMEOUT_MS", "300")
    shelf.gate.clear()
    loader = load(uris())
    iterator = iter(loader)
    assert shelf.begun.wait(60)
    began = time.monotonic()
    loader.close()
    assert time.monotonic() - began < 10 * 0.3
    assert next(iterator, None) is None
    sent = shelf.requests
    shelf.gate.set()
    assert [row[0][0] for _, rows, _ in taken(load(uris(4))) for row in rows] == list(range(4))
    assert shelf.requests <= sent + 4


def test_the_consumer_is_not_held_up_by_another_batch_that_hangs(shelf: Shelf) -> None:
    hangs = threading.Event()
    shelf.seconds = lambda key: hangs.wait(60) * 0.0 if key == "39.npy" else 0.0
    with load(uris(), X, dataio.batch(4, prefetch=4)) as loader:
        batches = iter(loader)
        assert [next(batches).keys[0] for _ in range(9)] == [str(4 * i) for i in range(9)]
        hangs.set()
        assert next(batches).keys[-1] == "39"


def test_a_bug_in_reading_stops_the_pass(shelf: Shelf) -> None:
    class Stop(BaseException):
        pass

    def stop() -> Any:
        raise Stop

    shelf.refuses["3.npy"] = stop
    with load(uris()) as loader, pytest.raises(Stop):
        list(loader)


def test_two_loaders_share_the_threads(shelf: Shelf) -> None:
    with load(uris()) as first, load(uris()) as second:
        assert [a.keys for a, _ in zip(first, second)] == [[str(4 * i + k) for k in range(4)] for i in range(N // 4)]
        assert requests_module._shared.pool is not None
        assert requests_module._shared.users == 2
    assert requests_module._shared.pool is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_has_threads_of_its_own(shelf: Shelf) -> None:
    with load(uris()) as loader:
        next(iter(loader))
        pid = os.fork()
        if not pid:
            code = 1
            try:
                code = 0 if [r[0][0] for _, rows, _ in taken(load(uris(8))) for r in rows] == list(range(8)) else 2
            finally:
                os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0


# ------------------------------------------------------------------------------------------------------ looking


def test_stats_count_values_bytes_failures_and_waits(shelf: Shelf) -> None:
    del shelf.objects["5.npy"]
    with load(uris()) as loader:
        list(loader)
        found = loader.stats()
    fetch = found["fetch"]
    assert (fetch["values"], fetch["failed"], fetch["retries"]) == (N, 1, 0)
    assert fetch["bytes"] == found["bytes_read"] == (N - 1) * 152
    assert fetch["busy_ns"] > 0
    assert fetch["waiting"]["max"] >= 1
    assert fetch["in_flight"]["max"] == shelf.most
    assert fetch["waiting"]["current"] == fetch["in_flight"]["current"] == 0
    assert found["stages"]["read"]["count"] == N


def test_the_report_names_slow_requests(shelf: Shelf) -> None:
    shelf.seconds = lambda key: 0.01
    with load(uris(), X, dataio.batch(2, prefetch=2)) as loader:
        list(loader)
        report = loader.report()
    assert report.bottleneck == "fetch"
    assert report["fetch"].busy > 0.5
    assert report.setting is not None
    assert "prefetch" in report.setting


def test_the_report_asks_for_more_threads(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests_module, "REQUESTS_PER_WORKER", 1)
    monkeypatch.setenv("DATAIO_IO_WORKERS", "2")
    shelf.seconds = lambda key: 0.005
    with load(uris(), X, dataio.batch(8)) as loader:
        list(loader)
        report = loader.report()
    assert (report.bottleneck, report.setting) == ("fetch", "DATAIO_IO_WORKERS=4")


def test_a_trace_shows_requests(shelf: Shelf, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    with load(uris()) as loader, loader.trace(path):
        list(loader)
    events = json.loads(path.read_text())["traceEvents"]
    spans = [e for e in events if e["ph"] == "X" and e["name"] == "fetch"]
    assert len(spans) == N
    assert sum(e["args"]["bytes"] for e in spans) == N * 152
    assert [e for e in events if e["ph"] == "C" and e["name"] == "fetch"]


def test_the_bar_shows_what_is_fetched(shelf: Shelf, capsys: pytest.CaptureFixture[str]) -> None:
    with load(uris()) as loader:
        for _ in loader.progress(mininterval=0):
            pass
    assert "fetched" in capsys.readouterr().err


@pytest.mark.alone
def test_images_of_a_slow_store_keep_the_workers_busy(shelf: Shelf) -> None:
    """Reading in the workers would take the sum of all waits."""
    shelf.objects = {f"{i}.npy": encoded(64, 64, seed=i) for i in range(N)}
    shelf.seconds = lambda key: 0.01
    began = time.monotonic()
    with load(uris(), dataio.slot("x").decode_image(mode="rgb"), dataio.batch(8)) as loader:
        assert sum(map(len, loader)) == N
        waits = loader.stats()["fetch"]["busy_ns"] / 1e9
    assert time.monotonic() - began < waits / 2
