"""The scripts in `examples/` run as they stand."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"

EXPECTED = {  # script: lines of its output
    "multi_slot_pipeline.py": [
        "(8, 3, 64, 64) torch.float32, labels [0, 1, 2, 0, 1, 2, 0, 1], first caption 'picture 0: red'",
        "(7, 3, 64, 64) torch.float32, labels [2, 0, 1, 2, 0, 2, 0], first caption 'picture 8: blue'",
        "39 of 39 pictures recognised",
    ],
}


def test_every_example_is_run() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(EXPECTED)


def test_multi_slot_pipeline() -> None:
    name = "multi_slot_pipeline.py"
    done = subprocess.run([sys.executable, EXAMPLES / name], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line for line in EXPECTED[name] if line not in lines] == [], done.stdout
    assert any(line.startswith("left out row-13: ") for line in lines)
