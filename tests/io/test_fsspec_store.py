"""FsspecStore: the contract on several file systems of fsspec, and what is its own."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import pytest

from dataio.engine.errors import MissingDependencyError
from dataio.io.errors import AccessDeniedError, ObjectNotFoundError, StoreError, TransferError, UriError
from dataio.io.store import Store, known_schemes, open_store
from dataio.io.stores.fsspec import FsspecStore, fsspec_knows, fsspec_schemes

from ..servers.azure import ACCOUNT, KEY, AzureServer
from ..servers.gcs import GcsServer
from ..servers.s3 import ACCESS_KEY_ID, SECRET_ACCESS_KEY, S3Server
from .contract import PLAIN_KEYS, Place, StoreContract, content, unique
from .places import S3, Azure, Folder, Gcs


class TestLocalFiles(StoreContract):
    """fsspec's own local files: a file system that renames, as sftp and smb do."""

    etags = False
    folders = True

    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        return Folder(tmp_path, f"local://{tmp_path}/")


class _Explicit:
    """A place whose store is made of a file system with options of its own, as the fallback of a credential method is."""

    fs: Any

    def open(self, name: str = "") -> tuple[Store, str]:
        scheme, _, bucket = self.base.rstrip("/").partition("://")  # type: ignore[attr-defined]
        return FsspecStore(self.fs, scheme, bucket), name


class _S3fs(_Explicit, S3):
    pass


class _Adlfs(_Explicit, Azure):
    pass


class _Gcsfs(_Explicit, Gcs):
    pass


class TestS3fs(StoreContract):
    etags_of_writes = False

    @pytest.fixture
    def place(self, s3_server: S3Server, s3_bucket: str) -> Place:
        import s3fs

        place = _S3fs(s3_server, s3_bucket)
        place.fs = s3fs.S3FileSystem(
            key=ACCESS_KEY_ID, secret=SECRET_ACCESS_KEY, endpoint_url=s3_server.url, use_listings_cache=False
        )
        return place


class TestAdlfs(StoreContract):
    etags_of_writes = False
    folders = True  # a blob that is a prefix of others hides them
    refused = ["d e+f%20#"]  # it takes names apart as if they were URLs
    keys = [key for key in PLAIN_KEYS if not set(key) & set("#[:")]

    @pytest.fixture
    def place(self, azure_server: AzureServer, az_bucket: str) -> Place:
        import adlfs

        place = _Adlfs(azure_server, az_bucket)
        ends = f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};BlobEndpoint={azure_server.url};"
        place.fs = adlfs.AzureBlobFileSystem(connection_string=ends, use_listings_cache=False)
        return place


class TestGcsfs(StoreContract):
    etags_of_writes = False

    @pytest.fixture
    def place(self, gcs_server: GcsServer, gs_bucket: str) -> Place:
        place = _Gcsfs(gcs_server, gs_bucket)
        place.fs = gcs_server.client()
        return place


# ---------------------------------------------------------------- which file systems there are


def test_the_schemes_of_fsspec_are_known() -> None:
    assert {"memory", "sftp", "github", "zip", "ftp"} <= set(fsspec_schemes()) <= set(known_schemes())
    assert fsspec_knows("memory")
    assert not fsspec_knows("nosuch")
    assert not fsspec_knows("simplecache")  # holds no bytes of its own


def test_a_missing_package_comes_with_its_install_line() -> None:
    with pytest.raises(MissingDependencyError, match=r"sftp://.*pip install paramiko") as failed:
        open_store("sftp://host/file")
    assert isinstance(failed.value.__cause__, ImportError)


# ---------------------------------------------------------------- keys


@pytest.mark.parametrize("key", ["folder/", "/", "//double", "///"])
def test_a_key_that_would_become_another_is_refused(key: str) -> None:
    store, _ = open_store("memory://x")
    for use in (store.get, store.delete, store.upload, lambda key: store.put(key, b"1")):
        with pytest.raises(UriError, match="cannot keep"):
            use(key)


def test_both_forms_of_a_memory_path_are_one_object() -> None:
    name = unique()
    store, _ = open_store("memory://x")
    store.put(f"/{name}/a", b"1")
    assert bytes(store.get(f"{name}/a")) == b"1"
    assert [info.key for info in store.list(f"/{name}/")] == [f"/{name}/a"]
    assert [info.key for info in store.list(f"{name}/")] == [f"{name}/a"]
    store.delete(f"{name}/a")
    assert not store.exists(f"/{name}/a")


def test_an_object_and_objects_below_its_name() -> None:
    name = unique()
    store, _ = open_store("memory://x")
    store.put(f"{name}/a/b", b"below")
    store.put(f"{name}/a", b"object")
    assert bytes(store.get(f"{name}/a")) == b"".join(map(bytes, store.open(f"{name}/a"))) == b"object"
    assert store.head(f"{name}/a").size == 6
    store.delete(f"{name}/a")
    store.delete(f"{name}/a/b")


