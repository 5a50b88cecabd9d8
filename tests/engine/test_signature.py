"""A plan's signature: names, versions and arguments; never the data, the process or the time."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dataio
from dataio import cond
from dataio.engine.arguments import Size
from dataio.engine.registry import register_op

from .helpers import ops

__all__ = ["ops"]
ROOT = Path(__file__).parents[2]
RECORDS = [{"image": b"", "n": 1}]


def first_map(record: Any) -> Any:
    return record


def build(**changes: Any) -> dataio.Pipeline:
    """A pipeline in which each keyword changes one thing."""
    o: dict[str, Any] = {
        "slot": "image", "mode": "rgb", "size": 8, "optional": False, "skip": None, "map": first_map,
        "batch": 4, "drop_last": False, "prefetch": 2, "version": "1", "interp": "bicubic", "crop": 4,
    } | changes  # fmt: skip
    slot = dataio.slot(o["slot"], optional=o["optional"]).decode_image(mode=o["mode"])
    if o["skip"] is not None:
        slot = slot.skip_when(o["skip"])
    return dataio.pipeline(
        dataio.map(o["map"]),
        dataio.map(dataio.custom_op(first_map, name=o.get("name", "op"), version=o["version"])),
        slot.resize_short(o["size"], interp=o["interp"]).center_crop(h=o["crop"], w=4),
        o.get("shape") or dataio.batch(o["batch"], drop_last=o["drop_last"], prefetch=o["prefetch"]),
    )


CHANGES: list[dict[str, Any]] = [
    {"slot": "other"},
    {"mode": "gray"},
    {"size": 9},
    {"interp": "bilinear"},
    {"crop": 5},
    {"crop": dataio.col("n")},
    {"crop": dataio.col("m")},
    {"optional": True},
    {"optional": True, "skip": cond.col("n").eq(1)},
    {"optional": True, "skip": cond.col("n").eq(True)},
    {"optional": True, "skip": cond.col("n").eq(1.5)},
    {"optional": True, "skip": cond.col("m").eq(1)},
    {"map": lambda record: record},
    {"map": lambda record: record or None},
    {"map": lambda record, k=1: record},
    {"map": lambda record, k=2: record},
    {"version": "2"},
    {"name": "op2"},
    {"batch": 5},
    {"drop_last": True},
    {"prefetch": 3},
    {"shape": dataio.collate()},
    {"shape": dataio.collate(prefetch=5)},
    {"shape": dataio.group_by("n")},
    {"shape": dataio.group_by("m")},
    {"shape": dataio.group_by(0)},
]


def test_every_change_changes_it() -> None:
    found = [build(**change).bind(RECORDS).signature() for change in [{}, *CHANGES]]
    assert len(set(found)) == len(found)
    assert all(len(s) == 64 for s in found)


def test_the_source_is_no_part_of_it() -> None:
    assert build().bind(RECORDS).signature() == build().bind([]).signature() == build().bind(lambda: []).signature()


def test_options_of_the_run_are_no_part_of_it() -> None:
    assert build().bind(RECORDS).options(seed=3, concurrency=2).signature() == build().bind(RECORDS).signature()


def test_a_custom_op_stands_for_its_code() -> None:
    def pipe(function: Callable[..., Any]) -> str:
        op = dataio.custom_op(function, name="f", version="1")
        return build(map=op).bind(RECORDS).signature()

    assert pipe(lambda r: r) == pipe(lambda r: {**r})


def test_closures_and_inner_code_count() -> None:
    def scaled(k: int) -> Callable[[Any], Any]:
        return lambda record: record * k

    maps: list[Callable[[Any], Any]] = [
        scaled(2),
        scaled(3),
        lambda r: [x + 1 for x in r],
        lambda r: [x * 1 for x in r],
        lambda r: [x + 2 for x in r],
        lambda r: (lambda x: x + 1)(r),
        lambda r: (lambda x: x - 1)(r),
    ]
    assert len({build(map=m).bind(RECORDS).signature() for m in maps}) == len(maps)


@pytest.mark.usefixtures("ops")
def test_an_ops_version_and_arguments() -> None:
    def signature(**arguments: Any) -> str:
        slot = dataio.slot("image").decode_npy().sig_probe(**arguments)  # type: ignore[attr-defined]
        return dataio.pipeline(slot, dataio.batch(2)).bind(RECORDS).signature()

    found = []
    for version in (1, 2):

        def sig_probe(value: np.ndarray, *, size: Size = 3) -> np.ndarray:
            """Nothing."""
            return value

        register_op("sig_probe", version=version)(sig_probe)
        found += [signature(), signature(size=4)]
    assert len(set(found)) == 4
    assert signature() == signature(size=3)


def test_a_set_parameter_is_that_of_the_literal() -> None:
    slot = dataio.slot("image").decode_image()
    asked = dataio.pipeline(slot.resize(h=dataio.param("h"), w=4), dataio.batch(2))
    fixed = dataio.pipeline(slot.resize(h=6, w=4), dataio.batch(2))
    assert asked.configure(h=6).bind([]).signature() == fixed.bind([]).signature()
    assert asked.bind([]).signature() != fixed.bind([]).signature()


SCRIPT = """
import dataio
from dataio import cond
def outer(record):
    names = {"a", "bb", "ccc", "dddd", "eeeee", "ffffff"}
    if record["n"] in {"a", "bb", "ccc", "dddd", "eeeee", "ffffff"}:
        return [x for x in record if x in {"u", "vv", "www", "xxxx"}]
    return names
pipe = dataio.pipeline(
    dataio.map(outer),
    dataio.slot("image", optional=True).decode_image().resize(h=dataio.col("h"), w=3).skip_when(cond.col("n").is_in([1, "a"])),
    dataio.group_by(lambda r: r["n"] in {"a", "bb", "ccc"}),
)
print(pipe.bind([]).signature())
"""


def test_it_is_stable_across_processes() -> None:
    found = set()
    for seed in ("0", "1", "7"):
        env = {**os.environ, "PYTHONHASHSEED": seed}
        out = subprocess.run(
            [sys.executable, "-c", SCRIPT], cwd=ROOT, env=env, capture_output=True, text=True, timeout=60, check=True
        )
        found.add(out.stdout.strip())
    assert len(found) == 1
