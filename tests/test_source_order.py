"""The order of sources: a pass gives the same records whenever it is read, and goes on anywhere from a small state."""

from __future__ import annotations

import json
import pickle
import tracemalloc
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
from hypothesis import given, settings
from hypothesis import strategies as st

import dataio
from dataio.engine.combine import as_rows
from dataio.engine.errors import CheckpointError, SourceError
from dataio.engine.expr import Col, Compare
from dataio.engine.plan import Scan
from dataio.engine.source import ColumnarSource, IndexedSource, Pass, RowSource, Source
from dataio.engine.streams import BadRecord, Stream, open_stream
from dataio.sources import RecordSource, as_source
from dataio.sources.columnar import DatasetSource

from .test_sources import KINDS, ROWS, SCHEMA, hub_dataset

LIMIT = 60
"""Records that are read of a pass, which may have no end."""


# --------------------------------------------------------------------------------------------- trees of sources


def double(x: int) -> int:
    return 2 * x + 1


def drawn(x: int, rng: np.random.Generator) -> int:
    return 2 * x + 2 * int(rng.integers(5))


def keep(x: int) -> bool:
    return x % 3 != 2


def several(x: int) -> list[int]:
    return [] if x % 5 == 4 else [x] * (1 + x % 2)


def leaf(kind: str, size: int) -> RecordSource:
    if kind == "list":
        return dataio.records(list(range(size)))
    if kind == "set":
        return dataio.records(dict.fromkeys(range(size)))
    if kind == "table":
        return RecordSource(as_source(pa.table({"v": pa.array(range(size), pa.int64())}))).map_records(lambda r: r["v"])
    return RecordSource(as_source(lambda: iter(range(size))))


def build(tree: Any) -> RecordSource:
    """The source that a tree of plain values describes, made anew."""
    op, *args = tree
    match op:
        case "leaf":
            return leaf(*args)
        case "endless":
            return leaf(*args).repeat()
        case "map":
            return build(args[0]).map_records(args[1])
        case "filter":
            return build(args[0]).filter_records(keep)
        case "flat_map":
            return build(args[0]).flat_map_records(several)
        case "shuffle":
            source, seed, buffer, block = build(args[0]), *args[1:]
            if source.describe()["sequential"]:
                return source.shuffle(seed, buffer=buffer or 3)
            return source.shuffle(seed, buffer=buffer, block=block)
        case "repeat":
            return build(args[0]).repeat(args[1])
        case "concat":
            return dataio.concat([build(part) for part in args[0]])
        case "mix":
            return dataio.mix([(build(part), weight) for part, weight in args[0]], args[1], args[2])
    raise AssertionError(op)


SEEDS = st.none() | st.integers(0, 2**64 - 1)
LEAVES = st.tuples(st.just("leaf"), st.sampled_from(["list", "set", "table", "factory"]), st.integers(0, 12))
ENDLESS = st.tuples(st.just("endless"), st.sampled_from(["list", "factory"]), st.integers(1, 5))


