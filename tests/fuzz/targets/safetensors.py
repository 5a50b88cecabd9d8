"""`open_safetensors` and every tensor of the file."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from safetensors.numpy import save

import dataio
from dataio.engine.errors import OpError
from dataio.io.errors import ReadError


def seeds() -> list[bytes]:
    """Small files of all kinds."""
    types = ["f8", "f4", "f2", "i8", "u1", "?", "c8", ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn]
    many = {f"t{i}": np.zeros((2, i), dtype) for i, dtype in enumerate(types)}
    return [save({"x": np.arange(5)}), save(many), save({"s": np.array(1, np.float32)}, {"made": "by hand"})]


def run(data: bytes) -> None:
    """Read every tensor, its first row, and the header."""
    try:
        with dataio.open_safetensors(data) as session:
            assert session.header.keys() >= set(session)
            assert isinstance(session.metadata, dict)
            for key in session:
                found = session.read(key=key)
                if found.ndim and len(found):
                    session.read_slice(key, 0, 1)
    except (OpError, ReadError):
        pass
