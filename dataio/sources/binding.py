"""`as_source`: whatever `bind` is given, as the engine's `Source`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from dataio.engine.source import IndexedSource, IterableSource, Pass, Source

from .records import RecordSource, length_of, reiterable


def as_source(obj: Any) -> Source:
    """The engine's view of a record source.

    Tables, frames and data sets stay columnar; everything else gives Python records. pandas, polars and datasets
    are recognised without being imported: an object of theirs cannot exist before they are.

    Raises:
        TypeError: `obj` is no source of records for one epoch after another.
    """
    if isinstance(obj, Source):
        return obj
    if isinstance(obj, RecordSource):
        return obj.columnar() or RecordRows(obj)
    if (found := _columnar(obj)) is not None:
        return found
    if isinstance(obj, np.ndarray):
        return ArrayRows(obj)
    if callable(obj):
        if isinstance(obj, Iterable):
            raise TypeError(
                f"bind cannot tell whether to call or to iterate this {type(obj).__name__}; "
                "pass lambda: obj() or lambda: iter(obj)"
            )
        return FactoryRows(obj)
    if type(obj) in (list, tuple, range):
        return SequenceRows(obj)
    return IterableRows(reiterable(obj, "bind"))


class RecordRows(IterableSource):
    """A `RecordSource`."""

    def __init__(self, source: RecordSource) -> None:
        self._source = source

    def describe(self) -> str:
        facts = ", ".join(f"{name}={value}" for name, value in self._source.describe().items())
        return f"record source: {facts}"

    def length(self) -> int | None:
        return length_of(self._source)

    def iterate(self, pass_: Pass) -> Iterator[Any]:
        return iter(self._source)


class IterableRows(IterableSource):
    """A list, set, mapping (its keys) or any other re-iterable."""

    def __init__(self, records: Iterable[Any], title: str | None = None) -> None:
        self._records, self._title = records, title or type(records).__name__

    def describe(self) -> str:
        length = self.length()
        return f"{self._title}: {'?' if length is None else length} records"

    def length(self) -> int | None:
        return length_of(self._records)

    def iterate(self, pass_: Pass) -> Iterator[Any]:
        return iter(self._records)


class SequenceRows(IndexedSource):
    """A list or tuple of records."""

    def __init__(self, records: Sequence[Any]) -> None:
        self._records = records

    def describe(self) -> str:
        return f"{type(self._records).__name__}: {len(self._records)} records"

    def length(self) -> int:
        return len(self._records)

    def at(self, positions: Sequence[int], pass_: Pass) -> list[Any]:
        if isinstance(positions, range) and positions.step > 0:
            return list(self._records[positions.start : positions.stop : positions.step])
        return [self._records[i] for i in positions]


class ArrayRows(IndexedSource):
    """A NumPy array: one record per index of the first axis, a view whose raw bytes are the slot's."""

    def __init__(self, array: np.ndarray) -> None:
        if array.ndim == 0:
            raise TypeError(
                "bind takes an array with at least one axis, one record per index of the first; got a scalar"
            )
        self._array = array

    def describe(self) -> str:
        return f"numpy array: {self._array.dtype}{list(self._array.shape)}"

    def length(self) -> int:
        return len(self._array)

    def at(self, positions: Sequence[int], pass_: Pass) -> list[Any]:
        if self._array.dtype.kind in "OUS":  # paths and other Python values
            return [self._array[index] for index in positions]
        return [self._array[index, ...] for index in positions]


class FactoryRows(IterableSource):
    """A function without arguments that returns the records of one epoch."""

    def __init__(self, factory: Callable[[], Any]) -> None:
        self._factory = factory

    def describe(self) -> str:
        return f"factory {getattr(self._factory, '__qualname__', type(self._factory).__name__)}"

    def length(self) -> None:
        return None

    def iterate(self, pass_: Pass) -> Iterator[Any]:
        made = self._factory()
        if isinstance(made, (str, bytes)) or not isinstance(made, Iterable):
            raise TypeError(
                f"{self.describe()} must return an iterable of records, got {type(made).__name__}"
            )
        return iter(made)


class FrameRows(IterableSource):
    """A frame with Python objects in it, which Arrow cannot hold: rows as dicts by column name."""

    def __init__(self, frame: Any, rows: Callable[[], Iterator[dict[str, Any]]]) -> None:
        self._frame, self._rows = frame, rows

    def describe(self) -> str:
        return f"{type(self._frame).__name__} with Python objects: {len(self._frame)} rows"

    def length(self) -> int:
        return len(self._frame)

    def iterate(self, pass_: Pass) -> Iterator[Any]:
        return self._rows()


def _columnar(obj: Any) -> Source | None:
    return _of_polars(obj) or _of_pandas(obj) or _of_datasets(obj) or _of_pyarrow(obj) or _of_exporter(obj)


def _of_polars(obj: Any) -> Source | None:
    pl = sys.modules.get("polars")
    if pl is None or not isinstance(obj, (pl.DataFrame, pl.LazyFrame)):
        return None
    from .columnar import FrameSource, LazyFrameSource

    if isinstance(obj, pl.LazyFrame):
        return LazyFrameSource(obj)
    if pl.Object in obj.dtypes:
        return FrameRows(obj, lambda: obj.iter_rows(named=True))
    return FrameSource(obj)


def _of_pandas(obj: Any) -> Source | None:
    pd = sys.modules.get("pandas")
    if pd is None or not isinstance(obj, pd.DataFrame):
        return None
    import pyarrow as pa

    from .columnar import PandasSource

    try:
        schema = pa.Schema.from_pandas(obj, preserve_index=False).remove_metadata()
    except pa.ArrowException:  # a column of Python objects, or of mixed types
        names = list(map(str, obj.columns))
        return FrameRows(
            obj, lambda: (dict(zip(names, row)) for row in obj.itertuples(index=False, name=None))
        )
    return PandasSource(obj, schema)


def _of_datasets(obj: Any) -> Source | None:
    hub = sys.modules.get("datasets")
    if hub is None:
        return None
    if isinstance(obj, hub.DatasetDict):
        raise TypeError(f"bind takes one split of a data set, got {type(obj).__name__} with {', '.join(obj)}")
    if not isinstance(obj, hub.Dataset):
        return None
    if obj.format["type"] == "custom":  # a transform of the user's makes the rows
        return IterableRows(obj, "datasets.Dataset with a transform")
    from .columnar import HubDatasetSource

    return HubDatasetSource(obj)


def _of_pyarrow(obj: Any) -> Source | None:
    pa = sys.modules.get("pyarrow")
    if pa is None:
        return None
    pds = sys.modules.get("pyarrow.dataset")
    dataset = () if pds is None else pds.Dataset
    if isinstance(obj, pa.RecordBatch):
        obj = pa.Table.from_batches([obj])
    if not isinstance(obj, (pa.Table, pa.RecordBatchReader, dataset)):
        return None
    from .columnar import DatasetSource, StreamSource, TableSource

    if isinstance(obj, pa.Table):
        return TableSource(obj)
    if isinstance(obj, pa.RecordBatchReader):
        return StreamSource(obj, "RecordBatchReader")
    return DatasetSource(obj)


def _of_exporter(obj: Any) -> Source | None:
    """An object that exports Arrow tables; one that exports a single column is iterated like a list."""
    if not hasattr(obj, "__arrow_c_stream__") or isinstance(obj, type):
        return None
    import pyarrow as pa

    from .columnar import ExporterSource

    try:
        first = pa.RecordBatchReader.from_stream(obj)
    except pa.ArrowException:
        if isinstance(obj, Iterable):
            return None
        raise
    return ExporterSource(obj, first)
