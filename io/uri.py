"""What a URI means. Keys are opaque: nothing is decoded, joined, normalised or split at `?` and `#`."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Any

from .errors import UriError

BUCKET_SCHEMES = ("s3", "r2", "gs", "az")
"""Stores of buckets (Azure: containers); `scheme://bucket/key`."""
HUB_SCHEMES = ("hf", "hfd")
"""Repositories of the Hugging Face hub, of models and of data sets: `hf://org/repo[@revision]/path`."""
HTTP_SCHEMES = ("http", "https")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")


@dataclass(frozen=True, slots=True)
class Uri:
    """A URI taken apart: `scheme://bucket/key`.

    Attributes:
        scheme: lower case; "file" for local paths.
        bucket: of an object store; "org/repo" or "org/repo@revision" on the hub; the host (with port and user) of http;
            empty for local paths and for schemes that only fsspec knows.
        key: what stands behind `bucket/`, character by character; a local path; for fsspec's schemes all behind "://".
    """

    scheme: str
    bucket: str
    key: str

    def __str__(self) -> str:
        if self.scheme == "file":
            return self.key
        if self.scheme in (*BUCKET_SCHEMES, *HUB_SCHEMES, *HTTP_SCHEMES):
            return f"{self.scheme}://{self.bucket}/{self.key}"
        return f"{self.scheme}://{self.key}"


def scheme_of(uri: str) -> str | None:
    """`"s3"` for `s3://bucket/key`; None for a plain path (a Windows drive letter is no scheme)."""
    found = _SCHEME.match(uri)
    return found.group()[:-3].lower() if found else None


def parse_uri(uri: Any, *, bucket_alone: bool = False) -> Uri:
    """Take a URI apart.

    Args:
        uri: str, or an `os.PathLike` (always a local path).
        bucket_alone: whether a bucket without a key is fine, as it is where a prefix is meant.

    Raises:
        TypeError: neither str nor PathLike.
        UriError: a part is missing. Unknown schemes are told by the one who opens a store.
    """
    if not isinstance(uri, str):
        if not isinstance(uri, os.PathLike):
            raise TypeError(f"a URI or path is a str or PathLike, got {type(uri).__name__}")
        path = os.fspath(uri)
        return Uri("file", "", os.fsdecode(path))
    if "\0" in uri:
        raise UriError(f"a URI or path cannot hold a NUL character: {uri!r}")
    scheme = scheme_of(uri)
    if scheme is None:
        if not uri:
            raise UriError("an empty string is neither a path nor a URI")
        return Uri("file", "", uri)
    rest = uri[len(scheme) + 3 :]
    if scheme == "file":
        if not rest.startswith("/"):
            raise UriError(f"{uri!r} names a host or a relative path; a local file is file:///absolute/path, or a plain path")
        return Uri("file", "", rest)
    if scheme in HUB_SCHEMES:
        return _hub(uri, scheme, rest, bucket_alone)
    if scheme in BUCKET_SCHEMES:
        bucket, _, key = rest.partition("/")
        if not bucket:
            raise UriError(f"{uri!r} has no bucket: write {scheme}://bucket/key")
        if not key and not bucket_alone:
            raise UriError(f"{uri!r} has no key: write {scheme}://bucket/key")
        return Uri(scheme, bucket, key)
    if scheme in HTTP_SCHEMES:
        end = min((i for i in (rest.find("/"), rest.find("?")) if i >= 0), default=len(rest))
        if not rest[:end]:
            raise UriError(f"{uri!r} has no host")
        return Uri(scheme, rest[:end], rest[end:].removeprefix("/"))
    return Uri(scheme, "", rest)


def _hub(uri: str, scheme: str, rest: str, bucket_alone: bool) -> Uri:
    organisation, _, behind = rest.partition("/")
    repository, _, key = behind.partition("/")
    name, at, revision = repository.partition("@")
    if not organisation or not name or (not key and not bucket_alone):
        raise UriError(f"{uri!r} names no file of a repository: write {scheme}://organisation/repository[@revision]/path")
    if at and not revision:
        raise UriError(f"{uri!r} has an empty revision")
    return Uri(scheme, f"{organisation}/{repository}", key)


def local_path(uri: str | bytes) -> str | bytes | None:
    """The file system path of a plain path or a `file://` URI, None for any other scheme."""
    if isinstance(uri, bytes) or "://" not in uri:
        return uri
    parsed = parse_uri(uri, bucket_alone=True)
    return parsed.key if parsed.scheme == "file" else None
