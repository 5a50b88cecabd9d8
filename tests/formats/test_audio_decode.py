"""The `audio` decoder: soundfile's samples for every format, resampling, limits, damaged files."""

from __future__ import annotations

import builtins
import io
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from dataio.engine.errors import LimitError, MissingDependencyError, OpError
from dataio.engine.registry import lookup
from dataio.engine.schema import TensorType
from dataio.formats.audio import decode as module
from dataio.formats.audio.decode import plain_wave, resample_linear, resample_sinc, resampled_length

from .helpers import decoder, run

GOLDEN = np.load(Path(__file__).parents[1] / "golden" / "audio.npz")
PLAIN = [("WAV", "PCM_16"), ("WAV", "PCM_24"), ("WAV", "PCM_32"), ("WAV", "FLOAT")]
FORMATS = [
    *PLAIN,
    ("WAV", "PCM_U8"),
    ("WAV", "DOUBLE"),
    ("WAV", "ULAW"),
    ("WAV", "ALAW"),
    ("WAVEX", "PCM_16"),
    ("RF64", "PCM_16"),
    ("W64", "PCM_24"),
    ("FLAC", "PCM_16"),
    ("FLAC", "PCM_24"),
    ("OGG", "VORBIS"),
    ("OGG", "OPUS"),
    ("MP3", "MPEG_LAYER_III"),
    ("AIFF", "PCM_16"),
    ("AU", "PCM_16"),
    ("CAF", "PCM_16"),
]


def sound(frames: int = 3000, channels: int = 2, seed: int = 0) -> np.ndarray:
    """float32[frames, channels]: a tone per channel, with noise."""
    noise = 0.05 * np.random.default_rng(seed).standard_normal((frames, channels))
    tones = np.sin(np.arange(frames)[:, None] * (0.05 + 0.03 * np.arange(channels)))
    return (0.4 * tones + noise).astype(np.float32)


def encode(samples: np.ndarray, rate: int = 16000, fmt: str = "WAV", subtype: str | None = None) -> bytes:
    out = io.BytesIO()
    soundfile.write(out, samples, rate, format=fmt, subtype=subtype)
    return out.getvalue()


def reference(data: bytes) -> np.ndarray:
    """soundfile's samples, float32[channels, n].

    Not by `soundfile.read`, which seeks first: after that libmpg123 rounds some samples the other way (6e-8).
    """
    with soundfile.SoundFile(io.BytesIO(data)) as file:
        return np.asarray(file.read(dtype="float32", always_2d=True).T)


def decode(data: Any, **arguments: Any) -> np.ndarray:
    return np.asarray(run(decoder("audio", **arguments), data))


def patched(data: bytes, offset: int, fmt: str, value: int) -> bytes:
    changed = bytearray(data)
    struct.pack_into(fmt, changed, offset, value)
    return bytes(changed)


def wave_with(**fields: int) -> bytes:
    """A stereo int16 WAV of 500 frames with these header fields changed."""
    offsets = {"tag": "20H", "channels": "22H", "rate": "24I", "frame_bytes": "32H", "bits": "34H", "data_size": "40I"}
    data = encode(sound(500))
    for name, value in fields.items():
        place = offsets[name]
        data = patched(data, int(place[:-1]), f"<{place[-1]}", value)
    return data


def flac_claiming(frames: int) -> bytes:
    """A stereo FLAC of 3,000 frames whose header claims others; 0 stands for an unknown length."""
    data = bytearray(encode(sound(), fmt="FLAC"))
    data[21] = data[21] & 0xF0 | frames >> 32
    data[22:26] = (frames & 0xFFFFFFFF).to_bytes(4, "big")
    return bytes(data)


# Formats


@pytest.mark.parametrize("channels", [1, 2, 5])
@pytest.mark.parametrize(("fmt", "subtype"), FORMATS)
def test_samples_are_those_of_soundfile(fmt, subtype, channels):
    if fmt == "MP3" and channels > 2:
        pytest.skip("MP3 has two channels at most")
    data = encode(sound(channels=channels), fmt=fmt, subtype=subtype)
    found = decode(data)
    assert found.dtype == np.float32
    assert found.flags.c_contiguous
    np.testing.assert_array_equal(found, reference(data))


@pytest.mark.parametrize(("fmt", "subtype"), PLAIN)
def test_plain_wave_files_need_no_library(fmt, subtype, monkeypatch):
    data = encode(sound(), fmt=fmt, subtype=subtype)
    expected = reference(data)
    monkeypatch.setattr(module, "_soundfile", lambda: pytest.fail("libsndfile was asked"))
    np.testing.assert_array_equal(decode(data), expected)


