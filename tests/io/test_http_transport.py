"""What stands between `HttpStore` and a server: TLS and proxies."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from dataio.io.config import Transport
from dataio.io.errors import TransferError
from dataio.io.stores.http import HttpStore
from dataio.io.uri import parse_uri
from tests.servers.misbehaving import MisbehavingServer, Reply, misbehaving

pytestmark = pytest.mark.timeout(60)
BODY = bytes(range(256)) * 400


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A PEM file with a key and a certificate of 127.0.0.1, signed by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    plain = serialization.NoEncryption()
    secret = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    path.write_bytes(secret + made.public_bytes(serialization.Encoding.PEM))
    return path


@pytest.fixture(scope="module")
def secure(certificate: Path) -> Iterator[MisbehavingServer]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with misbehaving(context) as site:
        yield site


def at(url: str, **transport: object) -> tuple[HttpStore, str]:
    uri = parse_uri(url)
    return HttpStore(uri, Transport(**{"timeout": 10.0, **transport})), uri.key  # type: ignore[arg-type]


# -------------------------------------------------------------------------- TLS


def test_a_certificate_that_was_configured_is_trusted(secure: MisbehavingServer, certificate: Path) -> None:
    etag = {"ETag": '"v"'}
    store, key = at(secure.script("/x", Reply(body=BODY, headers=etag, drop_after=50_000), Reply(body=BODY, headers=etag)), ca_certificates=str(certificate))
    assert store.get(key) == BODY
    assert store.get(key, 100, 50) == BODY[100:150]
    with store.open(key) as body:
        assert b"".join(body) == BODY
    store.close()


def test_a_certificate_that_nobody_vouches_for_is_refused_at_once(secure: MisbehavingServer) -> None:
    before = len(secure.seen)
    store, key = at(secure.script("/y", Reply(body=BODY)))
    for call in (lambda: store.get(key), lambda: store.head(key), lambda: store.open(key)):
        with pytest.raises(TransferError, match="certificate"):
            call()
    assert len(secure.seen) == before


def test_a_redirect_from_tls_to_plain_http_shows_no_credentials(secure: MisbehavingServer, certificate: Path) -> None:
    with misbehaving() as plain:
        plain.script("/z", Reply(body=BODY))
        store, key = at(secure.script("/down", Reply(302, headers={"Location": f"{plain.url}/z"})), ca_certificates=str(certificate))
        with pytest.raises(TransferError, match="from https to http"):
            store.get(key, headers={"Authorization": "Bearer abcdefgh1"})
        assert plain.seen == []
        assert store.get(key) == BODY, "nothing is shown when there is nothing to show"
        store.close()


# ------------------------------------------------------------------------ proxies


def test_a_proxy_gets_whole_addresses_as_they_were_written() -> None:
    with misbehaving() as proxy:
        proxy.otherwise = lambda seen, count: Reply(body=BODY)
        store, key = at("http://no-such-host.invalid/a/../b%2fc?d=[1]", proxy=proxy.url.replace("http://", "http://me:secret1@"))
        assert store.get(key) == BODY
        assert proxy.seen[0].target == "http://no-such-host.invalid/a/../b%2fc?d=[1]"
        assert proxy.seen[0].headers["host"] == "no-such-host.invalid"
        assert proxy.seen[0].headers["proxy-authorization"] == "Basic bWU6c2VjcmV0MQ=="
        store.close()


def test_the_proxy_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with misbehaving() as proxy, misbehaving() as direct:
        proxy.otherwise = lambda seen, count: Reply(body=b"by the proxy")
        url = direct.script("/x", Reply(body=b"direct"))
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        store, key = at(url)
        assert store.get(key) == b"direct"
        away, key = at("http://no-such-host.invalid/x")
        assert away.get(key) == b"by the proxy"
        store.close()
        away.close()


def test_a_proxy_that_is_not_there_is_an_error_without_its_password() -> None:
    with misbehaving() as proxy:
        address = proxy.url
    store, key = at("http://no-such-host.invalid/x", proxy=address.replace("http://", "http://me:secret1@"), attempts=1)
    with pytest.raises(ConnectionError) as caught:
        store.get(key)
    assert "secret1" not in str(caught.value)
