"""The examples of the README that this project answers to, unchanged, on generated data.

`NOT_YET` names the sections whose examples wait for features that are still missing; a test fails when one of them could
move up.
"""

from __future__ import annotations

import io
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import dataio

NOT_YET = {  # section: the public names that its examples use
    "Slot-local conditionals": ("cond", "transforms.choice", "transforms.select"),
    "Grouped batches": ("group_by", "from_sampler", "decoders.safetensors"),
    "Distributed training": ("ShardSpec", "DataLoader.state_dict"),
    "Direct IO": ("head", "read", "write", "exists", "ls", "glob", "reader", "writer", "configure_credentials"),
    "Format helpers": ("read_numpy", "read_image", "read_parquet", "scan_parquet", "iter_tfrecord"),
    "safetensors": ("write_safetensors", "read_safetensors", "open_safetensors"),
}

FIRST = '''
import dataio

pipe = dataio.pipeline(
    dataio.slot("image")
        .decode_image(mode="rgb")
        .resize_short(256)
        .center_crop(h=224, w=224)
        .normalize("imagenet"),
    dataio.batch(64, prefetch=4),
)

with pipe.bind(records).run("torch", concurrency=64) as loader:
    for batch in loader:
        train_step(batch["image"])
'''

PIPELINE = '''
pipe = dataio.pipeline(
    dataio.map(lambda r: {"image": r["path"], "label": r["class_id"]}),

    dataio.slot("image")
        .decode_image(mode="rgb")
        .resize_short(256)
        .center_crop(h=224, w=224)
        .normalize("imagenet"),

    dataio.slot("label").decode_bytes(),
    dataio.batch(64, drop_last=True, prefetch=4),
)
'''

ON_FAILURE = '''
loader = pipe.bind(records).run("torch", on_failure="skip")
'''

LOG_ERRORS = '''
loader = pipe.bind(records).run("torch", log_errors=True)
loader = pipe.bind(records).run("torch", log_errors=my_logger.warning)
'''

COUNT = 150


def jpeg(i: int) -> bytes:
    rng = np.random.default_rng(i)
    height, width = (int(n) for n in rng.integers(230, 420, 2))
    small = rng.integers(0, 256, (6, 6, 3), np.uint8)
    out = io.BytesIO()
    Image.fromarray(small).resize((width, height)).save(out, "JPEG", quality=90)
    return out.getvalue()


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("photos")
    found = [folder / f"{i:03d}.jpg" for i in range(COUNT)]
    for i, path in enumerate(found):
        path.write_bytes(jpeg(i))
    return found


