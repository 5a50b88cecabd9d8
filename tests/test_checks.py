"""`dataio.check`: each check finds a file that is really damaged, and passes healthy ones."""

from __future__ import annotations

import gzip
import io
import json
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from pyarrow import feather
from safetensors.numpy import save_file

import dataio
from dataio.inspect.kinds import kind_of

from .conftest import encoded, npy

pytestmark = pytest.mark.usefixtures("no_leftovers")
JPEG, PNG = encoded(), encoded(format="PNG")


def tar(members: list[tuple[str, bytes]], links: tuple[str, ...] = ()) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, data in members:
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
        for name in links:
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, "/etc/passwd"
            archive.addfile(entry)
    return out.getvalue()


def samples(count: int = 4) -> list[tuple[str, bytes]]:
    return [(f"{i:04d}.{suffix}", data) for i in range(count) for suffix, data in (("jpg", JPEG), ("json", b"{}"))]


def parquet(table: pa.Table | None = None, **options: Any) -> bytes:
    out = io.BytesIO()
    table = pa.table({"a": range(1000), "text": [f"row {i}" for i in range(1000)]}) if table is None else table
    pq.write_table(table, out, **options)
    return out.getvalue()


def crc(data: bytes) -> bytes:
    import google_crc32c

    value = google_crc32c.value(data)
    return struct.pack("<I", (((value >> 15) | (value << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def tfrecord(payloads: list[bytes]) -> bytes:
    return b"".join((length := struct.pack("<Q", len(p))) + crc(length) + p + crc(p) for p in payloads)


EXAMPLE = bytes.fromhex("0a0d0a0b0a01611206 1a040a020102".replace(" ", ""))
"""tf.train.Example with feature a = int64 [1, 2]."""


def safetensors(header: dict[str, Any], payload: bytes) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + payload


def tensor(begin: int, end: int) -> dict[str, Any]:
    return {"dtype": "U8", "shape": [end - begin], "data_offsets": [begin, end]}


def npz() -> bytes:
    out = io.BytesIO()
    np.savez(out, a=np.arange(100), b=np.ones(3))
    return out.getvalue()


def hdf5(fill: Callable[[h5py.File], object]) -> bytes:
    out = io.BytesIO()
    with h5py.File(out, "w") as file:
        fill(file)
    return out.getvalue()


def arrow() -> bytes:
    out = io.BytesIO()
    feather.write_feather(pa.table({"a": range(1000)}), out, compression="lz4")
    return out.getvalue()


def flipped(data: bytes, at: int, count: int = 1) -> bytes:
    at %= len(data)
    return data[:at] + bytes(b ^ 0xFF for b in data[at : at + count]) + data[at + count :]


def chunked(file: h5py.File) -> None:
    file.create_dataset("x", data=np.arange(1000), chunks=(100,), compression="gzip")
    file["group/y"] = np.ones(1000)
    file["alias"] = h5py.SoftLink("/group/y")


def unknown_filter(file: h5py.File) -> None:
    plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plan.set_chunk((4,))
    plan.set_filter(32123, h5py.h5z.FLAG_OPTIONAL, ())
    space = h5py.h5s.create_simple((8,))
    h5py.h5d.create(file.id, b"odd", h5py.h5t.NATIVE_INT32, space, plan)


def external(file: h5py.File) -> None:
    file["x"] = np.ones(3)
    file["out"] = h5py.ExternalLink("/etc/other.h5", "/x")


def broken_chunk() -> bytes:
    data = hdf5(lambda file: file.create_dataset("x", data=np.arange(5000), chunks=(5000,), compression="gzip", fletcher32=True))
    with h5py.File(io.BytesIO(data)) as file:
        where = file["x"].id.get_chunk_info(0)
    return flipped(data, where.byte_offset + where.size // 2, 8)


HEALTHY = {
    "shard.tar": tar(samples()),
    "shard.tar.gz": gzip.compress(tar(samples())),
    "table.parquet": parquet(row_group_size=300),
    "checked.parquet": parquet(write_page_checksum=True),
    "table.feather": arrow(),
    "records.tfrecord": tfrecord([EXAMPLE] * 5),
    "bytes.tfrecord": tfrecord([b"", b"anything"]),
    "records.tfrecord.gz": gzip.compress(tfrecord([EXAMPLE] * 5)),
    "model.safetensors": safetensors({"a": tensor(0, 3), "b": tensor(3, 8)}, bytes(8)),
    "data.h5": hdf5(chunked),
    "array.npy": npy(np.arange(10)),
    "arrays.npz": npz(),
    "picture.jpg": JPEG,
    "picture.png": PNG,
    "picture.webp": encoded(format="WEBP"),
}


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_files_pass(tmp_path: Path, name: str, quick: bool) -> None:
    path = tmp_path / name
    path.write_bytes(HEALTHY[name])
    report = dataio.check(path, quick=quick)
    assert (report.findings, report.ok, report.files) == ((), True, 1)
    assert report.bytes == len(HEALTHY[name])


_zip = HEALTHY["arrays.npz"]
DAMAGED = [  # name, content, severity, code, record
    ("interleaved.tar", tar([("a.jpg", JPEG), ("b.jpg", JPEG), ("a.json", b"{}")]), "error", "interleaved_key", "a.json"),
    ("duplicate.tar", tar([("a.jpg", JPEG), ("a.jpg", JPEG)]), "error", "duplicate_member", "a.jpg"),
    ("missing.tar", tar([m for m in samples() if m[0] != "0002.json"]), "warning", "missing_member", "0002"),
    ("link.tar", tar(samples(), ("0000.txt",)), "warning", "not_a_file", "0000.txt"),
    ("cut.tar", tar(samples())[:5000], "error", "truncated", None),
    ("cut.tar.gz", gzip.compress(tar(samples()))[:-40], "error", "truncated", None),
    ("header.tar", flipped(tar(samples()), 2560), "error", "damaged", None),
    ("names.tar", tar([("\udcff.jpg", JPEG)]), "warning", "not_utf8", "\\udcff.jpg"),
    ("no-key.tar", tar([*samples(), ("README", b"x")]), "warning", "no_key", "README"),
    ("image.tar", tar([("a.jpg", JPEG[:200])]), "error", "truncated", "a.jpg"),
    ("json.tar", tar([("a.json", b"{")]), "error", "undecodable", "a.json"),
    ("array.tar", tar([("a.npy", npy(np.arange(10))[:-1])]), "error", "undecodable", "a.npy"),
    ("hollow.tar", tar([("a.jpg", b"")]), "error", "empty", "a.jpg"),
    ("cut.parquet", parquet()[:-100], "error", "truncated", None),
    ("footer.parquet", flipped(parquet(), -60, 40), "error", "damaged", None),
    ("page.parquet", flipped(parquet(), 60, 100), "error", "damaged_column", "a"),
    ("checksum.parquet", flipped(parquet(compression="none", use_dictionary=False, write_page_checksum=True), 200), "error", "damaged_column", "a"),
    ("groups.parquet", None, "warning", "uneven_row_groups", 1),
    ("batch.feather", flipped(arrow(), 400, 200), "error", "damaged_column", 0),
    ("cut.feather", arrow()[:-30], "error", "damaged", None),
    ("crc.tfrecord", flipped(tfrecord([EXAMPLE] * 3), 50), "error", "wrong_crc", 1),
    ("length.tfrecord", tfrecord([EXAMPLE]) + struct.pack("<Q", 1 << 60) + bytes(20), "error", "wrong_length_crc", 1),
    ("huge.tfrecord", tfrecord([EXAMPLE]) + (claim := struct.pack("<Q", 1 << 60)) + crc(claim) + bytes(20), "error", "truncated", 1),
    ("cut.tfrecord", tfrecord([EXAMPLE] * 3)[:-3], "error", "truncated", 2),
    ("example.tfrecord", tfrecord([EXAMPLE, b"\xff\xff"]), "error", "undecodable", 1),
    ("overlap.safetensors", safetensors({"a": tensor(0, 5), "b": tensor(3, 8)}, bytes(8)), "error", "damaged", None),
    ("gap.safetensors", safetensors({"a": tensor(0, 3), "b": tensor(4, 8)}, bytes(8)), "error", "damaged", None),
    ("cut.safetensors", safetensors({"a": tensor(0, 8)}, bytes(5)), "error", "truncated", None),
    ("nan.safetensors", safetensors({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, b"\0\0\xc0\x7f"), "warning", "not_finite", "a"),
    ("bf16.safetensors", safetensors({"a": {"dtype": "BF16", "shape": [1], "data_offsets": [0, 2]}}, b"\x80\x7f"), "warning", "not_finite", "a"),
    ("filter.h5", hdf5(unknown_filter), "error", "unknown_filter", "odd"),
    ("chunk.h5", broken_chunk(), "error", "unreadable_dataset", "x"),
    ("link.h5", hdf5(external), "warning", "broken_link", "out"),
    ("dangling.h5", hdf5(lambda f: f.__setitem__("x", h5py.SoftLink("/no"))), "warning", "broken_link", "x"),
    ("lengths.h5", hdf5(lambda f: (f.create_dataset("x", data=[1]), f.create_dataset("y", data=[1, 2]))), "warning", "different_lengths", None),
    ("cut.h5", hdf5(chunked)[:3000], "error", "truncated", None),
    ("cut.npy", npy(np.arange(10))[:-1], "error", "truncated", None),
    ("long.npy", npy(np.arange(10)) + b"x", "warning", "trailing_bytes", None),
    ("crc.npz", flipped(_zip, _zip.index(b"\x93NUMPY") + 200), "error", "damaged", "a.npy"),
    ("cut.npz", _zip[:-10], "error", "damaged", None),
    ("cut.jpg", JPEG[: len(JPEG) // 2], "error", "truncated", None),
    ("cut.png", PNG[: len(PNG) // 2], "error", "truncated", None),
    ("data.png", flipped(PNG, len(PNG) // 2, 40), "error", "undecodable", None),
    ("garbage.jpg", b"no picture at all" * 10, "error", "undecodable", None),
    ("empty.jpg", b"", "error", "empty", None),
    ("other.png", JPEG, "warning", "wrong_extension", None),
    ("large.png", None, "error", "too_large", None),
    ("unknown.xyz", b"what is this", "error", "unknown_format", None),
]  # fmt: skip


def content(name: str, data: bytes | None) -> bytes:
    if name == "groups.parquet":
        out = io.BytesIO()
        table = pa.table({"a": range(1000)})
        with pq.ParquetWriter(out, table.schema) as writer:
            for rows in (300, 10, 300, 300, 90):
                writer.write_table(table.slice(0, rows))
        return out.getvalue()
    if name == "large.png":  # a header that claims 40,000 x 40,000 pixels
        return PNG[:16] + struct.pack(">II", 40_000, 40_000) + PNG[24:]
    assert data is not None
    return data


@pytest.mark.parametrize(("name", "data", "severity", "code", "record"), [pytest.param(*case, id=case[0]) for case in DAMAGED])
def test_damage_is_found(tmp_path: Path, name: str, data: bytes | None, severity: str, code: str, record: Any) -> None:
    path = tmp_path / name
    path.write_bytes(content(name, data))
    report = dataio.check(path)
    assert (severity, code, record) in {(f.severity, f.code, f.record) for f in report.findings}, report.findings
    assert all(f.uri == str(path) for f in report.findings)
    assert report.ok == (severity != "error")


QUICK = ["interleaved.tar", "cut.tar", "cut.parquet", "footer.parquet", "huge.tfrecord", "overlap.safetensors", "filter.h5", "cut.npy", "cut.npz", "large.png", "garbage.jpg"]


@pytest.mark.parametrize("name", QUICK)
def test_quick_finds_what_headers_tell(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    case = next(case for case in DAMAGED if case[0] == name)
    path.write_bytes(content(name, case[1]))
    assert case[3] in {f.code for f in dataio.check(path, quick=True).findings}


# ------------------------------------------------------------------- several files


def test_uneven_shards_and_other_members(tmp_path: Path) -> None:
    for number, count in enumerate((8, 8, 2, 8, 1)):  # the last one may be the rest
        (tmp_path / f"{number}.tar").write_bytes(tar(samples(count)))
    (tmp_path / "3.tar").write_bytes(tar([(f"{i}.png", PNG) for i in range(8)]))
    found = {(f.code, Path(f.uri).name) for f in dataio.check(f"{tmp_path}/{{0..4}}.tar").findings}
    assert found == {("uneven_shards", "2.tar"), ("members_differ", "3.tar")}


def test_a_shard_that_is_named_and_not_there(tmp_path: Path) -> None:
    (tmp_path / "0.tar").write_bytes(tar(samples()))
    (finding,) = dataio.check(f"{tmp_path}/{{0..1}}.tar").findings
    assert (finding.code, Path(finding.uri).name) == ("unreadable", "1.tar")


def test_schemas_that_drift(tmp_path: Path) -> None:
    for name, table in (("0", {"a": [1], "b": ["x"]}), ("1", {"a": [1.5], "b": ["x"]}), ("2", {"a": [1]}), ("3", {"a": [2], "b": ["y"]})):
        (tmp_path / f"{name}.parquet").write_bytes(parquet(pa.table(table)))
    found = {Path(f.uri).name: f.message for f in dataio.check(tmp_path).findings if f.code == "schema_drift"}
    assert "'a' is double, not int64" in found["1.parquet"]
    assert "lacks 'b'" in found["2.parquet"]
    assert len(found) == 2


def test_images_of_several_kinds_are_told_of(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[274] = 6
    Image.new("RGB", (8, 4)).save(tmp_path / "turned.jpg", exif=exif)
    Image.new("L", (8, 4)).save(tmp_path / "gray.png")
    Image.new("RGBA", (8, 4)).save(tmp_path / "alpha.png")
    report = dataio.check(tmp_path)
    assert report.ok
    assert {f.code for f in report.findings} == {"exif_rotated", "mixed_channels"}


def index(folder: Path, places: dict[str, str], total: int = 8) -> Path:
    for number in (1, 2):
        name = "ab"[number - 1]
        save_file({name: np.ones(1, np.float32)}, folder / f"m-{number}.safetensors")
    path = folder / "m.safetensors.index.json"
    path.write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": places}))
    return path


RIGHT = {"a": "m-1.safetensors", "b": "m-2.safetensors"}
INDEXES = [
    (RIGHT, 8, None, None),
    (RIGHT, 9, "wrong_total_size", None),
    ({**RIGHT, "c": "m-3.safetensors"}, 8, "missing_shard", "m-3.safetensors"),
    ({**RIGHT, "c": "../m-3.safetensors"}, 8, "missing_shard", "../m-3.safetensors"),
    ({**RIGHT, "c": "m-1.safetensors"}, 8, "missing_tensor", "m-1.safetensors"),
    ({"a": "m-1.safetensors", "x": "m-2.safetensors"}, 8, "unlisted_tensor", "b"),
]


@pytest.mark.parametrize(("places", "total", "code", "record"), INDEXES)
def test_the_index_of_a_sharded_model(tmp_path: Path, places: dict[str, str], total: int, code: str | None, record: str | None) -> None:
    found = {(f.code, f.record) for f in dataio.check(index(tmp_path, places, total)).findings}
    assert (code, record) in found if code else not found


def test_a_tensor_in_two_shards(tmp_path: Path) -> None:
    path = index(tmp_path, RIGHT)
    save_file({"a": np.ones(1, np.float32), "b": np.ones(1, np.float32)}, tmp_path / "m-2.safetensors")
    assert ("tensor_in_two_shards", "a") in {(f.code, f.record) for f in dataio.check(path).findings}


def test_a_folder_of_everything(tmp_path: Path) -> None:
    for name, data in HEALTHY.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "labels.txt").write_text("a sidecar is no finding")
    report = dataio.check(tmp_path, workers=3)
    assert report.ok
    assert (report.files, report.skipped) == (len(HEALTHY), 1)
    assert report.kinds == {"arrow": 1, "hdf5": 1, "image": 3, "npy": 1, "npz": 1, "parquet": 2, "safetensors": 1, "tar": 2, "tfrecord": 3}


def test_max_findings_keeps_errors_and_counts_all(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(tar([(f"name{i}", b"x") for i in range(20)] + [("x.jpg", b"")]))
    report = dataio.check(tmp_path, max_findings=5)
    assert len(report.findings) == 5
    assert "empty" in {f.code for f in report.findings}
    assert dict(report.counts) == {"error": 1, "warning": 20, "info": 0}
    assert report.as_dict()["summary"]["not_shown"] == 16


def test_arguments_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        dataio.check(tmp_path / "none")
    with pytest.raises(ValueError, match="workers"):
        dataio.check(tmp_path, workers=0)


@pytest.mark.parametrize("quick", [False, True])
def test_every_kind_in_a_store(s3_bucket: str, quick: bool) -> None:
    for name, data in HEALTHY.items():
        uri = f"{s3_bucket}/set/{name}"
        dataio.write(uri, data)
        report = dataio.check(uri, quick=quick)
        assert (report.findings, report.files, report.bytes) == ((), 1, len(data))


def test_damage_in_a_store(s3_bucket: str) -> None:
    dataio.write(f"{s3_bucket}/set/a.tar", tar(samples()))
    dataio.write(f"{s3_bucket}/set/b.jpg", JPEG[:100])
    (finding,) = dataio.check(f"{s3_bucket}/set/*").findings
    assert (finding.uri, finding.code) == (f"{s3_bucket}/set/b.jpg", "truncated")


# ------------------------------------------------------------------- kinds


@pytest.mark.parametrize("name", HEALTHY)
def test_a_kind_is_told_by_content_where_it_has_a_mark(name: str) -> None:
    by_name = kind_of(name, HEALTHY[name])
    without = kind_of("nothing", HEALTHY[name])
    assert by_name.name
    assert without.name == (by_name.name if not by_name.codec and by_name.name != "npz" else "zip" if by_name.name == "npz" else "")


def test_a_zip_with_a_damaged_member(tmp_path: Path) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("a.txt", b"hello hello")
    (tmp_path / "a.zip").write_bytes(flipped(out.getvalue(), out.getvalue().index(b"hello")))
    (finding,) = dataio.check(tmp_path / "a.zip").findings
    assert (finding.code, finding.record) == ("damaged", "a.txt")
