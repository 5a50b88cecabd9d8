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
_DESCRIPTORS = 253
"""Most descriptors that Linux lets travel with one message."""


def send(channel: socket.socket, header: Any, parts: tuple[Any, ...] = (), descriptors: tuple[int, ...] = ()) -> None:
    """Send one message; blocks while the other side is behind.

    Raises:
        OSError: the other side is gone.
    """
    blobs = [pickle.dumps(header, protocol=5), *parts]
    lengths = b"".join(_WORD.pack(n) for n in (len(blobs), len(descriptors), *map(len, blobs)))
    if descriptors:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
        sent = channel.sendmsg([lengths], rights)
        if sent < len(lengths):
            channel.sendall(lengths[sent:])
    else:
        channel.sendall(lengths)
    for blob in blobs:
        channel.sendall(blob)


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
