"""The commands over files and objects: what `dataio.cli` parsed, done by the verbs, shown as text or JSON."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from .io.errors import ObjectNotFoundError
from .io.globbing import has_wildcards
from .io.parallel import for_each
from .io.store import ObjectInfo, Store, open_store
from .io.transfer import copy, sync
from .io.uri import HTTP_SCHEMES, Uri, parse_uri
from .io.verbs import delete, entries, exists, glob, sign, uri_of
from .look.text import human


def _cat(args: argparse.Namespace) -> None:
    def chunks() -> Iterator[Any]:
        for uri in _named(args.uris, args.literal):
            store, key = open_store(uri)
            with store.open(key, args.offset, args.size) as body:
                yield from body

    if args.output in (None, "-"):
        out = sys.stdout.buffer
        for chunk in chunks():
            out.write(chunk)
        out.flush()
        return
    store, key = open_store(args.output)
    upload = store.upload(key)
    size = 0
    try:
        for chunk in chunks():
            upload.write(chunk)
            size += len(chunk)
        upload.complete()
    except BaseException:
        upload.abort()
        raise
    print(f"{human(size)} written to {args.output}", file=sys.stderr)


def _ls(args: argparse.Namespace) -> None:
    found: Iterator[tuple[Store, ObjectInfo]] = (
        item for uri in _named(args.uris, args.literal) for item in (_level(uri) if args.one_level else _listed(uri))
    )
    if args.json:
        objects = [_facts(store, info) if args.long else shown(store, info) for store, info in found]
        prefix = args.uris[0] if len(args.uris) == 1 else args.uris
        print(json.dumps({"prefix": prefix, "count": len(objects), "objects": objects}, indent=2))
        return
    for store, info in found:
        size = "" if info.size is None or info.is_prefix else human(info.size)
        print(f"{size:>12}  {shown(store, info)}" if args.long else shown(store, info))


def _listed(uri: str) -> Iterator[tuple[Store, ObjectInfo]]:
    """What `ls` gives; nothing at all is an error, except in a folder or bucket."""
    nothing = True
    for store, info in entries(uri):
        nothing = False
        if not info.is_prefix:
            yield store, info
    if nothing:
        parsed = parse_uri(uri, bucket_alone=True)
        if not (os.path.isdir(parsed.key) if parsed.scheme == "file" else not parsed.key):
            raise ObjectNotFoundError("No such file, folder or prefix", uri=uri)


def _level(uri: str) -> Iterator[tuple[Store, ObjectInfo]]:
    parsed = parse_uri(uri, bucket_alone=True)
    store, key = open_store(parsed)
    if parsed.scheme == "file" and not os.path.isdir(key):
        yield store, store.head(key)
        return
    folder = key if not key or key.endswith("/") else f"{key}/"
    nothing = True
    for info in store.list(folder, delimited=True):
        nothing = False
        yield store, info
    if nothing and key and parsed.scheme != "file":
        yield store, store.head(key)


def _cp(args: argparse.Namespace) -> None:
    progress = Progress("cp", args)
    try:
        copied = _copied(args, progress)
    except IsADirectoryError as error:
        if args.recursive:
            raise
        raise IsADirectoryError(f"{str(error).partition(': copy')[0]}: -r copies what is in it") from error
    if args.json:
        print(json.dumps({"copied": copied, "target": args.target}, indent=2))


def _copied(args: argparse.Namespace, progress: Progress) -> int:
    """Copy; how many objects."""
    if len(args.sources) == 1 and not _is_pattern(args.sources[0], args.literal):
        with progress:
            copy(args.sources[0], args.target, recursive=args.recursive, workers=args.workers, progress=progress.tell)
        return progress.count or 1
    folder = args.target if args.target.endswith("/") else f"{args.target}/"

    def one(source: str) -> None:
        if args.recursive and _is_tree(source):
            copy(source, folder + source.rstrip("/").rpartition("/")[2], recursive=True, workers=args.workers)
        else:
            copy(source, folder)

    with progress:
        return for_each(one, _named(args.sources, args.literal), workers=args.workers, progress=progress.tell)


def _sync(args: argparse.Namespace) -> None:
    with Progress("sync", args) as progress:
        told = sync(
            args.source,
            args.target,
            strategy=args.strategy,
            delete=args.delete,
            workers=args.workers,
            dry_run=args.dry_run,
            progress=progress.tell,
        )
    if args.json:
        print(json.dumps(told, indent=2))
        return
    for what in ("copy", "delete"):
        for uri in told.get(what, ()):
            print(f"{what}  {uri}")
    copied, deleted = ("would copy", "delete") if args.dry_run else ("copied", "deleted")
    print(f"{copied} {told['copied']}, {deleted} {told['deleted']}")


def _rm(args: argparse.Namespace) -> None:
    removed = 0

    def one(uri: str) -> None:
        nonlocal removed
        if not args.recursive:
            _check_there(uri, args.force)
            delete(uri)
            return
        parsed = parse_uri(uri, bucket_alone=True)
        if parsed.scheme == "file" and os.path.realpath(parsed.key) == "/":
            raise ValueError("rm does not remove the root of the file system")
        if not args.force and next(_tree(uri), None) is None and not os.path.lexists(parsed.key):
            raise ObjectNotFoundError("No such file, object or folder", uri=uri)
        if parsed.scheme == "file" or not parsed.key or parsed.key.endswith("/"):
            delete(uri, recursive=True, workers=args.workers)
        else:  # a plain prefix would match p2 beside p
            delete(f"{uri}/", recursive=True, workers=args.workers)
            delete(uri)

    with Progress("rm", args) as progress:
        removed = for_each(one, _named(args.uris, args.literal, none_is_fine=args.force), workers=args.workers, progress=progress.tell)
    if args.json:
        print(json.dumps({"removed": removed}, indent=2))


def _check_there(uri: str, force: bool) -> None:
    parsed = parse_uri(uri)
    if parsed.scheme == "file" and os.path.isdir(parsed.key) and not os.path.islink(parsed.key):
        raise IsADirectoryError(f"{uri} is a folder: -r removes it with all that is in it")
    there = os.path.lexists(parsed.key) if parsed.scheme == "file" else force or exists(uri)
    if not there and not force:
        raise ObjectNotFoundError("No such file or object", uri=uri)


def _du(args: argparse.Namespace) -> None:
    counted: list[dict[str, Any]] = []
    for uri in _named(args.uris, args.literal):
        size = count = 0
        for _, info in _tree(uri):
            size, count = size + (info.size or 0), count + 1
        if not count:
            parsed = parse_uri(uri, bucket_alone=True)
            if parsed.key if parsed.scheme != "file" else not os.path.isdir(parsed.key):
                raise ObjectNotFoundError("No such file, object or folder", uri=uri)
        counted.append({"uri": uri, "bytes": size, "objects": count})
        if not args.json:
            print(f"{human(size):>12}  {count:>9}  {uri}", flush=True)
    total = {"bytes": sum(c["bytes"] for c in counted), "objects": sum(c["objects"] for c in counted)}
    if args.json:
        print(json.dumps({**total, "entries": counted}, indent=2))
    elif len(counted) > 1:
        print(f"{human(total['bytes']):>12}  {total['objects']:>9}  total")


def _sign(args: argparse.Namespace) -> None:
    url = sign(args.uri, expires_secs=args.expires, method=args.method)
    told = {"uri": args.uri, "url": url, "method": args.method, "expires_secs": args.expires}
    print(json.dumps(told, indent=2) if args.json else url)


COMMANDS: dict[str, Callable[[argparse.Namespace], None]] = {
    "cat": _cat,
    "ls": _ls,
    "cp": _cp,
    "sync": _sync,
    "rm": _rm,
    "du": _du,
    "sign": _sign,
}


# -------------------------------------------------------------------- names


def _is_pattern(text: str, literal: bool) -> bool:
    """Whether an argument stands for what matches it: it has wildcards, and nothing is called exactly so."""
    if literal or not has_wildcards(text):
        return False
    parsed = parse_uri(text, bucket_alone=True)
    if parsed.scheme in HTTP_SCHEMES or not has_wildcards(parsed.key):
        return False
    return not exists(text)


def _named(arguments: Iterable[str], literal: bool, *, none_is_fine: bool = False) -> Iterator[str]:
    """The arguments, patterns replaced by what matches them.

    Raises:
        FileNotFoundError: nothing matches a pattern.
    """
    for argument in arguments:
        if not _is_pattern(argument, literal):
            yield argument
            continue
        found = glob(argument)
        if not found and not none_is_fine:
            raise ObjectNotFoundError("nothing matches", uri=argument)
        yield from found


def _is_tree(uri: str) -> bool:
    parsed = parse_uri(uri, bucket_alone=True)
    if parsed.scheme == "file":
        return os.path.isdir(parsed.key)
    return not parsed.key or not exists(uri)


def _tree(uri: str) -> Iterator[tuple[Store, ObjectInfo]]:
    """A file or object, and all that lies in the folder of that name."""
    parsed = parse_uri(uri, bucket_alone=True)
    if parsed.scheme != "file" and parsed.key and not parsed.key.endswith("/"):
        store, key = open_store(parsed)
        try:
            yield store, store.head(key)
        except FileNotFoundError:
            pass
        parsed = Uri(parsed.scheme, parsed.bucket, f"{parsed.key}/")
    yield from ((store, info) for store, info in entries(parsed) if not info.is_prefix)


# -------------------------------------------------------------------- showing


def shown(store: Store, info: ObjectInfo) -> str:
    """The URI of what a listing gave; of local files absolute."""
    return f"file://{os.path.abspath(info.key)}{'/' * info.is_prefix}" if store.scheme == "file" else uri_of(store, info)


def _facts(store: Store, info: ObjectInfo) -> dict[str, Any]:
    return {"uri": shown(store, info), "size": info.size, "etag": info.etag, "modified": info.modified}


class Progress:
    """A bar on stderr, where that is a terminal or was asked for; a context manager.

    Attributes:
        count: objects done.
    """

    def __init__(self, label: str, args: argparse.Namespace) -> None:
        self.count = 0
        self._bar: Any = None
        if args.progress if args.progress is not None else sys.stderr.isatty():
            from tqdm import tqdm

            self._bar = tqdm(desc=label, unit=" objects", dynamic_ncols=True)

    def tell(self, done: int, total: int) -> None:
        """Objects done, of how many as far as known."""
        if self._bar is not None:
            self._bar.total = total if total > done else None
            self._bar.update(done - self.count)
        self.count = done

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._bar is not None:
            self._bar.close()
