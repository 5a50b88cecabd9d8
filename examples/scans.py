"""Files of every kind as tables: what they hold is read only where a query asks for it.

    python examples/scans.py

Every path may be a URI, a folder or a pattern (`s3://bucket/*.csv`). `tables.py` asks Parquet files, `tfrecord.py` TFRecord files.
"""

from __future__ import annotations

import io
import tarfile
import tempfile
from pathlib import Path

import numpy as np
import polars as pl

import dataio

FRAME = pl.DataFrame({"id": range(6), "height": [240, 480, 720, 1080, 1440, 2160]})


def tables(folder: Path) -> None:
    FRAME.write_csv(folder / "x.csv")
    FRAME.write_ndjson(folder / "x.ndjson")
    dataio.write_feather(folder / "x.arrow", FRAME)
    queries = [dataio.scan_csv(folder / "x.csv"), dataio.scan_ndjson(folder / "x.ndjson"), dataio.scan_feather(folder / "x.arrow")]
    print("tables:", [query.filter(pl.col("height") > 1000).count() for query in queries])


def files(folder: Path) -> None:
    """Sizes of images come from their headers."""
    for width in (30, 60, 90):
        dataio.write_image(folder / f"{width}.png", np.zeros((20, width, 3), np.uint8))
    wide = dataio.scan_files(folder / "*.png").filter(pl.col("width") > 50).select("width", "height", "format")
    print("files:", wide.collect())


def shards(folder: Path) -> None:
    """The labels of tar shards without their pictures."""
    with tarfile.open(folder / "x.tar", "w") as tar:
        for i in range(4):
            for suffix, data in (("jpg", bytes(1000)), ("cls", b"%d" % (i % 2))):
                entry = tarfile.TarInfo(f"{i}.{suffix}")
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))
    print("labels:", [row["cls"] for row in dataio.scan_webdataset(folder / "x.tar").select("cls").collect()])


def tensors(folder: Path) -> None:
    """A row for each tensor of a checkpoint."""
    model = {"embed": np.zeros((100, 8), np.float32), "norm": np.ones(8, np.float16)}
    dataio.write_safetensors(folder / "model.safetensors", model)
    query = dataio.scan_safetensors(folder / "model.safetensors").select("name", "dtype", "bytes")
    print("tensors:", query.collect())


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tables(folder)
        files(folder)
        shards(folder)
        tensors(folder)


if __name__ == "__main__":
    main()
