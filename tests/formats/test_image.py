"""The image decoder: formats, modes, orientation, limits, damaged data."""

from __future__ import annotations

import io
import struct
import zlib

import cv2
import numpy as np
import pytest
import simplejpeg
from PIL import Image

from dataio.engine.errors import LimitError, OpError
from dataio.engine.schema import TensorType
from dataio.formats.image.decode import decode_image
from dataio.formats.image.header import image_size, read_header

from .helpers import decoder, encode, max_difference, ops_registered_by, photo, run

HWC = {"normalize": "none", "layout": "hwc"}


def decode(data, **arguments):
    return run(decoder("image", **{**HWC, **arguments}), data)


def test_the_only_op_of_this_module_is_image():
    assert ops_registered_by("image.decode") == {"image"}


LOSSLESS = [
    pytest.param("PNG", {}, id="png"),
    pytest.param("WEBP", {"lossless": True, "exact": True}, id="webp"),
    pytest.param("BMP", {}, id="bmp"),
    pytest.param("TIFF", {}, id="tiff"),
    pytest.param("TIFF", {"compression": "tiff_lzw"}, id="tiff-lzw"),
    pytest.param("PPM", {}, id="pnm"),
    pytest.param("JPEG2000", {"irreversible": False}, id="jp2"),
    pytest.param("JPEG2000", {"irreversible": False, "no_jp2": True}, id="j2k"),
    pytest.param("QOI", {}, id="qoi"),
    pytest.param("TGA", {}, id="tga"),
]


@pytest.mark.parametrize(("fmt", "options"), LOSSLESS)
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, "array"])
def test_lossless_formats_give_the_pixels_back(fmt, options, kind):
    image = photo()
    data = encode(image, fmt, **options)
    data = np.frombuffer(data, np.uint8) if kind == "array" else kind(data)
    np.testing.assert_array_equal(decode(data), image)
    assert image_size(data)[:2] == image.shape[:2]


@pytest.mark.parametrize("fmt", ["JPEG", "WEBP", "AVIF", "GIF", "ICO"])
def test_other_formats_equal_pillow(fmt):
    picture = Image.fromarray(photo()).convert("RGBA") if fmt == "ICO" else Image.fromarray(photo())
    data = encode(picture, fmt)
    expected = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    assert max_difference(decode(data), expected) <= (4 if fmt == "JPEG" else 0)
    assert image_size(data)[:2] == expected.shape[:2]


MODES = ["L", "LA", "RGB", "RGBA", "1", "P"]


def in_mode(mode):
    rgba = np.concatenate([photo(), photo(c=1, seed=1)], axis=2)
    picture = Image.fromarray(rgba)
    return picture.convert("RGB").convert(mode) if mode in ("1", "P") else picture.convert(mode)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("wanted", "pillow"), [("rgb", "RGB"), ("rgba", "RGBA"), ("gray", "L")], ids=["rgb", "rgba", "gray"]
)
def test_png_of_every_kind_in_every_mode(mode, wanted, pillow):
    picture = in_mode(mode)
    expected = np.asarray(picture.convert(pillow)).reshape(*picture.size[::-1], -1)
    if mode == "P" and wanted == "gray":
        expected = np.asarray(picture.convert("RGB").convert("L"))[:, :, None]
    np.testing.assert_array_equal(decode(encode(picture, "PNG"), mode=wanted), expected)


