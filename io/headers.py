"""Headers of a user's own: which of them may be secret, and what of them travels."""

from __future__ import annotations

from collections.abc import Mapping

from .errors import UnsupportedError
from .secrets import remember
from .uri import HTTP_SCHEMES

_HARMLESS = frozenset({"accept", "accept-language", "range", "referer", "user-agent", "if-match", "if-modified-since", "cache-control"})
"""Headers whose values are no secrets; any other may be one."""


class Withheld(dict[str, str]):
    """Headers of which only the names travelled."""


def without_secrets(headers: Mapping[str, str] | None) -> Mapping[str, str] | None:
    """What of headers may go into a pickle: all, or the names of those that may be secret."""
    secret = [name for name in headers or () if name.lower() not in _HARMLESS]
    return Withheld(dict.fromkeys(secret, "")) if secret else headers


def checked_headers(scheme: str, headers: Mapping[str, str]) -> dict[str, str]:
    """The headers for requests of a scheme; the values of those that may be secret are masked from now on.

    Raises:
        TypeError: no mapping of str to str.
        UnsupportedError: not http or https.
    """
    if not isinstance(headers, Mapping) or not all(isinstance(text, str) for item in headers.items() for text in item):
        raise TypeError(f"headers must be a mapping of str to str, got {type(headers).__name__}")
    if scheme not in HTTP_SCHEMES:
        raise UnsupportedError(f"headers go with http:// and https:// only, not with {scheme}://")
    remember_secrets(headers)
    return dict(headers)


def remember_secrets(headers: Mapping[str, str]) -> None:
    """Mask the values of headers that may be secret from now on."""
    remember(value for name, value in headers.items() if name.lower() not in _HARMLESS)
