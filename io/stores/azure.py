"""Azure Blob Storage through azure-storage-blob. It keeps every name but those with a `.` or `..` segment, which its HTTP
client takes for folders and the service does not store."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from ..errors import CredentialsError, UnsupportedError
from ..store import Body, BytesLike, ObjectInfo
from .download import bare_etag
from .sdk import PAGE, Page, Parts, SdkClient

if TYPE_CHECKING:
    from .object_access import AzureAccess

_POLL = 0.2
"""Seconds between two looks at a copy that the service makes in the background."""
_CLOCKS = timedelta(minutes=5)
"""By how much a signature's begin lies in the past, for clocks that differ."""


class AzureClient(SdkClient):
    """One container."""

    def __init__(self, access: AzureAccess) -> None:
        from azure.storage.blob import BlobServiceClient

        transport = access.transport
        credential: Any = access.sas or access.identity
        if access.key:
            credential = {"account_name": access.account, "account_key": access.key}
        options: dict[str, Any] = {
            "retry_total": 0,
            "connection_timeout": transport.connect_timeout,
            "read_timeout": transport.timeout,
            "max_single_get_size": 8 << 20,
            "max_chunk_get_size": 8 << 20,
            "max_single_put_size": 5000 << 20,  # who calls cuts into parts
        }
        if transport.proxy is not None:
            options["proxies"] = {"http": transport.proxy, "https": transport.proxy}
        if transport.ca_certificates is not None:
            options["connection_verify"] = transport.ca_certificates
        self.access = access
        self.service = BlobServiceClient(access.url, credential=credential, **options)
        self.container = self.service.get_container_client(access.bucket)

    def _blob(self, key: str, container: str | None = None) -> Any:
        if any(segment in (".", "..") for segment in key.split("/")):
            raise UnsupportedError(f"az://{self.access.bucket}/{key}: Azure stores no names with a '.' or '..' segment")
        client = self.container if container is None else self.service.get_container_client(container)
        return client.get_blob_client(key)

    def open(self, key: str, offset: int, size: int | None, if_match: str | None) -> Body:
        from azure.core import MatchConditions

        options: dict[str, Any] = {}
        if if_match is not None:
            options = {"etag": f'"{if_match}"', "match_condition": MatchConditions.IfNotModified}
        if offset or size is not None:
            options |= {"offset": offset, "length": size}
        stream = self._blob(key).download_blob(**options)
        chunks: Iterator[bytes] = stream.chunks()
        return Body(_info(key, stream.properties), chunks)

    def head(self, key: str) -> ObjectInfo:
        return _info(key, self._blob(key).get_blob_properties())

    def put(self, key: str, data: BytesLike, content_type: str | None) -> str | None:
        answer = self._blob(key).upload_blob(bytes(data), overwrite=True, read_timeout=self.access.transport.put_timeout, **_typed(content_type))
        return bare_etag(answer.get("etag"))

    def begin(self, key: str, content_type: str | None, part: int) -> Parts:
        return _AzureParts(self, key, content_type)

    def delete(self, key: str) -> None:
        from azure.core.exceptions import ResourceNotFoundError

        try:
            self._blob(key).delete_blob(delete_snapshots="include")
        except ResourceNotFoundError as error:
            if getattr(error, "error_code", "") == "ContainerNotFound":
                raise

    def copy(self, key: str, to_bucket: str, to_key: str) -> None:
        source, target = self._blob(key), self._blob(to_key, to_bucket)
        url = source.url
        if self.access.key and to_bucket != self.access.bucket:
            url = self.sign(key, 3600, "GET")
        state = target.start_copy_from_url(url).get("copy_status")
        while state == "pending":
            time.sleep(_POLL)
            state = target.get_blob_properties().copy.status
        if state not in ("success", None):
            from azure.core.exceptions import AzureError

            raise AzureError(f"the copy ended as {state!r}")

    def sign(self, key: str, expires: int, method: str) -> str:
        from azure.storage.blob import BlobSasPermissions, generate_blob_sas

        blob = self._blob(key)
        if self.access.sas:
            raise CredentialsError(f"az://{self.access.bucket}: a shared access signature cannot sign further URLs; an account key can")
        begin, end = datetime.now(UTC) - _CLOCKS, datetime.now(UTC) + timedelta(seconds=expires)
        signer: dict[str, Any] = {"account_key": self.access.key}
        if not self.access.key:
            if self.access.identity is None:
                raise CredentialsError(f"az://{self.access.bucket}: anonymous requests cannot sign URLs")
            signer = {"user_delegation_key": self.service.get_user_delegation_key(begin, end)}
        may = BlobSasPermissions(read=method != "PUT", write=method == "PUT", create=method == "PUT")
        token = generate_blob_sas(self.access.account or "", self.access.bucket, key, permission=may, expiry=end, start=begin, **signer)
        return f"{blob.url}?{token}"

    def page(self, prefix: str, delimited: bool, token: str | None) -> Page:
        begins = prefix or None
        pages: Any
        if delimited:
            pages = self.container.walk_blobs(name_starts_with=begins, delimiter="/", results_per_page=PAGE).by_page(token)
        else:
            pages = self.container.list_blobs(name_starts_with=begins, results_per_page=PAGE).by_page(token)
        page = next(pages, None)
        infos = [_listed(entry) for entry in page or ()]
        return Page(infos, pages.continuation_token or None)

    def close(self) -> None:
        self.service.close()


class _AzureParts(Parts):
    """Blocks that are committed at the end; the service drops blocks that never are after a week."""

    def __init__(self, client: AzureClient, key: str, content_type: str | None) -> None:
        self.client, self.blob, self.typed = client, client._blob(key), _typed(content_type)
        self.numbers: set[int] = set()

    def send(self, number: int, data: BytesLike, last: bool) -> None:
        self.blob.stage_block(_block(number), bytes(data), read_timeout=self.client.access.transport.put_timeout)
        self.numbers.add(number)

    def finish(self) -> str | None:
        from azure.storage.blob import BlobBlock

        answer = self.blob.commit_block_list([BlobBlock(_block(number)) for number in sorted(self.numbers)], **self.typed)
        return bare_etag(answer.get("etag"))

    def abort(self) -> None:
        """Nothing to say to the service."""


def _block(number: int) -> str:
    return base64.b64encode(f"{number:08d}".encode()).decode()


def _info(key: str, properties: Any) -> ObjectInfo:
    modified = properties.last_modified
    return ObjectInfo(
        key,
        properties.size,
        bare_etag(properties.etag),
        None if modified is None else modified.timestamp(),
        content_type=properties.content_settings.content_type,
    )


def _listed(entry: Any) -> ObjectInfo:
    if hasattr(entry, "size"):
        return _info(entry.name, entry)
    return ObjectInfo(entry.name, None, is_prefix=True)


def _typed(content_type: str | None) -> dict[str, Any]:
    if content_type is None:
        return {}
    from azure.storage.blob import ContentSettings

    return {"content_settings": ContentSettings(content_type=content_type)}
