"""`SdkClient`: one bucket through its provider's own package (botocore, google-cloud-storage, azure-storage-blob).

obstore is faster but normalises keys (`/lead` becomes `lead`, `x//y` is refused) and its listings lose such names. The
providers' packages keep every key, so they serve odd keys, listings, uploads in parts and copies; `io.stores.object`
chooses.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from ..store import Body, BytesLike, ObjectInfo

PAGE = 1000
"""Entries that are asked for per page of a listing."""
CHUNK = 1 << 20
"""Bytes per chunk of a body."""

_PLAIN_SEGMENTS = re.compile(r"(?!\.{1,2}(?:/|\Z))[^/\\\x00-\x1f\x7f]+(?:/(?!\.{1,2}(?:/|\Z))[^/\\\x00-\x1f\x7f]+)*")


def is_plain(key: str) -> bool:
    """Whether obstore names exactly this object by `key`: no empty, `.` or `..` segment, no control characters, no
    backslash (which its HTTP client takes for a slash on Azure)."""
    if key.isprintable() and key[:1] not in "./" and key[-1] != "/" and not ("//" in key or "/." in key or "\\" in key):
        return True  # nearly all keys, told in a tenth of the time
    return _PLAIN_SEGMENTS.fullmatch(key) is not None


def installed(package: str) -> bool:
    """Whether a package can be imported, told without importing it (but for the packages around it)."""
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:
        return False


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a listing; `token` asks for the next one, None at the end."""

    infos: list[ObjectInfo]
    token: str | None


class Parts(ABC):
    """An object that is sent in parts.

    Attributes:
        concurrent: whether parts may be sent in any order and at the same time.
    """

    concurrent = True

    @abstractmethod
    def send(self, number: int, data: BytesLike, last: bool) -> None:
        """Send part `number`, counted from 0; a part that was sent before is replaced."""

    @abstractmethod
    def finish(self) -> str | None:
        """Make the object appear; its ETag without quotes."""

    @abstractmethod
    def abort(self) -> None:
        """Drop the parts."""


class SdkClient(ABC):
    """One bucket. Each method makes one attempt and raises what the package raises."""

    @abstractmethod
    def open(self, key: str, offset: int, size: int | None, if_match: str | None) -> Body:
        """The bytes in chunks; `info.size` counts the whole object."""

    @abstractmethod
    def head(self, key: str) -> ObjectInfo:
        """What is known of an object."""

    @abstractmethod
    def put(self, key: str, data: BytesLike, content_type: str | None) -> str | None:
        """Write an object by one request; its ETag without quotes."""

    @abstractmethod
    def begin(self, key: str, content_type: str | None, part: int) -> Parts:
        """Begin an object of parts of `part` bytes."""

    @abstractmethod
    def delete(self, key: str) -> None:
        """Remove an object; one that is not there is fine."""

    def delete_many(self, keys: Sequence[str]) -> None:
        """Remove up to `PAGE` objects."""
        for key in keys:
            self.delete(key)

    @abstractmethod
    def copy(self, key: str, to_bucket: str, to_key: str) -> None:
        """Copy on the server's side, whatever the size."""

    @abstractmethod
    def sign(self, key: str, expires: int, method: str) -> str:
        """A URL for one kind of request."""

    @abstractmethod
    def page(self, prefix: str, delimited: bool, token: str | None) -> Page:
        """One page of a listing of exactly the keys that begin with `prefix`."""

    def close(self) -> None:  # noqa: B027  (most packages close their connections themselves)
        """Give back connections."""


def chunked(chunks: Iterator[bytes]) -> Iterator[BytesLike]:
    """Chunks that hold something."""
    return (chunk for chunk in chunks if chunk)
