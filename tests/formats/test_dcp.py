"""`read_dcp` and `consolidate_dcp` on what torch.distributed.checkpoint saves, alone and from two ranks, and on damaged folders."""

from __future__ import annotations

import pickle
import subprocess
import sys
import warnings
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

import dataio
from dataio.engine.errors import LimitError, OpError
from dataio.formats.weights import dcp as module
from dataio.formats.weights.dcp_metadata import read_metadata

STATE = {
    "model": {
        "weight": torch.arange(12.0).reshape(3, 4),
        "bias": torch.ones(3, dtype=torch.bfloat16),
        "mask": torch.tensor([True, False]),
        "empty": torch.zeros(0, 4),
    },
    "scale": torch.tensor(1.00390625),
    "step": 3,
    "extra": {"list": [1, torch.ones(2)]},
}
FLAT = {
    "extra.list.1": torch.ones(2),
    **{f"model.{name}": STATE["model"][name] for name in sorted(STATE["model"])},
    "scale": STATE["scale"],
}


def save(state, folder):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(state, checkpoint_id=str(folder))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("dcp") / "step_3"
    save(STATE, path)
    return path


def assert_same(found, expected):
    assert list(found) == list(expected)
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype, name
        assert torch.equal(found[name], tensor), name


def test_tensors_come_under_their_full_names_sorted(folder):
    assert_same(dataio.read_dcp(folder), FLAT)
    assert_same(dataio.consolidate_dcp(str(folder)), FLAT)
    arrays = dataio.read_dcp(folder, framework="numpy")
    assert arrays["model.bias"].dtype == ml_dtypes.bfloat16
    assert arrays["model.weight"].tolist() == STATE["model"]["weight"].tolist()


def test_they_are_written_as_one_safetensors_file(folder, tmp_path):
    out = tmp_path / "new" / "all.safetensors"
    result = dataio.consolidate_dcp(folder, out)
    assert_same(dict(sorted(safetensors.torch.load_file(out).items())), FLAT)
    assert result == {"tensors": 6, "bytes": sum(t.nbytes for t in FLAT.values()), "skipped_byte_io": 2}


@pytest.mark.parametrize(
    ("keys", "names", "skipped"),
    [
        ("model.b", ["model.bias"], 0),
        (["scale", "ex"], ["extra.list.1", "scale"], 1),
        (("s",), ["scale"], 1),
        (lambda name: name.endswith("t"), ["model.weight"], 0),
        ("", list(FLAT), 2),
    ],
    ids=["prefix", "prefixes", "tuple", "predicate", "all"],
)
def test_keys_choose(folder, tmp_path, keys, names, skipped):
    assert list(dataio.read_dcp(folder, keys=keys)) == names
    result = dataio.consolidate_dcp(folder, tmp_path / "x.safetensors", keys=keys)
    assert (result["tensors"], result["skipped_byte_io"]) == (len(names), skipped)


@pytest.mark.parametrize("keys", ["nothing", [], lambda name: False])
def test_choosing_nothing_is_an_error_and_writes_nothing(folder, tmp_path, keys):
    with pytest.raises(ValueError, match="chooses none of 6 tensors"):
        dataio.consolidate_dcp(folder, tmp_path / "x.safetensors", keys=keys)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("keys", [3, [1]])
def test_keys_of_other_types_are_refused(folder, keys):
    with pytest.raises(TypeError, match="a prefix, several, or a predicate"):
        dataio.read_dcp(folder, keys=keys)


def test_bf16_rounds_float32_only_and_takes_empty_tensors(folder, tmp_path):
    expected = {name: t.to(torch.bfloat16) if t.dtype == torch.float32 else t for name, t in FLAT.items()}
    assert_same(dataio.read_dcp(folder, bf16=True), expected)
    dataio.consolidate_dcp(folder, tmp_path / "x.safetensors", bf16=True)
    assert_same(dict(sorted(safetensors.torch.load_file(tmp_path / "x.safetensors").items())), expected)


def test_from_a_store_to_a_store(folder, s3_bucket):
    for path in folder.iterdir():
        dataio.write(f"{s3_bucket}/run/step_3/{path.name}", path.read_bytes())
    assert_same(dataio.read_dcp(f"{s3_bucket}/run/step_3/"), FLAT)
    dataio.consolidate_dcp(f"{s3_bucket}/run/step_3", f"{s3_bucket}/all.safetensors")
    assert_same(dict(sorted(safetensors.torch.load(bytes(dataio.read(f"{s3_bucket}/all.safetensors"))).items())), FLAT)


