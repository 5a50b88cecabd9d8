"""The `audio` decoder: encoded sound to planar float32.

Plain RIFF WAV (integers of 16, 24 and 32 bits, floats of 32) is read with NumPy: one pass over the samples, into the result.
Every other format goes to libsndfile through soundfile. Both give the same float32 values.

libsndfile reads from a file that lives in memory (`memfd_create`) where the system has them. The other way, callbacks into
Python, takes the interpreter lock for every 8 KB: next to a busy Python thread that is a wait of one switch interval each
(FLAC of 10 s: 3 files a second against 26).
"""

from __future__ import annotations

import io
import math
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, lru_cache
from typing import Annotated, Any, Literal, Protocol, TypeAlias

import numpy as np

from ...engine.arguments import Count, Range
from ...engine.errors import LimitError, OpError, missing_dependency
from ...engine.registry import register_kernel, register_op
from ...engine.schema import TensorType
from ..raw import BytesLike, as_view

MAX_SAMPLE_RATE = 10_000_000
"""Hz; converters for sound and ultrasound stay below, so a larger number is a damaged header."""
MAX_CHANNELS = 255
"""As many as Vorbis and Opus can hold."""

SampleRate: TypeAlias = Annotated[int, Range(1, MAX_SAMPLE_RATE)]
Resampling: TypeAlias = Literal["linear", "sinc"]

UNKNOWN_LENGTH = 1 << 62
"""libsndfile announces 2**63 - 1 frames for a stream whose header gives no length."""
FIRST_FRAMES = 1 << 20
FRAMES_PER_BYTE = 32
"""Room for the first read: at least `FIRST_FRAMES`, or so many frames per encoded byte. Any usual file (Opus at 16 kbit/s has 24)
is read in one go; a header that claims more only gets what the data turns out to hold."""
READ_BLOCK = 1 << 15
"""Frames of several channels that are decoded before they are told apart, while the cache still holds them."""
MAX_CHUNKS = 64
"""RIFF chunks looked at before libsndfile is asked instead."""
MAX_PERIOD = 8192
"""Output samples of one period of a rate ratio, up to which its positions are kept; 44100 to 48000 Hz has 160."""
TAIL_BLOCK = 1 << 18
"""Output samples whose positions are worked out at a time."""


class Recording(Protocol):
    """An opened sound file, read once from its start."""

    rate: int
    channels: int
    frames: int
    """Frames that the header announces; `UNKNOWN_LENGTH` or more when it does not say."""
    size: int
    """Encoded bytes."""

    def read_into(self, out: np.ndarray) -> int:
        """Fill float32[channels, n] with the next frames; returns how many there were."""
        ...


class PlainWave:
    """Samples that lie in the file as they are, read in one go: `out` must have room for all.

    Args:
        samples: int16, int32 or float32[frames, channels], a view of the file.
        bits: of one sample; 24 come as int32 whose lowest byte belongs to the sample before.
    """

    def __init__(self, rate: int, samples: np.ndarray, bits: int) -> None:
        self.rate = rate
        self.frames, self.channels = samples.shape
        self.size = samples.nbytes
        self._samples = samples
        self._bits = bits

    def read_into(self, out: np.ndarray) -> int:
        if self._samples.dtype.kind == "f":
            np.copyto(out, self._samples.T)
        elif self._bits == 24:
            for first in range(0, self.frames, READ_BLOCK):
                block = slice(first, first + READ_BLOCK)
                _to_unit(np.bitwise_and(self._samples[block], -256), out[:, block])
        else:
            _to_unit(self._samples, out)
        return len(self._samples)


def _to_unit(samples: np.ndarray, out: np.ndarray) -> None:
    """Integers[n, c] to [-1, 1), float32[c, n]."""
    scale = np.float32(-1 / np.iinfo(samples.dtype).min)
    np.multiply(samples.T, scale, out=out, dtype=np.float32, casting="unsafe")


WAVE_FORMAT = struct.Struct("<HHIIHH")
WAVE_SAMPLES = {(1, 16): "<i2", (1, 24): "<i4", (1, 32): "<i4", (3, 32): "<f4"}
"""Format tag and bits per sample to the dtype that the samples are read as."""


def plain_wave(view: memoryview) -> PlainWave | None:
    """The samples of a plain RIFF WAV; None for anything else or out of the ordinary, which libsndfile judges.

    A data chunk that ends early gives the whole frames present, as libsndfile does.
    """
    if bytes(view[:4]) != b"RIFF" or bytes(view[8:12]) != b"WAVE":
        return None
    form: tuple[int, ...] | None = None
    position = 12
    for _ in range(MAX_CHUNKS):
        start = position + 8
        if start > len(view):
            return None
        name, size = struct.unpack_from("<4sI", view, position)
        if name == b"data":
            return None if form is None else _wave_of(form, view, start, min(size, len(view) - start))
        if name == b"fmt ":
            if form is not None or size < WAVE_FORMAT.size or start + size > len(view):
                return None
            form = WAVE_FORMAT.unpack_from(view, start)
        position = start + size + size % 2
    return None


