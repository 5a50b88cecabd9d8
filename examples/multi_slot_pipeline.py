"""Several slots in one pipeline: a picture, its label, and its caption, from generated data to torch tensors.

    python examples/multi_slot_pipeline.py

The records are rows of a small made-up data set: a path to a JPEG file, a class number and a sentence. A record map
renames the fields and adds one; each slot says how its field becomes values; one bad file shows what happens to it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import dataio

COLOURS = ("red", "green", "blue")
ROWS = 40
BATCH = 8


def make_dataset(folder: Path) -> list[dict[str, Any]]:
    """Pictures of many sizes, each mostly of one colour; row 13 is no JPEG."""
    rng = np.random.default_rng(0)
    rows = []
    for i in range(ROWS):
        colour = i % len(COLOURS)
        height, width = rng.integers(80, 200, size=2)
        pixels = rng.integers(0, 90, (height, width, 3), np.uint8)
        pixels[..., colour] += 160
        path = folder / f"{i:03d}.jpg"
        Image.fromarray(pixels).save(path, quality=90)
        rows.append({"id": i, "path": str(path), "class_id": colour, "caption": f"picture {i}: {COLOURS[colour]}"})
    (folder / "013.jpg").write_bytes(b"this is no JPEG")
    return rows


def to_record(row: dict[str, Any]) -> dict[str, Any]:
    """A row of the data set as a record of the pipeline: one field per slot, and one that an argument reads."""
    return {
        "key": f"row-{row['id']}",
        "image": row["path"],
        "label": row["class_id"],
        "caption": row["caption"].encode(),
        "edge": 72 if row["id"] % 2 else 96,
    }


def build() -> dataio.Pipeline:
    return dataio.pipeline(
        dataio.map(to_record),
        # A path: read, decoded, resized to this record's own size, cropped and mirrored at random.
        dataio.slot("image")
            .decode_image(mode="rgb")
            .resize(h=dataio.col("edge"), w=dataio.col("edge"))
            .center_crop(h=64, w=64)
            .hflip(prob=0.5)
            .normalize("imagenet"),
        # A Python value, carried as it is: the batch holds a list.
        dataio.slot("label").passthrough(),
        # Bytes that are already here; captions differ in length, so the batch holds one tensor per row.
        dataio.slot("caption").decode_text(),
        dataio.batch(BATCH, prefetch=2),
    )


def batches(rows: list[dict[str, Any]]) -> Iterator[tuple[torch.Tensor, torch.Tensor, list[str]]]:
    """What a training step wants of each batch."""
    with build().bind(rows).run("torch", concurrency=16, seed=7) as loader:
        for batch in loader:
            for error in batch.errors:
                print(f"left out {error['key']}: {error['message']}")
            captions = [bytes(row.tolist()).decode() for row in batch["caption"]]
            yield batch["image"], torch.tensor(batch["label"]), captions


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        rows = make_dataset(Path(folder))
        right = total = 0
        for images, labels, captions in batches(rows):
            guess = images.mean(dim=(2, 3)).argmax(dim=1)  # the strongest colour channel
            right += int((guess == labels).sum())
            total += len(labels)
            print(f"{tuple(images.shape)} {images.dtype}, labels {labels.tolist()}, first caption {captions[0]!r}")
        print(f"{right} of {total} pictures recognised")


if __name__ == "__main__":
    main()
