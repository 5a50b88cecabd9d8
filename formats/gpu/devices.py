"""Devices that tensors are read to: which there are, and the error where there is none."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from ...engine.errors import DataioError
from ..frameworks import import_torch

if TYPE_CHECKING:
    import torch


class DeviceError(DataioError, RuntimeError):
    """This machine lacks a device, a driver or a library that the call needs; the message says which."""


def check_device(device: Any) -> torch.device:
    """The device as torch has it: "cpu", "cuda" (the current one) or "cuda:0".

    Raises:
        ValueError: no device, or one of another kind.
        DeviceError: a CUDA device that this machine lacks.
    """
    torch = import_torch()
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"device is 'cpu' or 'cuda:0', got {device!r}") from error
    if found.type == "cpu":
        return found
    if found.type != "cuda":
        raise ValueError(f"device is 'cpu' or 'cuda:0', got {device!r}; read to the CPU and move the tensors")
    count = cuda_devices()
    if not count:
        raise DeviceError(f"device={str(found)!r}: {why_no_cuda()}")
    if found.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    if found.index >= count:
        raise DeviceError(f"device={str(found)!r}: this machine has {count} CUDA device{'s' if count > 1 else ''}, counted from 0")
    return found


def cuda_devices() -> int:
    """How many CUDA devices torch can use; 0 without torch, too. Never raises, and does not start CUDA."""
    try:
        import torch

        return torch.cuda.device_count() if torch.cuda.is_available() else 0
    except Exception:  # a broken driver or installation is no device
        return 0


def why_no_cuda() -> str:
    """Why `cuda_devices` is 0, in words."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return "torch is not installed"
    if torch.version.cuda is None:
        return "this torch was built without CUDA"
    return "torch finds no CUDA device or driver on this machine"


def cuda_pinning_available() -> bool:
    """Whether host memory can be pinned for copies to a CUDA device. Never raises."""
    if not cuda_devices():
        return False
    try:
        import torch

        return bool(torch.empty(1, pin_memory=True).is_pinned())
    except Exception:  # the driver may refuse, such as for a limit on locked memory
        return False


def pinned_pool_stats() -> dict[str, int]:
    """Figures of the pinned host memory that copies to a CUDA device go through: torch's caching host allocator.

    Returns:
        `hits` (requests served from what was kept), `misses` (those that pinned new memory), `bytes_resident` (bytes pinned
        now) and `bytes_high_watermark` (the most there were). All 0 where CUDA was never started.
    """
    torch: Any = sys.modules.get("torch")
    stats: Any = {}
    if torch is not None and torch.cuda.is_initialized() and hasattr(torch.cuda, "host_memory_stats"):
        stats = torch.cuda.host_memory_stats()
    pinned, asked = int(stats.get("num_host_alloc", 0)), int(stats.get("active_requests.allocated", stats.get("allocations.allocated", 0)))
    return {
        "hits": max(asked - pinned, 0),
        "misses": pinned,
        "bytes_resident": int(stats.get("allocated_bytes.current", 0)),
        "bytes_high_watermark": int(stats.get("allocated_bytes.peak", 0)),
    }
