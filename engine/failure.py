"""A record that could not be delivered, and why: what travels in its place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Failure:
    """One record that could not be delivered.

    Attributes:
        row: position in the batch as submitted.
        slot, stage, op: where; `op` is the op's name, "read" or "map".
        uri: the path or URI of the source when there is one.
        error: the exception's type name; `message` its text.
        offset: byte of the source at which it goes wrong, or at which the record's part of it begins, when known.
    """

    row: int
    slot: str | None
    stage: str
    op: str
    uri: str | None
    error: str
    message: str
    offset: int | None = None


def failure_of(row: int, slot: str | None, stage: str, op: str, source: Any, error: BaseException) -> Failure:
    text = str(error) or type(error).__name__
    return Failure(row, slot, stage, op, uri_of(source), type(error).__name__, text, offset_of(source, error))


def offset_of(source: Any, error: BaseException) -> int | None:
    """The byte an error is about: where the source's range begins, and how far into it the error says it is."""
    inside = getattr(error, "offset", None)
    start = None
    if isinstance(source, dict):
        span = source.get("range")
        start = span[0] if isinstance(span, (tuple, list)) and span else source.get("offset")
    known = [n for n in (start, inside) if isinstance(n, int) and not isinstance(n, bool) and n >= 0]
    return sum(known) if known else None


def uri_of(source: Any) -> str | None:
    """The path or URI behind a slot's value, when it shows one."""
    if isinstance(source, str):
        return source
    if isinstance(source, dict):
        source = source.get("uri") or source.get("url") or source.get("path")
        return str(source) if source is not None else None
    if hasattr(source, "__fspath__"):
        return str(source.__fspath__())
    uri = getattr(source, "uri", None)
    return uri if isinstance(uri, str) else None
