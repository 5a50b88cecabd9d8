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


def test_arrays_of_ml_dtypes_are_tensors_of_torch_and_refused_by_numpy() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    bound = dataio.pipeline(dataio.slot("x").decode(dataio.decoders.array()), dataio.batch(1)).bind([{"x": np.ones(2, ml_dtypes.bfloat16)}])
    (batch,) = bound.run("torch")
    assert torch.equal(batch["x"], torch.ones(1, 2, dtype=torch.bfloat16))
    (batch,) = bound.run("numpy")
    with pytest.raises(RuntimeError, match='bfloat16: use output="torch"'):
        batch["x"]


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


def write_latents(folder: Path, count: int) -> list[dict[str, str]]:
    for i, tensor in enumerate(latents(count)):
        save_file({"x": tensor}, folder / f"{i}.safetensors")
    return [{"latent": str(folder / f"{i}.safetensors")} for i in range(count)]


def latents_of(records: list[dict[str, str]], workers: str) -> tuple[list[np.ndarray], list[tuple[int, int, str]]]:
    pipe = dataio.pipeline(dataio.slot("latent").decode_safetensors(tensor_key="x"), dataio.batch(4))
    batches = list(pipe.bind(records).run("numpy", workers=workers, on_failure="skip"))
    return [row for b in batches for row in b["latent"]], [(n, e["index"], e["type"]) for n, b in enumerate(batches) for e in b.errors]


@pytest.mark.parametrize("workers", ["thread", "process"])
def test_files_of_one_layout_are_read_by_the_column(tmp_path: Path, workers: str) -> None:
    found, errors = latents_of(write_latents(tmp_path, 16), workers)
    assert np.array_equal(found, [t.numpy() for t in latents(16)])
    assert errors == []


@pytest.mark.parametrize("workers", ["thread", "process"])
def test_a_file_of_another_layout_among_them_is_read_by_itself(tmp_path: Path, workers: str) -> None:
    records = write_latents(tmp_path, 16)
    expected = [t.numpy() for t in latents(16)]
    save_file({"x": torch.from_numpy(expected[6]), "y": torch.zeros(3)}, records[6]["latent"])
    save_file({"x": torch.from_numpy(expected[9])}, records[9]["latent"], metadata={"made": "by hand"})
    save_file({"x": torch.zeros(2, 2)}, records[13]["latent"])
    expected[13] = np.zeros((2, 2), np.float32)
    found, errors = latents_of(records, workers)
    assert [np.array_equal(a, b) for a, b in zip(found, expected, strict=True)] == [True] * 16
    assert errors == []


@pytest.mark.parametrize("workers", ["thread", "process"])
def test_a_file_that_is_damaged_among_them_is_the_error_of_its_record(tmp_path: Path, workers: str) -> None:
    records = write_latents(tmp_path, 16)
    content = Path(records[5]["latent"]).read_bytes()
    Path(records[5]["latent"]).write_bytes(content[:-1])
    Path(records[6]["latent"]).write_bytes(content + b"\0")
    Path(records[10]["latent"]).unlink()
    found, errors = latents_of(records, workers)
    assert len(found) == 13
    assert errors == [(1, 1, "OpError"), (1, 2, "OpError"), (2, 2, "FileNotFoundError")]


def test_every_file_with_a_header_of_its_own(tmp_path: Path) -> None:
    records = write_latents(tmp_path, 12)
    for i, (record, tensor) in enumerate(zip(records, latents(12), strict=True)):
        save_file({"x": tensor}, record["latent"], metadata={"number": str(i)})
    found, errors = latents_of(records, "thread")
    assert np.array_equal(found, [t.numpy() for t in latents(12)])
    assert errors == []
