"""Geometry that moves pixels without filtering them (crops, flips, padding), and `random_resized_crop`.

All but the last work on any dtype, with `layout` telling which axes are rows and columns.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np

from ...engine.arguments import DYNAMIC, Offset, Pixels, Positive, Probability, Range, Size
from ...engine.calls import OpCall
from ...engine.errors import OpError
from ...engine.registry import lookup, register_check, register_kernel, register_op
from ...engine.schema import Layout, Takes, TensorType, unchanged
from ..array import WORDS
from ..libraries import opencv
from .pixels import IMAGE
from .resize import Interp, Window, prepare_worker_thread, resize_window

ByteValue: TypeAlias = Annotated[int, Range(0, 255), DYNAMIC]
PadMode: TypeAlias = Literal["constant", "reflect", "edge"]

ANY_IMAGE = Takes(layouts=("HWC", "CHW"))
TRIES = 10
"""Boxes that random_resized_crop draws before it falls back. Source: torchvision's RandomResizedCrop."""


def _size(image: np.ndarray, layout: str) -> tuple[int, int]:
    if image.ndim != 3:
        raise OpError(f"wants an image with 3 axes, got shape {image.shape}")
    return (image.shape[0], image.shape[1]) if layout == "HWC" else (image.shape[1], image.shape[2])


def _cut(image: np.ndarray, layout: str, y: int, x: int, h: int, w: int) -> np.ndarray:
    return image[y : y + h, x : x + w] if layout == "HWC" else image[:, y : y + h, x : x + w]


def _infer_window(given: TensorType, *, h: int | None, w: int | None, **_: Any) -> TensorType:
    if given.layout is None or given.shape is None:
        return TensorType((None, None, None), given.dtype, given.layout)
    channels = given.shape[2 if given.layout == "HWC" else 0]
    return TensorType((h, w, channels) if given.layout == "HWC" else (channels, h, w), given.dtype, given.layout)


def _check_window(op: str, h: int, w: int) -> None:
    if h < 1 or w < 1:
        raise OpError(f"{op} wants h and w of at least 1, got h={h}, w={w}")


@register_op("crop", takes=ANY_IMAGE, infer=_infer_window)
def crop(image: np.ndarray, *, y: Offset, x: Offset, h: Pixels, w: Pixels, layout: Layout) -> np.ndarray:
    """Cut out `h` x `w` pixels whose top left corner is at row `y`, column `x`.

    Returns:
        The window, a view of `image`.

    Raises:
        OpError: the window leaves the image.
    """
    height, width = _size(image, layout)
    _check_window("crop", h, w)
    if y < 0 or x < 0 or y + h > height or x + w > width:
        raise OpError(f"crop(y={y}, x={x}, h={h}, w={w}) leaves the image of {height}x{width} (h x w) pixels")
    return _cut(image, layout, y, x, h, w)


@register_kernel("crop", "out")
def crop_out(
    image: np.ndarray, out: np.ndarray, *, y: Offset, x: Offset, h: Pixels, w: Pixels, layout: Layout
) -> None:
    """`crop` into `out`."""
    np.copyto(out, crop(image, y=y, x=x, h=h, w=w, layout=layout))


