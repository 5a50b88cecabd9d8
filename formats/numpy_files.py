"""NumPy's files: `read_numpy`, `write_numpy`, `write_npz`.

Libraries: `numpy.lib.format` for headers, `zipfile` for .npz. Nothing is ever unpickled.
"""

from __future__ import annotations

import io
import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from typing import IO, Any, cast

import numpy as np
from numpy.lib.npyio import NpzFile

from ..engine.errors import LimitError, OpError
from ..engine.source import RangeReader
from ..io.archives import ZipEntry, place_zip_entry, unpacked_entry, zip_index
from ..io.arguments import check_count
from ..io.file_objects import REMOTE_WINDOW, RangeFile
from ..io.overlays import Lent
from ..io.parallel import for_each
from ..io.ranges import MemoryRanges, Window
from ..io.reader import MAX_OUTPUT
from ..io.writer import writer
from .frameworks import as_framework, check_framework
from .inputs import local_file, missing_key, name_of, naming, open_ranges
from .npy_header import MAGIC, MAX_HEADER, check_payload, header_end, payload_bytes, read_npy_header
from .weights.tensors import torch_name

HEAD = 1024
"""Bytes of the first read of a file: nearly every header is shorter."""
STEP = 1 << 24
"""Bytes that are written at a time where they have to be copied or compressed."""
ZIP_MAGICS = (b"PK\x03\x04", b"PK\x05\x06")


# ------------------------------------------------------------------- reading


def read_numpy(src: Any, *, framework: str = "numpy", max_bytes: int | None = None) -> Any:
    """The array of an .npy file, or the arrays of an .npz file.

    Args:
        src: a local path or URI, bytes-like, a `dataio.Reader` or an object whose `read()` returns bytes; or a list of these. A
            file is read straight into the array.
        framework: "numpy" or "torch".
        max_bytes: largest array, in bytes. None: as large as what is stored, since an .npy file whose header claims more than
            it holds is refused before memory is taken; compressed members of .npz files up to 4 GiB.

    Returns:
        Of an .npy file an array of the file's dtype, byte order, shape and order, writable, in memory of its own; a 0-d array
        has shape (). Of an .npz file a `numpy.lib.npyio.NpzFile`, which reads a member when it is asked for and wants to be
        closed. Of a list the list of these, in order. (The reference gives read-only arrays for lists.)

    Raises:
        ValueError: neither .npy nor .npz, damaged or cut off; Python objects; with "torch" a dtype it lacks, big-endian
            ones included; another framework; larger than `max_bytes` (LimitError).
        FileNotFoundError, OSError: missing or unreadable.
        TypeError: a source of another kind.
    """
    check_framework(framework)
    if max_bytes is not None:
        check_count("max_bytes", max_bytes)
    if isinstance(src, (list, tuple)):
        return _read_many(list(src), framework, max_bytes)
    ranges = open_ranges(src)
    try:
        with naming(src):
            head = ranges.read(0, min(HEAD, ranges.size))
            if bytes(head[:4]) in ZIP_MAGICS:
                return _Npz(ranges, src, framework, max_bytes)
            array = _framed(_read_npy(ranges, max_bytes, head)[0], framework)
    except BaseException:
        ranges.close()
        raise
    ranges.close()
    return array


def _read_many(sources: list[Any], framework: str, max_bytes: int | None) -> list[Any]:
    """In order; those in stores many at once."""
    if all(not isinstance(source, (str, os.PathLike)) or local_file(source) is not None for source in sources):
        return [read_numpy(source, framework=framework, max_bytes=max_bytes) for source in sources]
    found: list[Any] = [None] * len(sources)

    def read(number: int) -> None:
        found[number] = read_numpy(sources[number], framework=framework, max_bytes=max_bytes)

    for_each(read, range(len(sources)))
    return found


def _read_npy(ranges: RangeReader, max_bytes: int | None, first: Any = None) -> tuple[np.ndarray, int]:
    """The array, and where its elements begin in the file; `first` is what was read of its first `HEAD` bytes already."""
    head = memoryview(ranges.read(0, min(HEAD, ranges.size)) if first is None else first).cast("B")
    if len(head) < (end := header_end(head)) <= ranges.size:
        head = memoryview(ranges.read(0, end)).cast("B")
    header = read_npy_header(head)
    check_payload(header, ranges.size)
    dtype, shape, fortran, offset = header
    need = payload_bytes(header)
    if max_bytes is not None and need > max_bytes:
        raise LimitError(f"{dtype}{list(shape)} takes {need:,} bytes, max_bytes is {max_bytes:,}")
    array = np.empty(shape, dtype, order="F" if fortran else "C")
    if need:
        ranges.read_into(offset, _bytes_of(array))
    if dtype.kind == "b":  # a byte of 2 is no bool to NumPy, whatever the file says
        np.not_equal(array.view(np.uint8), 0, out=array)
    return array, offset


