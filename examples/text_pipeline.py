"""Text to padded batches: files of many lengths, their descriptions in JSON, and what becomes of a file that is no UTF-8.

    python examples/text_pipeline.py

The texts are this project's licence and documentation, and Python's own sources. A model that reads bytes takes them as
they are: the tokens are UTF-8 bytes, shifted by one so that 0 is free for padding.
"""

from __future__ import annotations

import email
import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

import dataio

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = (json, email)
BATCH = 8
PADDING = 0


def find_texts(folder: Path) -> list[Path]:
    """Real text, in English and in Python, and one file in another encoding."""
    texts = [ROOT / "LICENSE", *sorted((ROOT / "docs").glob("*.md"))]
    for package in PACKAGES:
        texts += sorted(Path(package.__file__).parent.glob("*.py"))
    foreign = folder / "latin-1.txt"
    foreign.write_bytes("Größe".encode("latin-1"))
    return [*texts, foreign]


def to_record(path: Path) -> dict[str, Any]:
    """A file, and the JSON document that describes it (a line of a manifest, say)."""
    document = {"title": path.stem, "kind": path.suffix.removeprefix(".") or "plain", "tags": [path.parent.name]}
    return {"key": path.name, "text": path, "title": json.dumps(document).encode(), "about": json.dumps(document).encode()}


def build() -> dataio.Pipeline:
    return dataio.pipeline(
        dataio.map(to_record),
        # A path: read, checked to be UTF-8, handed on as bytes. Lengths differ, so a batch holds one tensor per row.
        dataio.slot("text").decode_text().cast(dtype="int64"),
        # One member of a JSON document, as the bytes of its text.
        dataio.slot("title").decode_json(field="title"),
        # The whole document as a Python object: the batch holds a list.
        dataio.slot("about").decode(dataio.decoders.json(as_object=True)),
        dataio.batch(BATCH),
    )


@dataclass(frozen=True)
class TextBatch:
    """What a training step wants: `tokens` int64[rows, longest], `lengths` int64[rows], and one title and kind per row."""

    tokens: torch.Tensor
    lengths: torch.Tensor
    titles: list[str]
    kinds: list[str]


def batches(paths: list[Path]) -> Iterator[TextBatch]:
    """The texts in order, without those that could not be read."""
    with build().bind(paths).run("torch") as loader:
        for batch in loader:
            for error in batch.errors:
                print(f"left out {error['key']}: {error['message']}")
            rows = batch["text"]
            yield TextBatch(
                tokens=pad_sequence([row + 1 for row in rows], batch_first=True, padding_value=PADDING),
                lengths=torch.tensor([len(row) for row in rows]),
                titles=[bytes(title.tolist()).decode() for title in batch["title"]],
                kinds=[about["kind"] for about in batch["about"]],
            )


def text_of(batch: TextBatch, row: int) -> str:
    """Back from tokens to text."""
    return bytes((batch.tokens[row, : batch.lengths[row]] - 1).tolist()).decode()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        paths = find_texts(Path(folder))
        seen: list[str] = []
        for batch in batches(paths):
            used = int(batch.lengths.sum()) / batch.tokens.numel()
            print(f"tokens {tuple(batch.tokens.shape)}, {used:.0%} text, {sorted(set(batch.kinds))}, first {batch.titles[0]!r}")
            seen += [text_of(batch, row) for row in range(len(batch.titles))]
        same = seen == [path.read_bytes().decode() for path in paths[:-1]]
        print(f"{len(paths)} files, {len(paths) - len(seen)} left out")
        print(f"texts unchanged: {same}")


if __name__ == "__main__":
    main()
