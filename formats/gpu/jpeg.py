"""JPEG decoded on a GPU by nvJPEG, through torchvision; resizing and normalising there, by torch's kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from ...engine.errors import LimitError, OpError
from ..frameworks import import_torch
from ..image.header import read_header
from ..inputs import read_bytes
from .devices import cuda_devices, why_no_cuda

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Crop: TypeAlias = tuple[int, int, int, int]
_MODES = ("rgb", "rgba", "gray")
_INTERP = {"nearest": "nearest-exact", "linear": "bilinear", "cubic": "bicubic", "area": "area"}
_BASES = ("unit", "symmetric")
MAX_PIXELS = 134217728
"""Pixels of one image unless said otherwise, as for `decoders.image`."""


def cuda_kernels_available() -> bool:
    """Whether images are resized and normalised on a GPU: the kernels are torch's, so a CUDA device that torch can use is enough."""
    return cuda_devices() > 0


def nvjpeg_available() -> bool:
    """Whether JPEGs are decoded on a GPU. Never raises."""
    return why_no_nvjpeg() is None


def why_no_nvjpeg() -> str | None:
    """Why `nvjpeg_available` is False, in words; None when it is True."""
    if not cuda_devices():
        return f"nvJPEG needs a CUDA device: {why_no_cuda()}"
    try:
        import torch
        import torchvision.io  # noqa: F401

        if not hasattr(torch.ops.image, "decode_jpegs_cuda"):
            return "this torchvision was built without nvJPEG"
    except Exception as error:  # a torchvision of another torch fails in many ways
        return f"nvJPEG is used through torchvision, which does not load: {error}"
    return None


def nvjpeg_decode_batch_device(
    payloads: Sequence[Any], *, mode: str = "rgb", max_pixels: int | None = None
) -> tuple[list[torch.Tensor | None], list[str]]:
    """Decode JPEGs on the current CUDA device.

    Args:
        payloads: encoded images, bytes-like (or what `read_image` takes).
        mode: "rgb", "rgba" (opaque) or "gray".
        max_pixels: that one image may have; None for `MAX_PIXELS`, 0 for no limit.

    Returns:
        For each uint8[h, w, c] on the device, None where it failed, and the messages of those, in order. Without nvJPEG all fail.

    Raises:
        ValueError: another mode.
    """
    images, errors = _decode(payloads, mode, max_pixels)
    return [None if image is None else image.permute(1, 2, 0).contiguous() for image in images], errors


def nvjpeg_decode_resize_batch_device(
    payloads: Sequence[Any],
    target_h: int,
    target_w: int,
    *,
    mode: str = "rgb",
    interp: str = "linear",
    max_pixels: int | None = None,
) -> tuple[list[torch.Tensor | None], list[str]]:
    """As `nvjpeg_decode_batch_device`, each resized to uint8[target_h, target_w, c].

    Args:
        interp: "nearest", "linear", "cubic" (both with antialiasing, as `transforms.resize`) or "area".

    Raises:
        ValueError: another mode or interp, a size below 1.
    """
    _check_target(target_h, target_w, interp)
    images, errors = _decode(payloads, mode, max_pixels)
    resized = [None if image is None else resize(image, target_h, target_w, interp) for image in images]
    return [None if image is None else image.permute(1, 2, 0).contiguous() for image in resized], errors


