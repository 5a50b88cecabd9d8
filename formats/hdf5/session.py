"""`open_hdf5` and `read_hdf5`.

Library: h5py (extra `hdf5`), with the filters of hdf5plugin where that is installed. The HDF5 library reads one thing at a time,
whatever the number of threads: h5py holds a lock around each call.
"""

from __future__ import annotations

import math
import mmap
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ...engine.errors import LimitError, OpError, missing_dependency
from ...engine.forks import new_lock_in_child
from ...io.arguments import check_count
from ...io.ranges import FileRanges, MemoryRanges, file_identity
from ..frameworks import as_framework, check_framework
from ..inputs import local_file, name_of, open_ranges, read_bytes
from .file import Hdf5File
from .links import absolute, data_set, data_sets, find
from .selection import Selection, read_picked, select
from .values import as_values, attributes, dtype_name, dtype_of, native, weight

MAX_OUTPUT = 1 << 32
"""Bytes of the largest result unless asked otherwise."""
TEXTS = 1 << 16
"""Most strings, or rows of their own length, that are read at a time."""
FEWEST_TEXTS = 64
OPENED = 256
"""Data sets that a session keeps open."""


def read_hdf5(
    uri: Any, *, key: str, selection: Any = None, framework: str = "numpy", max_output_bytes: int = MAX_OUTPUT
) -> Any:
    """One data set, or a part of it, of an HDF5 file: `open_hdf5` and `Hdf5Session.read`, with their arguments and errors."""
    check_framework(framework)
    with open_hdf5(uri, max_output_bytes=max_output_bytes) as session:
        return session.read(key=key, selection=selection, framework=framework)


def open_hdf5(uri: Any, *, max_output_bytes: int = MAX_OUTPUT) -> Hdf5Session:
    """Open an HDF5 file for reading.

    Args:
        uri: a local path or URI, bytes-like, a `dataio.Reader` or an object whose `read()` returns bytes. Of an object in a store
            only what is needed is fetched.
        max_output_bytes: largest result of one `read`, and largest chunk of a compressed data set.

    Raises:
        FileNotFoundError, OSError: missing or unreadable.
        ValueError: no HDF5 file, or a damaged one.
        TypeError: a source of another kind.
        MissingDependencyError: h5py is not installed.
    """
    return Hdf5Session(uri, max_output_bytes=max_output_bytes)


