"""The servers as fixtures: started once, on first use; a bucket of its own for each test, configured for dataio."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeVar

import pytest

from dataio.io.config import clear_credentials, configure_credentials, configure_endpoint

from .azure import ACCOUNT, KEY, AzureServer, azure
from .gcs import GcsServer, gcs
from .process import NotInstalledError
from .s3 import ACCESS_KEY_ID, SECRET_ACCESS_KEY, S3Server, s3
from .web import nginx

T = TypeVar("T")


def _started(server: AbstractContextManager[T]) -> Iterator[T]:
    """Skips what needs a server that this machine lacks; fails it in continuous integration."""
    try:
        address = server.__enter__()
    except NotInstalledError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(str(error))
        pytest.skip(str(error))
    try:
        yield address
    finally:
        server.__exit__(None, None, None)


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    yield from _started(s3())


@pytest.fixture(scope="session")
def gcs_server() -> Iterator[GcsServer]:
    yield from _started(gcs())


@pytest.fixture(scope="session")
def azure_server() -> Iterator[AzureServer]:
    yield from _started(azure())


@pytest.fixture(scope="session")
def web_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that `web_server` serves."""
    return tmp_path_factory.mktemp("web")


@pytest.fixture(scope="session")
def web_server(web_root: Path) -> Iterator[str]:
    """Such as "http://127.0.0.1:1234"."""
    yield from _started(nginx(web_root))


def _name() -> str:
    return f"t-{uuid.uuid4().hex[:12]}"


def _configured(scheme: str, endpoint: str, **credentials: str) -> None:
    configure_endpoint(scheme, endpoint)
    configure_credentials(scheme, **credentials)


@pytest.fixture
def s3_bucket(s3_server: S3Server) -> Iterator[str]:
    """A new bucket, such as "s3://t-0123"."""
    yield from _s3_bucket("s3", s3_server)


@pytest.fixture
def r2_bucket(s3_server: S3Server) -> Iterator[str]:
    """A new bucket, such as "r2://t-0123"."""
    yield from _s3_bucket("r2", s3_server)


def _s3_bucket(scheme: str, server: S3Server) -> Iterator[str]:
    name = _name()
    server.client().create_bucket(Bucket=name)
    keys = {"access_key_id": ACCESS_KEY_ID, "secret_access_key": SECRET_ACCESS_KEY}
    _configured(scheme, server.url, method="explicit", **keys)
    yield f"{scheme}://{name}"
    clear_credentials(scheme)


@pytest.fixture
def gs_bucket(gcs_server: GcsServer) -> Iterator[str]:
    """A new bucket, such as "gs://t-0123"."""
    name = _name()
    gcs_server.create_bucket(name)
    _configured("gs", gcs_server.url, method="anonymous")
    yield f"gs://{name}"
    clear_credentials("gs")


@pytest.fixture
def az_bucket(azure_server: AzureServer) -> Iterator[str]:
    """A new container, such as "az://t-0123"."""
    name = _name()
    azure_server.client().create_container(name)
    _configured("az", azure_server.url, method="azure_key", account_name=ACCOUNT, account_key=KEY)
    yield f"az://{name}"
    clear_credentials("az")
