"""Small objects of a web server by obstore, which needs a fraction of the processor time of Python's own client.

Only the plainest requests go this way, and only answers that are surely right come back; for all others the caller asks
again in its own way, which also knows all about attempts, versions and what each failure means.
"""

from __future__ import annotations

import re
import urllib.request
from datetime import timedelta
from typing import Any

from ..config import Transport
from ..store import BytesLike
from .object_errors import failure_of
from .obstore_threads import obstore_threads

LARGEST = 1 << 23
"""Bytes up to which a whole object comes by one request."""
_FAILURES = 3
"""Times in a row without an answer of any status after which a host is not asked this way any more: it has no ranges, or sends no lengths."""
_SIMPLE = re.compile(r"(?!.*(?:^|/)\.{0,2}(?:/|$))[A-Za-z0-9._/-]+")
"""Keys that obstore sends as they are: no empty segment, no `.` or `..`, nothing to encode."""


class NoAnswer(Exception):
    """Ask in another way.

    Attributes:
        status: of the answer that came, None when there was none, or it says too little.
    """

    def __init__(self, status: int | None = None) -> None:
        super().__init__(status)
        self.status = status


def may_go(transport: Transport) -> bool:
    """Whether obstore can reach servers as the transport says."""
    plain = transport.proxy is None and transport.ca_certificates is None and transport.attempts > 1
    proxies = {name for name, value in urllib.request.getproxies().items() if value and name != "no"}
    return plain and not proxies and not obstore_threads.lost


class QuickGet:
    """One host."""

    def __init__(self, root: str, transport: Transport, user_agent: str) -> None:
        from obstore.store import HTTPStore

        options: dict[str, Any] = {
            "allow_http": root.startswith("http://"),  # False refuses redirects from https to http as well
            "connect_timeout": timedelta(seconds=transport.connect_timeout),
            "read_timeout": timedelta(seconds=transport.timeout),
            "timeout": timedelta(seconds=transport.timeout),
            "http1_only": True,
            "user_agent": user_agent,
            "default_headers": {"Accept-Encoding": "identity"},
        }
        obstore_threads.started = True
        self._store = HTTPStore(root, client_options=options, retry_config={"max_retries": 0})  # type: ignore[arg-type]
        self._failures = 0
        self._last_was_large = False

    def serves(self, key: str, size: int | None) -> bool:
        """Whether to try this way."""
        large = self._last_was_large if size is None else not 0 < size <= LARGEST
        return self._failures < _FAILURES and not large and not obstore_threads.lost and _SIMPLE.fullmatch(key) is not None

    def saw(self, size: int) -> None:
        """Learn of the size of a whole object: the next one is likely to be like it."""
        self._last_was_large = size > LARGEST

    def get(self, key: str, offset: int, size: int | None, if_match: str | None, limit: int | None) -> BytesLike:
        """The bytes, by a request for a range, whose answer tells what it holds.

        Raises:
            NoAnswer: anything else than the bytes that were asked for.
        """
        import obstore

        end = offset + (LARGEST if size is None else size)
        try:
            answer = obstore.get(self._store, key, options={"range": (offset, end)})
            whole, (first, last) = answer.meta["size"], answer.range
            coded = "Content-Encoding" in answer.attributes
            other = if_match is not None and answer.meta["e_tag"] != f'"{if_match}"'
            if size is None and whole > end:
                self._last_was_large = True
                raise NoAnswer
            if coded or other or first != offset or last != min(end, whole) or (limit is not None and last - first > limit):
                raise NoAnswer
            data = memoryview(answer.bytes())
        except NoAnswer:
            raise
        except Exception as error:
            status = failure_of(error).status
            self._failures += status is None
            raise NoAnswer(status) from error
        if len(data) != last - first:
            raise NoAnswer
        self._failures = 0
        return data
