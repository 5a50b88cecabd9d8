"""Training on queries: whatever a query leaves of a source is shuffled, sharded and resumed like a source of its own."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dataio
from dataio.engine import settled
from dataio.engine import streams as engine_streams
from dataio.engine.actors import source as source_actor
from dataio.engine.errors import CheckpointError, SourceError
from dataio.engine.query_rows import QueryRows
from dataio.engine.row_numbers import RowNumbers
from dataio.engine.settings import CPU_WORKERS
from dataio.engine.source import Pass
from dataio.sources import as_source
from dataio.sources.columnar import TableSource

from .engine.helpers import npy

N = 230
TABLE = pa.table(
    {
        "id": pa.array(range(N)),
        "label": pa.array([i * 7 % 10 for i in range(N)]),
        "x": [npy(np.full(3, i, np.float32)) for i in range(N)],
        "note": pa.array([None if i % 6 == 0 else f"n{i % 4}" for i in range(N)]),
    }
)
SIDE = pl.DataFrame({"label": [1, 3, 5, 8, 9], "weight": [0.1, 0.3, 0.5, 0.8, 0.9]})


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One file, several, and partitions by label; row groups of 20 rows."""
    root = tmp_path_factory.mktemp("query")
    pq.write_table(TABLE, root / "one.parquet", row_group_size=20)
    for folder in ("many", "hive"):
        (root / folder).mkdir()
    for part in range(3):
        pq.write_table(TABLE.slice(part * 80, 80), root / "many" / f"{part}.parquet", row_group_size=20)
    for label in range(10):
        folder = root / "hive" / f"label={label}"
        folder.mkdir()
        pq.write_table(TABLE.filter(pa.array([i * 7 % 10 == label for i in range(N)])).drop_columns("label"), folder / "0.parquet", row_group_size=7)
    return root


SOURCES: dict[str, Callable[[Path], dataio.Query]] = {
    "table": lambda root: dataio.scan(TABLE),
    "data set": lambda root: dataio.scan(pads.dataset(root / "many")),
    "one file": lambda root: dataio.scan_parquet(root / "one.parquet"),
    "files": lambda root: dataio.scan_parquet(str(root / "many" / "*.parquet")),
    "hive": lambda root: dataio.scan_parquet(root / "hive"),
}
STEPS: dict[str, Callable[[dataio.Query], dataio.Query]] = {
    "all": lambda q: q,
    "filter": lambda q: q.filter(dataio.cond.col("label").gt(3)),
    "filter by polars": lambda q: q.filter(pl.col("label") > 3),
    "where": lambda q: q.where("label", ">", 3),
    "few": lambda q: q.filter(pl.col("id") % 17 == 3),
    "none": lambda q: q.filter(pl.col("id") < 0),
    "window": lambda q: q.limit(90, 35) if type(q) is dataio.Query else q.slice(35, 90),
    "filter, window, filter": lambda q: q.filter(pl.col("label") > 1).slice(10, 120).filter(pl.col("id") % 3 != 0),
    "computed": lambda q: q.with_columns(twice=pl.col("label") * 2).filter(pl.col("twice") > 5),
    "sorted": lambda q: q.sort("label", descending=True).filter(pl.col("id") > 20),
    "sample": lambda q: q.sample(60, seed=4),
    "unique": lambda q: q.unique("label"),
    "join": lambda q: q.join(SIDE, on="label"),
    "semi": lambda q: q.join(SIDE, on="label", how="semi"),
    "groups": lambda q: q.group_by("label").agg(pl.col("id").max(), pl.col("x").first()),
}


def shuffled(seed: int | None, **options: Any) -> Callable[[Any], Any]:
    return lambda query: dataio.records(query).shuffle(seed, **options)


ORDERS: dict[str, Callable[[Any], Any]] = {
    "bound": lambda query: query,
    "records": dataio.records,
    "shuffle": shuffled(None),
    "seeded": shuffled(5),
    "block": shuffled(5, block=16),
    "buffer": shuffled(None, buffer=12),
    "repeat": lambda query: dataio.records(query).shuffle(5).repeat(2),
    "concat": lambda query: dataio.concat([dataio.records(query), dataio.records(query).shuffle(1)]),
    "mix": lambda query: dataio.mix([(dataio.records(query).shuffle(1), 1), (dataio.records(query).shuffle(2), 2)], seed=3, stop="all"),
}
TIMES = {"repeat": 2, "concat": 2, "mix": 2}
PIPE = dataio.pipeline(dataio.slot("x").decode_npy().gaussian_noise(std=1.0), dataio.slot("id").passthrough(), dataio.batch(8))

Step = tuple[tuple[int, ...], tuple[tuple[float, ...], ...]]


