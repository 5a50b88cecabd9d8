"""The files of bench/query.py, made once: a table in 16 and in 2 row groups, tar shards of labelled photos, 10,000 image files."""

from __future__ import annotations

from pathlib import Path

import data
import formats_data

VERSION = 1
IMAGES = 10_000
TABLES = {"many.parquet": 16, "few.parquet": 2}
"""Row groups of each."""


def make(target: Path, photos: Path, scale: float = 1.0) -> Path:
    """Write the files under `target` unless they are there; `photos` holds the data of bench/data.py."""

    def fill() -> None:
        data.make(photos)
        for name, groups in TABLES.items():
            formats_data.write_table(target / name, scale, groups)
        formats_data.write_shards(target, sorted((photos / "photos").glob("*.jpg"))[: formats_data.count(data.PHOTOS, scale)])
        _images(target / "images", photos, formats_data.count(IMAGES, scale))

    return data.made_once(target, {"version": VERSION, "scale": scale}, fill)


def _images(target: Path, photos: Path, number: int) -> None:
    """Photos of 256x256, and one in eight of another size, each a file of its own."""
    target.mkdir()
    small = [file.read_bytes() for file in sorted((photos / "small").glob("*.jpg"))]
    large = [file.read_bytes() for file in sorted((photos / "photos").glob("*.jpg"))[:32]]
    for index in range(number):
        content = large[index // 8 % len(large)] if index % 8 == 0 else small[index % len(small)]
        (target / f"{index:05d}.jpg").write_bytes(content)
