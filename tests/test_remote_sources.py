"""Sources at any URI: `files`, `manifest`, `urls` and `archive` over stores, as over the local disk."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv

import dataio
from dataio.io.store import forget_stores, register_store

from .conftest import npy
from .shelf import Shelf

pytestmark = pytest.mark.usefixtures("two_workers", "no_leftovers")

csv.read_csv(io.BytesIO(b"a\n1\n"))  # opens pyarrow's pipe for signals, once per process
KEYS = [
    "a/1.jpg", "a/2.png", "a/b/3.jpg", "a/b/c/4.jpg", "a/.hidden/5.jpg", "a/.6.jpg", "ab/7.jpg", "a[1]/8.jpg", "d e+f%20#/ü.jpg",
]  # fmt: skip


@pytest.fixture
def shelf() -> Iterator[Shelf]:
    made = Shelf()
    register_store("shelf", lambda uri: made)
    yield made
    made.gate.set()
    forget_stores("shelf")


# ---------------------------------------------------------------------------------------------------------- files

PATTERNS = ["a/*.jpg", "a/**/*.jpg", "**/*.jpg", "a", "a/", "a/b", "*/[0-9].jpg", "a/**", "a[1]", "a[[]1]/*", "d*/*", "none/*", "none", "a/1.jpg", "?/?.png"]


@pytest.mark.parametrize("recursive", [True, False])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_files_lists_a_store_as_it_lists_a_folder(shelf: Shelf, tmp_path: Path, pattern: str, recursive: bool) -> None:
    for key in KEYS:
        shelf.objects[key] = b""
        path = tmp_path / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    local = [str(Path(p).relative_to(tmp_path)) for p in dataio.files(f"{tmp_path}/{pattern}", recursive=recursive)]
    assert list(dataio.files(f"shelf://{pattern}", recursive=recursive)) == [f"shelf://{key}" for key in local]


def test_files_takes_several_patterns_of_any_kind(shelf: Shelf, tmp_path: Path) -> None:
    shelf.objects = {"x/2": b"", "x/1": b"", "y": b""}
    (tmp_path / "z").touch()
    found = dataio.files(["shelf://y", str(tmp_path), "shelf://x/*", "shelf://x/1", tmp_path.as_uri() + "/z"])
    assert list(found) == ["shelf://y", f"{tmp_path}/z", "shelf://x/1", "shelf://x/2"]


def test_objects_that_look_like_patterns_and_folders(shelf: Shelf) -> None:
    shelf.objects = {"a[1].jpg": b"", "a1.jpg": b"", "folder/": b"", "folder/x": b""}
    assert list(dataio.files("shelf://a[1].jpg")) == ["shelf://a[1].jpg"]
    assert list(dataio.files("shelf://folder")) == ["shelf://folder/x"]


def test_files_of_a_store_run(shelf: Shelf) -> None:
    shelf.objects = {f"x/{i}.npy": npy(np.full(2, i)) for i in range(9)}
    pipe = dataio.pipeline(dataio.slot("x").decode_npy(), dataio.batch(4))
    with pipe.bind(dataio.files("shelf://x/*.npy").shuffle(seed=1)).run("numpy") as loader:
        assert sorted(int(row[0]) for batch in loader for row in batch["x"]) == list(range(9))


# -------------------------------------------------------------------------------------------------------- manifest


def written(suffix: str) -> tuple[bytes, list[Any]]:
    rows: list[Any] = [{"image": f"shelf://{i}", "label": i} for i in range(3)]
    table = pa.Table.from_pylist(rows)
    if suffix == "txt":
        return b"shelf://0\n\n  x y \n", ["shelf://0", "x y"]
    if suffix == "jsonl":
        return "\n".join(map(json.dumps, rows)).encode(), rows
    out = io.BytesIO()
    if suffix == "csv":
        csv.write_csv(table, out)
    else:
        pq.write_table(table, out)
    return out.getvalue(), rows


@pytest.mark.parametrize("suffix", ["txt", "jsonl", "csv", "parquet"])
def test_a_manifest_anywhere(shelf: Shelf, tmp_path: Path, suffix: str) -> None:
    data, rows = written(suffix)
    shelf.objects[f"list.{suffix}"] = data
    (tmp_path / f"list.{suffix}").write_bytes(data)
    for place in (f"shelf://list.{suffix}", (tmp_path / f"list.{suffix}").as_uri(), tmp_path / f"list.{suffix}"):
        source = dataio.manifest(place)
        assert list(source) == list(source) == rows
        assert len(source) == len(rows)
    assert shelf.requests == 1


def test_bad_manifests_name_themselves(shelf: Shelf) -> None:
    shelf.objects = {"bad.jsonl": b'ok\n{"a": ', "latin.txt": b"\xff\n"}
    with pytest.raises(json.JSONDecodeError) as caught:
        dataio.manifest("shelf://bad.jsonl")
    assert "line 2 of the manifest shelf://bad.jsonl" in caught.value.__notes__[0]
    with pytest.raises(UnicodeDecodeError):
        dataio.manifest("shelf://latin.txt")
    with pytest.raises(FileNotFoundError, match="shelf://none"):
        dataio.manifest("shelf://none.txt")


# ------------------------------------------------------------------------------------------------------------ urls


def test_urls_are_readers_by_key(shelf: Shelf, tmp_path: Path) -> None:
    shelf.objects = {f"{i}.npy": npy(np.full(2, i)) for i in range(9)}
    source = dataio.urls([f"shelf://{i}.npy" for i in range(9)])
    assert len(source) == 9
    first = next(iter(source))
    assert first["key"] == "shelf://0.npy"
    assert bytes(first["reader"].read_all()) == shelf.objects["0.npy"]
    pipe = dataio.pipeline(dataio.map(lambda r: {**r, "x": r["reader"]}), dataio.slot("x").decode_npy(), dataio.batch(4))
    for workers in ("thread", "process"):
        with pipe.bind(source).run("numpy", workers=workers) as loader:
            assert [int(row[0]) for batch in loader for row in batch["x"]] == list(range(9))
            assert loader.stats()["fetch"]["values"] == 9, "readers are fetched ahead too"


def test_urls_refuses_what_cannot_be_read() -> None:
    for uris in ("s3://b/k", b"x", 3, [3]):
        with pytest.raises(TypeError):
            dataio.urls(uris)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="unknown scheme"):
        dataio.urls(["/local", "nope://x"])
    with pytest.raises(ValueError, match="no key"):
        dataio.urls(["s3://bucket"])
    with pytest.raises(TypeError, match="headers"):
        dataio.urls([], headers=3)  # type: ignore[arg-type]


# --------------------------------------------------------------------------------------------------------- archive

FILES = {"a.txt": b"first", "d/b.npy": npy(np.arange(9)), "d/empty": b"", "../x": b"only a name"}


def tar_of(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        folder = tarfile.TarInfo("d")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def zip_of(files: dict[str, bytes], method: int) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        archive.writestr("d/", b"")
        for name, data in files.items():
            archive.writestr(name, data)
    return out.getvalue()


ARCHIVES: dict[str, Callable[[], bytes]] = {
    "x.tar": lambda: tar_of(FILES),
    "x.tar.gz": lambda: gzip.compress(tar_of(FILES)),
    "x.tgz": lambda: gzip.compress(tar_of(FILES)),
    "x.tar.bz2": lambda: __import__("bz2").compress(tar_of(FILES)),
    "x.zip": lambda: zip_of(FILES, zipfile.ZIP_DEFLATED),
    "stored.ZIP": lambda: zip_of(FILES, zipfile.ZIP_STORED),
}


@pytest.fixture(params=["local", "store"])
def put(request: pytest.FixtureRequest, tmp_path: Path, shelf: Shelf) -> Callable[[str, bytes], str]:
    def make(name: str, data: bytes) -> str:
        if request.param == "store":
            shelf.objects[name] = data
            return f"shelf://{name}"
        (tmp_path / name).write_bytes(data)
        return str(tmp_path / name)

    return make


@pytest.mark.parametrize("name", ARCHIVES)
def test_the_entries_of_an_archive(put: Callable[[str, bytes], str], name: str) -> None:
    found = dataio.archive(put(name, ARCHIVES[name]()))
    assert found.keys() == list(FILES)
    assert found.index() == [{"name": n, "size": len(data)} for n, data in FILES.items()]
    entries = found.entries()
    assert len(entries) == len(FILES)
    assert {e["name"]: bytes(e["reader"].read_all()) for e in entries} == FILES
    assert [e["name"] for e in entries.shuffle(seed=1)] != list(FILES)


@pytest.mark.parametrize("name", ["x.tar", "x.tar.gz", "x.zip"])
def test_an_entry_that_is_too_large_fails_when_it_is_read(put: Callable[[str, bytes], str], name: str) -> None:
    found = dataio.archive(put(name, ARCHIVES[name]()), max_output_bytes=100)
    sizes = {e["name"]: e["reader"] for e in found.entries()}
    assert bytes(sizes["a.txt"].read_all()) == b"first"
    with pytest.raises((RuntimeError, ValueError), match="max_output_bytes"):
        sizes["d/b.npy"].read_all()


def test_only_headers_of_a_tar_in_a_store_are_fetched(shelf: Shelf) -> None:
    shelf.objects["x.tar"] = tar_of({f"{i}.bin": bytes(4 << 20) for i in range(4)})
    assert len(dataio.archive("shelf://x.tar").keys()) == 4
    assert shelf.nbytes < len(shelf.objects["x.tar"]) / 4


def test_entries_in_a_loader(put: Callable[[str, bytes], str]) -> None:
    data = tar_of({f"{i}.npy": npy(np.full(2, i)) for i in range(9)})
    entries = dataio.archive(put("x.tar", data)).entries()
    pipe = dataio.pipeline(
        dataio.map(lambda r: {"x": r["reader"], "key": r["name"]}), dataio.slot("x").decode_npy(), dataio.batch(4)
    )
    for workers in ("thread", "process"):
        with pipe.bind(entries.shuffle(seed=2)).run("numpy", workers=workers) as loader:
            assert sorted(int(row[0]) for batch in loader for row in batch["x"]) == list(range(9))


def test_archives_are_opened_when_they_are_used(put: Callable[[str, bytes], str]) -> None:
    path = put("x.tar", b"")
    found = dataio.archive(path.replace("x.tar", "none.tar"))
    assert (found.path, found.max_output_bytes) == (path.replace("x.tar", "none.tar"), 2**30)
    for use in (found.keys, found.index, found.entries):
        with pytest.raises(FileNotFoundError):
            use()
    for name in ("empty.tar", "empty.zip", "text.tar.gz"):
        with pytest.raises(ValueError):  # noqa: PT011  (the libraries' texts)
            dataio.archive(put(name, b"no archive")).keys()


def test_archive_refuses() -> None:
    with pytest.raises(TypeError):
        dataio.archive(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="max_output_bytes"):
        dataio.archive("x.tar", max_output_bytes=0)


@pytest.mark.parametrize(("setting", "value"), [("DATAIO_ZIP_MAX_ENTRIES", "2"), ("DATAIO_ZIP_CENTRAL_DIRECTORY_MAX_BYTES", "50")])
def test_a_zip_whose_directory_is_over_the_limits_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str, value: str) -> None:
    monkeypatch.setenv(setting, value)
    (tmp_path / "x.zip").write_bytes(zip_of(dict.fromkeys("abc", b""), zipfile.ZIP_STORED))
    with pytest.raises(ValueError, match=setting):
        dataio.archive(tmp_path / "x.zip").keys()
