"""How object stores are reached: credentials of each kind, and what the errors of their clients mean."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from obstore.exceptions import GenericError

import dataio
from dataio.io.errors import CredentialsError, ObjectNotFoundError, RangeError, StoreError, TransferError
from dataio.io.retry import PassingError
from dataio.io.store import open_store
from dataio.io.stores.object_errors import translated

from ..servers.misbehaving import MisbehavingServer, Reply, misbehaving
from .test_object_store import ETAG, opened


@pytest.fixture
def server() -> Iterator[MisbehavingServer]:
    with misbehaving() as found:
        yield found


# ----------------------------------------------------------------- credentials


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """An environment that names no credentials."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "R2_", "AZURE_", "GOOGLE_", "STORAGE_EMULATOR")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:1")
    dataio.clear_credentials()
    yield
    dataio.clear_credentials()


@pytest.mark.parametrize(
    ("uri", "named"),
    [
        ("s3://bucket", "AWS_ACCESS_KEY_ID"),
        ("r2://bucket", "endpoint"),
        ("gs://bucket", "GOOGLE_APPLICATION_CREDENTIALS"),
        ("az://bucket", "AZURE_STORAGE_ACCOUNT_NAME"),
    ],
)
def test_no_credentials_are_told(bare: None, uri: str, named: str) -> None:
    with pytest.raises(CredentialsError, match=named):
        open_store(uri, bucket_alone=True)


@pytest.mark.parametrize(
    ("scheme", "method"),
    [("gs", "azure_key"), ("az", "gcs_credential_path"), ("s3", "azure_sas"), ("gs", "env"), ("az", "env")],
)
def test_a_method_of_another_scheme_is_told(bare: None, scheme: str, method: str) -> None:
    values = {"account_name": "name", "account_key": "a2V5", "sas_token": "sig=x", "credential_path": "/none"}
    dataio.configure_credentials(scheme, method=method, **values)
    with pytest.raises(CredentialsError, match=f"{method}.*does not work for {scheme}"):
        open_store(f"{scheme}://bucket", bucket_alone=True)


@pytest.mark.parametrize("key", ["data", "/odd"])
def test_a_session_token_of_the_environment_does_not_meet_configured_keys(
    s3_bucket: str, server: MisbehavingServer, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token-of-the-environment")
    server.script(f"/bucket/{key}", Reply(200, b"1", ETAG))
    dataio.configure_endpoint("s3", server.url)
    assert opened("s3://bucket").get(key) == b"1"
    (seen,) = server.requests(f"/bucket/{key}")
    assert not any("token-of-the-environment" in value for value in seen.headers.values())


def test_a_profile_is_read(bare: None, tmp_path: Path, server: MisbehavingServer, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "keys").write_text("[mine]\naws_access_key_id = key-of-the-profile\naws_secret_access_key = secret-of-the-profile\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "keys"))
    server.script("/bucket/data", Reply(200, b"1", ETAG))
    dataio.configure_endpoint("s3", server.url)
    dataio.configure_credentials("s3", method="profile", profile="mine")
    assert opened("s3://bucket").get("data") == b"1"
    (seen,) = server.requests("/bucket/data")
    assert any("key-of-the-profile" in value for value in seen.headers.values())


def test_anonymous_requests_are_not_signed(bare: None, server: MisbehavingServer) -> None:
    server.script("/bucket/data", Reply(200, b"1", ETAG))
    dataio.configure_endpoint("s3", server.url)
    dataio.configure_credentials("s3", method="anonymous")
    store = opened("s3://bucket")
    assert store.get("data") == b"1"
    (seen,) = server.requests("/bucket/data")
    assert "authorization" not in {name.lower() for name in seen.headers}
    with pytest.raises(CredentialsError, match="anonymous"):
        store.sign("data", expires=60, method="GET")


def test_keys_that_the_service_refuses_show_no_secret(bare: None, server: MisbehavingServer) -> None:
    secret = "secret-of-the-tests-0123456789"
    server.script("/bucket/data", Reply(403, f"<Error><Code>SignatureDoesNotMatch</Code><Message>{secret}</Message></Error>".encode()))
    dataio.configure_endpoint("s3", server.url)
    dataio.configure_credentials("s3", access_key_id="key-of-the-tests", secret_access_key=secret)
    with pytest.raises(PermissionError) as failed:
        opened("s3://bucket").get("data")
    assert secret not in str(failed.value)


# --------------------------------------------------------------------- errors

ERRORS: list[tuple[str, type[Exception], bool]] = [
    ("Server returned non-2xx status code: 503 Service Unavailable: <Code>SlowDown</Code>", TransferError, True),
    ("Server returned non-2xx status code: 400 Bad Request: <Code>RequestTimeout</Code>", TransferError, True),
    ("Server returned non-2xx status code: 400 Bad Request: <Code>InvalidArgument</Code>", StoreError, False),
    ("Server returned non-2xx status code: 404 Not Found: <Code>NoSuchBucket</Code>", ObjectNotFoundError, False),
    ("Server returned non-2xx status code: 416 Range Not Satisfiable", RangeError, False),
    ("Received redirect without LOCATION, this normally indicates an incorrectly configured region", StoreError, False),
    ("Error performing PUT http://169.254.169.254/latest/api/token in 1s - HTTP error", CredentialsError, False),
]


@pytest.mark.parametrize(("text", "kind", "passing"), ERRORS)
def test_errors_of_obstore_are_classified(text: str, kind: type[Exception], passing: bool) -> None:
    meant = translated(GenericError(text), "s3://bucket/key")
    assert isinstance(meant, PassingError) == passing
    error = meant.error if isinstance(meant, PassingError) else meant
    assert type(error) is kind
    assert "s3://bucket" in str(error)
