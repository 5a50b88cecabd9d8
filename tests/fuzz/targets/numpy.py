"""`read_numpy`: .npy and .npz."""

from __future__ import annotations

import io

import numpy as np

import dataio
from dataio.engine.errors import OpError
from dataio.io.errors import ReadError

LIMIT = 1 << 24


def _npy(array: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def _npz(*, compressed: bool) -> bytes:
    out = io.BytesIO()
    save = np.savez_compressed if compressed else np.savez
    save(out, a=np.arange(5), b=np.ones((2, 2), bool), c=np.asfortranarray(np.zeros((2, 3), ">f4")))
    return out.getvalue()


def seeds() -> list[bytes]:
    """Small files of all kinds."""
    dtypes = ["f8", ">i2", "?", "c8", "S3", "U2", "M8[s]", [("a", "i4"), ("b", "f4", (2,))]]
    plain = [_npy(np.zeros((2, 3), dtype)) for dtype in dtypes]
    return [*plain, _npy(np.float32(1)), _npy(np.asfortranarray(np.ones((2, 3)))), _npz(compressed=False), _npz(compressed=True)]


def run(data: bytes) -> None:
    """Read the array, or all members."""
    try:
        found = dataio.read_numpy(data, max_bytes=LIMIT)
    except (OpError, ReadError):
        return
    if isinstance(found, np.ndarray):
        assert found.nbytes <= min(LIMIT, len(data))
        return
    with found:
        for name in found:
            try:
                found[name]
            except (OpError, ReadError):
                pass
