"""Bad input is data: the error names record, slot, op and reason, the rest is delivered, nothing hangs or is left behind.

Loaders are shared by the tests of one executor and policy, so every test also shows that a loader goes on after the
failures of the test before it.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import dataio
from dataio.engine.errors import BatchError, SourceError

from .conftest import encoded

WORKERS = ["thread", "process"]
POLICIES = ["strict", "skip", 0]
ERROR_KEYS = {"index", "key", "stage", "op", "message", "slot", "record", "uri", "offset", "type"}

pytestmark = [pytest.mark.usefixtures("no_leftovers_of_module")]


def explosive(record: Any) -> Any:
    """The record map of every pipeline here."""
    if isinstance(record, dict) and "explode" in record:
        raise ArithmeticError("the map saw red")
    return record


class Killer:
    """A reader that ends the process it runs in, as a crash in native code would."""

    def read_all(self) -> bytes:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("not reached")


class Loaders:
    """One loader per executor and policy, over records that can be set anew."""

    def __init__(self) -> None:
        self.made: dict[tuple[str, Any], dataio.DataLoader] = {}
        self.records: Callable[[], Any] = list
        self.stack = ExitStack()

    def __call__(self, records: Any, workers: str, policy: Any) -> dataio.DataLoader:
        self.records = records if callable(records) else lambda: records
        if (workers, policy) not in self.made:
            plan = dataio.pipeline(
                dataio.map(explosive), dataio.slot("image").decode_image().center_crop(h=8, w=8), dataio.batch(4)
            )
            loader = plan.bind(lambda: self.records()).run("numpy", workers=workers, on_failure=policy)
            self.made[(workers, policy)] = self.stack.enter_context(loader)
        return self.made[(workers, policy)]


@pytest.fixture(scope="module")
def loaders(no_leftovers_of_module: None) -> Iterator[Loaders]:
    patch = pytest.MonkeyPatch()
    patch.setenv("DATAIO_CPU_WORKERS", "2")
    made = Loaders()
    with made.stack:
        yield made
    made.made.clear()
    patch.undo()


GOOD = encoded()


def good(count: int) -> list[Any]:
    return [{"image": GOOD, "key": f"good{i}"} for i in range(count)]


def huge_png() -> bytes:
    """A PNG that claims 60,000 x 60,000 pixels in a few dozen bytes."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(64))) + chunk(b"IEND", b"")


def written(folder: Path, name: str, content: bytes) -> str:
    path = folder / name
    path.write_bytes(content)
    return str(path)


def socket_file(folder: Path) -> str:
    """A name that exists and cannot be opened for reading, not even by root."""
    path = folder / "s.jpg"
    with socket.socket(socket.AF_UNIX) as listener:
        here = os.open(folder, os.O_RDONLY)
        try:
            listener.bind(f"/proc/self/fd/{here}/s.jpg")  # a socket's path has at most 107 characters
        finally:
            os.close(here)
    return str(path)


@dataclass(frozen=True)
class Bad:
    """A record that must fail, and what its error must say."""

    make: Callable[[Path], Any]
    stage: str
    op: str
    type: str
    says: str
    slot: str | None = "image"
    uri: bool = False


def file(name: str, content: bytes) -> Callable[[Path], Any]:
    return lambda folder: {"image": written(folder, name, content)}


