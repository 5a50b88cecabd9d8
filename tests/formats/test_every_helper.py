"""Every format helper, from every place that it reads and to every place that it writes; each public one has a row here."""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from safetensors.numpy import save_file

import dataio
from dataio.io.stores.uploads import PartsUpload

from ..servers.s3 import S3Server
from .helpers import encode

pytestmark = pytest.mark.usefixtures("no_leftovers")

PREFIXES = (
    "read_", "write_", "open_", "scan_", "iter_", "decode_", "consolidate_", "npz", "webdataset", "archive", "tfrecord", "manifest",
    "parquet_", "image_processor",
)  # fmt: skip
ANYWHERE = ("path", "Path", "file", "s3", "bytes", "reader", "object")
PLACES = ("path", "Path", "file", "s3")
ARRAY = np.arange(12, dtype=np.float32).reshape(3, 4)
PIXELS = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)
TABLE = pa.table({"id": [1, 2, None], "text": ["a", "ü", ""]})
COLUMNS = TABLE.to_pydict()
ROWS = TABLE.to_pylist()
EXAMPLES = [{"label": [i], "name": [b"n%d" % i]} for i in range(4)]


# ---------------------------------------------------------------------- reading


@dataclass(frozen=True)
class Reads:
    """A helper that reads.

    Attributes:
        name: of the file or folder.
        make: writes it, by another library wherever there is one.
        read: calls the helper and gives something that compares equal to `expected`.
        forms: of sources that it takes.
    """

    name: str
    make: Callable[[Path], Any]
    read: Callable[[Any], Any]
    expected: Any
    forms: tuple[str, ...] = ANYWHERE


def make_hdf5(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["group/x"] = ARRAY


def make_tar(path: Path) -> None:
    with tarfile.open(path, "w") as tar:
        for name, data in (("0.txt", b"a"), ("0.cls", b"7"), ("1.txt", b"b"), ("1.cls", b"8")):
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))


def make_zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("a/x.txt", b"one")
        file.writestr("y.txt", b"two")


def make_dcp(path: Path) -> None:
    import warnings

    import torch.distributed.checkpoint as dcp

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on running in a single process
        dcp.save({"w": torch.from_numpy(ARRAY)}, checkpoint_id=str(path))


def make_tfrecord(path: Path) -> None:
    from tfrecord.writer import TFRecordWriter

    writer = TFRecordWriter(str(path))
    for example in EXAMPLES:
        writer.write({"label": (example["label"][0], "int"), "name": (example["name"][0], "byte")})
    writer.close()


def make_processor(path: Path) -> None:
    path.mkdir()
    (path / "preprocessor_config.json").write_text('{"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 31}}')


def lists(found: dict[str, Any]) -> dict[str, Any]:
    return {name: np.asarray(array).tolist() for name, array in found.items()}


def opened(session: Any, read: Callable[[Any], Any]) -> Any:
    with session:
        return read(session)


def read_samples(src: Any) -> list[Any]:
    return [(sample["__key__"], bytes(sample["txt"].read_all()), bytes(sample["cls"].read_all())) for sample in dataio.webdataset(src)]


def read_entries(src: Any) -> list[Any]:
    return [(entry["name"], bytes(entry["reader"].read_all())) for entry in dataio.archive(src).entries()]


def read_members(src: Any) -> list[Any]:
    return [(record["key"], np.load(io.BytesIO(record["reader"].read_all())).tolist()) for record in dataio.npz(src).records()]


def read_processor(src: Any) -> Any:
    pytest.importorskip("transformers")
    return dataio.image_processor(src).processor.size["shortest_edge"]


def same_keys(records: Any, *names: str) -> list[Any]:
    return [{name: record[name] for name in names} for record in records]


