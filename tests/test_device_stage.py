"""`run(device=)`: copies begin one batch ahead, the consumer's stream waits for them, and memory lives long enough.

Where there is no GPU, what is called, when and by whom is checked with a recording `Transport`; the tensors are real.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

import dataio
from dataio.device import Transport, this_device
from dataio.engine.errors import BatchError

from .conftest import npy

pytestmark = pytest.mark.usefixtures("two_workers", "no_leftovers")

X = dataio.slot("x").decode_npy()
Y = dataio.slot("y").decode_npy()
LABEL = dataio.slot("label").passthrough()
BAD = {"x": b"no array", "label": "bad"}


def records(count: int) -> list[dict[str, Any]]:
    return [
        {"x": npy(np.full(3, i, np.float32)), "y": npy(np.full((2, 2), -i, np.int64)), "label": f"l{i}"}
        for i in range(count)
    ]


def load(source: Any, *stages: Any, **options: Any) -> dataio.DataLoader:
    options.setdefault("workers", "thread")
    return dataio.pipeline(*stages).bind(source).run("torch", **options)


def values(batch: Any) -> list[float]:
    return batch["x"][:, 0].tolist()  # type: ignore[no-any-return]


def within(seconds: float, condition: Callable[[], bool]) -> bool:
    """Whether it came true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    return True


# -------------------------------------------------------------------- for real, on the CPU


def scaled(batch: Any) -> Any:
    return {"x": batch["x"] * 2, "keys": batch.keys}


RAGGED = [{"x": npy(np.arange(i + 1, dtype=np.float32)), "label": str(i)} for i in range(5)]
PLANS: dict[str, tuple[list[Any], tuple[Any, ...], dict[str, Any]]] = {
    "dense": (records(7), (X, Y, LABEL, dataio.batch(2)), {}),
    "processes": (records(7), (X, Y, LABEL, dataio.batch(2)), {"workers": "process"}),
    "ragged": (RAGGED, (X, LABEL, dataio.batch(2)), {}),
    "failures": ([*records(3), BAD, BAD, BAD], (X, LABEL, dataio.batch(2)), {"on_failure": 0}),
    "batch transform": (records(8), (X, dataio.batch(4), dataio.map(dataio.batch_transforms.batch_shuffle())), {"seed": 3}),
    "objects alone": (records(3), (LABEL, dataio.batch(2)), {}),
    "one batch in flight": (records(7), (X, dataio.batch(2, prefetch=1)), {}),
}


def plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, torch.Tensor) else [plain(v) for v in value] if isinstance(value, list) else value


@pytest.mark.parametrize("case", PLANS)
def test_the_batches_are_those_without_a_device(case: str) -> None:
    source, stages, options = PLANS[case]
    seen = []
    for device in (None, "cpu"):
        with load(source, *stages, device=device, **options) as loader:
            seen.append(
                [[({name: plain(batch[name]) for name in batch.slot_names}, batch.keys) for batch in loader] for _ in range(2)]
            )
    assert seen[0] == seen[1]


def test_batch_maps_see_tensors_on_the_device() -> None:
    with load(records(4), X, dataio.batch(2), dataio.map(scaled), device="cpu") as loader:
        assert [(b["x"][:, 0].tolist(), b["x"].device.type) for b in loader] == [([0, 2], "cpu"), ([4, 6], "cpu")]


@pytest.mark.parametrize(("ragged", "tensors"), [("skip", 0), ("error", None)])
def test_ragged_slots_are_left_out_or_refused_as_without_a_device(ragged: str, tensors: int | None) -> None:
    with load(RAGGED, X, dataio.batch(5), device="cpu", ragged=ragged) as loader:
        (batch,) = loader
    if tensors is not None:
        assert len(batch.tensors) == tensors
    with pytest.raises(RuntimeError, match="ragged"):
        batch["x"]


def test_row_errors_end_the_pass_behind_the_batches_before_them() -> None:
    with load([*records(4), BAD], X, dataio.batch(2), device="cpu", on_failure="strict") as loader:
        batches = iter(loader)
        got = [values(next(batches)), values(next(batches))]
        with pytest.raises(BatchError):
            next(batches)
    assert got == [[0, 1], [2, 3]]


