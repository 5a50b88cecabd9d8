"""Compare lazy queries over tables, tar shards and image files: one run, the same files in the page cache, the clients taking turns.

    python bench/query.py                                 everything; some minutes; writes docs/benchmark.md
    python bench/query.py --cases labels,headers --no-write    some cases, printed only
    python bench/query.py --quick                         does everything run? its figures mean nothing

What each case does and how it is measured is described in docs/benchmark.md.
"""

from __future__ import annotations

from pathlib import Path

import loader
import query_data
from rounds import RUST, Comparison, Row, main

CLIENTS = {  # title: environment, client of the runner
    "dataio": ("own", "dataio"),
    "dataio-rs 0.4.7": ("rs047", "dataio"),
    "dataio-rs 0.4.15": ("rs0415", "dataio"),
    "Polars": ("own", "polars"),
    "pyarrow": ("own", "pyarrow"),
    "DuckDB": ("own", "duckdb"),
    "datasets": ("own", "datasets"),
    "webdataset": ("own", "webdataset"),
    "Pillow": ("own", "pillow"),
}
TABLES = (*RUST, "Polars", "pyarrow", "DuckDB")
TARGETS = {"Polars": 0.97, "dataio-rs": 1.3}
ROWS = {
    "full-16": Row("full-16", 2, "million rows/s", 1e6, (*TABLES, "datasets"), TARGETS, True),
    "full-2": Row("full-2", 2, "million rows/s", 1e6, (*TABLES, "datasets"), TARGETS, True),
    "filtered-16": Row("filtered-16", 2, "million rows/s", 1e6, TABLES, TARGETS, True),
    "filtered-2": Row("filtered-2", 2, "million rows/s", 1e6, TABLES, TARGETS, True),
    "count-16": Row("count-16", 2, "million rows/s", 1e6, TABLES, TARGETS, True),
    "labels": Row("labels", 2, "samples/s", 1, (*RUST, "webdataset", "datasets"), {}),
    "headers": Row("headers", 2, "files/s", 1, ("Pillow", "datasets"), {}),
}


def make(target: Path, scale: float) -> None:
    query_data.make(target, loader.DATA, scale)


if __name__ == "__main__":
    main(Comparison("query", __doc__.splitlines()[0], CLIENTS, ROWS, make, {"read": "of the bytes read"}))
