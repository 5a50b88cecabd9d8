"""However a program, a pass, a worker or the fork server ends: nothing is left, nothing is lost, and the next run starts.

Programs are real processes here, and signals real signals. That an operation in flight is not waited for is shown by operations
that would never end.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import dataio

from .conftest import shared_memory

BOTH = pytest.mark.parametrize("workers", ["thread", "process"])
X = dataio.slot("x").decode_bytes()


def eventually(true: Callable[[], bool]) -> bool:
    """Whether `true()` comes to hold; gives up long after it should have."""
    deadline = time.monotonic() + 20
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def running(pids: list[int]) -> list[int]:
    """Those that are neither gone nor waiting to be reaped."""
    found = []
    for pid in pids:
        try:
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                found.append(pid)
        except psutil.NoSuchProcess:
            pass
    return found


class Program:
    """A script in a process of its own, which prints "ready" once it is where it shall be struck."""

    def __init__(self, folder: Path, script: str, *arguments: str) -> None:
        self.temporary = folder / "temporary"
        self.temporary.mkdir()
        path = folder / "train.py"
        path.write_text(script)
        self.memory = shared_memory()
        self.process = subprocess.Popen(
            [sys.executable, str(path), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "DATAIO_DRAIN_TIMEOUT_MS": "300", "DATAIO_CPU_WORKERS": "2", "TMPDIR": str(self.temporary)},
            start_new_session=True,
        )

    def ready(self) -> list[int]:
        """Wait for it; the process ids of all that it started."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line == "ready\n", self.process.communicate(timeout=60)
        return [child.pid for child in psutil.Process(self.process.pid).children(recursive=True)]

    def end(self) -> tuple[int, str, str]:
        """(return code, output, errors)."""
        output, errors = self.process.communicate(timeout=60)
        return self.process.returncode, output, errors

    def left(self, children: list[int]) -> list[Any]:
        """What outlives it."""
        eventually(lambda: not running(children))
        return [*running(children), *shared_memory() - self.memory, *self.temporary.iterdir()]


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Callable[..., Program]]:
    """`program(script, *arguments)` starts one."""
    started: list[Program] = []

    def start(script: str, *arguments: str) -> Program:
        started.append(Program(tmp_path, script, *arguments))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.end()


TRAIN = """
import signal, sys, time, numpy as np, dataio

workers, where, handler = sys.argv[1:]
if handler == "handled":
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(3))

class Stuck:
    def read_all(self):
        time.sleep(10_000)

def records():
    for i in range(8):
        yield {"x": np.float32([i, 1]).tobytes()}
    if where == "source":
        time.sleep(10_000)
    while True:
        yield {"x": Stuck() if where == "workers" else np.float32([1, 1]).tobytes()}

weights = np.zeros(2, np.float32)
pipe = dataio.pipeline(dataio.slot("x").decode_bytes(), dataio.batch(4))
with pipe.bind(records).run("numpy", workers=workers) as loader:
    for number, batch in enumerate(loader):
        inputs = batch["x"].view(np.float32)
        weights -= 0.01 * inputs.T @ (inputs @ weights - inputs[:, 0])
        if number == 1:
            print("ready", flush=True)
            if where == "trainer":
                time.sleep(10_000)
"""


@BOTH
@pytest.mark.parametrize("where", ["trainer", "workers", "source"])
@pytest.mark.parametrize("how", ["SIGINT", "SIGTERM", "SIGTERM handled", "SIGKILL"])
@pytest.mark.slow
def test_a_program_that_is_ended_leaves_nothing(
    how: str, where: str, workers: str, program: Callable[..., Program]
) -> None:
    name, _, handled = how.partition(" ")
    one = program(TRAIN, workers, where, handled)
    children = one.ready()
    assert bool(children) == (workers == "process")
    os.kill(one.process.pid, signal.Signals[name])
    code, _, errors = one.end()
    if name == "SIGINT":
        assert (code, errors.count("Traceback"), errors.rstrip()[-17:]) == (-signal.SIGINT, 1, "KeyboardInterrupt")
    else:
        assert (code, errors) == (3 if handled else -signal.Signals[name], "")
    assert not one.left(children)


STARTING = """
import os, sys, threading, time, dataio

class NeverLoaded:
    def __reduce__(self):
        return eval, (f"open({sys.argv[1]!r}, 'w').close() or __import__('time').sleep(10_000)",)

never = NeverLoaded()

def op(value):
    return never and value

def watch():
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.01)
    print("ready", flush=True)

threading.Thread(target=watch, daemon=True).start()
pipe = dataio.pipeline(dataio.slot("x").decode_bytes().custom(op), dataio.batch(4))
next(iter(pipe.bind([{"x": b"a"}] * 8).run("numpy", workers="process")))
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_program_that_is_ended_while_workers_start_leaves_nothing(
    how: signal.Signals, program: Callable[..., Program], tmp_path: Path
) -> None:
    """The fork server is loading a plan, and never done."""
    one = program(STARTING, str(tmp_path / "loading"))
    children = one.ready()
    assert children
    os.kill(one.process.pid, how)
    assert one.end()[0] == -how
    assert not one.left(children)


# -------------------------------------------------------------------- os.fork

FORK = """
import os, signal, sys, threading, numpy as np, dataio

