"""Exif orientation: which way up the camera was held."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from .header import Header

UPRIGHT = 1
SWAPPED = frozenset({5, 6, 7, 8})
"""Orientations that exchange height and width."""
INVERSE = {6: 8, 8: 6}
"""Orientation that undoes another, where it is not the same one."""


@cache
def _exif_class() -> Any:
    from PIL import Image

    return Image.Exif


def orientation(header: Header) -> int:
    """The orientation of the stored pixels, 1 to 8; 1 when there is no Exif block or it is damaged.

    Source: Exif 2.32, tag 274 (Orientation).
    """
    if header.exif is None or len(header.exif) < 8:
        return header.orientation if 1 <= header.orientation <= 8 else UPRIGHT
    exif = _exif_class()()
    try:
        block = bytes(header.exif)
        exif.load(block if block.startswith(b"Exif\0\0") else b"Exif\0\0" + block)
        value = exif.get(274, UPRIGHT)
    except Exception:  # damaged metadata is no reason to lose the picture, and Pillow raises many kinds
        return UPRIGHT
    return value if isinstance(value, int) and 1 <= value <= 8 else UPRIGHT


def apply_orientation(image: np.ndarray, code: int) -> np.ndarray:
    """Turn and mirror stored pixels upright.

    Args:
        image: [h, w, c].
        code: 1 to 8.

    Returns:
        [h, w, c], or [w, h, c] for 5 to 8; contiguous, a new array unless `code` is 1.
    """
    if code == UPRIGHT:
        return image
    if code == 2:
        turned = image[:, ::-1]
    elif code == 3:
        turned = image[::-1, ::-1]
    elif code == 4:
        turned = image[::-1]
    else:
        turned = image.transpose(1, 0, 2)
        if code in (6, 7):
            turned = turned[:, ::-1]
        if code in (7, 8):
            turned = turned[::-1]
    return _contiguous(turned, image, code)


def _contiguous(turned: np.ndarray, image: np.ndarray, code: int) -> np.ndarray:
    """`turned` as a C-contiguous array; whole pixels move through OpenCV, several times faster than NumPy."""
    if image.dtype != np.uint8 or image.shape[2] == 2:
        return np.ascontiguousarray(turned)
    import cv2

    if code in (2, 3, 4):
        out = cv2.flip(image, {2: 1, 3: -1, 4: 0}[code])
    elif code == 5:
        out = cv2.transpose(image)
    elif code == 7:
        out = cv2.flip(cv2.transpose(image), -1)
    else:
        out = cv2.rotate(image, cv2.ROTATE_90_CLOCKWISE if code == 6 else cv2.ROTATE_90_COUNTERCLOCKWISE)
    return np.asarray(out).reshape(turned.shape)  # OpenCV drops a channel axis of 1
