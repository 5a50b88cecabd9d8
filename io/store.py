"""`Store`: the requests that every verb, handle and source is built of, and the registry of stores by scheme.

A store serves one bucket (or host, repository, file system) with the credentials that are configured when it is made. Its
keys are opaque strings. Every method may be called from any thread; one that has to wait blocks its thread, so callers that
want many requests in flight use many threads (`io.parallel`).

Every method raises the errors of `io.errors`, with the URI; none returns "missing" for what is forbidden.
"""

from __future__ import annotations

import os
import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ..engine.errors import did_you_mean
from ..engine.forks import new_lock_in_child
from .errors import UnsupportedError, UnsupportedSchemeError
from .merged_ranges import grouped
from .secrets import masked
from .settings import CACHE_DIR, CLIENT_CACHE
from .uri import Uri, parse_uri

BytesLike: TypeAlias = bytes | bytearray | memoryview
RANGES_AT_ONCE = 4
"""Requests at once for the ranges of one object that lie far apart."""


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What a store tells of one object without giving its bytes.

    Attributes:
        key: of the object; ends with "/" and `is_prefix` is set for a folder of a delimited listing.
        size: bytes, None when the store does not tell.
        etag: version of the content as the store writes it, quotes removed; None when it has none.
        modified: seconds since 1970, None when the store does not tell.
        is_prefix: a common prefix, no object.
        content_type, headers, status, url, http_version: of the answer, as far as the store's protocol has them; header
            names are lower case.
    """

    key: str
    size: int | None
    etag: str | None = None
    modified: float | None = None
    is_prefix: bool = False
    content_type: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    status: int = 200
    url: str | None = None
    http_version: str | None = None


def check_range(offset: int, size: int | None, uri: str) -> None:
    """Raise ValueError for a range that no object has, before anything is asked of a server."""
    if offset < 0 or (size is not None and size < 0):
        raise ValueError(f"{masked(uri)}: offset and size must not be negative, got offset={offset}, size={size}")


class Body:
    """An answer whose bytes come in chunks; a context manager. Closing it early gives the connection back.

    Attributes:
        info: of the object; `size` counts the whole object, also when a range was asked for.
    """

    def __init__(self, info: ObjectInfo, chunks: Iterator[BytesLike], close: Callable[[], None] | None = None) -> None:
        self.info = info
        self._chunks = chunks
        self._close = close

    def __iter__(self) -> Iterator[BytesLike]:
        return self._chunks

    def close(self) -> None:
        """Stop reading; more than once is fine."""
        close, self._close = self._close, None
        if close is not None:
            close()

    def __enter__(self) -> Body:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Upload(ABC):
    """An object that is written in parts: it appears whole on `complete`, never on `abort`."""

    @abstractmethod
    def write(self, data: BytesLike) -> None:
        """Add bytes at the end; waits when too many parts are in flight. The data is not kept after the call returns
        unless it is `bytes`."""

    @abstractmethod
    def complete(self) -> str | None:
        """Make the object appear; its ETag without quotes, None where there is none."""

    @abstractmethod
    def abort(self) -> None:
        """Drop what was written; more than once, and after an error, is fine."""


class Store(ABC):
    """One bucket, host, repository or file system.

    Attributes:
        scheme: under which it was opened.
        name: of the bucket, for messages.
        streams_writes: whether `upload` holds at most a few parts in memory.
    """

    scheme: str
    name: str
    streams_writes: bool = False

    # ---------------------------------------------------------------- reading

    @abstractmethod
    def get(
        self,
        key: str,
        offset: int = 0,
        size: int | None = None,
        *,
        if_match: str | None = None,
        headers: Mapping[str, str] | None = None,
        limit: int | None = None,
    ) -> BytesLike:
        """The bytes of an object, or `size` of them from `offset`, cut short at its end.

        Args:
            if_match: the ETag that the object must still have; another one is a ChangedError.
            headers: of the request, for stores that speak plain http.
            limit: largest number of bytes that may come; more is a ResponseTooLargeError, told before they are read.

        Raises:
            RangeError: `offset` lies behind the end (an object that ends at `offset` gives b"" where the store allows).
        """

    def get_into(self, key: str, offset: int, out: memoryview, *, if_match: str | None = None) -> int:
        """Fill `out`, writable bytes, from `offset`; how many were there."""
        data = self.get(key, offset, len(out), if_match=if_match)
        out[: len(data)] = data
        return len(data)

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]], *, if_match: str | None = None) -> list[BytesLike]:
        """Several (offset, size) ranges of one object, each cut short at its end; near ones come by one request, several
        requests at a time, all of one version where the store tells versions."""
        for offset, size in ranges:
            check_range(offset, size, self.uri(key))
        groups = grouped(ranges)
        found: list[BytesLike] = [b""] * len(ranges)
        if len(groups) > 1 and if_match is None:
            if_match = self.head(key).etag

        def read(group: tuple[int, int, list[int]]) -> None:
            begin, size, members = group
            data = memoryview(self.get(key, begin, size, if_match=if_match))
            for at in members:
                start, length = ranges[at]
                if start > begin + len(data):  # behind the end: the store says what that is
                    found[at] = self.get(key, start, length, if_match=if_match)
                else:
                    found[at] = data[start - begin : start - begin + length]

        if len(groups) <= 1:
            for group in groups:
                read(group)
        else:
            with ThreadPoolExecutor(min(RANGES_AT_ONCE, len(groups)), "dataio-range") as pool:
                for future in [pool.submit(read, group) for group in groups]:
                    future.result()
        return found

    @abstractmethod
    def open(
        self,
        key: str,
        offset: int = 0,
        size: int | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        limit: int | None = None,
    ) -> Body:
        """The bytes in chunks, as they come; a body that breaks off is resumed by range while its version is the same."""

    @abstractmethod
    def head(self, key: str, *, headers: Mapping[str, str] | None = None) -> ObjectInfo:
        """What is known of an object without reading it."""

    def exists(self, key: str, *, headers: Mapping[str, str] | None = None) -> bool:
        """Whether there is such an object, now: nothing is remembered between calls. 403 raises."""
        try:
            self.head(key, headers=headers)
        except FileNotFoundError:
            return False
        return True

    def list(self, prefix: str, *, delimited: bool = False) -> Iterator[ObjectInfo]:
        """The objects whose keys begin with `prefix` (a plain string), in the order of the store, page after page.

        Args:
            delimited: one level only: keys without a "/" behind the prefix, and common prefixes for the others.
        """
        raise self.cannot("list", "it has no listing")

    # ---------------------------------------------------------------- writing

    def put(self, key: str, data: BytesLike, *, content_type: str | None = None) -> str | None:
        """Write a whole object, in parts where it is large; its ETag without quotes."""
        raise self.cannot("write", "it can only be read")

    def upload(self, key: str, *, content_type: str | None = None) -> Upload:
        """Begin an object that is written in parts."""
        raise self.cannot("write", "it can only be read")

    def delete(self, key: str) -> None:
        """Remove an object; one that is not there is fine."""
        raise self.cannot("delete", "it can only be read")

    def delete_many(self, keys: Iterable[str]) -> None:
        """Remove objects, many by one request where the store can."""
        for key in keys:
            self.delete(key)

    def copy(self, key: str, to: Store, to_key: str) -> None:
        """Copy on the server's side to a store for which `copies_to` is true."""
        raise self.cannot("copy", "it cannot copy on its own side")

    def copies_to(self, to: Store) -> bool:
        """Whether `copy` to that store works without moving the bytes through this process."""
        return False

    def sign(self, key: str, *, expires: int, method: str) -> str:
        """A URL that lets whoever holds it make one kind of request for `expires` seconds."""
        raise self.cannot("sign", "it has no signed URLs")

    # ---------------------------------------------------------------- messages

    def uri(self, key: str) -> str:
        """The URI of a key of this store."""
        return str(Uri(self.scheme, self.name, key))

    def cannot(self, verb: str, why: str) -> UnsupportedError:
        """The error of a verb that this store lacks."""
        return UnsupportedError(f"{verb} does not work on {self.scheme}:// : {why}")

    def close(self) -> None:  # noqa: B027  (most stores hold nothing)
        """Give back connections and files; the store is not used afterwards."""


