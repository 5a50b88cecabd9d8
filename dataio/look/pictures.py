"""Small pictures of images, sounds and arrays: uint8[h, w, 3]. Libraries: OpenCV (scaling, colour maps), NumPy (spectra)."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..formats.libraries import opencv

Pixels: TypeAlias = NDArray[np.uint8]
BROKEN = (200, 30, 30)
"""Colour of the cross of a broken picture."""
_INK = (52, 101, 164)
_LINE = (222, 226, 230)
_FFT = 1024
"""Samples of a frame of a drawn spectrogram."""
_DECIBELS = 80.0
"""Below the loudest, which are drawn."""


def fitted(image: np.ndarray, size: int) -> Pixels:
    """uint8[h, w, 3] of an image whose longer side is at most `size`; smaller ones are not enlarged.

    Args:
        image: [h, w], [h, w, 1], [h, w, 3] or [h, w, 4], any real dtype. uint8 is shown as it is, bool as black and white, floats within [0, 1]
            times 255, all else from its least to its greatest value. RGBA is shown on white.
    """
    pixels = image[..., np.newaxis] if image.ndim == 2 else image
    step = max(1, max(pixels.shape[:2]) // (8 * size))  # what is dropped would not be seen
    pixels = levels(np.ascontiguousarray(pixels[::step, ::step]))
    height, width = pixels.shape[:2]
    if max(height, width) > size:
        scale = size / max(height, width)
        to = max(1, round(width * scale)), max(1, round(height * scale))
        pixels = opencv().resize(pixels, to, interpolation=opencv().INTER_AREA).reshape(to[1], to[0], -1)
    if pixels.shape[2] == 1:
        return np.repeat(pixels, 3, axis=2)
    if pixels.shape[2] == 4:
        alpha = pixels[..., 3:].astype(np.float32) / 255
        return np.asarray(np.rint(pixels[..., :3] * alpha + 255 * (1 - alpha)), np.uint8)
    return pixels


def levels(values: np.ndarray) -> Pixels:
    """Values as uint8 of the same shape, by the rules of `fitted`; what is no number is 0."""
    if values.dtype == np.uint8:
        return values
    if values.dtype == np.bool_:
        return np.asarray(values * np.uint8(255), np.uint8)
    floats = np.nan_to_num(values.astype(np.float32), nan=0.0, posinf=3e38, neginf=-3e38)
    low, high = (float(floats.min()), float(floats.max())) if floats.size else (0.0, 0.0)
    if values.dtype.kind == "f" and low >= 0 and high <= 1:
        low, high = 0.0, 1.0
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = (floats - np.float32(low)) * np.float32(255 / (high - low) if high > low else 0)
    return np.asarray(np.clip(np.nan_to_num(scaled), 0, 255).round(), np.uint8)


def heat_map(values: np.ndarray, width: int, height: int) -> Pixels:
    """[rows, columns] in colours from dark (least) to bright, the first row at the bottom; at most `height` by `width` pixels,
    and enlarged by whole factors where it is smaller."""
    shown = np.ascontiguousarray(levels(_stretched(values))[::-1])
    rows, columns = shown.shape
    if rows > height or columns > width:
        to = min(columns, width), min(rows, height)
        shown = opencv().resize(shown, to, interpolation=opencv().INTER_AREA)
    factor = min(height // shown.shape[0], width // shown.shape[1])
    if factor > 1:
        shown = shown.repeat(factor, axis=0).repeat(factor, axis=1)
    return _coloured(shown)


def _stretched(values: np.ndarray) -> np.ndarray:
    """Floats from the least to the greatest finite one as 0 to 1."""
    floats = values.astype(np.float32)
    finite = floats[np.isfinite(floats)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(np.clip(np.nan_to_num((floats - low) / (high - low if high > low else 1.0)), 0, 1))


def _coloured(gray: Pixels) -> Pixels:
    return np.ascontiguousarray(opencv().applyColorMap(gray, opencv().COLORMAP_VIRIDIS)[..., ::-1])


def waveform(samples: np.ndarray, width: int, height: int) -> Pixels:
    """The outline of one signal, float[n]: from its least to its greatest value in each column of pixels.

    The scale is [-1, 1], or as far as the values go.
    """
    picture = np.full((height, width, 3), 255, np.uint8)
    values = np.nan_to_num(np.asarray(samples, np.float32), posinf=0.0, neginf=0.0)
    low, high = (float(values.min()), float(values.max())) if values.size else (0.0, 0.0)
    if low >= -1 and high <= 1:
        low, high = -1.0, 1.0
    middle = min(max(0.0, low), high)
    to_row = (height - 1) / (high - low if high > low else 1.0)
    picture[round((high - middle) * to_row)] = _LINE
    if not values.size:
        return picture
    edges = np.linspace(0, values.size, min(width, values.size) + 1).astype(np.int64)
    tops = np.maximum.reduceat(values, edges[:-1])
    bottoms = np.minimum.reduceat(values, edges[:-1])
    place = np.arange(width) * len(tops) // width
    first = np.rint((high - tops) * to_row)[place]
    last = np.rint((high - bottoms) * to_row)[place]
    rows = np.arange(height)[:, np.newaxis]
    picture[(rows >= first) & (rows <= last)] = _INK
    return picture


def spectrum(samples: np.ndarray, width: int, height: int) -> Pixels:
    """A spectrogram of one signal, float[n]: a frame for each column of pixels, 80 dB down from the loudest, high frequencies on top.

    However long the signal is, only `width` frames of it are looked at.
    """
    length = min(_FFT, max(16, 1 << max(len(samples) - 1, 0).bit_length() >> 2))
    values = np.zeros(max(len(samples), length), np.float32)
    values[: len(samples)] = np.nan_to_num(np.asarray(samples, np.float32), posinf=0.0, neginf=0.0)
    starts = np.linspace(0, len(values) - length, width).astype(np.int64)
    frames = np.lib.stride_tricks.sliding_window_view(values, length)[starts] * np.hanning(length).astype(np.float32)
    power = np.abs(np.fft.rfft(frames)).T.astype(np.float32) ** 2
    loudest = max(float(power.max()), 1e-20)
    decibels = 10 * np.log10(np.maximum(power / loudest, 1e-10))
    gray = levels(np.clip(decibels / _DECIBELS + 1, 0, 1))
    return _coloured(opencv().resize(np.ascontiguousarray(gray[::-1]), (width, height), interpolation=opencv().INTER_AREA))


def sound(samples: np.ndarray, width: int, height: int) -> Pixels:
    """The waveform of float[channels, n] over its spectrogram; channels are averaged."""
    one = samples[0] if len(samples) == 1 else samples.mean(axis=0, dtype=np.float32)
    above = height * 2 // 5
    return np.concatenate([waveform(one, width, above), spectrum(one, width, height - above)])


def cross(size: int) -> Pixels:
    """What stands for a broken picture."""
    cell = np.full((size, size, 3), 255, np.uint8)
    y, x = np.mgrid[:size, :size]
    width = max(1, size // 32)
    cell[(abs(y - x) <= width) | (abs(y + x - size + 1) <= width)] = BROKEN
    return cell
