"""What Pillow, OpenCV, torch and SoundFile do in place of our ops, where they have the same work.

`REFERENCES[case name]` maps a library's name to `prepare(array, edge)`, which returns the call to time. Conversions to a
library's own type happen in `prepare`. Where a library rounds differently or filters a little less, the work is still of
the same kind; what differs in kind (OpenCV's resize does not antialias) is left out.
"""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from op_cases import MEAN, RATE, STD, checkpoint, safetensors, target, wav
from PIL import Image, ImageEnhance, ImageFilter, ImageOps

Call: TypeAlias = Callable[[], Any]
Prepare: TypeAlias = Callable[[np.ndarray, int], Call]


def pillow(work: Callable[[Image.Image, int], Any]) -> Prepare:
    """`work` on a Pillow image that has its pixels already."""

    def prepare(array: np.ndarray, edge: int) -> Call:
        image = Image.fromarray(array)
        return lambda: work(image, edge)

    return prepare


def tensor(work: Callable[[torch.Tensor, int], Any]) -> Prepare:
    """`work` on a torch tensor over the same memory."""

    def prepare(array: np.ndarray, edge: int) -> Call:
        value = torch.from_numpy(array)
        return lambda: work(value, edge)

    return prepare


def picture(work: Callable[[torch.Tensor, int], Any]) -> Prepare:
    """`work` on uint8[1, c, h, w] in channels-last memory, torch's fast form for images."""
    return tensor(lambda value, edge: work(value.permute(2, 0, 1)[None], edge))


def array(work: Callable[[np.ndarray, int], Any]) -> Prepare:
    """`work` on the NumPy array."""
    return lambda value, edge: lambda: work(value, edge)


def into(work: Callable[..., Any], shape: Callable[[np.ndarray], tuple[int, ...]] | None = None) -> Prepare:
    """An OpenCV call with `dst=` ready, as our ops write into a batch row."""

    def prepare(value: np.ndarray, edge: int) -> Call:
        out = np.empty(value.shape if shape is None else shape(value), value.dtype)
        return lambda: work(value, dst=out)

    return prepare


def resize(interp: str, size: Callable[[int], tuple[int, int]]) -> dict[str, Prepare]:
    """Pillow and torch; `size(edge)` is (h, w)."""
    resample = Image.Resampling[interp.upper()]
    found = {"Pillow": pillow(lambda image, n: image.resize(size(n)[::-1], resample))}
    if interp == "nearest":
        found["torch"] = picture(lambda x, n: F.interpolate(x, size(n), mode="nearest-exact"))
        found["OpenCV"] = array(lambda x, n: cv2.resize(x, size(n)[::-1], interpolation=cv2.INTER_NEAREST_EXACT))
    elif interp != "lanczos":
        found["torch"] = picture(lambda x, n: F.interpolate(x, size(n), mode=interp, antialias=True))
    return found


def square(edge: int) -> tuple[int, int]:
    return target(edge), target(edge)


def larger(edge: int) -> tuple[int, int]:
    return edge * 5 // 4, edge * 5 // 4


def window(y: int, x: int) -> dict[str, Prepare]:
    """A copy of a window."""

    def cut(image: Image.Image, n: int) -> Any:
        return image.crop((x, y, x + target(n), y + target(n)))

    def copy(value: np.ndarray, n: int) -> Any:
        return value[y : y + target(n), x : x + target(n)].copy()

    return {"Pillow": pillow(cut), "NumPy": array(copy)}


def drawn_window(value: np.ndarray, n: int) -> Any:
    """A copy of a window at a place that Python's generator draws."""
    y, x = random.randint(0, n - target(n)), random.randint(0, n - target(n))
    return value[y : y + target(n), x : x + target(n)].copy()


def resized_crop(image: Image.Image, n: int) -> Any:
    side = n * 0.5**0.5
    return image.resize(square(n), Image.Resampling.BICUBIC, box=(5, 5, 5 + side, 5 + side))


def torch_resized_crop(x: torch.Tensor, n: int) -> Any:
    side = round(n * 0.5**0.5)
    return F.interpolate(x[:, :, 5 : 5 + side, 5 : 5 + side], square(n), mode="bicubic", antialias=True)


