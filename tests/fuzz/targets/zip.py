"""Zip archives: the directory, local headers, and every entry's content."""

from __future__ import annotations

import io
import zipfile

import dataio
from dataio.io import verbs

URI = "memory://fuzz/x.zip"
LIMIT = 1 << 20


def _zip(method: int, comment: bytes = b"") -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        archive.comment = comment
        for name, content in {"a/0.x": b"12345" * 20, "é.y": b"", "d/": b""}.items():
            archive.writestr(name, content)
        with archive.open("zip64", "w", force_zip64=True) as entry:
            entry.write(bytes(300))
    return out.getvalue()


def seeds() -> list[bytes]:
    methods = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
    return [*map(_zip, methods), _zip(zipfile.ZIP_STORED, b"comment")]


def run(data: bytes) -> None:
    verbs.write(URI, data)
    try:
        for entry in dataio.archive(URI, max_output_bytes=LIMIT).entries():
            try:
                entry["reader"].read_all()
            except (ValueError, RuntimeError):  # documented: a damaged entry, one above the limit
                pass
    except ValueError:
        pass
