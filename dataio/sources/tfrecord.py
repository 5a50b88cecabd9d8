"""`tfrecord`: the examples of indexed TFRecord files as records, by number."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from contextlib import closing
from typing import Any

import numpy as np

from dataio.engine.errors import OpError
from dataio.engine.source import IndexedSource, Pass
from dataio.engine.streams import BadRecord
from dataio.formats.tfrecord.example import Values, parse_example
from dataio.formats.tfrecord.framing import MAX_RECORD, TFRecordError
from dataio.formats.tfrecord.index import TFRecordIndex, tfrecord_index
from dataio.io.parallel import for_each
from dataio.io.ranges import open_ranges
from dataio.io.reader import reader
from dataio.io.store import BytesLike
from dataio.io.uri import local_path

from .patterns import expanded
from .records import RecordSource
from .shards import missing


def tfrecord(
    paths: Any,
    *,
    index: Iterable[Any] | None = None,
    features: Iterable[str] | None = None,
    unwrap: bool = True,
    max_record_bytes: int = MAX_RECORD,
) -> RecordSource:
    """The examples of TFRecord files, plain ones, local or in any store.

    The source has a length; its records are shuffled one by one over all files, split among ranks, fetched by position in place, and
    resumed like a list's. A record is `__key__` (`path:number`), `__shard__` (the path) and each feature by its name. For files that are
    compressed, or to read without an index: `dataio.from_iterable(lambda: dataio.iter_tfrecord(path))`.

    Args:
        paths: paths or URIs, each a str or PathLike. Each may hold ranges `{lo..hi}` and lists `{a,b}`, as for `webdataset`.
        index: for each file a `TFRecordIndex`, or a source that `TFRecordIndex.load` takes; None reads the headers of all files now,
            several at a time.
        features: names of those wanted; None for all.
        unwrap: give a feature of one value as that value, and numbers otherwise as an array, int64[n] or float32[n]; bytes stay a
            list. False gives lists, as `iter_tfrecord` does.
        max_record_bytes: of one payload; more is damage.

    Raises:
        TypeError, ValueError: paths of another type, a pattern that is none, `index` of another length than there are files.
        TFRecordError: (a ValueError) a header is damaged, or a file ends inside a record.
        MissingShardError: (a RuntimeError and FileNotFoundError) there is no such file.
        OSError: a file cannot be read.

    In a loader, a record whose checksums do not match, that is no Example, or that has a feature `__key__` or `__shard__`, is an error of
    that record.
    """
    files = expanded(paths, "tfrecord")
    if isinstance(features, (str, bytes)):
        raise TypeError(f"features is a list of names as str, got {features!r}")
    given = None if index is None else list(index)
    if given is not None and len(given) != len(files):
        raise ValueError(f"index holds one index for each file, {len(files)}, got {len(given)}")
    found: list[TFRecordIndex | None] = [None] * len(files)

    def one(number: int) -> None:
        known = None if given is None else given[number]
        if known is not None:
            found[number] = known if isinstance(known, TFRecordIndex) else TFRecordIndex.load(known)
            return
        try:
            found[number] = tfrecord_index(files[number], max_record_bytes=max_record_bytes)
        except FileNotFoundError as error:
            raise missing(files[number], error) from error

    for_each(one, range(len(files)))
    wanted = None if features is None else frozenset(features)
    return RecordSource(TFRecordRows(files, [one for one in found if one is not None], wanted, unwrap))


class TFRecordRows(IndexedSource):
    """Examples by number.

    Attributes:
        shards: the files.
    """

    def __init__(self, files: list[str], indexes: list[TFRecordIndex], features: frozenset[str] | None, unwrap: bool) -> None:
        self.shards = files
        self._indexes, self._features, self._unwrap = indexes, features, unwrap
        self._ends = np.cumsum([len(index) for index in indexes])

    def describe(self) -> str:
        first = f"{self.shards[0]!r}, ..." if len(self.shards) > 1 else repr(self.shards[0])
        return f"tfrecord({first}): {self.length():,} examples of {len(self.shards)} files"

    def length(self) -> int:
        return int(self._ends[-1])

    def order_identity(self) -> str:
        digest = hashlib.blake2b(digest_size=12)
        for index in self._indexes:
            digest.update(index.lengths.tobytes() + b"|")
        return f"{self.length()} examples of {len(self.shards)} files, {digest.hexdigest()}"

    def at(self, positions: Sequence[int], pass_: Pass) -> list[Any]:
        numbers = np.asarray(positions, np.int64)
        shards = np.searchsorted(self._ends, numbers, side="right")
        records: list[Any] = [None] * len(numbers)

        def one(shard: int) -> None:
            places = np.flatnonzero(shards == shard)
            within = numbers[places] - (self._ends[shard] - len(self._indexes[shard]))
            for place, record in zip(places.tolist(), self._of_shard(shard, within.tolist())):
                records[place] = record

        wanted = np.unique(shards).tolist()
        if len(wanted) == 1 or local_path(self.shards[wanted[0]]) is not None:
            for shard in wanted:
                one(shard)
        else:  # requests to several files at once
            for_each(one, wanted)
        return records

    def _of_shard(self, shard: int, numbers: list[int]) -> list[Any]:
        path, index = self.shards[shard], self._indexes[shard]
        records: list[Any] = []
        for number, frame in zip(numbers, _frames(path, [index.place(number) for number in numbers])):
            base: dict[str, Any] = {"__key__": f"{path}:{number}", "__shard__": path}
            try:
                records.append(base | self._features_of(path, number, index.payload(frame, number, path)))
            except OpError as error:
                records.append(BadRecord(base, "tfrecord", error))
        return records

    def _features_of(self, path: str, number: int, payload: bytes) -> dict[str, Any]:
        try:
            found = parse_example(payload, self._features)
        except OpError as error:
            raise TFRecordError(f"{path}: record {number} is {error}", record=number) from error
        if found.keys() & {"__key__", "__shard__"}:
            raise TFRecordError(f"{path}: record {number} has a feature __key__ or __shard__; choose others by features=", record=number)
        return {name: unwrapped(values) for name, values in found.items()} if self._unwrap else dict(found)


def _frames(path: str, places: list[tuple[int, int]]) -> Iterable[BytesLike]:
    """The bytes at these places of a file: of a local one as they are asked for, of another one by few requests.

    Raises:
        MissingShardError, OSError: it is not there, or cannot be read there; it became shorter.
    """
    try:
        if local_path(path) is None:
            yield from reader(path).read_ranges(places)
        else:
            with closing(open_ranges(path)) as ranges:
                for offset, length in places:
                    yield ranges.read(offset, length)
    except FileNotFoundError as error:
        raise missing(path, error) from error


def unwrapped(values: Values) -> Any:
    """The value of a list of one; numbers as an array."""
    if len(values) == 1:
        return values[0]
    if values and not isinstance(values[0], bytes):
        return np.array(values, np.int64 if isinstance(values[0], int) else np.float32)
    return values