@pytest.mark.parametrize("read", ["get", "open"])
def test_a_folder_is_not_read(read: str) -> None:
    name = unique()
    store, _ = open_store("memory://x")
    store.put(f"{name}/a/b", b"1")
    with pytest.raises(IsADirectoryError, match=name):
        getattr(store, read)(f"{name}/a")
    assert store.head(f"{name}/a").is_prefix
    store.delete(f"{name}/a/b")


# ---------------------------------------------------------------- archives by chained URLs


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "archive.zip"
    with zipfile.ZipFile(path, "w") as out:
        out.writestr("top.txt", "top")
        out.writestr("folder/a[1].txt", content(5000))
        out.writestr("folder/deep/c.txt", "c")
    return path


def test_an_entry_of_an_archive_is_read(archive: Path) -> None:
    store, key = open_store(f"zip://folder/a[1].txt::file://{archive}")
    assert bytes(store.get(key)) == content(5000)
    assert bytes(store.get(key, 10, 5)) == content(5000)[10:15]
    assert b"".join(map(bytes, store.open(key, 100))) == content(5000)[100:]
    assert store.head(key).size == 5000
    assert not store.exists(f"folder/none::file://{archive}")


def test_an_archive_is_listed(archive: Path) -> None:
    store, _ = open_store(f"zip://x::file://{archive}")
    end = f"::file://{archive}"
    assert [info.key for info in store.list("fol" + end)] == ["folder/a[1].txt" + end, "folder/deep/c.txt" + end]
    assert [info.key for info in store.list(end, delimited=True)] == ["folder/" + end, "top.txt" + end]


def test_an_archive_that_is_replaced_is_read_anew(archive: Path) -> None:
    store, key = open_store(f"zip://top.txt::file://{archive}")
    assert bytes(store.get(key)) == b"top"
    with zipfile.ZipFile(archive, "w") as out:
        out.writestr("top.txt", "another")
    assert bytes(store.get(key)) == b"another"


@pytest.mark.parametrize("verb", ["put", "upload", "delete"])
def test_an_archive_is_not_written(archive: Path, verb: str) -> None:
    store, key = open_store(f"zip://top.txt::file://{archive}")
    before = archive.read_bytes()
    with pytest.raises(NotImplementedError, match="archive"):
        getattr(store, verb)(key, *([b"1"] if verb == "put" else []))
    assert archive.read_bytes() == before


# ---------------------------------------------------------------- errors

FAILURES = [
    (PermissionError("no"), AccessDeniedError),
    (FileNotFoundError("no"), ObjectNotFoundError),
    (ConnectionResetError("no"), TransferError),
    (TimeoutError("no"), TimeoutError),
    (OSError("no"), StoreError),
    (RuntimeError("no"), StoreError),
    (KeyError("no"), StoreError),
]


@pytest.mark.parametrize(("raised", "expected"), FAILURES, ids=repr)
def test_errors_of_a_file_system_name_the_uri_and_hide_its_password(raised: Exception, expected: type[Exception]) -> None:
    """A file system whose connection fails: fsspec's own base class with one request."""
    from fsspec.spec import AbstractFileSystem

    class Failing(AbstractFileSystem):  # type: ignore[misc]
        def info(self, path: str, **options: Any) -> dict[str, Any]:
            raise raised

        def ls(self, path: str, detail: bool = True, **options: Any) -> list[Any]:
            raise raised

    store = FsspecStore(Failing(skip_instance_cache=True), "sftp", "user:swordfish@host")
    for use in (store.head, store.get, store.open):
        with pytest.raises(expected) as failed:
            use("folder/key")
        assert "host/folder/key" in str(failed.value)
        assert "swordfish" not in str(failed.value)
        assert failed.value.__cause__ is raised
    if not isinstance(raised, FileNotFoundError):  # nothing there is an empty listing
        with pytest.raises(expected):
            list(store.list("folder/"))


def test_a_folder_that_may_not_be_listed_is_an_error_not_empty() -> None:
    """fsspec's walk leaves such folders out."""
    from fsspec.spec import AbstractFileSystem

    class Closed(AbstractFileSystem):  # type: ignore[misc]
        def ls(self, path: str, detail: bool = True, **options: Any) -> list[Any]:
            if path.endswith("closed"):
                raise PermissionError(path)
            return [{"name": f"{path}/closed", "type": "directory", "size": 0}, {"name": f"{path}/a", "type": "file", "size": 1}]

    with pytest.raises(AccessDeniedError):
        list(FsspecStore(Closed(skip_instance_cache=True), "x").list("folder/"))


def test_no_signed_urls() -> None:
    store, _ = open_store("memory://x")
    with pytest.raises(NotImplementedError, match="sign"):
        store.sign("a", expires=5, method="GET")


def test_a_signed_url_of_s3fs(s3_server: S3Server, s3_bucket: str) -> None:
    import s3fs
    import urllib3

    fs = s3fs.S3FileSystem(key=ACCESS_KEY_ID, secret=SECRET_ACCESS_KEY, endpoint_url=s3_server.url)
    store = FsspecStore(fs, "s3", s3_bucket.removeprefix("s3://"))
    store.put("a b", b"signed")
    assert urllib3.request("GET", store.sign("a b", expires=60, method="GET")).data == b"signed"
