"""What goes wrong with bytes: each error is also the builtin a Python user expects, names the URI and chains its cause.

URIs and messages pass through `masked`, so that no error shows a secret.
"""

from __future__ import annotations

from ..engine.errors import DataioError, OpError
from .secrets import masked


class ReadError(DataioError, OSError):
    """A source that is there but cannot be read."""


class StoreError(DataioError, OSError):
    """A request to a store failed.

    Attributes:
        uri: what was asked for, secrets masked; None when no one object is at fault.
        status: HTTP status of the answer, None when there was none.
    """

    def __init__(self, text: str, *, uri: str | None = None, status: int | None = None) -> None:
        self.uri = None if uri is None else masked(uri)
        self.status = status
        text = masked(text)
        super().__init__(text if self.uri is None or self.uri in text else f"{self.uri}: {text}")

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), str(self), self.uri, self.status)


def _rebuild(kind: type[StoreError], text: str, uri: str | None, status: int | None) -> StoreError:
    return kind(text, uri=uri, status=status)


class ObjectNotFoundError(StoreError, FileNotFoundError):
    """No such object, bucket or folder."""


class AccessDeniedError(StoreError, PermissionError):
    """The store knows who asks, or that nobody does, and refuses (401, 403). Never the same as missing."""


class DeadlineError(StoreError, TimeoutError):
    """The store did not answer in time, all attempts included."""


class TransferError(StoreError, ConnectionError):
    """The connection failed, or the server kept answering with an error, until attempts or time ran out."""


class HttpNotFoundError(ObjectNotFoundError, ConnectionError):
    """404 or 410 of a plain web server; a `ConnectionError` too, as every error status of one is."""


class HttpDeniedError(AccessDeniedError, ConnectionError):
    """401 or 403 of a plain web server."""


class ChangedError(StoreError):
    """The object was replaced while it was read: its parts belong to different versions. Read it again."""


class RangeError(StoreError, ConnectionError, ValueError):
    """A range that begins behind the end of an object (status 416; a `ConnectionError` as other statuses of web servers)."""


class CredentialsError(DataioError, ConnectionError):
    """No credentials were found for a store, or those that were configured cannot be used with it."""

    def __init__(self, text: str) -> None:
        super().__init__(masked(text))


class UriError(DataioError, ValueError):
    """A URI that names nothing: unknown scheme, no bucket, no key."""


class UnsupportedError(DataioError, NotImplementedError):
    """A store of this scheme cannot do this; the message says what can."""


class ResponseTooLargeError(DataioError, RuntimeError):
    """The content is larger than `max_response_bytes` or `max_output_bytes` allows, and was not read."""


class HttpTooLargeError(ResponseTooLargeError, ConnectionError):
    """An answer over http that is larger than `max_response_bytes` allows."""


class DecodedTooLargeError(OpError):
    """A decompressed stream grew over `max_output_bytes`; decoding stopped there."""


class UnsupportedSchemeError(UriError, NotImplementedError):
    """A scheme that no store is registered for."""
