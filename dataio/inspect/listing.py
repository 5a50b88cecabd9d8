"""The files that a URI means: itself, those a pattern or a range of shards matches, those in a folder."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from ..io.errors import ObjectNotFoundError
from ..sources.files import files
from ..sources.webdataset import expanded

UriLike: TypeAlias = str | os.PathLike[str]
_RANGE = re.compile(r"\{[0-9]+\.\.[0-9]+\}")


def listed(uris: UriLike | Sequence[UriLike]) -> tuple[list[str], bool]:
    """Paths and URIs of files, each once, in order; and whether they were all named one by one.

    Args:
        uris: each a file, a folder (all below it that is not hidden), a pattern (`*`, `?`, `[...]`, `**`), or shards with one range
            such as `{0000..0099}`, of which each must be there.

    Raises:
        FileNotFoundError: nothing is there, or nothing matches.
        ValueError, OSError: as `dataio.files` says.
    """
    several: Iterable[UriLike] = [uris] if isinstance(uris, (str, os.PathLike)) else uris
    found: dict[str, None] = {}
    named = True
    for uri in several:
        name = os.fsdecode(os.fspath(uri))
        if _RANGE.search(name):
            found.update(dict.fromkeys(expanded(name)))
            continue
        matching = list(files(name))
        if not matching:
            raise ObjectNotFoundError("no such file, and nothing matches", uri=name)
        named = named and matching == [name]
        found.update(dict.fromkeys(matching))
    return list(found), named
