"""Spectrogram, mel filterbank and MFCC: against torch, torchaudio and SciPy; types, `out` kernels, bad input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.fft
import scipy.signal
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dataio.engine.errors import OpError, PlanError
from dataio.engine.schema import TensorType, type_of
from dataio.formats.audio import spectral as module
from dataio.formats.audio.spectral import cosine_matrix, mel_triangles, window_values

from .helpers import ops_registered_by, run, run_out, transform

GOLDEN = np.load(Path(__file__).parents[1] / "golden" / "audio.npz")
SOUND = GOLDEN["sound"]

CASES = [  # op, arguments, input shape, output shape
    pytest.param("spectrogram", {}, (1000,), (201, 4), id="spectrogram"),
    pytest.param("spectrogram", {}, (1, 1000), (201, 4), id="spectrogram-one-channel"),
    pytest.param("spectrogram", {}, (2, 1000), (2, 201, 4), id="spectrogram-stereo"),
    pytest.param("spectrogram", {"power": 1.0, "window": "rect"}, (3, 1000), (3, 201, 4), id="magnitude"),
    pytest.param("spectrogram", {"n_fft": 33, "hop_length": 10, "window": "hamming"}, (100,), (17, 7), id="odd-n_fft"),
    pytest.param("spectrogram", {"n_fft": 1, "hop_length": 1}, (5,), (1, 5), id="n_fft-1"),
    pytest.param("spectrogram", {}, (2, 399), (2, 201, 1), id="shorter-than-a-frame"),
    pytest.param("spectrogram", {}, (400,), (201, 1), id="one-frame"),
    pytest.param("spectrogram", {"n_fft": 16, "hop_length": 1}, (20000,), (9, 19985), id="many-blocks"),
    pytest.param("mel_filterbank", {"n_mels": 80, "sample_rate": 16000}, (201, 7), (80, 7), id="mel"),
    pytest.param("mel_filterbank", {"n_mels": 23, "sample_rate": 8000}, (2, 129, 7), (2, 23, 7), id="mel-stereo"),
    pytest.param("mel_filterbank", {"n_mels": 5, "sample_rate": 8000}, (1, 129, 0), (1, 5, 0), id="mel-no-frames"),
    pytest.param("mel_filterbank", {"n_mels": 5, "sample_rate": 8000}, (1, 4), (5, 4), id="mel-one-bin"),
    pytest.param("mel_filterbank", {"n_mels": 40, "sample_rate": 8000}, (129, 3000), (40, 3000), id="mel-long"),
    pytest.param("mfcc", {"sample_rate": 16000}, (1000,), (13, 4), id="mfcc"),
    pytest.param("mfcc", {"sample_rate": 16000, "log_base": "natural"}, (2, 1000), (2, 13, 4), id="mfcc-stereo"),
    pytest.param("mfcc", {"sample_rate": 16000}, (1, 100), (13, 1), id="mfcc-short"),
    pytest.param("mfcc", {"sample_rate": 8000, "n_fft": 16, "hop_length": 2}, (30000,), (13, 14993), id="mfcc-long"),
]


def noise(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Positive float32, fit for samples and for powers."""
    return np.random.default_rng(seed).random(shape, np.float32)


def compute(op: str, value: np.ndarray, **arguments: Any) -> np.ndarray:
    return np.asarray(run(transform(op, **arguments), value))


def assert_close(found: np.ndarray, expected: np.ndarray, tolerance: float) -> None:
    """Equal within `tolerance` of the largest value."""
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * np.abs(expected).max(initial=0))


def test_every_op_of_this_module_has_a_case():
    assert {case.values[0] for case in CASES} == ops_registered_by("audio.spectral")


@pytest.mark.parametrize(("op", "args", "shape", "expected"), CASES)
def test_inferred_type_is_the_actual_one(op, args, shape, expected):
    call, value = transform(op, **args), noise(shape)
    found = run(call, value)
    inferred = call.spec.output_type(type_of(value), call.arguments)
    assert found.shape == expected == inferred.shape
    assert found.dtype.name == inferred.dtype == "float32"


@pytest.mark.parametrize(("op", "args", "shape", "expected"), CASES)
def test_out_kernel_equals_plain_function(op, args, shape, expected):
    call, value = transform(op, **args), noise(shape)
    batch = np.full((3, *expected), 77, np.float32)
    run_out(call, value, batch[1])
    np.testing.assert_array_equal(batch[1], run(call, value))
    assert (batch[::2] == 77).all()


