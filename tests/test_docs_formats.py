"""docs/formats.md keeps its word: its Python runs, its limits and requests are those of the code, every option is named."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import dataio
from dataio.io.store import forget_stores, register_store

from .shelf import Shelf

pytestmark = pytest.mark.usefixtures("two_workers", "no_leftovers")
ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
HELPERS = sorted(
    {"decode_image_batch", "read_image", "tfrecord", *(name for name, place in dataio._NAMES.items() if place.startswith("formats.") and name.islower())}
)


def rows(heading: str) -> list[list[str]]:
    """The cells of the table whose first heading this is."""
    (table,) = re.findall(rf"^\| {heading} \|.*\n\|[ -|]*\n((?:\|.*\n)+)", TEXT, re.MULTILINE)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory; the blocks make what they read."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_python_blocks(folder: Path) -> None:
    scope: dict[str, Any] = {}
    for i, block in enumerate(BLOCKS):
        exec(compile(block, f"docs/formats.md, Python block {i + 1}", "exec"), scope)
    assert str(scope["weights"].dtype) == "torch.float32"
    assert scope["labels"].tolist() == [0, 1, 2]
    assert [array.shape for array in scope["several"]] == [(2, 3)] * 2
    assert tuple(scope["picture"].shape) == (1, 120, 160)
    assert list(scope["columns"]) == ["id", "height"]
    assert scope["columns"]["id"] == list(range(3_010, 3_015))
    assert (scope["about"], scope["read"]) == (10, [0, 1])
    assert len(scope["table"]) == scope["left"] == sum(map(len, scope["heights"])) > 3 == len(scope["rows"])
    assert (scope["first"], scope["examples"][1]) == ({"label": [1]}, {"label": [2]})
    assert scope["boxes"] == [(8, 3)] * 5
    assert [row["id"] for row in scope["found"]] == [*range(2, 40, 6), *range(5, 40, 6)]
    assert scope["names"] == ["/camera/frames", "/camera/times"]
    assert (scope["last"].shape, tuple(scope["frames"].shape), scope["crop"].shape) == ((48, 64), (19, 48, 64), (10, 32, 3))
    assert (scope["norm"].dtype.name, tuple(scope["part"].shape), list(scope["both"])) == ("bfloat16", (10, 64), ["norm", "embed"])
    assert len(set(scope["index"]["weight_map"].values())) == 2
    for found in (scope["again"], scope["tensors"]):
        assert all(found[name].equal(tensor) for name, tensor in scope["state"].items())
    assert sorted(scope["layer"]) == ["model.0.bias", "model.0.weight"]
    assert scope["counts"] == {"tensors": 4, "bytes": 2 * (256 * 256 + 256) * 2, "skipped_byte_io": 0}
    assert len(scope["packed"]) < len(scope["raw"])
    assert (len(scope["images"]), len(scope["errors"])) == (1, 0 if dataio.nvjpeg_available() else 1)
    assert scope["small"].shape == (120, 160, 3)


@pytest.fixture
def shelf() -> Iterator[Shelf]:
    made = Shelf()
    register_store("shelf", lambda uri: made)
    yield made
    forget_stores("shelf")


READS: dict[str, Callable[[], Any]] = {  # by the first cell of the table of requests
    "`read_image`, `read_feather`": lambda: (dataio.read_image("shelf://x.png"), dataio.read_feather("shelf://x.arrow")),
    "`read_tfrecord`, `iter_tfrecord`": lambda: (dataio.read_tfrecord("shelf://x.tfrecord"), *dataio.iter_tfrecord("shelf://x.tfrecord")),
    "`read_numpy` of an .npy": lambda: dataio.read_numpy("shelf://x.npy"),
    "`parquet_metadata`": lambda: dataio.parquet_metadata("shelf://x.parquet"),
    "`read_parquet`, one column of one row group": lambda: dataio.read_parquet("shelf://x.parquet", columns=["c3"], row_groups=[1]),
    "`read_safetensors`, one tensor or all": lambda: dataio.read_safetensors("shelf://x.safetensors"),
    "`read_hdf5`, rows of a data set": lambda: dataio.read_hdf5("shelf://x.h5", key="x", selection=slice(490, 492)),
}


def test_requests_are_those_of_the_page(folder: Path, shelf: Shelf) -> None:
    h5py = pytest.importorskip("h5py")
    noise = np.random.default_rng(0).random((500, 400))
    dataio.write_image("x.png", np.zeros((4, 5, 3), np.uint8))
    dataio.write_feather("x.arrow", pa.table({"a": [1]}))
    dataio.write_tfrecord("x.tfrecord", [{"a": 1}] * 1000)
    dataio.write_numpy("x.npy", noise)
    dataio.write_parquet("x.parquet", pa.table({f"c{i}": noise.ravel() for i in range(5)}), row_group_size=40_000)
    dataio.write_safetensors("x.safetensors", {"a": noise, "b": noise + 1, "c": noise})
    with h5py.File("x.h5", "w") as file:
        file.create_dataset("x", data=noise, chunks=(50, 400), compression="gzip")
    shelf.objects = {path.name: path.read_bytes() for path in folder.iterdir()}
    table = rows("read")
    assert [what for what, _, _ in table] == list(READS)
    for what, requests, _ in table:
        shelf.requests = 0
        READS[what]()
        assert shelf.requests == int(requests) * (1 + what.count("`, `")), what
    shelf.requests = 0
    dataio.read_safetensors("shelf://x.safetensors", key="b")
    assert shelf.requests == 2


def test_limits_are_those_of_the_code() -> None:
    table = rows("limit")
    assert len(table) > 10
    for _, shown, place in table:
        file, constant = re.findall(r"`([^`]+)`", place)
        module = importlib.import_module(f"dataio.{file.removesuffix('.py').replace('/', '.')}")
        assert int(shown.replace(",", "")) == getattr(module, constant), place


@pytest.mark.parametrize("helper", HELPERS)
def test_every_helper_and_its_options_are_named(helper: str) -> None:
    assert f"`{helper}`" in TEXT
    names = [name for name, one in inspect.signature(getattr(dataio, helper)).parameters.items() if one.kind is one.KEYWORD_ONLY]
    assert [name for name in names if not re.search(rf"\b{name}\b", TEXT)] == []


def test_every_end_of_a_query_is_named() -> None:
    inner = {"expression", "as_source", "is_whole_file"}
    named = [name for name, one in vars(dataio.ParquetQuery).items() if inspect.isfunction(one) and not name.startswith("_") and name not in inner]
    assert len(named) > 20
    assert [name for name in named if f"`{name}`" not in TEXT] == []
