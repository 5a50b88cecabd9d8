"""mean, std, shape and sharpness."""

from __future__ import annotations

import numpy as np
import pytest

from dataio.engine.errors import OpError, PlanError
from dataio.engine.schema import TensorType
from dataio.formats.array import CASTABLE
from dataio.formats.measure import mean, shape, sharpness, std

from .helpers import photo, run, transform


@pytest.mark.parametrize("dtype", CASTABLE)
@pytest.mark.parametrize("op", [mean, std])
def test_numbers_are_those_of_numpy(op, dtype):
    value = np.random.default_rng(0).integers(0, 100, (7, 5, 3)).astype(dtype)
    found = run(transform(op.__name__), value)
    assert (found.shape, found.dtype) == ((), np.float64)
    np.testing.assert_allclose(found, getattr(np, op.__name__)(value.astype(np.float64)), rtol=1e-12)


def test_a_large_image_of_one_value_has_exactly_its_mean():
    value = np.full((4000, 4000), 201, np.uint8)
    assert (float(mean(value)), float(std(value))) == (201.0, 0.0)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_numbers_that_are_none(value):
    array = np.array([1.0, value], np.float32)
    assert np.isnan(std(array))
    np.testing.assert_equal(float(mean(array)), value)


@pytest.mark.parametrize("op", ["mean", "std", "sharpness"])
def test_nothing_has_no_measure(op):
    with pytest.raises(OpError, match=rf"{op} of no elements"):
        run(transform(op), np.empty((0, 4, 3), np.uint8), layout="HWC")


@pytest.mark.parametrize("dims", [(), (0,), (3, 4), (5, 1, 7, 2)])
def test_the_shape_is_the_shape(dims):
    found = run(transform("shape"), np.empty(dims, np.uint8))
    assert found.dtype == np.int64
    assert tuple(found) == dims
    assert transform("shape").spec.output_type(TensorType(dims, "uint8"), {}) == TensorType((len(dims),), "int64")
    assert shape(np.empty(dims)).shape == (len(dims),)


def reference(pixels: np.ndarray) -> float:
    """The definition, in float64: four neighbours minus four times the pixel, edges mirrored."""
    luma = pixels[..., 0].astype(np.float64) if pixels.shape[2] == 1 else pixels[..., :3] @ np.array([0.299, 0.587, 0.114])
    wide = np.pad(luma, 1, mode="reflect")
    return float((wide[:-2, 1:-1] + wide[2:, 1:-1] + wide[1:-1, :-2] + wide[1:-1, 2:] - 4 * luma).var())


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("layout", ["HWC", "CHW"])
def test_sharpness_is_the_variance_of_the_laplacian(dtype, channels, layout):
    pixels = photo(41, 57, channels, seed=3).astype(dtype)
    found = run(transform("sharpness"), pixels if layout == "HWC" else pixels.transpose(2, 0, 1), layout=layout)
    assert (found.shape, found.dtype) == ((), np.float64)
    np.testing.assert_allclose(found, reference(pixels), rtol=1e-4)


def test_a_blurred_image_is_less_sharp():
    import cv2

    pixels = photo(64, 64, 3, seed=1)
    assert sharpness(cv2.GaussianBlur(pixels, (0, 0), 3), layout="HWC") < sharpness(pixels, layout="HWC") / 10


def test_an_image_of_one_pixel_has_no_edges():
    assert float(sharpness(np.full((1, 1, 3), 7, np.uint8), layout="HWC")) == 0.0


def test_sharpness_is_of_images():
    with pytest.raises(PlanError, match="sharpness takes"):
        transform("sharpness").spec.output_type(TensorType((4, 5), "uint8"), {})
