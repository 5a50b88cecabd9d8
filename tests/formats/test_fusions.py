"""Rewrites of neighbouring ops: what they become, and that the pixels stay."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataio.engine.expr import Col
from dataio.engine.registry import fusions, lookup
from dataio.formats.image import resize as resize_module

from .helpers import decoder, encode, max_difference, noise, photo, run, transform


def fuse(name, first, second):
    return fusions()[name](first, second)


RESIZES = st.one_of(
    st.builds(lambda h, w: ("resize", {"h": h, "w": w}), st.integers(1, 130), st.integers(1, 130)),
    st.builds(lambda s: ("resize_short", {"size": s}), st.integers(1, 110)),
    st.builds(lambda s: ("resize_long", {"size": s}), st.integers(2, 130)),
    st.builds(lambda h, w: ("fit_to_bucket", {"h": h, "w": w}), st.integers(1, 100), st.integers(1, 100)),
)


@pytest.mark.parametrize("torch", [True, False], ids=["torch", "pillow"])
def test_crop_before_resize_keeps_the_pixels(monkeypatch, torch):
    if not torch:
        monkeypatch.setattr(resize_module, "_torch", lambda: None)

    @settings(max_examples=150, deadline=None)
    @given(
        RESIZES,
        st.sampled_from(["bilinear", "bicubic", "nearest"]),
        st.tuples(st.integers(4, 140), st.integers(4, 140)),
        st.tuples(st.integers(1, 110), st.integers(1, 110)),
        st.sampled_from([1, 3, 4]),
    )
    def check(resize, interp, size, crop, channels):
        op, args = resize
        image = noise(*size, channels)
        first, second = transform(op, **args, interp=interp), transform("center_crop", h=crop[0], w=crop[1])
        fused = fuse("crop_before_resize", first, second)
        assert fused is not None
        expected = run(second, run(first, image), "HWC")
        assert max_difference(run(fused[0], image), expected) <= 1

    check()


def test_dropped_rows_keep_the_sampling_grid():
    image = noise(640, 512)  # scale 2.5: every second output row starts on an input row
    skip, first = resize_module._rows_before(80, 2.5, 2.0)
    assert (skip, first) == (76, 190)
    fused = fuse("crop_before_resize", transform("resize", h=256, w=256), transform("center_crop", h=96, w=96))
    whole = run(transform("resize", h=256, w=256), image)
    assert max_difference(run(fused[0], image), whole[80:176, 80:176]) <= 1


def test_crop_before_resize_takes_sizes_from_the_record():
    fused = fuse(
        "crop_before_resize", transform("resize", h=Col("h"), w=Col("w")), transform("center_crop", h=Col("c"), w=4)
    )
    assert fused[0].columns() == ("h", "w", "c")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (transform("resize", h=4, w=4), transform("hflip")),
        (transform("hflip"), transform("center_crop", h=4, w=4)),
        (transform("resize", h=4, w=4, interp="lanczos"), transform("center_crop", h=4, w=4)),
        (transform("center_crop", h=4, w=4), transform("resize", h=4, w=4)),
    ],
)
def test_fusions_leave_other_pairs_alone(first, second):
    assert all(rule(first, second) is None for rule in fusions().values())


@pytest.mark.parametrize(
    "first",
    [
        transform("unit_chw"),
        transform("symmetric_chw"),
        transform("pack_chw_f32", scale=1 / 127.5, bias=-1.0),
        transform("pack_chw_f32", scale=1.0),
    ],
    ids=str,
)
def test_normalize_fusion_is_within_1e_6(first):
    image = noise(20, 30)
    scale = 255.0 if first.arguments.get("scale") == 1.0 else 1.0
    second = transform("normalize", mean=(0.4 * scale, 0.5, 0.6), std=(0.9 * scale, scale, 1.1 * scale))
    (fused,) = fuse("normalize_fusion", first, second)
    assert fused.name == "normalize_chw_from_hwc_u8"
    np.testing.assert_allclose(run(fused, image), run(second, run(first, image)), atol=1e-6)


def test_normalize_fusion_reaches_into_the_decoder():
    data = encode(photo(), "JPEG")
    first, second = decoder("image"), transform("normalize", mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7))
    plain, packed = fuse("normalize_fusion", first, second)
    assert str(plain) == "image(normalize=none, layout=hwc)"
    np.testing.assert_allclose(run(packed, run(plain, data)), run(second, run(first, data)), atol=1e-6)


HWC = {"normalize": "none", "layout": "hwc"}


def test_reduced_scale_is_opt_in():
    assert fuse("reduced_scale_jpeg", decoder("image", **HWC), transform("resize", h=4, w=4)) is None


def test_reduced_scale_needs_literal_sizes():
    first = decoder("image", dct_scale=True, **HWC)
    assert fuse("reduced_scale_jpeg", first, transform("resize", h=Col("h"), w=4)) is None


@pytest.mark.parametrize("shape", [(480, 640), (333, 500), (501, 377)])
@pytest.mark.parametrize(
    "second",
    [
        transform("resize", h=100, w=120),
        transform("resize_short", size=150),
        transform("resize_long", size=90),
        transform("fit_to_bucket", h=64, w=90),
        transform("resize_short", size=400),
    ],
    ids=str,
)
def test_reduced_scale_keeps_shape_and_look(shape, second):
    data = encode(photo(*shape), "JPEG", quality=95)
    first = decoder("image", dct_scale=True, **HWC)
    hinted, same = fuse("reduced_scale_jpeg", first, second)
    assert same == second
    assert fuse("reduced_scale_jpeg", hinted, second) is None
    small, whole = run(hinted, data), run(first, data)
    result, expected = run(second, small), run(second, whole)
    h, w, _ = np.minimum(result.shape, expected.shape)
    assert np.abs(np.subtract(result.shape, expected.shape)).max() <= ("resize_" in str(second))
    assert np.abs(result[:h, :w].astype(int) - expected[:h, :w]).mean() < 5
    if "400" in str(second):
        np.testing.assert_array_equal(small, whole)
    else:
        assert whole.shape[0] > small.shape[0] >= result.shape[0]
    assert hinted.spec.kernels["original_hw"](data, small, **hinted.arguments) == shape


def test_worker_threads_leave_the_trainers_torch_alone():
    import torch

    before = torch.get_num_threads()
    seen = {}

    def worker():
        resize_module.prepare_worker_thread()
        run(transform("resize", h=4, w=4), noise(9, 9))
        seen["worker"] = torch.get_num_threads()

    def other():
        seen["other"] = torch.get_num_threads()

    torch.set_num_threads(2)
    try:
        for target in (worker, other):
            thread = threading.Thread(target=target)
            thread.start()
            thread.join()
        assert seen == {"worker": 1, "other": 2}
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("op", ["resize", "resize_short", "resize_long", "fit_to_bucket", "random_resized_crop"])
def test_resizing_ops_prepare_their_worker_threads(op):
    assert lookup(op, "transform").kernels["setup"] is resize_module.prepare_worker_thread