NESTED = ARRAY.tolist()
READERS = {
    "read_numpy": Reads("x.npy", lambda p: np.save(p, ARRAY), lambda s: dataio.read_numpy(s).tolist(), NESTED),
    "npz": Reads("x.npz", lambda p: np.savez(p, a=ARRAY, b=ARRAY[0]), read_members, [("a", NESTED), ("b", NESTED[0])], PLACES),
    "read_image": Reads(
        "x.png", lambda p: p.write_bytes(encode(PIXELS, "PNG")), lambda s: dataio.read_image(s).tolist(), PIXELS.tolist()
    ),
    "read_hdf5": Reads("x.h5", make_hdf5, lambda s: dataio.read_hdf5(s, key="group/x").tolist(), NESTED),
    "open_hdf5": Reads(
        "x.h5", make_hdf5, lambda s: opened(dataio.open_hdf5(s), lambda f: (f.keys(), f.read(key="/group/x").tolist())),
        (["/group/x"], NESTED),
    ),
    "read_parquet": Reads("x.parquet", lambda p: pq.write_table(TABLE, p), dataio.read_parquet, COLUMNS),
    "scan_parquet": Reads("x.parquet", lambda p: pq.write_table(TABLE, p), lambda s: dataio.scan_parquet(s).collect(), ROWS),
    "parquet_metadata": Reads("x.parquet", lambda p: pq.write_table(TABLE, p), lambda s: dataio.parquet_metadata(s)["num_rows"], 3),
    "scan_feather": Reads(
        "x.arrow", lambda p: pa.feather.write_feather(TABLE, p, compression="uncompressed"), lambda s: dataio.scan_feather(s).collect(), ROWS, PLACES
    ),
    "scan_csv": Reads("x.csv", lambda p: p.write_text("id,text\n1,a\n2,ü\n"), lambda s: dataio.scan_csv(s).collect(), ROWS[:2], PLACES),
    "scan_ndjson": Reads(
        "x.ndjson", lambda p: p.write_text('{"id": 1, "text": "a"}\n{"id": 2, "text": "ü"}\n'), lambda s: dataio.scan_ndjson(s).collect(),
        ROWS[:2], PLACES,
    ),
    "scan_files": Reads(
        "x.png", lambda p: p.write_bytes(encode(PIXELS, "PNG")),
        lambda s: dataio.scan_files(s).select("width", "height", "format").collect(), [{"width": 7, "height": 5, "format": "png"}], PLACES,
    ),
    "scan_safetensors": Reads(
        "x.safetensors", lambda p: save_file({"a": ARRAY}, p), lambda s: dataio.scan_safetensors(s).select("name", "shape", "data").collect(),
        [{"name": "a", "shape": [3, 4], "data": ARRAY.tobytes()}], PLACES,
    ),
    "scan_webdataset": Reads(
        "x.tar", make_tar, lambda s: dataio.scan_webdataset(s).select("__key__", "txt").collect(),
        [{"__key__": "0", "txt": b"a"}, {"__key__": "1", "txt": b"b"}], PLACES,
    ),
    "read_feather": Reads("x.arrow", lambda p: pa.feather.write_feather(TABLE, p), dataio.read_feather, ROWS),
    "iter_tfrecord": Reads("x.tfrecord", make_tfrecord, lambda s: list(dataio.iter_tfrecord(s)), EXAMPLES),
    "read_tfrecord": Reads("x.tfrecord", make_tfrecord, dataio.read_tfrecord, EXAMPLES),
    "scan_tfrecord": Reads(
        "x.tfrecord", make_tfrecord, lambda s: dataio.scan_tfrecord(s).select("label", "name").collect(),
        [{"label": e["label"][0], "name": e["name"][0]} for e in EXAMPLES], PLACES,
    ),
    "tfrecord": Reads(
        "x.tfrecord", make_tfrecord, lambda s: same_keys(dataio.tfrecord(s), "label", "name"),
        [{"label": e["label"][0], "name": e["name"][0]} for e in EXAMPLES], PLACES,
    ),
    "tfrecord_index": Reads("x.tfrecord", make_tfrecord, lambda s: len(dataio.tfrecord_index(s)), len(EXAMPLES)),
    "read_safetensors": Reads(
        "x.safetensors", lambda p: save_file({"a": ARRAY}, p), lambda s: lists(dataio.read_safetensors(s)), {"a": NESTED}
    ),
    "open_safetensors": Reads(
        "x.safetensors", lambda p: save_file({"a": ARRAY}, p),
        lambda s: opened(dataio.open_safetensors(s), lambda f: (f.keys(), f.read_slice("a", 1, 3).tolist())), (["a"], NESTED[1:]),
    ),
    "read_pt": Reads(
        "x.pt", lambda p: torch.save({"a": torch.from_numpy(ARRAY)}, p), lambda s: lists(dataio.read_pt(s)), {"a": NESTED}
    ),
    "read_dcp": Reads("step", make_dcp, lambda s: lists(dataio.read_dcp(s)), {"w": NESTED}, PLACES),
    "consolidate_dcp": Reads("step", make_dcp, lambda s: lists(dataio.consolidate_dcp(s)), {"w": NESTED}, PLACES),
    "webdataset": Reads("x.tar", make_tar, read_samples, [("0", b"a", b"7"), ("1", b"b", b"8")], PLACES),
    "archive": Reads("x.zip", make_zip, read_entries, [("a/x.txt", b"one"), ("y.txt", b"two")], PLACES),
    "manifest": Reads(
        "x.txt", lambda p: p.write_text('{"image": "a.png", "label": 3}\n\nb.png\n'), lambda s: list(dataio.manifest(s)),
        [{"image": "a.png", "label": 3}, "b.png"], PLACES,
    ),
    "image_processor": Reads("clip", make_processor, read_processor, 31, PLACES),
}  # fmt: skip
WITHOUT_PLACES = {"decode_image_batch", "scan_hf"}
"""Take what is in memory, or a name: `test_gpu.py` and the tests of scans have them."""


