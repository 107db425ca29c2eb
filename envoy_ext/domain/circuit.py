"""The circuit of one replica: whether our own requests may go there, by what became of those before.

               ┌────────────── trip, probe failed ──────────────┐
    CLOSED ── suspect ──> SUSPECTED                             v
      ^  ^ <── probe passed ──┘        ┌─────────────────────> OPEN ── waited ──> PROBING
      │  └───────── trip ──────────────│─────────────────────> ^ ^                │    │
      │                                │ failed                │ └─ probe failed ─┘    │ probe passed
      └──────────── proven ─────── HALF_OPEN <────────────────────────────────────────┘

* CLOSED opens by failures in a row of one class or of all, or by their share of a window with enough
  attempts in it; so a single failure on a quiet replica is nothing.
* SUSPECTED serves on. Its failures are such as failed at another replica too, so they may be the requests';
  the control call of the fleet decides: one token from the model, and the requests are to blame.
* OPEN waits; the time doubles with each opening, has an upper bound, and is drawn a little shorter.
* PROBING waits for the control call. Where there is none, it is passed over.
* HALF_OPEN takes so many *trials*, real requests, as it needs successes, and only a few at a time. The
  first one that fails opens it again. What could not be tried within a window closes it too: a closed
  circuit would have forgotten by then.

Nothing is ever counted in OPEN and PROBING: what ends there began before. A trial is named by its operation,
which runs once at a replica. Attempts that end at one instant may come in any order.

A replica's successor (another process) has a circuit of its own.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from envoy_ext.domain.circuit_evidence import Answered, Blame, Evidence, Failed, FailureClass
from envoy_ext.domain.circuit_judgement import judge_window
from envoy_ext.domain.circuit_policy import CircuitPolicy
from envoy_ext.domain.circuit_window import CircuitWindow
from envoy_ext.domain.ids import OperationId

JITTER: Final = 0.2
"""The share by which an open time may be shorter: replicas that failed together are not asked together."""


class CircuitState(StrEnum):
    """What a circuit is."""

    CLOSED = "closed"
    SUSPECTED = "suspected"
    OPEN = "open"
    PROBING = "probing"
    HALF_OPEN = "half_open"


class CircuitSignal(StrEnum):
    """What moves it."""

    TRIP = "trip"
    SUSPECT = "suspect"
    WAITED = "waited"
    WAITED_UNPROBED = "waited_unprobed"
    """There is no control call to wait for."""
    PROBE_PASSED = "probe_passed"
    PROBE_FAILED = "probe_failed"
    TRIAL_FAILED = "trial_failed"
    PROVEN = "proven"


_S, _T = CircuitState, CircuitSignal
TRANSITIONS: Final[dict[CircuitState, dict[CircuitSignal, CircuitState]]] = {
    _S.CLOSED: {_T.TRIP: _S.OPEN, _T.SUSPECT: _S.SUSPECTED},
    _S.SUSPECTED: {_T.TRIP: _S.OPEN, _T.PROBE_PASSED: _S.CLOSED, _T.PROBE_FAILED: _S.OPEN},
    _S.OPEN: {_T.WAITED: _S.PROBING, _T.WAITED_UNPROBED: _S.HALF_OPEN},
    _S.PROBING: {_T.PROBE_PASSED: _S.HALF_OPEN, _T.PROBE_FAILED: _S.OPEN},
    _S.HALF_OPEN: {_T.TRIAL_FAILED: _S.OPEN, _T.PROVEN: _S.CLOSED},
}
"""A signal a state does not name leaves it as it is."""

CUT: Final = frozenset({CircuitState.OPEN, CircuitState.PROBING, CircuitState.HALF_OPEN})
"""States in which a replica gets no work but trials."""
ASKS: Final = frozenset({CircuitState.SUSPECTED, CircuitState.PROBING})
"""States in which the control call is wanted."""


@dataclass(slots=True)
class _Trial:
    turn: int
    """Of which half-open it is."""
    answered: bool = False


@dataclass(slots=True)
class Circuit:
    """One replica's. Times are monotonic seconds; `draw` gives a number from 0 to 1 for the jitter."""

    policy: CircuitPolicy
    draw: Callable[[], float]
    state: CircuitState = CircuitState.CLOSED
    kind: FailureClass | None = None
    """The class that opened it last."""
    why: str = ""
    """For people; holds nothing of a request."""
    condemned: bool = False
    """Its model failed the control call too, and no later one was passed in vain."""
    opened_at: float = -math.inf
    open_until: float = -math.inf
    _openings: int = 0
    _closed_at: float = -math.inf
    _half_open_at: float = -math.inf
    _asked_at: float = -math.inf
    """When the control call was wanted last."""
    _turn: int = 0
    _successes: int = 0
    _trials: dict[OperationId, _Trial] = field(default_factory=dict)
    _window: CircuitWindow = field(init=False)
    _unjudged_at: float | None = None
    """The instant whose failures the window has and the rate was not judged by."""

    def __post_init__(self) -> None:
        self._window = CircuitWindow(self.policy.window_s)

    # --- what happens -----------------------------------------------------------------------------

    def begin(self, operation_id: OperationId) -> None:
        """An attempt of ours goes there."""
        if self.state is CircuitState.HALF_OPEN:
            self._trials.setdefault(operation_id, _Trial(self._turn))

    def count_free_trials(self) -> int:
        """How many more trials may begin: as many as it still needs successes, and few at a time."""
        if self.state is not CircuitState.HALF_OPEN:
            return 0
        waiting = sum(one.turn == self._turn and not one.answered for one in self._trials.values())
        needed = self.policy.trial_successes - self._successes - waiting
        return max(0, min(needed, self.policy.trial_requests - len(self._trials)))

    def note_first_delta(self, operation_id: OperationId, now: float) -> None:
        """An attempt has computed its prompt, and goes on."""
        trial = self._trials.get(operation_id)
        if trial is not None and not trial.answered:
            trial.answered = True
            self._count_success(trial, now)

    def finish(self, operation_id: OperationId, evidence: Evidence | None, now: float) -> None:
        """An attempt is over, and so is all that is to be known of it."""
        self.expire(now)
        if isinstance(evidence, Failed) and evidence.kind not in self.policy.in_a_row:
            evidence = None
        trial = self._trials.pop(operation_id, None)
        if self.state in (CircuitState.CLOSED, CircuitState.SUSPECTED):
            self._note(evidence, now)
        elif trial is not None and trial.turn == self._turn and self.state is CircuitState.HALF_OPEN:
            self._judge_trial(trial, evidence, now)

    def note_probe(self, passed: bool, now: float) -> None:
        """The control call has ended."""
        if self.state not in ASKS:
            return
        if not passed:
            self.condemned = True
            self._open(CircuitSignal.PROBE_FAILED, self.kind, "its control call failed too", now)
        elif self.state is CircuitState.SUSPECTED:
            self._window.clear()
            self._unjudged_at = None
            self._move(CircuitSignal.PROBE_PASSED, "its model answers: the requests were to blame")
        else:
            self._half_open(CircuitSignal.PROBE_PASSED, now)

    def hurry(self, now: float) -> None:
        """It has to serve on, so its model is asked at once; the next time after the usual wait."""
        if self.state is CircuitState.OPEN and self.policy.probes and self._asked_at < self.opened_at:
            self._ask(CircuitSignal.WAITED, now)

    def next_deadline(self) -> float | None:
        """When `expire` has something to do; None when only an event can change anything."""
        match self.state:
            case CircuitState.OPEN:
                return self.open_until
            case CircuitState.HALF_OPEN:
                return None if self._silent_trials else self._half_open_at + self.policy.window_s
            case _:
                return self._unjudged_at

    def expire(self, now: float) -> None:
        """Judge what time alone changes."""
        if self._unjudged_at is not None and now > self._unjudged_at:
            self._unjudged_at = None
            if self.state in (CircuitState.CLOSED, CircuitState.SUSPECTED):
                self._judge(now)
        if self.state is CircuitState.OPEN and now >= self.open_until:
            if self.policy.probes:
                self._ask(CircuitSignal.WAITED, now)
            else:
                self._half_open(CircuitSignal.WAITED_UNPROBED, now)
        quiet = self.state is CircuitState.HALF_OPEN and not self._silent_trials
        if quiet and now >= self._half_open_at + self.policy.window_s:
            self._close(f"no failure in {self.policy.window_s:g} s", now)

    # --- closed -----------------------------------------------------------------------------------

    def _note(self, evidence: Evidence | None, now: float) -> None:
        if evidence is None:
            return
        self._window.note(evidence, now)
        if isinstance(evidence, Failed):
            # Judged when the instant is over: of attempts that end together the failures may come first.
            self._unjudged_at = now

    def _judge(self, now: float) -> None:
        found = judge_window(self._window, self.policy, now)
        if found is not None:
            signal = CircuitSignal.TRIP if found.certain else CircuitSignal.SUSPECT
            self._follow(signal, found.kind, found.why, now)

    def _follow(self, signal: CircuitSignal, kind: FailureClass, why: str, now: float) -> None:
        if signal is CircuitSignal.TRIP:
            self._open(signal, kind, why, now)
        elif self.state is CircuitState.CLOSED and self.policy.probes and self._may_ask(now):
            self.kind, self.why = kind, why
            self._ask(signal, now)

    def _may_ask(self, now: float) -> bool:
        return now >= self._asked_at + self.policy.open_s

    # --- half open --------------------------------------------------------------------------------

    @property
    def _silent_trials(self) -> bool:
        return any(one.turn == self._turn and not one.answered for one in self._trials.values())

    def _judge_trial(self, trial: _Trial, evidence: Evidence | None, now: float) -> None:
        match evidence:
            case Answered():
                if not trial.answered:
                    self._count_success(trial, now)
            case Failed(kind, blame):
                if blame is not Blame.REQUEST:
                    self.condemned = False  # the control call was passed: this is a request's word alone
                    self._open(CircuitSignal.TRIAL_FAILED, kind, f"a trial failed ({kind})", now)
            case None:
                pass

    def _count_success(self, trial: _Trial, now: float) -> None:
        if self.state is not CircuitState.HALF_OPEN or trial.turn != self._turn:
            return
        self._successes += 1
        if self._successes >= self.policy.trial_successes:
            self._close(f"{self._successes} trials succeeded", now)

    # --- moves ------------------------------------------------------------------------------------

    def _move(self, signal: CircuitSignal, why: str) -> None:
        self.state = TRANSITIONS[self.state].get(signal, self.state)
        self.why = why

    def _ask(self, signal: CircuitSignal, now: float) -> None:
        self._asked_at = now
        self._move(signal, self.why)

    def _open(self, signal: CircuitSignal, kind: FailureClass | None, why: str, now: float) -> None:
        if self.state in (CircuitState.CLOSED, CircuitState.SUSPECTED):
            if now >= self._closed_at + self.policy.open_max_s:
                self._openings = 0
            self.condemned = signal is CircuitSignal.PROBE_FAILED
            self.opened_at = now
        self._move(signal, why)
        self.kind = kind
        wait_s = min(self.policy.open_max_s, self.policy.open_s * 2.0 ** min(self._openings, 32))
        self.open_until = now + wait_s * (1.0 - JITTER * self.draw())
        self._openings += 1
        self._window.clear()
        self._unjudged_at = None

    def _half_open(self, signal: CircuitSignal, now: float) -> None:
        self._move(signal, self.why)
        self._half_open_at = now
        self._turn += 1
        self._successes = 0

    def _close(self, why: str, now: float) -> None:
        self._move(CircuitSignal.PROVEN, why)
        self.condemned = False
        self._closed_at = now
        self._window.clear()
        self._trials.clear()
