"""Warps against their formula; and what every op of warp, erase and policy must keep: types, `out` kernels, bad input."""

from __future__ import annotations

import math
from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from dataio.engine.errors import OpError, PlanError
from dataio.engine.schema import TensorType, type_of
from dataio.formats.image.warp import inverse_affine, inverse_perspective, warp_affine

from .helpers import max_difference, noise, ops_registered_by, photo, run, run_out, transform

RGB, GRAY, RGBA = (37, 53, 3), (37, 53, 1), (37, 53, 4)
GOLDEN = Path(__file__).parents[1] / "golden" / "warp.npz"

CASES = [  # op, arguments, input shape
    pytest.param("affine", {"angle_deg": 20.0, "tx": 3.5, "fill": 9}, RGB, id="affine"),
    pytest.param("affine", {"shear_deg": 8.0, "interp": "nearest"}, RGB, id="affine-nearest"),
    pytest.param("affine", {"tx": 0.5, "ty": 1.5, "interp": "nearest"}, RGB, id="affine-ties"),
    pytest.param("affine", {"scale": 0.7, "interp": "bicubic"}, RGB, id="affine-bicubic"),
    pytest.param("affine", {"scale": 0.7, "interp": "bicubic"}, (150, 131, 3), id="affine-bicubic-tiles"),
    pytest.param("affine", {"angle_deg": 20.0}, (1, 1, 3), id="affine-one-pixel"),
    pytest.param("random_affine", {"degrees": 40.0, "translate": (0.2, 0.1)}, RGB, id="random-affine"),
    pytest.param("random_affine", {}, RGB, id="random-affine-off"),
    pytest.param("random_perspective", {"prob": 1.0}, RGB, id="perspective"),
    pytest.param("random_perspective", {"prob": 0.0}, RGB, id="perspective-off"),
    pytest.param("random_perspective", {"prob": 1.0, "distortion": 1.0}, (1, 1, 3), id="perspective-one-pixel"),
    pytest.param("random_erasing", {"prob": 1.0}, RGB, id="erasing"),
    pytest.param("random_erasing", {"prob": 1.0, "value": 7}, GRAY, id="erasing-gray"),
    pytest.param("random_erasing", {"prob": 1.0, "scale": (0.5, 1.0)}, RGBA, id="erasing-rgba"),
    pytest.param("random_erasing", {"prob": 0.0}, RGB, id="erasing-off"),
    pytest.param("grid_mask", {"d_min": 4, "d_max": 20}, RGB, id="grid"),
    pytest.param("grid_mask", {"d_min": 9, "d_max": 9, "rotate_deg": 45.0}, RGB, id="grid-turned"),
    pytest.param("grid_mask", {"prob": 0.0}, RGB, id="grid-off"),
    pytest.param("rand_augment", {}, RGB, id="rand"),
    pytest.param("rand_augment", {"n": 15, "m": 30}, RGB, id="rand-all"),
    pytest.param("rand_augment", {"n": 15, "m": 30}, (1, 1, 3), id="rand-one-pixel"),
    pytest.param("trivial_augment_wide", {}, RGB, id="trivial"),
    pytest.param("auto_augment", {}, RGB, id="auto"),
]  # fmt: skip
MODULES = ("image.warp", "image.erase", "image.policy")
SEEDS = (0, 1, 2)


@pytest.mark.parametrize(("op", "args", "shape"), CASES)
def test_inferred_type_is_the_actual_one(op, args, shape):
    call, image = transform(op, **args), noise(*shape)
    found = run(call, image, "HWC")
    inferred = call.spec.output_type(type_of(image, "HWC"), call.arguments)
    assert found.shape == shape == inferred.shape
    assert found.dtype.name == inferred.dtype
    assert inferred.layout == "HWC"


@pytest.mark.parametrize(("op", "args", "shape"), CASES)
def test_inference_without_sizes_leaves_them_open(op, args, shape):
    call = transform(op, **args)
    inferred = call.spec.output_type(TensorType((None, None, shape[2]), "uint8", "HWC"), call.arguments)
    assert inferred == TensorType((None, None, shape[2]), "uint8", "HWC")


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("op", "args", "shape"), CASES)
def test_out_kernel_equals_plain_function(op, args, shape, seed):
    call, image = transform(op, **args), noise(*shape)
    batch = np.full((3, *shape), 77, np.uint8)
    run_out(call, image, batch[1], "HWC", seed=seed)
    np.testing.assert_array_equal(batch[1], run(call, image, "HWC", seed=seed))
    assert (batch[::2] == 77).all()


