"""The fork server: a small process that has loaded the ops once and forks workers from there.

It is single-threaded and never touches the trainer's memory, CUDA context or locks, so that forking is safe, and a killed
worker is replaced in milliseconds. Unlike `multiprocessing`'s it does not import the user's main module: what a worker
needs comes with the pickled program.

Server protocol: the loader sends `("fork",)` with the worker's end of a socket pair; the answer is the worker's pid. When
the loader's end closes, the server ends its workers and itself.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from typing import Any

from ..errors import WorkerDiedError
from .channel import receive, send

_START = "import sys, json; sys.path[:] = json.loads(sys.argv[2]); from dataio.engine.executors.forkserver import serve; serve(int(sys.argv[1]))"
_EXIT_SECONDS = 2.0
"""How long workers get to leave by themselves once their channel is closed."""


class ForkServer:
    """The loader's handle on its fork server process."""

    def __init__(self, program: bytes) -> None:
        import json

        ours, theirs = socket.socketpair()
        path = [p or os.getcwd() for p in sys.path]
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START, str(theirs.fileno()), json.dumps(path)],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # a terminal's Ctrl-C is for the trainer alone
            )
        self._channel = ours
        send(ours, "program", (program,))

    def fork(self) -> tuple[int, socket.socket]:
        """Start a worker: its pid and our end of its channel.

        Raises:
            WorkerDiedError: the server is gone, or could not load the program.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                send(self._channel, "fork", (), (theirs.fileno(),))
                answer, _, _ = receive(self._channel)
            except (EOFError, OSError) as error:
                ours.close()
                raise WorkerDiedError("the process that starts the workers is gone") from error
        if isinstance(answer, BaseException):
            ours.close()
            raise WorkerDiedError(f"workers cannot load the plan: {answer}") from answer
        return int(answer), ours

    def close(self) -> None:
        """End the server and all its workers."""
        self._channel.close()
        try:
            self._process.wait(timeout=_EXIT_SECONDS + 3)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def serve(descriptor: int) -> None:
    """The server's main loop."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = socket.socket(fileno=descriptor)
    children: set[int] = set()
    failure: Exception | None = None
    program: Any = None
    _, (blob,), _ = receive(channel)
    try:
        program = pickle.loads(blob)
        for setup in program.setups:
            setup()  # imports the heavy libraries here, once
    except Exception as error:
        failure = RuntimeError(f"{type(error).__name__}: {error}")
    while True:
        try:
            _, _, descriptors = receive(channel)
        except (EOFError, ConnectionError):
            break
        _reap(children)
        with socket.socket(fileno=descriptors[0]) as worker:
            if failure is not None:
                send(channel, failure)
                continue
            pid = os.fork()
            if pid == 0:
                channel.close()
                from .worker import child

                child(worker, program)
            children.add(pid)
        send(channel, pid)
    _end(children)


def _reap(children: set[int]) -> None:
    for pid in list(children):
        with contextlib.suppress(ChildProcessError):
            if os.waitpid(pid, os.WNOHANG)[0] == 0:
                continue
        children.discard(pid)


def _end(children: set[int]) -> None:
    """The workers see their channels close; who stays busy is killed."""
    deadline = time.monotonic() + _EXIT_SECONDS
    while children and time.monotonic() < deadline:
        _reap(children)
        time.sleep(0.005)
    for pid in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for pid in children:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)
