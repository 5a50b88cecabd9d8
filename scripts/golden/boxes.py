"""Golden values of torchvision.ops for the tests of boxes.

    pip install torch==2.9.1 torchvision==0.24.1 --index-url https://download.pytorch.org/whl/cpu
    python scripts/golden/boxes.py

It writes `tests/golden/boxes.npz`: for each set of boxes `NAME`, `NAME_boxes` float32[n, 4] (corners) and `NAME_scores`
float32[n]; which boxes `torchvision.ops.nms` keeps at each threshold of `thresholds`, as `NAME_kept_i`; and, of the first
`IOU_ROWS` boxes, `NAME_iou` by `torchvision.ops.box_iou`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import torchvision

TARGET = Path(__file__).resolve().parents[2] / "tests" / "golden" / "boxes.npz"
THRESHOLDS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Exact in float32, so that it does not matter in which precision an overlap is compared with them."""
IOU_ROWS = 60


def spread(count: int, rng: np.random.Generator) -> np.ndarray:
    """Boxes anywhere in the unit square."""
    corner = rng.uniform(0, 0.7, (count, 2))
    return np.concatenate([corner, corner + rng.uniform(0.05, 0.3, (count, 2))], axis=1)


def clustered(count: int, rng: np.random.Generator) -> np.ndarray:
    """Many boxes around few objects, as a detector gives them."""
    objects = spread(12, rng)[rng.integers(0, 12, count)]
    return objects + rng.normal(0, 0.01, (count, 4))


def pixels(count: int, rng: np.random.Generator) -> np.ndarray:
    """Small whole numbers: equal boxes and overlaps of exactly the threshold occur, and boxes without area."""
    corner = rng.integers(0, 12, (count, 2))
    return np.concatenate([corner, corner + rng.integers(0, 9, (count, 2))], axis=1)


def main() -> None:
    rng = np.random.default_rng(0)
    found: dict[str, np.ndarray] = {"thresholds": np.array(THRESHOLDS)}
    for name, make, count in (("spread", spread, 700), ("clustered", clustered, 700), ("pixels", pixels, 300)):
        boxes = torch.from_numpy(make(count, rng).astype(np.float32))
        scores = torch.from_numpy(rng.permutation(count).astype(np.float32) / count)  # no ties: their order is not defined
        found |= {f"{name}_boxes": boxes.numpy(), f"{name}_scores": scores.numpy()}
        found[f"{name}_iou"] = torchvision.ops.box_iou(boxes[:IOU_ROWS], boxes[:IOU_ROWS]).numpy()
        for i, threshold in enumerate(THRESHOLDS):
            kept = torchvision.ops.nms(boxes, scores, threshold)
            found[f"{name}_kept_{i}"] = kept.numpy().astype(np.int16)
    np.savez_compressed(TARGET, **found)
    print(f"{TARGET}: {TARGET.stat().st_size} bytes")


if __name__ == "__main__":
    main()
