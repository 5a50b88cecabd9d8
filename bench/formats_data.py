"""The files of bench/formats.py, made once: latents, tar shards, a large safetensors file, TFRecord, Parquet, HDF5, npy.

Deterministic for a given `VERSION`; `scale` makes all of them smaller for a quick run.
"""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import data

VERSION = 1
LATENT_FILES, LATENT_SHAPE = 512, (64, 32, 32)
"""float32: 256 KiB a tensor."""
SHARDS = 4
TENSORS, TENSOR_SHAPE = 64, (2048, 2048)
"""float32: 16 MiB a tensor, 1 GiB in all."""
TFRECORDS, PAYLOAD = 20_000, 8_192
ROWS, ROW_GROUPS = 2_000_000, 16
HDF5_SHAPE, HDF5_CHUNKS = (1024, 256, 256), (16, 256, 256)
"""float32: 256 MiB."""


def make(target: Path, photos: Path, scale: float = 1.0) -> Path:
    """Write the files under `target` unless they are there; `photos` holds the data of bench/data.py."""

    def fill() -> None:
        data.make(photos)
        for step in (_latents, _safetensors, _tfrecord, _parquet, _hdf5_and_npy):
            step(target, scale)
        write_shards(target, sorted((photos / "small").glob("*.jpg"))[: count(data.SMALL, scale)])

    return data.made_once(target, {"version": VERSION, "scale": scale}, fill)


def count(number: int, scale: float) -> int:
    return max(2, round(number * scale))


def _latents(target: Path, scale: float) -> None:
    import numpy as np
    from safetensors.numpy import save_file

    (target / "latents").mkdir()
    rng = np.random.default_rng(0)
    for index in range(count(LATENT_FILES, scale)):
        tensor = rng.standard_normal(LATENT_SHAPE, dtype=np.float32)
        save_file({"latent": tensor}, target / "latents" / f"{index:05d}.safetensors")


def _safetensors(target: Path, scale: float) -> None:
    import numpy as np
    from safetensors.numpy import save_file

    rng = np.random.default_rng(1)
    tensors = {f"layer.{i}": rng.standard_normal(TENSOR_SHAPE, dtype=np.float32) for i in range(count(TENSORS, scale))}
    save_file(tensors, target / "model.safetensors")


def write_shards(target: Path, files: list[Path]) -> None:
    """Photos in tar shards, with a label beside each."""
    (target / "tar").mkdir()
    for shard in range(SHARDS):
        with tarfile.open(target / "tar" / f"{shard:04d}.tar", "w") as tar:
            for index, file in enumerate(files[shard::SHARDS]):
                for suffix, content in (("jpg", file.read_bytes()), ("cls", str(index % 10).encode())):
                    entry = tarfile.TarInfo(f"{file.stem}.{suffix}")
                    entry.size = len(content)
                    tar.addfile(entry, io.BytesIO(content))


def _tfrecord(target: Path, scale: float) -> None:
    """By the `tfrecord` package, a reader and writer that is not ours."""
    import numpy as np
    from tfrecord.writer import TFRecordWriter

    rng = np.random.default_rng(2)
    writer = TFRecordWriter(str(target / "train.tfrecord"))
    for index in range(count(TFRECORDS, scale)):
        writer.write({"image": (rng.bytes(PAYLOAD), "byte"), "label": (index % 1000, "int")})
    writer.close()


def _parquet(target: Path, scale: float) -> None:
    write_table(target / "table.parquet", scale, ROW_GROUPS)


def write_table(target: Path, scale: float, groups: int) -> None:
    """A table of numbers and short text."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = count(ROWS, scale)
    rng = np.random.default_rng(3)
    columns: dict[str, Any] = {
        "id": np.arange(rows),
        "height": rng.integers(64, 2048, rows, dtype=np.int32),
        "width": rng.integers(64, 2048, rows, dtype=np.int32),
        "score": rng.random(rows),
        "label": rng.integers(0, 1000, rows),
        "name": [f"photo-{i:08d}" for i in range(rows)],
    }
    pq.write_table(pa.table(columns), target, compression="snappy", row_group_size=-(-rows // groups))


def _hdf5_and_npy(target: Path, scale: float) -> None:
    import h5py
    import numpy as np

    shape = (max(HDF5_CHUNKS[0], count(HDF5_SHAPE[0], scale)), *HDF5_SHAPE[1:])
    values = np.random.default_rng(4).standard_normal(shape, dtype=np.float32)
    with h5py.File(target / "volumes.h5", "w") as file:
        file.create_dataset("volume", data=values, chunks=HDF5_CHUNKS)
    np.save(target / "array.npy", values)
