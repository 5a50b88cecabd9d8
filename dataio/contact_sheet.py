"""A sheet of small pictures, to look at what a pipeline made of a batch."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

GAP = 4
BACKGROUND = 255


def denormalise(
    images: NDArray[np.float32], mean: Sequence[float], std: Sequence[float]
) -> NDArray[np.uint8]:
    """Undo `normalize`: float32[n, c, h, w] back to uint8[n, h, w, c]."""
    scale = np.asarray(std, np.float32).reshape(1, -1, 1, 1)
    offset = np.asarray(mean, np.float32).reshape(1, -1, 1, 1)
    levels = np.rint((images * scale + offset) * 255.0)
    out: NDArray[np.uint8] = np.clip(levels, 0, 255).astype(np.uint8).transpose(0, 2, 3, 1)
    return out


def contact_sheet(images: Sequence[NDArray[np.uint8]], columns: int | None = None) -> NDArray[np.uint8]:
    """Lay images out on one sheet, row by row; cells are as large as the largest image.

    Args:
        images: uint8[h, w, 3] each, at least one.
        columns: pictures per row; by default the sheet is about square.
    """
    if not len(images):
        raise ValueError("a contact sheet needs at least one image")
    columns = columns or math.ceil(math.sqrt(len(images)))
    rows = math.ceil(len(images) / columns)
    height = max(image.shape[0] for image in images) + GAP
    width = max(image.shape[1] for image in images) + GAP
    sheet = np.full((rows * height + GAP, columns * width + GAP, 3), BACKGROUND, np.uint8)
    for i, image in enumerate(images):
        top, left = GAP + i // columns * height, GAP + i % columns * width
        sheet[top : top + image.shape[0], left : left + image.shape[1]] = image
    return sheet


def write_contact_sheet(
    path: str | os.PathLike[str], images: Sequence[NDArray[np.uint8]], columns: int | None = None
) -> None:
    """Write a contact sheet as PNG."""
    from PIL import Image

    Image.fromarray(contact_sheet(images, columns)).save(path, format="PNG", compress_level=3)
