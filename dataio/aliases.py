"""Names for the types of options and arguments, for annotations in programs that pass them on."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np

from .formats.image.decode import Mode as ImageMode
from .formats.image.resize import Interp
from .sharding import ShardSpec

Concurrency: TypeAlias = int | Literal["auto"]
"""`run(concurrency=)`: records of one batch worked on at a time."""
FailurePolicy: TypeAlias = Literal["strict", "skip"]
"""What `run(on_failure=)` may be beside a number of survivors."""
OnFailure: TypeAlias = str | int
"""`run(on_failure=)`: a `FailurePolicy`, or the fewest survivors that a batch may have."""
Order: TypeAlias = Literal["submit", "completion"]
"""`run(order=)`."""
Output: TypeAlias = Literal["torch", "numpy", "jax", "dlpack", "arrow"]
"""What `run` gives out of its own accord; names of registered adapters and callables are taken too."""
OutputLayout: TypeAlias = Literal["chw", "hwc"]
"""The order of an image's axes, as `decode_image(layout=)` takes it."""
PinMemory: TypeAlias = bool | Literal["auto"]
"""`run(pin_memory=)`."""
RaggedPolicy: TypeAlias = Literal["list", "error", "skip"]
"""`run(ragged=)`."""
ShardLike: TypeAlias = ShardSpec | Mapping[str, int | bool] | Literal["auto"] | None
"""`run(shard=)`."""


class Readable(Protocol):
    """Something that gives its bytes itself."""

    def read_all(self) -> Any:
        """All bytes, bytes-like."""


Record: TypeAlias = (
    Mapping[str, Any] | str | os.PathLike[str] | bytes | bytearray | memoryview | np.ndarray | Readable | tuple[Any, ...]
)
"""What a source may give: a mapping with a field per slot; what a single slot reads, on its own; a tuple, which a record map
makes a mapping of."""

__all__ = [
    "Concurrency",
    "FailurePolicy",
    "ImageMode",
    "Interp",
    "OnFailure",
    "Order",
    "Output",
    "OutputLayout",
    "PinMemory",
    "RaggedPolicy",
    "Record",
    "ShardLike",
]
