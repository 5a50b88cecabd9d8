"""Verbs over trees: `copy`, `sync`, and removing all that lies below a prefix."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .errors import UriError
from .parallel import Progress, for_each
from .store import ObjectInfo, Store, open_store
from .uri import parse_uri
from .verbs import UriLike, entries, missing, uri_of

WHOLE_BELOW = 1 << 23
"""Bytes up to which an object is copied by one read and one write, instead of as a stream."""
STRATEGIES = ("size", "mtime", "checksum")
_MD5 = re.compile(r"[0-9a-fA-F]{32}")


@dataclass(frozen=True, slots=True)
class Tree:
    """A folder, or what lies behind a prefix that ends with a slash.

    Attributes:
        store: that holds it.
        root: the key of everything in it begins with this; empty for a whole bucket.
    """

    store: Store
    root: str

    @classmethod
    def of(cls, uri: UriLike) -> Tree:
        parsed = parse_uri(uri, bucket_alone=True)
        store, key = open_store(parsed)
        if parsed.scheme == "file" and not key.endswith("/"):
            key += "/"
        return cls(store, key if not key or key.endswith("/") else f"{key}/")

    def names(self) -> Iterator[tuple[str, ObjectInfo]]:
        """What is in it: the part of each key behind the root."""
        for info in self.store.list(self.root):
            name = info.key[len(self.root) :]
            if name and not info.is_prefix:
                yield name, info

    def key(self, name: str) -> str:
        """The key of a name in it.

        Raises:
            UriError: a local tree, and a name that would leave it or cannot be a file's.
        """
        if self.store.scheme == "file":
            parts = name.split("/")
            if name.startswith("/") or "\0" in name or any(part in ("", ".", "..") for part in parts) or (os.sep != "/" and os.sep in name):
                raise UriError(f"the key {name!r} cannot be a file below {self.root!r}: it has an empty part, '.' or '..'")
        return self.root + name

    def __str__(self) -> str:
        return self.root if self.store.scheme == "file" else self.store.uri(self.root)


def copy(
    src: UriLike, dst: UriLike, *, recursive: bool = False, workers: int | None = None, progress: Progress | None = None
) -> None:
    """Copy a file or object, or a tree of them, from any store to any.

    On the server's side where the two stores can, else as a stream of which a few parts are in memory. What is there
    already is replaced; local folders are made as needed; a file appears whole or not at all.

    Args:
        src: taken as written: not a pattern.
        dst: a name; with a slash at the end, or an existing local folder, it takes the source in under its own name.
        recursive: `src` is a folder or a prefix, and `src/rel` becomes `dst/rel`; a single file lands as `dst/name`.
        workers: objects at once, 16 unless said.
        progress: see `io.parallel.Progress`.

    Raises:
        FileNotFoundError: no such source.
        IsADirectoryError: a folder without `recursive`.
        ValueError: a key that cannot be a local file, such as `../x`; nothing is written outside `dst`.
        PermissionError, ConnectionError, TimeoutError, OSError: the first error; the copies under way end, no new ones begin.
    """
    source = parse_uri(src, bucket_alone=True)
    store, key = open_store(source)
    local = source.scheme == "file"
    folder = os.path.isdir(key) if local else not key or key.endswith("/")
    if not recursive:
        if folder and (local or not key or not store.exists(key)):
            raise IsADirectoryError(f"{source} is a folder: copy it with recursive=True")
        to, to_key = _target(dst, _name(key))
        copy_object(store, key, to, to_key)
        return
    single = os.path.isfile(key) if local else bool(key) and not folder and store.exists(key)
    if single:
        into = Tree.of(dst)
        copy_object(store, key, into.store, into.key(_name(key)))
        return
    tree, into = Tree.of(src), Tree.of(dst)
    _check_apart(tree, into)
    if local and not os.path.isdir(key):
        raise missing(source)

    def one(item: tuple[str, ObjectInfo]) -> None:
        name, info = item
        copy_object(store, info.key, into.store, into.key(name), info)

    if not for_each(one, tree.names(), workers=workers, progress=progress, label="copy") and not local:
        raise missing(source)


def sync(
    src: UriLike,
    dst: UriLike,
    *,
    strategy: str = "size",
    delete: bool = False,
    workers: int | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Make the tree `dst` hold what the tree `src` holds, copying only what differs.

    Args:
        strategy: what counts as different beside what is missing. "size": another size, or another MD5 where both stores
            give one as the ETag; "mtime": that, or the source changed after the copy was made; "checksum": that, or another
            MD5, for which files without such an ETag are read.
        delete: also remove what `src` lacks.
        workers: objects at once, 16 unless said.
        dry_run: only say what would be done.
        progress: see `io.parallel.Progress`.

    Returns:
        "copied" and "deleted", numbers of objects; a dry run adds "copy" and "delete", the URIs in `dst`.

    Raises:
        FileNotFoundError: `src` is not there; nothing was removed.
        ValueError: unknown strategy, one tree inside the other, a key that cannot be a local file.
        PermissionError, ConnectionError, TimeoutError, OSError: the first error; nothing is removed after one.
    """
    if strategy not in STRATEGIES:
        raise ValueError(f"unknown strategy {strategy!r}; known: {', '.join(STRATEGIES)}")
    source, target = Tree.of(src), Tree.of(dst)
    _check_apart(source, target)
    wanted = dict(source.names())
    local = source.store.scheme == "file"
    if local and not os.path.isdir(source.root):
        raise missing(source)
    there = dict(target.names())
    if not wanted and not local and (there or not delete):
        raise missing(source)  # a prefix without objects is not told from a misspelt one
    differ: list[tuple[str, ObjectInfo]] = []

    def compare(item: tuple[str, ObjectInfo]) -> None:
        name, info = item
        target.key(name)  # a name that cannot be is told before anything is done
        if name not in there or _differs(source, info, target, there[name], strategy):
            differ.append(item)

    for_each(compare, wanted.items(), workers=workers if strategy == "checksum" else 1)
    differ.sort(key=lambda item: item[0])
    extra = sorted(set(there) - set(wanted)) if delete else []
    told: dict[str, Any] = {"copied": len(differ), "deleted": len(extra)}
    if dry_run:
        names = {"copy": [name for name, _ in differ], "delete": extra}
        return told | {what: [_uri(target, target.key(name)) for name in found] for what, found in names.items()}

    def one(item: tuple[str, ObjectInfo]) -> None:
        name, info = item
        copy_object(source.store, info.key, target.store, target.key(name), info)

    for_each(one, differ, workers=workers, progress=progress, total=len(differ), label="sync")
    _delete(target.store, [there[name].key for name in extra], workers)
    return told


