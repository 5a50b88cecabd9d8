"""The thread executor: one pool for the whole process, alive while some loader uses it.

Kernels release the GIL (libjpeg-turbo, OpenCV, torch, NumPy), so threads share the batch buffers without copying.
"""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import Any

from ..buffers import BufferPool
from ..settings import cpu_workers
from ..work import run_morsel
from .base import Task
from .shared import Shared, end_threads


class _Pool:
    """The worker threads. Made by the first loader, ended after the last."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.buffers = BufferPool()
        self.tasks: SimpleQueue[Task | None] = SimpleQueue()
        self.threads = [
            threading.Thread(target=_work, args=(self.tasks,), name=f"dataio-worker-{i}", daemon=True)
            for i in range(workers)
        ]
        for thread in self.threads:
            thread.start()

    def stop(self, deadline: float) -> None:
        end_threads(self.threads, self.tasks, deadline)
        self.buffers.close()


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


_shared = Shared(lambda: _Pool(cpu_workers()), _Pool.stop)


class ThreadExecutor:
    """A loader's share of the process-wide pool."""

    splits = 4
    pools_batches = False
    morsel_rows = 16

    def __init__(self, reason: str = "") -> None:
        self._reason = reason
        pool = _shared.take()
        self._pool: _Pool | None = pool
        self.workers = pool.workers
        self.buffers = pool.buffers
        self._tasks = pool.tasks

    def submit(self, task: Task) -> None:
        self._tasks.put(task)

    @property
    def threads(self) -> list[threading.Thread]:
        """The pool's threads."""
        return [] if self._pool is None else self._pool.threads

    def describe(self) -> dict[str, Any]:
        return {"kind": "thread", "reason": self._reason, "gil_share": None}

    def close(self, deadline: float) -> None:
        with _shared.lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            _shared.give(pool, deadline)
