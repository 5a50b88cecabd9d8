"""The `image` decoder: encoded image bytes to pixels.

Every format goes through one rule, whatever library decodes it:

* 16-bit samples give their high byte; 1-bit and palette images are expanded; float samples are refused.
* CMYK becomes RGB by Pillow's conversion.
* Gray from colour is BT.601 in Pillow's integers, `(19595 R + 38470 G + 7471 B + 32768) >> 16`; a JPEG gives its
  own Y channel, which is the same weights before rounding and costs no colour conversion.
* Mode "rgb" drops alpha and leaves colours as stored, unless `fill_color` composites; "rgba" gives opaque images 255.
* The Exif orientation is applied unless `orient=False`. Animations give their first frame.

JPEG goes to simplejpeg (libjpeg-turbo), or to Pillow when it has four channels. Plain 8-bit PNG and WebP go to OpenCV, which
measured 1.2 to 1.3 times as fast as Pillow at equal pixels; everything else goes to Pillow.
"""

from __future__ import annotations

import io
import math
from functools import cache
from typing import Any, Literal, TypeAlias

import numpy as np

from ...engine.arguments import Count
from ...engine.calls import OpCall
from ...engine.errors import LimitError, OpError
from ...engine.registry import lookup, register_check, register_kernel, register_op
from ...engine.schema import TensorType
from ..libraries import opencv
from ..raw import BytesLike, as_view
from .exif import INVERSE, SWAPPED, UPRIGHT, apply_orientation, orientation
from .header import Header, png_is_whole, read_header
from .normalize import SYMMETRIC, UNIT, pack_into
from .resize import resized_shape

Mode: TypeAlias = Literal["rgb", "rgba", "gray", "grayscale", "luma"]
Normalize: TypeAlias = Literal["symmetric", "unit", "none"]
Color: TypeAlias = tuple[int, int, int]

_SYNONYMS = {"grayscale": "gray", "luma": "gray"}
_CHANNELS = {"rgb": 3, "rgba": 4, "gray": 1}
_JPEG_COLORS = {"rgb": "RGB", "rgba": "RGBA", "gray": "GRAY"}
_PILLOW_NAMES = {"pnm": "PPM"}
"""Pillow's name of a format, where it is not ours in upper case."""
BENIGN_JPEG_WARNINGS = (
    "extraneous bytes before marker",
    "Invalid SOS parameters",
    "Unknown Adobe color transform code",
    "JFIF major revision number",
)
"""Warnings of libjpeg after which the pixels are whole: every decoder accepts these files."""


@register_check("image", kind="decoder")
def _check_arguments(**given: Any) -> dict[str, Any]:
    mode = given["mode"] = _SYNONYMS.get(given["mode"], given["mode"])
    given["allow_alpha"] = bool(given["allow_alpha"])
    if given["allow_alpha"] and mode != "rgb":
        raise ValueError(f"image(allow_alpha=True) goes with mode='rgb', got mode={mode!r}")
    if (fill := given["fill_color"]) is not None:
        if mode != "rgb" or given["allow_alpha"]:
            raise ValueError(f"image(fill_color=) goes with mode='rgb' and no alpha, got mode={mode!r}")
        if any(not 0 <= v <= 255 for v in fill):
            raise OverflowError(f"image(fill_color=) takes components from 0 to 255, got {fill}")
    return given


def _infer(
    given: TensorType, *, mode: str, normalize: str, layout: str, allow_alpha: bool, **_: Any
) -> TensorType:
    channels = 4 if allow_alpha else _CHANNELS[_SYNONYMS.get(mode, mode)]
    dtype = "uint8" if normalize == "none" else "float32"
    if layout == "chw":
        return TensorType((channels, None, None), dtype, "CHW")
    return TensorType((None, None, channels), dtype, "HWC")


def decode_image(
    *,
    mode: str = "rgb",
    normalize: Normalize = "none",
    layout: Literal["chw", "hwc"] = "hwc",
    allow_alpha: bool | None = None,
    max_pixels: int = 134217728,
    max_decoded_bytes: int = 536870912,
    max_width: int = 0,
    max_height: int = 0,
    backend: Literal["auto", "nvjpeg"] = "auto",
    fill_color: Color | None = None,
    orient: bool = True,
    dct_scale: bool = False,
) -> OpCall:
    """The slot method: HWC uint8 unless asked otherwise, `mode` in any case; arguments as `decoders.image`."""
    return lookup("image", "decoder").call(
        mode=mode.lower() if isinstance(mode, str) else mode,
        normalize=normalize,
        layout=layout,
        allow_alpha=allow_alpha,
        max_pixels=max_pixels,
        max_decoded_bytes=max_decoded_bytes,
        max_width=max_width,
        max_height=max_height,
        backend=backend,
        fill_color=fill_color,
        orient=orient,
        dct_scale=dct_scale,
    )


