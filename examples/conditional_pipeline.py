"""Slots and transforms that depend on the record or on the picture; on real photos.

    python examples/conditional_pipeline.py

Some photos have a mask, some do not: the `mask` slot is optional, and grouping by `has_mask` keeps batches uniform. Where
it is off nothing is opened: the paths of missing masks lead nowhere. Large photos are cut, small ones resized; photos
that the record calls dark are inverted.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import dataio
from dataio import cond, transforms
from dataio.demo import make_photos

PHOTOS = 24
SIDE = 224


def make_records(folder: Path) -> list[dict[str, Any]]:
    """Photos in order of whether they have a mask, which is where they are bright."""
    records = []
    for i, path in enumerate(make_photos(folder / "photos", PHOTOS)):
        with Image.open(path) as image:
            gray = np.asarray(image.convert("L"))
        has_mask = i < PHOTOS // 2
        mask = folder / f"{path.stem}-mask.png"
        if has_mask:
            Image.fromarray((gray > 128).astype(np.uint8) * 255).save(mask)
        records.append({"image": path, "mask": mask, "has_mask": has_mask, "dark": bool(gray.mean() < 100)})
    return records


def build() -> dataio.Pipeline:
    fit = transforms.select(
        [(cond.shape(0).ge(SIDE) & cond.shape(1).ge(SIDE), transforms.center_crop(h=SIDE, w=SIDE))],
        default=transforms.resize(h=SIDE, w=SIDE),
    )
    return dataio.pipeline(
        dataio.slot("image")
            .decode_image(mode="rgb")
            .apply(fit)
            .when(cond.col("dark"))
            .then(transforms.invert())
            .hflip(),
        dataio.slot("mask", optional=True)
            .active_when(cond.col("has_mask").eq(True))
            .decode_image(mode="gray")
            .apply(fit)
            .hflip(),  # draws what the image drew: they flip together
        dataio.group_by("has_mask"),
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        records = make_records(Path(folder))
        with build().bind(records).run("torch", seed=0) as loader:
            for batch in loader:
                shapes = {name: tuple(batch[name].shape) for name in batch.slot_names}
                print(f"{shapes}, {len(batch.errors)} errors")
            print(f"masks read: {loader.stats()['ops']['image']['count'] - len(records)}")


if __name__ == "__main__":
    main()
