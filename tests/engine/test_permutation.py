"""A seeded shuffle in constant memory: a bijection, uniform, pinned, the same however it is asked."""

from __future__ import annotations

import itertools
import pickle
import sys
import tracemalloc
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dataio.engine.permutation import Permutation

WORDS = st.integers(0, 2**64 - 1)
BIG = [10**8, 2**31 - 1, 2**31, 2**40 + 15, 2**62]
UNLIKELY = 1e-6  # seeds are fixed: a test that passes once passes always


@pytest.mark.parametrize("length", [*range(301), 4095, 4096, 4097, 10_007, 65_536, 262_144])
def test_every_number_comes_once(length: int) -> None:
    assert np.sort(Permutation(length, 3, length).at(range(length))).tolist() == list(range(length))


@given(st.integers(0, 20_000), st.lists(WORDS, max_size=3))
@settings(max_examples=60, deadline=None)
def test_every_number_comes_once_for_any_key(length: int, key: list[int]) -> None:
    assert np.array_equal(np.sort(Permutation(length, *key).at(range(length))), np.arange(length))


@pytest.mark.parametrize("length", BIG)
def test_large_orders_stay_within_bounds_and_do_not_repeat(length: int) -> None:
    found = Permutation(length, 11).at(np.random.default_rng(0).choice(length, 100_000, replace=False))
    assert found.dtype == np.int64
    assert found.min() >= 0
    assert found.max() < length
    assert len(np.unique(found)) == 100_000


@pytest.mark.parametrize(
    ("length", "key", "expected"),
    [
        (10, (0,), [3, 8, 0, 7, 6, 4, 5, 1, 2, 9]),
        (10, (0, 0), [5, 7, 3, 6, 9, 1, 2, 0, 8, 4]),
        (1_000, (42, 1), [880, 872, 161, 478, 800]),
        (10**8, (42, 1), [61430121, 27522052, 81393188, 69731593, 79155070]),
        (2**62, (2**64 - 1, 2**63), [3410242425231554700, 1750109447520334894, 1543763928842673531]),
    ],
)
def test_the_order_is_pinned(length: int, key: tuple[int, ...], expected: list[int]) -> None:
    """Checkpoints hold positions, not records: a change here breaks every one of them."""
    assert Permutation(length, *key).at(range(len(expected))).tolist() == expected