def delete_tree(uri: UriLike, *, workers: int | None = None) -> None:
    """Remove a local folder with all in it, or every object whose key begins with a prefix."""
    parsed = parse_uri(uri, bucket_alone=True)
    store, key = open_store(parsed)
    if parsed.scheme == "file":
        import shutil

        if os.path.isdir(key) and not os.path.islink(key):
            shutil.rmtree(key)
        else:
            store.delete(key)
        return
    _delete(store, (info.key for _, info in entries(parsed)), workers)


def _delete(store: Store, keys: Any, workers: int | None) -> None:
    """Remove objects, a thousand by one call where the store takes them so."""

    def batches() -> Iterator[list[str]]:
        batch: list[str] = []
        for key in keys:
            batch.append(key)
            if len(batch) == 1000:
                yield batch
                batch = []
        if batch:
            yield batch

    for_each(store.delete_many, list(batches()), workers=workers)


# -------------------------------------------------------------------- one object


def copy_object(store: Store, key: str, to: Store, to_key: str, info: ObjectInfo | None = None) -> None:
    """Copy one object; `info` is what a listing told of it."""
    if store.scheme == to.scheme and store.name == to.name and _same(store, key, to_key):
        return
    if to.scheme == "file" and (folder := os.path.dirname(to_key)):
        os.makedirs(folder, exist_ok=True)
    if store.copies_to(to):
        store.copy(key, to, to_key)
        return
    if info is not None and info.size is not None and info.size <= WHOLE_BELOW:
        to.put(to_key, store.get(key))
        return
    with store.open(key) as body:
        upload = to.upload(to_key, content_type=body.info.content_type)
        try:
            for chunk in body:
                upload.write(chunk)
            upload.complete()
        except BaseException:
            upload.abort()
            raise


def _same(store: Store, key: str, other: str) -> bool:
    if key == other:
        return True
    return store.scheme == "file" and os.path.exists(other) and os.path.samefile(key, other)


def _name(key: str) -> str:
    return key.rstrip("/").rpartition("/")[2]


def _target(dst: UriLike, name: str) -> tuple[Store, str]:
    """Where a single object goes."""
    parsed = parse_uri(dst, bucket_alone=True)
    into = not parsed.key or parsed.key.endswith("/") or (parsed.scheme == "file" and os.path.isdir(parsed.key))
    if not into:
        return open_store(parsed)
    tree = Tree.of(str(dst) if isinstance(dst, os.PathLike) else dst)
    return tree.store, tree.key(name)


def _uri(tree: Tree, key: str) -> str:
    return uri_of(tree.store, ObjectInfo(key, None))


def _check_apart(source: Tree, target: Tree) -> None:
    if source.store.scheme != target.store.scheme or source.store.name != target.store.name:
        return
    roots = [source.root, target.root]
    if source.store.scheme == "file":
        roots = [os.path.join(os.path.realpath(root), "") for root in roots]
    if roots[0].startswith(roots[1]) or roots[1].startswith(roots[0]):
        raise ValueError(f"{source} and {target} are the same, or one lies inside the other")


def _differs(source: Tree, info: ObjectInfo, target: Tree, there: ObjectInfo, strategy: str) -> bool:
    if info.size != there.size:
        return True
    digests = _digest_told(source.store, info), _digest_told(target.store, there)
    if None not in digests:
        return digests[0] != digests[1]
    if strategy == "mtime":
        return info.modified is not None and there.modified is not None and int(info.modified) > int(there.modified)
    if strategy == "checksum":
        return (digests[0] or _digest(source.store, info.key)) != (digests[1] or _digest(target.store, there.key))
    return False


def _digest_told(store: Store, info: ObjectInfo) -> str | None:
    """The MD5 of the content where the ETag is one: that of an S3 object which was not written in parts."""
    if store.scheme in ("s3", "r2") and info.etag is not None and _MD5.fullmatch(info.etag):
        return info.etag.lower()
    return None


def _digest(store: Store, key: str) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with store.open(key) as body:
        for chunk in body:
            digest.update(chunk)
    return digest.hexdigest()
