"""A picture that is made from the one before is the picture that is made from all."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from envoy_ext.config import Readiness
from envoy_ext.domain.capacity import PoolDemand, measure_demand, read_pool_load
from envoy_ext.domain.discovery import MemberChanges, Standing
from envoy_ext.domain.fingerprint import Fingerprint
from envoy_ext.domain.fleet_events import (
    ControlCallPassed,
    DrainRequested,
    FleetEvent,
    InflightChanged,
    OwnAttemptEnded,
    Scraped,
    ScrapeFailed,
    Undrained,
)
from envoy_ext.domain.fleet_view import FleetView, PoolView, ViewPolicy, build_pool_view
from envoy_ext.domain.ids import PoolName, ReplicaId
from envoy_ext.domain.outcomes import AttemptOutcome
from envoy_ext.domain.replica_status import ReplicaStatus
from envoy_ext.domain.room import Room
from envoy_ext.domain.sample import Sample, ScrapeFailure
from envoy_ext.services.fleet import TICK_S, Fleet, FleetPool
from envoy_ext.services.rooms import Rooms
from envoy_ext.wiring.fleet import Endpoints, build_readiness
from envoy_ext.xds.kinds import Kind
from tests.support.clock import ManualClock
from tests.support.members import POOL, member

NAMES = tuple("abcdef")
OTHER = PoolName("embed")
POLICY = ViewPolicy()


def read_words(status: ReplicaStatus) -> ReplicaStatus:
    """Without ages and the sentences that tell them: a picture holds on to those."""
    findings = tuple(replace(one, text="") for one in status.findings)
    return replace(status, sample_age_s=None, findings=findings)


def read_all(pool: PoolView) -> PoolView:
    return replace(pool, replicas=tuple(replace(one, status=read_words(one.status)) for one in pool.replicas))


class Played:
    """A fleet, and the same questions asked of all that it is made of."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        readiness = build_readiness(Readiness(hold=1.0))
        pools = [FleetPool(pool, Fingerprint(pool), readiness, True, True, POLICY) for pool in (POOL, OTHER)]
        self.fleet = Fleet(pools, self.clock, lambda view: None, lambda change: None)
        self.endpoints = Endpoints({})
        self.demand = PoolDemand()
        self.rooms = Rooms(self.fleet, {POOL: 8})
        for number, name in enumerate(NAMES, 1):
            self.list(name, number, Standing.LISTED)

    def list(self, name: str, number: int, standing: Standing) -> None:
        listed = self.fleet.is_listed(ReplicaId(name))
        one = member(name, number, standing=standing, zone=f"z{number % 2}")
        self.fleet.change_members(
            POOL, MemberChanges(changed=(one,)) if listed else MemberChanges(added=(one,))
        )

    def remove(self, name: str) -> None:
        if self.fleet.is_listed(ReplicaId(name)):
            self.fleet.change_members(POOL, MemberChanges(removed=(ReplicaId(name),)))

    def build(self, before: FleetView) -> PoolView:
        """The picture of the first pool, of nothing but the gates and the picture before."""
        now, fleet = self.clock.now(), self.fleet
        pairs = [
            (gate.read_status(now), fleet._members.profiles[gate.replica])
            for gate in fleet._gates.values()
            if gate.pool == POOL
        ]
        previous = before.find(POOL)
        return build_pool_view(POOL, pairs, previous, POLICY, now, fleet.experience.read_latencies(now))

    def check(self) -> None:
        """All that follows pictures says what it would say of this one alone."""
        before = self.fleet._view
        self.fleet._picture.look_for_movement()
        self.fleet._refresh(self.clock.now())
        view = self.fleet._view.find(POOL)
        assert view is not None
        expected = self.build(before)
        assert read_all(view) == read_all(expected)
        assert view.tally == expected.tally
        offered = self.endpoints.build(self.fleet._view)
        assert offered == Endpoints({}).build(self.fleet._view)
        assert offered.offers[Kind.EDS]
        assert self.demand.follow(view) == measure_demand(read_pool_load(view, 32))
        room, anew = self.rooms.read(POOL), Rooms(self.fleet, {POOL: 8}).read(POOL)
        assert not isinstance(room, Room)
        assert not isinstance(anew, Room)
        assert (room.slots, room.count_free({})) == (anew.slots, anew.count_free({}))
        shown = sorted(room.snapshot().replicas, key=lambda one: one.replica)
        assert shown == sorted(anew.snapshot().replicas, key=lambda one: one.replica)