@register_op("center_crop", takes=ANY_IMAGE, infer=_infer_window)
def center_crop(image: np.ndarray, *, h: Pixels, w: Pixels, layout: Layout) -> np.ndarray:
    """Keep the middle `h` x `w` pixels; an axis shorter than that is surrounded by zeros.

    Returns:
        A view of `image`, or a new array where zeros were added. The spare pixel of an odd margin is on the
        bottom and right.

    Source: torchvision's center_crop, except that offsets are floored instead of rounded.
    """
    height, width = _size(image, layout)
    _check_window("center_crop", h, w)
    if height < h or width < w:
        shape = (h, w, image.shape[2]) if layout == "HWC" else (image.shape[0], h, w)
        out = np.empty(shape, image.dtype)
        center_crop_out(image, out, h=h, w=w, layout=layout)
        return out
    return _cut(image, layout, (height - h) // 2, (width - w) // 2, h, w)


@register_kernel("center_crop", "out")
def center_crop_out(image: np.ndarray, out: np.ndarray, *, h: Pixels, w: Pixels, layout: Layout) -> None:
    """`center_crop` into `out`."""
    height, width = _size(image, layout)
    _check_window("center_crop", h, w)
    kept_h, kept_w = min(h, height), min(w, width)
    kept = _cut(image, layout, (height - kept_h) // 2, (width - kept_w) // 2, kept_h, kept_w)
    if (kept_h, kept_w) != (h, w):
        out[...] = 0
        out = _cut(out, layout, (h - kept_h) // 2, (w - kept_w) // 2, kept_h, kept_w)
    np.copyto(out, kept)


@register_op("random_crop", takes=ANY_IMAGE, infer=_infer_window, random=True)
def random_crop(
    image: np.ndarray, *, h: Pixels, w: Pixels, layout: Layout, rng: np.random.Generator
) -> np.ndarray:
    """Cut out `h` x `w` pixels at a uniformly drawn place: the row is drawn first, then the column.

    Returns:
        The window, a view of `image`.

    Raises:
        OpError: the window is larger than the image.
    """
    height, width = _size(image, layout)
    _check_window("random_crop", h, w)
    if height < h or width < w:
        raise OpError(f"random_crop wants at least {h}x{w} pixels, got {height}x{width}")
    y = _offset(rng, height - h)
    x = _offset(rng, width - w)
    return _cut(image, layout, y, x, h, w)


def _offset(rng: np.random.Generator, last: int) -> int:
    """A uniformly drawn integer from 0 to `last`; one draw of 53 bits, an eighth of the cost of `rng.integers`."""
    return int(rng.random() * (last + 1))


@register_kernel("random_crop", "out")
def random_crop_out(
    image: np.ndarray, out: np.ndarray, *, h: Pixels, w: Pixels, layout: Layout, rng: np.random.Generator
) -> None:
    """`random_crop` into `out`."""
    np.copyto(out, random_crop(image, h=h, w=w, layout=layout, rng=rng))


def _flip(image: np.ndarray, layout: str, rows: bool, out: np.ndarray | None = None) -> np.ndarray:
    """Mirror rows or columns, through OpenCV for uint8 pixels (NumPy moves them byte by byte)."""
    height, width = _size(image, layout)
    pixels = layout == "HWC" and image.dtype == np.uint8 and image.shape[2] in (1, 3, 4)
    if pixels and image.flags.c_contiguous and height and width:
        target = np.empty_like(image) if out is None else out
        opencv().flip(image, 0 if rows else 1, dst=target)
        return target
    axis = (0 if rows else 1) if layout == "HWC" else (1 if rows else 2)
    turned = np.flip(image, axis)
    if out is None:
        return turned
    np.copyto(out, turned)
    return out


@register_op("hflip", takes=ANY_IMAGE, infer=unchanged, random=True)
def hflip(
    image: np.ndarray, *, prob: Probability = 0.5, layout: Layout, rng: np.random.Generator
) -> np.ndarray:
    """Mirror the columns with probability `prob`; one draw.

    Returns:
        `image` itself, its mirror image as a new array, or a view (any dtype but uint8).
    """
    return _flip(image, layout, rows=False) if rng.random() < prob else image


@register_kernel("hflip", "out")
def hflip_out(
    image: np.ndarray, out: np.ndarray, *, prob: Probability = 0.5, layout: Layout, rng: np.random.Generator
) -> None:
    """`hflip` into `out`."""
    if rng.random() < prob:
        _flip(image, layout, rows=False, out=out)
    else:
        np.copyto(out, image)


@register_op("vflip", takes=ANY_IMAGE, infer=unchanged, random=True)
def vflip(
    image: np.ndarray, *, prob: Probability = 0.5, layout: Layout, rng: np.random.Generator
) -> np.ndarray:
    """Mirror the rows with probability `prob`; one draw.

    Returns:
        `image` itself, its mirror image as a new array, or a view (any dtype but uint8).
    """
    return _flip(image, layout, rows=True) if rng.random() < prob else image


@register_kernel("vflip", "out")
def vflip_out(
    image: np.ndarray, out: np.ndarray, *, prob: Probability = 0.5, layout: Layout, rng: np.random.Generator
) -> None:
    """`vflip` into `out`."""
    if rng.random() < prob:
        _flip(image, layout, rows=True, out=out)
    else:
        np.copyto(out, image)


def _infer_pad(
    given: TensorType, *, top: int | None, bottom: int | None, left: int | None, right: int | None, **_: Any
) -> TensorType:
    if given.layout is None or given.shape is None:
        return TensorType((None, None, None), given.dtype, given.layout)

    def total(size: int | None, before: int | None, after: int | None) -> int | None:
        return None if size is None or before is None or after is None else size + before + after

    first = 0 if given.layout == "HWC" else 1
    shape = list(given.shape)
    shape[first] = total(shape[first], top, bottom)
    shape[first + 1] = total(shape[first + 1], left, right)
    return TensorType(tuple(shape), given.dtype, given.layout)


@register_op("pad", takes=ANY_IMAGE, infer=_infer_pad)
def pad(
    image: np.ndarray,
    *,
    top: Offset = 0,
    bottom: Offset = 0,
    left: Offset = 0,
    right: Offset = 0,
    mode: PadMode = "constant",
    value: ByteValue = 0,
    layout: Layout,
) -> np.ndarray:
    """Add rows and columns around the image.

    Args:
        image: any dtype.
        top, bottom, left, right: pixels to add.
        mode: "constant" (`value`), "edge" (repeat the border), "reflect" (mirror at the border pixel, which is
            not repeated; any amount, as NumPy's `reflect`).
        value: 0 to 255, converted to the image's dtype.

    Returns:
        A new array.

    Raises:
        OpError: a negative amount, or nothing to repeat in an image without pixels.
    """
    height, width = _size(image, layout)
    h, w = height + top + bottom, width + left + right
    out = np.empty((h, w, image.shape[2]) if layout == "HWC" else (image.shape[0], h, w), image.dtype)
    pad_out(image, out, top=top, bottom=bottom, left=left, right=right, mode=mode, value=value, layout=layout)
    return out


@register_kernel("pad", "out")
def pad_out(
    image: np.ndarray,
    out: np.ndarray,
    *,
    top: Offset = 0,
    bottom: Offset = 0,
    left: Offset = 0,
    right: Offset = 0,
    mode: PadMode = "constant",
    value: ByteValue = 0,
    layout: Layout,
) -> None:
    """`pad` into `out`."""
    height, width = _size(image, layout)
    if min(top, bottom, left, right) < 0:
        raise OpError(f"pad wants amounts >= 0, got top={top}, bottom={bottom}, left={left}, right={right}")
    if mode == "constant":
        _surround(image, out, (top, bottom, left, right), value, layout)
        return
    if height == 0 or width == 0:
        raise OpError(f"pad(mode={mode!r}) wants an image with pixels, got shape {image.shape}")
    pictures = _pictures(image, out, layout)
    if pictures is not None:
        border = opencv().BORDER_REFLECT_101 if mode == "reflect" else opencv().BORDER_REPLICATE
        for source, target in pictures:
            opencv().copyMakeBorder(source, top, bottom, left, right, border, dst=target)
        return
    first = 0 if layout == "HWC" else 1
    rows = np.take(image, _border(height, top, bottom, mode), axis=first)
    np.take(rows, _border(width, left, right, mode), axis=first + 1, out=out)


def _surround(image: np.ndarray, out: np.ndarray, amounts: tuple[int, int, int, int], value: int, layout: str) -> None:
    """Copy `image` into the middle of `out` and fill the four bands around it; no pixel is written twice."""
    top, bottom, left, right = amounts
    height, width = _size(image, layout)
    if layout == "HWC" and image.dtype == np.uint8 and 0 < image.shape[2] <= 4 and image.size:
        border = opencv().BORDER_CONSTANT
        opencv().copyMakeBorder(image, top, bottom, left, right, border, dst=out, value=(int(value),) * 4)
        return
    fill = np.asarray(value).astype(out.dtype)
    across = left + width + right
    for y, x, h, w in (
        (0, 0, top, across),
        (top + height, 0, bottom, across),
        (top, 0, height, left),
        (top, left + width, height, right),
    ):
        _cut(out, layout, y, x, h, w)[...] = fill
    np.copyto(_cut(out, layout, top, left, height, width), image)


def _pictures(image: np.ndarray, out: np.ndarray, layout: str) -> list[tuple[np.ndarray, np.ndarray]] | None:
    """Source and target as OpenCV moves them: pixels of up to 4 channels, or planes; None where it cannot."""
    word = WORDS.get(image.dtype.itemsize)
    if word is None or not image.size or (layout == "HWC" and image.shape[2] > 4):
        return None
    image, out = image.view(word), out.view(word)
    return [(image, out)] if layout == "HWC" else list(zip(image, out))


def _border(size: int, before: int, after: int, mode: str) -> np.ndarray:
    """Source index of every row (or column) of the padded image."""
    index = np.arange(-before, size + after)
    if mode == "edge" or size == 1:
        return np.clip(index, 0, size - 1)
    index %= 2 * (size - 1)
    return np.where(index < size, index, 2 * (size - 1) - index)


def _infer_fixed(given: TensorType, *, h: int, w: int, **_: Any) -> TensorType:
    channels = given.shape[2] if given.shape is not None else None
    return TensorType((h, w, channels), "uint8", "HWC")


@register_check("random_resized_crop")
def _check_ranges(**given: Any) -> dict[str, Any]:
    if not given["scale_lo"] <= given["scale_hi"] <= 1.0:
        raise ValueError(
            f"random_resized_crop wants 0 < scale_lo <= scale_hi <= 1, got {given['scale_lo']}, {given['scale_hi']}"
        )
    if not given["ratio_lo"] <= given["ratio_hi"]:
        raise ValueError(
            f"random_resized_crop wants 0 < ratio_lo <= ratio_hi, got {given['ratio_lo']}, {given['ratio_hi']}"
        )
    return given


def random_resized_crop(
    *,
    h: int,
    w: int,
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (0.75, 1.3333333),
    interp: Interp = "bicubic",
) -> OpCall:
    """The slot method: ranges are pairs."""
    (scale_lo, scale_hi), (ratio_lo, ratio_hi) = _pair("scale", scale), _pair("ratio", ratio)
    return lookup("random_resized_crop", "transform").call(
        h=h, w=w, scale_lo=scale_lo, scale_hi=scale_hi, ratio_lo=ratio_lo, ratio_hi=ratio_hi, interp=interp
    )


def _pair(name: str, value: Any) -> tuple[Any, Any]:
    if isinstance(value, (str, bytes)) or not hasattr(value, "__len__"):
        raise TypeError(f"random_resized_crop({name}=) must be a pair (lo, hi), got {value!r}")
    if len(value) != 2:
        raise ValueError(f"random_resized_crop({name}=) must be a pair (lo, hi), got {value!r}")
    return value[0], value[1]


def random_box(
    height: int,
    width: int,
    scale: tuple[float, float],
    ratio: tuple[float, float],
    rng: np.random.Generator,
) -> Window:
    """Draw a box: area uniform in `scale`, log(w / h) uniform in log `ratio`, position uniform.

    After `TRIES` boxes that do not fit, the central box whose aspect ratio is clipped to the range.

    Source: torchvision's RandomResizedCrop.get_params (Szegedy et al. 2014, "Going deeper with convolutions").
    """
    low, high = math.log(ratio[0]), math.log(ratio[1])
    for _ in range(TRIES):
        area = (scale[0] + (scale[1] - scale[0]) * rng.random()) * height * width
        aspect = math.exp(low + (high - low) * rng.random())
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            return Window(_offset(rng, height - h), _offset(rng, width - w), h, w)
    h, w = height, width
    if width / height < ratio[0]:
        h = min(max(round(width / ratio[0]), 1), height)
    elif width / height > ratio[1]:
        w = min(max(round(height * ratio[1]), 1), width)
    return Window((height - h) // 2, (width - w) // 2, h, w)


@register_op("random_resized_crop", takes=IMAGE, infer=_infer_fixed, random=True, method=random_resized_crop)
def random_resized_crop_op(
    image: np.ndarray,
    *,
    h: Size,
    w: Size,
    scale_lo: Positive = 0.08,
    scale_hi: Positive = 1.0,
    ratio_lo: Positive = 0.75,
    ratio_hi: Positive = 1.3333333,
    interp: Interp = "bicubic",
    rng: np.random.Generator,
) -> np.ndarray:
    """Cut out a random box and resize it to `h` x `w`.

    Args:
        image: uint8[height, width, c].
        h, w: pixels of the result.
        scale_lo, scale_hi: share of the image's area that the box covers.
        ratio_lo, ratio_hi: its width by its height.
        interp: as for `resize`.

    Returns:
        uint8[h, w, c], a new array.

    Raises:
        OpError: another dtype or rank, or no pixels.
    """
    out = np.empty((h, w, image.shape[-1]), np.uint8)
    random_resized_crop_out(
        image,
        out,
        h=h,
        w=w,
        scale_lo=scale_lo,
        scale_hi=scale_hi,
        ratio_lo=ratio_lo,
        ratio_hi=ratio_hi,
        interp=interp,
        rng=rng,
    )
    return out


@register_kernel("random_resized_crop", "out")
def random_resized_crop_out(
    image: np.ndarray,
    out: np.ndarray,
    *,
    h: Size,
    w: Size,
    scale_lo: Positive = 0.08,
    scale_hi: Positive = 1.0,
    ratio_lo: Positive = 0.75,
    ratio_hi: Positive = 1.3333333,
    interp: Interp = "bicubic",
    rng: np.random.Generator,
) -> None:
    """`random_resized_crop` into `out`, uint8[h, w, c]."""
    if image.ndim != 3 or image.dtype != np.uint8 or 0 in image.shape:
        raise OpError(f"random_resized_crop takes uint8[h, w, c] with pixels, got {image.dtype}{list(image.shape)}")
    box = random_box(image.shape[0], image.shape[1], (scale_lo, scale_hi), (ratio_lo, ratio_hi), rng)
    cut = image[box.y : box.y + box.h, box.x : box.x + box.w]
    resize_window(cut, out, (h, w), Window(0, 0, h, w), interp)
register_kernel("random_resized_crop", "setup")(prepare_worker_thread)