workers, leave = sys.argv[1:]
pipe = dataio.pipeline(dataio.slot("x").decode_bytes(), dataio.batch(4))
records = [{"x": np.full(9, i, np.uint8).tobytes()} for i in range(80)]
loader = pipe.bind(records).run("numpy", workers=workers)
iterator = iter(loader)
first = next(iterator)["x"]
child = os.fork()
if child == 0:
    signal.alarm(60)  # a lock that nobody frees
    for use in (lambda: next(iterator), lambda: iter(loader), loader.stats, loader.__enter__):
        try:
            use()
        except RuntimeError as error:
            assert "make a loader in this process" in str(error), error
        else:
            sys.exit("an inherited loader was used")
    loader.close()
    for kind in ("thread", "process"):
        with pipe.bind(records).run("numpy", workers=kind) as own:
            assert [v for b in own for v in b["x"][:, 0]] == list(range(80))
    if workers == "thread":
        assert first[:, 0].tolist() == [0, 1, 2, 3]
    if leave == "_exit":
        os._exit(0)
    del loader, iterator
    sys.exit(0)
del first
assert os.waitpid(child, 0)[1] == 0
assert [v for b in iterator for v in b["x"][:, 0]] == list(range(4, 80))
assert sum(map(len, loader)) == 80
loader.close()
assert not [t for t in threading.enumerate() if t.name.startswith("dataio-")]
print("ready", flush=True)
"""


@BOTH
@pytest.mark.parametrize("leave", ["exit", "_exit"])
def test_a_forked_child_makes_its_own_loader(leave: str, workers: str, program: Callable[..., Program]) -> None:
    """The parent's pass goes on, and ends with every record, whatever the child did and however it ended."""
    one = program(FORK, workers, leave)
    code, output, errors = one.end()
    assert (code, output, errors) == (0, "ready\n", "")
    assert not one.left([])


FORKS = """
import os, signal, threading, dataio

pipe = dataio.pipeline(dataio.slot("x").decode_bytes(), dataio.batch(2))
bound = pipe.bind([{"x": b"abcd"}] * 40).options(workers="thread")
stop = False

def train():
    with bound.run("numpy") as loader:
        while not stop:
            assert sum(map(len, loader)) == 40

sum(map(len, bound.run("numpy")))  # a module that another thread imports at the fork stays half imported: Python's own limit
threads = [threading.Thread(target=train) for _ in range(2)]
for thread in threads:
    thread.start()
codes = []
for _ in range(25):
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        with bound.run("numpy") as loader:
            os._exit(sum(map(len, loader)) != 40)
    codes.append(os.waitpid(child, 0)[1])
stop = True
for thread in threads:
    thread.join()
print(set(codes))
"""


def test_forks_at_any_moment_leave_no_lock_held_in_the_child(program: Callable[..., Program]) -> None:
    assert program(FORKS).end() == (0, "{0}\n", "")


ORPHANED = """
import os, sys, time, dataio

pipe = dataio.pipeline(dataio.slot("x").decode_bytes(), dataio.batch(4))
loader = pipe.bind([{"x": b"abcd"}] * 800).run("numpy", workers="process")
next(iter(loader))
if os.fork() == 0:
    time.sleep(10_000)
print("ready", flush=True)
time.sleep(10_000)
"""


def test_workers_of_a_killed_program_end_while_its_forked_child_lives_on(program: Callable[..., Program]) -> None:
    """The child had a copy of every channel, so their ends were never seen."""
    one = program(ORPHANED)
    one.ready()
    forked = next(c for c in psutil.Process(one.process.pid).children() if "train.py" in " ".join(c.cmdline()))
    workers = [c.pid for c in psutil.Process(one.process.pid).children(recursive=True) if c != forked]
    assert len(workers) == 3
    one.process.kill()
    one.process.wait()
    try:
        assert not one.left(workers)
        assert forked.is_running()
    finally:
        forked.kill()


# -------------------------------------------------------------------- workers and fork server


@pytest.fixture
def loader(two_workers: None, no_leftovers: None) -> Iterator[dataio.DataLoader]:
    """160 records, batches of 4, two worker processes; every record must be delivered."""
    records = [{"x": np.full(64, i, np.uint8).tobytes()} for i in range(160)]
    with dataio.pipeline(X, dataio.batch(4)).bind(records).run("numpy", workers="process", on_failure="strict") as made:
        yield made


def executor(loader: dataio.DataLoader) -> Any:
    return loader._resources.executor


def firsts(batches: Any) -> list[int]:
    return [int(value) for batch in batches for value in batch["x"][:, 0]]


