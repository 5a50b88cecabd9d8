"""torch's DataLoader over Pillow: the loader most projects start from. Workers are processes, kept between epochs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import harness


class Records:
    """A map-style data set: one record, one function."""

    def __init__(self, records: list[harness.Record], load: Callable[[harness.Record], Any]) -> None:
        self.records = records
        self.load = load

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> Any:
        return self.load(self.records[index])


def as_list(rows: list[Any]) -> list[Any]:
    return rows


def loading(workload: str) -> Callable[[harness.Record], Any]:
    """What a worker does to one record."""
    import numpy as np
    import torch
    from PIL import Image

    mean = torch.tensor((0.485, 0.456, 0.406)).view(3, 1, 1)
    std = torch.tensor((0.229, 0.224, 0.225)).view(3, 1, 1)

    def chw(image: Image.Image) -> torch.Tensor:
        return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()

    def imagenet(record: harness.Record) -> torch.Tensor:
        image = Image.open(record["image"]).convert("RGB")
        scale = 256 / min(image.size)
        image = image.resize(
            (int(image.width * scale + 1e-6), int(image.height * scale + 1e-6)), Image.Resampling.BICUBIC
        )
        left, top = (image.width - 224) // 2, (image.height - 224) // 2
        return chw(image.crop((left, top, left + 224, top + 224))).float().div_(255).sub_(mean).div_(std)

    def bucket(record: harness.Record) -> torch.Tensor:
        image = Image.open(record["image"]).convert("RGB")
        h, w = record["h"], record["w"]
        scale = max(h / image.height, w / image.width)
        size = math.ceil(image.width * scale - 1e-6), math.ceil(image.height * scale - 1e-6)
        image = image.resize(size, Image.Resampling.BICUBIC)
        left, top = (image.width - w) // 2, (image.height - h) // 2
        return chw(image.crop((left, top, left + w, top + h))).float().mul_(2 / 255).sub_(1)

    def small(record: harness.Record) -> torch.Tensor:
        image = Image.open(record["image"]).convert("RGB").resize((224, 224), Image.Resampling.BILINEAR)
        return torch.from_numpy(np.array(image))

    def files(record: harness.Record) -> bytes:
        with open(record["data"], "rb") as file:
            return file.read()

    def integer(record: harness.Record) -> int:
        return record["x"]

    def npy(record: harness.Record) -> torch.Tensor:
        import io

        return torch.from_numpy(np.load(io.BytesIO(record["x"])))

    loads = {"imagenet": imagenet, "bucket": bucket, "small": small, "small+busy": small}
    return {**loads, "files": files, "int": integer, "npy": npy}[workload]


def main() -> None:
    args = harness.arguments()
    started = time.perf_counter()
    import torch
    from torch.utils.data import DataLoader

    import_s = time.perf_counter() - started
    torch.set_num_threads(1)
    records = harness.load_records(args)
    workload = args.workload

    def count(batch: Any) -> int:
        return len(batch) if workload in ("files", "int") else harness.check_shape(workload, batch)

    @contextmanager
    def opened() -> Iterator[harness.Epoch]:
        options: dict[str, Any] = {"batch_size": harness.BATCH.get(workload)}
        if workload == "bucket":
            sizes = [len(group) for group in harness.batches_of(records, workload)]
            starts = [sum(sizes[:index]) for index in range(len(sizes))]
            options = {
                "batch_sampler": [list(range(start, start + size)) for start, size in zip(starts, sizes)]
            }
        loader = DataLoader(
            Records(records, loading(workload)),  # type: ignore[arg-type]
            num_workers=args.workers,
            prefetch_factor=4,
            persistent_workers=True,
            collate_fn=as_list if workload in ("files", "int") else None,
            **options,
        )

        def epoch() -> Iterable[int]:
            return (count(batch) for batch in loader)

        yield epoch

    harness.measure(args, records, opened, import_s)


if __name__ == "__main__":
    main()