RANKS = """
import os, sys, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
folder, store = sys.argv[1:]
child = os.fork()  # torch is imported once
rank = int(child == 0)
dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)
mesh = init_device_mesh("cpu", (2,))
whole = torch.arange(35.0).reshape(5, 7)
state = {
    "rows": distribute_tensor(whole, mesh, [Shard(0)]),
    "columns": distribute_tensor(whole, mesh, [Shard(1)]),
    "copies": distribute_tensor(whole, mesh, [Replicate()]),
    "one": distribute_tensor(whole[:1].to(torch.bfloat16), mesh, [Shard(0)]),
}
dcp.save(state, checkpoint_id=folder)
dist.destroy_process_group()
if child:
    sys.exit(os.waitpid(child, 0)[1])
"""


def test_shards_of_two_ranks_along_any_axis(tmp_path):
    folder, store = tmp_path / "dcp", tmp_path / "store"
    subprocess.run([sys.executable, "-W", "ignore", "-c", RANKS, str(folder), str(store)], cwd=tmp_path, check=True, timeout=100)
    assert len(list(folder.glob("*.distcp"))) == 2
    whole = torch.arange(35.0).reshape(5, 7)
    expected = {"columns": whole, "copies": whole, "one": whole[:1].to(torch.bfloat16), "rows": whole}
    assert_same(dataio.read_dcp(folder), expected)


def test_large_chunks_are_read_by_parts_and_tensors_wait_their_turn(tmp_path, monkeypatch):
    state = {f"t{i}": torch.arange(2000.0) + i for i in range(20)}
    save(state, tmp_path / "dcp")
    monkeypatch.setattr(module, "SMALL", 100)
    monkeypatch.setattr(module, "AHEAD", 20_000)
    dataio.consolidate_dcp(tmp_path / "dcp", tmp_path / "x.safetensors")
    assert_same(safetensors.torch.load_file(tmp_path / "x.safetensors"), dict(sorted(state.items())))


# ----------------------------------------------------------------- bad input


def test_a_missing_checkpoint_is_not_found(tmp_path, folder):
    with pytest.raises(FileNotFoundError, match="metadata"):
        dataio.read_dcp(tmp_path)
    (tmp_path / ".metadata").write_bytes((folder / ".metadata").read_bytes())
    with pytest.raises(FileNotFoundError, match="distcp"):
        dataio.read_dcp(tmp_path)


@pytest.fixture
def copy(folder, tmp_path):
    """A copy of the folder, and a function that changes its metadata."""
    path = tmp_path / "copy"
    path.mkdir()
    for file in folder.iterdir():
        (path / file.name).write_bytes(file.read_bytes())

    def change(edit):
        metadata = pickle.loads((path / ".metadata").read_bytes())
        edit(metadata)
        (path / ".metadata").write_bytes(pickle.dumps(metadata))
        return path

    return change


def place_of(metadata, name):
    return next(place for index, place in metadata.storage_data.items() if index.fqn == name)


def chunk(offsets, sizes):
    return ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes))


def edit_chunks(*chunks, size=(3, 4)):
    def edit(metadata):
        entry = metadata.state_dict_metadata["model.weight"]
        entry.chunks, entry.size = list(chunks), torch.Size(size)
        for one in chunks:
            metadata.storage_data[MetadataIndex("model.weight", one.offsets)] = place_of(metadata, "model.weight")

    return edit


