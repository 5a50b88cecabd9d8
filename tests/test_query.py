"""`Query`: every method and end over every kind of source, against plain Polars; what is read; what is refused."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.dataset as pds
import pyarrow.parquet as pq
import pytest

import dataio
from dataio import Query, cond
from dataio.engine.errors import PlanError, SchemaError, SourceError
from dataio.engine.expr import Cond
from dataio.engine.source import FIRST_PASS, ColumnarSource, Pass

pytestmark = pytest.mark.usefixtures("no_leftovers")

c = dataio.parquet.col
TABLE = pa.table(
    {
        "id": pa.array(range(60), pa.int64()),
        "label": pa.array([None if i % 7 == 5 else i % 4 for i in range(60)], pa.int32()),
        "score": pa.array([None if i % 11 == 3 else i / 8 for i in range(60)]),
        "name": [f"n{i % 10}" for i in range(60)],
        "ok": [i % 3 == 0 for i in range(60)],
        "raw": [bytes([i]) for i in range(60)],
        "st": [{"x": i * 10} for i in range(60)],
    }
)
FRAME = pl.DataFrame(pl.from_arrow(TABLE))


def parquet(folder: Path) -> Path:
    pq.write_table(TABLE, folder / "t.parquet", row_group_size=16)
    return folder / "t.parquet"


KINDS: dict[str, Callable[[Path], Query]] = {
    "table": lambda tmp: dataio.scan(TABLE),
    "frame": lambda tmp: dataio.scan(FRAME),
    "lazy-frame": lambda tmp: dataio.scan(FRAME.lazy()),
    "reader-factory": lambda tmp: dataio.scan(Exporter()),
    "records": lambda tmp: dataio.scan(TABLE.to_pylist()),
    "dataset": lambda tmp: dataio.scan(pds.dataset(parquet(tmp))),
    "parquet": lambda tmp: dataio.scan_parquet(parquet(tmp)),
    "parquet-bytes": lambda tmp: dataio.scan_parquet(parquet(tmp).read_bytes()),
}


class Exporter:
    """Gives an Arrow stream each time."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return TABLE.to_reader(max_chunksize=7).__arrow_c_stream__(requested_schema)


@pytest.fixture(params=KINDS)
def query(request: pytest.FixtureRequest, tmp_path: Path) -> Query:
    return KINDS[request.param](tmp_path)


LAZY = FRAME.lazy()
WEIGHTS = pl.DataFrame({"label": [0, 1, 1, 9], "weight": [0.5, 1.0, 2.0, 9.0], "name": ["a", "b", "c", "d"]})

