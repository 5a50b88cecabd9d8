"""Readers: something small, lazy and picklable that gives its bytes when asked, on any thread.

`reader(uri)` reads what a URI names; overlays (`.gunzip()`, `.tar_entry(name)`, ...) read what lies in it.
"""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any, TypeAlias

from ..engine.errors import DataioError
from .arguments import check_count
from .cache import as_cache
from .errors import CredentialsError, RangeError, ResponseTooLargeError
from .file_objects import BUFFER, REMOTE_WINDOW, RangeFile, StreamFile
from .headers import Withheld, checked_headers, without_secrets
from .ranges import MemoryRanges, Window, open_file, open_remote
from .secrets import masked
from .store import check_scheme, open_store, reading_through
from .uri import parse_uri

if TYPE_CHECKING:
    from ..engine.source import RangeReader

BytesLike: TypeAlias = bytes | bytearray | memoryview

MAX_OUTPUT = 1 << 32
"""Bytes that an overlay gives at most, unless it is told otherwise."""
CHUNK = 1 << 22
"""Bytes of one step through what is read in parts."""


class UnsupportedRangeError(DataioError, RuntimeError):
    """A part was asked for of what can only be read from the front, or only once; `fallback=True` may help."""


class Reader(ABC):
    """A lazy source of bytes: building one reads nothing, and each read is a new one.

    Readers do not change, hold no connection and no file, may be shared by threads, and travel in pickles.
    """

    __slots__ = ()

    @abstractmethod
    def read_all(self) -> BytesLike:
        """All bytes of the content."""

    def read_buffer(self) -> BytesLike:
        """All bytes of the content, perhaps as a view of the memory into which they were received."""
        return self.read_all()

    # ------------------------------------------------------------------- overlays

    def gunzip(self, *, max_output_bytes: int = MAX_OUTPUT) -> Reader:
        """The content decompressed by gzip: all members, zeros behind the last one ignored.

        Args:
            max_output_bytes: largest content.

        Reading raises:
            ValueError: damaged, cut off, empty, with something else behind it (CodecError); larger than `max_output_bytes`
                (DecodedTooLargeError), in which case decoding stops there.
        """
        from .overlays import DecodedReader

        return DecodedReader(self, "gzip", max_output_bytes)

    def zstd_decode(self, *, max_output_bytes: int = MAX_OUTPUT) -> Reader:
        """The content decompressed by zstd: all frames. Arguments and errors as `gunzip`."""
        from .overlays import DecodedReader

        return DecodedReader(self, "zstd", max_output_bytes)

    def tar_entry(self, name: str, *, max_output_bytes: int = MAX_OUTPUT) -> Reader:
        """A file out of a tar archive.

        Folders, links and devices are no entries. Names are only names: `../x` and `/x` are found by just these, and nothing is
        ever written by them. Of a plain tar only the headers and the entry are read; a compressed one needs its overlay first:
        `reader("a.tar.gz").gunzip().tar_entry("x")`.

        Args:
            name: as it is stored.
            max_output_bytes: largest entry.

        Reading raises:
            ValueError: no tar, damaged, or without its end marker; a name twice; no such entry; a file with holes (sparse).
            ResponseTooLargeError: (a RuntimeError) the entry is larger than `max_output_bytes`; it is not read then.
        """
        from .overlays import TarEntryReader

        return TarEntryReader(self, _checked_name(name), max_output_bytes)

    def tar_entry_at(self, index: int, *, max_output_bytes: int = MAX_OUTPUT) -> Reader:
        """The file out of a tar archive that has `index` others before it; otherwise as `tar_entry`."""
        from .overlays import TarEntryReader

        check_count("index", index)
        return TarEntryReader(self, index, max_output_bytes)

    def zip_entry(self, name: str, *, max_output_bytes: int = MAX_OUTPUT) -> Reader:
        """A file out of a zip archive: stored, or compressed by deflate, bzip2 or LZMA.

        Of the archive only the directory and the entry are read. An entry that cannot be read spoils no other.

        Args:
            name: as it is stored; folders are no entries.
            max_output_bytes: largest entry.

        Reading raises:
            ValueError: no zip, or damaged; a name twice; no such entry; encrypted; compressed in another way; an entry that is
                not what the directory says of it (name, place, size, checksum); a directory over
                DATAIO_ZIP_CENTRAL_DIRECTORY_MAX_BYTES or DATAIO_ZIP_MAX_ENTRIES.
            ResponseTooLargeError: (a RuntimeError) the entry is larger than `max_output_bytes`; it is not read then.
        """
        from .overlays import ZipEntryReader

        return ZipEntryReader(self, _checked_name(name), max_output_bytes)

    # ------------------------------------------------------------------- parts

    def read_range(self, start: int, length: int, *, fallback: bool = False) -> bytes:
        """`length` bytes from `start`, cut short at the end; nothing behind it.

        Args:
            start, length: in bytes of the content.
            fallback: whether to read, or decode, all that comes before where parts cannot be read by themselves.

        Raises:
            TypeError, ValueError: no integers, or negative ones.
            UnsupportedRangeError: (a RuntimeError) `capabilities()["ranges"]` is "fallback" and `fallback` is not given, or it is
                "unsupported".
            as `read_all` does.
        """
        check_count("start", start)
        check_count("length", length)
        ranges = self.capabilities()["ranges"]
        if ranges == "native":
            return bytes(self._part(start, length))
        if ranges == "unsupported":
            raise UnsupportedRangeError(f"{self!r} gives another content with each read, which has no parts")
        if not fallback:
            raise UnsupportedRangeError(f"{self!r} cannot read a part by itself; fallback=True reads all that comes before it")
        with closing(self.chunks()) as chunks:
            return b"".join(sliced(chunks, start, length))

    def read_ranges(self, ranges: Iterable[tuple[int, int]], *, fallback: bool = False) -> list[bytes]:
        """Several (start, length) parts, each as `read_range` gives it; of an object near ones come by one request, and all
        are of one version where the store tells versions.

        Raises:
            as `read_range` does; ChangedError: the object was replaced meanwhile.
        """
        return [self.read_range(start, length, fallback=fallback) for start, length in ranges]

    def read_into(self, out: Any, start: int = 0) -> int:
        """Fill a writable buffer (bytearray, memoryview, NumPy array, ...) from byte `start` of the content.

        Returns:
            Bytes that were there; fewer than `out` has at the end of the content.

        Raises:
            as `read_range` does, with `fallback`.
        """
        check_count("start", start)
        view = memoryview(out).cast("B")
        if view.readonly:
            raise TypeError(f"out must be writable, got a read-only {type(out).__name__}")
        done = 0
        if self.capabilities()["ranges"] == "native":
            return self._fill(view, start)
        with closing(self.chunks()) as chunks:
            for part in sliced(chunks, start, len(view)):
                view[done : done + len(part)] = part
                done += len(part)
        return done

    def open(self, buffer_size: int | None = None) -> io.BufferedReader:
        """The content as a seekable binary file, for `zipfile`, Pillow, pyarrow, pandas and others.

        What can be read in parts is read in parts. A decompressed stream is decoded as far as it is read; going back more than
        1 MiB in it starts over.

        Args:
            buffer_size: bytes read ahead of small reads; None for 64 KiB, of stores 1 MiB.

        Raises:
            as `read_all` does, here or while reading.
        """
        if buffer_size is not None:
            check_count("buffer_size", buffer_size, least=1)
        if self.capabilities()["ranges"] == "native":
            window = buffer_size or (REMOTE_WINDOW if getattr(self, "remote", False) else 0)
            return io.BufferedReader(RangeFile(self.open_ranges(), window), buffer_size or BUFFER)
        return stream_file(self, buffer_size)

    def open_ranges(self, *, remembered: bool = False) -> RangeReader:
        """The content for who reads parts of it; what cannot be read in parts is read whole.

        Args:
            remembered: whether size and version of an object in a store may be those of an earlier call; a read raises
                ChangedError or RangeError where they are not any more.
        """
        return MemoryRanges(self.read_buffer())

    def chunks(self) -> Generator[BytesLike, None, None]:
        """The content from the front, in bounded pieces where it can be had so; a generator, to be closed when left early."""
        yield self.read_buffer()

    def _part(self, start: int, length: int) -> BytesLike:
        """A part of what has native ranges."""
        with closing(self.open_ranges(remembered=True)) as ranges:
            return ranges.read(min(start, ranges.size), max(0, min(length, ranges.size - start)))

    def _fill(self, out: memoryview, start: int) -> int:
        """The same into `out`."""
        with closing(self.open_ranges(remembered=True)) as ranges:
            count = max(0, min(len(out), ranges.size - start))
            if count:
                ranges.read_into(start, out[:count])
            return count

    # ------------------------------------------------------------------- what it is

    def capabilities(self) -> dict[str, Any]:
        """How it can be read.

        Returns:
            "ranges": "native" (parts are read by themselves), "fallback" (all before them is read) or "unsupported"; "size":
            "known" or "unknown" before reading; "metadata": whether the content is an object that a store describes;
            "concurrent_ranges": whether parts can be read side by side; "streaming": whether the content comes in pieces.
        """
        return {"ranges": "fallback", "size": "unknown", "metadata": False, "concurrent_ranges": False, "streaming": False}

    def describe(self) -> dict[str, Any]:
        """`{"source", "ops", "direct_range_reads"}`: the kind of source, the overlays in order, whether ranges are native."""
        return {
            "source": self._source(),
            "ops": self._ops(),
            "direct_range_reads": self.capabilities()["ranges"] == "native",
        }

    def metadata(self) -> dict[str, Any]:
        """`describe()`, and "uri" (secrets masked), "range_start", "range_length" and "max_response_bytes" of the source."""
        return {**self.describe(), **self._place()}

    def _source(self) -> str:
        return "python"

    def _ops(self) -> list[str]:
        return []

    def _place(self) -> dict[str, Any]:
        return {"uri": None, "range_start": None, "range_length": None, "max_response_bytes": None}


