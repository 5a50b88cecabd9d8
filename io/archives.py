"""Directories of tar and zip archives: where the entries lie, read by ranges and remembered by version.

Names are only names; nothing is extracted by them. What an archive says is checked before it is believed: sizes against the
archive, entries against each other, and how much a directory may take.
"""

from __future__ import annotations

import io
import threading
import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from ..engine.errors import OpError, did_you_mean
from ..engine.forks import in_child
from .codecs import CodecError, decoded
from .ranges import FileRanges, MemoryRanges
from .settings import ARCHIVE_INDEXES, ZIP_DIRECTORY, ZIP_ENTRIES
from .tar_stream import RangeTape, TarError, TarHeader, TarWalk

if TYPE_CHECKING:
    from ..engine.source import RangeReader

BytesLike: TypeAlias = bytes | bytearray | memoryview
T = TypeVar("T")

TAR_ENTRIES = 1 << 22
"""Most entries of a tar archive: a directory of so many takes about 1 GB."""
KEPT_ENTRIES = 1 << 21
"""Entries of all directories that are remembered; those used least lately go."""
LOCAL_WINDOW = 1 << 13
"""Bytes read at a time where the headers of a local tar are looked for."""
STEP = 1 << 22
"""Bytes of one step through an entry of a zip archive."""


class ArchiveError(OpError):
    """What is no archive, is damaged, or does not hold what was asked for."""


