"""Batches that someone else composed: `from_sampler`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal

from dataio.engine.source import Pass, RowSource
from dataio.engine.streams import Expanding, IteratorStream, Stream, below_state

logger = logging.getLogger("dataio.sampler")

_ON_ERROR = ("warn", "skip", "raise")


def from_sampler(
    sampler: Iterable[Iterable[Any]],
    record_fn: Callable[[Any], Mapping[str, Any] | None] | None = None,
    *,
    batch_key: str = "batch_id",
    on_error: Literal["warn", "skip", "raise"] = "warn",
) -> SampledRows:
    """Records for `bind` from an iterable of batches of rows; group them again by `batch_key`. Called, it iterates them.

    Args:
        sampler: yields one iterable of rows per batch; a generator serves one epoch. Iterated again for the same epoch,
            as a loader does to resume, it must give the same batches: those before are passed over unread, and
            `record_fn` is not called for them. `sampler.set_epoch(epoch)` is called at the beginning of an epoch
            where there is one, as in PyTorch's distributed sampler, here or in a `sampler` or `batch_sampler` inside.
        record_fn: row to record; None drops the row. Without it rows are records (and are copied).
        batch_key: the field that receives the running number of the batch, from 0 in every epoch.
        on_error: what an exception of `record_fn` does: "warn" logs it on `dataio.sampler` and drops the row,
            "skip" drops it, "raise" lets it through.

    Raises:
        TypeError: an argument of the wrong type; while iterating, a record that is no mapping.
        ValueError: an unknown `on_error`, an empty `batch_key`.
    """
    if not isinstance(sampler, Iterable):
        raise TypeError(f"from_sampler takes an iterable of batches of rows, got {sampler!r}")
    if record_fn is not None and not callable(record_fn):
        raise TypeError(f"record_fn must be a function of one row or None, got {record_fn!r}")
    if not isinstance(batch_key, str):
        raise TypeError(f"batch_key must be a str, got {batch_key!r}")
    if not batch_key:
        raise ValueError("batch_key must not be empty")
    if on_error not in _ON_ERROR:
        raise ValueError(f"on_error must be one of {', '.join(map(repr, _ON_ERROR))}, got {on_error!r}")

    return SampledRows(sampler, record_fn, batch_key, on_error)


class SampledRows(RowSource):
    """The records of a sampler. Its stream counts batches, so that resuming reads none before the one that was cut."""

    def __init__(
        self, sampler: Iterable[Iterable[Any]], record_fn: Callable[[Any], Any] | None, batch_key: str, on_error: str
    ) -> None:
        self._sampler, self._record_fn, self._batch_key, self._on_error = sampler, record_fn, batch_key, on_error

    def describe(self) -> str:
        return f"from_sampler {type(self._sampler).__name__}"

    def length(self) -> None:
        return None

    def __call__(self) -> Iterator[dict[str, Any]]:
        """The records of the epoch that the sampler is set to."""
        for number, batch in enumerate(self._sampler):
            yield from self.records(number, batch)

    def stream(self, pass_: Pass, state: Any = None) -> Stream:
        def batches() -> Iterator[Any]:
            _set_epoch(self._sampler, pass_.epoch)
            return iter(self._sampler)

        return SampledStream(IteratorStream(batches, below_state(state) or 0), self.records, state)

    def records(self, number: int, batch: Iterable[Any]) -> Iterator[dict[str, Any]]:
        """The records of the batch with this number."""
        for row in batch:
            record = row
            if self._record_fn is not None:
                try:
                    record = self._record_fn(row)
                except Exception:
                    if self._on_error == "raise":
                        raise
                    if self._on_error == "warn":
                        logger.warning("record_fn failed in batch %d; the row is dropped", number, exc_info=True)
                    continue
                if record is None:
                    continue
            if not isinstance(record, Mapping):
                maker = "the sampler" if self._record_fn is None else "record_fn"
                raise TypeError(
                    f"a record must be a mapping, but {maker} gave {type(record).__name__} in batch {number}; "
                    "pass record_fn to from_sampler, and return a dict from it"
                )
            yield {**record, self._batch_key: number}


class SampledStream(Expanding):
    """Opens one batch after another."""

    def __init__(
        self, below: Stream, records: Callable[[int, Iterable[Any]], Iterator[dict[str, Any]]], state: Any
    ) -> None:
        super().__init__(below, state)
        self._records = records

    def expand(self, record: Any, index: int) -> Iterator[Any]:
        return self._records(index, record)


def _set_epoch(sampler: Any, epoch: int) -> None:
    """Tell the sampler, or the one that it draws from, which epoch begins."""
    seen: list[Any] = []
    while sampler is not None and not any(sampler is other for other in seen):
        if callable(set_epoch := getattr(sampler, "set_epoch", None)):
            set_epoch(epoch)
            return
        seen.append(sampler)
        sampler = getattr(sampler, "batch_sampler", None) or getattr(sampler, "sampler", None)
