"""Values as one short line of printable text, whatever they hold."""

from __future__ import annotations

from typing import Any

SIZE = 128
"""Pixels of the longer side of a picture, unless said otherwise."""
SHOWN = 200
"""Characters of one value that are shown."""


def one_line(text: str) -> str:
    """Text on one line; what cannot be printed (control characters, half surrogates, marks that turn text around) as escapes."""
    text = " ".join(text.split()).encode("utf-8", "backslashreplace").decode("utf-8")
    return text if text.isprintable() else "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def cut(text: str, most: int = SHOWN) -> str:
    """The text, cut off behind `most` characters."""
    return text if len(text) <= most else f"{text[:most]}..."


def short(value: Any, most: int = SHOWN) -> str:
    """A value on one line of at most `most` characters and an ellipsis."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        shown = repr(bytes(value[:16]))
        return f"{shown}... ({len(value):,} bytes)" if len(value) > 16 else shown
    if isinstance(value, (list, tuple)) and any(isinstance(item, bytes) for item in value):
        return cut(f"[{', '.join(short(item, most) for item in value[:8])}{', ...' if len(value) > 8 else ''}]", most)
    return cut(one_line(str(value[:1000] if isinstance(value, str) else value[:100] if isinstance(value, list) and len(value) > 1000 else value)), most)


def number(value: float) -> str:
    """A number in few characters: whole numbers below a million, and one digit behind the point from a thousand on; else four significant digits."""
    if isinstance(value, int) or (float(value).is_integer() and abs(value) < 1e6):
        return f"{int(value):,}" if abs(value) < 1e15 else f"{value:.4g}"
    return f"{value:,.1f}" if 1e3 <= abs(value) < 1e6 else f"{value:.4g}"


def human(size: int) -> str:
    """A number of bytes: B below 1024, then KiB, MiB, GiB and TiB with two decimals."""
    if size < 1024:
        return f"{size} B"
    value = float(size)
    for unit in ("KiB", "MiB", "GiB"):
        value /= 1024
        if value < 1024:
            return f"{value:.2f} {unit}"
    return f"{value / 1024:.2f} TiB"


def plural(count: int, what: str) -> str:
    """`1 row`, `1,200 rows`."""
    return f"{count:,} {what}{'s' * (count != 1)}"
