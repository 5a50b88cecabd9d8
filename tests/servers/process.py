"""A server in a process of its own, which is waited for and ends with this one, however this one ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

HOST = "127.0.0.1"
_STARTING = 60.0
"""Seconds that a server may take to answer: a busy machine starts node in ten."""
# The kernel ends the server when its parent does; a parent that ended before the request leaves another parent.
_LAUNCH = """\
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGTERM)
if os.getppid() == int(sys.argv[1]):
    os.execvp(sys.argv[2], sys.argv[2:])
"""


class NotInstalledError(Exception):
    """A server that this machine lacks; the message says how to install it."""


def free_port() -> int:
    """A port of loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def running(command: Sequence[str], port: int, *, environment: Mapping[str, str] | None = None) -> Iterator[int]:
    """Run a server that listens on `port`; its process id, once it accepts connections.

    Raises:
        RuntimeError: it ended, or did not listen in time; with what it wrote.
    """
    with tempfile.TemporaryFile() as log:
        server = subprocess.Popen(
            [sys.executable, "-S", "-c", _LAUNCH, str(os.getpid()), *command],
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            if not _listens(server, port):
                log.seek(0)
                said = log.read()[-2000:].decode(errors="replace")
                raise RuntimeError(f"{command[0]} does not listen on port {port}: {said}")
            yield server.pid
        finally:
            _end(server)


def _listens(server: subprocess.Popen[bytes], port: int) -> bool:
    deadline = time.monotonic() + _STARTING
    while time.monotonic() < deadline and server.poll() is None:
        try:
            socket.create_connection((HOST, port), 1.0).close()
        except OSError:
            time.sleep(0.05)
        else:
            return True
    return False


def _end(server: subprocess.Popen[bytes]) -> None:
    for number, seconds in ((signal.SIGTERM, 5), (signal.SIGKILL, None)):
        try:
            os.killpg(server.pid, number)
        except ProcessLookupError:  # it ended by itself
            pass
        try:
            server.wait(seconds)
            return
        except subprocess.TimeoutExpired:
            continue
