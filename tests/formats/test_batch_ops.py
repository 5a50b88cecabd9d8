"""Batch transforms: on batches made by hand, and through a pipeline."""

from __future__ import annotations

import io
from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dataio
from dataio.engine.batch import FinishedBatch, Keys, SlotColumn
from dataio.engine.registry import lookup
from dataio.engine.units import Unit
from dataio.formats.batch import _partners

from .helpers import ops_registered_by


def made(**slots):
    """A batch of these slots: an array is a stacked slot, a list of arrays a ragged one, a tuple one of Python values."""
    columns = {
        name: SlotColumn(dense=value) if isinstance(value, np.ndarray) else SlotColumn(rows=list(value), objects=isinstance(value, tuple))
        for name, value in slots.items()
    }  # fmt: skip
    length = len(next(iter(slots.values())))
    keys = Keys(range(length), [f"key-{i}" for i in range(length)])
    unit = Unit(rows=[None] * length, indices=range(length))
    job: Any = SimpleNamespace(
        number=0, length=length, unit=unit, keys=keys, failures={}, context=list(range(length)), originals=False
    )
    return FinishedBatch(job, columns, range(length), scratch)


def scratch(shape, dtype):
    """Memory with something in it, as a pool gives it."""
    out = np.empty(shape, dtype)
    out.view(np.uint8)[...] = 171
    return out


def run(op, batch, seed=0, **arguments):
    call = lookup(op, "batch_transform").call(**arguments)
    injected = {"rng": np.random.default_rng(seed)} if call.spec.injected else {}
    return call.spec.function(batch, **call.arguments, **injected)


