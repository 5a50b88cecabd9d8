"""The test servers end with the tests, however those end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from ..servers import process
from ..servers.process import free_port, running

SERVER = [sys.executable, "-m", "http.server", "--bind", process.HOST]
KILLED = """
import sys, time
from tests.servers.process import free_port, running
port = free_port()
with running([sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(port)], port) as number:
    print(number, flush=True)
    time.sleep(60)
"""


def _ends(number: int, seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not psutil.pid_exists(number) or psutil.Process(number).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.usefixtures("no_leftovers")
def test_a_server_ends_with_its_block() -> None:
    port = free_port()
    with running([*SERVER, str(port)], port) as number:
        assert psutil.pid_exists(number)
    assert _ends(number)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of its parent's end")
def test_a_server_ends_when_the_tests_are_killed() -> None:
    root = Path(__file__).parents[2]
    with subprocess.Popen([sys.executable, "-c", KILLED], cwd=root, stdout=subprocess.PIPE, text=True) as tests:
        assert tests.stdout is not None
        number = int(tests.stdout.readline())
        os.kill(tests.pid, signal.SIGKILL)
    assert _ends(number)


@pytest.mark.usefixtures("no_leftovers")
def test_a_server_that_does_not_start_tells_why() -> None:
    port = free_port()
    command = [sys.executable, "-c", "raise SystemExit('no such option')"]
    with pytest.raises(RuntimeError, match="no such option"), running(command, port):
        pass
