"""Packing sequences into rows: against plain searches, no token lost, resumed anywhere."""

from __future__ import annotations

import json
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataio.engine.errors import LimitError, OpError, PlanError
from dataio.engine.packing import Bin, OversizeError, Packer, Piece, Strategy, fill, fill_segments

LENGTH = 12
TOKENS = st.lists(st.integers(0, LENGTH), max_size=60)
ANY_TOKENS = st.lists(st.integers(0, 4 * LENGTH), max_size=40)
STRATEGIES = st.sampled_from(["first_fit", "best_fit"])
OPEN_BINS = st.sampled_from([1, 2, 3, 5, 100])


def packed(packer: Packer, tokens: list[int], first: int = 0) -> list[Bin]:
    return [one for item, count in enumerate(tokens, first) for one in packer.add(item, count)]


def search(tokens: list[int], strategy: str, open_bins: int) -> list[list[int]]:
    """Items of each bin in the order of closing, by the definition of the strategies."""
    bins: list[list[int]] = []
    closed: list[list[int]] = []

    def room(one: list[int]) -> int:
        return LENGTH - sum(tokens[item] for item in one)

    for item, count in enumerate(tokens):
        if count == 0:
            continue
        if count == LENGTH:
            closed.append([item])
            continue
        fitting = [one for one in bins if room(one) >= count]
        if fitting:
            chosen = fitting[0] if strategy == "first_fit" else min(fitting, key=room)
        else:
            if len(bins) == open_bins:
                fullest = min(bins, key=room)
                closed.append(fullest)
                bins.remove(fullest)
            bins.append(chosen := [])
        chosen.append(item)
        if room(chosen) == 0:
            closed.append(chosen)
            bins.remove(chosen)
    return closed + bins


@given(TOKENS, STRATEGIES, OPEN_BINS)
@settings(max_examples=300, deadline=None)
def test_bins_are_those_of_a_plain_search(tokens: list[int], strategy: Strategy, open_bins: int) -> None:
    packer = Packer(LENGTH, strategy=strategy, open_bins=open_bins)
    bins = packed(packer, tokens) + packer.finish()
    assert [[piece.item for piece in one.pieces] for one in bins] == search(tokens, strategy, open_bins)


@pytest.mark.parametrize(
    ("strategy", "expected"), [("first_fit", [[0, 2], [1]]), ("best_fit", [[0], [1, 2]])]
)
def test_the_strategies_differ(strategy: Strategy, expected: list[list[int]]) -> None:
    packer = Packer(10, strategy=strategy)
    bins = packed(packer, [5, 7, 2]) + packer.finish()
    assert [[piece.item for piece in one.pieces] for one in bins] == expected


@given(ANY_TOKENS, STRATEGIES, OPEN_BINS)
@settings(max_examples=100, deadline=None)
def test_every_token_is_placed_once_and_no_row_overflows(
    tokens: list[int], strategy: Strategy, open_bins: int
) -> None:
    packer = Packer(LENGTH, strategy=strategy, open_bins=open_bins, overflow="split")
    placed = []
    for item, count in enumerate(tokens):
        placed += packer.add(item, count)
        assert len(packer.bins) <= open_bins
        assert all(0 < one.used < LENGTH for one in packer.bins)
    placed += packer.finish()
    found = [(p.item, p.offset + i) for one in placed for p in one.pieces for i in range(p.length)]
    assert sorted(found) == [(item, i) for item, count in enumerate(tokens) for i in range(count)]
    assert all(0 < one.used == sum(p.length for p in one.pieces) <= LENGTH for one in placed)
    assert packer.empty == tokens.count(0)


@given(ANY_TOKENS, STRATEGIES, OPEN_BINS)
@settings(max_examples=100, deadline=None)
def test_pieces_of_a_row_lie_in_the_order_of_arrival(
    tokens: list[int], strategy: Strategy, open_bins: int
) -> None:
    packer = Packer(LENGTH, strategy=strategy, open_bins=open_bins, overflow="split")
    for one in packed(packer, tokens) + packer.finish():
        assert one.pieces == sorted(one.pieces)


@given(st.data(), ANY_TOKENS, STRATEGIES, OPEN_BINS, st.sampled_from(["truncate", "split"]))
@settings(max_examples=100, deadline=None)
def test_a_resume_of_a_resume_goes_on_as_if_nothing_happened(
    data: st.DataObject, tokens: list[int], strategy: Strategy, open_bins: int, overflow: Any
) -> None:
    options: dict[str, Any] = {"strategy": strategy, "open_bins": open_bins, "overflow": overflow}
    whole = Packer(LENGTH, **options)
    expected = packed(whole, tokens) + whole.finish()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(tokens)), max_size=4)))
    packer, found = Packer(LENGTH, **options), []
    for start, stop in zip([0, *cuts], [*cuts, len(tokens)], strict=True):
        found += packed(packer, tokens[start:stop], start)
        packer = Packer.restore(json.loads(json.dumps(packer.state())), LENGTH, **options)
    assert found + packer.finish() == expected
    assert packer.empty == whole.empty


def test_the_state_is_pinned() -> None:
    """Checkpoints hold it."""
    packer = Packer(10, overflow="split")
    packed(packer, [4, 0, 17])
    assert packer.state() == {"bins": [[[0, 0, 4]], [[2, 10, 7]]], "empty": 1}


def test_an_oversized_sequence_is_refused_and_changes_nothing() -> None:
    packer = Packer(10)
    packer.add("a", 4)
    before = packer.state()
    with pytest.raises(OversizeError, match=r'11 tokens .* row of 10: .*"truncate".*"split"') as caught:
        packer.add("b", 11)
    assert (caught.value.tokens, caught.value.length) == (11, 10)
    assert isinstance(caught.value, LimitError)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert packer.state() == before


