"""The fleet of a process: signals in, one picture out."""

import asyncio
from collections.abc import Sequence

import pytest

from envoy_ext.config import Readiness
from envoy_ext.domain.availability import Availability
from envoy_ext.domain.discovery import MemberChanges, Standing
from envoy_ext.domain.events import Target
from envoy_ext.domain.exchange_shared import Tried
from envoy_ext.domain.fingerprint import Fingerprint
from envoy_ext.domain.fingerprint_book import REREAD_S
from envoy_ext.domain.fleet_events import (
    Change,
    ControlCallPassed,
    FingerprintContradicted,
    ReplicaChanged,
    Scraped,
)
from envoy_ext.domain.fleet_view import FleetView, Offer, ViewPolicy
from envoy_ext.domain.ids import AttemptId, OperationId, PoolName, ReplicaId
from envoy_ext.domain.notes import AttemptFinished
from envoy_ext.domain.outcomes import AttemptOutcome
from envoy_ext.domain.readiness_policy import SLOW_START_S
from envoy_ext.domain.replica_life import SERVING
from envoy_ext.domain.sample import Sample
from envoy_ext.services.exchange_replicas import ExchangeReplicas
from envoy_ext.services.fleet import TICK_S, Fleet, FleetPool
from envoy_ext.services.fleet_members import REMEMBER_S
from envoy_ext.wiring.fleet import build_readiness
from tests.support.clock import ManualClock
from tests.support.members import list_members, member, place

POOL = PoolName("chat")
A, B = ReplicaId("a"), ReplicaId("b")


Q4 = Fingerprint(POOL, quantization="Q4_1")
Q8 = Fingerprint(POOL, quantization="Q8_0")


class Played:
    """A fleet on a clock of the test's own, and what it told."""

    def __init__(
        self,
        names: Sequence[str] = ("a", "b"),
        *,
        watched: bool = True,
        over_xds: bool = False,
        fingerprint: Fingerprint | None = None,
    ) -> None:
        readiness = build_readiness(Readiness(hold=1.0, watch=watched))
        self.clock = ManualClock()
        self.views: list[FleetView] = []
        self.changes: list[Change] = []
        declared = fingerprint or Fingerprint(POOL)
        pool = FleetPool(POOL, declared, readiness, watched, over_xds, ViewPolicy())
        self.fleet = Fleet([pool], self.clock, self.views.append, self.changes.append)
        list_members(self.fleet, POOL, tuple(names))

    def pass_time(self, seconds: float) -> None:
        """Tick by tick, as the running loop does."""
        for _ in range(round(seconds / TICK_S)):
            self.clock.advance(TICK_S)
            self.fleet.tick()

    def prove(self, replica: ReplicaId) -> None:
        self.fleet.receive(replica, ControlCallPassed(self.fleet.incarnation(replica)))

    def scrape(self, replica: ReplicaId, waiting: float = 0) -> None:
        sample = Sample(at=self.clock.now(), running=0, waiting=waiting, kv_cache_usage=0)
        self.fleet.receive(replica, Scraped(sample))

    def candidates(self, *tried: str) -> tuple[Target, ...]:
        first = ReplicaId(tried[0]) if tried else None
        return self.replicas().find_targets(Tried(first, 0.0, frozenset(map(ReplicaId, tried))))

    def replicas(self, *prefixes: bytes) -> ExchangeReplicas:
        """The fleet as an exchange with this prompt sees it."""
        return ExchangeReplicas(self.fleet, POOL, self.clock, prefixes)

    def offers(self) -> dict[str, Offer]:
        (pool,) = self.fleet.view.pools
        return {replica.id: replica.offer for replica in pool.replicas}

    def inflight(self) -> dict[str, int]:
        (pool,) = self.fleet.view.pools
        return {replica.id: replica.status.inflight for replica in pool.replicas}


def end(attempt: str, replica: ReplicaId, outcome: AttemptOutcome) -> AttemptFinished:
    return AttemptFinished(OperationId("op_1"), AttemptId(attempt), POOL, replica, outcome, "")


def test_replicas_nobody_watches_serve_from_the_first_moment() -> None:
    played = Played(watched=False)
    assert played.fleet.availability(POOL) is Availability.NORMAL
    assert {target.replica for target in played.candidates()} == {"a", "b"}


