"""Actors, mailboxes and credits; what becomes of failures; the bounds that the graph keeps."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import dataio
from dataio.engine.actor import Actor, Credits, Mailbox, Mark
from dataio.engine.actors.shape import ShapeActor
from dataio.engine.actors.source import SourceActor
from dataio.engine.errors import InternalError

from .helpers import npy, numbers


class Boss:
    """A supervisor that only listens."""

    def __init__(self) -> None:
        self.errors: list[BaseException] = []

    def fail(self, error: BaseException) -> None:
        self.errors.append(error)


class Echo(Actor):
    def __init__(self, boss: Boss) -> None:
        super().__init__("echo", boss, Mailbox("echo", 4))
        self.seen: list[Any] = []
        self.ended = threading.Event()

    def receive(self, message: Any) -> None:
        if message == "bad":
            raise ValueError("no such thing")
        self.seen.append(message)

    def finished(self) -> None:
        self.ended.set()


def test_a_full_mailbox_is_a_bug_and_says_so() -> None:
    box = Mailbox("shape", 2)
    box.put("a")
    box.put("b")
    box.put(Mark.END)  # marks take no place
    with pytest.raises(InternalError, match="mailbox shape holds 3 of 2 messages: a credit was lost"):
        box.put("c")
    assert [box.get() for _ in range(3)] == ["a", "b", Mark.END]
    assert len(box) == 0
    assert box.high == 3


def test_credits() -> None:
    credits = Credits(2)
    assert credits.take()
    assert credits.take()
    assert credits.free == 0
    taken: list[bool] = []
    waiter = threading.Thread(target=lambda: taken.append(credits.take()))
    waiter.start()
    time.sleep(0.02)
    assert taken == []
    credits.give()
    waiter.join(5)
    assert taken == [True]
    waiter = threading.Thread(target=lambda: taken.append(credits.take()))
    waiter.start()
    credits.cancel()
    waiter.join(5)
    assert taken == [True, False]


def test_an_actor_receives_in_order_until_stopped() -> None:
    boss = Boss()
    echo = Echo(boss)
    echo.start()
    for message in (1, 2, Mark.END):
        echo.mailbox.put(message)
    echo.mailbox.put(Mark.STOP)
    echo.thread.join(5)
    assert echo.seen == [1, 2, Mark.END]
    assert echo.ended.is_set()
    assert boss.errors == []


def test_a_failing_actor_tells_its_supervisor_and_ends() -> None:
    boss = Boss()
    echo = Echo(boss)
    echo.start()
    echo.mailbox.put(1)
    echo.mailbox.put("bad")
    echo.thread.join(5)
    assert echo.ended.is_set()
    (error,) = boss.errors
    assert isinstance(error, ValueError)
    assert error.__notes__ == ["in actor echo"]


@pytest.mark.timeout(20)
@pytest.mark.parametrize(("actor", "method"), [(SourceActor, "dispatch"), (ShapeActor, "receive")])
def test_a_bug_in_an_actor_reaches_the_consumer(monkeypatch: pytest.MonkeyPatch, actor: Any, method: str) -> None:
    def bug(*args: Any) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(actor, method, bug)
    with numbers().bind([{"x": npy(1)}] * 10).run("numpy") as loader, pytest.raises(ZeroDivisionError, match="a bug") as caught:
        list(loader)
    if actor is ShapeActor:
        assert "in actor shape" in caught.value.__notes__
    assert not [t for t in threading.enumerate() if t.name.startswith("dataio-")]


@pytest.mark.timeout(20)
def test_a_failing_batch_map_reaches_the_consumer_with_its_batch() -> None:
    def failing(batch: dataio.Batch) -> Any:
        if batch.keys[0] == "4":
            raise LookupError("not this one")
        return batch.keys

    pipe = dataio.pipeline(dataio.slot("x").decode_npy(), dataio.batch(2), dataio.map(failing))
    seen: list[list[str]] = []
    with pipe.bind([{"x": npy(1)}] * 10).run("numpy") as loader, pytest.raises(LookupError) as caught:
        seen.extend(loader)
    assert seen == [["0", "1"], ["2", "3"]]
    assert caught.value.__notes__ == ["in a batch map, batch 2"]


@pytest.mark.timeout(20)
@pytest.mark.parametrize("prefetch", [1, 3])
def test_credits_bound_what_is_read_ahead(prefetch: int) -> None:
    pulled = 0

    def source() -> Iterator[dict[str, Any]]:
        nonlocal pulled
        for _ in range(100):
            pulled += 1
            yield {"x": npy(1)}

    pipe = dataio.pipeline(dataio.slot("x").decode_npy(), dataio.batch(2, prefetch=prefetch))
    with pipe.bind(source).run("numpy") as loader:
        batches = iter(loader)
        for taken in range(1, 6):
            next(batches)
            time.sleep(0.05)
            assert pulled <= 2 * (taken + prefetch)
        depths = loader._resources.graph
        assert depths is not None
        assert depths.delivery.high <= prefetch


@pytest.mark.timeout(20)
@pytest.mark.parametrize("bound", [1, 2])
def test_concurrency_bounds_the_records_at_work(bound: int) -> None:
    lock = threading.Lock()
    at_work = most = 0

    class Slow:
        def read_all(self) -> bytes:
            nonlocal at_work, most
            with lock:
                at_work += 1
                most = max(most, at_work)
            time.sleep(0.002)
            with lock:
                at_work -= 1
            return npy(1)

    with numbers(size=4).bind([{"x": Slow()} for _ in range(24)]).run("numpy", concurrency=bound) as loader:
        assert sum(len(b) for b in loader) == 24
    assert most <= bound


@pytest.mark.timeout(20)
def test_what_came_before_a_failing_source_is_delivered() -> None:
    def source() -> Iterator[dict[str, Any]]:
        for i in range(5):
            yield {"x": npy(i)}
        raise OSError("the disk is gone")

    seen: list[dataio.Batch] = []
    with numbers(size=2).bind(source).run("numpy") as loader, pytest.raises(dataio.DataioError, match="disk is gone") as caught:
        seen.extend(loader)
    assert [batch["x"].tolist() for batch in seen] == [[0, 1], [2, 3], [4]]
    assert isinstance(caught.value.__cause__, OSError)