StoreFactory: TypeAlias = Callable[[Uri], Store]
"""Makes the store that serves a URI. Stores are kept and shared by all URIs of one scheme and bucket."""


class _Stores:
    """The factories by scheme, and the stores that were opened."""

    def __init__(self) -> None:
        self.factories: dict[str, StoreFactory] = {}
        self.open: dict[tuple[Any, ...], Store] = {}
        self.lock = threading.Lock()
        self.process = os.getpid()
        new_lock_in_child(self, "lock", threading.Lock)


_stores = _Stores()


def register_store(scheme: str, factory: StoreFactory) -> None:
    """Serve `scheme://...` by stores that `factory` makes, in every verb, handle, source and command.

    A scheme that is registered already, also one of dataio's own, is replaced.

    Args:
        scheme: letters, digits, `+`, `-` and `.`, beginning with a letter, two characters at least; case does not matter.
        factory: called with a `Uri` of that scheme, whose `key` is all that stands behind "://"; it gives a `Store`.

    Raises:
        ValueError: not a scheme.
        TypeError: a factory that cannot be called.
    """
    if not isinstance(scheme, str) or not re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]+", scheme):
        raise ValueError(f"{scheme!r} is no URI scheme: it wants letters, digits, '+', '-' and '.', such as 'sftp'")
    if not callable(factory):
        raise TypeError(f"the factory of {scheme}:// must be callable, got {factory!r}")
    with _stores.lock:
        _stores.factories[scheme.lower()] = factory
    forget_stores(scheme.lower())