CASES: dict[str, tuple[Callable[[Query], Query], pl.LazyFrame]] = {
    "all": (lambda q: q, LAZY),
    "filter-cond": (lambda q: q.filter(cond.col("label").gt(1) & cond.col("score").is_not_null()), LAZY.filter(pl.col("label") > 1, pl.col("score").is_not_null())),
    "filter-column": (lambda q: q.filter(dataio.col("label")), LAZY.filter(pl.col("label") != 0)),
    "filter-col-method": (lambda q: q.filter(dataio.col("label").eq(2)), LAZY.filter(pl.col("label") == 2)),
    "filter-parquet-col": (lambda q: q.filter(c("name").starts_with("n3") | (c("id") < 4)), LAZY.filter(pl.col("name").str.starts_with("n3") | (pl.col("id") < 4))),
    "filter-struct-field": (lambda q: q.filter(c("st.x") >= 300), LAZY.filter(pl.col("st").struct.field("x") >= 300)),
    "filter-bytes": (lambda q: q.filter(c("raw") == b"\x07"), LAZY.filter(pl.col("raw") == b"\x07")),
    "filter-polars": (lambda q: q.filter((pl.col("score") > 2) & pl.col("name").str.ends_with("1")), LAZY.filter((pl.col("score") > 2) & pl.col("name").str.ends_with("1"))),
    "filter-polars-window": (lambda q: q.filter(pl.col("score") > pl.col("score").mean()), LAZY.filter(pl.col("score") > pl.col("score").mean())),
    "filter-callable": (lambda q: q.filter(lambda row: row["id"] % 5 == 1), LAZY.filter(pl.col("id") % 5 == 1)),
    "filters": (
        lambda q: q.where("label", "=", 1).filter(lambda row: row["label"] == 1 and row["id"] > 9).where(pl.col("id") < 40),
        LAZY.filter(pl.col("label") == 1, pl.col("id") > 9, pl.col("id") < 40),
    ),
    "filter-callable-limit": (lambda q: q.filter(lambda row: row["ok"]).sort("id").limit(4, 2), LAZY.filter("ok").slice(2, 4)),
    "select": (lambda q: q.sort("id").select("name", "id"), LAZY.select("name", "id")),
    "select-list": (lambda q: q.sort("id").select(["name", "id", "name"]), LAZY.select("name", "id")),
    "select-expressions": (lambda q: q.sort("id").select("id", (pl.col("score") * 2).alias("s2")), LAZY.select("id", (pl.col("score") * 2).alias("s2"))),
    "with-columns": (
        lambda q: q.with_columns(pl.col("score").fill_null(0), one=1, yes=True, root=pl.col("id").sqrt()),
        LAZY.with_columns(pl.col("score").fill_null(0), one=1, yes=True, root=pl.col("id").sqrt()),
    ),
    "with-columns-filter": (
        lambda q: q.with_columns(d=pl.col("id") * 2).filter(cond.col("d").gt(100)).select("d", "name"),
        LAZY.with_columns(d=pl.col("id") * 2).filter(pl.col("d") > 100).select("d", "name"),
    ),
    "sort": (
        lambda q: q.sort("label", pl.col("score") % 2, descending=[True, False], nulls_last=True),
        LAZY.sort("label", pl.col("score") % 2, descending=[True, False], nulls_last=True, maintain_order=True),
    ),
    "unique": (lambda q: q.unique("name").select("id", "name"), LAZY.unique("name", keep="first", maintain_order=True).select("id", "name")),
    "unique-last": (lambda q: q.unique("name", keep="last"), LAZY.unique("name", keep="last", maintain_order=True)),
    "unique-rows": (lambda q: q.sort("id").select("label", "ok").unique(), LAZY.select("label", "ok").unique(keep="first", maintain_order=True)),
    "group-by": (
        lambda q: q.group_by("label").agg(pl.len(), pl.col("score").sum(), last=pl.col("id").last()),
        LAZY.group_by("label", maintain_order=True).agg(pl.len(), pl.col("score").sum(), pl.col("id").last().alias("last")),
    ),
    "group-by-expression": (
        lambda q: q.filter(c("id") < 30).group_by(pl.col("id") // 10, "ok").agg(pl.col("id").count().alias("n")).sort("n"),
        LAZY.filter(pl.col("id") < 30).group_by(pl.col("id") // 10, "ok", maintain_order=True).agg(pl.col("id").count().alias("n")).sort("n", maintain_order=True),
    ),
    "join": (lambda q: q.join(WEIGHTS, on="label").select("id", "weight", "name_right"), LAZY.join(WEIGHTS.lazy(), on="label", maintain_order="left_right").select("id", "weight", "name_right")),
    "join-left": (
        lambda q: q.join(dataio.scan(WEIGHTS.to_arrow()).select("label", "weight"), on=["label"], how="left"),
        LAZY.join(WEIGHTS.lazy().select("label", "weight"), on="label", how="left", maintain_order="left_right"),
    ),
    "join-on-both": (
        lambda q: q.join(q.sort("id").select("id", "name"), left_on=pl.col("id"), right_on=pl.col("id") + 1, how="inner", suffix="_before").limit(5),
        LAZY.join(LAZY.select("id", "name"), left_on="id", right_on=pl.col("id") + 1, suffix="_before", maintain_order="left_right").head(5),
    ),
    "join-anti": (lambda q: q.join(WEIGHTS, on="label", how="anti"), LAZY.join(WEIGHTS.lazy(), on="label", how="anti", maintain_order="left")),
    "join-cross": (
        lambda q: q.sort("id").select("id").limit(3).join(WEIGHTS, how="cross"),
        LAZY.select("id").head(3).join(WEIGHTS.lazy(), how="cross", maintain_order="left_right"),
    ),
    "limit": (lambda q: q.sort("id").limit(5, 3), LAZY.slice(3, 5)),
    "head": (lambda q: q.sort("id").head(), LAZY.head(5)),
    "take-offset-slice": (lambda q: q.sort("id").take(50).offset(10).slice(2, 7), LAZY.slice(12, 7)),
    "limit-then-filter": (lambda q: q.sort("id").limit(20).filter(c("id") >= 15), LAZY.head(20).filter(pl.col("id") >= 15)),
    "empty": (lambda q: q.filter(c("id") < 0), LAZY.filter(pl.col("id") < 0)),
    "limit-0": (lambda q: q.sort("id").limit(0), LAZY.head(0)),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_every_method_gives_what_polars_gives(case: str, query: Query) -> None:
    made, expected = CASES[case][0](query), CASES[case][1].collect()
    found = made.to_polars()
    assert found.to_dicts() == expected.to_dicts()
    assert found.columns == expected.columns
    if not isinstance(made, dataio.ParquetQuery):  # whose ends have forms of their own
        assert made.collect() == list(made) == expected.to_dicts()
        assert made.collect_columns() == expected.to_dict(as_series=False)
        assert [v for part in made.iter_batches(7) for v in zip(*part.values(), strict=True)] == expected.rows()
        assert made.count() == expected.height
        assert made.schema().names == expected.columns
    if not isinstance(made, dataio.ParquetQuery) or not made._callables:
        table = made.collect_arrow()
        assert table.to_pylist() == expected.to_dicts()
        assert pa.table(made).equals(table)
        assert pa.ipc.open_stream(made.collect_ipc()).read_all().equals(table)
        assert pa.RecordBatchReader.from_stream(made.collect_arrow_stream()).read_all().equals(table)
        if not isinstance(made, dataio.ParquetQuery):
            assert table.schema.equals(made.schema())


def test_a_query_is_a_value_and_can_be_collected_again(tmp_path: Path) -> None:
    first = dataio.scan(FRAME)
    for method in (lambda q: q.filter(pl.col("id") > 3), lambda q: q.with_columns(x=1), lambda q: q.sort("id"), lambda q: q.join(WEIGHTS.to_arrow(), on="label")):
        made, before = method(first), first.plan
        assert made is not first
        assert first.plan is before
        assert made.collect() == made.collect() != []
        assert hash(made) == hash(made)
    assert first.filter(pl.col("id") > 3).sort("id") == first.filter(pl.col("id") > 3).sort("id")
    assert first.filter(pl.col("id") > 3) != first.filter(pl.col("id") > 4)
    assert first.sample(3) != first.sample(3, seed=1)
    query = dataio.scan_parquet(parquet(tmp_path)).with_columns(x=1)
    assert query.collect() == query.collect()


def test_a_stream_is_read_once_and_says_so() -> None:
    query = dataio.scan(TABLE.to_reader()).with_columns(x=1)
    assert query.count() == 60
    with pytest.raises(SourceError, match="was read in an earlier epoch"):
        query.collect()


def test_rows_of_a_source_of_records_stay_what_they_are() -> None:
    records: list[Any] = [{"a": 1, "any": object()}, {"a": 2}, {"a": None}]
    query = dataio.scan(records)
    assert query.filter(cond.col("a").gt(1)).collect() == [{"a": 2}]
    assert query.collect()[0] is records[0]
    assert query.columns() is None
    assert query.limit(2).count() == 2
    with pytest.raises(SchemaError, match="field 'any' has no Arrow type"):
        query.sort("a").collect()
    assert dataio.scan([{"a": 1}, {"a": 2}, {}]).sort("a", descending=True, nulls_last=True).collect() == [{"a": 2}, {"a": 1}, {"a": None}]


def test_records_that_do_not_fit_their_columns_are_named() -> None:
    rows = dataio.scan([*({"a": i} for i in range(2000)), {"a": "x"}]).sort("a")
    with pytest.raises(SchemaError, match="field 'a' of record 2000 is no int64"):
        rows.collect()
    with pytest.raises(SchemaError, match="record 1 is a int; columns are made of dicts"):
        dataio.scan([{"a": 1}, 5]).sort("a").collect()
    with pytest.raises(SchemaError, match=r"sort.*unable to find column .b."):
        dataio.scan([{"a": 1}]).sort("b").collect()


# ---------------------------------------------------------------------------------------------------------------- sample


def test_sample() -> None:
    query = dataio.scan(FRAME)
    drawn = query.sample(10).collect_columns()["id"]
    assert len(drawn) == 10
    assert drawn == sorted(set(drawn))
    assert drawn == query.sample(10).collect_columns()["id"]
    assert drawn != query.sample(10, seed=1).collect_columns()["id"]
    assert query.sample(100).count() == len(query.sample(100).collect()) == 60
    assert query.sample(0).collect() == [] == query.sample(fraction=0).collect()
    assert query.sample(fraction=1).count() == 60


def test_a_sample_is_uniform() -> None:
    numbers = dataio.scan(pl.DataFrame({"id": range(4000)}))
    found = [numbers.sample(fraction=0.25, seed=seed).count() for seed in range(20)]
    assert all(850 < n < 1150 for n in found)
    assert len(set(found)) > 5
    hits = pl.concat([numbers.sample(400, seed=seed).to_polars() for seed in range(100)]).group_by("id").len()["len"]
    assert hits.sum() == 40_000
    assert hits.max() < 28
    assert abs(hits.var() - 9) < 1


def test_the_rows_that_a_seed_draws_are_pinned() -> None:  # they must not change with Polars: a training set may hang on them
    assert dataio.scan(FRAME).sample(5, seed=7).collect_columns()["id"] == PINNED


PINNED = [3, 8, 16, 47, 57]

# ------------------------------------------------------------------------------------------------------- what is read


class Watched(ColumnarSource):
    """A table that notes what is asked of it."""

    def __init__(self, rows: int = 100_000) -> None:
        self.asked: list[tuple[Any, int | None]] = []
        self.batches = 0
        self._rows = rows

    def describe(self) -> str:
        return "watched"

    def length(self) -> int | None:
        return None

    def schema(self) -> pa.Schema:
        return pa.schema([("big", pa.string()), ("n", pa.int64()), ("m", pa.int8())])

    def record_batches(
        self, *, columns: tuple[str, ...] | None, predicate: Cond | None, limit: int | None, offset: int = 0, pass_: Pass = FIRST_PASS
    ) -> Iterator[pa.RecordBatch]:
        from dataio.engine.relational import batch_query, needed

        self.asked.append((columns, limit))
        read = needed(columns, predicate) or self.schema().names

        def batches() -> Iterator[pa.RecordBatch]:
            for start in range(0, self._rows, 1000):
                self.batches += 1
                numbers = range(start, start + 1000)
                full = {"big": [str(n) for n in numbers], "n": numbers, "m": [n % 100 for n in numbers]}
                yield pa.RecordBatch.from_pydict({name: full[name] for name in read}, schema=pa.schema([self.schema().field(n) for n in read]))

        return batch_query(batches(), columns, predicate, offset, limit)


def read_by(act: Callable[[Query], Any]) -> tuple[Any, Watched]:
    source = Watched()
    return act(dataio.scan(source)), source


def test_only_needed_columns_are_read() -> None:
    found, source = read_by(lambda q: q.with_columns(double=pl.col("n") * 2).filter(pl.col("m") == 7).select("double").to_polars())
    assert found.height == 1000
    assert set(source.asked[-1][0]) == {"n", "m"}
    found, source = read_by(lambda q: q.filter(c("m") == 7).count())
    assert found == 1000
    assert source.asked[-1][0] == ("m",)
    found, source = read_by(lambda q: q.with_columns(x=pl.col("big") + "!").count())
    assert found == 100_000
    assert source.asked[-1][0] == ("m",)
    found, source = read_by(lambda q: q.sample(fraction=0.5).count())
    assert 49_000 < found < 51_000
    assert len(source.asked[-1][0]) == 1  # of Polars' choice, as the rows are numbered, then drawn


def test_reading_ends_at_the_limit() -> None:
    found, source = read_by(lambda q: q.limit(3).to_polars())
    assert found.height == 3
    assert source.asked[-1][1] == 3
    assert source.batches <= 2
    found, source = read_by(lambda q: q.with_columns(x=pl.col("n") + 1).head(3).collect())
    assert found[2]["x"] == 3
    assert source.asked[-1][1] == 3
    seen: list[int] = []
    found, source = read_by(lambda q: q.filter(lambda row: seen.append(row["n"]) or True).head(3).collect())
    assert len(found) == 3
    assert source.batches < 30
    assert len(seen) < 30_000


def test_a_query_that_is_left_stops_reading() -> None:
    rows = iter(dataio.scan(source := Watched(10_000_000)).with_columns(x=1))
    assert next(rows)["n"] == 0
    rows.close()  # type: ignore[attr-defined]
    reader = dataio.scan(source).with_columns(x=1).collect_arrow_reader()
    assert reader.read_next_batch().num_rows > 0
    reader.close()
    assert source.batches < 5000


def test_the_number_of_rows_of_a_file_is_taken_from_its_footer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    query = Query(dataio.scan_parquet(parquet(tmp_path)).plan)
    monkeypatch.setattr(Query, "to_lazy", lambda self: pytest.fail("rows were read"))
    assert query.count() == 60 == query.metadata()["num_rows"]
    assert query.limit(50, 20).count() == 40
    assert query.with_columns(x=1).sort("id").select("x").sample(7).count() == 7
    assert dataio.scan(TABLE).limit(8, 3).count() == 8


def test_conditions_and_columns_reach_the_scan_of_a_file(tmp_path: Path) -> None:
    text = dataio.scan_parquet(parquet(tmp_path)).with_columns(x=pl.col("score") * 2).filter(cond.col("id").gt(5)).select("x").explain()
    assert "Relation with_columns" in text.split("Rules that fired")[0]
    below = text.split("Polars query")[1]
    assert "PROJECT 2/7 COLUMNS" in below
    assert 'SELECTION: ((col("id") > 5))' in below
    assert "Parquet SCAN" in below


def test_row_groups(tmp_path: Path) -> None:
    query = Query(dataio.scan_parquet(parquet(tmp_path)).plan)
    assert query.row_groups([3, 1, 3]).select("id").collect_columns()["id"] == [*range(16, 32), *range(48, 60)]
    assert query.filter(c("id") >= 20).row_groups([1]).count() == 12
    assert query.row_groups([]).count() == 0
    assert query.row_groups([1, 2]).row_groups([2]).count() == 16
    with pytest.raises(IndexError, match="has 4 row groups, no number 9"):
        query.row_groups([9])
    with pytest.raises(TypeError, match="sequence of numbers"):
        query.row_groups("1")  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="files with row groups, not for arrow table"):
        dataio.scan(TABLE).row_groups([0])


def test_metadata_and_schema() -> None:
    query = dataio.scan(TABLE).select("id", "name").filter(c("id") > 3)
    assert query.metadata() == {
        "source": "arrow table: 60 rows, columns id, label, score, name, ok, raw, st",
        "num_rows": None,
        "columns": [{"name": "id", "type_label": "int64", "nullable": True}, {"name": "name", "type_label": "utf8", "nullable": True}],
    }
    assert query.schema() == pa.schema([("id", pa.int64()), ("name", pa.string())])
    assert query.columns() == ["id", "name"]
    with_type = dataio.scan(TABLE).group_by("label").agg(pl.col("score").mean())
    assert with_type.schema() == pa.schema([("label", pa.int32()), ("score", pa.float64())])


def test_a_scan_keeps_the_types_of_its_source() -> None:
    kind = pa.fixed_shape_tensor(pa.uint8(), [2, 2])
    tensors = pa.ExtensionArray.from_storage(kind, pa.array([[1, 2, 3, 4]] * 3, pa.list_(pa.uint8(), 4)))
    table = pa.table({"t": tensors, "d": pa.array(["a", "b", "a"]).dictionary_encode(), "n": [1, 2, 3]})
    query = dataio.scan(table).filter(c("n") > 1)
    assert query.collect_arrow().schema == table.schema
    assert query.with_columns(x=1).collect_arrow().schema.field("t").type == kind
    assert query.filter(c("d") == "a").count() == 1


def test_a_query_joins_and_scans_like_any_source() -> None:
    query = dataio.scan(TABLE).sort("id", descending=True).select("id")
    assert dataio.scan(query).limit(2).collect() == [{"id": 59}, {"id": 58}]
    pipe = dataio.pipeline(dataio.slot("id").passthrough(), dataio.batch(4))
    with pipe.bind(query).run("numpy") as loader:
        assert next(iter(loader))["id"] == [59, 58, 57, 56]


# ---------------------------------------------------------------------------------------------------------- conditions

VALUES = pa.table(
    {
        "day": pa.array([dt.date(1970, 1, 1 + i) for i in range(4)]),
        "at": pa.array([i * 1000 for i in range(4)], pa.int64()).cast(pa.timestamp("ms")),
        "price": pa.array([Decimal(i) / 4 for i in range(4)], pa.decimal128(9, 2)),
        "bin": [b"a", b"bc", None, b""],
        "tags": [["a"], [], None, ["b"]],
        "kind": pa.array(["x", "y", None, "x"]).dictionary_encode(),
        "s.t": ["dot", "dot", "no", "no"],  # of records, dots always mean fields
    }
)


@pytest.mark.parametrize("form", ["table", "records"])
@pytest.mark.parametrize(
    ("condition", "rows"),
    [
        (c("day") >= 2, [2, 3]),
        (c("price") == "0.50", [2]),
        (c("price") != "0.50", [0, 1, 3]),
        (c("bin") == "bc", [1]),
        (c("bin").contains(b"b"), [1]),
        (c("bin") != b"a", [1, 2, 3]),
        (c("kind") == "x", [0, 3]),
        (~(c("kind") == "x"), [1, 2]),
        (~c("kind").contains("x"), [1, 2]),
        (c("kind").is_not_in(["x"]), [1, 2]),
        (c("tags"), [0, 3]),
        (c("tags").is_null(), [2]),
        (c("s.t") == "dot", [0, 1]),
        (c("bin"), [0, 1]),
    ],
)
def test_conditions_on_columns_mean_the_same_everywhere(form: str, condition: Any, rows: list[int]) -> None:
    table = VALUES.append_column("i", pa.array(range(4)))
    if form == "records" and "s.t" in condition.columns():
        table = table.append_column("s", [[{"t": v} for v in table["s.t"].to_pylist()]]).drop(["s.t"])
    query = dataio.scan(table if form == "table" else table.to_pylist())
    expected = [{"i": i} for i in rows]
    assert query.filter(condition).select("i").collect() == expected  # pushed into the scan
    assert query.limit(4).filter(condition).select("i").collect() == expected  # on its own
    assert query.sort("i").filter(condition).select("i").collect() == expected  # in Polars


def test_times_are_compared_in_the_unit_of_the_column() -> None:
    assert dataio.scan(VALUES).filter(c("at") >= 2000).count() == 2
    assert dataio.scan(VALUES).limit(4).filter(c("at") >= 2000).count() == 2


OPS = {
    "=": [2], "==": [2], "eq": [2], "!=": [0, 1, 3, 4], "<>": [0, 1, 3, 4], "ne": [0, 1, 3, 4], "<": [0, 1], "lt": [0, 1], "<=": [0, 1, 2], "le": [0, 1, 2],
    ">": [3], "gt": [3], ">=": [2, 3], "ge": [2, 3],
}  # fmt: skip


@pytest.mark.parametrize("op", OPS)
def test_ops_that_compare(op: str) -> None:
    query = dataio.scan(pa.table({"i": range(5), "v": [0, 1, 2, 3, None]}))
    assert query.where("v", op.upper(), 2).collect_columns()["i"] == OPS[op]


@pytest.mark.parametrize(
    ("op", "value", "rows"),
    [
        ("is_null", None, [3]), ("is not null", None, [0, 1, 2]), ("contains", "b", [0, 1]), ("starts-with", "ab", [0]), ("ends_with", "c", [0, 2]),
        ("in", ["abc", "cc"], [0, 2]), ("is_in", ["b"], [1]), ("isin", ["b", None], [1, 3]), ("not_in", ["b"], [0, 2, 3]), ("is_not_in", ["b", None], [0, 2]),
        ("notin", ["abc"], [1, 2, 3]), ("between", ("b", "cc"), [1, 2]), ("is_between", ["abc", "b"], [0, 1]),
    ],
)  # fmt: skip
def test_other_ops(op: str, value: Any, rows: list[int]) -> None:
    query = dataio.scan(pa.table({"i": range(4), "v": ["abc", "b", "cc", None]}))
    assert query.filter("v", op, value).collect_columns()["i"] == rows
    assert dataio.scan(query.collect()).filter("v", op, value).select("i").collect() == [{"i": i} for i in rows]


# ------------------------------------------------------------------------------------------------------------ bad input

UNKNOWN: dict[str, Callable[[Query], Any]] = {
    "cond": lambda q: q.filter(cond.col("lable").gt(1)),
    "column-condition": lambda q: q.where("lable", "=", 1),
    "polars": lambda q: q.filter(pl.col("lable") > 1),
    "select": lambda q: q.select("id", "lable"),
    "select-expression": lambda q: q.select("id", pl.col("lable") + 1),
    "with-columns": lambda q: q.with_columns(x=pl.col("lable")),
    "sort": lambda q: q.sort("lable"),
    "unique": lambda q: q.unique("lable"),
    "group-by": lambda q: q.group_by("lable"),
    "agg": lambda q: q.group_by("id").agg(pl.col("lable").sum()),
    "join": lambda q: q.join(WEIGHTS, on="lable"),
    "join-left": lambda q: q.join(WEIGHTS, left_on="lable", right_on="label"),
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_an_unknown_column_is_told_at_once_with_the_nearest_one(case: str) -> None:
    with pytest.raises(SchemaError, match=r"'lable'.*did you mean 'label'\?.*it has: id, label"):
        UNKNOWN[case](dataio.scan(TABLE))


MISMATCHES: dict[str, tuple[Callable[[Query], Any], str]] = {
    "cond-text": (lambda q: q.filter(cond.col("label").gt("x")), r"column 'label', which is int32, with 'x' \(str\)"),
    "cond-number": (lambda q: q.filter(cond.col("id").lt(9) & ~cond.col("name").eq(3)), r"column 'name', which is string, with 3 \(int\)"),
    "cond-in": (lambda q: q.filter(cond.col("ok").is_in([1])), r"column 'ok', which is bool, with 1 \(int\)"),
    "op": (lambda q: q.where("score", "between", (1, "2")), r"column 'score', which is double, with '2' \(str\)"),
    "contains": (lambda q: q.where("score", "contains", "2"), r"column 'score', which is double, with '2' \(str\)"),
    "struct": (lambda q: q.where("st", "=", 1), r"column 'st', which is struct<x: int64>, with 1 \(int\).*null tests only"),
    "field": (lambda q: q.where("st.x", "=", "a"), r"column 'st.x', which is int64, with 'a' \(str\)"),
    "polars": (lambda q: q.filter(pl.col("name") > 3), r"col\(\"name\"\)\) > \(dyn int: 3\).*cannot compare string.*'name' is string"),
    "polars-no-bool": (lambda q: q.filter(pl.col("id") + 1), r"must be of type `Boolean`"),
    "expression": (lambda q: q.with_columns(x=pl.col("name").dt.year()), r"`year` operation not supported for dtype `str`"),
    "join": (lambda q: q.join(WEIGHTS, left_on="name", right_on="label"), r"join.*datatypes of join keys don't match"),
}


@pytest.mark.parametrize("case", MISMATCHES)
def test_a_type_that_does_not_fit_is_told_at_once(case: str) -> None:
    act, message = MISMATCHES[case]
    with pytest.raises(SchemaError, match=message):
        act(dataio.scan(TABLE))


def test_a_condition_that_can_hold_for_nothing_stays_one_on_parquet(tmp_path: Path) -> None:  # as its specification has it
    assert dataio.scan_parquet(parquet(tmp_path)).where("label", "=", "x").count() == 0


@pytest.mark.parametrize("kind", [k for k in KINDS if k != "records"])
def test_a_callable_that_raises_names_the_row(kind: str, tmp_path: Path) -> None:
    def test(row: dict[str, Any]) -> bool:
        return 10 / (row["id"] - 37) > 0

    with pytest.raises(ZeroDivisionError) as info:
        KINDS[kind](tmp_path).filter(test).collect()
    assert "row 37" in "".join(info.value.__notes__)


def test_a_callable_that_raises_behind_other_steps_names_its_row() -> None:
    with pytest.raises(ZeroDivisionError) as info:
        dataio.scan(TABLE).filter(c("id") >= 30).with_columns(x=1).filter(lambda row: 1 / (row["id"] - 37)).count()
    assert any("on row 7" in note for note in info.value.__notes__)
    with pytest.raises(ZeroDivisionError) as info:
        dataio.scan([{"a": 1}, {"a": 0}]).filter(lambda row: 1 / row["a"]).collect()
    assert "filter on the record {'a': 0}" in info.value.__notes__


class OddError(Exception):
    """One whose class cannot be called with its text."""

    def __init__(self, *, row: int) -> None:
        super().__init__("odd")
        self.row = row


def test_an_error_comes_out_as_it_is() -> None:
    def test(row: dict[str, Any]) -> bool:
        raise OddError(row=row["id"])

    for act in (Query.collect, Query.to_polars, Query.count, Query.collect_arrow, lambda q: list(q.iter_batches())):
        with pytest.raises(OddError) as info:
            act(dataio.scan(TABLE).filter(test))
        assert info.value.row == 0


WRONG: dict[str, Callable[[Query], Any]] = {
    "filter-name": lambda q: q.filter("label"),
    "filter-bool": lambda q: q.filter(True),
    "filter-none": lambda q: q.filter(None),
    "filter-type": lambda q: q.filter(int),
    "filter-two": lambda q: q.filter(cond.col("id"), "=", 1),
    "filter-literal": lambda q: q.filter("id", "=", [1]),
    "where-name": lambda q: q.where("label"),
    "where-op": lambda q: q.where("label", 3, 4),
    "where-value": lambda q: q.where("day", ">", dt.date(2020, 1, 1)),
    "select-number": lambda q: q.select(1),
    "select-none": lambda q: q.select(None),
    "with-columns-name": lambda q: q.with_columns("label"),
    "with-columns-text": lambda q: q.with_columns(x="label"),
    "with-columns-list": lambda q: q.with_columns(x=[1]),
    "with-columns-nothing": lambda q: q.with_columns(),
    "sort-number": lambda q: q.sort(1),
    "sort-nothing": lambda q: q.sort(),
    "sort-descending": lambda q: q.sort("id", descending="yes"),
    "sample-nothing": lambda q: q.sample(),
    "sample-both": lambda q: q.sample(1, fraction=0.5),
    "sample-float": lambda q: q.sample(1.5),
    "sample-bool": lambda q: q.sample(True),
    "sample-text": lambda q: q.sample(fraction="half"),
    "sample-seed": lambda q: q.sample(1, seed="a"),
    "unique-number": lambda q: q.unique(1),
    "group-by-nothing": lambda q: q.group_by(),
    "group-by-number": lambda q: q.group_by(1),
    "agg-name": lambda q: q.group_by("id").agg("label"),
    "agg-value": lambda q: q.group_by("id").agg(x=1),
    "join-path": lambda q: q.join("other.parquet", on="id"),
    "join-no-keys": lambda q: q.join(WEIGHTS),
    "join-half-keys": lambda q: q.join(WEIGHTS, left_on="label"),
    "join-cross-keys": lambda q: q.join(WEIGHTS, on="label", how="cross"),
    "join-number": lambda q: q.join(WEIGHTS, on=1),
    "join-suffix": lambda q: q.join(WEIGHTS, on="label", suffix=1),
    "limit-text": lambda q: q.limit("3"),
    "limit-float": lambda q: q.limit(3.0),
    "head-none": lambda q: q.offset(None),
    "iter-batches": lambda q: q.iter_batches("8"),
    "row-groups": lambda q: q.row_groups(1),
}
WRONG_VALUES: dict[str, Callable[[Query], Any]] = {
    "filter-op": lambda q: q.filter("id", "like", 1),
    "between": lambda q: q.filter("id", "between", [1]),
    "sort-flags": lambda q: q.sort("id", "label", descending=[True]),
    "sample-n": lambda q: q.sample(-1),
    "sample-fraction": lambda q: q.sample(fraction=1.5),
    "sample-nan": lambda q: q.sample(fraction=float("nan")),
    "unique-keep": lambda q: q.unique(keep="best"),
    "join-how": lambda q: q.join(WEIGHTS, on="label", how="outer"),
    "limit": lambda q: q.limit(-1),
    "offset": lambda q: q.offset(-1),
    "slice": lambda q: q.slice(0, -1),
    "iter-batches": lambda q: q.iter_batches(0),
    "row-groups": lambda q: q.row_groups([-1]),
}


@pytest.mark.parametrize("kind", ["table", "parquet", "records"])
@pytest.mark.parametrize("case", WRONG)
def test_arguments_of_another_type_are_refused(case: str, kind: str, tmp_path: Path) -> None:
    if kind == "parquet" and case in ("filter-type", "select-none"):
        pytest.skip("a class is a callable there, and None all columns")
    with pytest.raises(TypeError):
        WRONG[case](KINDS[kind](tmp_path))


@pytest.mark.parametrize("case", WRONG_VALUES)
def test_values_out_of_range_are_refused(case: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        WRONG_VALUES[case](dataio.scan(TABLE))


def test_a_bare_string_is_no_list_of_columns_on_parquet(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        dataio.scan_parquet(parquet(tmp_path)).select("id")  # type: ignore[arg-type]


def test_a_file_that_is_gone_is_the_error_that_it_is(tmp_path: Path) -> None:
    path = parquet(tmp_path)
    query = dataio.scan_parquet(path).with_columns(x=1)
    path.unlink()
    for act in (Query.collect, Query.to_polars, Query.count, Query.collect_arrow):
        with pytest.raises(FileNotFoundError):
            act(query)
