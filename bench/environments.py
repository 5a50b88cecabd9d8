"""The peers' environments: one virtual environment each, so that no peer sees another's dependencies.

`DATAIO_BENCH_VENVS` names the folder that holds them (default: .venvs); one that is there is used as it is.
`DATAIO_BENCH_PIP` gives pip more options, such as `--extra-index-url https://download.pytorch.org/whl/cpu`.
"""

from __future__ import annotations

import ctypes.util
import os
import subprocess
import sys
import venv
from pathlib import Path

TORCH = "torch==2.13.0"
REQUIREMENTS = {
    "rs047": ["dataio-rs==0.4.7", "numpy", "pyarrow", TORCH],
    "rs0415": ["dataio-rs==0.4.15", "numpy", "pyarrow", TORCH],
    "spdl": ["spdl==0.8.0", "spdl_core==0.8.0", "spdl_io==0.8.0", "numpy", "pillow", TORCH],
}
LIBRARIES = {
    "turbojpeg": "dataio-rs decodes JPEG by a slower decoder without libturbojpeg: apt-get install libturbojpeg0",
    "avfilter": "SPDL yields nothing without FFmpeg's libraries: apt-get install libavdevice59 libavfilter8",
}


def folder(root: Path) -> Path:
    """Where the peers' environments lie."""
    return Path(os.environ.get("DATAIO_BENCH_VENVS") or root / ".venvs")


def python_of(name: str, root: Path) -> Path:
    """The interpreter of the environment `name`, made first if it is not there."""
    if name == "own":
        return Path(sys.executable)
    parent = folder(root)
    for known in (parent / name, parent / f"bench-{name}"):
        if (known / "bin" / "python").exists() and installed(known, name):
            return known / "bin" / "python"
    target = parent / f"bench-{name}"
    print(
        f"making {target} (some minutes, once): {' '.join(REQUIREMENTS[name])}", file=sys.stderr, flush=True
    )
    venv.create(target, with_pip=True)
    python = target / "bin" / "python"
    options = os.environ.get("DATAIO_BENCH_PIP", "").split()
    pip = [
        str(python),
        "-m",
        "pip",
        "install",
        "--quiet",
        "--quiet",
        "--disable-pip-version-check",
        "--no-input",
    ]
    subprocess.run([*pip, *options, *REQUIREMENTS[name]], check=True)
    return python


def installed(target: Path, name: str) -> bool:
    """Whether `target` holds the pinned version of its first requirement: a half-made environment does not."""
    project, _, version = REQUIREMENTS[name][0].partition("==")
    return any(target.glob(f"lib/python*/site-packages/{project.replace('-', '_')}-{version}.dist-info"))


def missing_libraries() -> list[str]:
    """What to install for a fair comparison, in words."""
    return [hint for library, hint in LIBRARIES.items() if ctypes.util.find_library(library) is None]
