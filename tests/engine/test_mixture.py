"""A weighted mixture as a function of the position: sources in order, shares kept, resumed anywhere."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dataio.engine.errors import PlanError
from dataio.engine.mixture import BLOCK, Mixture

WEIGHTS = st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=8)
POSITION = st.integers(0, 5 * BLOCK)
any_mixture = given(st.builds(Mixture, WEIGHTS, st.integers(0, 2**64 - 1)), POSITION)


@any_mixture
@settings(max_examples=60, deadline=None)
def test_each_source_is_read_in_its_order_without_a_gap(mixture: Mixture, stop: int) -> None:
    sources, records = mixture.at(range(stop))
    for source in range(len(mixture.counts(0))):
        taken = records[sources == source]
        assert np.array_equal(taken, np.arange(len(taken)))


@any_mixture
@settings(max_examples=60, deadline=None)
def test_counts_are_what_was_taken_before(mixture: Mixture, stop: int) -> None:
    counts = mixture.counts(stop)
    assert counts == np.bincount(mixture.at(range(stop))[0], minlength=len(counts)).tolist()


@given(WEIGHTS, st.integers(0, 2**40))
@settings(max_examples=300, deadline=None)
def test_shares_are_kept_at_every_block(weights: list[float], block: int) -> None:
    position = block * BLOCK
    counts = Mixture(weights).counts(position)
    assert sum(counts) == position
    for weight, count in zip(weights, counts, strict=True):
        assert abs(count - position * weight / math.fsum(weights)) < 2 + position * 1e-14


def test_the_order_within_a_block_is_shuffled() -> None:
    """Runs of one source are as long as chance makes them."""
    sources = Mixture([1, 1], 3).at(range(64 * BLOCK))[0]
    pairs = np.bincount(2 * sources[:-1] + sources[1:], minlength=4)
    assert stats.chisquare(pairs).pvalue > 1e-6


@pytest.mark.parametrize("key", [(), (0,), (1,), (0, 1)])
def test_orders_of_different_keys_differ(key: tuple[int, ...]) -> None:
    agree = np.mean(
        Mixture([1, 1], 7, 7).at(range(8 * BLOCK))[0] == Mixture([1, 1], *key).at(range(8 * BLOCK))[0]
    )
    assert 0.45 < agree < 0.55


def test_blocks_are_shuffled_differently() -> None:
    sources = Mixture([1, 1], 7).at(range(2 * BLOCK))[0].reshape(2, BLOCK)
    assert 0.4 < np.mean(sources[0] == sources[1]) < 0.6


@pytest.mark.parametrize("scale", [0.25, 1024.0])
def test_only_the_ratios_of_weights_count(scale: float) -> None:
    weights = [0.5, 0.3, 0.2]
    scaled = Mixture([weight * scale for weight in weights], 5)
    np.testing.assert_array_equal(scaled.at(range(3_000)), Mixture(weights, 5).at(range(3_000)))


@pytest.mark.parametrize(
    ("weights", "key", "start", "sources", "records"),
    [
        (
            [0.5, 0.3, 0.2],
            (1,),
            0,
            [0, 0, 0, 0, 0, 0, 1, 1, 2, 1, 0, 0],
            [0, 1, 2, 3, 4, 5, 0, 1, 0, 2, 6, 7],
        ),
        (
            [0.5, 0.3, 0.2],
            (1,),
            10**9,
            [0, 1, 0, 0, 2, 1],
            [499999986, 299999999, 499999987, 499999988, 200000015, 300000000],
        ),
        ([3, 1], (2**64 - 1, 5), 1020, [0, 0, 1, 0, 0, 0, 0, 1], [765, 766, 255, 767, 768, 769, 770, 256]),
    ],
)
def test_the_mixture_is_pinned(
    weights: list[float], key: tuple[int, ...], start: int, sources: list[int], records: list[int]
) -> None:
    """Checkpoints hold positions, not records: a change here breaks every one of them."""
    found = Mixture(weights, *key).at(range(start, start + len(sources)))
    assert [part.tolist() for part in found] == [sources, records]


@given(st.lists(st.integers(0, 5 * BLOCK), max_size=40), WEIGHTS)
@settings(max_examples=60, deadline=None)
def test_positions_may_come_in_any_order(positions: list[int], weights: list[float]) -> None:
    whole = Mixture(weights, 4).at(range(5 * BLOCK + 1))
    np.testing.assert_array_equal(Mixture(weights, 4).at(positions), [part[positions] for part in whole])


@given(st.integers(0, 3 * BLOCK), st.integers(0, 3 * BLOCK))
@settings(max_examples=60, deadline=None)
def test_a_range_starts_anywhere(start: int, count: int) -> None:
    mixture = Mixture([2, 1, 1], 9)
    expected = [part[start : start + count] for part in mixture.at(range(6 * BLOCK))]
    np.testing.assert_array_equal(mixture.at(range(start, start + count)), expected)


def test_what_is_returned_may_be_written_to() -> None:
    mixture = Mixture([2, 1], 9)
    expected = mixture.at(range(BLOCK))
    for part in mixture.at(range(BLOCK)):
        part[:] = -1
    np.testing.assert_array_equal(mixture.at(range(BLOCK)), expected)


LENGTHS = st.lists(st.tuples(st.floats(0.2, 5), st.none() | st.integers(0, 700)), max_size=5)
KNOWN = st.tuples(st.floats(0.2, 5), st.integers(0, 700))


@given(LENGTHS, KNOWN, st.integers(0, 100))
@settings(max_examples=60, deadline=None)
def test_a_mixture_within_lengths_ends_where_a_source_would_lack_a_record(
    some: list[tuple[float, int | None]], known: tuple[float, int], key: int
) -> None:
    weights, lengths = zip(*some, known, strict=True)
    mixture = Mixture(weights, key).within(lengths)
    assert mixture.stop is not None
    sources, records = mixture.at(range(mixture.stop))
    taken = mixture.counts(mixture.stop)
    assert taken == np.bincount(sources, minlength=len(weights)).tolist()
    for source, length in enumerate(lengths):
        assert records[sources == source].tolist() == list(range(taken[source]))
        assert length is None or taken[source] <= length
    assert any(count == length for count, length in zip(taken, lengths, strict=True))
    assert Mixture(weights, key + 1).within(lengths).stop == mixture.stop
    with pytest.raises(IndexError, match="out of bounds"):
        mixture.at([mixture.stop])


@given(st.integers(0, 3 * BLOCK))
@settings(max_examples=30, deadline=None)
def test_lengths_change_only_the_last_block(position: int) -> None:
    whole = Mixture([3, 1], 5)
    cut = whole.within([None, 600])
    assert cut.stop is not None
    stop = min(position, cut.stop // BLOCK * BLOCK)
    np.testing.assert_array_equal(whole.at(range(stop)), cut.at(range(stop)))


def test_an_end_far_away() -> None:
    mixture = Mixture([0.9, 0.1], 1).within([None, 10**12])
    assert mixture.stop is not None
    assert mixture.counts(mixture.stop)[1] == 10**12


@pytest.mark.parametrize(("weights", "lengths"), [([1, 2], [None, None]), ([1, 1e-300], [None, 5])])
def test_a_mixture_may_not_end(weights: list[float], lengths: list[int | None]) -> None:
    assert Mixture(weights).within(lengths).stop is None


@pytest.mark.parametrize("weights", [[0], [1, 0], [1, -1], [math.nan, 1], [1, math.inf], []])
def test_bad_weights_are_refused(weights: list[float]) -> None:
    with pytest.raises(PlanError, match=r"weights are positive and finite|at least one source"):
        Mixture(weights)


@pytest.mark.parametrize("lengths", [[1], [1, 2, 3], [1, -1]])
def test_bad_lengths_are_refused(lengths: list[int | None]) -> None:
    with pytest.raises(ValueError, match=r"lengths are (one per source|0 or more)"):
        Mixture([1, 2]).within(lengths)


@pytest.mark.parametrize("positions", [[-1], range(-1, 3)])
def test_negative_positions_are_refused(positions: list[int] | range) -> None:
    mixture = Mixture([1, 2])
    with pytest.raises(IndexError, match="position -1 is out of bounds"):
        mixture.at(positions)
    with pytest.raises(IndexError, match="position -1 is out of bounds"):
        mixture.counts(-1)