def floats(*shape, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


def one_hot(count, classes=4):
    return np.eye(classes, dtype=np.float32)[np.arange(count) % classes]


# Partners


@settings(max_examples=50, deadline=None)
@given(st.integers(2, 300), st.integers(0, 10**6))
def test_partners_are_one_cycle(count, seed):
    partner = _partners(count, np.random.default_rng(seed))
    seen, at = [], 0
    for _ in range(count):
        seen.append(at)
        at = int(partner[at])
    assert sorted(seen) == list(range(count))
    assert (partner != np.arange(count)).all()


def test_every_cycle_is_equally_likely():
    rng = np.random.default_rng(0)
    found = Counter(tuple(_partners(4, rng).tolist()) for _ in range(3000))
    assert len(found) == 6  # (4 - 1)! cycles
    assert all(380 < n < 620 for n in found.values())


# mixup


def mixing(seed, alpha, count):
    """The weight and the partners that the op draws."""
    rng = np.random.default_rng(seed)
    return rng.beta(alpha, alpha), _partners(count, rng)


@pytest.mark.parametrize("shape", [(2, 3, 5, 7), (9,), (17, 4), (3, 300, 301), (5, 0, 2)])
@pytest.mark.parametrize("alpha", [0.2, 1.0, 30.0])
def test_mixup_is_its_formula(shape, alpha):
    images, labels = floats(*shape), one_hot(shape[0])
    before = images.copy()
    found = run("mixup", made(x=images, y=labels), seed=3, alpha=alpha, slot="x", label_slot="y")
    weight, partner = mixing(3, alpha, shape[0])
    for name, own in (("x", images.astype(np.float64)), ("y", labels.astype(np.float64))):
        mixed = found.slots[name].dense
        assert mixed.dtype == np.float32
        np.testing.assert_allclose(mixed, weight * own + (1 - weight) * own[partner], atol=1e-6)
    np.testing.assert_array_equal(images, before)


def test_mixup_does_not_depend_on_how_much_it_works_on_at_a_time(monkeypatch):
    batch = made(x=floats(13, 6))
    whole = run("mixup", batch, slot="x").slots["x"].dense
    monkeypatch.setattr("dataio.formats.batch.CHUNK", 12)
    np.testing.assert_array_equal(run("mixup", batch, slot="x").slots["x"].dense, whole)


@pytest.mark.parametrize("alpha", [1e-300, 1e300])
def test_extreme_alphas(alpha):
    assert np.isfinite(run("mixup", made(x=floats(4, 3)), alpha=alpha, slot="x").slots["x"].dense).all()


def test_labels_stay_without_a_label_slot():
    labels = np.arange(3)
    assert run("mixup", made(x=floats(3, 2), y=labels), slot="x").slots["y"].dense is labels


# cutmix


@pytest.mark.parametrize("layout", ["HWC", "CHW"])
@pytest.mark.parametrize("dtype", ["uint8", "float32", "float64", "int16"])
def test_cutmix_pastes_one_rectangle(layout, dtype):
    values = np.arange(5).reshape(5, 1, 1, 1)
    images = np.broadcast_to(values, (5, 20, 30, 3) if layout == "HWC" else (5, 3, 20, 30)).astype(dtype)
    labels = np.eye(5, dtype=np.float32)
    sizes = set()
    for seed in range(12):
        found = run("cutmix", made(x=images, y=labels), seed, slot="x", label_slot="y")
        mixed = found.slots["x"].dense
        assert mixed.dtype == dtype
        changed = mixed != images
        pasted = changed.all(axis=3 if layout == "HWC" else 1)
        np.testing.assert_array_equal(changed.any(axis=3 if layout == "HWC" else 1), pasted)  # all channels alike
        assert (pasted == pasted[0]).all()
        rows, columns = np.flatnonzero(pasted[0].any(axis=1)), np.flatnonzero(pasted[0].any(axis=0))
        assert pasted[0].sum() == len(rows) * len(columns)
        sizes.add((len(rows), len(columns)))
        share = 1 - pasted[0].sum() / 600
        for i, row in enumerate(found.slots["y"].dense):
            np.testing.assert_allclose(row[i], share, atol=1e-6)
            if len(rows):
                partner = int(mixed[i][changed[i]][0])
                assert set(np.unique(mixed[i])) <= {i, partner}
                np.testing.assert_allclose(row[partner], 1 - share, atol=1e-6)
    assert len(sizes) > 6


@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((2, 3, 8, 8), (2, 3)),
        ((2, 8, 8, 3), (1, 2)),
        ((2, 3, 8, 3), (1, 2)),
        ((2, 3, 8, 12), (2, 3)),
        ((2, 12, 50, 60), (2, 3)),
        ((2, 50, 60, 12), (1, 2)),
        ((2, 2, 8, 8), (2, 3)),
    ],
)
def test_where_cutmix_finds_rows_and_columns(shape, axes):
    images = np.broadcast_to(np.arange(2).reshape(2, 1, 1, 1), shape).astype(np.uint8)
    seen = set()
    for seed in range(20):
        changed = run("cutmix", made(x=images), seed, slot="x").slots["x"].dense[0] != 0
        channel = 6 - sum(axes)
        assert (changed.all(axis=channel - 1) == changed.any(axis=channel - 1)).all()
        seen.add(int(changed.sum()))
    assert len(seen) > 2


def test_the_rectangle_is_drawn_as_documented():
    images = np.broadcast_to(np.arange(6).reshape(6, 1, 1, 1), (6, 40, 50, 1)).astype(np.uint8)
    for seed in range(10):
        rng = np.random.default_rng(seed)
        edge = np.sqrt(1 - rng.beta(1.0, 1.0))
        partner = _partners(6, rng)
        expected = images.copy()
        spans = []
        for size in (40, 50):
            centre, length = rng.integers(size), int(edge * size)
            low = centre - length // 2
            spans.append(slice(max(low, 0), min(low + length, size)))
        expected[:, spans[0], spans[1]] = images[partner][:, spans[0], spans[1]]
        np.testing.assert_array_equal(run("cutmix", made(x=images), seed, slot="x").slots["x"].dense, expected)


@pytest.mark.parametrize("op", ["mixup", "cutmix"])
def test_one_record_stays(op):
    batch = made(x=floats(1, 8, 8, 3), y=one_hot(1))
    assert run(op, batch, slot="x", label_slot="y") is batch


# pad_to_longest


@pytest.mark.parametrize(("multiple", "length"), [(None, 5), (1, 5), (4, 8), (5, 5), (100, 100)])
def test_rows_are_padded_to_the_longest(multiple, length):
    rows = [floats(n, 2, seed=n) for n in (2, 5, 0, 3)]
    found = run("pad_to_longest", made(x=rows), slot="x", pad_value=-7.0, pad_to_multiple_of=multiple).slots["x"]
    assert found.dense.shape == (4, length, 2)
    assert found.rows is None
    for padded, row in zip(found.dense, rows, strict=True):
        np.testing.assert_array_equal(padded[: len(row)], row)
        assert (padded[len(row) :] == -7).all()


