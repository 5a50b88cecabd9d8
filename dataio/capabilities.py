"""What this installation can do. Everything reported was looked up or tried; nothing is assumed."""

from __future__ import annotations

import ctypes
import importlib
import importlib.metadata
import importlib.util
import io
import platform
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from . import settings
from .engine import registry
from .engine.errors import OpError
from .formats.gpu.gds import gds_info
from .formats.gpu.jpeg import why_no_nvjpeg

PACKAGES = (
    "numpy",
    "pyarrow",
    "polars",
    "pillow",
    "opencv-python-headless",
    "simplejpeg",
    "fsspec",
    "obstore",
    "safetensors",
    "torch",
)
EXECUTORS = "dataio.engine.executors"
SAMPLES: dict[str, dict[str, Any]] = {  # format as Pillow names it, options of its writer
    "JPEG": {},
    "PNG": {},
    "WEBP": {},
    "GIF": {},
    "TIFF": {"compression": "tiff_lzw"},
    "BMP": {},
    "PPM": {},
    "TGA": {},
    "QOI": {},
    "JPEG2000": {},
    "AVIF": {},
}


@dataclass(frozen=True, slots=True)
class Probe:
    """A yes or no, with the reason or a detail."""

    available: bool
    detail: str

    def __str__(self) -> str:
        answer = "yes" if self.available else "no"
        return f"{answer}: {self.detail}" if self.detail else answer


def version() -> str:
    """The installed version of dataio; "unknown" when it runs from a bare checkout."""
    try:
        return importlib.metadata.version("dataio-py")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def packages() -> dict[str, str | None]:
    """Versions of the packages that dataio uses; None for an absent one."""
    found: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def image_codecs() -> dict[str, Probe]:
    """For each image format, whether `decode_image` reads a small sample, which Pillow writes."""
    pillow: Any = importlib.import_module("PIL.Image")
    decode = registry.lookup("image", "decoder").function
    found: dict[str, Probe] = {}
    for name, options in SAMPLES.items():
        sample = io.BytesIO()
        try:
            pillow.new("RGB", (8, 8), (200, 100, 50)).save(sample, name, **options)
        except (OSError, KeyError, ValueError):
            found[name] = Probe(False, "not tried: this Pillow writes no sample")
            continue
        try:
            shape = decode(sample.getvalue(), layout="hwc", normalize="none").shape
            found[name] = Probe(shape == (8, 8, 3), "" if shape == (8, 8, 3) else f"gave {shape}")
        except (OpError, ImportError) as error:
            found[name] = Probe(False, str(error))
    return found


def cuda_driver() -> Probe:
    """Asks the NVIDIA driver itself, so that it works without torch."""
    try:
        driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return Probe(False, "the NVIDIA driver library is not found")
    if code := driver.cuInit(0):
        return Probe(False, f"the NVIDIA driver does not start (cuInit returned {code})")
    number, devices = ctypes.c_int(), ctypes.c_int()
    driver.cuDriverGetVersion(ctypes.byref(number))
    driver.cuDeviceGetCount(ctypes.byref(devices))
    release = f"{number.value // 1000}.{number.value % 1000 // 10}"
    return Probe(devices.value > 0, f"CUDA {release}, {devices.value} device(s)")


def torch_cuda() -> Probe:
    """Whether torch can use a CUDA device; `device="cuda"` and pinned memory need that."""
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError:
        return Probe(False, "torch is not installed; pip install 'dataio-py[torch]'")
    if torch.version.cuda is None:
        return Probe(False, "this build of torch has no CUDA")
    if not torch.cuda.is_available():
        return Probe(False, f"torch was built for CUDA {torch.version.cuda} and finds no device")
    return Probe(True, f"CUDA {torch.version.cuda}, {torch.cuda.get_device_name(0)}")


def nvjpeg() -> Probe:
    """Whether `decode_image_batch` works."""
    why = why_no_nvjpeg()
    return Probe(why is None, why or "through torchvision")


def gds() -> Probe:
    """Whether files are read to a GPU by GPUDirect Storage; without it, whether kvikio reads them through host memory."""
    found = gds_info()
    if found["available"]:
        return Probe(True, f"cuFile {found['library_version']}")
    return Probe(False, "kvikio reads through host memory" if found["read_ready"] else found["driver_error"] or "the driver has none")


def _setting(read: Callable[[], object]) -> object:
    try:
        return read()
    except settings.SettingError as error:
        return f"error: {error}"


def report() -> dict[str, Any]:
    """The capability report as plain data."""
    return {
        "dataio": version(),
        "platform": {
            "system": platform.system(),
            "machine": platform.machine(),
            "python": platform.python_version(),
        },
        "packages": packages(),
        "image_codecs": {name: asdict(probe) for name, probe in image_codecs().items()},
        "workers": {
            "cpu_workers": _setting(settings.cpu_workers),
            "executor": _setting(settings.default_executor),
            "executors": [n for n in ("thread", "process") if importlib.util.find_spec(f"{EXECUTORS}.{n}")],
        },
        "subsystems": {
            "CUDA driver": asdict(cuda_driver()),
            "CUDA through torch": asdict(torch_cuda()),
            "nvJPEG": asdict(nvjpeg()),
            "cuFile (GDS)": asdict(gds()),
        },
        "env_overrides": settings.overrides(),
        "env_unknown": settings.unknown(),
    }


def lines(found: dict[str, Any]) -> list[str]:
    """The report as text."""
    where = found["platform"]
    workers = found["workers"]
    out = [f"dataio {found['dataio']}"]
    out.append(row("platform", f"{where['system']} {where['machine']}, Python {where['python']}"))
    out.append("Packages")
    out += [row(name, v or "not installed") for name, v in found["packages"].items()]
    out.append("Image codecs")
    codecs = {name: Probe(**probe) for name, probe in found["image_codecs"].items()}
    out.append(row("read", ", ".join(name for name, probe in codecs.items() if probe.available)))
    out += [row(name, str(probe)) for name, probe in codecs.items() if not probe.available]
    out.append("Workers")
    out.append(row("cpu workers", workers["cpu_workers"]))
    out.append(row("executor", f"{workers['executor']} (of {', '.join(workers['executors'])})"))
    out.append("Subsystems")
    out += [row(name, str(Probe(**probe))) for name, probe in found["subsystems"].items()]
    out.append("Env overrides")
    notes = found["env_unknown"]
    for name, value in found["env_overrides"].items():
        out.append(row(name, f"{value}  ({notes[name]})" if name in notes else value))
    if not found["env_overrides"]:
        out.append("  none")
    return out


def row(label: str, value: object) -> str:
    """One line of a report."""
    return f"  {label:<26}{value}"
