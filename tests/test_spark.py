"""Bulk runs on Spark and Sail: `dataio.spark`. The engines run in environments of their own, by `spark_run.py`."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pds
import pyarrow.parquet as pq
import pytest

import dataio
from dataio import npy_columns
from dataio.arrow_columns import dense_column, ragged_column
from dataio.engine.errors import BatchError, LimitError
from dataio.formats.array import decode_npy
from dataio.npy_columns import flat_column, npy_column
from dataio.spark import WIDER, SparkFunction, map_in_arrow, spark_type

from .conftest import encoded
from .spark_run import PIPELINE, local_images

ROOT = Path(__file__).resolve().parent.parent
N, BROKEN = 40, 7
ROWS: list[dict[str, Any]] = [
    {"id": i, "image": encoded(40 + i % 5, 50, seed=i) if i != BROKEN else b"\xff\xd8nothing", "label": i % 3, "a note`s.name": f"n{i}"} for i in range(N)
]
GOOD = [i for i in range(N) if i != BROKEN]


# ------------------------------------------------------------------- on an engine


def python_of(engine: str) -> Path:
    """The interpreter of an engine's environment; skips the test (fails on CI) where something is missing."""
    python = ROOT / ".venvs" / engine / "bin/python"
    needs = [] if python.parent.with_name("ready").exists() else [f"make .venvs/{engine}/ready"]
    if engine == "spark" and shutil.which("java") is None:
        needs.append("Java")
    if needs:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(f"{engine} needs: {', '.join(needs)}")
    return python


@pytest.mark.slow
def test_one_plan_from_a_question_to_a_bulk_run_on_sail() -> None:
    """The example goes its last step where Sail is installed."""
    ran = subprocess.run([python_of("sail"), ROOT / "examples/question_to_training.py"], capture_output=True, text=True, timeout=200)
    assert ran.returncode == 0, ran.stderr[-4000:]
    assert "resumed: True" in ran.stdout
    assert ran.stdout.splitlines()[-1] == "on Sail: 48 rows, 1 with an error"


@dataclass(frozen=True)
class Done:
    folder: Path
    report: dict[str, Any]

    def rows(self, name: str) -> list[dict[str, Any]]:
        return list(pds.dataset(self.folder / name, format="parquet").to_table().sort_by("id").to_pylist())


