"""Overlays: readers of what lies in the content of another reader. Any of them goes over any reader."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Generator, Hashable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any, TypeVar

from .archives import (
    STEP,
    ZipEntry,
    check_tar_entry,
    missing_entry,
    place_zip_entry,
    sparse,
    tar_index,
    unpacked_entry,
    zip_index,
)
from .arguments import check_count
from .codecs import decoded
from .errors import ChangedError, RangeError, ReadError, ResponseTooLargeError
from .file_objects import BUFFER, REMOTE_WINDOW, RangeFile, StreamFile
from .ranges import MemoryRanges, Window
from .reader import BytesLike, Reader, ranged_chunks, shown, sliced, stream_file
from .tar_stream import StreamTape, TarError, TarWalk

if TYPE_CHECKING:
    from ..engine.source import RangeReader

T = TypeVar("T")
_HEADER_ROOM = 30 + 512
"""Bytes of a local header of a zip entry without its name, most often."""


class Overlay(Reader):
    """A reader over another one.

    Attributes:
        inner: what it lies over.
        max_output_bytes: largest content.
    """

    __slots__ = ("inner", "max_output_bytes")

    def __init__(self, inner: Reader, max_output_bytes: int) -> None:
        check_count("max_output_bytes", max_output_bytes)
        self.inner = inner
        self.max_output_bytes = max_output_bytes

    @property
    def remote(self) -> bool:
        """Whether reading asks a store elsewhere."""
        return getattr(self.inner, "remote", False) is True

    @property
    def native(self) -> bool:
        """Whether what it lies over can be read in parts."""
        return bool(self.inner.capabilities()["ranges"] == "native")

    def read_all(self) -> bytes:
        return bytes(self.read_buffer())

    def read_buffer(self) -> BytesLike:
        with closing(self.chunks()) as chunks:
            return b"".join(chunks)

    def _source(self) -> str:
        return self.inner._source()

    def _ops(self) -> list[str]:
        return [*self.inner._ops(), self._op()]

    def _op(self) -> str:
        raise NotImplementedError

    def _mark(self) -> str:
        """What the URI gains."""
        raise NotImplementedError

    def _place(self) -> dict[str, Any]:
        place = self.inner._place()
        return {**place, "uri": f"{place['uri']}{self._mark()}"}

    def _name(self) -> str:
        """For messages."""
        return str(self._place()["uri"] or self)

    def capabilities(self) -> dict[str, Any]:
        found = self.inner.capabilities()
        if found["ranges"] != "unsupported":
            found["ranges"] = "fallback"
        return {**found, "size": "unknown", "metadata": False, "concurrent_ranges": False}

    def __repr__(self) -> str:
        return shown(self)

    def _state(self) -> tuple[Any, ...]:
        raise NotImplementedError

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._state()

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and isinstance(other, Overlay) and self._state() == other._state()

    def __hash__(self) -> int:
        return hash(self._state())


class DecodedReader(Overlay):
    """A compressed stream, decoded. Made by `Reader.gunzip` and `Reader.zstd_decode`."""

    __slots__ = ("codec",)

    def __init__(self, inner: Reader, codec: str, max_output_bytes: int) -> None:
        super().__init__(inner, max_output_bytes)
        self.codec = codec

    def chunks(self) -> Generator[BytesLike, None, None]:
        with closing(self.inner.chunks()) as packed:
            yield from decoded(packed, self.codec, self._name(), self.max_output_bytes)

    def _op(self) -> str:
        return "gunzip" if self.codec == "gzip" else "zstd_decode"

    def _mark(self) -> str:
        return f"|{self._op()}"

    def _state(self) -> tuple[Any, ...]:
        return self.inner, self.codec, self.max_output_bytes


class EntryReader(Overlay):
    """An entry of an archive: read in parts where the archive can be."""

    __slots__ = ()

    def capabilities(self) -> dict[str, Any]:
        if not self.native:
            return super().capabilities()
        found = self.inner.capabilities()
        return {**found, "ranges": "native", "size": "known", "metadata": False, "concurrent_ranges": True}

    def _current(self, use: Callable[[RangeReader], T]) -> T:
        """What `use` makes of the archive: first by what is remembered of its version, and once more if that is not so any more."""
        try:
            with closing(self.inner.open_ranges(remembered=True)) as ranges:
                return use(ranges)
        except (ChangedError, RangeError):
            with closing(self.inner.open_ranges()) as ranges:
                return use(ranges)

    def _check_size(self, name: str, size: int) -> None:
        if size > self.max_output_bytes:
            raise ResponseTooLargeError(
                f"{self.inner_name()}: the entry {name!r} has {size:,} bytes and max_output_bytes is {self.max_output_bytes:,}"
            )

    def inner_name(self) -> str:
        """Of the archive, for messages."""
        return str(self.inner._place()["uri"] or self.inner)


class TarEntryReader(EntryReader):
    """A file of a tar archive. Made by `Reader.tar_entry` and `Reader.tar_entry_at`."""

    __slots__ = ("entry",)

    def __init__(self, inner: Reader, entry: str | int, max_output_bytes: int) -> None:
        super().__init__(inner, max_output_bytes)
        self.entry = entry

    def open_ranges(self, *, remembered: bool = False) -> RangeReader:
        if not self.native:
            return super().open_ranges()
        archive = self.inner.open_ranges(remembered=remembered)
        try:
            return self._window(archive)
        except BaseException:
            archive.close()
            raise

    def _window(self, archive: RangeReader) -> Window:
        what = self.inner_name()
        name, offset, size = tar_index(archive, what).find(self.entry, what)
        self._check_size(name, size)
        return Window(archive, offset, size)

    def read_buffer(self) -> BytesLike:
        if not self.native:
            return super().read_buffer()

        def read(archive: RangeReader) -> BytesLike:
            window = self._window(archive)
            return window.read(0, window.size)

        return self._current(read)

    def _part(self, start: int, length: int) -> BytesLike:
        def read(archive: RangeReader) -> BytesLike:
            window = self._window(archive)
            return window.read(min(start, window.size), max(0, min(length, window.size - start)))

        return self._current(read)

    def chunks(self) -> Generator[BytesLike, None, None]:
        if self.native:
            with closing(self.open_ranges()) as ranges:
                yield from ranged_chunks(ranges)
            return
        with closing(self.inner.chunks()) as chunks:
            yield from self._streamed(StreamTape(chunks))

    def _streamed(self, tape: StreamTape) -> Iterator[BytesLike]:
        """The entry out of an archive that is read forwards: to its end, so that a name that is there twice, or the end cut off,
        is told here too."""
        archive = self.inner_name()
        walk = TarWalk(tape, archive)
        known: dict[str, None] = {}
        found = False
        while (entry := walk.next()) is not None:
            if entry.kind == "other":
                continue
            check_tar_entry(entry, known, archive)
            number = len(known)
            known[entry.name] = None
            if self.entry not in (entry.name, number):
                continue
            if entry.kind == "sparse":
                raise sparse(entry.name, archive)
            self._check_size(entry.name, entry.size)
            found = True
            left = entry.size
            while left:
                piece = tape.read(min(left, STEP))
                if not piece:
                    raise TarError(f"{archive} is cut off in the entry {entry.name!r}")
                left -= len(piece)
                yield piece
        if not found:
            raise missing_entry(archive, self.entry, list(known))

    def _op(self) -> str:
        return f"tar_entry:{self.entry}" if isinstance(self.entry, str) else f"tar_entry_at:{self.entry}"

    def _mark(self) -> str:
        return f"#tar:{self.entry}" if isinstance(self.entry, str) else f"#tar[{self.entry}]"

    def _state(self) -> tuple[Any, ...]:
        return self.inner, self.entry, self.max_output_bytes


class ZipEntryReader(EntryReader):
    """A file of a zip archive. Made by `Reader.zip_entry`."""

    __slots__ = ("entry",)

    def __init__(self, inner: Reader, entry: str, max_output_bytes: int) -> None:
        super().__init__(inner, max_output_bytes)
        self.entry = entry

    def _archive(self, remembered: bool = False) -> RangeReader:
        return self.inner.open_ranges(remembered=remembered) if self.native else StreamRanges(self.inner.chunks)

    def _find(self, archive: RangeReader) -> ZipEntry:
        def open_file() -> io.BufferedReader:
            return io.BufferedReader(RangeFile(Lent(archive), REMOTE_WINDOW if self.remote else BUFFER))

        entry = zip_index(archive.identity, open_file, self.inner_name()).find(self.entry, self.inner_name())
        self._check_size(entry.name, entry.size)
        return entry

    def _stored(self, archive: RangeReader, entry: ZipEntry) -> Window | None:
        """The content where it is not compressed."""
        offset = place_zip_entry(entry, archive.read, self.inner_name())
        return Window(archive, offset, entry.size) if entry.method == zipfile.ZIP_STORED else None

    def _content(self, archive: RangeReader) -> Iterator[BytesLike]:
        entry = self._find(archive)
        # The header and what follows it in one request; how long the header is, is not known before.
        begin = entry.header
        likely = _HEADER_ROOM + len(entry.raw_name) + entry.packed
        block: BytesLike = b""
        if 0 <= begin < entry.end <= archive.size:
            block = archive.read(begin, min(likely, STEP, entry.end - begin))

        def read(offset: int, size: int) -> BytesLike:
            if begin <= offset and offset + size <= begin + len(block):
                return memoryview(block)[offset - begin :][:size]
            return archive.read(offset, size)

        offset = place_zip_entry(entry, read, self.inner_name())
        end = offset + entry.packed

        def packed() -> Iterator[BytesLike]:
            at = offset
            while at < end:
                inside = begin + len(block) - at
                size = min(end - at, inside if inside > 0 else STEP)
                yield read(at, size)
                at += size

        return unpacked_entry(entry, packed(), self.inner_name())

    def read_buffer(self) -> BytesLike:
        def read(archive: RangeReader) -> BytesLike:
            pieces = list(self._content(archive))
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)

        if self.native:
            return self._current(read)
        with closing(self._archive()) as archive:
            return read(archive)

    def _part(self, start: int, length: int) -> BytesLike:
        def read(archive: RangeReader) -> BytesLike:
            window = self._stored(archive, self._find(archive))
            if window is not None:
                return window.read(min(start, window.size), max(0, min(length, window.size - start)))
            return b"".join(sliced(self._content(archive), start, length))

        return self._current(read)

    def _fill(self, out: memoryview, start: int) -> int:
        data = self._part(start, len(out))
        out[: len(data)] = data
        return len(data)

    def chunks(self) -> Generator[BytesLike, None, None]:
        with closing(self._archive()) as archive:
            yield from self._content(archive)

    def open_ranges(self, *, remembered: bool = False) -> RangeReader:
        if self.native:
            archive = self._archive(remembered)
            try:
                window = self._stored(archive, self._find(archive))
            except BaseException:
                archive.close()
                raise
            if window is not None:
                return window
            archive.close()
        return MemoryRanges(self.read_buffer())

    def open(self, buffer_size: int | None = None) -> io.BufferedReader:
        if self.native:
            with closing(self._archive()) as archive:
                if self._find(archive).method == zipfile.ZIP_STORED:
                    return super().open(buffer_size)
        return stream_file(self, buffer_size)

    def _op(self) -> str:
        return f"zip_entry:{self.entry}"

    def _mark(self) -> str:
        return f"#zip:{self.entry}"

    def _state(self) -> tuple[Any, ...]:
        return self.inner, self.entry, self.max_output_bytes


class Lent:
    """Another's ranges, which are not closed with it; attributes and methods as `RangeReader`."""

    def __init__(self, ranges: RangeReader) -> None:
        self.size, self.identity = ranges.size, ranges.identity
        self.read, self.read_into = ranges.read, ranges.read_into

    def close(self) -> None:
        """They are still needed."""


class StreamRanges:
    """Parts of a stream: forwards it is read, for a way back it starts over.

    Attributes:
        size: known once the stream was read to its end.
        identity: None.
    """

    identity: Hashable | None = None

    def __init__(self, start: Callable[[], Iterator[BytesLike]]) -> None:
        self._file = StreamFile(start)
        self.size = self._file.seek(0, io.SEEK_END)

    def read(self, offset: int, length: int) -> bytes:
        """`length` bytes from `offset`."""
        out = bytearray(length)
        self.read_into(offset, memoryview(out))
        return bytes(out)

    def read_into(self, offset: int, out: memoryview) -> None:
        """Fill `out`."""
        self._file.seek(offset)
        done = 0
        while done < len(out):
            more = self._file.readinto(out[done:])
            if not more:
                raise ReadError(f"{len(out)} bytes at {offset} lie outside the {self.size} bytes of the stream")
            done += more

    def close(self) -> None:
        """Leave the stream."""
        self._file.close()