def test_an_oversized_sequence_is_truncated() -> None:
    assert Packer(10, overflow="truncate").add("b", 25) == [Bin(10, [Piece("b", 0, 10)])]


@pytest.mark.parametrize(("tokens", "rest"), [(20, []), (23, [Piece("b", 20, 3)])])
def test_an_oversized_sequence_is_split(tokens: int, rest: list[Piece]) -> None:
    packer = Packer(10, overflow="split")
    packer.add("a", 6)
    assert packer.add("b", tokens) == [Bin(10, [Piece("b", 0, 10)]), Bin(10, [Piece("b", 10, 10)])]
    assert packer.finish() == [Bin(10, [Piece("a", 0, 6), *rest])]


def test_a_finished_packer_starts_anew() -> None:
    packer = Packer(10)
    packer.add(0, 6)
    assert packer.finish() == [Bin(10, [Piece(0, 0, 6)])]
    assert packer.finish() == []
    assert packer.add(1, 4) == []
    assert packer.finish() == [Bin(10, [Piece(1, 0, 4)])]


def test_items_of_a_bin_are_renamed() -> None:
    one = Bin(10, [Piece(70, 0, 3), Piece(90, 10, 4)])
    assert one.with_items({70: 0, 90: 1}) == Bin(10, [Piece(0, 0, 3), Piece(1, 10, 4)])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"length": 0}, "length is at least 1, got 0"),
        ({"length": 5, "open_bins": 0}, "open_bins is at least 1, got 0"),
        ({"length": 5, "strategy": "bestfit"}, "'first_fit', 'best_fit'.*did you mean 'best_fit'"),
        ({"length": 5, "overflow": "cut"}, "'error', 'truncate', 'split'"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        Packer(**arguments)


def test_a_negative_length_is_refused() -> None:
    with pytest.raises(OpError, match="got -1"):
        Packer(5).add(0, -1)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"bins": [[[0, 0, 4], [1, 0, 4]]], "empty": 0}, "row of 8 tokens, which does not fit rows of 5"),
        ({"bins": [[[0, 0, 1]]] * 3, "empty": 0}, "3 open rows, more than open_bins=2"),
        ({"bins": [[[0, 0, -1]]], "empty": 0}, "does not fit"),
        ({"bins": [[[0, 0]]], "empty": 0}, r"list of \[item, offset, length\]"),
        ({"bins": [7], "empty": 0}, r"list of \[item, offset, length\]"),
        ({"bins": []}, "holds 'bins' and 'empty'"),
        ([], "holds 'bins' and 'empty'"),
    ],
)
def test_a_state_of_something_else_is_refused(state: Any, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        Packer.restore(state, 5, open_bins=2)


def token_by_token(
    bins: list[Bin], sequences: list[np.ndarray], pad: int
) -> list[list[tuple[int, int, int]]]:
    """(token, segment id, position) of each place."""
    rows = []
    for one in bins:
        row = []
        for number, (item, offset, length) in enumerate(one.pieces, start=1):
            row += [(int(sequences[item][offset + i]), number, i) for i in range(length)]
        rows.append(row + [(pad, 0, 0)] * (LENGTH - len(row)))
    return rows


@given(ANY_TOKENS, STRATEGIES, st.integers(-100, -1))
@settings(max_examples=100, deadline=None)
def test_rows_are_filled_as_token_by_token(tokens: list[int], strategy: Strategy, pad: int) -> None:
    rng = np.random.default_rng(0)
    sequences = [rng.integers(0, 1_000, count) for count in tokens]
    packer = Packer(LENGTH, strategy=strategy, open_bins=3, overflow="split")
    bins = packed(packer, tokens) + packer.finish()
    out, ids, positions = (np.full((len(bins), LENGTH), 77, np.int32) for _ in range(3))
    fill(bins, sequences, out, pad=pad)
    fill_segments(bins, ids, positions)
    assert np.stack([out, ids, positions], axis=2).tolist() == [
        [list(place) for place in row] for row in token_by_token(bins, sequences, pad)
    ]


def test_values_with_more_dimensions_are_filled() -> None:
    sequences = {"a": np.arange(6.0).reshape(3, 2), "b": np.ones((1, 2))}
    out = np.full((1, 5, 2), 9.0, np.float32)
    fill([Bin(5, [Piece("a", 1, 2), Piece("b", 0, 1)])], sequences, out)
    assert out.tolist() == [[[2, 3], [4, 5], [1, 1], [0, 0], [0, 0]]]


@pytest.mark.parametrize("sequence", [np.arange(3), np.zeros((4, 2)), np.zeros(())])
def test_a_sequence_unlike_what_was_packed_is_refused(sequence: np.ndarray) -> None:
    with pytest.raises(OpError, match=r"sequence 0 has shape .* packed as \[4 or more\]"):
        fill([Bin(5, [Piece(0, 1, 3)])], [sequence], np.zeros((1, 5)))


def test_fractions_do_not_become_tokens() -> None:
    with pytest.raises(TypeError, match="same_kind"):
        fill([Bin(5, [Piece(0, 0, 2)])], [np.array([0.5, 1.5])], np.zeros((1, 5), np.int32))


@pytest.mark.parametrize("shape", [(2, 5), (1, 4), (5,)])
def test_arrays_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    bins = [Bin(5, [Piece(0, 0, 2)])]
    right = np.zeros((1, 5), np.int32)
    wrong = np.zeros(shape, np.int32)
    with pytest.raises(ValueError, match="do not fit an array of shape"):
        fill(bins, [np.arange(2)], wrong)
    for ids, positions in ((right, wrong), (wrong, right)):
        with pytest.raises(ValueError, match="do not fit an array of shape"):
            fill_segments(bins, ids, positions)