@pytest.mark.parametrize(("op", "args", "shape", "expected"), CASES)
def test_read_only_and_strided_inputs_give_the_same(op, args, shape, expected):
    call, value = transform(op, **args), noise(shape)
    wider = np.repeat(value, 2, axis=-1)[..., ::2]
    wider.flags.writeable = False
    assert_close(run(call, wider), run(call, value), 1e-6)


@pytest.mark.parametrize(
    ("op", "args", "given_shape", "shape"),
    [
        ("spectrogram", {}, None, None),
        ("spectrogram", {}, (None,), (201, None)),
        ("spectrogram", {}, (1, None), (201, None)),
        ("spectrogram", {}, (2, None), (2, 201, None)),
        ("spectrogram", {}, (None, 1000), None),
        ("mel_filterbank", {"n_mels": 8, "sample_rate": 8000}, None, None),
        ("mel_filterbank", {"n_mels": 8, "sample_rate": 8000}, (201, None), (8, None)),
        ("mel_filterbank", {"n_mels": 8, "sample_rate": 8000}, (None, 201, None), (None, 8, None)),
        ("mfcc", {"sample_rate": 8000}, (1, None), (13, None)),
        ("mfcc", {"sample_rate": 8000}, (None, None), None),
    ],
)
def test_inference_of_unknown_sizes(op, args, given_shape, shape):
    call = transform(op, **args)
    inferred = call.spec.output_type(TensorType(given_shape, "float32"), call.arguments)
    assert inferred == TensorType(shape, "float32")


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 3), st.integers(1, 700), st.integers(1, 300), st.integers(1, 300))
def test_inference_holds_for_any_framing(channels, samples, n_fft, hop_length):
    call = transform("spectrogram", n_fft=n_fft, hop_length=min(hop_length, n_fft))
    value = noise((channels, samples))
    assert run(call, value).shape == call.spec.output_type(type_of(value), call.arguments).shape


# Values


WINDOWS = {"hann": torch.hann_window, "hamming": torch.hamming_window, "rect": torch.ones}


@pytest.mark.parametrize("length", [1, 2, 5, 400])
@pytest.mark.parametrize("window", sorted(WINDOWS))
def test_windows_are_those_of_torch(window, length):
    np.testing.assert_allclose(window_values(window, length), WINDOWS[window](length, dtype=torch.float64), atol=1e-7)


@pytest.mark.parametrize("power", [1.0, 2.0])
@pytest.mark.parametrize("window", sorted(WINDOWS))
@pytest.mark.parametrize(("n_fft", "hop_length"), [(400, 160), (441, 220), (512, 128), (1024, 256), (2048, 512)])
def test_spectrogram_of_usual_length_is_within_5e_7_of_torch(n_fft, hop_length, window, power):
    transformed = torch.stft(
        torch.from_numpy(SOUND), n_fft, hop_length, window=WINDOWS[window](n_fft), center=False, return_complex=True
    )
    found = compute("spectrogram", SOUND, n_fft=n_fft, hop_length=hop_length, window=window, power=power)
    assert_close(found, transformed.abs().pow(power).numpy(), 5e-7)


@pytest.fixture(params=["opencv", "numpy"])
def fft(request, monkeypatch):
    """Both transforms, also where the one is not the faster."""
    monkeypatch.setattr(module, "_opencv_is_fast", lambda: request.param == "opencv")


def exact_spectrogram(sound: np.ndarray, n_fft: int, hop_length: int, power: float) -> np.ndarray:
    """With a Hann window, in float64: float64[n_fft // 2 + 1, frames] of float32[n]."""
    frames = np.lib.stride_tricks.sliding_window_view(sound, n_fft)[::hop_length]
    window = scipy.signal.get_window("hann", n_fft).astype(np.float32)
    return np.abs(np.fft.rfft(np.multiply(frames, window, dtype=np.float64))).T ** power


