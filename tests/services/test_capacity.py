"""The room of every pool, from the pictures of a fleet on a clock of the test's own."""

import pytest

from envoy_ext.config import Readiness
from envoy_ext.domain.capacity import Scenario
from envoy_ext.domain.capacity_report import CapacityPolicy, LoadSource, PoolCapacity
from envoy_ext.domain.capacity_words import list_remarks
from envoy_ext.domain.downtime_cost import ReplicaSize
from envoy_ext.domain.fingerprint import Fingerprint
from envoy_ext.domain.fleet_events import ControlCallPassed, Removed, Scraped
from envoy_ext.domain.fleet_view import ViewPolicy
from envoy_ext.domain.ids import AttemptId, OperationId, PoolName, ReplicaId
from envoy_ext.domain.notes import AttemptFinished, PhaseChanged
from envoy_ext.domain.outcomes import AttemptOutcome, Phase
from envoy_ext.domain.sample import Sample
from envoy_ext.services.capacity import Capacity
from envoy_ext.services.fleet import Fleet, FleetPool
from envoy_ext.wiring.fleet import build_readiness
from tests.support.clock import ManualClock
from tests.support.members import list_members, place

POOL = PoolName("chat")
A, B = ReplicaId("a"), ReplicaId("b")
STALE_S = 10.0


class Played:
    """A fleet of watched (or unwatched) replicas, and the capacity that follows its pictures."""

    def __init__(self, names: str = "ab", *, watched: bool = True) -> None:
        self.clock = ManualClock()
        self.capacity = Capacity({POOL: CapacityPolicy(ReplicaSize(32))}, self.clock)
        readiness = build_readiness(Readiness(hold=0.0, stale=STALE_S, watch=watched))
        pool = FleetPool(POOL, Fingerprint(POOL), readiness, watched, False, ViewPolicy())
        self.fleet = Fleet([pool], self.clock, self.capacity.note_fleet, lambda change: None)
        list_members(self.fleet, POOL, names)
        if watched:
            for name in names:
                self.scrape(name)
                self.fleet.receive(
                    ReplicaId(name), ControlCallPassed(self.fleet.incarnation(ReplicaId(name)))
                )
        self.tick()

    def tick(self, seconds: float = 0.25) -> None:
        self.clock.advance(seconds)
        self.fleet.tick()

    def scrape(self, name: str, running: float = 0, waiting: float = 0, kv_cache: float | None = 0.0) -> None:
        sample = Sample(at=self.clock.now(), running=running, waiting=waiting, kv_cache_usage=kv_cache)
        self.fleet.receive(ReplicaId(name), Scraped(sample))

    def open(self, replica: ReplicaId, count: int, first: int = 0) -> None:
        for number in range(first, first + count):
            place(self.fleet, AttemptId(f"att_{replica}_{number}"), replica)

    def move(self, before: Phase | None, after: Phase | None, count: int = 1) -> None:
        """So many exchanges move on, wherever they run."""
        for _ in range(count):
            self.capacity.note(PhaseChanged(POOL, before, after))

    def close(self, replica: ReplicaId, count: int) -> None:
        for number in range(count):
            attempt = AttemptId(f"att_{replica}_{number}")
            outcome = AttemptOutcome.COMPLETED
            self.fleet.streams.note(AttemptFinished(OperationId("op_1"), attempt, POOL, replica, outcome, ""))

    @property
    def pool(self) -> PoolCapacity:
        (pool,) = self.capacity.list_pools()
        return pool

    @property
    def ratios(self) -> dict[str, float]:
        """What the metric shows."""
        return {str(one.scenario): one.ratio for one in self.capacity.list_headrooms()}


def requests(pool: PoolCapacity) -> tuple[float, float]:
    """At this moment, and at the busiest one."""
    assert pool.now is not None
    assert pool.busiest is not None
    return pool.now.demand.requests, pool.busiest.demand.requests


def test_the_load_is_what_the_engines_tell() -> None:
    played = Played()
    played.scrape("a", running=10, waiting=2, kv_cache=0.5)
    played.scrape("b", running=20, kv_cache=0.25)
    played.tick()
    pool = played.pool
    assert pool.source is LoadSource.ENGINES
    assert pool.now is not None
    assert (pool.now.demand.requests, pool.now.demand.kv_cache) == (32, 0.75)
    assert played.ratios == {"nothing": pytest.approx(0.5), "replica": pytest.approx(0.0)}


def test_the_busiest_moment_outlives_the_moment_and_is_forgotten_after_an_hour() -> None:
    played = Played()
    played.scrape("a", running=50)
    played.tick()
    played.scrape("a", running=4)
    played.tick()
    assert requests(played.pool) == (4, 50)
    assert played.pool.holds is False
    assert played.ratios["replica"] == pytest.approx(28 / 32), "the metric is of this moment"
    for _ in range(61):
        played.tick(60)
        played.scrape("a", running=4)
        played.scrape("b", running=0)
        played.tick()
    assert requests(played.pool) == (4, 4)
    assert played.pool.holds is True


def test_work_that_does_not_change_for_an_hour_is_still_there() -> None:
    """No stream begins or ends, so no picture is made; the peak must not expire under it."""
    played = Played(watched=False)
    played.open(A, 40)
    played.tick()
    played.clock.advance(2 * 3600)
    assert requests(played.pool) == (40, 40)
    assert not any("so far" in remark for remark in list_remarks(played.pool))
    played.close(A, 40)
    played.tick()
    assert requests(played.pool) == (0, 40), "it was there a moment ago"


def test_a_short_burst_of_our_own_requests_is_remembered() -> None:
    played = Played(watched=False)
    played.open(A, 40)
    played.tick()
    played.close(A, 40)
    played.tick()
    assert requests(played.pool) == (0, 40)


