"""Reads that end on a GPU: tensors, raw bytes and JPEGs. Without CUDA it says what is missing, and reads to host memory.

    python examples/gpu_reads.py
"""

from __future__ import annotations

import io
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import dataio


def jpeg(i: int) -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.full((48, 64, 3), 20 * i, np.uint8)).save(out, "JPEG")
    return out.getvalue()


def tensors(folder: Path, device: str) -> None:
    """By GPUDirect Storage where kvikio and the file system have it, else through pinned memory."""
    dataio.write_safetensors(folder / "model.safetensors", {"w": torch.arange(1024.0)})
    found = dataio.read_safetensors(folder / "model.safetensors", framework="torch", device=device)
    print("tensors:", found["w"].device.type, float(found["w"].sum()))


def raw_bytes(folder: Path) -> None:
    """Any part of a file into memory on the device."""
    (folder / "x.bin").write_bytes(bytes(range(256)) * 16)
    if not dataio.gds_info()["read_ready"]:
        print("raw bytes: not here:", dataio.gds_info()["driver_error"])
        return
    tensor = torch.zeros(1024, dtype=torch.uint8, device="cuda")
    dataio.gds_read_into_tensor(folder / "x.bin", tensor, file_offset=256)
    with dataio.gds_open(folder / "x.bin") as file, dataio.gds_register_buffer(tensor.data_ptr(), 1024) as buffer:
        print("raw bytes:", file.read(buffer, 512), tensor[:3].tolist())


def pictures() -> None:
    """JPEGs by nvJPEG, where there is one; a picture that fails is None, with a message."""
    given = [jpeg(1), b"no picture", jpeg(2)]
    found, errors = dataio.decode_image_batch(given, output="torch", on_error="collect")
    print("pictures:", [None if image is None else tuple(image.shape) for image in found], len(errors) > 0)


def main() -> None:
    print("GPUDirect:", dataio.gds_available(), "nvJPEG:", dataio.nvjpeg_available())
    with tempfile.TemporaryDirectory() as folder:
        tensors(Path(folder), "cuda:0" if torch.cuda.is_available() else "cpu")
        raw_bytes(Path(folder))
    pictures()


if __name__ == "__main__":
    main()
