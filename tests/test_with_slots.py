"""`Query.with_slots`: decoded columns of a query. Values are the pipeline's, and no more is read or decoded than is asked for."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dataio
from dataio.engine.errors import BatchError, PlanError, SchemaError
from dataio.engine.schema import TensorType
from dataio.engine.source import FIRST_PASS, ColumnarSource, Pass
from dataio.query_slots import conjuncts

from .conftest import encoded, npy

pytestmark = pytest.mark.usefixtures("two_workers", "no_leftovers", "dropped")

FILES = [encoded(10 + i % 4, 12 + i % 3, seed=i) for i in range(30)]
TABLE = pa.table({"number": range(30), "image": pa.array(FILES, pa.binary()), "text": [f"t{i}" for i in range(30)]})
IMAGE = dataio.slot("image").decode_image()
THUMB = IMAGE.resize(h=4, w=5)
GRAY = dataio.slot("image").decode_image(mode="gray").mean()
_calls: list[float] = []
_lock = threading.Lock()


@dataio.register_op("counted", infer=lambda given, **_: given)
def counted(value: np.ndarray, *, name: str = "") -> np.ndarray:
    """The value as it is; the call is noted."""
    with _lock:
        _calls.append(name)  # type: ignore[arg-type]
    return value


@dataio.register_op("darkness", infer=lambda given: TensorType((), "float64"))
def darkness(value: np.ndarray) -> float:
    """A scalar op of a user's own, which gives a Python number."""
    return 255.0 - float(value.mean())


@pytest.fixture(name="calls")
def _counting() -> Iterator[list[Any]]:
    """Calls of `counted` in this test, which runs on threads."""
    _calls.clear()
    yield _calls
    _calls.clear()


@pytest.fixture
def dropped() -> Iterator[None]:
    """A source of a query that ended early is dropped by Polars with a later call from Python, whichever it is."""
    yield
    end = time.monotonic() + 20
    while any(thread.name.startswith("dataio-") for thread in threading.enumerate()) and time.monotonic() < end:
        pl.thread_pool_size()
        time.sleep(0.02)


class Watched(ColumnarSource):
    """TABLE, noting which columns of how many rows are read."""

    def __init__(self, table: pa.Table = TABLE) -> None:
        self.table, self.columns, self.rows = table, set[str](), 0

    def describe(self) -> str:
        return "watched"

    def length(self) -> int:
        return int(self.table.num_rows)

    def schema(self) -> pa.Schema:
        return self.table.schema

    def record_batches(
        self, *, columns: tuple[str, ...] | None, predicate: Any, limit: int | None, offset: int = 0, pass_: Pass = FIRST_PASS
    ) -> Iterator[pa.RecordBatch]:
        from dataio.engine.relational import batch_query

        for batch in self.table.to_batches(max_chunksize=4):
            self.columns |= set(self.table.schema.names if columns is None else columns)
            self.rows += batch.num_rows
            yield from batch_query([batch], columns, predicate)


def delivered(slot: Any, files: list[bytes] = FILES) -> list[Any]:
    with dataio.pipeline(slot, dataio.batch(7)).bind([{slot.output: file} for file in files]).run("numpy", seed=0) as loader:
        return [row for batch in loader for row in batch[slot.output]]


def arrays(column: pa.ChunkedArray) -> list[np.ndarray | None]:
    if isinstance(column.type, pa.FixedShapeTensorType):
        return [v.to_numpy() if v.is_valid else None for v in column]
    return [None if v is None else np.array(v["data"]).reshape(v["shape"]) if isinstance(v, dict) else np.asarray(v) for v in column.to_pylist()]


def same(found: list[Any], expected: list[Any]) -> None:
    for value, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(value, other)


# ---------------------------------------------------------------- values


@pytest.mark.parametrize("workers", ["thread", "process"])
@pytest.mark.parametrize("slot", [THUMB, IMAGE, GRAY], ids=["tensor", "ragged", "number"])
def test_values_are_those_of_the_pipeline(slot, workers):
    query = dataio.scan(TABLE).with_slots(made=slot, workers=workers)
    found = query.collect_arrow()
    assert found.schema == query.schema()
    assert found.schema.names == ["number", "image", "text", "made"]
    assert found["image"].to_pylist() == FILES
    same(arrays(found["made"]), delivered(slot))


