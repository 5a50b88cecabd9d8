"""Spectrogram, mel filterbank and MFCC of float32 sound.

One path for all three: overlapping frames as a view of the samples, a block of them at a time through window, real FFT and
power, so that everything in between stays in the cache. The mel scale and the cosine transform are matrix products.

The FFT is OpenCV's where Intel's IPP computes it (every x86-64 wheel of OpenCV): of any length, in place, in 0.25 to 0.4 of the
time of NumPy's and at most 0.8 of SciPy's and torch's. OpenCV's own code is slower than NumPy's, so elsewhere it is NumPy's.

Nothing here starts threads, which next to busy workers cost more than they bring: matrix products are cut into pieces that
OpenBLAS computes on the calling thread (`PRODUCT_LIMIT`; on threads of its own a product of 0.4 ms took 30 ms and more), and
blocks are as large as OpenCV transforms on it (`BLOCK_SAMPLES`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache, lru_cache
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

import numpy as np

from ...engine.arguments import Range
from ...engine.errors import OpError
from ...engine.registry import register_check, register_kernel, register_op
from ...engine.schema import Takes, TensorType
from ..buffers import scratch
from ..libraries import opencv
from .decode import SampleRate

Window: TypeAlias = Literal["hann", "hamming", "rect"]
FFTLength: TypeAlias = Annotated[int, Range(1, 1 << 24)]
MelCount: TypeAlias = Annotated[int, Range(1, 8192)]
Hertz: TypeAlias = Annotated[float, Range(0.0)]

SOUND = Takes(dtypes=("float32",), ranks=(1, 2))
SPECTRA = Takes(dtypes=("float32",), ranks=(2, 3))

BLOCK_SAMPLES = 1 << 16
"""Windowed samples per block of frames: as many as OpenCV transforms without its threads (its core/src/dxt.cpp). A quarter of
it is 1.3 times slower, twice as much hardly faster."""
PRODUCT_LIMIT = 1 << 18
"""Multiply-adds of a matrix product up to which OpenBLAS starts no threads (its interface/gemm.c)."""
FILTERS_TOGETHER = 12
"""Neighbouring mel filters multiplied at once: their triangles overlap, so the few zeros between cost less than more calls."""
LOG_FLOOR = 1e-10
EXTREMES_PASS = np.errstate(over="ignore", invalid="ignore")
"""Infinities and NaN in the samples are the user's own and show in the result: no warning besides."""


class Framing(NamedTuple):
    """How samples are cut into frames."""

    n_fft: int
    hop_length: int
    window: Window

    @property
    def bins(self) -> int:
        return self.n_fft // 2 + 1

    def frames(self, samples: int) -> int:
        """Frames without padding; samples that do not fill one give a single frame."""
        return 1 + max(samples - self.n_fft, 0) // self.hop_length


@lru_cache(maxsize=16)
def window_values(window: Window, length: int) -> np.ndarray:
    """float32[length], periodic. Source: the textbook forms, as torch's `hann_window` and `hamming_window`."""
    if window == "rect" or length == 1:
        return np.ones(length, np.float32)
    base = 0.5 if window == "hann" else 0.54
    turns = np.arange(length) * (2 * math.pi / length)
    return np.asarray(base - (1 - base) * np.cos(turns), np.float32)


class Filters(NamedTuple):
    """Some neighbouring filters: rows of the result, the bins that they read, and float32[rows, bins]."""

    rows: slice
    bins: slice
    weights: np.ndarray


def mel_points(n_mels: int, sample_rate: int, f_min: float, f_max: float) -> np.ndarray:
    """Hz where the triangles start, peak and end: float64[n_mels + 2], equally spaced in 2595 log10(1 + f/700)."""
    low, high = (2595.0 * math.log10(1.0 + f / 700.0) for f in (f_min, f_max or sample_rate / 2))
    points: np.ndarray = 700.0 * (10.0 ** (np.linspace(low, high, n_mels + 2) / 2595.0) - 1.0)
    return points


