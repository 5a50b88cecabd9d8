"""A loader under torch's own loaders, Accelerate and Lightning: the same batches, and training that resumes exactly."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dataio

from .conftest import npy

pytestmark = pytest.mark.usefixtures("two_workers", "no_leftovers")

X = dataio.slot("x").decode_npy()
NOISE = dataio.slot("x").decode_npy().gaussian_noise(std=1.0)


def records(count: int) -> list[dict[str, Any]]:
    return [{"x": npy(np.full(3, i, np.float32))} for i in range(count)]


def load(count: int, *stages: Any, **options: Any) -> dataio.DataLoader:
    options.setdefault("seed", 3)
    return dataio.pipeline(*(stages or (NOISE, dataio.batch(2)))).bind(records(count)).run("torch", workers="thread", **options)


def values(batch: Any) -> list[list[float]]:
    return batch["x"].tolist()  # type: ignore[no-any-return]


def epochs(count: int, *, of: int = 10) -> list[list[list[float]]]:
    """The batches of the first epochs, by a plain for loop."""
    with load(of) as loader:
        return [values(batch) for _ in range(count) for batch in loader]


# -------------------------------------------------------------------- the end of an epoch


def counted(loader: dataio.DataLoader) -> Iterator[list[list[float]]]:
    """An epoch as a framework takes it that knows the length: it never asks for the end, and keeps the iterator."""
    iterator = iter(loader)
    for _ in range(len(loader)):
        yield values(next(iterator))
    kept.append(iterator)


kept: list[Any] = []


@pytest.fixture(autouse=True)
def _drop_what_was_kept() -> Iterator[None]:
    yield
    kept.clear()


def test_an_epoch_is_over_with_its_last_batch_where_the_length_is_known() -> None:
    with load(10) as loader:
        got = [batch for _ in range(3) for batch in counted(loader)]
    assert got == epochs(3)


def test_the_state_behind_the_last_batch_is_the_beginning_of_the_next_epoch() -> None:
    with load(10) as loader:
        list(counted(loader))
        state = loader.state_dict()
    with load(10, seed=0) as resumed:
        resumed.load_state_dict(state)
        assert [values(batch) for batch in resumed] == epochs(2)[5:]


def test_the_iterator_of_an_epoch_that_is_over_ends_and_moves_nothing() -> None:
    with load(10) as loader:
        list(counted(loader))
        second = iter(loader)
        first_of_second = values(next(second))
        assert list(kept[-1]) == []
        assert [first_of_second, *map(values, second)] == epochs(2)[5:]


def test_a_loaded_position_holds_until_a_batch_is_delivered() -> None:
    """Frameworks make an iterator to look at it, and then another one."""
    with load(10) as loader:
        iterator = iter(loader)
        next(iterator)
        state = loader.state_dict()
        del iterator
        loader.load_state_dict(state)
        iter(loader)
        assert [values(batch) for batch in loader] == epochs(1)[1:]
        assert [values(batch) for batch in loader] == epochs(2)[5:]


# -------------------------------------------------------------------- torch.utils.data


def test_the_batches_pass_through_torchs_loader() -> None:
    with load(10) as loader:
        wrapped = torch.utils.data.DataLoader(loader.as_iterable_dataset(), batch_size=None)
        assert len(wrapped) == 5
        got = [batch for _ in range(2) for batch in wrapped]
    assert [values(batch) for batch in got] == epochs(2)
    assert {type(batch) for batch in got} == {dataio.Batch}


def test_breaking_off_torchs_loop_ends_the_pass() -> None:
    with load(10) as loader:
        wrapped = torch.utils.data.DataLoader(loader.as_iterable_dataset(), batch_size=None)
        for _ in wrapped:
            break
        assert [values(batch) for batch in wrapped] == epochs(1)


def test_an_unknown_length_stays_unknown() -> None:
    pipe = dataio.pipeline(X, dataio.batch(2))
    with pipe.bind(lambda: iter(records(4))).run("torch", workers="thread") as loader:
        dataset = loader.as_iterable_dataset()
        with pytest.raises(TypeError, match="not known"):
            len(dataset)
        assert len(list(torch.utils.data.DataLoader(dataset, batch_size=None))) == 2


def test_workers_of_torchs_loader_are_refused_with_the_reason() -> None:
    with load(4) as loader:
        wrapped = torch.utils.data.DataLoader(loader.as_iterable_dataset(), batch_size=None, num_workers=1)
        with pytest.raises(RuntimeError, match=r"workers of its own.*num_workers=0"):
            list(wrapped)


def test_sending_the_data_set_to_another_process_is_refused() -> None:
    with load(4) as loader, pytest.raises(RuntimeError, match="num_workers=0"):
        pickle.dumps(loader.as_iterable_dataset())


# -------------------------------------------------------------------- torchdata


@pytest.mark.parametrize("cut", [0, 1, 3, 5, 7])
def test_torchdatas_stateful_loader_resumes_behind_the_last_batch(cut: int) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    seen: list[Any] = []
    with load(10) as loader:
        wrapped = stateful(loader.as_iterable_dataset(), batch_size=None)
        iterator = iter(wrapped)
        for _ in range(cut):
            try:
                seen.append(values(next(iterator)))
            except StopIteration:
                iterator = iter(wrapped)
                seen.append(values(next(iterator)))
        state = json.loads(json.dumps(wrapped.state_dict()))
        del iterator, wrapped
    with load(10, seed=0) as loader:
        wrapped = stateful(loader.as_iterable_dataset(), batch_size=None)
        wrapped.load_state_dict(state)
        while len(seen) < 15:
            seen += [values(batch) for batch in wrapped]
    assert seen == epochs(3)


# -------------------------------------------------------------------- Accelerate


def trained(accelerator: Any, batches: Any, model: Any, optimizer: Any, steps: int) -> list[Any]:
    """What was seen in some training steps."""
    seen = []
    iterator = iter(batches)
    for _ in range(steps):
        batch = next(iterator)
        accelerator.backward(model(batch["x"]).square().mean())
        optimizer.step()
        optimizer.zero_grad()
        seen.append(values(batch))
    return seen


def accelerated(**options: Any) -> tuple[Any, Any, Any]:
    accelerate = pytest.importorskip("accelerate")
    torch.manual_seed(0)
    accelerator = accelerate.Accelerator(cpu=True, **options)
    model = torch.nn.Linear(3, 1)
    return accelerator, *accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-4))


def test_accelerate_saves_and_resumes_a_loader_beside_it(tmp_path: Path) -> None:
    accelerator, model, optimizer = accelerated()
    with load(10) as loader:
        accelerator.register_for_checkpointing(loader)
        seen = trained(accelerator, loader, model, optimizer, 2)
        accelerator.save_state(str(tmp_path / "state"))
    weights = model.weight.detach().clone()
    accelerator, model, optimizer = accelerated()
    with load(10, seed=0) as loader:
        accelerator.register_for_checkpointing(loader)
        accelerator.load_state(str(tmp_path / "state"))
        assert torch.equal(model.weight, weights)
        seen += trained(accelerator, loader, model, optimizer, 3)
    assert seen == epochs(1)


def test_accelerate_prepares_and_resumes_the_data_set(tmp_path: Path) -> None:
    """Accelerate's loader asks for one batch more than it hands out; that one is not lost."""
    pytest.importorskip("torchdata")
    accelerate = pytest.importorskip("accelerate")
    options = {
        "dataloader_config": accelerate.DataLoaderConfiguration(use_stateful_dataloader=True, dispatch_batches=False)
    }
    seen: list[Any] = []
    for steps, resumed in ((2, False), (3, True)):
        accelerator, model, optimizer = accelerated(**options)
        with load(10, seed=0 if resumed else 3) as loader:
            wrapped = torch.utils.data.DataLoader(loader.as_iterable_dataset(), batch_size=None)
            prepared = accelerator.prepare_data_loader(wrapped, device_placement=False)
            if resumed:
                accelerator.load_state(str(tmp_path / "state"))
            seen += trained(accelerator, prepared, model, optimizer, steps)
            accelerator.save_state(str(tmp_path / "state"))
            accelerator.free_memory()
            del prepared, wrapped
    assert seen == epochs(1)
