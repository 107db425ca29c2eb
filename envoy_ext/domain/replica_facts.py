"""All that is known of one replica, and the one condition it adds up to.

The parts meet here: who answers (`reachability`), whether the model has answered (`control_calls`),
which process it is (`incarnation`), what its pages say (`page_watch`), whether it gets anywhere
(`progress`), what our own attempts say (`own_failures`), and which reasons stand (`reason_board`).
What follows from the condition is the gate's business (`readiness`).
"""

from typing import assert_never

from envoy_ext.domain.control_calls import ControlCalls
from envoy_ext.domain.fleet_events import (
    CircuitMoved,
    CircuitStanding,
    ControlCallFailed,
    ControlCallPassed,
    DependencyChanged,
    InflightChanged,
    LoopLate,
    OwnAttemptEnded,
    Scraped,
    ScrapeFailed,
    Sign,
    StreamBytes,
)
from envoy_ext.domain.incarnation import ProcessMarks, is_other_process, is_surely_same, proves_end
from envoy_ext.domain.outcomes import AttemptOutcome
from envoy_ext.domain.own_failures import ANSWERED, OwnFailures
from envoy_ext.domain.page_watch import PageWatch
from envoy_ext.domain.progress import ProgressWatch
from envoy_ext.domain.reachability import Reachability
from envoy_ext.domain.readiness_policy import ReadinessPolicy
from envoy_ext.domain.readiness_reasons import UNFIT_KINDS, Finding, ReadinessReason, ReasonKind
from envoy_ext.domain.reason_board import ReasonBoard
from envoy_ext.domain.replica_life import LifeSignal
from envoy_ext.domain.sample import Sample, ScrapeFailure
from envoy_ext.domain.signals import Level

_R = ReadinessReason
_LOAD = frozenset({ReasonKind.LOAD})