def test_watched_replicas_serve_when_their_model_has_answered() -> None:
    played = Played()
    assert played.fleet.availability(POOL) is Availability.EMPTY
    assert played.candidates() == ()
    assert not played.fleet.is_control_call_due(A), "nobody has heard of it yet"
    played.scrape(A)
    assert played.fleet.is_control_call_due(A)
    played.prove(A)
    assert played.offers() == {"a": Offer.SERVING, "b": Offer.WITHHELD}
    assert [target.address for target in played.candidates()] == ["10.0.0.1:8000"]


def test_a_change_is_seen_at_once_and_told_at_the_next_turn() -> None:
    played = Played()
    before = len(played.views)
    played.scrape(A)
    played.prove(A)
    assert played.fleet.availability(POOL) is Availability.NORMAL
    assert len(played.views) == before
    played.fleet.tick()
    assert played.views[-1] is played.fleet.view
    assert len(played.views) == before + 1


def test_an_order_is_told_before_it_is_answered() -> None:
    played = Played(watched=False)
    played.fleet.drain(A, 30)
    assert played.views[-1] is played.fleet.view
    assert played.offers() == {"a": Offer.DRAINING, "b": Offer.SERVING}
    played.fleet.undrain(A)
    assert played.views[-1] is played.fleet.view
    assert played.offers() == {"a": Offer.SERVING, "b": Offer.SERVING}


async def test_changes_that_come_in_a_crowd_are_told_as_one_and_soon() -> None:
    names = [f"r{number}" for number in range(200)]
    played = Played(names)
    told = asyncio.Event()
    seen: list[int] = []

    def see(view: FleetView) -> None:
        (pool,) = view.pools
        seen.append(sum(one.offer is Offer.SERVING for one in pool.replicas))
        if seen[-1] == len(names):
            told.set()

    played.fleet._on_view = see
    running = asyncio.create_task(played.fleet.run())
    for name in names:
        played.scrape(ReplicaId(name))
        await asyncio.sleep(0)
        played.prove(ReplicaId(name))
        await asyncio.sleep(0)
    async with asyncio.timeout(20):
        await told.wait()
    running.cancel()
    await asyncio.wait({running})
    assert len(seen) < len(names), "each picture costs the loop milliseconds"


def test_a_full_replica_leaves_after_its_hold_and_the_view_is_told() -> None:
    played = Played()
    played.prove(A)
    played.prove(B)
    for _ in range(8):
        played.scrape(A, waiting=40)
        played.scrape(B)
        played.pass_time(0.5)
    assert played.offers() == {"a": Offer.WITHHELD, "b": Offer.SERVING}
    assert "saturated" in {getattr(change, "after", "") for change in played.changes}


def test_streams_are_counted_where_they_run_and_end_at_zero() -> None:
    played = Played(watched=False)
    fleet = played.fleet
    place(fleet, AttemptId("att_1"), A)
    place(fleet, AttemptId("att_1"), A)
    place(fleet, AttemptId("att_2"), A)
    played.pass_time(TICK_S)
    assert played.inflight() == {"a": 2, "b": 0}
    place(fleet, AttemptId("att_2"), B)
    played.pass_time(TICK_S)
    assert played.inflight() == {"a": 1, "b": 1}, "an attempt that was sent elsewhere runs there alone"
    for attempt, replica in (("att_1", A), ("att_2", B), ("att_2", B)):
        fleet.streams.note(end(attempt, replica, AttemptOutcome.COMPLETED))
    played.pass_time(TICK_S)
    assert played.inflight() == {"a": 0, "b": 0}


def test_a_replica_that_failed_of_late_comes_last_for_a_replay() -> None:
    played = Played(watched=False)
    played.fleet.streams.note(end("att_1", A, AttemptOutcome.REPLICA_DIED))
    played.pass_time(TICK_S)
    assert [target.replica for target in played.candidates()] == ["b", "a"]


def test_what_is_sent_somewhere_makes_it_busier_until_the_next_page() -> None:
    played = Played(watched=False)
    first = played.candidates()[0].replica
    place(played.fleet, AttemptId("att_1"), first)
    assert played.candidates()[0].replica != first


