"""The pipeline language: what may be put together, what a pipeline tells about itself."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

import dataio
from dataio import cond
from dataio.engine.registry import lookup, register_op

from .engine.helpers import ops

__all__ = ["ops"]
DECODED = dataio.slot("image").decode_image()


def fn(record: Any) -> Any:
    return record


def full() -> dataio.Pipeline:
    return dataio.pipeline(
        dataio.map(fn),
        DECODED.resize(h=dataio.param("h"), w=dataio.col("width")).skip_when(cond.col("bad") | cond.col("n").lt(3)),
        dataio.map(dataio.custom_op(fn, name="named", version="7")),
        dataio.slot("label", optional=True).passthrough(),
        dataio.batch(8, prefetch=2),
        dataio.map(fn),
    )


# -------------------------------------------------------------------- 1. pipeline(...)


def test_stages_are_sorted_by_kind() -> None:
    pipe = full()
    assert [s.output for s in pipe.slots] == ["image", "label"]
    assert [getattr(m, "name", None) for m in pipe.map_records] == [None, "named"]
    assert pipe.map_batches == (fn,)
    assert pipe.shape == dataio.batch(8, prefetch=2)


def test_pipelines_are_frozen_values() -> None:
    pipe = full()
    assert pipe == full()
    with pytest.raises(dataclasses.FrozenInstanceError):
        pipe.slots = ()  # type: ignore[misc]
    with pytest.raises(TypeError):
        pipe.params["x"] = 1  # type: ignore[index]


MISTAKES: list[tuple[Any, type[Exception], str]] = [
    (lambda: dataio.pipeline(), ValueError, "at least one slot"),
    (lambda: dataio.pipeline(dataio.batch(2)), ValueError, "at least one slot"),
    (lambda: dataio.pipeline(dataio.slot("image")), ValueError, "'image' has no decoder"),
    (lambda: dataio.pipeline(DECODED, DECODED), ValueError, "given twice: image"),
    (lambda: dataio.pipeline(dataio.slots(["b", "a", "b", "a"]).using(dataio.chain().passthrough())), ValueError, "twice: a, b"),
    (lambda: dataio.pipeline(DECODED, dataio.batch(2), dataio.collate()), ValueError, "at most one terminal shape stage"),
    (lambda: dataio.pipeline(dataio.batch(2), DECODED), ValueError, "before the shape stage"),
    (lambda: dataio.pipeline(dataio.batch(2), dataio.slots(["a"])), ValueError, "before the shape stage"),
    (lambda: dataio.pipeline(dataio.chain().decode_image()), ValueError, "apply it to a slot"),
    (lambda: dataio.pipeline(DECODED, fn), TypeError, r"slot\(\.\.\.\), slots\(\.\.\.\), map\(\.\.\.\) and one of batch"),
    (lambda: dataio.pipeline(DECODED, dataio.transforms.hflip()), TypeError, "takes slot"),
    (lambda: dataio.Pipeline(("image",)), TypeError, "slot"),  # type: ignore[arg-type]
    (lambda: dataio.Pipeline((DECODED,), shape=3), TypeError, "shape"),  # type: ignore[arg-type]
    (lambda: dataio.Pipeline((DECODED,), map_batches=(fn,)), ValueError, "preceding shape stage"),
    (lambda: dataio.Pipeline(()), ValueError, "at least one slot"),
]


@pytest.mark.parametrize(("make", "error", "message"), MISTAKES)
def test_mistakes_of_structure(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


@pytest.mark.usefixtures("ops")
def test_a_batch_op_needs_a_shape_stage() -> None:
    register_op("mix_probe", kind="batch_transform")(fn)
    mix = dataio.map(lookup("mix_probe", "batch_transform").call())
    with pytest.raises(ValueError, match=r"mix_probe\(\) needs a preceding shape stage"):
        dataio.pipeline(mix, DECODED, dataio.batch(2))
    assert dataio.pipeline(DECODED, dataio.batch(2), mix).map_batches == (mix.op,)


def test_without_a_shape_stage_it_can_be_looked_at_but_not_run() -> None:
    pipe = dataio.pipeline(DECODED)
    assert pipe.describe()["shape"] is None
    assert pipe.explain().endswith("shape: <none> (record stream)")
    with pytest.raises(ValueError, match="batch / collate / group_by"):
        pipe.bind([]).run()


# -------------------------------------------------------------------- 2. stage constructors

CHAIN = dataio.chain().decode_image()
REFUSED: list[tuple[Any, type[Exception]]] = [
    (lambda: dataio.slot(3), TypeError),  # type: ignore[arg-type]
    (lambda: dataio.slot(""), ValueError),
    (lambda: dataio.slot("a", optional=1), TypeError),  # type: ignore[arg-type]
    (lambda: dataio.slots("ab"), TypeError),
    (lambda: dataio.slots(3), TypeError),  # type: ignore[arg-type]
    (lambda: dataio.slots([]), ValueError),
    (lambda: list(dataio.slots(["a", ""]).using(CHAIN)), ValueError),
    (lambda: list(dataio.slots(["a", 3]).using(CHAIN)), TypeError),  # type: ignore[list-item]
    (lambda: list(dataio.slots(["a", "a"]).using(CHAIN)), ValueError),
    (lambda: dataio.slots(["a"]).optional(1), TypeError),  # type: ignore[arg-type]
    (lambda: dataio.slots(["a"]).using(DECODED), ValueError),
    (lambda: dataio.slots(["a"]).using(fn), TypeError),  # type: ignore[arg-type]
    (lambda: CHAIN + CHAIN, ValueError),
    (lambda: CHAIN + DECODED, ValueError),
    (lambda: CHAIN + 3, TypeError),
    (lambda: dataio.batch(True), TypeError),
    (lambda: dataio.batch(0), ValueError),
    (lambda: dataio.batch(2, prefetch=0), ValueError),
    (lambda: dataio.batch(2, prefetch=True), TypeError),
    (lambda: dataio.batch(2, drop_last=1), TypeError),  # type: ignore[arg-type]
    (lambda: dataio.collate(prefetch=0), ValueError),
    (lambda: dataio.group_by(True), TypeError),
    (lambda: dataio.group_by(1.5), TypeError),  # type: ignore[arg-type]
    (lambda: dataio.group_by("a", prefetch=-1), ValueError),
    (lambda: dataio.map(3), TypeError),  # type: ignore[arg-type]
    (lambda: dataio.map(dataio.transforms.hflip()), TypeError),
    (lambda: dataio.custom_op(3), TypeError),  # type: ignore[arg-type]
    (lambda: dataio.custom_op(fn, name=""), ValueError),
    (lambda: dataio.custom_op(fn, version=""), ValueError),
    (lambda: dataio.custom_op(fn, name=3), TypeError),  # type: ignore[arg-type]
    (lambda: dataio.custom_op(fn, version=3), TypeError),  # type: ignore[arg-type]
    (lambda: dataio.CustomOp("a", "1")(3), TypeError),
    (lambda: dataio.col(""), ValueError),
    (lambda: dataio.col(3), TypeError),  # type: ignore[arg-type]
    (lambda: dataio.param(""), ValueError),
    (lambda: dataio.param(3), TypeError),  # type: ignore[arg-type]
    (lambda: dataio.const(dataio.param("a")), TypeError),
    (lambda: dataio.const(dataio.const(1)), TypeError),
]


@pytest.mark.parametrize(("make", "error"), REFUSED)
def test_stage_constructors_refuse(make: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        make()


def test_batch_sizes_go_through_int() -> None:
    assert dataio.batch("3") == dataio.batch(3.7) == dataio.batch(3)  # type: ignore[arg-type]


def test_slots_share_one_chain() -> None:
    builder = dataio.slots(["a", "b"]).using(CHAIN).using(dataio.chain().hflip()).optional()
    assert len(builder) == 2
    first, second = builder
    assert first == dataio.slot("a", optional=True).decode_image().hflip()
    assert second.output == "b"
    assert dataio.pipeline(builder).slots == (first, second)


def test_chains_are_spliced() -> None:
    augment = dataio.chain().hflip() + dataio.chain().vflip(prob=0.5)
    assert DECODED.apply(augment) == DECODED.hflip().vflip(prob=0.5)
    assert dataio.slot("x").apply(CHAIN + dataio.chain().hflip()) == dataio.slot("x").decode_image().hflip()




def test_custom_ops() -> None:
    @dataio.custom_op
    def plain(record: Any) -> Any:
        return record

    @dataio.custom_op(name="other", version="3")
    def named(record: Any) -> Any:
        return [record]

    assert plain.describe() == {"name": "plain", "version": "1"}
    assert named.describe() == {"name": "other", "version": "3"}
    assert named(4) == [4]
    assert named == dataio.CustomOp("other", "3")
    assert named != dataio.CustomOp("other", "4")


def test_references_are_values() -> None:
    assert dataio.col("x") == dataio.col("x")
    assert len({dataio.col("x"), dataio.col("x"), dataio.col("y")}) == 2
    assert dataio.col("x").field == "x"
    assert dataio.param("x") == dataio.param("x")
    assert dataio.const(3) == dataio.const(3)


# -------------------------------------------------------------------- 3. SlotStage

SLOT_MISTAKES: list[tuple[Any, type[Exception], str]] = [
    (lambda: DECODED.decode_image(), ValueError, "already has the decoder"),
    (lambda: DECODED.decode_bytes(), ValueError, "already has the decoder"),
    (lambda: DECODED.apply(dataio.decoders.npy()), ValueError, "already has the decoder"),
    (lambda: dataio.slot("a").hflip().decode_image(), ValueError, "before (the|its) transforms"),
    (lambda: dataio.slot("a").hflip().decode(dataio.decoders.npy()), ValueError, "before its transforms"),
    (lambda: dataio.slot("a").decode(fn), TypeError, "dataio.decoders"),
    (lambda: DECODED.apply(fn), TypeError, r"dataio\.map"),
    (lambda: DECODED.apply(3), TypeError, "got 3"),
    (lambda: DECODED.apply(dataio.chain().hflip(), dataio.chain().vflip()), TypeError, "on its own"),
    (lambda: DECODED.apply(CHAIN), ValueError, "decoder"),
    (lambda: DECODED.apply(DECODED), TypeError, "unbound"),
    (lambda: DECODED.skip_when(dataio.col("x")), TypeError, "condition"),
    (lambda: DECODED.active_when(True), TypeError, "condition"),
    (lambda: dataio.chain().skip_when(cond.col("x")), ValueError, "unbound"),
    (lambda: DECODED.normalize("nope"), ValueError, "clip, imagenet, none, symmetric, unit"),
    (lambda: DECODED.normalize(mean=(0.5,) * 3), ValueError, "std"),
    (lambda: DECODED.normalize("unit", output_layout="hwc"), ValueError, "hwc"),
    (lambda: DECODED.normalize(output_layout="nhwc"), ValueError, "layout"),
    (lambda: DECODED.resize(h=True, w=3), TypeError, "integer"),
    (lambda: DECODED.resize(h=0, w=3), ValueError, ">= 1"),
    (lambda: DECODED.resize(h=-2, w=3), TypeError, ">= 1"),
    (lambda: DECODED.resize(h=2.5, w=3), TypeError, "integer"),
    (lambda: DECODED.resize_short(size=dataio.col("x")), TypeError, "literal"),
    (lambda: DECODED.hflip(prob=float("nan")), ValueError, "finite"),
    (lambda: DECODED.resiez(3), AttributeError, "did you mean 'resize'"),  # type: ignore[attr-defined]
]


@pytest.mark.parametrize(("make", "error", "message"), SLOT_MISTAKES)
def test_mistakes_in_a_slot(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


def test_apply_may_set_the_decoder_after_a_transform() -> None:
    flip = dataio.transforms.hflip()
    assert dataio.slot("a").apply(flip, dataio.decoders.npy()) == dataio.slot("a").decode_npy().apply(flip)


def test_defaults_of_decode_image_and_the_factory_differ() -> None:
    (stage,) = dataio.pipeline(DECODED).slots
    assert stage.decoder is not None
    assert (stage.decoder.arguments["normalize"], stage.decoder.arguments["layout"]) == ("none", "hwc")
    factory = dataio.decoders.image()
    assert (factory.arguments["normalize"], factory.arguments["layout"]) == ("symmetric", "chw")
    assert dataio.slot("a").decode_image(mode="GRAY") == dataio.slot("a").decode_image(mode="gray")
    with pytest.raises(ValueError, match="mode"):
        dataio.decoders.image(mode="GRAY")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("slot", "shown"),
    [
        (lambda: DECODED.normalize(), "normalize_chw_from_hwc_u8(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), base=unit)"),
        (lambda: DECODED.normalize("Unit"), "unit_chw()"),
        (lambda: DECODED.normalize("symmetric"), "symmetric_chw()"),
        (lambda: DECODED.normalize(None), "pack_chw_f32(scale=1.0)"),
        (lambda: DECODED.normalize("none"), "pack_chw_f32(scale=1.0)"),
        (lambda: DECODED.normalize(((0.5,) * 3, (0.25,) * 3)),
         "normalize_chw_from_hwc_u8(mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25), base=unit)"),
    ],
    ids=["imagenet", "unit", "symmetric", "none", "none-name", "tuple"],
)  # fmt: skip
def test_normalize_modes(slot: Any, shown: str) -> None:
    assert [str(t) for t in slot().transforms] == [shown]


def test_normalize_none_in_hwc_adds_nothing() -> None:
    assert DECODED.normalize("none", output_layout="hwc") == DECODED


def test_the_last_condition_wins() -> None:
    one = DECODED.skip_when(cond.col("a")).active_when(cond.col("b"))
    assert one.skip_cond == ~cond.col("b")


def test_describe_of_a_slot() -> None:
    found = DECODED.hflip(prob=0.25).skip_when(cond.col("bad")).describe()
    assert found["output"] == "image"
    assert found["decoder"]["op"] == "image"
    assert found["transforms"] == [{"op": "hflip", "version": 1, "args": {"prob": 0.25}}]
    assert found["optional"] is False
    assert found["skip_when"] == cond.col("bad").canonical()
    assert dataio.chain().describe()["decoder"] is None


# -------------------------------------------------------------------- 6. the Pipeline object


def test_configure() -> None:
    pipe = full()
    assert pipe.configure() is pipe
    assert pipe.required_params() == {"h"}
    assert pipe.unresolved_params() == {"h"}
    one = pipe.configure(h=5, unknown=3).with_params(h=7)
    assert one.params == {"h": 7, "unknown": 3}
    assert pipe.params == {}
    assert one.required_params() == {"h"}
    assert one.unresolved_params() == frozenset()
    assert str(one.chains()[0].transforms[0]) == "resize(h=7, w=col:width)"


def test_a_parameter_may_be_a_column() -> None:
    one = full().configure(h=dataio.col("height"))
    assert one.required_columns()["scalars"] == ["bad", "n", "height", "width"]


def test_an_unset_or_bad_parameter_fails_when_iteration_starts(tmp_path: Path) -> None:
    pipe = dataio.pipeline(DECODED.resize(h=dataio.param("h"), w=4), dataio.batch(2))
    with pipe.bind([b""]).run("numpy") as loader, pytest.raises(ValueError, match=r"'h' of resize in slot 'image'.*configure\(h="):
        next(iter(loader))
    with pytest.raises(ValueError, match=r"resize\(h=\) must be >= 1"):
        next(iter(pipe.configure(h=0).bind([b""]).run("numpy")))


def test_required_columns_are_in_first_use_order() -> None:
    assert full().required_columns() == {"sources": ["image", "label"], "scalars": ["bad", "n", "width"], "groupers": []}
    groups = dataio.pipeline(DECODED, dataio.group_by("scene"))
    assert groups.required_columns()["groupers"] == ["scene"]
    assert dataio.pipeline(DECODED, dataio.group_by(fn)).required_columns()["groupers"] == []


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        (dataio.batch(8), {"kind": "batch", "batch_size": 8, "drop_last": False, "prefetch": None}),
        (dataio.collate(prefetch=3), {"kind": "collate", "prefetch": 3}),
        (dataio.group_by("k"), {"kind": "group_by", "key": "k", "prefetch": None}),
    ],
    ids=["batch", "collate", "group_by"],
)
def test_describe(shape: Any, expected: dict[str, Any]) -> None:
    found = dataio.pipeline(dataio.map(dataio.custom_op(fn, name="m")), DECODED, shape, dataio.map(fn)).describe()
    assert list(found) == ["slots", "map_records", "shape", "map_batches"]
    assert found["shape"] == expected
    assert found["map_records"] == [{"name": "m", "version": "1"}]
    assert found["map_batches"][0]["name"] == "fn"
    assert [s["output"] for s in found["slots"]] == ["image"]


EXPLAINED = """\
Pipeline
├── Slot "image"
│   ├── skip_when: (col:bad) or (col:n < 3)
│   ├── source: record['image']
│   ├── decode: image(normalize=none, layout=hwc)
│   └── transforms:
│       └── <deferred resize> pending param:h
├── Slot "label" [optional]
│   ├── source: record['label']
│   └── decode: passthrough()
├── map_records
│   ├── fn
│   └── named
├── batch: batch_size=8, drop_last=False, prefetch=2
└── map_batches
    └── fn"""


def test_explain() -> None:
    assert full().explain() == EXPLAINED


def test_explain_has_one_line_per_transform() -> None:
    pipe = dataio.pipeline(DECODED.resize(h=dataio.param("h"), w=dataio.col("width")).center_crop(h=4, w=4))
    below = pipe.configure(h=8).explain().split("transforms:\n")[1].splitlines()
    assert below[:2] == ["│       ├── resize(h=8, w=col:width)", "│       └── center_crop(h=4, w=4)"]


@pytest.mark.parametrize(
    ("shape", "line"),
    [
        (dataio.batch(8), "batch: batch_size=8, drop_last=False"),
        (dataio.collate(), "collate"),
        (dataio.collate(prefetch=2), "collate, prefetch=2"),
        (dataio.group_by("scene"), "group_by: scene"),
        (dataio.group_by(fn, prefetch=1), "group_by: fn, prefetch=1"),
    ],
)
def test_explain_of_the_shape(shape: Any, line: str) -> None:
    assert dataio.pipeline(DECODED, shape).explain().splitlines()[-1] == f"└── {line}"


def test_iter_closes_its_loader() -> None:
    import threading

    pipe = dataio.pipeline(dataio.slot("x").passthrough(), dataio.batch(2))
    assert [b["x"] for b in pipe.iter([{"x": i} for i in range(3)], "numpy")] == [[0, 1], [2]]
    batches = pipe.iter([{"x": i} for i in range(100)], output="numpy", order="completion", seed=1)
    next(batches)
    batches.close()  # type: ignore[attr-defined]
    assert not [t for t in threading.enumerate() if t.name.startswith("dataio-")]


def test_options_are_set_ahead_and_run_wins() -> None:
    bound = full().bind([])
    assert bound.seed(3).order("completion").settings == {"seed": 3, "order": "completion"}
    assert bound.settings == {}
    with pytest.raises(TypeError, match="unknown option 'sed'"):
        bound.options(sed=1)
    with pytest.raises(ValueError, match="order"):
        bound.order("sideways").run("numpy")
    bound.order("sideways").run("numpy", order="submit").close()
