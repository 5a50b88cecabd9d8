"""`Pipeline.as_arrow_function`: the slots on record batches. What comes out is what the pipeline gives, row by row, whatever fails."""

from __future__ import annotations

import multiprocessing
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from multiprocessing import resource_tracker
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dataio
from dataio.engine.errors import BatchError, PlanError, SchemaError, SourceError

from .conftest import encoded, npy

pytestmark = pytest.mark.usefixtures("two_workers", "no_leftovers")

resource_tracker.ensure_running()  # multiprocessing's own process, which stays: nothing that a test leaves behind
PIPE = dataio.pipeline(dataio.slot("image").decode_image().resize(h=6, w=7))
FILES = [encoded(10 + i % 4, 12 + i % 3, seed=i) for i in range(40)]


def batches(values: list[Any], rows: int = 9, **columns: Any) -> Iterator[pa.RecordBatch]:
    """A column "image" of these, "number" counting, and `columns`."""
    table = pa.table({"number": range(len(values)), "image": pa.array(values, pa.binary()), **columns})
    yield from table.to_batches(max_chunksize=rows)


def table_of(function: Any, given: Any) -> pa.Table:
    found = list(function(given))
    return pa.Table.from_batches(found)


def tensor(scalar: Any) -> np.ndarray | None:
    """The array behind a cell of a tensor column of either kind."""
    if not scalar.is_valid:
        return None
    if isinstance(scalar, pa.FixedShapeTensorScalar):
        return scalar.to_numpy()
    value = scalar.as_py()
    return np.array(value["data"]).reshape(value["shape"]) if isinstance(value, dict) else np.asarray(value)


def delivered(pipe: Any, values: list[Any], slot: str = "image") -> list[np.ndarray]:
    """What a loader gives for the same values."""
    with pipe.bind([{slot: value} for value in values]).run("numpy", seed=0) as loader:
        return [row for batch in loader for row in batch[slot]]


@pytest.mark.parametrize("workers", ["thread", "process"])
@pytest.mark.parametrize("rows", [1, 9, 64])
def test_the_rows_are_those_of_the_pipeline(workers, rows):
    function = PIPE.as_arrow_function(workers=workers, batch_rows=16)
    found = list(function(batches(FILES, rows)))
    assert max(batch.num_rows for batch in found) <= 16
    table = pa.Table.from_batches(found)
    assert table["number"].to_pylist() == list(range(40))
    assert table["error"].null_count == 40
    np.testing.assert_array_equal([tensor(v) for v in table["image"]], delivered(dataio.pipeline(*PIPE.slots, dataio.batch(8)), FILES))


def test_the_schema_is_known_ahead():
    schema = next(batches(FILES[:1])).schema
    expected = pa.schema([("number", pa.int64()), ("image", pa.fixed_shape_tensor(pa.uint8(), [6, 7, 3])), ("error", pa.string())])
    function = PIPE.as_arrow_function()
    assert function.schema(schema) == expected
    assert all(batch.schema == expected for batch in function(batches(FILES)))


def test_no_batch_gives_no_batch():
    assert list(PIPE.as_arrow_function()(iter(()))) == []
    assert list(PIPE.as_arrow_function()(batches([]))) == []


def test_images_of_any_size_are_ragged():
    pipe = dataio.pipeline(dataio.slot("image").decode_image())
    found = table_of(pipe.as_arrow_function(), batches(FILES))
    assert found.schema.field("image").type == pa.struct([("data", pa.large_list(pa.uint8())), ("shape", pa.list_(pa.int32()))])
    for cell, row in zip(found["image"], delivered(dataio.pipeline(*pipe.slots, dataio.batch(7)), FILES), strict=True):
        np.testing.assert_array_equal(tensor(cell), row)


BAD = st.lists(st.sampled_from(["good", "broken", "null", "empty"]), min_size=1, max_size=30)


