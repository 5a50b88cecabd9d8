"""`scan_*`: what each kind of file becomes as rows, what is read for them, and what is said of files that are not as they should be."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import random
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.feather as pf
import pyarrow.parquet as pq
import pytest

import dataio
from dataio import cond
from dataio.engine.errors import SchemaError
from dataio.io.errors import ResponseTooLargeError

from .conftest import encoded
from .test_webdataset import shelf

__all__ = ["shelf"]  # fixture

ROWS, GROUP = 30, 5


def table(start: int = 0, rows: int = ROWS) -> pa.Table:
    numbers = range(start, start + rows)
    return pa.table({"id": pa.array(numbers, pa.int64()), "word": [f"w{n % 4}" for n in numbers], "blob": [os.urandom(10_000) for _ in numbers]})


def parquet(data: pa.Table, group: int = GROUP) -> bytes:
    out = io.BytesIO()
    pq.write_table(data, out, row_group_size=group, compression="none")
    return out.getvalue()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three Parquet files of 30 rows, in row groups of 5."""
    for number in range(3):
        (tmp_path / f"part-{number}.parquet").write_bytes(parquet(table(number * ROWS)))
    return tmp_path


@pytest.fixture
def rchar() -> Callable[[Callable[[], Any]], int]:
    """How many bytes a call makes this process read, page cache included; the call is made once before."""

    def read() -> int:
        return int(Path("/proc/self/io").read_text().split()[1])

    def counted(call: Callable[[], Any]) -> int:
        call()
        before = read()
        cost = read() - before  # of looking
        before = read()
        call()
        return read() - before - cost

    return counted


def ids(query: Any) -> list[int]:
    found: list[int] = query.select("id").to_polars()["id"].to_list()
    return found


def damage(path: Path, group: int, column: int) -> None:
    """Overwrite the pages of a column chunk."""
    chunk = pq.ParquetFile(path).metadata.row_group(group).column(column)
    with path.open("r+b") as file:
        file.seek(chunk.dictionary_page_offset or chunk.data_page_offset)
        file.write(b"\xff" * chunk.total_compressed_size)


# ---------------------------------------------------------------------------------------------------- which files are meant


def test_one_file_is_a_parquet_query_and_is_not_looked_for(folder: Path) -> None:
    assert isinstance(dataio.scan_parquet("/no/such/file.parquet"), dataio.ParquetQuery)
    assert isinstance(dataio.scan_parquet("https://host.invalid/a.parquet?x=[1]*"), dataio.ParquetQuery)
    assert isinstance(dataio.scan_parquet((folder / "part-0.parquet").read_bytes()), dataio.ParquetQuery)
    (folder / "odd[1].parquet").write_bytes(parquet(table()))
    assert isinstance(dataio.scan_parquet(folder / "odd[1].parquet"), dataio.ParquetQuery)


@pytest.mark.parametrize(
    "paths", ["{0}/part-*.parquet", "{0}", "{0}/", "{0}/part-{{0..2}}.parquet", "{0}/part-[012].parquet", "{0}/**", "file://{0}/part-*.parquet"]
)
def test_patterns_folders_and_braces(paths: str, folder: Path) -> None:
    assert ids(dataio.scan_parquet(paths.format(folder))) == list(range(90))


def test_a_list_keeps_its_order(folder: Path) -> None:
    query = dataio.scan_parquet([folder / "part-2.parquet", str(folder / "part-0.parquet")])
    assert ids(query) == [*range(60, 90), *range(30)]


def test_notes_in_a_folder_are_no_data(folder: Path) -> None:
    (folder / "_SUCCESS").touch()
    (folder / "README.md").touch()
    (folder / "_delta").mkdir()
    (folder / "_delta" / "x.parquet").touch()
    assert ids(dataio.scan_parquet(folder)) == list(range(90))


SCANS: list[Any] = [
    dataio.scan_parquet, dataio.scan_feather, dataio.scan_csv, dataio.scan_ndjson, dataio.scan_tfrecord, dataio.scan_webdataset,
    dataio.scan_files, dataio.scan_safetensors,
]  # fmt: skip


