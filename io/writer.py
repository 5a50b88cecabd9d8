"""`writer(uri)`: a file or object that is written piece by piece, with bounded memory, and appears whole or not at all."""

from __future__ import annotations

import io
import os
import warnings
import weakref
from collections.abc import Iterable
from typing import Any

from .codecs import Encoder
from .errors import UnsupportedError, UnsupportedSchemeError
from .secrets import masked
from .settings import MULTIPART_PART
from .store import BytesLike, Store, Upload, open_store
from .stores.local import LocalStore
from .uri import HTTP_SCHEMES, HUB_SCHEMES, parse_uri

GATHERED = 1 << 18
"""Bytes of small chunks that are handed on together."""


def writer(
    uri: str,
    *,
    content_type: str | None = None,
    atomic: bool = True,
    mkdir_parents: bool = False,
    require_streaming: bool = False,
) -> Writer:
    """A writer of one file or object. Nothing is made before the first bytes come; nothing appears before `close`.

    A local file is written beside its place, brought to the disk and renamed; a process that is killed leaves the old file as it
    was, and a file `name.tmp.<pid>.<random>`, which later writes in that folder remove. Objects are uploaded in parts.

    Args:
        uri: a local path, or a URI of a store that can be written; taken as it is.
        content_type: that an object store keeps with it; files have none.
        atomic: False writes the local file in place: others see it grow, and an error leaves part of it.
        mkdir_parents: make missing folders of a local file, with the first bytes.
        require_streaming: refuse a store that would hold the whole content in memory.

    Raises:
        TypeError: `uri` is no str, `content_type` neither str nor None.
        ValueError: a URI that names nothing, of an unknown scheme, or one that is only read (http, https, hf, hfd).
        UnsupportedError: (a NotImplementedError) `atomic=False` or `mkdir_parents=True` for anything but local files;
            `require_streaming` where the store cannot.
        CredentialsError: the store cannot be reached as configured.
    """
    if not isinstance(uri, str):
        raise TypeError(f"uri is a str, got {type(uri).__name__}")
    if content_type is not None and not isinstance(content_type, str):
        raise TypeError(f"content_type is a str, got {type(content_type).__name__}")
    scheme = parse_uri(uri).scheme
    if scheme in (*HTTP_SCHEMES, *HUB_SCHEMES):
        raise UnsupportedSchemeError(f"{scheme}:// is only read; write to a local path, s3://, r2://, gs:// or az://")
    store, key = open_store(uri)
    local = isinstance(store, LocalStore)
    if not local and (mkdir_parents or not atomic):
        option = "mkdir_parents=True" if mkdir_parents else "atomic=False"
        raise UnsupportedError(f"{option} is for local files; objects of {scheme}:// have no folders and appear whole")
    if require_streaming and not (local or store.streams_writes):
        raise UnsupportedError(f"{scheme}:// holds all that is written in memory until it is closed, and require_streaming=True refuses that")
    return Writer(store, key, content_type, atomic=atomic, mkdir_parents=mkdir_parents)


