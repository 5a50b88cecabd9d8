"""Examples of every built-in op, so that one set of tests (`test_every_op.py`) covers them all.

An example is an op's arguments and values to run it on. Arguments that hold other ops are functions, called when the test
runs. An op that is declared without an example here fails `test_every_op_has_an_example`.
"""

from __future__ import annotations

import io
import json
import wave
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np

import dataio
from dataio.engine.calls import OpCall
from dataio.engine.registry import lookup
from dataio.engine.schema import Layout, Shape

from .helpers import encode, photo

Make: TypeAlias = Callable[[tuple[int, ...], int], np.ndarray]
"""`make(shape, seed)`: an array."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One way to call a transform.

    Attributes:
        op, arguments: the call; `arguments` may be a function where it holds other ops.
        shapes: shapes of the values to run it on; the first one is the usual case.
        make: fills a shape with values the op has something to do with.
        layout: of the values; `gives` that of the result.
        varies: the shape of the result depends on the values or on what is drawn.
        chance: what is drawn shows in the result.
    """

    op: str
    arguments: dict[str, Any] | Callable[[], dict[str, Any]] = field(default_factory=dict)
    shapes: tuple[tuple[int, ...], ...]
    make: Make
    layout: Layout | None = None
    gives: Layout | Literal["same"] | None = "same"
    varies: bool = False
    chance: bool = False
    variant: str = ""

    @property
    def name(self) -> str:
        return f"{self.op}-{self.variant}" if self.variant else self.op

    @property
    def given_arguments(self) -> dict[str, Any]:
        return self.arguments() if callable(self.arguments) else self.arguments

    @property
    def call(self) -> OpCall:
        return lookup(self.op, "transform").call(**self.given_arguments)

    def value(self, shape: tuple[int, ...] | None = None, seed: int = 0) -> np.ndarray:
        return self.make(shape or self.shapes[0], seed)

    def column(self, count: int) -> list[np.ndarray]:
        """Values of the usual shape, all different."""
        return [self.value(seed=seed) for seed in range(count)]