def _wave_of(form: tuple[int, ...], view: memoryview, start: int, size: int) -> PlainWave | None:
    tag, channels, rate, _, frame_bytes, bits = form
    dtype = WAVE_SAMPLES.get((tag, bits))
    if dtype is None or channels == 0 or frame_bytes != channels * bits // 8:
        return None
    if bits == 24:  # read as 32 bits, with the byte in front
        start -= 1
    shape, strides = (size // frame_bytes, channels), (frame_bytes, bits // 8)
    return PlainWave(rate, np.ndarray(shape, dtype, view, start, strides), bits)


@cache
def _soundfile() -> Any:
    try:
        import soundfile  # type: ignore[import-untyped]
    except (ImportError, OSError) as error:  # OSError: the package is there, the library it wraps is not
        raise missing_dependency("soundfile", "audio", "decoding audio other than plain WAV") from error
    return soundfile


@cache
def _forward_file() -> Any:
    """`soundfile.SoundFile` read from start to end only.

    soundfile repositions a seekable file after every read, which costs time and fails in FLAC of unknown length.
    """

    class ForwardFile(_soundfile().SoundFile):  # type: ignore[misc]
        def seekable(self) -> bool:
            return False

    return ForwardFile


@cache
def _soxr() -> Any:
    try:
        import soxr  # type: ignore[import-untyped]
    except ImportError as error:
        raise missing_dependency("soxr", "audio", "audio(resampling='sinc')") from error
    return soxr


class Encoded:
    """A file that libsndfile decodes."""

    def __init__(self, file: Any, size: int) -> None:
        self._file = file
        self.rate: int = file.samplerate
        self.channels: int = file.channels
        self.frames: int = file.frames
        self.size = size

    def read_into(self, out: np.ndarray) -> int:
        if self.channels == 1:
            return self._read(out[0])
        wanted, filled = out.shape[1], 0
        block = np.empty((min(wanted, READ_BLOCK), self.channels), np.float32)
        while filled < wanted:
            frames = block[: wanted - filled]
            found = self._read(frames)
            np.copyto(out[:, filled : filled + found], frames[:found].T)
            filled += found
            if found < len(frames):
                break
        return filled

    def _read(self, frames: np.ndarray) -> int:
        if len(frames) == 0:
            return 0
        try:
            return len(self._file.read(out=frames))
        except _soundfile().LibsndfileError as error:
            raise OpError(f"damaged or truncated {self._file.format}: {_reason(error)}") from error


def _reason(error: Any) -> str:
    text = str(error.error_string).removeprefix("Error : ").rstrip(". ")
    return text or f"libsndfile error {error.code}"


@contextmanager
def _in_memory_file(view: memoryview) -> Iterator[Any]:
    """The bytes as something that libsndfile opens: a file descriptor, or a Python file object where there are none."""
    try:
        descriptor = os.memfd_create("audio")
    except (AttributeError, OSError):  # not Linux, or no descriptors left
        yield io.BytesIO(view)
        return
    try:
        with open(descriptor, "wb", buffering=0, closefd=False) as file:
            rest = view
            while rest:
                rest = rest[file.write(rest) :]
        os.lseek(descriptor, 0, os.SEEK_SET)
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _opened(data: BytesLike, max_decoded_bytes: int) -> Iterator[Recording]:
    """The recording in `data`, its header checked.

    Raises:
        LimitError: it announces more than the limit.
        OpError: no sound file, or a header with an absurd rate or channel count.
    """
    view = as_view(data)
    wave = plain_wave(view)
    if wave is not None:
        yield _checked(wave, max_decoded_bytes)
        return
    soundfile = _soundfile()
    with _in_memory_file(view) as source:
        try:
            file = _forward_file()(source, closefd=False)
        except soundfile.LibsndfileError as error:
            start = bytes(view[:8])
            raise OpError(f"not a readable sound file ({len(view)} bytes, starts with {start!r}): {_reason(error)}") from error
        with file:
            yield _checked(Encoded(file, len(view)), max_decoded_bytes)


def _checked(recording: Recording, max_decoded_bytes: int) -> Recording:
    if not 1 <= recording.rate <= MAX_SAMPLE_RATE:
        raise OpError(f"audio takes sample rates from 1 to {MAX_SAMPLE_RATE} Hz, the header says {recording.rate}")
    if not 1 <= recording.channels <= MAX_CHANNELS:
        raise OpError(f"audio takes 1 to {MAX_CHANNELS} channels, the header says {recording.channels}")
    if recording.frames < UNKNOWN_LENGTH:
        _check_size(recording.channels, recording.frames, max_decoded_bytes)
    return recording


def _check_size(channels: int, frames: int, max_decoded_bytes: int) -> None:
    size = channels * frames * 4
    if max_decoded_bytes and size > max_decoded_bytes:
        raise LimitError(
            f"{channels} channels of {frames} samples decode to {size} bytes and exceed "
            f"max_decoded_bytes={max_decoded_bytes}; pass a larger limit, or 0 for none"
        )


def _read_whole(recording: Recording, max_decoded_bytes: int) -> np.ndarray:
    """float32[channels, n], all there is; memory follows what is found rather than what the header claims."""
    channels = recording.channels
    most = recording.frames
    if max_decoded_bytes:
        most = min(most, max_decoded_bytes // (4 * channels) + 1)  # one too many shows that the limit is passed
    room = min(most, max(FIRST_FRAMES, FRAMES_PER_BYTE * recording.size))
    samples, filled = np.empty((channels, room), np.float32), 0
    while True:
        filled += recording.read_into(samples[:, filled:])
        if filled < room or room == most:
            break
        room = min(most, 2 * room)
        larger = np.empty((channels, room), np.float32)
        larger[:, :filled] = samples
        samples = larger
    _check_size(channels, filled, max_decoded_bytes)
    return samples if filled == room else samples[:, :filled].copy()


def resampled_length(frames: int, source: int, target: int) -> int:
    """Samples after resampling: ceil(frames * target / source)."""
    return -(-frames * target // source)


def average_channels(samples: np.ndarray, out: np.ndarray) -> None:
    """The mean over the channels of float32[c, n] into float32[1, n]."""
    np.add.reduce(samples, axis=0, out=out[0])
    np.divide(out, np.float32(len(samples)), out=out)


@lru_cache(maxsize=64)
def _period(source: int, target: int) -> tuple[np.ndarray, np.ndarray]:
    """Positions of the first `target` output samples, for rates without a common factor."""
    return _positions(0, target, source, target)


def _positions(first: int, stop: int, source: int, target: int) -> tuple[np.ndarray, np.ndarray]:
    """For output samples `first` to `stop`: the input sample at or before i * source / target, and the distance to it."""
    scaled = np.arange(first, stop, dtype=np.int64) * source
    index = scaled // target
    return index, ((scaled - index * target) / target).astype(np.float32)


def _blend(before: np.ndarray, after: np.ndarray, weight: np.ndarray, out: np.ndarray) -> None:
    """before * (1 - weight) + after * weight."""
    np.multiply(after, weight, out=after)
    np.multiply(before, 1 - weight, out=out)
    np.add(out, after, out=out)


def resample_linear(samples: np.ndarray, out: np.ndarray, source: int, target: int) -> None:
    """Linear interpolation at positions i * source / target; behind the last sample its value is held. No low-pass filter.

    Args:
        samples: float32[c, n].
        out: float32[c, ceil(n * target / source)].
        source, target: Hz.
    """
    count, wanted = samples.shape[1], out.shape[1]
    if wanted == 0:
        return
    common = math.gcd(source, target)
    source, target = source // common, target // common
    periods = (count - 1) // source if target <= MAX_PERIOD else 0
    done = periods * target
    if periods:  # the same positions in every period: one gather over windows of the input
        index, weight = _period(source, target)
        for channel, result in zip(samples, out):
            windows = np.lib.stride_tricks.sliding_window_view(channel, source + 1)[: periods * source : source]
            _blend(windows[:, index], windows[:, index + 1], weight, result[:done].reshape(periods, target))
    for first in range(done, wanted, TAIL_BLOCK):
        stop = min(first + TAIL_BLOCK, wanted)
        index, weight = _positions(first, stop, source, target)
        before, after = np.minimum(index, count - 1), np.minimum(index + 1, count - 1)
        _blend(samples[:, before], samples[:, after], weight, out[:, first:stop])


def resample_sinc(samples: np.ndarray, out: np.ndarray, source: int, target: int) -> None:
    """Band-limited resampling by the SoX resampler at quality "HQ".

    Args:
        samples: float32[c, n].
        out: float32[c, ceil(n * target / source)]; soxr's own result, with zeros taken to follow the recording.
        source, target: Hz.

    Raises:
        OpError: a ratio of rates that the resampler refuses.
    """
    channels, count = samples.shape
    padded = np.zeros((channels, count + 2 * -(-source // target) + 1), np.float32)  # soxr rounds the length, zeros give the rest
    padded[:, :count] = samples
    try:
        found = _soxr().resample(padded.T, source, target, quality="HQ")
    except (RuntimeError, ValueError) as error:
        raise OpError(f"cannot resample from {source} to {target} Hz: {error}") from error
    np.copyto(out, found[: out.shape[1]].T)


def _result_shape(channels: int, frames: int, rate: int, sample_rate: int | None, mono: bool) -> tuple[int, int]:
    length = frames if sample_rate is None else resampled_length(frames, rate, sample_rate)
    return (1 if mono else channels), length


def _convert(
    samples: np.ndarray, out: np.ndarray, rate: int, sample_rate: int | None, mono: bool, resampling: Resampling
) -> None:
    """Average the channels, then resample, into `out`."""
    resamples = sample_rate is not None and sample_rate != rate
    if mono and len(samples) > 1:
        mixed = np.empty((1, samples.shape[1]), np.float32) if resamples else out
        average_channels(samples, mixed)
        samples = mixed
    if resamples:
        resample = resample_linear if resampling == "linear" else resample_sinc
        resample(samples, out, rate, sample_rate)  # type: ignore[arg-type]
    elif samples is not out:
        np.copyto(out, samples)


def _converts(recording: Recording, sample_rate: int | None, mono: bool) -> bool:
    return (mono and recording.channels > 1) or sample_rate not in (None, recording.rate)


def _infer(given: TensorType, *, mono: bool, **_: Any) -> TensorType:
    return TensorType((1 if mono else None, None), "float32")


def samples_and_rate(data: BytesLike, max_decoded_bytes: int) -> tuple[np.ndarray, int]:
    """float32[channels, samples] of one sound file as stored, and its rate in Hz; errors as `audio` raises them."""
    with _opened(data, max_decoded_bytes) as recording:
        return _read_whole(recording, max_decoded_bytes), recording.rate


@register_op("audio", kind="decoder", infer=_infer, method_hides=("max_decoded_bytes",))
def audio(
    data: BytesLike,
    *,
    sample_rate: SampleRate | None = None,
    mono: bool = False,
    max_decoded_bytes: Count = 2147483648,
    resampling: Resampling = "linear",
) -> np.ndarray:
    """Decode one sound file; its format is told from the content.

    Args:
        data: WAV, FLAC, Ogg Vorbis, Ogg Opus, MP3, AIFF, AU, CAF, W64 or whatever else the installed libsndfile reads. All but
            plain WAV need the packages of the extra "audio".
        sample_rate: Hz to convert to; None keeps the file's own.
        mono: average the channels, before resampling.
        max_decoded_bytes: limit on the bytes of the samples, as stored and as returned; 0 for none.
        resampling: "linear" interpolates between neighbours at positions i * source / target and holds the last value; nothing
            is filtered, so a lower rate folds high frequencies back. "sinc" is band-limited (the SoX resampler, quality "HQ").

    Returns:
        float32[channels, samples], planar, in [-1, 1] for integer formats: int16 divides by 32768, uint8 is (v - 128) / 128.
        Exactly what soundfile's `SoundFile.read` gives as float32. Resampled, ceil(n * target / source) samples. A truncated WAV gives the samples
        present; zero samples give [channels, 0]. Ogg files have the length their last page states, without padding.

    Raises:
        LimitError: larger than `max_decoded_bytes`; by the header before anything is allocated, else as soon as it shows.
        OpError: no known format, damaged data, more than 255 channels or a rate above 10 MHz.
        MissingDependencyError: the file or the resampling needs a package that is not installed.
    """
    with _opened(data, max_decoded_bytes) as recording:
        rate = recording.rate
        converts = _converts(recording, sample_rate, mono)
        samples = _read_whole(recording, max_decoded_bytes)
    if not converts:
        return samples
    channels, frames = samples.shape
    shape = _result_shape(channels, frames, rate, sample_rate, mono)
    _check_size(*shape, max_decoded_bytes)
    out = np.empty(shape, np.float32)
    _convert(samples, out, rate, sample_rate, mono, resampling)
    return out


@register_kernel("audio", "out", kind="decoder")
def audio_out(
    data: BytesLike,
    out: np.ndarray,
    *,
    sample_rate: int | None = None,
    mono: bool = False,
    max_decoded_bytes: int = 2147483648,
    resampling: Resampling = "linear",
) -> bool:
    """`audio` into `out`; False when the header announces another shape, or the data do not hold what it announces."""
    with _opened(data, max_decoded_bytes) as recording:
        frames = recording.frames
        shape = _result_shape(recording.channels, frames, recording.rate, sample_rate, mono)
        if out.dtype != np.float32 or out.shape != shape:
            return False
        if not _converts(recording, sample_rate, mono):
            return recording.read_into(out) == frames
        samples = _read_whole(recording, max_decoded_bytes)
        if samples.shape[1] != frames:
            return False
        _convert(samples, out, recording.rate, sample_rate, mono, resampling)
    return True
