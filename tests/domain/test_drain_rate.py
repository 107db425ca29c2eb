"""How fast slots come free, and how those that are refused are spread over the seconds behind it."""

import random
from collections import Counter

import hypothesis.strategies as st
import pytest
from hypothesis import given

from envoy_ext.domain.drain_rate import LONGEST_SPAN_S, SHORTEST_SPAN_S, DrainRate


def rate_of(*held_s):
    rate = DrainRate()
    for one in held_s:
        rate.note_free(one)
    return rate


def test_so_many_slots_each_held_so_long_is_so_many_free_in_a_second():
    assert rate_of(2.0, 4.0, 2.0, 4.0).read(6) == pytest.approx(2.0)


@pytest.mark.parametrize(("held", "slots"), [((1.0, 1.0, 1.0), 4), ((1.0,) * 8, 0), ((0.0,) * 8, 4)])
def test_what_is_not_known_is_not_told(held, slots):
    assert rate_of(*held).read(slots) is None


def test_the_mean_follows_a_change():
    rate = rate_of(*(1.0,) * 50, *(3.0,) * 50)
    assert rate.read(3) == pytest.approx(1.0, rel=0.1)


def test_one_refusal_comes_back_soon():
    assert rate_of(*(1.0,) * 8).note_refusal(4, 0.0) == SHORTEST_SPAN_S


def test_many_refusals_are_spread_over_the_time_that_the_pool_needs_for_them():
    rate = rate_of(*(1.0,) * 8)
    spans = [rate.note_refusal(8, 0.0) for _ in range(80)]
    assert spans == sorted(spans)
    assert spans[-1] == 10


def test_what_has_been_waited_out_is_owed_no_more():
    rate = rate_of(*(1.0,) * 8)
    for _ in range(80):
        rate.note_refusal(8, 0.0)
    assert rate.note_refusal(8, 5.0) == 6
    assert rate.note_refusal(8, 500.0) == SHORTEST_SPAN_S


def test_no_span_is_longer_than_clients_are_willing_to_wait():
    rate = rate_of(*(60.0,) * 8)
    assert max(rate.note_refusal(1, 0.0) for _ in range(500)) == LONGEST_SPAN_S


@given(held_s=st.floats(0.001, 100.0), slots=st.integers(1, 50))
def test_nor_by_a_rounding(held_s: float, slots: int):
    rate = rate_of(*(held_s,) * 8)
    assert (
        max(rate.note_refusal(slots, 0.0) for _ in range(int(slots * 30 / held_s) % 2000 + 10))
        <= LONGEST_SPAN_S
    )


@pytest.mark.parametrize("known", [True, False])
def test_two_hundred_refused_in_one_second_do_not_come_back_in_one(known):
    """Nor in any other: the busiest second has a sixth of them."""
    rate, draw = rate_of(*(1.0,) * 8) if known else DrainRate(), random.Random(7)
    back = Counter(round(n / 200 + draw.randint(1, rate.note_refusal(8, n / 200))) for n in range(200))
    assert sum(back.values()) == 200
    assert max(back.values()) <= 34
    assert len(back) >= 15
