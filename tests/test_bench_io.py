"""`bench/io.py` runs: every client gets what it asked for, and the table shows it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parent.parent / "bench"


@pytest.mark.slow
@pytest.mark.skipif(
    not (shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")), reason="needs nginx: apt-get install nginx-light"
)
def test_objects_and_ranges_are_measured() -> None:
    command = [sys.executable, str(BENCH / "io.py"), "--quick", "--clients", "dataio,obstore"]
    command += ["--cases", "objects, S3;ranges, S3;objects, HTTP;ranges, HTTP"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=200)
    rows = [line.split("|") for line in done.stdout.splitlines() if line.startswith(("| objects", "| ranges"))]
    assert len(rows) == 4
    for row in rows:
        assert float(row[3].replace(",", "")) > 0
        assert float(row[4].replace(",", "")) > 0
    assert "Failed" not in done.stdout
