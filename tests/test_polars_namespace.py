"""`dataio.polars`: ops as Polars expressions give what the pipeline gives."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import dataio
import dataio.polars
from dataio.engine.errors import BatchError, PlanError, SchemaError
from dataio.engine.registry import slot_methods

from .conftest import encoded, npy

pytestmark = pytest.mark.usefixtures("two_workers", "no_leftovers")

FILES = [encoded(10 + i % 4, 12 + i % 3, seed=i) for i in range(30)]
FRAME = pl.DataFrame({"number": range(30), "image": FILES})


def dio(expr: pl.Expr) -> Any:
    return expr.dio  # type: ignore[attr-defined]


def image() -> Any:
    return dio(pl.col("image"))


def delivered(slot: Any, files: list[bytes] = FILES) -> list[Any]:
    with dataio.pipeline(slot, dataio.batch(7)).bind([{slot.output: file} for file in files]).run("numpy", seed=0) as loader:
        return [row for batch in loader for row in batch[slot.output]]


def arrays(series: pl.Series) -> list[np.ndarray]:
    column = series.to_arrow()
    if isinstance(column, pa.FixedShapeTensorArray):
        return list(column.to_numpy_ndarray())
    if pa.types.is_struct(column.type):
        return [np.array(value["data"]).reshape(value["shape"]) for value in column.to_pylist()]
    return [np.asarray(value) for value in column.to_pylist()]


@pytest.mark.parametrize("engine", ["in-memory", "streaming"])
@pytest.mark.parametrize("chain", ["resized", "ragged", "number"])
def test_values_are_those_of_the_pipeline(chain, engine):
    expr, slot = image().decode_image(), dataio.slot("image").decode_image()
    if chain == "resized":
        expr, slot = dio(dio(expr).resize(h=4, w=6)).hflip(prob=1.0), slot.resize(h=4, w=6).hflip(prob=1.0)
    elif chain == "number":
        expr, slot = dio(expr).sharpness(), slot.sharpness()
    found = FRAME.lazy().with_columns(expr.alias("made")).collect(engine=engine)
    assert found.columns == ["number", "image", "made"]
    for value, expected in zip(arrays(found["made"]), delivered(slot), strict=True):
        np.testing.assert_array_equal(value, expected)


def test_the_type_is_known_before_it_runs():
    lazy = FRAME.lazy().select(dio(image().decode_image()).resize(h=4, w=6), m=dio(image().decode_image()).mean())
    schema = lazy.collect_schema()
    assert schema["m"] == pl.Float64
    assert lazy.collect().schema == schema
    assert lazy.collect().to_arrow().schema.field("image").type == pa.fixed_shape_tensor(pa.uint8(), [4, 6, 3])


def test_a_chain_is_one_column():
    """What is between two ops is no column of the query."""
    expr = dio(dio(image().decode_image()).resize(h=4, w=6)).mean()
    assert str(expr).count("map") <= 1
    assert str(FRAME.lazy().select(expr).explain()).count("python") <= 1


def test_every_op_is_there():
    assert set(slot_methods()) <= set(dir(image()))
    for name, spec in slot_methods().items():
        assert inspect.signature(getattr(image(), name)) is not None, spec.name


def test_it_may_stand_anywhere_in_a_query():
    brightness = dio(image().decode_image(mode="gray")).mean()
    expected = delivered(dataio.slot("image").decode_image(mode="gray").mean())
    found = FRAME.lazy().filter(brightness < 120).select("number").collect()["number"].to_list()
    assert found == [i for i, value in enumerate(expected) if value < 120]
    grouped = FRAME.group_by(pl.col("number") % 3, maintain_order=True).agg(brightness.max().alias("most"))
    np.testing.assert_allclose(grouped["most"], [max(expected[i::3]) for i in range(3)])
    np.testing.assert_allclose(dataio.scan(FRAME).with_columns(b=brightness).to_polars()["b"], expected)


def test_arguments_from_other_columns():
    frame = FRAME.with_columns(h=pl.col("number") + 3, value=pl.lit(5))
    found = frame.select(dio(image().decode_image()).resize(h=dataio.col("h"), w=dataio.col("value")), "h")
    assert found.columns == ["image", "h"]
    assert [value.shape for value in arrays(found["image"])] == [(i + 3, 5, 3) for i in range(30)]


def test_failures_are_null_and_told(caplog):
    frame = pl.DataFrame({"image": [FILES[0], b"broken", None, FILES[3]]})
    made = dio(image().decode_image()).mean()
    assert frame.select(made)["image"].is_null().to_list() == [False, True, True, False]
    (record,) = [r for r in caplog.records if r.name == "dataio.rows"]
    assert "1 of 4 rows failed" in record.message
    with pytest.raises((BatchError, pl.exceptions.ComputeError), match="slot 'image'"):
        frame.select(dio(made).on_failure("raise"))
    with pytest.raises(ValueError, match="on_failure must be"):
        dio(made).on_failure("skip")


def test_random_ops_draw_by_row():
    expr = dio(image().decode_image()).random_crop(h=5, w=5)
    runs = [arrays(FRAME.lazy().select(expr).collect(engine=engine)["image"]) for engine in ("in-memory", "streaming")]
    np.testing.assert_array_equal(*runs)
    np.testing.assert_array_equal(runs[0], delivered(dataio.slot("image").decode_image().random_crop(h=5, w=5)))


def test_columns_of_numbers_and_tensors():
    frame = pl.DataFrame({"x": [1.0, 2.5]})
    lazy = frame.lazy().select(dio(pl.col("x")).decode_array())
    assert lazy.collect_schema() == {"x": pl.Float64}
    assert lazy.collect()["x"].to_list() == lazy.collect(engine="streaming")["x"].to_list() == [1.0, 2.5]
    assert frame.select(dio(pl.col("x")).passthrough()).equals(frame)
    resized = FRAME.with_columns(dio(image().decode_image()).resize(h=4, w=6))
    again = resized.select(dio(image().decode_array(dtype="uint8")).shape())
    assert [value.tolist() for value in arrays(again["image"])] == [[4, 6, 3]] * 30


def test_a_type_that_is_not_known():
    frame = pl.DataFrame({"x": [npy(np.arange(3.0)), npy(np.arange(3.0) + 1)]})
    decoded = dio(pl.col("x")).decode_npy()
    with pytest.raises((SchemaError, pl.exceptions.ComputeError), match="no dtype that is known"):
        frame.select(decoded)
    assert arrays(frame.select(dio(decoded).typed(pa.fixed_shape_tensor(pa.float64(), [3])))["x"])[1].tolist() == [1, 2, 3]
    assert arrays(frame.select(dio(decoded).cast(dtype="float32"))["x"])[1].tolist() == [1, 2, 3]
    with pytest.raises(TypeError, match=r"pyarrow\.DataType"):
        dio(decoded).typed("float")


def test_no_rows():
    assert FRAME.clear().select(dio(image().decode_image()).mean())["image"].to_list() == []


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        pytest.param(lambda: image().resize(h=1, w=1), PlanError, "begins with a decoder", id="no decoder"),
        pytest.param(lambda: image().decode_imag(), AttributeError, "did you mean 'decode_image'", id="no op"),
        pytest.param(lambda: dio(image().decode_image()).decode_npy(), ValueError, "already has the decoder", id="two decoders"),
        pytest.param(lambda: dio(image().decode_image()).resize(h=-1, w=2), TypeError, "resize", id="argument"),
        pytest.param(lambda: dio(image().decode_image()).resize(h=dataio.param("h"), w=2), PlanError, "not set", id="parameter"),
        pytest.param(lambda: dio(dio(image().decode_image()).mean()).hflip(), PlanError, "slot 'image'", id="no image"),
    ],
)
def test_chains_that_cannot_be(make, error, match):
    with pytest.raises(error, match=match):
        make()


def test_importing_dataio_loads_no_polars():
    code = "import sys, dataio; print('polars' in sys.modules); import dataio.polars, polars; print(hasattr(polars.Expr, 'dio'))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout.split() == ["False", "True"]
