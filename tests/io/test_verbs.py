"""The flat verbs, on local files, in memory and on real servers."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import dataio
from dataio.io.errors import ObjectNotFoundError

from ..servers.s3 import S3Server

ODD = ["a[1]", "b?c", "d e+f%20#", "ü", "/leading", "a//b", "../x"]


@pytest.fixture(name="folder", params=["local", "memory", "s3"])
def _folder(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Somewhere to write, without a slash at the end."""
    if request.param == "local":
        return str(tmp_path)
    if request.param == "memory":
        return f"memory://{tmp_path.name}"
    bucket: str = request.getfixturevalue("s3_bucket")
    return f"{bucket}/folder"


def test_what_is_written_is_read(folder: str) -> None:
    dataio.write(f"{folder}/x", b"hello")
    assert dataio.read(f"{folder}/x") == dataio.fetch(f"{folder}/x") == b"hello"


@pytest.mark.parametrize("data", [b"ab", bytearray(b"ab"), memoryview(b"ab"), np.frombuffer(b"ab", np.uint8)])
def test_anything_bytes_like_is_written(folder: str, data: object) -> None:
    dataio.write(f"{folder}/x", data)  # type: ignore[arg-type]
    assert dataio.read(f"{folder}/x") == b"ab"


@pytest.mark.parametrize("data", [5, "text", None, [1]])
def test_anything_else_is_refused(tmp_path: Path, data: object) -> None:
    with pytest.raises(TypeError, match="bytes-like"):
        dataio.write(tmp_path / "x", data)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("offset", "size", "expected"), [(0, 2, b"01"), (3, 4, b"3456"), (8, 100, b"89"), (4, 0, b"")])
def test_a_range_is_cut_short_at_the_end(folder: str, offset: int, size: int, expected: bytes) -> None:
    dataio.write(f"{folder}/x", b"0123456789")
    assert dataio.read(f"{folder}/x", offset=offset, size=size) == expected


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"offset": 1}, ValueError),
        ({"size": 1}, ValueError),
        ({"offset": -1, "size": 1}, ValueError),
        ({"offset": 0, "size": -1}, ValueError),
        ({"offset": 0.5, "size": 1}, TypeError),
        ({"offset": True, "size": 1}, TypeError),
        ({"headers": {"a": "b"}}, NotImplementedError),
        ({"max_response_bytes": 9}, RuntimeError),
    ],
)
def test_options_are_checked(tmp_path: Path, options: dict[str, object], error: type[Exception]) -> None:
    dataio.write(tmp_path / "x", b"0123456789")
    with pytest.raises(error):
        dataio.read(tmp_path / "x", **options)  # type: ignore[arg-type]


def test_a_buffer_is_filled(folder: str) -> None:
    dataio.write(f"{folder}/x", bytes(range(10)))
    out = np.zeros((2, 3), np.uint8)
    assert dataio.fetch_into(f"{folder}/x", out, offset=2) == 6
    assert out.tolist() == [[2, 3, 4], [5, 6, 7]]
    assert dataio.fetch_into(f"{folder}/x", bytearray(5), offset=8) == 2