def mel_triangles(
    n_mels: int, sample_rate: int, bins: int, f_min: float, f_max: float
) -> Iterator[tuple[int, np.ndarray]]:
    """The triangular filters on the HTK mel scale, peak 1, one after the other: the first bin under each, and float32[...].

    Source: torchaudio's `melscale_fbanks(norm=None, mel_scale="htk")`, here in float64 before rounding; within 6e-6 of its
    float32, whose own rounding that is.
    """
    points = mel_points(n_mels, sample_rate, f_min, f_max)
    frequencies = np.linspace(0.0, sample_rate / 2, bins)
    after, upto = np.searchsorted(frequencies, points, "right"), np.searchsorted(frequencies, points, "left")
    for i, (left, peak, right) in enumerate(zip(points, points[1:], points[2:])):
        first = int(after[i])
        under = frequencies[first : max(int(upto[i + 2]), first)]
        rising, falling = (under - left) / (peak - left), (right - under) / (right - peak)
        yield first, np.minimum(rising, falling).astype(np.float32)


@lru_cache(maxsize=16)
def filterbank(n_mels: int, sample_rate: int, bins: int, f_min: float, f_max: float) -> tuple[Filters, ...]:
    """`mel_triangles` in groups, each with the bins that one of its filters reads."""
    triangles = list(mel_triangles(n_mels, sample_rate, bins, f_min, f_max))
    return tuple(_group(i, triangles[i : i + FILTERS_TOGETHER]) for i in range(0, n_mels, FILTERS_TOGETHER))


def _group(row: int, triangles: list[tuple[int, np.ndarray]]) -> Filters:
    ends = [(first, first + len(weights)) for first, weights in triangles if len(weights)]
    start, stop = (ends[0][0], ends[-1][1]) if ends else (0, 0)  # neighbours begin and end one after the other
    matrix = np.zeros((len(triangles), stop - start), np.float32)
    for filled, (first, weights) in zip(matrix, triangles):
        if len(weights):
            filled[first - start :][: len(weights)] = weights
    return Filters(slice(row, row + len(triangles)), slice(start, stop), matrix)


@lru_cache(maxsize=16)
def cosine_matrix(rows: int, columns: int) -> np.ndarray:
    """The first rows of the orthonormal DCT-II, float32[rows, columns]. Source: `scipy.fft.dct(norm="ortho")`."""
    order, place = np.arange(rows)[:, None], np.arange(columns)
    matrix = np.cos(math.pi / columns * (place + 0.5) * order) * math.sqrt(2.0 / columns)
    matrix[0] = math.sqrt(1.0 / columns)
    return np.asarray(matrix, np.float32)


