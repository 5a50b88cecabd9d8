"""Conditions: branches on the transforms, optional slots, and the ops that choose among ops."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dataio
from dataio import cond, transforms
from dataio.engine.errors import BatchError, PlanError


def npy(array: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def image(h: int, w: int, value: int = 0) -> np.ndarray:
    return (np.arange(h * w * 3, dtype=np.uint32) + value).astype(np.uint8).reshape(h, w, 3)


def rows_of(pipe: dataio.Pipeline, records: Any, slot: str = "x", **options: Any) -> list[np.ndarray]:
    return [row for b in pipe.bind(records).run("numpy", seed=3, **options) for row in b[slot]]


def single(*ops: Any) -> dataio.Pipeline:
    return dataio.pipeline(dataio.slot("x").decode_npy().apply(*ops), dataio.batch(4))


IMAGES = [image(6 + i % 3, 8, i) for i in range(9)]
RECORDS = [{"x": npy(a), "kind": "abc"[i % 3], "rank": i} for i, a in enumerate(IMAGES)]


# ---------------------------------------------------------------- when / then


def test_the_first_true_condition_decides() -> None:
    slot = (
        dataio.slot("x")
        .decode_npy()
        .when(cond.col("kind").eq("a"))
        .then(transforms.crop(y=0, x=0, h=2, w=2))
        .elif_(cond.col("rank").lt(5))
        .then(transforms.crop(y=0, x=0, h=3, w=3))
        .otherwise(transforms.crop(y=0, x=0, h=4, w=4))
    )
    found = rows_of(dataio.pipeline(slot, dataio.batch(4)), RECORDS)
    assert [row.shape[0] for row in found] == [2, 3, 3, 2, 3, 4, 2, 4, 4]


def test_without_otherwise_a_record_that_meets_no_condition_stays_as_it_is() -> None:
    slot = dataio.slot("x").decode_npy().when(cond.col("kind").eq("a")).then(transforms.vflip(prob=1.0))
    found = rows_of(dataio.pipeline(slot, dataio.batch(4)), RECORDS)
    for i, (row, source) in enumerate(zip(found, IMAGES, strict=True)):
        assert np.array_equal(row, source[::-1] if i % 3 == 0 else source)


def test_otherwise_without_ops_leaves_the_value_and_ends_the_branch() -> None:
    stage = dataio.slot("x").decode_npy().when(cond.const(False)).then(transforms.hflip()).otherwise()
    assert len(stage.transforms) == 1
    assert not hasattr(stage, "arms")


def test_a_shape_condition_reads_the_tensor_where_the_branch_stands() -> None:
    slot = dataio.slot("x").decode_npy().center_crop(h=7, w=8).when(cond.shape(0, ">", 6)).then(transforms.resize(h=4, w=4))
    assert {row.shape for row in rows_of(dataio.pipeline(slot, dataio.batch(4)), RECORDS)} == {(4, 4, 3)}


@pytest.mark.parametrize("axis", [7, -9])
def test_an_axis_out_of_range_is_false(axis: int) -> None:
    found = rows_of(single(transforms.select([(cond.shape(axis), transforms.crop(y=0, x=0, h=1, w=1))])), RECORDS)
    assert [row.shape for row in found] == [a.shape for a in IMAGES]


def test_then_is_a_stage_that_goes_on() -> None:
    slot = dataio.slot("x").decode_npy().when(cond.col("rank")).then(transforms.hflip(prob=1.0)).center_crop(h=4, w=4)
    assert [t.name for t in slot.transforms] == ["select", "center_crop"]
    with pytest.raises(AttributeError):
        slot.center_crop(h=2, w=2).nonsense  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize(
    ("build", "error"),
    [
        (lambda s: s.when(cond.col("a")).then(), ValueError),
        (lambda s: s.when("a").then(transforms.hflip()), TypeError),
        (lambda s: s.when(dataio.col("a")).then(transforms.hflip()), TypeError),
        (lambda s: s.when(cond.col("a")).then(lambda v: v), TypeError),
        (lambda s: s.when(cond.col("a")).then(transforms.hflip()).vflip().elif_(cond.col("b")), ValueError),
        (lambda s: s.when(cond.col("a")).then(transforms.hflip()).vflip().otherwise(transforms.hflip()), ValueError),
        (lambda s: s.when(cond.col("a")).then(transforms.hflip()).otherwise().otherwise(), AttributeError),
    ],
)
def test_a_wrong_branch_is_refused_where_it_is_written(build: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        build(dataio.slot("x").decode_npy())


def test_a_branch_that_follows_another_branch_is_its_own() -> None:
    first = dataio.slot("x").decode_npy().when(cond.col("a")).then(transforms.hflip())
    second = first.when(cond.col("b")).then(transforms.vflip()).elif_(cond.col("c")).then(transforms.hflip())
    assert [len(t.arguments["arms"]) for t in second.transforms] == [1, 2]


# ---------------------------------------------------------------- select, sometimes, choice, some_of


def test_select_is_the_branch_as_one_transform() -> None:
    op = transforms.select(
        [(cond.col("rank").lt(3), [transforms.hflip(prob=1.0), transforms.vflip(prob=1.0)])],
        default=transforms.vflip(prob=1.0),
    )
    for i, (row, source) in enumerate(zip(rows_of(single(op), RECORDS), IMAGES, strict=True)):
        assert np.array_equal(row, source[::-1, ::-1] if i < 3 else source[::-1])


@pytest.mark.parametrize("prob", [0.0, 1.0])
def test_sometimes_runs_all_of_its_body_or_nothing(prob: float) -> None:
    body = [transforms.hflip(prob=1.0), transforms.vflip(prob=1.0)]
    for row, source in zip(rows_of(single(transforms.sometimes(body, prob=prob)), RECORDS), IMAGES, strict=True):
        assert np.array_equal(row, source[::-1, ::-1] if prob else source)


def test_choice_keeps_to_its_weights() -> None:
    arms = [transforms.crop(y=0, x=0, h=n, w=n) for n in (1, 2, 3)]
    records = [{"x": npy(image(4, 4))}] * 3000
    pipe = dataio.pipeline(dataio.slot("x").decode_npy().choice(arms, weights=[1, 0, 3]), dataio.batch(500))
    sizes = np.array([row.shape[0] for row in rows_of(pipe, records)])
    assert set(sizes.tolist()) == {1, 3}
    assert 0.70 < (sizes == 3).mean() < 0.80  # 0.75 expected, six standard deviations either way


def test_some_of_runs_distinct_arms_in_their_order() -> None:
    add = [transforms.custom(lambda v, n=n: np.append(v, np.uint8(n))) for n in range(5)]
    pipe = dataio.pipeline(dataio.slot("x").decode_npy().some_of(3, add), dataio.batch(50))
    found = rows_of(pipe, [{"x": npy(np.empty(0, np.uint8))}] * 200)
    assert all(len(row) == 3 and list(row) == sorted(set(row.tolist())) for row in found)
    assert len({tuple(row.tolist()) for row in found}) == 10


@pytest.mark.parametrize(
    ("build", "error", "match"),
    [
        (lambda: transforms.sometimes([]), ValueError, "at least one"),
        (lambda: transforms.sometimes("hflip"), TypeError, "takes transforms"),
        (lambda: transforms.sometimes(transforms.hflip(), prob=1.5), ValueError, "prob"),
        (lambda: transforms.sometimes(body=transforms.hflip()), TypeError, "by position"),
        (lambda: transforms.choice([]), ValueError, "at least one"),
        (lambda: transforms.choice([transforms.hflip()], weights=[1, 2]), ValueError, "1 arms but 2 weights"),
        (lambda: transforms.choice([transforms.hflip()], weights=[-1.0]), ValueError, "at least 0"),
        (lambda: transforms.choice([transforms.hflip()], weights=[0.0]), ValueError, "not all 0"),
        (lambda: transforms.choice([transforms.hflip()], weights=[float("nan")]), ValueError, "finite"),
        (lambda: transforms.choice([dataio.decoders.image()]), TypeError, "transforms"),
        (lambda: transforms.some_of(2, [transforms.hflip()]), ValueError, "only 1 arms"),
        (lambda: transforms.some_of(0, [transforms.hflip()]), ValueError, ">= 1"),
        (lambda: transforms.select([]), ValueError, "at least one"),
        (lambda: transforms.select([(cond.col("a"), [])]), ValueError, "at least one"),
        (lambda: transforms.select([(cond.col("a"), transforms.hflip())], default=[]), ValueError, "at least one"),
        (lambda: transforms.select([("a", transforms.hflip())]), TypeError, "dataio.cond"),
        (lambda: transforms.select([transforms.hflip()]), TypeError, "pairs"),
    ],
)
def test_wrong_arguments_are_refused_when_built(build: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        build()


def test_arms_of_different_static_shapes_are_told_before_anything_is_read() -> None:
    arms = [transforms.resize(h=4, w=4), transforms.resize(h=5, w=5)]
    pipe = dataio.pipeline(dataio.slot("x").decode_image().choice(arms), dataio.batch(2))
    with pytest.raises(ValueError, match="different shapes"):
        next(iter(pipe.bind([{"x": "/nowhere"}]).run("numpy")))


def test_an_op_inside_another_is_checked_against_what_it_is_given() -> None:
    pipe = dataio.pipeline(
        dataio.slot("x").decode_image().normalize().sometimes(transforms.resize(h=4, w=4)), dataio.batch(2)
    )
    with pytest.raises(ValueError, match="resize takes uint8"):
        next(iter(pipe.bind([{"x": "/nowhere"}]).run("numpy")))


def test_an_error_inside_names_the_inner_op() -> None:
    pipe = single(transforms.sometimes(transforms.crop(y=0, x=0, h=100, w=1), prob=1.0))
    batch = next(iter(pipe.bind(RECORDS).run("numpy", on_failure=0)))
    assert len(batch.errors) == 4
    assert batch.errors[0]["op"] == "sometimes"
    assert batch.errors[0]["message"].startswith("crop: ")


def test_arguments_inside_ops_may_come_from_columns_and_parameters() -> None:
    body = transforms.crop(y=0, x=0, h="rank1", w=2)
    slot = dataio.slot("x").decode_npy().when(cond.col("kind").eq("a")).then(body).otherwise(transforms.vflip(prob=1.0))
    pipe = dataio.pipeline(slot, dataio.batch(4))
    assert pipe.required_columns()["scalars"] == ["kind", "rank1"]
    found = rows_of(pipe, [r | {"rank1": 1 + i % 4} for i, r in enumerate(RECORDS)])
    assert [row.shape[:2] for row in found[::3]] == [(1, 2), (4, 2), (3, 2)]


def test_constant_conditions_are_worked_out_before_running() -> None:
    slot = (
        dataio.slot("x")
        .decode_npy()
        .when(cond.const(False))
        .then(transforms.hflip())
        .elif_(cond.any([cond.col("a"), cond.not_(cond.const(False))]))
        .then(transforms.vflip())
        .otherwise(transforms.invert())
    )
    text = dataio.pipeline(slot, dataio.batch(4)).bind(RECORDS).explain()
    written, runs = text.split("Plan as it runs")
    assert "constant_branches" in written
    assert "npy() -> vflip()" in runs


def test_rules_reach_the_ops_inside_a_branch() -> None:
    fit = [transforms.resize_short(size=6), transforms.center_crop(h=4, w=4)]
    slot = dataio.slot("x").decode_npy().when(cond.col("kind").eq("a")).then(*fit).otherwise(transforms.sometimes(fit, prob=1.0))
    pipe = dataio.pipeline(slot, dataio.batch(4))
    written, runs = pipe.bind(RECORDS).explain().split("Plan as it runs")
    assert written.count("center_crop") == 2
    assert "crop_before_resize" in written
    assert runs.count("resize_center_crop") == runs.count("center_crop") == 2
    plain = rows_of(single(*fit), RECORDS)
    for found, expected in zip(rows_of(pipe, RECORDS), plain, strict=True):
        assert np.abs(found.astype(int) - expected).max() <= 1


def test_a_branch_inside_a_branch_is_simplified_too() -> None:
    inner = transforms.select([(cond.const(True), transforms.vflip(prob=1.0))])
    pipe = single(transforms.sometimes([inner, transforms.hflip(prob=1.0)], prob=1.0))
    assert "sometimes(body=[vflip(prob=1.0), hflip(prob=1.0)], prob=1.0)" in pipe.bind(RECORDS).explain()
    nothing = single(transforms.sometimes(transforms.select([(cond.const(False), transforms.vflip())]), prob=1.0))
    assert all(np.array_equal(a, b) for a, b in zip(rows_of(nothing, RECORDS), IMAGES, strict=True))


def test_branches_are_part_of_the_signature() -> None:
    def signature(value: str, op: Any) -> str:
        slot = dataio.slot("x").decode_npy().when(cond.col("kind").eq(value)).then(op)
        return dataio.pipeline(slot, dataio.batch(4)).bind(RECORDS).signature()

    base = signature("a", transforms.hflip())
    assert base == signature("a", transforms.hflip())
    assert len({base, signature("b", transforms.hflip()), signature("a", transforms.vflip())}) == 3


@pytest.mark.parametrize("workers", ["thread", "process"])
def test_what_is_chosen_depends_on_seed_and_record_alone(workers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ops = (
        transforms.sometimes(transforms.hflip(), prob=0.5),
        transforms.choice([transforms.vflip(), [transforms.hflip(), transforms.random_crop(h=3, w=3)]]),
        transforms.some_of(1, [transforms.hflip(), transforms.vflip()]),
    )
    monkeypatch.setenv("DATAIO_CPU_WORKERS", "1")
    expected = rows_of(single(*ops), RECORDS, workers="thread")
    monkeypatch.setenv("DATAIO_CPU_WORKERS", "3")
    found = rows_of(single(*ops), RECORDS, workers=workers)
    assert all(np.array_equal(a, b) for a, b in zip(expected, found, strict=True))


def test_sibling_slots_choose_alike() -> None:
    records = [{"x": npy(image(4, 6, i)), "y": npy(image(4, 6, i + 7))} for i in range(64)]
    slots = dataio.slots(["x", "y"]).using(
        dataio.chain().decode_npy().choice([transforms.custom(lambda v: v[:1]), transforms.custom(lambda v: v[:2])]).hflip()
    )
    for batch in dataio.pipeline(slots, dataio.batch(64)).bind(records).run("numpy", seed=0):
        assert len({row.shape for row in batch["x"]}) == 2
        assert [row.shape for row in batch["x"]] == [row.shape for row in batch["y"]]
        assert all(np.array_equal(a.astype(int) + 7, b.astype(int)) for a, b in zip(batch["x"], batch["y"], strict=True))


# ---------------------------------------------------------------- optional slots


def two_slots(**kinds: Any) -> dataio.Pipeline:
    slots = [dataio.slot("x").decode_npy(), dataio.slot("mask", optional=True).decode_npy()]
    if "skip" in kinds:
        slots[1] = slots[1].skip_when(kinds["skip"])
    if "active" in kinds:
        slots[1] = slots[1].active_when(kinds["active"])
    return dataio.pipeline(*slots, dataio.batch(2))


def test_an_inactive_slot_costs_no_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []
    from dataio import loader
    from dataio.io.resolve import read_source

    def counted(source: Any) -> Any:
        opened.append(source)
        return read_source(source)

    monkeypatch.setattr(loader, "read_source", counted)
    (tmp_path / "m.npy").write_bytes(npy(image(2, 2)))
    mask = str(tmp_path / "m.npy")
    records = [{"x": npy(image(2, 2)), "mask": mask, "split": "train" if i < 4 else "test"} for i in range(8)]
    pipe = two_slots(active=cond.col("split").eq("train"))
    with pipe.bind(records).run("numpy") as loader_:
        names = [b.slot_names for b in loader_]
        assert names == [["x", "mask"]] * 2 + [["x"]] * 2
        assert [s for s in opened if s == mask] == [mask] * 4
        assert loader_.stats()["samples_failed"] == 0


@pytest.mark.parametrize("absent", [{}, {"mask": None}], ids=["missing", "null"])
def test_an_optional_slot_without_its_value_is_off(absent: dict[str, Any]) -> None:
    records = [{"x": npy(image(2, 2)), **absent}] * 2
    (batch,) = two_slots().bind(records).run("numpy")
    assert batch.slot_names == ["x"]


def test_records_of_one_batch_must_agree() -> None:
    records = [{"x": npy(image(2, 2)), "mask": npy(image(2, 2))}, {"x": npy(image(2, 2))}]
    with pytest.raises(BatchError, match="optional_slot_mismatch"):
        list(two_slots().bind(records).run("numpy", on_failure=0))


def test_a_condition_on_a_slot_that_is_not_optional_names_the_record() -> None:
    pipe = dataio.pipeline(
        dataio.slot("x").decode_npy(), dataio.slot("y").decode_npy().skip_when(cond.col("n").gt(2)), dataio.batch(2)
    )
    records = [{"x": npy(image(1, 1)), "y": npy(image(1, 1)), "n": i} for i in range(6)]
    with pytest.raises(ValueError, match=r"record 3.*optional=True"):
        list(pipe.bind(records).run("numpy"))


def test_a_record_with_every_slot_off_is_an_error_that_names_it() -> None:
    pipe = dataio.pipeline(dataio.slot("x", optional=True).decode_npy(), dataio.batch(2))
    with pytest.raises(ValueError, match="record 2"):
        list(pipe.bind([{"x": npy(image(1, 1))}] * 2 + [{"x": None}] * 2).run("numpy"))


def test_a_shape_condition_cannot_switch_a_slot_off() -> None:
    with pytest.raises(PlanError, match="decoded tensor"):
        next(iter(two_slots(skip=cond.shape(0, ">", 3)).bind([{"x": b"", "mask": b""}]).run("numpy")))


def test_a_field_that_cannot_be_compared_ends_the_iteration() -> None:
    records = [{"x": npy(image(1, 1)), "mask": None, "tags": ["a"]}]
    with pytest.raises(TypeError, match="'tags', which holds a list"):
        list(two_slots(skip=cond.col("tags").eq("a")).bind(records).run("numpy"))


@pytest.mark.parametrize("columnar", [False, True])
def test_rows_and_columns_switch_slots_alike(columnar: bool) -> None:
    import pyarrow as pa

    rows = [{"x": npy(image(2, 2, i)), "mask": npy(image(1, 1)) if i % 4 < 2 else None, "n": i} for i in range(8)]
    records: Any = pa.Table.from_pylist(rows) if columnar else rows
    found = [b.slot_names for b in two_slots(skip=cond.col("n").ge(6)).bind(records).run("numpy")]
    assert found == [["x", "mask"], ["x"], ["x", "mask"], ["x"]]


LITERALS = st.one_of(st.none(), st.booleans(), st.integers(-3, 3), st.sampled_from([0.5, 2.0]), st.sampled_from(["a", "b", ""]))
CONDITIONS = st.recursive(
    st.one_of(
        st.builds(lambda f: cond.col(f), st.sampled_from("pq")),
        st.builds(
            lambda f, op, v: getattr(cond.col(f), op)(v),
            st.sampled_from("pq"),
            st.sampled_from(["eq", "ne", "lt", "le", "gt", "ge"]),
            LITERALS,
        ),
        st.builds(lambda f, v: cond.col(f).is_in(v), st.sampled_from("pq"), st.lists(LITERALS, max_size=3)),
        st.builds(lambda f: cond.col(f).is_null(), st.sampled_from("pq")),
        st.builds(cond.const, st.booleans()),
    ),
    lambda inner: st.one_of(
        st.builds(lambda a, b: a & b, inner, inner), st.builds(lambda a, b: a | b, inner, inner), st.builds(lambda a: ~a, inner)
    ),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(CONDITIONS, st.lists(st.fixed_dictionaries({}, optional={"p": LITERALS, "q": LITERALS}), min_size=1, max_size=6))
def test_a_condition_over_columns_equals_that_of_each_record(condition: Any, records: list[dict[str, Any]]) -> None:
    from dataio.engine.expr import folded

    whole = condition.over(lambda name: [r.get(name) for r in records], len(records))
    assert whole.tolist() == [condition.of_record(r.get) for r in records]
    assert whole.tolist() == folded(condition).over(lambda name: [r.get(name) for r in records], len(records)).tolist()


# ---------------------------------------------------------------- custom


def test_a_custom_function_is_an_op() -> None:
    found = rows_of(dataio.pipeline(dataio.slot("x").decode_npy().custom(lambda v: v.sum(axis=2)), dataio.batch(3)), RECORDS)
    assert all(np.array_equal(row, a.sum(axis=2)) for row, a in zip(found, IMAGES, strict=True))


@pytest.mark.parametrize("workers", ["thread", "process"])
def test_a_custom_function_may_draw_from_the_stream_of_its_record(workers: str) -> None:
    pipe = single(transforms.custom(lambda v, rng: rng.integers(0, 1 << 40, 2)))
    first, second = rows_of(pipe, RECORDS), rows_of(pipe, RECORDS, workers=workers)
    assert np.array_equal(first, second)
    assert len({int(row[0]) for row in first}) == len(RECORDS)


def test_name_and_version_stand_for_a_custom_function() -> None:
    def signature(*args: Any, **kwargs: Any) -> str:
        return single(transforms.custom(*args, **kwargs)).bind(RECORDS).signature()

    named = dataio.custom_op(lambda v: v, name="same", version="2")
    assert signature(named) == signature(lambda v: v + 1, name="same", version="2")
    assert signature(named) != signature(lambda v: v, name="same", version="3")
    assert signature(lambda v: v + 1) != signature(lambda v: v + 2)


@pytest.mark.parametrize("result", ["text", None, {"a": 1}])
def test_a_custom_function_must_give_an_array(result: Any) -> None:
    batch = next(iter(single(transforms.custom(lambda v: result)).bind(RECORDS).run("numpy", on_failure=0)))
    assert len(batch.errors) == 4
    assert "must give an array" in batch.errors[0]["message"]


def test_an_exception_in_a_custom_function_is_the_record_s_error() -> None:
    def fragile(value: np.ndarray) -> np.ndarray:
        if value.shape[0] == 7:
            raise ZeroDivisionError("seven")
        return value

    (first, *_) = single(transforms.custom(fragile)).bind(RECORDS).run("numpy")
    assert [(e["index"], e["op"], e["type"], e["message"]) for e in first.errors] == [(1, "custom", "ZeroDivisionError", "seven")]


def test_a_tensor_that_a_custom_function_gives_comes_back_as_an_array() -> None:
    import torch

    found = rows_of(single(transforms.custom(lambda v: torch.from_numpy(v.copy()).float().mean())), RECORDS)
    assert {row.dtype.name for row in found} == {"float32"}
    assert all(np.isclose(row, a.mean()) for row, a in zip(found, IMAGES, strict=True))
