"""Noisy numbers become calm answers: what counts as a number, what moves a latch, and what never does.

Inside the band nothing moves, and not known never compares as good.
"""

import math

import hypothesis.strategies as st
import pytest
from hypothesis import given

from envoy_ext.domain.signals import (
    BLANK,
    FLAP_WINDOW_S,
    Band,
    FlapMemory,
    LastKnown,
    Latch,
    LatchRule,
    Level,
    Turn,
    read_flag,
    read_known,
)

KV = Band(leave_at=0.90, return_at=0.80)
HOLD_S = 5.0
BAD, BETWEEN, GOOD, UNKNOWN = Level.BAD, Level.BETWEEN, Level.GOOD, Level.UNKNOWN


def latch(**rule):
    return Latch(LatchRule(**{"leave_hold_s": HOLD_S, **rule}))


def feed(subject, levels, start=0.0, step=1.0, hold_s=HOLD_S):
    """Show the latch these levels, one a second; tell what each did."""
    return [subject.observe(level, start + i * step, hold_s) for i, level in enumerate(levels)]


def tripped_latch():
    subject = latch(leave_hold_s=0.0)
    subject.observe(BAD, -1.0, HOLD_S)
    assert subject.tripped
    return subject


@pytest.mark.parametrize("value", [None, math.nan, -math.nan, math.inf, -math.inf, -1.0, BLANK, BLANK + 4096])
def test_what_is_no_number_is_not_known(value):
    assert read_known(value) is None
    assert KV.read_level(value) is UNKNOWN


@pytest.mark.parametrize(
    ("value", "level"),
    [(0.0, GOOD), (0.80, GOOD), (0.8001, BETWEEN), (0.8999, BETWEEN), (0.90, BAD), (1.0, BAD), (7.0, BAD)],
)
def test_a_band_has_its_thresholds_on_the_outside(value, level):
    assert KV.read_level(value) is level


def test_a_yes_is_bad_a_no_is_good_and_silence_is_neither():
    assert [read_flag(value) for value in (True, False, None)] == [BAD, GOOD, UNKNOWN]


def test_a_latch_trips_when_the_level_has_lasted():
    subject = latch()
    assert feed(subject, [BAD] * 6) == [Turn.NONE] * 5 + [Turn.LEFT]
    assert subject.tripped
    assert subject.tripped_at == 5.0


def test_a_latch_returns_when_the_level_has_lasted():
    subject = tripped_latch()
    assert feed(subject, [GOOD] * 6) == [Turn.NONE] * 5 + [Turn.RETURNED]
    assert not subject.tripped


def test_without_a_hold_one_look_is_enough():
    assert latch(leave_hold_s=0.0).observe(BAD, 3.0, HOLD_S) is Turn.LEFT


def test_a_series_needs_its_number_of_looks_whatever_the_hold():
    assert feed(latch(leave_hold_s=0.0, times=3), [BAD] * 3) == [Turn.NONE, Turn.NONE, Turn.LEFT]


@pytest.mark.parametrize("other", [BETWEEN, GOOD])
def test_one_look_that_is_not_bad_ends_a_run_towards_leaving(other):
    subject = latch()
    feed(subject, [*[BAD] * 5, other, *[BAD] * 5])
    assert not subject.tripped


@pytest.mark.parametrize("other", [BETWEEN, BAD])
def test_one_look_that_is_not_good_ends_a_run_towards_returning(other):
    subject = tripped_latch()
    feed(subject, [*[GOOD] * 5, other, *[GOOD] * 5])
    assert subject.tripped


def test_a_broken_way_back_is_told_once():
    assert feed(tripped_latch(), [GOOD, BAD, BAD]) == [Turn.NONE, Turn.BROKEN, Turn.NONE]


def test_looks_that_tell_nothing_neither_make_a_run_nor_end_it():
    subject = latch()
    assert feed(subject, [UNKNOWN] * 60) == [Turn.NONE] * 60
    feed(subject, [BAD, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, BAD], start=100.0)
    assert subject.tripped


def test_looks_too_far_apart_are_not_one_run():
    subject = latch(max_gap_s=10.0)
    subject.observe(BAD, 0.0, HOLD_S)
    assert subject.observe(BAD, 60.0, HOLD_S) is Turn.NONE
    assert subject.observe(BAD, 65.0, HOLD_S) is Turn.LEFT


def test_a_run_back_says_when_it_will_be_over():
    subject = tripped_latch()
    assert subject.returns_at(HOLD_S) is None
    subject.observe(GOOD, 7.0, HOLD_S)
    assert subject.returns_at(HOLD_S) == 12.0