@pytest.mark.parametrize(
    "view",
    [
        pytest.param(lambda a: a[::2], id="rows"),
        pytest.param(lambda a: a[:, ::-1], id="mirrored"),
        pytest.param(lambda a: a.transpose(1, 0, 2), id="transposed"),
        pytest.param(lambda a: a[3:, 5:], id="crop"),
    ],
)
@pytest.mark.parametrize(("op", "args", "shape"), CASES)
def test_read_only_views_give_the_same_and_stay_as_they_are(op, args, shape, view):
    whole = noise(shape[0] + 30, shape[1] + 30, shape[2])
    before, call = whole.copy(), transform(op, **args)
    whole.flags.writeable = False
    image = view(whole)
    np.testing.assert_array_equal(run(call, image, "HWC"), run(call, image.copy(), "HWC"))
    np.testing.assert_array_equal(whole, before)


def test_every_op_of_these_modules_has_a_case():
    assert {case.values[0] for case in CASES} == ops_registered_by(*MODULES)


RGB_OPS = sorted(ops_registered_by(*MODULES) - {"random_erasing"})
WARPING = sorted(set(RGB_OPS) - {"grid_mask"})


@pytest.mark.parametrize("op", RGB_OPS)
@pytest.mark.parametrize(
    "given_type",
    [
        pytest.param(TensorType(GRAY, "uint8", "HWC"), id="gray"),
        pytest.param(TensorType(RGBA, "uint8", "HWC"), id="rgba"),
        pytest.param(TensorType(RGB, "float32", "HWC"), id="dtype"),
        pytest.param(TensorType((3, 37, 53), "uint8", "CHW"), id="layout"),
        pytest.param(TensorType((37, 53), "uint8", None), id="rank"),
    ],
)
def test_other_types_are_refused_by_the_plan(op, given_type):
    with pytest.raises(PlanError, match=op):
        transform(op).spec.output_type(given_type, transform(op).arguments)


@pytest.mark.parametrize("op", RGB_OPS)
@pytest.mark.parametrize("image", [noise(*GRAY), noise(*RGBA), noise(*RGB).astype(np.float32), noise(*RGB)[..., 0]])
def test_other_rows_are_refused_one_by_one(op, image):
    with pytest.raises(OpError, match=rf"{op} takes uint8\[h, w, 3\]"):
        run(transform(op), image, "HWC")


@pytest.mark.parametrize("op", WARPING)
@pytest.mark.parametrize("shape", [(0, 5, 3), (5, 0, 3), (0, 0, 3)])
def test_images_without_pixels_are_refused(op, shape):
    with pytest.raises(OpError, match="pixels"):
        run(transform(op), np.empty(shape, np.uint8), "HWC")


@pytest.mark.parametrize(
    ("op", "args", "error"),
    [
        ("affine", {"scale": 0.0}, ValueError),
        ("affine", {"scale": -1.0}, ValueError),
        ("affine", {"angle_deg": math.inf}, ValueError),
        ("affine", {"tx": math.nan}, ValueError),
        ("affine", {"interp": "lanczos"}, ValueError),
        ("affine", {"fill": 256}, ValueError),
        ("affine", {"fill": 1.5}, TypeError),
        ("affine", {"angle_deg": True}, TypeError),
        ("random_affine", {"degrees": -1.0}, ValueError),
        ("random_affine", {"translate": (-0.1, 0.0)}, ValueError),
        ("random_affine", {"translate": 0.1}, TypeError),
        ("random_affine", {"scale_range": (2.0, 1.0)}, ValueError),
        ("random_affine", {"scale_range": (0.0, 1.0)}, ValueError),
        ("random_affine", {"shear_deg": -3.0}, ValueError),
        ("random_perspective", {"distortion": 1.1}, ValueError),
        ("random_perspective", {"prob": -0.1}, ValueError),
        ("random_erasing", {"scale": (0.5, 0.2)}, ValueError),
        ("random_erasing", {"scale": (0.0, 0.2)}, ValueError),
        ("random_erasing", {"scale": (0.1, 1.2)}, ValueError),
        ("random_erasing", {"ratio": (3.0, 1.0)}, ValueError),
        ("random_erasing", {"ratio": (0.0, 1.0)}, ValueError),
        ("random_erasing", {"value": 300}, ValueError),
        ("grid_mask", {"d_min": 0}, ValueError),
        ("grid_mask", {"d_min": 100, "d_max": 50}, ValueError),
        ("grid_mask", {"ratio": 1.2}, ValueError),
        ("rand_augment", {"n": 0}, ValueError),
        ("rand_augment", {"n": 16}, ValueError),
        ("rand_augment", {"m": 31}, ValueError),
        ("rand_augment", {"m": 2.5}, TypeError),
        ("auto_augment", {"policy": "cifar10"}, ValueError),
    ],
)
def test_bad_arguments_are_refused(op, args, error):
    with pytest.raises(error, match=op):
        transform(op, **args)


