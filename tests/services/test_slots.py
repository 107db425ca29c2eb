"""Slots in the fleet: what exchanges and pages tell of an attempt until nothing of it is computed."""

import asyncio
from dataclasses import replace

import pytest

from envoy_ext.domain.discovery import MemberChanges
from envoy_ext.domain.events import DeliveryClosed, LogCause, ResponseBody
from envoy_ext.domain.fleet_events import DrainEnded, Scraped
from envoy_ext.domain.ids import AttemptId, FencingToken, OperationId, ReplicaId
from envoy_ext.domain.lease import FenceProof
from envoy_ext.domain.notes import AttemptFinished, AttemptLetGo, AttemptProved
from envoy_ext.domain.outcomes import AttemptOutcome
from envoy_ext.domain.sample import Sample
from envoy_ext.domain.slots import CancelOver, CancelProof, SlotCount
from envoy_ext.services.fleet import TICK_S
from envoy_ext.services.leases import LeaseAnswer, Leases
from envoy_ext.services.rooms import Rooms
from tests.services.test_fleet import POOL, A, B
from tests.services.test_fleet import Played as Fleeting
from tests.support.clock import ManualClock
from tests.support.members import place
from tests.support.sidecar import REST, Sidecar, play_until_delta

ONE, TWO = AttemptId("att_1"), AttemptId("att_2")
FENCE_S = 7.0
TAKEN = SlotCount(inflight=1, taken=1)
CANCELLING = SlotCount(inflight=1, taken=1, cancelling=1)
START = 1_750_000_000.0


def drop(played: Fleeting, attempt: AttemptId, replica: ReplicaId | None = A) -> None:
    """Its stream has ended, and that is all that is known."""
    until = played.clock.now() + FENCE_S
    outcome = AttemptOutcome.CANCELLED
    played.fleet.streams.note(
        AttemptFinished(OperationId("op_1"), attempt, POOL, replica, outcome, "", until)
    )


def look(played: Fleeting, replica: ReplicaId = A, *, asked_s_ago: float = 0.0, **figures: object) -> None:
    """A page comes, asked for so long ago."""
    now = played.clock.now()
    page = replace(Sample(at=now, running=0, waiting=0, process_started_at=START), **figures)
    played.fleet.receive(replica, Scraped(page, now - asked_s_ago))


def dropped() -> Fleeting:
    played = Fleeting(watched=False)
    look(played)
    place(played.fleet, ONE, A)
    drop(played, ONE)
    return played


def list_proofs(played: Fleeting) -> list[CancelProof]:
    return [change.proof for change in played.changes if isinstance(change, CancelOver)]


def list_cancelling(played: Fleeting) -> list[int]:
    (pool,) = played.fleet.view.pools
    return [one.status.cancelling for one in pool.replicas]


def test_a_dropped_attempt_is_shown_where_it_runs() -> None:
    played = dropped()
    played.pass_time(TICK_S)
    assert (played.inflight(), list_cancelling(played)) == ({"a": 1, "b": 0}, [1, 0])
    look(played)
    played.pass_time(TICK_S)
    assert (played.inflight(), list_cancelling(played)) == ({"a": 0, "b": 0}, [0, 0])


def test_the_next_page_of_an_idle_replica_frees_its_slot() -> None:
    played = dropped()
    look(played, asked_s_ago=0.5)
    assert played.fleet.streams.count(A) == CANCELLING, "that page was asked for before the cancel"
    played.clock.advance(1.0)
    look(played, asked_s_ago=0.1)
    assert played.fleet.streams.count(A) == SlotCount()
    assert list_proofs(played) == [CancelProof.ENGINE_COUNT]


@pytest.mark.parametrize(
    "figures",
    [{"waiting": None}, {"running": None}, {"running": float("nan")}, {"running": 1.0}, {"waiting": 1.0}],
    ids=str,
)
def test_a_page_that_may_hold_it_frees_nothing(figures: dict[str, float | None]) -> None:
    played = dropped()
    played.clock.advance(1.0)
    look(played, **figures)
    assert played.fleet.streams.count(A) == CANCELLING


def test_without_a_page_the_slot_is_free_when_the_lease_has_ended() -> None:
    played = dropped()
    played.pass_time(FENCE_S - TICK_S)
    assert played.fleet.streams.count(A) == CANCELLING
    played.pass_time(TICK_S)
    assert played.fleet.streams.count(A) == SlotCount()
    assert list_proofs(played) == [CancelProof.EXPIRY]


@pytest.mark.parametrize(("after_start_s", "left"), [(1.9, CANCELLING), (2.0, SlotCount())])
def test_another_process_frees_the_slots_of_those_that_had_reached_the_one_before(
    after_start_s: float, left: SlotCount
) -> None:
    played = Fleeting(watched=False)
    place(played.fleet, ONE, A)
    played.clock.advance(after_start_s)
    look(played, running=1.0)
    drop(played, ONE)
    played.clock.advance(1.0)
    look(played, running=1.0, process_started_at=START + 60.0)
    assert played.fleet.streams.count(A) == left
    assert list_proofs(played) == ([] if left is CANCELLING else [CancelProof.DEATH])


