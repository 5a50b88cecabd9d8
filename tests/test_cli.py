"""`python -m dataio`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dataio import capabilities, cli, contact_sheet, settings


@pytest.mark.parametrize("argv", [[], ["info"]])
def test_info(argv: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in settings.overrides():
        monkeypatch.delenv(name)
    monkeypatch.setenv("DATAIO_CPU_WORKERS", "3")
    monkeypatch.setenv("DATAIO_EXECUTER", "thread")
    assert cli.main(argv) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"dataio {capabilities.version()}\n")
    assert "  cpu workers               3\n" in out
    assert "did you mean 'DATAIO_EXECUTOR'?" in out


def test_info_as_json(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATAIO_CPU_WORKERS", "many")
    assert cli.main(["--json", "info"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["packages"]["numpy"] == np.__version__
    assert found["image_codecs"]["JPEG"]["available"]
    assert found["workers"]["cpu_workers"].startswith("error: DATAIO_CPU_WORKERS='many'")
    assert found["env_overrides"]["DATAIO_CPU_WORKERS"] == "many"
    for probe in found["subsystems"].values():
        assert probe["detail"]


def test_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "dataio"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert done.stdout.startswith("dataio ")


def test_unknown_command_exits_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["infos"])
    assert caught.value.code == 2
    assert "invalid choice" in capsys.readouterr().err


def test_failure_is_one_line_and_exits_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    assert cli.main(["demo", "--output", str(blocked), "--photos", "1"]) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith("dataio: ")
    assert captured.err.count("\n") == 1


def test_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from PIL import Image

    assert cli.main(["demo", "--output", str(tmp_path), "--photos", "70", "--epochs", "1"]) == 0
    out = capsys.readouterr().out
    assert "batch 0: (64, 3, 224, 224) torch.float32, 0 errors" in out
    assert "batch 1: (6, 3, 224, 224) torch.float32, 0 errors" in out
    assert "epoch 0: 70 images in" in out
    with Image.open(tmp_path / "contact-sheet.png") as sheet:
        assert sheet.size == (8 * 228 + 4, 8 * 228 + 4)


def test_demo_photos_are_deterministic_and_reused(tmp_path: Path) -> None:
    from dataio.demo import make_photos

    first = make_photos(tmp_path / "a", 12)
    again = make_photos(tmp_path / "b", 12)
    assert [p.read_bytes() for p in first] == [p.read_bytes() for p in again]
    first[0].write_bytes(b"marked")
    assert make_photos(tmp_path / "a", 12)[0].read_bytes() == b"marked"
    assert make_photos(tmp_path / "a", 11)[0].read_bytes() == again[0].read_bytes()


def test_denormalise_undoes_normalize() -> None:
    mean, std = (0.5, 0.25, 0.1), (0.2, 0.3, 0.4)
    pixels = np.random.default_rng(0).integers(0, 256, (2, 5, 4, 3), np.uint8)
    normal = (pixels / np.float32(255) - np.float32(mean)) / np.float32(std)
    back = contact_sheet.denormalise(normal.transpose(0, 3, 1, 2).astype(np.float32), mean, std)
    np.testing.assert_array_equal(back, pixels)


def test_contact_sheet_places_images_row_by_row() -> None:
    images = [np.full((3, 2 + i, 3), i, np.uint8) for i in range(3)]
    sheet = contact_sheet.contact_sheet(images, columns=2)
    assert sheet.shape == (2 * 7 + 4, 2 * 8 + 4, 3)
    for i, (top, left) in enumerate([(4, 4), (4, 12), (11, 4)]):
        np.testing.assert_array_equal(sheet[top : top + 3, left : left + 2 + i], images[i])
    with pytest.raises(ValueError, match="at least one"):
        contact_sheet.contact_sheet([])
