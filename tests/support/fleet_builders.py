"""A replica and its gate on a simulated clock, driven in the project's words."""

from dataclasses import replace

from envoy_ext.domain.fingerprint import Fingerprint
from envoy_ext.domain.fleet_events import (
    ControlCallFailed,
    ControlCallPassed,
    DrainEnded,
    FleetEvent,
    InflightChanged,
    LoopLate,
    OwnAttemptEnded,
    ProcessEnded,
    ReplicaChanged,
    Scraped,
    ScrapeFailed,
    StreamBytes,
)
from envoy_ext.domain.fleet_view import ReplicaProfile, ViewPolicy, build_pool_view
from envoy_ext.domain.ids import PoolName, ReplicaId
from envoy_ext.domain.outcomes import AttemptOutcome
from envoy_ext.domain.readiness import ReplicaGate
from envoy_ext.domain.readiness_policy import ReadinessPolicy
from envoy_ext.domain.readiness_reasons import Finding, ReadinessReason
from envoy_ext.domain.replica_life import ReplicaState
from envoy_ext.domain.replica_status import KnownLoad, Liveness, ReplicaStatus
from envoy_ext.domain.sample import GpuSample, Sample, ScrapeFailure

POOL = PoolName("chat")
POLICY = ReadinessPolicy()

IDLE = Sample(
    at=0.0,
    running=0,
    waiting=0,
    kv_cache_usage=0.1,
    progress=1000,
    process_started_at=1_750_000_000,
    requests_total=50,
    sleeping=False,
)


class DrivenReplica:
    """A gate whose clock moves by `wait`: it is scraped meanwhile, and its deadlines are served on time."""

    def __init__(self, name="a", policy=POLICY, now=1_000.0, answers_control_calls=True) -> None:
        self.policy = policy
        self.now = now
        self.gate = ReplicaGate(ReplicaId(name), POOL, policy, now)
        self.page: Sample | str = IDLE
        """What a scrape gives: a page, or the reason of a failure."""
        self.answers_control_calls = answers_control_calls
        self.streaming = False
        self.changes: list[ReplicaChanged] = []
        self.drains: list[DrainEnded] = []
        self.ends: list[ProcessEnded] = []

    # --- events -----------------------------------------------------------------------------------

    def send(self, event: FleetEvent) -> None:
        for change in self.gate.receive(event, self.now):
            match change:
                case ReplicaChanged():
                    self.changes.append(change)
                case DrainEnded():
                    self.drains.append(change)
                case ProcessEnded():
                    self.ends.append(change)

    def scrape(self, **signals) -> None:
        """One look at this moment; what is named stays on the page."""
        if signals:
            page = self.page if isinstance(self.page, Sample) else IDLE
            self.page = replace(page, **signals)
        if isinstance(self.page, str):
            self.send(ScrapeFailed(ScrapeFailure(self.now, self.page)))
        else:
            self.send(Scraped(replace(self.page, at=self.now)))
        if self.gate.is_control_call_due(self.now):
            self.call()

    def call(self) -> None:
        incarnation = self.gate.incarnation
        passed = ControlCallPassed(incarnation), ControlCallFailed(incarnation, "no token in 10 s")
        self.send(passed[0] if self.answers_control_calls else passed[1])

    def fail(self, reason: str) -> None:
        """One look that gives nothing; so do those after it."""
        self.page = reason
        self.scrape()

    def bytes(self) -> None:
        self.send(StreamBytes())

    def inflight(self, count: int) -> None:
        self.send(InflightChanged(count))

    def attempt(self, outcome: AttemptOutcome, times: int = 1) -> None:
        for _ in range(times):
            self.send(OwnAttemptEnded(outcome))

    def starve(self, seconds: float) -> None:
        """Our own loop stands still; when it wakes, its lateness is known before anything else."""
        self.now += seconds
        self.send(LoopLate(seconds))

    # --- time -------------------------------------------------------------------------------------

    def wait(self, seconds: float, every: float | None = None) -> None:
        """Let time pass: deadlines are served when they fall due, and a scrape comes every second."""
        every = self.policy.scrape_s if every is None else every
        end = self.now + seconds
        scrape_at = self.now + every
        while True:
            deadline = self.gate.next_deadline()
            if deadline is not None and deadline <= min(scrape_at, end):
                assert deadline > self.now - 1e-9, "a deadline that was served comes back"
                self.now = max(self.now, deadline)
                self._expire()
            elif scrape_at <= end:
                self.now = scrape_at
                scrape_at += every
                if self.streaming:
                    self.bytes()
                self.scrape()
            else:
                self.now = end
                return

    def _expire(self) -> None:
        for change in self.gate.expire(self.now):
            (self.changes if isinstance(change, ReplicaChanged) else self.drains).append(change)

    def sleep(self, seconds: float) -> None:
        """Let time pass without a scrape."""
        self.wait(seconds, every=float("inf"))

    # --- answers ----------------------------------------------------------------------------------

    @property
    def state(self) -> ReplicaState:
        return self.gate.state

    @property
    def status(self):
        return self.gate.read_status(self.now)

    @property
    def reasons(self) -> list[str]:
        return [str(reason) for reason in self.status.reasons]

    @property
    def moves(self) -> list[tuple[str, str]]:
        """State changes so far, forgotten by `forget`."""
        return [(str(c.before), str(c.after)) for c in self.changes if c.before is not c.after]

    def forget(self) -> None:
        self.changes.clear()
        self.drains.clear()


