"""`write_safetensors`: one file, or a sharded checkpoint with an index, to any place that can be written."""

from __future__ import annotations

import json
import os
import secrets
import string
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...engine.errors import OpError
from ...engine.ledger import parse_bytes
from ...io.errors import StoreError
from ...io.parallel import for_each
from ...io.uri import local_path
from ...io.verbs import delete, exists, ls, read, write
from ...io.writer import writer
from .safetensors import DTYPES, MAX_HEADER
from .safetensors_shards import INDEX, SINGLE, is_plain, join, read_index
from .tensors import bits, torch_name

_CODES = {name: code for code, name in DTYPES.items()}
_ALIGNMENT = 8
_WRITES = 4
"""Shards that are written at once."""
_REPLACED = ".replaced"
"""Suffix of the file beside an index that lists the shards which the index no longer names, until they are removed."""


def write_safetensors(
    uri: str | os.PathLike[str],
    tensors: Mapping[str, Any],
    *,
    metadata: Mapping[str, Any] | None = None,
    atomic: bool = True,
    max_shard_size: int | str | None = None,
    filename_pattern: str = "model-{idx:05d}-of-{total:05d}.safetensors",
    index_filename: str = INDEX,
) -> dict[str, Any] | None:
    """Write tensors as safetensors: one file, or with `max_shard_size` a folder of shards and their index.

    Tensors are written one by one as they lie in memory, in the order of the mapping; those that are not contiguous, or on a GPU,
    are copied one at a time. Whoever reads the folder meanwhile, or after a crash, finds the old checkpoint or the new one: the
    index is written last and names the files. Shards that replace a checkpoint get a suffix, another one each time
    (`model-00001-of-00002.3f9a01c2.safetensors`), so that no name ever stands for two contents; what only the old index names, and
    what a killed writer left, is removed at the end. One process at a time writes to a folder.

    Args:
        uri: path or URI of the file; with `max_shard_size` of the folder. Missing local folders are made.
        tensors: NumPy arrays (those of `ml_dtypes` too) or torch tensors by name.
        metadata: kept in the header of each file, and in the index; keys and values become str.
        atomic: False writes local files in place.
        max_shard_size: bytes of tensors in one shard, such as 5_000_000_000 or "5GB"; a tensor that is larger has a shard of its own.
        filename_pattern: with the fields `idx` (from 1) and `total`; a single shard is called `model.safetensors`.
        index_filename: name of the index. `read_safetensors` finds it under its usual name only.

    Returns:
        The index of a sharded checkpoint, `{"metadata": {"total_size": bytes, ...}, "weight_map": {tensor: file}}`; else None.

    Raises:
        ValueError: no tensors; a name or dtype that the format does not have; a size or pattern that is none.
        TypeError: values that are no arrays.
        OSError: as the store says; what was there is unchanged then.
    """
    payloads = [_payload(name, value) for name, value in _items(tensors)]
    if not payloads:
        raise OpError("write_safetensors needs at least one tensor")
    texts = {str(key): str(value) for key, value in (metadata or {}).items()}
    target = os.fspath(uri)
    if max_shard_size is None:
        _write_file(target, payloads, texts, atomic=atomic)
        return None
    if not is_plain(index_filename):
        raise ValueError(f"index_filename is a plain file name, got {index_filename!r}")
    return _write_shards(target, payloads, texts, parse_bytes("max_shard_size", max_shard_size), filename_pattern, index_filename, atomic)


@dataclass(frozen=True, slots=True)
class Payload:
    """One tensor on its way into a file.

    Attributes:
        code: its element type in the format.
        nbytes: bytes of the payload.
        data: gives them, C order, little-endian.
    """

    name: str
    code: str
    shape: tuple[int, ...]
    nbytes: int
    data: Callable[[], memoryview]


def write_payloads(target: str, payloads: Iterable[Payload], metadata: Mapping[str, str], *, atomic: bool = True) -> int:
    """Write one file; the number of its bytes. Payloads are asked for one after the other.

    Raises: as `write_safetensors`.
    """
    payloads = list(payloads)
    header = header_of(payloads, metadata)
    local = local_path(target) is not None
    with writer(target, atomic=atomic, mkdir_parents=local) as out:
        out.write(header)
        for payload in payloads:
            if payload.nbytes:
                out.write(payload.data())
    return len(header) + sum(payload.nbytes for payload in payloads)


