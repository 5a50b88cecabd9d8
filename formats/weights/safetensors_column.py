"""Many small safetensors files of one layout, as caches of latents are: each read by one system call."""

from __future__ import annotations

import os
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...engine.errors import OpError
from ...engine.registry import register_kernel
from ...io.ranges import open_ranges
from ...io.resolve import OPEN_ANY
from .safetensors import SMALL, read_header

_KNOWN = 64
"""Layouts that are remembered; a data set has one or a few."""
_MISSES = 2
"""Files of another layout after which a column is left to the reading one by one."""


@dataclass(frozen=True, slots=True)
class _Layout:
    """A file that holds one tensor and nothing else: the bytes before the payload, and the size in all."""

    head: bytes
    size: int


_layouts: dict[Hashable, _Layout] = {}


@register_kernel("safetensors", "sources_out", kind="decoder")
def decode_safetensors_column(sources: Sequence[Any], out: np.ndarray, *, tensor_key: str) -> list[int]:
    """The rows whose local files have the layout of the file before: header and tensor in one read, straight into `out`.

    The header that came is compared with the known one, and the number of bytes with the size that it announces, so what is
    taken is what `decode_safetensors` would have given. Everything else is left to that.

    Returns:
        The rows that were filled.
    """
    done: list[int] = []
    if out.dtype.kind == "b" or not out[0].nbytes or not out.flags.c_contiguous:  # bytes of bools are not taken as they are
        return done
    rows = out.reshape(len(out), -1).view(np.uint8)
    kind = (tensor_key, out.dtype, out.shape[1:])
    layout, misses, behind = _layouts.get(kind), 0, bytearray(1)
    for index, source in enumerate(sources):
        if type(source) is not str or "://" in source:
            continue
        if layout is None:
            layout = _layout_of(source, tensor_key, out[index])
            if layout is None or misses == _MISSES:
                return done
            if len(_layouts) >= _KNOWN:
                _layouts.clear()
            _layouts[kind] = layout
        head = bytearray(len(layout.head))
        if _read(source, (head, rows[index], behind)) == layout.size and head == layout.head:
            done.append(index)
        else:
            layout, misses = None, misses + 1
    return done


def _read(path: str, into: Sequence[Any]) -> int:
    """Fill buffers from the start of a file; the number of bytes, -1 where it cannot be read."""
    try:
        descriptor = os.open(path, OPEN_ANY)
        try:
            return os.preadv(descriptor, into, 0)
        finally:
            os.close(descriptor)
    except OSError:  # which the reading of this row by itself tells
        return -1


def _layout_of(path: str, tensor_key: str, row: np.ndarray) -> _Layout | None:
    """The layout of a file whose only content is a tensor like `row`; None of every other."""
    try:
        reader = open_ranges(path)
        try:
            place = read_header(reader).get(tensor_key)
            if place is None or not place.fits(row) or reader.size != place.offset + place.nbytes or place.offset > SMALL:
                return None
            return _Layout(bytes(reader.read(0, place.offset)), reader.size)
        finally:
            reader.close()
    except (OSError, OpError):
        return None
