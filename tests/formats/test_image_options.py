"""The options of the image decoder, format by format: modes, transparency, sample widths, limits, what is refused."""

from __future__ import annotations

import io

import cv2
import numpy as np
import pytest
from PIL import Image

from dataio.engine.errors import LimitError, OpError
from dataio.formats.image.header import image_size

from .helpers import decoder, encode, max_difference, noise, photo, run

HWC = {"normalize": "none", "layout": "hwc"}
RGB = Image.fromarray(photo())
RGBA = Image.fromarray(np.concatenate([photo(), photo(c=1, seed=1)], axis=2))
ALPHA_FORMATS = ["PNG", "WEBP", "TIFF", "TGA", "QOI", "ICO", "GIF"]
OPAQUE_FORMATS = ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "TGA", "QOI", "AVIF", "JPEG2000"]


def decode(data, **arguments):
    return run(decoder("image", **{**HWC, **arguments}), data)


def file_of(picture, fmt):
    return encode(picture, fmt, **({"lossless": True, "exact": True} if fmt == "WEBP" else {}))


def by_pillow(data, mode):
    with Image.open(io.BytesIO(data)) as picture:
        return np.asarray(picture.convert(mode)).reshape(picture.height, picture.width, -1)


@pytest.mark.parametrize("fmt", ALPHA_FORMATS)
def test_transparent_files_in_every_mode(fmt):
    data = file_of(RGBA, fmt)
    over = by_pillow(data, "RGBA")
    np.testing.assert_array_equal(decode(data, mode="rgba"), over)
    np.testing.assert_array_equal(decode(data, allow_alpha=True), over)
    np.testing.assert_array_equal(decode(data), over[:, :, :3])
    assert decode(data, mode="gray").shape == (*over.shape[:2], 1)


@pytest.mark.parametrize("fmt", ALPHA_FORMATS)
def test_fill_color_composites_in_every_format(fmt):
    data = file_of(RGBA, fmt)
    over = Image.fromarray(by_pillow(data, "RGBA"))
    expected = Image.new("RGB", over.size, (10, 200, 30))
    expected.paste(over, mask=over.getchannel("A"))
    np.testing.assert_array_equal(decode(data, fill_color=(10, 200, 30)), np.asarray(expected))


@pytest.mark.parametrize("fmt", OPAQUE_FORMATS)
def test_opaque_files_in_every_mode(fmt):
    data = file_of(RGB, fmt)
    rgb = decode(data)
    assert rgb.shape == (48, 64, 3)
    for four in (decode(data, mode="rgba"), decode(data, allow_alpha=True)):
        np.testing.assert_array_equal(four, np.dstack([rgb, np.full((48, 64), 255, np.uint8)]))
    np.testing.assert_array_equal(decode(data, fill_color=(1, 2, 3)), rgb)


@pytest.mark.parametrize("fmt", [f for f in OPAQUE_FORMATS if f != "JPEG"])
def test_gray_of_every_format_is_bt601(fmt):
    data = file_of(RGB, fmt)
    r, g, b = decode(data).astype(np.uint32).transpose(2, 0, 1)
    expected = (19595 * r + 38470 * g + 7471 * b + 32768) >> 16
    np.testing.assert_array_equal(decode(data, mode="gray")[:, :, 0], expected)


@pytest.mark.parametrize("mode", ["gray", "grayscale", "luma"])
def test_synonyms_of_gray(mode):
    data = file_of(RGB, "PNG")
    np.testing.assert_array_equal(decode(data, mode=mode), decode(data, mode="gray"))


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@pytest.mark.parametrize("interlaced", [False, True])
def test_png_palettes_of_every_width(bits, interlaced):
    picture = RGB.quantize(1 << bits)
    data = encode(picture, "PNG", bits=bits, interlace=interlaced)
    np.testing.assert_array_equal(decode(data), np.asarray(picture.convert("RGB")))


WIDE = np.random.default_rng(0).integers(0, 65536, (9, 11, 4), np.uint16)
WIDE_CASES = [
    pytest.param(".png", 1, "gray", id="png-gray"),
    pytest.param(".png", 3, "rgb", id="png-rgb"),
    pytest.param(".png", 4, "rgba", id="png-rgba"),
    pytest.param(".tiff", 1, "gray", id="tiff-gray"),
    pytest.param(".tiff", 3, "rgb", id="tiff-rgb"),
    pytest.param(".pgm", 1, "gray", id="pgm"),
    pytest.param(".ppm", 3, "rgb", id="ppm"),
]


