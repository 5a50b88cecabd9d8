"""nginx: a folder as a web server, and as an S3 endpoint that can only be read."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .process import HOST, NotInstalledError, free_port, running

_CONFIGURATION = """\
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log {folder}/error.log warn;
events {{ worker_connections 2048; }}
http {{
    access_log off;
    sendfile on;
    tcp_nopush on;
    keepalive_requests 1000000;
    default_type application/octet-stream;
    types {{ text/plain txt; }}
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    merge_slashes off;
    server {{
        listen {host}:{port} backlog=1024;
        root {root};
        location /denied/ {{ return 403; }}
        location / {{ add_header Accept-Ranges bytes; }}
    }}
}}
"""


@contextmanager
def nginx(root: str | os.PathLike[str]) -> Iterator[str]:
    """The address of an nginx that serves the files below `root`, ranges included; `/denied/` is forbidden.

    Raises:
        NotInstalledError: nginx is not installed.
    """
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    if program is None:
        raise NotInstalledError("HTTP needs nginx: apt-get install nginx-light")
    with tempfile.TemporaryDirectory(prefix="nginx-") as made:
        folder = Path(made)
        port = free_port()
        configuration = folder / "nginx.conf"
        text = _CONFIGURATION.format(folder=folder, root=Path(root).resolve(), host=HOST, port=port)
        configuration.write_text(text)
        command = [program, "-c", str(configuration), "-p", made, "-e", str(folder / "error.log")]
        with running(command, port):
            yield f"http://{HOST}:{port}"