FIGURES = st.sampled_from([None, 0.0, 3.0, 20.0])
FAILURES = st.sampled_from(["refused", "timeout", "loading", "not_metrics"])
OUTCOMES = st.sampled_from(
    [AttemptOutcome.COMPLETED, AttemptOutcome.REPLICA_DIED, AttemptOutcome.NETWORK_PARTITION]
)


@st.composite
def steps(draw: st.DrawFn) -> list[tuple[str, str, object]]:
    kinds = ["page", "page", "page", "fail", "call", "drain", "undrain", "inflight", "end", "wait", "long"]
    kinds += ["latency", "hold", "list", "remove", "told", "check", "check"]
    made: list[tuple[str, str, object]] = []
    for _ in range(draw(st.integers(1, 40))):
        kind = draw(st.sampled_from(kinds))
        what: object = None
        if kind == "page":
            what = draw(st.tuples(FIGURES, FIGURES, st.sampled_from([None, 0.1, 0.5, 0.99])))
        elif kind == "fail":
            what = draw(FAILURES)
        elif kind == "end":
            what = draw(OUTCOMES)
        elif kind in ("inflight", "latency"):
            what = draw(st.integers(0, 9))
        made.append((kind, draw(st.sampled_from(NAMES)), what))
    return made


def play(played: Played, kind: str, name: str, what: object) -> None:
    fleet, clock, replica = played.fleet, played.clock, ReplicaId(name)
    event: FleetEvent | None = None
    match kind, what:
        case "page", (running, waiting, kv_cache):
            event = Scraped(Sample(clock.now(), running=running, waiting=waiting, kv_cache_usage=kv_cache))
        case "fail", str(reason):
            event = ScrapeFailed(ScrapeFailure(clock.now(), reason))
        case "call", _:
            event = ControlCallPassed(fleet.incarnation(replica))
        case "drain", _:
            event = DrainRequested(clock.now() + 60.0)
        case "undrain", _:
            event = Undrained()
        case "inflight", int(count):
            event = InflightChanged(count)
        case "end", AttemptOutcome() as outcome:
            event = OwnAttemptEnded(outcome)
        case "latency", int(tenths):
            now = clock.now()
            fleet.experience.note_first_delta(replica, fleet.incarnation(replica), (), 0.1 + tenths / 10, now)
        case "told", _:
            told = Fingerprint(POOL, quantization=name)
            fleet.note_fingerprint(replica, fleet.incarnation(replica), told)
        case "hold" | "list", _:
            standing = Standing.HELD if kind == "hold" else Standing.LISTED
            played.list(name, NAMES.index(name) + 1, standing)
        case "remove", _:
            played.remove(name)
        case "wait", _:
            clock.advance(TICK_S)
            fleet.tick()
        case "long", _:
            for _ in range(44):
                clock.advance(TICK_S)
                fleet.tick()
        case "check", _:
            played.check()
    if event is not None:
        fleet.receive(replica, event)


@settings(max_examples=40, deadline=None)
@given(steps())
def test_a_picture_from_the_one_before_is_the_picture_from_all(taken: list[tuple[str, str, object]]) -> None:
    played = Played()
    for name in NAMES:
        play(played, "call", name, None)
        play(played, "page", name, (1.0, 0.0, 0.2))
    played.check()
    for kind, name, what in taken:
        play(played, kind, name, what)
    played.check()


def test_one_that_changes_in_a_large_pool_is_the_only_one_that_is_looked_at() -> None:
    played = Played()
    for name in NAMES:
        play(played, "call", name, None)
        play(played, "page", name, (1.0, 0.0, 0.2))
    play(played, "long", "a", None)
    for name in NAMES:
        play(played, "page", name, (1.0, 0.0, 0.2))
    play(played, "wait", "a", None)
    before = played.fleet.view.find(POOL)
    play(played, "drain", "c", None)
    after = played.fleet.view.find(POOL)
    assert before is not None
    assert after is not None
    same = [old is new for old, new in zip(before.replicas, after.replicas, strict=True)]
    assert same.count(False) == 1
    assert before.tally is not None
    assert after.tally is not None
    assert after.tally.places is before.tally.places


def test_a_figure_that_grows_old_by_time_alone_is_not_known_in_the_next_picture() -> None:
    played = Played()
    play(played, "call", "a", None)
    for _ in range(8):  # past slow start, in which it is read at each tick
        play(played, "page", "a", (3.0, 0.0, 0.2))
        for _ in range(20):
            play(played, "wait", "a", None)
    play(played, "page", "a", (None, 0.0, 0.2))
    for _ in range(24):
        play(played, "wait", "a", None)
    played.check()
    seen = played.fleet.view.pools[0].find(ReplicaId("a"))
    assert seen is not None
    assert (seen.status.load.running, seen.status.load.kv_cache_usage) == (None, 0.2)
