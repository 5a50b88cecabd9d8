"""Checks of numbers that callers give."""

from __future__ import annotations

from typing import Any


def check_count(name: str, number: Any, least: int = 0) -> None:
    """Refuse what is no whole number of at least `least`.

    Raises:
        TypeError: no int; a bool is none either.
        ValueError: too small.
    """
    if isinstance(number, bool) or not isinstance(number, int):
        raise TypeError(f"{name} must be an integer, got {number!r}")
    if number < least:
        raise ValueError(f"{name} must not be negative, got {number}" if least == 0 else f"{name} must be at least {least}, got {number}")