def run(source: Any, cuts: list[int], *, epochs: int = 1, ranks: int = 1, **options: Any) -> list[list[Step]]:
    """Steps of each rank, stopped after each number of steps in `cuts` and begun anew there."""
    found: list[list[Step]] = [[] for _ in range(ranks)]
    state: Any = None
    for cut in [*cuts, None]:
        states = []
        for rank in range(ranks):
            shard = {"id": rank, "of": ranks, "pad": False} if ranks > 1 else None
            with PIPE.bind(source()).run("numpy", shard=shard, seed=3, on_failure=0, **options) as loader:
                if state is not None:
                    loader.load_state_dict(json.loads(json.dumps(state)))
                left = cut
                while loader.state_dict()["epoch"] < epochs and left != 0:
                    for batch in loader:
                        found[rank].append((tuple(batch["id"]), tuple(tuple(row.tolist()) for row in batch["x"])))
                        if left is not None:
                            left -= 1
                            if left == 0:
                                break
                states.append(loader.state_dict())
        state = states[0]
    return found


def ids(steps: list[list[Step]]) -> list[int]:
    return [one for rank in steps for keys, _ in rank for one in keys]


@given(
    source=st.sampled_from(sorted(SOURCES)),
    steps=st.sampled_from(sorted(STEPS)),
    order=st.sampled_from(sorted(ORDERS)),
    ranks=st.integers(1, 3),
    cuts=st.lists(st.integers(0, 6), max_size=3),
)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_query_in_any_order_cut_anywhere(files: Path, source: str, steps: str, order: str, ranks: int, cuts: list[int]) -> None:
    """Resumed equals uninterrupted, and the shards together are the rows of the query."""

    def made() -> Any:
        return ORDERS[order](STEPS[steps](SOURCES[source](files)))

    whole = run(made, [], ranks=ranks)
    assert run(made, cuts, ranks=ranks) == whole
    expected = STEPS[steps](SOURCES[source](files)).collect_columns()["id"]
    assert Counter(ids(whole)) == Counter(expected * TIMES.get(order, 1))
    if order in ("bound", "records") and ranks == 1:
        assert ids(whole) == expected


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("executor", ["thread", "process"])
@pytest.mark.parametrize("order", ["bound", "shuffle"])
def test_workers_and_executor_change_nothing(
    files: Path, monkeypatch: pytest.MonkeyPatch, order: str, executor: str, workers: int
) -> None:
    def made() -> Any:
        return ORDERS[order](STEPS["filter"](SOURCES["files"](files)))

    expected = run(made, [], epochs=2)
    monkeypatch.setenv(CPU_WORKERS.name, str(workers))
    assert run(made, [3, 9], epochs=2, workers=executor) == expected


