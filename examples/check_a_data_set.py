"""Look at a data set before training on it: what is in there, what is wrong with it, and what it looks like.

    python examples/check_a_data_set.py

The same from a shell, for files, folders, patterns and any store:

    dataio check  "s3://bucket/train-{000..127}.tar"      # exits with 1 where there are errors; --json, --quick
    dataio head   table.parquet -n 3
    dataio schema model.safetensors
    dataio stats  photos/
    dataio preview photos/ -o sheet.png -n 64
"""

from __future__ import annotations

import io
import tarfile
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

import dataio
from dataio.cli import main as command


def picture(number: int) -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.full((48, 64, 3), 25 * number, np.uint8)).save(out, "JPEG")
    return out.getvalue()


def shard(path: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w") as tar:
        for name, data in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))


def make(folder: Path) -> None:
    """A small data set with four mistakes in it."""
    whole = {f"{i:02d}.{suffix}": data for i in range(8) for suffix, data in (("jpg", picture(i)), ("cls", b"1"))}
    shard(folder / "train-0.tar", whole)
    del whole["03.cls"]  # 1: a label is missing
    whole["05.jpg"] = whole["05.jpg"][:300]  # 2: a picture was cut off
    shard(folder / "train-1.tar", whole)
    pq.write_table(pa.table({"id": [1, 2], "score": [0.5, 0.25]}), folder / "scores-0.parquet")
    pq.write_table(pa.table({"id": [1, 2], "score": ["0.5", "?"]}), folder / "scores-1.parquet")  # 3: text, not numbers
    (folder / "cover.png").write_bytes(picture(3))  # 4: the name lies


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make(folder)
        report = dataio.check(folder)
        for finding in report.findings:
            where = Path(finding.uri).name if finding.record is None else f"{Path(finding.uri).name} {finding.record}"
            print(f"{finding.severity}: {finding.code} in {where}")
        print("files:", report.files, "records:", report.records, "fit for training:", report.ok)
        print("exit status:", command(["check", str(folder / "train-0.tar")]))
        command(["head", str(folder / "scores-0.parquet"), "-n", "1"])
        command(["stats", str(folder / "train-0.tar")])
        command(["preview", str(folder / "train-0.tar"), "-o", str(folder / "sheet.png"), "--size", "32"])
        with Image.open(folder / "sheet.png") as sheet:
            print("sheet:", sheet.size)


if __name__ == "__main__":
    main()