# --- affine


def cubic(distance: np.ndarray) -> np.ndarray:
    """Keys' kernel with a = -0.5."""
    d = np.abs(distance)
    return np.where(d <= 1, 1.5 * d**3 - 2.5 * d**2 + 1, np.where(d < 2, -0.5 * d**3 + 2.5 * d**2 - 4 * d + 2, 0))


TAPS = {
    "bilinear": (range(0, 2), lambda d: np.maximum(1 - np.abs(d), 0)),
    "bicubic": (range(-1, 3), cubic),
}


def looked_up(image: np.ndarray, x: np.ndarray, y: np.ndarray, fill: int) -> np.ndarray:
    height, width = image.shape[:2]
    inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    found = image[np.clip(y, 0, height - 1).astype(int), np.clip(x, 0, width - 1).astype(int)]
    return np.where(inside[..., None], found.astype(float), fill)


def by_formula(image: np.ndarray, matrix: np.ndarray, fill: int, interp: str) -> np.ndarray:
    """The warp by an inverse map, float64[2, 3] or [3, 3], in float64."""
    y, x = np.mgrid[: image.shape[0], : image.shape[1]].astype(float)
    places = np.tensordot(matrix, np.stack([x, y, np.ones_like(x)]), axes=1)
    x, y = places[:2] / places[2] if len(places) == 3 else places
    if interp == "nearest":
        x, y = (np.trunc(v + np.copysign(0.5 + 1e-9, v)) for v in (x, y))
        return looked_up(image, x, y, fill).astype(np.uint8)
    taps, kernel = TAPS[interp]
    left, top = np.floor(x), np.floor(y)
    total = sum(
        (kernel(x - left - i) * kernel(y - top - j))[..., None] * looked_up(image, left + i, top + j, fill)
        for j in taps
        for i in taps
    )
    return np.clip(np.floor(total + 0.5), 0, 255).astype(np.uint8)


def forward(height: int, width: int, angle_deg=0.0, tx=0.0, ty=0.0, scale=1.0, shear_deg=0.0) -> np.ndarray:
    """`scale * R * S` about the centre, then the shift, float64[3, 3]."""
    angle = math.radians(angle_deg)
    turn = np.array([[math.cos(angle), -math.sin(angle), 0], [math.sin(angle), math.cos(angle), 0], [0, 0, 1]])
    slant = np.array([[1, math.tan(math.radians(shear_deg)), 0], [0, 1, 0], [0, 0, 1]])
    grow = np.diag([scale, scale, 1])
    to_centre = np.array([[1, 0, -(width - 1) / 2], [0, 1, -(height - 1) / 2], [0, 0, 1]])
    shift = np.array([[1, 0, tx], [0, 1, ty], [0, 0, 1]])
    return shift @ np.linalg.inv(to_centre) @ grow @ turn @ slant @ to_centre


ARGUMENTS = [
    pytest.param({}, id="identity"),
    pytest.param({"angle_deg": 23.4}, id="angle"),
    pytest.param({"tx": 3.3, "ty": -4.75}, id="shift"),
    pytest.param({"scale": 0.6}, id="shrink"),
    pytest.param({"scale": 2.3}, id="grow"),
    pytest.param({"shear_deg": 20.0}, id="shear"),
    pytest.param({"angle_deg": -131.0, "tx": 3.3, "ty": -4.7, "scale": 1.3, "shear_deg": 12.0}, id="all"),
]


