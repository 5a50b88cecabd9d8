"""Findings, and the report of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ..io.secrets import masked

if TYPE_CHECKING:
    from .kinds import Target

SEVERITIES = ("error", "warning", "info")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was noticed.

    Attributes:
        severity: "error" (training would fail, or lose or mix up records), "warning" (probably not meant) or "info".
        uri: of the file, secrets masked.
        code: a fixed word for the kind of finding, such as "truncated".
        message: what was found.
        record: which record, member, tensor, column or row group; None for the file.
    """

    severity: str
    uri: str
    code: str
    message: str
    record: str | int | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """What `check` found.

    Attributes:
        findings: in the order of the files; those about several files come last.
        counts: findings by severity, those beyond `max_findings` included.
        files, bytes, records: how many were checked; records are samples, rows, tensors, arrays or images.
        kinds: files by kind.
        skipped: files in folders that are of no kind that is checked.
    """

    findings: tuple[Finding, ...]
    counts: Mapping[str, int]
    files: int
    bytes: int
    records: int
    kinds: Mapping[str, int]
    skipped: int

    @property
    def ok(self) -> bool:
        """Whether there is no error."""
        return not self.counts["error"]

    def as_dict(self) -> dict[str, Any]:
        """Everything as JSON has it: `{"ok", "summary": {...}, "findings": [...]}`."""
        shown = len(self.findings)
        summary = {
            "files": self.files,
            "bytes": self.bytes,
            "records": self.records,
            "kinds": dict(self.kinds),
            "skipped": self.skipped,
            **{f"{severity}s": self.counts[severity] for severity in SEVERITIES[:2]},
            "info": self.counts["info"],
            "not_shown": sum(self.counts.values()) - shown,
        }
        return {"ok": self.ok, "summary": summary, "findings": [asdict(finding) for finding in self.findings]}


class Findings:
    """Collects findings; keeps up to `most` of them and counts all. Errors are kept before others where there is no room."""

    def __init__(self, uri: str, most: int) -> None:
        self.uri = uri
        self.most = most
        self.kept: list[Finding] = []
        self.counts: Counter[str] = Counter()

    def add(self, severity: str, code: str, message: str, record: str | int | None = None, *, uri: str | None = None) -> None:
        """Note one; secrets and bytes that are no text are masked in what it says."""
        shown = _printable(record) if isinstance(record, str) else record
        where = masked(_printable(self.uri if uri is None else uri))
        self._keep(Finding(severity, where, code, masked(_printable(" ".join(message.split()))), shown))

    def error(self, code: str, message: str, record: str | int | None = None) -> None:
        """Note an error."""
        self.add("error", code, message, record)

    def warning(self, code: str, message: str, record: str | int | None = None) -> None:
        """Note a warning."""
        self.add("warning", code, message, record)

    def info(self, code: str, message: str, record: str | int | None = None) -> None:
        """Note what is no trouble by itself."""
        self.add("info", code, message, record)

    def take(self, other: Findings) -> None:
        """Add those of one file."""
        kept = Counter(finding.severity for finding in other.kept)
        for finding in other.kept:
            self._keep(finding)
        self.counts.update({severity: count - kept[severity] for severity, count in other.counts.items()})

    def _keep(self, finding: Finding) -> None:
        self.counts[finding.severity] += 1
        if len(self.kept) < self.most:
            self.kept.append(finding)
            return
        if finding.severity == "error":  # make room: the last of the least severe goes
            for severity in ("info", "warning"):
                place = next((i for i in range(len(self.kept) - 1, -1, -1) if self.kept[i].severity == severity), None)
                if place is not None:
                    del self.kept[place]
                    self.kept.append(finding)
                    return


def _printable(text: str) -> str:
    """Surrogates, which stand for bytes that are no UTF-8, as escapes; control characters too."""
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def first_few(names: Iterable[str], most: int = 5) -> str:
    """Names for a message."""
    listed = list(names)
    return ", ".join(map(repr, listed[:most])) + (f" and {len(listed) - most} more" if len(listed) > most else "")


class Together:
    """What one kind of files tells when they are taken together: nothing, unless its module has a `Together` of its own."""

    def add(self, target: Target, facts: Any) -> None:
        """Take what the checker of one file returned; files come in order."""

    def finish(self, found: Findings) -> None:
        """Note what is only seen over all files."""
