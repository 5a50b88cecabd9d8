"""Make the golden values of the audio ops: tests/golden/audio.npz.

Run it in an environment of its own:

    pip install torch==2.9.1 torchaudio==2.9.* numpy
    python scripts/golden/audio.py

It only needs to run again when a case is added. Everything comes from torchaudio; the sounds are stored as well.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import torchaudio
from torchaudio.functional import melscale_fbanks

TARGET = Path(__file__).resolve().parents[2] / "tests" / "golden" / "audio.npz"
RATE = 16000

FILTERBANKS = [  # bins, n_mels, sample rate, f_min, f_max
    (201, 80, 16000, 0.0, 8000.0),
    (257, 40, 16000, 20.0, 7600.0),
    (129, 23, 8000, 0.0, 4000.0),
    (201, 20, 16000, 0.0, 11000.0),
]
MEL_SPECTROGRAMS = [  # n_fft, hop_length, n_mels, window, power
    (400, 160, 40, "hann", 2.0),
    (512, 512, 23, "hamming", 1.0),
]
MFCCS = [  # n_fft, hop_length, n_mels, n_mfcc
    (400, 160, 40, 13),
    (256, 100, 24, 24),
]
RESAMPLED = [(44100, 16000), (16000, 22050), (48000, 16000)]  # from, to
WINDOWS = {"hann": torch.hann_window, "hamming": torch.hamming_window}


def sound(samples: int) -> np.ndarray:
    """float32[2, samples]: a rising tone and two steady ones, with noise that keeps every mel band within 80 dB."""
    rng = np.random.default_rng(5)
    time = np.arange(samples) / RATE
    tones = [np.sin(2 * np.pi * (200 + 3000 * time) * time), np.sin(2 * np.pi * 440 * time) + np.sin(2 * np.pi * 3100 * time)]
    return (0.3 * np.stack(tones) + 0.02 * rng.standard_normal((2, samples))).astype(np.float32)


def smooth_sound(rate: int, seconds: float) -> np.ndarray:
    """float32[1, n] of tones below 5 kHz, which every rate here can hold; it fades in and out."""
    time = np.arange(int(rate * seconds)) / rate
    tones = sum(np.sin(2 * np.pi * f * time + f) for f in (130.0, 1100.0, 2900.0, 4900.0))
    return (0.2 * tones * np.sin(np.pi * time / seconds) ** 2).astype(np.float32)[None]


def main() -> None:
    stereo = sound(4000)
    values = {
        "sound": stereo,
        "filterbank_cases": np.array(FILTERBANKS),
        "mel_cases": np.array([(*c[:3], c[4]) for c in MEL_SPECTROGRAMS]),
        "mel_windows": np.array([c[3] for c in MEL_SPECTROGRAMS]),
        "mfcc_cases": np.array(MFCCS),
        "resample_cases": np.array(RESAMPLED),
    }
    for i, (bins, n_mels, rate, f_min, f_max) in enumerate(FILTERBANKS):
        values[f"filterbank_{i}"] = melscale_fbanks(bins, f_min, f_max, n_mels, rate).T.contiguous().numpy()
    for i, (n_fft, hop_length, n_mels, window, power) in enumerate(MEL_SPECTROGRAMS):
        mel = torchaudio.transforms.MelSpectrogram(
            RATE, n_fft, hop_length=hop_length, n_mels=n_mels, window_fn=WINDOWS[window], power=power, center=False
        )
        values[f"mel_{i}"] = mel(torch.from_numpy(stereo)).numpy()
    for i, (n_fft, hop_length, n_mels, n_mfcc) in enumerate(MFCCS):
        arguments = {"n_fft": n_fft, "hop_length": hop_length, "n_mels": n_mels, "center": False}
        values[f"mfcc_{i}"] = torchaudio.transforms.MFCC(RATE, n_mfcc, melkwargs=arguments)(torch.from_numpy(stereo)).numpy()
    for i, (source, target) in enumerate(RESAMPLED):
        tones = smooth_sound(source, 0.1)
        values[f"resample_{i}_in"] = tones
        values[f"resample_{i}"] = torchaudio.functional.resample(
            torch.from_numpy(tones), source, target, lowpass_filter_width=64, rolloff=0.95
        ).numpy()
    TARGET.parent.mkdir(exist_ok=True)
    np.savez_compressed(TARGET, **values)
    print(TARGET, TARGET.stat().st_size)


if __name__ == "__main__":
    main()
