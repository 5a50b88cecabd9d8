"""Training on tables, frames and data sets: the batches that records give, without making Python rows of them."""

from __future__ import annotations

from collections.abc import Callable
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

import dataio
from dataio import cond
from dataio.engine import registry
from dataio.engine import streams as engine_streams
from dataio.engine.actors import source as source_actor
from dataio.engine.errors import MissingFieldError, SchemaError
from dataio.engine.plan import Scan, walk
from dataio.engine.registry import register_op, specs
from dataio.engine.rules import optimize
from dataio.sources import as_source
from dataio.sources.columnar import ArrowSource, DatasetSource, TableSource

from .engine.helpers import jpeg, npy, run

N = 11
RECORDS: list[dict[str, Any]] = [
    {"id": f"row-{i}", "image": jpeg(20 + i, 30, seed=i), "label": i % 4, "caption": f"é{i}", "h": 5 + i // 4, "unused": "x" * 50}
    for i in range(N)
]
TABLE = pa.Table.from_pylist(RECORDS)
KINDS: dict[str, Callable[[Path], Any]] = {
    "table": lambda tmp: TABLE,
    "chunked-table": lambda tmp: pa.concat_tables([TABLE.slice(0, 3), TABLE.slice(3, 1), TABLE.slice(4)]),
    "record-batch": lambda tmp: TABLE.to_batches()[0],
    "reader": lambda tmp: pa.RecordBatchReader.from_batches(TABLE.schema, TABLE.to_batches(max_chunksize=4)),
    "parquet": lambda tmp: parquet(tmp),
    "frame": lambda tmp: pl.from_arrow(TABLE),
    "lazy-frame": lambda tmp: pl.DataFrame(pl.from_arrow(TABLE)).lazy(),
    "lazy-parquet": lambda tmp: pl.scan_parquet(parquet(tmp).files),
    "pandas": lambda tmp: pd.DataFrame(RECORDS),
    "hub": lambda tmp: datasets.Dataset.from_list(RECORDS),
    "query": lambda tmp: dataio.scan(TABLE),
}


def parquet(folder: Path) -> pads.Dataset:
    for part in range(3):
        rows = TABLE.slice(part * 4, 4)
        pq.write_table(rows, folder / f"{part}.parquet", row_group_size=2)
    return pads.dataset(sorted(map(str, folder.glob("*.parquet"))))


def pipe(shape: Any = None) -> dataio.Pipeline:
    return dataio.pipeline(
        dataio.slot("image").decode_image().resize(h=dataio.col("h"), w=8).hflip(),
        dataio.slot("label").passthrough(),
        dataio.slot("caption").passthrough(),
        shape or dataio.batch(4),
    )


@pytest.fixture
def no_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever makes dicts of a record batch fails."""

    def rows_of(batch: Any) -> Any:
        raise AssertionError("Python rows were made of a record batch")

    monkeypatch.setattr(engine_streams, "rows_of", rows_of)
    monkeypatch.setattr(source_actor, "rows_of", rows_of)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [dataio.batch(4), dataio.batch(3, drop_last=True), dataio.group_by("h")], ids=str)
@pytest.mark.usefixtures("no_rows")
def test_the_batches_are_those_of_records(tmp_path: Path, kind: str, shape: Any) -> None:
    assert run(pipe(shape), KINDS[kind](tmp_path)) == run(pipe(shape), RECORDS)


@pytest.mark.parametrize("kind", ["table", "lazy-parquet", "hub"])
@pytest.mark.usefixtures("no_rows")
def test_the_process_executor_gives_the_same(tmp_path: Path, kind: str) -> None:
    slot = dataio.slot("image").decode_image().center_crop(h=dataio.col("h"), w=8).hflip()  # no resize: torch loads slowly
    one = dataio.pipeline(slot, *pipe().slots[1:], dataio.batch(4))
    assert run(one, KINDS[kind](tmp_path), workers="process") == run(one, RECORDS)


@pytest.mark.usefixtures("no_rows")
def test_every_epoch_starts_again(tmp_path: Path) -> None:
    with pipe().bind(parquet(tmp_path)).run("numpy") as loader:
        assert [[k for b in loader for k in b.keys] for _ in range(2)] == [[r["id"] for r in RECORDS]] * 2
        assert len(loader) == 3


# -------------------------------------------------------------------- what is read


class Probe(TableSource):
    """A table that notes what is asked of it."""

    def __init__(self, table: pa.Table) -> None:
        super().__init__(table)
        self.asked: list[Any] = []

    def record_batches(self, **asked: Any) -> Any:
        self.asked.append(asked)
        return super().record_batches(**asked)


@pytest.mark.parametrize(
    ("shape", "columns"),
    [
        (dataio.batch(4), ("id", "image", "label", "caption", "h")),
        (dataio.group_by("unused"), None),
    ],
    ids=["batch", "all-needed"],
)
def test_only_needed_columns_are_read(shape: Any, columns: Any) -> None:
    source = Probe(TABLE)
    run(pipe(shape), source)
    assert [asked["columns"] for asked in source.asked] == [columns]


def test_random_ops_need_the_seed_column_and_groups_their_key() -> None:
    table = TABLE.append_column("seed", pa.array(range(N)))
    source = Probe(table)
    one = dataio.pipeline(dataio.slot("image").decode_image().resize(h=4, w=4).hflip(), dataio.group_by("label"))
    assert run(one, source) == run(one, table.to_pylist())
    assert source.asked[0]["columns"] == ("id", "image", "label", "seed")


@pytest.mark.parametrize("make", ["map", "callable-group", "context"])
def test_python_functions_get_whole_rows(make: str) -> None:
    source, seen = Probe(TABLE), []

    def look(record: Any) -> Any:
        seen.append(set(record))
        return record["label"] if make == "callable-group" else record

    slot = dataio.slot("image").decode_image().resize(h=4, w=4)
    if make == "map":
        run(dataio.pipeline(dataio.map(look), slot, dataio.batch(4)), source)
    elif make == "callable-group":
        run(dataio.pipeline(slot, dataio.group_by(look)), source)
    else:
        run(dataio.pipeline(slot, dataio.batch(4)), source, context=look)
    assert source.asked[0]["columns"] is None
    assert seen == [set(TABLE.column_names)] * N


def test_parquet_reads_only_needed_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    read = DatasetSource.read

    def noting(self: DatasetSource, columns: Any, predicate: Any, rows: Any, offset: int) -> Any:
        asked.append((columns, str(predicate), rows))
        return read(self, columns, predicate, rows, offset)

    monkeypatch.setattr(DatasetSource, "read", noting)
    query = dataio.scan(parquet(tmp_path)).filter(cond.col("label").ne(0)).select("image", "id", "label").limit(5, 1)
    one = dataio.pipeline(dataio.slot("image").decode_image().resize(h=4, w=4), dataio.batch(4))
    found = run(one, query)
    assert asked == [(["image", "id", "label"], "col:label != 0", None)]
    expected = [r["id"] for r in RECORDS if r["label"] != 0][1:6]
    assert [k for b in found for k in b["keys"]] == expected


# -------------------------------------------------------------------- queries


@pytest.mark.parametrize("kind", [k for k in KINDS if k != "query"])
@pytest.mark.usefixtures("no_rows")
def test_filter_select_limit_then_train(tmp_path: Path, kind: str) -> None:
    query = dataio.scan(KINDS[kind](tmp_path)).filter(cond.col("label").gt(0) & cond.col("caption").ne("é5"))
    query = query.select("id", "image", "label", "caption", "h").limit(5, 1)
    bound = pipe().bind(query)
    plan = optimize(bound.plan()).plan
    assert [type(n).__name__ for n in walk(plan)] == ["Batch", "Slots", "Scan"]
    chosen = [r for r in RECORDS if r["label"] > 0 and r["caption"] != "é5"][1:6]
    assert run(pipe(), query) == run(pipe(), chosen)


def test_a_limit_reaches_the_scan() -> None:
    pulled = 0

    class Endless(ArrowSource):
        def describe(self) -> str:
            return "endless"

        def length(self) -> None:
            return None

        def schema(self) -> pa.Schema:
            return TABLE.schema

        def read(self, columns: Any, predicate: Any, rows: Any, offset: int) -> Any:
            nonlocal pulled
            while True:
                pulled += 1
                yield from TABLE.select(columns).to_batches()

    found = run(pipe(), dataio.scan(Endless()).limit(15))
    assert sum(len(b["keys"]) for b in found) == 15
    assert pulled == 2


def test_a_python_filter_of_a_query() -> None:
    query = dataio.scan(TABLE).filter(lambda row: row["label"] == 2 and row["unused"])
    assert run(pipe(), query) == run(pipe(), [r for r in RECORDS if r["label"] == 2])


def test_collect_and_explain() -> None:
    query = dataio.scan(TABLE).filter(cond.col("label").eq(3)).select("id", "h")
    assert query.collect() == [{"id": r["id"], "h": r["h"]} for r in RECORDS if r["label"] == 3]
    assert list(query) == query.collect()
    assert "Rules that fired: predicate_pushdown, select_pushdown" in query.explain()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda q: q.filter(cond.col("lable").eq(1)), r"'lable'.*did you mean 'label'\?.*it has: id, image, label"),
        (lambda q: q.select("id", "imag"), r"'imag'.*did you mean 'image'\?"),
        (lambda q: q.select("id").filter(cond.col("label").eq(1)), r"'label'.*it has: id$"),
    ],
)
def test_a_wrong_column_shows_where_it_is_written(make: Any, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        make(dataio.scan(TABLE))


@pytest.mark.parametrize("bad", [lambda q: q.filter(True), lambda q: q.filter("label"), lambda q: q.limit(-1)])
def test_queries_refuse(bad: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        bad(dataio.scan(TABLE))


# -------------------------------------------------------------------- bad data


@pytest.mark.parametrize("kind", ["table", "frame", "lazy-frame", "hub", "pandas"])
@pytest.mark.parametrize("several", [True, False], ids=["two-slots", "one-slot"])
def test_a_missing_column_names_those_there_are(tmp_path: Path, kind: str, several: bool) -> None:
    others = [dataio.slot("caption").passthrough()] if several else []
    bad = dataio.pipeline(dataio.slot("picture").decode_image(), *others, dataio.batch(4))
    with pytest.raises(MissingFieldError, match=r"slot 'picture'.*it has: id, image, label, caption, h, unused"):
        run(bad, KINDS[kind](tmp_path))


def test_a_missing_argument_column_is_a_row_error() -> None:
    bad = dataio.pipeline(dataio.slot("image").decode_image().resize(h=dataio.col("height"), w=4), dataio.batch(N))
    (found,) = run(bad, TABLE)
    assert {e[1:] for e in found["errors"]} == {("image", "transform", "resize", "MissingFieldError")}
    assert len(found["errors"]) == N


@pytest.mark.parametrize("kind", ["table", "frame", "pandas", "records"])
def test_a_null_in_a_slot_is_a_row_error(kind: str) -> None:
    rows = [{**r, "image": None if i in (2, 5) else r["image"]} for i, r in enumerate(RECORDS)]
    table = pa.Table.from_pylist(rows)
    source = {"table": table, "frame": pl.from_arrow(table), "pandas": pd.DataFrame(rows), "records": rows}[kind]
    (found,) = run(pipe(dataio.batch(N)), source)
    assert found["errors"] == [(2, "image", "read", "read", "RecordError"), (5, "image", "read", "read", "RecordError")]
    assert found["keys"] == [r["id"] for i, r in enumerate(RECORDS) if i not in (2, 5)]
    assert found["slots"]["caption"] == [r["caption"] for i, r in enumerate(RECORDS) if i not in (2, 5)]


def test_a_null_in_a_passthrough_slot_is_none() -> None:
    table = TABLE.set_column(2, "label", pa.array([None, *range(1, N)]))
    (found,) = run(pipe(dataio.batch(N)), table)
    assert found["errors"] == []
    assert found["slots"]["label"] == [None, *range(1, N)]


def test_a_broken_image_is_a_row_error() -> None:
    rows = [{**r, "image": b"no image" if i == 3 else r["image"]} for i, r in enumerate(RECORDS)]
    assert run(pipe(), pa.Table.from_pylist(rows)) == run(pipe(), rows)


# -------------------------------------------------------------------- keys, groups, structs, optional slots


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"key": ["a", "b", None], "id": [1, 2, 3]}, ["a", "b", "None"]),
        ({"id": [1, 2, 3], "name": ["x", "y", "z"]}, ["1", "2", "3"]),
        ({"name": ["x", "y", "z"], "path": ["/a", "/b", "/c"]}, ["x", "y", "z"]),
        ({"path": ["/d/a.tar.gz", None, "c"]}, ["a.tar", "1", "c"]),
        ({"path": [None, "/p/b.jpg", None], "uri": ["s3://u/a.png", "s3://u/z.png", None]}, ["a", "b", "2"]),
        ({}, ["0", "1", "2"]),
    ],
    ids=str,
)
def test_keys_are_those_of_records(columns: dict[str, Any], expected: list[str]) -> None:
    table = pa.table({"x": [npy(i) for i in range(3)], **columns})
    one = dataio.pipeline(dataio.slot("x").decode_npy(), dataio.batch(3))
    (found,) = run(one, table)
    assert found["keys"] == expected
    assert run(one, table.to_pylist()) == [found]


def test_keys_from_the_paths_of_a_slot(tmp_path: Path) -> None:
    paths = [str(tmp_path / f"{name}.npy") for name in "abc"]
    for i, path in enumerate(paths):
        Path(path).write_bytes(npy(i))
    one = dataio.pipeline(dataio.slot("x").decode_npy(), dataio.batch(3))
    (found,) = run(one, pa.table({"x": paths}))
    assert found["keys"] == ["a", "b", "c"]
    assert found["slots"]["x"] == [0, 1, 2]


def test_group_by_a_column_crosses_chunks() -> None:
    label = [1, 1, 2, 2, 2, None, None, 1, 3, 3, 3]
    table = TABLE.set_column(2, "label", pa.array(label))
    chunks = pa.concat_tables([table.slice(0, 1), table.slice(1, 3), table.slice(4)])
    found = run(pipe(dataio.group_by("label")), chunks)
    assert [b["slots"]["label"] for b in found] == [[1, 1], [2, 2, 2], [None, None], [1], [3, 3, 3]]
    assert found == run(pipe(dataio.group_by("label")), table.to_pylist())


def test_group_by_a_missing_column() -> None:
    with pytest.raises(MissingFieldError, match="no such column"):
        run(pipe(dataio.group_by("lable")), TABLE)


def test_image_structs_of_data_sets() -> None:
    """The encoded form of image features: bytes and a path."""
    rows = [{"image": {"bytes": r["image"], "path": None}, "id": r["id"]} for r in RECORDS]
    one = dataio.pipeline(dataio.slot("image").decode_image().center_crop(h=4, w=4), dataio.batch(4))
    expected = run(one, [{"id": r["id"], "image": r["image"]} for r in RECORDS])
    assert run(one, datasets.Dataset.from_list(rows)) == expected
    assert run(one, pa.Table.from_pylist(rows), workers="process") == expected


@pytest.mark.parametrize("source", [lambda rows: rows, pa.Table.from_pylist], ids=["records", "table"])
def test_optional_slots_and_conditions(source: Any) -> None:
    rows = [{"x": npy(i), "y": npy(i) if i < 2 else None, "skip": i >= 4} for i in range(6)]
    one = dataio.pipeline(
        dataio.slot("x").decode_npy(),
        dataio.slot("y", optional=True).decode_npy(),
        dataio.slot("z", optional=True).decode_npy(),
        dataio.batch(2),
    )
    assert [sorted(b["slots"]) for b in run(one, source(rows))] == [["x", "y"], ["x"], ["x"]]
    two = dataio.pipeline(
        dataio.slot("x", optional=True).decode_npy().skip_when(cond.col("skip")),
        dataio.slot("n").passthrough(),
        dataio.batch(2),
    )
    found = run(two, source([{**r, "n": 1} for r in rows]))
    assert [sorted(b["slots"]) for b in found] == [["n", "x"], ["n", "x"], ["n"]]


@pytest.mark.parametrize("workers", ["thread", "process"])
def test_binary_values_of_object_slots_are_bytes(workers: str) -> None:
    """They were views, which cannot leave a worker process."""
    table = pa.table({"x": [npy(i) for i in range(3)], "raw": [b"a", None, b"c"], "s": [{"b": b"x"}] * 3})
    one = dataio.pipeline(
        dataio.slot("x").decode_npy(), dataio.slot("raw").passthrough(), dataio.slot("s").passthrough(), dataio.batch(3)
    )
    with one.bind(table).run("numpy", workers=workers) as loader:
        (batch,) = loader
    assert batch["raw"] == [b"a", None, b"c"]
    assert type(batch["raw"][0]) is bytes
    assert batch["s"] == [{"b": b"x"}] * 3
    assert type(batch["s"][0]["b"]) is bytes


def test_decoders_see_views_of_the_column(monkeypatch: pytest.MonkeyPatch) -> None:
    """No copy between a binary column and the decoder."""
    list(specs())
    monkeypatch.setattr(registry, "_specs", dict(registry._specs))
    column = pa.array([b"abc", b"defg"])
    buffer = np.frombuffer(column.buffers()[2], np.uint8)

    @register_op("look", kind="decoder")
    def look(data: Any) -> np.ndarray:
        return np.array(np.shares_memory(np.frombuffer(data, np.uint8), buffer))

    slot = dataio.slot("x").decode_look()  # type: ignore[attr-defined]
    (found,) = run(dataio.pipeline(slot, dataio.batch(2)), pa.table({"x": column}))
    assert found["slots"]["x"] == [True, True]


def test_a_plan_over_columns_says_what_it_reads() -> None:
    scan = list(walk(optimize(pipe().bind(TABLE).plan()).plan))[-1]
    assert isinstance(scan, Scan)
    assert scan.columns == ("id", "image", "label", "caption", "h")
    assert isinstance(as_source(TABLE), TableSource)


@pytest.mark.parametrize("kind", ["query", "data set", "table"])
def test_text_and_bytes_as_polars_stores_them_are_shuffled(tmp_path: Path, kind: str) -> None:
    """Views, of which pyarrow takes no rows by number."""
    frame = pl.DataFrame({"text": [f"a text of more than twelve letters {i}" for i in range(20)], "i": range(20)})
    dataio.write_parquet(tmp_path / "x.parquet", frame)
    sources = {
        "query": lambda: dataio.scan_parquet(tmp_path / "x.parquet"),
        "data set": lambda: dataio.scan(pads.dataset(tmp_path / "x.parquet")),
        "table": lambda: dataio.scan(frame.to_arrow(compat_level=pl.CompatLevel.newest())),
    }
    pipe = dataio.pipeline(dataio.slot("text").passthrough(), dataio.batch(4))
    with pipe.bind(dataio.records(sources[kind]()).shuffle(seed=1)).run("numpy") as loader:
        found = [text for batch in loader for text in batch["text"]]
    assert found != frame["text"].to_list()
    assert sorted(found) == sorted(frame["text"].to_list())