@pytest.fixture(scope="module", params=["sail", "spark"])
def done(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Done:
    """All jobs of `spark_run.py` on one engine."""
    engine, folder = request.param, tmp_path_factory.mktemp(request.param)
    python = python_of(engine)
    (folder / "in").mkdir()
    table = pa.Table.from_pylist(ROWS)
    pq.write_table(table.slice(0, 25), folder / "in/a.parquet", row_group_size=10)
    pq.write_table(table.slice(25), folder / "in/b.parquet", row_group_size=10)
    ran = subprocess.run(
        [python, ROOT / "tests/spark_run.py", engine, folder], cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=540
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    return Done(folder, json.loads((folder / "report.json").read_text()))


slow = pytest.mark.slow
pytestmark = pytest.mark.timeout(600)  # a JVM on a busy machine


@slow
def test_tensors_are_written_by_the_engine_and_trained_on_here(done: Done) -> None:
    expected, seen = dict(np.load(done.folder / "local.npz")), []
    assert sorted(map(int, expected)) == GOOD
    query = dataio.scan_parquet(str(done.folder / "tensors/*.parquet")).filter(dataio.parquet.col("error").is_null())
    pipe = dataio.pipeline(dataio.slot("image").decode_npy(), dataio.slot("label").decode_array(), dataio.batch(8))
    with pipe.bind(query).run("numpy") as loader:
        for _ in range(2):
            for batch in loader:
                assert batch["image"].dtype == np.uint8
                assert batch["image"].shape[1:] == (24, 32, 3)
                for key, pixels, label in zip(batch.keys, batch["image"], batch["label"]):
                    np.testing.assert_array_equal(pixels, expected[str(key)])
                    assert label == int(key) % 3
                seen += map(int, batch.keys)
    assert sorted(seen) == sorted(GOOD * 2)


@slow
def test_a_corrupt_file_is_a_row_with_its_error(done: Done) -> None:
    rows = done.rows("tensors")
    assert [row["id"] for row in rows] == list(range(N))
    assert [row["id"] for row in rows if row["error"] is not None] == [BROKEN]
    assert rows[BROKEN]["image"] is None
    assert rows[BROKEN]["label"] is None
    assert rows[BROKEN]["a note`s.name"] == "n7"
    assert f"key '{BROKEN}'" in rows[BROKEN]["error"]
    assert "slot 'image', op 'image' (decode)" in rows[BROKEN]["error"]


@slow
def test_spark_connect_gives_the_same_rows(done: Done) -> None:
    """Sail speaks nothing else; of Spark it is another front."""
    if (done.folder / "connect").exists():
        assert done.rows("connect") == done.rows("tensors")
    else:
        assert done.folder.name.startswith("sail")


@slow
def test_the_types_are_those_of_spark(done: Done) -> None:
    assert done.report["schema"] == "struct<id:bigint,a note`s.name:string,image:binary,label:bigint,error:string>"
    assert done.report["several_schema"] == (
        "struct<id:bigint,a note`s.name:string,colour:array<float>,edge:binary,small:smallint,mask:array<boolean>,why:string>"
    )
    rows = done.rows("several")
    images = {i: dataio.read_image(ROWS[i]["image"]) for i in GOOD}
    assert [row["id"] for row in rows if row["why"] is not None] == [BROKEN]
    for i in GOOD:
        row = rows[i]
        np.testing.assert_array_equal(row["colour"], np.float16(images[i].mean(axis=(0, 1))).astype(np.float64))
        edge = np.load(io.BytesIO(row["edge"]))
        assert (min(edge.shape[:2]), edge.dtype) == (8, np.uint8)
        assert edge.max() <= 127
        assert row["small"] == i % 3
        assert len(row["mask"]) == 2 * 2 * 3
    assert len({np.load(io.BytesIO(rows[i]["edge"])).shape for i in GOOD}) > 1


@slow
def test_it_is_a_step_of_a_query_as_any_other(done: Done) -> None:
    assert done.report["counts"] == [[0, 14], [1, 12]]  # id 7, of label 1, has failed
    assert done.report["empty"] == 0
    assert done.report["limited"] == 3
    assert done.report["plan_columns"] == ["image", "label"]


@slow
def test_without_a_column_of_errors_the_job_fails(done: Done) -> None:
    assert "BatchError" in done.report["raised"]
    assert f"key '{BROKEN}'" in done.report["raised"]


@slow
def test_what_cannot_run_is_refused_before_the_job(done: Done) -> None:
    expected = {
        "no_column": "SchemaError: slot('image') reads column 'image', which its input lacks",
        "no_pipeline": "TypeError: map_in_arrow() takes a pipeline, got BoundPipeline",
        "no_frame": "TypeError: map_in_arrow() takes a DataFrame of pyspark 3.3 or newer, got list",
        "no_slot": "ValueError: arrays names 'imgae', which is no slot (did you mean 'image'?)",
        "no_tensor": "ValueError: arrays names 'label', whose rows are no tensors with axes but int64",
        "twice": "SchemaError: the result would have the column 'id' twice",
    }
    for name, start in expected.items():
        assert done.report[name].startswith(start)


# ------------------------------------------------------------------- the function that workers run


def function(pipeline: dataio.Pipeline = PIPELINE, changed: Any = None, **options: Any) -> SparkFunction:
    return SparkFunction(pipeline.as_arrow_function(**options), {"image": pa.binary()} if changed is None else changed)


def batches(rows: list[dict[str, Any]] = ROWS, size: int = 9) -> list[pa.RecordBatch]:
    return list(pa.Table.from_pylist(rows).to_batches(max_chunksize=size))


def test_a_pickled_function_gives_the_same_in_any_batches() -> None:
    made = pa.Table.from_batches(function()(batches()))
    again = pa.Table.from_batches(pickle.loads(pickle.dumps(function()))(batches(size=N)))
    assert made.to_pylist() == again.to_pylist()
    assert made["id"].to_pylist() == list(range(N))


def test_tensors_are_those_of_the_pipeline() -> None:
    made = pa.Table.from_batches(function()(batches()))
    found = {str(row["id"]): decode_npy(row["image"]) for row in made.to_pylist() if row["error"] is None}
    expected = local_images(ROWS)
    assert sorted(map(int, found)) == sorted(map(int, expected)) == GOOD
    for key, image in expected.items():
        np.testing.assert_array_equal(found[key], image)


def test_batches_are_cut_to_what_the_jvm_can_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = pa.Table.from_batches(function(batch_rows=N)(batches()))
    monkeypatch.setattr("dataio.spark.PART_BYTES", 10_000)  # of images of 2,304 bytes
    parts = list(function(batch_rows=N)(batches()))
    assert {1, N} & {part.num_rows for part in parts} == set()
    assert pa.Table.from_batches(parts).to_pylist() == whole.to_pylist()
    monkeypatch.setattr("dataio.spark.PART_BYTES", 10)  # a larger row comes alone
    assert [part.num_rows for part in function(batch_rows=N)(batches())] == [1] * N


def test_a_tensor_beyond_a_binary_value_is_a_failed_row(monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = dataio.pipeline(dataio.slot("image").decode_image(), dataio.slot("label").passthrough())
    sizes = {i: 128 + (40 + i % 5) * 50 * 3 for i in GOOD}
    monkeypatch.setattr(npy_columns, "MAX_BYTES", limit := sorted(sizes.values())[N // 2])
    rows = pa.Table.from_batches(function(pipeline)(batches())).to_pylist()
    large = [i for i in GOOD if sizes[i] > limit]
    assert [row["id"] for row in rows if row["image"] is None] == sorted([*large, BROKEN])
    assert 0 < len(large) < len(GOOD)
    for i in large:
        assert rows[i]["error"] == f"slot 'image': tensors of {sizes[i]:,} bytes do not fit one binary column, which holds {limit:,}"
        assert rows[i]["label"] is None
    with pytest.raises(BatchError, match="slot 'image': tensors of"):
        list(function(pipeline, errors=None)(batches(ROWS[:5])))


def test_a_generator_that_is_dropped_ends_its_run() -> None:
    list(function()(batches()))  # the pool of the process stays
    before, taken = threading.active_count(), 0

    def feed() -> Iterator[pa.RecordBatch]:
        nonlocal taken
        for batch in batches() * 1000:
            taken += 1
            yield batch

    made = function(batch_rows=2)(feed())
    next(made)
    made.close()  # type: ignore[attr-defined]
    end = time.monotonic() + 20
    while threading.active_count() > before and time.monotonic() < end:
        time.sleep(0.01)
    assert threading.active_count() <= before
    assert taken < 100


def test_a_frame_of_another_library_is_refused() -> None:
    with pytest.raises(TypeError, match="takes a DataFrame of pyspark"):
        map_in_arrow(pa.table({"image": [b""]}), PIPELINE)


def test_columns_of_spark_that_look_like_tensors_stay_as_they_are() -> None:
    """`data` and `shape` are names that anybody may use."""
    struct = pa.array([{"data": [1.0], "shape": [1]}] * N, pa.struct([("data", pa.list_(pa.float32())), ("shape", pa.list_(pa.int32()))]))
    table = pa.Table.from_pylist(ROWS).append_column("other", struct)
    made = pa.Table.from_batches(function()(table.to_batches()))
    assert made["other"].combine_chunks() == struct


# ------------------------------------------------------------------- columns

DENSE = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"]
PARTS = [slice(0, 5), slice(1, 4), slice(2, 2), slice(1, 2)]


def check_files(column: pa.Array, values: list[np.ndarray | None]) -> None:
    files = npy_column(column)
    files.validate(full=True)
    assert files.type == pa.binary()
    for file, value in zip(files.to_pylist(), values, strict=True):
        if value is None:
            assert file is None
            continue
        loaded = np.load(io.BytesIO(file))
        assert (loaded.dtype, loaded.shape) == (value.dtype, value.shape)
        np.testing.assert_array_equal(loaded, value)
        np.testing.assert_array_equal(decode_npy(file), value)


def check_arrays(column: pa.Array, values: list[np.ndarray | None]) -> None:
    kind = spark_type(column.type, array=True)
    arrays = flat_column(column, kind)
    arrays.validate(full=True)
    assert arrays.type == kind
    for array, value in zip(arrays.to_pylist(), values, strict=True):
        assert (array is None) if value is None else [float(x) for x in array] == value.reshape(-1).astype(float).tolist()


@pytest.mark.parametrize("part", PARTS, ids=str)
@pytest.mark.parametrize("missing", [None, [False, True, False, False, True], [True] * 5], ids=["whole", "nulls", "all-null"])
@pytest.mark.parametrize("dtype", DENSE)
def test_tensors_of_one_shape(dtype: str, missing: list[bool] | None, part: slice) -> None:
    rows = (np.arange(5 * 2 * 3) % 100).reshape(5, 2, 3).astype(dtype)
    column = dense_column(rows, None if missing is None else np.array(missing)).slice(part.start, part.stop - part.start)
    values = [None if missing is not None and missing[i] else rows[i] for i in range(5)][part]
    check_files(column, values)
    check_arrays(column, values)


@pytest.mark.parametrize("part", PARTS, ids=str)
@pytest.mark.parametrize("dtype", ["bool", *DENSE])
def test_tensors_of_several_shapes(dtype: str, part: slice) -> None:
    values: list[np.ndarray | None] = [
        np.ones((2, 3), dtype), None, np.zeros((0, 4), dtype), np.arange(5).astype(dtype), np.arange(24).reshape(2, 3, 4).astype(dtype)
    ]  # fmt: skip
    column = ragged_column(values, dtype).slice(part.start, part.stop - part.start)
    check_files(column, values[part])
    check_arrays(column, values[part])


def test_types_that_spark_lacks_are_widened_without_loss() -> None:
    for kind, wider in WIDER.items():
        limits = np.finfo(np.float16) if kind == pa.float16() else np.iinfo(kind.to_pandas_dtype())
        column = pa.array(np.array([limits.min, limits.max], kind.to_pandas_dtype()), kind)
        assert spark_type(kind) == wider
        assert [float(x) for x in column.cast(wider).to_pylist()] == [float(limits.min), float(limits.max)]
    assert spark_type(pa.string()) == pa.string()


def test_columns_beyond_the_offsets_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npy_columns, "MAX_BYTES", 200)
    for column in (dense_column(np.zeros((2, 40), np.uint8)), ragged_column([np.zeros(40, np.uint8)] * 2, np.uint8)):
        with pytest.raises(LimitError, match="of 336 bytes do not fit"):
            npy_column(column)
