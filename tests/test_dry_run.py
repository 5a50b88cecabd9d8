"""`dry_run`, `execution_plan` and `length`: what a pipeline would do, told before it is run for long."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dataio
from dataio import cond

from .conftest import encoded

pytestmark = [pytest.mark.usefixtures("no_leftovers")]

PICTURE = encoded(12, 16)
IMAGE = dataio.slot("image").decode_image().resize(h=4, w=6)
LABEL = dataio.slot("label", optional=True).passthrough()
TOKENS = dataio.slot("tokens").decode(dataio.decoders.array())
ROW = 4 * 6 * 3


def pictures(count: int) -> list[dict[str, Any]]:
    return [{"image": PICTURE, "size": 8 + i % 2} for i in range(count)]


def stages(report: dict[str, Any]) -> list[str]:
    return [error["stage"] for error in report["errors"]]


# ---------------------------------------------------------------------------------------------- dry_run


def test_the_report_of_records_without_a_fault() -> None:
    report = dataio.pipeline(IMAGE, LABEL, dataio.batch(2)).dry_run(pictures(3))
    assert report.pop("wall_time_ms") > 0
    assert report == {
        "ok": True,
        "records_attempted": 3,
        "records_ok": 3,
        "batches_emitted": 2,
        "active_slots": ["image"],
        "errors": [],
        "unresolved_params": [],
        "required_columns": {"sources": ["image", "label"], "scalars": [], "groupers": []},
        "slot_shapes": {"image": {"shape": [2, 4, 6, 3], "dtype": "uint8", "bytes_per_sample": ROW}},
        "batch_bytes_estimate": 2 * ROW,
    }


@pytest.mark.parametrize(("most", "expected"), [(1, 1), (8, 8), (None, 20)])
def test_no_more_records_than_asked_for_are_taken_from_the_source(most: int | None, expected: int) -> None:
    given_out: list[int] = []

    def records() -> Iterator[Any]:
        for i, record in enumerate(pictures(20)):
            given_out.append(i)
            yield record

    report = dataio.pipeline(IMAGE, dataio.batch(3)).dry_run(records, max_records=most)
    assert report["records_attempted"] == expected
    assert given_out == list(range(expected))


@given(bad=st.lists(st.booleans(), min_size=1, max_size=12), most=st.integers(1, 12), size=st.integers(1, 5))
@settings(max_examples=25, deadline=None)
def test_every_failed_record_is_reported_by_its_number(bad: list[bool], most: int, size: int) -> None:
    records = [{"image": b"no picture" if is_bad else PICTURE} for is_bad in bad]
    report = dataio.pipeline(IMAGE, dataio.batch(size)).dry_run(records, max_records=most)
    failed = [i for i, is_bad in enumerate(bad[:most]) if is_bad]
    assert [(e["stage"], e["index"]) for e in report["errors"]] == [("decode", i) for i in failed]
    assert report["records_attempted"] == len(bad[:most])
    assert report["records_ok"] == len(bad[:most]) - len(failed)
    assert report["ok"] == (not failed)


def boom(record: Any) -> Any:
    raise ArithmeticError("no")


@pytest.mark.parametrize(
    ("stage", "first", "record"),
    [
        pytest.param("read", None, {"image": "/no/such/file.jpg"}, id="read"),
        pytest.param("read", None, {}, id="field missing"),
        pytest.param("decode", None, {"image": b"no picture"}, id="decode"),
        pytest.param("transform", None, {"image": PICTURE, "size": 999}, id="transform"),
        pytest.param("map", dataio.map(boom), {"image": PICTURE, "size": 4}, id="map"),
    ],
)
def test_the_stage_of_a_failed_record(stage: str, first: Any, record: Any) -> None:
    image = dataio.slot("image").decode_image().crop(y=0, x=0, h=dataio.col("size"), w=4)
    parts = [part for part in (first, image, dataio.batch(2)) if part is not None]
    report = dataio.pipeline(*parts).dry_run([record])
    assert (stages(report), report["ok"], report["records_ok"]) == ([stage], False, 0)
    assert "record 0" in report["errors"][0]["message"]


def test_nothing_is_run_while_parameters_are_unset() -> None:
    def records() -> Iterator[Any]:
        raise AssertionError("read")

    pipe = dataio.pipeline(dataio.slot("image").decode_image().resize(h=dataio.param("h"), w=dataio.param("a")), dataio.batch(2))
    report = pipe.dry_run(records)
    assert (stages(report), report["unresolved_params"], report["records_attempted"]) == (["configure"], ["a", "h"], 0)
    assert "wall_time_ms" not in report
    assert pipe.configure(h=4, a=4).dry_run(pictures(1))["ok"]


def failing() -> Iterator[Any]:
    yield {"image": PICTURE}
    raise OSError("the disk is gone")


@pytest.mark.parametrize(
    ("records", "ok", "message"),
    [
        pytest.param([], 0, "no records", id="empty"),
        pytest.param(None, 0, "NoneType", id="no source"),
        pytest.param("picture.jpg", 0, "one path", id="path"),
        pytest.param((r for r in pictures(2)), 0, "one-pass", id="iterator"),
        pytest.param(failing, 1, "OSError after 1 record.*the disk is gone", id="raises midway"),
    ],
)
def test_a_source_that_fails(records: Any, ok: int, message: str) -> None:
    report = dataio.pipeline(IMAGE, dataio.batch(2)).dry_run(records)
    assert (stages(report), report["ok"], report["records_ok"]) == (["records"], False, ok)
    assert re.search(message, report["errors"][0]["message"])


def raising(error: Exception) -> Callable[[Any], Any]:
    def function(batch: Any) -> Any:
        raise error

    return function


@pytest.mark.parametrize("error", [ValueError("x"), KeyError("x"), TypeError("x"), RuntimeError("x")], ids=repr)
def test_an_exception_of_the_run_is_reported(error: Exception) -> None:
    report = dataio.pipeline(IMAGE, dataio.batch(2), dataio.map(raising(error))).dry_run(pictures(3))
    assert report["errors"] == [{"stage": "iter", "message": f"{type(error).__name__}: {error}"}]
    assert (report["ok"], report["records_attempted"], report["records_ok"]) == (False, 3, 0)


def test_any_other_exception_goes_through() -> None:
    with pytest.raises(AttributeError, match="no such thing"):
        dataio.pipeline(IMAGE, dataio.batch(2), dataio.map(raising(AttributeError("no such thing")))).dry_run(pictures(9))


@pytest.mark.parametrize(
    ("pipe", "message"),
    [
        pytest.param(dataio.pipeline(IMAGE), "ValueError: .* needs an explicit", id="no shape stage"),
        pytest.param(dataio.pipeline(IMAGE, LABEL, dataio.batch(3)), "optional_slot_mismatch", id="slots differ"),
        pytest.param(
            dataio.pipeline(dataio.slot("image").decode_image(layout="chw").resize(h=4, w=4), dataio.batch(2)),
            "PlanError: slot 'image': resize takes",
            id="ops that do not fit",
        ),
    ],
)
def test_a_plan_that_cannot_run(pipe: dataio.Pipeline, message: str) -> None:
    report = pipe.dry_run([*pictures(2), {"image": PICTURE, "label": 1}])
    assert stages(report) == ["iter"]
    assert re.search(message, report["errors"][0]["message"])


def test_batch_maps_run_and_may_give_anything() -> None:
    seen: list[Any] = []

    def note(batch: dataio.Batch) -> dict[str, int]:
        seen.append(batch["image"])
        return {"replaced": 1}

    report = dataio.pipeline(IMAGE, dataio.batch(2), dataio.map(note)).dry_run(pictures(3))
    assert [type(array) for array in seen] == [np.ndarray, np.ndarray]
    assert (report["ok"], report["records_ok"], report["slot_shapes"]["image"]["shape"]) == (True, 3, [2, 4, 6, 3])


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        pytest.param(dataio.group_by("size"), [1, 4, 6, 3], id="group_by"),
        pytest.param(dataio.bucket_by("size", 2), [2, 4, 6, 3], id="bucket_by"),
        pytest.param(dataio.batch(64), [5, 4, 6, 3], id="batch"),
        pytest.param(dataio.batch(64, drop_last=True), [5, 4, 6, 3], id="batch that is not full"),
        pytest.param(dataio.bucket_by("size", 64, drop_last=True), [3, 4, 6, 3], id="bucket that is not full"),
    ],
)
def test_every_shape_stage_delivers_what_there_is(shape: Any, expected: list[int]) -> None:
    report = dataio.pipeline(IMAGE, shape).dry_run(pictures(5))
    assert (report["ok"], report["records_ok"], report["slot_shapes"]["image"]["shape"]) == (True, 5, expected)


def test_packed_records_are_counted_one_by_one() -> None:
    records = [{"tokens": np.arange(n)} for n in (3, 3, 2)]
    report = dataio.pipeline(TOKENS, dataio.pack(8, size=2, drop_last=True)).dry_run(records)
    assert (report["ok"], report["records_attempted"], report["records_ok"]) == (True, 3, 3)
    assert report["active_slots"] == ["positions", "segment_ids", "tokens"]


def test_collate_stops_with_the_batch_that_reaches_the_limit() -> None:
    report = dataio.pipeline(IMAGE, dataio.collate()).dry_run([pictures(3)] * 5, max_records=4)
    assert (report["records_attempted"], report["batches_emitted"]) == (6, 2)


def test_rows_of_several_shapes_have_a_size_but_no_shape() -> None:
    pipe = dataio.pipeline(dataio.slot("image").decode_image(), dataio.batch(2))
    report = pipe.dry_run([{"image": PICTURE}, {"image": encoded(5, 7)}])
    assert (report["slot_shapes"], report["batch_bytes_estimate"]) == ({}, (12 * 16 + 5 * 7) * 3)


def test_a_table_is_read_as_a_table() -> None:
    table = pa.table({"image": [PICTURE] * 20, "split": ["train", "test"] * 10})
    query = dataio.scan(table).filter(cond.col("split").eq("test"))
    report = dataio.pipeline(IMAGE, dataio.batch(4)).dry_run(query, max_records=6)
    assert (report["ok"], report["records_ok"], report["batches_emitted"]) == (True, 6, 2)


@pytest.mark.parametrize(("most", "error"), [(-1, ValueError), (True, TypeError), (2.0, TypeError), ("2", TypeError)])
def test_a_limit_that_is_none(most: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="max_records"):
        dataio.pipeline(IMAGE, dataio.batch(4)).dry_run(pictures(1), max_records=most)


# ---------------------------------------------------------------------------------------------- execution_plan


class Unread:
    """A reader that nobody may read."""

    def read_all(self) -> bytes:
        raise AssertionError("read")


def plan_of(*parts: Any, record: Any, **options: Any) -> dict[str, Any]:
    found: dict[str, Any] = dataio.pipeline(*parts).bind([]).execution_plan(record, **options)
    return found


def test_the_plan_of_a_record() -> None:
    found = plan_of(IMAGE.normalize("imagenet"), LABEL, dataio.batch(2, prefetch=3), record={"image": "/none.jpg", "label": 3})
    layout = {"shape": [3, 4, 6], "dtype": "float32", "bytes_per_sample": 4 * ROW}
    image, label = found.pop("chains")
    assert found == {
        "output_count": 2,
        "work_stages": ["read", "decode", "transform"],
        "slot_write_layout": None,
        "stream_shape": {"kind": "batch", "batch_size": 2, "drop_last": False, "prefetch": 3},
        "map_record_ops": [],
        "map_batch_ops": [],
    }
    assert image == {
        "name": "image",
        "ops": ["read", "image", "resize", "normalize_chw_from_hwc_u8"],
        "read_work": "file",
        "read_strategy": "full_bytes",
        "decode_work": "image",
        "transform_ops": 2,
        "slot_write_layout": layout,
    }
    assert (label["ops"], label["read_work"], label["read_strategy"]) == (["passthrough"], None, "passthrough")
    assert label["slot_write_layout"] is None


@pytest.mark.parametrize(
    "slot",
    [
        pytest.param(IMAGE, id="as written"),
        pytest.param(dataio.slot("image").decode_image().resize_short(8).center_crop(h=4, w=4).normalize("clip"), id="fused"),
        pytest.param(
            dataio.slot("image").decode_image().apply(
                dataio.transforms.unit_chw(), dataio.transforms.normalize(mean=(0.5,) * 3, std=(0.5,) * 3)
            ),
            id="scaled and normalised",
        ),
        pytest.param(dataio.slot("image").passthrough(), id="passthrough"),
    ],
)
def test_the_ops_and_the_layout_are_those_of_a_run(slot: dataio.SlotStage) -> None:
    bound = dataio.pipeline(slot, dataio.batch(1)).bind([{"image": PICTURE}])
    (chain,) = bound.execution_plan({"image": PICTURE})["chains"]
    with bound.run("numpy", workers="thread") as loader:
        (batch,) = loader
        ran = loader.stats()["ops"]  # bytes in memory need no read
    assert [op for op in chain["ops"] if op != "read"] == list(ran)
    if chain["slot_write_layout"] is not None:
        assert chain["slot_write_layout"]["shape"] == list(batch["image"].shape[1:])
        assert chain["slot_write_layout"]["dtype"] == batch["image"].dtype.name


@pytest.mark.parametrize(
    ("value", "place", "strategy"),
    [
        pytest.param(b"bytes", "inline_bytes", "full_bytes", id="bytes"),
        pytest.param(np.zeros(3), "inline_bytes", "full_bytes", id="array"),
        pytest.param({"bytes": b"x", "path": "gone"}, "inline_bytes", "full_bytes", id="bytes in a mapping"),
        pytest.param("/none/picture.jpg", "file", "full_bytes", id="path"),
        pytest.param("file:///none/picture.jpg", "file", "full_bytes", id="file URI"),
        pytest.param("s3://bucket/picture.jpg", "s3", "full_bytes", id="URI"),
        pytest.param({"url": "https://host/picture.jpg"}, "https", "full_bytes", id="URI in a mapping"),
        pytest.param({"path": "/none/shard", "range": (3, 5)}, "file", "range", id="range"),
        pytest.param({"uri": "s3://bucket/shard", "offset": 3, "size": 5}, "s3", "range", id="offset and size"),
        pytest.param(Unread(), "reader", "full_bytes", id="reader"),
        pytest.param({"reader": Unread()}, "reader", "full_bytes", id="reader in a mapping"),
    ],
)
def test_where_bytes_lie_is_told_without_reading(value: Any, place: str, strategy: str) -> None:
    (chain,) = plan_of(IMAGE, dataio.batch(2), record={"image": value})["chains"]
    assert (chain["read_work"], chain["read_strategy"]) == (place, strategy)


def test_a_decoder_that_reads_in_parts() -> None:
    slot = dataio.slot("w").decode_safetensors(tensor_key="x")
    (chain,) = plan_of(slot, dataio.batch(2), record={"w": "/none.safetensors"})["chains"]
    assert (chain["read_strategy"], chain["slot_write_layout"]) == ("container", None)


def test_arguments_of_the_record_settle_the_layout() -> None:
    slot = dataio.slot("image").decode_image().resize(h=dataio.col("size"), w=4)
    found = plan_of(slot, dataio.group_by("size"), record={"image": PICTURE, "size": 9})
    assert found["slot_write_layout"] == {"shape": [9, 4, 3], "dtype": "uint8", "bytes_per_sample": 9 * 4 * 3}
    assert found["stream_shape"] == {"kind": "group_by", "key": "size", "prefetch": None}


@pytest.mark.parametrize("record", [{"image": PICTURE}, {"image": PICTURE, "label": None}, {"image": PICTURE, "label": 1, "off": 1}])
def test_an_inactive_slot_has_no_chain(record: Any) -> None:
    found = plan_of(IMAGE, LABEL.skip_when(cond.col("off")), dataio.batch(2), record=record)
    assert ([c["name"] for c in found["chains"]], found["output_count"]) == (["image"], 1)


def test_no_shape_stage_is_needed() -> None:
    assert plan_of(IMAGE, record=PICTURE)["stream_shape"] is None


def drawn(record: Any) -> Any:
    return {"image": record, "size": 4 + random.randrange(1000)}


def test_record_maps_draw_what_they_draw_in_a_run() -> None:
    slot = dataio.slot("image").decode_image().resize(h=dataio.col("size"), w=4)
    bound = dataio.pipeline(dataio.map(drawn), slot, dataio.batch(1)).bind([PICTURE] * 4).seed(3)
    with bound.run("numpy") as loader:
        ran = [batch["image"].shape[1] for batch in loader]
    planned = [bound.execution_plan(PICTURE, index=i)["slot_write_layout"]["shape"][0] for i in range(4)]
    assert planned == ran
    assert len(set(ran)) > 1


@pytest.mark.parametrize(
    ("slot", "record", "options", "error", "message"),
    [
        pytest.param(IMAGE, {"picture": b""}, {}, KeyError, "lacks; it has: 'picture'", id="field missing"),
        pytest.param(IMAGE, {"image": 3}, {}, TypeError, "cannot read bytes from a int", id="no bytes"),
        pytest.param(IMAGE, 3, {}, TypeError, "record of type int", id="no record"),
        pytest.param(IMAGE, {"image": {"path": "p", "offset": 1}}, {}, ValueError, "both offset and size", id="half a range"),
        pytest.param(IMAGE, {"image": {"reader": Unread(), "range": (0, 1)}}, {}, ValueError, "reader", id="range of a reader"),
        pytest.param(IMAGE, {"image": {}}, {}, TypeError, "needs one of", id="mapping without a source"),
        pytest.param(IMAGE.skip_when(cond.const(True)), {"image": b""}, {}, ValueError, "not optional", id="required slot off"),
        pytest.param(LABEL, {}, {}, ValueError, "nothing is left", id="all slots off"),
        pytest.param(IMAGE.resize(h=dataio.param("h"), w=1), {"image": b""}, {}, ValueError, "'h' of resize", id="parameter unset"),
        pytest.param(IMAGE, {"image": b""}, {"index": -1}, ValueError, "index", id="negative index"),
        pytest.param(IMAGE, {"image": b""}, {"index": True}, TypeError, "index", id="bool for an index"),
    ],
)
def test_a_record_that_has_no_plan(slot: Any, record: Any, options: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        plan_of(slot, dataio.batch(2), record=record, **options)


# ---------------------------------------------------------------------------------------------- length


@pytest.mark.parametrize(
    ("records", "shape", "length"),
    [
        pytest.param(pictures(5), dataio.batch(2), 5, id="list"),
        pytest.param([], dataio.batch(2), 0, id="empty"),
        pytest.param(lambda: iter(pictures(5)), dataio.batch(2), None, id="factory"),
        pytest.param([pictures(5)] * 3, dataio.collate(), 3, id="batches of the source"),
        pytest.param(dataio.scan(pictures(5)).limit(3, offset=1), dataio.batch(2), 3, id="limit"),
        pytest.param(dataio.scan(pictures(5)).filter(cond.col("size").eq(8)), dataio.batch(2), None, id="filter"),
        pytest.param(pictures(5), None, 5, id="no shape stage"),
    ],
)
def test_length_is_the_number_of_records_where_it_is_known(records: Any, shape: Any, length: int | None) -> None:
    parts = [IMAGE] if shape is None else [IMAGE, shape]
    assert dataio.pipeline(*parts).bind(records).length == length


def test_no_length_without_a_source() -> None:
    with pytest.raises(TypeError, match="one-pass"):
        _ = dataio.pipeline(IMAGE, dataio.batch(2)).bind(iter([])).length


# ---------------------------------------------------------------------------------------------- types of options


OPTIONS = [
    pytest.param(option, value, id=f"{option}={value}")
    for option, alias in (
        ("ragged", dataio.RaggedPolicy),
        ("on_failure", dataio.FailurePolicy),
        ("order", dataio.Order),
        ("concurrency", get_args(dataio.Concurrency)[1]),
        ("pin_memory", get_args(dataio.PinMemory)[1]),
    )
    for value in get_args(alias)
]


@pytest.mark.parametrize(("option", "value"), OPTIONS)
def test_what_the_type_of_an_option_names_is_taken(option: str, value: str) -> None:
    bound = dataio.pipeline(IMAGE, dataio.batch(2)).bind([])
    bound.run("numpy", **{option: value}).close()
    with pytest.raises((ValueError, TypeError), match=option):
        bound.run("numpy", **{option: f"no {value}"})


@pytest.mark.parametrize("value", [v for v in get_args(dataio.Output) if v != "jax"])
def test_every_output_named_by_its_type_is_there(value: str) -> None:
    with dataio.pipeline(IMAGE, dataio.batch(2)).bind(pictures(1)).run(value) as loader:
        (batch,) = loader
        assert type(batch["image"]).__module__.partition(".")[0] == {"dlpack": "dataio", "arrow": "pyarrow"}.get(value, value)


@pytest.mark.parametrize(
    ("call", "argument", "alias"),
    [
        (dataio.slot("image").decode_image, "mode", dataio.ImageMode),
        (dataio.slot("image").decode_image, "layout", dataio.OutputLayout),
        (dataio.slot("image").decode_image().resize_short, "interp", dataio.Interp),
    ],
    ids=["mode", "layout", "interp"],
)
def test_what_the_type_of_an_argument_names_is_taken(call: Any, argument: str, alias: Any) -> None:
    size = (8,) if argument == "interp" else ()
    stages = [call(*size, **{argument: value}) for value in get_args(alias)]
    assert all(isinstance(stage, dataio.SlotStage) for stage in stages)
    with pytest.raises(ValueError, match=argument):
        call(*size, **{argument: "nothing of the kind"})
