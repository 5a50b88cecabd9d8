"""Photos with boxes: padded and mirrored together, and turned into targets for anchors, as a detector trains on.

    python examples/detection_pipeline.py

The photos ship with scikit-image and scikit-learn; the boxes around what they show are from this file. A box is
x0, y0, x1, y1 as fractions of the photo. Every slot of a record draws the same random numbers, so `hflip` and `bbox_hflip`
mirror the photo and its boxes together: the colours inside the boxes are compared with those of the unmirrored photo.
"""

from __future__ import annotations

import io
import itertools
from typing import Any

import numpy as np
import torch

import dataio
from dataio.demo import bundled_photos

OBJECTS = {  # photo: its size, and corners in pixels
    "astronaut.png": ((512, 512), [(155, 16, 300, 189), (354, 0, 460, 287), (280, 344, 510, 512)]),
    "chelsea.png": ((451, 300), [(134, 86, 207, 147), (294, 109, 343, 165), (232, 225, 293, 267)]),
    "coffee.png": ((600, 400), [(172, 17, 410, 311), (75, 71, 479, 386), (324, 67, 423, 328)]),
    "rocket.jpg": ((640, 427), [(309, 126, 336, 409)]),
    "china.jpg": ((640, 427), [(64, 30, 371, 418)]),
    "flower.jpg": ((640, 427), [(171, 88, 445, 359), (288, 374, 459, 427)]),
}
HEIGHT, WIDTH, BORDER = 192, 256, 32  # photos are resized to this, and get a border that makes them square
STEP = 1 / 8
SIZES = ((0.12, 0.25), (0.25, 0.25), (0.4, 0.5))  # width and height of the anchors at each place of an 8 x 8 grid
BATCH = 6
EPOCHS = 3


def anchors() -> np.ndarray:
    """float32[192, 4]: corners."""
    grid = [(i + 0.5) * STEP for i in range(8)]
    return np.array(
        [(x - w / 2, y - h / 2, x + w / 2, y + h / 2) for y, x in itertools.product(grid, grid) for w, h in SIZES],
        np.float32,
    )


def npy(value: np.ndarray) -> bytes:
    """An array as the bytes of an .npy file."""
    out = io.BytesIO()
    np.save(out, value)
    return out.getvalue()


def make_records() -> list[dict[str, Any]]:
    records = []
    for path in bundled_photos():
        if path.name in OBJECTS:
            size, corners = OBJECTS[path.name]
            boxes = npy((np.array(corners) / (size * 2)).astype(np.float32))
            records.append({"image": path, "boxes": boxes, "targets": boxes, "crops": boxes})
    return records


def build(prob: float = 0.5) -> dataio.Pipeline:
    padded = {"src_h": HEIGHT, "src_w": WIDTH, "top": BORDER, "bottom": BORDER}
    return dataio.pipeline(
        dataio.slot("image")
            .decode_image(mode="rgb")
            .resize(h=HEIGHT, w=WIDTH)
            .pad(top=BORDER, bottom=BORDER, value=124)
            .hflip(prob=prob)
            .normalize("imagenet"),
        # As many boxes as the photo has objects: one tensor per record.
        dataio.slot("boxes").decode_npy().bbox_pad(**padded).bbox_hflip(prob=prob),
        # One row per anchor, so the batch is one tensor. The fifth column is the class: all objects are of class 1 here.
        dataio.slot("targets")
            .decode_npy()
            .bbox_pad(**padded)
            .bbox_hflip(prob=prob)
            .pad_axis(axis=1, target=5, value=1.0)
            .box_encoder(anchors().ravel().tolist(), iou_threshold=0.5),
        # What is left of the boxes in a random window of the photo.
        dataio.slot("crops").decode_npy().pad_axis(axis=1, target=5, value=1.0).random_bbox_crop(),
        dataio.batch(BATCH),
    )  # fmt: skip


def boxes_of_targets(targets: torch.Tensor) -> torch.Tensor:
    """float[k, 4]: the corners that the anchors of one photo should predict, by undoing the encoding."""
    taken = targets[:, 4] > 0
    low, high = torch.from_numpy(anchors())[taken].split(2, dim=1)
    centre = targets[taken, :2] / 10 * (high - low) + (low + high) / 2
    half = torch.exp(targets[taken, 2:4] / 5) * (high - low) / 2
    return torch.cat([centre - half, centre + half], dim=1)


def colours(batch: Any) -> np.ndarray:
    """float64[boxes, 3]: the mean colour, normalised, inside each box of a batch."""
    found = []
    for image, boxes in zip(batch["image"].numpy(), batch["boxes"], strict=True):
        side = image.shape[1]
        for x0, y0, x1, y1 in np.round(boxes.numpy() * side).astype(int):
            found.append(image[:, y0:y1, x0:x1].mean(axis=(1, 2), dtype=np.float64))
    return np.array(found)


def main() -> None:
    records = make_records()
    with build(prob=0.0).bind(records).run("torch") as loader:
        (plain,) = loader
        expected, unmirrored = colours(plain), plain["boxes"]
    mirrored = 0
    with build().bind(records).run("torch", seed=3) as loader:
        for _ in range(EPOCHS):
            for batch in loader:
                targets, boxes = batch["targets"], batch["boxes"]
                print(f"{tuple(batch['image'].shape)} images, {tuple(targets.shape)} targets, {len(batch.errors)} errors")
                print(f"boxes {[len(b) for b in boxes]}, in random crops {[len(b) for b in batch['crops']]}")
                print(f"anchors with an object {(targets[..., 4] > 0).sum(dim=1).tolist()}")
                for row, own in zip(targets, boxes, strict=True):
                    assert torch.cdist(boxes_of_targets(row), own).min(dim=1).values.max() < 1e-5
                assert np.abs(colours(batch) - expected).max() < 0.02
                mirrored += sum(not torch.equal(a, b) for a, b in zip(boxes, unmirrored, strict=True))
    print(f"{mirrored} of {EPOCHS * len(records)} photos mirrored, with their boxes")


if __name__ == "__main__":
    main()
