"""docs/data-sets.md keeps its word: its Python and its commands run. (That the files and tests it names exist, test_arch.py holds.)"""

from __future__ import annotations

import inspect
import io
import json
import re
import shlex
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dataio
from dataio import cli
from dataio.sinks.methods import SinkMethods

from .conftest import encoded

pytestmark = pytest.mark.usefixtures("two_workers", "no_leftovers")
ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "docs" / "data-sets.md").read_text(encoding="utf-8")
CLIP = {
    "image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 48}, "resample": 3, "do_center_crop": True,
    "crop_size": {"height": 48, "width": 48}, "image_mean": [0.48, 0.46, 0.41], "image_std": [0.27, 0.26, 0.28],
}  # fmt: skip


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the blocks expect to find, in the working directory."""
    monkeypatch.chdir(tmp_path)
    for name in ("photos", "damaged", "clip"):
        (tmp_path / name).mkdir()
    (tmp_path / "clip" / "preprocessor_config.json").write_text(json.dumps(CLIP))
    with zipfile.ZipFile("photos.zip", "w") as photos:
        for i in range(20):
            (tmp_path / "photos" / f"{i:02d}.jpg").write_bytes(encoded(60, 80, seed=i))
            photos.write(f"photos/{i:02d}.jpg", f"{i:02d}.jpg")
    np.savez("arrays.npz", x=np.arange(6), y=np.zeros(2))
    for k in range(4):
        with tarfile.open(f"train-{k:03d}.tar", "w") as tar:
            for i in range(8 * k, 8 * k + 8):
                for suffix, data in (("jpg", encoded(60, 80, seed=i)), ("cls", str(i % 4).encode())):
                    entry = tarfile.TarInfo(f"{i:04d}.{suffix}")
                    entry.size = len(data)
                    tar.addfile(entry, io.BytesIO(data))
    (tmp_path / "damaged" / "cut.tar").write_bytes((tmp_path / "train-000.tar").read_bytes()[:2_000])
    (tmp_path / "damaged" / "other.png").write_bytes(encoded())
    return tmp_path


def test_python_blocks(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    paths = {f"p{i:02d}": f"photos/{i:02d}.jpg" for i in range(20)} | {"broken": "damaged/cut.tar"}
    scope: dict[str, Any] = {"photo_paths": paths}
    python = blocks("python")
    assert len(python) == 5
    for i, block in enumerate(python):
        exec(compile(block, f"docs/data-sets.md, Python block {i + 1}", "exec"), scope)
    samples = [f"{i:04d}" for i in range(32)]
    assert sorted(scope["seen"]) == sorted(sample["__key__"] for sample in scope["forwards"]) == samples
    assert scope["seen"] != samples
    assert len(scope["indexed"]) == 32
    assert scope["names"] == [f"{i:02d}.jpg" for i in range(20)]
    assert [record["key"] for record in scope["arrays"]] == ["x"]
    assert (scope["pixel_values"].dtype, scope["pixel_values"].shape) == (np.float32, (8, 3, 48, 48))
    first, second = scope["same"]
    assert first.shape == (32, 32, 3)
    assert first.tobytes() == second.tobytes()
    assert "('part-00000.parquet', 'part-00001.parquet', 'part-00002.parquet') 20 1 ['broken']" in capsys.readouterr().out
    assert scope["first"]["image"].shape == (8, 32, 32, 3)
    assert {name for sample in dataio.webdataset(f"tars/{scope['tars'].shards[0]}") for name in sample if name[0] != "_"} == {"image.png"}
    assert {finding.code for finding in scope["damaged"].findings} == {"truncated", "wrong_extension"}


def test_commands(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (commands,) = blocks("sh")
    shown = {}
    for line in commands.splitlines():
        program, *arguments = shlex.split(line)
        assert (program, cli.main(arguments)) == ("dataio", 0)
        shown[arguments[0]] = capsys.readouterr().out
    assert "0 errors" in shown["check"]
    assert "0001" in shown["head"]
    assert "x: int64[6]" in shown["schema"].replace(".npy", "")
    assert json.loads(shown["stats"])["images"]["images"] == 20
    assert (folder / "sheet.png").read_bytes()[1:4] == b"PNG"


@pytest.mark.parametrize(
    "function",
    [dataio.webdataset, dataio.archive, dataio.npz, dataio.check, *(getattr(SinkMethods, name) for name in vars(SinkMethods) if name.startswith("sink_"))],
)
def test_every_option_is_named(function: Any) -> None:
    names = {name for name in inspect.signature(function).parameters if name not in ("self", "options")}
    assert sorted(name for name in names if not re.search(rf"\b{name}\b", TEXT)) == []


def test_every_code_of_a_finding_is_named() -> None:
    code = "\n".join(path.read_text() for path in (ROOT / "dataio" / "inspect").glob("*.py"))
    written = set(re.findall(r'\.(?:error|warning|info)\("(\w+)"', code)) | set(re.findall(r'\.add\("\w+", "(\w+)"', code))
    assert len(written) > 20
    assert sorted(name for name in written if f"`{name}`" not in TEXT) == []
