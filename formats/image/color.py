"""Colour transforms of uint8 images, and the kernels behind them, which augmentation policies use as well.

Whatever depends on one value alone is a look-up table. The others are OpenCV's, in float32 where its uint8 form follows
another rule (its gray conversion is one level away for 0.13 % of all colours, its 8-bit hue more).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

import numpy as np

from ...engine.arguments import Probability, Range
from ...engine.registry import register_kernel, register_op
from ...engine.schema import TensorType
from ..buffers import scratch
from ..libraries import opencv
from .pixels import (
    IMAGE,
    RGB,
    bands,
    float_scratch,
    infer_rgb,
    infer_same,
    made,
    require_pixels,
    stored,
)

Strength: TypeAlias = Annotated[float, Range(0.0)]
HueShift: TypeAlias = Annotated[float, Range(0.0, 0.5)]
Threshold: TypeAlias = Annotated[int, Range(0, 255)]
Bits: TypeAlias = Annotated[int, Range(1, 8)]

LEVELS = np.arange(256)
GRAY_WEIGHTS = np.array([[19595, 38470, 7471, 32768]], np.float32) / np.float32(65536)
"""BT.601 weights and the half that makes truncation rounding. Multiples of 2**-16, as are all sums below 256: float32 holds
them exactly. Source: Pillow's `convert("L")`, `(19595 R + 38470 G + 7471 B + 32768) >> 16`."""
TRUNCATE = -0.5 + 2.0**-10
"""Added before OpenCV rounds, it truncates; only what lies within 2**-10 below a whole number is rounded up, which leaves
room for errors of float32."""
EXACT_COUNT = 1 << 24
"""OpenCV's histograms are float32, which counts no further."""


# --- kernels: each writes uint8[h, w, c] into `out`


def _look_up(image: np.ndarray, out: np.ndarray, table: np.ndarray) -> None:
    """`table[v]` of uint8[256]."""
    if image.size:
        stored(opencv().LUT(image, table, dst=out), out)


def _look_up_channels(image: np.ndarray, out: np.ndarray, tables: np.ndarray) -> None:
    """`tables[c, v]` of uint8[c, 256]: plane by plane, which is faster than one table of three channels."""
    cv2, planes = opencv(), _split(image)
    for plane, table in zip(planes, tables):
        stored(cv2.LUT(plane, table, dst=plane), plane)
    stored(cv2.merge(planes, dst=out), out)


def _split(image: np.ndarray) -> list[np.ndarray]:
    """The channels of an image with pixels, uint8[h, w] each, in scratch memory."""
    return list(opencv().split(image, list(scratch("planes", (image.shape[2], *image.shape[:2])))))


def _bytes(values: np.ndarray) -> np.ndarray:
    """Truncated and clipped to 0..255."""
    clipped: np.ndarray = np.clip(values, 0, 255)
    return clipped.astype(np.uint8)


def write_gray(image: np.ndarray, out: np.ndarray) -> None:
    """BT.601 luma of uint8[h, w, 3] into `out`, uint8[h, w], C-contiguous. Equals Pillow's `convert("L")`."""
    height, width = image.shape[:2]
    for rows in bands(height, width) if image.size else ():
        band = image[rows]
        pixels, luma = float_scratch("pixels", band.shape), float_scratch("luma", band.shape[:2])
        np.copyto(pixels, band)
        stored(opencv().transform(pixels, GRAY_WEIGHTS, dst=luma), luma)
        np.copyto(out[rows], luma, casting="unsafe")


def _write_three_gray(image: np.ndarray, out: np.ndarray) -> None:
    """BT.601 luma in each of three channels."""
    if image.size:
        cv2, luma = opencv(), scratch("gray", image.shape[:2])
        write_gray(image, luma)
        stored(cv2.cvtColor(luma, cv2.COLOR_GRAY2RGB, dst=out), out)


def _invert_into(image: np.ndarray, out: np.ndarray) -> None:
    np.invert(image, out=out)


def _solarize_into(image: np.ndarray, out: np.ndarray, threshold: int) -> None:
    if image.size:
        cv2 = opencv()
        stored(cv2.threshold(image, threshold - 1, 255, cv2.THRESH_BINARY, dst=out)[1], out)
        np.bitwise_xor(out, image, out=out)


def _posterize_into(image: np.ndarray, out: np.ndarray, bits: int) -> None:
    np.bitwise_and(image, np.uint8(256 - (1 << (8 - bits))), out=out)


def _equalize_into(image: np.ndarray, out: np.ndarray) -> None:
    if image.size:
        _look_up_channels(image, out, _equalizing_tables(_histograms(image)))


