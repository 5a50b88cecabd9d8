"""The law of resuming: whatever happens between, records and tensors are those of the run that nothing interrupted."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dataio
from dataio.engine.errors import CheckpointError, SourceError
from dataio.engine.settings import CPU_WORKERS

N = 61
NOISE = dataio.slot("x").decode(dataio.decoders.array()).gaussian_noise(std=1.0)
RECORDS = [
    {"x": np.full(3, i, np.float32), "key": f"r{i}", "kind": i * 7 % 3, "n": 1 + i * 5 % 9} for i in range(N)
]


def halves(record: dict[str, Any]) -> list[dict[str, Any]]:
    return [{**record, "key": f"{record['key']}.{part}"} for part in range(record["n"] % 3)]


def odd(record: dict[str, Any]) -> bool:
    return bool(record["n"] % 2)


def drawn(record: dict[str, Any]) -> dict[str, Any]:
    return {**record, "x": np.asarray(record["x"], np.float32) + np.float32(random.random() + np.random.random())}


SOURCES: dict[str, Callable[[], Any]] = {
    "list": lambda: RECORDS,
    "factory": lambda: lambda: iter(RECORDS),
    "filtered": lambda: dataio.scan(RECORDS).filter(odd),
    "limited": lambda: dataio.scan(RECORDS).limit(40, offset=3),
    "table": lambda: pa.table({n: [r[n] for r in RECORDS] for n in ("key", "kind", "n")}
                              | {"x": pa.FixedSizeListArray.from_arrays(
                                  pa.array(np.concatenate([r["x"] for r in RECORDS])), 3)}),
    "filtered table": lambda: dataio.scan(SOURCES["table"]()).filter(dataio.cond.col("kind").eq(1)),
    "shuffled": lambda: dataio.records(RECORDS).shuffle(seed=5),
    "unseeded shuffle": lambda: dataio.records(RECORDS).shuffle(),
    "windowed": lambda: dataio.from_records_stream(RECORDS),
    "mixed": lambda: dataio.mix([(dataio.records(RECORDS[:20]), 1), (dataio.records(RECORDS[20:]).shuffle(), 3)], stop="all"),
    "repeated": lambda: dataio.records(RECORDS[:13]).shuffle().repeat(3),
    "expanded": lambda: dataio.records(RECORDS).flat_map_records(halves),
}  # fmt: skip
del SOURCES["windowed"]

SHAPES: dict[str, Any] = {
    "batch": dataio.batch(4),
    "drop_last": dataio.batch(4, drop_last=True),
    "group_by": dataio.group_by(lambda r: r["n"] // 4),
    "bucket_by": dataio.bucket_by("kind", 4),
    "bounded buckets": dataio.bucket_by("n", [2, 3, 4], boundaries=[3, 6], drop_last=True),
}
DEALT = ("batch", "drop_last", "bucket_by", "bounded buckets")


@dataclass(frozen=True)
class Step:
    """What one rank got in one step."""

    keys: tuple[str, ...]
    values: tuple[tuple[float, ...], ...]


def step_of(batch: Any) -> Step:
    return Step(tuple(batch.keys), tuple(tuple(row.tolist()) for row in batch["x"]))


def make(source: str, shape: str, *, rank: int = 0, ranks: int = 1, scale: int = 1, **options: Any) -> Any:
    stage = SHAPES[shape] if scale == 1 else dataio.batch(4 * scale)
    pipe = dataio.pipeline(dataio.map(drawn), NOISE, stage) if shape != "group_by" else dataio.pipeline(NOISE, stage)
    shard = {"id": rank, "of": ranks, "pad": False} if ranks > 1 else None
    return pipe.bind(SOURCES[source]()).run("numpy", shard=shard, on_failure=0, **options)


def run(
    source: str, shape: str, cuts: list[int], *, epochs: int = 2, state: Any = None, ranks: int = 1, **options: Any
) -> tuple[list[list[Step]], Any]:
    """Steps of each rank over `epochs` passes, stopped after each number of steps in `cuts` and begun anew there."""
    found: list[list[Step]] = [[] for _ in range(ranks)]
    for cut in [*cuts, None]:
        states = []
        for rank in range(ranks):
            with make(source, shape, rank=rank, ranks=ranks, **options) as loader:
                if state is not None:
                    loader.load_state_dict(json.loads(json.dumps(state)))
                left = cut
                while loader.state_dict()["epoch"] < epochs and left != 0:
                    for batch in loader:
                        found[rank].append(step_of(batch))
                        if left is not None:
                            left -= 1
                            if left == 0:
                                break
                states.append(loader.state_dict())
        counts = [s.pop("failures") for s in states]
        assert all(s == states[0] for s in states), "ranks that took the same steps have the same state"
        state = {**states[0], "failures": counts[0]}
    return found, state


_whole: dict[tuple[Any, ...], list[list[Step]]] = {}


def whole(source: str, shape: str, ranks: int = 1, **options: Any) -> list[list[Step]]:
    """The run that nothing interrupts."""
    key = (source, shape, ranks, *sorted(options.items()))
    if key not in _whole:
        _whole[key] = run(source, shape, [], ranks=ranks, seed=3, **options)[0]
    return _whole[key]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("source", SOURCES)
@given(cuts=st.lists(st.integers(0, 12), max_size=3))
@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
def test_cut_anywhere_and_resumed(source: str, shape: str, cuts: list[int]) -> None:
    assert run(source, shape, cuts, seed=3)[0] == whole(source, shape)


@pytest.mark.parametrize("shape", DEALT)
@pytest.mark.parametrize("source", ["list", "filtered", "shuffled", "mixed", "filtered table"])
@given(ranks=st.integers(2, 4), cuts=st.lists(st.integers(0, 4), max_size=2))
@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
def test_cut_anywhere_on_all_ranks(source: str, shape: str, ranks: int, cuts: list[int]) -> None:
    steps = "short"
    found = run(source, shape, cuts, ranks=ranks, seed=3, steps=steps)[0]
    assert found == whole(source, shape, ranks, steps=steps)


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("executor", ["thread", "process"])
@pytest.mark.parametrize("order", ["submit", "completion"])
def test_workers_executor_and_order_change_nothing(
    monkeypatch: pytest.MonkeyPatch, workers: int, executor: str, order: str
) -> None:
    expected = whole("shuffled", "batch")
    monkeypatch.setenv(CPU_WORKERS.name, str(workers))
    found = run("shuffled", "batch", [5, 3], seed=3, workers=executor, order=order)[0]
    if order == "submit":
        assert found == expected
    else:  # the same steps of each epoch, in another order
        half = len(expected[0]) // 2
        for part in (slice(0, half), slice(half, None)):
            assert sorted(found[0][part], key=repr) == sorted(expected[0][part], key=repr)


@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_another_number_of_ranks_continues_the_same_order(data: st.DataObject) -> None:
    """Global batches of 24: by 1, 2, 3 or 6 ranks, with batch sizes to match, changed at each cut."""
    sizes = {1: 6, 2: 3, 3: 2, 6: 1}  # ranks: batches of 4 records, times this
    expected = dict(
        pair for steps in whole("shuffled", "batch") for s in steps[: len(steps) // 2] for pair in zip(s.keys, s.values)
    )
    state: Any = None
    seen: dict[str, tuple[float, ...]] = {}
    while state is None or state["epoch"] == 0:
        ranks = data.draw(st.sampled_from(sorted(sizes)))
        taken = data.draw(st.integers(1, 2))
        before = len(seen)
        for rank in range(ranks):
            options = {"steps": "short", "seed": 3}
            with make("shuffled", "batch", rank=rank, ranks=ranks, scale=sizes[ranks], **options) as loader:
                if state is not None:
                    loader.load_state_dict(json.loads(json.dumps(state)))
                for _, batch in zip(range(taken + 1), loader):
                    step = step_of(batch)
                    assert not set(step.keys) & set(seen), "nothing comes twice"
                    seen.update(zip(step.keys, step.values))
                    if _ == taken - 1:
                        break
                after = loader.state_dict()
        if len(seen) == before:  # every rank found the end
            break
        state = after
    assert seen == expected


def test_a_smaller_world_resumes_where_its_batches_end() -> None:
    _, state = run("list", "batch", [], ranks=1, epochs=0)
    with make("list", "batch", rank=0, ranks=3, seed=3, steps="short") as loader:
        for _, _batch in zip(range(2), loader):
            pass
        state = loader.state_dict()
    assert state["samples_consumed"] == 24
    for ranks in (1, 2, 3):
        with make("list", "batch", rank=0, ranks=ranks, steps="short") as loader:
            loader.load_state_dict(state)
            assert next(iter(loader)).keys[0] == "r24"
    with make("list", "batch", rank=0, ranks=4, steps="short") as loader:
        with pytest.raises(ValueError, match=r"24 records.*have 16.*product divides 24"):
            loader.load_state_dict(state)
        loader.load_state_dict(state, align="down")
        assert next(iter(loader)).keys == ["r16", "r20", "r24", "r28"]


# ------------------------------------------------------------------------------------------------- the state


def test_a_state_is_small_json_without_a_world_size() -> None:
    states = []
    for ranks in (1, 2):
        with make("shuffled", "batch", ranks=ranks, seed=3) as loader:
            for _, _batch in zip(range(2 // ranks), loader):
                pass
            states.append(loader.state_dict())
    assert len(json.dumps(states[0])) < 2000
    for state in states:
        del state["global_batch"], state["batches"], state["failures"]
    assert states[0] == states[1]


def test_only_what_was_delivered_counts() -> None:
    with make("list", "batch") as loader:
        iterator = iter(loader)
        assert loader.state_dict()["samples_consumed"] == 0
        for count in range(1, 5):
            next(iterator)
            assert loader.state_dict()["samples_consumed"] == 4 * count


def test_failed_records_count_as_consumed() -> None:
    bad = [{"x": b"no array" if i % 3 == 1 else np.zeros(2), "key": str(i)} for i in range(12)]
    pipe = dataio.pipeline(dataio.slot("x").decode(dataio.decoders.array()), dataio.batch(4))
    with pipe.bind(bad).run("numpy") as loader:
        next(iter(loader))
        state = loader.state_dict()
        assert state["samples_consumed"] == 4
        loader.load_state_dict(state)
        assert [b.keys for b in loader] == [["5", "6"], ["8", "9", "11"]]


def test_a_full_pass_follows_the_resumed_one() -> None:
    with make("list", "batch") as loader:
        for _, _batch in zip(range(15), loader):
            pass
        loader.load_state_dict(loader.state_dict())
        assert [len(b) for b in loader] == [1]
        assert loader.state_dict()["epoch"] == 1
        assert sum(len(b) for b in loader) == N


def test_a_pass_given_up_starts_again_and_its_state_stays_until_then() -> None:
    with make("list", "batch") as loader:
        for _batch in loader:
            break
        assert loader.state_dict()["samples_consumed"] == 4
        assert next(iter(loader)).keys[0] == "r0"
        assert loader.state_dict()["samples_consumed"] == 4


@pytest.mark.parametrize(("source", "empty_passes"), [("list", 0), ("filtered", 1)])
def test_the_end_of_an_epoch_is_a_state_too(source: str, empty_passes: int) -> None:
    """Where the length is known the next epoch begins at once, else a pass finds that nothing is left."""
    with make(source, "batch") as loader:
        for _batch in loader:
            last = loader.state_dict()
    with make(source, "batch", ranks=3, steps="short") as other:
        other.load_state_dict(last)
        for _ in range(empty_passes):
            assert list(other) == []
        assert other.state_dict()["epoch"] == 1
        assert len(list(other)) > 1


def test_batches_delivered_out_of_order_are_not_repeated() -> None:
    """The first batch is slow: with `order="completion"` others are delivered, and saved, before it."""

    def slow(index: int) -> dict[str, bytes]:
        if index == 0:
            time.sleep(0.5)
        return {"x": index.to_bytes(2, "little")}

    pipe = dataio.pipeline(dataio.slot("x").decode_bytes(), dataio.batch(1))

    def loader(**options: Any) -> Any:
        records = dataio.from_callable(slow, length=12, slots=["x"])
        return pipe.bind(records).run("numpy", order="completion", **options)

    with loader() as first:
        before = [batch.keys[0] for _, batch in zip(range(2), first)]
        state = json.loads(json.dumps(first.state_dict()))
    assert "pycall:0" not in before
    assert state["samples_consumed"] == 0
    with loader() as second:
        second.load_state_dict(state)
        rest = iter(second)
        after = [next(rest).keys[0]]
        again = json.loads(json.dumps(second.state_dict()))
    with loader() as third:
        third.load_state_dict(again)
        after += [batch.keys[0] for batch in third]
    assert sorted(before + after) == sorted(f"pycall:{i}" for i in range(12))
    with loader(shard={"id": 0, "of": 2}) as other, pytest.raises(CheckpointError, match="out of order"):
        other.load_state_dict(state)


def test_a_source_that_failed_is_gone_on_with_where_it_failed() -> None:
    broken = [True]

    def records() -> Any:
        for i in range(10):
            if i == 6 and broken[0]:
                raise OSError("the disk is gone")
            yield {"x": np.zeros(1), "key": str(i)}

    pipe = dataio.pipeline(dataio.slot("x").decode(dataio.decoders.array()), dataio.batch(4))
    keys = []
    with pipe.bind(records).run("numpy") as loader:
        batches = iter(loader)
        keys += [next(batches).keys for _ in range(2)]
        with pytest.raises(SourceError):
            next(batches)
        state = loader.state_dict()
    broken[0] = False
    with pipe.bind(records).run("numpy") as loader:
        loader.load_state_dict(state)
        keys += [batch.keys for batch in loader]
    assert keys == [["0", "1", "2", "3"], ["4", "5"], ["6", "7", "8", "9"]]


def test_load_returns_what_state_gave() -> None:
    with make("shuffled", "bucket_by", seed=9) as loader:
        for _, _batch in zip(range(3), loader):
            pass
        state = loader.state_dict()
    with make("shuffled", "bucket_by", seed=1) as loader:
        loader.load_state_dict(state)
        assert loader.state_dict() == state


def test_an_indexed_source_is_not_read_again() -> None:
    asked: list[int] = []

    class Listed:
        def __len__(self) -> int:
            return 1_000_000

        def __getitem__(self, index: int) -> bytes:
            asked.append(index)
            return b"x"

    pipe = dataio.pipeline(dataio.slot("x").passthrough(), dataio.batch(10, prefetch=1))

    def loader() -> Any:
        return pipe.bind(dataio.records(Listed()).map_records(lambda x: {"x": x})).run("numpy")

    with loader() as first:
        next(iter(first))
        state = first.state_dict()
    state["samples_consumed"] = state["source"]["source"] = state["source"]["consumed"] = 900_000
    state["batches"] = 90_000
    asked.clear()
    with loader() as second:
        second.load_state_dict(state)
        next(iter(second))
    assert asked[0] == 900_000
    assert len(asked) < 100


def test_a_count_edited_by_hand_is_gone_by() -> None:
    with make("filtered", "batch") as loader:
        state = loader.state_dict()
        full = [b.keys for b in loader]
        state["samples_consumed"] = 8
        loader.load_state_dict(state)
        assert [b.keys for b in loader] == full[2:]
        state["samples_consumed"] = 10
        loader.load_state_dict(state, align="down")
        assert [b.keys for b in loader] == full[2:]


# ------------------------------------------------------------------------------------------------- refusals


def state_of(*stages: Any) -> dict[str, Any]:
    with dataio.pipeline(*stages).bind(RECORDS).run("numpy") as loader:
        next(iter(loader))
        found: dict[str, Any] = loader.state_dict()
        return found


@pytest.mark.parametrize("key", ["version", "epoch", "samples_consumed", "rng_seed", "pipeline_signature"])
def test_a_state_that_lacks_a_key_is_refused(key: str) -> None:
    state = state_of(NOISE, dataio.batch(4))
    del state[key]
    with make("list", "batch") as loader, pytest.raises(CheckpointError, match=f"lacks '{key}'"):
        loader.load_state_dict(state)


@pytest.mark.parametrize(
    ("stages", "said"),
    [
        ((NOISE.gaussian_noise(std=2.0), dataio.batch(4)), r"\+ .*std=2.0"),
        ((NOISE, dataio.batch(5)), "another batch size"),
        ((NOISE, dataio.batch(4, drop_last=True)), "drop_last"),
        ((dataio.map(odd), NOISE, dataio.batch(4)), "MapRecords odd"),
        ((NOISE, dataio.group_by("n")), "GroupBy"),
    ],
)
def test_another_plan_is_refused_and_the_message_says_what_differs(stages: tuple[Any, ...], said: str) -> None:
    state = state_of(NOISE, dataio.batch(4))
    with dataio.pipeline(*stages).bind(RECORDS).run("numpy") as loader, pytest.raises(ValueError, match=said):
        loader.load_state_dict(state)


def test_what_decides_nothing_may_differ() -> None:
    state = state_of(NOISE, dataio.batch(4))
    with dataio.pipeline(NOISE, dataio.batch(4, prefetch=2)).bind(RECORDS).run("numpy", concurrency=1) as loader:
        loader.load_state_dict({**state, "more": 1})
        assert next(iter(loader)).keys[0] == "r4"


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (lambda: dataio.records(RECORDS[:50]).shuffle(seed=1), r"over 61 records.*is now 50 records"),
        (lambda: dataio.records(RECORDS).shuffle(seed=2), r"seed=1.*seed=2"),
        (lambda: dataio.records(RECORDS).shuffle(seed=1, block=4), r"block=4"),
        (lambda: dataio.mix([(RECORDS, 1), (RECORDS, 2)], seed=1), r"mix"),
    ],
)
def test_another_order_of_the_source_is_refused(other: Any, said: str) -> None:
    pipe = dataio.pipeline(NOISE, dataio.batch(4))
    with pipe.bind(dataio.records(RECORDS).shuffle(seed=1)).run("numpy") as loader:
        next(iter(loader))
        state = loader.state_dict()
    with pipe.bind(other()).run("numpy") as loader:
        loader.load_state_dict(state)
        with pytest.raises(CheckpointError, match=said):
            next(iter(loader))


def test_open_buckets_fit_only_their_own_global_batch() -> None:
    with make("list", "bucket_by") as loader:
        next(iter(loader))
        state = loader.state_dict()
    with make("list", "bucket_by", ranks=2) as loader, pytest.raises(ValueError, match="product of size and ranks"):
        loader.load_state_dict(state)


@pytest.mark.parametrize("state", [None, [], "x", 3])
def test_what_is_no_state_is_refused(state: Any) -> None:
    with make("list", "batch") as loader, pytest.raises(TypeError):
        loader.load_state_dict(state)


def test_a_running_loader_takes_no_state() -> None:
    with make("list", "batch") as loader, ExitStack() as stack:
        iterator = iter(loader)
        stack.callback(next, iterator)
        with pytest.raises(RuntimeError, match="idle loader"):
            loader.load_state_dict(loader.state_dict())
    for call in (loader.state_dict, lambda: loader.load_state_dict({})):
        with pytest.raises(RuntimeError, match="closed"):
            call()