@register_op("image", kind="decoder", infer=_infer, method=decode_image, internal=("shrink_to",))
def image(
    data: BytesLike,
    *,
    mode: Mode = "rgb",
    normalize: Normalize = "symmetric",
    layout: Literal["chw", "hwc"] = "chw",
    allow_alpha: bool | None = False,
    max_pixels: Count = 134217728,
    max_decoded_bytes: Count = 536870912,
    max_width: Count = 0,
    max_height: Count = 0,
    backend: Literal["auto", "nvjpeg"] = "auto",
    fill_color: Color | None = None,
    orient: bool = True,
    dct_scale: bool = False,
    shrink_to: tuple[str, int, int] | None = None,
) -> np.ndarray:
    """Decode one encoded image; its format is told from the content.

    Args:
        data: JPEG, PNG, WebP, GIF, BMP, TIFF, PNM and PAM, AVIF, JPEG 2000, QOI, TGA or ICO.
        mode: "rgb", "rgba" or "gray" ("grayscale", "luma").
        normalize: "none" keeps uint8, "unit" is x/255, "symmetric" is x/127.5 - 1, both float32.
        layout: "hwc" or "chw".
        allow_alpha: mode "rgb" only: always give 4 channels, as "rgba".
        max_pixels, max_width, max_height: limits on the stored size; 0 for none.
        max_decoded_bytes: limit on the bytes of the result, and on those of a PNG's samples as stored, one byte each; 0 for
            none.
        backend: "auto", or "nvjpeg" to insist on NVIDIA's decoder.
        fill_color: mode "rgb" only: composite transparent images over this colour.
        orient: turn the image upright as its Exif orientation says.
        dct_scale: let a following resize decode a JPEG at 1/2, 1/4 or 1/8 of its size; pixels change slightly.
        shrink_to: set by the rule "reduced_scale_jpeg", not by users: the resize that follows, as arguments of
            `resized_shape`.

    Returns:
        uint8 or float32, [h, w, c] or [c, h, w]; gray has c = 1. Owns its memory.

    Raises:
        LimitError: the header announces more than a limit; nothing was decoded.
        OpError: unknown format, damaged or truncated data.
    """
    if backend == "nvjpeg":
        raise OpError(_nvjpeg_complaint())
    view = as_view(data)
    header = read_header(view)
    channels = 4 if allow_alpha else _CHANNELS[_SYNONYMS.get(mode, mode)]
    itemsize = 1 if normalize == "none" else 4
    check_limits(header, channels * itemsize, max_pixels, max_decoded_bytes, max_width, max_height)
    turn = orientation(header) if orient or header.format == "tiff" else UPRIGHT
    wanted = "rgba" if allow_alpha else _SYNONYMS.get(mode, mode)
    pixels = _decode(data, header, wanted, fill_color, shrink_to if dct_scale else None, turn if orient else 1)
    if header.format == "tiff":  # Pillow has turned it already
        turn = UPRIGHT if orient else INVERSE.get(turn, turn)
    pixels = apply_orientation(pixels, turn)
    if normalize != "none":
        rule = SYMMETRIC if normalize == "symmetric" else UNIT
        planes = np.empty((channels, *pixels.shape[:2]), np.float32)
        pack_into(pixels, planes, rule)
        return planes if layout == "chw" else np.ascontiguousarray(planes.transpose(1, 2, 0))
    return pixels if layout == "hwc" else np.ascontiguousarray(pixels.transpose(2, 0, 1))


@register_kernel("image", "original_hw", kind="decoder")
def original_hw(
    data: BytesLike,
    value: np.ndarray,
    *,
    layout: str = "chw",
    orient: bool = True,
    shrink_to: tuple[str, int, int] | None = None,
    **_: Any,
) -> tuple[int, int]:
    """Height and width, upright, before any transform."""
    if shrink_to is None:
        return value.shape[:2] if layout == "hwc" else value.shape[1:]
    header = read_header(data)
    if orient and orientation(header) in SWAPPED:
        return header.width, header.height
    return header.height, header.width