def _product(matrix: np.ndarray, values: np.ndarray, out: np.ndarray) -> None:
    """`matrix @ values` into `out`, in columns few enough for one thread."""
    step = max(PRODUCT_LIMIT // max(matrix.size, 1), 1)
    for first in range(0, values.shape[1], step):
        columns = slice(first, first + step)
        np.matmul(matrix, values[:, columns], out=out[:, columns])


def _frames(samples: np.ndarray, framing: Framing) -> np.ndarray:
    """NumPy's `sliding_window_view(samples, n_fft)[::hop_length]`, whose checks take a sixth of the time of a spectrogram of 1 s."""
    n_fft, hop_length, _ = framing
    shape, strides = (framing.frames(len(samples)), n_fft), (4 * hop_length, 4)
    return np.ndarray(shape, np.float32, np.ascontiguousarray(samples), strides=strides)


@lru_cache(maxsize=8)
def _window_rows(window: Window, n_fft: int, rows: int) -> np.ndarray:
    """float32[rows, n_fft]. Windows side by side: a broadcast one takes NumPy half as long again."""
    return np.tile(window_values(window, n_fft), (rows, 1))


def _blocks(samples: np.ndarray, framing: Framing) -> Iterator[tuple[slice, np.ndarray]]:
    """The frames of float32[n] times the window, some at a time: which ones, and float32[frames, n_fft] to do with as one likes.

    Fewer samples than a frame count as silence.
    """
    n_fft, _, window = framing
    if len(samples) < n_fft:
        yield slice(0, 1), np.zeros((1, n_fft), np.float32)
        return
    frames = _frames(samples, framing)
    step = max(BLOCK_SAMPLES // n_fft, 1)
    windows = _window_rows(window, n_fft, step) if step > 1 else window_values(window, n_fft)[np.newaxis]
    buffer = _scratch("windowed_frames", step, n_fft)
    for first in range(0, len(frames), step):
        some = frames[first : first + step]
        count = len(some)
        yield slice(first, first + count), np.multiply(some, windows[:count], out=buffer[:count])


def _scratch(name: str, rows: int, columns: int) -> np.ndarray:
    """float32[rows, columns]; see `scratch`."""
    return scratch(name, (rows, 4 * columns)).view(np.float32)


@cache
def _opencv_is_fast() -> bool:
    return bool(opencv().ipp.useIPP())


class Layout(NamedTuple):
    """Where the parts of a spectrum lie in a row of it.

    Args:
        bins: those that have a real and an imaginary part, side by side.
        real, imaginary: the columns of these.
        single: places, both as columns and as bins, of the first and the last bin where they have a real part alone.
    """

    bins: slice
    real: slice
    imaginary: slice
    single: tuple[int, ...]


@lru_cache(maxsize=16)
def _layout(n_fft: int, packed: bool) -> Layout:
    """All bins as complex numbers, or packed as OpenCV has them.

    That is re 0, re 1, im 1, re 2, im 2, and so on, and for an even length re n/2 at the end.
    """
    if not packed:
        return Layout(slice(0, n_fft // 2 + 1), slice(0, None, 2), slice(1, None, 2), ())
    pairs = (n_fft - 1) // 2
    single = (0, -1) if n_fft % 2 == 0 else (0,)
    return Layout(slice(1, 1 + pairs), slice(1, 1 + 2 * pairs, 2), slice(2, 1 + 2 * pairs, 2), single)


def _powers(frames: np.ndarray, power: float, out: np.ndarray) -> None:
    """|rfft| ** power of the rows of float32[frames, n], which are overwritten, into float32[n // 2 + 1, frames]."""
    packed = _opencv_is_fast()
    if packed:
        parts = opencv().dft(frames, frames, opencv().DFT_ROWS)
    else:
        spectrum: np.ndarray = _scratch("spectrum", len(frames), 2 * len(out)).view(np.complex64)
        parts = np.fft.rfft(frames, out=spectrum).view(np.float32)
    raise_to = _magnitudes if power == 1.0 else _squares
    raise_to(parts, _layout(frames.shape[1], packed), out)


def _magnitudes(parts: np.ndarray, layout: Layout, out: np.ndarray) -> None:
    """Not the roots of `_squares`, which leave the range of float32 sooner."""
    rows = _scratch("magnitudes", len(parts), len(out))
    pairs = parts[:, layout.real.start : layout.real.stop]
    np.abs(pairs.view(np.complex64), out=rows[:, layout.bins])
    for place in layout.single:
        np.abs(parts[:, place], out=rows[:, place])
    opencv().transpose(rows, out)


def _squares(parts: np.ndarray, layout: Layout, out: np.ndarray) -> None:
    """Transposed first: sums of whole rows take half the time of sums of neighbours, transposing twice as much included."""
    np.square(parts, out=parts)
    turned = opencv().transpose(parts, _scratch("squared_parts", parts.shape[1], len(parts)))
    if len(out) > len(layout.single):
        opencv().add(turned[layout.real], turned[layout.imaginary], out[layout.bins])
    for place in layout.single:
        out[place] = turned[place]


def _channels(op: str, sound: np.ndarray) -> np.ndarray:
    """float32[c, n] of the samples, a view.

    Raises:
        OpError: another dtype or rank, or no samples.
    """
    if sound.dtype != np.float32 or sound.ndim not in (1, 2):
        raise OpError(f"{op} takes float32[samples] or float32[channels, samples], got {sound.dtype}{list(sound.shape)}")
    if sound.size == 0:
        raise OpError(f"{op} wants at least one sample, got shape {list(sound.shape)}")
    return sound if sound.ndim == 2 else sound[np.newaxis]


def _planes(values: np.ndarray) -> np.ndarray:
    """[c, rows, frames] of [rows, frames] or of itself, a view."""
    return values if values.ndim == 3 else values[np.newaxis]


def _result(channels: int, rows: int, frames: int) -> np.ndarray:
    """One channel has no axis of its own."""
    return np.empty((rows, frames) if channels == 1 else (channels, rows, frames), np.float32)


def _infer_sound(given: TensorType, rows: int, framing: Framing) -> TensorType:
    if given.shape is None or (len(given.shape) == 2 and given.shape[0] is None):
        return TensorType(None, "float32")
    samples = given.shape[-1]
    frames = None if samples is None else framing.frames(samples)
    channels = given.shape[0] if len(given.shape) == 2 else 1
    return TensorType((rows, frames) if channels == 1 else (channels, rows, frames), "float32")


def _infer_spectrogram(given: TensorType, *, n_fft: int, hop_length: int, window: Window, **_: Any) -> TensorType:
    framing = Framing(n_fft, hop_length, window)
    return _infer_sound(given, framing.bins, framing)


def _check_hop(op: str, n_fft: int, hop_length: int) -> None:
    if hop_length > n_fft:
        raise ValueError(f"{op} wants hop_length <= n_fft, or samples between the frames are lost; got {hop_length} > {n_fft}")


def _check_band(op: str, n_mels: int, sample_rate: int, f_min: float, f_max: float) -> None:
    top = f_max or sample_rate / 2
    if f_min >= top:
        raise ValueError(f"{op} wants f_min < f_max, got {f_min:g} and {top:g} Hz")
    if np.diff(mel_points(n_mels, sample_rate, f_min, f_max)).min() <= 0:
        raise ValueError(f"{op} wants a wider band: {n_mels} filters between {f_min} and {top} Hz cannot be told apart")


@register_check("spectrogram")
def _check_spectrogram(**given: Any) -> dict[str, Any]:
    _check_hop("spectrogram", given["n_fft"], given["hop_length"])
    if given["power"] not in (1.0, 2.0):
        raise ValueError(f"spectrogram(power=) must be 1.0 or 2.0, got {given['power']:g}")
    return given


@register_check("mel_filterbank")
def _check_mel_filterbank(**given: Any) -> dict[str, Any]:
    _check_band("mel_filterbank", given["n_mels"], given["sample_rate"], given["f_min"], given["f_max"])
    return given


@register_check("mfcc")
def _check_mfcc(**given: Any) -> dict[str, Any]:
    _check_hop("mfcc", given["n_fft"], given["hop_length"])
    _check_band("mfcc", given["n_mels"], given["sample_rate"], given["f_min"], given["f_max"])
    if given["n_mfcc"] > given["n_mels"]:
        raise ValueError(f"mfcc wants n_mfcc <= n_mels, got {given['n_mfcc']} > {given['n_mels']}")
    return given


@register_op("spectrogram", takes=SOUND, infer=_infer_spectrogram)
def spectrogram(
    sound: np.ndarray,
    *,
    n_fft: FFTLength = 400,
    hop_length: FFTLength = 160,
    window: Window = "hann",
    power: float = 2.0,
) -> np.ndarray:
    """Magnitudes or powers of the short-time Fourier transform, frame by frame, without centring or padding.

    Args:
        sound: float32[n] or float32[c, n].
        n_fft: samples per frame, 1 to 2**24.
        hop_length: samples from frame to frame, at most `n_fft`.
        window: "hann", "hamming" (both periodic) or "rect".
        power: 1.0 for magnitudes, 2.0 for powers.

    Returns:
        float32[n_fft // 2 + 1, frames] for one channel, else float32[c, n_fft // 2 + 1, frames]; frames is
        1 + (n - n_fft) // hop_length. Fewer samples than `n_fft` give one frame of zeros. A frame with a NaN is NaN.
        Relative to the largest value within 7e-7 of the exact result, as `torch.stft(center=False)` is too, and within 8e-7 of
        that; typically half as much.

    Raises:
        OpError: another dtype or rank, or no samples.
    """
    channels = _channels("spectrogram", sound)
    framing = Framing(n_fft, hop_length, window)
    out = _result(len(channels), framing.bins, framing.frames(channels.shape[1]))
    spectrogram_out(sound, out, n_fft=n_fft, hop_length=hop_length, window=window, power=power)
    return out


@register_kernel("spectrogram", "out")
@EXTREMES_PASS
def spectrogram_out(
    sound: np.ndarray,
    out: np.ndarray,
    *,
    n_fft: int = 400,
    hop_length: int = 160,
    window: Window = "hann",
    power: float = 2.0,
) -> None:
    """`spectrogram` into `out`."""
    channels = _channels("spectrogram", sound)
    framing = Framing(n_fft, hop_length, window)
    for samples, result in zip(channels, _planes(out)):
        for block, frames in _blocks(samples, framing):
            _powers(frames, power, result[:, block])


def _infer_mel_filterbank(given: TensorType, *, n_mels: int, **_: Any) -> TensorType:
    if given.shape is None:
        return TensorType(None, "float32")
    return TensorType((*given.shape[:-2], n_mels, given.shape[-1]), "float32")


def _mel_into(spectra: np.ndarray, out: np.ndarray, filters: tuple[Filters, ...]) -> None:
    """float32[bins, frames] to float32[n_mels, frames]."""
    for group in filters:
        _product(group.weights, spectra[group.bins], out[group.rows])


def _spectra_planes(spectra: np.ndarray) -> np.ndarray:
    if spectra.dtype != np.float32 or spectra.ndim not in (2, 3):
        raise OpError(
            "mel_filterbank takes float32[bins, frames] or float32[channels, bins, frames], "
            f"got {spectra.dtype}{list(spectra.shape)}"
        )
    if spectra.shape[-2] == 0:
        raise OpError(f"mel_filterbank wants at least one frequency bin, got shape {list(spectra.shape)}")
    return _planes(spectra)


@register_op("mel_filterbank", takes=SPECTRA, infer=_infer_mel_filterbank)
def mel_filterbank(
    spectra: np.ndarray,
    *,
    n_mels: MelCount,
    sample_rate: SampleRate,
    f_min: Hertz = 0.0,
    f_max: Hertz = 0.0,
) -> np.ndarray:
    """Sum the bins of a spectrogram under triangles that are equally wide on the HTK mel scale, peak 1.

    Args:
        spectra: float32[bins, frames] or float32[c, bins, frames]: what `spectrogram` gives, or a stored one; its bins are
            taken to reach from 0 Hz to half the sample rate, so n_fft is 2 * (bins - 1).
        n_mels: triangles, at most 8192.
        sample_rate: Hz, of the sound that the spectrogram was made from.
        f_min, f_max: Hz, where the first triangle starts and the last one ends; `f_max` of 0 is half the sample rate,
            and more than that is accepted.

    Returns:
        float32[n_mels, frames] or float32[c, n_mels, frames]; triangles between two bins give zeros.

    Raises:
        OpError: another dtype or rank, or no bins.

    Source: see `mel_triangles`; within 2e-6 of the product in float64, relative to the largest value.
    """
    planes = _spectra_planes(spectra)
    out = np.empty((*spectra.shape[:-2], n_mels, planes.shape[2]), np.float32)
    mel_filterbank_out(spectra, out, n_mels=n_mels, sample_rate=sample_rate, f_min=f_min, f_max=f_max)
    return out


@register_kernel("mel_filterbank", "out")
@EXTREMES_PASS
def mel_filterbank_out(
    spectra: np.ndarray, out: np.ndarray, *, n_mels: int, sample_rate: int, f_min: float = 0.0, f_max: float = 0.0
) -> None:
    """`mel_filterbank` into `out`."""
    planes = _spectra_planes(spectra)
    filters = filterbank(n_mels, sample_rate, planes.shape[1], f_min, f_max)
    for plane, result in zip(planes, _planes(out)):
        _mel_into(plane, result, filters)


def _infer_mfcc(
    given: TensorType, *, n_mfcc: int, n_fft: int, hop_length: int, window: Window, **_: Any
) -> TensorType:
    return _infer_sound(given, n_mfcc, Framing(n_fft, hop_length, window))


@register_op("mfcc", takes=SOUND, infer=_infer_mfcc)
def mfcc(
    sound: np.ndarray,
    *,
    n_mfcc: MelCount = 13,
    n_mels: MelCount = 40,
    sample_rate: SampleRate,
    f_min: Hertz = 0.0,
    f_max: Hertz = 0.0,
    n_fft: FFTLength = 400,
    hop_length: FFTLength = 160,
    window: Window = "hann",
    log_base: Literal["db", "natural"] = "db",
) -> np.ndarray:
    """Mel-frequency cepstral coefficients: power spectrogram, mel filterbank, logarithm, cosine transform.

    Args:
        sound: float32[n] or float32[c, n].
        n_mfcc: coefficients to keep, at most `n_mels`.
        n_mels, sample_rate, f_min, f_max: as for `mel_filterbank`.
        n_fft, hop_length, window: as for `spectrogram`.
        log_base: "db" is 10 log10, "natural" is ln; of max(mel, 1e-10).

    Returns:
        float32[n_mfcc, frames] for one channel, else float32[c, n_mfcc, frames]: the first rows of the orthonormal DCT-II
        over the mel axis. NaN samples give NaN.

    Raises:
        OpError: another dtype or rank, or no samples.

    Source: as torchaudio's `MFCC(norm="ortho")` without centring and, for decibels, without its limit of 80 dB below the
    loudest value. Within 3e-5 of the same steps in float64, relative to the largest value.
    """
    channels = _channels("mfcc", sound)
    out = _result(len(channels), n_mfcc, Framing(n_fft, hop_length, window).frames(channels.shape[1]))
    mfcc_out(
        sound,
        out,
        n_mfcc=n_mfcc,
        n_mels=n_mels,
        sample_rate=sample_rate,
        f_min=f_min,
        f_max=f_max,
        n_fft=n_fft,
        hop_length=hop_length,
        window=window,
        log_base=log_base,
    )
    return out


@register_kernel("mfcc", "out")
@EXTREMES_PASS
def mfcc_out(
    sound: np.ndarray,
    out: np.ndarray,
    *,
    n_mfcc: int = 13,
    n_mels: int = 40,
    sample_rate: int,
    f_min: float = 0.0,
    f_max: float = 0.0,
    n_fft: int = 400,
    hop_length: int = 160,
    window: Window = "hann",
    log_base: Literal["db", "natural"] = "db",
) -> None:
    """`mfcc` into `out`."""
    channels = _channels("mfcc", sound)
    framing = Framing(n_fft, hop_length, window)
    filters = filterbank(n_mels, sample_rate, framing.bins, f_min, f_max)
    cosines = cosine_matrix(n_mfcc, n_mels)
    for samples, result in zip(channels, _planes(out)):
        for block, frames in _blocks(samples, framing):
            spectra = _scratch("spectra", framing.bins, len(frames))
            _powers(frames, 2.0, spectra)
            mel = np.empty((n_mels, len(frames)), np.float32)
            _mel_into(spectra, mel, filters)
            _log_into(mel, log_base)
            _product(cosines, mel, result[:, block])


def _log_into(mel: np.ndarray, log_base: str) -> None:
    np.maximum(mel, np.float32(LOG_FLOOR), out=mel)
    opencv().log(mel, mel)
    if log_base == "db":
        np.multiply(mel, np.float32(10 / math.log(10)), out=mel)
