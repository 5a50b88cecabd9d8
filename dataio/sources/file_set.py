"""Scans of many files as one table: which files a path means, hive partitions, and what to do where files differ or are corrupt."""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import date
from typing import Any, Literal, TypeAlias
from urllib.parse import unquote

import numpy as np
import pyarrow as pa

from dataio.engine.errors import OpError, SchemaError, unknown_columns
from dataio.engine.source import Pass
from dataio.io.errors import ObjectNotFoundError
from dataio.io.globbing import has_wildcards
from dataio.io.parallel import for_each
from dataio.io.secrets import masked
from dataio.io.uri import HTTP_SCHEMES, local_path

from .files import Found, find
from .late import Conditions, LateChunk, LateScan, Rows, Skipped
from .marks import FileMarks
from .patterns import expanded

OnSchema: TypeAlias = Literal["strict", "union"]
OnCorrupt: TypeAlias = Literal["raise", "skip"]

_BRACES = re.compile(r"\{[^{}]*(\.\.|,)[^{}]*\}")
_NULL = "__HIVE_DEFAULT_PARTITION__"
_INTEGER = re.compile(r"-?[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class Files:
    """The files of a scan.

    Attributes:
        found: each with what its listing told, in order.
        roots: of each, how many characters of it were named by the caller rather than found below a folder or by a pattern.
        below_folder: whether all were found below folders, which is where hive partitions are looked for unasked.
    """

    found: list[Found]
    roots: list[int]
    below_folder: bool

    @property
    def uris(self) -> list[str]:
        """Paths and URIs."""
        return [one.uri for one in self.found]

    def title(self) -> str:
        """For messages."""
        first = repr(masked(self.found[0].uri))
        return first if len(self.found) == 1 else f"{first}, ... ({len(self.found):,} files)"


def is_one_file(path: Any) -> bool:
    """Whether a path or URI means one file by its looks: no pattern, no folder. Nothing but the local disk is asked."""
    name = os.fsdecode(os.fspath(path))
    local = local_path(name)
    if local is not None:
        place = os.fsdecode(local)
        return os.path.isfile(place) or not (os.path.isdir(place) or has_wildcards(place) or _BRACES.search(place))
    if name.endswith("/") or _BRACES.search(name):
        return False
    web = name.partition("://")[0].lower() in HTTP_SCHEMES  # whose "?" begins a query, and which lists nothing
    return web or not has_wildcards(name)


def find_files(paths: Any, what: str, *, suffixes: Sequence[str] = (), glob: bool = True) -> Files:
    """The files that paths, patterns, shards in braces and folders mean; listed now.

    Args:
        paths: a str or PathLike, or several. Of a folder all files below it count that are not hidden, do not begin with "_", and end
            with one of `suffixes`, where there are any.
        what: the function, for messages.
        glob: whether `*`, `?`, `[...]`, `**` and braces are patterns; otherwise each path is a file or folder.

    Raises:
        TypeError: paths of another type.
        FileNotFoundError: a path or pattern that nothing matches; the message names it.
        ValueError, OSError: as `dataio.files` says.
    """
    several = [paths] if isinstance(paths, (str, os.PathLike)) else paths
    if isinstance(several, (bytes, bytearray, Mapping)) or not hasattr(several, "__iter__"):
        raise TypeError(f"{what} takes paths and URIs as str or PathLike, got {type(paths).__name__}")
    listed: dict[str, tuple[Found, int]] = {}
    below_folder = True
    for path in several:
        if not isinstance(path, (str, os.PathLike)):
            raise TypeError(f"{what} takes paths and URIs as str or PathLike, got {path!r}")
        name = os.fsdecode(os.fspath(path))
        if (local := local_path(name)) is not None:
            name = os.fsdecode(local)
        if is_one_file(name) or (not glob and not _is_folder(name)):
            listed.setdefault(name, (Found(name, None), len(name)))
            below_folder = False
            continue
        if _BRACES.search(name) and not _is_folder(name):
            listed.update((one, (Found(one, None), len(one))) for one in expanded(name, what) if one not in listed)
            below_folder = False
            continue
        matching = sorted(find(name, recursive=True), key=lambda one: one.uri)
        folder = _is_folder(name) or not has_wildcards(name)
        if folder:
            matching = [one for one in matching if _counts(one.uri[len(name) :], suffixes)]
            root = len(name)
        else:
            below_folder = False
            root = name[: re.search(r"[*?\[]", name).start()].rfind("/") + 1  # type: ignore[union-attr]
        if not matching:
            raise ObjectNotFoundError(f"{what}: nothing is there, or matches" + (_wanted(suffixes) if folder else ""), uri=name)
        for one in matching:
            listed.setdefault(one.uri, (one, root))
    if not listed:
        raise ValueError(f"{what} needs at least one path")
    return Files([one for one, _ in listed.values()], [root for _, root in listed.values()], below_folder)


def _is_folder(name: str) -> bool:
    local = local_path(name)
    return name.endswith("/") if local is None else os.path.isdir(local)


def _counts(name: str, suffixes: Sequence[str]) -> bool:
    """Whether a file of a folder is one of data: `_SUCCESS` and the like are notes of who wrote it."""
    parts = name.strip("/").split("/")
    return not any(part[:1] in ("_", ".") for part in parts) and (not suffixes or parts[-1].lower().endswith(tuple(suffixes)))


def _wanted(suffixes: Sequence[str]) -> str:
    return f", of files that end with {', '.join(suffixes)}" if suffixes else ""


# --------------------------------------------------------------------------------------------------------- hive partitions


def hive_columns(files: Files, schema: Mapping[str, pa.DataType] | None, parse_dates: bool) -> pa.Table | None:
    """The values in names of folders such as `year=2024`, a row a file; None where there are none.

    Types are those of `schema`; otherwise int64 where all values are such numbers, date32 where all are dates, else text.

    Raises:
        SchemaError: files with other keys, or a value that is not of its type; the message names the files.
    """
    rows = [_pairs(uri[root:]) for uri, root in zip(files.uris, files.roots, strict=True)]
    keys = list(rows[0])
    for uri, row in zip(files.uris, rows, strict=True):
        if list(row) != keys:
            raise SchemaError(
                f"{masked(uri)} lies in the partition {', '.join(row) or 'of no key'}, {masked(files.uris[0])} in one of {', '.join(keys) or 'no key'}; "
                "hive_partitioning=False leaves partitions alone"
            )
    if not keys:
        return None
    columns = {key: _typed(key, [row[key] for row in rows], (schema or {}).get(key), parse_dates, files) for key in keys}
    return pa.table(columns)


def _pairs(path: str) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for folder in path.split("/")[:-1]:
        key, equals, value = folder.partition("=")
        if key and equals:
            found[unquote(key)] = None if value == _NULL else unquote(value)
    return found


def _typed(key: str, values: list[str | None], kind: pa.DataType | None, parse_dates: bool, files: Files) -> pa.Array:
    given = [value for value in values if value is not None]
    if kind is None:
        if given and all(_INTEGER.fullmatch(value) for value in given):
            kind = pa.int64()
        elif parse_dates and given and all(map(_is_date, given)):
            kind = pa.date32()
        else:
            kind = pa.string()
    texts = pa.array(values, pa.string())
    try:
        return texts.cast(kind)
    except pa.ArrowException:
        for uri, value in zip(files.uris, values, strict=True):
            try:
                pa.array([value], pa.string()).cast(kind)
            except pa.ArrowException as error:
                raise SchemaError(f"{masked(uri)}: the partition {key}={value} is no {kind}") from error
        raise


def _is_date(text: str) -> bool:
    if len(text) != 10:
        return False
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True


# ----------------------------------------------------------------------------------------------------------------- scans


class OpenedFile(ABC):
    """One file of a scan."""

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """Its columns."""

    @abstractmethod
    def chunks(self, test: Conditions) -> Iterator[LateChunk]:
        """Its rows, in order; those of a chunk in which `test` holds nowhere may be left out."""

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Give back what no chunk needs."""


@dataclass(frozen=True, slots=True)
class FilesOptions:
    """What all scans of files take.

    Attributes:
        on_schema: "strict": every file has the columns of the first, in any order; "union": the columns of all files, null where one lacks
            them, of the widest type.
        on_corrupt: "raise", or "skip" what is damaged.
        paths: name of a column with the path or URI of each row's file, None for none.
        hive: values of partitions, a row a file; None for none.
    """

    on_schema: OnSchema = "strict"
    on_corrupt: OnCorrupt = "raise"
    paths: str | None = None
    hive: pa.Table | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if self.on_schema not in ("strict", "union"):
            raise ValueError(f"on_schema is 'strict' or 'union', got {self.on_schema!r}")
        if self.on_corrupt not in ("raise", "skip"):
            raise ValueError(f"on_corrupt is 'raise' or 'skip', got {self.on_corrupt!r}")
        if self.paths is not None and (not isinstance(self.paths, str) or not self.paths):
            raise TypeError(f"include_file_paths is the name of a column, got {self.paths!r}")


class FilesScan(LateScan):
    """A scan of several files of one format."""

    what = "scan"

    def __init__(self, files: Files, options: FilesOptions) -> None:
        self.files, self.options = files, options
        self.skipped = Skipped() if options.on_corrupt == "skip" else None
        self._known: tuple[pa.Schema, str] | None = None  # of the files, and which one it is of
        self._constants = self._file_columns()
        self._marks = FileMarks(files.uris)

    @abstractmethod
    def opened(self, found: Found) -> OpenedFile:
        """Open a file.

        Raises:
            OpError: damaged.
            OSError: missing or unreadable.
        """

    def describe(self) -> str:
        return f"{self.what}({self.files.title()}): columns {', '.join(self.schema().names)}"

    def schema(self) -> pa.Schema:
        """Of the first file, or of all of them together, and then partitions and paths.

        Raises:
            SchemaError: a column of the same name of types that do not go together (`on_schema="union"`), or two of one name.
        """
        return with_constants(self.file_schema(), self._constants)

    def order_identity(self) -> Any:
        """Names and sizes of the files."""
        return self._marks.identity()

    def check(self) -> None:
        if self.indexed():
            self._marks.check()

    def file_schema(self) -> pa.Schema:
        """Of what lies in the files."""
        if self._known is None:
            self._known = self._united() if self.options.on_schema == "union" else self._first()
        return self._known[0]

    def chunks(self, test: Conditions, pass_: Pass) -> Iterator[LateChunk]:
        schema = self.file_schema()
        kept = np.ones(len(self.files.found), np.bool_)
        if self._constants.num_columns:
            kept = test.within(self._constants)
        for number in np.flatnonzero(kept).tolist():
            yield from self._of_file(number, schema, test)

    def _of_file(self, number: int, schema: pa.Schema, test: Conditions) -> Iterator[LateChunk]:
        found = self.files.found[number]
        constants = self._constants.slice(number, 1)
        try:
            with closing(self.opened(found)) as file:
                missing, casts = self._drift(schema, file.schema, found.uri)
                plain = not missing and not casts and not constants.num_columns
                for chunk in file.chunks(test):
                    yield chunk if plain else FileChunk(chunk, schema, missing, casts, constants)
        except OpError as error:
            if self.skipped is None:
                raise
            self.skipped.add(found.uri, "", None, error)

    # ------------------------------------------------------------------------------------------------------------- schema

    def _first(self) -> tuple[pa.Schema, str]:
        """The schema of the first file that can be read."""
        for number, found in enumerate(self.files.found):
            try:
                with closing(self.opened(found)) as file:
                    return checked(file.schema, found.uri), found.uri
            except OpError as error:
                if self.skipped is None or number == len(self.files.found) - 1:
                    raise
                self.skipped.add(found.uri, "", None, error)
        raise AssertionError

    def _united(self) -> tuple[pa.Schema, str]:
        schemas: dict[int, pa.Schema] = {}

        def one(number: int) -> None:
            found = self.files.found[number]
            try:
                with closing(self.opened(found)) as file:
                    schemas[number] = checked(file.schema, found.uri)
            except OpError as error:
                if self.skipped is None:
                    raise
                self.skipped.add(found.uri, "", None, error)

        for_each(one, range(len(self.files.found)))
        if not schemas:
            raise OpError(f"{self.what}: none of {len(self.files.found)} files can be read")
        whole, first = None, ""
        for number in sorted(schemas):
            uri = self.files.found[number].uri
            if whole is None:
                whole, first = schemas[number].remove_metadata(), uri
                continue
            try:
                whole = pa.unify_schemas([whole, schemas[number].remove_metadata()], promote_options="permissive")
            except pa.ArrowException as error:
                raise SchemaError(f"{self.what}: columns of {masked(uri)} have types that do not go with those of {masked(first)}: {error}") from error
        assert whole is not None
        return pa.schema([one.with_nullable(True) for one in whole]), first

    def _drift(self, schema: pa.Schema, own: pa.Schema, uri: str) -> tuple[frozenset[str], frozenset[str]]:
        """The columns that a file lacks, and those it has of another type, where that is allowed.

        Raises:
            SchemaError: it is not allowed; the message names both files and the columns.
        """
        checked(own, uri)
        missing = frozenset(schema.names) - frozenset(own.names)
        more = [name for name in own.names if name not in set(schema.names)]
        others = frozenset(name for name in own.names if name in set(schema.names) and own.field(name).type != schema.field(name).type)
        if self.options.on_schema == "union" and not more:
            return missing, others
        if not missing and not more and not others:
            return frozenset(), frozenset()
        assert self._known is not None
        parts = [f"lacks {name!r}" for name in schema.names if name in missing] + [f"has {name!r} besides" for name in more]
        parts += [f"has {name!r} as {own.field(name).type} rather than {schema.field(name).type}" for name in own.names if name in others]
        shown = "; ".join(parts[:6]) + (f"; ... ({len(parts)} in all)" if len(parts) > 6 else "")
        raise SchemaError(f'{self.what}: {masked(uri)} has other columns than {masked(self._known[1])}: it {shown}. on_schema="union" takes the columns of all files')

    # ---------------------------------------------------------------------------------------------------------- constants

    def _file_columns(self) -> pa.Table:
        """Columns with one value a file."""
        table = self.options.hive if self.options.hive is not None else pa.table({"": pa.nulls(len(self.files.found))}).select([])
        if self.options.paths is not None:
            if self.options.paths in table.column_names:
                raise SchemaError(f"include_file_paths={self.options.paths!r} is also the name of a partition")
            table = table.append_column(self.options.paths, pa.array(self.files.uris, pa.string()))
        return table

    def cost(self, name: str) -> int:
        return 0 if name in self._constants.column_names else 1


def checked(schema: pa.Schema, uri: str) -> pa.Schema:
    """A schema in which every name stands once.

    Raises:
        SchemaError: one stands twice.
    """
    if len(set(schema.names)) != len(schema.names):
        twice = next(name for name in schema.names if schema.names.count(name) > 1)
        raise SchemaError(f"{masked(uri)} has several columns {twice!r}")
    return schema


def with_constants(schema: pa.Schema, constants: pa.Table) -> pa.Schema:
    """The columns of files and those that are the same for all rows of a file, which stand in for columns of the same name."""
    kinds = {one.name: one for one in constants.schema}
    fields = [kinds.pop(one.name, one) for one in schema]
    return pa.schema([*fields, *kinds.values()])


class FileChunk(LateChunk):
    """Rows of a file in the types of the scan, with the columns that the file lacks."""

    def __init__(self, below: LateChunk, schema: pa.Schema, missing: frozenset[str], casts: frozenset[str], constants: pa.Table) -> None:
        self._below, self._schema = below, schema
        self._missing, self._casts, self._constants = missing, casts, constants

    @property
    def height(self) -> int:
        return self._below.height

    @property
    def place(self) -> tuple[str, str]:
        return self._below.place

    def read(self, names: Sequence[str], rows: Rows | None) -> pa.Table:
        constant = set(self._constants.column_names)
        stored = [name for name in names if name not in constant and name not in self._missing]
        table = self._below.read(stored, rows) if stored else None
        count = table.num_rows if table is not None else self.height if rows is None else len(rows)
        columns: list[Any] = []
        fields: list[pa.Field] = []
        for name in names:
            if name in constant:
                value = self._constants.column(name)[0]
                columns.append(pa.repeat(value, count))
                fields.append(self._constants.schema.field(name))
                continue
            wanted = self._schema.field(name)
            fields.append(wanted)
            if name in self._missing:
                columns.append(pa.nulls(count, wanted.type))
                continue
            assert table is not None
            column = table.column(name)
            if name in self._casts:
                try:
                    column = column.cast(wanted.type)
                except pa.ArrowException as error:
                    raise OpError(f"{masked(self.place[0])}: column {name!r} does not fit {wanted.type}: {error}") from error
            columns.append(column)
        return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def check_hive_schema(schema: Mapping[str, Any] | None, hive: pa.Table | None) -> None:
    """Refuse types for partitions that are not there.

    Raises:
        SchemaError: a key that no partition has.
    """
    known = [] if hive is None else hive.column_names
    if schema is not None and (unknown := set(schema) - set(known)):
        raise unknown_columns(unknown, known, reader="hive_schema")
