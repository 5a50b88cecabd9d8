"""The random streams of records: counter-based, so that order, workers and executors do not matter."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import dataio
from dataio.engine.registry import register_op
from dataio.engine.rng import record_stream
from dataio.engine.schema import TensorType

from .helpers import npy, ops, plain, run

__all__ = ["ops"]


def test_known_answer() -> None:
    """NumPy's Philox with the documented key and counter, made afresh."""
    for seed, epoch, index in [(0, 0, 0), (7, 3, 12345), (2**64 - 1, 2**40, 2**63)]:
        key = np.array([seed, index], np.uint64)
        counter = np.array([0, 0, 0, epoch], np.uint64)
        fresh = np.random.Generator(np.random.Philox(key=key, counter=counter))
        expected = (fresh.random(5), fresh.integers(0, 1000, 3))
        stream = record_stream(seed, epoch, index)
        np.testing.assert_array_equal(stream.random(5), expected[0])
        np.testing.assert_array_equal(stream.integers(0, 1000, 3), expected[1])


def test_the_stream_is_pinned() -> None:
    """Checkpoints and papers depend on it: a change here is a change of every augmentation."""
    assert record_stream(42, 1, 7).integers(0, 2**32, 4).tolist() == [3563329560, 4247937544, 525104882, 187652798]


def test_own_seed_replaces_seed_epoch_and_index() -> None:
    draws = {tuple(record_stream(s, e, i, 99).random(3)) for s, e, i in [(0, 0, 0), (5, 2, 9), (1, 1, 1)]}
    assert len(draws) == 1
    assert tuple(record_stream(99, 0, 0).random(3)) not in draws


def test_a_stream_starts_clean_after_any_draws() -> None:
    first = record_stream(1, 2, 3).random(4)
    leftover = record_stream(1, 2, 4)
    leftover.integers(0, 2, dtype=np.uint32)  # half of a 64-bit word stays behind
    leftover.random(3)
    np.testing.assert_array_equal(record_stream(1, 2, 3).random(4), first)


def test_streams_do_not_depend_on_order_or_thread() -> None:
    expected = {i: record_stream(5, 0, i).random() for i in range(50)}
    found: dict[int, float] = {}

    def draw(indices: range) -> None:
        for i in indices:
            found[i] = record_stream(5, 0, i).random()

    threads = [threading.Thread(target=draw, args=(range(49 - k, -1, -4),)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == expected


def draw_number(value: np.ndarray, *, rng: np.random.Generator) -> np.ndarray:
    """A random number."""
    return np.array(rng.random())


def draw_float(given: TensorType) -> TensorType:
    return TensorType((), "float64")


@pytest.fixture
def drawing(ops: None) -> Any:
    register_op("draw_number", random=True, infer=draw_float)(draw_number)
    a = dataio.slot("a").decode_npy().apply(dataio.transforms.draw_number())  # type: ignore[attr-defined]
    b = dataio.slot("b").decode_npy().apply(dataio.transforms.draw_number())  # type: ignore[attr-defined]
    return a, b


def records(n: int = 10, **fields: Any) -> list[dict[str, Any]]:
    return [{"a": npy(i), "b": npy(i), **{k: v[i] for k, v in fields.items()}} for i in range(n)]


def drawn(pipe: Any, source: Any, slot: str = "a", **options: Any) -> list[float]:
    batches = run(pipe, source, **options)
    assert not any(b["errors"] for b in batches)
    return [v for b in batches for v in b["slots"][slot]]


def test_a_record_draws_the_same_whatever_runs_it(drawing: Any) -> None:
    expected = [record_stream(3, 0, i).random() for i in range(10)]
    for size, options in [(3, {}), (10, {}), (4, {"concurrency": 1}), (3, {"workers": "process"})]:
        assert drawn(dataio.pipeline(*drawing, dataio.batch(size)), records(), **options) == expected


def test_sibling_slots_draw_the_same(drawing: Any) -> None:
    pipe = dataio.pipeline(*drawing, dataio.batch(4))
    assert drawn(pipe, records(), "a") == drawn(pipe, records(), "b")


def test_epochs_and_seeds_differ(drawing: Any) -> None:
    pipe = dataio.pipeline(*drawing, dataio.batch(4))
    with pipe.bind(records()).run("numpy", seed=3) as loader:
        epochs = [[v for b in loader for v in plain(b["a"])] for _ in range(3)]
    assert epochs[1] == [record_stream(3, 1, i).random() for i in range(10)]
    assert len({tuple(e) for e in epochs}) == 3
    assert drawn(pipe, records(), seed=4) != epochs[0]


@pytest.mark.parametrize("workers", ["thread", "process"])
def test_a_records_own_seed(drawing: Any, workers: str) -> None:
    pipe = dataio.pipeline(*drawing, dataio.batch(4))
    source = records(seed=[5, None, np.int64(5), 0, 2**64 - 1, 7, 7, 8, 9, 10])
    found = drawn(pipe, source, workers=workers)
    assert found[0] == found[2] == record_stream(0, 0, 0, 5).random()
    assert found[1] == record_stream(3, 0, 1).random()
    assert found[4] == record_stream(0, 0, 0, 2**64 - 1).random()
    assert found[5] == found[6] != found[7]
