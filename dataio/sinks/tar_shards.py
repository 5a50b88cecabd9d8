"""Rows as samples of a tar file, for `dataio.webdataset` and the webdataset library. Library: tarfile."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import numpy as np

from ..formats.image.files import encode_image, pillow_format
from ..io.writer import writer
from .manifest import SinkError
from .rows import Layout, Row


def save_tar(uri: str, rows: Sequence[Row], layout: Layout, options: dict[str, Any]) -> None:
    """Write one shard, member by member. Owner, mode and time are the same always, and so are the bytes of equal rows."""
    encode: dict[str, str] = options["encode"]
    if rows and (unknown := [name for name in encode if name not in layout]):
        raise SinkError(f"encode names the slot {unknown[0]!r}; the rows have: {', '.join(layout)}")
    seen: set[str] = set()
    with writer(uri) as to, to.open() as file, tarfile.open(fileobj=file, mode="w|", format=tarfile.PAX_FORMAT) as tar:
        for row in rows:
            key = sample_key(row["key"])
            if key in seen:
                raise SinkError(f"{uri}: the key {row['key']!r} is there twice, and samples of one key would become one: give records keys of their own")
            seen.add(key)
            fields = [(name, value) for name, value in row.items() if name != "key" and value is not None]
            if not fields:  # a sample has at least one member
                fields = [("key", row["key"])]
            for name, value in fields:
                suffix, data = _member(row["key"], name, value, encode.get(name))
                info = tarfile.TarInfo(f"{key}.{name}.{suffix}")
                info.size, info.mode = len(data), 0o644
                tar.addfile(info, io.BytesIO(data))


def sample_key(key: str) -> str:
    """The name of a sample: up to the first dot of its members' names, and of no folder."""
    return quote(key, safe=" ()+,=@").replace(".", "%2E") or "%"


def _member(key: str, name: str, value: Any, image: str | None) -> tuple[str, bytes]:
    if "/" in name:
        raise SinkError(f"the field {name!r} has a slash, which names of members cannot have")
    what = f"slot {name!r} of record {key!r}"
    if image is not None:
        kind = image.lstrip(".")
        try:
            return kind, encode_image(value, pillow_format("", kind), name=what)
        except (TypeError, ValueError) as error:
            raise SinkError(f"{what} cannot be stored as {kind}: {error}") from error
    if isinstance(value, (np.ndarray, np.generic)):
        return "npy", npy_file(value, what)
    if isinstance(value, str):
        return "txt", value.encode()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return "bin", bytes(value)
    try:
        return "json", json.dumps(value).encode()
    except (TypeError, ValueError) as error:
        raise SinkError(f"{what} is a {type(value).__name__}, which JSON cannot hold: {error}") from error


def npy_file(value: Any, what: str) -> bytes:
    """An array as a .npy file."""
    out = io.BytesIO()
    try:
        np.save(out, value, allow_pickle=False)
    except ValueError as error:
        raise SinkError(f"{what}: {error}") from error
    return out.getvalue()