@pytest.mark.usefixtures("fft")
@pytest.mark.parametrize("power", [1.0, 2.0])
@pytest.mark.parametrize("n_fft", [1, 2, 3, 4, 5, 8, 97, 255, 400, 401, 1009, 2205, 3989])
def test_spectrogram_of_any_length_is_within_7e_7_of_the_exact_one(n_fft, power):
    hop_length = -(-n_fft // 8)
    found = compute("spectrogram", SOUND[0], n_fft=n_fft, hop_length=hop_length, power=power)
    assert_close(found, exact_spectrogram(SOUND[0], n_fft, hop_length, power), 7e-7)


@pytest.mark.usefixtures("fft")
@pytest.mark.parametrize(("op", "args", "shape", "expected"), CASES)
def test_both_transforms_fill_the_result(op, args, shape, expected):
    call, value = transform(op, **args), noise(shape)
    batch = np.full((3, *expected), 77, np.float32)
    run_out(call, value, batch[1])
    assert_close(batch[1], run(call, value), 0.0)
    assert (batch[::2] == 77).all()


def test_a_frame_longer_than_a_block_is_transformed_alone():
    sound = noise((1 << 17,))
    found = compute("spectrogram", sound, n_fft=100_000, hop_length=20_000)
    assert_close(found, exact_spectrogram(sound, 100_000, 20_000, 2.0), 7e-7)


def test_a_tone_on_a_bin_shows_there_alone():
    tone = np.cos(2 * np.pi * 20 * np.arange(400) / 400).astype(np.float32)
    found = compute("spectrogram", tone, window="rect", power=1.0)[:, 0]
    np.testing.assert_allclose(found, np.where(np.arange(201) == 20, 200.0, 0.0), atol=1e-4)


def mel_weights(n_mels: int, rate: int, bins: int, f_min: float, f_max: float) -> np.ndarray:
    weights = np.zeros((n_mels, bins), np.float32)
    for row, (first, triangle) in zip(weights, mel_triangles(n_mels, rate, bins, f_min, f_max), strict=True):
        row[first : first + len(triangle)] = triangle
    return weights


@pytest.mark.parametrize("case", range(len(GOLDEN["filterbank_cases"])))
def test_mel_weights_are_within_6e_6_of_torchaudio(case):
    bins, n_mels, rate, f_min, f_max = GOLDEN["filterbank_cases"][case]
    found = mel_weights(int(n_mels), int(rate), int(bins), f_min, f_max)
    assert_close(found, GOLDEN[f"filterbank_{case}"], 6e-6)


@pytest.mark.parametrize("case", range(len(GOLDEN["mel_cases"])))
def test_mel_spectrogram_is_within_2e_6_of_torchaudio(case):
    n_fft, hop_length, n_mels = map(int, GOLDEN["mel_cases"][case][:3])
    framing = {"n_fft": n_fft, "hop_length": hop_length, "window": str(GOLDEN["mel_windows"][case])}
    spectra = compute("spectrogram", SOUND, **framing, power=float(GOLDEN["mel_cases"][case][3]))
    found = compute("mel_filterbank", spectra, n_mels=n_mels, sample_rate=16000)
    assert_close(found, GOLDEN[f"mel_{case}"], 2e-6)


@pytest.mark.parametrize(("bins", "frames", "n_mels"), [(201, 98, 80), (513, 700, 128), (33, 5, 200), (2049, 40, 3)])
def test_mel_filterbank_is_the_product_with_the_weights(bins, frames, n_mels):
    spectra = noise((bins, frames))
    weights = mel_weights(n_mels, 16000, bins, 0.0, 0.0).astype(np.float64)
    found = compute("mel_filterbank", spectra, n_mels=n_mels, sample_rate=16000)
    assert_close(found, weights @ spectra, 2e-6)


def test_many_filters_over_many_bins_take_as_long_as_the_bins_they_read():
    """8,192 triangles over 2**20 bins: worked out over all bins each, they took minutes."""
    triangles = list(mel_triangles(8192, 48000, 1 << 20, 0.0, 0.0))
    assert sum(len(weights) for _, weights in triangles) < 3 << 20
    assert all(weights.min() > 0 for _, weights in triangles if len(weights))


def test_f_max_of_zero_is_half_the_rate():
    spectra = noise((201, 5))
    common = {"n_mels": 40, "sample_rate": 11025}
    np.testing.assert_array_equal(
        compute("mel_filterbank", spectra, **common), compute("mel_filterbank", spectra, **common, f_max=5512.5)
    )


def test_filters_above_half_the_rate_are_empty():
    found = compute("mel_filterbank", noise((201, 5)), n_mels=10, sample_rate=8000, f_max=20000.0)
    assert (found[0] > 0).all()
    assert (found[-1] == 0).all()


@pytest.mark.parametrize("case", range(len(GOLDEN["mfcc_cases"])))
def test_mfcc_is_within_1e_5_of_torchaudio(case):
    n_fft, hop_length, n_mels, n_mfcc = map(int, GOLDEN["mfcc_cases"][case])
    arguments = {"n_fft": n_fft, "hop_length": hop_length, "n_mels": n_mels, "n_mfcc": n_mfcc}
    assert_close(compute("mfcc", SOUND, sample_rate=16000, **arguments), GOLDEN[f"mfcc_{case}"], 1e-5)


@pytest.mark.parametrize("log_base", ["db", "natural"])
def test_mfcc_is_within_3e_5_of_scipy(log_base):
    spectra = compute("spectrogram", SOUND)
    mel = compute("mel_filterbank", spectra, n_mels=40, sample_rate=16000).astype(np.float64)
    logarithm = np.log(np.maximum(mel, 1e-10)) * (10 / np.log(10) if log_base == "db" else 1)
    expected = scipy.fft.dct(logarithm, axis=1, norm="ortho")[:, :13]
    assert_close(compute("mfcc", SOUND, sample_rate=16000, log_base=log_base), expected, 3e-5)


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (13, 40), (40, 40)])
def test_cosine_matrix_is_that_of_scipy(rows, columns):
    expected = scipy.fft.dct(np.eye(columns), axis=0, norm="ortho")[:rows]
    np.testing.assert_allclose(cosine_matrix(rows, columns), expected, atol=1e-7)


