"""Trees of local files, walked once and in order."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator

from ..store import ObjectInfo


def walk(folder: str, begins: str, delimited: bool, enter: Callable[[str], bool] | None = None) -> Iterator[ObjectInfo]:
    """The files of `folder` (which ends with "/" or is empty) whose names begin with `begins`, and of the folders below.

    Args:
        delimited: folders are given instead of what is in them.
        enter: folders are given too, and walked only where this says so of their path, which ends with "/".
    """
    # Folders under way: their paths, what is left of them (last first), and who they are, to notice a link to one above.
    above: list[tuple[str, list[tuple[str, os.DirEntry[str]]], tuple[int, int]]] = []
    try:
        entries, here = _entries(folder, begins)
    except (FileNotFoundError, NotADirectoryError):
        return
    above.append((folder, entries, here))
    while above:
        folder, entries, _ = above[-1]
        if not entries:
            above.pop()
            continue
        name, entry = entries.pop()
        path = folder + name
        try:
            if not name.endswith("/"):
                info = entry.stat()
                if stat.S_ISREG(info.st_mode):
                    yield ObjectInfo(path, info.st_size, modified=info.st_mtime)
            elif delimited:
                yield ObjectInfo(path, None, is_prefix=True)
            else:
                if enter is not None:
                    yield ObjectInfo(path, None, is_prefix=True)
                    if not enter(path):
                        continue
                inner, here = _entries(path, "")
                if all(here != other for _, _, other in above):
                    above.append((path, inner, here))
        except FileNotFoundError:  # removed meanwhile, or a link that leads nowhere
            continue
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise


def _entries(folder: str, begins: str) -> tuple[list[tuple[str, os.DirEntry[str]]], tuple[int, int]]:
    """The names in one folder, last first, folders with a "/" behind them: so whole paths come sorted."""
    info = os.stat(folder or ".")
    with os.scandir(folder or ".") as found:
        chosen = [entry for entry in found if entry.name.startswith(begins)]
    names = [(f"{entry.name}/" if _is_folder(entry) else entry.name, entry) for entry in chosen]
    names.sort(key=lambda pair: pair[0], reverse=True)
    return names, (info.st_dev, info.st_ino)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a loop of links
        return False