def expected(data: bytes) -> np.ndarray[Any, Any]:
    """What the first example computes, by Pillow and NumPy: the short edge to 256, the middle 224, ImageNet's numbers."""
    with Image.open(io.BytesIO(data)) as image:
        width, height = image.size
        short = min(width, height)
        size = (width * 256 // short, height * 256 // short)
        resized = np.asarray(image.convert("RGB").resize(size, Image.Resampling.BICUBIC))
    top, left = (resized.shape[0] - 224) // 2, (resized.shape[1] - 224) // 2
    crop = resized[top : top + 224, left : left + 224] / np.float32(255)
    normal = (crop - np.float32((0.485, 0.456, 0.406))) / np.float32((0.229, 0.224, 0.225))
    return np.asarray(normal.transpose(2, 0, 1))


def test_first_example(paths: list[Path]) -> None:
    steps: list[Any] = []
    exec(FIRST, {"records": [{"image": str(p)} for p in paths], "train_step": steps.append})
    import torch

    assert [tuple(t.shape) for t in steps] == [(64, 3, 224, 224), (64, 3, 224, 224), (22, 3, 224, 224)]
    assert all(t.dtype == torch.float32 for t in steps)
    rows = np.concatenate([t.numpy() for t in steps])
    for i in range(0, COUNT, 37):
        difference = np.abs(rows[i] - expected(paths[i].read_bytes()))
        assert difference.mean() < 0.02
        assert difference.max() < 0.25


def test_first_example_takes_bare_sources(paths: list[Path]) -> None:
    """In a pipeline of one slot a path or the bytes themselves are a record."""
    for records in (paths[:3], [str(p) for p in paths[:3]], [p.read_bytes() for p in paths[:3]]):
        steps: list[Any] = []
        exec(FIRST, {"records": records, "train_step": steps.append})
        assert [tuple(t.shape) for t in steps] == [(3, 3, 224, 224)]


def test_pipeline_section(paths: list[Path]) -> None:
    scope: dict[str, Any] = {"dataio": dataio}
    exec(PIPELINE, scope)
    records = [{"path": str(p), "class_id": bytes([i % 7])} for i, p in enumerate(paths)]
    labels: list[int] = []
    with scope["pipe"].bind(records).run("torch", concurrency=64) as loader:
        for batch in loader:
            assert tuple(batch["image"].shape) == (64, 3, 224, 224)
            assert tuple(batch["label"].shape) == (64, 1)
            labels += batch["label"].flatten().tolist()
    assert labels == [i % 7 for i in range(128)]  # the short third batch is dropped


def first_pipeline(records: Any) -> dict[str, Any]:
    """The scope after the first example ran over no records: `pipe` is what the later sections bind."""
    scope: dict[str, Any] = {"records": [], "train_step": None}
    exec(FIRST, scope)
    return {**scope, "records": records}


def damaged(paths: list[Path]) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = [{"image": str(p)} for p in paths[:5]]
    records[2] = {"image": b"no picture"}
    return records


def test_error_handling(paths: list[Path]) -> None:
    scope = first_pipeline(damaged(paths))
    exec(ON_FAILURE, scope)
    with scope["loader"] as loader:
        (batch,) = loader
    assert tuple(batch["image"].shape) == (4, 3, 224, 224)
    assert batch.indices == [0, 1, 3, 4]
    (error,) = batch.errors
    assert set(error) >= {"index", "key", "stage", "op", "message"}
    assert (error["index"], error["stage"]) == (2, "decode")


@pytest.mark.parametrize(("policy", "raises"), [("strict", True), (0, False), (1, False), (4, False), (5, True)])
def test_on_failure_table(policy: Any, raises: bool, paths: list[Path]) -> None:
    scope = first_pipeline(damaged(paths))
    with scope["pipe"].bind(scope["records"]).run("torch", on_failure=policy) as loader:
        if raises:
            with pytest.raises(RuntimeError, match="batch 0"):
                list(loader)
        else:
            assert [len(batch) for batch in loader] == [4]


def test_skip_raises_when_a_batch_has_no_survivors() -> None:
    scope = first_pipeline([b"no picture", b"neither"])
    exec(ON_FAILURE, scope)
    with scope["loader"] as loader, pytest.raises(RuntimeError, match="batch 0"):
        list(loader)


def test_log_errors(paths: list[Path], caplog: pytest.LogCaptureFixture) -> None:
    scope = first_pipeline(damaged(paths))
    scope["my_logger"] = logging.getLogger("tests.seed_readme")
    true, _, own = LOG_ERRORS.strip().partition("\n")
    for line, logger in ((true, "dataio.rows"), (own, "tests.seed_readme")):
        caplog.clear()
        exec(line, scope)
        with caplog.at_level(logging.WARNING), scope["loader"] as loader:
            list(loader)
        (record,) = [r for r in caplog.records if r.name == logger]
        assert record.levelno == logging.WARNING


def exists(name: str) -> bool:
    holder: Any = dataio
    for part in name.split("."):
        if not hasattr(holder, part):
            return False
        holder = getattr(holder, part)
    return True


@pytest.mark.parametrize("section", NOT_YET)
def test_what_is_left_out_is_really_missing(section: str) -> None:
    """When all of these exist, the section's examples belong among the tests above."""
    assert not all(exists(name) for name in NOT_YET[section])
