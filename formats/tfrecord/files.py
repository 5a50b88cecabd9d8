"""`iter_tfrecord`, `read_tfrecord`, `write_tfrecord`: TFRecord files from and to any URI."""

from __future__ import annotations

import io
import os
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

from ...engine.errors import OpError
from ...io.codecs import decoded
from ...io.file_objects import ChunkFile
from ...io.reader import Reader, reader
from ...io.store import BytesLike
from ...io.writer import writer
from ..inputs import local_file, name_of, read_bytes
from .example import Values, encode_example, parse_example
from .framing import HEADER, MAX_RECORD, Fill, RecordStream, TFRecordError, framed, length_crc, unpack_header

COMPRESSIONS = ("gzip", "zlib")
_LEVEL = 6


def iter_tfrecord(
    path: Any,
    *,
    compression: str | None = "auto",
    on_corrupt: str = "raise",
    features: Iterable[str] | None = None,
    max_record_bytes: int = MAX_RECORD,
) -> Generator[dict[str, Values], None, None]:
    """The examples of a TFRecord file, one after the other; the file is opened at the first one.

    The file is read as a stream, with bounded memory. Both checksums of a record are checked before it is given; what lies behind it
    was not read then (a file may turn out to be damaged after some examples).

    Args:
        path: local path or URI of any store, bytes-like, a `dataio.Reader`, or an object with `read()`; a binary file object is
            read from its position and left open.
        compression: of the whole file: None, "gzip", "zlib", or "auto", which looks at its first bytes.
        on_corrupt: "raise", or "skip": damage is left out and logged (`dataio.tfrecord`, a warning for each place with the bytes lost),
            and reading goes on at the next record that is whole.
        features: names of those wanted; None for all. Ones that an example lacks are left out.
        max_record_bytes: of one record, which has to be in memory; a longer one is damage.

    Yields:
        Values by feature name, sorted: a list of bytes, of float or of int (signed), even for a single value. A list that is
        empty gives [], a feature without kind is left out; an empty payload gives {}.

    Raises:
        FileNotFoundError: there is no such file.
        TFRecordError: (a ValueError) a record is damaged; the message names it by its number, from 0, and the byte where it begins. The
            file ends inside a header: TFRecordCutError, a RuntimeError too.
        OpError: (a ValueError) a payload is no `tf.train.Example`, or the compressed stream is damaged.
        ValueError, TypeError: options of other values.
        OSError: the file cannot be read.
    """
    wanted = _wanted(features)
    for number, offset, payload in iter_payloads(path, compression=compression, on_corrupt=on_corrupt, max_record_bytes=max_record_bytes):
        try:
            example = parse_example(payload, wanted)
        except OpError as error:
            raise TFRecordError(f"{name_of(path)}: record {number} (byte {offset:,}) is {error}", record=number, offset=offset) from error
        yield example


def read_tfrecord(
    path: Any,
    *,
    compression: str | None = "auto",
    on_corrupt: str = "raise",
    features: Iterable[str] | None = None,
    max_record_bytes: int = MAX_RECORD,
) -> list[dict[str, Values]]:
    """All examples of a TFRecord file; arguments, values and errors are those of `iter_tfrecord`."""
    return list(
        iter_tfrecord(path, compression=compression, on_corrupt=on_corrupt, features=features, max_record_bytes=max_record_bytes)
    )


def write_tfrecord(path: str | os.PathLike[str], records: Iterable[Any], *, atomic: bool = True, compression: str | None = None) -> None:
    """Write a TFRecord file as the records come, with bounded memory. An empty iterable gives an empty file.

    Args:
        path: local path or URI. Missing folders are not made.
        records: each bytes-like, a payload that is stored as it is (such as a serialised `tf.train.Example`), or a mapping, which
            becomes an Example: see `encode_example`.
        atomic: False writes the local file in place.
        compression: None, "gzip" or "zlib", of the whole file.

    Raises:
        TypeError: `records` is a str, bytes or mapping itself, or a record is of another type.
        ValueError: a mapping that makes no Example (the message names the record), another `compression`, or as `dataio.writer` says.
        OSError: as `dataio.writer` says. Nothing is left after an error, and an old file stays as it was.
    """
    if compression not in (None, *COMPRESSIONS):
        raise ValueError(f"compression is None, 'gzip' or 'zlib', got {compression!r}")
    if isinstance(records, (str, bytes, bytearray, memoryview, Mapping)):
        raise TypeError(f"records is an iterable of payloads or mappings, got {type(records).__name__}")
    pieces = _framed(records)
    with writer(os.fspath(path), atomic=atomic) as to:
        to.write(b"")  # the file is there without records too
        to.write_chunks(pieces if compression is None else _compressed(pieces, 31 if compression == "gzip" else 15))


