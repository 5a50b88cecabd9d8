"""`bench/query.py` runs: every client gives the rows that were asked for, and the table shows it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parent.parent / "bench"


@pytest.mark.slow
def test_queries_are_measured() -> None:
    command = [sys.executable, str(BENCH / "query.py"), "--quick", "--clients", "dataio,Polars,Pillow", "--cases", "filtered-16,count-16,labels,headers"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=280)
    rows = {line.split("|")[1].strip(): line.split("|") for line in done.stdout.splitlines() if line.startswith("| ")}
    for case in ("filtered-16", "count-16", "labels", "headers"):
        assert float(rows[case][3].replace(",", "")) > 0
    assert float(rows["labels"][7].strip(" %")) < 2
    assert "Failed" not in done.stdout
