"""A cache of remote objects on this machine: whole objects as files, shared by the processes of a user.

Set `DATAIO_CACHE_DIR`, or give `cache=` to a reader or a run; off, nothing is looked at. The ranks of a node that read one
object download it once: the first one writes the file while the others wait. What the files look like, and what happens
to those that were cut, altered or abandoned, stands in `io.cache_files`.

Not `fsspec`'s filecache: it has no limit, no lock between processes and no check of what it finds. Not `diskcache`: its
values are loaded whole, one SQLite database is between all processes, and a download is not shared. Both were looked at
for this; what is left to do here is small.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Literal

from ..engine.forks import new_lock_in_child
from .cache_files import CacheFolder, Entry, Footer, Part
from .config import endpoint_for
from .errors import UnsupportedError
from .secrets import masked
from .settings import CACHE_DIR, CACHE_MAX, CACHE_REVALIDATE, CACHE_VERIFY
from .store import Body, BytesLike, ObjectInfo, Store, Upload, reading_through

_NOT_REMOTE = ("file", "memory", "local")
_CHECKED = 1_000_000
"""Objects remembered as checked by this process; the ones that fall out are checked again."""
_CHUNK = 1 << 20
_DELETED_AT_ONCE = 10_000
_KEPT_HEADERS = (
    "accept-ranges",
    "cache-control",
    "content-encoding",
    "content-language",
    "content-length",
    "content-type",
    "etag",
    "last-modified",
)


@dataclass(frozen=True, slots=True)
class Cache:
    """Keep remote objects in a directory of this machine.

    Args:
        directory: where; a folder `dataio-v1` is made in it, which only this user can read.
        max_bytes: of all objects there; the ones that were not used for longest go first. None for no limit.
        revalidate: whether an object may have changed since it was kept. "once": each process asks the store before its
            first use of an object that was kept before the process began. "always": before each use. "never": what is
            kept stays valid, without a request; for data that does not change.
        verify: hash an object again whenever it is read, which notices bytes that the disk altered by itself. What was
            cut or written to is noticed in any case.

    Only reads of whole objects fill it; ranges are served from it. An object goes uncached when the store tells no size,
    or neither an ETag nor a modification time, or says `no-store`, or when it is larger than the limit, or read with
    headers of its own. Writes and deletes through dataio drop what is kept of the object.

    Raises:
        ValueError: a limit below 1, or another word for `revalidate`.
    """

    directory: str
    max_bytes: int | None = None
    revalidate: Literal["once", "always", "never"] = "once"
    verify: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.directory, (str, os.PathLike)):
            raise TypeError(f"the directory of a cache is a str or PathLike, got {type(self.directory).__name__}")
        if not os.fspath(self.directory):
            raise ValueError("the directory of a cache is empty")
        object.__setattr__(self, "directory", os.path.abspath(os.fsdecode(self.directory)))
        if self.max_bytes is not None and (isinstance(self.max_bytes, bool) or not isinstance(self.max_bytes, int)):
            raise TypeError(f"max_bytes is a number of bytes, got {self.max_bytes!r}")
        if self.max_bytes is not None and self.max_bytes < 1:
            raise ValueError(f"max_bytes must be at least 1, got {self.max_bytes}")
        if self.revalidate not in ("once", "always", "never"):
            raise ValueError(f'revalidate is "once", "always" or "never", got {self.revalidate!r}')


def as_cache(value: Any) -> Cache | None:
    """What a `cache=` argument means: a `Cache`, a directory, None for what the environment says, False for none.

    Raises:
        TypeError: something else.
        SettingError: a variable that cannot be used.
    """
    if value is None:
        directory = CACHE_DIR.get()
        if not directory:
            return None
        return Cache(directory, CACHE_MAX.get() * 10**6, CACHE_REVALIDATE.get(), CACHE_VERIFY.get())
    if value is False:
        return None
    if isinstance(value, Cache):
        return value
    if isinstance(value, (str, os.PathLike)):
        return Cache(os.fsdecode(value), CACHE_MAX.get() * 10**6, CACHE_REVALIDATE.get(), CACHE_VERIFY.get())
    raise TypeError(f"cache is a directory, a dataio.Cache, False or None, got {value!r}")


class ThroughCache:
    """A function of one value that reads, made to read through a cache; picklable as the function is."""

    def __init__(self, read: Callable[[Any], Any], cache: Any) -> None:
        self._read = read
        self._cache = as_cache(cache) or False

    def __call__(self, value: Any) -> Any:
        with reading_through(self._cache):
            return self._read(value)


class _Folders:
    """The folders that this process uses, one for each directory and limit."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, int | None], CacheFolder] = {}
        self.lock = threading.Lock()
        new_lock_in_child(self, "lock", threading.Lock)

    def of(self, cache: Cache) -> CacheFolder:
        at = cache.directory, cache.max_bytes
        with self.lock:
            return self.found.setdefault(at, self.found.get(at) or CacheFolder(*at))


_folders = _Folders()


def cached(store: Store, cache: Cache | None) -> Store:
    """The store under `store`, its whole objects kept by `cache`; as it is where there is no cache or it is no remote one."""
    bare = _bare(store)
    return bare if cache is None or bare.scheme in _NOT_REMOTE else CachedStore(bare, cache)


