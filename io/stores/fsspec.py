"""The general door: every scheme that fsspec knows, such as `memory://`, `sftp://`, `github://` or `zip://a.txt::s3://b/c.zip`.

Keys are kept as far as the file system keeps them; where it would quietly store an object under another name, the key is
refused. Nothing that fsspec remembers of listings is used.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from ...engine.errors import MissingDependencyError
from ..errors import (
    AccessDeniedError,
    ChangedError,
    DeadlineError,
    ObjectNotFoundError,
    ResponseTooLargeError,
    StoreError,
    TransferError,
    UnsupportedError,
    UriError,
)
from ..secrets import masked
from ..store import Body, BytesLike, ObjectInfo, Store, Upload, check_range
from ..uri import Uri
from .fsspec_files import FileUpload, MemoryUpload, find, forget, is_archive, is_memory, renames, with_parents

CHUNK = 1 << 20
"""Bytes of one chunk of a body."""
_WRAPPERS = frozenset({"async_wrapper", "asyncwrapper", "asynclocal", "blockcache", "cached", "dir", "filecache", "generic", "simplecache"})
"""Schemes of fsspec that hold no bytes of their own."""
_PACKAGES = {"smbclient": "smbprotocol", "git": "pygit2", "yaml": "pyyaml", "dropboxdrivefs": "dropboxdrivefs"}
"""Packages that are called differently from what is imported."""
_VERSIONS = ("etag", "ETag", "generation")
_TIMES = ("mtime", "LastModified", "last_modified", "updated", "modified", "created")
"""Names under which file systems tell the version of an object, and when it was written."""

_NUMBERS = {IsADirectoryError: errno.EISDIR, NotADirectoryError: errno.ENOTDIR, FileExistsError: errno.EEXIST}
_LOST = frozenset({"ConnectionError", "ConnectTimeout", "ClientConnectionError", "ClientConnectorError", "EndpointConnectionError"})
"""What requests, aiohttp and botocore call a connection that failed; none of them a builtin `ConnectionError`."""


def fsspec_schemes() -> list[str]:
    """The schemes that fsspec knows, with their packages installed or not, sorted."""
    import fsspec

    return sorted({*fsspec.available_protocols(), *fsspec.registry} - _WRAPPERS)  # declared, and registered by their class


def fsspec_knows(scheme: str) -> bool:
    """Whether fsspec has a file system of that name."""
    return scheme in fsspec_schemes()


class FsspecStore(Store):
    """One file system of fsspec, or all file systems of one scheme.

    Args:
        fs: serves all keys, below `bucket`; None finds the file system by the URI of each key, as fsspec does.
        scheme: of the URIs.
        bucket: what stands before each key in a path of `fs`; "" for nothing.
    """

    def __init__(self, fs: Any, scheme: str, bucket: str = "") -> None:
        self.fs = fs
        self.scheme = scheme
        self.name = bucket
        self.streams_writes = True

    @classmethod
    def of(cls, uri: Uri) -> FsspecStore:
        """The store of a scheme.

        Raises:
            MissingDependencyError: the package that serves it is not installed.
        """
        import fsspec

        try:
            fsspec.get_filesystem_class(uri.scheme)
        except ImportError as error:
            raise _missing(uri.scheme, error) from error
        return cls(None, uri.scheme)

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
        """As `Store.get`; a range behind the end is empty."""
        self._checked(key, offset, size, headers)
        with self.errors(key):
            fs, path = self._file(key)
            if if_match is not None or limit is not None or size == 0:
                info = self._info(fs, key, path)
                self._match(key, info, if_match)
                _within(limit, info, offset, size, self.uri(key))
                if size == 0:
                    return b""
            whole = offset == 0 and size is None
            try:
                end = None if size is None else offset + size
                data: Any = fs.cat_file(path) if whole else fs.cat_file(path, start=offset, end=end)
            except FileNotFoundError:
                self._not_folder(fs, key, path)
                raise
            except Exception:  # some refuse a range behind the end, each with an error of its own
                if not whole and _begins_behind(self._info(fs, key, path), offset):
                    return b""
                raise
            if limit is not None and len(data) > limit:
                raise _too_large(self.uri(key), len(data), limit)
            return data if isinstance(data, (bytes, bytearray, memoryview)) else bytes(data)

    def open(
        self,
        key: str,
        offset: int = 0,
        size: int | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        limit: int | None = None,
    ) -> Body:
        self._checked(key, offset, size, headers)
        with self.errors(key):
            fs, path = self._file(key)
            info = self._info(fs, key, path)
            self._not_folder(fs, key, path, info)
            _within(limit, info, offset, size, self.uri(key))
            end = None if size is None else offset + size
            if info.size is not None:
                end = info.size if end is None else min(end, info.size)
            if is_memory(fs):  # its files share one position
                chunks = self._ranges(fs, key, path, offset, end)
                return Body(info, chunks, chunks.close)
            file = fs.open(path, "rb")

        def read() -> Iterator[BytesLike]:
            with self.errors(key), file:
                _ = fs  # one that is forgotten closes its files, as an archive does
                at = offset
                if offset:
                    file.seek(offset)
                while (end is None or at < end) and (chunk := file.read(CHUNK if end is None else min(CHUNK, end - at))):
                    at += len(chunk)
                    if limit is not None and at - offset > limit:
                        raise _too_large(self.uri(key), at - offset, limit)
                    yield chunk
                if end is not None and at < end:
                    raise TransferError(f"ended at byte {at} of {end}", uri=self.uri(key))

        return Body(info, read(), file.close)

    def _ranges(self, fs: Any, key: str, path: str, at: int, end: int | None) -> Any:
        """A generator of a body by one request for each chunk."""
        with self.errors(key):
            while end is None or at < end:
                chunk = fs.cat_file(path, start=at, end=at + CHUNK if end is None else min(at + CHUNK, end))
                if not chunk:
                    return
                at += len(chunk)
                yield chunk

    def head(self, key: str, *, headers: Mapping[str, str] | None = None) -> ObjectInfo:
        """As `Store.head`; a folder answers too, with `is_prefix` set."""
        self._checked(key, 0, None, headers)
        with self.errors(key):
            fs, path = self._at(key)
            return self._info(fs, key, path)

    def list(self, prefix: str, *, delimited: bool = False) -> Iterator[ObjectInfo]:
        """As `Store.list`, sorted by key; what lies below the last "/" of `prefix` is held in memory.

        Raises:
            PermissionError: a folder that may not be read.
        """
        chain = prefix.find("::") if self._chained(prefix) else len(prefix)
        head, tail = prefix[:chain], prefix[chain:]
        folder = head[: head.rfind("/") + 1]
        with self.errors(prefix):
            fs, path = self._at(folder + tail)
            path = path.removesuffix("/")
            forget(fs)
            try:
                found = fs.ls(path, detail=True) if delimited else find(fs, path)
            except FileNotFoundError:
                return
            out = []
            for entry in found:
                is_folder = entry.get("type") == "directory"
                name = str(entry["name"]).removeprefix(path).removeprefix("/") + "/" * is_folder
                if (name in ("", "/")) or (is_folder and not delimited) or not (folder + name).startswith(head):
                    continue
                out.append(_told(folder + name + tail, entry, is_folder))
        yield from sorted(out, key=lambda info: info.key)

    # ---------------------------------------------------------------- writing

    def put(self, key: str, data: BytesLike, *, content_type: str | None = None) -> None:
        """Write an object; folders that are missing are made, where the file system has any."""
        with self.errors(key):
            fs, path = self._file(key, "write")
            if renames(fs):
                upload = FileUpload(self, key, fs, path)
                try:
                    upload.write(data)
                    upload.complete()
                except BaseException:
                    upload.abort()
                    raise
                return
            whole = data if isinstance(data, bytes) else bytes(data)
            with_parents(fs, path, lambda: fs.pipe_file(path, whole))

    def upload(self, key: str, *, content_type: str | None = None) -> Upload:
        """Begin an object that is written in parts.

        It appears on `complete`, except on file systems that can neither hold back an object nor rename one: there it
        grows where it will be, and `abort` removes it.
        """
        with self.errors(key):
            fs, path = self._file(key, "write")
            return MemoryUpload(self, key, fs, path) if is_memory(fs) else FileUpload(self, key, fs, path)

    def delete(self, key: str) -> None:
        with self.errors(key):
            fs, path = self._file(key, "delete")
            try:
                fs.rm_file(path)
            except FileNotFoundError:
                pass

    def copy(self, key: str, to: Store, to_key: str) -> None:
        if not isinstance(to, FsspecStore) or not self.copies_to(to):
            raise self.cannot("copy", f"it cannot copy to {to.scheme}:// on its own side")
        with self.errors(key):
            fs, source = self._file(key)
            self._not_folder(fs, key, source)
            _, target = to._file(to_key, "copy")
            if source != target:
                with_parents(fs, target, lambda: fs.cp_file(source, target))

    def copies_to(self, to: Store) -> bool:
        if not isinstance(to, FsspecStore):
            return False
        if self.fs is not None or to.fs is not None or self.scheme != to.scheme:
            return self.fs is not None and self.fs is to.fs
        import fsspec

        # Where a URL names a host or an archive, two keys may lie in different file systems.
        kind = fsspec.get_filesystem_class(self.scheme)
        return not kind._get_kwargs_from_urls(f"{self.scheme}://user@host/path") and not is_archive(kind)

    def sign(self, key: str, *, expires: int, method: str) -> str:
        if method.upper() != "GET":
            raise self.cannot("sign", "its signed URLs are for GET only")
        with self.errors(key):
            fs, path = self._file(key)
            try:
                return str(fs.sign(path, expiration=expires))
            except NotImplementedError as error:
                raise self.cannot("sign", "it has no signed URLs") from error

    def uri(self, key: str) -> str:
        return f"{self.scheme}://{self.name}/{key}" if self.name else f"{self.scheme}://{key}"

    # ---------------------------------------------------------------- keys

    def _chained(self, key: str) -> bool:
        """Whether a key holds a URL inside another one, as `zip://a.txt::s3://b/c.zip` does."""
        return self.fs is None and "::" in key and "://" in key.partition("::")[2]

    def _at(self, key: str) -> tuple[Any, str]:
        """The file system of a key, and the path there."""
        if self.fs is not None:
            return self.fs, f"{self.name}/{key}" if self.name else key
        import fsspec

        url = f"{self.scheme}://{key}"
        if self._chained(key):  # an archive keeps its table of contents: opened anew, it is today's
            fs, path = fsspec.core.url_to_fs(url, skip_instance_cache=True)
            return fs, str(path)
        kind = fsspec.get_filesystem_class(self.scheme)
        options = kind._get_kwargs_from_urls(url)
        try:
            fs = kind(**options, use_listings_cache=False)
        except TypeError:  # one that takes no further options
            fs = kind(**options)
        return fs, str(kind._strip_protocol(url))

    def _file(self, key: str, verb: str = "read") -> tuple[Any, str]:
        """The file system and path of an object.

        Raises:
            UriError: the file system would take another name for it.
            UnsupportedError: it can only be read.
        """
        fs, path = self._at(key)
        if verb != "read" and is_archive(type(fs)):
            raise self.cannot(verb, "an archive can only be read")
        head = key.partition("::")[0] if self._chained(key) else key
        if is_memory(fs):
            kept = head.removeprefix("/") == path.removeprefix("/")
        else:  # some cut off a "#" and what follows, most a "/" at the end
            kept = str(fs._strip_protocol(path)).rpartition("/")[2] == head.rpartition("/")[2]
        if not kept or not head.strip("/"):
            raise UriError(f"{masked(self.uri(key))!r} names no object: {self.scheme}:// cannot keep such a key")
        return fs, path

    # ---------------------------------------------------------------- answers

    def _info(self, fs: Any, key: str, path: str) -> ObjectInfo:
        forget(fs)
        # In memory a name can be both, of which the file is what is read.
        entry = fs.ls(path)[0] if is_memory(fs) and fs.isfile(path) else fs.info(path)
        return _told(key, entry, entry.get("type") == "directory")

    def _not_folder(self, fs: Any, key: str, path: str, info: ObjectInfo | None = None) -> None:
        if (info or self._info(fs, key, path)).is_prefix:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), masked(self.uri(key)))

    def _match(self, key: str, info: ObjectInfo, if_match: str | None) -> None:
        if if_match is not None and info.etag is None:
            raise self.cannot("if_match=", "it tells no ETag")
        if if_match is not None and info.etag != if_match:
            raise ChangedError(f"has ETag {info.etag} now, not {if_match}", uri=self.uri(key))

    def _checked(self, key: str, offset: int, size: int | None, headers: Mapping[str, str] | None) -> None:
        check_range(offset, size, self.uri(key))
        if headers:
            raise self.cannot("headers=", "it is not read by plain requests")

    @contextmanager
    def errors(self, key: str) -> Iterator[None]:
        """Errors of the file system as those of `io.errors`, which name the URI."""
        uri = self.uri(key)
        try:
            yield
        except (StoreError, UnsupportedError, UriError, ResponseTooLargeError, MissingDependencyError):
            raise
        except FileNotFoundError as error:
            raise ObjectNotFoundError("no such object", uri=uri) from error
        except (IsADirectoryError, NotADirectoryError, FileExistsError) as error:
            if error.filename is not None and error.filename == masked(uri):
                raise
            number = _NUMBERS[type(error)]
            raise type(error)(number, os.strerror(number), masked(uri)) from error
        except PermissionError as error:
            raise AccessDeniedError(_said(error), uri=uri) from error
        except TimeoutError as error:
            raise DeadlineError(_said(error), uri=uri) from error
        except ConnectionError as error:
            raise TransferError(_said(error), uri=uri) from error
        except NotImplementedError as error:
            raise self.cannot("this", _said(error)) from error
        except ImportError as error:
            raise _missing(self.scheme, error) from error
        except Exception as error:  # each file system has errors of its own
            kind = TransferError if type(error).__name__ in _LOST else StoreError
            raise kind(_said(error), uri=uri) from error


# -------------------------------------------------------------------- answers


def _told(key: str, entry: Mapping[str, Any], is_folder: bool) -> ObjectInfo:
    etag = next((str(entry[name]) for name in _VERSIONS if entry.get(name)), None)
    moment = next((entry[name] for name in _TIMES if entry.get(name)), None)
    size = entry.get("size")
    return ObjectInfo(
        key=key,
        size=None if is_folder or size is None else int(size),
        etag=None if etag is None else etag.strip('"'),
        modified=_seconds(moment),
        is_prefix=is_folder,
        content_type=entry.get("ContentType") or entry.get("contentType"),
    )


def _seconds(moment: Any) -> float | None:
    if isinstance(moment, str):
        try:
            moment = datetime.fromisoformat(moment)
        except ValueError:
            return None
    if isinstance(moment, datetime):
        return moment.timestamp()
    return float(moment) if isinstance(moment, (int, float)) else None


def _begins_behind(info: ObjectInfo, offset: int) -> bool:
    return info.size is not None and offset >= info.size


def _within(limit: int | None, info: ObjectInfo, offset: int, size: int | None, uri: str) -> None:
    if limit is None or info.size is None:
        return
    left = max(info.size - offset, 0)
    wanted = left if size is None else min(left, size)
    if wanted > limit:
        raise _too_large(uri, wanted, limit)


def _too_large(uri: str, size: int, limit: int) -> ResponseTooLargeError:
    return ResponseTooLargeError(f"{masked(uri)} holds {size} bytes, more than the limit of {limit}")


def _said(error: BaseException) -> str:
    return masked(str(error) or type(error).__name__)


def _missing(scheme: str, error: ImportError) -> MissingDependencyError:
    cause = error.__cause__ if isinstance(error.__cause__, ImportError) else error
    name = (cause.name or "").partition(".")[0]
    install = f"pip install {_PACKAGES.get(name, name)}" if name else str(error)
    return MissingDependencyError(f"{scheme}:// needs a package that is not installed: {install}")
