"""`dataio.ops`: one op on one value."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dataio
from dataio import cond, decoders, ops, transforms

from .conftest import encoded, npy

IMAGE = np.arange(8 * 6 * 3, dtype=np.uint8).reshape(8, 6, 3)


def through_pipeline(transform: Any, seed: int) -> np.ndarray:
    pipe = dataio.pipeline(dataio.slot("v").decode_npy().apply(transform), dataio.batch(1))
    with pipe.bind([{"v": npy(IMAGE)}]).run("numpy", seed=seed) as loader:
        (batch,) = loader
    return np.array(batch["v"][0])


@pytest.mark.parametrize(
    "transform",
    [
        transforms.center_crop(h=3, w=4), transforms.random_crop(h=3, w=3), transforms.permute(axes=[2, 0, 1]), transforms.sometimes([transforms.hflip()], prob=0.5),
        transforms.select([(cond.shape(0).gt(4), transforms.vflip())], default=transforms.hflip()),
    ],
    ids=str,
)
def test_a_transform_does_what_it_does_in_a_pipeline(transform: Any) -> None:
    for seed in range(3):
        np.testing.assert_array_equal(ops.apply_transform(transform, IMAGE, seed=seed), through_pipeline(transform, seed))


def test_the_result_is_a_copy() -> None:
    found = ops.apply_transform(transforms.center_crop(h=8, w=6), IMAGE)
    assert not np.shares_memory(found, IMAGE)


def test_without_a_seed_each_call_draws_anew() -> None:
    crop = transforms.random_crop(h=2, w=2)
    assert len({ops.apply_transform(crop, IMAGE).tobytes() for _ in range(40)}) > 1


@pytest.mark.parametrize(
    ("arguments", "seed", "kind", "message"),
    [
        ((decoders.npy(), IMAGE), None, TypeError, "transform"), ((transforms.hflip(prob=1.0), [[1]]), None, TypeError, "array"), ((transforms.hflip(prob=1.0), IMAGE), -1, ValueError, "seed"),
        ((transforms.center_crop(h=3, w=3), np.zeros(4)), None, ValueError, "axes"), ((transforms.center_crop(h="height", w=3), IMAGE), None, ValueError, "'height'"),
    ],
)
def test_what_cannot_be_applied_is_told(arguments: tuple[Any, Any], seed: int | None, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        ops.apply_transform(*arguments, seed=seed)


@pytest.mark.parametrize("place", ["bytes", "file", "path", "s3"])
def test_bytes_from_anywhere_are_decoded(place: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    data = npy(IMAGE)
    sources: dict[str, Any] = {"bytes": data, "file": io.BytesIO(data), "path": tmp_path / "a.npy"}
    (tmp_path / "a.npy").write_bytes(data)
    if place == "s3":
        sources["s3"] = request.getfixturevalue("s3_bucket") + "/a.npy"
        dataio.write(sources["s3"], data)
    np.testing.assert_array_equal(ops.decode_bytes(decoders.npy(), sources[place]), IMAGE)


def test_an_image_is_decoded_as_in_a_pipeline() -> None:
    assert ops.decode_bytes(decoders.image(normalize="none", layout="hwc"), encoded(12, 16)).shape == (12, 16, 3)


def test_a_value_is_handed_on() -> None:
    assert ops.decode_bytes(decoders.passthrough(), {"a": 1}) == {"a": 1}


def test_damaged_bytes_are_a_value_error() -> None:
    with pytest.raises(ValueError, match="npy"):
        ops.decode_bytes(decoders.npy(), b"nothing")


def test_a_transform_decodes_nothing() -> None:
    with pytest.raises(TypeError, match="decoder"):
        ops.decode_bytes(transforms.vflip(), b"")