@pytest.mark.parametrize("scan", SCANS, ids=lambda scan: scan.__name__)
def test_a_pattern_without_matches_is_named(scan: Any, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nix-\*\.data.*nothing is there"):
        scan(f"{tmp_path}/nix-*.data")
    with pytest.raises(FileNotFoundError, match="nothing is there"):
        scan(tmp_path)  # an empty folder


@pytest.mark.parametrize("scan", SCANS, ids=lambda scan: scan.__name__)
def test_paths_of_another_type(scan: Any) -> None:
    for wrong in (3, [3], {"a": 1}):
        with pytest.raises((TypeError, ValueError)):  # a ParquetQuery says it when it is collected
            scan(wrong).to_polars()


@pytest.mark.parametrize("scan", [scan for scan in SCANS if scan not in (dataio.scan_files,)], ids=lambda scan: scan.__name__)
def test_a_file_that_is_missing_is_named(scan: Any, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"gone\.data"):
        scan(tmp_path / "gone.data").to_polars()


@pytest.mark.parametrize("scan", [scan for scan in SCANS if scan not in (dataio.scan_files, dataio.scan_csv)], ids=lambda scan: scan.__name__)
def test_a_file_of_another_kind_is_named(scan: Any, tmp_path: Path) -> None:
    (tmp_path / "noise.data").write_bytes(random.Random(1).randbytes(5000))
    with pytest.raises(ValueError, match=r"noise\.data"):
        scan(tmp_path / "noise.data").to_polars()


# ------------------------------------------------------------------------------------------------------------------ Parquet


@pytest.mark.parametrize("on_corrupt", ["raise", "skip"])  # Polars' scan, and our own
def test_a_data_set_is_one_table(folder: Path, on_corrupt: Any) -> None:
    query = dataio.scan_parquet(f"{folder}/*.parquet", on_corrupt=on_corrupt)
    assert query.columns() == ["id", "word", "blob"]
    assert ids(query.filter(cond.col("id").gt(27) & cond.col("word").eq("w1"))) == [n for n in range(28, 90) if n % 4 == 1]
    assert ids(query.filter(pl.col("id").is_between(4, 61)).slice(3, 50)) == list(range(7, 57))
    assert ids(query.limit(7, 26)) == list(range(26, 33))
    assert query.count() == 90
    assert query.group_by("word").agg(pl.len()).sort("word").to_polars()["len"].to_list() == [23, 23, 22, 22]
    assert query.skipped == ()


def test_types_that_polars_does_not_hold_stay_as_they_are(tmp_path: Path) -> None:
    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(12, dtype=np.int32).reshape(2, 2, 3))
    for number in range(2):
        pq.write_table(pa.table({"t": tensors, "n": [number, number + 2]}), tmp_path / f"{number}.parquet")
    query = dataio.scan_parquet(tmp_path)
    source = query.plan.source  # type: ignore[attr-defined]
    batches = list(source.record_batches(columns=("t",), predicate=cond.col("n").ge(2), limit=None))
    assert batches[0].schema.field("t").type == tensors.type
    assert [row.tolist() for batch in batches for row in batch.column(0).to_numpy_ndarray()] == [np.arange(6, 12).reshape(2, 3).tolist()] * 2


def test_row_groups_are_left_out_by_their_statistics(shelf: Any) -> None:
    shelf.objects = {f"d/part-{n}.parquet": parquet(table(n * 300, 300), 100) for n in range(3)}  # 9 MB
    query = dataio.scan_parquet("shelf://d/")
    assert ids(query.filter(cond.col("id").eq(450))) == [450]
    shelf.nbytes = 0
    assert query.filter(pl.col("id") > 895).select("blob").to_polars().height == 4
    assert shelf.nbytes < 1_300_000  # three footers and one row group, of nine
    shelf.nbytes = 0
    assert query.filter(pl.col("word") == "w2").select("id").count() == 225
    assert shelf.nbytes < 500_000  # no blob
    shelf.nbytes = 0
    assert query.select("blob").limit(3).to_polars().height == 3
    assert shelf.nbytes < 1_300_000


def test_a_column_is_read_only_where_a_row_is_left(shelf: Any) -> None:
    data = table(0, 300).set_column(1, "word", [["yes" if n == 150 else f"x{n * 7919 % 1000}" for n in range(300)]])
    shelf.objects = {"a.parquet": parquet(data, 100), "b.parquet": parquet(data.slice(0, 150), 50)}
    query = dataio.scan_parquet(["shelf://a.parquet", "shelf://b.parquet"]).filter(pl.col("word").str.starts_with("ye"))
    assert query.select("blob").to_polars().height == 1
    shelf.nbytes = 0
    assert query.select("blob").to_polars().height == 1
    assert shelf.nbytes < 1_500_000  # one row group of six


def test_a_real_store(folder: Path, s3_bucket: str) -> None:
    for path in folder.iterdir():
        dataio.write(f"{s3_bucket}/x/year=2{path.stem[-1]}/{path.name}", path.read_bytes())
    query = dataio.scan_parquet(f"{s3_bucket}/x/")
    assert ids(query.filter(pl.col("year") >= 21).filter(pl.col("id") % 10 == 0)) == [30, 40, 50, 60, 70, 80]
    assert dataio.scan_files(f"{s3_bucket}/x/**/part-1*").select("size").collect() == [{"size": (folder / "part-1.parquet").stat().st_size}]


@pytest.mark.parametrize("on_corrupt", ["raise", "skip"])
def test_hive_partitions(tmp_path: Path, on_corrupt: Any) -> None:
    for day, key in (("2024-01-31", "a%2Fb"), ("2024-02-01", "__HIVE_DEFAULT_PARTITION__")):
        place = tmp_path / "set" / f"day={day}" / f"key={key}" / "n=7"
        place.mkdir(parents=True)
        pq.write_table(pa.table({"x": [1, 2], "n": [0, 0]}), place / "p.parquet")
    query = dataio.scan_parquet(tmp_path / "set", on_corrupt=on_corrupt)
    frame = query.to_polars()
    assert frame.schema == {"x": pl.Int64, "n": pl.Int64, "day": pl.Date, "key": pl.String}
    assert frame["key"].to_list() == ["a/b", "a/b", None, None]
    assert frame["n"].to_list() == [7] * 4
    assert query.filter(pl.col("day") == date(2024, 2, 1)).select("x", "day").to_polars().rows() == [(1, date(2024, 2, 1)), (2, date(2024, 2, 1))]
    typed = dataio.scan_parquet(tmp_path / "set", hive_schema={"day": pl.String, "n": pa.int8()})
    assert typed.to_polars().schema["day"] == pl.String
    assert dataio.scan_parquet(tmp_path / "set", try_parse_hive_dates=False).to_polars().schema["day"] == pl.String
    assert dataio.scan_parquet(tmp_path / "set", hive_partitioning=False).columns() == ["x", "n"]
    assert dataio.scan_parquet(f"{tmp_path}/set/**/*.parquet").columns() == ["x", "n"]
    assert dataio.scan_parquet(f"{tmp_path}/set/**/*.parquet", hive_partitioning=True).columns() == ["x", "n", "day", "key"]
    with pytest.raises(SchemaError, match="dya"):
        dataio.scan_parquet(tmp_path / "set", hive_schema={"dya": pl.String})
    with pytest.raises(SchemaError, match=r"day=2024-01-31.*is no int64"):
        dataio.scan_parquet(tmp_path / "set", hive_schema={"day": pl.Int64})
    (tmp_path / "set" / "other.parquet").write_bytes(parquet(table()))
    with pytest.raises(SchemaError, match=r"day=.*lies in the partition day, key, n.*other\.parquet|other\.parquet.*no key"):
        dataio.scan_parquet(tmp_path / "set")