def check_limits(
    header: Header, pixel_bytes: int, max_pixels: int, max_decoded_bytes: int, max_width: int, max_height: int
) -> None:
    """Refuse what the header announces, before anything is allocated.

    Raises:
        LimitError: naming the limit, what was found, and how to raise it.
    """
    height, width = header.height, header.width
    found = f"a {header.format} of {width}x{height} pixels"
    if max_pixels and height * width > max_pixels:
        raise LimitError(f"{found} exceeds max_pixels={max_pixels}; pass a larger limit, or 0 for none")
    if max_width and width > max_width:
        raise LimitError(f"{found} exceeds max_width={max_width}; pass a larger limit, or 0 for none")
    if max_height and height > max_height:
        raise LimitError(f"{found} exceeds max_height={max_height}; pass a larger limit, or 0 for none")
    if header.format == "png":  # decoded as stored before channels are dropped
        pixel_bytes = max(pixel_bytes, header.channels)
    if max_decoded_bytes and height * width * pixel_bytes > max_decoded_bytes:
        raise LimitError(
            f"{found} decodes to {height * width * pixel_bytes} bytes and exceeds max_decoded_bytes={max_decoded_bytes}; "
            "pass a larger limit, or 0 for none"
        )


def _nvjpeg_complaint() -> str:
    import ctypes.util

    if ctypes.util.find_library("nvjpeg") is None:
        return "backend='nvjpeg' needs the library libnvjpeg of the CUDA toolkit, which was not found; use backend='auto'"
    return "backend='nvjpeg' decodes on a device only: run the pipeline with device='cuda', or use backend='auto'"


def _decode(
    data: BytesLike,
    header: Header,
    mode: str,
    fill: Color | None,
    shrink: tuple[str, int, int] | None,
    turn: int,
) -> np.ndarray:
    """The stored pixels, uint8[h, w, c]."""
    if header.format == "jpeg" and header.channels in (1, 3):
        pixels = _simplejpeg(data, header, mode, shrink, turn)
        if pixels is not None:
            return pixels
    elif header.plain and fill is None and (header.format != "png" or png_is_whole(data)):
        pixels = _opencv(data, mode)
        if pixels is not None and pixels.shape[:2] == (header.height, header.width):
            return pixels
    if header.payload:
        return _netpbm(data, header, mode, fill)
    return _pillow(data, header, mode, fill)


