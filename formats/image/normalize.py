"""Packing: uint8 HWC pixels to float32 CHW planes, scaled and shifted.

Each op here is `x * scale + bias` per channel in float32. OpenCV splits the channels, NumPy multiplies and adds straight into
the destination: one pass over uint8, two over float32, no temporary.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from ...engine.calls import OpCall
from ...engine.errors import OpError
from ...engine.registry import lookup, register_check, register_kernel, register_op
from ...engine.schema import Takes, TensorType
from ..buffers import scratch
from ..libraries import opencv

Base: TypeAlias = Literal["symmetric", "unit"]
Means: TypeAlias = tuple[float, ...]

PRESETS: dict[str, tuple[Means, Means]] = {
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "clip": ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)),
}
"""Mean and standard deviation of pixels in [0, 1]. Source: torchvision's model documentation; OpenAI CLIP's preprocessing."""


class Rule(NamedTuple):
    """`x * scale + bias`, float32[c, 1] or float32 scalars; `bias` None stands for no addition."""

    scale: Any
    bias: Any


UNIT = Rule(np.float32(1 / 255), None)
SYMMETRIC = Rule(np.float32(2 / 255), np.float32(-1))


def pack_into(image: np.ndarray, out: np.ndarray, rule: Rule) -> None:
    """Write `image * scale + bias` into `out`.

    Args:
        image: uint8[h, w, c].
        out: float32[c, h, w].
        rule: scalars, or one value per channel.

    Raises:
        OpError: another dtype or rank.
    """
    if image.ndim != 3 or image.dtype != np.uint8:
        raise OpError(f"takes uint8[h, w, c], got {image.dtype}{list(image.shape)}")
    height, width, channels = image.shape
    if channels > 1 and image.size:
        if image.strides[1:] != (channels, 1) or image.strides[0] < width * channels:
            packed = scratch("packed", image.shape)
            np.copyto(packed, image)
            image = packed
        planes = scratch("planes", (channels, height, width))
        opencv().split(image, list(planes))
        if isinstance(rule.bias, np.ndarray):  # the one rule that rounds once: for every input, so that equal pixels stay equal
            _add_scaled(planes, out, rule)
            return
    else:
        planes = image.transpose(2, 0, 1)
    if out.flags.c_contiguous:  # long rows: NumPy converts uint8 in blocks, and a block never crosses a row
        planes, out = planes.reshape(channels, height * width), out.reshape(channels, height * width)
    scales, biases = (None if v is None else _per_channel(v, channels) for v in rule)
    for channel in range(channels):  # one by one, so that the second pass finds its plane in the cache
        np.multiply(planes[channel], scales[channel], out=out[channel])  # type: ignore[index]
        if biases is not None:
            np.add(out[channel], biases[channel], out=out[channel])


def _add_scaled(planes: np.ndarray, out: np.ndarray, rule: Rule) -> None:
    """`planes * scale + bias` in one pass over memory: a batch row is larger than the cache, and a second pass would wait
    for it (0.17 ms against 0.28 at 224x224 into cold rows). Within 3e-7 of the two steps.
    """
    cv2, channels = opencv(), len(planes)
    scales, biases = (_per_channel(v, channels).tolist() for v in rule)
    for channel in range(channels):
        plane = planes[channel]
        cv2.addWeighted(plane, scales[channel], plane, 0.0, biases[channel], dst=out[channel], dtype=cv2.CV_32F)


def _per_channel(values: Any, channels: int) -> np.ndarray:
    """float32[channels] of a scalar or of one value per channel."""
    return np.broadcast_to(np.ravel(values), channels)


def _packed(image: np.ndarray, rule: Rule) -> np.ndarray:
    if image.ndim != 3:
        raise OpError(f"takes uint8[h, w, c], got {image.dtype}{list(image.shape)}")
    out = np.empty((image.shape[2], *image.shape[:2]), np.float32)
    pack_into(image, out, rule)
    return out


PIXELS = Takes(dtypes=("uint8",), layouts=("HWC",))
PLANES = Takes(dtypes=("float32",), layouts=("CHW",))


def _infer_pack(given: TensorType, **arguments: Any) -> TensorType:
    h, w, c = given.shape or (None, None, None)
    _check_channels(c, arguments.get("mean"))
    return TensorType((c, h, w), "float32", "CHW")


def _infer_same(given: TensorType, *, mean: Means, std: Means) -> TensorType:
    if given.shape is not None:
        _check_channels(given.shape[0], mean)
    return TensorType(given.shape or (len(mean), None, None), "float32", "CHW")


def _check_channels(channels: int | None, mean: Means | None) -> None:
    if mean is not None and channels is not None and channels != len(mean):
        raise ValueError(f"mean and std have {len(mean)} entries, the image {channels} channels")


@register_check("normalize")
@register_check("normalize_chw_from_hwc_u8")
def _check_mean_std(*, mean: Means, std: Means, **others: Any) -> dict[str, Any]:
    if not mean or len(mean) != len(std):
        raise ValueError(f"mean and std need one entry per channel, got {len(mean)} and {len(std)}")
    if min(std) <= 0:
        raise ValueError(f"std must be > 0, got {std}")
    return {"mean": mean, "std": std, **others}


@register_op("unit_chw", takes=PIXELS, infer=_infer_pack, method=None)
def unit_chw(image: np.ndarray) -> np.ndarray:
    """Pixels to [0, 1]: `x * float32(1/255)`.

    Returns:
        float32[c, h, w] of uint8[h, w, c].
    """
    return _packed(image, UNIT)


@register_kernel("unit_chw", "out")
def unit_chw_out(image: np.ndarray, out: np.ndarray) -> None:
    """`unit_chw` into `out`."""
    pack_into(image, out, UNIT)


@register_op("symmetric_chw", takes=PIXELS, infer=_infer_pack, method=None)
def symmetric_chw(image: np.ndarray) -> np.ndarray:
    """Pixels to [-1, 1]: `x * float32(2/255) - 1`.

    Returns:
        float32[c, h, w] of uint8[h, w, c].
    """
    return _packed(image, SYMMETRIC)


@register_kernel("symmetric_chw", "out")
def symmetric_chw_out(image: np.ndarray, out: np.ndarray) -> None:
    """`symmetric_chw` into `out`."""
    pack_into(image, out, SYMMETRIC)


@register_op("pack_chw_f32", takes=PIXELS, infer=_infer_pack, method=None)
def pack_chw_f32(image: np.ndarray, *, scale: float, bias: float = 0.0) -> np.ndarray:
    """`x * scale + bias` in float32.

    Returns:
        float32[c, h, w] of uint8[h, w, c].
    """
    return _packed(image, _pack_rule(scale, bias))


@register_kernel("pack_chw_f32", "out")
def pack_chw_f32_out(image: np.ndarray, out: np.ndarray, *, scale: float, bias: float = 0.0) -> None:
    """`pack_chw_f32` into `out`."""
    pack_into(image, out, _pack_rule(scale, bias))


def _pack_rule(scale: float, bias: float) -> Rule:
    return Rule(np.float32(scale), np.float32(bias) if bias else None)


@lru_cache(maxsize=64)
def _normalize_rule(mean: Means, std: Means, base: Base) -> Rule:
    """`(x / range - shift - mean) / std` as one scale and bias per channel, folded in float64."""
    means, stds = np.asarray(mean, np.float64), np.asarray(std, np.float64)
    span, shift = (127.5, 1.0) if base == "symmetric" else (255.0, 0.0)
    scale, bias = 1.0 / (span * stds), -(means + shift) / stds
    return Rule(scale.astype(np.float32).reshape(-1, 1), bias.astype(np.float32).reshape(-1, 1))


def _require_channels(op: str, channels: int, mean: Means) -> None:
    if channels != len(mean):
        raise OpError(f"{op}: mean and std have {len(mean)} entries, the image {channels} channels")


@register_op("normalize_chw_from_hwc_u8", takes=PIXELS, infer=_infer_pack, method=None)
def normalize_chw_from_hwc_u8(
    image: np.ndarray, *, mean: Means, std: Means, base: Base = "symmetric"
) -> np.ndarray:
    """Scale pixels and normalise them per channel.

    Args:
        image: uint8[h, w, c].
        mean, std: c values, of the scaled pixels.
        base: "unit" is (x/255 - mean)/std, "symmetric" is (x/127.5 - 1 - mean)/std.

    Returns:
        float32[c, h, w], within 1.2e-6 of the formula in float64 for the usual presets.

    Raises:
        OpError: another count of channels.
    """
    _require_channels("normalize_chw_from_hwc_u8", image.shape[-1], mean)
    return _packed(image, _normalize_rule(mean, std, base))


@register_kernel("normalize_chw_from_hwc_u8", "out")
def normalize_chw_from_hwc_u8_out(
    image: np.ndarray, out: np.ndarray, *, mean: Means, std: Means, base: Base = "symmetric"
) -> None:
    """`normalize_chw_from_hwc_u8` into `out`."""
    _require_channels("normalize_chw_from_hwc_u8", image.shape[-1], mean)
    pack_into(image, out, _normalize_rule(mean, std, base))


def _named(mode: str) -> str:
    name = mode.lower()
    if name not in (known := ("clip", "imagenet", "none", "symmetric", "unit")):
        raise ValueError(f"normalize(mode=) must be one of {', '.join(known)}, got {mode!r}")
    return name


def _transform(name: str, **arguments: Any) -> OpCall:
    return lookup(name, "transform").call(**arguments)


def normalize(
    mode: str | tuple[Means, Means] | None = "imagenet",
    *,
    mean: Means | None = None,
    std: Means | None = None,
    output_layout: str = "chw",
) -> OpCall | tuple[OpCall, ...]:
    """The slot method: uint8 HWC pixels to normalised float32 CHW.

    Args:
        mode: "imagenet", "clip" (both on pixels in [0, 1]), "unit" (x/255), "symmetric" (x/127.5 - 1), "none" or None
            (float32 CHW of the plain values), or a pair (mean, std); names in any case.
        mean, std: values per channel, instead of `mode`.
        output_layout: "chw"; "hwc" only with "none", which then adds nothing.

    Raises:
        ValueError: unknown mode or layout, only one of mean and std, a pair that is none.
    """
    if output_layout not in ("chw", "hwc"):
        raise ValueError(f"normalize(output_layout=) must be 'chw' or 'hwc', got {output_layout!r}")
    if (mean is None) != (std is None):
        raise ValueError("normalize() takes mean= and std= together")
    values: tuple[Any, Any] | None = None if mean is None else (mean, std)
    name = ""
    if values is None:
        if mode is None or isinstance(mode, str):
            name = "none" if mode is None else _named(mode)
            values = PRESETS.get(name)
        elif isinstance(mode, (tuple, list)) and len(mode) == 2:
            values = (mode[0], mode[1])
        else:
            raise ValueError(f"normalize(mode=) takes a name or a pair (mean, std), got {mode!r}")
    if output_layout == "hwc":
        if values is not None or name != "none":
            raise ValueError("normalize(output_layout='hwc') goes with mode 'none' only; the others give CHW")
        return ()
    if values is not None:
        return _transform("normalize_chw_from_hwc_u8", mean=values[0], std=values[1], base="unit")
    if name == "none":
        return _transform("pack_chw_f32", scale=1.0)
    return _transform(f"{name}_chw")


@register_op("normalize", takes=PLANES, infer=_infer_same, method=normalize)
def normalize_chw(planes: np.ndarray, *, mean: Means, std: Means) -> np.ndarray:
    """(x - mean) / std per channel.

    Args:
        planes: float32[c, h, w].
        mean, std: c values each; nothing is broadcast.

    Returns:
        float32[c, h, w], within 1e-6 of the formula in float64 for the usual presets.

    Raises:
        OpError: another dtype, rank or count of channels.
    """
    out = np.empty(planes.shape, np.float32)
    normalize_chw_out(planes, out, mean=mean, std=std)
    return out


@register_kernel("normalize", "out")
def normalize_chw_out(planes: np.ndarray, out: np.ndarray, *, mean: Means, std: Means) -> None:
    """`normalize` into `out`."""
    if planes.ndim != 3 or planes.dtype != np.float32:
        raise OpError(f"normalize takes float32[c, h, w], got {planes.dtype}{list(planes.shape)}")
    _require_channels("normalize", planes.shape[0], mean)
    if not planes.size:
        return
    for plane, target, m, d in zip(planes, out, mean, std):  # x / std - mean / std in one pass over memory
        opencv().transform(plane, np.array([[1.0 / d, -m / d]]), dst=target)
