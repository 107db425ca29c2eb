"""Whatever happens to a replica, in whatever order, its gate keeps its promises:

1. Only an order ends in draining or gone, and only an order leads out of them.
2. A state and the reasons that stand agree: no work for a replica with something against it, and no
   replica is out without a reason that people can read.
3. Load never makes a replica unready or dead.
4. What changes is told, once, and each change begins where the last one ended.
5. No deadline comes back after it was served, and serving one twice changes nothing.
"""

import math
from dataclasses import replace

import hypothesis.strategies as st
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from envoy_ext.domain.discovery import Standing
from envoy_ext.domain.fleet_events import (
    ControlCallFailed,
    ControlCallPassed,
    DependencyChanged,
    Discovered,
    DrainRequested,
    InflightChanged,
    LoopLate,
    OwnAttemptEnded,
    Removed,
    ReplicaChanged,
    Scraped,
    ScrapeFailed,
    StandingChanged,
    StreamBytes,
    Undrained,
)
from envoy_ext.domain.outcomes import AttemptOutcome
from envoy_ext.domain.readiness_reasons import UNFIT_KINDS, ReadinessReason, ReasonKind
from envoy_ext.domain.replica_life import SERVING, ReplicaState
from envoy_ext.domain.replica_status import Liveness
from envoy_ext.domain.sample import GpuSample, Sample, ScrapeFailure
from tests.support.fleet_builders import IDLE, POLICY, DrivenReplica, ready_replica

S = ReplicaState
FAILURES = [
    "refused",
    "reset",
    "timeout",
    "unreachable",
    "starved",
    "bad_status",
    "loading",
    "unsupported",
    "not_metrics",
    "too_large",
    "engine_dead",
    "a word of another version",
]
NUMBERS = st.none() | st.sampled_from([0.0, 0.5, 0.97, 3.0, 20.0, 100.0, math.nan, math.inf, -1.0, 2.0**63])
GPUS = st.builds(
    GpuSample,
    gpu=st.sampled_from(["0", "1"]),
    temperature_c=NUMBERS,
    xid=st.none() | st.sampled_from([0, 31, 79]),
    ecc_double_bit=NUMBERS,
    row_remap_failure=st.none() | st.booleans(),
    row_remap_pending=st.none() | st.booleans(),
)
PAGES = st.builds(
    Sample,
    at=st.just(0.0),
    running=NUMBERS,
    waiting=NUMBERS,
    kv_cache_usage=NUMBERS,
    max_running=NUMBERS,
    sleeping=st.none() | st.booleans(),
    progress=NUMBERS,
    allocation_failures=NUMBERS,
    process_started_at=st.none() | st.sampled_from([1_750_000_000.0, 1_750_000_090.0]),
    requests_total=NUMBERS,
    gpus=st.lists(GPUS, max_size=2).map(tuple),
)


