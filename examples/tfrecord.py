"""TFRecord files: written, read as a stream, trained on by record, queried by column, and read in spite of damage.

    python examples/tfrecord.py
"""

from __future__ import annotations

import io
import logging
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

import dataio


def picture(i: int) -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.full((48, 64, 3), 6 * i, np.uint8)).save(out, "JPEG")
    return out.getvalue()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for shard in range(2):
            examples = [{"image": picture(i), "label": i % 3, "box": [0.0, 0.5, i / 40]} for i in range(shard, 40, 2)]
            dataio.write_tfrecord(f"{folder}/train-{shard}.tfrecord", examples)
        dataio.write_tfrecord(f"{folder}/small.tfrecord.gz", examples[:3], compression="gzip")  # any URI: s3://, gs://, ...

        first = next(dataio.iter_tfrecord(f"{folder}/small.tfrecord.gz"))
        print("first:", sorted(first), first["label"], len(first["image"][0]) > 0)

        # Indexed by the headers: a length, a shuffle over all files, shards for ranks, exact resume.
        source = dataio.tfrecord(f"{folder}/train-{{0..1}}.tfrecord").shuffle(seed=0)
        pipe = dataio.pipeline(
            dataio.slot("image").decode_image().resize(h=32, w=32),
            dataio.slot("label").passthrough(),
            dataio.batch(16),
        )
        with pipe.bind(source).run("numpy") as loader:
            for batch in loader:
                print("batch:", batch["image"].shape, len(batch["label"]))
        index = dataio.tfrecord_index(f"{folder}/train-0.tfrecord")  # made once, kept beside the file, given as index=[...]
        print("index:", len(index), "records, the last at byte", index.offsets[-1])

        query = dataio.scan_tfrecord(f"{folder}/train-{{0..1}}.tfrecord").filter(dataio.cond.col("label").eq(2)).select("label", "box")
        print("label 2:", len(query.collect()), "rows")

        path = Path(folder, "train-0.tfrecord")
        data = bytearray(path.read_bytes())
        data[300:310] = bytes(10)
        path.write_bytes(data)
        logging.basicConfig(format="%(message)s")  # says what was left out
        print("behind damage:", len(dataio.read_tfrecord(path, on_corrupt="skip")), "of 20")


if __name__ == "__main__":
    main()
