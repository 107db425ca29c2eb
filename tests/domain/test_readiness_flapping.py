"""A replica does not flap: how often it may change while its signals swing, on a simulated clock."""

import math
from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from envoy_ext.domain.replica_life import ReplicaState
from envoy_ext.domain.signals import FLAP_WINDOW_S, MIRROR_S, Band
from tests.support.fleet_builders import IDLE, POLICY, ready_replica

S = ReplicaState
FIVE_MINUTES = 300


def swing(replica, seconds, period, high, low, signal="kv_cache_usage", bad_share=0.5):
    """Let a signal be high for a part of each period and low for the rest, with work being done."""
    for second in range(seconds):
        value = high if second % period < period * bad_share else low
        replica.scrape(**{signal: value, "running": 1, "progress": 2_000.0 + replica.now})
        replica.wait(1, every=2)


def swing_page(replica, seconds, period, reason):
    """Let the page be there for half a period and fail for the other half."""
    for second in range(seconds):
        if second % period < period / 2:
            replica.page = IDLE
            replica.scrape()
        else:
            replica.fail(reason)
        replica.wait(1, every=2)


def test_a_cache_that_swings_around_its_limit_changes_nothing():
    replica = ready_replica(policy=replace(POLICY, kv_cache=Band(leave_at=0.90, return_at=0.85)))
    swing(replica, FIVE_MINUTES, 2, 0.91, 0.89)
    assert replica.moves == []


@pytest.mark.parametrize("period", [2, 4, 8, 12, 20, 60, 150])
@pytest.mark.parametrize(("high", "low"), [(0.96, 0.94), (0.86, 0.84), (0.99, 0.86), (0.94, 0.80)])
@pytest.mark.parametrize("start", [S.READY, S.SATURATED])
def test_a_swing_around_one_threshold_is_one_change_at_most(start, period, high, low):
    replica = ready_replica()
    if start is S.SATURATED:
        replica.scrape(kv_cache_usage=0.99)
        replica.wait(6)
        assert replica.state is start
        replica.forget()
    swing(replica, FIVE_MINUTES, period, high, low)
    assert len(replica.moves) <= 1


@pytest.mark.parametrize("period", [2, 4, 6, 8])
def test_a_swing_over_the_whole_band_faster_than_the_hold_is_no_change(period):
    replica = ready_replica()
    swing(replica, FIVE_MINUTES, period, 0.99, 0.10)
    assert replica.moves == []


@pytest.mark.parametrize("period", [12, 20, 40, 60, 78, 100, 150])
def test_a_swing_over_the_whole_band_is_one_change_for_as_long_as_it_goes_on(period):
    replica = ready_replica()
    for _ in range(5):
        swing(replica, FIVE_MINUTES, period, 0.99, 0.10)
        assert replica.moves == [("ready", "saturated")]
    replica.page = IDLE
    replica.wait(MIRROR_S + POLICY.hold_s + 1)
    assert replica.state is S.READY, "and it comes back when the swinging is over"


def test_a_replica_is_back_as_soon_as_it_was_good_for_as_long_as_it_was_bad():
    for bad_s, back_s in ((10, 15), (40, 45), (600, MIRROR_S + POLICY.hold_s)):
        replica = ready_replica()
        replica.scrape(kv_cache_usage=0.99)
        replica.wait(bad_s)
        replica.scrape(kv_cache_usage=0.90)
        replica.wait(100)
        replica.scrape(kv_cache_usage=0.10)
        replica.wait(back_s - 1)
        assert replica.state is S.SATURATED
        replica.wait(1)
        assert replica.state is S.READY


@pytest.mark.parametrize("period", [24, 40, 52])
def test_a_swing_that_is_mostly_good_settles_after_its_first_way_back(period):
    replica = ready_replica()
    swing(replica, FIVE_MINUTES, period, 0.99, 0.10, bad_share=0.3)
    assert replica.moves == [("ready", "saturated"), ("saturated", "ready"), ("ready", "saturated")]
    replica.forget()
    for _ in range(4):
        swing(replica, FIVE_MINUTES, period, 0.99, 0.10, bad_share=0.3)
        assert replica.moves == []
    replica.page = IDLE
    replica.wait(FLAP_WINDOW_S)
    assert replica.state is S.READY


