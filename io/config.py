"""How stores are reached: credentials, endpoints and transport, per scheme and per bucket.

Configured once per process; a change closes the stores it concerns, so that the next request uses it and those under way end
as they began. Secrets are told to `io.secrets` when they come in, and never show in a repr, an error or a pickle.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from types import MappingProxyType
from typing import Any, NoReturn
from urllib.parse import unquote, urlsplit

from ..engine.errors import did_you_mean
from ..engine.forks import new_lock_in_child
from .errors import CredentialsError
from .secrets import MASK, masked, remember, remember_document, remember_name, remember_query
from .settings import (
    OBJECT_MAX_ATTEMPTS,
    PUT_TIMEOUT,
    REQUEST_TIMEOUT,
    RETRY_DEADLINE,
    S3_HTTP_VERSION,
    first_set,
)

METHODS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "default": ((), ()),
    "env": ((), ()),
    "env_prefix": (("prefix",), ()),
    "explicit": (("access_key_id", "secret_access_key"), ("session_token",)),
    "profile": (("profile",), ()),
    "anonymous": ((), ("account_name",)),
    "hf_token": (("token",), ()),
    "gcs_credential_json": (("credential_json",), ()),
    "gcs_credential_path": (("credential_path",), ()),
    "azure_key": (("account_name", "account_key"), ()),
    "azure_sas": (("account_name", "sas_token"), ()),
}
"""Method: the values that it needs, and those that it takes beside them."""
SECRET_VALUES = ("access_key_id", "secret_access_key", "session_token", "token", "credential_json", "account_key", "sas_token")
ENDPOINTS = ("default", "s3", "r2", "gs", "az", "hf", "hfd", "https")
"""What `configure_transport` knows; "https" is plain http too, "default" all that is not configured by itself."""
HTTP_VERSIONS = ("h1", "h2", "auto")


@dataclass(frozen=True, slots=True)
class Credentials:
    """Who asks. Its repr and its pickle hold no secret: a pickled one cannot be used.

    Attributes:
        scheme: s3, r2, gs, az, hf or hfd.
        method: a key of METHODS.
        values: what the method needs, by parameter name.
    """

    scheme: str
    method: str = "default"
    values: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return _Unpickled, (self.scheme, self.method)


class _Unpickled:
    """Credentials that came out of a pickle, in which secrets do not travel."""

    def __init__(self, scheme: str, method: str) -> None:
        self.scheme, self.method = scheme, method

    @property
    def values(self) -> NoReturn:
        raise CredentialsError(
            f"credentials of {self.scheme}:// came out of a pickle, which holds no secrets: call configure_credentials here"
        )


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

    def __reduce__(self) -> tuple[Any, ...]:
        if self.proxy is not None and "@" in self.proxy:
            raise TypeError("a Transport whose proxy wants a password is not pickled: the pickle would hold it")
        return Transport, tuple(getattr(self, option.name) for option in fields(self))


class _Configuration:
    """What was configured in this process."""

    def __init__(self) -> None:
        self.credentials: dict[tuple[str, str | None], Credentials] = {}
        self.endpoints: dict[str, str] = {}
        self.transports: dict[str, dict[str, Any]] = {}
        self.lock = threading.Lock()
        new_lock_in_child(self, "lock", threading.Lock)


_configured = _Configuration()


def configure_credentials(
    scheme: str,
    *,
    method: str | None = None,
    bucket: str | None = None,
    access_key_id: str | None = None,
    secret_access_key: str | None = None,
    session_token: str | None = None,
    prefix: str | None = None,
    token: str | None = None,
    credential_json: str | None = None,
    credential_path: str | None = None,
    account_name: str | None = None,
    account_key: str | None = None,
    sas_token: str | None = None,
    profile: str | None = None,
) -> None:
    """Say who asks a store. Replaces what was said before; nothing is sent, so wrong keys show at the first request.

    Args:
        scheme: s3, r2, gs, az, hf or hfd, in any case.
        method: how credentials are found; "explicit" when both keys are given without one.

            - "default": what the platform has: environment, shared profile, instance metadata, workload identity;
            - "env": AWS_ACCESS_KEY_ID and its like (r2: R2_ACCESS_KEY_ID first); what s3 and r2 do unless told otherwise;
            - "env_prefix": `<prefix>ACCESS_KEY_ID` and `<prefix>SECRET_ACCESS_KEY`, else the AWS names (s3, r2);
            - "explicit": `access_key_id`, `secret_access_key`, optionally `session_token` (s3, r2);
            - "profile": `profile` of the shared configuration files, SSO included (s3, r2);
            - "hf_token": `token` (hf, hfd); "gcs_credential_json": `credential_json`; "gcs_credential_path":
              `credential_path` (gs); "azure_key": `account_name`, `account_key`; "azure_sas": `account_name`, `sas_token` (az);
            - "anonymous": unsigned requests, for public buckets.
        bucket: only for this bucket (container; "org/repo" on the hub), which then goes before the scheme's.

    Raises:
        ValueError: unknown scheme or method, a value that the method needs is missing; whether a method works for a scheme
            is told by the first request.
    """
    name = _known(scheme, ENDPOINTS[1:-1], "scheme")
    given = {
        "access_key_id": access_key_id,
        "secret_access_key": secret_access_key,
        "session_token": session_token,
        "prefix": prefix,
        "token": token,
        "credential_json": credential_json,
        "credential_path": credential_path,
        "account_name": account_name,
        "account_key": account_key,
        "sas_token": sas_token,
        "profile": profile,
    }
    values = {key: str(value) for key, value in given.items() if value is not None}
    if method is None:
        if not {"access_key_id", "secret_access_key"} <= set(values):
            raise ValueError(f"configure_credentials({scheme!r}) needs method=, or both access_key_id= and secret_access_key=")
        method = "explicit"
    if method not in METHODS:
        raise ValueError(f"unknown credential method {method!r}{did_you_mean(str(method), METHODS)}; known: {', '.join(METHODS)}")
    needed, optional = METHODS[method]
    missing = [key for key in needed if not values.get(key)]
    if missing:
        raise ValueError(f"credential method {method!r} needs {' and '.join(missing)}")
    if method == "env_prefix":
        _check_prefix(values["prefix"])
    _hide(values)
    kept = {key: value for key, value in values.items() if key in (*needed, *optional)}
    with _configured.lock:
        _configured.credentials[name, bucket] = Credentials(name, method, MappingProxyType(kept))
    _forget(name)


def _hide(values: Mapping[str, str]) -> None:
    """No message shows the secrets among these from now on."""
    remember_name(values.get("access_key_id"))
    remember_document(values.get("credential_json"))
    remember_query(values.get("sas_token"))
    remember(values.get(key) for key in ("secret_access_key", "session_token", "token", "account_key"))


def _hide_password(url: str | None) -> None:
    password = None if url is None else urlsplit(url).password
    remember([password, None if password is None else unquote(password)])


def _check_prefix(prefix: str) -> None:
    for part in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"):
        value = first_set(prefix + part, f"AWS_{part}")
        if part == "SECRET_ACCESS_KEY":
            remember([value])
        if value is None:
            raise ValueError(f"credential method 'env_prefix' needs {prefix}{part} or AWS_{part} in the environment")


def configure_endpoint(scheme: str, url: str) -> None:
    """Send the requests of a scheme elsewhere: to an account's own address, a private store, an emulator.

    Args:
        scheme: s3, r2, gs, az, hf or hfd. Buckets of s3 and r2 become the first part of the path there.
        url: http:// or https://, without a query; plain http is fine when it says so.

    Raises:
        ValueError: unknown scheme, or no such URL.
    """
    name = _known(scheme, ENDPOINTS[1:-1], "scheme")
    if not _is_endpoint(url):
        raise ValueError(f"an endpoint is a URL such as 'https://store.example.com', got {masked(repr(url))}")
    _hide_password(url)
    with _configured.lock:
        _configured.endpoints[name] = url.rstrip("/")
    _forget(name)


def _is_endpoint(url: Any) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and not (parts.query or parts.fragment)
    except (AttributeError, TypeError, ValueError):  # no text; brackets that do not match; a port that is no number
        return False


def configure_transport(
    endpoint: str,
    *,
    http_version: str | None = None,
    pool_max_idle: int | None = None,
    timeout_secs: float | None = None,
    connect_timeout_secs: float | None = None,
    put_timeout_secs: float | None = None,
    max_attempts: int | None = None,
    retry_deadline_secs: float | None = None,
    proxy: str | None = None,
    ca_certificates: str | None = None,
) -> None:
    """Say how requests are made; None leaves an option as the environment has it. Replaces what was said before.

    Args:
        endpoint: s3, r2, gs, az, hf, hfd, "https" (plain http too), or "default" for all that are not configured by themselves.
        http_version: "h1", "h2" or "auto".
        pool_max_idle: idle connections kept per host.
        timeout_secs: for one request, and the longest silence of a long one.
        connect_timeout_secs: to reach the server.
        put_timeout_secs: for one upload request.
        max_attempts: tries per request for what may pass (lost connections, 5xx, 429).
        retry_deadline_secs: for all tries of a request together.
        proxy: URL of an HTTP proxy.
        ca_certificates: path of a PEM file of certificates to trust beside the usual ones.

    Raises:
        ValueError: unknown endpoint, or a value out of range.
    """
    name = _known(endpoint, ENDPOINTS, "endpoint")
    options: dict[str, Any] = {}
    if http_version is not None:
        options["http_version"] = _known(http_version, HTTP_VERSIONS, "http_version")
    seconds = {
        "timeout": ("timeout_secs", timeout_secs),
        "connect_timeout": ("connect_timeout_secs", connect_timeout_secs),
        "put_timeout": ("put_timeout_secs", put_timeout_secs),
        "deadline": ("retry_deadline_secs", retry_deadline_secs),
    }
    for option, (parameter, value) in seconds.items():
        if value is not None:
            options[option] = _positive(parameter, value)
    counts = {"pool_max_idle": (pool_max_idle, 0), "max_attempts": (max_attempts, 1)}
    for parameter, (count, low) in counts.items():
        if count is not None:
            if isinstance(count, bool) or not isinstance(count, int) or count < low:
                raise ValueError(f"{parameter} must be a whole number of at least {low}, got {count!r}")
            options["attempts" if parameter == "max_attempts" else parameter] = count
    if proxy is not None:
        if urlsplit(proxy).scheme not in ("http", "https", "socks5"):
            raise ValueError(f"proxy must be a URL such as 'http://proxy.example.com:3128', got {masked(repr(proxy))}")
        _hide_password(proxy)
        options["proxy"] = proxy
    if ca_certificates is not None:
        with open(ca_certificates, "rb"):  # a wrong path is told here, not by every request
            options["ca_certificates"] = str(ca_certificates)
    with _configured.lock:
        _configured.transports[name] = options
    _forget(None)


def clear_credentials(scope: str | None = None) -> None:
    """Forget credentials and endpoints: of one scheme, or all."""
    name = None if scope is None else scope.lower()
    with _configured.lock:
        for at in [at for at in _configured.credentials if name in (None, at[0])]:
            del _configured.credentials[at]
        for scheme in [scheme for scheme in _configured.endpoints if name in (None, scheme)]:
            del _configured.endpoints[scheme]
    _forget(name)


def clear_transport_overrides() -> None:
    """Forget all that `configure_transport` was told."""
    with _configured.lock:
        _configured.transports.clear()
    _forget(None)


def current_config() -> dict[str, Any]:
    """What is configured and what is in force, secrets masked: a JSON value.

    Returns:
        "credentials": by scheme, or "scheme bucket", the method and its values; "endpoints": by scheme, those of the
        environment included; "transport": by endpoint, every option in force.
    """
    with _configured.lock:
        credentials = dict(_configured.credentials)
    return {
        "credentials": {
            scheme if bucket is None else f"{scheme} {bucket}": {
                "method": found.method,
                **{key: MASK if key in SECRET_VALUES else value for key, value in found.values.items()},
            }
            for (scheme, bucket), found in sorted(credentials.items(), key=lambda item: (item[0][0], item[0][1] or ""))
        },
        "endpoints": {scheme: masked(url) for scheme in ENDPOINTS[1:-1] if (url := endpoint_for(scheme)) is not None},
        "transport": {name: _shown(transport_for(name)) for name in ENDPOINTS},
    }


def _shown(transport: Transport) -> dict[str, Any]:
    values = {option.name: getattr(transport, option.name) for option in fields(transport)}
    return values | {"proxy": None if transport.proxy is None else masked(transport.proxy)}


def credentials_for(scheme: str, bucket: str) -> Credentials:
    """What is configured for a bucket, else for its scheme, else the scheme's default."""
    names = [bucket, bucket.partition("@")[0]] if scheme in ("hf", "hfd") else [bucket]
    for at in (*((scheme, name) for name in names), (scheme, None)):
        found = _configured.credentials.get(at)
        if found is not None:
            return found
    return Credentials(scheme, "env" if scheme in ("s3", "r2") else "default")