def edit_place(**values):
    def edit(metadata):
        for name, value in values.items():
            setattr(place_of(metadata, "model.weight"), name, value)

    return edit


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        (edit_chunks(chunk((0, 0), (2, 4))), "leave a gap"),
        (edit_chunks(), "leave a gap"),
        (edit_chunks(chunk((0, 0), (3, 4)), chunk((0, 0), (3, 4))), "overlap"),
        (edit_chunks(chunk((0, 0), (2, 4)), chunk((1, 0), (1, 4))), "overlap, and leave a gap"),
        (edit_chunks(chunk((1, 0), (3, 4))), "is not inside"),
        (edit_chunks(chunk((0,), (3,))), "has 2 axes, a chunk of it 1"),
        (edit_chunks(chunk((0, 0), (1 << 40, 4)), size=(1 << 40, 4)), "chunk of 17592186044416 bytes, of which"),
        (edit_chunks(chunk((0, 0), (4, 3)), size=(4, 3)), r"has float32\(3, 4\), not float32\(4, 3\)"),
        (edit_place(relative_path="../other"), "not one of the folder"),
        (edit_place(relative_path="/etc/passwd"), "not one of the folder"),
        (edit_place(offset=1 << 40), "is truncated"),
        (edit_place(length=1 << 40), "is truncated"),
        (edit_place(offset=-1), "is said to be at -1"),
        (edit_place(offset=7), "tensor 'model.weight'|not a torch checkpoint"),
        (edit_place(transform_descriptors=["stream.zstd"]), "through extensions"),
        (lambda metadata: metadata.storage_data.clear(), "is in no file"),
    ],
)
def test_damaged_metadata_is_refused_with_the_name(copy, edit, why):
    path = copy(edit)
    with pytest.raises(OpError, match=why) as caught:
        dataio.read_dcp(path)
    assert str(path) in str(caught.value)


def test_chunks_that_share_bytes_take_no_memory(copy):
    def edit(metadata):
        for i in range(100):
            metadata.state_dict_metadata[f"t{i}"] = metadata.state_dict_metadata["model.weight"]
            metadata.storage_data[MetadataIndex(f"t{i}", torch.Size((0, 0)))] = place_of(metadata, "model.weight")

    with pytest.raises(OpError, match="is said to hold chunks of"):
        dataio.read_dcp(copy(edit))


def test_a_file_cut_short_is_an_error_and_writes_nothing(copy, tmp_path):
    path = copy(lambda metadata: None)
    file = next(path.glob("*.distcp"))
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(OpError, match="is truncated"):
        dataio.consolidate_dcp(path, tmp_path / "x.safetensors")
    assert not list(tmp_path.glob("x*"))


def test_a_chunk_damaged_midway_leaves_the_old_file(copy, tmp_path):
    path = copy(lambda metadata: None)
    file = next(path.glob("*.distcp"))
    place = place_of(pickle.loads((path / ".metadata").read_bytes()), "scale")
    data = bytearray(file.read_bytes())
    data[place.offset : place.offset + 4] = b"junk"
    file.write_bytes(data)
    out = tmp_path / "x.safetensors"
    out.write_bytes(b"old")
    with pytest.raises(OpError, match="not a torch checkpoint"):
        dataio.consolidate_dcp(path, out)
    assert out.read_bytes() == b"old"
    assert list(tmp_path.glob("x*")) == [out]


class Evil:
    def __reduce__(self):
        return Path.mkdir, (Path("evil"),)


def test_nothing_is_executed(copy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = copy(lambda metadata: setattr(metadata, "planner_data", Evil()))
    assert_same(dataio.read_dcp(path), FLAT)
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize("value", [{}, 3, TensorProperties(), {"a": Metadata({})}], ids=["dict", "int", "object", "nested"])
def test_other_pickles_are_refused(tmp_path, value):
    (tmp_path / ".metadata").write_bytes(pickle.dumps(value))
    with pytest.raises(OpError, match="does not describe"):
        dataio.read_dcp(tmp_path)


def test_every_cut_of_the_metadata_is_an_error(folder):
    whole = (folder / ".metadata").read_bytes()
    for length in range(0, len(whole) - 1, 23):
        with pytest.raises(OpError):
            read_metadata(whole[:length])


def test_chunks_of_a_tensor_are_limited():
    many = [chunk((i,), (1,)) for i in range((1 << 14) + 1)]
    entry = TensorStorageMetadata(TensorProperties(torch.float32), torch.Size([len(many)]), many)
    metadata = read_metadata(pickle.dumps(Metadata({"t": entry}, storage_data={})))
    with pytest.raises(LimitError, match="16385 chunks"):
        metadata.entry("t")


def test_what_safetensors_does_not_have_is_named(tmp_path):
    save({"z": torch.zeros(2, dtype=torch.complex128)}, tmp_path / "dcp")
    assert dataio.read_dcp(tmp_path / "dcp", framework="numpy")["z"].dtype == np.complex128
    with pytest.raises(OpError, match="tensor 'z' has elements of type complex128"):
        dataio.consolidate_dcp(tmp_path / "dcp", tmp_path / "x.safetensors")
