"""`Query.describe`: figures of columns, against Polars'."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dataio
from dataio.look import describe as module
from dataio.look.charts import bars, histogram
from dataio.look.describe import _Numbers

from .conftest import encoded

pytestmark = pytest.mark.usefixtures("no_leftovers")

RNG = np.random.default_rng(0)
ROWS = 5000
FRAME = pl.DataFrame(
    {
        "id": range(ROWS),
        "x": RNG.normal(size=ROWS),
        "label": [None if i % 50 == 0 else i % 7 for i in range(ROWS)],
        "text": [f"name {i % 13}" for i in range(ROWS)],
        "when": [date(2020, 1, 1) + timedelta(days=i % 300) for i in range(ROWS)],
        "flag": RNG.random(ROWS) > 0.3,
        "list": [[1] * (i % 4) for i in range(ROWS)],
        "nothing": pl.Series([None] * ROWS, dtype=pl.Int64),
        "kind": pl.Series(["a", "b"] * (ROWS // 2), dtype=pl.Categorical),
    }
)


def test_numbers_are_those_of_polars() -> None:
    found = dataio.scan(FRAME).describe()
    assert found.rows == ROWS
    for name in ("id", "x", "label"):
        column, series = found[name], FRAME[name]
        assert (column.count, column.nulls) == (len(series) - series.null_count(), series.null_count())
        assert (column.low, column.high) == (series.min(), series.max())
        assert column.mean == pytest.approx(series.mean())
        assert column.std == pytest.approx(series.std())
        expected = [series.quantile(q, "linear") for q in (0.25, 0.5, 0.75)]
        assert column.quantiles == pytest.approx(expected)
        assert not column.sampled
        assert column.unique == series.drop_nulls().n_unique()


def test_other_types() -> None:
    found = dataio.scan(FRAME).describe()
    assert (found["text"].of, found["text"].unique, found["text"].least, found["text"].greatest, found["text"].high) == ("length", 13, "name 0", "name 9", 7)
    assert found["text"].top[0] == ("name 0", 385)
    assert (found["when"].least, found["when"].greatest, found["when"].unique) == ("2020-01-01", "2020-10-26", 300)
    assert found["flag"].mean == FRAME["flag"].mean()
    assert (found["list"].of, found["list"].high, found["list"].unique) == ("length", 3, None)
    assert (found["nothing"].count, found["nothing"].nulls, found["nothing"].quantiles) == (0, ROWS, None)
    assert (found["kind"].unique, found["kind"].least) == (2, "a")
    with pytest.raises(KeyError):
        found["none"]


def test_values_that_are_not_finite_are_counted_apart() -> None:
    found = dataio.scan(pl.DataFrame({"x": [1.0, float("nan"), float("inf"), 3.0, None]})).describe()["x"]
    assert (found.count, found.nulls, found.strange, found.low, found.high, found.mean) == (4, 1, 2, 1, 3, 2)


def test_to_polars() -> None:
    told = dataio.scan(FRAME).describe().to_polars()
    assert told.columns == ["column", "type", "of", "count", "nulls", "strange", "unique", "min", "q25", "median", "q75", "max", "mean", "std", "least", "greatest"]
    assert told["column"].to_list() == FRAME.columns
    assert told.filter(pl.col("column") == "nothing")["mean"].to_list() == [None]
    assert told.schema["min"] == pl.Float64


def test_as_text() -> None:
    lines = repr(dataio.scan(FRAME.select("id", "text")).describe()).splitlines()
    assert lines[1] == "5,000 rows"
    assert lines[2].split() == ["column", "type", "count", "nulls", "unique", "min", "q25", "median", "q75", "max", "mean", "std"]
    assert lines[3].split()[:2] == ["id", "Int64"]


def test_distinct_values_stop_being_counted() -> None:
    found = dataio.scan(pl.DataFrame({"n": range(module.DISTINCT + 1), "few": [1] * (module.DISTINCT + 1)})).describe()
    assert (found["n"].unique, found["n"].over, found["n"].high, found["n"].greatest) == (None, True, module.DISTINCT, str(module.DISTINCT))
    assert (found["few"].unique, found["few"].over) == (1, False)
    assert f"over {module.DISTINCT:,}" in repr(found)


def test_long_distinct_texts_stop_being_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_DISTINCT_TEXT", 1000)
    found = dataio.scan(pl.DataFrame({"text": [f"{i}" + "x" * 500 for i in range(9)]})).describe()["text"]
    assert (found.unique, found.over) == (None, True)
    assert len(found.least) < 100


def test_quantiles_of_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SAMPLE", 2000)
    values = pl.DataFrame({"x": RNG.normal(size=50_000)})
    first, second = (dataio.scan(values).describe()["x"] for _ in range(2))
    assert first.sampled
    assert first.quantiles == second.quantiles
    assert first.quantiles == pytest.approx([-0.674, 0, 0.674], abs=0.12)
    assert first.std == pytest.approx(values["x"].std())


@given(st.lists(st.lists(st.floats(-1e6, 1e6), max_size=20), max_size=8))
@settings(max_examples=60, deadline=None)
def test_numbers_in_any_batches(batches: list[list[float]]) -> None:
    numbers = _Numbers(1000)
    for batch in batches:
        numbers.add(np.array(batch))
    whole = np.array([x for batch in batches for x in batch])
    found = numbers.figures()
    assert bool(found) == bool(whole.size)
    if whole.size:
        assert found["mean"] == pytest.approx(whole.mean(), abs=1e-6)
        assert found["quantiles"] == pytest.approx(np.quantile(whole, [0.25, 0.5, 0.75]))
        if whole.size > 1:
            assert found["std"] == pytest.approx(whole.std(ddof=1), abs=1e-3)


def test_after_the_steps_of_the_query() -> None:
    found = dataio.scan(FRAME).filter("label", ">", 4).select("label").describe()
    assert [c.name for c in found.columns] == ["label"]
    assert (found["label"].low, found["label"].unique) == (5, 2)


# ------------------------------------------------------------------- images


@pytest.mark.parametrize("wrapped", [False, True])
def test_columns_of_images(wrapped: bool) -> None:
    pictures: list[Any] = [encoded(60, 80), encoded(100, 100, format="PNG"), encoded(60, 80)[:20], b"no image", None]
    column: Any = [{"bytes": p, "path": "a"} for p in pictures] if wrapped else pictures
    found = dataio.scan(pl.DataFrame({"image": column})).describe()["image"]
    assert found.broken == 2
    assert found.images is not None
    assert found.images["formats"] == {"jpeg": 1, "png": 1}
    assert (found.images["smallest"], found.images["largest"]) == ([60, 80], [100, 100])
    assert found.images["aspect"] == {"4:3": 1, "1:1": 1}
    assert found.images["short_side"] == {"32-63": 1, "64-127": 1}
    assert (found.of, found.low) == ("bytes", 8)


def test_bytes_that_are_no_images_have_no_images() -> None:
    found = dataio.scan(pl.DataFrame({"b": [b"x" * i for i in range(1, 60)]})).describe()["b"]
    assert (found.images, found.broken, found.low, found.high) == (None, 0, 1, 59)


def test_scan_files(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(encoded(60, 80))
    (tmp_path / "b.png").write_bytes(encoded(100, 100, format="PNG"))
    (tmp_path / "c.txt").write_text("notes")
    found = dataio.scan_files(tmp_path).describe()
    assert found.rows == 3
    assert found["path"].images is not None
    assert found["path"].images["formats"] == {"jpeg": 1, "png": 1}
    assert (found["width"].nulls, found["width"].high) == (1, 100)
    assert "<svg" in found._repr_html_()


# ------------------------------------------------------------------- shown


def test_page(tmp_path: Path) -> None:
    found = dataio.scan(FRAME).describe()
    found.save(tmp_path / "x.html")
    page = (tmp_path / "x.html").read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert page.count("<svg") >= 5
    assert "name 12" not in page  # only the most frequent ones are named


def test_hostile_values_stay_text() -> None:
    bad = "</svg><script>alert(1)</script>"
    found = dataio.scan(pl.DataFrame({bad: [bad, bad, "x"]})).describe()
    assert "<script" not in found._repr_html_()


def test_charts() -> None:
    assert histogram(((1, 0, 3), (0.0, 1.0, 2.0, 3.0))).count("<rect") == 3
    assert bars([("a", 2), ("b", 1)]).count("<rect") == 2


@pytest.mark.parametrize("values", [[5], [1e300, -1e300], [0.1, 0.1 + 1e-17], [5e-324, 0.0], [2**62, 2**62 + 1]])
def test_odd_ranges(values: list[Any]) -> None:
    found = dataio.scan(pl.DataFrame({"x": values})).describe()
    assert found["x"].count == len(values)
    assert "<html" not in found._repr_html_()


def test_no_rows_and_no_columns() -> None:
    assert dataio.scan(FRAME.clear()).describe().rows == 0
    assert dataio.scan(FRAME.clear()).describe()._repr_html_()
    assert repr(dataio.scan([{"a": 1}, {"a": 2}]).describe()["a"].mean) == "1.5"


def test_memory_stays_bounded(tmp_path: Path) -> None:
    """Bytes of images are looked at and let go: 400 MB of them take far less than that."""
    import resource

    schema = pa.schema([("data", pa.binary())])
    with pq.ParquetWriter(tmp_path / "x.parquet", schema, compression="none") as writer:
        for _ in range(40):
            writer.write_table(pa.table({"data": [RNG.bytes(100_000) for _ in range(100)]}, schema=schema))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = dataio.scan_parquet(tmp_path / "x.parquet").describe()
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert found["data"].mean == 100_000
    assert (after - before) / 1024 < 250