class Writer:
    """Writes one file or object; made by `writer`. A context manager: leaving it commits, an exception drops all.

    After an error nothing appears, whether in a `with` block or not: the temporary file or the upload is removed, and `close`
    does nothing. A writer that is dropped without `close` warns (ResourceWarning), and leaves nothing either. For one
    thread at a time.

    Attributes:
        etag: of the object once it was written, without quotes; None before, and for files.
        closed: whether it was closed, or failed.
    """

    def __init__(
        self, store: Store, key: str, content_type: str | None, *, atomic: bool, mkdir_parents: bool, encoding: str | None = None
    ) -> None:
        self._store, self._key, self._content_type = store, key, content_type
        self._atomic, self._mkdir_parents, self._encoding = atomic, mkdir_parents, encoding
        self._local = isinstance(store, LocalStore)
        self._encoder: Encoder | None = None
        self._gathered = bytearray()
        self._begun: _Begun | None = None
        self.etag: str | None = None
        self.closed = False

    # ------------------------------------------------------------------- writing

    def write_all(self, data: bytes) -> str | None:
        """Write the whole content and close.

        Returns:
            The ETag of an object, without quotes; None for files.

        Raises:
            TypeError: not bytes.
            RuntimeError: something was written already, or the writer is closed.
            OSError: as the store says.
        """
        self._check_open()
        if self._begun is not None:
            raise RuntimeError(f"{self!r}: write_all comes alone; after other writes call close")
        if not isinstance(data, bytes):
            raise TypeError(f"write_all takes bytes, got {type(data).__name__}")
        if self._encoding is None and not self._local:  # one request, which can be tried again
            self.closed = True
            self.etag = self._store.put(self._key, data, content_type=self._content_type)
        else:
            self.write(data)
            self.close()
        return self.etag

    def write_chunks(self, iterable: Iterable[BytesLike]) -> Writer:
        """Write the items of an iterable as they come; returns the writer, for more.

        Raises:
            TypeError: an item that is not bytes, bytearray or memoryview.
            RuntimeError: the writer is closed.
            OSError: as the store says.
            whatever the iterable raises.
        """
        self._check_open()
        try:
            for chunk in iterable:
                self.write(chunk)
        except BaseException:
            self.abort()
            raise
        return self

    def write(self, data: BytesLike) -> int:
        """Write bytes at the end, as a file does. They may be changed once it returns.

        Returns:
            How many there were.

        Raises: as `write_chunks`.
        """
        self._check_open()
        try:
            if not isinstance(data, (bytes, bytearray, memoryview)):
                raise TypeError(f"a chunk is bytes, bytearray or memoryview, got {type(data).__name__}")
            if isinstance(data, memoryview):
                data = data.cast("B") if data.c_contiguous else data.tobytes()
            self._upload()
            self._gather(data if self._encoder is None else self._encoder.encode(data))
        except BaseException:
            self.abort()
            raise
        return len(data)

    def open(self) -> io.RawIOBase:
        """The writer as a binary Python file that goes forwards, for `zipfile`, pyarrow, `torch.save` and others.

        Closing the file closes the writer; leaving its `with` block by an exception drops all; forgetting it writes nothing.
        """
        self._check_open()
        return WriterFile(self)

    def close(self) -> None:
        """Make what was written appear; more than once is fine. Where no chunk was written nothing appears.

        Raises:
            OSError: as the store says; nothing appears then.
        """
        if self.closed:
            return
        begun = self._begun
        try:
            if begun is not None:
                if self._encoder is not None:
                    self._gathered += self._encoder.finish()
                self._hand_on()
                self.etag = begun.complete()
        except BaseException:
            self.abort()
            raise
        self.closed = True

    def abort(self) -> None:
        """Drop what was written: nothing appears, and the writer is closed. More than once is fine."""
        self.closed = True
        self._gathered = bytearray()
        if self._begun is not None:
            self._begun.abort()

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        if kind is None:
            self.close()
        elif not self.closed:
            self.abort()

    # ------------------------------------------------------------------- encodings

    def gzip_encode(self) -> Writer:
        """A writer that compresses by gzip what it is given, as it comes; equal bytes give equal files.

        Raises:
            RuntimeError: something was written already, or there is an encoding already.
        """
        return self._encoded("gzip")

    def zstd_encode(self) -> Writer:
        """A writer that compresses by zstd what it is given, as it comes. Errors as `gzip_encode`."""
        return self._encoded("zstd")

    def _encoded(self, encoding: str) -> Writer:
        self._check_open()
        if self._begun is not None or self._encoding is not None:
            raise RuntimeError(f"{self!r}: an encoding is chosen once, before anything is written")
        return Writer(
            self._store, self._key, self._content_type, atomic=self._atomic, mkdir_parents=self._mkdir_parents, encoding=encoding
        )

    def capabilities(self) -> dict[str, Any]:
        """How it writes.

        Returns:
            "target": "file" or "object"; "atomic": whether a file is renamed into its place (objects appear whole without
            that); "multi_part": whether it is uploaded in parts, of "multi_part_threshold" bytes; "encodings": what compresses;
            "streaming": whether a part of the content at a time is in memory.
        """
        parts = not self._local and self._store.streams_writes
        found: dict[str, Any] = {
            "target": "file" if self._local else "object",
            "atomic": self._local and self._atomic,
            "multi_part": parts,
            "encodings": [] if self._encoding is None else [self._encoding],
            "streaming": self._local or parts,
        }
        return {**found, "multi_part_threshold": MULTIPART_PART.get() << 20} if parts else found

    def __repr__(self) -> str:
        return f"Writer(uri={masked(self._store.uri(self._key))}{', closed' if self.closed else ''})"

    # ------------------------------------------------------------------- inside

    def _check_open(self) -> None:
        if self.closed:
            raise RuntimeError(f"{self!r} is already closed")

    def _upload(self) -> _Begun:
        """The upload, which the first bytes begin."""
        if self._begun is None:
            if not self._local and not self._store.streams_writes:
                text = f"{self._store.scheme}:// takes no parts: all that is written is held in memory until the writer is closed"
                warnings.warn(text, RuntimeWarning, stacklevel=4)
            if isinstance(self._store, LocalStore):
                upload = self._store.upload(self._key, atomic=self._atomic, mkdir_parents=self._mkdir_parents)
            else:
                upload = self._store.upload(self._key, content_type=self._content_type)
            self._begun = _Begun(upload, repr(self))
            weakref.finalize(self, self._begun.dropped)
            if self._encoding is not None:
                self._encoder = Encoder(self._encoding)
        return self._begun

    def _gather(self, data: BytesLike) -> None:
        if len(self._gathered) + len(data) <= GATHERED:
            self._gathered += data
            return
        self._hand_on()
        if len(data) <= GATHERED:
            self._gathered += data
        else:
            self._upload().upload.write(data)

    def _hand_on(self) -> None:
        data, self._gathered = self._gathered, bytearray()
        if data:
            self._upload().upload.write(data)