def test_a_positional_slot_takes_the_place_of_its_column():
    found = dataio.scan(TABLE).with_slots(THUMB).collect_arrow()
    assert found.schema.names == TABLE.schema.names
    assert found.schema.field("image").type == pa.fixed_shape_tensor(pa.uint8(), [4, 5, 3])
    same(arrays(found["image"]), delivered(THUMB))


def test_several_slots_of_several_columns():
    both = dataio.slots(["image", "other"]).using(dataio.chain().decode_image().mean())
    table = TABLE.append_column("other", TABLE["image"].take(list(range(29, -1, -1))))
    query = dataio.scan(table).with_slots(both, size=IMAGE.shape(), half=dataio.slot("number").decode_array(dtype="float64"))
    found = query.collect_arrow()
    assert found.schema.names == ["number", "image", "text", "other", "size", "half"]
    means = delivered(IMAGE.mean())
    assert found["image"].to_pylist() == means
    assert found["other"].to_pylist() == means[::-1]
    assert found["half"].to_pylist() == list(range(30))
    same(arrays(found["size"]), delivered(IMAGE.shape()))


def test_the_dark_photos(tmp_path: Path):
    from PIL import Image

    for i in range(20):
        Image.fromarray(np.full((8, 9, 3), 12 * i, np.uint8)).save(tmp_path / f"{i:02}.png")
    query = dataio.scan_files(f"{tmp_path}/*.png").with_slots(brightness=dataio.slot("path").decode_image(mode="gray").mean())
    found = query.filter(pl.col("brightness") < 40).select("path").collect()
    assert [Path(row["path"]).stem for row in found] == ["00", "01", "02", "03"]
    by_cond = query.filter("brightness", "<", 40).sort("brightness", descending=True).limit(2).collect()
    assert [row["brightness"] for row in by_cond] == [36.0, 24.0]


def test_scalar_ops_of_a_users_own():
    found = dataio.scan(TABLE).with_slots(dark=IMAGE.darkness()).filter(pl.col("dark") > 120).collect_columns()
    expected = [255 - float(v) for v in delivered(IMAGE.mean())]
    assert found["dark"] == [v for v in expected if v > 120]


def test_arguments_from_other_columns():
    table = TABLE.append_column("side", pa.array([3 + i % 4 for i in range(30)]))
    query = dataio.scan(table).with_slots(small=IMAGE.resize(h=dataio.col("side"), w=2).shape())
    assert [v.tolist() for v in arrays(query.select("small").collect_arrow()["small"])] == [[3 + i % 4, 2, 3] for i in range(30)]


def test_all_ends_and_steps():
    query = dataio.scan(TABLE).with_slots(b=GRAY)
    expected = [float(v) for v in delivered(GRAY)]
    assert [row["b"] for row in query.collect()] == [row["b"] for row in query] == expected
    assert query.to_polars()["b"].to_list() == query.collect_columns()["b"] == expected
    assert query.sort("b").limit(1).collect()[0]["b"] == min(expected)
    assert query.group_by((pl.col("number") % 2).alias("odd")).agg(pl.col("b").max()).collect_columns()["b"] == [max(expected[::2]), max(expected[1::2])]
    assert query.join(dataio.scan(TABLE).with_slots(c=GRAY).select("number", "c"), on="number").filter(pl.col("b") == pl.col("c")).count() == 30
    assert query.with_slots(again=dataio.slot("b").decode_array().mean()).collect_columns()["again"] == expected
    assert query.filter(lambda row: row["b"] < 100).count() == sum(v < 100 for v in expected)
    assert [value for part in query.iter_batches(7) for value in part["b"]] == expected
    assert query.with_columns(twice=pl.col("b") * 2).collect_columns()["twice"] == [2 * v for v in expected]


def test_a_query_of_parquet(tmp_path: Path):
    pq.write_table(TABLE, tmp_path / "t.parquet", row_group_size=8)
    query = dataio.scan_parquet(str(tmp_path / "t.parquet")).with_slots(THUMB)
    same(arrays(query.collect_arrow()["image"]), delivered(THUMB))


