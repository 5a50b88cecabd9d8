"""Content of members of archives: images, arrays, JSON and text are decoded, the rest is only read."""

from __future__ import annotations

import json
from typing import Any

from ..engine.errors import OpError
from ..formats.npy_header import check_payload, read_npy_header
from .images import check_image, check_name
from .kinds import HEAD, kind_of
from .report import Findings

_TEXT = ("txt", "text", "caption", "cls", "cls2", "index")


def check_member(data: bytes, name: str, found: Findings) -> None:
    """Decode one member by its content, else its name; notes `empty`, `undecodable` and the like under its name."""
    suffix = name.rpartition(".")[2].lower()
    if not data:
        if suffix not in _TEXT:
            found.error("empty", "the member is empty (0 bytes)", name)
        return
    kind = kind_of(name, data[:HEAD])
    if kind.name == "image":
        header = check_image(data, found, name)
        if header is not None:
            check_name(header, name, found, name)
    elif kind.name == "npy":
        try:
            check_payload(read_npy_header(memoryview(data)), len(data))
        except OpError as error:
            found.error("undecodable", str(error), name)
    elif suffix == "json":
        _try(json.loads, data, "JSON", name, found)
    elif suffix in _TEXT:
        _try(lambda raw: bytes(raw).decode("utf-8"), data, "UTF-8 text", name, found)


def _try(decode: Any, data: bytes, what: str, name: str, found: Findings) -> None:
    try:
        decode(data)
    except (ValueError, RecursionError) as error:
        found.error("undecodable", f"is no {what}: {error}", name)
