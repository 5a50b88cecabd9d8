"""Environment variables of the bytes layer, and those of the providers that it honours; each declared once."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

from ..engine.settings import Setting, on_or_off, one_of, whole_number
from .secrets import MASK, SECRET_NAMES, masked


def _seconds(text: str) -> float:
    """A parser for positive, finite seconds."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not (value > 0 and math.isfinite(value)):
        raise ValueError("wants a positive number of seconds")
    return value


def _whole(name: str, default: int, description: str, low: int = 1) -> Setting[int]:
    return Setting(name, str(default), description, whole_number(low), lambda: default)


def _time(name: str, default: float, description: str) -> Setting[float]:
    return Setting(name, f"{default:g}", description, _seconds, lambda: default)


S3_HTTP_VERSION = Setting(
    "DATAIO_S3_HTTP_VERSION", "h1", "HTTP version of object stores: h1, h2 or auto", one_of("h1", "h2", "auto"), lambda: "h1"
)
OBJECT_MAX_ATTEMPTS = _whole("DATAIO_OBJECT_MAX_ATTEMPTS", 4, "tries per request for what may pass: lost connections, 5xx, 429")
REQUEST_TIMEOUT = _time("DATAIO_OBJECT_REQUEST_TIMEOUT_SECS", 30.0, "how long one request may take, or stay silent, in seconds")
PUT_TIMEOUT = _time("DATAIO_PUT_REQUEST_TIMEOUT_SECS", 300.0, "how long one upload request may take, in seconds")
RETRY_DEADLINE = _time("DATAIO_HTTP_RETRY_DEADLINE_SECS", 180.0, "how long all tries of a request may take together, in seconds")
MULTIPART_PART = _whole(
    "DATAIO_MULTIPART_PART_MIB", 64, "size of the parts of an upload in MiB, at least 5; larger bodies go in parts", 5
)
MULTIPART_CONCURRENCY = _whole("DATAIO_MULTIPART_CONCURRENCY", 4, "parts of one upload in flight")
OBJECT_SHARDS = _whole("DATAIO_OBJECT_SHARDS", 1, "independent clients per bucket, each with connections of its own")
CLIENT_CACHE = _whole("DATAIO_OBJECT_CLIENT_CACHE_MAX_ENTRIES", 256, "buckets whose clients are kept")
CACHE_DIR = Setting("DATAIO_CACHE_DIR", "unset", "folder that keeps remote objects on this machine", str, lambda: "")
CACHE_MAX = _whole("DATAIO_CACHE_MAX_MB", 10_240, "size of that folder in MB; what was not used for longest goes first")
CACHE_REVALIDATE: Setting[Any] = Setting(
    "DATAIO_CACHE_REVALIDATE",
    "once",
    "when the store is asked whether a cached object is still its version: once (per process), always or never",
    one_of("once", "always", "never"),
    lambda: "once",
)
CACHE_VERIFY = Setting("DATAIO_CACHE_VERIFY", "0", "1 hashes a cached object again whenever it is read", on_or_off, lambda: False)
ARCHIVE_INDEXES = _whole("DATAIO_ARCHIVE_INDEX_CACHE_MAX_ENTRIES", 1024, "parsed archive directories kept")
ZIP_DIRECTORY = _whole("DATAIO_ZIP_CENTRAL_DIRECTORY_MAX_BYTES", 1 << 26, "largest directory of a zip archive that is read, in bytes")
ZIP_ENTRIES = _whole("DATAIO_ZIP_MAX_ENTRIES", 1_000_000, "most entries of a zip archive")


class ProviderSetting(Setting[str]):
    """A variable that a provider defines; the value of a secret one is never shown."""

    __slots__ = ()

    def describe(self) -> dict[str, Any]:
        facts = super().describe()
        if facts["current"] is not None:
            facts["current"] = MASK if self.name in SECRET_NAMES else masked(facts["current"])
        return facts


def _provider(kind: str, description: str, *names: str) -> list[Setting[Any]]:
    def text(value: str) -> str:
        return value

    nothing: Callable[[], str] = str
    return [ProviderSetting(name, "unset", description, text, nothing, kind) for name in names]


PROVIDER_SETTINGS: tuple[Setting[Any], ...] = (
    *_provider("aws", "keys of s3", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
    *_provider("aws", "region of s3, us-east-1 when unset", "AWS_REGION", "AWS_DEFAULT_REGION"),
    *_provider("aws", "endpoint of s3; the first wins", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    *_provider("aws", "profile of s3", "AWS_PROFILE"),
    *_provider("r2", "keys of r2; the AWS ones when unset", "R2_ACCESS_KEY_ID", "R2_SECRET_ACCESS_KEY", "R2_SESSION_TOKEN"),
    *_provider("r2", "endpoint of r2", "R2_ENDPOINT_URL"),
    *_provider("azure", "account of az; the first wins", "AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT"),
    *_provider("azure", "key or token of az, one of them", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN"),
    *_provider("gcs", "path of the credentials of gs", "GOOGLE_APPLICATION_CREDENTIALS"),
    *_provider("gcs", "endpoint of gs, for emulators", "STORAGE_EMULATOR_HOST"),
    *_provider("hf", "token of hf and hfd; the first wins", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"),
    *_provider("hf", "endpoint of hf and hfd", "HF_ENDPOINT"),
    *_provider("hf", "1 refuses to read from the hub", "HF_HUB_OFFLINE"),
    *_provider("proxy", "proxies of all requests", "HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY"),
)

IO_SETTINGS: tuple[Setting[Any], ...] = (
    S3_HTTP_VERSION,
    OBJECT_SHARDS,
    OBJECT_MAX_ATTEMPTS,
    REQUEST_TIMEOUT,
    PUT_TIMEOUT,
    RETRY_DEADLINE,
    MULTIPART_PART,
    MULTIPART_CONCURRENCY,
    CLIENT_CACHE,
    CACHE_DIR,
    CACHE_MAX,
    CACHE_REVALIDATE,
    CACHE_VERIFY,
    ARCHIVE_INDEXES,
    ZIP_DIRECTORY,
    ZIP_ENTRIES,
    *PROVIDER_SETTINGS,
)


def first_set(*names: str) -> str | None:
    """The value of the first of these variables that is set and not empty."""
    return next((value for name in names if (value := os.environ.get(name, "").strip())), None)
