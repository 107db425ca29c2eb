"""A client is stalled when the same bytes wait for it at every look for as long as the limit, and only then.

1. A replica that says nothing, however long, stalls nobody.
2. A client that takes anything between two looks is not stalled, however slow it is.
3. A client that takes nothing is stalled no sooner than after the limit, and two looks later at the latest.
"""

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from envoy_ext.domain.write_stall import LOOKS, Look, WriteStall, compute_look_s

LIMIT = 60.0
LOOK_S = compute_look_s(LIMIT)


def look(left=0, arrived=0, released=0, taken=0, acked=None):
    return Look(left, arrived, released, taken, acked)


def feed(looks, every=LOOK_S, limit=LIMIT):
    """At which of the looks the client counts as stalled, None at none of them."""
    stall = WriteStall(limit)
    return next((n for n, one in enumerate(looks) if stall.note(one, n * every)), None)


NOTHING_WAITS = look(left=900, arrived=900, released=900, taken=950)
HELD_UP = look(left=900, arrived=500, released=500, taken=550, acked=700)
BEHIND_WINDOW = look(left=900, arrived=900, released=900, taken=600)


@pytest.mark.parametrize(
    "wait", [HELD_UP, BEHIND_WINDOW, look(left=900, arrived=500, released=500, taken=550)]
)
def test_what_waits_for_the_whole_limit_is_a_stall(wait):
    assert feed([NOTHING_WAITS, *[wait] * 20]) == 1 + LOOKS


def test_the_limit_runs_from_the_look_that_first_found_something_waiting():
    calm = look(left=500, arrived=500, released=500, taken=550, acked=700)
    assert feed([calm, calm, *[HELD_UP] * 20]) == 2 + LOOKS


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (HELD_UP, look(left=900, arrived=501, released=501, taken=551, acked=700)),
        (HELD_UP, look(left=900, arrived=500, released=500, taken=550, acked=701)),
        (BEHIND_WINDOW, look(left=900, arrived=900, released=900, taken=601)),
        (HELD_UP, NOTHING_WAITS),
        (BEHIND_WINDOW, NOTHING_WAITS),
    ],
)
def test_one_step_of_the_client_begins_the_limit_anew(first, then):
    assert feed([*[first] * LOOKS, *[then] * LOOKS]) is None


def test_a_silent_replica_stalls_nobody():
    assert feed([NOTHING_WAITS] * 1000) is None


def test_bytes_that_came_a_moment_ago_have_not_waited_since_the_look_before():
    """The replica speaks once in each look, and the look finds its bytes between two places."""
    looks = []
    for n in range(100):
        looks += [look(left=n + 1, arrived=n, released=n, taken=n), look(n + 1, n + 1, n + 1, n + 1)]
    assert feed(looks) is None


def test_what_goes_on_filling_a_buffer_is_no_step_of_the_client():
    """Behind a window Envoy takes more from the replica for a while."""
    assert feed([look(n, n, n, taken=40) for n in range(100, 200)]) == LOOKS


def test_a_pause_of_the_sidecar_counts_for_no_more_than_one_look():
    stall = WriteStall(LIMIT)
    assert not stall.note(HELD_UP, 0.0)
    assert not any(stall.note(HELD_UP, 3600.0 + n / 1000) for n in range(50)), "what came in one heap"
    assert not stall.note(NOTHING_WAITS, 3601.0)


def test_when_the_kernel_cannot_be_asked_at_every_look_nothing_is_concluded_from_it():
    unknown = look(left=900, arrived=500, released=500, taken=550)
    assert feed([HELD_UP, unknown] * 20) is None


@pytest.mark.parametrize("limit", [0.001, 0.3, 1.0, 2.0, 60.0, 86_400.0])
def test_envoy_is_asked_often_enough_for_any_limit(limit):
    look_s = compute_look_s(limit)
    assert look_s >= 0.1
    stalled_at = feed([HELD_UP] * 30, look_s, limit)
    assert limit <= stalled_at * look_s + 1e-9 <= max(limit, look_s) + look_s


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=40), st.floats(0.8, 1.2)
)
@settings(max_examples=300, deadline=None)
def test_a_client_is_stalled_when_it_took_nothing_for_the_limit_and_at_no_other_time(moves, pace):
    """Between two looks the client takes some of what waits, and the replica sends."""
    stall, left, taken, waits_since = WriteStall(LIMIT), 0, 0, 0.0
    for n, (takes, sends) in enumerate(moves):
        now = n * pace * LOOK_S
        nothing_moved = min(takes, left - taken) == 0
        waited = nothing_moved and left > taken
        taken += min(takes, left - taken)
        left += sends
        if not waited:
            waits_since = now
        if stall.note(look(left, taken, taken, taken), now):
            assert now - waits_since >= LIMIT * 0.999
            return
        assert now - waits_since <= LIMIT + 2 * LOOK_S