def by_hand(length: int, key: tuple[int, ...], position: int) -> int:
    """The network as the module's docstring tells it, in Python's unbounded integers."""
    bits = max(1, (length.bit_length() - 1) // 2)
    base = -(-length // 2**bits)
    words = [len(key), *itertools.chain(*((part % 2**32, part // 2**32) for part in key))]
    rounds = np.random.SeedSequence(words).generate_state(24 if length < 4_096 else 8, np.uint64).tolist()
    while True:
        high, low = divmod(position, 2**bits)
        for number, word in enumerate(rounds):
            hashed = ((low if number % 2 else high) ^ word) * 0xBF58476D1CE4E5B9 % 2**64
            hashed = (hashed ^ hashed >> 32) * 0x94D049BB133111EB % 2**64
            if number % 2:
                high = (high + ((hashed >> 32) * base >> 32)) % base
            else:
                low = (low + (hashed >> 64 - bits)) % 2**bits
        position = high * 2**bits + low
        if position < length:
            return position


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_it_is_the_documented_network(data: st.DataObject) -> None:
    length = data.draw(st.integers(1, 5_000) | st.integers(1, 2**62))
    key = tuple(data.draw(st.lists(WORDS, max_size=3)))
    position = data.draw(st.integers(0, length - 1))
    assert Permutation(length, *key)[position] == by_hand(length, key, position)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param((1,), (2,), id="neighbours"),
        pytest.param((1,), (1, 0), id="one-more-zero"),
        pytest.param((), (0,), id="none-and-zero"),
        pytest.param((1, 2), (2, 1), id="swapped"),
        pytest.param((1 + (2 << 32),), (1, 2), id="same-words"),
        pytest.param((5, 2**63), (5, 0), id="highest-bit"),
    ],
)
@pytest.mark.parametrize("length", [1_000, 10**7])
def test_orders_of_different_keys_are_unrelated(
    length: int, one: tuple[int, ...], other: tuple[int, ...]
) -> None:
    first, second = (Permutation(length, *key).at(range(1_000)) for key in (one, other))
    assert np.count_nonzero(first == second) < 12  # about 1 of 1,000 agree by chance
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.16


def test_a_negative_key_is_its_value_modulo_two_to_the_64() -> None:
    assert Permutation(50, -1).at(range(50)).tolist() == Permutation(50, 2**64 - 1).at(range(50)).tolist()


@pytest.mark.parametrize("length", [10, 17])
def test_every_number_is_as_likely_at_every_position(length: int) -> None:
    seeds = 4_000
    table = np.zeros((length, length))
    for seed in range(seeds):
        table[np.arange(length), Permutation(length, seed).at(range(length))] += 1
    statistic = ((table - seeds / length) ** 2 / (seeds / length)).sum()
    assert UNLIKELY < stats.chi2.sf(statistic, (length - 1) ** 2) < 1 - UNLIKELY


@pytest.mark.parametrize("length", [2, 3, 4, 5])
def test_every_order_is_as_likely(length: int) -> None:
    found = Counter(tuple(Permutation(length, seed).at(range(length)).tolist()) for seed in range(6_000))
    counts = [found[order] for order in itertools.permutations(range(length))]
    assert stats.chisquare(counts).pvalue > UNLIKELY


@pytest.mark.parametrize("lag", [1, 2, 1 << 13, 1 << 14, 10_000])
@pytest.mark.parametrize("length", [10**8, 2**28])
def test_neighbours_are_independent(length: int, lag: int) -> None:
    order = Permutation(length, 5, 9)
    first, second = order.at(range(200_000)), order.at(range(lag, 200_000 + lag))
    for one, other in ((first * 16 // length, second * 16 // length), (first % 16, second % 16)):
        table = np.histogram2d(one, other, bins=16)[0]
        assert UNLIKELY < stats.chisquare(table.ravel()).pvalue < 1 - UNLIKELY


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_an_answer_does_not_depend_on_how_or_after_what_it_is_asked(data: st.DataObject) -> None:
    length = data.draw(st.sampled_from([1, 7, 8_192, 20_000, 10**8]))
    order = Permutation(length, 1)
    for _ in range(data.draw(st.integers(1, 6))):
        start = data.draw(st.integers(0, length))
        count = data.draw(st.integers(0, min(length - start, 10_000)))
        expected = Permutation(length, 1).at(np.arange(start, start + count))
        assert np.array_equal(order.at(range(start, start + count)), expected)
        assert np.array_equal(order.at(range(start, start + count)[::-1]), expected[::-1])
        if count:
            assert order[start] == expected[0]


def test_forward_reads_agree_across_the_blocks_worked_out_ahead() -> None:
    order = Permutation(10**6, 8)
    found = [order.at(range(start, min(start + 999, 30_000))) for start in range(0, 30_000, 999)]
    assert np.array_equal(np.concatenate(found), Permutation(10**6, 8).at(np.arange(30_000)))


def test_what_is_returned_may_be_written_to() -> None:
    order = Permutation(100, 1)
    expected = order.at(range(100)).copy()
    order.at(range(100))[:] = -1
    assert np.array_equal(order.at(range(100)), expected)


@pytest.mark.parametrize(("start", "size"), [(0, 300), (1, 1), (777, 65_536), (1_000, 5), (2_000, 5)])
def test_blocks_go_on_to_the_end(start: int, size: int) -> None:
    order = Permutation(1_000, 4)
    blocks = list(order.blocks(start, size))
    joined = [number for block in blocks for number in block.tolist()]
    assert joined == order.at(range(1_000)).tolist()[start:]
    assert all(len(block) == size for block in blocks[:-1])


def test_it_iterates_like_a_sequence() -> None:
    order = Permutation(20, 4)
    assert list(order) == order.at(range(20)).tolist()
    assert len(order) == 20


def test_a_long_order_takes_no_memory() -> None:
    tracemalloc.start()
    try:
        order = Permutation(100_000_000, 1)
        for _ in itertools.islice(order.blocks(), 20):
            pass
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 << 20


def test_a_pickle_holds_length_and_key_alone() -> None:
    order = Permutation(10**9, 1, 2)
    order.at(range(64))
    data = pickle.dumps(order)
    assert len(data) < 200
    assert np.array_equal(pickle.loads(data).at(range(64)), order.at(range(64)))


@pytest.mark.parametrize("position", [-1, 10, sys.maxsize])
def test_a_position_out_of_bounds_is_refused(position: int) -> None:
    order = Permutation(10, 0)
    for positions in ([3, position], range(position, position + 1), np.array([position])):
        with pytest.raises(IndexError, match=r"out of bounds \(0 to 9\)"):
            order.at(positions)
    with pytest.raises(IndexError, match=r"out of bounds \(0 to 9\)"):
        order[position]


@pytest.mark.parametrize("positions", [[0.5], ["1"], [[1, 2]], np.zeros((2, 2), np.int64), [True]])
def test_positions_are_integers(positions: list[int]) -> None:
    with pytest.raises(TypeError, match="positions are a list of integers"):
        Permutation(10, 0).at(positions)


@pytest.mark.parametrize("length", [-1, 2**62 + 1])
def test_a_length_out_of_bounds_is_refused(length: int) -> None:
    with pytest.raises(ValueError, match=r"0 to 2\*\*62"):
        Permutation(length)


@pytest.mark.parametrize(("start", "size"), [(-1, 5), (0, 0)])
def test_blocks_of_bad_bounds_are_refused(start: int, size: int) -> None:
    with pytest.raises(ValueError, match="blocks start at 0"):
        list(Permutation(10).blocks(start, size))
