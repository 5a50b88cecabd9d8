"""Shards: which records a rank gets, how many steps it takes, and who tells it which rank it is."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dataio
from dataio.cond import col

from .conftest import npy

pytestmark = pytest.mark.usefixtures("two_workers", "no_leftovers")

X = dataio.slot("x").decode_npy()
NOISE = X.gaussian_noise(std=1.0)
Make = Callable[[int], Any]


def records(count: int) -> list[dict[str, Any]]:
    """Records 0, 1, ...; `kind` cycles through 0, 1, 2 and `n` through 1 to 9."""
    return [{"x": npy(np.full(2, i, np.float32)), "key": str(i), "kind": i % 3, "n": 1 + i * 5 % 9} for i in range(count)]


def table(count: int) -> pa.Table:
    found = records(count)
    kinds = {"key": pa.string(), "kind": pa.int64(), "n": pa.int64(), "x": pa.binary()}
    return pa.table({name: pa.array([r[name] for r in found], kind) for name, kind in kinds.items()})


def odd(record: dict[str, Any]) -> bool:
    return bool(record["n"] % 2)


SOURCES: dict[str, Make] = {
    "list": records,
    "generators": lambda count: lambda: iter(records(count)),
    "filtered": lambda count: dataio.scan(records(count)).filter(odd),
    "table": table,
    "filtered table": lambda count: dataio.scan(table(count)).filter(col("n").gt(4)),
    "shuffled": lambda count: dataio.records(records(count)).shuffle(),
}
SIZED = ("list", "table", "shuffled")


def kept(source: str, count: int) -> list[str]:
    """Keys of the records that a source gives, in the order of `records`."""
    conditions: dict[str, Callable[[int], bool]] = {"filtered": lambda n: n % 2 == 1, "filtered table": lambda n: n > 4}
    condition = conditions.get(source, lambda n: True)
    return [r["key"] for r in records(count) if condition(r["n"])]


def load(source: Any, *stages: Any, rank: int = 0, of: int = 1, pad: bool = True, **options: Any) -> dataio.DataLoader:
    options = {"seed": 3, **options}
    return dataio.pipeline(*stages).bind(source).run("numpy", shard={"id": rank, "of": of, "pad": pad}, **options)


def keys(source: Any, *stages: Any, **options: Any) -> list[list[str]]:
    """The keys of each batch of one epoch."""
    with load(source, *(stages or (X, dataio.batch(3))), **options) as loader:
        return [batch.keys for batch in loader]


def all_ranks(source: Any, *stages: Any, of: int, **options: Any) -> list[list[list[str]]]:
    return [keys(source, *stages, rank=rank, of=of, **options) for rank in range(of)]


def flat(batches: list[list[str]]) -> list[str]:
    return [key for batch in batches for key in batch]


# ---------------------------------------------------------------------------------------------- what `shard=` takes


@pytest.mark.parametrize(
    ("shard", "said"),
    [
        ({}, "lacks id, of"),
        ({"id": 0}, "lacks of"),
        ({"of": 2}, "lacks id"),
        ({"id": 0, "of": 2, "rank": 0}, r"unknown keys \['rank'\]"),
        ({"id": 2, "of": 2}, r"\[0, 2\), got 2"),
        ({"id": -1, "of": 2}, r"got -1"),
        ({"id": 0, "of": 0}, "at least 1, got 0"),
        ("automatic", "got 'automatic'"),
    ],
)
def test_a_shard_out_of_range_is_refused(shard: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        dataio.pipeline(X, dataio.batch(3)).bind(records(4)).run("numpy", shard=shard)


@pytest.mark.parametrize(
    "shard",
    [
        {"id": True, "of": 2},
        {"id": 0, "of": True},
        {"id": 0.0, "of": 2},
        {"id": 0, "of": "2"},
        {"id": 0, "of": None},
        {"id": 0, "of": 2, "sticky": 1},
        {"id": 0, "of": 2, "pad": 0},
        (0, 2),
        7,
    ],
    ids=repr,
)
def test_a_shard_of_another_type_is_refused(shard: Any) -> None:
    with pytest.raises(TypeError):
        dataio.pipeline(X, dataio.batch(3)).bind(records(4)).run("numpy", shard=shard)


def test_a_shard_spec_is_checked_when_it_is_made_and_takes_numpy_integers() -> None:
    with pytest.raises(ValueError, match=r"\[0, 2\)"):
        dataio.ShardSpec(id=2, of=2)
    with pytest.raises(TypeError, match="bool"):
        dataio.ShardSpec(id=0, of=2, pad=np.bool_(True))
    spec = dataio.ShardSpec(id=np.int64(1), of=np.int32(2))
    assert spec == dataio.ShardSpec(id=1, of=2, sticky=True, pad=True)


def test_a_shard_spec_and_a_mapping_are_the_same() -> None:
    pipe = dataio.pipeline(X, dataio.batch(3)).bind(records(10))
    with pipe.run("numpy", shard=dataio.ShardSpec(id=1, of=3)) as spec, pipe.shard({"id": 1, "of": 3}).run("numpy") as given:
        assert [b.keys for b in spec] == [b.keys for b in given] == [["1", "4", "7"], ["7", "7", "7"]]


@pytest.mark.parametrize("stage", [dataio.group_by("kind"), dataio.collate()], ids=["group_by", "collate"])
def test_stages_without_a_common_size_cannot_be_dealt_out(stage: Any) -> None:
    with pytest.raises(ValueError, match=r"shard= needs batch\(\)"):
        load(records(4), X, stage, of=2)


@pytest.mark.parametrize("steps", ["even", "", 1, True])
def test_unknown_steps_are_refused(steps: Any) -> None:
    with pytest.raises(ValueError, match="steps must be one of 'pad', 'drop', 'short'"):
        load(records(4), X, dataio.batch(2), of=2, steps=steps)


def test_one_shard_is_no_sharding() -> None:
    pipe = dataio.pipeline(NOISE, dataio.batch(3)).bind(records(10))
    with pipe.run("numpy", seed=3) as plain, load(records(10), NOISE, dataio.batch(3)) as one:
        assert len(plain) == len(one) == 4
        for expected, batch in zip(plain, one, strict=True):
            assert batch.keys == expected.keys
            np.testing.assert_array_equal(batch["x"], expected["x"])


# ---------------------------------------------------------------------------------------------- who gets what


def test_the_documented_example() -> None:
    assert all_ranks(records(10), of=3) == [
        [["0", "3", "6"], ["9", "9", "9"]],
        [["1", "4", "7"], ["7", "7", "7"]],
        [["2", "5", "8"], ["8", "8", "8"]],
    ]


def test_without_pad_each_shard_has_what_it_has() -> None:
    assert all_ranks(records(11), of=3, pad=False) == [
        [["0", "3", "6"], ["9"]],
        [["1", "4", "7"], ["10"]],
        [["2", "5", "8"]],
    ]


def test_without_pad_drop_last_is_judged_by_each_shard() -> None:
    stages = X, dataio.batch(2, drop_last=True)
    assert all_ranks(records(10), *stages, of=3, pad=False) == [[["0", "3"], ["6", "9"]], [["1", "4"]], [["2", "5"]]]


@given(count=st.integers(0, 40), of=st.integers(1, 5), size=st.integers(1, 5), drop_last=st.booleans(), pad=st.booleans())
@settings(max_examples=60, deadline=None)
def test_record_r_belongs_to_shard_r_mod_of(count: int, of: int, size: int, drop_last: bool, pad: bool) -> None:
    for rank in range(of):
        own = [str(i) for i in range(rank, count, of)]
        stages = X, dataio.batch(size, drop_last=drop_last)
        if pad and of > 1 and count and not own:
            continue  # see the test of an empty shard
        found = keys(records(count), *stages, rank=rank, of=of, pad=pad)
        if pad and of > 1:
            whole = math.ceil(math.ceil(count / of) / size) * size
            assert flat(found) == own + own[-1:] * (whole - len(own))
            assert all(len(batch) == size for batch in found)
        else:
            assert flat(found) == (own[: len(own) // size * size] if drop_last else own)


@given(
    count=st.integers(0, 30),
    of=st.integers(1, 4),
    size=st.integers(1, 4),
    drop_last=st.booleans(),
    pad=st.booleans(),
    steps=st.sampled_from([None, "pad", "drop", "short"]),
)
@settings(max_examples=60, deadline=None)
def test_len_is_the_number_of_batches(count: int, of: int, size: int, drop_last: bool, pad: bool, steps: Any) -> None:
    for rank in range(of):
        options = {"rank": rank, "of": of, "pad": pad, "steps": steps}
        padded = steps == "pad" or (steps is None and pad and of > 1)
        with load(records(count), X, dataio.batch(size, drop_last=drop_last), **options) as loader:
            if padded and 0 < count <= rank:
                assert len(loader) == 1
            else:
                assert len(list(loader)) == len(loader)


@pytest.mark.parametrize("source", ["generators", "filtered", "filtered table"])
def test_an_unknown_length_has_no_len(source: str) -> None:
    with load(SOURCES[source](20), X, dataio.batch(2), of=2) as loader, pytest.raises(TypeError, match="not known"):
        len(loader)


@pytest.mark.parametrize("source", ["list", "generators"])
def test_a_padded_shard_without_a_record_says_so_at_the_first_step(source: str) -> None:
    with load(SOURCES[source](2), X, dataio.batch(3), rank=2, of=4) as loader:
        if source == "list":
            assert len(loader) == 1
        with pytest.raises(ValueError, match=r"shard 2 of 4 has no record to repeat: there are only 2 records"):
            next(iter(loader))


@pytest.mark.parametrize("steps", [None, "pad", "drop", "short"])
@pytest.mark.parametrize("source", SOURCES)
def test_no_records_are_no_steps(source: str, steps: Any) -> None:
    assert all_ranks(SOURCES[source](0), of=3, steps=steps) == [[], [], []]


def test_an_indexed_source_is_asked_only_for_the_shard() -> None:
    asked: list[int] = []

    class Listed:
        def __len__(self) -> int:
            return 100

        def __getitem__(self, index: int) -> dict[str, Any]:
            asked.append(index)
            return {"x": npy(np.zeros(1)), "key": str(index)}

    keys(dataio.records(Listed()), X, dataio.batch(4), rank=1, of=4)
    assert sorted(set(asked)) == list(range(1, 100, 4))


# ---------------------------------------------------------------------------------------------- steps


STAGES: dict[str, tuple[Any, ...]] = {
    "batch": (X, dataio.batch(3)),
    "bucket_by": (X, dataio.bucket_by("kind", 3)),
    "bounded buckets": (X, dataio.bucket_by("n", [2, 3, 4], boundaries=[3, 6])),
    "pack": (X, dataio.pack(12, size=2, tokens=lambda r: 2, open_rows=2)),
}


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("source", ["list", "generators", "filtered", "table", "filtered table"])
@pytest.mark.parametrize("steps", ["pad", "drop", "short"])
@given(count=st.integers(0, 70), of=st.integers(2, 4))
@settings(max_examples=6, deadline=None)
def test_all_ranks_take_equally_many_steps(stage: str, source: str, steps: str, count: int, of: int) -> None:
    expected = kept(source, count)
    if steps == "pad" and stage == "batch" and 0 < len(expected) < of:
        return  # a shard without a record has none to repeat
    found = all_ranks(SOURCES[source](count), *STAGES[stage], of=of, steps=steps)
    assert len({len(batches) for batches in found}) == 1
    delivered = [key for rank in found for batch in rank for key in batch]
    if steps == "short":
        assert sorted(delivered) == sorted(expected), "each record comes once"
    elif steps == "drop":
        assert len(set(delivered)) == len(delivered), "nothing comes twice"
        assert set(delivered) <= set(expected)
    else:
        assert set(delivered) == set(expected), "nothing is lost"
        own = [set(flat(rank)) for rank in found]
        once = [key for rank in found for key in dict.fromkeys(flat(rank))]
        if stage == "batch":
            assert sum(map(len, own)) == len(expected), "a rank repeats records of its own"
        else:  # one batch of each bucket, or the last rows, may be another rank's
            assert len(once) - len(expected) <= 3 * of * 3
    if stage != "pack" and steps != "short":
        sizes = {len(batch) for rank in found for batch in rank}
        assert sizes <= ({3} if stage != "bounded buckets" else {2, 3, 4})


@pytest.mark.parametrize("source", ["list", "filtered", "table", "filtered table"])
@given(count=st.integers(0, 60), of=st.integers(2, 4), size=st.integers(1, 4))
@settings(max_examples=10, deadline=None)
def test_step_by_step_the_ranks_together_are_the_global_order(source: str, count: int, of: int, size: int) -> None:
    """Batches of one process, as large as those of all ranks together, hold the same records."""
    whole = keys(SOURCES[source](count), X, dataio.batch(size * of))
    ranks = all_ranks(SOURCES[source](count), X, dataio.batch(size), of=of, steps="short")
    for batch, parts in zip(whole, zip(*ranks, strict=True), strict=True):
        assert [batch[rank::of] for rank in range(of)] == list(parts)


def test_drop_leaves_the_last_global_batch_out_everywhere() -> None:
    assert all_ranks(records(11), of=3, steps="drop") == [[["0", "3", "6"]], [["1", "4", "7"]], [["2", "5", "8"]]]


def test_short_gives_a_rank_without_records_an_empty_batch() -> None:
    assert all_ranks(records(10), of=3, steps="short")[1:] == [[["1", "4", "7"], []], [["2", "5", "8"], []]]


def test_an_empty_step_is_a_batch_under_every_failure_policy() -> None:
    for policy in ("skip", "strict", 2):
        with load(records(10), X, dataio.batch(3), rank=2, of=3, steps="short", on_failure=policy) as loader:
            *_, last = loader
            assert len(last) == 0
            assert last.errors == []


def test_pad_without_a_shard_fills_the_last_batch() -> None:
    assert keys(records(4), steps="pad") == [["0", "1", "2"], ["3", "3", "3"]]


def test_a_bad_record_is_reported_by_one_rank() -> None:
    def fussy(record: dict[str, Any]) -> dict[str, Any]:
        if record["key"] in {"4", "5", "18"}:
            raise ValueError("bad")
        return record

    for stages in STAGES.values():
        found: list[int] = []
        for rank in range(2):
            with load(records(19), dataio.map(fussy), *stages, rank=rank, of=2, steps="short", on_failure=0) as loader:
                found += [e["record"]["key"] if isinstance(e["record"], dict) else e["record"] for b in loader for e in b.errors]
        assert len(found) == 3


# ---------------------------------------------------------------------------------------------- values


def values(source: Any, *stages: Any, **options: Any) -> dict[str, list[float]]:
    """What each record became, over two epochs."""
    found: dict[str, list[float]] = {}
    with load(source, *stages, **options) as loader:
        for epoch in range(2):
            for batch in loader:
                for key, row in zip(batch.keys, batch["x"]):
                    found[f"{key} in {epoch}"] = row.tolist()
    return found


@pytest.mark.parametrize("source", [*SIZED, "filtered", "filtered table"])
@pytest.mark.parametrize("stage", [dataio.batch(3), dataio.bucket_by("kind", 2)], ids=["batch", "bucket_by"])
def test_random_ops_give_a_record_the_same_tensor_in_any_world(source: str, stage: Any) -> None:
    alone = values(SOURCES[source](23), NOISE, stage)
    assert len(alone) == 2 * len(kept(source, 23))
    for of in (2, 3, 5):
        together: dict[str, list[float]] = {}
        for rank in range(of):
            together |= values(SOURCES[source](23), NOISE, stage, rank=rank, of=of, steps="short")
        assert together == alone


@pytest.mark.parametrize(("columns", "rows"), [("table", "list"), ("filtered table", "filtered list")])
@pytest.mark.parametrize("steps", ["pad", "drop", "short"])
def test_columns_and_rows_are_dealt_out_alike(columns: str, rows: str, steps: str) -> None:
    source = records(23) if rows == "list" else dataio.scan(records(23)).filter(col("n").gt(4))
    for rank in range(3):
        options = {"rank": rank, "of": 3, "steps": steps}
        assert values(SOURCES[columns](23), NOISE, dataio.batch(2), **options) == values(
            source, NOISE, dataio.batch(2), **options
        )


def test_a_record_without_a_key_is_named_by_its_place_in_the_epoch() -> None:
    found = [{"x": npy(np.zeros(1))} for _ in range(7)]
    assert all_ranks(found, X, dataio.batch(2), of=2, steps="short") == [[["0", "2"], ["4", "6"]], [["1", "3"], ["5"]]]


# ---------------------------------------------------------------------------------------------- order


def epochs(source: Any, *, of: int, **shard: Any) -> list[list[list[str]]]:
    """For each of two epochs, the keys of each rank."""
    found: list[list[list[str]]] = [[], []]
    for rank in range(of):
        pipe = dataio.pipeline(X, dataio.batch(2)).bind(source)
        with pipe.run("numpy", shard={"id": rank, "of": of, "pad": False, **shard}) as loader:
            for epoch in range(2):
                found[epoch].append(flat([batch.keys for batch in loader]))
    return found


@pytest.mark.parametrize("source", ["list", "table", "generators", "filtered", "filtered table"])
def test_a_shard_that_is_not_sticky_gets_other_records_each_epoch(source: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "dataio"):
        first, second = epochs(SOURCES[source](40), of=2, sticky=False)
    assert set(first[0]) != set(second[0])
    for ranks in (first, second):
        assert sorted(flat(ranks)) == sorted(kept(source, 40)), "the ranks draw one order"
    assert len(caplog.records) == (2 if source == "generators" else 0), "listing the whole source is worth a warning"


def test_an_order_that_is_not_sticky_follows_the_seed() -> None:
    def order(**options: Any) -> list[list[str]]:
        pipe = dataio.pipeline(X, dataio.batch(4)).bind(records(20))
        with pipe.run("numpy", shard={"id": 0, "of": 2, "sticky": False}, **options) as loader:
            return [batch.keys for batch in loader]

    assert order() == order(seed=0)
    assert order() != order(seed=1)


def test_a_sticky_shard_is_never_shuffled() -> None:
    assert epochs(records(9), of=2) == [[["0", "2", "4", "6", "8"], ["1", "3", "5", "7"]]] * 2


def test_ranks_without_a_seed_draw_one_order() -> None:
    """An unseeded shuffle follows the run's seed, which must not be drawn by each rank for itself."""
    for ranks in epochs(dataio.records(records(30)).shuffle(), of=3):
        assert sorted(flat(ranks)) == sorted(map(str, range(30)))


