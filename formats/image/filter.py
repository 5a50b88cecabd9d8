"""Blur, median, sharpening and edge filters of uint8 images, by OpenCV; the border pixels are repeated outwards."""

from __future__ import annotations

import math
from typing import Annotated, Any, TypeAlias

import numpy as np

from ...engine.arguments import Positive, Range, Size
from ...engine.registry import register_check, register_kernel, register_op
from ..buffers import scratch
from ..libraries import opencv
from .color import TRUNCATE, write_gray
from .pixels import IMAGE, RGB, float_scratch, infer_rgb, infer_same, made, require_pixels, stored

MAX_SIDE = 4095
"""Taps of a Gaussian kernel: more would take seconds on any image."""
CANNY_SIGMA = 1.4
"""Source: the usual choice for Canny's detector, also dataio-rs's."""
MAX_AMOUNT = 2.0**20
"""Of `sharpen`: beyond, all is clipped, and OpenCV's integers overflow."""

Radius: TypeAlias = Annotated[int, Range(1, 127)]
"""OpenCV counts the pixels under a median filter in 16 bits."""


def gaussian_side(kernel_size: int, sigma: float) -> int:
    """Taps that matter: what lies beyond 4 sigma weighs under 1e-4 in all, less than OpenCV's weights of 8 bits can say."""
    return min(kernel_size, 2 * math.ceil(4.0 * sigma) + 1)


@register_check("gaussian_blur")
def _check_gaussian(**given: Any) -> dict[str, Any]:
    size, low, high = given["kernel_size"], given["sigma_lo"], given["sigma_hi"]
    if size % 2 == 0:
        raise ValueError(f"gaussian_blur(kernel_size=) must be odd, got {size}")
    if low > high:
        raise ValueError(f"gaussian_blur wants 0 < sigma_lo <= sigma_hi, got {low}, {high}")
    if (taps := gaussian_side(size, high)) > MAX_SIDE:
        raise ValueError(f"gaussian_blur takes kernels of up to {MAX_SIDE} taps, got {taps} (4 sigma to each side)")
    return given


def _gaussian_into(image: np.ndarray, out: np.ndarray, kernel_size: int, sigma: float) -> None:
    if image.size:
        cv2, side = opencv(), gaussian_side(kernel_size, sigma)
        stored(cv2.GaussianBlur(image, (side, side), sigma, dst=out, borderType=cv2.BORDER_REPLICATE), out)


@register_op("gaussian_blur", takes=IMAGE, infer=infer_same, random=True)
def gaussian_blur(
    image: np.ndarray,
    *,
    kernel_size: Size = 5,
    sigma_lo: Positive = 0.1,
    sigma_hi: Positive = 2.0,
    rng: np.random.Generator,
) -> np.ndarray:
    """Blur with a Gaussian whose sigma is uniform in [`sigma_lo`, `sigma_hi`]; one draw.

    Args:
        image: uint8[h, w, c], c in {1, 3, 4}.
        kernel_size: side of the kernel in pixels, odd. What lies beyond 4 sigma is left out.
        sigma_lo, sigma_hi: pixels, above 0.

    Returns:
        uint8[h, w, c], a new array, rounded; border pixels are repeated outwards. Within 1 level of OpenCV's GaussianBlur
        with BORDER_REPLICATE, whose weights have 8 bits: within 2 levels of the exact sum on photographs, within 4 on
        black and white noise.

    Raises:
        OpError: another dtype, rank or channel count.
    """
    require_pixels("gaussian_blur", image)
    return made(_gaussian_into, image, kernel_size, float(rng.uniform(sigma_lo, sigma_hi)))


@register_kernel("gaussian_blur", "out")
def gaussian_blur_out(
    image: np.ndarray,
    out: np.ndarray,
    *,
    kernel_size: Size = 5,
    sigma_lo: Positive = 0.1,
    sigma_hi: Positive = 2.0,
    rng: np.random.Generator,
) -> None:
    """`gaussian_blur` into `out`."""
    require_pixels("gaussian_blur", image)
    _gaussian_into(image, out, kernel_size, float(rng.uniform(sigma_lo, sigma_hi)))


def _median_into(image: np.ndarray, out: np.ndarray, radius: int) -> None:
    if image.size:
        stored(opencv().medianBlur(image, 2 * radius + 1, dst=out), out)


@register_op("median_blur", takes=RGB, infer=infer_rgb)
def median_blur(image: np.ndarray, *, radius: Radius = 1) -> np.ndarray:
    """Replace each value by the median of its channel over a square of side `2 * radius + 1`.

    Args:
        image: uint8[h, w, 3].
        radius: pixels, 1 to 127.

    Returns:
        uint8[h, w, 3], a new array; border pixels are repeated outwards. Equals OpenCV's medianBlur and SciPy's
        median_filter(mode="nearest").

    Raises:
        OpError: another dtype, rank or channel count.
    """
    require_pixels("median_blur", image, (3,))
    return made(_median_into, image, radius)