def combined(parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    count = st.none() | st.integers(1, 7)
    weighted = st.tuples(parts, st.floats(0.2, 4))
    return st.one_of(
        st.tuples(st.just("map"), parts, st.sampled_from([double, drawn])),
        st.tuples(st.just("filter"), parts),
        st.tuples(st.just("flat_map"), parts),
        st.tuples(st.just("shuffle"), parts, SEEDS, count, count),
        st.tuples(st.just("repeat"), parts, st.integers(1, 3)),
        st.tuples(st.just("concat"), st.lists(parts, min_size=1, max_size=3)),
        st.tuples(st.just("mix"), st.lists(weighted, min_size=1, max_size=3), SEEDS, st.sampled_from(["first", "all"])),
    )


TREES = st.recursive(st.one_of(LEAVES, LEAVES, ENDLESS), combined, max_leaves=6)
PASSES = st.builds(Pass, st.integers(0, 3), st.integers(0, 2**64 - 1))


def opened(source: Any, pass_: Pass = Pass(), state: Any = None) -> Stream:  # noqa: B008
    return open_stream(Scan(as_source(source)), pass_, state)


def records_of(source: Any, pass_: Pass = Pass(), limit: int = LIMIT) -> list[Any]:  # noqa: B008
    chunk = opened(source, pass_).read(limit)
    assert chunk.error is None
    return chunk.as_rows()


@settings(max_examples=300, deadline=None)
@given(TREES, PASSES, st.lists(st.integers(0, 17), max_size=5))
def test_a_pass_goes_on_from_its_state_wherever_it_is_cut(tree: Any, pass_: Pass, cuts: list[int]) -> None:
    """Also resumes of resumes, each by a source that is made anew, from a state that was written as JSON."""
    expected = records_of(build(tree), pass_)
    found: list[Any] = []
    state = None
    for count in cuts:
        stream = opened(build(tree), pass_, state)
        assert stream.position == len(found)
        found += stream.read(min(count, LIMIT - len(found))).as_rows()
        assert stream.position == len(found)
        state = json.loads(json.dumps(stream.state()))
        stream.close()
    found += opened(build(tree), pass_, state).read(LIMIT - len(found)).as_rows()
    assert found == expected


@settings(max_examples=150, deadline=None)
@given(TREES, PASSES, st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(1, 3))
def test_chunks_and_their_parts_are_cut_from_the_pass(tree: Any, pass_: Pass, sizes: list[int], step: int) -> None:
    expected = records_of(build(tree), pass_)
    stream = opened(build(tree), pass_)
    start = 0
    for size in sizes:
        chunk = stream.read(size, slice(step - 1, None, step))
        assert chunk.count == len(expected[start : start + size])
        assert chunk.as_rows() == expected[start : start + size][step - 1 :: step]
        start += chunk.count


@settings(max_examples=200, deadline=None)
@given(TREES, PASSES, st.data())
def test_records_by_position_are_those_of_the_pass(tree: Any, pass_: Pass, data: st.DataObject) -> None:
    source = as_source(build(tree))
    expected = records_of(source, pass_)
    length = source.length()
    assert length is None or min(length, LIMIT) == len(expected)
    if not isinstance(source, IndexedSource) or not expected:
        return
    positions = data.draw(st.lists(st.integers(0, len(expected) - 1), max_size=8))
    assert opened(source, pass_).at(positions) == [expected[p] for p in positions]
    start = data.draw(st.integers(0, len(expected)))
    assert source.at(range(start, len(expected)), pass_) == expected[start:]


def test_sources_pickle_where_their_parts_do() -> None:
    source = dataio.mix([(dataio.records([1, 2, 3]).shuffle(4).repeat(2), 1), (dataio.records(range(4)), 2.5)], 3, "all")
    list(source)  # what it remembers stays behind
    assert list(pickle.loads(pickle.dumps(source))) == list(source)


# ---------------------------------------------------------------------------------------------------- shuffle

ORDERS: dict[str, Callable[[RecordSource], RecordSource]] = {
    "full": lambda source: source.shuffle(),
    "seeded": lambda source: source.shuffle(5),
    "buffer": lambda source: source.shuffle(5, buffer=30),
    "block": lambda source: source.shuffle(5, block=8),
    "block-and-buffer": lambda source: source.shuffle(5, block=8, buffer=50),
    "map-of-shuffle": lambda source: source.shuffle(5).map_records(lambda x: x),
    "concat-of-shuffles": lambda source: dataio.concat([source.shuffle(5)]),
    "buffer-of-stream": lambda source: dataio.concat([source, lambda: iter(())]).shuffle(5, buffer=30),
}


@pytest.mark.parametrize("order", ORDERS)
def test_every_epoch_has_its_own_order_of_all_records(order: str) -> None:
    source = ORDERS[order](dataio.records(range(203)))
    epochs = [records_of(source, Pass(epoch, 1), 999) for epoch in range(3)]
    assert all(sorted(found) == list(range(203)) for found in epochs)
    assert len(set(map(tuple, epochs))) == 3
    assert records_of(source, Pass(1, 1), 999) == epochs[1]


def test_the_seed_of_the_run_orders_what_has_no_seed() -> None:
    source = dataio.records(range(100)).shuffle()
    assert records_of(source, Pass(0, 1)) == records_of(source, Pass(0, 1)) != records_of(source, Pass(0, 2))
    assert list(source) != list(source)


def test_a_seed_of_its_own_hides_that_of_the_run() -> None:
    source = dataio.records(range(50)).shuffle(seed=3)
    assert records_of(source, Pass(0, 1)) == records_of(source, Pass(0, 2)) == list(source)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 300), st.none() | st.integers(1, 50), st.none() | st.integers(1, 50), st.integers(0, 9))