@pytest.mark.parametrize(("fmt", "subtype"), [("WAV", "PCM_16"), ("FLAC", "PCM_16")])
def test_int16_divides_by_32768(fmt, subtype):
    levels = np.array([-32768, -1, 0, 1, 32767], np.int16)
    found = decode(encode(levels[:, None], fmt=fmt, subtype=subtype))
    np.testing.assert_array_equal(found[0], levels / np.float32(32768))


def test_uint8_is_centred_at_128():
    data = encode(sound(4, 1), subtype="PCM_U8")[:44] + bytes([0, 127, 128, 255])
    np.testing.assert_array_equal(decode(data)[0], (np.array([0, 127, 128, 255]) - 128) / 128)


def test_float_samples_pass_as_they_are():
    samples = np.array([[np.nan], [np.inf], [-3.5], [1e-40]], np.float32)
    np.testing.assert_array_equal(decode(encode(samples, subtype="FLOAT"))[0], samples[:, 0])


@pytest.mark.parametrize(("fmt", "subtype"), [("WAV", "PCM_16"), ("WAV", "PCM_24"), ("OGG", "VORBIS"), ("AIFF", "PCM_16")])
def test_no_samples_give_no_samples(fmt, subtype):
    assert decode(encode(sound(0), fmt=fmt, subtype=subtype)).shape == (2, 0)


@pytest.mark.parametrize(("fmt", "subtype"), FORMATS)
def test_one_sample(fmt, subtype):
    assert decode(encode(sound(1, 1), fmt=fmt, subtype=subtype)).shape == (1, 1)


@pytest.mark.parametrize("frames", [1600, 1793])
def test_vorbis_has_its_stated_length_without_padding(frames):
    assert decode(encode(sound(frames, 1), fmt="OGG", subtype="VORBIS")).shape == (1, frames)


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview, lambda d: np.frombuffer(d, np.uint8)])
@pytest.mark.parametrize("fmt", ["WAV", "FLAC"])
def test_any_bytes_like_source(fmt, wrap):
    data = encode(sound(), fmt=fmt)
    np.testing.assert_array_equal(decode(wrap(data)), reference(data))


def test_without_files_in_memory_python_reads(monkeypatch):
    data = encode(sound(), fmt="FLAC")
    monkeypatch.delattr("os.memfd_create")
    np.testing.assert_array_equal(decode(data), reference(data))


def test_chunks_in_front_of_the_samples_are_skipped():
    data = encode(sound(100), subtype="PCM_16")
    odd = b"LIST" + struct.pack("<I", 5) + b"INFO!" + b"\0"
    longer = data[:36] + odd + data[36:]
    assert plain_wave(memoryview(longer)) is not None
    np.testing.assert_array_equal(decode(longer), reference(data))


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(PLAIN), st.lists(st.tuples(st.integers(0, 47), st.integers(0, 255)), max_size=3), st.integers(0, 500))
def test_a_plain_wave_reader_that_accepts_agrees_with_libsndfile(form, changes, length):
    data = bytearray(encode(sound(40), fmt=form[0], subtype=form[1]))
    for offset, value in changes:
        data[offset] = value
    data = bytes(data[: max(length, 44)])
    wave = plain_wave(memoryview(data))
    if wave is None or not 1 <= wave.rate <= module.MAX_SAMPLE_RATE or wave.channels > module.MAX_CHANNELS:
        return
    found = np.empty((wave.channels, wave.frames), np.float32)
    wave.read_into(found)
    try:
        expected = reference(data)
    except soundfile.LibsndfileError:  # it is strict about names of chunks that nobody reads
        return
    np.testing.assert_array_equal(found, expected)


# Channels and rates


@pytest.mark.parametrize("fmt", ["WAV", "FLAC"])
@pytest.mark.parametrize("channels", [1, 2, 3])
def test_mono_is_the_mean_and_keeps_its_axis(channels, fmt):
    data = encode(sound(channels=channels), fmt=fmt)
    found = decode(data, mono=True)
    assert found.shape == (1, 3000)
    np.testing.assert_allclose(found[0], reference(data).astype(np.float64).mean(axis=0), rtol=0, atol=1e-7)


RATES = [(44100, 16000), (16000, 44100), (48000, 16000), (8000, 16000), (22050, 16000), (7, 160), (16000, 12007), (9, 2)]


@pytest.mark.parametrize("frames", [1, 2, 1000, 4001])
@pytest.mark.parametrize(("source", "target"), RATES)
def test_linear_resampling_interpolates_at_source_positions(source, target, frames):
    samples = sound(frames).T
    out = np.empty((2, resampled_length(frames, source, target)), np.float32)
    resample_linear(samples, out, source, target)
    places = np.arange(out.shape[1]) * (source / target)
    for channel, found in zip(samples, out):
        np.testing.assert_allclose(found, np.interp(places, np.arange(frames), channel), rtol=0, atol=3e-7)


