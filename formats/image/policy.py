"""Augmentation policies, which apply a few of a fixed set of ops: `rand_augment`, `trivial_augment_wide`, `auto_augment`.

The geometric ops are bilinear, work about the centre of the image and fill with 0, as the other warps here do.
(torchvision's look up the nearest pixel, shear about the top left corner and shift by whole pixels.) The strengths of
`rand_augment` and `trivial_augment_wide` are linear in f, from 0 to 1, and end where RandAugment's do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Literal, NamedTuple, TypeAlias

import numpy as np

from ...engine.arguments import Range
from ...engine.registry import register_kernel, register_op
from . import color
from .pixels import RGB, infer_rgb
from .warp import about, require_image, warp_affine

OpCount: TypeAlias = Annotated[int, Range(1, 15)]
Magnitude: TypeAlias = Annotated[int, Range(0, 30)]
PolicyName: TypeAlias = Literal["imagenet"]

HIGHEST_MAGNITUDE = 30
UNTURNED = np.eye(2)

Kernel: TypeAlias = Callable[[np.ndarray, float], np.ndarray]


def _warped(image: np.ndarray, linear: np.ndarray, shift: tuple[float, float] = (0.0, 0.0)) -> np.ndarray:
    """The image under the inverse of `linear` about its centre, then moved by `shift` pixels (x, y)."""
    height, width = image.shape[:2]
    out = np.empty(image.shape, np.uint8)
    centre = np.array([(width - 1) / 2, (height - 1) / 2])
    warp_affine(image, out, about(centre, linear, shift), fill=0, interp="bilinear")
    return out


def _rotate(image: np.ndarray, degrees: float) -> np.ndarray:
    """Clockwise on screen."""
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    return _warped(image, np.array([[cos, sin], [-sin, cos]]))


def _shear_x(image: np.ndarray, slope: float) -> np.ndarray:
    """Pixels move to the right by `slope` times their distance below the centre."""
    return _warped(image, np.array([[1.0, -slope], [0.0, 1.0]]))


def _shear_y(image: np.ndarray, slope: float) -> np.ndarray:
    """Pixels move down by `slope` times their distance to the right of the centre."""
    return _warped(image, np.array([[1.0, 0.0], [-slope, 1.0]]))


def _translate_x(image: np.ndarray, share: float) -> np.ndarray:
    """To the right by a share of the width."""
    return _warped(image, UNTURNED, (share * image.shape[1], 0.0))


def _translate_y(image: np.ndarray, share: float) -> np.ndarray:
    """Down by a share of the height."""
    return _warped(image, UNTURNED, (0.0, share * image.shape[0]))


OPS: Mapping[str, Kernel] = {
    "identity": lambda image, _: image,
    "invert": lambda image, _: color.invert_image(image),
    "autocontrast": lambda image, _: color.autocontrast_image(image),
    "equalize": lambda image, _: color.equalize_image(image),
    "rotate": _rotate,
    "shear_x": _shear_x,
    "shear_y": _shear_y,
    "translate_x": _translate_x,
    "translate_y": _translate_y,
    "brightness": lambda image, change: color.brightness_image(image, 1.0 + change),
    "contrast": lambda image, change: color.contrast_image(image, 1.0 + change),
    "color": lambda image, change: color.saturation_image(image, 1.0 + change),
    "sharpness": lambda image, change: color.sharpness_image(image, 1.0 + change),
    "posterize": lambda image, bits: color.posterize_image(image, round(bits)),
    "solarize": lambda image, threshold: color.solarize_image(image, math.ceil(threshold)),
}
"""Every op of the policies: from uint8[h, w, 3] and a strength, which some ignore, to uint8[h, w, 3]."""

NAMES = tuple(OPS)
SIGNED: Mapping[str, float] = {
    "rotate": 30.0,  # degrees
    "shear_x": 0.3,  # slope
    "shear_y": 0.3,
    "translate_x": 0.45,  # of the edge
    "translate_y": 0.45,
    "brightness": 0.9,  # the factor is 1 +- this
    "contrast": 0.9,
    "color": 0.9,
    "sharpness": 0.9,
}
"""Highest strength of the ops whose sign is drawn."""


def strength(name: str, f: float, sign: float) -> float:
    """The strength of an op at share `f` (0 to 1) of its range: linear, but for rounding.

    Returns:
        What the op of `OPS` takes: degrees, slope, share of the edge, change of the factor, bits (8 down to 4) or the
        threshold (256, which inverts nothing, down to 0); 0.0 for ops without strength.
    """
    if name in SIGNED:
        return math.copysign(SIGNED[name] * f, sign)
    if name == "posterize":
        return 8 - math.floor(4 * f + 0.5)
    if name == "solarize":
        return math.floor(256 * (1 - f) + 0.5)
    return 0.0


class Step(NamedTuple):
    """One op with its strength, as `OPS` takes it."""

    name: str
    strength: float


def _applied(image: np.ndarray, steps: Iterable[Step]) -> np.ndarray:
    """`image` itself where no step changes it."""
    for step in steps:
        image = OPS[step.name](image, step.strength)
    return image


def rand_augment_steps(n: int, m: int, rng: np.random.Generator) -> list[Step]:
    """`n` different ops in drawn order; drawn are the ops, then a sign for each (also where it is not needed)."""
    chosen = rng.choice(len(NAMES), size=n, replace=False)
    signs = rng.random(n) - 0.5
    return [
        Step(NAMES[i], strength(NAMES[i], m / HIGHEST_MAGNITUDE, sign)) for i, sign in zip(chosen, signs)
    ]


def trivial_augment_steps(rng: np.random.Generator) -> list[Step]:
    """One op; drawn are the op, its share of the range, its sign (also where they are not needed)."""
    name = NAMES[int(rng.integers(len(NAMES)))]
    f, sign = rng.random(2)
    return [Step(name, strength(name, f, sign - 0.5))]


class Chance(NamedTuple):
    """An op of a sub-policy, the probability to apply it, and its strength in tenths of the range, 0 to 9."""

    name: str
    prob: float
    level: int = 0


IMAGENET: tuple[tuple[Chance, Chance], ...] = (
    (Chance("posterize", 0.4, 8), Chance("rotate", 0.6, 9)),
    (Chance("solarize", 0.6, 5), Chance("autocontrast", 0.6)),
    (Chance("equalize", 0.8), Chance("equalize", 0.6)),
    (Chance("posterize", 0.6, 7), Chance("posterize", 0.6, 6)),
    (Chance("equalize", 0.4), Chance("solarize", 0.2, 4)),
    (Chance("equalize", 0.4), Chance("rotate", 0.8, 8)),
    (Chance("solarize", 0.6, 3), Chance("equalize", 0.6)),
    (Chance("posterize", 0.8, 5), Chance("equalize", 1.0)),
    (Chance("rotate", 0.2, 3), Chance("solarize", 0.6, 8)),
    (Chance("equalize", 0.6), Chance("posterize", 0.4, 6)),
    (Chance("rotate", 0.8, 8), Chance("color", 0.4, 0)),
    (Chance("rotate", 0.4, 9), Chance("equalize", 0.6)),
    (Chance("equalize", 0.0), Chance("equalize", 0.8)),
    (Chance("invert", 0.6), Chance("equalize", 1.0)),
    (Chance("color", 0.6, 4), Chance("contrast", 1.0, 8)),
    (Chance("rotate", 0.8, 8), Chance("color", 1.0, 2)),
    (Chance("color", 0.8, 8), Chance("solarize", 0.8, 7)),
    (Chance("sharpness", 0.4, 7), Chance("invert", 0.6)),
    (Chance("shear_x", 0.6, 5), Chance("equalize", 1.0)),
    (Chance("color", 0.4, 0), Chance("equalize", 0.6)),
    (Chance("equalize", 0.4), Chance("solarize", 0.2, 4)),
    (Chance("solarize", 0.6, 5), Chance("autocontrast", 0.6)),
    (Chance("invert", 0.6), Chance("equalize", 1.0)),
    (Chance("color", 0.6, 4), Chance("contrast", 1.0, 8)),
    (Chance("equalize", 0.8), Chance("equalize", 0.6)),
)
"""The 25 sub-policies found on ImageNet. Source: Cubuk et al. 2019, "AutoAugment", appendix, table 9; in the order of
torchvision's AutoAugmentPolicy.IMAGENET."""

