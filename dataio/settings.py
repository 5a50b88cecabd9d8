"""Environment variables: what each one means, what it is set to, and the value in force.

The engine's own are declared in `engine.settings`. Only variables that something in the project reads are listed.
"""

from __future__ import annotations

import os
from typing import Any

from .engine.errors import did_you_mean
from .engine.settings import (
    SETTINGS,
    Setting,
    SettingError,
    cpu_workers,
    default_executor,
    drain_timeout,
)
from .io.settings import IO_SETTINGS

__all__ = [
    "Setting",
    "SettingError",
    "cpu_workers",
    "default_executor",
    "drain_timeout",
    "env_vars",
    "overrides",
    "unknown",
]


def settings() -> tuple[Setting[Any], ...]:
    """Every declared variable."""
    return (*SETTINGS, *IO_SETTINGS)


def env_vars() -> list[dict[str, Any]]:
    """All environment variables that dataio reads.

    Returns:
        one dict per variable with `name`, `default`, `description`, `kind` and `current` (None when unset).
    """
    return [setting.describe() for setting in settings()]


def overrides() -> dict[str, str]:
    """The `DATAIO_*` variables that are set, sorted by name."""
    return {name: value for name, value in sorted(os.environ.items()) if name.startswith("DATAIO_")}


def unknown() -> dict[str, str]:
    """Set `DATAIO_*` variables that nothing reads, each with a hint; usually a typing error."""
    known = [setting.name for setting in settings()]
    strange = (n for n in overrides() if n not in known and not n.startswith("DATAIO_BENCH_"))
    return {name: f"not read by dataio{did_you_mean(name, known)}" for name in strange}
