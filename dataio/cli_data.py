"""The commands over data sets: `check`, `head`, `schema`, `stats` and `preview`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from itertools import groupby
from typing import Any

from .capabilities import row
from .io.uri import parse_uri
from .look.text import human, one_line, plural, short

FOUND_ERRORS = 1
_HEAD = ("url", "status", "content_length", "content_type", "etag", "last_modified", "http_version")
_COLOURS = {"error": "\033[31m", "warning": "\033[33m", "info": "\033[36m"}
_PLAIN, _BOLD = "\033[0m", "\033[1m"


def _check(args: argparse.Namespace) -> int:
    from .cli_io import Progress
    from .inspect.checking import check

    with Progress("check", args) as progress:
        report = check(args.uris, quick=args.quick, max_findings=args.max_findings, workers=args.workers, progress=progress.tell)
    status = 0 if report.ok else FOUND_ERRORS
    if args.json:
        print(json.dumps(report.as_dict(), indent=2))
        return status
    coloured = sys.stdout.isatty()

    def painted(text: str, colour: str) -> str:
        return f"{colour}{text}{_PLAIN}" if coloured else text

    for uri, group in groupby(report.findings, key=lambda finding: finding.uri):
        print(painted(uri, _BOLD))
        for finding in group:
            record = "" if finding.record is None else f"{finding.record}: "
            print(f"  {painted(f'{finding.severity:<7}', _COLOURS[finding.severity])}  {finding.code}  {record}{one_line(finding.message)}")
    if hidden := sum(report.counts.values()) - len(report.findings):
        print(f"... and {hidden:,} more (--max-findings)")
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in report.kinds.items())
    skipped = f", {report.skipped:,} others skipped" if report.skipped else ""
    print(f"{plural(report.files, 'file')} ({kinds or 'of no known kind'}{skipped}), {human(report.bytes)}, {plural(report.records, 'record')}")
    print(f"{plural(report.counts['error'], 'error')}, {plural(report.counts['warning'], 'warning')}, {report.counts['info']:,} info")
    return status


def _head(args: argparse.Namespace) -> int:
    """What is known of the file or object, and the first records of what is inside."""
    from .io.verbs import head

    found = head(args.uri)
    facts: dict[str, Any] = {name: getattr(found, name) for name in _HEAD}
    records: list[Any] | None = None
    if args.records:
        from .inspect.checking import MODULES
        from .inspect.contents import first_records
        from .inspect.kinds import target_of

        if not _is_folder(args.uri):
            target = target_of(args.uri)
            if target.kind.name in MODULES and target.size:
                facts["kind"] = target.kind.name
                records = first_records(target, args.records)
    if args.json:
        print(json.dumps(facts if records is None else {**facts, "records": records}, indent=2, default=_plain))
        return 0
    if (size := facts["content_length"]) is not None:
        facts["content_length"] = f"{size} ({human(size)})"
    print("\n".join(row(name, value) for name, value in facts.items() if value is not None))
    for number, record in enumerate(records or ()):
        print(f"[{number}]")
        print("\n".join(_lines(record, "  ")))
    return 0


def _is_folder(uri: str) -> bool:
    import os

    parsed = parse_uri(uri)
    return parsed.scheme == "file" and os.path.isdir(parsed.key)


def _schema(args: argparse.Namespace) -> int:
    from .inspect.contents import schema

    return _shown(schema(args.uri), args.json)


def _stats(args: argparse.Namespace) -> int:
    from .inspect.contents import stats

    return _shown(stats(args.uris), args.json)


def _preview(args: argparse.Namespace) -> int:
    from .inspect.sheet import figures, preview

    found = preview(args.uris, count=args.records, size=args.size)
    found.save(args.output)
    told = figures(found)
    if args.json:
        return _shown({**told, "output": args.output}, True)
    parts = [plural(told["records"], "record")]
    parts += [plural(told[name], name[:-1]) for name in ("pictures", "sounds") if told[name]]
    parts += [f"{told['broken']:,} broken"] if told["broken"] else []
    print(f"{', '.join(parts)}: {args.output}")
    return 0


def _shown(told: dict[str, Any], as_json: bool) -> int:
    print(json.dumps(told, indent=2, default=_plain) if as_json else "\n".join(_lines(told, "")))
    return 0


def _lines(value: Any, indent: str) -> list[str]:
    """A value as indented text."""
    if not isinstance(value, dict):
        return [indent + short(value)]
    lines: list[str] = []
    for name, inner in value.items():
        if isinstance(inner, dict):
            lines += [f"{indent}{short(name)}:", *_lines(inner, f"{indent}  ")]
        elif isinstance(inner, list) and inner and all(isinstance(item, dict) for item in inner):
            lines.append(f"{indent}{short(name)}:")
            for item in inner:
                lines += [*_lines(item, f"{indent}  "), ""]
            lines.pop()
        else:
            lines.append(f"{indent}{short(name)}: {short(inner)}")
    return lines


def _plain(value: Any) -> Any:
    """What JSON has no form for."""
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    return value.total_seconds() if isinstance(value, timedelta) else str(value)


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "check": _check,
    "head": _head,
    "schema": _schema,
    "stats": _stats,
    "preview": _preview,
}
"""Each gives the exit status."""
