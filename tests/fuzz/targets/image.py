"""`read_image`: every format that is decoded."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

import dataio
from dataio.engine.errors import OpError

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 5, 3), np.uint8)
FORMATS = ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF", "JPEG2000", "TGA", "ICO"]


def _encoded(picture: Image.Image, format: str, **options: object) -> bytes:
    out = io.BytesIO()
    picture.save(out, format, **options)  # type: ignore[arg-type]
    return out.getvalue()


def seeds() -> list[bytes]:
    """Small files of all formats, and of some kinds of pixels."""
    rgb = Image.fromarray(PIXELS)
    exif = Image.Exif()
    exif[0x0112] = 6
    return [
        *(_encoded(rgb, format) for format in FORMATS),
        *(_encoded(rgb.convert(mode), "PNG") for mode in ("1", "L", "LA", "P", "RGBA", "I;16")),
        _encoded(rgb.convert("CMYK"), "JPEG"),
        _encoded(rgb, "JPEG", exif=exif, progressive=True),
        _encoded(rgb, "TIFF", compression="tiff_deflate"),
        b"P7\nWIDTH 2\nHEIGHT 1\nDEPTH 3\nMAXVAL 255\nTUPLTYPE RGB\nENDHDR\nabcdef",
        b"P6 1 1 65535\nabcdef",
    ]


def run(data: bytes) -> None:
    """Decode in two modes."""
    for mode in ("rgb", "gray"):
        try:
            found = dataio.read_image(data, mode=mode, max_pixels=1 << 20, max_decoded_bytes=1 << 22)
        except OpError:
            continue
        assert found.ndim == 3
        assert found.dtype == np.uint8
