"""A lateness that lasts sheds new work; one pause, however long, does not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envoy_ext.domain.loop_lag import LASTS_S, LOOK_S, LoopLag


class Loop:
    """Looks at a loop that is so late."""

    def __init__(self, bound_s=0.1):
        self.lag = LoopLag(bound_s)
        self.now = 100.0

    def late(self, late_s, seconds=0.0):
        """All looks of these seconds; one at least."""
        until = self.now + seconds
        while True:
            self.now += LOOK_S + late_s
            self.lag.note(late_s)
            if self.now >= until:
                return self.lag.shedding


def test_a_lateness_that_lasts():
    loop = Loop()
    assert not loop.late(0.3, LASTS_S)
    assert loop.late(0.3, LASTS_S)
    assert 0.2 < loop.lag.lag_s <= 0.3


def test_below_the_bound_nothing_is_shed():
    assert not Loop().late(0.099, 60.0)


def test_one_pause_is_one_look():
    loop = Loop()
    loop.late(0.0, 1.0)
    assert not loop.late(3600.0)
    for _ in range(100):
        assert not loop.late(0.001)


def test_a_pause_every_now_and_then():
    loop = Loop()
    for _ in range(50):
        assert not loop.late(1.0)
        assert not loop.late(0.0, 1.0)


def test_it_ends_below_half_of_the_bound():
    loop = Loop()
    loop.late(0.3, 5.0)
    assert loop.late(0.07, 5.0)
    assert not loop.late(0.03, 5.0)
    assert not loop.late(0.07, 5.0)


def test_after_an_end_it_has_to_last_anew():
    loop = Loop()
    loop.late(0.3, 5.0)
    while loop.late(0.045):
        pass
    assert not loop.late(0.3)
    assert loop.lag.lag_s > 0.1


def test_the_most_urgent_come_in_until_twice_the_bound():
    loop = Loop()
    loop.late(0.15, 5.0)
    assert loop.lag.sheds(first=False)
    assert not loop.lag.sheds(first=True)
    loop.late(0.3, 5.0)
    assert loop.lag.sheds(first=True)
    assert not LoopLag(0.1).sheds(first=False)


def test_zero_sheds_nothing():
    loop = Loop(0.0)
    assert not loop.late(5.0, 60.0)
    assert loop.lag.lag_s > 0.4


def test_a_clock_that_goes_back_is_no_lateness():
    lag = LoopLag(0.1)
    lag.note(-5.0)
    assert lag.lag_s == 0.0


@pytest.mark.parametrize("bound_s", [0.01, 0.1, 0.5, 10.0])
def test_whatever_the_bound_a_loop_that_stays_above_it_sheds_in_time(bound_s):
    loop = Loop(bound_s)
    assert loop.late(4 * bound_s, 3 * LASTS_S + 12 * bound_s)
    assert loop.lag.sheds(first=True)


def test_a_pause_of_a_busy_loop_counts_as_one_look_too():
    loop = Loop()
    loop.late(0.29, 0.6)  # too late, and not for long enough
    assert loop.lag.lag_s > 0.1
    assert not loop.late(3600.0)


@given(st.lists(st.floats(0, 10), max_size=60), st.floats(0.01, 1))
def test_shedding_begins_late_enough_and_ends_low_enough(looks, bound_s):
    lag, above_s = LoopLag(bound_s), 0.0
    for late_s in looks:
        before = lag.shedding
        lag.note(late_s)
        above_s = 0.0 if lag.lag_s < bound_s else above_s + LOOK_S + min(late_s, 3 * bound_s)
        if lag.shedding and not before:
            assert above_s >= LASTS_S
        if before and not lag.shedding:
            assert lag.lag_s < bound_s / 2
        if before and lag.lag_s >= bound_s / 2:
            assert lag.shedding
