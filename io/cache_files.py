"""The files of a local cache: entries that show when they were cut or altered, one writer per entry, a bound on their bytes.

Below the directory of the cache lies `dataio-v1/`, private to its user:

- `ab/<name>`: an entry. The object's bytes, then a JSON footer (`Footer`), its length, and a mark. The modification time is
  set to what the footer says, so that a later write shows; the access time is when the entry was last used.
- `ab/<name>.part`: an entry being written. Its lock (flock) is the right to write that entry; when it is complete it is
  renamed. The kernel gives the lock back when its holder dies, and the next one starts the same file anew.
- `usage`: bytes of all these files, 8 bytes, and the lock on that number. A process that dies leaves it too high, never too
  low; the next eviction counts again.

Locks are polled with a bound: a process that was stopped holds up nobody for ever. `filelock` does the same with a file
per lock that stays behind, at 570 us for a lock against 6 us (measured); its own files are the only state here.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import stat
import struct
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

from ..engine.forks import in_child

FOLDER = "dataio-v1"
_MARK = b"dataio\x00\x01"
_END = struct.Struct(">I8s")
_LARGEST_FOOTER = 1 << 16
_USUAL_FOOTER = 1 << 10
_PIECE = 1 << 20
_PART = ".part"
_WAIT_FOR_WRITER = 300.0
"""Seconds that a reader waits for another one's download before it reads for itself."""
_WAIT_FOR_USAGE = 10.0
"""Seconds to wait for the count of bytes; an eviction over a million entries takes half of it."""
_KEPT_AFTER_EVICTION = 0.9
"""Share of the limit that an eviction leaves, so that not every new entry makes one."""
_TOUCH_AFTER = 1.0
"""Seconds between two notes that an entry was used."""


@dataclass(frozen=True, slots=True)
class Footer:
    """What is known of an entry beside its bytes.

    Attributes:
        name: of the entry, so that a file that was moved is not taken for another object.
        uri: where it came from, secrets masked; for people.
        size: bytes of the object.
        digest: SHA-256 of them, in hexadecimal.
        etag, modified, content_type, headers, url, http_version: as in `ObjectInfo`.
        fetched: when its request began, in seconds since 1970.
    """

    name: str
    uri: str
    size: int
    digest: str
    etag: str | None
    modified: float | None
    content_type: str | None
    headers: dict[str, str]
    url: str | None
    http_version: str | None
    fetched: float

    @property
    def stamp(self) -> int:
        """The modification time of the file, in nanoseconds: whole even seconds, which every file system keeps."""
        return int(self.fetched) // 2 * 2 * 10**9

    def pack(self) -> bytes:
        """The bytes behind the object's."""
        text = json.dumps({name: getattr(self, name) for name in _FIELDS}).encode()
        return text + _END.pack(len(text), _MARK)


_FIELDS = tuple(field.name for field in fields(Footer))