@pytest.mark.parametrize(("suffix", "channels", "mode"), WIDE_CASES)
def test_16_bit_samples_give_their_high_byte_in_every_format(suffix, channels, mode):
    wide = WIDE[:, :, :channels]
    stored = wide if channels == 1 else cv2.cvtColor(wide, cv2.COLOR_RGB2BGR if channels == 3 else cv2.COLOR_RGBA2BGRA)
    data = cv2.imencode(suffix, stored)[1].tobytes()
    np.testing.assert_array_equal(decode(data, mode=mode), wide >> 8)


def pam(samples, maxval=255, kind=b"ANY"):
    height, width, depth = samples.shape
    fields = f"P7\nWIDTH {width}\n# a comment\nHEIGHT {height}\nDEPTH {depth}\nMAXVAL {maxval}\nTUPLTYPE ".encode() + kind
    return fields + b"\nENDHDR\n" + samples.astype(">u2" if maxval > 255 else "u1").tobytes()


@pytest.mark.parametrize(("depth", "mode"), [(1, "gray"), (3, "rgb"), (4, "rgba")])
def test_pam_gives_its_samples(depth, mode):
    image = noise(5, 7, depth)
    data = pam(image)
    np.testing.assert_array_equal(decode(data, mode=mode), image)
    assert image_size(data) == (5, 7, "pnm")


def test_pam_of_16_bit_gives_the_high_byte():
    np.testing.assert_array_equal(decode(pam(WIDE, 65535), mode="rgba"), WIDE >> 8)


def test_pam_with_alpha_is_composited():
    image = noise(5, 7, 2)
    gray, alpha = image[:, :, :1].astype(int), image[:, :, 1:].astype(int)
    found = decode(pam(image), fill_color=(0, 0, 0))
    assert np.abs(found - gray * alpha / 255).max() <= 1


@pytest.mark.parametrize("maxval", [1, 15, 1023])
def test_pam_of_other_ranges_is_scaled_to_255(maxval):
    samples = np.random.default_rng(0).integers(0, maxval + 1, (4, 5, 3))
    found = decode(pam(samples, maxval))
    assert np.abs(found - samples * 255 / maxval).max() <= 0.5


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (pam(noise(5, 7, 3))[:-1], "its samples take 105, there are 104"),
        (pam(noise(5, 7, 5)), "5 samples per pixel"),
        (b"P7\nWIDTH 3\nENDHDR\n", "lacks HEIGHT"),
        (b"P7\nWIDTH x\nHEIGHT 1\nDEPTH 1\nMAXVAL 1\nENDHDR\n", "damaged"),
        (b"P7\n" + b"#" * 5000, "no end"),
        (pam(noise(1, 1, 1)).replace(b"WIDTH 1", b"WIDTH 0"), "0x1 pixels"),
        (pam(noise(1, 1, 1)).replace(b"WIDTH 1", b"WIDTH 99999999"), "max_pixels|samples take"),
        (b"Pf\n1 1\n-1.0\n\0\0\x80\x3f", "unknown image format"),
    ],
)
def test_damaged_pam(data, match):
    with pytest.raises(OpError, match=match):
        decode(data)


@pytest.mark.parametrize("data", [b"P1\n# c\n2 2\n1 0\n0 1\n", b"P4\n2 2\n\x80\x40"], ids=["ascii", "binary"])
def test_bitmaps(data):
    assert decode(data, mode="gray")[:, :, 0].tolist() == [[0, 255], [255, 0]]


def test_ascii_pixmap():
    assert decode(b"P3\n#c\n2 1\n255\n1 2 3 4 5 6\n").tolist() == [[[1, 2, 3], [4, 5, 6]]]


TIFFS = [("tiff_lzw", 0), ("packbits", 0), ("tiff_adobe_deflate", 0), ("jpeg", 1)]


@pytest.mark.parametrize(("compression", "tolerance"), TIFFS)
def test_tiff_compressions(compression, tolerance):
    data = encode(RGB, "TIFF", compression=compression)
    assert max_difference(decode(data), by_pillow(data, "RGB")) <= tolerance


