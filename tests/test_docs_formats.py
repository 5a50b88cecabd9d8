"""docs/formats.md keeps its word: its Python runs, its limits and requests are those of the code, every option is named."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dataio
from dataio.io.store import forget_stores, register_store

from .shelf import Shelf

pytestmark = pytest.mark.usefixtures("two_workers", "no_leftovers")
ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
HELPERS = re.compile(r"(read|write|open|scan|iter|zipnn|consolidate|gds|nvjpeg|decode_image_batch|parquet_metadata|tfrecord)(_|$)")


def rows(heading: str) -> list[list[str]]:
    """The cells of the table whose first heading this is."""
    (table,) = re.findall(rf"^\| {heading} \|.*\n\|[ -|]*\n((?:\|.*\n)+)", TEXT, re.MULTILINE)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory; the blocks make what they read."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_python_blocks(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scope: dict[str, Any] = {}
    for i, block in enumerate(BLOCKS):
        exec(compile(block, f"docs/formats.md, Python block {i + 1}", "exec"), scope)
    assert str(scope["weights"].dtype) == "torch.float32"
    assert scope["labels"].tolist() == [0, 1, 2]
    assert [array.shape for array in scope["several"]] == [(2, 3)] * 2
    assert tuple(scope["picture"].shape) == (1, 120, 160)
    assert list(scope["columns"]) == ["id", "height"]
    assert scope["columns"]["id"] == list(range(3_010, 3_015))
    assert (scope["about"], scope["read"]) == (10, [0, 1])
    assert len(scope["table"]) == scope["left"] == sum(map(len, scope["heights"])) > 3 == len(scope["rows"])
    assert (scope["first"], scope["examples"][1]) == ({"label": [1]}, {"label": [2]})
    assert scope["boxes"] == [(8, 3)] * 5
    assert [row["id"] for row in scope["found"]] == [*range(2, 40, 6), *range(5, 40, 6)]
    assert scope["names"] == ["/camera/frames", "/camera/times"]
    assert (scope["last"].shape, tuple(scope["frames"].shape), scope["crop"].shape) == ((48, 64), (19, 48, 64), (10, 32, 3))
    assert "max_pixels=10000" in capsys.readouterr().out


def requests_of(shelf: Shelf, read: Callable[[], Any]) -> int:
    shelf.requests = 0
    read()
    return shelf.requests


def test_limits_are_those_of_the_code() -> None:
    table = rows("limit")
    assert len(table) > 10
    for _, shown, place in table:
        file, constant = re.findall(r"`([^`]+)`", place)
        module = importlib.import_module(f"dataio.{file.removesuffix('.py').replace('/', '.')}")
        assert int(shown.replace(",", "")) == getattr(module, constant), place
