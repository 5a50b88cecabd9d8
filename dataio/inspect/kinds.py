"""What kind of data a file holds: by its first bytes, and by its name only where these do not tell."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from ..engine.source import RangeReader
from ..formats.inputs import name_of, open_ranges
from ..io.uri import parse_uri

HEAD = 512
"""Bytes that are looked at: a header of a tar, which has its name at byte 257."""
SUFFIXES = {
    "tar": "tar", "tgz": "tar", "tbz2": "tar", "txz": "tar", "tar.gz": "tar", "tar.bz2": "tar", "tar.xz": "tar", "tar.zst": "tar",
    "parquet": "parquet", "pq": "parquet",
    "feather": "arrow", "arrow": "arrow", "ipc": "arrow",
    "tfrecord": "tfrecord", "tfrecords": "tfrecord", "tfrec": "tfrecord", "tfrecord.gz": "tfrecord", "tfrecords.gz": "tfrecord",
    "safetensors": "safetensors", "safetensors.index.json": "safetensors_index",
    "h5": "hdf5", "hdf5": "hdf5", "hdf": "hdf5", "he5": "hdf5",
    "npy": "npy", "npz": "npz", "zip": "zip",
    "jpg": "image", "jpeg": "image", "jpe": "image", "jfif": "image", "png": "image", "webp": "image", "gif": "image", "bmp": "image",
    "tif": "image", "tiff": "image", "ppm": "image", "pgm": "image", "pbm": "image", "pnm": "image", "pam": "image", "avif": "image",
    "jp2": "image", "j2k": "image", "jpx": "image", "qoi": "image", "ico": "image", "tga": "image",
}  # fmt: skip
"""Kinds by suffix, in lower case; the longest that fits counts."""
IMAGES = {
    "jpg": "jpeg", "jpeg": "jpeg", "jpe": "jpeg", "jfif": "jpeg", "tif": "tiff", "jp2": "jpeg2000", "j2k": "jpeg2000",
    "jpx": "jpeg2000", "ppm": "pnm", "pgm": "pnm", "pbm": "pnm", "pam": "pnm",
}  # fmt: skip
"""Formats of images, as `formats.image.header` calls them, by suffixes that are called otherwise."""
SOUNDS = frozenset({"wav", "flac", "ogg", "oga", "opus", "mp3", "aif", "aiff", "aifc", "au", "snd", "caf", "w64"})
"""Suffixes of sound files, which are looked at and not checked."""
_CODECS = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\0": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
_MAGIC = {
    b"PAR1": "parquet", b"PARE": "parquet", b"\x89HDF\r\n\x1a\n": "hdf5", b"\x93NUMPY": "npy", b"ARROW1\0\0": "arrow",
    b"\xff\xd8\xff": "image", b"\x89PNG\r\n\x1a\n": "image", b"GIF87a": "image", b"GIF89a": "image", b"II*\0": "image", b"MM\0*": "image",
    b"II+\0": "image", b"MM\0+": "image", b"qoif": "image", b"\xff\x4f\xff\x51": "image", b"\0\0\0\x0cjP  ": "image",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Kind:
    """What a file was found to be.

    Attributes:
        name: "tar", "parquet", "arrow", "tfrecord", "safetensors", "safetensors_index", "hdf5", "npy", "npz", "zip" or "image";
            "" when neither content nor name tells.
        codec: "gzip", "bzip2", "xz" or "zstd" around a tar or TFRecord file, else "".
        by_content: whether the first bytes told.
        by_name: what the name says, "" when it says nothing.
    """

    name: str
    codec: str = ""
    by_content: bool = False
    by_name: str = ""


def kind_of(name: str, head: bytes | memoryview) -> Kind:
    """The kind of a file.

    Args:
        name: path, URI or member name; only its suffix counts.
        head: the first `HEAD` bytes, or all where there are fewer.
    """
    head = bytes(head[:HEAD])
    named = kind_by_name(name)
    codec = next((codec for magic, codec in _CODECS.items() if head.startswith(magic)), "")
    if codec:
        return Kind(named if named in ("tar", "tfrecord") else "", codec, False, named)
    found = kind_by_content(head)
    if found == "zip" and named == "npz":
        found = "npz"
    if not found and named == "image" and _is_netpbm(head):
        found = "image"
    return Kind(found or named, "", bool(found), named)


def kind_by_name(name: str) -> str:
    """What the suffix says, "" when it says nothing."""
    base = name.partition("?")[0].partition("#")[0] if "://" in name else name
    parts = base.rpartition("/")[2].lower().split(".")
    for begin in range(max(1, len(parts) - 3), len(parts)):
        if (kind := SUFFIXES.get(".".join(parts[begin:]))) is not None:
            return kind
    return ""


def kind_by_content(head: bytes) -> str:
    """What the first bytes say, "" when they say nothing."""
    for magic, kind in _MAGIC.items():
        if head.startswith(magic):
            return kind
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "image"
    if head[4:8] == b"ftyp" and (b"avif" in head[8:64] or b"avis" in head[8:64]):
        return "image"
    if head[:2] == b"BM" and len(head) >= 18 and int.from_bytes(head[14:18], "little") in (12, 40, 52, 56, 64, 108, 124):
        return "image"
    if head[:4] in (b"PK\x03\x04", b"PK\x05\x06"):
        return "zip"
    if head[257:262] == b"ustar":
        return "tar"
    if len(head) >= 12 and _is_tfrecord(head):
        return "tfrecord"
    if head[8:9] == b"{" and 2 <= int.from_bytes(head[:8], "little") <= 100_000_000 and head[9:10] in b'"} \n\r\t':
        return "safetensors"
    return ""


def is_sound(name: str, head: bytes | memoryview) -> bool:
    """Whether a file holds sound: by its first bytes, or by its name where these are of no other kind."""
    start = bytes(head[:12])
    if start[:4] in (b"fLaC", b"OggS", b".snd", b"caff", b"riff") or start[:3] == b"ID3":
        return True
    if (start[:4] == b"RIFF" and start[8:] == b"WAVE") or (start[:4] == b"FORM" and start[8:] in (b"AIFF", b"AIFC")):
        return True
    return suffix_of(name) in SOUNDS and not kind_by_content(bytes(head))


def suffix_of(name: str) -> str:
    """What follows the last dot, in lower case."""
    return name.rpartition("/")[2].rpartition(".")[2].lower()


def _is_netpbm(head: bytes) -> bool:
    return head[:1] == b"P" and head[1:2] in b"1234567" and head[2:3].isspace()


def _is_tfrecord(head: bytes) -> bool:
    """Whether the masked CRC-32C of the first length holds: a chance of 1 in 2**32 for anything else."""
    from ..formats.tfrecord.framing import length_crc, unpack_header

    length, crc = unpack_header(head)
    return bool(length_crc(length) == crc)


@dataclass(frozen=True, slots=True)
class Target:
    """One file that is looked at.

    Attributes:
        uri: path or URI.
        name: the same for messages.
        size: bytes.
        kind: what it is.
    """

    uri: str
    name: str
    size: int
    kind: Kind

    def open(self) -> RangeReader:
        """For reading in parts; close it."""
        return open_ranges(self.uri)


def target_of(uri: str | os.PathLike[str]) -> Target:
    """Look at the first bytes of a file.

    Raises:
        OSError: missing or unreadable.
    """
    name = os.fsdecode(os.fspath(uri))
    parse_uri(name)
    ranges: Any = open_ranges(name)
    try:
        head = bytes(ranges.read(0, min(HEAD, ranges.size)))
        return Target(name, name_of(name), ranges.size, kind_of(name, head))
    finally:
        ranges.close()