def test_a_pool_with_a_replica_that_must_not_serve_is_steered_unless_envoy_hears_of_it() -> None:
    for over_xds, steered in ((False, True), (True, False)):
        played = Played(watched=False, over_xds=over_xds)
        assert played.replicas().choose_first_target(None) is None
        played.fleet.drain(A, limit_s=60)
        assert played.replicas().choose_first_target(None) == (
            Target(B, "10.0.0.2:8000") if steered else None
        )
        assert [target.replica for target in played.candidates()] == ["b"]


def test_a_first_attempt_goes_where_its_slot_is_as_long_as_that_replica_serves() -> None:
    played = Played(watched=False, over_xds=True)
    assert played.replicas().choose_first_target(B) == Target(B, "10.0.0.2:8000")
    played.fleet.drain(B, limit_s=60)
    assert played.replicas().choose_first_target(B) is None


def test_an_unwatched_replica_is_simply_ready_and_failures_do_not_stop_the_clock() -> None:
    played = Played(watched=False)
    (pool,) = played.fleet.view.pools
    assert [replica.status.state for replica in pool.replicas] == ["ready", "ready"]
    for number in range(20):
        place(played.fleet, AttemptId(f"att_{number}"), A)
        played.fleet.streams.note(end(f"att_{number}", A, AttemptOutcome.REPLICA_DIED))
    played.pass_time(60)
    assert set(played.offers().values()) == {Offer.SERVING}
    assert played.inflight() == {"a": 0, "b": 0}


def test_a_replica_is_known_by_its_metadata_or_else_by_its_address() -> None:
    fleet = Played(watched=False).fleet
    assert fleet.find_replica(POOL, "b", "10.0.0.1:8000") == "b"
    assert fleet.find_replica(POOL, "", "10.0.0.1:8000") == "a"
    assert fleet.find_replica(POOL, "", "10.0.0.9:8000") is None
    assert fleet.find_replica(PoolName("other"), "b", "10.0.0.1:8000") is None
    fleet.change_members(POOL, MemberChanges(changed=(member("a", addresses=("10.1.0.1:8000",)),)))
    assert fleet.find_replica(POOL, "", "10.0.0.1:8000") is None
    assert fleet.find_replica(POOL, "", "10.1.0.1:8000") == "a"


def test_a_drain_ends_with_the_last_stream() -> None:
    played = Played(watched=False)
    place(played.fleet, AttemptId("att_1"), A)
    done = played.fleet.drain(A, limit_s=60)
    assert done is not None
    played.pass_time(1)
    assert (played.offers()["a"], done.is_set()) == (Offer.DRAINING, False)
    played.fleet.streams.note(end("att_1", A, AttemptOutcome.COMPLETED))
    assert done.is_set()
    assert played.fleet.undrain(A)
    assert played.offers()["a"] is Offer.SERVING


def test_a_drain_ends_at_its_limit_whatever_still_runs() -> None:
    played = Played(watched=False)
    place(played.fleet, AttemptId("att_1"), A)
    done = played.fleet.drain(A, limit_s=2)
    assert done is not None
    played.pass_time(3)
    assert done.is_set()


def test_orders_for_replicas_that_are_not_there_are_told_so() -> None:
    fleet = Played().fleet
    assert fleet.drain(ReplicaId("nobody"), 1) is None
    assert not fleet.undrain(ReplicaId("nobody"))


@pytest.mark.parametrize("late_s", [5.0, 60.0])
def test_a_sidecar_that_was_stopped_ejects_nobody(late_s: float) -> None:
    played = Played()
    for replica in (A, B):
        played.prove(replica)
        played.scrape(replica)
    played.pass_time(1)
    played.clock.advance(late_s)
    played.fleet.tick()
    assert set(played.offers().values()) == {Offer.SERVING}


# --- replicas that come and go ----------------------------------------------------------------------


def change(played: Played, **changes: object) -> None:
    played.fleet.change_members(POOL, MemberChanges(**changes))  # type: ignore[arg-type]


def test_a_pool_without_replicas_is_empty_and_the_picture_says_so() -> None:
    played = Played(names=())
    assert played.fleet.availability(POOL) is Availability.EMPTY
    assert [pool.replicas for pool in played.views[-1].pools] == [()]


