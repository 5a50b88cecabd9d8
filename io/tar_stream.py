"""The entries of a tar archive one after the other, from a file or from bytes as they come.

Reads the formats of POSIX (ustar, pax), GNU (long names, large numbers) and V7. Names are only names here: `../x` and
absolute ones are given as they are, and nothing is ever written by them. Sizes are not believed: an entry that claims more than
there is ends in an error when its end is looked for, and nothing is allocated for it before.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from ..engine.errors import OpError
from .resolve import OPEN_FLAGS

BytesLike: TypeAlias = bytes | bytearray | memoryview

BLOCK = 512
NAME_BYTES = 1 << 20
"""Bytes of the extended header (a long name, attributes) of one entry, at most."""
WINDOW = 1 << 18
"""Bytes asked for at a time where headers are read over a network."""
LOCAL_BYTES = 3 * BLOCK
"""Bytes read at a time of a local file: a small entry and the header behind it come with its own, and of large ones little else."""
WIDEST = 1 << 23
"""Bytes asked for at a time where the entries are so small that nothing would be left out."""
_ZEROS = bytes(BLOCK)
_REGULAR = b"\x000\x37"
_WITHOUT_CONTENT = b"123456"  # links, devices, folders, pipes


class TarError(OpError):
    """What is no tar archive, or ends before its end."""


@dataclass(frozen=True, slots=True)
class TarHeader:
    """One entry.

    Attributes:
        name: as it is stored; bytes that are no UTF-8 become surrogates.
        size: bytes of content.
        start: where its headers begin in the archive.
        offset: where its content begins.
        kind: "file"; "sparse" for a file with holes, whose content is not what is stored; "other" for folders, links, devices.
    """

    name: str
    size: int
    start: int
    offset: int
    kind: str


class Tape(Protocol):
    """Bytes that are read forwards.

    Attributes:
        position: of the next byte in the archive.
        size: bytes of the archive, None when that is not known.
    """

    position: int
    size: int | None

    def read(self, count: int) -> bytes:
        """The next bytes; fewer than `count` only at the end."""

    def skip(self, count: int) -> None:
        """Go on behind `count` bytes. May go behind the end: the next read is empty then."""

    def close(self) -> None:
        """Give back what is held."""


class FileTape:
    """A local file: what is skipped is not read, as far as it is no part of a block of `LOCAL_BYTES`."""

    def __init__(self, path: str, position: int = 0) -> None:
        self._descriptor = os.open(path, OPEN_FLAGS)
        self.size: int | None = os.fstat(self._descriptor).st_size
        self.position = position
        self._block = b""
        self._start = 0

    def read(self, count: int) -> bytes:
        inside = self.position - self._start
        if not 0 <= inside <= len(self._block) - count:
            self._block = self._read(max(count, LOCAL_BYTES))
            self._start, inside = self.position, 0
        data = self._block[inside : inside + count]
        self.position += len(data)
        if count > LOCAL_BYTES:
            self._block = b""
        return data

    def _read(self, count: int) -> bytes:
        data = os.pread(self._descriptor, count, self.position)
        while len(data) < count and (more := os.pread(self._descriptor, count - len(data), self.position + len(data))):
            data += more
        return data

    def skip(self, count: int) -> None:
        self.position += count

    def duplicate(self) -> int:
        """Another descriptor of the same file, which its taker closes."""
        return os.dup(self._descriptor)

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        self._block = b""
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()


class StreamTape:
    """Chunks as they come."""

    def __init__(self, chunks: Iterable[BytesLike], position: int = 0, size: int | None = None) -> None:
        self._chunks: Iterator[BytesLike] = iter(chunks)
        self._chunk = memoryview(b"")
        self.position = position
        self.size = size

    def read(self, count: int) -> bytes:
        if len(self._chunk) >= count:
            data = bytes(self._chunk[:count])
            self._chunk = self._chunk[count:]
            self.position += count
            return data
        parts: list[memoryview] = []
        left = count
        while left and self._more():
            parts.append(self._chunk[:left])
            self._chunk = self._chunk[left:]
            left -= len(parts[-1])
        self.position += count - left
        return b"".join(parts)

    def skip(self, count: int) -> None:
        self.position += count
        while count and self._more():
            taken = min(count, len(self._chunk))
            self._chunk = self._chunk[taken:]
            count -= taken

    def _more(self) -> bool:
        """Whether there are bytes at hand, once the next chunk was fetched if need be."""
        while not self._chunk:
            chunk = next(self._chunks, None)
            if chunk is None:
                return False
            self._chunk = memoryview(chunk)
        return True

    def close(self) -> None:
        self._chunk = memoryview(b"")
        close = getattr(self._chunks, "close", None)
        self._chunks = iter(())
        if close is not None:
            close()


class RangeTape:
    """An object of a store, read by requests for windows of it: what is skipped is not asked for.

    Windows double while each begins close behind the one before, so that small entries take few requests.
    """

    def __init__(self, read: Callable[[int, int], BytesLike], size: int, window: int = WINDOW) -> None:
        """`read(offset, size)` gives a part, cut short at the end; at least `window` bytes are asked for at a time."""
        self._read = read
        self._least = self._wanted = window
        self._window = memoryview(b"")
        self._window_start = 0
        self.size: int | None = size
        self.position = 0

    def read(self, count: int) -> bytes:
        inside = self.position - self._window_start
        if not 0 <= inside <= len(self._window) - count:
            if self.size is not None and self.position >= self.size:
                return b""
            skipped = self.position - self._window_start - len(self._window)
            close = self._window and 0 <= skipped < self._least // 2
            self._wanted = min(2 * self._wanted, max(WIDEST, self._least)) if close else self._least
            self._window = memoryview(self._read(self.position, max(count, self._wanted)))
            self._window_start, inside = self.position, 0
        data = bytes(self._window[inside : inside + count])
        self.position += len(data)
        return data

    def skip(self, count: int) -> None:
        self.position += count

    def close(self) -> None:
        self._window = memoryview(b"")


class TarWalk:
    """Goes from entry to entry. `tape` stands at the beginning of the content of the entry that was given last."""

    def __init__(self, tape: Tape, name: str) -> None:
        self.tape = tape
        self._name = name
        self._end = tape.position  # of the current entry, padding included

    def next(self) -> TarHeader | None:
        """The next entry; None at the end of the archive.

        Raises:
            TarError: no tar, a damaged header, or an archive that ends too early.
        """
        tape = self.tape
        if tape.size is not None and self._end > tape.size:
            raise self._truncated()
        tape.skip(self._end - tape.position)
        start = tape.position
        longer: str | None = None
        attributes: dict[str, str] = {}
        while True:
            block = tape.read(BLOCK)
            if len(block) < BLOCK:
                raise self._truncated()
            if block == _ZEROS:
                return None
            self._check(block, tape.position - BLOCK)
            size = self._number(block[124:136], tape.position - BLOCK)
            kind = block[156:157]
            if kind in b"xXgLK":
                content = self._content(size)
                if kind == b"L":
                    longer = _text(content.rstrip(b"\0"))
                elif kind in b"xX":
                    attributes |= self._attributes(content)
                continue
            break
        if kind == b"S" and block[482]:
            while (more := tape.read(BLOCK)) and len(more) == BLOCK and more[504]:  # the map goes on
                pass
        name = attributes.get("GNU.sparse.name") or attributes.get("path") or longer or _name(block)
        if "size" in attributes:
            size = self._decimal(attributes["size"])
        sparse = kind == b"S" or any(key.startswith("GNU.sparse.") for key in attributes)
        stored = 0 if kind in _WITHOUT_CONTENT else size
        self._end = tape.position + -(-stored // BLOCK) * BLOCK
        if kind == b"\0" and name.endswith("/"):
            found = "other"
        else:
            found = "sparse" if sparse else "file" if kind in _REGULAR else "other"
        return TarHeader(name, stored, start, tape.position, found)

    def read(self, entry: TarHeader) -> bytes:
        """The content of the entry that was given last; once.

        Raises:
            TarError: the archive ends before it does.
        """
        data = self.tape.read(entry.size)
        if len(data) < entry.size:
            raise self._truncated()
        return data

    def _content(self, size: int) -> bytes:
        """Of an extended header."""
        if size > NAME_BYTES:
            raise TarError(f"{self._name}: an extended header of {size:,} bytes before byte {self.tape.position:,}; at most {NAME_BYTES:,} are read")
        content = self.tape.read(size)
        self.tape.skip(-size % BLOCK)
        if len(content) < size:
            raise self._truncated()
        return content

    def _truncated(self) -> TarError:
        have = "" if self.tape.size is None else f" of {self.tape.size:,}"
        at = min(self.tape.position, self.tape.position if self.tape.size is None else self.tape.size)
        return TarError(f"{self._name} is cut off: the archive goes on behind byte {at:,}{have}, and its end marker is missing")

    def _check(self, block: bytes, at: int) -> None:
        """The checksum: the sum of the header's bytes, its own field counted as blanks."""
        claimed = self._number(block[148:156], at)
        own = sum(block[148:156])
        # Adler-32's low half is 1 + the sum, modulo 65521: a fifth of the time.
        if zlib.adler32(block) & 0xFFFF == (1 + claimed - 256 + own) % 65521:
            return
        signed = sum(b - 256 if b > 127 else b for b in block[:148] + block[156:]) + 256  # as some old programs did
        if signed != claimed:
            raise TarError(f"{self._name} is no tar archive, or damaged: no header at byte {at:,}")

    def _number(self, field: bytes, at: int) -> int:
        """Octal digits, or GNU's base 256."""
        if field[0] & 0x80:
            if field[0] == 0xFF:
                raise TarError(f"{self._name}: a negative size in the header at byte {at:,}")
            number = int.from_bytes(field[1:], "big") + ((field[0] & 0x7F) << 8 * (len(field) - 1))
        else:
            digits = field.partition(b"\0")[0].strip()
            try:
                number = int(digits, 8) if digits else 0
            except ValueError:
                raise TarError(f"{self._name} is no tar archive, or damaged: no header at byte {at:,}") from None
        if not 0 <= number < 1 << 63:
            raise TarError(f"{self._name}: the header at byte {at:,} claims {number:,} bytes")
        return number

    def _decimal(self, text: str) -> int:
        if not text.isascii() or not text.isdigit() or int(text) >= 1 << 63:
            raise TarError(f"{self._name}: an extended header claims the size {text[:40]!r}")
        return int(text)

    def _attributes(self, content: bytes) -> dict[str, str]:
        """pax: lines of `length key=value`."""
        found: dict[str, str] = {}
        at = 0
        while at < len(content):
            digits, blank, _ = content[at : at + 21].partition(b" ")
            length = int(digits) if blank and digits.isdigit() else 0
            line = content[at + len(digits) + 1 : at + length]
            key, equals, value = line.partition(b"=")
            if not equals or not value.endswith(b"\n"):
                if not content[at:].strip(b"\0"):  # padding of its own
                    break
                raise TarError(f"{self._name}: a damaged extended header before byte {self.tape.position:,}")
            found[_text(key)] = _text(value[:-1])
            at += length
        return found


def _name(block: bytes) -> str:
    name = block[:100].partition(b"\0")[0]
    if block[257:263] == b"ustar\0" and block[345]:
        name = block[345:500].partition(b"\0")[0] + b"/" + name
    return _text(name)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")