@pytest.mark.parametrize(("name", "form"), [(name, form) for name, row in READERS.items() for form in row.forms])
def test_reading(name: str, form: str, tmp_path: Path, s3_bucket: str) -> None:
    row = READERS[name]
    path = tmp_path / row.name
    row.make(path)
    if form == "s3":
        for file in [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]:
            dataio.write(f"{s3_bucket}/{file.relative_to(tmp_path).as_posix()}", file.read_bytes())
        source: Any = f"{s3_bucket}/{row.name}"
    elif form == "reader":
        source = dataio.reader(str(path))
    elif form in ("bytes", "object"):
        source = path.read_bytes() if form == "bytes" else io.BytesIO(path.read_bytes())
    else:
        source = {"path": str(path), "Path": path, "file": f"file://{path}"}[form]
    assert row.read(source) == row.expected


@pytest.mark.parametrize("name", [name for name, row in READERS.items() if row.forms == PLACES])
def test_what_reads_places_only_says_so(name: str) -> None:
    with pytest.raises(TypeError):
        READERS[name].read(3)


@pytest.mark.parametrize("place", ["local", "s3"])
@pytest.mark.parametrize("name", READERS)
def test_what_is_missing_is_named(name: str, place: str, tmp_path: Path, s3_bucket: str) -> None:
    root = tmp_path if place == "local" else s3_bucket
    with pytest.raises(OSError, match=READERS[name].name):
        READERS[name].read(f"{root}/{READERS[name].name}")


# ---------------------------------------------------------------------- writing


@dataclass(frozen=True)
class Writes:
    """A helper that writes.

    Attributes:
        name: of the file, or of the folder with a slash at the end.
        write: writes arrays of uint8 at a place.
        read: what is at a place, as that list of arrays.
        count: of arrays that are written at once.
    """

    name: str
    write: Callable[[Any, list[np.ndarray]], Any]
    read: Callable[[str], list[np.ndarray]]
    count: int = 2


def table_of(arrays: list[np.ndarray]) -> pa.RecordBatchReader:
    batches = [pa.record_batch({"x": array}) for array in arrays]
    return pa.RecordBatchReader.from_batches(batches[0].schema, batches)


def named(arrays: list[np.ndarray]) -> dict[str, np.ndarray]:
    return {str(i): array for i, array in enumerate(arrays)}


def column(values: Any, arrays: int = 2) -> list[np.ndarray]:
    return np.split(np.asarray(values, np.uint8), arrays)


def consolidate(uri: Any, arrays: list[np.ndarray]) -> None:
    import tempfile
    import warnings

    import torch.distributed.checkpoint as dcp

    with tempfile.TemporaryDirectory() as folder:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on running in a single process
            dcp.save({name: torch.from_numpy(array) for name, array in named(arrays).items()}, checkpoint_id=folder)
        dataio.consolidate_dcp(folder, uri)


def tensors(uri: str) -> list[np.ndarray]:
    return [array for _, array in sorted(dataio.read_safetensors(uri).items())]


def arrow(uri: str) -> list[np.ndarray]:
    return column(pa.ipc.open_file(pa.BufferReader(dataio.read(uri))).read_all()["x"].to_numpy())


def parquet(uri: str) -> list[np.ndarray]:
    return column(pq.read_table(io.BytesIO(dataio.read(uri)))["x"].to_numpy())


def arrays_of(uri: str) -> list[np.ndarray]:
    with np.load(io.BytesIO(dataio.read(uri))) as file:
        return [file[name] for name in file.files]


def pixels(uri: str) -> list[np.ndarray]:
    with Image.open(io.BytesIO(dataio.read(uri))) as picture:
        return [np.asarray(picture).ravel()]


