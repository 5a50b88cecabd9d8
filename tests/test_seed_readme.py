"""The examples of the README that this project answers to, unchanged, on generated data.

Only its folders at the root of the file system, /data and /fsx, stand for temporary ones.
"""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

import dataio

from .servers.s3 import S3Server

FIRST = '''
import dataio

pipe = dataio.pipeline(
    dataio.slot("image")
        .decode_image(mode="rgb")
        .resize_short(256)
        .center_crop(h=224, w=224)
        .normalize("imagenet"),
    dataio.batch(64, prefetch=4),
)

with pipe.bind(records).run("torch", concurrency=64) as loader:
    for batch in loader:
        train_step(batch["image"])
'''

PIPELINE = '''
pipe = dataio.pipeline(
    dataio.map(lambda r: {"image": r["path"], "label": r["class_id"]}),

    dataio.slot("image")
        .decode_image(mode="rgb")
        .resize_short(256)
        .center_crop(h=224, w=224)
        .normalize("imagenet"),

    dataio.slot("label").decode_bytes(),
    dataio.batch(64, drop_last=True, prefetch=4),
)
'''

CONDITIONALS = '''
from dataio import cond as c

pipe = dataio.pipeline(
    dataio.slot("image").decode_image(mode="rgb"),
    dataio.slot("mask", optional=True)
        .active_when(c.col("mask_id").is_not_null())
        .decode_image(mode="gray"),
    dataio.batch(32),
)
'''

BRANCHING = '''
dataio.slot("image") \\
    .decode_image(mode="rgb") \\
    .when(c.shape(axis=0).gt(512)) \\
    .then(dataio.transforms.center_crop(h=512, w=512)) \\
    .otherwise(dataio.transforms.resize(h=512, w=512))
'''

GROUPED = '''
pipe = dataio.pipeline(
    dataio.slot("latent").decode_safetensors(tensor_key=dataio.col("tensor_key")),
    dataio.group_by("batch_id", prefetch=4),
)

records = dataio.from_sampler(
    batch_sampler,
    lambda row: {
        "key": row["key"],
        "latent": row["cache_path"],
        "tensor_key": row["tensor_key"],
        "_row": row,
    },
)

with pipe.bind(records).run("torch", concurrency=128,
                            context=lambda r: r["_row"]) as loader:
    for batch in loader:
        latents = batch["latent"]
        rows = batch.context  # list[dict] aligned with batch.keys
'''

DISTRIBUTED = '''
loader = pipe.bind(records).run(
    "torch",
    shard={"id": rank, "of": world_size, "pad": True},
    seed=42,
    concurrency=64,
)
'''

NAMESPACES = {
    "decoders": "image, audio, json, npy, safetensors, text, bytes, pt",
    "transforms": "resize, crop, normalize, color_jitter, rand_augment, sometimes, choice, some_of, select",
    "batch_transforms": "mixup, cutmix, pad_to_longest, batch_shuffle, batch_normalize",
    "cond": "col, shape, ndim, all, any, not_, const",
}

ON_FAILURE = '''
loader = pipe.bind(records).run("torch", on_failure="skip")
'''

LOG_ERRORS = '''
loader = pipe.bind(records).run("torch", log_errors=True)
loader = pipe.bind(records).run("torch", log_errors=my_logger.warning)
'''

VERBS = '''
dataio.head("s3://bucket/file.bin")
chunk = dataio.read("s3://bucket/file.bin", offset=0, size=1 << 20)
etag  = dataio.write("s3://bucket/out.bin", chunk)

dataio.exists("s3://bucket/out.bin")
dataio.ls("s3://bucket/prefix/")
dataio.glob("s3://bucket/**/*.safetensors")
'''

HANDLES = '''
src = dataio.reader("s3://bucket/shard.tar.gz")
payload = src.gunzip().tar_entry("0001.jpg").read_all()

with dataio.writer("s3://bucket/checkpoint.bin") as w:
    w.write_chunks(huge_generator())
'''

