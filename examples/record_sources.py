"""Where records come from when they are no list: functions, generators, samplers, manifests, URIs, batches made elsewhere.

    python examples/record_sources.py

Lists, tables and data sets go to `bind` as they are; for files of a kind see `webdataset_training.py`, `tfrecord.py`, `tables.py`.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import dataio

BYTES = dataio.pipeline(
    dataio.map(lambda record: {"key": record["key"], "x": record["reader"]}),
    dataio.slot("x").decode_bytes(),
    dataio.batch(4),
)


def first(pipe: dataio.Pipeline, records: Any, slot: str = "x") -> Any:
    with pipe.bind(records).run("numpy") as loader:
        return next(iter(loader))[slot].tolist()


def of_functions() -> None:
    """By number, which shuffles and shards; or one after the other."""
    squares = dataio.from_callable(lambda i: bytes([i * i]), length=10, extras=lambda i: {"key": f"square-{i}"})
    print("by number:", first(BYTES, squares.shuffle(seed=0)))
    print("streamed:", first(BYTES, dataio.from_iterable(bytes([i]) for i in range(9))))
    reader = dataio.from_iterator(iter([b"one", b"two"]))
    print("an iterator as a reader:", reader.read_all(), reader.read_all())


def of_a_sampler() -> None:
    """Its batches stay as they are."""
    rows = [[{"x": np.uint8([i])} for i in part] for part in ([3, 1], [2], [5, 8])]
    pipe = dataio.pipeline(dataio.slot("x").decode(dataio.decoders.array()), dataio.group_by("batch_id"))
    with pipe.bind(dataio.from_sampler(rows)).run("numpy") as loader:
        print("a sampler's batches:", [batch["x"].ravel().tolist() for batch in loader])


def of_names(folder: Path) -> None:
    """A text file with a path or a JSON object a line, and URIs."""
    for i in range(3):
        (folder / f"{i}.bin").write_bytes(bytes([10 * i]))
    lines = [json.dumps({"key": f"row-{i}", "x": str(folder / f"{i}.bin")}) for i in range(3)]
    (folder / "train.jsonl").write_text("\n".join(lines))
    pipe = dataio.pipeline(dataio.slot("x").decode_bytes(), dataio.batch(4))
    print("a manifest:", first(pipe, dataio.manifest(folder / "train.jsonl")))
    print("URIs:", first(BYTES, dataio.urls(f"file://{folder}/{i}.bin" for i in (2, 0))))


@dataio.custom_op
def halved(x: np.ndarray) -> np.ndarray:
    """An op of one's own, used in both slots."""
    return x // 2


def of_batches() -> None:
    """Records that come in batches, and ops that several slots share."""
    batches = [[{"a": bytes([2 * i]), "b": bytes([20 * i])} for i in part] for part in ((1, 2, 3), (4,))]
    pipe = dataio.pipeline(dataio.slots(["a", "b"]).using(dataio.chain().decode_bytes().custom(halved)), dataio.collate())
    with pipe.bind(batches).run("numpy") as loader:
        print("batches:", [(batch["a"].ravel().tolist(), batch["b"].ravel().tolist()) for batch in loader])


def main() -> None:
    of_functions()
    of_a_sampler()
    with tempfile.TemporaryDirectory() as folder:
        of_names(Path(folder))
    of_batches()


if __name__ == "__main__":
    main()
