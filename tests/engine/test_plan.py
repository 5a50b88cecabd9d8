"""Plan nodes are values; the text of a plan is fit for golden files."""

from __future__ import annotations

import dataclasses
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import dataio
from dataio import cond
from dataio.engine.expr import Col
from dataio.engine.plan import (
    Batch,
    Chain,
    Filter,
    Limit,
    Scan,
    Select,
    Slots,
    input_of,
    needs_records,
    walk,
)
from dataio.engine.registry import lookup
from dataio.sources import as_source

GOLDEN = Path(__file__).parent / "golden"
TABLE = pa.table({"image": [b""], "label": [1], "width": [7], "extra": ["x"], "key": ["k"]})


def named(record: Any) -> Any:
    return record


def wide(record: Any) -> bool:
    return bool(record["width"] > 3)


def training(shape: Any = None) -> dataio.Pipeline:
    return dataio.pipeline(
        dataio.slot("image").decode_image().resize_short(256).center_crop(h=224, w=224).normalize("imagenet"),
        dataio.slot("label").passthrough(),
        shape or dataio.batch(32, drop_last=True),
    )


PLANS: dict[str, Any] = {
    "training": lambda: training().bind(TABLE),
    "query": lambda: training(dataio.batch(8)).bind(
        dataio.scan(TABLE).select("image", "label", "width").filter(cond.col("width").gt(3) & ~cond.col("label").is_null()).limit(10, 2)
    ),
    "records": lambda: dataio.pipeline(
        dataio.map(named),
        dataio.map(dataio.custom_op(named, name="rename", version="2")),
        dataio.slot("image", optional=True).decode_image().resize(h=dataio.col("h"), w=8).skip_when(cond.col("bad")),
        dataio.slot("mask").decode_image(mode="gray"),
        dataio.group_by("label", prefetch=2),
        dataio.map(named),
    ).bind([{"image": b"", "mask": b"", "label": 1}]),
    "python-filter": lambda: training(dataio.batch(8)).bind(dataio.scan(TABLE).filter(wide).filter(cond.col("label").eq(1))),
    "fused-decoder": lambda: dataio.pipeline(
        dataio.slot("image").decode(dataio.decoders.image()).apply(dataio.transforms.normalize(mean=(0.5,) * 3, std=(0.5,) * 3)),
        dataio.slot("key").decode_image(dct_scale=True).resize_short(64).center_crop(h=64, w=64),
        dataio.collate(),
    ).bind([[]]),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANS)
def test_explain_is_golden(name: str) -> None:
    """To accept a change: delete the file, run again, and look at the difference."""
    text = PLANS[name]().explain() + "\n"
    file = GOLDEN / f"{name}.txt"
    if not file.exists():
        file.write_text(text)
        pytest.fail(f"{file.name} was made; look at it and add it")
    assert text == file.read_text()


@pytest.mark.parametrize("name", PLANS)
def test_explain_and_plan_are_deterministic(name: str) -> None:
    first, second = PLANS[name](), PLANS[name]()
    assert first.explain() == second.explain()
    assert " at 0x" not in first.explain()
    assert " at 0x" not in str(first.describe())


def test_nodes_are_frozen_hashable_and_equal_by_content() -> None:
    source = as_source([1])
    one = Limit(Filter(Scan(source), cond.col("x").gt(1)), 3)
    other = Limit(Filter(Scan(source), cond.col("x").gt(1)), 3)
    assert one == other
    assert hash(one) == hash(other)
    assert one != Limit(one.input, 4)
    assert Scan(source) != Scan(as_source([1])), "a source is compared by identity"
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.count = 4  # type: ignore[misc]


def test_walk_goes_from_the_top_to_the_scan() -> None:
    plan = training().bind(TABLE).plan()
    assert [type(node) for node in walk(plan)] == [Batch, Slots, Scan]
    assert input_of(list(walk(plan))[-1]) is None


def test_chains_pickle() -> None:
    chain = training().chains()[0]
    copy = pickle.loads(pickle.dumps(chain))
    assert copy == chain
    assert copy.calls[0].spec is lookup("image", "decoder")


def test_what_a_chain_reads() -> None:
    decoder = lookup("image", "decoder").call()
    resize = lookup("resize", "transform").call(h=Col("h"), w=Col("w"))
    chain = Chain("image", decoder, (resize, resize), skip=cond.col("z").eq(1) & cond.col("a"))
    assert chain.columns() == ("a", "z", "h", "w")
    assert Slots(Scan(as_source([])), (chain,)).columns() == ("image", "a", "z", "h", "w")



@pytest.mark.parametrize(
    ("bound", "expected"),
    [
        (lambda: training().bind(TABLE), False),
        (lambda: training(dataio.group_by("label")).bind(TABLE), False),
        (lambda: training(dataio.group_by(0)).bind(TABLE), True),
        (lambda: training(dataio.group_by(wide)).bind(TABLE), True),
        (lambda: training(dataio.collate()).bind(TABLE), True),
        (lambda: training().bind(dataio.scan(TABLE).filter(wide)), True),
        (lambda: training().bind(dataio.scan(TABLE).filter(cond.col("label"))), False),
        (lambda: dataio.pipeline(dataio.map(named), *training().slots, dataio.batch(2)).bind(TABLE), True),
    ],
)
def test_what_makes_the_needed_columns_unknown(bound: Any, expected: bool) -> None:
    assert needs_records(bound().plan()) is expected


def test_context_reads_whole_records() -> None:
    assert needs_records(training().bind(TABLE).plan(whole_records=True))


def test_select_has_columns_in_order() -> None:
    query = dataio.scan(TABLE)
    assert query.select("label", "image").plan == Select(query.plan, ("label", "image"))
    assert query.select("label", "image").columns() == ["label", "image"]