def test_a_latch_that_is_reset_remembers_no_run():
    subject = latch()
    feed(subject, [BAD] * 5)
    subject.reset()
    assert subject.observe(BAD, 5.0, HOLD_S) is Turn.NONE


@given(
    tripped=st.booleans(),
    values=st.lists(st.floats(0.81, 0.89) | st.none() | st.just(math.nan), max_size=80),
    step=st.floats(0.1, 30.0),
)
def test_inside_the_band_nothing_moves(tripped, values, step):
    subject = tripped_latch() if tripped else latch()
    turns = feed(subject, [KV.read_level(value) for value in values], step=step)
    assert set(turns) <= {Turn.NONE}
    assert subject.tripped is tripped


@given(
    threshold=st.sampled_from([KV.leave_at, KV.return_at]),
    periods=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=12),
    tripped=st.booleans(),
)
def test_a_swing_around_one_threshold_moves_a_latch_once_at_most(threshold, periods, tripped):
    """Whatever its rhythm: the far side of one threshold is inside the band or beyond it, never across."""
    subject = tripped_latch() if tripped else latch()
    values = [
        value for above, below in periods for value in [threshold + 0.01] * above + [threshold - 0.01] * below
    ]
    turns = feed(subject, [KV.read_level(value) for value in values])
    assert sum(turn in (Turn.LEFT, Turn.RETURNED) for turn in turns) <= 1


@given(st.lists(st.sampled_from(list(Level)), max_size=200))
def test_every_change_had_its_hold_of_one_level_before_it(levels):
    """The model: the last looks that told anything, back to the hold, were all of the level that moved it."""
    subject = latch()
    told: list[tuple[float, Level]] = []
    for at, level in enumerate(levels):
        turn = subject.observe(level, float(at), HOLD_S)
        if level is not UNKNOWN:
            told.append((float(at), level))
        if turn in (Turn.LEFT, Turn.RETURNED):
            wanted = BAD if turn is Turn.LEFT else GOOD
            run: list[float] = []
            for when, seen in reversed(told):
                if seen is not wanted:
                    break
                run.append(when)
            assert run[0] - run[-1] >= HOLD_S


def test_the_first_return_takes_the_hold_and_later_ones_grow_to_five_minutes():
    memory = FlapMemory()
    holds = []
    for leave in range(4):
        memory.note_left(leave * 10.0)
        holds.append(memory.compute_return_hold(HOLD_S, leave * 10.0))
    assert holds == [5.0, 40.0, 300.0, 300.0]


def test_five_calm_minutes_are_forgiven():
    memory = FlapMemory()
    for at in (0.0, 10.0, 20.0):
        memory.note_left(at)
    assert memory.compute_return_hold(HOLD_S, 20.0 + FLAP_WINDOW_S - 0.1) == 300.0
    assert memory.compute_return_hold(HOLD_S, 20.0 + FLAP_WINDOW_S) == HOLD_S
    memory.note_left(1_000.0)
    assert memory.compute_return_hold(HOLD_S, 1_000.0) == HOLD_S


def test_a_broken_way_back_keeps_the_memory_awake_but_makes_none():
    memory = FlapMemory()
    memory.note_unrest(0.0)
    assert memory.compute_return_hold(HOLD_S, 1.0) == HOLD_S
    memory.note_left(10.0)
    memory.note_left(20.0)
    memory.note_unrest(300.0)
    assert memory.compute_return_hold(HOLD_S, 590.0) == 40.0


def test_a_policy_without_a_hold_is_damped_too():
    memory = FlapMemory()
    assert memory.compute_return_hold(0.0, 0.0) == 0.0
    memory.note_left(0.0)
    memory.note_left(1.0)
    assert memory.compute_return_hold(0.0, 1.0) == 8.0


def test_a_hold_longer_than_the_window_is_never_made_shorter():
    memory = FlapMemory()
    for at in (0.0, 1.0, 2.0):
        memory.note_left(at)
    assert memory.compute_return_hold(600.0, 2.0) == 600.0


def test_a_missing_value_keeps_the_last_one_until_it_is_stale():
    last = LastKnown()
    assert last.read(0.0, 10.0) is None
    last.note(3.0, 100.0)
    last.note(None, 105.0)
    last.note(math.nan, 106.0)
    assert last.read(109.9, 10.0) == 3.0
    assert last.read(110.0, 10.0) is None
