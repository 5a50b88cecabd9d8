"""A preview, or figures over columns, as HTML without scripts. Whatever a record holds is escaped; pictures lie in the page as PNG."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from typing import Protocol

from ..formats.image.files import encode_image
from .cells import Cell
from .drawing import facts_rows, sheet_lines, text_rows
from .pictures import Pixels
from .preview import Column, Preview, Table, describe_failure
from .text import one_line

_MOST_FAILURES = 200
_STYLE = """
.dataio-look{font:13px/1.45 system-ui,-apple-system,"Segoe UI",sans-serif;color:#1f2328;background:#fff;padding:12px;overflow-x:auto}
.dataio-look h1{font-size:17px;margin:0 0 4px;font-weight:600;overflow-wrap:anywhere}
.dataio-look h2{font-size:14px;margin:18px 0 6px;font-weight:600;overflow-wrap:anywhere}
.dataio-look p{margin:0 0 4px;color:#656d76}
.dataio-look .sheet{display:flex;flex-wrap:wrap;gap:10px 8px}
.dataio-look figure{margin:0;display:flex;flex-direction:column;justify-content:flex-end}
.dataio-look figcaption{font-size:11px;line-height:1.35;color:#656d76;text-align:center;padding-top:3px}
.dataio-look figcaption div{overflow:hidden;text-overflow:ellipsis;white-space:nowrap}
.dataio-look figcaption div:first-child{color:#1f2328}
.dataio-look .frame{display:flex;align-items:center;justify-content:center;flex:1}
.dataio-look img{display:block;max-width:none}
.dataio-look table{border-collapse:collapse;margin:0;color:inherit;background:#fff}
.dataio-look th,.dataio-look td{border-top:1px solid #d8dee4;padding:4px 8px;text-align:left;vertical-align:top;max-width:280px;overflow-wrap:anywhere;background:#fff}
.dataio-look th{background:#f6f8fa;font-weight:600;font-size:12px}
.dataio-look .faint,.dataio-look th span{color:#656d76;font-weight:400;font-size:11px;display:block}
.dataio-look .bad{color:#aa1e1e}
.dataio-look .number{text-align:right;font-variant-numeric:tabular-nums}
.dataio-look .scroll{overflow-x:auto}
.dataio-look ul{margin:0;padding-left:18px}
.dataio-look svg{display:block}
"""
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
"""Nothing is loaded and nothing runs, even if something were to slip through."""


class Shown(Protocol):
    """What has a title and a body."""

    @property
    def title(self) -> str: ...

    def _repr_html_(self) -> str: ...


def page(shown: Shown) -> str:
    """A whole HTML document that needs no other file."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{text(shown.title)}</title>\n</head>\n'
        f"<body style=\"margin:0\">\n{shown._repr_html_()}\n</body>\n</html>\n"
    )


def wrapped(body: Sequence[str]) -> str:
    """Parts of a body as one element with its style, which changes nothing around it."""
    return f'<div class="dataio-look">\n<style>{_STYLE}</style>\n' + "\n".join(body) + "\n</div>"


def text(value: str) -> str:
    """Text for anywhere in a page, attributes in quotes included."""
    return escape(one_line(value), quote=True)


def fragment(preview: Preview) -> str:
    """A preview as one element."""
    body = [f"<h1>{text(preview.title)}</h1>", *(f"<p>{text(note)}</p>" for note in preview.notes)]
    for table in preview.tables:
        body += _staged(table) if table.layout == "stages" else _rows(table)
    if preview.failures:
        shown = preview.failures[:_MOST_FAILURES]
        body.append(f"<h2>failures ({len(preview.failures):,})</h2>\n<ul>")
        body += [f'<li class="bad">{text(describe_failure(failure))}</li>' for failure in shown]
        if more := len(preview.failures) - len(shown):
            body.append(f"<li>and {more:,} more</li>")
        body.append("</ul>")
    return wrapped(body)


def grid(rows: Sequence[Sequence[str]]) -> str:
    """A table of plain text, its first row the heading."""
    head = "".join(f"<th>{text(cell)}</th>" for cell in rows[0])
    lines = ("<tr>" + "".join(f"<td>{text(cell)}</td>" for cell in row) + "</tr>" for row in rows[1:])
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>\n' + "\n".join(lines) + "\n</tbody></table></div>"


def picture(pixels: Pixels, alternative: str) -> str:
    """An image whose PNG lies in the page."""
    data = base64.b64encode(encode_image(pixels, "PNG", name="preview")).decode()
    height, width = pixels.shape[:2]
    told = text(alternative)
    return f'<img width="{width}" height="{height}" alt="{told}" title="{told}" src="data:image/png;base64,{data}">'


def _rows(table: Table) -> list[str]:
    body: list[str] = []
    for column in table.columns:
        if column.pictured:
            body += [f"<h2>{text(column.name)}</h2>", '<div class="sheet">', *_figures(table, column), "</div>"]
    if rows := text_rows(table):
        body += ["<h2>rows</h2>", grid(rows)]
    return [*body, "<h2>columns</h2>", grid(facts_rows(table.columns))]


def _figures(table: Table, column: Column) -> list[str]:
    wide = max(cell.pixels.shape[1] for cell in column.cells if cell is not None and cell.pixels is not None)
    found = []
    for row, cell in enumerate(column.cells):
        if cell is None or cell.pixels is None:
            continue
        lines = "".join(f"<div>{text(line) or '&nbsp;'}</div>" for line in sheet_lines(table, row, column))
        frame = f'<div class="frame">{picture(cell.pixels, _told(table.labels[row], cell))}</div>'
        found.append(f'<figure style="width:{wide}px">{frame}<figcaption>{lines}</figcaption></figure>')
    return found


def _told(label: str, cell: Cell) -> str:
    return ", ".join(part for part in (label, cell.type, str(cell.range), cell.text) if part)


def _staged(table: Table) -> list[str]:
    head = ["<th></th>"]
    for column in table.columns:
        facts = column.facts
        bad = f"{facts.failed:,} failed" if facts.failed else f"{facts.nulls:,} null" if facts.nulls else ""
        spans = "".join(f"<span>{text(line)}</span>" for line in (facts.type, facts.range) if line)
        head.append(f"<th>{text(column.name)}{spans}{f'<span class=bad>{bad}</span>' if bad else ''}</th>")
    lines = []
    for row, label in enumerate(table.labels):
        cells = "".join(f"<td>{_staged_cell(label, column.cells[row])}</td>" for column in table.columns)
        lines.append(f"<tr><td>{text(label)}</td>{cells}</tr>")
    body = "\n".join(lines)
    return [f"<h2>slot {text(table.name)}</h2>", f'<div class="scroll"><table><thead><tr>{"".join(head)}</tr></thead><tbody>\n{body}\n</tbody></table></div>']


def _staged_cell(label: str, cell: Cell | None) -> str:
    if cell is None:
        return ""
    look = "bad" if cell.kind == "failed" else "faint"
    shown = f"{picture(cell.pixels, _told(label, cell))}" if cell.pixels is not None else ""
    lines = [cell.text] if cell.kind == "failed" else [cell.type] if shown else [cell.text or cell.type, str(cell.range) if cell.kind == "array" else ""]
    return shown + "".join(f'<span class="{look}">{text(line)}</span>' for line in lines if line)