def test_many_that_come_at_once_are_one_change_of_the_picture() -> None:
    played = Played(names=(), watched=False)
    before = len(played.views)
    change(played, added=tuple(member(f"r{number}", number) for number in range(1, 200)))
    change(played, changed=tuple(member(f"r{number}", number, zone="z1") for number in range(1, 200)))
    played.fleet.tick()
    assert len(played.views) == before + 1
    assert set(played.offers().values()) == {Offer.SERVING}
    assert len(played.offers()) == 199


def test_whoever_is_removed_is_gone_at_once_and_forgotten_with_the_next_tick() -> None:
    played = Played(watched=False)
    change(played, removed=(A,))
    assert played.offers() == {"a": Offer.ABSENT, "b": Offer.SERVING}
    assert [target.replica for target in played.candidates()] == ["b"]
    played.pass_time(TICK_S)
    assert played.offers() == {"b": Offer.SERVING}
    assert played.fleet.find_replica(POOL, "", "10.0.0.1:8000") is None
    assert not played.fleet.undrain(A)


def test_whoever_is_gone_is_remembered_until_its_last_stream_of_ours_has_ended() -> None:
    played = Played(watched=False)
    place(played.fleet, AttemptId("att_1"), A)
    change(played, removed=(A,))
    played.pass_time(30)
    assert played.offers() == {"a": Offer.ABSENT, "b": Offer.SERVING}
    assert played.inflight() == {"a": 1, "b": 0}
    assert played.fleet.find_replica(POOL, "", "10.0.0.1:8000") == "a", "the log of its stream comes yet"
    played.fleet.streams.note(end("att_1", A, AttemptOutcome.COMPLETED))
    played.pass_time(TICK_S)
    assert played.offers() == {"b": Offer.SERVING}


def test_a_drain_that_is_waited_for_ends_when_its_replica_is_gone() -> None:
    played = Played(watched=False)
    place(played.fleet, AttemptId("att_1"), A)
    done = played.fleet.drain(A, limit_s=600)
    assert done is not None
    change(played, removed=(A,))
    played.pass_time(1)
    assert not done.is_set()
    played.fleet.streams.note(end("att_1", A, AttemptOutcome.COMPLETED))
    played.pass_time(TICK_S)
    assert done.is_set()


def test_the_last_one_that_goes_leaves_an_empty_pool_and_the_first_one_back_fills_it() -> None:
    played = Played(names=("a",), watched=False)
    change(played, removed=(A,))
    assert played.fleet.availability(POOL) is Availability.EMPTY
    change(played, added=(member("c", 3),))
    assert played.fleet.availability(POOL) is Availability.NORMAL
    assert [target.address for target in played.candidates()] == ["10.0.0.3:8000"]


def test_an_empty_pool_opens_when_envoy_has_been_told() -> None:
    for over_xds, before in ((True, Availability.EMPTY), (False, Availability.NORMAL)):
        played = Played(names=("a",), watched=False, over_xds=over_xds)
        change(played, removed=(A,))
        played.fleet.tick()
        change(played, added=(member("a"),))
        assert played.fleet.availability(POOL) is before
        played.fleet.tick()
        assert played.fleet.availability(POOL) is Availability.NORMAL
        change(played, removed=(A,))
        assert played.fleet.availability(POOL) is Availability.EMPTY, "and closes at once"


def test_another_one_under_the_same_id_is_another_incarnation_and_must_prove_itself() -> None:
    played = Played()
    played.prove(A)
    place(played.fleet, AttemptId("att_1"), A)
    change(played, replaced=(member("a", 7, identity="uid-2"),))
    assert (played.fleet.incarnation(A), played.offers()["a"]) == (2, Offer.WITHHELD)
    assert played.inflight()["a"] == 1, "streams of the one before are still counted"
    played.prove(A)
    assert [target.address for target in played.candidates()] == ["10.0.0.7:8000"]
    played.fleet.streams.note(end("att_1", A, AttemptOutcome.REPLICA_DIED))
    played.pass_time(TICK_S)
    assert played.inflight()["a"] == 0
    (pool,) = played.fleet.view.pools
    assert pool.replicas[0].status.failures == 0, "nor is the end of that one held against this one"


