"""Several sources as one: `concat` and `mix`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from dataio.engine.combine import as_rows, concatenated
from dataio.engine.mixed import mixed
from dataio.engine.source import RowSource

from .binding import as_source
from .records import RecordSource, check_seed


def concat(sources: Iterable[Any]) -> RecordSource:
    """The records of each source in turn.

    Args:
        sources: at least one of anything that `bind` takes; rows of tables become dicts.

    Raises:
        TypeError: `sources` is no iterable, or an element is no source.
        ValueError: it is empty.
    """
    found = _listed("concat", sources)
    if not found:
        raise ValueError("concat takes at least one source")
    return RecordSource(concatenated([_rows(source) for source in found]), sequential=_is_ordered(found))


def mix(
    sources: Iterable[tuple[Any, float]],
    seed: int | None = None,
    stop: Literal["first", "all"] = "first",
) -> RecordSource:
    """Records drawn from several sources by weight, each source in its own order.

    At every 1,024th record, what has come of each source is its share to within 2 records; in between, the turns are
    shuffled. Where all sources can be read by position so can the mixture.

    Args:
        sources: (source, weight) pairs: anything that `bind` takes, and a positive number of which only the ratios count.
        seed: of the turns, in [0, 2**64); None takes the run's seed in a loader, a new one in each plain iteration.
        stop: "first" ends where a source would give a record that it no longer has; repeat short ones,
            `(source.repeat(), 0.2)`. "all" goes on without the sources that have ended until all have: each record once.

    Raises:
        TypeError: `sources` holds something else than pairs, or a weight is no number.
        ValueError: there are none, a weight is not positive and finite, or `seed` or `stop` is out of range.
    """
    pairs = _listed("mix", sources)
    if not pairs:
        raise ValueError("mix takes at least one (source, weight) pair")
    for pair in pairs:
        if not (isinstance(pair, Sequence) and not isinstance(pair, str) and len(pair) == 2):
            raise TypeError(f"mix takes (source, weight) pairs, got {type(pair).__name__}")
        weight = pair[1]
        if isinstance(weight, bool) or not isinstance(weight, (int, float)):
            raise TypeError(f"a weight must be a number, got {weight!r}")
    check_seed(seed)
    if stop not in ("first", "all"):
        raise ValueError(f"stop must be 'first' or 'all', got {stop!r}")
    found = [source for source, _ in pairs]
    rows = mixed([_rows(source) for source in found], [weight for _, weight in pairs], seed, stop)
    return RecordSource(rows, sequential=_is_ordered(found))


def _listed(what: str, sources: Any) -> list[Any]:
    if isinstance(sources, (str, bytes, RecordSource)) or not isinstance(sources, Iterable):
        raise TypeError(f"{what} takes a list of sources, got {type(sources).__name__}")
    return list(sources)


def _rows(source: Any) -> RowSource:
    return as_rows(as_source(source))


def _is_ordered(sources: Sequence[Any]) -> bool:
    """Whether one of them was said to be sequential."""
    return any(isinstance(source, RecordSource) and source._ordered for source in sources)