def test_a_shuffle_is_a_permutation(length: int, buffer: int | None, block: int | None, seed: int) -> None:
    found = list(dataio.records(range(length)).shuffle(seed, buffer=buffer, block=block))
    assert sorted(found) == list(range(length))


@pytest.mark.parametrize("source", [dataio.records(range(1000)), RecordSource(as_source(lambda: iter(range(1000))))])
def test_in_a_buffer_no_record_moves_further_than_its_size(source: RecordSource) -> None:
    found = np.array(list(source.shuffle(1, buffer=64)))
    assert np.abs(found - np.arange(1000)).max() < 64
    assert len({*(found[:64])} - set(range(64))) == 0


def test_a_buffer_gives_the_same_order_with_and_without_positions() -> None:
    by_position = dataio.records(range(100)).shuffle(1, buffer=16)
    stream = RecordSource(as_source(lambda: iter(range(100)))).shuffle(1, buffer=16)
    assert list(by_position) == list(stream)


def test_blocks_stay_together() -> None:
    """A window of 4 blocks, 100 records in all, reads from 4 blocks and no more than one that is left over."""
    found = np.array(list(dataio.records(range(1010)).shuffle(1, block=25)))
    blocks = [len(set((found[start : start + 100] // 25).tolist())) for start in range(0, 1010, 100)]
    assert max(blocks) <= 5
    assert Counter(blocks)[4] >= 3
    assert (found[:100] // 25 != np.arange(4).repeat(25)).any()


def test_an_order_takes_no_memory() -> None:
    source = dataio.from_callable(lambda i: b"x", length=10**8).shuffle(1)
    tracemalloc.start()
    try:
        stream = opened(source)
        stream.read(64)
        state = stream.state()
        state[0] = 90_000_000
        keys = [record["key"] for record in opened(source, state=state).read(1000).as_rows()]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(set(keys)) == 1000
    assert peak < 8 << 20


def test_a_position_of_a_shuffled_pass_is_sought() -> None:
    asked: list[int] = []

    class Listed:
        def __len__(self) -> int:
            return 1_000_000

        def __getitem__(self, index: int) -> int:
            asked.append(index)
            return index

    source = dataio.records(Listed()).map_records(double).shuffle(1).repeat(3)
    stream = opened(source, state=[2_900_000, source.source.order_identity()])
    assert len(set(stream.read(10).as_rows())) == 10
    assert len(asked) == 10


SHORTER: dict[str, Callable[[list[int]], Any]] = {
    "shuffle": lambda items: dataio.records(items).shuffle(1),
    "shuffled-map": lambda items: dataio.records(items).shuffle(1).map_records(double),
    "repeat": lambda items: dataio.records(items).repeat(2),
    "concat": lambda items: dataio.concat([items, [1, 2]]),
    "mix": lambda items: dataio.mix([(items, 1), ([1, 2], 1)], stop="all"),
    "shuffled-table": lambda items: RecordSource(as_source(pa.table({"v": items}))).shuffle(1),
}


@pytest.mark.parametrize("kind", SHORTER)
def test_a_state_does_not_fit_another_number_of_records(kind: str) -> None:
    stream = opened(SHORTER[kind](list(range(9))))
    stream.read(3)
    with pytest.raises(CheckpointError, match="resume with the same records"):
        opened(SHORTER[kind](list(range(8))), state=stream.state()).read(1)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"buffer": 0}, ValueError),
        ({"buffer": True}, TypeError),
        ({"block": -1}, ValueError),
        ({"block": 2.0}, TypeError),
        ({"seed": True}, ValueError),
    ],
)
def test_bad_shuffles_are_refused(arguments: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        dataio.records([1]).shuffle(**arguments)


def test_what_has_no_positions_is_not_shuffled_by_blocks() -> None:
    with pytest.raises(TypeError, match="sequential"):
        dataio.from_iterable([b"a"]).shuffle(1, buffer=4, block=2)


# ---------------------------------------------------------------------------------------------------- columns


@pytest.fixture(params=sorted(set(KINDS) - {"exporter", "polars-lazy", "polars-scan", "memory-dataset"}))
def shuffled(request: pytest.FixtureRequest, tmp_path: Path) -> ColumnarSource:
    made = KINDS[request.param](pa.Table.from_pylist(ROWS, SCHEMA), tmp_path)
    source = (made if isinstance(made, RecordSource) else RecordSource(as_source(made))).shuffle(2).source
    assert isinstance(source, ColumnarSource)
    return source


def columns_of(source: ColumnarSource, pass_: Pass, **asked: Any) -> list[dict[str, Any]]:
    wanted = {"columns": None, "predicate": None, "limit": None, **asked}
    return [row for batch in source.record_batches(**wanted, pass_=pass_) for row in batch.to_pylist()]


def test_columns_stay_columns_in_any_order(shuffled: ColumnarSource) -> None:
    first, second = (columns_of(shuffled, Pass(epoch)) for epoch in (1, 2))
    assert sorted(map(str, first)) == sorted(map(str, second)) == sorted(map(str, ROWS))
    assert first != second
    assert columns_of(shuffled, Pass(1)) == first


def test_conditions_columns_and_windows_of_shuffled_columns(shuffled: ColumnarSource) -> None:
    rows = columns_of(shuffled, Pass(1))
    condition = Compare(Col("score"), "ge", 0)
    kept = [{"name": row["name"]} for row in rows if (row["score"] or -1) >= 0 or row["score"] == 0]
    assert columns_of(shuffled, Pass(1), columns=("name",), predicate=condition) == kept
    assert columns_of(shuffled, Pass(1), predicate=condition, columns=("name",), offset=1, limit=1) == kept[1:2]
    assert columns_of(shuffled, Pass(1), offset=2, limit=2) == rows[2:4]
    assert columns_of(shuffled, Pass(1), offset=9) == []


def test_shuffled_columns_go_on_from_a_state(shuffled: ColumnarSource) -> None:
    stream = opened(shuffled, Pass(1))
    rows = stream.read(2).as_rows()
    rows += opened(shuffled, Pass(1), json.loads(json.dumps(stream.state()))).read(99).as_rows()
    assert rows == records_of(shuffled, Pass(1))


TABLE = pa.table({"id": pa.array(range(40_000), pa.int64()), "text": [str(i) for i in range(40_000)]})


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda folder: TABLE, id="table"),
        pytest.param(lambda folder: pl.from_arrow(TABLE), id="polars"),
        pytest.param(lambda folder: TABLE.to_pandas(), id="pandas"),
        pytest.param(lambda folder: hub_dataset(TABLE), id="hub"),
        pytest.param(lambda folder: parquet(TABLE, folder), id="parquet"),
        pytest.param(lambda folder: TABLE.to_reader(), id="reader"),
    ],
)
@pytest.mark.parametrize("position", [0, 1, 999, 1000, 30_500, 40_000, 50_000])
def test_columns_go_on_from_a_position(make: Callable[[Path], Any], position: int, tmp_path: Path) -> None:
    found = opened(as_source(make(tmp_path)), state=position).read(3)
    assert [row["id"] for row in found.as_rows()] == list(range(40_000))[position : position + 3]