def test_silence_has_the_floor_of_the_logarithm():
    found = compute("mfcc", np.zeros(1000, np.float32), sample_rate=16000)
    np.testing.assert_allclose(found[0], -100.0 * np.sqrt(40), rtol=1e-6)
    np.testing.assert_allclose(found[1:], 0.0, atol=1e-3)


def test_channels_are_computed_each_on_its_own():
    for op in ("spectrogram", "mfcc"):
        args = {"sample_rate": 16000} if op == "mfcc" else {}
        both = compute(op, SOUND, **args)
        for channel, sound in zip(both, SOUND):
            np.testing.assert_array_equal(channel, compute(op, sound, **args))


def test_block_size_changes_nothing(monkeypatch):
    whole = compute("spectrogram", SOUND), compute("mfcc", SOUND, sample_rate=16000)
    monkeypatch.setattr(module, "BLOCK_SAMPLES", 900)
    np.testing.assert_array_equal(compute("spectrogram", SOUND), whole[0])
    assert_close(compute("mfcc", SOUND, sample_rate=16000), whole[1], 1e-6)


# Odd and bad input


@pytest.mark.filterwarnings("error")
@pytest.mark.usefixtures("fft")
@pytest.mark.parametrize("op", ["spectrogram", "mfcc"])
def test_nan_stays_in_its_frames(op):
    sound = SOUND[0].copy()
    sound[1000] = np.nan
    found = compute(op, sound, **({"sample_rate": 16000} if op == "mfcc" else {}))
    touched = [first * 160 <= 1000 < first * 160 + 400 for first in range(found.shape[1])]
    np.testing.assert_array_equal(np.isnan(found).all(axis=0), touched)
    np.testing.assert_array_equal(np.isnan(found).any(axis=0), touched)


@pytest.mark.filterwarnings("error")
@pytest.mark.usefixtures("fft")
def test_huge_samples_overflow_to_infinity_in_powers_alone():
    sound = np.full(400, 1e30, np.float32)
    assert np.isinf(compute("spectrogram", sound)[0, 0])
    assert np.isfinite(compute("spectrogram", sound, power=1.0)).all()


@pytest.mark.usefixtures("fft")
def test_tiny_samples_have_magnitudes():
    found = compute("spectrogram", SOUND[0] * np.float32(1e-25), power=1.0)
    assert_close(found * 1e25, compute("spectrogram", SOUND[0], power=1.0), 1e-5)


@pytest.mark.filterwarnings("error")
@pytest.mark.usefixtures("fft")
def test_infinities_cause_no_warning():
    sound = SOUND[0].copy()
    sound[1000] = np.inf
    assert not np.isfinite(compute("spectrogram", sound)[:, 5]).any()