def test_what_is_stacked_already_stays_or_grows():
    batch = made(x=floats(3, 5, 2))
    assert run("pad_to_longest", batch, slot="x") is batch
    assert run("pad_to_longest", batch, slot="x", pad_to_multiple_of=5) is batch
    grown = run("pad_to_longest", batch, slot="x", pad_to_multiple_of=4).slots["x"].dense
    np.testing.assert_array_equal(grown[:, :5], batch.slots["x"].dense)
    assert grown.shape == (3, 8, 2)
    assert not grown[:, 5:].any()


def test_one_ragged_record():
    assert run("pad_to_longest", made(x=[floats(3)]), slot="x").slots["x"].dense.shape == (1, 3)


@pytest.mark.parametrize(("dtype", "value", "expected"), [("int8", 1e9, 127), ("uint8", -1.0, 0), ("float32", -np.inf, -np.inf)])
def test_the_fill_saturates(dtype, value, expected):
    rows = [np.ones(1, dtype), np.ones(2, dtype)]
    assert run("pad_to_longest", made(x=rows), slot="x", pad_value=value).slots["x"].dense[0, 1] == expected


@pytest.mark.parametrize(
    "other", [np.zeros((3, 3), np.float32), np.zeros(3, np.float32), np.zeros((3, 2), np.int16), np.zeros((), np.float32)]
)
def test_rows_that_differ_elsewhere(other):
    with pytest.raises(ValueError, match=r"row 0 is float32\[2, 2\], row 1"):
        run("pad_to_longest", made(x=[floats(2, 2), other]), slot="x")


def test_scalars_have_no_length():
    with pytest.raises(ValueError, match="scalars"):
        run("pad_to_longest", made(x=floats(4)), slot="x")


# batch_normalize


@pytest.mark.parametrize("shape", [(4, 3, 9, 7), (4, 9, 7, 3), (2, 3, 5, 3), (2, 1, 4, 4), (70, 5, 200, 5), (2, 3, 0, 4)])
def test_batch_normalize_is_its_formula(shape):
    count = shape[3] if shape[3] in (3, 5) else shape[1]
    last = shape[3] == count
    mean, std = np.linspace(-1, 1, count), np.linspace(0.5, 3, count)
    images = floats(*shape)
    found = run("batch_normalize", made(x=images), slot="x", mean=mean, std=std).slots["x"].dense
    per_channel = (lambda v: v) if last else (lambda v: v[:, None, None])
    expected = (images.astype(np.float64) - per_channel(mean)) / per_channel(std)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize(
    ("images", "match"),
    [
        (floats(2, 4, 4, 4), "with 3 channels"),
        (floats(2, 4, 3), "takes .B, c, h, w."),
        (np.zeros((2, 4, 4, 3), np.uint8), "holds uint8, it takes float32: end the slot with normalize"),
    ],
)
def test_what_batch_normalize_refuses(images, match):
    with pytest.raises(ValueError, match=match):
        run("batch_normalize", made(x=images), slot="x", mean=(0.0,) * 3, std=(1.0,) * 3)


# batch_shuffle


def test_shuffle_keeps_records_together():
    count = 20
    batch = made(x=floats(count, 3), ragged=[floats(n % 4 + 1, seed=n) for n in range(count)], y=tuple(range(count)))
    found = run("batch_shuffle", batch)
    order = list(found.slots["y"].rows)
    assert sorted(order) == list(range(count))
    assert order != list(range(count))
    np.testing.assert_array_equal(found.slots["x"].dense, batch.slots["x"].dense[order])
    assert all(a is batch.slots["ragged"].rows[i] for a, i in zip(found.slots["ragged"].rows, order, strict=True))
    assert found.keys == [f"key-{i}" for i in order]
    assert list(found.indices) == order
    assert found.context == order


# Slots


TAKE_A_SLOT = {
    "mixup": {},
    "cutmix": {},
    "pad_to_longest": {},
    "batch_normalize": {"mean": (0.0,) * 3, "std": (1.0,) * 3},
}


