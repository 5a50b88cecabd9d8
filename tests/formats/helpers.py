"""Samples and small tools shared by the tests of `formats`."""

from __future__ import annotations

import io
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image

from dataio.engine.calls import OpCall
from dataio.engine.errors import OpError, PlanError
from dataio.engine.registry import OpSpec, lookup, specs
from dataio.engine.schema import TensorType, type_of


def photo(h: int = 48, w: int = 64, c: int = 3, seed: int = 0) -> np.ndarray:
    """Smooth shapes with a little noise, uint8[h, w, c]."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (6, 8, c), np.uint8)
    smooth = cv2.resize(coarse, (w, h), interpolation=cv2.INTER_LINEAR).reshape(h, w, c).astype(int)
    return np.clip(smooth + rng.integers(-5, 6, (h, w, c)), 0, 255).astype(np.uint8)


def noise(h: int, w: int, c: int = 3, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (h, w, c), np.uint8)


def encode(picture: Any, fmt: str, **options: Any) -> bytes:
    """A NumPy array or Pillow image as file bytes."""
    if isinstance(picture, np.ndarray):
        picture = Image.fromarray(picture[:, :, 0] if picture.ndim == 3 and picture.shape[2] == 1 else picture)
    out = io.BytesIO()
    picture.save(out, fmt, **options)
    return out.getvalue()


def max_difference(a: np.ndarray, b: np.ndarray) -> int:
    assert a.shape == b.shape
    return int(np.abs(a.astype(int) - b.astype(int)).max())


def injected(spec: OpSpec, given: TensorType, seed: int) -> dict[str, Any]:
    """What the engine fills in."""
    values = {"rng": np.random.default_rng(seed), "layout": given.layout}
    return {name: values[name] for name in spec.injected}


def run(call: OpCall, value: Any, layout: Any = None, seed: int = 0) -> Any:
    """One call on one value, by the plain function."""
    spec = call.spec
    given = TensorType() if call.kind == "decoder" else type_of(value, layout)
    return spec.function(value, **call.arguments, **injected(spec, given, seed))


def run_out(call: OpCall, value: np.ndarray, out: np.ndarray, layout: Any = None, seed: int = 0) -> None:
    """One call on one value, by the `out` kernel."""
    spec = call.spec
    spec.kernels["out"](value, out, **call.arguments, **injected(spec, type_of(value, layout), seed))


def transform(name: str, **arguments: Any) -> OpCall:
    return lookup(name, "transform").call(**arguments)


def decoder(name: str, **arguments: Any) -> OpCall:
    return lookup(name, "decoder").call(**arguments)


def assert_refused(call: OpCall, value: np.ndarray) -> None:
    """The plain function and the `out` kernel refuse the value, saying what the op takes."""
    with pytest.raises(OpError, match=f"{call.name} takes uint8"):
        run(call, value)
    with pytest.raises(OpError, match=f"{call.name} takes uint8"):
        run_out(call, value, np.zeros_like(value))


def assert_rgb_only(call: OpCall, channels: int) -> None:
    """Another channel count is refused for a value, and when a plan is compiled."""
    with pytest.raises(OpError, match=f"{call.name} takes"):
        run(call, noise(4, 5, channels))
    with pytest.raises(PlanError, match=f"{call.name} takes"):
        call.spec.output_type(TensorType((4, 5, channels), "uint8", "HWC"), call.arguments)


def ops_registered_by(*modules: str) -> set[str]:
    """Names of the visible ops whose functions live in these modules of `dataio.formats`."""
    return {s.name for s in specs() if s.function.__module__ in {f"dataio.formats.{m}" for m in modules}}