def bordered(border: int) -> Prepare:
    def prepare(value: np.ndarray, edge: int) -> Call:
        out = np.empty((edge + 32, edge + 32, 3), np.uint8)
        return lambda: cv2.copyMakeBorder(value, 16, 16, 16, 16, border, dst=out)

    return prepare


TURN = (0.966, 0.259, -20.0, -0.259, 0.966, 30.0)
"""An inverse map, 15 degrees."""
LEAN = (1.1, 0.1, 3.0, 0.05, 1.05, -4.0, 2e-4, 1e-4)


def warp(flags: int, resample: Image.Resampling) -> dict[str, Prepare]:
    matrix = np.array(TURN).reshape(2, 3)
    return {
        "OpenCV": into(
            lambda x, dst: cv2.warpAffine(x, matrix, x.shape[1::-1], dst=dst, flags=flags | cv2.WARP_INVERSE_MAP)
        ),
        "Pillow": pillow(lambda i, n: i.transform(i.size, Image.Transform.AFFINE, TURN, resample)),
    }


def perspective() -> dict[str, Prepare]:
    matrix = np.array([*LEAN, 1.0]).reshape(3, 3)
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    return {
        "OpenCV": into(lambda x, dst: cv2.warpPerspective(x, matrix, x.shape[1::-1], dst=dst, flags=flags)),
        "Pillow": pillow(
            lambda i, n: i.transform(i.size, Image.Transform.PERSPECTIVE, LEAN, Image.Resampling.BILINEAR)
        ),
    }


def pillow_jitter(image: Image.Image, hue: bool) -> Any:
    image = ImageEnhance.Contrast(ImageEnhance.Brightness(image).enhance(1.2)).enhance(0.9)
    if not hue:
        return image
    image = ImageEnhance.Color(image).enhance(1.2)
    h, s, v = image.convert("HSV").split()
    return Image.merge("HSV", (h.point(lambda x: (x + 20) % 256), s, v)).convert("RGB")


def opencv_jitter(value: np.ndarray, hue: bool) -> Any:
    means = np.array(cv2.mean(value)[:3])
    table = np.clip(np.arange(256)[:, None] * 1.08 + means * 0.1, 0, 255).astype(np.uint8)
    value = cv2.LUT(value, table.reshape(1, 256, 3))
    if not hue:
        return value
    h, s, v = cv2.split(cv2.cvtColor(value, cv2.COLOR_RGB2HSV_FULL))
    h = cv2.LUT(h, np.roll(np.arange(256, dtype=np.uint8), 20))
    return cv2.cvtColor(cv2.merge((h, cv2.convertScaleAbs(s, alpha=1.2), v)), cv2.COLOR_HSV2RGB_FULL)


def opencv_equalize(value: np.ndarray, _: int) -> Any:
    return cv2.merge([cv2.equalizeHist(plane) for plane in cv2.split(value)])


def opencv_sharpen(value: np.ndarray, _: int) -> Any:
    return cv2.addWeighted(value, 2.0, cv2.GaussianBlur(value, (5, 5), 1.0), -1.0, 0.0)


def opencv_canny(value: np.ndarray, _: int) -> Any:
    gray = cv2.GaussianBlur(cv2.cvtColor(value, cv2.COLOR_RGB2GRAY), (0, 0), 1.4)
    return cv2.cvtColor(cv2.Canny(gray, 50, 150, L2gradient=True), cv2.COLOR_GRAY2RGB)


def blur(size: int, sigma: float) -> dict[str, Prepare]:
    def opencv(x: np.ndarray, dst: np.ndarray) -> Any:
        return cv2.GaussianBlur(x, (size, size), sigma, dst=dst, borderType=cv2.BORDER_REPLICATE)

    return {"OpenCV": into(opencv)}