@pytest.mark.parametrize("source", SOURCES)
def test_no_python_rows_are_made(files: Path, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def rows_of(batch: Any) -> Any:
        raise AssertionError("Python rows were made of a record batch")

    monkeypatch.setattr(engine_streams, "rows_of", rows_of)
    monkeypatch.setattr(source_actor, "rows_of", rows_of)
    query = SOURCES[source](files).filter(pl.col("label") > 3)
    for made in (query, dataio.records(query).shuffle()):
        assert len(ids(run(lambda made=made: made, [2]))) == query.count()  # type: ignore[misc]


# ------------------------------------------------------------------------------------------------------------ what is read


class Probe(TableSource):
    """A table that notes which columns and rows are read."""

    def __init__(self, table: pa.Table) -> None:
        super().__init__(table)
        self.scans: list[tuple[Any, str, int]] = []
        self.taken: list[tuple[Any, int]] = []

    def record_batches(self, *, columns: Any, predicate: Any, limit: Any, offset: int = 0, pass_: Pass = Pass()) -> Iterator[pa.RecordBatch]:  # noqa: B008
        self.scans.append((columns, str(predicate), offset))
        return super().record_batches(columns=columns, predicate=predicate, limit=limit, offset=offset, pass_=pass_)

    def take(self, rows: Any, columns: Any) -> pa.RecordBatch:
        if len(rows):
            self.taken.append((columns, len(rows)))
        return super().take(rows, columns)


def test_conditions_are_tested_once_and_read_their_own_columns() -> None:
    probe = Probe(TABLE)
    records = dataio.records(dataio.scan(probe).filter(dataio.cond.col("label").gt(3))).shuffle(1)
    run(lambda: records, [], epochs=3)
    assert probe.scans == [(("label",), "None", 0)]
    assert {columns for columns, _ in probe.taken} == {("id", "x")}
    assert sum(rows for _, rows in probe.taken) == 3 * len(records)


def test_a_resume_under_a_condition_reads_no_row_before() -> None:
    probe = Probe(TABLE)
    query = dataio.scan(probe).filter(dataio.cond.col("label").gt(3))
    whole = ids(run(lambda: query, []))
    with PIPE.bind(query).run("numpy", seed=3) as loader:
        for _, _batch in zip(range(10), loader):
            pass
        state = loader.state_dict()
    probe.scans.clear()
    with PIPE.bind(query).run("numpy") as loader:
        loader.load_state_dict(state)
        rest = [one for batch in loader for one in batch["id"]]
    assert rest == whole[80:]
    assert probe.scans == [(("label",), "None", 0)]
    assert sum(rows for _, rows in probe.taken) == len(rest)


def test_a_shuffle_reads_each_row_group_once(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataio.sources import parquet

    loaded: list[int] = []
    load = parquet.ParquetQuerySource._load

    def noting(self: Any, group: int, names: list[str]) -> pa.Table:
        loaded.append(group)
        return load(self, group, names)

    monkeypatch.setattr(parquet.ParquetQuerySource, "_load", noting)
    query = dataio.scan_parquet(files / "one.parquet").where("label", ">", 3)
    first = ids(run(lambda: dataio.records(query).shuffle(1), []))
    assert sorted(loaded) == list(range(12))
    assert first != sorted(first)
    assert sorted(first) == query.collect_columns()["id"]


def test_explain_shows_what_is_pushed_into_the_scan(files: Path) -> None:
    query = dataio.scan_parquet(str(files / "many" / "*.parquet")).filter(dataio.cond.col("label").gt(3))
    text = PIPE.bind(query).explain()
    assert "Filter col:label > 3" in text.partition("Rules that fired")[0]
    assert "columns=[id, x], predicate=(col:label > 3)" in text.partition("Plan as it runs")[2]
    shuffled = PIPE.bind(dataio.records(query).shuffle()).explain().partition("Plan as it runs")[2]
    assert "predicate=(col:label > 3)" in shuffled
    assert "columns=[id, x]" in shuffled


# ------------------------------------------------------------------------------------------------------------ checkpoints


def state_of(source: Any, steps: int = 3) -> Any:
    with PIPE.bind(source).run("numpy", seed=3) as loader:
        for _, _batch in zip(range(steps), loader):
            pass
        return json.loads(json.dumps(loader.state_dict()))


def resumed(source: Any, state: Any) -> list[Any]:
    with PIPE.bind(source).run("numpy") as loader:
        loader.load_state_dict(state)
        return [one for batch in loader for one in batch["id"]]


@pytest.mark.parametrize("order", ["bound", "shuffle"])
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (lambda q: q.filter(dataio.cond.col("label").gt(4)), r"label > 3[\s\S]*label > 4"),
        (lambda q: q.filter(dataio.cond.col("label").gt(3)).limit(100), "Limit 100"),
        (lambda q: q.filter(pl.col("label") > 3), "Relation filter"),
    ],
)
def test_another_query_is_refused_and_the_message_says_what_differs(files: Path, order: str, changed: Any, message: str) -> None:
    scan = SOURCES["files"](files)
    state = state_of(ORDERS[order](scan.filter(dataio.cond.col("label").gt(3))))
    with pytest.raises((CheckpointError, SourceError), match=message):
        resumed(ORDERS[order](changed(scan)), state)


@pytest.mark.parametrize("order", ["bound", "shuffle"])
def test_another_source_is_refused(files: Path, order: str) -> None:
    def made(pattern: str) -> Any:
        return ORDERS[order](dataio.scan_parquet(str(files / "many" / pattern)).filter(dataio.cond.col("label").gt(3)))

    with pytest.raises((CheckpointError, SourceError), match=r"files: 3[\s\S]*files: 2"):
        resumed(made("[01].parquet"), state_of(made("*.parquet")))


@pytest.mark.parametrize("how", ["inner", "semi"])
def test_what_is_joined_counts_too(how: str) -> None:
    state = state_of(dataio.scan(TABLE).join(SIDE, on="label", how=how))
    with pytest.raises((CheckpointError, SourceError), match=r"joined[\s\S]*rows: 5[\s\S]*rows: 4"):
        resumed(dataio.scan(TABLE).join(SIDE[:4], on="label", how=how), state)


def test_a_copy_elsewhere_will_do(files: Path, tmp_path: Path) -> None:
    for file in (files / "many").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())

    def made(folder: Path) -> Any:
        return dataio.records(dataio.scan_parquet(str(folder / "*.parquet")).filter(pl.col("label") > 3)).shuffle()

    state = state_of(made(files / "many"))
    assert resumed(made(tmp_path), state) == resumed(made(files / "many"), state)


