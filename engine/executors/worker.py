"""What runs in a worker process: receive a morsel, run the same code as a thread would, write into shared memory.

Protocol (see `channel`), from the loader: a `RunRequest`, then the morsel as Arrow IPC and pickled rest; descriptors of
buffers this worker has not mapped yet come with it. Back: the pickled `MorselResult`, or the exception of a bug.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import pickle
import signal
import socket
import sys
import threading
import traceback
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import numpy as np

from ..errors import DataioError
from ..morsel import Morsel
from ..physical import Program
from ..work import MorselResult, run_morsel
from .base import Placement
from .channel import receive, send


class UnsendableResultError(DataioError, TypeError):
    """What an op gave cannot be pickled."""


@dataclass(frozen=True, slots=True)
class BlockAddress:
    """Where a slot's rows lie: mapping `identity`, rows of `shape` and `dtype` from `offset` bytes on."""

    identity: int
    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype


@dataclass(frozen=True, slots=True)
class RunRequest:
    """One morsel for a worker.

    `mapped` names the mappings whose descriptors come with the message (identity, size); `dropped` those to forget.
    """

    seed: int
    epoch: int
    blocks: dict[str, BlockAddress]
    inactive: frozenset[str]
    guessed: frozenset[str] = frozenset()
    mapped: tuple[tuple[int, int], ...] = ()
    dropped: tuple[int, ...] = ()


def work(channel: socket.socket, program: Program) -> None:
    """Serve morsels until the loader closes its end."""
    for setup in (*program.process_setups, *program.setups):
        setup()
    mappings: dict[int, mmap.mmap] = {}
    inbox: SimpleQueue[tuple[Any, list[bytearray], list[int]] | BaseException] = SimpleQueue()
    threading.Thread(target=_listen, args=(channel, inbox), daemon=True).start()
    while True:
        message = inbox.get()
        if isinstance(message, (EOFError, ConnectionError)):
            return
        if isinstance(message, BaseException):
            raise message
        reply = _answer(program, mappings, *message)
        try:
            send(channel, reply)
        except (BrokenPipeError, ConnectionError):
            return
        except Exception as error:  # pickling comes before the first byte is sent
            text = f"a result cannot leave its worker process ({error}); run with workers=\"thread\""
            with contextlib.suppress(ConnectionError):  # the loader closed meanwhile: that ends this loop
                send(channel, UnsendableResultError(text))


def _listen(channel: socket.socket, inbox: SimpleQueue[Any]) -> None:
    """Take messages as they come: were the loader sending a large morsel while this worker sends a large result, both
    would wait for the other to read. The loader bounds how many there are.
    """
    try:
        while True:
            inbox.put(receive(channel))
    except BaseException as error:
        inbox.put(error)


def _answer(
    program: Program,
    mappings: dict[int, mmap.mmap],
    request: RunRequest,
    parts: list[bytearray],
    descriptors: list[int],
) -> MorselResult | BaseException:
    try:
        for identity in request.dropped:
            mappings.pop(identity, None)
        for (identity, size), descriptor in zip(request.mapped, descriptors, strict=True):
            mappings[identity] = mmap.mmap(descriptor, size)
            os.close(descriptor)
        morsel = Morsel.from_ipc(*parts)
        blocks = {slot: _rows(mappings, address) for slot, address in request.blocks.items()}
        result = run_morsel(program, morsel, blocks, request.seed, request.epoch, request.inactive, None, request.guessed)
    except Exception as error:
        return _portable(error)
    return result


def _rows(mappings: dict[int, mmap.mmap], address: BlockAddress) -> np.ndarray:
    count = int(np.prod(address.shape, dtype=np.int64))
    flat = np.frombuffer(mappings[address.identity], address.dtype, count, address.offset)
    return flat.reshape(address.shape)


def _portable(error: Exception) -> Exception:
    """The exception itself when it survives pickling, else its text."""
    error.add_note("in a worker process:\n" + "".join(traceback.format_exception(error)))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def child(channel: socket.socket, program: Program, placement: Placement, server: int) -> Any:
    """The whole life of a worker after the fork, from process `server`; never returns."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the trainer, which then closes the channel
    code = 1
    try:
        die_with(server)
        placement.apply()
        work(channel, program)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


_PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Have the system kill this process as soon as its parent, which has one thread, is gone.

    The end of the channel tells a worker the same, but not one in the middle of a long op. Elsewhere than on Linux the fork
    server kills those.
    """
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it went before
        os._exit(1)
