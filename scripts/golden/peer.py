"""Golden values of dataio-rs, the reference that the ops agree with: tests/golden/peer.npz.

Run it in an environment of its own:

    pip install dataio-rs==0.4.7 numpy
    python scripts/golden/peer.py

It writes what that package makes of small inputs, and the calls themselves, so that the tests make the same ones. Only
settings that leave nothing to chance are here. It needs to run again only when a case is added. The file holds two
arrays, since hundreds of small ones would take more room than what is in them:

* `values`: bytes of all inputs and results, one after the other;
* `index`: JSON text, `{"inputs": {NAME: size}, "cases": {NAME: {...}}}` in the order of `values`. A case is the fields of
  `Case` below, with `dtype` and `shape` of its result. Besides, `"strange"`: values that arguments are given in turn, and
  `"refusals"`: by op, a call that is right, and how each argument takes each of these: OK, or an exception's name.
"""

from __future__ import annotations

import io
import json
import wave
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

TARGET = Path(__file__).resolve().parents[2] / "tests" / "golden" / "peer.npz"
INTERPOLATIONS = ("nearest", "bilinear", "bicubic", "lanczos")
DTYPES = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64")


@dataclass(frozen=True)
class Call:
    """An op by name. An argument may hold Calls, also inside lists; those are ops as well."""

    op: str
    positional: tuple[Any, ...]
    named: dict[str, Any]


@dataclass(frozen=True)
class Case:
    """`decoder` and then `calls` on the input called `input`; `note` tells cases of one op apart."""

    op: str
    note: str
    input: str
    decoder: Call
    calls: tuple[Call, ...]


def call(op: str, *positional: Any, **named: Any) -> Call:
    return Call(op, positional, named)


def on(inputs: str, op: str, note: str = "", *positional: Any, before: tuple[Call, ...] = (), **named: Any) -> Iterator[Case]:
    """One case of a transform for each of the inputs, which are separated by spaces."""
    for name in inputs.split():
        yield Case(op, note, name, call("npy"), (*before, call(op, *positional, **named)))


def decoded(inputs: str, op: str, note: str = "", **named: Any) -> Iterator[Case]:
    """One case of a decoder for each of the inputs."""
    for name in inputs.split():
        yield Case(op, note, name, call(op, **named), ())


def photo(h: int, w: int, c: int, rng: np.random.Generator) -> np.ndarray:
    """uint8[h, w, c]: waves with a little noise, a corner of each extreme."""
    y, x = np.mgrid[:h, :w]
    waves = np.stack([np.sin(x / (3 + k) + k) * np.cos(y / (4 + k)) for k in range(c)], axis=2)
    found = np.clip(127 + 115 * waves + rng.normal(0, 6, (h, w, c)), 0, 255).astype(np.uint8)
    found[:3, :3], found[-3:, -3:] = 0, 255
    return found


def boxes(count: int, rng: np.random.Generator, last: str) -> np.ndarray:
    """float32[count, 4 or 5]: corners; then labels from 1 to 5, or scores without ties."""
    corner = rng.uniform(0, 0.6, (count, 2))
    table = np.concatenate([corner, corner + rng.uniform(0.1, 0.4, (count, 2))], axis=1)
    extra = {"label": rng.integers(1, 6, count), "score": (rng.permutation(count) + 0.5) / count}
    columns = [table] if last == "none" else [table, extra[last][:, None]]
    return np.concatenate(columns, axis=1).astype(np.float32)


def anchors(rng: np.random.Generator) -> list[float]:
    """40 corners, one after the other, exact in float32."""
    corner = rng.uniform(0, 0.6, (40, 2))
    table = np.concatenate([corner, corner + rng.uniform(0.1, 0.4, (40, 2))], axis=1)
    return [float(v) for v in table.astype(np.float32).ravel()]


