"""Boxes that move with the pixels of their image: flips, padding, crops."""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np

from ...engine.arguments import Count, Positive, Probability, Range, Size
from ...engine.registry import register_check, register_kernel, register_op
from ...engine.schema import TensorType
from .rows import BOXES, BoxFormat, Corners, check_boxes, infer_boxes, infer_some, overlaps

BoxWindow: TypeAlias = tuple[float, float, float, float]
Bounds: TypeAlias = tuple[Positive, Positive]
Attempts: TypeAlias = Annotated[int, Range(1, 1_000_000)]
"""All are drawn at once, 32 bytes each."""

TWICE = np.array([0, 1, 0, 1])
"""Takes x, y to x, y, x, y."""
ATTEMPT_OVERLAPS = 1 << 16
"""Overlaps of windows with boxes that random_bbox_crop works out at a time."""


def _infer_flip(given: TensorType, **_: Any) -> TensorType:
    return infer_boxes(given, 4)


def _flip_into(boxes: np.ndarray, out: np.ndarray, first: int, form: BoxFormat) -> None:
    """Mirror columns `first` and `first` + 2 (x is 0, y is 1)."""
    np.copyto(out, boxes)
    if form == "xywh":
        np.subtract(1, boxes[:, first], out=out[:, first])
    else:
        np.subtract(1, boxes[:, first + 2 :: -2], out=out[:, first::2])


def _flip(boxes: np.ndarray, first: int, prob: float, form: BoxFormat, rng: np.random.Generator) -> np.ndarray:
    turned = rng.random() < prob
    check_boxes(boxes, 4, form)
    if not turned:
        return boxes
    out = np.empty_like(boxes)
    _flip_into(boxes, out, first, form)
    return out


def _flip_out(
    boxes: np.ndarray, out: np.ndarray, first: int, prob: float, form: BoxFormat, rng: np.random.Generator
) -> None:
    turned = rng.random() < prob
    check_boxes(boxes, 4, form)
    if turned:
        _flip_into(boxes, out, first, form)
    else:
        np.copyto(out, boxes)


@register_op("bbox_hflip", takes=BOXES, infer=_infer_flip, random=True)
def bbox_hflip(
    boxes: np.ndarray, *, prob: Probability = 0.5, format: BoxFormat = "xyxy", rng: np.random.Generator
) -> np.ndarray:
    """Mirror boxes left to right with probability `prob`; one draw, that of `hflip`.

    With equal `prob` and equal streams, an image and its boxes are mirrored together.

    Args:
        boxes: float32[n, 4].
        format: "xyxy" (x0, x1 become 1 - x1, 1 - x0) or "xywh" (cx becomes 1 - cx).

    Returns:
        float32[n, 4], a new array, or `boxes` itself when the coin fails.

    Raises:
        OpError: not boxes within the image.
    """
    return _flip(boxes, 0, prob, format, rng)


@register_kernel("bbox_hflip", "out")
def bbox_hflip_out(
    boxes: np.ndarray,
    out: np.ndarray,
    *,
    prob: Probability = 0.5,
    format: BoxFormat = "xyxy",
    rng: np.random.Generator,
) -> None:
    """`bbox_hflip` into `out`."""
    _flip_out(boxes, out, 0, prob, format, rng)


@register_op("bbox_vflip", takes=BOXES, infer=_infer_flip, random=True)
def bbox_vflip(
    boxes: np.ndarray, *, prob: Probability = 0.5, format: BoxFormat = "xyxy", rng: np.random.Generator
) -> np.ndarray:
    """Mirror boxes top to bottom with probability `prob`; one draw, that of `vflip`.

    Args:
        boxes: float32[n, 4].
        format: "xyxy" (y0, y1 become 1 - y1, 1 - y0) or "xywh" (cy becomes 1 - cy).

    Returns:
        float32[n, 4], a new array, or `boxes` itself when the coin fails.

    Raises:
        OpError: not boxes within the image.
    """
    return _flip(boxes, 1, prob, format, rng)