class _Indexes:
    """Directories by the version of their archive. One thread reads a directory, the others that want it wait for it."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Hashable, Any] = OrderedDict()
        self._entries = 0
        self._reading: dict[Hashable, threading.Lock] = {}
        self._lock = threading.Lock()
        in_child(self, _Indexes._renew)

    def _renew(self) -> None:
        """Threads that were reading a directory are not there in a forked child."""
        self._lock = threading.Lock()
        self._reading = {}

    def get(self, identity: Hashable | None, make: Callable[[], T]) -> T:
        """What `make` gives, or gave for the same archive; with None for its version nothing is remembered."""
        if identity is None:
            return make()
        with self._lock:
            if identity in self._kept:
                self._kept.move_to_end(identity)
                found: T = self._kept[identity]
                return found
            reading = self._reading.setdefault(identity, threading.Lock())
        with reading:
            with self._lock:
                if identity in self._kept:
                    found = self._kept[identity]
                    return found
            try:
                made = make()
            finally:
                with self._lock:
                    self._reading.pop(identity, None)
            self._keep(identity, made)
            return made

    def _keep(self, identity: Hashable, made: Any) -> None:
        with self._lock:
            self._kept[identity] = made
            self._entries += len(made)
            while len(self._kept) > max(1, ARCHIVE_INDEXES.get()) or (self._entries > KEPT_ENTRIES and len(self._kept) > 1):
                self._entries -= len(self._kept.popitem(last=False)[1])

    def clear(self) -> None:
        with self._lock:
            self._kept.clear()
            self._entries = 0


_indexes = _Indexes()


def forget_archives() -> None:
    """Drop all directories that are remembered."""
    _indexes.clear()


def missing_entry(archive: str, name: str | int, names: list[str]) -> ArchiveError:
    """The error of an entry that is not there."""
    if isinstance(name, int):
        return ArchiveError(f"{archive} has no entry {name}: it has {len(names):,}, counted from 0")
    return ArchiveError(f"{archive} has no entry {name!r}{did_you_mean(name, names[:1000])}; it has {len(names):,}")


# --------------------------------------------------------------------------- tar


class TarIndex:
    """The files of a tar archive, in its order."""

    def __init__(self) -> None:
        self._names: dict[str, int] = {}
        self._entries: list[tuple[str, int, int]] = []

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, entry: TarHeader, archive: str) -> None:
        """Raises: TarError: the name was there before, the file has holes, or there are too many."""
        check_tar_entry(entry, self._names, archive)
        self._names[entry.name] = len(self._entries)
        self._entries.append((entry.name, entry.offset, -1 if entry.kind == "sparse" else entry.size))

    def find(self, name: str | int, archive: str) -> tuple[str, int, int]:
        """Name, offset and size of an entry.

        Raises:
            ArchiveError: no such entry.
            TarError: it has holes.
        """
        number = self._names.get(name) if isinstance(name, str) else name
        if number is None or number >= len(self._entries):
            raise missing_entry(archive, name, list(self._names))
        found = self._entries[number]
        if found[2] < 0:
            raise sparse(found[0], archive)
        return found


def check_tar_entry(entry: TarHeader, known: Any, archive: str) -> None:
    """Refuse an entry whose name was there before, and one too many."""
    if entry.name in known:
        raise TarError(f"{archive} has the entry {entry.name!r} twice")
    if len(known) >= TAR_ENTRIES:
        raise TarError(f"{archive} has more than {TAR_ENTRIES:,} entries")


def sparse(name: str, archive: str) -> TarError:
    """The error of a file with holes."""
    return TarError(f"{archive}: {name!r} is a sparse file, whose content is not stored as it is")


def tar_index(ranges: RangeReader, archive: str) -> TarIndex:
    """The directory of a plain tar: its headers, one after the other.

    Raises:
        TarError: no tar, damaged, cut off; a name twice.
    """
    return _indexes.get(None if ranges.identity is None else ("tar", ranges.identity), lambda: _walked(ranges, archive))


def _walked(ranges: RangeReader, archive: str) -> TarIndex:
    def read(offset: int, count: int) -> BytesLike:
        return ranges.read(offset, min(count, ranges.size - offset))

    local = isinstance(ranges, (FileRanges, MemoryRanges))
    tape = RangeTape(read, ranges.size, LOCAL_WINDOW) if local else RangeTape(read, ranges.size)
    walk, index = TarWalk(tape, archive), TarIndex()
    while (entry := walk.next()) is not None:
        if entry.kind != "other":
            index.add(entry, archive)
    return index


# --------------------------------------------------------------------------- zip

_LOCAL_HEADER = 30
_ENCRYPTED, _PATCHED, _STRONG = 0x1, 0x20, 0x40
_METHODS = {zipfile.ZIP_STORED: "", zipfile.ZIP_DEFLATED: "deflate", zipfile.ZIP_BZIP2: "bzip2", zipfile.ZIP_LZMA: "lzma"}
_KNOWN_METHODS = {9: "Deflate64", 93: "zstd", 95: "xz", 98: "PPMd", 99: "AES encryption"}


@dataclass(slots=True)
class ZipEntry:
    """What the directory says of a file.

    Attributes:
        name: as it was decoded.
        raw_name: as it is stored.
        header: where its local header begins in the archive.
        end: where the next entry, or the directory, begins.
        packed, size: bytes of the compressed and of the whole content.
        method, flags, crc: as stored.
        offset: where its content begins; None before its local header was read.
    """

    name: str
    raw_name: bytes
    header: int
    end: int
    packed: int
    size: int
    method: int
    flags: int
    crc: int
    offset: int | None = None


class ZipIndex:
    """The files of a zip archive by name; `entries` has the last one first."""

    def __init__(self, entries: dict[str, ZipEntry], twice: set[str]) -> None:
        self._entries = entries
        self._twice = twice

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[ZipEntry]:
        """The files in the order of the archive."""
        return reversed(self._entries.values())

    def find(self, name: str, archive: str) -> ZipEntry:
        """Raises: ArchiveError: no such entry, or several."""
        entry = self._entries.get(name)
        if entry is None:
            raise missing_entry(archive, name, list(self._entries))
        if name in self._twice:
            raise ArchiveError(f"{archive} has the entry {name!r} twice")
        return entry


class _Directory(io.BufferedIOBase):
    """The archive for `zipfile`, which reads the directory at once, whatever its size is said to be."""

    def __init__(self, file: io.BufferedIOBase, archive: str) -> None:
        super().__init__()
        self._file, self._archive = file, archive

    def read(self, size: int | None = -1, /) -> bytes:
        most = ZIP_DIRECTORY.get()
        if size is not None and size > most:
            raise ArchiveError(
                f"{self._archive} has a directory of {size:,} bytes; DATAIO_ZIP_CENTRAL_DIRECTORY_MAX_BYTES is {most:,}"
            )
        data = self._file.read(size)
        count = data.count(zipfile.stringCentralDir)  # type: ignore[attr-defined]
        if count > ZIP_ENTRIES.get():
            raise ArchiveError(f"{self._archive} has {count:,} entries; DATAIO_ZIP_MAX_ENTRIES is {ZIP_ENTRIES.get():,}")
        return data

    def seek(self, offset: int, whence: int = 0, /) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True


def zip_index(identity: Hashable | None, open_file: Callable[[], io.BufferedIOBase], archive: str) -> ZipIndex:
    """The directory of a zip archive.

    Args:
        identity: of the archive's version; None where nothing is to be remembered.
        open_file: opens the archive as a file, where its directory is not remembered.

    Raises:
        ArchiveError: no zip, damaged, or a directory over the limits.
    """
    return _indexes.get(None if identity is None else ("zip", identity), lambda: _listed(open_file, archive))


def _listed(open_file: Callable[[], io.BufferedIOBase], archive: str) -> ZipIndex:
    try:
        with open_file() as file, zipfile.ZipFile(_Directory(file, archive)) as found:
            infos, directory = found.infolist(), found.start_dir
    except (zipfile.BadZipFile, NotImplementedError, ValueError, EOFError) as error:
        if isinstance(error, ArchiveError):
            raise
        raise ArchiveError(f"{archive} is no zip archive, or damaged: {error}") from error
    infos.sort(key=lambda info: info.header_offset)
    entries: dict[str, ZipEntry] = {}
    twice: set[str] = set()
    end = directory
    last: int | None = None
    for info in reversed(infos):  # from the back, so that each knows where the next one begins
        if last is not None and info.header_offset < last:
            end = min(last, directory)  # one that claims to lie behind the directory is no bound
        last = info.header_offset
        if info.filename.endswith("/"):  # `is_dir` fails for an empty name
            continue
        if info.filename in entries:
            twice.add(info.filename)
        entries[info.filename] = ZipEntry(
            info.filename,
            info.orig_filename.encode("utf-8" if info.flag_bits & 0x800 else "cp437"),
            info.header_offset,
            end,
            info.compress_size,
            info.file_size,
            info.compress_type,
            info.flag_bits,
            info.CRC,
        )
    return ZipIndex(entries, twice)


def place_zip_entry(entry: ZipEntry, read: Callable[[int, int], BytesLike], archive: str) -> int:
    """Where the content of an entry begins, once its local header was held against the directory.

    Args:
        read: `read(offset, size)` gives a part of the archive.

    Raises:
        ArchiveError: encrypted, or the header is not the one that the directory tells of.
    """
    if entry.offset is not None:
        return entry.offset
    what = f"{archive}: the entry {entry.name!r}"
    if entry.flags & (_ENCRYPTED | _STRONG):
        raise ArchiveError(f"{what} is encrypted")
    if entry.flags & _PATCHED:
        raise ArchiveError(f"{what} is a patch, which is not read")
    if entry.method not in _METHODS:
        kind = _KNOWN_METHODS.get(entry.method, f"method {entry.method}")
        raise ArchiveError(f"{what} is compressed by {kind}; stored, deflate, bzip2 and LZMA entries are read")
    if entry.header < 0 or entry.header + _LOCAL_HEADER > entry.end:
        raise ArchiveError(f"{what} is damaged: it has no room at byte {entry.header:,}")
    length = _LOCAL_HEADER + len(entry.raw_name)
    header = bytes(read(entry.header, min(length, entry.end - entry.header)))
    if not header.startswith(zipfile.stringFileHeader):  # type: ignore[attr-defined]
        raise ArchiveError(f"{what} is damaged: no header at byte {entry.header:,}")
    flags = int.from_bytes(header[6:8], "little")
    method = int.from_bytes(header[8:10], "little")
    names, extra = int.from_bytes(header[26:28], "little"), int.from_bytes(header[28:30], "little")
    if header[_LOCAL_HEADER : _LOCAL_HEADER + names] != entry.raw_name:
        raise ArchiveError(f"{what} is damaged: its own header names another file")
    if method != entry.method or (flags ^ entry.flags) & _ENCRYPTED:
        raise ArchiveError(f"{what} is damaged: its own header says otherwise than the directory")
    offset = entry.header + _LOCAL_HEADER + names + extra
    if offset + entry.packed > entry.end:
        raise ArchiveError(f"{what} is damaged: its {entry.packed:,} bytes reach into what follows at byte {entry.end:,}")
    if not entry.method and entry.packed != entry.size:
        raise ArchiveError(f"{what} is damaged: stored in {entry.packed:,} bytes, which are said to be {entry.size:,}")
    entry.offset = offset
    return offset


def unpacked_entry(entry: ZipEntry, packed: Iterator[BytesLike], archive: str) -> Iterator[BytesLike]:
    """The content of an entry in pieces.

    Raises:
        ArchiveError: damaged; another size or checksum than the directory says. Told at the end, and before more comes than
            it says.
    """
    what = f"{archive}: the entry {entry.name!r}"
    crc = total = 0
    chunks = packed
    if entry.method == zipfile.ZIP_LZMA:
        chunks = _as_lzma_file(packed, entry, what)
    pieces: Iterator[BytesLike] = decoded(chunks, _METHODS[entry.method], what) if entry.method else chunks
    try:
        for piece in pieces:
            total += len(piece)
            if total > entry.size:
                raise ArchiveError(f"{what} is damaged: it decodes to more than the {entry.size:,} bytes that it is said to have")
            crc = zlib.crc32(piece, crc)
            yield piece
    except CodecError as error:
        raise ArchiveError(f"{what} is damaged: {error}") from error
    if total != entry.size:
        raise ArchiveError(f"{what} is damaged: it decodes to {total:,} of the {entry.size:,} bytes that it is said to have")
    if crc != entry.crc:
        raise ArchiveError(f"{what} is damaged: its checksum is wrong")


def _as_lzma_file(packed: Iterator[BytesLike], entry: ZipEntry, what: str) -> Iterator[BytesLike]:
    """zip's LZMA as a `.lzma` file: the same stream behind another header (APPNOTE.TXT, 5.8.8)."""
    head = b""
    for chunk in packed:
        head += bytes(chunk)
        if len(head) >= 9:
            break
    if len(head) < 9 or int.from_bytes(head[2:4], "little") != 5:
        raise ArchiveError(f"{what} is damaged: its LZMA properties are missing")
    with_end_mark = entry.flags & 0x2
    yield head[4:9] + (b"\xff" * 8 if with_end_mark else entry.size.to_bytes(8, "little"))
    yield head[9:]
    yield from packed