def test_a_condition_on_partitions_and_paths_opens_only_their_files(shelf: Any) -> None:
    shelf.objects = {f"s/y={n}/a.parquet": parquet(table(n, 10)) for n in range(20)}
    query = dataio.scan_parquet("shelf://s/", include_file_paths="from")
    query.columns()
    shelf.requests = 0
    assert query.filter((pl.col("y") == 3) & (pl.col("id") > 0)).select("id").count() == 10
    assert query.filter(cond.col("y").eq(4)).select("id", "from").limit(1).collect() == [{"id": 4, "from": "shelf://s/y=4/a.parquet"}]
    assert query.filter(pl.col("from").str.contains("y=1/")).select("from").count() == 10
    assert shelf.requests <= 3 * 3  # of three files each: what it is, its footer, its columns


def test_files_with_other_columns_are_told_apart(folder: Path) -> None:
    pq.write_table(pa.table({"id": pa.array([1.5]), "extra": ["x"], "blob": [b""]}), folder / "part-9.parquet")
    strict = dataio.scan_parquet(folder, on_corrupt="skip")
    with pytest.raises(SchemaError, match=r"part-9.*other columns than .*part-0.*lacks 'word'; has 'extra' besides; has 'id' as double rather than int64"):
        strict.to_polars()
    union = dataio.scan_parquet(folder, on_schema="union")
    frame = union.select("id", "word", "extra").to_polars()
    assert frame.schema == {"id": pl.Float64, "word": pl.String, "extra": pl.String}
    assert frame.row(-1) == (1.5, None, "x")
    assert frame.height == 91
    assert union.filter(pl.col("extra") == "x").select("id").collect() == [{"id": 1.5}]


def test_polars_own_scan_names_files_with_other_columns_too(folder: Path) -> None:
    pq.write_table(pa.table({"id": [1], "word": [2], "blob": [b""]}), folder / "part-9.parquet")
    with pytest.raises(SchemaError, match=r"part-9.*part-0.*'word' as int64 rather than"):
        dataio.scan_parquet(folder).to_polars()


def test_columns_in_another_order_are_the_same_columns(folder: Path) -> None:
    data = table(90, 3)
    pq.write_table(data.select(["blob", "word", "id"]), folder / "part-3.parquet")
    for on_corrupt in ("raise", "skip"):
        assert ids(dataio.scan_parquet(folder, on_corrupt=on_corrupt)) == list(range(93))


def test_types_that_do_not_go_together(folder: Path) -> None:
    pq.write_table(pa.table({"id": ["text"]}), folder / "part-9.parquet")
    with pytest.raises(SchemaError, match=r"part-9.*do not go with"):
        dataio.scan_parquet(folder, on_schema="union").columns()


def test_corrupt_row_groups_are_skipped_with_their_rows(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    damage(folder / "part-1.parquet", 2, 0)
    (folder / "part-2.parquet").write_bytes(b"PAR1 and no more")
    query = dataio.scan_parquet(folder, on_corrupt="skip")
    assert ids(query) == [*range(40), *range(45, 60)]
    first, second = query.skipped
    assert (first.uri, first.part, first.rows) == (str(folder / "part-1.parquet"), "row group 2", 5)
    assert (second.uri, second.part, second.rows) == (str(folder / "part-2.parquet"), "", None)
    assert "part-2.parquet" in second.error
    ids(query.limit(10))
    assert len([r for r in caplog.records if "left out" in r.message]) == 2
    assert query.select("word").to_polars().height == 60  # a column that is whole is read of the damaged row group as well
    with pytest.raises(ValueError, match=r"part-[12]\.parquet"):
        dataio.scan_parquet(folder).select("id").to_polars()


def test_damage_in_a_data_set_names_the_file(folder: Path) -> None:
    damage(folder / "part-1.parquet", 2, 0)
    with pytest.raises(ValueError, match=r"part-1\.parquet"):
        dataio.scan_parquet(folder).select("id").to_polars()


def test_a_file_that_went_is_named(folder: Path) -> None:
    for options in ({}, {"on_corrupt": "skip"}):
        query = dataio.scan_parquet(folder, **options)  # type: ignore[arg-type]
        query.columns()
        data = (folder / "part-1.parquet").read_bytes()
        (folder / "part-1.parquet").unlink()
        with pytest.raises(FileNotFoundError, match=r"part-1\.parquet"):
            ids(query)
        (folder / "part-1.parquet").write_bytes(data)


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"on_schema": "loose"}, ValueError, "on_schema is 'strict' or 'union'"),
        ({"on_corrupt": "ignore"}, ValueError, "on_corrupt is 'raise' or 'skip'"),
        ({"include_file_paths": 3}, TypeError, "include_file_paths"),
        ({"n_rows": -1}, ValueError, "n_rows"),
    ],
)
def test_options_that_are_none(options: Any, error: type[Exception], says: str, folder: Path) -> None:
    with pytest.raises(error, match=says):
        dataio.scan_parquet(f"{folder}/*.parquet", **options)


