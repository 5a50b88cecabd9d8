"""The `safetensors` decoder: one named tensor of a file, read by its range.

The format (https://github.com/huggingface/safetensors, "Format") is 8 bytes with the length of the header, the header in
JSON, and the payloads, which fill the rest without gap or overlap. Files that the safetensors library refuses are refused
here too. The library itself reads local paths or whole files only, so the header is parsed here.
"""

from __future__ import annotations

import json
import math
import reprlib
from collections import Counter
from functools import lru_cache
from typing import Any, NoReturn, TypeAlias

import numpy as np

from ...engine.arguments import StringKey
from ...engine.errors import LimitError, OpError
from ...engine.registry import register_kernel, register_op
from ...engine.source import RangeReader
from .tensors import HeaderCache, TensorPlace, check_shape, element_type, find

MAX_HEADER = 100_000_000
"""Bytes of a header, as the format says."""
FIRST_READ = 4096
"""Bytes of the first read: most often the whole header, and a page is what the system reads anyway."""
SMALL = 1 << 15
"""Bytes of headers that are known by their content, and of files known by that alone: a data set of small files has few
headers, and as many identities as records."""
DTYPES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "U32": "uint32", "I32": "int32",
    "U64": "uint64", "I64": "int64", "F16": "float16", "F32": "float32", "F64": "float64", "C64": "complex64",
    "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz", "F8_E8M0": "float8_e8m0fnu",
}  # fmt: skip
"""Type names of the format, and torch's; those of 4 and 6 bits have no array form."""

Header: TypeAlias = dict[str, TensorPlace]
_ELEMENTS = {name: element_type(torch).newbyteorder("<") for name, torch in DTYPES.items()}
_SUB_BYTE = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}
_headers: HeaderCache[Header] = HeaderCache()


@register_op("safetensors", kind="decoder", reads="ranges")
def decode_safetensors(reader: RangeReader, *, tensor_key: StringKey) -> np.ndarray:
    """One tensor of a safetensors file; nothing else of the payload is read.

    Args:
        reader: the open file.
        tensor_key: its name; `col(...)` for one that differs per record.

    Returns:
        array[...] of the file's dtype and shape, owning its memory. BF16 and F8 tensors hold their bits under torch's
        name, see `formats.weights.tensors`.

    Raises:
        OpError: not a safetensors file, a damaged header, no such tensor, or elements of less than a byte.
        OSError: the file ends early.
    """
    return _place(reader, tensor_key).read(reader)


@register_kernel("safetensors", "out", kind="decoder")
def decode_safetensors_out(reader: RangeReader, out: np.ndarray, *, tensor_key: str) -> bool:
    """The tensor read straight into `out`; False, with nothing written, when its dtype or shape is another."""
    place = _place(reader, tensor_key)
    if not place.fits(out):
        return False
    place.read_into(reader, out)
    return True


def _place(reader: RangeReader, key: str) -> TensorPlace:
    place = find("the safetensors file", cached_header(reader), key)
    if place.dtype.kind == "V" and place.dtype.names is None:
        raise OpError(f"safetensors tensor {key!r} has elements of 4 or 6 bits, which no array holds; store it as U8")
    return place


def cached_header(reader: RangeReader) -> Header:
    """As `read_header`; of the larger files read last what was learnt before, as long as they are the same."""
    return read_header(reader) if reader.size <= SMALL else _headers.get(reader, read_header)


def read_header(reader: RangeReader) -> Header:
    """Every tensor's place by name, in the order of the header.

    Raises:
        OpError: damaged, or not a safetensors file.
        LimitError: a header larger than the format allows.
    """
    header = read_header_text(reader)
    parse = _parse_known if len(header) <= SMALL else _parse
    return parse(header, reader.size)