def test_cmyk_tiff():
    data = encode(RGB.convert("CMYK"), "TIFF")
    np.testing.assert_array_equal(decode(data), by_pillow(data, "RGB"))


@pytest.mark.parametrize("fmt", ["DDS", "SGI", "PCX", "EPS"])
def test_formats_that_are_not_read(fmt):
    with pytest.raises(OpError, match="unknown image format"):
        decode(encode(RGB, fmt))


CONSTRUCTION = [
    ({"mode": "RGB"}, ValueError), ({"mode": "L"}, ValueError), ({"mode": None}, TypeError),
    ({"layout": "HWC"}, ValueError), ({"layout": None}, TypeError),
    ({"normalize": "NONE"}, ValueError), ({"normalize": None}, TypeError),
    ({"backend": "cpu"}, ValueError), ({"backend": None}, TypeError),
    ({"allow_alpha": 1}, TypeError), ({"allow_alpha": True, "mode": "gray"}, ValueError),
    ({"allow_alpha": True, "mode": "rgba"}, ValueError), ({"fill_color": (1, 2, 3), "allow_alpha": True}, ValueError),
    ({"fill_color": (1, 2, 3), "mode": "gray"}, ValueError), ({"fill_color": (1, 2, 3), "mode": "rgba"}, ValueError),
    ({"fill_color": (1, 2)}, ValueError), ({"fill_color": (1, 2, 3, 4)}, ValueError),
    ({"fill_color": (1, 2, 256)}, OverflowError), ({"fill_color": (-1, 2, 3)}, OverflowError),
    ({"fill_color": (1.5, 2, 3)}, TypeError), ({"fill_color": "red"}, TypeError), ({"fill_color": 3}, TypeError),
    *[({name: bad}, TypeError) for name in ("max_pixels", "max_decoded_bytes", "max_width", "max_height")
      for bad in (-1, True, 1.0, "1", None)],
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "error"), CONSTRUCTION)
def test_bad_options_fail_at_construction(arguments, error):
    with pytest.raises(error, match=next(iter(arguments))):
        decoder("image", **arguments)


PIXELS = 48 * 64
LIMITS = [  # file, options, the smallest max_decoded_bytes that lets it pass
    pytest.param("PNG", RGB, {}, 3, id="rgb"),
    pytest.param("PNG", RGB, {"mode": "rgba"}, 4, id="rgba"),
    pytest.param("PNG", RGB, {"normalize": "unit"}, 12, id="float"),
    pytest.param("PNG", RGB, {"mode": "gray"}, 3, id="png-gray-of-rgb"),
    pytest.param("PNG", RGBA, {"mode": "gray"}, 4, id="png-gray-of-rgba"),
    pytest.param("PNG", RGBA, {}, 4, id="png-rgb-of-rgba"),
    pytest.param("PNG", RGB.convert("P"), {}, 3, id="png-palette"),
    pytest.param("JPEG", RGB, {"mode": "gray"}, 1, id="jpeg-gray"),
]


@pytest.mark.parametrize(("fmt", "picture", "options", "per_pixel"), LIMITS)
def test_max_decoded_bytes_counts_result_and_stored_png_samples(fmt, picture, options, per_pixel):
    data = encode(picture, fmt)
    assert decode(data, **options, max_decoded_bytes=per_pixel * PIXELS).size
    with pytest.raises(LimitError, match=f"decodes to {per_pixel * PIXELS} bytes"):
        decode(data, **options, max_decoded_bytes=per_pixel * PIXELS - 1)


@pytest.mark.parametrize(
    ("name", "value"), [("max_pixels", PIXELS), ("max_width", 64), ("max_height", 48)], ids=["pixels", "width", "height"]
)
@pytest.mark.parametrize("fmt", [*OPAQUE_FORMATS, "pam"])
def test_limits_hold_exactly_in_every_format(fmt, name, value):
    data = pam(photo()) if fmt == "pam" else encode(RGB, fmt)
    assert decode(data, **{name: value}).shape == (48, 64, 3)
    with pytest.raises(LimitError, match=f"64x48 pixels exceeds {name}={value - 1}"):
        decode(data, **{name: value - 1})


def test_nvjpeg_without_the_library_names_it(monkeypatch):
    monkeypatch.setattr("ctypes.util.find_library", lambda name: None)
    with pytest.raises(OpError, match="libnvjpeg"):
        decode(encode(RGB, "JPEG"), backend="nvjpeg")
