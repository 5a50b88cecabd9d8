"""Checkpoints of several safetensors files: a folder with an index, or a list of files."""

from __future__ import annotations

import json
import os
from collections.abc import Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ...engine.errors import OpError
from ...io.errors import ObjectNotFoundError, ReadError
from ..inputs import local_file, missing_key, name_of, open_ranges
from .safetensors_session import open_safetensors

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
MAX_INDEX = 256 << 20
"""Bytes of an index: about a hundred a tensor."""
_READS = 8
_ATTEMPTS = 3
"""How often a folder is read whose checkpoint is replaced meanwhile."""


def read_folder(src: Any, keys: Sequence[str] | None, framework: str, device: Any, mmap: bool | None) -> dict[str, Any]:
    """The tensors of a sharded checkpoint, as its index says; without an index those of `model.safetensors`.

    Raises:
        FileNotFoundError: neither is there, or a shard is missing.
        ValueError: a damaged index, a shard that lacks a tensor of it.
        KeyError: a tensor that is not in the index.
        ReadError: (an OSError) it is replaced again and again, so that the shards read are not of one checkpoint.
    """
    for attempt in range(_ATTEMPTS):
        weight_map, version = _index_now(src)
        try:
            found = _read_map(src, weight_map, keys, framework, device, mmap)
        except (FileNotFoundError, OpError):
            if attempt + 1 == _ATTEMPTS or _index_now(src) == (weight_map, version):
                raise
            continue
        if weight_map is None or len(set(weight_map.values())) < 2 or _index_now(src) == (weight_map, version):
            return found
    raise ReadError(f"the checkpoint {name_of(src)} was replaced {_ATTEMPTS} times while it was read")


def _read_map(
    src: Any, weight_map: Mapping[str, str] | None, keys: Sequence[str] | None, framework: str, device: Any, mmap: bool | None
) -> dict[str, Any]:
    if weight_map is None:
        with open_safetensors(join(src, SINGLE), device=device, mmap=mmap) as session:
            return session.read_keys(session.keys() if keys is None else keys, framework)
    for key in keys or ():
        if key not in weight_map:
            raise missing_key(src, "tensor", key, weight_map)
    files: dict[str, list[str]] = {}
    for name in weight_map if keys is None else keys:
        files.setdefault(weight_map[name], []).append(name)

    def read(file: str) -> dict[str, Any]:
        with open_safetensors(join(src, file), device=device, mmap=mmap) as session:
            if lacking := [name for name in files[file] if name not in session]:
                raise OpError(f"{session.uri} lacks the tensor {lacking[0]!r}, which the index of its folder says is there")
            wanted = set(files[file])
            return session.read_keys([name for name in session if name in wanted], framework)

    found = _all(read, sorted(files))
    return found if keys is None else {name: found[name] for name in keys}


def read_several(sources: Sequence[Any], keys: Sequence[str] | None, framework: str, device: Any, mmap: bool | None) -> dict[str, Any]:
    """The tensors of several files, put together in their order.

    Raises:
        ValueError: a tensor that is in two files.
        KeyError: a tensor of `keys` that is in none.
    """
    seen: dict[str, str] = {}
    wanted: list[tuple[Any, list[str]]] = []
    for source in sources:
        with open_safetensors(source) as session:
            for name in session:
                if name in seen:
                    raise OpError(f"the tensor {name!r} is both in {seen[name]} and in {session.uri}")
                seen[name] = session.uri
            wanted.append((source, [name for name in session if keys is None or name in keys]))
    for key in keys or ():
        if key not in seen:
            raise missing_key(", ".join(map(name_of, sources)), "tensor", key, seen)

    def read(item: tuple[Any, list[str]]) -> dict[str, Any]:
        with open_safetensors(item[0], device=device, mmap=mmap) as session:
            return session.read_keys(item[1], framework)

    found = _all(read, [item for item in wanted if item[1]])
    return found if keys is None else {name: found[name] for name in keys}


def _all(read: Any, items: Sequence[Any]) -> dict[str, Any]:
    """What `read` gives for every item, at most `_READS` at once, in order."""
    if len(items) <= 1:
        return dict(read(items[0])) if items else {}
    with ThreadPoolExecutor(min(_READS, len(items)), thread_name_prefix="dataio-shards") as threads:
        try:
            return {name: tensor for part in threads.map(read, items) for name, tensor in part.items()}
        except BaseException:
            threads.shutdown(cancel_futures=True)
            raise


def read_index(src: Any, index: str = INDEX) -> dict[str, str] | None:
    """The file of each tensor, as the index of a folder says; None where there is no index.

    Raises:
        FileNotFoundError: no such folder.
        ValueError: it is damaged, or names files outside the folder.
    """
    return _index_now(src, index)[0]


def _index_now(src: Any, index: str = INDEX) -> tuple[dict[str, str] | None, Hashable]:
    """What `read_index` gives, and what tells this index from a later one with the same content."""
    place = join(src, index)
    try:
        reader = open_ranges(place)
    except FileNotFoundError:
        path = local_file(src)
        if path is not None and not os.path.isdir(path):
            raise ObjectNotFoundError(f"there is no folder {path!r}", uri=path) from None
        return None, None
    try:
        if reader.size > MAX_INDEX:
            raise OpError(f"{name_of(place)}: an index of {reader.size} bytes exceeds {MAX_INDEX}")
        data, version = bytes(reader.read(0, reader.size)), reader.identity
    finally:
        reader.close()
    try:
        found = json.loads(data)["weight_map"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise OpError(f"{name_of(place)} is no index of a checkpoint: {error!r}") from error
    if not isinstance(found, dict) or not all(isinstance(file, str) for file in found.values()):
        raise OpError(f"{name_of(place)}: weight_map must map names of tensors to names of files")
    for file in set(found.values()):
        if not is_plain(file):
            raise OpError(f"{name_of(place)} names the file {file!r}, which would lie outside the folder")
    return dict(found), version


def is_plain(file: str) -> bool:
    """Whether a name is that of a file in the folder itself."""
    return bool(file) and file not in (".", "..") and not set(file) & {"/", "\\", "\0"}


def join(folder: Any, file: str) -> str:
    """A file of a folder, as path or URI."""
    return f"{os.fspath(folder).rstrip('/')}/{file}" if os.fspath(folder).rstrip("/") else f"/{file}"
