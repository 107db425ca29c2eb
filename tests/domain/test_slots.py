"""Slots by the row: every state with every signal, and what each proof frees."""

import itertools

import pytest

from envoy_ext.domain.ids import AttemptId, PoolName, ReplicaId
from envoy_ext.domain.lease import FenceProof
from envoy_ext.domain.slots import (
    NOTHING,
    TRANSITIONS,
    CancelBegan,
    CancelOver,
    CancelProof,
    SlotCount,
    Slots,
    SlotSignal,
    SlotState,
)

S, T = SlotState, SlotSignal
POOL = PoolName("chat")
A, B = ReplicaId("a"), ReplicaId("b")
ONE, TWO, THREE = (AttemptId(f"att_{number}") for number in (1, 2, 3))
FENCE_S = 7.0

ROWS = {
    (S.RUNNING, T.ENDED): S.FREE,
    (S.RUNNING, T.DROPPED): S.CANCELLING,
    (S.RUNNING, T.PROVED): S.DELIVERING,
    (S.DELIVERING, T.ENDED): S.FREE,
    (S.DELIVERING, T.DROPPED): S.FREE,
    (S.DELIVERING, T.PROVED): S.DELIVERING,
    (S.CANCELLING, T.ENDED): S.FREE,
    (S.CANCELLING, T.DROPPED): S.CANCELLING,
    (S.CANCELLING, T.PROVED): S.FREE,
}
"""All there is; a second copy of the table, so that a row cannot come or go unnoticed."""

COUNTS = {
    S.RUNNING: SlotCount(inflight=1, taken=1),
    S.DELIVERING: SlotCount(inflight=1),
    S.CANCELLING: SlotCount(inflight=1, taken=1, cancelling=1),
    S.FREE: SlotCount(),
}
WAYS = {S.RUNNING: (), S.DELIVERING: (T.PROVED,), S.CANCELLING: (T.DROPPED,), S.FREE: (T.ENDED,)}


def running(*attempts: AttemptId, replica: ReplicaId = A) -> Slots:
    """These attempts at one replica."""
    slots = Slots()
    for attempt in attempts:
        slots.start(attempt, POOL, now=0.0)
        slots.place(attempt, replica)
    return slots


def give(slots: Slots, signal: SlotSignal, now: float = 1.0):
    match signal:
        case T.ENDED:
            return slots.end(ONE, now)
        case T.DROPPED:
            return slots.drop(ONE, now, now + FENCE_S)
        case T.PROVED:
            return slots.prove(ONE, CancelProof.CANCEL_ACK, now)


@pytest.mark.parametrize(("state", "signal"), list(itertools.product(S, T)))
def test_every_state_with_every_signal(state: SlotState, signal: SlotSignal) -> None:
    after = ROWS.get((state, signal), S.FREE)
    assert TRANSITIONS[state].get(signal, S.FREE) is after
    slots = running(ONE)
    for way in WAYS[state]:
        give(slots, way)
    assert slots.count(A) == COUNTS[state]
    step = give(slots, signal)
    assert slots.count(A) == COUNTS[after]
    assert step.counted == (frozenset() if state is after else {A})
    assert len(slots) == (after is not S.FREE)


def test_a_dropped_attempt_is_told_when_it_begins_and_by_what_it_ended() -> None:
    slots = running(ONE)
    assert slots.drop(ONE, 10.0, 17.0).cancels == (CancelBegan(ONE, POOL, A),)
    assert slots.is_dropped(ONE)
    over = slots.prove(ONE, CancelProof.CANCEL_ACK, 12.5)
    assert over.cancels == (CancelOver(POOL, A, CancelProof.CANCEL_ACK, 2.5),)
    assert not slots.is_dropped(ONE)
    assert slots.prove(ONE, CancelProof.CANCEL_ACK, 13.0) == NOTHING


def test_every_proof_of_a_fence_is_one_of_a_cancel() -> None:
    assert {proof.value for proof in FenceProof} == {proof.value for proof in CancelProof} - {"engine_count"}


def test_a_lease_that_runs_out_frees_and_not_a_moment_before() -> None:
    slots = running(ONE, TWO)
    slots.drop(ONE, 10.0, 17.0)
    slots.drop(TWO, 10.0, 18.0)
    assert slots.expire(16.999) == NOTHING
    (over,) = slots.expire(17.0).cancels
    assert isinstance(over, CancelOver)
    assert (over.proof, over.seconds) == (CancelProof.EXPIRY, 7.0)
    assert slots.count(A) == SlotCount(inflight=1, taken=1, cancelling=1)
    slots.expire(18.0)
    assert len(slots) == 0


def test_the_first_drop_counts() -> None:
    slots = running(ONE)
    slots.drop(ONE, 10.0, 17.0)
    assert slots.drop(ONE, 16.0, 23.0) == NOTHING
    assert slots.expire(17.0).counted == {A}


@pytest.mark.parametrize(
    ("shown", "left"),
    [(0, 0), (1, 1), (2, 2), (3, 3), (40, 3), (0.4, 1), (1.0, 1)],
    ids=lambda value: f"{value}",
)
def test_a_page_that_shows_fewer_requests_than_are_cancelled_frees_the_rest(shown: float, left: int) -> None:
    slots = running(ONE, TWO, THREE)
    for attempt in (ONE, TWO, THREE):
        slots.drop(attempt, 10.0, 17.0)
    step = slots.note_page(A, asked_at=10.1, requests=shown, now=10.2)
    assert slots.count(A).cancelling == left
    assert [over.proof for over in step.cancels if isinstance(over, CancelOver)] == [
        CancelProof.ENGINE_COUNT
    ] * (3 - left)


