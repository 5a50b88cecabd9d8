"""`bench/formats.py` runs: every client does what it is asked for, and the table shows it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parent.parent / "bench"
CASES = {  # case: clients beside dataio
    "latents/2": [], "tar/2": [], "safetensors": ["safetensors"], "save": ["safetensors", "disk"], "tfrecord": ["tfrecord"],
    "parquet": ["Polars", "pyarrow"], "filtered": ["Polars", "pyarrow"], "hdf5": ["h5py"], "npy": ["NumPy"],
}  # fmt: skip


@pytest.mark.slow
def test_every_case_is_measured() -> None:
    """One test, as two at once would both make the data."""
    clients = ["dataio", *sorted({client for others in CASES.values() for client in others})]
    command = [sys.executable, str(BENCH / "formats.py"), "--quick", "--clients", ",".join(clients), "--cases", ",".join(CASES)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=280)
    rows = {cells[1].strip(): cells for line in done.stdout.splitlines() if len(cells := line.split("|")) > 5}
    for case, others in CASES.items():
        assert float(rows[case][3].replace(",", "")) > 0
        found = dict(cell.rsplit(" ", 1) for cell in rows[case][4].strip().split("; ") if cell)
        assert found.keys() == set(others)
        assert all(float(rate.replace(",", "")) > 0 for rate in found.values())
    assert "Failed" not in done.stdout
