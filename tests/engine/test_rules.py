"""Rules: the plan after each rewrite, and that rewriting changes no row and no batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dataio
from dataio import cond
from dataio.engine import rules
from dataio.engine import streams as engine_streams
from dataio.engine.errors import InternalError
from dataio.engine.expr import All
from dataio.engine.frame_calls import FrameCall
from dataio.engine.plan import (
    Batch,
    Collate,
    Filter,
    GroupBy,
    Limit,
    MapBatches,
    MapRecords,
    Plan,
    Relation,
    Scan,
    Select,
    Slots,
    walk,
)
from dataio.engine.query_rows import QueryRows
from dataio.engine.registry import fusions
from dataio.engine.rewrite import Rewritten, rewrite, rule
from dataio.sources import as_source

from .helpers import jpeg

TABLE = pa.table(
    {
        "image": [jpeg(seed=i) for i in range(8)],
        "label": [0, 0, 1, 1, 1, None, 2, 2],
        "n": list(range(8)),
        "key": [f"k{i}" for i in range(8)],
        "extra": ["x"] * 8,
    }
)
SOURCE = as_source(TABLE)
ROWS = as_source(TABLE.to_pylist())
SCAN = Scan(SOURCE)
A, B = cond.col("n").gt(2), cond.col("label").is_not_null()


def python_filter(record: Any) -> bool:
    return bool(record["n"] % 2)


def identity(value: Any) -> Any:
    return value


PIPE = dataio.pipeline(dataio.slot("image").decode_image().resize(h=4, w=4), dataio.batch(2))
CHAINS = PIPE.chains()
NEEDED = ("image", "key")

SORTED = FrameCall("sort", ("n",), (("descending", True),))

CASES: dict[str, tuple[Plan, Plan, tuple[str, ...]]] = {
    "filter": (Filter(SCAN, A), replace(SCAN, predicate=A), ("predicate_pushdown",)),
    "filters": (
        Filter(Filter(SCAN, A), B),
        replace(SCAN, predicate=All((A, B))),
        ("predicate_pushdown", "predicate_pushdown"),
    ),
    "filter-select": (
        Filter(Select(SCAN, ("n", "label")), A),
        replace(SCAN, predicate=A, columns=("n", "label")),
        ("select_pushdown", "predicate_pushdown"),
    ),
    "filter-two-selects": (
        Filter(Select(Select(SCAN, ("n", "label", "key")), ("n",)), A),
        Select(replace(SCAN, predicate=A, columns=("n", "label", "key")), ("n",)),
        ("select_pushdown", "filter_below_select", "predicate_pushdown"),
    ),
    "filter-on-limit": (
        Filter(Limit(SCAN, 3), A),
        Filter(replace(SCAN, limit=3), A),
        ("limit_pushdown",),
    ),
    "limit": (Limit(SCAN, 3, 2), replace(SCAN, limit=3, offset=2), ("limit_pushdown",)),
    "limit-of-filter": (
        Limit(Filter(SCAN, A), 3),
        replace(SCAN, predicate=A, limit=3),
        ("predicate_pushdown", "limit_pushdown"),
    ),
    "limits": (
        Limit(Limit(SCAN, 5, 1), 9, 2),
        replace(SCAN, limit=3, offset=3),
        ("limit_pushdown", "limit_pushdown"),
    ),
    "limits-past-the-end": (
        Limit(Limit(SCAN, 2), 3, 5),
        replace(SCAN, limit=0, offset=5),
        ("limit_pushdown", "limit_pushdown"),
    ),
    "offset-only": (Limit(SCAN, None, 2), replace(SCAN, offset=2), ("limit_pushdown",)),
    "limit-two-selects": (
        Limit(Select(Select(SCAN, ("n", "label")), ("n",)), 2),
        Select(replace(SCAN, columns=("n", "label"), limit=2), ("n",)),
        ("select_pushdown", "limit_below_select", "limit_pushdown"),
    ),
    "select": (Select(SCAN, ("n",)), replace(SCAN, columns=("n",)), ("select_pushdown",)),
    "python-filter": (Filter(SCAN, python_filter), Filter(SCAN, python_filter), ()),
    "rows": (Limit(Filter(Select(Scan(ROWS), ("n",)), A), 2), Select(Limit(Filter(Scan(ROWS), A), 2), ("n",)),
             ("filter_below_select", "limit_below_select")),
    "relation": (
        Limit(Filter(Relation(SCAN, SORTED), A), 3),
        Scan(QueryRows(Relation(SCAN, SORTED)), predicate=A, limit=3),
        ("relation_as_source", "predicate_pushdown", "limit_pushdown"),
    ),
    "batch": (Batch(Slots(SCAN, CHAINS), 2), Batch(Slots(replace(SCAN, columns=NEEDED), CHAINS), 2), ("projection_pushdown",)),
    "group": (
        GroupBy(Slots(SCAN, CHAINS), "label"),
        GroupBy(Slots(replace(SCAN, columns=("image", "label", "key")), CHAINS), "label"),
        ("projection_pushdown",),
    ),
    "batch-of-query": (
        MapBatches(Batch(Slots(Limit(Filter(Select(SCAN, ("image", "n")), A), 3), CHAINS), 2), identity),
        MapBatches(
            Batch(Slots(replace(SCAN, columns=("image",), predicate=A, limit=3), CHAINS), 2), identity
        ),
        ("select_pushdown", "predicate_pushdown", "limit_pushdown", "projection_pushdown"),
    ),
    "collate": (Collate(Slots(SCAN, CHAINS)), Collate(Slots(SCAN, CHAINS)), ()),
    "map": (Batch(Slots(MapRecords(SCAN, identity), CHAINS), 2), Batch(Slots(MapRecords(SCAN, identity), CHAINS), 2), ()),
    "whole-records": (Batch(Slots(SCAN, CHAINS, True), 2), Batch(Slots(SCAN, CHAINS, True), 2), ()),
    "group-by-function": (GroupBy(Slots(SCAN, CHAINS), identity), GroupBy(Slots(SCAN, CHAINS), identity), ()),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_rewrite(name: str) -> None:
    before, after, fired = CASES[name]
    assert rewrite(before, rules.RELATIONAL) == Rewritten(after, fired)


@pytest.mark.parametrize("name", [n for n, (p, _, _) in CASES.items() if not any(isinstance(x, Slots) for x in walk(p))])
def test_rewritten_plans_yield_the_same_rows(name: str) -> None:
    before, after, _ = CASES[name]
    assert rows(after) == rows(before)


def rows(plan: Plan) -> list[Any]:
    return [{k: bytes(v) if isinstance(v, memoryview) else v for k, v in r.items()} for r in engine_streams.rows_below(plan)]


def test_a_missing_slot_column_keeps_the_others() -> None:
    pipe = dataio.pipeline(dataio.slot("imgae").decode_image(), dataio.batch(2))
    plan = Batch(Slots(SCAN, pipe.chains()), 2)
    assert rewrite(plan, rules.RELATIONAL) == Rewritten(plan, ())


def test_every_rule_has_a_case_and_a_summary() -> None:
    fired = {name for _, _, names in CASES.values() for name in names}
    assert fired == {r.name for r in rules.RELATIONAL}
    assert all("->" in r.summary for r in rules.RELATIONAL)
    assert all("->" in (f.__doc__ or "") for f in fusions().values())


FRAME = pl.DataFrame(
    {"a": [1, None, 3, 4, 5, 6], "b": ["x", "y", None, "x", "", "z"], "c": [0.5, float("nan"), 2.0, None, -1.0, 9.0]}
)
TESTS = st.sampled_from(
    [cond.col("a").gt(2), cond.col("b").eq("x"), ~cond.col("c").lt(1), cond.col("a").is_null() | cond.col("b"), cond.const(False)]
)


def steps(columns: tuple[str, ...]) -> st.SearchStrategy[Any]:
    """A step that the columns at hand allow."""
    allowed = TESTS.filter(lambda c: c.columns() <= set(columns))
    return (
        st.tuples(st.just("filter"), allowed)
        | st.tuples(st.just("limit"), st.integers(0, 7), st.integers(0, 4))
        | st.tuples(st.just("select"), st.lists(st.sampled_from(columns), min_size=1, unique=True))
    )


@st.composite
def queries(draw: st.DrawFn) -> list[Any]:
    columns: tuple[str, ...] = ("a", "b", "c")
    found = []
    for _ in range(draw(st.integers(0, 5))):
        step = draw(steps(columns))
        if step[0] == "select":
            columns = tuple(step[1])
        found.append(step)
    return found


@settings(max_examples=60, deadline=None)
@given(queries(), st.sampled_from(["rows", "frame", "lazy", "table", "reader"]))
def test_queries_mean_the_same_rewritten_and_on_every_source(query: list[Any], kind: str) -> None:
    """Filters, limits and selects in any order, over every kind of source, rewritten or not."""
    sources: dict[str, Any] = {
        "rows": FRAME.to_dicts,
        "frame": lambda: FRAME,
        "lazy": FRAME.lazy,
        "table": FRAME.to_arrow,
        "reader": lambda: FRAME.to_arrow().to_reader(),
    }

    def plan(source: Any) -> Plan:
        found: Plan = Scan(as_source(source))
        for step in query:
            match step:
                case ("filter", condition):
                    found = Filter(found, condition)
                case ("limit", count, offset):
                    found = Limit(found, count, offset)
                case ("select", columns):
                    found = Select(found, tuple(columns))
        return found

    expected = repr(rows(plan(FRAME.to_dicts())))
    assert repr(rows(plan(sources[kind]()))) == expected
    assert repr(rows(rules.optimize(plan(sources[kind]())).plan)) == expected


# -------------------------------------------------------------------- fusions of ops, on whole plans


def fused(*stages: Any) -> tuple[list[np.ndarray], list[np.ndarray], tuple[str, ...]]:
    """Batches of a plan as written and as rewritten, and the rules that fired."""
    bound = dataio.pipeline(*stages, dataio.batch(3)).bind(TABLE)
    plan = bound.plan()
    optimised = rules.optimize(plan)
    assert optimised.plan != plan
    after = [np.array(b["image"]) for b in bound.run("numpy", seed=1)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dataio.loader.optimize", lambda p: Rewritten(p, ()))
        before = [np.array(b["image"]) for b in bound.run("numpy", seed=1)]
    assert [b.shape for b in before] == [a.shape for a in after]
    assert [b.dtype for b in before] == [a.dtype for a in after]
    return before, after, optimised.fired


IMAGE = dataio.slot("image").decode_image()


@pytest.mark.parametrize(
    "slot",
    [
        IMAGE.resize_short(16).center_crop(h=12, w=14),
        IMAGE.resize(h=20, w=20).center_crop(h=dataio.col("n8"), w=8),
        IMAGE.fit_to_bucket(h=20, w=18).center_crop(h=6, w=9),
        IMAGE.resize_long(40).center_crop(h=64, w=64),
    ],
    ids=lambda s: s.transforms[0].name,
)
def test_crop_before_resize_on_whole_plans(slot: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.TABLE", TABLE.append_column("n8", pa.array([8] * len(TABLE))))
    before, after, names = fused(slot)
    assert "crop_before_resize" in names
    for b, a in zip(before, after):
        assert np.abs(b.astype(int) - a).max() <= 1


@pytest.mark.parametrize(
    "slot",
    [
        IMAGE.resize(h=8, w=8).apply(dataio.transforms.unit_chw(), dataio.transforms.normalize(mean=(0.4,) * 3, std=(0.2,) * 3)),
        IMAGE.resize(h=8, w=8).apply(dataio.transforms.symmetric_chw(), dataio.transforms.normalize(mean=(0.4,) * 3, std=(0.2,) * 3)),
        dataio.slot("image").decode(dataio.decoders.image()).apply(dataio.transforms.normalize(mean=(0.4,) * 3, std=(0.2,) * 3)),
    ],
    ids=["unit", "symmetric", "decoder"],
)  # fmt: skip
def test_normalize_fusion_on_whole_plans(slot: Any) -> None:
    before, after, names = fused(slot)
    assert "normalize_fusion" in names
    for b, a in zip(before, after):
        np.testing.assert_allclose(b, a, atol=1e-5)


def test_reduced_scale_jpeg_on_whole_plans() -> None:
    """Opt-in, because it changes pixels slightly."""
    before, after, names = fused(dataio.slot("image").decode_image(dct_scale=True).resize(h=6, w=8))
    assert "reduced_scale_jpeg" in names
    for b, a in zip(before, after):
        assert np.abs(b.astype(int) - a).mean() < 8
    plain = dataio.pipeline(IMAGE.resize(h=6, w=8), dataio.batch(3)).bind(TABLE)
    assert "reduced_scale_jpeg" not in rules.optimize(plain.plan()).fired


def test_all_image_rules_together_reach_a_fixed_point() -> None:
    slot = dataio.slot("image").decode_image(dct_scale=True).resize_short(12).center_crop(h=10, w=10).normalize()
    plan = dataio.pipeline(slot, dataio.batch(3)).bind(TABLE).plan()
    first = rules.optimize(plan)
    again = rules.optimize(first.plan)
    assert again == Rewritten(first.plan, ())
    assert {"crop_before_resize", "reduced_scale_jpeg", "projection_pushdown"} <= set(first.fired)


# -------------------------------------------------------------------- the driver


@dataclass(frozen=True, slots=True)
class Ping(Plan):
    n: int


def test_rules_that_do_not_settle_are_a_bug_that_is_found() -> None:
    @rule(Ping)
    def up(node: Ping) -> Plan | None:
        """Ping(n) -> Ping(n + 1)"""
        return Ping((node.n + 1) % 3)

    with pytest.raises(InternalError, match=r"rules up, up, up do not settle: Ping\(n=0\) came back"):
        rewrite(Ping(0), (up,))


def test_the_driver_starts_at_the_scan_and_remembers_the_order() -> None:
    seen: list[str] = []

    def looking() -> Iterator[Any]:
        for kind in (Filter, Scan):

            def look(node: Plan) -> None:
                """Nothing -> nothing"""
                seen.append(type(node).__name__)

            yield rule(kind)(look)

    plan = Filter(Filter(SCAN, A), B)
    assert rewrite(plan, tuple(looking())) == Rewritten(plan, ())
    assert seen == ["Scan", "Filter", "Filter"]


def test_a_rule_that_changes_nothing_has_not_fired() -> None:
    @rule(Filter)
    def copy(node: Filter) -> Plan:
        """Filter -> the same"""
        return replace(node)

    assert rewrite(Filter(SCAN, A), (copy,)).fired == ()
