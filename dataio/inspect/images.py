"""Image files.

Codes: `undecodable`, `truncated`, `too_large` (more pixels than decoders take unless told), `wrong_extension` (errors but for the
last, a warning); `exif_rotated` and `mixed_channels` (info, over all images).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..engine.errors import LimitError, OpError
from ..formats.image.decode import image
from ..formats.image.exif import orientation
from ..formats.image.header import Header, read_header
from ..formats.inputs import read_bytes
from . import report
from .kinds import IMAGES, Target
from .report import Findings

FIRST = 1 << 16
"""Bytes in which most headers end."""
LARGEST = 1 << 30
"""Bytes of an encoded image that is decoded."""
MAX_PIXELS = 134217728
_CHANNELS = {1: "gray", 2: "gray and alpha", 3: "colour", 4: "colour and alpha or four inks"}
_ENDS = {"jpeg": b"\xff\xd9", "png": b"IEND\xae\x42\x60\x82", "gif": b"\x3b"}


def check(target: Target, found: Findings, quick: bool) -> tuple[int, Any]:
    """Header, and unless `quick` the pixels."""
    header: Header | None
    if quick or target.size > LARGEST:
        try:
            header = header_of(target)
        except OpError as error:
            found.error("undecodable", str(error))
            return 1, None
        if header.height * header.width > MAX_PIXELS or target.size > LARGEST:
            found.error("too_large", f"{header.width} x {header.height} pixels in {target.size:,} bytes")
    else:
        header = check_image(read_bytes(target.uri), found, None)
    if header is None:
        return 1, None
    check_name(header, target.name, found, None)
    return 1, header


def check_image(data: Any, found: Findings, record: str | int | None) -> Header | None:
    """Decode an image; its header, None where it cannot be decoded."""
    try:
        header = read_header(data)
        image(data, mode="rgb", normalize="none", layout="hwc")
    except LimitError as error:
        found.error("too_large", str(error), record)
        return None
    except OpError as error:
        found.error("truncated" if _cut_off(data) else "undecodable", str(error), record)
        return None
    return header


def check_name(header: Header, name: str, found: Findings, record: str | int | None) -> None:
    """Hold the suffix against the content."""
    suffix = name.rpartition("/")[2].rpartition(".")[2].lower()
    claimed = IMAGES.get(suffix, suffix)
    if claimed != header.format and claimed in {*IMAGES.values(), "png", "webp", "gif", "bmp", "avif", "qoi", "ico", "tga", "pnm"}:
        found.warning("wrong_extension", f"the name says {suffix}, the content is {header.format}", record)


def header_of(target: Target) -> Header:
    """The header, from as few bytes as it takes.

    Raises:
        OpError: no image, or damaged.
    """
    ranges = target.open()
    try:
        length = FIRST
        while True:
            data = ranges.read(0, min(length, ranges.size))
            try:
                return read_header(data)
            except OpError:
                if length >= ranges.size or length >= 1 << 24:
                    raise
            length *= 16  # a long Exif block or colour profile comes first
    finally:
        ranges.close()


def _cut_off(data: Any) -> bool:
    """Whether a file lacks the mark that its format ends with."""
    view = memoryview(data).cast("B")
    head, tail = bytes(view[:12]), bytes(view[-64:])
    if head[:3] == b"\xff\xd8\xff":
        return _ENDS["jpeg"] not in tail
    if head[:4] == b"\x89PNG":
        return _ENDS["png"] not in tail
    if head[:4] == b"RIFF":
        return len(view) < int.from_bytes(head[4:8], "little") + 8
    return head[:3] == b"GIF" and not tail.endswith(_ENDS["gif"])


class Together(report.Together):
    """Formats, sizes, channels and orientations of many images."""

    def __init__(self) -> None:
        self.count = 0
        self.formats: Counter[str] = Counter()
        self.channels: Counter[int] = Counter()
        self.rotated = 0
        self.aspects: Counter[str] = Counter()
        self.sizes: Counter[str] = Counter()
        self.least = self.most = (0, 0)

    def add(self, target: Target, facts: Header) -> None:
        height, width = facts.height, facts.width
        self.count += 1
        self.formats[facts.format] += 1
        self.channels[facts.channels] += 1
        turned = orientation(facts)
        self.rotated += turned != 1
        if turned >= 5:
            height, width = width, height
        self.sizes[_size_class(min(height, width))] += 1
        self.aspects[_aspect_class(width / height)] += 1
        by_area = (height * width, height)
        if self.count == 1:
            self.least = self.most = (height, width)
        elif by_area < (self.least[0] * self.least[1], self.least[0]):
            self.least = (height, width)
        elif by_area > (self.most[0] * self.most[1], self.most[0]):
            self.most = (height, width)

    def finish(self, found: Findings) -> None:
        if self.rotated:
            found.info("exif_rotated", f"{self.rotated:,} of {self.count:,} images are stored turned (Exif orientation); decoders turn them upright")
        kinds = [(_CHANNELS.get(count, f"with {count} channels"), number) for count, number in self.channels.most_common() if count]
        if len(kinds) > 1:
            parts = ", ".join(f"{number:,} {kind}" for kind, number in kinds)
            found.info("mixed_channels", f"images of several kinds: {parts}")

    def stats(self) -> dict[str, Any]:
        """Counts; sizes are [height, width] upright, in pixels."""
        return {
            "images": self.count,
            "formats": dict(self.formats.most_common()),
            "channels": {str(count): number for count, number in sorted(self.channels.items())},
            "exif_rotated": self.rotated,
            "smallest": list(self.least),
            "largest": list(self.most),
            "short_side": dict(sorted(self.sizes.items(), key=lambda item: int(item[0].partition("-")[0]))),
            "aspect": dict(self.aspects.most_common()),
        }


def _size_class(side: int) -> str:
    """The octave of a side in pixels, such as "256-511"."""
    low = 1 << (side.bit_length() - 1)
    return f"{low}-{2 * low - 1}"


def _aspect_class(ratio: float) -> str:
    """Width by height: the nearest of the usual ones."""
    usual = {"1:1": 1.0, "4:3": 4 / 3, "3:4": 3 / 4, "3:2": 1.5, "2:3": 2 / 3, "16:9": 16 / 9, "9:16": 9 / 16, "2:1": 2.0, "1:2": 0.5}
    name = min(usual, key=lambda key: abs(np.log(usual[key] / ratio)))
    return name if abs(np.log(usual[name] / ratio)) < 0.05 else "other"


# ------------------------------------------------------------------------- what is inside


def schema(target: Target) -> dict[str, Any]:
    """Format, size and channels, from the header."""
    header = header_of(target)
    return {"format": header.format, "height": header.height, "width": header.width, "channels": header.channels, "orientation": orientation(header)}


def head(target: Target, count: int) -> Iterator[Any]:
    """The header."""
    yield schema(target)


def stats(target: Target) -> tuple[dict[str, Any] | None, Any]:
    """Nothing of one file alone: images are counted together."""
    return None, header_of(target)
