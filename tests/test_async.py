"""`async with loader.aiter()`: the same batches, an event loop that runs on, and nothing left when it is cancelled."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import dataio
from dataio.engine.errors import BatchError, ClosedError, SourceError

from .conftest import npy

pytestmark = [pytest.mark.alone, pytest.mark.usefixtures("two_workers", "no_leftovers")]

X = dataio.slot("x").decode_npy()
NOISE = dataio.slot("x").decode_npy().gaussian_noise(std=1.0)


def records(count: int) -> list[dict[str, Any]]:
    return [{"x": npy(np.full(3, i, np.float32))} for i in range(count)]


def load(source: Any, *stages: Any, **options: Any) -> dataio.DataLoader:
    options.setdefault("workers", "thread")
    return dataio.pipeline(*(stages or (X, dataio.batch(2)))).bind(source).run("numpy", **options)


def values(batch: Any) -> list[float]:
    return [float(row[0]) for row in batch["x"]]


async def epoch(loader: dataio.DataLoader) -> list[list[float]]:
    async with loader.aiter() as batches:
        return [values(batch) async for batch in batches]


def of_a_pass() -> list[str]:
    """Threads that live only while a pass is under way."""
    names = ("dataio-async", "dataio-source", "dataio-shape")
    return [thread.name for thread in threading.enumerate() if thread.name in names]


class Gate:
    """Records, of which all but the first `open_ones` are held back until `open` is called."""

    def __init__(self, count: int, open_ones: int) -> None:
        self.count, self.open_ones = count, open_ones
        self.gate = threading.Event()
        self.reached = threading.Event()

    def open(self) -> None:
        self.gate.set()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for number, record in enumerate(records(self.count)):
            if number == self.open_ones:
                self.reached.set()
                if not self.gate.wait(30):
                    raise TimeoutError("nobody opened the gate")
            yield record


def gated(gate: Gate, **options: Any) -> dataio.DataLoader:
    return load(gate, X, dataio.batch(2), **options)


# -------------------------------------------------------------------- batches


@pytest.mark.parametrize("workers", ["thread", "process"])
def test_the_batches_are_those_of_a_for_loop(workers: str) -> None:
    with load(records(7), NOISE, dataio.batch(2), seed=3, workers=workers) as loader:
        plain = [[values(batch) for batch in loader] for _ in range(2)]
    with load(records(7), NOISE, dataio.batch(2), seed=3, workers=workers) as loader:
        assert asyncio.run(epoch(loader)) == plain[0]
        assert asyncio.run(epoch(loader)) == plain[1]
    assert plain[0] != plain[1]


def test_the_event_loop_runs_while_a_batch_is_awaited() -> None:
    """The batch can only come once another coroutine ran."""
    gate = Gate(4, open_ones=2)

    async def open_soon() -> None:
        while not gate.reached.is_set():
            await asyncio.sleep(0.001)
        gate.open()

    async def main(loader: dataio.DataLoader) -> list[list[float]]:
        opening = asyncio.create_task(open_soon())
        batches = await epoch(loader)
        await opening
        return batches

    with gated(gate) as loader:
        assert asyncio.run(main(loader)) == [[0, 1], [2, 3]]


def test_batches_left_out_of_a_for_loop_are_left_out_here() -> None:
    bad = [{"x": b"no array"}] * 2
    with load([*records(2), *bad, *records(2)], on_failure=0, emit_empty_batches=False) as loader:
        assert asyncio.run(epoch(loader)) == [[0, 1], [0, 1]]


def test_hooks_run_on_the_thread_of_the_event_loop() -> None:
    threads: list[threading.Thread] = []
    with load(records(4)) as loader:
        loader.set_metrics_hook(lambda _: threads.append(threading.current_thread()))
        asyncio.run(epoch(loader))
    assert threads == [threading.current_thread()] * 2


# -------------------------------------------------------------------- one at a time


def test_another_iteration_is_refused_while_one_is_under_way() -> None:
    async def main(loader: dataio.DataLoader) -> None:
        async with loader.aiter() as batches:
            await anext(batches)
            with pytest.raises(RuntimeError, match="iterated already"):
                iter(loader)
            with pytest.raises(RuntimeError, match="iterated already"):
                await epoch(loader)
            assert [values(batch) async for batch in batches] == [[2, 3], [4, 5]]

    with load(records(6)) as loader:
        asyncio.run(main(loader))
        first = iter(loader)
        with pytest.raises(RuntimeError, match="iterated already"):
            asyncio.run(epoch(loader))
        assert values(next(first)) == [0, 1]


def test_two_tasks_cannot_await_one_batch() -> None:
    gate = Gate(2, open_ones=0)

    async def main(loader: dataio.DataLoader) -> None:
        async with loader.aiter() as batches:
            first = asyncio.ensure_future(anext(batches))
            await asyncio.sleep(0)
            with pytest.raises(RuntimeError, match="another task"):
                await anext(batches)
            gate.open()
            assert values(await first) == [0, 1]

    with gated(gate) as loader:
        asyncio.run(main(loader))


def test_it_is_used_with_async_with() -> None:
    async def main(loader: dataio.DataLoader) -> None:
        with pytest.raises(RuntimeError, match="async with"):
            await anext(loader.aiter())

    with load(records(2)) as loader:
        asyncio.run(main(loader))


def test_an_object_gives_one_pass() -> None:
    async def main(loader: dataio.DataLoader) -> None:
        batches = loader.aiter()
        async with batches:
            pass
        with pytest.raises(RuntimeError, match="one pass"):
            async with batches:
                pass

    with load(records(2)) as loader:
        asyncio.run(main(loader))


# -------------------------------------------------------------------- ending


def test_a_task_that_is_cancelled_while_it_waits_stops_the_pass() -> None:
    gate = Gate(4, open_ones=2)

    async def main(loader: dataio.DataLoader) -> None:
        task = asyncio.create_task(epoch(loader))
        while not gate.reached.is_set():
            await asyncio.sleep(0.001)
        task.cancel()
        gate.open()  # a source cannot be interrupted, only left
        with pytest.raises(asyncio.CancelledError):
            await task

    with gated(gate) as loader:
        asyncio.run(main(loader))
        assert of_a_pass() == []
        assert asyncio.run(epoch(loader)) == [[0, 1], [2, 3]]


def test_awaiting_that_times_out_loses_no_batch() -> None:
    gate = Gate(6, open_ones=2)

    async def main(loader: dataio.DataLoader) -> list[list[float]]:
        got: list[list[float]] = []
        async with loader.aiter() as batches:
            got.append(values(await anext(batches)))
            for _ in range(3):
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(anext(batches), 0.01)
            gate.open()
            async for batch in batches:
                got.append(values(batch))
        return got

    with gated(gate) as loader:
        assert asyncio.run(main(loader)) == [[0, 1], [2, 3], [4, 5]]


def test_the_state_counts_what_was_awaited_to_the_end() -> None:
    """A batch that arrived for a task that no longer awaits it is delivered after a resume."""
    gate = Gate(6, open_ones=2)

    async def main(loader: dataio.DataLoader) -> dict[str, Any]:
        async with loader.aiter() as batches:
            await anext(batches)
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(anext(batches), 0.01)
            gate.open()
            while loader.stats()["batches_delivered"] < 2:
                await asyncio.sleep(0.001)
        return loader.state_dict()

    with gated(gate) as loader:
        state = asyncio.run(main(loader))
    with gated(gate) as loader:
        loader.load_state_dict(state)
        assert asyncio.run(epoch(loader)) == [[2, 3], [4, 5]]


@pytest.mark.parametrize("taken", [0, 1, 3])
def test_leaving_the_block_early_stops_the_pass(taken: int) -> None:
    async def main(loader: dataio.DataLoader) -> None:
        async with loader.aiter() as batches:
            for _ in range(taken):
                await anext(batches)
        with pytest.raises(StopAsyncIteration):
            await anext(batches)

    with load(records(6)) as loader:
        asyncio.run(main(loader))
        assert of_a_pass() == []
        assert asyncio.run(epoch(loader)) == [[0, 1], [2, 3], [4, 5]]


def test_an_exception_in_the_block_stops_the_pass() -> None:
    async def main(loader: dataio.DataLoader) -> None:
        async with loader.aiter() as batches:
            async for _ in batches:
                raise LookupError("of the training loop")

    with load(records(6)) as loader:
        with pytest.raises(LookupError):
            asyncio.run(main(loader))
        assert asyncio.run(epoch(loader)) == [[0, 1], [2, 3], [4, 5]]


def test_closing_the_loader_ends_an_iteration_that_waits() -> None:
    gate = Gate(4, open_ones=2)

    async def main(loader: dataio.DataLoader) -> None:
        async with loader.aiter() as batches:
            await anext(batches)
            waiting = asyncio.ensure_future(anext(batches, None))
            while not gate.reached.is_set():
                await asyncio.sleep(0.001)
            gate.open()
            loader.close()
            assert await waiting is None

    asyncio.run(main(gated(gate)))


def test_an_iteration_that_is_dropped_stops_its_thread() -> None:
    """Its event loop was closed without the block being left."""
    with load(records(6)) as loader:
        loop = asyncio.new_event_loop()
        batches = loader.aiter()
        loop.run_until_complete(batches.__aenter__())
        assert values(loop.run_until_complete(anext(batches))) == [0, 1]
        loop.close()
        (thread,) = (thread for thread in threading.enumerate() if thread.name == "dataio-async")
        del batches
        gc.collect()
        thread.join(30)
        assert of_a_pass() == []


# -------------------------------------------------------------------- errors


def failing_source() -> Iterator[dict[str, Any]]:
    yield from records(2)
    raise OSError("the disk is gone")


def failing_map(batch: Any) -> Any:
    raise LookupError("in the map")


BAD = [{"x": b"no array"}]
CROP = dataio.slot("image").decode_image().center_crop(h=dataio.param("unset"), w=4)
ERRORS: dict[str, tuple[Callable[[], dataio.DataLoader], type[BaseException]]] = {
    "source": (lambda: load(failing_source), SourceError),
    "batch map": (lambda: load(records(2), X, dataio.batch(2), dataio.map(failing_map)), LookupError),
    "row": (lambda: load(BAD, on_failure="strict"), BatchError),
    "plan": (lambda: load(records(2), CROP, dataio.batch(2)), ValueError),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors_are_raised_where_the_batch_is_awaited(case: str) -> None:
    make, error = ERRORS[case]
    with make() as loader, pytest.raises(error):
        asyncio.run(epoch(loader))


def test_a_closed_loader_is_refused() -> None:
    loader = load(records(2))
    loader.close()
    with pytest.raises(ClosedError):
        asyncio.run(epoch(loader))
