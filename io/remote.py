"""Which sources are read over a network, told from the value alone."""

from __future__ import annotations

from typing import Any

from .resolve import SOURCE_KEYS
from .uri import scheme_of


def is_remote(value: Any) -> bool:
    """Whether `read_source(value)` would ask a store elsewhere: a URI of a scheme other than `file`, a mapping that names
    one, or a reader of one (what has a true attribute `remote`)."""
    if isinstance(value, str):
        return "://" in value and scheme_of(value) not in (None, "file")
    if isinstance(value, dict):
        if value.get("bytes") is not None:
            return False
        source = next((value[key] for key in SOURCE_KEYS if value.get(key) is not None), None)
        return not isinstance(source, dict) and is_remote(source)
    return getattr(value, "remote", False) is True