def npy(array: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def wav(samples: np.ndarray, width: int, rate: int) -> bytes:
    """A WAV file of PCM, from samples[n, channels] that `width` bytes hold."""
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setparams((samples.shape[1], width, rate, 0, "NONE", ""))
        raw = samples.astype("<i4").view(np.uint8).reshape(*samples.shape, 4)[..., :width]
        file.writeframes(raw.tobytes())
    return out.getvalue()


def inputs() -> dict[str, bytes]:
    rng = np.random.default_rng(11)
    images = {f"rgb{h}x{w}": photo(h, w, 3, rng) for h, w in ((19, 24), (24, 15), (1, 7), (9, 1), (1, 1))}
    images |= {"gray": photo(15, 19, 1, rng), "rgba": photo(13, 17, 4, rng), "flat": np.full((6, 7, 3), (9, 120, 250), np.uint8)}
    extremes = [0.0, -0.0, 0.5, -0.5, 1.5, -1.5, 127.9, 128.0, -129.0, 255.9, 256.0, 1e6, -1e6, 3e9, -3e9, 1e20, -1e20]
    arrays = images | {
        "planes": rng.uniform(-2, 2, (3, 12, 18)).astype(np.float32),
        "plane": rng.uniform(-2, 2, (1, 6, 6)).astype(np.float32),
        "floats": np.array([*extremes, np.inf, -np.inf, np.nan], np.float32),
        "doubles": np.array([*extremes, 2.0**53 + 2, np.inf, -np.inf, np.nan]),
        "ints": np.array([0, 1, -1, 127, 128, 255, 256, 65535, 65536, 2**31 - 1, -(2**31), 2**40 + 3], np.int64),
        "counts": rng.integers(-200, 200, (4, 1, 5)).astype(np.int16),
        "boxes": boxes(9, rng, "none"),
        "boxes0": boxes(0, rng, "none"),
        "labels": boxes(9, rng, "label"),
        "labels0": boxes(0, rng, "label"),
        "scores": boxes(60, rng, "score"),
        "scores0": boxes(0, rng, "score"),
        "sound1x2000": rng.uniform(-1, 1, (1, 2000)).astype(np.float32),
        "sound2x900": rng.uniform(-1, 1, (2, 900)).astype(np.float32),
        "sound900": (0.5 * np.sin(np.arange(900) / 7) + rng.normal(0, 0.1, 900)).astype(np.float32),
        "sound1x100": rng.uniform(-1, 1, (1, 100)).astype(np.float32),
    }
    fortran = np.asfortranarray(rng.integers(0, 99, (3, 4)).astype(np.int32))
    files = {
        "fortran": npy(fortran),
        "big_endian": npy(fortran.astype(">i4")),
        "scalar": npy(np.array(2.5)),
        "half": npy(np.arange(6, dtype=np.float16)),
        "wav8": wav(rng.integers(0, 256, (60, 1)), 1, 8000),
        "wav16": wav(rng.integers(-(2**15), 2**15, (60, 2)), 2, 8000),
        "wav24": wav(rng.integers(-(2**23), 2**23, (60, 1)), 3, 8000),
        "wav32": wav(rng.integers(-(2**31), 2**31, (60, 2)), 4, 8000),
        "wav0": wav(np.zeros((0, 2)), 2, 8000),
        "json": b' {"name": "caf\\u00e9", "n": [1, 2.5, null]}\n',
        "json_bom": b'\xef\xbb\xbf{"name": "x"}',
        "text": "naïve — 文".encode(),
        "text_bom": b"\xef\xbb\xbfabc",
        "text_bad": b"ab\xff\xfecd\xe2\x82",
        "empty": b"",
    }
    return {name: npy(array) for name, array in arrays.items()} | files


SOME = "rgb19x24 gray rgba"
SMALL = "rgb1x7 rgb9x1 rgb1x1"
RGB = f"rgb19x24 {SMALL} flat"


def sizes() -> Iterator[Case]:
    for interp in INTERPOLATIONS:
        yield from on(f"{SOME} {SMALL}", "resize", f"{interp}-smaller", h=8, w=11, interp=interp)
        yield from on("rgb19x24 gray rgb1x7", "resize", f"{interp}-larger", h=23, w=33, interp=interp)
        yield from on("rgb19x24", "resize", f"{interp}-same", h=19, w=24, interp=interp)
        yield from on("rgb19x24", "resize", f"{interp}-one", h=1, w=1, interp=interp)
    for op in ("resize_short", "resize_long"):
        yield from on("rgb19x24 rgb24x15 rgb9x1", op, "", size=13)
        yield from on("rgb19x24", op, "bilinear", size=30, interp="bilinear")
    yield from on("rgb19x24 rgb24x15 rgb1x1", "fit_to_bucket", "tall", h=15, w=9)
    yield from on("rgb19x24 rgb24x15", "fit_to_bucket", "wide", h=6, w=17, interp="bilinear")


def windows() -> Iterator[Case]:
    yield from on(f"{SOME} planes rgb1x1", "center_crop", "smaller", h=5, w=8)
    yield from on("rgb19x24 planes rgb9x1", "center_crop", "larger", h=22, w=27)
    yield from on("rgb19x24 rgb24x15", "center_crop", "mixed", h=21, w=9)
    yield from on("rgb19x24 planes", "crop", "", y=2, x=3, h=7, w=11)
    yield from on("rgb19x24 planes", "random_crop", "whole", before=(call("center_crop", h=8, w=9),), h=8, w=9)
    for mode in ("constant", "reflect", "edge"):
        yield from on(f"{SOME} {SMALL} planes", "pad", mode, top=2, bottom=1, left=0, right=4, mode=mode)
        yield from on("rgb24x15 rgb1x7", "pad", f"{mode}-wide", top=50, left=31, right=3, mode=mode, value=7)
    for op in ("hflip", "vflip"):
        for prob in (0.0, 1.0):
            yield from on(f"{SOME} planes rgb1x7", op, f"{prob:g}", prob=prob)
    for note, named in {
        "nothing": {},
        "turn": {"angle_deg": 30.0},
        "back": {"angle_deg": -75.0, "fill": 90},
        "shift": {"tx": 3.0, "ty": -2.0, "fill": 255},
        "half": {"tx": 0.5, "ty": 0.25},
        "large": {"scale": 1.7},
        "small": {"scale": 0.4, "fill": 17},
        "shear": {"shear_deg": 20.0},
        "all": {"angle_deg": 17.0, "tx": -1.5, "ty": 2.25, "scale": 1.2, "shear_deg": -9.0, "fill": 128},
    }.items():
        for interp in ("nearest", "bilinear", "bicubic"):
            yield from on("rgb19x24", "affine", f"{note}-{interp}", **named, interp=interp)
    yield from on(SMALL, "affine", "turn", angle_deg=33.0, fill=5)
    yield from on("rgb19x24", "random_affine", "nothing")
    yield from on("rgb19x24", "random_affine", "scale", scale_range=(1.3, 1.3), fill=9)
    yield from on("rgb19x24", "random_perspective", "never", prob=0.0)
    yield from on("rgb19x24", "random_resized_crop", "whole", h=9, w=9, before=(call("center_crop", h=15, w=15),),
                  scale_lo=1.0, scale_hi=1.0, ratio_lo=1.0, ratio_hi=1.0)  # fmt: skip


def colours() -> Iterator[Case]:
    yield from on(RGB, "color_jitter", "nothing")
    yield from on(RGB, "grayscale", "three")
    yield from on(RGB, "grayscale", "one", num_output_channels=1)
    yield from on("rgb19x24", "grayscale", "never", prob=0.0)
    for op in ("invert", "solarize", "posterize", "equalize"):
        shapes = "rgb19x24 flat" if op == "equalize" else f"{SOME} {SMALL}"
        yield from on(shapes, op)
        yield from on("rgb19x24", op, "never", prob=0.0)
    for threshold in (0, 1, 200, 255):
        yield from on("rgb19x24", "solarize", f"{threshold}", threshold=threshold)
    for bits in (1, 7, 8):
        yield from on("rgb19x24", "posterize", f"{bits}", bits=bits)
    for side, sigma in ((1, 1.0), (3, 0.5), (5, 1.0), (9, 3.0), (21, 4.0)):
        yield from on("rgb19x24 gray rgb1x7", "gaussian_blur", f"{side}-{sigma:g}", kernel_size=side, sigma_lo=sigma, sigma_hi=sigma)
    for radius in (1, 2, 4):
        yield from on(RGB, "median_blur", f"{radius}", radius=radius)
    for sigma, amount in ((1.0, 1.0), (0.4, 2.5), (2.5, -0.7)):
        yield from on(RGB, "sharpen", f"{sigma:g}-{amount:g}", sigma=sigma, amount=amount)
    yield from on("rgb19x24 flat", "canny", "", low=30.0, high=90.0)
    yield from on("rgb19x24", "random_erasing", "never", prob=0.0)
    yield from on("rgb19x24", "grid_mask", "never", prob=0.0)
    yield from on("rgb19x24 flat", "grid_mask", "whole", d_min=5, d_max=9, ratio=1.0)
    yield from on("planes", "gaussian_noise", "nothing", std=0.0)


def tensors() -> Iterator[Case]:
    mean, std = [0.4, 0.5, 0.6], [0.2, 0.3, 0.4]
    yield from on(f"{SOME} rgb1x1", "pack_chw_f32", "", scale=0.3, bias=-1.5)
    yield from on(f"{SOME} rgb1x1", "unit_chw")
    yield from on(f"{SOME} rgb1x1", "symmetric_chw")
    yield from on("rgb19x24 flat", "normalize_chw_from_hwc_u8", "", mean=mean, std=std)
    yield from on("rgb19x24 flat", "normalize_chw_from_hwc_u8", "unit", mean=mean, std=std, base="unit")
    yield from on("planes", "normalize", "", mean=mean, std=std)
    yield from on("plane", "normalize", "", mean=[0.5], std=[0.25])
    for dtype in DTYPES:
        yield from on("floats doubles ints", "cast", dtype, dtype=dtype)
    yield from on("rgb19x24 planes", "permute", "", axes=[2, 0, 1])
    yield from on("counts", "permute", "", axes=[1, 2, 0])
    yield from on("counts floats", "reshape", "", shape=[5, -1])
    yield from on("counts scalar", "flatten")
    yield from on("counts", "flatten", "some", start_axis=-2, end_axis=2)
    yield from on("counts", "squeeze")
    yield from on("counts", "squeeze", "axis", axis=-2)
    for axis in (-4, 0, 3):
        yield from on("counts", "unsqueeze", f"{axis}", axis=axis)
    yield from on("counts", "pad_axis", "high", axis=0, target=6, value=1e9)
    yield from on("counts", "pad_axis", "fraction", axis=-1, target=7, value=-2.7)
    yield from on("counts planes", "pad_axis", "shorter", axis=2, target=2)
    yield from on("planes", "pad_axis", "", axis=1, target=13, value=0.25)
    yield from on("planes plane", "patchify", "", patch_size=3)


def conditionals() -> Iterator[Case]:
    invert, solarize = call("invert"), call("solarize")
    yield from on("rgb19x24", "sometimes", "always", invert, prob=1.0)
    yield from on("rgb19x24", "sometimes", "never", [invert, solarize], prob=0.0)
    yield from on("rgb19x24", "choice", "second", [invert, [solarize, invert]], weights=[0.0, 2.0])
    yield from on("rgb19x24", "some_of", "all", 2, [solarize, [invert, call("posterize", bits=2)]])


def box_ops() -> Iterator[Case]:
    rng = np.random.default_rng(12)
    for form in ("xyxy", "xywh"):
        for op in ("bbox_hflip", "bbox_vflip"):
            for prob in (0.0, 1.0):
                yield from on("boxes boxes0", op, f"{form}-{prob:g}", prob=prob, format=form)
        yield from on("boxes boxes0", "bbox_pad", form, src_h=30, src_w=41, top=3, bottom=1, left=7, right=2, format=form)
        yield from on("scores scores0", "nms", form, box_format=form)
        yield from on("scores scores0", "soft_nms", form, box_format=form)
    for note, window in {"inside": (0.2, 0.1, 0.7, 0.9), "beyond": (-0.2, 0.4, 0.5, 1.3), "all": (0, 0, 1, 1)}.items():
        yield from on("labels labels0", "bbox_crop", note, window=tuple(map(float, window)))
    yield from on("labels labels0", "random_bbox_crop", "none", thresholds=[None])
    table = anchors(rng)
    yield from on("labels labels0", "box_encoder", "", table)
    yield from on("labels", "box_encoder", "strict", table, iou_threshold=0.7, scale=(1.0, 2.0, 3.0, 4.0))
    for note, named in {
        "loose": {"iou_thresh": 0.8},
        "strict": {"iou_thresh": 0.1, "score_thresh": 0.3},
        "few": {"iou_thresh": 0.6, "top_k": 4},
    }.items():
        yield from on("scores", "nms", note, **named)
        yield from on("scores", "soft_nms", note, **named)
    yield from on("scores", "soft_nms", "sharp", sigma=0.1, score_thresh=0.05)


def sounds() -> Iterator[Case]:
    yield from on("sound1x2000 sound2x900 sound900 sound1x100", "spectrogram")
    for window in ("hann", "hamming", "rect"):
        yield from on("sound1x2000", "spectrogram", window, n_fft=256, hop_length=101, window=window, power=1.0)
    yield from on("sound900", "spectrogram", "odd", n_fft=75, hop_length=75)
    spectrogram = (call("spectrogram", n_fft=256, hop_length=100),)
    yield from on("sound1x2000 sound2x900", "mel_filterbank", "", before=spectrogram, n_mels=20, sample_rate=16_000)
    yield from on("sound1x2000", "mel_filterbank", "odd", before=(call("spectrogram", n_fft=75, hop_length=40),), n_mels=6, sample_rate=16_000)
    yield from on("sound1x2000", "mel_filterbank", "part", before=spectrogram, n_mels=12, sample_rate=16_000, f_min=200.0, f_max=5000.0)
    for log_base in ("db", "natural"):
        yield from on("sound1x2000 sound2x900 sound900 sound1x100", "mfcc", log_base, sample_rate=16_000, log_base=log_base)
    yield from on("sound1x2000", "mfcc", "small", n_mfcc=5, n_mels=8, sample_rate=8_000, n_fft=128, hop_length=50, window="rect")


def files() -> Iterator[Case]:
    yield from decoded("fortran big_endian scalar half", "npy")
    yield from decoded("wav8 wav16 wav24 wav32 wav0", "audio")
    yield from decoded("wav16 wav32", "audio", "mono", mono=True)
    yield from decoded("wav16", "audio", "up", sample_rate=12_000)
    yield from decoded("wav16", "audio", "stretched", sample_rate=11_025)
    yield from decoded("wav16", "audio", "down-mono", sample_rate=4_000, mono=True)
    yield from decoded("json json_bom", "json")
    yield from decoded("json", "json", "bom", strip_bom=False)
    yield from decoded("json", "json", "field", field="name")
    yield from decoded("text text_bom", "text")
    yield from decoded("text_bom", "text", "bom", strip_bom=False)
    yield from decoded("text_bad", "text", "lossy", encoding="utf-8-lossy")
    yield from decoded("text empty", "bytes")


def cases() -> dict[str, Case]:
    found: dict[str, Case] = {}
    for part in (sizes, windows, colours, tensors, conditionals, box_ops, sounds, files):
        for case in part():
            name = "-".join(filter(None, (case.op, case.note, case.input)))
            assert name not in found, name
            found[name] = case
    return found


STRANGE: dict[str, Any] = {
    "true": True,
    "none": None,
    "text": "no such",
    "negative": -1,
    "zero": 0,
    "one": 1,
    "large": 10**9,
    "huge": 2**70,
    "fraction": 1.5,
    "negative fraction": -0.5,
    "whole": 3.0,
    "nan": float("nan"),
    "infinite": float("inf"),
    "empty": [],
    "single": [1.0],
    "negatives": [-1, -1],
    "eight": [0.5] * 8,
    "truths": [True, False, True],
    "twice": [0, 0, 1],
    "nans": [float("nan")] * 3,
    "texts": ["a", "b", "c"],
    "pair": (1.0, 2.0),
    "falling pair": (2.0, 1.0),
    "negative pair": (-1.0, 1.0),
    "triple": (1.0, 1.0, 1.0),
    "quadruple": (0.5, 0.5, 0.5, 0.5),
}
"""Lists and tuples differ for some arguments of dataio-rs, never for ours."""


def right_calls() -> Iterator[Call]:
    """One call of each op with all of its arguments."""
    invert, boxed, mean = call("invert"), {"format": "xyxy"}, [0.5, 0.5, 0.5]
    for op in ("hflip", "vflip", "invert", "equalize"):
        yield call(op, prob=0.5)
    for op in ("fit_to_bucket", "center_crop", "random_crop"):
        yield call(op, h=4, w=5)
    yield call("resize", h=4, w=5, interp="nearest")
    yield call("resize_short", size=5, interp="bicubic")
    yield call("resize_long", size=5, interp="bicubic")
    yield call("crop", y=0, x=1, h=4, w=5)
    yield call("random_resized_crop", h=4, w=5, scale_lo=0.1, scale_hi=0.5, ratio_lo=0.5, ratio_hi=2.0, interp="bicubic")
    yield call("pad", top=1, bottom=1, left=1, right=1, mode="constant", value=0)
    yield call("affine", angle_deg=1.0, tx=1.0, ty=1.0, scale=1.0, shear_deg=1.0, fill=0, interp="bilinear")
    yield call("random_affine", degrees=1.0, translate=(0.1, 0.1), scale_range=(0.5, 1.0), shear_deg=1.0, fill=0)
    yield call("random_perspective", distortion=0.5, prob=0.5, fill=0)
    yield call("color_jitter", brightness=0.5, contrast=0.5, saturation=0.5, hue=0.1)
    yield call("grayscale", num_output_channels=3, prob=0.5)
    yield call("solarize", threshold=5, prob=0.5)
    yield call("posterize", bits=4, prob=0.5)
    yield call("gaussian_blur", kernel_size=5, sigma_lo=0.5, sigma_hi=1.0)
    yield call("median_blur", radius=1)
    yield call("sharpen", sigma=1.0, amount=1.0)
    yield call("canny", low=1.0, high=5.0)
    yield call("random_erasing", prob=0.5, scale=(0.1, 0.2), ratio=(0.5, 2.0), value=0)
    yield call("grid_mask", d_min=5, d_max=9, ratio=0.5, rotate_deg=1.0, prob=0.5)
    yield call("gaussian_noise", std=0.5)
    yield call("rand_augment", n=2, m=9)
    yield call("auto_augment", policy="imagenet")
    yield call("pack_chw_f32", scale=1.0, bias=0.0)
    yield call("normalize", mean=mean, std=mean)
    yield call("normalize_chw_from_hwc_u8", mean=mean, std=mean, base="unit")
    yield call("cast", dtype="float32")
    yield call("permute", axes=[2, 0, 1])
    yield call("reshape", shape=[-1, 3])
    yield call("flatten", start_axis=0, end_axis=-1)
    yield call("squeeze", axis=0)
    yield call("unsqueeze", axis=0)
    yield call("pad_axis", axis=0, target=5, value=0.0)
    yield call("patchify", patch_size=2)
    yield call("bbox_hflip", prob=0.5, **boxed)
    yield call("bbox_vflip", prob=0.5, **boxed)
    yield call("bbox_pad", src_h=5, src_w=5, top=0, bottom=0, left=0, right=0, **boxed)
    yield call("bbox_crop", window=(0.1, 0.1, 0.5, 0.5), **boxed)
    yield call("random_bbox_crop", thresholds=[0.1, None], aspect_ratio=(0.5, 2.0), scale=(0.3, 1.0), max_attempts=5)
    yield call("box_encoder", [0.1, 0.1, 0.5, 0.5], iou_threshold=0.5, scale=(1.0, 1.0, 1.0, 1.0))
    yield call("nms", iou_thresh=0.5, score_thresh=0.05, top_k=5, box_format="xyxy")
    yield call("soft_nms", iou_thresh=0.5, sigma=0.5, score_thresh=0.05, top_k=5, box_format="xyxy")
    yield call("spectrogram", n_fft=64, hop_length=32, window="hann", power=2.0)
    yield call("mel_filterbank", n_mels=8, sample_rate=8000, f_min=0.0, f_max=0.0)
    yield call("mfcc", n_mfcc=5, n_mels=8, sample_rate=8000, f_min=0.0, f_max=0.0, n_fft=64, hop_length=32, window="hann", log_base="db")
    yield call("sometimes", invert, prob=0.5)
    yield call("choice", [invert, invert], weights=[1.0, 2.0])
    yield call("some_of", 1, [invert, invert])


def right_decoders() -> Iterator[Call]:
    yield call("image", mode="rgb", normalize="unit", layout="chw", allow_alpha=False, max_pixels=9, max_decoded_bytes=9, max_width=0, max_height=0, fill_color=(1, 2, 3))  # fmt: skip
    yield call("audio", sample_rate=8000, mono=True, max_decoded_bytes=0)
    yield call("json", field="a", encoding="utf-8", strip_bom=True, as_object=False)
    yield call("text", encoding="utf-8", strip_bom=True, as_object=False)
    yield call("safetensors", tensor_key="a")
    yield call("pt", tensor_key="a")
    yield call("passthrough", field="a")


def with_argument(right: Call, name: str, value: Any) -> Call:
    """The call with another value for one argument, which is named by its place if it has no name."""
    if name in right.named:
        return Call(right.op, right.positional, {**right.named, name: value})
    place = int(name)
    return Call(right.op, (*right.positional[:place], value, *right.positional[place + 1 :]), right.named)


def outcome(one: Call, namespace: Any) -> str:
    try:
        made(one, namespace)
    except Exception as error:
        return type(error).__name__
    return "OK"


def refusals(calls: Iterator[Call], namespace: Any) -> dict[str, Any]:
    """By op: the right call, its namespace, and by argument what comes of each strange value."""
    found: dict[str, Any] = {}
    for right in calls:
        assert outcome(right, namespace) == "OK", right
        names = [*map(str, range(len(right.positional))), *right.named]
        outcomes = {n: {what: outcome(with_argument(right, n, v), namespace) for what, v in STRANGE.items()} for n in names}
        found[right.op] = {"call": asdict(right), "namespace": namespace.__name__.split(".")[-1], "outcomes": outcomes}
    return found


def made(value: Any, transforms: Any) -> Any:
    """A Call as the op it names, also inside lists."""
    if isinstance(value, Call):
        return getattr(transforms, value.op)(*made(value.positional, transforms), **made(value.named, transforms))
    if isinstance(value, (list, tuple)):
        return type(value)(made(v, transforms) for v in value)
    return {k: made(v, transforms) for k, v in value.items()} if isinstance(value, dict) else value


def result(case: Case, data: bytes) -> np.ndarray:
    """What a pipeline gives for one record."""
    import dataio

    chain = dataio.slot("x").decode(made(case.decoder, dataio.decoders))
    for one in case.calls:
        chain = chain.apply(made(one, dataio.transforms))
    (batch,) = dataio.pipeline(chain, dataio.batch(1)).bind([{"x": data}]).run("numpy", on_failure="strict")
    return np.array(batch["x"][0])


def main() -> None:
    from dataio import decoders, transforms

    given, called = inputs(), cases()
    values = list(given.values())
    index: dict[str, Any] = {"inputs": {name: len(data) for name, data in given.items()}, "cases": {}}
    for name, case in called.items():
        value = result(case, given[case.input])
        values.append(value.tobytes())
        index["cases"][name] = {**asdict(case), "dtype": value.dtype.name, "shape": value.shape}
    index["strange"] = STRANGE
    index["refusals"] = {**refusals(right_calls(), transforms), **refusals(right_decoders(), decoders)}
    packed = {"values": b"".join(values), "index": json.dumps(index).encode()}
    np.savez_compressed(TARGET, **{name: np.frombuffer(data, np.uint8) for name, data in packed.items()})  # type: ignore[arg-type]
    print(f"{TARGET}: {len(called)} cases, {TARGET.stat().st_size} bytes")


if __name__ == "__main__":
    main()