HIGHEST_LEVEL = 9


def level_strength(name: str, level: int, sign: float) -> float:
    """The strength of an op at a level of `IMAGENET`, as torchvision has it: thresholds start from 255, not 256."""
    f = level / HIGHEST_LEVEL
    return 255.0 * (1 - f) if name == "solarize" else strength(name, f, sign)


def auto_augment_steps(rng: np.random.Generator) -> list[Step]:
    """Drawn are the sub-policy, a coin for each of its two ops, a sign for each (also where it is not needed)."""
    pair = IMAGENET[int(rng.integers(len(IMAGENET)))]
    coins, signs = rng.random(2), rng.random(2) - 0.5
    return [
        Step(chance.name, level_strength(chance.name, chance.level, sign))
        for chance, coin, sign in zip(pair, coins, signs)
        if coin < chance.prob
    ]


@register_op("rand_augment", takes=RGB, infer=infer_rgb, random=True)
def rand_augment(
    image: np.ndarray, *, n: OpCount = 2, m: Magnitude = 9, rng: np.random.Generator
) -> np.ndarray:
    """Apply `n` different ops, all at the same magnitude, in drawn order.

    Args:
        image: uint8[h, w, 3].
        n: 1 to 15 of: identity, invert, autocontrast, equalize, rotate, shear and translate along x and y, brightness,
            contrast, color, sharpness, posterize, solarize.
        m: 0 to 30, where 30 is: 30 degrees, a slope of 0.3, 0.45 of the edge, a factor of 1 +- 0.9, 4 bits, threshold
            0. Signs are drawn. Other magnitudes lie linearly between that and no change.
        rng: as `rand_augment_steps`.

    Returns:
        `image` itself, or uint8[h, w, 3], a new array; uncovered area is 0.

    Raises:
        OpError: another dtype or shape, or no pixels.

    Source: Cubuk et al. 2020, "RandAugment", with torchvision's ranges.
    """
    require_image("rand_augment", image)
    return _applied(image, rand_augment_steps(n, m, rng))