def _netpbm(data: BytesLike, header: Header, mode: str, fill: Color | None) -> np.ndarray:
    """PAM, which Pillow does not read, and 16-bit colour PNM, of which Pillow rounds the samples.

    Raises:
        OpError: the samples end early.
    """
    from PIL import Image

    dtype, shape = np.dtype(">u2" if header.maxval > 255 else "u1"), (header.height, header.width, header.channels)
    samples = np.frombuffer(as_view(data)[header.payload :], np.uint8)
    need = math.prod(shape) * dtype.itemsize
    if len(samples) < need:
        raise OpError(f"damaged or truncated pnm of {len(data)} bytes: its samples take {need}, there are {len(samples)}")
    values = samples[:need].view(dtype).reshape(shape)
    if header.maxval == 65535:
        values = values >> 8
    elif header.maxval != 255:
        values = np.minimum((values.astype(np.uint32) * 255 + header.maxval // 2) // header.maxval, 255)
    values = values.astype(np.uint8)
    return _array(_convert(Image.fromarray(values[:, :, 0] if header.channels == 1 else values), mode, fill))


@cache
def _simplejpeg_functions() -> tuple[Any, Any]:
    import simplejpeg

    return simplejpeg.decode_jpeg, simplejpeg.decode_jpeg_header


def _simplejpeg(
    data: BytesLike, header: Header, mode: str, shrink: tuple[str, int, int] | None, turn: int
) -> np.ndarray | None:
    """Decode a gray or colour JPEG; None when the library cannot, and Pillow shall try.

    Raises:
        OpError: the data is cut short or damaged.
    """
    decode, parse = _simplejpeg_functions()
    try:
        height, width, *_ = parse(data, strict=False)
    except (ValueError, KeyError):  # KeyError: a colour space it has no name for
        return None
    if (height, width) != (header.height, header.width):  # the limits were checked for another size
        raise OpError(f"damaged JPEG: two frame headers, {header.width}x{header.height} and {width}x{height} pixels")
    factor = 1 if shrink is None else _dct_factor(header.height, header.width, shrink, turn)
    arguments: dict[str, Any] = {}
    if factor > 1:
        arguments = {
            "min_height": -(-header.height // factor),
            "min_width": -(-header.width // factor),
            "min_factor": factor,
        }
    try:
        pixels: np.ndarray = decode(data, _JPEG_COLORS[mode], **arguments)
        return pixels
    except (ValueError, KeyError) as error:
        message = str(error)
    if any(known in message for known in BENIGN_JPEG_WARNINGS):
        try:
            pixels = decode(data, _JPEG_COLORS[mode], strict=False, **arguments)
            return pixels
        except ValueError:  # a warning while it reads the header stops it whatever `strict` says
            return None
    if "remature end" in message or "Corrupt JPEG" in message:
        raise OpError(f"damaged or truncated JPEG of {len(data)} bytes: {message}")
    return None


def _dct_factor(height: int, width: int, shrink: tuple[str, int, int], turn: int) -> int:
    """The largest of 8, 4, 2 at which the JPEG still has every pixel that the resize needs, else 1.

    Sizes are rounded up, so the free edge of resize_short and resize_long may come out one pixel away.
    """
    if turn in SWAPPED:
        height, width = width, height
    how, h, w = shrink
    target = resized_shape(how, height, width, h, w)
    for factor in (8, 4, 2):
        small = -(-height // factor), -(-width // factor)
        if small[0] >= target[0] and small[1] >= target[1]:
            return factor
    return 1


def _opencv(data: BytesLike, mode: str) -> np.ndarray | None:
    """Decode a plain PNG or WebP; None on any trouble, so that Pillow's message is what the user reads."""
    cv2 = opencv()
    try:
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION)
    except cv2.error:
        return None
    if pixels is None or pixels.dtype != np.uint8 or pixels.ndim != 3:
        return None
    if mode == "rgba":
        return np.asarray(cv2.cvtColor(pixels, cv2.COLOR_RGB2RGBA))
    if mode == "gray":
        from PIL import Image

        return _array(Image.fromarray(pixels).convert("L"))
    return np.asarray(pixels)


def _array(picture: Any) -> np.ndarray:
    """uint8[h, w, c] that owns its memory."""
    pixels = np.array(picture)
    return pixels if pixels.ndim == 3 else pixels[:, :, None]


def _pillow(data: BytesLike, header: Header, mode: str, fill: Color | None) -> np.ndarray:
    """Decode anything else.

    Raises:
        OpError: Pillow cannot.
        LimitError: the picture is larger than its header announced.
    """
    from PIL import Image

    stream = io.BytesIO(data if isinstance(data, bytes) else as_view(data))  # bytes are shared, others copied
    try:
        with _pillow_reader(_PILLOW_NAMES.get(header.format, header.format.upper()))(stream, "") as picture:
            width, height = picture.size
            if width * height > header.width * header.height:
                raise LimitError(
                    f"{header.format} of {width}x{height} pixels announced {header.width}x{header.height} in its header"
                )
            picture.load()
            return _array(_convert(picture, mode, fill))
    except OpError:
        raise
    except Image.DecompressionBombError as error:  # the TIFF reader insists on Pillow's own limit
        raise LimitError(f"{error} (PIL.Image.MAX_IMAGE_PIXELS sets this limit)") from error
    except Exception as error:  # damaged files surface as many kinds: OSError, SyntaxError, struct.error, EOFError
        raise OpError(f"damaged or truncated {header.format} of {len(data)} bytes: {error}") from error


@cache
def _pillow_reader(name: str) -> Any:
    """Pillow's reader of one format.

    `Image.open` would first try others (PostScript starts a program), and would measure pictures by its own,
    process-wide limit; here the limits of the op were checked already.
    """
    from PIL import Image

    if name not in Image.OPEN:
        Image.init()
    if name not in Image.OPEN:
        raise OpError(f"this build of Pillow does not read {name}")
    return Image.OPEN[name][0]


def _convert(picture: Any, mode: str, fill: Color | None) -> Any:
    """A Pillow image of mode L, RGB or RGBA, by the rules at the top of this module."""
    from PIL import Image

    if picture.mode.startswith("I") or picture.mode == "F":
        picture = _high_byte(picture)
    if picture.mode in ("La", "RGBa"):
        picture = picture.convert("LA" if picture.mode == "La" else "RGBA")
    if picture.mode in ("CMYK", "YCbCr", "LAB", "HSV", "RGBX"):
        picture = picture.convert("RGB")
    transparent = picture.mode in ("LA", "PA", "RGBA") or "transparency" in picture.info
    if mode == "rgba":
        return picture.convert("RGBA")
    if transparent and fill is not None:
        over = picture.convert("RGBA")
        flat = Image.new("RGB", picture.size, fill)
        flat.paste(over, mask=over.getchannel("A"))
        return flat
    picture.info.pop("transparency", None)  # else Pillow warns about what is dropped on purpose
    if mode == "gray":
        return picture if picture.mode == "L" else picture.convert("L")
    return picture if picture.mode == "RGB" else picture.convert("RGB")


def _high_byte(picture: Any) -> Any:
    from PIL import Image

    samples = np.asarray(picture)
    if picture.mode == "F" or (samples.size and (samples.min() < 0 or samples.max() > 65535)):
        raise OpError(f"{picture.format} holds samples of mode {picture.mode}; up to 16-bit integers are decoded")
    return Image.fromarray((samples >> 8).astype(np.uint8))
