"""Output adapters: how a batch's arrays are handed to the trainer, through DLPack and without a copy."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeAlias

import numpy as np

from .formats.frameworks import to_torch

Adapter: TypeAlias = Callable[[Any], Any]


class DlpackTensor:
    """One tensor on its way out: NumPy memory behind the DLPack protocol; may be exported repeatedly.

    Attributes:
        shape: list of int; `ndim` its length.
        dtype: name such as "float32".
        device: `(device_type, device_id)` of DLPack; (1, 0) is the CPU.
    """

    __slots__ = ("_array",)

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    @property
    def shape(self) -> list[int]:
        return list(self._array.shape)

    @property
    def ndim(self) -> int:
        return self._array.ndim

    @property
    def dtype(self) -> str:
        return self._array.dtype.name

    @property
    def device(self) -> tuple[int, int]:
        return self.__dlpack_device__()

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self._array.__dlpack__(**kwargs)

    def __dlpack_device__(self) -> tuple[int, int]:
        kind, number = self._array.__dlpack_device__()
        return int(kind), int(number)

    def __repr__(self) -> str:
        return f"DlpackTensor(shape={self.shape}, dtype={self.dtype!r})"


def numpy_only(adapter: Adapter) -> Adapter:
    """The adapter, refusing element types that only torch has.

    Raises:
        RuntimeError: when such a slot is asked for.
    """

    @wraps(adapter)
    def checked(array: np.ndarray) -> Any:
        if array.dtype.kind == "V":
            element = (array.dtype.names or (array.dtype.name,))[0]  # types of ml_dtypes have no fields
            raise RuntimeError(f'NumPy has no {element}: use output="torch" for this slot')
        return adapter(array)

    return checked


def to_jax(array: np.ndarray) -> Any:
    """A jax array; jax copies when it cannot import the memory as it is."""
    try:
        import jax.dlpack
    except ImportError:
        raise ModuleNotFoundError('output="jax" needs the package \'jax\'; install it with: pip install jax') from None
    return jax.dlpack.from_dlpack(array)


def to_numpy(array: np.ndarray) -> np.ndarray:
    """The array itself."""
    return array


def to_arrow(array: np.ndarray) -> Any:
    """A fixed-shape-tensor array over the same memory: one row per record (a plain array for 1-D input)."""
    import pyarrow as pa

    if array.ndim == 1 or array.dtype == np.bool_:
        return pa.array(array if array.ndim == 1 else list(array.reshape(len(array), -1)))
    return pa.FixedShapeTensorArray.from_numpy_ndarray(array)


BUILTIN: dict[str, Adapter] = {
    "torch": to_torch,
    "numpy": numpy_only(to_numpy),
    "jax": numpy_only(to_jax),
    "dlpack": numpy_only(DlpackTensor),
    "arrow": numpy_only(to_arrow),
}
_registered: dict[str, Adapter] = {}


def register_output_adapter(name: str, fn: Adapter) -> None:
    """Add an output by name; `fn` receives one `DlpackTensor` per tensor (per row for ragged slots).

    Raises:
        ValueError: a built-in name.
        TypeError: an empty or non-str name, or `fn` that is not callable.
    """
    if not isinstance(name, str) or not name:
        raise TypeError(f"an adapter's name must be a non-empty str, got {name!r}")
    if name in BUILTIN:
        raise ValueError(f"{name!r} is a built-in output")
    if not callable(fn):
        raise TypeError(f"an adapter must be callable, got {fn!r}")
    _registered[name] = fn


def find_adapter(output: Any) -> tuple[str, Adapter]:
    """(name, function on a NumPy array) for `run(output)`.

    Raises:
        ValueError: an unknown name.
    """
    if isinstance(output, str):
        if output in BUILTIN:
            return output, BUILTIN[output]
        if output in _registered:
            return output, _exported(_registered[output])
        known = ", ".join([*BUILTIN, *sorted(_registered)])
        raise ValueError(f"output must be one of {known}, or a callable; got {output!r}")
    if callable(output):
        return getattr(output, "__name__", "callable"), _exported(output)
    raise ValueError(f"output must be a name or a callable, got {output!r}")


def _exported(function: Adapter) -> Adapter:
    return numpy_only(lambda array: function(DlpackTensor(array)))


def on_device(name: str, adapter: Adapter, device: str) -> Adapter:
    """The adapter followed by a move to `device` when the tensor is asked for. (torch's are sent ahead: `device.py`.)

    Raises:
        ValueError: on first use, for outputs that live on the CPU.
    """
    if name == "jax":
        return lambda array: _put_on_jax_device(adapter(array), device)
    if name in BUILTIN:

        def refuse(array: np.ndarray) -> Any:
            raise ValueError(f'device={device!r} needs output="torch" or "jax"; {name!r} lives on the CPU')

        return refuse

    def move(array: np.ndarray) -> Any:
        result = adapter(array)
        if not hasattr(result, "to"):
            raise TypeError(f"device={device!r}: the adapter {name!r} returned {type(result).__name__}, which has no .to()")
        return result.to(device)

    return move


def _put_on_jax_device(array: Any, device: str) -> Any:
    import jax

    kind, _, number = device.partition(":")
    platform = {"cuda": "gpu"}.get(kind, kind)
    return jax.device_put(array, jax.devices(platform)[int(number or 0)])
