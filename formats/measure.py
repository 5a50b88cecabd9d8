"""Numbers of a tensor, to look for records by: mean, deviation, shape, and how sharp an image is."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..engine.errors import OpError
from ..engine.registry import register_op
from ..engine.schema import Layout, Takes, TensorType
from .array import CASTABLE
from .libraries import opencv

LUMA = np.array([[0.299, 0.587, 0.114]], np.float32)
"""Weights of red, green and blue, of BT.601."""


def _number(given: TensorType, **_: Any) -> TensorType:
    return TensorType((), "float64")


def _some(op: str, value: np.ndarray) -> np.ndarray:
    if not value.size:
        raise OpError(f"{op} of no elements is not defined, got shape {value.shape}")
    return value


@register_op("mean", takes=Takes(dtypes=CASTABLE), infer=_number)
def mean(value: np.ndarray) -> np.ndarray:
    """The mean of all elements; of an image decoded with `mode="gray"` its brightness, 0 to 255.

    Returns:
        float64[], NaN where an element is.

    Raises:
        OpError: there is no element.
    """
    return np.asarray(_some("mean", value).mean(dtype=np.float64))


@register_op("std", takes=Takes(dtypes=CASTABLE), infer=_number)
def std(value: np.ndarray) -> np.ndarray:
    """The standard deviation of all elements (of the whole, not of a sample): the contrast of an image.

    Returns:
        float64[], NaN where an element is NaN or infinite.

    Raises:
        OpError: there is no element.
    """
    with np.errstate(invalid="ignore"):
        return np.asarray(_some("std", value).std(dtype=np.float64))


def _dimensions(given: TensorType) -> TensorType:
    return TensorType((None if given.shape is None else len(given.shape),), "int64")


@register_op("shape", infer=_dimensions)
def shape(value: np.ndarray) -> np.ndarray:
    """The shape: of an image as it was decoded, height, width and channels.

    Returns:
        int64[ndim].
    """
    return np.asarray(value.shape, np.int64)


@register_op("sharpness", takes=Takes(dtypes=("uint8", "float32"), layouts=("HWC", "CHW"), channels=(1, 3, 4)), infer=_number)
def sharpness(image: np.ndarray, *, layout: Layout) -> np.ndarray:
    """The variance of the Laplacian of the luma: small for blurred images. Compare images of one size.

    Args:
        image: uint8 or float32, HWC or CHW; of four channels the last is left out. The luma is that of BT.601, unrounded.

    Returns:
        float64[]. The Laplacian is the sum of the four neighbours minus four times the pixel; edges are mirrored (the edge pixel not repeated).

    Raises:
        OpError: there is no pixel.

    Source: Pech-Pacheco et al., "Diatom autofocusing in brightfield microscopy" (2000).
    """
    cv2, colours = opencv(), _some("sharpness", image)
    if layout == "CHW":
        colours = colours.transpose(1, 2, 0)
    if colours.shape[2] == 1:
        luma = np.ascontiguousarray(colours[..., 0], np.float32)
    else:
        luma = cv2.transform(np.ascontiguousarray(colours[..., :3], np.float32), LUMA)
    _, deviation = cv2.meanStdDev(cv2.Laplacian(luma, cv2.CV_32F, ksize=1))
    return np.asarray(math.pow(float(deviation[0, 0]), 2))