_ENDPOINT_VARIABLES = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    "r2": ("R2_ENDPOINT_URL",),
    "gs": ("STORAGE_EMULATOR_HOST",),
    "hf": ("HF_ENDPOINT",),
    "hfd": ("HF_ENDPOINT",),
}


def endpoint_for(scheme: str) -> str | None:
    """The endpoint that was configured or that the environment names, without a trailing slash; None for the provider's own."""
    found = _configured.endpoints.get(scheme)
    if found is None and scheme == "hfd":
        found = _configured.endpoints.get("hf")
    if found is None:
        found = first_set(*_ENDPOINT_VARIABLES.get(scheme, ()))
        if found is not None and "://" not in found:  # how STORAGE_EMULATOR_HOST is often written
            found = f"http://{found}"
    return None if found is None else found.rstrip("/")


def transport_for(scheme: str) -> Transport:
    """The transport of a scheme: what was configured for it, else for "default", else the environment's."""
    environment = Transport(
        http_version=S3_HTTP_VERSION.get() if scheme in ("s3", "r2", "gs", "az") else "h1",
        timeout=REQUEST_TIMEOUT.get(),
        put_timeout=PUT_TIMEOUT.get(),
        attempts=OBJECT_MAX_ATTEMPTS.get(),
        deadline=RETRY_DEADLINE.get(),
    )
    name = "https" if scheme == "http" else scheme
    options = {**_configured.transports.get("default", {}), **_configured.transports.get(name, {})}
    return replace(environment, **options)


