"""One replica's readiness: events in, changes out.

`ReplicaFacts` says what is known and which condition it adds up to; the table of `replica_life` says
what that makes of the replica; the gate feeds one to the other, runs slow start and drain, and tells
what changed.

Startup, liveness and readiness are three answers and never one: `ReplicaStatus` has `started`,
`liveness` and `ready`. Load moves only the third. A family missing from a page, NaN, and an old page
are "not known": they keep what was, and never count as good.

Time is an argument. After each call `next_deadline` says when to call `expire`; a loop that ran late
must hand in `LoopLate` (`loop_health`) before it serves what fell due meanwhile.
"""

import math
from typing import Final

from envoy_ext.domain.discovery import Standing
from envoy_ext.domain.fleet_events import (
    Change,
    Discovered,
    DrainEnded,
    DrainRequested,
    FleetEvent,
    InflightChanged,
    OwnAttemptEnded,
    ProcessEnded,
    Removed,
    ReplicaChanged,
    StandingChanged,
    StreamBytes,
    Undrained,
)
from envoy_ext.domain.ids import PoolName, ReplicaId
from envoy_ext.domain.outcomes import AttemptOutcome
from envoy_ext.domain.readiness_policy import ReadinessPolicy
from envoy_ext.domain.readiness_reasons import Finding, ReadinessReason
from envoy_ext.domain.replica_facts import ReplicaFacts
from envoy_ext.domain.replica_life import SERVING, LifeSignal, ReplicaState, move, settle
from envoy_ext.domain.replica_status import Liveness, ReplicaStatus

RAMP_FLOOR: Final = 0.1
"""A replica in slow start begins with a tenth of its weight, as Envoy's own slow start does."""

_ORDERED: Final = (ReplicaState.DRAINING, ReplicaState.GONE)
_PLACES: Final = {reason: place for place, reason in enumerate(ReadinessReason)}


