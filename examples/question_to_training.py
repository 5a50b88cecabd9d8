"""From a question to a training run: one plan is explored, looked at, cut down by what pictures look like, trained on, stopped and resumed.

    python examples/question_to_training.py

Where pysail and pyspark-client are installed, the same pipeline runs on Sail, an engine that speaks Spark, in this process.
`docs/queries.md` explains each step.
"""

from __future__ import annotations

import importlib.util
import io
import tempfile
from pathlib import Path

import numpy as np
import polars as pl
from PIL import Image

import dataio


def picture(light: int, size: int) -> bytes:
    out = io.BytesIO()
    noise = np.random.default_rng(light).integers(0, 20, (size, size + 16, 3))
    Image.fromarray((light + noise).astype(np.uint8)).save(out, "JPEG")
    return out.getvalue()


def make(path: str) -> None:
    """A table of 48 pictures, from dark to light, and one that is damaged."""
    images = [picture(4 * i, 40 + 8 * (i % 3)) for i in range(48)]
    images[30] = images[30][:100]
    frame = pl.DataFrame({"id": range(48), "image": images, "label": [i % 4 for i in range(48)], "source": ["web" if i % 3 else "scan" for i in range(48)]})
    dataio.write_parquet(path, frame)


def step(batch: dataio.Batch) -> list[str]:
    """What would be a step of training; the keys it saw."""
    assert batch["image"].shape[1:] == (3, 32, 32)
    return list(batch.keys)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        table = f"{folder}/photos.parquet"
        make(table)

        # 1. Questions: nothing is read but what the answer needs.
        photos = dataio.scan_parquet(table)
        print("rows:", photos.count(), "columns:", [column["name"] for column in photos.schema()])
        print("by source:", photos.group_by("source").agg(pl.len().alias("n")).sort("source").collect())

        # 2. Looking: a page that shows pictures, ranges and what is damaged.
        page = photos.preview(n=40)
        page.save(f"{folder}/photos.html")
        print("shown:", Path(folder, "photos.html").stat().st_size > 1000, "damaged:", len(page.failures))

        # 3. A decoded property: dark photos, and damaged ones, are left out. Only the column that is asked for is decoded.
        seen = photos.with_slots(brightness=dataio.slot("image").decode_image(mode="gray").mean())
        good = seen.filter(pl.col("brightness") > 40).select("id", "image", "label")
        print("bright:", good.count())

        # 4. Training on the very same plan, shuffled; stopped in the middle of the second epoch, and resumed.
        pipe = dataio.pipeline(
            dataio.map(lambda row: {**row, "key": str(row["id"])}),
            dataio.slot("image").decode_image().random_crop(h=32, w=32).normalize("imagenet"),
            dataio.slot("label").decode_array(),
            dataio.batch(8),
        )
        bound = pipe.bind(dataio.records(good).shuffle(seed=7))
        with bound.run("numpy", seed=1) as loader:
            first = [key for batch in loader for key in step(batch)]
            whole = [key for batch in loader for key in step(batch)]
        with bound.run("numpy", seed=1) as loader:
            for _ in loader:
                pass
            steps = iter(loader)
            begun = step(next(steps)) + step(next(steps))
            state = loader.state_dict()
        with bound.run("numpy", seed=1) as resumed:
            resumed.load_state_dict(state)
            rest = [key for batch in resumed for key in step(batch)]
        print("epochs:", len(first), len(whole), "another order:", first != whole, "resumed:", begun + rest == whole)

        # 5. The same slots in bulk, on an engine that is there already.
        prepare = dataio.pipeline(dataio.slot("image").decode_image().resize(h=32, w=32), dataio.batch(16))
        batches = dataio.scan_parquet(table).collect_arrow_reader()
        done = [row for batch in prepare.as_arrow_function(columns=["id"])(batches) for row in batch.to_pylist()]
        print("in bulk:", len(done), "rows,", sum(row["error"] is not None for row in done), "with an error")
        if importlib.util.find_spec("pysail") and importlib.util.find_spec("pyspark"):
            print("on Sail:", on_sail(table, prepare))


def on_sail(table: str, prepare: dataio.Pipeline) -> str:
    """The same pipeline by `mapInArrow`."""
    from pysail.spark import SparkConnectServer
    from pyspark.sql import SparkSession

    from dataio.spark import map_in_arrow

    server = SparkConnectServer("127.0.0.1", 0)
    server.start(background=True)
    try:
        host, port = server.listening_address
        spark = SparkSession.builder.remote(f"sc://{host}:{port}").getOrCreate()
        try:
            rows = map_in_arrow(spark.read.parquet(table), prepare, columns=["id"]).collect()
        finally:
            spark.stop()
    finally:
        server.stop()
    return f"{len(rows)} rows, {sum(row['error'] is not None for row in rows)} with an error"


if __name__ == "__main__":
    main()