@pytest.mark.parametrize("taken", range(5))
def test_a_loader_that_is_left_with_batches_on_their_way_ends(taken: int) -> None:
    with load(records(20), X, dataio.batch(2), device="cpu") as loader:
        iterator = iter(loader)
        for _ in range(taken):
            next(iterator)
        assert within(30, lambda: loader.stats()["samples_completed"] >= 2 * taken)


@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA is here")
@pytest.mark.parametrize("device", ["cuda", "cuda:0", "nowhere"])
def test_an_unusable_device_is_told_when_a_tensor_is_asked_for(device: str) -> None:
    with load(records(2), X, LABEL, dataio.batch(2), device=device) as loader:
        (batch,) = loader
    assert batch["label"] == ["l0", "l1"]
    for _ in range(2):
        with pytest.raises((RuntimeError, AssertionError)):
            batch["x"]


# -------------------------------------------------------------------- order, overlap and lifetime, with a recording transport


@dataclass
class Event:
    """Comes about when the copies before it are done; `number` counts the events."""

    number: int


@dataclass
class Recorder:
    """A `Transport` to a device whose tensors are copies on the CPU; writes down each call and the thread it came from."""

    calls: list[tuple[str, Any]] = field(default_factory=list)
    threads: list[tuple[str, threading.Thread]] = field(default_factory=list)
    marked: int = 0
    pinned: list[torch.Tensor] = field(default_factory=list)
    sent: list[torch.Tensor] = field(default_factory=list)
    fails: bool = False
    pageable: bool = False

    def note(self, call: str, what: Any) -> None:
        self.calls.append((call, what))
        self.threads.append((call, threading.current_thread()))

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        pinned = tensor.clone()
        self.note("pin", tuple(tensor.shape))
        self.pinned.append(pinned)
        return pinned

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.fails:
            raise MemoryError("the device is full")
        assert self.pageable or any(tensor is pinned for pinned in self.pinned), "copied from memory that is not page-locked"
        self.note("copy", tuple(tensor.shape))
        self.sent.append(tensor.clone())
        return self.sent[-1]

    def mark(self) -> Event:
        self.note("mark", self.marked)
        self.marked += 1
        return Event(self.marked - 1)

    def await_on_device(self, event: Any) -> None:
        self.note("await", event.number)

    def hold(self, tensor: torch.Tensor) -> None:
        assert any(tensor is sent for sent in self.sent), "holds a tensor that was not sent"
        self.note("hold", tuple(tensor.shape))


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """What `device="cuda:0"` sends with, during the test."""
    found = Recorder()

    def make(device: str) -> Transport:
        assert device == "cuda:0"
        return found

    monkeypatch.setattr("dataio.run_options.transport_to", make)
    return found


def on_gpu(source: Any, *stages: Any, **options: Any) -> dataio.DataLoader:
    return load(source, *stages, device="cuda:0", **options)


def test_all_slots_are_pinned_and_copied_before_the_event(recorder: Recorder) -> None:
    with on_gpu(records(2), X, LABEL, Y, dataio.batch(2)) as loader:
        (batch,) = loader
    sends = [("pin", (2, 3)), ("copy", (2, 3)), ("pin", (2, 2, 2)), ("copy", (2, 2, 2)), ("mark", 0)]
    assert recorder.calls == sends
    assert batch["label"] == ["l0", "l1"]
    assert recorder.calls == sends


def test_a_slot_waits_for_the_event_and_is_held_when_it_is_first_asked_for(recorder: Recorder) -> None:
    with on_gpu(records(4), X, Y, dataio.batch(2)) as loader:
        first, second = loader
    del recorder.calls[:]
    assert values(second) == [2, 3]
    assert recorder.calls == [("await", 1), ("hold", (2, 3))]
    values(second)
    assert first["y"][:, 0, 0].tolist() == [0, -1]
    assert recorder.calls == [("await", 1), ("hold", (2, 3)), ("await", 0), ("hold", (2, 2, 2))]


