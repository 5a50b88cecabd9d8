"""Augmentation as training recipes write it: policies, random choices, and mixing the finished batch; on real photos.

    python examples/image_augmentation.py

The photos ship inside scikit-image and scikit-learn. Each gets a random crop, a policy of the literature, sometimes a
blur, and one of three ways to hide a part; the batch is then mixed with MixUp, its one-hot labels with it. The same seed
gives the same pictures, at any number of workers.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

import dataio
from dataio import batch_transforms, transforms
from dataio.demo import bundled_photos, make_photos

PHOTOS = 48
BATCH = 16
SIDE = 128


def make_records(folder: Path) -> list[dict[str, Any]]:
    """A photo, and which of the originals it was cut from, as a one-hot vector."""
    classes = len(bundled_photos())
    paths = make_photos(folder / "photos", PHOTOS)
    return [{"image": path, "label": np.eye(classes, dtype=np.float32)[i % classes]} for i, path in enumerate(paths)]


def build(mixed: bool = True) -> dataio.Pipeline:
    stages = (
        dataio.slot("image")
            .decode_image(mode="rgb")
            .random_resized_crop(h=SIDE, w=SIDE, scale=(0.3, 1.0))
            .hflip()
            .choice([transforms.rand_augment(n=2, m=9), transforms.auto_augment(), transforms.color_jitter(hue=0.1)])
            .sometimes(transforms.gaussian_blur(kernel_size=7), prob=0.3)
            .choice(
                [transforms.random_erasing(prob=1.0), transforms.grid_mask(d_min=24, d_max=48), transforms.invert(prob=0.0)],
                weights=[1, 1, 2],
            )
            .normalize("imagenet"),
        dataio.slot("label").decode_array(),
        dataio.batch(BATCH, drop_last=True),
    )
    return dataio.pipeline(*stages, *([dataio.map(batch_transforms.mixup(slot="image", label_slot="label"))] if mixed else []))


def first_batch(records: list[dict[str, Any]], workers: str) -> torch.Tensor:
    with build().bind(records).run("torch", seed=7, workers=workers) as loader:
        return next(iter(loader))["image"].clone()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        records = make_records(Path(folder))
        with build().bind(records).run("torch", seed=7) as loader:
            for batch in loader:
                print(tuple(batch["image"].shape), tuple(batch["label"].shape), len(batch.errors), "errors")
        same = torch.equal(first_batch(records, "thread"), first_batch(records, "process"))
        print(f"threads and processes give the same pictures: {same}")


if __name__ == "__main__":
    main()
