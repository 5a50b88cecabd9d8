"""What the errors of obstore and of the providers' packages mean: one table for all, by the status and code of the answer.

`translated` tells the error of `io.errors` to raise; one that may pass comes inside a `PassingError`, which `io.retry`
tries again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ...engine.errors import DataioError
from ..errors import (
    AccessDeniedError,
    ChangedError,
    CredentialsError,
    DeadlineError,
    ObjectNotFoundError,
    RangeError,
    StoreError,
    TransferError,
)
from ..retry import PassingError

_PASSING_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
_PASSING_CODES = frozenset(
    {
        "SlowDown",
        "ServerBusy",
        "InternalError",
        "RequestTimeout",
        "OperationTimedOut",
        "OperationAborted",
        "ConditionalRequestConflict",
        "Throttling",
        "ThrottlingException",
        "RequestLimitExceeded",
        "BandwidthLimitExceeded",
    }
)
"""Codes that may pass under a status that says otherwise (S3 tells a slow upload by 400, a conflict by 409)."""
_BUCKET_CODES = frozenset({"NoSuchBucket", "ContainerNotFound", "ContainerBeingDeleted"})
_REGION_CODES = frozenset({"PermanentRedirect", "TemporaryRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"})

_STATUS = re.compile(r"status code: (\d{3})|\bstatus: (\d{3})\b|\(code: (\d{3})\)")
_ITEM_CODE = re.compile(r"\(code: ([A-Za-z]+)\)")
"""Of one key of a request that deletes several."""
_CODE = re.compile(r"<Code>([^<]*)</Code>")
_MESSAGE = re.compile(r"<Message>([^<]*)</Message>")
_REGION = re.compile(r"<Region>([^<]+)</Region>|expecting '([a-z0-9-]+)'")
_METADATA = ("169.254.169.254", "169.254.170.2", "metadata.google.internal", "fd00:ec2::254")
"""Hosts that give credentials to whoever runs on a provider's machines: a failure there means that there are none."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed request.

    Attributes:
        kind: answer, timeout, connection (no answer, or one that broke off), credentials or other.
        status: of the answer.
        code, text, region: of the answer's body, as far as it had them.
        after: seconds of a Retry-After header.
    """

    kind: str
    text: str
    status: int | None = None
    code: str = ""
    region: str | None = None
    after: float | None = None


def failure_of(error: BaseException) -> Failure:
    """What an error of obstore, botocore, google-cloud-storage, azure-storage-blob or urllib3 tells."""
    module = type(error).__module__
    if module.startswith("botocore"):
        return _of_botocore(error)
    if module.startswith("azure"):
        return _of_azure(error)
    if module.startswith("google"):
        return _of_google(error)
    if module.startswith(("urllib3", "requests", "http.client")):
        return _of_connection(error)
    return _of_obstore(error)


def translated(error: Exception, uri: str) -> Exception:
    """The error to raise for a request about `uri` that failed with `error`, which becomes its cause."""
    if isinstance(error, (DataioError, PassingError)):
        return error
    found = failure_of(error)
    meant = _meaning(found, uri)
    meant.__cause__ = error
    return PassingError(meant, found.after) if _passes(found) else meant


def _passes(found: Failure) -> bool:
    if found.kind in ("timeout", "connection"):
        return True
    return found.kind == "answer" and (found.status in _PASSING_STATUS or found.code in _PASSING_CODES)


def _meaning(found: Failure, uri: str) -> Exception:
    status, code = found.status, found.code
    told = f"{code}: {found.text}" if code and code not in found.text else found.text or code
    if found.kind == "credentials":
        return CredentialsError(f"{uri}: no credentials were found, or they could not be renewed ({_short(told)})")
    if found.kind == "timeout":
        return DeadlineError(f"no answer in time ({_short(told)})", uri=uri)
    if found.kind == "connection":
        return TransferError(f"the connection failed ({_short(told)})", uri=uri)
    if found.kind == "other":
        return StoreError(_short(told), uri=uri)
    if code in _REGION_CODES or status in (301, 307):
        where = f"it is in {found.region}: set AWS_REGION={found.region}" if found.region else "set AWS_REGION to the region it is in"
        return StoreError(f"the bucket is in another region than the request went to; {where} ({_short(told)})", uri=uri, status=status)
    if status in (404, 410) or code in _BUCKET_CODES:
        what = "no such bucket" if code in _BUCKET_CODES else "no such object"
        return ObjectNotFoundError(what, uri=uri, status=status)
    if status in (401, 403):
        return AccessDeniedError(f"access denied ({_short(told)})", uri=uri, status=status)
    if status == 412:
        return ChangedError("the object was replaced while it was read", uri=uri, status=status)
    if status == 416:
        return RangeError("the range begins behind the end of the object", uri=uri, status=status)
    kind = TransferError if status in _PASSING_STATUS or code in _PASSING_CODES else StoreError
    return kind(f"the store answered {status} ({_short(told)})", uri=uri, status=status)


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 400 else text[:400] + " ..."


# -------------------------------------------------------------------- obstore


def _of_obstore(error: BaseException) -> Failure:
    text = str(error)
    told, _, detail = text.partition("\n\nDebug source:")
    name = type(error).__name__
    if any(host in text for host in _METADATA) or "token request" in told or "CredentialProvider" in text:
        return Failure("credentials", told)
    written = _first(_STATUS, text)
    status = int(written) if written else None
    if isinstance(error, FileNotFoundError) or name == "NotFoundError":
        status = 404
    status = {"PermissionDeniedError": 403, "UnauthenticatedError": 401, "PreconditionError": 412}.get(name, status)
    if name == "AlreadyExistsError":
        status = 409
    if "BareRedirect" in detail or "redirect without LOCATION" in told:
        status = 301
    if "Wanted range starting at" in told:  # Azure's answer to a range that begins behind the end, told by obstore
        status = 416
    if status is None and (code := _first(_ITEM_CODE, told)):
        return Failure("answer", told, 403 if code == "AccessDenied" else 400, code)
    if status is not None:
        code = _first(_CODE, text) or ("ContainerNotFound" if "container does not exist" in told else "")
        return Failure("answer", _first(_MESSAGE, text) or told, status, code, _first(_REGION, text) or None)
    if isinstance(error, TimeoutError) or "kind: Timeout" in detail or "TimedOut" in detail:
        return Failure("timeout", told)
    if "ertificate" in detail:  # trying again would not help
        return Failure("other", f"{told}: the server's certificate is not trusted; configure_transport(ca_certificates=) adds one")
    if isinstance(error, ConnectionError) or "HttpError" in detail or "HTTP error" in told or "hyper" in detail:
        return Failure("connection", told)
    return Failure("other", told)


def _first(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.search(text)
    return next((group for group in found.groups() if group), "") if found else ""


# ------------------------------------------------------- the providers' packages


def _of_botocore(error: BaseException) -> Failure:
    name, text = type(error).__name__, str(error)
    answer = getattr(error, "response", None)
    if isinstance(answer, dict) and "Error" in answer:
        about, meta = answer["Error"], answer.get("ResponseMetadata", {})
        headers = meta.get("HTTPHeaders", {})
        status = meta.get("HTTPStatusCode")
        region = headers.get("x-amz-bucket-region") or about.get("Region") or _first(_REGION, text) or None
        code = str(about.get("Code", ""))
        if status == 400 and code == "400":  # a HEAD has no body to tell more
            code = "AuthorizationHeaderMalformed" if region else code
        return Failure("answer", str(about.get("Message", text)), status, code, region, _seconds(headers.get("retry-after")))
    if "Credential" in name or "Token" in name or "SSO" in name or "ProfileNotFound" in name:
        return Failure("credentials", text)
    if "Timeout" in name:
        return Failure("timeout", text)
    if name == "SSLError":
        return Failure("other", text)
    if "Connection" in name or "Endpoint" in name or name in ("HTTPClientError", "IncompleteReadError", "ResponseStreamingError"):
        return Failure("connection", text)
    return Failure("other", text)


def _of_azure(error: BaseException) -> Failure:
    name, text = type(error).__name__, str(getattr(error, "message", error))
    status = getattr(error, "status_code", None)
    if status is not None:
        code = str(getattr(error, "error_code", None) or _first(_CODE, text))
        headers = getattr(getattr(error, "response", None), "headers", {}) or {}
        return Failure("answer", text.partition("\nTime:")[0], int(status), code.rpartition(".")[2], None, _seconds(headers.get("Retry-After")))
    if name == "ClientAuthenticationError" or "Credential" in name:
        return Failure("credentials", text)
    if "Timeout" in name or "timed out" in text:
        return Failure("timeout", text)
    if name in ("ServiceRequestError", "ServiceResponseError", "IncompleteReadError", "HttpResponseError", "StreamClosedError"):
        return Failure("connection", text)
    return Failure("other", text)


def _of_google(error: BaseException) -> Failure:
    name, text = type(error).__name__, str(error)
    answer = getattr(error, "response", None)
    status = getattr(error, "code", None) or getattr(answer, "status_code", None)
    if isinstance(status, int):
        headers = getattr(answer, "headers", {}) or {}
        code = "NoSuchBucket" if status == 404 and "bucket does not exist" in text else ""
        return Failure("answer", text, int(status), code, None, _seconds(headers.get("Retry-After")))
    if type(error).__module__.startswith("google.auth"):
        return Failure("connection" if name == "TransportError" else "credentials", text)
    if name in ("RetryError", "DataCorruption"):
        return Failure("connection", text)
    return Failure("other", text)


def _of_connection(error: BaseException) -> Failure:
    name, text = type(error).__name__, str(error)
    if "Timeout" in name or "timed out" in text:
        return Failure("timeout", text)
    return Failure("other" if "SSL" in name or "Invalid" in name else "connection", text)


def _seconds(text: str | None) -> float | None:
    try:
        return None if text is None else max(0.0, float(text))
    except ValueError:  # a date
        return None
