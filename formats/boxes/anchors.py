"""The targets of anchors."""

from __future__ import annotations

from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from ...engine.arguments import Positive, Probability
from ...engine.registry import register_check, register_kernel, register_op
from ...engine.schema import TensorType
from .rows import BOXES, Corners, check_boxes, infer_boxes, overlaps, refuse

Scale: TypeAlias = tuple[Positive, Positive, Positive, Positive]

ENCODER_OVERLAPS = 1 << 15
"""Overlaps of boxes with anchors that box_encoder works out at a time: its temporaries stay in the cache."""


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
    return infer_boxes(given, 5, rows=len(anchors) // 4)


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
    check_boxes(boxes, 5)
    labels = boxes[:, 4]
    refuse(boxes, (labels < 1) | (labels != np.floor(labels)), "labels that are whole numbers >= 1 (0 is background)")
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


@register_check("box_encoder")
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