def test_every_row_of_a_ragged_slot_is_held(recorder: Recorder) -> None:
    with on_gpu(RAGGED[:2], X, dataio.batch(2)) as loader:
        (batch,) = loader
    assert [row.tolist() for row in batch["x"]] == [[0], [0, 1]]
    assert recorder.calls[-3:] == [("await", 0), ("hold", (1,)), ("hold", (2,))]


def test_the_consumer_waits_on_its_own_thread_and_copies_begin_on_another(recorder: Recorder) -> None:
    with on_gpu(records(4), X, dataio.batch(2)) as loader:
        for batch in loader:
            values(batch)
    consumer = threading.current_thread()
    for call, thread in recorder.threads:
        assert (thread is consumer) == (call in ("await", "hold"))


def test_copies_begin_one_batch_ahead_of_the_consumer_and_no_more(recorder: Recorder) -> None:
    with on_gpu(records(12), X, dataio.batch(2, prefetch=4)) as loader:
        iterator = iter(loader)
        for taken in range(6):
            # Batches behind the next one are finished, and yet only the next one is on its way.
            assert within(30, lambda taken=taken: loader.stats()["samples_completed"] >= min(12, 2 * (taken + 4)))
            assert within(30, lambda taken=taken: recorder.marked == taken + 1)
            assert values(next(iterator)) == [2 * taken, 2 * taken + 1]
        assert list(iterator) == []
    assert recorder.marked == 6


def test_a_retained_tensor_does_not_change_when_buffers_are_reused(recorder: Recorder) -> None:
    kept = []
    with on_gpu(records(40), X, dataio.batch(2)) as loader:
        kept = [batch["x"] for batch in loader]
    assert [x[:, 0].tolist() for x in kept] == [[i, i + 1] for i in range(0, 40, 2)]


def test_without_pinning_batches_are_copied_from_where_they_are(recorder: Recorder) -> None:
    recorder.pageable = True
    with on_gpu(records(2), X, dataio.batch(2), pin_memory=False) as loader:
        (batch,) = loader
    assert recorder.calls == [("copy", (2, 3)), ("mark", 0)]
    assert values(batch) == [0, 1]


def test_a_full_device_is_told_when_the_tensor_is_asked_for(recorder: Recorder) -> None:
    recorder.fails = True
    with on_gpu(records(4), X, LABEL, dataio.batch(2)) as loader:
        first, second = loader
        assert [first["label"], second["label"]] == [["l0", "l1"], ["l2", "l3"]]
        with pytest.raises(MemoryError, match="full"):
            first["x"]
        recorder.fails = False
        (third, _) = loader
        assert values(third) == [0, 1]


def test_batches_without_tensors_send_nothing(recorder: Recorder) -> None:
    with on_gpu([BAD, BAD], X, dataio.batch(2), on_failure=0) as loader:
        (batch,) = loader
    assert (batch["x"], recorder.calls) == ([], [])


def test_a_device_with_a_number_is_taken_as_it_is() -> None:
    assert [this_device(name) for name in ("cpu", "cuda:1", "mps")] == ["cpu", "cuda:1", "mps"]


# -------------------------------------------------------------------- on a GPU


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("own_stream", [False, True], ids=["default stream", "a stream of the consumer's"])
def test_what_the_gpu_reads_is_the_batch(own_stream: bool) -> None:
    """Each batch is read behind long kernels and dropped at once, while the next ones are copied."""
    source = [{"x": npy(np.full((1 << 18,), i, np.float32))} for i in range(256)]
    stream = torch.cuda.Stream() if own_stream else torch.cuda.current_stream()
    busy = torch.randn(2048, 2048, device="cuda")
    sums = []
    with torch.cuda.stream(stream), load(source, X, dataio.batch(8), device="cuda") as loader:
        for batch in loader:
            for _ in range(4):
                busy = torch.tanh(busy @ busy)
            sums.append(batch["x"].double().mean(dim=1))
            del batch
        torch.cuda.synchronize()
    assert torch.cat(sums).tolist() == list(range(256))