def header_of(payloads: Iterable[Payload], metadata: Mapping[str, str]) -> bytes:
    """The bytes before the payloads: length and JSON, padded by spaces to a multiple of eight."""
    entries: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    position = 0
    for payload in payloads:
        end = position + payload.nbytes
        entries[payload.name] = {"dtype": payload.code, "shape": list(payload.shape), "data_offsets": [position, end]}
        position = end
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    if len(text) > MAX_HEADER:
        raise OpError(f"a header of {len(text)} bytes exceeds the {MAX_HEADER} of the format: write more files")
    return len(text).to_bytes(8, "little") + text


def _write_file(target: str, payloads: Iterable[Payload], metadata: Mapping[str, str], *, atomic: bool) -> None:
    write_payloads(target, payloads, metadata, atomic=atomic)


# ------------------------------------------------------------------- payloads


def _items(tensors: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(tensors, Mapping):
        raise TypeError(f"tensors are a mapping from names to arrays, got {type(tensors).__name__}")
    for name, value in tensors.items():
        if not isinstance(name, str):
            raise TypeError(f"names of tensors are str, got {name!r}")
        if name == "__metadata__":
            raise OpError("no tensor can be called '__metadata__'; use metadata=")
        try:
            name.encode()
        except UnicodeEncodeError:
            raise OpError(f"the name {name!r} cannot be written as UTF-8") from None
        yield name, value


def _payload(name: str, value: Any) -> Payload:
    if type(value).__module__.partition(".")[0] == "torch" or hasattr(value, "is_contiguous"):
        return _torch_payload(name, value)
    if not isinstance(value, (np.ndarray, np.generic)):
        raise TypeError(f"tensor {name!r} is a NumPy array or a torch tensor, got {type(value).__name__}")
    array = np.asarray(value)
    kind = torch_name(array.dtype) or array.dtype.name
    code = _CODES.get(kind)
    if code is None or (array.dtype.kind == "V" and torch_name(array.dtype) is None and kind not in _CODES):
        raise OpError(f"tensor {name!r} has elements of type {array.dtype}, which safetensors does not have; it takes {', '.join(_CODES)}")

    def data() -> memoryview:
        plain = np.ascontiguousarray(array)
        if torch_name(plain.dtype) is not None:
            plain = bits(plain)
        elif plain.dtype.byteorder == ">" or (plain.dtype.byteorder == "=" and np.little_endian is False):
            plain = plain.astype(plain.dtype.newbyteorder("<"))
        return plain.reshape(-1).view(np.uint8).data

    return Payload(name, code, array.shape, array.size * array.dtype.itemsize, data)


def _torch_payload(name: str, tensor: Any) -> Payload:
    import torch

    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"tensor {name!r} is a NumPy array or a torch tensor, got {type(tensor).__name__}")
    if tensor.layout != torch.strided or tensor.is_meta or tensor.is_quantized:
        raise OpError(f"tensor {name!r} is sparse, quantised or without content: write a dense one")
    kind = str(tensor.dtype).removeprefix("torch.")
    code = _CODES.get(kind)
    if code is None:
        raise OpError(f"tensor {name!r} has elements of type {tensor.dtype}, which safetensors does not have; it takes {', '.join(_CODES)}")

    def data() -> memoryview:
        plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
        found: memoryview = plain.view(torch.uint8).numpy().data
        return found

    return Payload(name, code, tuple(tensor.shape), tensor.numel() * tensor.element_size(), data)


# --------------------------------------------------------------------- shards


