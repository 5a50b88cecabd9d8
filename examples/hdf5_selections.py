"""HDF5: parts of large data sets, read as they are needed, from threads and worker processes.

    python examples/hdf5_selections.py

Needs h5py: `pip install 'dataio-py[hdf5]'`.
"""

from __future__ import annotations

import pickle
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import h5py
import numpy as np

import dataio


def make(path: Path) -> None:
    """Frames of a camera, compressed, with their labels, as a recording program leaves them."""
    frames = np.random.default_rng(0).integers(0, 4, (200, 48, 64), np.uint8)
    with h5py.File(path, "w") as file:
        made = file.create_dataset("camera/frames", data=frames, chunks=(10, 48, 64), compression="gzip")
        made.attrs.update({"fps": 30, "lens": "35 mm"})
        file["camera/times"] = np.arange(200) / 30
        file.create_dataset("labels", data=[f"frame {i}" for i in range(200)], dtype=h5py.string_dtype())


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "recording.h5"
        make(path)
        print("labels:", dataio.read_hdf5(path, key="labels", selection=[3, 1, 1]).tolist())
        with dataio.open_hdf5(path) as session:
            print("keys:", session.keys())
            print("facts:", session.metadata(key="camera/frames"))
            print("crop:", session.read(key="camera/frames", selection=(slice(None, None, 20), slice(8, 40), slice(8, 40))).shape)
            late = session.read(key="camera/times", copy=False) > 6  # a view of the file: nothing was copied
            print("late frames:", session.read(key="camera/frames", selection=late, framework="torch").shape)
            with ThreadPoolExecutor(4) as pool:
                sums = pool.map(lambda i: int(session.read(key="camera/frames", selection=i).sum()), range(200))
                print("threads agree:", sum(sums) == int(session.read(key="camera/frames").sum()))
            with pickle.loads(pickle.dumps(session)) as again:  # as it reaches a worker process, which opens the file itself
                print("again:", again.read(key="labels", selection=-1).item())


if __name__ == "__main__":
    main()
