"""`bench/ops.py` runs, and its table of cases is sound."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dataio.engine.registry import specs

ROOT = Path(__file__).resolve().parent.parent
BENCH = ROOT / "bench"


@pytest.fixture(name="modules")
def _modules(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The modules of the benchmark, which lies outside every package."""
    monkeypatch.syspath_prepend(str(BENCH))
    import op_cases
    import op_references

    return {"cases": op_cases, "references": op_references}


def test_every_op_is_measured(modules: dict[str, Any]) -> None:
    measured = {case.op for case in modules["cases"].CASES}
    transforms = {s.name for s in specs("transform") if s.function.__module__.startswith("dataio.formats.")}
    assert transforms - measured - {"custom", "select"} == set()  # a user's function, a choice by the record


def test_references_belong_to_cases(modules: dict[str, Any]) -> None:
    assert set(modules["references"].REFERENCES) - set(modules["cases"].BY_NAME) == set()


def test_cases_have_names_of_their_own(modules: dict[str, Any]) -> None:
    assert len(modules["cases"].BY_NAME) == len(modules["cases"].CASES)


def test_kernels_are_measured_against_the_references(tmp_path: Path) -> None:
    figures = tmp_path / "ops.json"
    command = [sys.executable, str(BENCH / "ops.py"), "--quick", "--part", "kernels", "--json", str(figures)]
    command += ["--only", "hflip,pack_chw_f32,normalize", "--inputs", "image224,planes224"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100)
    rows = json.loads(figures.read_text())
    assert set(rows) == {"hflip/image224", "pack_chw_f32/image224", "normalize/planes224"}
    assert {"dataio", "dataio, out", "OpenCV", "Pillow"} == set(rows["hflip/image224"]["kernels"])
    assert "| hflip *" in done.stdout
