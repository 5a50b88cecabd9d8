"""Filters against OpenCV, SciPy, torchvision (golden values) and their formulas in float64."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage

from dataio.engine.schema import TensorType, type_of
from dataio.formats.image import filter as filters

from .helpers import (
    assert_refused,
    assert_rgb_only,
    max_difference,
    noise,
    ops_registered_by,
    photo,
    run,
    run_out,
    transform,
)

GOLDEN = Path(__file__).parents[1] / "golden" / "color.npz"

OPS = {
    "gaussian_blur": {"kernel_size": 7, "sigma_lo": 0.5, "sigma_hi": 2.0},
    "median_blur": {"radius": 2},
    "sharpen": {"sigma": 1.2, "amount": 1.5},
    "canny": {"low": 40.0, "high": 120.0},
}
RGB_ONLY = ("median_blur", "sharpen", "canny")

IMAGES = {
    "photo": photo(37, 53),
    "noise": noise(40, 31),
    "one-value": np.full((12, 9, 3), 77, np.uint8),
    "pixel": noise(1, 1),
    "row": noise(1, 17),
    "column": noise(17, 1),
    "strided": noise(40, 60)[3:30:2, ::-3],
    "window": noise(40, 60)[5:20, 7:30],
    "planes": np.ascontiguousarray(noise(20, 30).transpose(2, 0, 1)).transpose(1, 2, 0),
}
for image in IMAGES.values():
    image.flags.writeable = False

every_image = pytest.mark.parametrize("image", IMAGES.values(), ids=IMAGES)


def test_every_op_of_the_module_is_tested():
    assert set(OPS) == ops_registered_by("image.filter")


def blurred(image, kernel_size, sigma, seed=0):
    return run(transform("gaussian_blur", kernel_size=kernel_size, sigma_lo=sigma, sigma_hi=sigma), image, seed=seed)


def exact_blur(image, side, sigma):
    """A Gaussian of `side` taps in float64, border pixels repeated."""
    return ndimage.gaussian_filter(image.astype(float), (sigma, sigma, 0), mode="nearest", radius=(side // 2, side // 2, 0))


# --- gaussian_blur


@every_image
@pytest.mark.parametrize(("kernel_size", "sigma"), [(1, 2.0), (3, 0.1), (5, 1.0), (9, 0.4), (23, 2.0), (51, 9.0)])
def test_blur_is_within_1_level_of_opencv(image, kernel_size, sigma):
    expected = cv2.GaussianBlur(
        np.ascontiguousarray(image), (kernel_size, kernel_size), sigma, borderType=cv2.BORDER_REPLICATE
    )
    assert max_difference(blurred(image, kernel_size, sigma), expected) <= 1


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 30), st.integers(1, 30), st.integers(0, 12), st.floats(0.05, 8), st.sampled_from([1, 3, 4]))
def test_blur_is_near_the_exact_sum(h, w, radius, sigma, channels):
    for image, levels in [(photo(h, w, channels), 2), (noise(h, w, channels) // 128 * 255, 4)]:
        found = blurred(image, 2 * radius + 1, sigma)
        assert np.abs(found - exact_blur(image, 2 * radius + 1, sigma)).max() <= levels


@pytest.mark.parametrize("case", [n for n in np.load(GOLDEN).files if n.startswith("blur_")])
def test_blur_is_within_1_level_of_torchvision_away_from_the_border(case):
    golden = np.load(GOLDEN)
    side, sigma = int(case.split("_")[1]), float(case.split("_")[2])
    inner = np.s_[side // 2 : -(side // 2), side // 2 : -(side // 2)]  # torchvision reflects at the border
    assert max_difference(blurred(golden["image"], side, sigma)[inner], golden[case][inner]) <= 1


def test_a_kernel_of_one_pixel_changes_nothing():
    np.testing.assert_array_equal(blurred(IMAGES["noise"], 1, 2.0), IMAGES["noise"])


@pytest.mark.parametrize(("kernel_size", "sigma", "side"), [(5, 2.0, 5), (101, 2.0, 17), (5, 0.1, 3), (9, 0.6, 7)])
def test_taps_beyond_4_sigma_are_left_out(kernel_size, sigma, side):
    assert filters.gaussian_side(kernel_size, sigma) == side


def test_sigma_is_one_uniform_draw():
    call = transform("gaussian_blur", kernel_size=9, sigma_lo=0.5, sigma_hi=2.5)
    for seed in range(5):
        rng, expected = np.random.default_rng(seed), np.random.default_rng(seed)
        found = call.spec.function(IMAGES["photo"], **call.arguments, rng=rng)
        np.testing.assert_array_equal(found, blurred(IMAGES["photo"], 9, 0.5 + 2.0 * expected.random()))
        assert rng.bit_generator.state == expected.bit_generator.state


# --- median_blur


@every_image
@pytest.mark.parametrize("radius", [1, 2, 3, 8])
def test_median_equals_scipy(image, radius):
    side = 2 * radius + 1
    expected = ndimage.median_filter(image, (side, side, 1), mode="nearest")
    np.testing.assert_array_equal(run(transform("median_blur", radius=radius), image), expected)


def test_the_largest_median_equals_scipy():
    image = noise(9, 5)
    expected = ndimage.median_filter(image, (255, 255, 1), mode="nearest")
    np.testing.assert_array_equal(run(transform("median_blur", radius=127), image), expected)


def test_median_removes_single_specks():
    image = np.full((9, 9, 3), 50, np.uint8)
    image[4, 4] = 255
    assert (run(transform("median_blur"), image) == 50).all()


# --- sharpen


def sharpened(image, sigma, amount):
    """The formula in float64, not truncated."""
    return image + amount * (image - exact_blur(image, 2 * int(np.ceil(2 * sigma)) + 1, sigma))


@every_image
@pytest.mark.parametrize(("sigma", "amount"), [(1.0, 1.0), (0.3, 2.0), (2.5, 0.5), (1.0, -1.0), (3.0, 0.0)])
def test_sharpen_is_the_truncated_formula(image, sigma, amount):
    found = run(transform("sharpen", sigma=sigma, amount=amount), image)
    exact = np.clip(sharpened(image, sigma, amount), 0, 255)
    differs = found != np.trunc(exact)
    assert np.abs(found - np.trunc(exact)).max() <= 1
    assert (np.abs(exact - np.round(exact))[differs] < 2**-9).all()


@pytest.mark.parametrize("amount", [-30.0, 0.5, 3.0])
def test_sharpen_leaves_a_constant_image(amount):
    found = run(transform("sharpen", amount=amount), IMAGES["one-value"])
    np.testing.assert_array_equal(found, IMAGES["one-value"])


def test_sharpen_by_0_changes_nothing():
    np.testing.assert_array_equal(run(transform("sharpen", amount=0.0), IMAGES["noise"]), IMAGES["noise"])


@pytest.mark.parametrize("amount", [1e3, 1e30])
def test_sharpen_clips(amount):
    image = np.zeros((8, 8, 3), np.uint8)
    image[:, 4:] = 200
    found = run(transform("sharpen", amount=amount), image)
    assert (found[:, 3] == 0).all()
    assert (found[:, 4] == 255).all()


# --- canny


@every_image
@pytest.mark.parametrize(("low", "high"), [(20.0, 60.0), (50.0, 150.0), (0.5, 1e30)])
def test_canny_equals_opencv(image, low, high):
    red, green, blue = np.moveaxis(image.astype(int), 2, 0)
    luma = ((19595 * red + 38470 * green + 7471 * blue + 32768) >> 16).astype(np.uint8)
    smooth = cv2.GaussianBlur(luma, (0, 0), 1.4, borderType=cv2.BORDER_REPLICATE)
    expected = cv2.Canny(smooth, low, high, L2gradient=True)
    found = run(transform("canny", low=low, high=high), image)
    np.testing.assert_array_equal(found, np.repeat(expected[:, :, None], 3, axis=2))


def test_canny_marks_a_step_and_nothing_else():
    image = np.zeros((20, 30, 3), np.uint8)
    image[:, 15:] = 255
    found = run(transform("canny", low=50, high=150), image)
    assert set(np.unique(np.argwhere(found[:, :, 0])[:, 1])) <= {14, 15}
    assert (found.max(axis=1) == 255).all()


def test_a_high_bound_leaves_no_edge():
    assert not run(transform("canny", low=3000.0, high=5000.0), IMAGES["noise"]).any()


# --- all ops


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 9), st.integers(0, 9), st.sampled_from(sorted(OPS)), st.integers(0, 99), st.booleans())
def test_out_kernel_equals_plain_function_at_any_size(h, w, op, seed, strided):
    image = noise(2 * h, w, seed=seed)[::2] if strided else noise(h, w, seed=seed)
    image.flags.writeable = False
    call = transform(op, **OPS[op])
    plain = run(call, image, seed=seed)
    inferred = call.spec.output_type(type_of(image, "HWC"), call.arguments)
    assert TensorType(plain.shape, plain.dtype.name, "HWC") == inferred
    batch = np.full((3, *plain.shape), 77, np.uint8)
    run_out(call, image, batch[1], seed=seed)
    np.testing.assert_array_equal(batch[1], plain)
    assert (batch[::2] == 77).all()


@pytest.mark.parametrize("op", OPS)
def test_a_window_does_not_see_what_lies_around_it(op):
    window = IMAGES["window"]
    call = transform(op, **OPS[op])
    np.testing.assert_array_equal(run(call, window), run(call, window.copy()))


@pytest.mark.parametrize("op", ["gaussian_blur", "median_blur"])
def test_smoothing_leaves_a_constant_image(op):
    np.testing.assert_array_equal(run(transform(op, **OPS[op]), IMAGES["one-value"]), IMAGES["one-value"])


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("value", [np.zeros((4, 4, 3), np.float32), np.zeros((4, 4), np.uint8)], ids=["float", "2-d"])
def test_other_values_are_an_op_error(op, value):
    assert_refused(transform(op, **OPS[op]), value)


@pytest.mark.parametrize("op", RGB_ONLY)
@pytest.mark.parametrize("channels", [1, 4])
def test_rgb_only(op, channels):
    assert_rgb_only(transform(op, **OPS[op]), channels)


@pytest.mark.parametrize(
    ("op", "arguments", "error", "match"),
    [
        ("gaussian_blur", {"kernel_size": 4}, ValueError, "odd, got 4"),
        ("gaussian_blur", {"kernel_size": 0}, ValueError, ">= 1"),
        ("gaussian_blur", {"kernel_size": -3}, TypeError, ">= 1"),
        ("gaussian_blur", {"sigma_lo": 0.0}, ValueError, "> 0"),
        ("gaussian_blur", {"sigma_lo": 3.0}, ValueError, "sigma_lo <= sigma_hi, got 3.0, 2.0"),
        ("gaussian_blur", {"kernel_size": 10**9 + 1, "sigma_hi": 1e9}, ValueError, "up to 4095 taps"),
        ("median_blur", {"radius": 0}, ValueError, ">= 1"),
        ("median_blur", {"radius": 128}, ValueError, "<= 127"),
        ("median_blur", {"radius": 1.0}, TypeError, "integer"),
        ("sharpen", {"sigma": 0.0}, ValueError, "> 0"),
        ("sharpen", {"sigma": 1e6}, ValueError, "up to 4095 taps"),
        ("sharpen", {"amount": float("inf")}, ValueError, "finite"),
        ("sharpen", {"amount": True}, TypeError, "number"),
        ("canny", {"low": 50.0, "high": 50.0}, ValueError, "low < high"),
        ("canny", {"low": 0.0, "high": 50.0}, ValueError, "> 0"),
        ("canny", {"low": 5.0}, TypeError, "'high'"),
    ],
)
def test_bad_arguments_fail_at_construction(op, arguments, error, match):
    with pytest.raises(error, match=match):
        transform(op, **arguments)
