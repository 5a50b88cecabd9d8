"""Colour transforms against Pillow, torchvision (golden values) and their formulas in float64."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageEnhance, ImageOps

from dataio.engine.schema import TensorType, type_of
from dataio.formats.image import color, pixels

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
MODERATE = st.floats(0.0, 3.0, width=32)

OPS = {  # every op, with arguments that make it do something
    "color_jitter": {"brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1},
    "grayscale": {},
    "invert": {},
    "solarize": {},
    "posterize": {},
    "equalize": {},
}
GATED = sorted(OPS.keys() - {"color_jitter"})
RGB_ONLY = ("color_jitter", "grayscale", "equalize")

IMAGES = {
    "photo": photo(37, 53),
    "noise": noise(40, 31),
    "dull": noise(20, 30) // 4 + 90,
    "one-value": np.full((12, 9, 3), 77, np.uint8),
    "two-values": np.where(noise(9, 9) > 250, 255, 0).astype(np.uint8),
    "black": np.zeros((5, 5, 3), np.uint8),
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


def as_pillow(image):
    return Image.fromarray(np.ascontiguousarray(image))


def test_every_op_of_the_module_is_tested():
    assert set(OPS) == ops_registered_by("image.color")


SAME_AS_PILLOW = {  # ours, Pillow's
    "invert": (color.invert_image, ImageOps.invert),
    "equalize": (color.equalize_image, ImageOps.equalize),
    "autocontrast": (color.autocontrast_image, ImageOps.autocontrast),
    **{f"solarize-{t}": (lambda x, t=t: color.solarize_image(x, t), lambda p, t=t: ImageOps.solarize(p, t)) for t in (0, 1, 128, 255, 256)},
    **{f"posterize-{b}": (lambda x, b=b: color.posterize_image(x, b), lambda p, b=b: ImageOps.posterize(p, b)) for b in range(1, 9)},
}  # fmt: skip


@every_image
@pytest.mark.parametrize(("ours", "pillows"), SAME_AS_PILLOW.values(), ids=SAME_AS_PILLOW)
def test_equals_pillow(ours, pillows, image):
    np.testing.assert_array_equal(ours(image), np.asarray(pillows(as_pillow(image))))


ENHANCERS = {
    "brightness": (color.brightness_image, ImageEnhance.Brightness),
    "contrast": (color.contrast_image, ImageEnhance.Contrast),
    "saturation": (color.saturation_image, ImageEnhance.Color),
    "sharpness": (color.sharpness_image, ImageEnhance.Sharpness),
}


@every_image
@pytest.mark.parametrize("factor", [0.0, 0.1, 0.5, 1.0, 1.3, 1.9])
@pytest.mark.parametrize(("ours", "pillows"), ENHANCERS.values(), ids=ENHANCERS)
def test_enhancers_are_within_1_level_of_pillow(ours, pillows, image, factor):
    expected = np.asarray(pillows(as_pillow(image)).enhance(factor))
    assert max_difference(ours(image, factor), expected) <= 1


@settings(max_examples=40, deadline=None)
@given(MODERATE, st.sampled_from(sorted(ENHANCERS)), st.integers(0, 100))
def test_enhancers_differ_from_pillow_only_next_to_whole_numbers(factor, name, seed):
    ours, pillows = ENHANCERS[name]
    image = noise(16, 20, seed=seed)
    enhancer = pillows(as_pillow(image))
    base = np.asarray(enhancer.degenerate).astype(float)
    exact = base + factor * (image - base)
    differs = ours(image, factor) != np.asarray(enhancer.enhance(factor))
    assert (np.abs(exact - np.round(exact))[differs] < 2**-9).all()
    assert not differs.any() or name in ("saturation", "sharpness")


@pytest.mark.parametrize(("ours", "pillows"), ENHANCERS.values(), ids=ENHANCERS)
@pytest.mark.parametrize("factor", [-1e30, -0.5, 100.0, 1e30])
def test_enhancers_clip_at_extreme_factors(ours, pillows, factor):
    image = noise(16, 20)
    assert max_difference(ours(image, factor), np.asarray(pillows(as_pillow(image)).enhance(factor))) <= 1


@pytest.mark.parametrize("ours", [pair[0] for pair in ENHANCERS.values()], ids=ENHANCERS)
def test_factor_1_changes_nothing(ours):
    np.testing.assert_array_equal(ours(IMAGES["photo"], 1.0), IMAGES["photo"])


KERNELS = {
    "invert": color.invert_image,
    "equalize": color.equalize_image,
    "autocontrast": color.autocontrast_image,
    "grayscale": lambda image: run(transform("grayscale"), image),
    "hue": lambda image, shift: jittered(image, color.Jitter(hue=float(shift))),
    "solarize": lambda image, threshold: color.solarize_image(image, int(threshold)),
    "posterize": lambda image, bits: color.posterize_image(image, int(bits)),
    **{name: (lambda image, factor, ours=pair[0]: ours(image, float(factor))) for name, pair in ENHANCERS.items()},
}
CASES = [name for name in np.load(GOLDEN).files if name != "image" and not name.startswith("blur_")]


@pytest.mark.parametrize("case", CASES)
def test_within_1_level_of_torchvision(case):
    golden = np.load(GOLDEN)
    name, *arguments = case.split("_")
    assert max_difference(KERNELS[name](golden["image"], *arguments), golden[case]) <= 1


# --- grayscale


def test_gray_equals_the_integer_rule_for_a_fifth_of_all_colours():
    red, green, blue = np.meshgrid(np.arange(0, 256, 5), np.arange(256), np.arange(256), indexing="ij")
    image = np.stack([red, green, blue], axis=3).astype(np.uint8).reshape(-1, 256, 3)
    expected = ((19595 * red + 38470 * green + 7471 * blue + 32768) >> 16).reshape(-1, 256)
    np.testing.assert_array_equal(run(transform("grayscale", num_output_channels=1), image)[:, :, 0], expected)


@every_image
@pytest.mark.parametrize("channels", [1, 3])
def test_grayscale_equals_pillow(image, channels):
    found = run(transform("grayscale", num_output_channels=channels), image)
    luma = np.asarray(as_pillow(image).convert("L"))
    np.testing.assert_array_equal(found, np.repeat(luma[:, :, None], channels, axis=2))


def test_gray_is_made_in_bands(monkeypatch):
    image = IMAGES["photo"]
    whole = run(transform("grayscale"), image)
    monkeypatch.setattr(pixels, "BAND_PIXELS", 100)
    np.testing.assert_array_equal(run(transform("grayscale"), image), whole)


@pytest.mark.parametrize(
    ("channels", "prob", "inferred"), [(3, 1.0, 3), (3, 0.5, 3), (1, 1.0, 1), (1, 0.5, None), (1, 0.0, 3)]
)
def test_channels_of_grayscale_are_known_when_all_rows_agree(channels, prob, inferred):
    call = transform("grayscale", num_output_channels=channels, prob=prob)
    image = IMAGES["photo"]
    assert call.spec.output_type(type_of(image, "HWC"), call.arguments) == TensorType((37, 53, inferred), "uint8", "HWC")
    shapes = {run(call, image, seed=seed).shape[2] for seed in range(20)}
    assert shapes == ({inferred} if inferred else {1, 3})


# --- equalize


def test_equalize_leaves_a_constant_image():
    np.testing.assert_array_equal(run(transform("equalize"), IMAGES["one-value"]), IMAGES["one-value"])


def test_equalize_counts_large_images_in_parts(monkeypatch):
    image = IMAGES["photo"]
    whole = color.equalize_image(image)
    monkeypatch.setattr(color, "EXACT_COUNT", 120)
    np.testing.assert_array_equal(color.equalize_image(image), whole)


@pytest.mark.parametrize("op", ["invert", "solarize", "posterize"])
@pytest.mark.parametrize("channels", [1, 4])
def test_channels_are_treated_alike(op, channels):
    image = noise(11, 13, channels)
    planes = [run(transform(op), np.repeat(image[:, :, c : c + 1], 3, axis=2))[:, :, 0] for c in range(channels)]
    np.testing.assert_array_equal(run(transform(op), image), np.stack(planes, axis=2))


def test_double_inversion_is_identity():
    once = run(transform("invert"), IMAGES["photo"])
    np.testing.assert_array_equal(run(transform("invert"), once), IMAGES["photo"])


# --- color_jitter


def jittered(image, factors):
    out = np.empty(image.shape, np.uint8)
    color.jitter_into(image, out, factors)
    return out


def affine_reference(image, brightness, contrast):
    """The first step of color_jitter, in float64."""
    means = image.reshape(-1, 3).mean(axis=0)
    return np.trunc(np.clip(image * (brightness * contrast) + means * (1 - contrast), 0, 255)).astype(np.uint8)


def hsv_reference(image, saturation, hue):
    """The second step: RGB to HSV and back, in float64 (the hexcone of Smith, 1978), not rounded."""
    rgb = image.astype(np.float64)
    value, spread = rgb.max(axis=2), np.ptp(rgb, axis=2)
    safe = np.where(spread > 0, spread, 1)
    red, green, blue = np.moveaxis(rgb, 2, 0)
    sector = np.select(
        [value == red, value == green],
        [(green - blue) / safe % 6, (blue - red) / safe + 2],
        (red - green) / safe + 4,
    )
    turned = (sector + 6 * hue) % 6
    saturated = np.minimum(np.where(value > 0, spread / np.where(value > 0, value, 1), 0) * saturation, 1)

    def channel(offset):
        place = (offset + turned) % 6
        return value * (1 - saturated * np.clip(np.minimum(place, 4 - place), 0, 1))

    return np.stack([channel(5), channel(3), channel(1)], axis=2)


@settings(max_examples=50, deadline=None)
@given(MODERATE, MODERATE, st.integers(0, 1000))
def test_brightness_and_contrast_are_one_exact_step(brightness, contrast, seed):
    image = noise(9, 14, seed=seed) // (1 + seed % 3)
    found = jittered(image, color.Jitter(brightness=brightness, contrast=contrast))
    expected = affine_reference(image, brightness, contrast)
    differs = found.astype(int) - expected
    assert np.abs(differs).max() <= 1  # the mean's last bit decides where the result is a whole number
    assert (differs != 0).mean() <= 0.01


@pytest.mark.parametrize(("brightness", "contrast"), [(1.3, 1.0), (0.5, 1.0), (1.0, 0.5), (1.0, 1.75), (1.25, 0.75)])
def test_the_affine_step_has_no_error(brightness, contrast):
    image = IMAGES["photo"]
    found = jittered(image, color.Jitter(brightness=brightness, contrast=contrast))
    np.testing.assert_array_equal(found, affine_reference(image, brightness, contrast))


@settings(max_examples=50, deadline=None)
@given(MODERATE, st.floats(-0.5, 0.5), st.integers(0, 1000))
def test_saturation_and_hue_are_within_1_level_of_float64(saturation, hue, seed):
    image = noise(9, 14, seed=seed)
    found = jittered(image, color.Jitter(saturation=saturation, hue=hue))
    exact = hsv_reference(image, saturation, hue)
    assert np.abs(found - exact).max() <= 0.51  # so it is rounded


@every_image
@pytest.mark.parametrize("hue", [-0.5, -1 / 3, 0.0, 1 / 6, 0.5])
@pytest.mark.parametrize("saturation", [0.0, 0.6, 1.0, 1.4, 50.0])
def test_hsv_of_odd_images(image, saturation, hue):
    found = jittered(image, color.Jitter(saturation=saturation, hue=hue))
    assert np.abs(found - hsv_reference(image, saturation, hue)).max() <= 0.51


def test_all_four_steps_in_order():
    image, factors = IMAGES["photo"], color.Jitter(1.2, 0.8, 1.5, 0.2)
    expected = hsv_reference(affine_reference(image, 1.2, 0.8), 1.5, 0.2)
    assert np.abs(jittered(image, factors) - expected).max() <= 0.51


@settings(max_examples=25, deadline=None)
@given(st.floats(-0.5, 0.5), st.floats(0, 3), st.integers(0, 255))
def test_gray_pixels_have_no_hue(hue, saturation, level):
    image = np.full((3, 4, 3), level, np.uint8)
    np.testing.assert_array_equal(jittered(image, color.Jitter(saturation=saturation, hue=hue)), image)


@settings(max_examples=25, deadline=None)
@given(st.floats(-0.5, 0.5), st.floats(0, 3))
def test_hue_and_saturation_keep_the_value(hue, saturation):
    found = jittered(IMAGES["noise"], color.Jitter(saturation=saturation, hue=hue))
    np.testing.assert_array_equal(found.max(axis=2), IMAGES["noise"].max(axis=2))


def test_saturation_0_leaves_the_value_alone():
    image = IMAGES["noise"]
    found = jittered(image, color.Jitter(saturation=0.0))
    np.testing.assert_array_equal(found, np.repeat(image.max(axis=2)[:, :, None], 3, axis=2))


def test_a_third_of_a_turn_moves_the_channels():
    found = jittered(IMAGES["photo"], color.Jitter(hue=1 / 3))
    np.testing.assert_array_equal(found, np.roll(IMAGES["photo"], 1, axis=2))


def test_jitter_is_made_in_bands(monkeypatch):
    factors = color.Jitter(1.1, 0.9, 1.3, -0.1)
    whole = jittered(IMAGES["photo"], factors)
    monkeypatch.setattr(pixels, "BAND_PIXELS", 100)
    np.testing.assert_array_equal(jittered(IMAGES["photo"], factors), whole)


def test_draws_come_in_order_and_within_their_ranges():
    for seed in range(5):
        draws = np.random.default_rng(seed).random(4)
        factors = color.Jitter(
            0.6 + 0.8 * draws[0], 2.5 * draws[1], 0.7 + 0.6 * draws[2], 0.4 * draws[3] - 0.2
        )
        found = run(
            transform("color_jitter", brightness=0.4, contrast=1.5, saturation=0.3, hue=0.2), IMAGES["photo"], seed=seed
        )
        assert max_difference(found, jittered(IMAGES["photo"], factors)) <= 1


@pytest.mark.parametrize(
    ("arguments", "draws"),
    [
        ({}, 0),
        ({"hue": 0.1}, 1),
        ({"contrast": 0.1}, 1),
        ({"brightness": 0.3, "saturation": 0.2}, 2),
        (OPS["color_jitter"], 4),
    ],
)
def test_what_is_off_draws_nothing(arguments, draws):
    rng, expected = np.random.default_rng(7), np.random.default_rng(7)
    expected.random(draws)
    color.color_jitter(IMAGES["photo"], **arguments, rng=rng)
    assert rng.bit_generator.state == expected.bit_generator.state


def test_jitter_without_arguments_changes_nothing():
    np.testing.assert_array_equal(run(transform("color_jitter"), IMAGES["strided"]), IMAGES["strided"])


# --- all ops


@pytest.mark.parametrize("op", GATED)
def test_the_gate_draws_once_and_leaves_the_rest_alone(op):
    call = transform(op, prob=0.5)
    changed = run(transform(op, **OPS[op]), IMAGES["photo"])
    for seed in range(6):
        rng, coin = np.random.default_rng(seed), np.random.default_rng(seed)
        expected = changed if coin.random() < 0.5 else IMAGES["photo"]
        out = np.empty_like(IMAGES["photo"])
        call.spec.kernels["out"](IMAGES["photo"], out, **call.arguments, rng=rng)
        np.testing.assert_array_equal(out, expected)
        assert rng.bit_generator.state == coin.bit_generator.state


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
@pytest.mark.parametrize(
    "value",
    [np.zeros((4, 4, 3), np.float32), np.zeros((4, 4), np.uint8), np.zeros((4, 4, 2), np.uint8), np.zeros((2, 4, 4, 3), np.uint8)],
    ids=["float", "2-d", "2-channels", "4-d"],
)  # fmt: skip
def test_other_values_are_an_op_error(op, value):
    assert_refused(transform(op, **OPS[op]), value)


@pytest.mark.parametrize("op", RGB_ONLY)
@pytest.mark.parametrize("channels", [1, 4])
def test_rgb_only(op, channels):
    assert_rgb_only(transform(op, **OPS[op]), channels)


@pytest.mark.parametrize(
    ("op", "arguments", "error"),
    [
        ("color_jitter", {"brightness": -0.1}, ValueError),
        ("color_jitter", {"hue": 0.6}, ValueError),
        ("color_jitter", {"contrast": True}, TypeError),
        ("color_jitter", {"saturation": float("nan")}, ValueError),
        ("grayscale", {"num_output_channels": 2}, ValueError),
        ("grayscale", {"num_output_channels": True}, TypeError),
        ("grayscale", {"prob": -0.1}, ValueError),
        ("invert", {"prob": 1.1}, ValueError),
        ("invert", {"prob": True}, TypeError),
        ("solarize", {"threshold": 256}, ValueError),
        ("solarize", {"threshold": 1.5}, TypeError),
        ("posterize", {"bits": 0}, ValueError),
        ("posterize", {"bits": 9}, ValueError),
        ("equalize", {"prob": "1"}, TypeError),
    ],
)
def test_bad_arguments_fail_at_construction(op, arguments, error):
    with pytest.raises(error):
        transform(op, **arguments)
