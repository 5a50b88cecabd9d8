"""Ranges of one object, brought together into few requests."""

from __future__ import annotations

from collections.abc import Sequence

NEAR = 64 << 10
"""Bytes between two ranges up to which one request for both costs less than two requests."""
LARGEST = 16 << 20
"""Bytes of one request above which ranges that only lie near are not brought together."""


def grouped(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int, list[int]]]:
    """Requests as (offset, size, indexes of the ranges inside): every range lies in exactly one of them."""
    groups: list[tuple[int, int, list[int]]] = []
    for at in sorted(range(len(ranges)), key=lambda at: ranges[at]):
        offset, size = ranges[at]
        if groups:
            begin, length, members = groups[-1]
            end = max(begin + length, offset + size)
            if offset <= begin + length or (offset <= begin + length + NEAR and end - begin <= LARGEST):
                members.append(at)
                groups[-1] = (begin, end - begin, members)
                continue
        groups.append((offset, size, [at]))
    return groups