class ReplicaFacts:
    """What the signs add up to; changed only by its gate."""

    def __init__(self, policy: ReadinessPolicy, now: float, incarnation: int, inflight: int) -> None:
        self.incarnation = incarnation
        self.board = ReasonBoard(policy)
        self.reach = Reachability(policy, alive_at=now)
        self.controls = ControlCalls(policy)
        self.pages = PageWatch(policy, seen_at=now)
        self.progress = ProgressWatch(moved_at=now, inflight=inflight)
        self.failures = OwnFailures()
        self.page_inflight = 0
        """Attempts of our own when the last page came."""
        self.cancelling = 0
        """Those of our own, at this moment, that we have dropped."""
        self.held = False
        """The orchestrator lists it as not ready."""
        self.circuit: CircuitStanding | None = None
        """What the circuit of this process says; None while it is closed."""
        self._policy = policy
        self.process_ended_at: float | None = None
        """When the process before this one was last seen, where a page proves its end."""
        self._marks: ProcessMarks | None = None
        self._refused = False
        """Nothing listened there since the last page, so the next one may be another process's."""
        self._loading = False
        self._lost_dependencies: set[str] = set()

    def take(self, sign: Sign, now: float) -> LifeSignal | None:
        """Take in a sign; the signal is what happened by it, if anything did."""
        match sign:
            case Scraped(sample):
                return self._take_sample(sample, now)
            case ScrapeFailed(failure):
                return self._take_failure(failure, now)
            case ControlCallPassed() | ControlCallFailed():
                return self._take_control_call(sign, now)
            case OwnAttemptEnded(outcome):
                self._take_attempt(outcome, now)
            case StreamBytes():
                self._take_bytes(now)
            case InflightChanged(inflight, cancelling):
                self.cancelling = cancelling
                self.progress.note_inflight(inflight, now)
            case DependencyChanged(name, reachable):
                (self._lost_dependencies.discard if reachable else self._lost_dependencies.add)(name)
            case CircuitMoved(standing):
                self._take_circuit(standing)
            case LoopLate(seconds):
                self.reach.note_late(seconds, now)
                self.progress.excuse(seconds, now)
                self.pages.shift(seconds, now)
            case _:
                assert_never(sign)
        return None

    def judge(self, now: float) -> LifeSignal:
        """Judge what is judged at any moment, and give the one condition that holds, but for the circuit."""
        self._judge_time(now)
        if not self.controls.proven:
            return LifeSignal.UNPROVEN
        if self.held or self._lost_dependencies or self.board.holds(UNFIT_KINDS):
            return LifeSignal.UNFIT
        return LifeSignal.FULL if self.board.holds(_LOAD) else LifeSignal.FIT

    def list_findings(self, now: float) -> list[Finding]:
        """Every reason that stands."""
        found = [*self.board.list_findings(), *self.pages.list_remarks(now)]
        if self.held:
            found.append(Finding(_R.POD_NOT_READY, "discovery lists it as not ready"))
        if self._lost_dependencies:
            names = ", ".join(sorted(self._lost_dependencies))
            found.append(Finding(_R.DEPENDENCY, f"cannot reach {names}"))
        if self.circuit is not None and self.circuit.cut:
            reason = _R.CIRCUIT_OPEN if self.circuit.out else _R.CIRCUIT_OVERRULED
            found.append(Finding(reason, self.circuit.text))
        if not self.controls.proven:
            found.append(self._describe_unproven())
        elif self.controls.declined:
            text = f"ready without a token: the engine declines control calls ({self.controls.declined})"
            found.append(Finding(_R.CONTROL_CALL_DECLINED, text))
        return found

    def list_deadlines(self, now: float) -> list[float | None]:
        """When time alone could change the condition or the findings."""
        silent_since = self.progress.silent_since
        return [
            self.pages.stale_at,
            self.reach.silent_at,
            self.failures.falls_to(self._policy.own_failures.return_at),
            None if self.controls.proven else self.controls.retry_at,
            None if silent_since is None else silent_since + self._policy.hang_s,
            *self.board.list_deadlines(now),
        ]

    def is_control_call_due(self, now: float) -> bool:
        """Whether the model should be asked for a token."""
        absent = self._loading or self.board.is_open(_R.SLEEPING) or self.board.is_open(_R.ENGINE_DEAD)
        # One that was never proven is asked also while its page is refused: that may be another port.
        refused = self.reach.refusal is Level.BAD
        stuck = self.board.is_open(_R.HANG) and not self.progress.working and not refused
        failing = self.circuit is not None and self.circuit.asks
        return not absent and (stuck or failing or not self.controls.proven) and now >= self.controls.retry_at

    # --- signs ------------------------------------------------------------------------------------

    def _take_sample(self, sample: Sample, now: float) -> LifeSignal | None:
        if not self.pages.is_next(sample):
            return None
        marks = ProcessMarks.read(sample)
        signal = LifeSignal.HEARD
        if self._is_restart(marks):
            last = self.pages.sample
            if self._marks is not None and last is not None and proves_end(self._marks, marks):
                self.process_ended_at = last.at
            self._forget_process(now)
            signal = LifeSignal.RESTARTED
        self._marks = marks if self._marks is None else self._marks.follow(marks)
        self._note_come()
        self._loading = False
        self.reach.note_answer(sample.at)
        self.progress.note_sample(sample)
        self.page_inflight = self.progress.inflight
        self.board.observe(_R.ENGINE_DEAD, Level.GOOD, sample.at, "")
        for reason, level, text in self.pages.note(sample):
            self.board.observe(reason, level, sample.at, text)
        if not self.controls.proven and self.progress.computed_at >= sample.at:
            # What it gives others is proof enough: a sidecar that starts among busy replicas would
            # wait for its own token until their queues are empty.
            self._prove()
        self._waive_proof()
        return signal

    def _take_failure(self, failure: ScrapeFailure, now: float) -> LifeSignal | None:
        self.pages.note_failure(failure)
        match failure.reason:
            case "refused" | "reset":
                self.reach.note_refused(failure.at)
                self._refused = self._refused or self.reach.refusal is Level.BAD
            case "timeout" | "unreachable":
                self.reach.note_timeout(failure.at)
            case "loading":
                return self._take_loading(failure.at, now)
            case "engine_dead":
                self.reach.note_answer(failure.at)
                text = "its server says that its engine is dead"
                self.board.observe(_R.ENGINE_DEAD, Level.BAD, failure.at, text)
            case "starved":
                return None  # it was this process that did not run
            case _:
                return self._take_answer_without_page(failure.at, now)
        return LifeSignal.HEARD

    def _take_loading(self, at: float, now: float) -> LifeSignal:
        """By its own word it is a process without a model: another one, if it had answered before."""
        had_model = self.controls.proven or self._marks is not None
        if had_model:
            self._forget_process(now)
        self.reach.note_answer(at)
        self._note_come()
        self._loading = True
        return LifeSignal.RESTARTED if had_model else LifeSignal.HEARD

    def _take_answer_without_page(self, at: float, now: float) -> LifeSignal:
        """Something listens and gives no metrics: a fault of the page, not of the replica."""
        restarted = self._refused and self._marks is None and self.controls.proven
        if restarted:
            self._forget_process(now)
        if self._marks is None:
            self._note_come()  # no page will come to tell the one process from the other
        self.reach.note_answer(at)
        self._loading = False
        self._waive_proof()
        return LifeSignal.RESTARTED if restarted else LifeSignal.HEARD

    def _take_control_call(
        self, call: ControlCallPassed | ControlCallFailed, now: float
    ) -> LifeSignal | None:
        if call.incarnation != self.incarnation:
            return None  # it says nothing of the process that is there
        if isinstance(call, ControlCallPassed):
            self._prove(call.declined)
            self._loading = False
            if self._marks is None:
                self._refused = False  # the first process, before its first page
            self.reach.note_token(now)
            self.progress.note_movement(now)
        else:
            self.controls.note_failed(call.detail, now)
        return LifeSignal.HEARD

    def _take_attempt(self, outcome: AttemptOutcome, now: float) -> None:
        self.failures.note(outcome, now)
        if outcome in ANSWERED:
            self.reach.note_bytes(now)
        elif outcome is AttemptOutcome.NETWORK_PARTITION:
            self.reach.note_timeout(now)
        if outcome is AttemptOutcome.COMPLETED:
            self.progress.note_movement(now)

    def _take_bytes(self, now: float) -> None:
        self.reach.note_bytes(now)
        self.progress.note_movement(now)
        if self.reach.refusal is Level.GOOD:
            self._refused = False

    def _take_circuit(self, standing: CircuitStanding | None) -> None:
        if standing is not None and standing.asks and (self.circuit is None or not self.circuit.asks):
            self.controls.hurry()
        self.circuit = standing

    def _waive_proof(self) -> None:
        if not self._policy.warmup:
            self._prove()

    def _prove(self, declined: str = "") -> None:
        """Its model answers. What was absent before the first time was not this process."""
        if not self.controls.proven:
            self.board.forget_absence()
        self.controls.note_passed(declined)

    def _note_come(self) -> None:
        """Something answers; if nothing did before, it is asked for a token at once."""
        if self._refused and not self.controls.proven:
            self.controls.hurry()
        self._refused = False

    def _is_restart(self, marks: ProcessMarks) -> bool:
        if self._marks is None:
            return self._refused and self.controls.proven
        if self._refused:
            return not is_surely_same(self._marks, marks)
        return is_other_process(self._marks, marks)

    def _forget_process(self, now: float) -> None:
        """Another process is there: of what was known, only what concerns the hardware speaks of it."""
        self.incarnation += 1
        self.board.forget_process()
        self.controls.reset()
        self.pages.forget(now)
        self.progress.forget_engine(now)
        self.failures = OwnFailures()
        self.circuit = None
        self._marks = None
        self._refused = False

    # --- judgements -------------------------------------------------------------------------------

    def _judge_time(self, now: float) -> None:
        observe = self.board.observe
        observe(_R.REFUSED, self.reach.refusal, now, "nothing listens at its address")
        silence = f"no answer for {now - self.reach.alive_at:.0f} s"
        observe(_R.UNREACHABLE, self.reach.judge_silence(now), now, silence)
        text = f"work in hand and no progress for {self._policy.hang_s:g} s"
        observe(_R.HANG, self._judge_hang(now), now, text)
        failures = self.failures.read(now)
        text = f"our own requests failed there (decayed count {failures:.1f})"
        observe(_R.JUST_FAILED, self._policy.own_failures.read_level(failures), now, text)

    def _judge_hang(self, now: float) -> Level:
        """BAD after work without a movement for too long; only a movement makes it GOOD again."""
        since = self.progress.silent_since
        silent = since is not None and now >= since + self._policy.hang_s
        if self.board.is_open(_R.HANG):
            # Work that is gone because its clients gave up proves nothing; a control call would.
            waived = since is None and not self._policy.warmup
            moved = self.progress.moved_at > self.board.opened_at(_R.HANG)
            return Level.GOOD if (moved and not silent) or waived else Level.BAD
        if not silent:
            return Level.GOOD
        # An old page shows neither work nor its absence. Where there never was a page, our own
        # silent streams are what there is to go by.
        return Level.BAD if self.pages.is_fresh(now) or self.pages.sample is None else Level.UNKNOWN

    def _describe_unproven(self) -> Finding:
        if self._loading:
            return Finding(_R.LOADING, "the engine says that it is loading its model")
        failure = self.controls.failure
        text = f"its control call failed: {failure}" if failure else "its model has not answered yet"
        return Finding(_R.CONTROL_CALL, text)
