"""Failed records written down so that they can be run again: `run(quarantine="bad.jsonl")` and `dataio.manifest`.

One JSON line per record, in ASCII:

    {"__dataio_error__": {...}, "__dataio_record__": ...}

The error is the record's entry of `batch.errors` with the epoch and a digest of the record. The record is what the source
gave, before any map: JSON where JSON holds it exactly, and `{"$kind": ...}` where it does not (see `encode`). A record
that cannot be written has `"__dataio_unwritable__"` with the reason instead.
"""

from __future__ import annotations

import base64
import datetime
import decimal
import hashlib
import io
import json
import math
import os
import pathlib
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from .engine.batch import FinishedBatch
from .engine.errors import ClosedError
from .engine.units import Share

ERROR, RECORD, UNWRITABLE = "__dataio_error__", "__dataio_record__", "__dataio_unwritable__"
_START = f'{{"{ERROR}": '
REMEMBERED = 1 << 18
"""Failed records whose digests are kept (some 200 bytes each), so that a later epoch does not write them again."""


# --------------------------------------------------------------------------------------------- records as JSON


class UnwritableError(TypeError):
    """A record holds something that no line of text stands for."""


def encode(value: Any, where: str = "record") -> Any:
    """A record as JSON values from which `decode` makes an equal one.

    None, bool, str, lists, mappings with str keys, finite floats and integers of 64 bits stand for themselves. Tagged are
    bytes, bytearray, tuples, sets, larger integers, NaN and infinities, complex numbers, NumPy arrays and scalars (their
    `.npy` bytes), paths, decimals, UUIDs, dates and times (a zone becomes its offset), and mappings with other keys. A
    memoryview becomes bytes, any mapping a dict, a reader with a `place()` the mapping that this gives, and a subclass of str, bytes, int, float or list that type.

    Raises:
        UnwritableError: a value of any other type, such as a reader over a Python function; the message says where it is.
    """
    try:
        return _encode(value, where)
    except RecursionError:
        raise UnwritableError(f"{where} is nested too deeply, or holds itself") from None


def _encode(value: Any, where: str) -> Any:
    if value is None or value is True or value is False:
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, (np.ndarray, np.generic)) and not isinstance(value, bytes):
        return _array(value, where)
    if isinstance(value, int):
        number = int(value)
        return number if -(1 << 63) <= number < 1 << 63 else {"$int": hex(number)}
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"$float": float.__repr__(value)}
    if isinstance(value, (bytes, bytearray, memoryview)):
        kind = "$bytearray" if isinstance(value, bytearray) else "$bytes"
        return {kind: base64.b64encode(value.tobytes() if isinstance(value, memoryview) else value).decode()}
    if isinstance(value, Mapping):
        return _mapping(value, where)
    if type(value) is tuple:
        return {"$tuple": _items(value, where)}
    if isinstance(value, list):
        return _items(value, where)
    if isinstance(value, os.PathLike):
        name = os.fspath(value)
        if isinstance(name, str):
            return {"$path": name} if isinstance(value, pathlib.PurePath) else name
    for tag, (exact, write, _) in _TAGGED.items():
        if type(value) is exact:  # a subclass may hold more
            return {tag: _encode(write(value), where)}
    return _reader(value, where)


def _items(values: Any, where: str) -> list[Any]:
    return [_encode(value, f"{where}[{i}]") for i, value in enumerate(values)]


def _mapping(value: Mapping[Any, Any], where: str) -> dict[str, Any]:
    if all(type(key) is str for key in value) and not (len(value) == 1 and next(iter(value)).startswith("$")):
        return {key: _encode(inner, f"{where}[{key!r}]") for key, inner in value.items()}
    pairs = [[_encode(key, f"a key of {where}"), _encode(inner, f"{where}[{key!r}]")] for key, inner in value.items()]
    return {"$mapping": pairs}


def _array(value: np.ndarray | np.generic, where: str) -> dict[str, str]:
    array = np.asanyarray(value)
    if type(array) not in (np.ndarray, np.memmap):
        raise UnwritableError(f"{where} is a {type(array).__name__}, of which .npy would keep only a part")
    form = np.lib.format
    if array.dtype.hasobject or form.descr_to_dtype(form.dtype_to_descr(array.dtype)) != array.dtype:
        raise UnwritableError(f"{where} is an array of {array.dtype}, which .npy cannot hold without pickling")
    out = io.BytesIO()
    form.write_array(out, np.asarray(array), allow_pickle=False)
    return {"$scalar" if isinstance(value, np.generic) else "$array": base64.b64encode(out.getvalue()).decode()}


