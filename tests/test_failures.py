"""What becomes of records that fail: how many may, what is told of them, and that no error passes for the end of the data."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dataio
from dataio.engine.errors import BatchError, CheckpointError, FailureBudgetError, OpError, SourceError
from dataio.failures import FailureBudget

from .conftest import npy

X = dataio.slot("x").decode_npy()
GOOD = npy(np.zeros(2))
BAD = b"no array"


def load(records: Any, *stages: Any, **options: Any) -> dataio.DataLoader:
    options = {"workers": "thread", "on_failure": 0, **options}
    return dataio.pipeline(*stages).bind(records).run("numpy", **options)


def records(count: int, bad: Any = ()) -> list[dict[str, Any]]:
    """Records of which those whose number is in `bad` cannot be decoded."""
    return [{"x": BAD if i in bad else GOOD} for i in range(count)]


def delivered(loader: dataio.DataLoader) -> tuple[int, FailureBudgetError | None]:
    """Batches of a pass, and the error that took the place of the next one."""
    count = 0
    try:
        for _ in loader:
            count += 1
    except FailureBudgetError as error:
        return count, error
    return count, None


# -------------------------------------------------------------------------------------------------- budget


@pytest.mark.parametrize("workers", ["1-thread", "4-thread", "2-process"])
def test_the_budget_ends_the_run_at_the_same_batch_with_any_workers(
    workers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, kind = workers.split("-")
    monkeypatch.setenv("DATAIO_CPU_WORKERS", count)
    with load(records(40, {1, 6, 9, 13, 14}), X, dataio.batch(4), workers=kind, max_failures=3) as loader:
        batches, error = delivered(loader)
    assert batches == 3
    assert error is not None
    assert (error.failed, error.seen) == (5, 16)


@pytest.mark.parametrize(("limit", "batches"), [(0, 1), (1, 2), (2, 3), (None, 3)])
def test_so_many_may_fail(limit: int | None, batches: int) -> None:
    with load(records(6, {2, 5}), X, dataio.batch(2), max_failures=limit) as loader:
        assert delivered(loader)[0] == batches


def test_the_budget_is_for_all_passes_of_a_loader() -> None:
    with load(records(4, {3}), X, dataio.batch(2), max_failures=2) as loader:
        assert [delivered(loader)[0] for _ in range(3)] == [2, 2, 1]


def test_a_fraction_is_judged_at_the_end_of_a_pass() -> None:
    with load(records(10, {0, 1}), X, dataio.batch(2), max_failures=0.1) as loader:
        batches, error = delivered(loader)
        assert batches == 5
        assert error is not None
        assert (error.failed, error.seen) == (2, 10)
        assert loader.state_dict()["epoch"] == 1


def test_a_fraction_is_judged_from_a_thousand_records_on() -> None:
    with load(records(2000, range(0, 2000, 2)), X, dataio.batch(100), max_failures=0.4) as loader:
        batches, error = delivered(loader)
    assert batches == 9
    assert error is not None
    assert (error.failed, error.seen) == (500, 1000)


def test_a_fraction_that_is_kept_ends_nothing() -> None:
    with load(records(2000, range(0, 2000, 2)), X, dataio.batch(100), max_failures=0.5) as loader:
        assert delivered(loader) == (20, None)


@settings(max_examples=40, deadline=None)
@given(bad=st.lists(st.booleans(), max_size=30), size=st.integers(1, 5), limit=st.integers(0, 10))
def test_batches_come_up_to_the_one_that_breaks_the_budget(bad: list[bool], size: int, limit: int) -> None:
    failed = list(accumulate(sum(bad[i : i + size]) for i in range(0, len(bad), size)))
    expected = next((number for number, total in enumerate(failed) if total > limit), None)
    found = {number for number, is_bad in enumerate(bad) if is_bad}
    with load(records(len(bad), found), X, dataio.batch(size), max_failures=limit) as loader:
        batches, error = delivered(loader)
    assert batches == (len(failed) if expected is None else expected)
    assert (error is None) == (expected is None)


def test_the_error_groups_the_causes_and_gives_an_example(tmp_path: Path) -> None:
    found = [{"x": BAD}, {"x": str(tmp_path / "missing.npy")}, {"x": BAD}, {"x": GOOD}]
    with load(found, X, dataio.batch(4), max_failures=2) as loader:
        _, error = delivered(loader)
    assert error is not None
    assert error.causes == [("decode", "npy", "OpError", 2), ("read", "read", "FileNotFoundError", 1)]
    for part in ("3 of 4 records", "75.00%", "max_failures=2", "OpError: 2", "FileNotFoundError: 1", "record 0"):
        assert part in str(error)


def test_the_batch_that_breaks_the_budget_is_not_delivered_in_any_way(tmp_path: Path) -> None:
    told: list[Any] = []
    options = {"max_failures": 1, "log_errors": told.append, "quarantine": tmp_path / "bad.jsonl"}
    with load(records(8, {1, 3}), X, dataio.batch(2), **options) as loader:
        counted: list[Any] = []
        loader.set_metrics_hook(counted.append)
        assert delivered(loader)[0] == 1
        assert loader.state_dict()["samples_consumed"] == 2
    assert [error["record"] for error in told] == [1]
    assert len(counted) == 1
    assert len(dataio.manifest(tmp_path / "bad.jsonl")) == 1


def test_the_iteration_is_over_after_the_error() -> None:
    with load(records(8, {1}), X, dataio.batch(2), max_failures=0) as loader:
        batches = iter(loader)
        with pytest.raises(FailureBudgetError):
            next(batches)
        assert list(batches) == []
        assert delivered(loader)[0] == 0


def test_what_fills_up_a_batch_counts_once() -> None:
    shard = {"id": 1, "of": 2, "pad": True}
    with load(records(4, {3}), X, dataio.batch(3), shard=shard, max_failures=1) as loader:
        assert delivered(loader) == (1, None)
        assert loader._failures.budget.state() == {"failed": 1, "seen": 2}


def test_the_counts_go_on_from_a_saved_state() -> None:
    with load(records(8, {1, 3}), X, dataio.batch(2), max_failures=2) as loader:
        assert delivered(loader) == (4, None)
        state = json.loads(json.dumps(loader._failures.budget.state()))
    budget = FailureBudget(2)
    budget.restore(state)
    assert budget.state() == {"failed": 2, "seen": 8}


def test_a_resumed_loader_has_only_what_is_left_of_the_budget() -> None:
    with load(records(8, {1, 3, 7}), X, dataio.batch(2), max_failures=2) as loader:
        batches = iter(loader)
        next(batches)
        next(batches)
        state = json.loads(json.dumps(loader.state_dict()))
    with load(records(8, {1, 3, 7}), X, dataio.batch(2), max_failures=2) as loader:
        loader.load_state_dict(state)
        batches_left, error = delivered(loader)
    assert batches_left == 1
    assert error is not None
    assert (error.failed, error.seen) == (3, 8)


@pytest.mark.parametrize(
    "state", [None, 3, {}, {"failed": 1}, {"failed": 2, "seen": 1}, {"failed": -1, "seen": 1}, {"failed": True, "seen": 1}]
)
def test_counts_that_are_none_are_refused(state: Any) -> None:
    with pytest.raises(CheckpointError, match="failed"):
        FailureBudget().restore(state)


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (True, TypeError),
        ("1%", TypeError),
        ([1], TypeError),
        (-1, ValueError),
        (0.0, ValueError),
        (1.0, ValueError),
        (-0.5, ValueError),
        (float("nan"), ValueError),
    ],
)
def test_max_failures_is_checked_by_run(value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="max_failures"):
        load(records(1), X, dataio.batch(1), max_failures=value)


# ------------------------------------------------------------------------------------- policies under shards

SHARDED = records(12, {1, 3, 7})  # all of them are of rank 1


@pytest.mark.parametrize(
    ("policy", "rank", "lengths"),
    [
        ("strict", 0, [3, 3]),
        ("strict", 1, BatchError),
        ("skip", 0, [3, 3]),
        ("skip", 1, [1, 2]),
        (2, 0, [3, 3]),
        (2, 1, BatchError),
        (1, 1, [1, 2]),
    ],
)
def test_each_rank_judges_its_own_records(policy: Any, rank: int, lengths: Any) -> None:
    with load(SHARDED, X, dataio.batch(3), on_failure=policy, shard={"id": rank, "of": 2}) as loader:
        if isinstance(lengths, list):
            assert [len(batch) for batch in loader] == lengths
        else:
            with pytest.raises(lengths, match="batch 0"):
                list(loader)


# -------------------------------------------------------------------------------------------------- offset

TEXT = "ä".encode() * 3 + b"\xff"


@pytest.mark.parametrize("workers", ["thread", "process"])
def test_errors_say_at_which_byte(workers: str, tmp_path: Path) -> None:
    packed = tmp_path / "packed.txt"
    packed.write_bytes(bytes(100) + TEXT)
    found = [
        {"x": TEXT},
        {"x": b"\xef\xbb\xbf" + TEXT},
        {"x": {"path": packed, "range": (100, len(TEXT))}},
        {"x": {"path": str(packed), "offset": 100, "size": len(TEXT)}},
        {"x": {"path": str(packed), "offset": 50, "size": 1000}},
        {"x": str(tmp_path / "missing.txt")},
    ]
    with load(found, dataio.slot("x").decode_text(), dataio.batch(6), workers=workers) as loader:
        [batch] = loader
    assert [error["offset"] for error in batch.errors] == [6, 9, 106, 106, 50, None]


@pytest.mark.parametrize("length", [11, 20, 130])
def test_an_array_that_was_cut_off_ends_at_that_byte(length: int) -> None:
    with load([{"x": npy(np.zeros(9))[:length]}], X, dataio.batch(1)) as loader:
        [batch] = loader
    assert batch.errors[0]["offset"] == length


def test_an_op_may_say_where_a_value_goes_wrong() -> None:
    def check(data: np.ndarray) -> np.ndarray:
        raise OpError("no", offset=7)

    with load(records(1), X.custom(check), dataio.batch(1)) as loader:
        [batch] = loader
    assert batch.errors[0]["offset"] == 7


def test_a_record_that_a_map_failed_on_is_named_by_its_path(tmp_path: Path) -> None:
    def explode(record: Any) -> Any:
        raise ValueError("no")

    found = [{"path": "/data/a.npy", "offset": 3, "size": 5}]
    with load(found, dataio.map(explode), X, dataio.batch(1)) as loader:
        [batch] = loader
    assert (batch.errors[0]["uri"], batch.errors[0]["offset"]) == ("/data/a.npy", 3)


# ------------------------------------------------------------------------------------ errors and end of data


class Endless:
    """Raises at number 5, whichever way it is read."""

    def __init__(self, error: type[Exception]) -> None:
        self.error = error

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == 5:
            raise self.error("here")
        return {"x": GOOD, "number": index}


class MapStyle(Endless):
    def __len__(self) -> int:
        return 20


def generated(error: type[Exception]) -> Iterator[dict[str, Any]]:
    for index in range(20):
        yield Endless(error)[index]


def numbered(error: type[Exception]) -> Callable[[Any], Any]:
    """A function that raises for record 5."""
    return lambda record: Endless(error)[record["number"]]


def plain(count: int = 20) -> list[dict[str, Any]]:
    return [{"x": GOOD, "number": i} for i in range(count)]


class Iterated:
    def __init__(self, error: type[Exception]) -> None:
        self.error = error

    def __iter__(self) -> Iterator[Any]:
        return generated(self.error)


def table_reader(error: type[Exception]) -> pa.RecordBatchReader:
    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"x": [GOOD] * 5})
        raise error("here")

    return pa.RecordBatchReader.from_batches(pa.schema({"x": pa.binary()}), batches())


SOURCES: dict[str, Callable[[type[Exception]], Any]] = {
    "generator": lambda error: lambda: generated(error),
    "iterable": Iterated,
    "map-style": MapStyle,
    "mapped": lambda error: dataio.records(plain()).map_records(numbered(error)),
    "mapped-stream": lambda error: dataio.from_iterable(lambda: [{"x": GOOD}] * 20, slots=["x"]).map_records(
        lambda record: {**record, **Endless(error)[int(record["key"].split(":")[1])]}
    ),
    "filtered-stream": lambda error: dataio.from_iterable(lambda: [{"x": GOOD}] * 20, slots=["x"]).filter_records(
        lambda record: Endless(error)[int(record["key"].split(":")[1])]
    ),
    "sampler": lambda error: dataio.from_sampler([plain()], numbered(error), on_error="raise"),
    "extras": lambda error: dataio.from_callable(lambda _: {"x": GOOD}, length=20, slots=["x"], extras=Endless(error).__getitem__),
}


def next_or_error(batches: Iterator[Any]) -> Any:
    try:
        return next(batches)
    except SourceError as raised:
        return raised


@pytest.mark.parametrize("error", [ValueError, StopIteration])
@pytest.mark.parametrize("kind", SOURCES)
def test_a_source_that_raises_is_no_end_of_data(kind: str, error: type[Exception]) -> None:
    """A record or the source fails, by kind of source; the five records before are delivered either way."""
    with load(SOURCES[kind](error), X, dataio.batch(5)) as loader:
        batches = iter(loader)
        assert len(next(batches)) == 5
        second = next_or_error(batches)
    if isinstance(second, SourceError):
        assert second.after == 5
        assert "after 5 record(s)" in str(second)
        assert error.__name__ in f"{second.__cause__!r}"
    else:  # only what that map failed for is lost
        assert [e["stage"] for e in second.errors] == ["map"]
        assert len(second) == 4


def test_a_table_that_raises_is_no_end_of_data() -> None:
    with load(table_reader(ValueError), X, dataio.batch(5)) as loader:
        batches = iter(loader)
        assert len(next(batches)) == 5
        with pytest.raises(SourceError, match=r"after 5 record\(s\).*here"):
            next(batches)


def test_a_factory_that_raises_is_no_end_of_data() -> None:
    def factory() -> Iterator[Any]:
        raise StopIteration

    with load(factory, X, dataio.batch(5)) as loader, pytest.raises(SourceError, match="after 0"):
        list(loader)


@pytest.mark.parametrize("error", [ValueError, StopIteration])
def test_a_batch_of_the_source_that_raises_is_no_end_of_data(error: type[Exception]) -> None:
    with load([generated(error)], X, dataio.collate()) as loader:
        batches = iter(loader)
        assert len(next(batches)) == 5
        with pytest.raises(SourceError, match="after 5"):
            next(batches)


@pytest.mark.parametrize("error", [ValueError, StopIteration])
@pytest.mark.parametrize("where", ["map", "filter", "op"])
@pytest.mark.parametrize("workers", ["thread", "process"])
def test_a_function_of_records_that_raises_costs_one_record(where: str, error: type[Exception], workers: str) -> None:
    def raising(value: Any) -> Any:
        if value["number"] == 5 if isinstance(value, dict) else value.size == 3:
            raise error("here")
        return value

    found = plain()
    if where == "op":
        found[5]["x"] = npy(np.zeros(3))
    source: Any = dataio.scan(found).filter(raising) if where == "filter" else found
    maps = [dataio.map(raising)] if where == "map" else []
    slot = X.custom(raising) if where == "op" else X
    with load(source, *maps, slot, dataio.batch(10), workers=workers) as loader:
        batches = list(loader)
    assert [len(batch) for batch in batches] == [9, 10]
    assert [(e["record"], e["type"]) for e in batches[0].errors] == [(5, error.__name__)]


def stop(*_: Any) -> Any:
    raise StopIteration("here")


@pytest.mark.parametrize(
    ("stages", "options"),
    [
        ([X, dataio.batch(5), dataio.map(stop)], {}),
        ([X, dataio.batch(5)], {"context": stop}),
        ([X, dataio.group_by(stop)], {}),
        ([X, dataio.batch(5)], {"log_errors": stop}),
    ],
    ids=["batch-map", "context", "group-key", "log"],
)
def test_a_function_of_batches_that_stops_is_an_error(stages: list[Any], options: dict[str, Any]) -> None:
    with load(records(10, {1}), *stages, **options) as loader, pytest.raises(RuntimeError, match="StopIteration"):
        list(loader)


def test_a_metrics_hook_that_stops_is_an_error() -> None:
    with load(records(10), X, dataio.batch(5)) as loader:
        loader.set_metrics_hook(stop)
        with pytest.raises(RuntimeError, match="StopIteration"):
            list(loader)


def test_a_hook_that_raises_ends_the_iteration() -> None:
    def hook(error: dict[str, Any]) -> None:
        raise ArithmeticError(error["record"])

    with load(records(6, {2}), X, dataio.batch(2), log_errors=hook) as loader:
        batches = iter(loader)
        next(batches)
        with pytest.raises(ArithmeticError, match="2"):
            next(batches)
        assert list(batches) == []
        assert loader.state_dict()["samples_consumed"] == 2
