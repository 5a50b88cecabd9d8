"""The contract of stores (contract.py) on every store there is, each on a real server."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import dataio
from dataio.io.errors import RangeError
from dataio.io.store import register_store
from dataio.io.stores.local import LocalStore

from ..servers.azure import ACCOUNT, AzureServer
from ..servers.gcs import GcsServer
from ..servers.hub import hub
from ..servers.s3 import S3Server
from .contract import (
    ODD_KEYS,
    PLAIN_KEYS,
    SECRETS,
    Place,
    ReadContract,
    StoreContract,
    VerbContract,
    story,
    unique,
)
from .places import S3, Azure, Folder, Gcs, Memory, Repo, Web


class TestLocal(StoreContract, VerbContract):
    etags = False
    folders = True

    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        return Folder(tmp_path)


class TestMemory(StoreContract, VerbContract):
    etags = False
    folders = True
    refused = ["trail/", "/"]

    @pytest.fixture
    def place(self) -> Iterator[Place]:
        place = Memory(unique())
        yield place
        for name in place.names():
            place.remove(name)


class TestS3(StoreContract, VerbContract):
    behind_the_end = RangeError
    keys = PLAIN_KEYS + ODD_KEYS

    @pytest.fixture
    def place(self, s3_server: S3Server, s3_bucket: str) -> Place:
        return S3(s3_server, s3_bucket)


class TestR2(TestS3):
    @pytest.fixture
    def place(self, s3_server: S3Server, r2_bucket: str) -> Place:
        return S3(s3_server, r2_bucket)


class TestGcs(StoreContract, VerbContract):
    behind_the_end = RangeError
    keys = PLAIN_KEYS + ODD_KEYS

    @pytest.fixture
    def place(self, gcs_server: GcsServer, gs_bucket: str) -> Place:
        return Gcs(gcs_server, gs_bucket)


class TestAzure(StoreContract, VerbContract):
    behind_the_end = RangeError
    refused = ["x/../y", "../up", "x/./y"]
    keys = [*PLAIN_KEYS, "/lead", "x//y", "//", "trail/"]

    @pytest.fixture
    def place(self, azure_server: AzureServer, az_bucket: str) -> Place:
        return Azure(azure_server, az_bucket)


class TestHttp(ReadContract):
    behind_the_end = RangeError

    @pytest.fixture
    def place(self, web_root: Path, web_server: str) -> Place:
        folder = unique()
        return Web(web_root / folder, f"{web_server}/{folder}/")


class TestHub(ReadContract):
    behind_the_end = RangeError

    @pytest.fixture
    def place(self) -> Iterator[Place]:
        with hub() as server:
            repository = server.add("org/model")
            dataio.configure_endpoint("hf", server.site.url)
            yield Repo(repository.files, repository.large)
            dataio.clear_credentials("hf")


class TestHubLargeFiles(TestHub):
    """Files that lie on a content server, as those of a hub's Git LFS do."""

    @pytest.fixture
    def place(self) -> Iterator[Place]:
        with hub() as server:
            repository = server.add("org/model")
            dataio.configure_endpoint("hf", server.site.url)
            yield Repo(repository.files, repository.large, put_apart=True)
            dataio.clear_credentials("hf")


class TestRegistered(StoreContract, VerbContract):
    """A store that a user registers, here a folder under a scheme of its own."""

    etags = False
    folders = True

    @pytest.fixture
    def place(self, tmp_path: Path) -> Iterator[Place]:
        class Shelf(LocalStore):
            scheme = "shelf"

            def uri(self, key: str) -> str:
                return f"shelf://{key}"

        register_store("shelf", lambda uri: Shelf())
        return Folder(tmp_path, f"shelf://{tmp_path}/")


# ---------------------------------------------------------------- 403 is never "missing"


def _refused(place: Place, name: str, verbs: set[str]) -> None:
    """Each verb is told that it may not, with the URI and no secret, whether or not the object is there."""
    uses: dict[str, Callable[[str], object]] = {
        "read": dataio.read,
        "range": lambda uri: dataio.read(uri, offset=0, size=1),
        "head": dataio.head,
        "exists": dataio.exists,
        "stream": dataio.stream,
        "write": lambda uri: dataio.write(uri, b"1"),
        "delete": dataio.delete,
        "copy": lambda uri: dataio.copy(uri, uri + ".copy"),
        "ls": dataio.ls,
    }
    for verb in verbs:
        with pytest.raises(PermissionError) as failed:
            uses[verb](place.uri(name))
        assert name in str(failed.value), verb
        assert not any(secret in story(failed.value) for secret in SECRETS), verb


@pytest.mark.parametrize("name", ["closed/there", "closed/none"])
def test_objects_that_s3_forbids(s3_server: S3Server, s3_bucket: str, name: str) -> None:
    place = S3(s3_server, s3_bucket)
    place.write("closed/there", b"1")
    s3_server.deny(place.bucket, "closed/")
    _refused(place, name, {"read", "range", "head", "exists", "stream", "write", "delete", "copy"})
    store, key = place.open(name)
    with pytest.raises(PermissionError, match=place.bucket):
        store.delete_many([key, place.open("other")[1]])
    assert place.names() == {"closed/there"}


def test_a_bucket_that_s3_forbids(s3_server: S3Server, s3_bucket: str) -> None:
    place = S3(s3_server, s3_bucket)
    s3_server.deny(place.bucket)
    _refused(place, "folder/key", {"read", "range", "head", "exists", "stream", "write", "delete", "copy"})


@pytest.mark.parametrize("name", ["there", "none"])
def test_what_an_azure_signature_does_not_allow(azure_server: AzureServer, az_bucket: str, name: str) -> None:
    place = Azure(azure_server, az_bucket)
    place.write("there", b"1")
    token = azure_server.sas(place.client.container_name, "l")
    dataio.configure_credentials("az", method="azure_sas", account_name=ACCOUNT, sas_token=token)
    assert dataio.ls(place.base) == [place.uri("there")]
    _refused(place, name, {"read", "range", "head", "exists", "stream", "write", "delete", "copy"})
    with pytest.raises(PermissionError) as failed:
        dataio.read(place.uri(name))
    assert token.partition("sig=")[2][:20] not in story(failed.value)


def test_another_key_than_the_account_has(azure_server: AzureServer, az_bucket: str) -> None:
    place = Azure(azure_server, az_bucket)
    place.write("there", b"1")
    other = base64.b64encode(b"another key, of which nothing is told" * 2).decode()
    dataio.configure_credentials("az", method="azure_key", account_name=ACCOUNT, account_key=other)
    _refused(place, "there", {"read", "head", "exists", "write", "ls"})
    with pytest.raises(PermissionError) as failed:
        dataio.read(place.uri("there"))
    assert other[:20] not in story(failed.value)
