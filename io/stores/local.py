"""Local files by system calls: reads at an offset, writes that appear whole or not at all, trees that are walked once.

Errors are those of the system (`FileNotFoundError`, `IsADirectoryError`, ...), with `errno` and the path in `filename`.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from ..errors import ReadError, ResponseTooLargeError, UriError
from ..resolve import OPEN_ANY, fill
from ..store import Body, BytesLike, ObjectInfo, Store, Upload, check_range
from .leftovers import hold, sweep
from .local_tree import walk

CHUNK = 1 << 20
"""Bytes of one chunk of a body or a copy."""
_ONE_READ = 1 << 30
"""Bytes up to which one call reads all: the system gives at most 2 GiB at a time."""
_OPEN_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class LocalStore(Store):
    """The file system. Keys are paths, taken as they are; relative ones start at the working directory of the moment."""

    scheme = "file"
    name = ""
    streams_writes = True

    # ---------------------------------------------------------------- reading

    def get(
        self,
        key: str,
        offset: int = 0,
        size: int | None = None,
        *,
        if_match: str | None = None,
        headers: Mapping[str, str] | None = None,
        limit: int | None = None,
    ) -> BytesLike:
        """As `Store.get`; a range behind the end is empty, as it is for Python's files.

        Raises:
            IsADirectoryError: a folder.
            OSError: a pipe, socket or device.
            ReadError: the file became shorter while it was read.
        """
        self._plain(if_match, headers)
        descriptor, info = _opened(key, offset, size)
        try:
            wanted = _inside(info, offset, size)
            _within(limit, wanted, key)
            if wanted == 0 and info.st_size == 0 and size != 0:
                return _read_unsized(descriptor, offset, size, limit, key)
            if wanted <= _ONE_READ:
                data = os.pread(descriptor, wanted, offset)
                if len(data) == wanted:
                    return data
            whole = bytearray(wanted)
            fill(descriptor, key, memoryview(whole), 0, offset)
            return whole
        finally:
            os.close(descriptor)

    def get_into(self, key: str, offset: int, out: memoryview, *, if_match: str | None = None) -> int:
        self._plain(if_match, None)
        descriptor, info = _opened(key, offset, len(out))
        try:
            wanted = _inside(info, offset, len(out))
            fill(descriptor, key, out[:wanted], 0, offset)
            return wanted
        finally:
            os.close(descriptor)

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]], *, if_match: str | None = None) -> list[BytesLike]:
        """All out of one opened file, so of one version of it where files are replaced whole."""
        self._plain(if_match, None)
        for offset, size in ranges:
            check_range(offset, size, key)
        if not ranges:
            return []
        descriptor, info = _opened(key, 0, None)
        try:
            out: list[BytesLike] = []
            for offset, size in ranges:
                part = bytearray(_inside(info, offset, size))
                fill(descriptor, key, memoryview(part), 0, offset)
                out.append(part)
            return out
        finally:
            os.close(descriptor)

    def open(
        self,
        key: str,
        offset: int = 0,
        size: int | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        limit: int | None = None,
    ) -> Body:
        """As `Store.open`; a file that grows meanwhile is read up to the size that it had.

        Raises:
            as `get` does; a file that became shorter raises ReadError while it is read.
        """
        self._plain(None, headers)
        descriptor, info = _opened(key, offset, size)
        file = os.fdopen(descriptor, "rb", buffering=0)  # closes itself should the body be forgotten
        try:
            wanted = _inside(info, offset, size)
            _within(limit, wanted, key)
        except BaseException:
            file.close()
            raise

        def chunks() -> Iterator[bytes]:
            with file:
                if info.st_size == 0 and size != 0:
                    if data := _read_unsized(descriptor, offset, size, limit, key):
                        yield data
                    return
                at, end = offset, offset + wanted
                while at < end:
                    chunk = os.pread(file.fileno(), min(CHUNK, end - at), at)
                    if not chunk:
                        raise ReadError(f"{key!r} ended at byte {at} while it was read")
                    yield chunk
                    at += len(chunk)

        return Body(_info(key, info), chunks(), file.close)

    def head(self, key: str, *, headers: Mapping[str, str] | None = None) -> ObjectInfo:
        """As `Store.head`; a folder answers too, with `is_prefix` set."""
        self._plain(None, headers)
        return _info(key, os.stat(key))

    def exists(self, key: str, *, headers: Mapping[str, str] | None = None) -> bool:
        """Whether there is a file or folder; a link that leads nowhere is none.

        Raises:
            PermissionError: a folder on the way may not be searched.
            OSError: a loop of links, a name too long.
        """
        self._plain(None, headers)
        return _stat(key) is not None

    def list(self, prefix: str, *, delimited: bool = False) -> Iterator[ObjectInfo]:
        """The files whose paths begin with `prefix`, a plain string, sorted by code points; hidden ones too.

        Links are followed; one that leads back to a folder above it, or nowhere, is left out, as are pipes, sockets and
        devices. Empty folders are told by a delimited listing only.

        Raises:
            PermissionError: a folder that may not be read.
        """
        cut = prefix.rfind("/") + 1
        return walk(prefix[:cut], prefix[cut:], delimited)

    # ---------------------------------------------------------------- writing

    def put(
        self, key: str, data: BytesLike, *, content_type: str | None = None, atomic: bool = True, mkdir_parents: bool = False
    ) -> None:
        """Write a file: into a temporary one beside it, to the disk, then in its place.

        A file that is there keeps its permissions, a link its target; a device is written as it is.

        Args:
            content_type: not kept; files have none.
            atomic: False writes the file in place, so that a reader or a crash may see part of it.
            mkdir_parents: make the folders that are missing.

        Raises:
            FileNotFoundError: no such folder.
            IsADirectoryError, PermissionError, OSError: as the system says (no space left, name too long); the file is as
                it was, and the temporary one is removed.
        """
        upload = self.upload(key, atomic=atomic, mkdir_parents=mkdir_parents)
        try:
            upload.write(data)
            upload.complete()
        except BaseException:
            upload.abort()
            raise

    def upload(
        self, key: str, *, content_type: str | None = None, atomic: bool = True, mkdir_parents: bool = False
    ) -> Upload:
        """Begin a file that is written in parts; options and errors as those of `put`."""
        if mkdir_parents:
            os.makedirs(os.path.dirname(key) or ".", exist_ok=True)
        return LocalUpload(key, atomic=atomic)

    def delete(self, key: str) -> None:
        """As `Store.delete`.

        Raises:
            IsADirectoryError: a folder.
        """
        try:
            os.unlink(key)
        except (FileNotFoundError, NotADirectoryError):
            pass
        except PermissionError as error:  # what some systems say of a folder
            if os.path.isdir(key) and not os.path.islink(key):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), key) from error
            raise

    def copy(self, key: str, to: Store, to_key: str) -> None:
        """Copy inside the kernel, which shares the blocks where the file system can; missing folders are made.

        The copy is written as `put` does; a new one has the permissions of the source.
        """
        if not self.copies_to(to):
            raise self.cannot("copy", f"it cannot copy to {to.scheme}:// on its own side")
        descriptor, info = _opened(key, 0, None)
        try:
            there = _stat(to_key)
            if there is not None and os.path.samestat(there, info):
                return
            os.makedirs(os.path.dirname(to_key) or ".", exist_ok=True)
            upload = LocalUpload(to_key, mode=stat.S_IMODE(info.st_mode) & 0o777)
            try:
                with _naming(to_key):
                    _copy_bytes(descriptor, upload.descriptor)
                upload.complete()
            except BaseException:
                upload.abort()
                raise
        finally:
            os.close(descriptor)

    def copies_to(self, to: Store) -> bool:
        return isinstance(to, LocalStore)

    def sign(self, key: str, *, expires: int, method: str) -> str:
        raise UriError(f"sign does not work on local files, which have no signed URLs: {key!r}")

    def uri(self, key: str) -> str:
        return key

    def _plain(self, if_match: str | None, headers: Mapping[str, str] | None) -> None:
        """Refuse what only a server can heed."""
        if headers:
            raise self.cannot("headers=", "local files are not read by requests")
        if if_match is not None:
            raise self.cannot("if_match=", "local files have no ETag")


class LocalUpload(Upload):
    """A file in the making, `name.tmp.<pid>.<random>` beside its place.

    Attributes:
        path: where it will appear; the end of a chain of links.
        descriptor: of what is written.
    """

    def __init__(self, path: str, *, mode: int = 0o666, atomic: bool = True) -> None:
        self._temporary: str | None = None
        self._process = os.getpid()
        self.descriptor = -1
        self.path = os.path.realpath(path) if os.path.islink(path) else path
        before = _stat(self.path)
        kind = 0 if before is None else stat.S_IFMT(before.st_mode)
        if kind == stat.S_IFDIR:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if kind not in (0, stat.S_IFREG, stat.S_IFCHR):
            raise OSError(errno.EINVAL, f"is {_KINDS.get(kind, 'no regular file')}, which is not written", path)
        if kind == stat.S_IFCHR or not atomic:
            self.descriptor = os.open(self.path, _OPEN_NEW & ~os.O_EXCL | os.O_TRUNC, mode)
            return
        with _naming(self.path):
            temporary = _beside(self.path)
            sweep(os.path.dirname(self.path) or ".")
            self.descriptor = os.open(temporary, _OPEN_NEW, mode)
            self._temporary = temporary
            hold(self.descriptor)
        if before is not None:
            with suppress(OSError):  # a file system without permissions
                os.fchmod(self.descriptor, stat.S_IMODE(before.st_mode))
            with suppress(OSError):  # only root may give a file away
                os.fchown(self.descriptor, before.st_uid, before.st_gid)

    def write(self, data: BytesLike) -> None:
        view = memoryview(data).cast("B")
        with _naming(self.path):
            while len(view):
                view = view[os.write(self.descriptor, view[:_ONE_READ]) :]

    def complete(self) -> None:
        """Make the file appear: its bytes are on the disk before its name is."""
        with _naming(self.path):
            if self._temporary is None:
                self._close()
                return
            os.fsync(self.descriptor)
            os.replace(self._temporary, self.path)  # before the lock is let go with the descriptor
            self._temporary = None
            self._close()
        _sync_folder(os.path.dirname(self.path) or ".")

    def abort(self) -> None:
        with suppress(OSError):
            self._close()
        temporary, self._temporary = self._temporary, None
        if temporary is not None:
            with suppress(FileNotFoundError):
                os.unlink(temporary)

    def _close(self) -> None:
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        if self._process == os.getpid():  # in a forked child the file is still the parent's
            self.abort()


# -------------------------------------------------------------------- reading


def _opened(path: str, offset: int, size: int | None) -> tuple[int, os.stat_result]:
    """An open regular file, and what is known of it."""
    check_range(offset, size, path)
    try:
        descriptor = os.open(path, OPEN_ANY)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket cannot even be opened
            raise OSError(errno.EINVAL, "is no regular file and cannot be read", path) from error
        raise
    try:
        info = os.fstat(descriptor)
        kind = stat.S_IFMT(info.st_mode)
        if kind == stat.S_IFDIR:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if kind != stat.S_IFREG:
            raise OSError(errno.EINVAL, f"is {_KINDS.get(kind, 'no regular file')}, which has no size to read", path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, info


def _inside(info: os.stat_result, offset: int, size: int | None) -> int:
    """How many of `size` bytes from `offset` the file has."""
    left = max(info.st_size - offset, 0)
    return left if size is None else min(left, size)


def _within(limit: int | None, wanted: int, path: str) -> None:
    if limit is not None and wanted > limit:
        raise ResponseTooLargeError(f"{path!r} holds {wanted} bytes, more than the limit of {limit}")


def _read_unsized(descriptor: int, offset: int, size: int | None, limit: int | None, path: str) -> bytes:
    """A file that tells no size: an empty one, or one that the kernel makes up while it is read, as in /proc."""
    chunks, total = [], 0
    wanted = None if size is None else offset + size
    while (wanted is None or total < wanted) and (chunk := os.read(descriptor, CHUNK)):
        chunks.append(chunk)
        total += len(chunk)
        _within(limit, min(total, total if wanted is None else wanted) - offset, path)
    return b"".join(chunks)[offset:wanted]


def _stat(path: str) -> os.stat_result | None:
    """What is known of a file or folder; None where there is none."""
    try:
        return os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _info(path: str, info: os.stat_result) -> ObjectInfo:
    return ObjectInfo(
        key=path,
        size=info.st_size,
        modified=info.st_mtime,
        is_prefix=stat.S_ISDIR(info.st_mode),
        headers={"content-length": str(info.st_size), "accept-ranges": "bytes"},
        url=f"file://{os.path.abspath(path)}",
        http_version="n/a",
    )


# -------------------------------------------------------------------- writing


@contextmanager
def _naming(path: str) -> Iterator[None]:
    """Errors name the file that was asked for, not the temporary one, or none."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename == path:
            raise
        raise OSError(error.errno, os.strerror(error.errno), path) from error


def _beside(path: str) -> str:
    """A new name in the same folder, at most as long as names may be."""
    folder, name = os.path.split(path)
    end = f".tmp.{os.getpid()}.{secrets.token_hex(4)}"
    short = os.fsencode(name)[: 255 - len(end)].decode(errors="ignore")
    return os.path.join(folder, short + end)


def _sync_folder(folder: str) -> None:
    """Bring a new name to the disk, where the file system can do that for folders."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _copy_bytes(source: int, target: int) -> None:
    """All that is left of one file to the end of another."""
    copy_range: Any = getattr(os, "copy_file_range", None)
    while copy_range is not None:
        try:
            done = copy_range(source, target, _ONE_READ)
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF, errno.EPERM):
                raise
            break
        if done == 0:
            break
    # By hand what the kernel cannot copy, such as between file systems, or files without a size.
    while chunk := os.read(source, CHUNK):
        view = memoryview(chunk)
        while len(view):
            view = view[os.write(target, view) :]