@settings(max_examples=25, deadline=None)
@given(BAD, st.integers(1, 12), st.integers(1, 12))
def test_a_failed_row_has_nulls_and_a_reason(kinds, rows, batch_rows):
    values = [{"good": FILES[i % 40], "broken": b"\xff\xd8 broken", "null": None, "empty": b""}[kind] for i, kind in enumerate(kinds)]
    found = table_of(PIPE.as_arrow_function(batch_rows=batch_rows, workers="thread"), batches(values, rows))
    assert found["number"].to_pylist() == list(range(len(kinds)))
    for i, kind in enumerate(kinds):
        assert (found["error"][i].as_py() is None) == (kind == "good")
        assert found["image"][i].is_valid == (kind == "good")
        if kind == "good":
            (expected,) = delivered(dataio.pipeline(*PIPE.slots, dataio.batch(1)), [values[i]])
            np.testing.assert_array_equal(tensor(found["image"][i]), expected)
        else:
            assert f"record {i} " in found["error"][i].as_py()
            assert "slot 'image'" in found["error"][i].as_py()


def test_one_failed_slot_leaves_no_other():
    pipe = dataio.pipeline(dataio.slot("image").decode_image().mean(), dataio.slot("number").passthrough(), dataio.slot("extra").decode_array())
    found = table_of(pipe.as_arrow_function(), batches([FILES[0], b"broken", FILES[2]], extra=[1.5, 2.5, 3.5]))
    assert found.schema.names == ["image", "number", "extra", "error"]
    assert [found[name][1].as_py() for name in ("image", "number", "extra")] == [None] * 3
    assert found["number"].to_pylist() == [0, None, 2]
    assert found["error"].null_count == 2


def test_without_a_column_of_errors_the_first_one_raises():
    values = [*FILES[:5], b"broken", b"broken"]
    with pytest.raises(BatchError, match=r"slot 'image'"):
        list(PIPE.as_arrow_function(errors=None)(batches(values)))
    assert pa.Table.from_batches(PIPE.as_arrow_function(errors=None)(batches(FILES[:5]))).schema.names == ["number", "image"]


def test_columns_that_are_kept():
    extra = {"text": ["a"] * 5, "list": [[1, 2], None, [], [3], [4]]}
    found = table_of(PIPE.as_arrow_function(columns=["list"], errors="why"), batches(FILES[:5], 2, **extra))
    assert found.schema.names == ["list", "image", "why"]
    assert found["list"].to_pylist() == extra["list"]
    assert table_of(PIPE.as_arrow_function(), batches(FILES[:5], **extra)).schema.names == ["number", "text", "list", "image", "error"]


@pytest.mark.parametrize("mode", ["gray", "rgb"])
def test_bytes_of_a_column_are_decoded_as_those_of_a_record(mode):
    """Arrow's buffers are of signed bytes, which simplejpeg refuses: Pillow decoded them, slower, and gray one level away."""
    slot = dataio.slot("image").decode_image(mode=mode)
    found = table_of(dataio.pipeline(slot).as_arrow_function(), batches(FILES))
    for cell, row in zip(found["image"], delivered(dataio.pipeline(slot, dataio.batch(7)), FILES), strict=True):
        np.testing.assert_array_equal(tensor(cell), row)


def test_kept_columns_are_not_copied():
    (given,) = batches(FILES[:8], 8)
    found = next(PIPE.as_arrow_function()(iter([given])))
    assert found.column("number").buffers()[1].address == given.column("number").buffers()[1].address


def test_passthrough_keeps_the_type():
    day = pa.array([1, None, 3], pa.timestamp("ns", "UTC"))
    pipe = dataio.pipeline(dataio.slot("day").passthrough())
    found = table_of(pipe.as_arrow_function(), [pa.record_batch({"day": day})])
    assert found["day"].combine_chunks() == day


