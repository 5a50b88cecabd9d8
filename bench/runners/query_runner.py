"""One client, one case of bench/query.py, in a process of its own: prints one line of JSON."""

from __future__ import annotations

import glob
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ways import Case, Way, main

COLUMN, BOUND, WANTED = "height", 1_948, "name"
"""About one row in twenty, and one column of it."""
WIDTH = 300
"""Pictures wider than this: one in eight."""


def table_of(case: Case) -> str:
    return case.path("few.parquet" if case.name.endswith("2") else "many.parquet")


def rows_in(path: str) -> int:
    import pyarrow.parquet as pq

    return int(pq.ParquetFile(path).metadata.num_rows)


def all_rows(found: int, case: Case) -> int:
    assert found == rows_in(table_of(case)), found
    return found


def rows_looked_at(found: int, case: Case) -> int:
    rows = rows_in(table_of(case))
    assert 0.03 * rows < found < 0.07 * rows, found
    return rows


def shards_of(case: Case) -> list[str]:
    return sorted(glob.glob(case.path("tar/*.tar")))


def samples(counts: dict[bytes, int]) -> int:
    """How many labels were counted; there are ten different ones."""
    assert 1 < len(counts) <= 10, counts
    return sum(counts.values())


def images_of(case: Case) -> list[str]:
    return sorted(glob.glob(case.path("images/*.jpg")))


def wide(found: int, case: Case) -> int:
    """The files that were looked at, if about as many are wide as should be."""
    files = len(images_of(case))
    assert 0.1 * files < found < 0.15 * files, found
    return files


# ---------------------------------------------------------------- dataio and dataio-rs: the same names


def full_of_dataio(case: Case, module: Any) -> list[Way]:
    query = module.scan_parquet(table_of(case))
    ways: list[Way] = [lambda: all_rows(query.collect_arrow().num_rows, case)]
    return [*ways, lambda: all_rows(query.to_polars().height, case)] if hasattr(query, "to_polars") else ways


def filtered_of_dataio(case: Case, module: Any) -> list[Way]:
    query = module.scan_parquet(table_of(case)).where(COLUMN, ">", BOUND).select([WANTED])
    ways: list[Way] = [lambda: rows_looked_at(query.collect_arrow().num_rows, case)]
    return [*ways, lambda: rows_looked_at(query.to_polars().height, case)] if hasattr(query, "to_polars") else ways


def count_of_dataio(case: Case, module: Any) -> list[Way]:
    query = module.scan_parquet(table_of(case)).where(COLUMN, ">", BOUND)
    return [lambda: rows_looked_at(query.count(), case)]


def labels_of_dataio(case: Case, module: Any) -> list[Way]:
    if not hasattr(module, "scan_webdataset"):
        return [lambda: samples(Counter(bytes(record["cls"].read_all()) for record in module.webdataset(shards_of(case))))]
    size = sum(map(os.path.getsize, shards_of(case)))
    query = module.scan_webdataset(shards_of(case)).select("cls")

    def once() -> int:
        before = bytes_read()
        found = samples(Counter(query.collect_columns()["cls"]))
        case.facts["read"] = f"{(bytes_read() - before) / size:.1%}"
        return found

    once()  # the first time reads modules, too
    return [once]


def bytes_read() -> int:
    """What this process has read by system calls."""
    return int(Path("/proc/self/io").read_text().split()[1])


def headers_of_dataio(case: Case, module: Any) -> list[Way]:
    import polars as pl

    query = module.scan_files(case.path("images/*.jpg")).filter(pl.col("width") > WIDTH).select("path")
    return [lambda: wide(query.to_polars().height, case)]


# ---------------------------------------------------------------- other libraries


def full_of_polars(case: Case) -> list[Way]:
    import polars as pl

    return [lambda: all_rows(pl.scan_parquet(table_of(case)).collect().height, case)]


def filtered_of_polars(case: Case) -> list[Way]:
    import polars as pl

    query = pl.scan_parquet(table_of(case)).filter(pl.col(COLUMN) > BOUND).select(WANTED)
    return [lambda: rows_looked_at(query.collect().height, case)]


def count_of_polars(case: Case) -> list[Way]:
    import polars as pl

    query = pl.scan_parquet(table_of(case)).filter(pl.col(COLUMN) > BOUND).select(pl.len())
    return [lambda: rows_looked_at(query.collect().item(), case)]


