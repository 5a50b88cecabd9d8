"""Batch buffers: they come back when the last view dies, never before, and the pool keeps no more than it may."""

from __future__ import annotations

import gc
import io
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import dataio
from dataio.engine.buffers import BufferPool, memory_file, size_class
from dataio.engine.registry import lookup, register_kernel, register_op
from dataio.engine.schema import TensorType
from dataio.io import resolve

from .helpers import npy, numbers, ops

__all__ = ["ops"]

FLOAT = np.dtype(np.float32)
FD = Path("/proc/self/fd")


def descriptors() -> int:
    """Memory files that some descriptor of this process holds open (`mmap` keeps one of its own)."""
    files = set()
    for link in FD.iterdir():
        try:
            if "memfd:dataio" in os.readlink(link):
                files.add(os.stat(link).st_ino)
        except FileNotFoundError:  # the listing's own
            continue
    return len(files)


@given(st.integers(0, 1 << 34))
def test_size_classes_waste_at_most_an_eighth(nbytes: int) -> None:
    size = size_class(nbytes)
    assert size >= max(nbytes, 1)
    assert size % os.sysconf("SC_PAGESIZE") == 0
    assert size - nbytes <= max(nbytes // 8, os.sysconf("SC_PAGESIZE"))
    assert size_class(size) == size


VIEWS: list[Any] = [
    pytest.param(lambda a: a, id="array"),
    pytest.param(lambda a: a[1:2], id="slice"),
    pytest.param(lambda a: a.reshape(-1)[::7], id="strided"),
    pytest.param(lambda a: a.T, id="transposed"),
    pytest.param(memoryview, id="memoryview"),
    pytest.param(torch.from_dlpack, id="torch-dlpack"),
    pytest.param(torch.from_numpy, id="torch-numpy"),
    pytest.param(lambda a: torch.from_dlpack(a)[0, 1:], id="torch-view"),
    pytest.param(lambda a: dataio.DlpackTensor(a).__dlpack__(), id="capsule"),
]


@pytest.mark.parametrize("shared", [False, True], ids=["heap", "shared"])
@pytest.mark.parametrize("view_of", VIEWS)
def test_a_buffer_comes_back_exactly_when_its_last_view_dies(view_of: Any, shared: bool) -> None:
    pool = BufferPool(shared=shared)
    block = pool.acquire((3, 5), FLOAT)
    identity = block.mapping.identity
    view = view_of(block.array)
    del block
    gc.collect()
    other = pool.acquire((3, 5), FLOAT)
    assert other.mapping.identity != identity
    assert pool.stats()["hits"] == 0
    del view
    again = pool.acquire((3, 5), FLOAT)
    assert again.mapping.identity == identity
    assert pool.stats()["hits"] == 1
    del other, again
    pool.close()


def test_blocks_are_writable_and_aligned() -> None:
    pool = BufferPool()
    block = pool.acquire((2, 3), np.dtype(np.int16))
    block.array[...] = 7
    assert block.array.flags.c_contiguous
    assert block.array.ctypes.data % 4096 == 0
    assert pool.acquire((0, 3), FLOAT).array.shape == (0, 3)
    assert pool.acquire((), FLOAT).array.shape == ()
    pool.close()


@pytest.mark.skipif(not FD.exists(), reason="needs /proc")
def test_shared_memory_is_given_back() -> None:
    before = descriptors()
    pool = BufferPool(shared=True)
    blocks = [pool.acquire((1000,), FLOAT) for _ in range(5)]
    assert descriptors() == before + 5
    kept = blocks[0].array
    kept[:] = 3
    del blocks
    assert descriptors() == before + 5, "free buffers stay for the next batch"
    pool.close()
    assert descriptors() == before + 1, "only the one that is looked at"
    assert kept.sum() == 3000
    del kept
    gc.collect()
    assert descriptors() == before
    assert pool.stats()["resident_bytes"] == 0


def test_shared_memory_is_seen_through_its_descriptor() -> None:
    pool = BufferPool(shared=True)
    block = pool.acquire((4,), FLOAT)
    block.array[:] = [1, 2, 3, 4]
    seen = np.frombuffer(os.pread(block.mapping.descriptor, 16, 0), np.float32)
    np.testing.assert_array_equal(seen, [1, 2, 3, 4])
    pool.close()


def test_a_memory_file_without_memfd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create", raising=False)
    descriptor = memory_file(8192)
    try:
        assert os.fstat(descriptor).st_size == 8192
        assert os.fstat(descriptor).st_nlink == 0
    finally:
        os.close(descriptor)


def test_free_buffers_are_bounded() -> None:
    page = size_class(1)
    pool = BufferPool(keep_bytes=2 * page)
    blocks = [pool.acquire((page,), np.dtype(np.uint8)) for _ in range(5)]
    assert pool.stats() == {"hits": 0, "misses": 5, "resident_bytes": 5 * page, "peak_bytes": 5 * page}
    blocks.clear()
    assert pool.stats()["resident_bytes"] == 2 * page
    blocks = [pool.acquire((page,), np.dtype(np.uint8)) for _ in range(3)]
    assert pool.stats() == {"hits": 2, "misses": 6, "resident_bytes": 3 * page, "peak_bytes": 5 * page}
    del blocks
    pool.close()
    pool.close()
    assert pool.stats()["resident_bytes"] == 0


def test_buffers_may_be_dropped_on_any_thread() -> None:
    pool = BufferPool(keep_bytes=1 << 20)

    def churn() -> None:
        for i in range(200):
            block = pool.acquire((1 + i % 3, 1000), FLOAT)
            block.array[:] = i
            assert (block.array == i).all()

    threads = [threading.Thread(target=churn) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stats = pool.stats()
    assert stats["hits"] + stats["misses"] == 800
    pool.close()
    assert pool.stats()["resident_bytes"] == 0


def png(level: int) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (64, 64), (level, level, level)).save(out, "PNG")
    return out.getvalue()


@pytest.mark.parametrize("workers", ["thread", "process"])
@pytest.mark.parametrize("output", ["numpy", "torch", "dlpack"])
def test_a_retained_batch_never_changes(output: str, workers: str) -> None:
    """Every third batch is kept while the others' buffers go round."""
    source = [{"x": png(i)} for i in range(60)]
    pipe = dataio.pipeline(dataio.slot("x").decode_image().center_crop(h=64, w=64), dataio.batch(2))
    with pipe.bind(source).run(output, workers=workers) as loader:
        kept = []
        for i, batch in enumerate(loader):
            if i % 3 == 0:
                kept.append((i, batch["x"]))
        del batch
        reused = loader.stats()["buffers"]["hits"]
    assert reused > 0
    for i, tensor in kept:
        rows = np.from_dlpack(tensor)
        assert rows.shape == (2, 64, 64, 3)
        assert (rows[0] == 2 * i).all()
        assert (rows[1] == 2 * i + 1).all()


@pytest.mark.parametrize("output", ["numpy", "torch", "dlpack", "arrow"])
def test_outputs_view_the_batch_buffer(output: str) -> None:
    with numbers().bind([{"x": npy(np.ones((4, 5), np.float32))}] * 3).run(output) as loader:
        (batch,) = loader
    inner = batch._finished.slots["x"].dense
    assert inner is not None
    tensor = batch["x"]
    rows = tensor.to_numpy_ndarray() if output == "arrow" else np.from_dlpack(tensor)
    assert np.shares_memory(rows, inner)
    assert rows.ctypes.data == inner.ctypes.data


def test_a_local_file_is_not_copied_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was read for the record is what the batch hands out."""
    made: list[np.ndarray] = []
    read = resolve.read_file

    def noting(*args: Any, **kwargs: Any) -> np.ndarray:
        made.append(read(*args, **kwargs))
        return made[-1]

    monkeypatch.setattr(resolve, "read_file", noting)
    paths = [tmp_path / f"{i}.bin" for i in range(3)]
    for i, path in enumerate(paths):
        path.write_bytes(b"x" * (10 + i))
    pipe = dataio.pipeline(dataio.slot("x").decode_bytes(), dataio.batch(3))
    with pipe.bind([{"x": str(path)} for path in paths]).run("numpy") as loader:
        (batch,) = loader
    assert len(made) == 3
    for row, array in zip(batch["x"], sorted(made, key=len)):
        assert np.shares_memory(row, array)


@pytest.mark.usefixtures("ops")
def test_the_out_kernel_writes_the_memory_of_the_batch() -> None:
    written: list[int] = []
    register_op("into_probe", infer=lambda given: TensorType((4, 5), "float32"))(lambda value: value)

    @register_kernel("into_probe", "out")
    def into(value: np.ndarray, out: np.ndarray) -> None:
        written.append(out.ctypes.data)
        out[...] = value

    call = lookup("into_probe", "transform").call()
    with numbers(call, size=3).bind([{"x": npy(np.ones((4, 5), np.float32))}] * 3).run("numpy") as loader:
        (batch,) = loader
    assert sorted(written) == [batch["x"][i].ctypes.data for i in range(3)]