def test_every_op_is_among_these():
    assert ops_registered_by("batch") == {*TAKE_A_SLOT, "batch_shuffle"}


def a_batch():
    return made(image=floats(3, 4, 4, 3), y=one_hot(3), meta=("a", "b", "c"), ragged=[floats(1), floats(2), floats(3)])


@pytest.mark.parametrize("op", TAKE_A_SLOT)
def test_a_slot_goes_by_name_or_number(op):
    by_name, by_number = (run(op, a_batch(), slot=slot, **TAKE_A_SLOT[op]) for slot in ("image", 0))
    np.testing.assert_array_equal(by_name.slots["image"].dense, by_number.slots["image"].dense)
    assert by_name.keys == ["key-0", "key-1", "key-2"]
    assert by_name.slots["meta"].rows == ["a", "b", "c"]


@pytest.mark.parametrize("op", TAKE_A_SLOT)
@pytest.mark.parametrize(
    ("slot", "error", "match"),
    [
        ("imag", KeyError, "did you mean 'image'"),
        (4, IndexError, "slot 4 is out of range; the batch has 4: image, y, meta, ragged"),
        ("meta", ValueError, "holds Python values"),
    ],
)
def test_a_slot_that_will_not_do(op, slot, error, match):
    with pytest.raises(error, match=match):
        run(op, a_batch(), slot=slot, **TAKE_A_SLOT[op])


@pytest.mark.parametrize("op", ["mixup", "cutmix", "batch_normalize"])
def test_a_ragged_slot_has_to_be_padded_first(op):
    with pytest.raises(ValueError, match=r"slot 'ragged' is ragged; .*pad_to_longest"):
        run(op, a_batch(), slot="ragged", **TAKE_A_SLOT[op])


@pytest.mark.parametrize("op", ["mixup", "cutmix"])
@pytest.mark.parametrize(
    ("labels", "match"),
    [
        (np.arange(3), "one-hot first"),
        (np.zeros((3, 4), np.float64), "one-hot first"),
        (np.zeros((3, 4, 4), np.float32), r"float32\[B\] or \[B, K\]"),
        (("a", "b", "c"), "Python values"),
    ],
)
def test_labels_that_cannot_be_mixed(op, labels, match):
    with pytest.raises(ValueError, match=match):
        run(op, made(x=floats(3, 4, 4, 3), y=labels), slot="x", label_slot="y")


@pytest.mark.parametrize("op", ["mixup", "cutmix"])
def test_labels_may_be_numbers(op):
    found = run(op, made(x=floats(3, 4, 4, 3), y=np.array([0, 1, 2], np.float32)), slot="x", label_slot="y")
    assert found.slots["y"].dense.shape == (3,)
    np.testing.assert_allclose(found.slots["y"].dense.sum(), 3, atol=1e-6)


def test_mixup_takes_floats_only():
    with pytest.raises(ValueError, match="holds uint8, it takes float32: end the slot with normalize"):
        run("mixup", made(x=np.zeros((3, 4), np.uint8)), slot="x")


@pytest.mark.parametrize(
    ("images", "match"),
    [
        (floats(3, 4, 4), r"shape \(3, 4, 4\), it takes \[B, c, h, w\]"),
        (np.zeros((3, 0, 4, 3), np.float32), "without pixels"),
        (np.zeros((3, 5, 5, 5), np.float32), "cannot tell the channels"),
    ],
)
def test_what_cutmix_refuses(images, match):
    with pytest.raises(ValueError, match=match):
        run("cutmix", made(x=images), slot="x")


