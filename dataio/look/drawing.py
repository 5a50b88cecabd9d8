"""A preview as one picture: contact sheets, grids of stages, tables and failures below one another. Drawn with Pillow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..contact_sheet import clipped, contact_sheet, font
from .pictures import Pixels
from .preview import Column, Preview, Table, describe_failure
from .text import number, one_line

EDGE = 12
WIDEST = 2400
"""Pixels a picture of a preview is wide, about."""
_TEXT = 12
_ROW = 20
_CELL = 220
"""Pixels of the widest column of a table."""
_INK, _FAINT, _LINE, _SHADE, _RED = (31, 35, 40), (101, 109, 118), (216, 222, 228), (246, 248, 250), (170, 30, 30)
_MOST_FAILURES = 20


def drawn(preview: Preview) -> Pixels:
    """uint8[h, w, 3]."""
    parts = [_lines([preview.title], 16, _INK)]
    if preview.notes:
        parts.append(_lines(preview.notes, _TEXT, _FAINT))
    for table in preview.tables:
        parts += _staged(table) if table.layout == "stages" else _rows(table)
    if preview.failures:
        shown = [describe_failure(failure) for failure in preview.failures[:_MOST_FAILURES]]
        if more := len(preview.failures) - len(shown):
            shown.append(f"and {more:,} more")
        parts += [_heading(f"failures ({len(preview.failures):,})"), _lines(shown, _TEXT, _RED)]
    return _stacked(parts)


def sheet_lines(table: Table, row: int, column: Column) -> list[str]:
    """The caption of one picture of a contact sheet: position and key, then its type, then short values of the row."""
    cell = column.cells[row]
    lines = [table.labels[row], "" if cell is None else cell.type or cell.text]
    if facts := short_values(table, row):
        lines.append(facts)
    return lines


def short_values(table: Table, row: int) -> str:
    """Up to two short numbers or words of a row, such as `label 3`."""
    found = []
    for column in table.columns:
        cell = column.cells[row]
        if cell is None or column.pictured or cell.kind not in ("number", "text"):
            continue
        shown = number(cell.range.low) if cell.type == "float" else cell.text
        if len(shown) <= 12 and table.labels[row] not in (shown, f"{table.labels[row].partition(' ')[0]} · {shown}"):
            found.append(f"{one_line(column.name)} {shown}")
    return ", ".join(found[:2])


def facts_rows(columns: Sequence[Column]) -> list[list[str]]:
    """A table of what the columns are, with its heading."""
    rows = [["column", "type", "values", "nulls", "failed", "range"]]
    for column in columns:
        facts = column.facts
        rows.append([one_line(column.name), facts.type, f"{facts.values:,}", f"{facts.nulls:,}", f"{facts.failed:,}", facts.range])
    return rows


def text_rows(table: Table) -> list[list[str]]:
    """The columns without pictures, a row for each record, with their heading; empty without such columns."""
    plain = [column for column in table.columns if not column.pictured and not _is_label(table, column)]
    if not plain:
        return []
    rows = [["", *(one_line(column.name) for column in plain)]]
    for i, label in enumerate(table.labels):
        rows.append([label, *("" if (cell := column.cells[i]) is None else cell.text or cell.type for column in plain)])
    return rows


def _is_label(table: Table, column: Column) -> bool:
    """Whether the column says what the labels of the rows say."""
    return all(cell is not None and label == f"{i} · {cell.text}" for i, (label, cell) in enumerate(zip(table.labels, column.cells)))


def _rows(table: Table) -> list[Pixels]:
    parts: list[Pixels] = []
    for column in table.columns:
        if not column.pictured:
            continue
        shown = [i for i, cell in enumerate(column.cells) if cell is not None and cell.pixels is not None]
        pictures = [column.cells[i].pixels for i in shown]  # type: ignore[union-attr]
        wide = max(picture.shape[1] for picture in pictures if picture is not None) + 4
        across = min(max(1, round(np.sqrt(len(pictures) * 1.4))), max(1, WIDEST // wide))
        captions = [sheet_lines(table, i, column) for i in shown]
        parts += [_heading(column.name), contact_sheet(pictures, across, captions)]  # type: ignore[arg-type]
    if rows := text_rows(table):
        parts += [_heading("rows"), _grid(rows)]
    return [*parts, _heading("columns"), _grid(facts_rows(table.columns))]


def _staged(table: Table) -> list[Pixels]:
    """A row for each record, a column after each op."""
    from PIL import Image, ImageDraw

    widths = [150]
    for column in table.columns:
        pictures = [cell.pixels.shape[1] for cell in column.cells if cell is not None and cell.pixels is not None]
        widths.append(max([130, *(width + 12 for width in pictures)]))
    lefts = np.cumsum([0, *widths])
    heights = []
    for i in range(len(table.labels)):
        tall = [cell.pixels.shape[0] for column in table.columns if (cell := column.cells[i]) is not None and cell.pixels is not None]
        heights.append(max([_ROW, *(height + 24 for height in tall)]))
    head = 4 * 16 + 8
    page = Image.new("RGB", (int(lefts[-1]) + 1, head + sum(heights) + 1), (255, 255, 255))
    draw = ImageDraw.Draw(page)
    draw.rectangle((0, 0, page.width, head - 1), _SHADE)
    for left, width, column in zip(lefts[1:], widths[1:], table.columns):
        facts = column.facts
        bad = f"{facts.failed:,} failed" if facts.failed else f"{facts.nulls:,} null" if facts.nulls else ""
        for place, (line, colour) in enumerate(((column.name, _INK), (facts.type, _FAINT), (facts.range, _FAINT), (bad, _RED))):
            _write(draw, (int(left) + 6, 5 + 16 * place), one_line(line), width - 12, colour, 12 if place == 0 else 11)
    top = head
    for i, (label, height) in enumerate(zip(table.labels, heights)):
        draw.line((0, top, page.width, top), _LINE)
        _write(draw, (6, top + 4), label, widths[0] - 12, _INK, _TEXT)
        for left, width, column in zip(lefts[1:], widths[1:], table.columns):
            cell = column.cells[i]
            if cell is None:
                continue
            colour = _RED if cell.kind == "failed" else _FAINT
            if cell.pixels is not None:
                page.paste(Image.fromarray(cell.pixels), (int(left) + 6, top + 4))
                _write(draw, (int(left) + 6, top + 6 + cell.pixels.shape[0]), cell.type or cell.text, width - 12, colour, 11)
            else:
                _write(draw, (int(left) + 6, top + 4), cell.text or cell.type, width - 12, colour, 11)
        top += height
    draw.line((0, top, page.width, top), _LINE)
    return [_heading(f"slot {table.name}"), np.asarray(page)]


def _write(draw: Any, place: tuple[int, int], text: str, width: int, colour: tuple[int, int, int], size: int) -> None:
    draw.text(place, clipped(text, width, size), colour, font(size))


def _grid(rows: Sequence[Sequence[str]]) -> Pixels:
    """A table of text, its first row the heading."""
    from PIL import Image, ImageDraw

    measure = font(_TEXT).getlength
    widths = [min(_CELL, max(int(measure(cell[:80])) for cell in column)) + 16 for column in zip(*rows)]
    kept = max(1, int(np.searchsorted(np.cumsum(widths), WIDEST)))
    shown = [[*row[:kept], *([f"{len(row) - kept} more columns" if i == 0 else ""] if len(row) > kept else [])] for i, row in enumerate(rows)]
    widths = [*widths[:kept], *([120] if len(rows[0]) > kept else [])]
    page = Image.new("RGB", (sum(widths) + 1, _ROW * len(rows) + 1), (255, 255, 255))
    draw = ImageDraw.Draw(page)
    draw.rectangle((0, 0, page.width, _ROW - 1), _SHADE)
    for i, row in enumerate(shown):
        left = 0
        for width, cell in zip(widths, row):
            _write(draw, (left + 8, i * _ROW + 3), cell, width - 16, _FAINT if i == 0 else _INK, _TEXT)
            left += width
        draw.line((0, (i + 1) * _ROW, page.width, (i + 1) * _ROW), _LINE)
    return np.asarray(page)


def _heading(text: str) -> Pixels:
    return _lines([text], 14, _INK)


def _lines(lines: Sequence[str], size: int, colour: tuple[int, int, int]) -> Pixels:
    from PIL import Image, ImageDraw

    texts = [clipped(one_line(line), WIDEST, size) for line in lines]
    measure = font(size).getlength
    page = Image.new("RGB", (int(max(map(measure, texts))) + 4, (size + 6) * len(texts) + 2), (255, 255, 255))
    draw = ImageDraw.Draw(page)
    for place, text in enumerate(texts):
        draw.text((0, (size + 6) * place + 2), text, colour, font(size))
    return np.asarray(page)


def _stacked(parts: Sequence[Pixels]) -> Pixels:
    width = max(part.shape[1] for part in parts) + 2 * EDGE
    height = sum(part.shape[0] + EDGE for part in parts) + EDGE
    page = np.full((height, width, 3), 255, np.uint8)
    top = EDGE
    for part in parts:
        page[top : top + part.shape[0], EDGE : EDGE + part.shape[1]] = part
        top += part.shape[0] + EDGE
    return page
