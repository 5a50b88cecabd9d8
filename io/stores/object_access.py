"""How an object store is reached: from the configuration to obstore's stores, and to the client of the provider's package.

obstore takes whatever the environment names for what it is not told, so that a key that was configured could meet a
session token of the environment; everything is told to it here, credentials by a provider object.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

from ...engine.errors import MissingDependencyError
from ..config import Credentials, Transport
from ..errors import CredentialsError
from ..secrets import remember
from .sdk import SdkClient, installed
from .web import user_agent

_RENEWED_AFTER = timedelta(minutes=5)
"""After which obstore asks again for credentials that botocore renews: well before the quarter of an hour that it keeps."""
_METHODS = {
    "s3": ("default", "env", "env_prefix", "explicit", "profile", "anonymous"),
    "r2": ("default", "env", "env_prefix", "explicit", "profile", "anonymous"),
    "gs": ("default", "gcs_credential_json", "gcs_credential_path", "anonymous"),
    "az": ("default", "azure_key", "azure_sas", "anonymous"),
}


class Access(ABC):
    """One bucket as it is configured.

    Attributes:
        scheme, bucket, credentials, endpoint, transport: as configured.
        package: of the provider, as `pip` names the extra that brings it.
        writes_by_obstore: whether obstore's writes work there.
    """

    package: str
    extra: str
    writes_by_obstore = True

    def __init__(self, scheme: str, bucket: str, credentials: Credentials, endpoint: str | None, transport: Transport) -> None:
        self.scheme, self.bucket = scheme, bucket
        self.credentials, self.endpoint, self.transport = credentials, endpoint, transport
        allowed = _METHODS[scheme]
        if credentials.method not in allowed:
            raise CredentialsError(f"method {credentials.method!r} does not work for {scheme}://; it takes " + ", ".join(allowed))

    @property
    def values(self) -> Mapping[str, str]:
        """What the method was given."""
        return self.credentials.values

    @property
    def anonymous(self) -> bool:
        """Whether requests go out unsigned."""
        return self.credentials.method == "anonymous"

    @property
    def sdk_installed(self) -> bool:
        """Whether the package of the provider is there."""
        return installed(self.package)

    def missing(self, what: str) -> MissingDependencyError:
        """The error of something that only the provider's package can do."""
        return MissingDependencyError(f"{what} needs {self.package}: pip install 'dataio-py[{self.extra}]'")

    def client_options(self, timeout: float | None) -> dict[str, Any]:
        """obstore's options of HTTP: `timeout` seconds for a whole request, or None where bodies are long."""
        transport = self.transport
        options: dict[str, Any] = {
            "allow_http": (self.endpoint or "").startswith("http://"),
            "connect_timeout": timedelta(seconds=transport.connect_timeout),
            "read_timeout": timedelta(seconds=transport.timeout),
            "timeout": timedelta(seconds=timeout if timeout is not None else _LONGEST),
            "http1_only": transport.http_version == "h1",
            "http2_only": transport.http_version == "h2",
            "user_agent": user_agent(),
        }
        if transport.pool_max_idle is not None:
            options["pool_max_idle_per_host"] = str(transport.pool_max_idle)
        if transport.proxy is not None:
            options["proxy_url"] = transport.proxy
        if transport.ca_certificates is not None:
            options["root_certificate"] = Path(transport.ca_certificates).read_bytes()
        return options

    @abstractmethod
    def obstore(self, timeout: float | None, retries: bool = False) -> Any:
        """A store of obstore; `retries` where one call makes many requests, which `io.retry` could only begin anew."""

    @abstractmethod
    def sdk(self) -> SdkClient:
        """A client of the provider's package, which is installed."""

    def same_owner(self, other: Access) -> bool:
        """Whether the server copies from here to a bucket of `other`."""
        return (self.scheme, self.endpoint, self.credentials.method, dict(self.values)) == (
            other.scheme,
            other.endpoint,
            other.credentials.method,
            dict(other.values),
        )

    def retry_config(self, retries: bool) -> Any:
        """obstore's own retries: none, unless one call makes many requests."""
        attempts = self.transport.attempts - 1 if retries else 0
        return {"max_retries": attempts, "retry_timeout": timedelta(seconds=self.transport.deadline if retries else 0)}

    def unset(self, names: str) -> CredentialsError:
        """The error of credentials that are not there."""
        return CredentialsError(
            f"no credentials for {self.scheme}://{self.bucket}: set {names}, or call "
            f"dataio.configure_credentials({self.scheme!r}, ...); method='anonymous' reads public buckets"
        )


