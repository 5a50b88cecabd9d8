"""RDMA: what this machine has of it. dataio itself moves no bytes by RDMA: all stores it knows speak HTTP over TCP.

The reference moves buffers between two machines by libfabric. No maintained Python binding of libfabric exists, so this is left
out; UCX (`ucxx`) or NCCL, which torch brings, do that work.
"""

from __future__ import annotations

import os
from ctypes.util import find_library
from typing import Any

_DEVICES = "/sys/class/infiniband"
API_VERSION = "1.20"
"""Version of libfabric that the reference asks for."""


def available() -> bool:
    """Whether dataio can move bytes by RDMA here: False. Never raises."""
    return bool(info()["available"])


def info() -> dict[str, Any]:
    """What of RDMA there is. Never raises.

    Returns:
        `available`; `providers`, the names of the machine's RDMA devices; `notes`, why it is not used; `requested_api_version`, of
        libfabric; `library`, the name of libfabric's shared library or None.
    """
    try:
        providers = sorted(os.listdir(_DEVICES))
    except OSError:
        providers = []
    try:
        library = find_library("fabric")
    except OSError:  # it asks the tools of the system
        library = None
    notes = ["dataio has no RDMA transport: stores are read over TCP"]
    if library is None:
        notes.append("libfabric is not installed")
    if not providers:
        notes.append("this machine has no RDMA device")
    return {"available": False, "providers": providers, "notes": notes, "requested_api_version": API_VERSION, "library": library}