@contextmanager
def opened(source: Any, compression: str | None) -> Iterator[tuple[Fill, bytes]]:
    """What fills a buffer with the decompressed content, and the bytes that were taken from it already."""
    if compression not in (None, "auto", *COMPRESSIONS):
        raise ValueError(f"compression is None, 'auto', 'gzip' or 'zlib', got {compression!r}")
    with _raw(source) as file:
        head = b""
        while compression == "auto" and len(head) < HEADER:
            piece = file.read(HEADER - len(head))
            if not piece:
                break
            head += piece
        codec = codec_of(head) if compression == "auto" else compression
        if codec is None:
            yield file.readinto, head
            return
        yield ChunkFile(decoded(_pieces(file, head), codec, name_of(source))).readinto, b""


def iter_payloads(
    source: Any,
    *,
    compression: str | None = "auto",
    on_corrupt: str = "raise",
    max_record_bytes: int = MAX_RECORD,
    on_gaps: Callable[[int, int], None] | None = None,
) -> Generator[tuple[int, int, bytes], None, None]:
    """Number, offset and payload of each record, checked; arguments and errors are those of `iter_tfrecord`.

    `on_gaps` is called at the end of a file of which something was left out, with the number of places and of bytes.
    """
    if on_corrupt not in ("raise", "skip"):
        raise ValueError(f"on_corrupt is 'raise' or 'skip', got {on_corrupt!r}")
    if isinstance(max_record_bytes, bool) or not isinstance(max_record_bytes, int) or max_record_bytes < 1:
        raise ValueError(f"max_record_bytes is an integer of at least 1, got {max_record_bytes!r}")
    with opened(source, compression) as (fill, head):
        stream = RecordStream(fill, name_of(source), head=head, skip=on_corrupt == "skip", max_record_bytes=max_record_bytes)
        yield from stream
        if on_gaps is not None and stream.gaps:
            on_gaps(stream.gaps, stream.skipped)


@contextmanager
def _raw(source: Any) -> Iterator[Any]:
    """The source as a raw file that goes forwards."""
    path = local_file(source)
    if path is not None:
        with open(path, "rb", buffering=0) as file:
            yield file
    elif isinstance(source, (str, os.PathLike, Reader)):
        made = source if isinstance(source, Reader) else reader(os.fspath(source))
        with closing(made.chunks()) as chunks:
            yield ChunkFile(chunks)
    elif hasattr(source, "readinto"):
        yield source
    else:
        yield ChunkFile([read_bytes(source)])


def codec_of(head: bytes) -> str | None:
    """The compression of a file, from its first 12 bytes. Lengths look like anything, so that a header that holds comes first."""
    if len(head) == HEADER:
        length, crc = unpack_header(head)
        if length_crc(length) == crc:
            return None
    if head[:2] == b"\x1f\x8b":
        return "gzip"
    if len(head) >= 2 and head[0] & 0x0F == 8 and head[0] >> 4 <= 7 and int.from_bytes(head[:2], "big") % 31 == 0 and not head[1] & 0x20:
        return "zlib"
    return None


def _pieces(file: Any, head: bytes) -> Iterator[BytesLike]:
    if head:
        yield head
    while piece := file.read(io.DEFAULT_BUFFER_SIZE * 8):
        yield piece


def _wanted(features: Iterable[str] | None) -> frozenset[str] | None:
    if features is None:
        return None
    names = [features] if isinstance(features, (str, bytes)) else list(features)
    if isinstance(features, (str, bytes)) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"features is a list of names as str, got {features!r}")
    return frozenset(names)


def _framed(records: Iterable[Any]) -> Iterator[bytes]:
    for number, record in enumerate(records):
        if isinstance(record, bytes):
            payload = record
        elif isinstance(record, (bytearray, memoryview)):
            payload = bytes(record)
        elif isinstance(record, Mapping):
            try:
                payload = encode_example(record)
            except (OpError, TypeError) as error:
                raise type(error)(f"record {number}: {error}") from error
        else:
            raise TypeError(f"record {number} is bytes-like or a mapping of features, got {type(record).__name__}")
        yield from framed(payload)


def _compressed(pieces: Iterable[bytes], window: int) -> Iterator[bytes]:
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, window)
    for piece in pieces:
        yield packer.compress(piece)
    yield packer.flush()
