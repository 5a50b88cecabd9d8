"""One value as what a preview shows of it: a picture, or a line of text; its type, and its range."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

import numpy as np

from ..engine.errors import DataioError, OpError
from ..engine.schema import dtype_name, guess_layout
from ..formats.audio.decode import samples_and_rate
from ..formats.image.decode import image
from ..formats.image.header import read_header
from ..formats.npy_header import check_payload, read_npy_header
from ..inspect.kinds import HEAD, is_sound, kind_of
from .pictures import Pixels, cross, fitted, heat_map, sound, waveform
from .text import SHOWN, SIZE, cut, human, number, one_line, short

Kind: TypeAlias = Literal["image", "sound", "heat map", "signal", "array", "number", "text", "bytes", "null", "object", "off", "failed"]
Hint: TypeAlias = Literal["", "image", "sound"]

LARGEST = 1 << 28
"""Bytes of an encoded value, or of a decoded sound, that is looked at; a larger one counts as failed."""
_TEXT_BYTES = 1 << 16
"""Bytes up to which a value may be UTF-8 text."""
_MANY = 256
"""Elements from which an array of one axis is drawn."""
_SMALLEST = 8
"""Pixels of the shorter side from which an array of two axes or more is taken for an image."""


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers of one value: how many, how many of them are not finite, and of the finite ones the least, the greatest and the mean."""

    count: int = 0
    strange: int = 0
    low: float = np.nan
    high: float = np.nan
    mean: float = np.nan

    def __str__(self) -> str:
        text = "" if self.low != self.low else f"{number(self.low)} to {number(self.high)}, mean {number(self.mean)}"
        return f"{text}{', ' if text else ''}{self.strange:,} not finite" if self.strange else text


@dataclass(frozen=True, slots=True, eq=False)
class Cell:
    """What is shown of one value.

    Attributes:
        kind: what it was taken for; "off" for a slot that is switched off, "failed" for what could not be had.
        text: one line.
        type: `uint8[375, 500, 3]`, `jpeg 500 x 375`, `str`; "" where there is nothing to say.
        pixels: uint8[h, w, 3], where there is a picture.
        range: of its numbers.
    """

    kind: Kind
    text: str = ""
    type: str = ""
    pixels: Pixels | None = None
    range: Range = field(default_factory=Range)


NULL = Cell("null", "null")
OFF = Cell("off", "off")


def failed(message: str, size: int, *, picture: bool = True) -> Cell:
    """The cell of a value that could not be had."""
    return Cell("failed", cut(one_line(message)), pixels=cross(size) if picture else None)


def look_at(value: Any, size: int = SIZE, hint: Hint = "") -> Cell:
    """What to show of a value, whatever it is; never raises for what it holds.

    Args:
        value: numbers, text, bytes (encoded images, sounds and .npy arrays are told by their content), arrays, torch tensors, Pillow images,
            structs with `bytes`, anything.
        size: pixels of the longer side of a picture; sounds are twice as wide.
        hint: what an array is known to hold.
    """
    try:
        return _look_at(value, size, hint)
    except (DataioError, ImportError, MemoryError) as error:  # ImportError: a package is missing, and the message says which
        return failed(f"{type(error).__name__}: {error}", size)


def _look_at(value: Any, size: int, hint: Hint) -> Cell:
    if value is None:
        return NULL
    if isinstance(value, Cell):  # looked at already, where values are too large to be kept
        return value
    if isinstance(value, (bool, np.bool_)):
        return Cell("number", str(bool(value)).lower(), "bool", range=Range(1, 0, float(value), float(value), float(value)))
    if isinstance(value, (int, float, np.integer, np.floating)):
        return _number(value)
    if isinstance(value, str):
        return Cell("text", cut(one_line(value[: 2 * SHOWN])), "str")
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _encoded(value, size)
    if isinstance(value, Mapping):
        return _struct(value, size, hint)
    if hasattr(value, "detach"):  # a torch tensor
        value = value.detach().cpu()
        value = (value.float() if str(value.dtype) == "torch.bfloat16" else value).numpy()
    if isinstance(value, np.ndarray):
        return array(value, size, hint)
    if hasattr(value, "getbands"):  # a Pillow image
        return array(np.asarray(value.convert("RGBA" if "A" in value.getbands() else "RGB")), size, "image")
    if isinstance(value, (list, tuple)):
        return _sequence(value)
    return Cell("object", _text_of(value), type(value).__name__)


