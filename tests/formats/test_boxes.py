"""Boxes: geometry, anchors, suppression; parity with torchvision and with the plain form of each rule in float64."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dataio.engine.errors import OpError, PlanError
from dataio.engine.registry import lookup
from dataio.engine.schema import TensorType
from dataio.formats.boxes.anchors import Anchors
from dataio.formats.boxes.rows import Corners, overlaps

from .helpers import noise, ops_registered_by, run, run_out, transform

GOLDEN = np.load(Path(__file__).parents[1] / "golden" / "boxes.npz")
UNIT = np.float32(1.2e-7)
"""Rounding of a float32 near 1."""


def spread(count, seed=0, last="label", objects=None):
    """float32[n, 5]: boxes within the image, around `objects` places if given, with labels from 1 to 9 or scores."""
    rng = np.random.default_rng(seed)
    corner, size = rng.uniform(0, 0.6, (count, 2)), rng.uniform(0.05, 0.3, (count, 2))
    if objects is not None:
        which = rng.integers(0, objects, count)
        corner, size = corner[which % max(count, 1)], size[which % max(count, 1)] * rng.uniform(0.9, 1.1, (count, 2))
    column = rng.integers(1, 10, (count, 1)) if last == "label" else rng.permutation(count).reshape(-1, 1) / max(count, 1)
    return np.concatenate([corner, corner + size, column], axis=1).astype(np.float32)


def four(count, seed=0):
    return spread(count, seed)[:, :4].copy()


def boxes_of(width):
    """Any boxes within the image, by hypothesis."""

    def ordered(raw):
        low, high = np.minimum(raw[:, :2], raw[:, 2:4]), np.maximum(raw[:, :2], raw[:, 2:4])
        table = np.concatenate([low * np.float32(0.5), np.float32(0.5) + high * np.float32(0.5)], axis=1)
        return table if width == 4 else np.concatenate([table, np.floor(raw[:, 4:] * 9) + 1], axis=1).astype(np.float32)

    rows = st.integers(0, 12).map(lambda n: (n, width))
    return arrays(np.float32, rows, elements=st.floats(0, 1, width=32)).map(ordered)


def overlap(a, b):
    """Intersection over union of two boxes, in float64."""
    width, height = (max(0.0, min(a[i + 2], b[i + 2]) - max(a[i], b[i])) for i in (0, 1))
    shared = width * height
    union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - shared
    return shared / union if union > 0 else 0.0


# Flips


@pytest.mark.parametrize(
    ("op", "form", "expected"),
    [
        ("bbox_hflip", "xyxy", [0.5, 0.25, 0.875, 0.75]),
        ("bbox_vflip", "xyxy", [0.125, 0.25, 0.5, 0.75]),
        ("bbox_hflip", "xywh", [0.875, 0.25, 0.5, 0.75]),
        ("bbox_vflip", "xywh", [0.125, 0.75, 0.5, 0.75]),
    ],
)
def test_flip_of_one_box(op, form, expected):
    found = run(transform(op, prob=1.0, format=form), np.array([[0.125, 0.25, 0.5, 0.75]], np.float32))
    np.testing.assert_array_equal(found, np.array([expected], np.float32))


@settings(max_examples=50, deadline=None)
@given(boxes_of(4), st.sampled_from(["bbox_hflip", "bbox_vflip"]), st.sampled_from(["xyxy", "xywh"]))
def test_double_flip_is_identity(boxes, op, form):
    call = transform(op, prob=1.0, format=form)
    np.testing.assert_allclose(run(call, run(call, boxes)), boxes, atol=UNIT)


@pytest.mark.parametrize("axis", ["h", "v"])
def test_boxes_follow_their_image(axis):
    image = np.zeros((16, 16, 3), np.uint8)
    image[4:8, 2:12] = 255
    boxes = np.array([[2 / 16, 4 / 16, 12 / 16, 8 / 16]], np.float32)
    for seed in range(8):
        turned = run(transform(f"{axis}flip"), image, "HWC", seed)
        x0, y0, x1, y1 = (run(transform(f"bbox_{axis}flip"), boxes, seed=seed)[0] * 16).astype(int)
        assert (turned[y0:y1, x0:x1] == 255).all()
        assert turned.sum() == 255 * 3 * (y1 - y0) * (x1 - x0)


def test_a_flip_draws_once():
    rng = np.random.default_rng(3)
    lookup("bbox_hflip", "transform").function(four(4), prob=0.5, format="xyxy", rng=rng)
    expected = np.random.default_rng(3).random(2)[1]
    assert rng.random() == expected


# Padding and cropping


@pytest.mark.parametrize("form", ["xyxy", "xywh"])
def test_padding_moves_boxes_as_pixels_move(form):
    boxes = four(50, 1) * np.float32(0.5)
    boxes[:, 2:] += np.float32(0.3)
    arguments = {"src_h": 30, "src_w": 47, "top": 3, "bottom": 9, "left": 11, "right": 2}
    found = run(transform("bbox_pad", **arguments, format=form), boxes)
    pixels = boxes.astype(np.float64) * [47, 30, 47, 30]
    pixels[:, : 4 if form == "xyxy" else 2] += [11, 3] * (2 if form == "xyxy" else 1)
    np.testing.assert_allclose(found, pixels / [60, 42, 60, 42], atol=2e-7)


def test_crop_keeps_labels_of_what_is_left():
    boxes = np.array([[0, 0, 0.25, 0.3, 1], [0, 0, 0.5, 0.5, 2], [0.3, 0.3, 0.6, 0.6, 3], [0.5, 0.5, 0.9, 0.9, 4]], np.float32)
    found = run(transform("bbox_crop", window=(0.25, 0.25, 0.75, 0.75)), boxes)
    expected = [[0, 0, 0.5, 0.5, 2], [0.1, 0.1, 0.7, 0.7, 3], [0.5, 0.5, 1, 1, 4]]
    np.testing.assert_allclose(found, expected, atol=UNIT)


def test_a_window_beyond_the_image_shrinks_boxes():
    found = run(transform("bbox_crop", window=(-1, -1, 2, 2)), np.array([[0.5, 0.5, 0.6, 0.6, 7]], np.float32))
    np.testing.assert_allclose(found, [[0.5, 0.5, 1.6 / 3, 1.6 / 3, 7]], atol=UNIT)


@settings(max_examples=50, deadline=None)
@given(boxes_of(5), st.tuples(*[st.floats(-0.5, 1.5)] * 4))
def test_crop_stays_within_the_window(boxes, edges):
    window = (min(edges[0], edges[2]), min(edges[1], edges[3]), max(edges[0], edges[2]) + 0.1, max(edges[1], edges[3]) + 0.1)
    found = run(transform("bbox_crop", window=window), boxes)
    assert len(found) <= len(boxes)
    assert ((found[:, :4] >= 0) & (found[:, :4] <= 1)).all()
    assert (found[:, :2] < found[:, 2:4]).all()


@settings(max_examples=50, deadline=None)
@given(boxes_of(5), st.integers(0, 1000), st.sampled_from([0.0, 0.1, 0.5, 0.9]))
def test_random_crop_gives_boxes_within_the_image(boxes, seed, threshold):
    found = run(transform("random_bbox_crop", thresholds=(threshold,)), boxes, seed=seed)
    assert len(found) <= len(boxes)
    assert len(found) or not len(boxes)
    assert ((found[:, :4] >= 0) & (found[:, :4] <= 1)).all()
    assert (found[:, :2] < found[:, 2:4]).all()


def test_random_crop_keeps_what_the_rule_says():
    """The window is that of the same draws, by the rule written out."""
    boxes = spread(6, 2)
    centres = (boxes[:, :2] + boxes[:, 2:4]) / 2
    seen = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        rng.integers(1)
        draws = rng.random((50, 4))
        expected = boxes
        for w, h, x, y in draws:
            width, height = 0.3 + 0.7 * w, 0.3 + 0.7 * h
            window = np.array([x * (1 - width), y * (1 - height), 0, 0])
            window[2:] = window[0] + width, window[1] + height
            inside = ((centres > window[:2]) & (centres < window[2:])).all(axis=1)
            if 0.5 <= width / height <= 2 and max(overlap(window, b) for b in boxes) >= 0.1 and inside.any():
                seen += 1
                places = (boxes[inside, :4] - window[[0, 1, 0, 1]]) / np.tile([width, height], 2)
                expected = np.concatenate([np.clip(places, 0, 1), boxes[inside, 4:]], axis=1)
                break
        found = run(transform("random_bbox_crop", thresholds=(0.1,)), boxes, seed=seed)
        np.testing.assert_allclose(found, expected, atol=1e-5)
    assert seen > 20


def test_random_crop_leaves_all_alone_where_it_should():
    boxes = spread(5)
    assert run(transform("random_bbox_crop", thresholds=(None,)), boxes) is boxes
    assert run(transform("random_bbox_crop", thresholds=(1.0,)), boxes) is boxes


def test_random_crop_draws_every_threshold():
    boxes = spread(5)
    unchanged = sum(run(transform("random_bbox_crop"), boxes, seed=seed) is boxes for seed in range(120))
    assert 20 < unchanged < 110


def test_random_crop_does_not_depend_on_how_much_it_works_out_at_a_time(monkeypatch):
    boxes, call = spread(30), transform("random_bbox_crop", thresholds=(0.3,))
    expected = [run(call, boxes, seed=seed) for seed in range(20)]
    monkeypatch.setattr("dataio.formats.boxes.geometry.ATTEMPT_OVERLAPS", 31)
    for seed in range(20):
        np.testing.assert_array_equal(run(call, boxes, seed=seed), expected[seed])


# Overlaps


@pytest.mark.parametrize("name", ["spread", "clustered"])
def test_overlaps_are_those_of_torchvision(name):
    corners = Corners.of(GOLDEN[f"{name}_boxes"][:60])
    np.testing.assert_allclose(overlaps(corners, corners), GOLDEN[f"{name}_iou"], rtol=2e-7, atol=1e-9)


def test_overlaps_of_boxes_without_area():
    corners = Corners.of(GOLDEN["pixels_boxes"][:60])
    golden = GOLDEN["pixels_iou"]
    np.testing.assert_allclose(overlaps(corners, corners), golden, rtol=2e-7, equal_nan=True)


# Anchors


def encode_slowly(boxes, anchors, threshold, scale):
    """The rule of box_encoder, box by box in float64."""
    anchors = np.array(anchors, np.float32).reshape(-1, 4).astype(np.float64)
    boxes = boxes.astype(np.float64)
    table = np.array([[overlap(b, a) for a in anchors] for b in boxes]).reshape(len(boxes), len(anchors))
    out = np.zeros((len(anchors), 5))
    match = {}
    for a in range(len(anchors) if len(boxes) else 0):
        best = int(table[:, a].argmax())
        if table[best, a] >= threshold and table[best, a] > 0:
            match[a] = best
    claims = {}
    for b in range(len(boxes)):
        a = int(table[b].argmax())
        if a not in claims or table[b, a] > table[claims[a], a]:
            claims[a] = b
    for a, b in (match | claims).items():
        (ax0, ay0, ax1, ay1), (x0, y0, x1, y1, label) = anchors[a], boxes[b]
        aw, ah, w, h = ax1 - ax0, ay1 - ay0, x1 - x0, y1 - y0
        offsets = [(x0 + x1 - ax0 - ax1) / 2 / aw, (y0 + y1 - ay0 - ay1) / 2 / ah, np.log(w / aw), np.log(h / ah)]
        out[a] = [*np.multiply(offsets, scale), label]
    return out


ANCHORS = tuple(spread(75, 99)[:, :4].ravel().tolist())
"""At random, since in a regular grid rounding alone would decide which of two anchors a box overlaps more."""


@pytest.mark.parametrize("count", [0, 1, 7, 60])
@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.5])
def test_encoder_follows_its_rule(count, threshold):
    boxes = spread(count, count)
    found = run(transform("box_encoder", anchors=ANCHORS, iou_threshold=threshold), boxes)
    expected = encode_slowly(boxes, ANCHORS, threshold, (10, 10, 5, 5))
    np.testing.assert_array_equal(found[:, 4], expected[:, 4])
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("anchors", "boxes", "labels"),
    [
        pytest.param([0.1, 0.1, 0.4, 0.4], [[0.1, 0.1, 0.2, 0.2, 1], [0.1, 0.1, 0.2, 0.2, 2]], [1], id="ties-go-to-the-earlier"),
        pytest.param([0, 0, 1, 1], [[0, 0, 0.2, 0.2, 1], [0, 0, 0.4, 0.4, 2], [0, 0, 0.3, 0.3, 3]], [2], id="largest-claim"),
        pytest.param(
            [0, 0, 0.5, 0.5, 0, 0, 0.5, 0.48], [[0, 0, 0.5, 0.5, 1], [0, 0, 0.1, 0.1, 2]], [1, 2], id="claim-beats-overlap"
        ),
        pytest.param([0, 0, 0.1, 0.1, 0.5, 0.5, 0.6, 0.6], [[0.8, 0.8, 0.9, 0.9, 3]], [3, 0], id="claim-without-overlap"),
        pytest.param([0, 0, 0.5, 0.5], [[0, 0, 0.5, 0.25, 4]], [4], id="threshold-is-included"),
    ],
)
def test_who_gets_an_anchor(anchors, boxes, labels):
    found = run(transform("box_encoder", anchors=anchors, iou_threshold=0.5), np.array(boxes, np.float32))
    assert found[:, 4].tolist() == labels


def test_encoder_does_not_depend_on_how_much_it_works_out_at_a_time(monkeypatch):
    boxes, call = spread(20), transform("box_encoder", anchors=ANCHORS, iou_threshold=0.2)
    expected = run(call, boxes)
    monkeypatch.setattr("dataio.formats.boxes.anchors.ENCODER_OVERLAPS", 41)
    np.testing.assert_array_equal(run(call, boxes), expected)


def test_anchors_are_converted_once_and_stay_a_tuple():
    import pickle

    call = transform("box_encoder", anchors=list(ANCHORS))
    anchors = call.arguments["anchors"]
    assert anchors == ANCHORS
    assert isinstance(pickle.loads(pickle.dumps(call)).arguments["anchors"], Anchors)
    assert anchors.table is anchors.table


# Suppression


@pytest.mark.parametrize("name", ["spread", "clustered", "pixels"])
@pytest.mark.parametrize("i", range(5))
def test_nms_keeps_what_torchvision_keeps(name, i):
    boxes, kept = np.column_stack([GOLDEN[f"{name}_boxes"], GOLDEN[f"{name}_scores"]]), GOLDEN[f"{name}_kept_{i}"]
    found = run(transform("nms", iou_thresh=GOLDEN["thresholds"][i].item(), score_thresh=0.0), boxes)
    np.testing.assert_array_equal(found, boxes[kept])


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 300), st.integers(1, 20), st.sampled_from([0.1, 0.5, 0.8]), st.integers(0, 100))
def test_nms_result_is_sorted_and_sparse(count, objects, threshold, seed):
    boxes = spread(count, seed, "score", objects)
    found = run(transform("nms", iou_thresh=threshold, score_thresh=0.2), boxes)
    assert (np.diff(found[:, 4]) <= 0).all()
    assert (found[:, 4] >= np.float32(0.2)).all()
    corners = Corners.of(found)
    assert (np.triu(overlaps(corners, corners), 1) <= np.float32(threshold)).all()
    assert {row.tobytes() for row in found} <= {row.tobytes() for row in boxes}


def test_nms_compares_strictly_and_keeps_the_order_of_equal_scores():
    boxes = np.array([[0, 0, 1, 0.5, 0.5], [0, 0, 1, 1, 0.5], [5, 5, 6, 6, 0.9], [0, 0, 1, 1, 0.5]], np.float32)
    found = run(transform("nms", iou_thresh=0.5), boxes)
    np.testing.assert_array_equal(found, boxes[[2, 0, 1]])


@pytest.mark.parametrize("height", [1, 3, 5, 6, 7, 9])
def test_an_overlap_that_is_the_threshold_is_not_larger(height):
    boxes = np.array([[0, 0, 10, 10, 0.9], [0, 0, 10, height, 0.8]], np.float32)
    assert len(run(transform("nms", iou_thresh=height / 10), boxes)) == 2
    assert len(run(transform("nms", iou_thresh=height / 10 - 1e-6), boxes)) == 1


def test_nms_includes_the_score_threshold():
    boxes = np.array([[0, 0, 1, 1, 0.05], [2, 2, 3, 3, 0.0499]], np.float32)
    assert len(run(transform("nms"), boxes)) == 1


@pytest.mark.parametrize("op", ["nms", "soft_nms"])
@pytest.mark.parametrize("count", [10, 400])
def test_top_k_is_the_head_of_the_whole_result(op, count):
    boxes = spread(count, 0, "score")
    whole = run(transform(op), boxes)
    np.testing.assert_array_equal(run(transform(op, top_k=5), boxes), whole[:5])


@pytest.mark.parametrize("op", ["nms", "soft_nms"])
def test_centres_come_out_as_corners(op):
    boxes = spread(40, 0, "score")
    centres = boxes.copy()
    centres[:, 2:4] = boxes[:, 2:4] - boxes[:, :2]
    centres[:, :2] = boxes[:, :2] + centres[:, 2:4] / 2
    np.testing.assert_allclose(run(transform(op, box_format="xywh"), centres), run(transform(op), boxes), atol=1e-6)


def soft_slowly(boxes, threshold, sigma, low):
    """The rule of soft_nms, one box after the other in float64."""
    boxes = boxes.astype(np.float64)
    waiting, found = [i for i, score in enumerate(boxes[:, 4]) if score >= np.float32(low)], []
    while waiting:
        best = max(waiting, key=lambda i: (boxes[i, 4], -i))
        waiting.remove(best)
        if boxes[best, 4] < low:
            break
        found.append(boxes[best].copy())
        for i in waiting:
            if (shared := overlap(boxes[best], boxes[i])) > threshold:
                boxes[i, 4] *= np.exp(-(shared**2) / sigma)
    return np.array(found).reshape(-1, 5)


@pytest.mark.parametrize(("count", "objects"), [(0, 1), (1, 1), (40, 3), (150, 150), (200, 4)])
@pytest.mark.parametrize(
    "arguments",
    [{}, {"sigma": 0.05}, {"sigma": 50.0}, {"iou_thresh": 0.0}, {"iou_thresh": 0.9}, {"score_thresh": 0.3}],
    ids=str,
)
def test_soft_nms_is_the_rule_box_by_box(count, objects, arguments):
    boxes = spread(count, count, "score", objects)
    found = run(transform("soft_nms", **arguments), boxes)
    expected = soft_slowly(
        boxes, arguments.get("iou_thresh", 0.3), arguments.get("sigma", 0.5), arguments.get("score_thresh", 0.001)
    )
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("op", ["nms", "soft_nms"])
def test_boxes_without_area_overlap_nothing(op):
    flat = np.array([[0.5, 0.5, 0.5, 0.5, 0.9 - i / 1000] for i in range(200)], np.float32)
    np.testing.assert_array_equal(run(transform(op), flat), flat)


@pytest.mark.parametrize("op", ["nms", "soft_nms"])
def test_huge_boxes_do_no_harm(op):
    boxes = np.array([[-3e38, -3e38, 3e38, 3e38, 0.9], [0, 0, 1, 1, 0.8]], np.float32)
    assert len(run(transform(op), boxes)) == 2


# What does not fit


ANCHOR = {"anchors": (0.0, 0.0, 0.5, 0.5)}
FIVE = [("bbox_crop", {"window": (0, 0, 1, 1)}), ("random_bbox_crop", {}), ("box_encoder", ANCHOR), ("nms", {}), ("soft_nms", {})]
FOUR = [("bbox_hflip", {}), ("bbox_vflip", {}), ("bbox_pad", {"src_h": 4, "src_w": 4})]
WIDTHS = [*((op, args, 5) for op, args in FIVE), *((op, args, 4) for op, args in FOUR)]


def test_every_op_is_among_these():
    assert {op for op, _, _ in WIDTHS} == ops_registered_by("boxes.geometry", "boxes.anchors", "boxes.suppression")


@pytest.mark.parametrize(("op", "args", "width"), WIDTHS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_the_first_bad_row_is_named(op, args, width, bad):
    boxes = spread(5)[:, :width].copy()
    boxes[2, 1], boxes[4, 0] = bad, bad
    with pytest.raises(OpError, match="finite numbers; row 2 is"):
        run(transform(op, **args), boxes)


@pytest.mark.parametrize(("op", "args"), FIVE)
def test_a_bad_last_column_is_named(op, args):
    boxes = spread(5)
    boxes[3, 4] = np.nan
    with pytest.raises(OpError, match="finite numbers; row 3 is"):
        run(transform(op, **args), boxes)


@pytest.mark.parametrize(("op", "args", "width"), WIDTHS)
@pytest.mark.parametrize("strange", ["width", "dtype", "rank"])
def test_other_tables_are_refused(op, args, width, strange):
    value = {"width": np.ones((3, 9 - width), np.float32), "dtype": np.ones((3, width)), "rank": np.ones(width, np.float32)}
    call = transform(op, **args)
    with pytest.raises(OpError, match=rf"takes float32\[n, {width}\], got"):
        run(call, value[strange])
    with pytest.raises(PlanError):
        call.spec.output_type(TensorType(value[strange].shape, value[strange].dtype.name), call.arguments)


PLACED = [case for case in WIDTHS if "nms" not in case[0]]


@pytest.mark.parametrize(("op", "args", "width"), PLACED)
def test_pixels_are_not_taken_for_fractions(op, args, width):
    boxes = spread(3)[:, :width].copy()
    boxes[1, :4] = 10, 20, 30, 40
    with pytest.raises(OpError, match=r"fractions of the image, from 0 to 1; row 1 is \[10"):
        run(transform(op, **args), boxes)


@pytest.mark.parametrize(("op", "args", "width"), PLACED)
def test_corners_out_of_order_are_refused(op, args, width):
    boxes = spread(3)[:, :width].copy()
    boxes[2, [0, 2]] = boxes[2, [2, 0]]
    with pytest.raises(OpError, match="x0 < x1 and y0 < y1; row 2"):
        run(transform(op, **args), boxes)


def test_a_little_beyond_the_edge_is_rounding():
    found = run(transform("bbox_hflip", prob=1.0), np.array([[0.5, 0, 1.0005, 1]], np.float32))
    np.testing.assert_allclose(found, [[-0.0005, 0, 0.5, 1]], atol=UNIT)


@pytest.mark.parametrize("label", [0, -1, 1.5])
def test_labels_of_the_encoder_are_whole_and_positive(label):
    boxes = spread(3)
    boxes[1, 4] = label
    with pytest.raises(OpError, match=r"labels that are whole numbers >= 1 .* row 1"):
        run(transform("box_encoder", **ANCHOR), boxes)


@pytest.mark.parametrize(
    ("op", "args", "error", "match"),
    [
        ("bbox_hflip", {"format": "cxcywh"}, ValueError, "format"),
        ("bbox_hflip", {"prob": 1.5}, ValueError, "prob"),
        ("bbox_pad", {"src_h": 0, "src_w": 4}, ValueError, "src_h"),
        ("bbox_pad", {"src_h": 4, "src_w": 4, "top": -1}, TypeError, "top"),
        ("bbox_pad", {"src_h": "h", "src_w": 4}, TypeError, "src_h"),
        ("bbox_crop", {"window": (0, 0, 0, 1)}, ValueError, "x0 < x1"),
        ("bbox_crop", {"window": (0, 0, 1)}, ValueError, "4 entries"),
        ("bbox_crop", {"window": (0, 0, 1, float("nan"))}, ValueError, "finite"),
        ("bbox_crop", {"window": (0, 0, 1, 1), "format": "xywh"}, ValueError, "format"),
        ("random_bbox_crop", {"thresholds": ()}, ValueError, "empty"),
        ("random_bbox_crop", {"thresholds": (1.5,)}, ValueError, "thresholds"),
        ("random_bbox_crop", {"thresholds": 0.5}, TypeError, "sequence"),
        ("random_bbox_crop", {"aspect_ratio": (2.0, 0.5)}, ValueError, "aspect_ratio"),
        ("random_bbox_crop", {"scale": (0.5, 1.5)}, ValueError, "scale"),
        ("random_bbox_crop", {"scale": (0.0, 1.0)}, ValueError, "scale"),
        ("random_bbox_crop", {"max_attempts": 0}, ValueError, "max_attempts"),
        ("box_encoder", {"anchors": (0.1, 0.1, 0.2)}, ValueError, "4 numbers per anchor"),
        ("box_encoder", {"anchors": (0, 0, 1, 1, 0.1, 0.1, 0.1, 0.2)}, ValueError, "anchor 1"),
        ("box_encoder", {"anchors": ((0.1, 0.1, 0.2, 0.2),)}, TypeError, "number"),
        ("box_encoder", {**ANCHOR, "scale": (0, 1, 1, 1)}, ValueError, "scale"),
        ("nms", {"iou_thresh": 1.5}, ValueError, "iou_thresh"),
        ("nms", {"score_thresh": -1.0}, ValueError, "score_thresh"),
        ("nms", {"top_k": 0}, ValueError, "top_k"),
        ("nms", {"box_format": "cxcywh"}, ValueError, "box_format"),
        ("soft_nms", {"sigma": 0}, ValueError, "sigma"),
    ],
)
def test_bad_arguments_fail_at_construction(op, args, error, match):
    with pytest.raises(error, match=match):
        transform(op, **args)


def test_what_the_plan_knows():
    boxes = TensorType((7, 5), "float32")
    for op, args, expected in (("nms", {}, (None, 5)), ("box_encoder", {"anchors": ANCHORS}, (75, 5))):
        call = transform(op, **args)
        assert call.spec.output_type(boxes, call.arguments) == TensorType(expected, "float32")


def test_an_image_is_no_table_of_boxes():
    with pytest.raises(OpError, match="takes float32"):
        run(transform("nms"), noise(4, 5))


@pytest.mark.parametrize("prob", [0.0, 1.0])
@pytest.mark.parametrize(("op", "args"), [(op, args) for op, args in FOUR if "flip" in op])
def test_the_out_kernel_of_a_flip(op, args, prob):
    boxes = four(6)[::2]
    boxes.flags.writeable = False
    call = transform(op, **args, prob=prob)
    out = np.full((3, 4), 7, np.float32)
    run_out(call, boxes, out)
    np.testing.assert_array_equal(out, run(call, boxes))
