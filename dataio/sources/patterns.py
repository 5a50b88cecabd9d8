"""Names of shards: patterns in braces, written out."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from itertools import product
from math import prod
from typing import Any

from dataio.io.uri import parse_uri

NAMES = 1_000_000
"""Shards of a source, at most."""
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"([0-9]+)\.\.([0-9]+)")


def expanded(paths: Any, what: str = "webdataset") -> list[str]:
    """The shards that are named, ranges `{lo..hi}` and lists `{a,b}` written out; the last one of several changes fastest.

    Raises:
        TypeError, ValueError: as `webdataset` does.
    """
    several = [paths] if isinstance(paths, (str, os.PathLike)) else paths
    if isinstance(several, (bytes, bytearray)) or not isinstance(several, Sequence):
        try:
            several = list(several)
        except TypeError:
            several = None
    if several is None or isinstance(several, (bytes, bytearray)):
        raise TypeError(f"{what} takes paths of shards, got {paths!r}")
    found: list[str] = []
    for path in several:
        if not isinstance(path, (str, os.PathLike)):
            raise TypeError(f"{what} takes paths as str or PathLike, got {path!r}")
        name = os.fsdecode(path)
        found += _written_out(name) if "{" in name or "}" in name else [name]
        if len(found) > NAMES:
            raise ValueError(f"{what} takes at most {NAMES:,} shards")
    if not found:
        raise ValueError(f"{what} needs at least one shard")
    for name in found:
        parse_uri(name)
    return found


def _written_out(pattern: str) -> list[str]:
    pieces = _BRACES.split(pattern)  # text, inside, text, inside, ..., text
    if any("{" in text or "}" in text for text in pieces[::2]):
        raise ValueError(f"a brace of the pattern of shards {pattern!r} is not closed, or stands in another one")
    choices = [_choices(inside, pattern) for inside in pieces[1::2]]
    if prod(map(len, choices)) > NAMES:
        raise ValueError(f"the pattern {pattern!r} names more than {NAMES:,} shards")
    texts = pieces[::2]
    return [texts[0] + "".join(map("".join, zip(chosen, texts[1:]))) for chosen in product(*choices)]


def _choices(inside: str, pattern: str) -> list[str]:
    """What stands for one pair of braces."""
    if "," in inside and ".." not in inside:
        names = inside.split(",")
        if "" in names or len(set(names)) < len(names):
            raise ValueError(f"the list {{{inside}}} of the pattern of shards {pattern!r} has an empty or a repeated part")
        return names
    bounds = _RANGE.fullmatch(inside)
    if bounds is None:
        raise ValueError(
            f"a pattern of shards holds ranges of decimal numbers such as {{0000..0099}} or lists such as {{a,b}}, got {pattern!r}"
        )
    low, high = bounds.groups()
    padded = any(len(bound) > 1 and bound[0] == "0" for bound in (low, high))
    width = max(len(low), len(high)) if padded else 0
    if len(high.lstrip("0")) > 18 or len(low.lstrip("0")) > 18 or int(high) < int(low):
        raise ValueError(f"the range of {pattern!r} ends before it begins, or is far too large")
    if int(high) - int(low) >= NAMES or width > 255:
        raise ValueError(f"the range of {pattern!r} names more than {NAMES:,} shards, or names that are too long")
    return [f"{number:0{width}d}" for number in range(int(low), int(high) + 1)]
