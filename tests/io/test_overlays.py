"""Overlays: compressed streams and entries of archives, in any order, whole, in parts and as files."""

from __future__ import annotations

import bz2
import gzip
import io
import itertools
import pickle
import random
import shutil
import subprocess
import tarfile
import threading
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dataio
from dataio.io import archives
from dataio.io.archives import forget_archives
from dataio.io.errors import DecodedTooLargeError, ResponseTooLargeError
from dataio.io.reader import Reader

from ..servers.misbehaving import Reply, misbehaving
from .contract import content
from .places import S3

TEXT = b"".join(b"line %d of a text that can be compressed\n" % at for at in range(20_000))


def zstd(data: bytes) -> bytes:
    packed: bytes = pa.compress(data, "zstd", asbytes=True)
    return packed


def tar(entries: dict[str, bytes], format: int = tarfile.PAX_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=format) as made:
        for name, data in entries.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            made.addfile(info, io.BytesIO(data))
    return out.getvalue()


def zipped(entries: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as made:
        for name, data in entries.items():
            made.writestr(zipfile.ZipInfo(name), data, method)
    return out.getvalue()


Write = Callable[[bytes], Reader]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """A reader of a new file with these bytes."""
    count = itertools.count()

    def made(data: bytes) -> Reader:
        path = tmp_path / f"packed{next(count)}"
        path.write_bytes(data)
        return dataio.reader(str(path))

    return made


def same(made: Reader, expected: bytes) -> None:
    """Every way of reading gives the same bytes."""
    assert made.read_all() == expected
    assert b"".join(map(bytes, made.chunks())) == expected
    for start, length in [(0, 10), (len(expected) // 2, 1000), (len(expected) - 3, 10), (len(expected), 5), (len(expected) + 9, 5)]:
        assert made.read_range(max(0, start), length, fallback=True) == expected[max(0, start) :][:length]
    out = bytearray(50)
    assert made.read_into(out, 7) == len(expected[7:57])
    assert bytes(out[: len(expected[7:57])]) == expected[7:57]
    with made.open() as file:
        assert file.seek(0, io.SEEK_END) == len(expected)
        file.seek(len(expected) // 3)
        assert file.read() == expected[len(expected) // 3 :]
        file.seek(0)
        assert file.read(100) == expected[:100]


# --------------------------------------------------------------------------- one overlay


@pytest.mark.parametrize("parts", [1, 2, 7])
@pytest.mark.parametrize(("pack", "over"), [(gzip.compress, Reader.gunzip), (zstd, Reader.zstd_decode)], ids=["gzip", "zstd"])
def test_all_members_are_decoded(write: Write, pack: Callable[[bytes], bytes], over: Callable[[Reader], Reader], parts: int) -> None:
    size = len(TEXT) // parts
    packed = b"".join(pack(TEXT[at : at + size]) for at in range(0, len(TEXT), size))
    same(over(write(packed)), TEXT)


@pytest.mark.parametrize("zeros", [1, 511, 1 << 20])
def test_zeros_behind_gzip_are_padding(write: Write, zeros: int) -> None:
    assert write(gzip.compress(b"data") + bytes(zeros)).gunzip().read_all() == b"data"
    assert write(gzip.compress(b"data") + bytes(zeros) + gzip.compress(b"more")).gunzip().read_all() == b"datamore"


def test_skippable_frames_of_zstd_are_skipped(write: Write) -> None:
    frame = b"\x50\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"12345"
    assert write(frame + zstd(b"data") + frame).zstd_decode().read_all() == b"data"


FORMATS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]
NAMES = {"a.txt": b"first", "folder/b.bin": content(100_000), "../up": b"3", "/root": b"4", "ü \n": b"5", "empty": b""}


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_entries_of_a_tar_by_name_and_by_number(write: Write, format: int, packed: bool) -> None:
    """Names that lead out of a folder are names like any other: nothing is written by them."""
    data = tar(NAMES, format)
    archive = write(gzip.compress(data)).gunzip() if packed else write(data)
    for number, (name, expected) in enumerate(NAMES.items()):
        same(archive.tar_entry(name), expected)
        assert archive.tar_entry_at(number).read_all() == expected


@pytest.mark.parametrize("format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("length", [99, 100, 101, 255, 5000])
def test_long_names_of_a_tar(write: Write, format: int, length: int) -> None:
    name = "n" * length
    assert write(tar({"before": b"1", name: b"2", "after": b"3"}, format)).tar_entry(name).read_all() == b"2"


@pytest.mark.parametrize("kind", [tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_folders_links_and_devices_are_no_entries(write: Write, kind: bytes) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as made:
        other = tarfile.TarInfo("other")
        other.type, other.linkname = kind, "/etc/passwd"
        made.addfile(other)
        file = tarfile.TarInfo("file")
        file.size = 3
        made.addfile(file, io.BytesIO(b"abc"))
    archive = write(out.getvalue())
    assert archive.tar_entry_at(0).read_all() == b"abc"
    for made_reader in (archive, write(gzip.compress(out.getvalue())).gunzip()):
        with pytest.raises(ValueError, match="no entry 'other'"):
            made_reader.tar_entry("other").read_all()


@pytest.mark.skipif(shutil.which("tar") is None, reason="no tar program")
@pytest.mark.parametrize("format", ["v7", "oldgnu", "gnu", "ustar", "posix"])
def test_what_the_tar_program_writes(tmp_path: Path, format: str) -> None:
    (tmp_path / "in" / "deep").mkdir(parents=True)
    (tmp_path / "in" / "deep" / "a.bin").write_bytes(content(5000))
    (tmp_path / "in" / "link").symlink_to("deep/a.bin")
    subprocess.run(["tar", f"--format={format}", "-cf", tmp_path / "a.tar", "-C", tmp_path, "in"], check=True, timeout=60)
    assert dataio.reader(f"{tmp_path}/a.tar").tar_entry("in/deep/a.bin").read_all() == content(5000)


METHODS = [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]


@pytest.mark.parametrize("method", METHODS)
def test_entries_of_a_zip(write: Write, method: int) -> None:
    entries = {**NAMES, "text": TEXT, "folder/": b""}
    archive = write(zipped(entries, method))
    for name, expected in entries.items():
        if not name.endswith("/"):
            same(archive.zip_entry(name), expected)
    with pytest.raises(ValueError, match="no entry 'folder/'"):
        archive.zip_entry("folder/").read_all()


@pytest.mark.parametrize("method", METHODS)
def test_a_zip_that_was_written_as_a_stream(write: Write, method: int) -> None:
    """Sizes stand behind the content then, and the local header has none."""

    class Forwards(io.RawIOBase):
        def __init__(self) -> None:
            self.out = io.BytesIO()

        def writable(self) -> bool:
            return True

        def write(self, data: Any) -> int:
            return self.out.write(data)

    out = Forwards()
    with zipfile.ZipFile(out, "w", method) as made:
        made.writestr("a", TEXT)
        made.writestr("b", b"more")
    same(write(out.out.getvalue()).zip_entry("a"), TEXT)


def test_a_zip_in_its_64_bit_form(write: Write) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as made, made.open("a", "w", force_zip64=True) as entry:
        entry.write(TEXT)
    same(write(out.getvalue()).zip_entry("a"), TEXT)


def test_a_zip_with_70000_entries_and_a_program_before_it(write: Write) -> None:
    """Counts over 65,535 are told by the 64-bit end of the directory; places count from where the zip begins."""
    entries = {f"{at}": b"%d" % at for at in range(70_000)}
    archive = write(b"#!/bin/sh\n" * 100 + zipped(entries, zipfile.ZIP_STORED))
    assert archive.zip_entry("69999").read_all() == b"69999"
    assert archive.zip_entry("0").read_all() == b"0"


def test_limits_hold_at_the_byte(write: Write) -> None:
    size = len(TEXT)
    for made, error in (
        (lambda limit: write(gzip.compress(TEXT)).gunzip(max_output_bytes=limit), DecodedTooLargeError),
        (lambda limit: write(zstd(TEXT)).zstd_decode(max_output_bytes=limit), DecodedTooLargeError),
        (lambda limit: write(tar({"a": TEXT})).tar_entry("a", max_output_bytes=limit), ResponseTooLargeError),
        (lambda limit: write(gzip.compress(tar({"a": TEXT}))).gunzip().tar_entry_at(0, max_output_bytes=limit), ResponseTooLargeError),
        (lambda limit: write(zipped({"a": TEXT})).zip_entry("a", max_output_bytes=limit), ResponseTooLargeError),
    ):
        assert made(size).read_all() == TEXT
        for read in (lambda r: r.read_all(), lambda r: list(r.chunks()), lambda r: r.open().read(), lambda r: r.read_range(0, size, fallback=True)):
            with pytest.raises(error, match=f"{size - 1:,}"):
                read(made(size - 1))


@pytest.mark.parametrize(("limit", "error"), [(-1, ValueError), (1.5, TypeError), (True, TypeError), ("1", TypeError)])
def test_limits_that_make_no_sense_are_told_at_once(write: Write, limit: Any, error: type[Exception]) -> None:
    for over in (Reader.gunzip, Reader.zstd_decode, lambda r, **o: r.tar_entry("a", **o), lambda r, **o: r.zip_entry("a", **o)):
        with pytest.raises(error):
            over(write(b""), max_output_bytes=limit)


@pytest.mark.parametrize(
    ("overlay", "entry", "error"),
    [("tar_entry_at", -1, ValueError), ("tar_entry_at", "a", TypeError), ("tar_entry", 0, TypeError), ("zip_entry", 3, TypeError)],
)
def test_names_and_numbers_that_make_no_sense(write: Write, overlay: str, entry: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        getattr(write(b""), overlay)(entry)


def test_a_missing_entry_names_one_that_is_alike(write: Write) -> None:
    with pytest.raises(ValueError, match=r"no entry 'lable.txt' \(did you mean 'label.txt'\?\); it has 1"):
        write(zipped({"label.txt": b""})).zip_entry("lable.txt").read_all()
    with pytest.raises(ValueError, match="no entry 1: it has 1"):
        write(tar({"a": b""})).tar_entry_at(1).read_all()


# --------------------------------------------------------------------------- chains


@dataclass(frozen=True)
class Layer:
    """How bytes are packed, and the overlay that unpacks them."""

    pack: Callable[[bytes], bytes]
    over: Callable[[Reader], Reader]


LAYERS = {
    "gzip": Layer(gzip.compress, Reader.gunzip),
    "zstd": Layer(zstd, Reader.zstd_decode),
    "tar": Layer(lambda data: tar({"x": b"other", "a": data, "z": b""}), lambda r: r.tar_entry("a")),
    "tar-at": Layer(lambda data: tar({"x": b"other", "a": data}), lambda r: r.tar_entry_at(1)),
    "zip": Layer(lambda data: zipped({"x": b"other", "a": data}), lambda r: r.zip_entry("a")),
    "zip-stored": Layer(lambda data: zipped({"a": data, "x": b""}, zipfile.ZIP_STORED), lambda r: r.zip_entry("a")),
}


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=3000), st.lists(st.sampled_from(sorted(LAYERS)), min_size=1, max_size=4), st.integers(0, 3100), st.integers(0, 3100))
def test_any_chain_of_overlays_gives_what_was_packed(write: Write, data: bytes, names: list[str], start: int, length: int) -> None:
    packed = data
    for name in names:
        packed = LAYERS[name].pack(packed)
    made = write(packed)
    for name in reversed(names):
        made = LAYERS[name].over(made)
    assert made.read_all() == data
    assert made.read_range(start, length, fallback=True) == data[start : start + length]
    assert pickle.loads(pickle.dumps(made)).open().read() == data
    assert made.capabilities()["ranges"] == ("fallback" if {"gzip", "zstd"} & set(names) else "native")


def test_a_chain_in_a_store(s3_server: Any, s3_bucket: str) -> None:
    place = S3(s3_server, s3_bucket)
    place.write("a.tar", tar({"in.zip": zipped({"text.gz": gzip.compress(TEXT)}), "big": content(3 << 20)}))
    made = dataio.reader(place.uri("a.tar"))
    assert made.tar_entry("in.zip").zip_entry("text.gz").gunzip().read_all() == TEXT
    assert made.tar_entry("big").read_range(2 << 20, 100) == content(3 << 20)[2 << 20 :][:100]
    with made.tar_entry("big").open() as file:
        file.seek(-10, io.SEEK_END)
        assert file.read() == content(3 << 20)[-10:]


def test_overlays_over_readers_of_python() -> None:
    taken = dataio.from_iterator([gzip.compress(b"first"), gzip.compress(b"second")]).gunzip()
    assert (taken.read_all(), taken.read_all()) == (b"first", b"second")
    (record,) = dataio.from_callable(lambda i: zipped({"a": TEXT}), length=1)
    same(record["reader"].zip_entry("a"), TEXT)


# --------------------------------------------------------------------------- requests


def entry_requests(body: bytes, etag: str | None) -> Any:
    headers = {} if etag is None else {"ETag": etag}
    return Reply(body=body, headers={**headers, "Accept-Ranges": "bytes"})


@pytest.mark.parametrize(("pack", "over"), [(tar, Reader.tar_entry), (zipped, Reader.zip_entry)], ids=["tar", "zip"])
def test_an_entry_of_a_known_archive_is_one_request(pack: Callable[..., bytes], over: Callable[..., Reader]) -> None:
    entries = {f"{at}": content(50_000, seed=at) for at in range(100)}
    with misbehaving() as server:
        uri = server.script("/a", entry_requests(pack(entries), '"v1"'))
        archive = dataio.reader(uri)
        assert over(archive, "50").read_all() == entries["50"]
        first = len(server.seen)
        for at in (0, 99, 51, 50):
            assert over(archive, f"{at}").read_all() == entries[f"{at}"]
        assert len(server.seen) - first == 4


def test_only_headers_are_fetched_of_a_large_tar() -> None:
    entries = {f"{at}": content(2 << 20, seed=at) for at in range(8)}
    with misbehaving() as server:
        made = dataio.reader(server.script("/a", entry_requests(tar(entries), '"v1"'))).tar_entry("7")
        assert made.read_range(1000, 10) == entries["7"][1000:1010]
        asked = [seen.headers["range"].removeprefix("bytes=").split("-") for seen in server.seen if "range" in seen.headers]
        assert sum(int(end) - int(begin) + 1 for begin, end in asked) < 9 * (1 << 18) + 10


@pytest.mark.parametrize(("pack", "over"), [(tar, Reader.tar_entry), (zipped, Reader.zip_entry)], ids=["tar", "zip"])
@pytest.mark.parametrize("etags", [('"v1"', '"v2"'), (None, None), ('W/"same"', 'W/"same"')], ids=["etag", "none", "weak"])
def test_an_archive_that_was_replaced_is_read_anew(pack: Callable[..., bytes], over: Callable[..., Reader], etags: Any) -> None:
    before = {"x": content(9000), "a": content(5000, seed=1)}
    after = {"a": content(7000, seed=2), "x": b"", "y": b"1"}
    with misbehaving() as server:
        uri = server.script("/a", entry_requests(pack(before), etags[0]))
        made = over(dataio.reader(uri), "a")
        assert made.read_all() == before["a"]
        server.script("/a", entry_requests(pack(after), etags[1]))
        assert made.read_all() == after["a"]
        assert made.read_range(10, 5) == after["a"][10:15]


def test_a_local_archive_that_was_replaced_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    made = dataio.reader(str(path)).tar_entry("a")
    for data in ({"a": b"1"}, {"b": b"xxx", "a": b"2"}, {"a": b"3"}):
        path.write_bytes(tar(data))
        assert made.read_all() == data["a"]


def test_threads_read_the_directory_of_an_archive_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = {f"{at}": b"%d" % at for at in range(200)}
    (tmp_path / "a.tar").write_bytes(tar(entries))
    forget_archives()
    walked: list[str] = []
    real = archives._walked
    gate = threading.Barrier(8)
    monkeypatch.setattr(archives, "_walked", lambda ranges, name: walked.append(name) or real(ranges, name))
    archive = dataio.reader(f"{tmp_path}/a.tar")

    def read(worker: int) -> list[bytes]:
        gate.wait(30)
        return [archive.tar_entry(f"{at}").read_all() for at in range(worker, 200, 8)]

    with ThreadPoolExecutor(8) as pool:
        parts = list(pool.map(read, range(8)))
    assert sorted(itertools.chain(*parts)) == sorted(entries.values())
    assert len(walked) == 1


def test_no_more_directories_are_kept_than_the_setting_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATAIO_ARCHIVE_INDEX_CACHE_MAX_ENTRIES", "3")
    forget_archives()
    for at in range(10):
        (tmp_path / f"{at}.zip").write_bytes(zipped({"a": content(100_000)}))
        dataio.reader(f"{tmp_path}/{at}.zip").zip_entry("a").read_all()
    assert len(archives._indexes._kept) == 3


# --------------------------------------------------------------------------- damage


def damaged(data: bytes, seed: int) -> bytes:
    """One byte is another, one run is missing, or the end is."""
    chance = random.Random(seed)
    at = chance.randrange(len(data))
    kind = seed % 3
    if kind == 0:
        return data[:at] + bytes([data[at] ^ chance.randrange(1, 256)]) + data[at + 1 :]
    return data[:at] + (data[at + chance.randrange(1, 20) :] if kind == 1 else b"")


@pytest.mark.parametrize("name", sorted(LAYERS))
def test_whatever_is_damaged_is_told_or_read_right(write: Write, name: str) -> None:
    """No other exception than ValueError, and never other bytes where the format has a checksum of the content."""
    layer, data = LAYERS[name], content(3000)
    packed = layer.pack(data)
    for seed in range(300):
        made = layer.over(write(damaged(packed, seed)))
        try:
            found = made.read_all()
        except ValueError:
            continue
        if not name.startswith("tar") and name != "zstd":  # frames of Arrow have no checksum
            assert found == data, seed


@pytest.mark.parametrize("pack", [gzip.compress, zstd], ids=["gzip", "zstd"])
def test_a_stream_that_is_cut_off_anywhere_is_told(write: Write, pack: Callable[[bytes], bytes]) -> None:
    packed = pack(content(200))
    over = Reader.gunzip if pack is gzip.compress else Reader.zstd_decode
    for end in range(len(packed)):
        with pytest.raises(ValueError, match="packed"):
            over(write(packed[:end])).read_all()


@pytest.mark.parametrize("garbage", [b"x", b"\0x", b"garbage" * 100, gzip.compress(b"more", mtime=0)[:-1]])
def test_garbage_behind_a_stream_is_told(write: Write, garbage: bytes) -> None:
    with pytest.raises(ValueError, match="gzip stream"):
        write(gzip.compress(b"data") + garbage).gunzip().read_all()
    with pytest.raises(ValueError, match="zstd stream"):
        write(zstd(b"data") + garbage).zstd_decode().read_all()


@pytest.mark.parametrize("data", [b"", b"plain text", b"PK\5\6", bz2.compress(b"x"), bytes(600)])
def test_what_is_of_another_kind(write: Write, data: bytes) -> None:
    for over in (Reader.gunzip, Reader.zstd_decode, lambda r: r.zip_entry("a"), lambda r: r.tar_entry("a")):
        with pytest.raises(ValueError, match="packed"):
            over(write(data)).read_all()


def test_the_error_of_a_store_under_a_decoder_is_the_stores_own(tmp_path: Path) -> None:
    for over in (Reader.gunzip, Reader.zstd_decode, lambda r: r.zip_entry("a"), lambda r: r.tar_entry("a")):
        with pytest.raises(FileNotFoundError, match="none"):
            over(dataio.reader(f"{tmp_path}/none")).read_all()
