"""Sound to padded batches: files in several formats, rates and lengths become log-mel spectrograms and MFCCs.

    python examples/audio_pipeline.py

The sounds are synthesised vowels: harmonics of a voice's pitch under the resonances (formants) of "ah", "ee" and "oo", the
averages that Peterson and Barney measured in 1952. They are written as WAV, FLAC, Ogg Vorbis and MP3, and one file is damaged.
To show that the numbers mean something, vowels of voices not heard before are recognised by the nearest mean MFCC.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch

import dataio

FORMANTS = {"ah": (730, 1090, 2440), "ee": (270, 2290, 3010), "oo": (300, 870, 2240)}  # Hz
FILES = (("wav", 44100), ("flac", 16000), ("ogg", 22050), ("mp3", 48000))
VOICES = 12
RATE = 16000
BATCH = 9


def vowel(formants: tuple[int, ...], pitch: float, rate: int, seconds: float, rng: np.random.Generator) -> np.ndarray:
    """float64[n]: harmonics of a falling pitch, each as strong as the resonances let it through, and some breath."""
    time = np.arange(int(rate * seconds)) / rate
    cycles = np.cumsum(pitch * (1 - 0.15 * time / seconds)) / rate
    sound = 0.02 * rng.standard_normal(len(time))
    for harmonic in range(1, int(min(5000, rate / 2) / pitch)):
        strength = sum(1 / (1 + ((harmonic * pitch - f) / 90) ** 2) for f in formants)
        sound += strength / harmonic**0.5 * np.sin(2 * np.pi * harmonic * cycles + rng.uniform(0, 2 * np.pi))
    return np.asarray(0.5 * sound * np.sin(np.pi * time / seconds) ** 0.5 / np.abs(sound).max())


def make_dataset(folder: Path) -> list[dict[str, Any]]:
    """One file per voice and vowel, in stereo."""
    rng = np.random.default_rng(0)
    rows = []
    for voice in range(VOICES):
        pitch = rng.uniform(90, 250)
        for name, formants in FORMANTS.items():
            suffix, rate = FILES[len(rows) % len(FILES)]
            seconds = rng.uniform(0.4, 1.0)
            left = vowel(formants, pitch, rate, seconds, rng)
            path = folder / f"voice-{voice}-{name}.{suffix}"
            soundfile.write(path, np.stack([left, 0.6 * left], axis=1), rate)
            rows.append({"path": path, "vowel": name, "voice": voice})
    damaged = folder / "voice-3-ah.flac"
    damaged.write_bytes(damaged.read_bytes()[:3000])
    return rows


def to_record(row: dict[str, Any]) -> dict[str, Any]:
    return {"key": row["path"].name, "mel": row["path"], "mfcc": row["path"], "vowel": row["vowel"], "voice": row["voice"]}


def build() -> dataio.Pipeline:
    return dataio.pipeline(
        dataio.map(to_record),
        # Any file becomes one channel at 16 kHz. "sinc" filters out what the lower rate cannot hold.
        dataio.slot("mel")
            .decode(dataio.decoders.audio(sample_rate=RATE, mono=True, resampling="sinc"))
            .spectrogram(n_fft=400, hop_length=160)
            .mel_filterbank(n_mels=80, sample_rate=RATE)
            .permute(axes=(1, 0)),
        # Lengths differ, so without padding the batch holds one tensor [frames, 13] per row.
        dataio.slot("mfcc").decode_audio(sample_rate=RATE, mono=True).mfcc(sample_rate=RATE).permute(axes=(1, 0)),
        dataio.slot("vowel").passthrough(),
        dataio.slot("voice").passthrough(),
        dataio.batch(BATCH),
        dataio.map(dataio.batch_transforms.pad_to_longest(slot="mel", pad_to_multiple_of=8)),
    )  # fmt: skip


@dataclass(frozen=True)
class SoundBatch:
    """`log_mel` float32[rows, frames, 80], `cepstra` float32[rows, 13] (means over the frames), and who says what."""

    log_mel: torch.Tensor
    cepstra: torch.Tensor
    vowels: list[str]
    voices: list[int]


def batches(rows: list[dict[str, Any]]) -> Iterator[SoundBatch]:
    with build().bind(rows).run("torch") as loader:
        for batch in loader:
            for error in batch.errors:
                print(f"left out {error['key']}: {error['message']}")
            yield SoundBatch(
                log_mel=batch["mel"].clamp(min=1e-10).log(),
                cepstra=torch.stack([row.mean(dim=0) for row in batch["mfcc"]]),
                vowels=batch["vowel"],
                voices=batch["voice"],
            )


def recognised(cepstra: torch.Tensor, vowels: list[str], known: torch.Tensor) -> torch.Tensor:
    """bool[n]: is the nearest mean of the known voices that of the right vowel? Loudness (the first number) is left out."""
    targets = torch.tensor([list(FORMANTS).index(name) for name in vowels])
    shapes = cepstra[:, 1:]
    means = torch.stack([shapes[known & (targets == i)].mean(dim=0) for i in range(len(FORMANTS))])
    return torch.cdist(shapes, means).argmin(dim=1) == targets


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        rows = make_dataset(Path(folder))
        cepstra, vowels, voices = [], [], []
        for batch in batches(rows):
            quiet, loud = batch.log_mel.min(), batch.log_mel.max()
            print(f"{tuple(batch.log_mel.shape)} {batch.log_mel.dtype}, {quiet:.1f} to {loud:.1f}: {' '.join(batch.vowels)}")
            cepstra.append(batch.cepstra)
            vowels += batch.vowels
            voices += batch.voices
    known = torch.tensor(voices) < VOICES // 2
    right = recognised(torch.cat(cepstra), vowels, known)[~known]
    print(f"{int(right.sum())} of {len(right)} vowels of new voices recognised")


if __name__ == "__main__":
    main()
