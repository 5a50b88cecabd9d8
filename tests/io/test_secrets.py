"""No secret in anything that is shown or stored."""

from __future__ import annotations

import json
import pickle
import traceback
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import dataio
from dataio.io import secrets
from dataio.io.config import Transport, apply_config, credentials_for, export_config
from dataio.io.errors import CredentialsError, StoreError
from dataio.io.secrets import masked, remember

from ..servers.misbehaving import MisbehavingServer, Reply, misbehaving
from ..servers.s3 import ACCESS_KEY_ID, SECRET_ACCESS_KEY, S3Server


@pytest.fixture(autouse=True)
def unconfigured() -> Iterator[None]:
    before, known = export_config(), set(secrets._known)
    yield
    apply_config(before)
    secrets._known.intersection_update(known)


def shown(error: BaseException) -> str:
    """All that a user, a log or another process sees of an error, its causes included."""
    pieces = ["".join(traceback.format_exception(error)), repr(error), repr(getattr(error, "uri", None))]
    return "\n".join([*pieces, repr(pickle.dumps(error))])


# ------------------------------------------------------------------------------------------------------------- texts


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http://me:pa@ss'w@host/x", "http://***@host/x"),
        ("https://token@host/x?y=1", "https://***@host/x?y=1"),
        ("GET /k?a=1&X-Amz-Signature=0ab9&b=2", "GET /k?a=1&X-Amz-Signature=***&b=2"),
        ("https://h/k?x-goog-credential=me%2Fx&sig=A%3D%3D", "https://h/k?x-goog-credential=***&sig=***"),
        ("sv=2020&sig=abc%3D", "sv=2020&sig=***"),
        ("sig=abc", "sig=***"),
        ("AWS4-HMAC-SHA256 Credential=AK/x, SignedHeaders=host, Signature=0ab", "AWS4-HMAC-SHA256 Credential=***, SignedHeaders=host, Signature=***"),
        ("Authorization: Bearer abcdefgh", "Authorization: Bearer ***"),
        ("{'Authorization': 'Basic dXNlcjpwYXNz'}", "{'Authorization': 'Basic ***'}"),
        ("sent Bearer hf_0123456789", "sent Bearer ***"),
    ],
)
def test_what_is_secret_by_its_form_is_masked(text: str, expected: str) -> None:
    assert masked(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "s3://bucket/a[1]/key=value/d e+f%20#",
        "basic reading of the bearer instrument",
        "slot 'x' wants size=3, key=7",
        "part=1/day=2/token=x.parquet",
        "hf://org/repo@main/file",
        "/home/me@work/file",
    ],
)
def test_ordinary_text_stays(text: str) -> None:
    assert masked(text) == text


SECRETS = st.text(st.characters(min_codepoint=32, max_codepoint=0x2FF, exclude_characters="*"), min_size=4, max_size=40)


@given(secret=SECRETS, before=st.text(max_size=20), after=st.text(max_size=20))
def test_a_known_secret_turns_up_in_no_text_however_it_is_written(secret: str, before: str, after: str) -> None:
    assume(secret.strip() == secret)
    remember([secret])
    for spelling in (secret, quote(secret, safe=""), json.dumps(secret)[1:-1], repr(secret)[1:-1]):
        assert spelling not in masked(f"{before}{spelling}{after}")


def test_short_identifiers_of_emulators_spoil_no_words() -> None:
    dataio.configure_credentials("s3", access_key_id="test", secret_access_key="secret-enough")
    assert masked("s3://latest/test.npy") == "s3://latest/test.npy"


def test_secrets_of_the_environment_are_masked_without_being_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of-the-environment")
    assert masked("got 'of-the-environment'") == "got '***'"


def test_secrets_inside_documents_are_masked() -> None:
    key = "-----BEGIN PRIVATE KEY-----\nMIIabc\n-----END PRIVATE KEY-----\n"
    dataio.configure_credentials("gs", method="gcs_credential_json", credential_json=json.dumps({"private_key": key}))
    dataio.configure_credentials("az", method="azure_sas", account_name="me", sas_token="?sv=1&sig=a%2Fbcdef%3D")
    assert "MIIabc" not in masked(f"bad key {key!r}") + masked(f"bad key {key}")
    assert "a/bcdef=" not in masked("wrong: a/bcdef=")


# ---------------------------------------------------------------------------------------------- what is configured

VALUES = st.text("abcdefghijklmnopqrstuvwxyzABCDEFGHIJ0123456789/+=", min_size=20, max_size=40)


