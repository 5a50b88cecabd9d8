"""The pages in docs/ that say how it is built name files and tests that exist; docs/arch.md names every rule, and its code runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import dataio
from dataio.engine.registry import fusions
from dataio.engine.rules import RELATIONAL

from .engine.helpers import jpeg, ops, run

__all__ = ["ops"]
ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "arch.md").read_text()


@pytest.mark.parametrize("page", ["arch", "formats", "data-sets"])
def test_the_files_exist(page: str) -> None:
    text = (ROOT / "docs" / f"{page}.md").read_text()
    named = set(re.findall(r"`((?:dataio|engine|io|formats|tests|scripts)/[\w/.]*)", text))
    assert len(named) > 30
    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("page", ["arch", "formats", "data-sets"])
def test_the_tests_exist(page: str) -> None:
    text = (ROOT / "docs" / f"{page}.md").read_text()
    files = set(re.findall(r"(test_\w+)\.py", text))
    code = {path: path.read_text() for path in (ROOT / "tests").rglob("*.py")}
    assert sorted(files - {path.stem for path in code}) == []
    named = set(re.findall(r"\btest_\w+", text)) - files
    assert len(named) > 50
    defined = set(re.findall(r"def (test_\w+)\(", "\n".join(code.values())))
    assert sorted(named - defined) == []


def test_every_rule_is_named() -> None:
    assert [name for name in (*(r.name for r in RELATIONAL), *fusions()) if f"`{name}`" not in TEXT] == []


@pytest.mark.usefixtures("ops")
def test_the_op_example_runs() -> None:
    blocks = [block for block in re.findall(r"```python\n(.*?)```", TEXT, re.S) if "register_op" in block]
    (code,) = blocks
    found: dict[str, dataio.Pipeline] = {}
    exec(compile(code, "docs/arch.md", "exec"), found)
    (batch,) = run(found["pipe"], [jpeg(70, 80), jpeg(20, 20)])
    assert [len(row) for row in batch["slots"]["image"]] == [64]
    assert batch["errors"] == [(1, "image", "transform", "corner", "ValueError")]
