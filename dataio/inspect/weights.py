"""safetensors files, and the index of a sharded model.

Codes: `truncated`, `damaged` (overlaps, gaps, lies of the header), `missing_shard`, `missing_tensor` (the index puts it where it is
not), `tensor_in_two_shards` (errors); `unlisted_tensor` (a shard has it, the index does not), `wrong_total_size`, `not_finite` (a
tensor holds NaN or infinity; not with `quick`) (warnings).
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

from ..engine.errors import LimitError, OpError
from ..formats.weights.safetensors import read_header
from ..formats.weights.tensors import TensorPlace
from .kinds import Target, target_of
from .report import Findings, first_few

INDEX_BYTES = 1 << 28
"""Bytes of an index that are read, at most."""
STEP = 1 << 22
"""Bytes of a tensor that are looked at at a time."""


def check(target: Target, found: Findings, quick: bool) -> tuple[int, Any]:
    """The header against the file; unless `quick` every byte of the tensors is read."""
    if target.kind.name == "safetensors_index":
        return _check_index(target, found), None
    ranges = target.open()
    try:
        places = read_header(ranges)
        if not quick:
            for name, place in places.items():
                _check_values(ranges, name, place, found)
        return len(places), None
    finally:
        ranges.close()


def _check_values(ranges: Any, name: str, place: TensorPlace, found: Findings) -> None:
    """Read a tensor through; note values that are not finite."""
    import numpy as np

    size = place.nbytes
    if not (place.dtype.kind in "fc" or place.dtype.names):
        return
    step = max(1, STEP // place.dtype.itemsize) * place.dtype.itemsize
    bad = 0
    for at in range(0, size, step):
        part = ranges.read(place.offset + at, min(step, size - at))
        if place.dtype.kind in "fc":
            bad += int(np.count_nonzero(~np.isfinite(np.frombuffer(part, place.dtype))))
        elif place.dtype.names == ("bfloat16",):
            bits = np.frombuffer(part, "<u2")
            bad += int(np.count_nonzero((bits & 0x7F80) == 0x7F80))
    if bad:
        found.warning("not_finite", f"{bad:,} of {math.prod(place.shape):,} values are NaN or infinite", name)


def _index(target: Target) -> tuple[dict[str, str], Any]:
    """Shard by tensor, and what the metadata says of all bytes.

    Raises:
        OpError: no index.
        LimitError: larger than `INDEX_BYTES`.
    """
    if target.size > INDEX_BYTES:
        raise LimitError(f"an index of {target.size:,} bytes; {INDEX_BYTES:,} are read at most")
    ranges = target.open()
    try:
        found = json.loads(bytes(ranges.read(0, ranges.size)))
    except (ValueError, RecursionError) as error:
        raise OpError(f"the index is not valid JSON: {error}") from error
    finally:
        ranges.close()
    places = found.get("weight_map") if isinstance(found, dict) else None
    if not isinstance(places, dict) or not all(isinstance(shard, str) for shard in places.values()):
        raise OpError('the index has no "weight_map" of tensor names to file names')
    metadata = found.get("metadata")
    return places, metadata.get("total_size") if isinstance(metadata, dict) else None


def _check_index(target: Target, found: Findings) -> int:
    places, total = _index(target)
    folder = target.uri.rpartition("/")[0]
    home: dict[str, str] = {}
    size = 0
    whole = True
    for shard in sorted(set(places.values())):
        if "/" in shard or "\\" in shard or shard in ("", ".", ".."):
            found.error("missing_shard", "the index names a shard outside of its own folder", shard)
            whole = False
            continue
        listed = {name for name, where in places.items() if where == shard}
        try:
            there = _header(f"{folder}/{shard}" if folder else shard)
        except FileNotFoundError:
            found.error("missing_shard", f"the shard is not there; it should have {len(listed):,} tensors", shard)
            whole = False
            continue
        except OpError as error:
            found.error("damaged", str(error), shard)
            whole = False
            continue
        if absent := sorted(listed - there.keys()):
            found.error("missing_tensor", f"lacks {first_few(absent)}, which the index puts there", shard)
        for name in there:
            if name in home:
                found.error("tensor_in_two_shards", f"is in {home[name]} and in {shard}", name)
            home.setdefault(name, shard)
            if name not in places:
                found.warning("unlisted_tensor", f"is in {shard}, and the index does not name it", name)
        size += sum(place.nbytes for place in there.values())
    if whole and isinstance(total, int) and total != size:
        found.warning("wrong_total_size", f"the index says {total:,} bytes in all, the shards have {size:,}")
    return len(places)


def _header(uri: str) -> dict[str, TensorPlace]:
    ranges = target_of(uri).open()
    try:
        return read_header(ranges)
    finally:
        ranges.close()


# ------------------------------------------------------------------------- what is inside


def _tensors(target: Target) -> dict[str, TensorPlace]:
    if target.kind.name == "safetensors":
        return _header(target.uri)
    places, _ = _index(target)
    folder = target.uri.rpartition("/")[0]
    found: dict[str, TensorPlace] = {}
    for shard in sorted(set(places.values())):
        if "/" in shard:
            raise OpError(f"the index names the shard {shard!r} outside of its own folder")
        found.update(_header(f"{folder}/{shard}" if folder else shard))
    return found


def _type(place: TensorPlace) -> str:
    return place.dtype.names[0] if place.dtype.names else str(place.dtype)


def schema(target: Target) -> dict[str, Any]:
    """dtype and shape by tensor."""
    return {name: f"{_type(place)}{list(place.shape)}" for name, place in _tensors(target).items()}


def head(target: Target, count: int) -> Iterator[Any]:
    """The first tensors: name, dtype and shape."""
    for number, (name, what) in enumerate(schema(target).items()):
        if number >= count:
            return
        yield {"tensor": name, "type": what}


def stats(target: Target) -> tuple[dict[str, Any], Any]:
    """Tensors, parameters (elements) and bytes; parameters by dtype."""
    places = _tensors(target).values()
    types: Counter[str] = Counter()
    for place in places:
        types[_type(place)] += math.prod(place.shape)
    size = sum(place.nbytes for place in places)
    return {"tensors": len(places), "parameters": types.total(), "bytes": size, "dtypes": dict(types.most_common())}, None