@given(key=VALUES, secret=VALUES, session=VALUES, token=VALUES)
def test_nothing_configured_shows_in_a_repr_a_pickle_or_the_configuration(key: str, secret: str, session: str, token: str) -> None:
    dataio.configure_credentials("s3", access_key_id=key, secret_access_key=secret, session_token=session)
    dataio.configure_credentials("hf", method="hf_token", token=token)
    found = [credentials_for("s3", "b"), credentials_for("hf", "o/r")]
    error = StoreError(f"refused {secret} {session} {token} {key}", uri=f"s3://b/{secret}")
    texts = [repr(found), str(found), repr(dataio.current_config()), shown(error), *(repr(pickle.dumps(f)) for f in found)]
    for text in texts:
        assert not any(value in text for value in (key, secret, session, token))


def test_credentials_from_a_pickle_say_why_they_are_of_no_use() -> None:
    dataio.configure_credentials("s3", access_key_id="AKIAIOSFODNN7EXAMPLE", secret_access_key="secret-enough")
    found = pickle.loads(pickle.dumps(credentials_for("s3", "b")))
    assert (found.scheme, found.method) == ("s3", "explicit")
    with pytest.raises(CredentialsError, match="pickle"):
        _ = found.values


def test_a_proxys_password_shows_nowhere() -> None:
    transport = Transport(proxy="http://me:hunter2hunter2@proxy:1")
    assert "hunter2" not in repr(transport)
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(transport)
    assert pickle.loads(pickle.dumps(Transport(proxy="http://proxy:1"))) == Transport(proxy="http://proxy:1")


# -------------------------------------------------------------------------------------------- requests that fail


@pytest.fixture
def server() -> Iterator[MisbehavingServer]:
    with misbehaving() as running:
        yield running


def test_a_refused_connection_hides_user_and_password() -> None:
    dataio.configure_transport("https", max_attempts=1)
    password = "hunter" * 3  # computed: a traceback shows lines of this file
    with pytest.raises(ConnectionError) as caught:
        dataio.read(f"http://me:{password}@127.0.0.1:9/x")
    assert password not in shown(caught.value)


@pytest.mark.parametrize("status", [401, 403, 404, 500])
def test_an_error_of_a_presigned_request_hides_its_signature(server: MisbehavingServer, status: int) -> None:
    dataio.configure_transport("https", max_attempts=1)
    signature, signer = "0123456789" + "abcdef", "AKIA" + "%2F1"  # in pieces: a traceback shows lines of this file
    url = server.script("/signed", Reply(status=status, body=f"X-Amz-Signature={signature}".encode()))
    with pytest.raises(ConnectionError) as caught:
        dataio.read(f"{url}?X-Amz-Credential={signer}&X-Amz-Signature={signature}")
    assert signature not in shown(caught.value)
    assert signer not in shown(caught.value)


def test_an_error_of_a_request_with_a_token_hides_it(server: MisbehavingServer) -> None:
    url = server.script("/private", Reply(status=403, body=b"no"))
    token = "-".join(["the", "token", "of", "the", "test"])  # in pieces: a traceback shows lines of this file
    with pytest.raises(PermissionError) as caught:
        dataio.read(url, headers={"Authorization": f"Bearer {token}"})
    assert token not in shown(caught.value)


def test_errors_of_an_object_store_hide_the_keys(s3_server: S3Server, s3_bucket: str) -> None:
    s3_server.deny(s3_bucket.removeprefix("s3://"), "denied/")
    for verb, key in [(dataio.read, "denied/x"), (dataio.read, "missing"), (dataio.head, "denied/x")]:
        with pytest.raises((PermissionError, FileNotFoundError)) as caught:
            verb(f"{s3_bucket}/{key}")
        assert not any(secret in shown(caught.value) for secret in (ACCESS_KEY_ID, SECRET_ACCESS_KEY))


def test_a_signed_address_that_fails_later_hides_its_signature(s3_bucket: str) -> None:
    dataio.configure_transport("https", max_attempts=1)
    url = dataio.sign(f"{s3_bucket}/missing")
    signature = url.partition("Signature=")[2].partition("&")[0]
    with pytest.raises(ConnectionError) as caught:
        dataio.read(url)
    assert signature
    assert signature not in shown(caught.value)


def test_a_broken_key_file_is_reported_without_its_text() -> None:
    dataio.configure_credentials("gs", method="gcs_credential_json", credential_json='{"private_key": "MIIprivateMII", "type": "x"}')
    with pytest.raises(CredentialsError) as caught:
        dataio.read("gs://bucket/key")
    assert "MIIprivateMII" not in shown(caught.value)
