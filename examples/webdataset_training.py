"""Tar shards as training data: read forwards, shuffled sample by sample through an index, and shards that are not in order.

    python examples/webdataset_training.py

Makes its own shards in a temporary folder; with shards of your own give `webdataset` their paths or URIs, such as
`s3://bucket/train-{000000..001023}.tar`.
"""

from __future__ import annotations

import io
import logging
import tarfile
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

import dataio


def picture(i: int) -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.full((60, 80, 3), 8 * i, np.uint8)).save(out, "JPEG")
    return out.getvalue()


def shard(path: Path, entries: list[tuple[str, bytes]]) -> None:
    with tarfile.open(path, "w") as archive:
        for name, data in entries:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


def sample(i: int) -> list[tuple[str, bytes]]:
    return [(f"train/{i:03d}.JPG", picture(i)), (f"train/{i:03d}.cls", str(i % 4).encode())]


def train(source: dataio.RecordSource) -> list[str]:
    """One epoch; the keys in their order."""
    pipe = dataio.pipeline(
        dataio.map(lambda r: {"key": r["__key__"], "image": r["jpg"], "label": int(bytes(r["cls"].read_all()))}),
        dataio.slot("image").decode_image(mode="rgb").resize(h=32, w=32),
        dataio.batch(8),
    )
    with pipe.bind(source).run("numpy", seed=0) as loader:
        return [key for batch in loader for key in batch.keys]


def main() -> None:
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for k in range(3):
            shard(root / f"train-{k:02d}.tar", [entry for i in range(8 * k, 8 * k + 8) for entry in sample(i)])
        pattern = f"{root}/train-{{00..02}}.tar"

        # Forwards: one stream per shard, nothing is known in advance; shards in another order in each epoch, and a window.
        forwards = dataio.webdataset(pattern, lowercase=True)
        print("forwards:", len(train(forwards.shuffle(seed=1, buffer=8, block=1))), "samples")

        # By an index of all headers, kept in a file: a length, and any order over all shards.
        indexed = dataio.webdataset(pattern, lowercase=True, index=root / "train.index")
        keys = train(indexed.shuffle(seed=1))
        print(f"indexed: {len(indexed)} samples, the first batch comes out of {len({int(key) // 8 for key in keys[:8]})} shards")

        # What real shards are like: parts of a sample apart, and a download that was cut off.
        first, second = sample(24), sample(25)
        shard(root / "apart.tar", [first[0], second[0], first[1], second[1]])
        (root / "cut.tar").write_bytes((root / "train-00.tar").read_bytes()[:9000])
        apart = dataio.webdataset(root / "apart.tar", lowercase=True, index=True, on_interleaved="merge")
        print("merged:", [(s["__key__"], sorted(k for k in s if k[0] != "_")) for s in apart])
        cut = dataio.webdataset([root / "cut.tar", root / "train-01.tar"], lowercase=True, on_damage="skip")
        print("skipped damage:", len(train(cut)), "samples")

        # The entries of one archive, whatever they are.
        entries = dataio.archive(root / "apart.tar")
        print("archive:", entries.keys())


if __name__ == "__main__":
    main()
