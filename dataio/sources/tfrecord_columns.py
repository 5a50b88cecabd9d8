"""TFRecord files as columns: the kinds of the features become Arrow types."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any

import pyarrow as pa

from dataio.engine.errors import OpError, SchemaError
from dataio.engine.source import Pass
from dataio.formats.tfrecord.example import Values, parse_example
from dataio.formats.tfrecord.files import iter_payloads
from dataio.formats.tfrecord.framing import TFRecordError
from dataio.io.secrets import masked

from .late import Conditions, LateChunk, LateScan, Rows, Skipped

BATCH_ROWS, BATCH_BYTES = 1024, 16 << 20
"""Records of a batch, and bytes of their payloads behind which it ends."""
SUFFIXES = (".tfrecord", ".tfrecords", ".tfrec", ".tfrecord.gz", ".tfrecords.gz")
_TYPES = {bytes: pa.binary(), int: pa.int64(), float: pa.float32()}


class TFRecordColumns(LateScan):
    """Examples of TFRecord files, a column for each feature; read forwards, features that nobody asks for are not converted.

    Args:
        files: paths or URIs.
        schema: of the columns; None finds it from the first `examples` of the first file.
        examples: how many are looked at.
        options: of `iter_payloads`.
    """

    ahead = 2

    def __init__(self, files: list[str], schema: pa.Schema | None, examples: int, options: dict[str, Any]) -> None:
        self._files, self._options = files, options
        self.skipped = Skipped() if options.get("on_corrupt") == "skip" else None
        self._schema = schema
        self._examples = examples

    def describe(self) -> str:
        return f"scan_tfrecord({self._files[0]!r}{', ...' if len(self._files) > 1 else ''}): columns {', '.join(self.schema().names)}"

    def length(self) -> None:
        return None

    def schema(self) -> pa.Schema:
        if self._schema is None:
            payloads = (payload for _, _, _, payload in self._payloads())
            self._schema = inferred(parse_example(payload) for payload in islice(payloads, self._examples))
        return self._schema

    def chunks(self, test: Conditions, pass_: Pass) -> Iterator[LateChunk]:
        batch: list[bytes] = []
        places: list[tuple[str, int, int]] = []
        held = 0
        for file, number, at, payload in self._payloads():
            batch.append(payload)
            places.append((file, number, at))
            held += len(payload)
            if len(batch) == BATCH_ROWS or held >= BATCH_BYTES:
                yield _Examples(self.schema(), batch, places)
                batch, places, held = [], [], 0
        if batch:
            yield _Examples(self.schema(), batch, places)

    def _payloads(self) -> Iterator[tuple[str, int, int, bytes]]:
        for file in self._files:
            for number, offset, payload in iter_payloads(file, **self._options, on_gaps=partial(self._gaps, file)):
                yield file, number, offset, payload

    def _gaps(self, file: str, places: int, size: int) -> None:
        if self.skipped is not None:
            self.skipped.add(file, f"{places:,} places, {size:,} bytes", None, "damaged records")


class _Examples(LateChunk):
    """Payloads whose checksums hold; parsed for each group of columns that is asked for."""

    def __init__(self, schema: pa.Schema, payloads: list[bytes], places: list[tuple[str, int, int]]) -> None:
        self._schema, self._payloads, self._places = schema, payloads, places

    @property
    def height(self) -> int:
        return len(self._payloads)

    @property
    def place(self) -> tuple[str, str]:
        first, last = self._places[0], self._places[-1]
        return masked(first[0]), f"records {first[1]} to {last[1]}" + (f" of {masked(last[0])}" if last[0] != first[0] else "")

    def read(self, names: Sequence[str], rows: Rows | None) -> pa.Table:
        schema = pa.schema([self._schema.field(name) for name in names])
        wanted = frozenset(names)
        examples: list[dict[str, Values]] = []
        places: list[tuple[str, int]] = []
        for at in range(len(self._payloads)) if rows is None else rows.tolist():
            file, number, offset = self._places[at]
            try:
                examples.append(parse_example(self._payloads[at], wanted))
            except OpError as error:
                raise TFRecordError(f"{file}: record {number} (byte {offset:,}) is {error}", record=number, offset=offset) from error
            places.append((file, number))
        return pa.Table.from_batches([_batch(schema, examples, places)])


def inferred(examples: Iterator[dict[str, Values]]) -> pa.Schema:
    """A column for each feature, sorted by name: of its type where no example has another number of values than one, else of a list.

    Raises:
        SchemaError: a feature has values of two kinds.
    """
    kinds: dict[str, type] = {}
    several: set[str] = set()
    for example in examples:
        for name, values in example.items():
            if len(values) != 1:
                several.add(name)
            if values and kinds.setdefault(name, type(values[0])) is not type(values[0]):
                raise SchemaError(f"feature {name!r} has values of {kinds[name].__name__} and of {type(values[0]).__name__}; read it by iter_tfrecord")
    names = sorted(kinds.keys() | several)
    found = {name: _TYPES[kinds.get(name, bytes)] for name in names}
    return pa.schema([(name, pa.list_(kind) if name in several else kind) for name, kind in found.items()])


def _batch(schema: pa.Schema, examples: list[dict[str, Values]], places: list[tuple[str, int]]) -> pa.RecordBatch:
    arrays = []
    for field in schema:
        name = field.name
        nested = pa.types.is_list(field.type) or pa.types.is_large_list(field.type)
        rows: list[Any] = [example.get(name) for example in examples]
        if not nested:
            for place, values in enumerate(rows):
                if values is not None and len(values) != 1:
                    file, number = places[place]
                    raise SchemaError(
                        f"{file}: record {number} has {len(values)} values of feature {name!r}, whose column has one each; give a schema with "
                        f"a list: schema=pa.schema([({name!r}, pa.list_({field.type})), ...])"
                    )
            rows = [None if values is None else values[0] for values in rows]
        try:
            arrays.append(pa.array(rows, field.type))
        except (pa.ArrowException, TypeError, OverflowError) as error:
            first, last = places[0], places[-1]
            raise SchemaError(f"feature {name!r} of records {first[1]} ({first[0]}) to {last[1]} ({last[0]}) is not all {field.type}: {error}") from error
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