def bytes_(shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def picture(shape: tuple[int, ...], seed: int) -> np.ndarray:
    """uint8[h, w, c], smooth with a little noise; noise alone where it is too small for that."""
    return photo(*shape, seed=seed) if min(shape) > 0 else bytes_(shape, seed)


def floats(shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


def shorts(shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-300, 300, shape).astype(np.int16)


def boxes(shape: tuple[int, ...], seed: int) -> np.ndarray:
    """float32[n, 4] corners within [0, 1]; a fifth column holds labels from 1 to 9."""
    rng = np.random.default_rng(seed)
    corner, size = rng.uniform(0, 0.7, (shape[0], 2)), rng.uniform(0.05, 0.3, (shape[0], 2))
    labels = rng.integers(1, 10, (shape[0], 1))
    return np.concatenate([corner, corner + size, labels][: shape[1] - 2], axis=1).astype(np.float32)


def scored(shape: tuple[int, ...], seed: int) -> np.ndarray:
    """float32[n, 5]: corners and a score in [0, 1]."""
    found = boxes(shape, seed)
    found[:, 4] = np.random.default_rng(seed + 1).random(shape[0])
    return found


def power(shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).random(shape, dtype=np.float32) * 10


RGB = ((37, 53, 3), (8, 8, 3), (1, 1, 3), (1, 9, 3), (64, 5, 3))
GRAY = ((37, 53, 1), (1, 1, 1))
RGBA = ((37, 53, 4), (1, 2, 4))
ANY = (*RGB, *GRAY, *RGBA)
PLANES = ((3, 37, 53), (1, 1, 1), (4, 5, 70))
SOUND = ((1, 1600), (2, 1601), (1600,), (1, 401))


def image(op: str, variant: str = "", *, shapes: tuple[tuple[int, ...], ...] = RGB, **more: Any) -> Example:
    """An example on uint8[h, w, c]."""
    arguments = more.pop("arguments", {})
    return Example(op=op, variant=variant, arguments=arguments, shapes=shapes, make=picture, layout="HWC", **more)


def planes(op: str, variant: str = "", *, shapes: tuple[tuple[int, ...], ...] = PLANES, **more: Any) -> Example:
    """An example on float32[c, h, w]."""
    arguments = more.pop("arguments", {})
    return Example(op=op, variant=variant, arguments=arguments, shapes=shapes, make=floats, layout="CHW", **more)


def array(
    op: str, variant: str = "", *, shapes: tuple[tuple[int, ...], ...], make: Make = floats, **more: Any
) -> Example:
    """An example on an array that is no image."""
    arguments = more.pop("arguments", {})
    return Example(op=op, variant=variant, arguments=arguments, shapes=shapes, make=make, gives=None, **more)


def transform(name: str, **arguments: Any) -> OpCall:
    return lookup(name, "transform").call(**arguments)


def body(*names: str) -> tuple[OpCall, ...]:
    """Transforms without arguments that leave shape and dtype alone."""
    return tuple(transform(name, prob=1.0) for name in names)


CORNERS = (0.1, 0.1, 0.4, 0.4, 0.3, 0.3, 0.9, 0.9, 0.0, 0.5, 0.2, 1.0)
MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.3, 0.4)

EXAMPLES = (
    *(
        image("resize", interp, shapes=ANY, arguments={"h": 20, "w": 30, "interp": interp})
        for interp in ("nearest", "bilinear", "bicubic", "lanczos")
    ),
    image("resize", "same-size", arguments={"h": 37, "w": 53}),
    image("resize_short", shapes=ANY, arguments={"size": 16}),
    image("resize_long", shapes=ANY, arguments={"size": 40}),
    image("fit_to_bucket", shapes=ANY, arguments={"h": 24, "w": 16}),
    image("center_crop", shapes=ANY, arguments={"h": 8, "w": 9}),
    planes("center_crop", "planes", arguments={"h": 50, "w": 9}),
    image("crop", shapes=((37, 53, 3), (10, 14, 1)), arguments={"y": 3, "x": 5, "h": 7, "w": 9}),
    planes("crop", "planes", shapes=((3, 37, 53), (1, 10, 14)), arguments={"y": 3, "x": 5, "h": 7, "w": 9}),
    image("random_crop", shapes=((37, 53, 3), (8, 9, 1)), arguments={"h": 8, "w": 9}, chance=True),
    planes("random_crop", "planes", shapes=((3, 37, 53),), arguments={"h": 8, "w": 9}, chance=True),
    image("random_resized_crop", shapes=ANY, arguments={"h": 12, "w": 13}, chance=True),
    *(image(f"{axis}flip", shapes=ANY, chance=True) for axis in "hv"),
    *(image(f"{axis}flip", "always", shapes=ANY, arguments={"prob": 1.0}) for axis in "hv"),
    *(planes(f"{axis}flip", "planes", arguments={"prob": 1.0}) for axis in "hv"),
    *(
        image("pad", mode, shapes=ANY, arguments={"top": 2, "bottom": 90, "left": 3, "mode": mode, "value": 7})
        for mode in ("constant", "reflect", "edge")
    ),
    image("pad", "constant-zero", arguments={"top": 2, "right": 3}),
    *(planes("pad", f"planes-{mode}", arguments={"top": 2, "right": 3, "mode": mode}) for mode in ("reflect", "edge")),
    *(
        image("affine", interp, arguments={"angle_deg": 20.0, "tx": 2.0, "scale": 1.2, "fill": 9, "interp": interp})
        for interp in ("nearest", "bilinear", "bicubic")
    ),
    image("affine", "nothing"),
    image(
        "random_affine",
        arguments={"degrees": 30.0, "translate": (0.1, 0.2), "scale_range": (0.8, 1.2), "shear_deg": 5.0},
        chance=True,
    ),
    image("random_affine", "nothing"),
    image("random_perspective", chance=True),
    image("random_perspective", "always", arguments={"prob": 1.0, "fill": 200}, chance=True),
    image(
        "color_jitter",
        arguments={"brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1},
        chance=True,
    ),
    image("color_jitter", "brightness", arguments={"brightness": 0.4}, chance=True),
    image("color_jitter", "hue", arguments={"hue": 0.5}, chance=True),
    image("color_jitter", "nothing"),
    image("grayscale"),
    image("grayscale", "one-channel", arguments={"num_output_channels": 1}),
    image("grayscale", "sometimes", arguments={"num_output_channels": 1, "prob": 0.5}, varies=True, chance=True),
    image("invert", shapes=ANY),
    image("invert", "sometimes", arguments={"prob": 0.5}, chance=True),
    image("solarize", shapes=ANY),
    image("solarize", "sometimes", arguments={"prob": 0.5, "threshold": 10}, chance=True),
    image("posterize", shapes=ANY),
    image("posterize", "sometimes", arguments={"prob": 0.5, "bits": 1}, chance=True),
    image("equalize"),
    image("equalize", "sometimes", arguments={"prob": 0.5}, chance=True),
    image("gaussian_blur", shapes=ANY, arguments={"kernel_size": 5, "sigma_lo": 0.5, "sigma_hi": 2.0}, chance=True),
    image("gaussian_blur", "wide", shapes=ANY, arguments={"kernel_size": 51, "sigma_lo": 8.0, "sigma_hi": 8.0}),
    image("median_blur", "1"),
    image("median_blur", "3", arguments={"radius": 3}),
    image("sharpen"),
    image("sharpen", "softer", arguments={"sigma": 2.5, "amount": -0.5}),
    image("canny", arguments={"low": 50.0, "high": 150.0}),
    image("random_erasing", shapes=ANY, chance=True),
    image("random_erasing", "always", shapes=ANY, arguments={"prob": 1.0, "value": 99}, chance=True),
    image("grid_mask", arguments={"d_min": 5, "d_max": 20}, chance=True),
    image("grid_mask", "turned", arguments={"d_min": 5, "d_max": 20, "rotate_deg": 45.0}, chance=True),
    image("rand_augment", chance=True),
    image("rand_augment", "all", arguments={"n": 15, "m": 30}, chance=True),
    image("trivial_augment_wide", chance=True),
    image("auto_augment", chance=True),
    image("unit_chw", shapes=ANY, gives="CHW"),
    image("symmetric_chw", shapes=ANY, gives="CHW"),
    image("pack_chw_f32", shapes=ANY, arguments={"scale": 2.0, "bias": 1.0}, gives="CHW"),
    image("normalize_chw_from_hwc_u8", arguments={"mean": MEAN, "std": STD}, gives="CHW"),
    image("normalize_chw_from_hwc_u8", "unit", arguments={"mean": MEAN, "std": STD, "base": "unit"}, gives="CHW"),
    planes("normalize", shapes=((3, 37, 53), (3, 1, 1)), arguments={"mean": MEAN, "std": STD}),
    image("cast", "float", shapes=ANY, arguments={"dtype": "float32"}),
    planes("cast", "byte", arguments={"dtype": "uint8"}),
    array("cast", "bool", shapes=((4, 5), (1,), ()), make=shorts, arguments={"dtype": "bool"}),
    image("permute", shapes=ANY, arguments={"axes": (2, 0, 1)}, gives="CHW"),
    planes("permute", "planes", arguments={"axes": (1, 2, 0)}, gives="HWC"),
    array("permute", "matrix", shapes=((4, 5), (1, 1)), arguments={"axes": (1, 0)}),
    image("reshape", arguments={"shape": (-1, 3)}, gives=None),
    image("flatten", shapes=ANY, arguments={"start_axis": 1}, gives=None),
    array("flatten", "all", shapes=((4, 5), (1, 1), (7,))),
    image("squeeze", shapes=ANY, gives=None),
    array("squeeze", "axis", shapes=((4, 1), (1, 1)), arguments={"axis": -1}),
    array("unsqueeze", shapes=((4, 5), (1,), ()), arguments={"axis": 0}),
    array("pad_axis", shapes=((4, 5), (1, 1), (4, 9), (2, 12)), arguments={"axis": 1, "target": 9, "value": 2.0}),
    array("pad_axis", "whole", shapes=((4, 5), (3, 1)), make=shorts, arguments={"axis": 0, "target": 7, "value": 1e9}),
    planes("patchify", shapes=((3, 32, 48), (1, 16, 16), (4, 8, 8)), arguments={"patch_size": 8}, gives=None),
    image("mean", shapes=ANY, gives=None),
    array("mean", "numbers", shapes=((4, 5), (1,), ()), make=shorts),
    image("std", shapes=ANY, gives=None),
    array("std", "numbers", shapes=((4, 5), (1,), ()), make=shorts),
    image("shape", shapes=ANY, gives=None),
    array("shape", "numbers", shapes=((4, 5), (0, 3), ())),
    image("sharpness", shapes=ANY, gives=None),
    planes("sharpness", "planes", gives=None),
    planes("gaussian_noise", arguments={"std": 0.1}, chance=True),
    array("gaussian_noise", "matrix", shapes=((4, 5), (1,)), arguments={"std": 1.0}, chance=True),
    *(array(f"bbox_{axis}flip", shapes=((7, 4), (1, 4), (0, 4)), make=boxes, chance=True) for axis in "hv"),
    *(
        array(f"bbox_{axis}flip", "centre", shapes=((7, 4),), make=boxes, arguments={"format": "xywh", "prob": 1.0})
        for axis in "hv"
    ),
    *(
        array(
            "bbox_pad",
            form,
            shapes=((7, 4), (1, 4), (0, 4)),
            make=boxes,
            arguments={"src_h": 30, "src_w": 40, "top": 3, "right": 5, "format": form},
        )
        for form in ("xyxy", "xywh")
    ),
    array(
        "bbox_crop",
        shapes=((9, 5), (1, 5), (0, 5)),
        make=boxes,
        arguments={"window": (0.1, 0.2, 0.7, 0.8)},
        varies=True,
    ),
    array("random_bbox_crop", shapes=((9, 5), (1, 5), (0, 5)), make=boxes, varies=True, chance=True),
    array("box_encoder", shapes=((9, 5), (1, 5), (0, 5)), make=boxes, arguments={"anchors": CORNERS}),
    array("nms", shapes=((20, 5), (1, 5), (0, 5)), make=scored, varies=True),
    array("nms", "few", shapes=((20, 5),), make=scored, arguments={"top_k": 3, "box_format": "xywh"}, varies=True),
    array("soft_nms", shapes=((20, 5), (1, 5), (0, 5)), make=scored, varies=True),
    array("spectrogram", shapes=(*SOUND, (1, 100))),
    array(
        "spectrogram",
        "magnitude",
        shapes=SOUND,
        arguments={"n_fft": 256, "hop_length": 100, "window": "hamming", "power": 1.0},
    ),
    array("mfcc", shapes=SOUND, arguments={"sample_rate": 16_000}),
    image("sometimes", arguments=lambda: {"body": body("invert")}, chance=True),
    image("choice", arguments=lambda: {"arms": (body("invert"), body("hflip", "posterize"))}, chance=True),
    image("some_of", arguments=lambda: {"n": 1, "arms": (body("invert"), body("hflip"))}, chance=True),
    image("select", arguments=lambda: {"arms": ((dataio.cond.shape(0, ">", 20), body("invert")),)}),
)
ELSEWHERE = {
    "mel_filterbank": "takes only what spectrogram gives, so that no value of ours stands in",
    "custom": "is whatever its function is",
}
"""Ops without an example, and why; their own tests cover them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderExample:
    """One file, or value, and what it decodes to."""

    op: str
    arguments: dict[str, Any] = field(default_factory=dict)
    source: Callable[[], Any]
    shape: Shape | None
    dtype: str

    @property
    def call(self) -> OpCall:
        return lookup(self.op, "decoder").call(**self.arguments)


def npy(value: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.save(out, value)
    return out.getvalue()


def wav(count: int = 800, channels: int = 2) -> bytes:
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setparams((channels, 2, 8_000, 0, "NONE", ""))
        file.writeframes(shorts((count, channels), 0).astype("<i2").tobytes())
    return out.getvalue()


def safetensors() -> bytes:
    from safetensors.numpy import save

    return save({"x": floats((3, 4), 0), "y": shorts((2,), 0)})


def checkpoint() -> bytes:
    import torch

    out = io.BytesIO()
    torch.save({"x": torch.from_numpy(floats((3, 4), 0))}, out)
    return out.getvalue()


DECODERS = (
    DecoderExample(
        op="image", arguments={"normalize": "none", "layout": "hwc"}, source=lambda: encode(photo(), "PNG"), shape=(48, 64, 3), dtype="uint8"
    ),
    DecoderExample(op="image", source=lambda: encode(photo(), "JPEG"), shape=(3, 48, 64), dtype="float32"),
    DecoderExample(op="npy", source=lambda: npy(shorts((3, 4), 0)), shape=(3, 4), dtype="int16"),
    DecoderExample(op="bytes", source=lambda: b"abc", shape=(3,), dtype="uint8"),
    DecoderExample(op="text", source=lambda: b"abc", shape=(3,), dtype="uint8"),
    DecoderExample(op="json", source=lambda: json.dumps({"a": 1}).encode(), shape=(8,), dtype="uint8"),
    DecoderExample(op="array", arguments={"dtype": "float32"}, source=lambda: [[1, 2], [3, 4]], shape=(2, 2), dtype="float32"),
    DecoderExample(op="passthrough", source=lambda: {"a": 1}, shape=None, dtype="object"),
    DecoderExample(op="audio", source=wav, shape=(2, 800), dtype="float32"),
    DecoderExample(op="audio", arguments={"mono": True, "sample_rate": 4_000}, source=wav, shape=(1, 400), dtype="float32"),
    DecoderExample(op="safetensors", arguments={"tensor_key": "x"}, source=safetensors, shape=(3, 4), dtype="float32"),
    DecoderExample(op="pt", arguments={"tensor_key": "x"}, source=checkpoint, shape=(3, 4), dtype="float32"),
)


def registered(examples: Iterable[Any], names: set[str]) -> list[Any]:
    """The examples whose op is declared."""
    return [example for example in examples if example.op in names]
