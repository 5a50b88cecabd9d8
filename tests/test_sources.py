"""Every source kind gives the same rows, takes projection, conditions and limits, and starts again each epoch."""

from __future__ import annotations

import datetime
import json
import logging
import math
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dataio.engine.errors import DataioError, OpError, SchemaError, SourceError
from dataio.engine.expr import All, AnyOf, Col, Compare, Cond, ConstCond, IsIn, IsNull, Not, Truthy
from dataio.engine.relational import narrowed
from dataio.engine.source import ColumnarSource, RowSource
from dataio.io.reader import Reader
from dataio.sources import (
    RecordSource,
    as_source,
    files,
    from_callable,
    from_iterable,
    from_iterator,
    from_sampler,
    manifest,
    records,
)
from dataio.sources.columnar import DatasetSource

ROWS: list[dict[str, Any]] = [
    {"id": 1, "name": "a", "score": 0.5, "good": True},
    {"id": 2, "name": None, "score": None, "good": False},
    {"id": 3, "name": "", "score": -1.0, "good": None},
    {"id": None, "name": "é", "score": 2.25, "good": True},
    {"id": 5, "name": "a", "score": 0.0, "good": False},
]
SCHEMA = pa.schema({"id": pa.int64(), "name": pa.large_string(), "score": pa.float64(), "good": pa.bool_()})


