"""Listings by obstore, where the package of the provider is not installed.

obstore takes prefixes for folders and strips slashes from names, so the folder around the prefix is listed and filtered,
and what may be a stripped name (`dir/` comes as `dir`, always empty as folder markers are) is looked up.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..errors import StoreError
from ..retry import PassingError
from ..store import ObjectInfo
from .download import bare_etag
from .object_errors import translated

if TYPE_CHECKING:
    from .object import ObjectStore


def listed(store: ObjectStore, client: Any, prefix: str, delimited: bool) -> Iterator[ObjectInfo]:
    """The keys that begin with `prefix`.

    Raises:
        StoreError: the bucket holds a name that obstore cannot express.
    """
    folder = prefix.rpartition("/")[0]
    seen = ""
    for info in _all(store, client, folder):
        if not info.key.startswith(prefix):
            continue
        if info.size == 0 and not store.exists(info.key):
            raise _inexpressible(store, f"{info.key!r} with a slash at its begin or end")
        behind = info.key[len(prefix) :]
        if delimited and "/" in behind:
            common = prefix + behind[: behind.index("/") + 1]
            if common != seen:
                seen = common
                yield ObjectInfo(common, None, is_prefix=True)
            continue
        yield info


def _all(store: ObjectStore, client: Any, folder: str) -> Iterator[ObjectInfo]:
    import obstore

    try:
        for chunk in obstore.list(client, folder or None, chunk_size=1000):
            for meta in chunk:
                yield ObjectInfo(meta["path"], meta["size"], bare_etag(meta["e_tag"]), meta["last_modified"].timestamp())
    except obstore.exceptions.InvalidPathError as error:
        raise _inexpressible(store, str(error).partition("\n")[0]) from error
    except Exception as error:
        meant = translated(error, store.uri(folder))
        raise (meant.error if isinstance(meant, PassingError) else meant) from error


def _inexpressible(store: ObjectStore, what: str) -> StoreError:
    return StoreError(f"the bucket holds a key that obstore cannot express ({what}); {store.access.missing('listing it')}", uri=store.uri(""))