class UriReader(Reader):
    """What a URI names, or a window of it. Made by `reader`.

    Attributes:
        uri: as it was given.
        offset, size: of the window in bytes; None for the whole object.
        max_response_bytes, headers, cache: as `reader` says.
    """

    __slots__ = ("cache", "headers", "max_response_bytes", "offset", "size", "uri")

    def __init__(
        self,
        uri: str,
        offset: int | None = None,
        size: int | None = None,
        max_response_bytes: int | None = None,
        headers: Mapping[str, str] | None = None,
        cache: Any = None,
    ) -> None:
        self.uri = uri
        self.offset, self.size = offset, size
        self.max_response_bytes = max_response_bytes
        self.headers = headers
        self.cache = cache

    @property
    def remote(self) -> bool:
        """Whether reading asks a store elsewhere."""
        return parse_uri(self.uri).scheme != "file"

    def read_all(self) -> bytes:
        return bytes(self.read_buffer())

    def read_buffer(self) -> BytesLike:
        store, key = open_store(self.uri, cache=self.cache)
        return store.get(key, self.offset or 0, self.size, headers=self._usable_headers(), limit=self.max_response_bytes)

    def chunks(self) -> Generator[BytesLike, None, None]:
        store, key = open_store(self.uri, cache=self.cache)
        limit = self.max_response_bytes
        with store.open(key, self.offset or 0, self.size, headers=self._usable_headers(), limit=limit) as body:
            yield from body

    def open_ranges(self, *, remembered: bool = False) -> RangeReader:
        parsed = parse_uri(self.uri)
        if parsed.scheme == "file":
            ranges = open_file(parsed.key)
        else:
            with reading_through(self.cache):
                ranges = open_remote(
                self.uri, headers=self._usable_headers(), cache=self.cache, whole_below=0, remembered=remembered
            )
        size = ranges.size
        if self.offset is not None and self.size is not None:
            begin = min(self.offset, size)
            ranges = Window(ranges, begin, min(self.size, size - begin))
        self._check_limit(ranges)
        return ranges

    def _check_limit(self, ranges: RangeReader) -> None:
        limit = self.max_response_bytes
        if limit is not None and ranges.size > limit:
            ranges.close()
            raise ResponseTooLargeError(f"{masked(self.uri)}: {ranges.size:,} bytes are more than the {limit:,} of max_response_bytes")

    def _part(self, start: int, length: int) -> BytesLike:
        offset, length = self._within(start, length)
        if not length:
            return b""
        store, key = open_store(self.uri, cache=self.cache)
        try:
            return store.get(key, offset, length, headers=self._usable_headers(), limit=self.max_response_bytes)
        except RangeError:
            return b""

    def _fill(self, out: memoryview, start: int) -> int:
        if self.headers is not None or self.max_response_bytes is not None:
            data = self._part(start, len(out))
            out[: len(data)] = data
            return len(data)
        offset, length = self._within(start, len(out))
        if not length:
            return 0
        store, key = open_store(self.uri, cache=self.cache)
        try:
            return store.get_into(key, offset, out[:length])
        except RangeError:
            return 0

    def read_ranges(self, ranges: Iterable[tuple[int, int]], *, fallback: bool = False) -> list[bytes]:
        wanted = list(ranges)
        for start, length in wanted:
            check_count("start", start)
            check_count("length", length)
        if self.headers is not None or self.max_response_bytes is not None:
            return super().read_ranges(wanted)
        store, key = open_store(self.uri, cache=self.cache)
        try:
            return [bytes(part) for part in store.get_ranges(key, [self._within(*part) for part in wanted])]
        except RangeError:  # one of them lies behind the end
            return super().read_ranges(wanted)

    def _within(self, start: int, length: int) -> tuple[int, int]:
        """A part of the window as (offset, length) of the object."""
        if self.offset is None or self.size is None:
            return start, length
        return self.offset + start, max(0, min(length, self.size - start))

    def _usable_headers(self) -> Mapping[str, str] | None:
        if isinstance(self.headers, Withheld):
            raise CredentialsError(
                f"the reader of {masked(self.uri)} came out of a pickle, which holds no secrets: its headers "
                f"{', '.join(self.headers)} are missing; make it here, with headers="
            )
        return self.headers

    def capabilities(self) -> dict[str, Any]:
        return {"ranges": "native", "size": "known", "metadata": True, "concurrent_ranges": True, "streaming": True}

    def _source(self) -> str:
        return parse_uri(self.uri).scheme

    def _place(self) -> dict[str, Any]:
        return {
            "uri": self._shown(),
            "range_start": self.offset,
            "range_length": self.size,
            "max_response_bytes": self.max_response_bytes,
        }

    def _shown(self) -> str:
        parsed = parse_uri(self.uri)
        return f"file://{parsed.key}" if parsed.scheme == "file" else masked(self.uri)

    def __repr__(self) -> str:
        return shown(self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UriReader) and self._state() == other._state()

    def __hash__(self) -> int:
        return hash((self.uri, self.offset, self.size))

    def _state(self) -> tuple[Any, ...]:
        return self.uri, self.offset, self.size, self.max_response_bytes, self.headers, self.cache

    def __reduce__(self) -> tuple[Any, ...]:
        return UriReader, (*self._state()[:-2], without_secrets(self.headers), self.cache)

    def __copy__(self) -> UriReader:
        return self  # a copy in this process keeps its headers

    def __deepcopy__(self, memo: object) -> UriReader:
        return self