@pytest.mark.parametrize("args", ARGUMENTS)
def test_the_inverse_map_undoes_the_formula(args):
    defaults = {"angle_deg": 0.0, "tx": 0.0, "ty": 0.0, "scale": 1.0, "shear_deg": 0.0}
    inverse = np.vstack([inverse_affine(37, 54, **(defaults | args)), [0, 0, 1]])
    np.testing.assert_allclose(inverse @ forward(37, 54, **args), np.eye(3), atol=1e-12)


@pytest.mark.parametrize("interp", ["bilinear", "bicubic"])
@pytest.mark.parametrize("args", ARGUMENTS)
def test_affine_is_within_1_level_of_the_formula(args, interp):
    image = noise(61, 150)  # the bicubic warp makes two tiles of it
    found = run(transform("affine", fill=77, interp=interp, **args), image)
    inverse = np.linalg.inv(forward(61, 150, **args))
    assert max_difference(found, by_formula(image, inverse, 77, interp)) <= 1


@pytest.mark.parametrize("args", ARGUMENTS)
def test_nearest_affine_is_the_formula_but_for_places_in_the_middle(args):
    image = noise(61, 83)
    found = run(transform("affine", fill=77, interp="nearest", **args), image)
    expected = by_formula(image, np.linalg.inv(forward(61, 83, **args)), 77, "nearest")
    assert (found != expected).any(axis=2).mean() <= 1e-3


@pytest.mark.parametrize(
    "args",
    [
        {"tx": 0.5, "ty": 0.5},
        {"tx": -0.5, "ty": -1.5},
        {"angle_deg": 90.0},
        {"angle_deg": 180.0, "tx": 0.5},
        {"scale": 0.5},
        {"scale": 2.0},
        {"scale": 4.0, "tx": 0.25},
        {"scale": 3.0, "ty": 0.5},
        {"shear_deg": 45.0, "ty": 0.5},
    ],
)
def test_nearest_rounds_places_in_the_middle_away_from_zero(args):
    image = noise(40, 51)
    found = run(transform("affine", fill=77, interp="nearest", **args), image)
    expected = by_formula(image, np.linalg.inv(forward(40, 51, **args)), 77, "nearest")
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("case", range(5))
def test_affine_is_within_1_level_of_torchvision(case):
    golden = np.load(GOLDEN)
    names = ("angle_deg", "tx", "ty", "scale", "shear_deg")
    found = run(transform("affine", **dict(zip(names, golden["cases"][case].tolist()))), golden["image"])
    assert max_difference(found, golden[f"affine_{case}"]) <= 1


def test_affine_is_within_1_level_of_torch_grid_sample():
    torch = pytest.importorskip("torch")
    image = noise(40, 56)
    inverse = np.linalg.inv(forward(40, 56, angle_deg=31.0, tx=4.2, scale=0.8))
    y, x = np.mgrid[:40, :56].astype(float)
    x, y, _ = np.tensordot(inverse, np.stack([x, y, np.ones_like(x)]), axes=1)
    grid = torch.from_numpy(np.stack([(2 * x + 1) / 56 - 1, (2 * y + 1) / 40 - 1], axis=-1))[None]
    planes = torch.from_numpy(image.transpose(2, 0, 1)[None].astype(float))
    sampled = torch.nn.functional.grid_sample(planes, grid, align_corners=False)[0].permute(1, 2, 0).numpy()
    found = run(transform("affine", angle_deg=31.0, tx=4.2, scale=0.8), image)
    assert max_difference(found, np.rint(sampled)) <= 1


@pytest.mark.parametrize("args", ARGUMENTS)
def test_bilinear_affine_is_within_1_level_of_pillow_away_from_the_border(args):
    """Pillow maps the corners of pixels, and repeats the border within half a pixel of it."""
    image = noise(61, 83)
    inverse = np.linalg.inv(forward(61, 83, **args))[:2]
    inverse[:, 2] += 0.5 - inverse[:, :2].sum(axis=1) * 0.5
    warped = Image.fromarray(image).transform((83, 61), Image.Transform.AFFINE, tuple(inverse.ravel()), Image.Resampling.BILINEAR)
    found = run(transform("affine", **args), image)
    inside = run(transform("affine", **args), np.full_like(image, 255)) == 255
    inside = cv2.erode(inside.astype(np.uint8), np.ones((3, 3)), borderValue=1).astype(bool)
    assert inside.mean() > 0.2
    assert max_difference(found[inside], np.asarray(warped)[inside]) <= 1


