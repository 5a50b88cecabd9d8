"""`python -m dataio [--json] [command]`, also installed as `dataio`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from .engine.errors import DataioError


def parser() -> argparse.ArgumentParser:
    root = argparse.ArgumentParser(prog="dataio", description="Declarative data loading.")
    root.add_argument("--json", action="store_true", help="print one JSON object instead of text (info)")
    commands = root.add_subparsers(dest="command", metavar="command")
    commands.add_parser("info", help="what this installation can do (the default)")
    demo = commands.add_parser("demo", help="run the first example on real photos")
    demo.add_argument("--output", type=Path, default=Path("demo-output"), help="folder to write to (%(default)s)")
    demo.add_argument("--photos", type=_photos, default=384, help="number of photos to make (%(default)s)")
    demo.add_argument("--epochs", type=_photos, default=3, help="passes over the photos (%(default)s)")
    return root


def _photos(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def info(as_json: bool) -> None:
    from . import capabilities

    found = capabilities.report()
    print(json.dumps(found, indent=2) if as_json else "\n".join(capabilities.lines(found)))


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status: 0, 1 after an error, 2 (by SystemExit) for a wrong command line."""
    args = parser().parse_args(argv)
    try:
        if args.command == "demo":
            from .demo import demo

            demo(args.output, photos=args.photos, epochs=args.epochs)
        else:
            info(args.json)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader went away, as in `dataio info | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130
    except (DataioError, ImportError, OSError, ValueError) as error:
        print(f"dataio: {error}", file=sys.stderr)
        return 1
    return 0