BAD_VALUES = [
    ("spectrogram", {}, np.zeros(1000, np.int16), "takes float32.*got int16"),
    ("spectrogram", {}, np.zeros((2, 1000), np.float64), "takes float32.*got float64"),
    ("spectrogram", {}, np.zeros((1, 2, 1000), np.float32), "takes float32.*got float32"),
    ("mfcc", {"sample_rate": 16000}, np.zeros(1000, np.int16), "takes float32.*got int16"),
    ("mel_filterbank", {"n_mels": 8, "sample_rate": 16000}, np.zeros(201, np.float32), "takes float32.*got float32"),
    ("mel_filterbank", {"n_mels": 8, "sample_rate": 16000}, np.zeros((201, 3), np.uint8), "takes float32.*got uint8"),
]


@pytest.mark.parametrize(("op", "args", "value", "message"), BAD_VALUES)
def test_other_types_are_refused_with_what_fits(op, args, value, message):
    with pytest.raises(OpError, match=message):
        compute(op, value, **args)


@pytest.mark.parametrize(("op", "args", "value", "message"), BAD_VALUES)
def test_other_types_are_refused_by_the_plan(op, args, value, message):
    call = transform(op, **args)
    with pytest.raises(PlanError, match="takes float32"):
        call.spec.output_type(type_of(value), call.arguments)


@pytest.mark.parametrize("shape", [(0,), (1, 0), (0, 1000)])
@pytest.mark.parametrize("op", ["spectrogram", "mfcc"])
def test_no_samples_are_a_row_error(op, shape):
    with pytest.raises(OpError, match="at least one sample"):
        compute(op, np.zeros(shape, np.float32), **({"sample_rate": 16000} if op == "mfcc" else {}))


def test_no_bins_are_a_row_error():
    with pytest.raises(OpError, match="at least one frequency bin"):
        compute("mel_filterbank", np.zeros((0, 5), np.float32), n_mels=4, sample_rate=8000)


@pytest.mark.parametrize(
    ("op", "args", "error", "message"),
    [
        ("spectrogram", {"n_fft": 0}, ValueError, "n_fft"),
        ("spectrogram", {"n_fft": (1 << 24) + 1}, ValueError, "n_fft"),
        ("spectrogram", {"hop_length": 0}, ValueError, "hop_length"),
        ("spectrogram", {"hop_length": 401}, ValueError, "401 > 400"),
        ("spectrogram", {"hop_length": -1}, TypeError, "hop_length"),
        ("spectrogram", {"window": "blackman"}, ValueError, "hann"),
        ("spectrogram", {"power": 3.0}, ValueError, "1.0 or 2.0"),
        ("spectrogram", {"power": True}, TypeError, "power"),
        ("mel_filterbank", {"n_mels": 8}, TypeError, "sample_rate"),
        ("mel_filterbank", {"n_mels": 0, "sample_rate": 8000}, ValueError, "n_mels"),
        ("mel_filterbank", {"n_mels": 8193, "sample_rate": 8000}, ValueError, "n_mels"),
        ("mel_filterbank", {"n_mels": 8, "sample_rate": 0}, ValueError, "sample_rate"),
        ("mel_filterbank", {"n_mels": 8, "sample_rate": 8000, "f_min": -1.0}, ValueError, "f_min"),
        ("mel_filterbank", {"n_mels": 8, "sample_rate": 8000, "f_min": 4000.0}, ValueError, "f_min < f_max"),
        ("mel_filterbank", {"n_mels": 8, "sample_rate": 8000, "f_min": 9.0, "f_max": 9.0}, ValueError, "f_min < f_max"),
        ("mel_filterbank", {"n_mels": 800, "sample_rate": 8000, "f_max": 1e-12}, ValueError, "wider band"),
        ("mel_filterbank", {"n_mels": 8, "sample_rate": 8000, "f_max": float("nan")}, ValueError, "finite"),
        ("mfcc", {}, TypeError, "sample_rate"),
        ("mfcc", {"sample_rate": 8000, "n_mfcc": 41}, ValueError, "41 > 40"),
        ("mfcc", {"sample_rate": 8000, "n_mfcc": 0}, ValueError, "n_mfcc"),
        ("mfcc", {"sample_rate": 8000, "log_base": "log2"}, ValueError, "natural"),
        ("mfcc", {"sample_rate": 8000, "hop_length": 500}, ValueError, "500 > 400"),
    ],
)
def test_bad_arguments(op, args, error, message):
    with pytest.raises(error, match=message):
        transform(op, **args)