CREDENTIALS = '''
dataio.configure_credentials("s3", method="default")  # platform chain
dataio.configure_credentials("r2", access_key_id="...", secret_access_key="...")
dataio.configure_endpoint("r2", "https://<account>.r2.cloudflarestorage.com")
'''

READING = '''
arr   = dataio.read_numpy("/data/x.npy")
image = dataio.read_image("s3://bucket/image.png", mode="rgb")
cols  = dataio.read_parquet("/data/shard.parquet", columns=["key", "height"])
rows  = (dataio.scan_parquet("/data/shard.parquet").filter(lambda r: r["height"] > 512).collect())

for example in dataio.iter_tfrecord("/data/train.tfrecord"):
    label = example["label"]
'''

CHECKPOINTS = '''
dataio.write_safetensors(
    "/fsx/ckpt-step-12000/",
    state_dict,
    max_shard_size="5GB",
    metadata={"format": "pt"},
)

state_dict = dataio.read_safetensors("/fsx/ckpt-step-12000/", framework="torch")

with dataio.open_safetensors("/fsx/model.safetensors") as st:
    tensor = st.read(key="layer.weight", framework="torch")
'''

TO_DEVICE = '''
state_dict = dataio.read_safetensors(
    "/fsx/ckpt-step-12000/",
    framework="torch",
    device="cuda:0",
)
'''

API = {  # the table "API at a glance"
    "pipeline DSL": "pipeline, slot, slots, chain, batch, collate, group_by",
    "Python extension hooks": "map, custom_op",
    "synchronous batch iterator": "DataLoader",
    "URI bytes": "read / write / head / stream / ls / glob / exists / delete",
    "composable IO handles": "reader, writer",
    "record sources": "from_callable, from_iterable, from_iterator, from_sampler, files, urls, manifest, webdataset, archive",
    "safetensors": "read_safetensors, write_safetensors, open_safetensors",
    "format helpers": "read_numpy, read_image, read_parquet, scan_parquet, iter_tfrecord, read_hdf5, open_hdf5",
    "auth and transport": "configure_credentials, configure_endpoint, configure_transport",
    "low-level GDS": "gds_open, gds_register_buffer, gds_read_into_tensor",
}

COUNT = 150


def jpeg(i: int) -> bytes:
    rng = np.random.default_rng(i)
    height, width = (int(n) for n in rng.integers(230, 420, 2))
    small = rng.integers(0, 256, (6, 6, 3), np.uint8)
    out = io.BytesIO()
    Image.fromarray(small).resize((width, height)).save(out, "JPEG", quality=90)
    return out.getvalue()


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("photos")
    found = [folder / f"{i:03d}.jpg" for i in range(COUNT)]
    for i, path in enumerate(found):
        path.write_bytes(jpeg(i))
    return found


