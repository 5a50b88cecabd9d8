"""Size, channel count and orientation of an encoded image from its header alone: nothing is decoded.

Formats are told by their first bytes, never by a file name. Layouts: JPEG ITU-T T.81 B.2, PNG (W3C, third edition) 5.6 and 11,
WebP RFC 9649, TIFF 6.0 section 2, GIF89a 18, BITMAPINFOHEADER, Netpbm manual pages, ISO/IEC 23008-12 (`ispe`) for AVIF,
ISO/IEC 15444-1 annex A.5.1 and I.5.3.1 for JPEG 2000, the QOI specification.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from ...engine.errors import OpError
from ..raw import as_view


@dataclass(slots=True)
class Header:
    """What the first bytes say.

    Attributes:
        height, width: pixels as stored, before any orientation.
        format: "jpeg", "png", "webp", "gif", "bmp", "tiff", "pnm", "avif", "jpeg2000", "qoi", "ico" or "tga".
        channels: samples per pixel as stored, 0 when not known.
        orientation: what TIFF tag 274 says where it costs nothing (TIFF), else 1.
        exif: the TIFF-structured Exif block, where one was found.
        plain: 8-bit colour or gray without transparency, palette or animation (PNG and WebP): any library decodes
            it to the same pixels.
        maxval, payload: binary PNM with two-byte samples in colour, and PAM: the largest sample, and where samples begin.
    """

    height: int
    width: int
    format: str
    channels: int = 0
    orientation: int = 1
    exif: memoryview | None = None
    plain: bool = False
    maxval: int = 0
    payload: int = 0


_SOF = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})
_BARE = frozenset({0x01, *range(0xD0, 0xD9)})


def image_size(data: Any) -> tuple[int, int, str]:
    """Height, width (as stored) and format name of an encoded image.

    Raises:
        OpError: no data, unknown format, or a header cut short.
    """
    header = read_header(data)
    return header.height, header.width, header.format


def read_header(data: Any) -> Header:
    """Parse the header of an encoded image.

    Raises:
        OpError: no data, unknown format, or a header cut short.
    """
    view = as_view(data)
    head = bytes(view[:16])
    if not head:
        raise OpError("no image: the data is empty (0 bytes)")
    try:
        header = _dispatch(view, head)
    except (struct.error, IndexError, ValueError, OverflowError) as error:
        if isinstance(error, OpError):
            raise
        raise OpError(f"image header is truncated or damaged: {len(view)} bytes, starting with {head!r}") from error
    if header.height < 1 or header.width < 1:
        raise OpError(f"{header.format} header says {header.width}x{header.height} pixels")
    return header


def _dispatch(view: memoryview, head: bytes) -> Header:
    if head[:3] == b"\xff\xd8\xff":
        return _jpeg(view)
    if head[:8] == b"\x89PNG\r\n\x1a\n":
        return _png(view)
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return _webp(view)
    if head[:6] in (b"GIF87a", b"GIF89a"):
        width, height = struct.unpack_from("<HH", view, 6)
        return Header(height, width, "gif", 1)
    if head[:2] == b"BM":
        return _bmp(view)
    if head[:4] in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"):
        return _tiff(view)
    if head[:1] == b"P" and head[1:2] in b"123456" and head[2:3].isspace():
        return _pnm(view)
    if head[:3] == b"P7\n":
        return _pam(view)
    if head[4:8] == b"ftyp":
        return _avif(view)
    if head[:4] == b"\xff\x4f\xff\x51" or head[4:8] == b"jP  ":
        return _jpeg2000(view)
    if head[:4] == b"qoif":
        width, height = struct.unpack_from(">II", view, 4)
        return Header(height, width, "qoi", view[12])
    if head[:4] == b"\0\0\1\0":
        return _ico(view)
    return _tga(view, head)


def _jpeg(view: memoryview) -> Header:
    found: Header | None = None
    exif: memoryview | None = None
    pos, end = 2, len(view)
    while pos + 1 < end:
        if view[pos] != 0xFF:
            # Stray bytes between segments: decoders skip them, a bounded search does so too.
            pos = _next_marker(view, pos)
            continue
        marker = view[pos + 1]
        if marker == 0xFF:
            pos += 1
            continue
        if marker in _BARE or marker == 0:
            pos += 2
            continue
        if marker in (0xD9, 0xDA) or pos + 4 > end:
            break
        if marker in _SOF:
            height, width, channels = struct.unpack_from(">HHB", view, pos + 5)
            found = Header(height, width, "jpeg", channels)
        size = (view[pos + 2] << 8) | view[pos + 3]
        if marker == 0xE1 and exif is None and bytes(view[pos + 4 : pos + 10]) == b"Exif\0\0":
            exif = view[pos + 10 : pos + 2 + size]
        pos += 2 + max(size, 2)
    if found is None:
        raise OpError(f"JPEG has no frame header in its {end} bytes")
    found.exif = exif
    return found


def _next_marker(view: memoryview, pos: int) -> int:
    chunk = bytes(view[pos : pos + 65536])
    step = chunk.find(b"\xff")
    if step < 0:
        raise OpError("JPEG has no marker within 64 KB of stray bytes")
    return pos + step


_PNG_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}


def _png(view: memoryview) -> Header:
    if bytes(view[12:16]) != b"IHDR":
        raise OpError("PNG does not begin with an IHDR chunk")
    width, height, depth, color = struct.unpack_from(">IIBB", view, 16)
    header = Header(height, width, "png", _PNG_CHANNELS.get(color, 0))
    plain = depth == 8 and color in (0, 2)
    pos, end = 8, len(view)
    finished = False
    while pos + 8 <= end:
        size = int.from_bytes(view[pos : pos + 4], "big")
        name = bytes(view[pos + 4 : pos + 8])
        if name == b"eXIf":
            header.exif = view[pos + 8 : pos + 8 + size]
        elif name == b"IEND":
            finished = pos + 12 <= end
            break
        elif name in (b"tRNS", b"acTL", b"gAMA", b"sBIT"):
            plain = False
        pos += 12 + size
    header.plain = plain and finished
    return header


def png_is_whole(data: Any) -> bool:
    """Whether a PNG has pixels, and every chunk up to its end lies inside the data.

    OpenCV reads on where they do not, and takes memory for whatever a chunk behind the end claims.
    """
    view = as_view(data)
    pos, end, pixels = 8, len(view), False
    while pos + 12 <= end:
        kind = bytes(view[pos + 4 : pos + 8])
        if kind == b"IEND":
            return pixels
        pixels = pixels or kind == b"IDAT"
        pos += 12 + int.from_bytes(view[pos : pos + 4], "big")
    return False


def _webp(view: memoryview) -> Header:
    kind = bytes(view[12:16])
    whole = len(view) >= 8 + int.from_bytes(view[4:8], "little")
    if kind == b"VP8 ":
        width, height = struct.unpack_from("<HH", view, 26)
        return Header(height & 0x3FFF, width & 0x3FFF, "webp", 3, plain=whole)
    if kind == b"VP8L":
        (bits,) = struct.unpack_from("<I", view, 21)
        alpha = bits >> 28 & 1
        return Header((bits >> 14 & 0x3FFF) + 1, (bits & 0x3FFF) + 1, "webp", 3 + alpha, plain=whole and not alpha)
    if kind != b"VP8X":
        raise OpError(f"WebP begins with an unknown chunk {kind!r}")
    flags = view[20]
    width = 1 + int.from_bytes(view[24:27], "little")
    height = 1 + int.from_bytes(view[27:30], "little")
    header = Header(height, width, "webp", 4 if flags & 0x10 else 3, plain=whole and not flags & 0x12)
    if flags & 0x08:
        pos, end = 30, len(view)
        while pos + 8 <= end:
            size = int.from_bytes(view[pos + 4 : pos + 8], "little")
            if bytes(view[pos : pos + 4]) == b"EXIF":
                header.exif = view[pos + 8 : pos + 8 + size]
                break
            pos += 8 + size + (size & 1)
    return header


def _bmp(view: memoryview) -> Header:
    if int.from_bytes(view[14:18], "little") == 12:
        width, height = struct.unpack_from("<HH", view, 18)
    else:
        width, height = struct.unpack_from("<ii", view, 18)
    return Header(abs(height), abs(width), "bmp", 3)


_TIFF_FORMATS = {1: "B", 3: "H", 4: "I", 16: "Q"}


def _tiff(view: memoryview) -> Header:
    order = "<" if view[0] == 0x49 else ">"
    big = 43 in (view[2], view[3])
    offset = struct.unpack_from(order + ("Q" if big else "I"), view, 8 if big else 4)[0]
    count = struct.unpack_from(order + ("Q" if big else "H"), view, offset)[0]
    entry, start, inner = (20, offset + 8, 12) if big else (12, offset + 2, 8)
    found: dict[int, int] = {}
    for i in range(min(count, 4096)):
        tag, kind = struct.unpack_from(order + "HH", view, start + i * entry)
        if tag in (256, 257, 274, 277) and kind in _TIFF_FORMATS:
            found[tag] = struct.unpack_from(order + _TIFF_FORMATS[kind], view, start + i * entry + inner)[0]
    if 256 not in found or 257 not in found:
        raise OpError("TIFF directory holds no image size")
    return Header(found[257], found[256], "tiff", found.get(277, 1), orientation=found.get(274, 1))


def _pnm(view: memoryview) -> Header:
    head = bytes(view[:4096])
    kind = head[1:2]
    wanted = 2 if kind in b"14" else 3  # bitmaps tell no largest sample
    fields: list[int] = []
    pos = 2
    while len(fields) < wanted:
        while head[pos : pos + 1].isspace():
            pos += 1
        if head[pos : pos + 1] == b"#":
            pos = head.index(b"\n", pos) + 1
            continue
        end = pos
        while head[end : end + 1].isdigit():
            end += 1
        fields.append(int(head[pos:end]))
        pos = end
    if wanted == 3 and not 1 <= fields[2] <= 65535:
        raise OpError(f"PNM with samples up to {str(fields[2])[:20]}; 1 to 65535 is what the format has")
    header = Header(fields[1], fields[0], "pnm", 3 if kind in b"36" else 1)
    if kind == b"6" and fields[2] > 255:
        header.maxval, header.payload = fields[2], pos + 1
    return header


def _pam(view: memoryview) -> Header:
    head = bytes(view[:4096])
    lines, end, _ = head.partition(b"ENDHDR\n")
    if not end:
        raise OpError("PAM header has no end within 4 KB")
    fields = dict(line.split(None, 1) for line in lines.splitlines()[1:] if line.strip() and not line.startswith(b"#"))
    try:
        width, height, depth, maxval = (int(fields[name]) for name in (b"WIDTH", b"HEIGHT", b"DEPTH", b"MAXVAL"))
    except KeyError as error:
        raise OpError(f"PAM header lacks {error.args[0].decode()}") from None
    if not 1 <= depth <= 4 or not 1 <= maxval <= 65535:
        raise OpError(f"PAM with {depth} samples per pixel up to {maxval}; 1 to 4 up to 65535 are decoded")
    return Header(height, width, "pnm", depth, maxval=maxval, payload=len(lines) + len(end))


def _avif(view: memoryview) -> Header:
    brands = bytes(view[8 : min(int.from_bytes(view[:4], "big"), 256)])
    if b"avif" not in brands and b"avis" not in brands:
        raise OpError(f"unsupported ISO media file with brand {brands[:4]!r}; AVIF is read")
    head = bytes(view[: 1 << 16])
    # A grid holds an `ispe` for its tiles and one for the whole, which is the largest.
    sizes, pos = [], head.find(b"ispe")
    while pos >= 0:
        width, height = struct.unpack_from(">II", head, pos + 8)
        sizes.append((height, width))
        pos = head.find(b"ispe", pos + 4)
    if not sizes:
        raise OpError("AVIF header holds no image size")
    height, width = max(sizes, key=lambda s: s[0] * s[1])
    return Header(height, width, "avif", 3)


def _jpeg2000(view: memoryview) -> Header:
    if view[0] == 0xFF:
        x1, y1, x0, y0 = struct.unpack_from(">IIII", view, 8)
        return Header(y1 - y0, x1 - x0, "jpeg2000", struct.unpack_from(">H", view, 40)[0])
    head = bytes(view[:4096])
    pos = head.find(b"ihdr")
    if pos < 0:
        raise OpError("JPEG 2000 file holds no image header box")
    height, width, channels = struct.unpack_from(">IIH", head, pos + 4)
    return Header(height, width, "jpeg2000", channels)


def _ico(view: memoryview) -> Header:
    # The picture with the most pixels is the one that gets decoded; a stored 0 means 256.
    entries = range(6, 6 + 16 * int.from_bytes(view[4:6], "little"), 16)
    height, width = max(((view[at + 1] or 256, view[at] or 256) for at in entries), key=lambda s: s[0] * s[1])
    return Header(height, width, "ico", 4)


def _tga(view: memoryview, head: bytes) -> Header:
    # TGA has no magic number: every field of its header must make sense.
    if len(view) >= 18:
        mapped, kind = view[1], view[2]
        depth, flags = view[16], view[17]
        if (
            (mapped, kind) in {(1, 1), (1, 9), (0, 2), (0, 10), (0, 3), (0, 11)}
            and depth in (8, 16, 24, 32)
            and flags & 0xC0 == 0
        ):
            width, height = struct.unpack_from("<HH", view, 12)
            return Header(height, width, "tga", depth // 8)
    raise OpError(f"unknown image format: {len(view)} bytes, starting with {head!r}")