# ---------------------------------------------------------------------------------------------- shard="auto"


LAUNCHERS = {
    "torchrun": ("RANK", "WORLD_SIZE"),
    "slurm": ("SLURM_PROCID", "SLURM_NTASKS"),
    "open mpi": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
}


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for names in LAUNCHERS.values():
        for name in names:
            monkeypatch.delenv(name, raising=False)


def auto(count: int = 6) -> list[list[str]]:
    with dataio.pipeline(X, dataio.batch(2)).bind(records(count)).run("numpy", shard="auto") as loader:
        return [batch.keys for batch in loader]


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_auto_takes_the_rank_from_the_launcher(launcher: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rank, world = LAUNCHERS[launcher]
    monkeypatch.setenv(rank, "1")
    monkeypatch.setenv(world, "3")
    assert auto() == [["1", "4"]]


def test_auto_without_a_launcher_is_one_rank() -> None:
    assert auto() == [["0", "1"], ["2", "3"], ["4", "5"]]


def test_auto_prefers_torchrun_to_the_scheduler_that_started_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for (rank, world), values in zip(LAUNCHERS.values(), [("1", "2"), ("0", "5"), ("0", "5")]):
        monkeypatch.setenv(rank, values[0])
        monkeypatch.setenv(world, values[1])
    assert auto() == [["1", "3"], ["5", "5"]]


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize(("rank", "world"), [("1", None), (None, "2"), ("one", "2"), ("1", ""), ("2", "2"), ("-1", "2"), ("0", "0")])
def test_auto_refuses_an_environment_that_names_no_rank(
    launcher: str, rank: str | None, world: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in zip(LAUNCHERS[launcher], (rank, world)):
        if value is not None:
            monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match="shard"):
        auto()