def test_training_on_decoded_columns():
    query = dataio.scan(TABLE).with_slots(THUMB, b=GRAY).filter(pl.col("b") < 130)
    pipe = dataio.pipeline(dataio.slot("image").decode_array(), dataio.slot("b").decode_array(), dataio.batch(4))
    with pipe.bind(query).run("numpy", seed=0) as loader:
        found = [row for batch in loader for row in batch["image"]]
    means, thumbs = delivered(GRAY), delivered(THUMB)
    same(found, [thumb for mean, thumb in zip(means, thumbs, strict=True) if mean < 130])


def test_equal_queries_are_equal():
    queries = [dataio.scan(TABLE).with_slots(b=slot) for slot in (GRAY, GRAY, IMAGE)]
    steps = [query.plan.step for query in queries]  # type: ignore[attr-defined]
    assert steps[0] == steps[1]
    assert hash(steps[0]) == hash(steps[1])
    assert steps[0] != steps[2]
    assert steps[0].canonical() != steps[2].canonical()
    assert pickle.loads(pickle.dumps(steps[0])) == steps[0]


def test_explain_names_the_slots():
    text = dataio.scan(TABLE).with_slots(b=GRAY).filter(pl.col("b") < 40).select("number").explain()
    assert "with_slots(b = image | image(mode=gray" in text
    assert 'SELECTION: col("b")' in text


# ---------------------------------------------------------------- what is read and decoded


def noted(name: str) -> Any:
    """The slot "image", of which each decoded row is noted."""
    return IMAGE.counted(name=name)


def test_a_slot_that_nobody_asks_for_is_not_decoded(calls):
    source = Watched()
    query = dataio.scan(source).with_slots(a=noted("a").mean(), b=noted("b").mean())
    assert query.select("number").collect() == [{"number": i} for i in range(30)]
    assert not calls
    assert source.columns == {"number"}
    assert query.count() == 30
    assert query.select("b", "text").to_polars().width == 2
    assert calls == ["b"] * 30
    assert source.columns == {"number", "image", "text"}


def test_only_the_columns_that_are_needed_are_read():
    source = Watched()
    dataio.scan(source).with_slots(a=GRAY).select("a").collect()
    assert source.columns == {"image"}


def test_conditions_on_other_columns_come_first(calls):
    query = dataio.scan(Watched()).with_slots(a=noted("a").mean())
    found = query.filter((pl.col("number") < 5) & (pl.col("a") >= 0)).filter(pl.col("text") != "t3").collect()
    assert [row["number"] for row in found] == [0, 1, 2, 4]
    assert len(calls) == 4


def test_other_slots_are_decoded_for_the_rows_that_are_left(calls):
    means = [float(v) for v in delivered(GRAY)]
    query = dataio.scan(TABLE).with_slots(noted("image"), b=GRAY).filter(pl.col("b") < 100)
    found = query.collect_arrow()
    kept = [i for i, mean in enumerate(means) if mean < 100]
    assert found["number"].to_pylist() == kept
    assert 0 < len(kept) < 30
    assert len(calls) == len(kept)
    same(arrays(found["image"]), [delivered(IMAGE)[i] for i in kept])


def test_a_limit_ends_the_run(calls):
    source = Watched(pa.concat_tables([TABLE] * 50))
    query = dataio.scan(source).with_slots(a=noted("a").mean(), batch_rows=4)
    assert query.limit(3).count() == 3
    assert len(query.limit(3).collect()) == 3
    assert len(calls) <= 100
    assert len(query.filter(pl.col("a") >= 0).limit(2).collect()) == 2
    assert len(calls) + source.rows < 1200


def test_memory_is_bounded():
    """Rows in flight do not grow with the number of rows."""
    ahead, taken, most = [0], [0], [0]

    class Endless(Watched):
        def record_batches(self, **options: Any) -> Iterator[pa.RecordBatch]:
            for batch in super().record_batches(**options):
                ahead[0] += batch.num_rows
                most[0] = max(most[0], ahead[0] - taken[0])
                yield batch

    query = dataio.scan(Endless(pa.concat_tables([TABLE] * 100))).with_slots(THUMB, batch_rows=8)
    with query.collect_arrow_reader() as reader:
        for batch in reader:
            taken[0] += batch.num_rows
    assert taken[0] == 3000
    assert most[0] < 1500