def parquet(table: pa.Table, folder: Path) -> pads.Dataset:
    """Two files of row groups of 1,000 rows."""
    half = table.num_rows // 2
    pq.write_table(table.slice(0, half), folder / "0.parquet", row_group_size=1000)
    pq.write_table(table.slice(half), folder / "1.parquet", row_group_size=1000)
    return pads.dataset(folder)


def test_a_parquet_data_set_goes_on_at_a_row_group(tmp_path: Path) -> None:
    """What lies before is not read: its bytes may even be gone."""
    dataset = parquet(TABLE, tmp_path)
    source = as_source(dataset)
    assert source.length() == 40_000
    (tmp_path / "0.parquet").write_bytes(b"")
    assert opened(source, state=20_001).read(2).as_rows() == TABLE.slice(20_001, 2).to_pylist()


def test_a_block_shuffle_reads_each_row_group_once(tmp_path: Path) -> None:
    source = as_source(parquet(TABLE, tmp_path))
    assert isinstance(source, DatasetSource)
    groups = source.groups()
    assert groups is not None
    read: list[int] = []
    load = groups._load

    def noted(number: int, columns: tuple[str, ...]) -> pa.Table:
        read.append(number)
        return load(number, columns)

    groups._load = noted  # type: ignore[method-assign]
    rows = records_of(RecordSource(source).shuffle(3, block=1000).source, limit=40_000)
    assert sorted(row["id"] for row in rows) == list(range(40_000))
    assert sorted(read) == list(range(40))
    assert read != sorted(read)


