"""A whole fleet under anything that pages, processes, streams, people and the clock can do to it.

In every picture it tells, however short it stands:

1. No weight is 0, and what Envoy is to get can be built.
2. A pool is empty only by orders and by discovery's word, or before any of its replicas ever served.
   What pages say, or fail to say, empties none, nor do our own failures, restarts and pauses; unless
   there are circuits, and the model of each one that could serve fails its control call as well.
3. Whoever is ready serves and whoever serves is not drained; while anybody is ready, nobody else serves.
4. Streams are counted where they run.
5. Time in which the sidecar did not run takes nobody out.
6. What engines tell of themselves and how fast they are takes nobody out, and a replay finds equals only.
"""

import math
from collections import Counter
from dataclasses import replace

import hypothesis.strategies as st
from envoy.config.endpoint.v3.endpoint_pb2 import ClusterLoadAssignment
from hypothesis import assume, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from envoy_ext.config import Circuit, Readiness
from envoy_ext.domain.availability import Availability, ServingReason, is_usable
from envoy_ext.domain.circuit import CircuitState
from envoy_ext.domain.circuit_policy import CircuitPolicy
from envoy_ext.domain.discovery import MemberChanges
from envoy_ext.domain.exchange_shared import Tried
from envoy_ext.domain.fingerprint import Fingerprint, are_compatible
from envoy_ext.domain.fleet_events import (
    ControlCallFailed,
    ControlCallPassed,
    DependencyChanged,
    Scraped,
    ScrapeFailed,
)
from envoy_ext.domain.fleet_view import FleetView, Offer, PoolView, ViewPolicy
from envoy_ext.domain.ids import AttemptId, OperationId, PoolName, ReplicaId
from envoy_ext.domain.notes import AttemptFinished
from envoy_ext.domain.outcomes import AttemptOutcome
from envoy_ext.domain.readiness_reasons import ReadinessReason
from envoy_ext.domain.replica_life import ReplicaState
from envoy_ext.domain.sample import GpuSample, Sample, ScrapeFailure
from envoy_ext.services.exchange_replicas import ExchangeReplicas
from envoy_ext.services.fleet import TICK_S, Fleet, FleetPool
from envoy_ext.wiring.fleet import Endpoints, build_readiness
from envoy_ext.xds.kinds import Kind
from tests.support.clock import ManualClock
from tests.support.members import list_members, member, place

POOL = PoolName("chat")
NAMES = [ReplicaId(name) for name in "abc"]
HEALTHY = 1

some_replicas = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True)
failures = st.sampled_from(
    [
        *("refused", "reset", "timeout", "unreachable", "starved", "bad_status", "loading", "unsupported"),
        *("not_metrics", "too_large", "a word of another version"),
    ]
)
garbage = st.none() | st.sampled_from([0.0, 0.5, 0.99, 3.0, 20.0, 1e9, math.nan, math.inf, -1.0, 2.0**63])
gpus = st.builds(
    GpuSample,
    gpu=st.sampled_from(["0", "1"]),
    temperature_c=garbage,
    xid=st.none() | st.sampled_from([0, 31, 79]),
    ecc_double_bit=garbage,
    row_remap_failure=st.none() | st.booleans(),
)
pages = st.builds(
    Sample,
    at=st.just(0.0),
    running=garbage,
    waiting=garbage,
    kv_cache_usage=garbage,
    max_running=garbage,
    sleeping=st.none() | st.booleans(),
    progress=garbage,
    allocation_failures=garbage,
    process_started_at=st.none() | st.sampled_from([1_750_000_000.0, 1_750_000_090.0]),
    requests_total=garbage,
    gpus=st.lists(gpus, max_size=2).map(tuple),
)
good_pages = st.builds(
    Sample,
    at=st.just(0.0),
    running=st.integers(0, 40).map(float),
    waiting=st.sampled_from([0.0, 2.0, 40.0]),
    kv_cache_usage=st.sampled_from([0.1, 0.9, 0.97]),
    progress=st.sampled_from([1_000.0, 1_001.0]),
    process_started_at=st.just(1_750_000_000.0),
)