class GateMachine(RuleBasedStateMachine):
    @initialize(warmup=st.booleans(), hold_s=st.sampled_from([0.0, 5.0]))
    def begin(self, warmup, hold_s):
        self.replica = DrivenReplica(policy=replace(POLICY, warmup=warmup, hold_s=hold_s, hang_s=20.0))
        self.told = S.DISCOVERED, [ReadinessReason.CONTROL_CALL], 1
        self.drained, self.standing = False, Standing.LISTED

    def send(self, event):
        self.changes = self.replica.gate.receive(event, self.replica.now)
        self.check_changes()
        return self.changes

    def check_changes(self):
        for change in self.changes:
            if isinstance(change, ReplicaChanged):
                state, reasons, incarnation = self.told
                assert change.before is state
                now_told = change.after, [f.reason for f in change.findings], change.incarnation
                assert now_told != self.told, "nothing is told twice"
                assert set(change.closed) == set(reasons) - set(now_told[1])
                assert change.incarnation >= incarnation
                self.told = now_told

    @rule(page=PAGES)
    def scrape(self, page):
        self.send(Scraped(replace(page, at=self.replica.now)))

    @rule(page=st.sampled_from([IDLE, replace(IDLE, kv_cache_usage=0.99), replace(IDLE, waiting=40)]))
    def scrape_a_whole_page(self, page):
        self.send(Scraped(replace(page, at=self.replica.now)))

    @rule(page=PAGES, age=st.floats(0.1, 30.0))
    def scrape_late(self, page, age):
        self.send(Scraped(replace(page, at=self.replica.now - age)))

    @rule(reason=st.sampled_from(FAILURES))
    def fail_to_scrape(self, reason):
        self.send(ScrapeFailed(ScrapeFailure(self.replica.now, reason)))

    @rule(back=st.integers(0, 1))
    def pass_a_control_call(self, back):
        self.send(ControlCallPassed(self.replica.gate.incarnation - back))

    @rule(back=st.integers(0, 1))
    def fail_a_control_call(self, back):
        self.send(ControlCallFailed(self.replica.gate.incarnation - back, "HTTP 500"))

    @rule(outcome=st.sampled_from(AttemptOutcome), times=st.integers(1, 4))
    def end_attempts(self, outcome, times):
        for _ in range(times):
            self.send(OwnAttemptEnded(outcome))

    @rule(inflight=st.integers(0, 3))
    def change_inflight(self, inflight):
        self.send(InflightChanged(inflight))

    @rule()
    def get_bytes(self):
        self.send(StreamBytes())

    @rule(reachable=st.booleans())
    def change_dependency(self, reachable):
        self.send(DependencyChanged("adapters", reachable))

    @rule(seconds=st.floats(0.5, 60.0))
    def be_late(self, seconds):
        self.replica.now += seconds
        self.send(LoopLate(seconds))

    @rule(within=st.floats(0.1, 30.0))
    def drain(self, within):
        gone = self.replica.state is S.GONE
        self.drained = not gone
        self.send(DrainRequested(self.replica.now + within))
        assert self.replica.state is (S.GONE if gone else S.DRAINING)

    @rule()
    def undrain(self):
        before = self.replica.state
        self.drained = False
        self.send(Undrained())
        self.check_orders(before)

    @rule(standing=st.sampled_from(Standing))
    def stand(self, standing):
        before = self.replica.state
        if before is not S.GONE:
            self.standing = standing
        self.send(StandingChanged(standing))
        self.check_orders(before)

    def check_orders(self, before):
        """Out while anybody says so, and no longer."""
        assert (self.replica.state is S.GONE) == (before is S.GONE)
        out = self.drained or self.standing is Standing.LEAVING
        assert (self.replica.state is S.DRAINING) == (out and before is not S.GONE)

    @rule()
    def remove(self):
        self.send(Removed())
        assert self.replica.state is S.GONE

    @rule()
    def discover(self):
        gone = self.replica.state is S.GONE
        if gone:
            self.drained, self.standing = False, Standing.LISTED
        assert bool(self.send(Discovered())) is gone

    @rule(seconds=st.floats(0.01, 60.0))
    def wait(self, seconds):
        """Deadlines are served on time; each of them lies ahead of the one before."""
        end = self.replica.now + seconds
        while (due := self.replica.gate.next_deadline()) is not None and due <= end:
            assert due > self.replica.now
            self.replica.now = due
            before = self.replica.state
            self.changes = self.replica.gate.expire(due)
            self.check_changes()
            assert (before in (S.DRAINING, S.GONE)) == (self.replica.state in (S.DRAINING, S.GONE))
            assert self.replica.gate.expire(due) == ()
        self.replica.now = end

    @invariant()
    def what_was_told_is_what_is(self):
        if hasattr(self, "replica"):
            gate = self.replica.gate
            assert self.told[0] is gate.state
            assert self.told[2] == gate.incarnation

    @invariant()
    def state_and_reasons_agree(self):
        if not hasattr(self, "replica"):
            return
        status = self.replica.status
        kinds = {finding.kind for finding in status.findings}
        words = set(status.reasons)
        assert all(finding.text for finding in status.findings)
        unproven = {ReadinessReason.LOADING, ReadinessReason.CONTROL_CALL}
        match status.state:
            case S.DISCOVERED | S.STARTING:
                assert words & unproven
            case S.WARMING | S.READY:
                assert kinds <= {ReasonKind.REMARK}
            case S.SATURATED:
                assert ReasonKind.LOAD in kinds
                assert not kinds & UNFIT_KINDS
            case S.UNREADY:
                assert kinds & UNFIT_KINDS or self.standing is Standing.HELD
                assert not words & unproven
            case S.DRAINING:
                assert ReadinessReason.DRAINING in words
            case S.GONE:
                assert status.reasons == (ReadinessReason.REMOVED,)
        assert status.ready == (status.state in SERVING)
        assert not (status.ready and self.standing is not Standing.LISTED)
        assert 0.0 < status.ramp <= 1.0
        assert status.failures >= 0.0


TestGate = GateMachine.TestCase
TestGate.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)


LOADS = st.builds(
    dict,
    running=NUMBERS,
    waiting=NUMBERS,
    kv_cache_usage=NUMBERS,
    max_running=NUMBERS,
    allocation_failures=NUMBERS,
)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(LOADS, st.integers(1, 30)), min_size=1, max_size=25))
def test_load_makes_no_replica_unready_or_dead(stretches):
    replica = ready_replica()
    for load, seconds in stretches:
        for _ in range(seconds):
            replica.scrape(**load, progress=2_000.0 + replica.now)
            replica.wait(1, every=2)
            assert replica.state in (S.READY, S.SATURATED)
            assert replica.status.liveness is Liveness.ALIVE
