"""The thread executor: one pool for the whole process, alive while some loader uses it.

Kernels release the GIL (libjpeg-turbo, OpenCV, torch, NumPy), so threads share the batch buffers without copying.
"""

from __future__ import annotations

import os
import threading
import time
from queue import SimpleQueue
from typing import Any

from ..buffers import BufferPool
from ..settings import cpu_workers
from ..work import run_morsel
from .base import Task


class _Pool:
    """The worker threads. Made by the first loader, ended after the last."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.users = 0
        self.buffers = BufferPool()
        self.tasks: SimpleQueue[Task | None] = SimpleQueue()
        self.threads = [
            threading.Thread(target=_work, args=(self.tasks,), name=f"dataio-worker-{i}", daemon=True)
            for i in range(workers)
        ]
        for thread in self.threads:
            thread.start()

    def stop(self, deadline: float) -> None:
        for _ in self.threads:
            self.tasks.put(None)
        for thread in self.threads:
            if thread is not threading.current_thread():
                # A call that does not return is left behind: its thread is a daemon.
                thread.join(max(0.0, deadline - time.monotonic()))
        self.buffers.close()


_lock = threading.RLock()
_shared: _Pool | None = None


def _forget() -> None:
    """In a forked child: the pool's threads stayed in the parent, and one of them may have held the lock."""
    global _lock, _shared
    _lock = threading.RLock()
    _shared = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def _work(tasks: SimpleQueue[Task | None]) -> None:
    prepared: set[object] = set()
    while (task := tasks.get()) is not None:
        if task.stopped():
            del task  # as below: it holds its batch
            continue
        try:
            for setup in task.program.setups:
                if setup not in prepared:
                    setup()
                    prepared.add(setup)
            morsel = task.morsel
            rows = slice(morsel.offset, morsel.offset + morsel.length)
            blocks = {slot: block.array[rows] for slot, block in task.job.blocks.items()}
            job = task.job
            result = run_morsel(
                task.program, morsel, blocks, task.seed, task.epoch, job.inactive, task.stopped, job.guessed, job.memory.ledger
            )
            del blocks, morsel, job  # a worker that waits must not keep a batch's memory
            task.done(task.job, result)
        except BaseException as error:
            task.done(task.job, error)
        task = None


class ThreadExecutor:
    """A loader's share of the process-wide pool."""

    splits = 4
    pools_batches = False
    morsel_rows = 16

    def __init__(self, reason: str = "") -> None:
        global _shared
        self._reason = reason
        with _lock:
            if _shared is None:
                _shared = _Pool(cpu_workers())
            _shared.users += 1
            self._pool: _Pool | None = _shared
        self.workers = _shared.workers
        self.buffers = _shared.buffers
        self._tasks = _shared.tasks

    def submit(self, task: Task) -> None:
        self._tasks.put(task)

    @property
    def threads(self) -> list[threading.Thread]:
        """The pool's threads."""
        return [] if self._pool is None else self._pool.threads

    def describe(self) -> dict[str, Any]:
        return {"kind": "thread", "reason": self._reason, "gil_share": None}

    def close(self, deadline: float) -> None:
        global _shared
        with _lock:
            pool, self._pool = self._pool, None
            if pool is None:
                return
            pool.users -= 1
            if pool.users:
                return
            _shared = None
        pool.stop(deadline)
