"""Every transform: inferred types, `out` kernels, and the rule it computes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from dataio.engine.errors import OpError, PlanError
from dataio.engine.schema import TensorType, type_of
from dataio.formats.array import CAST_BLOCK
from dataio.formats.image.geometry import random_box

from .helpers import max_difference, noise, ops_registered_by, photo, run, run_out, transform

RGB, GRAY, RGBA = (37, 53, 3), (37, 53, 1), (37, 53, 4)

CASES = [  # op, arguments, input shape, dtype, layout, output shape
    pytest.param("resize", {"h": 20, "w": 30}, RGB, "uint8", "HWC", (20, 30, 3), id="resize"),
    pytest.param("resize", {"h": 20, "w": 30, "interp": "nearest"}, GRAY, "uint8", "HWC", (20, 30, 1), id="nearest"),
    pytest.param("resize", {"h": 20, "w": 30, "interp": "lanczos"}, RGBA, "uint8", "HWC", (20, 30, 4), id="lanczos"),
    pytest.param("resize", {"h": 37, "w": 53}, RGB, "uint8", "HWC", RGB, id="resize-same"),
    pytest.param("resize_short", {"size": 16}, RGB, "uint8", "HWC", (16, 22, 3), id="short"),
    pytest.param("resize_long", {"size": 100}, RGBA, "uint8", "HWC", (69, 100, 4), id="long"),
    pytest.param("fit_to_bucket", {"h": 24, "w": 16}, RGB, "uint8", "HWC", (24, 16, 3), id="bucket"),
    pytest.param("crop", {"y": 3, "x": 5, "h": 7, "w": 9}, RGB, "uint8", "HWC", (7, 9, 3), id="crop"),
    pytest.param("crop", {"y": 3, "x": 5, "h": 7, "w": 9}, (3, 37, 53), "float32", "CHW", (3, 7, 9), id="crop-chw"),
    pytest.param("center_crop", {"h": 8, "w": 9}, RGB, "uint16", "HWC", (8, 9, 3), id="center"),
    pytest.param("center_crop", {"h": 50, "w": 9}, (3, 37, 53), "float32", "CHW", (3, 50, 9), id="center-pads"),
    pytest.param("random_crop", {"h": 8, "w": 9}, RGB, "uint8", "HWC", (8, 9, 3), id="random-crop"),
    pytest.param("random_resized_crop", {"h": 12, "w": 13}, RGB, "uint8", "HWC", (12, 13, 3), id="rrc"),
    pytest.param("hflip", {"prob": 1.0}, RGB, "uint8", "HWC", RGB, id="hflip"),
    pytest.param("hflip", {"prob": 1.0}, GRAY, "uint8", "HWC", GRAY, id="hflip-gray"),
    pytest.param("hflip", {"prob": 0.0}, RGB, "uint8", "HWC", RGB, id="hflip-off"),
    pytest.param("hflip", {"prob": 1.0}, (3, 37, 53), "float32", "CHW", (3, 37, 53), id="hflip-chw"),
    pytest.param("vflip", {"prob": 1.0}, RGBA, "uint8", "HWC", RGBA, id="vflip"),
    pytest.param("vflip", {"prob": 1.0}, (3, 37, 53), "int16", "CHW", (3, 37, 53), id="vflip-chw"),
    pytest.param("pad", {"top": 2, "left": 3, "value": 7}, RGB, "uint8", "HWC", (39, 56, 3), id="pad"),
    pytest.param("pad", {"bottom": 90, "right": 1, "mode": "reflect"}, RGB, "uint8", "HWC", (127, 54, 3), id="reflect"),
    pytest.param("pad", {"bottom": 4, "mode": "edge"}, (1, 37, 53), "float32", "CHW", (1, 41, 53), id="pad-edge"),
    pytest.param("unit_chw", {}, RGB, "uint8", "HWC", (3, 37, 53), id="unit"),
    pytest.param("symmetric_chw", {}, RGBA, "uint8", "HWC", (4, 37, 53), id="symmetric"),
    pytest.param("pack_chw_f32", {"scale": 2.0, "bias": 1.0}, GRAY, "uint8", "HWC", (1, 37, 53), id="pack"),
    pytest.param("normalize", {"mean": (0.5,), "std": (2.0,)}, (1, 5, 6), "float32", "CHW", (1, 5, 6), id="norm"),
    pytest.param(
        "normalize_chw_from_hwc_u8",
        {"mean": (0.4, 0.5, 0.6), "std": (0.2, 0.3, 0.4), "base": "unit"},
        RGB, "uint8", "HWC", (3, 37, 53), id="normalize-u8",
    ),
    pytest.param("cast", {"dtype": "float32"}, RGB, "uint8", "HWC", RGB, id="cast"),
    pytest.param("cast", {"dtype": "bool"}, (4,), "int64", None, (4,), id="cast-bool"),
    pytest.param("permute", {"axes": (2, 0, 1)}, RGB, "uint8", "HWC", (3, 37, 53), id="permute"),
    pytest.param("reshape", {"shape": (-1, 3)}, RGB, "uint8", "HWC", (37 * 53, 3), id="reshape"),
    pytest.param("flatten", {"start_axis": 1}, RGB, "uint8", "HWC", (37, 159), id="flatten"),
    pytest.param("squeeze", {}, GRAY, "uint8", "HWC", (37, 53), id="squeeze"),
    pytest.param("squeeze", {"axis": -1}, GRAY, "uint8", "HWC", (37, 53), id="squeeze-axis"),
    pytest.param("unsqueeze", {"axis": -1}, (4, 5), "float64", None, (4, 5, 1), id="unsqueeze"),
]  # fmt: skip
TRANSFORM_MODULES = ("image.resize", "image.geometry", "image.normalize", "array")


def sample(shape, dtype, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape).astype(dtype)


@pytest.mark.parametrize(("op", "args", "shape", "dtype", "layout", "expected"), CASES)
def test_inferred_type_is_the_actual_one(op, args, shape, dtype, layout, expected):
    call, value = transform(op, **args), sample(shape, dtype)
    found = run(call, value, layout)
    inferred = call.spec.output_type(type_of(value, layout), call.arguments)
    assert found.shape == expected == inferred.shape
    assert found.dtype.name == inferred.dtype


@pytest.mark.parametrize(("op", "args", "shape", "dtype", "layout", "expected"), CASES)
def test_inference_of_unknown_sizes_agrees_where_it_commits(op, args, shape, dtype, layout, expected):
    given = TensorType(tuple(n if n < 5 else None for n in shape), dtype, layout)
    inferred = transform(op, **args).spec.output_type(given, args_with_defaults(op, args))
    if inferred.shape is not None:
        assert all(i in (None, e) for i, e in zip(inferred.shape, expected, strict=True))


def args_with_defaults(op, args):
    return transform(op, **args).arguments


@pytest.mark.parametrize(("op", "args", "shape", "dtype", "layout", "expected"), CASES)
def test_out_kernel_equals_plain_function(op, args, shape, dtype, layout, expected):
    call, value = transform(op, **args), sample(shape, dtype)
    if "out" not in call.spec.kernels:
        pytest.skip("a view or a reshape: no out kernel")
    plain = run(call, value, layout)
    batch = np.full((3, *expected), 77, plain.dtype)
    run_out(call, value, batch[1], layout)
    np.testing.assert_array_equal(batch[1], plain)
    assert (batch[::2] == np.full((), 77, plain.dtype)).all()


@pytest.mark.parametrize(("op", "args", "shape", "dtype", "layout", "expected"), CASES)
def test_read_only_and_strided_inputs_give_the_same(op, args, shape, dtype, layout, expected):
    call, value = transform(op, **args), sample(shape, dtype)
    wider = np.repeat(value, 2, axis=0)[::2]
    wider.flags.writeable = False
    np.testing.assert_array_equal(run(call, wider, layout), run(call, value, layout))


def test_every_transform_of_these_modules_has_a_case():
    transforms = ops_registered_by(*TRANSFORM_MODULES) - {"npy"}
    assert {case.values[0] for case in CASES} == transforms


SIZES = [(256, 256, 224, 224), (101, 87, 40, 30), (40, 30, 101, 87), (60, 91, 60, 30), (33, 500, 20, 7)]


@pytest.mark.parametrize("interp", ["bilinear", "bicubic"])
@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize(("height", "width", "h", "w"), SIZES)
def test_resize_is_within_1_level_of_pillow(height, width, h, w, channels, interp):
    image = noise(height, width, channels)
    found = run(transform("resize", h=h, w=w, interp=interp), image)
    filters = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
    planes = [np.asarray(Image.fromarray(image[:, :, c]).resize((w, h), filters[interp])) for c in range(channels)]
    assert max_difference(found, np.stack(planes, axis=2)) <= 1


@pytest.mark.parametrize("interp", ["bilinear", "bicubic", "lanczos"])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_resize_without_torch_is_pillow(monkeypatch, channels, interp):
    from dataio.formats.image import resize as module

    monkeypatch.setattr(module, "_torch", lambda: None)
    image = noise(60, 50, channels)
    found = run(transform("resize", h=31, w=72, interp=interp), image)
    resample = Image.Resampling[interp.upper()]
    planes = [np.asarray(Image.fromarray(image[:, :, c]).resize((72, 31), resample)) for c in range(channels)]
    np.testing.assert_array_equal(found, np.stack(planes, axis=2))


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize(("height", "width", "h", "w"), SIZES)
def test_nearest_samples_at_pixel_centres(height, width, h, w, channels):
    image = noise(height, width, channels)
    rows = np.floor((np.arange(h) + 0.5) * height / h).astype(int)
    columns = np.floor((np.arange(w) + 0.5) * width / w).astype(int)
    found = run(transform("resize", h=h, w=w, interp="nearest"), image)
    np.testing.assert_array_equal(found, image[rows][:, columns])


@pytest.mark.parametrize(
    ("op", "args", "shape", "expected"),
    [
        ("resize_short", {"size": 256}, (480, 640), (256, 341)),
        ("resize_long", {"size": 256}, (333, 500), (170, 256)),
        ("resize_long", {"size": 2}, (1, 500), (1, 2)),
        ("fit_to_bucket", {"h": 30, "w": 40}, (333, 500), (30, 40)),
    ],
)
def test_edges_are_floored(op, args, shape, expected):
    assert run(transform(op, **args), noise(*shape)).shape[:2] == expected


@settings(max_examples=25, deadline=None)
@given(st.integers(5, 90), st.integers(5, 90), st.integers(1, 60), st.integers(1, 60))
def test_fit_to_bucket_is_resize_then_center_crop(height, width, h, w):
    image = noise(height, width)
    scale = max(h / height, w / width)
    full_h = h if scale == h / height else -(-height * w // width)
    full_w = w if scale == w / width else -(-width * h // height)
    whole = run(transform("resize", h=full_h, w=full_w), image)
    expected = run(transform("center_crop", h=h, w=w), whole, "HWC")
    assert max_difference(run(transform("fit_to_bucket", h=h, w=w), image), expected) <= 1


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 20), st.integers(1, 20), st.sampled_from(["HWC", "CHW"]), st.sampled_from(["hflip", "vflip"]))
def test_double_flip_is_identity(h, w, layout, op):
    value = sample((h, w, 3) if layout == "HWC" else (3, h, w), "uint8")
    once = run(transform(op, prob=1.0), value, layout)
    np.testing.assert_array_equal(run(transform(op, prob=1.0), once, layout), value)


def test_flips_share_one_draw():
    value = sample(RGB, "uint8")
    for seed in range(8):
        heads = np.random.default_rng(seed).random() < 0.5
        found = run(transform("hflip"), value, "HWC", seed)
        np.testing.assert_array_equal(found, value[:, ::-1] if heads else value)


@settings(max_examples=30, deadline=None)
@given(
    st.integers(1, 6), st.integers(1, 6), st.tuples(*[st.integers(0, 20)] * 4), st.sampled_from(["reflect", "edge", "constant"])
)
def test_pad_equals_numpy(h, w, amounts, mode):
    value = noise(h, w)
    top, bottom, left, right = amounts
    call = transform("pad", top=top, bottom=bottom, left=left, right=right, mode=mode)
    expected = np.pad(value, ((top, bottom), (left, right), (0, 0)), mode=mode)
    np.testing.assert_array_equal(run(call, value, "HWC"), expected)


@pytest.mark.parametrize("mode", ["reflect", "edge", "constant"])
@pytest.mark.parametrize("layout", ["HWC", "CHW"])
@pytest.mark.parametrize("channels", [1, 2, 4, 5])
@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "float16", "int32", "float32", "int64", "complex128"])
def test_pad_moves_any_dtype(dtype, channels, layout, mode):
    value = sample((5, 6, channels) if layout == "HWC" else (channels, 5, 6), dtype)
    amounts = [(2, 9), (7, 1)]
    expected = np.pad(value, [*amounts, (0, 0)] if layout == "HWC" else [(0, 0), *amounts], mode=mode)
    call = transform("pad", top=2, bottom=9, left=7, right=1, mode=mode)
    np.testing.assert_array_equal(run(call, value, layout), expected)


def test_pad_keeps_the_bits_of_nan():
    value = np.array([[[0x7FF8000000000123]]], np.uint64).view(np.float64)
    padded = run(transform("pad", left=1, mode="edge"), value, "HWC")
    assert padded.view(np.uint64).ravel().tolist() == [0x7FF8000000000123] * 2


def test_pad_value_is_a_number_in_any_dtype():
    padded = run(transform("pad", top=1, value=7), np.zeros((2, 2, 3), np.float32), "HWC")
    assert (padded[0] == 7.0).all()


def test_center_crop_floors_odd_margins():
    value = sample((7, 8, 3), "uint8")
    np.testing.assert_array_equal(run(transform("center_crop", h=4, w=5), value, "HWC"), value[1:5, 1:6])


def test_center_crop_pads_each_axis_on_its_own():
    value = sample((4, 8, 3), "uint8")
    found = run(transform("center_crop", h=7, w=4), value, "HWC")
    np.testing.assert_array_equal(found[1:5], value[:, 2:6])
    assert not found[0].any()
    assert not found[5:].any()


def test_crops_are_views():
    value = sample(RGB, "uint8")
    assert np.shares_memory(run(transform("crop", y=0, x=0, h=4, w=4), value, "HWC"), value)


@pytest.mark.parametrize(
    ("op", "args", "match"),
    [
        ("crop", {"y": 30, "x": 0, "h": 8, "w": 8}, "leaves the image of 37x53"),
        ("random_crop", {"h": 38, "w": 8}, "at least 38x8 pixels, got 37x53"),
        ("reshape", {"shape": (7, -1)}, "do not fill"),
        ("squeeze", {"axis": 0}, "axis of size 1"),
        ("flatten", {"start_axis": 2, "end_axis": 1}, "do not fit 3 axes"),
        ("unsqueeze", {"axis": 5}, "out of range"),
        ("permute", {"axes": (1, 0)}, "wants 2 axes"),
        ("normalize_chw_from_hwc_u8", {"mean": (0.5,), "std": (1.0,)}, "have 1 entries, the image 3"),
    ],
)
def test_a_row_that_does_not_fit_is_an_op_error(op, args, match):
    with pytest.raises(OpError, match=match):
        run(transform(op, **args), sample(RGB, "uint8"), "HWC")


@pytest.mark.parametrize(
    ("op", "args", "error"),
    [
        ("resize", {"h": 0, "w": 3}, ValueError),
        ("resize", {"h": -1, "w": 3}, TypeError),
        ("resize", {"h": 3, "w": 3, "interp": "cubic"}, ValueError),
        ("resize_short", {"size": True}, TypeError),
        ("hflip", {"prob": 1.5}, ValueError),
        ("pad", {"value": 256}, ValueError),
        ("pad", {"top": -1}, TypeError),
        ("random_resized_crop", {"h": 4, "w": 4, "scale_lo": 0.5, "scale_hi": 0.1}, ValueError),
        ("random_resized_crop", {"h": 4, "w": 4, "scale_hi": 1.5}, ValueError),
        ("random_resized_crop", {"h": 4, "w": 4, "ratio_lo": 0}, ValueError),
        ("normalize", {"mean": (0.5,), "std": (0.0,)}, ValueError),
        ("normalize", {"mean": (0.5, 0.5), "std": (1.0,)}, ValueError),
        ("normalize", {"mean": (), "std": ()}, ValueError),
        ("normalize", {"mean": (float("nan"),), "std": (1.0,)}, ValueError),
        ("permute", {"axes": (0, 0)}, ValueError),
        ("permute", {"axes": (0, -1)}, ValueError),
        ("reshape", {"shape": (-1, -1)}, ValueError),
        ("cast", {"dtype": "float16"}, ValueError),
    ],
)
def test_bad_arguments_fail_at_construction(op, args, error):
    with pytest.raises(error):
        transform(op, **args)


@pytest.mark.parametrize(
    ("op", "args", "given"),
    [
        ("resize", {"h": 3, "w": 3}, TensorType((4, 4, 3), "float32", "HWC")),
        ("unit_chw", {}, TensorType((3, 4, 4), "uint8", "CHW")),
        ("normalize", {"mean": (0.5,), "std": (1.0,)}, TensorType((3, None, None), "float32", "CHW")),
        ("cast", {"dtype": "uint8"}, TensorType((3,), "float16")),
        ("hflip", {}, TensorType((3,), "uint8")),
    ],
)
def test_what_the_plan_can_prove_wrong(op, args, given):
    call = transform(op, **args)
    with pytest.raises(PlanError):
        call.spec.output_type(given, call.arguments)


def test_random_crop_reaches_every_place():
    value = np.arange(9, dtype=np.uint8).reshape(3, 3, 1)
    seen = {int(run(transform("random_crop", h=2, w=2), value, "HWC", seed)[0, 0, 0]) for seed in range(60)}
    assert seen == {0, 1, 3, 4}


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 300), st.integers(1, 300), st.integers(0, 10**6))
def test_random_box_lies_inside(height, width, seed):
    box = random_box(height, width, (0.08, 1.0), (0.75, 4 / 3), np.random.default_rng(seed))
    assert box.h >= 1
    assert box.w >= 1
    assert 0 <= box.y <= height - box.h
    assert 0 <= box.x <= width - box.w


def test_random_box_falls_back_to_the_centre():
    box = random_box(10, 1000, (0.9, 1.0), (0.75, 4 / 3), np.random.default_rng(0))
    assert (box.h, box.w) == (10, 13)
    assert box.x == (1000 - 13) // 2


def test_random_resized_crop_of_everything_is_resize():
    image = photo()
    call = transform("random_resized_crop", h=20, w=20, scale_lo=1.0, ratio_lo=4 / 3, ratio_hi=4 / 3)
    np.testing.assert_array_equal(run(call, image, "HWC"), run(transform("resize", h=20, w=20), image))


@pytest.mark.parametrize(
    ("source", "values", "target", "expected"),
    [
        ("float32", [-1.9, 1.9, 300.0, -5.0, np.nan, np.inf, -np.inf], "uint8", [0, 1, 255, 0, 0, 255, 0]),
        ("float64", [1e30, -1e30, np.nan, 2.5], "int64", [2**63 - 1, -(2**63), 0, 2]),
        ("float32", [3e9, -3e9], "int32", [2**31 - 1, -(2**31)]),
        ("float64", [1e30, -1.0], "uint64", [2**64 - 1, 0]),
        ("int16", [256, -1, 5], "uint8", [0, 255, 5]),
        ("float32", [0.0, 0.5, np.nan], "bool", [False, True, True]),
        ("bool", [True, False], "float32", [1.0, 0.0]),
    ],
)
def test_cast_rules(source, values, target, expected):
    found = run(transform("cast", dtype=target), np.array(values, source))
    np.testing.assert_array_equal(found, np.array(expected, target))


@pytest.mark.parametrize(("source", "target"), [("float32", "uint8"), ("float32", "int64"), ("float64", "int16")])
def test_cast_treats_all_of_a_long_array_alike(source, target):
    few = np.array([1.9, np.nan, -1e30, 1e30, -0.5, np.inf, 127.0], source)
    many = np.tile(few, CAST_BLOCK // 3)  # some blocks and a rest
    once = run(transform("cast", dtype=target), few)
    np.testing.assert_array_equal(run(transform("cast", dtype=target), many), np.tile(once, CAST_BLOCK // 3))


def test_normalize_keeps_what_is_not_finite():
    planes = np.array([[[np.inf, -np.inf, np.nan]]], np.float32)
    found = run(transform("normalize", mean=(0.5,), std=(0.25,)), planes, "CHW")
    np.testing.assert_array_equal(found, planes)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.floats(width=32), min_size=1, max_size=9),
    st.sampled_from(["float32", "float64"]),
    st.sampled_from(["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]),
)
def test_cast_of_any_float_is_exact(values, source, target):
    info = np.iinfo(target)
    exact = [0 if math.isnan(v) else info.max if v >= info.max else info.min if v <= info.min else int(v) for v in values]
    found = run(transform("cast", dtype=target), np.array(values, source))
    assert found.tolist() == exact
