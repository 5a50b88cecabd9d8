"""Reading from object stores: whole objects, ranges, streams, and what is known of an object."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from ...engine.forks import in_child
from ..buffers import new_bytes
from ..errors import ChangedError, ObjectNotFoundError, RangeError, ResponseTooLargeError
from ..retry import PassingError, with_retries
from ..settings import OBJECT_SHARDS
from ..store import Body, BytesLike, ObjectInfo, Store, check_range
from .download import bare_etag
from .object_access import Access
from .object_errors import translated
from .obstore_threads import obstore_threads
from .sdk import CHUNK, SdkClient, is_plain

T = TypeVar("T")
PIECE = 16 << 20
"""Bytes of one range of a large object. 1 GiB from a local server: 0.83 GB/s in one request, 1.36 GB/s in these by four
threads, 0.81 GB/s in pieces of 64 MiB."""
READERS = 4
"""Threads that read the pieces of one large object."""
LARGE = 2 * PIECE
"""Bytes from which an object is read in pieces."""
_PROGRESS = 1 << 20
"""Bytes between two breaks of a body after which the count of attempts begins anew."""


class ObjectReads(Store):
    """One bucket, as far as reading goes."""

    def __init__(self, access: Access) -> None:
        self.scheme, self.name = access.scheme, access.bucket
        self.access, self._transport = access, access.transport
        self._lock = threading.Lock()
        self._sdk: SdkClient | None = None
        self._obstores: dict[str, Any] = {}
        in_child(self, ObjectReads._renew_in_child)
        import obstore

        obstore_threads.started = True
        self._get: Any = obstore.get
        clients = [access.obstore(self._transport.timeout) for _ in range(OBJECT_SHARDS.get())]
        self._reads = clients[0]
        self._shards = itertools.cycle(clients) if len(clients) > 1 else None

    def _renew_in_child(self) -> None:
        """Nothing that the parent holds may be used or closed here."""
        self._lock = threading.Lock()
        self._sdk = None

    # ------------------------------------------------------------------- clients

    def _obstore_serves(self, key: str) -> bool:
        return not obstore_threads.lost and is_plain(key)

    def _client(self) -> Any:
        """obstore's store for reads of ordinary size."""
        return self._reads if self._shards is None else next(self._shards)

    def _obstore(self, kind: str) -> Any:
        """For long bodies ("stream") and for writes ("write", and "parts" with obstore's own retries)."""
        found = self._obstores.get(kind)
        if found is None:
            timeout = None if kind == "stream" else self._transport.put_timeout
            found = self._obstores.setdefault(kind, self.access.obstore(timeout, retries=kind == "parts"))
        return found

    def sdk(self, what: str) -> SdkClient:
        """The client of the provider's package.

        Args:
            what: needs it, for the message.

        Raises:
            MissingDependencyError: it is not installed.
        """
        found = self._sdk
        if found is None:
            if not self.access.sdk_installed:
                raise self.access.missing(what)
            with self._lock:
                if self._sdk is None:
                    self._sdk = self.access.sdk()
                found = self._sdk
        return found

    def _odd(self, key: str) -> SdkClient:
        return self.sdk("a forked process" if obstore_threads.lost else f"the key {key!r}")

    def _once(self, uri: str, request: Callable[[], T]) -> T:
        """One attempt, with its errors translated."""
        try:
            return request()
        except Exception as error:
            meant = translated(error, uri)
            if meant is error:
                raise
            raise meant from error

    def _ask(self, key: str, request: Callable[[], T]) -> T:
        """The result of a request about a key, with retries."""
        uri = self.uri(key)
        return with_retries(lambda: self._once(uri, request), self._transport)

    # ------------------------------------------------------------------- reading

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
        """See `Store.get`. Gives a view of the memory that obstore received into, without a copy.

        An object of `LARGE` bytes or more is read in pieces by several threads, all of the version that was begun.
        """
        if offset or size is not None:
            check_range(offset, size, self.uri(key))
        if headers:
            self._refuse(headers)
        if size == 0:
            return self._at_the_end(key, offset, if_match)
        if not self._obstore_serves(key):
            return self._get_odd(key, offset, size, if_match, limit)
        options = _options(offset, size if size is None or size < LARGE else PIECE, if_match)
        whole = offset == 0 and size is None

        def attempt() -> BytesLike | tuple[Any, BytesLike | None]:
            try:
                result = self._get(self._client(), key, options=options)
                begin, end = result.range
                if if_match is not None or limit is not None:
                    self._check(result.meta, key, if_match, size, offset, limit)
                if size is None and end - begin >= LARGE:
                    return result.meta, None  # its body is not read
                if size is not None and size >= LARGE:
                    return result.meta, memoryview(result.bytes())
                return memoryview(result.bytes())
            except Exception as error:
                meant = translated(error, self.uri(key))
                if meant is error:
                    raise
                raise meant from error

        try:
            found = with_retries(attempt, self._transport)
        except RangeError:
            return self._at_the_end(key, offset, if_match)
        if not isinstance(found, tuple):
            return found
        meta, first = found
        end = meta["size"] if whole or size is None else min(offset + size, meta["size"])
        return self._in_pieces(key, offset, end, first, meta["e_tag"])

    def _check(self, meta: Any, key: str, if_match: str | None, size: int | None, offset: int, limit: int | None) -> None:
        if if_match is not None and bare_etag(meta["e_tag"]) != if_match:  # not every server looks at If-Match
            raise ChangedError("the object was replaced", uri=self.uri(key))
        self._check_limit(key, meta["size"], offset, size, limit)

    def _check_limit(self, key: str, whole: int | None, offset: int, size: int | None, limit: int | None) -> None:
        if limit is None:
            return
        left = size if whole is None else max(0, whole - offset) if size is None else min(size, max(0, whole - offset))
        if left is not None and left > limit:
            raise ResponseTooLargeError(f"{self.uri(key)}: {left} bytes are more than the {limit} of max_response_bytes")

    def _in_pieces(self, key: str, offset: int, end: int, first: BytesLike | None, etag: str | None) -> BytesLike:
        made, out = new_bytes(max(0, end - offset))
        done = len(first) if first is not None else 0
        if first is not None:
            out[:done] = first
        self._fill(key, offset + done, out[done:], etag)
        return made

    def _fill(self, key: str, offset: int, out: memoryview, etag: str | None) -> None:
        """Fill all of `out` from `offset`, by several threads, from the version of `etag`."""

        def piece(at: int) -> None:
            wanted = min(PIECE, len(out) - at)
            data = self._piece(key, offset + at, wanted, etag)
            if len(data) != wanted:
                raise ChangedError("the object became smaller while it was read", uri=self.uri(key))
            out[at : at + wanted] = data

        starts = range(0, len(out), PIECE)
        if len(starts) <= 1 or etag is None:  # pieces without a version could be of different ones, but one after another
            for at in starts:
                piece(at)
            return
        with ThreadPoolExecutor(min(READERS, len(starts)), "dataio-range") as pool:
            futures = [pool.submit(piece, at) for at in starts]
            try:
                for future in futures:
                    future.result()
            except BaseException:
                pool.shutdown(wait=True, cancel_futures=True)
                raise

    def _piece(self, key: str, offset: int, size: int, etag: str | None) -> BytesLike:
        options = _options(offset, size, bare_etag(etag))

        def request() -> BytesLike:
            result = self._get(self._client(), key, options=options)
            if etag is not None and result.meta["e_tag"] != etag:
                raise ChangedError("the object was replaced while it was read", uri=self.uri(key))
            return memoryview(result.bytes())

        return self._ask(key, request)

    def _get_odd(self, key: str, offset: int, size: int | None, if_match: str | None, limit: int | None) -> BytesLike:
        client = self._odd(key)

        def request() -> BytesLike:
            with client.open(key, offset, size, if_match) as body:
                self._check_limit(key, body.info.size, offset, size, limit)
                return b"".join(body)

        try:
            return self._ask(key, request)
        except RangeError:
            return self._at_the_end(key, offset, if_match)

    def _at_the_end(self, key: str, offset: int, if_match: str | None) -> bytes:
        """No bytes of an object, which has to be there and not to end before `offset`."""
        self._ending(key, offset, if_match)
        return b""

    def _ending(self, key: str, offset: int, if_match: str | None) -> ObjectInfo:
        """Look why a range was refused: fine where the object ends, also one of no bytes."""
        info = self.head(key)
        if if_match is not None and info.etag != if_match:
            raise ChangedError("the object was replaced", uri=self.uri(key))
        if info.size is not None and offset > info.size:
            raise RangeError(f"offset {offset} lies behind the end of the object, which has {info.size} bytes", uri=self.uri(key), status=416)
        return info

    def get_into(self, key: str, offset: int, out: memoryview, *, if_match: str | None = None) -> int:
        """See `Store.get_into`. A large range is read in pieces by several threads, each straight into its place."""
        out = out.cast("B")
        if len(out) < LARGE or not self._obstore_serves(key):
            data = self.get(key, offset, len(out), if_match=if_match)
            out[: len(data)] = data
            return len(data)
        check_range(offset, len(out), self.uri(key))
        options = _options(offset, PIECE, if_match)

        def request() -> tuple[Any, BytesLike]:
            result = self._get(self._client(), key, options=options)
            self._check(result.meta, key, if_match, None, offset, None)
            return result.meta, memoryview(result.bytes())

        try:
            meta, first = self._ask(key, request)
        except RangeError:
            return len(self._at_the_end(key, offset, if_match))
        size: int = min(len(out), meta["size"] - offset)
        out[: len(first)] = first
        self._fill(key, offset + len(first), out[len(first) : size], meta["e_tag"])
        return size

    def open(
        self,
        key: str,
        offset: int = 0,
        size: int | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        limit: int | None = None,
    ) -> Body:
        """See `Store.open`."""
        check_range(offset, size, self.uri(key))
        self._refuse(headers)
        try:
            body = self._ask(key, lambda: self._begin(key, offset, size, None)) if size != 0 else None
        except RangeError:
            body = None
        if body is None:
            return Body(self._ending(key, offset, None), iter(()))
        self._check_limit(key, body.info.size, offset, size, limit)
        held = [body]
        return Body(body.info, self._resumed(key, offset, size, held), lambda: held[0].close())

    def _begin(self, key: str, offset: int, size: int | None, etag: str | None) -> Body:
        if not self._obstore_serves(key):
            return self._odd(key).open(key, offset, size, etag)
        result = self._get(self._obstore("stream"), key, options=_options(offset, size, etag))
        info = _info(key, result)
        if etag is not None and info.etag != etag:
            raise ChangedError("the object was replaced while it was read", uri=self.uri(key))
        return Body(info, (memoryview(chunk) for chunk in result.stream(CHUNK)))

    def _resumed(self, key: str, offset: int, size: int | None, held: list[Body]) -> Iterator[BytesLike]:
        """The chunks of a body; one that breaks off goes on by range, if its version is the same."""
        etag, uri = held[0].info.etag, self.uri(key)
        position, failures, since = offset, 0, 0
        try:
            while True:
                try:
                    for chunk in held[0]:
                        position += len(chunk)
                        since += len(chunk)
                        yield chunk
                    return
                except GeneratorExit:
                    raise
                except Exception as error:
                    broken = translated(error, uri)
                    failures = 1 if since >= _PROGRESS else failures + 1
                    if not isinstance(broken, PassingError):
                        raise broken from error
                    if etag is None or failures >= self._transport.attempts:
                        raise broken.error from error
                    held[0].close()
                    since = 0
                    held[0] = self._again(key, position, None if size is None else offset + size - position, etag, broken)
        finally:
            held[0].close()

    def _again(self, key: str, position: int, left: int | None, etag: str, broken: PassingError) -> Body:
        uri, failures = self.uri(key), [broken]

        def attempt() -> Body:
            if failures:  # the body that broke off counts as the first attempt
                raise failures.pop()
            return self._once(uri, lambda: self._begin(key, position, left, etag))

        try:
            return with_retries(attempt, self._transport)
        except ObjectNotFoundError as error:
            raise ChangedError("the object was deleted while it was read", uri=uri) from error

    def head(self, key: str, *, headers: Mapping[str, str] | None = None) -> ObjectInfo:
        """See `Store.head`."""
        self._refuse(headers)
        if not self._obstore_serves(key):
            client = self._odd(key)
            return self._ask(key, lambda: client.head(key))
        return self._ask(key, lambda: _info(key, self._get(self._client(), key, options={"head": True})))

    def _refuse(self, headers: Mapping[str, str] | None) -> None:
        if headers:
            raise self.cannot("headers=", "its requests are signed; only http and https take headers")


def _options(offset: int, size: int | None, if_match: str | None) -> Any:
    if not offset and size is None and if_match is None:
        return None
    options: dict[str, Any] = {}
    if size is not None:
        options["range"] = (offset, offset + size)
    elif offset:
        options["range"] = {"offset": offset}
    if if_match is not None:
        options["if_match"] = if_match if if_match.startswith("W/") else f'"{if_match}"'
    return options


def _info(key: str, result: Any) -> ObjectInfo:
    meta, attributes = result.meta, result.attributes
    headers = {name.lower(): value for name, value in attributes.items()}
    return ObjectInfo(
        key,
        meta["size"],
        bare_etag(meta["e_tag"]),
        meta["last_modified"].timestamp(),
        content_type=headers.get("content-type"),
        headers=headers,
    )