class Hdf5Session:
    """An open HDF5 file; made by `open_hdf5`, and a context manager.

    Threads may share it: their reads take turns. A process that is forked opens the file anew, and so does one that gets the session
    in a pickle. What a file says is not trusted: a shape is held against `max_output_bytes` before memory is taken, and links, storage
    and virtual data sets that lead into other files are refused. (The HDF5 library itself is C; a file that was made to harm it
    can do so.)

    Attributes:
        uri: the source as messages name it, "<bytes>" for memory.
        max_output_bytes: as it was given.
    """

    def __init__(self, source: Any, *, max_output_bytes: int = MAX_OUTPUT) -> None:
        check_count("max_output_bytes", max_output_bytes, least=1)
        self.uri = name_of(source)
        self.max_output_bytes = max_output_bytes
        if not isinstance(source, (str, os.PathLike)) and not hasattr(source, "open_ranges"):
            source = read_bytes(source)  # what can be read once
        self._source = source
        self._lock = threading.RLock()
        new_lock_in_child(self, "_lock", threading.RLock)
        self._closed = False
        self._keys: list[str] | None = None
        self._open()

    # ------------------------------------------------------------------- what is in it

    def keys(self) -> list[str]:
        """The names of all data sets, absolute: of each group its own, sorted, then those of its groups, sorted, depth first.

        A soft link to a data set counts as one; a group with several names is listed under one of them.
        """
        with self._using() as file:
            if self._keys is None:
                self._keys = list(data_sets(file["/"].id, self.uri))
            return list(self._keys)

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __contains__(self, key: object) -> bool:
        """Whether there is a data set of this absolute name."""
        if not isinstance(key, str) or key != absolute(key):
            return False
        from h5py import h5d

        with self._using() as file:
            try:
                return isinstance(find(file["/"].id, key, self.uri), h5d.DatasetID)
            except OpError:
                return False

    def metadata(self, *, key: str) -> dict[str, Any]:
        """`{"shape", "dtype", "attrs"}` of a data set.

        Returns:
            "shape": tuple; "dtype": NumPy's name in the machine's byte order, "str" for strings of any length, "vlen[int32]" and
            the like for rows of their own length; "attrs": by name, as Python values (int, float, str, bytes, None for empty
            ones, arrays). The reference gives text such as `I64(5)` for these.

        Raises:
            as `read` does.
        """
        with self._data_set(key) as (found, what):
            dtype = dtype_of(found, what)
            return {"shape": _shape(found), "dtype": dtype_name(dtype), "attrs": attributes(found, what)}

    # ------------------------------------------------------------------- reading

    def read(self, *, key: str, selection: Any = None, copy: bool = True, framework: str = "numpy") -> Any:
        """A data set, or a part of it; only what is selected is read (of compressed data sets the chunks that it touches).

        Args:
            key: the name, with or without the leading slash.
            selection: None for all; an int, slice, `...`, list or array of ints (any order, repeats, negative ones) or bools, or a
                tuple of these, one per axis, with one list at most; or a bool array of the whole shape. Each is applied to its
                own axis, as h5py does.
            copy: False allows a read-only view, without reading, where the elements lie in the file as NumPy has them (contiguous,
                native byte order; a local file or bytes). A local file is mapped: one that is cut short while a view of it is
                used kills the process, so take this for files that nobody changes.
            framework: "numpy" or "torch".

        Returns:
            An array in memory of its own and writable (unless `copy=False`), in the machine's byte order. Integers, floats (16
            bits too), bools, complex and compound types as NumPy has them; an array of `str` objects for strings of any length
            (bytes that are no UTF-8 as surrogate escapes), of arrays for rows of their own length, of bytes ("S") for strings of
            one length. A scalar data set has shape () (the reference: (1,)), an empty one (0,).

        Raises:
            KeyError: no such data set.
            IndexError: an index out of range.
            ValueError: damaged data; a filter that is not installed; elements that NumPy or torch has no dtype for; larger than
                `max_output_bytes` (LimitError); a link into another file; another selection; the session is closed.
        """
        check_framework(framework)
        with self._data_set(key) as (found, what):
            dtype, place = self._facts(found, key, what)
            shape = _shape(found)
            try:
                part = select(selection, shape)
            except IndexError as error:
                raise IndexError(f"{what}: {error}") from None
            except OpError as error:
                raise OpError(f"{what}: {error}") from None
            array = None if copy or place is None else self._view(found, dtype, place, part)
            if array is None:
                self._check(dtype, part, what)
                array = self._in_place(dtype, place, part, shape, what)
            if array is None:
                array = self._read(found, dtype, part, what)
        return _framed(array, framework, what)

    def _check(self, dtype: np.dtype, part: Selection, what: str) -> None:
        """Raises: LimitError: the result would be too large; before memory is taken."""
        limit = self.max_output_bytes
        if part.size * max(1, dtype.itemsize) > limit:
            need = part.size * dtype.itemsize
            raise LimitError(f"{what}: {dtype_name(dtype)}{list(part.shape)} takes {need:,} bytes, max_output_bytes is {limit:,}")

    def _in_place(self, dtype: np.dtype, place: int | None, part: Selection, shape: tuple[int, ...], what: str) -> np.ndarray | None:
        """The elements by one read of our own, without HDF5's lock; None where they do not lie in one piece.

        Raises:
            OpError: they lie outside the file.
        """
        start = None if place is None or part.flips or part.mask is not None else part.start(shape)
        if place is None or start is None:
            return None
        out = np.empty(part.shape, native(dtype))
        begin = place + start * dtype.itemsize
        if begin + out.nbytes > self._ranges.size:
            raise OpError(f"{what} is damaged: its elements lie behind the end of the file")
        self._ranges.read_into(begin, out.reshape(-1).view(np.uint8).data)
        return out

    def _facts(self, found: Any, key: str, what: str) -> tuple[np.dtype, int | None]:
        """The dtype, and where the elements lie if they lie in the file as NumPy has them; looked up, and checked, once.

        Raises:
            OpError: no dtype, or a filter that is not installed.
            LimitError: chunks larger than the limit.
        """
        if (known := self._known.get(key)) is not None and known[1] is not None:
            return known[1]
        from h5py import h5d, h5t

        dtype, place = dtype_of(found, what), None
        plist = found.id.get_create_plist()
        _check_filters(plist, what)
        if (chunk := found.chunks) is not None and (size := math.prod(chunk) * dtype.itemsize) > self.max_output_bytes:
            raise LimitError(f"{what} has chunks of {size:,} bytes, max_output_bytes is {self.max_output_bytes:,}")
        if plist.get_layout() == h5d.CONTIGUOUS and not dtype.hasobject and dtype != np.bool_ and dtype.isnative:
            place = found.id.get_offset() if h5t.py_create(dtype) == found.id.get_type() else None
        self._known[key] = found, (dtype, place)
        return dtype, place

    def _read(self, found: Any, dtype: np.dtype, part: Selection, what: str) -> np.ndarray:
        plain = native(dtype)
        source = found if dtype.hasobject or plain == dtype else found.astype(plain)
        if not part.size:
            return np.empty(part.shape, plain)
        if part.mask is not None:
            indices: Any = part.mask
            return as_values(_own(source[indices], part.shape, plain), dtype)
        axis = part.array_axis
        if dtype.hasobject:
            out = np.empty(part.shape, plain)
            if axis is None:
                self._texts(source, part.indices, dtype, out, what)
            else:
                read_picked(lambda indices: self._texts(source, indices, dtype, None, what), part, axis, out, 1)
        elif axis is None:
            out = as_values(_own(source[part.indices], part.shape, plain), dtype)
        else:
            out = np.empty(part.shape, plain)
            chunk = 1 if found.chunks is None else found.chunks[axis]
            read_picked(lambda indices: as_values(source[indices], dtype), part, axis, out, chunk)
        return np.ascontiguousarray(np.flip(out, part.flips)) if part.flips else out

    def _texts(self, source: Any, indices: tuple[Any, ...], dtype: np.dtype, out: np.ndarray | None, what: str) -> np.ndarray:
        """Elements of their own length, some at a time.

        How long they are is known when they were read, and a thousand of them may stand for the same large one: at most
        `FEWEST_TEXTS` times the file is read beyond the limit.
        """
        shape = tuple(len(range(index.start, index.stop, index.step)) for index in indices if isinstance(index, slice))
        if out is None:
            out = np.empty(shape, native(dtype))
        most = min(TEXTS, max(FEWEST_TEXTS, self.max_output_bytes // max(1, self._ranges.size)))
        total = 0
        for piece, target in _halves(list(indices), out, most):
            block = as_values(np.asarray(source[tuple(piece)], native(dtype)).reshape(target.shape), dtype)
            total += weight(block)
            if total > self.max_output_bytes:
                raise LimitError(f"{what} holds more than the {self.max_output_bytes:,} bytes of max_output_bytes")
            target[...] = block
        return out

    def _view(self, found: Any, dtype: np.dtype, place: int, part: Selection) -> np.ndarray | None:
        """The elements where they lie, None where they cannot be had so."""
        memory = None if part.array_axis is not None or part.mask is not None else self._memory()
        if memory is None or place + found.size * dtype.itemsize > memory.nbytes:
            return None
        return np.flip(np.ndarray(found.shape, native(dtype), memory, place)[part.indices], part.flips)

    def _memory(self) -> memoryview | None:
        """The file's bytes, read-only, where they are in memory or can be mapped."""
        if isinstance(self._ranges, MemoryRanges):
            return self._ranges.read(0, self._ranges.size).toreadonly()
        path = local_file(self._source)
        if path is None or not isinstance(self._ranges, FileRanges):
            return None
        with open(path, "rb") as file:
            if file_identity(os.fstat(file.fileno())) != self._ranges.identity:  # another file is at this path now
                return None
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))

    # ------------------------------------------------------------------- the file

    def close(self) -> None:
        """Close the file; more than once is fine. Arrays that were read stay as they are."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._shut()

    def __enter__(self) -> Hdf5Session:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        source = bytes(self._source) if isinstance(self._source, memoryview) else self._source
        return _reopened, (source, self.max_output_bytes)

    def __repr__(self) -> str:
        return f"Hdf5Session({self.uri!r}{', closed' if self._closed else ''})"

    def _open(self) -> None:
        h5py = _h5py()
        self._process = os.getpid()
        self._ranges = open_ranges(self._source)
        self._known: dict[str, tuple[Any, tuple[np.dtype, int | None] | None]] = {}
        try:
            opened = Hdf5File(self._ranges)
            self._file = h5py.File(opened, "r")
            opened.lengths = self._file.id.get_create_plist().get_sizes()[1]
        except Exception as error:
            self._ranges.close()
            if not _of_hdf5(error):
                raise
            raise OpError(f"{self.uri} is no HDF5 file, or damaged: {error}") from error

    def _shut(self) -> None:
        self._known.clear()
        self._file.close()
        self._ranges.close()

    @contextmanager
    def _using(self) -> Iterator[Any]:
        """The open file, for one thread at a time; what HDF5 complains of becomes an OpError.

        Raises:
            OpError: the session is closed, or the file damaged.
        """
        with self._lock:
            if self._closed:
                raise OpError(f"{self.uri}: this Hdf5Session is closed")
            if self._process != os.getpid():  # forked: HDF5 shares nothing of an open file between processes
                self._shut()
                self._open()
            try:
                yield self._file
            except Exception as error:
                if not _of_hdf5(error):
                    raise
                raise OpError(f"{self.uri} is damaged, or holds what HDF5 cannot read: {error}") from error

    @contextmanager
    def _data_set(self, key: str) -> Iterator[tuple[Any, str]]:
        """An `h5py.Dataset`, and what messages call it."""
        if not isinstance(key, str):
            raise TypeError(f"key is the name of a data set as str, got {type(key).__name__}")
        with self._using() as file:
            what = f"{self.uri}: {absolute(key)!r}"
            if (known := self._known.get(key)) is None:
                import h5py

                found = h5py.Dataset(data_set(file["/"].id, key, self.uri, self.keys))
                if len(self._known) >= OPENED:
                    self._known.pop(next(iter(self._known)))
                self._known[key] = found, None
            else:
                found = known[0]
            try:
                yield found, what
            except Exception as error:
                if not _of_hdf5(error):
                    raise
                raise OpError(f"{what} cannot be read: {error}") from error


def _reopened(source: Any, max_output_bytes: int) -> Hdf5Session:
    return Hdf5Session(source, max_output_bytes=max_output_bytes)


# ------------------------------------------------------------------- around h5py


def _h5py() -> Any:
    try:
        import h5py
    except ImportError:
        raise missing_dependency("h5py", "hdf5", "reading HDF5") from None
    return h5py


def _of_hdf5(error: Exception) -> bool:
    """Whether h5py raised this for what HDF5 said, rather than the store or the system below it."""
    plain = (OSError, ValueError, RuntimeError, KeyError, TypeError, NotImplementedError, OverflowError, MemoryError, AttributeError)
    return type(error) in (*plain, UnicodeDecodeError) and getattr(error, "errno", None) is None


def _check_filters(plist: Any, what: str) -> None:
    """Refuse a data set whose filters are not there.

    Raises:
        OpError: naming the filter and how to get it.
    """
    if plist.all_filters_avail():
        return
    try:
        import hdf5plugin  # noqa: F401  (registers its filters)
    except ImportError:
        hint = "; pip install 'dataio-py[hdf5]' brings those of hdf5plugin"
    else:
        hint = "; neither HDF5 nor hdf5plugin has it"
    from h5py import h5z

    for number in range(plist.get_nfilters()):
        code, _, _, name = plist.get_filter(number)
        if not h5z.filter_avail(code):
            text = name.decode("utf-8", "replace")
            raise OpError(f"{what} is stored through the filter {code} ({text or 'without a name'}), which is not installed{hint}")


def _shape(found: Any) -> tuple[int, ...]:
    shape = found.shape
    return (0,) if shape is None else tuple(shape)


def _own(block: Any, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An array, also of what h5py gives as a scalar."""
    return block if isinstance(block, np.ndarray) else np.array(block, dtype).reshape(shape)