class Entry:
    """A whole object in an open file, which stays readable when the entry is evicted or replaced."""

    def __init__(self, fd: int, footer: Footer) -> None:
        self._fd = fd
        self.footer = footer

    def read(self, offset: int = 0, size: int | None = None) -> bytes:
        """Bytes from `offset`, cut short at the end of the object."""
        wanted = self._within(offset, size)
        data = os.pread(self._fd, wanted, offset) if wanted else b""
        if len(data) == wanted:
            return data
        out = bytearray(wanted)  # one call gives 2 GiB at most
        self.read_into(offset, memoryview(out))
        return bytes(out)

    def read_into(self, offset: int, out: memoryview) -> int:
        """Fill `out` from `offset`; how many bytes were there."""
        wanted = self._within(offset, len(out))
        done = 0
        while done < wanted:
            count = os.preadv(self._fd, [out[done:wanted]], offset + done)
            if not count:
                raise OSError(errno.EIO, f"the cached file of {self.footer.uri} was cut while it was read")
            done += count
        return done

    def digest(self) -> str:
        """SHA-256 of the object's bytes as they are in the file now."""
        found, at = hashlib.sha256(), 0
        while data := self.read(at, _PIECE):
            found.update(data)
            at += len(data)
        return found.hexdigest()

    def _within(self, offset: int, size: int | None) -> int:
        there = max(0, self.footer.size - offset)
        return there if size is None else min(size, there)

    def close(self) -> None:
        """More than once is fine."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> Entry:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    __del__ = close


class Part:
    """An entry that this thread alone may write, until it is finished or given up."""

    def __init__(self, folder: CacheFolder, name: str, fd: int) -> None:
        self._folder = folder
        self.name = name
        self._fd = fd
        self._reserved = 0
        self._open = True

    def reserve(self, size: int) -> bool:
        """Make room for `size` bytes, in the limit and on the disk; False when there is none, which gives the part up."""
        try:
            with self._folder.usage() as usage:
                if not usage.fits(size):
                    raise _NoRoomError
                os.ftruncate(self._fd, size)
                usage.add(size)
            self._reserved = size
            _allocate(self._fd, size)
        except (_NoRoomError, OSError) as error:
            self.give_up()
            if isinstance(error, OSError):
                self._folder.complain(error)
            return False
        return True

    def write(self, data: Any, offset: int) -> None:
        """Put bytes in their place."""
        view = memoryview(data).cast("B")
        while view:
            done = os.pwrite(self._fd, view, offset)
            view, offset = view[done:], offset + done

    def finish(self, footer: Footer) -> Entry:
        """The entry, which others find from now on."""
        path = self._folder.path(self.name)
        self.write(footer.pack(), footer.size)
        os.utime(self._fd, ns=(time.time_ns(), footer.stamp))
        with self._folder.usage() as usage:
            usage.discard(path)
            os.rename(path + _PART, path)
        entry = Entry(os.dup(self._fd), footer)
        self._close()
        return entry

    def give_up(self) -> None:
        """Leave nothing behind; more than once, and after `finish`, is fine."""
        if self._open:
            self._folder.discard(self._folder.path(self.name) + _PART, counted=self._reserved > 0)
            self._close()

    def _close(self) -> None:
        self._open = False
        fcntl.flock(self._fd, fcntl.LOCK_UN)  # a child that was forked meanwhile holds the file open too
        os.close(self._fd)


class CacheFolder:
    """The entries below a directory.

    Attributes:
        opened: when this process began to use it, in seconds since 1970.
        limit: bytes of all entries, None for no limit.
    """

    def __init__(self, directory: str, limit: int | None) -> None:
        self._root = os.path.join(directory, FOLDER)
        self.limit = limit
        self._complained = False
        self._trusted = False
        self._begin()
        in_child(self, CacheFolder._begin)

    def _begin(self) -> None:
        self.opened = time.time()
        self.checked: dict[int, None] = {}

    def path(self, name: str) -> str:
        return os.path.join(self._root, name[:2], name)

    def complain(self, error: OSError) -> None:
        """Say once that the cache does not work as it should; reads go on without it."""
        if not self._complained:
            self._complained = True
            text = f"the cache in {self._root} cannot be used, reads go on without it: {error.strerror or error}"
            warnings.warn(text, RuntimeWarning, stacklevel=2)

    # ---------------------------------------------------------------- reading

    def find(self, name: str, *, verify: bool) -> Entry | None:
        """The entry of that name, None when there is none that is whole.

        Args:
            verify: hash its bytes too, to notice what a disk altered by itself.
        """
        try:
            if not self._trusted:
                self._check(self._root)
            fd = os.open(self.path(name), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return None
        except OSError as error:
            self.complain(error)
            return None
        try:
            footer = self._footer(fd, name)
        except (OSError, ValueError, TypeError, KeyError):
            footer = None
        if footer is None:
            os.close(fd)
            return None
        entry = Entry(fd, footer)
        if verify and entry.digest() != footer.digest:
            entry.close()
            return None
        return entry

    def _footer(self, fd: int, name: str) -> Footer | None:
        facts = os.fstat(fd)
        if facts.st_size < _END.size or not stat.S_ISREG(facts.st_mode):
            return None
        begin = max(0, facts.st_size - _USUAL_FOOTER)
        tail = os.pread(fd, _USUAL_FOOTER, begin)
        length, mark = _END.unpack(tail[-_END.size :])
        size = facts.st_size - _END.size - length
        if mark != _MARK or size < 0 or length > _LARGEST_FOOTER:
            return None
        text = os.pread(fd, length, size) if size < begin else tail[size - begin : -_END.size]
        footer = Footer(**json.loads(text))
        if footer.name != name or footer.size != size or footer.stamp != facts.st_mtime_ns:
            return None
        if time.time() - facts.st_atime > _TOUCH_AFTER:
            os.utime(fd, ns=(time.time_ns(), footer.stamp))
        return footer

    # ---------------------------------------------------------------- writing

    @contextmanager
    def writing(self, name: str) -> Iterator[Part | None]:
        """The right to write an entry, once others that write it are done; None when the cache cannot be written."""
        try:
            part = self._begin_part(name)
        except OSError as error:
            self.complain(error)
            part = None
        try:
            yield part
        finally:
            if part is not None:
                part.give_up()

    def _begin_part(self, name: str) -> Part:
        path = self.path(name) + _PART
        deadline = time.monotonic() + _WAIT_FOR_WRITER
        while True:
            fd = self._open_private(path)
            try:
                _lock(fd, deadline, longest=0.05)
                if _is_at(fd, path):
                    os.ftruncate(fd, 0)  # what a process that died had written
                    return Part(self, name, fd)
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)  # it was renamed or removed while we waited

    def _open_private(self, path: str) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        if self._trusted:
            try:
                return os.open(path, flags, 0o600)
            except FileNotFoundError:
                pass
        os.makedirs(os.path.dirname(self._root), exist_ok=True)
        _make_folder(self._root)
        self._check(self._root)
        _make_folder(os.path.dirname(path))
        return os.open(path, flags, 0o600)

    def _check(self, folder: str) -> None:
        """Refuse a folder in which somebody else could put bytes that would be taken for those of an object."""
        facts = os.lstat(folder)
        if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid() or facts.st_mode & 0o022:
            raise PermissionError(errno.EPERM, "others may write there; it wants a folder of this user's own", folder)
        self._trusted = True

    def remove(self, name: str) -> None:
        """Drop an entry, and what others were writing for it until now."""
        path = self.path(name)
        if not os.path.lexists(path) and not os.path.lexists(path + _PART):
            return
        with self.writing(name):
            self.discard(path)

    # ---------------------------------------------------------------- the limit

    @contextmanager
    def usage(self) -> Iterator[_Usage]:
        """The bytes in use, while nobody else may change them or the files that they count.

        Raises:
            OSError: the count cannot be had; `TimeoutError` when another process holds it.
        """
        fd = self._open_private(os.path.join(self._root, "usage"))
        try:
            _lock(fd, time.monotonic() + _WAIT_FOR_USAGE, longest=0.002)
            told = os.pread(fd, 8, 0)
            usage = _Usage(self, int.from_bytes(told, "big") if len(told) == 8 else self.scan()[0])
            yield usage
            os.pwrite(fd, max(0, usage.bytes).to_bytes(8, "big"), 0)
        finally:
            fcntl.flock(fd, fcntl.LOCK_UN)
            os.close(fd)

    def discard(self, path: str, *, counted: bool = True) -> None:
        """Remove a file of the cache, and take it off the count."""
        try:
            if counted:
                with self.usage() as usage:
                    usage.discard(path)
            else:
                _unlink(path)
        except OSError as error:
            self.complain(error)

    def scan(self) -> tuple[int, list[tuple[float, int, str]]]:
        """Bytes of all files, and (last use, size, path) of the entries; parts whose writer died are removed."""
        total, entries = 0, []
        for folder in os.scandir(self._root):
            if len(folder.name) != 2 or not folder.is_dir(follow_symlinks=False):
                continue
            for file in os.scandir(folder.path):
                try:
                    facts = file.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                if file.name.endswith(_PART):
                    total += 0 if _removed_stale(file.path) else facts.st_size
                elif stat.S_ISREG(facts.st_mode):
                    total += facts.st_size
                    entries.append((facts.st_atime, facts.st_size, file.path))
        return total, entries


class _NoRoomError(Exception):
    """The limit leaves no room for an entry."""


class _Usage:
    """The bytes in use by a cache, whose lock this thread holds. They may be counted too high, never too low."""

    def __init__(self, folder: CacheFolder, count: int) -> None:
        self._folder = folder
        self.bytes = count

    def add(self, change: int) -> None:
        self.bytes += change

    def discard(self, path: str) -> None:
        """Remove a file that is counted, if it is there."""
        try:
            size = os.lstat(path).st_size
            os.unlink(path)
        except FileNotFoundError:
            return
        self.bytes -= size

    def fits(self, wanted: int) -> bool:
        """Whether `wanted` more bytes are within the limit, once what was not used for longest is removed."""
        limit = self._folder.limit
        if limit is None or self.bytes + wanted <= limit:
            return True
        if wanted > limit:
            return False
        self.bytes, entries = self._folder.scan()
        goal = min(limit - wanted, int(limit * _KEPT_AFTER_EVICTION))
        for _, _, path in sorted(entries):
            if self.bytes <= goal:
                break
            self.discard(path)
        return self.bytes + wanted <= limit


def _make_folder(path: str) -> None:
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass


def _lock(fd: int, deadline: float, *, longest: float) -> None:
    """Take the lock of an open file.

    Raises:
        TimeoutError: somebody else held it until `deadline`.
    """
    wait = 0.0005
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise TimeoutError(errno.ETIMEDOUT, "another process holds its lock") from None
        time.sleep(wait)
        wait = min(longest, wait * 1.5)


def _is_at(fd: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.lstat(path))
    except FileNotFoundError:
        return False


def _removed_stale(path: str) -> bool:
    """Remove a part that nobody writes; whether it is gone."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_at(fd, path):
            os.unlink(path)
        return True
    except BlockingIOError:
        return False
    finally:
        os.close(fd)


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


def _allocate(fd: int, size: int) -> None:
    """Give a file its size, and its blocks where the file system can, so that a full disk shows before the download."""
    if hasattr(os, "posix_fallocate") and size:
        try:
            os.posix_fallocate(fd, 0, size)
            return
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise
    os.ftruncate(fd, size)
