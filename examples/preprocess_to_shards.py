"""Decode and resize once, store the result as shards, and train from them: `sink_parquet` and its siblings.

    python examples/preprocess_to_shards.py
"""

from __future__ import annotations

import io
import json
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

import dataio


def picture(i: int) -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.full((48, 64, 3), 10 * i, np.uint8)).save(out, "JPEG")
    return out.getvalue()


def main() -> None:
    records = [{"image": picture(i), "key": f"p{i:02d}", "label": i % 3} for i in range(20)]
    records[7]["image"] = b"no image"
    prepared = dataio.pipeline(dataio.slot("image").decode_image().resize(h=32, w=32), dataio.batch(8)).bind(records)

    with tempfile.TemporaryDirectory() as folder:
        report = prepared.sink_parquet(f"{folder}/parquet", shard_size=8, columns=["label"])
        print("parquet:", report.shards, f"{report.rows} rows, {report.failed} failed")
        print("failed record:", report.errors[0]["key"])
        train = dataio.pipeline(dataio.slot("image").decode(dataio.decoders.array()), dataio.batch(8))
        with train.bind(dataio.scan_parquet(f"{folder}/parquet/part-00000.parquet")).run("numpy") as loader:
            print("from parquet:", next(iter(loader))["image"].shape)

        again = prepared.sink_parquet(f"{folder}/parquet", shard_size=8, columns=["label"])  # after a crash: goes on
        print("again:", again == report, json.loads(Path(folder, "parquet/_dataio.json").read_bytes())["complete"])

        tars = prepared.sink_webdataset(f"{folder}/tar", shard_size=8, columns=["label"], encode={"image": "png"})
        train = dataio.pipeline(dataio.slot("image.png").decode_image(), dataio.batch(19))
        with train.bind(dataio.webdataset(f"{folder}/tar/part-{{00000..{len(tars.shards) - 1:05d}}}.tar")).run("numpy") as loader:
            print("from tars:", next(iter(loader))["image.png"].shape)

        for made in (
            prepared.sink_feather(f"{folder}/feather", shard_size="32KB"),
            prepared.sink_safetensors(f"{folder}/safetensors", shard_size="32KB"),
            prepared.sink_tfrecord(f"{folder}/tfrecord", shard_size="32KB"),
        ):
            print(made.shards[0], "and so on:", len(made.shards), "shards,", made.rows, "rows")


if __name__ == "__main__":
    main()
