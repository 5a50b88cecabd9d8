"""The local cache among the processes of a node, in front of S3: one download for all, also when one of them is killed."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from dataio.io.cache_files import FOLDER

from ..servers.s3 import ACCESS_KEY_ID, SECRET_ACCESS_KEY, S3Server

ROOT = Path(__file__).parents[2]
SIZE = 300_000
READ = """
import hashlib, sys
from concurrent.futures import ThreadPoolExecutor
import dataio
print("ready", flush=True)
sys.stdin.readline()
with ThreadPoolExecutor(4) as pool:
    found = list(pool.map(lambda uri: dataio.read(uri), sys.argv[1:]))
print(" ".join(hashlib.md5(data).hexdigest() for data in found), flush=True)
"""


class Proxy:
    """Stands in front of a server and counts what passes: `requests["GET /bucket/key"]`.

    Attributes:
        while_answering: called between the two halves of each body, with the path.
    """

    def __init__(self, upstream: str) -> None:
        self.requests: Counter[str] = Counter()
        self.while_answering: Callable[[str], None] = lambda path: None
        host = urlsplit(upstream).netloc
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one_request(self) -> None:
                try:
                    super().handle_one_request()
                except (ConnectionError, BrokenPipeError):
                    self.close_connection = True

            def _forward(self) -> None:
                proxy.requests[f"{self.command} {self.path}"] += 1
                ahead = http.client.HTTPConnection(host, timeout=30)
                ahead.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                for name, value in self.headers.items():
                    ahead.putheader(name, value)
                ahead.endheaders()
                answer = ahead.getresponse()
                body = answer.read()
                self.send_response(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in ("connection", "transfer-encoding", "server", "date"):
                        self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body[: len(body) // 2])
                proxy.while_answering(self.path)
                self.wfile.write(body[len(body) // 2 :])
                ahead.close()

            do_GET = do_HEAD = _forward

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=[0.02])
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def proxy(s3_server: S3Server) -> Iterator[Proxy]:
    made = Proxy(s3_server.url)
    yield made
    made.close()


@pytest.fixture
def objects(s3_server: S3Server, s3_bucket: str) -> dict[str, bytes]:
    """Objects of a new bucket, by URI."""
    made = {f"{s3_bucket}/d/{i:02}": os.urandom(SIZE + i) for i in range(50)}
    for uri, data in made.items():
        bucket, _, key = uri.removeprefix("s3://").partition("/")
        s3_server.client().put_object(Bucket=bucket, Key=key, Body=data)
    return made


class Rank:
    """A process that reads URIs through the cache when it is told to."""

    def __init__(self, proxy: Proxy, directory: Path, uris: list[str], **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", READ, *uris],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={
                **os.environ,
                "AWS_ACCESS_KEY_ID": ACCESS_KEY_ID,
                "AWS_SECRET_ACCESS_KEY": SECRET_ACCESS_KEY,
                "AWS_ENDPOINT_URL_S3": proxy.url,
                "DATAIO_CACHE_DIR": str(directory),
                **environment,
            },
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def begin(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def digests(self) -> list[str]:
        """Of what it read; waits for its end."""
        out, _ = self.process.communicate(timeout=90)
        assert self.process.returncode == 0
        return out.split()


def digests(objects: dict[str, bytes]) -> list[str]:
    import hashlib

    return [hashlib.md5(data).hexdigest() for data in objects.values()]


def gets(proxy: Proxy) -> list[int]:
    return [count for request, count in proxy.requests.items() if request.startswith("GET ")]


def test_two_processes_download_each_object_once(proxy: Proxy, objects: dict[str, bytes], tmp_path: Path) -> None:
    ranks = [Rank(proxy, tmp_path, list(objects)) for _ in range(2)]
    for rank in ranks:
        rank.begin()
    assert [rank.digests() for rank in ranks] == [digests(objects)] * 2
    assert gets(proxy) == [1] * 50
    late = Rank(proxy, tmp_path, list(objects), DATAIO_CACHE_REVALIDATE="never")
    proxy.requests.clear()
    late.begin()
    assert late.digests() == digests(objects)
    assert proxy.requests == {}


def test_a_download_whose_process_is_killed_is_taken_over(proxy: Proxy, objects: dict[str, bytes], tmp_path: Path) -> None:
    uri = next(iter(objects))
    halfway, go_on = threading.Event(), threading.Event()

    def hold(path: str) -> None:
        if not halfway.is_set():
            halfway.set()
            go_on.wait(60)

    proxy.while_answering = hold
    first, second = (Rank(proxy, tmp_path, [uri]) for _ in range(2))
    first.begin()
    assert halfway.wait(60)
    parts = tmp_path / FOLDER
    while not list(parts.glob("??/*.part")):
        time.sleep(0.01)
    second.begin()
    time.sleep(0.3)  # it waits for the first one: nothing else was asked
    assert gets(proxy) == [1]
    first.process.send_signal(signal.SIGKILL)
    first.process.communicate()
    assert second.digests() == digests({uri: objects[uri]})
    go_on.set()
    assert gets(proxy) == [2]
    assert [path.suffix for path in parts.glob("??/*")] == [""]
