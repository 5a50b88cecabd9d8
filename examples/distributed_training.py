"""Training on two ranks, stopped after some steps and resumed: each rank sees what it would have seen without the stop.

    python examples/distributed_training.py

starts, one after the other, three runs of two processes each, as a scheduler would:

    torchrun --nproc-per-node 2 examples/distributed_training.py FOLDER whole 30
    torchrun --nproc-per-node 2 examples/distributed_training.py FOLDER cut 13
    torchrun --nproc-per-node 2 examples/distributed_training.py FOLDER resumed 30 --resume FOLDER/cut.pt

`shard="auto"` takes rank and number of ranks from the process group. How many pictures a filter leaves is not known ahead,
so the ranks agree on the number of steps; with `steps="pad"` a rank that has no picture left in the last step repeats one,
and nobody waits in an all-reduce for a rank that is done. The state of the loader names no rank: the run may go on with
another number of them, if the batch size times their number stays the same.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from PIL import Image

import dataio

PICTURES, GLOBAL_BATCH, RANKS = 101, 8, 2
STEPS, STOP = 30, 13  # an epoch has eleven steps: stopped in the second


def make_pictures(folder: Path) -> list[dict[str, Any]]:
    """JPEG files of noise with one bright quadrant, and the records that name them; some are marked as unusable."""
    rng = np.random.default_rng(0)
    rows = []
    for i in range(PICTURES):
        label = int(rng.integers(4))
        pixels = rng.integers(0, 120, (2, 16, 2, 16, 3))
        pixels[label // 2, :, label % 2] += 80
        path = folder / f"{i:03d}.jpg"
        Image.fromarray(pixels.reshape(32, 32, 3).astype(np.uint8)).save(path)
        rows.append({"key": str(i), "image": str(path), "label": label, "usable": bool(rng.random() < 0.85)})
    return rows


def make_loader(rows: list[dict[str, Any]], ranks: int) -> dataio.DataLoader:
    pipe = dataio.pipeline(
        dataio.slot("image").decode_image(mode="rgb").normalize("imagenet"),
        dataio.slot("label").passthrough(),
        dataio.batch(GLOBAL_BATCH // ranks),
    )
    usable = dataio.scan(rows).filter(lambda row: row["usable"])
    return pipe.bind(usable).run("torch", seed=0, shard="auto", steps="pad")


def train(folder: Path, name: str, steps: int, resume: Path | None) -> None:
    """One rank: train up to this step; write what was seen and, on the first rank, a checkpoint."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    network = torch.nn.Sequential(torch.nn.AvgPool2d(8), torch.nn.Flatten(), torch.nn.Linear(48, 4))
    model = torch.nn.parallel.DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    step, seen, right = 0, [], 0.0
    with make_loader(json.loads((folder / "rows.json").read_text()), dist.get_world_size()) as loader:
        if resume is not None:
            saved = torch.load(resume)
            network.load_state_dict(saved["network"])
            optimizer.load_state_dict(saved["optimizer"])
            loader.load_state_dict(saved["loader"])
            step = saved["step"]
        while step < steps:
            for batch in loader:
                labels = torch.tensor(batch["label"])
                scores = model(batch["image"])
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(scores, labels).backward()
                optimizer.step()
                seen.append(batch.keys)
                right = float((scores.argmax(dim=1) == labels).float().mean())
                step += 1
                if step == steps:
                    break
        state = {"network": network.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict()}
    if rank == 0:
        torch.save({**state, "step": step}, folder / f"{name}.pt")
    (folder / f"{name}-{rank}.json").write_text(json.dumps({"seen": seen, "right": right}))
    dist.destroy_process_group()


def torchrun(*arguments: str) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    subprocess.run([*command, __file__, *arguments], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "rows.json").write_text(json.dumps(make_pictures(folder)))
        torchrun(name, "whole", str(STEPS))
        torchrun(name, "cut", str(STOP))
        torchrun(name, "resumed", str(STEPS), "--resume", str(folder / "cut.pt"))
        ranks = [
            {run: json.loads((folder / f"{run}-{rank}.json").read_text()) for run in ("whole", "cut", "resumed")}
            for rank in range(RANKS)
        ]
        weights = [torch.load(folder / f"{run}.pt")["network"] for run in ("whole", "resumed")]
    for rank, runs in enumerate(ranks):
        whole, cut, resumed = (runs[run]["seen"] for run in ("whole", "cut", "resumed"))
        print(f"rank {rank}: {len(cut)} steps, stopped, {len(resumed)} steps; as without the stop: {cut + resumed == whole}")
    print(f"the same weights: {all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])}")
    print(f"{100 * np.mean([runs['resumed']['right'] for runs in ranks]):.0f} % of the last batch right")


if __name__ == "__main__":
    if len(sys.argv) == 1:
        main()
    else:
        parser = argparse.ArgumentParser()
        parser.add_argument("folder", type=Path)
        parser.add_argument("name")
        parser.add_argument("steps", type=int)
        parser.add_argument("--resume", type=Path)
        train(**vars(parser.parse_args()))