def reader(
    uri: str,
    *,
    offset: int | None = None,
    size: int | None = None,
    max_response_bytes: int | None = None,
    headers: Mapping[str, str] | None = None,
    cache: Any = None,
) -> Reader:
    """A reader of what a URI names; nothing is opened before it is read.

    Args:
        uri: of any scheme, or a local path; taken as it is.
        offset, size: a window of the object in bytes, cut short at its end; only together.
        max_response_bytes: bytes that one read may bring, and that what is read in parts (`open`, overlays) may have.
        headers: of each request; http and https only. They do not travel in pickles, except for harmless ones such as
            User-Agent, and show nowhere.
        cache: a directory or a `dataio.Cache` that keeps remote objects that are read whole; None takes DATAIO_CACHE_DIR,
            False none.

    Reading raises:
        FileNotFoundError, PermissionError, TimeoutError, ConnectionError, OSError: as the store says, with the URI.
        RangeError: a window that begins behind the end of an object in a store (local files give nothing there).
        ResponseTooLargeError: (a RuntimeError) over `max_response_bytes`.

    Raises:
        TypeError: `uri` is no str; numbers or headers of another type.
        ValueError: no URI, of an unknown scheme; offset without size or the reverse; negative numbers.
        UnsupportedError: (a NotImplementedError) headers for another scheme.
    """
    if not isinstance(uri, str):
        raise TypeError(f"uri is a str, got {type(uri).__name__}")
    if (offset is None) != (size is None):
        raise ValueError("offset and size go together: give both, or neither")
    for name, number in {"offset": offset, "size": size, "max_response_bytes": max_response_bytes}.items():
        if number is not None:
            check_count(name, number)
    scheme = parse_uri(uri).scheme
    if scheme != "file":
        check_scheme(scheme)
    if headers is not None:
        headers = checked_headers(scheme, headers)
    return UriReader(uri, offset, size, max_response_bytes, headers, None if cache is None else as_cache(cache) or False)