def test_an_address_that_another_one_has_taken_over_is_the_other_ones() -> None:
    played = Played(watched=False)
    change(played, removed=(A,), added=(member("c", 1),))
    assert played.fleet.find_replica(POOL, "", "10.0.0.1:8000") == "c"
    assert played.fleet.find_replica(POOL, "a", "10.0.0.1:8000") == "c", "whatever Envoy last heard"
    assert played.fleet.find_replica(POOL, "a", "10.0.0.9:8000") == "a"
    played.pass_time(TICK_S)
    assert played.fleet.find_replica(POOL, "", "10.0.0.1:8000") == "c", "forgetting the first takes nothing"


def test_one_that_goes_from_pool_to_pool_is_another_one_there() -> None:
    other = PoolName("embed")
    readiness = build_readiness(Readiness(watch=False))
    pools = [
        FleetPool(name, Fingerprint(name), readiness, False, True, ViewPolicy()) for name in (POOL, other)
    ]
    fleet = Fleet(pools, ManualClock(), lambda view: None, lambda change: None)
    list_members(fleet, POOL, "a")
    place(fleet, AttemptId("att_1"), A)
    fleet.change_members(POOL, MemberChanges(removed=(A,)))
    list_members(fleet, other, "a")
    assert [[one.id for one in pool.replicas] for pool in fleet.view.pools] == [[], ["a"]]
    assert fleet.find_replica(other, "a", "") == "a"
    fleet.streams.note(end("att_1", A, AttemptOutcome.COMPLETED))
    fleet.tick()
    assert fleet.availability(other) is Availability.NORMAL


def test_one_that_is_being_ended_gets_no_work_whatever_an_operator_says() -> None:
    played = Played(watched=False)
    change(played, changed=(member("a", standing=Standing.LEAVING),))
    assert played.offers() == {"a": Offer.DRAINING, "b": Offer.SERVING}
    played.fleet.undrain(A)
    played.pass_time(1)
    assert played.offers()["a"] is Offer.DRAINING
    change(played, changed=(member("a"),))
    assert played.offers()["a"] is Offer.SERVING


def test_an_operators_drain_outlives_the_orchestrators_change_of_mind() -> None:
    played = Played(watched=False)
    played.fleet.drain(A, limit_s=60)
    for standing in (Standing.LEAVING, Standing.HELD, Standing.LISTED):
        change(played, changed=(member("a", standing=standing),))
    played.pass_time(1)
    assert played.offers()["a"] is Offer.DRAINING
    played.fleet.undrain(A)
    assert played.offers()["a"] is Offer.SERVING


def test_one_that_is_listed_as_not_ready_gets_no_work_even_when_there_is_nobody_else() -> None:
    played = Played(names=("a",))
    played.prove(A)
    assert played.offers() == {"a": Offer.SERVING}
    change(played, changed=(member("a", standing=Standing.HELD),))
    assert played.offers() == {"a": Offer.WITHHELD}
    assert played.fleet.availability(POOL) is Availability.EMPTY
    (pool,) = played.fleet.view.pools
    assert pool.replicas[0].status.reasons == ("pod_not_ready",)
    change(played, changed=(member("a"),))
    assert played.fleet.availability(POOL) is Availability.NORMAL


def test_whoever_comes_held_back_or_on_its_way_out_never_had_work() -> None:
    for watched in (False, True):
        played = Played(names=(), watched=watched)
        change(played, added=(member("a", standing=Standing.HELD), member("b", 2, standing=Standing.LEAVING)))
        for replica in (A, B):
            played.prove(replica)
        assert played.offers() == {"a": Offer.WITHHELD, "b": Offer.DRAINING}
        states = {one.after for one in played.changes if isinstance(one, ReplicaChanged)}
        assert not states & SERVING
        assert not any(one.status.was_ready for one in played.fleet.view.pools[0].replicas)


def test_an_attempt_at_a_replica_that_is_not_known_leaves_nothing_behind() -> None:
    played = Played(watched=False)
    stranger = ReplicaId("x")
    place(played.fleet, AttemptId("att_1"), stranger)
    played.fleet.streams.note_bytes(AttemptId("att_1"))
    played.fleet.streams.note(end("att_1", stranger, AttemptOutcome.COMPLETED))
    change(played, added=(member("x", 9),))
    assert played.inflight()["x"] == 0


# --- fingerprints -------------------------------------------------------------------------------


