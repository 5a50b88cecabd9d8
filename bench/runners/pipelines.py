"""The workloads in the DSL that dataio and dataio-rs share, and the way both are run."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import harness


def pipeline_of(dataio: Any, workload: str, **decode: Any) -> Any:
    """The pipeline for `workload`; `decode` is passed on to `decode_image`."""
    slot = dataio.slot
    if workload == "bucket":
        image = (
            slot("image")
            .decode_image(mode="rgb", **decode)
            .fit_to_bucket(h=dataio.col("h"), w=dataio.col("w"))
        )
        return dataio.pipeline(image.normalize("symmetric"), dataio.group_by("bucket", prefetch=4))
    if workload == "imagenet":
        image = slot("image").decode_image(mode="rgb", **decode).resize_short(256).center_crop(h=224, w=224)
        chain = image.normalize("imagenet")
    elif workload in ("small", "small+busy"):
        chain = slot("image").decode_image(mode="rgb", **decode).resize(h=224, w=224, interp="bilinear")
    elif workload == "files":
        chain = slot("data").decode_bytes()
    elif workload == "int":
        chain = slot("x").passthrough()
    else:
        chain = slot("x").decode_npy()
    return dataio.pipeline(chain, dataio.batch(harness.BATCH[workload], prefetch=4))


def count(workload: str, batch: Any) -> int:
    """Touch what the batch holds and count its samples."""
    assert not batch.errors, batch.errors[0]
    value = batch["data" if workload == "files" else "x" if workload in ("int", "npy") else "image"]
    if workload in ("files", "int"):
        return len(value)
    return harness.check_shape(workload, value)


@contextmanager
def opened(
    dataio: Any,
    args: argparse.Namespace,
    records: list[harness.Record],
    decode: dict[str, Any],
    run: dict[str, Any],
) -> Iterator[harness.Epoch]:
    """One loader, iterated once per epoch."""
    with pipeline_of(dataio, args.workload, **decode).bind(records).run("torch", **run) as loader:

        def epoch() -> Iterable[int]:
            return (count(args.workload, batch) for batch in loader)

        yield epoch
