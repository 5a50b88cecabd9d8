"""Threads and processes, one worker or several, any batch size or prefetch: the same values."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dataio

from .conftest import encoded, npy

pytestmark = pytest.mark.usefixtures("no_leftovers")

COUNT = 10
PICTURES = [encoded(16 + i % 3, 20 + i % 4, seed=i) for i in range(COUNT)]
FIXED = [encoded(16, 20, seed=i) for i in range(COUNT)]


def image(name: str = "image") -> Any:
    return dataio.slot(name).decode_image()


RANDOM = (image().random_crop(h=8, w=9).hflip(prob=0.5).vflip(prob=0.5),)
PLANS: dict[str, tuple[tuple[Any, ...], Callable[[], list[Any]]]] = {
    "bytes": ((dataio.slot("image").decode_bytes(),), lambda: list(PICTURES)),
    "crop": ((image().center_crop(h=8, w=9).normalize("imagenet"),), lambda: [{"image": p} for p in PICTURES]),
    "ragged": ((image(),), lambda: [{"image": p} for p in PICTURES]),
    "random": (RANDOM, lambda: [{"image": p} for p in PICTURES]),
    "own-seed": (RANDOM, lambda: [{"image": FIXED[0], "seed": 7 if i % 2 else None} for i in range(COUNT)]),
    "by-column": (
        (image().center_crop(h="h", w=9).pad(top=1, left="h", mode="reflect"),),
        lambda: [{"image": p, "h": 4 + i % 2} for i, p in enumerate(PICTURES)],
    ),
    "several-slots": (
        (image().random_crop(h=8, w=9), image("mask").random_crop(h=8, w=9), dataio.slot("n").passthrough()),
        lambda: [{"image": p, "mask": p, "n": {"i": i}} for i, p in enumerate(FIXED)],
    ),
    "arrays": (
        (dataio.slot("a").decode_npy().reshape(shape=(3, 2)).permute(axes=(1, 0)).cast(dtype="float64").flatten(),),
        lambda: [{"a": npy(np.arange(6, dtype=np.int16) + i)} for i in range(COUNT)],
    ),
    "text-objects": (
        (dataio.slot("t").decode(dataio.decoders.text(as_object=True)), dataio.slot("b").decode_bytes()),
        lambda: [{"t": f"é{i}".encode(), "b": b"xy"} for i in range(COUNT)],
    ),
    "bad-rows": ((image().center_crop(h=8, w=9),), lambda: [{"image": p if i % 3 else b"bad"} for i, p in enumerate(PICTURES)]),
}
def plain(value: Any) -> Any:
    """A slot's values as something that compares: type, shape and bytes of each row."""
    return [
        (row.dtype.name, row.shape, row.tobytes()) if isinstance(row, np.ndarray | np.generic) else row for row in value
    ]


def passes(
    stages: tuple[Any, ...], records: Any, *, size: int = 4, prefetch: int = 2, epochs: int = 2, seed: int = 3, **options: Any
) -> list[Any]:
    """Every row of every pass: slot by slot, with keys and errors (less the text that names a batch)."""
    out: list[Any] = []
    bound = dataio.pipeline(*stages, dataio.batch(size, prefetch=prefetch)).bind(records)
    with bound.run("numpy", seed=seed, on_failure=0, **options) as loader:
        for _ in range(epochs):
            rows: list[Any] = []
            for batch in loader:
                columns = [plain(batch[name]) for name in batch.slot_names]
                rows += zip(batch.keys, *columns)
                rows += [(e["record"], e["slot"], e["op"], e["message"]) for e in batch.errors]
            out.append(sorted(rows, key=lambda row: str(row[0])))
    return out


