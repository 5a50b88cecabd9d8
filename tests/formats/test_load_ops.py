"""Loading the op modules."""

from __future__ import annotations

import subprocess
import sys

import pytest

from dataio.engine.registry import specs
from dataio.formats import OP_MODULES

CONTENT_TELLS = {"npy", "array", "safetensors", "pt", "custom"}
"""Ops whose result only their input, or a user's function, decides."""
HEAVY = ("cv2", "torch", "PIL", "simplejpeg", "polars", "scipy", "soundfile", "soxr")


def test_op_modules_import_no_image_or_tensor_library():
    code = (
        "import sys; from dataio.formats import load_ops; before = set(sys.modules); load_ops(); "
        f"print([m for m in {HEAVY!r} if m in set(sys.modules) - before])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize("module", OP_MODULES)
def test_every_op_says_what_it_does_and_infers(module):
    ours = [s for s in specs() if s.function.__module__ == f"dataio.formats.{module}"]
    for spec in ours:
        assert spec.function.__doc__
        assert spec.infer is not None or spec.name in CONTENT_TELLS or spec.kind == "batch_transform"
