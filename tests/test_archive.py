"""`archive` of tar and zip files: in a bucket, and directories that lie."""

from __future__ import annotations

import gzip
import io
import zipfile
from pathlib import Path

import pytest

import dataio
from dataio.io import verbs

from .test_webdataset import tar

pytestmark = pytest.mark.usefixtures("two_workers", "no_leftovers")
ENTRIES = [("a/0.x", b"12345"), ("../1", b""), ("é.y", b"9" * 700)]


def zipped() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in ENTRIES:
            archive.writestr(name, data)
    return out.getvalue()


@pytest.mark.parametrize("name", ["x.tar", "x.tar.gz", "x.zip"])
def test_entries_in_a_bucket(s3_bucket: str, name: str) -> None:
    data = zipped() if name.endswith("zip") else tar(ENTRIES)
    uri = f"{s3_bucket}/{name}"
    verbs.write(uri, gzip.compress(data) if name.endswith("gz") else data)
    found = dataio.archive(uri)
    assert found.index() == [{"name": name, "size": len(data)} for name, data in ENTRIES]
    assert [(entry["name"], bytes(entry["reader"].read_all())) for entry in found.entries()] == ENTRIES
    assert sorted(entry["name"] for entry in found.entries().shuffle(seed=1)) == sorted(found.keys())


def test_entries_that_are_said_to_lie_behind_the_directory_are_damaged(tmp_path: Path) -> None:
    """Each of them was once taken for the bound of the one before."""
    data = bytearray(zipped())
    at = len(data)
    for number in range(2):  # the last two entries of the directory
        at = data.rindex(b"PK\1\2", 0, at)
        data[at + 42 : at + 46] = (9000 - 1000 * number).to_bytes(4, "little")
    (tmp_path / "x.zip").write_bytes(data)
    readers = {entry["name"]: entry["reader"] for entry in dataio.archive(tmp_path / "x.zip").entries()}
    assert bytes(readers.pop("a/0.x").read_all()) == b"12345"
    assert len(readers) == 2
    for name, reader in readers.items():
        with pytest.raises(ValueError, match=rf"x\.zip.*{name}.* is damaged"):
            reader.read_all()