class Exporter:
    """Anything that speaks the Arrow stream protocol, and nothing else."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> Any:
        return self.table.__arrow_c_stream__(requested_schema)


def parquet_files(table: pa.Table, folder: Path) -> Path:
    """Two files, one row group per row, so that order across files and groups shows."""
    folder.mkdir(exist_ok=True)
    half = table.num_rows // 2
    pq.write_table(table.slice(0, half), folder / "0.parquet", row_group_size=1)
    pq.write_table(table.slice(half), folder / "1.parquet", row_group_size=1)
    return folder


def hub_dataset(table: pa.Table) -> datasets.Dataset:
    """The rows of `table` seen through an indices mapping: the stored table has them in reverse."""
    stored = datasets.Dataset(table.take(list(range(table.num_rows))[::-1]))
    return stored.select(list(range(table.num_rows))[::-1])


KINDS: dict[str, Callable[[pa.Table, Path], Any]] = {
    "table": lambda table, tmp: table,
    "chunked-table": lambda table, tmp: pa.concat_tables([table.slice(0, 2), table.slice(2)]),
    "record-batch": lambda table, tmp: table.combine_chunks().to_batches()[0],
    "dataset": lambda table, tmp: pads.dataset(parquet_files(table, tmp / "parts")),
    "memory-dataset": lambda table, tmp: pads.dataset(table),
    "exporter": lambda table, tmp: Exporter(table),
    "polars": lambda table, tmp: pl.from_arrow(table),
    "polars-lazy": lambda table, tmp: pl.DataFrame(pl.from_arrow(table)).lazy(),
    "polars-scan": lambda table, tmp: pl.scan_parquet(parquet_files(table, tmp / "parts")),
    "pandas": lambda table, tmp: table.to_pandas(types_mapper=pd.ArrowDtype),
    "hub": lambda table, tmp: hub_dataset(table),
    "parquet-manifest": lambda table, tmp: (
        manifest(parquet_files(table, tmp / "parts") / "../all.parquet")
        if pq.write_table(table, tmp / "all.parquet") is None
        else None
    ),
}
SIZED = set(KINDS) - {"exporter", "polars-lazy", "polars-scan", "memory-dataset"}


def columnar(obj: Any) -> ColumnarSource:
    source = as_source(obj)
    assert isinstance(source, ColumnarSource)
    return source


def rows_of(
    source: ColumnarSource,
    columns: tuple[str, ...] | None = None,
    predicate: Cond | None = None,
    limit: int | None = None,
    offset: int = 0,
) -> list[dict[str, Any]]:
    batches = source.record_batches(columns=columns, predicate=predicate, limit=limit, offset=offset)
    found = []
    for batch in batches:
        assert isinstance(batch, pa.RecordBatch)
        assert columns is None or batch.schema.names == list(columns)
        assert not any("view" in str(field.type) for field in batch.schema)
        found += batch.to_pylist()
    return found


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def source(kind: str, tmp_path: Path) -> ColumnarSource:
    return columnar(KINDS[kind](pa.Table.from_pylist(ROWS, SCHEMA), tmp_path))


def test_columnar_rows_epochs_and_length(kind: str, source: ColumnarSource) -> None:
    assert rows_of(source) == ROWS
    assert rows_of(source) == ROWS
    assert source.schema().names == SCHEMA.names
    assert source.length() == (len(ROWS) if kind in SIZED else None)
    assert "name" in source.describe() or "records" in source.describe()
    assert " at 0x" not in source.describe()


def test_batches_have_the_announced_schema(source: ColumnarSource) -> None:
    for batch in source.record_batches(columns=None, predicate=None, limit=None):
        assert batch.schema.equals(source.schema(), check_metadata=False)


def test_projection_condition_and_window(source: ColumnarSource) -> None:
    cond = Compare(Col("score"), "ge", 0)
    assert rows_of(source, ("good", "id")) == [{"good": r["good"], "id": r["id"]} for r in ROWS]
    assert rows_of(source, ("id",), cond) == [{"id": 1}, {"id": None}, {"id": 5}]
    assert rows_of(source, ("id",), cond, limit=1, offset=1) == [{"id": None}]
    assert rows_of(source, limit=2, offset=1) == ROWS[1:3]
    assert rows_of(source, limit=0) == []
    assert rows_of(source, offset=9) == []


def test_unknown_column(source: ColumnarSource) -> None:
    with pytest.raises(SchemaError, match=r"select\(nmae\).*did you mean 'name'"):
        rows_of(source, ("nmae",))
    with pytest.raises(SchemaError, match=r"filter.*'scor'"):
        rows_of(source, None, Truthy(Col("scor")))


def test_lazy_frame_reads_only_what_is_asked(tmp_path: Path) -> None:
    frame = pl.scan_parquet(parquet_files(pa.Table.from_pylist(ROWS, SCHEMA), tmp_path))
    plan = narrowed(frame, ("id",), Compare(Col("score"), "gt", 0), 0, None).explain()
    assert "PROJECT 2/4 COLUMNS" in plan
    assert "SELECTION" in plan


def test_dataset_scan_reads_only_what_is_asked(tmp_path: Path) -> None:
    class Spy:
        def __init__(self, dataset: pads.Dataset) -> None:
            self.dataset, self.schema = dataset, dataset.schema
            self.asked: dict[str, Any] = {}

        def scanner(self, **asked: Any) -> Any:
            self.asked = asked
            return self.dataset.scanner(**asked)

    spy = Spy(pads.dataset(parquet_files(pa.Table.from_pylist(ROWS, SCHEMA), tmp_path)))
    source = DatasetSource(spy)
    cond = Compare(Col("score"), "gt", 0) & Not(Compare(Col("name"), "eq", "é"))
    assert rows_of(source, ("id",), cond) == [{"id": 1}]
    assert spy.asked["columns"] == ["id", "name", "score"]
    assert str(spy.asked["filter"]) == "(score > 0)"  # the part on which Arrow agrees


def test_limit_stops_the_scan() -> None:
    def endless() -> Iterator[pa.RecordBatch]:
        for start in range(0, 100, 10):
            assert start < 30, "read on after the limit"
            yield pa.record_batch({"id": range(start, start + 10)})

    class Source(DatasetSource):
        def read(self, *_: Any) -> Iterator[pa.RecordBatch]:
            return endless()

    source = Source(pads.dataset(pa.table({"id": [0]})))
    assert len(rows_of(source, ("id",), Compare(Col("id"), "ge", 5), limit=12)) == 12


def test_table_batches_are_views() -> None:
    table = pa.table({"id": np.arange(20_000)})
    first = next(columnar(table).record_batches(columns=("id",), predicate=None, limit=None))
    assert np.shares_memory(first["id"].to_numpy(), table["id"].chunk(0).to_numpy())


def test_frame_numbers_are_views() -> None:
    frame = pl.DataFrame({"id": np.arange(20_000), "name": ["x"] * 20_000})
    first = next(columnar(frame).record_batches(columns=("id",), predicate=None, limit=None))
    assert np.shares_memory(first["id"].to_numpy(), frame["id"].to_numpy())


def test_types_that_polars_lacks_pass_through() -> None:
    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(12, dtype=np.float32).reshape(3, 2, 2))
    table = pa.table({"id": [1, 2, 3], "image": tensors})
    batches = list(
        columnar(table).record_batches(columns=("image",), predicate=Compare(Col("id"), "ge", 2), limit=None)
    )
    assert batches[0].schema.field("image").type == tensors.type
    assert batches[0].num_rows == 2


# Conditions: what Polars computes is what Python says.

LITERALS: list[Any] = [
    None, True, False, 0, 1, -1, 2, 300, 2**53 + 1, 2**63, -(2**63) - 1, 10**400,
    0.0, 1.0, 0.5, -0.5, 0.1, 1e300, math.inf, -math.inf, math.nan, float(2**53), "", "a", "b", "é", "1",
]  # fmt: skip
FLOATS = st.sampled_from(
    [None, 0.0, -0.0, 1.0, 0.5, -1.5, 0.1, 1e300, math.inf, -math.inf, math.nan, 2.0**53]
)
COLUMNS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "i": (pa.int64(), st.sampled_from([None, 0, 1, -1, 2, 2**53 + 1, 2**63 - 1, -(2**63)])),
    "t": (pa.int8(), st.sampled_from([None, 0, 1, -128, 127])),
    "u": (pa.uint64(), st.sampled_from([None, 0, 1, 2**64 - 1, 2**63])),
    "f": (pa.float64(), FLOATS),
    "h": (pa.float32(), st.sampled_from([None, 0.0, 0.5, 0.1, math.nan, math.inf])),
    "s": (pa.string(), st.sampled_from([None, "", "a", "b", "é", "1"])),
    "c": (pa.dictionary(pa.int32(), pa.string()), st.sampled_from([None, "", "a", "b"])),
    "b": (pa.bool_(), st.sampled_from([None, True, False])),
    "y": (pa.binary(), st.sampled_from([None, b"", b"a"])),
    "l": (pa.list_(pa.int64()), st.sampled_from([None, [], [1]])),
    "n": (pa.null(), st.none()),
    "d": (pa.date32(), st.sampled_from([None, datetime.date(1970, 1, 1), datetime.date(2020, 2, 2)])),
    "w": (pa.timestamp("us"), st.sampled_from([None, datetime.datetime(1970, 1, 1)])),
    "v": (pa.duration("us"), st.sampled_from([None, datetime.timedelta(0), datetime.timedelta(1)])),
    "m": (pa.decimal128(10, 2), st.sampled_from([None, Decimal("0.00"), Decimal("0.10"), Decimal("1.00")])),
}
literals = st.sampled_from(LITERALS)
cols = st.sampled_from(sorted(COLUMNS)).map(Col)
leaves: st.SearchStrategy[Cond] = st.one_of(
    st.builds(Compare, cols, st.sampled_from(["eq", "ne", "lt", "le", "gt", "ge"]), literals),
    st.builds(Truthy, cols),
    st.builds(IsNull, cols),
    st.builds(IsIn, cols, st.lists(literals, max_size=3).map(tuple)),
    st.builds(ConstCond, st.booleans()),
)
conds = st.recursive(
    leaves,
    lambda inner: st.one_of(
        inner.map(Not),
        st.lists(inner, max_size=3).map(tuple).map(All),
        st.lists(inner, max_size=3).map(tuple).map(AnyOf),
    ),
    max_leaves=5,
)


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    height = draw(st.integers(0, 6))
    return pa.table(
        {
            "row": pa.array(range(height), pa.int64()),
            **{
                name: pa.array([draw(values) for _ in range(height)], kind)
                for name, (kind, values) in COLUMNS.items()
            },
        }
    )


def expected_rows(table: pa.Table, cond: Cond, offset: int, limit: int | None) -> list[int]:
    kept = [row["row"] for row in table.to_pylist() if cond.of_record(row.get)]
    return kept[offset:] if limit is None else kept[offset : offset + limit]


@settings(max_examples=80, deadline=None)
@given(tables(), conds, st.integers(0, 3), st.one_of(st.none(), st.integers(0, 4)))
def test_conditions_agree_with_python(table: pa.Table, cond: Cond, offset: int, limit: int | None) -> None:
    frame = pl.DataFrame(pl.from_arrow(table))
    expected = expected_rows(table, cond, offset, limit)
    for obj in (table, frame, frame.lazy(), pads.dataset(table)):
        found = rows_of(columnar(obj), ("row",), cond, limit, offset)
        assert [row["row"] for row in found] == expected, type(obj)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tables(), conds)
def test_conditions_agree_with_python_on_parquet(tmp_path: Path, table: pa.Table, cond: Cond) -> None:
    """Statistics of row groups and files must not rule out a row that Python keeps."""
    folder = parquet_files(table, tmp_path / "parts")
    expected = expected_rows(table, cond, 0, None)
    for obj in (pads.dataset(folder), pl.scan_parquet(folder)):
        assert [row["row"] for row in rows_of(columnar(obj), ("row",), cond)] == expected, type(obj)


@pytest.mark.parametrize("literal", LITERALS, ids=lambda value: repr(value)[:24])
@pytest.mark.parametrize("op", ["eq", "ne", "lt", "le", "gt", "ge"])
def test_each_comparison(op: str, literal: Any) -> None:
    """Every column type against every literal, each value at least once."""
    for name, (kind, values) in COLUMNS.items():
        found = list(getattr(values, "elements", [None]))
        cond = Compare(Col(name), op, literal)
        frame = pl.DataFrame(pl.from_arrow(pa.table({name: pa.array(found, kind)})))
        kept = frame.select(pl.repeat(True, pl.len()) & cond.to_polars(frame.schema)).to_series().to_list()
        rows = pa.array(found, kind).to_pylist()
        assert kept == [cond.of_record({name: value}.get) for value in rows], (name, rows)


# One-pass streams and special frames.


def test_a_reader_serves_one_epoch() -> None:
    table = pa.Table.from_pylist(ROWS, SCHEMA)
    source = columnar(table.to_reader())
    assert source.length() is None
    assert rows_of(source, ("id",), limit=2) == [{"id": 1}, {"id": 2}]
    with pytest.raises(SourceError, match=r"earlier epoch.*bind a table"):
        rows_of(source)


def test_a_one_shot_exporter_says_so() -> None:
    class Once(Exporter):
        def __arrow_c_stream__(self, requested_schema: object = None) -> Any:
            table, self.table = self.table, None
            return table.__arrow_c_stream__(requested_schema)

    source = columnar(Once(pa.Table.from_pylist(ROWS, SCHEMA)))
    assert rows_of(source) == ROWS
    with pytest.raises(SourceError, match="one epoch only"):
        rows_of(source)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_frames_of_python_objects_give_rows(library: str) -> None:
    value = object()
    frame: Any = (
        pd.DataFrame({"id": [1], "thing": [value]})
        if library == "pandas"
        else pl.DataFrame({"id": [1], "thing": pl.Series([value], dtype=pl.Object)})
    )
    source = as_source(frame)
    assert isinstance(source, RowSource)
    assert list(source.rows()) == list(source.rows()) == [{"id": 1, "thing": value}]
    assert source.length() == 1


def test_pandas_nan_is_null_and_index_is_dropped() -> None:
    frame = pd.DataFrame({"x": [1.0, math.nan]}, index=["p", "q"])
    assert rows_of(columnar(frame)) == [{"x": 1.0}, {"x": None}]


def test_hub_dataset_keeps_its_order_filters_and_columns() -> None:
    base = datasets.Dataset.from_dict({"id": list(range(50)), "name": [str(i) for i in range(50)]})
    shuffled = base.shuffle(seed=3).select(range(20)).with_format(None, columns=["id"])
    assert rows_of(columnar(shuffled)) == [{"id": i} for i in shuffled["id"]]
    assert rows_of(columnar(shuffled), limit=3, offset=1) == [{"id": i} for i in shuffled["id"][1:4]]


def test_hub_variants() -> None:
    base = datasets.Dataset.from_dict({"id": [1, 2, 3]})
    stream = as_source(base.to_iterable_dataset())
    assert isinstance(stream, RowSource)
    assert list(stream.rows()) == list(stream.rows()) == [{"id": 1}, {"id": 2}, {"id": 3}]
    custom = base.with_transform(lambda rows: {"id": [i * 10 for i in rows["id"]]})
    source = as_source(custom)
    assert isinstance(source, RowSource)
    assert list(source.rows()) == [{"id": 10}, {"id": 20}, {"id": 30}]
    with pytest.raises(TypeError, match=r"one split.*train"):
        as_source(datasets.DatasetDict(train=base))


# Rows of Python objects.


class MapStyle:
    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> str:
        return "abc"[index % 3]


@pytest.mark.parametrize(
    ("obj", "expected", "length"),
    [
        pytest.param(["a", "b"], ["a", "b"], 2, id="list"),
        pytest.param(("a",), ["a"], 1, id="tuple"),
        pytest.param({"a"}, ["a"], 1, id="set"),
        pytest.param({"a": 1, "b": 2}, ["a", "b"], 2, id="mapping-keys"),
        pytest.param(range(3), [0, 1, 2], 3, id="range"),
        pytest.param(lambda: iter(["a"]), ["a"], None, id="factory"),
        pytest.param(RecordSource.from_records(["a", "b"]), ["a", "b"], 2, id="record-source"),
        pytest.param(MapStyle(), ["a", "b", "c"], 3, id="map-style"),
        pytest.param(pd.Series(["a", "b"]), ["a", "b"], 2, id="pandas-series"),
        pytest.param(pl.Series(["a", "b"]), ["a", "b"], 2, id="polars-series"),
        pytest.param(np.array(["a", "b"]), ["a", "b"], 2, id="array-of-paths"),
    ],
)
def test_row_sources(obj: Any, expected: list[Any], length: int | None) -> None:
    source = as_source(obj)
    assert isinstance(source, RowSource)
    assert list(source.rows()) == expected
    assert list(source.rows()) == expected
    assert source.length() == length
    assert " at 0x" not in source.describe()


@pytest.mark.parametrize("shape", [(3,), (3, 2), (2, 2, 2)])
def test_array_rows_are_views(shape: tuple[int, ...]) -> None:
    array = np.arange(math.prod(shape), dtype=np.int16).reshape(shape)
    source = as_source(array)
    assert isinstance(source, RowSource)
    rows = list(source.rows())
    assert [row.tobytes() for row in rows] == [array[i].tobytes() for i in range(len(array))]
    assert all(np.shares_memory(row, array) for row in rows)


class Both:
    def __iter__(self) -> Iterator[int]:
        return iter(())

    def __call__(self) -> list[int]:
        return []


@pytest.mark.parametrize(
    ("obj", "message"),
    [
        pytest.param("a.jpg", "one path", id="str"),
        pytest.param(b"bytes", "one path", id="bytes"),
        pytest.param(Path("a"), "one path", id="path"),
        pytest.param((i for i in range(3)), "factory", id="generator"),
        pytest.param(iter([1]), "factory", id="iterator"),
        pytest.param(Both(), "call or to iterate", id="both"),
        pytest.param(3, "got int", id="int"),
        pytest.param(None, "got NoneType", id="none"),
        pytest.param(np.array(3), "at least one axis", id="scalar-array"),
    ],
)
def test_what_is_no_source(obj: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        as_source(obj)


def test_a_factory_must_return_an_iterable() -> None:
    source = as_source(lambda: 3)
    assert isinstance(source, RowSource)
    with pytest.raises(SourceError, match="must return an iterable") as raised:
        list(source.rows())
    assert isinstance(raised.value.__cause__, TypeError)


def test_importing_and_binding_a_list_stays_light() -> None:
    code = (
        "import sys; from dataio.sources import as_source; as_source([1]); "
        "print([m for m in ('polars', 'pyarrow', 'pandas', 'datasets', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# RecordSource.


def test_shuffle_of_a_seeded_source_is_the_same_each_time() -> None:
    source = records(range(100)).shuffle(seed=7)
    order = list(source)
    assert order == list(source)
    assert sorted(order) == list(range(100)) != order
    assert list(source.map_records(lambda i: -i)) == [-i for i in order]
    fresh = records(range(100)).shuffle()
    assert list(fresh) != list(fresh)
    assert sorted(records({3, 1, 2}).shuffle(seed=0)) == [1, 2, 3]


def test_filter_of_a_sized_source_loses_the_shuffle() -> None:
    calls: list[int] = []

    def odd(number: int) -> bool:
        calls.append(number)
        return number % 2 == 1

    source = records(range(6)).shuffle(seed=1).filter_records(odd)
    assert calls == list(range(6))
    assert list(source) == [1, 3, 5]
    assert len(source) == 3
    assert source.describe()["shuffle"] is None


def test_streams_filter_lazily_and_once() -> None:
    source = from_iterable(lambda: [b"a", b"b"]).filter_records(lambda r: r["key"] != "pyiter:0")
    with pytest.raises(TypeError, match="no length"):
        len(source)
    assert [r["key"] for r in source] == ["pyiter:1"]
    assert list(source) == []


@pytest.mark.parametrize(
    "make",
    [
        lambda: from_iterable([b"a"]),
        lambda: from_iterable([b"a"]).map_records(dict),
        lambda: RecordSource.from_records([1], sequential=True),
        lambda: RecordSource.from_records([1], sequential=True).filter_records(bool),
    ],
)
def test_sequential_sources_do_not_shuffle(make: Callable[[], RecordSource]) -> None:
    with pytest.raises(TypeError, match="sequential"):
        make().shuffle(seed=1)


@pytest.mark.parametrize("seed", [-1, True, 1.5, "1", 2**64])
def test_bad_seed(seed: Any) -> None:
    with pytest.raises(ValueError, match="seed"):
        records([1]).shuffle(seed=seed)


def test_describe() -> None:
    source = records([1, 2]).map_records(str).shuffle(seed=4)
    assert source.describe() == {"records": 2, "record_maps": 1, "shuffle": {"seed": 4}, "sequential": False}
    assert from_iterable([]).describe()["records"] is None


@pytest.mark.parametrize("bad", ["a.jpg", iter([1]), 3, pa.table({"a": [1]}), pd.DataFrame({"a": [1]})])
def test_records_refuses(bad: Any) -> None:
    with pytest.raises(TypeError):
        records(bad)


# Files and manifests.


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("b.txt", "a.txt", "sub/c.txt", "sub/deep/d.txt", ".hidden", ".git/x.txt", "odd[1].txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    return tmp_path


@pytest.mark.parametrize(
    ("pattern", "recursive", "expected"),
    [
        ("", True, ["a.txt", "b.txt", "odd[1].txt", "sub/c.txt", "sub/deep/d.txt"]),
        ("", False, ["a.txt", "b.txt", "odd[1].txt"]),
        ("*.txt", True, ["a.txt", "b.txt", "odd[1].txt"]),
        ("**/*.txt", True, ["a.txt", "b.txt", "odd[1].txt", "sub/c.txt", "sub/deep/d.txt"]),
        ("**/*.txt", False, ["sub/c.txt"]),
        ("*", True, ["a.txt", "b.txt", "odd[1].txt"]),
        ("odd[1].txt", True, ["odd[1].txt"]),
        ("*.jpg", True, []),
        (["b.txt", "*.txt"], True, ["b.txt", "a.txt", "odd[1].txt"]),
    ],
)
def test_files(tree: Path, pattern: str | list[str], recursive: bool, expected: list[str]) -> None:
    glob: Any = [str(tree / p) for p in pattern] if isinstance(pattern, list) else tree / pattern
    found = files(glob, recursive=recursive)
    assert list(found) == [str(tree / name) for name in expected]
    assert len(found) == len(expected)


def test_files_refuses() -> None:
    with pytest.raises(TypeError, match="recursive"):
        files("x", recursive=1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="str or PathLike"):
        files([3])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="unknown scheme"):
        files("nope://bucket/*.jpg")


def test_manifest_lines(tmp_path: Path) -> None:
    path = tmp_path / "list.jsonl"
    path.write_text('{"image": "a.jpg", "label": 1}\n\n  b.jpg  \n# no comment\n[1]\n')
    assert list(manifest(path)) == [{"image": "a.jpg", "label": 1}, "b.jpg", "# no comment", "[1]"]
    path.write_text('ok\n{"image": \n')
    with pytest.raises(json.JSONDecodeError) as caught:
        RecordSource.from_manifest(path)
    assert "line 2" in caught.value.__notes__[0]
    with pytest.raises(ValueError, match="unknown scheme"):
        manifest("nope://host/list.txt")
    with pytest.raises(FileNotFoundError):
        manifest(tmp_path / "none.txt")


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_manifest_tables(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"list.{suffix}"
    rows = [{"image": "a.jpg", "label": 1}, {"image": "b.jpg", "label": 2}, {"image": "c.jpg", "label": 3}]
    frame = pl.DataFrame(rows)
    frame.write_csv(path) if suffix == "csv" else frame.write_parquet(path)
    source = manifest(path)
    assert list(source) == list(source) == rows
    assert len(source) == 3
    assert rows_of(columnar(source), ("label",), Compare(Col("label"), "ge", 2)) == [
        {"label": 2},
        {"label": 3},
    ]
    assert sorted(r["label"] for r in source.shuffle(seed=1)) == [1, 2, 3]
    assert isinstance(as_source(source.map_records(dict)), RowSource)


# Python code as a source of bytes.


def encode(index: int) -> bytes:
    return b"#%d" % index


def two_slots(index: int) -> dict[str, Any]:
    CALLS.append(index)
    return {"image": encode(index), "label": index}


CALLS: list[int] = []


def test_from_callable_reads_late_and_pickles() -> None:
    def fail(index: int) -> bytes:
        raise AssertionError("called while iterating")

    list(from_callable(fail, length=3))
    source = from_callable(encode, length=3)
    assert len(source) == 3
    assert [r["key"] for r in source] == ["pycall:0", "pycall:1", "pycall:2"]
    reader = pickle.loads(pickle.dumps(list(source)[2]["reader"]))
    assert isinstance(reader, Reader)
    assert reader.read_all() == reader.read_all() == b"#2"
    assert [r["reader"].read_all() for r in source.shuffle(seed=2)] != [b"#0", b"#1", b"#2"]


def test_from_callable_calls_once_per_record() -> None:
    CALLS.clear()
    source = from_callable(two_slots, length=2, slots=["image", "label"], extras=lambda i: {"key": f"k{i}"})
    record = pickle.loads(pickle.dumps(list(source)[1]))
    assert record["key"] == "k1"
    assert record["label"].read_all() == (1).to_bytes(8, "little")
    assert record["image"].read_all() == b"#1"
    assert CALLS == [1]
    assert record["image"].read_all() == b"#1"  # a second epoch over kept records
    assert CALLS == [1, 1]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"x", b"x"),
        (bytearray(b"x"), b"x"),
        (memoryview(b"xyz")[::2], b"xz"),
        ("é", "é".encode()),
        (-2, (-2).to_bytes(8, "little", signed=True)),
        (1.5, np.float64(1.5).tobytes()),
        (np.float32(1.5), np.float32(1.5).tobytes()),
        (np.float64(1.5), np.float64(1.5).tobytes()),
        (
            np.arange(6, dtype=np.int16).reshape(2, 3).T,
            np.arange(6, dtype=np.int16).reshape(2, 3).T.tobytes(),
        ),
        (np.zeros((0, 2)), b""),
    ],
)
def test_values_that_have_bytes(value: Any, expected: bytes) -> None:
    [record] = from_iterable([value])
    assert bytes(record["reader"].read_all()) == expected


@pytest.mark.parametrize(
    "value",
    [
        True,
        None,
        [1],
        {},
        2**63,
        np.array(["a"]),
        np.array([None]),
        np.arange(2, dtype=">i4"),
        np.array("2020", "M8[Y]"),
    ],
)
def test_values_without_bytes_are_row_errors(value: Any) -> None:
    [record] = from_iterable([value])
    with pytest.raises(OpError, match="pyiter:0"):
        record["reader"].read_all()


def test_missing_slot_is_a_row_error() -> None:
    [record] = from_iterable([{"image": b"x"}], slots=["image", "imagge"], label="cam")
    assert record["image"].read_all() == b"x"
    with pytest.raises(OpError, match=r"cam:0.*'imagge'.*did you mean 'image'"):
        record["imagge"].read_all()


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"fn": 3}, TypeError),
        ({"length": -1}, ValueError),
        ({"length": True}, TypeError),
        ({"length": 1.0}, TypeError),
        ({"slots": "image"}, TypeError),
        ({"slots": []}, ValueError),
        ({"slots": ["a", "a"]}, ValueError),
        ({"slots": [""]}, ValueError),
        ({"slots": [1]}, TypeError),
        ({"label": 3}, TypeError),
        ({"extras": 3}, TypeError),
    ],
)
def test_from_callable_checks(change: dict[str, Any], error: type[Exception]) -> None:
    args = {"fn": encode, "length": 2, **change}
    with pytest.raises(error):
        from_callable(args.pop("fn"), **args)


@pytest.mark.parametrize("bad", ["text", 3, Both()])
def test_from_iterable_checks(bad: Any) -> None:
    with pytest.raises(TypeError):
        from_iterable(bad)


def test_from_iterator_reads_item_by_item() -> None:
    reader = from_iterator([b"a", b"b"])
    assert [reader.read_all(), reader.read_all()] == [b"a", b"b"]
    with pytest.raises(RuntimeError, match="gave 2 items"):
        reader.read_all()
    assert from_iterator(iter([{"image": b"a"}]), slot="image").read_all() == b"a"


# from_sampler.


def test_from_sampler_numbers_batches_in_every_epoch() -> None:
    rows = [[{"key": "a"}], [], [{"key": "b"}, {"key": "c"}]]
    factory = from_sampler(rows)
    source = as_source(factory)
    assert isinstance(source, RowSource)
    expected = [{"key": "a", "batch_id": 0}, {"key": "b", "batch_id": 2}, {"key": "c", "batch_id": 2}]
    assert list(source.rows()) == list(source.rows()) == expected
    assert "batch_id" not in rows[0][0]


@pytest.mark.parametrize(("on_error", "logged"), [("warn", 1), ("skip", 0)])
def test_from_sampler_drops_rows(on_error: Any, logged: int, caplog: pytest.LogCaptureFixture) -> None:
    def make(row: int) -> dict[str, Any] | None:
        return None if row == 0 else {"key": str(1 // (row - 1))}

    with caplog.at_level(logging.WARNING, logger="dataio.sampler"):
        found = list(from_sampler([[0, 1, 2]], make, batch_key="n", on_error=on_error)())
    assert found == [{"key": "1", "n": 0}]
    assert len(caplog.records) == logged


def test_from_sampler_errors() -> None:
    with pytest.raises(ZeroDivisionError):
        list(from_sampler([[0]], lambda row: {"key": 1 // row}, on_error="raise")())
    with pytest.raises(TypeError, match="the sampler gave int"):
        list(from_sampler([[0]])())
    with pytest.raises(TypeError, match="record_fn gave int"):
        list(from_sampler([[0]], lambda row: row)())
    with pytest.raises(ValueError, match="on_error"):
        from_sampler([], on_error="ignore")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="record_fn"):
        from_sampler([], 3)  # type: ignore[arg-type]


def test_errors_belong_to_the_tree() -> None:
    assert issubclass(OpError, DataioError)
    assert issubclass(SourceError, DataioError)
