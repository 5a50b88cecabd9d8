"""Link the sources into `build/check` in their installed shape, for mypy and pyright.

Neither follows setuptools' `package-dir` mapping, and mypy takes the local folder `io/` for the standard library's. There
is one link per file, because pyright skips linked folders.
"""

from __future__ import annotations

import os
import shutil
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CHECK = ROOT / "build" / "check"
SUFFIXES = {".py", ".pyi", ".typed"}


def package_dirs() -> dict[str, str]:
    """Package name to folder, as pyproject.toml maps them."""
    with open(ROOT / "pyproject.toml", "rb") as file:
        mapping: dict[str, str] = tomllib.load(file)["tool"]["setuptools"]["package-dir"]
    return mapping


def main() -> None:
    shutil.rmtree(CHECK, ignore_errors=True)
    for package, folder in {**package_dirs(), "tests": "tests"}.items():
        for path in (ROOT / folder).rglob("*"):
            if path.suffix not in SUFFIXES:
                continue
            link = CHECK / package.replace(".", "/") / path.relative_to(ROOT / folder)
            if link.is_symlink():  # a nested package, reached through its parent as well
                continue
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(os.path.relpath(path, link.parent))


if __name__ == "__main__":
    main()
