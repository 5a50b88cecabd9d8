"""`tfrecord_index`, `dataio.tfrecord` and `scan_tfrecord`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import dataio
from dataio import cond
from dataio.formats.tfrecord.index import TFRecordIndex, tfrecord_index

from .formats.test_tfrecord import DAMAGED, PAYLOADS, STARTS, STREAM, flipped

EXAMPLES = [{"image": bytes([number]) * (number + 1), "label": number, "box": [0.5, float(number)]} for number in range(10)]


@pytest.fixture
def shards(tmp_path: Path) -> str:
    dataio.write_tfrecord(tmp_path / "a-0", EXAMPLES[:4])
    dataio.write_tfrecord(tmp_path / "a-1", EXAMPLES[4:])
    return str(tmp_path / "a-{0..1}")


def labels(records: Any) -> list[int]:
    return [record["label"] for record in records]


# ------------------------------------------------------------------------- index


def test_an_index_tells_where_the_records_lie() -> None:
    index = tfrecord_index(STREAM)
    assert index.offsets.tolist() == STARTS[:-1]
    assert index.lengths.tolist() == [len(one) for one in PAYLOADS]
    assert (len(index), index.size) == (6, len(STREAM))


@pytest.mark.parametrize("length", [0, 5000, 70_000])
def test_windows_fit_records_of_any_length(length: int, tmp_path: Path) -> None:
    dataio.write_tfrecord(tmp_path / "a", [bytes(length), b"x"] * 40)
    assert tfrecord_index(tmp_path / "a").lengths.tolist() == [length, 1] * 40


def test_an_index_is_kept_in_the_form_of_other_tools(tmp_path: Path) -> None:
    from tfrecord.tools.tfrecord2idx import create_index

    (tmp_path / "a").write_bytes(STREAM)
    create_index(str(tmp_path / "a"), str(tmp_path / "theirs"))
    tfrecord_index(tmp_path / "a").save(tmp_path / "ours")
    assert (tmp_path / "ours").read_text().split() == (tmp_path / "theirs").read_text().split()
    assert TFRecordIndex.load(tmp_path / "theirs").offsets.tolist() == STARTS[:-1]


@pytest.mark.parametrize("text", ["1", "a b", "0 3", "0 20\n21 20", "5 20", "0 99999999999999999999", "0 9223372036854775807\n9223372036854775807 16"])
def test_what_is_no_index_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no index"):
        TFRecordIndex.load(text.encode())


@pytest.mark.parametrize("case", [name for name in DAMAGED if not name.startswith(("payload", "cut_and"))])
def test_damaged_headers_are_named(case: str) -> None:
    data, message, kind = DAMAGED[case]
    with pytest.raises(kind, match=rf"record 2 \(byte {STARTS[2]}\) .*{message}"):
        tfrecord_index(data)


@pytest.mark.parametrize("compression", ["gzip", "zlib"])
def test_compressed_files_have_no_index(compression: str, tmp_path: Path) -> None:
    dataio.write_tfrecord(tmp_path / "a", PAYLOADS, compression=compression)
    with pytest.raises(ValueError, match=f"compressed by {compression}"):
        tfrecord_index(tmp_path / "a")


# ------------------------------------------------------------------------- source


def test_records_are_the_examples_with_their_place(shards: str) -> None:
    source = dataio.tfrecord(shards)
    assert len(source) == 10
    fifth = list(source)[4]
    path = shards.replace("{0..1}", "1")
    assert fifth["box"].dtype == np.float32
    assert fifth["box"].tolist() == [0.5, 4.0]
    del fifth["box"]
    assert fifth == {"__key__": f"{path}:0", "__shard__": path, "image": bytes([4]) * 5, "label": 4}


def test_lists_stay_lists_without_unwrap(shards: str) -> None:
    first = next(iter(dataio.tfrecord(shards, unwrap=False, features=["label", "box"])))
    assert {name: first[name] for name in first if not name.startswith("__")} == {"label": [0], "box": [0.5, 0.0]}


def test_records_shuffle_over_all_files(shards: str) -> None:
    found = labels(dataio.tfrecord(shards).shuffle(seed=3))
    assert sorted(found) == list(range(10))
    assert found != list(range(10))


def test_a_store_is_read_in_place(s3_bucket: str) -> None:
    dataio.write_tfrecord(f"{s3_bucket}/a.tfrecord", EXAMPLES)
    tfrecord_index(f"{s3_bucket}/a.tfrecord").save(f"{s3_bucket}/a.idx")
    assert labels(dataio.tfrecord(f"{s3_bucket}/a.tfrecord")) == list(range(10))
    assert labels(dataio.tfrecord([f"{s3_bucket}/a.tfrecord"], index=[f"{s3_bucket}/a.idx"])) == list(range(10))
    assert dataio.scan_tfrecord(f"{s3_bucket}/a.tfrecord").select("label").limit(2).collect() == [{"label": 0}, {"label": 1}]


def test_files_of_a_store_are_shuffled_together(s3_bucket: str) -> None:
    for shard in range(3):
        dataio.write_tfrecord(f"{s3_bucket}/b-{shard}", EXAMPLES[shard::3])
    pipe = dataio.pipeline(dataio.slot("label").passthrough(), dataio.batch(5))
    with pipe.bind(dataio.tfrecord(f"{s3_bucket}/b-{{0..2}}").shuffle(seed=1)).run("numpy") as loader:
        found = [label for batch in loader for label in batch["label"]]
    assert sorted(found) == list(range(10))


def test_a_file_that_became_shorter_is_an_error(tmp_path: Path) -> None:
    dataio.write_tfrecord(tmp_path / "a", EXAMPLES)
    source = dataio.tfrecord(tmp_path / "a")
    dataio.write_tfrecord(tmp_path / "a", EXAMPLES[:2])
    with pytest.raises(OSError, match="lie outside"):
        list(source)


def test_a_damaged_record_is_its_own_error(tmp_path: Path) -> None:
    dataio.write_tfrecord(tmp_path / "a", EXAMPLES)
    data = (tmp_path / "a").read_bytes()
    (tmp_path / "a").write_bytes(flipped(data, int(tfrecord_index(data).offsets[3]) + 20))
    pipe = dataio.pipeline(dataio.slot("label").passthrough(), dataio.batch(10))
    with pipe.bind(dataio.tfrecord(tmp_path / "a")).run("numpy", on_failure="skip") as loader:
        (batch,) = loader
    assert list(batch["label"]) == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    (error,) = batch.errors
    assert f"{tmp_path}/a: record 3 " in error["message"]
    assert "checksums do not match" in error["message"]


def test_an_index_of_another_file_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(STREAM)
    dataio.write_tfrecord(tmp_path / "b", PAYLOADS[1:] + PAYLOADS[:1])
    source = dataio.tfrecord(tmp_path / "b", index=[tfrecord_index(tmp_path / "a")])
    with pytest.raises(ValueError, match="not where its index says"):
        list(source)


def test_a_missing_file_is_told_when_the_source_is_made(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="none") as caught:
        dataio.tfrecord(tmp_path / "none")
    assert isinstance(caught.value, RuntimeError)


@pytest.mark.parametrize(
    ("arguments", "kind"), [({"index": []}, ValueError), ({"features": "label"}, TypeError)]
)
def test_arguments_are_checked(arguments: dict[str, Any], kind: type[Exception], shards: str) -> None:
    with pytest.raises(kind, match=next(iter(arguments))):
        dataio.tfrecord(shards, **arguments)


# ------------------------------------------------------------------------- scan


def test_columns_have_the_types_of_the_features(shards: str) -> None:
    schema = dataio.scan_tfrecord(shards).plan.source.schema()  # type: ignore[attr-defined]
    assert schema == pa.schema([("box", pa.list_(pa.float32())), ("image", pa.binary()), ("label", pa.int64())])


def test_rows_are_filtered_and_selected(shards: str) -> None:
    found = dataio.scan_tfrecord(shards).filter(cond.col("label").ge(8)).select("image", "label").collect()
    assert found == [{"image": bytes([n]) * (n + 1), "label": n} for n in (8, 9)]


def test_a_feature_that_is_missing_is_null(tmp_path: Path) -> None:
    dataio.write_tfrecord(tmp_path / "a", [{"x": 1, "y": b"a"}, {"x": 2}])
    assert dataio.scan_tfrecord(tmp_path / "a").collect() == [{"x": 1, "y": b"a"}, {"x": 2, "y": None}]


def test_an_example_that_does_not_fit_is_named_and_a_schema_helps(tmp_path: Path) -> None:
    dataio.write_tfrecord(tmp_path / "a", [{"x": 1}, {"x": [2, 3]}])
    with pytest.raises(ValueError, match="record 1 has 2 values of feature 'x'"):
        dataio.scan_tfrecord(tmp_path / "a", examples=1).collect()
    schema = pa.schema([("x", pa.list_(pa.int64()))])
    assert dataio.scan_tfrecord(tmp_path / "a", schema=schema).collect() == [{"x": [1]}, {"x": [2, 3]}]


def test_unknown_columns_are_told_with_a_suggestion(shards: str) -> None:
    with pytest.raises(ValueError, match="did you mean 'label'"):
        dataio.scan_tfrecord(shards).filter(cond.col("lable").gt(1))