def test_a_place_that_is_told_with_the_end_alone_is_where_the_slot_is_taken() -> None:
    """Envoy chose the replica, and the client left before it answered."""
    played = Fleeting(watched=False)
    played.fleet.streams.note(AttemptLetGo(ONE, POOL))
    assert (played.fleet.streams.count(A), played.fleet.streams.count_unplaced(POOL)) == (SlotCount(), 1)
    drop(played, ONE, B)
    assert (played.fleet.streams.count(B), played.fleet.streams.count_unplaced(POOL)) == (CANCELLING, 0)
    played.clock.advance(1.0)
    look(played, B)
    assert played.fleet.streams.count(B) == SlotCount()


def test_a_drain_waits_for_what_may_still_be_computed() -> None:
    played = dropped()
    done = played.fleet.drain(A, 600.0)
    assert done is not None
    played.pass_time(1.0)
    assert not done.is_set()
    look(played)
    assert done.is_set()
    (ended,) = [change for change in played.changes if isinstance(change, DrainEnded)]
    assert ended.inflight == 0


def test_what_a_worker_has_acknowledged_takes_no_slot_and_a_drain_waits_for_its_stream() -> None:
    played = Fleeting(watched=False)
    place(played.fleet, ONE, A)
    played.fleet.streams.note(AttemptProved(ONE, POOL, FenceProof.CANCEL_ACK))
    assert played.fleet.streams.count(A) == SlotCount(inflight=1)
    done = played.fleet.drain(A, 600.0)
    assert done is not None
    assert not done.is_set()
    drop(played, ONE)
    assert done.is_set()
    assert list_proofs(played) == [], "it was no cancel: its stream was read to its end, or not"


def test_a_replica_that_is_gone_is_remembered_until_its_last_slot_is_free() -> None:
    played = dropped()
    played.fleet.change_members(POOL, MemberChanges(removed=(A,)))
    played.pass_time(1.0)
    assert played.fleet.streams.count(A) == CANCELLING
    assert not played.fleet.is_listed(A)
    assert A in played.fleet._gates
    played.pass_time(FENCE_S)
    assert A not in played.fleet._gates


def test_a_slot_that_is_being_cancelled_is_not_offered() -> None:
    played = dropped()
    rooms = Rooms(played.fleet, {POOL: 1})
    assert rooms.read(POOL).count_free({}) == 1
    played.clock.advance(1.0)
    look(played)
    assert rooms.read(POOL).count_free({}) == 2


# --- an exchange whose client leaves --------------------------------------------------------------


def leave(sidecar: Sidecar, played) -> None:
    """The client has gone, and Envoy has said so in both logs."""
    played.delivery.receive(DeliveryClosed())
    sidecar.reports.log_exchange(played.exchange_id, LogCause.DOWNSTREAM_GONE, "")
    sidecar.reports.log_attempt(
        played.attempt_id, LogCause.DOWNSTREAM_GONE, "10.0.0.1:8000", 0, "downstream_remote_disconnect"
    )


async def test_the_word_of_a_worker_counts_when_its_exchange_is_long_forgotten() -> None:
    sidecar = Sidecar(clock=ManualClock())
    played = await play_until_delta(sidecar)
    streams, leases = sidecar.fleet.streams, Leases(sidecar.exchanges, sidecar.fleet.streams, sidecar.clock)
    operation_id, token = played.live.exchange.identity.operation_id, FencingToken(1)
    assert leases.renew(operation_id, played.attempt_id, token) is LeaseAnswer.GRANTED
    leave(sidecar, played)
    await sidecar.settle()
    assert sidecar.exchanges.inflight == 0
    assert streams.count(A) == CANCELLING
    assert leases.renew(operation_id, played.attempt_id, token) is LeaseAnswer.REFUSED
    assert leases.note_stopped(operation_id, played.attempt_id, token)
    assert streams.count(A) == SlotCount()
    assert not leases.note_stopped(operation_id, played.attempt_id, token)
    assert leases.renew(operation_id, played.attempt_id, token) is LeaseAnswer.UNKNOWN


async def test_a_lease_that_was_renewed_is_waited_for_from_its_last_renewal() -> None:
    clock = ManualClock()
    sidecar = Sidecar(clock=clock)
    played = await play_until_delta(sidecar)
    leases = Leases(sidecar.exchanges, sidecar.fleet.streams, clock)
    clock.advance(10.0)
    leases.renew(played.live.exchange.identity.operation_id, played.attempt_id, FencingToken(1))
    clock.advance(3.0)
    leave(sidecar, played)
    await sidecar.settle()
    for seconds, count in ((3.9, CANCELLING), (0.1, SlotCount())):
        clock.advance(seconds)
        sidecar.fleet.tick()
        assert sidecar.fleet.streams.count(A) == count


async def test_a_whole_answer_frees_its_slot_with_its_end() -> None:
    sidecar = Sidecar()
    played = await play_until_delta(sidecar)
    assert sidecar.fleet.streams.count(A) == TAKEN
    played.delivery.receive(ResponseBody(REST, end=True))
    sidecar.reports.log_attempt(played.attempt_id, LogCause.COMPLETED, "10.0.0.1:8000", 0, "")
    await sidecar.settle()
    await asyncio.sleep(0)
    assert sidecar.fleet.streams.count(A) == SlotCount()
