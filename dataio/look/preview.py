"""`Preview`: what the first records look like, as pictures and tables."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any, Literal, TypeAlias

from ..io.arguments import check_count
from ..io.uri import parse_uri
from .cells import Cell, Range
from .text import cut, one_line

MOST = 1000
"""Records of one preview."""
_PICTURED = ("image", "sound", "heat map", "signal")

Layout: TypeAlias = Literal["rows", "stages"]


def check_size(n: Any, size: Any) -> None:
    """The arguments that all previews share.

    Raises:
        TypeError, ValueError: `n` is no number from 1 to 1,000, or `size` none from 8 to 1,024.
    """
    for name, value, least, most in (("n", n, 1, MOST), ("size", size, 8, 1024)):
        check_count(name, value, least=least)
        if value > most:
            raise ValueError(f"{name} must be at most {most:,}, got {value:,}")


@dataclass(frozen=True, slots=True)
class Facts:
    """What the values of one column are, over the records of the preview.

    Attributes:
        values, nulls, failed: how many; nulls and failed values are no values.
        types: how often each type came, the most frequent first.
        low, high, mean: of all numbers in them, elements of arrays and pixels included; NaN without any. `strange` are not finite.
    """

    values: int
    nulls: int
    failed: int
    types: tuple[tuple[str, int], ...]
    low: float
    high: float
    mean: float
    strange: int

    @classmethod
    def of(cls, cells: Sequence[Cell]) -> Facts:
        kinds = Counter(cell.kind for cell in cells)
        ranges = [cell.range for cell in cells]
        finite = [r for r in ranges if r.low == r.low]
        count = sum(r.count - r.strange for r in finite)
        return cls(
            values=sum(number for kind, number in kinds.items() if kind not in ("null", "failed", "off")),
            nulls=kinds["null"],
            failed=kinds["failed"],
            types=tuple(Counter(cell.type for cell in cells if cell.type).most_common()),
            low=min((r.low for r in finite), default=float("nan")),
            high=max((r.high for r in finite), default=float("nan")),
            mean=sum(r.mean / count * (r.count - r.strange) for r in finite) if count else float("nan"),
            strange=sum(r.strange for r in ranges),
        )

    @property
    def range(self) -> str:
        """`0 to 255, mean 117.3`; "" without numbers."""
        return str(Range(self.values, self.strange, self.low, self.high, self.mean))

    @property
    def type(self) -> str:
        """The type, or the most frequent one and how many others there are."""
        if not self.types:
            return ""
        return self.types[0][0] + (f" and {len(self.types) - 1} more" if len(self.types) > 1 else "")


@dataclass(frozen=True, eq=False)
class Column:
    """One column of a table of a preview: of a query or file, or of a slot after one op.

    Attributes:
        name: of the column, or the op with its arguments.
        cells: one for each record; None where an earlier stage failed, or the record has no such field.
    """

    name: str
    cells: tuple[Cell | None, ...]

    @cached_property
    def facts(self) -> Facts:
        return Facts.of([cell for cell in self.cells if cell is not None])

    @property
    def pictured(self) -> bool:
        """Whether some value has a picture of its own; crosses of failed ones do not count."""
        return any(cell is not None and cell.kind in _PICTURED and cell.pixels is not None for cell in self.cells)


@dataclass(frozen=True, eq=False)
class Table:
    """Records and columns.

    Attributes:
        name: of the slot, for stages.
        layout: "rows" of a query or a file; "stages" of a slot, a column after each op.
        labels: of the records: position and key.
        columns: in order.
    """

    name: str
    layout: Layout
    labels: tuple[str, ...]
    columns: tuple[Column, ...]


@dataclass(frozen=True, eq=False)
class Preview:
    """The first records as pictures and tables; shown in notebooks, saved as an HTML page or a picture.

    Attributes:
        title: what was looked at.
        notes: what else there is to say, one sentence each.
        tables: one of rows, or one for each slot of a pipeline.
        failures: a dict for each failure: `record` (position), `key`, `type` and `message` of the error; `column`, or of a pipeline `slot`,
            `stage` and `op`.
    """

    title: str
    tables: tuple[Table, ...]
    notes: tuple[str, ...] = ()
    failures: tuple[dict[str, Any], ...] = ()

    @property
    def records(self) -> int:
        """How many records were looked at."""
        return max((len(table.labels) for table in self.tables), default=0)

    def as_dict(self) -> dict[str, Any]:
        """Everything but the pictures, as plain values; what is not a number is None."""

        def plain(value: float) -> float | None:
            return value if value == value else None

        return {
            "title": self.title,
            "records": self.records,
            "notes": list(self.notes),
            "tables": [
                {
                    "name": table.name,
                    "columns": [
                        {
                            "name": column.name,
                            "values": column.facts.values,
                            "nulls": column.facts.nulls,
                            "failed": column.facts.failed,
                            "types": dict(column.facts.types),
                            "min": plain(column.facts.low),
                            "max": plain(column.facts.high),
                            "mean": plain(column.facts.mean),
                        }
                        for column in table.columns
                    ],
                }
                for table in self.tables
            ],
            "failures": list(self.failures),
        }

    def save(self, uri: str | os.PathLike[str], *, format: str | None = None) -> None:
        """Write the preview.

        Args:
            uri: a local path or a URI that can be written. `.html` and `.htm` make a page that needs no other file; any other suffix a
                picture, of a format that `write_image` takes.
            format: "html", or a format of `write_image`; None: by the suffix.

        Raises:
            as `write_image` does.
        """
        from ..formats.image.files import write_image
        from ..io.verbs import write

        if format is not None and not isinstance(format, str):
            raise TypeError(f"format is a str such as 'html', got {format!r}")
        asked = (format or PurePosixPath(str(parse_uri(uri).key)).suffix).removeprefix(".").lower()
        if asked in ("html", "htm"):
            from .page import page

            write(uri, page(self).encode(), content_type="text/html; charset=utf-8")
            return
        from .drawing import drawn

        write_image(uri, drawn(self), format=format)

    def _repr_html_(self) -> str:
        from .page import fragment

        return fragment(self)

    def _repr_png_(self) -> bytes:
        from ..formats.image.files import encode_image
        from .drawing import drawn

        return encode_image(drawn(self), "PNG", name=self.title)

    def __repr__(self) -> str:
        lines = [self.title, *self.notes]
        for table in self.tables:
            rows = [("column" if table.layout == "rows" else "stage", "type", "values", "nulls", "failed", "range")]
            for column in table.columns:
                facts = column.facts
                rows.append((one_line(column.name), facts.type, str(facts.values), str(facts.nulls), str(facts.failed), facts.range))
            if table.name:
                lines.append(f"slot {one_line(table.name)}")
            lines += aligned(rows)
        lines += [describe_failure(failure) for failure in self.failures]
        return "\n".join(lines)


def aligned(rows: Sequence[Sequence[str]], most: int = 48) -> list[str]:
    """Text rows in columns, cells cut off at `most` characters."""
    short = [[cut(cell, most) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*short)]
    return ["  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in short]


def describe_failure(failure: dict[str, Any]) -> str:
    """`record 3 (cat), slot image, resize: OpError: ...`."""
    where = "".join(f", {name} {failure[name]}" for name in ("slot", "column") if failure.get(name))
    op = f", {failure['op']}" if failure.get("op") else ""
    key = f" ({failure['key']})" if failure.get("key") not in (None, str(failure["record"])) else ""
    return cut(one_line(f"record {failure['record']}{key}{where}{op}: {failure['type']}: {failure['message']}"), 400)


def label_of(position: int, key: Any) -> str:
    """`3 · cat`; only the position where the key says no more."""
    text = "" if key is None else cut(one_line(str(key)), 60)
    return f"{position}" if text in ("", str(position)) else f"{position} · {text}"


