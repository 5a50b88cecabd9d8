"""Sinks that were killed go on: the files are those of a run that nothing interrupted, byte for byte."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dataio
from dataio.sinks.manifest import SinkError

pytestmark = pytest.mark.usefixtures("two_workers", "no_leftovers")

SCRIPT = """
import os, signal, sys, time
import numpy as np
import dataio

def run(path, kind, kill_after=None, batch=4):
    def progress(report):
        if kill_after is not None and len(report.shards) == kill_after:
            os.kill(os.getpid(), signal.SIGKILL)
    records = [{"x": np.full((2, 3), i, np.float32) if i % 9 else "broken", "key": f"r{i:02d}", "n": i} for i in range(50)]
    pipe = dataio.pipeline(dataio.slot("x").decode(dataio.decoders.array()).gaussian_noise(std=1.0), dataio.batch(batch))
    source = dataio.records(records).shuffle(seed=4)
    return getattr(pipe.bind(source), f"sink_{kind}")(path, shard_size=7, columns=["n"], workers="thread", seed=1, progress=progress)
"""
SPACE: dict[str, Any] = {}
exec(SCRIPT, SPACE)  # the same function here and in the process that is killed
run = SPACE["run"]


def killed(path: Path, kind: str, after: int) -> None:
    """Run the sink in a process that kills itself once `after` shards are noted."""
    ran = subprocess.run([sys.executable, "-c", f"{SCRIPT}\nrun({str(path)!r}, {kind!r}, {after})"], timeout=60, capture_output=True)
    assert ran.returncode == -signal.SIGKILL, ran.stderr.decode()


def contents(path: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in path.iterdir() if p.name.startswith("part-")}


@pytest.mark.parametrize(("kind", "after"), [("parquet", 1), ("webdataset", 2), ("safetensors", 4), ("tfrecord", 6), ("feather", 7)])
def test_a_killed_sink_goes_on(kind: str, after: int, tmp_path: Path) -> None:
    whole = run(str(tmp_path / "whole"), kind)
    assert (whole.rows, whole.failed, len(whole.shards)) == (44, 6, 7)
    killed(tmp_path / "cut", kind, after)
    noted = json.loads((tmp_path / "cut" / "_dataio.json").read_bytes())
    assert (len(noted["shards"]), noted["complete"]) == (after, after == 7)
    went_on = run(str(tmp_path / "cut"), kind)
    assert (went_on.shards, went_on.rows, went_on.bytes, went_on.failed) == (whole.shards, whole.rows, whole.bytes, whole.failed)
    assert [e["key"] for e in went_on.errors] == [e["key"] for e in whole.errors]
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")


def test_killed_before_every_shard(tmp_path: Path) -> None:
    """Stopped by an exception each time one more shard is noted, which takes the same way as a kill but is quicker."""

    class Stop(Exception):
        pass

    def stop(report: Any) -> None:
        raise Stop

    records = [{"x": np.full(3, i), "key": str(i)} for i in range(40)]
    bound = dataio.pipeline(dataio.slot("x").decode(dataio.decoders.array()), dataio.batch(16)).bind(records)
    stops = 0
    while True:
        try:
            bound.sink_tfrecord(tmp_path / "cut", shard_size=3, workers="thread", progress=stop)
            break
        except Stop:
            stops += 1
            assert len(json.loads((tmp_path / "cut" / "_dataio.json").read_bytes())["shards"]) == stops
    bound.sink_tfrecord(tmp_path / "whole", shard_size=3, workers="thread")
    assert stops == 14
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")


def test_a_finished_sink_returns_at_once(tmp_path: Path) -> None:
    first = run(str(tmp_path), "tfrecord")
    (tmp_path / first.shards[0]).unlink()  # it would be there again if the records were read
    assert run(str(tmp_path), "tfrecord") == first
    assert not (tmp_path / first.shards[0]).exists()


def test_another_plan_is_refused_and_overwrite_replaces(tmp_path: Path) -> None:
    slot = dataio.slot("x").decode(dataio.decoders.array())
    records = [{"x": np.zeros(2), "key": str(i)} for i in range(9)]
    dataio.pipeline(slot).bind(records).sink_parquet(tmp_path, shard_size=2)
    with pytest.raises(SinkError, match=r"source: .*9.*8.*overwrite=True"):
        dataio.pipeline(slot).bind(records[:8]).sink_parquet(tmp_path, shard_size=2)
    with pytest.raises(SinkError, match=r"plan: .* there, .* here"):
        dataio.pipeline(slot.gaussian_noise(std=2.0)).bind(records).sink_parquet(tmp_path, shard_size=2)
    with pytest.raises(SinkError, match="shard_size: 2 there, 3 here"):
        dataio.pipeline(slot).bind(records).sink_parquet(tmp_path, shard_size=3)
    report = dataio.pipeline(slot).bind(records).sink_parquet(tmp_path, shard_size=5, overwrite=True)
    assert sorted(os.listdir(tmp_path)) == ["_dataio.json", *report.shards]
    assert len(report.shards) == 2


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"version": 1}', b'{"version": 9, "shards": []}'])
def test_a_damaged_manifest_is_told(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "_dataio.json").write_bytes(content)
    with pytest.raises(SinkError, match=r"_dataio\.json"):
        run(str(tmp_path), "tfrecord")


def test_files_without_a_manifest_are_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "part-00000.tfrecord").write_bytes(b"mine")
    with pytest.raises(SinkError, match=r"part-00000\.tfrecord exists"):
        run(str(tmp_path), "tfrecord")
    assert (tmp_path / "part-00000.tfrecord").read_bytes() == b"mine"


def test_goes_on_in_s3(s3_bucket: str, tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    def stop(report: Any) -> None:
        if len(report.shards) == 3:
            raise Stop

    bound = dataio.pipeline(dataio.slot("x").decode(dataio.decoders.array())).bind([{"x": np.full(3, i), "key": str(i)} for i in range(20)])
    with pytest.raises(Stop):
        bound.sink_webdataset(f"{s3_bucket}/set", shard_size=4, progress=stop)
    report = bound.sink_webdataset(f"{s3_bucket}/set", shard_size=4)
    bound.sink_webdataset(tmp_path, shard_size=4)
    assert {name: bytes(dataio.read(f"{s3_bucket}/set/{name}")) for name in report.shards} == contents(tmp_path)