CASES = {
    "cut-jpeg": Bad(file("cut.jpg", GOOD[:-45]), "decode", "image", "OpError", "truncated|damaged|premature|end", uri=True),
    "cut-jpeg-in-memory": Bad(lambda _: {"image": GOOD[:-45]}, "decode", "image", "OpError", "truncated|damaged|premature|end"),
    "zero-bytes": Bad(file("zero.jpg", b""), "decode", "image", "OpError", "empty|0 bytes|no image", uri=True),
    "text-named-jpg": Bad(file("text.jpg", b"hello, this is no picture\n" * 9), "decode", "image", "OpError", "format", uri=True),
    "huge-png": Bad(file("huge.png", huge_png()), "decode", "image", "LimitError", "60,?000", uri=True),
    "missing-file": Bad(lambda f: {"image": str(f / "no.jpg")}, "read", "read", "FileNotFoundError", "No such file", uri=True),
    "directory": Bad(lambda f: {"image": str(f)}, "read", "read", "IsADirectoryError", "directory", uri=True),
    "unreadable": Bad(lambda f: {"image": socket_file(f)}, "read", "read", "OSError", "No such device", uri=True),
    "no-slot-field": Bad(lambda _: {"picture": GOOD}, "read", "read", "MissingFieldError", "'image'.*'picture'"),
    "value-int": Bad(lambda _: {"image": 7}, "read", "read", "RecordError", "int"),
    "value-none": Bad(lambda _: {"image": None}, "read", "read", "RecordError", "NoneType"),
    "record-int": Bad(lambda _: 7, "read", "read", "RecordError", "int"),
    "record-none": Bad(lambda _: None, "read", "read", "RecordError", "NoneType"),
    "record-tuple": Bad(lambda _: (GOOD,), "read", "read", "RecordError", "tuple"),
    "map-raises": Bad(lambda _: {"image": GOOD, "explode": 1}, "map", "explosive", "ArithmeticError", "saw red", slot=None),
}  # fmt: skip


def check_error(error: dict[str, Any], bad: Bad, index: int, record: int) -> None:
    assert set(error) == ERROR_KEYS
    assert (error["index"], error["record"]) == (index, record)
    assert (error["stage"], error["op"], error["slot"], error["type"]) == (bad.stage, bad.op, bad.slot, bad.type)
    assert re.search(bad.says, error["message"], re.IGNORECASE), error["message"]
    assert bool(error["uri"]) == bad.uri


def check_message(message: str, bad: Bad, record: int) -> None:
    """The text that a person sees names record, slot, op, and reason."""
    assert f"record {record} " in message
    assert f"op {bad.op!r}" in message
    assert bad.type in message
    assert re.search(bad.says, message, re.IGNORECASE)
    if bad.slot is not None:
        assert f"slot {bad.slot!r}" in message


def drain(loader: dataio.DataLoader) -> tuple[list[Any], Exception | None]:
    """All batches, and what ended the pass."""
    batches = []
    try:
        for batch in loader:
            batches.append(batch)
    except Exception as error:
        return batches, error
    return batches, None


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("case", CASES)
def test_a_bad_record_costs_itself_and_is_named(
    case: str, policy: Any, workers: str, loaders: Loaders, tmp_path: Path
) -> None:
    bad = CASES[case]
    records = [*good(5), bad.make(tmp_path), *good(6)]
    batches, ended = drain(loaders(records, workers, policy))
    if policy == "strict":
        assert isinstance(ended, BatchError)
        assert isinstance(ended, RuntimeError)
        assert [len(b) for b in batches] == [4]
        check_error(ended.errors[0], bad, 1, 5)
        check_message(str(ended), bad, 5)
        return
    assert ended is None
    assert [len(b) for b in batches] == [4, 3, 4]
    assert batches[1].indices == [0, 2, 3]
    assert batches[1]["image"].shape == (3, 8, 8, 3)
    [error] = batches[1].errors
    check_error(error, bad, 1, 5)
    assert not batches[0].errors
    assert not batches[2].errors


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("case", CASES)
def test_a_batch_without_survivors_raises_under_skip(
    case: str, workers: str, loaders: Loaders, tmp_path: Path
) -> None:
    bad = CASES[case]
    record = bad.make(tmp_path)
    batches, ended = drain(loaders([*good(4), *[record] * 4, *good(4)], workers, "skip"))
    assert [len(b) for b in batches] == [4]
    assert isinstance(ended, BatchError)
    assert ended.batch == 1
    assert [e["index"] for e in ended.errors] == [0, 1, 2, 3]
    assert "min_survivors=1" in str(ended)
    check_message(str(ended), bad, 4)


