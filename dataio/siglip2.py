"""Siglip2's preprocessing: images of any aspect ratio as at most so many patches."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .engine.errors import OpError
from .engine.registry import lookup
from .processor_chains import channels_of, interp_of, setting

_LEAST, _MOST, _EPSILON = 1e-6, 100.0, 1e-5
"""Bounds of the scale, and how closely it is found."""


def siglip2_preprocess(hf: Any, images: Any, *, return_tensors: Any = "pt", device: Any = None) -> dict[str, Any]:
    """Resize each image to the most patches that are allowed, normalise it, cut it into patches, and pad those.

    Args:
        hf: has `patch_size` (16), `max_num_patches` (256), `resample`, `do_rescale`, `rescale_factor`, `do_normalize`, `image_mean`,
            `image_std`.
        images: one or a list; images of Pillow, or arrays or tensors, uint8[h, w, 3], [3, h, w] or [h, w].
        return_tensors: "pt" or "np".
        device: for "pt", where the tensors go.

    Returns:
        `pixel_values` float32[n, max_num_patches, patch_size**2 * 3], zeros behind the patches of an image;
        `pixel_attention_mask` int32[n, max_num_patches], 1 where there is a patch; `spatial_shapes` int64[n, 2], rows and columns of
        patches.

    Raises:
        ValueError: another `return_tensors`; no image; pixels that are not uint8, or of other channels.

    Source: the SigLIP 2 paper (arXiv 2502.14786, section 2.4.2, NaFlex); the scale is found by bisection, as `transformers` does, whose
    rounding decides the shape of a few images.
    """
    if return_tensors not in ("pt", "np"):
        raise ValueError(f"return_tensors is 'pt' or 'np', got {return_tensors!r}")
    patch, most = int(setting(hf, "patch_size", 16)), int(setting(hf, "max_num_patches", 256))
    listed = images if isinstance(images, (list, tuple)) else [images]
    if not listed:
        raise OpError("no images")
    values = np.zeros((len(listed), most, patch * patch * 3), np.float32)
    mask = np.zeros((len(listed), most), np.int32)
    shapes = np.zeros((len(listed), 2), np.int64)
    for number, image in enumerate(listed):
        pixels = _pixels(image, number)
        if setting(hf, "do_resize", True):
            height, width = _size(pixels.shape[0], pixels.shape[1], patch, most)
            pixels = lookup("resize", "transform").function(pixels, h=height, w=width, interp=interp_of(getattr(hf, "resample", None)))
        patches = _patches(_normalised(pixels, hf), patch)
        if len(patches) > most:
            raise OpError(f"image {number} has {len(patches)} patches, more than max_num_patches={most}")
        values[number, : len(patches)] = patches
        mask[number, : len(patches)] = 1
        shapes[number] = pixels.shape[0] // patch, pixels.shape[1] // patch
    found = {"pixel_values": values, "pixel_attention_mask": mask, "spatial_shapes": shapes}
    if return_tensors == "np":
        return found
    import torch

    return {name: torch.from_numpy(array).to(device) for name, array in found.items()}


def _pixels(image: Any, number: int) -> np.ndarray:
    """uint8[h, w, 3]."""
    if hasattr(image, "convert"):  # of Pillow
        return np.asarray(image.convert("RGB"))
    pixels = np.asarray(image)
    if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3) or 0 in pixels.shape:
        raise OpError(f"image {number} is uint8 with 2 or 3 axes, got {pixels.dtype} {list(pixels.shape)}")
    if pixels.ndim == 2:
        pixels = pixels[:, :, None]
    elif pixels.shape[0] in (1, 3):
        pixels = np.moveaxis(pixels, 0, -1)
    if pixels.shape[2] not in (1, 3):
        raise OpError(f"image {number} has {pixels.shape[2]} channels, not 3")
    return np.ascontiguousarray(np.broadcast_to(pixels, (*pixels.shape[:2], 3)))


def _size(height: int, width: int, patch: int, most: int) -> tuple[int, int]:
    """Height and width in pixels, whole patches, for at most `most` of them."""

    def grid(scale: float) -> tuple[int, int]:
        rows, columns = (max(1, math.ceil(edge * scale / patch)) for edge in (height, width))
        return rows, columns

    low, high = _LEAST, _MOST
    while high - low >= _EPSILON:
        middle = (low + high) / 2
        if math.prod(grid(middle)) <= most:
            low = middle
        else:
            high = middle
    rows, columns = grid(low)
    return rows * patch, columns * patch


def _normalised(pixels: np.ndarray, hf: Any) -> np.ndarray:
    """float32[h, w, 3]."""
    values = pixels.astype(np.float32)
    if setting(hf, "do_rescale", True):
        values *= np.float32(setting(hf, "rescale_factor", 1 / 255))
    if setting(hf, "do_normalize", True):
        values -= np.array(channels_of(hf, "image_mean"), np.float32)
        values /= np.array(channels_of(hf, "image_std"), np.float32)
    return values


def _patches(values: np.ndarray, patch: int) -> np.ndarray:
    """float32[rows * columns, patch * patch * 3], row by row; within a patch by pixels, then channels."""
    rows, columns = values.shape[0] // patch, values.shape[1] // patch
    cut = values[: rows * patch, : columns * patch].reshape(rows, patch, columns, patch, 3)
    return cut.transpose(0, 2, 1, 3, 4).reshape(rows * columns, -1)