def _histograms(image: np.ndarray) -> np.ndarray:
    """int64[c, 256]: how often each value occurs in each channel of an image with pixels."""
    rows = max(EXACT_COUNT // image.shape[1], 1)
    counts = np.zeros((image.shape[2], 256), np.int64)
    for y in range(0, image.shape[0], rows):
        for channel, total in enumerate(counts):
            total += _counts(image[y : y + rows], channel)
    return counts


def _counts(image: np.ndarray, channel: int) -> np.ndarray:
    found: np.ndarray = opencv().calcHist([image], [channel], None, [256], [0, 256])
    return found.ravel().astype(np.int64)


def _equalizing_tables(counts: np.ndarray) -> np.ndarray:
    """uint8[c, 256] from int64[c, 256]: pixels below a value, plus half a step, by the step.

    A step is a 255th of the pixels below the channel's largest value; where that is 0, values stay.
    """
    upto = np.cumsum(counts, axis=1)
    largest = 255 - np.argmax(counts[:, ::-1] > 0, axis=1)
    step = (upto[:, -1] - counts[np.arange(len(counts)), largest])[:, None] // 255
    spread = np.minimum((upto - counts + step // 2) // np.maximum(step, 1), 255)
    return np.where(step > 0, spread, LEVELS).astype(np.uint8)


def _autocontrast_into(image: np.ndarray, out: np.ndarray) -> None:
    if image.size:
        _look_up_channels(
            image, out, np.stack([_stretching_table(int(p.min()), int(p.max())) for p in _split(image)])
        )


def _stretching_table(low: int, high: int) -> np.ndarray:
    if high <= low:
        return LEVELS.astype(np.uint8)
    scale = 255.0 / (high - low)
    return _bytes(LEVELS * scale + -low * scale)


def _blending_table(base: int, factor: float) -> np.ndarray:
    """uint8[256]: `base + factor * (v - base)` in float32, truncated and clipped."""
    return _bytes(np.float32(base) + np.float32(factor) * (LEVELS - base).astype(np.float32))


def _blend_into(base: np.ndarray, image: np.ndarray, out: np.ndarray, factor: float) -> None:
    """`base + factor * (image - base)`, truncated and clipped."""
    factor = min(max(factor, -1024.0), 1024.0)  # beyond, all is clipped or equal, and OpenCV's integers overflow
    stored(opencv().addWeighted(image, factor, base, 1.0 - factor, TRUNCATE, dst=out), out)


def _brightness_into(image: np.ndarray, out: np.ndarray, factor: float) -> None:
    _look_up(image, out, _blending_table(0, factor))


def _contrast_into(image: np.ndarray, out: np.ndarray, factor: float) -> None:
    if image.size:
        luma = scratch("gray", image.shape[:2])
        write_gray(image, luma)
        _look_up(image, out, _blending_table(int(opencv().mean(luma)[0] + 0.5), factor))


def _saturation_into(image: np.ndarray, out: np.ndarray, factor: float) -> None:
    if image.size:
        gray = scratch("three_gray", image.shape)
        _write_three_gray(image, gray)
        _blend_into(gray, image, out, factor)


SMOOTH = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]], np.float32) / np.float32(13)
"""Source: Pillow's ImageFilter.SMOOTH."""


def _sharpness_into(image: np.ndarray, out: np.ndarray, factor: float) -> None:
    """The border stays as it is: a 3x3 neighbourhood is missing there."""
    if image.size:
        smooth = scratch("smooth", image.shape)
        stored(opencv().filter2D(image, -1, SMOOTH, dst=smooth), smooth)
        _blend_into(smooth, image, out, factor)
        for edge in (np.s_[:1], np.s_[-1:], np.s_[:, :1], np.s_[:, -1:]):
            out[edge] = image[edge]


# --- plain kernels for other modules


def invert_image(image: np.ndarray) -> np.ndarray:
    """255 - v, of uint8[h, w, c], as a new array. Equals Pillow's ImageOps.invert."""
    return made(_invert_into, image)


def solarize_image(image: np.ndarray, threshold: int) -> np.ndarray:
    """Values from `threshold` (0..256) on become 255 - v; a new array. Equals Pillow's ImageOps.solarize."""
    return made(_solarize_into, image, threshold)


def posterize_image(image: np.ndarray, bits: int) -> np.ndarray:
    """Keep the top `bits` (0..8) of each value; a new array. Equals Pillow's ImageOps.posterize."""
    return made(_posterize_into, image, bits)


