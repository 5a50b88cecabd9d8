"""Object stores: S3, R2, Google Cloud Storage and Azure.

obstore's blocking calls carry the bytes: they let go of the interpreter lock, and on threads they are faster than obstore's
asyncio. What obstore cannot do exactly goes through the package of the provider (`io.stores.sdk`): odd keys in every verb,
listings, uploads in parts, copies. `io.retry` is the one policy of retries.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any

from ..errors import CredentialsError, ObjectNotFoundError
from ..retry import PassingError
from ..settings import MULTIPART_CONCURRENCY, MULTIPART_PART
from ..store import BytesLike, ObjectInfo, Store, Upload
from ..uri import Uri
from .download import bare_etag
from .object_access import access_to
from .object_errors import translated
from .object_reads import ObjectReads
from .sdk import PAGE
from .uploads import ObstoreUpload, PartsUpload


class ObjectStore(ObjectReads):
    """One bucket. Copies on the server's side; writes hold a few parts at most."""

    streams_writes = True

    # ------------------------------------------------------------------- listing

    def list(self, prefix: str, *, delimited: bool = False) -> Iterator[ObjectInfo]:
        """See `Store.list`. Without the provider's package obstore lists, which cannot name odd keys: it says so then."""
        if not self.access.sdk_installed:
            from .obstore_listing import listed

            yield from listed(self, self._obstore("stream"), prefix, delimited)
            return
        client, token = self.sdk("listing"), None
        while True:
            page = self._ask(prefix, lambda: client.page(prefix, delimited, token))  # noqa: B023  (called at once)
            yield from page.infos
            if page.token is None:
                return
            token = page.token

    # ------------------------------------------------------------------- writing

    @property
    def _part(self) -> int:
        return MULTIPART_PART.get() << 20

    def put(self, key: str, data: BytesLike, *, content_type: str | None = None) -> str | None:
        """See `Store.put`."""
        if memoryview(data).nbytes > self._part:
            upload = self.upload(key, content_type=content_type)
            upload.write(data)
            return upload.complete()
        return self._put_whole(key, data, content_type)

    def _put_whole(self, key: str, data: BytesLike, content_type: str | None) -> str | None:
        if not (self.access.writes_by_obstore and self._obstore_serves(key)):
            client = self._odd(key)
            return self._ask(key, lambda: client.put(key, data, content_type))
        import obstore

        store, attributes = self._obstore("write"), _attributes(content_type)
        answer: Any = self._ask(key, lambda: obstore.put(store, key, data, attributes=attributes, use_multipart=False))
        return bare_etag(answer["e_tag"])

    def upload(self, key: str, *, content_type: str | None = None) -> Upload:
        """See `Store.upload`. Parts have `DATAIO_MULTIPART_PART_MIB`, `DATAIO_MULTIPART_CONCURRENCY` are under way."""
        uri, part = self.uri(key), self._part
        if self.access.sdk_installed or not self._obstore_serves(key):
            client = self._odd(key)
            return PartsUpload(
                lambda: client.begin(key, content_type, part),
                lambda data: self._put_whole(key, data, content_type),
                lambda request: self._once(uri, request),
                self._transport,
                part=part,
                concurrency=MULTIPART_CONCURRENCY.get(),
            )
        import obstore

        store, attributes = self._obstore("parts"), _attributes(content_type)

        def put(chunks: Iterator[bytes]) -> str | None:
            try:
                answer = obstore.put(store, key, chunks, attributes=attributes, use_multipart=True, chunk_size=part, max_concurrency=MULTIPART_CONCURRENCY.get())
            except Exception as error:
                meant = translated(error, uri)
                raise (meant.error if isinstance(meant, PassingError) else meant) from error
            return bare_etag(answer["e_tag"])

        return ObstoreUpload(put)

    def delete(self, key: str) -> None:
        """See `Store.delete`. A bucket that is not there is an error, unlike an object."""
        if not (self.access.writes_by_obstore and self._obstore_serves(key)):
            client = self._odd(key)
            self._ask(key, lambda: client.delete(key))
            return
        import obstore

        store = self._obstore("write")
        try:
            self._ask(key, lambda: obstore.delete(store, key))
        except ObjectNotFoundError as error:
            if "no such bucket" in str(error):
                raise

    def delete_many(self, keys: Iterable[str]) -> None:
        """See `Store.delete_many`: a thousand keys by one request on S3, one by one elsewhere."""
        source = iter(keys)
        while batch := tuple(itertools.islice(source, PAGE)):
            self._delete_batch(batch)

    def _delete_batch(self, keys: Sequence[str]) -> None:
        if self.access.sdk_installed:
            client = self.sdk("deleting")
            self._ask(keys[0] if len(keys) == 1 else "", lambda: client.delete_many(keys))
            return
        for key in keys:
            self.delete(key)

    def copies_to(self, to: Store) -> bool:
        """True within the provider, for buckets that are reached with the same credentials."""
        if not isinstance(to, ObjectStore) or to.scheme != self.scheme:
            return False
        if to.name == self.name:
            return True
        return self.access.sdk_installed and self.access.same_owner(to.access)

    def copy(self, key: str, to: Store, to_key: str) -> None:
        """See `Store.copy`. S3 copies more than 5 GiB in parts."""
        if not self.copies_to(to):
            raise self.cannot("copy", f"the server does not copy to {to.scheme}://{to.name}")
        if to.name == self.name and key == to_key:  # which S3 refuses
            self.head(key)
            return
        if self.access.sdk_installed or not (self._obstore_serves(key) and self._obstore_serves(to_key)):
            client = self._odd(key)
            self._ask(key, lambda: client.copy(key, to.name, to_key))
            return
        import obstore

        store = self._obstore("write")
        self._ask(key, lambda: obstore.copy(store, key, to_key))

    def sign(self, key: str, *, expires: int, method: str) -> str:
        """See `Store.sign`.

        Raises:
            CredentialsError: the credentials are of a kind that cannot sign.
        """
        if self.access.anonymous:
            raise CredentialsError(f"{self.uri(key)}: anonymous requests cannot sign URLs")
        if self.access.sdk_installed or not self._obstore_serves(key):
            client = self._odd(key)
            return self._ask(key, lambda: client.sign(key, expires, method))
        import obstore

        url: str = self._ask(key, lambda: obstore.sign(self._reads, method, key, timedelta(seconds=expires)))  # type: ignore[call-overload]
        return url

    def close(self) -> None:
        """Give back the connections of the provider's package; obstore's close when nobody uses them."""
        found, self._sdk = self._sdk, None
        if found is not None:
            found.close()


def open_object_store(uri: Uri) -> Store:
    """The store of a URI's bucket, as it is configured now.

    Raises:
        CredentialsError: no credentials, or a method that the scheme does not take.
        MissingDependencyError: the method needs a package that is not installed.
    """
    return ObjectStore(access_to(uri.scheme, uri.bucket))


def _attributes(content_type: str | None) -> Any:
    return None if content_type is None else {"Content-Type": content_type}