def forget_stores(scheme: str | None = None) -> None:
    """Let go of stores, so that the next request opens new ones: of one scheme, or all. Requests under way end normally."""
    with _stores.lock:
        gone = [at for at in _stores.open if scheme is None or at[0] == scheme]
        for at in gone:
            del _stores.open[at]


def open_store(uri: Uri | Any, *, bucket_alone: bool = False, cache: Any = None) -> tuple[Store, str]:
    """The store that serves a URI, and the key there.

    Args:
        cache: keeps whole objects of remote stores on this machine: a directory or a `dataio.Cache`; None takes that of
            `reading_through` or else `DATAIO_CACHE_DIR` as it is when the bucket is first opened, False none.

    Raises:
        TypeError, UriError: as `parse_uri` does.
        UnsupportedSchemeError: nobody serves the scheme.
        CredentialsError: the store cannot be reached as configured.
        MissingDependencyError: the package that serves the scheme is not installed.
    """
    parsed = uri if isinstance(uri, Uri) else parse_uri(uri, bucket_alone=bucket_alone)
    at: tuple[Any, ...] = parsed.scheme, parsed.bucket
    if cache is None:
        cache = _reading_through.get()
    if cache is not None:
        from .cache import as_cache

        cache = as_cache(cache) or False
        at = *at, cache
    if _stores.process != os.getpid():  # connections do not survive a fork
        _stores.process = os.getpid()
        _stores.open.clear()
    store = _stores.open.get(at)
    if store is None:
        made = _made(parsed) if cache is None else _rewrapped(parsed, cache)
        with _stores.lock:
            store = _stores.open.setdefault(at, made)
            while len(_stores.open) > CLIENT_CACHE.get():  # the one opened first goes
                _stores.open.pop(next(iter(_stores.open)))
    return store, parsed.key


_reading_through: ContextVar[Any] = ContextVar("dataio_reading_through", default=None)


@contextmanager
def reading_through(cache: Any) -> Iterator[None]:
    """Let the calls of this thread that name no cache of their own use this one; None changes nothing."""
    if cache is None:
        yield
        return
    token = _reading_through.set(cache)
    try:
        yield
    finally:
        _reading_through.reset(token)


def _made(parsed: Uri) -> Store:
    made = _factory(parsed.scheme)(parsed)
    if not CACHE_DIR.current:
        return made
    from .cache import as_cache, cached

    return cached(made, as_cache(None))


def _rewrapped(parsed: Uri, cache: Any) -> Store:
    """The store that is open already, in front of it another cache, or none where that is False."""
    from .cache import cached

    with _stores.lock:
        found = _stores.open.get((parsed.scheme, parsed.bucket))
    return cached(_factory(parsed.scheme)(parsed) if found is None else found, cache or None)


def _factory(scheme: str) -> StoreFactory:
    found = _stores.factories.get(scheme)
    if found is not None:
        return found
    if scheme == "file":
        from .stores.local import LocalStore

        return lambda uri: LocalStore()
    if scheme in ("http", "https"):
        from .stores.http import HttpStore

        return HttpStore.of
    if scheme in ("s3", "r2", "gs", "az"):
        from .stores.object import open_object_store

        return open_object_store
    if scheme in ("hf", "hfd"):
        from .stores.hub import HubStore

        return HubStore.of
    from .stores.fsspec import FsspecStore, fsspec_knows

    if fsspec_knows(scheme):
        return FsspecStore.of
    raise UnsupportedSchemeError(f"unknown scheme {scheme}://{did_you_mean(scheme, known_schemes())}; known: " + ", ".join(known_schemes()))


def check_scheme(scheme: str) -> None:
    """Raise UnsupportedSchemeError for a scheme that nobody serves; nothing is opened."""
    _factory(scheme)


def known_schemes() -> list[str]:
    """Every scheme that a store serves, sorted; fsspec's among them."""
    from .stores.fsspec import fsspec_schemes

    own = ("file", "http", "https", "s3", "r2", "gs", "az", "hf", "hfd")
    return sorted({*own, *_stores.factories, *fsspec_schemes()})