def test_of_unwatched_replicas_only_our_own_requests_are_known_and_it_is_said() -> None:
    played = Played(watched=False)
    played.open(A, 3)
    played.tick()
    pool = played.pool
    assert (pool.source, pool.unmeasured) == (LoadSource.OWN_REQUESTS, (A, B))
    assert requests(pool) == (3, 3)
    assert pool.now is not None
    assert pool.now.demand.kv_cache is None
    assert "what others send to the replicas is not seen" in list_remarks(pool)[0]


def test_requests_whose_replica_is_not_known_yet_are_load_all_the_same() -> None:
    """Before its answer starts nobody tells where a request runs that Envoy sent on by itself."""
    played = Played(watched=False)
    played.move(None, Phase.QUEUED, 40)
    played.move(Phase.QUEUED, Phase.PREFILL, 40)
    assert requests(played.pool) == (40, 40)
    assert played.ratios["replica"] == pytest.approx(-8 / 40)
    played.open(A, 30)
    played.tick()
    assert requests(played.pool) == (40, 40), "they are not counted twice"
    played.move(Phase.PREFILL, Phase.DECODE, 30)
    played.move(Phase.DECODE, None, 30)
    played.move(Phase.PREFILL, None, 10)
    played.close(A, 30)
    played.tick()
    assert requests(played.pool) == (0, 40)


def test_a_burst_between_two_pictures_is_remembered() -> None:
    played = Played()
    played.move(None, Phase.PREFILL, 50)
    played.move(Phase.PREFILL, None, 50)
    assert requests(played.pool) == (0, 50)


def test_requests_that_a_lost_replica_had_are_not_counted_there_and_elsewhere() -> None:
    played = Played()
    for replica, name in ((A, "a"), (B, "b")):
        played.open(replica, 20)
        played.scrape(name, running=20)
    played.tick()
    assert requests(played.pool) == (40, 40)
    played.close(B, 20)
    played.open(A, 20, first=20)
    played.tick()
    assert requests(played.pool) == (40, 40)


def test_a_page_too_old_to_say_anything_leaves_our_own_requests_and_the_busiest_moment() -> None:
    played = Played()
    played.scrape("a", running=20)
    played.scrape("b", running=20)
    played.tick()
    played.open(B, 3)
    for _ in range(int(STALE_S) + 1):
        played.scrape("a", running=20, kv_cache=0.4)
        for _ in range(4):
            played.tick()  # a second in one go would be a pause of ours, and no age of the page
    pool = played.pool
    assert (pool.source, pool.unmeasured) == (LoadSource.PARTLY_OWN, (B,))
    assert requests(pool) == (23, 40)
    assert pool.now is not None
    assert pool.now.demand.kv_cache == pytest.approx(0.4 + 3 * 0.4 / 20), "estimated, and not taken for empty"


def test_a_full_replica_has_room_and_a_draining_one_has_work_alone() -> None:
    played = Played("abc")
    played.scrape("a", running=32, waiting=40)
    for name in "bc":
        played.scrape(name, running=5)
    played.tick()
    played.fleet.drain(ReplicaId("c"), 600)
    pool = played.pool
    assert (pool.unable, pool.room) == (("c",), 64)
    assert requests(pool) == (82, 82)


def test_a_pool_whose_replicas_are_all_out_has_no_room_in_any_scenario() -> None:
    played = Played("a", watched=False)
    played.fleet.drain(A, 600)
    played.tick()
    assert played.ratios == {"nothing": -1.0, "replica": -1.0}
    assert played.pool.holds is False


def test_a_replica_that_is_removed_takes_its_room_and_its_warnings_along() -> None:
    played = Played("abc", watched=False)
    played.open(ReplicaId("c"), 3)
    played.fleet.receive(ReplicaId("c"), Removed())
    played.tick()
    pool = played.pool
    assert (pool.listed, pool.unable, pool.room) == ((A, B), (), 64)
    assert requests(pool) == (3, 3), "its last streams still run"


def test_a_pool_that_nobody_has_looked_at_has_no_room_yet() -> None:
    clock = ManualClock()
    capacity = Capacity({POOL: CapacityPolicy(ReplicaSize(32))}, clock)
    assert (capacity.list_pools(), capacity.list_headrooms()) == ([], [])


def test_each_pool_has_its_own_load_and_its_own_limits() -> None:
    other = PoolName("embed")
    clock = ManualClock()
    capacity = Capacity({POOL: CapacityPolicy(ReplicaSize(32)), other: CapacityPolicy(ReplicaSize(4))}, clock)
    readiness = build_readiness(Readiness(watch=False))
    pools = [
        FleetPool(name, Fingerprint(name), readiness, False, False, ViewPolicy()) for name in (POOL, other)
    ]
    fleet = Fleet(pools, clock, capacity.note_fleet, lambda change: None)
    list_members(fleet, POOL, "a")
    list_members(fleet, other, "x")
    place(fleet, AttemptId("att_1"), ReplicaId("x"))
    clock.advance(1)
    fleet.tick()
    found = {(one.pool, one.scenario): one.ratio for one in capacity.list_headrooms()}
    assert found[POOL, Scenario.NOTHING] == 1.0
    assert found[other, Scenario.NOTHING] == pytest.approx(0.75)


def test_the_time_measured_is_told_until_it_is_an_hour() -> None:
    played = Played()
    for _ in range(3):
        played.tick(60)
        played.scrape("a")
        played.tick()
    assert played.pool.window_s == pytest.approx(3 * 60, abs=2)
    assert "the load has been measured for 3 min so far" in list_remarks(played.pool)