@pytest.mark.parametrize("fmt", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("mode", ["rgb", "rgba", "gray"])
def test_every_library_follows_one_rule(fmt, mode, monkeypatch):
    from dataio.formats.image import decode as module

    data = encode(photo(), fmt)
    fast = decode(data, mode=mode)
    monkeypatch.setattr(module, "_simplejpeg", lambda *_: None)
    monkeypatch.setattr(module, "_opencv", lambda *_: None)
    assert max_difference(fast, decode(data, mode=mode)) <= (4 if fmt == "JPEG" else 0)


def test_gray_is_bt601_with_pillows_integers():
    image = photo()
    r, g, b = image.astype(np.uint32).transpose(2, 0, 1)
    expected = (19595 * r + 38470 * g + 7471 * b + 32768) >> 16
    np.testing.assert_array_equal(decode(encode(image, "PNG"), mode="gray")[:, :, 0], expected)


def test_jpeg_gray_is_its_y_channel():
    data = encode(photo(), "JPEG")
    expected = simplejpeg.decode_jpeg(data, "GRAY")
    np.testing.assert_array_equal(decode(data, mode="luma"), expected)


@pytest.mark.parametrize("mode", ["rgb", "rgba", "gray"])
def test_gray_jpeg(mode):
    data = encode(photo(c=1), "JPEG")
    assert decode(data, mode=mode).shape == (48, 64, {"rgb": 3, "rgba": 4, "gray": 1}[mode])


def test_cmyk_jpeg_is_converted_by_pillow():
    data = encode(Image.fromarray(photo()).convert("CMYK"), "JPEG")
    expected = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    np.testing.assert_array_equal(decode(data), expected)


def test_progressive_jpeg():
    data = encode(photo(), "JPEG", progressive=True)
    assert max_difference(decode(data), np.asarray(Image.open(io.BytesIO(data)))) <= 4


@pytest.mark.parametrize("channels", [1, 3])
def test_16_bit_gives_the_high_byte(channels):
    wide = np.random.default_rng(0).integers(0, 65536, (9, 11, channels), np.uint16)
    data = cv2.imencode(".png", wide[:, :, ::-1])[1].tobytes()
    np.testing.assert_array_equal(decode(data, mode="gray" if channels == 1 else "rgb"), wide >> 8)


def test_float_tiff_is_refused():
    with pytest.raises(OpError, match="mode F"):
        decode(encode(Image.fromarray(np.zeros((4, 4), np.float32)), "TIFF"))


def transparent_palette():
    picture = in_mode("P")
    return encode(picture, "PNG", transparency=bytes(range(256)))


@pytest.mark.parametrize("data", [transparent_palette(), encode(in_mode("LA"), "PNG"), encode(in_mode("RGBA"), "PNG")])
def test_fill_color_composites_as_pillows_paste(data):
    over = Image.open(io.BytesIO(data)).convert("RGBA")
    expected = Image.new("RGB", over.size, (10, 200, 30))
    expected.paste(over, mask=over.getchannel("A"))
    np.testing.assert_array_equal(decode(data, fill_color=(10, 200, 30)), np.asarray(expected))


def test_fill_color_leaves_opaque_images_alone():
    data = encode(photo(), "PNG")
    np.testing.assert_array_equal(decode(data, fill_color=(1, 2, 3)), decode(data))


@pytest.mark.filterwarnings("error")
def test_alpha_is_dropped_with_colours_as_stored():
    picture = in_mode("RGBA")
    np.testing.assert_array_equal(decode(encode(picture, "PNG")), np.asarray(picture)[:, :, :3])
    decode(transparent_palette())  # without a warning


def test_palette_transparency_is_honoured_in_rgba():
    data = transparent_palette()
    expected = np.asarray(Image.open(io.BytesIO(data)).convert("RGBA"))
    np.testing.assert_array_equal(decode(data, mode="rgba"), expected)


@pytest.mark.parametrize("fmt", ["JPEG", "PNG"])
def test_allow_alpha_always_gives_4_channels(fmt):
    found = decode(encode(photo(), fmt), allow_alpha=True)
    assert found.shape == (48, 64, 4)
    assert (found[:, :, 3] == 255).all()


@pytest.mark.parametrize("fmt", ["GIF", "WEBP", "PNG"])
def test_animations_give_their_first_frame(fmt):
    frames = [Image.fromarray(photo(seed=s)) for s in range(3)]
    data = encode(frames[0], fmt, save_all=True, append_images=frames[1:], lossless=True)
    picture = Image.open(io.BytesIO(data))
    np.testing.assert_array_equal(decode(data), np.asarray(picture.convert("RGB")))


def oriented(fmt, code):
    exif = Image.Exif()
    exif[274] = code
    options = {"lossless": True} if fmt == "WEBP" else {"quality": 98, "subsampling": 0} if fmt == "JPEG" else {}
    return encode(photo(), fmt, exif=exif.tobytes(), **options)


UPRIGHT = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.transpose(1, 0, 2),
    6: lambda a: np.rot90(a, -1),
    7: lambda a: a[::-1, ::-1].transpose(1, 0, 2),
    8: lambda a: np.rot90(a),
}


