"""`webdataset(index=...)`: a sized source over shards, and the file that keeps its index."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import dataio
from dataio.engine.errors import CheckpointError
from dataio.io import verbs
from dataio.sources.tar_index import ShardIndex

from .test_webdataset import Put, loader_of, numbered, put, read, shelf, steps, tar

__all__ = ["put", "shelf"]  # fixtures
pytestmark = pytest.mark.usefixtures("two_workers", "no_leftovers")

N = 30
KEYS = [f"{i:04d}" for i in range(N)]


@pytest.fixture
def shards(put: Put) -> list[str]:
    return [put(f"{k}.tar", tar(numbered(10 * k, 10))) for k in range(3)]


def keys(loader: dataio.DataLoader, count: int | None = None) -> list[str]:
    return [key for batch, _ in steps(loader, count) for key in batch]


def test_an_indexed_source_gives_what_reading_forwards_gives(shards: list[str]) -> None:
    source = dataio.webdataset(shards, index=True)
    assert len(source) == N
    assert [read(sample) for sample in source] == [read(sample) for sample in dataio.webdataset(shards)]
    assert source.describe() == {"records": N, "record_maps": 0, "shuffle": None, "sequential": False, "shards": 3}


@pytest.mark.parametrize("workers", ["thread", "process"])
def test_samples_are_shuffled_over_all_shards(shards: list[str], workers: str) -> None:
    with loader_of(dataio.webdataset(shards, index=True).shuffle(seed=1), workers=workers) as loader:
        first, second = steps(loader), steps(loader)
    orders = [[key for batch, _ in found for key in batch] for found in (first, second)]
    assert sorted(orders[0]) == sorted(orders[1]) == KEYS
    assert orders[0] != orders[1] != KEYS
    assert len({key[2] for key in orders[0][:10]}) > 1
    assert all(float(key) == value for batch, values in first for key, value in zip(batch, values))


@pytest.mark.parametrize("cut", [0, 1, 4, 7])
def test_a_shuffled_pass_is_resumed_exactly(shards: list[str], cut: int) -> None:
    def loader() -> dataio.DataLoader:
        return loader_of(dataio.webdataset(shards, index=True).shuffle())

    with loader() as whole:
        expected = steps(whole)
    with loader() as first:
        head = steps(first, cut) if cut else []
        state = json.loads(json.dumps(first.state_dict()))
    with loader() as second:
        second.load_state_dict(state)
        assert head + steps(second) == expected


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_share_the_samples(shards: list[str], ranks: int) -> None:
    found: list[str] = []
    for rank in range(ranks):
        source = dataio.webdataset(shards, index=True).shuffle(seed=5)
        with loader_of(source, shard={"id": rank, "of": ranks, "pad": False}) as loader:
            found += keys(loader)
    assert sorted(found) == KEYS


def test_other_shards_do_not_fit_a_checkpoint(shards: list[str]) -> None:
    with loader_of(dataio.webdataset(shards, index=True)) as loader:
        steps(loader, 2)
        state = loader.state_dict()
    other = dataio.webdataset(shards[::-1] + shards[:1], index=True)
    with loader_of(other) as loader, pytest.raises(CheckpointError):  # noqa: PT012 - here or when it is read
        loader.load_state_dict(state)
        steps(loader)


def test_the_headers_of_small_entries_are_few_requests(shelf: Any) -> None:
    shelf.objects = {"0.tar": tar(numbered(0, 2000))}  # 4 MB
    dataio.webdataset("shelf://0.tar", index=True)
    assert shelf.requests < 12


def test_the_contents_of_large_entries_are_not_fetched(shelf: Any) -> None:
    shelf.objects = {"0.tar": tar([(f"{i}.bin", bytes(4 << 20)) for i in range(4)])}
    dataio.webdataset("shelf://0.tar", index=True)
    assert shelf.nbytes < 2 << 20


def test_a_compressed_shard_has_no_index(put: Put) -> None:
    with pytest.raises(ValueError, match=r"x\.tar is compressed"):
        dataio.webdataset(put("x.tar", gzip.compress(tar(numbered(0, 2)))), index=True)


# ----------------------------------------------------------------------------------------------------- the file


@pytest.fixture
def local(tmp_path: Path) -> list[str]:
    paths = [tmp_path / f"{k}.tar" for k in range(3)]
    for k, path in enumerate(paths):
        path.write_bytes(tar(numbered(10 * k, 10)))
    return [str(path) for path in paths]


def reused(uris: list[str], path: Path) -> int:
    return ShardIndex.of(uris, skip_damage=False, path=str(path)).reused


def test_a_kept_index_is_used_again(local: list[str], tmp_path: Path) -> None:
    path = tmp_path / "train.index"
    assert [reused(local, path) for _ in range(2)] == [0, 3]
    before = path.stat().st_mtime_ns, path.stat().st_ino
    assert [sample["__key__"] for sample in dataio.webdataset(local, index=path)] == KEYS
    assert (path.stat().st_mtime_ns, path.stat().st_ino) == before, "it is not written again"


def test_shards_that_changed_are_read_again(local: list[str], tmp_path: Path) -> None:
    path = tmp_path / "train.index"
    reused(local, path)
    Path(local[1]).write_bytes(tar(numbered(50, 4)))
    source = dataio.webdataset(local, index=path)
    assert [sample["__key__"] for sample in source] == KEYS[:10] + [f"{i:04d}" for i in range(50, 54)] + KEYS[20:]
    assert reused(local, path) == 3


def test_a_change_of_the_same_size_is_seen_by_its_time(local: list[str], tmp_path: Path) -> None:
    path = tmp_path / "train.index"
    reused(local, path)
    Path(local[1]).write_bytes(tar(numbered(40, 10)))
    os.utime(local[1], ns=(1, 1))
    assert reused(local, path) == 2
    assert [sample["__key__"] for sample in dataio.webdataset(local[1], index=path)] == [f"{i:04d}" for i in range(40, 50)]


def test_new_and_gone_shards_renew_the_file(local: list[str], tmp_path: Path) -> None:
    path = tmp_path / "train.index"
    assert [reused(local[:2], path), reused(local, path), reused(local[1:], path), reused(local, path)] == [0, 2, 2, 2]
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["0.tar", "1.tar", "2.tar", "train.index"]


def test_a_shard_that_is_named_twice_is_read_once(local: list[str], tmp_path: Path) -> None:
    path = tmp_path / "train.index"
    source = dataio.webdataset([local[0], local[0]], index=path)
    assert [sample["__key__"] for sample in source] == KEYS[:10] * 2
    assert reused([local[0], local[0]], path) == 1


def test_damage_is_kept_and_still_an_error(local: list[str], tmp_path: Path) -> None:
    path, cut = tmp_path / "train.index", Path(local[1])
    cut.write_bytes(cut.read_bytes()[:9000])
    skipping = dataio.webdataset(local, index=path, on_damage="skip")
    assert [s["__key__"] for s in skipping] == [s["__key__"] for s in dataio.webdataset(local, on_damage="skip")]
    assert reused([local[0], local[2]], path) == 2
    dataio.webdataset(local, index=path, on_damage="skip")
    with pytest.raises(ValueError, match=r"1\.tar is cut off"):
        dataio.webdataset(local, index=path)


def test_an_index_and_its_shards_in_a_bucket(s3_bucket: str, local: list[str]) -> None:
    uris = [f"{s3_bucket}/t/{k}.tar" for k in range(3)]
    for uri, path in zip(uris, local):
        verbs.write(uri, Path(path).read_bytes())
    index = f"{s3_bucket}/t/train.index"
    sources = [dataio.webdataset(f"{s3_bucket}/t/{{0..2}}.tar", index=index) for _ in range(2)]
    assert ShardIndex.of(uris, skip_damage=False, path=index).reused == 3
    with loader_of(sources[1].shuffle(seed=4)) as loader:
        found = steps(loader)
    assert sorted(key for batch, _ in found for key in batch) == KEYS
    assert all(float(key) == value for batch, values in found for key, value in zip(batch, values))
    assert [sample["__key__"] for sample in dataio.webdataset(uris)] == KEYS


# ------------------------------------------------------------------------------------------- files that are none


@pytest.mark.parametrize("kind", ["text", "empty", "arrow"])
def test_another_kind_of_file_is_refused_and_left_alone(local: list[str], tmp_path: Path, kind: str) -> None:
    path = tmp_path / "notes"
    if kind == "arrow":
        with pa.ipc.new_file(str(path), pa.schema({"x": pa.int8()})):
            pass
    else:
        path.write_bytes(b"my notes" if kind == "text" else b"")
    before = path.read_bytes()
    with pytest.raises(ValueError, match="no index of tar shards"):
        dataio.webdataset(local, index=path)
    assert path.read_bytes() == before


def rewritten(path: Path, change: Callable[[dict[str, Any]], None], columns: dict[str, Any] | None = None) -> None:
    """The index with other metadata or columns."""
    table = pa.ipc.open_file(path.read_bytes()).read_all()
    said = json.loads(table.schema.metadata[b"dataio.tar_index"])
    change(said)
    for name, values in (columns or {}).items():
        table = table.set_column(table.schema.get_field_index(name), name, pa.array(values))
    table = table.replace_schema_metadata({"dataio.tar_index": json.dumps(said)})
    with pa.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table)


LIES: dict[str, tuple[Callable[[dict[str, Any]], Any], dict[str, Any]]] = {
    "another version": (lambda said: said.update(version=99), {}),
    "no shards": (lambda said: said.pop("shards"), {}),
    "fewer shards": (lambda said: said["shards"].pop(), {}),
    "other fields": (lambda said: said["shards"][0].update(x=1), {}),
    "an offset far behind the end": (lambda said: None, {"offset": np.full(60, 2**62)}),
    "an offset that overflows": (lambda said: None, {"offset": np.full(60, 2**63 - 1), "size": np.full(60, 2**63 - 1)}),
    "a negative size": (lambda said: None, {"size": np.full(60, -1)}),
    "rows of no shard": (lambda said: None, {"shard": np.full(60, 7, np.int32)}),
    "rows out of order": (lambda said: None, {"shard": np.arange(60, dtype=np.int32)[::-1] % 3}),
    "other types": (lambda said: None, {"offset": np.zeros(60, np.float32)}),
}


@pytest.mark.parametrize("lie", LIES)
def test_an_index_that_lies_is_made_anew(local: list[str], tmp_path: Path, lie: str) -> None:
    path = tmp_path / "train.index"
    reused(local, path)
    rewritten(path, *LIES[lie])
    assert [reused(local, path) for _ in range(2)] == [0, 3]


@pytest.mark.parametrize("left", [8, 100, 2000, -1])
def test_an_index_that_is_cut_off_is_made_anew(local: list[str], tmp_path: Path, left: int) -> None:
    path = tmp_path / "train.index"
    reused(local, path)
    path.write_bytes(path.read_bytes()[:left])
    assert [reused(local, path) for _ in range(2)] == [0, 3]


def test_an_index_that_cannot_be_written_is_an_error_that_leaves_nothing(local: list[str], tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        dataio.webdataset(local, index=tmp_path / "absent" / "train.index")
    assert not (tmp_path / "absent").exists()


def test_an_index_holds_names_that_are_no_utf8(tmp_path: Path) -> None:
    name = b"\xff\xfe.x".decode("utf-8", "surrogateescape")
    shard = tmp_path / "0.tar"
    shard.write_bytes(tar([(name, b"1")], 1))
    for _ in range(2):
        (sample,) = dataio.webdataset(shard, index=tmp_path / "i")
        assert (sample["__key__"], bytes(sample["x"].read_all())) == (name[:-2], b"1")
    assert verbs.read(str(tmp_path / "i"))
