"""Repositories of a Hugging Face hub, `hf://` (models) and `hfd://` (data sets), read over HTTP.

The hub answers `resolve` requests itself or by a redirect to a content server. Size and ETag of the content are those that
the hub tells; the content server gets no token.
"""

from __future__ import annotations

import json
import os
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

from ..config import Transport, credentials_for, endpoint_for, transport_for
from ..errors import AccessDeniedError, ObjectNotFoundError, StoreError, TransferError
from ..retry import with_retries
from ..secrets import masked, remember
from ..settings import first_set
from ..store import ObjectInfo
from ..uri import Uri
from .download import bare_etag
from .http import HttpStore
from .web import Answer

HUB = "https://huggingface.co"
PAGE = 1 << 26
"""Largest page of a listing, in bytes."""
Page: TypeAlias = list[dict[str, Any]]
_TRUE = ("1", "on", "yes", "true")


class HubOfflineError(StoreError, ValueError):
    """HF_HUB_OFFLINE forbids requests to the hub."""


class HubStore(HttpStore):
    """One revision of one repository; keys are paths in it.

    A file that a branch replaces while it is read is a ChangedError.
    """

    _match_on_server = False  # the content server has ETags of its own
    _by_obstore = False

    def __init__(self, uri: Uri, transport: Transport, endpoint: str, token: str | None) -> None:
        """Args:
        uri: whose bucket is `organisation/repository[@revision]`; a slash in the revision is written %2F.
        transport: of all requests.
        endpoint: of the hub, without a slash at its end.
        token: of a user, None for what everybody may read.
        """
        repository, _, revision = uri.bucket.partition("@")
        super().__init__(Uri("https", urllib.parse.urlsplit(endpoint).netloc, ""), transport)
        self.scheme, self.name = uri.scheme, uri.bucket
        self._revision = urllib.parse.quote(revision or "main", safe="%")
        self._files = f"{endpoint}/{'datasets/' if uri.scheme == 'hfd' else ''}{urllib.parse.quote(repository)}/resolve/{self._revision}"
        kind = "datasets" if uri.scheme == "hfd" else "models"
        self._tree = f"{endpoint}/api/{kind}/{urllib.parse.quote(repository)}/tree/{self._revision}"
        if token is not None:
            remember([token])
            self._headers["Authorization"] = f"Bearer {token}"

    @classmethod
    def of(cls, uri: Uri) -> HubStore:
        """The store of a URI's repository, with the configured endpoint and token."""
        endpoint = endpoint_for(uri.scheme) or endpoint_for("hf") or os.environ.get("HF_ENDPOINT") or HUB
        return cls(uri, transport_for(uri.scheme), endpoint.rstrip("/"), _token(uri))

    def _url(self, key: str) -> str:
        return f"{self._files}/{urllib.parse.quote_from_bytes(key.encode('utf-8', 'surrogateescape'))}"

    def _request(self, method: str, url: str, headers: Mapping[str, str], uri: str, *, leave_host: bool = True) -> Answer:
        if os.environ.get("HF_HUB_OFFLINE", "").strip().lower() in _TRUE:
            raise HubOfflineError("HF_HUB_OFFLINE is set: nothing is read from the hub", uri=uri)
        return super()._request(method, url, headers, uri, leave_host=leave_host)

    def _failed(self, status: int, reason: str, headers: Mapping[str, str], uri: str) -> StoreError:
        said = masked(headers.get("x-error-message", "")) or reason
        if status in (404, 410):
            return ObjectNotFoundError(f"not found ({status} {said})", uri=uri, status=status)
        if status in (401, 403):
            way_out = "" if "Authorization" in self._headers else "; no token is configured: set HF_TOKEN or configure_credentials"
            return AccessDeniedError(f"access denied ({status} {said}){way_out}", uri=uri, status=status)
        return super()._failed(status, reason, headers, uri)

    def _describe(self, key: str, answer: Answer, size: int | None) -> ObjectInfo:
        info = super()._describe(key, answer, size)
        headers = {**{name: value for name, value in answer.hop.items() if name.startswith("x-")}, **answer.headers}
        linked = headers.get("x-linked-size", "")
        return replace(
            info,
            size=int(linked) if linked.isdecimal() else size,
            etag=bare_etag(headers["x-linked-etag"]) if "x-linked-etag" in headers else info.etag if answer.status < 300 else None,
            headers=headers,
        )

    def head(self, key: str, *, headers: Mapping[str, str] | None = None) -> ObjectInfo:
        """See `Store.head`: what the hub itself tells; the content server is asked only for what the hub does not."""
        uri = self.uri(key)

        def attempt() -> ObjectInfo:
            answer = self._request("HEAD", self._url(key), self._own_headers(), uri, leave_host=False)
            answer.finish()
            length = answer.headers.get("content-length", "") if answer.status < 300 else ""
            return self._describe(key, answer, int(length) if length.isdecimal() else None)

        info = with_retries(attempt, self._transport)
        if info.status < 300:
            return info
        if info.size is None or info.etag is None:
            return super().head(key, headers=headers)
        return replace(info, status=200)

    def list(self, prefix: str, *, delimited: bool = False) -> Iterator[ObjectInfo]:
        """See `Store.list`."""
        folder = prefix.rpartition("/")[0]
        recursive = "false" if delimited else "true"
        try:
            for entry in self._entries(folder, recursive):
                path, is_folder = entry["path"], entry.get("type") == "directory"
                if not path.startswith(prefix) or (is_folder and not delimited):
                    continue
                if is_folder:
                    yield ObjectInfo(key=f"{path}/", size=None, is_prefix=True)
                    continue
                oid = (entry.get("lfs") or entry).get("oid")
                yield ObjectInfo(key=path, size=entry.get("size"), etag=oid)
        except ObjectNotFoundError:
            if not folder:
                raise
            next(self._entries("", "false"), None)  # a folder that is not there is empty; a repository is not found

    def _entries(self, folder: str, recursive: str) -> Iterator[dict[str, Any]]:
        uri = self.uri(folder)
        url: str | None = f"{self._tree}/{urllib.parse.quote(folder)}".rstrip("/") + f"?recursive={recursive}"
        while url is not None:
            page, url = with_retries(partial(self._page, url, uri), self._transport)
            yield from page

    def _page(self, url: str, uri: str) -> tuple[Page, str | None]:
        answer = self._request("GET", url, self._own_headers(), uri)
        try:
            page = json.loads(answer.json_bytes(PAGE))
            if not isinstance(page, list) or not all(isinstance(entry, dict) and isinstance(entry.get("path"), str) for entry in page):
                raise ValueError("no list of entries with their paths")
        except ValueError as error:
            raise TransferError(f"the hub's listing cannot be read: {error}", uri=uri) from error
        finally:
            answer.finish()
        following = None
        for link in urllib.request.parse_http_list(answer.headers.get("link", "")):
            address, _, rest = link.partition(";")
            if 'rel="next"' in rest.replace("'", '"'):
                following = urllib.parse.urljoin(url, address.strip().strip("<>"))
        if following is not None and urllib.parse.urlsplit(following).netloc != urllib.parse.urlsplit(url).netloc:
            raise TransferError("the hub's listing goes on at another host", uri=uri)
        return page, following


def _token(uri: Uri) -> str | None:
    """What is configured for the repository, else the environment's."""
    repository = uri.bucket.partition("@")[0]
    found = credentials_for(uri.scheme, repository)
    if uri.scheme == "hfd" and found.method == "default":
        found = credentials_for("hf", repository)
    if found.method == "anonymous":
        return None
    return found.values.get("token") or first_set("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