class ReplicaGate:
    """The readiness of one replica. One event loop feeds it; nothing here waits."""

    def __init__(self, replica: ReplicaId, pool: PoolName, policy: ReadinessPolicy, now: float) -> None:
        self.replica = replica
        self.pool = pool
        self._policy = policy
        self._drain_until: float | None = None
        self._ramp_until: float | None = None
        self._deadline: float | None = None
        self._deadline_known = False
        """Asked for at each tick of a fleet, and moved by an event or a judgement only."""
        self._begin(now, incarnation=1, inflight=0)

    @property
    def state(self) -> ReplicaState:
        return self._state

    @property
    def incarnation(self) -> int:
        return self._facts.incarnation

    @property
    def sound(self) -> bool:
        """Whether it could get work, but for its circuit."""
        return self._sound

    @property
    def ordered_out(self) -> bool:
        """Whether somebody took it out: what ends there may end for that."""
        return self._state in _ORDERED or self._facts.held

    def receive(self, event: FleetEvent, now: float) -> tuple[Change, ...]:
        """Take in one event and say what follows."""
        self._deadline_known = False
        if self._state is ReplicaState.GONE:
            return self._receive_gone(event, now)
        signal: LifeSignal | None
        match event:
            case Discovered():
                return ()
            case Removed():
                signal = LifeSignal.REMOVED
            case StandingChanged(standing):
                self._leaving = standing is Standing.LEAVING
                self._facts.held = standing is Standing.HELD
                signal = self._order()
            case DrainRequested(deadline):
                self._drained, self._drain_until = True, deadline
                signal = self._order()
            case Undrained():
                self._drained, self._drain_until = False, None
                signal = self._order()
            case StreamBytes() | InflightChanged() | OwnAttemptEnded(AttemptOutcome.COMPLETED):
                self._facts.take(event, now)
                if self._state not in _ORDERED and not self._facts.board.is_restless():
                    return ()  # those that come often: they can only keep things as they are
                signal = None
            case _:
                signal = self._facts.take(event, now)
        return self._settle(signal, now)

    def next_deadline(self) -> float | None:
        """When `expire` has something to do; None when only an event can change anything."""
        if not self._deadline_known:
            self._deadline, self._deadline_known = self._find_deadline(), True
        return self._deadline

    def expire(self, now: float) -> tuple[Change, ...]:
        """Judge everything that time alone changes."""
        self._deadline_known = False
        return () if self._state is ReplicaState.GONE else self._settle(None, now)

    def is_control_call_due(self, now: float) -> bool:
        """Whether to ask the model for a token, unless an earlier call is still under way.

        Besides a replica that starts, one that hung and has no work left is asked: nothing else could
        show that it moves again.
        """
        if not self._policy.warmup or self._state in (ReplicaState.DISCOVERED, *_ORDERED):
            return False
        return self._facts.is_control_call_due(now)

    def read_status(self, now: float) -> ReplicaStatus:
        """All that is known at this moment."""
        facts = self._facts
        gone = self._state is ReplicaState.GONE
        sample = facts.pages.sample
        return ReplicaStatus(
            replica=self.replica,
            pool=self.pool,
            state=self._state,
            findings=self._list_findings(now),
            incarnation=facts.incarnation,
            started=facts.controls.proven and not gone,
            liveness=Liveness.DEAD if gone else facts.reach.read_liveness(now),
            sample=sample,
            sample_age_s=None if sample is None else max(0.0, now - sample.at),
            fresh=facts.pages.is_fresh(now),
            load=facts.pages.read_load(now),
            inflight=facts.progress.inflight,
            page_inflight=facts.page_inflight,
            cancelling=facts.cancelling,
            ramp=self._compute_ramp(now),
            failures=facts.failures.read(now),
            was_ready=self._was_ready,
        )

    def moves(self, now: float) -> bool:
        """Whether `read_status` says something else at every moment: slow start, and failures that fade."""
        return self._state is ReplicaState.WARMING or self._facts.failures.read(now) > 0.0

    def next_ageing(self, now: float) -> float:
        """When `read_status` says something else by time alone, unless it `moves`; infinite when it does not.

        Ages and the sentences that tell them are not meant: whoever shows those reads the time.
        """
        ages = (*self._facts.pages.list_ages(), self._facts.reach.silent_at)
        return min((at for at in ages if at > now), default=math.inf)

    # --- what follows -----------------------------------------------------------------------------

    def _find_deadline(self) -> float | None:
        if self._state is ReplicaState.GONE:
            return None
        deadlines = [*self._facts.list_deadlines(self._settled_at), self._ramp_until, self._drain_until]
        # What lies behind was judged by the last call.
        return min((due for due in deadlines if due is not None and due > self._settled_at), default=None)

    def _begin(self, now: float, incarnation: int, inflight: int) -> None:
        self._facts = ReplicaFacts(self._policy, now, incarnation, inflight)
        self._state = ReplicaState.DISCOVERED
        self._sound = False
        self._ramp_until = None
        self._drained = False
        """By an operator's order."""
        self._drain_until = None
        self._leaving = False
        """By the orchestrator's word, which no operator's order takes back."""
        self._was_ready = False
        self._settled_at = now
        self._findings = self._list_findings(now)
        self._told_incarnation = incarnation

    def _receive_gone(self, event: FleetEvent, now: float) -> tuple[Change, ...]:
        """Only discovery brings a replica back, as another one; its streams may still be ending."""
        if isinstance(event, InflightChanged):
            self._facts.take(event, now)
        if not isinstance(event, Discovered):
            return ()
        stood = self._findings
        cancelling = self._facts.cancelling
        self._begin(now, self.incarnation + 1, self._facts.progress.inflight)
        self._facts.cancelling = cancelling
        return (self._report(ReplicaState.GONE, stood, now),)

    def _order(self) -> LifeSignal:
        """Out while anybody says so."""
        return LifeSignal.DRAIN if self._drained or self._leaving else LifeSignal.UNDRAIN

    def _settle(self, signal: LifeSignal | None, now: float) -> tuple[Change, ...]:
        before, stood = self._state, self._findings
        self._move(signal, now)
        self._settled_at = now
        self._findings = self._list_findings(now)
        changes: list[Change] = []
        moved = before is not self._state or self._told_incarnation != self.incarnation
        if moved or [new.reason for new in self._findings] != [old.reason for old in stood]:
            changes.append(self._report(before, stood, now))
        if self._facts.process_ended_at is not None:
            changes.append(ProcessEnded(self.replica, self.pool, now, self._facts.process_ended_at))
            self._facts.process_ended_at = None
        if self._is_drained(now):
            self._drain_until = None
            changes.append(DrainEnded(self.replica, self.pool, now, self._facts.progress.inflight))
        return tuple(changes)

    def _move(self, signal: LifeSignal | None, now: float) -> None:
        """Follow the table: what happened, then what stands, then the end of slow start."""
        before = self._state
        state = before if signal is None else move(before, signal)
        condition = self._facts.judge(now)
        self._sound = condition in (LifeSignal.FIT, LifeSignal.FULL)
        cut_off = self._facts.circuit is not None and self._facts.circuit.out
        state = settle(state, LifeSignal.UNFIT if cut_off and self._sound else condition)
        if state is ReplicaState.WARMING:
            if before is not state or signal is LifeSignal.RESTARTED or self._ramp_until is None:
                self._ramp_until = now + self._policy.slow_start_s
            if now >= self._ramp_until:
                state = move(state, LifeSignal.RAMPED)
        if before in SERVING and state not in (*SERVING, *_ORDERED) and not (self._facts.held or cut_off):
            self._facts.board.note_left(now)  # a circuit has times of its own
        self._was_ready = self._was_ready or state in (*SERVING, ReplicaState.SATURATED)
        self._state = state

    def _is_drained(self, now: float) -> bool:
        if self._state is not ReplicaState.DRAINING or self._drain_until is None:
            return False
        return not self._facts.progress.inflight or now >= self._drain_until

    def _compute_ramp(self, now: float) -> float:
        if self._state is not ReplicaState.WARMING or self._ramp_until is None:
            return 1.0
        left = max(0.0, self._ramp_until - now) / self._policy.slow_start_s
        return max(RAMP_FLOOR, 1.0 - left)

    def _list_findings(self, now: float) -> tuple[Finding, ...]:
        """What stands against it, in the order of the words."""
        if self._state is ReplicaState.GONE:
            return (Finding(ReadinessReason.REMOVED, "discovery does not list it any more"),)
        found = self._facts.list_findings(now)
        if self._state is ReplicaState.DRAINING:
            why = "discovery says that it is being ended" if self._leaving else "taken out by order"
            text = f"{why}; {self._facts.progress.inflight} of our own streams run there"
            found.append(Finding(ReadinessReason.DRAINING, text))
        return tuple(sorted(found, key=lambda finding: _PLACES[finding.reason]))

    def _report(self, before: ReplicaState, stood: tuple[Finding, ...], now: float) -> ReplicaChanged:
        self._told_incarnation = self.incarnation
        standing = {finding.reason for finding in self._findings}
        return ReplicaChanged(
            replica=self.replica,
            pool=self.pool,
            at=now,
            before=before,
            after=self._state,
            findings=self._findings,
            closed=tuple(finding.reason for finding in stood if finding.reason not in standing),
            incarnation=self.incarnation,
        )
