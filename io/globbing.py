"""Patterns of keys: the rules of local globbing, for names that are no files."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable

_WILD = re.compile(r"[*?\[]")


def has_wildcards(pattern: str) -> bool:
    """Whether a pattern holds a wildcard."""
    return _WILD.search(pattern) is not None


def fixed_part(pattern: str) -> str:
    """What every match begins with: all before the first wildcard."""
    found = _WILD.search(pattern)
    return pattern if found is None else pattern[: found.start()]


def matcher(pattern: str) -> Callable[[str], bool]:
    """Whether a key matches: `*`, `?` and `[...]` within one name, `**` as a name of its own across any number of names."""
    names = pattern.split("/")
    text = ""
    for i, name in enumerate(names):
        last = i == len(names) - 1
        if name == "**":
            text += "(?s:.*)" if last else "(?s:.*/)?"
        else:
            text += _one_name(name) + ("" if last else "/")
    compiled = re.compile(text)
    return lambda key: compiled.fullmatch(key) is not None


def _one_name(name: str) -> str:
    """The regular expression of a pattern without slashes."""
    out, i = "", 0
    while i < len(name):
        character = name[i]
        i += 1
        if character == "*":
            out += "[^/]*"
        elif character == "?":
            out += "[^/]"
        elif character == "[" and (end := _end_of_set(name, i)) is not None:
            # As fnmatch has it: its text is "(?s:" ... ")\\Z", and a set is the same in keys as in file names.
            out += "(?!/)" + fnmatch.translate(f"[{name[i:end]}]")[4:-3]
            i = end + 1
        else:
            out += re.escape(character)
    return out


def _end_of_set(name: str, begin: int) -> int | None:
    """Where the bracket closes; the first character may itself be a bracket. None when it does not."""
    first = begin + 1 if name[begin : begin + 1] in ("!", "^") else begin
    end = name.find("]", first + 1)
    return None if end < 0 else end