def test_one_query_in_two_loaders_at_once(files: Path) -> None:
    query = STEPS["computed"](SOURCES["files"](files))
    alone = ids(run(lambda: dataio.records(query).shuffle(2), []))
    records = dataio.records(query).shuffle(2)
    with PIPE.bind(records).run("numpy") as one, PIPE.bind(records).run("numpy") as two, PIPE.bind(query).run("numpy") as three:
        found: list[list[int]] = [[], [], []]
        for batches in zip(one, two, three, strict=True):
            for keys, batch in zip(found, batches, strict=True):
                keys += batch["id"]
    assert found[0] == found[1] == alone
    assert found[2] == query.collect_columns()["id"]


# --------------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize("order", ["bound", "shuffle"])
@pytest.mark.parametrize("kind", ["one", "several"])
def test_a_file_that_changes_between_epochs_is_named(tmp_path: Path, order: str, kind: str) -> None:
    for part in range(2):
        pq.write_table(TABLE.slice(part * 100, 100), tmp_path / f"{part}.parquet", row_group_size=20)
    query = dataio.scan_parquet(tmp_path / "1.parquet" if kind == "one" else str(tmp_path / "*.parquet"))
    with PIPE.bind(ORDERS[order](query.where("label", ">", 3))).run("numpy") as loader:
        assert sum(len(batch) for batch in loader) > 0
        pq.write_table(TABLE.slice(0, 30), tmp_path / "1.parquet")
        with pytest.raises(SourceError, match=r"1\.parquet changed since"):
            list(loader)
        (tmp_path / "1.parquet").unlink()
        with pytest.raises(SourceError, match=r"1\.parquet is gone"):
            list(loader)


def test_a_callable_that_raises_names_the_row() -> None:
    def bad(row: dict[str, Any]) -> bool:
        return bool(1 // (row["id"] - 7))

    records = dataio.records(dataio.scan(TABLE).filter(bad))
    with pytest.raises(ZeroDivisionError) as caught:
        len(records)
    assert any("row 7" in note for note in getattr(caught.value, "__notes__", ()))


def test_a_source_without_numbers_is_shuffled_in_a_buffer_only() -> None:
    query = dataio.scan(pl.DataFrame(pl.from_arrow(TABLE)).lazy()).filter(pl.col("label") > 3)
    records = dataio.records(query)
    with pytest.raises(TypeError, match="buffer"):
        records.shuffle()
    assert sorted(ids(run(lambda: dataio.records(query).shuffle(1, buffer=9), [4]))) == query.collect_columns()["id"]


def test_what_runs_once_goes_to_a_file_without_a_name_when_it_is_large(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(settled, "IN_MEMORY", 1000)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    query = dataio.scan(TABLE).join(SIDE, on="label")
    assert ids(run(lambda: query, [2])) == query.collect_columns()["id"]
    assert os.listdir(tmp_path) == []


# -------------------------------------------------------------------------------------------------------------- row numbers


@given(data=st.data(), size=st.integers(0, 200_000), share=st.sampled_from([0.0, 0.001, 0.3, 0.9, 1.0]))
@settings(max_examples=30, deadline=None)
def test_row_numbers_are_those_they_were_made_of(data: st.DataObject, size: int, share: float) -> None:
    draw = np.random.default_rng(size)
    numbers = np.flatnonzero(draw.random(size) < share)
    kept = RowNumbers(np.array_split(numbers, 5))
    assert len(kept) == len(numbers)
    assert kept.nbytes <= min(2 * len(numbers), size // 8 + 8192)
    start, stop = sorted(data.draw(st.tuples(st.integers(0, len(numbers)), st.integers(0, len(numbers)))))
    assert np.array_equal(kept.at(range(start, stop)), numbers[start:stop])
    positions = draw.integers(0, max(1, len(numbers)), 50 if len(numbers) else 0)
    assert np.array_equal(kept.at(positions), numbers[positions])
    places = draw.integers(0, size + 1, 20)
    assert np.array_equal(kept.before(places), np.searchsorted(numbers, places))


def test_row_numbers_of_a_large_source_take_a_bit_each() -> None:
    parts = (np.arange(start, start + 1_000_000, 2) for start in range(0, 50_000_000, 1_000_000))
    kept = RowNumbers(parts)
    assert len(kept) == 25_000_000
    assert kept.nbytes < 50_000_000 // 8 * 1.01
    with pytest.raises(IndexError):
        kept.at([25_000_000])


def test_queries_are_sources_that_are_equal_where_their_plans_are() -> None:
    query = dataio.scan(TABLE).filter(pl.col("label") > 3)
    assert as_source(query) == QueryRows(query.plan)
    assert hash(as_source(query)) == hash(QueryRows(query.plan))
