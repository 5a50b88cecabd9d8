"""Temporary files of processes that were killed while they wrote: found and removed by later writes in the same folder.

A file `name.tmp.<pid>.<random>` is taken for one when no process here has that number, nothing was written to it for a while, and
its lock is free: a writer holds the lock (`flock`, which the kernel drops with the process) until its file has its name, on
other machines of a shared file system and in other containers too.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from itertools import islice
from types import ModuleType

_fcntl: ModuleType | None
try:
    import fcntl as _fcntl
except ImportError:  # no POSIX
    _fcntl = None

AGE = 60.0
"""Seconds without a write after which a file may be a leftover; longer than it takes to lock a file that was just made."""
NAMES = 10_000
"""Names of a folder that are looked at."""
_NAME = re.compile(r".\.tmp\.([1-9][0-9]*)\.[0-9a-f]{8}\Z", re.DOTALL)
_swept: set[str] = set()
_FOLDERS = 4096


def hold(descriptor: int) -> None:
    """Lock the temporary file of a writer in this process; some file systems have no locks."""
    if _fcntl is not None:
        with suppress(OSError):
            _fcntl.flock(descriptor, _fcntl.LOCK_EX | _fcntl.LOCK_NB)


def sweep(folder: str) -> None:
    """Remove the leftovers of a folder, the first time that this process writes to it. What cannot be removed stays."""
    if folder in _swept or _fcntl is None:
        return
    if len(_swept) >= _FOLDERS:
        _swept.clear()
    _swept.add(folder)
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in islice(entries, NAMES):
            found = _NAME.search(entry.name)
            if found is not None and not _runs(int(found[1])):
                with suppress(OSError):
                    _remove(entry.path)


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        pass
    return True


def _remove(path: str) -> None:
    assert _fcntl is not None
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if time.time() - os.fstat(descriptor).st_mtime > AGE:
            _fcntl.flock(descriptor, _fcntl.LOCK_EX | _fcntl.LOCK_NB)
            os.unlink(path)
    finally:
        os.close(descriptor)
