"""Keeping secrets out of what is shown: texts are masked before they enter an error, a log line, a repr or a trace.

Masking is for messages alone: names in results are never touched, though they may look like a signed query.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from urllib.parse import quote, unquote

MASK = "***"
SECRET_NAMES = frozenset(
    {
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "R2_ACCESS_KEY_ID",
        "R2_SECRET_ACCESS_KEY",
        "R2_SESSION_TOKEN",
        "AZURE_STORAGE_ACCOUNT_KEY",
        "AZURE_STORAGE_SAS_TOKEN",
        "HF_TOKEN",
        "HUGGING_FACE_HUB_TOKEN",
    }
)
"""Environment variables whose values are secrets."""
_SHORTEST = 4
"""Texts with fewer characters are too common to be masked."""
_SHORTEST_NAME = 16
"""A key's identifier is masked from this length on: emulators take "test", and masking that would spoil ordinary words."""
_known: set[str] = set()
_SIGNED = r"x-(?:amz|goog)-(?:signature|credential|security-token)|signature|sig|googleaccessid|awsaccesskeyid|credential"
_NAMED = r"access_?token|token|api_?key|key|password|secret"
_PARAMETERS = re.compile(rf"(?i)((?:(?:^|[?&;,\s\"'])(?:{_SIGNED})|[?&;](?:{_NAMED}))=)[^&#\s\"',]+")
_USER = re.compile(r"(?<=://)[^/\s]*@")
_HEADER = re.compile(r"(?i)(\b(?:proxy-)?authorization\b[\"']?\s*[:=]\s*[\"']?(?:[\w-]+\s+)?)[^\s\"',]+")
_SCHEME = re.compile(r"(?i)\b(bearer|basic|sharedkey(?:lite)?)\s+(?=[\w.~+/=:-]*\d)[\w.~+/=:-]{8,}")


def remember(secrets: Iterable[str | None]) -> None:
    """Mask these texts from now on, as they are and as URLs, JSON and reprs write them; those under four characters stay."""
    for secret in secrets:
        if secret is not None and len(secret) >= _SHORTEST:
            _known.update(_spellings(secret))


def remember_name(identifier: str | None) -> None:
    """Mask a key's identifier, such as AWS_ACCESS_KEY_ID, unless it is a short one."""
    if identifier is not None and len(identifier) >= _SHORTEST_NAME:
        remember([identifier])


def remember_document(text: str | None) -> None:
    """Mask a document of credentials, such as a service account's JSON, and each secret in it."""
    try:
        document = json.loads(text or "")
    except ValueError:
        document = None
    facts = document if isinstance(document, dict) else {}
    names = ("private_key", "private_key_id", "client_secret", "refresh_token")
    remember([text, *(value for name in names if isinstance(value := facts.get(name), str))])


def remember_query(token: str | None) -> None:
    """Mask a query that is a secret, such as a shared access signature, and the signature in it."""
    pairs = (part.partition("=") for part in (token or "").lstrip("?").split("&"))
    remember([token, *(spelling for name, _, value in pairs if name.lower() == "sig" for spelling in (value, unquote(value)))])


def _spellings(secret: str) -> Iterator[str]:
    yield secret
    yield quote(secret, safe="")
    yield quote(secret)
    yield json.dumps(secret)[1:-1]
    yield repr(secret)[1:-1]


def _in_environment() -> Iterator[str]:
    for name in SECRET_NAMES:
        value = os.environ.get(name, "").strip()
        if len(value) >= (_SHORTEST_NAME if name.endswith("_ID") else _SHORTEST):
            yield value


def masked(text: str) -> str:
    """`text` without user info in URLs, signatures and tokens in queries, authorization headers, and known secrets: those
    that were configured, and those of the environment.
    """
    if "@" in text:
        text = _USER.sub(f"{MASK}@", text)
    if "=" in text:
        text = _PARAMETERS.sub(rf"\g<1>{MASK}", text)
    text = _SCHEME.sub(rf"\g<1> {MASK}", _HEADER.sub(rf"\g<1>{MASK}", text))
    found = {secret for secret in (*tuple(_known), *_in_environment()) if secret in text}
    for secret in sorted(found, key=len, reverse=True):  # one may be part of another
        text = text.replace(secret, MASK)
    return text