# -------------------------------------------------------------------- other processes


def export_config() -> dict[str, Any]:
    """All that was configured, secrets included, as plain values: for the pipe to a worker process, never for a file."""
    with _configured.lock:
        return {
            "credentials": [(scheme, bucket, c.method, dict(c.values)) for (scheme, bucket), c in _configured.credentials.items()],
            "endpoints": dict(_configured.endpoints),
            "transports": {name: dict(options) for name, options in _configured.transports.items()},
        }


def apply_config(config: Mapping[str, Any]) -> None:
    """Take over what another process configured, in place of everything that was configured here."""
    with _configured.lock:
        _configured.credentials = {
            (scheme, bucket): Credentials(scheme, method, MappingProxyType(dict(values)))
            for scheme, bucket, method, values in config["credentials"]
        }
        _configured.endpoints = dict(config["endpoints"])
        _configured.transports = {name: dict(options) for name, options in config["transports"].items()}
    for found in _configured.credentials.values():
        _hide(found.values)
    for options in _configured.transports.values():
        _hide_password(options.get("proxy"))
    for url in _configured.endpoints.values():
        _hide_password(url)
    _forget(None)


def carry_config() -> Callable[[], None]:
    """A function that configures another process like this one is now; its pickle holds secrets: for pipes alone."""
    return partial(apply_config, export_config())


def _forget(scheme: str | None) -> None:
    from .store import forget_stores

    forget_stores(scheme)
    if scheme == "hf":  # its settings hold for data sets too
        forget_stores("hfd")


def _known(value: str, known: tuple[str, ...], what: str) -> str:
    name = value.lower() if isinstance(value, str) else value
    if name not in known:
        raise ValueError(f"unknown {what} {masked(repr(value))}{did_you_mean(str(value), known)}; known: {', '.join(known)}")
    return name


def _positive(what: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not (value > 0 and math.isfinite(value)):
        raise ValueError(f"{what} must be a positive, finite number of seconds, got {value!r}")
    return float(value)
