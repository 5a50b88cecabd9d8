"""`read_image`: an encoded image as pixels, in the framework of whoever asks."""

from __future__ import annotations

from typing import Any

from .formats.image.files import read_pixels
from .outputs import find_adapter


def read_image(
    src: Any,
    *,
    mode: str = "rgb",
    layout: str = "hwc",
    framework: Any = "numpy",
    max_pixels: int = 134217728,
    max_decoded_bytes: int = 536870912,
) -> Any:
    """Decode one image; its format is told from the content, and it is turned upright as its Exif orientation says.

    Args:
        src: a local path or URI, bytes-like, a `dataio.Reader` or an object whose `read()` returns bytes. Formats and rules are
            those of `decoders.image`.
        mode: "rgb", "rgba" or "gray" ("grayscale", "grey", "luma", "l"), in any case.
        layout: "hwc" or "chw".
        framework: any output name of `run`: "numpy", "torch", "jax", "dlpack", "arrow", a registered one, or a callable.
        max_pixels, max_decoded_bytes: limits on the pixels as stored and the bytes of the result; 0 for none.

    Returns:
        uint8 [h, w, c] or [c, h, w], c = 3, 4 or 1.

    Raises:
        FileNotFoundError, OSError: missing or unreadable.
        ValueError: no image, or a damaged one; larger than a limit (LimitError); an unknown mode, layout or framework.
        TypeError: a source of another kind.
    """
    _, adapter = find_adapter(framework)
    return adapter(read_pixels(src, mode, layout, {"max_pixels": max_pixels, "max_decoded_bytes": max_decoded_bytes}))
