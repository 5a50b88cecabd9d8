"""Fixtures for all tests: generated files, and a check that nothing is left behind."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
from PIL import Image

from .servers.fixtures import (
    az_bucket,
    azure_server,
    gcs_server,
    gs_bucket,
    r2_bucket,
    s3_bucket,
    s3_server,
    web_root,
    web_server,
)

__all__ = [  # fixtures for all tests
    "az_bucket",
    "azure_server",
    "gcs_server",
    "gs_bucket",
    "r2_bucket",
    "s3_bucket",
    "s3_server",
    "web_root",
    "web_server",
]
Make = Callable[..., bytes]


def encoded(height: int = 12, width: int = 16, *, seed: int = 0, format: str = "JPEG", **options: object) -> bytes:
    """A smooth picture with some texture, encoded; equal arguments give equal bytes."""
    y, x = np.mgrid[0:height, 0:width]
    waves = np.stack([np.sin(x / (3 + c) + seed) + np.cos(y / (4 + c) - seed) for c in range(3)], axis=2)
    noise = np.random.default_rng(seed).normal(0, 0.1, waves.shape)
    pixels = np.clip((waves + noise + 2) * 63, 0, 255).astype(np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, format, **options)  # type: ignore[arg-type]
    return out.getvalue()


def npy(array: np.ndarray) -> bytes:
    """An .npy file."""
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


@pytest.fixture
def jpeg(tmp_path: Path) -> Callable[..., Path]:
    """`jpeg(height, width, name=..., seed=...)` writes a JPEG below `tmp_path` and returns its path."""

    def make(height: int = 12, width: int = 16, *, name: str = "picture.jpg", seed: int = 0) -> Path:
        path = tmp_path / name
        path.write_bytes(encoded(height, width, seed=seed))
        return path

    return make


def _held() -> dict[str, Counter[str]]:
    """What a loader could leave behind: its threads, child processes, shared memory, descriptors."""
    me = psutil.Process()
    kinds: Counter[str] = Counter()
    for number in os.listdir("/proc/self/fd"):
        try:
            kind = os.readlink(f"/proc/self/fd/{number}")
        except FileNotFoundError:  # the listing's own
            continue
        if kind.startswith(("socket:", "pipe:", "/memfd:", "/dev/shm")):
            kinds[kind.split(":")[0]] += 1
    return {
        "threads": Counter(t.name for t in threading.enumerate() if t.name.startswith("dataio-")),
        "processes": Counter(str(child.pid) for child in me.children(recursive=True)),
        "shared memory": Counter(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else Counter(),
        "descriptors": kinds,
    }


def _of_others() -> set[str]:
    """Names in /dev/shm that processes other than this one and its children use, such as tests that run beside these."""
    mine = {process.pid for process in (psutil.Process(), *psutil.Process().children(recursive=True))}
    names: set[str] = set()
    for pid in set(psutil.pids()) - mine:
        with contextlib.suppress(OSError):  # it ended, or is another user's
            names.update(re.findall(r" /dev/shm/(\S+)", Path(f"/proc/{pid}/maps").read_text(errors="replace")))
            names.update(path[9:] for fd in Path(f"/proc/{pid}/fd").iterdir() if (path := os.readlink(fd)).startswith("/dev/shm/"))
    return names


def shared_memory() -> set[str]:
    """Segments in /dev/shm but those of other processes, and folders, which are no segments (benchmarks make some there)."""
    if not os.path.isdir("/dev/shm"):
        return set()
    return {entry.name for entry in os.scandir("/dev/shm") if not entry.is_dir()} - _of_others()


def left_over(before: dict[str, Counter[str]], seconds: float = 5.0) -> dict[str, Counter[str]]:
    """What is there now and was not `before`, once things had a moment to end."""
    deadline = time.monotonic() + seconds
    while True:
        now = _held()
        more = {what: now[what] - before[what] for what in now if now[what] - before[what]}
        if "shared memory" in more and not (shared_memory() & more["shared memory"].keys()):
            del more["shared memory"]
        if not more or time.monotonic() > deadline:
            return more
        gc.collect()  # slow, so only where it is needed
        time.sleep(0.02)


@pytest.fixture(scope="module", autouse=True)
def _modules_are_not_collected() -> None:
    """Keeps what was imported so far out of garbage collections, half a second each: there are some hundreds of thousand objects."""
    gc.collect()
    gc.freeze()


@pytest.fixture(name="no_leftovers")
def _no_leftovers() -> Iterator[None]:
    """Fails the test that leaves a thread, process, shared memory or descriptor behind."""
    before = _held()
    yield
    assert not left_over(before)


@pytest.fixture(name="no_leftovers_of_module", scope="module")
def _no_leftovers_of_module() -> Iterator[None]:
    """The same, for what a module's tests share."""
    before = _held()
    yield
    assert not left_over(before)


@pytest.fixture
def two_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pools made during the test have two workers."""
    monkeypatch.setenv("DATAIO_CPU_WORKERS", "2")