def test_rows_of_a_data_set_have_numbers(folder: Path) -> None:
    source = dataio.scan_parquet(f"{folder}/*.parquet").plan.source  # type: ignore[attr-defined]
    assert source.length() == 90
    assert source.take([89, 0, 31, 31], ("id",)).column(0).to_pylist() == [89, 0, 31, 31]


_FILTERING = """
import resource, sys
import polars as pl, dataio
query = dataio.scan_parquet(sys.argv[1], on_corrupt=sys.argv[2]).filter(pl.col("id") % 100 == 0).select("id", "blob")
base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
rows = sum(batch.num_rows for batch in query.collect_arrow_reader())
print(rows, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base) >> 10)
"""


@pytest.mark.parametrize("on_corrupt", ["raise", "skip"])
def test_memory_is_bounded_by_row_groups_and_not_by_the_files(on_corrupt: str, tmp_path: Path) -> None:
    schema = pa.schema({"id": pa.int64(), "blob": pa.large_binary()})
    for number in range(2):
        with pq.ParquetWriter(tmp_path / f"{number}.parquet", schema, compression="none", use_dictionary=False) as writer:
            for group in range(30):  # 30 row groups of 16 MB: 960 MB in two files
                blobs = [bytes(16_000)] * 1000
                writer.write_table(pa.table([pa.array(range(group * 1000, group * 1000 + 1000), pa.int64()), pa.array(blobs, pa.large_binary())], schema=schema))
    done = subprocess.run([sys.executable, "-c", _FILTERING, f"{tmp_path}/*.parquet", on_corrupt], capture_output=True, text=True, timeout=120, check=True)
    rows, peak = map(int, done.stdout.split())
    assert rows == 600
    assert peak < 320, f"{peak} MB over what was there before, for row groups of 16 MB"


# ------------------------------------------------------------------------------------------------------------------ Feather


@pytest.mark.parametrize("compression", ["uncompressed", "lz4", "zstd"])
@pytest.mark.parametrize("place", ["local", "store"])
def test_feather(compression: str, place: str, tmp_path: Path, shelf: Any) -> None:
    for number in range(2):
        pf.write_feather(table(number * ROWS), str(tmp_path / f"{number}.feather"), chunksize=GROUP, compression=compression)
        shelf.objects[f"{number}.feather"] = (tmp_path / f"{number}.feather").read_bytes()
    query = dataio.scan_feather(f"{tmp_path}/*.feather" if place == "local" else "shelf://*.feather")
    assert ids(query.filter(cond.col("id").gt(27)).limit(5)) == [28, 29, 30, 31, 32]
    assert query.count() == 60
    assert query.filter(pl.col("word") == "w3").select("blob").to_polars().height == 15


def test_feather_reads_the_columns_that_are_asked_for(shelf: Any) -> None:
    out = io.BytesIO()
    pf.write_feather(table(0, 300), out, chunksize=100, compression="uncompressed")
    shelf.objects = {"a.feather": out.getvalue()}  # 3 MB
    query = dataio.scan_feather("shelf://a.feather")
    shelf.nbytes = 0
    assert query.select("id").to_polars().height == 300
    assert shelf.nbytes < 1_500_000


def test_damaged_feather_is_an_error_or_skipped(tmp_path: Path) -> None:
    pf.write_feather(table(), str(tmp_path / "a.feather"), chunksize=GROUP, compression="zstd")
    data = bytearray((tmp_path / "a.feather").read_bytes())
    middle = len(data) // 2
    data[middle : middle + 20_000] = bytes(20_000)
    (tmp_path / "a.feather").write_bytes(data)
    with pytest.raises(ValueError, match=r"a\.feather"):
        dataio.scan_feather(tmp_path / "a.feather").to_polars()
    query = dataio.scan_feather(tmp_path / "a.feather", on_corrupt="skip")
    left = query.to_polars().height
    assert left == ROWS - GROUP * len(query.skipped)
    assert 0 < left < ROWS


# -------------------------------------------------------------------------------------------------------------- CSV, NDJSON

LINES = 60_000


@pytest.fixture(scope="module")
def lines() -> dict[str, bytes]:
    """The same table as CSV and as NDJSON, longer than a first block; a text holds quotes and a line end."""
    frame = pl.DataFrame({"n": range(LINES), "x": [i * 0.5 for i in range(LINES)], "text": [f'say "{i}",\nand go' for i in range(LINES)]})
    return {"csv": frame.write_csv().encode(), "ndjson": frame.write_ndjson().encode()}


@pytest.mark.parametrize("kind", ["csv", "ndjson"])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("place", ["local", "store"])
def test_lines(kind: str, packed: bool, place: str, lines: dict[str, bytes], tmp_path: Path, shelf: Any) -> None:
    data = gzip.compress(lines[kind], 1) if packed else lines[kind]
    assert len(lines[kind]) > 1 << 21
    (tmp_path / f"a.{kind}").write_bytes(data)
    shelf.objects = {f"a.{kind}": data}
    query = getattr(dataio, f"scan_{kind}")(tmp_path / f"a.{kind}" if place == "local" else f"shelf://a.{kind}")
    assert query.columns() == ["n", "x", "text"]
    assert query.filter(pl.col("n") >= LINES - 2).collect() == [
        {"n": i, "x": i * 0.5, "text": f'say "{i}",\nand go'} for i in (LINES - 2, LINES - 1)
    ]
    assert query.filter(cond.col("x").lt(1)).select("text").limit(1).collect() == [{"text": 'say "0",\nand go'}]
    assert query.count() == LINES
    assert query.to_polars()["n"].to_list() == list(range(LINES))


