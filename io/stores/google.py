"""Google Cloud Storage through google-cloud-storage: the JSON API, which keeps every name."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from ..errors import CredentialsError
from ..store import Body, BytesLike, ObjectInfo
from .download import bare_etag
from .sdk import PAGE, Page, Parts, SdkClient

if TYPE_CHECKING:
    from .object_access import GoogleAccess

READ = 8 << 20
"""Bytes per request of a body: the package reads no stream that could be closed early."""
_PART = 256 << 10
"""Parts of a resumable upload are multiples of this, but for the last."""
_FIELDS = "items(name,size,etag,md5Hash,updated,contentType),prefixes,nextPageToken"


class GoogleClient(SdkClient):
    """One bucket."""

    def __init__(self, access: GoogleAccess) -> None:
        from google.auth.credentials import AnonymousCredentials
        from google.cloud import storage

        transport = access.transport
        options = {} if access.endpoint is None else {"api_endpoint": access.endpoint}
        credentials = access.found if access.found is not None else AnonymousCredentials()  # type: ignore[no-untyped-call]
        self.access = access
        self.client = storage.Client(project="unused", credentials=credentials, client_options=options)
        session = self.client._http
        if transport.proxy is not None:
            session.proxies = {"http": transport.proxy, "https": transport.proxy}
        if transport.ca_certificates is not None:
            session.verify = transport.ca_certificates
        self.bucket = self.client.bucket(access.bucket)
        self.ask: dict[str, Any] = {"timeout": (transport.connect_timeout, transport.timeout), "retry": None}
        self.write: dict[str, Any] = {"timeout": (transport.connect_timeout, transport.put_timeout), "retry": None}

    def open(self, key: str, offset: int, size: int | None, if_match: str | None) -> Body:
        blob = self.bucket.blob(key)
        blob.reload(**self.ask)
        info = self._info(blob)
        if if_match is not None and info.etag != if_match:
            raise _precondition(key)
        whole = info.size or 0
        if offset > whole or (offset == whole and offset):
            raise _behind(key)
        end = whole if size is None else min(offset + size, whole)
        return Body(info, self._chunks(blob, offset, end))

    def _chunks(self, blob: Any, offset: int, end: int) -> Iterator[BytesLike]:
        while offset < end:
            last = min(offset + READ, end) - 1
            data = blob.download_as_bytes(
                start=offset, end=last, raw_download=True, checksum=None, if_generation_match=blob.generation, **self.ask
            )
            offset += len(data)
            yield data

    def head(self, key: str) -> ObjectInfo:
        blob = self.bucket.blob(key)
        blob.reload(**self.ask)
        return self._info(blob)

    def put(self, key: str, data: BytesLike, content_type: str | None) -> str | None:
        blob = self.bucket.blob(key)
        blob.upload_from_string(bytes(data), content_type=content_type or "application/octet-stream", **self.write)
        return self._etag(blob)

    def begin(self, key: str, content_type: str | None, part: int) -> Parts:
        return _GoogleParts(self, key, content_type, part)

    def delete(self, key: str) -> None:
        from google.api_core.exceptions import NotFound

        try:
            self.bucket.blob(key).delete(**self.ask)
        except NotFound as error:
            if "bucket" in str(error).lower() and "object" not in str(error).lower():
                raise

    def copy(self, key: str, to_bucket: str, to_key: str) -> None:
        source, target = self.bucket.blob(key), self.client.bucket(to_bucket).blob(to_key)
        token = target.rewrite(source, **self.write)[0]
        while token is not None:
            token = target.rewrite(source, token=token, **self.write)[0]

    def sign(self, key: str, expires: int, method: str) -> str:
        if self.access.found is None or not hasattr(self.access.found, "sign_bytes"):
            raise CredentialsError(f"gs://{self.access.bucket}: only a service account key can sign URLs")
        url = self.bucket.blob(key).generate_signed_url(version="v4", expiration=timedelta(seconds=expires), method=method)
        return str(url)

    def page(self, prefix: str, delimited: bool, token: str | None) -> Page:
        listing = self.client.list_blobs(
            self.bucket, prefix=prefix or None, delimiter="/" if delimited else None, page_token=token, page_size=PAGE, fields=_FIELDS, **self.ask
        )
        page = next(listing.pages, None)
        infos = [] if page is None else [self._info(blob) for blob in page]
        if listing.prefixes:
            infos += [ObjectInfo(name, None, is_prefix=True) for name in listing.prefixes]
            infos.sort(key=lambda info: info.key)
        return Page(infos, listing.next_page_token or None)

    def _info(self, blob: Any) -> ObjectInfo:
        modified = blob.updated
        return ObjectInfo(
            blob.name,
            blob.size,
            self._etag(blob),
            None if modified is None else modified.timestamp(),
            content_type=blob.content_type,
        )

    def _etag(self, blob: Any) -> str | None:
        """The ETag as the XML API, which obstore reads, writes it: the MD5 where the object has one."""
        if self.access.endpoint is not None:  # emulators have one for both
            return bare_etag(blob.etag)
        if blob.md5_hash:
            return base64.b64decode(blob.md5_hash).hex()
        return f"-{blob.etag}" if blob.etag else None

    def close(self) -> None:
        self.client.close()


def _precondition(key: str) -> Exception:
    from google.api_core.exceptions import PreconditionFailed

    return PreconditionFailed(f"{key} has another ETag")  # type: ignore[no-untyped-call]


def _behind(key: str) -> Exception:
    from google.api_core.exceptions import RequestRangeNotSatisfiable

    return RequestRangeNotSatisfiable(f"the range begins behind the end of {key}")  # type: ignore[no-untyped-call]


class _GoogleParts(Parts):
    """A resumable upload: one part after another, each by one request."""

    concurrent = False

    def __init__(self, client: GoogleClient, key: str, content_type: str | None, part: int) -> None:
        self.client, self.blob = client, client.bucket.blob(key)
        self.part = max(_PART, part // _PART * _PART)
        if content_type is not None:
            self.blob.content_type = content_type
        self.url: str | None = self.blob.create_resumable_upload_session(
            content_type=content_type or "application/octet-stream", timeout=client.write["timeout"], retry=None
        )
        self.sent = 0
        self.etag: str | None = None

    def send(self, number: int, data: BytesLike, last: bool) -> None:
        begin = number * self.part
        end = begin + len(data)
        whole = end if last else "*"
        span = f"bytes {begin}-{end - 1}/{whole}" if data else f"bytes */{whole}"
        answer = self.client.client._http.put(
            self.url, data=bytes(data), headers={"Content-Range": span}, timeout=self.client.write["timeout"], allow_redirects=False
        )
        if answer.status_code not in (200, 201, 308):
            from google.api_core.exceptions import from_http_response

            raise from_http_response(answer)  # type: ignore[no-untyped-call]
        if answer.status_code != 308:
            self.url = None
            self.blob._set_properties(answer.json())
            self.etag = self.client._etag(self.blob)

    def finish(self) -> str | None:
        return self.etag

    def abort(self) -> None:
        url, self.url = self.url, None
        if url is not None:
            self.client.client._http.delete(url, timeout=self.client.ask["timeout"])