@pytest.mark.parametrize(
    ("chain", "values", "kind"),
    [
        pytest.param(dataio.slot("x").decode_npy().cast(dtype="float32").reshape(shape=(2, 2)), np.ones((2, 2)), pa.fixed_shape_tensor(pa.float32(), [2, 2]), id="tensor"),
        pytest.param(dataio.slot("x").decode_npy().mean(), np.ones((2, 2)), pa.float64(), id="number"),
        pytest.param(dataio.slot("x").decode_npy().cast(dtype="bool").reshape(shape=(2, 2)), np.ones((2, 2)),
                     pa.struct([("data", pa.large_list(pa.bool_())), ("shape", pa.list_(pa.int32()))]), id="bool"),
        pytest.param(dataio.slot("x").decode_npy().shape(), np.ones((2, 2)),
                     pa.struct([("data", pa.large_list(pa.int64())), ("shape", pa.list_(pa.int32()))]), id="rank"),
    ],
)  # fmt: skip
def test_types_of_slots(chain, values, kind):
    found = table_of(dataio.pipeline(chain).as_arrow_function(), [pa.record_batch({"x": [npy(values), b"", npy(values)]})])
    assert found.schema.field("x").type == kind
    expected = delivered(dataio.pipeline(chain, dataio.batch(1)), [npy(values)], "x")[0]
    np.testing.assert_array_equal(tensor(found["x"][2]), expected)
    assert found["x"].null_count == 1


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        (pa.array([1, 2], pa.uint8()), pa.int64()),
        (pa.array([1, 2], pa.float32()), pa.float64()),
        (pa.array([True, False]), pa.bool_()),
        (pa.array([[1.5], []]), pa.struct([("data", pa.large_list(pa.float64())), ("shape", pa.list_(pa.int32()))])),
    ],
)
def test_columns_of_numbers_tell_the_type(column, kind):
    pipe = dataio.pipeline(dataio.slot("x").decode_array())
    found = table_of(pipe.as_arrow_function(), [pa.record_batch({"x": column})])
    assert found.schema.field("x").type == kind
    assert [tensor(v).tolist() for v in found["x"]] == column.to_pylist()


def test_a_type_that_is_not_known_ahead():
    pipe = dataio.pipeline(dataio.slot("x").decode_npy())
    values = [npy(np.arange(3.0)), npy(np.arange(4.0)), npy(np.arange(3)), npy(np.float64(2))]
    given = [pa.record_batch({"x": values})]
    with pytest.raises(SchemaError, match=r"slot 'x' has no dtype that is known before it runs.*types="):
        list(pipe.as_arrow_function()(given))
    found = table_of(pipe.as_arrow_function(types={"x": pa.fixed_shape_tensor(pa.float64(), [3])}), given)
    assert [cell.is_valid for cell in found["x"]] == [True, False, False, False]
    assert "float64[4]" in found["error"][1].as_py()
    assert "int64[3]" in found["error"][2].as_py()


def test_a_function_of_ones_own_with_its_type():
    pipe = dataio.pipeline(dataio.slot("x").decode_npy().custom(_largest))
    found = table_of(pipe.as_arrow_function(types={"x": pa.float64()}), [pa.record_batch({"x": [npy(np.arange(n) * 1.5) for n in (2, 0, 3)]})])
    assert found["x"].to_pylist() == [1.5, None, 3.0]
    assert "ValueError: nothing" in found["error"][1].as_py()


def _largest(value: np.ndarray) -> Any:
    if not value.size:
        raise ValueError("nothing")
    return np.asarray(value.max())


def test_text_is_text_by_its_type():
    pipe = dataio.pipeline(dataio.slot("x").decode(dataio.decoders.text(as_object=True)))
    found = table_of(pipe.as_arrow_function(types={"x": pa.string()}), [pa.record_batch({"x": ["ä".encode(), b"\xff", b""]})])
    assert found["x"].to_pylist() == ["ä", None, ""]
    with pytest.raises(SchemaError, match="gives Python values"):
        pipe.as_arrow_function().schema(pa.schema([("x", pa.binary())]))


def _scaled(record: dict[str, Any]) -> dict[str, Any]:
    return {"x": np.array([record["n"] * 2.0])}


