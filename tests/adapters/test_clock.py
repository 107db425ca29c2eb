"""The system clock is the operating system's, and the manual one moves only by hand."""

import time

from envoy_ext.adapters.clock import SystemClock
from envoy_ext.ports import Clock
from tests.support.clock import ManualClock


def test_the_system_clock_reads_the_monotonic_and_the_wall_clock() -> None:
    clock: Clock = SystemClock()
    before, now, after = time.monotonic(), clock.now(), time.monotonic()
    assert before <= now <= after
    assert abs(clock.wall() - time.time()) < 60


def test_the_manual_clock_moves_both_times_and_may_jump_on_the_wall_alone() -> None:
    clock = ManualClock(now=10, wall=100)
    as_port: Clock = clock
    assert (as_port.now(), as_port.wall()) == (10, 100)
    clock.advance(2.5)
    assert (as_port.now(), as_port.wall()) == (12.5, 102.5)
    clock.jump_wall(-50)
    assert (as_port.now(), as_port.wall()) == (12.5, 52.5)
