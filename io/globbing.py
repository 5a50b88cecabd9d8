"""Patterns of keys and paths: `*`, `?` and `[...]` within one name, `**` across any number of them."""

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


def within_one_folder(pattern: str) -> bool:
    """Whether all matches lie in one folder: only the last name has wildcards, and is not `**`."""
    folder, _, name = pattern.rpartition("/")
    return name != "**" and not has_wildcards(folder)


def matcher(pattern: str) -> Callable[[str], bool]:
    """Whether a key matches."""
    names = pattern.split("/")
    text = ""
    for i, name in enumerate(names):
        last = i == len(names) - 1
        if name == "**":
            text += "(?s:.+)" if last else "(?s:.*/)?"
        else:
            text += _one_name(name) + ("" if last else "/")
    compiled = re.compile(text)
    return lambda key: compiled.fullmatch(key) is not None


def folder_matcher(pattern: str) -> Callable[[str], bool]:
    """Whether a folder, its path ending with "/", may hold matches: its names match as many of the pattern's."""
    names = pattern.split("/")
    deep = "**" in names
    fixed = names.index("**") if deep else len(names) - 1
    levels = [matcher("/".join(names[:count])) for count in range(1, fixed + 1)]

    def may_hold(folder: str) -> bool:
        parts = folder.split("/")[:-1]
        if len(parts) > fixed and not deep:
            return False
        count = min(len(parts), fixed)
        return count == 0 or levels[count - 1]("/".join(parts[:count]))

    return may_hold


def _one_name(name: str) -> str:
    """The regular expression of a pattern without slashes."""
    out, i = "(?=[^/])" if name and has_wildcards(name) else "", 0  # an empty name is none: `a/*` is not the key `a/`
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
    first = begin + 1 if name[begin : begin + 1] == "!" else begin
    end = name.find("]", first + 1)
    return None if end < 0 else end