@pytest.mark.parametrize(
    ("frames", "source", "target", "length"),
    [(5, 2, 1, 3), (9, 4, 1, 3), (8, 4, 1, 2), (100, 8000, 16000, 200), (1, 44100, 8000, 1), (0, 44100, 8000, 0)],
)
@pytest.mark.parametrize("resampling", ["linear", "sinc"])
def test_length_rounds_up(frames, source, target, length, resampling):
    data = encode(sound(frames), source)
    assert decode(data, sample_rate=target, resampling=resampling).shape == (2, length)


@pytest.mark.parametrize("resampling", ["linear", "sinc"])
def test_own_rate_changes_nothing(resampling):
    data = encode(sound())
    np.testing.assert_array_equal(decode(data, sample_rate=16000, resampling=resampling), reference(data))


@pytest.mark.parametrize("case", range(len(GOLDEN["resample_cases"])))
def test_sinc_resampling_is_within_3e_5_of_torchaudio(case):
    source, target = map(int, GOLDEN["resample_cases"][case])
    expected = GOLDEN[f"resample_{case}"]
    found = np.empty_like(expected)
    resample_sinc(GOLDEN[f"resample_{case}_in"], found, source, target)
    np.testing.assert_allclose(found, expected, rtol=0, atol=3e-5 * np.abs(expected).max())


def test_sinc_removes_what_linear_folds_back():
    tone = np.sin(2 * np.pi * 7000 / 16000 * np.arange(16000)).astype(np.float32)[:, None]
    data = encode(0.5 * tone)
    energy = {r: float(np.square(decode(data, sample_rate=8000, resampling=r)[:, 100:-100]).mean()) for r in ("linear", "sinc")}
    assert energy["linear"] > 0.1
    assert energy["sinc"] < 1e-6


def test_mono_and_resampling_combine():
    data = encode(sound(), 16000)
    found = decode(data, mono=True, sample_rate=8000)
    np.testing.assert_array_equal(found[0], decode(data, mono=True)[0, ::2])


# Rows of a batch


CONVERSIONS = [
    {},
    {"mono": True},
    {"sample_rate": 8000},
    {"sample_rate": 22050, "mono": True},
    {"sample_rate": 22050, "resampling": "sinc"},
]


@pytest.mark.parametrize("arguments", CONVERSIONS)
@pytest.mark.parametrize("fmt", ["WAV", "FLAC"])
@pytest.mark.parametrize("channels", [1, 2])
def test_out_kernel_equals_plain_function(channels, fmt, arguments):
    data, call = encode(sound(channels=channels), fmt=fmt), decoder("audio", **arguments)
    plain = run(call, data)
    batch = np.full((3, *plain.shape), 77, np.float32)
    assert call.spec.kernels["out"](data, batch[1], **call.arguments) is True
    np.testing.assert_array_equal(batch[1], plain)
    assert (batch[::2] == 77).all()


@pytest.mark.parametrize(
    "data", [encode(sound(2999)), encode(sound(channels=1)), flac_claiming(4000), flac_claiming(0)],
    ids=["shorter", "one channel", "claims more", "length unknown"],
)  # fmt: skip
def test_out_kernel_declines_what_does_not_fit(data):
    out = np.empty((2, 3000), np.float32)
    assert lookup("audio", "decoder").kernels["out"](data, out) is False


@pytest.mark.parametrize(("mono", "channels"), [(False, None), (True, 1)])
def test_inferred_type(mono, channels):
    call = decoder("audio", mono=mono)
    assert call.spec.output_type(TensorType(), call.arguments) == TensorType((channels, None), "float32")


# Limits and damage


@pytest.mark.parametrize("fmt", ["WAV", "FLAC", "OGG"])
def test_byte_limit(fmt):
    data = encode(sound(3000), fmt=fmt)
    assert decode(data, max_decoded_bytes=24000).nbytes == 24000
    with pytest.raises(LimitError, match="decode to 24000 bytes and exceed max_decoded_bytes=23999"):
        decode(data, max_decoded_bytes=23999)


def test_byte_limit_holds_for_the_resampled_sound():
    with pytest.raises(LimitError, match="decode to 160000000 bytes"):
        decode(encode(sound(1000, 1), 1), sample_rate=40000, max_decoded_bytes=1 << 20)


def test_byte_limit_of_zero_is_none():
    assert decode(encode(sound()), max_decoded_bytes=0).shape == (2, 3000)


def test_unknown_length_gives_all_samples():
    np.testing.assert_array_equal(decode(flac_claiming(0)), reference(encode(sound(), fmt="FLAC")))


def test_byte_limit_holds_where_the_length_is_unknown():
    with pytest.raises(LimitError, match="max_decoded_bytes=8000"):
        decode(flac_claiming(0), max_decoded_bytes=8000)


