"""The flat verbs: one request, or one listing, on any URI."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from .arguments import check_count
from .errors import ObjectNotFoundError, UnsupportedError
from .globbing import fixed_part, folder_matcher, has_wildcards, matcher, within_one_folder
from .headers import checked_headers
from .store import BytesLike, ObjectInfo, Store, open_store
from .stores.local import LocalStore
from .stores.local_tree import walk
from .stream import HeadInfo
from .uri import Uri, parse_uri

UriLike: TypeAlias = str | os.PathLike[str]
SIGNED_METHODS = ("GET", "PUT", "HEAD")
LONGEST_SIGNATURE = 604_800
"""Seconds: seven days, what S3 allows."""


# -------------------------------------------------------------------- bytes


def read(
    uri: UriLike,
    *,
    offset: int | None = None,
    size: int | None = None,
    headers: Mapping[str, str] | None = None,
    max_response_bytes: int | None = None,
    cache: Any = None,
) -> bytes:
    """The bytes of a file or object, or a range of them.

    Args:
        uri: a local path, or a URI of any scheme that a store serves; taken as written.
        offset, size: a range, both or neither, in bytes; one that runs past the end is cut short.
        headers: of the request, http and https only.
        max_response_bytes: refuse content that is larger, before it is read.
        cache: a folder that keeps remote objects, or a `Cache`; None takes DATAIO_CACHE_DIR.

    Raises:
        FileNotFoundError, PermissionError, TimeoutError, ConnectionError, IsADirectoryError: as they say.
        ValueError: a URI that names nothing, half a range, a negative one, one that begins behind the end.
        RuntimeError: larger than `max_response_bytes`.
        NotImplementedError: `headers` on a store that does not speak plain http.
    """
    if (offset is None) != (size is None):
        raise ValueError("a range needs both offset and size")
    if offset is not None or max_response_bytes is not None:
        for name, number in (("offset", offset), ("size", size), ("max_response_bytes", max_response_bytes)):
            if number is not None:
                check_count(name, number)
    store, key = open_store(uri, cache=cache)
    if headers is not None:
        checked_headers(store.scheme, headers)
    data = store.get(key, offset or 0, size, headers=headers, limit=max_response_bytes)
    return data if isinstance(data, bytes) else bytes(data)


fetch = read


def fetch_into(uri: UriLike, out: Any, *, offset: int = 0, cache: Any = None) -> int:
    """Fill a buffer with the bytes from `offset` on; large reads go in parallel ranges where that pays.

    Args:
        out: writable and contiguous: a bytearray, memoryview, NumPy array or torch tensor on the CPU.
        offset: of the first byte, in bytes.

    Returns:
        bytes written, fewer than `out` holds where the content ends before.

    Raises:
        as `read` does; TypeError: no buffer, or a read-only one; ValueError: one that is not contiguous.
    """
    view = _writable(out)
    check_count("offset", offset)
    store, key = open_store(uri, cache=cache)
    return store.get_into(key, offset, view)


def _writable(out: Any) -> memoryview:
    """The bytes of a buffer."""
    array = out.numpy() if hasattr(out, "numpy") else out  # a tensor on the CPU shares its memory with its array
    if hasattr(array, "__array_interface__"):
        if not array.flags.c_contiguous:
            raise ValueError("fetch_into fills a buffer from front to back, and this array is not C-contiguous")
        array = array.reshape(-1).view("u1")  # some types, such as datetime64, have no buffer of their own
    try:
        view = memoryview(array)
    except TypeError:
        raise TypeError(f"fetch_into wants a writable buffer, got {type(out).__name__}") from None
    if view.readonly:
        raise TypeError(f"fetch_into writes into its buffer, and this {type(out).__name__} is read-only")
    if not view.c_contiguous:
        raise ValueError("fetch_into fills a buffer from front to back, and this one is not contiguous")
    return view.cast("B")


def write(
    uri: UriLike,
    data: BytesLike,
    *,
    content_type: str | None = None,
    mkdir_parents: bool = False,
    atomic: bool = True,
) -> str | None:
    """Write a whole file or object; it appears complete or not at all.

    Args:
        data: bytes-like.
        content_type: that an object store keeps with it; local files have none.
        mkdir_parents: make missing folders, local files only.
        atomic: False writes into the local file itself, so that its links and permissions stay.

    Returns:
        the ETag of the new object, None where there is none.

    Raises:
        TypeError: `data` is not bytes-like.
        FileNotFoundError: no such folder or bucket.
        PermissionError, TimeoutError, ConnectionError, OSError: as they say.
        NotImplementedError: a store that cannot be written; `mkdir_parents=True` or `atomic=False` elsewhere than on local files.
    """
    if not isinstance(data, (bytes, bytearray)):
        try:
            view = memoryview(data)
        except TypeError:
            raise TypeError(f"write takes bytes-like data, got {type(data).__name__}") from None
        data = view.cast("B") if view.c_contiguous and view.nbytes else bytes(view)
    parsed = parse_uri(uri)
    check_local_options(parsed, mkdir_parents=mkdir_parents, atomic=atomic)
    store, key = open_store(parsed)
    if isinstance(store, LocalStore):
        store.put(key, data, atomic=atomic, mkdir_parents=mkdir_parents)
        return None
    return store.put(key, data, content_type=content_type)


def check_local_options(uri: Uri, *, mkdir_parents: bool, atomic: bool) -> None:
    """Refuse what only local files can do.

    Raises:
        UnsupportedError: on another store.
    """
    if uri.scheme != "file" and (mkdir_parents or not atomic):
        option = "mkdir_parents=True" if mkdir_parents else "atomic=False"
        raise UnsupportedError(f"{option} is for local files; {uri.scheme}:// has no folders and always writes whole objects")


def delete(uri: UriLike, *, recursive: bool = False, workers: int | None = None) -> None:
    """Remove a file or object; one that is not there is fine.

    Args:
        recursive: everything below a folder, or every object whose key begins with a prefix. That is a plain string:
            `s3://b/run1` takes `run10/x` along, `s3://b/run1/` does not. Without it a folder is left as it is.
        workers: requests at once, 16 unless said.

    Raises:
        PermissionError, ConnectionError, OSError: the first error, once all that was begun has ended.
    """
    from .transfer import delete_tree

    if recursive:
        delete_tree(uri, workers=workers)
        return
    store, key = open_store(uri)
    try:
        store.delete(key)
    except IsADirectoryError:
        pass


# -------------------------------------------------------------------- facts


def head(uri: UriLike, *, headers: Mapping[str, str] | None = None) -> HeadInfo:
    """What is known of a file or object without reading it.

    Raises:
        FileNotFoundError, PermissionError, TimeoutError, ConnectionError: as they say.
    """
    parsed = parse_uri(uri)
    store, key = open_store(parsed)
    if headers is not None:
        checked_headers(store.scheme, headers)
    return HeadInfo.of(parsed, store.head(key, headers=headers))


def exists(uri: UriLike, *, headers: Mapping[str, str] | None = None) -> bool:
    """Whether there is such a file, folder or object, now. A prefix is no object.

    Raises:
        PermissionError: the store does not tell (403 is never "missing").
        TimeoutError, ConnectionError: the store cannot be asked.
    """
    store, key = open_store(uri)
    if headers is not None:
        checked_headers(store.scheme, headers)
    return store.exists(key, headers=headers)


def sign(uri: UriLike, *, expires_secs: int = 3600, method: str = "GET") -> str:
    """A URL that lets whoever holds it make one kind of request, without credentials, until it expires.

    Args:
        expires_secs: 1 to 604800.
        method: GET, PUT or HEAD.

    Raises:
        ValueError: a local path, another method, seconds out of range.
        NotImplementedError: a store without signed URLs.
    """
    parsed = parse_uri(uri)
    verb = method.upper() if isinstance(method, str) else method
    if verb not in SIGNED_METHODS:
        raise ValueError(f"sign knows {', '.join(SIGNED_METHODS)}, not {method!r}")
    if isinstance(expires_secs, bool) or not isinstance(expires_secs, int) or not 1 <= expires_secs <= LONGEST_SIGNATURE:
        raise ValueError(f"expires_secs must be 1 to {LONGEST_SIGNATURE}, got {expires_secs!r}")
    if parsed.scheme == "file":
        raise ValueError("a local file has no URL to sign")
    store, key = open_store(parsed)
    return store.sign(key, expires=expires_secs, method=verb)


# -------------------------------------------------------------------- listings


def ls(uri: UriLike) -> list[str]:
    """All files below a folder, or all objects whose keys begin with a prefix.

    A local folder is walked whole, hidden files included, and gives sorted paths in the form of `uri` (`file://` gives
    absolute paths); a file gives itself, and what is not there nothing. A prefix is a plain string: `s3://b/p` also matches
    `p2/x`, `s3://b` is the whole bucket. URIs come in the store's order.

    Raises:
        PermissionError, ConnectionError, TimeoutError, FileNotFoundError: a bucket that cannot be listed or is not there.
        NotImplementedError: a store without listings.
    """
    return [uri_of(store, info) for store, info in entries(uri) if not info.is_prefix]


def lsd(uri: UriLike) -> list[str]:
    """The folders directly below a folder, sorted; of a store, URIs with a slash at the end.

    Raises:
        as `ls` does.
    """
    parsed = parse_uri(uri, bucket_alone=True)
    store, _ = open_store(parsed)
    found = [uri_of(store, info) for info in store.list(_folder(parsed), delimited=True) if info.is_prefix]
    return sorted(name.rstrip("/") for name in found) if parsed.scheme == "file" else sorted(found)


def glob(pattern: UriLike) -> list[str]:
    """The files, folders and objects that match a pattern, sorted.

    `*` and `?` match within one name, hidden ones too, `**` as a name any number of folders, at the end all that lies below;
    `[...]` is one character, so `[[]` is a bracket itself, and `glob.escape` of the standard library makes a name of any key.
    The same rules hold for local paths, where folders match too, and for keys. Without wildcards: `pattern` itself, if it
    exists.

    Raises:
        as `ls` does, also for a local folder that may hold matches and may not be read.
    """
    parsed = parse_uri(pattern, bucket_alone=True)
    store, key = open_store(parsed)
    if not has_wildcards(key):
        return [str(parsed)] if key and store.exists(key) else []
    matches, fixed = matcher(key), fixed_part(key)
    if parsed.scheme == "file":
        begins = fixed.rpartition("/")[2]
        found = walk(fixed[: len(fixed) - len(begins)], begins, False, folder_matcher(key))
        names = (info.key if key.endswith("/") else info.key.rstrip("/") for info in found)
        return sorted(name.rstrip("/") for name in names if matches(name))
    listed = store.list(fixed, delimited=within_one_folder(key))
    return sorted(uri_of(store, info) for info in listed if not info.is_prefix and matches(info.key))


def entries(uri: UriLike | Uri) -> Iterator[tuple[Store, ObjectInfo]]:
    """What `ls` lists, with all that the store tells; a file or an object of exactly that name is listed as itself."""
    parsed = uri if isinstance(uri, Uri) else parse_uri(uri, bucket_alone=True)
    store, key = open_store(parsed)
    if parsed.scheme != "file":
        for info in store.list(key):
            yield store, info
        return
    if os.path.isdir(key):
        for info in store.list(_folder(parsed)):
            yield store, info
    else:
        try:
            yield store, store.head(key)
        except (FileNotFoundError, NotADirectoryError):
            return


def _folder(uri: Uri) -> str:
    """The prefix of what lies below a folder."""
    key = uri.key
    return key if not key or key.endswith("/") else f"{key}/"


def uri_of(store: Store, info: ObjectInfo) -> str:
    """The URI of what a listing gave."""
    return info.key if store.scheme == "file" else store.uri(info.key)


def missing(uri: object) -> ObjectNotFoundError:
    """The error for a source that is not there."""
    return ObjectNotFoundError("no such file, folder or object", uri=str(uri))
