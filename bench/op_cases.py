"""The cases of `bench/ops.py`: one op each, in the DSL that dataio and dataio-rs share, and the data it runs on.

NumPy and the standard library only: the runner of every peer imports this.
"""

from __future__ import annotations

import io
import json
import struct
import wave
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, TypeAlias

import numpy as np

RECORDS = 64
"""Different values per input; more than any cache holds, so that no peer reads warm rows."""
BATCH = 32
RATE = 16_000
"""Samples a second of the audio inputs."""

Build: TypeAlias = Callable[[Any, int], Any]
"""`build(transforms, edge)`: one transform, or a list, by the factories of either package."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """What a record holds: `make(rng)` gives the array; `edge` is the size that cases scale their arguments by."""

    make: Callable[[np.random.Generator], np.ndarray]
    edge: int = 0
    layout: Literal["HWC", "CHW"] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One op with its arguments.

    Attributes:
        op: the registered name; `variant` tells cases of one op apart.
        build: the transform under test.
        inputs: names in INPUTS.
        before: transforms in front of it, which the baseline has too.
        hot: compared with the target for ops that most pipelines use.
        decoder: for decoders: `decoder(decoders)` in place of npy, on `encode(array)` in place of an .npy file.
    """

    op: str
    variant: str = ""
    build: Build | None = None
    inputs: tuple[str, ...]
    before: Build | None = None
    hot: bool = False
    decoder: Callable[[Any], Any] | None = None
    encode: Callable[[np.ndarray], bytes] | None = None

    @property
    def name(self) -> str:
        return f"{self.op} {self.variant}".strip()

    def transforms(self, factories: Any, edge: int, *, baseline: bool = False) -> list[Any]:
        """The transforms of the pipeline; the baseline leaves out what is measured."""
        builds = [self.before] if baseline else [self.before, self.build]
        found: list[Any] = []
        for build in builds:
            if build is not None:
                made = build(factories, edge)
                found += made if isinstance(made, list) else [made]
        return found


def photo(edge: int) -> Callable[[np.random.Generator], np.ndarray]:
    """uint8[edge, edge, 3]: smooth shapes with a little noise."""

    def make(rng: np.random.Generator) -> np.ndarray:
        y, x = np.mgrid[0:edge, 0:edge].astype(np.float32)
        waves = [np.sin(x / rng.uniform(9, 60) + y / rng.uniform(9, 60) + rng.uniform(0, 6)) for _ in range(3)]
        noise = rng.standard_normal((edge, edge, 3), dtype=np.float32)
        return np.clip(np.stack(waves, axis=2) * 110 + 128 + 3 * noise, 0, 255).astype(np.uint8)

    return make


def planes(edge: int) -> Callable[[np.random.Generator], np.ndarray]:
    """float32[3, edge, edge] in [0, 1]."""
    return lambda rng: rng.random((3, edge, edge), dtype=np.float32)


def sound(seconds: int) -> Callable[[np.random.Generator], np.ndarray]:
    """float32[1, seconds * RATE] in [-1, 1]."""
    return lambda rng: rng.uniform(-1, 1, (1, seconds * RATE)).astype(np.float32)


def boxes(count: int, last: Literal["none", "label", "score"] = "none") -> Callable[[np.random.Generator], np.ndarray]:
    """float32[count, 4 or 5]: corners in [0, 1], then a label from 1 to 20 or a score in [0, 1]."""

    def make(rng: np.random.Generator) -> np.ndarray:
        corner, size = rng.uniform(0, 0.8, (count, 2)), rng.uniform(0.05, 0.2, (count, 2))
        columns = [corner, corner + size]
        if last != "none":
            columns.append(rng.random((count, 1)) if last == "score" else rng.integers(1, 21, (count, 1)))
        return np.concatenate(columns, axis=1).astype(np.float32)

    return make


INPUTS = {
    "image224": Input(make=photo(224), edge=224, layout="HWC"),
    "image512": Input(make=photo(512), edge=512, layout="HWC"),
    "planes224": Input(make=planes(224), edge=224, layout="CHW"),
    "planes512": Input(make=planes(512), edge=512, layout="CHW"),
    "audio1s": Input(make=sound(1), edge=RATE),
    "audio10s": Input(make=sound(10), edge=10 * RATE),
    "boxes100": Input(make=boxes(100), edge=100),
    "labels100": Input(make=boxes(100, "label"), edge=100),
    "scores100": Input(make=boxes(100, "score"), edge=100),
    "scores1000": Input(make=boxes(1000, "score"), edge=1000),
}

IMAGES = ("image224", "image512")
PLANES = ("planes224", "planes512")
AUDIO = ("audio1s", "audio10s")
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def target(edge: int) -> int:
    """What images are resized and cropped to: 512 to 224, 224 to 112."""
    return 224 if edge == 512 else edge // 2


def image(op: str, build: Build, variant: str = "", hot: bool = False, inputs: tuple[str, ...] = IMAGES) -> Case:
    return Case(op=op, variant=variant, build=build, inputs=inputs, hot=hot)


