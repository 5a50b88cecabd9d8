"""`workers="auto"`: threads until they are found to wait for the interpreter lock; and where worker processes run."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import psutil
import pytest

import dataio
from dataio.engine import gil, registry
from dataio.engine.executors import auto
from dataio.engine.schema import OBJECT, TensorType

from .conftest import encoded

pytestmark = [
    pytest.mark.alone,
    pytest.mark.usefixtures("two_workers", "no_leftovers"),
    pytest.mark.skipif(not gil.MEASURABLE, reason="threads' context switches are not counted here"),
]

CHOICE = "dataio-executor-choice"
PICTURE = encoded(600, 800, seed=1)
X = dataio.slot("x").decode_bytes()


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decide after a few samples: for tests of what follows, where the share is beyond doubt."""
    monkeypatch.setattr(auto, "_WARM_UP", 0)
    monkeypatch.setattr(auto, "_SLICES", 2)


def python_op(value: Any) -> Any:
    """Some hundred microseconds of Python on each value."""
    total = 0
    for i in range(4000):
        total += i
    return value


def numbers(count: int = 64) -> list[dict[str, Any]]:
    return [{"x": np.full(16, i, np.uint8).tobytes()} for i in range(count)]


def load(records: Any, *stages: Any, size: int = 8, **options: Any) -> dataio.DataLoader:
    return dataio.pipeline(*(stages or (X.custom(python_op),)), dataio.batch(size)).bind(records).run("numpy", **options)


