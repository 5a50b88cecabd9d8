"""`urls`: records that are objects of any store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dataio.engine.source import IndexedSource, Pass
from dataio.io.reader import reader
from dataio.io.store import open_store

from .records import RecordSource


def urls(uris: Iterable[str], *, headers: Mapping[str, str] | None = None) -> RecordSource:
    """`{"key": uri, "reader": Reader}` for each URI; nothing is read before a record is.

    Args:
        uris: of any scheme, or local paths; taken as they are.
        headers: sent with every request to http and https, and to no other store; not part of any message.

    Raises:
        TypeError: not an iterable of str, or headers of another type.
        ValueError: a URI of an unknown scheme, or one that names nothing.
    """
    if isinstance(uris, (str, bytes)) or not isinstance(uris, Iterable):
        raise TypeError(f"urls takes an iterable of URIs, got {uris!r}")
    named = list(uris)
    schemes = set()
    for uri in named:
        if not isinstance(uri, str):
            raise TypeError(f"a URI is a str, got {uri!r}")
        scheme = uri[: uri.find("://") + 1]
        if scheme not in schemes:  # each once: a store is opened for it
            schemes.add(scheme)
            open_store(uri)
    if headers is not None and not isinstance(headers, Mapping):
        raise TypeError(f"headers must be a mapping of str to str, got {type(headers).__name__}")
    return RecordSource(UrlRows(named, None if headers is None else dict(headers)))


class UrlRows(IndexedSource):
    """Readers by number."""

    def __init__(self, uris: Sequence[str], headers: dict[str, str] | None) -> None:
        self._uris, self._headers = uris, headers

    def describe(self) -> str:
        return f"urls: {len(self._uris)} records"

    def length(self) -> int:
        return len(self._uris)

    def at(self, positions: Sequence[int], pass_: Pass) -> list[Any]:
        return [self._record(self._uris[position]) for position in positions]

    def _record(self, uri: str) -> dict[str, Any]:
        http = self._headers is not None and uri[:8].lower().startswith(("http://", "https://"))
        return {"key": uri, "reader": reader(uri, headers=self._headers) if http else reader(uri)}