@pytest.mark.parametrize("mode", ["rgb", "gray"])
@pytest.mark.parametrize("fmt", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("code", range(1, 9))
def test_exif_orientation(fmt, code, mode):
    call, stored = decoder("image", **HWC, mode=mode), decode(oriented(fmt, 1), mode=mode)
    data = oriented(fmt, code)
    found = run(call, data)
    np.testing.assert_array_equal(found, UPRIGHT[code](stored))
    np.testing.assert_array_equal(decode(data, mode=mode, orient=False), stored)
    assert found.flags.c_contiguous
    assert call.spec.kernels["original_hw"](data, found, **call.arguments) == found.shape[:2]


def test_orientation_with_reduced_scale():
    exif = Image.Exif()
    exif[274] = 6
    data = encode(photo(300, 400), "JPEG", exif=exif.tobytes())
    call = decoder("image", **HWC, dct_scale=True, shrink_to=("resize", 200, 150))
    found = run(call, data)
    assert found.shape == (200, 150, 3)
    assert call.spec.kernels["original_hw"](data, found, **call.arguments) == (400, 300)


@pytest.mark.filterwarnings("ignore")
def test_damaged_exif_is_ignored():
    data = encode(photo(), "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\xff" + b"\xff" * 20)
    assert decode(data).shape == (48, 64, 3)


@pytest.mark.parametrize(
    ("normalize", "scale", "bias"), [("unit", 1 / 255, 0.0), ("symmetric", 2 / 255, -1.0)], ids=["unit", "symmetric"]
)
@pytest.mark.parametrize("layout", ["chw", "hwc"])
def test_normalize_and_layout(normalize, scale, bias, layout):
    data = encode(photo(), "PNG")
    plain = decode(data).astype(np.float32) * np.float32(scale) + np.float32(bias)
    found = run(decoder("image", normalize=normalize, layout=layout), data)
    np.testing.assert_array_equal(found, plain.transpose(2, 0, 1) if layout == "chw" else plain)


@pytest.mark.parametrize("mode", ["rgb", "rgba", "gray"])
@pytest.mark.parametrize("normalize", ["none", "unit"])
@pytest.mark.parametrize("layout", ["chw", "hwc"])
def test_inferred_type(mode, normalize, layout):
    call = decoder("image", mode=mode, normalize=normalize, layout=layout)
    found = run(call, encode(photo(), "JPEG"))
    inferred = call.spec.output_type(TensorType(), call.arguments)
    assert inferred.dtype == found.dtype.name
    assert inferred.layout == layout.upper()
    assert all(i in (None, n) for i, n in zip(inferred.shape, found.shape, strict=True))
    assert found.flags.c_contiguous
    assert found.flags.owndata or found.base.flags.owndata


def png_header(width, height):
    body = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + body + struct.pack(">I", zlib.crc32(body))


@pytest.mark.parametrize(
    ("limits", "match"),
    [
        ({}, "max_pixels"),
        ({"max_pixels": 0}, "max_decoded_bytes"),
        ({"max_pixels": 0, "max_width": 59999}, "max_width"),
        ({"max_pixels": 0, "max_height": 59999}, "max_height"),
    ],
)
def test_limits_are_read_from_the_header(limits, match):
    with pytest.raises(LimitError, match=f"60000x60000.*{match}"):
        decode(png_header(60000, 60000), **limits)


def test_a_limit_counts_the_bytes_of_the_result():
    data = encode(photo(), "JPEG")
    assert decode(data, max_decoded_bytes=48 * 64 * 3).size == 48 * 64 * 3
    with pytest.raises(LimitError, match="max_decoded_bytes"):
        run(decoder("image", max_decoded_bytes=48 * 64 * 3), data)


@pytest.mark.filterwarnings("error")
def test_pillows_process_wide_limit_does_not_matter(monkeypatch):
    data, tiff = encode(photo(), "BMP"), encode(photo(), "TIFF")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    assert decode(data).shape == (48, 64, 3)
    with pytest.raises(LimitError, match="MAX_IMAGE_PIXELS"):
        decode(tiff)


def test_two_frame_headers_do_not_pass_the_limits():
    frame = b"\xff\xc0\x00\x11\x08\x00\x08\x00\x08\x03\x01\x11\x00\x02\x11\x00\x03\x11\x00"
    scan = JPEG.index(b"\xff\xda")
    with pytest.raises(OpError):
        decode(JPEG[:scan] + frame + JPEG[scan:], max_pixels=100)


@pytest.mark.filterwarnings("ignore")
def test_a_picture_larger_than_its_header_is_refused():
    data = encode(Image.fromarray(photo()).convert("RGBA"), "ICO", sizes=[(48, 36)])
    with pytest.raises(LimitError, match="48x36 pixels announced 8x8"):
        decode(data[:6] + b"\x08\x08" + data[8:])


@pytest.mark.parametrize("name", ["max_pixels", "max_decoded_bytes", "max_width", "max_height"])
def test_0_is_no_limit(name):
    assert decode(encode(photo(), "JPEG"), **{name: 0}).shape == (48, 64, 3)


JPEG, PNG = encode(photo(200, 300), "JPEG"), encode(photo(200, 300), "PNG")
BAD = [
    pytest.param(b"", "empty", id="no-bytes"),
    pytest.param(b"\xff", "unknown image format", id="one-byte"),
    pytest.param(b"hello, I am text in a file called photo.jpg\n" * 4, "unknown image format", id="text"),
    pytest.param(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "unknown image format", id="postscript"),
    pytest.param(bytes(1000), "unknown image format", id="zeros"),
    pytest.param(JPEG[:-45], "truncated JPEG", id="jpeg-minus-45"),
    pytest.param(JPEG[: len(JPEG) // 2], "truncated JPEG", id="jpeg-half"),
    pytest.param(JPEG[:20], "no frame header", id="jpeg-20"),
    pytest.param(b"\xff\xd8\xff" + b"A" * 100000, "stray bytes", id="jpeg-noise"),
    pytest.param(PNG[: len(PNG) // 2], "truncated png", id="png-half"),
    pytest.param(PNG[:20], "header is truncated", id="png-20"),
    pytest.param(png_header(10, 10), "png", id="png-header-only"),
    pytest.param(png_header(0, 10), "0x10 pixels", id="png-no-columns"),
    pytest.param(encode(photo(), "WEBP")[:-100], "truncated webp", id="webp"),
    pytest.param(encode(photo(), "TIFF")[:-100], "", id="tiff"),
    pytest.param(encode(photo(), "BMP")[:-100], "truncated bmp", id="bmp"),
    pytest.param(encode(photo(), "GIF")[:100], "gif", id="gif"),
    pytest.param(b"P6 12", "truncated", id="pnm"),
    pytest.param(encode(photo(), "AVIF")[:-100], "avif", id="avif"),
]


@pytest.mark.filterwarnings("ignore")  # Pillow also warns about damaged metadata
@pytest.mark.parametrize(("data", "match"), BAD)
def test_bad_data_is_an_op_error(data, match):
    with pytest.raises(OpError, match=match):
        decode(data)


@pytest.mark.parametrize("value", [["a"], 3, "text", np.zeros((2, 3))[:, ::2]])
def test_what_is_no_bytes_is_an_op_error(value):
    with pytest.raises(OpError):
        decode(value)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("fmt", ["JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP", "PPM", "AVIF", "JPEG2000", "TGA", "QOI"])
def test_damage_anywhere_raises_only_op_errors(fmt):
    good = encode(photo(24, 24), fmt)
    rng = np.random.default_rng(0)
    for _ in range(40):
        bad = bytearray(good[: rng.integers(1, len(good) + 1)])
        for at in rng.integers(0, len(bad), 3):
            bad[at] = rng.integers(0, 256)
        try:
            decode(bytes(bad), max_pixels=10**6)
        except OpError:
            pass


@pytest.mark.parametrize("marker", [b"\xff\xdb", b"\xff\xda", b"\xff\xd9"], ids=["tables", "scan", "end"])
def test_jpeg_with_stray_bytes_that_every_decoder_accepts(marker):
    whole = encode(photo(200, 300), "JPEG", progressive=True)
    at = whole.rindex(marker)
    data = whole[:at] + b"\0\0\0\0" + whole[at:]
    with pytest.raises(ValueError, match="extraneous"):
        simplejpeg.decode_jpeg(data)
    assert max_difference(decode(data), decode(whole)) <= 4


def test_the_result_owns_its_memory():
    data = bytearray(encode(photo(), "BMP"))
    found = decode(data)
    kept = found.copy()
    data[:] = bytes(len(data))
    np.testing.assert_array_equal(found, kept)
    assert found.flags.writeable


def test_nvjpeg_names_the_missing_library(monkeypatch):
    import ctypes.util

    monkeypatch.setattr(ctypes.util, "find_library", lambda name: None)
    with pytest.raises(OpError, match="libnvjpeg"):
        decode(JPEG, backend="nvjpeg")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"mode": "RGB"}, ValueError),
        ({"mode": ["rgb"]}, TypeError),
        ({"allow_alpha": True, "mode": "gray"}, ValueError),
        ({"fill_color": (1, 2, 3), "mode": "rgba"}, ValueError),
        ({"fill_color": (1, 2, 300)}, OverflowError),
        ({"fill_color": (1, 2)}, ValueError),
        ({"layout": "HWC"}, ValueError),
        ({"max_pixels": -1}, TypeError),
        ({"backend": "opencv"}, ValueError),
    ],
)
def test_bad_arguments_fail_at_construction(arguments, error):
    with pytest.raises(error):
        decoder("image", **arguments)


def test_slot_method_has_its_own_defaults():
    call = decode_image(mode="RGBA")
    assert str(call) == "image(mode=rgba, normalize=none, layout=hwc)"


@pytest.mark.parametrize(
    ("fmt", "options", "name"),
    [("JPEG", {}, "jpeg"), ("WEBP", {"lossless": True}, "webp"), ("TIFF", {"big_tiff": True}, "tiff"), ("AVIF", {}, "avif")],
)
def test_image_size_names_the_format(fmt, options, name):
    assert image_size(encode(photo(), fmt, **options)) == (48, 64, name)


def test_header_knows_what_is_plain():
    assert read_header(encode(photo(), "PNG")).plain
    assert not read_header(encode(in_mode("P"), "PNG")).plain
    assert not read_header(encode(photo(), "PNG")[:-3]).plain
