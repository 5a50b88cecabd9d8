"""One client, one case of bench/formats.py, in a process of its own: prints one line of JSON.

Every client does the same work by its best documented way; what comes is checked. The files are in the page cache. Where a
client has several plausible ways, all are tried and the fastest counts.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ways import Case, Way, main

LATENT_READS, LATENT_BATCH = 2_048, 32
FILTER = ("height", ">", 1_948)
"""About one row in twenty."""
WANTED = "name"


def shards_of(case: Case) -> list[str]:
    return sorted(glob.glob(case.path("tar/*.tar")))


def latents_read(case: Case) -> list[str]:
    files = sorted(glob.glob(case.path("latents/*.safetensors")))
    return [files[i * 7919 % len(files)] for i in range(LATENT_READS)]


def total_of(tensors: Iterable[Any]) -> int:
    """Sums every tensor, so that all bytes are touched; gives the number of bytes."""
    size = 0
    for tensor in tensors:
        assert float(tensor.sum()) != 0
        size += tensor.nbytes
    return size


def rows_of(loader: Any, slot: str) -> int:
    count = 0
    for batch in loader:
        assert not batch.errors, batch.errors[0]
        count += len(batch[slot])
    return count


# ---------------------------------------------------------------- dataio and dataio-rs: the same names


def latents_of_dataio(case: Case, module: Any) -> list[Way]:
    records = [{"latent": path} for path in latents_read(case)]
    chain = module.slot("latent").decode_safetensors(tensor_key="latent")
    pipe = module.pipeline(chain, module.batch(LATENT_BATCH, prefetch=4))
    loader = pipe.bind(records).run("torch")
    return [lambda: rows_of(loader, "latent")]


def tar_of_dataio(case: Case, module: Any) -> list[Way]:
    shards = shards_of(case)

    def once() -> int:
        image = module.slot("image").decode_image(mode="rgb").resize(h=224, w=224, interp="bilinear")
        as_slot = module.map(lambda record: {"image": record["jpg"]})
        pipe = module.pipeline(as_slot, image, module.batch(32, prefetch=4))
        with pipe.bind(module.webdataset(shards)).run("torch") as loader:
            return rows_of(loader, "image")

    return [once]


def tensors_of_dataio(case: Case, module: Any) -> list[Way]:
    path = case.path("model.safetensors")
    return [lambda: total_of(module.read_safetensors(path, framework="torch").values())]


def save_of_dataio(case: Case, module: Any) -> list[Way]:
    tensors = dict(module.read_safetensors(case.path("model.safetensors"), framework="torch"))
    total_of(tensors.values())
    return [lambda: saved(case, tensors, lambda path: module.write_safetensors(path, tensors))]


def saved(case: Case, tensors: dict[str, Any], save: Callable[[str], Any]) -> int:
    path = str(case.scratch / "saved.safetensors")
    save(path)
    with open(path, "rb") as file:
        os.fsync(file.fileno())
    return sum(tensor.nbytes for tensor in tensors.values())


def tfrecord_of_dataio(case: Case, module: Any) -> list[Way]:
    def once() -> int:
        count = 0
        for example in module.iter_tfrecord(case.path("train.tfrecord")):
            assert len(example["image"][0])
            assert example["label"] is not None
            count += 1
        return count

    return [once]


def table_of_dataio(case: Case, module: Any) -> list[Way]:
    query = module.scan_parquet(case.path("table.parquet"))
    return [lambda: int(query.collect_arrow().num_rows), *([lambda: int(query.to_polars().height)] if hasattr(query, "to_polars") else [])]


def filtered_of_dataio(case: Case, module: Any) -> list[Way]:
    query = module.scan_parquet(case.path("table.parquet")).where(*FILTER).select([WANTED])
    ways = [lambda: checked(query.collect_arrow().num_rows, case)]
    return [*ways, *([lambda: checked(query.to_polars().height, case)] if hasattr(query, "to_polars") else [])]


def checked(found: int, case: Case) -> int:
    """The rows that were looked at, if about as many came as should."""
    import pyarrow.parquet as pq

    rows = int(pq.ParquetFile(case.path("table.parquet")).metadata.num_rows)
    assert 0.03 * rows < found < 0.07 * rows, found
    return rows


def hdf5_of_dataio(case: Case, module: Any) -> list[Way]:
    return [lambda: int(module.read_hdf5(case.path("volumes.h5"), key="volume").nbytes)]


def npy_of_dataio(case: Case, module: Any) -> list[Way]:
    return [lambda: int(module.read_numpy(case.path("array.npy")).nbytes)]


# ---------------------------------------------------------------- other libraries


def tar_of_webdataset(case: Case) -> list[Way]:
    import torch
    import webdataset as wds
    from PIL import Image

    def pixels(image: Image.Image) -> Any:
        import numpy as np

        resized = image.convert("RGB").resize((224, 224), Image.Resampling.BILINEAR)
        return torch.from_numpy(np.array(resized))

    def once() -> int:
        samples = wds.WebDataset(shards_of(case), shardshuffle=False).decode("pil").to_tuple("jpg").map_tuple(pixels)
        return sum(len(images) for (images,) in samples.batched(32))

    return [once]


def tensors_of_safetensors(case: Case) -> list[Way]:
    from safetensors.torch import load_file

    return [lambda: total_of(load_file(case.path("model.safetensors")).values())]


def save_of_safetensors(case: Case) -> list[Way]:
    from safetensors.torch import load_file, save_file

    tensors = load_file(case.path("model.safetensors"))
    total_of(tensors.values())
    return [lambda: saved(case, tensors, lambda path: save_file(tensors, path))]


def save_of_disk(case: Case) -> list[Way]:
    """A plain sequential write of as many bytes."""
    payload = Path(case.path("model.safetensors")).read_bytes()

    def once() -> int:
        with open(case.scratch / "saved.bin", "wb", buffering=0) as file:
            view = memoryview(payload)
            while view:
                view = view[file.write(view[: 16 << 20]) :]
            os.fsync(file.fileno())
        return len(payload)

    return [once]


def tfrecord_of_package(case: Case) -> list[Way]:
    from tfrecord.reader import tfrecord_loader

    def once() -> int:
        count = 0
        for example in tfrecord_loader(case.path("train.tfrecord"), None, {"image": "byte", "label": "int"}):
            assert len(example["image"])
            assert example["label"] is not None
            count += 1
        return count

    return [once]


def table_of_polars(case: Case) -> list[Way]:
    import polars as pl

    return [
        lambda: pl.scan_parquet(case.path("table.parquet")).collect().height,
        lambda: pl.read_parquet(case.path("table.parquet")).height,
    ]


def filtered_of_polars(case: Case) -> list[Way]:
    import polars as pl

    column, _, value = FILTER
    query = pl.scan_parquet(case.path("table.parquet")).filter(pl.col(column) > value).select(WANTED)
    return [lambda: checked(query.collect().height, case)]


def table_of_pyarrow(case: Case) -> list[Way]:
    import pyarrow.parquet as pq

    return [lambda: int(pq.read_table(case.path("table.parquet")).num_rows)]


def filtered_of_pyarrow(case: Case) -> list[Way]:
    import pyarrow.parquet as pq

    return [
        lambda: checked(pq.read_table(case.path("table.parquet"), columns=[WANTED], filters=[FILTER]).num_rows, case)
    ]


def hdf5_of_h5py(case: Case) -> list[Way]:
    import h5py

    def once() -> int:
        with h5py.File(case.path("volumes.h5")) as file:
            return int(file["volume"][:].nbytes)

    return [once]


def npy_of_numpy(case: Case) -> list[Way]:
    import numpy as np

    return [lambda: int(np.load(case.path("array.npy")).nbytes)]


OURS: dict[str, Callable[[Case, Any], list[Way]]] = {
    "latents": latents_of_dataio,
    "tar": tar_of_dataio,
    "safetensors": tensors_of_dataio,
    "save": save_of_dataio,
    "tfrecord": tfrecord_of_dataio,
    "parquet": table_of_dataio,
    "filtered": filtered_of_dataio,
    "hdf5": hdf5_of_dataio,
    "npy": npy_of_dataio,
}
OTHERS: dict[tuple[str, str], Callable[[Case], list[Way]]] = {
    ("webdataset", "tar"): tar_of_webdataset,
    ("safetensors", "safetensors"): tensors_of_safetensors,
    ("safetensors", "save"): save_of_safetensors,
    ("disk", "save"): save_of_disk,
    ("tfrecord", "tfrecord"): tfrecord_of_package,
    ("polars", "parquet"): table_of_polars,
    ("polars", "filtered"): filtered_of_polars,
    ("pyarrow", "parquet"): table_of_pyarrow,
    ("pyarrow", "filtered"): filtered_of_pyarrow,
    ("h5py", "hdf5"): hdf5_of_h5py,
    ("numpy", "npy"): npy_of_numpy,
}


if __name__ == "__main__":
    main(__doc__.splitlines()[0], OURS, OTHERS)
