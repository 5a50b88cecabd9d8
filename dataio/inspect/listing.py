"""The files that a URI means: itself, those that a pattern or braces name, those in a folder."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from ..io.errors import ObjectNotFoundError
from ..sources.files import files
from ..sources.patterns import expanded

UriLike: TypeAlias = str | os.PathLike[str]
_BRACES = re.compile(r"\{[^{}]*(\.\.|,)[^{}]*\}")


def listed(uris: UriLike | Sequence[UriLike]) -> tuple[list[str], bool]:
    """Paths and URIs of files, each once, in order; and whether they were all named one by one.

    Args:
        uris: each a file, a folder (all below it that is not hidden), a pattern (`*`, `?`, `[...]`, `**`), or shards with
            ranges `{0000..0099}` or lists `{train,test}`, of which each must be there.

    Raises:
        FileNotFoundError: nothing is there, or nothing matches.
        ValueError, OSError: as `dataio.files` says.
    """
    several: Iterable[UriLike] = [uris] if isinstance(uris, (str, os.PathLike)) else uris
    found: dict[str, None] = {}
    named = True
    for uri in several:
        name = os.fsdecode(os.fspath(uri))
        if _BRACES.search(name) and not os.path.exists(name):
            found.update(dict.fromkeys(expanded(name)))
            continue
        matching = list(files(name))
        if not matching:
            raise ObjectNotFoundError("no such file, and nothing matches", uri=name)
        named = named and matching == [name]
        found.update(dict.fromkeys(matching))
    return list(found), named
