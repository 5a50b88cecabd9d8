"""Packing and normalising, and the slot method that chooses among them."""

from __future__ import annotations

import numpy as np
import pytest

from dataio.engine.registry import slot_methods
from dataio.formats.image.geometry import random_resized_crop
from dataio.formats.image.normalize import PRESETS, normalize

from .helpers import noise, run, transform


@pytest.mark.parametrize("base", ["unit", "symmetric"])
@pytest.mark.parametrize("preset", ["imagenet", "clip"])
def test_normalize_is_within_1_2e_6_of_float64(preset, base):
    image = noise(40, 30)
    mean, std = (np.array(v)[:, None, None] for v in PRESETS[preset])
    x = image.transpose(2, 0, 1).astype(np.float64)
    expected = ((x / 255 if base == "unit" else x / 127.5 - 1) - mean) / std
    call = transform("normalize_chw_from_hwc_u8", mean=PRESETS[preset][0], std=PRESETS[preset][1], base=base)
    assert np.abs(run(call, image) - expected).max() < 1.2e-6


def test_unit_and_symmetric_are_exact_float32():
    image = noise(8, 9)
    x = image.transpose(2, 0, 1).astype(np.float32)
    np.testing.assert_array_equal(run(transform("unit_chw"), image), x * np.float32(1 / 255))
    np.testing.assert_array_equal(run(transform("symmetric_chw"), image), x * np.float32(2 / 255) - np.float32(1))


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 5])
def test_pack_takes_views_of_any_channel_count(channels):
    image = noise(20, 21, channels)
    for view in (image, image[3:15, 4:18], image[::-1], image[:, ::2]):
        expected = view.transpose(2, 0, 1).astype(np.float32) * 2
        np.testing.assert_array_equal(run(transform("pack_chw_f32", scale=2.0), view), expected)


MODES = [
    pytest.param({}, "normalize_chw_from_hwc_u8", PRESETS["imagenet"], id="default"),
    pytest.param({"mode": "CLIP"}, "normalize_chw_from_hwc_u8", PRESETS["clip"], id="any-case"),
    pytest.param({"mode": ((0.1,), (0.2,))}, "normalize_chw_from_hwc_u8", ((0.1,), (0.2,)), id="pair"),
    pytest.param({"mean": [0.1], "std": [0.2]}, "normalize_chw_from_hwc_u8", ((0.1,), (0.2,)), id="mean-std"),
    pytest.param({"mode": "unit"}, "unit_chw", None, id="unit"),
    pytest.param({"mode": "symmetric"}, "symmetric_chw", None, id="symmetric"),
    pytest.param({"mode": "none"}, "pack_chw_f32", None, id="none"),
    pytest.param({"mode": None}, "pack_chw_f32", None, id="null"),
]


@pytest.mark.parametrize(("arguments", "op", "values"), MODES)
def test_slot_method_chooses_the_op(arguments, op, values):
    call = normalize(**arguments)
    assert not isinstance(call, tuple)
    assert call.name == op
    if values is not None:
        assert (call.arguments["mean"], call.arguments["std"], call.arguments["base"]) == (*values, "unit")


def test_none_in_hwc_adds_nothing():
    assert normalize("none", output_layout="hwc") == ()


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"mode": "vgg"}, "clip, imagenet, none, symmetric, unit"),
        ({"mean": (0.5,)}, "together"),
        ({"mode": ((0.5,), (1.0,), (2.0,))}, "pair"),
        ({"mode": "unit", "output_layout": "hwc"}, "none"),
        ({"output_layout": "hwc", "mean": (0.5,), "std": (1.0,)}, "none"),
        ({"output_layout": "nchw"}, "output_layout"),
    ],
)
def test_slot_method_refuses(arguments, match):
    with pytest.raises(ValueError, match=match):
        normalize(**arguments)


def test_packers_have_no_slot_method():
    methods = slot_methods()
    assert not {"unit_chw", "symmetric_chw", "pack_chw_f32", "normalize_chw_from_hwc_u8"} & set(methods)
    assert {"normalize", "random_resized_crop", "decode_image", "passthrough", "resize_short"} <= set(methods)


def test_random_resized_crop_method_takes_pairs():
    call = random_resized_crop(h=4, w=5, scale=(0.2, 0.5), ratio=(1.0, 2.0))
    assert (call.arguments["scale_lo"], call.arguments["ratio_hi"]) == (0.2, 2.0)
    with pytest.raises(ValueError, match="pair"):
        random_resized_crop(h=4, w=5, scale=(0.2, 0.5, 1.0))  # type: ignore[arg-type]