def payloads(uri: str) -> list[np.ndarray]:
    return [np.frombuffer(example["x"][0], np.uint8) for example in dataio.iter_tfrecord(uri)]


WRITERS = {
    "write_numpy": Writes(
        "x.npy", lambda u, a: dataio.write_numpy(u, a[0]), lambda u: [np.load(io.BytesIO(dataio.read(u)))], 1
    ),
    "write_npz": Writes("x.npz", lambda u, a: dataio.write_npz(u, named(a)), arrays_of),
    "write_image": Writes("x.bmp", lambda u, a: dataio.write_image(u, a[0].reshape(-1, 64)), pixels, 1),
    "write_parquet": Writes("x.parquet", lambda u, a: dataio.write_parquet(u, table_of(a), compression="none"), parquet),
    "write_feather": Writes("x.arrow", lambda u, a: dataio.write_feather(u, table_of(a)), arrow),
    "write_tfrecord": Writes("x.tfrecord", lambda u, a: dataio.write_tfrecord(u, ({"x": y.tobytes()} for y in a)), payloads),
    "write_safetensors": Writes("x.safetensors", lambda u, a: dataio.write_safetensors(u, named(a)), tensors),
    "write_safetensors, shards": Writes(
        "step/", lambda u, a: dataio.write_safetensors(u, named(a), max_shard_size=a[0].nbytes), tensors
    ),
    "consolidate_dcp": Writes("x.safetensors", consolidate, tensors),
}  # fmt: skip


def noise(row: Writes, size: int, seed: int = 0) -> list[np.ndarray]:
    return list(np.random.default_rng(seed).integers(0, 256, (row.count, size // row.count), np.uint8))


def check_arrays(found: list[np.ndarray], wanted: list[np.ndarray]) -> None:
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("form", PLACES)
@pytest.mark.parametrize("name", WRITERS)
def test_writing(name: str, form: str, tmp_path: Path, s3_bucket: str) -> None:
    row = WRITERS[name]
    if form == "s3":
        place: Any = f"{s3_bucket}/{row.name}"
    else:
        place = {"path": f"{tmp_path}/{row.name}", "Path": tmp_path / row.name, "file": f"file://{tmp_path}/{row.name}"}[form]
        if form == "Path" and row.name.endswith("/"):
            (tmp_path / row.name).mkdir()
    for seed in range(2):  # the second replaces the first
        given = noise(row, 4096, seed)
        row.write(place, given)
        check_arrays(row.read(str(place)), given)


@pytest.mark.parametrize("name", WRITERS)
def test_an_upload_that_breaks_half_way_leaves_the_old_object(
    name: str, s3_server: S3Server, s3_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    row, place = WRITERS[name], f"{s3_bucket}/{WRITERS[name].name}"
    old = noise(row, 4096)
    row.write(place, old)
    before = dataio.ls(f"{s3_bucket}/")
    monkeypatch.setenv("DATAIO_MULTIPART_PART_MIB", "5")
    ship, sent = PartsUpload._ship, []

    def break_at_the_second(upload: PartsUpload, last: bool, *data: Any) -> None:
        if sent:
            raise ConnectionResetError("the line broke")
        sent.append(1)
        ship(upload, last, *data)

    monkeypatch.setattr(PartsUpload, "_ship", break_at_the_second)
    with pytest.raises(OSError, match="the line broke"):
        row.write(place, noise(row, row.count * (6 << 20), seed=1))
    assert sent
    check_arrays(row.read(place), old)
    assert dataio.ls(f"{s3_bucket}/") == before
    assert "Uploads" not in s3_server.client().list_multipart_uploads(Bucket=s3_bucket.removeprefix("s3://"))


# --------------------------------------------------------------------- all of them


def test_every_public_helper_has_a_row() -> None:
    helpers = {name for name in dataio.__all__ if name.startswith(PREFIXES) and callable(getattr(dataio, name))}
    rows = {*READERS, *WITHOUT_PLACES, *(name.partition(",")[0] for name in WRITERS)}
    assert helpers == rows


EXAMPLES_FOLDER = Path(__file__).resolve().parents[2] / "examples"


@pytest.mark.parametrize("name", sorted({*READERS, "decode_image_batch", *(name.partition(",")[0] for name in WRITERS)}))
def test_an_example_shows_it(name: str) -> None:
    assert any(f"dataio.{name}(" in path.read_text() for path in EXAMPLES_FOLDER.glob("*.py"))