fingerprints = st.builds(
    Fingerprint,
    pool=st.just(POOL),
    model=st.none() | st.sampled_from(["m", "n"]),
    adapters=st.none() | st.just(()),
)


class FleetMachine(RuleBasedStateMachine):
    @initialize(warmup=st.booleans(), over_xds=st.booleans(), breaks=st.booleans())
    def begin(self, warmup, over_xds, breaks):
        self.clock = ManualClock()
        self.drained: set[ReplicaId] = set()
        self.served: set[ReplicaId] = set()
        self.streams: dict[AttemptId, ReplicaId] = {}
        self.begun = 0
        self.listed = set(NAMES)
        self.failed_calls: set[ReplicaId] = set()
        given = Readiness(hold=1.0, stale=4.0, hang=10.0, warmup=warmup, watch=True)
        readiness = build_readiness(given, Circuit(enabled=breaks))
        circuit = CircuitPolicy(window_s=10.0, open_s=1.0, open_max_s=5.0, probes=warmup) if breaks else None
        pool = FleetPool(POOL, Fingerprint(POOL), readiness, True, over_xds, ViewPolicy(), circuit)
        self.endpoints = Endpoints({})
        self.fleet = Fleet([pool], self.clock, self.check, lambda change: None)
        list_members(self.fleet, POOL, tuple(NAMES))

    # --- what every picture has to be ---------------------------------------------------------------

    def check(self, view: FleetView) -> None:
        (pool,) = view.pools
        serving = {one.id for one in pool.replicas if one.offer is Offer.SERVING}
        ready = {one.id for one in pool.replicas if one.status.ready}
        self.served |= ready
        assert all(one.weight >= 1 for one in pool.replicas)
        assert (pool.availability is Availability.EMPTY) == (not serving)
        if pool.reason is ServingReason.CIRCUITS_OPEN:
            self.check_cut_off(pool)
        elif self.served - self.drained:
            assert serving
        if ready:
            assert serving == ready
            assert pool.availability is Availability.NORMAL
        for one in pool.replicas:
            assert (one.offer is Offer.DRAINING) == (one.status.state is ReplicaState.DRAINING)
            assert (one.offer is Offer.ABSENT) == (one.id not in self.listed)
        self.check_endpoints(view, pool)

    def check_cut_off(self, pool: PoolView) -> None:
        """Nobody is out on the word of requests alone, where nobody serves."""
        for one in pool.replicas:
            reasons = set(one.status.reasons)
            if ReadinessReason.CIRCUIT_OPEN in reasons and not one.status.findings[1:]:
                assert one.id in self.failed_calls
            if one.status.was_ready and one.id not in self.drained and one.id in self.listed:
                assert ReadinessReason.CIRCUIT_OPEN in reasons

    def check_endpoints(self, view: FleetView, pool: PoolView) -> None:
        (resource,) = self.endpoints.build(view).offers[Kind.EDS].values()
        (anew,) = Endpoints({}).build(view).offers[Kind.EDS].values()
        assert resource == anew, "what is remembered is what is there"
        endpoints = [
            endpoint
            for locality in ClusterLoadAssignment.FromString(resource.value).endpoints
            for endpoint in locality.lb_endpoints
        ]
        assert len(endpoints) == sum(one.offer is not Offer.ABSENT for one in pool.replicas)
        assert all(endpoint.load_balancing_weight.value >= 1 for endpoint in endpoints)
        healthy = sum(endpoint.health_status == HEALTHY for endpoint in endpoints)
        assert healthy == sum(one.offer is Offer.SERVING for one in pool.replicas)

    # --- pages ------------------------------------------------------------------------------------

    @rule(replicas=some_replicas, page=good_pages | pages, age=st.sampled_from([0.0, 0.0, 0.5, 20.0]))
    def are_looked_at(self, replicas, page, age):
        for name in self.listed.intersection(replicas):
            self.fleet.receive(name, Scraped(replace(page, at=self.clock.now() - age)))
            if self.fleet.is_control_call_due(name):
                self.fleet.receive(name, ControlCallPassed(self.fleet.incarnation(name)))

    @rule(replicas=some_replicas, reason=failures, times=st.integers(1, 4))
    def cannot_be_looked_at(self, replicas, reason, times):
        for _ in range(times):
            for name in replicas:
                self.fleet.receive(name, ScrapeFailed(ScrapeFailure(self.clock.now(), reason)))
            self.passes(1)

    @rule(replicas=some_replicas, back=st.integers(0, 1), passed=st.booleans())
    def are_asked_for_a_token(self, replicas, back, passed):
        for name in self.listed.intersection(replicas):
            incarnation = self.fleet.incarnation(name) - back
            failed = ControlCallFailed(incarnation, "HTTP 500")
            if not passed:
                self.failed_calls.add(name)
            self.fleet.receive(name, ControlCallPassed(incarnation) if passed else failed)

    @rule(replicas=some_replicas, back=st.integers(0, 1), told=fingerprints)
    def tell_what_they_serve(self, replicas, back, told):
        for name in replicas:
            self.fleet.note_fingerprint(name, self.fleet.incarnation(name) - back, told)

    @rule(name=st.sampled_from(NAMES), seconds=st.sampled_from([0.01, 1.0, 500.0]), times=st.integers(1, 20))
    def begins_answers_so_fast(self, name, seconds, times):
        for _ in range(times):
            ExchangeReplicas(self.fleet, POOL, self.clock, (b"prefix",)).note_first_delta(name, seconds)

    @rule(tried=st.sets(st.sampled_from(NAMES)), first=st.sampled_from(NAMES))
    def is_asked_where_a_replay_goes(self, tried, first):
        now = self.clock.now()
        replicas = ExchangeReplicas(self.fleet, POOL, self.clock, (b"prefix",))
        targets = {target.replica for target in replicas.find_targets(Tried(first, now, frozenset(tried)))}
        was = self.fleet.find_fingerprint(first, now)
        (pool,) = self.fleet.view.pools
        # Who is only full or in doubt stands in where the others were tried.
        stand_in = [
            one.id
            for one in pool.replicas
            if one.offer is Offer.WITHHELD and one.status.was_ready and is_usable(one.status)
        ]
        if pool.availability is Availability.EMPTY:
            stand_in = []
        assert targets == {
            one.id
            for one in pool.replicas
            if (one.offer is Offer.SERVING or one.id in stand_in)
            and one.id not in tried
            and (was is None or are_compatible(was, one.profile.fingerprint))
        }

    @rule(replicas=some_replicas, reachable=st.booleans())
    def depend_on_something(self, replicas, reachable):
        for name in replicas:
            self.fleet.receive(name, DependencyChanged("weights", reachable))

    # --- streams ----------------------------------------------------------------------------------

    @rule(name=st.sampled_from(NAMES))
    def a_stream_begins(self, name):
        if name not in self.listed:
            return
        self.begun += 1
        attempt = AttemptId(f"att_{self.begun}")
        self.streams[attempt] = name
        place(self.fleet, attempt, name)

    @precondition(lambda self: self.streams)
    @rule(data=st.data(), outcome=st.sampled_from(AttemptOutcome))
    def a_stream_ends(self, data, outcome):
        attempt = data.draw(st.sampled_from(sorted(self.streams)))
        name = self.streams.pop(attempt)
        ended = AttemptFinished(OperationId("op_1"), attempt, POOL, name, outcome, "")
        self.fleet.streams.note(ended)

    @rule(name=st.sampled_from(NAMES), outcome=st.sampled_from(AttemptOutcome), times=st.integers(1, 8))
    def attempts_end_at_once(self, name, outcome, times):
        for _ in range(times if name in self.listed else 0):
            attempt, operation = AttemptId("att_short"), OperationId(f"op_{self.begun}")
            self.begun += 1
            place(self.fleet, attempt, name)
            self.fleet.circuits.begin(operation, name)
            answered = outcome is AttemptOutcome.COMPLETED
            ended = AttemptFinished(operation, attempt, POOL, name, outcome, "", answered=answered)
            self.fleet.streams.note(ended)
            self.fleet.circuits.note_over(operation)

    @rule(replayable=st.booleans())
    def asks_for_a_trial(self, replayable):
        operation = OperationId(f"trial_{self.begun}")
        self.begun += 1
        target = ExchangeReplicas(self.fleet, POOL, self.clock).choose_trial(operation, replayable=replayable)
        if target is not None:
            found = self.fleet.view.pools[0].find(target.replica)
            assert found is not None
            assert found.offer is Offer.WITHHELD
            assert self.fleet.circuits.read_state(target.replica) is CircuitState.HALF_OPEN
        self.fleet.circuits.note_over(operation)

    @precondition(lambda self: self.streams)
    @rule(data=st.data())
    def bytes_come(self, data):
        self.fleet.streams.note_bytes(data.draw(st.sampled_from(sorted(self.streams))))

    # --- people and the clock -----------------------------------------------------------------------

    @rule(name=st.sampled_from(NAMES))
    def comes_or_goes(self, name):
        """By discovery's word; whoever comes back is another one, and has not served."""
        if name in self.listed:
            self.listed.discard(name)
            self.served.discard(name)
            self.drained.discard(name)
            self.fleet.change_members(POOL, MemberChanges(removed=(name,)))
        else:
            self.listed.add(name)
            self.fleet.change_members(POOL, MemberChanges(added=(member(name, NAMES.index(name) + 1),)))

    @rule(name=st.sampled_from(NAMES), limit_s=st.sampled_from([0.0, 5.0, 600.0]))
    def is_drained(self, name, limit_s):
        if name not in self.listed:
            return
        self.drained.add(name)
        assert self.fleet.drain(name, limit_s) is not None

    @rule(name=st.sampled_from(NAMES))
    def is_undrained(self, name):
        if name not in self.listed:
            return
        self.drained.discard(name)
        assert self.fleet.undrain(name)

    @rule(seconds=st.sampled_from([0.25, 1.0, 5.0, 40.0]))
    def passes(self, seconds):
        for _ in range(round(seconds / TICK_S)):
            self.clock.advance(TICK_S)
            self.fleet.tick()

    @rule(seconds=st.sampled_from([0.6, 3.0, 30.0, 7_200.0]))
    def nobody_runs(self, seconds):
        """What is heard next, or the next tick, is the first to know."""
        self.clock.advance(seconds)

    @rule(
        seconds=st.sampled_from([1.0, 5.0, 45.0, 7_200.0]),
        first=st.sampled_from(["nothing", "starved", "timeout", "an end"]),
        name=st.sampled_from(NAMES),
    )
    def a_pause_takes_nobody_out(self, seconds, first, name):
        self.fleet.tick()
        self.passes(TICK_S)  # what has ended at this instant is judged behind it
        due = [gate.next_deadline() for gate in self.fleet._gates.values()]
        # The interval until the next tick is not excused, and what falls due in it is time's own doing.
        assume(all(one is None or one > self.clock.now() + TICK_S for one in due))
        before = self.list_ready()
        self.clock.advance(seconds)
        match first:
            case "starved" | "timeout":
                self.fleet.receive(name, ScrapeFailed(ScrapeFailure(self.clock.now(), first)))
            case "an end":
                self.attempts_end_at_once(name, AttemptOutcome.CANCELLED, 1)
        self.fleet.tick()
        assert before <= self.list_ready()

    def list_ready(self) -> set[ReplicaId]:
        (pool,) = self.fleet.view.pools
        return {one.id for one in pool.replicas if one.status.ready}

    @rule(seconds=st.sampled_from([-86_400.0, 86_400.0]))
    def the_wall_clock_is_set(self, seconds):
        self.clock.jump_wall(seconds)

    @invariant()
    def every_picture_is_sound_and_orders_are_in_it(self):
        if not hasattr(self, "fleet"):
            return
        self.check(self.fleet.view)
        (pool,) = self.fleet.view.pools
        drained = {one.id for one in pool.replicas if one.status.state is ReplicaState.DRAINING}
        assert drained == self.drained

    @rule()
    def streams_are_counted_where_they_run(self):
        self.passes(TICK_S)
        (pool,) = self.fleet.view.pools
        counted = {one.id: one.status.inflight for one in pool.replicas if one.status.inflight}
        assert counted == Counter(self.streams.values())


TestFleet = FleetMachine.TestCase
TestFleet.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
