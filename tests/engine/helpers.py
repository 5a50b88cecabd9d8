"""Small things that the tests of `engine` share."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

import dataio
from dataio.engine import registry
from dataio.engine.registry import specs


@pytest.fixture
def ops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ops and fusions that a test registers are gone after it."""
    list(specs())
    monkeypatch.setattr(registry, "_specs", dict(registry._specs))
    monkeypatch.setattr(registry, "_fusions", dict(registry._fusions))


def jpeg(h: int = 24, w: int = 32, seed: int = 0) -> bytes:
    """A small photo-like JPEG file."""
    coarse = np.random.default_rng(seed).integers(0, 256, (3, 4, 3), np.uint8)
    out = io.BytesIO()
    Image.fromarray(coarse).resize((w, h), Image.Resampling.BILINEAR).save(out, "JPEG", quality=92)
    return out.getvalue()


def plain(value: Any) -> Any:
    """A slot's value as nested lists and plain Python values, to compare."""
    if isinstance(value, memoryview):
        return bytes(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, list):
        return [plain(v) for v in value]
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    return value


def run(pipe: Any, records: Any, **options: Any) -> list[dict[str, Any]]:
    """One epoch as plain values: keys, errors and slots of every batch."""
    out = []
    with pipe.bind(records).run("numpy", **{"seed": 3, "on_failure": 0, **options}) as loader:
        for batch in loader:
            slots = {name: plain(batch[name]) for name in batch.slot_names}
            errors = [(e["index"], e["slot"], e["stage"], e["op"], e["type"]) for e in batch.errors]
            out.append({"keys": batch.keys, "errors": errors, "slots": slots})
    return out


def numbers(*transforms: Any, size: int = 3) -> Any:
    """A pipeline over `.npy` records in the slot `x`."""
    return dataio.pipeline(dataio.slot("x").decode_npy().apply(*transforms), dataio.batch(size))


def npy(value: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, np.asarray(value))
    return out.getvalue()
