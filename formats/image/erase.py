"""Transforms that blank parts of an image: `random_erasing`, `grid_mask`."""

from __future__ import annotations

import math
from typing import Annotated, Any, TypeAlias

import numpy as np

from ...engine.arguments import Positive, Probability, Range, Size
from ...engine.registry import register_check, register_kernel, register_op
from ..libraries import opencv
from .pixels import IMAGE, RGB, infer_rgb, infer_same, require_pixels, stored
from .resize import Window

ByteValue: TypeAlias = Annotated[int, Range(0, 255)]
TRIES = 10
"""Rectangles that random_erasing draws before it gives up. Source: torchvision's RandomErasing."""


@register_check("random_erasing")
def _check_erasing_ranges(**given: Any) -> dict[str, Any]:
    low, high = given["scale"]
    if not low <= high <= 1.0:
        raise ValueError(f"random_erasing wants scale=(lo, hi) with 0 < lo <= hi <= 1, got {given['scale']}")
    low, high = given["ratio"]
    if low > high:
        raise ValueError(f"random_erasing wants ratio=(lo, hi) with 0 < lo <= hi, got {given['ratio']}")
    return given


def erasing_box(
    height: int,
    width: int,
    scale: tuple[float, float],
    ratio: tuple[float, float],
    rng: np.random.Generator,
) -> Window | None:
    """Draw a rectangle: area uniform in `scale`, log(h / w) uniform in log `ratio`, position uniform.

    Returns:
        None after `TRIES` rectangles that have no pixels or do not fit.

    Source: Zhong et al. 2017, "Random Erasing Data Augmentation", and torchvision's RandomErasing, which also refuses
    rectangles as high or as wide as the image.
    """
    low, high = math.log(ratio[0]), math.log(ratio[1])
    for _ in range(TRIES):
        area = (scale[0] + (scale[1] - scale[0]) * rng.random()) * height * width
        aspect = math.exp(low + (high - low) * rng.random())
        h, w = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < h <= height and 0 < w <= width:
            return Window(int(rng.integers(0, height - h + 1)), int(rng.integers(0, width - w + 1)), h, w)
    return None


@register_op("random_erasing", takes=IMAGE, infer=infer_same, random=True)
def random_erasing(
    image: np.ndarray,
    *,
    prob: Probability = 0.5,
    scale: tuple[Positive, Positive] = (0.02, 0.33),
    ratio: tuple[Positive, Positive] = (0.3, 3.3),
    value: ByteValue = 0,
    rng: np.random.Generator,
) -> np.ndarray:
    """With probability `prob`, fill a random rectangle.

    Args:
        image: uint8[h, w, c].
        prob: of erasing.
        scale: lowest and highest share of the image's area that the rectangle covers, up to rounding of its edges.
        ratio: its lowest and highest height by width.
        value: 0 to 255, for every channel.
        rng: draws the coin; then, until a rectangle fits, area and ratio; then its row and column.

    Returns:
        `image` itself, or uint8[h, w, c], a new array. Nothing is erased when no rectangle fits in ten tries.

    Raises:
        OpError: another dtype or rank.
    """
    require_pixels("random_erasing", image)
    if rng.random() >= prob:
        return image
    out = np.empty(image.shape, np.uint8)
    _erase(image, out, scale, ratio, value, rng)
    return out


@register_kernel("random_erasing", "out")
def random_erasing_out(
    image: np.ndarray,
    out: np.ndarray,
    *,
    prob: Probability = 0.5,
    scale: tuple[Positive, Positive] = (0.02, 0.33),
    ratio: tuple[Positive, Positive] = (0.3, 3.3),
    value: ByteValue = 0,
    rng: np.random.Generator,
) -> None:
    """`random_erasing` into `out`, uint8[h, w, c]."""
    require_pixels("random_erasing", image)
    if rng.random() < prob:
        _erase(image, out, scale, ratio, value, rng)
    else:
        np.copyto(out, image)


def _erase(
    image: np.ndarray,
    out: np.ndarray,
    scale: tuple[float, float],
    ratio: tuple[float, float],
    value: int,
    rng: np.random.Generator,
) -> None:
    np.copyto(out, image)
    box = erasing_box(image.shape[0], image.shape[1], scale, ratio, rng)
    if box is not None:
        out[box.y : box.y + box.h, box.x : box.x + box.w] = value


@register_check("grid_mask")
def _check_periods(**given: Any) -> dict[str, Any]:
    if given["d_min"] > given["d_max"]:
        raise ValueError(f"grid_mask wants d_min <= d_max, got {given['d_min']}, {given['d_max']}")
    return given