def test_a_filtered_data_set_is_shuffled_too(tmp_path: Path) -> None:
    dataset = parquet(TABLE, tmp_path).filter(pads.field("id") < 10)
    for source in (RecordSource(as_source(dataset)).shuffle(3), RecordSource(as_source(dataset)).shuffle(3, block=2)):
        assert sorted(row["id"] for row in source) == list(range(10))


@pytest.mark.parametrize("make", [lambda: TABLE, lambda: pl.from_arrow(TABLE)], ids=["table", "polars"])
def test_a_loader_trains_on_shuffled_columns(make: Callable[[], Any]) -> None:
    source = RecordSource(as_source(make())).shuffle(1)
    pipe = dataio.pipeline(dataio.slot("text").passthrough(), dataio.batch(1000))
    with pipe.bind(source).run("numpy") as loader:
        epochs = [[key for batch in loader for key in batch.keys] for _ in range(2)]
    assert sorted(epochs[0]) == sorted(epochs[1])
    assert epochs[0] != epochs[1]


# ---------------------------------------------------------------------------------------------------- repeat, concat, mix


def test_repetitions_are_epochs_of_their_own() -> None:
    found = records_of(dataio.records(range(20)).shuffle(1).repeat(3))
    parts = [found[:20], found[20:40], found[40:]]
    assert [sorted(part) for part in parts] == [list(range(20))] * 3
    assert len(set(map(tuple, parts))) == 3
    assert records_of(dataio.records(range(20)).shuffle(1).repeat(3), Pass(1))[:20] not in parts


def test_an_endless_repeat_has_no_length() -> None:
    source = dataio.records([1, 2]).repeat()
    assert records_of(source, limit=5) == [1, 2, 1, 2, 1]
    with pytest.raises(TypeError, match="no length"):
        len(source)


def test_nothing_is_not_repeated_for_ever() -> None:
    assert list(dataio.records([]).repeat()) == []
    with pytest.raises(SourceError, match="no records"):
        next(iter(dataio.concat([lambda: iter(())]).repeat()))


def test_a_one_pass_source_is_not_repeated_for_ever() -> None:
    found = iter(dataio.from_iterable([b"a", b"b"]).repeat())
    assert [next(found)["key"], next(found)["key"]] == ["pyiter:0", "pyiter:1"]
    with pytest.raises(SourceError, match="read more than once"):
        next(found)


def test_concat_takes_whatever_bind_takes() -> None:
    source = dataio.concat([[{"v": 1}], pa.table({"v": [2]}), lambda: iter([{"v": 3}]), np.array(["4"])])
    assert list(source)[:3] == [{"v": 1}, {"v": 2}, {"v": 3}]
    assert list(dataio.records([1]).concat([2, 3], (4,))) == [1, 2, 3, 4]


@pytest.mark.parametrize("indexed", [True, False])
def test_a_mixture_keeps_its_proportions(indexed: bool) -> None:
    def part(name: str) -> Any:
        return dataio.records([name]).repeat() if indexed else dataio.concat([lambda: iter([name])]).repeat()

    source = dataio.mix([(part("a"), 7), (part("b"), 2), (part("c"), 1)], seed=1)
    found = Counter(records_of(source, limit=4096))
    assert all(abs(found[name] - share * 4096) < 3 for name, share in {"a": 0.7, "b": 0.2, "c": 0.1}.items())