class _Begun:
    """An upload that ends once, in the process that began it."""

    def __init__(self, upload: Upload, name: str) -> None:
        self.upload, self._name = upload, name
        self._process = os.getpid()
        self._over = False

    def complete(self) -> str | None:
        etag = self.upload.complete()
        self._over = True
        return etag

    def abort(self) -> None:
        if not self._over:
            self._over = True
            self.upload.abort()

    def dropped(self) -> None:
        """The writer is gone."""
        if not self._over and self._process == os.getpid():
            self.abort()
            warnings.warn(f"{self._name} was dropped without close: nothing was written", ResourceWarning, stacklevel=2)


class WriterFile(io.RawIOBase):
    """A writer as a Python file."""

    def __init__(self, to: Writer) -> None:
        super().__init__()
        self._to = to
        self._position = 0
        self._failure: BaseException | None = None

    def writable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        raise io.UnsupportedOperation("not readable")

    def tell(self) -> int:
        return self._position

    def write(self, data: Any, /) -> int:
        if self.closed:
            raise ValueError("I/O operation on closed file")
        if self._failure is not None:  # zipfile writes its directory even then, and would hide why nothing was written
            raise self._failure
        try:
            count = self._to.write(memoryview(data).cast("B"))
        except BaseException as error:
            self._failure = error
            raise
        self._position += count
        return count

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._failure = None
            if not self._to.closed:
                self._to.write(b"")  # a file that was opened is there, with or without bytes
                self._to.close()

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        if kind is not None:
            self._to.abort()
        self.close()

    def __del__(self) -> None:
        """Not what files of Python do: one that is forgotten must not appear."""
