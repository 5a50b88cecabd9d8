"""`read_safetensors` and `open_safetensors`: the tensors of one file, of a sharded checkpoint, or of several files."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self, cast

import numpy as np

from ...engine.errors import OpError
from ...engine.source import RangeReader
from ...io.errors import ReadError
from ...io.ranges import FileIdentity, FileRanges, file_identity
from ..frameworks import as_framework, check_framework
from ..inputs import local_file, missing_key, name_of, naming, open_ranges
from .safetensors import Header, cached_header, read_header_text
from .safetensors_memory import MappedFile, maps, read_tensors
from .tensors import TensorPlace


def read_safetensors(
    src: Any,
    *,
    key: str | None = None,
    keys: Iterable[str] | None = None,
    framework: str = "numpy",
    device: Any = None,
    mmap: bool | None = None,
) -> Any:
    """Tensors of a safetensors file or checkpoint.

    Local files are mapped into memory, not read: an array is a view of the file's pages (read-only for NumPy; private to the
    process for torch, so that writing to a tensor never changes the file). Files on network file systems, and large ones that are not in
    the page cache, are read in large parallel parts instead. Objects of a store come by ranged requests: the header, then
    what is asked for, neighbours together. Views stay valid for as long as they live; see `open_safetensors` for files that change.

    Args:
        src: a path or URI; bytes; a reader; a folder, or a URI that ends with "/", with a sharded checkpoint (its
            `model.safetensors.index.json`, else its `model.safetensors`); or a list of files, whose tensors are put together.
        key: one tensor of a single file.
        keys: these tensors only.
        framework: "numpy" (bfloat16 and float8 by the types of `ml_dtypes`) or "torch".
        device: of torch tensors: "cpu" or None for host memory, "cuda:0" for a GPU (through kvikio, or pinned memory).
        mmap: True maps local files whatever they are, False always reads them; None decides.

    Returns:
        Tensors by name in the order of the file (of shards: file by file, sorted by name); with `key` one tensor.

    Raises:
        KeyError: no such tensor.
        ValueError: damaged or no safetensors file (OpError); an unknown framework; `key` with several files; a tensor that is in two
            files; NumPy arrays on a GPU; elements of 4 or 6 bits, which no array holds.
        FileNotFoundError, OSError: missing, unreadable, changed while it was read.
        RuntimeError: a GPU that is not there (DeviceError).
    """
    check_framework(framework)
    check_target(framework, device)
    wanted = None if keys is None else _names(keys)
    if key is not None and wanted is not None:
        raise ValueError("give key or keys, not both")
    from .safetensors_shards import read_folder, read_several

    several = isinstance(src, (list, tuple))
    if several or is_folder(src):
        if key is not None:
            raise ValueError(f"key={key!r} is for a single file; keys=[{key!r}] takes tensors of a checkpoint or of several files")
        read = read_several if several else read_folder
        return read(src, wanted, framework, device, mmap)
    with open_safetensors(src, device=device, mmap=mmap) as session:
        if key is not None:
            return session.read(key=key, framework=framework)
        return session.read_keys(session.keys() if wanted is None else wanted, framework)


def open_safetensors(src: Any, *, device: Any = None, mmap: bool | None = None) -> SafetensorsSession:
    """Open one safetensors file: its header is read and checked, tensors when they are asked for.

    Args and errors as `read_safetensors`; `src` is a single file.
    """
    return SafetensorsSession(src, device=device, mmap=mmap)


class SafetensorsSession:
    """An open safetensors file; a context manager. May be used by several threads, and after a fork; pickles by its source.

    Tensors that were given out stay valid after `close`; a read after it opens the file again. A local file that was cut
    short, or replaced by one of another size, since it was opened is refused (OSError). Views given out before cannot be guarded: touching
    a page that is no longer in the file ends the process, as for every mapped file; `mmap=False` reads instead.

    Attributes:
        uri: path or URI, secrets masked; "<bytes>" for memory.
    """

    def __init__(self, src: Any, *, device: Any = None, mmap: bool | None = None) -> None:
        if device is not None:
            check_target("torch", device)
        self._source, self._device, self._mmap = src, device, mmap
        self.uri = name_of(src)
        self._path = local_file(src)
        self._reader: RangeReader | None = None
        self._maps: dict[bool, MappedFile] = {}
        self._places = self._header()

    # ---------------------------------------------------------------- what is inside

    def keys(self) -> list[str]:
        """The names of the tensors, in the order of the header."""
        return list(self._places)

    @property
    def header(self) -> dict[str, Any]:
        """The JSON header, `__metadata__` included: dtype, shape and data_offsets by name. A copy."""
        with naming(self._source):
            found: dict[str, Any] = json.loads(read_header_text(self._opened()))
        return found

    @property
    def metadata(self) -> dict[str, str]:
        """The `__metadata__` of the file, empty where it has none."""
        return dict(self.header.get("__metadata__", {}))

    def __contains__(self, key: object) -> bool:
        return key in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    # ---------------------------------------------------------------- reading

    def read(self, *, key: str | None = None, framework: str = "numpy") -> Any:
        """One tensor, or with no `key` a dict of all; as `read_safetensors`."""
        check_framework(framework)
        check_target(framework, self._device)
        if key is None:
            return self.read_keys(self._places, framework)
        return self.read_keys([key], framework)[key]

    def read_batch(self, keys: Iterable[str], *, framework: str = "torch") -> dict[str, Any]:
        """Several tensors by name, neighbours by one request.

        Raises:
            KeyError, ValueError, OSError: as `read_safetensors`.
        """
        check_framework(framework)
        check_target(framework, self._device)
        return self.read_keys(_names(keys), framework)

    def read_slice(self, key: str, start: int, end: int, *, framework: str = "numpy") -> Any:
        """Rows `start` to `end` (not included) of a tensor's first axis; nothing else is read.

        Raises:
            ValueError: rows that are not there, or a tensor without axes.
            KeyError, OSError: as `read_safetensors`.
        """
        check_framework(framework)
        check_target(framework, self._device)
        place = self._place(key)
        if not place.shape:
            raise OpError(f"{self.uri}: {key!r} is a scalar, which has no rows")
        for name, value in (("start", start), ("end", end)):
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
                raise TypeError(f"{name} is an int, got {value!r}")
        if not 0 <= start <= end <= place.shape[0]:
            raise OpError(f"{self.uri}: rows {start} to {end} are not in the {place.shape[0]} of {key!r}")
        row = place.nbytes // place.shape[0] if place.shape[0] else 0
        rows = TensorPlace(place.dtype, (int(end - start), *place.shape[1:]), place.offset + int(start) * row)
        return self._load({key: rows}, framework)[key]

    def read_into(self, key: str, out: Any) -> None:
        """Read a tensor into memory that is there: a NumPy array or CPU torch tensor, writable, contiguous, of its dtype and shape.

        Raises:
            ValueError: `out` is another.
            KeyError, OSError: as `read_safetensors`.
        """
        place = self._place(key)
        target = out
        if type(out).__module__.partition(".")[0] == "torch":
            import torch

            if out.device.type != "cpu" or not out.is_contiguous():
                raise OpError(f"{self.uri}: read_into fills contiguous tensors on the CPU, got one on {out.device}")
            same = as_framework(np.empty((0,), place.dtype), "torch").dtype == out.dtype
            target = out.detach().reshape(-1).view(torch.uint8).numpy() if same else None
            shape = tuple(out.shape)
        else:
            if not isinstance(out, np.ndarray):
                raise TypeError(f"out is a NumPy array or a torch tensor, got {type(out).__name__}")
            same = as_framework(np.empty((0,), place.dtype), "numpy").dtype == out.dtype
            shape = out.shape
            if not (out.flags.c_contiguous and out.flags.writeable):
                raise OpError(f"{self.uri}: read_into fills writable arrays in C order")
        if not same or shape != place.shape:
            raise OpError(f"{self.uri}: {key!r} is {place.dtype} {place.shape}, out is {out.dtype} {shape}")
        if place.nbytes:
            place.read_into(self._opened(), target.reshape(-1).view(place.dtype).reshape(place.shape))

    def read_keys(self, keys: Iterable[str], framework: str) -> dict[str, Any]:
        """Several tensors, by name, in the order of `keys`."""
        return self._load({key: self._place(key) for key in keys}, framework)

    def _load(self, places: Mapping[str, TensorPlace], framework: str) -> dict[str, Any]:
        with naming(self._source):
            if framework == "torch" and on_gpu(self._device):
                from ..gpu.staging import load_to_device

                return load_to_device(self._opened(), places, self._device, path=self._path)
            writable = framework == "torch"
            reader = self._opened()
            if isinstance(reader, FileRanges) and self._path is not None and (self._maps or maps(self._path, places, self._mmap)):
                found = self._views(reader, self._path, places, writable)
            else:
                found = read_tensors(reader, self._path, places, writable=writable, map_file=False)
            return {name: as_framework(found[name], framework) for name in places}

    # ---------------------------------------------------------------- the file

    def _views(self, reader: FileRanges, path: str, places: Mapping[str, TensorPlace], writable: bool) -> dict[str, np.ndarray]:
        """Views of the mapped file; one mapping for each kind serves the whole session."""
        mapped = self._maps.get(writable)
        if mapped is None:
            mapped = self._maps[writable] = MappedFile(reader, path, writable=writable)
        found = {name: mapped.view(place) for name, place in places.items()}
        if not writable:
            for array in found.values():
                array.flags.writeable = False
        return found

    def _header(self) -> Header:
        with naming(self._source):
            return cached_header(self._opened())

    def _opened(self) -> RangeReader:
        if self._reader is None:
            self._reader = open_ranges(self._source)
        elif self._path is not None and isinstance(self._reader, FileRanges):
            self._check_unchanged(self._reader)
        return self._reader

    def _check_unchanged(self, reader: FileRanges) -> None:
        """Refuse a file that was written to since; one that was replaced by another lives on for who has it open."""
        try:
            now = file_identity(os.stat(str(self._path)))
        except OSError:  # removed
            return
        before = cast(FileIdentity, reader.identity)
        if now[:2] == before[:2] and now[:4] != before[:4]:
            raise ReadError(f"{self.uri} was written to after it was opened: open it again")

    def _place(self, key: str) -> TensorPlace:
        place = self._places.get(key)
        if place is None:
            raise missing_key(self._source, "tensor", key, self._places)
        if place.dtype.kind == "V" and place.dtype.names is None:
            raise OpError(f"{self.uri}: tensor {key!r} has elements of 4 or 6 bits, which no array holds; store it as U8")
        return place

    def close(self) -> None:
        """Let go of the file; more than once is fine."""
        reader, self._reader = self._reader, None
        self._maps.clear()
        if reader is not None:
            reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _opened_again, (self._source, self._device, self._mmap)

    def __repr__(self) -> str:
        return f"SafetensorsSession({self.uri!r}, {len(self._places)} tensors)"


def _opened_again(source: Any, device: Any, mmap: bool | None) -> SafetensorsSession:
    return SafetensorsSession(source, device=device, mmap=mmap)


def check_target(framework: str, device: Any) -> None:
    """Refuse a device that is none, or that arrays of this framework cannot be on.

    Raises:
        ValueError: NumPy arrays elsewhere than in host memory; no device.
        DeviceError: (a RuntimeError) a GPU that is not there.
    """
    if device is None or device == "cpu":
        return
    if framework == "numpy":
        raise ValueError(f"device={device!r} needs framework='torch': NumPy arrays live in host memory")
    from ..gpu.devices import check_device

    check_device(device)


def on_gpu(device: Any) -> bool:
    """Whether tensors go to a GPU; the device was checked."""
    return device is not None and str(device) != "cpu"


def is_folder(src: Any) -> bool:
    """Whether a source names a folder of files: a local one that is there, or a URI that ends with a slash."""
    path = local_file(src)
    if path is not None:
        return os.path.isdir(path) or (path.endswith("/") and not os.path.exists(path))
    return isinstance(src, str) and src.endswith("/")


def _names(keys: Iterable[str]) -> list[str]:
    if isinstance(keys, (str, bytes)):
        raise TypeError(f"keys are several names, got {keys!r}; one is key={keys!r}")
    names = list(keys)
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"keys are names of tensors (str), got {name!r}")
    return names


