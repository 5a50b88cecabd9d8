"""What kernels on uint8 images share: what they take and give, results in the memory they are given, work in bands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ...engine.errors import OpError
from ...engine.schema import Takes, TensorType
from ..buffers import scratch

IMAGE = Takes(dtypes=("uint8",), layouts=("HWC",), channels=(1, 3, 4))
RGB = Takes(dtypes=("uint8",), layouts=("HWC",), channels=(3,))
BAND_PIXELS = 1 << 16
"""Pixels that are float32 at a time: fewer cost more calls, more leave the cache (a quarter slower at 512x512)."""


def require_pixels(op: str, image: np.ndarray, channels: tuple[int, ...] = (1, 3, 4)) -> None:
    """Refuse what is not uint8[h, w, c] with c in `channels`.

    Raises:
        OpError: another dtype, rank or channel count.
    """
    if image.ndim != 3 or image.dtype != np.uint8 or image.shape[2] not in channels:
        wanted = " or ".join(map(str, channels))
        raise OpError(f"{op} takes uint8[h, w, {wanted}], got {image.dtype}{list(image.shape)}")


def stored(result: np.ndarray, out: np.ndarray) -> None:
    """See that `out` holds `result`: OpenCV writes into the array given as `dst`, unless it finds that it does not fit."""
    if result is not out:
        np.copyto(out, result.reshape(out.shape))


def infer_same(given: TensorType, **_: Any) -> TensorType:
    """The type of an op on images that keeps the shape."""
    return TensorType(given.shape or (None, None, None), "uint8", "HWC")


def infer_rgb(given: TensorType, **_: Any) -> TensorType:
    """The type of an op on RGB images that keeps the shape."""
    h, w, _c = given.shape or (None, None, None)
    return TensorType((h, w, 3), "uint8", "HWC")


def made(write: Callable[..., None], image: np.ndarray, *arguments: Any) -> np.ndarray:
    """A new array of the image's shape, filled by `write(image, out, *arguments)`."""
    out = np.empty(image.shape, np.uint8)
    write(image, out, *arguments)
    return out


def bands(height: int, width: int) -> Iterator[slice]:
    """Rows of the image in runs of about `BAND_PIXELS` pixels."""
    rows = max(BAND_PIXELS // max(width, 1), 1)
    return (slice(y, min(y + rows, height)) for y in range(0, height, rows))


def float_scratch(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """`scratch` as float32."""
    floats: np.ndarray = scratch(name, (*shape, 4)).view(np.float32).reshape(shape)
    return floats
