"""CSV and newline-delimited JSON as one scan. Plain local files are scanned by Polars. Any other is read as a stream, cut into blocks of whole
lines, and each block is parsed by Polars: so a file of any store, compressed or not, is read with bounded memory and by our own readers.

What cannot be parsed is told with its file and place, which Polars' own scan does not: the blocks are gone through then. Of a block only the
columns that are asked for are parsed.
"""

from __future__ import annotations

import io
import os
from abc import abstractmethod
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import polars as pl
import pyarrow as pa

from dataio.engine.errors import DataioError, OpError
from dataio.engine.expr import Cond
from dataio.engine.relational import frame_schema, narrowed
from dataio.engine.source import FIRST_PASS, Pass
from dataio.io.codecs import CodecError, decoded
from dataio.io.globbing import has_wildcards
from dataio.io.parallel import for_each
from dataio.io.reader import reader
from dataio.io.secrets import masked
from dataio.io.store import BytesLike
from dataio.io.uri import local_path

from .file_set import Files, FilesOptions, FilesScan, OpenedFile
from .files import Found
from .late import Conditions, LateChunk, Rows
from .shards import codec_of, is_packed

FIRST, BLOCK = 1 << 20, 16 << 20
"""Bytes of text of the first block, in which the types are found, and of the others."""
LONGEST = 1 << 28
"""Bytes of one line, at most."""
_PLAIN = pl.CompatLevel.oldest()


class TextFiles(FilesScan):
    """Several files of lines.

    Args:
        options: of Polars' scan function.
    """

    suffixes: tuple[str, ...] = ()

    def __init__(self, files: Files, options: FilesOptions, parsing: Mapping[str, Any]) -> None:
        super().__init__(files, options)
        self.parsing = dict(parsing)
        self.ahead = 2

    @abstractmethod
    def parsed(self, text: io.BytesIO | str, first: bool, schema: pl.Schema | None) -> pl.LazyFrame:
        """A block, or the file of a path, as a Polars query; without a schema its types are found."""

    def lazy_frame(self, *, predicate: Cond | None = None, pass_: Pass = FIRST_PASS) -> pl.LazyFrame:
        """Polars' own scans of local files, each of which is looked at for its columns first."""
        if not self._polars_reads():
            return super().lazy_frame(predicate=predicate, pass_=pass_)
        schema = self.schema()
        scans: dict[int, pl.LazyFrame] = {}

        def one(number: int) -> None:
            found = self.files.found[number]
            with closing(self.opened(found)) as file:
                assert isinstance(file, _File)
                self._drift(schema, file.schema, found.uri)
                scans[number] = self.parsed(found.uri, True, file.polars).select(schema.names)

        for_each(one, range(len(self.files.found)))
        return narrowed(pl.concat([scans[number] for number in sorted(scans)]), None, predicate, 0, None)

    def _polars_reads(self) -> bool:
        """Whether Polars reads the files just as they are read here: not patterns, and nothing that is packed."""
        if self.options.on_schema == "union" or self._constants.num_columns:
            return False
        paths = [local_path(uri) for uri in self.files.uris]
        return all(path is not None and not has_wildcards(os.fsdecode(path)) and os.path.isfile(path) and not is_packed(os.fsdecode(path)) for path in paths)

    def named(self, error: BaseException) -> Exception | None:
        try:
            for chunk in self.chunks(Conditions(), FIRST_PASS):
                chunk.read(self.schema().names, None)
        except (DataioError, OSError) as found:
            return found
        return None

    def quote(self) -> bytes:
        """The byte between two of which a line does not end; empty for none."""
        return b""

    def line_end(self) -> bytes:
        """The byte that ends a line."""
        return b"\n"

    def opened(self, found: Found) -> OpenedFile:
        return _File(self, found.uri)


class CsvFiles(TextFiles):
    """Several CSV files."""

    what = "scan_csv"

    def parsed(self, text: io.BytesIO | str, first: bool, schema: pl.Schema | None) -> pl.LazyFrame:
        options = dict(self.parsing)
        if not first:
            options |= {"has_header": False, "skip_rows": 0, "skip_lines": 0, "skip_rows_after_header": 0}
        if schema is not None:
            options |= {"schema": schema, "schema_overrides": None}
        return pl.scan_csv(text, glob=False, **options)

    def quote(self) -> bytes:
        return (self.parsing.get("quote_char") or "").encode()

    def line_end(self) -> bytes:
        return str(self.parsing.get("eol_char", "\n")).encode()


