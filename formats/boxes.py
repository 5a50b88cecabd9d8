"""Boxes of one image, and what moves with its pixels: flips, padding, crops; anchors; suppression of duplicates.

A box is one row of float32: `"xyxy"` are corners (left, top, right, bottom), `"xywh"` the centre, width and height, all as
fractions of the image's width and height, up to `SLACK` outside of it. A fifth column holds a label or a score.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

import numpy as np

from ..engine.arguments import Count, Positive, Probability, Range, Size
from ..engine.errors import OpError
from ..engine.registry import register_kernel, register_op
from ..engine.schema import Takes, TensorType

BoxFormat: TypeAlias = Literal["xyxy", "xywh"]
BoxWindow: TypeAlias = tuple[float, float, float, float]
Scale: TypeAlias = tuple[Positive, Positive, Positive, Positive]
Bounds: TypeAlias = tuple[Positive, Positive]
Threshold: TypeAlias = Annotated[float, Range(0.0)]
Attempts: TypeAlias = Annotated[int, Range(1, 1_000_000)]
"""All are drawn at once, 32 bytes each."""

BOXES = Takes(dtypes=("float32",), ranks=(2,))
SLACK = 1e-3
"""How far a coordinate may lie outside of the image: rounding of pixels to fractions and back leaves some there."""
TWICE = np.array([0, 1, 0, 1])
"""Takes x, y to x, y, x, y."""
ATTEMPT_OVERLAPS = 1 << 16
"""Overlaps of windows with boxes that random_bbox_crop works out at a time."""
ENCODER_OVERLAPS = 1 << 15
"""Overlaps of boxes with anchors that box_encoder works out at a time: its temporaries stay in the cache."""
NMS_BLOCK = 128
"""Boxes that nms and soft_nms look at together, best first: the bits of two integers."""


def _infer_boxes(given: TensorType, width: int, rows: int | None = None) -> TensorType:
    count = None
    if given.shape is not None:
        count, found = given.shape
        if found not in (None, width):
            raise ValueError(f"takes float32[n, {width}], got {given}")
    return TensorType((count if rows is None else rows, width), "float32")


def _infer_flip(given: TensorType, **_: Any) -> TensorType:
    return _infer_boxes(given, 4)


def _infer_some(given: TensorType, **_: Any) -> TensorType:
    """Any number of rows."""
    kept = _infer_boxes(given, 5)
    return kept.with_shape((None, 5))


def _check_table(boxes: np.ndarray, width: int) -> None:
    if boxes.ndim != 2 or boxes.shape[1] != width or boxes.dtype != np.float32:
        raise OpError(f"takes float32[n, {width}], got {boxes.dtype}{list(boxes.shape)}")


def _refuse(boxes: np.ndarray, bad: Any, why: str) -> None:
    """Name the first row of `boxes` where bool[n] `bad` is true, if there is one."""
    if bad.any():
        row = int(bad.argmax())
        raise OpError(f"takes {why}; row {row} is {boxes[row].tolist()}")


def _check_boxes(boxes: np.ndarray, width: int, form: BoxFormat = "xyxy") -> None:
    """Refuse rows that are no boxes within the image.

    Raises:
        OpError: another dtype or shape, a value that is not finite, coordinates that are no fractions of the image,
            corners out of order.
    """
    _check_table(boxes, width)
    if not len(boxes):
        return
    places = boxes[:, :4]
    inside = places.min() >= -SLACK and places.max() <= 1 + SLACK  # false for NaN
    if not inside or (width == 5 and not np.isfinite(boxes[:, 4]).all()):
        _refuse(boxes, ~np.isfinite(boxes).all(axis=1), "finite numbers")
        outside = (places < -SLACK) | (places > 1 + SLACK)
        _refuse(boxes, outside.any(axis=1), "coordinates as fractions of the image, from 0 to 1")
    if form == "xyxy" and not (sizes := places[:, 2:] - places[:, :2]).min() > 0:
        _refuse(boxes, (sizes <= 0).any(axis=1), "corners with x0 < x1 and y0 < y1")


def _flip_into(boxes: np.ndarray, out: np.ndarray, first: int, form: BoxFormat) -> None:
    """Mirror columns `first` and `first` + 2 (x is 0, y is 1)."""
    np.copyto(out, boxes)
    if form == "xywh":
        np.subtract(1, boxes[:, first], out=out[:, first])
    else:
        np.subtract(1, boxes[:, first + 2 :: -2], out=out[:, first::2])


def _flip(boxes: np.ndarray, first: int, prob: float, form: BoxFormat, rng: np.random.Generator) -> np.ndarray:
    turned = rng.random() < prob
    _check_boxes(boxes, 4, form)
    if not turned:
        return boxes
    out = np.empty_like(boxes)
    _flip_into(boxes, out, first, form)
    return out


def _flip_out(
    boxes: np.ndarray, out: np.ndarray, first: int, prob: float, form: BoxFormat, rng: np.random.Generator
) -> None:
    turned = rng.random() < prob
    _check_boxes(boxes, 4, form)
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
    _check_boxes(boxes, 4, format)
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


@register_op("bbox_crop", takes=BOXES, infer=_infer_some)
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
    _check_boxes(boxes, 5)
    return _cropped(boxes, np.array(window, np.float32))


def _check_crop(**given: Any) -> dict[str, Any]:
    x0, y0, x1, y1 = np.array(given["window"], np.float32).tolist()
    if not (x0 < x1 and y0 < y1):
        raise ValueError(f"bbox_crop(window=) is x0, y0, x1, y1 with x0 < x1 and y0 < y1, got {given['window']}")
    return given


setattr(bbox_crop, "check_arguments", _check_crop)  # noqa: B010

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


@register_op("random_bbox_crop", takes=BOXES, infer=_infer_some, random=True)
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
    _check_boxes(boxes, 5)
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


def _check_random_crop(**given: Any) -> dict[str, Any]:
    for name, most in (("aspect_ratio", np.inf), ("scale", 1.0)):
        low, high = given[name]
        if not low <= high <= most:
            bound = "" if most == np.inf else " <= 1"
            raise ValueError(f"random_bbox_crop({name}=) is a pair with 0 < low <= high{bound}, got {given[name]}")
    return given


setattr(random_bbox_crop, "check_arguments", _check_random_crop)  # noqa: B010


class Corners(NamedTuple):
    """Boxes by column, float32[n] each, and their areas: the form that overlaps are quickly computed in."""

    x0: np.ndarray
    y0: np.ndarray
    x1: np.ndarray
    y1: np.ndarray
    area: np.ndarray

    @classmethod
    def of(cls, boxes: np.ndarray) -> Corners:
        """From corners, float32[n, 4 or more]."""
        x0, y0, x1, y1 = np.ascontiguousarray(boxes[:, :4].T)
        with np.errstate(over="ignore"):
            return cls(x0, y0, x1, y1, (x1 - x0) * (y1 - y0))

    def take(self, rows: Any) -> Corners:
        """Some of the boxes, by anything that indexes an array."""
        return Corners(*(column[rows] for column in self))


def overlaps(a: Corners, b: Corners) -> np.ndarray:
    """Intersection over union of every box of `a` with every box of `b`.

    Returns:
        float32[n, m], from 0 to 1; NaN for two boxes without any area.

    Source: the float32 steps are those of torchvision.ops.nms, so that comparisons with a threshold agree.
    """
    shape = len(a.area), len(b.area)
    shared, other = np.empty(shape, np.float32), np.empty(shape, np.float32)
    nothing = np.zeros(len(b.area), np.float32)
    with np.errstate(all="ignore"):
        _extent(a.x0, a.x1, b.x0, b.x1, nothing, shared, other)
        shared *= _extent(a.y0, a.y1, b.y0, b.y1, nothing, np.empty(shape, np.float32), other)
        np.copyto(other, a.area[:, None])
        other += b.area
        other -= shared
        shared /= other
    return shared


def _extent(
    a0: np.ndarray, a1: np.ndarray, b0: np.ndarray, b1: np.ndarray, zeros: np.ndarray, out: np.ndarray, spare: np.ndarray
) -> np.ndarray:
    """How much of each interval of `a` lies in each of `b`.

    NumPy finds the larger of two numbers three times as fast in two full rows as in a row and a scalar: hence the copies.
    """
    np.copyto(out, a1[:, None])
    np.minimum(out, b1, out=out)
    np.copyto(spare, a0[:, None])
    np.maximum(spare, b0, out=spare)
    out -= spare
    np.maximum(out, zeros, out=out)
    return out


class Anchors(tuple[float, ...]):
    """A flat tuple of corners that keeps its array form, since tens of thousands of numbers take time to convert."""

    @cached_property
    def table(self) -> np.ndarray:
        """float32[a, 4]."""
        return np.array(self, np.float32).reshape(-1, 4)

    @cached_property
    def corners(self) -> Corners:
        return Corners.of(self.table)

    def __reduce__(self) -> Any:
        return Anchors, (tuple(self),)


def _infer_encoded(given: TensorType, *, anchors: tuple[float, ...], **_: Any) -> TensorType:
    return _infer_boxes(given, 5, rows=len(anchors) // 4)


@register_op("box_encoder", takes=BOXES, infer=_infer_encoded, positional_only=("anchors",))
def box_encoder(
    boxes: np.ndarray,
    *,
    anchors: tuple[float, ...],
    iou_threshold: Probability = 0.5,
    scale: Scale = (10.0, 10.0, 5.0, 5.0),
) -> np.ndarray:
    """Give each anchor the box it should predict, as SSD and Faster R-CNN train on.

    An anchor takes the box it overlaps most (intersection over union), if by at least `iou_threshold` and by more than
    nothing. Each box also claims the anchor it overlaps most, whatever the overlap; among several that claim the same
    anchor the one of the largest overlap has it. Ties go to the earlier box or anchor.

    Args:
        boxes: float32[n, 5], corners and a label: a whole number >= 1, since 0 is background.
        anchors: x0, y0, x1, y1 of each anchor, one after the other.
        scale: what offsets and log sizes are multiplied by (one over the usual "variances").

    Returns:
        float32[a, 5], a new array: offset of the centre by the anchor's size, log of the box's size by the anchor's,
        and the label; zeros for background. Within 1e-5 of float64.

    Raises:
        OpError: not boxes within the image, or labels that are no whole numbers >= 1.

    Source: Ren et al. 2015, "Faster R-CNN", equation 2; Liu et al. 2016, "SSD", section 2.2.
    """
    out = np.empty((len(anchors) // 4, 5), np.float32)
    box_encoder_out(boxes, out, anchors=anchors, iou_threshold=iou_threshold, scale=scale)
    return out


@register_kernel("box_encoder", "out")
def box_encoder_out(
    boxes: np.ndarray,
    out: np.ndarray,
    *,
    anchors: tuple[float, ...],
    iou_threshold: Probability = 0.5,
    scale: Scale = (10.0, 10.0, 5.0, 5.0),
) -> None:
    """`box_encoder` into `out`."""
    _check_boxes(boxes, 5)
    labels = boxes[:, 4]
    _refuse(boxes, (labels < 1) | (labels != np.floor(labels)), "labels that are whole numbers >= 1 (0 is background)")
    out[...] = 0
    if not len(boxes):
        return
    known = anchors if isinstance(anchors, Anchors) else Anchors(anchors)
    match = _match(known.corners, Corners.of(boxes), iou_threshold)
    taken = np.flatnonzero(match >= 0)
    box, anchor = boxes[match[taken]], known.table[taken]
    size = anchor[:, 2:] - anchor[:, :2]
    rows = np.empty((len(taken), 5), np.float32)
    rows[:, :2] = (box[:, :2] - anchor[:, :2] + (box[:, 2:4] - anchor[:, 2:])) / (2 * size)
    rows[:, 2:4] = np.log((box[:, 2:4] - box[:, :2]) / size)
    rows[:, :4] *= np.array(scale, np.float32)
    rows[:, 4] = box[:, 4]
    out[taken] = rows


def _match(anchors: Corners, boxes: Corners, threshold: float) -> np.ndarray:
    """The box of each anchor, -1 for none: int[a]."""
    count, among = len(anchors.area), len(boxes.area)
    match = np.full(count, -1)
    most = np.full(among, -1.0, np.float32)
    favourite = np.zeros(among, np.intp)
    every_box = np.arange(among)
    step = max(1, ENCODER_OVERLAPS // among)
    for start in range(0, count, step):
        shared = overlaps(boxes, anchors.take(slice(start, start + step)))
        best = shared.max(axis=0)
        hit = np.flatnonzero((best >= np.float32(threshold)) & (best > 0))  # few, and argmax is slow
        match[start + hit] = shared[:, hit].argmax(axis=0)
        top = shared.argmax(axis=1)
        high = shared[every_box, top]
        better = high > most  # so the earliest of equals stays
        favourite[better] = start + top[better]
        most[better] = high[better]
    worst_first = np.argsort(-most, kind="stable")[::-1]  # of several values for one anchor the last one stays
    match[favourite[worst_first]] = worst_first
    return match


def _check_encoder(**given: Any) -> dict[str, Any]:
    anchors = Anchors(given["anchors"])
    if len(anchors) % 4:
        raise ValueError(f"box_encoder(anchors) takes 4 numbers per anchor, got {len(anchors)}")
    table, corners = anchors.table, anchors.corners
    bad = ~((table[:, :2] < table[:, 2:]).all(axis=1) & (corners.area > 0))
    if bad.any():
        row = int(bad.argmax())
        raise ValueError(f"box_encoder(anchors) takes x0 < x1 and y0 < y1; anchor {row} is {table[row].tolist()}")
    return {**given, "anchors": anchors}


setattr(box_encoder, "check_arguments", _check_encoder)  # noqa: B010


def _candidates(boxes: np.ndarray, score_thresh: float, form: BoxFormat) -> np.ndarray:
    """float32[n, 5], a new array: corners and score of the boxes that score enough, the best first."""
    _check_table(boxes, 5)
    if not (finite := np.isfinite(boxes)).all():
        _refuse(boxes, ~finite.all(axis=1), "finite numbers")
    enough = boxes[boxes[:, 4] >= np.float32(score_thresh)]
    found = enough[np.argsort(-enough[:, 4], kind="stable")]
    if form == "xywh":
        half = found[:, 2:4] / 2
        found[:, 2:4] = found[:, :2] + half
        found[:, :2] -= half
    return found


@register_op("nms", takes=BOXES, infer=_infer_some)
def nms(
    boxes: np.ndarray,
    *,
    iou_thresh: Probability = 0.5,
    score_thresh: Threshold = 0.05,
    top_k: Size | None = None,
    box_format: BoxFormat = "xyxy",
) -> np.ndarray:
    """Keep the best of boxes that overlap (non-maximum suppression).

    Args:
        boxes: float32[n, 5], corners (in any unit) and a score.
        iou_thresh: a box goes when its intersection over union with a better, kept one is larger.
        score_thresh: a box goes when its score is smaller.
        top_k: keep at most so many.
        box_format: "xywh" reads centres and sizes; corners come out all the same.

    Returns:
        float32[k, 5], a new array: corners and score, the best first, equal scores in the order they came.

    Raises:
        OpError: another dtype or shape, or a number that is not finite.

    Source: the rule of torchvision.ops.nms, except that the threshold is a float32 as overlaps are: one of 3/10 is not
        larger than 0.3.
    """
    found = _candidates(boxes, score_thresh, box_format)
    corners, limit = Corners.of(found), np.float32(iou_thresh)
    kept = np.empty(0, np.intp)
    for start in range(0, len(found), NMS_BLOCK):
        rows = np.arange(start, min(start + NMS_BLOCK, len(found)))
        if len(kept):
            rows = rows[~(overlaps(corners.take(kept), corners.take(rows)) > limit).any(axis=0)]
        some = corners.take(rows)
        kept = np.concatenate([kept, rows[_best(overlaps(some, some) > limit)]])
        if top_k is not None and len(kept) >= top_k:
            break
    return found[kept[:top_k]]


def _best(suppresses: np.ndarray) -> list[int]:
    """The rows of bool[n, n], best first, that no earlier one of these suppresses."""
    table = np.zeros((len(suppresses), NMS_BLOCK // 8), np.uint8)
    packed = np.packbits(suppresses, axis=1, bitorder="little")
    table[:, : packed.shape[1]] = packed
    suppressed, kept = 0, []
    for row, (low, high) in enumerate(table.view("<u8").tolist()):  # two integers hold a row: a step takes 0.1 us
        if not suppressed >> row & 1:
            kept.append(row)
            suppressed |= low | high << 64
    return kept


@register_op("soft_nms", takes=BOXES, infer=_infer_some)
def soft_nms(
    boxes: np.ndarray,
    *,
    iou_thresh: Probability = 0.3,
    sigma: Positive = 0.5,
    score_thresh: Threshold = 0.001,
    top_k: Size | None = None,
    box_format: BoxFormat = "xyxy",
) -> np.ndarray:
    """Lower the scores of boxes that overlap better ones, instead of dropping them at once.

    The best box is taken; the score of each other box that overlaps it by more than `iou_thresh` is multiplied by
    exp(-iou**2 / sigma); again with the best of those that are left.

    Args:
        boxes: float32[n, 5], corners (in any unit) and a score.
        iou_thresh: intersection over union up to which scores stay.
        sigma: the smaller, the faster scores fall.
        score_thresh: a box goes when its score, after all, is smaller.
        top_k: keep at most so many.
        box_format: "xywh" reads centres and sizes; corners come out all the same.

    Returns:
        float32[k, 5], a new array: corners and lowered score, the best first. Scores are within 1e-6 of taking one box
        after the other in float64.

    Raises:
        OpError: another dtype or shape, or a number that is not finite.

    Source: Bodla et al. 2017, "Soft-NMS: improving object detection with one line of code", equation 3.
    """
    found = _candidates(boxes, score_thresh, box_format)
    corners, scores = Corners.of(found), found[:, 4].copy()
    waiting = np.arange(len(found))
    while len(waiting):
        block, rest = waiting[:NMS_BLOCK], waiting[NMS_BLOCK:]
        floor = float(scores[rest[0]]) if len(rest) else -1.0
        near, marks = corners.take(block), scores[block]
        taken = _decay_in_block(near, marks, floor, iou_thresh, sigma)
        scores[block] = marks
        if not len(rest):
            break  # all of the block were taken
        scores[rest] *= _decay(overlaps(near.take(taken), corners.take(rest)), iou_thresh, sigma)
        waiting = np.concatenate([block[~taken], rest])
        waiting = waiting[scores[waiting] >= np.float32(score_thresh)]
        waiting = waiting[np.lexsort((waiting, -scores[waiting]))]
    found[:, 4] = scores
    order = np.argsort(-scores, kind="stable")[:top_k]
    return found[order[scores[order] >= np.float32(score_thresh)]]


def _decay(shared: np.ndarray, iou_thresh: float, sigma: float) -> np.ndarray:
    """float32[m]: what the scores of m boxes are multiplied by, for float32[n, m] overlaps with better ones."""
    np.copyto(shared, 0, where=~(shared > np.float32(iou_thresh)))  # that of two boxes without area is NaN
    shared *= shared
    power: np.ndarray = shared.sum(axis=0)
    power /= np.float32(-sigma)
    np.exp(power, out=power)
    return power


def _decay_in_block(
    corners: Corners, scores: np.ndarray, floor: float, iou_thresh: float, sigma: float
) -> np.ndarray:
    """Lower `scores`, best first, while they are above `floor`; bool[n]: the boxes that were taken.

    All boxes that beat every box they overlap are taken in one round: a score only falls, so such a box is taken before
    all those, and what it does not overlap cannot change its score.

    Args:
        scores: float32[n], falling.
        floor: the best score of the boxes that are not here: one of those may come before a box that fell below.
    """
    shared = np.triu(overlaps(corners, corners), 1)
    a, b = np.divmod(np.flatnonzero(shared > np.float32(iou_thresh)), len(scores))
    strength = np.square(shared[a, b]) / np.float32(sigma)
    taken = np.zeros(len(scores), np.bool_)
    while True:
        first_wins = scores[a] >= scores[b]
        loser, winner = np.where(first_wins, b, a), np.where(first_wins, a, b)
        beaten = taken.copy()
        beaten[loser] = True
        ready = ~beaten & (scores > floor)
        ready[0] |= not taken[0]
        taken |= ready
        falls = np.flatnonzero(ready[winner])
        if not len(falls):
            return taken
        scores *= np.exp(-np.bincount(loser[falls], strength[falls], len(scores)))
        left = np.flatnonzero(~taken[a] & ~taken[b])
        a, b, strength = a[left], b[left], strength[left]
