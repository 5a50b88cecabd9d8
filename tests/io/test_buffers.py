"""Bytes that are filled in place."""

from __future__ import annotations

import gc
import os

import pytest

from dataio.io.buffers import new_bytes


@pytest.mark.parametrize("size", [0, 1, 2, 3, 100, 4096, (1 << 22) - 1, (1 << 22) + 12345])
def test_the_object_is_what_was_written_through_its_view(size: int) -> None:
    content = os.urandom(size)
    made, view = new_bytes(size)
    view[: size // 2] = content[: size // 2]
    view[size // 2 :] = content[size // 2 :]
    assert made == content
    assert hash(made) == hash(content)


def test_objects_that_the_interpreter_shares_are_not_written_to() -> None:
    shared = [bytes([value]) for value in range(256)]
    for value in range(256):
        made, view = new_bytes(1)
        view[:] = bytes([255 - value])
        assert made == bytes([255 - value])
        assert not any(made is one for one in shared)
    assert shared == [bytes([value]) for value in range(256)]
    assert new_bytes(0)[0] == b""


def test_a_view_keeps_its_memory() -> None:
    made, view = new_bytes(1 << 20)
    part = view[5:10]
    del made, view
    gc.collect()
    part[:] = b"12345"
    assert bytes(part) == b"12345"


def test_more_than_there_is() -> None:
    with pytest.raises(MemoryError):
        new_bytes(1 << 56)
