"""`read_image` and `write_image`: files of images, there and back, and what is refused."""

from __future__ import annotations

import io
import os
import resource

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

import dataio
from dataio.engine.errors import LimitError

from ..conftest import encoded

RGB = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)
SHAPES = st.tuples(st.integers(1, 6), st.integers(1, 6), st.sampled_from([None, 3, 4])).map(lambda s: s[:2] if s[2] is None else s)
MODE = {2: "gray", 3: "rgb", 4: "rgba"}


@settings(deadline=None, max_examples=40)
@given(pixels=SHAPES.flatmap(lambda shape: hnp.arrays(np.uint8, shape)))
@pytest.mark.parametrize("suffix", ["png", "tif", "bmp"])
def test_pixels_come_back_as_they_were_written(pixels, suffix, tmp_path_factory):
    assume(suffix != "bmp" or pixels.shape[-1] != 4 or pixels.ndim == 2)  # Pillow's BMP says of its fourth channel that it is none
    path = tmp_path_factory.getbasetemp() / f"round.{suffix}"
    dataio.write_image(path, pixels)
    mode = MODE[2 if pixels.ndim == 2 else pixels.shape[2]]
    np.testing.assert_array_equal(dataio.read_image(path, mode=mode).reshape(pixels.shape), pixels)


FORMATS = [  # name, format, what Pillow says it is
    ("x.jpg", None, "JPEG"),
    ("x.JPEG", None, "JPEG"),
    ("x.tif", None, "TIFF"),
    ("x.webp", None, "WEBP"),
    ("x.bmp", None, "BMP"),
    ("x.jp2", None, "JPEG2000"),
    ("x", None, "PNG"),
    ("x.png", "jpg", "JPEG"),
    ("x.raw", "tif", "TIFF"),
    ("x", "Gif", "GIF"),
]


@pytest.mark.parametrize(("name", "format", "kind"), FORMATS)
def test_the_format_is_that_of_the_argument_or_of_the_suffix(name, format, kind, tmp_path):
    dataio.write_image(tmp_path / name, RGB, format=format)
    with Image.open(tmp_path / name) as picture:
        assert picture.format == kind
    assert dataio.read_image(tmp_path / name).shape == RGB.shape


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_16_bits_are_kept(suffix, tmp_path):
    pixels = np.arange(35, dtype=np.uint16).reshape(5, 7) * 1800
    dataio.write_image(tmp_path / f"x.{suffix}", pixels)
    with Image.open(tmp_path / f"x.{suffix}") as picture:
        np.testing.assert_array_equal(np.asarray(picture), pixels)


@pytest.mark.parametrize(
    "given", [torch.from_numpy(RGB.copy()), Image.fromarray(RGB), RGB[::-1][::-1]], ids=["torch", "pillow", "strided"]
)
def test_what_holds_pixels_can_be_written(given, tmp_path):
    dataio.write_image(tmp_path / "x.png", given)
    np.testing.assert_array_equal(dataio.read_image(tmp_path / "x.png"), RGB)


def test_quality_makes_a_jpeg_smaller(tmp_path):
    for quality in (10, 95):
        dataio.write_image(tmp_path / f"{quality}.jpg", RGB.repeat(8, 0).repeat(8, 1), quality=quality)
    dataio.write_image(tmp_path / "x.png", RGB, quality=10)  # which has none
    assert os.path.getsize(tmp_path / "10.jpg") < os.path.getsize(tmp_path / "95.jpg")


@pytest.mark.parametrize(
    ("mode", "channels"), [("rgb", 3), ("RGBA", 4), ("gray", 1), ("GrayScale", 1), ("luma", 1), ("L", 1), ("grey", 1)]
)
def test_modes_and_layouts(mode, channels):
    data = encoded(5, 7, format="PNG")
    assert dataio.read_image(data, mode=mode).shape == (5, 7, channels)
    assert dataio.read_image(data, mode=mode, layout="chw").shape == (channels, 5, 7)


def test_images_are_turned_upright():
    exif = Image.Exif()
    exif[0x0112] = 6
    out = io.BytesIO()
    Image.fromarray(RGB).save(out, "JPEG", exif=exif)
    assert dataio.read_image(out.getvalue()).shape == (7, 5, 3)


@pytest.mark.parametrize("framework", ["numpy", "torch", "dlpack", "jax", "arrow"])
def test_frameworks(framework):
    if framework == "jax":
        pytest.importorskip("jax")
    found = dataio.read_image(encoded(5, 7), framework=framework)
    if framework == "arrow":
        assert len(found) == 5
    else:
        assert tuple(found.shape) == (5, 7, 3)


