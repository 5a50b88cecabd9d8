"""`as_source`: whatever `bind` is given, as the engine's `Source`."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import numpy as np

from dataio.engine.source import Source

from .records import RecordSource
from .rows import ArrayRows, FactoryRows, FrameRows, rows_of


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
        return obj.source
    if hasattr(obj, "as_source") and not isinstance(obj, type):
        made: Source = obj.as_source()
        return made
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
    return rows_of(obj, "bind")


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
        return rows_of(obj, "bind", "datasets.Dataset with a transform")
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
