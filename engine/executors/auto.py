"""The executor of `workers="auto"`: threads, until it shows that the interpreter lock holds them back.

While the first batches run, a probe samples how often the lock is taken. Above `LOCK_SHARE`, and when the work per record is worth
a message, worker processes are started in the background; from the moment they are ready new batches go to them. Batches that
were begun on threads end there, so nothing is lost and nothing comes out differently.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from ..buffers import BufferPool
from ..gil import MEASURABLE, gil_taken, thread_seconds
from ..physical import Program
from .base import Executor, Placement, Task
from .process import ProcessExecutor
from .thread import ThreadExecutor

LOCK_SHARE = 0.5
"""Share of moments in which the lock is taken, above which processes are started.

Measured on 2 cores, records per second of processes to those of threads: 0.5 at 0.81 with nothing to do but to pass bytes on,
1.1 at 0.29 (400x500 JPEG to 224x224), 1.3 at 0.40 (the same with a trainer that computes in Python), 2.0 at 0.94 (a Python op),
2.3 at 0.89 (64x64 JPEG).
"""
RECORD_SECONDS = 25e-6
"""Workers' processor time per record below which processes lose: to send a record and take its result costs 10 to 20 us."""
_SLICE = 8
"""Samples between two looks at whether the loader is working at all: some 130 ms."""
_WARM_UP = 4
"""Slices before the ones that count: workers import their libraries then, which takes the lock."""
_SLICES = 12
"""Slices that count."""


def make_executor(kind: str, program: Program, reason: str = "", placement: Placement = Placement()) -> Executor:  # noqa: B008
    """The executor for `kind`: "thread", "process" or "auto".

    Raises:
        WorkerDiedError: processes cannot be started, or cannot load the plan.
    """
    if kind == "process":
        return ProcessExecutor(program, placement, reason=reason).start()
    if kind == "auto":
        return AutoExecutor(program)
    return ThreadExecutor(reason)


class AutoExecutor:
    """Threads first, processes when they do better."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._threads = ThreadExecutor()
        self._processes: ProcessExecutor | None = None
        self._candidate: ProcessExecutor | None = None
        self._records = 0
        self._share: float | None = None
        self._reason = "the share of the interpreter lock is being measured"
        self._working = threading.Event()
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._choice: threading.Thread | None = None
        if program.inline:
            self._reason = "nothing to read, decode or transform"
        elif not MEASURABLE:
            self._reason = "the share of the interpreter lock cannot be measured on this platform"
        else:
            self._choice = threading.Thread(target=self._choose, name="dataio-executor-choice", daemon=True)

    # ---------------------------------------------------------------- what the graph sees

    @property
    def _current(self) -> ThreadExecutor | ProcessExecutor:
        return self._processes or self._threads

    @property
    def workers(self) -> int:
        return self._current.workers

    @property
    def buffers(self) -> BufferPool:
        return self._current.buffers

    @property
    def splits(self) -> int:
        return self._current.splits

    @property
    def pools_batches(self) -> bool:
        return self._current.pools_batches

    @property
    def morsel_rows(self) -> int:
        return self._current.morsel_rows

    @property
    def pids(self) -> list[int]:
        """Process ids of the worker processes."""
        return [] if self._processes is None else self._processes.pids

    def submit(self, task: Task) -> None:
        self._records += task.morsel.length
        if self._choice is not None and not self._working.is_set():
            self._working.set()
            if self._choice.ident is None:
                self._choice.start()
        processes = self._processes
        # The buffers say which executor was there when the batch was begun; threads can work in either kind.
        if processes is not None and all(block.mapping.descriptor >= 0 for block in task.blocks().values()):
            processes.submit(task)
        else:
            self._threads.submit(task)

    def describe(self) -> dict[str, Any]:
        kind = "thread" if self._processes is None else "process"
        return {"kind": kind, "reason": self._reason, "gil_share": self._share}

    def close(self, deadline: float) -> None:
        with self._lock:
            self._closing.set()
            candidate = self._candidate
        self._working.set()
        if candidate is not None:
            candidate.close(deadline)
        if self._choice is not None and self._choice.ident is not None and self._choice is not threading.current_thread():
            self._choice.join(max(0.0, deadline - time.monotonic()))
        self._threads.close(deadline)

    # ---------------------------------------------------------------- the choice, on its own thread

    def _choose(self) -> None:
        measured = self._measure()
        if measured is None:
            return
        share, seconds = measured
        self._share = share
        found = f"the interpreter lock is taken {share:.0%} of the time"
        if share < LOCK_SHARE:
            self._reason = f"{found}, less than {LOCK_SHARE:.0%}"
            return
        if seconds < RECORD_SECONDS:
            self._reason = f"{found}, but {seconds * 1e6:.0f} us of work per record are less than sending it would cost"
            return
        self._reason = f"{found}; processes are being started"
        try:
            processes = ProcessExecutor(self._program, unsendable=self._threads.submit)
            with self._lock:
                if self._closing.is_set():
                    return
                self._candidate = processes
            processes.start()
        except Exception as error:  # a plan that cannot be pickled, or not be loaded in another process
            self._reason = f"{found}, but the plan cannot go to processes: {error}"
            return
        self._reason = found
        self._processes = processes

    def _measure(self) -> tuple[float, float] | None:
        """(share of moments in which the lock was taken, workers' processor seconds per record); None when closed first."""
        taken = slices = records = 0
        seconds = 0.0
        while slices < _WARM_UP + _SLICES:
            before, used = self._records, thread_seconds(self._threads.threads)
            waits = 0
            for _ in range(_SLICE):
                waits += gil_taken()
                if self._closing.is_set():
                    return None
            if self._records == before:  # the trainer does something else: nothing to learn from that
                self._pause(before)
                continue
            slices += 1
            if slices > _WARM_UP:
                taken += waits
                records += self._records - before
                seconds += thread_seconds(self._threads.threads) - used
        return taken / (_SLICE * _SLICES), seconds / records

    def _pause(self, records: int) -> None:
        """Wait until records come again."""
        self._working.clear()
        if self._records == records and not self._closing.is_set():
            self._working.wait()
