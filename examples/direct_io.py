"""Bytes anywhere: verbs, handles and trees on an object store, and training straight from it.

    python examples/direct_io.py

Runs against an S3 emulator on this machine (`pip install 'moto[server,s3]'`), so that nothing has to be configured. With
a bucket of your own leave out the two `configure_` calls: credentials then come from the environment, and every other line stays.
"""

from __future__ import annotations

import gzip
import io
import logging
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from moto.server import ThreadedMotoServer
from PIL import Image

import dataio


def huge_generator() -> Iterator[bytes]:
    """What a training run saves, a piece at a time."""
    for i in range(8):
        yield bytes([i]) * (1 << 20)


def picture(i: int) -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.full((60, 80, 3), 20 * i, np.uint8)).save(out, "JPEG")
    return out.getvalue()


def shard(pictures: list[bytes]) -> bytes:
    """A gzipped tar archive of pictures."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for i, data in enumerate(pictures):
            entry = tarfile.TarInfo(f"{i:04d}.jpg")
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return gzip.compress(out.getvalue())


def verbs() -> None:
    """One request each."""
    dataio.write("s3://bucket/file.bin", bytes(2 << 20))
    print("head:", dataio.head("s3://bucket/file.bin").content_length)
    chunk = dataio.read("s3://bucket/file.bin", offset=0, size=1 << 20)
    etag = dataio.write("s3://bucket/out.bin", chunk)
    print("read", len(chunk), "bytes, wrote ETag", etag)
    print("exists:", dataio.exists("s3://bucket/out.bin"), dataio.exists("s3://bucket/no.bin"))
    dataio.copy("s3://bucket/out.bin", "s3://bucket/prefix/model.safetensors")
    print("ls:", dataio.ls("s3://bucket/prefix/"))
    print("glob:", dataio.glob("s3://bucket/**/*.safetensors"))
    print("signed:", dataio.sign("s3://bucket/out.bin", expires_secs=60).startswith("http"))
    with dataio.stream("s3://bucket/out.bin") as stream:
        print("streamed:", sum(len(piece) for piece in stream.iter_bytes()))
    dataio.delete("s3://bucket/out.bin")
    try:
        dataio.read("s3://bucket/out.bin")
    except FileNotFoundError as error:
        print("gone:", error)


def handles() -> None:
    """Several operations on one source, and content that is written as it comes."""
    pictures = [picture(i) for i in range(10)]
    dataio.write("s3://bucket/shard.tar.gz", shard(pictures))
    src = dataio.reader("s3://bucket/shard.tar.gz")
    payload = src.gunzip().tar_entry("0001.jpg").read_all()
    print("from the shard:", payload == pictures[1])
    with dataio.writer("s3://bucket/checkpoint.bin") as w:
        w.write_chunks(huge_generator())
    print("checkpoint:", dataio.head("s3://bucket/checkpoint.bin").content_length)


def trees(folder: Path) -> None:
    """Whole folders, there and back."""
    for i in range(40):
        dataio.write(folder / "here" / "photos" / f"{i:03d}.jpg", picture(i % 12), mkdir_parents=True)
    print("sync:", dataio.sync(folder / "here", "s3://bucket/data"))
    print("again:", dataio.sync(folder / "here", "s3://bucket/data"))
    dataio.copy("s3://bucket/data", folder / "back", recursive=True)
    print("back:", len(dataio.ls(folder / "back")))


def training() -> None:
    """The pipeline of a local folder, fed from the bucket: requests run ahead of the workers."""
    pipe = dataio.pipeline(
        dataio.slot("image").decode_image(mode="rgb").resize(h=32, w=32).normalize("imagenet"),
        dataio.batch(16),
    )
    with pipe.bind(dataio.files("s3://bucket/data/photos/*.jpg")).run("numpy") as loader:
        for batch in loader:
            print("batch:", batch["image"].shape, batch["image"].dtype)


def main() -> None:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        dataio.configure_endpoint("s3", f"http://{host}:{port}")
        dataio.configure_credentials("s3", access_key_id="EXAMPLE-KEY-ID-0000", secret_access_key="example-secret")
        dataio.configure_transport("s3", timeout_secs=20, max_attempts=3)
        make_bucket(f"http://{host}:{port}/bucket")
        verbs()
        handles()
        with tempfile.TemporaryDirectory() as folder:
            trees(Path(folder))
        training()
    finally:
        server.stop()


def make_bucket(url: str) -> None:
    """Buckets are made by the provider's own tools; the emulator takes a bare request."""
    import urllib.request

    urllib.request.urlopen(urllib.request.Request(url, method="PUT"), timeout=10).close()


if __name__ == "__main__":
    main()