def test_record_maps_run_before_the_slots():
    slot = dataio.slot("x").decode_array().cast(dtype="float64").reshape(shape=(1,))
    function = dataio.pipeline(dataio.map(_scaled), slot).as_arrow_function(columns=["n"])
    found = table_of(function, [pa.record_batch({"n": pa.array([1, None, 3])})])
    assert found["n"].to_pylist() == [1, None, 3]
    assert [None if (v := tensor(c)) is None else v.tolist() for c in found["x"]] == [[2.0], None, [6.0]]
    assert "TypeError" in found["error"][1].as_py()


def test_random_ops_draw_by_row_and_seed():
    pipe = dataio.pipeline(dataio.slot("image").decode_image().random_crop(h=5, w=5))
    runs = [[tensor(v) for v in table_of(pipe.as_arrow_function(seed=seed, batch_rows=rows), batches(FILES))["image"]] for seed, rows in [(1, 4), (1, 64), (2, 4)]]
    np.testing.assert_array_equal(runs[0], runs[1])
    assert any((a != b).any() for a, b in zip(runs[0], runs[2], strict=True))


# ---------------------------------------------------------------- what is refused

SLOT = dataio.slot("image").decode_image()


@pytest.mark.parametrize(
    ("make", "match"),
    [
        pytest.param(lambda: dataio.pipeline(SLOT, dataio.collate()).as_arrow_function(), "not with Collate", id="collate"),
        pytest.param(lambda: dataio.pipeline(SLOT, dataio.group_by("x")).as_arrow_function(), "not with GroupBy", id="group_by"),
        pytest.param(lambda: dataio.pipeline(SLOT, dataio.bucket_by("x", 4)).as_arrow_function(), "not with BucketBy", id="bucket_by"),
        pytest.param(lambda: dataio.pipeline(SLOT, dataio.batch(4), dataio.map(len)).as_arrow_function(), "row by row", id="batch map"),
        pytest.param(lambda: dataio.pipeline(dataio.slot("x", optional=True).decode_npy()).as_arrow_function(), "optional", id="optional"),
        pytest.param(lambda: dataio.pipeline(SLOT.resize(h=dataio.param("h"), w=4)).as_arrow_function(), "'h' is not set", id="parameter"),
    ],
)
def test_pipelines_that_are_refused(make, match):
    with pytest.raises(PlanError, match=match):
        make()


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"columns": "number"}, TypeError, "list of names"),
        ({"errors": ""}, TypeError, "column name"),
        ({"batch_rows": 0}, ValueError, "at least 1"),
        ({"batch_rows": True}, TypeError, "integer"),
        ({"types": {"imag": pa.int8()}}, ValueError, "did you mean 'image'"),
        ({"types": {"image": "int8"}}, TypeError, "pyarrow.DataType"),
        ({"worker": "thread"}, TypeError, "did you mean 'workers'"),
        ({"on_failure": "skip"}, TypeError, "no option"),
    ],
)
def test_arguments_out_of_range(options, error, match):
    with pytest.raises(error, match=match):
        PIPE.as_arrow_function(**options)


@pytest.mark.parametrize(
    ("options", "columns", "match"),
    [
        ({}, ["imag"], "reads column 'image'"),
        ({}, ["image", "image"], "'image' twice"),
        ({}, ["image", "error"], "errors='error' needs another name"),
        ({"columns": ["image"]}, ["image"], "it is a slot"),
        ({"columns": ["nmber"]}, ["image", "number"], "did you mean 'number'"),
    ],
)
def test_columns_that_do_not_fit(options, columns, match):
    batch = pa.RecordBatch.from_arrays([pa.array([b""])] * len(columns), columns)
    with pytest.raises(SchemaError, match=match):
        PIPE.as_arrow_function(**options).schema(batch.schema)
    with pytest.raises(SchemaError, match=match):
        next(PIPE.as_arrow_function(**options)(iter([batch])))