@register_kernel("bbox_vflip", "out")
def bbox_vflip_out(
    boxes: np.ndarray,
    out: np.ndarray,
    *,
    prob: Probability = 0.5,
    format: BoxFormat = "xyxy",
    rng: np.random.Generator,
) -> None:
    """`bbox_vflip` into `out`."""
    _flip_out(boxes, out, 1, prob, format, rng)


@lru_cache(maxsize=256)
def _pad_rule(
    h: int, w: int, top: int, bottom: int, left: int, right: int, form: BoxFormat
) -> tuple[np.ndarray, np.ndarray]:
    """What boxes are multiplied by, and what is added then: float32[4] each."""
    height, width = h + top + bottom, w + left + right
    scale = (w / width, h / height) * 2
    shift = (left / width, top / height)
    return np.array(scale, np.float32), np.array(shift * 2 if form == "xyxy" else (*shift, 0, 0), np.float32)


@register_op("bbox_pad", takes=BOXES, infer=_infer_flip)
def bbox_pad(
    boxes: np.ndarray,
    *,
    src_h: Size,
    src_w: Size,
    top: Count = 0,
    bottom: Count = 0,
    left: Count = 0,
    right: Count = 0,
    format: BoxFormat = "xyxy",
) -> np.ndarray:
    """Where boxes are after `pad` has added rows and columns to their image.

    Args:
        boxes: float32[n, 4].
        src_h, src_w: pixels of the image before.
        top, bottom, left, right: pixels added.
        format: "xyxy" or "xywh".

    Returns:
        float32[n, 4], a new array: x becomes (x * src_w + left) / (src_w + left + right), y alike, within 2e-7;
        widths and heights are only scaled.

    Raises:
        OpError: not boxes within the image.
    """
    out = np.empty(boxes.shape, np.float32)
    bbox_pad_out(
        boxes,
        out,
        src_h=src_h,
        src_w=src_w,
        top=top,
        bottom=bottom,
        left=left,
        right=right,
        format=format,
    )
    return out


@register_kernel("bbox_pad", "out")
def bbox_pad_out(
    boxes: np.ndarray,
    out: np.ndarray,
    *,
    src_h: Size,
    src_w: Size,
    top: Count = 0,
    bottom: Count = 0,
    left: Count = 0,
    right: Count = 0,
    format: BoxFormat = "xyxy",
) -> None:
    """`bbox_pad` into `out`."""
    check_boxes(boxes, 4, format)
    scale, shift = _pad_rule(src_h, src_w, top, bottom, left, right, format)
    np.multiply(boxes, scale, out=out)
    np.add(out, shift, out=out)


def _cropped(boxes: np.ndarray, window: np.ndarray) -> np.ndarray:
    """The parts of boxes inside `window`, as fractions of it; boxes without area there are dropped."""
    places: np.ndarray = boxes[:, :4] - window[TWICE]
    places /= (window[2:] - window[:2])[TWICE]
    np.maximum(places, 0, out=places)
    np.minimum(places, 1, out=places)
    out = np.empty(boxes.shape, np.float32)
    out[:, :4], out[:, 4] = places, boxes[:, 4]
    kept: np.ndarray = out[(places[:, 0] < places[:, 2]) & (places[:, 1] < places[:, 3])]
    return kept


@register_op("bbox_crop", takes=BOXES, infer=infer_some)
def bbox_crop(boxes: np.ndarray, *, window: BoxWindow, format: Literal["xyxy"] = "xyxy") -> np.ndarray:
    """Where boxes are after their image was cut to `window`.

    Args:
        boxes: float32[n, 5], corners and a label.
        window: x0, y0, x1, y1 as fractions of the image; it may reach beyond the image.

    Returns:
        float32[k, 5], a new array: fractions of the window, clipped to [0, 1]; boxes without area in there are gone.

    Raises:
        OpError: not boxes within the image.
    """
    check_boxes(boxes, 5)
    return _cropped(boxes, np.array(window, np.float32))


