"""safetensors: one file, a sharded checkpoint, parts of a large file, and tensors as training data.

    python examples/safetensors_checkpoints.py

Every path may be a URI (`s3://bucket/step-100/`) as well. A checkpoint is replaced as a whole: whoever reads it meanwhile,
or after a crash, finds the old one or the new one.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

import dataio


def one_file(folder: Path) -> None:
    """Local files are mapped into memory, not read."""
    tensors = {"embed": torch.randn(1000, 64), "norm": torch.ones(64, dtype=torch.bfloat16)}
    dataio.write_safetensors(folder / "model.safetensors", tensors, metadata={"step": 100})
    with dataio.open_safetensors(folder / "model.safetensors") as file:
        print("tensors:", file.keys(), file.metadata)
        print("rows:", tuple(file.read_slice("embed", 10, 20, framework="torch").shape))
        print("array:", file.read(key="norm").dtype)
    try:
        dataio.read_safetensors(folder / "model.safetensors", key="nrom")
    except KeyError as error:
        print("error:", str(error).partition(" holds ")[2])


def checkpoint(folder: Path) -> None:
    """Shards of at most 300 kB, with the index that other libraries read too."""
    state = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Linear(256, 256)).state_dict()
    for step in (100, 200):
        index = dataio.write_safetensors(folder / "checkpoint", state, max_shard_size="300KB", metadata={"step": step})
    print("shards:", len(set(index["weight_map"].values())), index["metadata"])
    found = dataio.read_safetensors(folder / "checkpoint", framework="torch")
    print("same:", all(torch.equal(found[name], tensor) for name, tensor in state.items()))


def latents(folder: Path) -> None:
    """One tensor of each file straight into the batch."""
    for i in range(8):
        dataio.write_safetensors(folder / f"{i}.safetensors", {"latent": torch.full((4, 16, 16), float(i))})
    records = [{"latent": str(folder / f"{i}.safetensors")} for i in range(8)]
    pipe = dataio.pipeline(dataio.slot("latent").decode_safetensors(tensor_key="latent"), dataio.batch(4))
    with pipe.bind(records).run("torch") as loader:
        for batch in loader:
            print("batch:", tuple(batch["latent"].shape))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        one_file(Path(folder))
        checkpoint(Path(folder))
        latents(Path(folder))


if __name__ == "__main__":
    main()
