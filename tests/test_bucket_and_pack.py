"""`bucket_by` and `pack`: which records stand together, what a batch holds, and what is held back."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dataio
from dataio.cond import col
from dataio.engine.errors import BatchError, CheckpointError

from .conftest import npy

pytestmark = pytest.mark.usefixtures("two_workers", "no_leftovers")

X = dataio.slot("x").decode_npy()
TOKENS = dataio.slot("tokens").decode(dataio.decoders.array())
BAD = b"no array"


def load(source: Any, *stages: Any, **options: Any) -> dataio.DataLoader:
    return dataio.pipeline(*stages).bind(source).run("numpy", **{"workers": "thread", "seed": 3, **options})


def keys(source: Any, *stages: Any, **options: Any) -> list[list[str]]:
    with load(source, *stages, **options) as loader:
        return [batch.keys for batch in loader]


def kinds(text: str) -> list[dict[str, Any]]:
    """One record per letter, of that kind."""
    return [{"x": npy(np.array([ord(kind)])), "key": f"{kind}{i}", "kind": kind, "i": i} for i, kind in enumerate(text)]


def sequences(lengths: list[int]) -> list[dict[str, Any]]:
    """Sequence i has the tokens 100 * i + 1, 100 * i + 2, ..."""
    return [{"tokens": 100 * i + 1 + np.arange(n), "key": str(i), "n": n} for i, n in enumerate(lengths)]


# -------------------------------------------------------------------------------------------------- bucket_by


def test_a_batch_holds_one_bucket_and_comes_when_it_is_full() -> None:
    assert keys(kinds("aabbabbab"), X, dataio.bucket_by("kind", 3)) == [
        ["a0", "a1", "a4"],
        ["b2", "b3", "b5"],
        ["b6", "b8"],
        ["a7"],
    ]


def test_drop_last_leaves_out_what_is_open_at_the_end() -> None:
    assert keys(kinds("aabbabbab"), X, dataio.bucket_by("kind", 3, drop_last=True)) == [
        ["a0", "a1", "a4"],
        ["b2", "b3", "b5"],
    ]


def test_sizes_may_differ_by_bucket() -> None:
    assert keys(kinds("aabbab"), X, dataio.bucket_by("kind", {"a": 1, "b": 3})) == [["a0"], ["a1"], ["a4"], ["b2", "b3", "b5"]]


@pytest.mark.parametrize("sizes", [2, [2, 2, 2], {0: 2, 1: 2, 2: 2}], ids=["number", "list", "mapping"])
def test_boundaries_make_buckets_of_numbers(sizes: Any) -> None:
    """A boundary belongs to the bucket above it."""
    stage = dataio.bucket_by("i", sizes, boundaries=[2, 4])
    assert keys(kinds("aaaaaaa"), X, stage) == [["a0", "a1"], ["a2", "a3"], ["a4", "a5"], ["a6"]]


@pytest.mark.parametrize(
    "key", ["kind", dataio.col("kind"), col("kind").eq("a"), lambda r: r["kind"]], ids=["name", "col", "condition", "callable"]
)
@pytest.mark.parametrize("source", ["list", "generators", "table", "frame", "mapped"])
def test_a_key_of_any_kind_over_a_source_of_any_kind(key: Any, source: str) -> None:
    found = kinds("abbabab")
    sources: dict[str, Any] = {
        "list": found,
        "generators": lambda: iter(found),
        "table": pa.Table.from_pylist(found),
        "frame": pl.DataFrame(found),
        "mapped": found,
    }
    maps = [dataio.map(dict)] if source == "mapped" else []
    assert keys(sources[source], *maps, X, dataio.bucket_by(key, 2)) == [["b1", "b2"], ["a0", "a3"], ["b4", "b6"], ["a5"]]


@pytest.mark.parametrize("source", [list, lambda records: lambda: iter(records)], ids=["list", "generators"])
@given(text=st.text("abcd", max_size=80), size=st.integers(1, 5))
@settings(max_examples=30, deadline=None)
def test_buckets_are_those_of_a_plain_loop(source: Callable[[Any], Any], text: str, size: int) -> None:
    opened: dict[str, list[str]] = {}
    expected: list[list[str]] = []
    for record in kinds(text):
        members = opened.setdefault(record["kind"], [])
        members.append(record["key"])
        if len(members) == size:
            expected.append(opened.pop(record["kind"]))
    expected += opened.values()
    assert keys(source(kinds(text)), X, dataio.bucket_by("kind", size)) == expected


@pytest.mark.parametrize("drop_last", [False, True])
@given(text=st.text("abc", max_size=40), of=st.integers(2, 4), size=st.integers(1, 3))
@settings(max_examples=15, deadline=None)
def test_each_rank_gets_its_part_of_each_bucket(drop_last: bool, text: str, of: int, size: int) -> None:
    """What a rank has under pad=False is its part of the batches of one process with batches `of` times as large."""
    expected = keys(kinds(text), X, dataio.bucket_by("kind", size * of))
    for rank in range(of):
        own = [batch[rank::of] for batch in expected]
        own = [batch for batch in own if batch and (len(batch) == size or not drop_last)]
        shard = {"id": rank, "of": of, "pad": False}
        assert keys(kinds(text), X, dataio.bucket_by("kind", size, drop_last=drop_last), shard=shard) == own


def test_lists_are_keys_too() -> None:
    """As sizes come out of JSON and Arrow."""
    found = [{**record, "size": [[record["i"] % 2], [1]]} for record in kinds("aaaa")]
    stage = dataio.bucket_by("size", {((0,), (1,)): 2, ((1,), (1,)): 1})
    assert keys(found, X, stage) == keys(pa.Table.from_pylist(found), X, stage) == [["a1"], ["a0", "a2"], ["a3"]]


@pytest.mark.parametrize("value", [{"a": 1}, float("nan"), np.zeros(2)], ids=["dict", "nan", "array"])
def test_a_key_that_names_no_bucket_is_a_row_error(value: Any) -> None:
    found = kinds("aaaaa")
    found[2]["kind"] = value
    with load(found, X, dataio.bucket_by("kind", 2)) as loader:
        batches = list(loader)
    assert [batch.keys for batch in batches] == [["a0", "a1"], ["a3", "a4"]]
    assert [(e["op"], e["record"]) for e in batches[1].errors] == [("bucket_by", 2)]


@pytest.mark.parametrize("value", ["wide", None, float("nan"), [1]])
def test_boundaries_need_numbers(value: Any) -> None:
    found = kinds("aaa")
    found[0]["i"] = value
    with load(found, X, dataio.bucket_by("i", 2, boundaries=[2])) as loader:
        first, second = loader
    assert (first.keys, second.keys) == (["a1"], ["a2"])
    assert f"needs numbers, got {value!r}" in first.errors[0]["message"]


def test_records_without_the_field_or_whose_key_raises_cost_only_themselves() -> None:
    found = kinds("abab" * 3)
    del found[0]["kind"], found[7]["kind"]
    for key in ("kind", lambda record: record["kind"]):
        with load(found, X, dataio.bucket_by(key, 2)) as loader:
            batches = list(loader)
        assert sorted(k for b in batches for k in b.keys) == sorted(r["key"] for r in found if "kind" in r)
        assert sorted(e["record"] for b in batches for e in b.errors) == [0, 7]


def test_a_field_that_no_record_has_is_said_with_the_first_batch() -> None:
    with load(kinds("abab" * 40), X, dataio.bucket_by("knid", 4)) as loader, pytest.raises(BatchError, match=r"bucket_by.'knid'.*no such field"):
        next(iter(loader))


def test_records_that_fail_in_a_map_are_reported_once_with_a_full_batch() -> None:
    def fussy(record: dict[str, Any]) -> dict[str, Any]:
        if record["i"] in (0, 4, 5):
            raise ValueError("bad")
        return record

    with load(kinds("abababababa"), dataio.map(fussy), X, dataio.bucket_by("kind", 2)) as loader:
        batches = list(loader)
    assert [batch.keys for batch in batches] == [["b1", "b3"], ["a2", "a6"], ["b7", "b9"], ["a8", "a10"]]
    assert [e["record"] for batch in batches for e in batch.errors] == [0, 4, 5]


def test_records_that_all_fail_are_not_held_for_ever() -> None:
    with load(kinds("a" * 1000), dataio.map(lambda r: r["nothing"]), X, dataio.bucket_by("kind", 4), on_failure=0) as loader:
        batches = list(loader)
    assert max(len(batch.errors) for batch in batches) < 10
    assert sum(len(batch.errors) for batch in batches) == 1000


def test_records_that_cannot_be_decoded_leave_their_batch_shorter() -> None:
    found = kinds("ababab")
    found[2]["x"] = BAD
    with load(found, X, dataio.bucket_by("kind", 3), context=lambda r: r["i"]) as loader:
        first, second = loader
    assert (first.keys, first.context, first["x"][:, 0].tolist()) == (["a0", "a4"], [0, 4], [97, 97])
    assert (second.keys, second.context) == (["b1", "b3", "b5"], [1, 3, 5])
    assert [e["index"] for e in first.errors] == [1]


def test_a_bucket_without_a_size_is_an_error_that_names_the_sizes() -> None:
    with load(kinds("aab"), X, dataio.bucket_by("kind", {"a": 2, "c": 2})) as loader, pytest.raises(ValueError, match=r"no size is given for bucket 'b'.*'a', 'c'"):
        list(loader)


def test_more_buckets_than_may_be_open_are_an_error() -> None:
    with load(kinds("aabbc"), X, dataio.bucket_by("kind", 2, max_open=1)) as loader:
        assert len(list(loader)) == 3, "a delivered bucket is not open"
    with load(kinds("abc"), X, dataio.bucket_by("kind", 2, max_open=2)) as loader, pytest.raises(ValueError, match="more than max_open=2"):
        list(loader)


def test_batches_come_as_soon_as_they_are_full_where_records_come_one_by_one() -> None:
    read: list[int] = []

    def slowly() -> Iterator[dict[str, Any]]:
        for i, record in enumerate(kinds("ab" * 500)):
            read.append(i)
            yield record

    with load(slowly, X, dataio.bucket_by("kind", 2, prefetch=1)) as loader:
        assert next(iter(loader)).keys == ["a0", "a2"]
        assert len(read) < 10


@pytest.mark.parametrize(
    ("arguments", "options", "error"),
    [
        ((3, 2), {}, TypeError),
        (("", 2), {}, ValueError),
        (("kind", True), {}, TypeError),
        (("kind", 2.0), {}, TypeError),
        (("kind", "2"), {}, TypeError),
        (("kind", 0), {}, ValueError),
        (("kind", {}), {}, ValueError),
        (("kind", {"a": 0}), {}, ValueError),
        (("kind", [2, 2]), {}, ValueError),
        (("kind", [2, 2]), {"boundaries": [1, 2]}, ValueError),
        (("kind", 2), {"boundaries": []}, ValueError),
        (("kind", 2), {"boundaries": [2, 1]}, ValueError),
        (("kind", 2), {"boundaries": [1, 1]}, ValueError),
        (("kind", 2), {"boundaries": [float("nan")]}, ValueError),
        (("kind", 2), {"boundaries": ["a"]}, ValueError),
        (("kind", 2), {"drop_last": 1}, TypeError),
        (("kind", 2), {"max_open": 0}, ValueError),
        (("kind", 2), {"prefetch": 0}, ValueError),
    ],
    ids=repr,
)
def test_bucket_by_checks_its_arguments(arguments: Any, options: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        dataio.bucket_by(*arguments, **options)


# -------------------------------------------------------------------------------------------------- pack


def packed(lengths: list[int], length: int, **options: Any) -> list[Any]:
    run = {name: options.pop(name) for name in ("on_failure", "shard", "steps", "context") if name in options}
    with load(sequences(lengths), TOKENS, dataio.pack(length, **options), **run) as loader:
        return list(loader)


def test_sequences_share_rows() -> None:
    (batch,) = packed([3, 2, 2, 4], 6, size=3)
    assert batch["tokens"].tolist() == [[201, 202, 301, 302, 303, 304], [1, 2, 3, 101, 102, 0]], "the full row first"
    assert batch["segment_ids"].tolist() == [[1, 1, 2, 2, 2, 2], [1, 1, 1, 2, 2, 0]]
    assert batch["positions"].tolist() == [[0, 1, 0, 1, 2, 3], [0, 1, 2, 0, 1, 0]]
    assert batch.keys == ["2", "3", "0", "1"], "in the order of the rows"
    assert batch["segment_ids"].dtype == batch["positions"].dtype == np.int32
    assert batch.slot_names == ["tokens", "segment_ids", "positions"]


def unpacked(batches: list[Any]) -> Counter[tuple[int, ...]]:
    """The sequences in the rows of batches, by their segment ids and positions."""
    found: Counter[tuple[int, ...]] = Counter()
    for batch in batches:
        for tokens, ids, places in zip(batch["tokens"], batch["segment_ids"], batch["positions"]):
            for segment in range(1, ids.max() + 1):
                assert places[ids == segment].tolist() == list(range((ids == segment).sum()))
                found[tuple(tokens[ids == segment].tolist())] += 1
    return found


@given(
    lengths=st.lists(st.integers(1, 8), max_size=60),
    size=st.integers(1, 3),
    strategy=st.sampled_from(["first_fit", "best_fit"]),
    open_rows=st.integers(1, 5),
)
@settings(max_examples=40, deadline=None)
def test_each_sequence_comes_once_and_whole(lengths: list[int], size: int, strategy: str, open_rows: int) -> None:
    batches = packed(lengths, 8, size=size, strategy=strategy, open_rows=open_rows)
    assert unpacked(batches) == Counter(tuple(r["tokens"].tolist()) for r in sequences(lengths))
    assert sorted(k for b in batches for k in b.keys) == sorted(map(str, range(len(lengths))))
    assert [len(b["tokens"]) for b in batches[:-1]] == [size] * (len(batches) - 1)


@pytest.mark.parametrize("strategy", ["first_fit", "best_fit"])
@pytest.mark.parametrize("length", [512, 2048])
def test_rows_are_nearly_full_on_texts_of_typical_lengths(strategy: str, length: int) -> None:
    lengths = np.minimum(length, np.random.default_rng(0).lognormal(4.8, 0.9, 6000).astype(int) + 1)
    batches = packed(lengths.tolist(), length, size=8, strategy=strategy)
    filled = sum(int((b["segment_ids"] > 0).sum()) for b in batches)
    assert filled == lengths.sum()
    assert filled / sum(b["segment_ids"].size for b in batches) > 0.95


def test_padding_is_the_pad_value() -> None:
    (batch,) = packed([2], 4, pad_value=-1)
    assert batch["tokens"].tolist() == [[1, 2, -1, -1]]
    assert batch["segment_ids"].tolist() == [[1, 1, 0, 0]]


def test_a_last_batch_with_fewer_rows_is_kept_or_dropped() -> None:
    assert [len(b["tokens"]) for b in packed([4, 4, 4], 4, size=2)] == [2, 1]
    assert [len(b["tokens"]) for b in packed([4, 4, 4], 4, size=2, drop_last=True)] == [2]


def test_a_sequence_that_is_too_long_is_a_row_error_truncated_or_split() -> None:
    (batch,) = packed([3, 9, 3], 4, size=9)
    assert (batch.keys, [e["record"] for e in batch.errors]) == (["0", "2"], [1])
    assert "a sequence of 9 tokens does not fit a row of 4" in batch.errors[0]["message"]
    (batch,) = packed([3, 9, 3], 4, size=9, overflow="truncate")
    assert (batch.keys, unpacked([batch])[101, 102, 103, 104]) == (["1", "0", "2"], 1)
    (batch,) = packed([3, 9, 3], 4, size=9, overflow="split")
    assert batch["tokens"].tolist() == [[101, 102, 103, 104], [105, 106, 107, 108], [1, 2, 3, 109], [201, 202, 203, 0]]
    assert batch.keys == ["1", "0", "2"], "once, however many pieces"


def test_a_split_sequence_may_lie_in_several_batches() -> None:
    batches = packed([2, 10, 2], 4, overflow="split")
    assert sum(unpacked(batches).values()) == 5
    assert [key for b in batches for key in b.keys if key == "1"] == ["1"] * 3


@pytest.mark.parametrize("overflow", ["error", "truncate", "split"])
def test_an_empty_sequence_is_a_row_error(overflow: str) -> None:
    (batch,) = packed([2, 0, 2], 4, overflow=overflow)
    assert (batch.keys, [e["record"] for e in batch.errors]) == (["0", "2"], [1])
    assert "empty sequence" in batch.errors[0]["message"]


def test_a_record_without_tokens_is_a_row_error() -> None:
    found = sequences([2, 2, 2])
    del found[0]["tokens"]
    found[2]["tokens"] = None
    with load(found, TOKENS, dataio.pack(4, size=2)) as loader:
        (batch,) = loader
    assert batch.keys == ["1"]
    assert [e["record"] for e in batch.errors] == [0, 2]


def test_records_that_all_fail_are_not_held_by_a_packer() -> None:
    with load(sequences([0] * 1000), TOKENS, dataio.pack(8, open_rows=4), on_failure=0) as loader:
        batches = list(loader)
    assert max(len(b.errors) for b in batches) < 10
    assert sum(len(b.errors) for b in batches) == 1000
    assert all(len(b) == 0 for b in batches)


def npy_sequences(lengths: list[int], **other: Any) -> list[dict[str, Any]]:
    return [{**r, "tokens": npy(r["tokens"]), **{k: f(r["n"]) for k, f in other.items()}} for r in sequences(lengths)]


def test_a_sequence_that_cannot_be_decoded_leaves_padding_in_its_row() -> None:
    found = npy_sequences([2, 2, 2])
    found[1]["tokens"] = BAD
    stages = dataio.slot("tokens").decode_npy(), dataio.pack(6, tokens="n")
    with load(found, *stages, context=lambda r: r["key"]) as loader:
        (batch,) = loader
    assert batch["tokens"].tolist() == [[1, 2, 201, 202, 0, 0]]
    assert batch["segment_ids"].tolist() == [[1, 1, 2, 2, 0, 0]]
    assert batch.keys == batch.context == ["0", "2"]
    assert [(e["record"], e["stage"]) for e in batch.errors] == [(1, "decode")]


def test_a_sequence_of_another_length_than_stated_is_a_row_error() -> None:
    found = npy_sequences([2, 3, 2])
    found[1]["n"] = 2
    with load(found, dataio.slot("tokens").decode_npy(), dataio.pack(6, tokens="n")) as loader:
        (batch,) = loader
    assert batch["tokens"].tolist() == [[1, 2, 201, 202, 0, 0]]
    assert [(e["record"], e["op"]) for e in batch.errors] == [(1, "pack")]
    assert "has 3 tokens, the record stated 2" in batch.errors[0]["message"]


def test_sequences_of_another_kind_cannot_share_a_row() -> None:
    found = sequences([2, 2, 2])
    found[1]["tokens"] = found[1]["tokens"].astype(np.float64)
    found[2]["tokens"] = np.int64(5)
    with load(found, TOKENS, dataio.pack(6, tokens=lambda r: 2)) as loader:
        (batch,) = loader
    assert batch.keys == ["0"]
    assert [e["record"] for e in batch.errors] == [1, 2]


def test_slots_with_one_element_per_token_are_packed_alike_and_others_left_alone() -> None:
    def vector(n: int) -> np.ndarray:
        return np.full((n, 2), n, np.float32)

    found = [
        {**r, "labels": -r["tokens"], "vectors": vector(r["n"]), "weight": np.float32(r["n"])} for r in sequences([2, 3, 4])
    ]
    slots = [dataio.slot(name).decode(dataio.decoders.array()) for name in ("tokens", "labels", "vectors", "weight")]
    with load(found, *slots, dataio.pack(6, size=2, pad_value=7)) as loader:
        (batch,) = loader
    assert batch["tokens"].tolist() == [[1, 2, 101, 102, 103, 7], [201, 202, 203, 204, 7, 7]]
    assert batch["labels"].tolist() == [[-1, -2, -101, -102, -103, 0], [-201, -202, -203, -204, 0, 0]]
    assert batch["vectors"].shape == (2, 6, 2)
    assert batch["vectors"][1, :, 0].tolist() == [4, 4, 4, 4, 0, 0]
    assert batch["weight"].tolist() == [2, 3, 4], "one per record, as the keys"


@pytest.mark.parametrize("tokens", [None, "n", "tokens", lambda r: r["n"], lambda r: r["tokens"]], ids=["none", "number", "field", "count", "sequence"])
def test_tokens_are_a_number_or_the_sequence(tokens: Any) -> None:
    assert [b.keys for b in packed([3, 3, 3], 6, tokens=tokens)] == [["0", "1"], ["2"]]


def test_a_list_column_is_packed() -> None:
    found = pa.table({"tokens": [[1, 2], [3], [4, 5, 6]], "key": ["a", "b", "c"]})
    with load(found, dataio.map(lambda r: {**r, "tokens": np.array(r["tokens"])}), TOKENS, dataio.pack(4, size=2)) as loader:
        (batch,) = loader
    assert batch["tokens"].tolist() == [[1, 2, 3, 0], [4, 5, 6, 0]]


def test_the_packed_slot_is_the_first_or_the_one_that_is_named() -> None:
    found = [{**r, "other": np.zeros(5)} for r in sequences([2, 2])]
    other = dataio.slot("other").decode(dataio.decoders.array())
    with load(found, other, TOKENS, dataio.pack(4, slot="tokens", size=2)) as loader:
        (batch,) = loader
    assert batch["tokens"].shape == (1, 4)
    assert batch["other"].shape == (2, 5)


@pytest.mark.parametrize("steps", ["pad", "drop", "short"])
def test_ranks_get_equally_many_rows(steps: str) -> None:
    ranks = [packed([4, 2, 2, 3, 4, 1, 4], 4, shard={"id": rank, "of": 2}, steps=steps) for rank in range(2)]
    found = Counter(key for batches in ranks for batch in batches for key in batch.keys)
    assert len(ranks[0]) == len(ranks[1]) == (2 if steps == "drop" else 3)
    assert set(found) >= (set("0123") if steps == "drop" else set("0123456"))
    assert steps == "pad" or max(found.values()) == 1


def test_the_last_rank_repeats_a_row_of_another_under_pad() -> None:
    first, second = (packed([4, 4, 4], 4, shard={"id": rank, "of": 2}, steps="pad") for rank in range(2))
    assert [b.keys for b in first] == [["0"], ["2"]]
    assert [b.keys for b in second] == [["1"], ["2"]]


@pytest.mark.parametrize(
    ("arguments", "options", "error"),
    [
        ((0,), {}, ValueError),
        ((True,), {}, TypeError),
        ((4.0,), {}, TypeError),
        ((4,), {"slot": ""}, ValueError),
        ((4,), {"slot": 1}, TypeError),
        ((4,), {"size": 0}, ValueError),
        ((4,), {"tokens": 1}, TypeError),
        ((4,), {"strategy": "worst_fit"}, ValueError),
        ((4,), {"open_rows": 0}, ValueError),
        ((4,), {"overflow": "drop"}, ValueError),
        ((4,), {"pad_value": 1.5}, TypeError),
        ((4,), {"pad_value": True}, TypeError),
        ((4,), {"drop_last": None}, TypeError),
        ((4,), {"prefetch": 0}, ValueError),
    ],
    ids=repr,
)
def test_pack_checks_its_arguments(arguments: Any, options: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        dataio.pack(*arguments, **options)


@pytest.mark.parametrize(
    ("stages", "said"),
    [
        ((TOKENS, dataio.pack(4, slot="labels")), "has the slots tokens"),
        ((TOKENS, dataio.slot("positions").decode_bytes(), dataio.pack(4)), "rename positions"),
        ((dataio.slot("tokens", optional=True).decode_bytes(), dataio.pack(4)), "cannot be optional"),
        ((TOKENS, dataio.pack(4), dataio.map(dataio.batch_transforms.mixup(slot="tokens", alpha=0.2))), "rows of several"),
    ],
    ids=["slot", "names", "optional", "batch transform"],
)
def test_pipelines_that_cannot_be_packed_are_refused(stages: tuple[Any, ...], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        dataio.pipeline(*stages)


# -------------------------------------------------------------------------------------------------- both

BOTH: dict[str, tuple[Any, ...]] = {
    "bucket_by": (dataio.slot("tokens").decode_npy(), dataio.bucket_by("n", 3, boundaries=[3, 5])),
    "bucket_by drop_last": (dataio.slot("tokens").decode_npy(), dataio.bucket_by("n", 3, drop_last=True)),
    "first_fit": (dataio.slot("tokens").decode_npy(), dataio.pack(9, size=2, tokens="n", open_rows=3)),
    "best_fit": (dataio.slot("tokens").decode_npy(), dataio.pack(9, tokens="n", strategy="best_fit", overflow="split")),
}
LENGTHS = [1 + i * 7 % 11 for i in range(50)]
SOURCES: dict[str, Callable[[], Any]] = {
    "list": lambda: npy_sequences(LENGTHS),
    "generators": lambda: lambda: iter(npy_sequences(LENGTHS)),
    "table": lambda: pa.Table.from_pylist(npy_sequences(LENGTHS)),
    "filtered": lambda: dataio.scan(npy_sequences(LENGTHS)).filter(lambda r: r["n"] != 4),
    "shuffled": lambda: dataio.records(npy_sequences(LENGTHS)).shuffle(),
}
Step = tuple[list[str], list[Any], list[int]]


def steps_of(loader: dataio.DataLoader, most: int | None = None) -> list[Step]:
    """Keys, tensors and failed records of each step."""
    found: list[Step] = []
    for batch in loader:
        rows = batch["tokens"]
        found.append((batch.keys, [np.asarray(row).tolist() for row in rows], [e["record"] for e in batch.errors]))
        if len(found) == most:
            break
    return found


@pytest.mark.parametrize("stage", BOTH)
@pytest.mark.parametrize("source", SOURCES)
@given(cuts=st.lists(st.integers(1, 14), max_size=4))
@settings(max_examples=8, deadline=None)
def test_a_run_cut_anywhere_goes_on_as_if_nothing_happened(stage: str, source: str, cuts: list[int]) -> None:
    with load(SOURCES[source](), *BOTH[stage], on_failure=0) as loader:
        whole = steps_of(loader) + steps_of(loader)
    found: list[Step] = []
    state = None
    for cut in [*cuts, None, None]:
        with load(SOURCES[source](), *BOTH[stage], on_failure=0) as loader:
            if state is not None:
                loader.load_state_dict(json.loads(json.dumps(state)))
            found += steps_of(loader, cut)
            state = loader.state_dict()
        if state["epoch"] == 2:
            break
    assert found[: len(whole)] == whole


@pytest.mark.parametrize("stage", BOTH)
def test_processes_give_what_threads_give(stage: str) -> None:
    found = []
    for workers in ("thread", "process"):
        with load(SOURCES["list"](), *BOTH[stage], on_failure=0, workers=workers) as loader:
            found.append(steps_of(loader))
    assert found[0] == found[1]


@pytest.mark.parametrize("stage", BOTH)
def test_columns_give_what_rows_give(stage: str) -> None:
    found = []
    for source in ("list", "table", "generators"):
        with load(SOURCES[source](), *BOTH[stage], on_failure=0) as loader:
            found.append(steps_of(loader))
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("stage", ["bucket_by", "first_fit"])
def test_the_column_of_the_key_is_read_and_no_more(stage: str) -> None:
    source = pa.Table.from_pylist(npy_sequences(LENGTHS, unused=lambda n: "x" * 100))
    text = dataio.pipeline(*BOTH[stage]).bind(source).explain()
    assert "unused" not in text.split("columns=")[-1].splitlines()[0]
    with load(source, *BOTH[stage], on_failure=0) as loader:
        assert len(list(loader)) > 10


def test_required_columns_name_what_decides() -> None:
    assert dataio.pipeline(X, dataio.bucket_by("kind", 2)).required_columns()["groupers"] == ["kind"]
    assert dataio.pipeline(X, dataio.bucket_by(col("a").eq(1), 2)).required_columns()["groupers"] == ["a"]
    assert dataio.pipeline(TOKENS, dataio.pack(4, tokens="n")).required_columns()["groupers"] == ["n"]
    assert dataio.pipeline(TOKENS, dataio.pack(4, tokens=len)).required_columns()["groupers"] == []


def test_both_are_described() -> None:
    bucket = dataio.pipeline(X, dataio.bucket_by(col("a").eq(1), {True: 2, False: 3}))
    pack = dataio.pipeline(TOKENS, dataio.pack(4, tokens="n", size=3))
    for pipe, kind in ((bucket, "bucket_by"), (pack, "pack")):
        described = pipe.describe()["shape"]
        assert described["kind"] == kind
        json.dumps(described)
        assert f"{kind}:" in pipe.explain()
    assert pack.describe()["shape"]["length"] == 4


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (dataio.bucket_by("kind", 2), dataio.bucket_by("i", 2)),
        (dataio.bucket_by("i", 2, boundaries=[1]), dataio.bucket_by("i", 2, boundaries=[2])),
        (dataio.bucket_by("kind", 2), dataio.bucket_by("kind", 2, drop_last=True)),
        (dataio.pack(8, tokens=len, slot="x"), dataio.pack(9, tokens=len, slot="x")),
        (dataio.pack(8, tokens=len, slot="x"), dataio.pack(8, tokens=len, slot="x", strategy="best_fit")),
    ],
)
def test_what_decides_which_records_stand_together_is_in_the_signature(one: Any, other: Any) -> None:
    assert dataio.pipeline(X, one).bind([]).signature() != dataio.pipeline(X, other).bind([]).signature()


def test_a_state_whose_records_lost_their_bucket_is_refused() -> None:
    found = kinds("abcabc")
    with load(found, X, dataio.bucket_by("kind", 2)) as loader:
        next(iter(loader))
        state = loader.state_dict()
    assert state["source"]["open"] == [[1], [2]]
    del found[1]["kind"]
    with load(found, X, dataio.bucket_by("kind", 2)) as loader:
        loader.load_state_dict(state)
        with pytest.raises(CheckpointError, match="record 1, which the checkpoint holds as waiting"):
            next(iter(loader))


# -------------------------------------------------------------------------------------------------- group_by


@pytest.mark.parametrize("source", [list, lambda records: lambda: iter(records)], ids=["list", "generators"])
def test_groups_before_a_key_that_raises_are_delivered(source: Callable[[Any], Any]) -> None:
    def key(record: dict[str, Any]) -> str:
        if record["i"] == 4:
            raise ArithmeticError
        return str(record["kind"])

    with load(source(kinds("aabbcc")), X, dataio.group_by(key)) as loader:
        batches = iter(loader)
        assert next(batches).keys == ["a0", "a1"]
        with pytest.raises(ArithmeticError):
            next(batches)


@pytest.mark.parametrize("key", ["kind", lambda record: record["kind"]], ids=["name", "callable"])
@pytest.mark.parametrize(("bad", "expected"), [({0}, "a1 b2 b3"), ({2}, "a0 a1 b3"), ({1, 2}, "a0 b3"), ({3}, "a0 a1 b2")])
def test_a_record_that_failed_in_a_map_stays_with_its_neighbours(key: Any, bad: set[int], expected: str) -> None:
    """It has no key: it belongs to the group before it, or to the first."""

    def fussy(record: dict[str, Any]) -> dict[str, Any]:
        if record["i"] in bad:
            raise ValueError("bad")
        return record

    with load(kinds("aabb"), dataio.map(fussy), X, dataio.group_by(key)) as loader:
        first, second = loader
    assert " ".join(first.keys + second.keys) == expected
    assert {record[0] for record in first.keys} == {"a"}
    assert {e["record"] for batch in (first, second) for e in batch.errors} == bad