def _reader(value: Any, where: str) -> Any:
    from .io.reader import UriReader
    from .sources.python import ItemReader

    if isinstance(value, ItemReader):  # its bytes are here already
        try:
            return _encode(value.read_all(), where)
        except Exception as error:
            raise UnwritableError(f"{where} has no bytes: {error}") from error
    if isinstance(value, UriReader) and value.headers is None:
        return value.uri if value.offset is None else {"uri": value.uri, "offset": value.offset, "size": value.size}
    if (place := getattr(value, "place", None)) is not None:
        return _encode(place(), where)
    if hasattr(value, "read_all"):
        raise UnwritableError(f"{where} is {value!r}, which reads from a running program")
    raise UnwritableError(f"{where} is a {type(value).__name__}, which a line of text cannot hold")


def decode(value: Any) -> Any:
    """The record that `encode` was given.

    Raises:
        ValueError: it is nothing that `encode` gives.
    """
    if isinstance(value, list):
        return [decode(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    if len(value) != 1 or not (kind := next(iter(value))).startswith("$"):
        return {key: decode(inner) for key, inner in value.items()}
    try:
        if kind in _DECODERS:
            return _DECODERS[kind](value[kind])
        return _TAGGED[kind][2](decode(value[kind]))
    except Exception as error:
        raise ValueError(f"the value {json.dumps(value)[:80]} of a quarantined record cannot be read") from error


def _load(text: str) -> np.ndarray:
    loaded: np.ndarray = np.lib.format.read_array(io.BytesIO(_bytes(text)), allow_pickle=False)
    return loaded


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


_DECODERS: dict[str, Callable[[Any], Any]] = {
    "$int": lambda text: int(text, 16),
    "$float": float,
    "$bytes": _bytes,
    "$bytearray": lambda text: bytearray(_bytes(text)),
    "$array": _load,
    "$scalar": lambda text: _load(text)[()],
    "$path": pathlib.Path,
    "$tuple": lambda items: tuple(decode(items)),
    "$mapping": lambda pairs: {decode(key): decode(inner) for key, inner in pairs},
}


def _iso(value: datetime.datetime | datetime.time) -> str:
    return value.isoformat() if not value.fold else f"{value.isoformat()} fold"


def _datetime(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text.removesuffix(" fold")).replace(fold=int(text.endswith(" fold")))


def _time(text: str) -> datetime.time:
    return datetime.time.fromisoformat(text.removesuffix(" fold")).replace(fold=int(text.endswith(" fold")))


_TAGGED: dict[str, tuple[type, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "$set": (set, list, set),
    "$frozenset": (frozenset, list, frozenset),
    "$complex": (complex, lambda value: [value.real, value.imag], lambda parts: complex(*parts)),
    "$decimal": (decimal.Decimal, str, decimal.Decimal),
    "$uuid": (uuid.UUID, str, uuid.UUID),
    "$datetime": (datetime.datetime, _iso, _datetime),
    "$date": (datetime.date, lambda value: value.isoformat(), datetime.date.fromisoformat),
    "$time": (datetime.time, _iso, _time),
    "$timedelta": (
        datetime.timedelta,
        lambda value: [value.days, value.seconds, value.microseconds],
        lambda parts: datetime.timedelta(*parts),
    ),
}
"""Values that JSON lacks: their type, the value written for them, and back."""


# --------------------------------------------------------------------------------------------------- one line


def line_of(record: Any, error: dict[str, Any]) -> tuple[bytes, int]:
    """The line of a failed record, and a digest that equal records share."""
    try:
        what, value = RECORD, encode(record)
    except UnwritableError as reason:
        what, value = UNWRITABLE, f"{reason}"
    body = json.dumps(value, allow_nan=False)
    same = body if what == RECORD else f"{error['key']} {body}"
    digest = int.from_bytes(hashlib.blake2b(same.encode(), digest_size=7).digest(), "big")
    head = json.dumps({**error, "digest": digest}, allow_nan=False)
    return f'{_START}{head}, "{what}": {body}}}\n'.encode(), digest


def record_of(line: dict[str, Any]) -> Any:
    """The record of a parsed line of a manifest; a line that is no quarantined record is the record itself.

    Raises:
        ValueError: the record could not be written, or the line was changed.
    """
    if ERROR not in line:
        return line
    error = line[ERROR]
    if UNWRITABLE in line:
        raise ValueError(
            f"record {error['record']} (key {error['key']!r}) of epoch {error['epoch']} failed, but could not be written: "
            f"{line[UNWRITABLE]}; take the line out and run that record from its own source"
        )
    if RECORD not in line:
        raise ValueError(f"a quarantined record lacks {RECORD!r}")
    return decode(line[RECORD])


def cut_off(line: str) -> bool:
    """Whether the last line of a file is a part of a quarantined record: its writer was killed, or ran out of disk."""
    if line.endswith("\n") or not (line.startswith(_START) or _START.startswith(line)):
        return False
    try:
        json.loads(line)
    except json.JSONDecodeError:
        return True
    return False  # somebody's editor took the line break away


# --------------------------------------------------------------------------------------------------- the file


def quarantine_path(path: Any, share: Share) -> str | None:
    """The file that this rank writes: `{rank}` in `path` is the shard's number.

    Raises:
        TypeError: neither None nor a path.
        ValueError: a URI; a suffix that `manifest` reads as a table; several ranks without `{rank}`.
    """
    if path is None:
        return None
    name = os.fspath(path) if isinstance(path, (str, os.PathLike)) else path
    if not isinstance(name, str):
        raise TypeError(f"quarantine must be a path or None, got {path!r}")
    if "://" in name:
        raise ValueError(f"quarantine must be a local path, got the URI {name!r}")
    if name.lower().endswith((".csv", ".parquet")):
        raise ValueError(f"quarantine holds lines of JSON, which dataio.manifest would not expect in {name!r}; use .jsonl")
    if share.of > 1 and "{rank}" not in name:
        raise ValueError(
            f"quarantine={name!r}: each of the {share.of} ranks needs a file of its own; put {{rank}} into the name, "
            'as in "bad-{rank}.jsonl"'
        )
    return name.replace("{rank}", str(share.id))


class Quarantine:
    """The file of failed records of one loader, which is its only writer.

    A record that fails again, in a later epoch or because it was delivered again after a resume, is written once: equal
    records (by a digest of what would be written) are written as often as the epoch holds them that failed most of them.
    The newest REMEMBERED records are known; one that failed longer ago would be written again.

    Raises:
        OSError: the file cannot be opened for writing.
        ValueError: the file is there and holds something else.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._forget()
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
        self._file: int | None = os.open(path, flags, 0o666)
        try:
            self._continue()
        except BaseException:
            self.close()
            raise

    def _forget(self) -> None:
        self._written: dict[int, int] = {}  # lines by digest
        self._epoch: int | None = None
        self._places: dict[tuple[int, int], None] = {}  # (position, digest) that failed in this epoch
        self._times: Counter[int] = Counter()  # the same by digest

    def _continue(self) -> None:
        """Learn what an earlier run wrote, and drop a last line that it was killed in."""
        with open(self.path, "rb") as lines:
            size, whole = 0, True
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    size += len(line)
                    continue
                text = line.decode("ascii", "replace")
                if cut_off(text):
                    break
                try:
                    if not text.startswith(_START):
                        raise ValueError(f"it does not begin with {_START!r}")
                    error, _ = json.JSONDecoder().raw_decode(text, len(_START))
                    epoch, position, digest = (int(error[name]) for name in ("epoch", "record", "digest"))
                except (ValueError, KeyError, TypeError) as reason:
                    raise ValueError(
                        f"quarantine: line {number} of {self.path!r} is no quarantined record; give a new file"
                    ) from reason
                self._note(epoch, position, digest)
                size += len(line)
                whole = line.endswith(b"\n")
        os.ftruncate(self._descriptor(), size)
        if not whole:
            os.write(self._descriptor(), b"\n")

    def _note(self, epoch: int, position: int, digest: int) -> bool:
        """Remember a failed record; whether it is to be written."""
        if epoch != self._epoch:
            self._epoch = epoch
            self._places.clear()
            self._times.clear()
        if (position, digest) in self._places:
            return False
        for known in (self._places, self._times, self._written):
            _forget_old(known)
        self._places[position, digest] = None
        self._times[digest] += 1
        if self._times[digest] <= self._written.get(digest, 0):
            return False
        self._written[digest] = self._written.get(digest, 0) + 1
        return True

    def write(self, batch: FinishedBatch, epoch: int) -> None:
        """Append the failed records of a batch that is about to be delivered, in one write.

        Raises:
            OSError: the disk is full, or gone.
            RuntimeError: the loader was closed meanwhile.
        """
        if not batch.failed:
            return
        with self._lock:
            data = b"".join(self._lines(batch, epoch))
            batch.originals.clear()  # who keeps the batch need not keep them
            descriptor = self._descriptor()
            size = os.fstat(descriptor).st_size
            view = memoryview(data)
            try:
                while view:
                    view = view[os.write(descriptor, view) :]
            except OSError:  # whole lines or none, and what was not written is not known as written
                os.ftruncate(descriptor, size)
                self._forget()
                self._continue()
                raise

    def _lines(self, batch: FinishedBatch, epoch: int) -> Iterator[bytes]:
        for error in batch.errors:
            line, digest = line_of(batch.originals[error["index"]], {**error, "epoch": epoch})
            if self._note(epoch, error["record"], digest):
                yield line

    def _descriptor(self) -> int:
        if self._file is None:
            raise ClosedError("DataLoader is closed")
        return self._file

    def close(self) -> None:
        """Close the file; idempotent."""
        with self._lock:
            descriptor, self._file = self._file, None
        if descriptor is not None:
            os.close(descriptor)


def _forget_old(known: dict[Any, Any]) -> None:
    """Bring what has grown to twice REMEMBERED entries back to the newest REMEMBERED."""
    if len(known) >= 2 * REMEMBERED:
        for old in list(known)[:-REMEMBERED]:
            del known[old]