def hold_the_lock(seconds: float) -> None:
    """What a trainer written in Python does."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


def chosen(loader: dataio.DataLoader) -> bool:
    """Whether the executor is settled."""
    about = loader.stats()["executor"]
    return about.get("gil_share") is not None and "being started" not in about["reason"]


def passes_until_chosen(loader: dataio.DataLoader, trainer: Callable[[], None] = lambda: None) -> list[Any]:
    """The first slot of every batch, of whole passes, the last of them begun when the executor was settled."""
    out: list[Any] = []
    last = False
    while not last:
        last = chosen(loader)
        for batch in loader:
            out.append(np.copy(batch[batch.slot_names[0]]))
            trainer()
    return out


# -------------------------------------------------------------------- the probe


def share(samples: int = 60) -> float:
    return sum(gil.gil_taken() for _ in range(samples)) / samples


def beside(work: Callable[[], Any]) -> float:
    """The share while another thread does this over and over."""
    over = threading.Event()

    def run() -> None:
        while not over.is_set():
            work()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        return share()
    finally:
        over.set()
        thread.join()


def test_the_probe_tells_python_from_native_code() -> None:
    matrix = np.ones((600, 600), np.float32)
    assert share() < 0.2
    assert beside(lambda: np.matmul(matrix, matrix)) < 0.3
    assert beside(lambda: hold_the_lock(0.01)) > 0.7


def test_the_probe_costs_little_more_than_its_sleeps() -> None:
    def cost(work: Callable[[], Any]) -> float:
        used = time.thread_time()
        work()
        return time.thread_time() - used

    def sleeps() -> None:
        for _ in range(50):
            time.sleep(gil.TICK_SECONDS)

    probes, bare = zip(*((cost(lambda: share(50)), cost(sleeps)) for _ in range(5)), strict=True)
    assert min(probes) < 3 * min(bare)


def test_processor_time_of_threads_is_what_they_used() -> None:
    busy = threading.Thread(target=hold_the_lock, args=(0.3,))
    idle = threading.Thread(target=time.sleep, args=(0.3,))
    busy.start()
    idle.start()
    time.sleep(0.2)
    assert gil.thread_seconds([busy]) > 5 * gil.thread_seconds([idle])
    busy.join()
    idle.join()
    assert gil.thread_seconds([busy, idle]) == 0


# -------------------------------------------------------------------- the choice


def test_a_python_op_moves_to_processes_and_gives_the_same() -> None:
    with load(numbers(), workers="auto") as loader:
        got = passes_until_chosen(loader, lambda: hold_the_lock(0.002))
        about = loader.stats()["executor"]
        assert about["kind"] == "process"
        assert about["gil_share"] > auto.LOCK_SHARE
        assert "lock is taken" in about["reason"]
        assert len(psutil.Process().children(recursive=True)) == 3
    with load(numbers(), workers="thread") as loader:
        expected = [np.copy(batch["x"]) for batch in loader]
    assert len(got) % len(expected) == 0
    assert all(np.array_equal(one, expected[i % len(expected)]) for i, one in enumerate(got))


def test_random_ops_draw_the_same_before_and_after_the_move(hasty: None) -> None:
    """Passes differ by their epoch; each equals that of threads, also the one in which the executor changed."""
    stages = dataio.slot("x").decode_image().random_crop(h=8, w=8).custom(python_op)
    records = [{"x": encoded(16, 20, seed=i)} for i in range(24)]
    with load(records, stages, workers="auto", seed=5) as loader:
        got = passes_until_chosen(loader)
        assert loader.stats()["executor"]["kind"] == "process"
    with load(records, stages, workers="thread", seed=5) as loader:
        expected = [np.copy(batch["x"]) for _ in range(len(got) // len(loader)) for batch in loader]
    assert len(got) == len(expected)
    assert all(map(np.array_equal, got, expected))


def test_a_native_decoder_stays_on_threads() -> None:
    stages = dataio.slot("x").decode_image().resize_short(256).center_crop(h=224, w=224)
    with load([{"x": PICTURE}] * 64, stages, workers="auto") as loader:
        passes_until_chosen(loader)
        about = loader.stats()["executor"]
        assert (about["kind"], about["gil_share"] < auto.LOCK_SHARE) == ("thread", True)
        assert "less than" in about["reason"]


def test_the_probe_ends_once_it_has_decided(hasty: None) -> None:
    with load(numbers(), X, size=4, workers="auto") as loader:
        passes_until_chosen(loader)
        for thread in threading.enumerate():
            if thread.name == CHOICE:
                thread.join()
        assert loader.stats()["executor"]["kind"] == "thread"
        list(loader)
        assert not [thread for thread in threading.enumerate() if thread.name == CHOICE]


def test_records_that_cost_less_than_sending_them_stay_on_threads(hasty: None) -> None:
    with load([{"x": b"abcd"}] * 4000, X, size=500, workers="auto") as loader:
        passes_until_chosen(loader, lambda: hold_the_lock(0.005))
        about = loader.stats()["executor"]
        assert about["kind"] == "thread"
        assert about["gil_share"] > auto.LOCK_SHARE
        assert "sending it would cost" in about["reason"]


def test_nothing_is_measured_where_there_is_nothing_to_do() -> None:
    with load([{"x": 1}] * 8, dataio.slot("x").passthrough(), workers="auto") as loader:
        list(loader)
        assert loader.stats()["executor"]["reason"] == "nothing to read, decode or transform"
        assert not [thread for thread in threading.enumerate() if thread.name == CHOICE]


def test_a_plan_that_cannot_be_pickled_stays_on_threads(hasty: None) -> None:
    lock = threading.Lock()

    def op(value: Any) -> Any:
        with lock:
            return python_op(value)

    with load(numbers(), X.custom(op), workers="auto") as loader:
        passes_until_chosen(loader)
        about = loader.stats()["executor"]
        assert about["kind"] == "thread"
        assert "cannot go to processes" in about["reason"]


def test_a_plan_that_workers_cannot_load_stays_on_threads(hasty: None) -> None:
    class Here:
        def __reduce__(self) -> Any:
            return int, ("no number",)

    here = Here()

    def op(value: Any) -> Any:
        return python_op(value) if here is not None else value

    with load(numbers(), X.custom(op), workers="auto") as loader:
        passes_until_chosen(loader)
        about = loader.stats()["executor"]
        assert about["kind"] == "thread"
        assert "no number" in about["reason"]
        assert not psutil.Process().children(recursive=True)


class Unsendable:
    """A reader that holds what cannot be pickled."""

    def __init__(self, data: bytes) -> None:
        self.data, self.lock = data, threading.Lock()

    def read_all(self) -> bytes:
        return self.data


def test_records_that_cannot_be_sent_are_worked_on_here(hasty: None) -> None:
    """What ran on threads must not fail because the loader changed its mind."""
    mixed = [{"x": Unsendable(record["x"]) if i % 3 else record["x"]} for i, record in enumerate(numbers())]
    with load(mixed, workers="auto", on_failure="strict") as loader:
        got = passes_until_chosen(loader)
        assert loader.stats()["executor"]["kind"] == "process"
    assert [int(v) for one in got[-8:] for v in one[:, 0]] == list(range(64))


@pytest.fixture
def lock_decoder() -> Iterator[str]:
    """The name of a decoder that gives what cannot be pickled."""
    name = "lock_probe"

    def decode(value: Any) -> Any:
        python_op(value)
        return threading.Lock()

    dataio.register_op(name, kind="decoder", infer=lambda given: TensorType(None, OBJECT))(decode)
    yield name
    registry._specs.pop(("decoder", name))


def test_results_that_cannot_be_sent_are_made_here(hasty: None, lock_decoder: str) -> None:
    slot = getattr(dataio.slot("x"), f"decode_{lock_decoder}")()
    with load([{"x": b"a"}] * 64, slot, workers="auto", on_failure="strict") as loader:
        while not chosen(loader):
            assert [type(value).__name__ for batch in loader for value in batch["x"]] == ["lock"] * 64
        assert loader.stats()["executor"]["kind"] == "process"
        assert [type(value).__name__ for batch in loader for value in batch["x"]] == ["lock"] * 64


def endless() -> Iterator[dict[str, Any]]:
    while True:
        yield from numbers()


@pytest.mark.parametrize("stage", ["measured", "started", "moved"])
def test_a_loader_may_be_closed_at_any_stage(hasty: None, stage: str) -> None:
    """`no_leftovers` looks for the probe, the fork server and the workers."""
    with load(endless, workers="auto") as loader:
        for _ in loader:
            about = loader.stats()["executor"]
            if (
                stage == "measured"
                or (stage == "started" and "being started" in about["reason"])
                or (stage == "moved" and about["kind"] == "process")
            ):
                break


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_the_environment_decides_for_auto(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATAIO_EXECUTOR", kind)
    with load(numbers(8), workers="auto") as loader:
        list(loader)
        assert loader.stats()["executor"] == {"kind": kind, "reason": f"DATAIO_EXECUTOR={kind}", "gil_share": None}


def test_an_executor_that_is_named_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATAIO_EXECUTOR", "process")
    with load(numbers(8), workers="thread") as loader:
        assert loader.stats()["executor"] == {}
        list(loader)
        assert loader.stats()["executor"]["kind"] == "thread"


# -------------------------------------------------------------------- niceness and cores


def workers_of(loader: dataio.DataLoader) -> list[psutil.Process]:
    next(iter(loader))
    executor: Any = loader._resources.executor
    return [psutil.Process(pid) for pid in executor.pids]


def test_worker_processes_are_nice_on_the_cores_they_were_given() -> None:
    cpus = sorted(os.sched_getaffinity(0))[-1:]
    before = psutil.Process().nice(), os.sched_getaffinity(0)
    with load(numbers(), worker_niceness=7, worker_cpus=cpus) as loader:
        workers = workers_of(loader)
        assert [worker.nice() for worker in workers] == [before[0] + 7] * 2
        assert [worker.cpu_affinity() for worker in workers] == [cpus] * 2
        workers[0].kill()
        while workers[0].is_running() and workers[0].status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.01)
        assert sum(map(len, loader)) == 64
        assert {worker.nice() for worker in workers_of(loader)} == {before[0] + 7}
        assert loader.stats()["executor"]["kind"] == "process"
    assert (psutil.Process().nice(), os.sched_getaffinity(0)) == before


def test_there_is_a_worker_for_each_of_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DATAIO_CPU_WORKERS")
    with load(numbers(), worker_cpus=sorted(os.sched_getaffinity(0))[:1]) as loader:
        assert len(workers_of(loader)) == 1


def test_without_options_workers_run_as_the_trainer_does() -> None:
    with load(numbers(), workers="process") as loader:
        for worker in workers_of(loader):
            assert worker.nice() == psutil.Process().nice()
            assert worker.cpu_affinity() == sorted(os.sched_getaffinity(0))


def test_placement_may_be_set_ahead() -> None:
    bound = dataio.pipeline(X, dataio.batch(2)).bind(numbers(4)).worker_niceness(3).worker_cpus(os.sched_getaffinity(0))
    with bound.run("numpy") as loader:
        assert {worker.nice() for worker in workers_of(loader)} == {psutil.Process().nice() + 3}


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"worker_niceness": -1}, ValueError, "worker_niceness must be in 0 to 19"),
    ({"worker_niceness": 20}, ValueError, "worker_niceness must be in 0 to 19"),
    ({"worker_niceness": True}, TypeError, "worker_niceness must be an integer"),
    ({"worker_niceness": "low"}, TypeError, "worker_niceness must be an integer"),
    ({"worker_cpus": 1}, TypeError, "worker_cpus must be core numbers"),
    ({"worker_cpus": "01"}, TypeError, "worker_cpus must be core numbers"),
    ({"worker_cpus": ["a", 1]}, TypeError, "worker_cpus must be core numbers"),
    ({"worker_cpus": []}, ValueError, "worker_cpus must be some of the cores"),
    ({"worker_cpus": [100_000]}, ValueError, "worker_cpus must be some of the cores"),
    ({"worker_cpus": [0], "workers": "thread"}, ValueError, "are for worker processes"),
    ({"worker_niceness": 5, "workers": "thread"}, ValueError, "are for worker processes"),
]


@pytest.mark.parametrize(("options", "error", "says"), WRONG)
def test_placement_is_checked_by_run(options: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        load(numbers(1), **options)
