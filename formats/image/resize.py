"""Antialiased resizing: `resize`, `resize_short`, `resize_long`, `fit_to_bucket`, and the windowed form behind them.

Pixel centres lie at half integers; the filter is separable and its support grows with the shrink factor (Pillow's rule;
kernels: triangle, cubic with a = -0.5, Lanczos-3). torch's kernel does bilinear and bicubic where torch is installed (several
times faster); Pillow does the rest. They agree within 1 level; on pure noise the axis that goes first shows where bicubic
overshoots are clipped between the two passes. Channels never mix: a fourth channel is filtered like
the others, it does not weigh them.
"""

from __future__ import annotations

import math
import sys
import threading
from functools import cache
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from ...engine.arguments import Pixels, Size
from ...engine.errors import OpError
from ...engine.registry import register_kernel, register_op
from ...engine.schema import TensorType
from ..buffers import scratch
from ..libraries import opencv
from .pixels import IMAGE

Interp: TypeAlias = Literal["nearest", "bilinear", "bicubic", "lanczos"]

RADIUS = {"bilinear": 1.0, "bicubic": 2.0, "lanczos": 3.0}
"""Half the width of each kernel, in output pixels when shrinking."""
PHASE_ERROR = 0.0005
"""How far, in output pixels, a window may be shifted from the grid of the whole: well under 1 level of 255."""

_worker = threading.local()


class Window(NamedTuple):
    """A rectangle of the resized image."""

    y: int
    x: int
    h: int
    w: int


@cache
def _torch() -> Any:
    """The torch module, or None where it is not installed."""
    try:
        import torch
    except ImportError:
        return None
    return torch


def prepare_worker_thread() -> None:
    """Make torch's kernels run on one thread when called from this thread, and only from this one.

    OpenMP keeps its thread count per calling thread, so the trainer's own setting stays. (`torch.set_num_threads`
    would store a process-wide number that every later thread picks up.) When torch has not been imported yet, its
    first use by this thread does it. Needs threadpoolctl; without it nothing changes.
    """
    _worker.limit = True
    if "torch" in sys.modules:
        _limit_this_thread()


def _limit_this_thread() -> None:
    _worker.limit = False
    torch = _torch()
    if torch is None:
        return
    torch.get_num_threads()  # the first call in a thread sets the count, and would undo the limit if it came later
    try:
        import threadpoolctl
    except ImportError:
        return
    threadpoolctl.threadpool_limits(limits=1, user_api="openmp")