@pytest.mark.parametrize("interp", ["nearest", "bilinear", "bicubic"])
@settings(max_examples=25, deadline=None)
@given(
    height=st.integers(1, 20),
    width=st.integers(1, 20),
    angle=st.floats(-400, 400),
    tx=st.floats(-30, 30),
    scale=st.floats(0.05, 20),
    shear=st.floats(-80, 80),
    fill=st.integers(0, 255),
)
def test_a_uniform_image_on_its_own_colour_stays_uniform(interp, height, width, angle, tx, scale, shear, fill):
    image = np.full((height, width, 3), fill, np.uint8)
    args = {"angle_deg": angle, "tx": tx, "scale": scale, "shear_deg": shear, "fill": fill, "interp": interp}
    np.testing.assert_array_equal(run(transform("affine", **args), image), image)


@pytest.mark.parametrize("interp", ["nearest", "bilinear", "bicubic"])
@settings(max_examples=25, deadline=None)
@given(tx=st.integers(-30, 30), ty=st.integers(-30, 30), seed=st.integers(0, 99))
def test_whole_shifts_move_pixels_unchanged(interp, tx, ty, seed):
    image = noise(17, 23, seed=seed)
    shifted = np.full((77, 83, 3), 5, np.uint8)
    shifted[30 + ty : 47 + ty, 30 + tx : 53 + tx] = image
    found = run(transform("affine", tx=float(tx), ty=float(ty), fill=5, interp=interp), image)
    np.testing.assert_array_equal(found, shifted[30:47, 30:53])


@pytest.mark.parametrize("interp", ["nearest", "bilinear", "bicubic"])
def test_a_quarter_turn_is_clockwise(interp):
    image = noise(21, 21)
    found = run(transform("affine", angle_deg=90.0, interp=interp), image)
    np.testing.assert_array_equal(found, np.rot90(image, -1))


@pytest.mark.parametrize("interp", ["nearest", "bilinear", "bicubic"])
@pytest.mark.parametrize(
    "args", [{"tx": 1e6}, {"ty": -1e299}, {"scale": 1e-9, "tx": 0.3, "ty": 0.3}, {"shear_deg": 90.0, "ty": 0.25}]
)
def test_an_image_moved_out_of_sight_leaves_fill(args, interp):
    # Even sizes: no pixel lies on the centre, which scale and shear leave where it is.
    found = run(transform("affine", fill=9, interp=interp, **args), noise(20, 30))
    assert (found == 9).all()


@pytest.mark.parametrize("shape", [(1, 40000, 3), (40000, 1, 3)])
@pytest.mark.parametrize("interp", ["nearest", "bilinear", "bicubic"])
def test_edges_beyond_16_bit_coordinates(shape, interp):
    image = noise(*shape)
    found = run(transform("affine", tx=2.0, ty=0.0, interp=interp), image)
    np.testing.assert_array_equal(found[:, 2:], image[:, :-2])


@pytest.mark.parametrize("args", [{"scale": 1e-320}, {"scale": 1e-305}, {"tx": 1e305}])
def test_maps_without_a_finite_inverse_are_an_error(args):
    with pytest.raises(OpError, match="leaves the range of numbers"):
        run(transform("affine", **args), noise(20, 30))


# --- random_affine


class Recorded:
    """A generator that counts what is drawn, and draws the same number each time."""

    def __init__(self, value: float) -> None:
        self.value, self.draws = value, 0

    def random(self, size=None):
        self.draws += 1
        return self.value if size is None else np.full(size, self.value)


