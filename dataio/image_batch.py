"""`decode_image_batch`: JPEGs decoded on a GPU, many at once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .engine.errors import OpError
from .formats.gpu.devices import DeviceError
from .formats.gpu.jpeg import nvjpeg_decode_batch_device, why_no_nvjpeg
from .outputs import find_adapter

_ON_ERROR = ("raise", "skip", "collect")


def decode_image_batch(
    payloads: Iterable[Any], *, mode: str = "rgb", max_pixels: int | None = None, output: Any = "numpy", on_error: str = "raise"
) -> Any:
    """Decode JPEGs by nvJPEG on the current CUDA device. For other formats and machines there are `read_image` and the pipeline.

    Args:
        payloads: encoded images, bytes-like.
        mode: "rgb", "rgba" or "gray".
        max_pixels: that one image may have; None for 134,217,728, 0 for no limit.
        output: "torch" leaves the images on the device; all others of `read_image` take them from host memory.
        on_error: "raise"; "skip": None for an image that fails; "collect": that, and the messages.

    Returns:
        A list of uint8[h, w, c], one for each payload; with "collect" that list and one of messages.

    Raises:
        DeviceError: (a RuntimeError) no nvJPEG, with "raise".
        ValueError: an image that fails, with "raise"; an unknown mode, output or on_error.
    """
    if on_error not in _ON_ERROR:
        raise ValueError(f"on_error must be one of {', '.join(_ON_ERROR)}, got {on_error!r}")
    name, adapter = find_adapter(output)
    given = list(payloads)
    images, errors = nvjpeg_decode_batch_device(given, mode=mode, max_pixels=max_pixels)
    if errors and on_error == "raise":
        failed = next(number for number, image in enumerate(images) if image is None)
        kind = OpError if why_no_nvjpeg() is None else DeviceError
        raise kind(f"image {failed} of {len(given)}: {errors[0]}")
    found = [image if image is None or name == "torch" else adapter(image.cpu().numpy()) for image in images]
    return (found, errors) if on_error == "collect" else found
