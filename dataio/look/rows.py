"""Previews of rows: those of a query, or of whatever a file holds."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from ..engine.batch import stem
from ..engine.errors import DataioError
from ..engine.explain import plan_text
from ..engine.morsel import column_values
from ..engine.plan import Filter, Limit, Plan, Relation, Scan, Select, record_count, walk
from ..formats.inputs import local_file
from ..inspect.kinds import SOUNDS, kind_by_name, suffix_of
from ..io.verbs import read
from .cells import LARGEST, Cell, failed, look_at
from .preview import Column, Preview, Table, check_size, label_of
from .text import SIZE, plural

if TYPE_CHECKING:
    import pyarrow as pa

    from ..query import Query

GLANCE = 5
"""Rows that a query shows of itself in a notebook."""
LOOKED_THROUGH = 256
"""Rows of a source that are looked through for them, where there are conditions."""
Files: TypeAlias = Literal["all", "local", "none"]
_ABSENT: Any = Cell("off")
"""Stands for a field that a record lacks."""
_GONE = Cell("failed")
"""What is read of a file that is not there."""
_KEYS = ("__key__", "key", "id", "name")
_PATHS = ("path", "uri", "url", "file", "filename", "file_name", "image_path", "audio_path")


def preview(query: Query, n: int, size: int) -> Preview:
    """See `Query.preview`."""
    check_size(n, size)
    rows = first_rows(query, n)
    scan = list(walk(query.plan))[-1]
    total = None if isinstance(scan, Scan) and _hides_conditions(scan) else record_count(query.plan)
    notes = [plural(len(rows), "row") if total is None or total <= len(rows) else f"the first {len(rows):,} of {total:,} rows", _plan_line(query.plan)]
    return of_rows(title_of(query.plan), rows, size, notes=[note for note in notes if note])


def glance(query: Query) -> Preview:
    """A preview of a few rows, for which a bounded part of the source is read; of the plan alone where rows cannot be had so."""
    plan = bounded(query.plan)
    notes = [_plan_line(query.plan)]
    if plan is not None:
        from ..query import Query

        try:
            rows = first_rows(_light(Query(plan)), GLANCE)
        except Exception as error:  # a notebook shows what it can of any query; an end raises this in full
            return Preview(title_of(query.plan), (), (*notes, f"{type(error).__name__}: {error}"))
        if len(rows) < GLANCE and any(isinstance(node, Filter) for node in walk(plan)):
            notes.append(f"{plural(len(rows), 'row')} found in the first {LOOKED_THROUGH:,} of the source; preview() looks on")
        else:
            notes.append(f"the first {plural(len(rows), 'row')}")
        return of_rows(title_of(query.plan), rows, SIZE // 2, notes=notes, files="local")
    return Preview(title_of(query.plan), (), (*notes, "nothing was read: preview() runs the query and shows rows"))


def _light(query: Query) -> Query:
    """Without the payloads of tensors, any of which may be as large as a model."""
    from ..sources.safetensors_columns import SafetensorsColumns

    nodes = list(walk(query.plan))
    names = query.columns() or []
    if isinstance(nodes[-1], Scan) and isinstance(nodes[-1].source, SafetensorsColumns) and "data" in names and len(names) > 1:
        return query.select(*(name for name in names if name != "data"))
    return query


def bounded(plan: Plan) -> Plan | None:
    """A plan that gives the first rows of `plan` and reads few of the source; None where that takes the whole source.

    Conditions look through the first `LOOKED_THROUGH` rows.
    """
    nodes = list(walk(plan))[::-1]
    scan = nodes[0]
    if not isinstance(scan, Scan) or _hides_conditions(scan) or not all(map(_row_by_row, nodes[1:])):
        return None
    found: Plan = Limit(replace(scan, predicate=None, limit=None, offset=0, columns=None), LOOKED_THROUGH)
    if scan.predicate is not None:
        found = Filter(found, scan.predicate)
    if scan.sliced:
        found = Limit(found, scan.limit, scan.offset)
    if scan.columns is not None:
        found = Select(found, scan.columns)
    for node in nodes[1:]:
        found = replace(node, input=found)  # type: ignore[type-var]
    return found if any(isinstance(node, Filter) for node in walk(found)) else plan


def _row_by_row(node: Plan) -> bool:
    """Whether the step gives its first rows from the first ones of its input."""
    if isinstance(node, Relation):
        from ..query_slots import DecodeSlots

        return isinstance(node.step, DecodeSlots)
    return isinstance(node, (Filter, Limit, Select))


def _hides_conditions(scan: Scan) -> bool:
    """Whether the source looks for rows itself, as that of a `ParquetQuery` with conditions does."""
    if not scan.columnar:
        return False
    from ..sources.parquet import ParquetQuerySource

    return isinstance(scan.source, ParquetQuerySource) and scan.source.conditional


def title_of(plan: Plan) -> str:
    """What the plan scans."""
    scan = list(walk(plan))[-1]
    return scan.source.describe() if isinstance(scan, Scan) else type(scan).__name__


def _plan_line(plan: Plan) -> str:
    """The steps above the scan, on one line."""
    steps = [line.strip() for line in plan_text(plan).splitlines()[1:]]
    return f"plan: {' → '.join(['scan', *steps])}" if steps else ""


# ------------------------------------------------------------------------- rows


def first_rows(query: Query, n: int) -> list[Any]:
    """The first `n` rows, as mappings where they are columns."""
    from ..query import Query

    head = Query(Limit(query.plan, n))
    if head.columns() is None:
        return list(islice(head, n))
    return table_rows(head.collect_arrow())


def table_rows(table: pa.Table | pa.RecordBatch) -> list[dict[str, Any]]:
    """Rows of Arrow columns; tensors and lists of numbers are arrays."""
    columns = {}
    for name in table.schema.names:
        column = table.column(name)
        columns[name] = [value for chunk in getattr(column, "chunks", [column]) for value in _values(chunk)]
    return [{name: values[i] for name, values in columns.items()} for i in range(table.num_rows)]


def _values(column: pa.Array) -> Sequence[Any]:
    """Python values of a column."""
    import pyarrow.types as types

    kind = column.type
    if not isinstance(column, _extension()):
        if (types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)) and _is_number(_innermost(kind)):
            shape = _fixed_shape(kind)
            if shape is not None or _is_number(kind.value_type):
                return [_array(item, shape) if item.is_valid else None for item in column]
        if types.is_struct(kind) and {field.name for field in kind} == {"data", "shape"}:
            parts = {name: _values(column.field(name)) for name in ("data", "shape")}
            valid = column.is_valid().to_pylist()
            return [{"data": parts["data"][i], "shape": parts["shape"][i]} if ok else None for i, ok in enumerate(valid)]
    return column_values(column)


def _extension() -> Any:
    """The class of Arrow columns of extension types, once pyarrow is asked for."""
    import pyarrow as pa

    return pa.ExtensionArray


def _is_number(kind: Any) -> bool:
    import pyarrow.types as types

    return bool(types.is_integer(kind) or types.is_floating(kind))


def _innermost(kind: Any) -> Any:
    import pyarrow.types as types

    while types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        kind = kind.value_type
    return kind


def _fixed_shape(kind: Any) -> list[int] | None:
    """The sizes of lists of fixed sizes inside one another, None where some vary."""
    import pyarrow.types as types

    sizes = []
    while types.is_fixed_size_list(kind):
        sizes.append(kind.list_size)
        kind = kind.value_type
    return sizes if sizes and _is_number(kind) else None


def _array(item: Any, shape: list[int] | None) -> np.ndarray:
    values = item.values
    while hasattr(values, "flatten") and not _is_number(values.type):
        values = values.flatten()
    found: np.ndarray = values.to_numpy(zero_copy_only=False)
    return found if shape is None or found.size != math.prod(shape) else found.reshape(shape)


def of_rows(
    title: str, rows: Sequence[Any], size: int = SIZE, *, notes: Sequence[str] = (), files: Files = "all"
) -> Preview:
    """A preview of rows: mappings, or objects, which become one column.

    Args:
        files: which files that a column names are read: "all", "local" ones, or "none".
    """
    fields: dict[str, list[Any]] = {}
    for i, row in enumerate(rows):
        for name, value in (row if isinstance(row, Mapping) else {"record": row}).items():
            fields.setdefault(str(name), [_ABSENT] * len(rows))[i] = value
    keys = [_key(row) for row in rows]
    columns, failures = [], []
    for name, values in fields.items():
        if files != "none" and _names_media(name, values):
            keys = [stem(value) if key is None and _is_media(value) else key for key, value in zip(keys, values)]
        cells = _cells(name, values, size, files)
        columns.append(Column(name, tuple(None if cell is _ABSENT else cell for cell in cells)))
        for i, cell in enumerate(cells):
            if cell.kind == "failed":
                kind, _, message = cell.text.partition(": ")
                failures.append({"record": i, "key": keys[i], "column": name, "type": kind, "message": message})
    labels = tuple(label_of(i, key) for i, key in enumerate(keys))
    return Preview(title, (Table("", "rows", labels, tuple(columns)),), tuple(notes), tuple(failures))


def _key(row: Any) -> str | None:
    if not isinstance(row, Mapping):
        return stem(row) if isinstance(row, os.PathLike) else None
    for name in _KEYS:
        if isinstance(row.get(name), (str, int)):
            return str(row[name])
    for name in _PATHS:
        if isinstance(row.get(name), (str, os.PathLike)):
            return stem(row[name])
    return None


def _cells(name: str, values: Sequence[Any], size: int, files: Files) -> tuple[Cell, ...]:
    if files == "none" or not _names_media(name, values):
        return tuple(look_at(value, size) for value in values)
    read = [_read(value, size, files == "local") if _is_media(value) else None for value in values]
    if all(cell is _GONE for cell in read if cell is not None):  # names without their folder, say
        return tuple(look_at(value, size) for value in values)
    return tuple(
        look_at(value, size) if cell is None else failed(f"FileNotFoundError: no such file: {value}", size) if cell is _GONE else cell
        for value, cell in zip(values, read)
    )


def _names_media(name: str, values: Sequence[Any]) -> bool:
    """Whether a column holds names of images or sounds, and nothing else; one that is called a path may hold other files too."""
    given = [value for value in values if value is not None and value is not _ABSENT]
    named = [value for value in given if _is_media(value)]
    return bool(named) and (len(named) == len(given) or name in _PATHS)


def _is_media(value: Any) -> bool:
    """Whether it is a path or URI that ends like that of an image or a sound."""
    if not isinstance(value, (str, os.PathLike)):
        return False
    name = os.fspath(value)
    return isinstance(name, str) and len(name) < 4096 and (kind_by_name(name) == "image" or suffix_of(name) in SOUNDS)


def _read(value: Any, size: int, local: bool) -> Cell:
    name = os.fspath(value)
    if local and local_file(name) is None:
        return look_at(name, size)
    try:
        data = read(name, max_response_bytes=LARGEST)
    except FileNotFoundError:
        return _GONE
    except (DataioError, OSError, ValueError, RuntimeError) as error:
        return failed(f"{type(error).__name__}: {error}", size)
    cell = look_at(data, size)
    return cell if cell.kind == "failed" else replace(cell, text=stem(name))
