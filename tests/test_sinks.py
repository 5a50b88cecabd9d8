"""Training sets written by `sink_...`: what is stored is what the pipeline gives, in every format, on any store."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import dataio
from dataio.formats.inputs import read_bytes

pytestmark = pytest.mark.usefixtures("two_workers", "no_leftovers")

FORMATS = {"parquet": "parquet", "feather": "arrow", "webdataset": "tar", "safetensors": "safetensors", "tfrecord": "tfrecord"}
ARRAYS = dataio.slot("x").decode(dataio.decoders.array())
RECORDS = [
    {"x": np.full((2, 3), i, np.float32), "key": f"a/r.{i:02d}", "label": i, "text": f"täxt {i}"} for i in range(23)
]


def sink(bound: Any, kind: str, path: Any, **options: Any) -> Any:
    return getattr(bound, f"sink_{kind}")(path, **options)


def tensors(column: pa.ChunkedArray) -> list[Any]:
    if isinstance(column.type, pa.FixedShapeTensorType):
        return [scalar.to_numpy() if scalar.is_valid else None for scalar in column]
    if not isinstance(column.type, pa.StructType):
        return [None if v is None else np.asarray(v) for v in column.to_pylist()]
    return [None if row is None else np.array(row["data"]).reshape(row["shape"]) for row in column.to_pylist()]


def stored(kind: str, path: str, names: tuple[str, ...]) -> list[dict[str, Any]]:
    """Rows of a file, read by this package's readers: "key", "x" and the fields `names`."""
    if kind in ("parquet", "feather"):
        import pyarrow.parquet as pq

        from dataio.formats.tables.feather import read_feather_table

        table = pq.read_table(io.BytesIO(dataio.read(path))) if kind == "parquet" else read_feather_table(path)
        columns = {"x": tensors(table["x"]), **{n: table[n].to_pylist() for n in ("key", *names)}}
        return [dict(zip(columns, row)) for row in zip(*columns.values())]
    if kind == "webdataset":
        load = {"label.json": json.loads, "text.txt": lambda data: data.decode(), "x.npy": lambda data: np.load(io.BytesIO(data))}
        rows = []
        for sample in dataio.webdataset(path):
            fields = {n: load[n](bytes(read_bytes(v))) for n, v in sample.items() if n in load}
            rows.append({"key": unquote(sample["__key__"]), **{n.split(".")[0]: v for n, v in fields.items()}})
        return rows
    if kind == "safetensors":
        import safetensors.numpy

        data = dataio.read(path)
        held = safetensors.numpy.load(bytes(data))
        values = json.loads(dataio.open_safetensors(path).metadata["dataio"])
        rows = [dict(zip(values["values"], row)) for row in zip(*values["values"].values())]
        for i, row in enumerate(rows):
            row["x"] = held["x"][i] if "x" in held else held[f"x/{i:08d}"]
        return rows
    rows = []
    for example in dataio.iter_tfrecord(path):
        row = {n: v[0] for n, v in example.items() if n in ("key", *names)}
        row = {n: v.decode() if isinstance(v, bytes) else v for n, v in row.items()}
        rows.append({**row, "x": np.load(io.BytesIO(example["x"][0]))})
    return rows


def check_rows(found: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> None:
    assert [row["key"] for row in found] == [row["key"] for row in wanted]
    for got, want in zip(found, wanted):
        assert got.keys() == want.keys()
        for name, value in want.items():
            np.testing.assert_array_equal(got[name], value, strict=isinstance(value, np.ndarray) and value.ndim > 0)


@pytest.mark.parametrize("kind", FORMATS)
def test_shards_hold_the_rows_in_order(kind: str, tmp_path: Path) -> None:
    report = sink(dataio.pipeline(ARRAYS).bind(RECORDS), kind, tmp_path / "out", shard_size=10, columns=["label", "text"])
    assert report.shards == tuple(f"part-{i:05d}.{FORMATS[kind]}" for i in range(3))
    assert (report.rows, report.failed) == (23, 0)
    files = [tmp_path / "out" / name for name in report.shards]
    assert report.bytes == sum(file.stat().st_size for file in files)
    found = [stored(kind, str(file), ("label", "text")) for file in files]
    assert [len(rows) for rows in found] == [10, 10, 3]
    check_rows([row for rows in found for row in rows], RECORDS)


@pytest.mark.parametrize("kind", FORMATS)
def test_s3(kind: str, s3_bucket: str) -> None:
    report = sink(dataio.pipeline(ARRAYS).bind(RECORDS), kind, f"{s3_bucket}/set", shard_size=20, columns=["label", "text"])
    found = [row for name in report.shards for row in stored(kind, f"{s3_bucket}/set/{name}", ("label", "text"))]
    check_rows(found, RECORDS)


DTYPES = st.sampled_from(["u1", "i2", "i8", "f2", "f4", "f8", "?"])


@st.composite
def array_rows(draw: st.DrawFn) -> tuple[list[np.ndarray], bool]:
    """Arrays of one dtype, of one shape or of several."""
    dtype = np.dtype(draw(DTYPES))
    shapes = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)
    several = draw(st.booleans())
    one = draw(shapes)
    count = draw(st.integers(1, 6))
    return [draw(hnp.arrays(dtype, draw(shapes) if several else one)) for _ in range(count)], several


