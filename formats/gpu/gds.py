"""GPUDirect Storage: parts of files straight into the memory of a GPU, by the package kvikio.

kvikio reads by NVIDIA's cuFile where driver and file system can (GPUDirect), and else by plain reads staged through pinned
memory (its POSIX mode): calls work in both, `gds_info` says which it is.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ...io.errors import ReadError
from .devices import DeviceError, check_device, cuda_devices, why_no_cuda

if TYPE_CHECKING:
    import torch

_INSTALL = "the package kvikio is not installed; install it with: pip install kvikio-cu12"


def load_kvikio() -> tuple[Any, str | None]:
    """kvikio and None, or None and why it is not there."""
    try:
        import kvikio
    except ImportError:
        return None, _INSTALL
    except Exception as error:  # it loads CUDA libraries, which may be missing or of another version
        return None, f"kvikio does not load: {error}"
    return kvikio, None


def gds_available() -> bool:
    """Whether files are read to a GPU by GPUDirect Storage. Never raises."""
    return bool(gds_info()["available"])


def gds_info() -> dict[str, Any]:
    """What this machine has for reading files to a GPU. Never raises.

    Returns:
        `library_loaded` and `library_version` (str or None) of cuFile, `driver_open_ok` and `driver_error` (str or None: why the
        driver or anything before it is not there), `available` (GPUDirect itself), `read_ready` (`gds_open` works, in
        kvikio's POSIX mode at least), `batch_ready` (batches are asked of the driver at once).
    """
    info: dict[str, Any] = {
        "library_loaded": False,
        "library_version": None,
        "driver_open_ok": False,
        "driver_error": None,
        "available": False,
        "read_ready": False,
        "batch_ready": False,
    }
    kvikio, why = load_kvikio()
    if kvikio is None or not cuda_devices():
        info["driver_error"] = why or why_no_cuda()
        return info
    info["read_ready"] = True
    try:
        import kvikio.cufile_driver as driver

        version = driver.libcufile_version()
        info["library_loaded"] = version > (0, 0)
        info["library_version"] = ".".join(map(str, version)) if info["library_loaded"] else None
        driver.driver_open()
        try:
            info["driver_open_ok"] = True
            direct = driver.get("is_gds_available") if hasattr(driver, "get") else driver.DriverProperties().is_gds_available
            info["available"] = info["batch_ready"] = bool(direct)
        finally:
            driver.driver_close()
    except Exception as error:
        info["driver_error"] = str(error)
    return info


def _kvikio() -> Any:
    """kvikio on a machine with a CUDA device.

    Raises:
        DeviceError: either is missing.
    """
    kvikio, why = load_kvikio()
    if kvikio is None or not cuda_devices():
        raise DeviceError(f"gds unavailable: {why or why_no_cuda()}")
    return kvikio


class DeviceMemory:
    """`size` bytes of device memory from `pointer` on, as kvikio and others take it."""

    __slots__ = ("__cuda_array_interface__",)

    def __init__(self, pointer: int, size: int) -> None:
        self.__cuda_array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (pointer, False), "version": 3}


class GdsBuffer:
    """Device memory registered for GPUDirect reads; made by `gds_register_buffer`. Closing it takes that back."""

    def __init__(self, kvikio: Any, device_ptr: int, size: int) -> None:
        self._device_ptr = device_ptr
        self._size = size
        self._kvikio: Any = kvikio
        self._memory = DeviceMemory(device_ptr, size)
        kvikio.memory_register(self._memory)

    @property
    def device_ptr(self) -> int:
        """Its address."""
        return self._device_ptr

    @property
    def size(self) -> int:
        """Its bytes."""
        return self._size

    def part(self, offset: int, size: int) -> DeviceMemory:
        """`size` bytes from `offset` on.

        Raises:
            ValueError: not inside, or the buffer is closed.
        """
        if self._kvikio is None:
            raise ValueError("the buffer is closed")
        if offset < 0 or size < 0 or offset + size > self.size:
            raise ValueError(f"{size} bytes at {offset} lie outside the {self.size} bytes of the buffer")
        return DeviceMemory(self.device_ptr + offset, size)

    def close(self) -> None:
        """Take the registration back; more than once is fine."""
        kvikio, self._kvikio = self._kvikio, None
        if kvikio is not None:
            kvikio.memory_deregister(self._memory)

    def __enter__(self) -> GdsBuffer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class GdsFileHandle:
    """A file open for reads to a GPU; made by `gds_open`. A context manager. For several threads."""

    def __init__(self, kvikio: Any, path: str) -> None:
        self._path = path
        self._file: Any = kvikio.CuFile(path, "r")

    def read(self, buffer: GdsBuffer, size: int, file_offset: int = 0, buf_offset: int = 0) -> int:
        """Read `size` bytes of the file from `file_offset` into the buffer from `buf_offset` on.

        Returns:
            Bytes read, fewer only at the end of the file.

        Raises:
            ValueError: a place outside the buffer, a negative offset, or a closed file or buffer.
            OSError: the read fails.
        """
        return self._begin(buffer.part(buf_offset, size), size, file_offset).get()

    def read_into_ptr(self, device_ptr: int, size: int, file_offset: int = 0, buf_offset: int = 0) -> int:
        """As `read`, into device memory that is not registered; `device_ptr + buf_offset` is where the bytes go."""
        if device_ptr <= 0 or buf_offset < 0 or size < 0:
            raise ValueError(f"device_ptr must be an address, size and buf_offset not negative; got {device_ptr}, {size}, {buf_offset}")
        return self._begin(DeviceMemory(device_ptr + buf_offset, size), size, file_offset).get()

    def read_batch(self, buffer: GdsBuffer, entries: Iterable[tuple[int, int, int]]) -> list[tuple[int, int]]:
        """Many reads at once.

        Args:
            buffer: where they go.
            entries: (size, offset in the file, offset in the buffer) of each.

        Returns:
            For each (bytes read, 0), or (0, number of the error) where it failed.

        Raises:
            ValueError: as `read`; nothing is read then.
        """
        checked = [(buffer.part(buf_offset, size), size, file_offset) for size, file_offset, buf_offset in entries]
        if any(file_offset < 0 for _, _, file_offset in checked):
            raise ValueError("offsets in the file must not be negative")
        return [_outcome(read) for read in [self._begin(*entry) for entry in checked]]

    def _begin(self, memory: DeviceMemory, size: int, file_offset: int) -> _Read:
        if self._file is None:
            raise ValueError(f"{self._path} is closed")
        if file_offset < 0:
            raise ValueError(f"file_offset must not be negative, got {file_offset}")
        return _Read(self._path, self._file.pread(memory, size=size, file_offset=file_offset) if size else None)

    def close(self) -> None:
        """Close the file; more than once is fine."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def __enter__(self) -> GdsFileHandle:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class _Read:
    """A read under way."""

    __slots__ = ("_future", "_path")

    def __init__(self, path: str, future: Any) -> None:
        self._path, self._future = path, future

    def get(self) -> int:
        """Its bytes, when it is done."""
        try:
            return 0 if self._future is None else int(self._future.get())
        except RuntimeError as error:  # as kvikio says what cuFile or CUDA refuse
            raise ReadError(f"{self._path}: {error}") from error


def _outcome(read: _Read) -> tuple[int, int]:
    try:
        return read.get(), 0
    except OSError as error:
        return 0, error.errno or -1


def gds_open(path: str | os.PathLike[str]) -> GdsFileHandle:
    """Open a local file for reads to a GPU.

    Raises:
        DeviceError: (a RuntimeError) kvikio or a CUDA device is missing; this comes first.
        OSError: the file cannot be opened.
    """
    kvikio = _kvikio()
    name = os.fspath(path)
    os.close(os.open(name, os.O_RDONLY))  # kvikio says of a missing file only that it failed
    try:
        return GdsFileHandle(kvikio, name)
    except RuntimeError as error:
        raise ReadError(f"{name} cannot be opened for reads to a GPU: {error}") from error


def gds_register_buffer(device_ptr: int, size: int, flags: int = 0) -> GdsBuffer:
    """Register device memory for GPUDirect reads, which spares each read a copy inside the device.

    Args:
        device_ptr: its address, such as `tensor.data_ptr()`; keep the tensor.
        size: its bytes.
        flags: of cuFile; it has none yet, so 0.

    Raises:
        DeviceError: (a RuntimeError) kvikio or a CUDA device is missing; this comes first.
        ValueError: an address or size that is not positive, or flags.
    """
    kvikio = _kvikio()
    if device_ptr <= 0 or size <= 0 or flags:
        raise ValueError(f"device_ptr and size must be positive and flags 0, got {device_ptr}, {size}, {flags}")
    return GdsBuffer(kvikio, device_ptr, size)


def gds_read_into_tensor(path: str | os.PathLike[str], tensor: torch.Tensor, *, file_offset: int = 0, size: int | None = None) -> int:
    """Read a part of a local file into a CUDA tensor.

    Args:
        path: the file.
        tensor: contiguous, of any type; its bytes are overwritten from the first on.
        file_offset: where the part begins.
        size: its bytes; None for those of the tensor.

    Returns:
        Bytes read, fewer only at the end of the file.

    Raises:
        ValueError: not a torch tensor, not on CUDA, not contiguous, a size beyond it or a negative one; in that order, first.
        DeviceError: (a RuntimeError) kvikio or the device is missing.
        OSError: the file cannot be read.
    """
    if not type(tensor).__module__.startswith("torch") or not hasattr(tensor, "data_ptr"):
        raise ValueError(f"gds_read_into_tensor takes a torch.Tensor, got {type(tensor).__name__}")
    if tensor.device.type != "cuda":
        raise ValueError(f"gds_read_into_tensor takes a tensor on CUDA, got one on {tensor.device}")
    if not tensor.is_contiguous():
        raise ValueError("gds_read_into_tensor takes a contiguous tensor; read into an empty one and copy")
    room = tensor.numel() * tensor.element_size()
    wanted = room if size is None else size
    if not 0 <= wanted <= room or file_offset < 0:
        raise ValueError(f"size={size} at file_offset={file_offset}: the tensor has {room} bytes, and offsets are not negative")
    import torch

    with gds_open(path) as file, torch.cuda.device(check_device(tensor.device)):
        torch.cuda.current_stream().synchronize()  # earlier work on this memory; the reads wait for no stream
        return file.read_into_ptr(tensor.data_ptr(), wanted, file_offset) if wanted else 0
