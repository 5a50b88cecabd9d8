"""`read_feather`, `write_feather`."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import dataio

pytestmark = pytest.mark.usefixtures("no_leftovers")

TABLE = pa.table(
    {
        "id": pa.array([1, None, 3], pa.int16()),
        "half": pa.array([0.5, None, 2.0], pa.float32()).cast(pa.float16()),
        "text": pa.array(["a", None, "ü"], pa.large_string()),
        "raw": pa.array([b"\x00", b"", None]),
        "day": pa.array([0, 1, None], pa.int32()).cast(pa.date32()),
        "kind": pa.array(["x", "y", "x"]).dictionary_encode(),
        "tags": pa.array([["a"], [], None]),
        "st": pa.array([{"x": 1}, None, {"x": None}]),
    }
)
ROWS = [
    {"id": 1, "half": 0.5, "text": "a", "raw": b"\x00", "day": 0, "kind": "x", "tags": ["a"], "st": {"x": 1}},
    {"id": None, "half": None, "text": None, "raw": b"", "day": 1, "kind": "y", "tags": [], "st": None},
    {"id": 3, "half": 2.0, "text": "ü", "raw": None, "day": None, "kind": "x", "tags": None, "st": {"x": None}},
]


@pytest.mark.parametrize("compression", ["none", "LZ4", "zstd"])
def test_rows_of_all_types_round_trip(tmp_path: Path, compression: str) -> None:
    dataio.write_feather(tmp_path / "x.arrow", TABLE, compression=compression)
    assert dataio.read_feather(tmp_path / "x.arrow") == ROWS
    assert pa.ipc.open_file(tmp_path / "x.arrow").read_all().equals(TABLE)


def test_any_source_and_store(tmp_path: Path, s3_bucket: str) -> None:
    dataio.write_feather(f"{s3_bucket}/x.arrow", TABLE)
    data = dataio.read(f"{s3_bucket}/x.arrow")
    (tmp_path / "x.arrow").write_bytes(data)
    for source in (f"{s3_bucket}/x.arrow", data, io.BytesIO(data), dataio.reader(f"{s3_bucket}/x.arrow"), f"file://{tmp_path}/x.arrow"):
        assert dataio.read_feather(source) == ROWS


@pytest.mark.parametrize("table", [pl.DataFrame({"id": [1, 2]}), pd.DataFrame({"id": [1, 2]}), pa.table({"id": [1, 2]}).to_reader()], ids=["polars", "pandas", "reader"])
def test_frames_and_readers(tmp_path: Path, table: Any) -> None:
    dataio.write_feather(tmp_path / "x.arrow", table)
    assert dataio.read_feather(tmp_path / "x.arrow") == [{"id": 1}, {"id": 2}]


def test_an_empty_table_keeps_its_columns(tmp_path: Path) -> None:
    dataio.write_feather(tmp_path / "x.arrow", TABLE.slice(0, 0))
    assert dataio.read_feather(tmp_path / "x.arrow") == []
    assert pa.ipc.open_file(tmp_path / "x.arrow").schema == TABLE.schema


def stream() -> bytes:
    out = io.BytesIO()
    with pa.ipc.new_stream(out, TABLE.schema) as made:
        made.write_table(TABLE)
    return out.getvalue()


@pytest.mark.parametrize(
    ("data", "says"),
    [(stream(), "it looks like an IPC stream"), (b"FEA1" + bytes(20), "version 1"), (b"", "it is empty"), (b"PAR1" * 9, "it starts with b'PAR1PA'"), (b"ARROW1\0\0", "not an Arrow IPC file")],
)  # fmt: skip
def test_other_data_is_refused_by_name(tmp_path: Path, data: bytes, says: str) -> None:
    (tmp_path / "x.arrow").write_bytes(data)
    with pytest.raises(ValueError, match=f"x.arrow.*{says}"):
        dataio.read_feather(tmp_path / "x.arrow")


@pytest.mark.parametrize("keep", [0.2, 0.6, 0.99])
def test_a_file_cut_short_is_refused(tmp_path: Path, keep: float) -> None:
    dataio.write_feather(tmp_path / "x.arrow", TABLE)
    data = (tmp_path / "x.arrow").read_bytes()
    with pytest.raises(ValueError, match="not an Arrow IPC file"):
        dataio.read_feather(data[: int(len(data) * keep)])


def test_offsets_that_lead_outside_are_refused(tmp_path: Path) -> None:
    dataio.write_feather(tmp_path / "x.arrow", pa.table({"s": pa.array(["abc", "de"])}))
    data = (tmp_path / "x.arrow").read_bytes()
    offsets = (0).to_bytes(4, "little") + (3).to_bytes(4, "little") + (5).to_bytes(4, "little")
    assert data.count(offsets) == 1
    with pytest.raises(ValueError, match="not an Arrow IPC file"):
        dataio.read_feather(data.replace(offsets, offsets[:8] + b"\xff\xff\xff\x7f"))


def test_a_missing_file_is_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        dataio.read_feather(tmp_path / "none.arrow")


@pytest.mark.parametrize(("table", "compression", "error"), [([1], "none", TypeError), (TABLE, "gzip", ValueError), (TABLE, None, ValueError)])
def test_what_cannot_be_written_leaves_nothing(tmp_path: Path, table: Any, compression: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        dataio.write_feather(tmp_path / "x.arrow", table, compression=compression)
    assert list(tmp_path.iterdir()) == []