def nvjpeg_decode_resize_normalize_chw_batch_device(
    payloads: Sequence[Any],
    target_h: int,
    target_w: int,
    *,
    mean: Sequence[float],
    std: Sequence[float],
    mode: str = "rgb",
    interp: str = "linear",
    base: str = "unit",
    crops: Sequence[Crop | None] | None = None,
    hflips: Sequence[bool] | None = None,
    max_pixels: int | None = None,
) -> tuple[list[torch.Tensor | None], list[str]]:
    """As `nvjpeg_decode_resize_batch_device`, cut before and normalised after: float32[c, target_h, target_w] each.

    Args:
        mean, std: by channel.
        base: "unit": (x/255 - mean)/std; "symmetric": (x/127.5 - 1 - mean)/std.
        crops: (top, left, height, width) in pixels of each image as stored, None for the whole one.
        hflips: for each image whether left and right change places.

    Raises:
        ValueError: another mode, interp or base, lists of another length than `payloads`, or one of `mean` and `std` than channels.
    """
    _check_target(target_h, target_w, interp)
    means, stds = check_normalize(mean, std, mode, base)
    for name, values in (("crops", crops), ("hflips", hflips)):
        if values is not None and len(values) != len(payloads):
            raise ValueError(f"{name} has {len(values)} entries for {len(payloads)} payloads")
    images, errors = _decode(payloads, mode, max_pixels)
    done: list[torch.Tensor | None] = []
    messages = iter(errors)
    kept: list[str] = []
    for number, image in enumerate(images):
        if image is None:
            done.append(None)
            kept.append(next(messages))
            continue
        try:
            part = crop(image, None if crops is None else crops[number])
        except OpError as error:
            done.append(None)
            kept.append(str(error))
            continue
        resized = resize(part, target_h, target_w, interp)
        done.append(normalize(resized.flip(2) if hflips is not None and hflips[number] else resized, means, stds, base))
    return done, kept


def nvjpeg_decode_resize_normalize_chw_stacked_device(
    payloads: Sequence[Any],
    target_h: int,
    target_w: int,
    *,
    mean: Sequence[float],
    std: Sequence[float],
    mode: str = "rgb",
    interp: str = "linear",
    base: str = "unit",
    crops: Sequence[Crop | None] | None = None,
    hflips: Sequence[bool] | None = None,
    max_pixels: int | None = None,
) -> tuple[torch.Tensor | None, list[str]]:
    """As `nvjpeg_decode_resize_normalize_chw_batch_device`, as one float32[n, c, target_h, target_w]; None where any failed."""
    images, errors = nvjpeg_decode_resize_normalize_chw_batch_device(
        payloads,
        target_h,
        target_w,
        mean=mean,
        std=std,
        mode=mode,
        interp=interp,
        base=base,
        crops=crops,
        hflips=hflips,
        max_pixels=max_pixels,
    )
    if errors or not images:
        return None, errors
    stacked: torch.Tensor = import_torch().stack([image for image in images if image is not None])
    return stacked, errors


# -------------------------------------------------------------------- decoding


def _decode(payloads: Sequence[Any], mode: str, max_pixels: int | None) -> tuple[list[torch.Tensor | None], list[str]]:
    """uint8[c, h, w] of each on the current device, None where it failed, and the messages of those."""
    if mode not in _MODES:
        raise ValueError(f"mode must be one of {', '.join(_MODES)}, got {mode!r}")
    why = why_no_nvjpeg()
    if why is not None:
        return [None for _ in payloads], [why for _ in payloads]
    images: list[torch.Tensor | None] = []
    errors: dict[int, str] = {}
    encoded: dict[int, Any] = {}
    torch = import_torch()
    for number, payload in enumerate(payloads):
        images.append(None)
        try:
            data = read_bytes(payload)
            check_jpeg(data, MAX_PIXELS if max_pixels is None else max_pixels)
            encoded[number] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        except (OpError, OSError) as error:
            errors[number] = str(error)
    for number, image in _decode_all(encoded, mode).items():
        if isinstance(image, str):
            errors[number] = image
        else:
            images[number] = image
    return images, [errors[number] for number in sorted(errors)]


def check_jpeg(data: Any, max_pixels: int) -> None:
    """Refuse what is no JPEG, or larger than allowed, before memory of the device is taken for it.

    Raises:
        OpError: no JPEG.
        LimitError: more pixels.
    """
    header = read_header(data)
    if header.format != "jpeg":
        raise OpError(f"nvJPEG decodes JPEG, this is {header.format}")
    if max_pixels and header.height * header.width > max_pixels:
        raise LimitError(f"an image of {header.height}x{header.width} pixels exceeds max_pixels={max_pixels}")