def test_objects_of_a_store(s3_bucket):
    dataio.write_image(f"{s3_bucket}/a/x.png", RGB)
    np.testing.assert_array_equal(dataio.read_image(f"{s3_bucket}/a/x.png"), RGB)
    assert dataio.head(f"{s3_bucket}/a/x.png").content_type == "image/png"


def test_other_sources(tmp_path):
    (tmp_path / "x.png").write_bytes(encoded(5, 7, format="PNG"))
    expected = dataio.read_image(tmp_path / "x.png")
    for source in (f"file://{tmp_path}/x.png", dataio.reader(str(tmp_path / "x.png")), open(tmp_path / "x.png", "rb")):  # noqa: SIM115
        np.testing.assert_array_equal(dataio.read_image(source), expected)


BAD_WRITES = [
    pytest.param(RGB / 255, {}, TypeError, "scale to 0-255", id="float"),
    pytest.param(RGB.transpose(2, 0, 1), {}, TypeError, "channels come last", id="chw"),
    pytest.param(RGB[:, :, :1], {}, TypeError, "drop the axis", id="h-w-1"),
    pytest.param(RGB[:, :, :2], {}, TypeError, "takes uint8", id="two-channels"),
    pytest.param(RGB.astype(np.int64), {}, TypeError, "takes uint8", id="int64"),
    pytest.param("x", {}, TypeError, "takes an array", id="str"),
    pytest.param(RGB, {"format": "docx"}, KeyError, "'docx'", id="unknown-format"),
    pytest.param(RGB, {"format": "docx"}, ValueError, "'docx'", id="unknown-format-as-value"),
    pytest.param(RGB, {"format": "pngg"}, KeyError, "did you mean", id="misspelt"),
    pytest.param(RGB[:0], {}, ValueError, "without pixels", id="empty"),
    pytest.param(np.dstack([RGB, RGB[:, :, 0]]), {"format": "jpeg"}, ValueError, "mode RGBA", id="alpha-in-jpeg"),
    pytest.param(RGB[:, :, 0].astype(np.uint16), {"format": "jpeg"}, ValueError, "8 bits", id="16-bits-in-jpeg"),
    pytest.param(np.zeros((1, 70000), np.uint8), {"format": "jpeg"}, ValueError, "70000x1", id="wide"),
    pytest.param(RGB, {"quality": 101}, ValueError, "0 to 100", id="quality"),
    pytest.param(RGB, {"quality": True}, TypeError, "an int", id="bool-quality"),
]


@pytest.mark.parametrize(("pixels", "options", "error", "text"), BAD_WRITES)
def test_what_cannot_be_written_leaves_the_old_file(pixels, options, error, text, tmp_path):
    path = tmp_path / "x.png"
    path.write_bytes(b"old")
    with pytest.raises(error, match=text):
        dataio.write_image(path, pixels, **options)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["x.png"]


BAD_READS = [
    pytest.param(b"", {}, "empty", id="empty"),
    pytest.param(b"no image at all", {}, "x.png", id="other"),
    pytest.param(encoded(40, 40)[:300], {}, "x.png.*truncated", id="cut-off"),
    pytest.param(encoded(5, 7), {"mode": "cmyk"}, "mode must be", id="mode"),
    pytest.param(encoded(5, 7), {"layout": "nhwc"}, "layout must be", id="layout"),
    pytest.param(encoded(5, 7), {"framework": "tf"}, "output must be", id="framework"),
]


@pytest.mark.parametrize(("data", "options", "text"), BAD_READS)
def test_bad_reads_are_refused(data, options, text, tmp_path):
    (tmp_path / "x.png").write_bytes(data)
    with pytest.raises(ValueError, match=text):
        dataio.read_image(tmp_path / "x.png", **options)


def test_limits_hold_before_anything_is_decoded(tmp_path):
    path = tmp_path / "x.png"
    path.write_bytes(encoded(5, 7, format="PNG")[:40])  # the header alone
    with pytest.raises(LimitError, match=r"x\.png.*max_pixels"):
        dataio.read_image(path, max_pixels=34)
    with pytest.raises(LimitError, match="max_decoded_bytes"):
        dataio.read_image(path, max_decoded_bytes=100)


def test_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        dataio.read_image(tmp_path / "no.png")


NO_PIXELS = bytes.fromhex(  # a PNG without IDAT, found by fuzzing: OpenCV took 2.7 GB for it
    "89504e470d0a1a0a0000000d49484452000000050000000608000000002e900b970000002d546349419c44a878bf9a716e378b"
    "cccaafe76f304ab75efc27cc52c7c9c62cca7484d765bd16cb9b3fc93d5f0122c21797dfa5a052a300000049454e44ae426082"
)


def test_a_png_without_pixels_takes_no_memory():
    dataio.read_image(encoded(5, 7, format="PNG"))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match="damaged or truncated png"):
        dataio.read_image(NO_PIXELS)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KB
