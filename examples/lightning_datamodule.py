"""Training with Lightning, stopped in the middle of an epoch and resumed from the checkpoint: no picture twice, none left out.

    pip install lightning torch
    python examples/lightning_datamodule.py

The data module returns the loader itself. Lightning puts the `state_dict` of each train loader that has one into its
checkpoints and hands it back on `fit(ckpt_path=...)`; nothing else is needed. It counts batches by the loader's length. A
loader of unknown length (a filter, groups) is asked for one batch ahead, and its checkpoints stand one batch too far.
"""

from __future__ import annotations

import logging
import tempfile
import warnings
from pathlib import Path
from typing import Any

import lightning
import numpy as np
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from PIL import Image

import dataio

CLASSES = ("horizontal", "vertical", "diagonal")
PICTURES, BATCH = 96, 8
STEPS, STOP = 48, 17  # four epochs of twelve steps; stopped in the second


def draw(kind: int, rng: np.random.Generator) -> np.ndarray:
    """Stripes of some width and two colours, with noise: uint8[48, 48, 3]."""
    y, x = np.mgrid[0:48, 0:48]
    bright = np.sin((y, x, x + y)[kind] / rng.uniform(1, 2) + rng.uniform(0, 6))[..., None] > 0
    dark, light = rng.integers(0, 90, 3), rng.integers(130, 220, 3)
    return (np.where(bright, light, dark) + rng.integers(0, 30, (48, 48, 3))).astype(np.uint8)


def make_pictures(folder: Path) -> list[dict[str, Any]]:
    """JPEG files and the records that name them."""
    rng = np.random.default_rng(0)
    rows = []
    for i in range(PICTURES):
        path = folder / f"{i:03d}.jpg"
        Image.fromarray(draw(i % len(CLASSES), rng)).save(path, quality=90)
        rows.append({"key": str(i), "image": str(path), "label": i % len(CLASSES)})
    return rows


class Shapes(lightning.LightningDataModule):
    """The pictures, shuffled, flipped at random."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        super().__init__()
        self.rows = rows

    def train_dataloader(self) -> dataio.DataLoader:
        pipe = dataio.pipeline(
            dataio.slot("image").decode_image(mode="rgb").hflip(prob=0.5).normalize("imagenet"),
            dataio.slot("label").passthrough(),
            dataio.batch(BATCH, drop_last=True),
        )
        # shard="auto" gives each rank its share under strategy="ddp". The loader ends with the data module: Lightning
        # may ask for its state after `fit`.
        return pipe.bind(dataio.records(self.rows).shuffle(seed=1)).run("torch", seed=1, shard="auto")


class Classifier(lightning.LightningModule):
    """A small convolutional network; remembers which pictures it was trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.network = torch.nn.Sequential(
            torch.nn.Conv2d(3, 16, 5, stride=2), torch.nn.ReLU(),
            torch.nn.Conv2d(16, 32, 5, stride=2), torch.nn.ReLU(),
            torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(32, len(CLASSES)),
        )  # fmt: skip
        self.seen: list[list[str]] = []
        self.right: list[float] = []

    def training_step(self, batch: dataio.Batch, number: int) -> torch.Tensor:
        self.seen.append(batch.keys)
        labels = torch.tensor(batch["label"], device=self.device)
        scores = self.network(batch["image"].to(self.device))
        self.right.append(float((scores.argmax(dim=1) == labels).float().mean()))
        return torch.nn.functional.cross_entropy(scores, labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=3e-3)


def train(rows: list[dict[str, Any]], steps: int, folder: Path, checkpoint: Path | None = None) -> Classifier:
    """Train up to this step, from the beginning or from a checkpoint; writes one at the end."""
    lightning.seed_everything(0, verbose=False)
    model = Classifier()
    trainer = lightning.Trainer(
        max_steps=steps,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[ModelCheckpoint(folder, filename="{step}", every_n_train_steps=steps)],
    )
    trainer.fit(model, datamodule=Shapes(rows), ckpt_path=checkpoint)
    return model


def main() -> None:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = make_pictures(folder)
        whole = train(rows, STEPS, folder / "whole")
        first = train(rows, STOP, folder / "cut")
        second = train(rows, STEPS, folder / "cut", folder / "cut" / f"step={STOP}.ckpt")
    print(f"{len(first.seen)} steps, stopped, {len(second.seen)} steps")
    print(f"the same pictures as without the stop: {first.seen + second.seen == whole.seen}")
    same = all(torch.equal(a, b) for a, b in zip(whole.parameters(), second.parameters(), strict=True))
    print(f"the same weights: {same}")
    print(f"{100 * np.mean(second.right[-12:]):.0f} % of the last epoch right")


if __name__ == "__main__":
    main()