def _number(value: Any) -> Cell:
    kind = type(value).__name__
    try:
        found = float(value)
    except OverflowError:  # an int beyond floats
        return Cell("number", cut(str(value)), kind)
    finite = bool(np.isfinite(found))
    # the shortest text that reads back as the same float32, rather than its digits as a double
    return Cell("number", str(value), kind, range=Range(1, 0, found, found, found) if finite else Range(1, 1))


def _text_of(value: Any) -> str:
    try:
        return short(value)
    except Exception as error:  # repr of a user's own class may do anything
        return f"<{type(value).__name__}: repr failed: {type(error).__name__}>"


def _sequence(value: Any) -> Cell:
    kind = f"{type(value).__name__}[{len(value)}]"
    if len(value) and all(type(item) in (int, float, bool) for item in value[:_MANY]):
        try:
            numbers = np.asarray(value)
        except (ValueError, OverflowError):
            numbers = np.empty(0, object)
        if numbers.dtype.kind in "iufb" and numbers.ndim == 1:
            return Cell("array", _first_values(numbers), kind, None, range_of(numbers))
    return Cell("object", _text_of(value), kind)


def _struct(value: Mapping[str, Any], size: int, hint: Hint) -> Cell:
    """Encoded bytes with their path, as Hugging Face data sets have it; data with their shape, as tensors of any shape are stored."""
    data = value.get("bytes")
    if isinstance(data, (bytes, bytearray, memoryview)):
        return _look_at(data, size, hint)
    data, shape = value.get("data"), value.get("shape")
    if data is not None and shape is not None and len(value) == 2:
        try:
            return array(np.asarray(data).reshape([int(length) for length in shape]), size, hint)
        except (ValueError, TypeError):  # it only looked like one
            pass
    return Cell("object", _text_of(dict(value)), "struct" if len(value) != 1 else "struct of 1")


# ------------------------------------------------------------------------- bytes


def _encoded(data: Any, size: int) -> Cell:
    view = memoryview(data).cast("B")
    if not len(view):
        return Cell("bytes", "0 bytes", "bytes")
    if len(view) > LARGEST:
        return failed(f"{human(len(view))}, too large to look at", size)
    kind = kind_of("", view[:HEAD])
    if kind.name == "image":
        header = read_header(view)
        shown = array(image(view, mode="rgba" if header.channels in (2, 4) and header.format in ("png", "webp") else "rgb", normalize="none", layout="hwc"), size, "image")
        return replace(shown, type=f"{header.format} {header.width} x {header.height}", text=human(len(view)))
    if is_sound("", view[:HEAD]):
        return encoded_sound(view, size)
    if kind.name == "npy":
        dtype, shape, fortran, offset = header_ = read_npy_header(view)
        check_payload(header_, len(view))
        if not dtype.hasobject:
            flat = np.frombuffer(view, dtype, int(np.prod(shape, dtype=np.int64)), offset)
            return array(flat.reshape(shape, order="F" if fortran else "C"), size)
    if len(view) <= _TEXT_BYTES:
        try:
            text = str(view, "utf-8")
        except UnicodeDecodeError:
            pass
        else:
            if all(c.isprintable() or c.isspace() for c in text[: 2 * SHOWN]):
                return Cell("text", cut(one_line(text[: 2 * SHOWN])), "bytes")
    return Cell("bytes", short(view), "bytes")


