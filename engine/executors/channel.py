"""Messages between the loader's process and its workers, over a Unix socket pair.

A message is a list of byte strings: `count, length...` as little-endian unsigned 64-bit integers, then the parts. The
first part is a pickled header. File descriptors of shared buffers travel as ancillary data (SCM_RIGHTS) with the first byte
of a message. The end of either process is seen by the other as the end of the stream.
"""

from __future__ import annotations

import array
import pickle
import socket
import struct
from typing import Any

_WORD = struct.Struct("<Q")
_CHUNK = 1 << 16
_DESCRIPTORS = 253
"""Most descriptors that Linux lets travel with one message."""


def send(channel: socket.socket, header: Any, parts: tuple[Any, ...] = (), descriptors: tuple[int, ...] = ()) -> None:
    """Send one message; blocks while the other side is behind.

    Raises:
        OSError: the other side is gone.
    """
    blobs = [pickle.dumps(header, protocol=5), *parts]
    lengths = b"".join(_WORD.pack(n) for n in (len(blobs), len(descriptors), *map(len, blobs)))
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    # One system call for all of it: each gives up the GIL, and a busy trainer takes milliseconds to hand it back.
    buffers = [memoryview(b).cast("B") for b in (lengths, *blobs) if len(b)]
    sent = channel.sendmsg(buffers, rights)
    for buffer in buffers:
        if sent < len(buffer):
            channel.sendall(buffer[sent:])
        sent = max(0, sent - len(buffer))


def receive(channel: socket.socket) -> tuple[Any, list[bytearray], list[int]]:
    """Wait for one message: (header, parts, descriptors).

    Raises:
        EOFError: the other side is gone.
    """
    first, ancillary, _, _ = channel.recvmsg(_WORD.size * 2, socket.CMSG_SPACE(_DESCRIPTORS * array.array("i").itemsize))
    if not first:
        raise EOFError("the other process is gone")
    descriptors = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    head = bytearray(first)
    if len(head) < _WORD.size * 2:
        head += _exactly(channel, _WORD.size * 2 - len(head))
    count = _WORD.unpack_from(head, 0)[0]
    lengths = _exactly(channel, _WORD.size * count)
    blobs = [_exactly(channel, _WORD.unpack_from(lengths, _WORD.size * i)[0]) for i in range(count)]
    return pickle.loads(blobs[0]), blobs[1:], list(descriptors)


def _exactly(channel: socket.socket, count: int) -> bytearray:
    data = bytearray(count)
    view = memoryview(data)
    done = 0
    while done < count:
        got = channel.recv_into(view[done:])
        if got == 0:
            raise EOFError("the other process ended in the middle of a message")
        done += got
    return data


class Inbox:
    """Receives messages without descriptors, taking whatever has arrived in one system call."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._data = bytearray()

    def receive(self) -> tuple[Any, list[bytearray]]:
        """Wait for one message: (header, parts).

        Raises:
            EOFError: the other side is gone.
        """
        head = _WORD.size * 2
        self._fill(head)
        count = _WORD.unpack_from(self._data, 0)[0]
        self._fill(start := head + _WORD.size * count)
        lengths = [_WORD.unpack_from(self._data, head + _WORD.size * i)[0] for i in range(count)]
        self._fill(start + sum(lengths))
        blobs = []
        for length in lengths:
            blobs.append(self._data[start : start + length])
            start += length
        del self._data[:start]
        return pickle.loads(blobs[0]), blobs[1:]

    def _fill(self, count: int) -> None:
        while len(self._data) < count:
            chunk = self._channel.recv(max(_CHUNK, count - len(self._data)))
            if not chunk:
                raise EOFError("the other process is gone")
            self._data += chunk