def equalize_image(image: np.ndarray) -> np.ndarray:
    """Spread the values of each channel of uint8[h, w, c] evenly; a new array. Equals Pillow's ImageOps.equalize."""
    return made(_equalize_into, image)


def autocontrast_image(image: np.ndarray) -> np.ndarray:
    """Stretch each channel of uint8[h, w, c] to 0..255; a new array. Equals Pillow's ImageOps.autocontrast."""
    return made(_autocontrast_into, image)


def brightness_image(image: np.ndarray, factor: float) -> np.ndarray:
    """`v * factor`, truncated and clipped; a new array. Equals Pillow's ImageEnhance.Brightness."""
    return made(_brightness_into, image, factor)


def contrast_image(image: np.ndarray, factor: float) -> np.ndarray:
    """`m + factor * (v - m)`, truncated and clipped, of uint8[h, w, 3]; m is the rounded mean of the gray image.

    Returns:
        A new array. Equals Pillow's ImageEnhance.Contrast.
    """
    return made(_contrast_into, image, factor)


def saturation_image(image: np.ndarray, factor: float) -> np.ndarray:
    """`g + factor * (v - g)`, truncated and clipped, of uint8[h, w, 3]; g is the pixel's gray value.

    Returns:
        A new array. Equals Pillow's ImageEnhance.Color for factors in [0, 3], but for 1 level where the exact value lies
        within 2**-9 of a whole number.
    """
    return made(_saturation_into, image, factor)


def sharpness_image(image: np.ndarray, factor: float) -> np.ndarray:
    """`b + factor * (v - b)`, truncated and clipped, of uint8[h, w, c]; b is the image smoothed by a 3x3 kernel.

    Returns:
        A new array; the border pixels are those of `image`. Equals Pillow's ImageEnhance.Sharpness for factors in [0, 3],
        but for 1 level where the exact value lies within 2**-9 of a whole number.
    """
    return made(_sharpness_into, image, factor)


# --- ops


@register_op("invert", takes=IMAGE, infer=infer_same, random=True)
def invert(image: np.ndarray, *, prob: Probability = 1.0, rng: np.random.Generator) -> np.ndarray:
    """Turn each value v into 255 - v, with probability `prob`; one draw.

    Args:
        image: uint8[h, w, c], c in {1, 3, 4}; a fourth channel is treated like the others.
        prob: in [0, 1].

    Returns:
        uint8[h, w, c]: a new array, or `image` itself.

    Raises:
        OpError: another dtype, rank or channel count.
    """
    require_pixels("invert", image)
    return made(_invert_into, image) if rng.random() < prob else image


@register_kernel("invert", "out")
def invert_out(
    image: np.ndarray, out: np.ndarray, *, prob: Probability = 1.0, rng: np.random.Generator
) -> None:
    """`invert` into `out`."""
    require_pixels("invert", image)
    _write_or_copy(rng.random() < prob, _invert_into, image, out)


@register_op("solarize", takes=IMAGE, infer=infer_same, random=True)
def solarize(
    image: np.ndarray, *, threshold: Threshold = 128, prob: Probability = 1.0, rng: np.random.Generator
) -> np.ndarray:
    """Turn each value v >= `threshold` into 255 - v, with probability `prob`; one draw.

    Args:
        image: uint8[h, w, c], c in {1, 3, 4}; a fourth channel is treated like the others.
        threshold: 0 (all values) to 255.
        prob: in [0, 1].

    Returns:
        uint8[h, w, c]: a new array, or `image` itself.

    Raises:
        OpError: another dtype, rank or channel count.

    Source: equals Pillow's ImageOps.solarize.
    """
    require_pixels("solarize", image)
    return made(_solarize_into, image, threshold) if rng.random() < prob else image


@register_kernel("solarize", "out")
def solarize_out(
    image: np.ndarray,
    out: np.ndarray,
    *,
    threshold: Threshold = 128,
    prob: Probability = 1.0,
    rng: np.random.Generator,
) -> None:
    """`solarize` into `out`."""
    require_pixels("solarize", image)
    _write_or_copy(rng.random() < prob, _solarize_into, image, out, threshold)


@register_op("posterize", takes=IMAGE, infer=infer_same, random=True)
def posterize(
    image: np.ndarray, *, bits: Bits = 4, prob: Probability = 1.0, rng: np.random.Generator
) -> np.ndarray:
    """Keep the top `bits` of each value and clear the others, with probability `prob`; one draw.

    Args:
        image: uint8[h, w, c], c in {1, 3, 4}; a fourth channel is treated like the others.
        bits: 1 to 8 (all).
        prob: in [0, 1].

    Returns:
        uint8[h, w, c]: a new array, or `image` itself.

    Raises:
        OpError: another dtype, rank or channel count.

    Source: equals Pillow's ImageOps.posterize.
    """
    require_pixels("posterize", image)
    return made(_posterize_into, image, bits) if rng.random() < prob else image