def kept_by_grid(
    height: int, width: int, *, period: int, hole: int, offset: tuple[int, int], angle_deg: float
) -> np.ndarray:
    """Mask of the pixels between the holes of a grid.

    Args:
        height, width: pixels.
        period: pixels from one hole to the next, along both axes of the grid.
        hole: edge of the square holes in pixels, 0 to `period`.
        offset: row and column, relative to the middle of the image, of a corner of a hole.
        angle_deg: the grid is turned about the middle of the image.

    Returns:
        bool[height, width]; False in holes.
    """
    # Pixel centres, at halves, never lie on the edge of a hole of an upright grid: rounding cannot move it.
    rows = (np.arange(height) + (0.5 - height // 2)) / period
    columns = (np.arange(width) + (0.5 - width // 2)) / period
    row, column = offset[0] / period, offset[1] / period
    if angle_deg:
        angle = math.radians(angle_deg)
        cos, sin = math.cos(angle), math.sin(angle)
        down = np.add.outer((cos * rows - row).astype(np.float32), (-sin * columns).astype(np.float32))
        across = np.add.outer((sin * rows).astype(np.float32), (cos * columns - column).astype(np.float32))
    else:
        down, across = (rows - row)[:, None], columns - column
    kept: np.ndarray = ~(_in_hole(down, hole / period) & _in_hole(across, hole / period))
    return kept


def _in_hole(places: np.ndarray, hole: float) -> np.ndarray:
    """Whether places along one axis of the grid, in periods, fall into its holes, which begin at whole numbers."""
    places -= np.floor(places)
    inside: np.ndarray = places < hole
    return inside


@register_op("grid_mask", takes=RGB, infer=infer_rgb, random=True)
def grid_mask(
    image: np.ndarray,
    *,
    d_min: Size = 96,
    d_max: Size = 224,
    ratio: Probability = 0.6,
    rotate_deg: float = 0.0,
    prob: Probability = 1.0,
    rng: np.random.Generator,
) -> np.ndarray:
    """With probability `prob`, set the pixels in a grid of square holes to 0.

    Args:
        image: uint8[h, w, 3].
        d_min, d_max: lowest and highest period of the grid in pixels; it is drawn uniformly among whole numbers.
        ratio: share of the period that is kept: the holes' edge is round(period * (1 - ratio)).
        rotate_deg: the grid is turned by an angle uniform in +-rotate_deg; at 0 no angle is drawn.
        prob: of masking.
        rng: draws the coin, the period, the row and the column at which a hole begins, the angle.

    Returns:
        `image` itself, or uint8[h, w, 3], a new array.

    Raises:
        OpError: another dtype or shape.

    Source: Chen et al. 2020, "GridMask Data Augmentation".
    """
    require_pixels("grid_mask", image, (3,))
    if rng.random() >= prob:
        return image
    out = np.empty(image.shape, np.uint8)
    _mask(image, out, (d_min, d_max), ratio, rotate_deg, rng)
    return out


@register_kernel("grid_mask", "out")
def grid_mask_out(
    image: np.ndarray,
    out: np.ndarray,
    *,
    d_min: Size = 96,
    d_max: Size = 224,
    ratio: Probability = 0.6,
    rotate_deg: float = 0.0,
    prob: Probability = 1.0,
    rng: np.random.Generator,
) -> None:
    """`grid_mask` into `out`, uint8[h, w, 3]."""
    require_pixels("grid_mask", image, (3,))
    if rng.random() < prob:
        _mask(image, out, (d_min, d_max), ratio, rotate_deg, rng)
    else:
        np.copyto(out, image)


def _mask(
    image: np.ndarray,
    out: np.ndarray,
    periods: tuple[int, int],
    ratio: float,
    rotate_deg: float,
    rng: np.random.Generator,
) -> None:
    period = int(rng.integers(periods[0], periods[1] + 1))
    offset = int(rng.integers(0, period)), int(rng.integers(0, period))
    angle = rotate_deg * (2 * rng.random() - 1) if rotate_deg else 0.0
    if image.size == 0:
        return
    hole = round(period * (1 - ratio))
    height, width = image.shape[:2]
    kept = kept_by_grid(height, width, period=period, hole=hole, offset=offset, angle_deg=angle)
    out[...] = 0
    stored(opencv().copyTo(image, kept.view(np.uint8), dst=out), out)
