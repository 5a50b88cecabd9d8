"""pad_axis, patchify and gaussian_noise."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes

from dataio.engine.errors import OpError, PlanError
from dataio.engine.schema import TensorType, type_of
from dataio.formats.array import CASTABLE
from dataio.formats.tensor import fill_value

from .helpers import ops_registered_by, run, run_out, transform


def counting(shape, dtype="float32"):
    """0, 1, 2, ... in row-major order."""
    return np.arange(int(np.prod(shape))).reshape(shape).astype(dtype)


def inferred(call, given):
    return call.spec.output_type(given, call.arguments)


# pad_axis


@settings(max_examples=50, deadline=None)
@given(array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=5), st.data())
def test_pad_axis_appends_and_never_cuts(shape, data):
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    target = data.draw(st.integers(0, 9))
    value, call = counting(shape, "int16"), transform("pad_axis", axis=axis, target=target, value=-3)
    found = run(call, value)
    size = shape[axis]
    assert found.shape[axis] == max(size, target)
    np.testing.assert_array_equal(np.take(found, range(size), axis), value)
    assert (np.take(found, range(size, found.shape[axis]), axis) == -3).all()
    assert inferred(call, type_of(value)) == type_of(found)
    out = np.full(found.shape, 77, np.int16)
    run_out(call, value, out)
    np.testing.assert_array_equal(out, found)


def test_pad_axis_gives_back_what_is_long_enough():
    value = counting((3, 4))
    assert run(transform("pad_axis", axis=1, target=4), value) is value


def test_pad_axis_of_an_unknown_size():
    call = transform("pad_axis", axis=-1, target=4)
    assert inferred(call, TensorType((None, 3), "uint8")) == TensorType((None, 4), "uint8")
    assert inferred(call, TensorType((3, None), "uint8")) == TensorType((3, None), "uint8")
    assert inferred(call, TensorType(None, "uint8")) == TensorType(None, "uint8")


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [
        (1e9, "int16", 32767),
        (-1e9, "int16", -32768),
        (-3.7, "int16", -3),
        (2.999, "uint8", 2),
        (-1.0, "uint8", 0),
        (float("nan"), "int8", 0),
        (float("inf"), "int64", 2**63 - 1),
        (1e300, "uint64", 2**64 - 1),
        (2.5, "bool", True),
        (0.0, "bool", False),
        (1e300, "float32", np.inf),
        (float("-inf"), "float32", -np.inf),
        (0.1, "float64", 0.1),
        (1.5, "float16", 1.5),
    ],
)
def test_what_the_fill_becomes(value, dtype, expected):
    found = run(transform("pad_axis", axis=0, target=3, value=value), np.zeros(1, dtype))
    np.testing.assert_array_equal(found, np.array([0, expected, expected], dtype))


@pytest.mark.parametrize("dtype", [*CASTABLE, "float16"])
def test_a_fill_has_the_dtype(dtype):
    assert fill_value(1.0, np.dtype(dtype)).dtype == dtype


@pytest.mark.parametrize(("axis", "shape"), [(2, (2, 2)), (-3, (2, 2)), (0, ())])
def test_an_axis_that_is_not_there(axis, shape):
    call = transform("pad_axis", axis=axis, target=3)
    with pytest.raises(OpError, match=f"axis {axis} is out of range for {len(shape)} axes"):
        run(call, np.zeros(shape, np.float32))
    with pytest.raises(PlanError, match="out of range"):
        inferred(call, TensorType(shape, "float32"))


# patchify


@pytest.mark.parametrize("dtype", ["uint8", "float32", "int64", "bool", "float16"])
@pytest.mark.parametrize("shape", [(3, 12, 8), (1, 4, 4), (5, 4, 12), (3, 0, 8)])
def test_patches_are_in_reading_order(shape, dtype):
    value, p = counting(shape, dtype), 4
    rows = [
        value[:, y : y + p, x : x + p].transpose(1, 2, 0).ravel()
        for y in range(0, shape[1], p)
        for x in range(0, shape[2], p)
    ]
    call = transform("patchify", patch_size=p)
    found = run(call, value, "CHW")
    np.testing.assert_array_equal(found, np.array(rows, dtype).reshape(-1, p * p * shape[0]))
    assert inferred(call, type_of(value, "CHW")) == type_of(found)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 5), st.integers(0, 3), st.integers(0, 3), st.integers(1, 5))
def test_patches_of_any_view(channels, down, across, p):
    planes = counting((down * p, across * p, channels)).transpose(2, 0, 1)  # what permute gives
    planes.flags.writeable = False
    call = transform("patchify", patch_size=p)
    expected = run(call, np.ascontiguousarray(planes), "CHW")
    np.testing.assert_array_equal(run(call, planes, "CHW"), expected)
    batch = np.full((3, *expected.shape), 77, np.float32)
    run_out(call, planes, batch[1], "CHW")
    np.testing.assert_array_equal(batch[1], expected)
    assert (batch[::2] == 77).all()


@pytest.mark.parametrize("shape", [(3, 6, 8), (3, 8, 6), (3, 2, 2)])
def test_edges_must_be_multiples(shape):
    call = transform("patchify", patch_size=4)
    with pytest.raises(OpError, match="multiples of 4"):
        run(call, counting(shape), "CHW")
    with pytest.raises(PlanError, match="multiples of 4"):
        inferred(call, TensorType(shape, "float32", "CHW"))


def test_pixels_in_rows_are_no_planes():
    call = transform("patchify", patch_size=4)
    with pytest.raises(PlanError, match="permute"):
        inferred(call, TensorType((8, 8, 3), "uint8", "HWC"))
    with pytest.raises(OpError, match="3 axes"):
        run(call, counting((8, 8)))


def test_patches_of_an_unknown_size():
    call = transform("patchify", patch_size=4)
    assert inferred(call, TensorType((3, None, 8), "uint8", "CHW")) == TensorType((None, 48), "uint8")
    assert inferred(call, TensorType((None, 8, 8), "uint8")) == TensorType((4, None), "uint8")
    assert inferred(call, TensorType(None, "uint8")) == TensorType((None, None), "uint8")


# gaussian_noise


def normal(sample):
    """Whether the share of numbers below each quantile of the normal distribution is as expected, within 4 deviations."""
    shares = np.array([0.001, 0.02, 0.1, 0.3, 0.5, 0.7, 0.9, 0.98, 0.999])
    limits = [NormalDist().inv_cdf(share) for share in shares]
    found = (sample[:, None] < limits).mean(axis=0)
    return (np.abs(found - shares) < 4 * np.sqrt(shares * (1 - shares) / len(sample))).all()


def test_noise_is_normal():
    found = run(transform("gaussian_noise", std=0.5), np.full((60, 50, 40), 2.0, np.float32))
    assert found.dtype == np.float32
    assert normal((found.ravel() - 2) / 0.5)


def test_noise_of_different_records_is_independent():
    """OpenCV's generator gives a first number of the sign of its seed: with 31-bit seeds, always a positive one."""
    call, value = transform("gaussian_noise", std=1.0), np.zeros(4, np.float32)
    table = np.stack([run(call, value, seed=seed) for seed in range(800)])
    assert all(normal(column) for column in table.T)
    assert np.abs(np.corrcoef(table.T) - np.eye(4)).max() < 0.15


