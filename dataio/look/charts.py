"""Figures over columns as HTML: a table, and histograms as inline SVG."""

from __future__ import annotations

from collections.abc import Sequence

from .describe import ColumnFigures, Description, Histogram
from .page import text, wrapped
from .text import number, plural

_WIDTH, _HEIGHT = 180, 44
_BAR, _LABEL = 16, 96
_NAMED = 64
"""Distinct values up to which the most frequent ones are shown rather than a histogram of lengths."""
_COLOUR, _INK = "#3465a4", "#656d76"


def described(description: Description) -> str:
    """A description as one element."""
    rows = description.table()
    head = "".join(f'<th{" class=number" if 1 < i < len(rows[0]) else ""}>{text(name)}</th>' for i, name in enumerate((*rows[0], "distribution")))
    lines = []
    for column, row in zip(description.columns, rows[1:]):
        cells = "".join(f'<td{"" if i < 2 else " class=number"}>{text(cell)}</td>' for i, cell in enumerate(row))
        lines.append(f"<tr>{cells}<td>{_distribution(column)}</td></tr>")
    body = [f"<h1>{text(description.title)}</h1>", f"<p>{plural(description.rows, 'row')}</p>"]
    body.append(f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>\n' + "\n".join(lines) + "\n</tbody></table></div>")
    for column in description.columns:
        if column.images is not None:
            body += _images(column)
    return wrapped(body)


def _distribution(column: ColumnFigures) -> str:
    notes = [f"{column.strange:,} not finite"] if column.strange else []
    if column.sampled:
        notes.append("quartiles and histogram of a sample")
    named = column.top and column.unique is not None and column.unique <= _NAMED and column.unique < max(2, column.count)
    if named and (column.of or not column.histogram):
        shown = bars(column.top)
    else:
        shown = histogram(column.histogram) if column.histogram else ""
    return shown + "".join(f'<span class="faint">{text(note)}</span>' for note in notes)


def histogram(found: Histogram) -> str:
    """Bars side by side, the ends of the range below them."""
    counts, edges = found
    most = max(max(counts), 1)
    step = _WIDTH / len(counts)
    whole = len(counts) > 0 and edges[0] % 1 == 0.5 and edges[1] - edges[0] == 1
    low, high = (edges[0] + 0.5, edges[-1] - 0.5) if whole else (edges[0], edges[-1])
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT + 14}" role="img">']
    for i, count in enumerate(counts):
        height = _HEIGHT * count / most
        height = max(height, 1) if count else 0
        parts.append(
            f'<rect x="{i * step:.1f}" y="{_HEIGHT - height:.1f}" width="{max(step - 1, 0.5):.1f}" height="{height:.1f}" fill="{_COLOUR}">'
            f"<title>{number(edges[i])} to {number(edges[i + 1])}: {count:,}</title></rect>"
        )
    parts.append(f'<text x="0" y="{_HEIGHT + 11}" font-size="10" fill="{_INK}">{number(low)}</text>')
    parts.append(f'<text x="{_WIDTH}" y="{_HEIGHT + 11}" font-size="10" fill="{_INK}" text-anchor="end">{number(high)}</text></svg>')
    return "".join(parts)


def bars(values: Sequence[tuple[str, int]]) -> str:
    """A bar for each value below one another, its name to the left and its count to the right."""
    most = max((count for _, count in values), default=1)
    width = _WIDTH + _LABEL
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{_BAR * len(values)}" role="img">']
    for i, (name, count) in enumerate(values):
        short = name if len(name) <= 16 else f"{name[:15]}…"
        long = max(1.0, (_WIDTH - 50) * count / most)
        parts.append(
            f'<g><title>{text(name)}: {count:,}</title><text x="{_LABEL - 6}" y="{i * _BAR + 11}" font-size="10" fill="{_INK}" text-anchor="end">{text(short)}</text>'
            f'<rect x="{_LABEL}" y="{i * _BAR + 3}" width="{long:.1f}" height="{_BAR - 6}" fill="{_COLOUR}"/>'
            f'<text x="{_LABEL + long + 4:.1f}" y="{i * _BAR + 11}" font-size="10" fill="{_INK}">{count:,}</text></g>'
        )
    return "".join([*parts, "</svg>"])


def _images(column: ColumnFigures) -> list[str]:
    found = column.images or {}
    smallest, largest = (f"{width} x {height}" for height, width in (found["smallest"], found["largest"]))
    told = f"{plural(found['images'], 'image')}, the smallest {smallest}, the largest {largest} pixels"
    if found.get("exif_rotated"):
        told += f", {found['exif_rotated']:,} stored turned"
    if column.broken:
        told += f"; {plural(column.broken, 'value')} damaged, or no image"
    charts = [("format", found["formats"]), ("short side, pixels", found["short_side"]), ("width to height", found["aspect"])]
    figures = "".join(
        f'<figure><div>{bars(list(counts.items()))}</div><figcaption><div>{name}</div></figcaption></figure>' for name, counts in charts
    )
    return [f"<h2>{text(column.name)}: images</h2>", f"<p>{told}</p>", f'<div class="sheet">{figures}</div>']