def test_batches_of_another_schema():
    other = pa.record_batch({"number": [1.5], "image": [FILES[0]]})
    with pytest.raises((SchemaError, SourceError), match="record batch 1 has other columns than the first: 'number' is double, and was int64"):
        list(PIPE.as_arrow_function()(iter([*batches(FILES[:3]), other])))


def test_an_input_that_raises():
    def broken() -> Iterator[pa.RecordBatch]:
        yield from batches(FILES[:5])
        raise OSError("the wire was cut")

    rows = []
    with pytest.raises(SourceError, match="the wire was cut") as caught:
        rows.extend(PIPE.as_arrow_function()(broken()))
    assert isinstance(caught.value.__cause__, OSError)


# ---------------------------------------------------------------- memory, threads, processes


def test_no_more_is_read_than_is_worked_on():
    read, small = [], pa.record_batch({"image": FILES[:8]})

    def endless() -> Iterator[pa.RecordBatch]:
        while True:
            read.append(1)
            yield small

    stream = PIPE.as_arrow_function(batch_rows=8)(endless())
    for number in range(1, 30):
        next(stream)
        assert len(read) <= number + 16
    stream.close()


def test_closing_ends_the_threads_and_the_input():
    closed = threading.Event()

    def incoming() -> Iterator[pa.RecordBatch]:
        try:
            while True:
                yield from batches(FILES)
        finally:
            closed.set()

    given = incoming()
    stream = PIPE.as_arrow_function()(given)
    next(stream)
    stream.close()
    given.close()
    assert closed.is_set()


@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_it_runs_in_other_processes(how):
    function = PIPE.as_arrow_function(workers="thread")
    next(function(batches(FILES)))  # a fork after threads were used
    with multiprocessing.get_context(how).Pool(1) as pool:
        found = pool.apply_async(_run, (pickle.dumps(function), FILES[:10])).get(60)
    np.testing.assert_array_equal(found, delivered(dataio.pipeline(*PIPE.slots, dataio.batch(1)), FILES[:10]))


def _run(pickled: bytes, files: list[bytes]) -> list[np.ndarray | None]:
    return [tensor(v) for v in table_of(pickle.loads(pickled), batches(files))["image"]]


def test_ops_of_a_script_travel_with_it(tmp_path):
    """A Spark worker has never run the script that registered the op."""
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, cloudpickle, dataio\n"
        "from dataio.engine.schema import TensorType\n"
        "@dataio.register_op('darkest', infer=lambda given, **_: TensorType((), 'float64'))\n"
        "def darkest(value, *, plus: float = 0.0):\n"
        "    return float(value.min()) + plus\n"
        "pipe = dataio.pipeline(dataio.slot('image').decode_image().darkest(plus=0.5))\n"
        "open(sys.argv[1], 'wb').write(cloudpickle.dumps(pipe.as_arrow_function(workers='thread')))\n"
    )
    target = tmp_path / "function"
    subprocess.run([sys.executable, str(script), str(target)], check=True, timeout=60)
    code = (
        "import pickle, sys, pyarrow as pa; function = pickle.load(open(sys.argv[1], 'rb')); "
        "print([b.column('image').to_pylist() for b in function([pa.record_batch({'image': [open(sys.argv[2], 'rb').read()]})])])"
    )
    (tmp_path / "a.jpg").write_bytes(FILES[0])
    found = subprocess.run([sys.executable, "-c", code, str(target), str(tmp_path / "a.jpg")], check=True, timeout=60, capture_output=True, text=True)
    (image,) = delivered(dataio.pipeline(SLOT, dataio.batch(1)), FILES[:1])
    assert found.stdout.strip() == str([[float(image.min()) + 0.5]])


def test_a_lambda_needs_cloudpickle():
    pipe = dataio.pipeline(dataio.map(lambda record: record), SLOT)
    function = cloudpickle.loads(cloudpickle.dumps(pipe.as_arrow_function()))
    assert table_of(function, batches(FILES[:3]))["error"].null_count == 3