@settings(max_examples=40, deadline=None)
@given(
    period=st.floats(1.0, 150.0),
    middle=st.floats(0.0, 1.1),
    amplitude=st.floats(0.0, 0.5),
    square=st.booleans(),
)
def test_however_long_its_period_a_swing_that_is_not_mostly_good_is_one_change_in_five_minutes(
    period, middle, amplitude, square
):
    """From its bottom on, around either threshold, over both, or in between; looked at once a second."""
    band = POLICY.kv_cache
    # Mostly good is what spends more of a period below the band than above it.
    middle = max(middle, (band.leave_at + band.return_at) / 2)
    replica = ready_replica()
    for second in range(FIVE_MINUTES):
        turn = -math.cos(2 * math.pi * second / period)
        value = middle + amplitude * (math.copysign(1.0, turn) if square else turn)
        replica.scrape(kv_cache_usage=max(0.0, value), running=1, progress=2_000.0 + replica.now)
        replica.wait(1, every=2)
    assert len(replica.moves) <= 1


def test_two_signals_that_swing_in_turn_are_one_replica_that_flaps():
    replica = ready_replica()
    for _ in range(25):
        swing(replica, 6, 6, 0.99, 0.99)
        swing(replica, 6, 6, 0.10, 0.10)
        swing(replica, 6, 6, 20, 20, signal="waiting")
        swing(replica, 6, 6, 0, 0, signal="waiting")
    left = [move for move in replica.moves if move[0] == "ready"]
    assert len(left) <= 2


def test_a_page_that_is_slow_every_other_time_changes_nothing():
    replica = ready_replica()
    swing_page(replica, FIVE_MINUTES, 2, "timeout")
    assert replica.moves == []
    assert replica.changes == []


def test_answers_that_come_just_in_time_and_just_too_late_in_turn_change_nothing():
    """1.9 s and 2.1 s, with a limit of 2 s, for five minutes."""
    replica = ready_replica()
    for _ in range(FIVE_MINUTES // 4):
        replica.sleep(1.9)
        replica.page = IDLE
        replica.scrape()
        replica.sleep(2.0)
        replica.fail("timeout")
    assert replica.changes == []


def test_a_process_that_comes_and_goes_stays_out_until_it_is_calm():
    replica = ready_replica(policy=replace(POLICY, slow_start_s=5.0))
    swing_page(replica, 4 * FIVE_MINUTES, 30, "refused")
    left = [move for move in replica.moves if move[1] == "unready"]
    assert len(left) == 2
    replica.page = IDLE
    replica.wait(FLAP_WINDOW_S)
    assert replica.state is S.READY


def test_a_replica_that_left_twice_in_a_day_comes_back_as_fast_as_the_first_time():
    replica = ready_replica()
    for _ in range(2):
        replica.scrape(kv_cache_usage=0.99)
        replica.wait(POLICY.hold_s)
        assert replica.state is S.SATURATED
        replica.scrape(kv_cache_usage=0.10)
        replica.wait(2 * POLICY.hold_s)
        assert replica.state is S.READY
        replica.wait(FLAP_WINDOW_S)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0.8501, 0.9499), min_size=1, max_size=120), st.booleans())
def test_inside_the_band_nothing_moves(values, saturated):
    replica = ready_replica()
    if saturated:
        replica.scrape(kv_cache_usage=0.99)
        replica.wait(6)
    replica.forget()
    for value in values:
        replica.scrape(kv_cache_usage=value)
        replica.wait(1, every=2)
    assert replica.changes == []


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 60), st.sampled_from([0.1, 0.9, 0.99, None])), min_size=4, max_size=30)
)
def test_however_load_swings_a_replica_leaves_at_most_a_few_times_in_five_minutes(stretches):
    """The bound that the growing hold gives: leaves at 5, 15, 60 and 365 s are the densest there are."""
    replica = ready_replica()
    for seconds, usage in stretches:
        replica.scrape(kv_cache_usage=usage, running=1)
        for _ in range(seconds):
            replica.wait(1, every=2)
            replica.scrape(progress=2_000.0 + replica.now)
    leaves = [
        change.at for change in replica.changes if (change.before, change.after) == (S.READY, S.SATURATED)
    ]
    for at in leaves:
        assert sum(at <= other < at + FLAP_WINDOW_S for other in leaves) <= 3
