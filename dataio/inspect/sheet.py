"""`dataio preview`: the pictures of a data set on one sheet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..contact_sheet import contact_sheet
from ..engine.errors import OpError
from ..formats.image.decode import image
from ..formats.image.files import write_image
from ..formats.inputs import read_bytes
from ..io.arguments import check_count
from .contents import naming_file
from .kinds import HEAD, Target, kind_of, target_of
from .listing import UriLike, listed

CELL = 128
"""Pixels of the longer side of a picture on the sheet, unless said otherwise."""
LARGEST = 1 << 28
"""Bytes of an encoded picture; a larger one is shown as broken."""
_BROKEN = (200, 30, 30)


def preview(uris: UriLike | Sequence[UriLike], output: UriLike, *, count: int = 64, size: int = CELL) -> dict[str, int]:
    """Draw pictures of a data set on a sheet: of a folder evenly spread over it, of tar shards and tables the first ones.

    Args:
        uris: as `check` takes them: image files, tar shards, Parquet and Arrow tables with a column of encoded images (bytes, or
            a struct with `bytes`, as Hugging Face datasets store them).
        output: path or URI to write to; its suffix tells the format, PNG where it has none.
        count: pictures, at most.
        size: pixels of the longer side of each; smaller ones are not enlarged.

    Returns:
        {"pictures": on the sheet, "broken": those of them that cannot be decoded, which are shown as a red cross}.

    Raises:
        ValueError: there are no pictures.
        OSError: unreadable, or the sheet cannot be written.
    """
    check_count("count", count, least=1)
    check_count("size", size, least=8)
    cells: list[NDArray[np.uint8]] = []
    broken = 0
    for data in _encoded(uris, count):
        cell = None if data is None else _cell(data, size)
        broken += cell is None
        cells.append(_cross(size) if cell is None else cell)
        if len(cells) == count:
            break
    if not cells:
        raise OpError(f"{uris}: no pictures in there")
    write_image(output, contact_sheet(cells))
    return {"pictures": len(cells), "broken": broken}


def _encoded(uris: UriLike | Sequence[UriLike], count: int) -> Iterator[Any]:
    """Encoded pictures; None for one that is too large."""
    names, _ = listed(uris)
    containers: list[str] = []
    pictures: list[str] = []
    for name in names:
        kind = kind_of(name, b"").name
        (containers if kind in ("tar", "parquet", "arrow") else pictures).append(name)
    left = count
    step = max(1.0, len(pictures) / count)
    for number in range(min(count, len(pictures))):
        target = target_of(pictures[int(number * step)])
        if target.kind.name == "image":
            left -= 1
            yield read_bytes(target.uri) if target.size <= LARGEST else None
        elif target.kind.name in ("tar", "parquet", "arrow"):
            containers.append(target.uri)
    for name in containers:
        target = target_of(name)
        with naming_file(target):
            for data in _of_tar(target) if target.kind.name == "tar" else _of_table(target) if target.kind.name in ("parquet", "arrow") else ():
                if not left:
                    return
                left -= 1
                yield data


def _of_tar(target: Target) -> Iterator[Any]:
    from .tar import walk

    with walk(target, contents=True) as entries:
        while (entry := entries.next()) is not None:
            if entry.kind == "file" and kind_of(entry.name, b"").name == "image":
                yield entries.read(entry) if entry.size <= LARGEST else None


def _of_table(target: Target) -> Iterator[Any]:
    """The pictures of the first column that has any in its first rows."""
    from .tables import batch_of, opened, opened_arrow

    if target.kind.name == "parquet":
        with opened(target) as file:
            column = _image_column(file.schema_arrow)
            if column is not None:
                for batch in file.iter_batches(16, columns=[column], use_threads=False):
                    yield from _pictures(batch.column(0))
        return
    with opened_arrow(target) as file:
        column = _image_column(file.schema)
        if column is not None:
            for number in range(file.num_record_batches):
                yield from _pictures(batch_of(file, number).column(column))


def _image_column(schema: Any) -> str | None:
    """The first column of bytes, or of structs with `bytes`; one whose name says image before others."""
    import pyarrow.types as types

    def of_bytes(kind: Any) -> bool:
        return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind))

    fitting: list[str] = []
    for field in schema:
        kind = field.type
        if of_bytes(kind) or (types.is_struct(kind) and kind.get_field_index("bytes") >= 0 and of_bytes(kind.field("bytes").type)):
            fitting.append(field.name)
    fitting.sort(key=lambda name: not any(word in name.lower() for word in ("image", "img", "jpg", "jpeg", "png", "picture", "photo")))
    return fitting[0] if fitting else None


def _pictures(column: Any) -> Iterator[Any]:
    for value in column:  # one at a time: a row may be large
        data = value.as_py()
        if isinstance(data, dict):
            data = data.get("bytes")
        if data:
            yield data if kind_of("", data[:HEAD]).name == "image" else None


def _cell(data: Any, size: int) -> NDArray[np.uint8] | None:
    """uint8[h, w, 3], neither side over `size`; None where it cannot be decoded."""
    from PIL import Image

    try:
        pixels = image(data, mode="rgb", normalize="none", layout="hwc")
    except OpError:
        return None
    picture = Image.fromarray(pixels)
    picture.thumbnail((size, size))
    return np.asarray(picture)


def _cross(size: int) -> NDArray[np.uint8]:
    """What stands for a broken picture."""
    cell = np.full((size, size, 3), 255, np.uint8)
    y, x = np.mgrid[:size, :size]
    width = max(1, size // 32)
    cell[(abs(y - x) <= width) | (abs(y + x - size + 1) <= width)] = _BROKEN
    return cell
