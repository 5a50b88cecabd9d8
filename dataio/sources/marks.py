"""Whether files are still those that were read first."""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
from collections.abc import Sequence
from typing import Any

from dataio.engine.errors import SourceError
from dataio.io.parallel import for_each
from dataio.io.secrets import masked
from dataio.io.store import open_store
from dataio.io.uri import local_path

Mark = tuple[int, Any]
"""Bytes, and what else tells one content from another: time of change, tag."""


class FileMarks:
    """Sizes and versions of files, noted when they are first asked for. Only metadata is read.

    Args:
        uris: local paths and URIs.
    """

    def __init__(self, uris: Sequence[str]) -> None:
        self._uris = tuple(uris)
        self._first: dict[str, Mark] | None = None

    def check(self) -> None:
        """Compare with what was noted.

        Raises:
            SourceError: a file changed, or is gone; the message names it.
        """
        now = self._now()
        if self._first is None:
            self._first = now
            return
        for uri, mark in self._first.items():
            if now[uri] != mark:
                how = f"{mark[0]:,} bytes then, {now[uri][0]:,} now" if now[uri][0] != mark[0] else "its time of change is another one"
                raise SourceError(
                    f"{masked(uri)} changed since this source first read it ({how}): its rows are others, and their numbers too; make the query "
                    "and bind it again"
                )

    def identity(self) -> dict[str, Any]:
        """What the files are, for a checkpoint: names and sizes, without folders and times, so that a copy elsewhere will do."""
        if self._first is None:
            self.check()
        assert self._first is not None
        sizes = [(posixpath.basename(uri.partition("?")[0]), mark[0]) for uri, mark in self._first.items()]
        digest = hashlib.sha256(json.dumps(sizes).encode()).hexdigest()[:16]
        return {"files": len(sizes), "bytes": sum(size for _, size in sizes), "names and sizes": digest}

    def _now(self) -> dict[str, Mark]:
        found: dict[str, Mark] = dict.fromkeys(self._uris, (0, None))
        remote = [uri for uri in found if local_path(uri) is None]
        for uri in found:
            if (path := local_path(uri)) is not None:
                found[uri] = _local(uri, path)

        def head(uri: str) -> None:
            store, key = open_store(uri)
            info = store.head(key)
            found[uri] = info.size or 0, str(info.etag or info.modified)

        for_each(head, remote)
        return found

    def __reduce__(self) -> tuple[type[FileMarks], tuple[Sequence[str]]]:
        return type(self), (self._uris,)


def _local(uri: str, path: Any) -> Mark:
    try:
        info = os.stat(path)
    except FileNotFoundError as error:
        raise SourceError(f"{masked(uri)} is gone") from error
    return info.st_size, info.st_mtime_ns
