"""Weeks of training in a minute: bad records, killed workers, resumes, both executors, and nothing lost, repeated or leaked.

`DATAIO_SOAK_SECONDS=600 pytest tests/test_soak.py` runs it for ten minutes.
"""

from __future__ import annotations

import gc
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import dataio

RECORDS = 4000
BATCH = 16
BAD = 100  # one record in as many cannot be decoded
SIDE = 48

pytestmark = pytest.mark.slow


def is_bad(index: int) -> bool:
    return index % BAD == 37


def make_images() -> list[bytes]:
    """Some JPEG files of noise; record `i` is file `i % len`."""
    import cv2

    rng = np.random.default_rng(0)
    return [
        cv2.imencode(".jpg", rng.integers(0, 256, (SIDE, SIDE, 3), np.uint8))[1].tobytes() for _ in range(64)
    ]


def make_loader(images: list[bytes], workers: str, quarantine: str) -> Any:
    def image(index: int) -> bytes:
        data = images[index % len(images)]
        return data[: len(data) // 3] if is_bad(index) else data

    source = dataio.records([{"image": image(i), "key": str(i)} for i in range(RECORDS)]).shuffle(seed=1)
    pipe = dataio.pipeline(
        dataio.slot("image").decode_image().random_resized_crop(h=32, w=32).hflip(prob=0.5).normalize("imagenet"),
        dataio.batch(BATCH),
    )
    return pipe.bind(source).run(
        "numpy",
        on_failure=0,
        workers=workers,
        seed=7,
        max_failures=0.5,
        max_bytes=64 << 20,
        quarantine=quarantine,
        log_errors=lambda error: None,
    )


def resident() -> int:
    """Bytes of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def descendants() -> list[int]:
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(os.getpid())], capture_output=True, text=True).stdout
    return [int(pid) for pid in found.split()]


def killed(loader: Any, chance: random.Random) -> bool:
    """Kill one worker process with SIGKILL, where there are any."""
    pids = getattr(loader._resources.executor, "pids", [])
    if not pids:
        return False
    try:
        os.kill(chance.choice(pids), signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def segments(images: list[bytes], seconds: float, quarantine: str) -> Iterator[tuple[int, list[int], bool]]:
    """(epoch, ids that came, whether the epoch ended with them), from loader to loader, each resumed from the last."""
    chance = random.Random(3)
    until = time.monotonic() + seconds
    state: dict[str, Any] | None = None
    kills = 0
    for number in range(1_000_000):
        workers = "process" if number % 3 == 1 else "thread"
        with make_loader(images, workers, quarantine) as loader:
            if state is not None:
                loader.load_state_dict(json.loads(json.dumps(state)))
            epoch = loader.state_dict()["epoch"]
            ids: list[int] = []
            for left, batch in zip(range(chance.randrange(10, 160), 0, -1), loader):
                ids += [int(key) for key in batch.keys] + [int(e["key"]) for e in batch.errors]
                if left % 23 == 0:
                    kills += killed(loader, chance)
                if left == 1:
                    break
            state = loader.state_dict()
        ended = state["epoch"] > epoch
        yield epoch, ids, ended
        if ended and time.monotonic() > until:
            print(f"{number + 1} loaders, {kills} killed workers", file=sys.stderr)
            assert kills, "some workers were killed"
            return


def soak(seconds: float, quarantine: str) -> dict[str, Any]:
    images = make_images()
    seen: list[int] = []
    memory: list[int] = []
    handles: list[tuple[int, int]] = []
    epochs = 0
    import threading

    for _, ids, ended in segments(images, seconds, quarantine):
        seen += ids
        if not ended:
            continue
        assert sorted(seen) == list(range(RECORDS)), "every record once, delivered or reported"
        seen = []
        epochs += 1
        gc.collect()
        memory.append(resident())
        handles.append((len(os.listdir("/proc/self/fd")), threading.active_count()))
    return {
        "epochs": epochs,
        "memory": memory,
        "handles": handles,
        "children": descendants(),
        "bad": len(list(dataio.manifest(quarantine))),
    }


def slope(values: list[int]) -> float:
    """Growth from the first to the last value, along the line that fits best."""
    if len(values) < 2:
        return 0.0
    return float(np.polyfit(range(len(values)), values, 1)[0] * (len(values) - 1))


def test_soak(tmp_path: Any) -> None:
    seconds = float(os.environ.get("DATAIO_SOAK_SECONDS", "30"))
    script = f"import json; from tests.test_soak import soak; print(json.dumps(soak({seconds}, {str(tmp_path / 'bad.jsonl')!r})))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=seconds * 3 + 120, cwd=os.getcwd()
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.strip().splitlines()[-1])
    print(done.stderr.strip().splitlines()[-1:], found["epochs"], "epochs", [m >> 20 for m in found["memory"]], "MiB")
    settled = found["memory"][len(found["memory"]) // 3 :]
    assert slope(settled) < 0.1 * settled[0], "memory grows"
    assert found["handles"][-1][0] <= found["handles"][0][0] + 2, "file descriptors are left behind"
    assert found["handles"][-1][1] <= found["handles"][0][1] + 1, "threads are left behind"
    assert len(found["children"]) <= 1, "only `ps` itself"
    assert found["bad"] >= RECORDS // BAD