@pytest.mark.parametrize(
    ("args", "draws"),
    [
        ({}, 0),
        ({"degrees": 10.0}, 1),
        ({"translate": (0.1, 0.0)}, 1),
        ({"translate": (0.1, 0.1), "scale_range": (0.5, 0.5)}, 2),
        ({"degrees": 5.0, "translate": (0.1, 0.1), "scale_range": (0.5, 2.0), "shear_deg": 4.0}, 5),
    ],
)
def test_random_affine_draws_only_for_what_is_on(args, draws):
    call, rng = transform("random_affine", **args), Recorded(0.3)
    call.spec.function(noise(*RGB), **call.arguments, rng=rng)
    assert rng.draws == draws


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.0, {"angle_deg": -40.0, "tx": -20.0, "ty": -6.0, "scale": 0.5, "shear_deg": -8.0}),
        (0.75, {"angle_deg": 20.0, "tx": 10.0, "ty": 3.0, "scale": 1.625, "shear_deg": 4.0}),
    ],
)
def test_random_affine_is_affine_with_the_drawn_arguments(value, expected):
    image = photo(60, 100)
    call = transform("random_affine", degrees=40.0, translate=(0.2, 0.1), scale_range=(0.5, 2.0), shear_deg=8.0, fill=3)
    found = call.spec.function(image, **call.arguments, rng=Recorded(value))
    np.testing.assert_array_equal(found, run(transform("affine", fill=3, **expected), image))


def test_random_affine_draws_angle_shifts_scale_shear_in_this_order():
    image, rng = photo(60, 100), np.random.default_rng(5)
    angle, dx, dy, scale, shear = rng.random(5)
    expected = transform(
        "affine",
        angle_deg=40 * (2 * angle - 1),
        tx=20 * (2 * dx - 1),
        ty=6 * (2 * dy - 1),
        scale=0.5 + 1.5 * scale,
        shear_deg=8 * (2 * shear - 1),
    )
    call = transform("random_affine", degrees=40.0, translate=(0.2, 0.1), scale_range=(0.5, 2.0), shear_deg=8.0)
    np.testing.assert_array_equal(run(call, image, seed=5), run(expected, image))


# --- random_perspective


@pytest.mark.parametrize("shape", [(1, 1, 3), (1, 9, 3), (40, 51, 3), (51, 40, 3)])
def test_perspective_without_distortion_changes_nothing(shape):
    image = noise(*shape)
    np.testing.assert_array_equal(run(transform("random_perspective", distortion=0.0, prob=1.0), image), image)


@settings(max_examples=50, deadline=None)
@given(shares=st.lists(st.floats(0, 0.9), min_size=8, max_size=8))
def test_the_perspective_takes_moved_corners_to_corners(shares):
    inwards = np.array(shares).reshape(4, 2) * (51 / 2, 40 / 2)
    corners = np.array([(-0.5, -0.5), (50.5, -0.5), (50.5, 39.5), (-0.5, 39.5)])
    moved = corners + inwards * [(1, 1), (-1, 1), (-1, -1), (1, -1)]
    matrix = inverse_perspective(40, 51, inwards)
    found = np.column_stack([moved, np.ones(4)]) @ matrix.T
    # Up to where three moved corners nearly lie on a line, float32 corners decide.
    if np.abs(found[:, 2]).min() > 1e-2:
        np.testing.assert_allclose(found[:, :2] / found[:, 2:], corners, atol=0.05)


@pytest.mark.parametrize("seed", range(5))
def test_perspective_is_within_1_level_of_the_formula(seed):
    image = noise(61, 83)
    rng = np.random.default_rng(seed)
    rng.random()  # the coin
    matrix = inverse_perspective(61, 83, rng.random((4, 2)) * (0.6 * 83 / 2, 0.6 * 61 / 2))
    found = run(transform("random_perspective", distortion=0.6, prob=1.0, fill=77), image, seed=seed)
    assert max_difference(found, by_formula(image, matrix, 77, "bilinear")) <= 1


def test_perspective_keeps_the_middle_and_fills_outside():
    found = run(transform("random_perspective", distortion=0.5, prob=1.0, fill=9), np.full((40, 60, 3), 200, np.uint8))
    assert (found[15:25, 20:40] == 200).all()
    assert (found == 9).any()


def test_the_coin_of_perspective_comes_first_and_once():
    tossed = sum(
        run(transform("random_perspective", prob=0.3, distortion=1.0), image := photo(9, 9), seed=seed) is not image
        for seed in range(300)
    )
    assert tossed == sum(np.random.default_rng(seed).random() < 0.3 for seed in range(300))


def test_warp_affine_writes_into_the_given_row():
    batch = np.zeros((2, 20, 30, 3), np.uint8)
    for interp in ("nearest", "bilinear", "bicubic"):
        warp_affine(noise(20, 30), batch[1], np.eye(3)[:2], fill=0, interp=interp)
        np.testing.assert_array_equal(batch[1], noise(20, 30))
        batch[1] = 0
    assert not batch.any()