def read_tensor_infos(reader: RangeReader) -> list[tuple[str, str, tuple[int, ...], int, int]]:
    """(name, dtype, shape, bytes, offset in the file) of every tensor, in the order of the header.

    Types have torch's names, those of less than a byte the format's. Errors as `read_header`.
    """
    text = read_header_text(reader)
    places = _parse(text, reader.size)
    found = []
    for name, entry in json.loads(text).items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        found.append((name, DTYPES.get(entry["dtype"], entry["dtype"]), places[name].shape, end - begin, places[name].offset))
    return found


def read_header_text(reader: RangeReader) -> bytes:
    """The JSON of the header, not looked at yet; errors as `read_header`."""
    first = reader.read(0, min(reader.size, FIRST_READ))
    if len(first) < 8:
        raise OpError(f"not a safetensors file: {reader.size} bytes")
    length = int.from_bytes(first[:8], "little")
    if length > MAX_HEADER:
        raise LimitError(f"safetensors header of {length} bytes exceeds {MAX_HEADER}; is this a safetensors file?")
    if 8 + length > reader.size:
        raise OpError(f"safetensors file is truncated inside its header: {reader.size} bytes, header of {length}")
    return bytes(first[8 : 8 + length]) if 8 + length <= len(first) else bytes(reader.read(8, length))


def _parse(header: bytes, size: int) -> Header:
    """The places that a header announces, checked against the size of the file."""
    if header[:1] != b"{":
        raise OpError(f"not a safetensors header: starts with {header[:16]!r}")
    try:
        found = json.loads(header.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise OpError(f"safetensors header is not valid JSON: {error}") from error
    metadata = found.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise OpError("safetensors __metadata__ must map names to strings")
    start = 8 + len(header)
    places: Header = {}
    spans: list[tuple[int, int]] = []
    for name, entry in found.items():
        places[name], span = _parse_entry(name, entry, start)
        spans.append(span)
    _check_spans(spans, size - start)
    return places


_parse_known = lru_cache(maxsize=256)(_parse)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError(f"{Counter(name for name, _ in pairs).most_common(1)[0][0]!r} stands there twice")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _parse_entry(name: str, entry: Any, start: int) -> tuple[TensorPlace, tuple[int, int]]:
    what = f"safetensors tensor {name!r:.100}"
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise OpError(f"{what} needs dtype, shape and data_offsets and nothing else, it has {reprlib.repr(entry)}")
    shape = check_shape(what, entry["shape"])
    kind, offsets = entry["dtype"], entry["data_offsets"]
    if not isinstance(kind, str) or (kind not in _ELEMENTS and kind not in _SUB_BYTE):
        raise OpError(f"{what} has the unknown dtype {reprlib.repr(kind)}; it takes: {', '.join(DTYPES)}")
    if not isinstance(offsets, list) or len(offsets) != 2 or any(type(n) is not int or n < 0 for n in offsets):
        raise OpError(f"{what} has no valid data_offsets: {reprlib.repr(offsets)}")
    begin, end = offsets
    width = _SUB_BYTE[kind] if kind in _SUB_BYTE else _ELEMENTS[kind].itemsize * 8
    if (end - begin) * 8 != math.prod(shape) * width:
        raise OpError(f"{what} says {kind}{reprlib.repr(shape)}, which does not take {end - begin} bytes")
    dtype = np.dtype("V1") if kind in _SUB_BYTE else _ELEMENTS[kind]
    return TensorPlace(dtype, shape, start + begin), (begin, end)


def _check_spans(spans: list[tuple[int, int]], payload: int) -> None:
    """The payloads must fill the file: one that was cut off, or put together badly, shows before any tensor is read."""
    position = 0
    for begin, end in sorted(spans):
        if begin != position:
            raise OpError(f"safetensors payloads {'overlap' if begin < position else 'leave a gap'} at byte {position}")
        position = end
    if position != payload:
        state = "is truncated" if payload < position else "has bytes that belong to no tensor"
        raise OpError(f"safetensors file {state}: its tensors take {position} bytes, there are {payload}")