def resized_shape(how: str, height: int, width: int, h: int, w: int) -> tuple[int, int]:
    """Height and width of the whole resized image, before any crop.

    Args:
        how: "resize" (to h, w), "resize_short" or "resize_long" (edge `h`), "fit_to_bucket" (cover h, w).
        height, width: of the image.
        h, w: arguments of the op.
    """
    if how == "resize":
        return h, w
    if how == "fit_to_bucket":
        # scale = max(h / height, w / width), in integers so that the exact edge is exact.
        return (h, -(-width * h // height)) if h * width >= w * height else (-(-height * w // width), w)
    edge = min(height, width) if how == "resize_short" else max(height, width)
    return max(height * h // edge, 1), max(width * h // edge, 1)


def resize_window(
    image: np.ndarray, out: np.ndarray, full: tuple[int, int], window: Window, interp: str
) -> None:
    """Write one window of the resized image, computing little more than its pixels.

    Args:
        image: uint8[height, width, c].
        out: uint8[window.h, window.w, c], C-contiguous.
        full: height and width of the whole resized image.
        window: inside `full`.
        interp: "nearest", "bilinear", "bicubic" or "lanczos".
    """
    height, width, channels = image.shape
    if full == (height, width):
        np.copyto(out, image[window.y : window.y + window.h, window.x : window.x + window.w])
    elif interp == "nearest":
        rows = _nearest(height, full[0], window.y, window.h)
        columns = _nearest(width, full[1], window.x, window.w)
        _pick(image, rows, columns, out)
    elif interp != "lanczos" and channels in (1, 3, 4) and _torch() is not None:
        _torch_window(image, out, full, window, interp)
    else:
        _pillow_window(image, out, full, window, interp)


def _nearest(size: int, full: int, start: int, count: int) -> np.ndarray:
    """floor((i + 0.5) * size / full) in exact integers."""
    return (2 * np.arange(start, start + count) + 1) * size // (2 * full)


def _pick(image: np.ndarray, rows: np.ndarray, columns: np.ndarray, out: np.ndarray) -> None:
    """Copy `image[rows][:, columns]` into `out`; columns are picked on as few rows as there are."""
    if len(rows) > len(image):
        kept = np.empty((len(image), *out.shape[1:]), np.uint8)
        _pick_columns(image, columns, kept)
        np.take(kept, rows, axis=0, out=out, mode="clip")
    else:
        _pick_columns(np.take(image, rows, axis=0, mode="clip"), columns, out)


def _pick_columns(image: np.ndarray, columns: np.ndarray, out: np.ndarray) -> None:
    """Copy `image[:, columns]` into `out`: pixels move as one 32-bit word each, which takes a sixth of the time of bytes."""
    if image.shape[2] != 3:
        word = np.uint32 if image.shape[2] == 4 else np.uint8
        source, target = np.ascontiguousarray(image).view(word), out.view(word)
        np.take(source[..., 0], columns, axis=1, out=target[..., 0], mode="clip")
        return
    cv2, (height, width) = opencv(), image.shape[:2]
    words = scratch("words", (height, width, 4))
    picked = scratch("picked", (height, len(columns), 4))
    cv2.cvtColor(image, cv2.COLOR_RGB2RGBA, dst=words)
    np.take(words.view(np.uint32)[..., 0], columns, axis=1, out=picked.view(np.uint32)[..., 0], mode="clip")
    cv2.cvtColor(picked, cv2.COLOR_RGBA2RGB, dst=out)


@cache
def _aten(interp: str) -> Any:
    ops = _torch().ops.aten
    return ops._upsample_bicubic2d_aa.out if interp == "bicubic" else ops._upsample_bilinear2d_aa.out


def _as_tensor(array: np.ndarray) -> Any:
    """uint8[1, c, h, w] over the memory of uint8[h, w, c]."""
    # With one channel both orders are the same bytes, and the plain one has the faster kernel. The view is made by NumPy:
    # a third of what torch's permute and unsqueeze cost.
    view = array.reshape(1, 1, *array.shape[:2]) if array.shape[2] == 1 else array.transpose(2, 0, 1)[None]
    return _torch().from_numpy(view)


def _rows_before(start: int, scale: float, radius: float) -> tuple[int, int]:
    """How many leading output and input rows a window from `start` can do without.

    Dropping `o` output rows and `k` input rows keeps the sampling grid when `o * scale` is `k` (almost: the kernel takes
    no offset); what is dropped must lie outside the support of the first surviving row.
    """
    reach = math.ceil(radius * max(scale, 1.0) / scale + 0.5)
    for o in range(start - reach, 0, -1):
        k = round(o * scale)
        if abs(o * scale - k) <= PHASE_ERROR * max(scale, 1.0):
            return o, k
    return 0, 0


def _torch_window(image: np.ndarray, out: np.ndarray, full: tuple[int, int], window: Window, interp: str) -> None:
    if getattr(_worker, "limit", False):
        _limit_this_thread()
    height, width, channels = image.shape
    if (window.y, window.x, window.h, window.w) == (0, 0, *full):
        _torch_passes(image, out, (height, width), full, interp)
        return
    scale, radius = height / full[0], RADIUS[interp]
    skip, first = _rows_before(window.y, scale, radius)
    # Rows past the support of the last surviving row are left out; columns past the window are simply not asked for.
    last = min(math.ceil((window.y + window.h) * scale + radius * max(scale, 1.0) + 1), height)
    rows, columns = window.y - skip + window.h, window.x + window.w
    # The kernel takes equal sizes for "nothing to do" along that axis, whatever the scale: never let that happen.
    if columns == width < full[1]:
        columns += 1
    if rows == last - first and full[0] != height:
        if last < height:
            last += 1
        elif skip + rows < full[0]:
            rows += 1
        else:
            skip, first, rows = 0, 0, full[0]
    direct = rows == window.h and columns == window.w
    target = out if direct else scratch("window", (rows, columns, channels))
    _torch_passes(image[first:last], target, (height, width), full, interp)
    if not direct:
        np.copyto(out, target[window.y - skip :, window.x :][: window.h, : window.w])


def _torch_passes(
    source: np.ndarray, target: np.ndarray, size: tuple[int, int], full: tuple[int, int], interp: str
) -> None:
    """Resize `source` at the scale of `size` to `full`, as far as `target` reaches."""
    # The kernel copies an input with gaps pixel by pixel; NumPy does it by rows.
    if not source.flags.c_contiguous:
        source = _compact(source)
    elif not source.flags.writeable:
        source = _unlocked(source)
    kernel, scale_y, scale_x = _aten(interp), full[0] / size[0], full[1] / size[1]
    rows, columns = target.shape[:2]
    rows_first = 2 * full[0] <= size[0] if interp == "bilinear" else full[0] < size[0] and full[1] > size[1]
    if rows_first and full[1] != size[1]:
        # Rows before columns takes up to a quarter less time when much is dropped. With bicubic the order shows wherever
        # an overshoot is clipped in between, so there it is done only where Pillow does so too.
        between = scratch("between", (rows, source.shape[1], source.shape[2]))
        kernel(_as_tensor(source), [rows, source.shape[1]], False, scale_y, 1.0, out=_as_tensor(between))
        source, scale_y = between, 1.0
    kernel(_as_tensor(source), [rows, columns], False, scale_y, scale_x, out=_as_tensor(target))


class _Memory:
    """Somebody else's memory, described for NumPy."""

    def __init__(self, owner: np.ndarray, interface: dict[str, Any]) -> None:
        self.owner = owner
        self.__array_interface__ = interface


def _unlocked(image: np.ndarray) -> np.ndarray:
    """The same memory without the read-only flag, which torch warns about even where it only reads."""
    interface = image.__array_interface__
    return np.asarray(_Memory(image, interface | {"data": (interface["data"][0], False)}))


def _compact(image: np.ndarray) -> np.ndarray:
    """A contiguous, writable copy in this thread's scratch memory."""
    copy = scratch("compact", image.shape)
    np.copyto(copy, image)
    return copy


_PILLOW_MODES = {1: "L", 3: "RGB", 4: "CMYK"}  # CMYK: four channels that Pillow filters independently


def _pillow_window(
    image: np.ndarray, out: np.ndarray, full: tuple[int, int], window: Window, interp: str
) -> None:
    from PIL import Image

    height, width, channels = image.shape
    mode = _PILLOW_MODES.get(channels)
    if mode is None:
        raise OpError(f"resize takes 1, 3 or 4 channels, got shape {image.shape}")
    picture = Image.frombuffer(mode, (width, height), np.ascontiguousarray(image), "raw", mode, 0, 1)
    filters = {
        "bilinear": Image.Resampling.BILINEAR,
        "bicubic": Image.Resampling.BICUBIC,
        "lanczos": Image.Resampling.LANCZOS,
    }
    # All of it, then the cut: for a box Pillow may take the axes in the other order, and rounding and clipping between the
    # passes put the same pixels more than one level away.
    resized = np.asarray(picture.resize((full[1], full[0]), filters[interp]))
    resized = resized[window.y : window.y + window.h, window.x : window.x + window.w]
    np.copyto(out, resized.reshape(out.shape))


def _check_image(op: str, image: np.ndarray, *sizes: int) -> None:
    if image.ndim != 3 or image.dtype != np.uint8 or 0 in image.shape:
        raise OpError(f"{op} takes uint8[h, w, c] with pixels, got {image.dtype}{list(image.shape)}")
    if min(sizes) < 1:
        raise OpError(f"{op} wants sizes of at least 1 pixel, got {' x '.join(map(str, sizes))}")


def _infer_fixed(given: TensorType, *, h: int | None, w: int | None, **_: Any) -> TensorType:
    channels = given.shape[2] if given.shape is not None else None
    return TensorType((h, w, channels), "uint8", "HWC")


def _infer_edge(how: str, given: TensorType, size: int) -> TensorType:
    shape = given.shape or (None, None, None)
    if shape[0] is None or shape[1] is None:
        return TensorType((None, None, shape[2]), "uint8", "HWC")
    return TensorType((*resized_shape(how, shape[0], shape[1], size, size), shape[2]), "uint8", "HWC")


def _infer_short(given: TensorType, *, size: int, **_: Any) -> TensorType:
    return _infer_edge("resize_short", given, size)


def _infer_long(given: TensorType, *, size: int, **_: Any) -> TensorType:
    return _infer_edge("resize_long", given, size)


def _whole(image: np.ndarray, out: np.ndarray, interp: str) -> None:
    h, w = out.shape[:2]
    resize_window(image, out, (h, w), Window(0, 0, h, w), interp)


@register_op("resize", takes=IMAGE, infer=_infer_fixed)
def resize(image: np.ndarray, *, h: Pixels, w: Pixels, interp: Interp = "bicubic") -> np.ndarray:
    """Resize to exactly `h` x `w` pixels; the aspect ratio follows.

    Args:
        image: uint8[height, width, c], c in {1, 3, 4}.
        h, w: pixels.
        interp: "nearest" (floor((i + 0.5) * scale)), "bilinear", "bicubic", "lanczos"; all but nearest antialias.

    Returns:
        uint8[h, w, c]; `image` itself when it has that size.

    Raises:
        OpError: another dtype or rank, or no pixels.
    """
    _check_image("resize", image, h, w)
    if image.shape[:2] == (h, w):
        return image
    out = np.empty((h, w, image.shape[2]), np.uint8)
    _whole(image, out, interp)
    return out


@register_kernel("resize", "out")
def resize_out(image: np.ndarray, out: np.ndarray, *, h: Pixels, w: Pixels, interp: Interp = "bicubic") -> None:
    """`resize` into `out`, uint8[h, w, c]."""
    _check_image("resize", image, h, w)
    _whole(image, out, interp)


def _resize_edge(how: str, image: np.ndarray, out: np.ndarray | None, size: int, interp: str) -> np.ndarray:
    _check_image(how, image, size)
    shape = resized_shape(how, image.shape[0], image.shape[1], size, size)
    if out is None:
        if image.shape[:2] == shape:
            return image
        out = np.empty((*shape, image.shape[2]), np.uint8)
    _whole(image, out, interp)
    return out


@register_op("resize_short", takes=IMAGE, infer=_infer_short, positional=("size",))
def resize_short(image: np.ndarray, *, size: Size, interp: Interp = "bicubic") -> np.ndarray:
    """Resize so that the short edge is `size`; the other is floor(edge * size / short).

    Returns:
        uint8[h, w, c]: 480x640 at 256 gives 256x341; `image` itself when it has that size.

    Raises:
        OpError: another dtype or rank, or no pixels.
    """
    return _resize_edge("resize_short", image, None, size, interp)


@register_kernel("resize_short", "out")
def resize_short_out(image: np.ndarray, out: np.ndarray, *, size: Size, interp: Interp = "bicubic") -> None:
    """`resize_short` into `out`."""
    _resize_edge("resize_short", image, out, size, interp)


@register_op("resize_long", takes=IMAGE, infer=_infer_long, positional=("size",))
def resize_long(image: np.ndarray, *, size: Size, interp: Interp = "bicubic") -> np.ndarray:
    """Resize so that the long edge is `size`; the other is floor(edge * size / long), at least 1.

    Returns:
        uint8[h, w, c]: 333x500 at 256 gives 170x256; `image` itself when it has that size.

    Raises:
        OpError: another dtype or rank, or no pixels.
    """
    return _resize_edge("resize_long", image, None, size, interp)


@register_kernel("resize_long", "out")
def resize_long_out(image: np.ndarray, out: np.ndarray, *, size: Size, interp: Interp = "bicubic") -> None:
    """`resize_long` into `out`."""
    _resize_edge("resize_long", image, out, size, interp)


@register_op("fit_to_bucket", takes=IMAGE, infer=_infer_fixed)
def fit_to_bucket(image: np.ndarray, *, h: Pixels, w: Pixels, interp: Interp = "bicubic") -> np.ndarray:
    """Scale until the image covers `h` x `w`, and keep the middle; only pixels that survive are computed.

    The scale is max(h / height, w / width), both edges are rounded up, crop offsets down.

    Returns:
        uint8[h, w, c]; `image` itself when it has that size.

    Raises:
        OpError: another dtype or rank, or no pixels.
    """
    _check_image("fit_to_bucket", image, h, w)
    if image.shape[:2] == (h, w):
        return image
    out = np.empty((h, w, image.shape[2]), np.uint8)
    fit_to_bucket_out(image, out, h=h, w=w, interp=interp)
    return out


@register_kernel("fit_to_bucket", "out")
def fit_to_bucket_out(
    image: np.ndarray, out: np.ndarray, *, h: Pixels, w: Pixels, interp: Interp = "bicubic"
) -> None:
    """`fit_to_bucket` into `out`, uint8[h, w, c]."""
    _check_image("fit_to_bucket", image, h, w)
    full = resized_shape("fit_to_bucket", image.shape[0], image.shape[1], h, w)
    resize_window(image, out, full, Window((full[0] - h) // 2, (full[1] - w) // 2, h, w), interp)


def _infer_window(
    given: TensorType, *, crop_h: int | None, crop_w: int | None, **_: Any
) -> TensorType:
    return _infer_fixed(given, h=crop_h, w=crop_w)


@register_op("resize_center_crop", takes=IMAGE, infer=_infer_window, hidden=True)
def resize_center_crop(
    image: np.ndarray, *, how: str, h: Pixels, w: Pixels, interp: Interp, crop_h: Pixels, crop_w: Pixels
) -> np.ndarray:
    """`resize*` followed by `center_crop` in one step, made by the rule "crop_before_resize".

    Args:
        image: uint8[height, width, c].
        how, h, w: the resize op and its sizes, see `resized_shape`.
        interp: as for `resize`.
        crop_h, crop_w: size of the crop; where it is larger than the resized image, zeros surround it.

    Returns:
        uint8[crop_h, crop_w, c], within 1 level of the two steps.

    Raises:
        OpError: another dtype or rank, or no pixels.
    """
    out = np.empty((crop_h, crop_w, image.shape[-1]), np.uint8)
    resize_center_crop_out(image, out, how=how, h=h, w=w, interp=interp, crop_h=crop_h, crop_w=crop_w)
    return out


@register_kernel("resize_center_crop", "out")
def resize_center_crop_out(
    image: np.ndarray,
    out: np.ndarray,
    *,
    how: str,
    h: Pixels,
    w: Pixels,
    interp: Interp,
    crop_h: Pixels,
    crop_w: Pixels,
) -> None:
    """`resize_center_crop` into `out`, uint8[crop_h, crop_w, c]."""
    _check_image(how, image, h, w, crop_h, crop_w)
    height, width = resized_shape(how, image.shape[0], image.shape[1], h, w)
    top, left = 0, 0  # of the part that `fit_to_bucket` keeps
    full = (height, width)
    if how == "fit_to_bucket":
        top, left = (height - h) // 2, (width - w) // 2
        height, width = h, w
    kept_h, kept_w = min(crop_h, height), min(crop_w, width)
    window = Window(top + (height - kept_h) // 2, left + (width - kept_w) // 2, kept_h, kept_w)
    if (kept_h, kept_w) == (crop_h, crop_w):
        resize_window(image, out, full, window, interp)
        return
    out[...] = 0
    y, x = (crop_h - kept_h) // 2, (crop_w - kept_w) // 2
    inner = np.empty((kept_h, kept_w, image.shape[2]), np.uint8)
    resize_window(image, inner, full, window, interp)
    out[y : y + kept_h, x : x + kept_w] = inner


for _name in ("resize", "resize_short", "resize_long", "fit_to_bucket", "resize_center_crop"):
    register_kernel(_name, "setup")(prepare_worker_thread)
