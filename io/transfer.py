"""Verbs over trees: `copy`, `sync`, and removing all that lies below a prefix."""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from .errors import UriError
from .parallel import WORKERS, Progress, check_stop, for_each
from .store import Body, ObjectInfo, Store, open_store
from .uri import BUCKET_SCHEMES, Uri, parse_uri
from .verbs import UriLike, entries, missing, uri_of

WHOLE_BELOW = 1 << 23
"""Bytes up to which an object is copied by one read and one write, instead of as a stream."""
_STREAMS = 4
"""Larger objects that one verb copies at once: each holds a few parts in memory."""
_DELETED_AT_ONCE = 1000
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
    def of(cls, uri: UriLike | Uri, *, cache: Any = None) -> Tree:
        parsed = uri if isinstance(uri, Uri) else parse_uri(uri, bucket_alone=True)
        store, key = open_store(parsed, cache=cache)
        return cls(store, key if not key or key.endswith("/") else f"{key}/")

    def names(self, to: Tree | None = None) -> Iterator[tuple[str, ObjectInfo]]:
        """What is in it: the part of each key behind the root.

        Args:
            to: the tree that it is to be copied to. Empty objects that stand for folders are left out of local ones.
        """
        for info in self.store.list(self.root):
            name = info.key[len(self.root) :]
            marks_folder = name.endswith("/") and info.size == 0 and to is not None and to.store.scheme == "file"
            if name and not info.is_prefix and not marks_folder:
                yield name, info

    def key(self, name: str) -> str:
        """The key of a name in it.

        Raises:
            UriError: a local tree, and a name that would leave it or cannot be a file's.
        """
        if self.store.scheme == "file" and (
            "\0" in name or (os.sep != "/" and os.sep in name) or not {"", ".", ".."}.isdisjoint(name.split("/"))
        ):
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
    store, key = open_store(source, cache=False)  # what is copied is what is there now
    local, copier = source.scheme == "file", _Copier()
    if not recursive:
        folder = os.path.isdir(key) if local else not key or (key.endswith("/") and not _is_object(store, key))
        if folder:
            raise IsADirectoryError(f"{source} is a folder: copy it with recursive=True")
        copier.copy(store, key, *_target(dst, _name(key)))
        return
    if key and not (not local and key.endswith("/")) and _is_object(store, key):
        into = Tree.of(dst)
        copier.copy(store, key, into.store, into.key(_name(key)))
        return
    if local and not os.path.isdir(key):
        raise missing(source)
    tree, into = Tree.of(source, cache=False), Tree.of(dst)
    _check_apart(tree, into)

    def one(item: tuple[str, ObjectInfo]) -> None:
        name, info = item
        copier.copy(store, info.key, into.store, into.key(name))

    if not for_each(one, tree.names(into), workers=workers, progress=progress, label="copy") and not local:
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
        strategy: what counts as different beside what is missing. "size": another size, or another ETag where both are the
            MD5 of what was written (S3 and R2, not written in parts and not under a KMS key); "mtime": that, or the source
            changed after the copy was made, by the clocks of the two stores, whole seconds unless both are local;
            "checksum": another size or MD5, for which what has no such ETag is read.
        delete: also remove what `src` lacks, and the local folders that become empty by it.
        workers: objects at once, 16 unless said.
        dry_run: only say what would be done.
        progress: see `io.parallel.Progress`.

    Returns:
        "copied" and "deleted", numbers of objects; a dry run adds "copy" and "delete", the URIs in `dst`.

    Raises:
        FileNotFoundError, NotADirectoryError: `src` is not there, or nothing lies behind it; nothing was removed.
        ValueError: unknown strategy, one tree inside the other, a key that cannot be a local file.
        PermissionError, ConnectionError, TimeoutError, OSError: the first error; nothing is removed after one. Before the
            copies only what stands in their way is removed: a file where a folder must be, or the reverse.
    """
    if strategy not in STRATEGIES:
        raise ValueError(f"unknown strategy {strategy!r}; known: {', '.join(STRATEGIES)}")
    source, target = Tree.of(src, cache=False), Tree.of(dst)
    _check_apart(source, target)
    local = source.store.scheme == "file"
    if local and not os.path.isdir(source.root):
        if os.path.exists(source.root.removesuffix("/")):
            raise NotADirectoryError(f"{src} is a file: sync takes a folder, copy takes files")
        raise missing(src)
    wanted = dict(source.names(target))
    if not wanted and not local:
        raise missing(src)  # a prefix without objects is not told from a misspelt one
    there = dict(target.names())
    for name in wanted:
        target.key(name)  # one that cannot be is told before anything is done
    both = [name for name in wanted if name in there]
    differ = set(wanted) - set(both)

    def compare(name: str) -> None:
        if _differs(source, wanted[name], target, there[name], strategy):
            differ.add(name)

    if strategy == "checksum":
        for_each(compare, both, workers=workers)
    else:
        for name in both:
            compare(name)
    extra = sorted(set(there) - set(wanted)) if delete else []
    copied = sorted(differ)
    told: dict[str, Any] = {"copied": len(copied), "deleted": len(extra)}
    if dry_run:
        return told | {what: [_uri(target, name) for name in names] for what, names in (("copy", copied), ("delete", extra))}
    copier = _Copier()

    def one(name: str) -> None:
        copier.copy(source.store, wanted[name].key, target.store, target.key(name))

    if target.store.scheme not in BUCKET_SCHEMES:  # where a name may be a file and a folder
        in_the_way = set(_in_the_way(extra, copied))
        _remove(target, sorted(in_the_way), workers)
        extra = [name for name in extra if name not in in_the_way]
    for_each(one, copied, workers=workers, progress=progress, total=len(copied), label="sync")
    _remove(target, extra, workers)
    return told


def _in_the_way(extra: Iterable[str], wanted: Iterable[str]) -> Iterator[str]:
    """Files where folders must be, and files in folders where files must be."""
    files = set(wanted)
    folders = {folder for name in files for folder in _folders_of(name)}
    return (name for name in extra if name in folders or not files.isdisjoint(_folders_of(name)))


def _folders_of(name: str) -> list[str]:
    """"a/b/c" lies in "a" and "a/b", the inner one last."""
    return [name[:at] for at, character in enumerate(name) if character == "/"]


def _remove(tree: Tree, names: list[str], workers: int | None) -> None:
    """Remove files of a tree, and the folders that become empty by it."""
    _delete(tree.store, [tree.root + name for name in names], workers)
    if tree.store.scheme == "file":
        for folder in sorted({folder for name in names for folder in _folders_of(name)}, key=len, reverse=True):
            with suppress(OSError):  # not empty
                os.rmdir(tree.root + folder)


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


def _delete(store: Store, keys: Iterable[str], workers: int | None) -> None:
    """Remove objects, up to a thousand by one call, in case the store takes many by one request."""
    found = list(keys)  # a listing may skip objects when others go meanwhile
    many = min(_DELETED_AT_ONCE, -(-len(found) // (workers or WORKERS))) or 1
    for_each(store.delete_many, [found[at : at + many] for at in range(0, len(found), many)], workers=workers)


# -------------------------------------------------------------------- one object


class _Copier:
    """Copies objects for one verb, in several threads."""

    def __init__(self) -> None:
        self._streams = threading.Semaphore(_STREAMS)

    def copy(self, store: Store, key: str, to: Store, to_key: str) -> None:
        """Copy one object; local folders are made."""
        if store.scheme == to.scheme and store.name == to.name and _same(store, key, to_key):
            store.head(key)  # there is nothing to do, if it is there
            return
        if to.scheme == "file" and (folder := os.path.dirname(to_key)):
            os.makedirs(folder, exist_ok=True)
        if store.copies_to(to):
            store.copy(key, to, to_key)
            return
        with store.open(key) as body:
            if body.info.size is not None and body.info.size <= WHOLE_BELOW:
                to.put(to_key, b"".join(_steps(body)), content_type=body.info.content_type)
                return
            with self._streams:
                upload = to.upload(to_key, content_type=body.info.content_type)
                try:
                    for chunk in _steps(body):
                        upload.write(chunk)
                    check_stop()
                    upload.complete()
                except BaseException:
                    upload.abort()
                    raise


def _steps(body: Body) -> Iterator[Any]:
    """The chunks, as long as somebody waits for them."""
    for chunk in body:
        check_stop()
        yield chunk


def _is_object(store: Store, key: str) -> bool:
    """Whether there is a file or object, not a folder, of that name."""
    try:
        return not store.head(key).is_prefix
    except (FileNotFoundError, NotADirectoryError):
        return False


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
    tree = Tree.of(parsed)
    return tree.store, tree.key(name)


def _uri(tree: Tree, name: str) -> str:
    return uri_of(tree.store, ObjectInfo(tree.root + name, None))


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
    if strategy == "mtime" and info.modified is not None and there.modified is not None:
        if source.store.scheme == target.store.scheme == "file":
            return info.modified > there.modified
        return int(info.modified) > int(there.modified)  # stores tell whole seconds
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
        for chunk in _steps(body):
            digest.update(chunk)
    return digest.hexdigest()