@pytest.mark.parametrize("kind", FORMATS)
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(drawn=array_rows())
def test_any_array_comes_back(kind: str, drawn: tuple[list[np.ndarray], bool], tmp_path_factory: pytest.TempPathFactory) -> None:
    arrays, several = drawn
    records = [{"x": array, "key": str(i)} for i, array in enumerate(arrays)]
    folder = tmp_path_factory.mktemp("sink")
    options = {"ragged": ["x"]} if several and kind not in ("webdataset", "tfrecord") else {}
    report = sink(dataio.pipeline(ARRAYS).bind(records), kind, folder, shard_size=4, workers="thread", **options)
    found = [row for name in report.shards for row in stored(kind, str(folder / name), ())]
    assert [row["key"] for row in found] == [record["key"] for record in records]
    for row, array in zip(found, arrays):
        np.testing.assert_array_equal(row["x"], array)
        assert row["x"].shape == array.shape


@pytest.mark.parametrize("kind", FORMATS)
def test_threads_and_processes_write_the_same_bytes(kind: str, tmp_path: Path) -> None:
    pipe = dataio.pipeline(ARRAYS.gaussian_noise(std=1.0), dataio.batch(4))
    for workers in ("thread", "process"):
        report = sink(pipe.bind(RECORDS), kind, tmp_path / workers, shard_size=7, workers=workers, seed=3)
    for name in report.shards:
        assert (tmp_path / "thread" / name).read_bytes() == (tmp_path / "process" / name).read_bytes()


def test_failed_records_are_counted_and_told(tmp_path: Path) -> None:
    pipe = dataio.pipeline(dataio.slot("x").decode_npy(), dataio.batch(2))
    good = io.BytesIO()
    np.save(good, np.arange(3))
    records = [{"x": good.getvalue() if i % 3 else b"broken", "key": str(i)} for i in range(9)]
    report = pipe.bind(records).sink_parquet(tmp_path, shard_size=4)
    assert (report.rows, report.failed, len(report.errors)) == (6, 3, 3)
    assert [error["key"] for error in report.errors] == ["0", "3", "6"]


def test_ranks_write_disjoint_files_of_one_folder(tmp_path: Path) -> None:
    names: list[str] = []
    keys: list[str] = []
    for rank in range(3):
        report = dataio.pipeline(ARRAYS, dataio.batch(2)).bind(RECORDS).sink_tfrecord(tmp_path, shard_size=5, shard={"id": rank, "of": 3})
        names += report.shards
        keys += [row["key"] for name in report.shards for row in stored("tfrecord", str(tmp_path / name), ())]
    assert len(set(names)) == len(names)
    assert sorted(keys) == [record["key"] for record in RECORDS]  # a padded share would repeat some


def test_bytes_of_a_shard(tmp_path: Path) -> None:
    report = dataio.pipeline(ARRAYS).bind([{"x": np.zeros(1000, np.uint8), "key": f"{i:02d}"} for i in range(20)]).sink_feather(tmp_path, shard_size="5010")
    assert report.rows == 20
    assert len(report.shards) == 4  # 1002 bytes each with the key


@pytest.mark.parametrize("workers", ["thread", "process"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 3, 4)])
def test_training_from_a_parquet_sink_gets_the_same_tensors(shape: tuple[int, ...], workers: str, tmp_path: Path) -> None:
    arrays = np.random.default_rng(0).random((6, *shape), np.float32)
    pipe = dataio.pipeline(ARRAYS, dataio.batch(6))
    report = pipe.bind([{"x": array, "key": str(i)} for i, array in enumerate(arrays)]).sink_parquet(tmp_path)
    with pipe.bind(dataio.scan_parquet(str(tmp_path / report.shards[0]))).run("numpy", workers=workers) as loader:
        batch = next(iter(loader))
    assert batch.keys == [str(i) for i in range(6)]
    np.testing.assert_array_equal(batch["x"], arrays)