def _halves(indices: list[Any], out: np.ndarray, most: int) -> Iterator[tuple[list[Any], np.ndarray]]:
    """A selection and its place, cut in halves along the longest axis until each has at most `most` elements."""
    if out.size <= most or not out.ndim:
        yield indices, out
        return
    target = int(np.argmax(out.shape))
    axis = [at for at, index in enumerate(indices) if isinstance(index, slice)][target]
    cut, whole = out.shape[target] // 2, indices[axis]
    middle = whole.start + cut * whole.step
    for part, place in ((slice(whole.start, middle, whole.step), slice(0, cut)), (slice(middle, whole.stop, whole.step), slice(cut, None))):
        yield from _halves([*indices[:axis], part, *indices[axis + 1 :]], out[(slice(None),) * target + (place,)], most)


def _framed(array: np.ndarray, framework: str, what: str) -> Any:
    if framework == "numpy":
        return array
    if array.dtype.kind not in "biufc" or array.dtype.itemsize > 16:
        raise OpError(f"{what}: torch has no dtype {array.dtype}; read it with framework='numpy'")
    if any(stride < 0 for stride in array.strides):
        array = array.copy()
    try:
        return as_framework(array, framework)
    except TypeError:  # long doubles
        raise OpError(f"{what}: torch has no dtype {array.dtype}; read it with framework='numpy'") from None