def expected(data: bytes) -> np.ndarray[Any, Any]:
    """What the first example computes, by Pillow and NumPy: the short edge to 256, the middle 224, ImageNet's numbers."""
    with Image.open(io.BytesIO(data)) as image:
        width, height = image.size
        short = min(width, height)
        size = (width * 256 // short, height * 256 // short)
        resized = np.asarray(image.convert("RGB").resize(size, Image.Resampling.BICUBIC))
    top, left = (resized.shape[0] - 224) // 2, (resized.shape[1] - 224) // 2
    crop = resized[top : top + 224, left : left + 224] / np.float32(255)
    normal = (crop - np.float32((0.485, 0.456, 0.406))) / np.float32((0.229, 0.224, 0.225))
    return np.asarray(normal.transpose(2, 0, 1))


def test_first_example(paths: list[Path]) -> None:
    steps: list[Any] = []
    exec(FIRST, {"records": [{"image": str(p)} for p in paths], "train_step": steps.append})
    import torch

    assert [tuple(t.shape) for t in steps] == [(64, 3, 224, 224), (64, 3, 224, 224), (22, 3, 224, 224)]
    assert all(t.dtype == torch.float32 for t in steps)
    rows = np.concatenate([t.numpy() for t in steps])
    for i in range(0, COUNT, 37):
        difference = np.abs(rows[i] - expected(paths[i].read_bytes()))
        assert difference.mean() < 0.02
        assert difference.max() < 0.25


def test_first_example_takes_bare_sources(paths: list[Path]) -> None:
    """In a pipeline of one slot a path or the bytes themselves are a record."""
    for records in (paths[:3], [str(p) for p in paths[:3]], [p.read_bytes() for p in paths[:3]]):
        steps: list[Any] = []
        exec(FIRST, {"records": records, "train_step": steps.append})
        assert [tuple(t.shape) for t in steps] == [(3, 3, 224, 224)]


def test_pipeline_section(paths: list[Path]) -> None:
    scope: dict[str, Any] = {"dataio": dataio}
    exec(PIPELINE, scope)
    records = [{"path": str(p), "class_id": bytes([i % 7])} for i, p in enumerate(paths)]
    labels: list[int] = []
    with scope["pipe"].bind(records).run("torch", concurrency=64) as loader:
        for batch in loader:
            assert tuple(batch["image"].shape) == (64, 3, 224, 224)
            assert tuple(batch["label"].shape) == (64, 1)
            labels += batch["label"].flatten().tolist()
    assert labels == [i % 7 for i in range(128)]  # the short third batch is dropped


def first_pipeline(records: Any) -> dict[str, Any]:
    """The scope after the first example ran over no records: `pipe` is what the later sections bind."""
    scope: dict[str, Any] = {"records": [], "train_step": None}
    exec(FIRST, scope)
    return {**scope, "records": records}


def damaged(paths: list[Path]) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = [{"image": str(p)} for p in paths[:5]]
    records[2] = {"image": b"no picture"}
    return records


def test_error_handling(paths: list[Path]) -> None:
    scope = first_pipeline(damaged(paths))
    exec(ON_FAILURE, scope)
    with scope["loader"] as loader:
        (batch,) = loader
    assert tuple(batch["image"].shape) == (4, 3, 224, 224)
    assert batch.indices == [0, 1, 3, 4]
    (error,) = batch.errors
    assert set(error) >= {"index", "key", "stage", "op", "message"}
    assert (error["index"], error["stage"]) == (2, "decode")


@pytest.mark.parametrize(("policy", "raises"), [("strict", True), (0, False), (1, False), (4, False), (5, True)])
def test_on_failure_table(policy: Any, raises: bool, paths: list[Path]) -> None:
    scope = first_pipeline(damaged(paths))
    with scope["pipe"].bind(scope["records"]).run("torch", on_failure=policy) as loader:
        if raises:
            with pytest.raises(RuntimeError, match="batch 0"):
                list(loader)
        else:
            assert [len(batch) for batch in loader] == [4]


def test_skip_raises_when_a_batch_has_no_survivors() -> None:
    scope = first_pipeline([b"no picture", b"neither"])
    exec(ON_FAILURE, scope)
    with scope["loader"] as loader, pytest.raises(RuntimeError, match="batch 0"):
        list(loader)


def test_log_errors(paths: list[Path], caplog: pytest.LogCaptureFixture) -> None:
    scope = first_pipeline(damaged(paths))
    scope["my_logger"] = logging.getLogger("tests.seed_readme")
    true, _, own = LOG_ERRORS.strip().partition("\n")
    for line, logger in ((true, "dataio.rows"), (own, "tests.seed_readme")):
        caplog.clear()
        exec(line, scope)
        with caplog.at_level(logging.WARNING), scope["loader"] as loader:
            list(loader)
        (record,) = [r for r in caplog.records if r.name == logger]
        assert record.levelno == logging.WARNING


@pytest.mark.parametrize("namespace", NAMESPACES)
def test_namespaces(namespace: str) -> None:
    holder = getattr(dataio, namespace)
    assert all(callable(getattr(holder, name)) for name in NAMESPACES[namespace].split(", "))


def test_conditionals(paths: list[Path]) -> None:
    scope: dict[str, Any] = {"dataio": dataio}
    exec(CONDITIONALS, scope)
    records = [
        {"image": str(p), "mask": str(p) if i < 32 else "/nowhere", "mask_id": i if i < 32 else None}
        for i, p in enumerate(paths[:64])
    ]
    first, second = scope["pipe"].bind(records).run("numpy")
    assert first.slot_names == ["image", "mask"]
    assert {row.shape[2] for row in first["mask"]} == {1}
    assert second.slot_names == ["image"]  # nothing was read: those paths do not exist
    assert not second.errors


def test_branching_on_the_shape(tmp_path: Path) -> None:
    scope: dict[str, Any] = {"dataio": dataio}
    exec(CONDITIONALS, scope)
    slot = eval(BRANCHING.strip(), scope)
    big, small = tmp_path / "big.png", tmp_path / "small.png"
    pixels = np.random.default_rng(0).integers(0, 256, (600, 700, 3), np.uint8)
    Image.fromarray(pixels).save(big)
    Image.fromarray(pixels[:100, :120]).save(small)
    (batch,) = dataio.pipeline(slot, dataio.batch(2)).bind([{"image": big}, {"image": small}]).run("numpy")
    assert batch["image"].shape == (2, 512, 512, 3)
    assert np.array_equal(batch["image"][0], pixels[44:556, 94:606])
    enlarged = Image.fromarray(pixels[:100, :120]).resize((512, 512), Image.Resampling.BICUBIC)
    assert np.abs(batch["image"][1].astype(int) - np.asarray(enlarged)).max() <= 2


def test_grouped_batches(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    tensors = {f"t{i}": torch.full((4, i // 3 + 1), float(i)) for i in range(9)}
    save_file(tensors, tmp_path / "cache.safetensors")
    rows = [{"key": f"k{i}", "cache_path": str(tmp_path / "cache.safetensors"), "tensor_key": f"t{i}"} for i in range(9)]
    seen: list[Any] = []

    class Sampler:
        def __iter__(self) -> Any:
            return iter([rows[:3], rows[3:6], rows[6:]])

    scope: dict[str, Any] = {"dataio": dataio, "batch_sampler": Sampler()}
    exec(GROUPED + "        seen.append((latents, rows, batch.keys))\n", {**scope, "seen": seen})
    assert [tuple(latents.shape) for latents, _, _ in seen] == [(3, 4, 1), (3, 4, 2), (3, 4, 3)]
    assert torch.equal(seen[1][0][2], tensors["t5"])
    assert [row["key"] for _, rows, _ in seen for row in rows] == [k for _, _, keys in seen for k in keys]


def test_distributed_training(paths: list[Path]) -> None:
    """Equal batches on all ranks, every record somewhere, and a state that resumes."""
    pipe = dataio.pipeline(dataio.slot("image").decode_image(mode="rgb").resize(h=8, w=8), dataio.batch(16))
    counts, keys = [], set()
    for rank in range(3):
        scope = {"pipe": pipe, "records": [str(p) for p in paths[:100]], "rank": rank, "world_size": 3}
        exec(DISTRIBUTED, scope)
        with scope["loader"] as loader:
            batches = iter(loader)
            first = next(batches)
            state = loader.state_dict()
            loader_again = scope["loader"]
            rest = list(batches)
            counts.append([len(batch) for batch in (first, *rest)])
            keys |= {key for batch in (first, *rest) for key in batch.keys}
            loader_again.load_state_dict(state)
            assert [b.keys for b in loader_again] == [b.keys for b in rest]
    assert counts == [[16, 16, 16]] * 3
    assert keys == {p.stem for p in paths[:100]}


@pytest.fixture(name="bucket")
def _bucket(s3_server: S3Server, s3_bucket: str) -> Iterator[Any]:
    """A client of the server on which the examples' bucket is."""
    client = s3_server.client()
    client.create_bucket(Bucket="bucket")
    yield client
    for entry in client.list_objects_v2(Bucket="bucket").get("Contents", []):
        client.delete_object(Bucket="bucket", Key=entry["Key"])
    client.delete_bucket(Bucket="bucket")


def test_verbs(bucket: Any) -> None:
    data = np.random.default_rng(0).bytes(3 << 20)
    for key in ("file.bin", "prefix/a", "prefix/b", "x/y/model.safetensors", "model.safetensors"):
        bucket.put_object(Bucket="bucket", Key=key, Body=data)
    scope: dict[str, Any] = {"dataio": dataio}
    exec(VERBS, scope)
    written = bucket.get_object(Bucket="bucket", Key="out.bin")
    assert written["Body"].read() == scope["chunk"] == data[: 1 << 20]
    assert written["ETag"] == f'"{scope["etag"]}"'
    head, _, _, exists_, listed, globbed = [eval(line.partition("= ")[2] or line, scope) for line in VERBS.split("\n") if line]
    assert (head.status, head.content_length) == (200, 3 << 20)
    assert exists_ is True
    assert listed == ["s3://bucket/prefix/a", "s3://bucket/prefix/b"]
    assert globbed == ["s3://bucket/model.safetensors", "s3://bucket/x/y/model.safetensors"]


def test_handles(bucket: Any) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for i in range(3):
            entry = tarfile.TarInfo(f"{i:04d}.jpg")
            entry.size = len(jpeg(i))
            tar.addfile(entry, io.BytesIO(jpeg(i)))
    bucket.put_object(Bucket="bucket", Key="shard.tar.gz", Body=out.getvalue())
    scope: dict[str, Any] = {"dataio": dataio, "huge_generator": lambda: (bytes([i]) * (1 << 20) for i in range(9))}
    exec(HANDLES, scope)
    assert scope["payload"] == jpeg(1)
    written = bucket.get_object(Bucket="bucket", Key="checkpoint.bin")["Body"].read()
    assert written == b"".join(scope["huge_generator"]())


def test_credentials() -> None:
    """The lines run as they are; the endpoint of the example holds a placeholder, which is a host that does not exist."""
    try:
        exec(CREDENTIALS, {"dataio": dataio})
        told = dataio.current_config()["credentials"]
        assert {scheme: found["method"] for scheme, found in told.items()} == {"s3": "default", "r2": "explicit"}
    finally:
        dataio.clear_credentials()


def below(folder: Path, text: str) -> str:
    """An example whose files are in `folder`."""
    return text.replace('"/data/', f'"{folder}/').replace('"/fsx/', f'"{folder}/')


def test_format_helpers(bucket: Any, tmp_path: Path) -> None:
    from .formats.helpers import encode, photo

    picture, array = photo(20, 30), np.arange(6.0).reshape(2, 3)
    bucket.put_object(Bucket="bucket", Key="image.png", Body=encode(picture, "PNG"))
    dataio.write_numpy(tmp_path / "x.npy", array)
    columns = {"key": [f"k{i}" for i in range(20)], "height": list(range(500, 520)), "width": [1] * 20}
    dataio.write_parquet(tmp_path / "shard.parquet", pa.table(columns))
    dataio.write_tfrecord(tmp_path / "train.tfrecord", [{"label": i, "image": b"x"} for i in range(5)])
    labels: list[Any] = []
    scope: dict[str, Any] = {"dataio": dataio, "labels": labels}
    exec(below(tmp_path, READING) + "    labels.append(label)\n", scope)
    np.testing.assert_array_equal(scope["arr"], array)
    np.testing.assert_array_equal(scope["image"], picture)
    assert scope["cols"] == {name: columns[name] for name in ("key", "height")}
    assert scope["rows"] == [{"key": f"k{i}", "height": 500 + i, "width": 1} for i in range(13, 20)]
    assert labels == [[i] for i in range(5)]


def test_safetensors(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    given = {"layer.weight": torch.randn(4, 3), "layer.bias": torch.ones(3, dtype=torch.bfloat16)}
    save_file(given, tmp_path / "model.safetensors")
    scope: dict[str, Any] = {"dataio": dataio, "state_dict": given}
    exec(below(tmp_path, CHECKPOINTS), scope)
    for found in (scope["state_dict"], load_file(tmp_path / "ckpt-step-12000" / "model.safetensors")):
        assert found.keys() == given.keys()
        assert all(torch.equal(found[name], tensor) for name, tensor in given.items())
    index = json.loads((tmp_path / "ckpt-step-12000" / "model.safetensors.index.json").read_bytes())
    assert index["metadata"]["format"] == "pt"
    assert torch.equal(scope["tensor"], given["layer.weight"])

    scope = {"dataio": dataio}
    if torch.cuda.is_available():
        exec(below(tmp_path, TO_DEVICE), scope)
        assert all(tensor.device == torch.device("cuda:0") for tensor in scope["state_dict"].values())
        assert all(torch.equal(scope["state_dict"][name].cpu(), tensor) for name, tensor in given.items())
    else:
        with pytest.raises(RuntimeError, match="cuda:0"):
            exec(below(tmp_path, TO_DEVICE), scope)


def test_state_of_gds() -> None:
    assert isinstance(dataio.gds_available(), bool)
    assert dataio.gds_info()["available"] is dataio.gds_available()


def test_capability_report() -> None:
    """`python -m dataio`"""
    done = subprocess.run([sys.executable, "-m", "dataio"], capture_output=True, text=True, check=True, timeout=60)
    for word in ("CUDA", "nvJPEG", "GDS"):
        assert word.lower() in done.stdout.lower()


def test_runtime_settings(paths: list[Path]) -> None:
    """The table of knobs: variables that are read, and the order of the batches."""
    named = {"DATAIO_CPU_WORKERS", "DATAIO_IO_WORKERS", "DATAIO_OBJECT_SHARDS", "DATAIO_S3_HTTP_VERSION"}
    assert named <= {entry["name"] for entry in dataio.env_vars()}
    pipe = dataio.pipeline(dataio.slot("image").decode_image(mode="rgb").resize(h=8, w=8), dataio.batch(4, prefetch=2))
    with pipe.bind(paths[:10]).run("torch", concurrency="auto", order="completion") as loader:
        assert sorted(key for batch in loader for key in batch.keys) == [path.stem for path in paths[:10]]


# ------------------------------------------------------------------ the API table


@pytest.fixture
def small(tmp_path: Path) -> dict[str, Any]:
    """Files for the calls below, and what is in them."""
    import h5py

    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["group/x"] = np.arange(4)
    for i in range(3):
        (tmp_path / f"{i}.bin").write_bytes(bytes([i]))
    (tmp_path / "list.txt").write_text("".join(f"{tmp_path}/{i}.bin\n" for i in range(3)))
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        for i in range(3):
            tar.add(tmp_path / f"{i}.bin", f"{i}.bin")
    return {"folder": str(tmp_path), "uri": f"file://{tmp_path}"}


def contents(records: Any, field: str | None = None) -> list[int]:
    """The one byte of each record, through a pipeline with one slot; of its `field`, where it is a reader."""
    steps: list[Any] = [] if field is None else [dataio.map(lambda record: {"x": record[field]})]
    pipe = dataio.pipeline(*steps, dataio.slot("x").decode_bytes(), dataio.batch(2))
    with pipe.bind(records).run("numpy") as loader:
        return [int(row[0]) for batch in loader for row in batch["x"]]


SOURCES: dict[str, Callable[[str], tuple[Any, str | None]]] = {  # name: records, and the field that holds the reader
    "from_callable": lambda folder: (dataio.from_callable(lambda i: bytes([i]), length=3), "reader"),
    "from_iterable": lambda folder: (dataio.from_iterable(bytes([i]) for i in range(3)), "reader"),
    "from_iterator": lambda folder: ([{"x": dataio.from_iterator(iter([bytes([i])]))} for i in range(3)], None),
    "from_sampler": lambda folder: (dataio.from_sampler([[{"x": bytes([0])}, {"x": bytes([1])}], [{"x": bytes([2])}]]), None),
    "files": lambda folder: (dataio.files(f"{folder}/*.bin"), None),
    "urls": lambda folder: (dataio.urls([f"file://{folder}/{i}.bin" for i in range(3)]), "reader"),
    "manifest": lambda folder: (dataio.manifest(f"{folder}/list.txt"), None),
    "webdataset": lambda folder: (dataio.webdataset(f"{folder}/x.tar"), "bin"),
    "archive": lambda folder: (dataio.archive(f"{folder}/x.tar").entries(), "reader"),
}


def words(purpose: str) -> list[str]:
    return API[purpose].replace(" /", ",").split(", ")


@pytest.mark.parametrize("name", [name for purpose in API for name in words(purpose)])
def test_api_table(name: str) -> None:
    assert callable(getattr(dataio, name))


@pytest.mark.parametrize("name", words("record sources"))
def test_record_sources(name: str, small: dict[str, Any]) -> None:
    records, field = SOURCES[name](small["folder"])
    assert contents(records, field) == [0, 1, 2]


def test_uri_bytes(small: dict[str, Any]) -> None:
    """Those of the table that the examples leave out."""
    uri = f"{small['uri']}/0.bin"
    with dataio.stream(uri) as stream:
        assert b"".join(stream.iter_bytes()) == b"\0"
    dataio.delete(uri)
    assert not dataio.exists(uri)


def test_hdf5(small: dict[str, Any]) -> None:
    path = f"{small['folder']}/x.h5"
    assert dataio.read_hdf5(path, key="group/x").tolist() == [0, 1, 2, 3]
    with dataio.open_hdf5(path) as file:
        assert file.keys() == ["/group/x"]
        assert file.read(key="group/x").tolist() == [0, 1, 2, 3]


def test_pipeline_words(small: dict[str, Any]) -> None:
    """Those of the table that the examples leave out."""

    @dataio.custom_op
    def plus_one(x: Any) -> Any:
        return x + 1

    both = dataio.slots(["x", "y"]).using(dataio.chain().decode_bytes().custom(plus_one))
    pipe = dataio.pipeline(both, dataio.collate())
    batches = [[{"x": bytes([i]), "y": bytes([10 * i])} for i in part] for part in ((0, 1), (2,))]
    loader = pipe.bind(batches).run("numpy")
    assert isinstance(loader, dataio.DataLoader)
    with loader:
        found = [(batch["x"].ravel().tolist(), batch["y"].ravel().tolist()) for batch in loader]
    assert found == [([1, 2], [1, 11]), ([3], [21])]


def test_transport() -> None:
    try:
        dataio.configure_transport("s3", http_version="h2", max_attempts=2)
        told = dataio.current_config()["transport"]["s3"]
        assert (told["http_version"], told["attempts"]) == ("h2", 2)
    finally:
        dataio.clear_transport_overrides()


def test_low_level_gds(tmp_path: Path) -> None:
    import torch

    (tmp_path / "x").write_bytes(bytes(range(64)))
    if not dataio.gds_available():
        for call in (lambda: dataio.gds_open(str(tmp_path / "x")), lambda: dataio.gds_register_buffer(1 << 20, 64)):
            with pytest.raises(RuntimeError, match="gds unavailable"):
                call()
        with pytest.raises(ValueError, match="CUDA"):
            dataio.gds_read_into_tensor(str(tmp_path / "x"), torch.zeros(16))
        return
    tensor = torch.zeros(64, dtype=torch.uint8, device="cuda")
    with dataio.gds_open(str(tmp_path / "x")), dataio.gds_register_buffer(tensor.data_ptr(), 64):
        assert dataio.gds_read_into_tensor(str(tmp_path / "x"), tensor) == 64
    assert tensor.tolist() == list(range(64))
