"""Archives and streams that are made to do harm: what they may take and what they get is bounded, and they are told."""

from __future__ import annotations

import gzip
import io
import os
import shutil
import struct
import subprocess
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import dataio
from dataio.io.errors import DecodedTooLargeError, ResponseTooLargeError
from dataio.io.reader import Reader

from .test_overlays import METHODS, tar, zipped

MIB = 1 << 20
GIB = 1 << 30
TEXT = b"the same again and again " * 1000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "hostile"


def archive(path: Path, data: bytes) -> Reader:
    path.write_bytes(data)
    return dataio.reader(str(path))


# --------------------------------------------------------------------------- bombs


def gzip_bomb(size: int) -> bytes:
    """Zeros in one member, from blocks that are alike: without packing all of them."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    first = packer.compress(bytes(MIB)) + packer.flush(zlib.Z_FULL_FLUSH)
    again = packer.compress(bytes(MIB)) + packer.flush(zlib.Z_FULL_FLUSH)
    return first + again * (size // MIB - 1)


def members_bomb(size: int) -> bytes:
    return gzip.compress(bytes(MIB)) * (size // MIB)


def zstd_bomb(size: int) -> bytes:
    return pa.compress(bytes(16 * MIB), "zstd", asbytes=True) * (size // (16 * MIB))


def zip_bomb(size: int) -> bytes:
    """An entry that claims one byte and holds `size`."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    first = packer.compress(bytes(MIB)) + packer.flush(zlib.Z_FULL_FLUSH)
    again = packer.compress(bytes(MIB)) + packer.flush(zlib.Z_FULL_FLUSH)
    return one_entry(first + again * (size // MIB - 1), size=1)


def one_entry(packed: bytes, *, size: int, method: int = 8, name: bytes = b"a", flags: int = 0, crc: int = 0, claimed: int | None = None) -> bytes:
    """A zip of one entry, with whatever is said of it."""
    claimed = len(packed) if claimed is None else claimed
    local = struct.pack("<4s5H3I2H", b"PK\3\4", 20, flags, method, 0, 0, crc, claimed, size, len(name), 0) + name
    central = struct.pack("<4s6H3I5H2I", b"PK\1\2", 20, 20, flags, method, 0, 0, crc, claimed, size, len(name), 0, 0, 0, 0, 0, 0) + name
    start = len(local) + len(packed)
    return local + packed + central + struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 1, 1, len(central), start, 0)


BOMBS: list[tuple[str, Callable[[int], bytes], str]] = [
    ("gzip", gzip_bomb, "gunzip(max_output_bytes=LIMIT)"),
    ("members", members_bomb, "gunzip(max_output_bytes=LIMIT)"),
    ("zstd", zstd_bomb, "zstd_decode(max_output_bytes=LIMIT)"),
    ("zip", zip_bomb, "zip_entry('a', max_output_bytes=LIMIT)"),
    ("tar in gzip", lambda size: gzip_bomb(size), "gunzip(max_output_bytes=LIMIT).tar_entry('a')"),
]


@pytest.mark.parametrize(("make", "over"), [bomb[1:] for bomb in BOMBS], ids=[bomb[0] for bomb in BOMBS])
def test_four_gigabytes_from_four_megabytes_stop_early(path: Path, make: Callable[[int], bytes], over: str) -> None:
    """Read in a process of its own, whose memory says whether it stopped."""
    path.write_bytes(make(4 * GIB))
    assert path.stat().st_size < 8 * MIB
    code = f"""
import resource, sys, dataio
made = dataio.reader(sys.argv[1]).{over.replace("LIMIT", str(8 * MIB))}
dataio.reader(sys.argv[2]).gunzip().read_all(), dataio.reader(sys.argv[3]).zstd_decode().read_all()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    made.read_all()
except ValueError as error:
    print(type(error).__name__, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""
    warm = [path.with_suffix(".gz"), path.with_suffix(".zst")]
    warm[0].write_bytes(gzip.compress(b"x"))
    warm[1].write_bytes(pa.compress(b"x", "zstd", asbytes=True))
    done = subprocess.run([sys.executable, "-c", code, path, *warm], capture_output=True, text=True, timeout=120, check=True)
    _, grown = done.stdout.split()
    assert int(grown) < 64


def test_a_bomb_in_a_bomb_stops_at_the_first_limit(path: Path) -> None:
    made = archive(path, gzip.compress(members_bomb(GIB)))
    with pytest.raises(DecodedTooLargeError, match="max_output_bytes"):
        made.gunzip().gunzip(max_output_bytes=MIB).read_all()
    with pytest.raises(DecodedTooLargeError, match=f"{1000:,} bytes"):
        made.gunzip(max_output_bytes=1000).gunzip().read_all()


def test_the_memory_that_a_zstd_frame_asks_for_is_bounded(path: Path) -> None:
    """One says that it needs a window of 2 GiB, the other of 1 KiB; both hold four bytes as they are."""
    frame = b"\x28\xb5\x2f\xfd\0%c\x21\0\0data"
    assert archive(path, frame % 0).zstd_decode().read_all() == b"data"
    with pytest.raises(ValueError, match="memory"):
        archive(path, frame % (21 << 3)).zstd_decode().read_all()


def test_a_part_of_a_bomb_is_decoded_no_further_than_it_reaches(path: Path) -> None:
    made = archive(path, gzip_bomb(4 * GIB)).gunzip()
    assert made.read_range(MIB, 5, fallback=True) == bytes(5)
    with made.open() as file:
        assert file.read(5) == bytes(5)


@pytest.mark.parametrize("size", [1, 1000, len(TEXT) - 1, len(TEXT) + 1, (1 << 32) - 2])
@pytest.mark.parametrize("method", [8, 0])
def test_an_entry_that_is_not_as_large_as_it_is_said_to_be(path: Path, size: int, method: int) -> None:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = TEXT if method == 0 else packer.compress(TEXT) + packer.flush()
    with pytest.raises(ValueError, match="damaged"):
        archive(path, one_entry(packed, size=size, method=method, crc=zlib.crc32(TEXT[:size]))).zip_entry("a").read_all()


# --------------------------------------------------------------------------- zip: what it says of itself


def test_an_encrypted_entry_is_told(path: Path) -> None:
    for flags in (0x1, 0x41):
        with pytest.raises(ValueError, match="encrypted"):
            archive(path, one_entry(b"x", size=1, method=0, flags=flags)).zip_entry("a").read_all()


@pytest.mark.parametrize(("method", "what"), [(9, "Deflate64"), (93, "zstd"), (99, "AES"), (1234, "method 1234")])
def test_an_entry_that_cannot_be_read_spoils_no_other(path: Path, method: int, what: str) -> None:
    data = bytearray(zipped({"good": TEXT, "bad": TEXT, "also good": b"1"}))
    for signature, at in ((b"PK\3\4", 8), (b"PK\1\2", 10)):
        begin = data.index(b"bad", data.index(b"PK\1\2") if signature == b"PK\1\2" else 0)
        header = data.rindex(signature, 0, begin)
        data[header + at : header + at + 2] = method.to_bytes(2, "little")
    made = archive(path, bytes(data))
    with pytest.raises(ValueError, match=f"'bad'.*{what}"):
        made.zip_entry("bad").read_all()
    assert made.zip_entry("good").read_all() == TEXT
    assert made.zip_entry("also good").read_all() == b"1"


@pytest.mark.parametrize("method", METHODS)
def test_a_wrong_checksum_is_told(path: Path, method: int) -> None:
    data = bytearray(zipped({"a": TEXT, "b": b"other"}, method))
    at = data.index(b"PK\1\2") + 16
    data[at] ^= 1
    made = archive(path, bytes(data))
    with pytest.raises(ValueError, match="checksum"):
        made.zip_entry("a").read_all()
    with pytest.raises(ValueError, match="checksum"):
        list(made.zip_entry("a").chunks())
    assert made.zip_entry("b").read_all() == b"other"


def test_entries_that_overlap_are_told(path: Path) -> None:
    """One stretch of the file in many entries is how the largest zip bombs are made."""
    data = bytearray(zipped({"a": TEXT, "b": TEXT, "c": b"1"}, zipfile.ZIP_STORED))
    first = data.index(b"PK\1\2")
    longer = len(TEXT) + 100
    data[first + 20 : first + 28] = struct.pack("<2I", longer, longer)
    made = archive(path, bytes(data))
    with pytest.raises(ValueError, match="reach into what follows"):
        made.zip_entry("a").read_all()
    assert made.zip_entry("b").read_all() == TEXT


def test_entries_at_one_place_are_told(path: Path) -> None:
    data = bytearray(zipped({"a": TEXT, "b": TEXT}, zipfile.ZIP_STORED))
    second = data.index(b"PK\1\2", data.index(b"PK\1\2") + 4)
    data[second + 42 : second + 46] = bytes(4)
    made = archive(path, bytes(data))
    with pytest.raises(ValueError, match="names another file"):
        made.zip_entry("b").read_all()


def test_a_local_header_that_says_otherwise_is_told(path: Path) -> None:
    for at, match in ((8, "otherwise"), (30, "another file"), (0, "no header")):
        data = bytearray(zipped({"a": TEXT}))
        data[at] ^= 1
        with pytest.raises(ValueError, match=match):
            archive(path, bytes(data)).zip_entry("a").read_all()


def test_an_entry_behind_the_end_of_the_file_is_told(path: Path) -> None:
    data = bytearray(zipped({"a": TEXT}))
    first = data.index(b"PK\1\2")
    data[first + 42 : first + 46] = struct.pack("<I", 0x7FFFFFFF)
    with pytest.raises(ValueError, match="hostile"):
        archive(path, bytes(data)).zip_entry("a").read_all()


def test_a_name_twice_in_a_zip_is_told(path: Path) -> None:
    data = zipped({"a": b"1", "b": b"2", "c": b"3"})
    found = archive(path, data.replace(b"c", b"a"))
    with pytest.raises(ValueError, match="'a' twice"):
        found.zip_entry("a").read_all()
    assert found.zip_entry("b").read_all() == b"2"


def test_a_directory_over_the_limits_is_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = archive(path, zipped({f"entry {at}": b"" for at in range(100)}))
    monkeypatch.setenv("DATAIO_ZIP_MAX_ENTRIES", "99")
    with pytest.raises(ValueError, match="100 entries; DATAIO_ZIP_MAX_ENTRIES is 99"):
        made.zip_entry("entry 5").read_all()
    monkeypatch.setenv("DATAIO_ZIP_MAX_ENTRIES", "100")
    monkeypatch.setenv("DATAIO_ZIP_CENTRAL_DIRECTORY_MAX_BYTES", "1000")
    with pytest.raises(ValueError, match="DATAIO_ZIP_CENTRAL_DIRECTORY_MAX_BYTES is 1,000"):
        made.zip_entry("entry 5").read_all()
    monkeypatch.undo()
    assert made.zip_entry("entry 5").read_all() == b""


def test_a_directory_that_claims_more_than_there_is_allocates_nothing(path: Path) -> None:
    data = bytearray(zipped({"a": TEXT}))
    data[-10:-6] = struct.pack("<I", 0xFFFFFFF0)
    with pytest.raises(ValueError, match="hostile"):
        archive(path, bytes(data)).zip_entry("a").read_all()


def test_the_memory_that_an_lzma_entry_asks_for_is_bounded(path: Path) -> None:
    """Its header claims a dictionary of 4 GiB."""
    packed = struct.pack("<2BHB I", 9, 4, 5, 0x5D, 0xFFFFFFFF) + bytes(100)
    with pytest.raises(ValueError, match="damaged"):
        archive(path, one_entry(packed, size=1000, method=14)).zip_entry("a").read_all()


@pytest.mark.parametrize("name", [b"../../etc/passwd", b"/etc/passwd", b"C:\\x", b"a\\..\\b", "ü".encode("cp437"), b"."])
def test_names_of_a_zip_are_only_names(path: Path, tmp_path: Path, name: bytes) -> None:
    """Nothing is written by them: what they name is their bytes."""
    made = archive(path, one_entry(b"text", size=4, method=0, name=name, crc=zlib.crc32(b"text")))
    assert made.zip_entry(name.decode("cp437")).read_all() == b"text"
    assert os.listdir(tmp_path) == ["hostile"]


# --------------------------------------------------------------------------- tar


def test_an_archive_without_its_end_is_told(path: Path) -> None:
    data = tar({"a": TEXT, "b": b"x" * 700})
    whole = len(data.rstrip(b"\0"))
    for end in [512, 600, 1024, 512 + len(TEXT), (whole + 511) // 512 * 512]:
        for made in (archive(path, data[:end]), archive(path, gzip.compress(data[:end])).gunzip()):
            with pytest.raises(ValueError, match="cut off"):
                made.tar_entry("a").read_all()


def test_a_name_twice_in_a_tar_is_told(path: Path) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as made:
        for data in (b"1", b"2"):
            info = tarfile.TarInfo("a")
            info.size = 1
            made.addfile(info, io.BytesIO(data))
    for found in (archive(path, out.getvalue()), archive(path.with_suffix(".gz"), gzip.compress(out.getvalue())).gunzip()):
        with pytest.raises(ValueError, match="'a' twice"):
            found.tar_entry("a").read_all()


@pytest.mark.parametrize("at", [0, 124, 148, 156])
def test_a_damaged_header_is_told(path: Path, at: int) -> None:
    data = bytearray(tar({"a": TEXT, "b": b"1"}, tarfile.USTAR_FORMAT))
    data[at] ^= 0x2
    with pytest.raises(ValueError, match="hostile"):
        archive(path, bytes(data)).tar_entry("b").read_all()


@pytest.mark.parametrize("size", [b"77777777777\0", b"\x80" + b"\xff" * 11, b"\xff" * 12, b"\x80" + bytes(3) + b"\x7f" + b"\xff" * 7])
def test_a_size_that_is_not_there_allocates_nothing(path: Path, size: bytes) -> None:
    header = bytearray(tar({"a": b""}, tarfile.USTAR_FORMAT)[:512])
    header[124:136] = size
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    data = bytes(header) + bytes(1024)
    for made in (archive(path, data), archive(path.with_suffix(".gz"), gzip.compress(data)).gunzip()):
        with pytest.raises((ValueError, ResponseTooLargeError), match="hostile"):
            made.tar_entry("a").read_all()


def test_a_long_extended_header_is_not_read(path: Path) -> None:
    data = tar({"n" * (2 << 20): b"1"}, tarfile.GNU_FORMAT)
    with pytest.raises(ValueError, match="extended header"):
        archive(path, data).tar_entry_at(0).read_all()


@pytest.mark.skipif(shutil.which("tar") is None, reason="no tar program")
@pytest.mark.parametrize("format", ["gnu", "posix"])
def test_a_file_with_holes_is_refused(tmp_path: Path, path: Path, format: str) -> None:
    with open(tmp_path / "holes", "wb") as file:
        file.seek(10 * MIB)
        file.write(b"end")
    (tmp_path / "plain").write_bytes(b"text")
    command = ["tar", f"--format={format}", "--sparse", "-cf", str(path), "-C", str(tmp_path), "holes", "plain"]
    subprocess.run(command, check=True, timeout=60)
    made = dataio.reader(str(path))
    with pytest.raises(ValueError, match="sparse"):
        made.tar_entry("holes").read_all()
    assert made.tar_entry("plain").read_all() == b"text"


def test_other_bytes_than_an_archive_take_no_time(path: Path) -> None:
    """Long runs of what looks like the beginning of something."""
    for data in (b"PK\1\2" * 100_000, b"PK\5\6" * 100_000, b"\x1f\x8b" * 100_000, b"ustar\0" * 100_000):
        made: Any = archive(path, data)
        for over in (made.gunzip(), made.zstd_decode(), made.zip_entry("a"), made.tar_entry("a")):
            with pytest.raises(ValueError, match="hostile"):
                over.read_all()
