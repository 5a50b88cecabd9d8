"""Tensor files through whole pipelines: element types that NumPy lacks, rows read in place, one file for many records."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save, save_file

import dataio
from dataio import col


def latents(count: int, dtype: torch.dtype = torch.float32, shape: tuple[int, ...] = (4, 8)) -> list[torch.Tensor]:
    return [(torch.arange(torch.Size(shape).numel()).reshape(shape) + i).to(dtype) for i in range(count)]


@pytest.mark.parametrize("workers", ["thread", "process"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64])
def test_a_tensor_per_record_keeps_its_element_type(dtype: torch.dtype, workers: str) -> None:
    tensors = latents(10, dtype)
    records = [{"latent": save({"x": t})} for t in tensors]
    pipe = dataio.pipeline(dataio.slot("latent").decode_safetensors(tensor_key="x"), dataio.batch(4))
    found = [b["latent"] for b in pipe.bind(records).run("torch", workers=workers)]
    assert {b.dtype for b in found} == {dtype}
    assert torch.equal(torch.cat(found).float(), torch.stack(tensors).float())


def test_numpy_says_which_output_has_bfloat16() -> None:
    records = [{"latent": save({"x": torch.zeros(2, dtype=torch.bfloat16)})}]
    pipe = dataio.pipeline(dataio.slot("latent").decode_safetensors(tensor_key="x"), dataio.batch(1))
    for batch in pipe.bind(records).run("numpy"):
        with pytest.raises(RuntimeError, match='bfloat16: use output="torch"'):
            batch["latent"]


def test_one_file_serves_many_records_by_a_key_column(tmp_path: Path) -> None:
    tensors = latents(30)
    save_file({f"t{i}": t for i, t in enumerate(tensors)}, tmp_path / "all.safetensors")
    records = [{"latent": str(tmp_path / "all.safetensors"), "which": f"t{i}"} for i in range(30)]
    pipe = dataio.pipeline(dataio.slot("latent").decode_safetensors(tensor_key=col("which")), dataio.batch(8))
    found = [b["latent"] for b in pipe.bind(records).run("torch")]
    assert torch.equal(torch.cat(found), torch.stack(tensors))


@pytest.mark.parametrize("workers", ["thread", "process"])
def test_rows_that_break_the_pattern_of_the_batch_before_are_delivered_as_they_are(workers: str) -> None:
    """The row type of one batch is guessed for the next; a wrong guess changes nothing but the time it takes."""
    shapes = [(2, 3)] * 8 + [(2, 3), (4, 3), (2, 3), (2, 3)] + [(5,)] * 4 + [(2, 3)] * 4
    rows = [np.full(shape, i, np.float32) for i, shape in enumerate(shapes)]
    records = [{"latent": save({"x": torch.from_numpy(row)})} for row in rows]
    records[17] = {"latent": b"damaged"}
    pipe = dataio.pipeline(dataio.slot("latent").decode_safetensors(tensor_key="x"), dataio.batch(4))
    batches = list(pipe.bind(records).run("numpy", workers=workers))
    assert [isinstance(b["latent"], list) for b in batches] == [False, False, True, False, False]
    found = [row for b in batches for row in b["latent"]]
    assert all(np.array_equal(a, b) for a, b in zip(found, rows[:17] + rows[18:], strict=True))
    assert [e["index"] for b in batches for e in b.errors] == [1]


def test_a_key_column_without_the_key_names_record_and_field() -> None:
    records = [{"latent": save({"x": torch.zeros(2)}), "which": name} for name in ("x", "y")]
    pipe = dataio.pipeline(dataio.slot("latent").decode_safetensors(tensor_key=col("which")), dataio.batch(2))
    (batch,) = pipe.bind(records).run("torch")
    (error,) = batch.errors
    assert error["index"] == 1
    assert "'y'" in error["message"]