def test_a_row_limit_ends_the_stream(lines: dict[str, bytes], shelf: Any) -> None:
    shelf.objects = {"a.csv": lines["csv"]}
    dataio.scan_csv("shelf://a.csv", n_rows=5).collect()
    shelf.nbytes = 0
    assert len(dataio.scan_csv("shelf://a.csv", n_rows=5).collect()) == 5
    assert shelf.nbytes <= 3 << 20


def test_options_of_parsing_hold_for_every_block(tmp_path: Path) -> None:
    text = "skipped\na;b\n" + "".join(f"{i};{'NA' if i % 2 else f'{i},5'}\n" for i in range(200_000))
    (tmp_path / "a.csv").write_text(text)
    query = dataio.scan_csv(tmp_path / "a.csv", separator=";", skip_rows=1, null_values="NA", decimal_comma=True, quote_char=None)
    frame = query.to_polars()
    assert frame.height == 200_000
    assert frame.schema == {"a": pl.Int64, "b": pl.Float64}
    assert frame["b"].null_count() == 100_000
    assert frame["b"][-2] == 199_998.5
    assert dataio.scan_csv(tmp_path / "a.csv", has_header=False, separator="\t", quote_char=None).count() == 200_002


def test_several_files_of_lines(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n,w\n1,x\n")
    (tmp_path / "b.csv").write_text("w,n\ny,2\n")  # another order
    assert dataio.scan_csv(f"{tmp_path}/*.csv").collect() == [{"n": 1, "w": "x"}, {"n": 2, "w": "y"}]
    (tmp_path / "c.csv").write_text("n,v\n1.5,z\n")
    with pytest.raises(SchemaError, match=r"c\.csv.*a\.csv.*lacks 'w'"):
        dataio.scan_csv(f"{tmp_path}/*.csv").to_polars()
    found = dataio.scan_csv(f"{tmp_path}/*.csv", on_schema="union", include_file_paths="path").to_polars()
    assert found.drop("path").rows() == [(1.0, "x", None), (2.0, "y", None), (1.5, None, "z")]
    assert found["path"].to_list()[-1] == str(tmp_path / "c.csv")


@pytest.mark.parametrize("place", ["local", "store"])
@pytest.mark.parametrize(("kind", "text"), [("csv", "a\n" + "1\n" * 900_000 + "x\n"), ("ndjson", '{"a":1}\n' * 300_000 + '{"a":\n')])
def test_a_line_that_cannot_be_parsed_names_file_and_place(kind: str, text: str, place: str, tmp_path: Path, shelf: Any) -> None:
    (tmp_path / f"bad.{kind}").write_text(text)
    shelf.objects = {f"bad.{kind}": text.encode()}
    with pytest.raises(ValueError, match=rf"bad\.{kind}: the lines from byte [1-9][0-9,]* on"):
        getattr(dataio, f"scan_{kind}")(tmp_path / f"bad.{kind}" if place == "local" else f"shelf://bad.{kind}").to_polars()


def test_a_cut_off_stream_of_lines_is_an_error(lines: dict[str, bytes], tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(gzip.compress(lines["csv"], 1)[:-100])
    with pytest.raises(ValueError, match=r"a\.csv"):
        dataio.scan_csv(tmp_path / "a.csv").to_polars()


def test_an_empty_file_of_lines_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").touch()
    with pytest.raises(ValueError, match=r"a\.csv"):
        dataio.scan_csv(tmp_path / "a.csv").to_polars()


# ----------------------------------------------------------------------------------------------------------------- TFRecord


def test_tfrecord_pushes_down_into_the_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataio.sources import tfrecord_columns

    for number in range(2):
        dataio.write_tfrecord(tmp_path / f"{number}.tfrecord", [{"label": number * 10 + i, "image": b"x" * 100} for i in range(10)])
    query = dataio.scan_tfrecord(f"{tmp_path}/*.tfrecord")
    query.columns()
    parsed: list[tuple[str, ...]] = []
    inner = tfrecord_columns.parse_example

    def counted(payload: bytes, wanted: Any = None) -> Any:
        parsed.append(tuple(sorted(wanted)))
        return inner(payload, wanted)

    monkeypatch.setattr(tfrecord_columns, "parse_example", counted)
    assert query.filter(pl.col("label").is_in([3, 15])).select("image").to_polars().height == 2
    assert sorted(parsed) == [("image",)] * 2 + [("label",)] * 20


def test_damaged_records_are_counted(tmp_path: Path) -> None:
    dataio.write_tfrecord(tmp_path / "a.tfrecord", [{"n": i} for i in range(20)])
    data = bytearray((tmp_path / "a.tfrecord").read_bytes())
    data[len(data) // 2] ^= 255
    (tmp_path / "a.tfrecord").write_bytes(data)
    with pytest.raises(ValueError, match=r"a\.tfrecord"):
        dataio.scan_tfrecord(tmp_path / "a.tfrecord").to_polars()
    query = dataio.scan_tfrecord(tmp_path / "a.tfrecord", on_corrupt="skip")
    assert query.count() in (18, 19)
    assert [(part.uri, part.rows) for part in query.skipped] == [(str(tmp_path / "a.tfrecord"), None)]


# --------------------------------------------------------------------------------------------------------------- tar shards


def tar(samples: int, start: int = 0, size: int = 100_000, suffixes: tuple[str, ...] = ("jpg", "cls")) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as file:
        for number in range(start, start + samples):
            for suffix in suffixes:
                data = random.Random(number).randbytes(size) if suffix == "jpg" else b"%d" % number
                entry = tarfile.TarInfo(f"{number:05}.{suffix}")
                entry.size = len(data)
                file.addfile(entry, io.BytesIO(data))
    return out.getvalue()


def test_a_row_for_each_sample(tmp_path: Path) -> None:
    for number in range(2):
        (tmp_path / f"{number}.tar").write_bytes(tar(5, number * 5, 1000))
    query = dataio.scan_webdataset(f"{tmp_path}/{{0..1}}.tar")
    assert query.columns() == ["__key__", "__shard__", "jpg", "cls"]
    assert query.select("__key__", "cls").limit(2, 4).collect() == [{"__key__": "00004", "cls": b"4"}, {"__key__": "00005", "cls": b"5"}]
    rows = query.filter(pl.col("cls") == b"7").collect()
    assert rows == [{"__key__": "00007", "__shard__": str(tmp_path / "1.tar"), "jpg": random.Random(7).randbytes(1000), "cls": b"7"}]
    assert query.count() == 10


def test_a_label_scan_reads_under_two_percent(tmp_path: Path, rchar: Any) -> None:
    (tmp_path / "a.tar").write_bytes(data := tar(200))
    query = dataio.scan_webdataset(tmp_path / "a.tar")
    assert rchar(lambda: query.select("__key__", "cls").to_polars()) < 0.02 * len(data)
    assert rchar(lambda: query.filter(pl.col("cls").is_in([b"5"])).select("jpg").to_polars()) < 0.02 * len(data) + 110_000


def test_with_a_kept_index_a_label_scan_of_a_store_reads_labels(tmp_path: Path, shelf: Any) -> None:
    shelf.objects = {f"{n}.tar": tar(40, n * 40) for n in range(2)}  # 8 MB
    index = str(tmp_path / "index.arrow")
    dataio.scan_webdataset("shelf://*.tar", index=index)
    shelf.nbytes = 0
    query = dataio.scan_webdataset("shelf://*.tar", index=index)
    assert query.select("cls").to_polars()["cls"].to_list() == [b"%d" % n for n in range(80)]
    assert shelf.nbytes < 0.02 * 8_000_000
    source = query.plan.source  # type: ignore[attr-defined]
    assert source.length() == 80
    assert source.take([70, 3], ("cls",)).column(0).to_pylist() == [b"70", b"3"]


def test_compressed_shards_are_read_forwards(tmp_path: Path) -> None:
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(tar(10, 0, 100)))
    query = dataio.scan_webdataset(tmp_path / "a.tar.gz")
    assert query.filter(pl.col("cls") == b"7").select("__key__", "jpg").collect() == [{"__key__": "00007", "jpg": random.Random(7).randbytes(100)}]


def test_shards_with_other_suffixes(tmp_path: Path) -> None:
    (tmp_path / "0.tar").write_bytes(tar(2, 0, 10))
    (tmp_path / "1.tar").write_bytes(tar(2, 2, 10, ("jpg", "json")))
    with pytest.raises(SchemaError, match=r"1\.tar.*0\.tar.*lacks 'cls'; has 'json' besides"):
        dataio.scan_webdataset(f"{tmp_path}/*.tar").select("jpg").to_polars()
    union = dataio.scan_webdataset(f"{tmp_path}/*.tar", on_schema="union").select("cls", "json").to_polars()
    assert union.rows() == [(b"0", None), (b"1", None), (None, b"2"), (None, b"3")]
    chosen = dataio.scan_webdataset(f"{tmp_path}/*.tar", suffixes=["json"])
    assert chosen.columns() == ["__key__", "__shard__", "json"]
    assert chosen.select("json").to_polars()["json"].to_list() == [None, None, b"2", b"3"]


def test_a_damaged_shard(tmp_path: Path) -> None:
    data = bytearray(tar(10, 0, 1000))
    data[len(data) // 2 // 512 * 512 : len(data) // 2 // 512 * 512 + 4096] = b"\xff" * 4096
    (tmp_path / "0.tar").write_bytes(data)
    (tmp_path / "1.tar").write_bytes(tar(2, 20, 10))
    with pytest.raises(ValueError, match=r"0\.tar"):
        dataio.scan_webdataset(f"{tmp_path}/*.tar").select("cls").to_polars()
    query = dataio.scan_webdataset(f"{tmp_path}/*.tar", on_corrupt="skip")
    found = query.select("cls").to_polars()["cls"].to_list()
    assert found[-2:] == [b"20", b"21"]
    assert 0 < len(found) - 2 < 10
    assert [(part.uri, part.rows) for part in query.skipped] == [(str(tmp_path / "0.tar"), None)]


def test_an_entry_that_is_too_large_is_refused_before_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(tar(1, 0, 5000))
    query = dataio.scan_webdataset(tmp_path / "a.tar", max_output_bytes=4000)
    assert query.select("cls").to_polars().height == 1
    with pytest.raises(ResponseTooLargeError, match=r"00000\.jpg has 5,000 bytes"):
        query.to_polars()


def test_names_that_are_no_text_stay_apart(tmp_path: Path) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT, encoding="utf-8", errors="surrogateescape") as file:
        for name in ("a\udcff.txt", "a\udcfe.txt"):
            entry = tarfile.TarInfo(name)
            entry.size = 1
            file.addfile(entry, io.BytesIO(b"x"))
    (tmp_path / "a.tar").write_bytes(out.getvalue())
    assert dataio.scan_webdataset(tmp_path / "a.tar").select("__key__").to_polars()["__key__"].to_list() == ["a\\xff", "a\\xfe"]


# -------------------------------------------------------------------------------------------------------------------- files


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """40 JPEGs with a long tail, a text and a picture with a false name."""
    for number in range(40):
        (tmp_path / f"{number:02}.jpg").write_bytes(encoded(16 + number, 32) + bytes(100_000 + number))
    (tmp_path / "note.txt").write_text("no picture")
    (tmp_path / "zz.bin").write_bytes(encoded(7, 9, format="PNG"))
    return tmp_path


def test_files_as_rows(pictures: Path) -> None:
    query = dataio.scan_files(pictures)
    assert query.columns() == ["path", "size", "mtime", "width", "height", "format"]
    rows = query.collect()
    assert len(rows) == 42
    info = (pictures / "03.jpg").stat()
    assert rows[3] | {"mtime": 0} == {"path": str(pictures / "03.jpg"), "size": info.st_size, "mtime": 0, "width": 32, "height": 19, "format": "jpeg"}
    assert abs(rows[3]["mtime"].timestamp() - info.st_mtime) < 2e-6
    assert [row["format"] for row in rows[-2:]] == [None, "png"]
    assert query.filter(cond.col("format").eq("png")).select("width").collect() == [{"width": 9}]
    assert query.count() == 42


def test_a_condition_on_width_reads_headers_and_one_on_size_reads_nothing(pictures: Path, rchar: Any) -> None:
    query = dataio.scan_files(f"{pictures}/*.jpg")
    assert rchar(lambda: query.filter(pl.col("height") > 50).select("path").to_polars()) < 41 * 5_000
    assert rchar(lambda: query.filter(pl.col("size") > 100_900).select("path", "size").to_polars()) < 2_000
    # The cheaper condition first: headers of the files that it leaves.
    both = query.filter((pl.col("height") > 20) & (pl.col("path").str.ends_with("39.jpg")))
    assert rchar(lambda: both.select("path").to_polars()) < 10_000


def test_headers_of_objects(shelf: Any) -> None:
    shelf.objects = {f"i/{n}.jpg": encoded(20 + n, 40) + bytes(500_000) for n in range(30)}
    query = dataio.scan_files("shelf://i/")
    shelf.requests = shelf.nbytes = 0
    assert query.filter(pl.col("size") > 0).select("path").count() == 30
    assert shelf.requests == 0  # the listing told
    shelf.seconds = lambda key: 0.02
    assert query.filter(pl.col("height") >= 48).select("width").to_polars()["width"].to_list() == [40, 40]
    assert shelf.nbytes < 30 * 20_000
    assert shelf.most > 4


def test_a_long_header_and_a_damaged_one(tmp_path: Path) -> None:
    plain = encoded(20, 30)
    block = b"\xff\xe2" + (60_000).to_bytes(2, "big") + bytes(59_998)
    (tmp_path / "a.jpg").write_bytes(plain[:2] + block * 3 + plain[2:])
    (tmp_path / "b.jpg").write_bytes(plain[:40])
    (tmp_path / "c.jpg").touch()
    assert dataio.scan_files(f"{tmp_path}/*.jpg").select("height").to_polars()["height"].to_list() == [20, None, None]


def test_a_file_that_went_since_it_was_listed(pictures: Path) -> None:
    query = dataio.scan_files(pictures)
    (pictures / "05.jpg").unlink()
    assert query.select("path").count() == 42
    for column in ("size", "width"):
        with pytest.raises(FileNotFoundError, match=r"05\.jpg"):
            query.select(column).to_polars()


# -------------------------------------------------------------------------------------------------------------- safetensors


def test_a_row_for_each_tensor(tmp_path: Path) -> None:
    import torch

    tensors = {"w": torch.arange(6, dtype=torch.bfloat16).reshape(2, 3), "b": torch.zeros(4), "s": torch.tensor(3)}
    dataio.write_safetensors(tmp_path / "a.safetensors", tensors)
    dataio.write_safetensors(tmp_path / "b.safetensors", {"x": np.ones(1000, np.float32)})
    (tmp_path / "config.json").write_text("{}")
    query = dataio.scan_safetensors(tmp_path)
    rows = query.select("file", "name", "dtype", "shape", "bytes").collect()
    assert [tuple(row.values())[1:] for row in rows if row["file"].endswith("a.safetensors")] == [
        ("w", "bfloat16", [2, 3], 12), ("b", "float32", [4], 16), ("s", "int64", [], 8),
    ]  # fmt: skip
    assert query.filter(pl.col("bytes") > 100).select("name").collect() == [{"name": "x"}]
    place = query.filter(pl.col("name") == "s").select("offset", "data").collect()[0]
    assert place["data"] == (3).to_bytes(8, "little")
    assert (tmp_path / "a.safetensors").read_bytes()[place["offset"] :][:8] == place["data"]


def test_payloads_are_not_read_unless_asked_for(shelf: Any) -> None:
    from safetensors.numpy import save

    shelf.objects = {f"{n}.safetensors": save({"a": np.zeros(1 << 20, np.float32), "b": np.ones(3, np.int8)}) for n in range(2)}
    query = dataio.scan_safetensors("shelf://*.safetensors")
    assert query.filter(pl.col("name") == "b").select("data").to_polars()["data"].to_list() == [b"\1\1\1"] * 2
    assert shelf.nbytes < 50_000


def test_a_damaged_safetensors_file(tmp_path: Path) -> None:
    dataio.write_safetensors(tmp_path / "a.safetensors", {"x": np.ones(10, np.float32)})
    (tmp_path / "b.safetensors").write_bytes((tmp_path / "a.safetensors").read_bytes()[:-4])
    with pytest.raises(ValueError, match=r"b\.safetensors.*truncated"):
        dataio.scan_safetensors(tmp_path).to_polars()
    query = dataio.scan_safetensors(tmp_path, on_corrupt="skip")
    assert query.select("name").collect() == [{"name": "x"}]
    assert [part.uri for part in query.skipped] == [str(tmp_path / "b.safetensors")]


# ------------------------------------------------------------------------------------------------------------- Hugging Face


@pytest.fixture
def hub() -> Any:
    return datasets.Dataset.from_dict({"n": list(range(100)), "word": [f"w{i % 3}" for i in range(100)]})


def test_a_hugging_face_data_set(hub: Any, tmp_path: Path) -> None:
    query = dataio.scan_hf(hub.select(range(50, 100)))
    assert query.filter(pl.col("word") == "w1").select("n").limit(2).collect() == [{"n": 52}, {"n": 55}]
    hub.save_to_disk(str(tmp_path / "saved"))
    assert dataio.scan_hf(tmp_path / "saved").count() == 100
    hub.to_parquet(str(tmp_path / "a.parquet"))
    named = dataio.scan_hf("parquet", data_files=str(tmp_path / "a.parquet"), split="train", cache_dir=str(tmp_path / "cache"))
    assert named.filter(cond.col("n").ge(98)).select("n").collect() == [{"n": 98}, {"n": 99}]


def test_splits_are_chosen(hub: Any) -> None:
    several = datasets.DatasetDict({"train": hub, "test": hub.select(range(5))})
    assert dataio.scan_hf(several, split="test").count() == 5
    with pytest.raises(ValueError, match="'train', 'test'"):
        dataio.scan_hf(several)
    with pytest.raises(ValueError, match="no split 'dev'"):
        dataio.scan_hf(several, split="dev")
    with pytest.raises(TypeError, match=r"datasets\.Dataset"):
        dataio.scan_hf([1])
    with pytest.raises(TypeError, match="with a name only"):
        dataio.scan_hf(hub, split="train")


def test_nothing_stays_open(folder: Path) -> None:
    def descriptors() -> Iterator[str]:
        for number in os.listdir("/proc/self/fd"):
            try:
                yield os.readlink(f"/proc/self/fd/{number}")
            except FileNotFoundError:
                continue

    query = dataio.scan_parquet(f"{folder}/*.parquet", on_corrupt="skip")
    assert ids(query.limit(40)) == list(range(40))
    ids(query)
    assert not [name for name in descriptors() if name.startswith(str(folder))]


# ----------------------------------------------------------------------------------------------------------------- training


def labels(loader: Any, steps: int | None = None) -> list[int]:
    found: list[int] = []
    for number, batch in enumerate(loader, 1):
        found += [int(value) for value in batch["label"]]
        if number == steps:
            break
    return found


@pytest.fixture
def training(tmp_path: Path, shelf: Any) -> dict[str, Any]:
    """The same 24 records as Parquet data sets and as tar shards."""
    records = [(encoded(8, 8, seed=i), i) for i in range(24)]
    for part in range(3):
        rows = records[part * 8 : part * 8 + 8]
        table = pa.table({"image": [image for image, _ in rows], "label": pa.array([label for _, label in rows], pa.int64())})
        pq.write_table(table, tmp_path / f"{part}.parquet", row_group_size=4)
        shelf.objects[f"d/{part}.parquet"] = (tmp_path / f"{part}.parquet").read_bytes()
    return {"local": f"{tmp_path}/*.parquet", "store": "shelf://d/"}


@pytest.mark.parametrize("place", ["local", "store"])
def test_a_data_set_is_trained_on_filtered_shuffled_and_resumed(place: str, training: dict[str, Any]) -> None:
    def loader() -> Any:
        query = dataio.scan_parquet(training[place]).filter(cond.col("label").ge(3))
        pipe = dataio.pipeline(dataio.slot("image").decode_image(), dataio.slot("label").passthrough(), dataio.batch(4))
        return pipe.bind(query).run("numpy", workers="thread")

    with loader() as whole:
        expected = labels(whole)
    assert sorted(expected) == list(range(3, 24))
    with loader() as first:
        head = labels(first, 2)
        state = first.state_dict()
    with loader() as second:
        second.load_state_dict(state)
        assert head + labels(second) == expected


def test_a_scan_travels_to_another_process(folder: Path) -> None:
    source = dataio.scan_parquet(f"{folder}/*.parquet").plan.source  # type: ignore[attr-defined]
    assert source.take([3], ("id",)).column(0).to_pylist() == [3]
    again = pickle.loads(pickle.dumps(source))
    assert again.take([88], ("id",)).column(0).to_pylist() == [88]


def test_row_groups_are_counted_over_all_files(folder: Path) -> None:
    query = dataio.scan_parquet(f"{folder}/*.parquet")
    assert ids(query.row_groups([0, 17])) == [*range(5), *range(85, 90)]
    assert ids(query.filter(pl.col("id") > 86).row_groups([17, 3])) == [87, 88, 89]
    with pytest.raises(IndexError, match="18 row groups, no number 18"):
        query.row_groups([18]).to_polars()
    assert query.plan.source.group_starts().tolist() == list(range(0, 91, 5))  # type: ignore[attr-defined]


def test_a_data_set_that_changed_between_passes(folder: Path) -> None:
    from dataio.engine.errors import SourceError

    source = dataio.scan_parquet(f"{folder}/*.parquet").plan.source  # type: ignore[attr-defined]
    source.check()
    (folder / "part-1.parquet").write_bytes(parquet(table(0, 7)))
    with pytest.raises(SourceError, match=r"part-1\.parquet changed"):
        source.check()