def identify(played: Played, **told: Fingerprint) -> None:
    for name, fingerprint in told.items():
        played.fleet.note_fingerprint(ReplicaId(name), played.fleet.incarnation(ReplicaId(name)), fingerprint)


def read_names(targets: Sequence[Target]) -> set[str]:
    return {target.replica for target in targets}


def test_a_replay_goes_to_an_equal_of_the_first_attempts_replica_only() -> None:
    played = Played("abcd", watched=False)
    identify(played, a=Q4, b=Q8, c=Q4)
    assert read_names(played.candidates("a")) == {"c", "d"}, (
        "d has told nothing, and nothing speaks against it"
    )
    assert read_names(played.candidates("b")) == {"d"}
    assert read_names(played.candidates("d", "a")) == {"b", "c"}, "the first attempt's replica decides"
    assert read_names(played.candidates()) == {"a", "b", "c", "d"}


def test_what_a_replica_was_is_known_for_as_long_as_a_replay_may_ask_after_it_is_gone() -> None:
    played = Played("abc", watched=False)
    identify(played, a=Q4, b=Q8, c=Q4)
    change(played, removed=(A,))
    played.pass_time(60)
    assert "a" not in played.offers()
    assert read_names(played.candidates("a")) == {"c"}
    change(played, added=(member("a", 9),))
    tried = Tried(A, played.clock.now() - 61, frozenset({A}))
    assert read_names(played.replicas().find_targets(tried)) == {"c"}, "nor after another came"
    change(played, removed=(A,))
    played.pass_time(TICK_S)
    played.clock.advance(REMEMBER_S)
    played.fleet.tick()
    assert played.fleet.find_fingerprint(A, played.clock.now()) is None


def test_a_mixed_pool_is_in_the_picture_as_soon_as_it_is_known() -> None:
    played = Played(watched=False)
    identify(played, a=Q4, b=Q8)
    (pool,) = played.fleet.view.pools
    assert pool.mix == ("quantization: Q4_1 on a; Q8_0 on b",)
    played.pass_time(TICK_S)
    assert played.views[-1].pools[0].mix == pool.mix


def test_a_replay_needs_an_equal_of_what_the_replica_was_when_the_attempt_ran() -> None:
    played = Played("abc", watched=False)
    identify(played, a=Q4, b=Q8, c=Q4)
    started = played.clock.now()
    played.pass_time(5)
    identify(played, a=Q8)  # other weights in the running engine
    tried = Tried(A, started, frozenset({A}))
    assert read_names(played.replicas().find_targets(tried)) == {"c"}
    tried = Tried(A, played.clock.now(), frozenset({A}))
    assert read_names(played.replicas().find_targets(tried)) == {"b"}


def test_what_an_engine_tells_against_the_configuration_is_believed_and_said_once() -> None:
    played = Played("a", watched=False, fingerprint=Q4)
    for _ in range(3):
        identify(played, a=Q8)
        played.pass_time(60)
    told = [change for change in played.changes if isinstance(change, FingerprintContradicted)]
    assert [str(one) for change in told for one in change.differences] == ["quantization: Q4_1 and Q8_0"]
    (replica,) = played.fleet.view.pools[0].replicas
    assert replica.profile.fingerprint == Q8
    assert [one.describe_contradiction() for one in replica.profile.contradictions] == [
        "quantization: Q4_1 is configured, the engine says Q8_0"
    ]


def test_what_a_process_told_that_is_gone_is_not_taken_in() -> None:
    played = Played(watched=False)
    played.fleet.note_fingerprint(A, played.fleet.incarnation(A) + 1, Q8)
    played.fleet.note_fingerprint(ReplicaId("nobody"), 1, Q8)
    assert played.fleet.view.pools[0].replicas[0].profile.fingerprint == Fingerprint(POOL)


def test_an_engine_is_asked_what_it_serves_once_its_model_has_answered() -> None:
    played = Played()
    played.scrape(A)
    assert not played.fleet.is_fingerprint_due(A)
    played.prove(A)
    assert played.fleet.is_fingerprint_due(A)
    identify(played, a=Q4)
    assert not played.fleet.is_fingerprint_due(A)
    played.clock.advance(REREAD_S)
    assert played.fleet.is_fingerprint_due(A)
    assert not played.fleet.is_fingerprint_due(ReplicaId("nobody"))