def encoded_sound(data: Any, size: int) -> Cell:
    """The cell of a sound file.

    Raises:
        OpError: not decodable; ImportError: the package that decodes it is missing.
    """
    samples, rate = samples_and_rate(data, LARGEST)
    seconds = samples.shape[1] / rate
    told = f"{seconds:.2f} s, {rate / 1000:g} kHz, {'mono' if len(samples) == 1 else 'stereo' if len(samples) == 2 else f'{len(samples)} channels'}"
    return replace(array(samples, size, "sound"), kind="sound", type=told, text=human(len(data)))


# ------------------------------------------------------------------------- arrays


def range_of(values: np.ndarray) -> Range:
    """The range of an array of real numbers; of others it is empty."""
    if values.dtype.kind not in "biuf" or not values.size:
        return Range(values.size if values.dtype.kind in "biuf" else 0)
    if values.dtype.kind != "f":
        return Range(values.size, 0, float(values.min()), float(values.max()), float(values.mean(dtype=np.float64)))
    low, high = float(values.min()), float(values.max())
    if np.isfinite(low) and np.isfinite(high):
        return Range(values.size, 0, low, high, float(values.mean(dtype=np.float64)))
    finite = values[np.isfinite(values)]
    strange = values.size - finite.size
    return Range(values.size, strange, float(finite.min()), float(finite.max()), float(finite.mean(dtype=np.float64))) if finite.size else Range(values.size, strange)


def array(values: np.ndarray, size: int = SIZE, hint: Hint = "") -> Cell:
    """What to show of an array: an image, a sound, a heat map, a curve, or its first values."""
    name = dtype_name(values.dtype)
    kind = f"{name}[{', '.join(map(str, values.shape))}]"
    if values.dtype.kind not in "biufV" or values.dtype.names:
        return Cell("array", _text_of(values.tolist() if values.size <= _MANY else kind), kind)
    if values.dtype.kind == "V" or name in ("float8_e4m3fn", "bfloat16"):  # ml_dtypes
        try:
            values = values.astype(np.float32)
        except (TypeError, ValueError):
            return Cell("array", kind, kind)
    if values.ndim == 0:
        return replace(_number(values[()]), type=name)
    found = range_of(values)
    what, pixels = _drawn(values, size, hint)
    return Cell(what, "" if pixels is not None else _first_values(values), kind, pixels, found)


def _first_values(values: np.ndarray) -> str:
    flat = values.reshape(-1)[:8] if values.size <= 8 else values.ravel()[:6] if values.flags.c_contiguous else values.flat[:6]
    shown = ", ".join(number(item) if isinstance(item, (int, float)) else str(item) for item in flat.tolist())
    return f"[{shown}{', ...' if values.size > len(flat) else ''}]"


def _drawn(values: np.ndarray, size: int, hint: Hint) -> tuple[Kind, Pixels | None]:
    shape = values.shape
    if 0 in shape:
        return "array", None
    if values.ndim == 4 and hint != "sound":  # a clip: its first frame
        return _drawn(values[0], size, hint)
    if values.ndim == 3 and hint != "sound":
        try:
            layout = guess_layout(values)
        except OpError:
            return "array", None
        pixels = values if layout == "HWC" else values.transpose(1, 2, 0)
        return ("image", fitted(pixels, size)) if min(pixels.shape[:2]) >= _SMALLEST or hint == "image" else ("array", None)
    if values.ndim == 3:
        return _drawn(values[0], size, hint)
    if values.ndim == 2:
        rows, columns = shape
        if values.dtype.kind == "f" and columns >= _MANY and (columns >= 64 * rows or (hint == "sound" and rows <= 2)):
            return ("sound", sound(values, 2 * size, size)) if hint == "sound" else ("signal", waveform(values[0], 2 * size, size // 2))
        if min(shape) < (2 if hint == "sound" else _SMALLEST):
            return "array", None
        if hint == "image" or values.dtype in (np.uint8, np.bool_):
            return "image", fitted(values, size)
        return "heat map", heat_map(values, 2 * size if columns > 2 * rows else size, size)
    if values.ndim == 1 and len(values) >= _MANY:
        if hint == "sound":
            return "sound", sound(values[np.newaxis], 2 * size, size)
        return "signal", waveform(values, 2 * size, size // 2)
    return "array", None
