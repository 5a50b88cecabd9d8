"""What a loader does about failed records: `on_failure`, `log_errors`, `max_failures` and `quarantine` of `run`."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from .engine.batch import FinishedBatch, describe_error
from .engine.errors import CheckpointError, FailureBudgetError
from .engine.units import Share
from .quarantine import Quarantine, quarantine_path

logger = logging.getLogger("dataio.rows")

JUDGED_FROM = 1000
"""Records after which a fraction of failed ones is judged: before, one record would be too large a share."""
_MOST_FREQUENT = 5

Cause: TypeAlias = tuple[str, str, str]
"""Stage, op and type of an exception."""


def min_survivors(on_failure: Any) -> int | None:
    """Fewest survivors a batch may have; None for "strict", where the first row error raises.

    Raises:
        TypeError, ValueError: neither "strict", "skip" nor an integer of at least 0.
    """
    if isinstance(on_failure, str):
        if on_failure not in ("strict", "skip"):
            raise ValueError(f'on_failure must be "strict", "skip" or an integer, got {on_failure!r}')
        return None if on_failure == "strict" else 1
    if isinstance(on_failure, bool) or not isinstance(on_failure, int):
        raise TypeError(f'on_failure must be "strict", "skip" or an integer, got {on_failure!r}')
    if on_failure < 0:
        raise ValueError(f"on_failure must be at least 0, got {on_failure}")
    return on_failure


class FailureBudget:
    """Counts the records of delivered batches, and raises once too many of them failed.

    Attributes:
        limit: an int is how many may fail in the loader's life; a float the share of the records that may, judged from
            JUDGED_FROM records on and at the end of a pass; None for no limit.
        seen, failed: records of delivered batches, and those of them that failed. Not counted is what `pad` repeats
            inside a batch.

    Raises:
        TypeError, ValueError: `limit` is neither None, an int of at least 0 nor a float between 0 and 1.
    """

    def __init__(self, limit: Any = None) -> None:
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, (int, float))):
            raise TypeError(f"max_failures must be None, an integer or a fraction, got {limit!r}")
        if isinstance(limit, int) and limit < 0:
            raise ValueError(f"max_failures must be at least 0, got {limit}")
        if isinstance(limit, float) and not 0 < limit < 1:
            raise ValueError(f"max_failures as a fraction must be between 0 and 1, got {limit}; a count is an integer")
        self.limit: int | float | None = limit
        self.seen = 0
        self.failed = 0
        self._causes: Counter[Cause] = Counter()
        self._examples: dict[Cause, dict[str, Any]] = {}

    def judge(self, batch: FinishedBatch) -> tuple[int, int]:
        """(records, failed records) of a batch that fits the budget; they count once they are given to `add`.

        Raises:
            FailureBudgetError: too many records failed with this batch.
        """
        seen, failed = _distinct(batch)
        if self._exceeded(self.seen + seen, self.failed + failed, JUDGED_FROM):
            raise self._error(self.seen + seen, self.failed + failed, batch)
        return seen, failed

    def add(self, batch: FinishedBatch, counted: tuple[int, int]) -> None:
        """Count a batch that is delivered."""
        self.seen += counted[0]
        self.failed += counted[1]
        if batch.failed:
            _note_causes(batch, self._causes, self._examples)

    def end_of_pass(self) -> None:
        """Judge what was delivered so far, however little it is.

        Raises:
            FailureBudgetError: too many records failed.
        """
        if self._exceeded(self.seen, self.failed, 0):
            raise self._error(self.seen, self.failed)

    def _exceeded(self, seen: int, failed: int, least: int) -> bool:
        if self.limit is None or not failed:
            return False
        if isinstance(self.limit, int):
            return failed > self.limit
        return seen >= least and failed > self.limit * seen

    def _error(self, seen: int, failed: int, batch: FinishedBatch | None = None) -> FailureBudgetError:
        causes, examples = self._causes.copy(), dict(self._examples)
        if batch is not None:
            _note_causes(batch, causes, examples)
        text = f"{failed:,} of {seen:,} records failed ({failed / max(1, seen):.2%}), max_failures={self.limit}"
        if frequent := causes.most_common(_MOST_FREQUENT):
            told = "; ".join(f"{stage} in {op!r}, {kind}: {count:,}" for (stage, op, kind), count in frequent)
            text += f". Most frequent: {told}. For example: {describe_error(examples[frequent[0][0]])}"
        text += '. Mend the records or the pipeline (quarantine="bad.jsonl" keeps them for a replay), or raise max_failures'
        counts = [(stage, op, kind, count) for (stage, op, kind), count in causes.most_common()]
        return FailureBudgetError(text, failed=failed, seen=seen, causes=counts)

    def state(self) -> dict[str, int]:
        """The counts as JSON values."""
        return {"failed": self.failed, "seen": self.seen}

    def restore(self, state: Any) -> None:
        """Go on counting from what `state` gave; the causes before it are not known any more.

        Raises:
            CheckpointError: it is nothing that `state` gives.
        """
        counts = [state.get(name) if isinstance(state, Mapping) else None for name in ("failed", "seen")]
        failed, seen = (n if isinstance(n, int) and not isinstance(n, bool) else -1 for n in counts)
        if not 0 <= failed <= seen:
            raise CheckpointError(f"the checkpoint's counts of failed records must be failed <= seen, got {state!r}")
        self.failed, self.seen = failed, seen
        self._causes.clear()
        self._examples.clear()


def _distinct(batch: FinishedBatch) -> tuple[int, int]:
    """How many records a batch had and how many failed; one that was repeated to fill it up counts once."""
    positions = batch.positions
    if isinstance(positions, range):
        return len(positions), batch.failed
    failed = {error["record"] for error in batch.errors} if batch.failed else ()
    return len(set(positions)), len(failed)


def _note_causes(batch: FinishedBatch, causes: Counter[Cause], examples: dict[Cause, dict[str, Any]]) -> None:
    for error in batch.errors:
        cause = error["stage"], error["op"], error["type"]
        causes[cause] += 1
        examples.setdefault(cause, error)


def log_row(error: dict[str, Any]) -> None:
    """What `log_errors=True` does with a row error."""
    logger.warning("row IO failed (idx=%d stage=%s): %s", error["index"], error["stage"], describe_error(error))


@dataclass(slots=True)
class FailureHandling:
    """What happens at delivery, on the consumer's thread.

    Attributes:
        log: gets each row error of a delivered batch.
        budget: counts them.
        path: of the quarantine, None without one; it is opened by `open`.
    """

    log: Callable[[dict[str, Any]], Any] | None
    budget: FailureBudget
    path: str | None
    quarantine: Quarantine | None = None

    def open(self) -> None:
        """Open the quarantine, so that a path that cannot be written is told before anything runs.

        Raises:
            OSError, ValueError: see `Quarantine`.
        """
        if self.path is not None and self.quarantine is None:
            self.quarantine = Quarantine(self.path)

    def deliver(self, batch: FinishedBatch, epoch: int) -> None:
        """Judge a batch, write down its failed records, and tell of them; what raises takes the place of the batch.

        Raises:
            FailureBudgetError: too many records failed.
            OSError: the quarantine cannot be written.
        """
        counted = self.budget.judge(batch)
        if self.quarantine is not None:
            self.quarantine.write(batch, epoch)
        if self.log is not None:
            for error in batch.errors:
                self.log(error)
        self.budget.add(batch, counted)

    def close(self) -> None:
        if self.quarantine is not None:
            self.quarantine.close()


def failure_handling(log_errors: Any, max_failures: Any, quarantine: Any, share: Share) -> FailureHandling:
    """Check the options of `run`; nothing is opened yet.

    Raises:
        TypeError, ValueError: see `BoundPipeline.run`.
    """
    if not isinstance(log_errors, bool) and not callable(log_errors):
        raise TypeError(f"log_errors must be a bool or a callable, got {log_errors!r}")
    log = log_row if log_errors is True else None if log_errors is False else log_errors
    return FailureHandling(log, FailureBudget(max_failures), quarantine_path(quarantine, share))
