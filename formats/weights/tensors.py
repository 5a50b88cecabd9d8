"""What files of named tensors share: element types that NumPy lacks, one tensor's place, and headers that are kept.

NumPy has no bfloat16 and no 8-bit floats. Their arrays hold the bits as unsigned integers in a structure of one field
that carries the name torch uses, such as `[("bfloat16", "<u2")]`: no arithmetic can take the bits for numbers, and who
knows the name (torch output) gives them their meaning without a copy.
"""

from __future__ import annotations

import math
import reprlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from ...engine.errors import OpError, did_you_mean
from ...engine.forks import new_lock_in_child
from ...engine.source import RangeReader

MAX_AXES = 64
"""NumPy's own limit."""
SUGGEST_BELOW = 200
"""Keys up to which a misspelt one is compared with all: the comparison takes time per row."""
_NARROW = {
    "bfloat16": "<u2",
    "float8_e4m3fn": "u1",
    "float8_e5m2": "u1",
    "float8_e4m3fnuz": "u1",
    "float8_e5m2fnuz": "u1",
    "float8_e8m0fnu": "u1",
}


def torch_name(dtype: np.dtype) -> str | None:
    """The torch name of an element type that NumPy lacks, None for NumPy's own."""
    name = dtype.names[0] if dtype.names is not None and len(dtype.names) == 1 else dtype.name  # those of ml_dtypes have no fields
    return name if name in _NARROW else None


def element_type(name: str) -> np.dtype:
    """The dtype of the elements that torch calls `name`: NumPy's own where it has one."""
    return np.dtype([(name, _NARROW[name])]) if name in _NARROW else np.dtype(name)


def bits(array: np.ndarray) -> np.ndarray:
    """The unsigned integers behind an array of a type that NumPy lacks, a view."""
    return array.view(_NARROW[torch_name(array.dtype) or ""])


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """Where a tensor lies in its file: `dtype`, `shape`, C order, from byte `offset` on."""

    dtype: np.dtype
    shape: tuple[int, ...]
    offset: int

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def fits(self, out: np.ndarray) -> bool:
        """True when `out` is an array that the payload can be read into as it stands."""
        return out.shape == self.shape and out.dtype == self.dtype and out.flags.c_contiguous

    def read_into(self, reader: RangeReader, out: np.ndarray) -> None:
        """Read the payload into `out`, which fits."""
        if self.dtype.kind == "V" or not out.size:  # which memoryview cannot cast
            out = out.reshape(-1).view(np.uint8)
        reader.read_into(self.offset, out.data.cast("B"))
        if self.dtype.kind == "b":  # a byte of 2 is no bool to NumPy, whatever the file says
            np.not_equal(out.view(np.uint8), 0, out=out)

    def read(self, reader: RangeReader) -> np.ndarray:
        """The tensor in new memory.

        Raises:
            OSError: the file ends early.
        """
        out = np.empty(self.shape, self.dtype)
        self.read_into(reader, out)
        return out


def check_shape(what: str, shape: Any) -> tuple[int, ...]:
    """The shape as a tuple of counts.

    Raises:
        OpError: not a sequence of counts, or more than NumPy's arrays can have.
    """
    if not isinstance(shape, (list, tuple)) or any(type(n) is not int or n < 0 for n in shape):
        raise OpError(f"{what} has no valid shape: {reprlib.repr(shape)}")
    # NumPy multiplies the axes that are not 0 even where another one is.
    if len(shape) > MAX_AXES or math.prod(n for n in shape if n) >= 1 << 59:
        raise OpError(f"{what} has a shape beyond NumPy's limits: {reprlib.repr(shape)}")
    return tuple(shape)


V = TypeVar("V")


def find(what: str, entries: Mapping[str, V], key: str, kind: str = "tensor") -> V:
    """`entries[key]`.

    Raises:
        OpError: it is not there; the message names some that are.
    """
    try:
        return entries[key]
    except KeyError:
        known = list(entries)
        shown = ", ".join(map(repr, known[:8])) + (f", ... ({len(known)} in all)" if len(known) > 8 else "")
        guess = did_you_mean(key, known) if len(known) <= SUGGEST_BELOW else ""
        raise OpError(f"{what} holds no {kind} {key!r}{guess}; it has: {shown or 'none'}") from None


H = TypeVar("H", bound=Mapping[str, Any])


class HeaderCache(Generic[H]):
    """Parsed headers of the files read last, by the identity of their reader; at most `tensors` entries in all."""

    def __init__(self, *, files: int = 256, tensors: int = 200_000) -> None:
        self._files = files
        self._tensors = tensors
        self._kept: OrderedDict[Hashable, H] = OrderedDict()
        self._weight = 0
        self._lock = threading.Lock()
        new_lock_in_child(self, "_lock", threading.Lock)

    def get(self, reader: RangeReader, parse: Callable[[RangeReader], H]) -> H:
        """The header of what `reader` reads, by `parse(reader)` where it is not known yet."""
        identity = reader.identity
        if identity is None:
            return parse(reader)
        with self._lock:
            if (known := self._kept.get(identity)) is not None:
                self._kept.move_to_end(identity)
                return known
        found = parse(reader)  # outside the lock: two threads may do the same work, none waits for a slow store
        with self._lock:
            if identity not in self._kept:
                self._kept[identity] = found
                self._weight += len(found)
            while self._kept and (len(self._kept) > self._files or self._weight > self._tensors):
                self._weight -= len(self._kept.popitem(last=False)[1])
        return found

    def __len__(self) -> int:
        return len(self._kept)
