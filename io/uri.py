"""What a URI means. Keys are taken as they stand: nothing is unquoted outside `file://`."""

from __future__ import annotations

from urllib.parse import unquote


def scheme_of(uri: str) -> str | None:
    """`"s3"` for `s3://bucket/key`; None for a plain path (a Windows drive letter is no scheme)."""
    head, separator, _ = uri.partition("://")
    return head.lower() if separator and head.isalnum() and len(head) > 1 else None


def local_path(uri: str | bytes) -> str | bytes | None:
    """The file system path of a plain path or a `file://` URI, None for any other scheme."""
    if isinstance(uri, bytes) or "://" not in uri:
        return uri
    scheme = scheme_of(uri)
    if scheme is None:
        return uri
    if scheme == "file":
        return unquote(uri[len("file://") :].removeprefix("localhost"))
    return None