@pytest.mark.parametrize("workers", WORKERS)
def test_a_batch_without_survivors_is_empty_under_zero(workers: str, loaders: Loaders) -> None:
    records = [*good(4), *[{"image": 7}] * 4, *good(4)]
    batches, ended = drain(loaders(records, workers, 0))
    assert ended is None
    assert [len(b) for b in batches] == [4, 0, 4]
    assert batches[1].keys == []
    assert batches[1]["image"] == []
    assert batches[1].slot_names == ["image"]
    assert len(batches[1].errors) == 4


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("before", [0, 3, 4, 6])
def test_a_source_that_raises_delivers_what_came_before(
    before: int, policy: Any, workers: str, loaders: Loaders
) -> None:
    cause = OSError("the disk is gone")

    def records() -> Iterator[Any]:
        yield from good(before)
        raise cause

    batches, ended = drain(loaders(records, workers, policy))
    assert [k for b in batches for k in b.keys] == [f"good{i}" for i in range(before)]
    assert isinstance(ended, SourceError)
    assert ended.__cause__ is cause
    assert "the disk is gone" in str(ended)


@pytest.mark.parametrize("workers", WORKERS)
def test_every_record_bad(workers: str, loaders: Loaders, tmp_path: Path) -> None:
    records = [bad.make(tmp_path) for bad in CASES.values()]
    batches, ended = drain(loaders(records, workers, 0))
    assert ended is None
    errors = [error for b in batches for error in b.errors]
    assert [e["record"] for e in errors] == list(range(len(records)))
    assert [e["type"] for e in errors] == [bad.type for bad in CASES.values()]


def test_errors_are_fresh_copies(loaders: Loaders) -> None:
    [batch], _ = drain(loaders([*good(1), {"image": 7}], "thread", 0))
    batch.errors[0]["message"] = "changed"
    assert batch.errors[0]["message"] != "changed"


@pytest.mark.parametrize("policy", POLICIES)
def test_a_record_that_kills_its_worker_is_lost_alone(policy: Any, loaders: Loaders) -> None:
    """What the dead worker held is tried again record by record."""
    records = [*good(5), {"image": Killer()}, *good(6)]
    batches, ended = drain(loaders(records, "process", policy))
    bad = Bad(lambda _: None, "worker", "worker", "WorkerDiedError", "died while it held record 5")
    if policy == "strict":
        assert isinstance(ended, BatchError)
        check_error(ended.errors[0], bad, 1, 5)
        check_message(str(ended), bad, 5)
        return
    assert ended is None
    assert [len(b) for b in batches] == [4, 3, 4]
    check_error(batches[1].errors[0], bad, 1, 5)


def test_workers_that_keep_dying_do_not_stop_the_loader(loaders: Loaders) -> None:
    records = [r for pair in zip(good(8), [{"image": Killer()}] * 8) for r in pair]
    batches, ended = drain(loaders(records, "process", 0))
    assert ended is None
    assert [len(b) for b in batches] == [2, 2, 2, 2]
    assert {e["op"] for b in batches for e in b.errors} == {"worker"}


def pids(loader: dataio.DataLoader) -> list[int]:
    executor: Any = loader._resources.executor
    return list(executor.pids)


def test_a_worker_killed_from_outside_is_replaced(loaders: Loaders) -> None:
    loader = loaders(good(40), "process", 0)
    iterator = iter(loader)
    first = next(iterator)
    os.kill(pids(loader)[0], signal.SIGKILL)
    rest = list(iterator)
    delivered = len(first) + sum(len(b) for b in rest)
    lost = [e for b in rest for e in b.errors]
    assert delivered + len(lost) == 40
    assert {e["type"] for e in lost} <= {"WorkerDiedError"}
    assert sum(len(b) for b in loader) == 40


class Unpicklable:
    def __reduce__(self) -> Any:
        raise TypeError("this object stays here")


@pytest.mark.usefixtures("two_workers", "no_leftovers")
def test_a_record_that_cannot_be_sent_to_a_process_says_so() -> None:
    """It ended the dispatcher: the second pass waited forever."""

    class Stuck(Unpicklable):
        def read_all(self) -> bytes:
            return b"ab"

    plan = dataio.pipeline(dataio.slot("x").decode_bytes(), dataio.batch(2))
    with plan.bind([{"x": Stuck()}] * 4).run("numpy", workers="process") as loader:
        for _ in range(2):
            with pytest.raises(TypeError, match=r"records . to . cannot be sent.*stays here.*workers=\"thread\""):
                list(loader)