class CachedStore(Store):
    """A remote store whose objects are kept on this machine; its answers are those of the store.

    Attributes:
        inner: the store.
    """

    def __init__(self, inner: Store, cache: Cache) -> None:
        self.inner = inner
        self.scheme, self.name = inner.scheme, inner.name
        self.streams_writes = inner.streams_writes
        self._cache = cache
        self._folder = _folders.of(cache)
        self._place = f"{inner.scheme}\0{endpoint_for(inner.scheme) or ''}\0{inner.name}\0"

    def __getattr__(self, name: str) -> Any:
        """What a kind of store has beside the protocol."""
        if name == "inner":  # not there yet
            raise AttributeError(name)
        return getattr(self.inner, name)

    # ---------------------------------------------------------------- entries

    def _name(self, key: str) -> str:
        return hashlib.sha256((self._place + key).encode(errors="surrogateescape")).hexdigest()

    def _find(self, key: str, name: str, since: float) -> Entry | None:
        """The entry of an object, if the store still has that version as far as the cache's policy asks."""
        entry = self._folder.find(name, verify=self._cache.verify)
        if entry is None:
            return None
        try:
            if self._holds(key, name, entry.footer, since):
                return entry
        except BaseException:
            entry.close()
            raise
        entry.close()
        return None

    def _holds(self, key: str, name: str, footer: Footer, since: float) -> bool:
        policy, checked = self._cache.revalidate, self._folder.checked
        mark = hash((name, footer.etag, footer.modified))
        if policy == "never" or footer.fetched >= (since if policy == "always" else self._folder.opened):
            return True
        if policy == "once" and mark in checked:
            return True
        now = self.inner.head(key)
        if now.size is not None and now.size != footer.size:
            return False
        if now.etag is not None and footer.etag is not None:
            same = now.etag == footer.etag
        else:
            same = now.modified is not None and now.modified == footer.modified
        if same and policy == "once":
            if len(checked) >= _CHECKED:
                checked.clear()
            checked[mark] = None
        return same

    def _whole(self, key: str, limit: int | None) -> Entry | Body:
        """The object: from the cache, or through it, or past it."""
        name, since = self._name(key), time.time()
        if (entry := self._find(key, name, since)) is not None:
            return entry
        with self._folder.writing(name) as part:
            if part is None:
                return self.inner.open(key, limit=limit)
            if (entry := self._find(key, name, since)) is not None:  # another one wrote it while we waited
                return entry
            began = time.time()
            body = self.inner.open(key, limit=limit)
            try:
                return self._keep(key, body, part, began, limit)
            except BaseException:
                body.close()
                raise

    def _keep(self, key: str, body: Body, part: Part, began: float, limit: int | None) -> Entry | Body:
        """Write what comes to the cache; the body itself where it cannot be kept."""
        footer = self._footer(key, part.name, body.info, began)
        if footer is None or not part.reserve(footer.size + len(footer.pack())):
            return body
        digest, at = hashlib.sha256(), 0
        for chunk in body:
            if at + len(chunk) <= footer.size:
                try:
                    part.write(chunk, at)
                except OSError as error:
                    return self._anew(key, body, part, limit, error)
            digest.update(chunk)
            at += len(chunk)
        if at != footer.size:  # the server counts otherwise; nothing to build on
            return self._anew(key, body, part, limit)
        body.close()
        try:
            return part.finish(replace(footer, digest=digest.hexdigest()))
        except OSError as error:
            return self._anew(key, body, part, limit, error)

    def _anew(self, key: str, body: Body, part: Part, limit: int | None, error: OSError | None = None) -> Body:
        """The object again, past the cache, which failed in the middle."""
        body.close()
        part.give_up()
        if error is not None:
            self._folder.complain(error)
        return self.inner.open(key, limit=limit)

    def _footer(self, key: str, name: str, info: ObjectInfo, began: float) -> Footer | None:
        """What to keep beside the bytes, its digest still open; None for an object that is not to be kept."""
        if info.size is None or "no-store" in info.headers.get("cache-control", "").lower():
            return None
        if info.etag is None and info.modified is None:
            return None
        url = info.url if info.url is not None and masked(info.url) == info.url else None
        return Footer(
            name=name,
            uri=masked(self.inner.uri(key)),
            size=info.size,
            digest="0" * 64,
            etag=info.etag,
            modified=info.modified,
            content_type=info.content_type,
            headers={header: info.headers[header] for header in _KEPT_HEADERS if header in info.headers},
            url=url,
            http_version=info.http_version,
            fetched=began,
        )

    def _held(self, key: str, if_match: str | None) -> Entry | None:
        """The entry of an object that is there already: of one version if that is asked for."""
        name = self._name(key)
        if if_match is None:
            return self._find(key, name, time.time())
        entry = self._folder.find(name, verify=self._cache.verify)
        if entry is not None and entry.footer.etag != if_match:
            entry.close()
            return None
        return entry

    def _serves(self, entry: Entry, offset: int, size: int | None, limit: int | None) -> bool:
        """Whether a range is an ordinary one; the store itself has the errors for the others."""
        if offset < 0 or offset >= max(1, entry.footer.size) or (size is not None and size < 0):
            return False
        left = entry.footer.size - offset
        return limit is None or (left if size is None else min(size, left)) <= limit

    # ---------------------------------------------------------------- reading

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
        if not headers:
            whole = offset == 0 and size is None and if_match is None
            found = self._whole(key, limit) if whole else self._held(key, if_match)
            if isinstance(found, Body):
                with found:
                    return b"".join(found)
            if found is not None:
                with found:
                    if self._serves(found, offset, size, limit):
                        return found.read(offset, size)
        return self.inner.get(key, offset, size, if_match=if_match, headers=headers, limit=limit)

    def get_into(self, key: str, offset: int, out: memoryview, *, if_match: str | None = None) -> int:
        entry = self._held(key, if_match)
        if entry is not None:
            with entry:
                if self._serves(entry, offset, len(out), None):
                    return entry.read_into(offset, out)
        return self.inner.get_into(key, offset, out, if_match=if_match)

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]], *, if_match: str | None = None) -> list[BytesLike]:
        entry = self._held(key, if_match)
        if entry is not None:
            with entry:
                if all(self._serves(entry, offset, size, None) for offset, size in ranges):
                    return [entry.read(offset, size) for offset, size in ranges]
        return self.inner.get_ranges(key, ranges, if_match=if_match)

    def open(
        self,
        key: str,
        offset: int = 0,
        size: int | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        limit: int | None = None,
    ) -> Body:
        if not headers:
            found = self._whole(key, limit) if offset == 0 and size is None else self._held(key, None)
            if isinstance(found, Body):
                return found
            if found is not None:
                if self._serves(found, offset, size, limit):
                    return Body(_info(key, found.footer), _chunks(found, offset, size), found.close)
                found.close()
        return self.inner.open(key, offset, size, headers=headers, limit=limit)

    def head(self, key: str, *, headers: Mapping[str, str] | None = None) -> ObjectInfo:
        return self.inner.head(key, headers=headers)

    def exists(self, key: str, *, headers: Mapping[str, str] | None = None) -> bool:
        return self.inner.exists(key, headers=headers)

    def list(self, prefix: str, *, delimited: bool = False) -> Iterator[ObjectInfo]:
        return self.inner.list(prefix, delimited=delimited)

    # ---------------------------------------------------------------- writing

    def _drop(self, key: str) -> None:
        self._folder.remove(self._name(key))

    def put(self, key: str, data: BytesLike, *, content_type: str | None = None) -> str | None:
        try:
            return self.inner.put(key, data, content_type=content_type)
        finally:
            self._drop(key)

    def upload(self, key: str, *, content_type: str | None = None) -> Upload:
        return _CachedUpload(self.inner.upload(key, content_type=content_type), lambda: self._drop(key))

    def delete(self, key: str) -> None:
        try:
            self.inner.delete(key)
        finally:
            self._drop(key)

    def delete_many(self, keys: Iterable[str]) -> None:
        rest = iter(keys)
        while batch := list(islice(rest, _DELETED_AT_ONCE)):
            try:
                self.inner.delete_many(batch)
            finally:
                for key in batch:
                    self._drop(key)

    def copy(self, key: str, to: Store, to_key: str) -> None:
        try:
            self.inner.copy(key, _bare(to), to_key)
        finally:
            if isinstance(to, CachedStore):
                to._drop(to_key)

    def copies_to(self, to: Store) -> bool:
        return self.inner.copies_to(_bare(to))

    def sign(self, key: str, *, expires: int, method: str) -> str:
        return self.inner.sign(key, expires=expires, method=method)

    # ---------------------------------------------------------------- messages

    def uri(self, key: str) -> str:
        return self.inner.uri(key)

    def cannot(self, verb: str, why: str) -> UnsupportedError:
        return self.inner.cannot(verb, why)

    def close(self) -> None:
        self.inner.close()


class _CachedUpload(Upload):
    def __init__(self, inner: Upload, done: Callable[[], None]) -> None:
        self._inner = inner
        self._done = done

    def write(self, data: BytesLike) -> None:
        self._inner.write(data)

    def complete(self) -> str | None:
        try:
            return self._inner.complete()
        finally:
            self._done()

    def abort(self) -> None:
        self._inner.abort()


def _bare(store: Store) -> Store:
    return store.inner if isinstance(store, CachedStore) else store


def _info(key: str, footer: Footer) -> ObjectInfo:
    return ObjectInfo(
        key=key,
        size=footer.size,
        etag=footer.etag,
        modified=footer.modified,
        content_type=footer.content_type,
        headers=dict(footer.headers),
        url=footer.url,
        http_version=footer.http_version,
    )


def _chunks(entry: Entry, offset: int, size: int | None) -> Iterator[BytesLike]:
    end = entry.footer.size if size is None else min(entry.footer.size, offset + size)
    with entry:
        while offset < end:
            data = entry.read(offset, min(_CHUNK, end - offset))
            offset += len(data)
            yield data
