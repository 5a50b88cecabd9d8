"""What a loader holds in memory, in bytes: four accounts, and the limit that new work waits for.

| account | what |
| --- | --- |
| `fetched` | encoded bytes of batches in work: what their records carry, and what workers have read and not yet decoded |
| `source` | records that shuffle windows, open buckets and packed rows hold back (their number times the mean record) |
| `batches` | batch buffers and ragged rows of batches in work, or finished and not taken; before they are there, an estimate |
| `delivered` | the same of batches that the consumer took and still holds |

Bytes are entered where they come about and leave with the object that held them: finalizers only append to a queue, since
they may run on any thread in the middle of anything; whoever next looks at the accounts applies the queue.
"""

from __future__ import annotations

import logging
import re
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from queue import SimpleQueue
from typing import Any

import numpy as np

from .buffers import Block, BufferPool, size_class
from .units import Unit

logger = logging.getLogger("dataio.memory")

FETCHED, SOURCE, BATCHES, DELIVERED = ACCOUNTS = ("fetched", "source", "batches", "delivered")
_UNITS = {"": 1, **{p + s: b ** (i + 1) for i, p in enumerate("kmgt") for s, b in (("", 1000), ("b", 1000), ("ib", 1024))}, "b": 1}
_PLAIN = frozenset((int, float, bool, type(None)))
_SAMPLE = 4
"""Records of a batch that are looked at to estimate what all of them carry."""


def parse_bytes(name: str, value: Any) -> int:
    """Bytes of the option `name`, from a positive integer, or a text such as "4GiB", "1.5 GB" or "300000".

    Raises:
        TypeError: neither.
        ValueError: a text of another form, or less than one byte.
    """
    if isinstance(value, str):
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", value.lower())
        if found is None or found[2] not in _UNITS:
            raise ValueError(f'{name} is written like "4GiB", "500MB" or 300000, got {value!r}')
        value = int(float(found[1]) * _UNITS[found[2]])
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f'{name} must be an integer or a str like "4GiB", got {value!r}')
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")
    return value


class Account:
    """Bytes now and at most so far."""

    __slots__ = ("now", "peak")

    def __init__(self) -> None:
        self.now = self.peak = 0

    def add(self, nbytes: int) -> None:
        self.now += nbytes
        if self.now > self.peak:
            self.peak = self.now


class Charge:
    """Bytes in one account until `drop`, or until nobody holds the charge any more."""

    __slots__ = ("_account", "_ledger", "_nbytes")

    def __init__(self, ledger: Ledger, account: Account, nbytes: int) -> None:
        self._ledger, self._account, self._nbytes = ledger, account, nbytes
        if nbytes:
            ledger._add(account, nbytes)

    def drop(self) -> None:
        """Take the bytes out; idempotent."""
        nbytes, self._nbytes = self._nbytes, 0
        if nbytes:
            self._ledger._gone(self._account, nbytes)

    def __del__(self) -> None:
        self.drop()


class _View(weakref.ref["np.ndarray"]):
    """Tells the ledger when an array that lies in no batch buffer has died."""

    __slots__ = ("memory", "nbytes")
    memory: BatchMemory
    nbytes: int

    def gone(self) -> None:
        self.memory.ledger._views.pop(id(self), None)
        self.memory.freed(self.nbytes)