_LONGEST = 7 * 86400.0
"""Seconds that stand for "no limit" where obstore wants one: a presigned request cannot live longer either."""


class AmazonAccess(Access):
    """S3 and what speaks its protocol."""

    package, extra = "botocore", "s3"

    def __init__(self, scheme: str, bucket: str, credentials: Credentials, endpoint: str | None, transport: Transport) -> None:
        super().__init__(scheme, bucket, credentials, endpoint, transport)
        if scheme == "r2" and endpoint is None:
            raise CredentialsError(
                "r2:// needs an endpoint: call dataio.configure_endpoint('r2', 'https://ACCOUNT.r2.cloudflarestorage.com') or set R2_ENDPOINT_URL"
            )
        self.keys = None if self.anonymous else self._find_keys()

    def _find_keys(self) -> tuple[str, str, str | None] | Any | None:
        """Fixed keys, botocore's credentials (which renew themselves), or None: obstore looks for itself."""
        method = self.credentials.method
        fixed = self._fixed_keys()
        if fixed is not None:
            remember(fixed[1:])
            return fixed
        if method in ("explicit", "env_prefix"):
            raise self.unset("access_key_id and secret_access_key" if method == "explicit" else "its variables")
        if method == "env" and not any(
            os.environ.get(name)
            for name in ("AWS_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI")
        ):
            names = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            raise self.unset(names if self.scheme == "s3" else f"R2_ACCESS_KEY_ID and R2_SECRET_ACCESS_KEY (or {names})")
        if not self.sdk_installed:
            if method == "profile":
                raise self.missing("the method 'profile'")
            return None
        import botocore.exceptions

        try:
            found = self.session.get_credentials()
        except botocore.exceptions.BotoCoreError as error:
            raise CredentialsError(f"no credentials for {self.scheme}://{self.bucket}: {error}") from error
        if found is None:
            raise self.unset("AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
        return found

    def _fixed_keys(self) -> tuple[str, str, str | None] | None:
        values, environ = self.values, os.environ
        if values.get("access_key_id") and values.get("secret_access_key"):
            return values["access_key_id"], values["secret_access_key"], values.get("session_token") or None
        method = self.credentials.method
        if method in ("explicit", "profile"):
            return None
        prefixes = [values["prefix"]] if method == "env_prefix" and values.get("prefix") else []
        prefixes += ["R2_"] if self.scheme == "r2" else []
        for prefix in [*prefixes, "AWS_"]:
            key, secret = environ.get(f"{prefix}ACCESS_KEY_ID"), environ.get(f"{prefix}SECRET_ACCESS_KEY")
            if key and secret:
                return key, secret, environ.get(f"{prefix}SESSION_TOKEN") or None
        return None

    @cached_property
    def session(self) -> Any:
        """botocore's session, of the profile that is configured."""
        import botocore.session

        profile = self.values.get("profile")
        session = botocore.session.Session(profile=profile)
        session.set_config_variable("metadata_service_timeout", 1.0)
        session.set_config_variable("metadata_service_num_attempts", 1)
        return session

    @cached_property
    def region(self) -> str:
        """As configured, else by the environment or the profile, else us-east-1 (r2: auto)."""
        if self.scheme == "r2":
            return "auto"
        named = self.values.get("region") or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        if not named and self.sdk_installed and self.credentials.method in ("default", "profile"):
            named = self.session.get_config_variable("region")
        return named or "us-east-1"

    def obstore(self, timeout: float | None, retries: bool = False) -> Any:
        from obstore.store import S3Store

        config: dict[str, Any] = {"region": self.region, "skip_signature": self.anonymous}
        if self.endpoint is not None:
            config["endpoint"] = self.endpoint
            config["virtual_hosted_style_request"] = False
        else:
            config["virtual_hosted_style_request"] = "." not in self.bucket  # a dot does not fit the certificate
        options: dict[str, Any] = {}
        if isinstance(self.keys, tuple) and (self.keys[2] or not os.environ.get("AWS_SESSION_TOKEN")):
            # A provider is asked for every request, for which obstore's thread has to win the interpreter lock.
            config |= {"access_key_id": self.keys[0], "secret_access_key": self.keys[1]}
            if self.keys[2]:
                config["session_token"] = self.keys[2]
        elif self.keys is not None:
            options["credential_provider"] = _KeyProvider(self.keys)
        return S3Store(
            self.bucket,
            config=config,  # type: ignore[arg-type]
            client_options=self.client_options(timeout),  # type: ignore[arg-type]
            retry_config=self.retry_config(retries),
            **options,
        )

    def sdk(self) -> SdkClient:
        from .amazon import AmazonClient

        return AmazonClient(self)


class _KeyProvider:
    """Keys for obstore, asked for again when they may have been renewed."""

    def __init__(self, keys: Any) -> None:
        self.keys = keys

    def __call__(self) -> Any:
        if isinstance(self.keys, tuple):
            key, secret, token = self.keys
            return {"access_key_id": key, "secret_access_key": secret, "token": token, "expires_at": None}
        frozen = self.keys.get_frozen_credentials()
        renews = hasattr(self.keys, "refresh_needed")
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": datetime.now(UTC) + _RENEWED_AFTER if renews else None,
        }


