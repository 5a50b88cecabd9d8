"""docs/queries.md keeps its word: its Python runs, and its table of methods has them all."""

from __future__ import annotations

import inspect
import io
import re
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import dataio

from .conftest import encoded
from .engine.helpers import ops

__all__ = ["ops"]

pytestmark = pytest.mark.usefixtures("two_workers", "no_leftovers", "ops")
TEXT = (Path(__file__).resolve().parent.parent / "docs" / "queries.md").read_text(encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the blocks expect to find, in the working directory."""
    monkeypatch.chdir(tmp_path)
    for name in ("photos", "shards", "pictures", "model", "events/year=2023", "events/year=2024"):
        (tmp_path / name).mkdir(parents=True)
    images = [encoded(30 + i % 3, 36 + i, seed=i) for i in range(40)]
    rows = pl.DataFrame({
        "name": [f"img_{i:02d}" for i in range(40)], "image": images, "width": range(36, 76), "height": [30 + i % 3 for i in range(40)],
        "label": [i % 4 for i in range(40)], "broken": [i % 7 == 0 for i in range(40)],
    })  # fmt: skip
    for part in range(2):
        dataio.write_parquet(f"photos/{part}.parquet", rows[20 * part : 20 * part + 20])
        with tarfile.open(f"shards/{part:03d}.tar", "w") as tar:
            for i in range(4 * part, 4 * part + 4):
                for suffix, data in (("jpg", images[i]), ("cls", b"%d" % (i % 2))):
                    entry = tarfile.TarInfo(f"{i:04d}.{suffix}")
                    entry.size = len(data)
                    tar.addfile(entry, io.BytesIO(data))
    for i in range(8):
        dataio.write_image(f"pictures/{i}.jpg", np.full((30, 40 + 5 * i, 3), 20 * i, np.uint8))
    for year in (2023, 2024):
        dataio.write_parquet(f"events/year={year}/x.parquet", pl.DataFrame({"score": [0.5, 0.95]}))
    dataio.write_safetensors("model/x.safetensors", {"embed": np.zeros((64, 8), np.float32), "norm": np.zeros(4, np.float32)})
    return tmp_path


def test_python_blocks(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scope: dict[str, Any] = {}
    python = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    assert len(python) == 9
    for i, block in enumerate(python):
        exec(compile(block, f"docs/queries.md, Python block {i + 1}", "exec"), scope)
    assert scope["labels"]["cls"].to_list() == [b"0", b"1"] * 4
    assert [row["path"].rpartition("/")[2] for row in scope["wide"]] == [f"{i}.jpg" for i in range(3, 8)]
    assert [(row["year"], row["score"]) for row in scope["events"]] == [(2024, 0.95)]
    assert [row["name"] for row in scope["large"]] == ["embed"]
    assert {row["title"] for row in scope["chosen"].collect()} == {"cat", "bird"}
    assert [row["n"] for row in scope["means"]] == [10] * 4
    assert [row["path"].rpartition("/")[2] for row in scope["dark"].collect()] == ["0.jpg", "1.jpg", "2.jpg"]
    assert [row["path"].rpartition("/")[2] for row in scope["darkest"]] == ["0.jpg", "1.jpg", "2.jpg"]
    assert scope["frame"]["light"].null_count() == 0
    assert (scope["in_order"], scope["share"]) == (36, 24)  # the last batch of a rank is padded
    assert sum(batch.num_rows for batch in scope["done"]) == 40
    assert {path.name for path in folder.glob("*.html")} == {"look.html", "photos.html"}


def test_every_method_is_named() -> None:
    methods = {name for name, _ in inspect.getmembers(dataio.Query, callable) if not name.startswith("_")} - {"as_source", "columns", "plan"}
    assert {name for name in methods if not re.search(rf"\b{name}\b", TEXT)} == set()


def test_every_scan_is_named() -> None:
    assert {name for name in dataio.__all__ if name.startswith("scan")} - set(re.findall(r"`(scan\w*)`", TEXT)) == set()