@pytest.mark.parametrize("engine", ["in-memory", "streaming"])
def test_a_query_that_is_given_up_leaves_nothing(engine):
    """`no_leftovers` looks for the threads."""
    query = dataio.scan(pa.concat_tables([TABLE] * 50)).with_slots(a=GRAY, batch_rows=4)
    frames = query.to_lazy().collect_batches(maintain_order=True, engine=engine)
    next(iter(frames))
    del frames
    for _ in query:
        break
    with query.collect_arrow_reader() as reader:
        reader.read_next_batch()
    del reader


def test_conjuncts_are_told_apart():
    a, b, c = pl.col("a") < 1, pl.col("b") < 2, pl.col("c") < 3
    assert [str(part) for part in conjuncts(a & b & c)] == [str(part) for part in (a, b, c)]
    assert [str(part) for part in conjuncts(a & (b | c))] == [str(part) for part in (a, b | c)]
    assert [str(part) for part in conjuncts(a | b)] == [str(a | b)]


# ---------------------------------------------------------------- rows that fail

VALUES = [FILES[0], b"broken", None, FILES[3], b""]
BROKEN = pa.table({"number": range(5), "image": pa.array(VALUES, pa.binary())})


def test_a_row_that_fails_is_null_and_told_once(caplog):
    found = dataio.scan(BROKEN).with_slots(m=IMAGE.mean(), s=IMAGE.shape()).collect_arrow()
    assert found["m"].is_null().to_pylist() == found["s"].is_null().to_pylist() == [False, True, True, False, True]
    (record,) = [r for r in caplog.records if r.name == "dataio.rows"]
    assert record.message.startswith("with_slots of column 'image': 2 of 5 rows failed and are null; the first: record 1")


def test_a_column_of_reasons(caplog):
    query = dataio.scan(BROKEN).with_slots(m=IMAGE.mean(), n=dataio.slot("number").decode_array().mean(), errors="why")
    found = query.collect_columns()
    assert [why is not None for why in found["why"]] == [False, True, False, False, True]
    assert "slot 'm', op 'image'" in found["why"][1]
    assert found["n"] == [0, 1, 2, 3, 4]
    assert query.filter(pl.col("why").is_not_null()).select("number").collect() == [{"number": 1}, {"number": 4}]
    assert not [r for r in caplog.records if r.name == "dataio.rows"]


def test_reasons_of_several_columns_are_one_column():
    table = pa.table({"a": [b"broken", FILES[0], b"broken"], "b": [FILES[0], b"broken", b"broken"]})
    query = dataio.scan(table).with_slots(dataio.slot("a").decode_image().mean(), dataio.slot("b").decode_image().mean(), errors="why")
    found = query.collect_columns()
    assert [why.split("slot ")[1][:3] for why in found["why"]] == ["'a'", "'b'", "'a'"]
    assert [v is None for v in found["a"]] == [True, False, True]
    assert [v is None for v in found["b"]] == [False, True, True]


def test_rows_that_fail_are_skipped(calls):
    query = dataio.scan(BROKEN).with_slots(m=noted("m").mean(), on_failure="skip")
    assert query.select("number").collect_columns() == {"number": [0, 2, 3]}
    assert query.filter(pl.col("m") >= 0).select("number").collect_columns() == {"number": [0, 3]}
    assert query.count() == 3
    assert query.filter(pl.col("m") >= 0).count() == 2
    assert query.limit(2).collect_columns()["number"] == [0, 2]
    assert calls


