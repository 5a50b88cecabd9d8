"""Libraries that take long to import: the first call that needs one imports it."""

from __future__ import annotations

from functools import cache
from typing import Any


@cache
def opencv() -> Any:
    """The module `cv2`."""
    import cv2

    return cv2