def test_noise_depends_on_its_stream_alone():
    import cv2

    call, value = transform("gaussian_noise", std=1.0), np.zeros((3, 4), np.float32)
    first = run(call, value, seed=5)
    cv2.setRNGSeed(99)
    np.testing.assert_array_equal(run(call, value, seed=5), first)
    assert not np.array_equal(run(call, value, seed=6), first)


@pytest.mark.parametrize("shape", [(), (1,), (0, 4), (2, 3, 4)])
def test_the_out_kernel_draws_the_same(shape):
    call, value = transform("gaussian_noise", std=1.0), counting(shape)
    plain = run(call, value, seed=1)
    out = np.full(shape, 7, np.float32)
    run_out(call, value, out, seed=1)
    np.testing.assert_array_equal(out, plain)
    assert plain.shape == shape


def test_no_noise_draws_nothing():
    call, rng, value = transform("gaussian_noise", std=0), np.random.default_rng(4), counting((3,))
    assert call.spec.function(value, std=0.0, rng=rng) is value
    assert rng.random() == np.random.default_rng(4).random()


@pytest.mark.parametrize(
    ("value", "std", "match"),
    [
        (np.zeros(3, np.uint8), 1.0, "takes float32, got uint8"),
        (np.zeros(3), 0.0, "takes float32, got float64"),
        (np.zeros(3, np.float32), -1.0, "std >= 0, got -1"),
        (np.zeros(3, np.float32), float("nan"), "std >= 0, got nan"),
    ],
)
def test_noise_on_a_row_that_does_not_fit(value, std, match):
    call = transform("gaussian_noise", std=1.0)
    with pytest.raises(OpError, match=match):
        call.spec.function(value, std=std, rng=np.random.default_rng(0))


@pytest.mark.parametrize(
    ("op", "args", "error"),
    [
        ("pad_axis", {"axis": 0, "target": -1}, TypeError),
        ("pad_axis", {"axis": 0, "target": True}, TypeError),
        ("pad_axis", {"axis": 0, "target": "column"}, TypeError),
        ("pad_axis", {"axis": 0.5, "target": 3}, TypeError),
        ("pad_axis", {"axis": 0, "target": 3, "value": True}, TypeError),
        ("pad_axis", {"axis": 0, "target": 3, "value": "1"}, TypeError),
        ("patchify", {"patch_size": 0}, ValueError),
        ("patchify", {"patch_size": -1}, TypeError),
        ("gaussian_noise", {"std": -1.0}, ValueError),
        ("gaussian_noise", {"std": float("nan")}, ValueError),
        ("gaussian_noise", {"std": True}, TypeError),
    ],
)
def test_bad_arguments_fail_at_construction(op, args, error):
    with pytest.raises(error):
        transform(op, **args)


def test_noise_may_differ_per_record():
    assert str(transform("gaussian_noise", std="strength")).startswith("gaussian_noise(std=")


def test_every_op_of_this_module_is_tested():
    assert ops_registered_by("tensor") == {"pad_axis", "patchify", "gaussian_noise"}
