"""Azure Blob Storage by Azurite, which checks keys and shared access signatures."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from .process import HOST, NotInstalledError, free_port, running

ACCOUNT = "devstoreaccount1"
# Azurite's own, the same everywhere and published in its documentation.
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
FOLDER = Path(__file__).parents[2] / ".venvs" / "azurite"
"""Where `make test` installs it."""


@dataclass(frozen=True)
class AzureServer:
    """Where the account is served, such as "http://127.0.0.1:1234/devstoreaccount1"."""

    url: str

    def client(self) -> Any:
        """A `BlobServiceClient`."""
        from azure.storage.blob import BlobServiceClient

        return BlobServiceClient(self.url, credential={"account_name": ACCOUNT, "account_key": KEY}, retry_total=0)

    def sas(self, container: str, permission: str) -> str:
        """A shared access signature for an hour and one container; `permission` holds letters such as "rl"."""
        from azure.storage.blob import generate_container_sas

        until = datetime.now(UTC) + timedelta(hours=1)
        return str(generate_container_sas(ACCOUNT, container, account_key=KEY, permission=permission, expiry=until))


@contextmanager
def azure() -> Iterator[AzureServer]:
    """Azurite with its blobs in memory.

    Raises:
        NotInstalledError: Azurite is not installed.
    """
    own = FOLDER / "node_modules" / ".bin" / "azurite-blob"
    command = os.environ.get("AZURITE_BLOB") or (str(own) if own.exists() else shutil.which("azurite-blob"))
    if not command:
        raise NotInstalledError("Azure needs Azurite: make .venvs/azurite/ready, with npm installed")
    port = free_port()
    arguments = ["--blobHost", HOST, "--blobPort", str(port), "--inMemoryPersistence", "--skipApiVersionCheck"]
    arguments += ["--silent", "--disableTelemetry"]
    with running([command, *arguments], port):
        yield AzureServer(f"http://{HOST}:{port}/{ACCOUNT}")