class NdjsonFiles(TextFiles):
    """Several files with a JSON object a line."""

    what = "scan_ndjson"

    def parsed(self, text: io.BytesIO | str, first: bool, schema: pl.Schema | None) -> pl.LazyFrame:
        options = dict(self.parsing)
        if schema is not None:
            options |= {"schema": schema, "schema_overrides": None}
        return pl.scan_ndjson(text, **options)


class _File(OpenedFile):
    """A file of lines.

    Attributes:
        polars: its columns as Polars has them.
    """

    def __init__(self, scan: TextFiles, uri: str) -> None:
        self._scan, self._uri = scan, uri
        self._blocks = _blocks(uri, scan.quote(), scan.line_end())
        self._first = next(self._blocks, (0, b""))
        with _naming(uri, 0):
            self.polars = scan.parsed(io.BytesIO(self._first[1]), True, None).collect_schema()
        self._schema = frame_schema(self.polars)

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    def chunks(self, test: Conditions) -> Iterator[LateChunk]:
        yield _Block(self._scan, self._uri, self._first, self.polars, True)
        for block in self._blocks:
            yield _Block(self._scan, self._uri, block, self.polars, False)

    def close(self) -> None:
        self._blocks.close()


class _Block(LateChunk):
    def __init__(self, scan: TextFiles, uri: str, block: tuple[int, bytes], schema: pl.Schema, first: bool) -> None:
        self._scan, self._uri, self._schema, self._first = scan, uri, schema, first
        self._at, self._text = block
        self._height: int | None = None

    @property
    def height(self) -> int:
        if self._height is None:
            with _naming(self._uri, self._at):
                self._height = int(self._query().select(pl.len()).collect().item())
        return self._height

    @property
    def place(self) -> tuple[str, str]:
        return self._uri, f"lines from byte {self._at:,}"

    def read(self, names: Sequence[str], rows: Rows | None) -> pa.Table:
        with _naming(self._uri, self._at):
            frame = self._query().select(list(names)).collect()
        self._height = frame.height
        if rows is not None:
            frame = frame[rows]
        return frame.to_arrow(compat_level=_PLAIN)

    def _query(self) -> pl.LazyFrame:
        return self._scan.parsed(io.BytesIO(self._text), self._first, self._schema)


class _naming:
    """What Polars says of a block becomes an OpError with the file's name."""

    def __init__(self, uri: str, at: int) -> None:
        self._uri, self._at = uri, at

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, (pl.exceptions.PolarsError, pl.exceptions.PanicException, UnicodeDecodeError)):
            first = (str(error).splitlines() or [type(error).__name__])[0]
            raise OpError(f"{masked(self._uri)}: the lines from byte {self._at:,} on cannot be parsed: {first[:500]}") from error


def _blocks(uri: str, quote: bytes, line_end: bytes) -> Generator[tuple[int, bytes], None, None]:
    """(place, text) of blocks of whole lines, decompressed; a line that ends between two quotes goes on.

    Raises:
        OpError: a line longer than `LONGEST`, or damaged compression.
        OSError: missing or unreadable.
    """
    held, at, wanted = bytearray(), 0, FIRST
    with closing(reader(uri).chunks()) as chunks:
        try:
            for piece in _decompressed(chunks, uri):
                held += piece
                if len(held) < wanted:
                    continue
                end = _line_end(held, quote, line_end)
                if not end:
                    if len(held) > LONGEST:
                        raise OpError(f"{masked(uri)}: a line from byte {at:,} on is longer than {LONGEST:,} bytes, or a quote in it is never closed")
                    wanted = 2 * len(held)
                    continue
                yield at, bytes(held[:end])
                del held[:end]
                at, wanted = at + end, BLOCK
        except CodecError as error:
            raise OpError(f"{masked(uri)}: {error}") from error
    if held:
        yield at, bytes(held)


def _decompressed(chunks: Iterator[BytesLike], uri: str) -> Iterator[BytesLike]:
    first = b""
    while len(first) < 8 and (more := next(chunks, None)) is not None:
        first += bytes(more)
    together = _joined(first, chunks)
    codec = codec_of(first[:8])
    return together if codec is None else decoded(together, codec, masked(uri))


def _joined(first: bytes, rest: Iterator[BytesLike]) -> Iterator[BytesLike]:
    yield first
    yield from rest


def _line_end(text: bytearray, quote: bytes, line_end: bytes) -> int:
    """Where the last whole line ends; 0 where none does."""
    quotes = text.count(quote) if quote else 0
    stop = len(text)
    while (at := text.rfind(line_end, 0, stop)) >= 0:
        if quote:
            quotes -= text.count(quote, at, stop)
        if quotes % 2 == 0:
            return at + 1
        stop = at
    return 0
