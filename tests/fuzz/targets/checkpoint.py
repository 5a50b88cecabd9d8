"""`read_pt` on both formats, the `.metadata` of distributed checkpoints, and `zipnn_decompress`."""

from __future__ import annotations

import io
import pickle
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp

import dataio
from dataio.engine.errors import OpError
from dataio.formats.weights.dcp_metadata import read_metadata
from dataio.io.errors import ReadError

LIMIT = 1 << 24


def _saved(value: Any, *, zipped: bool) -> bytes:
    out = io.BytesIO()
    torch.save(value, out, _use_new_zipfile_serialization=zipped)
    return out.getvalue()


def _metadata() -> bytes:
    state = {"w": torch.arange(6.0).reshape(2, 3), "b": torch.ones(2, dtype=torch.bfloat16), "step": 1}
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(state, checkpoint_id=folder)
        return (Path(folder) / ".metadata").read_bytes()


def seeds() -> list[bytes]:
    """Small files of all kinds."""
    base = torch.arange(12.0)
    dicts: list[Any] = [
        {"a": base.reshape(3, 4).T, "b": base[2:5], "c": torch.ones(1).expand(4)},
        {"p": torch.nn.Parameter(torch.ones(2)), "m": torch.tensor([True]), "n": {"x": torch.ones(1, dtype=torch.bfloat16)}, "s": 3},
        torch.nn.Linear(1, 2).state_dict(),
    ]
    files = [_saved(value, zipped=zipped) for value in dicts for zipped in (True, False)]
    packed = [dataio.zipnn_compress(b"abcdefgh" * 20, dtype=dtype) for dtype in ("bf16", "fp32", "u8")]
    return [*files, _metadata(), pickle.dumps({"a": [1, "x"]}), *packed, dataio.zipnn_compress(b"abc")]


def run(data: bytes) -> None:
    """Read the data as each of these."""
    try:
        found = dataio.read_pt(data)
    except (OpError, ReadError):
        found = {}
    assert sum(array.nbytes for array in found.values()) <= 2 * len(data) + (1 << 30)
    try:
        metadata = read_metadata(data)
    except OpError:
        metadata = None
    for name in () if metadata is None else metadata.tensors:
        try:
            metadata.entry(name)
        except OpError:
            pass
    try:
        assert len(dataio.zipnn_decompress(data, max_output_bytes=LIMIT)) <= LIMIT
    except OpError:
        pass
