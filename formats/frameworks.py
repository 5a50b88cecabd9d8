"""Arrays for who asked: NumPy or torch over the same memory, with the element types that NumPy lacks."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ..engine.errors import missing_dependency
from .weights.tensors import bits, torch_name

FRAMEWORKS = ("numpy", "torch")


def check_framework(framework: Any) -> None:
    """Refuse what is neither "numpy" nor "torch".

    Raises:
        ValueError: it is neither.
    """
    if framework not in FRAMEWORKS:
        raise ValueError(f"framework must be one of {', '.join(FRAMEWORKS)}, got {framework!r}")


def as_framework(array: np.ndarray, framework: str) -> Any:
    """The array as `framework` has it, over the same memory.

    bfloat16 and float8 arrays (`weights.tensors`) become torch's own types, or those of `ml_dtypes` on NumPy.

    Raises:
        ValueError: torch has no such type (big-endian numbers, for one).
        MissingDependencyError: torch is not installed.
    """
    return to_torch(array) if framework == "torch" else to_numpy(array)


def to_torch(array: np.ndarray) -> Any:
    """A torch tensor over the same memory. (`from_numpy` shares it as `from_dlpack` does, at a third of the cost per row.)

    Element types that NumPy lacks (bfloat16, float8) come out as torch's own.
    """
    torch = import_torch()
    if array.dtype.kind != "V":
        return torch.from_numpy(array)
    return torch.from_numpy(bits(array)).view(getattr(torch, str(torch_name(array.dtype))))


def to_numpy(array: np.ndarray) -> np.ndarray:
    """The array; element types that NumPy lacks become those of `ml_dtypes`, by which JAX and NumPy reckon."""
    name = torch_name(array.dtype)
    if name is None:
        return array
    import ml_dtypes

    return bits(array).view(getattr(ml_dtypes, name))


@cache
def import_torch() -> Any:
    """torch, which is imported when the first tensor is made."""
    try:
        import torch
    except ImportError:
        raise missing_dependency("torch", "torch", 'output="torch"') from None
    return torch
