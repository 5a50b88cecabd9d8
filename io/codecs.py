"""Compressed streams: decoded in bounded pieces, all members of them, up to a limit; and encoded."""

from __future__ import annotations

import bz2
import io
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

from ..engine.errors import OpError
from .errors import DecodedTooLargeError
from .file_objects import ChunkFile

BytesLike: TypeAlias = bytes | bytearray | memoryview

PIECE = 1 << 20
"""Bytes decoded at a time."""
LZMA_MEMORY = 1 << 28
"""Bytes that a decoder of xz or LZMA may take; the strongest preset of `xz` needs a quarter of that."""


class CodecError(OpError):
    """A compressed stream that is damaged, cut off, or followed by something else."""


class _Zlib:
    """`zlib`'s decompressor with the methods of those of `bz2` and `lzma`."""

    def __init__(self, window: int) -> None:
        self._member = zlib.decompressobj(window)

    def decompress(self, data: BytesLike, max_length: int) -> bytes:
        return self._member.decompress(self._member.unconsumed_tail or data, max_length)

    @property
    def eof(self) -> bool:
        return self._member.eof

    @property
    def needs_input(self) -> bool:
        return not self._member.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        return self._member.unused_data


_DECODERS: dict[str, Callable[[], Any]] = {
    "gzip": lambda: _Zlib(31),
    "zlib": lambda: _Zlib(15),
    "deflate": lambda: _Zlib(-15),
    "bzip2": bz2.BZ2Decompressor,
    "xz": lambda: lzma.LZMADecompressor(lzma.FORMAT_AUTO, LZMA_MEMORY),
    "lzma": lambda: lzma.LZMADecompressor(lzma.FORMAT_ALONE, LZMA_MEMORY),
}
_OF_MANY = ("gzip", "bzip2", "xz")
"""Formats of which a file may hold several members, one after the other."""


def decoded(chunks: Iterable[BytesLike], codec: str, name: str, limit: int | None = None) -> Iterator[bytes]:
    """The content of a compressed stream in pieces of at most `PIECE` bytes.

    Of gzip, bzip2, xz and zstd all members (frames) are decoded, as their tools do. Behind the last member of gzip, bzip2 and xz
    zeros are padding, as for Python's `gzip`; anything else is an error.

    Args:
        codec: gzip, zstd, bzip2, xz, zlib (one stream), deflate (raw, one stream), lzma (the `.lzma` format).
        name: of the content, for messages.
        limit: bytes that may come out.

    Raises:
        CodecError: damaged, cut off, empty, or with something behind it.
        DecodedTooLargeError: more than `limit` bytes; nothing is decoded any further.
        whatever `chunks` raises.
    """
    total = 0
    pieces = _zstd(chunks, name) if codec == "zstd" else _members(chunks, codec, name)
    for piece in pieces:
        total += len(piece)
        if limit is not None and total > limit:
            raise DecodedTooLargeError(f"{name} decodes to more than the {limit:,} bytes of max_output_bytes")
        yield piece


def _members(chunks: Iterable[BytesLike], codec: str, name: str) -> Iterator[bytes]:
    member: Any = None
    begun = False
    for chunk in chunks:
        data: BytesLike = chunk
        while True:
            if member is None:
                if begun:
                    data = bytes(data).lstrip(b"\0") if len(data) and not data[0] else data
                    if len(data) and codec not in _OF_MANY:
                        raise CodecError(f"{name}: {len(data)} bytes or more lie behind the end of its {codec} stream")
                if not len(data):
                    break
                member, begun = _DECODERS[codec](), True
            try:
                piece = member.decompress(data, PIECE)
            except (zlib.error, lzma.LZMAError, OSError, EOFError) as error:
                raise CodecError(f"{name} is no whole {codec} stream: {error}") from error
            if piece:
                yield piece
            data = b""
            if member.eof:
                data, member = member.unused_data, None
            elif member.needs_input:
                break
    if member is not None or not begun:
        raise CodecError(f"{name} is cut off: its {codec} stream " + ("does not end" if begun else "is empty"))


def _zstd(chunks: Iterable[BytesLike], name: str) -> Iterator[bytes]:
    import pyarrow as pa

    # A frame says how much memory its window takes; the decoder refuses more than 128 MiB.
    source = ChunkFile(chunks)
    stream = pa.CompressedInputStream(source, "zstd")
    while True:
        try:
            piece: bytes = stream.read(PIECE)
        except OSError as error:
            if type(error) is not OSError or source.failed is error:  # of the store
                raise
            raise CodecError(f"{name} is no whole zstd stream: {error}") from error
        if not piece:
            break
        yield piece
    if not source.tell():
        raise CodecError(f"{name} is cut off: its zstd stream is empty")


class Encoder:
    """Compresses what it is given, piece by piece.

    Args:
        codec: gzip or zstd.
    """

    def __init__(self, codec: str) -> None:
        self._gzip: Any = None
        self._out = _Sink()
        self._zstd: Any = None
        if codec == "gzip":
            self._gzip = zlib.compressobj(6, zlib.DEFLATED, 31)
        else:
            import pyarrow as pa

            self._zstd = pa.CompressedOutputStream(pa.PythonFile(self._out, mode="w"), "zstd")

    def encode(self, data: BytesLike) -> bytes:
        """What there is to write once `data` was added."""
        if self._gzip is not None:
            piece: bytes = self._gzip.compress(data)
            return piece
        self._zstd.write(data)
        return self._out.take()

    def finish(self) -> bytes:
        """What is left."""
        if self._gzip is not None:
            piece: bytes = self._gzip.flush()
            return piece
        self._zstd.close()
        return self._out.take()


class _Sink(io.RawIOBase):
    """Keeps what is written until it is taken."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._parts.append(bytes(data))
        return len(self._parts[-1])

    def take(self) -> bytes:
        parts, self._parts = self._parts, []
        return b"".join(parts)
