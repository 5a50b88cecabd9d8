"""Ways through an HDF5 file that stay inside it.

A file can name others: by external links, by external storage of a data set, and by virtual data sets. Opened by name, HDF5 reads
whatever these name, with the rights of the process; here each step is looked at first, and those are refused.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from ...engine.errors import LimitError, OpError
from ..inputs import missing_key

MAX_HOPS = 64
"""Soft links that are followed on the way to one object; links in a circle end there."""
MAX_DEPTH = 512
"""Groups within groups."""


def absolute(key: str) -> str:
    """The name from the root, `/a/b`."""
    return "/" + "/".join(part for part in key.split("/") if part)


def find(root: Any, key: str, name: str) -> Any:
    """The low-level object (GroupID, DatasetID, TypeID) behind a path; None where there is none.

    Args:
        root: GroupID of the root.
        key: path, with or without the leading slash.
        name: of the file, for messages.

    Raises:
        OpError: the way leads into another file, or in circles.
    """
    from h5py import h5l, h5o

    parts = deque(_encoded(key).split(b"/"))
    here, hops = root, 0
    while parts:
        part = parts.popleft()
        if part in (b"", b"."):
            continue
        if not hasattr(here, "links") or not here.links.exists(part):
            return None
        kind = here.links.get_info(part).type
        if kind == h5l.TYPE_HARD:
            here = h5o.open(here, part)
            continue
        if kind != h5l.TYPE_SOFT:
            where = b":".join(here.links.get_val(part)) if kind == h5l.TYPE_EXTERNAL else b"?"
            raise OpError(f"{name}: {key!r} is a link to another file ({_decoded(where)}), which is not followed")
        hops += 1
        if hops > MAX_HOPS:
            raise OpError(f"{name}: {key!r} leads through more than {MAX_HOPS} soft links, in a circle perhaps")
        target = here.links.get_val(part)
        parts.extendleft(reversed(target.split(b"/")))
        if target.startswith(b"/"):
            here = root
    return here


def data_sets(root: Any, name: str) -> Iterator[str]:
    """Names of all data sets: of each group its own, sorted, then those of its groups, sorted, depth first.

    Soft links to data sets count, those to groups, to nowhere and to other files do not. A group that is reached twice is listed
    once, so circles end.

    Raises:
        LimitError: groups nested deeper than `MAX_DEPTH`.
    """
    from h5py import h5d, h5g, h5l, h5o

    seen = set()
    waiting = [("", root)]
    while waiting:
        path, group = waiting.pop()
        info = h5o.get_info(group)
        if (info.fileno, info.addr) in seen:
            continue
        seen.add((info.fileno, info.addr))
        if path.count("/") > MAX_DEPTH:
            raise LimitError(f"{name} has groups that are nested more than {MAX_DEPTH} deep")
        groups = []
        for raw in sorted(group):
            full = f"{path}/{_decoded(raw)}"
            kind = group.links.get_info(raw).type
            if kind == h5l.TYPE_HARD:
                found = h5o.open(group, raw)
                if isinstance(found, h5d.DatasetID):
                    yield full
                elif isinstance(found, h5g.GroupID):
                    groups.append((full, found))
            elif kind == h5l.TYPE_SOFT and isinstance(_inside(root, full, name), h5d.DatasetID):
                yield full
        waiting.extend(reversed(groups))


def _inside(root: Any, key: str, name: str) -> Any:
    """What `find` gives; None also where the way leads out of the file."""
    try:
        return find(root, key, name)
    except OpError:
        return None


def data_set(root: Any, key: str, name: str, known: Any) -> Any:
    """The DatasetID of a key, whose elements all lie in this file.

    Args:
        known: gives all keys, for the message.

    Raises:
        KeyError: (MissingKeyError) there is none.
        OpError: it, or what it is made of, lies in another file.
    """
    from h5py import h5d

    found = find(root, key, name)
    if not isinstance(found, h5d.DatasetID):
        raise missing_key(name, "data set", absolute(key), known())
    check_inside(root, found, f"{name}: {absolute(key)!r}", MAX_HOPS)
    return found


def check_inside(root: Any, found: Any, what: str, left: int) -> None:
    """Refuse a data set that is stored in, or composed of, other files."""
    from h5py import h5d

    plist = found.get_create_plist()
    if plist.get_external_count():
        raise OpError(f"{what} keeps its elements in another file ({_decoded(plist.get_external(0)[0])}), which is not read")
    if plist.get_layout() != h5d.VIRTUAL:
        return
    if not left:
        raise OpError(f"{what} is made of virtual data sets in a circle")
    for number in range(plist.get_virtual_count()):
        file, source = plist.get_virtual_filename(number), plist.get_virtual_dsetname(number)
        if file != "." or "%" in source:
            raise OpError(f"{what} is made of parts of other files ({file}:{source}), which are not read")
        part = find(root, source, what)
        if isinstance(part, h5d.DatasetID):
            check_inside(root, part, what, left - 1)


def _encoded(key: str) -> bytes:
    return key.encode("utf-8", "surrogateescape")


def _decoded(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")
