"""The contract of stores (contract.py) on every store there is, each on a real server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dataio.io.errors import RangeError
from dataio.io.store import register_store
from dataio.io.stores.local import LocalStore

from ..servers.azure import AzureServer
from ..servers.gcs import GcsServer
from ..servers.s3 import S3Server
from .contract import ODD_KEYS, PLAIN_KEYS, Place, ReadContract, StoreContract, unique
from .places import S3, Azure, Folder, Gcs, Memory, Web


class TestLocal(StoreContract):
    etags = False
    folders = True

    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        return Folder(tmp_path)


class TestMemory(StoreContract):
    etags = False
    folders = True
    refused = ["trail/", "/"]

    @pytest.fixture
    def place(self) -> Iterator[Place]:
        place = Memory(unique())
        yield place
        for name in place.names():
            place.remove(name)


class TestS3(StoreContract):
    behind_the_end = RangeError
    keys = PLAIN_KEYS + ODD_KEYS

    @pytest.fixture
    def place(self, s3_server: S3Server, s3_bucket: str) -> Place:
        return S3(s3_server, s3_bucket)


class TestR2(TestS3):
    @pytest.fixture
    def place(self, s3_server: S3Server, r2_bucket: str) -> Place:
        return S3(s3_server, r2_bucket)


class TestGcs(StoreContract):
    behind_the_end = RangeError
    keys = PLAIN_KEYS + ODD_KEYS

    @pytest.fixture
    def place(self, gcs_server: GcsServer, gs_bucket: str) -> Place:
        return Gcs(gcs_server, gs_bucket)


class TestAzure(StoreContract):
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


class TestRegistered(StoreContract):
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
