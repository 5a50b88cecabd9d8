"""What flows: the type of one row of a slot, as far as the plan can know it before running."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal, TypeAlias

import numpy as np

from .errors import OpError

Layout: TypeAlias = Literal["HWC", "CHW"]
Shape: TypeAlias = tuple[int | None, ...]

OBJECT = "object"


@dataclass(frozen=True, slots=True)
class TensorType:
    """Shape, dtype and layout of one row; `None` stands for "not known before running".

    Attributes:
        shape: one entry per axis, `None` for an axis that varies; `None` when the rank varies.
        dtype: NumPy dtype name, or `"object"` for Python values.
        layout: `"HWC"` or `"CHW"` for images whose axes are known.
    """

    shape: Shape | None = None
    dtype: str | None = None
    layout: Layout | None = None

    @property
    def static(self) -> bool:
        """True when every row has one known shape and dtype, so that a batch can be allocated ahead."""
        return (
            self.dtype is not None
            and self.dtype != OBJECT
            and self.shape is not None
            and None not in self.shape
        )

    def join(self, other: TensorType) -> TensorType:
        """What is known of a row that has this type or the other."""
        shape: Shape | None = None
        if self.shape is not None and other.shape is not None and len(self.shape) == len(other.shape):
            shape = tuple(a if a == b else None for a, b in zip(self.shape, other.shape))
        dtype = self.dtype if self.dtype == other.dtype else None
        return TensorType(shape, dtype, self.layout if self.layout == other.layout else None)

    def with_shape(self, shape: Shape | None) -> TensorType:
        """The same dtype and layout in another shape."""
        return replace(self, shape=shape)

    def __str__(self) -> str:
        dims = "..." if self.shape is None else ", ".join("?" if d is None else str(d) for d in self.shape)
        layout = f" {self.layout}" if self.layout else ""
        return f"{self.dtype or '?'}[{dims}]{layout}"


@dataclass(frozen=True, slots=True)
class Takes:
    """What an op accepts; an empty tuple stands for "anything".

    Attributes:
        dtypes: NumPy dtype names.
        layouts: image layouts; when given, the value must be 3-D.
        channels: channel counts.
        ranks: numbers of axes.
    """

    dtypes: tuple[str, ...] = ()
    layouts: tuple[Layout, ...] = ()
    channels: tuple[int, ...] = ()
    ranks: tuple[int, ...] = ()

    def complaint(self, found: TensorType) -> str | None:
        """Why a row of type `found` is refused, or None; what is not known is not refused."""
        if self.dtypes and found.dtype is not None and found.dtype not in self.dtypes:
            return f"takes {self}, got {found}"
        if found.shape is not None:
            ranks = self.ranks or ((3,) if self.layouts else ())
            if ranks and len(found.shape) not in ranks:
                return f"takes {self}, got {found}"
        if self.layouts and found.layout is not None and found.layout not in self.layouts:
            return f"takes {self}, got {found}"
        if self.channels and found.shape is not None and len(found.shape) == 3 and found.layout:
            channels = found.shape[2 if found.layout == "HWC" else 0]
            if channels is not None and channels not in self.channels:
                return f"takes {self}, got {channels} channels ({found})"
        return None

    def __str__(self) -> str:
        parts = [
            " or ".join(self.dtypes),
            " or ".join(self.layouts),
            f"{' or '.join(map(str, self.channels))} channels" if self.channels else "",
            f"{' or '.join(map(str, self.ranks))} axes" if self.ranks else "",
        ]
        return " ".join(p for p in parts if p) or "anything"


def unchanged(given: TensorType, **_: Any) -> TensorType:
    """The inference of an op that keeps shape, dtype and layout."""
    return given


def guess_layout(array: np.ndarray) -> Layout:
    """The layout of an untagged 3-D array: last axis in {1, 3, 4} is HWC, else first axis is CHW.

    Raises:
        OpError: not 3-D, or neither axis tells.
    """
    if array.ndim != 3:
        raise OpError(f"wants an image with 3 axes, got shape {array.shape}")
    if array.shape[2] in (1, 3, 4):
        return "HWC"
    if array.shape[0] in (1, 3, 4):
        return "CHW"
    raise OpError(f"ambiguous 3-D layout: neither axis of {array.shape} is a channel count of 1, 3 or 4")


def type_of(array: np.ndarray, layout: Layout | None = None) -> TensorType:
    """The type of one concrete row."""
    return TensorType(array.shape, dtype_name(array.dtype), layout)


@cache
def dtype_name(dtype: np.dtype) -> str:
    """`dtype.name`, which NumPy spells anew in 3 us each time."""
    return dtype.name