def _decode_all(encoded: dict[int, Any], mode: str) -> dict[int, Any]:
    """The images, or why one failed: all at once, and one by one where that fails, for it does not say which."""
    torch = import_torch()
    from torchvision.io import ImageReadMode, decode_jpeg

    device = torch.device("cuda", torch.cuda.current_device())
    read_mode = ImageReadMode.GRAY if mode == "gray" else ImageReadMode.RGB
    found: dict[int, Any] = {}
    try:
        if encoded:
            found.update(zip(encoded, decode_jpeg(list(encoded.values()), mode=read_mode, device=device)))
    except RuntimeError:
        for number, data in encoded.items():
            try:
                found[number] = decode_jpeg(data, mode=read_mode, device=device)
            except RuntimeError as error:
                found[number] = f"nvJPEG: {error}"
    if mode == "rgba":
        found = {number: image if isinstance(image, str) else with_alpha(image) for number, image in found.items()}
    return found


# ----------------------------------------------------------------- after decoding


def with_alpha(image: torch.Tensor) -> torch.Tensor:
    """uint8[3, h, w] with a fourth channel of 255."""
    torch = import_torch()
    found: Tensor = torch.cat((image, torch.full_like(image[:1], 255)))
    return found


def crop(image: torch.Tensor, box: Crop | None) -> torch.Tensor:
    """The part (top, left, height, width) of uint8[c, h, w], a view.

    Raises:
        OpError: it is not inside.
    """
    if box is None:
        return image
    top, left, height, width = box
    if min(top, left) < 0 or min(height, width) < 1 or top + height > image.shape[1] or left + width > image.shape[2]:
        raise OpError(f"the crop {box} is not inside the image of {image.shape[1]}x{image.shape[2]}")
    return image[:, top : top + height, left : left + width]


def resize(image: torch.Tensor, height: int, width: int, interp: str) -> torch.Tensor:
    """uint8[c, h, w] resized to uint8[c, height, width], on its device."""
    torch = import_torch()
    mode = _INTERP[interp]
    smooth: dict[str, Any] = {"antialias": True, "align_corners": False} if mode in ("bilinear", "bicubic") else {}
    found = torch.nn.functional.interpolate(image[None].float(), (height, width), mode=mode, **smooth)[0]
    rounded: Tensor = found.round_().clamp_(0, 255).to(torch.uint8)
    return rounded


def normalize(image: torch.Tensor, mean: list[float], std: list[float], base: str) -> torch.Tensor:
    """uint8[c, h, w] as float32, normalised by channel."""
    torch = import_torch()
    scale, shift = (1 / 255, 0.0) if base == "unit" else (1 / 127.5, 1.0)
    means = torch.tensor(mean, device=image.device)[:, None, None]
    stds = torch.tensor(std, device=image.device)[:, None, None]
    found: Tensor = image.float().mul_(scale).sub_(means + shift).div_(stds)
    return found


def check_normalize(mean: Sequence[float], std: Sequence[float], mode: str, base: str) -> tuple[list[float], list[float]]:
    """The means and deviations as floats.

    Raises:
        ValueError: another base, a number for each channel missing, a deviation of 0.
    """
    if base not in _BASES:
        raise ValueError(f"base must be one of {', '.join(_BASES)}, got {base!r}")
    channels = {"rgb": 3, "rgba": 4, "gray": 1}.get(mode, 3)
    means, stds = [float(x) for x in mean], [float(x) for x in std]
    if len(means) != channels or len(stds) != channels or 0.0 in stds:
        raise ValueError(f"mean and std have {channels} numbers for mode={mode!r}, those of std not 0; got {mean!r}, {std!r}")
    return means, stds


def _check_target(height: int, width: int, interp: str) -> None:
    if height < 1 or width < 1:
        raise ValueError(f"the target has at least one pixel, got {height}x{width}")
    if interp not in _INTERP:
        raise ValueError(f"interp must be one of {', '.join(_INTERP)}, got {interp!r}")