def _framed(array: np.ndarray, framework: str) -> Any:
    """The array for `framework`.

    Raises:
        OpError: torch lacks the dtype.
    """
    if framework == "numpy":
        return array
    complaint = f"torch has no dtype {array.dtype}"
    if not array.dtype.isnative:
        raise OpError(f"{complaint}: it has no big-endian numbers; read it with framework='numpy'")
    if array.dtype.kind not in "biufc":
        raise OpError(f"{complaint}; read it with framework='numpy'")
    try:
        return as_framework(array, framework)
    except TypeError:  # long doubles
        raise OpError(f"{complaint}; read it with framework='numpy'") from None


# ------------------------------------------------------------------- .npz


class _Npz(NpzFile):
    """NumPy's class, with members that are checked before memory is taken, and read in place where they are stored."""

    def __init__(self, ranges: RangeReader, src: Any, framework: str, max_bytes: int | None) -> None:
        self._ranges, self._name = ranges, name_of(src)
        self._framework, self._max_bytes = framework, max_bytes

        def open_file() -> io.BufferedReader:
            return io.BufferedReader(RangeFile(Lent(ranges), REMOTE_WINDOW))

        self._index = zip_index(ranges.identity, open_file, self._name)  # first: it holds the directory to limits
        try:
            super().__init__(cast("IO[bytes]", RangeFile(ranges, REMOTE_WINDOW)), own_fid=True, allow_pickle=False)
        except (zipfile.BadZipFile, NotImplementedError, EOFError) as error:
            raise OpError(f"damaged .npz: {error}") from error
        names = [] if self.zip is None else self.zip.namelist()
        self._members = {**{name: name for name in names}, **{name.removesuffix(".npy"): name for name in names}}

    def __getitem__(self, key: str) -> Any:
        if self.zip is None:
            raise ValueError(f"{self._name} is closed")
        if key not in self._members:
            raise missing_key(self._name, "array", key, self.files)
        entry = self._index.find(self._members[key], self._name)
        limit = MAX_OUTPUT if self._max_bytes is None else self._max_bytes + MAX_HEADER
        if entry.method and entry.size > limit:
            raise LimitError(f"{self._name}: {entry.name!r} unpacks to {entry.size:,} bytes, more than max_bytes allows")
        begin = place_zip_entry(entry, self._ranges.read, self._name)
        with naming(f"{self._name}: {entry.name}"):
            if not entry.method and entry.name.endswith(".npy"):
                return self._stored(Window(Lent(self._ranges), begin, entry.size), entry)
            steps = range(begin, begin + entry.packed, STEP)
            packed = (self._ranges.read(at, min(STEP, begin + entry.packed - at)) for at in steps)
            data = b"".join(unpacked_entry(entry, packed, self._name))
            if not data.startswith(MAGIC):
                return data  # as NumPy gives what is no array
            return _framed(_read_npy(MemoryRanges(data), self._max_bytes)[0], self._framework)

    def _stored(self, window: RangeReader, entry: ZipEntry) -> Any:
        array, offset = _read_npy(window, self._max_bytes)
        read_to = offset + array.nbytes
        crc = zlib.crc32(_bytes_of(array), zlib.crc32(window.read(0, offset)))
        if zlib.crc32(window.read(read_to, window.size - read_to), crc) != entry.crc:
            raise OpError("damaged: its checksum is wrong")
        return _framed(array, self._framework)


# ------------------------------------------------------------------- writing


def write_numpy(uri: str | os.PathLike[str], array: Any, *, atomic: bool = True) -> None:
    """Write one array as an .npy file, in C order.

    Args:
        uri: a local path or a URI that can be written.
        array: a NumPy array or what becomes one, or a torch tensor (detached, moved to the CPU). 0-d arrays keep their shape ()
            (the reference stores (1,)).
        atomic: False writes into the local file in place.

    Raises:
        TypeError: bfloat16 and 8-bit floats, for which the format has no name.
        ValueError: Python objects.
        OSError, NotImplementedError: as `dataio.writer` says; then the old file is as it was.
    """
    values = _storable(array, "write_numpy")
    with writer(os.fspath(uri), atomic=atomic) as to, to.open() as file:
        _write_npy(file, values)