@register_kernel("posterize", "out")
def posterize_out(
    image: np.ndarray, out: np.ndarray, *, bits: Bits = 4, prob: Probability = 1.0, rng: np.random.Generator
) -> None:
    """`posterize` into `out`."""
    require_pixels("posterize", image)
    _write_or_copy(rng.random() < prob, _posterize_into, image, out, bits)


@register_op("equalize", takes=RGB, infer=infer_rgb, random=True)
def equalize(image: np.ndarray, *, prob: Probability = 1.0, rng: np.random.Generator) -> np.ndarray:
    """Spread the values of each channel evenly over 0..255, with probability `prob`; one draw.

    A value v becomes `(step // 2 + count of pixels below v) // step`, where `step` is a 255th of the pixels below the
    channel's largest value; a channel for which that is 0, such as a constant one, stays as it is. (dataio-rs uses
    floor(255 * cdf(v) / n) instead, which turns a constant image white.)

    Args:
        image: uint8[h, w, 3].
        prob: in [0, 1].

    Returns:
        uint8[h, w, 3]: a new array, or `image` itself.

    Raises:
        OpError: another dtype, rank or channel count.

    Source: equals Pillow's ImageOps.equalize.
    """
    require_pixels("equalize", image, (3,))
    return made(_equalize_into, image) if rng.random() < prob else image


@register_kernel("equalize", "out")
def equalize_out(
    image: np.ndarray, out: np.ndarray, *, prob: Probability = 1.0, rng: np.random.Generator
) -> None:
    """`equalize` into `out`."""
    require_pixels("equalize", image, (3,))
    _write_or_copy(rng.random() < prob, _equalize_into, image, out)


def _infer_grayscale(given: TensorType, *, num_output_channels: int, prob: float) -> TensorType:
    h, w, _ = given.shape or (None, None, None)
    # rng.random() is below 1, so that only a `prob` of 1 is certain; of 0 as well, to stay away.
    channels = 3 if num_output_channels == 3 or prob == 0.0 else 1 if prob == 1.0 else None
    return TensorType((h, w, channels), "uint8", "HWC")


@register_op("grayscale", takes=RGB, infer=_infer_grayscale, random=True)
def grayscale(
    image: np.ndarray,
    *,
    num_output_channels: Literal[1, 3] = 3,
    prob: Probability = 1.0,
    rng: np.random.Generator,
) -> np.ndarray:
    """Keep only the BT.601 luma `(19595 R + 38470 G + 7471 B + 32768) >> 16`, with probability `prob`; one draw.

    Args:
        image: uint8[h, w, 3].
        num_output_channels: 1, or 3 equal ones.
        prob: in [0, 1]. An image that is left alone keeps its 3 channels, so that with `num_output_channels=1` and a
            `prob` between 0 and 1 the rows of a batch differ in shape.

    Returns:
        uint8[h, w, num_output_channels], a new array; or `image` itself.

    Raises:
        OpError: another dtype, rank or channel count.

    Source: equals Pillow's `convert("L")`.
    """
    require_pixels("grayscale", image, (3,))
    if rng.random() >= prob:
        return image
    out = np.empty((*image.shape[:2], num_output_channels), np.uint8)
    _luma_into(image, out)
    return out


@register_kernel("grayscale", "out")
def grayscale_out(
    image: np.ndarray,
    out: np.ndarray,
    *,
    num_output_channels: Literal[1, 3] = 3,
    prob: Probability = 1.0,
    rng: np.random.Generator,
) -> None:
    """`grayscale` into `out`."""
    require_pixels("grayscale", image, (3,))
    _write_or_copy(rng.random() < prob, _luma_into, image, out)


def _luma_into(image: np.ndarray, out: np.ndarray) -> None:
    if out.shape[2] == 1:
        write_gray(image, out[:, :, 0])
    else:
        _write_three_gray(image, out)


def _write_or_copy(
    chosen: bool, write: Callable[..., None], image: np.ndarray, out: np.ndarray, *arguments: Any
) -> None:
    if chosen:
        write(image, out, *arguments)
    else:
        np.copyto(out, image)


class Jitter(NamedTuple):
    """Drawn factors; `hue` is in turns."""

    brightness: float = 1.0
    contrast: float = 1.0
    saturation: float = 1.0
    hue: float = 0.0