def test_a_member_that_is_listed_elsewhere_keeps_what_its_engine_told() -> None:
    played = Played("a", watched=False)
    identify(played, a=Q8)
    played.fleet.change_members(POOL, MemberChanges(changed=(member("a", 9),)))
    assert played.fleet.view.pools[0].replicas[0].profile.fingerprint == Q8
    played.fleet.change_members(POOL, MemberChanges(replaced=(member("a", 8),)))
    assert played.fleet.view.pools[0].replicas[0].profile.fingerprint == Fingerprint(POOL)


# --- what our own attempts teach ----------------------------------------------------------------

PREFIXES = (b"one", b"two", b"three", b"four")


def held(played: Played, *prefixes: bytes) -> list[str]:
    """Where a replay of this prompt goes, best first."""
    targets = played.replicas(*prefixes).find_targets(Tried(None, 0.0, frozenset()))
    return [target.replica for target in targets]


def test_a_replay_goes_to_whoever_probably_has_the_prompt_in_its_cache() -> None:
    played = Played("abc", watched=False)
    played.replicas(*PREFIXES).note_first_delta(ReplicaId("c"), None)
    assert held(played, *PREFIXES)[0] == "c"
    assert held(played, *PREFIXES, b"five", b"six")[0] == "c"
    assert held(played, b"another")[0] == "a"
    assert held(played)[0] == "a"


def test_the_cache_of_one_that_is_gone_is_not_remembered_for_another_of_its_name() -> None:
    played = Played("ab", watched=False)
    place(played.fleet, AttemptId("att_1"), B)
    change(played, removed=(B,))
    played.replicas(*PREFIXES).note_first_delta(B, None)  # its last stream still runs
    played.fleet.streams.note(end("att_1", B, AttemptOutcome.COMPLETED))
    played.pass_time(TICK_S)
    change(played, added=(member("b", 7),))
    assert held(played, *PREFIXES)[0] == "a"


def test_a_cache_is_forgotten_with_its_process_its_sleep_and_its_replica() -> None:
    for end_of_cache in ("restart", "sleep", "gone"):
        played = Played("ab")
        for replica in (A, B):
            played.fleet.receive(replica, Scraped(Sample(at=played.clock.now(), process_started_at=1000)))
            played.prove(replica)
        played.replicas(*PREFIXES).note_first_delta(B, None)
        assert held(played, *PREFIXES)[0] == "b"
        played.clock.advance(1)
        if end_of_cache == "restart":
            played.fleet.receive(B, Scraped(Sample(at=played.clock.now(), process_started_at=2000)))
        elif end_of_cache == "sleep":
            for sleeping in (True, True, *[False] * 20):
                page = Sample(at=played.clock.now(), process_started_at=1000, sleeping=sleeping)
                played.fleet.receive(B, Scraped(page))
                played.pass_time(1)
        else:
            played.fleet.change_members(POOL, MemberChanges(removed=(B,)))
            played.pass_time(1)  # it is forgotten, and counts its lives from 1 again
            played.fleet.change_members(POOL, MemberChanges(added=(member("b", 2),)))
        played.prove(B)
        assert held(played, *PREFIXES) == ["a", "b"], end_of_cache


def weigh(played: Played) -> dict[str, int]:
    for _ in range(12):
        for replica in (A, B):
            played.scrape(replica)
        played.pass_time(1)
    return {replica.id: replica.weight for replica in played.fleet.view.pools[0].replicas}


def test_a_slow_replica_gets_less_and_never_nothing_and_more_again_when_nobody_says_so_any_more() -> None:
    played = Played("ab")
    for replica in (A, B):
        played.scrape(replica)
        played.prove(replica)
    played.pass_time(SLOW_START_S + 1)
    even = weigh(played)
    assert even["a"] == even["b"]
    for _ in range(10):
        played.replicas().note_first_delta(A, 0.5)
        played.replicas().note_first_delta(B, 30.0)
    slow = weigh(played)
    assert 1 <= slow["b"] < slow["a"] == even["a"]
    assert slow["b"] >= even["b"] // 2 - 5, "slow is not broken"
    assert {replica.offer for replica in played.fleet.view.pools[0].replicas} == {Offer.SERVING}
    played.pass_time(60)
    assert weigh(played) == even
