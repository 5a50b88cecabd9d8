"""Images as files: what `dataio.read_image` decodes, and `write_image`.

Libraries: the decoders of `image.decode` (libjpeg-turbo by simplejpeg, OpenCV, Pillow), Pillow to write.
"""

from __future__ import annotations

import io
import os
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from ...engine.errors import OpError, did_you_mean
from ...io.uri import parse_uri
from ...io.verbs import write
from ..inputs import name_of, naming, read_bytes
from .decode import image

MODES = {"rgb": "rgb", "rgba": "rgba", "gray": "gray", "grayscale": "gray", "grey": "gray", "luma": "gray", "l": "gray"}
LAYOUTS = ("hwc", "chw")
_FORMATS = {"JPG": "JPEG", "TIF": "TIFF", "JP2": "JPEG2000"}
"""Names that Pillow has not, and what it calls them."""
_WITH_QUALITY = ("JPEG", "WEBP")
_WITH_16_BITS = ("PNG", "TIFF")


class ImageFormatError(OpError, KeyError):
    """No format of that name can be written."""

    def __str__(self) -> str:  # KeyError would print the repr of the message
        return str(self.args[0]) if self.args else ""


def read_pixels(src: Any, mode: Any, layout: Any, limits: dict[str, int]) -> np.ndarray:
    """uint8 pixels of an encoded image, as `dataio.read_image` describes them."""
    wanted = MODES.get(mode.lower()) if isinstance(mode, str) else None
    if wanted is None:
        raise ValueError(f"mode must be one of {', '.join(MODES)}, got {mode!r}")
    if layout not in LAYOUTS:
        raise ValueError(f"layout must be one of {', '.join(LAYOUTS)}, got {layout!r}")
    data = read_bytes(src)
    with naming(src):
        return image(data, mode=wanted, normalize="none", layout=layout, **limits)  # type: ignore[arg-type]


def write_image(
    uri: str | os.PathLike[str],
    array: Any,
    *,
    format: str | None = None,
    quality: int | None = None,
    atomic: bool = True,
) -> None:
    """Encode an image and write it.

    Args:
        uri: a local path or a URI that can be written.
        array: uint8 [h, w] (gray), [h, w, 3] (RGB) or [h, w, 4] (RGBA); uint16 [h, w], for PNG and TIFF; a torch tensor of these;
            or a Pillow image, of any mode that the format takes.
        format: a name of Pillow's in any case, or "jpg", "tif", "jp2". None: by the suffix of `uri`, PNG where it has none. (With
            the reference "jpg" and ".tif" are unknown.)
        quality: 0 (small) to 100 (good), of JPEG and WebP; others ignore it.
        atomic: False writes into the local file in place.

    Raises:
        TypeError: floats, channels first, [h, w, 1], and all else that is none of the above.
        KeyError, ValueError: an unknown format (ImageFormatError, which is both).
        ValueError: no pixels, more than the format has room for, or of a kind that it does not store (RGBA in JPEG); `quality` out
            of range.
        OSError, NotImplementedError: as `dataio.write` says; then the old file is as it was.
    """
    from PIL import Image

    kind = pillow_format(uri, format)
    data = encode_image(array, kind, quality=quality, name=name_of(uri))
    write(uri, data, content_type=Image.MIME.get(kind), atomic=atomic)


def encode_image(array: Any, kind: str, *, quality: int | None = None, name: str) -> bytes:
    """The file that `write_image` writes, in the format that Pillow calls `kind`; errors are those of `write_image`.

    Args:
        name: of what is encoded, for errors.
    """
    from PIL import Image

    options: dict[str, Any] = {}
    if quality is not None:
        if isinstance(quality, bool) or not isinstance(quality, int):
            raise TypeError(f"quality is an int from 0 to 100, got {quality!r}")
        if not 0 <= quality <= 100:
            raise OpError(f"quality must be 0 to 100, got {quality}")
        if kind in _WITH_QUALITY:
            options["quality"] = quality
    picture = array if isinstance(array, Image.Image) else _picture(array, kind)
    if 0 in picture.size:
        raise OpError(f"an image without pixels, {picture.width}x{picture.height}, is none")
    out = io.BytesIO()
    try:
        picture.save(out, kind, **options)
    except (OSError, ValueError, KeyError, TypeError, SystemError) as error:  # what Pillow's encoders raise
        raise OpError(
            f"{name}: {kind} cannot store a {picture.width}x{picture.height} image of mode {picture.mode}: {error}"
        ) from error
    return out.getvalue()


def pillow_format(uri: str | os.PathLike[str], format: str | None) -> str:
    """What Pillow calls the format.

    Raises:
        ImageFormatError: it does not write it.
    """
    from PIL import Image

    if format is not None and not isinstance(format, str):
        raise TypeError(f"format is a str such as 'png', got {format!r}")
    suffix = "" if format is not None else PurePosixPath(str(parse_uri(uri).key)).suffix
    if format is None and not suffix:
        return "PNG"
    Image.init()
    asked = suffix.removeprefix(".") if format is None else format
    name = _FORMATS.get(asked.upper(), asked.upper())
    if name not in Image.SAVE:
        name = Image.registered_extensions().get(f".{asked.lower()}", name)
    if name not in Image.SAVE:
        known = [known.lower() for known in Image.SAVE]
        source = f"the suffix of {name_of(uri)}" if format is None else "format"
        raise ImageFormatError(f"{source} says {asked!r}, which is no image format that can be written{did_you_mean(asked.lower(), known)}")
    return name


def _picture(array: Any, kind: str) -> Any:
    """A Pillow image of the pixels.

    Raises:
        TypeError: not an array of pixels.
        OpError: 16 bits in a format that has 8.
    """
    from PIL import Image

    if hasattr(array, "detach"):  # a torch tensor
        array = array.detach().cpu().numpy()
    if not isinstance(array, np.ndarray):
        raise TypeError(f"write_image takes an array, a torch tensor or a Pillow image, got {type(array).__name__}")
    shape, dtype = array.shape, array.dtype
    found = f"write_image takes uint8 [h, w], [h, w, 3], [h, w, 4] or uint16 [h, w], got {dtype} {list(shape)}"
    if dtype.kind == "f":
        raise TypeError(f"{found}: scale to 0-255 and convert, as in (x * 255).round().clip(0, 255).astype('uint8')")
    if dtype.kind == "u" and dtype.itemsize == 2 and len(shape) == 2:
        if kind not in _WITH_16_BITS:
            raise OpError(f"{kind} stores 8 bits per sample and the array has 16: write {' or '.join(_WITH_16_BITS)}, or shift by 8")
        return Image.fromarray(np.ascontiguousarray(array, np.uint16))
    if dtype == np.uint8 and (len(shape) == 2 or (len(shape) == 3 and shape[2] in (3, 4))):
        return Image.fromarray(np.ascontiguousarray(array))
    if dtype == np.uint8 and len(shape) == 3 and shape[2] == 1:
        raise TypeError(f"{found}: drop the axis, array[:, :, 0]")
    if dtype == np.uint8 and len(shape) == 3 and shape[0] in (1, 3, 4):
        raise TypeError(f"{found}: channels come last, array.transpose(1, 2, 0)")
    raise TypeError(found)