@pytest.mark.parametrize(
    ("op", "args", "error"),
    [
        *((op, {**args, "slot": slot}, error) for op, args in TAKE_A_SLOT.items() for slot, error in (
            (-1, TypeError), (True, TypeError), (1.5, TypeError), (None, TypeError), ("", ValueError)
        )),
        *((op, {"slot": "x", **bad}, error) for op in ("mixup", "cutmix") for bad, error in (
            ({"alpha": 0}, ValueError), ({"alpha": float("inf")}, ValueError), ({"alpha": "a"}, TypeError),
            ({"seed": -1}, TypeError), ({"seed": True}, TypeError), ({"label_slot": -1}, TypeError), ({"label_slot": ""}, ValueError),
        )),
        ("pad_to_longest", {"slot": "x", "pad_to_multiple_of": 0}, ValueError),
        ("pad_to_longest", {"slot": "x", "pad_to_multiple_of": -1}, TypeError),
        ("pad_to_longest", {"slot": "x", "pad_value": True}, TypeError),
        ("batch_normalize", {"slot": "x", "mean": (0.0,), "std": (0.0,)}, ValueError),
        ("batch_normalize", {"slot": "x", "mean": (0.0,), "std": (1.0, 1.0)}, ValueError),
        ("batch_normalize", {"slot": "x", "mean": (), "std": ()}, ValueError),
        ("batch_normalize", {"slot": "x", "mean": (float("nan"),), "std": (1.0,)}, ValueError),
        ("batch_normalize", {"slot": "x", "mean": 0.5, "std": 1.0}, TypeError),
        ("batch_shuffle", {"seed": -1}, TypeError),
        ("batch_shuffle", {"batch_axis": -1}, TypeError),
    ],
)  # fmt: skip
def test_bad_arguments_fail_at_construction(op, args, error):
    with pytest.raises(error):
        lookup(op, "batch_transform").call(**args)


# Through a pipeline


def npy(value):
    out = io.BytesIO()
    np.save(out, value)
    return out.getvalue()


def batches(*calls, seed=1, count=12, lengths=None, workers="thread"):
    """What comes out, batch by batch: the slots, keys and indices."""
    rng = np.random.default_rng(0)
    records = [
        {
            "image": npy(rng.random((3, 6, 6), dtype=np.float32)),
            "y": npy(one_hot(count)[i]),
            "text": npy(np.full((lengths or [1])[i % len(lengths or [1])], i, np.int16)),
            "meta": i,
        }
        for i in range(count)
    ]
    slots = [dataio.slot(name).decode_npy() for name in ("image", "y", "text")]
    pipe = dataio.pipeline(*slots, dataio.slot("meta").passthrough(), dataio.batch(4), *map(dataio.map, calls))
    with pipe.bind(records).run("numpy", seed=seed, workers=workers) as loader:
        return [
            {"keys": batch.keys, "indices": list(batch.indices), **{n: batch[n] for n in batch.slot_names}} for batch in loader
        ]


MIX = dataio.batch_transforms.mixup(slot="image", label_slot="y")
SHUFFLE = dataio.batch_transforms.batch_shuffle()


def test_equal_seeds_mix_alike_and_batches_differ():
    first, again, other = batches(MIX), batches(MIX, workers="process"), batches(MIX, seed=2)
    for a, b in zip(first, again, strict=True):
        np.testing.assert_array_equal(a["image"], b["image"])
        np.testing.assert_array_equal(a["y"], b["y"])
    assert not np.array_equal(first[0]["y"], other[0]["y"])
    assert not np.array_equal(first[0]["y"], first[1]["y"])


def test_the_ops_own_seed_is_mixed_in():
    plain, seeded = batches(SHUFFLE), batches(dataio.batch_transforms.batch_shuffle(seed=7))
    assert [b["meta"] for b in plain] != [b["meta"] for b in seeded]


def test_keys_and_values_stay_with_their_records():
    for batch in batches(SHUFFLE, MIX, lengths=[2, 3]):
        assert batch["keys"] == [str(i) for i in batch["meta"]]
        assert [int(row[0]) for row in batch["text"]] == batch["meta"]


def test_padding_comes_before_what_needs_one_shape():
    found = batches(dataio.batch_transforms.pad_to_longest(slot="text", pad_to_multiple_of=4), lengths=[2, 5])
    assert [b["text"].shape for b in found] == [(4, 8)] * 3
    assert found[0]["text"][0].tolist() == [0, 0, 0, 0, 0, 0, 0, 0]
    assert found[0]["text"][1].tolist() == [1, 1, 1, 1, 1, 0, 0, 0]


@pytest.mark.parametrize(("slot", "error"), [("nowhere", KeyError), (9, IndexError), ("meta", ValueError)])
def test_a_wrong_slot_ends_the_iteration(slot, error):
    with pytest.raises(error):
        batches(dataio.batch_transforms.mixup(slot=slot))
