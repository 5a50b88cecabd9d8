"""TFRecord: framing and Examples, plain and compressed, and the search behind damage."""

from __future__ import annotations

import gzip
import zlib

import dataio
from dataio.formats.tfrecord.example import encode_example
from dataio.formats.tfrecord.framing import framed
from dataio.formats.tfrecord.index import tfrecord_index

LIMIT = 1 << 20


def seeds() -> list[bytes]:
    example = encode_example({"image": [b"\xff\xd8"], "label": [3, -1], "weight": [0.5], "none": []})
    plain = b"".join(b"".join(framed(payload)) for payload in (example, b"", example * 2))
    return [plain, gzip.compress(plain), zlib.compress(plain), plain[:-3], plain[:20] + b"garbage" + plain[20:]]


def run(data: bytes) -> None:
    for on_corrupt in ("raise", "skip"):
        try:
            for _ in dataio.iter_tfrecord(data, on_corrupt=on_corrupt, max_record_bytes=LIMIT):
                pass
        except ValueError:  # documented: damage, a payload that is no Example, a compressed stream that is damaged
            pass
    try:
        tfrecord_index(data)
    except ValueError:  # documented: damage
        pass
