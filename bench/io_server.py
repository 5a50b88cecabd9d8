"""nginx on loopback as a web server and as a static S3 endpoint: the same files for every client, and next to no work of
its own.

    GET /bucket/small/00000.bin                      an object, ranges included, over plain HTTP and over the S3 protocol
    GET /bucket?list-type=2&prefix=many/&...         ListObjectsV2, pages of 1,000 keys that were written beforehand

Requests are served whoever asks: signatures are not looked at.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

BUCKET = "bucket"
SMALL, SMALL_BYTES = 2_048, 30_000
LARGE_BYTES = 1 << 30
KEYS, PAGE = 100_000, 1_000

CONFIGURATION = """\
daemon off;
master_process on;
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/error.log warn;
events {{ worker_connections 2048; }}
http {{
    access_log off;
    sendfile on;
    tcp_nopush on;
    tcp_nodelay on;
    keepalive_requests 1000000;
    default_type application/octet-stream;
    open_file_cache max=8192 inactive=1h;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    map $args $page {{
        default first;
        "~continuation-token=(?<token>[0-9a-z]+)" $token;
    }}
    server {{
        listen 127.0.0.1:{port} backlog=1024;
        root {root};
        location = /{bucket} {{ rewrite ^ /listing/$page.xml last; }}
        location = /{bucket}/ {{ rewrite ^ /listing/$page.xml last; }}
        location /listing/ {{ internal; types {{ application/xml xml; }} }}
        location / {{ add_header Accept-Ranges bytes; }}
    }}
}}
"""


def make(root: Path, large_bytes: int = LARGE_BYTES, keys: int = KEYS) -> None:
    """Write the objects and the listing of `keys` keys below `root`; what is there already is kept."""
    small = root / BUCKET / "small"
    small.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for i in range(SMALL):
        path = small / f"{i:05d}.bin"
        if not path.exists():
            path.write_bytes(rng.bytes(SMALL_BYTES))
    large = root / BUCKET / "large.bin"
    if not large.exists() or large.stat().st_size != large_bytes:
        with open(large, "wb") as file:
            for at in range(0, large_bytes, 1 << 24):
                file.write(rng.bytes(min(1 << 24, large_bytes - at)))
    listing = root / "listing"
    listing.mkdir(exist_ok=True)
    for page in range(keys // PAGE):
        _write_page(listing, page, last=page == keys // PAGE - 1)


def _write_page(folder: Path, page: int, *, last: bool) -> None:
    entries = "".join(
        f"<Contents><Key>many/{i:08d}.jpg</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
        f"<ETag>&quot;{i:032x}&quot;</ETag><Size>{1000 + i}</Size><StorageClass>STANDARD</StorageClass></Contents>"
        for i in range(page * PAGE, (page + 1) * PAGE)
    )
    more = "" if last else f"<NextContinuationToken>p{page + 1}</NextContinuationToken>"
    text = (
        '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"<Name>{BUCKET}</Name><Prefix>many/</Prefix><KeyCount>{PAGE}</KeyCount><MaxKeys>{PAGE}</MaxKeys>"
        f"<IsTruncated>{str(not last).lower()}</IsTruncated>{more}{entries}</ListBucketResult>"
    )
    (folder / ("first.xml" if page == 0 else f"p{page}.xml")).write_text(text)


@contextmanager
def serving(root: Path, folder: Path) -> Iterator[str]:
    """The address of nginx, which serves `root` and keeps its own files in `folder`; it is stopped at the end."""
    nginx = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if nginx is None:
        raise SystemExit("the benchmark of bytes needs nginx: apt-get install nginx-light")
    folder.mkdir(parents=True, exist_ok=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    configuration = folder / "nginx.conf"
    user = "user root;\n" if os.getuid() == 0 else ""  # its worker must be able to read the files
    configuration.write_text(user + CONFIGURATION.format(folder=folder, root=root, port=port, bucket=BUCKET))
    server = subprocess.Popen([nginx, "-c", configuration, "-p", folder, "-e", folder / "error.log"])
    try:
        for _ in range(100):
            try:
                socket.create_connection(("127.0.0.1", port), 0.1).close()
                break
            except OSError:
                if server.poll() is not None:
                    raise SystemExit(f"nginx ended: {(folder / 'error.log').read_text()}") from None
                time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(10)
