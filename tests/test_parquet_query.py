"""`scan_parquet` and `ParquetQuery`: building, ends, what is read, what is refused, training on a query."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dataio
from dataio import ParquetQuery

pytestmark = pytest.mark.usefixtures("no_leftovers")

c = dataio.parquet.col
TABLE = pa.table(
    {
        "id": range(12),
        "h": pa.array([None if i == 5 else i % 4 for i in range(12)]),
        "name": [f"n{i}" for i in range(12)],
        "st": [{"x": i * 10} for i in range(12)],
        "t": pa.array(range(12), pa.int32()).cast(pa.time32("ms")),
    }
)


@pytest.fixture(params=["local", "bytes", "s3"])
def query(request: pytest.FixtureRequest, s3_bucket: str, tmp_path: Path) -> ParquetQuery:
    """The file as Polars scans it, as it is read by row group, and in a store."""
    path = tmp_path / "t.parquet"
    pq.write_table(TABLE, path, row_group_size=4)
    if request.param == "s3":
        uri = f"{s3_bucket}/t.parquet"
        dataio.write(uri, path.read_bytes())
        return dataio.scan_parquet(uri)
    return dataio.scan_parquet(path if request.param == "local" else path.read_bytes())


@pytest.fixture
def local(tmp_path: Path) -> ParquetQuery:
    pq.write_table(TABLE, tmp_path / "t.parquet", row_group_size=4)
    return dataio.scan_parquet(tmp_path / "t.parquet")


CASES: list[tuple[str, Callable[[ParquetQuery], ParquetQuery], list[int]]] = [
    ("all", lambda q: q, list(range(12))),
    ("condition", lambda q: q.filter(c("h") == 3), [3, 7, 11]),
    ("two-conditions", lambda q: q.where("h", ">", 1).where(c("id") > 6), [7, 10, 11]),
    ("offset-limit", lambda q: q.offset(3).limit(6), [3, 4, 5, 6, 7, 8]),
    ("each-replaces-its-own", lambda q: q.limit(3).limit(5).offset(1).offset(2), [2, 3, 4, 5, 6]),
    ("head-take-slice", lambda q: q.head().take(4).slice(9), [9, 10, 11]),
    ("cut-after-conditions", lambda q: q.where("h", "=", 1).slice(1, 1), [9]),
    ("limit-none", lambda q: q.limit(2).limit(None).where("id", "<", 3), [0, 1, 2]),
    ("limit-0", lambda q: q.limit(0), []),
    ("nothing-left", lambda q: q.where("id", ">", 99), []),
    ("row-groups", lambda q: q.row_groups([2, 0, 2]), [0, 1, 2, 3, 8, 9, 10, 11]),
    ("no-row-groups", lambda q: q.row_groups([]), []),
    ("row-groups-condition", lambda q: q.row_groups([1]).where("h", "!=", 3), [4, 5, 6]),
    ("callable", lambda q: q.filter(lambda r: r["id"] % 5 == 0), [0, 5, 10]),
    ("callables-and-condition", lambda q: q.filter(lambda r: r["id"] > 2).filter(c("h") == 1).filter(lambda r: r["id"] < 9), []),
    ("callable-then-cut", lambda q: q.filter(lambda r: r["st"]["x"] >= 30).slice(1, 2), [4, 5]),
    ("row-wise", lambda q: q.filter(c("t") >= 10), [10, 11]),
    ("nested", lambda q: q.filter(c("st.x").between(20, 40, closed="right")), [3, 4]),
    ("bare-and-not", lambda q: q.filter(~c("h")), [0, 4, 5, 8]),
]


@pytest.mark.parametrize(("build", "left"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_every_end_gives_the_same_rows(query: ParquetQuery, build: Callable[[ParquetQuery], ParquetQuery], left: list[int]) -> None:
    made = build(query)
    rows = [{"id": i, "h": TABLE["h"][i].as_py(), "name": f"n{i}", "st": {"x": i * 10}, "t": i} for i in left]
    assert made.collect() == rows
    assert made.collect_columns() == {name: [row[name] for row in rows] for name in TABLE.column_names}
    assert [i for batch in made.iter_batches() for i in batch["id"]] == left
    assert all(batch["id"] for batch in made.iter_batches())
    assert made.count() == len(left)
    assert made.to_polars()["id"].to_list() == left
    if not made._callables:  # they get the selected columns only
        assert made.select(["name", "st.x"]).collect_columns() == {"name": [f"n{i}" for i in left], "st.x": [i * 10 for i in left]}
        assert made.select([]).collect() == [{}] * len(left)


def test_arrow_ends_keep_the_types_of_the_file(query: ParquetQuery) -> None:
    made = query.where("id", ">=", 6)
    table = made.collect_arrow()
    assert table.schema.types == TABLE.schema.types
    assert table.to_pydict() == TABLE.slice(6).to_pydict()
    assert made.collect_arrow_reader().read_all().equals(table)
    assert pa.table(made.collect_arrow_stream()).equals(table)
    assert pa.ipc.open_stream(made.collect_ipc()).read_all().equals(table)
    assert pa.table(made).equals(table)
    assert made.select(["name"]).collect_arrow().schema == pa.schema([("name", pa.string())])


def test_an_arrow_stream_is_read_once(local: ParquetQuery) -> None:
    stream = local.collect_arrow_stream()
    pa.table(stream)
    with pytest.raises(RuntimeError, match="read before"):
        pa.table(stream)


def test_a_reader_that_is_dropped_early_closes_the_file(query: ParquetQuery) -> None:
    reader = query.collect_arrow_reader()
    reader.read_next_batch()
    del reader
    gc.collect()  # no_leftovers looks for the open file


@pytest.mark.parametrize("end", ["collect_arrow", "collect_arrow_reader", "collect_arrow_stream", "collect_ipc"])
@pytest.mark.parametrize("condition", [lambda r: True, ~c("name").contains("1"), c("h")])
def test_arrow_ends_take_native_conditions_only(local: ParquetQuery, end: str, condition: Any) -> None:
    with pytest.raises(TypeError, match=f"{end}.*collect\\(\\)"):
        getattr(local.filter(condition), end)()


def test_a_query_never_changes(local: ParquetQuery) -> None:
    made = local.where("h", "=", 1)
    made.select(["id"]).limit(1).filter(lambda r: False).row_groups([0])
    assert (made.count(), local.count()) == (2, 12)


def test_explain_says_what_is_read(local: ParquetQuery) -> None:
    made = local.select(["name", "id"]).filter((c("id") > 6) & ((c("h") == 3) | c("name").contains("1"))).limit(3).row_groups([2, 1])
    assert made.explain() == {
        "path": local.path,
        "columns": ["name", "id"],
        "read_columns": ["name", "id", "h"],
        "filter_columns": ["id", "h", "name"],
        "offset": 0,
        "limit": 3,
        "row_groups": [2, 1],
        "num_rows": 12,
        "num_row_groups": 3,
        "pushdown_clauses": [[("id", ">", 6)]],
        "native_filter_clauses": [[("id", ">", 6), ("h", "==", 3)], [("id", ">", 6), ("name", "contains", "1")]],
        "native_filter": True,
        "candidate_row_groups": [1, 2],
    }
    assert local.explain()["native_filter_clauses"] is None
    assert local.filter(c("h")).explain()["native_filter"] is False


@pytest.mark.parametrize(
    ("condition", "groups"),
    [
        (c("id") > 7, [2]), (c("id") >= 7, [1, 2]), (c("id") == 4, [1]), (c("id").is_in([0, 11]), [0, 2]), (c("h").is_null(), [1]), (c("id").is_null(), []),
        (c("st.x") < 40, [0]), (c("name") > "n6", [1, 2]), (c("id") != 3, [0, 1, 2]), (~c("name").contains("x"), [0, 1, 2]), (c("id") == "x", [0, 1, 2]), (c("id") < None, []),
    ],
    ids=repr,
)  # fmt: skip
def test_row_groups_are_ruled_out_by_statistics(local: ParquetQuery, condition: Any, groups: list[int]) -> None:
    assert local.filter(condition).explain()["candidate_row_groups"] == groups


def test_columns_are_read_only_for_row_groups_with_rows(local: ParquetQuery, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataio.formats.tables.parquet_file import ParquetSource

    reads: list[tuple[list[int], list[str]]] = []
    below = ParquetSource.read
    monkeypatch.setattr(ParquetSource, "read", lambda self, groups, names: reads.append((list(groups), list(names))) or below(self, groups, names))
    assert list(local.where("h", "is_null").select(["id", "name"]).iter_batches()) == [{"id": [5], "name": ["n5"]}]
    assert reads == [([1], ["h"]), ([1], ["id", "name"])]


@pytest.mark.parametrize(
    ("build", "error", "says"),
    [
        (lambda q: q.select(["nam"]), KeyError, "did you mean 'name'"),
        (lambda q: q.where("idd", ">", 1), ValueError, "did you mean 'id'"),
        (lambda q: q.where("st.z", ">", 1), ValueError, "st.z"),
        (lambda q: q.row_groups([3]), IndexError, "has 3 row groups, no number 3"),
        (lambda q: q.select(["id"]).filter(lambda r: r["h"]), KeyError, "h"),
    ],
)
def test_what_is_not_there_is_told_at_collection(query: ParquetQuery, build: Any, error: type[Exception], says: str) -> None:
    made = build(query)
    for end in (made.collect, made.count, lambda: list(made.iter_batches()), made.to_polars):
        with pytest.raises(error, match=says):
            end()


@pytest.mark.parametrize(
    ("build", "error"),
    [
        (lambda q: q.select("id"), TypeError),
        (lambda q: q.select([1]), TypeError),
        (lambda q: q.filter("id > 1"), TypeError),
        (lambda q: q.offset(-1), ValueError),
        (lambda q: q.limit(-1), ValueError),
        (lambda q: q.row_groups([-1]), ValueError),
        (lambda q: q.row_groups("1"), TypeError),
    ],
)
def test_wrong_arguments_are_told_at_once(build: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        build(dataio.scan_parquet("never opened"))


def test_a_callable_that_raises_names_the_row(query: ParquetQuery) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        query.where("h", "=", 3).filter(lambda r: 1 / (r["id"] - 7)).collect()
    assert "filter on row 7 of" in caught.value.__notes__[0]


def test_metadata_and_schema_are_those_of_the_file(query: ParquetQuery) -> None:
    assert query.limit(1).metadata()["num_rows"] == 12
    assert query.schema() == dataio.parquet.schema(query.path)
    assert [column["name"] for column in query.schema()] == TABLE.column_names


def test_the_namespace_reads_and_scans(local: ParquetQuery) -> None:
    assert dataio.parquet.read(local.path, columns=["id"], limit=2) == {"id": [0, 1]}
    assert dataio.parquet.scan(local.path).count() == 12
    assert dataio.parquet.metadata(local.path)["num_row_groups"] == 3
    assert repr(dataio.parquet) == "dataio.parquet"


# -------------------------------------------------------------------- training


@pytest.mark.parametrize(
    ("build", "left"),
    [(lambda q: q, list(range(12))), (lambda q: q.where("h", ">", 1), [2, 3, 6, 7, 10, 11]), (lambda q: q.select(["id"]).slice(2, 5), [2, 3, 4, 5, 6]), (lambda q: q.filter(lambda r: r["id"] > 9), [10, 11])],
)  # fmt: skip
@pytest.mark.usefixtures("two_workers")
def test_a_query_is_a_source_of_training(query: ParquetQuery, build: Any, left: list[int]) -> None:
    made = build(query)
    with dataio.pipeline(dataio.slot("id").passthrough(), dataio.batch(4)).bind(made).run("numpy") as loader:
        assert [int(i) for batch in loader for i in batch["id"]] == left
    assert [row["id"] for row in dataio.scan(made).select("id").collect()] == left
    assert [row["id"] for row in dataio.scan(made).limit(2, 1).collect()] == left[1:3]


def test_columns_that_polars_wrote_as_views_are_filtered(tmp_path: Path) -> None:
    frame = pl.DataFrame({"s": ["a", "b", None], "l": [["x"], [], None], "by": [b"1", b"2", b"3"], "n": [1, 2, 3]})
    dataio.write_parquet(tmp_path / "x.parquet", frame)
    for source in (tmp_path / "x.parquet", (tmp_path / "x.parquet").read_bytes()):
        query = dataio.scan_parquet(source).where("n", "!=", 2)
        assert query.collect() == frame.filter(pl.col("n") != 2).to_dicts()
        assert query.where("s", "=", "a").count() == 1


def test_polars_and_query_agree_on_a_larger_table(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frame = pl.DataFrame({"a": rng.integers(0, 50, 20_000), "b": rng.random(20_000), "s": rng.integers(0, 9, 20_000).astype(str)})
    frame.write_parquet(tmp_path / "x.parquet", row_group_size=3_000)
    expected = frame.filter((pl.col("a") > 40) & (pl.col("b") < 0.5) | (pl.col("s") == "3"))
    found = dataio.scan_parquet(tmp_path / "x.parquet").filter((c("a") > 40) & (c("b") < 0.5) | (c("s") == "3"))
    assert found.to_polars().equals(expected)
    assert pl.DataFrame(pl.from_arrow(found.collect_arrow())).equals(expected)
    assert pl.DataFrame(found.collect_columns()).equals(expected)
