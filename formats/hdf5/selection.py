"""Which part of a data set: indices by NumPy's rules, axis by axis, brought into the form that HDF5 reads."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from ...engine.errors import OpError

Index: TypeAlias = "int | slice | np.ndarray"
SPAN = 1 << 26
"""Bytes that are read at a time where indices are picked out of them."""


@dataclass(frozen=True, slots=True)
class Selection:
    """A part of an array.

    Attributes:
        indices: per axis an int, a slice with a positive step, or int64[n] (one axis at most; any order, repeats allowed).
        flips: axes of the result whose order is reversed afterwards.
        shape: of the result.
        mask: bool[...] over the whole array instead of indices; the result is one axis, in C order.
    """

    indices: tuple[Index, ...]
    flips: tuple[int, ...]
    shape: tuple[int, ...]
    mask: np.ndarray | None = None

    @property
    def size(self) -> int:
        """Elements of the result."""
        return math.prod(self.shape)

    @property
    def array_axis(self) -> int | None:
        """The axis that is indexed by an array."""
        return next((axis for axis, index in enumerate(self.indices) if isinstance(index, np.ndarray)), None)

    def start(self, shape: tuple[int, ...]) -> int | None:
        """The first element, where all lie one behind the other in an array of this shape; None where they do not."""
        first, whole = 0, False
        for index, length in zip(self.indices, shape):
            if isinstance(index, np.ndarray):
                return None
            if isinstance(index, int):
                if whole and length != 1:
                    return None
                first = first * length + index
                continue
            count = len(range(index.start, index.stop, index.step))
            if (whole and count != length) or (index.step != 1 and count > 1):
                return None
            first = first * length + (0 if whole else index.start)
            whole = True
        return first


def select(selection: Any, shape: tuple[int, ...]) -> Selection:
    """What `selection` picks out of an array of this shape.

    Args:
        selection: None for everything; an int, a slice, `...`, a list or array of ints, a list or array of bools; a tuple of these,
            one per axis; or a bool array of the whole shape. Each index is applied to its own axis: ints drop theirs.

    Raises:
        IndexError: an index out of range, or too many of them.
        ValueError: of another kind, two lists, a mask of another length.
    """
    if isinstance(selection, np.ndarray) and selection.dtype == np.bool_ and selection.ndim > 1:
        if selection.shape != shape:
            raise OpError(f"a mask over the whole data set has its shape {shape}, got {selection.shape}")
        return Selection((), (), (int(np.count_nonzero(selection)),), selection)
    given = _per_axis(selection, len(shape))
    indices: list[Index] = []
    flips: list[int] = []
    result: list[int] = []
    for axis, (index, length) in enumerate(zip(given, shape)):
        if isinstance(index, slice):
            found, count, reverse = _forwards(index, length)
            if reverse:
                flips.append(len(result))
            indices.append(found)
            result.append(count)
        elif isinstance(index, (list, np.ndarray)):
            numbers = _numbers(index, length, axis)
            if any(isinstance(before, np.ndarray) for before in indices):
                raise OpError("a selection may have one list or array of indices; read with one, and index the result by the other")
            indices.append(numbers)
            result.append(len(numbers))
        else:
            indices.append(_number(index, length, axis))
    return Selection(tuple(indices), tuple(flips), tuple(result))


def _per_axis(selection: Any, axes: int) -> list[Any]:
    given = [] if selection is None else list(selection) if isinstance(selection, tuple) else [selection]
    dots = [at for at, index in enumerate(given) if index is Ellipsis]
    if len(dots) > 1:
        raise OpError("a selection has one ... at most")
    if len(given) - len(dots) > axes:
        raise IndexError(f"the selection has {len(given) - len(dots)} indices and the data set {axes} axes")
    fill = [slice(None)] * (axes - len(given) + len(dots))
    at = dots[0] if dots else len(given)
    return [*given[:at], *fill, *given[at + 1 :]]


def _forwards(index: slice, length: int) -> tuple[slice, int, bool]:
    """The same elements by a positive step, their number, and whether their order is reversed by that."""
    try:
        start, stop, step = index.indices(length)
    except (TypeError, ValueError) as error:
        raise OpError(f"not a slice of a data set: {index}: {error}") from error
    count = len(range(start, stop, step))
    if not count:
        return slice(0, 0, 1), 0, False
    last = start + (count - 1) * step
    return (slice(last, start + 1, -step), count, True) if step < 0 else (slice(start, last + 1, step), count, False)


def _number(index: Any, length: int, axis: int) -> int:
    if isinstance(index, (bool, np.bool_)):
        raise OpError("a selection holds no single bools")
    try:
        number = operator.index(index)
    except TypeError:
        text = f"a selection holds ints, slices, ..., lists and arrays of ints or bools, got {type(index).__name__}"
        raise OpError(text) from None
    if not -length <= number < length:
        raise IndexError(f"index {number} is out of range for axis {axis} of length {length}")
    return number % length


def _numbers(index: Any, length: int, axis: int) -> np.ndarray:
    """int64[n], none negative."""
    numbers = np.asarray(index)
    if numbers.ndim != 1 or (numbers.dtype.kind not in "iub" and numbers.size):
        raise OpError(f"a list of indices is 1-D and of ints or bools, got {numbers.dtype}{list(numbers.shape)}")
    if numbers.dtype.kind == "b":
        if len(numbers) != length:
            raise OpError(f"the mask of axis {axis} has {len(numbers)} bools and the axis {length}")
        return np.flatnonzero(numbers)
    if numbers.size and not (-length <= int(numbers.min()) and int(numbers.max()) < length):
        raise IndexError(f"indices out of range for axis {axis} of length {length}")
    numbers = numbers.astype(np.int64)
    return np.where(numbers < 0, numbers + length, numbers)


def read_picked(read: Callable[[tuple[Any, ...]], np.ndarray], found: Selection, axis: int, out: np.ndarray, chunk: int) -> None:
    """Fill `out` where `axis` is indexed by an array: runs of indices that lie close are read as one slice.

    HDF5's own lists of indices must be sorted and unique, and take a time that grows with the square of their number.

    Args:
        read: gives the part of an int or slice per axis.
        chunk: indices along the axis that HDF5 reads together anyway.
    """
    numbers = found.indices[axis]
    assert isinstance(numbers, np.ndarray)
    wanted, places = np.unique(numbers, return_inverse=True)
    target = axis - sum(isinstance(index, int) for index in found.indices[:axis])
    moved = np.moveaxis(out, target, 0)
    order = np.argsort(places, kind="stable")
    bounds = np.searchsorted(places[order], np.arange(len(wanted) + 1))
    row = max(1, out.nbytes // len(numbers))
    for first, last in _runs(wanted, max(1, chunk), max(1, SPAN // row)):
        start, stop = int(wanted[first]), int(wanted[last - 1]) + 1
        indices = (*found.indices[:axis], slice(start, stop, 1), *found.indices[axis + 1 :])
        block = np.moveaxis(read(indices), target, 0)
        rows = order[bounds[first] : bounds[last]]
        moved[rows] = block[numbers[rows] - start]


def _runs(wanted: np.ndarray, gap: int, most: int) -> Iterator[tuple[int, int]]:
    """Bounds of runs in sorted indices: gaps of at most `gap`, from first to last at most `most`."""
    breaks = np.flatnonzero(np.diff(wanted) > gap) + 1
    for first, last in zip([0, *breaks.tolist()], [*breaks.tolist(), len(wanted)]):
        while first < last:
            end = min(last, int(np.searchsorted(wanted, wanted[first] + most)))
            yield first, end
            first = end
