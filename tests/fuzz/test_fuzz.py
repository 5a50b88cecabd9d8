"""The seeds of every fuzz target are parsed, and a moment of damaged ones finds nothing. (`scripts/fuzz.py` takes its time.)"""

from __future__ import annotations

import importlib
import random
import subprocess
import sys
from importlib.util import find_spec

import pytest

from scripts import fuzz

NAMES = pytest.mark.parametrize("name", fuzz.TARGETS)


@NAMES
def test_damaged_files_raise_only_what_is_documented(name: str) -> None:
    target = importlib.import_module(f"tests.fuzz.targets.{name}")
    draw = random.Random(name)
    for seed in target.seeds():
        target.run(seed)
        for _ in range(20):
            damaged = bytearray(seed)
            for _ in range(draw.choice((1, 1, 2, 8))):
                if damaged:
                    damaged[draw.randrange(len(damaged))] = draw.randrange(256)
            target.run(bytes(damaged))
            target.run(seed[: draw.randrange(len(seed) + 1)])


@pytest.mark.slow
@pytest.mark.skipif(find_spec("atheris") is None, reason="needs atheris")
def test_the_fuzzer_runs() -> None:
    command = [sys.executable, str(fuzz.ROOT / "scripts" / "fuzz.py"), "safetensors", "--seconds", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout[-4_000:]