def _write_shards(
    folder: str, payloads: list[Payload], metadata: Mapping[str, str], limit: int, pattern: str, index_name: str, atomic: bool
) -> dict[str, Any]:
    shards = list(_shards(payloads, limit))
    names = _shard_names(pattern, len(shards))
    before = _old_map(folder, index_name)
    weight_map = {payload.name: file for file, shard in zip(names, shards, strict=True) for payload in shard}
    if before is not None and not _replaces_at_once(before, weight_map):
        suffix = secrets.token_hex(4)
        stays = set() if SINGLE in before.values() else {SINGLE}
        names = [name if name in stays else _suffixed(name, suffix) for name in names]
        weight_map = {payload.name: file for file, shard in zip(names, shards, strict=True) for payload in shard}
    total = sum(payload.nbytes for payload in payloads)
    index = {"metadata": {"total_size": total, **metadata}, "weight_map": weight_map}
    replaced = set() if before is None else set(before.values())
    listed = join(folder, f"{index_name}{_REPLACED}")
    earlier = _listed(listed)
    try:
        for_each(
            lambda item: write_payloads(join(folder, item[0]), item[1], metadata, atomic=atomic),
            zip(names, shards, strict=True),
            workers=_WRITES,
        )
        local = local_path(folder) is not None
        if replaced - set(names):  # from the next line on no index names these, should this process be killed
            write(listed, json.dumps(sorted(replaced | earlier)).encode())
        write(join(folder, index_name), (json.dumps(index, indent=2) + "\n").encode(), mkdir_parents=local)
    except BaseException:
        for name in set(names) - replaced:
            with suppress(OSError):
                delete(join(folder, name))
        raise
    stale = replaced | earlier | _leftovers(folder, pattern, names)
    if index_name == INDEX:  # readers that look for it first would take it for the checkpoint
        stale.add(SINGLE)
    _remove(folder, stale - set(names))
    if earlier or replaced - set(names):
        _remove(folder, [f"{index_name}{_REPLACED}"])
    return index


def _shards(payloads: Iterable[Payload], limit: int) -> Iterator[list[Payload]]:
    """Neighbours that fit into the limit together."""
    shard: list[Payload] = []
    held = 0
    for payload in payloads:
        if shard and held + payload.nbytes > limit:
            yield shard
            shard, held = [], 0
        shard.append(payload)
        held += payload.nbytes
    yield shard


def _shard_names(pattern: str, total: int) -> list[str]:
    fields = {field for _, field, _, _ in string.Formatter().parse(pattern) if field is not None}
    if not fields <= {"idx", "total"}:
        raise ValueError(f"filename_pattern has the fields idx and total, got {pattern!r}")
    if total == 1:
        return [SINGLE]
    try:
        names = [pattern.format(idx=number + 1, total=total) for number in range(total)]
    except (ValueError, TypeError) as error:
        raise ValueError(f"filename_pattern {pattern!r} is no pattern: {error}") from error
    if len(set(names)) < total or not all(map(is_plain, names)):
        raise ValueError(f"filename_pattern {pattern!r} must give each shard a plain file name of its own, got {names[0]!r}")
    return names


def _old_map(folder: str, index_name: str) -> dict[str, str] | None:
    """The files of the checkpoint that is there, by tensor; a lone `model.safetensors` under a name that no tensor has."""
    try:
        found = read_index(folder, index_name)
    except FileNotFoundError:
        return None
    except OpError:  # a damaged one is replaced; what it named stays
        return {}
    if found is None and exists(join(folder, SINGLE)):
        return {"": SINGLE}
    return found


def _replaces_at_once(before: Mapping[str, str], now: Mapping[str, str]) -> bool:
    """Whether the new file takes the place of the old one in one step: a lone file, or one of the same tensors."""
    return set(now.values()) == {SINGLE} and (before == now or before == {"": SINGLE})


def _suffixed(name: str, suffix: str) -> str:
    stem, dot, kind = name.rpartition(".")
    return f"{stem}.{suffix}.{kind}" if dot else f"{name}.{suffix}"


def _leftovers(folder: str, pattern: str, names: Iterable[str]) -> set[str]:
    """Suffixed shards that a killed writer left: no index names them."""
    found: set[str] = set()
    start = pattern.partition("{")[0]
    for uri in ls(folder if folder.endswith("/") else f"{folder}/"):
        name = uri.rstrip("/").rpartition("/")[2]
        parts = name.rsplit(".", 2)
        if name.startswith((start, "model.")) and len(parts) == 3 and parts[2] == "safetensors" and _is_suffix(parts[1]):
            found.add(name)
    return found


def _listed(uri: str) -> set[str]:
    """Shards that a save was about to remove when it was killed."""
    try:
        found = json.loads(read(uri))
    except (FileNotFoundError, ValueError):
        return set()
    names = [name for name in found if isinstance(name, str)] if isinstance(found, list) else []
    return {name for name in names if is_plain(name) and name.endswith(".safetensors")}


def _is_suffix(text: str) -> bool:
    return len(text) == 8 and set(text) <= set("0123456789abcdef")


def _remove(folder: str, names: Iterable[str]) -> None:
    """What the new index does not name any more; who still reads it finds the new index."""
    for name in names:
        with suppress(FileNotFoundError, StoreError):
            delete(join(folder, name))