@register_kernel("rand_augment", "out")
def rand_augment_out(
    image: np.ndarray, out: np.ndarray, *, n: OpCount = 2, m: Magnitude = 9, rng: np.random.Generator
) -> None:
    """`rand_augment` into `out`, uint8[h, w, 3]."""
    np.copyto(out, rand_augment(image, n=n, m=m, rng=rng))


@register_op("trivial_augment_wide", takes=RGB, infer=infer_rgb, random=True)
def trivial_augment_wide(image: np.ndarray, *, rng: np.random.Generator) -> np.ndarray:
    """Apply one op of those of `rand_augment`, at a magnitude uniform between none and the highest.

    Args:
        image: uint8[h, w, 3].
        rng: as `trivial_augment_steps`.

    Returns:
        `image` itself, or uint8[h, w, 3], a new array; uncovered area is 0.

    Raises:
        OpError: another dtype or shape, or no pixels.

    Source: Mueller and Hutter 2021, "TrivialAugment"; the ranges are those of `rand_augment`, not its wide ones.
    """
    require_image("trivial_augment_wide", image)
    return _applied(image, trivial_augment_steps(rng))


@register_kernel("trivial_augment_wide", "out")
def trivial_augment_wide_out(image: np.ndarray, out: np.ndarray, *, rng: np.random.Generator) -> None:
    """`trivial_augment_wide` into `out`, uint8[h, w, 3]."""
    np.copyto(out, trivial_augment_wide(image, rng=rng))


@register_op("auto_augment", takes=RGB, infer=infer_rgb, random=True)
def auto_augment(
    image: np.ndarray, *, policy: PolicyName = "imagenet", rng: np.random.Generator
) -> np.ndarray:
    """Apply one of the 25 sub-policies of `IMAGENET`: two ops, each with its own probability and strength.

    Args:
        image: uint8[h, w, 3].
        policy: "imagenet".
        rng: as `auto_augment_steps`.

    Returns:
        `image` itself, or uint8[h, w, 3], a new array; uncovered area is 0.

    Raises:
        OpError: another dtype or shape, or no pixels.

    Source: Cubuk et al. 2019, "AutoAugment".
    """
    require_image("auto_augment", image)
    return _applied(image, auto_augment_steps(rng))


@register_kernel("auto_augment", "out")
def auto_augment_out(
    image: np.ndarray, out: np.ndarray, *, policy: PolicyName = "imagenet", rng: np.random.Generator
) -> None:
    """`auto_augment` into `out`, uint8[h, w, 3]."""
    np.copyto(out, auto_augment(image, policy=policy, rng=rng))