def full_of_pyarrow(case: Case) -> list[Way]:
    import pyarrow.parquet as pq

    return [lambda: all_rows(pq.read_table(table_of(case)).num_rows, case)]


def filtered_of_pyarrow(case: Case) -> list[Way]:
    import pyarrow.parquet as pq

    return [lambda: rows_looked_at(pq.read_table(table_of(case), columns=[WANTED], filters=[(COLUMN, ">", BOUND)]).num_rows, case)]


def count_of_pyarrow(case: Case) -> list[Way]:
    import pyarrow.dataset as pds

    return [lambda: rows_looked_at(pds.dataset(table_of(case)).count_rows(filter=pds.field(COLUMN) > BOUND), case)]


def full_of_duckdb(case: Case) -> list[Way]:
    import duckdb

    return [lambda: all_rows(duckdb.sql(f"select * from '{table_of(case)}'").to_arrow_table().num_rows, case)]


def filtered_of_duckdb(case: Case) -> list[Way]:
    import duckdb

    text = f"select {WANTED} from '{table_of(case)}' where {COLUMN} > {BOUND}"
    return [lambda: rows_looked_at(duckdb.sql(text).to_arrow_table().num_rows, case)]


def count_of_duckdb(case: Case) -> list[Way]:
    import duckdb

    text = f"select count(*) from '{table_of(case)}' where {COLUMN} > {BOUND}"
    return [lambda: rows_looked_at(duckdb.sql(text).fetchall()[0][0], case)]


def full_of_datasets(case: Case) -> list[Way]:
    """The reader of the file that data sets are made with; without the cache on disk, which is another format."""
    from datasets import Dataset

    def once() -> int:
        found = Dataset.from_parquet(table_of(case), cache_dir=str(case.scratch / "datasets"), keep_in_memory=True)
        return all_rows(found.data.table.num_rows, case)

    return [once]


def labels_of_webdataset(case: Case) -> list[Way]:
    import webdataset as wds

    return [lambda: samples(Counter(cls for (cls,) in wds.WebDataset(shards_of(case), shardshuffle=False).to_tuple("cls")))]


def labels_of_datasets(case: Case) -> list[Way]:
    from datasets import load_dataset

    def once() -> int:
        stream = load_dataset("webdataset", data_files=shards_of(case), split="train", streaming=True)
        return samples(Counter(str(row["cls"]).encode() for row in stream.remove_columns("jpg")))

    return [once]


def headers_of_pillow(case: Case) -> list[Way]:
    from PIL import Image

    def once() -> int:
        found = 0
        for path in images_of(case):
            with Image.open(path) as image:
                found += image.width > WIDTH
        return wide(found, case)

    return [once]


def headers_of_datasets(case: Case) -> list[Way]:
    from datasets import Dataset
    from datasets import Image as Feature

    def once() -> int:
        rows = Dataset.from_dict({"image": images_of(case)}).cast_column("image", Feature(mode=None))
        return wide(sum(row["image"].width > WIDTH for row in rows), case)

    return [once]


CASES: dict[str, Callable[[Case, Any], list[Way]]] = {
    "full-16": full_of_dataio,
    "full-2": full_of_dataio,
    "filtered-16": filtered_of_dataio,
    "filtered-2": filtered_of_dataio,
    "count-16": count_of_dataio,
    "labels": labels_of_dataio,
    "headers": headers_of_dataio,
}
OF_TABLES = {
    "polars": (full_of_polars, filtered_of_polars, count_of_polars),
    "pyarrow": (full_of_pyarrow, filtered_of_pyarrow, count_of_pyarrow),
    "duckdb": (full_of_duckdb, filtered_of_duckdb, count_of_duckdb),
    "datasets": (full_of_datasets,),
}
OTHERS: dict[tuple[str, str], Callable[[Case], list[Way]]] = {
    (client, case): way
    for client, ways in OF_TABLES.items()
    for kind, way in zip(("full", "filtered", "count"), ways)
    for case in CASES
    if case.startswith(kind)
} | {
    ("webdataset", "labels"): labels_of_webdataset,
    ("datasets", "labels"): labels_of_datasets,
    ("pillow", "headers"): headers_of_pillow,
    ("datasets", "headers"): headers_of_datasets,
}


if __name__ == "__main__":
    main(__doc__.splitlines()[0], CASES, OTHERS)
