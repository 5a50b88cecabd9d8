"""Tables: write Parquet from any frame, ask it questions, train on the answer, keep it as Feather."""

from __future__ import annotations

import tempfile

import numpy as np
import polars as pl

import dataio


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        rng = np.random.default_rng(0)
        frame = pl.DataFrame(
            {"id": range(10_000), "height": rng.integers(16, 2048, 10_000), "label": [f"class {i % 7}" for i in range(10_000)]}
        )
        dataio.write_parquet(f"{folder}/images.parquet", frame, row_group_size=1_000)
        about = dataio.parquet_metadata(f"{folder}/images.parquet")
        print(f"{about['num_rows']} rows in {about['num_row_groups']} row groups")
        print("two rows:", dataio.read_parquet(f"{folder}/images.parquet", columns=["id", "label"], offset=5_000, limit=2))

        col = dataio.parquet.col
        query = dataio.scan_parquet(f"{folder}/images.parquet").filter((col("id") < 1_500) & (col("height") > 2_000))
        query = query.where("label", "in", ["class 1", "class 2"]).select(["id", "height"])
        print("row groups read:", query.explain()["candidate_row_groups"])
        print(f"{query.count()} rows, the first: {query.head(1).collect()}")

        pipe = dataio.pipeline(dataio.slot("id").passthrough(), dataio.slot("height").passthrough(), dataio.batch(4))
        with pipe.bind(query).run("numpy") as loader:
            print("batches:", [len(batch["id"]) for batch in loader])

        dataio.write_feather(f"{folder}/found.arrow", query, compression="lz4")
        print("as Feather:", dataio.read_feather(f"{folder}/found.arrow") == query.collect())


if __name__ == "__main__":
    main()
