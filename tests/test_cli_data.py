"""The commands over data sets."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from pyarrow import feather
from safetensors.numpy import save_file

import dataio
from dataio import cli

from .conftest import encoded
from .test_checks import EXAMPLE, samples, tar, tfrecord

pytestmark = pytest.mark.usefixtures("no_leftovers")


@pytest.fixture
def shelf(tmp_path: Path) -> Path:
    """A folder with a healthy file of each kind."""
    (tmp_path / "shard.tar").write_bytes(tar(samples(3)))
    table = pa.table({"n": [1, None, 3], "name": ["x", "y", None], "when": pa.array([0, 1, 2], pa.date32())})
    pq.write_table(table, tmp_path / "table.parquet")
    feather.write_feather(table, tmp_path / "table.feather")
    (tmp_path / "records.tfrecord").write_bytes(tfrecord([EXAMPLE] * 3))
    save_file({"w": np.ones((2, 3), np.float32), "b": np.ones(3, np.float16)}, tmp_path / "model.safetensors")
    with h5py.File(tmp_path / "data.h5", "w") as file:
        file["group/x"] = np.ones((4, 2))
    np.save(tmp_path / "array.npy", np.arange(6).reshape(3, 2))
    np.savez(tmp_path / "arrays.npz", a=np.arange(3))
    (tmp_path / "picture.jpg").write_bytes(encoded(12, 16))
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *arguments: Any, status: int = 0) -> str:
    assert cli.main([str(argument) for argument in arguments]) == status
    return capsys.readouterr().out


def as_json(capsys: pytest.CaptureFixture[str], *arguments: Any, status: int = 0) -> Any:
    return json.loads(run(capsys, *arguments, "--json", status=status))


# ------------------------------------------------------------------- check


def test_check_of_a_healthy_file(shelf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, "check", shelf / "shard.tar")
    assert out == "1 file (1 tar), 10.00 KiB, 3 records\n0 errors, 0 warnings, 0 info\n"


def test_check_of_damage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a\nb.tar"
    path.write_bytes(tar([("a.jpg", b"")]))
    lines = run(capsys, "check", path, status=1).splitlines()
    assert lines[1].startswith("  error    empty  a.jpg: ")
    assert lines[-1] == "1 error, 0 warnings, 0 info"
    assert "\033" not in "".join(lines)


def test_check_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.jpg").write_bytes(b"")
    told = as_json(capsys, "check", tmp_path, "--quick", status=1)
    message = "the file is empty (0 bytes)"
    finding = {"severity": "error", "uri": str(tmp_path / "a.jpg"), "code": "empty", "message": message, "record": None}
    assert told["ok"] is False
    assert told["findings"] == [finding]
    assert told["summary"] == {
        "files": 1, "bytes": 0, "records": 0, "kinds": {"image": 1}, "skipped": 0, "errors": 1, "warnings": 0, "info": 0, "not_shown": 0,
    }  # fmt: skip


def test_check_shows_so_many_findings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.tar").write_bytes(tar([(f"{i}.jpg", b"") for i in range(9)]))
    out = run(capsys, "check", tmp_path, "--max-findings", 2, status=1)
    assert out.count("  empty  ") == 2
    assert "... and 7 more (--max-findings)" in out


def test_check_of_what_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", str(tmp_path / "none")]) == cli.NOT_THERE
    assert "nothing matches" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["check"], ["check", "x", "--max-findings", "-1"], ["stats"], ["schema"], ["preview", "x"], ["head", "x", "-n", "-1"]])
def test_wrong_command_lines_exit_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    assert caught.value.code == 2


def test_colours_on_a_terminal_only(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(b"")
    primary, secondary = os.openpty()
    done = subprocess.Popen([sys.executable, "-m", "dataio", "check", "a.jpg"], cwd=tmp_path, stdout=secondary, stderr=subprocess.DEVNULL)
    status = done.wait(60)
    os.close(secondary)
    shown = os.read(primary, 4096)
    os.close(primary)
    assert status == 1
    assert b"\x1b[31merror" in shown


# ------------------------------------------------------------------- head, schema, stats

ROWS = [{"n": 1, "name": "x", "when": "1970-01-01"}, {"n": None, "name": "y", "when": "1970-01-02"}]
HEADS = {
    "shard.tar": [{"__key__": f"000{i}", "jpg": f"{len(encoded()):,} bytes", "json": "2 bytes"} for i in range(2)],
    "table.parquet": ROWS,
    "table.feather": ROWS,
    "records.tfrecord": [{"a": [1, 2]}] * 2,
    "model.safetensors": [{"tensor": "w", "type": "float32[2, 3]"}, {"tensor": "b", "type": "float16[3]"}],
    "data.h5": [{"dataset": "group/x", "dtype": "float64", "shape": [4, 2]}],
    "array.npy": [[0, 1], [2, 3]],
    "arrays.npz": [{"member": "a.npy", "content": "int64[3]"}],
    "picture.jpg": [{"format": "jpeg", "height": 12, "width": 16, "channels": 3, "orientation": 1}],
}


@pytest.mark.parametrize("name", HEADS)
def test_head_gives_the_first_records(shelf: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    told = as_json(capsys, "head", shelf / name, "-n", 2)
    assert sorted(map(str, told["records"])) == sorted(map(str, HEADS[name]))
    assert told["content_length"] == (shelf / name).stat().st_size


def test_head_as_text(shelf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = run(capsys, "head", shelf / "table.parquet", "-n", 1).splitlines()
    assert lines[-4:] == ["[0]", "  n: 1", "  name: x", "  when: 1970-01-01"]


def test_head_of_other_files_tells_what_is_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").write_text("nothing to look into")
    told = as_json(capsys, "head", tmp_path / "notes.txt")
    assert (told["content_length"], "records" in told) == (20, False)


def test_head_without_records_reads_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 and no more")
    assert "records" not in as_json(capsys, "head", tmp_path / "broken.parquet", "-n", 0)
    assert cli.main(["head", str(tmp_path / "broken.parquet")]) == cli.FAILED
    assert "broken.parquet" in capsys.readouterr().err


SCHEMAS = {
    "shard.tar": {"jpg": "3 of 3 samples", "json": "3 of 3 samples"},
    "table.parquet": {"n": "int64", "name": "string", "when": "date32[day]"},
    "records.tfrecord": {"a": "int[2]"},
    "model.safetensors": {"w": "float32[2, 3]", "b": "float16[3]"},
    "data.h5": {"group/x": {"dtype": "float64", "shape": [4, 2]}},
    "array.npy": {"": "int64[3, 2]"},
    "picture.jpg": HEADS["picture.jpg"][0],
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_schema(shelf: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert as_json(capsys, "schema", shelf / name)["schema"] == SCHEMAS[name]
    assert run(capsys, "schema", shelf / name)


COLUMNS = {
    "n": {"type": "Int64", "nulls": 1, "min": 1, "max": 3, "mean": 2.0},
    "name": {"type": "String", "nulls": 1, "min": "x", "max": "y"},
    "when": {"type": "Date", "nulls": 0, "min": "1970-01-01", "max": "1970-01-03"},
}
STATS = {
    "shard.tar": {"samples": 3, "members": {"jpg": {"members": 3, "bytes": 3 * len(encoded())}, "json": {"members": 3, "bytes": 6}}},
    "table.parquet": {"rows": 3, "columns": COLUMNS},
    "table.feather": {"rows": 3, "columns": COLUMNS},
    "records.tfrecord": {"records": 3, "bytes": 3 * len(EXAMPLE), "features": {"a": 3}},
    "model.safetensors": {"tensors": 2, "parameters": 9, "bytes": 30, "dtypes": {"float32": 6, "float16": 3}},
    "data.h5": {"datasets": 1, "stored_bytes": 64},
    "array.npy": {"arrays": 1, "dtype": "int64", "shape": [3, 2], "bytes": 48},
}


@pytest.mark.parametrize("name", STATS)
def test_stats(shelf: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    (figures,) = as_json(capsys, "stats", shelf / name)["contents"]
    assert figures.items() >= STATS[name].items()


def test_stats_of_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.jpg").write_bytes(encoded(300, 400))
    (tmp_path / "b.png").write_bytes(encoded(100, 100, format="PNG"))
    told = as_json(capsys, "stats", tmp_path)["images"]
    assert told == {
        "images": 2, "formats": {"jpeg": 1, "png": 1}, "channels": {"3": 2}, "exif_rotated": 0, "smallest": [100, 100],
        "largest": [300, 400], "short_side": {"64-127": 1, "256-511": 1}, "aspect": {"4:3": 1, "1:1": 1},
    }  # fmt: skip


# ------------------------------------------------------------------- preview


def embedded(pictures: list[bytes]) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table({"image": [{"bytes": data, "path": None} for data in pictures], "label": range(len(pictures))}), out)
    return out.getvalue()


PICTURES = [encoded(40, 60, seed=i) for i in range(4)]


@pytest.mark.parametrize("kind", ["folder", "tar", "parquet"])
def test_preview(tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    pictures = [*PICTURES, PICTURES[0][:100]]
    if kind == "tar":
        (folder / "a.tar").write_bytes(tar([(f"{i}.jpg", data) for i, data in enumerate(pictures)]))
    elif kind == "parquet":
        (folder / "a.parquet").write_bytes(embedded(pictures))
    else:
        for i, data in enumerate(pictures):
            (folder / f"{i}.jpg").write_bytes(data)
    told = as_json(capsys, "preview", folder, "-o", tmp_path / "sheet.png", "--size", 32)
    assert told == {"records": 5, "pictures": 5, "sounds": 0, "broken": 1, "output": str(tmp_path / "sheet.png")}
    with Image.open(tmp_path / "sheet.png") as sheet:
        red = np.asarray(sheet.convert("RGB")) == (200, 30, 30)
        assert red.all(axis=2).sum() > 32  # the cross


def test_preview_of_so_many_is_spread_over_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for i in range(8):
        Image.new("RGB", (8, 8), (30 * i, 255, 0)).save(tmp_path / f"{i}.png")
    run(capsys, "preview", tmp_path, "-o", tmp_path / "sheet.bmp", "-n", 4)
    with Image.open(tmp_path / "sheet.bmp") as sheet:
        colours = {colour for _, colour in sheet.getcolors(1 << 24) if colour[1:] == (255, 0)}
    assert colours == {(red, 255, 0) for red in (0, 60, 120, 180)}


@pytest.mark.parametrize("name", HEADS)
def test_preview_as_a_page_of_everything_that_head_knows(shelf: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    told = as_json(capsys, "preview", shelf / name, "-o", shelf / "page.html")
    assert told["records"] > 0
    assert told["broken"] == 0
    assert told["pictures"] == {"shard.tar": 3, "picture.jpg": 1}.get(name, 0)
    assert (shelf / "page.html").read_text().startswith("<!DOCTYPE html>")


def test_preview_of_sounds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    soundfile = pytest.importorskip("soundfile")
    (tmp_path / "a").mkdir()
    for name in ("one.wav", "two.flac"):
        soundfile.write(tmp_path / "a" / name, np.sin(np.arange(4000) / 7), 8000)
    (tmp_path / "a" / "three.ogg").write_bytes(b"OggS and no more")
    told = as_json(capsys, "preview", tmp_path / "a", "-o", tmp_path / "sheet.png")
    assert (told["records"], told["sounds"], told["broken"]) == (3, 2, 1)


def test_preview_of_nothing_that_is_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").write_text("nothing to look at")
    assert cli.main(["preview", str(tmp_path / "notes.txt"), "-o", str(tmp_path / "sheet.png")]) == cli.FAILED
    assert "no records" in capsys.readouterr().err
    assert not (tmp_path / "sheet.png").exists()


def test_every_command_in_a_store(s3_bucket: str, shelf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dataio.copy(f"{shelf}/", f"{s3_bucket}/set/", recursive=True)
    assert as_json(capsys, "head", f"{s3_bucket}/set/table.parquet", "-n", 2)["records"] == ROWS
    assert as_json(capsys, "schema", f"{s3_bucket}/set/data.h5")["schema"] == SCHEMAS["data.h5"]
    assert as_json(capsys, "stats", f"{s3_bucket}/set/")["files"] == len(HEADS)
    assert as_json(capsys, "preview", f"{s3_bucket}/set/shard.tar", "-o", f"{s3_bucket}/sheet.png")["pictures"] == 3
    assert dataio.read(f"{s3_bucket}/sheet.png")[1:4] == b"PNG"


@pytest.mark.parametrize("command", ["schema", "stats", "preview"])
@pytest.mark.parametrize("name", ["shard.tar", "table.parquet", "table.feather", "records.tfrecord", "data.h5", "arrays.npz", "model.safetensors"])
def test_a_damaged_file_is_named(shelf: Path, command: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = shelf / name
    path.write_bytes(path.read_bytes()[:-20] if name != "shard.tar" else path.read_bytes()[:1000])
    options = ["-o", str(shelf / "sheet.png")] if command == "preview" else []
    assert cli.main([command, str(path), *options]) == cli.FAILED
    shown = capsys.readouterr().err
    assert name in shown
    assert shown.count("\n") == 1


def test_buffers_of_an_arrow_file_that_lie(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "table.feather"
    feather.write_feather(pa.table({"text": ["a", "bc", "d"]}), path, compression="uncompressed")
    data = path.read_bytes()
    offsets = np.array([0, 1, 3, 4], np.int32).tobytes()
    assert data.count(offsets) == 1
    path.write_bytes(data.replace(offsets, np.array([0, 1, 3, 1 << 30], np.int32).tobytes()))
    for command in ("stats", "head"):
        assert cli.main([command, str(path)]) == cli.FAILED
        assert "table.feather" in capsys.readouterr().err
    assert {f.code for f in dataio.check(path).findings} == {"damaged_column"}