def test_what_runs_there_keeps_a_cancelled_slot_taken() -> None:
    """The one that the page shows may be any: another gateway's, ours that runs, or the one we dropped."""
    slots = running(ONE, TWO)
    slots.drop(ONE, 10.0, 17.0)
    assert slots.note_page(A, asked_at=11.0, requests=1, now=11.1) == NOTHING
    assert slots.count(A) == SlotCount(inflight=2, taken=2, cancelling=1)


@pytest.mark.parametrize("asked_at", [9.0, 10.0])
def test_a_page_that_was_asked_for_before_the_drop_says_nothing_of_it(asked_at: float) -> None:
    slots = running(ONE, TWO)
    slots.drop(TWO, 5.0, 12.0)
    slots.drop(ONE, 10.0, 17.0)
    step = slots.note_page(A, asked_at, requests=0, now=10.5)
    assert step.cancels == (CancelOver(POOL, A, CancelProof.ENGINE_COUNT, 5.5),)
    assert slots.count(A).cancelling == 1


def test_a_page_of_one_replica_says_nothing_of_another() -> None:
    slots = running(ONE, TWO)
    slots.place(ONE, B)
    for attempt in (ONE, TWO):
        slots.drop(attempt, 10.0, 17.0)
    slots.note_page(A, asked_at=11.0, requests=0, now=11.0)
    assert (slots.is_dropped(ONE), slots.is_dropped(TWO)) == (True, False)


@pytest.mark.parametrize("named", [ONE, TWO])
def test_a_word_by_name_about_one_that_was_counted_frees_no_second_slot(named: AttemptId) -> None:
    slots = running(ONE, TWO)
    for attempt in (ONE, TWO):
        slots.drop(attempt, 10.0, 17.0)
    assert len(slots.note_page(A, asked_at=11.0, requests=1, now=11.0).cancels) == 1
    assert slots.note_page(A, asked_at=12.0, requests=1, now=12.0) == NOTHING, "it is the same one"
    assert slots.prove(named, CancelProof.CANCEL_ACK, 12.5).cancels == ()
    assert slots.count(A) == SlotCount(inflight=1, taken=1, cancelling=1)
    assert len(slots.note_page(A, asked_at=13.0, requests=0, now=13.0).cancels) == 1
    assert (slots.count(A), len(slots)) == (SlotCount(), 0)


def test_each_cancel_is_told_to_be_over_once() -> None:
    slots = running(ONE, TWO, THREE)
    for attempt, at in ((ONE, 1.0), (TWO, 2.0), (THREE, 3.0)):
        slots.drop(attempt, at, at + FENCE_S)
    told = [*slots.note_page(A, 4.0, 2, 4.0).cancels, *slots.note_page(A, 5.0, 1, 5.0).cancels]
    told += slots.expire(9.0).cancels
    assert [over.seconds for over in told if isinstance(over, CancelOver)] == [3.0, 3.0]
    assert slots.count(A).cancelling == 1
    (last,) = slots.expire(10.0).cancels
    assert last == CancelOver(POOL, A, CancelProof.EXPIRY, 7.0)
    assert (slots.count(A), len(slots)) == (SlotCount(), 0)


def test_the_end_of_a_process_ends_what_had_reached_it() -> None:
    slots = running(ONE, TWO)
    slots.start(THREE, POOL, now=9.0)
    slots.place(THREE, A)
    slots.drop(ONE, 10.0, 17.0)
    slots.note_death(B, 8.0, 11.0)
    assert slots.count(A) == SlotCount(inflight=3, taken=3, cancelling=1)
    slots.note_death(A, 0.0, 11.0)
    assert slots.count(A) == SlotCount(inflight=2, taken=1)
    slots.drop(TWO, 12.0, 19.0)
    assert slots.count(A) == SlotCount(inflight=1, taken=1), "what is dropped then was over before"


def test_a_slot_without_a_place_is_the_pools_until_it_is_placed() -> None:
    slots = Slots()
    slots.start(ONE, POOL, now=0.0)
    slots.start(ONE, POOL, now=0.0)
    assert slots.count_unplaced(POOL) == 1
    assert slots.find_replica(ONE) is None
    assert slots.place(ONE, A).counted == {A}
    assert slots.place(ONE, A) == NOTHING
    assert (slots.count_unplaced(POOL), slots.count(A).taken) == (0, 1)
    assert slots.place(ONE, B).counted == {A, B}, "it was sent elsewhere, and runs there alone"
    assert (slots.count(A), slots.count(B).taken) == (SlotCount(), 1)


def test_a_dropped_slot_whose_place_nobody_told_is_the_pools_until_its_lease_ends() -> None:
    slots = Slots()
    slots.start(ONE, POOL, now=0.0)
    assert slots.drop(ONE, 10.0, 17.0).counted == frozenset()
    assert slots.place(ONE, A) == NOTHING, "its place is told with its end, or never"
    assert slots.count_unplaced(POOL) == 1
    (over,) = slots.expire(17.0).cancels
    assert over.replica is None
    assert slots.count_unplaced(POOL) == 0


def test_news_of_an_attempt_that_is_free_or_never_started_change_nothing() -> None:
    slots = running(ONE)
    slots.end(ONE, 1.0)
    assert slots.place(ONE, B) == NOTHING
    assert slots.drop(ONE, 2.0, 9.0) == NOTHING
    assert slots.end(ONE, 2.0) == NOTHING
    assert slots.prove(ONE, CancelProof.DEATH, 2.0) == NOTHING
    assert (slots.count(A), slots.count(B), len(slots)) == (SlotCount(), SlotCount(), 0)
