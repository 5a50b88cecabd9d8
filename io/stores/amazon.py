"""S3 through botocore: keys as they are, and listings by urllib3 and the standard library's XML parser (botocore's own
takes ten times as long)."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Sequence
from datetime import datetime
from html import unescape
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_plus

from ..errors import StoreError
from ..store import Body, BytesLike, ObjectInfo
from .download import bare_etag
from .sdk import CHUNK, PAGE, Page, Parts, SdkClient, chunked

if TYPE_CHECKING:
    from .object_access import AmazonAccess

COPY_LIMIT = 5 << 30
"""Bytes above which S3 copies only in parts."""
COPY_PART = 1 << 30
_LARGEST_PAGE = 64 << 20
"""Bytes of one page of a listing above which it is no page: a thousand keys of the longest kind take 4 MiB."""


class AmazonClient(SdkClient):
    """One bucket of S3, R2 or another store that speaks the protocol."""

    def __init__(self, access: AmazonAccess) -> None:
        import botocore.client
        import botocore.config
        import botocore.session
        import urllib3

        transport, proxy = access.transport, access.transport.proxy
        self.access, self.bucket = access, access.bucket
        session = access.session if access.keys is not None and not isinstance(access.keys, tuple) else botocore.session.Session()
        config = botocore.config.Config(
            signature_version=botocore.UNSIGNED if access.anonymous else "s3v4",
            region_name=access.region,
            retries={"total_max_attempts": 1},
            connect_timeout=transport.connect_timeout,
            read_timeout=transport.timeout,
            max_pool_connections=64,
            proxies=None if proxy is None else {"http": proxy, "https": proxy},
            s3={"addressing_style": "path" if access.endpoint is not None else "auto"},
            request_checksum_calculation="when_required",  # other stores than Amazon's refuse what newer versions send
            response_checksum_validation="when_required",
        )
        keys = dict(zip(("aws_access_key_id", "aws_secret_access_key", "aws_session_token"), access.keys)) if isinstance(access.keys, tuple) else {}
        self.client = session.create_client(
            "s3", endpoint_url=access.endpoint, region_name=access.region, config=config, verify=transport.ca_certificates, **keys
        )
        pool: dict[str, Any] = {"retries": False, "timeout": urllib3.Timeout(transport.connect_timeout, transport.timeout), "maxsize": 8}
        if transport.ca_certificates is not None:
            pool["ca_certs"] = transport.ca_certificates
        self.pool = urllib3.PoolManager(**pool) if proxy is None else urllib3.ProxyManager(proxy, **pool)

    def open(self, key: str, offset: int, size: int | None, if_match: str | None) -> Body:
        options: dict[str, Any] = {}
        if offset or size is not None:
            options["Range"] = f"bytes={offset}-" if size is None else f"bytes={offset}-{offset + size - 1}"
        if if_match is not None:
            options["IfMatch"] = f'"{if_match}"'
        answer = self.client.get_object(Bucket=self.bucket, Key=key, **options)
        body = answer["Body"]
        return Body(_info(key, answer), chunked(body.iter_chunks(CHUNK)), body.close)

    def head(self, key: str) -> ObjectInfo:
        return _info(key, self.client.head_object(Bucket=self.bucket, Key=key))

    def put(self, key: str, data: BytesLike, content_type: str | None) -> str | None:
        answer = self.client.put_object(Bucket=self.bucket, Key=key, Body=_body(data), **_typed(content_type))
        return bare_etag(answer.get("ETag"))

    def begin(self, key: str, content_type: str | None, part: int) -> Parts:
        answer = self.client.create_multipart_upload(Bucket=self.bucket, Key=key, **_typed(content_type))
        return _AmazonParts(self, key, answer["UploadId"])

    def delete(self, key: str) -> None:
        self.client.delete_object(Bucket=self.bucket, Key=key)

    def delete_many(self, keys: Sequence[str]) -> None:
        odd = [key for key in keys if not key.isprintable()]  # XML cannot hold all of those
        many = [{"Key": key} for key in keys if key.isprintable()]
        if many:
            answer = self.client.delete_objects(Bucket=self.bucket, Delete={"Objects": many, "Quiet": True})
            for wrong in answer.get("Errors", ()):
                self.delete(wrong["Key"])  # which raises an error that says why
        for key in odd:
            self.delete(key)

    def copy(self, key: str, to_bucket: str, to_key: str) -> None:
        source = {"Bucket": self.bucket, "Key": key}
        info = self.client.head_object(Bucket=self.bucket, Key=key)
        size = info["ContentLength"]
        if size <= COPY_LIMIT:
            self.client.copy_object(Bucket=to_bucket, Key=to_key, CopySource=source)
            return
        kept = {name: info[name] for name in ("ContentType", "ContentEncoding", "CacheControl", "Metadata") if info.get(name)}
        upload = self.client.create_multipart_upload(Bucket=to_bucket, Key=to_key, **kept)
        at = {"Bucket": to_bucket, "Key": to_key, "UploadId": upload["UploadId"]}
        try:
            parts = []
            for number, begin in enumerate(range(0, size, COPY_PART), 1):
                part = self.client.upload_part_copy(
                    **at,
                    PartNumber=number,
                    CopySource=source,
                    CopySourceRange=f"bytes={begin}-{min(begin + COPY_PART, size) - 1}",
                    CopySourceIfMatch=info["ETag"],
                )
                parts.append({"PartNumber": number, "ETag": part["CopyPartResult"]["ETag"]})
            self.client.complete_multipart_upload(**at, MultipartUpload={"Parts": parts})
        except BaseException:
            self.client.abort_multipart_upload(**at)
            raise

    def sign(self, key: str, expires: int, method: str) -> str:
        operation = {"GET": "get_object", "PUT": "put_object", "HEAD": "head_object"}[method]
        return str(self.client.generate_presigned_url(operation, Params={"Bucket": self.bucket, "Key": key}, ExpiresIn=expires))

    def page(self, prefix: str, delimited: bool, token: str | None) -> Page:
        asked = {"list-type": "2", "encoding-type": "url", "max-keys": str(PAGE), "prefix": prefix}
        if delimited:
            asked["delimiter"] = "/"
        if token is not None:
            asked["continuation-token"] = token
        url, headers = self._signed(asked)
        answer = self.pool.request("GET", url, headers=headers, preload_content=False)
        try:
            data = answer.read(_LARGEST_PAGE)
        finally:
            answer.release_conn()
        if answer.status != 200:
            raise _refused(answer.status, answer.headers, data)
        return parse_page(data)

    def _signed(self, asked: dict[str, str]) -> tuple[str, dict[str, str]]:
        from botocore.auth import S3SigV4Auth
        from botocore.awsrequest import AWSRequest

        request = AWSRequest(method="GET", url=f"{self.client.meta.endpoint_url}/{self.bucket}", params=asked)
        keys = self.client._request_signer._credentials if not self.access.anonymous else None
        if keys is not None:
            S3SigV4Auth(keys.get_frozen_credentials(), "s3", self.access.region).add_auth(request)
        ready = request.prepare()
        return ready.url, dict(ready.headers.items())

    def close(self) -> None:
        self.pool.clear()
        self.client.close()


class _AmazonParts(Parts):
    def __init__(self, client: AmazonClient, key: str, upload: str) -> None:
        self.client = client.client
        self.at = {"Bucket": client.bucket, "Key": key, "UploadId": upload}
        self.etags: dict[int, str] = {}

    def send(self, number: int, data: BytesLike, last: bool) -> None:
        answer = self.client.upload_part(**self.at, PartNumber=number + 1, Body=_body(data))
        self.etags[number + 1] = answer["ETag"]

    def finish(self) -> str | None:
        parts = [{"PartNumber": number, "ETag": etag} for number, etag in sorted(self.etags.items())]
        return bare_etag(self.client.complete_multipart_upload(**self.at, MultipartUpload={"Parts": parts}).get("ETag"))

    def abort(self) -> None:
        self.client.abort_multipart_upload(**self.at)


def parse_page(data: bytes) -> Page:
    """One page of ListObjectsV2.

    The entries of an ordinary page, which are most of it, are cut out as text, which takes a third of the time of the XML
    parser; what is around them, and a page with anything unusual (comments, CDATA, prefixed tags), by the parser.

    Raises:
        StoreError: it is no listing.
    """
    text = "" if b"<!" in data or b"\r" in data else data.decode(errors="replace")
    around, *rest = text.split("<Contents>")
    quick = []
    for part in rest:
        entry, _, behind = part.partition("</Contents>")
        quick.append(entry)
        around += behind
    try:
        root = ElementTree.fromstring(around if quick else data)
        space = root.tag.rpartition("}")[0]
        space = space + "}" if space else ""
        if root.tag != f"{space}ListBucketResult":
            raise StoreError(f"the answer to a listing is a {root.tag.removeprefix(space)}")
        decode = unquote_plus if root.findtext(f"{space}EncodingType") == "url" else str
        if quick:
            infos = [_entry(entry, decode) for entry in quick]
        else:
            infos = [_slow_entry(entry, space, decode) for entry in root.iter(f"{space}Contents")]
    except (ElementTree.ParseError, ValueError) as error:
        raise StoreError(f"the answer to a listing cannot be read: {error}") from error
    prefixes = [entry.findtext(f"{space}Prefix") or "" for entry in root.iter(f"{space}CommonPrefixes")]
    if prefixes:
        infos += [ObjectInfo(decode(prefix), None, is_prefix=True) for prefix in prefixes]
        infos.sort(key=lambda info: info.key)
    more = root.findtext(f"{space}IsTruncated") == "true"
    token = root.findtext(f"{space}NextContinuationToken") if more else None
    if more and not token:
        raise StoreError("a listing says that it goes on, but not where")
    return Page(infos, token)


_USUAL = re.compile(r"<Key>([^<]*)</Key><LastModified>([^<]*)</LastModified><ETag>([^<]*)</ETag><Size>(\d+)</Size>")
"""An entry as Amazon writes it."""


def _entry(text: str, decode: Callable[[str], str]) -> ObjectInfo:
    usual = _USUAL.match(text)
    if usual is not None:
        key, modified, etag, size = usual.groups()
    else:
        key, modified, etag, size = (_field(text, tag) for tag in ("Key", "LastModified", "ETag", "Size"))
    if key is None or size is None:
        raise ValueError("an entry without a key or size")
    if "&" in key:
        key = unescape(key)
    if etag is not None:
        etag = etag[6:-6] if etag.startswith("&quot;") and etag.endswith("&quot;") else bare_etag(unescape(etag))
    return ObjectInfo(decode(key), int(size), etag, _time(modified))


def _field(text: str, tag: str) -> str | None:
    begin = text.find(f"<{tag}>")
    if begin < 0:
        return None
    begin += len(tag) + 2
    end = text.find("<", begin)
    return text[begin:end] if end >= 0 else None


def _slow_entry(entry: ElementTree.Element, space: str, decode: Callable[[str], str]) -> ObjectInfo:
    key, size, etag, modified = (entry.findtext(space + tag) for tag in ("Key", "Size", "ETag", "LastModified"))
    if key is None or size is None:
        raise ValueError("an entry without a key or size")
    return ObjectInfo(decode(key), int(size), bare_etag(etag), _time(modified))


def _time(text: str | None) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp() if text else None
    except ValueError:
        return None


def _refused(status: int, headers: Any, data: bytes) -> Exception:
    """botocore's error of an answer that botocore did not fetch."""
    from botocore.exceptions import ClientError
    from botocore.parsers import RestXMLParser

    answer = {"status_code": status, "headers": {name.lower(): value for name, value in headers.items()}, "body": data}
    error: Exception = ClientError(RestXMLParser().parse(answer, None), "ListObjectsV2")
    return error


def _info(key: str, answer: dict[str, Any]) -> ObjectInfo:
    told = answer["ResponseMetadata"]
    size = answer.get("ContentLength")
    if total := answer.get("ContentRange", "").rpartition("/")[2]:
        size = int(total) if total.isdigit() else None
    modified = answer.get("LastModified")
    return ObjectInfo(
        key,
        size,
        bare_etag(answer.get("ETag")),
        None if modified is None else modified.timestamp(),
        content_type=answer.get("ContentType"),
        headers=told.get("HTTPHeaders", {}),
        status=told["HTTPStatusCode"],
    )


def _body(data: BytesLike) -> Any:
    """What botocore takes without a copy: it hashes and sends a `bytes`, a `bytearray` or a file."""
    return data if isinstance(data, (bytes, bytearray)) else bytes(data)


def _typed(content_type: str | None) -> dict[str, str]:
    return {} if content_type is None else {"ContentType": content_type}