def test_a_tensor_is_filled(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    dataio.write(tmp_path / "x", np.arange(4, dtype=np.float32).tobytes())
    out = torch.zeros(4)
    assert dataio.fetch_into(tmp_path / "x", out) == 16
    assert out.tolist() == [0, 1, 2, 3]


def test_a_buffer_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    dataio.write(tmp_path / "x", b"abc")
    with pytest.raises(TypeError, match="read-only"):
        dataio.fetch_into(tmp_path / "x", b"...")


def test_head_and_exists(folder: str) -> None:
    assert not dataio.exists(f"{folder}/x")
    dataio.write(f"{folder}/x", b"hello")
    assert dataio.exists(f"{folder}/x")
    assert (dataio.head(f"{folder}/x").status, dataio.head(f"{folder}/x").content_length) == (200, 5)


def test_head_of_an_object(s3_bucket: str) -> None:
    etag = dataio.write(f"{s3_bucket}/x", b"hello", content_type="text/plain")
    head = dataio.head(f"{s3_bucket}/x")
    assert (head.etag, head.content_type) == (f'"{etag}"', "text/plain")
    assert head.last_modified is not None


@pytest.mark.parametrize("verb", [dataio.read, dataio.head])
def test_what_is_missing_is_named(folder: str, verb: object) -> None:
    with pytest.raises(FileNotFoundError, match="nothing-here"):
        verb(f"{folder}/nothing-here")  # type: ignore[operator]


def test_a_prefix_is_no_object(s3_bucket: str) -> None:
    dataio.write(f"{s3_bucket}/a/b", b"")
    assert not dataio.exists(f"{s3_bucket}/a")
    assert not dataio.exists(f"{s3_bucket}/a/")


@pytest.mark.parametrize("name", ODD)
def test_keys_are_opaque_in_every_verb(s3_bucket: str, s3_server: S3Server, name: str) -> None:
    uri, bucket = f"{s3_bucket}/{name}", s3_bucket.removeprefix("s3://")
    dataio.write(uri, b"hello")
    assert [entry["Key"] for entry in s3_server.client().list_objects_v2(Bucket=bucket)["Contents"]] == [name]
    assert dataio.read(uri) == b"hello"
    assert dataio.read(uri, offset=1, size=2) == b"el"
    assert dataio.exists(uri)
    assert dataio.head(uri).content_length == 5
    assert dataio.ls(s3_bucket) == dataio.ls(uri) == [uri]
    assert dataio.fetch_into(uri, bytearray(5)) == 5
    with dataio.stream(uri) as stream:
        assert stream.read_all() == b"hello"
    dataio.copy(uri, f"{s3_bucket}/copy")
    dataio.copy(f"{s3_bucket}/copy", uri + "2")
    assert dataio.read(uri + "2") == b"hello"
    dataio.delete(uri)
    assert not dataio.exists(uri)
    assert sorted(dataio.ls(s3_bucket)) == sorted([f"{s3_bucket}/copy", uri + "2"])


@pytest.mark.parametrize("method", ["GET", "put", "HEAD"])
def test_a_signed_url_needs_no_credentials(s3_bucket: str, method: str) -> None:
    import urllib.request

    dataio.write(f"{s3_bucket}/d e+f%20#", b"hello")
    url = dataio.sign(f"{s3_bucket}/d e+f%20#", method=method, expires_secs=60)
    body = b"new" if method == "put" else None
    with urllib.request.urlopen(urllib.request.Request(url, body, {"Content-Type": "image/png"}, method=method.upper()), timeout=10) as answer:
        assert answer.status == 200
        assert answer.read() == (b"hello" if method == "GET" else b"")
    assert dataio.read(f"{s3_bucket}/d e+f%20#") == (body or b"hello")


@pytest.mark.parametrize(
    ("uri", "options", "error"),
    [
        ("s3://b/k", {"method": "DELETE"}, ValueError),
        ("s3://b/k", {"expires_secs": 0}, ValueError),
        ("s3://b/k", {"expires_secs": 604_801}, ValueError),
        ("/a/file", {}, ValueError),
        ("http://127.0.0.1:9/x", {}, NotImplementedError),
    ],
)
def test_what_cannot_be_signed(uri: str, options: dict[str, object], error: type[Exception]) -> None:
    with pytest.raises(error):
        dataio.sign(uri, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("uri", "error"),
    [
        ("nosuch://x/y", ValueError),
        ("s3://", ValueError),
        ("s3://bucket", ValueError),
        ("file://host/x", ValueError),
        ("hf://only/repo", ValueError),
        ("", ValueError),
        ("a\0b", ValueError),
        (b"bytes", TypeError),
    ],
)
def test_uris_that_name_nothing(uri: object, error: type[Exception]) -> None:
    for verb in (dataio.read, dataio.exists, dataio.head, dataio.delete):
        with pytest.raises(error):
            verb(uri)


def test_an_unknown_scheme_is_suggested() -> None:
    with pytest.raises(ValueError, match="did you mean"):
        dataio.read("memry://bucket/key")
    with pytest.raises(NotImplementedError):
        dataio.exists("nosuch://x/y")


def test_in_place_and_folders_are_for_local_files(tmp_path: Path) -> None:
    dataio.write(tmp_path / "a" / "b", b"1", mkdir_parents=True)
    os.link(tmp_path / "a" / "b", tmp_path / "link")
    dataio.write(tmp_path / "a" / "b", b"22", atomic=False)
    assert (tmp_path / "link").read_bytes() == b"22"
    for options in ({"atomic": False}, {"mkdir_parents": True}):
        with pytest.raises(NotImplementedError):
            dataio.write("memory://x/y", b"", **options)


def test_a_missing_folder_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        dataio.write(tmp_path / "no" / "x", b"")


def test_deleting_what_is_not_there_is_fine(folder: str) -> None:
    dataio.delete(f"{folder}/x")
    dataio.delete(f"{folder}/x", recursive=True)


def test_a_folder_is_deleted_only_when_asked(tmp_path: Path) -> None:
    dataio.write(tmp_path / "a" / "b", b"", mkdir_parents=True)
    dataio.delete(tmp_path / "a")
    assert (tmp_path / "a" / "b").exists()
    dataio.delete(tmp_path / "a", recursive=True)
    assert not (tmp_path / "a").exists()


def test_a_link_to_a_folder_is_deleted_and_not_what_it_leads_to(tmp_path: Path) -> None:
    dataio.write(tmp_path / "a" / "b", b"", mkdir_parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "a")
    dataio.delete(tmp_path / "link", recursive=True)
    assert (tmp_path / "a" / "b").exists()
    assert not (tmp_path / "link").is_symlink()


def test_listings_of_a_tree(folder: str) -> None:
    for name in ("t/a", "t/b/c", "t/b/d/e", "t/.hidden", "t2/x"):
        dataio.write(f"{folder}/{name}", b"", mkdir_parents="://" not in folder)
    below = [f"{folder}/t/{name}" for name in (".hidden", "a", "b/c", "b/d/e")]
    assert sorted(dataio.ls(f"{folder}/t/")) == below
    slash = "" if "://" not in folder else "/"
    assert dataio.lsd(f"{folder}/t") == dataio.lsd(f"{folder}/t/") == [f"{folder}/t/b{slash}"]


def test_ls_of_a_file_and_of_nothing(tmp_path: Path) -> None:
    dataio.write(tmp_path / "x", b"")
    assert dataio.ls(tmp_path / "x") == [str(tmp_path / "x")]
    assert dataio.ls(tmp_path / "y") == []


def test_a_whole_bucket_is_listed(s3_bucket: str) -> None:
    dataio.write(f"{s3_bucket}/a/b", b"")
    assert dataio.ls(s3_bucket) == dataio.ls(f"{s3_bucket}/") == [f"{s3_bucket}/a/b"]
    assert dataio.lsd(s3_bucket) == [f"{s3_bucket}/a/"]


def test_a_missing_bucket_is_an_error(s3_bucket: str) -> None:
    for verb in (dataio.ls, dataio.lsd, dataio.read):
        with pytest.raises(ObjectNotFoundError):
            verb("s3://no-such-bucket-here/x/")
