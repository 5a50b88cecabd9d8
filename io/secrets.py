"""Keeping secrets out of what is shown: texts are masked before they enter an error, a log line, a repr or a trace."""

from __future__ import annotations

import re
from collections.abc import Iterable

MASK = "***"
_known: set[str] = set()
_PARAMETERS = re.compile(
    r"(?i)([?&;](?:x-amz-(?:signature|credential|security-token)|x-goog-(?:signature|credential)|sig|signature|"
    r"googleaccessid|awsaccesskeyid|access_token|token|api_?key|apikey|key|password|secret)=)[^&#\s\"']+"
)
_USER = re.compile(r"(?<=://)[^/@\s\"']+@")
_BEARER = re.compile(r"(?i)\b(bearer|basic|sharedkey(?:lite)?)\s+[\w.~+/=:-]{6,}")


def remember(secrets: Iterable[str | None]) -> None:
    """Mask these texts from now on, wherever they turn up; texts of fewer than four characters are too common to."""
    _known.update({secret for secret in secrets if secret is not None and len(secret) >= 4})


def masked(text: str) -> str:
    """`text` without user info in URLs, signatures and tokens in queries, authorization headers, and known secrets."""
    if "://" in text or "=" in text or " " in text:
        text = _USER.sub(f"{MASK}@", text) if "@" in text else text
        text = _PARAMETERS.sub(rf"\g<1>{MASK}", text) if "=" in text else text
        text = _BEARER.sub(rf"\g<1> {MASK}", text)
    for secret in tuple(_known):
        if secret in text:
            text = text.replace(secret, MASK)
    return text
