"""A sheet of small pictures, to look at what a pipeline made of a batch."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

GAP = 4
BACKGROUND = 255
INK = 60
FONT = 11
"""Pixels of the letters of captions."""
LINE = 15
"""Pixels from one line of a caption to the next."""


def denormalise(
    images: NDArray[np.float32], mean: Sequence[float], std: Sequence[float]
) -> NDArray[np.uint8]:
    """Undo `normalize`: float32[n, c, h, w] back to uint8[n, h, w, c]."""
    scale = np.asarray(std, np.float32).reshape(1, -1, 1, 1)
    offset = np.asarray(mean, np.float32).reshape(1, -1, 1, 1)
    levels = np.rint((images * scale + offset) * 255.0)
    out: NDArray[np.uint8] = np.clip(levels, 0, 255).astype(np.uint8).transpose(0, 2, 3, 1)
    return out


def contact_sheet(
    images: Sequence[NDArray[np.uint8]], columns: int | None = None, captions: Sequence[Sequence[str]] | None = None
) -> NDArray[np.uint8]:
    """Lay images out on one sheet, row by row; cells are as large as the largest image, and with captions each image is in the middle of its own.

    Args:
        images: uint8[h, w, 3] each, at least one.
        columns: pictures per row; by default the sheet is about square.
        captions: lines of text below each image, cut off where they are wider than the cell.
    """
    if not len(images):
        raise ValueError("a contact sheet needs at least one image")
    columns = columns or math.ceil(math.sqrt(len(images)))
    rows = math.ceil(len(images) / columns)
    high, wide = (max(image.shape[axis] for image in images) for axis in (0, 1))
    lines = max(map(len, captions), default=0) if captions is not None else 0
    below = LINE * lines + 2 * GAP if lines else 0
    height, width = high + below + GAP, wide + GAP
    sheet = np.full((rows * height + GAP, columns * width + GAP, 3), BACKGROUND, np.uint8)
    for i, image in enumerate(images):
        top, left = GAP + i // columns * height, GAP + i % columns * width
        if lines:
            top, left = top + (high - image.shape[0]) // 2, left + (wide - image.shape[1]) // 2
        sheet[top : top + image.shape[0], left : left + image.shape[1]] = image
    return _captioned(sheet, captions, columns, (height, width), high) if captions is not None and lines else sheet


def _captioned(
    sheet: NDArray[np.uint8], captions: Sequence[Sequence[str]], columns: int, cell: tuple[int, int], high: int
) -> NDArray[np.uint8]:
    from PIL import Image, ImageDraw

    height, width = cell
    page = Image.fromarray(sheet)
    draw = ImageDraw.Draw(page)
    for i, lines in enumerate(captions):
        left, top = GAP + i % columns * width, GAP + i // columns * height + high + 2
        for number, line in enumerate(lines):
            text = clipped(line, width - GAP)
            middle = left + (width - GAP - draw.textlength(text, font())) / 2
            draw.text((middle, top + LINE * number), text, (INK, INK, INK) if number == 0 else (120, 124, 130), font())
    return np.asarray(page)


@cache
def font(size: int = FONT) -> Any:
    """The letters that are drawn with: Pillow's own, so that a sheet looks the same on every machine."""
    from PIL import ImageFont

    return ImageFont.load_default(size)


def clipped(text: str, width: int, size: int = FONT) -> str:
    """The text, its end replaced by an ellipsis where it is wider than `width` pixels."""
    measure = font(size).getlength
    if measure(text) <= width:
        return text
    low, high = 0, len(text)
    while low < high:  # the longest beginning that fits
        middle = (low + high + 1) // 2
        low, high = (middle, high) if measure(text[:middle] + "…") <= width else (low, middle - 1)
    return text[:low] + "…"


def write_contact_sheet(
    path: str | os.PathLike[str], images: Sequence[NDArray[np.uint8]], columns: int | None = None
) -> None:
    """Write a contact sheet as PNG."""
    from PIL import Image

    Image.fromarray(contact_sheet(images, columns)).save(path, format="PNG", compress_level=3)
