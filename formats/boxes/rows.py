"""What all ops on boxes share: the rows they take, and how much boxes overlap."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from ...engine.errors import OpError
from ...engine.schema import Takes, TensorType

BoxFormat: TypeAlias = Literal["xyxy", "xywh"]

BOXES = Takes(dtypes=("float32",), ranks=(2,))
SLACK = 1e-3
"""How far a coordinate may lie outside of the image: rounding of pixels to fractions and back leaves some there."""


def infer_boxes(given: TensorType, width: int, rows: int | None = None) -> TensorType:
    count = None
    if given.shape is not None:
        count, found = given.shape
        if found not in (None, width):
            raise ValueError(f"takes float32[n, {width}], got {given}")
    return TensorType((count if rows is None else rows, width), "float32")


def infer_some(given: TensorType, **_: Any) -> TensorType:
    """Any number of rows."""
    kept = infer_boxes(given, 5)
    return kept.with_shape((None, 5))


def check_table(boxes: np.ndarray, width: int) -> None:
    if boxes.ndim != 2 or boxes.shape[1] != width or boxes.dtype != np.float32:
        raise OpError(f"takes float32[n, {width}], got {boxes.dtype}{list(boxes.shape)}")


def refuse(boxes: np.ndarray, bad: Any, why: str) -> None:
    """Name the first row of `boxes` where bool[n] `bad` is true, if there is one."""
    if bad.any():
        row = int(bad.argmax())
        raise OpError(f"takes {why}; row {row} is {boxes[row].tolist()}")


def check_boxes(boxes: np.ndarray, width: int, form: BoxFormat = "xyxy") -> None:
    """Refuse rows that are no boxes within the image.

    Raises:
        OpError: another dtype or shape, a value that is not finite, coordinates that are no fractions of the image,
            corners out of order.
    """
    check_table(boxes, width)
    if not len(boxes):
        return
    places = boxes[:, :4]
    inside = places.min() >= -SLACK and places.max() <= 1 + SLACK  # false for NaN
    if not inside or (width == 5 and not np.isfinite(boxes[:, 4]).all()):
        refuse(boxes, ~np.isfinite(boxes).all(axis=1), "finite numbers")
        outside = (places < -SLACK) | (places > 1 + SLACK)
        refuse(boxes, outside.any(axis=1), "coordinates as fractions of the image, from 0 to 1")
    if form == "xyxy" and not (sizes := places[:, 2:] - places[:, :2]).min() > 0:
        refuse(boxes, (sizes <= 0).any(axis=1), "corners with x0 < x1 and y0 < y1")


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
