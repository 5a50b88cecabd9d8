"""The error tree. Each error says what went wrong, where, and what to do about it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any


class DataioError(Exception):
    """Base of every error that dataio raises on purpose."""


class InternalError(DataioError, RuntimeError):
    """A promise inside dataio was broken: this is a bug, please report it."""


class PlanError(DataioError, ValueError):
    """A pipeline or plan that can never run, whatever the data."""


class SchemaError(DataioError, ValueError):
    """A column is missing from, or unusable in, what flows at that point of the plan."""


class OpError(DataioError, ValueError):
    """One record's value does not fit an op, or cannot be decoded. Becomes a row error.

    Attributes:
        offset: byte of the value at which it goes wrong, None when that is not known.
    """

    def __init__(self, *args: object, offset: int | None = None) -> None:
        super().__init__(*args)
        self.offset = offset


class LimitError(OpError):
    """A value is larger than a limit the op was given (pixels, bytes, width, height)."""


class RecordError(DataioError, TypeError):
    """A record, or the value of its slot, is of a kind that no reader takes."""


class MissingFieldError(DataioError, KeyError):
    """A record lacks a field that a slot or an argument reads."""

    def __str__(self) -> str:  # KeyError would print the repr of the message
        return str(self.args[0]) if self.args else ""


class MissingDependencyError(DataioError, ImportError):
    """An optional package is absent; the message holds the line that installs it."""


class WorkerDiedError(DataioError, RuntimeError):
    """A worker process ended while it held these records."""


class SourceError(DataioError, RuntimeError):
    """The record source raised midway; the original error is the cause.

    Attributes:
        after: records of the pass that came before, None when that is not known.
    """

    def __init__(self, *args: object, after: int | None = None) -> None:
        super().__init__(*args)
        self.after = after


class CheckpointError(DataioError, ValueError):
    """A saved state that this loader cannot continue from; the message says what differs."""


class StepsError(DataioError, RuntimeError):
    """Ranks could not agree on the number of steps."""


class BatchError(DataioError, RuntimeError):
    """A batch cannot be delivered under the chosen `on_failure`.

    Attributes:
        batch: number of the batch within the epoch, -1 when that is not known.
        errors: the row errors of that batch, as in `Batch.errors`.
    """

    def __init__(self, message: str, *, batch: int = -1, errors: Sequence[dict[str, Any]] = ()) -> None:
        super().__init__(message)  # by itself enough for those who make an error again from its text: pickle, Polars
        self.batch = batch
        self.errors = list(errors)


class FailureBudgetError(DataioError, RuntimeError):
    """More records failed than `max_failures` allows.

    Attributes:
        failed, seen: records that failed, and all, of the batches up to the one that this error stands in place of.
        causes: (stage, op, type of exception, count), the most frequent first; what a checkpoint counted is in `failed` only.
    """

    def __init__(self, message: str, *, failed: int, seen: int, causes: list[tuple[str, str, str, int]]) -> None:
        super().__init__(message)
        self.failed = failed
        self.seen = seen
        self.causes = causes


class ForkedError(DataioError, RuntimeError):
    """A loader, or its iterator, is used in a process forked from the one that made it."""


class ClosedError(DataioError, RuntimeError):
    """The loader was closed."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`" (did you mean 'label'?)"`, or an empty string when nothing is close."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def unknown_columns(missing: Iterable[str], known: Iterable[str], reader: str) -> SchemaError:
    """The error for a reader that names columns its input lacks."""
    known = list(known)
    name = sorted(missing)[0]
    return SchemaError(
        f"{reader} reads column {name!r}, which its input lacks{did_you_mean(name, known)}; "
        f"it has: {', '.join(known)}"
    )


def missing_dependency(package: str, extra: str, what: str) -> MissingDependencyError:
    """The error for an absent optional package, with the line that installs it."""
    return MissingDependencyError(
        f"{what} needs the package {package!r}; install it with: pip install 'dataio-py[{extra}]'"
    )