class BatchMemory:
    """The memory of one batch, from the moment it is begun until its last view dies."""

    __slots__ = ("__weakref__", "_account", "_carried", "_expected", "_nbytes", "ledger")

    def __init__(self, ledger: Ledger, carried: int) -> None:
        """`carried`: bytes that its records hold."""
        self.ledger = ledger
        self._account = ledger._accounts[BATCHES]
        self._nbytes = self._expected = 0
        self._carried = carried
        if carried:
            ledger._add(ledger._accounts[FETCHED], carried)

    def add(self, nbytes: int) -> None:
        """Called by the ledger, with its lock held."""
        if nbytes > 0 and self._expected:
            used = min(nbytes, self._expected)
            self._expected -= used
            self._account.now -= used
            self.ledger._total.now -= used
        self._nbytes += nbytes
        self._account.add(nbytes)

    def expect(self, nbytes: int) -> None:
        """An estimate of what the batch will hold: what is entered until `finished` takes its place."""
        self._drop_expected()
        self._expected = nbytes
        if nbytes:
            self.ledger._add(self._account, nbytes)

    def allocate(self, pool: BufferPool, shape: tuple[int, ...], dtype: np.dtype) -> Block:
        """A batch buffer; it leaves the account when its last view dies."""
        block = pool.acquire(shape, dtype, self.freed)
        self.ledger._add(self, block.mapping.size)
        return block

    def hold(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Arrays that lie in no batch buffer, as views that are counted: each leaves the account when its view dies."""
        views = []
        for array in arrays:
            view = array.view()
            if view.nbytes:
                reference = _View(view, _View.gone)
                reference.memory, reference.nbytes = self, view.nbytes
                self.ledger._views[id(reference)] = reference
            views.append(view)
        if total := sum(view.nbytes for view in views):
            self.ledger._add(self, total)
        return views

    def freed(self, nbytes: int) -> None:
        """Called by finalizers."""
        self.ledger._gone(self, nbytes)

    def finished(self) -> None:
        """The records are decoded, and what became of them is entered."""
        carried, self._carried = self._carried, 0
        if carried:
            self.ledger._gone(self.ledger._accounts[FETCHED], carried)
        self._drop_expected()

    def _drop_expected(self) -> None:
        expected, self._expected = self._expected, 0
        if expected:
            self.ledger._gone(self.ledger._accounts[BATCHES], expected)

    def __del__(self) -> None:
        self.finished()

    def deliver(self) -> None:
        """The consumer takes the batch."""
        ledger = self.ledger
        if not self._nbytes:
            self._account = ledger._accounts[DELIVERED]
            ledger.wake()
            return
        with ledger._lock:
            ledger._settle()
            self._account.now -= self._nbytes
            self._account = ledger._accounts[DELIVERED]
            self._account.add(self._nbytes)
        ledger.wake()


class Ledger:
    """The accounts of one loader.

    Attributes:
        limit: bytes that new batches wait for to fit; None for no limit.
    """

    def __init__(self, limit: int | None = None) -> None:
        self.limit = limit
        self._accounts = {name: Account() for name in ACCOUNTS}
        self._total = Account()
        self._lock = threading.RLock()  # a signal handler may look at the accounts in the middle of an entry
        self._left: deque[tuple[Account | BatchMemory, int]] = deque()
        self._views: dict[int, _View] = {}
        self._row_bytes: dict[str, float] = {}
        self._read_bytes = self._record_bytes = 0.0
        self._held = 0
        self._waiting = False
        self._wakes: SimpleQueue[None] = SimpleQueue()
        self._warned = False

    # ---------------------------------------------------------------- entries

    def _add(self, entry: Account | BatchMemory, nbytes: int) -> None:
        with self._lock:
            if self._left:
                self._settle()
            entry.add(nbytes)
            self._total.add(nbytes)

    def _gone(self, entry: Account | BatchMemory, nbytes: int) -> None:
        self._left.append((entry, nbytes))
        self.wake()

    def _settle(self) -> None:
        """Apply what has left; with the lock held."""
        while self._left:
            entry, nbytes = self._left.popleft()
            entry.add(-nbytes)
            self._total.now -= nbytes
            del entry  # a batch that nothing else holds takes out the rest of its bytes now

    def read(self, nbytes: int) -> Charge:
        """Bytes that were read and wait to be decoded."""
        return Charge(self, self._accounts[FETCHED], nbytes)

    def reading(self, records: int) -> Charge:
        """The same, where only an estimate is at hand: a worker process has the bytes."""
        return self.read(int(self._read_bytes * records))

    def hold_back(self, records: int) -> None:
        """The source holds this many records back. One thread calls it."""
        nbytes = int(records * self._record_bytes)
        if change := nbytes - self._held:
            self._held = nbytes
            self._add(self._accounts[SOURCE], change)

    # ---------------------------------------------------------------- estimates, each with one writer

    def note_read(self, nbytes: int, records: int) -> None:
        """Workers read this much for some records."""
        if records and nbytes:
            self._read_bytes = _mean(self._read_bytes, nbytes / records)

    def note_rows(self, slot: str, nbytes: int, rows: int) -> None:
        """The rows of a finished slot whose size was not known."""
        if rows:
            self._row_bytes[slot] = _mean(self._row_bytes.get(slot, 0.0), nbytes / rows)

    def expected(self, slots: Sequence[str], rows: int) -> int | None:
        """What rows of these slots will take by those of the batches before; None when there were none."""
        each = [self._row_bytes.get(slot) for slot in slots]
        return None if None in each else int(sum(n for n in each if n is not None) * rows)

    def carried(self, unit: Unit) -> int:
        """What the records of a unit carry; notes how much each does."""
        length = len(unit)
        if not length:
            return 0
        if unit.batch is not None:
            nbytes = int(unit.batch.nbytes)
        else:
            sample = unit.rows[:: max(1, length // _SAMPLE)] if unit.rows is not None else []
            nbytes = sum(map(value_bytes, sample)) * length // len(sample)
        self._record_bytes = _mean(self._record_bytes, nbytes / length)
        return nbytes

    # ---------------------------------------------------------------- the limit

    def admit(
        self,
        needed: Callable[[], int | None],
        busy: Callable[[], bool],
        asked: Callable[[], bool],
        stopped: Callable[[], bool],
        pool: BufferPool,
    ) -> bool:
        """Wait until `needed()` more bytes fit (None: not known, so the batch is begun when no other is in flight).

        Where nothing will change any more the batch is begun all the same: no other is in flight (`busy()` is false), and the
        consumer waits for one (`asked()`), which it does once it let go of what it will.

        Returns:
            False when the graph is `stopped()`.
        """
        if self.limit is None:
            return True
        self._waiting = True  # before looking, so that whatever changes afterwards wakes
        while not stopped():
            alone, due = not busy(), asked()
            room = self.limit - self.total()
            more = needed()
            fits = alone if more is None else more <= room
            if fits or (alone and due):
                self._waiting = False
                if not fits and more is not None:
                    self._warn(more)
                pool.trim(max(0, room))  # free buffers beyond the limit are memory too
                return True
            self._wakes.get()
        self._waiting = False
        return False

    def wake(self) -> None:
        """Have a waiting `admit` look again."""
        if self._waiting:
            self._wakes.put(None)

    def _warn(self, needed: int) -> None:
        if self._warned:
            return
        self._warned = True
        now = {name: account.now for name, account in self._accounts.items()}
        held = ", ".join(f"{name} {nbytes:,}" for name, nbytes in now.items() if nbytes) or "nothing"
        why = (
            "the training loop keeps batches that it was given" if needed <= (self.limit or 0) else "one batch needs more than that"
        )
        logger.warning(
            "max_bytes=%s cannot be kept: %s. The next batch needs about %s bytes and is begun alone; held are, in bytes: %s. "
            "Give a larger max_bytes or smaller batches, or drop batches sooner",
            f"{self.limit:,}", why, f"{needed:,}", held,
        )  # fmt: skip

    # ---------------------------------------------------------------- looking

    def total(self) -> int:
        """Bytes in all accounts."""
        with self._lock:
            self._settle()
            return self._total.now

    def stats(self) -> dict[str, Any]:
        """Each account and the total as `{"current", "max"}` in bytes, and `limit`."""
        with self._lock:
            self._settle()
            accounts = {**self._accounts, "total": self._total}
            return {**{k: {"current": a.now, "max": a.peak} for k, a in accounts.items()}, "limit": self.limit}


def _mean(before: float, found: float) -> float:
    return found if not before else before + (found - before) * 0.2


def buffer_bytes(shape: tuple[int, ...], dtype: np.dtype) -> int:
    """What a batch buffer of this shape takes."""
    return size_class(int(np.prod(shape, dtype=np.int64)) * dtype.itemsize)


def value_bytes(value: Any) -> int:
    """Roughly the bytes of a record's content: of bytes, text, arrays and lists, alone or as fields. Called per batch."""
    kind = type(value)
    if kind is dict:
        total = 0
        for inner in value.values():
            total += value_bytes(inner)
        return total
    if kind in _PLAIN:
        return 0
    if isinstance(value, (bytes, bytearray, str)):
        return len(value)
    if isinstance(value, Mapping):
        return sum(map(value_bytes, value.values()))
    if isinstance(value, (list, tuple)):
        return 8 * len(value)
    return int(getattr(value, "nbytes", 0) or 0)