def test_tensors_of_an_arrow_table_may_be_null() -> None:
    lists = pa.array([[1, 2, 3, 4], None, [5, 6, 7, 8]], pa.list_(pa.int16(), 4))
    table = pa.table({"x": pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.int16(), [2, 2]), lists)})
    with dataio.pipeline(ARRAYS, dataio.batch(3)).bind(table).run("numpy", on_failure=0) as loader:
        batch = next(iter(loader))
    assert batch["x"].tolist() == [[[1, 2], [3, 4]], [[5, 6], [7, 8]]]
    assert [error["index"] for error in batch.errors] == [1]


def test_images_in_tars(tmp_path: Path) -> None:
    images = [np.random.default_rng(i).integers(0, 256, (5, 7, 3), np.uint8) for i in range(3)]
    bound = dataio.pipeline(ARRAYS).bind([{"x": image, "key": str(i)} for i, image in enumerate(images)])
    report = bound.sink_webdataset(tmp_path, encode={"x": "png"})
    back = dataio.pipeline(dataio.slot("x.png").decode_image(), dataio.batch(3)).bind(dataio.webdataset(str(tmp_path / report.shards[0])))
    with back.run("numpy") as loader:
        np.testing.assert_array_equal(next(iter(loader))["x.png"], np.stack(images))


@pytest.mark.parametrize("kind", FORMATS)
def test_a_source_without_records_is_one_empty_file(kind: str, tmp_path: Path) -> None:
    report = sink(dataio.pipeline(ARRAYS).bind([]), kind, tmp_path)
    assert (report.rows, len(report.shards)) == (0, 1)
    assert (tmp_path / report.shards[0]).exists()


def mixed(change: dict[str, Any]) -> list[dict[str, Any]]:
    return [*RECORDS[:4], {**RECORDS[4], **change}]


BAD = [  # format, records, options, what the error says
    pytest.param("parquet", mixed({"x": np.zeros(4, np.float32)}), {}, r"field 'x' of record 'a/r.04' is float32\[4\].*ragged", id="shape"),
    pytest.param("parquet", mixed({"x": np.zeros((2, 3))}), {}, r"field 'x' of record 'a/r.04' is float64\[2, 3\]", id="dtype"),
    pytest.param("webdataset", mixed({"key": "a/r.03"}), {"shard_size": 99}, r"key 'a/r.03' is there twice", id="duplicate-key"),
    pytest.param("safetensors", mixed({"label": b"0"}), {"columns": ["label"]}, r"field 'label' of record 'a/r.04' is bytes", id="bytes"),
    pytest.param("parquet", RECORDS, {"columns": ["lable"]}, r"lacks 'lable'", id="missing-column"),
    pytest.param("parquet", RECORDS, {"columns": ["x"]}, r"two fields .* 'x'", id="name-twice"),
    pytest.param("webdataset", RECORDS, {"encode": {"x": "png"}}, r"slot 'x' of record 'a/r.00' cannot be stored as png", id="no-image"),
    pytest.param("feather", RECORDS, {"shard_size": "10 parsecs"}, "shard_size", id="size"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "records", "options", "told"), BAD)
def test_what_cannot_be_stored_is_told(kind: str, records: list[Any], options: dict[str, Any], told: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=told):
        sink(dataio.pipeline(ARRAYS).bind(records), kind, tmp_path, **{"shard_size": 2, **options})
    assert not list(tmp_path.glob("*.tmp*"))


def test_an_unknown_option_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"worker_nicenes.*did you mean 'worker_niceness'"):
        dataio.pipeline(ARRAYS).bind(RECORDS).sink_parquet(tmp_path, worker_nicenes=3)


def test_a_full_disk_leaves_whole_shards_only(tmp_path: Path) -> None:
    script = f"""
import resource, signal, numpy as np, dataio
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
records = [{{"x": np.random.default_rng(i).integers(0, 256, 1000 if i < 40 else 40_000, np.uint8), "key": str(i)}} for i in range(60)]
pipe = dataio.pipeline(dataio.slot("x").decode(dataio.decoders.array()), dataio.batch(4))
try:
    pipe.bind(records).sink_tfrecord({str(tmp_path)!r}, shard_size=10, workers="thread")
except OSError as error:
    print("told:", error)
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert ran.stdout.startswith("told:"), ran.stderr
    whole = [f"part-{i:05d}.tfrecord" for i in range(4)]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["_dataio.json", *whole]
    assert [len(stored("tfrecord", str(tmp_path / name), ())) for name in whole] == [10] * 4
