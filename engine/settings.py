"""Environment variables that the engine reads: declared once, each with its default, check and meaning.

`Setting.get()` reads the environment on every call; a pool reads its size when it is made and keeps it. A value that
cannot be used is an error that names the variable, never a silent default.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from .errors import DataioError

T = TypeVar("T")


class SettingError(DataioError, ValueError):
    """An environment variable holds something that cannot be used."""


@dataclass(frozen=True, slots=True)
class Setting(Generic[T]):
    """One environment variable.

    Attributes:
        name: of the variable.
        default: the text shown for "not set".
        description: one line for `dataio.env_vars()` and `python -m dataio`.
        parse: text to value; raises ValueError with what would have been accepted.
        fallback: the value when the variable is unset or empty.
        kind: "internal", or the provider that defines the variable.
    """

    name: str
    default: str
    description: str
    parse: Callable[[str], T]
    fallback: Callable[[], T]
    kind: str = "internal"

    @property
    def current(self) -> str | None:
        """The text in the environment, None when unset."""
        return os.environ.get(self.name)

    def get(self) -> T:
        """The value in force.

        Raises:
            SettingError: the variable is set to something that cannot be used.
        """
        text = (self.current or "").strip()
        if not text:
            return self.fallback()
        try:
            return self.parse(text)
        except ValueError as error:
            raise SettingError(f"{self.name}={text!r}: {error}") from None

    def describe(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "default": self.default,
            "description": self.description,
            "kind": self.kind,
            "current": self.current,
        }


def whole_number(low: int) -> Callable[[str], int]:
    """A parser for integers of at least `low`."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if value < low:
            raise ValueError(f"wants a whole number of at least {low}")
        return value

    return parse


def one_of(*choices: str) -> Callable[[str], str]:
    """A parser for a fixed set of words, in any case."""

    def parse(text: str) -> str:
        if text.lower() not in choices:
            raise ValueError(f"wants one of {', '.join(choices)}")
        return text.lower()

    return parse


def on_or_off(text: str) -> bool:
    """A parser for 0 and 1."""
    if text not in ("0", "1"):
        raise ValueError("wants 0 or 1")
    return text == "1"


def usable_cores() -> int:
    """Cores this process may run on, at least 2 so that a slow record does not stop the others."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS and Windows
        cores = os.cpu_count() or 1
    return max(2, cores)


CPU_WORKERS = Setting(
    "DATAIO_CPU_WORKERS",
    "cores, at least 2",
    "workers that decode and transform, shared by all loaders of a process",
    whole_number(1),
    usable_cores,
)
EXECUTOR = Setting(
    "DATAIO_EXECUTOR",
    "auto",
    'where workers run when run(workers="auto"): auto, thread or process',
    one_of("auto", "thread", "process"),
    lambda: "auto",
)
DRAIN_TIMEOUT = Setting(
    "DATAIO_DRAIN_TIMEOUT_MS",
    "5000",
    "how long closing a loader waits for work in flight, in milliseconds",
    whole_number(0),
    lambda: 5000,
)
DETAILED_STATS = Setting(
    "DATAIO_DETAILED_STATS",
    "0",
    "1 keeps dataio.op_stats(), what each op took in the whole process",
    on_or_off,
    lambda: False,
)
PIPELINE_TRACE = Setting(
    "DATAIO_PIPELINE_TRACE",
    "0",
    "1 prints where each running loader stands to stderr, every 500 ms",
    on_or_off,
    lambda: False,
)
AGREEMENT_TIMEOUT = Setting(
    "DATAIO_STEPS_TIMEOUT_SECS",
    "600",
    "how long a rank waits for the others to say how many batches they have, in seconds",
    whole_number(1),
    lambda: 600,
)
IO_WORKERS = Setting(
    "DATAIO_IO_WORKERS",
    "cores, at least 4",
    "workers that wait for stores, each for several requests at a time, shared by all loaders of a process",
    whole_number(1),
    lambda: max(4, usable_cores()),
)
SETTINGS: tuple[Setting[Any], ...] = (
    CPU_WORKERS,
    IO_WORKERS,
    EXECUTOR,
    DRAIN_TIMEOUT,
    DETAILED_STATS,
    PIPELINE_TRACE,
    AGREEMENT_TIMEOUT,
)


def cpu_workers(cpus: Sequence[int] = ()) -> int:
    """Size of a pool of workers: what the variable says, else one for each of `cpus`, else one for each usable core."""
    return len(cpus) if cpus and not CPU_WORKERS.current else CPU_WORKERS.get()


def io_workers() -> int:
    """Workers that wait for stores."""
    return IO_WORKERS.get()


def default_executor() -> str:
    """The executor of a loader that names none: auto, thread or process."""
    return EXECUTOR.get()


def drain_timeout() -> float:
    """Seconds that closing a loader waits for work in flight."""
    return DRAIN_TIMEOUT.get() / 1000


def detailed_stats() -> bool:
    """Whether ops are counted for the whole process."""
    return DETAILED_STATS.get()


def pipeline_trace() -> bool:
    """Whether graphs print snapshots."""
    return PIPELINE_TRACE.get()


def agreement_timeout() -> float:
    """Seconds that a rank waits for the others before a window of steps."""
    return float(AGREEMENT_TIMEOUT.get())
