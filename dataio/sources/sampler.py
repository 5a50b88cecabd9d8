"""Batches that someone else composed: `from_sampler`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal

logger = logging.getLogger("dataio.sampler")

_ON_ERROR = ("warn", "skip", "raise")


def from_sampler(
    sampler: Iterable[Iterable[Any]],
    record_fn: Callable[[Any], Mapping[str, Any] | None] | None = None,
    *,
    batch_key: str = "batch_id",
    on_error: Literal["warn", "skip", "raise"] = "warn",
) -> Callable[[], Iterator[dict[str, Any]]]:
    """A factory of records for `bind`, from an iterable of batches of rows; group them again by `batch_key`.

    Args:
        sampler: yields one iterable of rows per batch; a generator serves one epoch.
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

    def sampled() -> Iterator[dict[str, Any]]:
        for number, batch in enumerate(sampler):
            for row in batch:
                record = row
                if record_fn is not None:
                    try:
                        record = record_fn(row)
                    except Exception:
                        if on_error == "raise":
                            raise
                        if on_error == "warn":
                            logger.warning(
                                "record_fn failed in batch %d; the row is dropped", number, exc_info=True
                            )
                        continue
                    if record is None:
                        continue
                if not isinstance(record, Mapping):
                    maker = "the sampler" if record_fn is None else "record_fn"
                    raise TypeError(
                        f"a record must be a mapping, but {maker} gave {type(record).__name__} in batch {number}; "
                        "pass record_fn to from_sampler, and return a dict from it"
                    )
                yield {**record, batch_key: number}

    return sampled
