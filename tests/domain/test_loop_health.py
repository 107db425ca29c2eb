"""Whether our own loop ran on time, and for how long it did not."""

import pytest

from envoy_ext.domain.fleet_events import LoopLate
from envoy_ext.domain.loop_health import LoopHealth


def test_a_loop_that_runs_on_time_says_nothing():
    loop = LoopHealth(interval_s=0.5)
    assert [loop.tick(now) for now in (0.0, 0.5, 1.1, 1.5, 2.4)] == [None] * 5


def test_a_loop_that_stood_still_says_for_how_long_and_once():
    loop = LoopHealth(interval_s=0.5)
    loop.tick(100.0)
    late = loop.tick(104.5)
    assert late == LoopLate(pytest.approx(4.0))
    assert loop.tick(105.0) is None


def test_a_look_between_two_ticks_tells_lateness_once_and_hides_none():
    loop = LoopHealth(interval_s=0.5)
    assert loop.look(100.0) is None, "nothing to compare with"
    loop.tick(100.0)
    assert loop.look(100.4) is None
    assert loop.look(101.0) is None
    assert loop.look(104.5) == LoopLate(pytest.approx(4.0))
    assert loop.look(104.6) is None
    assert loop.tick(105.0) is None
    loop.look(105.5)
    assert loop.tick(106.1) == LoopLate(pytest.approx(0.6)), "counted from the tick, not from the look"
