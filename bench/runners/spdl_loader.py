"""SPDL: FFmpeg decodes, resizes and crops in a thread pool. Images are loaded one a task; the rest a batch a task.

SPDL drops an item that fails (say, for want of FFmpeg's libraries): the harness counts what arrives.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import harness


def image_filter(workload: str, record: harness.Record) -> str:
    """FFmpeg's filters for one record."""
    if workload == "imagenet":
        return "scale=w='if(lt(iw,ih),256,-1)':h='if(lt(iw,ih),-1,256)':flags=bicubic,crop=224:224,format=pix_fmts=rgb24"
    if workload == "bucket":
        h, w = record["h"], record["w"]
        return f"scale={w}:{h}:force_original_aspect_ratio=increase:flags=bicubic,crop={w}:{h},format=pix_fmts=rgb24"
    return "scale=224:224:flags=bilinear,format=pix_fmts=rgb24"


def main() -> None:
    args = harness.arguments()
    started = time.perf_counter()
    import spdl.io
    import spdl.pipeline
    import torch
    from spdl.pipeline.defs import Aggregator

    import_s = time.perf_counter() - started
    torch.set_num_threads(1)
    records = harness.load_records(args)
    workload = args.workload
    mean = torch.tensor((0.485, 0.456, 0.406)).view(1, 3, 1, 1)
    std = torch.tensor((0.229, 0.224, 0.225)).view(1, 3, 1, 1)

    def decode(record: harness.Record) -> tuple[Any, Any]:
        packets = spdl.io.demux_image(record["image"])
        return record.get("bucket"), spdl.io.decode_packets(
            packets, filter_desc=image_filter(workload, record)
        )

    class Runs(Aggregator):
        """Neighbours with the same bucket."""

        def __init__(self) -> None:
            self.held: list[tuple[Any, Any]] = []

        def accumulate(self, item: tuple[Any, Any]) -> Any:
            if self.held and self.held[0][0] != item[0]:
                done, self.held = self.held, [item]
                return done
            self.held.append(item)
            return None

        def flush(self) -> Any:
            done, self.held = self.held, []
            return done or None

    def collate(items: list[tuple[Any, Any]]) -> torch.Tensor:
        batch = spdl.io.to_torch(spdl.io.convert_frames([frames for _, frames in items]))
        if workload == "imagenet":
            return batch.permute(0, 3, 1, 2).float().contiguous().div_(255).sub_(mean).div_(std)
        if workload == "bucket":
            return batch.permute(0, 3, 1, 2).float().contiguous().mul_(2 / 255).sub_(1)
        return batch

    def load_batch(rows: list[harness.Record]) -> Any:
        if workload == "int":
            return [row["x"] for row in rows]
        if workload == "npy":
            import numpy as np

            return torch.from_numpy(np.stack([spdl.io.load_npy(row["x"]) for row in rows]))
        out = []
        for row in rows:
            with open(row["data"], "rb") as file:
                out.append(file.read())
        return out

    def build() -> Any:
        builder = spdl.pipeline.PipelineBuilder()
        if workload in ("files", "int", "npy"):
            builder.add_source(harness.batches_of(records, workload))
            builder.pipe(load_batch, concurrency=args.workers, output_order="input")
        else:
            builder.add_source(records)
            builder.pipe(decode, concurrency=args.workers, output_order="input")
            builder.aggregate(Runs() if workload == "bucket" else harness.BATCH[workload])
            builder.pipe(collate, output_order="input")
        return builder.add_sink(4).build(num_threads=args.workers)

    def count(batch: Any) -> int:
        return len(batch) if workload in ("files", "int") else harness.check_shape(workload, batch)

    @contextmanager
    def opened() -> Iterator[harness.Epoch]:
        def epoch() -> Iterable[int]:
            """A pipeline serves one pass: each epoch builds its own, as SPDL's own examples do."""
            pipeline = build()
            with pipeline.auto_stop():
                for batch in pipeline.get_iterator():
                    yield count(batch)

        yield epoch

    harness.measure(args, records, opened, import_s)


if __name__ == "__main__":
    main()
