"""`dataio.check`, and the commands that look into files: whatever the bytes are, they end in findings or documented errors."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable

import dataio
from dataio.inspect.contents import first_records, schema, stats
from dataio.inspect.kinds import target_of
from tests.test_checks import HEALTHY

_NAMES = [name for name in sorted(HEALTHY) if not name.startswith(("picture", "checked", "bytes", "array.")) and not name.endswith(".gz")]


def seeds() -> list[bytes]:
    """A healthy file of each kind; the first byte chooses the name that it is given."""
    return [bytes([number]) + HEALTHY[name] for number, name in enumerate(_NAMES)]


def run(data: bytes) -> None:
    """Check it, quickly too, and look into it."""
    if not data:
        return
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, _NAMES[data[0] % len(_NAMES)])
        with open(path, "wb") as file:
            file.write(data[1:])
        dataio.check(path)
        dataio.check(path, quick=True)
        looks: tuple[Callable[[], object], ...] = (lambda: schema(path), lambda: stats(path), lambda: first_records(target_of(path), 3))
        for look in looks:
            try:
                look()
            except (ValueError, OSError):  # documented
                pass