class GoogleAccess(Access):
    """Google Cloud Storage. At an endpoint of one's own, writes go through the JSON API: emulators lack the XML API."""

    package, extra = "google.cloud.storage", "gcs"

    def __init__(self, scheme: str, bucket: str, credentials: Credentials, endpoint: str | None, transport: Transport) -> None:
        super().__init__(scheme, bucket, credentials, endpoint, transport)
        self.writes_by_obstore = endpoint is None
        self.found: Any = None if self.anonymous else self._find()

    @property
    def unsigned(self) -> bool:
        """Whether requests go out without a token: as asked, or at an emulator when nothing is configured."""
        return self.found is None and (self.anonymous or self.endpoint is not None)

    def _find(self) -> Any:
        """Credentials of google-auth; None: obstore looks for itself, or nothing is needed."""
        method, scopes = self.credentials.method, ["https://www.googleapis.com/auth/devstorage.full_control"]
        if method == "default" and self.endpoint is not None and not _google_credentials_on_disk():
            return None
        if not installed("google.auth"):
            return None
        import json

        import google.auth
        import google.auth.exceptions

        try:
            if method == "gcs_credential_json":
                info = json.loads(self.values["credential_json"])
                found, _ = google.auth.load_credentials_from_dict(info, scopes=scopes)  # type: ignore[no-untyped-call]
            elif method == "gcs_credential_path":
                path = os.path.expanduser(self.values["credential_path"])
                found, _ = google.auth.load_credentials_from_file(path, scopes=scopes)  # type: ignore[no-untyped-call]
            else:
                if not _google_credentials_on_disk() and not _answers("metadata.google.internal", "GCE_METADATA_HOST"):
                    raise self.unset("GOOGLE_APPLICATION_CREDENTIALS")
                found, _ = google.auth.default(scopes=scopes)
        except (google.auth.exceptions.GoogleAuthError, OSError, ValueError) as error:
            if isinstance(error, CredentialsError):
                raise
            raise CredentialsError(f"the credentials for gs://{self.bucket} cannot be used: {error}") from error
        return found

    def obstore(self, timeout: float | None, retries: bool = False) -> Any:
        from obstore.store import GCSStore

        config: dict[str, Any] = {"skip_signature": self.unsigned}
        if self.endpoint is not None:
            config["base_url"] = self.endpoint
        options: dict[str, Any] = {}
        if self.found is not None:
            from obstore.auth.google import GoogleCredentialProvider

            options["credential_provider"] = GoogleCredentialProvider(self.found)
        elif self.credentials.method == "gcs_credential_json":
            config["service_account_key"] = self.values["credential_json"]
        elif self.credentials.method == "gcs_credential_path":
            config["service_account"] = self.values["credential_path"]
        return GCSStore(
            self.bucket,
            config=config,  # type: ignore[arg-type]
            client_options=self.client_options(timeout),  # type: ignore[arg-type]
            retry_config=self.retry_config(retries),
            **options,
        )

    def sdk(self) -> SdkClient:
        from .google import GoogleClient

        return GoogleClient(self)


