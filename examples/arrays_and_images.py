"""Arrays and images as files: NumPy's .npy and .npz, pictures, and an .npz file as a source of records.

    python examples/arrays_and_images.py

Every path may be a URI (`s3://bucket/x.npz`) as well, and every writer is atomic: a crash leaves the old file.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

import dataio


def arrays(folder: Path) -> None:
    """There and back, for NumPy and for torch."""
    dataio.write_numpy(folder / "weights.npy", np.arange(6, dtype=np.float32).reshape(2, 3))
    print("array:", dataio.read_numpy(folder / "weights.npy").tolist())
    print("tensor:", dataio.read_numpy(folder / "weights.npy", framework="torch").dtype)


def named(folder: Path) -> None:
    """Several arrays in one file, and training on them."""
    rng = np.random.default_rng(0)
    signals = {f"patient-{i}/ecg": rng.normal(size=(3, 100)).astype(np.float32) for i in range(8)}
    dataio.write_npz(folder / "signals.npz", signals, compressed=True)
    with dataio.read_numpy(folder / "signals.npz") as file:
        print("members:", len(file), file["patient-3/ecg"].shape)

    pipe = dataio.pipeline(
        dataio.map(lambda record: {"signal": record["reader"], "key": record["key"]}),
        dataio.slot("signal").decode(dataio.decoders.npy()),
        dataio.batch(4),
    )
    records = dataio.npz(folder / "signals.npz").records().shuffle(seed=0)
    with pipe.bind(records).run("torch") as loader:
        for batch in loader:
            print("batch:", tuple(batch["signal"].shape))


def images(folder: Path) -> None:
    """The format by the suffix when writing, by the content when reading."""
    y, x = np.mgrid[0:120, 0:160]
    pixels = np.stack([x, y * 2, (x + y) // 2], axis=2).astype(np.uint8)
    for name in ("picture.png", "picture.jpg", "picture.tif"):
        dataio.write_image(folder / name, pixels, quality=90)
    print("png exact:", bool((dataio.read_image(folder / "picture.png") == pixels).all()))
    print("jpeg:", tuple(dataio.read_image(folder / "picture.jpg", mode="gray", layout="chw", framework="torch").shape))
    try:
        dataio.read_image(folder / "picture.tif", max_pixels=10_000)
    except ValueError as error:
        print("too large:", str(error).rpartition("/")[2])


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        arrays(Path(folder))
        named(Path(folder))
        images(Path(folder))


if __name__ == "__main__":
    main()
