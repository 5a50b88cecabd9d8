"""One op on one value, without a pipeline: for a notebook, a test, or to see what a transform does."""

from __future__ import annotations

import secrets
from contextlib import closing
from typing import Any

import numpy as np

from .engine.calls import Decoder, Transform, references
from .engine.errors import OpError
from .engine.expr import Col
from .engine.physical import compile_calls
from .engine.rng import record_stream
from .engine.schema import TensorType
from .engine.work import BoundBody, Row, bind_steps
from .formats.inputs import open_ranges, read_bytes


def apply_transform(transform: Transform, arr: np.ndarray, *, seed: int | None = None) -> np.ndarray:
    """Run one transform on one array, as a pipeline does on a slot.

    Args:
        transform: from `dataio.transforms`.
        arr: what it takes; the axes of an image are told from the shape (HWC, CHW) where the transform wants to know.
        seed: of what is drawn: the first record of epoch 0 of a run with that seed draws the same. None draws anew.

    Returns:
        A new array, whatever the transform gives.

    Raises:
        TypeError: another `transform` or `arr`.
        ValueError: (OpError) the transform refuses the array; an argument is a record's field or an unset parameter; `seed` is not in
            [0, 2**64).
    """
    if not isinstance(transform, Transform):
        raise TypeError(f"apply_transform takes a transform from dataio.transforms, got {transform!r}")
    if not isinstance(arr, np.ndarray):
        raise TypeError(f"apply_transform takes a NumPy array, got {type(arr).__name__}")
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**64):
        raise ValueError(f"seed must be None or an integer in [0, 2**64), got {seed!r}")
    _check_literal(transform)
    steps, _ = compile_calls((transform,), TensorType(), "value")
    for step in steps:
        if step.setup is not None:
            step.setup()
    row = Row({}, 1)
    row.rng = record_stream(secrets.randbits(63) if seed is None else seed, 0, 0)
    found = BoundBody(bind_steps(steps, row), row)(arr)
    return np.array(found)


def decode_bytes(decoder: Decoder, data: Any) -> Any:
    """Run one decoder on one encoded value.

    Args:
        decoder: from `dataio.decoders`.
        data: bytes-like, a local path or URI, a `dataio.Reader`, or an object whose `read()` returns bytes. Decoders of values
            that are in the record already (`array`, `passthrough`) take the value.

    Returns:
        What the decoder gives: a new array, or a Python object.

    Raises:
        TypeError: another `decoder` or `data`.
        ValueError: (OpError) the data is damaged, or larger than a limit of the decoder; an argument is a record's field.
        OSError: missing or unreadable.
    """
    if not isinstance(decoder, Decoder):
        raise TypeError(f"decode_bytes takes a decoder from dataio.decoders, got {decoder!r}")
    _check_literal(decoder)
    (step,), _ = compile_calls((decoder,), TensorType(), "value", "decode")
    if step.setup is not None:
        step.setup()
    row = Row({}, 1)
    run = BoundBody(bind_steps((step,), row), row)
    if decoder.spec.reads == "ranges":
        with closing(open_ranges(data)) as ranges:
            return _owned(run(ranges))
    return _owned(run(read_bytes(data) if decoder.spec.reads else data))


def _owned(value: Any) -> Any:
    return np.array(value) if isinstance(value, np.ndarray) else value


def _check_literal(call: Transform | Decoder) -> None:
    fields = [found.field for found in references(call) if isinstance(found, Col)]
    if fields:
        raise OpError(f"{call.name} reads the record's field {fields[0]!r}, and there is no record: give the value itself")
