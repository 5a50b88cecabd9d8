"""The flat verbs on one file or object, and listings."""

from __future__ import annotations

import os
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dataio
from dataio.io.config import configure_credentials

from ..servers.azure import AzureServer
from ..servers.s3 import S3Server
from .contract import ODD_KEYS, PLAIN_KEYS, Place, content, unique
from .places import S3, Azure, Folder, Memory


def place_of(kind: str, request: pytest.FixtureRequest, folder: Path) -> Place:
    if kind == "local":
        return Folder(folder)
    if kind == "memory":
        return Memory(unique())
    if kind == "s3":
        server: S3Server = request.getfixturevalue("s3_server")
        return S3(server, request.getfixturevalue("s3_bucket"))
    azure: AzureServer = request.getfixturevalue("azure_server")
    return Azure(azure, request.getfixturevalue("az_bucket"))


@pytest.fixture(params=["local", "memory", "s3", "azure"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    found = place_of(request.param, request, tmp_path)
    yield found
    if isinstance(found, Memory):
        for name in found.names():
            found.remove(name)


# -------------------------------------------------------------------- bytes


def test_what_was_written_is_read(place: Place) -> None:
    dataio.write(place.uri("a.bin"), content(1000))
    assert place.read("a.bin") == dataio.read(place.uri("a.bin")) == dataio.fetch(place.uri("a.bin")) == content(1000)
    assert type(dataio.read(place.uri("a.bin"))) is bytes
    assert not place.unfinished()


@pytest.mark.parametrize(("offset", "size"), [(0, 10), (990, 10), (990, 100), (5, 0), (0, 10**12)])
def test_a_range_is_cut_short_at_the_end(place: Place, offset: int, size: int) -> None:
    place.write("a.bin", content(1000))
    assert dataio.read(place.uri("a.bin"), offset=offset, size=size) == content(1000)[offset : offset + size]


WRONG = [
    pytest.param({"offset": 1}, ValueError, id="offset alone"),
    pytest.param({"size": 1}, ValueError, id="size alone"),
    pytest.param({"offset": -1, "size": 1}, ValueError, id="negative offset"),
    pytest.param({"offset": 0, "size": -1}, ValueError, id="negative size"),
    pytest.param({"offset": 1.0, "size": 1}, TypeError, id="float"),
    pytest.param({"offset": True, "size": 1}, TypeError, id="bool"),
    pytest.param({"max_response_bytes": -1}, ValueError, id="negative limit"),
    pytest.param({"max_response_bytes": 999}, RuntimeError, id="larger than the limit"),
    pytest.param({"max_response_bytes": 0}, RuntimeError, id="no limit is None, not 0"),
    pytest.param({"headers": {"x": "y"}}, NotImplementedError, id="headers without http"),
]


@pytest.mark.parametrize(("options", "error"), WRONG)
def test_reads_that_are_refused(place: Place, options: dict[str, Any], error: type[Exception]) -> None:
    place.write("a.bin", content(1000))
    with pytest.raises(error):
        dataio.read(place.uri("a.bin"), **options)


def test_a_limit_that_is_met_is_no_error(place: Place) -> None:
    place.write("a.bin", content(1000))
    assert len(dataio.read(place.uri("a.bin"), max_response_bytes=1000)) == 1000


BUFFERS: list[Any] = [
    pytest.param(lambda: bytearray(600), id="bytearray"),
    pytest.param(lambda: memoryview(bytearray(600)), id="memoryview"),
    pytest.param(lambda: np.zeros((10, 15), np.float32), id="float32[10, 15]"),
    pytest.param(lambda: np.zeros(75, "M8[s]"), id="datetime64"),
    pytest.param(lambda: __import__("torch").zeros(20, 30, dtype=__import__("torch").uint8), id="torch"),
]


@pytest.mark.parametrize("make", BUFFERS)
def test_a_buffer_is_filled(place: Place, make: Callable[[], Any]) -> None:
    if "torch" in make.__code__.co_consts:
        pytest.importorskip("torch")
    place.write("a.bin", content(1000))
    out = make()
    assert dataio.fetch_into(place.uri("a.bin"), out, offset=300) == 600
    raw = np.asarray(out).tobytes() if hasattr(out, "__array__") else bytes(out)
    assert raw == content(1000)[300:900]


def test_a_buffer_is_filled_as_far_as_there_are_bytes(place: Place) -> None:
    place.write("a.bin", content(10))
    out = bytearray(b"-" * 12)
    assert dataio.fetch_into(place.uri("a.bin"), out, offset=4) == 6
    assert out == content(10)[4:] + b"------"


@pytest.mark.parametrize(
    ("out", "error"),
    [
        pytest.param(b"read-only", TypeError, id="bytes"),
        pytest.param("text", TypeError, id="str"),
        pytest.param(np.zeros((4, 4))[:, 1], ValueError, id="strided"),
        pytest.param(np.frombuffer(b"12345678"), TypeError, id="read-only array"),
    ],
)
def test_what_cannot_be_filled(tmp_path: Path, out: Any, error: type[Exception]) -> None:
    (tmp_path / "a").write_bytes(b"x" * 99)
    with pytest.raises(error):
        dataio.fetch_into(tmp_path / "a", out)


@pytest.mark.parametrize("data", [5, "text", None, [1, 2], object()])
def test_only_bytes_are_written(place: Place, data: Any) -> None:
    with pytest.raises(TypeError, match="bytes-like"):
        dataio.write(place.uri("a"), data)
    assert place.names() == set()


@pytest.mark.parametrize("data", [b"abcd", bytearray(b"abcd"), memoryview(b"abcd"), np.frombuffer(b"abcd", np.uint16)])
def test_anything_bytes_like_is_written(place: Place, data: Any) -> None:
    dataio.write(place.uri("a"), data)
    assert place.read("a") == b"abcd"


def test_writing_an_object_gives_its_etag(s3_bucket: str) -> None:
    etag = dataio.write(f"{s3_bucket}/a", b"abcd", content_type="text/plain")
    assert etag == "e2fc714c4727ee9395f324cd2e7f331f"
    assert (dataio.head(f"{s3_bucket}/a").etag, dataio.head(f"{s3_bucket}/a").content_type) == (f'"{etag}"', "text/plain")


def test_folders_are_made_when_asked_for(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        dataio.write(tmp_path / "x/y/z", b"1")
    assert dataio.write(tmp_path / "x/y/z", b"1", mkdir_parents=True) is None
    assert (tmp_path / "x/y/z").read_bytes() == b"1"


def test_a_write_in_place_keeps_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"before")
    before = path.stat().st_ino
    dataio.write(path, b"now", atomic=False)
    assert (path.read_bytes(), path.stat().st_ino) == (b"now", before)


@pytest.mark.parametrize("options", [{"atomic": False}, {"mkdir_parents": True}])
def test_options_of_local_files(s3_bucket: str, options: dict[str, bool]) -> None:
    with pytest.raises(NotImplementedError):
        dataio.write(f"{s3_bucket}/a", b"", **options)  # type: ignore[arg-type]


# -------------------------------------------------------------------- keys


@pytest.mark.parametrize("name", PLAIN_KEYS)
def test_keys_are_opaque_in_every_verb(place: Place, name: str) -> None:
    uri, other = place.uri(name), place.uri("copy of " + name)
    place.open(name)  # makes the folder that a file needs
    dataio.write(uri, b"12345")
    assert place.names() == {name}
    assert dataio.read(uri) == b"12345"
    assert dataio.head(uri).content_length == 5
    assert dataio.exists(uri)
    assert uri in dataio.ls(place.base)
    dataio.copy(uri, other)
    assert place.names() == {name, "copy of " + name}
    dataio.delete(uri)
    assert place.names() == {"copy of " + name}


@pytest.mark.parametrize("name", ODD_KEYS)
def test_odd_keys_of_objects(s3_server: S3Server, s3_bucket: str, name: str) -> None:
    place = S3(s3_server, s3_bucket)
    uri = place.uri(name)
    dataio.write(uri, b"12345")
    assert place.names() == {name}
    assert (dataio.read(uri), dataio.head(uri).content_length, dataio.exists(uri)) == (b"12345", 5, True)
    assert dataio.ls(s3_bucket) == [uri]
    dataio.delete(uri)
    assert place.names() == set()


# -------------------------------------------------------------------- what is there


def test_exists_sees_what_others_did(place: Place) -> None:
    uri = place.uri("a")
    seen = [dataio.exists(uri)]
    place.write("a", b"1")
    seen.append(dataio.exists(uri))
    listed = [dataio.ls(place.base)]
    place.write("b", b"1")
    listed.append(dataio.ls(place.base))
    place.remove("a")
    seen.append(dataio.exists(uri))
    listed.append(dataio.ls(place.base))
    assert seen == [False, True, False]
    assert listed == [[uri], [uri, place.uri("b")], [place.uri("b")]]


@pytest.mark.parametrize("verb", [dataio.read, dataio.head, lambda uri: dataio.fetch_into(uri, bytearray(9))])
def test_what_is_missing(place: Place, verb: Callable[[str], Any]) -> None:
    with pytest.raises(FileNotFoundError, match="none"):
        verb(place.uri("none"))


def test_a_prefix_is_no_object(s3_bucket: str) -> None:
    dataio.write(f"{s3_bucket}/p/x", b"")
    assert not dataio.exists(f"{s3_bucket}/p")


@pytest.mark.parametrize(
    "verb", [dataio.exists, dataio.read, dataio.head, dataio.ls, lambda uri: dataio.sync(uri, "somewhere", delete=True)]
)
def test_forbidden_is_never_missing(place_forbidden: str, verb: Callable[[str], Any]) -> None:
    with pytest.raises(PermissionError):
        verb(place_forbidden)


@pytest.fixture
def place_forbidden(azure_server: AzureServer, az_bucket: str) -> str:
    """An object that is there, asked for with a wrong key."""
    from ..servers.azure import ACCOUNT

    dataio.write(f"{az_bucket}/a", b"")
    configure_credentials("az", method="azure_key", account_name=ACCOUNT, account_key="d3Jvbmc=")
    return f"{az_bucket}/a"


def test_exists_on_a_web_server(web_root: Path, web_server: str) -> None:
    name = unique()
    before = dataio.exists(f"{web_server}/{name}")
    (web_root / name).write_bytes(b"1")
    assert (before, dataio.exists(f"{web_server}/{name}")) == (False, True)


def test_what_a_web_server_lacks(web_server: str) -> None:
    for verb in (dataio.ls, dataio.lsd, dataio.delete, lambda uri: dataio.write(uri, b""), dataio.sign):
        with pytest.raises(NotImplementedError):
            verb(f"{web_server}/a")


def test_the_head_of_a_local_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    info = dataio.head(tmp_path / "a")
    assert (info.status, info.url, info.http_version, info.content_length) == (200, f"file://{tmp_path}/a", "n/a", 5)
    assert info.headers == {"content-length": "5", "accept-ranges": "bytes"}
    assert (info.etag, info.last_modified, info.content_type) == (None, None, None)


@pytest.mark.parametrize(
    "verb", [dataio.read, dataio.exists, dataio.ls, dataio.glob, dataio.delete, dataio.head, lambda uri: dataio.write(uri, b"")]
)
def test_unknown_schemes_are_told(verb: Callable[[str], Any]) -> None:
    with pytest.raises(ValueError, match="s3") as caught:
        verb("nowhere://a/b")
    assert isinstance(caught.value, NotImplementedError)


# -------------------------------------------------------------------- listings


def test_listings_are_plain_prefixes(s3_bucket: str) -> None:
    for key in ("p/b", "p/a", "p2/x", "q", "p"):
        dataio.write(f"{s3_bucket}/{key}", b"")
    assert dataio.ls(f"{s3_bucket}/p") == [f"{s3_bucket}/{key}" for key in ("p", "p/a", "p/b", "p2/x")]
    assert dataio.ls(f"{s3_bucket}/p/") == [f"{s3_bucket}/p/a", f"{s3_bucket}/p/b"]
    assert dataio.ls(s3_bucket) == dataio.ls(f"{s3_bucket}/") == [f"{s3_bucket}/{key}" for key in ("p", "p/a", "p/b", "p2/x", "q")]


def test_listings_of_more_than_one_page(s3_server: S3Server, s3_bucket: str) -> None:
    place = S3(s3_server, s3_bucket)
    for number in range(1001):
        place.write(f"{number:04d}", b"")
    assert dataio.ls(s3_bucket) == [f"{s3_bucket}/{number:04d}" for number in range(1001)]
    dataio.delete(f"{s3_bucket}/", recursive=True)
    assert place.names() == set()


@pytest.mark.parametrize("form", ["{}", "{}/", "file://{}"])
def test_local_trees_are_listed_in_the_form_given(tmp_path: Path, form: str) -> None:
    for name in ("b/x", "b/.hidden", "a", "b/c/d"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).touch()
    assert dataio.ls(form.format(tmp_path)) == [f"{tmp_path}/{name}" for name in ("a", "b/.hidden", "b/c/d", "b/x")]
    assert dataio.lsd(form.format(tmp_path)) == [f"{tmp_path}/b"]


def test_relative_listings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").mkdir()
    (tmp_path / "a/x").touch()
    assert (dataio.ls("a"), dataio.ls("./a"), dataio.ls("."), dataio.ls("a/x"), dataio.ls("none")) == (
        ["a/x"],
        ["./a/x"],
        ["./a/x"],
        ["a/x"],
        [],
    )


def test_folders_of_a_store(s3_bucket: str) -> None:
    for key in ("p/b/x", "p/a/x", "p/file", "p2/x"):
        dataio.write(f"{s3_bucket}/{key}", b"")
    assert dataio.lsd(f"{s3_bucket}/p") == dataio.lsd(f"{s3_bucket}/p/") == [f"{s3_bucket}/p/a/", f"{s3_bucket}/p/b/"]
    assert dataio.lsd(s3_bucket) == [f"{s3_bucket}/p/", f"{s3_bucket}/p2/"]


# -------------------------------------------------------------------- delete


def test_deleting_is_idempotent(place: Place) -> None:
    place.write("a", b"")
    for _ in range(2):
        dataio.delete(place.uri("a"))
        dataio.delete(place.uri("none/"), recursive=True)
    assert place.names() == set()


def test_a_tree_is_deleted(place: Place) -> None:
    for name in ("p/a", "p/b/c", "q"):
        place.write(name, b"")
    dataio.delete(place.uri("p/"), recursive=True, workers=2)
    assert place.names() == {"q"}


def test_a_folder_is_left_unless_recursive(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    dataio.delete(tmp_path / "a")
    assert (tmp_path / "a").is_dir()
    dataio.delete(tmp_path / "a", recursive=True)
    assert not (tmp_path / "a").exists()


def test_a_link_is_deleted_and_not_what_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/x").touch()
    (tmp_path / "link").symlink_to("a")
    dataio.delete(tmp_path / "link", recursive=True)
    assert (os.path.lexists(tmp_path / "link"), (tmp_path / "a/x").exists()) == (False, True)


# -------------------------------------------------------------------- sign


def test_a_signed_url_needs_no_credentials(s3_bucket: str) -> None:
    url = dataio.sign(f"{s3_bucket}/a b", method="put")
    put = urllib.request.Request(url, data=b"12345", method="PUT", headers={"Content-Type": "application/octet-stream"})
    urllib.request.urlopen(put).close()
    with urllib.request.urlopen(dataio.sign(f"{s3_bucket}/a b", expires_secs=60)) as answer:
        assert answer.read() == b"12345"


@pytest.mark.parametrize("options", [{"expires_secs": 0}, {"expires_secs": 604_801}, {"expires_secs": 1.5}, {"method": "POST"}])
def test_signatures_that_are_refused(s3_bucket: str, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"sign knows|expires_secs"):
        dataio.sign(f"{s3_bucket}/a", **options)


def test_local_files_have_no_signature(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="local"):
        dataio.sign(tmp_path / "a")