@pytest.mark.parametrize("indexed", [True, False])
def test_a_mixture_of_all_gives_each_record_once(indexed: bool) -> None:
    parts = [range(0, 500), range(500, 520), range(520, 900)]
    made: list[Any] = [list(p) if indexed else (lambda p=p: iter(p)) for p in parts]
    source = dataio.mix(list(zip(made, [1, 1, 5], strict=True)), seed=1, stop="all")
    found = records_of(source, limit=9999)
    assert sorted(found) == list(range(900))
    assert found != sorted(found)
    for part in parts:
        assert [x for x in found if x in part] == list(part)


def test_a_mixture_ends_with_its_first_source() -> None:
    """Half of the records are of the source that ends, so there are about twice as many."""
    for part in ([0] * 100, lambda: iter([0] * 100)):
        found = records_of(dataio.mix([(part, 1), (dataio.records([1]).repeat(), 1)], seed=1), limit=999)
        assert found.count(0) <= 100
        assert 90 <= found.count(1) <= 110 + 1024 * (not isinstance(part, list))
    lists = dataio.mix([([0] * 100, 1), ([1] * 1000, 1)])
    assert len(lists) == len(records_of(lists, limit=999)) == len(records_of(lists, Pass(3, 9), limit=999))


def test_the_turns_of_a_mixture_differ_by_epoch() -> None:
    source = dataio.mix([([0] * 100, 1), ([1] * 100, 1)])
    assert records_of(source, Pass(0)) != records_of(source, Pass(1))
    assert records_of(source, Pass(1)) == records_of(source, Pass(1))


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: dataio.concat([]), ValueError),
        (lambda: dataio.concat("ab"), TypeError),
        (lambda: dataio.concat([3]), TypeError),
        (lambda: dataio.mix([]), ValueError),
        (lambda: dataio.mix([[1, 2, 3]]), TypeError),
        (lambda: dataio.mix([([1], 0)]), ValueError),
        (lambda: dataio.mix([([1], float("nan"))]), ValueError),
        (lambda: dataio.mix([([1], True)]), TypeError),
        (lambda: dataio.mix([([1], "2")]), TypeError),
        (lambda: dataio.mix([([1], 1)], stop="last"), ValueError),  # type: ignore[arg-type]
        (lambda: dataio.mix([([1], 1)], seed=-1), ValueError),
        (lambda: dataio.records([1]).repeat(0), ValueError),
        (lambda: dataio.records([1]).repeat(True), TypeError),
        (lambda: dataio.records([1]).flat_map_records(3), TypeError),  # type: ignore[arg-type]
    ],
)
def test_bad_combinations_are_refused(call: Callable[[], Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        call()


# ---------------------------------------------------------------------------------------------------- failures


def raising(error: type[Exception]) -> Callable[[int], Any]:
    def function(x: int) -> Any:
        if x == 3:
            raise error("three")
        return [x]

    return function


FAILING: dict[str, Callable[[RecordSource, Any], RecordSource]] = {
    "map": RecordSource.map_records,
    "flat_map": RecordSource.flat_map_records,
    "map-in-concat": lambda source, fn: source.map_records(fn).concat([]),
}


@pytest.mark.parametrize("error", [ValueError, StopIteration])
@pytest.mark.parametrize("kind", FAILING)
def test_a_function_that_raises_fails_for_its_record(kind: str, error: type[Exception]) -> None:
    source = FAILING[kind](dataio.records(range(6)), raising(error))
    found = records_of(source)
    assert [x.record if isinstance(x, BadRecord) else "good" for x in found] == ["good"] * 3 + [3] + ["good"] * 2
    with pytest.raises(SourceError if error is StopIteration else error, match="three"):
        list(source)


@pytest.mark.parametrize("wrap", ["buffer", "mix", "concat", "flat_map", "repeat"])
def test_a_source_that_raised_once_goes_on_where_it_did(wrap: str) -> None:
    """The state taken at the error gives the rest of the pass, and no record twice, once the source is well again."""
    ill = True

    def items() -> Iterator[int]:
        for x in range(20):
            if ill and x == 7:
                raise OSError("the disk is away")
            yield x

    inner = RecordSource(as_source(items))
    source = {
        "buffer": lambda: inner.shuffle(1, buffer=5),
        "mix": lambda: dataio.mix([(inner, 1), (list(range(100, 110)), 1)], seed=1, stop="all"),
        "concat": lambda: dataio.concat([[50, 51], inner]),
        "flat_map": lambda: inner.flat_map_records(several),
        "repeat": lambda: inner.repeat(2),
    }[wrap]()
    stream = opened(source)
    chunk = stream.read(99)
    assert isinstance(chunk.error, SourceError)
    assert isinstance(chunk.error.__cause__, OSError)
    ill = False
    rest = opened(source, state=json.loads(json.dumps(stream.state()))).read(99)
    assert [*chunk.as_rows(), *rest.as_rows()] == records_of(source, limit=99)


# ---------------------------------------------------------------------------------------------------- samplers


class Sampler:
    """As PyTorch's: batches of rows in an order that `set_epoch` settles."""

    def __init__(self) -> None:
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[list[int]]:
        order = np.random.default_rng(self.epoch).permutation(20).tolist()
        return iter([order[start : start + 3] for start in range(0, 20, 3)])


class Outer:
    """A batch sampler that draws from another."""

    def __init__(self, sampler: Sampler) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.sampler)


def sampled_record(row: int) -> dict[str, int] | None:
    return None if row == 5 else {"row": row}


@pytest.mark.parametrize("make", [Sampler, lambda: Outer(Sampler())], ids=["sampler", "batch-sampler"])
@given(cut=st.integers(0, 25))
@settings(max_examples=30, deadline=None)
def test_a_resumed_sampler_keeps_its_batch_numbers(make: Callable[[], Any], cut: int) -> None:
    expected = records_of(dataio.from_sampler(make(), sampled_record), Pass(2))
    assert [record["row"] for record in expected] != list(range(20))
    stream = opened(dataio.from_sampler(make(), sampled_record), Pass(2))
    found = stream.read(cut).as_rows()
    state = json.loads(json.dumps(stream.state()))
    found += opened(dataio.from_sampler(make(), sampled_record), Pass(2), state).read(99).as_rows()
    assert found == expected


def test_a_sampler_is_set_to_each_epoch() -> None:
    source = dataio.from_sampler(Sampler(), sampled_record)
    epochs = [[record["row"] for record in records_of(source, Pass(epoch))] for epoch in (0, 1, 0)]
    assert epochs[0] == epochs[2] != epochs[1]


def test_batches_before_a_resumed_one_are_not_read() -> None:
    read: list[int] = []

    def record(row: int) -> dict[str, int]:
        read.append(row)
        return {"row": row}

    batches = [[0, 1], [2, 3], [4, 5], [6, 7]]
    stream = opened(dataio.from_sampler(batches, record))
    stream.read(5)
    read.clear()
    assert opened(dataio.from_sampler(batches, record), state=stream.state()).read(1).as_rows() == [
        {"row": 5, "batch_id": 2}
    ]
    assert read == [4, 5]


# ---------------------------------------------------------------------------------------------------- kinds of sources


class MapStyle:
    """A data set as PyTorch's, without an iterator."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> int:
        return index * 10


class IterableDataset:
    """As PyTorch's: it has a length and inherits a `__getitem__` that raises."""

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[int]:
        return iter((1, 2, 3))

    def __getitem__(self, index: int) -> int:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("obj", "expected", "indexed"),
    [
        ([1, 2], [1, 2], True),
        (MapStyle(), [0, 10, 20, 30, 40], True),
        (IterableDataset(), [1, 2, 3], False),
        ({"a": 1}, ["a"], False),
        ({7}, [7], False),
        (pl.Series([4, 5]), [4, 5], True),
        (pl.Series([4, 5]).to_pandas().set_axis([1, 0]), [4, 5], True),
    ],
)
def test_what_is_read_by_position(obj: Any, expected: list[Any], indexed: bool) -> None:
    source: Source = as_source(obj)
    assert isinstance(source, IndexedSource) == indexed
    assert records_of(source) == expected
    assert sorted(dataio.records(obj).shuffle(1)) == expected


@pytest.mark.parametrize("make", [lambda: pa.table({"v": [1, 2, 3]}), lambda: pa.table({"v": [1, 2, 3]}).to_reader()])
def test_rows_of_columns_are_plain_values(make: Callable[[], Any]) -> None:
    rows = as_rows(as_source(make()))
    assert isinstance(rows, RowSource)
    assert list(rows.rows()) == [{"v": 1}, {"v": 2}, {"v": 3}]