def _google_credentials_on_disk() -> bool:
    if os.environ.get("GOOGLE_APPLICATION_CREDENTIALS"):
        return True
    folder = os.environ.get("CLOUDSDK_CONFIG") or os.path.join(os.path.expanduser("~"), ".config", "gcloud")
    return os.path.exists(os.path.join(folder, "application_default_credentials.json"))


def _answers(host: str, variable: str) -> bool:
    """Whether the metadata server of a provider's machine is there: told in a second, where its clients ask for ten."""
    import socket

    name, _, port = os.environ.get(variable, host).partition(":")
    try:
        socket.create_connection((name, int(port or 80)), 1.0).close()
    except (OSError, ValueError):
        return False
    return True


class AzureAccess(Access):
    """Azure Blob Storage; the bucket is a container."""

    package, extra = "azure.storage.blob", "azure"

    def __init__(self, scheme: str, bucket: str, credentials: Credentials, endpoint: str | None, transport: Transport) -> None:
        super().__init__(scheme, bucket, credentials, endpoint, transport)
        environ = os.environ
        default = credentials.method == "default"
        self.account = self.values.get("account_name") or environ.get("AZURE_STORAGE_ACCOUNT_NAME") or environ.get("AZURE_STORAGE_ACCOUNT")
        if not self.account:
            raise self.unset("AZURE_STORAGE_ACCOUNT_NAME")
        self.key = self.values.get("account_key") or (environ.get("AZURE_STORAGE_ACCOUNT_KEY") if default else None)
        sas = self.values.get("sas_token") or (environ.get("AZURE_STORAGE_SAS_TOKEN") if default and not self.key else None)
        self.sas = sas.removeprefix("?") if sas else None
        remember([self.key, self.sas])
        if credentials.method == "azure_key" and not self.key:
            raise self.unset("account_key")
        if credentials.method == "azure_sas" and not self.sas:
            raise self.unset("sas_token")

    @property
    def url(self) -> str:
        """Of the account."""
        return self.endpoint or f"https://{self.account}.blob.core.windows.net"

    @cached_property
    def identity(self) -> Any:
        """azure-identity's credentials, None where a key or a signature is at hand, or it is not installed."""
        if self.key or self.sas or self.anonymous or not installed("azure.identity"):
            return None
        from azure.identity import DefaultAzureCredential

        return DefaultAzureCredential(exclude_interactive_browser_credential=True)

    def obstore(self, timeout: float | None, retries: bool = False) -> Any:
        from obstore.store import AzureStore

        config: dict[str, Any] = {"account_name": self.account, "endpoint": self.url, "skip_signature": self.anonymous}
        options: dict[str, Any] = {}
        if self.key:
            options["credential_provider"] = _Fixed({"access_key": self.key, "expires_at": None})
        elif self.sas:
            config |= {"sas_key": self.sas, "credential_type": "sas_token"}
        elif self.identity is not None:
            from obstore.auth.azure import AzureCredentialProvider

            options["credential_provider"] = AzureCredentialProvider(self.identity)
        return AzureStore(
            self.bucket,
            config=config,  # type: ignore[arg-type]
            client_options=self.client_options(timeout),  # type: ignore[arg-type]
            retry_config=self.retry_config(retries),
            **options,
        )

    def sdk(self) -> SdkClient:
        from .azure import AzureClient

        return AzureClient(self)


class _Fixed:
    """A credential that does not change, for obstore."""

    def __init__(self, credential: dict[str, Any]) -> None:
        self.credential = credential

    def __call__(self) -> Any:
        return self.credential


_KINDS: dict[str, Callable[..., Access]] = {"s3": AmazonAccess, "r2": AmazonAccess, "gs": GoogleAccess, "az": AzureAccess}


def access_to(scheme: str, bucket: str) -> Access:
    """A bucket as it is configured now.

    Raises:
        CredentialsError: none are there, or the method does not fit the scheme.
        MissingDependencyError: the method needs a package.
    """
    from ..config import credentials_for, endpoint_for, transport_for

    return _KINDS[scheme](scheme, bucket, credentials_for(scheme, bucket), endpoint_for(scheme), transport_for(scheme))
