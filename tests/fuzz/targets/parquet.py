"""`read_parquet`, `parquet_metadata` and queries with conditions."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq

import dataio
from dataio.engine.errors import OpError

TABLE = pa.table(
    {
        "i": pa.array([1, None, 3, 4], pa.int32()),
        "s": pa.array(["a", "b", None, "a"]),
        "l": pa.array([[1.5], [], None, [2.0, 3.0]]),
        "st": pa.array([{"x": True}, None, {"x": None}, {"x": False}]),
        "d": pa.array(["1.50", None, "0.10", "2.00"]).cast(pa.decimal128(5, 2)),
    }
)


def _parquet(table: pa.Table, **options: object) -> bytes:
    out = io.BytesIO()
    pq.write_table(table, out, store_schema=False, **options)
    return out.getvalue()


def seeds() -> list[bytes]:
    """Small files of several types, encodings and page versions."""
    return [
        _parquet(TABLE, row_group_size=2),
        _parquet(TABLE.select(["i", "s"]), compression="zstd", data_page_version="2.0"),
        _parquet(TABLE.select(["i"]), use_dictionary=False, column_encoding="DELTA_BINARY_PACKED", compression="none"),
        _parquet(TABLE.select(["s"]), use_dictionary=False, column_encoding="DELTA_BYTE_ARRAY", compression="gzip"),
        _parquet(TABLE.slice(0, 0)),
    ]


def run(data: bytes) -> None:
    """Read all that the file offers."""
    try:
        found = dataio.parquet_metadata(data)
        if found["num_rows"] < 10_000:  # a run of one value may be long, and small
            dataio.read_parquet(data)
            query = dataio.scan_parquet(data)
            for column in found["columns"]:
                query.where(column["name"], "!=", "a").count()
    except (OpError, KeyError, TypeError):
        return
