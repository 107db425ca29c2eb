"""Which trigger leads to which rung; a class with side effects has none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envoy_ext.domain.ids import PoolName
from envoy_ext.domain.ladder import (
    STEPS,
    HandOff,
    Ladder,
    OtherPool,
    Outlook,
    Rung,
    ShortenContext,
    ShortenGeneration,
    Template,
    Trigger,
    list_shortenings,
    list_ways_out,
)
from envoy_ext.domain.outcomes import RungName

GENERATION, CONTEXT = ShortenGeneration(256), ShortenContext(keep_turns=4)
SMALL, PERSON, TEXT = OtherPool(PoolName("small"), "m"), HandOff("http://p", "t", 2.0), Template("later")
WHOLE = Ladder((GENERATION, CONTEXT, SMALL, PERSON, TEXT))
REFUSALS = ["queue_full", "queue_deadline_exceeded", "no_ready_replica"]

rungs = st.lists(st.sampled_from([GENERATION, CONTEXT, SMALL, PERSON, TEXT]), max_size=5).map(tuple)
figures = st.none() | st.floats(0, 100)


def look(
    waiting: int = 0,
    length: int = 4,
    *,
    waits: bool = True,
    wait_s: float | None = None,
    hold_s: float | None = None,
) -> Outlook:
    return Outlook(waits, waiting, length, wait_s, hold_s)


def test_every_trigger_has_its_rungs_and_every_rung_a_trigger() -> None:
    assert set(STEPS) == set(Trigger)
    assert frozenset().union(*STEPS.values()) == set(RungName)


@pytest.mark.parametrize("code", REFUSALS)
def test_a_refusal_goes_down_the_rungs_that_lead_away_in_their_order(code: str) -> None:
    assert list_ways_out(WHOLE, code) == (SMALL, PERSON, TEXT)
    assert list_ways_out(Ladder((TEXT, SMALL)), code) == (TEXT, SMALL)


@pytest.mark.parametrize("code", ["draining", "deadline_exceeded", "data_class_forbidden", "line_filling"])
def test_what_leaves_no_time_for_another_answer_leads_nowhere(code: str) -> None:
    assert list_ways_out(WHOLE, code) == ()


@pytest.mark.parametrize(
    ("waiting", "given_up"),
    [(0, ()), (1, ()), (2, (GENERATION,)), (3, (GENERATION, CONTEXT)), (4, (GENERATION, CONTEXT))],
)
def test_the_upper_half_of_the_line_is_divided_among_the_shortenings(
    waiting: int, given_up: tuple[Rung, ...]
) -> None:
    assert list_shortenings(WHOLE, look(waiting), None) == given_up


def test_whoever_need_not_wait_and_has_time_gives_up_nothing() -> None:
    assert list_shortenings(WHOLE, look(4, waits=False), None) == ()
    assert list_shortenings(WHOLE, look(0, 0), None) == ()
    assert list_shortenings(WHOLE, look(0, wait_s=1.0, hold_s=2.0), 3.0) == ()


def test_a_deadline_that_is_nearer_than_an_answer_takes_all_shortenings() -> None:
    assert list_shortenings(WHOLE, look(0, wait_s=1.0, hold_s=2.0), 2.9) == (GENERATION, CONTEXT)
    assert list_shortenings(WHOLE, look(0, waits=False, wait_s=0.0, hold_s=2.0), 1.0) == (GENERATION, CONTEXT)
    assert list_shortenings(WHOLE, look(0, wait_s=1.0), 0.1) == ()  # how long it takes is not known


@given(
    rungs=rungs,
    outlook=st.builds(Outlook, st.booleans(), st.integers(0, 300), st.integers(0, 256), figures, figures),
    left_s=figures,
    code=st.sampled_from([*REFUSALS, "draining"]),
)
def test_a_class_with_side_effects_is_never_stepped_down(
    rungs: tuple[Rung, ...], outlook: Outlook, left_s: float | None, code: str
) -> None:
    """And whatever another class gives up stands on its ladder, in its order."""
    payment = Ladder(rungs, side_effects=True)
    assert (list_shortenings(payment, outlook, left_s), list_ways_out(payment, code)) == ((), ())
    given_up = list_shortenings(Ladder(rungs), outlook, left_s)
    assert given_up == tuple(one for one in rungs if one in (GENERATION, CONTEXT))[: len(given_up)]
    ways = list_ways_out(Ladder(rungs), code)
    assert ways in ((), tuple(one for one in rungs if one in (SMALL, PERSON, TEXT)))
