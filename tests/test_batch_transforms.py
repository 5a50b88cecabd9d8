"""Batch transforms through whole pipelines: where they may stand, what they draw, what stays readable."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dataio
from dataio import batch_transforms

RECORDS = [
    {"key": f"k{i}", "x": np.full((3, 4, 4), i, np.float32), "y": np.eye(10, dtype=np.float32)[i % 10], "note": f"n{i}"}
    for i in range(20)
]


def pipe(*ops: Any, size: int = 8) -> dataio.Pipeline:
    return dataio.pipeline(
        dataio.slot("x").decode_array(),
        dataio.slot("y").decode_array(),
        dataio.slot("note").passthrough(),
        dataio.batch(size),
        *(dataio.map(op) for op in ops),
    )


def run(pipeline: dataio.Pipeline, records: Any = None, **options: Any) -> list[Any]:
    return list(pipeline.bind(RECORDS if records is None else records).run("numpy", **({"seed": 5} | options)))


MIXUP = batch_transforms.mixup(slot="x", label_slot="y", alpha=1.0)


def test_mixup_mixes_images_and_labels_with_one_factor() -> None:
    for batch in run(pipe(MIXUP)):
        images, labels = batch["x"], batch["y"]
        assert np.allclose(labels.sum(axis=1), 1)
        assert np.allclose(images, images[:, :1, :1, :1])  # constant images stay constant
        shares = np.sort(labels, axis=1)[:, -2:]
        assert np.allclose(shares, shares[0], atol=1e-6)


def test_keys_errors_context_and_object_slots_stay_readable() -> None:
    records = list(RECORDS)
    records[3] = records[3] | {"x": "no numbers"}
    batch = next(iter(pipe(MIXUP).bind(records).run("numpy", context=lambda r: r["note"])))
    assert batch.keys == [f"k{i}" for i in range(8) if i != 3]
    assert batch.context == batch["note"] == [f"n{i}" for i in range(8) if i != 3]
    assert [e["index"] for e in batch.errors] == [3]
    assert len(batch) == 7
    assert "samples=7" in repr(batch)


def test_batch_shuffle_moves_everything_of_a_record_together() -> None:
    for batch in run(pipe(batch_transforms.batch_shuffle())):
        numbers = [int(row[0, 0, 0]) for row in batch["x"]]
        assert numbers != sorted(numbers)
        assert batch.keys == [f"k{i}" for i in numbers]
        assert batch["note"] == [f"n{i}" for i in numbers]
        assert [int(row.argmax()) for row in batch["y"]] == [i % 10 for i in numbers]


def test_the_seed_of_the_run_decides() -> None:
    def images(**options: Any) -> np.ndarray:
        return np.concatenate([b["x"] for b in run(pipe(MIXUP), **options)])

    assert np.array_equal(images(seed=1), images(seed=1))
    assert np.array_equal(images(seed=1), images(seed=1, workers="process"))
    assert not np.array_equal(images(seed=1), images(seed=2))


def test_batches_epochs_and_positions_differ() -> None:
    same = [{"x": np.arange(8, dtype=np.float32)[i % 8].reshape(1), "y": RECORDS[0]["y"], "note": ""} for i in range(16)]
    shuffle = batch_transforms.batch_shuffle()
    with pipe(shuffle).bind(same).run("numpy", seed=1) as loader:
        orders = [tuple(b["x"].ravel().tolist()) for _ in range(2) for b in loader]
    assert len(set(orders)) == 4
    with pipe(shuffle, shuffle).bind(same).run("numpy", seed=1) as loader:
        twice = tuple(next(iter(loader))["x"].ravel().tolist())
    assert twice not in orders  # the second shuffle is no copy of the first, which would square the permutation

    own = [tuple(run(pipe(batch_transforms.batch_shuffle(seed=s)), same)[0]["x"].ravel().tolist()) for s in (0, 1, 1)]
    assert own[0] != own[1] == own[2]


def test_batch_transforms_come_before_python_maps() -> None:
    found = run(pipe(batch_transforms.batch_normalize(slot="x", mean=[1, 1, 1], std=[2, 2, 2]), lambda b: b["x"].max()))
    assert found == [(7 - 1) / 2, (15 - 1) / 2, (19 - 1) / 2]
    with pytest.raises(NotImplementedError, match="after the Python map"):
        pipe(lambda b: b, MIXUP).bind(RECORDS).run("numpy")


@pytest.mark.parametrize(
    ("op", "error"),
    [
        (batch_transforms.mixup(slot="z"), KeyError),
        (batch_transforms.mixup(slot=7), IndexError),
        (batch_transforms.mixup(slot="note"), ValueError),
        (batch_transforms.cutmix(slot="y"), ValueError),
    ],
)
def test_an_error_ends_the_iteration_and_names_the_transform(op: Any, error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        run(pipe(op))
    assert any(op.name in note for note in caught.value.__notes__)


def test_pad_to_longest_makes_one_tensor_of_a_ragged_slot() -> None:
    records = [{"x": np.arange(1 + i % 3, dtype=np.float32), "y": RECORDS[0]["y"], "note": ""} for i in range(6)]
    (batch,) = run(pipe(batch_transforms.pad_to_longest(slot="x", pad_value=-1, pad_to_multiple_of=4)), records)
    assert batch["x"].tolist() == [[0, -1, -1, -1], [0, 1, -1, -1], [0, 1, 2, -1]] * 2


def test_they_are_part_of_the_plan() -> None:
    bound = pipe(MIXUP, batch_transforms.batch_shuffle()).bind(RECORDS)
    assert "BatchOps mixup(alpha=1.0, slot=x, label_slot=y) -> batch_shuffle()" in bound.explain()
    assert bound.signature() != pipe(MIXUP).bind(RECORDS).signature()
    with bound.run("numpy", seed=0) as loader:
        list(loader)
        assert loader.stats()["ops"]["mixup"]["count"] == len(RECORDS)


def test_a_batch_without_survivors_passes() -> None:
    records = [{"x": "bad", "y": RECORDS[0]["y"], "note": ""}] * 2
    (batch,) = run(pipe(MIXUP), records, on_failure=0)
    assert len(batch) == 0
    assert len(batch.errors) == 2


def test_a_batch_of_one_is_left_as_it_is() -> None:
    (batch,) = run(pipe(MIXUP), RECORDS[4:5])
    assert np.array_equal(batch["x"], RECORDS[4]["x"][None])


def test_results_come_from_the_pool_and_outlive_the_loader() -> None:
    with pipe(MIXUP).bind(RECORDS).run("numpy", seed=5) as loader:
        kept = [(b["x"], b["x"].copy()) for b in loader]
        list(loader)
    assert all(np.array_equal(now, then) for now, then in kept)
