"""What our own failures at a replica cost it: a rest, never its place, nothing where it is the last one."""

import pytest

from envoy_ext.config import Readiness
from envoy_ext.domain.availability import Availability
from envoy_ext.domain.fingerprint import Fingerprint
from envoy_ext.domain.fleet_events import ControlCallPassed, Scraped
from envoy_ext.domain.fleet_view import Offer, ViewPolicy
from envoy_ext.domain.ids import AttemptId, OperationId, PoolName, ReplicaId
from envoy_ext.domain.notes import AttemptFinished
from envoy_ext.domain.outcomes import AttemptOutcome
from envoy_ext.domain.sample import Sample
from envoy_ext.services.fleet import TICK_S, Fleet, FleetPool
from envoy_ext.wiring.fleet import build_readiness
from tests.support.clock import ManualClock
from tests.support.members import list_members, place

POOL = PoolName("chat")
A = ReplicaId("a")


class Played:
    """A pool of replicas that are looked at each second and never say anything against themselves."""

    def __init__(self, names: str) -> None:
        self.clock = ManualClock()
        self.names = [ReplicaId(name) for name in names]
        self.attempts = 0
        readiness = build_readiness(Readiness(watch=True))
        pool = FleetPool(POOL, Fingerprint(POOL), readiness, True, True, ViewPolicy())
        self.fleet = Fleet([pool], self.clock, lambda view: None, lambda change: None)
        list_members(self.fleet, POOL, tuple(names))
        for name in self.names:
            self.fleet.receive(name, ControlCallPassed(1))
        self.pass_time(60)

    def pass_time(self, seconds: int) -> None:
        for _ in range(seconds):
            for name in self.names:
                page = Sample(
                    self.clock.now(), running=1, waiting=0, kv_cache_usage=0.1, progress=self.clock.now()
                )
                self.fleet.receive(name, Scraped(page))
            for _ in range(round(1 / TICK_S)):
                self.clock.advance(TICK_S)
                self.fleet.tick()

    def fail(self, outcome: AttemptOutcome, times: int) -> None:
        for _ in range(times):
            self.attempts += 1
            attempt = AttemptId(f"att_{self.attempts}")
            place(self.fleet, attempt, A)
            self.fleet.streams.note(AttemptFinished(OperationId("op"), attempt, POOL, A, outcome, ""))
        self.fleet.tick()

    def serving(self) -> set[str]:
        (pool,) = self.fleet.view.pools
        return {one.id for one in pool.replicas if one.offer is Offer.SERVING}


@pytest.mark.parametrize(
    "outcome", [AttemptOutcome.TRUNCATED, AttemptOutcome.REPLICA_DIED, AttemptOutcome.ENGINE_ERROR]
)
def test_five_cuts_bench_a_replica_until_they_are_forgotten(outcome: AttemptOutcome) -> None:
    played = Played("ab")
    assert played.serving() == {"a", "b"}
    played.fail(outcome, 5)
    assert played.serving() == {"b"}
    played.pass_time(20)
    assert played.serving() == {"b"}
    played.pass_time(60)
    assert played.serving() == {"a", "b"}
    assert played.fleet.incarnation(A) == 1, "and nobody had to restart it"


def test_the_last_replica_of_a_pool_stays_however_often_it_fails() -> None:
    played = Played("a")
    for _ in range(20):
        played.fail(AttemptOutcome.TRUNCATED, 5)
        assert played.serving() == {"a"}
        assert played.fleet.availability(POOL) is Availability.DEGRADED_LAST_KNOWN
        played.pass_time(5)
    played.pass_time(600)
    assert played.fleet.availability(POOL) is Availability.NORMAL


def test_the_last_one_that_is_left_stays_when_it_fails_too() -> None:
    played = Played("ab")
    played.fleet.drain(ReplicaId("b"), limit_s=600)
    played.fail(AttemptOutcome.REPLICA_DIED, 50)
    assert played.serving() == {"a"}
