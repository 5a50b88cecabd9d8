"""Places of the contract: the same objects through clients that are not dataio."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote

from dataio.io.store import Store

from ..servers.azure import AzureServer
from ..servers.gcs import GcsServer
from ..servers.s3 import S3Server
from .contract import Place


class Folder(Place):
    """Local files."""

    def __init__(self, root: Path, base: str | None = None) -> None:
        self.root, self.base = root, base or f"{root}/"

    def write(self, name: str, data: bytes) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def read(self, name: str) -> bytes:
        return (self.root / name).read_bytes()

    def remove(self, name: str) -> None:
        (self.root / name).unlink()

    def names(self) -> set[str]:
        found = (os.path.relpath(os.path.join(at, name), self.root) for at, _, files in os.walk(self.root) for name in files)
        return {name for name in found if ".tmp." not in name}

    def open(self, name: str = "") -> tuple[Store, str]:
        """The folder that a name needs is there: a store makes none."""
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        return super().open(name)

    def unfinished(self) -> list[str]:
        return [str(path) for path in self.root.rglob("*.tmp.*")]


class Web(Folder):
    """Files that a web server serves below an address."""

    def __init__(self, root: Path, base: str) -> None:
        super().__init__(root, base)

    def uri(self, name: str) -> str:
        return self.base + quote(name)


class S3(Place):
    """A bucket by boto3."""

    def __init__(self, server: S3Server, bucket: str) -> None:
        scheme, _, self.bucket = bucket.partition("://")
        self.base, self.missing = f"{bucket}/", f"{scheme}://no-such-bucket-here/folder/key"
        self.client = server.client()

    def write(self, name: str, data: bytes) -> None:
        self.client.put_object(Bucket=self.bucket, Key=name, Body=data)

    def read(self, name: str) -> bytes:
        data: bytes = self.client.get_object(Bucket=self.bucket, Key=name)["Body"].read()
        return data

    def remove(self, name: str) -> None:
        self.client.delete_object(Bucket=self.bucket, Key=name)

    def names(self) -> set[str]:
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket)
        return {entry["Key"] for page in pages for entry in page.get("Contents", [])}

    def unfinished(self) -> list[str]:
        return [entry["Key"] for entry in self.client.list_multipart_uploads(Bucket=self.bucket).get("Uploads", [])]


class Gcs(Place):
    """A bucket by plain requests of the JSON API."""

    def __init__(self, server: GcsServer, bucket: str) -> None:
        import urllib3

        self.base, self.missing = f"{bucket}/", "gs://no-such-bucket-here/folder/key"
        self.bucket, self.url = bucket.removeprefix("gs://"), server.url
        self.http = urllib3.PoolManager(retries=False)

    def _request(self, method: str, path: str, body: bytes | None = None) -> bytes:
        answer = self.http.request(method, self.url + path, body=body)
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path}: {answer.status} {answer.data[:200]!r}")
        return answer.data

    def _object(self, name: str) -> str:
        return f"/storage/v1/b/{self.bucket}/o/{quote(name, safe='')}"

    def write(self, name: str, data: bytes) -> None:
        query = f"uploadType=media&name={quote(name, safe='')}"
        self._request("POST", f"/upload/storage/v1/b/{self.bucket}/o?{query}", data)

    def read(self, name: str) -> bytes:
        return self._request("GET", self._object(name) + "?alt=media")

    def remove(self, name: str) -> None:
        self._request("DELETE", self._object(name))

    def names(self) -> set[str]:
        import json

        found: set[str] = set()
        token = ""
        while True:
            page = json.loads(self._request("GET", f"/storage/v1/b/{self.bucket}/o?pageToken={quote(token, safe='')}"))
            found |= {entry["name"] for entry in page.get("items", [])}
            token = page.get("nextPageToken", "")
            if not token:
                return found


class Azure(Place):
    """A container by azure-storage-blob."""

    def __init__(self, server: AzureServer, bucket: str) -> None:
        self.base, self.missing = f"{bucket}/", "az://no-such-container-here/folder/key"
        self.client = server.client().get_container_client(bucket.removeprefix("az://"))

    def write(self, name: str, data: bytes) -> None:
        self.client.upload_blob(name, data, overwrite=True)

    def read(self, name: str) -> bytes:
        data: bytes = self.client.download_blob(name).readall()
        return data

    def remove(self, name: str) -> None:
        self.client.delete_blob(name)

    def names(self) -> set[str]:
        return set(self.client.list_blob_names())

    def unfinished(self) -> list[str]:
        """Blobs of which only parts were written."""
        found = self.client.list_blobs(include=["uncommittedblobs"])
        committed = self.names()
        return [blob.name for blob in found if blob.name not in committed]


class Memory(Place):
    """fsspec's file system in memory, by fsspec."""

    def __init__(self, name: str) -> None:
        import fsspec

        self.base, self.root = f"memory://{name}/", f"/{name}/"
        self.fs = fsspec.filesystem("memory")

    def write(self, name: str, data: bytes) -> None:
        self.fs.pipe_file(self.root + name, data)

    def read(self, name: str) -> bytes:
        data: bytes = self.fs.cat_file(self.root + name)
        return data

    def remove(self, name: str) -> None:
        self.fs.rm_file(self.root + name)

    def names(self) -> set[str]:
        return {path.removeprefix(self.root) for path in self.fs.store if path.startswith(self.root)}


class Repo(Place):
    """A repository of the hub of the tests' own."""

    base = "hf://org/model/"

    def __init__(self, files: dict[str, bytes], large: set[str], *, put_apart: bool = False) -> None:
        self.files, self.large, self.put_apart = files, large, put_apart

    def write(self, name: str, data: bytes) -> None:
        self.files[name] = data
        if self.put_apart:
            self.large.add(name)

    def read(self, name: str) -> bytes:
        return self.files[name]

    def remove(self, name: str) -> None:
        del self.files[name]

    def names(self) -> set[str]:
        return set(self.files)
