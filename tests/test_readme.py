"""The README keeps its word: its Python runs, its commands, links and variables exist."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def jpeg(i: int) -> bytes:
    out = io.BytesIO()
    pixels = np.random.default_rng(i).integers(0, 256, (8, 9 + i % 5, 3), np.uint8)
    Image.fromarray(pixels).resize((260 + i, 300)).save(out, "JPEG")
    return out.getvalue()


@pytest.fixture
def scope(tmp_path: Path) -> dict[str, Any]:
    """What the blocks expect to find; they share it, top to bottom."""
    import torch

    import dataio

    rows = []
    for i in range(70):
        path = tmp_path / f"{i}.jpg"
        path.write_bytes(jpeg(i))
        rows.append({"path": str(path), "class_id": i % 10})
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"no picture")
    return {
        "dataio": dataio,
        "torch": torch,
        "rows": rows,
        "records": [{"image": row["path"], **row} for row in rows],
        "bucket": f"memory://{tmp_path.name}",
        "photos": str(tmp_path),
        "frame": pa.Table.from_pylist(rows),
        "damaged": [{"path": str(broken), "class_id": 0}, *rows[1:64]],
        "steps": [],
    }


def test_python_blocks(scope: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    scope["train_step"] = scope["steps"].append
    assert len(BLOCKS) == 9
    for i, block in enumerate(BLOCKS):
        exec(compile(block, f"README.md, Python block {i + 1}", "exec"), scope)
    assert [tuple(step.shape) for step in scope["steps"]] == [(64, 3, 224, 224), (6, 3, 224, 224)]
    assert tuple(scope["images"].shape) == (32, 3, 128, 128)
    assert scope["labels"].tolist() == [i % 10 for i in range(32, 64)]
    assert capsys.readouterr().out.startswith("broken decode ")
    assert (scope["part"], len(scope["found"]), scope["numbers"][:4]) == (b"hell", 71, b"0\n1\n")
    assert sum(shape[0] for shape in scope["remote"]) == 70
    assert (scope["matching"], scope["trained"]) == (70, 70)
    assert (scope["array"].tolist(), len(scope["examples"])) == ([1.0] * 64, 2)
    assert (scope["picture"].shape, [row["path"] for row in scope["few"]]) == ((300, 260, 1), [row["path"] for row in scope["rows"][:2]])
    assert [tuple(shape) for shape in scope["shapes"]] == [(32, 3, 128, 128)] * 2


def test_the_recipe_runs(scope: dict[str, Any]) -> None:
    exec(next(block for block in BLOCKS if "recipe" in block), scope)
    labels = np.eye(10)
    records = [
        {"image": row["path"], "mask": row["path"], "has_mask": i >= 16, "label": labels[row["class_id"]]}
        for i, row in enumerate(scope["rows"][:32])
    ]
    first, second = scope["recipe"].bind(records).run("torch", seed=1)
    assert first.slot_names == ["image", "label"]
    assert second.slot_names == ["image", "mask", "label"]
    assert not first.errors + second.errors
    assert tuple(first["image"].shape) == (16, 3, 224, 224)
    assert np.allclose(first["label"].sum(dim=1), 1)


def test_make_targets_exist() -> None:
    named = set(re.findall(r"(?:^|`)make ([a-z]+)", README, re.MULTILINE))
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert {"demo", "test", "lint", "bench"} <= named <= targets


def test_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_variables_are_the_declared_ones() -> None:
    from dataio import settings

    declared = {v["name"] for v in settings.env_vars()}
    named = set(re.findall(r"DATAIO_[A-Z0-9_]+", README))
    assert named == {name for name in declared if name.startswith("DATAIO_")}
