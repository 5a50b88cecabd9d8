"""The fork server: a small process that has loaded the ops once and forks workers from there.

It is single-threaded and never touches the trainer's memory, CUDA context or locks, so that forking is safe, and a killed
worker is replaced in milliseconds. Unlike `multiprocessing`'s it does not import the user's main module: what a worker
needs comes with the pickled program.

Server protocol: the loader sends the program, then a `Placement` with the worker's end of a socket pair for each worker; the
answer is the worker's pid. When the loader's end closes, or its process ends, the server ends its workers and itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from ..errors import WorkerDiedError
from ..forks import in_child
from .base import Placement
from .channel import receive, send

_START = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[3]); "
    "from dataio.engine.executors.forkserver import serve; serve(int(sys.argv[1]), int(sys.argv[2]))"
)
_EXIT_SECONDS = 2.0
"""How long workers get to leave by themselves once their channel is closed."""


class ServerGoneError(WorkerDiedError):
    """The fork server ended, or was never able to start."""


class ForkServer:
    """The loader's handle on its fork server process."""

    def __init__(self, program: bytes) -> None:
        self._program: bytes | None = program
        self._serving = False
        self._channel, theirs = socket.socketpair()
        path = [p or os.getcwd() for p in sys.path]
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START, str(theirs.fileno()), str(os.getpid()), json.dumps(path)],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # a terminal's Ctrl-C is for the trainer alone
            )
        in_child(self, ForkServer._disown)

    @property
    def pid(self) -> int:
        """The server's process id."""
        return self._process.pid

    def fork(self, placement: Placement) -> tuple[int, socket.socket]:
        """Start a worker: its pid and our end of its channel. The first call waits until the server has loaded the ops.

        Raises:
            ServerGoneError: the server is gone.
            WorkerDiedError: it could not load the program.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                if self._program is not None:
                    send(self._channel, "program", (self._program,))
                    self._program = None
                send(self._channel, placement, (), (theirs.fileno(),))
                answer, _, _ = receive(self._channel)
            except (EOFError, OSError) as error:
                ours.close()
                raise ServerGoneError("the process that starts the workers is gone") from error
        if isinstance(answer, BaseException):
            ours.close()
            raise WorkerDiedError(f"workers cannot load the plan: {answer}") from answer
        self._serving = True
        return int(answer), ours

    def abort(self) -> None:
        """Have a `fork` that another thread waits in, and all later ones, raise."""
        with contextlib.suppress(OSError):
            self._channel.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the server and all its workers."""
        self._channel.close()
        if not self._serving:  # it may be importing for a second, and has no worker that it would have to end
            self._process.kill()
        try:
            self._process.wait(timeout=_EXIT_SECONDS + 3)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _disown(self) -> None:
        """In a forked child: the server is the parent's, and the end of its channel must be seen when the parent ends."""
        self._channel.close()
        self._process.returncode = 0  # no child of this process: not to be waited for


def serve(descriptor: int, parent: int) -> None:
    """The server's main loop."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = socket.socket(fileno=descriptor)
    alive = _Liveness(channel, parent)
    children: set[int] = set()
    failure: Exception | None = None
    program: Any = None
    with contextlib.suppress(EOFError, ConnectionError):
        _, (blob,), _ = receive(channel)
        try:
            with alive.watched():
                program = pickle.loads(blob)
                for setup in program.setups:
                    setup()  # imports the heavy libraries here, once
        except Exception as error:
            failure = RuntimeError(f"{type(error).__name__}: {error}")
        while alive.wait():
            placement, _, descriptors = receive(channel)
            _reap(children)
            with socket.socket(fileno=descriptors[0]) as worker:
                if failure is not None:
                    send(channel, failure)
                    continue
                server = os.getpid()
                pid = os.fork()
                if pid == 0:
                    channel.close()
                    from .worker import child

                    child(worker, program, placement, server)
                children.add(pid)
            send(channel, pid)
    _end(children)


class _Liveness:
    """Waits for requests, and for the end of the trainer.

    The end of the channel does not always tell: a process forked from the trainer by a library may hold a copy of it. The
    signal on a parent's death is of no use either: it comes when the thread that started this process ends.
    """

    def __init__(self, channel: socket.socket, parent: int) -> None:
        self._channel = channel
        self._parent = -1
        with contextlib.suppress(AttributeError, OSError):  # not Linux, an old kernel, a sandbox, or gone already
            self._parent = os.pidfd_open(parent)

    def _poll(self, events: int) -> select.poll:
        poll = select.poll()
        poll.register(self._channel, events)
        if self._parent >= 0:
            poll.register(self._parent, select.POLLIN)
        return poll

    def wait(self) -> bool:
        """True once there is something to receive, False once the trainer is gone."""
        return all(descriptor != self._parent for descriptor, _ in self._poll(select.POLLIN).poll())

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """End this process within the block as soon as the trainer is gone. The thread that sees to it ends with the block,
        before anything is forked.
        """
        stop, ended = os.pipe()
        poll = self._poll(0)  # of the channel only its end
        poll.register(stop, select.POLLHUP)

        def watch() -> None:
            if any(descriptor != stop for descriptor, _ in poll.poll()):
                os._exit(1)

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield
        finally:
            os.close(ended)
            thread.join()
            os.close(stop)


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