def ready_replica(name="a", policy=POLICY, now=1_000.0) -> DrivenReplica:
    """One that has started, warmed up and been idle since."""
    replica = DrivenReplica(name, policy, now)
    replica.scrape()
    replica.wait(policy.slow_start_s + 1)
    assert replica.state is ReplicaState.READY
    replica.forget()
    return replica


def gpu(name="0", **signals) -> GpuSample:
    return GpuSample(name, **signals)


# --- statuses and pictures --------------------------------------------------------------------


def status(name="a", state=ReplicaState.READY, reasons=None, at=1_000.0, age=0.5, **facts) -> ReplicaStatus:
    """A status that needs no gate; load signals by their names, everything else as in a status."""
    load = {
        key: facts.pop(key) for key in ("running", "waiting", "kv_cache_usage", "max_running") if key in facts
    }
    words = REASONS_OF[state] if reasons is None else reasons
    built = ReplicaStatus(
        replica=ReplicaId(name),
        pool=POOL,
        state=state,
        findings=tuple(Finding(ReadinessReason(word), f"{word}, as a sentence") for word in words),
        incarnation=1,
        started=True,
        liveness=Liveness.ALIVE,
        sample=Sample(at=at - age, **load),
        sample_age_s=age,
        fresh=True,
        load=KnownLoad(**load),
        inflight=0,
        page_inflight=0,
        cancelling=0,
        ramp=1.0,
        failures=0.0,
        was_ready=state not in (ReplicaState.DISCOVERED, ReplicaState.STARTING),
    )
    return replace(built, **facts)


REASONS_OF = {
    ReplicaState.DISCOVERED: ["control_call"],
    ReplicaState.STARTING: ["control_call"],
    ReplicaState.WARMING: [],
    ReplicaState.READY: [],
    ReplicaState.SATURATED: ["kv_cache"],
    ReplicaState.UNREADY: ["unreachable", "metrics_stale"],
    ReplicaState.DRAINING: ["draining"],
    ReplicaState.GONE: ["removed"],
}


def stale(name="a", state=ReplicaState.READY, **facts) -> ReplicaStatus:
    """A status whose page is too old to say anything."""
    return status(name, state, **{"age": 60.0, "fresh": False, **facts})


def profile(name="a", **facts) -> ReplicaProfile:
    fingerprint = facts.pop("fingerprint", Fingerprint(POOL, weights="rev-1"))
    return ReplicaProfile(
        ReplicaId(name), fingerprint, **{"addresses": (f"10.0.0.{ord(name[-1]) - 96}:8000",), **facts}
    )


def picture(*statuses, previous=None, policy=None, now=1_000.0, profiles=(), latencies_s=None):
    """A pool's picture of these statuses."""
    known = {str(each.replica): each for each in profiles}
    pairs = [(each, known.get(each.replica, profile(each.replica))) for each in statuses]
    return build_pool_view(POOL, pairs, previous, policy or ViewPolicy(), now, latencies_s)
