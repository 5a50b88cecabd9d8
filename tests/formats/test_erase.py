"""`random_erasing` and `grid_mask`: what is blanked, how much, and what is drawn. Types and `out`: see test_warp."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataio.formats.image.erase import erasing_box, kept_by_grid

from .helpers import noise, run, transform

WHITE = np.full((60, 90, 3), 255, np.uint8)


def blank_rectangle(found: np.ndarray) -> tuple[int, int, int, int]:
    """Row, column, height, width of the zeros, which must form one rectangle."""
    blank = (found == 0).all(axis=2)
    rows, columns = np.flatnonzero(blank.any(axis=1)), np.flatnonzero(blank.any(axis=0))
    y, x, h, w = rows[0], columns[0], len(rows), len(columns)
    assert blank[y : y + h, x : x + w].all()
    assert blank.sum() == h * w
    return y, x, h, w


@pytest.mark.parametrize("seed", range(20))
def test_one_rectangle_is_erased_and_the_rest_stays(seed):
    image = noise(60, 90) | 1  # no zeros
    found = run(transform("random_erasing", prob=1.0), image, seed=seed)
    y, x, h, w = blank_rectangle(found)
    found[y : y + h, x : x + w] = image[y : y + h, x : x + w]
    np.testing.assert_array_equal(found, image)


@settings(max_examples=50, deadline=None)
@given(
    height=st.integers(1, 200),
    width=st.integers(1, 200),
    scale=st.tuples(st.floats(0.01, 1), st.floats(0.01, 1)).map(sorted),
    ratio=st.tuples(st.floats(0.1, 10), st.floats(0.1, 10)).map(sorted),
    seed=st.integers(0, 1000),
)
def test_rectangles_fit_and_keep_area_and_ratio(height, width, scale, ratio, seed):
    box = erasing_box(height, width, tuple(scale), tuple(ratio), np.random.default_rng(seed))
    if box is None:
        return
    assert 0 <= box.y <= box.y + box.h <= height
    assert 0 <= box.x <= box.x + box.w <= width
    assert min(box.h, box.w) >= 1
    # Rounding moves an edge by at most half a pixel.
    assert (box.h - 0.5) * (box.w - 0.5) <= scale[1] * height * width * 1.0001
    assert (box.h + 0.5) * (box.w + 0.5) >= scale[0] * height * width * 0.9999
    assert (box.h - 0.5) / (box.w + 0.5) <= ratio[1] * 1.0001
    assert (box.h + 0.5) / (box.w - 0.5) >= ratio[0] * 0.9999


def test_area_log_ratio_and_place_are_uniform():
    rng = np.random.default_rng(0)
    boxes = [erasing_box(1000, 1000, (0.02, 0.33), (0.3, 3.3), rng) for _ in range(2000)]
    h, w, y = (np.array([getattr(b, name) for b in boxes]) for name in ("h", "w", "y"))
    for shares in (
        (h * w / 1e6 - 0.02) / 0.31,
        (np.log(h / w) - math.log(0.3)) / math.log(3.3 / 0.3),
        y / (1000 - h),
    ):
        counts, _ = np.histogram(shares, bins=5, range=(0, 1))
        # 400 expected in each; four standard deviations are 72.
        assert np.abs(counts - 400).max() < 80


def test_the_whole_image_may_be_erased():
    found = run(transform("random_erasing", prob=1.0, scale=(1.0, 1.0), ratio=(1.0, 1.0)), noise(30, 30))
    assert not found.any()


def test_nothing_is_erased_where_no_rectangle_fits():
    image = noise(4, 1000)
    found = run(transform("random_erasing", prob=1.0, scale=(1.0, 1.0), ratio=(1.0, 1.0)), image)
    np.testing.assert_array_equal(found, image)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_value_fills_every_channel(channels):
    image = np.zeros((40, 40, channels), np.uint8)
    found = run(transform("random_erasing", prob=1.0, value=200), image)
    assert set(np.unique(found)) == {0, 200}
    assert ((found == 200).all(axis=2) == (found == 200).any(axis=2)).all()


def test_the_coin_of_random_erasing_comes_first_and_once():
    erased = [(run(transform("random_erasing", prob=0.4), WHITE, seed=seed) == 0).any() for seed in range(200)]
    assert erased == [np.random.default_rng(seed).random() < 0.4 for seed in range(200)]


@pytest.mark.parametrize("op", ["random_erasing", "grid_mask"])
@pytest.mark.parametrize("shape", [(0, 5, 3), (5, 0, 3)])
def test_images_without_pixels_pass(op, shape):
    assert run(transform(op, prob=1.0), np.empty(shape, np.uint8)).shape == shape


@pytest.mark.parametrize("op", ["random_erasing", "grid_mask"])
def test_without_luck_the_image_itself_comes_back(op):
    image = noise(20, 30)
    assert run(transform(op, prob=0.0), image) is image


def by_modulo(height: int, width: int, period: int, hole: int, offset: tuple[int, int]) -> np.ndarray:
    """The upright grid in whole numbers."""
    rows = (np.arange(height) - height // 2 - offset[0]) % period < hole
    columns = (np.arange(width) - width // 2 - offset[1]) % period < hole
    return ~np.logical_and.outer(rows, columns)


@settings(max_examples=50, deadline=None)
@given(
    height=st.integers(1, 90),
    width=st.integers(1, 90),
    period=st.integers(1, 100),
    hole=st.floats(0, 1),
    offset=st.tuples(st.integers(0, 99), st.integers(0, 99)),
)
def test_the_upright_grid_is_exact(height, width, period, hole, offset):
    edge = round(period * hole)
    found = kept_by_grid(height, width, period=period, hole=edge, offset=offset, angle_deg=0.0)
    np.testing.assert_array_equal(found, by_modulo(height, width, period, edge, offset))


@pytest.mark.parametrize("angle", [1e-6, 90.0, 180.0, -90.0])
def test_a_grid_turned_by_quarters_is_upright(angle):
    found = kept_by_grid(80, 80, period=13, hole=5, offset=(3, 8), angle_deg=angle)
    # Turning the grid clockwise by 90 degrees is turning its picture.
    upright = kept_by_grid(80, 80, period=13, hole=5, offset=(3, 8), angle_deg=0.0)
    np.testing.assert_array_equal(found, np.rot90(upright, -round(angle / 90)))


@pytest.mark.parametrize("angle", [0.0, 17.0, 45.0, -30.0])
@pytest.mark.parametrize("hole", [0, 4, 10, 20])
def test_holes_cover_their_share(angle, hole):
    kept = kept_by_grid(400, 400, period=20, hole=hole, offset=(0, 0), angle_deg=angle)
    assert 1 - kept.mean() == pytest.approx((hole / 20) ** 2, abs=0.01)


@pytest.mark.parametrize(("ratio", "share"), [(1.0, 0.0), (0.6, 0.16), (0.0, 1.0)])
def test_grid_mask_blanks_its_share(ratio, share):
    image = np.full((500, 500, 3), 255, np.uint8)
    found = run(transform("grid_mask", d_min=50, d_max=50, ratio=ratio), image)
    assert (found == 0).mean() == share
    assert set(np.unique(found)) <= {0, 255}


def test_grid_mask_keeps_the_pixels_between_holes():
    image = noise(60, 90) | 1
    found = run(transform("grid_mask", d_min=7, d_max=11, rotate_deg=30.0), image)
    kept = (found != 0).any(axis=2)
    np.testing.assert_array_equal(found, np.where(kept[..., None], image, 0))
    assert 0.7 < kept.mean() < 0.95


@pytest.mark.parametrize("rotate", [0.0, 40.0])
def test_grid_mask_draws_coin_period_offset_angle(rotate):
    found = run(transform("grid_mask", d_min=5, d_max=30, rotate_deg=rotate), WHITE, seed=3)
    rng = np.random.default_rng(3)
    rng.random()
    period = rng.integers(5, 31)
    offset = rng.integers(0, period), rng.integers(0, period)
    angle = rotate * (2 * rng.random() - 1) if rotate else 0.0
    kept = kept_by_grid(60, 90, period=period, hole=round(period * (1 - 0.6)), offset=offset, angle_deg=angle)
    np.testing.assert_array_equal(found[..., 0] != 0, kept)


def test_every_period_is_drawn():
    def period(seed: int) -> int:
        found = run(transform("grid_mask", d_min=4, d_max=7, ratio=0.5), WHITE, seed=seed)
        edges = np.flatnonzero(np.diff((found == 0).all(axis=2).any(axis=0).astype(int)) == 1)
        return int(np.diff(edges)[0])

    assert {period(seed) for seed in range(60)} == {4, 5, 6, 7}