def gray(value: np.ndarray, _: int) -> Any:
    return cv2.cvtColor(cv2.cvtColor(value, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB)


def erase(value: np.ndarray, n: int) -> Any:
    out = value.copy()
    out[10 : 10 + n // 3, 20 : 20 + n // 3] = 0
    return out


def packed(scale: float, bias: float = 0.0) -> dict[str, Prepare]:
    def torch_pack(x: torch.Tensor, _: int) -> Any:
        found = x.permute(2, 0, 1).to(torch.float32, memory_format=torch.contiguous_format).mul_(scale)
        return found.add_(bias) if bias else found

    return {"torch": tensor(torch_pack), "OpenCV": array(lambda x, n: cv2.dnn.blobFromImage(x, scale, mean=[-bias] * 3))}


MEANS, STDS = torch.tensor(MEAN).reshape(3, 1, 1), torch.tensor(STD).reshape(3, 1, 1)


def torch_normalize(x: torch.Tensor, _: int) -> Any:
    planes = x.permute(2, 0, 1).to(torch.float32, memory_format=torch.contiguous_format)
    return planes.div_(255).sub_(MEANS).div_(STDS)


def torch_patches(x: torch.Tensor, n: int) -> Any:
    rows = n // 16
    return x.reshape(3, rows, 16, rows, 16).permute(1, 3, 2, 4, 0).reshape(rows * rows, 768)


def spectrum(x: torch.Tensor) -> torch.Tensor:
    window = torch.hann_window(400)
    return torch.view_as_real(torch.stft(x, 400, 160, window=window, center=False, return_complex=True)).square().sum(-1)


FILTERS = torch.rand(80, 201)
COSINES = torch.rand(13, 40)


def torch_mfcc(x: torch.Tensor, _: int) -> Any:
    return COSINES @ torch.log10(torch.clamp(FILTERS[:40] @ spectrum(x), min=1e-10)).mul_(10)


def opencv_nms(scored: np.ndarray, _: int) -> Call:
    corners, scores = scored[:, :4].astype(np.float64), scored[:, 4].tolist()
    corners[:, 2:] -= corners[:, :2]
    sized = corners.tolist()
    return lambda: cv2.dnn.NMSBoxes(sized, scores, 0.05, 0.5)


def mirrored(boxes: torch.Tensor, _: int) -> Any:
    return torch.stack([1 - boxes[:, 2], boxes[:, 1], 1 - boxes[:, 0], boxes[:, 3]], dim=1)


def soundfile(value: np.ndarray, _: int) -> Call:
    import soundfile as library

    data = wav(value)
    return lambda: library.read(io.BytesIO(data), dtype="float32", always_2d=True)[0].T.copy()


def safetensors_file(value: np.ndarray, _: int) -> Call:
    import safetensors.numpy as library

    data = safetensors(value)
    return lambda: library.load(data)["x"]


def torch_file(value: np.ndarray, _: int) -> Call:
    data = checkpoint(value)
    return lambda: torch.load(io.BytesIO(data), weights_only=True)["x"]


COPY = {"NumPy": array(lambda x, n: x.copy())}

REFERENCES: dict[str, dict[str, Prepare]] = {
    **{f"resize {interp}": resize(interp, square) for interp in ("bicubic", "bilinear", "nearest", "lanczos")},
    "resize larger": resize("bicubic", larger),
    "resize_short": resize("bicubic", square),
    "resize_long": resize("bicubic", square),
    "crop": window(7, 9),
    "center_crop": window(50, 50),
    "random_crop": {"NumPy": array(drawn_window)},
    "random_resized_crop": {"Pillow": pillow(resized_crop), "torch": picture(torch_resized_crop)},
    "hflip": {
        "OpenCV": into(partial(cv2.flip, flipCode=1)),
        "Pillow": pillow(lambda i, n: i.transpose(Image.Transpose.FLIP_LEFT_RIGHT)),
    },
    "vflip": {
        "OpenCV": into(partial(cv2.flip, flipCode=0)),
        "Pillow": pillow(lambda i, n: i.transpose(Image.Transpose.FLIP_TOP_BOTTOM)),
    },
    "pad constant": {
        "OpenCV": bordered(cv2.BORDER_CONSTANT),
        "Pillow": pillow(lambda i, n: ImageOps.expand(i, 16)),
    },
    "pad reflect": {"OpenCV": bordered(cv2.BORDER_REFLECT_101)},
    "pad edge": {"OpenCV": bordered(cv2.BORDER_REPLICATE)},
    "affine": warp(cv2.INTER_LINEAR, Image.Resampling.BILINEAR),
    "affine nearest": warp(cv2.INTER_NEAREST, Image.Resampling.NEAREST),
    "affine bicubic": warp(cv2.INTER_CUBIC, Image.Resampling.BICUBIC),
    "random_affine": warp(cv2.INTER_LINEAR, Image.Resampling.BILINEAR),
    "random_perspective": perspective(),
    "color_jitter b, c": {
        "Pillow": pillow(lambda i, n: pillow_jitter(i, hue=False)),
        "OpenCV": array(lambda x, n: opencv_jitter(x, hue=False)),
    },
    "color_jitter b, c, s, h": {
        "Pillow": pillow(lambda i, n: pillow_jitter(i, hue=True)),
        "OpenCV": array(lambda x, n: opencv_jitter(x, hue=True)),
    },
    "grayscale": {
        "OpenCV": array(gray),
        "Pillow": pillow(lambda i, n: Image.merge("RGB", [i.convert("L")] * 3)),
    },
    "invert": {"OpenCV": into(cv2.bitwise_not), "Pillow": pillow(lambda i, n: ImageOps.invert(i))},
    "solarize": {"Pillow": pillow(lambda i, n: ImageOps.solarize(i))},
    "posterize": {"Pillow": pillow(lambda i, n: ImageOps.posterize(i, 4))},
    "equalize": {"OpenCV": array(opencv_equalize), "Pillow": pillow(lambda i, n: ImageOps.equalize(i))},
    "gaussian_blur 5": blur(5, 1.0),
    "gaussian_blur 23": blur(23, 2.0),
    "median_blur": {
        "OpenCV": into(partial(cv2.medianBlur, ksize=3)),
        "Pillow": pillow(lambda i, n: i.filter(ImageFilter.MedianFilter(3))),
    },
    "sharpen": {
        "OpenCV": array(opencv_sharpen),
        "Pillow": pillow(lambda i, n: i.filter(ImageFilter.UnsharpMask(1, 100, 0))),
    },
    "canny": {"OpenCV": array(opencv_canny)},
    "random_erasing": {"NumPy": array(erase)},
    "unit_chw": packed(1 / 255),
    "symmetric_chw": packed(2 / 255, -1.0),
    "pack_chw_f32": packed(2.0, 1.0),
    "normalize_chw_from_hwc_u8": {"torch": tensor(torch_normalize)},
    "normalize": {"torch": tensor(lambda x, n: (x - MEANS).div_(STDS))},
    "cast u8 to f32": {"torch": tensor(lambda x, n: x.to(torch.float32))},
    "cast f32 to u8": {"torch": tensor(lambda x, n: x.clamp(0, 255).to(torch.uint8))},
    "permute HWC to CHW": {"torch": tensor(lambda x, n: x.permute(2, 0, 1).contiguous())},
    "permute CHW to HWC": {"torch": tensor(lambda x, n: x.permute(1, 2, 0).contiguous())},
    "reshape": COPY,
    "flatten": COPY,
    "squeeze": COPY,
    "unsqueeze": COPY,
    "patchify f32": {"torch": tensor(torch_patches)},
    "patchify u8": {"torch": tensor(torch_patches)},
    "pad_axis": {"torch": tensor(lambda x, n: F.pad(x, (0, n // 4)))},
    "gaussian_noise": {"torch": tensor(lambda x, n: torch.randn_like(x).mul_(0.1).add_(x))},
    "bbox_hflip": {"torch": tensor(mirrored)},
    "nms": {"OpenCV": opencv_nms},
    "spectrogram": {"torch": tensor(lambda x, n: spectrum(x))},
    "mel_filterbank": {"torch": tensor(lambda x, n: FILTERS @ x)},
    "mfcc": {"torch": tensor(torch_mfcc)},
    "audio": {"SoundFile": soundfile},
    "safetensors": {"safetensors": safetensors_file},
    "pt": {"torch": torch_file},
}
assert RATE == 16_000, "spectrum() and FILTERS are made for 400 samples a frame"