def write_npz(
    uri: str | os.PathLike[str],
    arrays: Mapping[str, Any] | None = None,
    *,
    compressed: bool = False,
    atomic: bool = True,
    **named_arrays: Any,
) -> None:
    """Write arrays by name as an .npz file, one after the other; equal arrays give equal bytes.

    Args:
        uri: a local path or a URI that can be written.
        arrays: mapping of name to array, as `write_numpy` takes them. A name may contain "/", and ".." is only a name.
        compressed: by deflate.
        atomic: False writes into the local file in place.
        named_arrays: more arrays; they win over those of `arrays`.

    Raises:
        ValueError: no arrays; Python objects; a name with a NUL character.
        TypeError: `arrays` is no mapping, a name is no str; bfloat16 and 8-bit floats.
        OSError, NotImplementedError: as `dataio.writer` says; then the old file is as it was.
    """
    if arrays is not None and not isinstance(arrays, Mapping):
        raise TypeError(f"arrays is a mapping of name to array, got {type(arrays).__name__}")
    given = {**(arrays or {}), **named_arrays}
    if not given:
        raise OpError("write_npz got no arrays")
    for name in given:
        if not isinstance(name, str):
            raise TypeError(f"the name of an array is a str, got {name!r}")
        if "\0" in name:
            raise OpError(f"the name of an array must not contain NUL, which ends names in zip files: {name!r}")
    method = zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
    values = {name: _storable(array, f"write_npz: {name!r}") for name, array in given.items()}
    with writer(os.fspath(uri), atomic=atomic) as to, to.open() as file, zipfile.ZipFile(file, "w", method) as archive:
        for name, array in values.items():
            member = zipfile.ZipInfo(f"{name}.npy")
            member.compress_type = method
            with archive.open(member, "w", force_zip64=True) as out:
                _write_npy(out, array)


def _storable(array: Any, what: str) -> np.ndarray:
    """The array as NumPy has it.

    Raises:
        TypeError, OpError: as the writers say.
    """
    if hasattr(array, "detach"):  # a torch tensor
        if "bfloat16" in str(array.dtype) or "float8" in str(array.dtype):
            raise _nameless(str(array.dtype), what)
        array = array.detach().cpu().resolve_conj().resolve_neg().numpy()
    values = np.asarray(array)
    dtype = values.dtype
    if dtype.hasobject:
        raise OpError(f"{what}: dtype {dtype} holds Python objects, which are only stored by pickle; convert it first")
    if torch_name(dtype) is not None or (dtype.kind == "V" and dtype.type is not np.void):
        raise _nameless(torch_name(dtype) or dtype.name, what)
    if dtype.kind not in "?biufcmMSUV":
        raise _nameless(dtype.name, what)
    return values


def _nameless(dtype: str, what: str) -> TypeError:
    return TypeError(f"{what}: .npy has no {dtype}; convert it (to float32, say), or use write_safetensors, which keeps it")


def _write_npy(file: Any, array: np.ndarray) -> None:
    """Header and elements, in C order."""
    facts = {**np.lib.format.header_data_from_array_1_0(array), "fortran_order": False}
    try:
        np.lib.format.write_array_header_1_0(file, facts)
    except ValueError:  # long, or with field names beyond Latin-1: NumPy picks the version
        np.lib.format.write_array(file, np.ascontiguousarray(array), allow_pickle=False)
        return
    for piece in _pieces(array):
        file.write(piece)


def _pieces(array: np.ndarray) -> Iterator[memoryview | bytes]:
    if array.flags.c_contiguous:
        view = _bytes_of(array)
        yield from (view[at : at + STEP] for at in range(0, len(view), STEP))
        return
    flags = ["external_loop", "buffered", "zerosize_ok"]
    for part in np.nditer(array, flags, buffersize=max(1, STEP // array.itemsize), order="C"):  # type: ignore[call-overload]
        yield part.tobytes("C")


def _bytes_of(array: np.ndarray) -> memoryview:
    """The memory of a contiguous array; some dtypes, such as datetime64, have no buffer of their own."""
    return array.reshape(-1, order="A").view(np.uint8).data
