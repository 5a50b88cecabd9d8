"""File systems of fsspec: what each kind can do, and objects that are written in parts to one."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ..store import BytesLike, Upload

if TYPE_CHECKING:
    from .fsspec import FsspecStore


class MemoryUpload(Upload):
    """Parts that are kept until the object is whole: it lies in memory anyhow."""

    def __init__(self, store: FsspecStore, key: str, fs: Any, path: str) -> None:
        self._store, self._key, self._fs, self._path = store, key, fs, path
        self._parts = bytearray()

    def write(self, data: BytesLike) -> None:
        self._parts += data

    def complete(self) -> None:
        with self._store.errors(self._key):
            self._fs.pipe_file(self._path, bytes(self._parts))
        self._parts = bytearray()

    def abort(self) -> None:
        self._parts = bytearray()


class FileUpload(Upload):
    """A file of fsspec that is held back, or written beside its place and renamed."""

    def __init__(self, store: FsspecStore, key: str, fs: Any, path: str) -> None:
        self._store, self._key, self._fs, self._path = store, key, fs, path
        self._written = f"{path}.tmp.{os.getpid()}.{secrets.token_hex(4)}" if renames(fs) else path
        self._file: Any = None
        with store.errors(key):
            options = {} if renames(fs) else {"autocommit": False}
            self._file = with_parents(fs, path, lambda: fs.open(self._written, "wb", **options))
            self._held = holds_back(self._file) and not renames(fs)

    def write(self, data: BytesLike) -> None:
        with self._store.errors(self._key):
            view = memoryview(data).cast("B")
            for at in range(0, len(view), 1 << 22):  # some copy what they are given
                self._file.write(view[at : at + (1 << 22)])

    def complete(self) -> None:
        with self._store.errors(self._key):
            self._file.close()
            if self._held:
                self._file.commit()
            elif self._written != self._path:
                self._fs.mv(self._written, self._path)
            forget(self._fs)
        self._file = None

    def abort(self) -> None:
        file, self._file = self._file, None
        if file is None:
            return
        if not self._held and not renames(self._fs) and _appears_on_close(file):
            file.closed = True  # so that nothing closes it
            return
        with suppress(Exception):
            file.close()
        with suppress(Exception):
            if self._held:
                file.discard()
            else:
                self._fs.rm_file(self._written)


def is_memory(fs: Any) -> bool:
    return getattr(fs, "protocol", None) == "memory"


def is_archive(kind: type) -> bool:
    from fsspec.archive import AbstractArchiveFileSystem

    return issubclass(kind, AbstractArchiveFileSystem)


def renames(fs: Any) -> bool:
    """Whether it moves a file by a request of its own, and has nothing better to make one appear whole."""
    from fsspec.asyn import AsyncFileSystem
    from fsspec.spec import AbstractFileSystem

    # The asynchronous ones are object stores: their objects appear whole anyhow, and their mv reads patterns.
    return type(fs).mv is not AbstractFileSystem.mv and not isinstance(fs, AsyncFileSystem) and not is_memory(fs)


def holds_back(file: Any) -> bool:
    """Whether a file that is closed waits for `commit` before it appears."""
    from fsspec.spec import AbstractBufferedFile

    return isinstance(file, AbstractBufferedFile) and type(file).commit is not AbstractBufferedFile.commit


def _appears_on_close(file: Any) -> bool:
    """Whether nothing is seen of a file before it is closed."""
    from fsspec.spec import AbstractBufferedFile

    return isinstance(file, AbstractBufferedFile)


def forget(fs: Any) -> None:
    """Nothing is remembered of what was there before."""
    fs.invalidate_cache()


def find(fs: Any, path: str) -> list[dict[str, Any]]:
    """The objects below a path.

    Raises:
        FileNotFoundError: there is no such folder; where there are none, an empty list may say so too.
    """
    from fsspec.asyn import AsyncFileSystem
    from fsspec.spec import AbstractFileSystem

    own = type(fs).find is not AbstractFileSystem.find
    if isinstance(fs, AsyncFileSystem):
        own = type(fs)._find is not AsyncFileSystem._find
    if own:  # one request for many folders
        return list(fs.find(path, detail=True).values())
    # fsspec's own walk leaves out the folders below that may not be read.
    found: list[dict[str, Any]] = []
    folders = [(path, True)]
    while folders:
        folder, first = folders.pop()
        try:
            entries = fs.ls(folder, detail=True)
        except FileNotFoundError:
            if first:
                raise
            continue  # removed meanwhile
        for entry in entries:
            name = str(entry["name"])
            if entry.get("type") != "directory":
                found.append(entry)
            elif name.rstrip("/") != folder.rstrip("/"):  # some list a folder in itself
                folders.append((name.rstrip("/"), False))
    return found


def with_parents(fs: Any, path: str, write: Any) -> Any:
    """What `write` gives, once more with the folders made where they are missing."""
    try:
        return write()
    except FileNotFoundError:
        fs.makedirs(fs._parent(path), exist_ok=True)
        return write()