def _draw_jitter(
    brightness: float, contrast: float, saturation: float, hue: float, rng: np.random.Generator
) -> Jitter:
    """Uniform in [max(0, 1 - x), 1 + x], the hue in [-hue, hue]; what is 0 draws nothing."""

    def factor(strength: float) -> float:
        return float(rng.uniform(max(0.0, 1.0 - strength), 1.0 + strength)) if strength else 1.0

    return Jitter(
        factor(brightness), factor(contrast), factor(saturation), float(rng.uniform(-hue, hue)) if hue else 0.0
    )


def jitter_into(image: np.ndarray, out: np.ndarray, factors: Jitter) -> None:
    """`color_jitter` of uint8[h, w, 3] with given factors; `out` may be `image`."""
    brightness, contrast, saturation, hue = factors
    if not image.size:
        return
    if contrast != 1.0:
        means = np.array(opencv().mean(image)[:3])[:, None]
        tables = _bytes(LEVELS * (brightness * contrast) + means * (1.0 - contrast))
        _look_up_channels(image, out, tables)
        image = out
    elif brightness != 1.0:
        _look_up(image, out, _bytes(LEVELS * brightness))
        image = out
    if saturation != 1.0 or hue != 0.0:
        _turn_into(image, out, saturation, hue)
    elif image is not out:
        np.copyto(out, image)


def _turn_into(image: np.ndarray, out: np.ndarray, saturation: float, hue: float) -> None:
    """Scale the saturation of HSV, shift its hue by `hue` turns, keep its value; rounded to the nearest level."""
    cv2 = opencv()
    degrees = 360.0 * (hue % 1.0)  # not negative: OpenCV's way back takes hues from 0 to 720
    rule = np.array([[1, 0, 0, degrees], [0, saturation, 0, 0], [0, 0, 1, 0]], np.float32)
    limits = np.tile(np.array([np.inf, 1.0, np.inf], np.float32), image.shape[1])
    for rows in bands(*image.shape[:2]):
        band, target = image[rows], out[rows]
        pixels, hsv = float_scratch("pixels", band.shape), float_scratch("hsv", band.shape)
        np.copyto(pixels, band)
        stored(cv2.cvtColor(pixels, cv2.COLOR_RGB2HSV, dst=hsv), hsv)
        stored(cv2.transform(hsv, rule, dst=pixels), pixels)
        if saturation > 1.0:
            flat = pixels.reshape(len(pixels), -1)  # long rows are fast
            np.minimum(flat, limits, out=flat)
        stored(cv2.cvtColor(pixels, cv2.COLOR_HSV2RGB, dst=hsv), hsv)
        stored(cv2.convertScaleAbs(hsv, dst=target), target)


@register_op("color_jitter", takes=RGB, infer=infer_rgb, random=True)
def color_jitter(
    image: np.ndarray,
    *,
    brightness: Strength = 0.0,
    contrast: Strength = 0.0,
    saturation: Strength = 0.0,
    hue: HueShift = 0.0,
    rng: np.random.Generator,
) -> np.ndarray:
    """Change brightness, contrast, saturation and hue at random, in this order.

    Factors b, c and s are uniform in [max(0, 1 - x), 1 + x] of the argument x, the hue shift d in [-hue, hue] turns. A value
    v of a channel whose mean is m becomes `trunc(clip(v * b * c + m * (1 - c), 0, 255))`; then, in HSV, S becomes
    min(S * s, 1), H becomes H + d, and V stays.

    Args:
        image: uint8[h, w, 3], RGB.
        brightness, contrast, saturation: at least 0. One draw each, none for what is 0.
        hue: in [0, 0.5] turns; one draw, none for 0.

    Returns:
        uint8[h, w, 3], a new array. The first step is exact; the second is within 1 level of HSV in float64, rounded.

    Raises:
        OpError: another dtype, rank or channel count.
    """
    require_pixels("color_jitter", image, (3,))
    return made(jitter_into, image, _draw_jitter(brightness, contrast, saturation, hue, rng))


@register_kernel("color_jitter", "out")
def color_jitter_out(
    image: np.ndarray,
    out: np.ndarray,
    *,
    brightness: Strength = 0.0,
    contrast: Strength = 0.0,
    saturation: Strength = 0.0,
    hue: HueShift = 0.0,
    rng: np.random.Generator,
) -> None:
    """`color_jitter` into `out`."""
    require_pixels("color_jitter", image, (3,))
    jitter_into(image, out, _draw_jitter(brightness, contrast, saturation, hue, rng))
