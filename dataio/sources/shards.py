"""The bytes of tar shards, in order: local ones by their headers, others by threads that read ahead."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from dataio.engine.errors import SourceError
from dataio.io.codecs import CodecError, decoded
from dataio.io.store import BytesLike, open_store
from dataio.io.tar_stream import FileTape, RangeTape, StreamTape, Tape, TarError
from dataio.io.uri import local_path

FEED_BYTES = 32 << 20
"""Bytes of one shard that are read ahead."""
_CODECS = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
_MAGIC = 8


class MissingShardError(SourceError, FileNotFoundError):
    """A shard is not there; nothing of what comes behind it is delivered."""


def missing(uri: str, error: BaseException) -> MissingShardError:
    found = MissingShardError(f"the shard {uri} is missing: {error}")
    found.__cause__ = error
    return found


class Shard:
    """One shard that is being read from `start` on, a byte of the tar itself.

    Attributes:
        local: path of a plain local tar, whose contents need not pass through here.
        packed: whether the tar is compressed, so that no part of it can be read by itself.
    """

    def __init__(self, uri: str, start: int = 0) -> None:
        self.uri, self.start = uri, start
        self.packed = False
        self.local: str | None = None
        self._feed: Feed | None = None
        path = local_path(uri)
        if path is not None:
            name = os.fsdecode(path)
            try:
                self.packed = is_packed(name)
            except FileNotFoundError as error:
                raise missing(uri, error) from error
            self.local = None if self.packed else name
        if self.local is None:
            self._feed = Feed(uri, start)

    def tape(self) -> Tape:
        """The bytes from `start` on; waits until the first of them are there.

        Raises:
            MissingShardError: there is no such object.
            OSError: it cannot be read.
        """
        if self._feed is None:
            return FileTape(str(self.local), self.start)
        chunks = self._feed.chunks()
        first = next(chunks, b"")
        self.packed = self._feed.packed
        return StreamTape(_joined(first, chunks), self.start, self._feed.size)

    def close(self) -> None:
        """Stop reading ahead."""
        if self._feed is not None:
            self._feed.close()


def _joined(first: BytesLike, chunks: Iterator[BytesLike]) -> Iterator[BytesLike]:
    yield first
    yield from chunks


class Feed:
    """Reads an object on a thread of its own, at most `FEED_BYTES` ahead.

    Attributes:
        packed: whether it is compressed; known with the first chunk.
        size: bytes of the tar, where that is known.
    """

    def __init__(self, uri: str, start: int) -> None:
        self.uri, self.start = uri, start
        self.packed = False
        self.size: int | None = None
        self._chunks: deque[BytesLike] = deque()
        self._held = 0
        self._error: BaseException | None = None
        self._ended = self._stopped = False
        self._changed = threading.Condition()
        threading.Thread(target=self._fill, name="dataio-shard", daemon=True).start()

    # ---------------------------------------------------------------- the thread

    def _fill(self) -> None:
        error: BaseException | None = None
        try:
            for chunk in self._unpacked():
                if not self._put(chunk):
                    break
        except FileNotFoundError as absent:
            error = missing(self.uri, absent)
        except BaseException as raised:
            error = raised
        with self._changed:
            self._error, self._ended = error, True
            self._changed.notify_all()

    def _unpacked(self) -> Iterator[BytesLike]:
        store, key = open_store(self.uri)
        start, codec = self.start, None
        if start:  # only a tar that is not compressed can be read from there
            with store.open(key, 0, _MAGIC) as head:
                codec = codec_of(b"".join(head))
        with store.open(key, 0 if codec else start) as body:
            chunks = iter(body)
            if not start:
                first = next(chunks, b"")
                while len(first) < _MAGIC and (more := next(chunks, b"")):
                    first = b"".join((first, more))
                codec = codec_of(bytes(first[:_MAGIC]))
                chunks = _joined(first, chunks)
            self.packed = codec is not None
            if codec is None:
                self.size = body.info.size
                yield from chunks
                return
            for chunk in unpacked(chunks, codec, self.uri):
                if start < len(chunk):
                    yield memoryview(chunk)[start:]
                start = max(0, start - len(chunk))

    def _put(self, chunk: BytesLike) -> bool:
        """Wait for room; False when nobody wants more."""
        with self._changed:
            while self._held and self._held + len(chunk) > FEED_BYTES and not self._stopped:
                self._changed.wait()
            if self._stopped:
                return False
            self._chunks.append(chunk)
            self._held += len(chunk)
            self._changed.notify_all()
            return True

    # ---------------------------------------------------------------- who reads

    def chunks(self) -> Iterator[BytesLike]:
        """The bytes as they come; what the thread met is raised behind those that came before."""
        while True:
            with self._changed:
                while not self._chunks and not self._ended:
                    self._changed.wait()
                if not self._chunks:
                    if self._error is not None:
                        raise self._error
                    return
                chunk = self._chunks.popleft()
                self._held -= len(chunk)
                self._changed.notify_all()
            yield chunk

    def close(self) -> None:
        """Let the thread end: at once, or when the request that it waits for does."""
        with self._changed:
            self._stopped = True
            self._chunks.clear()
            self._changed.notify_all()


@contextmanager
def headers_of(uri: str) -> Iterator[tuple[Tape, bool]]:
    """A tar for who goes from header to header, and whether it is compressed: contents are read only if there is no other way.

    Raises:
        OSError: it is not there, or cannot be read.
    """
    store, key = open_store(uri)
    packed = codec_of(bytes(store.get(key, 0, _MAGIC))) is not None
    feed: Feed | None = None
    tape: Tape
    path = local_path(uri)
    info = None if packed or path is not None else store.head(key)
    if not packed and path is not None:
        tape = FileTape(os.fsdecode(path))
    elif info is not None and info.size is not None:
        etag = info.etag
        tape = RangeTape(lambda offset, size: store.get(key, offset, size, if_match=etag), info.size)
    else:
        feed = Feed(uri, 0)
        tape = StreamTape(feed.chunks())
    try:
        yield tape, packed
    except MissingShardError as error:  # it went since
        raise error.__cause__ or error from None
    finally:
        tape.close()
        if feed is not None:
            feed.close()


def is_packed(path: str) -> bool:
    """Whether a local file is compressed.

    Raises:
        OSError: it cannot be read.
    """
    with open(path, "rb") as file:
        return codec_of(file.read(_MAGIC)) is not None


def codec_of(magic: bytes) -> str | None:
    """How a tar that begins like this is compressed; None for a plain one."""
    return next((codec for start, codec in _CODECS.items() if magic.startswith(start)), None)


def unpacked(chunks: Iterable[BytesLike], codec: str, uri: str) -> Iterator[bytes]:
    """The content of all members of a compressed shard, in bounded pieces; zeros behind the last one are padding.

    Raises:
        TarError: damaged, cut off, or followed by something else.
    """
    try:
        yield from decoded(chunks, codec, f"the shard {uri}")
    except CodecError as error:
        raise TarError(str(error)) from error
