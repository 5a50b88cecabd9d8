"""Compare readers and writers of file formats: one run, the same files in the page cache, the clients taking turns.

    python bench/formats.py                               everything; some minutes; writes docs/benchmark.md
    python bench/formats.py --cases tar,tfrecord --no-write    some cases, printed only
    python bench/formats.py --quick                       does everything run? its figures mean nothing

What each case does and how it is measured is described in docs/benchmark.md.
"""

from __future__ import annotations

from pathlib import Path

import formats_data
import loader
from rounds import RUST, Comparison, Row, main

CLIENTS = {  # title: environment, client of the runner
    "dataio": ("own", "dataio"),
    "dataio-rs 0.4.7": ("rs047", "dataio"),
    "dataio-rs 0.4.15": ("rs0415", "dataio"),
    "safetensors": ("own", "safetensors"),
    "disk": ("own", "disk"),
    "webdataset": ("own", "webdataset"),
    "tfrecord": ("own", "tfrecord"),
    "Polars": ("own", "polars"),
    "pyarrow": ("own", "pyarrow"),
    "h5py": ("own", "h5py"),
    "NumPy": ("own", "numpy"),
}


ROWS = {
    "latents/1": Row("latents", 1, "tensors/s", 1, RUST, {"dataio-rs": 1.0}),
    "latents/2": Row("latents", 2, "tensors/s", 1, RUST, {"dataio-rs": 1.0}),
    "tar/1": Row("tar", 1, "images/s", 1, (*RUST, "webdataset"), {"dataio-rs": 1.15, "webdataset": 5.0}),
    "tar/2": Row("tar", 2, "images/s", 1, (*RUST, "webdataset"), {"dataio-rs": 1.15, "webdataset": 5.0}),
    "safetensors": Row("safetensors", 2, "GB/s", 1e9, (*RUST, "safetensors"), {"dataio-rs": 1.0}, True),
    "save": Row("save", 2, "GB/s", 1e9, (*RUST, "safetensors", "disk"), {"disk": 0.9}),
    "tfrecord": Row("tfrecord", 2, "records/s", 1, (*RUST, "tfrecord"), {"tfrecord": 2.0}),
    "parquet": Row("parquet", 2, "million rows/s", 1e6, (*RUST, "Polars", "pyarrow"), {"Polars": 1.0}, True),
    "filtered": Row("filtered", 2, "million rows/s", 1e6, (*RUST, "Polars", "pyarrow"), {"Polars": 1.0}, True),
    "hdf5": Row("hdf5", 2, "GB/s", 1e9, (*RUST, "h5py"), {}),
    "npy": Row("npy", 2, "GB/s", 1e9, (*RUST, "NumPy"), {}),
}


def make(target: Path, scale: float) -> None:
    formats_data.make(target, loader.DATA, scale)


if __name__ == "__main__":
    main(Comparison("formats", __doc__.splitlines()[0], CLIENTS, ROWS, make))
