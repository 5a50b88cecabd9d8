"""`loader.progress()`: a tqdm bar over the batches of a loader."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import chain
from typing import TYPE_CHECKING, Any

from .engine.stats import RunStats

if TYPE_CHECKING:
    from .loader import DataLoader

_END = object()


def progress(loader: DataLoader, total: int | None, size: int, options: dict[str, Any]) -> Iterator[Any]:
    """The batches of one pass, with a bar that counts records; it is closed however the loop ends.

    Args:
        loader: what to iterate.
        total: records of a pass, None when that is not known.
        size: records of a batch: a pass that is resumed begins behind some.
        options: for `tqdm.auto.tqdm`; they win over what is set here.
    """
    from tqdm.auto import tqdm

    stats = loader._stats
    taken, failed = stats.taken, stats.taken - stats.delivered
    fetched = stats.fetch.nbytes
    waited, busy = stats.consumer_wait_ns, stats.consumer_busy_ns
    batches = iter(loader)
    chosen = {"total": total, "initial": size * batches.resumed, "unit": " records", "unit_scale": True, **options}
    with closing(batches), tqdm(**chosen) as bar:
        # Once more at the end: batches without survivors may have been left out.
        for batch in chain(batches, (_END,)):
            stall = (stats.consumer_wait_ns - waited) / max(1, _time(stats) - waited - busy)
            text = f"stall {stall:.0%}, {stats.taken - stats.delivered - failed} errors"
            if stats.fetch.spent[1]:
                text += f", fetched {(stats.fetch.nbytes - fetched) / 1e6:,.1f} MB, {stats.fetch.in_flight} requests"
            bar.set_postfix_str(text, refresh=False)
            bar.update(stats.taken - taken)
            taken = stats.taken
            if batch is not _END:
                yield batch


def _time(stats: RunStats) -> int:
    return stats.consumer_wait_ns + stats.consumer_busy_ns
