"""Torch checkpoints without running what they say: plain ones, distributed ones, and one safetensors file made of the latter."""

import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp

import dataio

with tempfile.TemporaryDirectory() as folder:
    model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8))
    torch.save({"step": 100, "state_dict": model.state_dict()}, f"{folder}/model.pt")

    # A path, a URI such as s3://bucket/model.pt, bytes; the format before torch 1.6 too.
    tensors = dataio.read_pt(f"{folder}/model.pt", key="state_dict", framework="torch")
    model.load_state_dict(tensors)
    print("tensors:", list(tensors))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # dcp's, on running in a single process
        dcp.save({"model": model.state_dict(), "step": 100}, checkpoint_id=f"{folder}/step_100")

    first = dataio.read_dcp(f"{folder}/step_100", keys="model.0", framework="numpy")
    print("first layer:", {name: array.shape for name, array in first.items()})

    # From the shards of all ranks to one file, tensor by tensor, without a process group.
    result = dataio.consolidate_dcp(f"{folder}/step_100", f"{folder}/model.safetensors", keys="model.", bf16=True)
    print("consolidated:", result)
    print("types:", {array.dtype for array in dataio.read_safetensors(f"{folder}/model.safetensors", framework="torch").values()})

    try:
        Path(f"{folder}/torn.pt").write_bytes(Path(f"{folder}/model.pt").read_bytes()[:-50])
        dataio.read_pt(f"{folder}/torn.pt")
    except ValueError as error:
        print("torn:", str(error).replace(folder, ""))

    weights = tensors["0.weight"].to(torch.bfloat16)
    raw = weights.view(torch.uint8).numpy().tobytes()
    packed = dataio.zipnn_compress(raw, dtype="bf16")
    print(f"packed: {len(packed) / len(raw):.0%}, the same again: {dataio.zipnn_decompress(packed) == raw}")
    print("straight to a GPU:", dataio.gds_info()["read_ready"])
