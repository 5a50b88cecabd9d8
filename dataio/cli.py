"""`python -m dataio [--json] [command]`, also installed as `dataio`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from .engine.errors import DataioError
from .io.secrets import masked

FAILED, NOT_THERE, INTERRUPTED, PIPE_CLOSED = 1, 3, 130, 141
_EXITS = """\
exit status:
  0    done
  1    failed; one line on stderr says why; check: it found errors
  2    wrong command line
  3    no such file, object, bucket or folder, or nothing matches a pattern
  130  interrupted
  141  whoever read the output went away

A URI is a path, file:///path, s3://bucket/key, r2://, gs://, az://, hf://org/repo/path, hfd://, https://, or of any scheme that
fsspec knows. Where many are taken, *, ? and [...] match within one name and ** across folders; quote them, or the shell
takes them for local files. A name that exists exactly as written is that one; --literal takes all as written. What web
addresses hold is never a pattern.
"""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print one JSON object instead of text")
    many = argparse.ArgumentParser(add_help=False)
    many.add_argument("--literal", action="store_true", help="take *, ? and [ as they are")
    work = argparse.ArgumentParser(add_help=False)
    work.add_argument("--workers", type=_count, metavar="N", help="objects at once (16; check: the CPUs, at most 8)")
    work.add_argument(
        "--progress", action=argparse.BooleanOptionalAction, help="draw a bar on stderr (where that is a terminal)"
    )
    root = argparse.ArgumentParser(
        prog="dataio",
        description="Declarative data loading, and files in any store.",
        epilog=_EXITS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    root.add_argument("--json", action="store_true", help="print one JSON object instead of text; also after the command")
    commands = root.add_subparsers(dest="command", metavar="command")

    def command(name: str, help: str, *parents: argparse.ArgumentParser) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=help, description=help, parents=[common, *parents])

    command("info", "what this installation can do (the default)")
    demo = command("demo", "run the first example on real photos")
    demo.add_argument("--output", type=Path, default=Path("demo-output"), help="folder to write to (%(default)s)")
    demo.add_argument("--photos", type=_count, default=384, help="number of photos to make (%(default)s)")
    demo.add_argument("--epochs", type=_count, default=3, help="passes over the photos (%(default)s)")
    head = command("head", "what is known of a file or object, and the first records of what is inside where that is known")
    head.add_argument("uri")
    head.add_argument("-n", "--records", type=_bytes, default=5, metavar="N", help="records (%(default)s); with 0 nothing is read")
    _data_commands(command, work)
    cat = command("cat", "write the bytes of files or objects to stdout, one after the other", many)
    cat.add_argument("uris", nargs="+", metavar="uri")
    cat.add_argument("-o", "--output", metavar="FILE", help="write there instead: a path or URI; it appears whole or not at all")
    cat.add_argument("--offset", type=_bytes, default=0, metavar="BYTES", help="begin there, in each")
    cat.add_argument("--size", type=_bytes, metavar="BYTES", help="end after so many, in each")
    ls = command("ls", "list all files below a folder, or all objects whose keys begin with a prefix", many)
    ls.add_argument("uris", nargs="*", metavar="uri", default=["."])
    ls.add_argument("-l", "--long", action="store_true", help="with the size in front")
    ls.add_argument("-r", "--recursive", action="store_true", default=True, help="all levels (the default)")
    ls.add_argument("-1", "--one-level", action="store_true", help="what lies directly in a folder; folders end with a slash")
    cp = command("cp", "copy files and objects between any stores", many, work)
    cp.add_argument("sources", nargs="+", metavar="source")
    cp.add_argument("target", help="a name, or a folder where it ends with / or many sources are given")
    cp.add_argument("-r", "--recursive", action="store_true", help="copy what is in a folder, or behind a prefix, to the target")
    sync = command("sync", "make the target folder hold what the source folder holds, copying only what differs", work)
    sync.add_argument("source")
    sync.add_argument("target")
    sync.add_argument("--strategy", choices=("size", "mtime", "checksum"), default="size", help="what tells a difference (%(default)s)")
    sync.add_argument("--delete", action="store_true", help="remove what the source lacks")
    sync.add_argument("-n", "--dry-run", action="store_true", help="only say what would be done")
    rm = command("rm", "remove files and objects", many, work)
    rm.add_argument("uris", nargs="+", metavar="uri")
    rm.add_argument("-r", "--recursive", action="store_true", help="remove folders with all that is in them")
    rm.add_argument("-f", "--force", action="store_true", help="what is not there is fine")
    du = command("du", "count the bytes in files, objects and folders", many)
    du.add_argument("uris", nargs="*", metavar="uri", default=["."])
    sign = command("sign", "print a URL that works without credentials until it expires")
    sign.add_argument("uri")
    sign.add_argument("--expires", type=_count, default=3600, metavar="SECONDS", help="until then (%(default)s)")
    sign.add_argument("--method", choices=("GET", "PUT", "HEAD"), type=str.upper, default="GET", help="what it allows (%(default)s)")
    return root


def _data_commands(command: Callable[..., argparse.ArgumentParser], work: argparse.ArgumentParser) -> None:
    """Those of `cli_data`."""
    check = command("check", "look for damage and mistakes in data sets; exits with 1 where there are errors", work)
    check.add_argument("uris", nargs="+", metavar="uri", help="a file, folder, pattern, or shards such as {0000..0099}.tar")
    check.add_argument("-q", "--quick", action="store_true", help="headers and directories only; nothing is decoded")
    check.add_argument("--max-findings", type=_bytes, default=1000, metavar="N", help="that are shown (%(default)s)")
    command("schema", "what the records of a file are made of").add_argument("uri")
    stats = command("stats", "count what is inside: rows, values, samples, members, tensors, images")
    stats.add_argument("uris", nargs="+", metavar="uri")
    preview = command("preview", "show records of a data set as pictures and tables, on one sheet or page")
    preview.add_argument("uris", nargs="+", metavar="uri", help="images, sounds, tar shards, tables, TFRecord files, or any other file that head knows")
    preview.add_argument("-o", "--output", required=True, metavar="FILE", help="a path or URI, such as sheet.png or page.html")
    preview.add_argument("-n", "--records", type=_count, default=64, metavar="N", help="of them, at most 1000 (%(default)s)")
    preview.add_argument("--size", type=_count, default=128, metavar="PIXELS", help="of the longer side of a picture (%(default)s)")


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def _bytes(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError("must not be negative")
    return value


def info(as_json: bool) -> None:
    from . import capabilities

    found = capabilities.report()
    print(json.dumps(found, indent=2) if as_json else "\n".join(capabilities.lines(found)))


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status, as `--help` says; 2 by SystemExit."""
    args = parser().parse_args(argv)
    status = 0
    try:
        if args.command == "demo":
            from .demo import demo

            demo(args.output, photos=args.photos, epochs=args.epochs)
        elif args.command in (None, "info"):
            info(args.json)
        else:
            from . import cli_data, cli_io

            if args.command in cli_data.COMMANDS:
                status = cli_data.COMMANDS[args.command](args)
            else:
                cli_io.COMMANDS[args.command](args)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader went away, as in `dataio info | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except KeyboardInterrupt:
        return INTERRUPTED
    except (DataioError, ImportError, OSError, ValueError) as error:
        print(f"dataio: {_one_line(error)}", file=sys.stderr)
        return NOT_THERE if isinstance(error, FileNotFoundError) else FAILED
    return status


def _one_line(error: BaseException) -> str:
    text = str(error)
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        text = f"{os.fsdecode(error.filename)}: {error.strerror}"
    if others := sum(note.startswith("also: ") for note in getattr(error, "__notes__", ())):
        text += f" (and {others} more errors)"
    return masked(" ".join(text.split()))