def test_a_row_that_fails_raises():
    query = dataio.scan(BROKEN).with_slots(m=IMAGE.mean(), on_failure="raise")
    with pytest.raises((BatchError, pl.exceptions.ComputeError), match=r"record 1 .*slot 'm', op 'image'"):
        query.collect()
    assert query.filter(pl.col("number") == 0).count() == 1
    assert query.select("number").collect_columns()["number"] == [0, 1, 2, 3, 4]


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.sampled_from(["good", "broken", "null"]), max_size=40),
    st.sampled_from(["null", "skip"]),
    st.integers(1, 9),
    st.integers(0, 40),
    st.floats(60, 200),
)
def test_any_mixture_gives_what_filtering_afterwards_gives(kinds, on_failure, rows, limit, level):
    values = [{"good": FILES[i % 30], "broken": b"broken", "null": None}[kind] for i, kind in enumerate(kinds)]
    table = pa.table({"number": pa.array(range(len(values)), pa.int64()), "image": pa.array(values, pa.binary())})
    query = dataio.scan(table).with_slots(b=GRAY, t=THUMB.mean(), on_failure=on_failure, batch_rows=rows, workers="thread")
    whole = query.to_polars()
    assert whole["number"].to_list() == [i for i, kind in enumerate(kinds) if on_failure == "null" or kind != "broken"]
    assert whole["b"].is_null().to_list() == whole["t"].is_null().to_list() == [kinds[i] != "good" for i in whole["number"]]
    expected = whole.filter((pl.col("b") < level) & (pl.col("number") % 3 != 1)).head(limit)
    found = query.filter(pl.col("b") < level).filter(pl.col("number") % 3 != 1).limit(limit).to_polars()
    assert found.equals(expected)
    assert query.select("t").to_polars().equals(whole.select("t"))


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        pytest.param(lambda q: q.with_slots(), TypeError, "at least one slot", id="nothing"),
        pytest.param(lambda q: q.with_slots("image"), TypeError, "takes slots such as", id="a name"),
        pytest.param(lambda q: q.with_slots(x=dataio.chain().decode_image()), ValueError, "unbound chain", id="chain"),
        pytest.param(lambda q: q.with_slots(dataio.slot("image")), ValueError, "no decoder", id="no decoder"),
        pytest.param(lambda q: q.with_slots(GRAY, image=GRAY), ValueError, "'image' twice", id="twice"),
        pytest.param(lambda q: q.with_slots(dataio.slot("imag").decode_image()), SchemaError, "did you mean 'image'", id="column"),
        pytest.param(lambda q: q.with_slots(x=IMAGE.resize(h=dataio.col("nmber"), w=1)), SchemaError, "did you mean 'number'", id="argument"),
        pytest.param(lambda q: q.with_slots(x=IMAGE.resize(h=dataio.param("h"), w=1)), PlanError, "'h' is not set", id="parameter"),
        pytest.param(lambda q: q.with_slots(dataio.slot("image", optional=True).decode_image()), PlanError, "optional", id="optional"),
        pytest.param(lambda q: q.with_slots(x=dataio.slot("image").decode_npy()), SchemaError, "types=", id="type"),
        pytest.param(lambda q: q.with_slots(x=GRAY, types={"y": pa.int8()}), ValueError, "no slot here", id="types"),
        pytest.param(lambda q: q.with_slots(x=GRAY, on_failure="stop"), ValueError, "on_failure", id="on_failure"),
        pytest.param(lambda q: q.with_slots(x=GRAY, on_failure="skip", errors="e"), ValueError, "errors=", id="errors and skip"),
        pytest.param(lambda q: q.with_slots(x=GRAY, errors="text"), SchemaError, "another name", id="errors"),
        pytest.param(lambda q: q.with_slots(x=GRAY, batch_rows=0), ValueError, "batch_rows", id="batch_rows"),
        pytest.param(lambda q: q.with_slots(x=GRAY.hflip()), PlanError, "slot 'x'", id="ops"),
        pytest.param(
            lambda q: q.with_slots(number=GRAY, x=IMAGE.resize(h=dataio.col("number"), w=1)), SchemaError, "another slot beside it replaces", id="replaced"
        ),
    ],
)
def test_what_is_refused(make, error, match):
    with pytest.raises(error, match=match):
        make(dataio.scan(TABLE))


def test_a_type_that_is_given():
    table = pa.table({"x": [npy(np.arange(3.0)), npy(np.arange(4.0))]})
    query = dataio.scan(table).with_slots(dataio.slot("x").decode_npy(), types={"x": pa.fixed_shape_tensor(pa.float64(), [3])}, errors="why")
    found = query.collect_arrow()
    same(arrays(found["x"]), [np.arange(3.0), None])
    assert "float64[4]" in found["why"][1].as_py()


def test_no_rows():
    assert dataio.scan(TABLE.slice(0, 0)).with_slots(THUMB).collect_arrow().num_rows == 0