@register_check("bbox_crop")
def _check_crop(**given: Any) -> dict[str, Any]:
    x0, y0, x1, y1 = np.array(given["window"], np.float32).tolist()
    if not (x0 < x1 and y0 < y1):
        raise ValueError(f"bbox_crop(window=) is x0, y0, x1, y1 with x0 < x1 and y0 < y1, got {given['window']}")
    return given

THRESHOLDS = (None, 0.1, 0.3, 0.5, 0.7, 0.9)


def _attempted_windows(
    count: int, scale: tuple[float, float], aspect_ratio: tuple[float, float], rng: np.random.Generator
) -> np.ndarray:
    """float32[k, 4]: the windows among `count` drawn ones whose width by height is within `aspect_ratio`."""
    draws = rng.random((count, 4))
    size = scale[0] + (scale[1] - scale[0]) * draws[:, :2]
    corner = draws[:, 2:] * (1 - size)
    ratio = size[:, 0] / size[:, 1]
    fits = (aspect_ratio[0] <= ratio) & (ratio <= aspect_ratio[1])
    return np.concatenate([corner, corner + size], axis=1, dtype=np.float32)[fits]


@register_op("random_bbox_crop", takes=BOXES, infer=infer_some, random=True)
def random_bbox_crop(
    boxes: np.ndarray,
    *,
    thresholds: tuple[Probability | None, ...] | None = None,
    aspect_ratio: Bounds = (0.5, 2.0),
    scale: Bounds = (0.3, 1.0),
    max_attempts: Attempts = 50,
    rng: np.random.Generator,
) -> np.ndarray:
    """Cut a random window that keeps some of the boxes, as SSD trains on.

    One of `thresholds` is drawn. None leaves everything as it is. Otherwise windows are drawn until one overlaps some
    box by that much (intersection over union) and holds the centre of some box; the boxes whose centre lies in it are
    clipped to it. All `max_attempts` windows are drawn at once.

    Args:
        boxes: float32[n, 5], corners and a label.
        thresholds: from 0 to 1, or None; default: None, 0.1, 0.3, 0.5, 0.7, 0.9.
        aspect_ratio: the range of the window's width by its height, both as fractions of the image.
        scale: the range that its width and its height are uniform in.

    Returns:
        float32[k, 5], fractions of the window; `boxes` itself when None was drawn or no window was found.

    Raises:
        OpError: not boxes within the image.

    Source: Liu et al. 2016, "SSD: Single Shot MultiBox Detector", section 2.2.
    """
    check_boxes(boxes, 5)
    choices = THRESHOLDS if thresholds is None else thresholds
    threshold = choices[int(rng.integers(len(choices)))]
    if threshold is None:
        return boxes
    windows = _attempted_windows(max_attempts, scale, aspect_ratio, rng)
    if not len(boxes):
        return boxes
    corners = Corners.of(boxes)
    centres = (boxes[:, :2] + boxes[:, 2:4]) / 2
    step = max(1, ATTEMPT_OVERLAPS // len(boxes))
    for start in range(0, len(windows), step):
        some = windows[start : start + step]
        enough = (overlaps(Corners.of(some), corners) >= np.float32(threshold)).any(axis=1)
        for window in some[enough]:
            held = ((centres > window[:2]) & (centres < window[2:])).all(axis=1)
            if held.any():
                return _cropped(boxes[held], window)
    return boxes


@register_check("random_bbox_crop")
def _check_random_crop(**given: Any) -> dict[str, Any]:
    for name, most in (("aspect_ratio", np.inf), ("scale", 1.0)):
        low, high = given[name]
        if not low <= high <= most:
            bound = "" if most == np.inf else " <= 1"
            raise ValueError(f"random_bbox_crop({name}=) is a pair with 0 < low <= high{bound}, got {given[name]}")
    return given