@pytest.fixture
def workers_of_pool(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    return lambda n: monkeypatch.setenv("DATAIO_CPU_WORKERS", str(n))


@pytest.mark.parametrize("plan", PLANS)
def test_every_executor_gives_the_same(plan: str, workers_of_pool: Callable[[int], None]) -> None:
    stages, make = PLANS[plan]
    workers_of_pool(1)
    expected = passes(stages, make(), workers="thread", size=COUNT, prefetch=1)
    assert len(expected[0]) == COUNT
    workers_of_pool(2)
    assert passes(stages, make(), workers="thread", size=3) == expected
    assert passes(stages, make(), workers="process", size=4) == expected


@pytest.mark.slow
def test_resizing_gives_the_same_in_processes(workers_of_pool: Callable[[int], None]) -> None:
    workers_of_pool(2)
    stages = (
        image("fixed").resize(h=9, w=7).normalize("unit"),
        image("random").random_resized_crop(h=9, w=7).hflip(),
    )
    records = [{"fixed": p, "random": p} for p in PICTURES]
    assert passes(stages, records, workers="thread") == passes(stages, records, workers="process", size=3)


@pytest.mark.parametrize("workers", ["thread", "process"])
def test_every_kind_of_source_gives_the_same(
    workers: str, tmp_path: Path, workers_of_pool: Callable[[int], None]
) -> None:
    workers_of_pool(2)
    paths = []
    for i, picture in enumerate(FIXED):
        paths.append(tmp_path / f"{i}.jpg")
        paths[-1].write_bytes(picture)
    keys = [str(i) for i in range(COUNT)]
    sources: list[Any] = [
        [{"image": p, "key": k} for p, k in zip(FIXED, keys)],
        [{"image": memoryview(p)} for p in FIXED],
        [{"image": np.frombuffer(p, np.uint8)} for p in FIXED],
        paths,
        [{"image": str(p)} for p in paths],
        pa.table({"image": pa.array(FIXED, pa.binary()), "key": keys}),
        pa.table({"image": pa.array(list(map(str, paths)))}),
    ]
    expected = passes(RANDOM, sources[0], workers="thread")
    for source in sources[1:] if workers == "thread" else sources[2::2]:  # starting processes takes its time
        assert passes(RANDOM, source, workers=workers) == expected


def test_the_seed_decides_the_draws() -> None:
    stages, make = PLANS["random"]
    first, second = passes(stages, make(), workers="thread", seed=3)
    assert passes(stages, make(), workers="thread", seed=3) == [first, second]
    assert first != second
    assert passes(stages, make(), workers="thread", seed=4)[0] != first


def test_a_records_own_seed_overrides_the_loaders() -> None:
    records = [{"image": FIXED[0], "seed": 11}] * COUNT
    draws = {row[1] for seed in (1, 2) for one in passes(RANDOM, records, workers="thread", seed=seed) for row in one}
    assert len(draws) == 1


def test_sibling_slots_draw_together() -> None:
    stages, make = PLANS["several-slots"]
    for one in passes(stages, make(), workers="thread"):
        assert all(row[1] == row[2] for row in one)


@pytest.mark.parametrize("workers", ["thread", "process"])
def test_large_values_in_both_directions(workers: str, workers_of_pool: Callable[[int], None]) -> None:
    """Worker and loader were both sending more than a socket holds, and neither read."""
    workers_of_pool(1)
    records = [{"x": bytes([i]) * (1_000_000 + i)} for i in range(6)]
    [one] = passes((dataio.slot("x").decode_bytes(),), records, workers=workers, size=2, epochs=1)
    assert [row[1] for row in one] == [("uint8", (1_000_000 + i,), bytes([i]) * (1_000_000 + i)) for i in range(6)]


@pytest.mark.parametrize("workers", ["thread", "process"])
def test_more_slots_than_one_message_had_room_for(workers: str, workers_of_pool: Callable[[int], None]) -> None:
    """Descriptors of more than 16 buffers were cut off."""
    workers_of_pool(1)
    names = [f"s{i}" for i in range(70)]
    slots = dataio.slots(names).using(dataio.chain().decode_image().center_crop(h=2, w=2))
    [one] = passes((slots,), [dict.fromkeys(names, FIXED[0])] * 2, workers=workers, epochs=1)
    assert len(set(one[0][1:])) == 1


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    size=st.integers(1, COUNT + 1),
    prefetch=st.integers(1, 5),
    count=st.integers(1, 3),
    workers=st.sampled_from(["thread", "thread", "process"]),
    order=st.sampled_from(["submit", "completion"]),
)
def test_any_cut_concatenates_to_the_same(size: int, prefetch: int, count: int, workers: str, order: str) -> None:
    stages, make = PLANS["random"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DATAIO_CPU_WORKERS", str(count))
        got = passes(stages, make(), workers=workers, size=size, prefetch=prefetch, order=order, epochs=1)
        assert got == passes(stages, make(), workers="thread", size=COUNT, epochs=1)


def test_libraries_keep_to_one_thread_in_a_worker_process() -> None:
    """OpenCV is imported after the worker has started: a limit on loaded modules alone missed it."""

    def threads(record: dict[str, Any]) -> Any:
        import cv2

        return cv2.getNumThreads()

    from dataio.engine import registry
    from dataio.engine.schema import OBJECT, TensorType

    key = ("decoder", "opencv_threads_probe")
    dataio.register_op(key[1], kind="decoder", infer=lambda given: TensorType(None, OBJECT))(lambda value: threads({}))
    try:
        plan = dataio.pipeline(getattr(dataio.slot("x"), f"decode_{key[1]}")(), dataio.batch(2))
        with plan.bind([{"x": b"a"}] * 2).run("numpy", workers="process") as loader:
            assert next(iter(loader))["x"] == [1, 1]
    finally:
        registry._specs.pop(key)  # type: ignore[call-overload]
