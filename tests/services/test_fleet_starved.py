"""A sidecar that did not run for a while judges nobody by what it heard first when it woke."""

import pytest

from envoy_ext.config import Readiness
from envoy_ext.domain.fingerprint import Fingerprint
from envoy_ext.domain.fleet_events import (
    ControlCallPassed,
    FleetEvent,
    InflightChanged,
    OwnAttemptEnded,
    ReplicaChanged,
    Scraped,
    ScrapeFailed,
)
from envoy_ext.domain.fleet_view import FleetView, Offer, ViewPolicy
from envoy_ext.domain.ids import PoolName, ReplicaId
from envoy_ext.domain.outcomes import AttemptOutcome
from envoy_ext.domain.sample import Sample, ScrapeFailure
from envoy_ext.services.fleet import TICK_S, Fleet, FleetPool
from envoy_ext.wiring.fleet import Endpoints, build_readiness
from tests.support.clock import ManualClock
from tests.support.members import list_members

POOL = PoolName("chat")
A, B = ReplicaId("a"), ReplicaId("b")


class Played:
    """Two replicas that work, and a clock that a pause can jump over."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.views: list[FleetView] = []
        self.moves: list[str] = []
        pool = FleetPool(POOL, Fingerprint(POOL), build_readiness(Readiness()), True, True, ViewPolicy())
        self.fleet = Fleet([pool], self.clock, self.views.append, self._note)
        list_members(self.fleet, POOL, (A, B))
        for replica in (A, B):
            self.fleet.receive(replica, ControlCallPassed(1))
        for _ in range(40):
            self.hear(self.page(running=0))
        self.moves.clear()

    def page(self, running: float = 2) -> Scraped:
        return Scraped(Sample(self.clock.now(), running=running, waiting=0, kv_cache_usage=0.3, progress=7))

    def failure(self, reason: str) -> ScrapeFailed:
        return ScrapeFailed(ScrapeFailure(self.clock.now(), reason))

    def hear(self, event: FleetEvent) -> None:
        """One second in which both replicas give this."""
        for replica in (A, B):
            self.fleet.receive(replica, event)
        for _ in range(round(1 / TICK_S)):
            self.clock.advance(TICK_S)
            self.fleet.tick()

    def offers(self) -> set[Offer]:
        (pool,) = self.fleet.view.pools
        return {replica.offer for replica in pool.replicas}

    def _note(self, change: object) -> None:
        if isinstance(change, ReplicaChanged) and change.before is not change.after:
            self.moves.append(f"{change.replica} {change.after}")


FIRST_WORDS = {
    "a page": lambda played: played.page(),
    "a timeout": lambda played: played.failure("timeout"),
    "a look that starved": lambda played: played.failure("starved"),
    "a stream that ended": lambda played: InflightChanged(0),
    "an answer of ours": lambda played: OwnAttemptEnded(AttemptOutcome.CANCELLED),
}


@pytest.mark.parametrize("first", FIRST_WORDS)
@pytest.mark.parametrize("pause_s", [8.0, 25.0, 600.0])
def test_silence_from_before_a_pause_does_not_become_long_by_it(first: str, pause_s: float) -> None:
    played = Played()
    for _ in range(4):
        played.hear(played.failure("timeout"))
    played.clock.advance(pause_s)
    for replica in (A, B):
        played.fleet.receive(replica, FIRST_WORDS[first](played))
    played.fleet.tick()
    assert played.moves == []
    assert played.offers() == {Offer.SERVING}


@pytest.mark.parametrize("first", FIRST_WORDS)
@pytest.mark.parametrize("pause_s", [30.0, 600.0])
def test_work_that_stood_still_before_a_pause_is_not_hung_by_it(first: str, pause_s: float) -> None:
    played = Played()
    for _ in range(100):
        played.hear(played.page())
    played.clock.advance(pause_s)
    for replica in (A, B):
        played.fleet.receive(replica, FIRST_WORDS[first](played))
    played.fleet.tick()
    assert played.moves == []


def test_a_page_is_not_old_by_a_pause_in_any_picture() -> None:
    played = Played()
    played.hear(played.page())
    del played.views[:]
    played.clock.advance(60.0)
    played.fleet.receive(A, played.failure("starved"))
    played.fleet.receive(B, played.failure("starved"))
    played.fleet.tick()
    assert played.views
    assert all(one.status.fresh for view in played.views for pool in view.pools for one in pool.replicas)


@pytest.mark.parametrize("pause_s", [8.0, 60.0, 600.0])
def test_a_gateway_that_wakes_tells_envoy_nothing_before_it_has_heard_something(pause_s: float) -> None:
    """What it heard before the pause may be long untrue; its clock alone makes no picture of that."""
    played, endpoints = Played(), Endpoints({})
    played.fleet.receive(A, Scraped(Sample(played.clock.now(), running=30, waiting=30, kv_cache_usage=0.99)))
    for _ in range(8):
        played.clock.advance(TICK_S)
        played.fleet.tick()
    before = endpoints.build(played.fleet.view).versions
    assert endpoints.build(played.views[0]).versions != before, "the sample counts for something"
    del played.views[:]
    played.clock.advance(pause_s)
    for _ in range(3):
        played.fleet.tick()
        played.clock.advance(TICK_S)
    told = [endpoints.build(view).versions for view in [*played.views, played.fleet.view]]
    assert told == [before] * len(told)


@pytest.mark.parametrize("pause_s", [8.0, 60.0, 600.0])
def test_what_a_page_said_of_the_load_is_not_old_by_a_pause(pause_s: float) -> None:
    played = Played()
    played.hear(played.page(running=12))
    played.clock.advance(pause_s)
    played.fleet.tick()
    (pool,) = played.fleet.view.pools
    loads = [one.status.load for one in pool.replicas]
    assert [(load.running, load.waiting, load.kv_cache_usage) for load in loads] == [(12, 0, 0.3)] * 2


def test_whoever_reads_the_picture_first_after_a_pause_sees_no_old_pages() -> None:
    played = Played()
    played.hear(played.page())
    played.fleet.receive(A, played.failure("refused"))  # a change that no picture shows yet
    played.clock.advance(60.0)
    (pool,) = played.fleet.view.pools
    assert [one.status.fresh for one in pool.replicas] == [True, True]
    played.fleet.tick()
    assert played.moves == ["a unready"]


def test_a_short_wait_between_two_ticks_is_no_lateness() -> None:
    """Silence counts from when it began, as long as the loop runs on time."""
    played = Played()
    for _ in range(11):
        played.hear(played.failure("timeout"))
    assert set(played.moves) == {"a unready", "b unready"}
