"""The life of a replica: every state with every signal, and what the table as a whole promises."""

from collections import deque

import hypothesis.strategies as st
import pytest
from hypothesis import given

from envoy_ext.domain.replica_life import (
    CONDITIONS,
    SERVING,
    TRANSITIONS,
    LifeSignal,
    ReplicaState,
    move,
    settle,
)

S, L = ReplicaState, LifeSignal

EXPECTED = """
           discovered heard    restarted ramped drain    undrain removed unproven unfit   full      fit
discovered .          starting starting  .      draining .       gone    .        unready saturated warming
starting   .          .        .         .      draining .       gone    .        unready saturated warming
warming    .          .        starting  ready  draining .       gone    starting unready saturated .
ready      .          .        starting  .      draining .       gone    starting unready saturated .
saturated  .          .        starting  .      draining .       gone    starting unready .         ready
unready    .          .        starting  .      draining .       gone    starting .       saturated warming
draining   .          .        .         .      .        unready gone    .        .       .         .
gone       discovered .        .         .      .        .       .       .        .       .         .
"""


def read_grid():
    head, *rows = [line.split() for line in EXPECTED.strip().splitlines()]
    for state, *cells in rows:
        for signal, cell in zip(head, cells, strict=True):
            yield S(state), L(signal), S(state if cell == "." else cell)


GRID = list(read_grid())


def test_the_grid_names_every_pair():
    assert {(state, signal) for state, signal, _ in GRID} == {
        (each, moved_by) for each in S for moved_by in L
    }
    assert set(TRANSITIONS) == set(S)


@pytest.mark.parametrize(("state", "signal", "after"), GRID, ids=lambda value: str(value))
def test_every_state_with_every_signal(state, signal, after):
    assert move(state, signal) is after


@pytest.mark.parametrize("condition", sorted(CONDITIONS))
@pytest.mark.parametrize("state", list(S))
def test_a_condition_settles_and_settles_only_once(state, condition):
    after = settle(state, condition)
    assert settle(after, condition) is after


@pytest.mark.parametrize(
    ("condition", "after"),
    [(L.UNPROVEN, S.STARTING), (L.UNFIT, S.UNREADY), (L.FULL, S.SATURATED), (L.FIT, S.WARMING)],
)
def test_an_undrained_replica_goes_where_it_belongs(condition, after):
    assert settle(move(S.DRAINING, L.UNDRAIN), condition) is after


def test_every_state_can_be_reached():
    seen, queue = {S.DISCOVERED}, deque([S.DISCOVERED])
    while queue:
        for after in TRANSITIONS[queue.popleft()].values():
            if after not in seen:
                seen.add(after)
                queue.append(after)
    assert seen == set(S)


@given(st.lists(st.sampled_from(sorted(set(L) - {L.DRAIN, L.UNDRAIN, L.REMOVED, L.DISCOVERED}))))
def test_whatever_signals_say_only_an_order_takes_a_replica_out_or_back(signals):
    drained, gone, state = S.DRAINING, S.GONE, S.DISCOVERED
    for signal in signals:
        drained, gone, state = move(drained, signal), move(gone, signal), move(state, signal)
        assert (drained, gone) == (S.DRAINING, S.GONE)
        assert state not in (S.DRAINING, S.GONE)


def test_work_comes_back_through_slow_start_unless_the_replica_was_only_full():
    entries = {
        (state, after)
        for state, row in TRANSITIONS.items()
        for after in row.values()
        if after in SERVING and state not in SERVING
    }
    assert {state for state, after in entries if after is S.READY} == {S.SATURATED}


def test_load_makes_no_replica_unready():
    assert all(row.get(L.FULL) in (None, S.SATURATED) for row in TRANSITIONS.values())
