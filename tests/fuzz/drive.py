"""One fuzz target in this process: `python -m tests.fuzz.drive NAME [options of libFuzzer]`; see scripts/fuzz.py."""

from __future__ import annotations

import importlib
import logging
import sys
import tempfile
from pathlib import Path

import atheris


def main() -> None:
    logging.disable(logging.WARNING)  # what was left out of damaged files would be most of the work
    name, *options = sys.argv[1:]
    with atheris.instrument_imports(include=["dataio"]):
        target = importlib.import_module(f"tests.fuzz.targets.{name}")
    with tempfile.TemporaryDirectory() as corpus:
        for number, seed in enumerate(target.seeds()):
            target.run(seed)  # what is imported inside functions counts as start-up
            Path(corpus, f"{number:03d}").write_bytes(seed)
        atheris.Setup([sys.argv[0], *options, corpus], target.run)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