def kill(pids: list[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: not running(pids))


def test_workers_killed_between_passes_cost_no_record(loader: dataio.DataLoader) -> None:
    """A worker that died while it had nothing to do was held against the next records sent to it."""
    for _ in range(3):
        assert firsts(loader) == list(range(160))
        before = executor(loader).pids
        kill(before)
    assert firsts(loader) == list(range(160))
    assert not set(before) & set(executor(loader).pids)


@pytest.mark.parametrize("with_workers", [False, True])
def test_a_killed_fork_server_is_started_again(loader: dataio.DataLoader, with_workers: bool) -> None:
    """Its workers die with it, and no record is blamed for that."""
    iterator = iter(loader)
    got = firsts([next(iterator)])
    server, workers = executor(loader).server_pid, executor(loader).pids
    kill([server, *workers] if with_workers else [server])
    assert eventually(lambda: not running(workers))
    assert got + firsts(iterator) == list(range(160))
    assert firsts(loader) == list(range(160))
    assert executor(loader).server_pid != server


def test_a_fork_server_killed_again_and_again(loader: dataio.DataLoader) -> None:
    iterator, got = iter(loader), []
    killed: list[int] = []
    while len(killed) < 3:
        got += firsts([next(iterator)])  # also gives idle workers something to do: their death is noticed then
        if (server := executor(loader).server_pid) not in killed:
            kill([server])
            killed.append(server)
    assert got + firsts(iterator) == list(range(160))


@pytest.mark.usefixtures("two_workers", "no_leftovers")
def test_a_plan_whose_workers_cannot_start_is_an_error_not_a_hang() -> None:
    class Deadly:
        def __reduce__(self) -> Any:
            return os.abort, ()

    deadly = Deadly()

    def op(value: Any) -> Any:
        return value if deadly is not None else None

    bound = dataio.pipeline(X.custom(op), dataio.batch(2)).bind([{"x": b"ab"}] * 4)
    with bound.run("numpy", workers="process") as loader:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="process that starts the workers is gone"):
                list(loader)


# -------------------------------------------------------------------- operations in flight


class Stuck:
    """Reads until the test is over."""

    def __init__(self, started: threading.Event, over: threading.Event) -> None:
        self.started, self.over = started, over

    def read_all(self) -> bytes:
        self.started.set()
        self.over.wait()
        return b"late"


@pytest.fixture
def over(monkeypatch: pytest.MonkeyPatch, two_workers: None, no_leftovers: None) -> Iterator[threading.Event]:
    """Set when the test is over; closing waits a second for what is in flight."""
    monkeypatch.setenv("DATAIO_DRAIN_TIMEOUT_MS", "1000")
    event = threading.Event()
    yield event
    event.set()


def fresh_run() -> list[int]:
    """What another loader delivers."""
    with dataio.pipeline(X, dataio.batch(2)).bind([{"x": bytes([i])} for i in range(6)]).run("numpy", workers="thread") as one:
        return firsts(one)


@pytest.mark.alone
def test_closing_does_not_wait_for_reads_that_hang_on_threads(over: threading.Event) -> None:
    """The waits of source and workers were added up. Another loader starts while they still hang."""
    started = threading.Event(), threading.Event()

    def records() -> Iterator[dict[str, Any]]:
        for event in started:
            yield {"x": Stuck(event, over)}
        over.wait()

    loader = dataio.pipeline(X, dataio.batch(1)).bind(records).run("numpy", workers="thread")
    iterator = iter(loader)
    assert all(event.wait(60) for event in started)
    began = time.monotonic()
    loader.close()
    assert time.monotonic() - began < 2 * 1.0  # of the drain timeout
    assert not over.is_set()
    assert fresh_run() == list(range(6))
    assert next(iterator, None) is None


class Sleeper:
    """Says on a pipe that it is being read, and sleeps on."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read_all(self) -> bytes:
        self.path.touch()
        time.sleep(10_000)
        return b""


def test_closing_ends_reads_that_hang_in_processes(over: threading.Event, tmp_path: Path) -> None:
    records = [{"x": Sleeper(tmp_path / str(i))} for i in range(2)]
    loader = dataio.pipeline(X, dataio.batch(1)).bind(records).run("numpy", workers="process")
    iterator = iter(loader)
    assert eventually(lambda: any(record["x"].path.exists() for record in records))
    pids = executor(loader).pids
    loader.close()
    assert not running(pids)
    assert next(iterator, None) is None


@BOTH
def test_closing_does_not_wait_for_a_source_that_hangs(workers: str, over: threading.Event) -> None:
    def records() -> Iterator[dict[str, Any]]:
        yield {"x": b"a"}
        over.wait()

    loader = dataio.pipeline(X, dataio.batch(1)).bind(records).run("numpy", workers=workers)
    iterator = iter(loader)
    next(iterator)
    loader.close()
    assert not over.is_set()
    assert fresh_run() == list(range(6))


@BOTH
def test_closing_does_not_wait_for_a_pipe_that_nobody_writes_to(
    workers: str, over: threading.Event, tmp_path: Path
) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    loader = dataio.pipeline(X, dataio.batch(1)).bind([{"x": b"a"}, {"x": str(path)}]).run("numpy", workers=workers)
    next(iter(loader))
    loader.close()
    assert fresh_run() == list(range(6))
    if workers == "thread":  # the thread that hangs in the system's `open` ends once there is a writer
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