def anchors() -> list[float]:
    """8x8 places of three sizes, as corners."""
    centers = [((x + 0.5) / 8, (y + 0.5) / 8) for y in range(8) for x in range(8)]
    return [v for x, y in centers for s in (0.05, 0.1, 0.2) for v in (x - s, y - s, x + s, y + s)]


def wav(sound: np.ndarray) -> bytes:
    """The samples as 16-bit PCM."""
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setparams((len(sound), 2, RATE, 0, "NONE", ""))
        file.writeframes((sound.T * 32767).astype("<i2").tobytes())
    return out.getvalue()


def safetensors(array: np.ndarray) -> bytes:
    """One float32 tensor "x"."""
    head = json.dumps({"x": {"dtype": "F32", "shape": array.shape, "data_offsets": [0, array.nbytes]}}).encode()
    head += b" " * (-len(head) % 8)
    return struct.pack("<Q", len(head)) + head + array.tobytes()


def checkpoint(array: np.ndarray) -> bytes:
    """The tensor "x" in a torch checkpoint."""
    import torch

    out = io.BytesIO()
    torch.save({"x": torch.from_numpy(array)}, out)
    return out.getvalue()


def npy(array: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


CASES = (
    image("resize", lambda t, n: t.resize(h=target(n), w=target(n), interp="bicubic"), "bicubic", hot=True),
    image("resize", lambda t, n: t.resize(h=target(n), w=target(n), interp="bilinear"), "bilinear", hot=True),
    image("resize", lambda t, n: t.resize(h=target(n), w=target(n), interp="nearest"), "nearest"),
    image("resize", lambda t, n: t.resize(h=target(n), w=target(n), interp="lanczos"), "lanczos"),
    image("resize", lambda t, n: t.resize(h=n * 5 // 4, w=n * 5 // 4, interp="bicubic"), "larger", hot=True),
    image("resize_short", lambda t, n: t.resize_short(size=target(n)), hot=True),
    image("resize_long", lambda t, n: t.resize_long(size=target(n))),
    image("fit_to_bucket", lambda t, n: t.fit_to_bucket(h=target(n), w=target(n) * 3 // 4), hot=True),
    image("crop", lambda t, n: t.crop(y=7, x=9, h=target(n), w=target(n)), hot=True),
    image("center_crop", lambda t, n: t.center_crop(h=target(n), w=target(n)), hot=True),
    image("random_crop", lambda t, n: t.random_crop(h=target(n), w=target(n)), hot=True),
    image(
        "random_resized_crop",
        lambda t, n: t.random_resized_crop(
            h=target(n), w=target(n), scale_lo=0.5, scale_hi=0.5, ratio_lo=1.0, ratio_hi=1.0
        ),
        hot=True,
    ),
    image("hflip", lambda t, n: t.hflip(prob=1.0), hot=True),
    image("vflip", lambda t, n: t.vflip(prob=1.0), hot=True),
    *(
        image("pad", lambda t, n, mode=mode: t.pad(top=16, bottom=16, left=16, right=16, mode=mode), mode, hot=True)
        for mode in ("constant", "reflect", "edge")
    ),
    image("affine", lambda t, n: t.affine(angle_deg=15.0, tx=3.0, scale=1.1, shear_deg=5.0), hot=True),
    image("affine", lambda t, n: t.affine(angle_deg=15.0, interp="nearest"), "nearest"),
    image("affine", lambda t, n: t.affine(angle_deg=15.0, interp="bicubic"), "bicubic"),
    image(
        "random_affine",
        lambda t, n: t.random_affine(degrees=15.0, translate=(0.1, 0.1), scale_range=(0.9, 1.1), shear_deg=5.0),
        hot=True,
    ),
    image("random_perspective", lambda t, n: t.random_perspective(distortion=0.5, prob=1.0)),
    image("color_jitter", lambda t, n: t.color_jitter(brightness=0.4, contrast=0.4), "b, c", hot=True),
    image(
        "color_jitter",
        lambda t, n: t.color_jitter(brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1),
        "b, c, s, h",
        hot=True,
    ),
    image("grayscale", lambda t, n: t.grayscale()),
    image("invert", lambda t, n: t.invert()),
    image("solarize", lambda t, n: t.solarize()),
    image("posterize", lambda t, n: t.posterize()),
    image("equalize", lambda t, n: t.equalize()),
    image("gaussian_blur", lambda t, n: t.gaussian_blur(kernel_size=5, sigma_lo=1.0, sigma_hi=1.0), "5", hot=True),
    image("gaussian_blur", lambda t, n: t.gaussian_blur(kernel_size=23, sigma_lo=2.0, sigma_hi=2.0), "23", hot=True),
    image("median_blur", lambda t, n: t.median_blur()),
    image("sharpen", lambda t, n: t.sharpen()),
    image("canny", lambda t, n: t.canny(low=50, high=150)),
    image("random_erasing", lambda t, n: t.random_erasing(prob=1.0)),
    image("grid_mask", lambda t, n: t.grid_mask()),
    image("grid_mask", lambda t, n: t.grid_mask(rotate_deg=45.0), "turned"),
    image("rand_augment", lambda t, n: t.rand_augment()),
    image("trivial_augment_wide", lambda t, n: t.trivial_augment_wide()),
    image("auto_augment", lambda t, n: t.auto_augment()),
    image("unit_chw", lambda t, n: t.unit_chw(), hot=True),
    image("symmetric_chw", lambda t, n: t.symmetric_chw(), hot=True),
    image("pack_chw_f32", lambda t, n: t.pack_chw_f32(scale=2.0, bias=1.0)),
    image(
        "normalize_chw_from_hwc_u8",
        lambda t, n: t.normalize_chw_from_hwc_u8(mean=list(MEAN), std=list(STD), base="unit"),
        hot=True,
    ),
    image("normalize", lambda t, n: t.normalize(mean=list(MEAN), std=list(STD)), hot=True, inputs=PLANES),
    image("cast", lambda t, n: t.cast(dtype="float32"), "u8 to f32"),
    image("cast", lambda t, n: t.cast(dtype="uint8"), "f32 to u8", inputs=PLANES),
    image("permute", lambda t, n: t.permute(axes=[2, 0, 1]), "HWC to CHW"),
    image("permute", lambda t, n: t.permute(axes=[1, 2, 0]), "CHW to HWC", inputs=PLANES),
    image("reshape", lambda t, n: t.reshape(shape=[-1, 3])),
    image("flatten", lambda t, n: t.flatten()),
    image("mean", lambda t, n: t.mean()),
    image("std", lambda t, n: t.std()),
    image("shape", lambda t, n: t.shape()),
    image("sharpness", lambda t, n: t.sharpness()),
    image("squeeze", lambda t, n: t.squeeze(), inputs=AUDIO),
    image("unsqueeze", lambda t, n: t.unsqueeze(axis=0)),
    image("patchify", lambda t, n: t.patchify(patch_size=16), "f32", hot=True, inputs=PLANES),
    Case(
        op="patchify",
        variant="u8",
        build=lambda t, n: t.patchify(patch_size=16),
        before=lambda t, n: t.permute(axes=[2, 0, 1]),
        inputs=IMAGES,
        hot=True,
    ),
    image("pad_axis", lambda t, n: t.pad_axis(axis=1, target=n * 5 // 4), inputs=AUDIO),
    image("gaussian_noise", lambda t, n: t.gaussian_noise(std=0.1), inputs=PLANES),
    image("sometimes", lambda t, n: t.sometimes(t.invert(), prob=1.0)),
    image("choice", lambda t, n: t.choice([t.invert(), t.posterize()], weights=[1.0, 0.0])),
    image("some_of", lambda t, n: t.some_of(1, [t.invert(), t.invert()])),
    image("bbox_hflip", lambda t, n: t.bbox_hflip(prob=1.0), inputs=("boxes100",)),
    image("bbox_vflip", lambda t, n: t.bbox_vflip(prob=1.0), inputs=("boxes100",)),
    image("bbox_pad", lambda t, n: t.bbox_pad(src_h=200, src_w=300, top=20, left=10), inputs=("boxes100",)),
    image("bbox_crop", lambda t, n: t.bbox_crop(window=(0.2, 0.2, 0.8, 0.8)), inputs=("labels100",)),
    image("random_bbox_crop", lambda t, n: t.random_bbox_crop(), inputs=("labels100",)),
    image("box_encoder", lambda t, n: t.box_encoder(anchors()), inputs=("labels100",)),
    image("nms", lambda t, n: t.nms(), inputs=("scores100", "scores1000")),
    image("soft_nms", lambda t, n: t.soft_nms(), inputs=("scores100", "scores1000")),
    image("spectrogram", lambda t, n: t.spectrogram(), hot=True, inputs=AUDIO),
    Case(
        op="mel_filterbank",
        build=lambda t, n: t.mel_filterbank(n_mels=80, sample_rate=RATE),
        before=lambda t, n: t.spectrogram(),
        inputs=AUDIO,
    ),
    image("mfcc", lambda t, n: t.mfcc(sample_rate=RATE), inputs=AUDIO),
    Case(op="audio", decoder=lambda d: d.audio(), encode=wav, inputs=AUDIO),
    Case(op="audio", variant="resampled", decoder=lambda d: d.audio(sample_rate=22_050), encode=wav, inputs=AUDIO),
    Case(op="safetensors", decoder=lambda d: d.safetensors(tensor_key="x"), encode=safetensors, inputs=PLANES),
    Case(op="pt", decoder=lambda d: d.pt(tensor_key="x"), encode=checkpoint, inputs=PLANES),
)
BY_NAME = {case.name: case for case in CASES}


@cache
def arrays(input_name: str, count: int = RECORDS) -> tuple[np.ndarray, ...]:
    """Different values, the same in every process."""
    rng = np.random.default_rng(0)
    return tuple(INPUTS[input_name].make(rng) for _ in range(count))


def files(case: Case, input_name: str) -> list[bytes]:
    """The records' values, as the case's decoder wants them."""
    return [(case.encode or npy)(array) for array in arrays(input_name)]