def _checked_name(name: Any) -> str:
    if not isinstance(name, str):
        raise TypeError(f"the name of an entry is a str, got {type(name).__name__}")
    return name


def shown(made: Reader) -> str:
    """The repr of a reader: kind of source, URI with its overlays, their number."""
    ops = made._ops()
    return f"Reader(source={made._source()}, uri={made._place()['uri']}{f', ops={len(ops)}' if ops else ''})"


def stream_file(made: Reader, buffer_size: int | None) -> io.BufferedReader:
    """A reader as a file that is read from the front."""
    return io.BufferedReader(StreamFile(made.chunks), buffer_size or BUFFER)


def sliced(chunks: Iterator[BytesLike], start: int, length: int) -> Iterator[memoryview]:
    """The parts of a stream that lie in a range; nothing is read behind it."""
    at, end = 0, start + length
    while at < end and (chunk := next(chunks, None)) is not None:
        view = memoryview(chunk).cast("B")
        part = view[max(0, start - at) : max(0, end - at)]
        at += len(view)
        if len(part):
            yield part


def ranged_chunks(ranges: RangeReader) -> Iterator[BytesLike]:
    """All of what is read in parts, from the front."""
    for at in range(0, ranges.size, CHUNK):
        yield ranges.read(at, min(CHUNK, ranges.size - at))