@register_kernel("median_blur", "out")
def median_blur_out(image: np.ndarray, out: np.ndarray, *, radius: Radius = 1) -> None:
    """`median_blur` into `out`."""
    require_pixels("median_blur", image, (3,))
    _median_into(image, out, radius)


def _sharpen_side(sigma: float) -> int:
    return 2 * math.ceil(2.0 * sigma) + 1


@register_check("sharpen")
def _check_sharpen(*, sigma: float, amount: float) -> dict[str, Any]:
    if (taps := _sharpen_side(sigma)) > MAX_SIDE:
        raise ValueError(f"sharpen takes kernels of up to {MAX_SIDE} taps, got {taps} (2 sigma to each side)")
    return {"sigma": sigma, "amount": amount}


def _sharpen_into(image: np.ndarray, out: np.ndarray, sigma: float, amount: float) -> None:
    if image.size:
        cv2, side = opencv(), _sharpen_side(sigma)
        amount = min(max(amount, -MAX_AMOUNT), MAX_AMOUNT)
        pixels, blurred = float_scratch("pixels", image.shape), float_scratch("blurred", image.shape)
        np.copyto(pixels, image)
        blur = cv2.GaussianBlur(pixels, (side, side), sigma, dst=blurred, borderType=cv2.BORDER_REPLICATE)
        stored(blur, blurred)
        sharp = cv2.addWeighted(pixels, 1.0 + amount, blurred, -amount, TRUNCATE, dst=out, dtype=cv2.CV_8U)
        stored(sharp, out)


@register_op("sharpen", takes=RGB, infer=infer_rgb)
def sharpen(image: np.ndarray, *, sigma: Positive = 1.0, amount: float = 1.0) -> np.ndarray:
    """Add `amount` times the difference to a blurred image: `trunc(clip(v + amount * (v - blur(v)), 0, 255))`.

    Args:
        image: uint8[h, w, 3].
        sigma: of the Gaussian blur, in pixels, above 0; its radius is ceil(2 * sigma).
        amount: any sign; a negative one blurs.

    Returns:
        uint8[h, w, 3], a new array; border pixels are repeated outwards. Computed in float32: within 1 level of the formula
        in float64, in under 1 % of values.

    Raises:
        OpError: another dtype, rank or channel count.
    """
    require_pixels("sharpen", image, (3,))
    return made(_sharpen_into, image, sigma, amount)


@register_kernel("sharpen", "out")
def sharpen_out(image: np.ndarray, out: np.ndarray, *, sigma: Positive = 1.0, amount: float = 1.0) -> None:
    """`sharpen` into `out`."""
    require_pixels("sharpen", image, (3,))
    _sharpen_into(image, out, sigma, amount)


@register_check("canny")
def _check_canny(*, low: float, high: float) -> dict[str, Any]:
    if low >= high:
        raise ValueError(f"canny wants 0 < low < high, got low={low}, high={high}")
    return {"low": low, "high": high}


def _canny_into(image: np.ndarray, out: np.ndarray, low: float, high: float) -> None:
    if image.size:
        cv2 = opencv()
        luma, smooth = scratch("gray", image.shape[:2]), scratch("smooth", image.shape[:2])
        write_gray(image, luma)
        stored(cv2.GaussianBlur(luma, (0, 0), CANNY_SIGMA, dst=smooth, borderType=cv2.BORDER_REPLICATE), smooth)
        stored(cv2.Canny(smooth, low, high, edges=luma, L2gradient=True), luma)
        stored(cv2.cvtColor(luma, cv2.COLOR_GRAY2RGB, dst=out), out)


@register_op("canny", takes=RGB, infer=infer_rgb)
def canny(image: np.ndarray, *, low: Positive, high: Positive) -> np.ndarray:
    """Mark edges, by Canny's detector on the BT.601 luma blurred with a Gaussian of sigma 1.4.

    Args:
        image: uint8[h, w, 3].
        low, high: bounds of the gradient's length (3x3 Sobel, in levels), 0 < low < high: above `high` an edge begins, above
            `low` it goes on.

    Returns:
        uint8[h, w, 3], a new array: 255 on an edge and 0 elsewhere, in all channels alike. Equals OpenCV's Canny with
        L2gradient.

    Raises:
        OpError: another dtype, rank or channel count.
    """
    require_pixels("canny", image, (3,))
    return made(_canny_into, image, low, high)


@register_kernel("canny", "out")
def canny_out(image: np.ndarray, out: np.ndarray, *, low: Positive, high: Positive) -> None:
    """`canny` into `out`."""
    require_pixels("canny", image, (3,))
    _canny_into(image, out, low, high)
