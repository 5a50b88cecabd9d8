"""Augmentation policies: their ops against torchvision, their tables, what they draw. Types and `out`: see test_warp."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataio.formats.image.policy import (
    IMAGENET,
    NAMES,
    OPS,
    SIGNED,
    Step,
    auto_augment_steps,
    level_strength,
    rand_augment_steps,
    strength,
    trivial_augment_steps,
)

from .helpers import max_difference, noise, photo, run, transform

GOLDEN = np.load(Path(__file__).parents[1] / "golden" / "policy.npz")
RESULTS = [name for name in GOLDEN.files if name.split(":")[0] in OPS]
TORCHVISION = {
    "ShearX": "shear_x",
    "Rotate": "rotate",
    "Color": "color",
    "Contrast": "contrast",
    "Sharpness": "sharpness",
    "Posterize": "posterize",
    "Solarize": "solarize",
    "AutoContrast": "autocontrast",
    "Equalize": "equalize",
    "Invert": "invert",
}


@pytest.mark.parametrize("name", RESULTS)
def test_ops_are_within_1_level_of_torchvision(name):
    op, value = name.split(":")
    image = GOLDEN["image"]
    assert max_difference(OPS[op](image, float(value)), GOLDEN[name]) <= 1


def test_every_op_is_compared():
    assert {name.split(":")[0] for name in RESULTS} == set(NAMES)


def test_the_sub_policies_are_those_of_torchvision():
    names, probs, levels = (GOLDEN[f"table_{part}"] for part in ("names", "probs", "levels"))
    expected = [
        [(TORCHVISION[n], p, max(lv, 0)) for n, p, lv in zip(*rows)] for rows in zip(names, probs, levels)
    ]
    assert [[tuple(chance) for chance in pair] for pair in IMAGENET] == expected


@pytest.mark.parametrize("name", [n for n in TORCHVISION if f"levels:{n}" in GOLDEN])
def test_strengths_of_levels_are_those_of_torchvision(name):
    op = TORCHVISION[name]
    found = [level_strength(op, level, 1.0) for level in range(10)]
    np.testing.assert_allclose(found, GOLDEN[f"levels:{name}"], rtol=1e-6, atol=1e-4)
    assert bool(GOLDEN[f"signed:{name}"]) == (op in SIGNED)


def test_there_are_fifteen_ops():
    assert len(set(NAMES)) == 15


@pytest.mark.parametrize(
    ("name", "f", "expected"),
    [
        ("rotate", 0.3, 9.0),
        ("shear_x", 1.0, 0.3),
        ("translate_y", 0.5, 0.225),
        ("brightness", 1.0, 0.9),
        ("posterize", 0.0, 8),
        ("posterize", 0.3, 7),
        ("posterize", 0.375, 6),  # half a bit is rounded up
        ("posterize", 1.0, 4),
        ("solarize", 0.0, 256),
        ("solarize", 0.3, 179),
        ("solarize", 1.0, 0),
        ("invert", 1.0, 0.0),
    ],
)
def test_strengths(name, f, expected):
    assert strength(name, f, 1.0) == pytest.approx(expected)


@pytest.mark.parametrize("name", sorted(SIGNED))
def test_signs_turn_strengths_round(name):
    assert strength(name, 0.4, -1.0) == -strength(name, 0.4, 1.0) < 0


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"invert", "autocontrast", "equalize"}))
def test_strength_zero_changes_nothing(name):
    image = noise(31, 42)
    np.testing.assert_array_equal(OPS[name](image, strength(name, 0.0, 1.0)), image)


@pytest.mark.parametrize(
    ("name", "value", "moved"),
    [
        ("translate_x", 0.25, (slice(None), slice(10, None), slice(None), slice(None, -10))),
        ("translate_x", -0.25, (slice(None), slice(None, -10), slice(None), slice(10, None))),
        ("translate_y", 0.1, (slice(2, None), slice(None), slice(None, -2), slice(None))),
    ],
)
def test_translations_move_pixels_and_leave_zeros(name, value, moved):
    image = noise(20, 40) | 1
    found = OPS[name](image, value)
    to_rows, to_columns, from_rows, from_columns = moved
    np.testing.assert_array_equal(found[to_rows, to_columns], image[from_rows, from_columns])
    assert (found == 0).sum() == image.size - image[from_rows, from_columns].size


@pytest.mark.parametrize(("name", "axis"), [("shear_x", 0), ("shear_y", 1)])
def test_shears_move_lines_by_their_distance_from_the_centre(name, axis):
    image = np.zeros((41, 41, 3), np.uint8)
    image[(slice(None), 20) if axis == 0 else 20] = 255  # a line through the centre, along the other axis
    found = OPS[name](image, 0.25)
    lines = found[..., 0] if axis == 0 else found[..., 0].T
    assert lines[[12, 20, 28]].argmax(axis=1).tolist() == [18, 20, 22]


def test_a_rotation_is_the_affine_op():
    image = photo(40, 60)
    np.testing.assert_array_equal(OPS["rotate"](image, 25.0), run(transform("affine", angle_deg=25.0), image))


# --- what is drawn


@settings(max_examples=50, deadline=None)
@given(n=st.integers(1, 15), m=st.integers(0, 30), seed=st.integers(0, 9999))
def test_rand_augment_takes_different_ops_at_one_magnitude(n, m, seed):
    steps = rand_augment_steps(n, m, np.random.default_rng(seed))
    assert len(steps) == len({step.name for step in steps}) == n
    for step in steps:
        assert abs(step.strength) == pytest.approx(abs(strength(step.name, m / 30, 1.0)))


def applied(image: np.ndarray, steps: list[Step]) -> np.ndarray:
    for step in steps:
        image = OPS[step.name](image, step.strength)
    return image


STEPS = {
    "rand_augment": lambda rng: rand_augment_steps(2, 9, rng),
    "trivial_augment_wide": trivial_augment_steps,
    "auto_augment": auto_augment_steps,
}


@pytest.mark.parametrize("seed", range(15))
@pytest.mark.parametrize("op", sorted(STEPS))
def test_policies_apply_the_drawn_steps_in_order(op, seed):
    image = photo(40, 60)
    steps = STEPS[op](np.random.default_rng(seed))
    np.testing.assert_array_equal(run(transform(op), image, seed=seed), applied(image, steps))


@pytest.mark.parametrize(("op", "choices", "numbers"), [("trivial_augment_wide", 15, 2), ("auto_augment", 25, 4)])
def test_as_much_is_drawn_whatever_comes_of_it(op, choices, numbers):
    for seed in range(20):
        rng, other = np.random.default_rng(seed), np.random.default_rng(seed)
        STEPS[op](rng)
        other.integers(choices)
        other.random(numbers)
        assert rng.random() == other.random()


def counts(steps: list[list[Step]]) -> Counter[str]:
    return Counter(step.name for drawn in steps for step in drawn)


def test_rand_augment_draws_every_op_equally_and_in_any_place():
    rng = np.random.default_rng(1)
    drawn = [rand_augment_steps(2, 9, rng) for _ in range(3000)]
    for place in range(2):
        found = Counter(steps[place].name for steps in drawn)
        # 200 expected; four standard deviations are 55.
        assert all(145 < found[name] < 255 for name in NAMES)


def test_trivial_augment_draws_every_op_equally():
    rng = np.random.default_rng(2)
    found = counts([trivial_augment_steps(rng) for _ in range(3000)])
    assert all(145 < found[name] < 255 for name in NAMES)


@pytest.mark.parametrize("name", sorted(SIGNED))
def test_trivial_augment_spreads_strengths_evenly(name):
    rng = np.random.default_rng(3)
    drawn = [step.strength for _ in range(6000) for step in trivial_augment_steps(rng) if step.name == name]
    found, _ = np.histogram(np.array(drawn) / SIGNED[name], bins=4, range=(-1, 1))
    assert found.sum() == len(drawn)
    # About 100 in each; four standard deviations are 35.
    assert np.abs(found - len(drawn) / 4).max() < 40


def test_auto_augment_draws_ops_as_often_as_its_table_says():
    rng, rounds = np.random.default_rng(4), 5000
    found = counts([auto_augment_steps(rng) for _ in range(rounds)])
    expected: Counter[str] = Counter()
    for pair in IMAGENET:
        for chance in pair:
            expected[chance.name] += chance.prob * rounds / len(IMAGENET)
    assert set(found) == set(expected)
    for name, count in expected.items():
        assert found[name] == pytest.approx(count, abs=5 * count**0.5)


def test_both_signs_are_drawn_equally_often():
    rng = np.random.default_rng(6)
    signs = Counter(
        step.strength > 0 for _ in range(1000) for step in rand_augment_steps(3, 15, rng) if step.name in SIGNED
    )
    assert 0.9 < signs[True] / signs[False] < 1.1