def test_memory_grows_with_the_samples_found(monkeypatch):
    monkeypatch.setattr(module, "FIRST_FRAMES", 64)
    monkeypatch.setattr(module, "FRAMES_PER_BYTE", 0)
    data = encode(sound(), fmt="FLAC")
    np.testing.assert_array_equal(decode(data), reference(data))


@pytest.mark.parametrize("data", [flac_claiming(1 << 33), wave_with(data_size=0x7FFFFFFE)], ids=["FLAC", "WAV"])
def test_a_header_that_claims_much_costs_little_memory(data):
    tracemalloc.start()
    try:
        try:
            decode(data, max_decoded_bytes=0)
        except OpError:
            pass
        assert tracemalloc.get_traced_memory()[1] < 1 << 25
    finally:
        tracemalloc.stop()


def test_a_header_that_claims_too_much_is_refused_ahead():
    with pytest.raises(LimitError, match="8589934592 samples"):
        decode(flac_claiming(1 << 33))


@pytest.mark.parametrize("kept", [44, 45, 47, 48, 1000, 2043])
def test_truncated_wave_gives_the_frames_present(kept):
    data = encode(sound(500))[:kept]
    np.testing.assert_array_equal(decode(data), reference(encode(sound(500)))[:, : (kept - 44) // 4])


@pytest.mark.parametrize("size", [0xFFFFFFFF, 0x7FFFFFFF])
def test_wave_of_a_stream_gives_the_frames_present(size):
    np.testing.assert_array_equal(decode(wave_with(data_size=size)), reference(encode(sound(500))))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        pytest.param(b"", "not a readable sound file", id="empty"),
        pytest.param(b"RIFF", "not a readable sound file", id="four bytes"),
        pytest.param(b"hello world, this is no sound at all" * 9, "starts with b'hello wo'", id="text"),
        pytest.param(np.random.default_rng(1).bytes(999), "not a readable sound file", id="noise"),
        pytest.param(encode(sound(500))[:30], "not a readable sound file", id="WAV cut in its header"),
        pytest.param(encode(sound(500), fmt="OGG")[:60], "not a readable sound file", id="OGG cut in its header"),
        pytest.param(encode(sound(9000), fmt="FLAC")[:9000], "damaged or truncated FLAC", id="FLAC cut"),
        pytest.param(wave_with(rate=0), "sample rates from 1 to 10000000 Hz, the header says 0", id="rate 0"),
        pytest.param(wave_with(rate=0xFFFFFFFF), "the header says 4294967295", id="absurd rate"),
        pytest.param(wave_with(channels=0), "not a readable sound file", id="no channels"),
        pytest.param(wave_with(channels=1000), "1 to 255 channels, the header says 1000", id="1000 channels"),
        pytest.param(wave_with(channels=300, frame_bytes=600), "the header says 300", id="300 channels"),
        pytest.param(wave_with(bits=99), "not a readable sound file", id="99 bits"),
        pytest.param(wave_with(tag=99), "not a readable sound file", id="unknown codec"),
    ],
)
def test_bad_files_are_refused(data, message):
    with pytest.raises(OpError, match=message):
        decode(data)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["WAV", "FLAC", "AIFF", "AU"]), st.lists(st.tuples(st.integers(0, 120), st.integers(0, 255)), max_size=6))
def test_damaged_headers_decode_or_raise_a_row_error(fmt, changes):
    data = bytearray(encode(sound(200), fmt=fmt))
    for offset, value in changes:
        data[offset] = value
    try:
        found = decode(bytes(data), max_decoded_bytes=1 << 22)
    except OpError:
        return
    assert found.ndim == 2
    assert found.nbytes <= 1 << 22


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"sample_rate": 0}, ValueError),
        ({"sample_rate": 1 << 40}, ValueError),
        ({"sample_rate": -1}, TypeError),
        ({"sample_rate": 16000.0}, TypeError),
        ({"sample_rate": True}, TypeError),
        ({"mono": 1}, TypeError),
        ({"max_decoded_bytes": -1}, TypeError),
        ({"resampling": "cubic"}, ValueError),
    ],
)
def test_bad_arguments(arguments, error):
    with pytest.raises(error):
        decoder("audio", **arguments)


@pytest.mark.parametrize(
    ("package", "function", "data", "arguments"),
    [
        ("soundfile", "_soundfile", encode(sound(9), fmt="FLAC"), {}),
        ("soxr", "_soxr", encode(sound(9)), {"sample_rate": 8000, "resampling": "sinc"}),
    ],
)
def test_a_missing_package_comes_with_its_install_line(monkeypatch, package, function, data, arguments):
    plain_import = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == package:
            raise ImportError(name)
        return plain_import(name, *rest)

    getattr(module, function).cache_clear()
    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.setattr(module, "_forward_file", module._forward_file.__wrapped__)
    with pytest.raises(MissingDependencyError, match=r"pip install 'dataio-py\[audio\]'"):
        decode(data, **arguments)
