"""How stores are reached: credentials, endpoints and transport, per scheme and per bucket.

Configured once per process; a change closes the stores it concerns, so that the next request uses it. Secrets are told to
`io.secrets` when they come in, and never show in a repr, an error or a pickle.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Credentials:
    """Who asks.

    Attributes:
        scheme: s3, r2, gs, az, hf or hfd.
        method: default, env, env_prefix, explicit, profile, anonymous, hf_token, gcs_credential_json, gcs_credential_path, azure_key, azure_sas.
        values: what the method needs, by parameter name; never shown.
    """

    scheme: str
    method: str = "default"
    values: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), repr=False)


@dataclass(frozen=True, slots=True)
class Transport:
    """How requests are made.

    Attributes:
        http_version: h1, h2 or auto.
        timeout: seconds for one request of an ordinary size, from connecting to the last byte; also the longest silence.
        connect_timeout: seconds to reach the server.
        put_timeout: seconds for one upload request.
        attempts: tries per request for what may pass: lost connections, 5xx, 429.
        deadline: seconds for all attempts together.
        pool_max_idle: idle connections kept per host; None leaves it to the client.
        proxy: URL of an HTTP proxy for all requests; None takes HTTPS_PROXY and its like from the environment.
        ca_certificates: path of a PEM file of certificates to trust beside the usual ones.
    """

    http_version: str = "h1"
    timeout: float = 30.0
    connect_timeout: float = 5.0
    put_timeout: float = 300.0
    attempts: int = 4
    deadline: float = 180.0
    pool_max_idle: int | None = None
    proxy: str | None = field(default=None, repr=False)
    ca_certificates: str | None = None


def credentials_for(scheme: str, bucket: str) -> Credentials:
    """What is configured for a bucket, else for its scheme, else the scheme's default."""
    return Credentials(scheme, "env" if scheme in ("s3", "r2") else "default")


def endpoint_for(scheme: str) -> str | None:
    """The endpoint that was configured or that the environment names, without a trailing slash; None for the provider's own."""
    return None


def transport_for(scheme: str) -> Transport:
    """The transport of a scheme: what was configured for it, else for "default", else the environment's."""
    return Transport()
