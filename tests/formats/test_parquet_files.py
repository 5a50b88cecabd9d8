"""`read_parquet`, `write_parquet`, `parquet_metadata`: values, columns, row groups, stores, damage, writers that fail."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dataio
from dataio.formats.tables import parquet_file, streams
from dataio.formats.tables.parquet_file import merged
from dataio.formats.tables.values import column_values

pytestmark = pytest.mark.usefixtures("no_leftovers")

TABLE = pa.table(
    {
        "id": pa.array(range(10), pa.int64()),
        "text": pa.array([None if i == 3 else f"row {i}" for i in range(10)]),
        "st": pa.array([{"x": i, "in": {"y": i * 2}} for i in range(10)]),
        "tags": pa.array([["a"] * (i % 3) for i in range(10)]),
    }
)


@pytest.fixture
def path(tmp_path: Path) -> str:
    made = str(tmp_path / "t.parquet")
    pq.write_table(TABLE, made, row_group_size=4)
    return made


# --------------------------------------------------------------------- reading


@pytest.mark.parametrize("form", ["path", "Path", "file", "bytes", "reader", "object", "s3"])
def test_any_source(path: str, form: str, s3_bucket: str) -> None:
    data = Path(path).read_bytes()
    dataio.write(f"{s3_bucket}/t.parquet", data)
    source = {
        "path": path, "Path": Path(path), "file": f"file://{path}", "bytes": memoryview(data), "reader": dataio.reader(path), "object": io.BytesIO(data),
        "s3": f"{s3_bucket}/t.parquet",
    }[form]  # fmt: skip
    assert dataio.read_parquet(source) == TABLE.to_pydict()
    source = io.BytesIO(data) if form == "object" else source
    assert dataio.parquet_metadata(source)["num_rows"] == 10


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"columns": ["st.in.y", "id", "id"], "limit": 2}, {"st.in.y": [0, 2], "id": [0, 1]}),
        ({"columns": ["id"], "row_groups": [2, 0, 2]}, {"id": [8, 9, 0, 1, 2, 3]}),
        ({"columns": ["id"], "row_groups": [2, 0], "offset": 1, "limit": 2}, {"id": [9, 0]}),
        ({"columns": ["id"], "offset": 3, "limit": 6}, {"id": [3, 4, 5, 6, 7, 8]}),
        ({"columns": ["id"], "offset": 99}, {"id": []}),
        ({"columns": ["id"], "limit": 0}, {"id": []}),
        ({"columns": ["id"], "row_groups": []}, {"id": []}),
        ({"columns": []}, {}),
    ],
)
def test_columns_row_groups_and_rows(path: str, options: dict[str, Any], expected: dict[str, list[Any]]) -> None:
    found = dataio.read_parquet(path, **options)
    assert found == expected
    assert list(found) == list(expected)


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"columns": "id"}, TypeError, "sequence"),
        ({"columns": ["id", 1]}, TypeError, "str"),
        ({"columns": ["texd"]}, KeyError, "did you mean 'text'"),
        ({"columns": ["st.z"]}, KeyError, "t.parquet holds no column 'st.z'"),
        ({"row_groups": "0"}, TypeError, "sequence"),
        ({"row_groups": [3]}, ValueError, "has 3 row groups, no number 3"),
        ({"row_groups": [-1]}, ValueError, "from 0"),
        ({"offset": -1}, ValueError, "offset"),
        ({"limit": -1}, ValueError, "limit"),
    ],
)
def test_wrong_arguments(path: str, options: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        dataio.read_parquet(path, **options)


def test_a_store_is_asked_for_few_ranges_of_what_is_needed(s3_bucket: str) -> None:
    wide = pa.table({f"c{i}": np.random.default_rng(i).random(20_000) for i in range(30)})
    dataio.write_parquet(f"{s3_bucket}/wide.parquet", wide, compression="none", row_group_size=5_000)
    asked: list[tuple[int, int]] = []

    class Counting(parquet_file.Fetched):
        def fetch(self, ranges: Any) -> None:
            ranges = list(ranges)
            asked.extend(merged(ranges))
            super().fetch(ranges)

        def read_into(self, offset: int, out: memoryview) -> None:
            at = [s for s, e in asked if s <= offset and offset + len(out) <= e]
            assert at, f"bytes {offset} to {offset + len(out)} were not fetched ahead"
            super().read_into(offset, out)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parquet_file, "Fetched", Counting)
        found = dataio.read_parquet(f"{s3_bucket}/wide.parquet", columns=["c3", "c4"], row_groups=[1])
    np.testing.assert_array_equal(found["c4"], wide["c4"].to_numpy()[5_000:10_000])
    assert len(asked) == 2
    assert sum(stop - start for start, stop in asked) < 200_000 < wide.nbytes / 20


@given(st.lists(st.tuples(st.integers(0, 10**7), st.integers(0, 10**6)).map(lambda p: (p[0], p[0] + p[1])), max_size=20))
def test_merged_ranges_cover_and_do_not_touch(ranges: list[tuple[int, int]]) -> None:
    found = merged(ranges)
    assert all(any(a <= start and stop <= b for a, b in found) for start, stop in ranges if start < stop)
    assert all(found[i][1] < found[i + 1][0] for i in range(len(found) - 1))


# ---------------------------------------------------------------------- values

NESTED = st.recursive(
    st.sampled_from([pa.int8(), pa.uint64(), pa.float32(), pa.float64(), pa.bool_(), pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.null()]),
    lambda inner: st.one_of(
        inner.map(pa.list_), inner.map(pa.large_list), inner.map(lambda kind: pa.list_(kind, 2)), st.lists(inner, min_size=1, max_size=2).map(lambda kinds: pa.struct([(f"f{i}", k) for i, k in enumerate(kinds)]))
    ),
    max_leaves=4,
)


def value_of(kind: pa.DataType) -> st.SearchStrategy[Any]:
    if pa.types.is_struct(kind):
        return st.none() | st.fixed_dictionaries({f.name: value_of(f.type) for f in kind})
    if pa.types.is_fixed_size_list(kind):
        return st.none() | st.lists(value_of(kind.value_type), min_size=2, max_size=2)
    if pa.types.is_nested(kind):
        return st.none() | st.lists(value_of(kind.value_type), max_size=3)
    leaf = {
        pa.int8(): st.integers(-128, 127), pa.uint64(): st.integers(0, 2**64 - 1), pa.float32(): st.floats(width=32, allow_nan=False), pa.float64(): st.floats(allow_nan=False),
        pa.bool_(): st.booleans(), pa.string(): st.text(max_size=4), pa.large_string(): st.text(max_size=4), pa.binary(): st.binary(max_size=4), pa.large_binary(): st.binary(max_size=4),
    }  # fmt: skip
    return st.none() | leaf[kind] if kind in leaf else st.none()


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_nested_values_are_those_of_pyarrow(data: st.DataObject) -> None:
    kind = data.draw(NESTED)
    values = data.draw(st.lists(value_of(kind), max_size=6))
    array = pa.array(values, kind)
    start = data.draw(st.integers(0, len(values)))
    assert column_values(array) == array.to_pylist() == values
    assert column_values(array.slice(start)) == values[start:]
    assert column_values(pa.chunked_array([array.slice(0, start), array.slice(start)], kind)) == values


@settings(max_examples=20, deadline=None)
@given(st.data())
@pytest.mark.parametrize("kind", ["parquet", "feather"])
def test_any_table_comes_back(kind: str, data: st.DataObject) -> None:
    types = data.draw(st.lists(NESTED, min_size=1, max_size=3))
    count = data.draw(st.integers(0, 6))
    columns = {f"c{i}": data.draw(st.lists(value_of(t), min_size=count, max_size=count)) for i, t in enumerate(types)}
    table = pa.table([pa.array(values, t) for values, t in zip(columns.values(), types)], list(columns))
    where = f"memory://tables/round-trip.{kind}"
    if kind == "parquet":
        dataio.write_parquet(where, table, row_group_size=data.draw(st.integers(1, 7)), compression=data.draw(st.sampled_from(["none", "zstd", "snappy"])))
        assert dataio.read_parquet(where) == columns
        assert dataio.scan_parquet(where).collect() == table.to_pylist()
        found = pq.read_table(io.BytesIO(dataio.read(where)))
    else:
        cut = data.draw(st.integers(0, count))
        dataio.write_feather(where, pa.concat_tables([table.slice(0, cut), table.slice(cut)]), compression=data.draw(st.sampled_from(["none", "lz4", "zstd"])))
        assert dataio.read_feather(where) == table.to_pylist()
        found = pa.ipc.open_file(dataio.read(where)).read_all()
    assert found.to_pydict() == columns
    assert found.schema == table.schema


@pytest.mark.parametrize(
    ("kind", "stored"),
    [(pa.date32(), pa.int32()), (pa.date64(), pa.int64()), (pa.time32("s"), pa.int32()), (pa.time64("ns"), pa.int64()), (pa.timestamp("s"), pa.int64()), (pa.timestamp("ns", "UTC"), pa.int64()), (pa.duration("ms"), pa.int64())],
)  # fmt: skip
def test_times_are_integers_of_their_unit(kind: pa.DataType, stored: pa.DataType) -> None:
    numbers = [0, 86_400_000, None]
    array = pa.array(numbers, stored).view(kind)
    assert column_values(array) == numbers
    assert column_values(pa.array([[0, None], None], pa.list_(stored)).cast(pa.list_(kind))) == [[0, None], None]


def test_maps_dictionaries_decimals_and_half_floats() -> None:
    maps = pa.array([[("a", 1)], None, [], [("b", None), ("c", 3)]], pa.map_(pa.string(), pa.int8()))
    assert column_values(maps.slice(1)) == [None, {}, {"b": None, "c": 3}]
    assert column_values(pa.array(["x", None, "x"]).dictionary_encode()) == ["x", None, "x"]
    assert column_values(pa.array(["0.0000001", "1.50", None]).cast(pa.decimal128(12, 7))) == ["0.0000001", "1.5000000", None]
    assert column_values(pa.array([0.5, None], pa.float32()).cast(pa.float16())) == [0.5, None]
    assert column_values(pa.array([b"ab", None], pa.binary(2))) == [b"ab", None]


# -------------------------------------------------------------------- metadata


def test_metadata_of_a_file(path: str) -> None:
    found = dataio.parquet_metadata(path)
    assert (found["num_rows"], found["num_row_groups"]) == (10, 3)
    assert found["columns"][0] == {"name": "id", "type_label": "int64", "nullable": True}
    assert [group["num_rows"] for group in found["row_groups"]] == [4, 4, 2]
    chunk = found["row_groups"][1]["columns"][0]
    assert (chunk["name"], chunk["path"], chunk["physical_type"], chunk["compression"]) == ("id", ["id"], "INT64", "SNAPPY")
    low = (4).to_bytes(8, "little")
    assert {k: chunk["statistics"][k] for k in ("min", "max", "min_bytes", "null_count")} == {"min": "4", "max": "7", "min_bytes": low, "null_count": 0}
    assert chunk["byte_range"] == {"offset": chunk["dictionary_page_offset"], "length": chunk["total_compressed_size"]}


# ---------------------------------------------------------------------- damage


@pytest.mark.parametrize("keep", [0, 4, 100, 0.5, 0.99])
def test_a_file_cut_short_names_itself(path: str, keep: float) -> None:
    data = Path(path).read_bytes()
    Path(path).write_bytes(data[: int(keep if keep >= 1 or keep == 0 else len(data) * keep)])
    for read in (dataio.read_parquet, dataio.parquet_metadata, lambda p: dataio.scan_parquet(p).collect()):
        with pytest.raises(ValueError, match=r"t\.parquet: not a Parquet file"):
            read(path)


def test_pages_that_are_overwritten_are_an_error_of_the_file(path: str) -> None:
    data = bytearray(Path(path).read_bytes())
    data[4:200] = b"\xff" * 196
    Path(path).write_bytes(data)
    for read in (dataio.read_parquet, lambda p: dataio.scan_parquet(p).collect(), lambda p: dataio.scan_parquet(p).to_polars()):
        with pytest.raises(ValueError, match=r"t\.parquet"):
            read(path)


def test_a_missing_file_is_missing(tmp_path: Path, s3_bucket: str) -> None:
    for where in (tmp_path / "none.parquet", f"{s3_bucket}/none.parquet"):
        with pytest.raises(FileNotFoundError):
            dataio.read_parquet(where)


# --------------------------------------------------------------------- writing


@pytest.mark.parametrize("compression", ["none", "snappy", "ZSTD", "gzip", "lz4", "brotli"])
def test_compressions_round_trip(tmp_path: Path, compression: str) -> None:
    where = tmp_path / "x.parquet"
    dataio.write_parquet(where, TABLE, compression=compression)
    assert dataio.read_parquet(where) == TABLE.to_pydict()
    found = dataio.parquet_metadata(where)["row_groups"][0]["columns"][0]["compression"]
    assert found == {"none": "UNCOMPRESSED"}.get(compression, compression.upper())


@pytest.mark.parametrize(
    "table",
    [
        TABLE.select(["id"]), TABLE.select(["id"]).to_reader(), pl.DataFrame({"id": range(10)}), pd.DataFrame({"id": range(10)}),
    ],
    ids=["arrow", "reader", "polars", "pandas"],
)  # fmt: skip
def test_tables_of_all_kinds_go_to_any_place(tmp_path: Path, s3_bucket: str, table: Any) -> None:
    if not isinstance(table, pa.RecordBatchReader):
        dataio.write_parquet(f"{s3_bucket}/x.parquet", table)
        assert dataio.read_parquet(f"{s3_bucket}/x.parquet") == {"id": list(range(10))}
    dataio.write_parquet(tmp_path / "x.parquet", table)
    assert dataio.read_parquet(tmp_path / "x.parquet") == {"id": list(range(10))}


def test_a_query_is_written_without_a_table_between(path: str, tmp_path: Path) -> None:
    dataio.write_parquet(tmp_path / "x.parquet", dataio.scan_parquet(path).where("id", ">", 6).select(["id"]))
    assert dataio.read_parquet(tmp_path / "x.parquet") == {"id": [7, 8, 9]}


def test_batches_are_joined_and_split_to_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = [pa.record_batch({"x": list(range(7))})] * 5
    reader = pa.RecordBatchReader.from_batches(batches[0].schema, batches)
    dataio.write_parquet(tmp_path / "x.parquet", reader, row_group_size=10)
    assert [g["num_rows"] for g in dataio.parquet_metadata(tmp_path / "x.parquet")["row_groups"]] == [10, 10, 10, 5]
    monkeypatch.setattr(streams, "GATHERED", 80)  # bytes: ten rows
    dataio.write_parquet(tmp_path / "x.parquet", pa.table({"x": range(35)}))
    assert [g["num_rows"] for g in dataio.parquet_metadata(tmp_path / "x.parquet")["row_groups"]] == [10, 10, 10, 5]


def test_row_groups_that_are_too_much_for_one_read_stay_chunks(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_file, "AHEAD", 1)  # bytes; else runs of row groups come as one read, which pyarrow cuts at 2 GiB
    table = dataio.scan_parquet(Path(path).read_bytes()).collect_arrow()
    assert [chunk.nbytes > 0 for chunk in table.column("text").chunks] == [True] * 3
    assert dataio.read_parquet(path) == TABLE.to_pydict()


@pytest.mark.parametrize("place", ["local", "s3"])
@pytest.mark.parametrize("write", ["write_parquet", "write_feather"])
def test_a_stream_that_fails_leaves_the_old_file(tmp_path: Path, s3_bucket: str, place: str, write: str) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"x": np.zeros(100_000)})
        raise RuntimeError("the source broke")

    where = str(tmp_path / "x") if place == "local" else f"{s3_bucket}/x"
    dataio.write(where, b"old")
    with pytest.raises(Exception, match="the source broke"):
        getattr(dataio, write)(where, pa.RecordBatchReader.from_batches(pa.schema([("x", pa.float64())]), batches()))
    assert dataio.read(where) == b"old"
    assert [p.name for p in tmp_path.iterdir()] == (["x"] if place == "local" else [])


@pytest.mark.parametrize(
    ("table", "options", "error"),
    [([1], {}, TypeError), (pl.Series([1]), {}, TypeError), (TABLE, {"compression": "rar"}, ValueError), (TABLE, {"compression": None}, ValueError), (TABLE, {"row_group_size": 0}, ValueError)],
)  # fmt: skip
def test_what_cannot_be_written_leaves_nothing(tmp_path: Path, table: Any, options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        dataio.write_parquet(tmp_path / "x.parquet", table, **options)
    assert list(tmp_path.iterdir()) == []
