"""Ops on arrays that are about to become tensors: padding one axis, cutting planes into patches, noise."""

from __future__ import annotations

import math
import numbers
from typing import Annotated, Any, TypeAlias

import numpy as np

from ..engine.arguments import DYNAMIC, Count, Range, Size
from ..engine.errors import OpError
from ..engine.registry import register_check, register_kernel, register_op
from ..engine.schema import Takes, TensorType, unchanged
from .array import cast_out
from .buffers import scratch
from .libraries import opencv

Fill: TypeAlias = float | Any
"""Any number: also infinities and NaN, which are refused for a plain float; `check_fill` refuses the rest."""
Deviation: TypeAlias = Annotated[float, Range(0.0), DYNAMIC]


def check_fill(name: str, value: Any) -> float:
    """A number as a float.

    Raises:
        TypeError: anything else, bool included.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number, got {value!r}")
    return float(value)


def fill_value(value: float, dtype: np.dtype) -> np.ndarray:
    """`value` as a scalar of this dtype: truncated and clipped to what an integer holds, NaN as 0."""
    out = np.empty((), dtype)
    cast_out(np.asarray(value, np.float64), out, dtype="float64")
    return out


def _axis(axis: int, rank: int) -> int:
    if not -rank <= axis < rank:
        raise ValueError(f"axis {axis} is out of range for {rank} axes")
    return axis % rank


def _padded_shape(shape: tuple[int, ...], axis: int, target: int) -> tuple[int, ...]:
    try:
        place = _axis(axis, len(shape))
    except ValueError as error:
        raise OpError(f"pad_axis: {error}, got shape {shape}") from error
    return (*shape[:place], max(shape[place], target), *shape[place + 1 :])


def _infer_padded(given: TensorType, *, axis: int, target: int, **_: Any) -> TensorType:
    if given.shape is None:
        return given
    place = _axis(axis, len(given.shape))
    size = given.shape[place]
    grown = None if size is None else max(size, target)
    return given.with_shape((*given.shape[:place], grown, *given.shape[place + 1 :]))


@register_op("pad_axis", infer=_infer_padded)
def pad_axis(array: np.ndarray, *, axis: int, target: Count, value: Fill = 0.0) -> np.ndarray:
    """Append `value` along one axis until it is `target` long; a longer axis stays as it is.

    Args:
        array: array[...] of any dtype.
        axis: negative ones count from the end.
        value: cast to the dtype: fractions are cut off, integers saturate, NaN is 0 in an integer.

    Returns:
        A new array of the same dtype; `array` itself where there is nothing to add.

    Raises:
        OpError: no such axis.
    """
    shape = _padded_shape(array.shape, axis, target)
    if shape == array.shape:
        return array
    out = np.empty(shape, array.dtype)
    pad_axis_out(array, out, axis=axis, target=target, value=value)
    return out


@register_kernel("pad_axis", "out")
def pad_axis_out(array: np.ndarray, out: np.ndarray, *, axis: int, target: Count, value: Fill = 0.0) -> None:
    """`pad_axis` into `out`."""
    _padded_shape(array.shape, axis, target)  # refuses a wrong axis
    place = axis % array.ndim
    before = (slice(None),) * place
    np.copyto(out[(*before, slice(array.shape[place]))], array)
    out[(*before, slice(array.shape[place], None))] = fill_value(value, out.dtype)


@register_check("pad_axis")
def _check_pad_axis(**given: Any) -> dict[str, Any]:
    return {**given, "value": check_fill("pad_axis(value=)", given["value"])}


def _infer_patches(given: TensorType, *, patch_size: int) -> TensorType:
    if given.layout == "HWC":
        raise ValueError(f"takes planes, CHW, got {given}; permute(axes=(2, 0, 1)) makes them")
    if given.shape is None:
        return TensorType((None, None), given.dtype)
    c, h, w = given.shape
    for size in (h, w):
        if size is not None and size % patch_size:
            raise ValueError(f"takes planes whose edges are multiples of {patch_size}, got {given}")
    count = None if h is None or w is None else (h // patch_size) * (w // patch_size)
    return TensorType((count, None if c is None else c * patch_size**2), given.dtype)


def _check_planes(planes: np.ndarray, patch_size: int) -> None:
    if planes.ndim != 3:
        raise OpError(f"takes planes with 3 axes (c, h, w), got shape {planes.shape}")
    if planes.shape[1] % patch_size or planes.shape[2] % patch_size:
        raise OpError(f"takes planes whose edges are multiples of {patch_size}, got shape {planes.shape} (c, h, w)")


MERGED = frozenset(("uint8", "int8", "uint16", "int16", "int32", "float32", "float64"))
"""Element types that OpenCV merges."""


@register_op("patchify", takes=Takes(ranks=(3,)), infer=_infer_patches)
def patchify(planes: np.ndarray, *, patch_size: Size) -> np.ndarray:
    """Cut planes into square patches, one per row, as a vision transformer takes them.

    Args:
        planes: array[c, h, w] of any dtype.
        patch_size: edge p of a patch in pixels; it divides h and w.

    Returns:
        array[(h / p) * (w / p), p * p * c], a new array: patches from left to right, then down; in a patch the channel
        runs fastest, then the column, then the row.

    Raises:
        OpError: another number of axes, or edges that are no multiples of p.
    """
    _check_planes(planes, patch_size)
    c, h, w = planes.shape
    out = np.empty(((h // patch_size) * (w // patch_size), patch_size**2 * c), planes.dtype)
    patchify_out(planes, out, patch_size=patch_size)
    return out


@register_kernel("patchify", "out")
def patchify_out(planes: np.ndarray, out: np.ndarray, *, patch_size: Size) -> None:
    """`patchify` into `out`."""
    _check_planes(planes, patch_size)
    c, h, w = planes.shape
    down, across = h // patch_size, w // patch_size
    pixels = planes.transpose(1, 2, 0)
    if not pixels.flags.c_contiguous and 1 < c <= 4 and planes.dtype.name in MERGED and planes.size:
        # Channels are put side by side by OpenCV; what is left moves whole rows of a patch.
        pixels = scratch("patches", (planes.nbytes,)).view(planes.dtype).reshape(h, w, c)
        opencv().merge([np.ascontiguousarray(plane) for plane in planes], dst=pixels)
    if pixels.flags.c_contiguous:
        rows = pixels.reshape(down, patch_size, across, patch_size * c)
        np.copyto(out.reshape(down, across, patch_size, patch_size * c), rows.transpose(0, 2, 1, 3))
        return
    patches = out.reshape(down, across, patch_size, patch_size, c)
    for channel in range(c):  # so that NumPy's inner loop runs over a row of a patch, not over a few channels
        plane = planes[channel].reshape(down, patch_size, across, patch_size)
        np.copyto(patches[..., channel], plane.transpose(0, 2, 1, 3))


def _is_silent(array: np.ndarray, std: float) -> bool:
    if array.dtype != np.float32:
        raise OpError(f"takes float32, got {array.dtype}{list(array.shape)}")
    if not 0 <= std < math.inf:
        raise OpError(f"gaussian_noise wants a finite std >= 0, got {std}")
    return std == 0 or array.size == 0


@register_op("gaussian_noise", takes=Takes(dtypes=("float32",)), infer=unchanged, random=True)
def gaussian_noise(array: np.ndarray, *, std: Deviation, rng: np.random.Generator) -> np.ndarray:
    """Add independent normal noise of mean 0, from OpenCV's generator, which one draw seeds.

    Args:
        array: float32[...].
        std: standard deviation in units of the array; 0 draws nothing.

    Returns:
        float32[...], a new array; `array` itself for a `std` of 0.

    Raises:
        OpError: another dtype, or a `std` below 0 or not finite.
    """
    if _is_silent(array, std):
        return array
    out = np.empty(array.shape, np.float32)
    gaussian_noise_out(array, out, std=std, rng=rng)
    return out


@register_kernel("gaussian_noise", "out")
def gaussian_noise_out(array: np.ndarray, out: np.ndarray, *, std: Deviation, rng: np.random.Generator) -> None:
    """`gaussian_noise` into `out`."""
    if _is_silent(array, std):
        np.copyto(out, array)
        return
    cv2 = opencv()
    # OpenCV's state is the thread's own, and NumPy's normal numbers take four times as long. All 32 bits: the first number
    # has the sign of the seed.
    cv2.setRNGSeed(int(rng.integers(-(1 << 31), 1 << 31)))
    cv2.randn(out.reshape(-1, 1), 0.0, std)
    np.add(out, array, out=out)
