"""What every reader promises: something small and picklable that gives its bytes when asked, on any thread."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TypeAlias

BytesLike: TypeAlias = bytes | bytearray | memoryview


class Reader(ABC):
    """A lazy source of bytes. Building one reads nothing."""

    @abstractmethod
    def read_all(self) -> BytesLike:
        """All bytes of the content."""
